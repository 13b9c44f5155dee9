/* storage/step/update.cu - backward on CUDA, whole or as reduce and apply. Host counterpart:
 * update_host.c.
 *
 * A tile sums and updates a row with up to 32 occurrences. For other rows, tiles first sum groups
 * of 32 occurrences (leaves), and, for more than 1024 occurrences, groups of 32 leaves: the hottest
 * key of a power law has thousands of occurrences.
 */
#include "base/carve.h"
#include "base/cuda_launch.h"
#include "base/stream.h"
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

/* A row with n > 32 occurrences has at most n/32 + 1 <= n/16 leaves; with n > 1024, at most n/256
 * groups. */
static size_t lay_out(uint64_t bound, uint32_t max_dim, void *base, update_scratch *scratch) {
    size_t leaves = bound / 16 + 1, groups = bound / 256 + 1;
    const size_t many = bound / (HOTBED_SUM_GROUP * HOTBED_SUM_GROUP * HOTBED_SUM_GROUP) + 1;
    const size_t words[9] = {4, bound, bound, leaves, leaves, groups, groups, many, bound};
    uint32_t **const parts[9] = {&scratch->used,       &scratch->first_leaf, &scratch->first_group,
                                 &scratch->leaf_begin, &scratch->leaf_end,   &scratch->group_begin,
                                 &scratch->group_end,  &scratch->many,       &scratch->some};
    hotbed_carve carve = {(uint8_t *)base, 0};
    for (int p = 0; p < 9; p++)
        *parts[p] = (uint32_t *)hotbed_carve_take(&carve, words[p] * sizeof(uint32_t));
    scratch->row = (max_dim + 3) / 4 * 4;
    const size_t row_bytes = scratch->row * sizeof(float);
    scratch->leaf_sums = (float *)hotbed_carve_take(&carve, leaves * row_bytes);
    scratch->group_sums = (float *)hotbed_carve_take(&carve, groups * row_bytes);
    return carve.used;
}

static __global__ void step_kernel(hotbed_step_view s, float beta1, float beta2, uint32_t *used) {
    hotbed_clock_step(s.storage.clock, beta1, beta2);
    hotbed_step_hold(&s, HOTBED_HELD_BATCH, false); /* updates release the rows' pins */
    used[0] = used[1] = used[2] = used[3] = 0;
}

static __device__ uint32_t parts_of(uint32_t n) {
    return (n + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
}

/* Prefix sums over the threads of a block, in shared memory; `to` includes the thread's own n. */
typedef struct block_sums {
    uint32_t to[SPLIT_BLOCK], warps[SPLIT_BLOCK / 32], first;
} block_sums;

/* Reserve n entries for each thread of the block. sums->to[i] becomes the sum of n up to thread i,
 * and sums->first the value of *used before the total was added to it. Returns the total. */
static __device__ uint32_t append(uint32_t n, uint32_t *used, block_sums *sums) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads(); /* wait for earlier readers of *sums */
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffU, n, apart);
        n += lane >= apart ? other : 0;
    }
    if (lane == 31)
        sums->warps[warp] = n;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < SPLIT_BLOCK / 32; w++) {
        before += w < warp ? sums->warps[w] : 0;
        all += sums->warps[w];
    }
    sums->to[threadIdx.x] = before + n;
    if (threadIdx.x == 0 && all > 0)
        sums->first = hotbed_add_relaxed_u32(used, all);
    __syncthreads();
    return all;
}

/* Split each thread's range [begin, end) into `parts` parts of 32 (0: the thread has no range).
 * Append the parts to part_begin and part_end, and return the number of the thread's first part.
 * All threads of the block share the work, because the hottest key may have most of the parts. */
