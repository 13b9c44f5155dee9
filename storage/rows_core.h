/* storage/rows_core.h - one row of a call by key or slot: get, set, and its parts copied out or in. */
#ifndef HOTBED_STORAGE_ROWS_CORE_H
#define HOTBED_STORAGE_ROWS_CORE_H

#include "base/fault.h"
#include "storage/index_call_core.h"
#include "storage/row_core.h"
#include "storage/score_core.h"
#include "storage/step_core.h"

/* hotbed_rows as kernels see it: dense arrays, NULL parts are skipped. */
typedef struct hotbed_rows_view {
    uint8_t *weights; /* [n, dim] of the table's dtype */
    float *states[2]; /* [n, state_dim] */
    uint64_t *scores; /* [n] */
    uint64_t *times;  /* [n] of tables that have them */
} hotbed_rows_view;

/* Copy `count` elements of `size` bytes (2 or 4), the tile's lanes together. */
HOTBED_HD void hotbed_copy_part(
    uint8_t *to, const uint8_t *from, uint32_t count, uint32_t size, uint32_t width) {
    for (uint32_t e = hotbed_tile_rank(width); e < count; e += width) {
        if (size == 4)
            ((uint32_t *)(void *)to)[e] = ((const uint32_t *)(const void *)from)[e];
        else
            ((uint16_t *)(void *)to)[e] = ((const uint16_t *)(const void *)from)[e];
    }
}

/* Row i of `rows` from the row at `row`. */
HOTBED_HD void hotbed_row_get(
    const hotbed_table_view *table, const uint8_t *row, hotbed_rows_view rows, uint64_t i,
    uint32_t width) {
    uint32_t size = hotbed_dtype_size(table->dtype);
    if (rows.weights != NULL)
        hotbed_copy_part(rows.weights + i * table->dim * size, row, table->dim, size, width);
    for (uint32_t s = 0; s < table->states; s++)
        if (rows.states[s] != NULL)
            hotbed_copy_part(
                (uint8_t *)(rows.states[s] + i * table->state_dim), row + table->state_offset[s],
                table->state_dim, 4, width);
}

/* The row at `row` from row i of `rows`; parts that are NULL are left as they are. */
HOTBED_HD void hotbed_row_set(
    const hotbed_table_view *table, uint8_t *row, hotbed_rows_view rows, uint64_t i,
    uint32_t width) {
    uint32_t size = hotbed_dtype_size(table->dtype);
    if (rows.weights != NULL)
        hotbed_copy_part(row, rows.weights + i * table->dim * size, table->dim, size, width);
    for (uint32_t s = 0; s < table->states; s++)
        if (rows.states[s] != NULL)
            hotbed_copy_part(
                row + table->state_offset[s],
                (const uint8_t *)(rows.states[s] + i * table->state_dim), table->state_dim, 4,
                width);
}

/* What the calls by key or slot work on; see storage/rows_kernels.h. */
typedef struct hotbed_rows_args {
    hotbed_table_view table;
    hotbed_index_view index;
    const hotbed_clock *clock;     /* these three: scores of keys that set() inserts without one */
    hotbed_timer *timer;           /* NULL: no table has timestamps */
    const uint64_t *custom_scores; /* [num_tables] */
    hotbed_fault *faults;
    const uint64_t *keys; /* [n] */
    hotbed_rows_view rows;
    uint8_t *flags; /* [n] found or erased, or NULL */
    uint64_t n;
    uint32_t table_number; /* for faults */
    uint32_t unused;
} hotbed_rows_args;

HOTBED_HD uint64_t hotbed_rows_find(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t key = a->keys[i];
    if (a->table.is_static != 0)
        return key < a->table.capacity ? a->table.first_slot + key : HOTBED_SLOT_NONE;
    return hotbed_index_find(a->index, a->table.range, key, width);
}

/* Copy out the row of key number i. */
HOTBED_HD void hotbed_rows_get(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t slot = hotbed_rows_find(a, i, width);
    if (hotbed_tile_rank(width) == 0 && a->flags != NULL)
        a->flags[i] = slot != HOTBED_SLOT_NONE;
    if (slot == HOTBED_SLOT_NONE)
        return;
    hotbed_row_get(&a->table, hotbed_row_at(&a->table, slot), a->rows, i, width);
    if (hotbed_tile_rank(width) == 0 && a->rows.scores != NULL)
        a->rows.scores[i] = a->table.is_static != 0
                                ? 0
                                : hotbed_meta_score(hotbed_load_relaxed_u64(&a->index.metas[slot]));
    if (hotbed_tile_rank(width) == 0 && a->rows.times != NULL)
        a->rows.times[i] = hotbed_load_relaxed_u64(hotbed_index_time(a->table.range, slot));
}

