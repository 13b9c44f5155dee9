/* storage/step/update.cu - backward on CUDA, whole or as reduce and apply. Host counterpart:
 * update_host.c.
 *
 * A tile sums and updates a row with up to 32 occurrences. For other rows, tiles first sum groups
 * of 32 occurrences (leaves), and, for more than 1024 occurrences, groups of 32 leaves: the hottest
 * key of a power law has thousands of occurrences.
 */
#include "base/carve.h"
#include "base/stream.h"
#include "storage/step/update.cuh"

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

/* Record that the row of unique key u is changed. A kernel that updates rows would wait for each bit's
 * sector: its rows push the bits out of L2. */
static __device__ void record_changed(const hotbed_step_view &s, uint64_t u) {
    hotbed_unique_changed(&s, u, hotbed_table_of_unique(&s, (uint32_t)u));
}

/* What an update needs before its rows. `tracks`: record that all rows are changed. */
static __global__ void __launch_bounds__(BLOCK)
    step_kernel(hotbed_step_view s, float beta1, float beta2, uint32_t *used, bool tracks) {
    if (hotbed_cuda_thread() == 0) {
        hotbed_clock_step(s.storage.clock, beta1, beta2);
        hotbed_step_hold(&s, HOTBED_HELD_BATCH, false); /* updates release the rows' pins */
        used[0] = used[1] = used[2] = used[3] = 0;
    }
    const uint32_t uniques = tracks ? s.unique.offsets[s.storage.num_tables] : 0;
    for (uint64_t u = hotbed_cuda_thread(); u < uniques; u += hotbed_cuda_threads())
        record_changed(s, u);
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

/* Find the rows with more than a few occurrences, and the parts of those with more than 32. `tracks`:
 * record that all rows are changed. */
static __global__ void __launch_bounds__(SPLIT_BLOCK)
    split_kernel(hotbed_step_view s, update_scratch scratch, bool tracks) {
    __shared__ block_sums sums;
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t first = (uint64_t)blockIdx.x * SPLIT_BLOCK; first < uniques;
         first += (uint64_t)gridDim.x * SPLIT_BLOCK) {
        uint64_t u = first + threadIdx.x;
        uint32_t begin = u < uniques ? s.unique.starts[u] : 0,
                 end = u < uniques ? s.unique.starts[u + 1] : 0;
        bool some = end - begin > FEW;
        if (tracks && u < uniques)
            record_changed(s, u);
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
    const hotbed_update_shape shape = {true, PLAIN, false, false, false};
    uint32_t leaves = scratch.used[0];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t leaf = hotbed_cuda_thread() / WIDTH; leaf < leaves; leaf += step) {
        uint32_t begin = scratch.leaf_begin[leaf], end = scratch.leaf_end[leaf];
        uint32_t t = hotbed_part_of(s.batch.table_starts, s.storage.num_tables, begin);
        uint32_t dim = s.storage.tables[t].dim;
        if (o.rates != NULL)
            o.max_gradient = o.rates[t].max_gradient;
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

enum { LEAF_AHEAD = 4, LEAF_BLOCKS = 5 };

template <uint32_t WIDTH, bool POOLED>
static __global__ void __launch_bounds__(BLOCK, LEAF_BLOCKS) leaf_in_registers_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch) {
    constexpr hotbed_register_shape shape = {0,           POOLED, HOTBED_ROWS_F32, 1, LEAF_AHEAD,
                                             WIDTH == 32, false};
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

/* The rows that a launch of reduce_kernel() sums. */
typedef enum reduce_rows {
    REDUCE_WHOLE,   /* rows with up to 32 occurrences */
    REDUCE_IN_PARTS /* the others, from the sums of their parts */
} reduce_rows;

template <uint32_t WIDTH, bool PLAIN, bool PACKS>
static __global__ void __launch_bounds__(BLOCK) reduce_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch, hotbed_sums_view sums, reduce_rows rows) {
    const hotbed_update_shape shape = {true, PLAIN, false, false, false};
    sums.pack.dtype = PACKS ? sums.pack.dtype : 0;
    const bool in_parts = rows == REDUCE_IN_PARTS;
    const uint32_t n = in_parts ? scratch.used[3] : s.unique.offsets[s.storage.num_tables];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < n; i += step) {
        const uint32_t u = in_parts ? scratch.some[i] : (uint32_t)i;
        const uint32_t begin = s.unique.starts[u], end = s.unique.starts[u + 1];
        if ((end - begin > HOTBED_SUM_GROUP) != in_parts)
            continue;
        uint32_t t = hotbed_table_of_unique(&s, u);
        if (o.rates != NULL)
            o.max_gradient = o.rates[t].max_gradient;
        hotbed_reduce_row(
            &s, &o, gradient, s.storage.tables[t].dim, u, find_source(scratch, u, begin, end),
            shape, sums, WIDTH);
    }
}

