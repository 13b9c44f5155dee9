/* tests/storage/test_external.c - external stores: the contract on every one, and what bad ones lead to. */
#include "hotbed/external.h"

#include "tests/support/bad_store.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 2, SPACE = 300, ROW_MOST = 72, BATCH_MOST = 120 };

static const uint64_t row_bytes[TABLES] = {ROW_MOST, 37};
static const hotbed_external_table two_tables[TABLES] = {{"user", ROW_MOST}, {"item.id", 37}};

typedef enum store_kind { MEMORY, BAD, ROCKSDB } store_kind;

static const store_kind kinds[] = {MEMORY, BAD, ROCKSDB};

/* --- a store beside its model ------------------------------------------------------------------- */

typedef struct model {
    bool there[SPACE];
    uint64_t scores[SPACE];
    uint8_t rows[SPACE][ROW_MOST];
} model;

typedef struct box {
    hotbed_external *external;
    bad_store bad;
    bool is_bad;
    model model[TABLES];
    /* A batch: */
    uint64_t n, keys[BATCH_MOST], scores[BATCH_MOST];
    uint8_t rows[BATCH_MOST * ROW_MOST], found[BATCH_MOST];
} box;

static hotbed_external_options options_of(void) {
    hotbed_external_options o;
    hotbed_external_options_init(&o);
    o.num_tables = TABLES;
    o.tables = two_tables;
    return o;
}

static void path_of(char *path, size_t bytes, const char *name) {
    static const char *directory; /* one for all tests */
    static unsigned number;
    if (directory == NULL)
        directory = hotbed_test_directory();
    snprintf(path, bytes, "%s/%s-%u", directory, name, number++);
}

/* How many of `kinds` this build has: RocksDB is the last. */
static int num_kinds(void) {
    hotbed_external *x = NULL;
    hotbed_status status = hotbed_external_create_rocksdb(NULL, NULL, NULL, &x);
    CHECK(status == HOTBED_ERR_ARGUMENT || status == HOTBED_ERR_UNSUPPORTED);
    CHECK(x == NULL);
    return status == HOTBED_ERR_UNSUPPORTED ? 2 : 3;
}

static box *open_with(store_kind kind, const hotbed_external_options *o) {
    box *b = calloc(1, sizeof *b);
    char path[512];
    CHECK(b != NULL);
    switch (kind) {
    case MEMORY:
        CHECK_OK(hotbed_external_create_memory(o, &b->external));
        break;
    case BAD:
        bad_store_start(&b->bad);
        b->is_bad = true;
        CHECK_OK(hotbed_external_create(o, &bad_store_calls, &b->bad, &b->external));
        break;
    case ROCKSDB:
        path_of(path, sizeof path, "store");
        CHECK_OK(hotbed_external_create_rocksdb(path, NULL, o, &b->external));
        break;
    }
    return b;
}

static box *open_box(store_kind kind) {
    hotbed_external_options o = options_of();
    return open_with(kind, &o);
}

static void close_box(box *b) {
    hotbed_external_destroy(b->external);
    if (b->is_bad)
        bad_store_end(&b->bad);
    free(b);
}

/* Number `i` of the keys that tests use: 0, 1, 2 ..., and from both ends of their range. */
static uint64_t key_of(uint64_t i) {
    return i % 3 == 0 ? i / 3 : i % 3 == 1 ? UINT64_MAX - i / 3 : ((uint64_t)1 << 63) + i / 3;
}

static uint64_t index_of(uint64_t key) {
    if (key >> 63 == 0)
        return key * 3;
    return key > UINT64_MAX / 4 * 3 ? (UINT64_MAX - key) * 3 + 1 : (key << 1 >> 1) * 3 + 2;
}

/* A batch of n distinct random keys with random rows and scores. */
static void random_batch(box *b, uint32_t t, uint64_t n) {
    uint64_t first = hotbed_test_below(SPACE), step = 7; /* 7 and SPACE have no common factor */
    b->n = n;
    for (uint64_t i = 0; i < n; i++) {
        b->keys[i] = key_of((first + i * step) % SPACE);
        b->scores[i] = hotbed_test_random();
    }
    for (uint64_t i = 0; i < n * row_bytes[t]; i++)
        b->rows[i] = (uint8_t)hotbed_test_random();
}

static hotbed_status insert_batch(box *b, uint32_t t) {
    return hotbed_external_insert(b->external, t, b->n, b->keys, b->rows, b->scores);
}

static void model_insert(box *b, uint32_t t) {
    for (uint64_t i = 0; i < b->n; i++) {
        uint64_t k = index_of(b->keys[i]);
        b->model[t].there[k] = true;
        b->model[t].scores[k] = b->scores[i];
        memcpy(b->model[t].rows[k], b->rows + i * row_bytes[t], row_bytes[t]);
    }
}

static void insert(box *b, uint32_t t, uint64_t n) {
    random_batch(b, t, n);
    CHECK_OK(insert_batch(b, t));
    model_insert(b, t);
}

