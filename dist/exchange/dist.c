/* dist/exchange/dist.c - the steps of input and output dists: kernels, with sorts and sums between them. */
#include "dist/exchange/dist.h"

#include "base/error.h"
#include "base/sort.h"

const hotbed_dist_kernels *hotbed_dist_kernels_of(const hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return &hotbed_dist_kernels_cuda;
#endif
    return &hotbed_dist_kernels_host;
}

size_t hotbed_dist_scratch(const hotbed_stream *stream, uint64_t bound, uint64_t segments) {
    hotbed_backend backend = hotbed_stream_backend(stream);
    size_t sort = hotbed_sort_pairs_scratch(backend, bound);
    size_t scan = hotbed_scan_scratch(backend, segments + 1);
    return sort > scan ? sort : scan;
}

hotbed_status hotbed_bucketize(
    const hotbed_bucketize_view *b, void *scratch, size_t scratch_bytes, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    uint32_t bits = 1; /* of rank numbers up to `world` */
    while (b->world >> bits != 0)
        bits++;
    HOTBED_TRY(kernels->targets(b, stream));
    if (b->bound > 0)
        HOTBED_TRY(hotbed_sort_pairs(
            b->bound, b->targets, b->numbers, b->sorted_targets, b->sorted, bits, scratch,
            scratch_bytes, stream));
    return kernels->ranks(b, stream);
}

hotbed_status hotbed_gather(
    const hotbed_gather_view *g, void *scratch, size_t scratch_bytes, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    HOTBED_TRY(kernels->lengths(g, stream));
    HOTBED_TRY(hotbed_scan(
        (uint64_t)hotbed_gather_segments(g) + 1, g->segments, g->segments, scratch, scratch_bytes,
        stream));
    return kernels->gather(g, stream);
}
