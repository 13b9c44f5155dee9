/* storage/lookup_core.h - from keys to output rows: find or place each unique key, then read and pool. */
#ifndef HOTBED_STORAGE_LOOKUP_CORE_H
#define HOTBED_STORAGE_LOOKUP_CORE_H

#include "base/fault.h"
#include "storage/score_core.h"
#include "storage/step_core.h"

/* First key of feature f as the batch's offsets say, and whether that can be. */
HOTBED_HD uint64_t hotbed_feature_start(const hotbed_step_view *s, uint32_t f, bool *good) {
    if (s->offsets == NULL)
        return (uint64_t)f * s->batch_size;
    int64_t start = s->offsets[(uint64_t)f * s->batch_size];
    int64_t before = f == 0 ? 0 : s->offsets[(uint64_t)(f - 1) * s->batch_size];
    *good = start >= before && (uint64_t)start <= s->bound && (f > 0 || start == 0);
    return (uint64_t)start;
}

/* --- find, then place --------------------------------------------------------------------------- */

/* Whether a static table has the key; a fault otherwise. */
HOTBED_HD bool hotbed_static_has(const hotbed_step_view *s, uint32_t t, uint64_t key) {
    uint64_t capacity = s->tables[t].capacity;
    if (key < capacity)
        return true;
    hotbed_fault_latch(s->faults, HOTBED_ERR_RANGE, HOTBED_FAULT_KEY_RANGE, t, key, capacity);
    return false;
}

/* The slot of a key of a static table without index: its row, or HOTBED_SLOT_NONE and a fault. */
HOTBED_HD uint64_t hotbed_static_slot(const hotbed_step_view *s, uint32_t t, uint64_t key) {
    return hotbed_static_has(s, t, key) ? s->tables[t].first_slot + key : HOTBED_SLOT_NONE;
}

/* One lane: unique u of table t has `slot`: score and pin it, or note that the table lacks it. */
HOTBED_HD void hotbed_found_unique(
    const hotbed_step_view *s, uint32_t t, uint32_t u, uint64_t slot) {
    const hotbed_table_view *table = &s->tables[t];
    if (!hotbed_table_indexed(table)) {
        slot = hotbed_static_slot(s, t, s->unique_keys[u]);
    } else if (slot != HOTBED_SLOT_NONE) {
        hotbed_index_touch_found(
            s->index, slot, hotbed_unique_rule(table), hotbed_unique_score(s, table, t, u), 1);
        if (table->tiers == HOTBED_TIERS_EXTERNAL)
            hotbed_index_mark(s->index, slot); /* its score is news to the store */
        hotbed_unique_seen(s, table, slot);
    } else if (table->is_static == 0 || hotbed_static_has(s, t, s->unique_keys[u])) {
        s->missing[hotbed_add_relaxed_u32(s->num_missing, 1)] = u;
    }
    if (slot == HOTBED_SLOT_NONE && table->is_static != 0 && s->unique_keys[u] >= table->capacity)
        hotbed_add_relaxed_u64(&s->tallies[t].refused, 1);
    s->slots[u] = slot;
}

/* Slots of uniques first .. first+count-1, at most as many as the tile has lanes, scored and pinned; those
 * that their tables do not have are noted in `missing`.  All keys of a batch are looked for before the
 * first is placed: one that is present is pinned by then, so the batch does not evict its own rows. */
HOTBED_HD void hotbed_find_uniques(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    bool mine = lane < count;
    uint32_t u = first + (mine ? lane : 0);
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, u);
    const hotbed_table_view *table = &s->tables[t];
    uint64_t key = s->unique_keys[u];
    bool hashed = mine && hotbed_table_indexed(table);
    uint64_t slot = hotbed_index_find_each(
        s->index, hotbed_table_range(table, key), key, hotbed_tile_ballot(width, hashed), width);
    if (mine)
        hotbed_found_unique(s, t, u, slot);
}