static void erase(box *b, uint32_t t, uint64_t n) {
    random_batch(b, t, n);
    CHECK_OK(hotbed_external_erase(b->external, t, n, b->keys, b->found));
    for (uint64_t i = 0; i < n; i++) {
        CHECK_EQ(b->found[i], b->model[t].there[index_of(b->keys[i])]);
        b->model[t].there[index_of(b->keys[i])] = false;
    }
}

/* n random keys, repeats allowed, are as in the model; rows of missing keys are left alone. */
static void find(box *b, uint32_t t, uint64_t n) {
    uint8_t untouched[ROW_MOST];
    memset(untouched, 0xa5, sizeof untouched);
    memset(b->rows, 0xa5, sizeof b->rows);
    for (uint64_t i = 0; i < n; i++) {
        b->keys[i] = key_of(hotbed_test_below(SPACE));
        b->scores[i] = 77;
    }
    CHECK_OK(hotbed_external_find(b->external, t, n, b->keys, b->found, b->rows, b->scores));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = index_of(b->keys[i]);
        const model *m = &b->model[t];
        CHECK_EQ(b->found[i], m->there[k]);
        CHECK_EQ(b->scores[i], m->there[k] ? m->scores[k] : 77);
        CHECK_BYTES(b->rows + i * row_bytes[t], m->there[k] ? m->rows[k] : untouched, row_bytes[t]);
    }
}

static uint64_t model_size(const box *b, uint32_t t) {
    uint64_t size = 0;
    for (uint64_t k = 0; k < SPACE; k++)
        size += b->model[t].there[k];
    return size;
}

/* All of a table, `capacity` rows at a time, is the model's. */
static void check_table(box *b, uint32_t t, uint64_t capacity) {
    bool seen[SPACE] = {false};
    uint64_t n = 0, total = 0;
    hotbed_external_cursor *cursor = NULL;
    CHECK_OK(hotbed_external_cursor_create(b->external, t, &cursor));
    do {
        CHECK_OK(hotbed_external_cursor_next(cursor, capacity, b->keys, b->rows, b->scores, &n));
        CHECK(n <= capacity);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t k = index_of(b->keys[i]);
            CHECK(k < SPACE && !seen[k] && b->model[t].there[k]);
            seen[k] = true;
            CHECK_EQ(b->scores[i], b->model[t].scores[k]);
            CHECK_BYTES(b->rows + i * row_bytes[t], b->model[t].rows[k], row_bytes[t]);
        }
        total += n;
    } while (n > 0);
    CHECK_OK(hotbed_external_cursor_next(cursor, capacity, b->keys, b->rows, NULL, &n));
    CHECK_EQ(n, 0); /* the end stays the end */
    hotbed_external_cursor_destroy(cursor);
    CHECK_EQ(total, model_size(b, t));
    uint64_t size = 0;
    CHECK_OK(hotbed_external_size(b->external, t, &size));
    CHECK_EQ(size, total);
}

static void check_all(box *b) {
    for (uint32_t t = 0; t < TABLES; t++)
        check_table(b, t, 1 + hotbed_test_below(BATCH_MOST));
}

static bool last_error_has(const char *part) {
    return strstr(hotbed_last_error(), part) != NULL;
}

/* --- the contract, on every store ------------------------------------------------------------------- */

static void random_operations_agree_with_a_model(hotbed_backend backend) {
    (void)backend;
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        check_all(b);
        for (int i = 0; i < 300; i++) {
            uint32_t t = (uint32_t)hotbed_test_below(TABLES);
            uint64_t n = 1 + hotbed_test_below(i % 10 == 0 ? BATCH_MOST : 12);
            switch (hotbed_test_below(4)) {
            case 0:
            case 1:
                insert(b, t, n);
                break;
            case 2:
                erase(b, t, n);
                break;
            default:
                find(b, t, n);
                break;
            }
            if (i % 100 == 99)
                check_all(b);
        }
        CHECK_OK(hotbed_external_flush(b->external));
        close_box(b);
    }
}

static void large_batches_are_whole(hotbed_backend backend) {
    (void)backend;
    enum { N = 5000 };
    static uint64_t keys[N], scores[N], back[N];
    static uint8_t rows[N * 37], rows_back[N * 37], found[N];
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
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
        close_box(b);
    }
}

static void parts_that_are_not_wanted_may_be_null(hotbed_backend backend) {
    (void)backend;
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        insert(b, 0, 20);
        CHECK_OK(hotbed_external_find(b->external, 0, 20, b->keys, b->found, NULL, NULL));
        for (int i = 0; i < 20; i++)
            CHECK_EQ(b->found[i], HOTBED_EXTERNAL_FOUND);
        CHECK_OK(hotbed_external_insert(b->external, 0, 1, b->keys, b->rows, NULL));
        CHECK_OK(hotbed_external_find(b->external, 0, 1, b->keys, b->found, NULL, b->scores));
        CHECK_EQ(b->scores[0], 0);
        CHECK_OK(hotbed_external_erase(b->external, 0, 20, b->keys, NULL));
        CHECK_OK(hotbed_external_erase(b->external, 0, 20, b->keys, NULL)); /* they are gone */
        memset(b->model, 0, sizeof b->model);
        check_all(b);
        CHECK_OK(hotbed_external_find(b->external, 0, 0, NULL, NULL, NULL, NULL));
        CHECK_OK(hotbed_external_insert(b->external, 0, 0, NULL, NULL, NULL));
        CHECK_OK(hotbed_external_erase(b->external, 0, 0, NULL, NULL));
        close_box(b);
    }
}

