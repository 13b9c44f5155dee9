/* base/tile.h - a tile: the lanes that process one item together.
 *
 * On CUDA a tile is `width` neighbouring lanes of a warp (1, 2, 4, 8, 16 or 32, a literal after
 * inlining). On the host a tile has one lane. Tests define HOTBED_TILE_EMULATE and run each lane as
 * a fibre (tests/support/emulate.h), so that wider tiles run on the host too.
 *
 * All lanes of a tile must reach each tile call: never call under a condition that differs between
 * lanes. */
#pragma once

#include "base/port.h"

#if defined(HOTBED_TILE_EMULATE)
#include "tests/support/emulate.h"
#endif

#if defined(__CUDA_ARCH__)
HOTBED_HD uint32_t hotbed_tile_mask(uint32_t width) {
    if (width == 32)
        return 0xffffffffU;
    uint32_t lane = threadIdx.x & 31U;
    return ((1U << (width & 31U)) - 1U) << (lane & ~(width - 1U));
}
#endif

/* Number of this lane in its tile. */
HOTBED_HD uint32_t hotbed_tile_rank(uint32_t width) {
#if defined(__CUDA_ARCH__)
    return threadIdx.x & (width - 1U);
#elif defined(HOTBED_TILE_EMULATE)
    return hotbed_emulate_rank(width);
#else
    (void)width;
    return 0;
#endif
}

/* The value of lane `source`. */
HOTBED_HD uint64_t hotbed_tile_shuffle_u64(uint32_t width, uint64_t value, uint32_t source) {
#if defined(__CUDA_ARCH__)
    if (width == 1)
        return value;
    return __shfl_sync(hotbed_tile_mask(width), (unsigned long long)value, (int)source, (int)width);
#elif defined(HOTBED_TILE_EMULATE)
    return hotbed_emulate_shuffle(width, value, source);
#else
    (void)width;
    (void)source;
    return value;
#endif
}

HOTBED_HD uint32_t hotbed_tile_shuffle_u32(uint32_t width, uint32_t value, uint32_t source) {
#if defined(__CUDA_ARCH__)
    if (width == 1)
        return value;
    return __shfl_sync(hotbed_tile_mask(width), value, (int)source, (int)width);
#else
    return (uint32_t)hotbed_tile_shuffle_u64(width, value, source);
#endif
}

HOTBED_HD float hotbed_tile_shuffle_f32(uint32_t width, float value, uint32_t source) {
    return hotbed_bits_float(hotbed_tile_shuffle_u32(width, hotbed_float_bits(value), source));
}

/* Bitwise OR over the lanes. */
HOTBED_HD uint32_t hotbed_tile_or(uint32_t width, uint32_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (width == 32) /* narrower tiles of a warp would run it one after another */
        return __reduce_or_sync(0xffffffffU, bits);
#endif
    for (uint32_t step = 1; step < width; step *= 2)
        bits |= hotbed_tile_shuffle_u32(width, bits, hotbed_tile_rank(width) ^ step);
    return bits;
}

/* Bit r is lane r's predicate. */
HOTBED_HD uint32_t hotbed_tile_ballot(uint32_t width, bool predicate) {
#if defined(__CUDA_ARCH__)
    if (width == 32)
        return __ballot_sync(0xffffffffU, predicate);
    /* not by a vote, which the tiles of a warp would do one after another */
    return hotbed_tile_or(width, (predicate ? 1U : 0U) << hotbed_tile_rank(width));
#elif defined(HOTBED_TILE_EMULATE)
    return hotbed_emulate_ballot(width, predicate);
#else
    (void)width;
    return predicate ? 1U : 0U;
#endif
}

/* The same by a vote, for the condition of a loop that the tiles of a warp leave at different times.
 * The vote takes longer, but more tiles of the warp are together after the loop. */
HOTBED_HD uint32_t hotbed_tile_vote(uint32_t width, bool predicate) {
#if defined(__CUDA_ARCH__)
    if (width > 1) {
        const uint32_t mask = hotbed_tile_mask(width);
        return __ballot_sync(mask, predicate) >> hotbed_lowest_bit(mask);
    }
#endif
    return hotbed_tile_ballot(width, predicate);
}

/* Make the earlier stores of each lane visible to all lanes of the tile. */
HOTBED_HD void hotbed_tile_sync(uint32_t width) {
#if defined(__CUDA_ARCH__)
    if (width > 1)
        __syncwarp(hotbed_tile_mask(width));
#elif defined(HOTBED_TILE_EMULATE)
    (void)hotbed_emulate_ballot(width, false);
#else
    (void)width;
#endif
}
