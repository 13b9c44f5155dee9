/* tests/checkpoint/test_checkpoint_external.c - checkpoints, snapshots and exports of rows in an external
 * store. */
#include "checkpoint/verify.h"
#include "hotbed/export.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/bad_store.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HASH = 0, PAIR = 1, STATIC = 2, TABLES = 3, KEYS = 150, ROWS = 60 };

/* A storage over an external store, or in device memory. */
typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_external *external;
    bad_store bad;
} fixture;

typedef enum store_kind { NO_STORE = 0, MEMORY = 1, ROCKSDB = 2, BAD = 3 } store_kind;

static hotbed_status create_store(
    fixture *b, store_kind kind, const hotbed_external_options *options, const char *path) {
    if (kind == MEMORY)
        return hotbed_external_create_memory(options, &b->external);
    if (kind == ROCKSDB)
        return hotbed_external_create_rocksdb(path, NULL, options, &b->external);
    bad_store_start(&b->bad);
    return hotbed_external_create(options, &bad_store_calls, &b->bad, &b->external);
}

/* Create a storage with tables "hash", "pair" and "static"; false: this build lacks the store. */
static bool open_fixture(fixture *b, hotbed_backend backend, store_kind kind, const char *path) {
    static const char *const names[] = {"hash", "pair", "static"};
    hotbed_table_options tables[TABLES];
    hotbed_external_table rows[TABLES];
    hotbed_storage_options options;
    hotbed_external_options store;
    memset(b, 0, sizeof *b);
    for (int t = 0; t < TABLES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = names[t];
        tables[t].dim = 5 + (uint32_t)t;
        tables[t].capacity = t == STATIC ? ROWS : 2 * (uint64_t)KEYS;
        tables[t].upper_capacity = kind == NO_STORE ? 0 : 24;
    }
    tables[PAIR].dtype = HOTBED_BF16;
    tables[PAIR].score = HOTBED_SCORE_TIMESTAMP_LFU;
    tables[STATIC].kind = HOTBED_TABLE_STATIC;
    hotbed_storage_options_init(&options);
    options.num_tables = TABLES;
    options.tables = tables;
    options.optimizer.kind = HOTBED_OPT_ADAM;
    store = (hotbed_external_options){.size = sizeof store, .num_tables = TABLES, .tables = rows};
    CHECK_OK(hotbed_storage_external_tables(&options, rows));
    if (kind != NO_STORE) {
        hotbed_status status = create_store(b, kind, &store, path);
        if (status == HOTBED_ERR_UNSUPPORTED)
            return false;
        CHECK_OK(status);
        options.mode = HOTBED_MODE_CACHE;
        options.external = b->external;
    }
    CHECK_OK(hotbed_stream_create(backend, 0, &b->stream));
    CHECK_OK(hotbed_storage_create(&options, b->stream, &b->storage));
    return true;
}

static void close_fixture(fixture *b) {
    hotbed_storage_destroy(b->storage);
    hotbed_stream_destroy(b->stream);
    hotbed_external_destroy(b->external);
}

/* Set the rows of the keys first, first + step, ... */
static void fill(fixture *b, uint64_t first, uint64_t step) {
    for (uint32_t t = 0; t < TABLES; t++) {
        sample_image image = sample_new(b->storage, t, KEYS);
        uint64_t n = 0;
        for (uint64_t i = first; i < (t == STATIC ? ROWS : KEYS); i += step) {
            image.keys[n] = t == STATIC ? i : i * 0x9E3779B97F4A7C15U;
            image.scores[n] = i % 7 + 1;
            if (image.times != NULL)
                image.times[n] = i + 1000;
            n++;
        }
        for (uint64_t i = 0; i < n * image.weight_bytes; i++)
            image.weights[i] = (unsigned char)hotbed_test_random();
        for (uint64_t i = 0; i < 2 * n * image.state_bytes[0]; i++)
            image.states[i % 2][i / 2] = (unsigned char)hotbed_test_random();
        image.rows = n;
        sample_store(b->storage, t, &image, b->stream);
        sample_free(&image);
    }
}

/* Erase these keys from the hash tables. */
static void erase(fixture *b, uint64_t first, uint64_t step) {
    for (uint32_t t = 0; t < STATIC; t++) {
        sample_image image = sample_new(b->storage, t, KEYS);
        image.rows = 0;
        for (uint64_t i = first; i < KEYS; i += step)
            image.keys[image.rows++] = i * 0x9E3779B97F4A7C15U;
        sample_erase(b->storage, t, &image, b->stream);
        sample_free(&image);
    }
}

