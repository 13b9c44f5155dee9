/* tests/storage/test_storage_external.c - a storage in mode CACHE over an external store, against the model.
 *
 * Rows, scores and times must equal the model's while rows move between the upper tier and the store.  With
 * tests/support/bad_store.h the store fails, tears, damages or delays each call in turn: no wrong row may be read,
 * and no row may be lost.
 */
#include "hotbed/export.h"
#include "storage/external/external.h"
#include "tests/storage/fixture.h"
#include "tests/support/bad_store.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* --- a storage over a store that can be made to fail ----------------------------------------- */

typedef struct cached_storage {
    setup s;
    fixture r;
    bad_store bad;
    hotbed_external *external;
} cached_storage;

/* Hash tables with 32 slots in the upper tier.  A key has 16 candidate slots, so at most 16 keys of a table can be
 * pinned without refusals. */
static void cached_start(cached_storage *b, uint32_t num_tables, uint32_t dim, uint64_t capacity) {
    memset(b, 0, sizeof *b);
    setup_start(&b->s, num_tables, dim, capacity);
    for (uint32_t t = 0; t < num_tables; t++)
        b->s.tables[t].upper_capacity = 12;
    b->s.options.mode = HOTBED_MODE_CACHE;
}

static void open_store_by(cached_storage *b, const hotbed_external_calls *calls) {
    hotbed_external_table tables[FIXTURE_TABLES];
    hotbed_external_options o = {.size = sizeof o};
    CHECK_OK(hotbed_storage_external_tables(&b->s.options, tables));
    o.num_tables = b->s.options.num_tables;
    o.tables = tables;
    bad_store_start(&b->bad);
    CHECK_OK(hotbed_external_create(&o, calls, &b->bad, &b->external));
    b->s.options.external = b->external;
}

static void open_store(cached_storage *b) {
    open_store_by(b, &bad_store_calls);
}

static void cached_open(cached_storage *b, hotbed_backend backend) {
    open_store(b);
    fixture_open(&b->r, backend, &b->s.options);
}

static void cached_close(cached_storage *b) {
    fixture_close(&b->r);
    hotbed_external_destroy(b->external);
    bad_store_end(&b->bad);
}

static hotbed_external_stats store_stats(const cached_storage *b) {
    hotbed_external_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    return stats;
}

static hotbed_table_stats table_stats(cached_storage *b, uint32_t t) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(b->r.storage, t, &stats, b->r.stream));
    return stats;
}

/* --- options --------------------------------------------------------------------------------- */

static void refuses(cached_storage *b, const char *text) {
    hotbed_storage *storage = NULL;
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    CHECK_STATUS(hotbed_storage_create(&b->s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(storage == NULL);
    CHECK(strstr(hotbed_last_error(), text) != NULL);
    hotbed_stream_destroy(stream);
}

/* A store does not know the type of its keys until a storage uses it. */
static void keys_are_named_in_their_own_sign(hotbed_backend backend) {
    static const struct {
        hotbed_key_type type;
        const char *key;
    } cases[] = {{HOTBED_KEY_I64, "key -5:"}, {HOTBED_KEY_U64, "key 18446744073709551611:"}};
    const uint64_t key = (uint64_t)-5;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        cached_storage b;
        uint8_t found;
        static uint8_t row[4096];
        cached_start(&b, 1, 8, 100);
        b.s.options.key_type = cases[c].type;
        open_store(&b);
        CHECK(b.bad.row_bytes[0] <= sizeof row);
        CHECK_OK(hotbed_external_insert(b.external, 0, 1, &key, row, NULL));
        bad_store_next(&b.bad, BAD_BYTE, 1);
        CHECK_STATUS(
            hotbed_external_find(b.external, 0, 1, &key, &found, row, NULL), HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), "key 18446744073709551611 (as int64 -5):") != NULL);
        fixture_open(&b.r, backend, &b.s.options);
        bad_store_next(&b.bad, BAD_BYTE, 1);
        CHECK_STATUS(
            hotbed_external_find(b.external, 0, 1, &key, &found, row, NULL), HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), cases[c].key) != NULL);
        bad_store_next(&b.bad, BAD_FLAG, 1);
        CHECK_STATUS(
            hotbed_external_find(b.external, 0, 1, &key, &found, row, NULL), HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), cases[c].key) != NULL);
        cached_close(&b);
    }
}

/* The store keeps all keys, so more of them than `capacity` can be in the upper tier. */
static void upper_tiers_may_be_larger_than_the_capacity(hotbed_backend backend) {
    cached_storage b;
    hotbed_table_info info = {.size = sizeof info};
    cached_start(&b, 1, 8, 100);
    b.s.tables[0].upper_capacity = 500;
    cached_open(&b, backend);
    CHECK_OK(hotbed_storage_table(b.r.storage, 0, &info));
    CHECK_EQ(info.upper_capacity, 500);
    CHECK(info.slots >= 500);
    cached_close(&b);
    hotbed_storage *storage = NULL;
    cached_start(&b, 1, 4096, 100);
    b.s.tables[0].upper_capacity = UINT64_MAX; /* counts as 2^35, for which no machine has memory */
    open_store(&b);
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_STATUS(hotbed_storage_create(&b.s.options, stream, &storage), HOTBED_ERR_MEMORY);
    CHECK(storage == NULL);
    hotbed_stream_destroy(stream);
    hotbed_external_destroy(b.external);
    bad_store_end(&b.bad);
}

