/* storage/index_range.h - how many buckets a table gets in the index. */
#ifndef HOTBED_STORAGE_INDEX_RANGE_H
#define HOTBED_STORAGE_INDEX_RANGE_H

#include "storage/index_core.h"

#define HOTBED_CAPACITY_MOST ((uint64_t)1 << 35)

/* Buckets for `capacity` keys, from bucket `first` on, made for a load of 0.97.
 *
 * A key's candidates are all buckets but 3 % (at least one, which the markers of free slots need), so that
 * the slots of any key's candidates are enough for all keys that the table takes: whatever the keys, it
 * refuses none.  Tables of more than 131 buckets have candidates enough for any keys that hash apart. */
static inline hotbed_index_range hotbed_index_range_make(
    uint64_t capacity, bool evicts, uint64_t first) {
    uint64_t full = (capacity + HOTBED_BUCKET_SLOTS - 1) / HOTBED_BUCKET_SLOTS;
    uint64_t loaded = (capacity * 100 + 97 * HOTBED_BUCKET_SLOTS - 1) / (97 * HOTBED_BUCKET_SLOTS);
    hotbed_index_range range = {.first_bucket = first, .evicts = evicts};
    range.buckets = (uint32_t)(loaded > full + 1 ? loaded : full + 1);
    uint32_t others = (uint32_t)((uint64_t)range.buckets * 3 / 100);
    range.choices = range.buckets - (others > 1 ? others : 1);
    uint32_t most = evicts ? HOTBED_WALK_EVICT : HOTBED_WALK_MOST;
    if (range.choices > most)
        range.choices = most;
    return range;
}

enum {
    HOTBED_REGION_BITS_MOST = 8,
    HOTBED_REGION_BUCKETS = 8192, /* the fewest of a region, where tables refuse keys */
    HOTBED_REGION_EVICTS = 2048,  /* where they evict */
};

/* For tables whose rows move: a key's place in one tier is near the same point of it as in the other, and so a row that
 * comes up and the one that leaves for it are neighbours below, too.  How many keys a region gets is chance: 0.3 % from
 * the mean in the smallest that refuses, where 1.5 % would fill it (docs/decisions/006-regions.md), and 0.6 in one that evicts. */
static inline void hotbed_index_range_regions(hotbed_index_range *range) {
    const uint32_t fewest = range->evicts != 0 ? HOTBED_REGION_EVICTS : HOTBED_REGION_BUCKETS;
    range->region_bits = 0;
    while (range->region_bits < HOTBED_REGION_BITS_MOST &&
           range->buckets >> range->region_bits >= 2 * fewest)
        range->region_bits++;
}

#endif
