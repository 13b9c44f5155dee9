/* bench/bench_lookup.c - from slots to output rows: sequences and sums, in training and in eval. */
#include "bench/bench_step.h"

#include "base/error.h"

#include <stdlib.h>

/* Draw keys from a power law with exponent 1.05 over `range`, present or new, for batch number `round`. */
static bool draw(bench_state *state, bench_step *step, uint64_t range, uint64_t round) {
    uint64_t *numbers = malloc(step->view.batch.bound * sizeof *numbers);
    if (!numbers) {
        bench_skip(state, "no memory");
        return false;
    }
    bench_zipf(1.05, range, step->view.batch.bound, round, numbers);
    bool ok = bench_step_batch(state, step, numbers);
    free(numbers);
    return ok;
}

/* Draw a batch and find its rows, which stay unpinned. */
static bool draw_and_find(
    bench_state *state, bench_step *step, uint64_t n, uint64_t round, void *scratch) {
    return draw(state, step, n, round) && bench_step_prefetch(state, step, scratch) &&
           bench_ok(state, step->lookup->unpin(&step->view, HOTBED_HELD_BATCH, step->stream));
}

/* Count the output rows and the bytes of a forward. */
static void account(bench_state *state, const bench_step *step, uint64_t n, uint64_t rows) {
    uint64_t in = hotbed_weights_bytes(step->table.dtype, step->table.dim);
    bench_items(state, (int64_t)n);
    bench_bytes(state, (int64_t)(n * (in + 12) + rows * step->table.dim * sizeof(float)));
}

/* Arguments: n, dim, bag (0: NONE), dtype. */
static bool prepare(bench_state *state, bench_step *step, void **output, void **scratch) {
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = 2 * n, .bound = n};
    options.dim = (uint32_t)bench_arg(state, 1);
    options.bag = (uint32_t)bench_arg(state, 2);
    options.dtype = (hotbed_dtype)bench_arg(state, 3);
    if (!bench_step_create(state, &options, step))
        return false;
    *scratch = bench_alloc(state, step->unique->scratch(n, 1));
    *output = bench_alloc(state, n * options.dim * sizeof(float));
    return *scratch && *output;
}

static void forward(bench_state *state) {
    bench_step step;
    void *output = NULL;
    void *scratch = NULL;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bool ok = prepare(state, &step, &output, &scratch);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        ok = draw_and_find(state, &step, n, round, scratch);
        if (!ok)
            return;
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = bench_ok(
            state,
            step.lookup->forward(&step.view, output, step.table.dim, step.table.dim, step.stream));
        bench_stop(step.stream, state);
    }
    account(state, &step, n, step.view.batch.bags ? step.view.batch.size : n);
}

/* Find the bag of each key from the offsets. */
static void bags(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {
        .slots = 64, .bound = n, .dim = 4, .bag = (uint32_t)bench_arg(state, 1)};
    bool ok = bench_step_create(state, &options, &step);
    while (ok && bench_next(state)) {
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = bench_ok(state, step.lookup->layout(&step.view, step.stream)) &&
             bench_ok(state, step.lookup->bags(&step.view, step.stream));
        bench_stop(step.stream, state);
    }
    bench_items(state, (int64_t)n);
    bench_bytes(state, (int64_t)(n * sizeof(uint32_t) + n / options.bag * sizeof(int64_t)));
}

/* New keys: assign slots, and write random initial rows. */
static void new_rows(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = 2 * n, .bound = n, .dim = (uint32_t)bench_arg(state, 1)};
    options.init = (hotbed_initializer_kind)bench_arg(state, 2);
    uint64_t *numbers = malloc(n * sizeof *numbers);
    if (!numbers)
        bench_skip(state, "no memory");
    bool ok = numbers && bench_step_create(state, &options, &step);
    while (ok && bench_next(state)) {
        for (uint64_t i = 0; i < n; i++)
            numbers[i] = i;
        ok = bench_step_uniques(state, &step, numbers, n) &&
             bench_ok(state, step.lookup->find(&step.view, step.stream));
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = ok && bench_ok(state, step.lookup->place(&step.view, step.stream));
        bench_stop(step.stream, state);
        ok = ok &&
             bench_ok(state, step.lookup->unpin(&step.view, HOTBED_HELD_BATCH, step.stream)) &&
             bench_step_erase(state, &step, numbers, n);
    }
    bench_items(state, (int64_t)n);
    /* read the key and a line of keys, write a meta, slot and row */
    bench_bytes(state, (int64_t)(n * (3 * sizeof(uint64_t) + 128 + options.dim * sizeof(float))));
    free(numbers);
}

/* Find and forward, without dedup. */
static hotbed_status find_and_read(
    const bench_step *step, const hotbed_step_view *view, void *output) {
    uint32_t dim = step->table.dim;
    if (view->storage.pooling == HOTBED_POOL_NONE)
        return step->lookup->eval_rows(view, output, dim, dim, step->stream);
    HOTBED_TRY(step->lookup->find_keys(view, step->stream));
    return step->lookup->forward(view, output, dim, dim, step->stream);
}

static void eval(bench_state *state) {
    bench_step step;
    void *output = NULL;
    void *scratch = NULL;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bool ok = prepare(state, &step, &output, &scratch);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        const hotbed_step_view view = bench_step_eval(&step);
        ok = draw_and_find(state, &step, n, round, scratch) &&
             bench_ok(state, step.lookup->layout(&view, step.stream));
        if (!ok)
            return;
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = bench_ok(state, find_and_read(&step, &view, output));
        bench_stop(step.stream, state);
    }
    account(state, &step, n, step.view.batch.bags ? step.view.batch.size : n);
}

static const char *const names[] = {"n", "dim", "bag", "dtype", NULL};
static const int64_t host[] = {50000, 128,        0,     HOTBED_F32, 50000,    16,
                               10,    HOTBED_F32, 50000, 128,        10,       HOTBED_F32,
                               50000, 128,        0,     HOTBED_F16, INT64_MIN};
static const int64_t cuda[] = {1048570, 128, 0,  HOTBED_F32,  1048570,  128, 0,  HOTBED_F16,
                               1048570, 128, 0,  HOTBED_BF16, 1048570,  16,  0,  HOTBED_F32,
                               1048570, 128, 10, HOTBED_F32,  1048570,  16,  10, HOTBED_F32,
                               1048570, 128, 10, HOTBED_F16,  INT64_MIN};

static const char *const bags_names[] = {"n", "bag", NULL};
static const int64_t bags_host[] = {100000, 10, INT64_MIN};
static const int64_t bags_cuda[] = {1 << 20, 10, 1 << 20, 1000, INT64_MIN};
static const char *const new_names[] = {"n", "dim", "initializer", NULL};
static const int64_t new_host[] = {20000, 128, HOTBED_INIT_UNIFORM, INT64_MIN};
static const int64_t new_cuda[] = {
    1 << 18, 128, HOTBED_INIT_UNIFORM, 1 << 18, 128, HOTBED_INIT_NORMAL, INT64_MIN};

const bench_case bench_lookup_cases[] = {
    {"lookup/forward", forward, names, host, cuda},
    {"lookup/eval", eval, names, host, cuda},
    {"lookup/bags", bags, bags_names, bags_host, bags_cuda},
    {"lookup/new_rows", new_rows, new_names, new_host, new_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
