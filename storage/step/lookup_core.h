/* storage/step/lookup_core.h - the kernels' algorithms for prefetch, forward and eval: find or place
 * each distinct key, read its row, pool. */
#ifndef HOTBED_STORAGE_LOOKUP_CORE_H
#define HOTBED_STORAGE_LOOKUP_CORE_H

#include "base/fault.h"
#include "storage/index/index_place_each_core.h"
#include "storage/step/score_core.h"
#include "storage/step/step_core.h"

/* Latch a fault: offset number `at` of the batch is invalid. Bag at - 1 ends there. */
HOTBED_HD void hotbed_offset_fault(const hotbed_step_view *s, uint64_t at) {
    hotbed_fault_latch(
        s->batch.offset_faults, HOTBED_ERR_RANGE,
        at == 0 ? HOTBED_FAULT_FIRST_OFFSET : HOTBED_FAULT_OFFSET, 0, at == 0 ? 0 : at - 1,
        (uint64_t)s->batch.offsets[at]);
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
    hotbed_fault_latch(s->batch.faults, HOTBED_ERR_RANGE, HOTBED_FAULT_KEY_RANGE, t, key, capacity);
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
            hotbed_index_mark(s->storage.index, slot); /* the store's copy has an older score */
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
            p.r.outcome == HOTBED_INDEX_PINNED ? HOTBED_FAULT_ALL_PINNED : HOTBED_FAULT_TABLE_FULL,
            p.t, p.key, hotbed_table_slots(s->storage.index, table));
    if (placed)
        hotbed_unique_seen(s, table, p.r.slot);
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

/* --- eval beside training ------------------------------------------------------------------------
 *
 * Eval pins nothing. While it searches a key and reads the row, a prefetch on another stream may
 * evict the key, move its row to the other tier, or move it back. Eval therefore reads first and
 * then checks that it has read the key's row, like the reader of a sequence lock. The sequence
 * number is the count of prefetches, the *epoch*; a prefetch counts itself before it changes
 * anything. Within one epoch a key moves at most once, and a slot is given to at most one other
 * key. If the epoch is still the one in which the search began:
 *
 * - A slot that has the key after its row was read had it during the whole read. (Across epochs,
 *   another key could have been there in between.)
 * - A lower-tier slot in mode CACHE has the key's row if its meta says that the upper tier has no
 *   copy and that the slot is not being claimed for a new key (hotbed_eval_holds()). A new key's
 *   row is written in the upper tier and reaches the lower tier only when it is evicted.
 * - A key that searches of the upper tier, the lower tier and the upper tier again have missed is
 *   in neither: a moving row can be found at its destination before it disappears from its source.
 *
 * Keys or bags that fail the check are appended to `rereads`. A last pass reads them again until
 * the check passes. A check fails only if a prefetch has made progress, so eval never blocks.
 * Without concurrent changes the check costs, per row, a fence, a load of the key and a load of the
 * epoch; lower-tier rows in CACHE also load the meta. Tables that never evict and have one tier are
 * not checked.
 *
 * On CUDA, passes that find a key and read its row in one kernel order the two as follows: the
 * row's address depends on the key that was read, the key was published with release order, the row
 * is read at a cache level that all SMs share (hotbed_eval_shares()), and its load is issued after
 * the key's has returned. The key may come from the SM's L1 cache, except in tables whose rows move:
 * it was published before it got there, and not before the kernel read the epoch. The other passes
 * are separate kernels, or use a fence.
 */

/* One lane: the current epoch. Later reads of this lane are ordered after it. */
HOTBED_HD uint64_t hotbed_eval_epoch(const hotbed_step_view *s) {
    return hotbed_load_acquire_u64(&s->storage.clock->prefetches);
}

/* One lane: record the epoch before the eval searches. */
HOTBED_HD void hotbed_eval_begin(const hotbed_step_view *s) {
    *s->eval.begun = hotbed_eval_epoch(s);
    *s->eval.num_rereads = 0;
}

/* Whether an SM's L1 cache may hold a line older than the key whose row is read. If keys never
 * leave their slots and no two rows share a 32-byte sector, nothing reads a row's sectors before
 * its key is published. */
HOTBED_HD bool hotbed_eval_shares(const hotbed_table_view *table) {
    return table->range.evicts != 0 || table->row_bytes % 32 != 0;
}

/* Whether a concurrent prefetch can invalidate the result of a search: a slot, if keys leave their
 * slots; a miss, if rows move between tiers. */
HOTBED_HD bool hotbed_eval_may_change(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot) {
    return slot == HOTBED_SLOT_NONE ? hotbed_table_moves(table)
                                    : table->range.evicts != 0 && slot < s->storage.index_slots;
}

