/* storage/step/change_core.h - which rows were changed, and which keys have left their tables.
 *
 * Each slot has the epoch in which its row was last changed. It is written where the row is written,
 * and copied where a row moves. A consumer of changes begins a new epoch and remembers its number: rows
 * with that epoch or a later one were changed since. So consumers do not know of each other, and nothing
 * is reset.
 *
 * Keys that leave a table have no slot. They are appended to a log, a ring for all tables of a
 * storage; a consumer remembers how many there were. More than the ring holds are lost to it, and
 * counted. The order within a kernel is undefined. */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "storage/step/row_core.h"

/* A key that has left its table. */
typedef struct hotbed_removal {
    uint64_t key, table;
} hotbed_removal;

/* The epoch and the log of a storage; in device memory. */
typedef struct hotbed_tracker {
    uint64_t storage;      /* number of the storage, unique in the process */
    uint64_t epoch;        /* of rows that are changed now; the first is 1 */
    uint64_t removed;      /* keys that were appended to the log */
    uint64_t capacity;     /* a power of two */
    hotbed_removal *items; /* [capacity] removal n is at n % capacity */
} hotbed_tracker;

/* The epoch of a slot, in a table that tracks changes. */
HOTBED_HD uint32_t *hotbed_changed_at(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (hotbed_slot_grown(index, slot))
        return index.segments[slot >> HOTBED_SEGMENT_SHIFT].changed + (slot & HOTBED_SEGMENT_SLOT);
    if (slot >= table->lower_first)
        return table->lower_changed + (slot - table->lower_first);
    return table->changed + (slot - table->first_slot);
}

/* One lane: the row in `slot` is changed. Whoever changes a row also orders later moves of the row
 * after the change, and so after this store. */
HOTBED_HD void hotbed_set_changed(
    hotbed_index_view index, const hotbed_table_view *table, const hotbed_tracker *tracker,
    uint64_t slot) {
    if (table->changed != NULL)
        *hotbed_changed_at(index, table, slot) = (uint32_t)tracker->epoch;
}

/* One lane: the row in slot `from` is copied to slot `to`. */
HOTBED_HD void hotbed_copy_changed(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t to, uint64_t from) {
    if (table->changed != NULL)
        *hotbed_changed_at(index, table, to) = *hotbed_changed_at(index, table, from);
}

/* Append the keys of lanes with `mine` to the log: each has left table number t, which may differ
 * between lanes. All lanes of the tile take part. Every kernel that evicts or erases keys calls this
 * function. */
HOTBED_HD void hotbed_log_removed(
    hotbed_tracker *tracker, const hotbed_table_view *table, uint32_t t, uint64_t key, bool mine,
    uint32_t width) {
    mine = mine && table->changed != NULL;
    const uint32_t lanes = hotbed_tile_ballot(width, mine);
    if (lanes == 0)
        return;
    uint64_t at = 0;
    if (hotbed_tile_rank(width) == 0)
        at = hotbed_add_relaxed_u64(&tracker->removed, hotbed_bits_set(lanes));
    at = hotbed_tile_shuffle_u64(width, at, 0) +
         hotbed_bits_set(lanes & ((1U << hotbed_tile_rank(width)) - 1U));
    if (!mine)
        return;
    /* atomic, because two keys of one kernel get one place if it removes more than the ring holds */
    hotbed_removal *item = &tracker->items[at & (tracker->capacity - 1)];
    hotbed_store_relaxed_u64(&item->key, key);
    hotbed_store_relaxed_u64(&item->table, t);
}

/* The same for one key, of which all lanes know. */
HOTBED_HD void hotbed_log_removed_one(
    hotbed_tracker *tracker, const hotbed_table_view *table, uint32_t t, uint64_t key,
    uint32_t width) {
    hotbed_log_removed(tracker, table, t, key, hotbed_tile_rank(width) == 0, width);
}
