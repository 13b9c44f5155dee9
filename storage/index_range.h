/* storage/index_range.h - how many buckets a table gets in the index. */
#ifndef HOTBED_STORAGE_INDEX_RANGE_H
#define HOTBED_STORAGE_INDEX_RANGE_H

#include "storage/index_core.h"

#define HOTBED_CAPACITY_MOST ((uint64_t)1 << 35)
enum { HOTBED_TABLES_MOST = 65535, HOTBED_SMALL_BUCKETS = 34 };

/* Buckets for `capacity` keys, from bucket `first` on.  All but one bucket of a small table are candidates
 * of every key, so it takes as many keys as those have slots; a larger one is made for a load of 0.97. */
static inline hotbed_index_range hotbed_index_range_make(
    uint64_t capacity, bool evicts, uint64_t first) {
    uint64_t full = (capacity + HOTBED_BUCKET_SLOTS - 1) / HOTBED_BUCKET_SLOTS;
    uint64_t loaded = (capacity * 100 + 97 * HOTBED_BUCKET_SLOTS - 1) / (97 * HOTBED_BUCKET_SLOTS);
    hotbed_index_range range = {.first_bucket = first, .evicts = evicts};
    range.buckets = (uint32_t)(loaded > full + 1 ? loaded : full + 1);
    if (range.buckets < 2)
        range.buckets = 2;
    range.choices = range.buckets < HOTBED_SMALL_BUCKETS ? range.buckets - 1 : range.buckets / 2;
    uint32_t most = evicts ? HOTBED_WALK_EVICT : HOTBED_WALK_MOST;
    if (range.choices > most)
        range.choices = most;
    return range;
}

#endif
