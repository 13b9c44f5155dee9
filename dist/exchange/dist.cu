/* dist/exchange/dist.cu - kernels of input and output dists on CUDA.  Host counterpart: dist_host.c. */
#include "base/cuda_launch.h"
#include "dist/exchange/dist_kernels.h"

/* A tile of 8 lanes moves a row: 128 bytes at a time. */
enum { TILE = 8, WARP = 32, BLOCK = 256, WARPS = BLOCK / WARP, WAVES = 1, ROWS_WAVES = 4 };

/* Shared memory that a block gets without cudaFuncSetAttribute(). */
enum { SHARED_UNASKED = 48 * 1024 };

#define ALL_LANES 0xffffffffU

/* --- before the exchange ------------------------------------------------------------------------ */

/* The lanes of a warp whose `value` is the same as this lane's, and how many of them are before it. */
typedef struct peers {
    uint32_t mask, before;
} peers;

static __device__ peers peers_of(uint32_t value) {
    const uint32_t mask = __match_any_sync(ALL_LANES, value);
    return peers{mask, hotbed_bits_set(mask & ((1U << (threadIdx.x % WARP)) - 1U))};
}

/* A block has a tile of keys. Shared memory: counts by rank. */
static __global__ void __launch_bounds__(BLOCK) targets_kernel(hotbed_bucketize_view b) {
    extern __shared__ uint32_t counts[]; /* [world] */
    __shared__ uint32_t low, high;
    const uint32_t tile = blockIdx.x, n = b.starts[b.shape.rows];
    for (uint32_t p = threadIdx.x; p < b.world; p += BLOCK)
        counts[p] = 0;
    if (threadIdx.x == 0) {
        hotbed_bucketize_features(&b, tile, &low, &high);
        if (tile == 0)
            b.tile_starts[hotbed_bucketize_words(b.world, b.bound) - 1] = 0;
    }
    __syncthreads();
    for (uint32_t r = 0; r < HOTBED_BUCKETIZE_TILE / BLOCK; r++) {
        const uint32_t i = tile * HOTBED_BUCKETIZE_TILE + r * BLOCK + threadIdx.x;
        const uint32_t p =
            i < n ? hotbed_bucketize_target(&b, i, hotbed_bucketize_feature(&b, low, high, i))
                  : b.world;
        const peers with = peers_of(p);
        if (i < n && with.before == 0)
            atomicAdd(&counts[p], hotbed_bits_set(with.mask));
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < b.world && tile < hotbed_bucketize_tiles(&b); p += BLOCK)
        b.tile_starts[hotbed_bucketize_tile(&b, p, tile)] = counts[p];
}

static __global__ void __launch_bounds__(BLOCK) ranks_kernel(hotbed_bucketize_view b) {
    for (uint64_t p = hotbed_cuda_thread(); p <= b.world; p += hotbed_cuda_threads())
        hotbed_bucketize_rank(&b, (uint32_t)p);
}

static __global__ void aim_kernel(hotbed_aim_view a) {
    hotbed_aim(&a);
}

static __global__ void __launch_bounds__(BLOCK) starts_kernel(hotbed_bucketize_view b) {
    uint64_t rows = (uint64_t)b.shape.rows + 1;
    for (uint64_t at = hotbed_cuda_thread(); at < rows * b.world; at += hotbed_cuda_threads()) {
        uint32_t p = (uint32_t)(at / rows), r = (uint32_t)(at % rows);
        hotbed_bucketize_start(&b, p, r);
        if (r == 0)
            hotbed_bucketize_header(&b, p);
    }
}

/* Exclusive sums of values[n], which is in shared memory, by one warp. */
static __device__ void sum_up(uint32_t *values, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t base = 0; base < n; base += WARP) {
        const uint32_t at = base + threadIdx.x % WARP, value = at < n ? values[at] : 0;
        uint32_t through = value;
        for (uint32_t apart = 1; apart < WARP; apart *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, through, apart);
            through += threadIdx.x % WARP >= apart ? other : 0;
        }
        if (at < n)
            values[at] = sum + through - value;
        sum += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
}

