/* bench/bench_index.c - the hash index: find, find or insert, insert with eviction.
 *
 * First inside a storage whose rows have 16 bytes, so that the index takes most of the time; then
 * hotbed_index by itself. Batches have distinct keys, as after dedup. */
#include "bench/bench_step.h"
#include "hotbed/index.h"

#include <stdlib.h>

/* Arguments: n, slots, load in percent, hits in percent. Fills the table. NULL if the case is skipped. */
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

/* Look up every key of a batch, as eval does. */
static void find(bench_state *state) {
    bench_step step;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint64_t filled = 0;
    uint64_t *numbers = prepare(state, false, &step, &filled);
    if (!numbers)
        return;
    const hotbed_step_view view = bench_step_eval(&step);
    bench_choose(n, filled, (uint64_t)bench_arg(state, 3), (uint64_t)1 << 40, numbers);
    bool ok = bench_step_batch(state, &step, numbers) &&
              bench_ok(state, step.lookup->layout(&view, step.stream));
    while (ok && bench_next(state)) {
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = bench_ok(state, step.lookup->find_keys(&view, step.stream));
        bench_stop(step.stream, state);
    }
    bench_items(state, (int64_t)n);
    /* read the key and one line of keys, write the slot */
    bench_bytes(state, (int64_t)(n * (2 * sizeof(uint64_t) + 128)));
    bench_lines(state, n, step.table.slots);
    free(numbers);
}

/* Claim and publish slots. New keys are removed again after each iteration. */
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
        bench_choose(n, filled, (uint64_t)bench_arg(state, 3), fresh, numbers);
        ok = bench_step_uniques(state, &step, numbers, n);
        bench_flush_cache(step.stream);
        bench_start(step.stream);
        ok = ok && bench_ok(state, step.lookup->find(&step.view, step.stream)) &&
             bench_ok(state, step.lookup->place(&step.view, step.stream));
        bench_stop(step.stream, state);
        ok = ok && bench_ok(state, step.lookup->unpin(&step.view, HOTBED_HELD_BATCH, step.stream));
        if (ok && evicts) {
            fresh += n; /* evicted keys are gone: continue with other keys */
            continue;
        }
        uint64_t added = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (numbers[i] >= fresh)
                numbers[added++] = numbers[i];
        }
        ok = ok && bench_step_missed(state, &step, added);
        if (ok && added > 0)
            ok = bench_step_erase(state, &step, numbers, added);
    }
    bench_items(state, (int64_t)n);
    /* read the key and a line of keys, read and write a meta, write the slot */
    bench_bytes(state, (int64_t)(n * (4 * sizeof(uint64_t) + 128)));
    bench_lines(state, n, step.table.slots);
    free(numbers);
}

static void find_or_insert(bench_state *state) {
    insert(state, false);
}

static void find_or_evict(bench_state *state) {
    insert(state, true);
}

/* --- hotbed_index ----------------------------------------------------------------------------- */

typedef struct alone {
    hotbed_stream *stream;
    hotbed_index *index;
    uint64_t n, filled;
    hotbed_index_insert call;
    uint64_t *keys;    /* [n] device */
    uint64_t *numbers; /* [n] host: numbers, and then their keys */
} alone;

static bool send_keys(bench_state *state, alone *a, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        a->numbers[i] = bench_key(a->numbers[i]);
    return bench_ok(state, hotbed_copy(a->keys, a->numbers, n * sizeof *a->keys, a->stream)) &&
           bench_ok(state, hotbed_stream_sync(a->stream));
}

static bool insert_numbers(bench_state *state, alone *a, uint64_t first, uint64_t end) {
    bool ok = true;
    hotbed_index_insert call = a->call;
    for (; ok && first < end; first += a->n) {
        call.n = end - first < a->n ? end - first : a->n;
        call.score++;
        for (uint64_t i = 0; i < call.n; i++)
            a->numbers[i] = first + i;
        ok = send_keys(state, a, call.n) &&
             bench_ok(state, hotbed_index_find_or_insert(a->index, &call, a->stream)) &&
             bench_ok(state, hotbed_stream_sync(a->stream));
    }
    return ok;
}

/* Arguments as for prepare(). A table that evicts is filled to its last slot. */
static bool open_alone(bench_state *state, bool evicts, alone *a) {
    uint64_t slots = (uint64_t)bench_arg(state, 1);
    uint64_t capacity = slots * 97 / 100;
    hotbed_evict evict = evicts ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER;
    hotbed_index_options options = {
        .size = sizeof options, .num_tables = 1, .capacities = &capacity, .evict = &evict};
    *a = (alone){.stream = bench_stream(state), .n = (uint64_t)bench_arg(state, 0)};
    a->filled = evicts ? slots + slots / 4 : slots * (uint64_t)bench_arg(state, 2) / 100;
    a->keys = bench_alloc(state, a->n * sizeof *a->keys);
    a->call = (hotbed_index_insert){
        .size = sizeof a->call, .n = a->n, .rule = HOTBED_SCORE_ASSIGN, .keys = a->keys};
    a->call.slots = bench_alloc(state, a->n * sizeof *a->call.slots);
    a->call.outcomes = bench_alloc(state, a->n);
    if (a->keys == NULL || a->call.slots == NULL || a->call.outcomes == NULL ||
        !bench_ok(state, hotbed_index_create(&options, a->stream, &a->index)))
        return false;
    a->numbers = malloc(a->n * sizeof *a->numbers);
    if (a->numbers == NULL)
        bench_skip(state, "no memory");
    return a->numbers != NULL && insert_numbers(state, a, 0, a->filled);
}

