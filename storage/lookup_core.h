/* storage/lookup_core.h - from keys to output rows: find or place each unique key, then read and pool. */
#ifndef HOTBED_STORAGE_LOOKUP_CORE_H
#define HOTBED_STORAGE_LOOKUP_CORE_H

#include "base/fault.h"
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

/* Slot of unique u of table t, scored and pinned, if the table has its key; else HOTBED_NO_SLOT, and the
 * key may be placed if *missing.  All keys of a batch are looked for before the first is placed: one that
 * is present is pinned by then, so the batch does not evict its own rows. */
HOTBED_HD uint64_t hotbed_find_unique(
    const hotbed_step_view *s, uint32_t u, uint32_t t, bool *missing, uint32_t width) {
    const hotbed_table_view *table = &s->tables[t];
    uint64_t key = s->unique_keys[u];
    *missing = false;
    if (table->is_static != 0) {
        if (key < table->capacity)
            return table->first_slot + key;
        if (hotbed_tile_rank(width) == 0) {
            hotbed_add_relaxed_u64(&s->tallies[t].refused, 1);
            hotbed_fault_latch(
                s->faults, HOTBED_ERR_RANGE, HOTBED_FAULT_KEY_RANGE, t, key, table->capacity);
        }
        return HOTBED_NO_SLOT;
    }
    uint64_t slot = hotbed_index_find(s->index, table->range, key, width);
    if (slot != HOTBED_NO_SLOT && hotbed_tile_rank(width) == 0)
        (void)hotbed_index_touch(s->index, slot, HOTBED_SCORE_ASSIGN, s->clock->prefetches, 1);
    *missing = slot == HOTBED_NO_SLOT;
    return slot;
}

/* Claim a slot for unique u, which its table does not have, initialise the row and publish the key. */
HOTBED_HD void hotbed_place_unique(const hotbed_step_view *s, uint32_t u, uint32_t width) {
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, u);
    const hotbed_table_view *table = &s->tables[t];
    hotbed_tally *tally = &s->tallies[t];
    uint64_t key = s->unique_keys[u];
    hotbed_index_result r = hotbed_index_place(
        s->index, table->range, key, hotbed_meta_new(s->clock->prefetches, 1), width);
    if (hotbed_tile_rank(width) == 0) {
        s->slots[u] = r.slot;
        if (r.outcome == HOTBED_INDEX_EVICTED)
            hotbed_add_relaxed_u64(&tally->evictions, 1);
        hotbed_add_relaxed_u64(r.slot == HOTBED_NO_SLOT ? &tally->refused : &tally->inserts, 1);
        if (r.slot == HOTBED_NO_SLOT)
            hotbed_fault_latch(
                s->faults, HOTBED_ERR_FULL,
                r.outcome == HOTBED_INDEX_PINNED ? HOTBED_FAULT_ALL_PINNED
                                                 : HOTBED_FAULT_TABLE_FULL,
                t, key, table->slots);
    }
    if (r.slot == HOTBED_NO_SLOT)
        return;
    hotbed_row_init(table, hotbed_row_at(table, r.slot), key, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        hotbed_index_publish(s->index, r.slot, key);
}

/* eval: slot of key number i. */
HOTBED_HD uint64_t hotbed_find_key(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    uint32_t feature = hotbed_part_of(s->feature_starts, s->num_features, i);
    uint32_t t = s->feature_tables[feature];
    const hotbed_table_view *table = &s->tables[t];
    uint64_t key = s->keys[i];
    if (table->is_static == 0)
        return hotbed_index_find(s->index, table->range, key, width);
    if (key < table->capacity)
        return table->first_slot + key;
    if (hotbed_tile_rank(width) == 0)
        hotbed_fault_latch(
            s->faults, HOTBED_ERR_RANGE, HOTBED_FAULT_KEY_RANGE, t, key, table->capacity);
    return HOTBED_NO_SLOT;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Elements e .. of the row behind key number i. */
HOTBED_HD hotbed_f32x4 hotbed_forward_row4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i, uint64_t slot,
    uint32_t e) {
    if (slot != HOTBED_NO_SLOT)
        return hotbed_load4(
            table->dtype, hotbed_row_at(table, slot), e, hotbed_count4(table->dim, e));
    if (s->eval != 0)
        return hotbed_f32x4_of(table->eval_value);
    return hotbed_row_absent4(table, s->keys[i], e);
}

HOTBED_HD uint64_t hotbed_forward_slot(const hotbed_step_view *s, uint32_t i) {
    return s->slots[s->inverse == NULL ? i : s->inverse[i]];
}

/* Sequence output: keys first .. first+count-1, count <= HOTBED_FORWARD_ROWS, one row each.  The rows are
 * read together before the first is written, to have that many reads in flight. */
enum { HOTBED_FORWARD_ROWS = 4 };

HOTBED_HD void hotbed_forward_rows(
    const hotbed_step_view *s, uint32_t first, uint32_t count, void *output, uint64_t stride,
    uint32_t width) {
    const hotbed_table_view *table[HOTBED_FORWARD_ROWS];
    uint64_t slot[HOTBED_FORWARD_ROWS];
    uint32_t feature = hotbed_part_of(s->feature_starts, s->num_features, first);
    uint32_t widest = 0;
    HOTBED_UNROLL
    for (uint32_t k = 0; k < HOTBED_FORWARD_ROWS; k++) {
        uint32_t i = first + (k < count ? k : 0);
        while (i >= s->feature_starts[feature + 1])
            feature++;
        table[k] = &s->tables[s->feature_tables[feature]];
        slot[k] = hotbed_forward_slot(s, i);
        widest = table[k]->dim > widest ? table[k]->dim : widest;
    }
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < widest; e += 4 * width) {
        hotbed_f32x4 row[HOTBED_FORWARD_ROWS];
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_FORWARD_ROWS; k++)
            if (k < count && e < table[k]->dim)
                row[k] = hotbed_forward_row4(s, table[k], first + k, slot[k], e);
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_FORWARD_ROWS; k++)
            if (k < count && e < table[k]->dim)
                hotbed_store4(
                    s->output_dtype, output, (first + k) * stride + e,
                    hotbed_count4(table[k]->dim, e), row[k]);
    }
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
