/* storage/step/forward_core.h - the kernels' algorithms for the rows of sequences, and for eval beside
 * training. */
#pragma once

#include "storage/step/packed_core.h"
#include "storage/step/place_core.h"

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
            (HOTBED_META_FLAGGED | HOTBED_META_LOCKED)) == 0;
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
        return hotbed_row_load4(
            false, table->dtype, table->dim, hotbed_row_at(s->storage.index, table, slot), e,
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

/* Copy rows of one table to a sequence output of f32. All keys have slots, `dim` is a multiple of 4,
 * and all addresses are aligned. Lane k has the address of row k. `shared` is as in
 * hotbed_load4_as(); `form` is a literal, too. If rows are `scattered`, `output` and `stride` are
 * unused. */
HOTBED_HD void hotbed_forward_plain(
    bool shared, hotbed_rows_form form, uint32_t dtype, const uint8_t *row, uint32_t dim,
    const hotbed_tile_keys *keys, bool scattered, float *output, uint64_t stride, uint32_t width) {
    const uint32_t count = keys->count;
    const bool half = form == HOTBED_ROWS_HALF, scaled = form == HOTBED_ROWS_SCALED;
    for (uint32_t begin = 0; begin < dim; begin += 4 * width) {
        uint32_t e = begin + 4 * hotbed_tile_rank(width);
        uint32_t from = e < dim ? e : 0; /* all lanes take part in the loads */
        const uint32_t scale = scaled ? hotbed_scale_at(dtype, dim, from) : 0;
        for (uint32_t r = 0; r < count; r += HOTBED_FORWARD_AHEAD) {
            hotbed_f32x4 v[HOTBED_FORWARD_AHEAD];
            /* as stored: needed after all rows are read */
            hotbed_u16x4 h[HOTBED_FORWARD_AHEAD];
            uint32_t four[HOTBED_FORWARD_AHEAD], word[HOTBED_FORWARD_AHEAD];
            uint32_t to[HOTBED_FORWARD_AHEAD];
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++) {
                const uint32_t one = r + k < count ? r + k : r;
                const uint8_t *at = (const uint8_t *)(uintptr_t)hotbed_tile_shuffle_u64(
                    width, (uint64_t)(uintptr_t)row, one);
                if (scaled)
                    word[k] = hotbed_load_word(shared, at + scale);
                at += from * hotbed_form_size(form);
                HOTBED_POINT();
                if (scaled)
                    four[k] = hotbed_load_word(shared, at);
                else if (half)
                    h[k] = hotbed_load_half4(shared, at);
                else
                    v[k] = shared ? hotbed_load_shared_f32x4(at)
                                  : *(const hotbed_f32x4 *)(const void *)at;
                to[k] = keys->ordered ? hotbed_tile_shuffle_u32(width, keys->i, one) : r + k;
            }
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_FORWARD_AHEAD; k++) {
                float *row_to = scattered ? (float *)(uintptr_t)hotbed_tile_shuffle_u64(
                                                width, keys->to, r + k < count ? r + k : r)
                                          : output + to[k] * stride;
                if (r + k >= count || e >= dim || (keys->deferred >> (r + k) & 1U) != 0)
                    continue;
                if (scaled)
                    v[k] = hotbed_scaled4_to_f32(dtype, word[k], four[k]);
                else if (half)
                    v[k] = hotbed_half4_to_f32(dtype, h[k]);
                hotbed_store_once(row_to + e, v[k]);
            }
        }
    }
}

