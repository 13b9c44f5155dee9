/* tests/storage/test_external.c - contract of hotbed/external.h, on every store.
 *
 * Random calls on the store in memory, on RocksDB and on a plug-in (tests/support/bad_store.h) are compared with a
 * model (tests/storage/store_fixture.h).  Also: documented errors, and calls from several threads.
 */
#include "storage/external/external.h"

#include "tests/storage/store_fixture.h"
#include "tests/support/bad_store.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- calls, on every store ------------------------------------------------------------------ */

static void random_operations_agree_with_a_model(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        store_fixture_check(b);
        for (int i = 0; i < 300; i++) {
            uint32_t t = (uint32_t)hotbed_test_below(STORE_TABLES);
            uint64_t n = 1 + hotbed_test_below(i % 10 == 0 ? STORE_BATCH_MOST : 12);
            switch (hotbed_test_below(4)) {
            case 0:
            case 1:
                store_fixture_insert(b, t, n);
                break;
            case 2:
                store_fixture_erase(b, t, n);
                break;
            default:
                store_fixture_find(b, t, n);
                break;
            }
            if (i % 100 == 99)
                store_fixture_check(b);
        }
        CHECK_OK(hotbed_external_flush(b->external));
        store_fixture_close(b);
    }
}

static void large_batches_are_stored_whole(hotbed_backend backend) {
    enum { N = 5000 };
    static uint64_t keys[N], scores[N], back[N];
    static uint8_t rows[N * 37], rows_back[N * 37], found[N];
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        for (uint64_t i = 0; i < N; i++)
            keys[i] = i * 0x9e3779b97f4a7c15U, scores[i] = i;
        for (size_t i = 0; i < sizeof rows; i++)
            rows[i] = (uint8_t)(i * 31 / 7);
        CHECK_OK(hotbed_external_insert(b->external, 1, N, keys, rows, scores));
        CHECK_OK(hotbed_external_find(b->external, 1, N, keys, found, rows_back, back));
        CHECK_BYTES(rows_back, rows, sizeof rows);
        CHECK_BYTES(back, scores, sizeof scores);
        CHECK_OK(hotbed_external_erase(b->external, 1, N, keys, found));
        for (uint64_t i = 0; i < N; i++)
            CHECK_EQ(found[i], 1);
        uint64_t size = 1;
        CHECK_OK(hotbed_external_size(b->external, 1, &size));
        CHECK_EQ(size, 0);
        store_fixture_close(b);
    }
}

static void optional_arrays_may_be_null(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        store_fixture_insert(b, 0, 20);
        CHECK_OK(hotbed_external_find(b->external, 0, 20, b->keys, b->found, NULL, NULL));
        for (int i = 0; i < 20; i++)
            CHECK_EQ(b->found[i], HOTBED_EXTERNAL_FOUND);
        CHECK_OK(hotbed_external_insert(b->external, 0, 1, b->keys, b->rows, NULL));
        CHECK_OK(hotbed_external_find(b->external, 0, 1, b->keys, b->found, NULL, b->scores));
        CHECK_EQ(b->scores[0], 0);
        CHECK_OK(hotbed_external_erase(b->external, 0, 20, b->keys, NULL));
        CHECK_OK(hotbed_external_erase(b->external, 0, 20, b->keys, NULL)); /* erases nothing */
        memset(b->model, 0, sizeof b->model);
        store_fixture_check(b);
        CHECK_OK(hotbed_external_find(b->external, 0, 0, NULL, NULL, NULL, NULL));
        CHECK_OK(hotbed_external_insert(b->external, 0, 0, NULL, NULL, NULL));
        CHECK_OK(hotbed_external_erase(b->external, 0, 0, NULL, NULL));
        store_fixture_close(b);
    }
}

