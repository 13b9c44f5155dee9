/* storage/step/pool_core.h - the kernels' algorithms for pooling, and for the second reads of eval. */
#pragma once

#include "storage/step/forward_core.h"

/* --- forward, pooled --------------------------------------------------------------------------- */

/* Pooling finds the slot of a key in two steps, so that the loads of the first can begin early.
 * First step: load what leads to the slot of key number i of a table. */
HOTBED_HD uint64_t
hotbed_pooled_word(const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    if (s->unique.rows != NULL)
        return s->unique.inverse[i];
    if (!hotbed_table_indexed(table))
        return s->batch.keys[i];
    return s->unique.inverse == NULL ? s->unique.slots[i] : s->unique.inverse[i];
}

/* Second step: the slot, from that word. `t` is the number of the table. */
HOTBED_HD uint64_t hotbed_pooled_slot_of(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t t, uint64_t word) {
    if (hotbed_table_indexed(table))
        return s->unique.inverse == NULL ? word : s->unique.slots[word];
    if (word < table->capacity)
        return table->first_slot + word;
    if (s->eval.on != 0) /* no earlier pass has checked the key */
        (void)hotbed_static_has(s, t, word);
    return HOTBED_SLOT_NONE;
}

/* Both steps. */
HOTBED_HD uint64_t
hotbed_pooled_slot(const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    return hotbed_pooled_slot_of(
        s, table, (uint32_t)(table - s->storage.tables), hotbed_pooled_word(s, table, i));
}

/* Elements e .. e+3 of the row of key number i, for pooling. */
HOTBED_HD hotbed_f32x4 hotbed_pooled_row4(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i, uint32_t e) {
    if (s->unique.rows == NULL)
        return hotbed_forward_row4(s, table, i, hotbed_pooled_slot(s, table, i), e);
    const uint8_t *row = s->unique.rows[s->unique.inverse[i]];
    return row == NULL ? hotbed_f32x4_of(0.0F)
                       : hotbed_row_load4(
                             false, table->dtype, table->dim, row, e, hotbed_count4(table->dim, e));
}

/* The sum of a bag of n keys becomes its output. */
HOTBED_HD hotbed_f32x4 hotbed_bag_finish(const hotbed_step_view *s, hotbed_f32x4 sum, uint32_t n) {
    if (s->storage.pooling != HOTBED_POOL_MEAN || n == 0)
        return sum;
    sum.x = sum.x / (float)n;
    sum.y = sum.y / (float)n;
    sum.z = sum.z / (float)n;
    sum.w = sum.w / (float)n;
    return sum;
}

/* Write elements e .. e+3 of the output of a bag with n keys and sum `sum`. */
HOTBED_HD void hotbed_bag_write(
    const hotbed_step_view *s, uint32_t dim, uint32_t feature, uint64_t sample, uint32_t n,
    uint32_t e, hotbed_f32x4 sum, void *output, uint64_t stride) {
    if (s->to.on != 0) {
        uint8_t *to = s->to.bags[(uint64_t)feature * s->batch.size + sample];
        if (to != NULL)
            hotbed_store4(
                s->storage.output_dtype, to, e, hotbed_count4(dim, e),
                hotbed_bag_finish(s, sum, n));
        return;
    }
    hotbed_store4(
        s->storage.output_dtype, output, sample * stride + s->storage.columns[feature] + e,
        hotbed_count4(dim, e), hotbed_bag_finish(s, sum, n));
}

/* Pooled output of bag b, summed in bag order. */
HOTBED_HD_LARGE void hotbed_forward_bag(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride, uint32_t width) {
    uint32_t feature = (uint32_t)(b / s->batch.size);
    uint64_t sample = b - (uint64_t)feature * s->batch.size;
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    hotbed_bag bag = hotbed_bag_at(s, b, feature);
    if (!bag.good && s->eval.on != 0 && hotbed_tile_rank(width) == 0)
        hotbed_bag_fault(s, b, feature); /* in training, bags() has reported the fault */
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
        hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
        for (uint32_t i = bag.begin; i < bag.end; i++) {
            hotbed_f32x4 row = hotbed_pooled_row4(s, table, i, e);
            sum = hotbed_add4(
                sum, s->batch.weights == NULL ? row : hotbed_scale4(row, s->batch.weights[i]));
        }
        hotbed_bag_write(
            s, table->dim, feature, sample, bag.end - bag.begin, e, sum, output, stride);
    }
}

