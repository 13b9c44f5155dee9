/* storage/step/registers_core.h - the update of a row that is kept in registers.
 *
 * For tables whose dims are multiples of 4 and at most 4 * HOTBED_QUADS_MOST * width, and for aligned
 * gradients of f32 or of 16 bits, without clamping. Most rows of a batch have few occurrences, so an update
 * takes as long as the latency of its loads. A lane therefore has several groups of four elements:
 * a warp then works on several rows, and each lane issues several loads before it uses the first.
 * Sums stay in registers; each gradient is read once.
 */
#pragma once

#include "storage/step/update_core.h"

enum { HOTBED_QUADS_MOST = 4, HOTBED_AHEAD_MOST = 8 };

/* Properties for which a kernel is compiled; literals. */
typedef struct hotbed_register_shape {
    uint32_t kind; /* hotbed_optimizer_kind; HOTBED_OPT_ANY: the one that is passed */
    bool pooled;   /* sums without weights; otherwise sequences */
    hotbed_rows_form form;
    /* groups of four elements per lane; group q begins at element 4 * (lane + q * width) */
    uint32_t quads;
    uint32_t ahead; /* number of gradients that are loaded before the first is added */
    bool once;      /* a row has at most as many addends as the tile has lanes */
    bool narrow;    /* states may be bf16: a table's `state_dtype` says which are */
} hotbed_register_shape;

/* A lane's elements of a row. */
typedef struct hotbed_quads {
    hotbed_f32x4 q[HOTBED_QUADS_MOST];
} hotbed_quads;

/* A lane's elements of a row as they are stored, so that they are not needed before the sums. */
typedef struct hotbed_raw_quads {
    union {
        hotbed_f32x4 f32[HOTBED_QUADS_MOST];
        hotbed_u16x4 half[HOTBED_QUADS_MOST];
        uint32_t scaled[HOTBED_QUADS_MOST];
    };
    uint32_t word[HOTBED_QUADS_MOST]; /* SCALED: of each group's scale */
} hotbed_raw_quads;

/* A lane's group q as f32. */
HOTBED_HD hotbed_f32x4 hotbed_raw_quad(
    const hotbed_raw_quads *w, uint32_t q, hotbed_register_shape shape, uint32_t dtype) {
    return shape.form == HOTBED_ROWS_SCALED ? hotbed_scaled4_to_f32(dtype, w->word[q], w->scaled[q])
           : shape.form == HOTBED_ROWS_HALF ? hotbed_half4_to_f32(dtype, w->half[q])
                                            : w->f32[q];
}

/* Eight bytes of a state of either type. */
typedef uint64_t __attribute__((may_alias)) hotbed_state_word;

/* A lane's elements of a state as they are stored: `low` has the first 8 bytes of a group, which are the
 * whole group in bf16, and `high` the others. */
typedef struct hotbed_raw_state {
    uint64_t low[HOTBED_QUADS_MOST], high[HOTBED_QUADS_MOST];
} hotbed_raw_state;

/* Load group q, which begins at element e of a state. By words, because nvcc unpacks a vector of smaller
 * elements where it is loaded, and then waits for it before the next load. */
HOTBED_HD void hotbed_raw_state_load(
    hotbed_raw_state *raw, uint32_t q, const void *state, uint32_t e, bool half) {
    const uint32_t bytes = e * (half ? 2 : 4);
    const hotbed_state_word *at =
        (const hotbed_state_word *)(const void *)((const uint8_t *)state + bytes);
    raw->low[q] = at[0];
    raw->high[q] = half ? 0 : at[1];
}

/* Its elements as f32. */
HOTBED_HD hotbed_f32x4 hotbed_raw_state_quad(const hotbed_raw_state *raw, uint32_t q, bool half) {
    const uint64_t words[2] = {raw->low[q], raw->high[q]};
    hotbed_u16x4 narrow;
    hotbed_f32x4 wide;
    memcpy(&narrow, words, sizeof narrow);
    memcpy(&wide, words, sizeof wide);
    return half ? hotbed_half4_to_f32(HOTBED_BF16, narrow) : wide;
}

