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
    LINK_SHARE =
        4, /* of the warps there could be, one in so many moves rows over the link: they have 1 MB
                     * on its way, ten times what the link takes, and the other SMs' time is for others */
};

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
        if (move.victim_meta != 0)
            s.write_order[atomicAdd(
                &s.move_bins[SCAN_BLOCK + 1 + hotbed_move_bin(s.index, table, move.victim_home)],
                1U)] = (uint32_t)i;
    }
}

/* The next number of a list: list 0 is of fetches, 1 of writes.  Warps take turns instead of having their
 * share from the start, so that all of them are in the same part of the lower tier: those that had fallen behind
 * spread over all of it, and rows of 512 bytes then moved at 21 GB/s instead of 50. */
static __device__ uint32_t take_move(const hotbed_step_view *s, uint32_t list) {
    uint32_t at = 0;
    if (hotbed_tile_rank(ROW) == 0)
        at = atomicAdd(&s->move_bins[2 * SCAN_BLOCK + list], 1U);
    return hotbed_tile_shuffle_u32(ROW, at, 0);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) write_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = s.move_bins[SCAN_BLOCK];
    for (uint32_t j = take_move(&s, 1); j < n; j = take_move(&s, 1))
        hotbed_write_victim(&s, s.write_order[j], ROW);
}

/* What has to cross the link first, and whatever does not beside it. */
template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) fetch_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t n = s.move_bins[0];
    for (uint32_t j = take_move(&s, 0); j < n; j = take_move(&s, 0))
        hotbed_fetch_missing(&s, s.fetch_order[j], ROW);
    n = *s.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / ROW; i < n; i += hotbed_cuda_threads() / ROW)
        if (!hotbed_move_fetches(&s.moves[i]))
            hotbed_fetch_missing(&s, (uint32_t)i, ROW);
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
static hotbed_status move_as(const hotbed_step_view *step, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    unsigned claims = hotbed_cuda_blocks(stream, step->bound * CLAIM, BLOCK, WAVES);
    unsigned words = hotbed_cuda_blocks(stream, step->bound, BLOCK, WAVES);
    unsigned rows = hotbed_cuda_blocks(stream, step->bound * ROW, BLOCK, WAVES);
    rows = (rows + LINK_SHARE - 1) / LINK_SHARE;
    claim_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("claim_kernel"));
    settle_kernel<GROWS><<<claims, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("settle_kernel"));
    starts_kernel<<<2, SCAN_BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("starts_kernel"));
    order_kernel<GROWS><<<words, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("order_kernel"));
    write_kernel<GROWS><<<rows, BLOCK, 0, native>>>(*step);
    HOTBED_TRY(hotbed_cuda_launched("write_kernel"));
    fetch_kernel<GROWS><<<rows, BLOCK, 0, native>>>(*step);
    return hotbed_cuda_launched("fetch_kernel");
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