/* --- forward, pooled by tiles ----------------------------------------------------------------------
 *
 * For storages of one hotbed_rows_form. A tile pools neighbouring bags of a feature. Its lanes look
 * up one key each; then the tile goes through the rows, of which each lane has a part: 4
 * elements, 8 of two bytes, or up to 16 of one byte. Several rows are loaded before the first one is added.
 */

enum { HOTBED_BAGS_AHEAD = 4 }; /* rows that a tile loads before it adds the first one */

/* A lane's part of the sum of a bag. */
typedef struct hotbed_bag_sum {
    hotbed_f32x4 v[HOTBED_PART_QUADS_MOST];
} hotbed_bag_sum;

HOTBED_HD hotbed_bag_sum hotbed_bag_sum_of_none(void) {
    hotbed_bag_sum sum;
    HOTBED_UNROLL
    for (uint32_t h = 0; h < HOTBED_PART_QUADS_MOST; h++)
        sum.v[h] = hotbed_f32x4_of(0.0F);
    return sum;
}

/* Neighbouring bags of a feature, one per lane; lanes past the last bag have the last bag. */
typedef struct hotbed_bags {
    const hotbed_table_view *table;
    uint32_t t;     /* its number */
    uint32_t dtype; /* of its rows */
    hotbed_bag bag;
    uint32_t count;
    uint32_t left;      /* one bit per bag that has keys, until its sum is written */
    uint64_t output;    /* element of the output at which the lane's part of lane 0's bag begins */
    uint64_t to;        /* scattered: address of the output of the lane's bag, or 0 */
    uint32_t e;         /* first element of the lane's part */
    uint32_t byte;      /* of a row at which the lane's part begins */
    uint32_t scale;     /* SCALED: byte of a row at which the part's scale is */
    bool idle;          /* the row is too short for the lane to have a part */
    hotbed_bag_sum sum; /* of the first bag in `left`, so far */
    void *rows;         /* the call's output, and its elements per sample */
    uint64_t stride;
} hotbed_bags;

/* Keys of the bags, one per lane. */
typedef struct hotbed_bag_keys {
    uint64_t row;    /* address of the lane's row; of any row if the key has no slot */
    uint32_t absent; /* bit k: lane k's key has no slot */
    uint32_t ends;   /* bit k: lane k's key is the last of its bag */
    uint32_t first;  /* number of lane 0's key */
} hotbed_bag_keys;

/* Keys first .. first+n-1 of the bags. `word` is hotbed_pooled_word() of the lane's key; lanes past
 * the last key have any key's. */
HOTBED_HD hotbed_bag_keys hotbed_bag_keys_at(
    const hotbed_step_view *s, const hotbed_bags *bags, uint64_t word, uint32_t first, uint32_t n,
    uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width), last = bags->bag.end - 1 - first;
    const bool ends = lane < bags->count && bags->bag.begin != bags->bag.end && last < width;
    hotbed_bag_keys k;
    bool absent = false;
    k.row = (uint64_t)(uintptr_t)bags->table->rows;
    if (lane < n && s->unique.rows != NULL) {
        const uint64_t row = (uint64_t)(uintptr_t)s->unique.rows[word];
        absent = row == 0;
        k.row = absent ? k.row : row;
    } else if (lane < n) {
        const uint64_t slot = hotbed_pooled_slot_of(s, bags->table, bags->t, word);
        absent = slot == HOTBED_SLOT_NONE;
        if (!absent)
            k.row = (uint64_t)(uintptr_t)hotbed_row_at(s->storage.index, bags->table, slot);
    }
    k.absent = hotbed_tile_ballot(width, absent);
    k.ends = hotbed_tile_or(width, ends ? 1U << last : 0);
    k.first = first;
    return k;
}