static __device__ uint32_t split(
    uint32_t begin, uint32_t end, uint32_t parts, uint32_t *used, uint32_t *part_begin,
    uint32_t *part_end, block_sums *sums) {
    __shared__ uint32_t begins[SPLIT_BLOCK], ends[SPLIT_BLOCK];
    const uint32_t all = append(parts, used, sums);
    begins[threadIdx.x] = begin;
    ends[threadIdx.x] = end;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < all; p += SPLIT_BLOCK) {
        uint32_t owner = 0; /* number of threads whose parts all come before part p */
        for (uint32_t half = SPLIT_BLOCK / 2; half > 0; half /= 2)
            owner += sums->to[owner + half - 1] <= p ? half : 0;
        uint32_t before = owner == 0 ? 0 : sums->to[owner - 1];
        uint32_t at = begins[owner] + (p - before) * HOTBED_SUM_GROUP, stop = ends[owner];
        part_begin[sums->first + p] = at;
        part_end[sums->first + p] = stop - at < HOTBED_SUM_GROUP ? stop : at + HOTBED_SUM_GROUP;
    }
    return sums->first + sums->to[threadIdx.x] - parts;
}

/* Find the rows with more than a few occurrences, and the parts of those with more than 32. */
static __global__ void __launch_bounds__(SPLIT_BLOCK)
    split_kernel(hotbed_step_view s, update_scratch scratch) {
    __shared__ block_sums sums;
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t first = (uint64_t)blockIdx.x * SPLIT_BLOCK; first < uniques;
         first += (uint64_t)gridDim.x * SPLIT_BLOCK) {
        uint64_t u = first + threadIdx.x;
        uint32_t begin = u < uniques ? s.unique.starts[u] : 0,
                 end = u < uniques ? s.unique.starts[u + 1] : 0;
        bool some = end - begin > FEW;
        if (__syncthreads_or(some) == 0)
            continue;
        (void)append(some ? 1 : 0, &scratch.used[3], &sums);
        if (some)
            scratch.some[sums.first + sums.to[threadIdx.x] - 1] = (uint32_t)u;
        uint32_t leaves = end - begin > HOTBED_SUM_GROUP ? parts_of(end - begin) : 0;
        if (__syncthreads_or(leaves > 0) == 0)
            continue;
        uint32_t leaf = split(
            begin, end, leaves, &scratch.used[0], scratch.leaf_begin, scratch.leaf_end, &sums);
        if (leaves > 0)
            scratch.first_leaf[u] = leaf;
        uint32_t groups = leaves > HOTBED_SUM_GROUP ? parts_of(leaves) : 0;
        if (__syncthreads_or(groups > 0) == 0)
            continue;
        uint32_t group = split(
            leaf, leaf + leaves, groups, &scratch.used[1], scratch.group_begin, scratch.group_end,
            &sums);
        if (groups > 0)
            scratch.first_group[u] = group;
        if (groups > HOTBED_SUM_GROUP)
            scratch.many[hotbed_add_relaxed_u32(&scratch.used[2], 1)] = (uint32_t)u;
    }
}

template <uint32_t WIDTH, bool PLAIN>
static __global__ void __launch_bounds__(BLOCK) leaf_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch) {
    const hotbed_update_shape shape = {true, PLAIN, false};
    uint32_t leaves = scratch.used[0];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t leaf = hotbed_cuda_thread() / WIDTH; leaf < leaves; leaf += step) {
        uint32_t begin = scratch.leaf_begin[leaf], end = scratch.leaf_end[leaf];
        uint32_t t = hotbed_part_of(s.batch.table_starts, s.storage.num_tables, begin);
        uint32_t dim = s.storage.tables[t].dim;
        for (uint32_t first = 0; first < dim; first += 4 * WIDTH) {
            uint32_t e = first + 4 * hotbed_tile_rank(WIDTH);
            uint32_t count = e < dim ? hotbed_count4(dim, e) : 0;
            hotbed_f32x4 sum =
                hotbed_sum_group(&s, &o, gradient, shape, begin, end, e, count, WIDTH);
            if (count > 0)
                hotbed_store4(HOTBED_F32, scratch.leaf_sums, leaf * scratch.row + e, 4, sum);
        }
    }
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK) group_kernel(update_scratch scratch) {
    uint32_t groups = scratch.used[1];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t g = hotbed_cuda_thread() / WIDTH; g < groups; g += step)
        for (uint32_t e = 4 * hotbed_tile_rank(WIDTH); e < scratch.row; e += 4 * WIDTH) {
            const hotbed_sum_source leaves = {
                scratch.group_begin[g], scratch.group_end[g], scratch.leaf_sums, scratch.row};
            hotbed_store4(
                HOTBED_F32, scratch.group_sums, g * scratch.row + e, 4,
                hotbed_sum_partials_ahead(leaves, e));
        }
}

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

