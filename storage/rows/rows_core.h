/* storage/rows/rows_core.h - one row of a call by key or slot: get, set, erase, and copying its
 * parts. */
#pragma once

#include "base/fault.h"
#include "storage/index/index_call_core.h"
#include "storage/index/index_place_core.h"
#include "storage/step/distinct_core.h"
#include "storage/step/row_core.h"
#include "storage/step/score_core.h"
#include "storage/step/step_core.h"

/* hotbed_rows for kernels: dense arrays; NULL parts are skipped. */
typedef struct hotbed_rows_view {
    uint8_t *weights;   /* [n, dim] of the table's dtype */
    uint8_t *states[2]; /* [n, state_bytes] each */
    uint64_t *scores;   /* [n] */
    uint64_t *times;    /* [n]; only for tables that keep times */
} hotbed_rows_view;

/* Copy `bytes` with all lanes of the tile. */
HOTBED_HD void hotbed_copy_part(uint8_t *to, const uint8_t *from, uint32_t bytes, uint32_t width) {
    const uintptr_t all = (uintptr_t)to | (uintptr_t)from | bytes;
    const uint32_t lane = hotbed_tile_rank(width);
    if (all % 4 == 0)
        for (uint32_t at = 4 * lane; at < bytes; at += 4 * width)
            *(uint32_t *)(void *)(to + at) = *(const uint32_t *)(const void *)(from + at);
    else if (all % 2 == 0)
        for (uint32_t at = 2 * lane; at < bytes; at += 2 * width)
            *(uint16_t *)(void *)(to + at) = *(const uint16_t *)(const void *)(from + at);
    else
        for (uint32_t at = lane; at < bytes; at += width)
            to[at] = from[at];
}

/* Copy the row at `row` to row i of `rows`. */
HOTBED_HD_LARGE void hotbed_row_get(
    const hotbed_table_view *table, const uint8_t *row, hotbed_rows_view rows, uint64_t i,
    uint32_t width) {
    const uint32_t bytes = hotbed_weights_bytes(table->dtype, table->dim);
    if (rows.weights != NULL)
        hotbed_copy_part(rows.weights + i * bytes, row, bytes, width);
    for (uint32_t s = 0; s < table->states; s++)
        if (rows.states[s] != NULL)
            hotbed_copy_part(
                rows.states[s] + i * table->state_bytes[s], row + table->state_offset[s],
                table->state_bytes[s], width);
}

/* Copy row i of `rows` to the row at `row`; parts that are NULL stay unchanged. */
HOTBED_HD_LARGE void hotbed_row_set(
    const hotbed_table_view *table, uint8_t *row, hotbed_rows_view rows, uint64_t i,
    uint32_t width) {
    const uint32_t bytes = hotbed_weights_bytes(table->dtype, table->dim);
    if (rows.weights != NULL)
        hotbed_copy_part(row, rows.weights + i * bytes, bytes, width);
    for (uint32_t s = 0; s < table->states; s++)
        if (rows.states[s] != NULL)
            hotbed_copy_part(
                row + table->state_offset[s], rows.states[s] + i * table->state_bytes[s],
                table->state_bytes[s], width);
}

/* Initialize the parts of a new row that `rows` does not have. */
HOTBED_HD_LARGE void hotbed_row_init_rest(
    const hotbed_table_view *table, uint8_t *row, hotbed_rows_view rows, uint64_t key,
    uint32_t width) {
    if (rows.weights == NULL)
        hotbed_row_init_weights(table, row, key, width);
    for (uint32_t s = 0; s < table->states; s++)
        if (rows.states[s] == NULL)
            hotbed_row_init_state(table, row, s, width);
}

/* Arguments of the calls by key or slot; see storage/rows/rows_kernels.h. */
typedef struct hotbed_rows_args {
    hotbed_table_view table;
    hotbed_index_view index;
    const hotbed_clock *clock; /* these three give scores to keys that set() inserts without one */
    hotbed_timer *timer;       /* NULL if no table has timestamps */
    const uint64_t *custom_scores; /* [num_tables] */
    hotbed_fault *faults;
    const uint64_t *keys; /* [n]; NULL: key number i is i */
    hotbed_rows_view rows;
    uint8_t *flags; /* [n] found or erased; or NULL */
    uint64_t n;
    hotbed_tally *tally;     /* of the table */
    hotbed_tracker *tracker; /* NULL if the table does not track changes */
    uint32_t table_number;   /* for fault messages */
    /* set(): keys of the call may evict each other, and a key without a slot is no fault */
    uint32_t offered;
    uint64_t *refused; /* [n + 1] set(): the number of keys without a slot, then which; or NULL */
    /* set(), count(): see hotbed_distinct_args; NULL: the caller knows that keys are distinct */
    const uint32_t *twice;
} hotbed_rows_args;