/* Store the group that begins at element e of state number s after a step; `words` are its random words. */
HOTBED_HD void hotbed_state_store_quad(
    const hotbed_rounding_view *rounding, hotbed_u32x4 words, uint32_t s, void *state, uint32_t e,
    bool half, hotbed_f32x4 v) {
    if (half)
        *(hotbed_u16x4 *)(void *)((uint16_t *)state + e) =
            hotbed_round_half_state4(rounding, words, s, v);
    else
        *(hotbed_f32x4 *)(void *)((float *)state + e) = v;
}

/* First element of a lane's group q. */
HOTBED_HD uint32_t hotbed_quad_at(uint32_t q, uint32_t width) {
    return 4 * (hotbed_tile_rank(width) + q * width);
}

/* Load a lane's group q of the array at `at`, which has elements of `dtype`, of 16 bits if `half`, a
 * literal. If it is past `dim`, load elements 0 .. 3. */
HOTBED_HD hotbed_f32x4
hotbed_quad_load(bool half, uint32_t dtype, uint64_t at, uint32_t q, uint32_t dim, uint32_t width) {
    const uint32_t e = hotbed_quad_at(q, width), from = e < dim ? e : 0;
    HOTBED_POINT();
    if (half)
        return hotbed_half4_to_f32(
            dtype, *(const hotbed_u16x4 *)(const void *)((const uint16_t *)(uintptr_t)at + from));
    return *(const hotbed_f32x4 *)(const void *)((const float *)(uintptr_t)at + from);
}

/* The occurrence of which the lane's addend is the gradient, among addends j .. j+width-1 of a row.
 * Lanes past the last addend have the first one's. */
HOTBED_HD uint32_t hotbed_addend_occurrence(
    const hotbed_step_view *s, hotbed_sum_source source, uint32_t j, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width);
    return source.partials != NULL ? 0
                                   : s->unique.positions[j + (lane < source.end - j ? lane : 0)];
}

/* Address of addend number j of a row: the gradient of occurrence i, or a partial sum. An occurrence
 * in no bag adds zeros, which change no bit, because a sum from zero is never -0. */
HOTBED_HD uint64_t hotbed_addend_at(
    const hotbed_step_view *s, hotbed_gradient_view gradient, bool pooled, hotbed_sum_source source,
    uint32_t j, uint32_t i) {
    if (source.partials != NULL)
        return (uint64_t)(uintptr_t)(source.partials + j * source.partial_stride);
    if (!pooled)
        return (uint64_t)(uintptr_t)gradient.data +
               i * gradient.stride * hotbed_dtype_size(gradient.dtype);
    const uint64_t at = hotbed_occurrence_of(s, gradient, i).at;
    return at == 0 ? (uint64_t)(uintptr_t)s->storage.zeros : at;
}

/* Add the addend at `at` to *sum. */
HOTBED_HD void hotbed_quads_add(
    hotbed_quads *sum, bool half, uint32_t dtype, uint64_t at, uint32_t dim, uint32_t quads,
    uint32_t width) {
    HOTBED_UNROLL
    for (uint32_t q = 0; q < quads; q++)
        sum->q[q] = hotbed_add4(sum->q[q], hotbed_quad_load(half, dtype, at, q, dim, width));
}

/* Sum addends begin .. end-1, at most one group, in order from zero. `half`, a literal, says whether
 * addends have 16 bits. Each lane looks up one addend; i is hotbed_addend_occurrence() of `begin`. The
 * sums of lanes past `dim` are undefined. */