/* Claim a slot for a unique of `missing`, initialise the row and publish the key. */
HOTBED_HD void hotbed_place_unique(const hotbed_step_view *s, uint32_t u, uint32_t width) {
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, u);
    const hotbed_table_view *table = &s->tables[t];
    hotbed_tally *tally = &s->tallies[t];
    uint64_t key = s->unique_keys[u];
    uint64_t meta = hotbed_meta_new(hotbed_unique_score(s, table, t, u), 1);
    if (table->probation != 0)
        meta |= HOTBED_META_PROBATION;
    hotbed_index_result r =
        hotbed_index_place(s->index, hotbed_table_range(table, key), key, meta, width);
    if (hotbed_tile_rank(width) == 0) {
        s->slots[u] = r.slot;
        if (r.outcome == HOTBED_INDEX_EVICTED)
            hotbed_add_relaxed_u64(&tally->evictions, 1);
        hotbed_add_relaxed_u64(r.slot == HOTBED_SLOT_NONE ? &tally->refused : &tally->inserts, 1);
        if (r.slot == HOTBED_SLOT_NONE)
            hotbed_fault_latch(
                s->faults, HOTBED_ERR_FULL,
                r.outcome == HOTBED_INDEX_PINNED ? HOTBED_FAULT_ALL_PINNED
                                                 : HOTBED_FAULT_TABLE_FULL,
                t, key, hotbed_table_slots(s->index, table));
    }
    if (r.slot == HOTBED_SLOT_NONE)
        return;
    if (hotbed_tile_rank(width) == 0)
        hotbed_unique_seen(s, table, r.slot);
    hotbed_row_init(table, hotbed_row_at(s->index, table, r.slot), key, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        hotbed_index_publish(s->index, r.slot, key);
}

/* eval: each lane's slot, of its own key number i of table t; `mine`: whether it has one. */
HOTBED_HD uint64_t
hotbed_find_key(const hotbed_step_view *s, uint32_t i, uint32_t t, bool mine, uint32_t width) {
    const hotbed_table_view *table = &s->tables[t];
    uint64_t key = s->keys[i];
    bool hashed = mine && hotbed_table_indexed(table);
    uint64_t slot = hotbed_index_find_each(
        s->index, hotbed_table_range(table, key), key, hotbed_tile_ballot(width, hashed), width);
    /* The upper tier again: a prefetch beside it may have brought the row there meanwhile. */
    for (uint32_t tier = 0; tier < 2; tier++) {
        bool wanted = hashed && slot == HOTBED_SLOT_NONE && hotbed_table_moves(table);
        uint32_t lanes = hotbed_tile_ballot(width, wanted);
        if (lanes == 0)
            break;
        uint64_t other = hotbed_index_find_each(
            s->index, tier == 0 ? table->lower : table->range, key, lanes, width);
        slot = slot == HOTBED_SLOT_NONE ? other : slot;
    }
    if (mine && !hashed)
        return hotbed_static_slot(s, t, key);
    if (mine && slot == HOTBED_SLOT_NONE && table->is_static != 0)
        (void)hotbed_static_has(s, t, key);
    return slot;
}

HOTBED_HD uint32_t hotbed_table_of_key(const hotbed_step_view *s, uint32_t i) {
    return s->feature_tables[hotbed_part_of(s->feature_starts, s->num_features, i)];
}