/* Whether the call has a key twice, and so must set nothing. */
HOTBED_HD bool hotbed_rows_barred(const hotbed_rows_args *a) {
    return a->twice != NULL && *a->twice != HOTBED_DISTINCT_NONE;
}

HOTBED_HD uint64_t hotbed_rows_key(const hotbed_rows_args *a, uint64_t i) {
    return a->keys == NULL ? i : a->keys[i];
}

HOTBED_HD uint64_t hotbed_rows_find(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t key = hotbed_rows_key(a, i);
    if (!hotbed_table_indexed(&a->table))
        return key < a->table.capacity ? a->table.first_slot + key : HOTBED_SLOT_NONE;
    uint64_t slot = hotbed_index_find(a->index, hotbed_table_range(&a->table, key), key, width);
    return slot == HOTBED_SLOT_NONE && hotbed_table_moves(&a->table)
               ? hotbed_index_find(a->index, a->table.lower, key, width)
               : slot;
}

/* The slot with number `number` of a table. Numbers run through the upper tier, the lower tier and the
 * segments, in this order. */
HOTBED_HD uint64_t
hotbed_numbered_slot(hotbed_index_view index, const hotbed_table_view *table, uint64_t number) {
    if (number < table->slots)
        return table->first_slot + number;
    number -= table->slots;
    if (number < table->lower_slots)
        return table->lower_first + number;
    number -= table->lower_slots;
    hotbed_index_range range = hotbed_table_growing(table);
    for (uint32_t g = 0;; g++) {
        uint64_t slots = (uint64_t)hotbed_index_grown(index, range, g) * HOTBED_BUCKET_SLOTS;
        if (number < slots)
            return (uint64_t)(range.segment + g) << HOTBED_SEGMENT_SHIFT | number;
        number -= slots;
    }
}

/* Where to read the row of `slot`: with CACHE, the upper tier may have a newer copy. */
HOTBED_HD uint64_t
hotbed_newest_slot(hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (table->tiers != HOTBED_TIERS_CACHE ||
        (hotbed_load_relaxed_u64(hotbed_index_meta(index, slot)) & HOTBED_META_FLAGGED) == 0)
        return slot;
    uint64_t key = hotbed_load_relaxed_u64(hotbed_index_key(index, slot));
    uint64_t copy = hotbed_index_find(index, table->range, key, 1);
    return copy == HOTBED_SLOT_NONE ? slot : copy;
}

/* Copy out the row of key number i, which is in `slot`; HOTBED_SLOT_NONE: the key is missing. */
HOTBED_HD void hotbed_rows_get_slot(
    const hotbed_rows_args *a, uint64_t i, uint64_t slot, uint32_t width) {
    if (hotbed_tile_rank(width) == 0 && a->flags != NULL)
        a->flags[i] = slot != HOTBED_SLOT_NONE;
    if (slot == HOTBED_SLOT_NONE)
        return;
    hotbed_row_get(&a->table, hotbed_row_at(a->index, &a->table, slot), a->rows, i, width);
    if (hotbed_tile_rank(width) == 0 && a->rows.scores != NULL)
        a->rows.scores[i] =
            a->table.is_static != 0
                ? 0
                : hotbed_meta_score(hotbed_load_relaxed_u64(hotbed_index_meta(a->index, slot)));
    if (hotbed_tile_rank(width) == 0 && a->rows.times != NULL)
        a->rows.times[i] = hotbed_load_relaxed_u64(hotbed_table_time(a->index, &a->table, slot));
}

/* Copy out the row of key number i. */
HOTBED_HD void hotbed_rows_get(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    hotbed_rows_get_slot(a, i, hotbed_rows_find(a, i, width), width);
}

/* Score of keys that set() inserts without a given score. */
HOTBED_HD uint64_t hotbed_rows_score(const hotbed_rows_args *a) {
    switch (a->table.score) {
    case HOTBED_SCORE_TIMESTAMP:
        return a->timer->now;
    case HOTBED_SCORE_LFU:
    case HOTBED_SCORE_TIMESTAMP_LFU:
        return 1;
    case HOTBED_SCORE_CUSTOM:
        return a->custom_scores[a->table_number];
    default:
        return a->clock->prefetches;
    }
}

/* Score of key number i if set() inserts it. */
HOTBED_HD uint64_t hotbed_rows_new_score(const hotbed_rows_args *a, uint64_t i) {
    return a->rows.scores != NULL && a->table.is_static == 0 ? a->rows.scores[i]
                                                             : hotbed_rows_score(a);
}

