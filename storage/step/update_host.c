/* storage/step/update_host.c - backward on the host. CUDA counterpart: update.cu.
 *
 * A row's gradients are summed into a vector, occurrence by occurrence, so that the compiler can
 * vectorize over elements; each element's additions are in the order of update_core.h. Gradients
 * and metas are prefetched. Rows are long enough for the processor's own prefetcher.
 */
#include "storage/step/update_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"
#include "storage/step/row_layout.h"

enum { ROWS_GRAIN = 128 };
enum { SUM_BLOCK = 128 }; /* elements that are summed together */
/* items prefetched before the current one is used */
enum { GRADIENTS_AHEAD = 6, METAS_AHEAD = 16, UPDATES_AHEAD = 2 };

typedef struct update_args {
    hotbed_step_view s;
    hotbed_optimizer_view o;
    hotbed_gradient_view gradient; /* apply: the sums */
    hotbed_sums_view sums;         /* reduce: the output */
} update_args;

typedef struct count_args {
    hotbed_optimizer_clock *clock;
    float beta1, beta2;
} count_args;

typedef struct rate_args {
    float *rate;
    float learning_rate;
} rate_args;

/* Arguments with the parameters of one table. */
typedef struct own_args {
    update_args args;
    hotbed_clock clock;
} own_args;

/* Return the arguments for table t: `a`, or `own` if tables have parameters of their own. */
static const update_args *args_of(const update_args *a, uint32_t t, own_args *own) {
    if (a->o.rates == NULL)
        return a;
    own->args = *a;
    own->clock = hotbed_clock_copy(a->s.storage.clock);
    hotbed_rates_apply(&own->args.o, &own->clock, t);
    own->args.s.storage.clock = &own->clock;
    return &own->args;
}

static void step_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    (void)begin, (void)end;
    hotbed_clock_step(a->s.storage.clock, a->o.beta1, a->o.beta2);
    hotbed_step_hold(&a->s, HOTBED_HELD_BATCH, false); /* updates release the rows' pins */
}

/* The table of unique key u; `before` is the table of an earlier unique key. */
static inline uint32_t table_of(const hotbed_step_view *s, uint32_t u, uint32_t before) {
    while (u >= s->unique.offsets[before + 1])
        before++;
    return before;
}