static void a_walk_sees_what_stays(hotbed_backend backend) {
    (void)backend;
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        for (int i = 0; i < 10; i++)
            insert(b, 0, BATCH_MOST);
        hotbed_external_cursor *cursor = NULL;
        bool stays[SPACE], seen[SPACE] = {false};
        for (int i = 0; i < SPACE; i++)
            stays[i] = b->model[0].there[i];
        CHECK_OK(hotbed_external_cursor_create(b->external, 0, &cursor));
        for (uint64_t n = 1; n > 0;) {
            CHECK_OK(hotbed_external_cursor_next(cursor, 9, b->keys, b->rows, NULL, &n));
            for (uint64_t i = 0; i < n; i++) {
                CHECK(!seen[index_of(b->keys[i])]);
                seen[index_of(b->keys[i])] = true;
            }
            erase(b, 0, 2);
            for (int i = 0; i < SPACE; i++)
                stays[i] = stays[i] && b->model[0].there[i];
            insert(b, 0, 3);
        }
        hotbed_external_cursor_destroy(cursor);
        for (int i = 0; i < SPACE; i++)
            CHECK(!stays[i] || seen[i]);
        close_box(b);
    }
}

static void arguments_are_checked_first(hotbed_backend backend) {
    (void)backend;
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        hotbed_external *x = b->external;
        hotbed_external_cursor *cursor = (void *)b;
        uint64_t n = 5;
        const hotbed_status no = HOTBED_ERR_ARGUMENT;
        CHECK_STATUS(hotbed_external_find(NULL, 0, 1, b->keys, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, TABLES, 1, b->keys, b->found, NULL, NULL), no);
        CHECK(last_error_has("table 2 is not below 2"));
        CHECK_STATUS(hotbed_external_find(x, 0, 1, NULL, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, 0, 1, b->keys, NULL, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_find(x, 0, UINT64_MAX, b->keys, b->found, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_insert(x, 0, 1, b->keys, NULL, NULL), no);
        CHECK_STATUS(hotbed_external_insert(x, 0, 1, NULL, b->rows, NULL), no);
        CHECK_STATUS(hotbed_external_erase(x, 9, 1, b->keys, NULL), no);
        CHECK_STATUS(hotbed_external_flush(NULL), no);
        CHECK_STATUS(hotbed_external_size(x, 0, NULL), no);
        CHECK_STATUS(hotbed_external_cursor_create(x, 0, NULL), no);
        CHECK_STATUS(hotbed_external_cursor_create(x, TABLES, &cursor), no);
        CHECK(cursor == NULL);
        CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
        CHECK_STATUS(hotbed_external_cursor_next(cursor, 0, b->keys, b->rows, NULL, &n), no);
        CHECK_STATUS(hotbed_external_cursor_next(cursor, 1, NULL, b->rows, NULL, &n), no);
        CHECK_EQ(n, 5);
        hotbed_external_cursor_destroy(cursor);
        hotbed_external_cursor_destroy(NULL);
        hotbed_external_destroy(NULL);
        CHECK_EQ(hotbed_external_num_tables(x), TABLES);
        hotbed_external_table t;
        CHECK_OK(hotbed_external_table_read(x, 1, &t));
        CHECK_STRING(t.name, "item.id");
        CHECK_EQ(t.row_bytes, 37);
        CHECK_STATUS(hotbed_external_table_read(x, 2, &t), no);
        close_box(b);
    }
}

static void options_are_checked(hotbed_backend backend) {
    (void)backend;
    const hotbed_status no = HOTBED_ERR_ARGUMENT;
    hotbed_external_table tables[TABLES] = {{"user", 8}, {"user", 8}};
    hotbed_external *x = NULL;
    hotbed_external_options o = options_of();
    o.tables = tables;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK(x == NULL && last_error_has("two tables have the same name user"));
    tables[1].name = "a b";
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].name = "";
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].name = NULL;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1] = (hotbed_external_table){"item", 0};
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK(last_error_has("table item: row_bytes 0"));
    tables[1].row_bytes = (1 << 20) + 1;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    tables[1].row_bytes = 8;
    o.deadline_seconds = -1;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    o.deadline_seconds = 0;
    o.num_tables = 0;
    CHECK_STATUS(hotbed_external_create_memory(&o, &x), no);
    CHECK_STATUS(hotbed_external_create_memory(NULL, &x), no);
    o.num_tables = TABLES;
    hotbed_external_calls calls = bad_store_calls;
    calls.insert = NULL;
    CHECK_STATUS(hotbed_external_create(&o, &calls, NULL, &x), no);
    CHECK(last_error_has("insert is NULL"));
    CHECK_STATUS(hotbed_external_create(&o, NULL, NULL, &x), no);
    CHECK(x == NULL);
}