/* Whether the kernels that are compiled for the optimizer's kind serve it. */
static bool is_compiled(const hotbed_optimizer_view *o) {
    return o->kind <= HOTBED_OPT_COMPILED && o->l2_decay == 0.0F;
}

/* Tell the compiler what is_compiled() says. SGD needs half of Adam's registers. */
template <uint32_t KIND> static __device__ void compile_for(hotbed_optimizer_view *o) {
    o->any = KIND == HOTBED_OPT_ANY;
    if (KIND != HOTBED_OPT_ANY) {
        o->kind = KIND;
        o->form = hotbed_state_form_of(KIND);
        o->l2_decay = 0.0F;
    }
}

/* Each lane looks up one unique key; then the tile updates the keys' rows one after the other.
 * REDUCED: the caller passes the sums. The minimum of blocks per SM keeps the compiler from using a
 * few more registers, which would cost a quarter of the warps (W1, W2 on an H200). */
template <uint32_t WIDTH, uint32_t KIND, bool PLAIN, bool REDUCED>
static __global__ void __launch_bounds__(BLOCK, PLAIN ? (has_states(KIND) ? 3 : 4) : 1)
    update_kernel(
        hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
        update_scratch scratch) {
    const hotbed_update_shape shape = {true, PLAIN, REDUCED};
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
    LEAF_AHEAD = 4,
    LEAF_BLOCKS = 5,
    SOME_AHEAD = 4,
    SOME_BLOCKS = 4,
    FEW_BLOCK = 128,
    FEW_BLOCKS = 5,
    FEW_WAVES = 4, /* 1 and 16 are slower */
};

template <uint32_t WIDTH, bool POOLED>
static __global__ void __launch_bounds__(BLOCK, LEAF_BLOCKS) leaf_in_registers_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch) {
    constexpr hotbed_register_shape shape = {0, POOLED, false, 1, LEAF_AHEAD, WIDTH == 32};
    uint32_t leaves = scratch.used[0], e = hotbed_quad_at(0, WIDTH);
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    (void)o;
    for (uint64_t leaf = hotbed_cuda_thread() / WIDTH; leaf < leaves; leaf += step) {
        const hotbed_sum_source source = {
            scratch.leaf_begin[leaf], scratch.leaf_end[leaf], NULL, 0};
        const uint32_t i = hotbed_addend_occurrence(&s, source, source.begin, WIDTH);
        uint32_t t = hotbed_part_of(s.batch.table_starts, s.storage.num_tables, source.begin);
        uint32_t dim = s.storage.tables[t].dim;
        hotbed_quads sum = hotbed_sum_addends(&s, gradient, source, i, dim, shape, WIDTH);
        if (e < dim)
            hotbed_store4(HOTBED_F32, scratch.leaf_sums, leaf * scratch.row + e, 4, sum.q[0]);
    }
}

/* Update a row that has more than one group of partial sums. This is rare. It is not inlined,
 * because the kernel would then need more registers. */
