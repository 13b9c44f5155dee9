/* storage/update_core.h - backward: from output gradients to updated rows.
 *
 * A row's gradients are summed in a fixed order (hotbed/storage.h): by position in groups of 32,
 * the sums of groups in groups of 32, and so on, each sum from zero. Additional levels of the tree
 * only add zeros, which changes nothing, so CUDA sums levels in separate kernels and the host in
 * one loop.
 */
#ifndef HOTBED_STORAGE_UPDATE_CORE_H
#define HOTBED_STORAGE_UPDATE_CORE_H

#include "storage/optimizer_core.h"
#include "storage/step_core.h"

enum { HOTBED_SUM_GROUP = 32, HOTBED_SUM_LEVELS = 6 }; /* 32^6 = 2^30 groups of 32 */

typedef struct hotbed_gradient_view {
    const void *data;
    uint64_t stride; /* in elements */
} hotbed_gradient_view;

/* Properties for which a kernel is compiled; literals, so that other code is removed. */
typedef struct hotbed_update_shape {
    bool split; /* rows with more occurrences than a group have partial sums */
    /* f32 rows and gradients, aligned, dims that are multiples of 4, sequence output, no clamping:
     * elements can be loaded four at a time without checks */
    bool plain;
    bool reduced; /* the gradient is the sums of rows in f32; this row's is row source.begin */
} hotbed_update_shape;

/* Elements e .. e+3 of the gradient of key number i: clamped, then scaled as in pooling. */
HOTBED_HD hotbed_f32x4 hotbed_gradient4(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_update_shape shape, uint32_t i, uint32_t e, uint32_t count) {
    if (shape.plain)
        return *(const hotbed_f32x4
                     *)(const void *)((const float *)gradient.data + i * gradient.stride + e);
    if (s->pooling == HOTBED_POOL_NONE)
        return hotbed_clamp4(
            hotbed_load4(s->output_dtype, gradient.data, i * gradient.stride + e, count),
            o->max_gradient);
    uint32_t b = s->bags == NULL ? i : s->bags[i];
    if (b == HOTBED_NO_BAG)
        return hotbed_f32x4_of(0.0F);
    uint32_t feature = b / s->batch_size;
    uint64_t at = (uint64_t)(b - feature * s->batch_size) * gradient.stride + s->columns[feature];
    hotbed_f32x4 g =
        hotbed_clamp4(hotbed_load4(s->output_dtype, gradient.data, at + e, count), o->max_gradient);
    /* Before the weight, because a rank that shares a bag knows only the bag's number of keys. */
    if (s->pooling == HOTBED_POOL_MEAN) {
        hotbed_bag bag = hotbed_bag_at(s, b, feature);
        g = hotbed_scale4(g, 1.0F / (float)(bag.end - bag.begin));
    }
    return s->weights == NULL ? g : hotbed_scale4(g, s->weights[i]);
}

/* Sum occurrences begin .. end-1, at most a group, in order from zero. The lanes read the
 * positions together; a lane with count 0 has no elements but takes part. Reading several
 * gradients before adding the first is slower on CUDA: the registers reduce occupancy. */
HOTBED_HD hotbed_f32x4 hotbed_sum_group(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_update_shape shape, uint32_t begin, uint32_t end, uint32_t e, uint32_t count,
    uint32_t width) {
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    uint32_t lane = hotbed_tile_rank(width);
    for (uint32_t j = begin; j < end; j += width) {
        uint32_t n = end - j < width ? end - j : width;
        uint32_t mine = s->positions[j + (lane < n ? lane : 0)];
        for (uint32_t k = 0; k < n; k++) {
            uint32_t i = hotbed_tile_shuffle_u32(width, mine, k);
            if (count > 0)
                sum = hotbed_add4(sum, hotbed_gradient4(s, o, gradient, shape, i, e, count));
        }
    }
    return sum;
}

/* The levels above groups; sums are pushed one after the other. */
typedef struct hotbed_fold {
    hotbed_f32x4 sum[HOTBED_SUM_LEVELS];
    uint32_t pushed;
} hotbed_fold;

HOTBED_HD void hotbed_fold_push(hotbed_fold *fold, hotbed_f32x4 value) {
    fold->sum[0] = hotbed_add4(fold->sum[0], value);
    fold->pushed++;
    uint32_t whole = fold->pushed;
    for (uint32_t level = 0; level + 1 < HOTBED_SUM_LEVELS && whole % HOTBED_SUM_GROUP == 0;
         level++) {
        fold->sum[level + 1] = hotbed_add4(fold->sum[level + 1], fold->sum[level]);
        fold->sum[level] = hotbed_f32x4_of(0.0F);
        whole /= HOTBED_SUM_GROUP;
    }
}

HOTBED_HD hotbed_f32x4 hotbed_fold_finish(hotbed_fold *fold) {
    for (uint32_t level = 0; level + 1 < HOTBED_SUM_LEVELS; level++)
        fold->sum[level + 1] = hotbed_add4(fold->sum[level + 1], fold->sum[level]);
    return fold->sum[HOTBED_SUM_LEVELS - 1];
}