/* --- stores that fail ----------------------------------------------------------------------------- */

static void an_open_that_fails_leaves_nothing(hotbed_backend backend) {
    (void)backend;
    hotbed_external_options o = options_of();
    hotbed_external *x = NULL;
    bad_store bad;
    bad_store_start(&bad);
    bad_store_next(&bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_create(&o, &bad_store_calls, &bad, &x), HOTBED_ERR_IO);
    CHECK(x == NULL && last_error_has("store bad: open failed: open was told to"));
    bad.way = BAD_NOT; /* the plug-in is still the test's */
    CHECK_OK(hotbed_external_create(&o, &bad_store_calls, &bad, &x));
    hotbed_external_destroy(x);
    bad_store_end(&bad);
}

/* A fixed run of calls; each is repeated when it fails, once. */
static uint64_t run_script(box *b) {
    uint64_t failures = 0, size = 0;
    for (int i = 0; i < 6; i++) {
        uint32_t t = (uint32_t)i % TABLES;
        random_batch(b, t, 30);
        if (insert_batch(b, t) != HOTBED_OK) {
            failures++;
            CHECK(last_error_has("was told to"));
            check_all(b); /* none of it is there */
            random_batch(b, t, 30);
            CHECK_OK(insert_batch(b, t));
        }
        model_insert(b, t);
        random_batch(b, t, 10);
        if (hotbed_external_erase(b->external, t, 10, b->keys, b->found) != HOTBED_OK) {
            failures++;
            for (int k = 0; k < 10; k++)
                CHECK_EQ(b->found[k], HOTBED_EXTERNAL_UNKNOWN);
        } else {
            for (int k = 0; k < 10; k++)
                b->model[t].there[index_of(b->keys[k])] = false;
        }
        if (hotbed_external_find(b->external, t, 10, b->keys, b->found, b->rows, NULL) !=
            HOTBED_OK) {
            failures++;
            for (int k = 0; k < 10; k++)
                CHECK_EQ(b->found[k], HOTBED_EXTERNAL_UNKNOWN);
        }
    }
    failures += hotbed_external_flush(b->external) != HOTBED_OK;
    failures += hotbed_external_size(b->external, 0, &size) != HOTBED_OK;
    return failures;
}

static void a_store_may_fail_at_any_call(hotbed_backend backend) {
    (void)backend;
    static const hotbed_status statuses[] = {
        HOTBED_ERR_IO, HOTBED_ERR_MEMORY, HOTBED_ERR_FULL, HOTBED_ERR_CORRUPT};
    for (uint64_t n = 1;; n++) {
        box *b = open_box(BAD);
        b->bad.way = BAD_FAIL;
        b->bad.from = b->bad.to = n;
        b->bad.status = statuses[n % 4];
        uint64_t failures = run_script(b);
        bool done = b->bad.calls < n;
        CHECK_EQ(failures, done ? 0 : 1);
        b->bad.way = BAD_NOT;
        check_all(b);
        char text[256];
        CHECK_EQ(
            hotbed_external_failure(b->external, text, sizeof text),
            done ? HOTBED_OK : b->bad.status);
        CHECK(done ? text[0] == 0 : strstr(text, "was told to") != NULL);
        close_box(b);
        if (done)
            break;
    }
}

static void an_export_can_go_on_after_a_failure(hotbed_backend backend) {
    (void)backend;
    box *b = open_box(BAD);
    insert(b, 0, 40);
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 9, total = 0;
    bad_store_next(&b->bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_cursor_create(b->external, 0, &cursor), HOTBED_ERR_IO);
    CHECK(cursor == NULL);
    CHECK_OK(hotbed_external_cursor_create(b->external, 0, &cursor));
    do {
        bad_store_next(&b->bad, BAD_FAIL, 1);
        CHECK_STATUS(
            hotbed_external_cursor_next(cursor, 7, b->keys, b->rows, NULL, &n), HOTBED_ERR_IO);
        CHECK_EQ(n, 0);
        CHECK_OK(hotbed_external_cursor_next(cursor, 7, b->keys, b->rows, NULL, &n));
        total += n;
    } while (n > 0);
    CHECK_EQ(total, 40);
    hotbed_external_cursor_destroy(cursor);
    close_box(b);
}

/* --- stores that break their word ------------------------------------------------------------------- */