static void stores_must_fit_their_storage(hotbed_backend backend) {
    cached_storage b;
    char text[256];
    hotbed_external_table tables[2];
    cached_start(&b, 2, 8, 100);
    b.s.options.optimizer.kind = HOTBED_OPT_ADAM;
    CHECK_OK(hotbed_storage_external_tables(&b.s.options, tables));
    CHECK_STRING(tables[1].name, "table-1");
    CHECK_EQ(tables[1].row_bytes, 3 * 8 * sizeof(float));
    CHECK_STATUS(hotbed_storage_external_tables(&b.s.options, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_external_tables(NULL, tables), HOTBED_ERR_ARGUMENT);
    const char *name = b.s.tables[1].name;
    b.s.tables[1].name = b.s.tables[0].name;
    memset(tables, 0, sizeof tables);
    CHECK_STATUS(hotbed_storage_external_tables(&b.s.options, tables), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "two tables have the same name table-0") != NULL);
    CHECK(tables[0].name == NULL);
    b.s.tables[1].name = name;
    CHECK_OK(hotbed_storage_external_tables(&b.s.options, tables));
    open_store(&b);
    b.s.options.mode = HOTBED_MODE_DEFAULT;
    refuses(&b, "mode 3 is not CACHE");
    b.s.options.mode = HOTBED_MODE_CACHE;
    b.s.options.lower_memory = HOTBED_MEMORY_PINNED;
    refuses(&b, "external and lower_memory");
    b.s.options.lower_memory = (hotbed_memory_kind)0;
    b.s.options.lower_index_memory = HOTBED_MEMORY_PINNED;
    refuses(&b, "external and lower_index_memory");
    b.s.options.lower_index_memory = (hotbed_memory_kind)0;
    b.s.options.lower_directory = "/tmp";
    refuses(&b, "external and lower_directory");
    b.s.options.lower_directory = NULL;
    b.s.tables[1].evict = HOTBED_EVICT_LOWEST;
    refuses(&b, "table table-1: evict is LOWEST");
    b.s.tables[1].evict = HOTBED_EVICT_NEVER;
    b.s.tables[1].name = "another"; /* whose rows are not those of the store's table */
    refuses(&b, "table number 1 of the store is table-1, not another");
    b.s.tables[1].name = name;
    b.s.tables[1].dim = 9;
    refuses(&b, "table table-1: the store's rows have 96 bytes, not 144");
    b.s.tables[1].dim = 8;
    b.s.options.num_tables = 1;
    refuses(&b, "the store has 2 tables, the storage 1");
    b.s.options.num_tables = 2;
    b.s.tables[1].upper_capacity = 0;
    refuses(&b, "no upper_capacity");
    b.s.tables[1].upper_capacity = 12;
    b.s.options.mode = HOTBED_MODE_AUTO; /* a store implies mode CACHE */
    fixture_open_bare(&b.r, HOTBED_BACKEND_HOST, &b.s.options);
    CHECK_EQ(hotbed_storage_mode(b.r.storage), HOTBED_MODE_CACHE);
    CHECK_OK(hotbed_storage_explain(b.r.storage, text, sizeof text));
    CHECK(strstr(text, "CACHE over an external store") != NULL);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(b.r.storage, 1, &info));
    CHECK_EQ(info.row_bytes, tables[1].row_bytes);
    CHECK_EQ(info.lower_slots, 0);
    cached_close(&b);
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* 60 steps in which rows move, with two batches in flight: all optimizers, types, dimensions and poolings.  With
 * HOTBED_TEST_SMALL, one optimizer. */
static void rows_have_the_bytes_of_the_model(hotbed_backend backend) {
    static const uint32_t dims[] = {1, 3, 8, 16, 17, 64, 100, 128, 129, 1024};
    static const hotbed_pooling poolings[] = {HOTBED_POOL_NONE, HOTBED_POOL_SUM, HOTBED_POOL_MEAN};
    for (uint32_t o = hotbed_test_is_small() ? 3 : 0;
         o < (hotbed_test_is_small() ? 4 : HOTBED_OPT_LAST); o++) {
        cached_storage b;
        test_ticket tickets[2];
        rng random = rng_start(o);
        cached_start(&b, 10, 8, 160);
        for (uint32_t t = 0; t < 10; t++) {
            b.s.tables[t].dim = dims[t];
            /* 48 slots, 32 candidates of a key: two batches of 16 fit */
            b.s.tables[t].upper_capacity = 17;
            b.s.tables[t].dtype = (hotbed_dtype)(1 + (t + o) % HOTBED_DTYPE_LAST);
            b.s.tables[t].state_dtype = (t + o) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
            b.s.tables[t].insertion = t % 2 == 0 ? HOTBED_INSERT_PLAIN : HOTBED_INSERT_PROBATION;
        }
        b.s.tables[7].kind = HOTBED_TABLE_STATIC;
        b.s.tables[7].insertion = HOTBED_INSERT_PLAIN;
        b.s.options.optimizer.kind = (hotbed_optimizer_kind)(1 + o);
        setup_decay(&b.s.options.optimizer, 0.0625F);
        b.s.options.pooling = poolings[o % 3];
        cached_open(&b, backend);
        for (int l = 0; l < 2; l++)
            test_ticket_open(&b.r, &tickets[l], 200, 4);
        batch_shape how = {.batch_size = 4, .max_bag = 4, .key_space = 150};
        for (int step = 0; step < 60; step++) {
            test_ticket *l = &tickets[step % 2];
            how.weights = step % 2 == 0 && b.s.options.pooling != HOTBED_POOL_NONE;
            if (step >= 2) {
                test_ticket_forward(l);
                test_ticket_backward(l, &random);
            }
            if (step == 30) {
                test_ticket_cancel(&tickets[1 - step % 2]);
                CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
                test_ticket_prefetch(&tickets[1 - step % 2]);
            }
            test_ticket_fill(l, &random, &how);
            test_ticket_prefetch(l);
            if (step % 10 == 5)
                CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
        }
        for (int l = 0; l < 2; l++)
            test_ticket_cancel(&tickets[l]);
        CHECK_OK(hotbed_stream_sync(b.r.stream));
        uint64_t inserts = store_stats(&b).inserts;
        test_ticket_eval(&tickets[0]);
        CHECK_EQ(store_stats(&b).inserts, inserts);
        fixture_check(&b.r);
        CHECK(table_stats(&b, 2).fetches > 100 && table_stats(&b, 2).write_backs > 100);
        CHECK(store_stats(&b).stream_waits >= 60);
        CHECK_EQ(store_stats(&b).failures, 0);
        for (int l = 0; l < 2; l++)
            test_ticket_close(&tickets[l]);
        cached_close(&b);
    }
}

