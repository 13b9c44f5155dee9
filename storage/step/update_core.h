/* storage/step/update_core.h - backward: from output gradients to updated rows.
 *
 * A row's gradients are summed in a fixed order (hotbed/storage.h): by position in groups of 32,
 * the sums of groups in groups of 32, and so on, each sum from zero. An additional level of the
 * tree only adds to zero, which changes no bit. So CUDA can sum each level in a separate kernel,
 * and the host all levels in one loop.
 */
#pragma once

#include "base/fault.h"
#include "hotbed/status.h"
#include "storage/index/index_meta_core.h"
#include "storage/step/optimizer_core.h"
#include "storage/step/packed_core.h"
#include "storage/step/step_core.h"

enum { HOTBED_SUM_GROUP = 32, HOTBED_SUM_LEVELS = 6 }; /* 32^6 = 2^30 groups of 32 */

typedef struct hotbed_gradient_view {
    const void *data;
    uint64_t stride; /* in elements */
    uint32_t dtype;  /* hotbed_dtype */
    /* Pooling: [bags] where the gradient of each bag is, instead of in `data`; NULL, for a bag: it
     * has none. Four elements are aligned to their size if `data` and `stride` are so. */
    const uint8_t *const *bags;
} hotbed_gradient_view;

/* Properties for which a kernel is compiled. They are literals, so that the compiler removes the
 * code for other cases. */
typedef struct hotbed_update_shape {
    bool split; /* rows with more occurrences than a group have partial sums */
    /* f32 rows and gradients, aligned, dims that are multiples of 4, sequence output, no clamping:
     * elements can be loaded four at a time without checks */
    bool plain;
    bool reduced; /* the gradient is the sums of rows in f32; this row's is row source.begin */
    bool own;     /* tables may have rates of their own; otherwise `rates` is NULL */
    bool narrow;  /* states may be narrower than f32; never if `plain` */
} hotbed_update_shape;

/* Where the gradient of an occurrence begins, and the factors of pooling. */
typedef struct hotbed_occurrence {
    uint64_t at; /* address; 0: there is none, since the key is in no bag */
    float mean;  /* MEAN: 1 / number of keys of the bag */
    float weight;
} hotbed_occurrence;

/* Occurrence i of unique.positions. */
HOTBED_HD hotbed_occurrence
hotbed_occurrence_of(const hotbed_step_view *s, hotbed_gradient_view gradient, uint32_t i) {
    const uint64_t size = hotbed_dtype_size(gradient.dtype);
    hotbed_occurrence o = {0, 1.0F, 1.0F};
    if (s->storage.pooling == HOTBED_POOL_NONE) {
        o.at = (uint64_t)(uintptr_t)gradient.data + i * gradient.stride * size;
        return o;
    }
    uint32_t b = hotbed_occurrence_bag(s, i);
    if (b == HOTBED_NO_BAG)
        return o;
    uint32_t feature = b / s->batch.size;
    if (gradient.bags != NULL)
        o.at = (uint64_t)(uintptr_t)gradient.bags[b];
    else
        o.at = (uint64_t)(uintptr_t)gradient.data +
               ((uint64_t)(b - feature * s->batch.size) * gradient.stride +
                s->storage.columns[feature]) *
                   size;
    if (s->storage.pooling == HOTBED_POOL_MEAN) {
        hotbed_bag bag = hotbed_bag_at(s, b, feature);
        o.mean = 1.0F / (float)(bag.end - bag.begin);
    }
    if (s->batch.weights != NULL)
        o.weight = s->batch.weights[i];
    return o;
}

/* Elements of a gradient, clamped and then scaled as in pooling: by `mean` before `weight`, because
 * in a sharded collection the rank that has the bag applies `mean`, and the owner of the row then
 * applies `weight`. */