/* A block puts the keys of a tile in order of rank in shared memory, and then writes the keys of each
 * rank one after the other. A warp has neighbouring keys. Shared memory: */
typedef struct tile_keys {
    uint64_t key[HOTBED_BUCKETIZE_TILE];
    uint32_t from[HOTBED_BUCKETIZE_TILE]; /* key's number in the tile, and its rank times TILE */
    uint32_t low, high;
    /* [world] number of the tile's keys for lower ranks; then [WARPS][world] keys of each warp, then
     * of the warps before it */
    uint32_t words[];
} tile_keys;

static size_t tile_keys_bytes(uint32_t world) {
    return sizeof(tile_keys) + (1 + WARPS) * (size_t)world * sizeof(uint32_t);
}

static __global__ void __launch_bounds__(BLOCK) keys_kernel(hotbed_bucketize_view b) {
    extern __shared__ uint64_t memory[];
    constexpr uint32_t ROUNDS = HOTBED_BUCKETIZE_TILE / BLOCK;
    tile_keys *shared = (tile_keys *)memory;
    uint32_t *first = shared->words, *by_warp = first + b.world;
    const uint32_t tile = blockIdx.x, begin = tile * HOTBED_BUCKETIZE_TILE;
    const uint32_t n = b.starts[b.shape.rows];
    if (begin >= n)
        return;
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t in_tile = warp * ROUNDS * WARP + threadIdx.x % WARP;
    for (uint32_t at = threadIdx.x; at < WARPS * b.world; at += BLOCK)
        by_warp[at] = 0;
    if (threadIdx.x == 0)
        hotbed_bucketize_features(&b, tile, &shared->low, &shared->high);
    __syncthreads();
    uint32_t ranks[ROUNDS],
        before[ROUNDS]; /* before: keys of the rank before this one in the warp */
#pragma unroll
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint32_t i = begin + in_tile + r * WARP;
        ranks[r] = i < n ? b.targets[i] : b.world;
    }
#pragma unroll
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const peers with = peers_of(ranks[r]);
        uint32_t *count = &by_warp[warp * b.world + (ranks[r] < b.world ? ranks[r] : 0)];
        before[r] = *count + with.before;
        __syncwarp();
        if (ranks[r] < b.world && with.before == 0)
            *count += hotbed_bits_set(with.mask);
        __syncwarp();
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < b.world; p += BLOCK) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < WARPS; w++) {
            const uint32_t count = by_warp[w * b.world + p];
            by_warp[w * b.world + p] = sum;
            sum += count;
        }
        first[p] = sum;
    }
    __syncthreads();
    if (warp == 0)
        sum_up(first, b.world);
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint32_t p = ranks[r], i = begin + in_tile + r * WARP;
        if (p == b.world)
            continue;
        const uint32_t at_rank = by_warp[warp * b.world + p] + before[r];
        const uint32_t at = first[p] + at_rank;
        const uint32_t f = hotbed_bucketize_feature(&b, shared->low, shared->high, i);
        shared->key[at] = hotbed_bucketize_travels(&b, i, f);
        shared->from[at] = (in_tile + r * WARP) + p * HOTBED_BUCKETIZE_TILE;
        b.places[i] = b.tile_starts[hotbed_bucketize_tile(&b, p, tile)] + at_rank;
    }
    __syncthreads();
    const uint32_t keys = n - begin < HOTBED_BUCKETIZE_TILE ? n - begin : HOTBED_BUCKETIZE_TILE;
    for (uint32_t at = threadIdx.x; at < keys; at += BLOCK) {
        const uint32_t from = shared->from[at], p = from / HOTBED_BUCKETIZE_TILE;
        const uint32_t j = b.tile_starts[hotbed_bucketize_tile(&b, p, tile)] + at - first[p];
        hotbed_bucketize_put(&b, begin + from % HOTBED_BUCKETIZE_TILE, shared->key[at], p, j);
    }
}

