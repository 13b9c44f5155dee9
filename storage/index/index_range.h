/* storage/index/index_range.h - the size of a table's range in the index, from its number of keys. */
#pragma once

#include "storage/index/index_layout_core.h"

#define HOTBED_CAPACITY_MOST ((uint64_t)1 << 35)

/* A range for `capacity` keys from bucket `first` on, sized for a load of 0.97.
 *
 * In tables of up to 256 buckets, 97 % of the buckets are candidates of each key; at least one is
 * not, because the markers of free slots need it. The slots of any key's candidates then suffice
 * for the whole capacity, so such a table refuses no key, however the keys hash. Larger tables rely
 * on the hash.
 */
static inline hotbed_index_range hotbed_index_range_make(
    uint64_t capacity, bool evicts, uint64_t first) {
    uint64_t full = (capacity + HOTBED_BUCKET_SLOTS - 1) / HOTBED_BUCKET_SLOTS;
    uint64_t loaded = (capacity * 100 + 97 * HOTBED_BUCKET_SLOTS - 1) / (97 * HOTBED_BUCKET_SLOTS);
    hotbed_index_range range = {.first_bucket = first, .evicts = evicts};
    range.buckets = (uint32_t)(loaded > full + 1 ? loaded : full + 1);
    uint32_t others = (uint32_t)((uint64_t)range.buckets * 3 / 100);
    range.choices = range.buckets - (others > 1 ? others : 1);
    if (evicts && range.choices > HOTBED_WALK_EVICT)
        range.choices = HOTBED_WALK_EVICT;
    if (range.buckets > 2 * HOTBED_WALK_MOST && range.choices > HOTBED_WALK_MOST)
        range.choices = HOTBED_WALK_MOST;
    return range;
}

enum {
    HOTBED_REGION_BITS_MOST = 8,
    HOTBED_REGION_BUCKETS = 8192, /* smallest region, in buckets, of tables that refuse keys */
    HOTBED_REGION_EVICTS = 2048,  /* of tables that evict */
};

/* For tables whose rows move between tiers: gives a key about the same relative position in both
 * tiers, so that promoted rows and the rows evicted for them are neighbours in the lower tier. The
 * number of keys per region deviates from the mean by 0.3 % in the smallest regions of tables that
 * refuse (1.5 % would overfill one, docs/decisions/006-regions.md) and by 0.6 % in tables that
 * evict. */
static inline void hotbed_index_range_regions(hotbed_index_range *range) {
    const uint32_t fewest = range->evicts != 0 ? HOTBED_REGION_EVICTS : HOTBED_REGION_BUCKETS;
    range->region_bits = 0;
    while (range->region_bits < HOTBED_REGION_BITS_MOST &&
           range->buckets >> range->region_bits >= 2 * fewest)
        range->region_bits++;
}
