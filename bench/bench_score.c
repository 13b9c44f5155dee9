/* bench/bench_score.c - admission: decide which new keys of a batch get a row. */
#include "bench/bench_step.h"

#include <stdlib.h>

/* Give each unique key one occurrence. */
static bool one_occurrence(bench_state *state, const bench_step *step) {
    uint64_t n = step->view.batch.bound + 1;
    uint32_t *starts = malloc(n * sizeof *starts);
    for (uint64_t i = 0; starts && i < n; i++)
        starts[i] = (uint32_t)i;
    bool ok = starts != NULL;
    if (!ok)
        bench_skip(state, "no memory");
    ok = ok &&
         bench_ok(
             state,
             hotbed_copy(step->view.unique.starts, starts, n * sizeof *starts, step->stream)) &&
         bench_ok(state, hotbed_stream_sync(step->stream));
    free(starts);
    return ok;
}

/* Arguments: n, admission, seen (the counter has the keys). The table has none of the keys. */
static void admit(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = 4 * n, .bound = n, .dim = 4};
    options.admission = (hotbed_admission)bench_arg(state, 1);
    uint64_t *numbers = malloc(n * sizeof *numbers);
    if (!numbers)
        bench_skip(state, "no memory");
    bool ok = numbers && bench_step_create(state, &options, &step) && one_occurrence(state, &step);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        for (uint64_t i = 0; i < n; i++)
            numbers[i] = bench_arg(state, 2) != 0 ? i : round * n + i;
        ok = bench_step_uniques(state, &step, numbers, n) &&
             bench_ok(state, step.lookup->find(&step.view, step.stream));
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = ok && bench_ok(state, step.score->admit(&step.view, step.stream));
        bench_stop(step.stream, state);
    }
    bench_items(state, (int64_t)n);
    /* read number and key, write the mark; with a counter, read its line of keys, read and write its meta */
    uint64_t counter = options.admission == HOTBED_ADMIT_FREQUENCY ? 128 + 2 * sizeof(uint64_t) : 0;
    bench_bytes(state, (int64_t)(n * (2 * sizeof(uint32_t) + sizeof(uint64_t) + counter)));
    free(numbers);
}

static const char *const names[] = {"n", "admission", "seen", NULL};
static const int64_t host[] = {
    50000, HOTBED_ADMIT_FREQUENCY,     0, 50000,    HOTBED_ADMIT_FREQUENCY, 1,
    50000, HOTBED_ADMIT_PROBABILISTIC, 0, INT64_MIN};
static const int64_t cuda[] = {
    1 << 20, HOTBED_ADMIT_FREQUENCY,     0, 1 << 20,  HOTBED_ADMIT_FREQUENCY, 1,
    1 << 20, HOTBED_ADMIT_PROBABILISTIC, 0, INT64_MIN};

const bench_case bench_score_cases[] = {
    {"score/admit", admit, names, host, cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