HOTBED_HD hotbed_f32x4 hotbed_gradient_scaled(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_f32x4 g, float mean,
    float weight) {
    g = hotbed_clamp4(g, o->max_gradient);
    if (s->storage.pooling == HOTBED_POOL_MEAN)
        g = hotbed_scale4(g, mean);
    return s->batch.weights == NULL || s->storage.pooling == HOTBED_POOL_NONE
               ? g
               : hotbed_scale4(g, weight);
}

/* Sum sequence occurrences begin .. end-1, at most a group, in order from zero. Reading several
 * gradients before adding the first is slower on CUDA: the registers reduce occupancy. */
HOTBED_HD hotbed_f32x4 hotbed_sum_plain(
    const hotbed_step_view *s, hotbed_gradient_view gradient, uint32_t begin, uint32_t end,
    uint32_t e, uint32_t count, uint32_t width) {
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    uint32_t lane = hotbed_tile_rank(width);
    for (uint32_t j = begin; j < end; j += width) {
        uint32_t n = end - j < width ? end - j : width;
        uint32_t mine = s->unique.positions[j + (lane < n ? lane : 0)];
        for (uint32_t k = 0; k < n; k++) {
            uint32_t i = hotbed_tile_shuffle_u32(width, mine, k);
            if (count > 0)
                sum = hotbed_add4(
                    sum,
                    *(const hotbed_f32x4
                          *)(const void *)((const float *)gradient.data + i * gradient.stride + e));
        }
    }
    return sum;
}

/* Sum occurrences begin .. end-1, at most one group, in order from zero. Each lane looks up one
 * occurrence; then all lanes read the gradients. A lane with count 0 has no elements, but must take
 * part. */
HOTBED_HD hotbed_f32x4 hotbed_sum_group(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    hotbed_update_shape shape, uint32_t begin, uint32_t end, uint32_t e, uint32_t count,
    uint32_t width) {
    if (shape.plain)
        return hotbed_sum_plain(s, gradient, begin, end, e, count, width);
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    uint32_t lane = hotbed_tile_rank(width);
    for (uint32_t j = begin; j < end; j += width) {
        uint32_t n = end - j < width ? end - j : width;
        hotbed_occurrence mine =
            hotbed_occurrence_of(s, gradient, s->unique.positions[j + (lane < n ? lane : 0)]);
        for (uint32_t k = 0; k < n; k++) {
            uint64_t at = hotbed_tile_shuffle_u64(width, mine.at, k);
            float mean = hotbed_tile_shuffle_f32(width, mine.mean, k);
            float weight = hotbed_tile_shuffle_f32(width, mine.weight, k);
            if (count > 0 && at != 0)
                sum = hotbed_add4(
                    sum,
                    hotbed_gradient_scaled(
                        s, o, hotbed_load4(gradient.dtype, (const void *)(uintptr_t)at, e, count),
                        mean, weight));
        }
    }
    return sum;
}

/* The sums of the levels above groups. The sums of groups are pushed one after the other. */
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

/* The same for at most one group, but several rows are loaded before the first is added. */
HOTBED_HD hotbed_f32x4 hotbed_sum_partials_ahead(hotbed_sum_source source, uint32_t e) {
    enum { AHEAD = 8 };
    hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
    for (uint32_t j = source.begin; j < source.end; j += AHEAD) {
        hotbed_f32x4 v[AHEAD];
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++)
            v[a] = j + a < source.end
                       ? hotbed_load4(
                             HOTBED_F32, source.partials, (j + a) * source.partial_stride + e, 4)
                       : hotbed_f32x4_of(0.0F);
        HOTBED_UNROLL
        for (uint32_t a = 0; a < AHEAD; a++)
            sum = hotbed_add4(sum, v[a]);
    }
    return sum;
}

/* Sum any number of rows of `partials`, in groups. */
HOTBED_HD hotbed_f32x4 hotbed_sum_groups(hotbed_sum_source source, uint32_t e) {
    hotbed_fold fold;
    memset(&fold, 0, sizeof fold);
    for (uint32_t j = source.begin; j < source.end; j++)
        hotbed_fold_push(
            &fold, hotbed_load4(HOTBED_F32, source.partials, j * source.partial_stride + e, 4));
    return hotbed_fold_finish(&fold);
}

