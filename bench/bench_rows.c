/* bench/bench_rows.c - rows by key in a storage, and by slot in a flat table: read, write, remove, export. */
#include "bench/bench.h"

#include "hotbed/export.h"
#include "hotbed/flat_table.h"
#include "hotbed/stats.h"
#include "hotbed/storage.h"

#include <stdlib.h>

enum { ROUNDS = 16 }; /* the table has ROUNDS batches of n rows */

typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;  /* with one hash table; or NULL */
    hotbed_flat_table *table; /* or NULL */
    uint64_t n;
    uint32_t dim;
    uint64_t *chosen;   /* [n] on the host: keys or slots */
    uint64_t *keys;     /* [n] */
    hotbed_rows dense;  /* [n] weights */
    uint64_t *exported; /* [ROUNDS * n] on the host, or NULL */
} fixture;

/* Choose n distinct keys, or distinct slots in random order, for round number `round`. */
static bool choose(bench_state *state, fixture *f, uint64_t round) {
    uint64_t all = ROUNDS * f->n;
    for (uint64_t i = 0; i < f->n; i++) {
        uint64_t number = i * ROUNDS + round % ROUNDS;
        /* Odd factor modulo a power of two: every number is another slot. */
        f->chosen[i] = f->table != NULL ? number * 0x9e3779b1U % all : bench_key(number);
    }
    return bench_ok(state, hotbed_copy(f->keys, f->chosen, f->n * sizeof *f->keys, f->stream)) &&
           bench_ok(state, hotbed_stream_sync(f->stream));
}

static hotbed_status create_storage(fixture *f) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    table.name = "rows";
    table.dim = f->dim;
    table.capacity = ROUNDS * f->n;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    return hotbed_storage_create(&options, f->stream, &f->storage);
}

static hotbed_status create_table(hotbed_memory_kind memory, fixture *f) {
    hotbed_flat_table_options options = {
        .size = sizeof options, .dim = f->dim, .capacity = ROUNDS * f->n, .memory = memory};
    return hotbed_flat_table_create(&options, f->stream, &f->table);
}

static hotbed_status get(fixture *f) {
    return hotbed_storage_get_rows(f->storage, 0, f->n, f->keys, &f->dense, NULL, f->stream);
}

static hotbed_status set(fixture *f) {
    return hotbed_storage_set_rows(f->storage, 0, f->n, f->keys, &f->dense, f->stream);
}

static hotbed_status erase(fixture *f) {
    return hotbed_storage_erase(f->storage, 0, f->n, f->keys, NULL, f->stream);
}

static hotbed_status load(fixture *f) {
    return hotbed_flat_table_load(f->table, f->n, f->keys, &f->dense, f->stream);
}

static hotbed_status store(fixture *f) {
    return hotbed_flat_table_store(f->table, f->n, f->keys, &f->dense, f->stream);
}

/* Fill all rows with `fill`; memory 0: in a storage. */
static bool prepare(
    bench_state *state, hotbed_memory_kind memory, hotbed_status (*fill)(fixture *f), fixture *f) {
    *f = (fixture){.stream = bench_stream(state)};
    f->n = (uint64_t)bench_arg(state, 0);
    f->dim = (uint32_t)bench_arg(state, 1);
    size_t row = f->dim * sizeof(float);
    f->chosen = malloc(f->n * sizeof *f->chosen);
    f->keys = bench_alloc(state, f->n * sizeof *f->keys);
    f->dense.weights = bench_alloc(state, f->n * row);
    bool ok = f->chosen != NULL && f->keys != NULL && f->dense.weights != NULL;
    if (!ok)
        bench_skip(state, "no memory");
    ok = ok && bench_ok(state, hotbed_fill(f->dense.weights, 0, f->n * row, f->stream)) &&
         bench_ok(state, memory == 0 ? create_storage(f) : create_table(memory, f));
    for (uint64_t round = 0; ok && round < ROUNDS; round++)
        ok = choose(state, f, round) && bench_ok(state, fill(f)) &&
             bench_ok(state, hotbed_stream_sync(f->stream));
    return ok;
}

static void finish(fixture *f) {
    hotbed_storage_destroy(f->storage);
    hotbed_flat_table_destroy(f->table);
    free(f->chosen);
    free(f->exported);
}