static void check_broken(box *b) {
    uint64_t size = 0;
    hotbed_external_cursor *cursor = NULL;
    const hotbed_status bad = HOTBED_ERR_CORRUPT;
    uint64_t calls = b->bad.calls;
    CHECK_STATUS(
        hotbed_external_find(b->external, 1, 1, b->keys, b->found, b->rows, b->scores), bad);
    CHECK(last_error_has("is broken"));
    CHECK_EQ(b->found[0], HOTBED_EXTERNAL_UNKNOWN);
    CHECK_STATUS(insert_batch(b, 0), bad);
    CHECK_STATUS(hotbed_external_erase(b->external, 0, 1, b->keys, NULL), bad);
    CHECK_STATUS(hotbed_external_flush(b->external), bad);
    CHECK_STATUS(hotbed_external_size(b->external, 0, &size), bad);
    CHECK_STATUS(hotbed_external_cursor_create(b->external, 0, &cursor), bad);
    CHECK_EQ(b->bad.calls, calls);
}

static void a_torn_batch_breaks_the_store(hotbed_backend backend) {
    (void)backend;
    box *b = open_box(BAD);
    insert(b, 0, 50);
    random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_TEAR, 1);
    CHECK_STATUS(insert_batch(b, 0), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("5 of the 10 rows of a batch are in table user"));
    check_broken(b);
    close_box(b);
}

static void a_batch_that_was_written_after_all_is_whole(hotbed_backend backend) {
    (void)backend;
    box *b = open_box(BAD);
    insert(b, 0, 50);
    random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_DONE, 1);
    CHECK_STATUS(insert_batch(b, 0), HOTBED_ERR_IO);
    CHECK(last_error_has("was told to"));
    model_insert(b, 0); /* all are new */
    check_all(b);
    CHECK_OK(insert_batch(b, 0));
    check_all(b);
    close_box(b);
}

/* The store is away when the insert fails, and for some calls after it. */
static void an_insert_is_settled_when_the_store_is_back(hotbed_backend backend) {
    (void)backend;
    static const bad_way ways[] = {BAD_FAIL, BAD_DONE, BAD_TEAR};
    for (int w = 0; w < 3; w++) {
        box *b = open_box(BAD);
        insert(b, 0, 50);
        random_batch(b, 0, 10);
        /* Of the n-th call and the later ones, the insert is bad in its way, and the rest fails. */
        bad_store_next(&b->bad, ways[w], 1);
        b->bad.fail_after = b->bad.from;
        CHECK_STATUS(insert_batch(b, 0), HOTBED_ERR_IO);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(
                hotbed_external_find(b->external, 1, 1, b->keys, b->found, NULL, NULL),
                HOTBED_ERR_IO);
            CHECK(last_error_has("reading back of 10 rows, table user, failed"));
        }
        b->bad.fail_after = 0;
        if (ways[w] == BAD_TEAR) {
            CHECK_STATUS(hotbed_external_flush(b->external), HOTBED_ERR_CORRUPT);
            check_broken(b);
        } else {
            if (ways[w] == BAD_DONE)
                model_insert(b, 0);
            check_all(b);
        }
        close_box(b);
    }
}

static void a_lost_row_is_found_when_writes_are_verified(hotbed_backend backend) {
    (void)backend;
    hotbed_external_options o = options_of();
    o.verify_writes = true;
    box *b = open_with(BAD, &o);
    insert(b, 0, 50);
    check_all(b);
    random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_LOSE, 1);
    CHECK_STATUS(insert_batch(b, 0), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("5 of the 10 rows"));
    check_broken(b);
    close_box(b);
}

static void a_damaged_row_is_never_served(hotbed_backend backend) {
    (void)backend;
    static const bad_way ways[] = {BAD_BYTE, BAD_SCORE, BAD_OTHER_TABLE};
    static const hotbed_external_table alike[TABLES] = {{"user", ROW_MOST}, {"item", ROW_MOST}};
    hotbed_external_options o = options_of();
    o.tables = alike;
    box *b = open_with(BAD, &o);
    random_batch(b, 0, 20);
    CHECK_OK(insert_batch(b, 0));
    CHECK_OK(insert_batch(b, 1)); /* the same rows under the same keys */
    for (int w = 0; w < 3; w++) {
        bad_store_next(&b->bad, ways[w], 1);
        CHECK_STATUS(
            hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, b->scores),
            HOTBED_ERR_CORRUPT);
        CHECK(last_error_has("table user, key ") && last_error_has("the row is damaged"));
        for (int i = 0; i < 20; i++)
            CHECK_EQ(b->found[i], HOTBED_EXTERNAL_UNKNOWN);
        CHECK_OK(hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, NULL));
    }
    bad_store_next(&b->bad, BAD_HALF_ROW, 1);
    CHECK_OK(insert_batch(b, 0)); /* nobody noticed */
    CHECK_STATUS(
        hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, NULL),
        HOTBED_ERR_CORRUPT);
    CHECK_OK(hotbed_external_find(b->external, 0, 19, b->keys, b->found, b->rows, NULL));
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 0;
    static const bad_way export_ways[] = {BAD_BYTE, BAD_SCORE, BAD_COUNT};
    for (int w = 0; w < 3; w++) {
        CHECK_OK(hotbed_external_cursor_create(b->external, 1, &cursor));
        bad_store_next(&b->bad, export_ways[w], 1);
        for (int again = 0; again < 2; again++) { /* an export has no holes */
            CHECK_STATUS(
                hotbed_external_cursor_next(cursor, 5, b->keys, b->rows, NULL, &n),
                HOTBED_ERR_CORRUPT);
            CHECK_EQ(n, 0);
            CHECK(again == 1 || w != 2 || last_error_has("gave 6 rows, 5 were asked for"));
        }
        hotbed_external_cursor_destroy(cursor);
    }
    close_box(b);
}

