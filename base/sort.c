/* base/sort.c - sort and scan: checks, and dispatch to the backends. */
#include "base/check.h"
#include "base/error.h"
#include "base/sort_backend.h"
#include "base/stream.h"

#include <stdlib.h>

static const hotbed_sort_ops *ops_of(hotbed_backend backend) {
    return HOTBED_OF_BACKEND(backend, hotbed_sort);
}

static hotbed_status check(uint64_t n, const void *scratch) {
    HOTBED_TRY(hotbed_check_below("n", n, (uint64_t)1 << 31));
    return hotbed_check_array("scratch", scratch, n);
}

size_t hotbed_sort_pairs_scratch(hotbed_backend backend, uint64_t n) {
    return n == 0 || n > INT32_MAX ? 0 : ops_of(backend)->pairs_scratch(n);
}

hotbed_status hotbed_sort_pairs(
    uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
    uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_range("bits", bits, 0, 32));
    HOTBED_TRY(check(n, scratch));
    if (n == 0)
        return HOTBED_OK;
    if (bits == 0) { /* all keys are equal: the order does not change */
        HOTBED_TRY(hotbed_copy(sorted_keys, keys, n * sizeof *keys, stream));
        return hotbed_copy(sorted_values, values, n * sizeof *values, stream);
    }
    return ops_of(hotbed_stream_backend(stream))
        ->pairs(n, keys, values, sorted_keys, sorted_values, bits, scratch, scratch_bytes, stream);
}

size_t hotbed_scan_scratch(hotbed_backend backend, uint64_t n) {
    return n == 0 || n > INT32_MAX ? 0 : ops_of(backend)->scan_scratch(n);
}

hotbed_status hotbed_scan(
    uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    HOTBED_TRY(check(n, scratch));
    if (n == 0)
        return HOTBED_OK;
    return ops_of(hotbed_stream_backend(stream))->scan(n, in, out, scratch, scratch_bytes, stream);
}

/* --- words of host memory --------------------------------------------------------------------- */

static int by_word(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void hotbed_sort_words(uint64_t n, uint64_t *words) {
    if (n > 1)
        qsort(words, n, sizeof *words, by_word);
}

uint64_t hotbed_distinct_words(uint64_t n, uint64_t *words) {
    uint64_t distinct = 0;
    hotbed_sort_words(n, words);
    for (uint64_t i = 0; i < n; i++)
        if (distinct == 0 || words[i] != words[distinct - 1])
            words[distinct++] = words[i];
    return distinct;
}
