/* storage/tiers/tier.cu - moves rows between tiers on CUDA. Host counterpart: tier_host.c. */
#include "base/cuda_bulk.h"
#include "base/cuda_launch.h"
#include "storage/step/cuda_bins.h"
#include "storage/tiers/tier_kernels.h"

enum {
    TILE = 4, /* as in lookup.cu; 8 lanes, or 1, are slower */
    ROW = 32,
    BLOCK = 256,
    WAVES = 1,
    SCAN_BLOCK = 1024,
};

/* Rows cross the link from a few SMs that this kernel has to itself (hotbed_cuda_own_sm()). On
 * shared SMs, other kernels would wait; more SMs would fill the GPU's queues to the link, and all
 * SMs would wait behind them (docs/performance.md). */
enum {
    BULK_SMS = 8,
    BULK_WARPS = 16,
    BULK_LANES = 16
}; /* bulk copies: most warps per block, and threads per warp that copy */
enum { WARP_SMS = 12, WARP_BLOCK = 256 }; /* without bulk copies */

static_assert(HOTBED_BINS + 1 == SCAN_BLOCK, "a thread a bin");

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK, GROWS ? 2 : 3) seek_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < n; i += hotbed_cuda_threads())
        hotbed_seek_lower(&s, (uint32_t)i, n - i < TILE ? (uint32_t)(n - i) : TILE, TILE);
    for (uint64_t i = hotbed_cuda_thread(); i < HOTBED_BIN_WORDS; i += hotbed_cuda_threads())
        s.moves.sort.bins[i] = 0;
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) claim_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_claim_missing(&s, (uint32_t)i, TILE);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) settle_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_settle_missing(&s, (uint32_t)i, TILE);
}

/* Turn the counts of regions into start positions. On entry bins[b + 1] has the count of region b;
 * on exit it has the start of region b, which the kernels that sort advance. bins[0] becomes the
 * total, and the last word 0. In eval, the last word has the number of lower-tier rows that were
 * not deferred; *below receives the sum of both. Otherwise `below` is NULL. */
static __global__ void __launch_bounds__(SCAN_BLOCK)
    starts_kernel(hotbed_region_sort sort, uint32_t *below) {
    __shared__ uint32_t sums[SCAN_BLOCK];
    uint32_t *bins = sort.bins;
    uint32_t b = threadIdx.x;
    sums[b] = b == 0 ? 0 : bins[b];
    __syncthreads();
    for (uint32_t step = 1; step < SCAN_BLOCK; step *= 2) {
        uint32_t before = b >= step ? sums[b - step] : 0;
        __syncthreads();
        sums[b] += before;
        __syncthreads();
    }
    /* sums[b] is the sum over regions below b, sums[last] the total */
    if (b > 0)
        bins[b] = sums[b - 1];
    if (b != 0)
        return;
    bins[0] = sums[SCAN_BLOCK - 1];
    if (below != NULL)
        atomicExch(below, bins[0] + bins[HOTBED_BINS + 1]);
    bins[HOTBED_BINS + 1] = 0;
}

/* Append each move of the exchange to its region. */
template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) order_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads()) {
        uint32_t u = s.unique.missing[i];
        if ((u & HOTBED_MISSING_REJECTED) != 0)
            continue;
        const hotbed_table_view *table = &s.storage.tables[hotbed_table_of_unique(&s, u)];
        hotbed_move move = s.moves.items[i];
        if (hotbed_move_exchanges(&move)) {
            uint32_t bin = hotbed_move_bin(s.storage.index, table, &move);
            s.moves.sort.order[atomicAdd(&s.moves.sort.bins[1 + bin], 1U)] = (uint32_t)i;
        }
    }
}

/* A warp takes TURN moves at a time. Its lanes look up one move each, and then copy the rows
 * together. Taking turns keeps all warps in the same region of the lower tier. With a fixed
 * share per warp, slow warps spread over all of it, and rows of 512 bytes moved at 21 GB/s
 * instead of 32. */
enum { TURN = 8 };

/* Copy the rows of the first `count` lanes; 0 bytes: the lane has none. Each lane has
 * HOTBED_COPY_AHEAD words in flight, however short the rows are. */