/* A row is written again only if it was prefetched since its last write; counts are exact. */
static void only_rows_used_since_their_last_write_are_written(hotbed_backend backend) {
    enum { KEYS = 12 };
    cached_storage b;
    test_ticket l;
    cached_start(&b, 1, 8, 1000);
    b.s.tables[0].score = HOTBED_SCORE_LFU;
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, KEYS, KEYS);
    rng random = rng_start(1);
    const batch_shape how = {.batch_size = KEYS};
    for (uint64_t step = 0; step < 24; step++) {
        test_ticket_fill(&l, &random, &how);
        for (uint64_t i = 0; i < KEYS; i++)
            ((uint64_t *)l.host.keys)[i] = step % 8 * KEYS + i;
        test_ticket_upload(&l);
        const hotbed_batch batch = test_ticket_batch(&l);
        CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, l.ticket, b.r.stream));
        CHECK_OK(hotbed_ticket_cancel(l.ticket, b.r.stream));
    }
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    CHECK_OK(hotbed_stream_sync(b.r.stream));
    uint64_t keys[8 * KEYS], scores[8 * KEYS], n = 0, inserts = store_stats(&b).inserts;
    CHECK_OK(hotbed_storage_export_keys(b.r.storage, 0, 8 * KEYS, keys, scores, &n, b.r.stream));
    CHECK_EQ(n, 8 * KEYS);
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(scores[i], 3);
    CHECK_STATUS(
        hotbed_storage_export_keys(b.r.storage, 0, n - 1, keys, scores, &n, b.r.stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_EQ(n, 8 * KEYS);
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
    CHECK_OK(hotbed_stream_sync(b.r.stream));
    CHECK_EQ(store_stats(&b).inserts, inserts);
    CHECK_EQ(table_stats(&b, 0).write_backs, inserts);
    CHECK_EQ(fixture_size(&b.r, 0), 8 * KEYS);
    cached_close(&b);
}

/* Scores TIMESTAMP_LFU: times move to the store and back with their rows. */
static void times_are_stored_with_their_rows(hotbed_backend backend) {
    enum { KEYS = 100 };
    cached_storage b;
    cached_start(&b, 2, 6, 1000);
    b.s.tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    b.s.tables[1].dtype = HOTBED_F16;
    open_store(&b);
    fixture_open_bare(&b.r, backend, &b.s.options);
    uint64_t keys[KEYS], times[KEYS], scores[KEYS];
    for (uint64_t i = 0; i < KEYS; i++) {
        keys[i] = i << 50;
        times[i] = 1000 + i;
        scores[i] = 5 * i;
    }
    hotbed_rows rows = {
        .scores = fixture_copy(&b.r, scores, sizeof scores),
        .times = fixture_copy(&b.r, times, sizeof times)};
    void *device_keys = fixture_copy(&b.r, keys, sizeof keys);
    CHECK_OK(hotbed_storage_set_rows(b.r.storage, 1, KEYS, device_keys, &rows, b.r.stream));
    hotbed_ticket *ticket;
    hotbed_batch batch = {.size = sizeof batch};
    CHECK_OK(hotbed_ticket_create(b.r.storage, 24, 12, b.r.stream, &ticket));
    batch.batch_size = 12;
    batch.num_keys = 24;
    for (int step = 0; step < 4; step++) { /* 48 keys of a table with 32 slots */
        batch.keys = (uint64_t *)device_keys + (ptrdiff_t)step * 24;
        CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, ticket, b.r.stream));
    }
    CHECK_OK(hotbed_ticket_cancel(ticket, b.r.stream));
    for (int emptied = 0; emptied < 2; emptied++) {
        uint64_t seen[KEYS], count[KEYS];
        CHECK_OK(
            hotbed_storage_get_rows(b.r.storage, 1, KEYS, device_keys, &rows, NULL, b.r.stream));
        fixture_download(&b.r, seen, rows.times, sizeof seen);
        fixture_download(&b.r, count, rows.scores, sizeof count);
        for (uint64_t i = 0; i < KEYS; i++) {
            bool used = i / 12 % 2 == 1; /* the first 12 keys of a batch are of the other table */
            CHECK_EQ(count[i], scores[i] + used);
            CHECK(used ? seen[i] > times[KEYS - 1] : seen[i] == times[i]);
        }
        CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
    }
    hotbed_ticket_destroy(ticket);
    cached_close(&b);
}

#if defined(__SANITIZE_ADDRESS__)
enum { PERTURBS = 0 }; /* its allocator fills new memory itself */
#else
enum { PERTURBS = 1 };
#endif

