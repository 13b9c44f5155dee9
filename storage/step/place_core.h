/* storage/step/place_core.h - the kernels' algorithms for prefetch: the ranges of a batch, and a slot for
 * each distinct key. */
#pragma once

#include "base/fault.h"
#include "storage/index/index_place_each_core.h"
#include "storage/step/score_core.h"
#include "storage/step/step_core.h"

/* Latch a fault: offset number `at` of the batch is invalid. Bag at - 1 ends there. */
HOTBED_HD void hotbed_offset_fault(const hotbed_step_view *s, uint64_t at) {
    hotbed_fault_latch(
        s->batch.offset_faults, HOTBED_ERR_RANGE,
        at == 0 ? HOTBED_CAUSE_FIRST_OFFSET : HOTBED_CAUSE_OFFSET, s->batch.size,
        at == 0 ? 0 : at - 1, (uint64_t)s->batch.offsets[at]);
}

/* First key of feature f according to the batch's offsets. If the offset is invalid, *good is false
 * and a fault is latched. If the previous feature's first offset is invalid too, only that one is
 * reported. */
HOTBED_HD uint64_t hotbed_feature_start(const hotbed_step_view *s, uint32_t f, bool *good) {
    if (s->batch.offsets == NULL)
        return (uint64_t)f * s->batch.size;
    int64_t start = s->batch.offsets[(uint64_t)f * s->batch.size];
    int64_t before = f == 0 ? 0 : s->batch.offsets[(uint64_t)(f - 1) * s->batch.size];
    *good = start >= before && (uint64_t)start <= s->batch.bound && (f > 0 || start == 0);
    if (!*good && before >= 0 && (uint64_t)before <= s->batch.bound)
        hotbed_offset_fault(s, (uint64_t)f * s->batch.size);
    return (uint64_t)start;
}

/* One lane: latch a fault for bag b of `feature`. If its first offset is invalid, the bag before
 * is at fault. */
HOTBED_HD void hotbed_bag_fault(const hotbed_step_view *s, uint64_t b, uint32_t feature) {
    int64_t begin = s->batch.offsets[b];
    if (begin >= (int64_t)s->batch.feature_starts[feature] &&
        begin <= (int64_t)s->batch.feature_starts[feature + 1])
        hotbed_offset_fault(s, b + 1);
}

/* Release the ticket's pin on unique key u. */
HOTBED_HD void hotbed_unpin_unique(const hotbed_step_view *s, uint64_t u) {
    if (s->unique.slots[u] < s->storage.index_slots)
        hotbed_index_unpin(s->storage.index, s->unique.slots[u], true);
}

/* Write bags[i] for all keys i of bags first .. first+count-1. count is at most `most`, a power of
 * two that is at most the width. */
HOTBED_HD void hotbed_fill_bags(
    const hotbed_step_view *s, uint64_t first, uint32_t count, uint32_t most, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width);
    const uint64_t b = first + (lane < count ? lane : count - 1);
    const uint32_t feature = (uint32_t)(b / s->batch.size);
    const hotbed_bag bag = hotbed_bag_at(s, b, feature);
    if (hotbed_tile_ballot(width, !bag.good) != 0) { /* the bags' keys may not be adjacent */
        if (lane < count && !bag.good)
            hotbed_bag_fault(s, b, feature);
        for (uint32_t i = bag.begin; lane < count && i < bag.end; i++)
            s->batch.bags[i] = (uint32_t)b;
        return;
    }
    const uint32_t begin = hotbed_tile_shuffle_u32(width, bag.begin, 0);
    const uint32_t end = hotbed_tile_shuffle_u32(width, bag.end, count - 1);
    for (uint32_t at = begin; at < end; at += width) {
        const uint32_t i = at + lane;
        uint32_t low = 0; /* number of bags that end before key i */
        for (uint32_t half = most / 2; half > 0; half /= 2)
            low += hotbed_tile_shuffle_u32(width, bag.end, low + half - 1) <= i ? half : 0;
        if (i < end)
            s->batch.bags[i] = (uint32_t)(first + low);
    }
}

/* --- find, then place ------------------------------------------------------------------------- */

