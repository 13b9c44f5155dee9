/* tests/storage/index_fixture.c - calls on an index with a batch that is kept in host memory. */
#include "tests/storage/index_fixture.h"

#include "storage/index/index_range.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

void index_fixture_open(
    index_fixture *b, hotbed_backend backend, uint32_t tables, const uint64_t *capacities,
    const hotbed_evict *evict) {
    memset(b, 0, sizeof *b);
    CHECK_OK(hotbed_stream_create(backend, 0, &b->stream));
    hotbed_index_options options = {
        .size = sizeof options, .num_tables = tables, .capacities = capacities, .evict = evict};
    CHECK_OK(hotbed_index_create(&options, b->stream, &b->index));
    CHECK_OK(hotbed_memory_alloc(
        b->stream, HOTBED_MEMORY_DEVICE, sizeof(index_batch), NULL, &b->memory));
    b->device = b->memory.data;
    b->host = calloc(1, sizeof(index_batch));
    CHECK(b->host != NULL);
}

void index_fixture_open_one(
    index_fixture *b, hotbed_backend backend, uint64_t capacity, hotbed_evict evict) {
    index_fixture_open(b, backend, 1, &capacity, &evict);
}

void index_fixture_close(index_fixture *b) {
    CHECK_OK(hotbed_stream_sync(b->stream));
    hotbed_index_destroy(b->index);
    hotbed_memory_free(&b->memory);
    hotbed_stream_destroy(b->stream);
    free(b->host);
}

void index_fixture_upload(index_fixture *b) {
    CHECK_OK(hotbed_copy(b->device, b->host, sizeof(index_batch), b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
}

hotbed_status index_fixture_download(index_fixture *b) {
    CHECK_OK(hotbed_copy(b->host, b->device, sizeof(index_batch), b->stream));
    return hotbed_stream_sync(b->stream);
}

hotbed_index_insert index_fixture_insert_of(
    const index_fixture *b, hotbed_score_rule rule, bool pin) {
    hotbed_index_insert o = {.size = sizeof o};
    o.rule = rule;
    o.n = b->host->n;
    o.keys = b->device->keys;
    o.tables = b->device->tables;
    o.scores = b->device->scores;
    o.pin = pin;
    o.slots = b->device->slots;
    o.outcomes = b->device->outcomes;
    o.evicted_keys = b->device->evicted_keys;
    o.evicted_scores = b->device->evicted_scores;
    o.evicted_slots = b->device->evicted_slots;
    o.num_evicted = &b->device->num_evicted;
    return o;
}

hotbed_status index_fixture_insert(index_fixture *b, hotbed_score_rule rule, bool pin) {
    hotbed_index_insert o = index_fixture_insert_of(b, rule, pin);
    b->host->num_evicted = 99; /* the call must reset it */
    index_fixture_upload(b);
    CHECK_OK(hotbed_index_find_or_insert(b->index, &o, b->stream));
    return index_fixture_download(b);
}

void index_fixture_find(index_fixture *b) {
    index_fixture_upload(b);
    CHECK_OK(hotbed_index_find_keys(
        b->index, b->host->n, b->device->keys, b->device->tables, b->device->slots, b->stream));
    CHECK_OK(index_fixture_download(b));
}

void index_fixture_erase(index_fixture *b) {
    index_fixture_upload(b);
    CHECK_OK(hotbed_index_erase_keys(
        b->index, b->host->n, b->device->keys, b->device->tables, b->device->outcomes, b->stream));
    CHECK_OK(index_fixture_download(b));
}

void index_fixture_pin(index_fixture *b, bool on) {
    index_fixture_upload(b);
    CHECK_OK((on ? hotbed_index_pin_slots : hotbed_index_unpin_slots)(
        b->index, b->host->n, b->device->slots, b->stream));
    CHECK_OK(index_fixture_download(b));
}

uint64_t index_fixture_size(index_fixture *b, uint32_t table) {
    uint64_t keys = 0;
    CHECK_OK(hotbed_index_size(b->index, table, &keys, NULL, b->stream));
    return keys;
}

uint64_t index_fixture_outcomes(const index_fixture *b, hotbed_index_outcome what) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < b->host->n; i++)
        n += b->host->outcomes[i] == (uint8_t)what;
    return n;
}

void index_fixture_number_keys(index_fixture *b, uint64_t first, uint64_t n) {
    CHECK(n <= INDEX_BATCH_MOST);
    memset(b->host, 0, sizeof *b->host);
    b->host->n = n;
    for (uint64_t i = 0; i < n; i++) {
        b->host->keys[i] = hotbed_hash_u64(first + i + 1); /* a bijection */
        b->host->scores[i] = 1;
    }
}

uint64_t index_fixture_edge_keys(uint64_t *keys) {
    static const uint64_t capacities[] = {210, 1000, 50000};
    uint64_t n = 0;
    for (uint64_t i = 0; i < 50; i++)
        keys[n++] = i;
    for (uint32_t i = 0; n < 150; i++) { /* the keys of free slots in tables of these capacities */
        const hotbed_index_range range =
            hotbed_index_range_make(capacities[i % 3], i / 3 % 2 != 0, 0);
        const uint64_t key = hotbed_index_marker(range, i / 12 % range.buckets, i / 6 % 2 != 0);
        bool fresh = true;
        for (uint64_t k = 0; k < n; k++)
            fresh = fresh && keys[k] != key;
        if (fresh)
            keys[n++] = key;
    }
    for (uint64_t i = 0; i < 20; i++) {
        keys[n++] = UINT64_MAX - i;
        keys[n++] = (uint64_t)INT64_MAX - i;
        keys[n++] = (uint64_t)INT64_MIN + i;
    }
    return n;
}