/* eval: slots of keys first .. first+count-1, at most as many as the tile has lanes. */
HOTBED_HD void hotbed_find_keys(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    bool mine = lane < count;
    uint32_t i = first + (mine ? lane : 0);
    uint64_t slot = hotbed_find_key(s, i, hotbed_table_of_key(s, i), mine, width);
    if (mine)
        s->slots[i] = slot;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* eval: elements e .. of the row of a key that has left its slot.  A row that goes down has arrived before
 * its slot is given away, one that comes up likewise, so it is in one of the tiers; looking for it twice
 * finds it unless it moved in between, each time by another prefetch. */
HOTBED_HD hotbed_f32x4 hotbed_forward_moved4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t key, uint32_t e) {
    for (uint32_t look = 0; look < 4; look++) {
        hotbed_index_range range = look % 2 == 0 ? table->lower : table->range;
        uint64_t slot = hotbed_index_find(s->index, range, key, 1);
        if (slot == HOTBED_SLOT_NONE)
            continue;
        hotbed_f32x4 row = hotbed_load4(
            table->dtype, hotbed_row_at(s->index, table, slot), e, hotbed_count4(table->dim, e));
        hotbed_fence();
        if (hotbed_load_acquire_u64(hotbed_index_key(s->index, slot)) == key)
            return row;
    }
    return hotbed_f32x4_of(table->eval_value);
}

/* Elements e .. of the row behind key number i. */
HOTBED_HD hotbed_f32x4 hotbed_forward_row4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i, uint64_t slot,
    uint32_t e) {
    if (slot != HOTBED_SLOT_NONE) {
        hotbed_f32x4 row = hotbed_load4(
            table->dtype, hotbed_row_at(s->index, table, slot), e, hotbed_count4(table->dim, e));
        if (s->eval == 0 || table->range.evicts == 0 || slot >= s->index_slots)
            return row;
        /* eval does not pin: a prefetch beside it may have given the slot to another key. */
        hotbed_fence();
        if (hotbed_load_acquire_u64(hotbed_index_key(s->index, slot)) == s->keys[i])
            return row;
        if (hotbed_table_moves(table))
            return hotbed_forward_moved4(s, table, s->keys[i], e);
    }
    if (s->eval != 0)
        return hotbed_f32x4_of(table->eval_value);
    return hotbed_row_absent4(table, s->keys[i], e);
}

HOTBED_HD uint64_t hotbed_forward_slot(const hotbed_step_view *s, uint32_t i) {
    return s->slots[s->inverse == NULL ? i : s->inverse[i]];
}

enum { HOTBED_FORWARD_AHEAD = 4 }; /* rows that are read before the first of them is written */

/* The keys of a tile, at most as many as it has lanes: lane k has key i, which is first + k, or, where `ordered`, any.
 * Lanes past the last have the last's. */
typedef struct hotbed_tile_keys {
    uint32_t first, count, i;
    uint32_t put_off; /* a bit each: those that are not forwarded now */
    bool ordered;
} hotbed_tile_keys;

HOTBED_HD uint32_t hotbed_tile_key(const hotbed_tile_keys *keys, uint32_t k, uint32_t width) {
    return keys->ordered ? hotbed_tile_shuffle_u32(width, keys->i, k) : keys->first + k;
}

/* Sequence output of f32 rows of one table, all present, `dim` a multiple of 4 and everything aligned:
 * nothing is left to decide a row.  Lane k has the address of row k. */
HOTBED_HD void hotbed_forward_plain(
    const float *row, uint32_t dim, const hotbed_tile_keys *keys, float *output, uint64_t stride,
    uint32_t width) {
    const uint32_t count = keys->count;
    for (uint32_t begin = 0; begin < dim; begin += 4 * width) {
        uint32_t e = begin + 4 * hotbed_tile_rank(width);
        uint32_t from = e < dim ? e : 0; /* every lane reads something */
        for (uint32_t r = 0; r < count; r += HOTBED_FORWARD_AHEAD) {
            hotbed_f32x4 v[HOTBED_FORWARD_AHEAD];
            uint32_t to[HOTBED_FORWARD_AHEAD];
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++) {
                const uint32_t one = r + k < count ? r + k : r;
                const float *at = (const float *)(uintptr_t)hotbed_tile_shuffle_u64(
                    width, (uint64_t)(uintptr_t)row, one);
                v[k] = *(const hotbed_f32x4 *)(const void *)(at + from);
                to[k] = keys->ordered ? hotbed_tile_shuffle_u32(width, keys->i, one) : r + k;
            }
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++)
                if (r + k < count && e < dim && (keys->put_off >> (r + k) & 1U) == 0)
                    hotbed_store_once(output + to[k] * stride + e, v[k]);
        }
    }
}