static __global__ void count_kernel(hotbed_optimizer_clock *clock, float beta1, float beta2) {
    hotbed_count_step(clock, beta1, beta2);
}

static __global__ void rate_kernel(float *rate, float learning_rate) {
    *rate = learning_rate;
}

static size_t scratch_bytes_of(uint64_t bound, uint32_t max_dim) {
    update_scratch scratch;
    return lay_out(bound, max_dim, NULL, &scratch);
}

typedef void (*reduce_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch, hotbed_sums_view,
    reduce_rows);

/* The kernels of a step. */
typedef struct update_launches {
    uint32_t width; /* of the kernels that sum */
    update_launch leaf;
    void (*group)(update_scratch);
    reduce_launch reduce, reduce_packed;
    update_kind kind;
} update_launches;

template <uint32_t WIDTH> static update_launches sums_of(update_form form, bool half) {
    const bool plain = !half && (form == FORM_PLAIN || form == FORM_SEQUENCE);
    update_launches all = {};
    all.width = WIDTH;
    all.leaf = plain ? leaf_kernel<WIDTH, true> : leaf_kernel<WIDTH, false>;
    all.group = group_kernel<WIDTH>;
    all.reduce = plain ? reduce_kernel<WIDTH, true, false> : reduce_kernel<WIDTH, false, false>;
    all.reduce_packed =
        plain ? reduce_kernel<WIDTH, true, true> : reduce_kernel<WIDTH, false, true>;
    if (form >= FORM_SEQUENCE && form < FORM_BAGS)
        all.leaf = leaf_in_registers_kernel<WIDTH, false>;
    if (form >= FORM_BAGS)
        all.leaf = leaf_in_registers_kernel<WIDTH, true>;
    return all;
}

static update_kind choose_kind(uint32_t max_dim, update_form form, const hotbed_optimizer_view *o) {
    const bool any = o->kind > HOTBED_OPT_COMPILED || o->l2_decay != 0.0F || o->rates != NULL;
    const uint32_t kind = any ? (uint32_t)HOTBED_OPT_ANY : o->kind;
    if (o->narrow)
        return hotbed_update_narrow(kind, max_dim, form);
    switch (kind) {
    case HOTBED_OPT_SGD:
        return hotbed_update_sgd(max_dim, form);
    case HOTBED_OPT_ADAM:
        return hotbed_update_adam(max_dim, form);
    case HOTBED_OPT_ADAGRAD:
        return hotbed_update_adagrad(max_dim, form);
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return hotbed_update_rowwise_adagrad(max_dim, form);
    default:
        return hotbed_update_any(max_dim, form);
    }
}

/* `half`: gradients have 16 bits. */
static update_launches choose(
    uint32_t max_dim, update_form form, bool half, const hotbed_optimizer_view *o) {
    update_launches all = max_dim <= 16   ? sums_of<4>(form, half)
                          : max_dim <= 32 ? sums_of<8>(form, half)
                          : max_dim <= 64 ? sums_of<16>(form, half)
                                          : sums_of<32>(form, half);
    all.kind = choose_kind(max_dim, form, o);
    return all;
}

static update_form form_of(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim) {
    const bool half = gradient.dtype != HOTBED_F32;
    if (step->storage.rows_form == HOTBED_ROWS_ANY || hotbed_dtype_size(gradient.dtype) < 2 ||
        optimizer->max_gradient != 0.0F || gradient.stride % 4 != 0 ||
        ((uintptr_t)gradient.data & 15U) != 0)
        return FORM_ANY;
    const uint32_t after = step->storage.rows_form - HOTBED_ROWS_F32;
    const bool fits = max_dim <= HOTBED_REGISTER_DIM_MOST;
    if (step->storage.pooling == HOTBED_POOL_NONE) {
        if (!fits)
            return after == 0 && !half ? FORM_PLAIN : FORM_ANY;
        return (update_form)(FORM_SEQUENCE + after);
    }
    if (!fits || step->storage.pooling != HOTBED_POOL_SUM || step->batch.weights != NULL)
        return FORM_ANY;
    return (update_form)(FORM_BAGS + after);
}

/* The share of the GPU's threads that a kernel takes: all, or a quarter if it runs beside another. */
typedef enum update_share { WHOLE = 1, PART = 4 } update_share;

static unsigned blocks_of(
    const hotbed_stream *stream, uint64_t rows, uint32_t width, update_share share) {
    const unsigned blocks = hotbed_cuda_blocks(stream, rows * width, BLOCK, WAVES);
    const unsigned most = hotbed_cuda_blocks(stream, UINT64_MAX / 2, BLOCK, WAVES) / share;
    return blocks < most ? blocks : most;
}

/* Find the rows for update_some() and sum_parts(). `tracks`: also record that all rows are changed.
 * scratch.used must be 0. */
static hotbed_status split_rows(
    const hotbed_step_view *step, update_scratch scratch, bool tracks, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        split_kernel, step->batch.bound, SPLIT_BLOCK, WAVES, stream, *step, scratch, tracks);
}

