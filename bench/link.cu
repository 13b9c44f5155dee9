/* bench/link.cu - kernels that move rows over the link. */
#include "bench/link.h"

#include "base/cuda_launch.h"
#include "storage/tiers/tier_kernels.h"

namespace {

enum {
    ROW = 32,
    SPREAD_BLOCK = BENCH_LINK_WARPS * 32,
    OWN_BLOCK = BENCH_LINK_OWN_WARPS * 32,
    BLOCK = 256
};

__device__ uint8_t *from_of(const bench_link &l, bench_link_row row) {
    return l.writes ? l.device + (uint64_t)row.device * l.bytes
                    : l.host + (uint64_t)row.host * l.bytes;
}

__device__ uint8_t *to_of(const bench_link &l, bench_link_row row) {
    return l.writes ? l.host + (uint64_t)row.host * l.bytes
                    : l.device + (uint64_t)row.device * l.bytes;
}

/* --- loads and stores in turn, as in exchange_kernel of storage/tiers/tier.cu --------------------- */

enum { TURN = 8 };

__global__ void __launch_bounds__(OWN_BLOCK) loads_kernel(const bench_link l) {
    const uint32_t lane = hotbed_tile_rank(ROW);
    for (;;) {
        uint32_t first = lane == 0 ? atomicAdd(l.taken, (uint32_t)TURN) : 0;
        first = hotbed_tile_shuffle_u32(ROW, first, 0);
        if (first >= l.n)
            return;
        const uint32_t count = l.n - first < TURN ? l.n - first : TURN;
        bench_link_row mine = {0, 0};
        if (lane < count)
            mine = l.rows[first + lane];
        for (uint32_t k = 0; k < count; k++) {
            const bench_link_row row = {
                hotbed_tile_shuffle_u32(ROW, mine.host, k),
                hotbed_tile_shuffle_u32(ROW, mine.device, k)};
            hotbed_row_copy(to_of(l, row), from_of(l, row), l.bytes, ROW);
            if (l.writes)
                hotbed_fence();
        }
    }
}

/* --- content of rows ------------------------------------------------------------------------ */

__global__ void __launch_bounds__(BLOCK) words_kernel(const bench_link l, uint32_t *wrong) {
    const uint32_t words = l.bytes / sizeof(uint64_t);
    for (uint64_t i = hotbed_cuda_thread(); i < (uint64_t)l.n * words; i += hotbed_cuda_threads()) {
        const bench_link_row row = l.rows[i / words];
        const uint32_t w = (uint32_t)(i % words);
        uint64_t *at = (uint64_t *)(void *)(l.device + (uint64_t)row.device * l.bytes) + w;
        const uint64_t word = bench_link_word(row.host, w);
        if (wrong == NULL)
            *at = word;
        else if (*at != word)
            atomicAdd(wrong, 1U);
    }
}

hotbed_status launch_loads(
    const bench_link *link, unsigned blocks, unsigned threads, size_t shared,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(link->taken, 0, sizeof *link->taken, native), "cudaMemsetAsync"));
    loads_kernel<<<blocks, threads, shared, native>>>(*link);
    return hotbed_cuda_launched("loads_kernel");
}

hotbed_status launch_words(const bench_link *link, uint32_t *wrong, hotbed_stream *stream) {
    const unsigned blocks =
        hotbed_cuda_blocks(stream, (uint64_t)link->n * (link->bytes / sizeof(uint64_t)), BLOCK, 1);
    words_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*link, wrong);
    return hotbed_cuda_launched("words_kernel");
}

} // namespace

hotbed_status bench_link_spread(const bench_link *link, uint32_t warps, hotbed_stream *stream) {
    return launch_loads(link, warps / BENCH_LINK_WARPS, SPREAD_BLOCK, 0, stream);
}

hotbed_status bench_link_own(const bench_link *link, uint32_t sms, hotbed_stream *stream) {
    size_t shared = 0;
    HOTBED_TRY(hotbed_cuda_own_sm(stream, (const void *)loads_kernel, &shared));
    return launch_loads(link, sms, OWN_BLOCK, shared, stream);
}

hotbed_status bench_link_fill(const bench_link *link, hotbed_stream *stream) {
    return launch_words(link, NULL, stream);
}

hotbed_status bench_link_check(const bench_link *link, uint32_t *wrong, hotbed_stream *stream) {
    return launch_words(link, wrong, stream);
}
