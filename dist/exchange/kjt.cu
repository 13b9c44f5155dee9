/* dist/exchange/kjt.cu - starts of a KJT's rows, and picking its features, on CUDA. Host counterpart:
 * kjt_host.c. */
#include "base/cuda_launch.h"
#include "dist/exchange/kjt_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) put_kernel(hotbed_words w) {
    for (uint32_t i = threadIdx.x; i < w.n; i += BLOCK)
        w.to[i] = w.word[i];
}

static __global__ void __launch_bounds__(BLOCK) lengths_kernel(hotbed_kjt_view k) {
    for (uint64_t r = hotbed_cuda_thread(); r <= k.rows; r += hotbed_cuda_threads())
        hotbed_kjt_length(&k, r);
}

static __global__ void __launch_bounds__(BLOCK) check_kernel(hotbed_kjt_view k) {
    for (uint64_t r = hotbed_cuda_thread(); r < k.rows; r += hotbed_cuda_threads())
        hotbed_kjt_check_row(&k, r);
}

static __host__ __device__ uint64_t picked_rows(const hotbed_pick_view *pick) {
    return (uint64_t)pick->num_features * pick->batch_size;
}

static __global__ void __launch_bounds__(BLOCK) pick_lengths_kernel(hotbed_pick_view p) {
    for (uint64_t r = hotbed_cuda_thread(); r <= picked_rows(&p); r += hotbed_cuda_threads())
        hotbed_pick_length(&p, (uint32_t)r);
}

static __global__ void __launch_bounds__(BLOCK) pick_keys_kernel(hotbed_pick_view p) {
    uint32_t n = p.starts[picked_rows(&p)];
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        hotbed_pick_key(&p, (uint32_t)i);
}

static __global__ void __launch_bounds__(BLOCK)
    pick_offsets_kernel(hotbed_pick_view p, int64_t *offsets) {
    for (uint64_t r = hotbed_cuda_thread(); r <= picked_rows(&p); r += hotbed_cuda_threads())
        offsets[r] = hotbed_pick_offset(&p, (uint32_t)r);
}

static hotbed_status put(const hotbed_words *words, hotbed_stream *stream) {
    put_kernel<<<1, BLOCK, 0, hotbed_cuda_native(stream)>>>(*words);
    return hotbed_cuda_launched("put_kernel");
}

static hotbed_status lengths(const hotbed_kjt_view *kjt, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(lengths_kernel, kjt->rows + 1, BLOCK, WAVES, stream, *kjt);
}

static hotbed_status check(const hotbed_kjt_view *kjt, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(check_kernel, kjt->rows, BLOCK, WAVES, stream, *kjt);
}

static hotbed_status pick_lengths(const hotbed_pick_view *pick, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        pick_lengths_kernel, picked_rows(pick) + 1, BLOCK, WAVES, stream, *pick);
}

static hotbed_status pick_keys(const hotbed_pick_view *pick, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(pick_keys_kernel, pick->kjt.bound, BLOCK, WAVES, stream, *pick);
}

static hotbed_status pick_offsets(
    const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        pick_offsets_kernel, picked_rows(pick) + 1, BLOCK, WAVES, stream, *pick, offsets);
}

const hotbed_kjt_kernels hotbed_kjt_kernels_cuda = {
    put, lengths, check, pick_lengths, pick_keys, pick_offsets,
};