template <uint32_t WIDTH>
static __device__ __noinline__ void update_many(
    const hotbed_step_view *s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    const update_scratch &scratch, uint32_t u) {
    const uint32_t t = hotbed_table_of_unique(s, u);
    o.any = true;
    if (s->unique.slots[u] != HOTBED_SLOT_NONE)
        hotbed_update_row(
            s, &o, gradient, &s->storage.tables[t], s->unique.slots[u], u,
            find_source(scratch, u, s->unique.starts[u], s->unique.starts[u + 1]),
            {true, false, false}, WIDTH);
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
template <uint32_t WIDTH, uint32_t KIND, bool POOLED, bool HALF>
static __global__ void __launch_bounds__(BLOCK, SOME_BLOCKS) update_some_kernel(
    const __grid_constant__ hotbed_step_view s, hotbed_optimizer_view o,
    hotbed_gradient_view gradient, const __grid_constant__ update_scratch scratch) {
    constexpr hotbed_register_shape shape = {KIND, POOLED, HALF, 1, SOME_AHEAD, WIDTH == 32};
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
        update_many<WIDTH>(&s, o, gradient, scratch, scratch.many[m]);
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
template <uint32_t WIDTH, uint32_t QUADS, uint32_t KIND, bool POOLED, bool HALF>
static __global__ void __launch_bounds__(FEW_BLOCK, FEW_BLOCKS) update_few_kernel(
    const __grid_constant__ hotbed_step_view s, hotbed_optimizer_view o,
    hotbed_gradient_view gradient, const __grid_constant__ update_scratch scratch) {
    constexpr hotbed_register_shape shape = {
        KIND, POOLED, HALF, QUADS, has_wide_states(KIND) ? 2 : 1, WIDTH >= FEW};
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

/* The rows that a launch of reduce_kernel() sums. */
typedef enum reduce_rows {
    REDUCE_WHOLE,   /* rows with up to 32 occurrences */
    REDUCE_IN_PARTS /* the others, from the sums of their parts */
} reduce_rows;

template <uint32_t WIDTH, bool PLAIN>
static __global__ void __launch_bounds__(BLOCK) reduce_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch, hotbed_sums_view sums, reduce_rows rows) {
    const hotbed_update_shape shape = {true, PLAIN, false};
    const bool in_parts = rows == REDUCE_IN_PARTS;
    const uint32_t n = in_parts ? scratch.used[3] : s.unique.offsets[s.storage.num_tables];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < n; i += step) {
        const uint32_t u = in_parts ? scratch.some[i] : (uint32_t)i;
        const uint32_t begin = s.unique.starts[u], end = s.unique.starts[u + 1];
        if ((end - begin > HOTBED_SUM_GROUP) != in_parts)
            continue;
        uint32_t t = hotbed_table_of_unique(&s, u);
        hotbed_reduce_row(
            &s, &o, gradient, s.storage.tables[t].dim, u, find_source(scratch, u, begin, end),
            shape, sums, WIDTH);
    }
}

template <uint32_t WIDTH, uint32_t KIND>
static __global__ void __launch_bounds__(BLOCK) update_rows_kernel(hotbed_update_rows_args a) {
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    compile_for<KIND>(&a.o);
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < a.n; i += step)
        hotbed_update_given_row(&a, &a.o, i, WIDTH);
}

static __global__ void count_kernel(hotbed_optimizer_clock *clock, float beta1, float beta2) {
    hotbed_count_step(clock, beta1, beta2);
}

static __global__ void rate_kernel(hotbed_clock *clock, float learning_rate) {
    clock->optimizer.learning_rate = learning_rate;
}

static size_t scratch_bytes_of(uint64_t bound, uint32_t max_dim) {
    update_scratch scratch;
    return lay_out(bound, max_dim, NULL, &scratch);
}

typedef void (*update_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch);
typedef void (*reduce_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch, hotbed_sums_view,
    reduce_rows);