/* Whether set() evicts in this table. If rows move between tiers, it evicts in the lower tier
 * only. */
HOTBED_HD bool hotbed_rows_evicts(const hotbed_table_view *table) {
    return (hotbed_table_moves(table) ? table->lower : table->range).evicts != 0;
}

/* Whether set() may evict the key in `slot`. */
HOTBED_HD bool hotbed_rows_contested(const hotbed_rows_args *a, uint64_t slot) {
    return hotbed_rows_evicts(&a->table) &&
           (!hotbed_table_moves(&a->table) || hotbed_slot_below(&a->table, slot));
}

/* The time of key number i: the given one, or the last prefetch's. */
HOTBED_HD uint64_t hotbed_rows_given_time(const hotbed_rows_args *a, uint64_t i) {
    const uint64_t time = a->rows.times == NULL ? a->timer->now : a->rows.times[i];
    return time < HOTBED_SCORE_MOST ? time : HOTBED_SCORE_MOST;
}

/* Which rows key number i may evict: in set_rows() any, in offer_rows() rows with a lower rank, or
 * with an equal rank and an older time. All lanes get the same limit, although clock and timer may
 * change meanwhile. */
HOTBED_HD hotbed_evict_limit hotbed_rows_limit(
    const hotbed_rows_args *a, uint64_t i, hotbed_index_range range, uint64_t meta,
    uint32_t width) {
    if (a->offered == 0)
        return hotbed_evict_any();
    const uint64_t time = range.times == NULL ? 0 : hotbed_rows_given_time(a, i);
    hotbed_evict_limit limit = {
        hotbed_tile_shuffle_u64(width, hotbed_meta_rank(meta), 0),
        hotbed_tile_shuffle_u64(width, time, 0)};
    return limit;
}

/* Claim a slot for key number i, which the table lacks. `pins` (0 or 1) are added if set() evicts.
 * If each row is in one tier only, free slots of the upper tier are used first. */
HOTBED_HD hotbed_index_result
hotbed_rows_claim(const hotbed_rows_args *a, uint64_t i, uint64_t pins, uint32_t width) {
    uint64_t key = hotbed_rows_key(a, i), score = hotbed_rows_new_score(a, i);
    hotbed_index_range range = hotbed_table_range(&a->table, key);
    if (a->table.tiers == HOTBED_TIERS_SCORE) {
        range.evicts = 0;
        hotbed_index_result r =
            hotbed_index_place(a->index, range, key, hotbed_meta_new(score, 0), width);
        if (r.slot != HOTBED_SLOT_NONE)
            return r;
    }
    if (hotbed_table_moves(&a->table))
        range = a->table.lower;
    if (range.evicts == 0)
        pins = 0;
    const uint64_t meta = hotbed_meta_new(score, pins);
    return hotbed_index_place_within(
        a->index, range, key, meta, hotbed_rows_limit(a, i, range, meta, width), width);
}

/* One lane: report that key number i got no slot. */
HOTBED_HD void hotbed_rows_refused(
    const hotbed_rows_args *a, uint64_t i, bool out_of_range, hotbed_index_outcome outcome) {
    if (out_of_range)
        hotbed_fault_latch(
            a->faults, HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, a->table_number,
            hotbed_rows_key(a, i), a->table.capacity);
    else
        hotbed_fault_latch(
            a->faults, HOTBED_ERR_FULL,
            outcome == HOTBED_INDEX_PINNED ? HOTBED_CAUSE_ALL_PINNED : HOTBED_CAUSE_TABLE_FULL,
            a->table_number, hotbed_rows_key(a, i), hotbed_table_slots(a->index, &a->table));
}

/* One lane: the time to store for key number i; the timer does not fall behind it. */
HOTBED_HD uint64_t hotbed_rows_time(const hotbed_rows_args *a, uint64_t i) {
    const uint64_t time = hotbed_rows_given_time(a, i);
    if (a->rows.times != NULL)
        hotbed_timer_raise(a->timer, time);
    return time;
}

/* One lane: store the time of key number i, if its table keeps times and the key is new or its time
 * is given. */
HOTBED_HD void hotbed_rows_set_time(
    const hotbed_rows_args *a, uint64_t i, uint64_t slot, bool is_new) {
    if (a->table.range.times != NULL && (a->rows.times != NULL || is_new))
        hotbed_store_relaxed_u64(
            hotbed_table_time(a->index, &a->table, slot), hotbed_rows_time(a, i));
}