static hotbed_status targets(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    const uint32_t tiles = hotbed_bucketize_tiles(b), blocks = tiles == 0 ? 1 : tiles;
    const size_t shared = b->world * sizeof(uint32_t);
    targets_kernel<<<blocks, BLOCK, shared, hotbed_cuda_native(stream)>>>(*b);
    return hotbed_cuda_launched("targets_kernel");
}

static hotbed_status ranks(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(ranks_kernel, (uint64_t)b->world + 1, BLOCK, WAVES, stream, *b);
}

static hotbed_status aim(const hotbed_aim_view *a, hotbed_stream *stream) {
    aim_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(*a);
    return hotbed_cuda_launched("aim_kernel");
}

static hotbed_status place(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    const uint64_t starts = ((uint64_t)b->shape.rows + 1) * b->world;
    const uint32_t tiles = hotbed_bucketize_tiles(b);
    const size_t shared = tile_keys_bytes(b->world);
    const hotbed_cuda_native native(stream);
    if (shared > SHARED_UNASKED) /* over 1,021 ranks */
        HOTBED_TRY(HOTBED_CUDA_CHECK(
            cudaFuncSetAttribute, keys_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)shared));
    if (tiles > 0) {
        keys_kernel<<<tiles, BLOCK, shared, native>>>(*b);
        HOTBED_TRY(hotbed_cuda_launched("keys_kernel"));
    }
    return HOTBED_CUDA_LAUNCH(starts_kernel, starts, BLOCK, WAVES, stream, *b);
}

/* --- after it ------------------------------------------------------------------------------------- */

/* One block: there are few segments. */
static __global__ void __launch_bounds__(BLOCK) segments_kernel(hotbed_gather_view g) {
    __shared__ uint32_t lengths[BLOCK];
    __shared__ uint32_t last;
    uint32_t sum = 0;
    for (uint32_t base = 0; base <= hotbed_gather_segments(&g); base += BLOCK) {
        const uint32_t q = base + threadIdx.x;
        const uint32_t length = q <= hotbed_gather_segments(&g) ? hotbed_gather_length(&g, q) : 0;
        lengths[threadIdx.x] = length;
        __syncthreads();
        if (threadIdx.x < WARP)
            sum_up(lengths, BLOCK);
        __syncthreads();
        if (q <= hotbed_gather_segments(&g))
            g.segments[q] = sum + lengths[threadIdx.x];
        if (threadIdx.x == BLOCK - 1)
            last = lengths[threadIdx.x] + length;
        __syncthreads();
        sum += last;
    }
}

static __global__ void __launch_bounds__(BLOCK) gather_kernel(hotbed_gather_view g) {
    const uint32_t n = hotbed_gather_count(&g);
    for (uint64_t m = hotbed_cuda_thread(); m < n; m += hotbed_cuda_threads())
        hotbed_gather_key(&g, (uint32_t)m);
    for (uint64_t r = hotbed_cuda_thread(); r < hotbed_gather_offsets(&g);
         r += hotbed_cuda_threads())
        hotbed_gather_offset(&g, r);
}

static hotbed_status segments(const hotbed_gather_view *g, hotbed_stream *stream) {
    segments_kernel<<<1, BLOCK, 0, hotbed_cuda_native(stream)>>>(*g);
    return hotbed_cuda_launched("segments_kernel");
}

static hotbed_status gather(const hotbed_gather_view *g, hotbed_stream *stream) {
    const uint64_t n = hotbed_gather_offsets(g);
    return HOTBED_CUDA_LAUNCH(gather_kernel, g->bound > n ? g->bound : n, BLOCK, WAVES, stream, *g);
}

