/* storage/rows/stage_host.c - writes the descriptor of a staged chunk on the host. CUDA counterpart:
 * stage.cu. */
#include "storage/rows/stage_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 4096 };

HOTBED_HOST_EACH(write_descriptor_body, hotbed_stage_write(args, i))

HOTBED_HOST_CALL(write_descriptor, hotbed_stage_args, a->descriptor.n, GRAIN)

const hotbed_stage_kernels hotbed_stage_kernels_host = {write_descriptor};