HOTBED_HD hotbed_quads hotbed_sum_addends_of(
    const hotbed_step_view *s, hotbed_gradient_view gradient, bool half, hotbed_sum_source source,
    uint32_t i, uint32_t dim, hotbed_register_shape shape, uint32_t width) {
    hotbed_quads sum, g[HOTBED_AHEAD_MOST];
    uint32_t lane = hotbed_tile_rank(width);
    HOTBED_UNROLL
    for (uint32_t q = 0; q < shape.quads; q++)
        sum.q[q] = hotbed_f32x4_of(0.0F);
    for (uint32_t j = source.begin; j < source.end; j += width) {
        uint32_t n = source.end - j < width ? source.end - j : width, k = 0;
        if (!shape.once && j != source.begin)
            i = hotbed_addend_occurrence(s, source, j, width);
        uint64_t mine =
            hotbed_addend_at(s, gradient, shape.pooled, source, j + (lane < n ? lane : 0), i);
        for (; k + shape.ahead <= n; k += shape.ahead) {
            HOTBED_UNROLL
            for (uint32_t a = 0; a < shape.ahead; a++) {
                uint64_t at = hotbed_tile_shuffle_u64(width, mine, k + a);
                HOTBED_UNROLL
                for (uint32_t q = 0; q < shape.quads; q++)
                    g[a].q[q] = hotbed_quad_load(half, gradient.dtype, at, q, dim, width);
            }
            HOTBED_UNROLL
            for (uint32_t a = 0; a < shape.ahead; a++)
                HOTBED_UNROLL
            for (uint32_t q = 0; q < shape.quads; q++)
                sum.q[q] = hotbed_add4(sum.q[q], g[a].q[q]);
        }
        for (; k < n; k++)
            hotbed_quads_add(
                &sum, half, gradient.dtype, hotbed_tile_shuffle_u64(width, mine, k), dim,
                shape.quads, width);
        if (shape.once)
            break;
    }
    return sum;
}

/* The same, whatever the addends are: partial sums are f32. */
HOTBED_HD hotbed_quads hotbed_sum_addends(
    const hotbed_step_view *s, hotbed_gradient_view gradient, hotbed_sum_source source, uint32_t i,
    uint32_t dim, hotbed_register_shape shape, uint32_t width) {
    return gradient.dtype != HOTBED_F32 && source.partials == NULL
               ? hotbed_sum_addends_of(s, gradient, true, source, i, dim, shape, width)
               : hotbed_sum_addends_of(s, gradient, false, source, i, dim, shape, width);
}

/* Whether all elements of the row's gradient are finite. All lanes get the answer. */
HOTBED_HD bool hotbed_quads_are_finite(
    const hotbed_quads *g, uint32_t dim, uint32_t quads, uint32_t width) {
    bool finite = true;
    HOTBED_UNROLL
    for (uint32_t q = 0; q < quads; q++)
        finite = finite && (hotbed_quad_at(q, width) >= dim || hotbed_is_finite4(g->q[q]));
    return hotbed_tile_ballot(width, !finite) == 0;
}

/* hotbed_measure_row() of a row in registers, with the gradient g, to which L2 decay has been added.
 * All lanes have loaded the state of one number, `number`. */
HOTBED_HD hotbed_whole_row hotbed_measure_quads(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float *number_at, float number,
    float *mean_at, float mean, const hotbed_quads *w, const hotbed_quads *g, const hotbed_quads *a,
    const hotbed_quads *b, uint32_t dim, uint32_t quads, uint32_t width) {
    const bool ratio = hotbed_has_ratio(o->form);
    const bool has_mean = hotbed_has_mean(o->form);
    hotbed_whole_row whole = {number, 1.0F, mean};
    float shares[32], rows[32];
    HOTBED_UNROLL
    for (uint32_t k = 0; k < 32 / width; k++)
        shares[k] = rows[k] = 0.0F;
    HOTBED_UNROLL
    for (uint32_t q = 0; q < quads; q++) {
        if (hotbed_quad_at(q, width) >= dim)
            continue;
        hotbed_f32x4 v = g->q[q];
        if (ratio) {
            rows[q] = hotbed_add_squares(rows[q], w->q[q]);
            v = hotbed_measured4(o, clock, w->q[q], v, a->q[q], b->q[q]);
        }
        if (has_mean)
            rows[q] = hotbed_add_elements(rows[q], v);
        shares[q] = hotbed_add_squares(shares[q], v);
    }
    const float sum = hotbed_sum_shares(shares, width);
    if (ratio) {
        whole.ratio = hotbed_ratio(o, hotbed_sum_shares(rows, width), sum);
    } else {
        whole.number = hotbed_number_after(o, number, sum / (float)dim);
        if (has_mean)
            whole.mean = hotbed_mean_after(o, mean, hotbed_sum_shares(rows, width) / (float)dim);
        hotbed_tile_sync(width);
        if (hotbed_tile_rank(width) == 0) {
            *number_at = whole.number;
            if (has_mean)
                *mean_at = whole.mean;
        }
    }
    return whole;
}

