/* tests/storage/test_index.c - contract of hotbed/index.h.
 *
 * Each documented rule has a test: keys, capacity, scores, pins, eviction, export, streams, errors.  Random operations
 * against a model are in test_index_model.c.
 */
#include "hotbed/index.h"

#include "base/hash_core.h"
#include "tests/storage/index_fixture.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

/* --- arguments ------------------------------------------------------------------------------- */

static void bad_options_are_refused(hotbed_backend backend) {
    hotbed_index *index;
    hotbed_stream *stream = hotbed_test_stream(backend);
    const uint64_t capacities[2] = {10, 20};
    hotbed_index_options good = {.size = sizeof good, .num_tables = 2, .capacities = capacities};

    hotbed_index_options o = good;
    CHECK_STATUS(hotbed_index_create(&o, stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_create(NULL, stream, &index), HOTBED_ERR_ARGUMENT);
    CHECK(index == NULL);
    CHECK_STATUS(hotbed_index_create(&o, NULL, &index), HOTBED_ERR_ARGUMENT);
    o.size = 4;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    o = good;
    o.num_tables = 0;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    o.num_tables = 65536;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    o = good;
    o.capacities = NULL;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    const uint64_t bad[3] = {10, 0, ((uint64_t)1 << 35) + 1};
    o.capacities = bad;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    o.capacities = bad + 1;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    const hotbed_evict evict[2] = {HOTBED_EVICT_LOWEST, (hotbed_evict)7};
    o = good;
    o.evict = evict;
    CHECK_STATUS(hotbed_index_create(&o, stream, &index), HOTBED_ERR_ARGUMENT);
    CHECK(index == NULL);
    hotbed_index_destroy(NULL);
    hotbed_stream_destroy(stream);
}

static void bad_arguments_are_refused(hotbed_backend backend) {
    index_fixture b;
    uint64_t keys = 7;
    hotbed_index_info info = {.size = sizeof info};
    index_fixture_open_one(&b, backend, 100, HOTBED_EVICT_NEVER);
    index_batch *d = b.device;
    hotbed_index *x = b.index;
    hotbed_stream *s = b.stream;
    CHECK_STATUS(hotbed_index_find_keys(NULL, 1, d->keys, NULL, d->slots, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_find_keys(x, 1, NULL, NULL, d->slots, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_find_keys(x, 1, d->keys, NULL, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_find_keys(x, 1, d->keys, NULL, d->slots, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_index_find_keys(x, 0, NULL, NULL, NULL, s));
    CHECK_STATUS(hotbed_index_erase_keys(x, 1, NULL, NULL, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_index_erase_keys(x, 0, NULL, NULL, NULL, s));
    CHECK_STATUS(hotbed_index_pin_slots(x, 1, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_unpin_slots(NULL, 0, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_clear(x, 1, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_size(x, 1, &keys, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(keys, 7);
    CHECK_STATUS(hotbed_index_export(x, 0, 0, NULL, NULL, NULL, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_export(x, 1, 0, NULL, NULL, NULL, d->counts, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_table(x, 1, &info), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_index_table(x, 0, NULL), HOTBED_ERR_ARGUMENT);

    b.host->n = 1;
    hotbed_index_insert good = index_fixture_insert_of(&b, HOTBED_SCORE_KEEP, false), o = good;
    CHECK_STATUS(hotbed_index_find_or_insert(x, NULL, s), HOTBED_ERR_ARGUMENT);
    o.size = 3;
    CHECK_STATUS(hotbed_index_find_or_insert(x, &o, s), HOTBED_ERR_ARGUMENT);
    o = good;
    o.rule = (hotbed_score_rule)3;
    CHECK_STATUS(hotbed_index_find_or_insert(x, &o, s), HOTBED_ERR_ARGUMENT);
    o = good;
    o.keys = NULL;
    CHECK_STATUS(hotbed_index_find_or_insert(x, &o, s), HOTBED_ERR_ARGUMENT);
    o = good;
    o.slots = NULL;
    CHECK_STATUS(hotbed_index_find_or_insert(x, &o, s), HOTBED_ERR_ARGUMENT);
    o = good;
    o.num_evicted = NULL;
    CHECK_STATUS(hotbed_index_find_or_insert(x, &o, s), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(index_fixture_size(&b, 0), 0);
    index_fixture_close(&b);
}

static void a_table_number_out_of_range_is_a_fault(hotbed_backend backend) {
    index_fixture b;
    const uint64_t capacities[2] = {100, 100};
    for (int evicts = 0; evicts < 2; evicts++) {
        const hotbed_evict evict[2] = {HOTBED_EVICT_NEVER, (hotbed_evict)evicts};
        index_fixture_open(&b, backend, 2, capacities, evict);
        index_fixture_number_keys(&b, 0, 3);
        b.host->tables[1] = 2;
        b.host->tables[2] = 1;
        CHECK_STATUS(index_fixture_insert(&b, HOTBED_SCORE_KEEP, false), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->outcomes[0], HOTBED_INDEX_INSERTED);
        CHECK_EQ(b.host->outcomes[1], HOTBED_INDEX_NO_TABLE);
        CHECK_EQ(b.host->outcomes[2], HOTBED_INDEX_INSERTED);
        CHECK_EQ(b.host->slots[1], HOTBED_SLOT_NONE);
        CHECK_EQ(index_fixture_size(&b, 0), 1);
        CHECK_EQ(index_fixture_size(&b, 1), 1);
        index_batch *d = b.device;
        CHECK_OK(hotbed_index_find_keys(b.index, 3, d->keys, d->tables, d->slots, b.stream));
        CHECK_STATUS(index_fixture_download(&b), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->slots[1], HOTBED_SLOT_NONE);
        CHECK(b.host->slots[2] != HOTBED_SLOT_NONE);
        CHECK_OK(hotbed_index_erase_keys(b.index, 3, d->keys, d->tables, d->outcomes, b.stream));
        /* A call that synchronizes internally leaves the fault to the caller's sync. */
        CHECK_EQ(index_fixture_size(&b, 0), 0);
        CHECK_STATUS(index_fixture_download(&b), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->outcomes[0], 1);
        CHECK_EQ(b.host->outcomes[1], 0);
        index_fixture_close(&b);
    }
}

static void tables_are_described(hotbed_backend backend) {
    index_fixture b;
    enum { TABLES = 3 };
    const uint64_t capacities[TABLES] = {1, 1000, 100000};
    const hotbed_evict evict[TABLES] = {
        HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST, HOTBED_EVICT_NEVER};
    index_fixture_open(&b, backend, TABLES, capacities, evict);
    uint64_t next = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_index_info info = {.size = sizeof info};
        CHECK_OK(hotbed_index_table(b.index, t, &info));
        CHECK_EQ(info.capacity, capacities[t]);
        CHECK_EQ(info.first_slot, next);
        CHECK_EQ(info.evict, evict[t]);
        CHECK_EQ(info.bytes_per_slot, 16);
        CHECK((double)info.slots <= (double)capacities[t] / 0.97 + 32);
        CHECK(info.slots >= capacities[t]);
        next += info.slots;
    }
    index_fixture_close(&b);
}

/* The memory of an index is 16 bytes per slot and little more. */
static void a_slot_takes_16_bytes(hotbed_backend backend) {
    index_fixture b;
    hotbed_index *index;
    hotbed_index_info info = {.size = sizeof info};
    const uint64_t capacity = 100000;
    hotbed_index_options options = {.size = sizeof options};
    /* a first index, so that allocations of the backend itself do not count */
    index_fixture_open_one(&b, backend, capacity, HOTBED_EVICT_NEVER);
    options.num_tables = 1;
    options.capacities = &capacity;
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_index_create(&options, stream, &index));
    hotbed_counters after = hotbed_test_counters();
    CHECK_OK(hotbed_index_table(index, 0, &info));
    CHECK(after.allocated_bytes - before.allocated_bytes >= 16 * info.slots);
    CHECK(after.allocated_bytes - before.allocated_bytes <= 16 * info.slots + 4096);
    hotbed_index_destroy(index);
    hotbed_stream_destroy(stream);
    index_fixture_close(&b);
}

/* --- keys ------------------------------------------------------------------------------------ */

static void every_key_value_is_stored(hotbed_backend backend) {
    static const uint64_t capacities[] = {210, 1000, 50000};
    for (uint32_t c = 0; c < 3; c++)
        for (int evicts = 0; evicts < 2; evicts++) {
            index_fixture b;
            /* A table that evicts may do so before it is full, depending on the order of the keys. */
            const uint64_t capacity = evicts ? 2 * capacities[c] : capacities[c];
            index_fixture_open_one(&b, backend, capacity, (hotbed_evict)evicts);
            b.host->n = index_fixture_edge_keys(b.host->keys);
            CHECK_EQ(b.host->n, 210);
            index_fixture_find(&b);
            for (uint64_t i = 0; i < b.host->n; i++)
                CHECK_EQ(b.host->slots[i], HOTBED_SLOT_NONE);
            CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, false));
            CHECK_EQ(index_fixture_outcomes(&b, HOTBED_INDEX_INSERTED), b.host->n);
            uint64_t slots[INDEX_BATCH_MOST];
            memcpy(slots, b.host->slots, sizeof slots);
            index_fixture_find(&b);
            CHECK_BYTES(b.host->slots, slots, b.host->n * sizeof slots[0]);
            b.host->n = 100; /* erase the first hundred */
            index_fixture_erase(&b);
            CHECK_EQ(index_fixture_outcomes(&b, (hotbed_index_outcome)1), 100);
            b.host->n = 210;
            index_fixture_find(&b);
            for (uint64_t i = 0; i < 210; i++)
                CHECK_EQ(b.host->slots[i], i < 100 ? HOTBED_SLOT_NONE : slots[i]);
            CHECK_EQ(index_fixture_size(&b, 0), 110);
            CHECK_OK(hotbed_index_clear(b.index, 0, b.stream));
            CHECK_EQ(index_fixture_size(&b, 0), 0);
            index_fixture_find(&b);
            for (uint64_t i = 0; i < 210; i++)
                CHECK_EQ(b.host->slots[i], HOTBED_SLOT_NONE);
            index_fixture_close(&b);
        }
}

/* Insert keys [0, n) in batches.  Returns how many got a slot. */
static uint64_t fill(index_fixture *b, uint64_t n) {
    uint64_t stored = 0;
    for (uint64_t first = 0; first < n; first += INDEX_BATCH_MOST) {
        index_fixture_number_keys(
            b, first, n - first < INDEX_BATCH_MOST ? n - first : INDEX_BATCH_MOST);
        CHECK_OK(index_fixture_insert(b, HOTBED_SCORE_ASSIGN, false));
        uint64_t new = index_fixture_outcomes(b, HOTBED_INDEX_INSERTED) +
                       index_fixture_outcomes(b, HOTBED_INDEX_EVICTED);
        stored += new;
        uint64_t others = index_fixture_outcomes(b, HOTBED_INDEX_FULL) +
                          index_fixture_outcomes(b, HOTBED_INDEX_PINNED) +
                          index_fixture_outcomes(b, HOTBED_INDEX_FOUND);
        CHECK_EQ(new + others, b->host->n);
    }
    return stored;
}

static void a_table_holds_as_many_keys_as_its_capacity(hotbed_backend backend) {
    static const uint64_t capacities[] = {1,   2,   15,  16,   17,   31,    100,  255,
                                          500, 512, 530, 1000, 4096, 10001, 60000};
    for (uint32_t c = 0; c < sizeof capacities / sizeof capacities[0]; c++) {
        index_fixture b;
        hotbed_index_info info = {.size = sizeof info};
        index_fixture_open_one(&b, backend, capacities[c], HOTBED_EVICT_NEVER);
        CHECK_EQ(fill(&b, capacities[c]), capacities[c]);
        CHECK_EQ(index_fixture_size(&b, 0), capacities[c]);
        /* More keys: the table refuses some, and loses none. */
        CHECK_OK(hotbed_index_table(b.index, 0, &info));
        index_fixture_number_keys(&b, (uint64_t)1 << 40, INDEX_BATCH_MOST);
        CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, false));
        uint64_t added = index_fixture_outcomes(&b, HOTBED_INDEX_INSERTED);
        CHECK_EQ(added + index_fixture_outcomes(&b, HOTBED_INDEX_FULL), INDEX_BATCH_MOST);
        CHECK_EQ(index_fixture_size(&b, 0), capacities[c] + added);
        CHECK(capacities[c] + added <= info.slots);
        index_fixture_number_keys(
            &b, 0, capacities[c] < INDEX_BATCH_MOST ? capacities[c] : INDEX_BATCH_MOST);
        index_fixture_find(&b);
        for (uint64_t i = 0; i < b.host->n; i++)
            CHECK(b.host->slots[i] != HOTBED_SLOT_NONE);
        index_fixture_close(&b);
    }
}

/* --- scores, pins, eviction ------------------------------------------------------------------ */

/* Score of the key in `slot`, read by an export. */
static uint64_t score_in(index_fixture *b, uint32_t table, uint64_t slot) {
    uint64_t score = UINT64_MAX;
    CHECK_OK(hotbed_index_export(
        b->index, table, INDEX_BATCH_MOST, b->device->keys, b->device->slots, b->device->scores,
        b->device->counts, b->stream));
    index_batch *seen = malloc(sizeof *seen);
    CHECK(seen != NULL);
    CHECK_OK(hotbed_copy(seen, b->device, sizeof *seen, b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
    for (uint64_t i = 0; i < seen->counts[0]; i++)
        if (seen->slots[i] == slot)
            score = seen->scores[i];
    free(seen);
    return score;
}

static void scores_follow_the_rule(hotbed_backend backend) {
    static const uint64_t most = ((uint64_t)1 << 52) - 1;
    static const struct {
        hotbed_score_rule rule;
        uint64_t given, seen;
    } steps[] = {
        {HOTBED_SCORE_KEEP, 5, 5}, /* a new key gets the given score, whatever the rule */
        {HOTBED_SCORE_KEEP, 9, 5},
        {HOTBED_SCORE_ADD, 3, 8},
        {HOTBED_SCORE_ASSIGN, 2, 2},
        {HOTBED_SCORE_ADD, most, most},
        {HOTBED_SCORE_ADD, UINT64_MAX, most},
        {HOTBED_SCORE_ASSIGN, 0, 0},
        {HOTBED_SCORE_ASSIGN, UINT64_MAX, most},
        {HOTBED_SCORE_ADD, 0, most},
    };
    for (int evicts = 0; evicts < 2; evicts++) {
        index_fixture b;
        index_fixture_open_one(&b, backend, 40, (hotbed_evict)evicts);
        for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            index_fixture_number_keys(&b, 0, 1);
            b.host->scores[0] = steps[i].given;
            CHECK_OK(index_fixture_insert(&b, steps[i].rule, false));
            CHECK_EQ(b.host->outcomes[0], i == 0 ? HOTBED_INDEX_INSERTED : HOTBED_INDEX_FOUND);
            CHECK_EQ(score_in(&b, 0, b.host->slots[0]), steps[i].seen);
        }
        /* One score for all keys. */
        index_fixture_number_keys(&b, 0, 3);
        hotbed_index_insert o = index_fixture_insert_of(&b, HOTBED_SCORE_ASSIGN, false);
        o.scores = NULL;
        o.score = 77;
        o.tables = NULL;
        index_fixture_upload(&b);
        CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
        CHECK_OK(index_fixture_download(&b));
        for (int i = 0; i < 3; i++)
            CHECK_EQ(score_in(&b, 0, b.host->slots[i]), 77);
        index_fixture_close(&b);
    }
}

/* Pins stop at 254 however they are added, and a call in between evicts and erases nothing. */
static void more_than_254_pins_are_not_added(hotbed_backend backend) {
    for (int evicts = 0; evicts < 2; evicts++)
        for (int by_slots = 0; by_slots < 2; by_slots++) {
            index_fixture b;
            uint64_t keys = 0, pinned = 0;
            index_fixture_open_one(
                &b, backend, 16, evicts ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER);
            index_fixture_number_keys(&b, 0, 16);
            CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, false));
            for (int i = 0; i < 300; i++)
                if (by_slots)
                    index_fixture_pin(&b, true);
                else
                    CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, true));
            CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, false));
            CHECK_EQ(index_fixture_outcomes(&b, HOTBED_INDEX_FOUND), 16);
            CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
            CHECK_EQ(keys, 16);
            CHECK_EQ(pinned, 16);
            for (int i = 0; i < 253; i++)
                index_fixture_pin(&b, false);
            index_fixture_erase(&b);
            CHECK_EQ(index_fixture_outcomes(&b, (hotbed_index_outcome)0), 16);
            index_fixture_pin(&b, false);
            CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
            CHECK_EQ(keys, 16);
            CHECK_EQ(pinned, 0);
            index_fixture_close(&b);
        }
}

static void pins_keep_keys(hotbed_backend backend) {
    index_fixture b;
    uint64_t keys = 0, pinned = 0;
    index_fixture_open_one(&b, backend, 16, HOTBED_EVICT_LOWEST);
    hotbed_index_info info = {.size = sizeof info};
    CHECK_OK(hotbed_index_table(b.index, 0, &info));
    index_fixture_number_keys(&b, 0, 16);
    CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, true));
    CHECK_EQ(index_fixture_outcomes(&b, HOTBED_INDEX_INSERTED), 16);
    uint64_t slots[16];
    memcpy(slots, b.host->slots, sizeof slots);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(keys, 16);
    CHECK_EQ(pinned, 16);
    index_fixture_erase(&b);
    CHECK_EQ(index_fixture_outcomes(&b, (hotbed_index_outcome)0), 16);
    /* More new keys than free slots: keys that find no slot are refused. */
    index_fixture_number_keys(&b, 100, 64);
    CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, true));
    CHECK(index_fixture_outcomes(&b, HOTBED_INDEX_PINNED) >= 64 - (info.slots - 16));
    CHECK_EQ(b.host->num_evicted, 0);
    index_fixture_pin(&b, false); /* skips HOTBED_SLOT_NONE */
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 16);
    /* Two more pins, three unpins; a further unpin does nothing. */
    index_fixture_number_keys(&b, 0, 16);
    memcpy(b.host->slots, slots, sizeof slots);
    index_fixture_pin(&b, true);
    index_fixture_pin(&b, true);
    index_fixture_pin(&b, false);
    index_fixture_pin(&b, false);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 16);
    index_fixture_pin(&b, false);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    index_fixture_pin(&b, false);
    index_fixture_find(&b);
    CHECK_BYTES(b.host->slots, slots, sizeof slots);
    CHECK_EQ(score_in(&b, 0, slots[3]), 1);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    /* Slots without a key are not pinned. */
    index_fixture_upload(&b);
    index_fixture_erase(&b);
    CHECK_EQ(index_fixture_outcomes(&b, (hotbed_index_outcome)1), 16);
    memcpy(b.host->slots, slots, sizeof slots);
    b.host->slots[0] = info.slots;
    b.host->slots[1] = info.slots + ((uint64_t)1 << 60);
    index_fixture_pin(&b, true);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    index_fixture_close(&b);
}

