/* storage/step/lookup.cu - prefetch, forward and eval on CUDA. Host counterpart: lookup_host.c. */
#include "base/cuda_launch.h"
#include "storage/step/cuda_bins.h"
#include "storage/step/lookup_kernels.h"
#include "storage/step/pool.cuh"

/* Each lane has a key. The lanes of a tile read the lines of their buckets together, see
 * hotbed_line_match_each(). On an H200, tiles of 8 find 9 to 20 % more keys a second than tiles of 4,
 * which need more registers; they place 9 to 17 % fewer. */
enum {
    TILE = 8,
    PLACE_TILE = 4,
    BLOCK = 256,
    WARP = 32,
    WAVES = 1,
    SEARCH_WAVES = 4, /* 1 is 3 to 12 % slower for a million keys, at loads from 0.75 */
    FORWARD_WAVES =
        4, /* more blocks than fit at once, so that all SMs finish together; 1 is 7 % slower */
    LAYOUT_BLOCK = 1024,
};

/* Lanes that search a key together within a tile of `width` lanes that reads rows. */
HOTBED_HD constexpr uint32_t find_width(uint32_t width) {
    return width < TILE ? width : (uint32_t)TILE;
}

/* Resident blocks per SM of kernels that search, which bound their registers: more keys in flight are
 * worth a few spills. Kernels with code for segments need more registers. */
static constexpr unsigned resident(bool grows, unsigned blocks) {
    return grows ? 2 : blocks;
}

/* eval, deferred rows: number of blocks, and rows that a warp reads at a time. Concurrent reads
 * must stay close together: 32 blocks take 5.3 ms, 528 blocks 8.0 ms, and turns of 32 rows 6.8 ms
 * (docs/performance.md). */
enum { BELOW_BLOCKS = 32, BELOW_TURN = HOTBED_FORWARD_AHEAD };

/* eval, keys to read again: usually none. */
enum { AGAIN_BLOCKS = 32 };

static __global__ void __launch_bounds__(LAYOUT_BLOCK) layout_kernel(hotbed_step_view s) {
    bool good = true;
    /* Release the pins of the ticket's previous prefetch, if a graph launched it without a
     * backward. This is rare, so one block is enough. */
    if (s.eval.on == 0 && s.unique.released == 0 && (*s.unique.held & HOTBED_HELD_BATCH) != 0)
        for (uint32_t u = threadIdx.x; u < s.unique.offsets[s.storage.num_tables];
             u += LAYOUT_BLOCK)
            hotbed_unpin_unique(&s, u);
    for (uint32_t f = threadIdx.x; f <= s.storage.num_features; f += LAYOUT_BLOCK) {
        bool this_good = true;
        uint64_t start = hotbed_feature_start(&s, f, &this_good);
        good = good && this_good;
        s.batch.feature_starts[f] = (uint32_t)start;
    }
    good = __syncthreads_and(good ? 1 : 0) != 0;
    for (uint32_t f = threadIdx.x; !good && f <= s.storage.num_features; f += LAYOUT_BLOCK)
        s.batch.feature_starts[f] = 0;
    __syncthreads();
    for (uint32_t t = threadIdx.x; t <= s.storage.num_tables; t += LAYOUT_BLOCK) {
        /* find the first feature of table t or a later table */
        uint32_t low = 0, high = s.storage.num_features;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (s.storage.feature_tables[middle] < t)
                low = middle + 1;
            else
                high = middle;
        }
        s.batch.table_starts[t] = s.batch.feature_starts[low];
    }
    if (threadIdx.x == 0 && s.eval.on == 0) {
        hotbed_step_hold(
            &s, HOTBED_HELD_BATCH, true); /* all threads read the word before two barriers */
        const bool counts = hotbed_batch_counts(&s);
        if (counts)
            hotbed_count_prefetch(s.storage.clock);
        if (counts && s.storage.timer != NULL) {
            uint64_t nanoseconds;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
            hotbed_timer_tick(s.storage.timer, nanoseconds / 1000);
        }
        *s.unique.num_missing = 0;
    }
    if (threadIdx.x == 0 && s.eval.on != 0)
        hotbed_eval_begin(&s);
}