/* What the store of a row of a type with scales has to know of a lane's groups before the step. */
typedef struct hotbed_scaled_quads {
    /* hotbed_scaled4_differ() of the new values and those before */
    uint32_t differ[HOTBED_QUADS_MOST];
    uint32_t rest[HOTBED_QUADS_MOST]; /* remainders; 0 without them */
} hotbed_scaled_quads;

/* Store the new values v of a row of a type with scales. If it `carries` remainders, also store `first`, the new
 * values of the first state, with them. Returns the lane's HOTBED_ROW_ bits. If the row has several scales, groups
 * of 8 neighbouring lanes have the elements of one. */
HOTBED_HD uint32_t hotbed_store_scaled_quads(
    const hotbed_table_view *table, const hotbed_rounding_view *rounding, uint8_t *row,
    const hotbed_raw_quads *w, const hotbed_quads *v, const hotbed_scaled_quads *before,
    const hotbed_quads *first, bool carries, uint32_t quads, uint32_t width) {
    enum { BLOCK_LANES = HOTBED_SCALE_BLOCK / 4 };
    const uint32_t dim = table->dim, dtype = table->dtype, lane = hotbed_tile_rank(width);
    const bool blocks = hotbed_scale_span(dtype, dim) < dim;
    const uint32_t block_lanes = width < BLOCK_LANES ? width : (uint32_t)BLOCK_LANES;
    hotbed_scale_range range = hotbed_scale_range_start(dtype);
    hotbed_scale_divisor by = {0.0F, 0.0F, 0.0F};
    uint32_t word = 0, bits = 0;
    hotbed_tile_sync(width); /* all lanes have the words before */
    if (!blocks) {
        HOTBED_UNROLL
        for (uint32_t q = 0; q < quads; q++)
            if (hotbed_quad_at(q, width) < dim)
                hotbed_scale_range_add4(dtype, &range, 4, v->q[q]);
        hotbed_scale_range_join(&range, width, width);
        word = hotbed_scale_choose(dtype, range, w->word[0], true);
        by = hotbed_scale_divisor_of(dtype, word);
    }
    HOTBED_UNROLL
    for (uint32_t q = 0; q < quads; q++) {
        const uint32_t e = hotbed_quad_at(q, width);
        if (blocks) {
            range = hotbed_scale_range_start(HOTBED_FP8);
            if (e < dim)
                hotbed_scale_range_add4(HOTBED_FP8, &range, 4, v->q[q]);
            hotbed_scale_range_join(&range, block_lanes, width);
            word = hotbed_scale_choose(HOTBED_FP8, range, 0, true);
            by = hotbed_scale_divisor_of(HOTBED_FP8, word);
        }
        if (e >= dim)
            continue;
        hotbed_u32x4 words = {0, 0, 0, 0};
        if (rounding->random)
            words = hotbed_rounding_words(rounding, e);
        hotbed_carried4 to =
            hotbed_scaled4_round(dtype, by, v->q[q], carries, rounding->random, words);
        if (word == w->word[q])
            to = hotbed_carried4_keep(to, w->scaled[q], before->rest[q], before->differ[q]);
        HOTBED_POINT();
        *(uint32_t *)(void *)(row + e) = to.four;
        if (carries)
            *(hotbed_f32x4 *)(void *)(row + table->state_offset[0] + e * sizeof(float)) =
                hotbed_remainder_put4(first->q[q], to.rest, words);
        bits |= before->differ[q] != 0 ? HOTBED_ROW_STEPS : 0;
        bits |= to.four != w->scaled[q] || to.rest != before->rest[q] || word != w->word[q]
                    ? HOTBED_ROW_CHANGES
                    : 0;
        const bool stores = blocks ? lane % block_lanes == 0 : lane == 0 && q == 0;
        if (stores && word != w->word[q])
            *(uint32_t *)(void *)(row + hotbed_scale_at(dtype, dim, e)) = word;
    }
    return bits;
}

/* Update the row in `slot`, of unique key u, whose source has at most a group of addends, and unpin
 * it. i is hotbed_addend_occurrence() of the first addend. */