static void a_call_does_not_evict_its_own_keys(hotbed_backend backend) {
    for (int pins = 0; pins < 2; pins++) {
        index_fixture b;
        hotbed_index_info info = {.size = sizeof info};
        index_fixture_open_one(&b, backend, 16, HOTBED_EVICT_LOWEST);
        CHECK_OK(hotbed_index_table(b.index, 0, &info));
        for (uint64_t first = 0; index_fixture_size(&b, 0) < 16; first += 64) {
            /* fill the table until all candidates are full */
            index_fixture_number_keys(&b, first, 64);
            CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, false));
        }
        /* A batch of all keys of the table, and as many new keys. */
        CHECK_OK(hotbed_index_export(
            b.index, 0, INDEX_BATCH_MOST, b.device->keys, NULL, NULL, b.device->counts, b.stream));
        CHECK_OK(index_fixture_download(&b));
        uint64_t old = b.host->counts[0];
        b.host->n = 2 * old;
        for (uint64_t i = 0; i < old; i++) {
            b.host->keys[old + i] = b.host->keys[i]; /* behind the new keys */
            b.host->keys[i] = hotbed_hash_u64(i + ((uint64_t)1 << 50));
        }
        memset(b.host->tables, 0, sizeof b.host->tables);
        memset(b.host->scores, 0, sizeof b.host->scores);
        CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, pins != 0));
        for (uint64_t i = old; i < 2 * old; i++)
            CHECK_EQ(b.host->outcomes[i], HOTBED_INDEX_FOUND);
        CHECK_EQ(b.host->num_evicted, 0);
        uint64_t pinned = 0, keys = 0;
        CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
        CHECK_EQ(pinned, pins != 0 ? keys : 0);
        index_fixture_close(&b);
    }
}

