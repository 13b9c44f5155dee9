/* storage/rows/rows.cu - rows by key and whole-table calls on CUDA. Host counterpart: rows_host.c. */
#include "base/cuda_launch.h"
#include "storage/index/index_kernels.h"
#include "storage/rows/rows_kernels.h"

/* A warp per row. Finding the key with 32 lanes instead of 4 takes no measurable extra time. */
enum { TILE = 32, BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) get_kernel(hotbed_rows_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        hotbed_rows_get(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) enter_kernel(hotbed_distinct_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.n; i += hotbed_cuda_threads())
        hotbed_distinct_enter(&a, (uint32_t)i);
}

static __global__ void report_kernel(hotbed_distinct_args a) {
    hotbed_distinct_report(&a);
}

template <hotbed_rows_pass PASS>
static __global__ void __launch_bounds__(BLOCK) set_kernel(hotbed_rows_args a) {
    if (hotbed_rows_barred(&a))
        return;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        hotbed_rows_set(&a, i, PASS, TILE);
}

static __global__ void __launch_bounds__(BLOCK) insert_shares_kernel(hotbed_offer_args a) {
    const uint64_t share = hotbed_cuda_thread() / TILE;
    if (share < a.shares)
        hotbed_offer_insert_share(&a, share, TILE);
}

static __global__ void __launch_bounds__(TILE) insert_rest_kernel(hotbed_offer_args a) {
    hotbed_offer_insert_rest(&a, TILE);
}

static __global__ void __launch_bounds__(BLOCK) erase_kernel(hotbed_rows_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        hotbed_rows_erase(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) expire_kernel(hotbed_expire_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.slots; i += hotbed_cuda_threads() / TILE)
        hotbed_expire_slot(&a, i, TILE);
}

static __global__ void advance_kernel(hotbed_expire_args a) {
    hotbed_expire_advance(&a);
}

static __global__ void __launch_bounds__(BLOCK) count_keys_kernel(hotbed_rows_args a) {
    if (hotbed_rows_barred(&a))
        return;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        hotbed_rows_count(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) init_rows_kernel(hotbed_rows_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.table.slots;
         i += hotbed_cuda_threads() / TILE)
        hotbed_row_init(
            &a.table, a.table.rows + i * a.table.row_bytes, hotbed_row_key(&a.table, i), TILE);
}

static __global__ void __launch_bounds__(BLOCK) load_kernel(hotbed_rows_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        if (a.keys[i] < a.table.slots)
            hotbed_row_get(&a.table, a.table.rows + a.keys[i] * a.table.row_bytes, a.rows, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) store_kernel(hotbed_rows_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        if (a.keys[i] < a.table.slots)
            hotbed_row_set(&a.table, a.table.rows + a.keys[i] * a.table.row_bytes, a.rows, i, TILE);
}

static hotbed_status get(const hotbed_rows_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(get_kernel, args->n * TILE, BLOCK, WAVES, stream, *args);
}

template <hotbed_rows_pass PASS>
static hotbed_status set_as(const hotbed_rows_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(set_kernel<PASS>, args->n * TILE, BLOCK, WAVES, stream, *args);
}

static hotbed_status set(const hotbed_rows_args *args, hotbed_stream *stream) {
    if (!hotbed_rows_evicts(&args->table))
        return set_as<HOTBED_ROWS_SET>(args, stream);
    HOTBED_TRY(set_as<HOTBED_ROWS_HOLD>(args, stream));
    HOTBED_TRY(set_as<HOTBED_ROWS_PLACE>(args, stream));
    return set_as<HOTBED_ROWS_RELEASE>(args, stream);
}

static hotbed_status distinct(const hotbed_distinct_args *args, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(enter_kernel, args->n, BLOCK, WAVES, stream, *args));
    return HOTBED_CUDA_LAUNCH(report_kernel, 1, 1, WAVES, stream, *args);
}

static hotbed_status insert_refused(const hotbed_offer_args *args, hotbed_stream *stream) {
    hotbed_cuda_native native(stream);
    if (args->shares > 1) {
        const unsigned blocks = (args->shares * TILE + BLOCK - 1) / BLOCK;
        insert_shares_kernel<<<blocks, BLOCK, 0, native>>>(*args);
        return hotbed_cuda_launched("insert_shares_kernel");
    }
    insert_rest_kernel<<<1, TILE, 0, native>>>(*args);
    return hotbed_cuda_launched("insert_rest_kernel");
}

static hotbed_status erase(const hotbed_rows_args *args, hotbed_stream *stream) {
    if (args->table.tiers != HOTBED_TIERS_ONE || args->index.segments != NULL ||
        args->tracker != NULL)
        return HOTBED_CUDA_LAUNCH(erase_kernel, args->n * TILE, BLOCK, WAVES, stream, *args);
    hotbed_index_args index = hotbed_rows_index(args);
    return hotbed_index_kernels_cuda.erase(&index, stream);
}

static hotbed_status expire(const hotbed_expire_args *args, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(expire_kernel, args->slots * TILE, BLOCK, WAVES, stream, *args));
    return HOTBED_CUDA_LAUNCH(advance_kernel, 1, 1, WAVES, stream, *args);
}

static hotbed_status count(const hotbed_rows_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(count_keys_kernel, args->n * TILE, BLOCK, WAVES, stream, *args);
}

static hotbed_status clear(const hotbed_rows_args *args, hotbed_stream *stream) {
    if (!hotbed_table_indexed(&args->table))
        return HOTBED_CUDA_LAUNCH(
            init_rows_kernel, args->table.slots * TILE, BLOCK, WAVES, stream, *args);
    hotbed_index_args index = hotbed_rows_index(args);
    return hotbed_index_kernels_cuda.clear(&index, stream);
}

static hotbed_status list(
    const hotbed_rows_args *args, uint64_t *keys, uint64_t *scores, uint64_t *counts,
    hotbed_stream *stream) {
    hotbed_index_args index = hotbed_rows_export(args, keys, scores, counts);
    return hotbed_index_kernels_cuda.export_keys(&index, stream);
}

static hotbed_status load(const hotbed_rows_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(load_kernel, args->n * TILE, BLOCK, WAVES, stream, *args);
}

static hotbed_status store(const hotbed_rows_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(store_kernel, args->n * TILE, BLOCK, WAVES, stream, *args);
}

const hotbed_rows_kernels hotbed_rows_kernels_cuda = {
    get, set, distinct, insert_refused, erase, expire, count, clear, list, load, store};