static inline uint64_t uniques_up_to(const hotbed_step_view *s, uint64_t end) {
    uint64_t uniques = s->unique.offsets[s->storage.num_tables];
    return end < uniques ? end : uniques;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Whether gradients are added without scaling. */
static inline bool sums_plainly(const update_args *a) {
    return a->gradient.dtype == HOTBED_F32 && a->o.max_gradient == 0.0F;
}

/* The gradient of key number i; NULL: zeros. */
static inline const float *gradient_of(const update_args *a, uint32_t i) {
    const hotbed_step_view *s = &a->s;
    const float *data = a->gradient.data;
    if (s->storage.pooling == HOTBED_POOL_NONE)
        return data + i * a->gradient.stride;
    uint32_t b = hotbed_occurrence_bag(s, i);
    if (b == HOTBED_NO_BAG)
        return NULL;
    if (a->gradient.bags != NULL)
        return (const float *)(const void *)a->gradient.bags[b];
    uint32_t feature = b / s->batch.size;
    return data + (uint64_t)(b - feature * s->batch.size) * a->gradient.stride +
           s->storage.columns[feature];
}

/* The factors of key number i in pooling: share of a mean, and weight. False: the key does not
 * contribute. */
static inline bool scales_of(const hotbed_step_view *s, uint32_t i, float *share, float *weight) {
    if (s->storage.pooling == HOTBED_POOL_NONE ||
        (s->storage.pooling == HOTBED_POOL_SUM && s->batch.weights == NULL))
        return false;
    *share = 1.0F;
    *weight = s->batch.weights == NULL ? 1.0F : s->batch.weights[i];
    if (s->storage.pooling == HOTBED_POOL_MEAN) {
        uint32_t b = hotbed_occurrence_bag(s, i);
        hotbed_bag bag = hotbed_bag_at(s, b, b / s->batch.size);
        *share = 1.0F / (float)(bag.end - bag.begin);
    }
    return true;
}

static inline void clear(float *sum, uint32_t count) {
    for (uint32_t e = 0; e < count; e++)
        sum[e] = 0.0F;
}

static inline void add(float *restrict sum, const float *restrict g, uint32_t count) {
    for (uint32_t e = 0; e < count; e++)
        sum[e] = sum[e] + g[e];
}

static inline void add_scaled(
    float *restrict sum, const float *restrict g, float share, float weight, uint32_t count) {
    for (uint32_t e = 0; e < count; e++)
        sum[e] = sum[e] + g[e] * share * weight;
}

/* Sum elements first .. first+count-1 of the gradients of occurrences begin .. end-1, in order. */
static void sum_group(
    const update_args *a, uint32_t begin, uint32_t end, uint32_t first, uint32_t count,
    float *sum) {
    const hotbed_step_view *s = &a->s;
    uint32_t n = s->batch.table_starts[s->storage.num_tables];
    clear(sum, count);
    for (uint32_t j = begin; j < end; j++) {
        if (j + GRADIENTS_AHEAD < n) { /* rows are prefetched in the order of the occurrences */
            const float *ahead = gradient_of(a, s->unique.positions[j + GRADIENTS_AHEAD]);
            if (ahead != NULL)
                hotbed_prefetch_item(ahead + first, count * sizeof(float));
        }
        uint32_t i = s->unique.positions[j];
        const float *g = gradient_of(a, i);
        float share = 1.0F, weight = 1.0F;
        if (g == NULL)
            continue; /* A sum from zero is never -0, so adding zeros does not change it. */
        if (scales_of(s, i, &share, &weight))
            add_scaled(sum, g + first, share, weight, count);
        else
            add(sum, g + first, count);
    }
}

/* The levels above groups, as in hotbed_fold. */
typedef struct fold {
    float sum[HOTBED_SUM_LEVELS][SUM_BLOCK];
    uint32_t pushed;
} fold;

static void fold_push(fold *f, const float *value, uint32_t count) {
    add(f->sum[0], value, count);
    f->pushed++;
    uint32_t whole = f->pushed;
    for (uint32_t level = 0; level + 1 < HOTBED_SUM_LEVELS && whole % HOTBED_SUM_GROUP == 0;
         level++) {
        add(f->sum[level + 1], f->sum[level], count);
        clear(f->sum[level], count);
        whole /= HOTBED_SUM_GROUP;
    }
}

static void sum_many(
    const update_args *a, uint32_t begin, uint32_t end, uint32_t first, uint32_t count,
    float *sum) {
    fold f;
    memset(&f, 0, sizeof f);
    for (uint32_t j = begin; j < end; j += HOTBED_SUM_GROUP) {
        sum_group(a, j, end - j < HOTBED_SUM_GROUP ? end : j + HOTBED_SUM_GROUP, first, count, sum);
        fold_push(&f, sum, count);
    }
    for (uint32_t level = 0; level + 1 < HOTBED_SUM_LEVELS; level++)
        add(f.sum[level + 1], f.sum[level], count);
    memcpy(sum, f.sum[HOTBED_SUM_LEVELS - 1], count * sizeof *sum);
}

/* Sum the gradients of unique key u, of a table with `dim` elements. */
static void sum_row(const update_args *a, uint32_t u, uint32_t dim, float *sum) {
    uint32_t begin = a->s.unique.starts[u], end = a->s.unique.starts[u + 1];
    if (!sums_plainly(a)) {
        const hotbed_update_shape shape = {false, false, false, false, false};
        const hotbed_sum_source source = {begin, end, NULL, 0};
        const hotbed_sums_view sums = {.data = sum, .stride = dim};
        hotbed_reduce_row(&a->s, &a->o, a->gradient, dim, 0, source, shape, sums, 1);
        return;
    }
    for (uint32_t first = 0; first < dim; first += SUM_BLOCK) {
        uint32_t count = dim - first < SUM_BLOCK ? dim - first : SUM_BLOCK;
        if (end - begin <= HOTBED_SUM_GROUP)
            sum_group(a, begin, end, first, count, sum + first);
        else
            sum_many(a, begin, end, first, count, sum + first);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

/* One step of `dim` floats. A loop over elements, which the compiler turns into vectors; `kind` and
 * `l2` are literals. */
HOTBED_HD void update_floats(
    const update_args *a, const hotbed_clock *clock, uint32_t kind, bool l2, uint32_t dim,
    float *restrict row, float *restrict state0, float *restrict state1,
    const float *restrict gradient) {
    const hotbed_state_form form = hotbed_state_form_of(kind);
    hotbed_optimizer_view o = a->o;
    o.kind = kind;
    const bool has0 = hotbed_state_is_wide(form, 0), has1 = hotbed_state_is_wide(form, 1);
    const bool two = hotbed_has_mean(form);
    const float number = !hotbed_has_number(form) ? 0.0F : has0 || two ? *state1 : *state0;
    const float mean = two ? *state0 : number;
    for (uint32_t e = 0; e < dim; e++) {
        float first = has0 ? state0[e] : mean, second = has1 ? state1[e] : number;
        const float g = l2 ? gradient[e] + row[e] * o.l2_decay : gradient[e];
        row[e] = hotbed_optimize(&o, clock, row[e], g, &first, &second);
        if (has0)
            state0[e] = first;
        if (has1)
            state1[e] = second;
    }
}

/* A row and its states as f32: in the table, or copies. */
typedef struct row_parts {
    uint8_t *row;
    float *states[2];
} row_parts;

/* The row's gradient, which is summed, for the functions of update_core.h. */
static const hotbed_sum_source whole_sum = {0, 0, NULL, 0};
static const hotbed_update_shape any_row = {false, false, true, false, false};

/* For each optimizer, functions that are called, not compiled into each caller: a step of any row, and the
 * measures of an f32 row whose elements are not aligned. */
#define HOTBED_APART_OF(KIND, name, ...)                                                           \
    __attribute__((noinline)) static uint32_t step_##name(                                         \
        hotbed_optimizer_view o, const hotbed_clock *clock, const float *gradient,                 \
        const hotbed_table_view *table, const hotbed_rounding_view *rounding, row_parts parts) {   \
        o.kind = HOTBED_OPT_##KIND;                                                                \
        o.form = hotbed_state_form_of(o.kind);                                                     \
        const hotbed_gradient_view view = {gradient, 0, HOTBED_F32, NULL};                         \
        return hotbed_update_parts(                                                                \
            NULL, &o, clock, view, table, rounding, parts.row, parts.states[0], parts.states[1],   \
            whole_sum, any_row, 1);                                                                \
    }                                                                                              \
    __attribute__((noinline)) static hotbed_whole_row measure_##name(                              \
        hotbed_optimizer_view o, const hotbed_clock *clock, const float *gradient,                 \
        const hotbed_table_view *table, row_parts parts) {                                         \
        o.kind = HOTBED_OPT_##KIND;                                                                \
        o.form = hotbed_state_form_of(o.kind);                                                     \
        const hotbed_gradient_view view = {gradient, 0, HOTBED_F32, NULL};                         \
        return hotbed_measure_row(                                                                 \
            NULL, &o, clock, view, table, parts.row, parts.states[0], parts.states[1], whole_sum,  \
            any_row, 1);                                                                           \
    }
HOTBED_OPTIMIZERS(HOTBED_APART_OF)
#undef HOTBED_APART_OF

typedef uint32_t (*row_step)(
    hotbed_optimizer_view o, const hotbed_clock *clock, const float *gradient,
    const hotbed_table_view *table, const hotbed_rounding_view *rounding, row_parts parts);
typedef hotbed_whole_row (*row_measure)(
    hotbed_optimizer_view o, const hotbed_clock *clock, const float *gradient,
    const hotbed_table_view *table, row_parts parts);

/* Update a row, of unique key u, with the sum of its gradients; `kind`, `l2` and the functions are literals. */
HOTBED_HD void update_kind(
    const update_args *a, const hotbed_table_view *table, row_parts parts, uint32_t u,
    const float *gradient, uint32_t kind, bool l2, row_step step, row_measure measure) {
    hotbed_clock clock =
        hotbed_clock_copy(a->s.storage.clock); /* not changed by stores to the row */
    float *state0 = parts.states[0];
    float *state1 = parts.states[1];
    const hotbed_update_shape plain = {false, true, true, false, false};
    hotbed_optimizer_view o = a->o;
    if (table->dtype != HOTBED_F32) {
        const hotbed_rounding_view rounding = hotbed_unique_rounding(&a->s, table, u);
        const uint32_t bits = step(o, &clock, gradient, table, &rounding, parts);
        hotbed_count_rounded_away(&a->s, table, bits, 1);
        return;
    }
    o.kind = kind;
    o.form = hotbed_state_form_of(kind);
    if (!l2)
        o.l2_decay = 0.0F;
    if (hotbed_counts_row_steps(o.form))
        hotbed_row_count(&clock, &o, state1, table->dim, 1);
    if (hotbed_has_number(o.form) || hotbed_has_ratio(o.form)) {
        const bool aligned = table->dim % 4 == 0 && ((uintptr_t)gradient & 15U) == 0;
        const hotbed_gradient_view view = {gradient, 0, HOTBED_F32, NULL};
        hotbed_whole_row whole;
        if (aligned)
            whole = hotbed_measure_row(
                NULL, &o, &clock, view, table, parts.row, state0, state1, whole_sum, plain, 1);
        else
            whole = measure(o, &clock, gradient, table, parts);
        clock.optimizer.learning_rate *= whole.ratio;
    }
    update_floats(
        a, &clock, kind, l2, table->dim, (float *)(void *)parts.row, state0, state1, gradient);
}

/* Two functions for each optimizer, without and with L2 decay, because what a loop is compiled to
 * must not depend on its caller or on other optimizers. */
#define HOTBED_UPDATE(KIND, name, ...)                                                             \
    __attribute__((noinline)) static void update_##name(                                           \
        const update_args *a, const hotbed_table_view *table, row_parts parts, uint32_t u,         \
        const float *gradient) {                                                                   \
        update_kind(                                                                               \
            a, table, parts, u, gradient, HOTBED_OPT_##KIND, false, step_##name, measure_##name);  \
    }                                                                                              \
    __attribute__((noinline)) static void update_l2_##name(                                        \
        const update_args *a, const hotbed_table_view *table, row_parts parts, uint32_t u,         \
        const float *gradient) {                                                                   \
        update_kind(                                                                               \
            a, table, parts, u, gradient, HOTBED_OPT_##KIND, true, step_##name, measure_##name);   \
    }
HOTBED_OPTIMIZERS(HOTBED_UPDATE)
#undef HOTBED_UPDATE

static void update_with(
    const update_args *a, const hotbed_table_view *table, row_parts parts, uint32_t u,
    const float *gradient) {
    switch ((hotbed_optimizer_kind)a->o.kind) {
#define HOTBED_CASE(KIND, name, ...)                                                               \
    case HOTBED_OPT_##KIND:                                                                        \
        if (a->o.l2_decay == 0.0F)                                                                 \
            update_##name(a, table, parts, u, gradient);                                           \
        else                                                                                       \
            update_l2_##name(a, table, parts, u, gradient);                                        \
        return;
        HOTBED_OPTIMIZERS(HOTBED_CASE)
#undef HOTBED_CASE
    }
}

/* Update a row with narrow states: f32 copies of these are updated as in other rows, and rounded. */
static void update_narrow(
    const update_args *a, const hotbed_table_view *table, row_parts parts, uint32_t u,
    const float *gradient) {
    float copies[2][HOTBED_DIM_MOST];
    row_parts wide = parts;
    for (uint32_t s = 0; s < 2; s++) {
        if (table->state_dtype[s] == HOTBED_F32)
            continue;
        wide.states[s] = copies[s];
        for (uint32_t e = 0; e < table->dim; e++)
            copies[s][e] = hotbed_load1(table->state_dtype[s], parts.states[s], e);
    }
    update_with(a, table, wide, u, gradient);
    const hotbed_rounding_view rounding = hotbed_unique_rounding(&a->s, table, u);
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t e = 0; e < table->dim && wide.states[s] == copies[s]; e += 4) {
            const uint32_t count = hotbed_count4(table->dim, e);
            hotbed_half_state_step4(
                &rounding, s, parts.states[s], e, count,
                hotbed_load4(HOTBED_F32, copies[s], e, count));
        }
    }
}