/* Whether the slot holds `key` and its current row. */
HOTBED_HD bool hotbed_eval_holds(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t key, uint64_t slot) {
    if (hotbed_load_acquire_u64(hotbed_index_key(s->storage.index, slot)) != key)
        return false;
    return table->tiers != HOTBED_TIERS_CACHE || !hotbed_slot_below(table, slot) ||
           (hotbed_load_relaxed_u64(hotbed_index_meta(s->storage.index, slot)) &
            (HOTBED_META_MARKED | HOTBED_META_LOCKED)) == 0;
}

/* One lane, after a fence: whether the values read belong to `key`, which a search in `epoch` found
 * in `slot`. */
HOTBED_HD bool hotbed_eval_settled(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t key, uint64_t slot,
    uint64_t epoch) {
    if (!hotbed_eval_may_change(s, table, slot))
        return true;
    return (slot == HOTBED_SLOT_NONE || hotbed_eval_holds(s, table, key, slot)) &&
           hotbed_load_relaxed_u64(&s->storage.clock->prefetches) == epoch;
}

/* One lane: append key or bag number i to `rereads`. */
HOTBED_HD void hotbed_eval_queue_reread(const hotbed_step_view *s, uint32_t i) {
    s->eval.rereads[hotbed_add_relaxed_u32(s->eval.num_rereads, 1)] = i;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Elements e .. e+3 of the row of key number i. */
HOTBED_HD hotbed_f32x4 hotbed_forward_row4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i, uint64_t slot,
    uint32_t e) {
    if (slot != HOTBED_SLOT_NONE)
        return hotbed_load4(
            table->dtype, hotbed_row_at(s->storage.index, table, slot), e,
            hotbed_count4(table->dim, e));
    if (s->eval.on != 0)
        return hotbed_f32x4_of(table->eval_value);
    return hotbed_row_absent4(table, s->batch.keys[i], e);
}

HOTBED_HD uint64_t hotbed_forward_slot(const hotbed_step_view *s, uint32_t i) {
    return s->unique.slots[s->unique.inverse == NULL ? i : s->unique.inverse[i]];
}

enum { HOTBED_FORWARD_AHEAD = 4 }; /* rows that a tile reads before it writes the first one */

/* The keys of a tile, at most one per lane. In lane k, i is the number of its key: first + k, or,
 * if `ordered`, any number. Lanes past the last key have the last key. */
typedef struct hotbed_tile_keys {
    uint32_t first, count, i;
    uint32_t deferred; /* one bit per key: its row is read later, in order of address */
    bool ordered;
    uint32_t again; /* eval: one bit per key: its row has to be read again */
    uint64_t epoch; /* eval: the epoch in which this lane's slot was found */
    uint64_t to;    /* address of the row that the lane's key gets, if rows are scattered */
} hotbed_tile_keys;

HOTBED_HD uint32_t hotbed_tile_key(const hotbed_tile_keys *keys, uint32_t k, uint32_t width) {
    return keys->ordered ? hotbed_tile_shuffle_u32(width, keys->i, k) : keys->first + k;
}

/* Copy f32 rows of one table to a sequence output. All keys have slots, `dim` is a multiple of 4,
 * and all addresses are aligned. Lane k has the address of row k. `shared` is as in
 * hotbed_load4_as(). If rows are `scattered`, `output` and `stride` are unused. */
HOTBED_HD void hotbed_forward_plain(
    bool shared, const float *row, uint32_t dim, const hotbed_tile_keys *keys, bool scattered,
    float *output, uint64_t stride, uint32_t width) {
    const uint32_t count = keys->count;
    for (uint32_t begin = 0; begin < dim; begin += 4 * width) {
        uint32_t e = begin + 4 * hotbed_tile_rank(width);
        uint32_t from = e < dim ? e : 0; /* all lanes take part in the loads */
        for (uint32_t r = 0; r < count; r += HOTBED_FORWARD_AHEAD) {
            hotbed_f32x4 v[HOTBED_FORWARD_AHEAD];
            uint32_t to[HOTBED_FORWARD_AHEAD];
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++) {
                const uint32_t one = r + k < count ? r + k : r;
                const float *at = (const float *)(uintptr_t)hotbed_tile_shuffle_u64(
                    width, (uint64_t)(uintptr_t)row, one);
                HOTBED_POINT();
                v[k] = shared ? hotbed_load_shared_f32x4(at + from)
                              : *(const hotbed_f32x4 *)(const void *)(at + from);
                to[k] = keys->ordered ? hotbed_tile_shuffle_u32(width, keys->i, one) : r + k;
            }
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++) {
                float *row_to = scattered ? (float *)(uintptr_t)hotbed_tile_shuffle_u64(
                                                width, keys->to, r + k < count ? r + k : r)
                                          : output + to[k] * stride;
                if (r + k < count && e < dim && (keys->deferred >> (r + k) & 1U) == 0)
                    hotbed_store_once(row_to + e, v[k]);
            }
        }
    }
}

