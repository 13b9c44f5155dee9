/* storage/rows/export_host.c - launches the core of exports on host threads. CUDA counterpart:
 * export.cu. */
#include "storage/rows/export_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 64 };

HOTBED_HOST_EACH(select_body, hotbed_export_select(args, i, 1))
HOTBED_HOST_EACH(write_body, hotbed_export_write(args, i, 1))

static hotbed_status choose(const hotbed_export_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, args->groups + 1, GRAIN, select_body, args);
}

static hotbed_status write_rows(const hotbed_export_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, args->groups + 1, GRAIN, write_body, args);
}

const hotbed_export_kernels hotbed_export_kernels_host = {choose, write_rows};