/* Bytes of a row that it does not use reach the store as zeros, not as old contents of memory. */
static void rows_carry_no_old_memory_into_the_store(hotbed_backend backend) {
    enum { KEYS = 48, ROW_MOST = 64 };
    cached_storage b;
    cached_start(&b, 1, 3, 1000);
    b.s.tables[0].dtype = HOTBED_F16;
    b.s.options.optimizer.kind = HOTBED_OPT_ADAM;
    open_store(&b);
    CHECK_EQ(mallopt(M_PERTURB, 0x5a), PERTURBS);
    fixture_open_bare(&b.r, backend, &b.s.options);
    CHECK_EQ(mallopt(M_PERTURB, 0), PERTURBS);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(b.r.storage, 0, &info));
    bool part[ROW_MOST] = {false};
    CHECK(info.row_bytes <= ROW_MOST && info.row_bytes > 6 + 2 * 12);
    memset(part, true, 6);
    for (int s = 0; s < 2; s++)
        memset(part + info.state_offsets[s], true, 12);
    uint64_t keys[KEYS];
    for (uint64_t i = 0; i < KEYS; i++)
        keys[i] = i << 50;
    uint64_t *device_keys = fixture_copy(&b.r, keys, sizeof keys);
    hotbed_ticket *ticket;
    hotbed_batch batch = {.size = sizeof batch};
    CHECK_OK(hotbed_ticket_create(b.r.storage, 12, 12, b.r.stream, &ticket));
    batch.batch_size = 12;
    batch.num_keys = 12;
    for (int step = 0; step < KEYS / 12; step++) {
        batch.keys = device_keys + (ptrdiff_t)step * 12;
        CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, ticket, b.r.stream));
    }
    CHECK_OK(hotbed_ticket_cancel(ticket, b.r.stream));
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    CHECK_OK(hotbed_stream_sync(b.r.stream));
    uint8_t found[KEYS], rows[KEYS * ROW_MOST];
    hotbed_external_metadata metadata[KEYS];
    hotbed_external_call call = {.deadline_ns = UINT64_MAX};
    CHECK_OK(
        hotbed_external_memory_calls.find(b.bad.self, 0, KEYS, keys, found, rows, metadata, &call));
    for (uint64_t i = 0; i < KEYS; i++) {
        CHECK_EQ(found[i], 1);
        for (uint64_t at = 0; at < info.row_bytes; at++)
            CHECK(part[at] || rows[i * info.row_bytes + at] == 0);
    }
    hotbed_ticket_destroy(ticket);
    cached_close(&b);
}

/* --- pins ------------------------------------------------------------------------------------ */

/* A key without a free slot is refused and reads as its initial row; later, when a slot is free, it gets its row. */
static void keys_beyond_the_upper_tier_are_refused(hotbed_backend backend) {
    enum { KEYS = 40 };
    cached_storage b;
    test_ticket l, other;
    cached_start(&b, 1, 8, 1000);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, KEYS, KEYS);
    test_ticket_open(&b.r, &other, KEYS, KEYS);
    rng random = rng_start(1);
    batch_shape how = {.batch_size = KEYS};
    test_ticket_fill(&l, &random, &how);
    CHECK_STATUS(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_FULL);
    CHECK(strstr(hotbed_last_error(), "all rows it could replace are in use") != NULL);
    uint64_t refused = table_stats(&b, 0).refused;
    CHECK(refused >= KEYS - 32 && refused < KEYS);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    how.batch_size = 10;
    test_ticket_step(&other, &random, &how); /* its pins are released again */
    test_ticket_step(&l, &random, &how);
    CHECK_EQ(table_stats(&b, 0).refused, refused);
    fixture_check(&b.r);
    cached_close(&b);
}

/* --- failures -------------------------------------------------------------------------------- */

enum { STEPS = 10, BATCH = 8 };

/* Train with two batches in flight while the store misbehaves.  Returns the number of its calls. */
static uint64_t train_with(hotbed_backend backend, bad_way way, uint64_t at, uint64_t count) {
    cached_storage b;
    test_ticket tickets[2];
    rng random = rng_start(3);
    uint64_t faults = 0;
    cached_start(&b, 3, 8, 500);
    b.s.tables[1].dtype = HOTBED_BF16;
    b.s.tables[2].dim = 5;
    b.s.options.optimizer.kind = HOTBED_OPT_ADAM;
    cached_open(&b, backend);
    for (int l = 0; l < 2; l++)
        test_ticket_open(&b.r, &tickets[l], 3 * BATCH, BATCH);
    b.bad.calls = 0;
    b.bad.way = way;
    b.bad.from = at;
    b.bad.to = at + count - 1;
    b.bad.status = HOTBED_ERR_IO;
    const batch_shape how = {.batch_size = BATCH, .key_space = 60};
    for (int step = 0; step < STEPS; step++) {
        test_ticket *l = &tickets[step % 2];
        if (step >= 2) {
            test_ticket_forward(l);
            test_ticket_backward(l, &random);
        }
        test_ticket_fill(l, &random, &how);
        hotbed_status status = test_ticket_prefetch_with_slots(l);
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
        if (status != HOTBED_OK) {
            char text[256];
            CHECK(strstr(hotbed_last_error(), "external store") != NULL);
            CHECK_EQ(hotbed_external_failure(b.external, text, sizeof text), status);
            CHECK(strstr(text, "store bad") != NULL);
            faults++;
        }
    }
    for (int l = 0; l < 2; l++)
        test_ticket_cancel(&tickets[l]);
    CHECK_EQ(faults > 0, at > 0 && at <= b.bad.calls);
    uint64_t calls = b.bad.calls;
    bad_store_next(&b.bad, BAD_NOT, 1);
    fixture_check(&b.r);
    for (int l = 0; l < 2; l++)
        test_ticket_close(&tickets[l]);
    cached_close(&b);
    return calls;
}

