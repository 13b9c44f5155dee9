/* bench/bench_storage.c - the public calls of a step, including all host work around the kernels. */
#include "bench/bench_step.h"

#include "hotbed/stats.h"
#include "hotbed/storage.h"

#include <stdlib.h>

/* A storage of `tables` tables, and a batch that changes with every round. */
typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_meter *meter;
    hotbed_batch batch;
    uint64_t *numbers;
    uint64_t *keys; /* on the device */
    float *rows;    /* the output, then the gradients */
    uint64_t range;
} fixture;

enum { TABLES = 4, RANGE = 16, FILL = 4 }; /* number of batches before the first measured one */

static hotbed_status create_storage(
    bench_state *state, hotbed_optimizer_kind optimizer, fixture *f) {
    uint64_t samples = (uint64_t)bench_arg(state, 0);
    static const char *const names[TABLES] = {"a", "b", "c", "d"};
    hotbed_table_options tables[TABLES];
    hotbed_storage_options options;
    for (int t = 0; t < TABLES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t], .name = names[t]};
        tables[t].dim = (uint32_t)bench_arg(state, 1);
        tables[t].capacity = f->range;
        tables[t].upper_capacity = f->range / RANGE; /* full after a few batches */
        tables[t].initializer =
            (hotbed_initializer){.kind = HOTBED_INIT_UNIFORM, .lower = -0.05F, .upper = 0.05F};
    }
    hotbed_storage_options_init(&options);
    options.num_tables = TABLES;
    options.tables = tables;
    options.pooling = (hotbed_pooling)bench_arg(state, 2);
    options.mode = (hotbed_mode)bench_arg(state, 3);
    options.optimizer.kind = optimizer;
    hotbed_status status = hotbed_storage_create(&options, f->stream, &f->storage);
    if (status == HOTBED_OK)
        status = hotbed_meter_create(f->storage, f->stream, &f->meter);
    if (status != HOTBED_OK)
        return status;
    return hotbed_ticket_create(
        f->storage, TABLES * samples, (uint32_t)samples, f->stream, &f->ticket);
}

/* Arguments: keys per table, dim, pooling, mode. Bags have one key. With two tiers, the upper tier
 * has capacity for 1/16 of the rows from which batches draw, which is twice the rows of a batch. */
static bool prepare(bench_state *state, hotbed_optimizer_kind optimizer, fixture *f) {
    uint64_t samples = (uint64_t)bench_arg(state, 0);
    uint32_t dim = (uint32_t)bench_arg(state, 1);
    *f = (fixture){.stream = bench_stream(state), .range = RANGE * samples};
    f->numbers = malloc(TABLES * samples * sizeof *f->numbers);
    f->keys = bench_alloc(state, TABLES * samples * sizeof *f->keys);
    f->rows = bench_alloc(state, TABLES * samples * dim * sizeof *f->rows);
    if (!f->numbers || !f->keys || !f->rows) {
        bench_skip(state, "no memory");
        return false;
    }
    f->batch = (hotbed_batch){.size = sizeof f->batch};
    f->batch.batch_size = (uint32_t)samples;
    f->batch.num_keys = TABLES * samples;
    f->batch.keys = f->keys;
    return bench_ok(state, create_storage(state, optimizer, f));
}

static void finish(fixture *f) {
    hotbed_ticket_destroy(f->ticket);
    hotbed_meter_destroy(f->meter);
    hotbed_storage_destroy(f->storage);
    free(f->numbers);
}

static bool draw(bench_state *state, fixture *f, uint64_t round) {
    bench_zipf(1.05, f->range, f->batch.num_keys, round, f->numbers);
    return bench_ok(
               state,
               hotbed_copy(f->keys, f->numbers, f->batch.num_keys * sizeof *f->keys, f->stream)) &&
           bench_ok(state, hotbed_stream_sync(f->stream));
}

static hotbed_status prefetch(fixture *f) {
    return hotbed_storage_prefetch(f->storage, &f->batch, f->ticket, f->stream);
}

static hotbed_status forward(fixture *f) {
    return hotbed_storage_forward(f->storage, f->ticket, f->rows, 0, f->stream);
}

static hotbed_status backward(fixture *f) {
    return hotbed_storage_backward(f->storage, f->ticket, f->rows, 0, f->stream);
}

static hotbed_status eval(fixture *f) {
    return hotbed_storage_eval(f->storage, &f->batch, f->rows, 0, f->stream);
}

static hotbed_status flush(fixture *f) {
    return hotbed_storage_flush(f->storage, f->stream);
}

static hotbed_status request(fixture *f) {
    return hotbed_meter_request(f->meter, f->stream);
}

typedef hotbed_status (*call)(fixture *f);

enum { PREFETCH, FORWARD, BACKWARD, EVAL, FLUSH, REQUEST };

static uint64_t count_uniques(bench_state *state, const fixture *f) {
    uint64_t sum = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_table_stats stats = {.size = sizeof stats};
        if (bench_ok(state, hotbed_storage_stats(f->storage, t, &stats, f->stream)))
            sum += stats.uniques;
    }
    return sum;
}

