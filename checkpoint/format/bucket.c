/* checkpoint/format/bucket.c - sort keys: one pass into buckets, then each bucket by itself. */
#include "checkpoint/format/bucket.h"

#include "base/error.h"
#include "base/sort.h"
#include "base/stream.h"
#include "base/text.h"

#include <inttypes.h>

enum { SMALL = 24 }; /* largest number of keys that are sorted by insertion */

static void sort_bucket(uint64_t *keys, uint64_t n) {
    if (n > SMALL) {
        hotbed_sort_words(n, keys);
        return;
    }
    for (uint64_t i = 1; i < n; i++) {
        uint64_t key = keys[i], at = i;
        for (; at > 0 && keys[at - 1] > key; at--)
            keys[at] = keys[at - 1];
        keys[at] = key;
    }
}

hotbed_status hotbed_bucket_sort(
    uint64_t n, const uint64_t *keys, hotbed_key_type type, uint32_t bits, uint64_t *sorted,
    uint64_t *counts) {
    uint64_t buckets = (uint64_t)1 << bits;
    uint64_t *next = hotbed_new(buckets * sizeof *next);
    HOTBED_TRY_MEMORY(next, "%" PRIu64 " buckets", buckets);
    for (uint64_t b = 0; b < buckets; b++)
        counts[b] = 0;
    for (uint64_t i = 0; i < n; i++)
        counts[hotbed_logical_bucket(keys[i], bits)]++;
    for (uint64_t b = 1; b < buckets; b++)
        next[b] = next[b - 1] + counts[b - 1];
    for (uint64_t i = 0; i < n; i++)
        sorted[next[hotbed_logical_bucket(keys[i], bits)]++] = keys[i];
    hotbed_delete(next);
    uint64_t first = 0;
    for (uint64_t b = 0; b < buckets; b++) {
        sort_bucket(sorted + first, counts[b]);
        for (uint64_t i = 1; i < counts[b]; i++)
            if (sorted[first + i] == sorted[first + i - 1])
                return hotbed_error_key(
                    hotbed_fail(
                        HOTBED_ERR_STATE, "key %s occurs twice",
                        hotbed_key_text(sorted[first + i], type).text),
                    sorted[first + i], type);
        first += counts[b];
    }
    return HOTBED_OK;
}

/* Return the position of a key in the bucket [low, high), which is sorted by key. */
static uint64_t place_of(const uint64_t *sorted, uint64_t low, uint64_t high, uint64_t key) {
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (sorted[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

hotbed_status hotbed_bucket_sort_pairs(
    uint64_t n, const uint64_t *keys, hotbed_key_type type, const uint64_t *numbers, uint32_t bits,
    uint64_t *pairs) {
    uint64_t buckets = (uint64_t)1 << bits;
    uint64_t *ends = hotbed_new(buckets * sizeof *ends); /* first count the keys of each bucket */
    HOTBED_TRY_MEMORY(ends, "2^%" PRIu32 " buckets", bits);
    hotbed_status status = hotbed_bucket_sort(n, keys, type, bits, pairs, ends);
    for (uint64_t b = 1; b < buckets; b++)
        ends[b] += ends[b - 1];
    for (uint64_t i = 0; status == HOTBED_OK && i < n; i++) {
        uint64_t b = hotbed_logical_bucket(keys[i], bits);
        pairs[n + place_of(pairs, b == 0 ? 0 : ends[b - 1], ends[b], keys[i])] = numbers[i];
    }
    hotbed_delete(ends);
    return status;
}