/* Write a lane's part of the sum, which is of bag number b with n keys, to the output. */
HOTBED_HD void hotbed_pool_write(
    const hotbed_step_view *s, const hotbed_bags *bags, uint32_t b, uint32_t n,
    hotbed_part_shape shape, uint32_t width) {
    void *output = bags->rows;
    uint64_t at = bags->output + b * bags->stride;
    if (s->to.on != 0) {
        output = (void *)(uintptr_t)hotbed_tile_shuffle_u64(width, bags->to, b);
        at = bags->e;
        if (output == NULL)
            return;
    }
    if (bags->idle)
        return;
    HOTBED_UNROLL
    for (uint32_t h = 0; h < shape.quads; h++) {
        if (shape.form == HOTBED_ROWS_SCALED && h > 0 && bags->e + 4 * h >= bags->table->dim)
            break; /* of other forms, a part is whole */
        const hotbed_f32x4 v = hotbed_bag_finish(s, bags->sum.v[h], n);
        if (s->storage.output_dtype == HOTBED_F32)
            hotbed_store_once((float *)output + at + (size_t)4 * h, v);
        else
            *(hotbed_u16x4 *)(void *)((uint16_t *)output + at + (size_t)4 * h) =
                hotbed_f32_to_half4(s->storage.output_dtype, v);
    }
}

/* Add a lane's part of the row of lane k's key to the sum. If the key is the last of its bag, write the
 * bag's output. `plain`, a literal, is true if all keys have slots and there are no weights; the
 * elements of a key without slot are eval_value. */
HOTBED_HD void hotbed_pool_row(
    const hotbed_step_view *s, hotbed_bags *bags, const hotbed_bag_keys *keys, uint32_t k,
    const hotbed_row_part *row, bool plain, hotbed_part_shape shape, uint32_t width) {
    hotbed_f32x4 values[HOTBED_PART_QUADS_MOST];
    hotbed_part_to_f32(shape, bags->dtype, row, values);
    HOTBED_UNROLL
    for (uint32_t h = 0; h < shape.quads; h++) {
        hotbed_f32x4 v = values[h];
        if (!plain && (keys->absent >> k & 1U) != 0)
            v = hotbed_f32x4_of(bags->table->eval_value);
        if (!plain && s->batch.weights != NULL)
            v = hotbed_scale4(v, s->batch.weights[keys->first + k]);
        bags->sum.v[h] = hotbed_add4(bags->sum.v[h], v);
    }
    if ((keys->ends >> k & 1U) == 0)
        return;
    const uint32_t b = hotbed_lowest_bit(bags->left);
    uint32_t n = 0;
    if (s->storage.pooling == HOTBED_POOL_MEAN)
        n = hotbed_tile_shuffle_u32(width, bags->bag.end - bags->bag.begin, b);
    hotbed_pool_write(s, bags, b, n, shape, width);
    bags->left &= bags->left - 1;
    bags->sum = hotbed_bag_sum_of_none();
}

/* Pool n keys, one per lane. */
HOTBED_HD void hotbed_pool_keys(
    const hotbed_step_view *s, hotbed_bags *bags, const hotbed_bag_keys *keys, uint32_t n,
    bool plain, hotbed_part_shape shape, uint32_t width) {
    enum { AHEAD = HOTBED_BAGS_AHEAD };
    for (uint32_t k = 0; k < n; k += AHEAD) {
        hotbed_row_part row[AHEAD];
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint64_t at = hotbed_tile_shuffle_u64(width, keys->row, k + a < n ? k + a : k);
            row[a] = hotbed_part_load(shape, at, bags->byte, bags->scale);
        }
        if (plain && k + AHEAD <= n && (keys->ends >> k & ((1U << AHEAD) - 1U)) == 0) {
            HOTBED_UNROLL
            for (uint32_t a = 0; a < AHEAD; a++) {
                hotbed_f32x4 v[HOTBED_PART_QUADS_MOST];
                hotbed_part_to_f32(shape, bags->dtype, &row[a], v);
                HOTBED_UNROLL
                for (uint32_t h = 0; h < shape.quads; h++)
                    bags->sum.v[h] = hotbed_add4(bags->sum.v[h], v[h]);
            }
            continue;
        }
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++)
            if (k + a < n)
                hotbed_pool_row(s, bags, keys, k + a, &row[a], plain, shape, width);
    }
}