/* The score of a key that set() inserts, where it gives none. */
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

/* Find or claim a slot for key number i of a HASH table.  In a table that evicts, one that is found is
 * locked: other keys of the call are looking for slots. */
HOTBED_HD hotbed_index_result
hotbed_rows_claim(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t key = a->keys[i];
    bool scored = a->rows.scores != NULL;
    hotbed_score_rule rule = scored ? HOTBED_SCORE_ASSIGN : HOTBED_SCORE_KEEP;
    uint64_t score = scored ? a->rows.scores[i] : hotbed_rows_score(a);
    if (scored && a->table.score == HOTBED_SCORE_TIMESTAMP && hotbed_tile_rank(width) == 0)
        hotbed_timer_note(a->timer, score);
    if (a->table.range.evicts == 0)
        return hotbed_index_claim(a->index, a->table.range, key, rule, score, 0, width);
    uint64_t slot = hotbed_index_find(a->index, a->table.range, key, width);
    if (slot != HOTBED_SLOT_NONE) {
        bool held = hotbed_tile_rank(width) == 0 && hotbed_index_lock(a->index, slot, key);
        if (held)
            hotbed_index_touch_found(a->index, slot, rule, score, 0);
        if (hotbed_tile_ballot(width, held) != 0) {
            hotbed_index_result result = {slot, 0, 0, HOTBED_INDEX_FOUND};
            return result;
        }
    }
    return hotbed_index_place(a->index, a->table.range, key, hotbed_meta_new(score, 0), width);
}

/* One lane: the time of key number i, where its table has times: the given one, or, of a new key, that of the
 * last prefetch. */
HOTBED_HD void hotbed_rows_set_time(
    const hotbed_rows_args *a, uint64_t i, uint64_t slot, bool is_new) {
    if (a->table.range.times == NULL || (a->rows.times == NULL && !is_new))
        return;
    uint64_t time = a->rows.times == NULL ? a->timer->now : a->rows.times[i];
    if (time > HOTBED_SCORE_MOST)
        time = HOTBED_SCORE_MOST;
    if (a->rows.times != NULL)
        hotbed_timer_note(a->timer, time);
    hotbed_store_relaxed_u64(hotbed_index_time(a->table.range, slot), time);
}

/* Insert or overwrite the row of key number i. */
HOTBED_HD void hotbed_rows_set(const hotbed_rows_args *a, uint64_t i, uint32_t width) {
    uint64_t key = a->keys[i];
    hotbed_index_result r = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FOUND};
    if (a->table.is_static != 0) {
        if (key < a->table.capacity)
            r.slot = a->table.first_slot + key;
    } else {
        r = hotbed_rows_claim(a, i, width);
    }
    if (r.slot == HOTBED_SLOT_NONE) {
        if (hotbed_tile_rank(width) != 0)
            return;
        if (a->table.is_static != 0)
            hotbed_fault_latch(
                a->faults, HOTBED_ERR_RANGE, HOTBED_FAULT_KEY_RANGE, a->table_number, key,
                a->table.capacity);
        else
            hotbed_fault_latch(
                a->faults, HOTBED_ERR_FULL,
                r.outcome == HOTBED_INDEX_PINNED ? HOTBED_FAULT_ALL_PINNED
                                                 : HOTBED_FAULT_TABLE_FULL,
                a->table_number, key, a->table.slots);
        return;
    }
    uint8_t *row = hotbed_row_at(&a->table, r.slot);
    if (hotbed_tile_rank(width) == 0)
        hotbed_rows_set_time(a, i, r.slot, r.outcome != HOTBED_INDEX_FOUND);
    if (r.outcome != HOTBED_INDEX_FOUND) {
        hotbed_row_init(&a->table, row, key, width);
        hotbed_tile_sync(width);
    }
    hotbed_row_set(&a->table, row, a->rows, i, width);
    bool locked = r.outcome == HOTBED_INDEX_FOUND && a->table.range.evicts != 0;
    if (r.outcome == HOTBED_INDEX_FOUND && !locked)
        return;
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (locked)
        hotbed_index_unlock(a->index, r.slot);
    else
        hotbed_index_publish(a->index, r.slot, key);
}

/* A call on the index alone, for the HASH table of `a`. */
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

/* Its keys and scores, for `list`. */
HOTBED_HD hotbed_index_args
hotbed_rows_export(const hotbed_rows_args *a, uint64_t *keys, uint64_t *scores, uint64_t *counts) {
    hotbed_index_args args = hotbed_rows_index(a);
    args.capacity = a->table.slots;
    args.export_keys = keys;
    args.export_scores = scores;
    args.export_counts = counts;
    return args;
}

#endif
