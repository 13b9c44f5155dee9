/* storage/rows/stage_host.c - writes the descriptor of a staged chunk on the host. CUDA counterpart:
 * stage.cu. */
#include "storage/rows/stage_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 4096 };

static void write_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_stage_write(args, i);
}

static hotbed_status write_descriptor(const hotbed_stage_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->descriptor.n, GRAIN, write_body, args, sizeof *args);
}

const hotbed_stage_kernels hotbed_stage_kernels_host = {write_descriptor};