/* Update the row in `slot`, of unique key u, with the sum of its gradients. */
static void update_slot(
    const update_args *a, const hotbed_table_view *table, uint64_t slot, uint32_t u,
    const float *gradient) {
    uint8_t *row = hotbed_row_at(a->s.storage.index, table, slot);
    const row_parts parts = {
        row,
        {(float *)(void *)(row + table->state_offset[0]),
         (float *)(void *)(row + table->state_offset[1])}};
    if (a->o.narrow && hotbed_table_has_narrow_states(table))
        update_narrow(a, table, parts, u, gradient);
    else
        update_with(a, table, parts, u, gradient);
}

/* Whether the `dim` elements of a sum are finite; compiled to vectors, which && would prevent. */
static bool is_finite(const float *sum, uint32_t dim) {
    uint32_t most = 0;
    for (uint32_t e = 0; e < dim; e++) {
        const uint32_t bits = hotbed_float_bits(sum[e]) & 0x7FFFFFFFU;
        most = bits > most ? bits : most;
    }
    return most < 0x7F800000U;
}

static inline void prefetch_meta(const hotbed_step_view *s, uint64_t u, uint64_t end) {
    if (u < end && s->unique.slots[u] < s->storage.index_slots)
        hotbed_prefetch(hotbed_index_meta(s->storage.index, s->unique.slots[u]));
}

