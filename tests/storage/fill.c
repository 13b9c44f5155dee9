/* tests/storage/fill.c - fills a table until it refuses a key. */
#include "tests/storage/fill.h"

#include "tests/storage/fixture.h"

#include <stdlib.h>

static uint64_t sequential(uint64_t i) {
    return i;
}

static uint64_t multiples_of_1024(uint64_t i) {
    return i << 10;
}

static uint64_t high_words(uint64_t i) {
    return i << 32;
}

static uint64_t highest_bits(uint64_t i) {
    return i << 40 | i >> 24;
}

static uint64_t scattered(uint64_t i) {
    uint64_t state = i;
    return hotbed_test_random_r(&state);
}

static uint64_t descending(uint64_t i) {
    return UINT64_MAX - i;
}

key_maker *const key_makers[KEY_MAKERS] = {sequential,   multiples_of_1024, high_words,
                                           highest_bits, scattered,         descending};

void fill_table(hotbed_backend backend, uint64_t capacity, key_maker *maker, uint64_t batch) {
    setup s;
    fixture r;
    setup_start(&s, 1, 1, capacity);
    fixture_open_bare(&r, backend, &s.options);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    /* capacity / 0.97, rounded up to buckets */
    uint64_t allowed = capacity + capacity * 3 / 97 + 64;
    CHECK(info.slots <= allowed);
    uint64_t slots = info.slots + info.lower_slots;
    uint64_t total = slots + (slots < 2000 ? slots : 2000);
    uint64_t *keys = malloc(total * sizeof *keys);
    CHECK(keys != NULL);
    for (uint64_t i = 0; i < total; i++)
        keys[i] = maker(i);
    const uint64_t *device = fixture_copy(&r, keys, total * sizeof *keys);
    const hotbed_rows nothing = {0};
    for (uint64_t i = 0; i < capacity; i += batch) {
        uint64_t n = capacity - i < batch ? capacity - i : batch;
        CHECK_OK(hotbed_storage_set_rows(r.storage, 0, n, device + i, &nothing, r.stream));
    }
    CHECK_OK(hotbed_stream_sync(r.stream));
    CHECK_EQ(fixture_size(&r, 0), capacity);
    uint8_t *found = fixture_alloc(&r, total), *host = malloc(total);
    CHECK(host != NULL);
    CHECK_OK(hotbed_storage_get_rows(r.storage, 0, total, device, &nothing, found, r.stream));
    fixture_download(&r, host, found, total);
    for (uint64_t i = 0; i < total; i++)
        CHECK_EQ(host[i], i < capacity);
    /* More keys than slots: some are refused, and the size counts the others. */
    CHECK_OK(hotbed_storage_set_rows(
        r.storage, 0, total - capacity, device + capacity, &nothing, r.stream));
    CHECK_STATUS(hotbed_stream_sync(r.stream), HOTBED_ERR_FULL);
    CHECK_OK(hotbed_stream_sync(r.stream));
    CHECK_OK(hotbed_storage_get_rows(r.storage, 0, total, device, &nothing, found, r.stream));
    fixture_download(&r, host, found, total);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < total; i++) {
        CHECK(host[i] == 1 || i >= capacity);
        kept += host[i];
    }
    CHECK_EQ(kept, fixture_size(&r, 0));
    CHECK(kept <= slots);
    free(host);
    free(keys);
    fixture_close(&r);
}