/* eval: which rows of the tile fail the check, one bit each. */
HOTBED_HD uint32_t hotbed_eval_unsettled(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint32_t t, uint64_t slot,
    uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width);
    const hotbed_table_view *table = &s->storage.tables[t];
    bool checks = lane < keys->count && (keys->deferred >> lane & 1U) == 0 &&
                  hotbed_eval_may_change(s, table, slot);
    if (hotbed_tile_ballot(width, checks) == 0)
        return 0;
    hotbed_fence();
    hotbed_tile_sync(width); /* orders the reads of all lanes before the check */
    return hotbed_tile_ballot(
        width, checks && !hotbed_eval_settled(s, table, s->batch.keys[keys->i], slot, keys->epoch));
}

/* Write the sequence output of a tile's keys to s->to or, unless rows are scattered, to `output`.
 * Each lane has the table and slot of its key; all lanes copy each row. `searched`, a literal, is
 * true if this pass has also searched for the slots, while prefetches may run. */
HOTBED_HD void hotbed_forward_found(
    const hotbed_step_view *s, hotbed_tile_keys *keys, uint32_t t, uint64_t slot, bool searched,
    void *output, uint64_t stride, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[hotbed_tile_shuffle_u32(width, t, 0)];
    const bool scattered = s->to.on != 0;
    bool plain = table == &s->storage.tables[t] && slot != HOTBED_SLOT_NONE &&
                 table->dtype == HOTBED_F32 && s->storage.output_dtype == HOTBED_F32 &&
                 table->dim % 4 == 0 &&
                 (scattered || (stride % 4 == 0 && ((uintptr_t)output & 15U) == 0));
    if (scattered)
        keys->to = (uint64_t)(uintptr_t)hotbed_scatter_row(&s->to, keys->i);
    const uint32_t todo = ~keys->deferred; /* one bit per row */
    const bool all_plain = hotbed_tile_ballot(width, !plain) == 0;
    if (all_plain) {
        uint64_t from = slot;
        if (keys->deferred != 0) { /* instead of a deferred row, copy another row of the tile */
            uint64_t other = hotbed_tile_shuffle_u64(width, slot, hotbed_lowest_bit(todo));
            from = (keys->deferred >> hotbed_tile_rank(width) & 1U) != 0 ? other : slot;
        }
        const float *row =
            (const float *)(const void *)hotbed_row_at(s->storage.index, table, from);
        float *to = (float *)output;
        if (!scattered && !keys->ordered)
            to += keys->first * stride;
        if (searched && hotbed_eval_shares(table))
            hotbed_forward_plain(true, row, table->dim, keys, scattered, to, stride, width);
        else
            hotbed_forward_plain(false, row, table->dim, keys, scattered, to, stride, width);
    }
    for (uint32_t r = 0; !all_plain && r < keys->count; r++) {
        if ((todo >> r & 1U) == 0)
            continue;
        uint64_t slot_r = hotbed_tile_shuffle_u64(width, slot, r);
        uint32_t i = hotbed_tile_key(keys, r, width);
        table = &s->storage.tables[hotbed_tile_shuffle_u32(width, t, r)];
        const bool shared = searched && slot_r != HOTBED_SLOT_NONE && hotbed_eval_shares(table);
        void *to =
            scattered ? (void *)(uintptr_t)hotbed_tile_shuffle_u64(width, keys->to, r) : output;
        const uint64_t at = scattered ? 0 : i * stride;
        for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
            const uint32_t count = hotbed_count4(table->dim, e);
            hotbed_store4(
                s->storage.output_dtype, to, at + e, count,
                shared ? hotbed_load4_as(
                             true, table->dtype, hotbed_row_at(s->storage.index, table, slot_r), e,
                             count)
                       : hotbed_forward_row4(s, table, i, slot_r, e));
        }
    }
    keys->again = s->eval.on != 0 ? hotbed_eval_unsettled(s, keys, t, slot, width) : 0;
}

/* eval: append the tile's keys that have to be read again. */
HOTBED_HD void hotbed_eval_queue_rereads(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint32_t width) {
    if ((keys->again >> hotbed_tile_rank(width) & 1U) != 0)
        hotbed_eval_queue_reread(s, keys->i);
}

/* Initialize a tile's keys to first .. first+count-1. */
HOTBED_HD hotbed_tile_keys
hotbed_keys_from(uint32_t first, uint32_t count, uint64_t epoch, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width), i = first + (lane < count ? lane : count - 1);
    hotbed_tile_keys keys = {first, count, i, 0, false, 0, epoch, 0};
    return keys;
}