/* Load elements of a row. */
HOTBED_HD hotbed_f32x4 hotbed_update_row4(
    bool plain, const hotbed_table_view *table, const uint8_t *row, uint32_t e, uint32_t count) {
    return plain ? *(const hotbed_f32x4 *)(const void *)(row + e * sizeof(float))
                 : hotbed_row_load4(false, table->dtype, table->dim, row, e, count);
}

/* Load elements of a state or a sum. */
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

/* Load elements of state number s, which is as long as the row. */
HOTBED_HD hotbed_f32x4 hotbed_state_load4(
    hotbed_update_shape shape, const hotbed_table_view *table, uint32_t s, const void *state,
    uint32_t e, uint32_t count) {
    return hotbed_update_load4(
        shape.plain, shape.narrow ? table->state_dtype[s] : (uint32_t)HOTBED_F32, state, e, count);
}

/* Store elements of state number s after a step. */
HOTBED_HD void hotbed_state_step4(
    hotbed_update_shape shape, const hotbed_table_view *table, const hotbed_rounding_view *rounding,
    uint32_t s, void *state, uint32_t e, uint32_t count, hotbed_f32x4 v) {
    if (shape.narrow && table->state_dtype[s] != HOTBED_F32)
        hotbed_half_state_step4(rounding, s, state, e, count, v);
    else
        hotbed_update_store4(shape.plain, HOTBED_F32, state, e, count, v);
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
    return source.end - source.begin <= HOTBED_SUM_GROUP ? hotbed_sum_partials(source, e)
                                                         : hotbed_sum_groups(source, e);
}

/* What a step uses of the whole row. */
typedef struct hotbed_whole_row {
    float number; /* the state of one number, after this step; of two, the second */
    float ratio;  /* factor of the learning rate */
    float mean;   /* of two numbers, the first */
} hotbed_whole_row;

/* Elements of the first state, if it is one number. */
HOTBED_HD hotbed_f32x4 hotbed_first_number(hotbed_state_form form, hotbed_whole_row whole) {
    return hotbed_f32x4_of(hotbed_has_mean(form) ? whole.mean : whole.number);
}

/* Compute what the optimizer uses of the whole row, and store the state of one number. All lanes get
 * it. `row` is read for ratios and L2 decay. */
HOTBED_HD hotbed_whole_row hotbed_measure_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table, const uint8_t *row, void *state0,
    void *state1, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    const bool first_wide = hotbed_state_is_wide(o->form, 0);
    const bool second_wide = hotbed_state_is_wide(o->form, 1);
    const bool ratio = hotbed_has_ratio(o->form), mean = hotbed_has_mean(o->form);
    float *const number_at = (float *)(first_wide || mean ? state1 : state0);
    float *const mean_at = (float *)state0;
    hotbed_whole_row whole = {0.0F, 1.0F, 0.0F};
    float shares[32], rows[32];
    for (uint32_t k = 0; k < 32 / width; k++)
        shares[k] = rows[k] = 0.0F;
    uint32_t rank = hotbed_tile_rank(width);
    for (uint32_t first = 0; first < table->dim; first += 4 * width) {
        uint32_t e = first + 4 * rank;
        uint32_t count = e < table->dim ? hotbed_count4(table->dim, e) : 0;
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        uint32_t k = (e / 4 % 32) / width;
        if (count == 0)
            continue;
        if (o->l2_decay != 0.0F || ratio) {
            const hotbed_f32x4 w = hotbed_update_row4(shape.plain, table, row, e, count);
            g = hotbed_l2_decay4(o, w, g);
            if (ratio) {
                hotbed_f32x4 a = g, b = g;
                if (first_wide)
                    a = hotbed_state_load4(shape, table, 0, state0, e, count);
                if (second_wide)
                    b = hotbed_state_load4(shape, table, 1, state1, e, count);
                rows[k] = hotbed_add_squares(rows[k], w);
                g = hotbed_first4(hotbed_measured4(o, clock, w, g, a, b), count);
            }
        }
        if (mean)
            rows[k] = hotbed_add_elements(rows[k], hotbed_first4(g, count));
        shares[k] = hotbed_add_squares(shares[k], g);
    }
    const float sum = hotbed_sum_shares(shares, width);
    if (ratio) {
        whole.ratio = hotbed_ratio(o, hotbed_sum_shares(rows, width), sum);
    } else {
        whole.number = hotbed_number_after(o, *number_at, sum / (float)table->dim);
        if (mean)
            whole.mean =
                hotbed_mean_after(o, *mean_at, hotbed_sum_shares(rows, width) / (float)table->dim);
        hotbed_tile_sync(width);
        if (hotbed_tile_rank(width) == 0) {
            *number_at = whole.number;
            if (mean)
                *mean_at = whole.mean;
        }
    }
    return whole;
}