/* The kernels for one tile width. */
typedef struct update_launches {
    uint32_t width;
    update_launch leaf;
    void (*group)(update_scratch);
    reduce_launch reduce;
    update_launch update, apply;
    void (*update_rows)(hotbed_update_rows_args);
    uint32_t update_width; /* of `update` */
    update_launch some;    /* rows with more than FEW occurrences; NULL: `update` does all */
} update_launches;

template <uint32_t WIDTH, uint32_t KIND, bool POOLED, bool HALF>
static void in_registers(update_launches *all) {
    constexpr uint32_t most = KIND == HOTBED_OPT_ANY ? 32 : has_wide_states(KIND) ? 16 : 8;
    constexpr uint32_t lanes = WIDTH < most ? WIDTH : most;
    all->leaf = leaf_in_registers_kernel<WIDTH, POOLED>;
    all->update = update_few_kernel<lanes, WIDTH / lanes, KIND, POOLED, HALF>;
    all->update_width = lanes;
    all->some = update_some_kernel<WIDTH, KIND, POOLED, HALF>;
}

/* The form of rows and gradients, which selects the kernels. */
typedef enum update_form {
    FORM_ANY,
    FORM_PLAIN, /* hotbed_update_shape.plain */
    /* hotbed_update_in_registers(): */
    FORM_SEQUENCE,  /* f32 rows */
    FORM_BAGS,      /* f32 rows, pooled */
    FORM_BAGS_HALF, /* rows of two-byte elements, pooled */
} update_form;

template <uint32_t WIDTH, uint32_t KIND> static update_launches launches_of(update_form form) {
    const bool plain = form == FORM_PLAIN || form == FORM_SEQUENCE;
    update_launches all = {
        WIDTH,
        plain ? leaf_kernel<WIDTH, true> : leaf_kernel<WIDTH, false>,
        group_kernel<WIDTH>,
        plain ? reduce_kernel<WIDTH, true> : reduce_kernel<WIDTH, false>,
        plain ? update_kernel<WIDTH, KIND, true, false> : update_kernel<WIDTH, KIND, false, false>,
        plain ? update_kernel<WIDTH, KIND, true, true> : update_kernel<WIDTH, KIND, false, true>,
        update_rows_kernel<WIDTH, KIND>,
        WIDTH,
        NULL};
    if (form == FORM_SEQUENCE)
        in_registers<WIDTH, KIND, false, false>(&all);
    if (form == FORM_BAGS)
        in_registers<WIDTH, KIND, true, false>(&all);
    if (form == FORM_BAGS_HALF)
        in_registers<WIDTH, KIND, true, true>(&all);
    return all;
}

template <uint32_t KIND> static update_launches choose_width(uint32_t max_dim, update_form form) {
    if (max_dim <= 16)
        return launches_of<4, KIND>(form);
    if (max_dim <= 32)
        return launches_of<8, KIND>(form);
    if (max_dim <= 64)
        return launches_of<16, KIND>(form);
    return launches_of<32, KIND>(form);
}

/* The widths for kernels of any kind are fewer: half of them take as long to compile. */
static update_launches choose_any(uint32_t max_dim, update_form form) {
    return max_dim <= 32 ? launches_of<8, HOTBED_OPT_ANY>(form)
                         : launches_of<32, HOTBED_OPT_ANY>(form);
}

static update_launches choose(uint32_t max_dim, update_form form, const hotbed_optimizer_view *o) {
    switch (is_compiled(o) ? o->kind : (uint32_t)HOTBED_OPT_ANY) {
    case HOTBED_OPT_SGD:
        return choose_width<HOTBED_OPT_SGD>(max_dim, form);
    case HOTBED_OPT_ADAM:
        return choose_width<HOTBED_OPT_ADAM>(max_dim, form);
    case HOTBED_OPT_ADAGRAD:
        return choose_width<HOTBED_OPT_ADAGRAD>(max_dim, form);
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return choose_width<HOTBED_OPT_ROWWISE_ADAGRAD>(max_dim, form);
    default:
        return choose_any(max_dim, form);
    }
}