/* The epoch in which an earlier pass of this eval found the slots. */
HOTBED_HD uint64_t hotbed_forward_epoch(const hotbed_step_view *s) {
    return s->eval.on != 0 ? *s->eval.begun : 0;
}

/* Write rows of a ticket, or of slots that hotbed_find_keys() found. */
HOTBED_HD void hotbed_forward_rows(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, hotbed_forward_epoch(s), width);
    hotbed_forward_found(
        s, &keys, hotbed_table_of_key(s, keys.i), hotbed_forward_slot(s, keys.i), false, output,
        stride, width);
    hotbed_eval_queue_rereads(s, &keys, width);
}

/* eval: choose which of a tile's keys are deferred, one bit each. If the previous eval found at
 * least below_from lower-tier rows, all keys with lower-tier rows are deferred: their slots are
 * kept and counted by region. Otherwise they are only counted. */
HOTBED_HD uint32_t hotbed_defer_lower(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint32_t t, uint64_t slot,
    uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[t];
    bool lead = hotbed_tile_rank(width) == 0, mine = hotbed_tile_rank(width) < keys->count;
    bool below = mine && hotbed_slot_below(table, slot);
    uint32_t lanes = hotbed_tile_ballot(width, below);
    uint32_t last = lead && lanes != 0 ? hotbed_load_relaxed_u32(s->eval.below) : 0;
    bool deferred = hotbed_tile_shuffle_u32(width, last, 0) >= s->eval.below_from;
    if (mine)
        s->eval.deferred[keys->i] = deferred && below ? slot : HOTBED_SLOT_NONE;
    if (deferred && below)
        hotbed_add_relaxed_u32(
            &s->eval.sort.bins[1 + hotbed_lower_bin(s->storage.index, table, slot)], 1);
    if (!deferred && lead && lanes != 0)
        hotbed_add_relaxed_u32(&s->eval.sort.bins[HOTBED_BINS + 1], hotbed_bits_set(lanes));
    return deferred ? lanes : 0;
}

/* eval: find keys with tiles of `find_width` lanes, at most `width`, and write their rows. `tiers`
 * is true if tables may have a lower tier. *epoch starts as hotbed_eval_epoch() and is updated
 * here. */
HOTBED_HD void hotbed_eval_rows(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    bool tiers, uint64_t *epoch, uint32_t find_width, uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, *epoch, width);
    uint32_t t = hotbed_table_of_key(s, keys.i);
    uint64_t slot = hotbed_find_key(s, keys.i, t, true, find_width);
    if (tiers)
        keys.deferred = hotbed_defer_lower(s, &keys, t, slot, width);
    if (hotbed_bits_set(keys.deferred) < count)
        hotbed_forward_found(s, &keys, t, slot, true, output, stride, width);
    hotbed_eval_queue_rereads(s, &keys, width);
    if (keys.again != 0)
        *epoch = hotbed_eval_epoch(s);
}

/* eval: if key number i was deferred, append it to its region. */
HOTBED_HD void hotbed_order_key(const hotbed_step_view *s, uint32_t i) {
    uint64_t slot = s->eval.deferred[i];
    if (slot == HOTBED_SLOT_NONE)
        return;
    uint32_t bin =
        hotbed_lower_bin(s->storage.index, &s->storage.tables[hotbed_table_of_key(s, i)], slot);
    s->eval.sort.order[hotbed_add_relaxed_u32(&s->eval.sort.bins[1 + bin], 1)] = i;
}

/* eval: write the rows of deferred keys first .. first+count-1 of their order by region. Their
 * slots are of the eval's first epoch; if the epoch has changed, the keys are searched again. */
HOTBED_HD void hotbed_eval_below(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    uint32_t find_width, uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, *s->eval.begun, width);
    keys.i = s->eval.sort.order[keys.i];
    keys.ordered = true;
    const uint32_t t = hotbed_table_of_key(s, keys.i);
    uint64_t slot = s->eval.deferred[keys.i];
    const bool over = hotbed_load_relaxed_u64(&s->storage.clock->prefetches) != keys.epoch;
    if (hotbed_tile_ballot(width, over) != 0) {
        keys.epoch = hotbed_eval_epoch(s);
        slot = hotbed_find_key(s, keys.i, t, true, find_width);
    }
    hotbed_forward_found(s, &keys, t, slot, true, output, stride, width);
    hotbed_eval_queue_rereads(s, &keys, width);
}

/* --- forward, pooled --------------------------------------------------------------------------- */

/* Pooling finds the slot of a key in two steps, so that the loads of the first can begin early.
 * First step: load what leads to the slot of key number i of a table. */