/* Whether the first state of a row has the remainders of its elements. Rows of 16 bits have none: their noise
 * costs nothing (bench/results/row-types.md). */
HOTBED_HD bool hotbed_row_carries(
    const hotbed_table_view *table, hotbed_state_form form, bool random) {
    return random && hotbed_dtype_size(table->dtype) == 1 && hotbed_state_is_wide(form, 0) &&
           table->state_dtype[0] == HOTBED_F32;
}

/* The same as hotbed_update_parts() for a row of a type with scales. A first pass over a chunk finds the
 * range of the new values, a second one stores them. If a lane has more than four elements of a chunk,
 * the second pass computes them again; otherwise it still has them. */
HOTBED_HD uint32_t hotbed_update_scaled_as(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table,
    const hotbed_rounding_view *rounding, uint8_t *row, void *state0, void *state1,
    hotbed_whole_row whole, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    const uint32_t dim = table->dim, dtype = table->dtype, lane = hotbed_tile_rank(width);
    const hotbed_scale_walk walk = hotbed_scale_walk_of(dtype, dim, width);
    const bool first_wide = hotbed_state_is_wide(o->form, 0);
    const bool second_wide = hotbed_state_is_wide(o->form, 1);
    const bool carries = hotbed_row_carries(table, o->form, rounding->random);
    uint32_t bits = 0;
    for (uint32_t from = 0; from < dim; from += walk.chunk) {
        const uint32_t end = dim - from < walk.chunk ? dim : from + walk.chunk;
        const bool has = from + 4 * lane < end;
        const uint32_t before =
            has ? hotbed_scale_load(false, dtype, dim, row, from + 4 * lane) : 0;
        const bool again = end - from > 4 * width;
        uint32_t word = 0, rest = 0;
        hotbed_scale_range range = hotbed_scale_range_start(dtype);
        hotbed_f32x4 w = hotbed_f32x4_of(0.0F), a = w, b = w, v = w;
        for (int pass = 0; pass < 2; pass++) {
            for (uint32_t first = from; first < end; first += 4 * width) {
                const uint32_t e = first + 4 * lane;
                const uint32_t count = e < end ? hotbed_count4(end, e) : 0;
                if (pass == 0 || again) {
                    const hotbed_f32x4 g =
                        hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
                    if (count == 0)
                        continue;
                    const uint32_t four = *(const uint32_t *)(const void *)(row + e);
                    w = hotbed_scaled4_to_f32(dtype, before, four);
                    const hotbed_f32x4 decayed = hotbed_l2_decay4(o, w, g);
                    a = first_wide ? hotbed_state_load4(shape, table, 0, state0, e, count)
                                   : hotbed_first_number(o->form, whole);
                    b = second_wide ? hotbed_state_load4(shape, table, 1, state1, e, count)
                                    : hotbed_f32x4_of(whole.number);
                    if (carries) {
                        rest = hotbed_remainder_take4(&a);
                        w = hotbed_carried4_to_f32(dtype, before, four, rest);
                    }
                    v = hotbed_optimize4_called(o, clock, w, decayed, &a, &b);
                }
                if (count == 0)
                    continue;
                if (pass == 0) {
                    hotbed_scale_range_add4(dtype, &range, count, v);
                    bits |= v.x != w.x || (count > 1 && v.y != w.y) || (count > 2 && v.z != w.z) ||
                                    (count > 3 && v.w != w.w)
                                ? HOTBED_ROW_STEPS
                                : 0;
                    continue;
                }
                hotbed_u32x4 words = {0, 0, 0, 0};
                if (rounding->random)
                    words = hotbed_rounding_words(rounding, e);
                hotbed_carried4 to = hotbed_scaled4_round(
                    dtype, hotbed_scale_divisor_of(dtype, word), v, carries, rounding->random,
                    words);
                if (word == before)
                    to = hotbed_carried4_keep(
                        to, *(const uint32_t *)(const void *)(row + e), rest,
                        hotbed_scaled4_differ(v, w));
                bits |= hotbed_scaled4_store(row, e, count, to.four) ? HOTBED_ROW_CHANGES : 0;
                if (carries) {
                    bits |= hotbed_first_bytes(to.rest ^ rest, count) != 0 ? HOTBED_ROW_CHANGES : 0;
                    a = hotbed_remainder_put4(a, to.rest, words);
                }
                if (first_wide)
                    hotbed_state_step4(shape, table, rounding, 0, state0, e, count, a);
                if (second_wide)
                    hotbed_state_step4(shape, table, rounding, 1, state1, e, count, b);
            }
            if (pass == 0) {
                hotbed_scale_range_join(&range, walk.lanes, width);
                hotbed_tile_sync(width); /* all lanes have `before` */
                word = hotbed_scale_choose(dtype, range, before, true);
            }
        }
        if (has && word != before)
            bits |= HOTBED_ROW_CHANGES;
        if (has && lane % walk.lanes == 0)
            hotbed_scale_store(dtype, dim, row, from + 4 * lane, word);
    }
    return bits;
}

