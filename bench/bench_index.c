/* bench/bench_index.c - the hash index: find, find or insert, insert with eviction.
 *
 * The rows are 16 bytes, so that the index is what takes the time; batches are of distinct keys, as dedup
 * leaves them.
 */
#include "bench/bench_step.h"

#include <stdlib.h>

/* Numbers of a batch: `hits` percent of keys numbered below `filled`, distinct, others from `fresh` on. */
static void choose(uint64_t n, uint64_t filled, uint64_t hits, uint64_t fresh, uint64_t *numbers) {
    uint64_t stride = filled / (n > filled ? filled : n);
    for (uint64_t i = 0; i < n; i++) {
        bool hit = bench_random(i, 100) < hits;
        numbers[i] = hit ? (i * stride + bench_random(n + i, stride)) % filled : fresh + i;
    }
}

/* Arguments: n, slots, load in percent, hits in percent.  Fills the table; NULL: the state is skipped. */
static uint64_t *prepare(bench_state *state, bool evicts, bench_step *step, uint64_t *filled) {
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = (uint64_t)bench_arg(state, 1), .bound = n, .dim = 4};
    options.evicts = evicts;
    if (!bench_step_create(state, &options, step))
        return NULL;
    *filled = step->table.slots * (uint64_t)bench_arg(state, 2) / 100;
    if (!bench_step_fill(state, step, 0, *filled))
        return NULL;
    uint64_t *numbers = malloc(n * sizeof *numbers);
    if (!numbers)
        bench_skip(state, "no memory");
    return numbers;
}

/* Every key of a batch is looked up, as eval does. */
static void find(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint64_t filled = 0;
    uint64_t *numbers = prepare(state, false, &step, &filled);
    if (!numbers)
        return;
    hotbed_step_view view = step.view;
    view.eval = 1;
    view.inverse = NULL;
    choose(n, filled, (uint64_t)bench_arg(state, 3), (uint64_t)1 << 40, numbers);
    bool ok = bench_step_batch(state, &step, numbers) &&
              bench_ok(state, step.lookup->layout(&view, step.stream));
    while (ok && bench_next(state)) {
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = bench_ok(state, step.lookup->find_keys(&view, step.stream));
        bench_stop(step.stream, state);
    }
    bench_items(state, (int64_t)n);
    /* key in, one line of keys, slot out */
    bench_bytes(state, (int64_t)(n * (2 * sizeof(uint64_t) + 128)));
    free(numbers);
}

/* Claim and publish: new keys are removed again after each iteration. */
static void insert(bench_state *state, bool evicts) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint64_t filled = 0;
    uint64_t *numbers = prepare(state, evicts, &step, &filled);
    if (!numbers)
        return;
    uint64_t fresh = (uint64_t)1 << 40;
    bool ok = true;
    while (ok && bench_next(state)) {
        choose(n, filled, (uint64_t)bench_arg(state, 3), fresh, numbers);
        ok = bench_step_uniques(state, &step, numbers, n);
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = ok && bench_ok(state, step.lookup->find(&step.view, step.stream)) &&
             bench_ok(state, step.lookup->place(&step.view, step.stream));
        bench_stop(step.stream, state);
        ok = ok && bench_ok(state, step.lookup->unpin(&step.view, step.stream));
        if (ok && evicts) {
            fresh += n; /* what was evicted is gone: go on with other keys */
            continue;
        }
        uint64_t added = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (numbers[i] >= fresh)
                numbers[added++] = numbers[i];
        }
        if (ok && added > 0)
            ok = bench_step_erase(state, &step, numbers, added);
    }
    bench_items(state, (int64_t)n);
    /* key in, a line of keys, a meta in and out, slot out */
    bench_bytes(state, (int64_t)(n * (4 * sizeof(uint64_t) + 128)));
    free(numbers);
}

static void find_or_insert(bench_state *state) {
    insert(state, false);
}

static void find_or_evict(bench_state *state) {
    insert(state, true);
}

static const char *const names[] = {"n", "slots", "load", "hits", NULL};
static const int64_t find_host[] = {1 << 16, 1 << 19, 50,      100,     1 << 16,  1 << 19,
                                    75,      100,     1 << 16, 1 << 19, 97,       100,
                                    1 << 16, 1 << 19, 75,      0,       INT64_MIN};
static const int64_t find_cuda[] = {1 << 20, 1 << 26, 50, 100, 1 << 20,  1 << 26, 75, 100,
                                    1 << 20, 1 << 26, 97, 100, 1 << 20,  1 << 26, 75, 60,
                                    1 << 20, 1 << 26, 75, 0,   INT64_MIN};
static const int64_t insert_host[] = {1 << 16, 1 << 19, 50, 60,       1 << 16,
                                      1 << 19, 75,      60, INT64_MIN};
static const int64_t insert_cuda[] = {1 << 20, 1 << 26, 50,      60,      1 << 20,  1 << 26,
                                      75,      60,      1 << 20, 1 << 26, 75,       100,
                                      1 << 20, 1 << 26, 90,      60,      INT64_MIN};
static const int64_t evict_host[] = {1 << 16, 1 << 19, 100, 0, INT64_MIN};
static const int64_t evict_cuda[] = {1 << 20, 1 << 26, 100, 0,        1 << 20,
                                     1 << 26, 100,     60,  INT64_MIN};

const bench_case bench_index_cases[] = {
    {"index/find", find, names, find_host, find_cuda},
    {"index/find_or_insert", find_or_insert, names, insert_host, insert_cuda},
    {"index/find_or_evict", find_or_evict, names, evict_host, evict_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