/* Write row number i of the call to `slot`. Parts of a new row that the call does not give are
 * initialized. */
HOTBED_HD_LARGE void hotbed_rows_write(
    const hotbed_rows_args *a, uint64_t i, uint64_t slot, bool is_new, uint32_t width) {
    uint8_t *row = hotbed_row_at(a->index, &a->table, slot);
    if (hotbed_tile_rank(width) == 0) {
        hotbed_set_changed(a->index, &a->table, slot);
        hotbed_rows_set_time(a, i, slot, is_new);
        if (a->rows.scores != NULL && a->table.score == HOTBED_SCORE_TIMESTAMP)
            hotbed_timer_raise(a->timer, a->rows.scores[i]);
    }
    if (is_new)
        hotbed_row_init_rest(
            &a->table, row, a->rows, hotbed_row_key(&a->table, hotbed_rows_key(a, i)), width);
    hotbed_row_set(&a->table, row, a->rows, i, width);
    hotbed_tile_sync(width);
}

/* One lane: score key number i, which is in `slot`. With `hold` the slot is locked, and is pinned
 * until hotbed_rows_release(), so that no other key of the call evicts it. Slots that tickets have
 * pinned need no hold. */
HOTBED_HD void hotbed_rows_touch(const hotbed_rows_args *a, uint64_t i, uint64_t slot, bool hold) {
    uint64_t *meta = hotbed_index_meta(a->index, slot);
    if (a->rows.scores != NULL && a->table.is_static == 0)
        hotbed_index_touch_found(a->index, slot, HOTBED_SCORE_ASSIGN, a->rows.scores[i], 0);
    if (hold && hotbed_rows_contested(a, slot) &&
        (hotbed_load_relaxed_u64(meta) & HOTBED_META_PINS) == 0)
        hotbed_add_relaxed_u64(meta, HOTBED_META_LOCKED + HOTBED_META_PIN);
    if (hotbed_table_copies(&a->table) && slot < a->table.lower_first)
        hotbed_index_flag(a->index, slot);
}