/* hotbed_update_scaled_as(), compiled for f32 states and for narrow ones. */
HOTBED_APART uint32_t hotbed_update_scaled(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table,
    const hotbed_rounding_view *rounding, uint8_t *row, void *state0, void *state1,
    hotbed_whole_row whole, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    shape.narrow = false;
    return hotbed_update_scaled_as(
        s, o, clock, gradient, table, rounding, row, state0, state1, whole, source, shape, width);
}

HOTBED_APART uint32_t hotbed_update_scaled_narrow(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table,
    const hotbed_rounding_view *rounding, uint8_t *row, void *state0, void *state1,
    hotbed_whole_row whole, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    shape.narrow = true;
    return hotbed_update_scaled_as(
        s, o, clock, gradient, table, rounding, row, state0, state1, whole, source, shape, width);
}

/* Count a step of the row, and set the bias correction of *clock. */
HOTBED_HD void hotbed_row_count(
    hotbed_clock *clock, const hotbed_optimizer_view *o, float *state1, uint32_t dim,
    uint32_t width) {
    const float steps = hotbed_row_step(clock, o->beta1, o->beta2, state1, dim);
    hotbed_tile_sync(width); /* all lanes have read the number before */
    if (hotbed_tile_rank(width) == 0)
        state1[dim] = steps;
}

/* One optimizer step of the row with parts at row, state0 and state1. Reads only dim and types of
 * `table`, and does not read `s` if the gradient is reduced. Returns the lane's HOTBED_ROW_ bits. */
