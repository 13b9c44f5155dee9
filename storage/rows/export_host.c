/* storage/rows/export_host.c - launches the core of exports on host threads. CUDA counterpart:
 * export.cu. */
#include "storage/rows/export_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 64 };

static void select_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t g = begin; g < end; g++)
        hotbed_export_select(args, g, 1);
}

static void write_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t g = begin; g < end; g++)
        hotbed_export_write(args, g, 1);
}

static hotbed_status choose(const hotbed_export_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->groups + 1, GRAIN, select_body, args, sizeof *args);
}

static hotbed_status write_rows(const hotbed_export_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->groups + 1, GRAIN, write_body, args, sizeof *args);
}

const hotbed_export_kernels hotbed_export_kernels_host = {choose, write_rows};
