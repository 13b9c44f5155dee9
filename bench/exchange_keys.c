/* bench/exchange_keys.c - an exchange of distinct keys, their rows and gradients, and all-to-alls
 * of as many bytes. */
#include "bench/exchange.h"

#include "base/error.h"
#include "dist/comm/comm.h"

#include <math.h>
#include <stdlib.h>

enum { BATCHES = 4, KEYS = 131072, DIM = 128, WARM_UP = 2 * BATCHES };

static const float rate = 0.125F;

/* --- all-to-alls of bytes ------------------------------------------------------------------- */

typedef struct bare {
    const exchange_rank *me;
    hotbed_memory send, recv;
    hotbed_event *marks[2];
    uint64_t part; /* bytes for each rank */
} bare;

typedef hotbed_status (*bare_call)(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

static hotbed_status copy_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    return hotbed_copy(recv, send, hotbed_comm_size(comm) * bytes, stream);
}

/* The median time of the slowest rank. */
static hotbed_status time_bare(bare *b, bare_call call, double *out) {
    enum { TIMES = 15 };
    double seconds[TIMES];
    const exchange_rank *me = b->me;
    for (int i = 0; i < TIMES + 2; i++) { /* 2 warm up */
        HOTBED_TRY(hotbed_comm_barrier(me->comm, me->stream));
        HOTBED_TRY(hotbed_event_record(b->marks[0], me->stream));
        HOTBED_TRY(call(me->comm, b->part, b->send.data, b->recv.data, me->stream));
        HOTBED_TRY(hotbed_event_record(b->marks[1], me->stream));
        HOTBED_TRY(hotbed_stream_sync(me->stream));
        HOTBED_TRY(hotbed_event_seconds(b->marks[0], b->marks[1], &seconds[i % TIMES]));
    }
    *out = bench_median(seconds, TIMES);
    return exchange_slowest(me, out, 1);
}

static hotbed_status open_bare(bare *b) {
    hotbed_stream *s = b->me->stream;
    size_t bytes = b->me->size * b->part;
    HOTBED_TRY(hotbed_memory_alloc(s, HOTBED_MEMORY_DEVICE, bytes, NULL, &b->send));
    HOTBED_TRY(hotbed_memory_alloc(s, HOTBED_MEMORY_DEVICE, bytes, NULL, &b->recv));
    HOTBED_TRY(hotbed_event_create(s, &b->marks[0]));
    HOTBED_TRY(hotbed_event_create(s, &b->marks[1]));
    HOTBED_TRY(hotbed_fill(b->recv.data, 0xff, bytes, s));
    return hotbed_fill(b->send.data, 0x35, bytes, s);
}

static hotbed_status close_bare(bare *b, hotbed_status status) {
    (void)!hotbed_stream_sync(b->me->stream);
    hotbed_event_destroy(b->marks[0]);
    hotbed_event_destroy(b->marks[1]);
    hotbed_memory_free(&b->send);
    hotbed_memory_free(&b->recv);
    return status;
}

/* Time all-to-alls of `bytes` bytes of each rank, in equal parts. */
static hotbed_status measure_raw(const exchange_rank *me, uint64_t bytes, exchange_raw *out) {
    bare b = {.me = me, .part = (bytes / me->size + 15) / 16 * 16};
    hotbed_status status = open_bare(&b);
    out->bytes = (double)(me->size * b.part);
    if (status == HOTBED_OK)
        status = time_bare(&b, hotbed_comm_bare_all_to_all, &out->own);
    if (status == HOTBED_OK)
        status = time_bare(&b, hotbed_comm_all_to_all, &out->comm);
    return close_bare(&b, status);
}

static hotbed_status measure_copy(const exchange_rank *me, double *out) {
    bool cuda = hotbed_stream_backend(me->stream) == HOTBED_BACKEND_CUDA;
    bare b = {.me = me, .part = ((size_t)1 << (cuda ? 30 : 26)) / me->size};
    double seconds = 0;
    hotbed_status status = open_bare(&b);
    if (status == HOTBED_OK)
        status = time_bare(&b, copy_all, &seconds);
    *out = 2.0 * (double)(b.part * me->size) / seconds;
    return close_bare(&b, status);
}

/* --- keys and rows ---------------------------------------------------------------------------- */

/* The span of a batch's keys: batch b of rank r has keys b * span + r * n / 2 + i, so that all but
 * the outermost keys occur on two ranks. */
static uint64_t span_of(uint64_t n, uint32_t world) {
    return n / 2 * (world + 1);
}

static uint64_t key_of(uint64_t n, uint32_t world, uint32_t batch, uint32_t rank, uint64_t i) {
    return batch * span_of(n, world) + rank * (n / 2) + i;
}

/* The number of ranks that have key number `at` of a batch's span. */
static uint32_t owners_of(uint64_t n, uint32_t world, uint64_t at) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < world; r++)
        count += at >= r * (n / 2) && at < r * (n / 2) + n;
    return count;
}

