/* storage/step/cuda_bins.h - counting sort of rows by region of the lower tier, on CUDA; used by tier.cu
 * and lookup.cu. */
#pragma once

#include "base/cuda_launch.h"
#include "storage/step/step_core.h"

/* Turn the counts of regions into start positions. In eval, *below receives the number of
 * lower-tier rows; otherwise it is NULL. Defined in tier.cu. Async. */
hotbed_status hotbed_bins_to_starts(
    const hotbed_region_sort *sort, uint32_t *below, hotbed_stream *stream);

/* Reserve the next `count` entries of `order` for a tile; it has bins[0] entries. */
static __device__ inline uint32_t hotbed_bins_take(
    const hotbed_region_sort *sort, uint32_t count, uint32_t width) {
    uint32_t *taken = &sort->bins[HOTBED_BINS + 1];
    uint32_t first = hotbed_tile_rank(width) == 0 ? atomicAdd(taken, count) : 0;
    return hotbed_tile_shuffle_u32(width, first, 0);
}
