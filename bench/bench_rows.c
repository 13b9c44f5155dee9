/* bench/bench_rows.c - rows by key in a storage, and by slot in a flat table: copied out and in. */
#include "bench/bench.h"

#include "hotbed/flat_table.h"
#include "hotbed/storage.h"

#include <stdlib.h>

enum { ROUNDS = 16 }; /* of n rows each are in the table */

typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;  /* one hash table, or NULL */
    hotbed_flat_table *table; /* or NULL */
    uint64_t n;
    uint32_t dim;
    uint64_t *chosen;  /* [n] on the host: keys or slots */
    uint64_t *keys;    /* [n] */
    hotbed_rows dense; /* [n] weights */
} fixture;

/* n distinct keys, or slots in no order, of round number `round`. */
static bool choose(bench_state *state, fixture *f, uint64_t round) {
    uint64_t all = ROUNDS * f->n;
    for (uint64_t i = 0; i < f->n; i++) {
        uint64_t number = i * ROUNDS + round % ROUNDS;
        /* An odd factor and a power of two: every slot once. */
        f->chosen[i] = f->table != NULL ? number * 0x9e3779b1U % all : bench_key(number);
    }
    return bench_ok(state, hotbed_copy(f->keys, f->chosen, f->n * sizeof *f->keys, f->stream)) &&
           bench_ok(state, hotbed_stream_sync(f->stream));
}

static hotbed_status create_storage(fixture *f) {
    hotbed_table_options table;
    hotbed_storage_options options;
    hotbed_table_options_init(&table);
    table.name = "rows";
    table.dim = f->dim;
    table.capacity = ROUNDS * f->n;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    return hotbed_storage_create(&options, f->stream, &f->storage);
}

static hotbed_status create_table(hotbed_memory_kind memory, fixture *f) {
    hotbed_flat_table_options options;
    hotbed_flat_table_options_init(&options);
    options.dim = f->dim;
    options.capacity = ROUNDS * f->n;
    options.memory = memory;
    return hotbed_flat_table_create(&options, f->stream, &f->table);
}

static hotbed_status get(fixture *f) {
    return hotbed_storage_get_rows(f->storage, 0, f->n, f->keys, &f->dense, NULL, f->stream);
}

static hotbed_status set(fixture *f) {
    return hotbed_storage_set_rows(f->storage, 0, f->n, f->keys, &f->dense, f->stream);
}

static hotbed_status load(fixture *f) {
    return hotbed_flat_table_load(f->table, f->n, f->keys, &f->dense, f->stream);
}

static hotbed_status store(fixture *f) {
    return hotbed_flat_table_store(f->table, f->n, f->keys, &f->dense, f->stream);
}

/* All rows are written once by `fill`; then `call` is timed.  memory 0: a storage. */
static void time_call(
    bench_state *state, hotbed_memory_kind memory, hotbed_status (*fill)(fixture *f),
    hotbed_status (*call)(fixture *f)) {
    fixture f = {.stream = bench_stream(state)};
    f.n = (uint64_t)bench_arg(state, 0);
    f.dim = (uint32_t)bench_arg(state, 1);
    uint64_t row = f.dim * sizeof(float);
    f.chosen = malloc(f.n * sizeof *f.chosen);
    f.keys = bench_alloc(state, f.n * sizeof *f.keys);
    f.dense.weights = bench_alloc(state, f.n * row);
    bool ok = f.chosen != NULL && f.keys != NULL && f.dense.weights != NULL;
    if (!ok)
        bench_skip(state, "no memory");
    ok = ok && bench_ok(state, hotbed_fill(f.dense.weights, 0, f.n * row, f.stream)) &&
         bench_ok(state, memory == 0 ? create_storage(&f) : create_table(memory, &f));
    for (uint64_t round = 0; ok && round < ROUNDS; round++)
        ok = choose(state, &f, round) && bench_ok(state, fill(&f)) &&
             bench_ok(state, hotbed_stream_sync(f.stream));
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        ok = choose(state, &f, round * 5);
        bench_flush_cache(f.stream);
        bench_start(f.stream);
        ok = ok && bench_ok(state, call(&f));
        bench_stop(f.stream, state);
    }
    bench_items(state, (int64_t)f.n);
    bench_bytes(state, (int64_t)(f.n * (2 * row + sizeof *f.keys)));
    hotbed_storage_destroy(f.storage);
    hotbed_flat_table_destroy(f.table);
    free(f.chosen);
}

static void get_rows(bench_state *state) {
    time_call(state, 0, set, get);
}

static void set_rows(bench_state *state) {
    time_call(state, 0, set, set);
}

static void load_rows(bench_state *state) {
    time_call(state, (hotbed_memory_kind)bench_arg(state, 2), store, load);
}

static void store_rows(bench_state *state) {
    time_call(state, (hotbed_memory_kind)bench_arg(state, 2), store, store);
}

static const char *const by_key[] = {"n", "dim", NULL};
static const int64_t by_key_host[] = {16384, 128, INT64_MIN};
static const int64_t by_key_cuda[] = {262144, 128, 262144, 16, INT64_MIN};
static const char *const by_slot[] = {"n", "dim", "memory", NULL};
static const int64_t by_slot_host[] = {
    16384, 128, HOTBED_MEMORY_DEVICE, 16384, 128, HOTBED_MEMORY_FILE, INT64_MIN};
static const int64_t by_slot_cuda[] = {
    262144, 128, HOTBED_MEMORY_DEVICE,   262144,   128, HOTBED_MEMORY_PINNED,
    32768,  128, HOTBED_MEMORY_PAGEABLE, INT64_MIN};

const bench_case bench_rows_cases[] = {
    {"rows/get", get_rows, by_key, by_key_host, by_key_cuda},
    {"rows/set", set_rows, by_key, by_key_host, by_key_cuda},
    {"rows/flat_load", load_rows, by_slot, by_slot_host, by_slot_cuda},
    {"rows/flat_store", store_rows, by_slot, by_slot_host, by_slot_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