/* Train on a batch, which fetches rows from the store and changes them in the cache. */
static void train(fixture *b) {
    enum { N = 8 };
    uint64_t host[TABLES * N];
    for (uint64_t i = 0; i < N; i++) {
        host[i] = host[N + i] = (3 * i + 1) * 0x9E3779B97F4A7C15U;
        host[2 * N + i] = 3 * i;
    }
    sample_see(b->storage, N, TABLES * N, host, b->stream);
}

static hotbed_checkpoint_options options_of(hotbed_checkpoint_mark *mark, const char *parent) {
    hotbed_checkpoint_options options = {
        .size = sizeof options, .step = 5, .mark = mark, .parent = parent};
    return options;
}

static void load_chain(fixture *b, const char *full, const char *const *increments, uint32_t n) {
    hotbed_checkpoint_load_options options = {
        .size = sizeof options, .increments = increments, .num_increments = n};
    CHECK_OK(hotbed_checkpoint_load(full, &b->storage, 1, &options, NULL, b->stream));
}

/* Save a storage over a store, and load it into memory and into another store; the same with increments and
 * snapshots. */
static void check_round_trips(hotbed_backend backend, store_kind kind) {
    fixture from, memory, other;
    hotbed_checkpoint_mark *mark = NULL;
    hotbed_checkpoint_snapshot *snapshot = NULL;
    sample_directory();
    const char *full = sample_path("full"), *cut = sample_path("cut");
    const char *more[] = {
        sample_path("one"), sample_path("two")}; /* one by a save, one by a snapshot */
    if (!open_fixture(&from, backend, kind, sample_path("store")))
        return;
    CHECK(open_fixture(&memory, backend, NO_STORE, NULL));
    CHECK(open_fixture(&other, backend, kind, sample_path("other")));
    CHECK_OK(hotbed_checkpoint_mark_create(&mark));
    fill(&from, 0, 2);
    train(&from);
    hotbed_checkpoint_options options = options_of(mark, NULL);
    CHECK_OK(hotbed_checkpoint_save(full, &from.storage, 1, &options, from.stream));
    fill(&from, 1, 3); /* some rows are cached, some new, some only stored */
    train(&from);
    options = options_of(mark, full);
    CHECK_OK(hotbed_checkpoint_save(more[0], &from.storage, 1, &options, from.stream));
    erase(&from, 0, 4);
    fill(&from, 1, 5);
    options = options_of(mark, more[0]);
    CHECK_OK(hotbed_checkpoint_snapshot_take(&from.storage, 1, &options, from.stream, &snapshot));
    CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, more[1]));
    hotbed_checkpoint_snapshot_destroy(snapshot);
    options = options_of(NULL, NULL);
    CHECK_OK(hotbed_checkpoint_arena_create(1 << 20, 1 << 20, from.stream, &options.arena));
    CHECK_OK(hotbed_checkpoint_snapshot_take(&from.storage, 1, &options, from.stream, &snapshot));
    CHECK(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_PAGEABLE) > 0);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_DEVICE), 0);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_PINNED), 0);
    fill(&from, 0, 1); /* not in the snapshot */
    CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, cut));
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_checkpoint_arena_destroy(options.arena);
    for (int i = 0; i < 2; i++)
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, more[i], NULL));
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, cut, NULL));
    fill(&other, 0, 5); /* rows that the load must remove */
    load_chain(&memory, full, more, 2);
    load_chain(&other, full, more, 2);
    sample_check_same(memory.storage, other.storage, memory.stream);
    CHECK_OK(hotbed_checkpoint_load(cut, &from.storage, 1, NULL, NULL, from.stream));
    sample_check_same(memory.storage, from.storage, memory.stream);
    hotbed_checkpoint_mark_destroy(mark);
    close_fixture(&from);
    close_fixture(&memory);
    close_fixture(&other);
}

static void a_table_in_a_store_is_saved_and_loaded(hotbed_backend backend) {
    check_round_trips(backend, MEMORY);
}

static void a_table_in_rocksdb_is_saved_and_loaded(hotbed_backend backend) {
    check_round_trips(backend, ROCKSDB);
}

/* Let each call of the store fail in turn, until a save or a snapshot needs fewer calls. */
static void check_failures(fixture *b, const hotbed_checkpoint_options *options, bool snapshot) {
    const char *path = sample_path("failing");
    hotbed_status status = HOTBED_ERR_IO;
    for (uint64_t call = 1; status != HOTBED_OK; call++) {
        hotbed_checkpoint_snapshot *image = NULL;
        b->bad.way = BAD_FAIL;
        b->bad.from = b->bad.to = b->bad.calls + call;
        status = snapshot
                     ? hotbed_checkpoint_snapshot_take(&b->storage, 1, options, b->stream, &image)
                     : hotbed_checkpoint_save(path, &b->storage, 1, options, b->stream);
        const bool failed = b->bad.calls >= b->bad.to;
        b->bad.way = BAD_NOT;
        CHECK_STATUS(status, failed ? HOTBED_ERR_IO : HOTBED_OK);
        CHECK(call > 1 || failed);
        CHECK_OK(hotbed_stream_sync(b->stream));
        hotbed_checkpoint_snapshot_destroy(image);
    }
}