static __global__ void __launch_bounds__(BLOCK) bags_kernel(hotbed_step_view s) {
    /* MOST: bags of a warp; with fewer, the loop over long bags is shorter */
    enum { WIDTH = 32, MOST = 8 };
    uint64_t bags = (uint64_t)s.storage.num_features * s.batch.size;
    for (uint64_t b = hotbed_cuda_thread() / WIDTH * MOST; b < bags;
         b += hotbed_cuda_threads() / WIDTH * MOST)
        hotbed_fill_bags(&s, b, bags - b < MOST ? (uint32_t)(bags - b) : MOST, MOST, WIDTH);
    /* dedup sorts all of the array */
    for (uint64_t i = s.batch.feature_starts[s.storage.num_features] + hotbed_cuda_thread();
         i < s.batch.bound; i += hotbed_cuda_threads())
        s.batch.bags[i] = HOTBED_NO_BAG;
}

/* find_kernel for storages without an index. */
static __global__ void __launch_bounds__(BLOCK) find_static_kernel(hotbed_step_view s) {
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t u = hotbed_cuda_thread(); u < uniques; u += hotbed_cuda_threads())
        hotbed_found_unique(
            &s, hotbed_table_of_unique(&s, (uint32_t)u), (uint32_t)u, HOTBED_SLOT_NONE);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK, resident(GROWS, 4))
    find_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t u = hotbed_cuda_thread() / TILE * TILE; u < uniques; u += hotbed_cuda_threads())
        hotbed_find_uniques(
            &s, (uint32_t)u, uniques - u < TILE ? (uint32_t)(uniques - u) : TILE, TILE);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK, 2) place_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    const uint32_t n = *s.unique.num_missing, lane = threadIdx.x % WARP,
                   tile = lane / PLACE_TILE * PLACE_TILE;
    for (uint64_t i = hotbed_cuda_thread() / WARP * WARP; i < n; i += hotbed_cuda_threads()) {
        hotbed_placed p = {{HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL}, 0, 0, false};
        if (i + tile < n) {
            const uint64_t left = n - i - tile;
            p = hotbed_place_uniques(
                &s, (uint32_t)(i + tile), left < PLACE_TILE ? (uint32_t)left : PLACE_TILE,
                PLACE_TILE);
        }
        __syncwarp();
        hotbed_tally_places(&s, p.t, p.r, p.mine, WARP);
    }
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK, resident(GROWS, 4))
    find_keys_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint64_t n = s.batch.feature_starts[s.storage.num_features];
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < n; i += hotbed_cuda_threads())
        hotbed_find_keys(&s, (uint32_t)i, n - i < TILE ? (uint32_t)(n - i) : TILE, TILE);
}

template <uint32_t WIDTH, bool GROWS, hotbed_step_output TO>
static __global__ void __launch_bounds__(BLOCK)
    forward_rows_kernel(hotbed_step_view view, void *output, uint64_t stride) {
    const hotbed_step_view s = hotbed_step_to(hotbed_step_as(view, GROWS), TO);
    const hotbed_key_range keys =
        hotbed_scattered_keys(&s.to, s.batch.feature_starts[s.storage.num_features]);
    const uint64_t n = keys.end - keys.begin;
    for (uint64_t i = hotbed_cuda_thread() / WIDTH * WIDTH; i < n; i += hotbed_cuda_threads()) {
        const uint64_t first = hotbed_tile_first(&s.to, n, i, WIDTH), left = n - first;
        hotbed_forward_rows(
            &s, (uint32_t)(keys.begin + first), left < WIDTH ? (uint32_t)left : WIDTH, output,
            stride, WIDTH);
    }
}