static void a_cursor_gives_every_row_that_stays(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        for (int i = 0; i < 10; i++)
            store_fixture_insert(b, 0, STORE_BATCH_MOST);
        hotbed_external_cursor *cursor = NULL;
        bool stays[STORE_SPACE], seen[STORE_SPACE] = {false};
        for (int i = 0; i < STORE_SPACE; i++)
            stays[i] = b->model[0].there[i];
        CHECK_OK(hotbed_external_cursor_create(b->external, 0, &cursor));
        for (uint64_t n = 1; n > 0;) {
            CHECK_OK(hotbed_external_cursor_next(cursor, 9, b->keys, b->rows, NULL, &n));
            for (uint64_t i = 0; i < n; i++) {
                CHECK(!seen[store_fixture_index(b->keys[i])]);
                seen[store_fixture_index(b->keys[i])] = true;
            }
            store_fixture_erase(b, 0, 2);
            for (int i = 0; i < STORE_SPACE; i++)
                stays[i] = stays[i] && b->model[0].there[i];
            store_fixture_insert(b, 0, 3);
        }
        hotbed_external_cursor_destroy(cursor);
        for (int i = 0; i < STORE_SPACE; i++)
            CHECK(!stays[i] || seen[i]);
        store_fixture_close(b);
    }
}

static void arguments_are_checked_first(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        hotbed_external *x = b->external;
        hotbed_external_cursor *cursor = (void *)b;
        uint64_t n = 5;
        const hotbed_status no = HOTBED_ERR_ARGUMENT;
        CHECK_STATUS(hotbed_external_find(NULL, 0, 1, b->keys, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, STORE_TABLES, 1, b->keys, b->found, NULL, NULL), no);
        CHECK(store_error_has("table 2 is not below 2"));
        CHECK_STATUS(hotbed_external_find(x, 0, 1, NULL, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, 0, 1, b->keys, NULL, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, 0, UINT64_MAX, b->keys, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_insert(x, 0, 1, b->keys, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_insert(x, 0, 1, NULL, b->rows, NULL), no);
        CHECK_STATUS(hotbed_external_erase(x, 9, 1, b->keys, NULL), no);
        CHECK_STATUS(hotbed_external_flush(NULL), no);
        CHECK_STATUS(hotbed_external_size(x, 0, NULL), no);
        CHECK_STATUS(hotbed_external_cursor_create(x, 0, NULL), no);
        CHECK_STATUS(hotbed_external_cursor_create(x, STORE_TABLES, &cursor), no);
        CHECK(cursor == NULL);
        CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
        CHECK_STATUS(hotbed_external_cursor_next(cursor, 0, b->keys, b->rows, NULL, &n), no);
        CHECK_STATUS(hotbed_external_cursor_next(cursor, 1, NULL, b->rows, NULL, &n), no);
        CHECK_EQ(n, 5);
        hotbed_external_cursor_destroy(cursor);
        hotbed_external_cursor_destroy(NULL);
        hotbed_external_destroy(NULL);
        CHECK_EQ(hotbed_external_num_tables(x), STORE_TABLES);
        hotbed_external_table t;
        CHECK_OK(hotbed_external_table_read(x, 1, &t));
        CHECK_STRING(t.name, "item.id");
        CHECK_EQ(t.row_bytes, 37);
        CHECK_STATUS(hotbed_external_table_read(x, 2, &t), no);
        store_fixture_close(b);
    }
}

static void options_are_checked(hotbed_backend backend) {
    const hotbed_status no = HOTBED_ERR_ARGUMENT;
    hotbed_external_table tables[STORE_TABLES] = {{"user", 8}, {"user", 8}};
    hotbed_external *x = NULL;
    hotbed_external_options o = store_fixture_options();
    o.tables = tables;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK(x == NULL && store_error_has("two tables have the same name user"));
    tables[1].name = "a b";
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].name = "";
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].name = NULL;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1] = (hotbed_external_table){"item", 0};
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK(store_error_has("table item: row_bytes 0"));
    tables[1].row_bytes = (1 << 20) + 1;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].row_bytes = 8;
    o.deadline_seconds = -1;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    o.deadline_seconds = 0;
    o.num_tables = 0;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK_STATUS(hotbed_external_create_memory(NULL, &x), no);
    o.num_tables = STORE_TABLES;
    hotbed_external_calls calls = bad_store_calls;
    calls.insert = NULL;
    CHECK_STATUS(hotbed_external_create(&o, &calls, NULL, &x), no);
    CHECK(store_error_has("insert is NULL"));
    CHECK_STATUS(hotbed_external_create(&o, NULL, NULL, &x), no);
    CHECK(x == NULL);
}

