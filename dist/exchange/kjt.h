/* dist/exchange/kjt.h - the inside of keyed jagged tensors: steps of input dists. */
#pragma once

#include "dist/exchange/kjt_kernels.h"
#include "hotbed/sharded.h"

/* Read a caller's struct, with the checks of hotbed_kjt_check(). */
hotbed_status hotbed_kjt_read(const hotbed_kjt *kjt, hotbed_kjt *out);

/* Return the number of rows: the sum of strides, or features * batch size. */
uint64_t hotbed_kjt_rows(const hotbed_kjt *kjt);

/* Return the number of the feature called `name`, or num_features if there is none. */
uint32_t hotbed_kjt_find(const hotbed_kjt *kjt, const char *name);

/* The batch as kernels see it; starts and bad are the caller's memory. */
hotbed_kjt_view hotbed_kjt_view_of(
    const hotbed_kjt *kjt, uint32_t *starts, uint32_t *bad, hotbed_stream *stream);

/* Bytes of device memory for a scan over n rows. */
size_t hotbed_kjt_scratch(const hotbed_stream *stream, uint64_t n);

/* Compute starts and bad of the view. Asynchronous. */
hotbed_status hotbed_kjt_start(
    const hotbed_kjt_view *kjt, void *scratch, size_t scratch_bytes, hotbed_stream *stream);

/* Copy words from the host to device memory. Asynchronous; the host memory may change at once. */
hotbed_status hotbed_kjt_put(
    uint32_t *to, const uint32_t *words, uint32_t n, hotbed_stream *stream);

/* Copy the first row of each feature, and the number of rows, to num_features + 1 words of device
 * memory. Asynchronous, likewise. */
hotbed_status hotbed_kjt_put_bases(const hotbed_kjt *kjt, uint32_t *bases, hotbed_stream *stream);

/* Pick the features: starts, keys, sources, weights. Asynchronous. */
hotbed_status hotbed_kjt_pick(
    const hotbed_pick_view *pick, void *scratch, size_t scratch_bytes, hotbed_stream *stream);

/* Write the offsets of a storage's batch: of the picked keys or, with `starts` NULL, of the batch
 * itself, of which all features are picked in order. Asynchronous. */
hotbed_status hotbed_kjt_pick_offsets(
    const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream);
