/* tests/storage/index_claim.h - claim a slot for a key, and the buckets that may hold it. */
#pragma once

#include "storage/index/index_place_core.h"

/* Whether `key` may be stored in bucket `bucket` of the table. */
HOTBED_HD bool index_may_hold(hotbed_index_range range, uint64_t key, uint32_t bucket) {
    hotbed_candidates c = hotbed_index_candidates(range, key);
    if (bucket == c.first)
        return true;
    const uint32_t step = hotbed_index_step(range, c);
    uint32_t distance =
        bucket >= c.second ? bucket - c.second : bucket + (range.buckets - c.second);
    if (distance % step != 0)
        return false;
    uint32_t choice = 1 + distance / step;
    if (distance > c.gap && !hotbed_index_steps_differ(range))
        choice--;
    return choice < range.choices;
}

/* Find `key` and score it, or claim a slot for it. Adds `pins` (0 or 1) either way. The caller
 * initializes the row of a claimed slot and then publishes it. All lanes get the same result. */
HOTBED_HD hotbed_index_result index_claim(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, hotbed_score_rule rule,
    uint64_t score, uint64_t pins, uint32_t width) {
    uint64_t slot = hotbed_index_find(index, range, key, width);
    if (slot != HOTBED_SLOT_NONE) {
        bool held = hotbed_tile_rank(width) == 0;
        if (held && range.evicts == 0)
            hotbed_index_touch_found(index, slot, rule, score, pins);
        else if (held)
            held = hotbed_index_touch(index, slot, key, rule, score, pins);
        if (hotbed_tile_ballot(width, held) != 0) {
            hotbed_index_result result = {slot, 0, 0, HOTBED_INDEX_FOUND};
            return result;
        }
    }
    return hotbed_index_place(index, range, key, hotbed_meta_new(score, pins), width);
}