HOTBED_HD uint32_t hotbed_update_parts(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_clock *clock,
    hotbed_gradient_view gradient, const hotbed_table_view *table,
    const hotbed_rounding_view *rounding, uint8_t *row, void *state0, void *state1,
    hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    const bool first_wide = hotbed_state_is_wide(o->form, 0);
    const bool second_wide = hotbed_state_is_wide(o->form, 1);
    hotbed_whole_row whole = {0.0F, 1.0F, 0.0F};
    hotbed_clock scaled;
    uint32_t bits = 0;
    if (hotbed_counts_row_steps(o->form)) {
        scaled = hotbed_clock_copy(clock);
        hotbed_row_count(&scaled, o, (float *)state1, table->dim, width);
        clock = &scaled;
    }
    if (hotbed_has_number(o->form) || hotbed_has_ratio(o->form))
        whole = hotbed_measure_row(
            s, o, clock, gradient, table, row, state0, state1, source, shape, width);
    if (hotbed_has_ratio(o->form)) {
        scaled = hotbed_clock_copy(clock);
        scaled.optimizer.learning_rate *= whole.ratio;
        clock = &scaled;
    }
    if (!shape.plain && hotbed_dtype_size(table->dtype) == 1)
        return shape.narrow ? hotbed_update_scaled_narrow(
                                  s, o, clock, gradient, table, rounding, row, state0, state1,
                                  whole, source, shape, width)
                            : hotbed_update_scaled(
                                  s, o, clock, gradient, table, rounding, row, state0, state1,
                                  whole, source, shape, width);
    for (uint32_t first = 0; first < table->dim; first += 4 * width) {
        uint32_t e = first + 4 * hotbed_tile_rank(width);
        uint32_t count = e < table->dim ? hotbed_count4(table->dim, e) : 0;
        hotbed_f32x4 w = {0.0F, 0.0F, 0.0F, 0.0F}, a = hotbed_first_number(o->form, whole);
        hotbed_f32x4 b = hotbed_f32x4_of(whole.number);
        if (count > 0) {
            w = hotbed_update_row4(shape.plain, table, row, e, count);
            if (first_wide)
                a = hotbed_state_load4(shape, table, 0, state0, e, count);
            if (second_wide)
                b = hotbed_state_load4(shape, table, 1, state1, e, count);
        }
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        if (count == 0)
            continue;
        const hotbed_f32x4 v = hotbed_optimize4(o, clock, w, hotbed_l2_decay4(o, w, g), &a, &b);
        if (shape.plain)
            hotbed_update_store4(true, HOTBED_F32, row, e, count, v);
        else
            bits |= hotbed_row_step4(table->dtype, rounding, row, e, count, w, v);
        if (first_wide)
            hotbed_state_step4(shape, table, rounding, 0, state0, e, count, a);
        if (second_wide)
            hotbed_state_step4(shape, table, rounding, 1, state1, e, count, b);
    }
    return bits;
}

/* Count the row if its step was lost to rounding: some element had another value in f32, but no
 * stored element has changed. `bits` are the lane's HOTBED_ROW_ bits. */
HOTBED_HD void hotbed_count_rounded_away(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t bits, uint32_t width) {
    if (hotbed_tile_or(width, bits) == HOTBED_ROW_STEPS && hotbed_tile_rank(width) == 0)
        hotbed_add_relaxed_u64(&s->storage.tallies[table - s->storage.tables].rounded_away, 1);
}

/* The rounding of unique key u, whose row the present step updates. */
HOTBED_HD hotbed_rounding_view
hotbed_unique_rounding(const hotbed_step_view *s, const hotbed_table_view *table, uint32_t u) {
    return table->random == 0
               ? hotbed_rounding_to_nearest()
               : hotbed_rounding_of(table, s->unique.keys[u], s->storage.clock->optimizer.steps);
}

/* One lane: count that the row in `slot` is not updated, because its gradient is not finite. */
HOTBED_HD void hotbed_gradient_refused(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, const hotbed_table_view *table,
    uint64_t slot) {
    const uint32_t t = (uint32_t)(table - s->storage.tables);
    const uint64_t key = hotbed_table_indexed(table)
                             ? hotbed_load_relaxed_u64(hotbed_index_key(s->storage.index, slot))
                             : slot - table->first_slot;
    hotbed_add_relaxed_u64(&s->storage.tallies[t].nonfinite, 1);
    hotbed_fault_latch(o->faults, HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_GRADIENT, t, key, 0);
}