/* Each call fails once: no wrong row is read, no row is lost, and training goes on. */
static void a_store_may_fail_at_any_call(hotbed_backend backend) {
    uint64_t calls = train_with(backend, BAD_NOT, 0, 1);
    CHECK(calls > 3 * STEPS);
    for (uint64_t at = 1; at <= calls; at += hotbed_test_is_small() ? 10 : 1)
        (void)train_with(backend, BAD_FAIL, at, 1);
}

/* The store does the call but reports a failure; or several calls in sequence fail. */
static void a_store_may_be_unreachable_for_a_while(hotbed_backend backend) {
    for (uint64_t at = 1; at <= 40; at += hotbed_test_is_small() ? 18 : 3) {
        (void)train_with(backend, BAD_DONE, at, 1);
        (void)train_with(backend, BAD_FAIL, at, 7);
    }
}

/* The first write of rows is torn, after which the store refuses all calls.  Rows in the upper tier stay right, and
 * keys that the store may have are refused. */
static void a_torn_batch_is_never_served(hotbed_backend backend) {
    cached_storage b;
    test_ticket l;
    rng random = rng_start(1);
    cached_start(&b, 1, 8, 500);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, 12, 12);
    const batch_shape how = {.batch_size = 12, .key_space = 200};
    for (int step = 0; step < 4; step++)
        test_ticket_step(&l, &random, &how);
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    test_ticket_step(&l, &random, &how);
    bad_store_next(&b.bad, BAD_TEAR, 1);
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_CORRUPT);
    test_ticket_prefetch(&l); /* the same keys: all are in the upper tier */
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    CHECK_OK(hotbed_stream_sync(b.r.stream));
    uint64_t absent = 1234567, refused = table_stats(&b, 0).refused;
    uint8_t found = 0;
    uint64_t *device = fixture_copy(&b.r, &absent, sizeof absent);
    uint8_t *device_found = fixture_copy(&b.r, &found, sizeof found);
    CHECK_OK(hotbed_storage_get_rows(b.r.storage, 0, 1, device, NULL, device_found, b.r.stream));
    CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_CORRUPT);
    fixture_download(&b.r, &found, device_found, 1);
    CHECK_EQ(found, HOTBED_EXTERNAL_UNKNOWN);
    test_ticket_fill(&l, &random, &how);
    CHECK_STATUS(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_CORRUPT);
    CHECK(table_stats(&b, 0).refused > refused);
    test_ticket_forward(&l);
    test_ticket_cancel(&l);
    uint64_t keys = 0;
    CHECK_STATUS(hotbed_storage_size(b.r.storage, 0, &keys, NULL, b.r.stream), HOTBED_ERR_CORRUPT);
    test_ticket_close(&l);
    hotbed_storage_destroy(b.r.storage);
    b.r.storage = NULL;
    oracle_destroy(b.r.model);
    b.r.model = NULL;
    cached_close(&b);
}

/* If the store fails, flush, reset and calls by key return an error and change nothing. */
static void calls_on_rows_return_errors_of_the_store(hotbed_backend backend) {
    enum { KEYS = 12 };
    cached_storage b;
    test_ticket l;
    rng random = rng_start(1);
    cached_start(&b, 1, 8, 500);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, KEYS, KEYS);
    const batch_shape how = {.batch_size = KEYS, .key_space = 100};
    for (int step = 0; step < 8; step++)
        test_ticket_step(&l, &random, &how);
    bad_store_next(&b.bad, BAD_FAIL, 2);
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_IO);
    CHECK(strstr(hotbed_last_error(), " rows of table table-") != NULL);
    fixture_check(&b.r);
    bad_store_next(&b.bad, BAD_FAIL, 1); /* a key in the upper tier is not erased */
    CHECK_OK(hotbed_storage_erase(b.r.storage, 0, 1, l.device.keys, NULL, b.r.stream));
    CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_IO);
    fixture_check(&b.r);
    bad_store_next(&b.bad, BAD_FAIL, 2);
    CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
    CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_IO);
    fixture_check(&b.r);
    CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
    fixture_check(&b.r);
    /* Now all rows are in the store only, and the store fails. */
    uint8_t found[KEYS];
    float weights[KEYS * 8] = {0};
    void *device_found = fixture_alloc(&b.r, sizeof found);
    const hotbed_rows rows = {.weights = fixture_copy(&b.r, weights, sizeof weights)};
    const hotbed_batch batch = test_ticket_batch(&l);
    for (int call = 0; call < 5; call++) {
        bad_store_next(&b.bad, BAD_FAIL, 1);
        if (call == 4) /* let the find succeed and the insert fail */
            b.bad.from++, b.bad.to++;
        CHECK_OK(hotbed_fill(device_found, 1, sizeof found, b.r.stream));
        if (call == 0)
            CHECK_OK(hotbed_storage_get_rows(
                b.r.storage, 0, KEYS, l.device.keys, &rows, device_found, b.r.stream));
        if (call == 1)
            CHECK_OK(
                hotbed_storage_erase(b.r.storage, 0, 1, l.device.keys, device_found, b.r.stream));
        if (call == 2 || call == 4)
            CHECK_OK(hotbed_storage_set_rows(b.r.storage, 0, 1, l.device.keys, &rows, b.r.stream));
        if (call == 3)
            CHECK_OK(hotbed_storage_eval(b.r.storage, &batch, l.output, l.stride, b.r.stream));
        CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_IO);
        bad_store_next(&b.bad, BAD_NOT, 1);
        fixture_download(&b.r, found, device_found, sizeof found);
        for (int i = 0; i < KEYS; i++)
            CHECK_EQ(found[i], call == 0 || (call == 1 && i == 0) ? HOTBED_EXTERNAL_UNKNOWN : 1);
        fixture_check(&b.r);
    }
    uint64_t n;
    bad_store_next(&b.bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_storage_size(b.r.storage, 0, &n, NULL, b.r.stream), HOTBED_ERR_IO);
    bad_store_next(&b.bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_storage_clear(b.r.storage, 0, b.r.stream), HOTBED_ERR_IO);
    bad_store_next(&b.bad, BAD_FAIL, 1);
    CHECK_STATUS(
        hotbed_storage_export_keys(b.r.storage, 0, 0, NULL, NULL, &n, b.r.stream), HOTBED_ERR_IO);
    fixture_check(&b.r);
    CHECK_OK(hotbed_storage_clear(b.r.storage, 0, b.r.stream));
    CHECK_EQ(fixture_size(&b.r, 0), 0);
    CHECK_OK(hotbed_external_size(b.external, 0, &n));
    CHECK_EQ(n, 0);
    cached_close(&b);
}