HOTBED_HD uint64_t
hotbed_pooled_word(const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    if (s->unique.rows != NULL)
        return s->unique.inverse[i];
    if (!hotbed_table_indexed(table))
        return s->batch.keys[i];
    return s->unique.inverse == NULL ? s->unique.slots[i] : s->unique.inverse[i];
}

/* Second step: the slot, from that word. `t` is the number of the table. */
HOTBED_HD uint64_t hotbed_pooled_slot_of(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t t, uint64_t word) {
    if (hotbed_table_indexed(table))
        return s->unique.inverse == NULL ? word : s->unique.slots[word];
    if (word < table->capacity)
        return table->first_slot + word;
    if (s->eval.on != 0) /* no earlier pass has checked the key */
        (void)hotbed_static_has(s, t, word);
    return HOTBED_SLOT_NONE;
}

/* Both steps. */
HOTBED_HD uint64_t
hotbed_pooled_slot(const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    return hotbed_pooled_slot_of(
        s, table, (uint32_t)(table - s->storage.tables), hotbed_pooled_word(s, table, i));
}

/* Elements e .. e+3 of the row of key number i, for pooling. */
HOTBED_HD hotbed_f32x4 hotbed_pooled_row4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i, uint32_t e) {
    if (s->unique.rows == NULL)
        return hotbed_forward_row4(s, table, i, hotbed_pooled_slot(s, table, i), e);
    const uint8_t *row = s->unique.rows[s->unique.inverse[i]];
    return row == NULL ? hotbed_f32x4_of(0.0F)
                       : hotbed_load4(table->dtype, row, e, hotbed_count4(table->dim, e));
}

/* The sum of a bag of n keys becomes its output. */
HOTBED_HD hotbed_f32x4 hotbed_bag_finish(const hotbed_step_view *s, hotbed_f32x4 sum, uint32_t n) {
    if (s->storage.pooling != HOTBED_POOL_MEAN || n == 0)
        return sum;
    sum.x = sum.x / (float)n;
    sum.y = sum.y / (float)n;
    sum.z = sum.z / (float)n;
    sum.w = sum.w / (float)n;
    return sum;
}

/* Write elements e .. e+3 of the output of a bag with n keys and sum `sum`. */
HOTBED_HD void hotbed_bag_write(
    const hotbed_step_view *s, uint32_t dim, uint32_t feature, uint64_t sample, uint32_t n,
    uint32_t e, hotbed_f32x4 sum, void *output, uint64_t stride) {
    if (s->to.on != 0) {
        uint8_t *to = s->to.bags[(uint64_t)feature * s->batch.size + sample];
        if (to != NULL)
            hotbed_store4(
                s->storage.output_dtype, to, e, hotbed_count4(dim, e),
                hotbed_bag_finish(s, sum, n));
        return;
    }
    hotbed_store4(
        s->storage.output_dtype, output, sample * stride + s->storage.columns[feature] + e,
        hotbed_count4(dim, e), hotbed_bag_finish(s, sum, n));
}

/* Pooled output of bag b, summed in bag order. */
HOTBED_HD void hotbed_forward_bag(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride, uint32_t width) {
    uint32_t feature = (uint32_t)(b / s->batch.size);
    uint64_t sample = b - (uint64_t)feature * s->batch.size;
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    hotbed_bag bag = hotbed_bag_at(s, b, feature);
    if (!bag.good && s->eval.on != 0 && hotbed_tile_rank(width) == 0)
        hotbed_bag_fault(s, b, feature); /* in training, bags() has reported the fault */
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
        hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
        for (uint32_t i = bag.begin; i < bag.end; i++) {
            hotbed_f32x4 row = hotbed_pooled_row4(s, table, i, e);
            sum = hotbed_add4(
                sum, s->batch.weights == NULL ? row : hotbed_scale4(row, s->batch.weights[i]));
        }
        hotbed_bag_write(
            s, table->dim, feature, sample, bag.end - bag.begin, e, sum, output, stride);
    }
}

/* --- forward, pooled by tiles ----------------------------------------------------------------------
 *
 * For storages of one hotbed_rows_form. A tile pools neighbouring bags of a feature. Its lanes look
 * up one key each; then the tile goes through the rows, of which each lane has 16 bytes: 4
 * elements, or 8 of two bytes. Several rows are loaded before the first one is added.
 */

enum { HOTBED_BAGS_AHEAD = 4 }; /* rows that a tile loads before it adds the first one */