/* Whether all elements of the row's gradient are finite. All lanes get the answer. */
HOTBED_HD bool hotbed_gradient_is_finite(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t dim, hotbed_sum_source source, hotbed_update_shape shape, uint32_t width) {
    bool finite = true;
    for (uint32_t first = 0; first < dim; first += 4 * width) {
        uint32_t e = first + 4 * hotbed_tile_rank(width);
        uint32_t count = e < dim ? hotbed_count4(dim, e) : 0;
        hotbed_f32x4 g = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        finite = finite && (count == 0 || hotbed_is_finite4(g));
    }
    return hotbed_tile_ballot(width, !finite) == 0;
}

/* One lane: the row of unique key u, of table t, is changed. Call it before the update unpins the row,
 * because then the row may move. */
HOTBED_HD void hotbed_unique_changed(const hotbed_step_view *s, uint64_t u, uint32_t t) {
    const uint64_t slot = s->unique.slots[u];
    if (slot != HOTBED_SLOT_NONE)
        hotbed_set_changed(s->storage.index, &s->storage.tables[t], slot);
}

/* Unpin the row in `slot` after its update. */
HOTBED_HD void hotbed_unpin_updated(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot, uint32_t width) {
    if (slot >= s->storage.index_slots)
        return;
    bool moves = table->range.evicts != 0;
    if (moves)
        hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (table->tiers == HOTBED_TIERS_CACHE && slot < table->lower_first)
        hotbed_index_flag(s->storage.index, slot);
    hotbed_index_unpin(s->storage.index, slot, moves);
}

/* Update the row in `slot`, of unique key u, and unpin it. */
HOTBED_HD void hotbed_update_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, uint64_t slot, uint32_t u, hotbed_sum_source source,
    hotbed_update_shape shape, uint32_t width) {
    const hotbed_clock *clock = s->storage.clock;
    hotbed_optimizer_view own;
    hotbed_clock own_clock;
    if (shape.own && o->rates != NULL) {
        own = *o;
        own_clock = hotbed_clock_copy(clock);
        hotbed_rates_apply(&own, &own_clock, (uint32_t)(table - s->storage.tables));
        o = &own;
        clock = &own_clock;
    }
    uint8_t *row = hotbed_row_at(s->storage.index, table, slot);
    void *state0 = row + table->state_offset[0];
    void *state1 = row + table->state_offset[1];
    if (o->checks_finite == 0 ||
        hotbed_gradient_is_finite(s, o, gradient, table->dim, source, shape, width)) {
        hotbed_rounding_view rounding = hotbed_rounding_to_nearest();
        if (!shape.plain)
            rounding = hotbed_unique_rounding(s, table, u);
        const uint32_t bits = hotbed_update_parts(
            s, o, clock, gradient, table, &rounding, row, state0, state1, source, shape, width);
        if (!shape.plain && table->dtype != HOTBED_F32)
            hotbed_count_rounded_away(s, table, bits, width);
    } else if (hotbed_tile_rank(width) == 0) {
        hotbed_gradient_refused(s, o, table, slot);
    }
    hotbed_unpin_updated(s, table, slot, width);
}

/* --- reduce and apply; rows outside of tables ------------------------------------------------- */

/* Output of reduce: the sum of row u is at data + u * stride. */
typedef struct hotbed_sums_view {
    float *data;
    uint64_t stride;
    bool add; /* add to the existing values */
    /* Instead of `data`, for sums that other ranks get: [unique keys] where the sum of each row
     * goes, multiplied by `scale` and stored as `dtype`; entries that are NULL have no sum. */
    uint8_t *const *rows;
    uint32_t dtype;
    float scale;
    hotbed_pack_view pack;
} hotbed_sums_view;

