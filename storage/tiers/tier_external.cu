/* storage/tiers/tier_external.cu - launches the passes over an external store's batches on CUDA. Host
 * counterpart: tier_external_host.c. */
#include "base/cuda_launch.h"
#include "storage/tiers/tier_external_kernels.h"

enum {
    LANE = 1,
    CLAIM = 4, /* as in tier.cu */
    ROW = 32,
    BLOCK = 256,
    WAVES = 1,
};

template <hotbed_store_pass PASS, unsigned TILE>
static __global__ void __launch_bounds__(BLOCK) step_kernel(hotbed_store_step a) {
    a.s.storage.index.segments = NULL; /* tables over a store do not grow; the same below */
    uint32_t n = *a.s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_step_item(&a, PASS, (uint32_t)i, TILE);
    for (uint64_t t = hotbed_cuda_thread(); t < a.s.storage.num_tables; t += hotbed_cuda_threads())
        hotbed_step_table(&a, PASS, (uint32_t)t);
}

template <hotbed_store_pass PASS, unsigned TILE>
static __global__ void __launch_bounds__(BLOCK) eval_kernel(hotbed_store_eval a) {
    a.s.storage.index.segments = NULL;
    uint32_t n = a.s.batch.feature_starts[a.s.storage.num_features];
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_eval_item(&a, PASS, (uint32_t)i, TILE);
    for (uint64_t t = hotbed_cuda_thread(); t < a.s.storage.num_tables; t += hotbed_cuda_threads())
        hotbed_eval_table(&a, PASS, (uint32_t)t);
}

template <hotbed_store_pass PASS, unsigned TILE>
static __global__ void __launch_bounds__(BLOCK) rows_kernel(hotbed_store_rows a) {
    a.rows.index.segments = NULL;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.count; i += hotbed_cuda_threads() / TILE)
        hotbed_rows_item(&a, PASS, (uint32_t)i, TILE);
    for (uint64_t t = hotbed_cuda_thread(); t < a.num_tables; t += hotbed_cuda_threads())
        hotbed_rows_table(&a, PASS, (uint32_t)t);
}

template <hotbed_store_pass PASS, unsigned TILE>
static __global__ void __launch_bounds__(BLOCK) flush_kernel(hotbed_store_flush a) {
    a.index.segments = NULL;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.count; i += hotbed_cuda_threads() / TILE)
        hotbed_flush_item(&a, PASS, (uint32_t)i, TILE);
    for (uint64_t t = hotbed_cuda_thread(); t < a.num_tables; t += hotbed_cuda_threads())
        hotbed_flush_table(&a, PASS, (uint32_t)t);
}

/* Launch `kernel` for `items` tiles and all tables. */
template <typename ARGS>
static hotbed_status launch(
    void (*kernel)(ARGS), const char *name, const ARGS &args, uint64_t items, unsigned tile,
    uint32_t tables, hotbed_stream *stream) {
    uint64_t threads = items * tile > tables ? items * tile : tables;
    return hotbed_cuda_launch(kernel, name, threads, BLOCK, WAVES, stream, args);
}

template <hotbed_store_pass PASS, unsigned TILE>
static hotbed_status step_launch(const hotbed_store_step *a, hotbed_stream *stream) {
    return launch(
        step_kernel<PASS, TILE>, "step_kernel", *a, a->s.batch.bound, TILE, a->s.storage.num_tables,
        stream);
}

static hotbed_status step(
    const hotbed_store_step *args, hotbed_store_pass pass, hotbed_stream *stream) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        return step_launch<HOTBED_PASS_WANT, LANE>(args, stream);
    case HOTBED_PASS_ASK:
        return step_launch<HOTBED_PASS_ASK, LANE>(args, stream);
    case HOTBED_PASS_ANSWER:
        return step_launch<HOTBED_PASS_ANSWER, LANE>(args, stream);
    case HOTBED_PASS_CLAIM:
        return step_launch<HOTBED_PASS_CLAIM, CLAIM>(args, stream);
    case HOTBED_PASS_LEAVE:
        return step_launch<HOTBED_PASS_LEAVE, ROW>(args, stream);
    default:
        return step_launch<HOTBED_PASS_ARRIVE, ROW>(args, stream);
    }
}

template <hotbed_store_pass PASS, unsigned TILE>
static hotbed_status eval_launch(const hotbed_store_eval *a, hotbed_stream *stream) {
    return launch(
        eval_kernel<PASS, TILE>, "eval_kernel", *a, a->s.batch.bound, TILE, a->s.storage.num_tables,
        stream);
}

static hotbed_status eval(
    const hotbed_store_eval *args, hotbed_store_pass pass, hotbed_stream *stream) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        return eval_launch<HOTBED_PASS_WANT, LANE>(args, stream);
    case HOTBED_PASS_ASK:
        return eval_launch<HOTBED_PASS_ASK, LANE>(args, stream);
    default:
        return eval_launch<HOTBED_PASS_ANSWER, ROW>(args, stream);
    }
}

template <hotbed_store_pass PASS, unsigned TILE>
static hotbed_status rows_launch(const hotbed_store_rows *a, hotbed_stream *stream) {
    return launch(
        rows_kernel<PASS, TILE>, "rows_kernel", *a, a->count, TILE, a->num_tables, stream);
}

static hotbed_status rows(
    const hotbed_store_rows *args, hotbed_store_pass pass, hotbed_stream *stream) {
    switch (pass) {
    case HOTBED_PASS_GET:
        return rows_launch<HOTBED_PASS_GET, ROW>(args, stream);
    case HOTBED_PASS_SET:
        return rows_launch<HOTBED_PASS_SET, ROW>(args, stream);
    case HOTBED_PASS_ERASE:
        return rows_launch<HOTBED_PASS_ERASE, CLAIM>(args, stream);
    case HOTBED_PASS_ASK:
        return rows_launch<HOTBED_PASS_ASK, LANE>(args, stream);
    case HOTBED_PASS_GET_ANSWER:
        return rows_launch<HOTBED_PASS_GET_ANSWER, ROW>(args, stream);
    case HOTBED_PASS_SET_ANSWER:
        return rows_launch<HOTBED_PASS_SET_ANSWER, ROW>(args, stream);
    case HOTBED_PASS_ERASE_ANSWER:
        return rows_launch<HOTBED_PASS_ERASE_ANSWER, CLAIM>(args, stream);
    default:
        return rows_launch<HOTBED_PASS_FAULT, LANE>(args, stream);
    }
}

template <hotbed_store_pass PASS, unsigned TILE>
static hotbed_status flush_launch(const hotbed_store_flush *a, hotbed_stream *stream) {
    return launch(
        flush_kernel<PASS, TILE>, "flush_kernel", *a, a->count, TILE, a->num_tables, stream);
}

static hotbed_status flush(
    const hotbed_store_flush *args, hotbed_store_pass pass, hotbed_stream *stream) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        return flush_launch<HOTBED_PASS_WANT, LANE>(args, stream);
    case HOTBED_PASS_LEAVE:
        return flush_launch<HOTBED_PASS_LEAVE, ROW>(args, stream);
    case HOTBED_PASS_LEFT:
        return flush_launch<HOTBED_PASS_LEFT, LANE>(args, stream);
    default:
        return flush_launch<HOTBED_PASS_DROP, CLAIM>(args, stream);
    }
}

const hotbed_tier_external_kernels hotbed_tier_external_kernels_cuda = {step, eval, rows, flush};
