/* storage/step/pool.cuh - pooling on CUDA: the kernels of one form of rows, for pool_f32.cu, pool_half.cu and
 * pool_scaled.cu, which compile at the same time. Host counterpart: pool_host.c. */
#pragma once

#include "base/cuda_launch.h"
#include "storage/step/lookup_kernels.h"

/* Pool the bags of a step, with `width` lanes for each row in other kernels: 4, 8, 16 or 32. Asynchronous. The
 * output is aligned to four elements. */
hotbed_status hotbed_pool_f32(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream);
hotbed_status hotbed_pool_half(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream);
hotbed_status hotbed_pool_scaled(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream);

/* A tile pools up to POOL_MOST bags at once, enough for about POOL_KEYS keys. */
enum { POOL_BLOCK = 128, POOL_MOST = 16, POOL_KEYS = 64, POOL_WARP = 32 };

HOTBED_HD constexpr unsigned pool_resident(hotbed_rows_form form) {
    return form == HOTBED_ROWS_F32 ? 9 : form == HOTBED_ROWS_HALF ? 8 : 5;
}

/* Tiles of pooling, for rows to which other kernels give `width` lanes. A lane has 16 bytes of a row, unless
 * fewer than four lanes would have a row of one-byte elements: each of them looks up a key. */
HOTBED_HD constexpr uint32_t pool_quads(hotbed_rows_form form, uint32_t width) {
    return form == HOTBED_ROWS_F32 ? 1 : form == HOTBED_ROWS_HALF ? 2 : width >= 16 ? 4 : width / 4;
}

/* Number of bags that a tile pools: several if they are short. */
template <uint32_t WIDTH> static __device__ uint32_t bags_at_once(uint32_t keys, uint32_t bags) {
    uint32_t n = 1;
    while (n < WIDTH && n < POOL_MOST && 2 * (uint64_t)n * keys <= (uint64_t)POOL_KEYS * bags)
        n *= 2;
    return n;
}

/* The share of a block in pooling: bags of one feature, `bags` per tile. */
typedef struct pool_share {
    uint32_t feature, bags;
    uint32_t block; /* number of the block among the feature's blocks */
} pool_share;

/* Set *share, in shared memory. Returns false if nothing is left for the block: the host does not
 * know how many blocks are needed. */
template <uint32_t WIDTH>
static __device__ bool find_share(const hotbed_step_view *s, pool_share *share) {
    __shared__ uint32_t warps[POOL_BLOCK / POOL_WARP];
    const uint32_t lane = threadIdx.x % POOL_WARP, warp = threadIdx.x / POOL_WARP;
    uint32_t before = 0; /* blocks of earlier features */
    for (uint32_t base = 0; base < s->storage.num_features; base += POOL_BLOCK) {
        const uint32_t f = base + threadIdx.x;
        uint32_t bags = 1, blocks = 0;
        if (f < s->storage.num_features) {
            bags = bags_at_once<WIDTH>(
                s->batch.feature_starts[f + 1] - s->batch.feature_starts[f], s->batch.size);
            const uint32_t block_bags = POOL_BLOCK / WIDTH * bags;
            blocks = (s->batch.size + block_bags - 1) / block_bags;
        }
        uint32_t sum = blocks; /* of the features of this lane and the lanes before it */
        for (uint32_t apart = 1; apart < POOL_WARP; apart *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffU, sum, apart);
            sum += lane >= apart ? other : 0;
        }
        __syncthreads(); /* earlier readers of `warps` */
        if (lane == POOL_WARP - 1)
            warps[warp] = sum;
        __syncthreads();
        uint32_t all = 0, first = before + sum - blocks;
        for (uint32_t w = 0; w < POOL_BLOCK / POOL_WARP; w++) {
            first += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (blockIdx.x - first < blocks) /* if blockIdx.x < first, it wraps around: false */
            *share = {f, bags, blockIdx.x - first};
        before += all;
        if (blockIdx.x < before) {
            __syncthreads();
            return true;
        }
    }
    return false;
}

/* Upper bound of the number of blocks: with n < POOL_MOST bags per tile, a tile has more than
 * POOL_KEYS / 2 keys. */
template <uint32_t WIDTH> static uint64_t pool_blocks(const hotbed_step_view *step) {
    const uint64_t tiles = POOL_BLOCK / WIDTH,
                   most = WIDTH < POOL_MOST ? WIDTH : (uint64_t)POOL_MOST;
    const uint64_t bags = (uint64_t)step->storage.num_features * step->batch.size;
    const uint64_t used = bags / most + step->batch.bound / (POOL_KEYS / 2);
    return (used < bags ? used : bags) / tiles + 2 * (uint64_t)step->storage.num_features;
}