/* --- dedup ---------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) table_starts_kernel(hotbed_table_starts_view v) {
    for (uint64_t t = hotbed_cuda_thread(); t <= v.num_tables; t += hotbed_cuda_threads())
        hotbed_table_start(&v, t);
}

static __global__ void __launch_bounds__(BLOCK)
    follow_kernel(const uint32_t *n, uint32_t *at, const uint32_t *from) {
    for (uint64_t i = hotbed_cuda_thread(); i < *n; i += hotbed_cuda_threads())
        at[i] = from[at[i]];
}

static hotbed_status table_starts(const hotbed_table_starts_view *v, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        table_starts_kernel, (uint64_t)v->num_tables + 1, BLOCK, WAVES, stream, *v);
}

static hotbed_status follow(
    uint64_t bound, const uint32_t *n, uint32_t *at, const uint32_t *from, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(follow_kernel, bound, BLOCK, WAVES, stream, n, at, from);
}

/* --- rows ------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK) find_places_kernel(
    hotbed_deliver_view d, const uint8_t *first, const uint32_t *n, uint32_t *at) {
    for (uint64_t i = hotbed_cuda_thread(); i < *n; i += hotbed_cuda_threads())
        at[i] = hotbed_owner_place(&d, first, at[i]);
}

static __global__ void __launch_bounds__(BLOCK)
    take_kernel(hotbed_deliver_view d, uint8_t *output, uint64_t stride, bool plain) {
    const uint32_t first = d.first_key == NULL ? 0 : *d.first_key, n = *d.num_keys;
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t i = first + hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_take_row(&d, (uint32_t)i, output, stride, plain, TILE);
}

static __global__ void __launch_bounds__(BLOCK)
    send_kernel(hotbed_deliver_view d, const void *gradient, uint64_t stride) {
    uint32_t n = *d.overflow != 0 ? 0 : *d.num_sent;
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t u = hotbed_cuda_thread() / TILE; u < n; u += hotbed_cuda_threads() / TILE)
        hotbed_send_gradient(&d, (uint32_t)u, gradient, stride, TILE);
}

static __global__ void __launch_bounds__(BLOCK)
    find_rows_kernel(hotbed_deliver_view d, uint8_t **rows) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t u = hotbed_cuda_thread(); u < *d.num_sent; u += hotbed_cuda_threads())
        rows[u] = hotbed_send_sum_to(&d, (uint32_t)u);
}

static __global__ void __launch_bounds__(BLOCK) pool_finish_kernel(
    hotbed_pool_view p, uint64_t n, const float *sums, void *output, uint64_t stride) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&p.wire);
    for (uint64_t at = hotbed_cuda_thread(); at < n; at += hotbed_cuda_threads())
        hotbed_pool_finish(&p, at, sums, output, stride);
}

static __global__ void __launch_bounds__(BLOCK) pool_start_kernel(
    hotbed_pool_view p, uint64_t n, const void *gradient, uint64_t stride, float *sums) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&p.wire);
    for (uint64_t at = hotbed_cuda_thread(); at < n; at += hotbed_cuda_threads())
        hotbed_pool_start(&p, at, gradient, stride, sums);
}

static __global__ void __launch_bounds__(BLOCK)
    widen_rows_kernel(hotbed_deliver_view d, const uint8_t *first, float *wide, uint64_t stride) {
    const uint32_t n = *d.overflow != 0 ? 0 : d.segments[d.num_segments];
    for (uint64_t m = hotbed_cuda_thread() / TILE; m < n; m += hotbed_cuda_threads() / TILE)
        hotbed_widen_row(&d, first, (uint32_t)m, wide, stride, TILE);
}

static hotbed_status widen_rows(
    const hotbed_deliver_view *d, const void *first, float *wide, uint64_t stride,
    hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        widen_rows_kernel, d->received_bound * TILE, BLOCK, ROWS_WAVES, stream, *d,
        (const uint8_t *)first, wide, stride);
}

static hotbed_status find_places(
    const hotbed_deliver_view *d, const void *first, const uint32_t *n, uint32_t *at,
    hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        find_places_kernel, d->received_bound, BLOCK, WAVES, stream, *d, (const uint8_t *)first, n,
        at);
}

static hotbed_status take_rows(
    const hotbed_deliver_view *d, void *output, uint64_t stride_bytes, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        take_kernel, d->key_bound * TILE, BLOCK, ROWS_WAVES, stream, *d, (uint8_t *)output,
        stride_bytes, hotbed_rows_plain(d, output, stride_bytes));
}

static hotbed_status send_gradients(
    const hotbed_deliver_view *d, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        send_kernel, d->sent_bound * TILE, BLOCK, ROWS_WAVES, stream, *d, gradient, stride);
}

static hotbed_status find_rows(
    const hotbed_deliver_view *d, uint8_t **rows, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(find_rows_kernel, d->sent_bound, BLOCK, WAVES, stream, *d, rows);
}

static hotbed_status pool_finish(
    const hotbed_pool_view *p, uint64_t columns, const float *sums, void *output, uint64_t stride,
    hotbed_stream *stream) {
    uint64_t n = columns * p->samples;
    return HOTBED_CUDA_LAUNCH(
        pool_finish_kernel, n, BLOCK, ROWS_WAVES, stream, *p, n, sums, output, stride);
}

static hotbed_status pool_start(
    const hotbed_pool_view *p, uint64_t columns, const void *gradient, uint64_t stride, float *sums,
    hotbed_stream *stream) {
    uint64_t n = columns * p->batch_size;
    return HOTBED_CUDA_LAUNCH(
        pool_start_kernel, n, BLOCK, ROWS_WAVES, stream, *p, n, gradient, stride, sums);
}

/* --- bags whose sums travel ------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK) bag_flags_kernel(hotbed_bags_view v) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(&v) * v.world;
    for (uint64_t i = hotbed_cuda_thread(); i <= n; i += hotbed_cuda_threads())
        hotbed_bag_flag(&v, i);
}

static __global__ void bag_counts_kernel(hotbed_bags_view v, uint32_t *counts) {
    for (uint32_t p = threadIdx.x; p < v.world; p += BLOCK)
        counts[p] = hotbed_bag_count(&v, p);
}

/* Count the bags that move; each thread counts some. */
static __device__ void count_bags(const hotbed_bags_view &v) {
    const uint32_t rows = v.moved == NULL ? 0 : hotbed_bags_rows(&v);
    uint32_t bags = 0;
    for (uint64_t r = hotbed_cuda_thread(); r < rows; r += hotbed_cuda_threads())
        bags += hotbed_bag_moves(&v, (uint32_t)r);
    if (v.moved != NULL)
        hotbed_bags_count(&v, bags, WARP);
}