/* Time `call`. `after`, which may be NULL, reverts its effect. */
static void time_call(
    bench_state *state, hotbed_memory_kind memory, hotbed_status (*fill)(fixture *f),
    hotbed_status (*call)(fixture *f), hotbed_status (*after)(fixture *f)) {
    fixture f;
    bool ok = prepare(state, memory, fill, &f);
    for (uint64_t round = 0; ok && bench_next(state); round++) {
        ok = choose(state, &f, round * 5);
        bench_flush_cache(f.stream);
        bench_start(f.stream);
        ok = ok && bench_ok(state, call(&f));
        bench_stop(f.stream, state);
        if (after != NULL)
            ok = ok && bench_ok(state, after(&f)) && bench_ok(state, hotbed_stream_sync(f.stream));
    }
    bench_items(state, (int64_t)f.n);
    /* read the key, read and write the row; a removal reads a line of keys, and reads and writes its meta */
    uint64_t moved = after == NULL ? 2 * f.dim * sizeof(float) : 128 + 2 * sizeof(uint64_t);
    bench_bytes(state, (int64_t)(f.n * (moved + sizeof *f.keys)));
    finish(&f);
}

static void get_rows(bench_state *state) {
    time_call(state, 0, set, get, NULL);
}

static void set_rows(bench_state *state) {
    time_call(state, 0, set, set, NULL);
}

static void erase_rows(bench_state *state) {
    time_call(state, 0, set, erase, set);
}

/* Export all keys of the table to host memory, which blocks. */
static void export_keys(bench_state *state) {
    fixture f;
    bool ok = prepare(state, 0, set, &f);
    uint64_t all = ROUNDS * f.n;
    uint64_t n = 0;
    f.exported = malloc(all * sizeof *f.exported);
    if (f.exported == NULL)
        bench_skip(state, "no memory");
    while (ok && bench_next(state)) {
        bench_flush_cache(f.stream);
        bench_start(f.stream);
        ok = bench_ok(
            state, hotbed_storage_export_keys(f.storage, 0, all, f.exported, NULL, &n, f.stream));
        bench_stop(f.stream, state);
    }
    bench_items(state, (int64_t)n);
    /* read the whole index, write the keys */
    bench_bytes(state, (int64_t)(all * 16 * 100 / 97 + n * sizeof *f.exported));
    finish(&f);
}

/* Export keys and rows of n slots, of the next n in each iteration. */
static void export_batch(bench_state *state) {
    fixture f;
    hotbed_export batch = {.size = sizeof batch};
    hotbed_table_info info = {.size = sizeof info};
    bool ok =
        prepare(state, 0, set, &f) && bench_ok(state, hotbed_storage_table(f.storage, 0, &info));
    batch.slots = f.n;
    batch.keys = f.keys;
    batch.rows.weights = f.dense.weights;
    batch.count = bench_alloc(state, sizeof *batch.count);
    while (ok && batch.count != NULL && bench_next(state)) {
        bench_flush_cache(f.stream);
        bench_start(f.stream);
        ok = bench_ok(state, hotbed_storage_export(f.storage, &batch, f.stream));
        bench_stop(f.stream, state);
        batch.first += f.n;
        if (batch.first + f.n > info.slots)
            batch.first = 0;
    }
    uint64_t row = f.dim * sizeof(float);
    double load = (double)(ROUNDS * f.n) / (double)(info.slots > 0 ? info.slots : 1);
    bench_items(state, (int64_t)f.n);
    /* read the meta of each slot; of slots with a key, read and write key and row */
    bench_bytes(state, (int64_t)(load * (double)(f.n * 2 * (row + 8))) + (int64_t)(8 * f.n));
    finish(&f);
}

/* Count the used slots of each bucket. */
static void histogram(bench_state *state) {
    fixture f;
    bool ok = prepare(state, 0, set, &f);
    uint64_t *loads = bench_alloc(state, HOTBED_LOADS * sizeof *loads);
    while (ok && loads != NULL && bench_next(state)) {
        bench_flush_cache(f.stream);
        bench_start(f.stream);
        ok = bench_ok(state, hotbed_storage_load_histogram(f.storage, 0, loads, f.stream));
        bench_stop(f.stream, state);
    }
    bench_items(state, (int64_t)(ROUNDS * f.n));
    bench_bytes(state, (int64_t)(ROUNDS * f.n * 8 * 100 / 97)); /* read the metas */
    finish(&f);
}

static void load_rows(bench_state *state) {
    time_call(state, (hotbed_memory_kind)bench_arg(state, 2), store, load, NULL);
}

static void store_rows(bench_state *state) {
    time_call(state, (hotbed_memory_kind)bench_arg(state, 2), store, store, NULL);
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
    {"rows/erase", erase_rows, by_key, by_key_host, by_key_cuda},
    {"rows/export_keys", export_keys, by_key, by_key_host, by_key_cuda},
    {"rows/export", export_batch, by_key, by_key_host, by_key_cuda},
    {"rows/load_histogram", histogram, by_key, by_key_host, by_key_cuda},
    {"rows/flat_load", load_rows, by_slot, by_slot_host, by_slot_cuda},
    {"rows/flat_store", store_rows, by_slot, by_slot_host, by_slot_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
