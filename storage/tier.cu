/* storage/tier.cu - rows that move between tiers, on CUDA.  Host counterpart: tier_host.c. */
#include "base/cuda_launch.h"
#include "storage/tier_kernels.h"

enum {
    TILE = 4,  /* finds, as in lookup.cu */
    CLAIM = 8, /* a claim reads metas of up to four buckets */
    ROW = 32,
    BLOCK = 256,
    WAVES = 1,
    SCAN_BLOCK = 1024,
};

/* Rows cross the link by few warps, on SMs of their own (hotbed_cuda_own_sm()).  More warps fill the GPU's queues to the
 * link, behind which all SMs wait; on SMs that they share, other kernels wait for them; and an SM moves no more than
 * 8 GB/s over the link (docs/performance.md). */
enum { SWAP_SMS = 12, SWAP_BLOCK = 256 };

static_assert(HOTBED_MOVE_BINS + 1 == SCAN_BLOCK, "a thread a bin");

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) seek_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < n; i += hotbed_cuda_threads())
        hotbed_seek_homes(&s, (uint32_t)i, n - i < TILE ? (uint32_t)(n - i) : TILE, TILE);
    for (uint64_t i = hotbed_cuda_thread(); i < HOTBED_MOVE_WORDS; i += hotbed_cuda_threads())
        s.move_bins[i] = 0;
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) claim_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / CLAIM; i < n; i += hotbed_cuda_threads() / CLAIM)
        hotbed_claim_missing(&s, (uint32_t)i, CLAIM);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) settle_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / CLAIM; i < n; i += hotbed_cuda_threads() / CLAIM)
        hotbed_settle_missing(&s, (uint32_t)i, CLAIM);
}

/* Counts of the bins become their starts.  bins[b + 1] has the count of bin b before; afterwards the start of bin b, which
 * order_kernel moves on.  bins[0] becomes the number of all. */
static __global__ void __launch_bounds__(SCAN_BLOCK) starts_kernel(hotbed_step_view s) {
    __shared__ uint32_t sums[SCAN_BLOCK];
    uint32_t *bins = s.move_bins;
    uint32_t b = threadIdx.x;
    sums[b] = b == 0 ? 0 : bins[b];
    __syncthreads();
    for (uint32_t step = 1; step < SCAN_BLOCK; step *= 2) {
        uint32_t before = b >= step ? sums[b - step] : 0;
        __syncthreads();
        sums[b] += before;
        __syncthreads();
    }
    /* sums[b]: all bins below b; sums[last]: all. */
    if (b > 0)
        bins[b] = sums[b - 1];
    if (b == 0)
        bins[0] = sums[SCAN_BLOCK - 1];
}

/* Every move that swaps into its place. */
template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) order_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads()) {
        uint32_t u = s.missing[i];
        if ((u & HOTBED_MISSING_REJECTED) != 0)
            continue;
        const hotbed_table_view *table =
            &s.tables[hotbed_part_of(s.unique_offsets, s.num_tables, u)];
        hotbed_move move = s.moves[i];
        if (hotbed_move_swaps(&move)) {
            uint32_t bin = hotbed_move_bin(s.index, table, &move);
            s.move_order[atomicAdd(&s.move_bins[1 + bin], 1U)] = (uint32_t)i;
        }
    }
}

/* A warp takes TURN moves at a time: each of its lanes looks up one of them, and then their rows are copied together.  All
 * warps are so in the same part of the lower tier: when each had its share from the start, those that had fallen
 * behind spread over all of it, and rows of 512 bytes moved at 21 GB/s instead of 32. */
enum { TURN = 8 };

/* Copy the rows of the first `count` lanes, which may have none (0 bytes).  However short they are, each lane has
 * HOTBED_COPY_AHEAD words on their way. */
static __device__ void copy_rows(hotbed_haul mine, uint32_t count) {
    const uint32_t lane = hotbed_tile_rank(ROW), all = UINT32_MAX;
    const uint64_t mine_to = (uintptr_t)mine.to, mine_from = (uintptr_t)mine.from;
    if (!__all_sync(all, mine.bytes % sizeof(hotbed_u64x2) == 0)) {
        for (uint32_t k = 0; k < count; k++) {
            uint64_t to = hotbed_tile_shuffle_u64(ROW, mine_to, k);
            uint64_t from = hotbed_tile_shuffle_u64(ROW, mine_from, k);
            uint64_t bytes = hotbed_tile_shuffle_u64(ROW, mine.bytes, k);
            hotbed_row_copy((uint8_t *)to, (const uint8_t *)from, bytes, ROW);
        }
        return;
    }
    const uint32_t mine_words = (uint32_t)(mine.bytes / sizeof(hotbed_u64x2));
    const uint32_t each = __reduce_max_sync(all, mine_words);
    for (uint32_t first = 0; first < count * each; first += HOTBED_COPY_AHEAD * ROW) {
        hotbed_u64x2 words[HOTBED_COPY_AHEAD], *to[HOTBED_COPY_AHEAD];
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_COPY_AHEAD; k++) {
            const uint32_t at = first + k * ROW + lane, row = at / each, word = at % each;
            to[k] = (hotbed_u64x2 *)hotbed_tile_shuffle_u64(ROW, mine_to, row % ROW);
            const hotbed_u64x2 *from =
                (const hotbed_u64x2 *)hotbed_tile_shuffle_u64(ROW, mine_from, row % ROW);
            const uint32_t n = hotbed_tile_shuffle_u32(ROW, mine_words, row % ROW);
            to[k] = row < count && word < n ? to[k] + word : NULL;
            if (to[k] != NULL)
                words[k] = from[word];
        }
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_COPY_AHEAD; k++)
            if (to[k] != NULL)
                *to[k] = words[k];
    }
}

