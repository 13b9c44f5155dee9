/* dist/comm/comm_sum.cu - sums over ranks on CUDA.  Host counterpart: comm_sum_host.c. */
#include "base/cuda_launch.h"
#include "dist/comm/comm_sum_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) sum_kernel(hotbed_comm_sum_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.n; i += hotbed_cuda_threads())
        hotbed_comm_sum_one(&a, i);
}

static hotbed_status sum(const hotbed_comm_sum_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(sum_kernel, args->n, BLOCK, WAVES, stream, *args);
}

const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_cuda = {sum};