static void close_alone(bench_state *state, alone *a) {
    (void)!bench_ok(state, hotbed_stream_sync(a->stream));
    hotbed_index_destroy(a->index);
    free(a->numbers);
}

static void find_alone(bench_state *state) {
    alone a;
    bool ok = open_alone(state, false, &a);
    if (ok) {
        bench_choose(a.n, a.filled, (uint64_t)bench_arg(state, 3), (uint64_t)1 << 40, a.numbers);
        ok = send_keys(state, &a, a.n);
    }
    while (ok && bench_next(state)) {
        bench_flush_cache(a.stream);
        bench_start(a.stream);
        ok = bench_ok(
            state, hotbed_index_find_keys(a.index, a.n, a.keys, NULL, a.call.slots, a.stream));
        bench_stop(a.stream, state);
    }
    bench_items(state, (int64_t)a.n);
    /* read the key and one line of keys, write the slot */
    bench_bytes(state, (int64_t)(a.n * (2 * sizeof(uint64_t) + 128)));
    bench_lines(state, a.n, (uint64_t)bench_arg(state, 1));
    close_alone(state, &a);
}

/* New keys are removed again after each iteration; evicted keys are not inserted again. */
static void insert_alone(bench_state *state, bool evicts) {
    alone a;
    bool ok = open_alone(state, evicts, &a);
    uint64_t fresh = (uint64_t)1 << 40;
    a.call.score = (uint64_t)1 << 30;
    while (ok && bench_next(state)) {
        bench_choose(a.n, a.filled, (uint64_t)bench_arg(state, 3), fresh, a.numbers);
        uint64_t added = 0;
        ok = send_keys(state, &a, a.n);
        bench_flush_cache(a.stream);
        bench_start(a.stream);
        ok = ok && bench_ok(state, hotbed_index_find_or_insert(a.index, &a.call, a.stream));
        bench_stop(a.stream, state);
        a.call.score++;
        if (!ok || evicts) {
            fresh += a.n;
            continue;
        }
        bench_choose(a.n, a.filled, (uint64_t)bench_arg(state, 3), fresh, a.numbers);
        for (uint64_t i = 0; i < a.n; i++)
            if (a.numbers[i] >= fresh)
                a.numbers[added++] = a.numbers[i];
        ok = send_keys(state, &a, added) &&
             bench_ok(state, hotbed_index_erase_keys(a.index, added, a.keys, NULL, NULL, a.stream));
    }
    bench_items(state, (int64_t)a.n);
    /* read the key and a line of keys, read and write a meta, write the slot */
    bench_bytes(state, (int64_t)(a.n * (4 * sizeof(uint64_t) + 128)));
    bench_lines(state, a.n, (uint64_t)bench_arg(state, 1));
    close_alone(state, &a);
}

static void find_or_insert_alone(bench_state *state) {
    insert_alone(state, false);
}

static void insert_and_evict_alone(bench_state *state) {
    insert_alone(state, true);
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

/* The rows of docs/performance.md, "hash operations". */
const int64_t bench_find_host[] = {
    1 << 15, 1 << 16, 50, 100, 1 << 15, 1 << 16, 75, 100, 1 << 15,  1 << 16, 97, 100,
    1 << 15, 1 << 16, 75, 0,   1 << 16, 1 << 19, 60, 100, 1 << 16,  1 << 19, 75, 100,
    1 << 16, 1 << 19, 97, 100, 1 << 16, 1 << 19, 75, 0,   1 << 18,  1 << 23, 75, 100,
    1 << 18, 1 << 23, 97, 100, 1 << 18, 1 << 23, 75, 0,   INT64_MIN};
static const int64_t alone_find_cuda[] = {1 << 20, 1 << 26, 60,      100, 1 << 20, 1 << 26,  75,
                                          100,     1 << 20, 1 << 26, 97,  100,     INT64_MIN};
static const int64_t alone_insert_host[] = {1 << 16, 1 << 19, 75, 60, INT64_MIN};
static const int64_t alone_insert_cuda[] = {1 << 20, 1 << 26, 75, 60, INT64_MIN};
static const int64_t alone_evict_host[] = {1 << 16, 1 << 19, 100, 0, INT64_MIN};
static const int64_t alone_evict_cuda[] = {1 << 20, 1 << 26, 100, 0, INT64_MIN};

const bench_case bench_index_cases[] = {
    {"index/find", find, names, find_host, find_cuda},
    {"index/find_or_insert", find_or_insert, names, insert_host, insert_cuda},
    {"index/find_or_evict", find_or_evict, names, evict_host, evict_cuda},
    {"index/alone_find", find_alone, names, bench_find_host, alone_find_cuda},
    {"index/alone_find_or_insert", find_or_insert_alone, names, alone_insert_host,
     alone_insert_cuda},
    {"index/alone_insert_and_evict", insert_and_evict_alone, names, alone_evict_host,
     alone_evict_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
