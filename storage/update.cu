/* storage/update.cu - backward on CUDA, whole or as reduce and apply. Host counterpart:
 * update_host.c.
 *
 * A tile sums and updates a row with up to 32 occurrences. For other rows, tiles first sum groups
 * of 32 occurrences (leaves), and groups of 32 leaves if there are more: the hottest key of a power
 * law has thousands of occurrences.
 */
#include "base/cuda_launch.h"
#include "storage/update_kernels.h"

enum {
    BLOCK = 256,
    WAVES = 1,
    ROWS = 4, /* rows that a tile looks up at once; 1, 8 and 16 were slower (W1, H200) */
};

typedef struct update_scratch {
    uint32_t *used;        /* [2] number of leaves and groups */
    uint32_t *first_leaf;  /* [bound] for unique keys with more than 32 occurrences */
    uint32_t *first_group; /* [bound] for unique keys with more than 1024 */
    uint32_t *leaf_begin;  /* [leaves] first occurrence of each */
    uint32_t *leaf_end;
    uint32_t *group_begin; /* [groups] first leaf of each */
    uint32_t *group_end;
    float *leaf_sums;  /* [leaves, row] */
    float *group_sums; /* [groups, row] */
    uint64_t row;      /* stride in floats: the largest dim, rounded up to 4 */
} update_scratch;