/* The sum of a row that is packed. */
typedef struct hotbed_row_sum {
    const hotbed_step_view *s;
    const hotbed_optimizer_view *o;
    hotbed_gradient_view gradient;
    hotbed_sum_source source;
    hotbed_update_shape shape;
    float scale;
    uint32_t width;
} hotbed_row_sum;

HOTBED_HD hotbed_f32x4 hotbed_row_sum4(const void *of, uint32_t e, uint32_t count) {
    const hotbed_row_sum *f = (const hotbed_row_sum *)of;
    return hotbed_scale4(
        hotbed_sum_from(f->s, f->o, f->gradient, f->source, f->shape, e, count, f->width),
        f->scale);
}

/* Write the gradient of row u, which has `dim` elements. */
HOTBED_HD void hotbed_reduce_row(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    uint32_t dim, uint64_t u, hotbed_sum_source source, hotbed_update_shape shape,
    hotbed_sums_view sums, uint32_t width) {
    uint8_t *row = sums.rows == NULL ? NULL : sums.rows[u];
    if (sums.rows != NULL && row == NULL)
        return;
    if (row != NULL && sums.pack.dtype != 0) {
        const hotbed_row_sum packs = {s, o, gradient, source, shape, sums.scale, width};
        hotbed_pack_row(&sums.pack, dim, u, row, hotbed_row_sum4, &packs, width);
        return;
    }
    for (uint32_t first = 0; first < dim; first += 4 * width) {
        uint32_t e = first + 4 * hotbed_tile_rank(width);
        uint32_t count = e < dim ? hotbed_count4(dim, e) : 0;
        hotbed_f32x4 sum = hotbed_sum_from(s, o, gradient, source, shape, e, count, width);
        if (count == 0)
            continue;
        if (row != NULL) {
            hotbed_store4(sums.dtype, row, e, count, hotbed_scale4(sum, sums.scale));
            continue;
        }
        uint64_t at = u * sums.stride + e;
        if (sums.add)
            sum = hotbed_add4(hotbed_load4(HOTBED_F32, sums.data, at, count), sum);
        hotbed_store4(HOTBED_F32, sums.data, at, count, sum);
    }
}

/* Rows in arrays of the caller; see hotbed/optimizer.h. Kernels pass a copy of `o` with a literal
 * kind. `narrow`, a literal: states may be narrow, and rows may be rounded at random. */
typedef struct hotbed_update_rows_args {
    hotbed_optimizer_view o;
    const hotbed_optimizer_clock *clock;
    hotbed_table_view row;        /* only dim, the types, and what rounding reads are set */
    const uint64_t *keys;         /* [n] with `row.random` */
    uint8_t *weights, *states[2]; /* an absent state points to another part and is never read */
    uint64_t weights_bytes, state_bytes[2]; /* distance between rows */
    const float *gradients;                 /* [n, dim] */
    uint64_t n;
} hotbed_update_rows_args;

HOTBED_HD void hotbed_update_given_row(
    const hotbed_update_rows_args *a, const hotbed_optimizer_view *o, bool narrow, uint64_t i,
    uint32_t width) {
    const hotbed_update_shape shape = {false, false, true, false, narrow};
    const hotbed_gradient_view gradient = {
        a->gradients + i * a->row.dim, a->row.dim, HOTBED_F32, NULL};
    const hotbed_sum_source source = {0, 0, NULL, 0};
    void *state0 = a->states[0] + i * a->state_bytes[0];
    void *state1 = a->states[1] + i * a->state_bytes[1];
    hotbed_clock clock;
    clock.optimizer = *a->clock;
    hotbed_clock_correct(&clock);
    const hotbed_rounding_view rounding =
        narrow && a->row.random != 0
            ? hotbed_rounding_of(&a->row, a->keys[i], clock.optimizer.steps)
            : hotbed_rounding_to_nearest();
    (void)hotbed_update_parts(
        NULL, o, &clock, gradient, &a->row, &rounding, a->weights + i * a->weights_bytes, state0,
        state1, source, shape, width);
}