/* A checkpoint without rows that could not be read would load as one that is whole. */
static void saves_return_errors_of_the_store(hotbed_backend backend) {
    fixture b;
    hotbed_checkpoint_mark *mark = NULL;
    sample_directory();
    CHECK(open_fixture(&b, backend, BAD, NULL));
    CHECK_OK(hotbed_checkpoint_mark_create(&mark));
    fill(&b, 0, 1);
    train(&b);
    hotbed_checkpoint_options options = options_of(NULL, NULL);
    check_failures(&b, &options, true);
    options = options_of(mark, NULL);
    check_failures(&b, &options, false);
    sample_directory();
    CHECK_OK(hotbed_checkpoint_save(sample_path("full"), &b.storage, 1, &options, b.stream));
    fill(&b, 1, 3);
    options = options_of(mark, sample_path("full"));
    check_failures(&b, &options, false);
    hotbed_checkpoint_mark_destroy(mark);
    close_fixture(&b);
    bad_store_end(&b.bad);
}

/* --- exports ---------------------------------------------------------------------------------- */

/* Device arrays for one window of an export. */
typedef struct window_arrays {
    hotbed_memory keys, numbers, weights, scores, times, count;
} window_arrays;

static hotbed_memory take(fixture *b, size_t bytes) {
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(b->stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    return memory;
}

static window_arrays window_arrays_open(fixture *b, uint64_t capacity) {
    return (window_arrays){
        .keys = take(b, capacity * 8),
        .numbers = take(b, capacity * 8),
        .weights = take(b, capacity * 7 * 4),
        .scores = take(b, capacity * 8),
        .times = take(b, capacity * 8),
        .count = take(b, 8),
    };
}

static void window_arrays_close(window_arrays *d) {
    hotbed_memory *all[] = {&d->keys, &d->numbers, &d->weights, &d->scores, &d->times, &d->count};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hotbed_memory_free(all[i]);
}

/* All windows of a table together give each selected key once, with its row. */
static void check_export(
    fixture *b, uint32_t table, uint64_t slots, uint64_t min_score, uint64_t min_time) {
    window_arrays d = window_arrays_open(b, slots);
    sample_image right = sample_read(b->storage, table, b->stream);
    hotbed_export e = {.size = sizeof e};
    uint64_t end = 0, n = 0, last = 0, wanted = 0, seen = 0;
    e.table = table;
    e.slots = slots;
    e.min_score = min_score;
    e.min_time = min_time;
    e.keys = d.keys.data;
    e.numbers = d.numbers.data;
    e.count = d.count.data;
    e.rows.weights = d.weights.data;
    e.rows.scores = d.scores.data;
    e.rows.times = table == PAIR ? d.times.data : NULL;
    for (uint64_t i = 0; i < right.rows; i++)
        wanted += (table == STATIC ? 0 : right.scores[i]) >= min_score &&
                  (min_time == 0 || right.times[i] >= min_time);
    uint64_t keys[KEYS], numbers[KEYS], scores[KEYS], times[KEYS];
    unsigned char weights[KEYS * 7 * 4];
    CHECK_OK(hotbed_storage_export_end(b->storage, table, &end, b->stream));
    CHECK_EQ(end, right.rows);
    for (e.first = 0; e.first < end + slots; e.first += slots) {
        CHECK_OK(hotbed_storage_export(b->storage, &e, b->stream));
        CHECK_OK(hotbed_copy(&n, d.count.data, sizeof n, b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
        CHECK(n <= slots && n <= KEYS);
        CHECK_OK(hotbed_copy(keys, d.keys.data, n * 8, b->stream));
        CHECK_OK(hotbed_copy(numbers, d.numbers.data, n * 8, b->stream));
        CHECK_OK(hotbed_copy(scores, d.scores.data, n * 8, b->stream));
        CHECK_OK(hotbed_copy(weights, d.weights.data, n * right.weight_bytes, b->stream));
        if (table == PAIR)
            CHECK_OK(hotbed_copy(times, d.times.data, n * 8, b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
        for (uint64_t i = 0; i < n; i++, seen++) {
            uint64_t k = 0;
            while (k < right.rows && right.keys[k] != keys[i])
                k++;
            CHECK(k < right.rows && (seen == 0 || numbers[i] > last));
            last = numbers[i];
            CHECK_BYTES(
                weights + i * right.weight_bytes, right.weights + k * right.weight_bytes,
                right.weight_bytes);
            CHECK(table == STATIC || scores[i] == right.scores[k]);
            CHECK(table != PAIR || times[i] == right.times[k]);
        }
    }
    CHECK_EQ(seen, wanted);
    sample_free(&right);
    window_arrays_close(&d);
}

/* The arrays hold fewer keys than the table has: they receive the first keys, and the count of all. */
static void check_small_arrays(fixture *b, uint32_t table) {
    enum { CAPACITY = 7 };
    uint64_t keys[2][CAPACITY], n[2];
    hotbed_export e = {.size = sizeof e, .table = table, .slots = 1000};
    for (int i = 0; i < 2; i++) {
        window_arrays d = window_arrays_open(b, i == 0 ? 1000 : CAPACITY);
        e.keys = d.keys.data;
        e.rows.weights = d.weights.data;
        e.count = d.count.data;
        e.capacity = i == 0 ? 0 : CAPACITY;
        CHECK_OK(hotbed_storage_export(b->storage, &e, b->stream));
        CHECK_OK(hotbed_copy(keys[i], d.keys.data, sizeof keys[i], b->stream));
        CHECK_OK(hotbed_copy(&n[i], d.count.data, sizeof n[i], b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
        window_arrays_close(&d);
    }
    CHECK(n[0] > CAPACITY);
    CHECK_EQ(n[1], n[0]);
    CHECK_BYTES(keys[0], keys[1], sizeof keys[0]);
}

static void exports_of_a_store_give_each_key_once(hotbed_backend backend) {
    for (int kind = MEMORY; kind <= ROCKSDB; kind++) {
        fixture b;
        sample_directory();
        if (!open_fixture(&b, backend, (store_kind)kind, sample_path("store")))
            continue;
        /* HASH tables are still empty, and rows of the STATIC table have their initial values. */
        for (uint32_t t = 0; t < TABLES; t++)
            check_export(&b, t, 16, 0, 0);
        fill(&b, 0, 1);
        train(&b);
        for (uint32_t t = 0; t < TABLES; t++) {
            check_export(&b, t, 1000, 0, 0);
            check_export(&b, t, 7, 0, 0);
            check_export(&b, t, 64, 4, 0);
        }
        check_export(&b, PAIR, 64, 2, 1100);
        for (uint32_t t = 0; t < TABLES; t++)
            check_small_arrays(&b, t);
        close_fixture(&b);
    }
}

/* An export proceeds window by window; an error of the store is returned, and the next export starts at the
 * first window. */
static void exports_return_errors_of_the_store(hotbed_backend backend) {
    fixture b;
    CHECK(open_fixture(&b, backend, BAD, NULL));
    fill(&b, 0, 1);
    window_arrays d = window_arrays_open(&b, 32);
    hotbed_export e = {.size = sizeof e, .slots = 32, .count = d.count.data, .first = 32};
    CHECK_STATUS(hotbed_storage_export(b.storage, &e, b.stream), HOTBED_ERR_STATE);
    e.first = 0;
    CHECK_OK(hotbed_storage_export(b.storage, &e, b.stream));
    CHECK_STATUS(hotbed_storage_export_end(b.storage, 9, &e.first, b.stream), HOTBED_ERR_ARGUMENT);
    e.first = 64;
    CHECK_STATUS(hotbed_storage_export(b.storage, &e, b.stream), HOTBED_ERR_STATE);
    e.first = 32;
    b.bad.status = HOTBED_ERR_IO;
    bad_store_next(&b.bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_storage_export(b.storage, &e, b.stream), HOTBED_ERR_IO);
    CHECK_OK(hotbed_stream_sync(b.stream));
    /* The cursor has passed rows that could not be read by key: the window cannot be repeated. */
    CHECK_OK(hotbed_storage_reset(b.storage, b.stream));
    e.first = 0;
    CHECK_OK(hotbed_storage_export(b.storage, &e, b.stream));
    e.first = 32;
    b.bad.from = b.bad.to = b.bad.calls + 2;
    CHECK_STATUS(hotbed_storage_export(b.storage, &e, b.stream), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_storage_export(b.storage, &e, b.stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_stream_sync(b.stream));
    window_arrays_close(&d);
    for (uint32_t t = 0; t < TABLES; t++)
        check_export(&b, t, 40, 0, 0);
    close_fixture(&b);
    bad_store_end(&b.bad);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_table_in_a_store_is_saved_and_loaded)}, {TEST(a_table_in_rocksdb_is_saved_and_loaded)},
    {TEST(saves_return_errors_of_the_store)},       {TEST(exports_of_a_store_give_each_key_once)},
    {TEST(exports_return_errors_of_the_store)},     {NULL, NULL},
};
