/* storage/rows/export_core.h - selects the slots of an export window and copies their rows out.
 *
 * Slots are handled in groups of 32. The first pass writes one bit per selected slot and a count
 * per group. Prefix sums of the counts give the first output position of each group. The second
 * pass writes the items, so the output is in slot order on every backend.
 */
#pragma once

#include "hotbed/changes.h"
#include "storage/index/index_find_core.h"
#include "storage/index/index_meta_core.h"
#include "storage/rows/rows_core.h"

enum { HOTBED_EXPORT_GROUP = 32 };

typedef struct hotbed_export_args {
    hotbed_table_view table;
    hotbed_index_view index;
    hotbed_rows_view rows;
    uint64_t *keys;    /* or NULL */
    uint64_t *numbers; /* or NULL */
    uint64_t *count;   /* [1] */
    uint64_t capacity; /* items that the output arrays can hold */
    uint32_t *bits;    /* [groups] one bit per selected slot */
    uint32_t *starts;  /* [groups + 1] counts, then output positions; the last entry is the total */
    uint64_t first;    /* first slot of the window, counted from 0 in the table */
    uint64_t slots;    /* slots of the window; all are inside the table */
    uint64_t groups;
    uint64_t min_score;
    uint64_t min_time;                   /* only for tables that keep times */
    const hotbed_change_position *since; /* NULL: whether a row was changed does not matter */
} hotbed_export_args;

/* Whether the row in `slot` was changed since epoch `since`; 0: all rows were. */
HOTBED_HD bool hotbed_export_changed(const hotbed_export_args *a, uint64_t slot, uint64_t since) {
    if (since == 0)
        return true;
    const hotbed_changed_slot at = hotbed_changed_at(a->index, &a->table, slot);
    return at.epochs[at.i] >= since || hotbed_is_recent(at);
}

/* Whether slot number i of the window is selected. */
HOTBED_HD bool hotbed_export_wanted(const hotbed_export_args *a, uint64_t i, uint64_t since) {
    if (i >= a->slots)
        return false;
    if (a->table.is_static != 0 && a->min_score > 0)
        return false; /* slots without an index have score 0 */
    if (!hotbed_table_indexed(&a->table))
        return hotbed_export_changed(a, a->table.first_slot + a->first + i, since);
    if (a->table.tiers == HOTBED_TIERS_CACHE && a->first + i < a->table.slots)
        return false; /* the key is exported from its slot in the lower tier */
    uint64_t slot = hotbed_numbered_slot(a->index, &a->table, a->first + i);
    const bool copied = a->table.tiers == HOTBED_TIERS_CACHE; /* the copy's epoch counts */
    if (!copied && !hotbed_export_changed(a, slot, since))
        return false;
    if (hotbed_load_relaxed_u64(hotbed_index_meta(a->index, slot)) == 0)
        return false;
    slot = hotbed_newest_slot(a->index, &a->table, slot);
    uint64_t meta = hotbed_load_relaxed_u64(hotbed_index_meta(a->index, slot));
    if ((meta & HOTBED_META_LOCKED) != 0 ||
        (a->table.is_static == 0 && hotbed_meta_score(meta) < a->min_score))
        return false;
    if (copied && !hotbed_export_changed(a, slot, since))
        return false;
    return a->min_time == 0 ||
           hotbed_load_relaxed_u64(hotbed_table_time(a->index, &a->table, slot)) >= a->min_time;
}

/* First pass, group g. The group after the last one has no slots. */
HOTBED_HD void hotbed_export_select(const hotbed_export_args *a, uint64_t g, uint32_t width) {
    const uint64_t since = a->since == NULL ? 0 : a->since->epoch;
    uint32_t bits = 0;
    for (uint32_t s = hotbed_tile_rank(width); s < HOTBED_EXPORT_GROUP; s += width)
        bits |= (hotbed_export_wanted(a, g * HOTBED_EXPORT_GROUP + s, since) ? 1U : 0U) << s;
    bits = hotbed_tile_or(width, bits);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (g < a->groups)
        a->bits[g] = bits;
    a->starts[g] = hotbed_bits_set(bits);
}

/* Second pass, group g. The group after the last one writes the total. */
HOTBED_HD void hotbed_export_write(const hotbed_export_args *a, uint64_t g, uint32_t width) {
    if (g == a->groups) {
        if (hotbed_tile_rank(width) == 0)
            *a->count = a->starts[g];
        return;
    }
    uint32_t bits = a->bits[g];
    uint64_t start = a->starts[g], from = a->first + g * HOTBED_EXPORT_GROUP;
    for (uint32_t s = hotbed_tile_rank(width); s < HOTBED_EXPORT_GROUP; s += width) {
        if ((bits >> s & 1U) == 0)
            continue;
        uint64_t at = start + hotbed_bits_set(bits & ((1U << s) - 1U));
        if (at >= a->capacity)
            continue;
        bool hashed = hotbed_table_indexed(&a->table);
        uint64_t slot =
            hashed ? hotbed_newest_slot(
                         a->index, &a->table, hotbed_numbered_slot(a->index, &a->table, from + s))
                   : from + s;
        if (a->keys != NULL)
            a->keys[at] = hashed ? hotbed_load_relaxed_u64(hotbed_index_key(a->index, slot)) : slot;
        if (a->numbers != NULL)
            a->numbers[at] = from + s;
        if (a->rows.scores != NULL)
            a->rows.scores[at] =
                a->table.is_static == 0
                    ? hotbed_meta_score(hotbed_load_relaxed_u64(hotbed_index_meta(a->index, slot)))
                    : 0;
        if (a->rows.times != NULL)
            a->rows.times[at] =
                hotbed_load_relaxed_u64(hotbed_table_time(a->index, &a->table, slot));
    }
    if (a->rows.weights == NULL && a->rows.states[0] == NULL && a->rows.states[1] == NULL)
        return;
    for (uint64_t at = start; bits != 0 && at < a->capacity; at++, bits &= bits - 1) {
        uint64_t slot = hotbed_numbered_slot(a->index, &a->table, from + hotbed_lowest_bit(bits));
        if (hotbed_table_indexed(&a->table))
            slot = hotbed_newest_slot(a->index, &a->table, slot);
        hotbed_row_get(&a->table, hotbed_row_at(a->index, &a->table, slot), a->rows, at, width);
    }
}