static __global__ void __launch_bounds__(BLOCK)
    bag_addresses_kernel(hotbed_bags_view v, uint8_t **at) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(&v) * v.world;
    for (uint64_t b = hotbed_cuda_thread(); b < n; b += hotbed_cuda_threads())
        at[b] = hotbed_bag_target(&v, b);
    count_bags(v);
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK)
    finish_bags_kernel(hotbed_bags_view v, void *output, uint64_t stride) {
    const uint32_t rows = hotbed_bags_rows(&v);
    for (uint64_t r = hotbed_cuda_thread() / WIDTH; r < rows; r += hotbed_cuda_threads() / WIDTH)
        hotbed_bag_finish_sums(&v, (uint32_t)r, output, stride, WIDTH);
    count_bags(v);
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK)
    send_bags_kernel(hotbed_bags_view v, const void *gradient, uint64_t stride) {
    const uint32_t rows = hotbed_bags_rows(&v);
    for (uint64_t r = hotbed_cuda_thread() / WIDTH; r < rows; r += hotbed_cuda_threads() / WIDTH)
        hotbed_bag_send(&v, (uint32_t)r, gradient, stride, WIDTH);
    count_bags(v);
}

/* Writes to other ranks need a quarter of the threads; the others are left to the parts beside. Packing
 * computes more, for fewer bytes. */
static unsigned bag_blocks(const hotbed_stream *stream, const hotbed_bags_view *v, uint64_t each) {
    const uint64_t bags = (uint64_t)hotbed_bags_rows(v) * each;
    const unsigned few = (hotbed_cuda_blocks(stream, bags, BLOCK, WAVES) + 3) / 4;
    return v->remote != 0 && v->pack.dtype == 0
               ? few
               : hotbed_cuda_blocks(stream, bags, BLOCK, ROWS_WAVES);
}

