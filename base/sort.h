/* base/sort.h - stable radix sort and prefix sums: CUB on CUDA, plain loops on the host, with the
 * same results.
 *
 * All calls with a stream are asynchronous and take device memory. `scratch` has at least the size that the
 * matching _scratch() call returns for the same n, is 256-byte aligned, and is in use until the
 * stream has passed the call. */
#pragma once

#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

size_t hotbed_sort_pairs_scratch(hotbed_backend backend, uint64_t n);

/* Sort n pairs by the lowest `bits` bits of their keys. Equal keys keep their order. n < 2^31.
 * Inputs and outputs do not overlap; inputs are not changed. */
hotbed_status hotbed_sort_pairs(
    uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
    uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream);

size_t hotbed_scan_scratch(hotbed_backend backend, uint64_t n);

/* Compute exclusive prefix sums: out[0] = 0, out[i] = in[0] + .. + in[i-1] mod 2^32. n < 2^31; in
 * and out may be the same. */
hotbed_status hotbed_scan(
    uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream);

/* Sort n words of host memory, ascending. */
void hotbed_sort_words(uint64_t n, uint64_t *words);

/* The same, and leave each word once. Returns their number. */
uint64_t hotbed_distinct_words(uint64_t n, uint64_t *words);

HOTBED_END_DECLS