static update_form form_of(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim) {
    if (step->storage.rows_form == HOTBED_ROWS_ANY || gradient.dtype != HOTBED_F32 ||
        optimizer->max_gradient != 0.0F || gradient.stride % 4 != 0 ||
        ((uintptr_t)gradient.data & 15U) != 0)
        return FORM_ANY;
    const bool f32 = step->storage.rows_form == HOTBED_ROWS_F32;
    if (step->storage.pooling == HOTBED_POOL_NONE)
        return !f32 ? FORM_ANY : max_dim > HOTBED_REGISTER_DIM_MOST ? FORM_PLAIN : FORM_SEQUENCE;
    if (max_dim > HOTBED_REGISTER_DIM_MOST || step->storage.pooling != HOTBED_POOL_SUM ||
        step->batch.weights != NULL)
        return FORM_ANY;
    return f32 ? FORM_BAGS : FORM_BAGS_HALF;
}

/* The share of the GPU's threads that a kernel takes: all, or a quarter if it runs beside another. */
typedef enum update_share { WHOLE = 1, PART = 4 } update_share;

static unsigned blocks_of(
    const hotbed_stream *stream, uint64_t rows, uint32_t width, update_share share) {
    const unsigned blocks = hotbed_cuda_blocks(stream, rows * width, BLOCK, WAVES);
    const unsigned most = hotbed_cuda_blocks(stream, UINT64_MAX / 2, BLOCK, WAVES) / share;
    return blocks < most ? blocks : most;
}

/* Sum the parts of rows with more than 32 occurrences. scratch.used must be 0. */
static hotbed_status sum_parts(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    update_share share, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    unsigned blocks = blocks_of(stream, step->batch.bound, launch->width, share);
    split_kernel<<<
        hotbed_cuda_blocks(stream, step->batch.bound, SPLIT_BLOCK, WAVES), SPLIT_BLOCK, 0,
        native>>>(*step, scratch);
    HOTBED_TRY(hotbed_cuda_launched("split_kernel"));
    launch->leaf<<<blocks, BLOCK, 0, native>>>(*step, *optimizer, gradient, scratch);
    HOTBED_TRY(hotbed_cuda_launched("leaf_kernel"));
    launch->group<<<blocks, BLOCK, 0, native>>>(scratch);
    return hotbed_cuda_launched("group_kernel");
}

static hotbed_status step_clock(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, update_scratch scratch,
    hotbed_stream *stream) {
    step_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(
        *step, optimizer->beta1, optimizer->beta2, scratch.used);
    return hotbed_cuda_launched("step_kernel");
}

/* Update the rows with more than FEW occurrences. */
static hotbed_status update_some(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    hotbed_stream *stream) {
    HOTBED_TRY(sum_parts(launch, step, optimizer, gradient, scratch, PART, stream));
    launch->some<<<
        blocks_of(stream, step->batch.bound, launch->width, PART), BLOCK, 0,
        hotbed_cuda_native(stream)>>>(*step, *optimizer, gradient, scratch);
    return hotbed_cuda_launched("update_some_kernel");
}

/* Rows in registers: the rows with few occurrences, which are most, are updated while the branch sums
 * the parts of the others. */
