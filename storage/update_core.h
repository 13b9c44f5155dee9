/* storage/update_core.h - from output gradients to updated rows.
 *
 * Order of a row's sum: its occurrences by position in groups of 32, the groups' sums in groups of 32,
 * and so on, each from zero (hotbed/storage.h).  A level more or less of the tree adds zeros only, which
 * changes nothing, so CUDA may sum levels in separate kernels and the host in one loop.
 */
#ifndef HOTBED_STORAGE_UPDATE_CORE_H
#define HOTBED_STORAGE_UPDATE_CORE_H

#include "storage/optimizer_core.h"
#include "storage/step_core.h"

enum { HOTBED_SUM_GROUP = 32, HOTBED_SUM_LEVELS = 6 }; /* 32^6 = 2^30 groups of 32 */

typedef struct hotbed_gradient_view {
    const void *data;
    uint64_t stride; /* elements */
} hotbed_gradient_view;

/* Gradient of key number i, elements e ..: clamped, then scaled as pooling did. */
HOTBED_HD hotbed_f32x4 hotbed_gradient4(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t i, uint32_t e, uint32_t count) {
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
    float weight = s->weights == NULL ? 1.0F : s->weights[i];
    if (s->pooling == HOTBED_POOL_MEAN) {
        hotbed_bag bag = hotbed_bag_at(s, b, feature);
        return hotbed_scale4(g, weight / (float)(bag.end - bag.begin));
    }
    return s->weights == NULL ? g : hotbed_scale4(g, weight);
}

/* Sum of occurrences begin .. end-1, at most a group, one after the other from zero; `ahead` gradients
 * are read before they are added. */
HOTBED_HD hotbed_f32x4 hotbed_sum_group(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t begin, uint32_t end, uint32_t e, uint32_t count) {
    enum { AHEAD = 4 };
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    uint32_t j = begin;
    for (; j + AHEAD <= end; j += AHEAD) {
        hotbed_f32x4 g[AHEAD];
        HOTBED_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++)
            g[k] = hotbed_gradient4(s, o, gradient, s->positions[j + k], e, count);
        HOTBED_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++)
            sum = hotbed_add4(sum, g[k]);
    }
    for (; j < end; j++)
        sum = hotbed_add4(sum, hotbed_gradient4(s, o, gradient, s->positions[j], e, count));
    return sum;
}

/* The levels above a group: sums are pushed one after the other. */
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

/* Sum of all occurrences begin .. end-1. */
HOTBED_HD hotbed_f32x4 hotbed_sum_all(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t begin, uint32_t end, uint32_t e, uint32_t count) {
    if (end - begin <= HOTBED_SUM_GROUP)
        return hotbed_sum_group(s, o, gradient, begin, end, e, count);
    hotbed_fold fold;
    memset(&fold, 0, sizeof fold);
    for (uint32_t j = begin; j < end; j += HOTBED_SUM_GROUP) {
        uint32_t stop = end - j < HOTBED_SUM_GROUP ? end : j + HOTBED_SUM_GROUP;
        hotbed_fold_push(&fold, hotbed_sum_group(s, o, gradient, j, stop, e, count));
    }
    return hotbed_fold_finish(&fold);
}

/* Where the sum of a row comes from: occurrences, or sums of groups that another kernel made. */
typedef struct hotbed_sum_source {
    uint32_t begin, end;
    const float *partials; /* NULL: occurrences; else rows begin .. end-1 of it are to be summed */
    uint64_t partial_stride;
} hotbed_sum_source;

/* Sum of rows begin .. end-1 of `partials`, one after the other from zero. */
HOTBED_HD hotbed_f32x4 hotbed_sum_partials(hotbed_sum_source source, uint32_t e) {
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    for (uint32_t j = source.begin; j < source.end; j++)
        sum = hotbed_add4(
            sum, hotbed_load4(HOTBED_F32, source.partials, j * source.partial_stride + e, 4));
    return sum;
}

/* The row's gradient.  `split`: rows of more occurrences than a group come as partials. */
HOTBED_HD hotbed_f32x4 hotbed_sum_from(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_sum_source source, bool split, uint32_t e, uint32_t count) {
    if (!split)
        return hotbed_sum_all(s, o, gradient, source.begin, source.end, e, count);
    if (source.partials == NULL)
        return hotbed_sum_group(s, o, gradient, source.begin, source.end, e, count);
    if (source.end - source.begin <= HOTBED_SUM_GROUP)
        return hotbed_sum_partials(source, e);
    hotbed_fold fold;
    memset(&fold, 0, sizeof fold);
    for (uint32_t j = source.begin; j < source.end; j++)
        hotbed_fold_push(
            &fold, hotbed_load4(HOTBED_F32, source.partials, j * source.partial_stride + e, 4));
    return hotbed_fold_finish(&fold);
}

/* Row-wise AdaGrad's accumulator of the row after this step; all lanes get it. */
HOTBED_HD float hotbed_rowwise_sum(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, float *state, hotbed_sum_source source, bool split,
    uint32_t width) {
    float shares[32];
    for (uint32_t k = 0; k < 32 / width; k++)
        shares[k] = 0.0F;
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
        hotbed_f32x4 g =
            hotbed_sum_from(s, o, gradient, source, split, e, hotbed_count4(table->dim, e));
        uint32_t k = (e / 4 % 32) / width;
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

/* Update the row in `slot`, and unpin it. */
HOTBED_HD void hotbed_update_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, uint64_t slot, hotbed_sum_source source, bool split,
    uint32_t width) {
    uint8_t *row = hotbed_row_at(table, slot);
    float *state0 = (float *)(void *)(row + table->state_offset[0]);
    float *state1 = (float *)(void *)(row + table->state_offset[1]);
    float row_sum = 0.0F;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        row_sum = hotbed_rowwise_sum(s, o, gradient, table, state0, source, split, width);
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width) {
        uint32_t count = hotbed_count4(table->dim, e);
        bool elementwise = o->kind == HOTBED_OPT_ADAM || o->kind == HOTBED_OPT_ADAGRAD;
        hotbed_f32x4 w = hotbed_load4(table->dtype, row, e, count);
        hotbed_f32x4 a = hotbed_f32x4_of(row_sum), b = a;
        if (elementwise)
            a = hotbed_load4(HOTBED_F32, state0, e, count);
        if (o->kind == HOTBED_OPT_ADAM)
            b = hotbed_load4(HOTBED_F32, state1, e, count);
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, split, e, count);
        w = hotbed_optimize4(o, s->clock, w, g, &a, &b);
        hotbed_store4(table->dtype, row, e, count, w);
        if (elementwise)
            hotbed_store4(HOTBED_F32, state0, e, count, a);
        if (o->kind == HOTBED_OPT_ADAM)
            hotbed_store4(HOTBED_F32, state1, e, count, b);
    }
    if (slot >= s->index_slots)
        return;
    if (table->range.evicts != 0)
        hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        hotbed_index_unpin(s->index, slot, table->range.evicts != 0);
}

#endif