/* A key whose row arrives damaged is refused; later the undamaged row is read. */
/* An export neither consumes nor returns the fault of an earlier call, whether it succeeds or the store fails. */
static void an_export_leaves_an_earlier_fault_latched(hotbed_backend backend) {
    enum { KEYS = 5 };
    cached_storage b;
    const uint64_t keys[KEYS] = {3, 1, 4, 15, 9}, none = 77;
    uint64_t found[KEYS];
    cached_start(&b, 2, 8, 500);
    b.s.tables[1].kind = HOTBED_TABLE_STATIC;
    b.s.tables[1].capacity = 77;
    cached_open(&b, backend);
    void *device = fixture_copy(&b.r, keys, sizeof keys);
    void *bad_key = fixture_copy(&b.r, &none, sizeof none);
    hotbed_export e = {.size = sizeof e, .slots = KEYS};
    e.keys = fixture_alloc(&b.r, sizeof found);
    e.count = fixture_alloc(&b.r, sizeof *e.count);
    for (int fails = 0; fails < 2; fails++) {
        CHECK_OK(hotbed_storage_set_rows(b.r.storage, 0, KEYS, device, NULL, b.r.stream));
        CHECK_OK(hotbed_stream_sync(b.r.stream));
        CHECK_OK(hotbed_storage_set_rows(b.r.storage, 1, 1, bad_key, NULL, b.r.stream));
        if (fails == 1)
            bad_store_next(&b.bad, BAD_FAIL, 1);
        CHECK_STATUS(
            hotbed_storage_export(b.r.storage, &e, b.r.stream),
            fails == 1 ? HOTBED_ERR_IO : HOTBED_OK);
        CHECK_STATUS(hotbed_stream_sync(b.r.stream), HOTBED_ERR_RANGE);
        CHECK_OK(hotbed_stream_sync(b.r.stream));
        if (fails == 0) {
            uint64_t count = 0;
            fixture_download(&b.r, &count, e.count, sizeof count);
            CHECK_EQ(count, KEYS);
        }
    }
    hotbed_storage_destroy(b.r.storage);
    b.r.storage = NULL;
    oracle_destroy(b.r.model);
    b.r.model = NULL;
    cached_close(&b);
}

static void a_damaged_row_is_never_served(hotbed_backend backend) {
    cached_storage b;
    test_ticket l;
    rng random = rng_start(2);
    cached_start(&b, 1, 8, 500);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, 12, 12);
    const batch_shape how = {.batch_size = 12, .key_space = 12};
    for (int step = 0; step < 6; step++)
        test_ticket_step(&l, &random, &how);
    CHECK_OK(hotbed_storage_reset(b.r.storage, b.r.stream));
    test_ticket_fill(&l, &random, &how);
    bad_store_next(&b.bad, BAD_BYTE, 1);
    CHECK_STATUS(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_CORRUPT);
    test_ticket_forward(&l); /* initial rows */
    test_ticket_backward(&l, &random);
    test_ticket_prefetch(&l);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    fixture_check(&b.r);
    cached_close(&b);
}

/* --- time ------------------------------------------------------------------------------------ */

/* The caller enqueues a whole step while the store blocks. */
static void a_slow_store_blocks_the_stream_but_not_the_caller(hotbed_backend backend) {
    if (hotbed_test_is_small())
        SKIP("under a tool, a launch waits for the stream, which waits for the store");
    cached_storage b;
    test_ticket l;
    rng random = rng_start(2);
    cached_start(&b, 2, 8, 500);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, 24, 12);
    const batch_shape how = {.batch_size = 12, .key_space = 100};
    for (int step = 0; step < 4; step++)
        test_ticket_step(&l, &random, &how);
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    uint64_t waits = store_stats(&b).stream_waits;
    hotbed_counters before = hotbed_test_counters();
    bad_store_hold(&b.bad);
    CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, l.ticket, b.r.stream));
    CHECK_OK(hotbed_storage_forward(b.r.storage, l.ticket, l.output, l.stride, b.r.stream));
    CHECK_OK(hotbed_storage_backward(b.r.storage, l.ticket, l.output, l.stride, b.r.stream));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    bad_store_await(&b.bad);
    bad_store_let_go(&b.bad);
    CHECK_OK(hotbed_stream_sync(b.r.stream));
    CHECK(store_stats(&b).stream_waits > waits);
    CHECK(store_stats(&b).stream_seconds > 0);
    cached_close(&b);
}