/* The same for rows of any type. */
HOTBED_HD void hotbed_forward_same(
    bool shared, uint32_t dtype, const uint8_t *row, uint32_t dim, const hotbed_tile_keys *keys,
    bool scattered, float *output, uint64_t stride, uint32_t width) {
    switch (hotbed_dtype_size(dtype)) {
    case 1:
        hotbed_forward_plain(
            shared, HOTBED_ROWS_SCALED, dtype, row, dim, keys, scattered, output, stride, width);
        break;
    case 2:
        hotbed_forward_plain(
            shared, HOTBED_ROWS_HALF, dtype, row, dim, keys, scattered, output, stride, width);
        break;
    default:
        hotbed_forward_plain(
            shared, HOTBED_ROWS_F32, dtype, row, dim, keys, scattered, output, stride, width);
        break;
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

/* Whether the row of a key in an array of the writer's own need not be copied: it is in device memory in
 * the form of the output. Write where the row is. */
HOTBED_HD bool hotbed_forward_points(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot,
    hotbed_scatter_place at) {
    if (s->to.own == NULL || at.array != s->to.writer)
        return false;
    const bool points = slot != HOTBED_SLOT_NONE && !hotbed_slot_below(table, slot) &&
                        table->dtype == HOTBED_F32 && s->storage.output_dtype == HOTBED_F32 &&
                        s->to.packed == 0 && table->dim % 4 == 0;
    s->to.own[at.row] = points ? (uint8_t *)hotbed_row_at(s->storage.index, table, slot)
                               : hotbed_scatter_address(&s->to, at);
    return points;
}

/* A row that is packed: of key number i, in `slot`. */
typedef struct hotbed_found_row {
    const hotbed_step_view *s;
    const hotbed_table_view *table;
    uint64_t slot;
    uint32_t i;
    bool shared;
} hotbed_found_row;

HOTBED_HD hotbed_f32x4 hotbed_found_row4(const void *of, uint32_t e, uint32_t count) {
    const hotbed_found_row *f = (const hotbed_found_row *)of;
    if (count == 0)
        return hotbed_f32x4_of(0.0F);
    return f->shared ? hotbed_row_load4(
                           true, f->table->dtype, f->table->dim,
                           hotbed_row_at(f->s->storage.index, f->table, f->slot), e, count)
                     : hotbed_forward_row4(f->s, f->table, f->i, f->slot, e);
}

/* Write a row to s->to, packed. A row that is stored in the same type is copied. */
HOTBED_HD void hotbed_pack_found_row(const hotbed_found_row *f, uint8_t *to, uint32_t width) {
    const uint32_t dtype = f->s->to.packed, dim = f->table->dim;
    if (f->slot == HOTBED_SLOT_NONE || f->table->dtype != dtype) {
        const hotbed_pack_view p = hotbed_pack_rows(dtype);
        hotbed_pack_row(&p, dim, 0, to, hotbed_found_row4, f, width);
        return;
    }
    const uint8_t *row = hotbed_row_at(f->s->storage.index, f->table, f->slot);
    const uint32_t bytes = hotbed_weights_bytes(dtype, dim); /* whole words belong to both rows */
    for (uint32_t at = 4 * hotbed_tile_rank(width); at < bytes; at += 4 * width)
        *(uint32_t *)(void *)(to + at) = hotbed_load_word(f->shared, row + at);
}

/* Write the sequence output of a tile's keys to s->to or, unless rows are scattered, to `output`.
 * Each lane has the table and slot of its key; all lanes copy each row. `searched`, a literal, is
 * true if this pass has also searched for the slots, while prefetches may run. */
HOTBED_HD_LARGE void hotbed_forward_found(
    const hotbed_step_view *s, hotbed_tile_keys *keys, uint32_t t, uint64_t slot, bool searched,
    void *output, uint64_t stride, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[hotbed_tile_shuffle_u32(width, t, 0)];
    const bool scattered = s->to.on != 0, packs = scattered && s->to.packed != 0;
    bool plain = !packs && table == &s->storage.tables[t] && slot != HOTBED_SLOT_NONE &&
                 s->storage.output_dtype == HOTBED_F32 && table->dim % 4 == 0 &&
                 (scattered || (stride % 4 == 0 && ((uintptr_t)output & 15U) == 0));
    if (scattered) {
        const hotbed_scatter_place at = hotbed_scatter_at(&s->to, keys->i);
        keys->to = (uint64_t)(uintptr_t)hotbed_scatter_address(&s->to, at);
        const bool points = hotbed_tile_rank(width) < keys->count &&
                            hotbed_forward_points(s, &s->storage.tables[t], slot, at);
        keys->deferred |= hotbed_tile_ballot(width, points);
        if (hotbed_bits_set(keys->deferred) == keys->count)
            return;
    }
    const uint32_t todo = ~keys->deferred; /* one bit per row */
    const bool all_plain = hotbed_tile_ballot(width, !plain) == 0;
    if (all_plain) {
        uint64_t from = slot;
        if (keys->deferred != 0) { /* instead of a deferred row, copy another row of the tile */
            uint64_t other = hotbed_tile_shuffle_u64(width, slot, hotbed_lowest_bit(todo));
            from = (keys->deferred >> hotbed_tile_rank(width) & 1U) != 0 ? other : slot;
        }
        const uint8_t *row = hotbed_row_at(s->storage.index, table, from);
        const uint32_t dtype = table->dtype, dim = table->dim;
        float *to = (float *)output;
        if (!scattered && !keys->ordered)
            to += keys->first * stride;
        if (searched && hotbed_eval_shares(table))
            hotbed_forward_same(true, dtype, row, dim, keys, scattered, to, stride, width);
        else
            hotbed_forward_same(false, dtype, row, dim, keys, scattered, to, stride, width);
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
        if (packs) {
            const hotbed_found_row row = {s, table, slot_r, i, shared};
            hotbed_pack_found_row(&row, (uint8_t *)to, width);
            continue;
        }
        for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
            const uint32_t count = hotbed_count4(table->dim, e);
            hotbed_store4(
                s->storage.output_dtype, to, at + e, count,
                shared ? hotbed_row_load4(
                             true, table->dtype, table->dim,
                             hotbed_row_at(s->storage.index, table, slot_r), e, count)
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