/* Victims go down and are found there from then on; then the rows come up for which they made room.  Warps are at
 * different points of that, and so the link is used both ways. */
template <bool GROWS>
static __global__ void __launch_bounds__(SWAP_BLOCK) swap_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    const uint32_t lane = hotbed_tile_rank(ROW), n = s.move_bins[0];
    for (;;) {
        uint32_t first = lane == 0 ? atomicAdd(&s.move_bins[SCAN_BLOCK], (uint32_t)TURN) : 0;
        first = hotbed_tile_shuffle_u32(ROW, first, 0);
        if (first >= n)
            return;
        const uint32_t count = n - first < TURN ? n - first : TURN;
        const uint32_t i = lane < count ? s.move_order[first + lane] : 0;
        hotbed_haul down = {NULL, NULL, 0}, up = {NULL, NULL, 0};
        if (lane < count) {
            const hotbed_move move = s.moves[i];
            const uint32_t t = hotbed_part_of(s.unique_offsets, s.num_tables, s.missing[i]);
            if (hotbed_move_writes(&s.tables[t], &move))
                down = hotbed_haul_of(&s, i, true);
            if (hotbed_move_fetches(&move))
                up = hotbed_haul_of(&s, i, false);
        }
        copy_rows(down, count);
        hotbed_fence(); /* a write is over then, not just on its way */
        hotbed_tile_sync(ROW);
        if (lane < count)
            hotbed_leave_upper(&s, i);
        hotbed_tile_sync(ROW);
        copy_rows(up, count);
    }
}

/* New rows have a warp each to fill them, the others are only told of. */
template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) arrive_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / CLAIM; i < n; i += hotbed_cuda_threads() / CLAIM)
        if ((s.moves[i].flags & HOTBED_MOVE_NEW) == 0)
            hotbed_end_move(&s, (uint32_t)i, CLAIM);
    for (uint64_t i = hotbed_cuda_thread() / ROW; i < n; i += hotbed_cuda_threads() / ROW)
        if ((s.moves[i].flags & HOTBED_MOVE_NEW) != 0)
            hotbed_end_move(&s, (uint32_t)i, ROW);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) flush_kernel(hotbed_flush_args args) {
    hotbed_flush_args a = args;
    if (!GROWS)
        a.index.segments = NULL;
    for (uint64_t i = hotbed_cuda_thread() / ROW; i < a.table.slots;
         i += hotbed_cuda_threads() / ROW)
        hotbed_flush_slot(&a, i, ROW);
}

template <bool GROWS>
static hotbed_status seek_as(const hotbed_step_view *step, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, step->bound + HOTBED_MOVE_WORDS, BLOCK, WAVES);
    seek_kernel<GROWS><<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*step);
    return hotbed_cuda_launched("seek_kernel");
}

template <bool GROWS>
static hotbed_status swap_as(const hotbed_step_view *step, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    size_t shared = 0;
    HOTBED_TRY(hotbed_cuda_own_sm(stream, (const void *)swap_kernel<GROWS>, &shared));
    swap_kernel<GROWS><<<SWAP_SMS, SWAP_BLOCK, shared, native>>>(*step);
    return hotbed_cuda_launched("swap_kernel");
}

template <bool GROWS>
static hotbed_status move_as(const hotbed_step_view *step, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    unsigned claims = hotbed_cuda_blocks(stream, step->bound * CLAIM, BLOCK, WAVES);
    unsigned words = hotbed_cuda_blocks(stream, step->bound, BLOCK, WAVES);
    unsigned rows = hotbed_cuda_blocks(stream, step->bound * ROW, BLOCK, WAVES);
    claim_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("claim_kernel"));
    settle_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("settle_kernel"));
    starts_kernel<<<1, SCAN_BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("starts_kernel"));
    order_kernel<GROWS><<<words, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("order_kernel"));
    HOTBED_TRY(swap_as<GROWS>(step, stream));
    arrive_kernel<GROWS><<<rows, BLOCK, 0, native>>>(*step);
    return hotbed_cuda_launched("arrive_kernel");
}

template <bool GROWS>
static hotbed_status flush_as(const hotbed_flush_args *args, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, args->table.slots * ROW, BLOCK, WAVES);
    flush_kernel<GROWS><<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*args);
    return hotbed_cuda_launched("flush_kernel");
}

static hotbed_status seek(const hotbed_step_view *step, hotbed_stream *stream) {
    return step->index.segments != NULL ? seek_as<true>(step, stream)
                                        : seek_as<false>(step, stream);
}

static hotbed_status move(const hotbed_step_view *step, hotbed_stream *stream) {
    return step->index.segments != NULL ? move_as<true>(step, stream)
                                        : move_as<false>(step, stream);
}

static hotbed_status flush(const hotbed_flush_args *args, hotbed_stream *stream) {
    return args->index.segments != NULL ? flush_as<true>(args, stream)
                                        : flush_as<false>(args, stream);
}

const hotbed_tier_kernels hotbed_tier_kernels_cuda = {seek, move, flush};