static void train(fixture *r, test_ticket *l, rng *random, int steps) {
    const batch_shape how = {.batch_size = 12, .key_space = 100};
    for (int step = 0; step < steps; step++)
        test_ticket_step(l, random, &how);
    CHECK_OK(hotbed_storage_flush(r->storage, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
}

static pthread_t caller;

static void check_thread(void) {
    CHECK(pthread_equal(pthread_self(), caller));
}

static hotbed_status find_on_caller(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found, void *rows,
    hotbed_external_metadata *metadata, hotbed_external_call *call) {
    check_thread();
    return bad_store_calls.find(self, table, n, keys, found, rows, metadata, call);
}

static hotbed_status insert_on_caller(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, const void *rows,
    const hotbed_external_metadata *metadata, hotbed_external_call *call) {
    check_thread();
    return bad_store_calls.insert(self, table, n, keys, rows, metadata, call);
}

/* A store that calls CUDA must not run on a thread of the stream. */
static void a_store_is_called_on_the_callers_thread_if_it_wants(hotbed_backend backend) {
    cached_storage b;
    test_ticket l;
    rng random = rng_start(3);
    hotbed_external_calls calls = bad_store_calls;
    calls.find = find_on_caller;
    calls.insert = insert_on_caller;
    calls.on_callers_thread = true;
    caller = pthread_self();
    cached_start(&b, 2, 8, 500);
    open_store_by(&b, &calls);
    fixture_open(&b.r, backend, &b.s.options);
    test_ticket_open(&b.r, &l, 24, 12);
    train(&b.r, &l, &random, 20);
    CHECK_OK(hotbed_storage_flush(b.r.storage, b.r.stream));
    fixture_check(&b.r);
    CHECK(store_stats(&b).inserts > 0);
    CHECK(store_stats(&b).hits > 0);

    hotbed_graph *graph = NULL;
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_graph_begin(b.r.stream));
    CHECK_STATUS(
        hotbed_storage_prefetch(b.r.storage, &batch, l.ticket, b.r.stream), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "called on the caller's thread") != NULL);
    CHECK_OK(hotbed_graph_end(b.r.stream, &graph));
    hotbed_graph_destroy(graph);
    cached_close(&b);
}

/* Rows of the same name and size, but of another optimizer or type. */
static void rows_of_another_kind_are_refused(hotbed_backend backend) {
    static int number;
    char path[512];
    hotbed_external_table table;
    hotbed_external_options o = {.size = sizeof o, .num_tables = 1, .tables = &table};
    hotbed_stream *stream = hotbed_test_stream(backend);
    (void)snprintf(path, sizeof path, "%s/kinds-%d", hotbed_test_directory(), number++);
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        hotbed_external *external = NULL;
        for (int i = 0; i < 5; i++) {
            setup s;
            hotbed_storage *storage;
            setup_start(&s, 1, i == 1 ? 16 : 8, 500);
            s.options.mode = HOTBED_MODE_CACHE;
            s.tables[0].upper_capacity = 12;
            s.tables[0].state_dtype = i == 3 ? HOTBED_BF16 : HOTBED_F32;
            s.options.optimizer.kind = i == 1   ? HOTBED_OPT_SGD
                                       : i == 2 ? HOTBED_OPT_LION
                                       : i == 3 ? HOTBED_OPT_ADAM
                                                : HOTBED_OPT_ADAGRAD;
            CHECK_OK(hotbed_storage_external_tables(&s.options, &table));
            hotbed_status status = HOTBED_OK;
            if (!in_memory)
                status = hotbed_external_create_rocksdb(path, NULL, &o, &external);
            else if (external == NULL)
                status = hotbed_external_create_memory(&o, &external);
            if (status == HOTBED_ERR_UNSUPPORTED)
                break; /* this build has no RocksDB */
            CHECK_OK(status);
            s.options.external = external;
            status = hotbed_storage_create(&s.options, stream, &storage);
            CHECK_STATUS(status, i % 4 == 0 ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
            if (status != HOTBED_OK) {
                CHECK_STRING(hotbed_last_error_detail()->table, "table-0");
                CHECK(strstr(hotbed_last_error(), "f32[8], adagrad f32, not f32[") != NULL);
            }
            hotbed_storage_destroy(storage);
            if (!in_memory)
                hotbed_external_destroy(external);
        }
        if (in_memory)
            hotbed_external_destroy(external);
    }
    hotbed_stream_destroy(stream);
}

/* --- RocksDB --------------------------------------------------------------------------------- */

