/* storage/cuda_bins.h - rows by the part of the lower tier that they are in: counts to starts, on CUDA. */
#ifndef HOTBED_STORAGE_CUDA_BINS_H
#define HOTBED_STORAGE_CUDA_BINS_H

#include "base/cuda_launch.h"
#include "storage/step_core.h"

enum { HOTBED_BINS_BLOCK = 1024 };

static_assert(HOTBED_MOVE_BINS + 1 == HOTBED_BINS_BLOCK, "a thread a bin");

/* Counts of the bins become their starts.  bins[b + 1] has the count of bin b before; afterwards the start of bin b, which
 * who puts them into order moves on.  bins[0] becomes the number of all, the last word 0; in eval it has had the number of
 * those that were not put off, and `below` is told of both. */
static __global__ void __launch_bounds__(HOTBED_BINS_BLOCK) starts_kernel(hotbed_step_view s) {
    __shared__ uint32_t sums[HOTBED_BINS_BLOCK];
    uint32_t *bins = s.move_bins;
    uint32_t b = threadIdx.x;
    sums[b] = b == 0 ? 0 : bins[b];
    __syncthreads();
    for (uint32_t step = 1; step < HOTBED_BINS_BLOCK; step *= 2) {
        uint32_t before = b >= step ? sums[b - step] : 0;
        __syncthreads();
        sums[b] += before;
        __syncthreads();
    }
    /* sums[b]: all bins below b; sums[last]: all. */
    if (b > 0)
        bins[b] = sums[b - 1];
    if (b != 0)
        return;
    bins[0] = sums[HOTBED_BINS_BLOCK - 1];
    if (s.eval != 0)
        atomicExch(s.below, bins[0] + bins[HOTBED_MOVE_BINS + 1]);
    bins[HOTBED_MOVE_BINS + 1] = 0;
}

static inline hotbed_status hotbed_bins_to_starts(
    const hotbed_step_view *step, hotbed_stream *stream) {
    starts_kernel<<<1, HOTBED_BINS_BLOCK, 0, hotbed_cuda_native(stream)>>>(*step);
    return hotbed_cuda_launched("starts_kernel");
}

/* The next `count` places of move_order for a tile; there are bins[0]. */
static __device__ inline uint32_t hotbed_bins_take(
    const hotbed_step_view *s, uint32_t count, uint32_t width) {
    uint32_t *taken = &s->move_bins[HOTBED_MOVE_BINS + 1];
    uint32_t first = hotbed_tile_rank(width) == 0 ? atomicAdd(taken, count) : 0;
    return hotbed_tile_shuffle_u32(width, first, 0);
}

#endif