/* Whether a static table has the key. Latches a fault if not. */
HOTBED_HD bool hotbed_static_has(const hotbed_step_view *s, uint32_t t, uint64_t key) {
    uint64_t capacity = s->storage.tables[t].capacity;
    if (key < capacity)
        return true;
    hotbed_fault_latch(s->batch.faults, HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, t, key, capacity);
    return false;
}

/* Slot of a key of a static table without an index: its row. HOTBED_SLOT_NONE and a fault if there
 * is no such row. */
HOTBED_HD uint64_t hotbed_static_slot(const hotbed_step_view *s, uint32_t t, uint64_t key) {
    return hotbed_static_has(s, t, key) ? s->storage.tables[t].first_slot + key : HOTBED_SLOT_NONE;
}

/* One lane: record the find of unique key u of table t. A key that has a slot is scored and
 * pinned, others are appended to `missing`. */
HOTBED_HD void hotbed_found_unique(
    const hotbed_step_view *s, uint32_t t, uint32_t u, uint64_t slot) {
    const hotbed_table_view *table = &s->storage.tables[t];
    if (!hotbed_table_indexed(table)) {
        slot = hotbed_static_slot(s, t, s->unique.keys[u]);
    } else if (slot != HOTBED_SLOT_NONE) {
        hotbed_index_touch_found(
            s->storage.index, slot, hotbed_unique_rule(table), hotbed_unique_score(s, table, t, u),
            1);
        if (table->tiers == HOTBED_TIERS_EXTERNAL)
            hotbed_index_flag(s->storage.index, slot); /* the store's copy has an older score */
        hotbed_unique_seen(s, table, slot);
    } else if (table->is_static == 0 || hotbed_static_has(s, t, s->unique.keys[u])) {
        s->unique.missing[hotbed_add_relaxed_u32(s->unique.num_missing, 1)] = u;
    }
    if (slot == HOTBED_SLOT_NONE && table->is_static != 0 && s->unique.keys[u] >= table->capacity)
        hotbed_add_relaxed_u64(&s->storage.tallies[t].refused, 1);
    s->unique.slots[u] = slot;
}

/* Find unique keys first .. first+count-1 (at most one per lane); score and pin the keys found, and
 * append the others to `missing`. All keys of a batch are looked up before the first missing key is
 * placed. The existing keys are pinned by then, so a batch does not evict its own rows. */
HOTBED_HD void hotbed_find_uniques(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    bool mine = lane < count;
    uint32_t u = first + (mine ? lane : 0);
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t key = s->unique.keys[u];
    bool hashed = mine && hotbed_table_indexed(table);
    uint64_t slot = hotbed_index_find_each(
        s->storage.index, hotbed_table_range(table, key), key, hotbed_tile_ballot(width, hashed),
        false, width);
    if (mine)
        hotbed_found_unique(s, t, u, slot);
}

/* Count the results of placing keys, one per lane with `mine`. A tile adds once per table and
 * counter, because additions to one word are serialized. */
HOTBED_HD void hotbed_tally_places(
    const hotbed_step_view *s, uint32_t t, hotbed_index_result r, bool mine, uint32_t width) {
    for (uint32_t left = hotbed_tile_ballot(width, mine); left != 0;) {
        const uint32_t one = hotbed_tile_shuffle_u32(width, t, hotbed_lowest_bit(left));
        const bool ours = mine && t == one, placed = r.slot != HOTBED_SLOT_NONE;
        hotbed_tally *tally = &s->storage.tallies[one];
        hotbed_tally_lanes(&tally->inserts, ours && placed, width);
        hotbed_tally_lanes(&tally->refused, ours && !placed, width);
        hotbed_tally_lanes(&tally->evictions, ours && r.outcome == HOTBED_INDEX_EVICTED, width);
        left &= ~hotbed_tile_ballot(width, ours);
    }
}

/* A key that was placed, one per lane. */
typedef struct hotbed_placed {
    hotbed_index_result r;
    uint64_t key;
    uint32_t t;
    bool mine; /* the lane has a key */
} hotbed_placed;

/* Claim slots for the keys of entries first .. first+count-1 of `missing`, at most one per lane,
 * initialize their rows and publish the keys. */
