/* tests/storage/store_fixture.c - an external store and its model, driven with the same calls. */
#include "tests/storage/store_fixture.h"

#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const store_kind store_kinds[] = {STORE_MEMORY, STORE_BAD, STORE_ROCKSDB};

static const uint64_t row_bytes[STORE_TABLES] = {STORE_ROW_MOST, 37};
static const hotbed_external_table two_tables[STORE_TABLES] = {
    {"user", STORE_ROW_MOST}, {"item.id", 37}};

hotbed_external_options store_fixture_options(void) {
    hotbed_external_options o = {
        .size = sizeof o, .num_tables = STORE_TABLES, .tables = two_tables};
    return o;
}

static void path_of(char *path, size_t bytes, const char *name) {
    static const char *directory; /* of all tests */
    static unsigned number;
    if (directory == NULL)
        directory = hotbed_test_directory();
    snprintf(path, bytes, "%s/%s-%u", directory, name, number++);
}

int store_num_kinds(void) {
    hotbed_external *x = NULL;
    hotbed_status status = hotbed_external_create_rocksdb(NULL, NULL, NULL, &x);
    CHECK(status == HOTBED_ERR_ARGUMENT || status == HOTBED_ERR_UNSUPPORTED);
    CHECK(x == NULL);
    return status == HOTBED_ERR_UNSUPPORTED ? 2 : 3;
}

store_fixture *store_fixture_open_with(store_kind kind, const hotbed_external_options *o) {
    store_fixture *b = calloc(1, sizeof *b);
    char path[512];
    CHECK(b != NULL);
    switch (kind) {
    case STORE_MEMORY:
        CHECK_OK(hotbed_external_create_memory(o, &b->external));
        break;
    case STORE_BAD:
        bad_store_start(&b->bad);
        b->is_bad = true;
        CHECK_OK(hotbed_external_create(o, &bad_store_calls, &b->bad, &b->external));
        break;
    case STORE_ROCKSDB:
        path_of(path, sizeof path, "store");
        CHECK_OK(hotbed_external_create_rocksdb(path, NULL, o, &b->external));
        break;
    }
    return b;
}

store_fixture *store_fixture_open(store_kind kind) {
    hotbed_external_options o = store_fixture_options();
    return store_fixture_open_with(kind, &o);
}

void store_fixture_close(store_fixture *b) {
    hotbed_external_destroy(b->external);
    if (b->is_bad)
        bad_store_end(&b->bad);
    free(b);
}

/* Key number i; the inverse of store_fixture_index(). */
static uint64_t key_of(uint64_t i) {
    return i % 3 == 0 ? i / 3 : i % 3 == 1 ? UINT64_MAX - i / 3 : ((uint64_t)1 << 63) + i / 3;
}

uint64_t store_fixture_index(uint64_t key) {
    if (key >> 63 == 0)
        return key * 3;
    return key > UINT64_MAX / 4 * 3 ? (UINT64_MAX - key) * 3 + 1 : (key << 1 >> 1) * 3 + 2;
}

void store_fixture_random_batch(store_fixture *b, uint32_t t, uint64_t n) {
    /* coprime to STORE_SPACE, so keys are distinct */
    uint64_t first = hotbed_test_below(STORE_SPACE), step = 7;
    b->n = n;
    for (uint64_t i = 0; i < n; i++) {
        b->keys[i] = key_of((first + i * step) % STORE_SPACE);
        b->scores[i] = hotbed_test_random();
    }
    for (uint64_t i = 0; i < n * row_bytes[t]; i++)
        b->rows[i] = (uint8_t)hotbed_test_random();
}

hotbed_status store_fixture_insert_batch(store_fixture *b, uint32_t t) {
    return hotbed_external_insert(b->external, t, b->n, b->keys, b->rows, b->scores);
}