/* A row begins as its key mod 100000 (HOTBED_INIT_DEBUG). Each step of its batch subtracts the rate
 * once for each rank that has the key, because gradients are 1. All values are exact in floats. */
static hotbed_status check_rows(exchange_run *run) {
    uint32_t world = run->me->size, rank = run->me->rank;
    float *rows = malloc(run->output.bytes);
    if (rows == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory to check rows");
    hotbed_status status = HOTBED_OK;
    for (uint32_t batch = 0; batch < BATCHES && status == HOTBED_OK; batch++) {
        uint64_t steps = run->steps / BATCHES + (batch < run->steps % BATCHES);
        status = exchange_run_forward(run, batch);
        if (status == HOTBED_OK)
            status = hotbed_copy(rows, run->output.data, run->output.bytes, run->me->stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_sync(run->me->stream);
        for (uint64_t i = 0; i < run->n * DIM && status == HOTBED_OK; i++) {
            uint64_t key = key_of(run->n, world, batch, rank, i / DIM);
            uint32_t ranks = owners_of(run->n, world, key - batch * span_of(run->n, world));
            float want = (float)(key % 100000) - rate * (float)(steps * ranks);
            if (rows[i] != want)
                status = hotbed_fail(
                    HOTBED_ERR_CORRUPT, "%s, rank %u, key %llu: %g, should be %g",
                    exchange_plans[run->plan], rank, (unsigned long long)key, (double)rows[i],
                    (double)want);
        }
    }
    free(rows);
    return status;
}

static hotbed_status time_plan(exchange_run *run) {
    exchange_result *result = run->me->result;
    uint32_t steps = run->me->p->steps;
    HOTBED_TRY(exchange_run_steps(run, WARM_UP));
    HOTBED_TRY(exchange_run_time(run, steps, &result->eager[run->plan]));
    if (run->plan != HOTBED_PLAN_TWO_PHASE) {
        HOTBED_TRY(exchange_run_record(run));
        HOTBED_TRY(exchange_run_time(run, steps, &result->graph[run->plan]));
    }
    return exchange_is_narrow(run->me->p) ? HOTBED_OK : check_rows(run);
}

static hotbed_status measure_plan(
    const exchange_rank *me, hotbed_plan plan, const exchange_batches *batches) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    exchange_run run;
    table.name = "t";
    table.dim = DIM;
    table.capacity = BATCHES * span_of(batches->samples, me->size);
    table.initializer.kind = HOTBED_INIT_DEBUG;
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    storage.optimizer.learning_rate = rate;
    hotbed_status status =
        exchange_run_create(me, &storage, plan, me->result->capacity, batches, &run);
    if (status == HOTBED_OK)
        status = time_plan(&run);
    (void)!hotbed_stream_sync(me->stream);
    exchange_run_destroy(&run);
    return status;
}

static hotbed_status measure_plans(const exchange_rank *me, const exchange_batches *batches) {
    for (int plan = HOTBED_PLAN_FIXED; plan <= HOTBED_PLAN_ONE_SIDED; plan++)
        if (exchange_measures(me->p, plan))
            HOTBED_TRY(measure_plan(me, (hotbed_plan)plan, batches));
    return HOTBED_OK;
}

hotbed_status exchange_measure_keys(const exchange_rank *me) {
    exchange_result *result = me->result;
    uint64_t n = (uint64_t)floor(KEYS * me->p->scale) / 2 * 2;
    double mean = (double)n / me->size;
    int64_t *keys = malloc(BATCHES * n * sizeof *keys);
    float *gradients = malloc(n * DIM * sizeof *gradients);
    result->keys = n;
    result->row_bytes = DIM * sizeof(float);
    result->capacity = me->size == 1 ? n : (uint64_t)(mean + 6 * sqrt(mean)) + 64;
    exchange_batches batches = {
        .keys = keys,
        .count = BATCHES,
        .features = 1,
        .samples = (uint32_t)n,
        .distinct = true,
        .gradients = gradients,
    };
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || gradients == NULL)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for keys");
    for (uint64_t i = 0; i < BATCHES * n && status == HOTBED_OK; i++)
        keys[i] = (int64_t)key_of(n, me->size, (uint32_t)(i / n), me->rank, i % n);
    for (uint64_t i = 0; i < n * DIM && status == HOTBED_OK; i++)
        gradients[i] = 1.0F;
    if (status == HOTBED_OK)
        status = measure_copy(me, &result->copy);
    if (status == HOTBED_OK)
        status = measure_raw(me, n * sizeof *keys, &result->raw_keys);
    if (status == HOTBED_OK)
        status = measure_raw(me, n * result->row_bytes, &result->raw_rows);
    if (status == HOTBED_OK)
        status = measure_plans(me, &batches);
    free(keys);
    free(gradients);
    return status;
}