/* Pooled output of bags b .. b+count-1 of `feature`, at most one per lane. `table` is a copy of the
 * feature's table. Four elements of the output are aligned to their size. Returns false, and leaves the
 * output undefined, if offsets are invalid, or if a key of a training batch has no slot. */
HOTBED_HD bool hotbed_forward_bags(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t b, uint32_t count,
    uint32_t feature, void *output, uint64_t stride, hotbed_part_shape shape, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width), each = 4 * shape.quads;
    hotbed_bags bags;
    bags.table = table;
    bags.t = s->storage.feature_tables[feature];
    bags.bag = hotbed_bag_at(s, b + (lane < count ? lane : count - 1), feature);
    bags.count = count;
    if (hotbed_tile_ballot(width, !bags.bag.good) != 0)
        return false;
    const uint64_t at = s->to.on != 0 ? 0
                                      : (b - (uint64_t)feature * s->batch.size) * stride +
                                            s->storage.columns[feature];
    bags.to =
        s->to.on != 0 ? (uint64_t)(uintptr_t)s->to.bags[b + (lane < count ? lane : count - 1)] : 0;
    const uint32_t dim = table->dim;
    bags.dtype = table->dtype;
    bags.rows = output;
    bags.stride = stride;
    /* With valid offsets, the keys of neighbouring bags are adjacent. */
    const uint32_t end = hotbed_tile_shuffle_u32(width, bags.bag.end, count - 1);
    for (uint32_t e = each * lane; e < dim + each * lane; e += each * width) {
        bags.sum = hotbed_bag_sum_of_none();
        bags.idle = e >= dim;
        bags.byte = bags.idle ? 0 : e * hotbed_form_size(shape.form);
        bags.scale = 0;
        if (shape.form == HOTBED_ROWS_SCALED)
            bags.scale = hotbed_scale_at(bags.dtype, dim, bags.byte);
        bags.output = at + e;
        bags.e = e;
        bags.left = hotbed_tile_ballot(width, lane < count && bags.bag.begin != bags.bag.end);
        if (hotbed_bits_set(bags.left) < count)
            for (uint32_t k = 0; k < count; k++)
                if ((bags.left >> k & 1U) == 0)
                    hotbed_pool_write(s, &bags, k, 0, shape, width);
        uint32_t first = hotbed_tile_shuffle_u32(width, bags.bag.begin, 0);
        uint64_t word = 0;
        if (first + lane < end)
            word = hotbed_pooled_word(s, table, first + lane);
        for (; first < end; first += width) {
            const uint32_t n = end - first < width ? end - first : width;
            const hotbed_bag_keys keys = hotbed_bag_keys_at(s, &bags, word, first, n, width);
            if (first + width + lane < end)
                word = hotbed_pooled_word(s, table, first + width + lane);
            if (keys.absent != 0 && s->eval.on == 0)
                return false;
            if (keys.absent == 0 && s->batch.weights == NULL)
                hotbed_pool_keys(s, &bags, &keys, n, true, shape, width);
            else
                hotbed_pool_keys(s, &bags, &keys, n, false, shape, width);
        }
    }
    return true;
}

/* --- eval: second reads ----------------------------------------------------------------------- */

/* Whether all rows of bag b of `feature`, just read, pass the check. Its keys were found in
 * `epoch`. */