/* Sum occurrences begin .. end-1. */
HOTBED_HD hotbed_f32x4 hotbed_sum_all(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_update_shape shape, uint32_t begin, uint32_t end, uint32_t e, uint32_t count,
    uint32_t width) {
    if (end - begin <= HOTBED_SUM_GROUP)
        return hotbed_sum_group(s, o, gradient, shape, begin, end, e, count, width);
    hotbed_fold fold;
    memset(&fold, 0, sizeof fold);
    for (uint32_t j = begin; j < end; j += HOTBED_SUM_GROUP) {
        uint32_t stop = end - j < HOTBED_SUM_GROUP ? end : j + HOTBED_SUM_GROUP;
        hotbed_fold_push(&fold, hotbed_sum_group(s, o, gradient, shape, j, stop, e, count, width));
    }
    return hotbed_fold_finish(&fold);
}

/* Source of a row's sum: occurrences, or sums of groups from an earlier kernel. */
typedef struct hotbed_sum_source {
    uint32_t begin, end;
    const float *partials; /* NULL: occurrences; otherwise sum its rows begin .. end-1 */
    uint64_t partial_stride;
} hotbed_sum_source;

/* Sum rows begin .. end-1 of `partials` in order from zero. */
HOTBED_HD hotbed_f32x4 hotbed_sum_partials(hotbed_sum_source source, uint32_t e) {
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    for (uint32_t j = source.begin; j < source.end; j++)
        sum = hotbed_add4(
            sum, hotbed_load4(HOTBED_F32, source.partials, j * source.partial_stride + e, 4));
    return sum;
}

/* Load elements of a row, a state or a sum. */
HOTBED_HD hotbed_f32x4
hotbed_update_load4(bool plain, uint32_t dtype, const void *p, uint32_t e, uint32_t count) {
    return plain ? *(const hotbed_f32x4 *)(const void *)((const float *)p + e)
                 : hotbed_load4(dtype, p, e, count);
}

HOTBED_HD void hotbed_update_store4(
    bool plain, uint32_t dtype, void *p, uint32_t e, uint32_t count, hotbed_f32x4 v) {
    if (plain)
        *(hotbed_f32x4 *)(void *)((float *)p + e) = v;
    else
        hotbed_store4(dtype, p, e, count, v);
}

/* Elements of the row's gradient. */
HOTBED_HD hotbed_f32x4 hotbed_sum_from(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_sum_source source, hotbed_update_shape shape, uint32_t e, uint32_t count,
    uint32_t width) {
    if (shape.reduced)
        return count == 0
                   ? hotbed_f32x4_of(0.0F)
                   : hotbed_update_load4(
                         shape.plain, HOTBED_F32,
                         (const float *)gradient.data + source.begin * gradient.stride, e, count);
    if (!shape.split)
        return hotbed_sum_all(s, o, gradient, shape, source.begin, source.end, e, count, width);
    if (source.partials == NULL)
        return hotbed_sum_group(s, o, gradient, shape, source.begin, source.end, e, count, width);
    if (count == 0)
        return hotbed_f32x4_of(0.0F);
    if (source.end - source.begin <= HOTBED_SUM_GROUP)
        return hotbed_sum_partials(source, e);
    hotbed_fold fold;
    memset(&fold, 0, sizeof fold);
    for (uint32_t j = source.begin; j < source.end; j++)
        hotbed_fold_push(
            &fold, hotbed_load4(HOTBED_F32, source.partials, j * source.partial_stride + e, 4));
    return hotbed_fold_finish(&fold);
}