static void every_byte_of_a_row_is_sealed(hotbed_backend backend) {
    (void)backend;
    /* Row lengths around the 8 and 32 bytes that the seal takes at a time. */
    static const uint64_t lengths[] = {1, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, ROW_MOST};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        hotbed_external_table one = {"one", lengths[l]};
        hotbed_external_options o = options_of();
        o.num_tables = 1;
        o.tables = &one;
        box *b = open_with(BAD, &o);
        uint64_t key = hotbed_test_random();
        for (uint64_t at = 0; at < lengths[l]; at++) {
            for (uint64_t i = 0; i < lengths[l]; i++)
                b->rows[i] = (uint8_t)hotbed_test_random();
            CHECK_OK(hotbed_external_insert(b->external, 0, 1, &key, b->rows, NULL));
            b->bad.row_bytes[0] = at + 1; /* BAD_BYTE changes the last one */
            bad_store_next(&b->bad, BAD_BYTE, 1);
            CHECK_STATUS(
                hotbed_external_find(b->external, 0, 1, &key, b->found, b->rows, NULL),
                HOTBED_ERR_CORRUPT);
        }
        close_box(b);
    }
}

static void what_a_plug_in_returns_is_checked(hotbed_backend backend) {
    (void)backend;
    box *b = open_box(BAD);
    insert(b, 0, 10);
    bad_store_next(&b->bad, BAD_FLAG, 1);
    CHECK_STATUS(
        hotbed_external_find(b->external, 0, 10, b->keys, b->found, NULL, NULL),
        HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("flag 7 is not 0 or 1"));
    bad_store_next(&b->bad, BAD_FLAG, 1);
    CHECK_STATUS(hotbed_external_erase(b->external, 1, 10, b->keys, b->found), HOTBED_ERR_CORRUPT);
    b->bad.status = (hotbed_status)77;
    bad_store_next(&b->bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_flush(b->external), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("flush returned status 77"));
    close_box(b);
}

static void deadlines_reach_the_store_and_late_calls_are_counted(hotbed_backend backend) {
    (void)backend;
    hotbed_external_options o = options_of();
    hotbed_external_stats stats;
    box *b = open_with(BAD, &o);
    insert(b, 0, 10);
    CHECK_EQ(b->bad.last_deadline, UINT64_MAX);
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    CHECK_EQ(stats.late, 0);
    close_box(b);
    o.deadline_seconds = 1e-9; /* over before the call returns */
    b = open_with(BAD, &o);
    insert(b, 0, 10);
    CHECK(b->bad.last_deadline < UINT64_MAX);
    find(b, 0, 10);
    check_all(b); /* what came late is right */
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    CHECK(stats.late > 2 && stats.late == stats.calls);
    CHECK(stats.inserts == 10 && stats.finds == 10 && stats.failures == 0);
    CHECK(stats.seconds > 0 && stats.stream_waits == 0);
    close_box(b);
}

static void allocations_may_fail(hotbed_backend backend) {
    (void)backend;
    hotbed_external_options o = options_of();
    hotbed_external *x = NULL;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_external_create_memory(&o, &x);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(x == NULL);
    }
    hotbed_external_destroy(x);
    box *b = open_box(MEMORY);
    enum { N = 1000 };
    static uint64_t keys[N];
    static uint8_t rows[N * ROW_MOST], found[N];
    for (uint64_t i = 0; i < N; i++)
        keys[i] = i;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_external_insert(b->external, 0, N, keys, rows, NULL);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        uint64_t size = 1;
        CHECK_OK(hotbed_external_size(b->external, 0, &size));
        CHECK_EQ(size, 0);
    }
    CHECK_OK(hotbed_external_find(b->external, 0, N, keys, found, rows, NULL));
    for (uint64_t n = 1;; n++) {
        hotbed_external_cursor *cursor = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_external_cursor_create(b->external, 0, &cursor);
        bool failed = fault_disarm();
        CHECK_STATUS(status, failed ? HOTBED_ERR_MEMORY : HOTBED_OK);
        hotbed_external_cursor_destroy(cursor);
        if (!failed)
            break;
    }
    close_box(b);
}

/* --- threads and streams ---------------------------------------------------------------------------- */

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
        hotbed_external_stats stats;
        CHECK_OK(hotbed_external_stats_read(w->external, &stats));
    }
    return NULL;
}