/* Sum the parts of rows with more than 32 occurrences, after split_rows(). */
static hotbed_status sum_parts(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    update_share share, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    unsigned blocks = blocks_of(stream, step->batch.bound, launch->width, share);
    launch->leaf<<<blocks, BLOCK, 0, native>>>(*step, *optimizer, gradient, scratch);
    HOTBED_TRY(hotbed_cuda_launched("leaf_kernel"));
    launch->group<<<blocks, BLOCK, 0, native>>>(scratch);
    return hotbed_cuda_launched("group_kernel");
}

static hotbed_status begin_step(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, update_scratch scratch,
    bool tracks, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        step_kernel, tracks ? step->batch.bound : 1, tracks ? BLOCK : 1, WAVES, stream, *step,
        optimizer->beta1, optimizer->beta2, scratch.used, tracks);
}

/* Update the rows with more than FEW occurrences. */
static hotbed_status update_some(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    hotbed_stream *stream) {
    HOTBED_TRY(sum_parts(launch, step, optimizer, gradient, scratch, PART, stream));
    launch->kind.some<<<
        blocks_of(stream, step->batch.bound, launch->kind.width, PART), BLOCK, 0,
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
    update_launches launch = choose(
        max_dim, form_of(step, optimizer, gradient, max_dim), gradient.dtype != HOTBED_F32,
        optimizer);
    const uint64_t threads = step->batch.bound * launch.kind.update_width;
    /* A row whose pin an update has released may move, so its change is recorded before. */
    const bool tracks = step->storage.tracker != NULL, ahead = step->storage.keys_leave != 0;
    HOTBED_TRY(begin_step(step, optimizer, scratch, tracks && ahead, stream));
    if (launch.kind.some == NULL) {
        HOTBED_TRY(split_rows(step, scratch, tracks && !ahead, stream));
        HOTBED_TRY(sum_parts(&launch, step, optimizer, gradient, scratch, WHOLE, stream));
        return hotbed_cuda_launch(
            launch.kind.update, "update_kernel", threads, BLOCK, FEW_WAVES, stream, *step,
            *optimizer, gradient, scratch);
    }
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    hotbed_status status = split_rows(step, scratch, tracks && !ahead, branch);
    HOTBED_THEN(status, update_some(&launch, step, optimizer, gradient, scratch, branch));
    HOTBED_THEN(
        status, hotbed_cuda_launch(
                    launch.kind.update, "update_few_kernel", threads, FEW_BLOCK, FEW_WAVES, stream,
                    *step, *optimizer, gradient, scratch));
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
    HOTBED_TRY(split_rows(step, scratch, false, stream));
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
    update_launches launch = choose(
        max_dim, form_of(step, optimizer, gradient, max_dim), gradient.dtype != HOTBED_F32,
        optimizer);
    if (sums.pack.dtype != 0)
        launch.reduce = launch.reduce_packed;
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    hotbed_status status =
        reduce_in_parts(&launch, step, optimizer, gradient, scratch, sums, branch);
    HOTBED_THEN(
        status, hotbed_cuda_launch(
                    launch.reduce, "reduce_kernel", step->batch.bound * launch.width, BLOCK,
                    FEW_WAVES, stream, *step, *optimizer, gradient, scratch, sums, REDUCE_WHOLE));
    hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
}

static hotbed_status apply(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, hotbed_gradient_view sums,
    uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_scratch scratch;
    (void)lay_out(step->batch.bound, max_dim, memory, &scratch);
    bool plain = step->storage.rows_form == HOTBED_ROWS_F32 && ((uintptr_t)sums.data & 15U) == 0;
    update_launches launch = choose(max_dim, plain ? FORM_PLAIN : FORM_ANY, false, optimizer);
    HOTBED_TRY(begin_step(step, optimizer, scratch, step->storage.tracker != NULL, stream));
    launch.kind.apply<<<
        blocks_of(stream, step->batch.bound, launch.kind.width, WHOLE), BLOCK, 0,
        hotbed_cuda_native(stream)>>>(*step, *optimizer, sums, scratch);
    return hotbed_cuda_launched("update_kernel");
}

static hotbed_status count_step(
    const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        count_kernel, 1, 1, WAVES, stream, clock, optimizer->beta1, optimizer->beta2);
}

static hotbed_status update_rows(const hotbed_update_rows_args *args, hotbed_stream *stream) {
    update_kind kind = choose_kind(args->row.dim, FORM_ANY, &args->o);
    kind.update_rows<<<
        blocks_of(stream, args->n, kind.width, WHOLE), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *args);
    return hotbed_cuda_launched("update_rows_kernel");
}

static hotbed_status set_learning_rate(float *rate, float learning_rate, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(rate_kernel, 1, 1, WAVES, stream, rate, learning_rate);
}

const hotbed_update_kernels hotbed_update_kernels_cuda = {
    scratch_bytes_of, update, reduce, apply, count_step, update_rows, set_learning_rate};