/* Row-wise AdaGrad: the row's accumulator after this step. All lanes get it. */
HOTBED_HD float hotbed_rowwise_sum(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, float *state, hotbed_sum_source source,
    hotbed_update_shape shape, uint32_t width) {
    float shares[32];
    for (uint32_t k = 0; k < 32 / width; k++)
        shares[k] = 0.0F;
    uint32_t rank = hotbed_tile_rank(width);
    for (uint32_t first = 0; first < table->dim; first += 4 * width) {
        uint32_t e = first + 4 * rank;
        uint32_t count = e < table->dim ? hotbed_count4(table->dim, e) : 0;
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        uint32_t k = (e / 4 % 32) / width;
        if (count == 0)
            continue;
        shares[k] = shares[k] + g.x * g.x;
        shares[k] = shares[k] + g.y * g.y;
        shares[k] = shares[k] + g.z * g.z;
        shares[k] = shares[k] + g.w * g.w;
    }
    float sum = *state + hotbed_mean_square(shares, table->dim, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        *state = sum;
    return sum;
}

/* One optimizer step of the row with parts at row, state0 and state1. Of `table` it reads dim and
 * dtype only; `s` is not read if the gradient is reduced. */
HOTBED_HD void hotbed_update_parts(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table, uint8_t *row, float *state0,
    float *state1, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    float row_sum = 0.0F;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        row_sum = hotbed_rowwise_sum(s, o, gradient, table, state0, source, shape, width);
    for (uint32_t first = 0; first < table->dim; first += 4 * width) {
        uint32_t e = first + 4 * hotbed_tile_rank(width);
        uint32_t count = e < table->dim ? hotbed_count4(table->dim, e) : 0;
        bool elementwise = o->kind == HOTBED_OPT_ADAM || o->kind == HOTBED_OPT_ADAGRAD;
        hotbed_f32x4 w = {0.0F, 0.0F, 0.0F, 0.0F}, a = hotbed_f32x4_of(row_sum), b = a;
        if (count > 0) {
            w = hotbed_update_load4(shape.plain, table->dtype, row, e, count);
            if (elementwise)
                a = hotbed_update_load4(shape.plain, HOTBED_F32, state0, e, count);
            if (o->kind == HOTBED_OPT_ADAM)
                b = hotbed_update_load4(shape.plain, HOTBED_F32, state1, e, count);
        }
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        if (count == 0)
            continue;
        w = hotbed_optimize4(o, clock, w, g, &a, &b);
        hotbed_update_store4(shape.plain, table->dtype, row, e, count, w);
        if (elementwise)
            hotbed_update_store4(shape.plain, HOTBED_F32, state0, e, count, a);
        if (o->kind == HOTBED_OPT_ADAM)
            hotbed_update_store4(shape.plain, HOTBED_F32, state1, e, count, b);
    }
}

/* Unpin the row in `slot` after its update. */
HOTBED_HD void hotbed_unpin_updated(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot, uint32_t width) {
    if (slot >= s->index_slots)
        return;
    bool moves = table->range.evicts != 0;
    if (moves)
        hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (table->tiers == HOTBED_TIERS_CACHE && slot < table->lower_first)
        hotbed_index_mark(s->index, slot);
    hotbed_index_unpin(s->index, slot, moves);
}

/* Update the row in `slot` and unpin it. */
HOTBED_HD void hotbed_update_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, uint64_t slot, hotbed_sum_source source,
    hotbed_update_shape shape, uint32_t width) {
    uint8_t *row = hotbed_row_at(s->index, table, slot);
    float *state0 = (float *)(void *)(row + table->state_offset[0]);
    float *state1 = (float *)(void *)(row + table->state_offset[1]);
    hotbed_update_parts(s, o, s->clock, gradient, table, row, state0, state1, source, shape, width);
    hotbed_unpin_updated(s, table, slot, width);
}

/* --- reduce and apply; rows outside of tables ------------------------------------------------- */

/* Output of reduce: the sum of row u is at data + u * stride. */
typedef struct hotbed_sums_view {
    float *data;
    uint64_t stride;
    bool add; /* add to the existing values */
} hotbed_sums_view;

/* Write the gradient of row u, which has `dim` elements. */
HOTBED_HD void hotbed_reduce_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t dim, uint64_t u, hotbed_sum_source source, hotbed_update_shape shape,
    hotbed_sums_view sums, uint32_t width) {
    for (uint32_t first = 0; first < dim; first += 4 * width) {
        uint32_t e = first + 4 * hotbed_tile_rank(width);
        uint32_t count = e < dim ? hotbed_count4(dim, e) : 0;
        hotbed_f32x4 sum = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        if (count == 0)
            continue;
        uint64_t at = u * sums.stride + e;
        if (sums.add)
            sum = hotbed_add4(hotbed_load4(HOTBED_F32, sums.data, at, count), sum);
        hotbed_store4(HOTBED_F32, sums.data, at, count, sum);
    }
}

/* Rows in arrays of the caller; see hotbed/optimizer.h. */
typedef struct hotbed_update_rows_args {
    hotbed_optimizer_view o;
    const hotbed_optimizer_clock *clock;
    hotbed_table_view row;        /* only dim and dtype are set */
    uint8_t *weights, *states[2]; /* an absent state points to another part and is never read */
    uint64_t weights_bytes, state_bytes; /* distance between rows */
    const float *gradients;              /* [n, dim] */
    uint64_t n;
} hotbed_update_rows_args;

HOTBED_HD void hotbed_update_given_row(
    const hotbed_update_rows_args *a, uint64_t i, uint32_t width) {
    const hotbed_update_shape shape = {false, false, true};
    const hotbed_gradient_view gradient = {a->gradients + i * a->row.dim, a->row.dim};
    const hotbed_sum_source source = {0, 0, NULL, 0};
    float *state0 = (float *)(void *)(a->states[0] + i * a->state_bytes);
    float *state1 = (float *)(void *)(a->states[1] + i * a->state_bytes);
    hotbed_clock clock;
    clock.optimizer = *a->clock;
    hotbed_clock_correct(&clock);
    hotbed_update_parts(
        NULL, &a->o, &clock, gradient, &a->row, a->weights + i * a->weights_bytes, state0, state1,
        source, shape, width);
}

#endif
