/* storage/step/update.cuh - the kernels of backward that depend on the kind of optimizer.
 *
 * One file for each kind that has kernels of its own compiles them, so that files compile at once:
 * update_sgd.cu, update_adam.cu, update_adagrad.cu and update_rowwise_adagrad.cu; update_any.cu has
 * the kernels that serve every kind, update_narrow.cu those that also serve states narrower than f32.
 * The kernels that only sum gradients are in update.cu.
 */
#pragma once

#include "base/cuda_launch.h"
#include "storage/step/registers_core.h"
#include "storage/step/update_kernels.h"

enum {
    BLOCK = 256,
    WAVES = 1,
    SPLIT_BLOCK = 512,
    FEW = 4,  /* occurrences of a row that few lanes update; 2 to 32 make no difference */
    ROWS = 4, /* rows that a tile looks up at once; 1, 8 and 16 were slower (W1, H200) */
};

typedef struct update_scratch {
    uint32_t *used;       /* [4] number of leaves, of groups, and of entries of `many` and `some` */
    uint32_t *first_leaf; /* [bound] for unique keys with more than 32 occurrences */
    uint32_t *first_group; /* [bound] for unique keys with more than 1024 */
    uint32_t *leaf_begin;  /* [leaves] first occurrence of each */
    uint32_t *leaf_end;
    uint32_t *group_begin; /* [groups] first leaf of each */
    uint32_t *group_end;
    uint32_t *many;    /* unique keys with more than 32 groups, which are few */
    uint32_t *some;    /* [bound] unique keys with more than FEW occurrences */
    float *leaf_sums;  /* [leaves, row] */
    float *group_sums; /* [groups, row] */
    uint64_t row;      /* stride in floats: the largest dim, rounded up to 4 */
} update_scratch;