/* Find and forward in one kernel, so that some warps search keys while others copy rows. */
template <uint32_t WIDTH, bool GROWS, bool TIERS, hotbed_step_output TO>
static __global__ void __launch_bounds__(BLOCK, resident(GROWS, TIERS ? 3 : 4))
    eval_rows_kernel(hotbed_step_view view, void *output, uint64_t stride) {
    const hotbed_step_view s = hotbed_step_to(hotbed_step_as(view, GROWS), TO);
    uint64_t n = s.batch.feature_starts[s.storage.num_features], epoch = hotbed_eval_epoch(&s);
    for (uint64_t i = hotbed_cuda_thread() / WIDTH * WIDTH; i < n; i += hotbed_cuda_threads()) {
        const uint64_t first = hotbed_tile_first(&s.to, n, i, WIDTH), left = n - first;
        hotbed_eval_rows(
            &s, (uint32_t)first, left < WIDTH ? (uint32_t)left : WIDTH, output, stride, TIERS,
            &epoch, find_width(WIDTH), WIDTH);
    }
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) order_keys_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint64_t n = s.eval.sort.bins[0] == 0 ? 0 : s.batch.feature_starts[s.storage.num_features];
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        hotbed_order_key(&s, (uint32_t)i);
}

template <uint32_t WIDTH, bool GROWS, hotbed_step_output TO>
static __global__ void __launch_bounds__(BLOCK)
    eval_below_kernel(hotbed_step_view view, void *output, uint64_t stride) {
    const hotbed_step_view s = hotbed_step_to(hotbed_step_as(view, GROWS), TO);
    const uint32_t n = s.eval.sort.bins[0], turn = BELOW_TURN;
    for (uint32_t first; n != 0 && (first = hotbed_bins_take(&s.eval.sort, turn, WIDTH)) < n;)
        hotbed_eval_below(
            &s, first, n - first < turn ? n - first : turn, output, stride, find_width(WIDTH),
            WIDTH);
}

template <uint32_t WIDTH, bool GROWS>
static __global__ void __launch_bounds__(BLOCK)
    forward_bags_kernel(hotbed_step_view view, void *output, uint64_t stride) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint64_t bags = (uint64_t)s.storage.num_features * s.batch.size;
    for (uint64_t b = hotbed_cuda_thread() / WIDTH; b < bags; b += hotbed_cuda_threads() / WIDTH)
        hotbed_forward_bag_checked(&s, b, output, stride, WIDTH);
}

template <bool GROWS, hotbed_step_output TO>
static __global__ void __launch_bounds__(BLOCK)
    eval_again_kernel(hotbed_step_view view, void *output, uint64_t stride) {
    const hotbed_step_view s = hotbed_step_to(hotbed_step_as(view, GROWS), TO);
    enum { WIDTH = 32 };
    uint32_t n = *s.eval.num_rereads;
    for (uint64_t i = hotbed_cuda_thread() / WIDTH; i < n; i += hotbed_cuda_threads() / WIDTH)
        hotbed_eval_again(&s, (uint32_t)i, output, stride, WIDTH);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) unpin_kernel(hotbed_step_view view, uint32_t why) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t uniques = (*s.unique.held & why) != 0 ? s.unique.offsets[s.storage.num_tables] : 0;
    for (uint64_t u = hotbed_cuda_thread(); u < uniques; u += hotbed_cuda_threads())
        hotbed_unpin_unique(&s, u);
}

static __global__ void hold_kernel(hotbed_step_view s, uint32_t why, bool on) {
    hotbed_step_hold(&s, why, on);
}

template <bool GROWS>
static __global__ void __launch_bounds__(BLOCK) pin_again_kernel(hotbed_step_view view) {
    const hotbed_step_view s = hotbed_step_as(view, GROWS);
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t u = hotbed_cuda_thread(); u < uniques; u += hotbed_cuda_threads())
        if (s.unique.slots[u] < s.storage.index_slots)
            hotbed_index_pin_again(s.storage.index, s.unique.slots[u]);
}

static bool grows(const hotbed_step_view *step) {
    return step->storage.index.segments != NULL;
}

static hotbed_status layout(const hotbed_step_view *step, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(layout_kernel, LAYOUT_BLOCK, LAYOUT_BLOCK, WAVES, stream, *step);
}

static hotbed_status bags(const hotbed_step_view *step, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    uint64_t bags = (uint64_t)step->storage.num_features * step->batch.size;
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(step->batch.bags, 0xff, step->batch.bound * sizeof(uint32_t), native),
        "cudaMemsetAsync"));
    return HOTBED_CUDA_LAUNCH(bags_kernel, bags * 4, BLOCK, WAVES, stream, *step);
}

