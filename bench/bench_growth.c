/* bench/bench_growth.c - tables that grow: a growth, the poll that requests it, and steps after
 * several growths.
 *
 * Every table of a step has the same number of keys, which is its final capacity. With `grows` 0
 * the table had this capacity from the start, and its kernels have no segments to search; otherwise
 * it doubled `growths` times until all keys were in it. Batches are distinct keys from the whole
 * table, half of which were added after the last growth.
 *
 * cpu_us is the mean processor time of all threads. Unlike the elapsed time, it does not depend on
 * other programs. */
#include "bench/bench.h"

#include "base/clock.h"
#include "hotbed/storage.h"

#include <stdlib.h>

enum { DIM = 32 };

/* Processor time in seconds, and the number of measurements. */
typedef struct processor {
    double start, sum;
    uint64_t n;
} processor;

static void processor_start(processor *p) {
    p->start = bench_own_time();
}

static void processor_stop(processor *p) {
    p->sum += bench_own_time() - p->start;
    p->n++;
}

static void processor_report(bench_state *state, const processor *p) {
    bench_counter(state, "cpu_us", p->n > 0 ? 1e6 * p->sum / (double)p->n : 0);
}

typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_batch batch;
    uint64_t *numbers;
    uint64_t *keys;   /* on the device */
    float *rows;      /* the output, then the gradients */
    uint64_t n, size; /* number of keys of a batch, and of the table */
} fixture;

static hotbed_status create_storage(
    uint64_t capacity, uint64_t max_capacity, hotbed_stream *stream, hotbed_storage **out) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    table.name = "table";
    table.dim = DIM;
    table.capacity = capacity;
    table.max_capacity = max_capacity;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    return hotbed_storage_create(&options, stream, out);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Make the first n of `numbers` the batch. */
static bool upload(bench_state *state, fixture *f, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        f->numbers[i] = bench_key(f->numbers[i]);
    f->batch.batch_size = (uint32_t)n;
    f->batch.num_keys = n;
    return bench_ok(state, hotbed_copy(f->keys, f->numbers, n * sizeof *f->keys, f->stream)) &&
           bench_ok(state, hotbed_stream_sync(f->stream));
}

/* Insert keys 0 .. keys-1, growing the table when the next batch does not fit, and then to its size. */
static bool fill(bench_state *state, fixture *f, uint64_t capacity, uint64_t keys) {
    for (uint64_t first = 0, n; first < keys; first += n) {
        if (first == capacity) {
            capacity *= 2;
            if (!bench_ok(state, hotbed_storage_grow(f->storage, 0, capacity, f->stream)))
                return false;
        }
        n = capacity - first < f->n ? capacity - first : f->n;
        for (uint64_t i = 0; i < n; i++)
            f->numbers[i] = first + i;
        if (!upload(state, f, n) ||
            !bench_ok(state, hotbed_storage_prefetch(f->storage, &f->batch, f->ticket, f->stream)))
            return false;
    }
    if (capacity < f->size &&
        !bench_ok(state, hotbed_storage_grow(f->storage, 0, f->size, f->stream)))
        return false;
    return bench_ok(state, hotbed_stream_sync(f->stream)); /* no key was refused */
}

/* Create the storage and insert its keys: half of them with `halves` 1, all with 2. */
static bool prepare(bench_state *state, fixture *f, uint64_t halves) {
    *f = (fixture){
        .stream = bench_stream(state),
        .n = (uint64_t)bench_arg(state, 0),
        .size = (uint64_t)bench_arg(state, 1)};
    uint64_t capacity = f->size >> bench_arg(state, 3);
    f->numbers = malloc(f->n * sizeof *f->numbers);
    f->keys = bench_alloc(state, f->n * sizeof *f->keys);
    f->rows = bench_alloc(state, f->n * DIM * sizeof *f->rows);
    f->batch = (hotbed_batch){.size = sizeof f->batch, .keys = f->keys};
    if (f->numbers == NULL || f->keys == NULL || f->rows == NULL) {
        bench_skip(state, "no memory");
        return false;
    }
    return bench_ok(
               state,
               create_storage(
                   capacity, bench_arg(state, 2) != 0 ? 2 * f->size : 0, f->stream, &f->storage)) &&
           bench_ok(
               state,
               hotbed_ticket_create(f->storage, f->n, (uint32_t)f->n, f->stream, &f->ticket)) &&
           fill(state, f, capacity, f->size / 2 * halves);
}

