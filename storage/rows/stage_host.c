/* storage/rows/stage_host.c - writes the descriptor of a staged chunk on the host. CUDA counterpart:
 * stage.cu. */
#include "storage/rows/stage_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 4096 };

HOTBED_HOST_EACH(write_body, hotbed_stage_write(args, i))

static hotbed_status write_descriptor(const hotbed_stage_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, args->descriptor.n, GRAIN, write_body, args);
}

const hotbed_stage_kernels hotbed_stage_kernels_host = {write_descriptor};