/* Source of the gradient of row u: occurrences begin .. end-1, or partial sums. */
static __device__ hotbed_sum_source
find_source(const update_scratch &scratch, uint64_t u, uint32_t begin, uint32_t end) {
    hotbed_sum_source source = {begin, end, NULL, scratch.row};
    uint32_t parts = (end - begin + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
    if (parts > HOTBED_SUM_GROUP) {
        source.partials = scratch.group_sums;
        source.begin = scratch.first_group[u];
        source.end = source.begin + (parts + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
    } else if (parts > 1) {
        source.partials = scratch.leaf_sums;
        source.begin = scratch.first_leaf[u];
        source.end = source.begin + parts;
    }
    return source;
}

static __device__ hotbed_sum_source reduced_source(uint64_t u) {
    hotbed_sum_source source = {(uint32_t)u, 0, NULL, 0};
    return source;
}

/* HOTBED_STATE_ of a kind's first state, for constant expressions; ROW for HOTBED_OPT_ANY. */
HOTBED_HD constexpr uint32_t state_length(uint32_t kind) {
#define HOTBED_LENGTH(KIND, name, state0, LENGTH0, ...)                                            \
    kind == HOTBED_OPT_##KIND ? HOTBED_STATE_##LENGTH0:
    return HOTBED_OPTIMIZERS(HOTBED_LENGTH) HOTBED_STATE_ROW;
#undef HOTBED_LENGTH
}

HOTBED_HD constexpr bool has_states(uint32_t kind) {
    return state_length(kind) != HOTBED_STATE_NONE;
}

HOTBED_HD constexpr bool has_wide_states(uint32_t kind) {
    return state_length(kind) == HOTBED_STATE_ROW;
}

/* Tell the compiler what choose_kind() says. SGD needs half of Adam's registers. */
template <uint32_t KIND> static __device__ void compile_for(hotbed_optimizer_view *o) {
    o->any = KIND == HOTBED_OPT_ANY;
    if (KIND != HOTBED_OPT_ANY) {
        o->kind = KIND;
        o->form = hotbed_state_form_of(KIND);
        o->l2_decay = 0.0F;
        o->rates = NULL;
    }
}

/* Each lane looks up one unique key; then the tile updates the keys' rows one after the other.
 * REDUCED: the caller passes the sums. The minimum of blocks per SM keeps the compiler from using a
 * few more registers, which would cost a quarter of the warps (W1, W2 on an H200). */
template <uint32_t WIDTH, uint32_t KIND, bool PLAIN, bool REDUCED, bool NARROW = false>
static __global__ void __launch_bounds__(BLOCK, PLAIN ? (has_states(KIND) ? 3 : 4) : 1)
    update_kernel(
        hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
        update_scratch scratch) {
    const hotbed_update_shape shape = {true, PLAIN, REDUCED, KIND == HOTBED_OPT_ANY, NARROW};
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    uint32_t lane = hotbed_tile_rank(WIDTH);
    compile_for<KIND>(&o);
    for (uint64_t first = hotbed_cuda_thread() / WIDTH * ROWS; first < uniques;
         first += hotbed_cuda_threads() / WIDTH * ROWS) {
        uint32_t count = uniques - first < ROWS ? (uint32_t)(uniques - first) : ROWS;
        uint64_t mine = first + (lane < count ? lane : count - 1);
        uint64_t slot = s.unique.slots[mine];
        uint32_t t = hotbed_table_of_unique(&s, (uint32_t)mine);
        uint32_t begin = s.unique.starts[mine], end = s.unique.starts[mine + 1];
        for (uint32_t r = 0; r < count; r++) {
            uint64_t slot_r = hotbed_tile_shuffle_u64(WIDTH, slot, r);
            uint32_t begin_r = hotbed_tile_shuffle_u32(WIDTH, begin, r);
            uint32_t end_r = hotbed_tile_shuffle_u32(WIDTH, end, r);
            uint32_t t_r = hotbed_tile_shuffle_u32(WIDTH, t, r);
            if (slot_r != HOTBED_SLOT_NONE)
                hotbed_update_row(
                    &s, &o, gradient, &s.storage.tables[t_r], slot_r, (uint32_t)(first + r),
                    REDUCED ? reduced_source(first + r)
                            : find_source(scratch, first + r, begin_r, end_r),
                    shape, WIDTH);
        }
    }
}

/* Rows in registers; the numbers were measured with W1, W2 and W9 to W12 on an H200. A row with
 * more than FEW occurrences is updated by one lane per group of four elements, another row by
 * `lanes` lanes. The limit is the number of registers: optimizers with a state for each element use
 * 16 lanes and load two gradients at once, other optimizers use 8 lanes and load one. Blocks of
 * FEW_BLOCK threads leave update_few_kernel 96 registers: with 80 it spilled rows that it had just
 * loaded, and waited for them. */
enum {
    SOME_AHEAD = 4,
    SOME_BLOCKS = 4,
    FEW_BLOCK = 128,
    FEW_BLOCKS = 5,
    FEW_WAVES = 4, /* 1 and 16 are slower */
};

/* Update a row that has more than one group of partial sums. This is rare. It is not inlined,
 * because the kernel would then need more registers. */
template <uint32_t WIDTH, bool OWN, bool NARROW>
static __device__ __noinline__ void update_many(
    const hotbed_step_view *s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    const update_scratch &scratch, uint32_t u) {
    const uint32_t t = hotbed_table_of_unique(s, u);
    o.any = true;
    if (s->unique.slots[u] != HOTBED_SLOT_NONE)
        hotbed_update_row(
            s, &o, gradient, &s->storage.tables[t], s->unique.slots[u], u,
            find_source(scratch, u, s->unique.starts[u], s->unique.starts[u + 1]),
            {true, false, false, OWN, NARROW}, WIDTH);
}

/* Update the row of unique key u, if it has a slot and at most one group of addends. */
template <uint32_t WIDTH>
static __device__ void update_one(
    const hotbed_step_view &s, const hotbed_optimizer_view &o, hotbed_gradient_view gradient,
    const update_scratch &scratch, uint32_t u, uint32_t begin, uint32_t end, uint64_t slot,
    hotbed_register_shape shape) {
    const hotbed_sum_source source = find_source(scratch, u, begin, end);
    if (slot == HOTBED_SLOT_NONE || source.end - source.begin > HOTBED_SUM_GROUP)
        return;
    const uint32_t i = hotbed_addend_occurrence(&s, source, source.begin, WIDTH);
    const uint32_t t = hotbed_table_of_unique(&s, u);
    hotbed_update_in_registers(
        &s, &o, gradient, &s.storage.tables[t], slot, u, source, i, shape, WIDTH);
}

/* Update rows with more than a few occurrences. */
template <uint32_t WIDTH, uint32_t KIND, bool POOLED, hotbed_rows_form FORM, bool NARROW>
static __global__ void __launch_bounds__(BLOCK, SOME_BLOCKS) update_some_kernel(
    const __grid_constant__ hotbed_step_view s, hotbed_optimizer_view o,
    hotbed_gradient_view gradient, const __grid_constant__ update_scratch scratch) {
    constexpr hotbed_register_shape shape = {KIND,       POOLED,      FORM,  1,
                                             SOME_AHEAD, WIDTH == 32, NARROW};
    const uint32_t some = scratch.used[3];
    const uint64_t tile = hotbed_cuda_thread() / WIDTH, step = hotbed_cuda_threads() / WIDTH;
    compile_for<KIND>(&o);
    for (uint64_t i = tile; i < some; i += step) {
        const uint32_t u = scratch.some[i];
        update_one<WIDTH>(
            s, o, gradient, scratch, u, s.unique.starts[u], s.unique.starts[u + 1],
            s.unique.slots[u], shape);
    }
    for (uint64_t m = tile; m < scratch.used[2]; m += step)
        update_many<WIDTH, KIND == HOTBED_OPT_ANY, NARROW>(
            &s, o, gradient, scratch, scratch.many[m]);
}

/* A row of update_few_kernel. A tile looks up its next two rows while it updates one. */
typedef struct few_row {
    uint64_t slot; /* HOTBED_SLOT_NONE: the row is not updated here */
    uint32_t begin, end;
} few_row;

static __device__ few_row few_row_at(const hotbed_step_view &s, uint64_t u, uint32_t uniques) {
    few_row row = {HOTBED_SLOT_NONE, 0, 0};
    if (u < uniques) {
        row.begin = s.unique.starts[u];
        row.end = s.unique.starts[u + 1];
        row.slot = s.unique.slots[u];
    }
    if (row.end - row.begin > FEW)
        row.slot = HOTBED_SLOT_NONE;
    return row;
}

/* The lane's occurrence, see hotbed_addend_occurrence(). */
template <uint32_t WIDTH>
static __device__ uint32_t few_occurrence(const hotbed_step_view &s, const few_row &row) {
    const hotbed_sum_source source = {row.begin, row.end, NULL, 0};
    return row.slot != HOTBED_SLOT_NONE ? hotbed_addend_occurrence(&s, source, row.begin, WIDTH)
                                        : 0;
}

/* Update the other rows. */
template <
    uint32_t WIDTH, uint32_t QUADS, uint32_t KIND, bool POOLED, hotbed_rows_form FORM, bool NARROW>
static __global__ void __launch_bounds__(FEW_BLOCK, FEW_BLOCKS) update_few_kernel(
    const __grid_constant__ hotbed_step_view s, hotbed_optimizer_view o,
    hotbed_gradient_view gradient, const __grid_constant__ update_scratch scratch) {
    constexpr hotbed_register_shape shape = {
        KIND, POOLED, FORM, QUADS, has_wide_states(KIND) ? 2 : 1, WIDTH >= FEW, NARROW};
    const uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    const uint64_t step = hotbed_cuda_threads() / WIDTH;
    uint64_t u = hotbed_cuda_thread() / WIDTH;
    if (u >= uniques)
        return;
    few_row row = few_row_at(s, u, uniques), next = few_row_at(s, u + step, uniques);
    uint32_t i = few_occurrence<WIDTH>(s, row), t = hotbed_table_of_unique(&s, (uint32_t)u);
    compile_for<KIND>(&o);
    for (;;) {
        const uint32_t next_i = few_occurrence<WIDTH>(s, next);
        const few_row after = few_row_at(s, u + 2 * step, uniques);
        const hotbed_sum_source source = {row.begin, row.end, NULL, 0};
        if (row.slot != HOTBED_SLOT_NONE)
            hotbed_update_in_registers(
                &s, &o, gradient, &s.storage.tables[t], row.slot, (uint32_t)u, source, i, shape,
                WIDTH);
        u += step;
        if (u >= uniques)
            break;
        t = hotbed_part_after(s.unique.offsets, s.storage.num_tables, t, (uint32_t)u);
        row = next;
        next = after;
        i = next_i;
    }
}

template <uint32_t WIDTH, uint32_t KIND, bool NARROW = false>
static __global__ void __launch_bounds__(BLOCK) update_rows_kernel(hotbed_update_rows_args a) {
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    compile_for<KIND>(&a.o);
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < a.n; i += step)
        hotbed_update_given_row(&a, &a.o, NARROW, i, WIDTH);
}

/* The form of rows and gradients, which selects the kernels. */
typedef enum update_form {
    FORM_ANY,
    FORM_PLAIN, /* hotbed_update_shape.plain */
    /* hotbed_update_in_registers(): rows of sequences, or pooled rows, of each hotbed_rows_form */
    FORM_SEQUENCE,
    FORM_SEQUENCE_HALF,
    FORM_SEQUENCE_SCALED,
    FORM_BAGS,
    FORM_BAGS_HALF,
    FORM_BAGS_SCALED,
} update_form;

typedef void (*update_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch);

/* The kernels of a kind for one tile width. */
typedef struct update_kind {
    uint32_t width;        /* of `some`, `apply` and `update_rows` */
    uint32_t update_width; /* of `update` */
    update_launch update, apply;
    update_launch some; /* rows with more than FEW occurrences; NULL: `update` does all */
    void (*update_rows)(hotbed_update_rows_args);
} update_kind;

template <uint32_t WIDTH, uint32_t KIND, bool POOLED, hotbed_rows_form FORM, bool NARROW>
static void in_registers(update_kind *all) {
    constexpr uint32_t most = KIND == HOTBED_OPT_ANY ? 32 : has_wide_states(KIND) ? 16 : 8;
    constexpr uint32_t lanes = WIDTH < most ? WIDTH : most;
    all->update = update_few_kernel<lanes, WIDTH / lanes, KIND, POOLED, FORM, NARROW>;
    all->update_width = lanes;
    all->some = update_some_kernel<WIDTH, KIND, POOLED, FORM, NARROW>;
}

/* NARROW: states may be narrower than f32, so no rows are plain. Of HOTBED_OPT_ANY, narrow states and scaled
 * rows have `update` only: they would need too many registers. */
template <uint32_t WIDTH, uint32_t KIND, bool NARROW = false>
static update_kind kind_of(update_form form) {
    const bool plain = form == FORM_PLAIN || form == FORM_SEQUENCE;
    update_kind all = {
        WIDTH,
        WIDTH,
        plain ? update_kernel<WIDTH, KIND, !NARROW, false, NARROW>
              : update_kernel<WIDTH, KIND, false, false, NARROW>,
        plain ? update_kernel<WIDTH, KIND, !NARROW, true, NARROW>
              : update_kernel<WIDTH, KIND, false, true, NARROW>,
        NULL,
        update_rows_kernel<WIDTH, KIND, NARROW>};
    if constexpr (KIND != HOTBED_OPT_ANY || !NARROW) {
        if (form == FORM_SEQUENCE)
            in_registers<WIDTH, KIND, false, HOTBED_ROWS_F32, NARROW>(&all);
        if (form == FORM_SEQUENCE_HALF)
            in_registers<WIDTH, KIND, false, HOTBED_ROWS_HALF, NARROW>(&all);
        if (form == FORM_BAGS)
            in_registers<WIDTH, KIND, true, HOTBED_ROWS_F32, NARROW>(&all);
        if (form == FORM_BAGS_HALF)
            in_registers<WIDTH, KIND, true, HOTBED_ROWS_HALF, NARROW>(&all);
    }
    if constexpr (KIND != HOTBED_OPT_ANY) {
        if (form == FORM_SEQUENCE_SCALED)
            in_registers<WIDTH, KIND, false, HOTBED_ROWS_SCALED, NARROW>(&all);
        if (form == FORM_BAGS_SCALED)
            in_registers<WIDTH, KIND, true, HOTBED_ROWS_SCALED, NARROW>(&all);
    }
    return all;
}

template <uint32_t KIND> static update_kind choose_width(uint32_t max_dim, update_form form) {
    if (max_dim <= 16)
        return kind_of<4, KIND>(form);
    if (max_dim <= 32)
        return kind_of<8, KIND>(form);
    if (max_dim <= 64)
        return kind_of<16, KIND>(form);
    return kind_of<32, KIND>(form);
}

/* The kernels for rows of up to max_dim elements, of this form; each in a file of its own. */
update_kind hotbed_update_sgd(uint32_t max_dim, update_form form);
update_kind hotbed_update_adam(uint32_t max_dim, update_form form);
update_kind hotbed_update_adagrad(uint32_t max_dim, update_form form);
update_kind hotbed_update_rowwise_adagrad(uint32_t max_dim, update_form form);
update_kind hotbed_update_any(uint32_t max_dim, update_form form);
update_kind hotbed_update_narrow(uint32_t kind, uint32_t max_dim, update_form form);
