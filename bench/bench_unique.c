/* bench/bench_unique.c - dedup of a batch. */
#include "bench/bench_step.h"

#include <stdlib.h>

/* Arguments: n, range of the keys, exponent of the power law in hundredths. */
static void unique(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint64_t range = (uint64_t)bench_arg(state, 1);
    bench_step_options options = {.slots = 64, .bound = n, .dim = 4};
    if (!bench_step_create(state, &options, &step))
        return;
    void *scratch = bench_alloc(state, step.unique->scratch(n, 1));
    uint64_t *numbers = malloc(n * sizeof *numbers);
    bool ok = scratch && numbers;
    uint32_t uniques = 0;
    if (!ok)
        bench_skip(state, "no memory");
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        /* another batch each time, so that no cache has its keys */
        bench_zipf((double)bench_arg(state, 2) * 0.01, range, n, round, numbers);
        ok = bench_step_batch(state, &step, numbers);
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = ok &&
             bench_ok(state, step.unique->unique(&step.view, scratch, step.stream, step.stream));
        bench_stop(step.stream, state);
    }
    if (ok)
        uniques = bench_step_num_uniques(state, &step);
    bench_counter(state, "uniques", uniques);
    bench_items(state, (int64_t)n);
    /* read keys; write inverse and positions; write key, start and count of each unique key */
    bench_bytes(state, (int64_t)(n * 16 + (uint64_t)uniques * 16));
    free(numbers);
}

static const char *const names[] = {"n", "range", "alpha_x100", NULL};
static const int64_t host[] = {100000, 1677721, 105, 100000, 1 << 30, 0, INT64_MIN};
static const int64_t cuda[] = {1048570, 1677721, 105,     1048570, 26843545, 105,      1048570,
                               1 << 30, 0,       1 << 22, 1677721, 105,      INT64_MIN};

const bench_case bench_unique_cases[] = {
    {"unique/dedup", unique, names, host, cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