void store_fixture_model_insert(store_fixture *b, uint32_t t) {
    for (uint64_t i = 0; i < b->n; i++) {
        uint64_t k = store_fixture_index(b->keys[i]);
        b->model[t].there[k] = true;
        b->model[t].scores[k] = b->scores[i];
        memcpy(b->model[t].rows[k], b->rows + i * row_bytes[t], row_bytes[t]);
    }
}

void store_fixture_insert(store_fixture *b, uint32_t t, uint64_t n) {
    store_fixture_random_batch(b, t, n);
    CHECK_OK(store_fixture_insert_batch(b, t));
    store_fixture_model_insert(b, t);
}

void store_fixture_erase(store_fixture *b, uint32_t t, uint64_t n) {
    store_fixture_random_batch(b, t, n);
    CHECK_OK(hotbed_external_erase(b->external, t, n, b->keys, b->found));
    for (uint64_t i = 0; i < n; i++) {
        CHECK_EQ(b->found[i], b->model[t].there[store_fixture_index(b->keys[i])]);
        b->model[t].there[store_fixture_index(b->keys[i])] = false;
    }
}

void store_fixture_find(store_fixture *b, uint32_t t, uint64_t n) {
    uint8_t untouched[STORE_ROW_MOST];
    memset(untouched, 0xa5, sizeof untouched);
    memset(b->rows, 0xa5, sizeof b->rows);
    for (uint64_t i = 0; i < n; i++) {
        b->keys[i] = key_of(hotbed_test_below(STORE_SPACE));
        b->scores[i] = 77;
    }
    CHECK_OK(hotbed_external_find(b->external, t, n, b->keys, b->found, b->rows, b->scores));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = store_fixture_index(b->keys[i]);
        const store_model *m = &b->model[t];
        CHECK_EQ(b->found[i], m->there[k]);
        CHECK_EQ(b->scores[i], m->there[k] ? m->scores[k] : 77);
        CHECK_BYTES(b->rows + i * row_bytes[t], m->there[k] ? m->rows[k] : untouched, row_bytes[t]);
    }
}

static uint64_t model_size(const store_fixture *b, uint32_t t) {
    uint64_t size = 0;
    for (uint64_t k = 0; k < STORE_SPACE; k++)
        size += b->model[t].there[k];
    return size;
}

/* Walk through a table, `capacity` rows at a time. */
static void check_table(store_fixture *b, uint32_t t, uint64_t capacity) {
    bool seen[STORE_SPACE] = {false};
    uint64_t n = 0, total = 0;
    hotbed_external_cursor *cursor = NULL;
    CHECK_OK(hotbed_external_cursor_create(b->external, t, &cursor));
    do {
        CHECK_OK(hotbed_external_cursor_next(cursor, capacity, b->keys, b->rows, b->scores, &n));
        CHECK(n <= capacity);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t k = store_fixture_index(b->keys[i]);
            CHECK(k < STORE_SPACE && !seen[k] && b->model[t].there[k]);
            seen[k] = true;
            CHECK_EQ(b->scores[i], b->model[t].scores[k]);
            CHECK_BYTES(b->rows + i * row_bytes[t], b->model[t].rows[k], row_bytes[t]);
        }
        total += n;
    } while (n > 0);
    CHECK_OK(hotbed_external_cursor_next(cursor, capacity, b->keys, b->rows, NULL, &n));
    CHECK_EQ(n, 0); /* a call after the end returns no rows */
    hotbed_external_cursor_destroy(cursor);
    CHECK_EQ(total, model_size(b, t));
    uint64_t size = 0;
    CHECK_OK(hotbed_external_size(b->external, t, &size));
    CHECK_EQ(size, total);
}

void store_fixture_check(store_fixture *b) {
    for (uint32_t t = 0; t < STORE_TABLES; t++)
        check_table(b, t, 1 + hotbed_test_below(STORE_BATCH_MOST));
}

bool store_error_has(const char *part) {
    return strstr(hotbed_last_error(), part) != NULL;
}