static __device__ void copy_rows(hotbed_transfer mine, uint32_t count) {
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

/* One thread's part of a turn: its move, if it has one, and the copies for it. */
typedef struct exchange_turn {
    uint32_t move;
    bool mine;
    hotbed_transfer down, up;
} exchange_turn;

/* Take the next moves of a warp, one for each of its first `lanes` threads; false if there are
 * none. */
static __device__ bool take_turn(const hotbed_step_view *s, uint32_t lanes, exchange_turn *turn) {
    const uint32_t lane = hotbed_tile_rank(ROW), n = s->moves.sort.bins[0];
    const uint32_t first = hotbed_bins_take(&s->moves.sort, lanes, ROW);
    *turn = exchange_turn{0, first < n && lane < lanes && lane < n - first, {}, {}};
    if (turn->mine) {
        const uint32_t i = s->moves.sort.order[first + lane];
        const hotbed_move move = s->moves.items[i];
        const uint32_t t =
            hotbed_part_of(s->unique.offsets, s->storage.num_tables, s->unique.missing[i]);
        turn->move = i;
        if (hotbed_move_writes(&s->storage.tables[t], &move))
            turn->down = hotbed_transfer_of(s, i, true);
        if (hotbed_move_fetches(&move))
            turn->up = hotbed_transfer_of(s, i, false);
    }
    return first < n;
}

/* Copy evicted rows down and publish them there, then copy up the rows that take their slots.
 * Warps are at different points of this, so the link is used in both directions. */
static __device__ void exchange_by_warps(const hotbed_step_view *s) {
    for (exchange_turn turn; take_turn(s, TURN, &turn);) {
        copy_rows(turn.down, TURN);
        hotbed_fence(); /* the copies are complete before the rows are published */
        hotbed_tile_sync(ROW);
        if (turn.mine)
            hotbed_leave_upper(s, turn.move);
        hotbed_tile_sync(ROW);
        copy_rows(turn.up, TURN);
    }
}

/* The same through shared memory, where each copying thread has two mbarriers and two rows of
 * bulk_bytes: the promoted row is loaded while the evicted row is written, and neither takes
 * registers. */
enum { BULK_BARRIERS = 2 * sizeof(uint64_t) };

#if defined(HOTBED_WITH_BULK)
static __device__ void exchange_in_bulk(
    const hotbed_step_view *s, uint32_t lanes, uint8_t *shared) {
    const uint32_t lane = hotbed_tile_rank(ROW), thread = threadIdx.x / ROW * lanes + lane;
    uint64_t *read = (uint64_t *)(void *)shared + 2 * (uint64_t)thread, *come = read + 1;
    uint8_t *rows = shared + (uint64_t)BULK_BARRIERS * (blockDim.x / ROW * lanes);
    uint8_t *evicted = rows + 2 * (uint64_t)thread * s->moves.bulk_bytes,
            *row = evicted + s->moves.bulk_bytes;
    uint32_t reads = 0, comes = 0; /* parities */
    if (lane < lanes) {
        hotbed_bulk_init(read);
        hotbed_bulk_init(come);
    }
    hotbed_bulk_begin();
    __syncthreads();
    exchange_turn next;
    for (bool more = take_turn(s, lanes, &next); more;) {
        const exchange_turn turn = next;
        if (turn.up.bytes != 0)
            hotbed_bulk_load(row, turn.up.from, (uint32_t)turn.up.bytes, come);
        if (turn.down.bytes != 0)
            hotbed_bulk_load(evicted, turn.down.from, (uint32_t)turn.down.bytes, read);
        more = take_turn(s, lanes, &next);
        if (turn.down.bytes != 0) {
            hotbed_bulk_wait(read, reads);
            reads ^= 1;
            hotbed_bulk_store(turn.down.to, evicted, (uint32_t)turn.down.bytes);
            hotbed_bulk_drain();
        }
        if (turn.mine)
            hotbed_leave_upper(s, turn.move);
        if (turn.up.bytes != 0) {
            hotbed_bulk_wait(come, comes);
            comes ^= 1;
            hotbed_bulk_fence();
            hotbed_bulk_store(turn.up.to, row, (uint32_t)turn.up.bytes);
            hotbed_bulk_drain_reads();
        }
        hotbed_tile_sync(ROW);
    }
    hotbed_bulk_drain();
}
#endif

/* With lanes > 0, that many threads of each warp make bulk copies; with 0, warps copy as on GPUs
 * before Hopper. */
template <bool GROWS>
static __global__ void __launch_bounds__(BULK_WARPS *ROW, 1)
    exchange_kernel(const __grid_constant__ hotbed_step_view view, uint32_t lanes) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
#if defined(HOTBED_WITH_BULK)
    extern __shared__ __align__(128) uint8_t shared[];
    if (lanes != 0) {
        exchange_in_bulk(&s, lanes, shared);
        return;
    }
#endif
    (void)lanes;
    exchange_by_warps(&s);
}