/* Keys that do not fit are counted but not written; arrays may be NULL. */
static void an_export_stays_in_its_arrays(hotbed_backend backend) {
    index_fixture b;
    index_fixture_open_one(&b, backend, 100, HOTBED_EVICT_NEVER);
    index_fixture_number_keys(&b, 0, 90);
    CHECK_OK(index_fixture_insert(&b, HOTBED_SCORE_ASSIGN, true));
    memset(b.host, 0xa5, sizeof *b.host);
    index_fixture_upload(&b);
    index_batch *d = b.device;
    CHECK_OK(hotbed_index_export(b.index, 0, 40, d->keys, d->slots, NULL, d->counts, b.stream));
    CHECK_OK(index_fixture_download(&b));
    CHECK_EQ(b.host->counts[0], 90);
    CHECK_EQ(b.host->counts[1], 90);
    CHECK(b.host->slots[39] < 200);
    CHECK_EQ(b.host->slots[40], 0xa5a5a5a5a5a5a5a5U);
    CHECK_EQ(b.host->keys[40], 0xa5a5a5a5a5a5a5a5U);
    CHECK_EQ(b.host->scores[0], 0xa5a5a5a5a5a5a5a5U);
    index_fixture_close(&b);
}

/* --- streams --------------------------------------------------------------------------------- */

