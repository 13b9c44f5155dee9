/* dist/kjt.h - the inside of keyed jagged tensors: steps that input dists are made of. */
#ifndef HOTBED_DIST_KJT_H
#define HOTBED_DIST_KJT_H

#include "dist/kjt_kernels.h"
#include "hotbed/kjt.h"

/* Read a caller's struct, and check it as hotbed_kjt_check() does. */
hotbed_status hotbed_kjt_read(const hotbed_kjt *kjt, hotbed_kjt *out);

/* What kernels see of a batch that was read; starts and bad are the caller's memory. */
hotbed_kjt_view hotbed_kjt_view_of(
    const hotbed_kjt *kjt, uint32_t *starts, uint32_t *bad, hotbed_stream *stream);

/* Bytes of device memory that sums over n rows need. */
size_t hotbed_kjt_scratch(const hotbed_stream *stream, uint64_t n);

/* starts and bad of the view.  Async. */
hotbed_status hotbed_kjt_start(
    const hotbed_kjt_view *kjt, void *scratch, size_t scratch_bytes, hotbed_stream *stream);

/* Words from the host to device memory.  Async, and needs nothing of the host's memory later. */
hotbed_status hotbed_kjt_put(
    uint32_t *to, const uint32_t *words, uint32_t n, hotbed_stream *stream);

/* First row of each feature, and the number of rows: num_features + 1 words of device memory.  Async,
 * likewise. */
hotbed_status hotbed_kjt_put_bases(const hotbed_kjt *kjt, uint32_t *bases, hotbed_stream *stream);

/* Take the features out: starts, keys, sources, weights.  Async. */
hotbed_status hotbed_kjt_pick(
    const hotbed_pick_view *pick, void *scratch, size_t scratch_bytes, hotbed_stream *stream);

#endif