static hotbed_status bag_flags(const hotbed_bags_view *v, hotbed_stream *stream) {
    bag_flags_kernel<<<bag_blocks(stream, v, v->world), BLOCK, 0, hotbed_cuda_native(stream)>>>(*v);
    return hotbed_cuda_launched("bag_flags_kernel");
}

static hotbed_status bag_counts(
    const hotbed_bags_view *v, uint32_t *counts, hotbed_stream *stream) {
    bag_counts_kernel<<<1, BLOCK, 0, hotbed_cuda_native(stream)>>>(*v, counts);
    return hotbed_cuda_launched("bag_counts_kernel");
}

static hotbed_status bag_addresses(const hotbed_bags_view *v, uint8_t **at, hotbed_stream *stream) {
    bag_addresses_kernel<<<bag_blocks(stream, v, v->world), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *v, at);
    return hotbed_cuda_launched("bag_addresses_kernel");
}

/* Pack, or unpack, all received bags. */
template <bool PACK>
static __global__ void __launch_bounds__(BLOCK) wide_bags_kernel(hotbed_bags_view v) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(&v) * v.world;
    for (uint64_t b = hotbed_cuda_thread() / TILE; b < n; b += hotbed_cuda_threads() / TILE) {
        if (PACK)
            hotbed_pack_bag(&v, b, TILE);
        else
            hotbed_widen_bag(&v, b, TILE);
    }
}

static hotbed_status pack_bags(const hotbed_bags_view *v, hotbed_stream *stream) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(v) * v->world;
    return HOTBED_CUDA_LAUNCH(wide_bags_kernel<true>, n * TILE, BLOCK, ROWS_WAVES, stream, *v);
}

static hotbed_status widen_bags(const hotbed_bags_view *v, hotbed_stream *stream) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(v) * v->world;
    return HOTBED_CUDA_LAUNCH(wide_bags_kernel<false>, n * TILE, BLOCK, ROWS_WAVES, stream, *v);
}

static hotbed_status finish_bags(
    const hotbed_bags_view *v, uint32_t max_dim, void *output, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    if (max_dim <= 4 * TILE)
        finish_bags_kernel<TILE>
            <<<bag_blocks(stream, v, TILE), BLOCK, 0, native>>>(*v, output, stride);
    else
        finish_bags_kernel<WARP>
            <<<bag_blocks(stream, v, WARP), BLOCK, 0, native>>>(*v, output, stride);
    return hotbed_cuda_launched("finish_bags_kernel");
}

static hotbed_status send_bags(
    const hotbed_bags_view *v, uint32_t max_dim, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    if (max_dim <= 4 * TILE)
        send_bags_kernel<TILE>
            <<<bag_blocks(stream, v, TILE), BLOCK, 0, native>>>(*v, gradient, stride);
    else
        send_bags_kernel<WARP>
            <<<bag_blocks(stream, v, WARP), BLOCK, 0, native>>>(*v, gradient, stride);
    return hotbed_cuda_launched("send_bags_kernel");
}

/* --- one rank -------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) copy_rows_kernel(hotbed_copies_view v) {
    uint64_t n = hotbed_copies_count(&v);
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_copies_row(&v, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) finish_sums_kernel(hotbed_sent_view v) {
    uint32_t n = *v.num_rows;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_sent_row(&v, i, TILE);
}

static hotbed_status copy_rows(const hotbed_copies_view *v, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(copy_rows_kernel, v->bound * TILE, BLOCK, ROWS_WAVES, stream, *v);
}

static hotbed_status finish_sums(const hotbed_sent_view *v, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(finish_sums_kernel, v->bound * TILE, BLOCK, ROWS_WAVES, stream, *v);
}

const hotbed_dist_kernels hotbed_dist_kernels_cuda = {
    targets,      ranks,       aim,         place,     segments,       gather,
    table_starts, follow,      find_places, take_rows, send_gradients, find_rows,
    widen_rows,   pool_finish, pool_start,  bag_flags, bag_counts,     bag_addresses,
    pack_bags,    widen_bags,  finish_bags, send_bags, copy_rows,      finish_sums,
};