HOTBED_HD hotbed_placed
hotbed_place_uniques(const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width);
    uint32_t u = s->unique.missing[first + (lane < count ? lane : 0)];
    hotbed_placed p = {{HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL}, 0, 0, false};
    p.mine = lane < count && (u & HOTBED_MISSING_REJECTED) == 0;
    u = p.mine ? u : 0;
    p.t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[p.t];
    p.key = s->unique.keys[u];
    uint64_t meta = hotbed_meta_new(hotbed_unique_score(s, table, p.t, u), 1);
    if (table->probation != 0)
        meta |= HOTBED_META_PROBATION;
    p.r = hotbed_index_place_each_timed(
        s->storage.index, hotbed_table_range(table, p.key), p.key, meta, p.mine, width);
    const bool placed = p.r.slot != HOTBED_SLOT_NONE;
    if (p.mine)
        s->unique.slots[u] = p.r.slot;
    if (p.mine && !placed)
        hotbed_fault_latch(
            s->batch.faults, HOTBED_ERR_FULL,
            p.r.outcome == HOTBED_INDEX_PINNED ? HOTBED_CAUSE_ALL_PINNED : HOTBED_CAUSE_TABLE_FULL,
            p.t, p.key, hotbed_table_slots(s->storage.index, table));
    if (placed) {
        hotbed_unique_seen(s, table, p.r.slot);
        hotbed_set_changed(s->storage.index, table, p.r.slot);
    }
    if (s->storage.tracker != NULL)
        hotbed_log_removed(
            s->storage.tracker, table, p.t, p.r.evicted_key, p.r.outcome == HOTBED_INDEX_EVICTED,
            width);
    for (uint32_t left = hotbed_tile_ballot(width, placed); left != 0; left &= left - 1) {
        const uint32_t k = hotbed_lowest_bit(left);
        const hotbed_table_view *its = &s->storage.tables[hotbed_tile_shuffle_u32(width, p.t, k)];
        const uint64_t slot = hotbed_tile_shuffle_u64(width, p.r.slot, k);
        hotbed_row_init(
            its, hotbed_row_at(s->storage.index, its, slot),
            hotbed_tile_shuffle_u64(width, p.key, k), width);
    }
    hotbed_tile_sync(width);
    if (placed)
        hotbed_index_publish_held(s->storage.index, p.r.slot, p.key);
    return p;
}

/* eval: the slot of each lane's own key, number i of table t. `mine` is false for lanes without a
 * key. */
HOTBED_HD uint64_t
hotbed_find_key(const hotbed_step_view *s, uint32_t i, uint32_t t, bool mine, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t key = s->batch.keys[i];
    bool hashed = mine && hotbed_table_indexed(table);
    const bool moves = hotbed_table_moves(table);
    const bool cached = hotbed_tile_ballot(width, hashed && moves) == 0;
    uint64_t slot = HOTBED_SLOT_NONE;
    /* If rows move, search the upper tier, the lower tier, and then the upper tier again, because a
     * concurrent prefetch may have promoted the row meanwhile. */
    for (uint32_t look = 0; look < 3; look++) {
        const bool wanted = hashed && slot == HOTBED_SLOT_NONE && (look == 0 || moves);
        const uint32_t lanes = hotbed_tile_ballot(width, wanted);
        if (lanes == 0)
            break;
        const uint64_t other = hotbed_index_find_each(
            s->storage.index, look == 1 ? table->lower : hotbed_table_range(table, key), key, lanes,
            cached, width);
        slot = wanted ? other : slot;
    }
    if (mine && !hashed)
        return hotbed_static_slot(s, t, key);
    if (mine && slot == HOTBED_SLOT_NONE && table->is_static != 0)
        (void)hotbed_static_has(s, t, key);
    return slot;
}

HOTBED_HD uint32_t hotbed_table_of_key(const hotbed_step_view *s, uint32_t i) {
    const uint32_t feature = hotbed_part_of(s->batch.feature_starts, s->storage.num_features, i);
    return s->storage.feature_tables[feature];
}

/* eval: find keys first .. first+count-1, at most one per lane. */
HOTBED_HD void hotbed_find_keys(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    bool mine = lane < count;
    uint32_t i = first + (mine ? lane : 0);
    uint64_t slot = hotbed_find_key(s, i, hotbed_table_of_key(s, i), mine, width);
    if (mine)
        s->unique.slots[i] = slot;
}