static void threads_take_turns(hotbed_backend backend) {
    (void)backend;
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        worker workers[THREADS];
        for (uint64_t i = 0; i < THREADS; i++) {
            workers[i] = (worker){.external = b->external, .number = i};
            CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
        hotbed_external_stats stats;
        CHECK_OK(hotbed_external_stats_read(b->external, &stats));
        CHECK_EQ(stats.inserts, THREADS * ROUNDS * 16);
        CHECK_EQ(stats.hits, THREADS * ROUNDS * 16);
        close_box(b);
    }
}

/* Fill a request's batch; the stream has passed its last use. */
static void fill_request(const hotbed_external_request_view *v, uint64_t n, uint8_t value) {
    *v->n = n;
    for (uint64_t i = 0; i < n; i++)
        v->keys[i] = i, v->scores[i] = 100 + i;
    memset(v->rows, value, n * v->row_bytes);
}

static void requests_run_in_stream_order(hotbed_backend backend) {
    hotbed_stream *stream = NULL, *other = NULL;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    CHECK_OK(hotbed_stream_create(backend, 0, &other));
    for (int k = 0; k < num_kinds(); k++) {
        box *b = open_box(kinds[k]);
        hotbed_external_request *put = NULL, *get = NULL;
        hotbed_external_request_view p, g;
        CHECK_OK(hotbed_external_request_create(b->external, 1, 64, stream, &put));
        CHECK_OK(hotbed_external_request_create(b->external, 1, 64, stream, &get));
        CHECK_OK(hotbed_external_request_read(put, &p));
        CHECK_OK(hotbed_external_request_read(get, &g));
        CHECK(p.table == 1 && p.capacity == 64 && p.row_bytes == 37 && *p.n == 0);
        CHECK_STATUS(hotbed_external_find_async(get, other), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_external_find_async(NULL, stream), HOTBED_ERR_ARGUMENT);
        hotbed_counters before, after;
        fill_request(&p, 40, 7);
        fill_request(&g, 64, 9);
        hotbed_counters_read(&before);
        CHECK_OK(hotbed_external_insert_async(put, stream));
        CHECK_OK(hotbed_external_find_async(get, stream));
        CHECK_OK(hotbed_external_erase_async(put, stream));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits, before.host_waits);
        CHECK_OK(hotbed_stream_sync(stream));
        for (uint64_t i = 0; i < 64; i++) {
            CHECK_EQ(g.found[i], i < 40);
            CHECK_EQ(((uint8_t *)g.rows)[i * 37 + 36], i < 40 ? 7 : 9);
            CHECK_EQ(g.scores[i], 100 + i);
            CHECK(i >= 40 || p.found[i] == 1);
        }
        CHECK_EQ(*g.status, HOTBED_OK);
        hotbed_external_stats stats;
        CHECK_OK(hotbed_external_stats_read(b->external, &stats));
        CHECK_EQ(stats.stream_waits, 3);
        CHECK(stats.stream_seconds > 0);
        CHECK_OK(hotbed_external_insert_async(put, stream)); /* the store has room by now */
        hotbed_counters_read(&after);
        CHECK_OK(hotbed_external_find_async(get, stream));
        CHECK_OK(hotbed_stream_sync(stream));
        hotbed_counters_read(&before);
        CHECK_EQ(after.allocations, before.allocations);
        CHECK_OK(hotbed_external_erase_async(put, stream));
        CHECK_OK(hotbed_stream_sync(stream));

        /* In a graph, with another batch at each launch. */
        hotbed_graph *graph = NULL;
        CHECK_OK(hotbed_graph_begin(stream));
        CHECK_OK(hotbed_external_insert_async(put, stream));
        CHECK_OK(hotbed_external_find_async(get, stream));
        CHECK_OK(hotbed_graph_end(stream, &graph));
        for (uint64_t launch = 1; launch <= 3; launch++) {
            fill_request(&p, launch * 10, (uint8_t)launch);
            CHECK_OK(hotbed_graph_launch(graph, stream));
            CHECK_OK(hotbed_stream_sync(stream));
            for (uint64_t i = 0; i < 64; i++)
                CHECK_EQ(g.found[i], i < launch * 10);
            CHECK_EQ(((uint8_t *)g.rows)[0], launch);
        }
        hotbed_graph_destroy(graph);
        hotbed_external_request_destroy(put);
        hotbed_external_request_destroy(get);
        hotbed_external_request_destroy(NULL);
        close_box(b);
    }
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream);
}