/* Prefetch the row of unique key u, which is in table t or a later one. */
static inline void prefetch_row(const hotbed_step_view *s, uint32_t u, uint32_t t) {
    const hotbed_table_view *table = &s->storage.tables[table_of(s, u, t)];
    if (s->unique.slots[u] != HOTBED_SLOT_NONE)
        hotbed_prefetch_item(
            hotbed_row_at(s->storage.index, table, s->unique.slots[u]), table->row_bytes);
}

/* Unpin the rows of unique keys begin .. end-1. An atomic operation waits for all earlier stores,
 * so rows are unpinned after their updates, not in between. */
static void unpin_range(const hotbed_step_view *s, uint32_t t, uint64_t begin, uint64_t end) {
    for (uint64_t u = begin; u < end; u++) {
        t = table_of(s, (uint32_t)u, t);
        prefetch_meta(s, u + METAS_AHEAD, end);
        if (s->storage.tracker != NULL)
            hotbed_unique_changed(s, u, t);
        if (s->unique.slots[u] != HOTBED_SLOT_NONE)
            hotbed_unpin_updated(s, &s->storage.tables[t], s->unique.slots[u], 1);
    }
}

static void update_range(const update_args *a, uint64_t begin, uint64_t end, bool reduced) {
    const hotbed_step_view *s = &a->s;
    float scratch[HOTBED_DIM_MOST] HOTBED_ALIGN(16);
    end = uniques_up_to(s, end);
    if (begin >= end)
        return;
    const uint32_t first_table = hotbed_table_of_unique(s, (uint32_t)begin);
    own_args own;
    uint32_t t = first_table;
    const update_args *of_table = args_of(a, t, &own);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        if (u >= s->unique.offsets[t + 1]) {
            t = table_of(s, u, t);
            of_table = args_of(a, t, &own);
        }
        uint64_t slot = s->unique.slots[u];
        if (u + UPDATES_AHEAD < end)
            prefetch_row(s, u + UPDATES_AHEAD, t);
        if (slot == HOTBED_SLOT_NONE)
            continue;
        const float *gradient = scratch;
        if (reduced)
            gradient = (const float *)a->gradient.data + u * a->gradient.stride;
        else
            sum_row(of_table, u, s->storage.tables[t].dim, scratch);
        if (a->o.checks_finite != 0 && !is_finite(gradient, s->storage.tables[t].dim))
            hotbed_gradient_refused(s, &a->o, &s->storage.tables[t], slot);
        else
            update_slot(of_table, &s->storage.tables[t], slot, u, gradient);
    }
    unpin_range(s, first_table, begin, end);
}

