/* dist/balance.cu - kernels of batch balance on CUDA.  Host counterpart: balance_host.c. */
#include "base/cuda_launch.h"
#include "dist/balance_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) workloads_kernel(hotbed_workload_args a) {
    uint32_t real = *a.bad != 0 ? 0 : a.real;
    for (uint64_t b = hotbed_cuda_thread(); b <= a.batch_size; b += hotbed_cuda_threads())
        a.workloads[b] = b == a.batch_size ? real
                                           : hotbed_balance_workload(
                                                 a.given, a.starts, a.num_features, a.batch_size,
                                                 real, (uint32_t)b);
}

static __host__ __device__ uint64_t starts_of(const hotbed_balance_view *view) {
    return (uint64_t)view->num_features * view->batch_size + 1;
}

static __global__ void __launch_bounds__(BLOCK) lengths_kernel(hotbed_balance_view v) {
    for (uint64_t r = hotbed_cuda_thread(); r < starts_of(&v); r += hotbed_cuda_threads())
        hotbed_balance_length(&v, (uint32_t)r);
}

static __global__ void __launch_bounds__(BLOCK) fill_kernel(hotbed_balance_view v) {
    uint64_t rows = starts_of(&v), n = v.starts[rows - 1];
    for (uint64_t r = hotbed_cuda_thread(); r < rows; r += hotbed_cuda_threads())
        v.offsets[r] = v.starts[r];
    for (uint64_t i = hotbed_cuda_thread(); i < n && i < v.bound; i += hotbed_cuda_threads())
        hotbed_balance_key(&v, (uint32_t)i);
}

static __global__ void __launch_bounds__(BLOCK) rows_kernel(
    uint64_t n, uint64_t row_bytes, const uint8_t *all, const uint32_t *samples,
    const uint32_t *real, uint8_t *rows) {
    for (uint64_t at = hotbed_cuda_thread(); at < n; at += hotbed_cuda_threads())
        rows[at] = hotbed_balance_byte(all, samples, *real, row_bytes, at);
}

static hotbed_status workloads(const hotbed_workload_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        workloads_kernel, (uint64_t)args->batch_size + 1, BLOCK, WAVES, stream, *args);
}

static hotbed_status lengths(const hotbed_balance_view *view, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(lengths_kernel, starts_of(view), BLOCK, WAVES, stream, *view);
}

static hotbed_status fill(const hotbed_balance_view *view, hotbed_stream *stream) {
    uint64_t n = view->bound > starts_of(view) ? view->bound : starts_of(view);
    return HOTBED_CUDA_LAUNCH(fill_kernel, n, BLOCK, WAVES, stream, *view);
}

static hotbed_status rows(
    uint32_t batch_size, uint64_t row_bytes, const void *all, const uint32_t *samples,
    const uint32_t *real, void *to, hotbed_stream *stream) {
    uint64_t n = batch_size * row_bytes;
    return HOTBED_CUDA_LAUNCH(
        rows_kernel, n, BLOCK, WAVES, stream, n, row_bytes, (const uint8_t *)all, samples, real,
        (uint8_t *)to);
}

const hotbed_balance_kernels hotbed_balance_kernels_cuda = {workloads, lengths, fill, rows};
