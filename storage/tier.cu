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
    LINK_BLOCK = 128,
};

/* Rows cross the link by few warps: as many as keep it full, and no more.  What is on its way beyond that waits in
 * the GPU's own queues, and whatever else runs waits behind it: beside 2,112 warps a dense model took twice its time,
 * beside these 1.0 to 1.2 times, and the link is as fast (docs/performance.md).  Reads are on their way for longer
 * than writes, and small rows need more warps. */
enum { READ_BYTES = 320 << 10, READ_COST = 1024, WRITE_BYTES = 160 << 10, WRITE_COST = 512 };

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

/* Counts of the bins become their starts: block 0 those of fetches, block 1 those of writes.  bins[b + 1] has
 * the count of bin b before; afterwards the start of bin b, which order_kernel moves on. */
static __global__ void __launch_bounds__(SCAN_BLOCK) starts_kernel(hotbed_step_view s) {
    __shared__ uint32_t sums[SCAN_BLOCK];
    uint32_t *bins = s.move_bins + (size_t)blockIdx.x * SCAN_BLOCK;
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

/* Every move into its place among the fetches, and among the writes.  New rows have nothing to read. */
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
        if (hotbed_move_fetches(&move))
            s.fetch_order[atomicAdd(
                &s.move_bins[1 + hotbed_move_bin(s.index, table, move.home)], 1U)] = (uint32_t)i;
        if (hotbed_move_writes(table, &move))
            s.write_order[atomicAdd(
                &s.move_bins[SCAN_BLOCK + 1 + hotbed_move_bin(s.index, table, move.victim_home)],
                1U)] = (uint32_t)i;
    }
}

/* A warp takes TURN moves of a list at a time: each of its lanes looks up one of them, and then their rows are copied
 * in turn.  All warps are so in the same part of the lower tier: when each had its share from the start, those that had
 * fallen behind spread over all of it, and rows of 512 bytes moved at 21 GB/s instead of 32. */
enum { TURN = 8 };

template <bool DOWN>
static __device__ void haul_rows(
    const hotbed_step_view *s, const uint32_t *order, uint32_t n, uint32_t *taken) {
    const uint32_t lane = hotbed_tile_rank(ROW);
    for (;;) {
        uint32_t first = lane == 0 ? atomicAdd(taken, (uint32_t)TURN) : 0;
        first = hotbed_tile_shuffle_u32(ROW, first, 0);
        if (first >= n)
            return;
        const uint32_t count = n - first < TURN ? n - first : TURN;
        hotbed_haul mine = {NULL, NULL, 0};
        if (lane < count)
            mine = hotbed_haul_of(s, order[first + lane], DOWN);
        for (uint32_t k = 0; k < count; k++) {
            uint64_t to = hotbed_tile_shuffle_u64(ROW, (uint64_t)(uintptr_t)mine.to, k);
            uint64_t from = hotbed_tile_shuffle_u64(ROW, (uint64_t)(uintptr_t)mine.from, k);
            uint64_t bytes = hotbed_tile_shuffle_u64(ROW, mine.bytes, k);
            hotbed_row_copy((uint8_t *)to, (const uint8_t *)from, bytes, ROW);
            if (DOWN)
                hotbed_fence(); /* a write is over then, not just on its way */
        }
    }
}

template <bool GROWS>
static __global__ void __launch_bounds__(LINK_BLOCK) write_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    haul_rows<true>(&s, s.write_order, s.move_bins[SCAN_BLOCK], &s.move_bins[2 * SCAN_BLOCK + 1]);
}

template <bool GROWS>
static __global__ void __launch_bounds__(LINK_BLOCK) fetch_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    haul_rows<false>(&s, s.fetch_order, s.move_bins[0], &s.move_bins[2 * SCAN_BLOCK]);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) leave_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        hotbed_leave_upper(&s, (uint32_t)i);
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

static unsigned link_blocks(uint64_t row_bytes, uint64_t bytes, uint64_t cost) {
    return (unsigned)(bytes / ((row_bytes + cost) * (LINK_BLOCK / ROW))) + 1;
}

template <bool GROWS>
static hotbed_status move_as(const hotbed_step_view *step, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    unsigned claims = hotbed_cuda_blocks(stream, step->bound * CLAIM, BLOCK, WAVES);
    unsigned words = hotbed_cuda_blocks(stream, step->bound, BLOCK, WAVES);
    unsigned rows = hotbed_cuda_blocks(stream, step->bound * ROW, BLOCK, WAVES);
    unsigned writes = link_blocks(step->moved_bytes, WRITE_BYTES, WRITE_COST);
    unsigned reads = link_blocks(step->moved_bytes, READ_BYTES, READ_COST);
    claim_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("claim_kernel"));
    settle_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("settle_kernel"));
    starts_kernel<<<2, SCAN_BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("starts_kernel"));
    order_kernel<GROWS><<<words, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("order_kernel"));
    write_kernel<GROWS><<<writes, LINK_BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("write_kernel"));
    leave_kernel<GROWS><<<words, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("leave_kernel"));
    fetch_kernel<GROWS><<<reads, LINK_BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("fetch_kernel"));
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