/* The bytes of device memory that the calls must move. */
static double bytes_of(
    const bench_state *state, hotbed_optimizer_kind optimizer, double uniques, int first,
    int last) {
    const double keys = TABLES * (double)bench_arg(state, 0);
    const double row = (double)bench_arg(state, 1) * sizeof(float);
    const double states = optimizer == HOTBED_OPT_ADAM ? 2 : 0;
    const double bytes[] = {
        [PREFETCH] = 8 * keys + 128 * uniques, /* keys, and lines of the index */
        [FORWARD] = row * (uniques + keys),
        [BACKWARD] = row * (keys + 2 * (1 + states) * uniques),
        [EVAL] = 8 * keys + (128 + row) * uniques + row * keys,
        [FLUSH] = 2 * row * uniques,
        [REQUEST] = TABLES * sizeof(hotbed_table_stats)};
    double sum = 0;
    for (int c = first; c < last; c++)
        sum += bytes[c];
    return sum;
}

/* Time calls [first, last) of a step. The other calls of the step are made too. */
static void time_calls(bench_state *state, hotbed_optimizer_kind optimizer, int first, int last) {
    static const call calls[] = {prefetch, forward, backward, eval, flush, request};
    int end = last > EVAL ? last : EVAL;
    fixture f;
    bool ok = prepare(state, optimizer, &f);
    for (uint64_t round = 0; ok && round < FILL; round++)
        ok = draw(state, &f, round) && bench_ok(state, prefetch(&f));
    uint64_t rounds = 0;
    const uint64_t before = ok ? count_uniques(state, &f) : 0;
    for (; ok && bench_next(state); rounds++) {
        ok = draw(state, &f, FILL + rounds);
        for (int c = 0; c < end && ok; c++) {
            if (c == first) {
                bench_flush_cache(f.stream);
                bench_start(f.stream);
            }
            ok = bench_ok(state, calls[c](&f));
            if (c + 1 == last)
                bench_stop(f.stream, state);
        }
    }
    bench_items(state, (int64_t)f.batch.num_keys);
    if (ok && rounds > 0) {
        double uniques = (double)(count_uniques(state, &f) - before) / (double)rounds;
        bench_bytes(state, (int64_t)bytes_of(state, optimizer, uniques, first, last));
    }
    finish(&f);
}

static void run_prefetch(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, PREFETCH, FORWARD);
}

static void run_forward(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, FORWARD, BACKWARD);
}

static void run_backward_sgd(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, BACKWARD, EVAL);
}

static void run_backward_adam(bench_state *state) {
    time_calls(state, HOTBED_OPT_ADAM, BACKWARD, EVAL);
}

static void run_eval(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, EVAL, FLUSH);
}

static void run_step(bench_state *state) {
    time_calls(state, HOTBED_OPT_ADAM, PREFETCH, EVAL);
}

/* Flush the changes of one batch. */
static void run_flush(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, FLUSH, REQUEST);
}

static void run_request(bench_state *state) {
    time_calls(state, HOTBED_OPT_SGD, REQUEST, REQUEST + 1);
}

static const char *const names[] = {"keys_a_table", "dim", "pooling", "mode", NULL};
static const int64_t host[] = {10000,    128, HOTBED_POOL_NONE, HOTBED_MODE_HBM_DIRECT,
                               10000,    16,  HOTBED_POOL_SUM,  HOTBED_MODE_HBM_DIRECT,
                               10000,    128, HOTBED_POOL_NONE, HOTBED_MODE_CACHE,
                               10000,    128, HOTBED_POOL_NONE, HOTBED_MODE_DEFAULT,
                               INT64_MIN};
static const int64_t cuda[] = {262144,   128, HOTBED_POOL_NONE, HOTBED_MODE_HBM_DIRECT,
                               262144,   128, HOTBED_POOL_SUM,  HOTBED_MODE_HBM_DIRECT,
                               262144,   16,  HOTBED_POOL_SUM,  HOTBED_MODE_HBM_DIRECT,
                               4096,     16,  HOTBED_POOL_SUM,  HOTBED_MODE_HBM_DIRECT,
                               262144,   128, HOTBED_POOL_NONE, HOTBED_MODE_CACHE,
                               262144,   128, HOTBED_POOL_NONE, HOTBED_MODE_DEFAULT,
                               INT64_MIN};

static const int64_t flush_host[] = {10000, 128, HOTBED_POOL_NONE, HOTBED_MODE_CACHE, INT64_MIN};
static const int64_t flush_cuda[] = {262144, 128, HOTBED_POOL_NONE, HOTBED_MODE_CACHE, INT64_MIN};

const bench_case bench_storage_cases[] = {
    {"storage/prefetch", run_prefetch, names, host, cuda},
    {"storage/forward", run_forward, names, host, cuda},
    {"storage/backward_sgd", run_backward_sgd, names, host, cuda},
    {"storage/backward_adam", run_backward_adam, names, host, cuda},
    {"storage/step_adam", run_step, names, host, cuda},
    {"storage/eval", run_eval, names, host, cuda},
    {"storage/flush", run_flush, names, flush_host, flush_cuda},
    {"storage/meter_request", run_request, names, flush_host, flush_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