/* Neighbouring bags of a feature, one per lane; lanes past the last bag have the last bag. */
typedef struct hotbed_bags {
    const hotbed_table_view *table;
    uint32_t t; /* its number */
    hotbed_bag bag;
    uint32_t count;
    uint32_t left;   /* one bit per bag that has keys, until its sum is written */
    uint64_t output; /* element of the output at which the lane's part of lane 0's bag begins */
    uint64_t to;     /* scattered: address of the output of the lane's bag, or 0 */
    uint32_t e;      /* first element of the lane's part */
    bool idle;       /* the row is too short for the lane to have a part */
} hotbed_bags;

/* A lane's part of the sum of a bag. */
typedef struct hotbed_bag_sum {
    hotbed_f32x4 v[2]; /* [1]: rows of two-byte elements */
} hotbed_bag_sum;

/* Keys of the bags, one per lane. */
typedef struct hotbed_bag_keys {
    uint64_t row;    /* address of the lane's row; of any row if the key has no slot */
    uint32_t absent; /* bit k: lane k's key has no slot */
    uint32_t ends;   /* bit k: lane k's key is the last of its bag */
    uint32_t first;  /* number of lane 0's key */
} hotbed_bag_keys;

/* Keys first .. first+n-1 of the bags. `word` is hotbed_pooled_word() of the lane's key; lanes past
 * the last key have any key's. */
HOTBED_HD hotbed_bag_keys hotbed_bag_keys_at(
    const hotbed_step_view *s, const hotbed_bags *bags, uint64_t word, uint32_t first, uint32_t n,
    uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width), last = bags->bag.end - 1 - first;
    const bool ends = lane < bags->count && bags->bag.begin != bags->bag.end && last < width;
    hotbed_bag_keys k;
    bool absent = false;
    k.row = (uint64_t)(uintptr_t)bags->table->rows;
    if (lane < n && s->unique.rows != NULL) {
        const uint64_t row = (uint64_t)(uintptr_t)s->unique.rows[word];
        absent = row == 0;
        k.row = absent ? k.row : row;
    } else if (lane < n) {
        const uint64_t slot = hotbed_pooled_slot_of(s, bags->table, bags->t, word);
        absent = slot == HOTBED_SLOT_NONE;
        if (!absent)
            k.row = (uint64_t)(uintptr_t)hotbed_row_at(s->storage.index, bags->table, slot);
    }
    k.absent = hotbed_tile_ballot(width, absent);
    k.ends = hotbed_tile_or(width, ends ? 1U << last : 0);
    k.first = first;
    return k;
}

/* Write a lane's part of the output of bag number b, which has n keys. */
HOTBED_HD void hotbed_pool_write(
    const hotbed_step_view *s, const hotbed_bags *bags, uint32_t b, uint32_t n,
    const hotbed_bag_sum *sum, void *output, uint64_t stride, bool half, uint32_t width) {
    uint64_t at = bags->output + b * stride;
    if (s->to.on != 0) {
        output = (void *)(uintptr_t)hotbed_tile_shuffle_u64(width, bags->to, b);
        at = bags->e;
        if (output == NULL)
            return;
    }
    if (bags->idle)
        return;
    HOTBED_UNROLL
    for (uint32_t h = 0; h < (half ? 2 : 1); h++) {
        const hotbed_f32x4 v = hotbed_bag_finish(s, sum->v[h], n);
        if (s->storage.output_dtype == HOTBED_F32)
            hotbed_store_once((float *)output + at + (size_t)4 * h, v);
        else
            *(hotbed_u16x4 *)(void *)((uint16_t *)output + at + (size_t)4 * h) =
                hotbed_f32_to_half4(s->storage.output_dtype, v);
    }
}

/* Add a lane's part of the row of lane k's key to *sum. If the key is the last of its bag, write the
 * bag's output. `plain`, a literal, is true if all keys have slots and there are no weights; the
 * elements of a key without slot are eval_value. */
HOTBED_HD void hotbed_pool_row(
    const hotbed_step_view *s, hotbed_bags *bags, const hotbed_bag_keys *keys, uint32_t k,
    const hotbed_row16 *row, uint32_t dtype, hotbed_bag_sum *sum, void *output, uint64_t stride,
    bool plain, bool half, uint32_t width) {
    hotbed_f32x4 values[2];
    hotbed_row16_to_f32(half, dtype, row, values);
    HOTBED_UNROLL
    for (uint32_t h = 0; h < (half ? 2 : 1); h++) {
        hotbed_f32x4 v = values[h];
        if (!plain && (keys->absent >> k & 1U) != 0)
            v = hotbed_f32x4_of(bags->table->eval_value);
        if (!plain && s->batch.weights != NULL)
            v = hotbed_scale4(v, s->batch.weights[keys->first + k]);
        sum->v[h] = hotbed_add4(sum->v[h], v);
    }
    if ((keys->ends >> k & 1U) == 0)
        return;
    const uint32_t b = hotbed_lowest_bit(bags->left);
    uint32_t n = 0;
    if (s->storage.pooling == HOTBED_POOL_MEAN)
        n = hotbed_tile_shuffle_u32(width, bags->bag.end - bags->bag.begin, b);
    hotbed_pool_write(s, bags, b, n, sum, output, stride, half, width);
    bags->left &= bags->left - 1;
    sum->v[0] = sum->v[1] = hotbed_f32x4_of(0.0F);
}