static void a_recorded_graph_serves_changing_keys(hotbed_backend backend) {
    index_fixture b;
    hotbed_graph *graph;
    const uint64_t capacities[2] = {5000, 64};
    const hotbed_evict evict[2] = {HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST};
    enum { N = 100, LAUNCHES = 10 };
    index_fixture_open(&b, backend, 2, capacities, evict);
    index_fixture_number_keys(&b, 0, N);
    index_fixture_upload(&b);
    hotbed_index_insert o = index_fixture_insert_of(&b, HOTBED_SCORE_ASSIGN, false);
    CHECK_OK(hotbed_graph_begin(b.stream));
    CHECK_STATUS(hotbed_index_size(b.index, 0, NULL, NULL, b.stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    CHECK_OK(hotbed_graph_end(b.stream, &graph));
    CHECK_EQ(index_fixture_size(&b, 0), 0);
    uint64_t evicted = 0, second = 0;
    for (uint64_t launch = 0; launch < LAUNCHES; launch++) {
        /* half of the keys are in the table already */
        index_fixture_number_keys(&b, launch * N / 2, N);
        for (uint32_t i = 0; i < N; i++) {
            b.host->tables[i] = i % 4 == 0;
            b.host->scores[i] = launch;
        }
        index_fixture_upload(&b);
        CHECK_OK(hotbed_graph_launch(graph, b.stream));
        CHECK_OK(index_fixture_download(&b));
        for (uint32_t i = 0; i < N; i++)
            CHECK(b.host->slots[i] != HOTBED_SLOT_NONE);
        CHECK_EQ(b.host->num_evicted, index_fixture_outcomes(&b, HOTBED_INDEX_EVICTED));
        evicted += b.host->num_evicted;
        for (uint32_t i = 0; i < N; i += 4)
            second += b.host->outcomes[i] != HOTBED_INDEX_FOUND;
    }
    CHECK_EQ(index_fixture_size(&b, 1), second - evicted);
    CHECK(evicted > 0);
    hotbed_graph_destroy(graph);
    index_fixture_close(&b);
}

static void calls_neither_wait_nor_allocate(hotbed_backend backend) {
    index_fixture b;
    index_fixture_open_one(&b, backend, 1000, HOTBED_EVICT_LOWEST);
    index_fixture_number_keys(&b, 0, 1500);
    index_fixture_upload(&b);
    hotbed_counters before = hotbed_test_counters();
    hotbed_index_insert o = index_fixture_insert_of(&b, HOTBED_SCORE_ASSIGN, true);
    index_batch *d = b.device;
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    CHECK_OK(hotbed_index_unpin_slots(b.index, 1500, d->slots, b.stream));
    CHECK_OK(hotbed_index_find_keys(b.index, 1500, d->keys, NULL, d->slots, b.stream));
    CHECK_OK(hotbed_index_erase_keys(b.index, 700, d->keys, NULL, NULL, b.stream));
    CHECK_OK(hotbed_index_export(
        b.index, 0, INDEX_BATCH_MOST, d->keys, NULL, NULL, d->counts, b.stream));
    CHECK_OK(hotbed_index_clear(b.index, 0, b.stream));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    index_fixture_close(&b);
}

/* While one stream inserts, finds on another stream give a key's final slot, or none. */
static void finds_run_beside_inserts(hotbed_backend backend) {
    enum { ROUNDS = 20, N = 400 };
    index_fixture b;
    hotbed_memory seen;
    index_fixture_open_one(&b, backend, 1000, HOTBED_EVICT_NEVER);
    hotbed_stream *other = hotbed_test_stream(backend);
    CHECK_OK(hotbed_memory_alloc(
        other, HOTBED_MEMORY_DEVICE, ROUNDS * N * sizeof(uint64_t), NULL, &seen));
    uint64_t *slots = seen.data;
    index_fixture_number_keys(&b, 0, N);
    index_fixture_upload(&b);
    hotbed_index_insert o = index_fixture_insert_of(&b, HOTBED_SCORE_ASSIGN, false);
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    for (uint32_t r = 0; r < ROUNDS; r++)
        CHECK_OK(hotbed_index_find_keys(b.index, N, b.device->keys, NULL, slots + r * N, other));
    CHECK_OK(index_fixture_download(&b));
    uint64_t *host = malloc(seen.bytes);
    CHECK(host != NULL);
    CHECK_OK(hotbed_copy(host, slots, seen.bytes, other));
    CHECK_OK(hotbed_stream_sync(other));
    for (uint32_t i = 0; i < N; i++) {
        bool there = false;
        for (uint32_t r = 0; r < ROUNDS; r++) {
            uint64_t slot = host[r * N + i];
            CHECK(slot == b.host->slots[i] || (slot == HOTBED_SLOT_NONE && !there));
            there = slot != HOTBED_SLOT_NONE;
        }
    }
    free(host);
    hotbed_memory_free(&seen);
    hotbed_stream_destroy(other);
    index_fixture_close(&b);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void failing_allocations_are_errors(hotbed_backend backend) {
    hotbed_index *index;
    const uint64_t capacities[2] = {100, 2000};
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_index_options options = {
        .size = sizeof options, .num_tables = 2, .capacities = capacities};
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_index_create(&options, stream, &index);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(index == NULL);
    }
    hotbed_index_destroy(index);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(bad_options_are_refused)},
    {TEST(bad_arguments_are_refused)},
    {TEST(a_table_number_out_of_range_is_a_fault)},
    {TEST(tables_are_described)},
    {TEST(a_slot_takes_16_bytes)},
    {TEST(every_key_value_is_stored)},
    {TEST(a_table_holds_as_many_keys_as_its_capacity)},
    {TEST(scores_follow_the_rule)},
    {TEST(pins_keep_keys)},
    {TEST(more_than_254_pins_are_not_added)},
    {TEST(a_call_does_not_evict_its_own_keys)},
    {TEST(an_export_stays_in_its_arrays)},
    {TEST(a_recorded_graph_serves_changing_keys)},
    {TEST(calls_neither_wait_nor_allocate)},
    {TEST(finds_run_beside_inserts)},
    {TEST(failing_allocations_are_errors)},
    {NULL, NULL},
};