static void update_body(const void *args, uint64_t begin, uint64_t end) {
    update_range(args, begin, end, false);
}

static void apply_body(const void *args, uint64_t begin, uint64_t end) {
    update_range(args, begin, end, true);
}

/* Write a sum to its row of `sums->rows`. */
static void send(const hotbed_sums_view *sums, uint32_t u, float *sum, uint32_t dim) {
    uint8_t *row = sums->rows[u];
    if (sums->pack.dtype != 0) {
        for (uint32_t e = 0; e < dim; e++)
            sum[e] = sum[e] * sums->scale;
        hotbed_pack_row(&sums->pack, dim, u, row, hotbed_pack_float4, sum, 1);
        return;
    }
    for (uint32_t e = 0; e < dim; e++)
        hotbed_store1(sums->dtype, row, e, sum[e] * sums->scale);
}

static void reduce_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    const hotbed_step_view *s = &a->s;
    float scratch[HOTBED_DIM_MOST] HOTBED_ALIGN(16);
    end = uniques_up_to(s, end);
    if (begin >= end)
        return;
    own_args own;
    uint32_t t = hotbed_table_of_unique(s, (uint32_t)begin);
    a = args_of(a, t, &own);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        if (u >= s->unique.offsets[t + 1]) {
            t = table_of(s, u, t);
            a = args_of(args, t, &own);
        }
        uint32_t dim = s->storage.tables[t].dim;
        if (a->sums.rows != NULL) {
            if (a->sums.rows[u] != NULL) {
                sum_row(a, u, dim, scratch);
                send(&a->sums, u, scratch, dim);
            }
            continue;
        }
        float *to = a->sums.data + u * a->sums.stride;
        sum_row(a, u, dim, a->sums.add ? scratch : to);
        if (a->sums.add)
            add(to, scratch, dim);
    }
}