/* Write the row of key number i to a claimed slot, and publish the key. */
HOTBED_HD void hotbed_rows_use(
    const hotbed_rows_args *a, uint64_t i, uint64_t slot, uint32_t width) {
    const uint64_t key = hotbed_rows_key(a, i);
    if (a->table.counter.buckets != 0) { /* admission counts only keys without a row */
        hotbed_index_view counters = {a->index.keys, a->index.metas, NULL};
        (void)hotbed_index_erase(counters, a->table.counter, key, width);
    }
    hotbed_rows_write(a, i, slot, true, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (a->offered == 0 && hotbed_rows_contested(a, slot)) /* held until hotbed_rows_release() */
        hotbed_store_release_u64(hotbed_index_key(a->index, slot), key);
    else
        hotbed_index_publish(a->index, slot, key);
}

/* Insert key number i, which the table lacks. */
HOTBED_HD_LARGE void hotbed_rows_insert(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    hotbed_index_result r = hotbed_rows_claim(a, i, a->offered == 0 ? 1 : 0, width);
    if (a->tracker != NULL && r.outcome == HOTBED_INDEX_EVICTED)
        hotbed_log_removed_one(a->tracker, &a->table, a->table_number, r.evicted_key, width);
    if (hotbed_tile_rank(width) == 0) {
        if (r.outcome == HOTBED_INDEX_EVICTED)
            hotbed_add_relaxed_u64(&a->tally->evictions, 1);
        if (r.slot == HOTBED_SLOT_NONE && a->refused != NULL)
            a->refused[1 + hotbed_add_relaxed_u64(a->refused, 1)] = i;
        else if (
            r.slot == HOTBED_SLOT_NONE && (a->offered == 0 || r.outcome != HOTBED_INDEX_PINNED))
            hotbed_rows_refused(a, i, false, r.outcome);
    }
    if (r.slot != HOTBED_SLOT_NONE)
        hotbed_rows_use(a, i, r.slot, width);
}

/* The passes of set(). Where it evicts, there are three, as in a prefetch: existing rows are
 * written and held before the first new key is placed, so a call does not evict its own keys. */
typedef enum hotbed_rows_pass {
    HOTBED_ROWS_SET = 0,     /* everything in one pass */
    HOTBED_ROWS_HOLD = 1,    /* existing keys */
    HOTBED_ROWS_PLACE = 2,   /* new keys */
    HOTBED_ROWS_RELEASE = 3, /* release the held slots */
} hotbed_rows_pass;

/* One lane: release a held slot. No slot is locked between calls, so a lock is this call's. */
HOTBED_HD void hotbed_rows_release(const hotbed_rows_args *a, uint64_t slot) {
    uint64_t *meta = hotbed_index_meta(a->index, slot);
    if ((hotbed_load_relaxed_u64(meta) & HOTBED_META_LOCKED) != 0)
        hotbed_add_release_u64(meta, (uint64_t)0 - HOTBED_META_LOCKED - HOTBED_META_PIN);
}

/* Insert or overwrite the row of key number i. */
HOTBED_HD void hotbed_rows_set(
    const hotbed_rows_args *a, uint64_t i, hotbed_rows_pass pass, uint32_t width) {
    if (a->table.is_static != 0 && hotbed_rows_key(a, i) >= a->table.capacity) {
        if (hotbed_tile_rank(width) == 0)
            hotbed_rows_refused(a, i, true, HOTBED_INDEX_FULL);
        return;
    }
    uint64_t slot = hotbed_rows_find(a, i, width);
    if (slot == HOTBED_SLOT_NONE) {
        if (pass == HOTBED_ROWS_SET || pass == HOTBED_ROWS_PLACE)
            hotbed_rows_insert(a, i, width);
        return;
    }
    if (pass == HOTBED_ROWS_RELEASE && hotbed_tile_rank(width) == 0)
        hotbed_rows_release(a, slot);
    if (pass == HOTBED_ROWS_RELEASE || pass == HOTBED_ROWS_PLACE)
        return;
    if (hotbed_table_indexed(&a->table) && hotbed_tile_rank(width) == 0)
        hotbed_rows_touch(a, i, slot, pass == HOTBED_ROWS_HOLD && a->offered == 0);
    hotbed_rows_write(a, i, slot, false, width);
}

/* Remove a key of any HASH table, unless it is pinned. Returns whether it was there and is gone. */
HOTBED_HD bool hotbed_rows_erase_key(const hotbed_rows_args *a, uint64_t key, uint32_t width) {
    uint64_t slot = hotbed_index_find(a->index, hotbed_table_range(&a->table, key), key, width);
    bool erased = true;
    if (slot != HOTBED_SLOT_NONE)
        erased = hotbed_index_vacate(a->index, hotbed_table_range(&a->table, key), slot, 0, width);
    bool below = slot == HOTBED_SLOT_NONE || a->table.tiers == HOTBED_TIERS_CACHE;
    if (erased && below && hotbed_table_moves(&a->table))
        erased = hotbed_index_erase(a->index, a->table.lower, key, width);
    else if (slot == HOTBED_SLOT_NONE)
        erased = false;
    if (a->tracker != NULL && erased)
        hotbed_log_removed_one(a->tracker, &a->table, a->table_number, key, width);
    return erased;
}

/* Remove key number i of a table with two tiers or with segments, or of one that tracks changes, unless
 * it is pinned. */
HOTBED_HD void hotbed_rows_erase(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    const bool erased = hotbed_rows_erase_key(a, a->keys[i], width);
    if (hotbed_tile_rank(width) == 0 && a->flags != NULL)
        a->flags[i] = erased;
}

/* Admission: insert the count rows.scores[i] of key number i, which has none. table.range is the
 * counter's. A full counter drops a low count. */
HOTBED_HD void hotbed_rows_count(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t key = a->keys[i], count = a->rows.scores[i];
    count = count < HOTBED_SCORE_MOST ? count : HOTBED_SCORE_MOST;
    hotbed_index_result r =
        hotbed_index_place(a->index, a->table.range, key, hotbed_meta_new(count, 0), width);
    if (r.slot != HOTBED_SLOT_NONE && hotbed_tile_rank(width) == 0)
        hotbed_index_publish(a->index, r.slot, key);
}

/* Arguments for a call on the index alone, for the HASH table of `a`. */
HOTBED_HD hotbed_index_args hotbed_rows_index(const hotbed_rows_args *a) {
    hotbed_index_args args;
    memset(&args, 0, sizeof args);
    args.index = a->index;
    args.range = a->table.range;
    args.faults = a->faults;
    args.keys = a->keys;
    args.outcomes = a->flags;
    args.n = a->n;
    return args;
}

/* The same, for `list`: write up to a->n keys and their scores. */
HOTBED_HD hotbed_index_args
hotbed_rows_export(const hotbed_rows_args *a, uint64_t *keys, uint64_t *scores, uint64_t *counts) {
    hotbed_index_args args = hotbed_rows_index(a);
    args.capacity = a->n;
    args.export_keys = keys;
    args.export_scores = scores;
    args.export_counts = counts;
    return args;
}
