/* base/sort.h - stable radix sort and prefix sums: CUB on CUDA, plain loops on the host, same result.
 *
 * All calls are async and take device memory; `scratch` is at least what the matching _scratch() call
 * returns for the same n, 256-byte aligned, and is used until the stream passes the call.
 */
#ifndef HOTBED_BASE_SORT_H
#define HOTBED_BASE_SORT_H

#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t hotbed_sort_pairs_scratch(hotbed_backend backend, uint64_t n);

/* Sort n pairs by the lowest `bits` bits of their key, equal keys in input order.  n < 2^31; inputs and
 * outputs do not overlap; inputs are kept. */
hotbed_status hotbed_sort_pairs(
    uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
    uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream);

size_t hotbed_scan_scratch(hotbed_backend backend, uint64_t n);

/* out[i] = in[0] + .. + in[i-1] mod 2^32, out[0] = 0.  n < 2^31; in and out may be the same. */
hotbed_status hotbed_scan(
    uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