static hotbed_status find(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_cuda_launch(
        step->storage.indexed == 0 ? find_static_kernel
        : grows(step)              ? find_kernel<true>
                                   : find_kernel<false>,
        "find_kernel", step->batch.bound, BLOCK, SEARCH_WAVES, stream, *step);
}

static hotbed_status place(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_cuda_launch(
        grows(step) ? place_kernel<true> : place_kernel<false>, "place_kernel", step->batch.bound,
        BLOCK, SEARCH_WAVES, stream, *step);
}

static hotbed_status find_keys(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_cuda_launch(
        grows(step) ? find_keys_kernel<true> : find_keys_kernel<false>, "find_keys_kernel",
        step->batch.bound, BLOCK, SEARCH_WAVES, stream, *step);
}

template <uint32_t WIDTH, bool GROWS>
static hotbed_status forward_as(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    if (step->storage.pooling == HOTBED_POOL_NONE) {
        uint64_t threads = (step->batch.bound + WIDTH - 1) / WIDTH * WIDTH;
        const unsigned blocks = hotbed_cuda_blocks(stream, threads, BLOCK, FORWARD_WAVES);
        const unsigned few = (hotbed_cuda_blocks(stream, threads, BLOCK, 1) + 3) / 4;
        const unsigned scattered = step->to.few != 0 ? few : blocks;
        switch (hotbed_step_output_of(step)) {
        case HOTBED_TO_ONE:
            forward_rows_kernel<WIDTH, GROWS, HOTBED_TO_ONE>
                <<<blocks, BLOCK, 0, native>>>(*step, output, stride);
            break;
        case HOTBED_TO_MANY:
            forward_rows_kernel<WIDTH, GROWS, HOTBED_TO_MANY>
                <<<scattered, BLOCK, 0, native>>>(*step, output, stride);
            break;
        case HOTBED_TO_MANY_PACKED:
            forward_rows_kernel<WIDTH, GROWS, HOTBED_TO_MANY_PACKED>
                <<<scattered, BLOCK, 0, native>>>(*step, output, stride);
            break;
        }
        return hotbed_cuda_launched("forward_rows_kernel");
    }
    const uint64_t aligned = 4 * (uint64_t)hotbed_dtype_size(step->storage.output_dtype);
    const bool plain = stride % 4 == 0 && (uintptr_t)output % aligned == 0;
    if (plain && step->storage.rows_form == HOTBED_ROWS_F32)
        return hotbed_pool_f32(step, output, stride, WIDTH, stream);
    if (plain && step->storage.rows_form == HOTBED_ROWS_HALF)
        return hotbed_pool_half(step, output, stride, WIDTH, stream);
    if (plain && step->storage.rows_form == HOTBED_ROWS_SCALED)
        return hotbed_pool_scaled(step, output, stride, WIDTH, stream);
    uint64_t threads = (uint64_t)step->storage.num_features * step->batch.size * WIDTH;
    return hotbed_cuda_launch(
        forward_bags_kernel<WIDTH, GROWS>, "forward_bags_kernel", threads, BLOCK, FORWARD_WAVES,
        stream, *step, output, stride);
}

/* Rows of the lower tier are deferred and then read by address. */
template <uint32_t WIDTH, bool GROWS, hotbed_step_output TO>
static hotbed_status eval_tiers_as(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(step->eval.sort.bins, 0, HOTBED_BIN_WORDS * sizeof(uint32_t), native),
        "cudaMemsetAsync"));
    HOTBED_TRY(hotbed_cuda_launch(
        eval_rows_kernel<WIDTH, GROWS, true, TO>, "eval_rows_kernel", step->batch.bound, BLOCK,
        FORWARD_WAVES, stream, *step, output, stride));
    HOTBED_TRY(hotbed_bins_to_starts(&step->eval.sort, step->eval.below, stream));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(
        order_keys_kernel<GROWS>, step->batch.bound, BLOCK, WAVES, stream, *step));
    eval_below_kernel<WIDTH, GROWS, TO><<<BELOW_BLOCKS, BLOCK, 0, native>>>(*step, output, stride);
    return hotbed_cuda_launched("eval_below_kernel");
}