static void a_failed_request_is_a_fault_of_the_stream(hotbed_backend backend) {
    hotbed_stream *stream = NULL;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    box *b = open_box(BAD);
    hotbed_external_request *r = NULL;
    hotbed_external_request_view v;
    CHECK_STATUS(
        hotbed_external_request_create(b->external, 0, 0, stream, &r), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_external_request_create(b->external, 2, 9, stream, &r), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_external_request_create(b->external, 0, 16, stream, &r));
    CHECK_OK(hotbed_external_request_read(r, &v));
    char text[300];
    for (int i = 0; i < 3; i++) { /* each fault is reported once */
        fill_request(&v, 12, 1);
        bad_store_next(&b->bad, BAD_FAIL, 1);
        CHECK_OK(hotbed_external_find_async(r, stream));
        CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_IO);
        CHECK(last_error_has("a call for 12 rows of table 0 failed"));
        CHECK_EQ(*v.status, HOTBED_ERR_IO);
        for (int k = 0; k < 12; k++)
            CHECK_EQ(v.found[k], HOTBED_EXTERNAL_UNKNOWN);
        CHECK_STATUS(hotbed_external_failure(b->external, text, sizeof text), HOTBED_ERR_IO);
        CHECK(strstr(text, "find of 12 rows, table user, failed: call") != NULL);
        CHECK_OK(hotbed_external_find_async(r, stream));
        CHECK_OK(hotbed_stream_sync(stream));
        CHECK_EQ(*v.status, HOTBED_OK);
    }
    *v.n = 17;
    CHECK_OK(hotbed_external_find_async(r, stream));
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_RANGE);
    CHECK_EQ(v.found[15], HOTBED_EXTERNAL_UNKNOWN);
    CHECK_STATUS(hotbed_external_failure(b->external, text, sizeof text), HOTBED_ERR_RANGE);
    fill_request(&v, 16, 1);
    bad_store_next(&b->bad, BAD_TEAR, 1);
    CHECK_OK(hotbed_external_insert_async(r, stream));
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_CORRUPT);
    CHECK_OK(hotbed_external_find_async(r, stream));
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_CORRUPT);
    hotbed_external_request_destroy(r);
    close_box(b);
    hotbed_stream_destroy(stream);
}

static void a_slow_store_keeps_the_stream_and_not_the_caller(hotbed_backend backend) {
    hotbed_stream *stream = NULL;
    hotbed_event *event = NULL;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    CHECK_OK(hotbed_event_create(stream, &event));
    box *b = open_box(BAD);
    hotbed_external_request *r = NULL;
    hotbed_external_request_view v;
    hotbed_external_stats stats;
    CHECK_OK(hotbed_external_request_create(b->external, 0, 16, stream, &r));
    CHECK_OK(hotbed_external_request_read(r, &v));
    fill_request(&v, 16, 5);
    bad_store_hold(&b->bad);
    CHECK_OK(hotbed_external_insert_async(r, stream));
    CHECK_OK(hotbed_external_find_async(r, stream));
    CHECK_OK(hotbed_event_record(event, stream));
    bad_store_await(&b->bad); /* the store has the call, and does not return */
    bool done = true;
    CHECK_OK(hotbed_event_query(event, &done));
    CHECK(!done);
    CHECK_OK(hotbed_external_stats_read(b->external, &stats)); /* does not wait for it */
    CHECK_EQ(stats.stream_waits, 0);
    CHECK_EQ(hotbed_external_failure(b->external, NULL, 0), HOTBED_OK);
    bad_store_let_go(&b->bad);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(v.found[15], 1);
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    CHECK_EQ(stats.stream_waits, 2);
    hotbed_external_request_destroy(r);
    close_box(b);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {"random_operations_agree_with_a_model", random_operations_agree_with_a_model},
    {"large_batches_are_whole", large_batches_are_whole},
    {"parts_that_are_not_wanted_may_be_null", parts_that_are_not_wanted_may_be_null},
    {"a_walk_sees_what_stays", a_walk_sees_what_stays},
    {"arguments_are_checked_first", arguments_are_checked_first},
    {"options_are_checked", options_are_checked},
    {"an_open_that_fails_leaves_nothing", an_open_that_fails_leaves_nothing},
    {"a_store_may_fail_at_any_call", a_store_may_fail_at_any_call},
    {"an_export_can_go_on_after_a_failure", an_export_can_go_on_after_a_failure},
    {"a_torn_batch_breaks_the_store", a_torn_batch_breaks_the_store},
    {"a_batch_that_was_written_after_all_is_whole", a_batch_that_was_written_after_all_is_whole},
    {"an_insert_is_settled_when_the_store_is_back", an_insert_is_settled_when_the_store_is_back},
    {"a_lost_row_is_found_when_writes_are_verified", a_lost_row_is_found_when_writes_are_verified},
    {"a_damaged_row_is_never_served", a_damaged_row_is_never_served},
    {"every_byte_of_a_row_is_sealed", every_byte_of_a_row_is_sealed},
    {"what_a_plug_in_returns_is_checked", what_a_plug_in_returns_is_checked},
    {"deadlines_reach_the_store_and_late_calls_are_counted",
     deadlines_reach_the_store_and_late_calls_are_counted},
    {"allocations_may_fail", allocations_may_fail},
    {"threads_take_turns", threads_take_turns},
    {"requests_run_in_stream_order", requests_run_in_stream_order},
    {"a_failed_request_is_a_fault_of_the_stream", a_failed_request_is_a_fault_of_the_stream},
    {"a_slow_store_keeps_the_stream_and_not_the_caller",
     a_slow_store_keeps_the_stream_and_not_the_caller},
    {NULL, NULL},
};