/* A database is closed and opened by another storage, which finds the trained rows. */
static void rows_persist_when_the_store_is_opened_again(hotbed_backend backend) {
    static int number;
    setup s;
    fixture r;
    test_ticket l;
    char path[512];
    hotbed_external_table tables[2];
    hotbed_external_options o = {.size = sizeof o};
    hotbed_external *external;
    hotbed_storage_state state = {.size = sizeof state};
    rng random = rng_start(5);
    (void)snprintf(path, sizeof path, "%s/rows-%d", hotbed_test_directory(), number++);
    setup_start(&s, 2, 8, 500);
    s.tables[0].upper_capacity = s.tables[1].upper_capacity = 12;
    s.tables[1].dim = 17;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    CHECK_OK(hotbed_storage_external_tables(&s.options, tables));
    o.num_tables = 2;
    o.tables = tables;
    hotbed_status status = hotbed_external_create_rocksdb(path, NULL, &o, &external);
    if (status == HOTBED_ERR_UNSUPPORTED)
        return; /* this build has no RocksDB */
    CHECK_OK(status);
    s.options.external = external;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 24, 12);
    train(&r, &l, &random, 10);
    CHECK_OK(hotbed_external_flush(external));
    fixture_check(&r);
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    hotbed_ticket_destroy(l.ticket);
    hotbed_storage_destroy(r.storage);
    hotbed_external_destroy(external);
    CHECK_OK(hotbed_external_create_rocksdb(path, NULL, &o, &external));
    s.options.external = external;
    CHECK_OK(hotbed_storage_create(&s.options, r.stream, &r.storage));
    CHECK_OK(hotbed_storage_set_state(r.storage, &state, r.stream));
    CHECK_OK(hotbed_ticket_create(r.storage, 24, 12, r.stream, &l.ticket));
    fixture_check_rows(&r);
    train(&r, &l, &random, 10);
    fixture_check_rows(&r);
    fixture_close(&r);
    hotbed_external_destroy(external);
}

/* Evals on many short-lived streams: their memory is freed with the stream, and a new stream at an old address gets
 * its own. */
static void memory_of_a_stream_is_freed_with_it(hotbed_backend backend) {
    enum {
        /* 18 MB for each stream */
        KEYS = 40000,
        STREAMS = 4,
        ROUNDS = 2
    };
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("a property of the host backend");
    cached_storage b;
    test_ticket l;
    cached_start(&b, 1, 64, 2 * KEYS);
    cached_open(&b, backend);
    test_ticket_open(&b.r, &l, KEYS, KEYS);
    rng random = rng_start(3);
    const batch_shape how = {.batch_size = KEYS, .key_space = 8};
    test_ticket_fill(&l, &random, &how);
    test_ticket_prefetch(&l);
    test_ticket_cancel(&l);
    test_ticket_eval(&l);
    const hotbed_batch batch = test_ticket_batch(&l);
    const uint64_t before = fixture_resident();
    for (int round = 0; round < ROUNDS; round++) {
        hotbed_stream *streams[STREAMS];
        for (int i = 0; i < STREAMS; i++) {
            CHECK_OK(hotbed_stream_create(backend, 0, &streams[i]));
            CHECK_OK(hotbed_storage_eval(b.r.storage, &batch, l.output, l.stride, streams[i]));
            CHECK_OK(hotbed_stream_sync(streams[i]));
        }
        for (int i = 0; i < STREAMS; i++)
            hotbed_stream_destroy(streams[i]);
    }
    CHECK(fixture_resident() < before + (UINT64_C(50) << 20));
    test_ticket_eval(&l);
    cached_close(&b);
}

/* Earlier steps still write to the store when clear is called; afterwards the store has none of their rows. */
static void a_clear_waits_for_earlier_steps(hotbed_backend backend) {
    for (int round = 0; round < (hotbed_test_is_small() ? 2 : 10); round++) {
        cached_storage b;
        test_ticket l;
        rng random = rng_start((uint64_t)round);
        cached_start(&b, 1, 8, 500);
        cached_open(&b, backend);
        test_ticket_open(&b.r, &l, 12, 12);
        const batch_shape how = {.batch_size = 12, .key_space = 300};
        CHECK_OK(hotbed_fill(l.gradient, 0, l.output_bytes, b.r.stream));
        for (int step = 0; step < 20; step++) {
            test_ticket_fill(&l, &random, &how);
            const hotbed_batch batch = test_ticket_batch(&l);
            CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, l.ticket, b.r.stream));
            CHECK_OK(hotbed_storage_backward(b.r.storage, l.ticket, l.gradient, 0, b.r.stream));
            if (step < 19)
                CHECK_OK(hotbed_stream_sync(b.r.stream)); /* the last step is still running */
        }
        CHECK_OK(hotbed_storage_clear(b.r.storage, 0, b.r.stream));
        uint64_t stored = 1;
        CHECK_OK(hotbed_external_size(b.external, 0, &stored));
        CHECK_EQ(stored, 0);
        CHECK_EQ(fixture_size(&b.r, 0), 0);
        cached_close(&b);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_clear_waits_for_earlier_steps)},
    {TEST(memory_of_a_stream_is_freed_with_it)},
    {TEST(keys_are_named_in_their_own_sign)},
    {TEST(upper_tiers_may_be_larger_than_the_capacity)},
    {TEST(stores_must_fit_their_storage)},
    {TEST(rows_have_the_bytes_of_the_model)},
    {TEST(only_rows_used_since_their_last_write_are_written)},
    {TEST(times_are_stored_with_their_rows)},
    {TEST(rows_carry_no_old_memory_into_the_store)},
    {TEST(keys_beyond_the_upper_tier_are_refused)},
    {TEST(a_store_may_fail_at_any_call)},
    {TEST(a_store_may_be_unreachable_for_a_while)},
    {TEST(a_torn_batch_is_never_served)},
    {TEST(calls_on_rows_return_errors_of_the_store)},
    {TEST(an_export_leaves_an_earlier_fault_latched)},
    {TEST(a_damaged_row_is_never_served)},
    {TEST(a_slow_store_blocks_the_stream_but_not_the_caller)},
    {TEST(a_store_is_called_on_the_callers_thread_if_it_wants)},
    {TEST(rows_of_another_kind_are_refused)},
    {TEST(rows_persist_when_the_store_is_opened_again)},
    {NULL, NULL},
};