HOTBED_HD void hotbed_update_in_registers(
    const hotbed_step_view *s, const hotbed_optimizer_view *o, hotbed_gradient_view gradient,
    const hotbed_table_view *table, uint64_t slot, uint32_t u, hotbed_sum_source source, uint32_t i,
    hotbed_register_shape shape, uint32_t width) {
    const uint32_t dim = table->dim;
    uint8_t *row = hotbed_row_at(s->storage.index, table, slot);
    float *state0 = (float *)(void *)(row + table->state_offset[0]);
    float *state1 = (float *)(void *)(row + table->state_offset[1]);
    const hotbed_state_form form =
        shape.kind != HOTBED_OPT_ANY ? hotbed_state_form_of(shape.kind) : o->form;
    const hotbed_clock *clock = s->storage.clock;
    hotbed_optimizer_view own;
    hotbed_clock own_clock;
    if (shape.kind == HOTBED_OPT_ANY && o->rates != NULL) {
        own = *o;
        own_clock = hotbed_clock_copy(clock);
        hotbed_rates_apply(&own, &own_clock, (uint32_t)(table - s->storage.tables));
        o = &own;
        clock = &own_clock;
    }
    const bool rowwise = hotbed_has_number(form);
    const bool first = hotbed_state_is_wide(form, 0);
    const bool second = hotbed_state_is_wide(form, 1);
    const bool blocks =
        shape.form == HOTBED_ROWS_SCALED && hotbed_scale_span(table->dtype, dim) < dim;
    const bool half0 = shape.narrow && table->state_dtype[0] != HOTBED_F32;
    const bool half1 = shape.narrow && table->state_dtype[1] != HOTBED_F32;
    hotbed_raw_quads w;
    hotbed_raw_state raw_a, raw_b; /* `narrow`: a and b before the sums */
    hotbed_quads a, b;
    float *const number_at = first || hotbed_has_mean(form) ? state1 : state0;
    float number = rowwise ? *number_at : 0.0F;
    const float mean = hotbed_has_mean(form) ? *state0 : 0.0F;
    HOTBED_UNROLL
    for (uint32_t q = 0; q < shape.quads; q++) {
        uint32_t e = hotbed_quad_at(q, width);
        e = e < dim ? e : 0; /* all lanes take part in the loads */
        HOTBED_POINT();
        if (shape.form == HOTBED_ROWS_SCALED) {
            w.scaled[q] = *(const uint32_t *)(const void *)(row + e);
            if (q == 0 || blocks)
                w.word[q] =
                    *(const uint32_t *)(const void *)(row + hotbed_scale_at(table->dtype, dim, e));
            else
                w.word[q] = w.word[0];
        } else if (shape.form == HOTBED_ROWS_HALF) {
            w.half[q] = *(const hotbed_u16x4 *)(const void *)(row + e * sizeof(uint16_t));
        } else {
            w.f32[q] = *(const hotbed_f32x4 *)(const void *)(row + e * sizeof(float));
        }
        if (first && shape.narrow)
            hotbed_raw_state_load(&raw_a, q, state0, e, half0);
        else if (first)
            a.q[q] = *(const hotbed_f32x4 *)(const void *)(state0 + e);
        if (second && shape.narrow)
            hotbed_raw_state_load(&raw_b, q, state1, e, half1);
        else if (second)
            b.q[q] = *(const hotbed_f32x4 *)(const void *)(state1 + e);
    }
    hotbed_quads g = hotbed_sum_addends(s, gradient, source, i, dim, shape, width);
    if (o->checks_finite != 0 && !hotbed_quads_are_finite(&g, dim, shape.quads, width)) {
        if (hotbed_tile_rank(width) == 0)
            hotbed_gradient_refused(s, o, table, slot);
        hotbed_unpin_updated(s, table, slot, width);
        return;
    }
    HOTBED_UNROLL
    for (uint32_t q = 0; shape.narrow && q < shape.quads; q++) {
        if (first)
            a.q[q] = hotbed_raw_state_quad(&raw_a, q, half0);
        if (second)
            b.q[q] = hotbed_raw_state_quad(&raw_b, q, half1);
    }
    if (o->l2_decay != 0.0F) {
        HOTBED_UNROLL
        for (uint32_t q = 0; q < shape.quads; q++)
            g.q[q] = hotbed_l2_decay4(o, hotbed_raw_quad(&w, q, shape, table->dtype), g.q[q]);
    }
    hotbed_whole_row whole = {0.0F, 1.0F, 0.0F};
    hotbed_clock scaled;
    if (hotbed_counts_row_steps(form)) {
        scaled = hotbed_clock_copy(clock);
        hotbed_row_count(&scaled, o, state1, dim, width);
        clock = &scaled;
    }
    if (rowwise || hotbed_has_ratio(form)) {
        hotbed_quads v;
        HOTBED_UNROLL
        for (uint32_t q = 0; q < shape.quads; q++)
            v.q[q] = hotbed_raw_quad(&w, q, shape, table->dtype);
        whole = hotbed_measure_quads(
            o, clock, number_at, number, state0, mean, &v, &g, &a, &b, dim, shape.quads, width);
    }
    if (hotbed_has_ratio(form)) {
        scaled = hotbed_clock_copy(clock);
        scaled.optimizer.learning_rate *= whole.ratio;
        clock = &scaled;
    }
    hotbed_rounding_view rounding = hotbed_rounding_to_nearest();
    uint32_t bits = 0;
    hotbed_scaled_quads stored;
    if (shape.form != HOTBED_ROWS_F32 || shape.narrow)
        rounding = hotbed_unique_rounding(s, table, u);
    const bool carries = shape.form == HOTBED_ROWS_SCALED && first &&
                         hotbed_row_carries(table, form, rounding.random);
    HOTBED_UNROLL
    for (uint32_t q = 0; q < shape.quads; q++) {
        uint32_t e = hotbed_quad_at(q, width);
        if (e >= dim)
            continue;
        if (!first)
            a.q[q] = hotbed_first_number(form, whole);
        if (!second)
            b.q[q] = hotbed_f32x4_of(whole.number);
        hotbed_f32x4 before = hotbed_raw_quad(&w, q, shape, table->dtype);
        if (shape.form == HOTBED_ROWS_SCALED)
            stored.rest[q] = 0;
        if (carries) {
            stored.rest[q] = hotbed_remainder_take4(&a.q[q]);
            before = hotbed_carried4_to_f32(table->dtype, w.word[q], w.scaled[q], stored.rest[q]);
        }
        const hotbed_f32x4 v = hotbed_optimize4(o, clock, before, g.q[q], &a.q[q], &b.q[q]);
        HOTBED_POINT();
        if (shape.form == HOTBED_ROWS_SCALED) { /* stored when the row's scale is known */
            stored.differ[q] = hotbed_scaled4_differ(v, before);
            g.q[q] = v;
        } else if (shape.form == HOTBED_ROWS_HALF) {
            const hotbed_u16x4 h = hotbed_round_half4(&rounding, table->dtype, e, v);
            bits |= hotbed_f32x4_differ(before, v) ? HOTBED_ROW_STEPS : 0;
            bits |= hotbed_half4_differ(w.half[q], h) ? HOTBED_ROW_CHANGES : 0;
            *(hotbed_u16x4 *)(void *)(row + e * sizeof(uint16_t)) = h;
        } else {
            *(hotbed_f32x4 *)(void *)(row + e * sizeof(float)) = v;
        }
        hotbed_u32x4 words = {0, 0, 0, 0};
        if (half0 || half1)
            words = hotbed_state_words(&rounding, e);
        if (first && !carries)
            hotbed_state_store_quad(&rounding, words, 0, state0, e, half0, a.q[q]);
        if (second)
            hotbed_state_store_quad(&rounding, words, 1, state1, e, half1, b.q[q]);
    }
    if (shape.form == HOTBED_ROWS_SCALED)
        bits = hotbed_store_scaled_quads(
            table, &rounding, row, &w, &g, &stored, &a, carries, shape.quads, width);
    if (shape.form != HOTBED_ROWS_F32)
        hotbed_count_rounded_away(s, table, bits, width);
    hotbed_unpin_updated(s, table, slot, width);
}
