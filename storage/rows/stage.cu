/* storage/rows/stage.cu - writes the descriptor of a staged chunk on CUDA. Host counterpart:
 * stage_host.c. */
#include "base/cuda_launch.h"
#include "storage/rows/stage_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) stage_write_kernel(hotbed_stage_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.descriptor.n; i += hotbed_cuda_threads())
        hotbed_stage_write(&a, i);
}

static hotbed_status write_descriptor(const hotbed_stage_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(stage_write_kernel, args->descriptor.n, BLOCK, WAVES, stream, *args);
}

const hotbed_stage_kernels hotbed_stage_kernels_cuda = {write_descriptor};