/* eval: which of the rows of a tile's keys were read from slots that have been given to other keys, perhaps before all of
 * it was read; a bit each. */
HOTBED_HD uint32_t hotbed_forward_moved(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint64_t slot, uint32_t width) {
    hotbed_fence();
    hotbed_tile_sync(width); /* what all lanes have read comes before what this one looks at */
    bool moved = hotbed_tile_rank(width) < keys->count && slot < s->index_slots &&
                 hotbed_load_acquire_u64(hotbed_index_key(s->index, slot)) != s->keys[keys->i];
    return hotbed_tile_ballot(width, moved);
}

/* Sequence output of a tile's keys.  Each lane has the table and slot of its key; all lanes copy each row. */
HOTBED_HD void hotbed_forward_found(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint32_t t, uint64_t slot,
    void *output, uint64_t stride, uint32_t width) {
    const hotbed_table_view *table = &s->tables[hotbed_tile_shuffle_u32(width, t, 0)];
    bool plain = table == &s->tables[t] && slot != HOTBED_SLOT_NONE && table->dtype == HOTBED_F32 &&
                 s->output_dtype == HOTBED_F32 && table->dim % 4 == 0 && stride % 4 == 0 &&
                 ((uintptr_t)output & 15U) == 0;
    uint32_t todo = ~keys->put_off; /* a bit a row */
    if (hotbed_tile_ballot(width, !plain) == 0) {
        uint64_t from = slot;
        if (keys->put_off != 0) { /* not read: another row of the tile stands in for it */
            uint64_t other = hotbed_tile_shuffle_u64(width, slot, hotbed_lowest_bit(todo));
            from = (keys->put_off >> hotbed_tile_rank(width) & 1U) != 0 ? other : slot;
        }
        hotbed_forward_plain(
            (const float *)(const void *)hotbed_row_at(s->index, table, from), table->dim, keys,
            (float *)output + (keys->ordered ? 0 : keys->first * stride), stride, width);
        if (s->eval == 0 || table->range.evicts == 0)
            return;
        todo &= hotbed_forward_moved(s, keys, slot, width);
    }
    for (uint32_t r = 0; r < keys->count; r++) {
        if ((todo >> r & 1U) == 0)
            continue;
        uint64_t slot_r = hotbed_tile_shuffle_u64(width, slot, r);
        uint32_t i = hotbed_tile_key(keys, r, width);
        table = &s->tables[hotbed_tile_shuffle_u32(width, t, r)];
        for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width)
            hotbed_store4(
                s->output_dtype, output, i * stride + e, hotbed_count4(table->dim, e),
                hotbed_forward_row4(s, table, i, slot_r, e));
    }
}

/* Keys first .. first+count-1. */
HOTBED_HD hotbed_tile_keys hotbed_keys_from(uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    hotbed_tile_keys keys = {first, count, first + (lane < count ? lane : count - 1), 0, false};
    return keys;
}

/* The same of a ticket, or of slots that hotbed_find_keys() found. */
HOTBED_HD void hotbed_forward_rows(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, width);
    hotbed_forward_found(
        s, &keys, hotbed_table_of_key(s, keys.i), hotbed_forward_slot(s, keys.i), output, stride,
        width);
}

/* eval: which of a tile's keys have their rows in the lower tier and are put off, a bit each: all of them, if the last eval
 * had so many that it pays to read them by address, else none.  Their slots are kept, and they are counted. */