static size_t round_up(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* A row with n > 32 occurrences has at most n/32 + 1 <= n/16 leaves; with n > 1024, at most n/256
 * groups. */
static size_t carve(uint64_t bound, uint32_t max_dim, uint8_t *base, update_scratch *scratch) {
    size_t leaves = bound / 16 + 1, groups = bound / 256 + 1;
    const size_t words[7] = {2, bound, bound, leaves, leaves, groups, groups};
    uint32_t **const parts[7] = {&scratch->used,       &scratch->first_leaf, &scratch->first_group,
                                 &scratch->leaf_begin, &scratch->leaf_end,   &scratch->group_begin,
                                 &scratch->group_end};
    size_t used = 0;
    for (int p = 0; p < 7; p++) {
        *parts[p] = (uint32_t *)(void *)(base + used);
        used += round_up(words[p] * sizeof(uint32_t));
    }
    scratch->row = (max_dim + 3) / 4 * 4;
    scratch->leaf_sums = (float *)(void *)(base + used);
    used += round_up(leaves * scratch->row * sizeof(float));
    scratch->group_sums = (float *)(void *)(base + used);
    used += round_up(groups * scratch->row * sizeof(float));
    return used;
}

static __global__ void step_kernel(hotbed_step_view s, float beta1, float beta2, uint32_t *used) {
    hotbed_clock_step(s.clock, beta1, beta2);
    hotbed_step_hold(&s, HOTBED_HELD_BATCH, false); /* updates release the rows' pins */
    used[0] = used[1] = 0;
}

/* Split [begin, end) into parts of 32, starting at number `first`, with all lanes of the warp. */
static __device__ void split(
    uint32_t begin, uint32_t end, uint32_t first, uint32_t *part_begin, uint32_t *part_end) {
    uint32_t parts = (end - begin + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
    for (uint32_t p = threadIdx.x % 32; p < parts; p += 32) {
        uint32_t at = begin + p * HOTBED_SUM_GROUP;
        part_begin[first + p] = at;
        part_end[first + p] = end - at < HOTBED_SUM_GROUP ? end : at + HOTBED_SUM_GROUP;
    }
}

static __global__ void __launch_bounds__(BLOCK)
    split_kernel(hotbed_step_view s, update_scratch scratch) {
    uint32_t uniques = s.unique_offsets[s.num_tables];
    uint64_t warps = hotbed_cuda_threads() / 32;
    for (uint64_t w = hotbed_cuda_thread() / 32; w * 32 < uniques; w += warps) {
        uint64_t u = w * 32 + threadIdx.x % 32;
        uint32_t n = u < uniques ? s.starts[u + 1] - s.starts[u] : 0;
        uint32_t many = __ballot_sync(0xffffffffU, n > HOTBED_SUM_GROUP);
        while (many != 0) {
            uint64_t row = w * 32 + hotbed_lowest_bit(many);
            many &= many - 1;
            uint32_t begin = s.starts[row], end = s.starts[row + 1], leaf = 0, group = 0;
            uint32_t leaves = (end - begin + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
            uint32_t groups = (leaves + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
            if (threadIdx.x % 32 == 0) {
                leaf = hotbed_add_relaxed_u32(&scratch.used[0], leaves);
                scratch.first_leaf[row] = leaf;
                if (leaves > HOTBED_SUM_GROUP) {
                    group = hotbed_add_relaxed_u32(&scratch.used[1], groups);
                    scratch.first_group[row] = group;
                }
            }
            leaf = __shfl_sync(0xffffffffU, leaf, 0);
            group = __shfl_sync(0xffffffffU, group, 0);
            split(begin, end, leaf, scratch.leaf_begin, scratch.leaf_end);
            if (leaves > HOTBED_SUM_GROUP)
                split(leaf, leaf + leaves, group, scratch.group_begin, scratch.group_end);
        }
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
        uint32_t t = hotbed_part_of(s.table_starts, s.num_tables, begin);
        uint32_t dim = s.tables[t].dim;
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
    for (uint64_t g = hotbed_cuda_thread() / WIDTH; g < groups; g += step) {
        hotbed_sum_source leaves = {
            scratch.group_begin[g], scratch.group_end[g], scratch.leaf_sums, scratch.row};
        for (uint32_t e = 4 * hotbed_tile_rank(WIDTH); e < scratch.row; e += 4 * WIDTH)
            hotbed_store4(
                HOTBED_F32, scratch.group_sums, g * scratch.row + e, 4,
                hotbed_sum_partials(leaves, e));
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

/* Each lane looks up one unique key, then the tile updates their rows one after the other.
 * REDUCED: sums are given. The minimum of blocks per SM keeps the compiler from using a few more
 * registers, which would cost a quarter of the warps (W1, W2 on an H200). */
template <uint32_t WIDTH, uint32_t KIND, bool PLAIN, bool REDUCED>
static __global__ void __launch_bounds__(BLOCK, PLAIN ? (KIND == HOTBED_OPT_SGD ? 4 : 3) : 1)
    update_kernel(
        hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
        update_scratch scratch) {
    const hotbed_update_shape shape = {true, PLAIN, REDUCED};
    uint32_t uniques = s.unique_offsets[s.num_tables];
    uint32_t lane = hotbed_tile_rank(WIDTH);
    o.kind = KIND; /* known at compile time: SGD needs half of Adam's registers */
    for (uint64_t first = hotbed_cuda_thread() / WIDTH * ROWS; first < uniques;
         first += hotbed_cuda_threads() / WIDTH * ROWS) {
        uint32_t count = uniques - first < ROWS ? (uint32_t)(uniques - first) : ROWS;
        uint64_t mine = first + (lane < count ? lane : count - 1);
        uint64_t slot = s.slots[mine];
        uint32_t t = hotbed_part_of(s.unique_offsets, s.num_tables, (uint32_t)mine);
        uint32_t begin = s.starts[mine], end = s.starts[mine + 1];
        for (uint32_t r = 0; r < count; r++) {
            uint64_t slot_r = hotbed_tile_shuffle_u64(WIDTH, slot, r);
            uint32_t begin_r = hotbed_tile_shuffle_u32(WIDTH, begin, r);
            uint32_t end_r = hotbed_tile_shuffle_u32(WIDTH, end, r);
            uint32_t t_r = hotbed_tile_shuffle_u32(WIDTH, t, r);
            if (slot_r != HOTBED_SLOT_NONE)
                hotbed_update_row(
                    &s, &o, gradient, &s.tables[t_r], slot_r,
                    REDUCED ? reduced_source(first + r)
                            : find_source(scratch, first + r, begin_r, end_r),
                    shape, WIDTH);
        }
    }
}

template <uint32_t WIDTH, bool PLAIN>
static __global__ void __launch_bounds__(BLOCK) reduce_kernel(
    hotbed_step_view s, hotbed_optimizer_view o, hotbed_gradient_view gradient,
    update_scratch scratch, hotbed_sums_view sums) {
    const hotbed_update_shape shape = {true, PLAIN, false};
    uint32_t uniques = s.unique_offsets[s.num_tables];
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t u = hotbed_cuda_thread() / WIDTH; u < uniques; u += step) {
        uint32_t t = hotbed_part_of(s.unique_offsets, s.num_tables, (uint32_t)u);
        hotbed_reduce_row(
            &s, &o, gradient, s.tables[t].dim, u,
            find_source(scratch, u, s.starts[u], s.starts[u + 1]), shape, sums, WIDTH);
    }
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK) update_rows_kernel(hotbed_update_rows_args a) {
    uint64_t step = hotbed_cuda_threads() / WIDTH;
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < a.n; i += step)
        hotbed_update_given_row(&a, i, WIDTH);
}

static __global__ void count_kernel(hotbed_optimizer_clock *clock, float beta1, float beta2) {
    hotbed_count_step(clock, beta1, beta2);
}

static __global__ void rate_kernel(hotbed_clock *clock, float learning_rate) {
    clock->optimizer.learning_rate = learning_rate;
}

static size_t scratch_bytes_of(uint64_t bound, uint32_t max_dim) {
    update_scratch scratch;
    return carve(bound, max_dim, NULL, &scratch);
}

typedef void (*update_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch);
typedef void (*reduce_launch)(
    hotbed_step_view, hotbed_optimizer_view, hotbed_gradient_view, update_scratch,
    hotbed_sums_view);

/* The kernels for one tile width. */
typedef struct update_launches {
    uint32_t width;
    update_launch leaf;
    void (*group)(update_scratch);
    reduce_launch reduce;
    update_launch update, apply;
    void (*update_rows)(hotbed_update_rows_args);
} update_launches;

template <uint32_t WIDTH, bool PLAIN, bool REDUCED>
static update_launch update_kernel_of(uint32_t kind) {
    if (kind == HOTBED_OPT_ADAM)
        return update_kernel<WIDTH, HOTBED_OPT_ADAM, PLAIN, REDUCED>;
    if (kind == HOTBED_OPT_ADAGRAD)
        return update_kernel<WIDTH, HOTBED_OPT_ADAGRAD, PLAIN, REDUCED>;
    if (kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        return update_kernel<WIDTH, HOTBED_OPT_ROWWISE_ADAGRAD, PLAIN, REDUCED>;
    return update_kernel<WIDTH, HOTBED_OPT_SGD, PLAIN, REDUCED>;
}

template <uint32_t WIDTH> static update_launches launches_of(bool plain, uint32_t kind) {
    update_launches all = {
        WIDTH,
        plain ? leaf_kernel<WIDTH, true> : leaf_kernel<WIDTH, false>,
        group_kernel<WIDTH>,
        plain ? reduce_kernel<WIDTH, true> : reduce_kernel<WIDTH, false>,
        plain ? update_kernel_of<WIDTH, true, false>(kind)
              : update_kernel_of<WIDTH, false, false>(kind),
        plain ? update_kernel_of<WIDTH, true, true>(kind)
              : update_kernel_of<WIDTH, false, true>(kind),
        update_rows_kernel<WIDTH>};
    return all;
}

static update_launches choose(uint32_t max_dim, bool plain, uint32_t kind) {
    if (max_dim <= 16)
        return launches_of<4>(plain, kind);
    if (max_dim <= 32)
        return launches_of<8>(plain, kind);
    if (max_dim <= 64)
        return launches_of<16>(plain, kind);
    return launches_of<32>(plain, kind);
}

static bool is_plain(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient) {
    return step->plain_rows != 0 && step->pooling == HOTBED_POOL_NONE &&
           step->output_dtype == HOTBED_F32 && optimizer->max_gradient == 0.0F &&
           gradient.stride % 4 == 0 && ((uintptr_t)gradient.data & 15U) == 0;
}

static unsigned blocks_of(const hotbed_stream *stream, uint64_t rows, uint32_t width) {
    return hotbed_cuda_blocks(stream, rows * width, BLOCK, WAVES);
}

/* Sum the parts of rows with more than 32 occurrences. scratch.used must be 0. */
static hotbed_status sum_parts(
    const update_launches *launch, const hotbed_step_view *step,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, update_scratch scratch,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    unsigned blocks = blocks_of(stream, step->bound, launch->width);
    split_kernel<<<blocks_of(stream, step->bound, 1), BLOCK, 0, native>>>(*step, scratch);
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

static hotbed_status update(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim, void *memory, size_t scratch_bytes,
    hotbed_stream *stream) {
    update_scratch scratch;
    (void)scratch_bytes;
    (void)carve(step->bound, max_dim, (uint8_t *)memory, &scratch);
    update_launches launch = choose(max_dim, is_plain(step, optimizer, gradient), optimizer->kind);
    HOTBED_TRY(step_clock(step, optimizer, scratch, stream));
    HOTBED_TRY(sum_parts(&launch, step, optimizer, gradient, scratch, stream));
    launch.update<<<
        blocks_of(stream, step->bound, launch.width), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *step, *optimizer, gradient, scratch);
    return hotbed_cuda_launched("update_kernel");
}

static hotbed_status reduce(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *memory,
    hotbed_stream *stream) {
    update_scratch scratch;
    const hotbed_cuda_native native(stream);
    (void)carve(step->bound, max_dim, (uint8_t *)memory, &scratch);
    update_launches launch = choose(max_dim, is_plain(step, optimizer, gradient), optimizer->kind);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(scratch.used, 0, 2 * sizeof(uint32_t), native), "cudaMemsetAsync"));
    HOTBED_TRY(sum_parts(&launch, step, optimizer, gradient, scratch, stream));
    launch.reduce<<<blocks_of(stream, step->bound, launch.width), BLOCK, 0, native>>>(
        *step, *optimizer, gradient, scratch, sums);
    return hotbed_cuda_launched("reduce_kernel");
}

static hotbed_status apply(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, hotbed_gradient_view sums,
    uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_scratch scratch;
    (void)carve(step->bound, max_dim, (uint8_t *)memory, &scratch);
    bool plain = step->plain_rows != 0 && ((uintptr_t)sums.data & 15U) == 0;
    update_launches launch = choose(max_dim, plain, optimizer->kind);
    HOTBED_TRY(step_clock(step, optimizer, scratch, stream));
    launch.apply<<<
        blocks_of(stream, step->bound, launch.width), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *step, *optimizer, sums, scratch);
    return hotbed_cuda_launched("update_kernel");
}

static hotbed_status count_step(
    const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    count_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(
        clock, optimizer->beta1, optimizer->beta2);
    return hotbed_cuda_launched("count_kernel");
}

static hotbed_status update_rows(const hotbed_update_rows_args *args, hotbed_stream *stream) {
    update_launches launch = choose(args->row.dim, false, args->o.kind);
    launch.update_rows<<<
        blocks_of(stream, args->n, launch.width), BLOCK, 0, hotbed_cuda_native(stream)>>>(*args);
    return hotbed_cuda_launched("update_rows_kernel");
}

static hotbed_status set_learning_rate(
    hotbed_clock *clock, float learning_rate, hotbed_stream *stream) {
    rate_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(clock, learning_rate);
    return hotbed_cuda_launched("rate_kernel");
}

const hotbed_update_kernels hotbed_update_kernels_cuda = {
    scratch_bytes_of, update, reduce, apply, count_step, update_rows, set_learning_rate};