/* --- threads and streams --------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 30 };

typedef struct worker {
    hotbed_external *external;
    uint64_t number;
    pthread_t thread;
} worker;

static void *work(void *argument) {
    const worker *w = argument;
    uint64_t keys[16];
    uint8_t rows[16 * 37], back[16 * 37], found[16];
    for (uint64_t r = 0; r < ROUNDS; r++) {
        for (uint64_t i = 0; i < 16; i++)
            keys[i] = w->number * 1000 + (r * 5 + i) % 40;
        memset(rows, (int)(w->number * ROUNDS + r), sizeof rows);
        CHECK_OK(hotbed_external_insert(w->external, 1, 16, keys, rows, NULL));
        CHECK_OK(hotbed_external_find(w->external, 1, 16, keys, found, back, NULL));
        CHECK_BYTES(back, rows, sizeof rows);
        CHECK_OK(hotbed_external_erase(w->external, 1, 3, keys, found));
        CHECK_EQ(found[2], 1);
        hotbed_external_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_external_stats_read(w->external, &stats));
    }
    return NULL;
}

static void calls_from_several_threads_are_serialized(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        worker workers[THREADS];
        for (uint64_t i = 0; i < THREADS; i++) {
            workers[i] = (worker){.external = b->external, .number = i};
            CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
        hotbed_external_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_external_stats_read(b->external, &stats));
        CHECK_EQ(stats.inserts, THREADS * ROUNDS * 16);
        CHECK_EQ(stats.hits, THREADS * ROUNDS * 16);
        store_fixture_close(b);
    }
}

/* The first call that does not return STATE, counted from 1; 0: all did. */
static int forked_child(store_fixture *b, hotbed_external_cursor *cursor) {
    hotbed_external_cursor *other = NULL;
    hotbed_external_stats stats = {.size = sizeof stats};
    uint64_t n = 0;
    const hotbed_status statuses[] = {
        hotbed_external_find(b->external, 0, 1, b->keys, b->found, b->rows, NULL),
        hotbed_external_insert(b->external, 0, 1, b->keys, b->rows, NULL),
        hotbed_external_erase(b->external, 0, 1, b->keys, NULL),
        hotbed_external_flush(b->external),
        hotbed_external_size(b->external, 0, &n),
        hotbed_external_cursor_create(b->external, 0, &other),
        hotbed_external_cursor_next(cursor, 1, b->keys, b->rows, b->scores, &n),
        hotbed_external_stats_read(b->external, &stats),
        hotbed_external_failure(b->external, NULL, 0),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i] != HOTBED_ERR_STATE)
            return (int)i + 1;
    if (strstr(hotbed_last_error(), "forked") == NULL)
        return 100;
    hotbed_external_cursor_destroy(cursor);
    hotbed_external_destroy(b->external);
    return 0;
}

/* A store may have threads, and a lock that another thread held at the fork stays locked in the child. */
static void a_forked_child_gets_errors(hotbed_backend backend) {
    for (int k = 0; k < store_num_kinds(); k++) {
        store_fixture *b = store_fixture_open(store_kinds[k]);
        hotbed_external_cursor *cursor;
        int status = 0;
        store_fixture_insert(b, 0, 20);
        CHECK_OK(hotbed_external_cursor_create(b->external, 0, &cursor));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(forked_child(b, cursor));
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
        hotbed_external_cursor_destroy(cursor);
        store_fixture_check(b); /* the parent goes on */
        store_fixture_close(b);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(random_operations_agree_with_a_model)},
    {TEST(large_batches_are_stored_whole)},
    {TEST(optional_arrays_may_be_null)},
    {TEST(a_cursor_gives_every_row_that_stays)},
    {TEST(arguments_are_checked_first)},
    {TEST(options_are_checked)},
    {TEST(calls_from_several_threads_are_serialized)},
    {TEST(a_forked_child_gets_errors)},
    {NULL, NULL},
};