HOTBED_HOST_BELOW(count_body, count_args, 1, hotbed_count_step(a->clock, a->beta1, a->beta2))

static void update_rows_body(const void *args, uint64_t begin, uint64_t end) {
#define HOTBED_STEP(KIND, name, ...) [HOTBED_OPT_##KIND] = step_##name,
    static const row_step steps[] = {HOTBED_OPTIMIZERS(HOTBED_STEP)};
#undef HOTBED_STEP
    const hotbed_update_rows_args *a = args;
    const hotbed_rounding_view nearest = hotbed_rounding_to_nearest();
    hotbed_clock clock;
    clock.optimizer = *a->clock;
    hotbed_clock_correct(&clock);
    for (uint64_t i = begin; i < end; i++) {
        const row_parts parts = {
            a->weights + i * a->weights_bytes,
            {(float *)(void *)(a->states[0] + i * a->state_bytes[0]),
             (float *)(void *)(a->states[1] + i * a->state_bytes[1])}};
        (void)steps[a->o.kind](
            a->o, &clock, a->gradients + i * a->row.dim, &a->row, &nearest, parts);
    }
}

static void update_rows_narrow(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_update_rows_args *a = args;
    hotbed_optimizer_view o = a->o;
    o.any = true;
    for (uint64_t i = begin; i < end; i++)
        hotbed_update_given_row(a, &o, true, i, 1);
}

HOTBED_HOST_BELOW(rate_body, rate_args, 1, *a->rate = a->learning_rate)

static size_t scratch(uint64_t bound, uint32_t max_dim) {
    (void)bound, (void)max_dim;
    return 0;
}

/* Count one optimizer step, then run `body` over the unique keys. */
static hotbed_status step_rows(
    const update_args *args, hotbed_host_body body, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, 1, 0, step_body, args));
    return HOTBED_HOST_LAUNCH(stream, args->s.batch.bound, ROWS_GRAIN, body, args);
}

static hotbed_status update(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = gradient};
    (void)max_dim, (void)memory;
    return step_rows(&args, update_body, stream);
}

static hotbed_status reduce(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *memory,
    hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = gradient, .sums = sums};
    (void)max_dim, (void)memory;
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, ROWS_GRAIN, reduce_body, &args);
}

static hotbed_status apply(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, hotbed_gradient_view sums,
    uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = sums};
    (void)max_dim, (void)memory;
    return step_rows(&args, apply_body, stream);
}

static hotbed_status count_step(
    const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    count_args args = {clock, optimizer->beta1, optimizer->beta2};
    return HOTBED_HOST_LAUNCH(stream, 1, 0, count_body, &args);
}

static hotbed_status update_rows(const hotbed_update_rows_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(
        stream, args->n, ROWS_GRAIN, args->o.narrow ? update_rows_narrow : update_rows_body, args);
}

static hotbed_status set_learning_rate(float *rate, float learning_rate, hotbed_stream *stream) {
    rate_args args = {rate, learning_rate};
    return HOTBED_HOST_LAUNCH(stream, 1, 0, rate_body, &args);
}

const hotbed_update_kernels hotbed_update_kernels_host = {
    scratch, update, reduce, apply, count_step, update_rows, set_learning_rate};