HOTBED_HD uint32_t hotbed_put_off(
    const hotbed_step_view *s, const hotbed_tile_keys *keys, uint32_t t, uint64_t slot,
    uint32_t width) {
    const hotbed_table_view *table = &s->tables[t];
    bool lead = hotbed_tile_rank(width) == 0, mine = hotbed_tile_rank(width) < keys->count;
    bool below = mine && hotbed_slot_below(table, slot);
    uint32_t lanes = hotbed_tile_ballot(width, below);
    uint32_t last = lead && lanes != 0 ? hotbed_load_relaxed_u32(s->below) : 0;
    bool put_off = hotbed_tile_shuffle_u32(width, last, 0) >= s->below_from;
    if (mine)
        s->slots[keys->i] = put_off && below ? slot : HOTBED_SLOT_NONE;
    if (put_off && below)
        hotbed_add_relaxed_u32(&s->move_bins[1 + hotbed_lower_bin(s->index, table, slot)], 1);
    if (!put_off && lead && lanes != 0)
        hotbed_add_relaxed_u32(&s->move_bins[HOTBED_MOVE_BINS + 1], hotbed_bits_set(lanes));
    return put_off ? lanes : 0;
}

/* The same in eval, found here by tiles of `find_width` lanes; `tiers`: of tables that may have a lower tier. */
HOTBED_HD void hotbed_eval_rows(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    bool tiers, uint32_t find_width, uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, width);
    uint32_t t = hotbed_table_of_key(s, keys.i);
    uint64_t slot = hotbed_find_key(s, keys.i, t, true, find_width);
    if (tiers)
        keys.put_off = hotbed_put_off(s, &keys, t, slot, width);
    if (hotbed_bits_set(keys.put_off) < count)
        hotbed_forward_found(s, &keys, t, slot, output, stride, width);
}

/* eval: key number i, if it was put off, into its place of `move_order`. */
HOTBED_HD void hotbed_order_key(const hotbed_step_view *s, uint32_t i) {
    uint64_t slot = s->slots[i];
    if (slot == HOTBED_SLOT_NONE)
        return;
    uint32_t bin = hotbed_lower_bin(s->index, &s->tables[hotbed_table_of_key(s, i)], slot);
    s->move_order[hotbed_add_relaxed_u32(&s->move_bins[1 + bin], 1)] = i;
}

/* eval: rows of keys move_order[first] .. move_order[first+count-1]. */
HOTBED_HD void hotbed_eval_below(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    uint32_t width) {
    hotbed_tile_keys keys = hotbed_keys_from(first, count, width);
    keys.i = s->move_order[keys.i];
    keys.ordered = true;
    hotbed_forward_found(
        s, &keys, hotbed_table_of_key(s, keys.i), s->slots[keys.i], output, stride, width);
}

/* Pooled output: bag b, summed in bag order. */
HOTBED_HD void hotbed_forward_bag(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride, uint32_t width) {
    uint32_t feature = (uint32_t)(b / s->batch_size);
    uint64_t sample = b - (uint64_t)feature * s->batch_size;
    const hotbed_table_view *table = &s->tables[s->feature_tables[feature]];
    hotbed_bag bag = hotbed_bag_at(s, b, feature);
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
        hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
        for (uint32_t i = bag.begin; i < bag.end; i++) {
            hotbed_f32x4 row = hotbed_forward_row4(s, table, i, hotbed_forward_slot(s, i), e);
            sum = hotbed_add4(sum, s->weights == NULL ? row : hotbed_scale4(row, s->weights[i]));
        }
        if (s->pooling == HOTBED_POOL_MEAN && bag.end > bag.begin) {
            float n = (float)(bag.end - bag.begin);
            sum.x = sum.x / n;
            sum.y = sum.y / n;
            sum.z = sum.z / n;
            sum.w = sum.w / n;
        }
        hotbed_store4(
            s->output_dtype, output, sample * stride + s->columns[feature] + e,
            hotbed_count4(table->dim, e), sum);
    }
}

#endif
