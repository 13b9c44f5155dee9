/* storage/tiers/tier_external.cu - launches the passes over an external store's batches on CUDA. Host
 * counterpart: tier_external_host.c. */
#include "base/cuda_launch.h"
#include "storage/tiers/tier_external_kernels.h"

enum { ROW = 32, BLOCK = 256, WAVES = 1 };

/* Lanes for an item. The store's call takes longer than any pass, so the widths need not be the
 * fastest. */
static unsigned tile_of(hotbed_store_pass pass) {
    switch (pass) {
    case HOTBED_PASS_WANT:
    case HOTBED_PASS_ASK:
    case HOTBED_PASS_LEFT:
    case HOTBED_PASS_FAULT:
        return 1;
    default:
        return ROW;
    }
}

static __global__ void __launch_bounds__(BLOCK)
    step_kernel(hotbed_store_step a, hotbed_store_pass pass, unsigned tile) {
    a.s.storage.index.segments = NULL; /* tables over a store do not grow; the same below */
    uint32_t n = *a.s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / tile; i < n; i += hotbed_cuda_threads() / tile)
        hotbed_step_item(&a, pass, (uint32_t)i, tile);
    for (uint64_t t = hotbed_cuda_thread(); t < a.s.storage.num_tables; t += hotbed_cuda_threads())
        hotbed_step_table(&a, pass, (uint32_t)t);
}

static __global__ void __launch_bounds__(BLOCK)
    eval_kernel(hotbed_store_eval a, hotbed_store_pass pass, unsigned tile) {
    a.s.storage.index.segments = NULL;
    uint32_t n = a.s.batch.feature_starts[a.s.storage.num_features];
    for (uint64_t i = hotbed_cuda_thread() / tile; i < n; i += hotbed_cuda_threads() / tile)
        hotbed_eval_item(&a, pass, (uint32_t)i, tile);
    for (uint64_t t = hotbed_cuda_thread(); t < a.s.storage.num_tables; t += hotbed_cuda_threads())
        hotbed_eval_table(&a, pass, (uint32_t)t);
}

static __global__ void __launch_bounds__(BLOCK)
    rows_kernel(hotbed_store_rows a, hotbed_store_pass pass, unsigned tile) {
    a.rows.index.segments = NULL;
    for (uint64_t i = hotbed_cuda_thread() / tile; i < a.count; i += hotbed_cuda_threads() / tile)
        hotbed_rows_item(&a, pass, (uint32_t)i, tile);
    for (uint64_t t = hotbed_cuda_thread(); t < a.num_tables; t += hotbed_cuda_threads())
        hotbed_rows_table(&a, pass, (uint32_t)t);
}

static __global__ void __launch_bounds__(BLOCK)
    flush_kernel(hotbed_store_flush a, hotbed_store_pass pass, unsigned tile) {
    a.index.segments = NULL;
    for (uint64_t i = hotbed_cuda_thread() / tile; i < a.count; i += hotbed_cuda_threads() / tile)
        hotbed_flush_item(&a, pass, (uint32_t)i, tile);
    for (uint64_t t = hotbed_cuda_thread(); t < a.num_tables; t += hotbed_cuda_threads())
        hotbed_flush_table(&a, pass, (uint32_t)t);
}

/* Launch a pass of `kernel` for `items` tiles and all tables. */
template <typename ARGS>
static hotbed_status launch(
    void (*kernel)(ARGS, hotbed_store_pass, unsigned), const char *name, const ARGS &args,
    hotbed_store_pass pass, uint64_t items, uint32_t tables, hotbed_stream *stream) {
    const unsigned tile = tile_of(pass);
    const uint64_t threads = items * tile > tables ? items * tile : tables;
    return hotbed_cuda_launch(kernel, name, threads, BLOCK, WAVES, stream, args, pass, tile);
}

static hotbed_status step(
    const hotbed_store_step *args, hotbed_store_pass pass, hotbed_stream *stream) {
    return launch(
        step_kernel, "step_kernel", *args, pass, args->s.batch.bound, args->s.storage.num_tables,
        stream);
}

static hotbed_status eval(
    const hotbed_store_eval *args, hotbed_store_pass pass, hotbed_stream *stream) {
    return launch(
        eval_kernel, "eval_kernel", *args, pass, args->s.batch.bound, args->s.storage.num_tables,
        stream);
}

static hotbed_status rows(
    const hotbed_store_rows *args, hotbed_store_pass pass, hotbed_stream *stream) {
    return launch(rows_kernel, "rows_kernel", *args, pass, args->count, args->num_tables, stream);
}

static hotbed_status flush(
    const hotbed_store_flush *args, hotbed_store_pass pass, hotbed_stream *stream) {
    return launch(flush_kernel, "flush_kernel", *args, pass, args->count, args->num_tables, stream);
}

const hotbed_tier_external_kernels hotbed_tier_external_kernels_cuda = {step, eval, rows, flush};