/* Pool n keys, one per lane. A lane's part of a row begins at byte `byte`. */
HOTBED_HD void hotbed_pool_keys(
    const hotbed_step_view *s, hotbed_bags *bags, const hotbed_bag_keys *keys, uint32_t n,
    uint32_t byte, uint32_t dtype, hotbed_bag_sum *sum, void *output, uint64_t stride, bool plain,
    bool half, uint32_t width) {
    enum { AHEAD = HOTBED_BAGS_AHEAD };
    for (uint32_t k = 0; k < n; k += AHEAD) {
        hotbed_row16 row[AHEAD];
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint64_t at = hotbed_tile_shuffle_u64(width, keys->row, k + a < n ? k + a : k);
            HOTBED_POINT();
            row[a] = *(const hotbed_row16 *)(const void *)(uintptr_t)(at + byte);
        }
        if (plain && k + AHEAD <= n && (keys->ends >> k & ((1U << AHEAD) - 1U)) == 0) {
            HOTBED_UNROLL
            for (uint32_t a = 0; a < AHEAD; a++) {
                hotbed_f32x4 v[2];
                hotbed_row16_to_f32(half, dtype, &row[a], v);
                sum->v[0] = hotbed_add4(sum->v[0], v[0]);
                if (half)
                    sum->v[1] = hotbed_add4(sum->v[1], v[1]);
            }
            continue;
        }
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++)
            if (k + a < n)
                hotbed_pool_row(
                    s, bags, keys, k + a, &row[a], dtype, sum, output, stride, plain, half, width);
    }
}

/* Pooled output of bags b .. b+count-1 of `feature`, at most one per lane. `table` is a copy of the
 * feature's table. Four elements of the output are aligned to their size. `half`, a literal, is true for HOTBED_ROWS_HALF. Returns false,
 * and leaves the output undefined, if offsets are invalid, or if a key of a training batch has no
 * slot. */
HOTBED_HD bool hotbed_forward_bags(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t b, uint32_t count,
    uint32_t feature, void *output, uint64_t stride, bool half, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width), each = half ? 8 : 4;
    hotbed_bags bags;
    bags.table = table;
    bags.t = s->storage.feature_tables[feature];
    bags.bag = hotbed_bag_at(s, b + (lane < count ? lane : count - 1), feature);
    bags.count = count;
    if (hotbed_tile_ballot(width, !bags.bag.good) != 0)
        return false;
    const uint64_t at = s->to.on != 0 ? 0
                                      : (b - (uint64_t)feature * s->batch.size) * stride +
                                            s->storage.columns[feature];
    bags.to =
        s->to.on != 0 ? (uint64_t)(uintptr_t)s->to.bags[b + (lane < count ? lane : count - 1)] : 0;
    const uint32_t dim = table->dim, dtype = table->dtype;
    /* With valid offsets, the keys of neighbouring bags are adjacent. */
    const uint32_t end = hotbed_tile_shuffle_u32(width, bags.bag.end, count - 1);
    for (uint32_t e = each * lane; e < dim + each * lane; e += each * width) {
        hotbed_bag_sum sum = {{hotbed_f32x4_of(0.0F), hotbed_f32x4_of(0.0F)}};
        bags.idle = e >= dim;
        bags.output = at + e;
        bags.e = e;
        bags.left = hotbed_tile_ballot(width, lane < count && bags.bag.begin != bags.bag.end);
        if (hotbed_bits_set(bags.left) < count)
            for (uint32_t k = 0; k < count; k++)
                if ((bags.left >> k & 1U) == 0)
                    hotbed_pool_write(s, &bags, k, 0, &sum, output, stride, half, width);
        uint32_t first = hotbed_tile_shuffle_u32(width, bags.bag.begin, 0);
        uint64_t word = 0;
        if (first + lane < end)
            word = hotbed_pooled_word(s, table, first + lane);
        for (; first < end; first += width) {
            const uint32_t n = end - first < width ? end - first : width;
            const hotbed_bag_keys keys = hotbed_bag_keys_at(s, &bags, word, first, n, width);
            if (first + width + lane < end)
                word = hotbed_pooled_word(s, table, first + width + lane);
            if (keys.absent != 0 && s->eval.on == 0)
                return false;
            const uint32_t byte = bags.idle ? 0 : e * (half ? 2 : 4);
            if (keys.absent == 0 && s->batch.weights == NULL)
                hotbed_pool_keys(
                    s, &bags, &keys, n, byte, dtype, &sum, output, stride, true, half, width);
            else
                hotbed_pool_keys(
                    s, &bags, &keys, n, byte, dtype, &sum, output, stride, false, half, width);
        }
    }
    return true;
}