template <uint32_t WIDTH, bool GROWS, hotbed_step_output TO>
static hotbed_status eval_rows_as(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    if (step->eval.sort.order != NULL)
        return eval_tiers_as<WIDTH, GROWS, TO>(step, output, stride, stream);
    return hotbed_cuda_launch(
        eval_rows_kernel<WIDTH, GROWS, false, TO>, "eval_rows_kernel", step->batch.bound, BLOCK,
        FORWARD_WAVES, stream, *step, output, stride);
}

template <uint32_t WIDTH>
static hotbed_status eval_rows_width(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    const bool growing = grows(step);
    switch (hotbed_step_output_of(step)) {
    case HOTBED_TO_ONE:
        return growing ? eval_rows_as<WIDTH, true, HOTBED_TO_ONE>(step, output, stride, stream)
                       : eval_rows_as<WIDTH, false, HOTBED_TO_ONE>(step, output, stride, stream);
    case HOTBED_TO_MANY:
        return growing ? eval_rows_as<WIDTH, true, HOTBED_TO_MANY>(step, output, stride, stream)
                       : eval_rows_as<WIDTH, false, HOTBED_TO_MANY>(step, output, stride, stream);
    case HOTBED_TO_MANY_PACKED:
        break;
    }
    return growing
               ? eval_rows_as<WIDTH, true, HOTBED_TO_MANY_PACKED>(step, output, stride, stream)
               : eval_rows_as<WIDTH, false, HOTBED_TO_MANY_PACKED>(step, output, stride, stream);
}

static hotbed_status eval_rows(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    if (max_dim <= 16)
        return eval_rows_width<4>(step, output, stride, stream);
    if (max_dim <= 32)
        return eval_rows_width<8>(step, output, stride, stream);
    if (max_dim <= 64)
        return eval_rows_width<16>(step, output, stride, stream);
    return eval_rows_width<32>(step, output, stride, stream);
}

template <uint32_t WIDTH>
static hotbed_status forward_width(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    return grows(step) ? forward_as<WIDTH, true>(step, output, stride, stream)
                       : forward_as<WIDTH, false>(step, output, stride, stream);
}

/* A row gets one lane per group of four elements, 4 to 32. */
static hotbed_status forward(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    if (max_dim <= 16)
        return forward_width<4>(step, output, stride, stream);
    if (max_dim <= 32)
        return forward_width<8>(step, output, stride, stream);
    if (max_dim <= 64)
        return forward_width<16>(step, output, stride, stream);
    return forward_width<32>(step, output, stride, stream);
}

template <hotbed_step_output TO>
static hotbed_status again_as(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    const unsigned blocks = AGAIN_BLOCKS;
    if (grows(step))
        eval_again_kernel<true, TO>
            <<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*step, output, stride);
    else
        eval_again_kernel<false, TO>
            <<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*step, output, stride);
    return hotbed_cuda_launched("eval_again_kernel");
}

static hotbed_status again(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    switch (hotbed_step_output_of(step)) {
    case HOTBED_TO_ONE:
        return again_as<HOTBED_TO_ONE>(step, output, stride, stream);
    case HOTBED_TO_MANY:
        return again_as<HOTBED_TO_MANY>(step, output, stride, stream);
    case HOTBED_TO_MANY_PACKED:
        break;
    }
    return again_as<HOTBED_TO_MANY_PACKED>(step, output, stride, stream);
}

static hotbed_status unpin(const hotbed_step_view *step, uint32_t why, hotbed_stream *stream) {
    return hotbed_cuda_launch(
        grows(step) ? unpin_kernel<true> : unpin_kernel<false>, "unpin_kernel", step->batch.bound,
        BLOCK, WAVES, stream, *step, why);
}

static hotbed_status pin_again(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_cuda_launch(
        grows(step) ? pin_again_kernel<true> : pin_again_kernel<false>, "pin_again_kernel",
        step->batch.bound, BLOCK, WAVES, stream, *step);
}

static hotbed_status hold(
    const hotbed_step_view *step, uint32_t why, bool on, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(hold_kernel, 1, 1, WAVES, stream, *step, why, on);
}

const hotbed_lookup_kernels hotbed_lookup_kernels_cuda = {
    layout, bags, find, place, find_keys, eval_rows, forward, again, unpin, pin_again, hold};
