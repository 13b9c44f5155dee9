/* tests/support/bad_store.c - a wrapper around the store in memory that misbehaves on request. */
#include "tests/support/bad_store.h"

#include "storage/external/external.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const hotbed_external_calls *const good = &hotbed_external_memory_calls;

void bad_store_start(bad_store *b) {
    memset(b, 0, sizeof *b);
    b->self = hotbed_external_memory_new();
    CHECK(b->self != NULL);
    b->status = HOTBED_ERR_IO;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
}

void bad_store_end(bad_store *b) {
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}

void bad_store_next(bad_store *b, bad_way way, uint64_t count) {
    b->way = way;
    b->from = b->calls + 1;
    b->to = b->calls + count;
}

void bad_store_hold(bad_store *b) {
    pthread_mutex_lock(&b->lock);
    b->held = true;
    pthread_mutex_unlock(&b->lock);
}

void bad_store_await(bad_store *b) {
    pthread_mutex_lock(&b->lock);
    while (!b->inside)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

void bad_store_let_go(bad_store *b) {
    pthread_mutex_lock(&b->lock);
    b->held = false;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* Wait while held, count the call, and return how it must misbehave. */
static bad_way begin_call(bad_store *b, hotbed_external_call *call) {
    pthread_mutex_lock(&b->lock);
    b->inside = true;
    pthread_cond_broadcast(&b->changed);
    while (b->held)
        pthread_cond_wait(&b->changed, &b->lock);
    b->inside = false;
    pthread_mutex_unlock(&b->lock);
    b->calls++;
    b->last_deadline = call->deadline_ns;
    bad_way way = b->calls >= b->from && b->calls <= b->to ? b->way : BAD_NOT;
    if (b->fail_after != 0 && b->calls > b->fail_after)
        way = BAD_FAIL;
    if (way != BAD_NOT)
        snprintf(
            call->reason, sizeof call->reason, "call %llu fails on request",
            (unsigned long long)b->calls);
    return way;
}

static hotbed_status open_tables(
    void *self, uint32_t num_tables, const hotbed_external_table *tables,
    hotbed_external_call *call) {
    bad_store *b = self;
    for (uint32_t i = 0; i < num_tables && i < sizeof b->row_bytes / sizeof b->row_bytes[0]; i++)
        b->row_bytes[i] = tables[i].row_bytes;
    if (b->way == BAD_FAIL && b->to > 0) {
        snprintf(call->reason, sizeof call->reason, "open fails on request");
        return b->status;
    }
    return good->open(b->self, num_tables, tables, call);
}

static hotbed_status find(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found, void *rows,
    hotbed_external_metadata *metadata, hotbed_external_call *call) {
    bad_store *b = self;
    bad_way way = begin_call(b, call);
    if (way == BAD_FAIL)
        return b->status;
    uint32_t asked = way == BAD_OTHER_TABLE ? !table : table;
    hotbed_status status = good->find(b->self, asked, n, keys, found, rows, metadata, call);
    if (way == BAD_FLAG)
        found[n - 1] = 7;
    if (way == BAD_BYTE && rows != NULL)
        ((uint8_t *)rows)[b->row_bytes[table] - 1] ^= 1U;
    if (way == BAD_SCORE)
        metadata[0].score++;
    return way == BAD_DONE ? b->status : status;
}

static hotbed_status insert(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, const void *rows,
    const hotbed_external_metadata *metadata, hotbed_external_call *call) {
    bad_store *b = self;
    uint64_t bytes = b->row_bytes[table], half = (n + 1) / 2;
    bad_way way = begin_call(b, call);
    switch (way) {
    case BAD_FAIL:
        return b->status;
    case BAD_TEAR:
        CHECK_OK(good->insert(b->self, table, half, keys, rows, metadata, call));
        return b->status;
    case BAD_LOSE:
        return good->insert(b->self, table, half, keys, rows, metadata, call);
    case BAD_HALF_ROW: {
        uint8_t *torn = malloc(n * bytes);
        CHECK(torn != NULL);
        memcpy(torn, rows, n * bytes);
        for (uint64_t i = n * bytes - bytes / 2; i < n * bytes; i++)
            torn[i] = 0;
        hotbed_status status = good->insert(b->self, table, n, keys, torn, metadata, call);
        free(torn);
        return status;
    }
    default: {
        hotbed_status status = good->insert(b->self, table, n, keys, rows, metadata, call);
        return way == BAD_DONE ? b->status : status;
    }
    }
}

static hotbed_status erase(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased,
    hotbed_external_call *call) {
    bad_store *b = self;
    bad_way way = begin_call(b, call);
    if (way == BAD_FAIL)
        return b->status;
    hotbed_status status = good->erase(b->self, table, n, keys, erased, call);
    if (way == BAD_FLAG && erased != NULL)
        erased[n - 1] = 7;
    return way == BAD_DONE ? b->status : status;
}

static hotbed_status cursor_open(
    void *self, uint32_t table, void **cursor, hotbed_external_call *call) {
    bad_store *b = self;
    if (begin_call(b, call) == BAD_FAIL)
        return b->status;
    return good->cursor_open(b->self, table, cursor, call);
}

static hotbed_status cursor_next(
    void *self, void *cursor, uint64_t capacity, uint64_t *keys, void *rows,
    hotbed_external_metadata *metadata, uint64_t *n, hotbed_external_call *call) {
    bad_store *b = self;
    bad_way way = begin_call(b, call);
    if (way == BAD_FAIL)
        return b->status;
    hotbed_status status =
        good->cursor_next(b->self, cursor, capacity, keys, rows, metadata, n, call);
    if (way == BAD_BYTE)
        ((uint8_t *)rows)[0] ^= 1U;
    if (way == BAD_SCORE)
        metadata[0].score++;
    if (way == BAD_COUNT)
        *n = capacity + 1;
    return status;
}

static void cursor_close(void *self, void *cursor) {
    good->cursor_close(((bad_store *)self)->self, cursor);
}

static hotbed_status count(void *self, uint32_t table, uint64_t *keys, hotbed_external_call *call) {
    bad_store *b = self;
    if (begin_call(b, call) == BAD_FAIL)
        return b->status;
    return good->count(b->self, table, keys, call);
}

static hotbed_status flush(void *self, hotbed_external_call *call) {
    bad_store *b = self;
    return begin_call(b, call) == BAD_FAIL ? b->status : HOTBED_OK;
}

static void close_store(void *self) {
    good->close(((bad_store *)self)->self);
}

const hotbed_external_calls bad_store_calls = {
    .size = sizeof(hotbed_external_calls),
    .name = "bad",
    .open = open_tables,
    .find = find,
    .insert = insert,
    .erase = erase,
    .cursor_open = cursor_open,
    .cursor_next = cursor_next,
    .cursor_close = cursor_close,
    .count = count,
    .flush = flush,
    .close = close_store,
};
