/* dist/exchange/dist.h - the steps of input and output dists: kernels, with the sums of base between
 * them. */
#pragma once

#include "dist/exchange/dist_kernels.h"

/* The kernels for a stream's backend. */
const hotbed_dist_kernels *hotbed_dist_kernels_of(const hotbed_stream *stream);

/* Bytes of device memory that bucketize needs for `bound` keys. */
size_t hotbed_dist_scratch(const hotbed_stream *stream, uint32_t world, uint64_t bound);

/* Find where the keys of each rank begin: targets, tile_starts, ranks and counts. place() then writes
 * the messages. Asynchronous. */
hotbed_status hotbed_bucketize(
    const hotbed_bucketize_view *b, void *scratch, size_t scratch_bytes, hotbed_stream *stream);

/* Make one batch of all messages: segments, keys, weights, counts, offsets. Asynchronous. */
hotbed_status hotbed_gather(const hotbed_gather_view *g, hotbed_stream *stream);