static hotbed_status prefetch(fixture *f) {
    return hotbed_storage_prefetch(f->storage, &f->batch, f->ticket, f->stream);
}

static hotbed_status step(fixture *f) {
    hotbed_status status = prefetch(f);
    if (status == HOTBED_OK)
        status = hotbed_storage_forward(f->storage, f->ticket, f->rows, 0, f->stream);
    if (status == HOTBED_OK)
        status = hotbed_storage_backward(f->storage, f->ticket, f->rows, 0, f->stream);
    return status;
}

static hotbed_status eval(fixture *f) {
    return hotbed_storage_eval(f->storage, &f->batch, f->rows, 0, f->stream);
}

/* Time `call` on batches of keys of the table, or of as many keys that are not in it.  A key moves
 * `rows` rows; with 0, its line of the index is all that must be read. */
static void time_call(
    bench_state *state, hotbed_status (*call)(fixture *f), bool absent, uint64_t rows) {
    fixture f;
    processor used = {0};
    bool ok = prepare(state, &f, 2);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        uint64_t first = bench_random(round, f.size);
        for (uint64_t i = 0; i < f.n;
             i++) /* distinct, because the step is odd and the table's size is a power of two */
            f.numbers[i] = (absent ? f.size : 0) + (first + i * 40503) % f.size;
        ok = upload(state, &f, f.n);
        bench_flush_cache(f.stream);
        ok = ok && bench_ok(state, hotbed_stream_sync(f.stream));
        processor_start(&used);
        bench_start(f.stream);
        ok = ok && bench_ok(state, call(&f));
        bench_stop(f.stream, state);
        processor_stop(&used);
    }
    processor_report(state, &used);
    bench_items(state, (int64_t)f.n);
    if (rows == 0)
        bench_lines(state, f.n, f.size);
    else
        bench_bytes(state, (int64_t)(f.n * (sizeof *f.keys + 128 + rows * DIM * sizeof(float))));
    hotbed_ticket_destroy(f.ticket);
    hotbed_storage_destroy(f.storage);
    free(f.numbers);
}

static void run_prefetch(bench_state *state) {
    time_call(state, prefetch, false, 0);
}

/* Insert keys into a table that is half full, and erase them. The last growth was before them, so the
 * newest part is empty. */
static void run_insert(bench_state *state) {
    fixture f;
    processor used = {0};
    bool ok = prepare(state, &f, 1);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        for (uint64_t i = 0; i < f.n; i++)
            f.numbers[i] = f.size * (round + 1) + i;
        ok = upload(state, &f, f.n);
        bench_flush_cache(f.stream);
        ok = ok && bench_ok(state, hotbed_stream_sync(f.stream));
        processor_start(&used);
        bench_start(f.stream);
        ok = ok && bench_ok(state, prefetch(&f));
        bench_stop(f.stream, state);
        processor_stop(&used);
        ok = ok && bench_ok(state, hotbed_ticket_cancel(f.ticket, f.stream)) &&
             bench_ok(state, hotbed_storage_erase(f.storage, 0, f.n, f.keys, NULL, f.stream)) &&
             bench_ok(state, hotbed_stream_sync(f.stream)); /* no key was refused */
    }
    processor_report(state, &used);
    bench_items(state, (int64_t)f.n);
    bench_bytes(state, (int64_t)(f.n * (sizeof *f.keys + 256 + DIM * sizeof(float))));
    hotbed_ticket_destroy(f.ticket);
    hotbed_storage_destroy(f.storage);
    free(f.numbers);
}

/* Reads and writes the row in forward; reads the gradient, reads and writes the row in backward. */
static void run_step(bench_state *state) {
    time_call(state, step, false, 5);
}