HOTBED_HD bool hotbed_eval_bag_settled(
    const hotbed_step_view *s, uint64_t b, uint32_t feature, uint64_t epoch, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    if (table->range.evicts == 0)
        return true;
    hotbed_bag bag = hotbed_bag_at(s, b, feature);
    bool settled = true;
    hotbed_fence();
    hotbed_tile_sync(width);
    for (uint32_t i = bag.begin + hotbed_tile_rank(width); i < bag.end && settled; i += width)
        settled = hotbed_eval_settled(s, table, s->batch.keys[i], s->unique.slots[i], epoch);
    return hotbed_tile_ballot(width, !settled) == 0;
}

/* eval: append bag b of `feature`, just read, to `rereads` if it fails the check. */
HOTBED_HD void hotbed_eval_check_bag(
    const hotbed_step_view *s, uint64_t b, uint32_t feature, uint32_t width) {
    bool settled = hotbed_eval_bag_settled(s, b, feature, *s->eval.begun, width);
    if (!settled && hotbed_tile_rank(width) == 0)
        hotbed_eval_queue_reread(s, (uint32_t)b);
}

/* Pooled output of bag b, checked in eval. */
HOTBED_HD void hotbed_forward_bag_checked(
    const hotbed_step_view *s, uint64_t b, void *output, uint64_t stride, uint32_t width) {
    hotbed_forward_bag(s, b, output, stride, width);
    if (s->eval.on != 0)
        hotbed_eval_check_bag(s, b, (uint32_t)(b / s->batch.size), width);
}

/* Search for key number i of table t until a search is completed within one epoch. Rows that an
 * external store has returned cannot change. */
HOTBED_HD uint64_t
hotbed_eval_search(const hotbed_step_view *s, uint32_t t, uint32_t i, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[t];
    const uint64_t key = s->batch.keys[i], old = s->unique.slots[i];
    if (table->tiers == HOTBED_TIERS_EXTERNAL && old != HOTBED_SLOT_NONE &&
        old >= s->storage.index_slots)
        return old;
    const uint32_t looks = hotbed_table_moves(table) ? 3 : 1;
    for (uint32_t look = 0; look < looks; look++) {
        uint64_t slot = hotbed_index_find(
            s->storage.index, look == 1 ? table->lower : hotbed_table_range(table, key), key,
            width);
        bool holds =
            slot != HOTBED_SLOT_NONE && (look != 1 || hotbed_eval_holds(s, table, key, slot));
        if (hotbed_tile_ballot(width, !holds) == 0)
            return slot;
    }
    return HOTBED_SLOT_NONE;
}

/* Read key or bag rereads[n] again, until the check passes. */
HOTBED_HD void hotbed_eval_again(
    const hotbed_step_view *s, uint32_t n, void *output, uint64_t stride, uint32_t width) {
    const uint32_t item = s->eval.rereads[n];
    const bool pooled = s->storage.pooling != HOTBED_POOL_NONE;
    const uint32_t feature = pooled ? item / s->batch.size : 0;
    const uint32_t t = pooled ? s->storage.feature_tables[feature] : hotbed_table_of_key(s, item);
    hotbed_bag bag = {item, item + 1, true};
    if (pooled)
        bag = hotbed_bag_at(s, item, feature);
    for (bool settled = false; !settled;) {
        const uint64_t epoch = hotbed_tile_shuffle_u64(width, hotbed_eval_epoch(s), 0);
        hotbed_tile_keys keys = hotbed_keys_from(item, 1, epoch, width);
        for (uint32_t i = bag.begin; i < bag.end; i++) {
            uint64_t slot = hotbed_eval_search(s, t, i, width);
            hotbed_tile_sync(width);
            if (hotbed_tile_rank(width) == 0)
                s->unique.slots[i] = slot;
        }
        hotbed_fence(); /* rows are read after their keys */
        hotbed_tile_sync(width);
        if (pooled) {
            hotbed_forward_bag(s, item, output, stride, width);
            settled = hotbed_eval_bag_settled(s, item, feature, epoch, width);
        } else {
            hotbed_forward_found(s, &keys, t, s->unique.slots[item], false, output, stride, width);
            settled = keys.again == 0;
        }
    }
}