/* Count the moves. Then a warp initializes each new row, and a tile publishes each other key. */
template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) arrive_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / ROW * ROW; i < n; i += hotbed_cuda_threads())
        hotbed_tally_moves(&s, (uint32_t)i, n - i < ROW ? (uint32_t)(n - i) : ROW, ROW);
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        if ((s.moves.items[i].flags & HOTBED_MOVE_NEW) == 0)
            hotbed_end_move(&s, (uint32_t)i, TILE);
    for (uint64_t i = hotbed_cuda_thread() / ROW; i < n; i += hotbed_cuda_threads() / ROW)
        if ((s.moves.items[i].flags & HOTBED_MOVE_NEW) != 0)
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
    return HOTBED_CUDA_LAUNCH(
        seek_kernel<GROWS>, step->batch.bound + HOTBED_BIN_WORDS, BLOCK, WAVES, stream, *step);
}

/* Number of warps, and of threads per warp, for which `shared` bytes hold two rows each. 0 if row
 * sizes are not multiples of 16 bytes, or too long. */
static uint32_t bulk_lanes(const hotbed_step_view *step, size_t shared, uint32_t *warps) {
    const uint32_t most_lanes = BULK_LANES, most_warps = BULK_WARPS;
    const size_t each = 2 * (size_t)step->moves.bulk_bytes + BULK_BARRIERS;
    const uint32_t threads = step->moves.bulk_bytes == 0 ? 0 : (uint32_t)(shared / each);
    if (threads == 0)
        return 0;
    uint32_t lanes = threads / (most_warps / 2);
    lanes = lanes == 0 ? 1 : lanes;
    lanes = lanes < most_lanes ? lanes : most_lanes;
    *warps = threads / lanes < most_warps ? threads / lanes : most_warps;
    return lanes;
}

template <bool GROWS>
static hotbed_status exchange_as(const hotbed_step_view *step, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    unsigned sms = WARP_SMS, block = WARP_BLOCK;
    size_t shared = 0;
    uint32_t warps = 0;
    HOTBED_TRY(hotbed_cuda_own_sm(stream, (const void *)exchange_kernel<GROWS>, &shared));
    const uint32_t lanes = bulk_lanes(step, shared, &warps);
    if (lanes != 0) {
        sms = BULK_SMS;
        block = warps * ROW;
    }
    if (step->moves.sms != 0)
        sms = step->moves.sms;
    exchange_kernel<GROWS><<<sms, block, shared, native>>>(*step, lanes);
    return hotbed_cuda_launched("exchange_kernel");
}

hotbed_status hotbed_bins_to_starts(
    const hotbed_region_sort *sort, uint32_t *below, hotbed_stream *stream) {
    starts_kernel<<<1, SCAN_BLOCK, 0, hotbed_cuda_native(stream)>>>(*sort, below);
    return hotbed_cuda_launched("starts_kernel");
}

template <bool GROWS>
static hotbed_status move_as(const hotbed_step_view *step, hotbed_stream *stream) {
    const uint64_t n = step->batch.bound;
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(claim_kernel<GROWS>, n * TILE, BLOCK, WAVES, stream, *step));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(settle_kernel<GROWS>, n * TILE, BLOCK, WAVES, stream, *step));
    HOTBED_TRY(hotbed_bins_to_starts(&step->moves.sort, NULL, stream));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(order_kernel<GROWS>, n, BLOCK, WAVES, stream, *step));
    HOTBED_TRY(exchange_as<GROWS>(step, stream));
    return HOTBED_CUDA_LAUNCH(arrive_kernel<GROWS>, n * ROW, BLOCK, WAVES, stream, *step);
}

template <bool GROWS>
static hotbed_status flush_as(const hotbed_flush_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        flush_kernel<GROWS>, args->table.slots * ROW, BLOCK, WAVES, stream, *args);
}

static hotbed_status seek(const hotbed_step_view *step, hotbed_stream *stream) {
    return step->storage.index.segments != NULL ? seek_as<true>(step, stream)
                                                : seek_as<false>(step, stream);
}

static hotbed_status move(const hotbed_step_view *step, hotbed_stream *stream) {
    return step->storage.index.segments != NULL ? move_as<true>(step, stream)
                                                : move_as<false>(step, stream);
}

static hotbed_status flush(const hotbed_flush_args *args, hotbed_stream *stream) {
    return args->index.segments != NULL ? flush_as<true>(args, stream)
                                        : flush_as<false>(args, stream);
}

const hotbed_tier_kernels hotbed_tier_kernels_cuda = {seek, move, flush};
