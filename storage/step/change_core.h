/* storage/step/change_core.h - which rows were changed, and which keys have left their tables.
 *
 * Each slot has a bit: its row was changed after the last position. The bits of a table are few enough to
 * stay in a GPU's L2 cache while one kernel sets them for a batch. A position turns them into numbers:
 * slots with a bit get the present *epoch*, the bits become 0, and the next epoch begins. So rows with a
 * position's epoch or a later one, or with a bit, were changed since. Receivers do not know of each other.
 * A bit and an epoch are copied where a row moves.
 *
 * Keys that leave a table have no slot. They are appended to a log, a ring for all tables of a
 * storage; a receiver remembers how many there were. More than the ring holds are lost to it, and
 * counted. The order within a kernel is undefined. */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "storage/step/row_core.h"

/* A key that has left its table. */
typedef struct hotbed_removal {
    uint64_t key, table;
} hotbed_removal;

/* Over an external store: what the host no longer knows of changed rows that are not in the upper tier; see
 * storage/tiers/stored_changes.h. */
typedef struct hotbed_forgotten {
    uint64_t epoch; /* the newest in which such a row was changed; 0: none is forgotten */
    uint64_t keys;
} hotbed_forgotten;

/* The epoch and the log of a storage; in device memory. */
typedef struct hotbed_tracker {
    uint64_t storage;                  /* number of the storage, unique in the process */
    uint64_t epoch;                    /* of rows that are changed now; the first is 1 */
    uint64_t removed;                  /* keys that were appended to the log */
    uint64_t capacity;                 /* a power of two */
    hotbed_removal *items;             /* [capacity] removal n is at n % capacity */
    const hotbed_forgotten *forgotten; /* in pinned memory; NULL without an external store */
} hotbed_tracker;

/* What is kept of the slots of one tier or segment, and number i among them. */
typedef struct hotbed_changed_slot {
    uint32_t *epochs; /* [slots] in which the row was last changed, as the last position knows it */
    uint32_t
        *recent; /* [hotbed_recent_words()] a bit for each slot: changed after the last position */
    uint64_t i;
} hotbed_changed_slot;

HOTBED_HD uint64_t hotbed_recent_words(uint64_t slots) {
    return (slots + 31) / 32;
}

/* Bytes for the slots of a tier or segment: epochs, and then the bits. */
HOTBED_HD uint64_t hotbed_changed_bytes(uint64_t slots) {
    return (slots + hotbed_recent_words(slots)) * sizeof(uint32_t);
}

/* The place of a slot, in a table that tracks changes. */
HOTBED_HD hotbed_changed_slot
hotbed_changed_at(hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    uint32_t *epochs = table->changed;
    uint64_t slots = table->slots, first = table->first_slot;
    if (hotbed_slot_grown(index, slot)) {
        const hotbed_index_segment *segment = &index.segments[slot >> HOTBED_SEGMENT_SHIFT];
        epochs = segment->changed;
        slots = hotbed_index_range_slots(segment->range);
        first = slot & ~(uint64_t)HOTBED_SEGMENT_SLOT;
    } else if (slot >= table->lower_first) {
        epochs = table->lower_changed;
        slots = table->lower_slots;
        first = table->lower_first;
    }
    const hotbed_changed_slot at = {epochs, epochs + slots, slot - first};
    return at;
}

HOTBED_HD uint32_t hotbed_recent_bit(uint64_t i) {
    return 1U << (i % 32);
}

/* Whether the row in a slot was changed after the last position. */
HOTBED_HD bool hotbed_is_recent(hotbed_changed_slot at) {
    return (hotbed_load_relaxed_u32(&at.recent[at.i / 32]) & hotbed_recent_bit(at.i)) != 0;
}

/* Most rows of a batch have their bits already, which are read faster than they are set. */
HOTBED_HD void hotbed_set_recent(hotbed_changed_slot at) {
    if (!hotbed_is_recent(at))
        hotbed_or_relaxed_u32(&at.recent[at.i / 32], hotbed_recent_bit(at.i));
}

/* One lane: the row in `slot` is changed. Whoever changes a row also orders later moves of the row
 * after the change, and so after this store. */
HOTBED_HD void hotbed_set_changed(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (table->changed != NULL)
        hotbed_set_recent(hotbed_changed_at(index, table, slot));
}

/* One lane: the row in slot `from` is copied to slot `to`. */
HOTBED_HD void hotbed_copy_changed(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t to, uint64_t from) {
    if (table->changed == NULL)
        return;
    const hotbed_changed_slot its = hotbed_changed_at(index, table, from);
    const hotbed_changed_slot at = hotbed_changed_at(index, table, to);
    if (hotbed_is_recent(its)) {
        hotbed_set_recent(at);
        return;
    }
    at.epochs[at.i] = its.epochs[its.i];
    if (hotbed_is_recent(at)) /* the row before in this slot was */
        hotbed_and_relaxed_u32(&at.recent[at.i / 32], ~hotbed_recent_bit(at.i));
}

/* One lane: a row that was not changed comes to `slot`. What was known of the row before is lost. */
HOTBED_HD void hotbed_set_unchanged(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (table->changed == NULL)
        return;
    const hotbed_changed_slot at = hotbed_changed_at(index, table, slot);
    at.epochs[at.i] = 0;
    if (hotbed_is_recent(at))
        hotbed_and_relaxed_u32(&at.recent[at.i / 32], ~hotbed_recent_bit(at.i));
}

/* In which epoch the row in `slot` was changed last; 0: it was not, or the table does not track changes. */
HOTBED_HD uint32_t hotbed_changed_epoch(
    hotbed_index_view index, const hotbed_table_view *table, const hotbed_tracker *tracker,
    uint64_t slot) {
    if (table->changed == NULL)
        return 0;
    const hotbed_changed_slot at = hotbed_changed_at(index, table, slot);
    return hotbed_is_recent(at) ? (uint32_t)tracker->epoch : at.epochs[at.i];
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
