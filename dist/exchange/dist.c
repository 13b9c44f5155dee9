/* dist/exchange/dist.c - the steps of input and output dists: kernels, with sums between them. */
#include "dist/exchange/dist.h"

#include "base/error.h"
#include "base/sort.h"
#include "base/stream.h"

const hotbed_dist_kernels *hotbed_dist_kernels_of(const hotbed_stream *stream) {
    return HOTBED_OF_BACKEND(hotbed_stream_backend(stream), hotbed_dist_kernels);
}

size_t hotbed_dist_scratch(const hotbed_stream *stream, uint32_t world, uint64_t bound) {
    return hotbed_scan_scratch(hotbed_stream_backend(stream), hotbed_bucketize_words(world, bound));
}

hotbed_status hotbed_bucketize(
    const hotbed_bucketize_view *b, void *scratch, size_t scratch_bytes, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    HOTBED_TRY(kernels->targets(b, stream));
    HOTBED_TRY(hotbed_scan(
        hotbed_bucketize_words(b->world, b->bound), b->tile_starts, b->tile_starts, scratch,
        scratch_bytes, stream));
    return kernels->ranks(b, stream);
}

hotbed_status hotbed_gather(const hotbed_gather_view *g, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    HOTBED_TRY(kernels->segments(g, stream));
    return kernels->gather(g, stream);
}