static void run_eval_absent(bench_state *state) {
    time_call(state, eval, true, 1);
}

/* --- growths ---------------------------------------------------------------------------------- */

/* Double a table: measures the time from the call until the new slots are free. call_us is the time
 * that the caller waits for the memory. */
static void run_grow(bench_state *state) {
    uint64_t capacity = (uint64_t)bench_arg(state, 0);
    hotbed_stream *stream = bench_stream(state);
    hotbed_segment_info segment = {.size = sizeof segment};
    processor used = {0};
    double calls = 0;
    for (bool ok = true; ok && bench_next(state);) {
        hotbed_storage *storage = NULL;
        ok = bench_ok(state, create_storage(capacity, 2 * capacity, stream, &storage));
        processor_start(&used);
        double start = hotbed_monotonic_seconds();
        ok = ok && bench_ok(state, hotbed_storage_grow(storage, 0, 2 * capacity, stream));
        double called = hotbed_monotonic_seconds();
        ok = ok && bench_ok(state, hotbed_stream_sync(stream));
        bench_seconds(state, hotbed_monotonic_seconds() - start);
        processor_stop(&used);
        calls += called - start;
        ok = ok && bench_ok(state, hotbed_storage_segment(storage, 0, 0, &segment));
        hotbed_storage_destroy(storage);
    }
    processor_report(state, &used);
    bench_counter(state, "call_us", used.n > 0 ? 1e6 * calls / (double)used.n : 0);
    bench_items(state, (int64_t)capacity);
    bench_bytes(state, (int64_t)(segment.slots * 16)); /* the cleared bytes */
}

/* A poll that counts all slots. */
static void run_poll(bench_state *state) {
    uint64_t capacity = (uint64_t)bench_arg(state, 0);
    hotbed_stream *stream = bench_stream(state);
    hotbed_storage *storage = NULL;
    hotbed_table_info info = {.size = sizeof info};
    processor used = {0};
    bool ok = bench_ok(state, create_storage(capacity, 2 * capacity, stream, &storage)) &&
              bench_ok(state, hotbed_storage_table(storage, 0, &info));
    while (ok && bench_next(state)) {
        bench_flush_cache(stream);
        ok = bench_ok(state, hotbed_stream_sync(stream));
        processor_start(&used);
        bench_start(stream);
        ok = ok && bench_ok(state, hotbed_storage_poll_growth(storage, stream, NULL));
        bench_stop(stream, state);
        processor_stop(&used);
    }
    processor_report(state, &used);
    bench_items(state, (int64_t)info.slots);
    bench_bytes(state, (int64_t)(info.slots * 8));
    hotbed_storage_destroy(storage);
}

/* --- cases ------------------------------------------------------------------------------------ */

static const char *const step_names[] = {"keys", "size", "grows", "growths", NULL};
static const char *const names[] = {"capacity", NULL};
#define STEPS(keys, size)                                                                          \
    {                                                                                              \
        keys, size, 0, 0, keys, size, 1, 0, keys, size, 1, 1, keys, size, 1, 2, keys, size, 1, 4,  \
            keys, size, 1, 6, INT64_MIN                                                            \
    }
static const int64_t host_steps[] = STEPS(1 << 16, 1 << 19);
static const int64_t cuda_steps[] = STEPS(1 << 18, 1 << 24);
static const int64_t host_tables[] = {1 << 14, 1 << 19, INT64_MIN};
static const int64_t cuda_tables[] = {1 << 14, 1 << 24, INT64_MIN};

const bench_case bench_growth_cases[] = {
    {"growth/grow", run_grow, names, host_tables, cuda_tables},
    {"growth/poll", run_poll, names, host_tables, cuda_tables},
    {"growth/prefetch", run_prefetch, step_names, host_steps, cuda_steps},
    {"growth/insert", run_insert, step_names, host_steps, cuda_steps},
    {"growth/step", run_step, step_names, host_steps, cuda_steps},
    {"growth/eval_absent", run_eval_absent, step_names, host_steps, cuda_steps},
    {NULL, NULL, NULL, NULL, NULL},
};