/* --- eval: second reads ----------------------------------------------------------------------- */

/* Whether all rows of bag b of `feature`, just read, pass the check. Its keys were found in
 * `epoch`. */
HOTBED_HD bool hotbed_eval_bag_settled(
    const hotbed_step_view *s, uint64_t b, uint32_t feature, uint64_t epoch, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    if (table->range.evicts == 0)
        return true;
    hotbed_bag bag = hotbed_bag_at(s, b, feature);
    bool settled = true;
    hotbed_fence();
    hotbed_tile_sync(width);
    for (uint32_t i = bag.begin + hotbed_tile_rank(width); i < bag.end && settled; i += width)
        settled = hotbed_eval_settled(s, table, s->batch.keys[i], s->unique.slots[i], epoch);
    return hotbed_tile_ballot(width, !settled) == 0;
}

/* eval: append bag b of `feature`, just read, to `rereads` if it fails the check. */
HOTBED_HD void hotbed_eval_check_bag(
    const hotbed_step_view *s, uint64_t b, uint32_t feature, uint32_t width) {
    bool settled = hotbed_eval_bag_settled(s, b, feature, *s->eval.begun, width);
    if (!settled && hotbed_tile_rank(width) == 0)
        hotbed_eval_queue_reread(s, (uint32_t)b);
}

/* Pooled output of bag b, checked in eval. */
HOTBED_HD void hotbed_forward_bag_checked(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride, uint32_t width) {
    hotbed_forward_bag(s, b, output, stride, width);
    if (s->eval.on != 0)
        hotbed_eval_check_bag(s, b, (uint32_t)(b / s->batch.size), width);
}

/* Search for key number i of table t until a search is completed within one epoch. Rows that an
 * external store has returned cannot change. */
HOTBED_HD uint64_t
hotbed_eval_search(const hotbed_step_view *s, uint32_t t, uint32_t i, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[t];
    const uint64_t key = s->batch.keys[i], old = s->unique.slots[i];
    if (table->tiers == HOTBED_TIERS_EXTERNAL && old != HOTBED_SLOT_NONE &&
        old >= s->storage.index_slots)
        return old;
    const uint32_t looks = hotbed_table_moves(table) ? 3 : 1;
    for (uint32_t look = 0; look < looks; look++) {
        uint64_t slot = hotbed_index_find(
            s->storage.index, look == 1 ? table->lower : hotbed_table_range(table, key), key,
            width);
        bool holds =
            slot != HOTBED_SLOT_NONE && (look != 1 || hotbed_eval_holds(s, table, key, slot));
        if (hotbed_tile_ballot(width, !holds) == 0)
            return slot;
    }
    return HOTBED_SLOT_NONE;
}

/* Read key or bag rereads[n] again, until the check passes. */
HOTBED_HD void hotbed_eval_again(
    const hotbed_step_view *s, uint32_t n, void *output, uint64_t stride, uint32_t width) {
    const uint32_t item = s->eval.rereads[n];
    const bool pooled = s->storage.pooling != HOTBED_POOL_NONE;
    const uint32_t feature = pooled ? item / s->batch.size : 0;
    const uint32_t t = pooled ? s->storage.feature_tables[feature] : hotbed_table_of_key(s, item);
    hotbed_bag bag = {item, item + 1, true};
    if (pooled)
        bag = hotbed_bag_at(s, item, feature);
    for (bool settled = false; !settled;) {
        const uint64_t epoch = hotbed_tile_shuffle_u64(width, hotbed_eval_epoch(s), 0);
        hotbed_tile_keys keys = hotbed_keys_from(item, 1, epoch, width);
        for (uint32_t i = bag.begin; i < bag.end; i++) {
            uint64_t slot = hotbed_eval_search(s, t, i, width);
            hotbed_tile_sync(width);
            if (hotbed_tile_rank(width) == 0)
                s->unique.slots[i] = slot;
        }
        hotbed_fence(); /* rows are read after their keys */
        hotbed_tile_sync(width);
        if (pooled) {
            hotbed_forward_bag(s, item, output, stride, width);
            settled = hotbed_eval_bag_settled(s, item, feature, epoch, width);
        } else {
            hotbed_forward_found(s, &keys, t, s->unique.slots[item], false, output, stride, width);
            settled = keys.again == 0;
        }
    }
}

#endif
