/* tests/dist/window_case.cu - kernels over a window, on CUDA. */
#include "base/cuda_launch.h"
#include "tests/dist/window_case.h"

static __global__ void put_kernel(window_args a) {
    uint64_t n = (uint64_t)a.size * WINDOW_WORDS;
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        window_put_one(&a, i);
}

static __global__ void check_kernel(window_args a) {
    uint64_t n = (uint64_t)a.size * WINDOW_WORDS;
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        window_check_one(&a, i);
}

hotbed_status window_put_cuda(const window_args *args, hotbed_stream *stream) {
    put_kernel<<<2, 128, 0, hotbed_cuda_native(stream)>>>(*args);
    return hotbed_cuda_launched("put_kernel");
}

int window_device_cuda(const void *data) {
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, data) == cudaSuccess ? attributes.device : -1;
}

hotbed_status window_check_cuda(const window_args *args, hotbed_stream *stream) {
    check_kernel<<<2, 128, 0, hotbed_cuda_native(stream)>>>(*args);
    return hotbed_cuda_launched("check_kernel");
}