/* Where pooling reads and writes: the tables and one output; the tables and s.to.bags; or the rows
 * of s.unique.rows and one output. Each has kernels of its own. */
typedef enum pool_ends { POOL_PLAIN, POOL_SCATTERS, POOL_GIVEN_ROWS } pool_ends;

/* One bag, if the tile's bags cannot be pooled together. This is rare. It is not inlined, because
 * the kernel would then need more registers. */
template <uint32_t WIDTH>
static __device__ __noinline__ void pool_apart(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride) {
    hotbed_forward_bag(s, b, output, stride, WIDTH);
}

/* The feature's table is read from shared memory, because rows displace everything else in the L1
 * cache. */
template <uint32_t WIDTH, uint32_t QUADS, bool GROWS, hotbed_rows_form FORM, pool_ends ENDS>
static __global__ void __launch_bounds__(POOL_BLOCK, pool_resident(FORM))
    pool_bags_kernel(const __grid_constant__ hotbed_step_view view, void *output, uint64_t stride) {
    constexpr hotbed_part_shape shape = {FORM, QUADS};
    hotbed_step_view s = hotbed_step_to(
        hotbed_step_as(view, GROWS), ENDS == POOL_SCATTERS ? HOTBED_TO_MANY : HOTBED_TO_ONE);
    if (ENDS != POOL_GIVEN_ROWS)
        s.unique.rows = NULL;
    __shared__ hotbed_table_view table;
    __shared__ pool_share share;
    if (!find_share<WIDTH>(&s, &share))
        return;
    const uint64_t *from =
        (const uint64_t *)(const void *)&s.storage.tables[s.storage.feature_tables[share.feature]];
    for (uint32_t i = threadIdx.x; i < sizeof table / sizeof *from; i += POOL_BLOCK)
        ((uint64_t *)(void *)&table)[i] = from[i];
    __syncthreads();
    const uint32_t tile = share.block * (POOL_BLOCK / WIDTH) + threadIdx.x / WIDTH;
    const uint32_t first = tile * share.bags;
    if (first >= s.batch.size)
        return;
    const uint32_t left = s.batch.size - first, bags = left < share.bags ? left : share.bags;
    const uint64_t b = (uint64_t)share.feature * s.batch.size + first;
    if (!hotbed_forward_bags(&s, &table, b, bags, share.feature, output, stride, shape, WIDTH))
        for (uint32_t k = 0; k < bags; k++)
            pool_apart<WIDTH>(&view, b + k, output, stride);
    for (uint32_t k = 0; s.eval.on != 0 && table.range.evicts != 0 && k < bags; k++)
        hotbed_eval_check_bag(&s, b + k, share.feature, WIDTH);
}

template <uint32_t WIDTH, uint32_t QUADS, bool GROWS, hotbed_rows_form FORM, pool_ends ENDS>
static hotbed_status pool_to(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    pool_bags_kernel<WIDTH, QUADS, GROWS, FORM, ENDS>
        <<<(unsigned)pool_blocks<WIDTH>(step), POOL_BLOCK, 0, hotbed_cuda_native(stream)>>>(
            *step, output, stride);
    return hotbed_cuda_launched("pool_bags_kernel");
}

template <uint32_t WIDTH, bool GROWS, hotbed_rows_form FORM>
static hotbed_status pool_as(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    constexpr uint32_t quads = pool_quads(FORM, WIDTH), lanes = WIDTH / quads;
    if (step->to.on != 0)
        return pool_to<lanes, quads, GROWS, FORM, POOL_SCATTERS>(step, output, stride, stream);
    if constexpr (FORM != HOTBED_ROWS_SCALED) /* given rows with scales have no form */
        if (step->unique.rows != NULL)
            return pool_to<lanes, quads, false, FORM, POOL_GIVEN_ROWS>(
                step, output, stride, stream);
    return pool_to<lanes, quads, GROWS, FORM, POOL_PLAIN>(step, output, stride, stream);
}

template <hotbed_rows_form FORM, bool GROWS>
static hotbed_status pool_width(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream) {
    if (width == 4)
        return pool_as<4, GROWS, FORM>(step, output, stride, stream);
    if (width == 8)
        return pool_as<8, GROWS, FORM>(step, output, stride, stream);
    if (width == 16)
        return pool_as<16, GROWS, FORM>(step, output, stride, stream);
    return pool_as<32, GROWS, FORM>(step, output, stride, stream);
}

template <hotbed_rows_form FORM>
static hotbed_status pool(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream) {
    return step->storage.index.segments != NULL
               ? pool_width<FORM, true>(step, output, stride, width, stream)
               : pool_width<FORM, false>(step, output, stride, width, stream);
}
