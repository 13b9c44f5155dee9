/* storage/rows/changes_core.h - positions in the record of changes, and the keys that have left. */
#pragma once

#include "hotbed/changes.h"
#include "storage/rows/rows_core.h"

/* One lane: take a position, which begins an epoch. */
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

/* How many keys between the positions the log no longer has. */
HOTBED_HD uint64_t hotbed_removed_lost(const hotbed_removed_args *a) {
    const hotbed_tracker *tracker = a->rows.tracker;
    if (a->since->storage != tracker->storage && a->since->epoch != 0)
        return UINT64_MAX;
    const uint64_t all = tracker->removed - a->since->removed;
    return all <= tracker->capacity ? 0 : all >> 47 != 0 ? UINT64_MAX : all - tracker->capacity;
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