static hotbed_status update(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_scratch scratch;
    (void)lay_out(step->batch.bound, max_dim, memory, &scratch);
    update_launches launch =
        choose(max_dim, form_of(step, optimizer, gradient, max_dim), optimizer);
    HOTBED_TRY(step_clock(step, optimizer, scratch, stream));
    if (launch.some == NULL) {
        HOTBED_TRY(sum_parts(&launch, step, optimizer, gradient, scratch, WHOLE, stream));
        launch.update<<<
            hotbed_cuda_blocks(stream, step->batch.bound * launch.update_width, BLOCK, FEW_WAVES),
            BLOCK, 0, hotbed_cuda_native(stream)>>>(*step, *optimizer, gradient, scratch);
        return hotbed_cuda_launched("update_kernel");
    }
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    hotbed_status status = update_some(&launch, step, optimizer, gradient, scratch, branch);
    if (status == HOTBED_OK) {
        launch.update<<<
            hotbed_cuda_blocks(
                stream, step->batch.bound * launch.update_width, FEW_BLOCK, FEW_WAVES),
            FEW_BLOCK, 0, hotbed_cuda_native(stream)>>>(*step, *optimizer, gradient, scratch);
        status = hotbed_cuda_launched("update_few_kernel");
    }
    hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
}

static hotbed_status reduce_in_parts(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    hotbed_sums_view sums, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(scratch.used, 0, 4 * sizeof(uint32_t), native), "cudaMemsetAsync"));
    HOTBED_TRY(sum_parts(launch, step, optimizer, gradient, scratch, PART, stream));
    launch->reduce<<<blocks_of(stream, step->batch.bound, launch->width, PART), BLOCK, 0, native>>>(
        *step, *optimizer, gradient, scratch, sums, REDUCE_IN_PARTS);
    return hotbed_cuda_launched("reduce_kernel");
}

/* Sums that go to other ranks wait for the link, so the branch sums the parts of the hottest rows
 * meanwhile. */
static hotbed_status reduce(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *memory,
    hotbed_stream *stream) {
    update_scratch scratch;
    (void)lay_out(step->batch.bound, max_dim, memory, &scratch);
    update_launches launch =
        choose(max_dim, form_of(step, optimizer, gradient, max_dim), optimizer);
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    hotbed_status status =
        reduce_in_parts(&launch, step, optimizer, gradient, scratch, sums, branch);
    if (status == HOTBED_OK) {
        launch.reduce<<<
            hotbed_cuda_blocks(stream, step->batch.bound * launch.width, BLOCK, FEW_WAVES), BLOCK,
            0, hotbed_cuda_native(stream)>>>(
            *step, *optimizer, gradient, scratch, sums, REDUCE_WHOLE);
        status = hotbed_cuda_launched("reduce_kernel");
    }
    hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
}

static hotbed_status apply(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, hotbed_gradient_view sums,
    uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_scratch scratch;
    (void)lay_out(step->batch.bound, max_dim, memory, &scratch);
    bool plain = step->storage.rows_form == HOTBED_ROWS_F32 && ((uintptr_t)sums.data & 15U) == 0;
    update_launches launch = choose(max_dim, plain ? FORM_PLAIN : FORM_ANY, optimizer);
    HOTBED_TRY(step_clock(step, optimizer, scratch, stream));
    launch.apply<<<
        blocks_of(stream, step->batch.bound, launch.width, WHOLE), BLOCK, 0,
        hotbed_cuda_native(stream)>>>(*step, *optimizer, sums, scratch);
    return hotbed_cuda_launched("update_kernel");
}

static hotbed_status count_step(
    const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    count_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(
        clock, optimizer->beta1, optimizer->beta2);
    return hotbed_cuda_launched("count_kernel");
}

static hotbed_status update_rows(const hotbed_update_rows_args *args, hotbed_stream *stream) {
    update_launches launch = choose(args->row.dim, FORM_ANY, &args->o);
    launch.update_rows<<<
        blocks_of(stream, args->n, launch.width, WHOLE), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *args);
    return hotbed_cuda_launched("update_rows_kernel");
}

static hotbed_status set_learning_rate(
    hotbed_clock *clock, float learning_rate, hotbed_stream *stream) {
    rate_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(clock, learning_rate);
    return hotbed_cuda_launched("rate_kernel");
}

const hotbed_update_kernels hotbed_update_kernels_cuda = {
    scratch_bytes_of, update, reduce, apply, count_step, update_rows, set_learning_rate};
