/* storage/rows/changes_core.h - positions in the record of changes, and the keys that have left. */
#pragma once

#include "hotbed/changes.h"
#include "storage/rows/rows_core.h"

typedef struct hotbed_position_args {
    hotbed_tracker *tracker;
    hotbed_change_position *position;
    const hotbed_table_view *tables; /* [num_tables] */
    hotbed_index_view index;
    uint32_t num_tables;
} hotbed_position_args;

/* Give the rows of a tier or segment whose bits are set the present epoch, and clear the bits. Each of
 * `workers` callers does a share. */
HOTBED_HD void hotbed_settle_slots(
    uint32_t *epochs, uint64_t slots, uint32_t epoch, uint64_t worker, uint64_t workers) {
    uint32_t *recent = epochs + slots;
    for (uint64_t w = worker; w < hotbed_recent_words(slots); w += workers) {
        uint32_t bits = recent[w];
        if (bits == 0)
            continue;
        recent[w] = 0;
        for (; bits != 0; bits &= bits - 1)
            epochs[w * 32 + hotbed_lowest_bit(bits)] = epoch;
    }
}

/* The same for all tables. */
HOTBED_HD void hotbed_position_settle(
    const hotbed_position_args *a, uint64_t worker, uint64_t workers) {
    const uint32_t epoch = (uint32_t)a->tracker->epoch;
    for (uint32_t t = 0; t < a->num_tables; t++) {
        const hotbed_table_view *table = &a->tables[t];
        if (table->changed == NULL)
            continue;
        hotbed_settle_slots(table->changed, table->slots, epoch, worker, workers);
        if (table->lower_slots > 0)
            hotbed_settle_slots(table->lower_changed, table->lower_slots, epoch, worker, workers);
        const hotbed_index_range range = hotbed_table_growing(table);
        for (uint32_t g = 0; range.segment != 0 && hotbed_index_grown(a->index, range, g) != 0; g++)
            hotbed_settle_slots(
                a->index.segments[range.segment + g].changed,
                hotbed_index_grown(a->index, range, g) * (uint64_t)HOTBED_BUCKET_SLOTS, epoch,
                worker, workers);
    }
}

/* One lane, after hotbed_position_settle(): take the position, which begins an epoch. */
HOTBED_HD void hotbed_position_take(hotbed_tracker *tracker, hotbed_change_position *position) {
    position->storage = tracker->storage;
    position->epoch = ++tracker->epoch;
    position->removed = tracker->removed;
}

/* One lane: all earlier positions have lost more keys than any log holds. */
HOTBED_HD void hotbed_position_lose(hotbed_tracker *tracker) {
    tracker->removed += (uint64_t)1 << 48;
}

typedef struct hotbed_removed_args {
    hotbed_rows_args rows; /* only the table, its number, the index and the tracker are set */
    const hotbed_change_position *since, *until;
    uint64_t *keys; /* [capacity] */
    uint64_t capacity;
    uint64_t *count, *lost;
} hotbed_removed_args;

/* How many changed rows of an external store the host has forgotten, if some were changed after
 * `since`. */
HOTBED_HD uint64_t hotbed_removed_forgotten(const hotbed_removed_args *a) {
    const hotbed_forgotten *forgotten = a->rows.tracker->forgotten;
    if (forgotten == NULL || a->since->epoch == 0 ||
        a->since->epoch > hotbed_load_relaxed_u64(&forgotten->epoch))
        return 0;
    return hotbed_load_relaxed_u64(&forgotten->keys);
}

/* How many keys between the positions are no longer known. */
HOTBED_HD uint64_t hotbed_removed_lost(const hotbed_removed_args *a) {
    const hotbed_tracker *tracker = a->rows.tracker;
    if (a->since->storage != tracker->storage && a->since->epoch != 0)
        return UINT64_MAX;
    const uint64_t all = tracker->removed - a->since->removed;
    if (all >> 47 != 0)
        return UINT64_MAX;
    return (all <= tracker->capacity ? 0 : all - tracker->capacity) + hotbed_removed_forgotten(a);
}

/* One lane: write what the caller gets besides keys. */
HOTBED_HD void hotbed_removed_begin(const hotbed_removed_args *a) {
    *a->lost = hotbed_removed_lost(a);
    *a->count = 0;
}

/* How many keys of the log to look at; 0 if some are lost. Positions of other storages, or in the wrong
 * order, are any distance apart. */
HOTBED_HD uint64_t hotbed_removed_items(const hotbed_removed_args *a) {
    const uint64_t n = a->until->removed - a->since->removed;
    return n > a->rows.tracker->capacity || hotbed_removed_lost(a) != 0 ? 0 : n;
}

/* Key number i of the log after `since`. */
HOTBED_HD void hotbed_removed_key(const hotbed_removed_args *a, uint64_t i) {
    const hotbed_tracker *tracker = a->rows.tracker;
    const hotbed_removal item = tracker->items[(a->since->removed + i) & (tracker->capacity - 1)];
    if (item.table != a->rows.table_number)
        return;
    uint64_t slot =
        hotbed_index_find(a->rows.index, hotbed_table_range(&a->rows.table, item.key), item.key, 1);
    if (slot == HOTBED_SLOT_NONE && hotbed_table_moves(&a->rows.table))
        slot = hotbed_index_find(a->rows.index, a->rows.table.lower, item.key, 1);
    if (slot != HOTBED_SLOT_NONE)
        return; /* it is back */
    const uint64_t at = hotbed_add_relaxed_u64(a->count, 1);
    if (at < a->capacity)
        a->keys[at] = item.key;
}
