/* tests/storage/test_index.c - the index through its public calls, against a plain model. */
#include "hotbed/index.h"

#include "storage/index_range.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { MOST = 2048, TABLES = 3, MODEL_SLOTS = 1024 };

/* Everything a call reads and writes; the device has the same struct. */
typedef struct batch {
    uint64_t n;
    uint64_t keys[MOST], scores[MOST], slots[MOST];
    uint64_t evicted_keys[MOST], evicted_scores[MOST], evicted_slots[MOST];
    uint64_t num_evicted, counts[2];
    uint32_t tables[MOST];
    uint8_t outcomes[MOST];
} batch;

typedef struct box {
    hotbed_backend backend;
    hotbed_stream *stream;
    hotbed_index *index;
    hotbed_memory memory;
    batch *device;
    batch *host;
} box;

static void open_box(
    box *b, hotbed_backend backend, uint32_t tables, const uint64_t *capacities,
    const hotbed_evict *evict) {
    memset(b, 0, sizeof *b);
    b->backend = backend;
    CHECK_OK(hotbed_stream_create(backend, 0, &b->stream));
    hotbed_index_options options;
    hotbed_index_options_init(&options);
    options.num_tables = tables;
    options.capacities = capacities;
    options.evict = evict;
    CHECK_OK(hotbed_index_create(&options, b->stream, &b->index));
    CHECK_OK(hotbed_memory_alloc(b->stream, HOTBED_MEMORY_DEVICE, sizeof(batch), NULL, &b->memory));
    b->device = b->memory.data;
    b->host = calloc(1, sizeof(batch));
    CHECK(b->host != NULL);
}

static void open_one(box *b, hotbed_backend backend, uint64_t capacity, hotbed_evict evict) {
    open_box(b, backend, 1, &capacity, &evict);
}

static void close_box(box *b) {
    CHECK_OK(hotbed_stream_sync(b->stream));
    hotbed_index_destroy(b->index);
    hotbed_memory_free(&b->memory);
    hotbed_stream_destroy(b->stream);
    free(b->host);
}

static void upload(box *b) {
    CHECK_OK(hotbed_copy(b->device, b->host, sizeof(batch), b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
}

static hotbed_status download(box *b) {
    CHECK_OK(hotbed_copy(b->host, b->device, sizeof(batch), b->stream));
    return hotbed_stream_sync(b->stream);
}

/* The batch's arrays, in device memory. */
static hotbed_index_insert insert_of(const box *b, hotbed_score_rule rule, bool pin) {
    hotbed_index_insert o;
    hotbed_index_insert_init(&o);
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

static hotbed_status insert(box *b, hotbed_score_rule rule, bool pin) {
    hotbed_index_insert o = insert_of(b, rule, pin);
    b->host->num_evicted = 99; /* the call counts from 0 */
    upload(b);
    CHECK_OK(hotbed_index_find_or_insert(b->index, &o, b->stream));
    return download(b);
}

static void find(box *b) {
    upload(b);
    CHECK_OK(hotbed_index_find_keys(
        b->index, b->host->n, b->device->keys, b->device->tables, b->device->slots, b->stream));
    CHECK_OK(download(b));
}

static void erase(box *b) {
    upload(b);
    CHECK_OK(hotbed_index_erase_keys(
        b->index, b->host->n, b->device->keys, b->device->tables, b->device->outcomes, b->stream));
    CHECK_OK(download(b));
}

static void pin(box *b, bool on) {
    upload(b);
    CHECK_OK((on ? hotbed_index_pin_slots : hotbed_index_unpin_slots)(
        b->index, b->host->n, b->device->slots, b->stream));
    CHECK_OK(download(b));
}

static uint64_t size_of(box *b, uint32_t table) {
    uint64_t keys = 0;
    CHECK_OK(hotbed_index_size(b->index, table, &keys, NULL, b->stream));
    return keys;
}

static uint64_t outcomes_that_are(const box *b, hotbed_index_outcome what) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < b->host->n; i++)
        n += b->host->outcomes[i] == (uint8_t)what;
    return n;
}

/* n keys of table 0 from `first` on, score 1; a bijection keeps them distinct and random. */
static void number_keys(box *b, uint64_t first, uint64_t n) {
    CHECK(n <= MOST);
    memset(b->host, 0, sizeof *b->host);
    b->host->n = n;
    for (uint64_t i = 0; i < n; i++) {
        b->host->keys[i] = hotbed_hash_u64(first + i + 1);
        b->host->scores[i] = 1;
    }
}

/* --- arguments ------------------------------------------------------------------------------------ */

static void bad_options_are_refused(hotbed_backend backend) {
    hotbed_stream *stream;
    hotbed_index *index;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    const uint64_t capacities[2] = {10, 20};
    hotbed_index_options good;
    hotbed_index_options_init(&good);
    good.num_tables = 2;
    good.capacities = capacities;

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
    box b;
    uint64_t keys = 7;
    hotbed_index_info info;
    open_one(&b, backend, 100, HOTBED_EVICT_NEVER);
    batch *d = b.device;
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
    hotbed_index_insert good = insert_of(&b, HOTBED_SCORE_KEEP, false), o = good;
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
    CHECK_EQ(size_of(&b, 0), 0);
    close_box(&b);
}

static void a_table_number_out_of_range_is_a_fault(hotbed_backend backend) {
    box b;
    const uint64_t capacities[2] = {100, 100};
    for (int evicts = 0; evicts < 2; evicts++) {
        const hotbed_evict evict[2] = {HOTBED_EVICT_NEVER, (hotbed_evict)evicts};
        open_box(&b, backend, 2, capacities, evict);
        number_keys(&b, 0, 3);
        b.host->tables[1] = 2;
        b.host->tables[2] = 1;
        CHECK_STATUS(insert(&b, HOTBED_SCORE_KEEP, false), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->outcomes[0], HOTBED_INDEX_INSERTED);
        CHECK_EQ(b.host->outcomes[1], HOTBED_INDEX_NO_TABLE);
        CHECK_EQ(b.host->outcomes[2], HOTBED_INDEX_INSERTED);
        CHECK_EQ(b.host->slots[1], HOTBED_SLOT_NONE);
        CHECK_EQ(size_of(&b, 0), 1);
        CHECK_EQ(size_of(&b, 1), 1);
        batch *d = b.device;
        CHECK_OK(hotbed_index_find_keys(b.index, 3, d->keys, d->tables, d->slots, b.stream));
        CHECK_STATUS(download(&b), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->slots[1], HOTBED_SLOT_NONE);
        CHECK(b.host->slots[2] != HOTBED_SLOT_NONE);
        CHECK_OK(hotbed_index_erase_keys(b.index, 3, d->keys, d->tables, d->outcomes, b.stream));
        /* A call that waits leaves the fault for the caller. */
        CHECK_EQ(size_of(&b, 0), 0);
        CHECK_STATUS(download(&b), HOTBED_ERR_RANGE);
        CHECK_EQ(b.host->outcomes[0], 1);
        CHECK_EQ(b.host->outcomes[1], 0);
        close_box(&b);
    }
}

static void tables_are_described(hotbed_backend backend) {
    box b;
    const uint64_t capacities[TABLES] = {1, 1000, 100000};
    const hotbed_evict evict[TABLES] = {
        HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST, HOTBED_EVICT_NEVER};
    open_box(&b, backend, TABLES, capacities, evict);
    uint64_t next = 0;
    CHECK_EQ(hotbed_index_num_tables(b.index), TABLES);
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_index_info info;
        CHECK_OK(hotbed_index_table(b.index, t, &info));
        CHECK_EQ(info.capacity, capacities[t]);
        CHECK_EQ(info.first_slot, next);
        CHECK_EQ(info.evict, evict[t]);
        CHECK_EQ(info.bytes_per_slot, 16);
        CHECK((double)info.slots <= (double)capacities[t] / 0.97 + 32);
        CHECK(info.slots >= capacities[t]);
        next += info.slots;
    }
    close_box(&b);
}

/* What an index allocates is its slots, and little beside. */
static void a_slot_takes_16_bytes(hotbed_backend backend) {
    box b;
    hotbed_stream *stream;
    hotbed_index *index;
    hotbed_index_info info;
    hotbed_counters before, after;
    const uint64_t capacity = 100000;
    hotbed_index_options options;
    open_one(&b, backend, capacity, HOTBED_EVICT_NEVER); /* the backend has what it needs */
    hotbed_index_options_init(&options);
    options.num_tables = 1;
    options.capacities = &capacity;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    hotbed_counters_read(&before);
    CHECK_OK(hotbed_index_create(&options, stream, &index));
    hotbed_counters_read(&after);
    CHECK_OK(hotbed_index_table(index, 0, &info));
    CHECK(after.allocated_bytes - before.allocated_bytes >= 16 * info.slots);
    CHECK(after.allocated_bytes - before.allocated_bytes <= 16 * info.slots + 4096);
    hotbed_index_destroy(index);
    hotbed_stream_destroy(stream);
    close_box(&b);
}

/* --- keys ------------------------------------------------------------------------------------------ */

/* The edges of both key types, and the small numbers that mark free slots inside. */
static uint64_t edge_keys(uint64_t *keys) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < 150; i++)
        keys[n++] = i;
    for (uint64_t i = 0; i < 20; i++) {
        keys[n++] = UINT64_MAX - i;
        keys[n++] = (uint64_t)INT64_MAX - i;
        keys[n++] = (uint64_t)INT64_MIN + i;
    }
    return n;
}

static void every_key_value_is_stored(hotbed_backend backend) {
    static const uint64_t capacities[] = {210, 1000, 50000};
    for (uint32_t c = 0; c < 3; c++)
        for (int evicts = 0; evicts < 2; evicts++) {
            box b;
            open_one(&b, backend, capacities[c], (hotbed_evict)evicts);
            b.host->n = edge_keys(b.host->keys);
            CHECK_EQ(b.host->n, 210);
            find(&b);
            for (uint64_t i = 0; i < b.host->n; i++)
                CHECK_EQ(b.host->slots[i], HOTBED_SLOT_NONE);
            CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, false));
            CHECK_EQ(outcomes_that_are(&b, HOTBED_INDEX_INSERTED), b.host->n);
            uint64_t slots[MOST];
            memcpy(slots, b.host->slots, sizeof slots);
            find(&b);
            CHECK_BYTES(b.host->slots, slots, b.host->n * sizeof slots[0]);
            b.host->n = 100; /* the first hundred go */
            erase(&b);
            CHECK_EQ(outcomes_that_are(&b, (hotbed_index_outcome)1), 100);
            b.host->n = 210;
            find(&b);
            for (uint64_t i = 0; i < 210; i++)
                CHECK_EQ(b.host->slots[i], i < 100 ? HOTBED_SLOT_NONE : slots[i]);
            CHECK_EQ(size_of(&b, 0), 110);
            CHECK_OK(hotbed_index_clear(b.index, 0, b.stream));
            CHECK_EQ(size_of(&b, 0), 0);
            find(&b);
            for (uint64_t i = 0; i < 210; i++)
                CHECK_EQ(b.host->slots[i], HOTBED_SLOT_NONE);
            close_box(&b);
        }
}

/* Insert keys [0, n) in batches; how many were given a slot. */
static uint64_t fill(box *b, uint64_t n) {
    uint64_t given = 0;
    for (uint64_t first = 0; first < n; first += MOST) {
        number_keys(b, first, n - first < MOST ? n - first : MOST);
        CHECK_OK(insert(b, HOTBED_SCORE_ASSIGN, false));
        uint64_t new = outcomes_that_are(b, HOTBED_INDEX_INSERTED) +
                       outcomes_that_are(b, HOTBED_INDEX_EVICTED);
        given += new;
        uint64_t others = outcomes_that_are(b, HOTBED_INDEX_FULL) +
                          outcomes_that_are(b, HOTBED_INDEX_PINNED) +
                          outcomes_that_are(b, HOTBED_INDEX_FOUND);
        CHECK_EQ(new + others, b->host->n);
    }
    return given;
}

static void a_table_takes_as_many_keys_as_it_was_made_for(hotbed_backend backend) {
    static const uint64_t capacities[] = {1,   2,   15,  16,   17,   31,    100,  255,
                                          500, 512, 530, 1000, 4096, 10001, 60000};
    for (uint32_t c = 0; c < sizeof capacities / sizeof capacities[0]; c++) {
        box b;
        hotbed_index_info info;
        open_one(&b, backend, capacities[c], HOTBED_EVICT_NEVER);
        CHECK_EQ(fill(&b, capacities[c]), capacities[c]);
        CHECK_EQ(size_of(&b, 0), capacities[c]);
        /* More keys: the table refuses at last, and loses none. */
        CHECK_OK(hotbed_index_table(b.index, 0, &info));
        number_keys(&b, (uint64_t)1 << 40, MOST);
        CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, false));
        uint64_t added = outcomes_that_are(&b, HOTBED_INDEX_INSERTED);
        CHECK_EQ(added + outcomes_that_are(&b, HOTBED_INDEX_FULL), MOST);
        CHECK_EQ(size_of(&b, 0), capacities[c] + added);
        CHECK(capacities[c] + added <= info.slots);
        number_keys(&b, 0, capacities[c] < MOST ? capacities[c] : MOST);
        find(&b);
        for (uint64_t i = 0; i < b.host->n; i++)
            CHECK(b.host->slots[i] != HOTBED_SLOT_NONE);
        close_box(&b);
    }
}

/* --- scores, pins, eviction ------------------------------------------------------------------------- */

/* Score of the key in `slot`, by export. */
static uint64_t score_in(box *b, uint32_t table, uint64_t slot) {
    uint64_t score = UINT64_MAX;
    CHECK_OK(hotbed_index_export(
        b->index, table, MOST, b->device->keys, b->device->slots, b->device->scores,
        b->device->counts, b->stream));
    batch *seen = malloc(sizeof *seen);
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
        {HOTBED_SCORE_KEEP, 5, 5}, /* inserted: the given score whatever the rule */
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
        box b;
        open_one(&b, backend, 40, (hotbed_evict)evicts);
        for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            number_keys(&b, 0, 1);
            b.host->scores[0] = steps[i].given;
            CHECK_OK(insert(&b, steps[i].rule, false));
            CHECK_EQ(b.host->outcomes[0], i == 0 ? HOTBED_INDEX_INSERTED : HOTBED_INDEX_FOUND);
            CHECK_EQ(score_in(&b, 0, b.host->slots[0]), steps[i].seen);
        }
        /* One score for all keys. */
        number_keys(&b, 0, 3);
        hotbed_index_insert o = insert_of(&b, HOTBED_SCORE_ASSIGN, false);
        o.scores = NULL;
        o.score = 77;
        o.tables = NULL;
        upload(&b);
        CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
        CHECK_OK(download(&b));
        for (int i = 0; i < 3; i++)
            CHECK_EQ(score_in(&b, 0, b.host->slots[i]), 77);
        close_box(&b);
    }
}

static void pins_keep_keys(hotbed_backend backend) {
    box b;
    uint64_t keys = 0, pinned = 0;
    open_one(&b, backend, 16, HOTBED_EVICT_LOWEST);
    hotbed_index_info info;
    CHECK_OK(hotbed_index_table(b.index, 0, &info));
    number_keys(&b, 0, 16);
    CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, true));
    CHECK_EQ(outcomes_that_are(&b, HOTBED_INDEX_INSERTED), 16);
    uint64_t slots[16];
    memcpy(slots, b.host->slots, sizeof slots);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(keys, 16);
    CHECK_EQ(pinned, 16);
    erase(&b);
    CHECK_EQ(outcomes_that_are(&b, (hotbed_index_outcome)0), 16);
    /* More new keys than there is room for: those that find no slot are refused. */
    number_keys(&b, 100, 64);
    CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, true));
    CHECK(outcomes_that_are(&b, HOTBED_INDEX_PINNED) >= 64 - (info.slots - 16));
    CHECK_EQ(b.host->num_evicted, 0);
    pin(&b, false); /* HOTBED_SLOT_NONE is skipped */
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 16);
    /* Two pins more, three off; one more off does nothing. */
    number_keys(&b, 0, 16);
    memcpy(b.host->slots, slots, sizeof slots);
    pin(&b, true);
    pin(&b, true);
    pin(&b, false);
    pin(&b, false);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 16);
    pin(&b, false);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    pin(&b, false);
    find(&b);
    CHECK_BYTES(b.host->slots, slots, sizeof slots);
    CHECK_EQ(score_in(&b, 0, slots[3]), 1);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    /* Slots without a key take no pin. */
    upload(&b);
    erase(&b);
    CHECK_EQ(outcomes_that_are(&b, (hotbed_index_outcome)1), 16);
    memcpy(b.host->slots, slots, sizeof slots);
    b.host->slots[0] = info.slots;
    b.host->slots[1] = info.slots + ((uint64_t)1 << 60);
    pin(&b, true);
    CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
    CHECK_EQ(pinned, 0);
    close_box(&b);
}

static void a_call_does_not_evict_its_own_keys(hotbed_backend backend) {
    for (int pins = 0; pins < 2; pins++) {
        box b;
        hotbed_index_info info;
        open_one(&b, backend, 16, HOTBED_EVICT_LOWEST);
        CHECK_OK(hotbed_index_table(b.index, 0, &info));
        for (uint64_t first = 0; size_of(&b, 0) < 16; first += 64) {
            number_keys(&b, first, 64); /* until the candidates of all keys are full */
            CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, false));
        }
        /* What is there, and as many new keys again. */
        CHECK_OK(hotbed_index_export(
            b.index, 0, MOST, b.device->keys, NULL, NULL, b.device->counts, b.stream));
        CHECK_OK(download(&b));
        uint64_t old = b.host->counts[0];
        b.host->n = 2 * old;
        for (uint64_t i = 0; i < old; i++) {
            b.host->keys[old + i] = b.host->keys[i]; /* behind the new ones */
            b.host->keys[i] = hotbed_hash_u64(i + ((uint64_t)1 << 50));
        }
        memset(b.host->tables, 0, sizeof b.host->tables);
        memset(b.host->scores, 0, sizeof b.host->scores);
        CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, pins != 0));
        for (uint64_t i = old; i < 2 * old; i++)
            CHECK_EQ(b.host->outcomes[i], HOTBED_INDEX_FOUND);
        CHECK_EQ(b.host->num_evicted, 0);
        uint64_t pinned = 0, keys = 0;
        CHECK_OK(hotbed_index_size(b.index, 0, &keys, &pinned, b.stream));
        CHECK_EQ(pinned, pins != 0 ? keys : 0);
        close_box(&b);
    }
}

/* What does not fit is counted, but not written; arrays that are NULL neither. */
static void an_export_stays_in_its_arrays(hotbed_backend backend) {
    box b;
    open_one(&b, backend, 100, HOTBED_EVICT_NEVER);
    number_keys(&b, 0, 90);
    CHECK_OK(insert(&b, HOTBED_SCORE_ASSIGN, true));
    memset(b.host, 0xa5, sizeof *b.host);
    upload(&b);
    batch *d = b.device;
    CHECK_OK(hotbed_index_export(b.index, 0, 40, d->keys, d->slots, NULL, d->counts, b.stream));
    CHECK_OK(download(&b));
    CHECK_EQ(b.host->counts[0], 90);
    CHECK_EQ(b.host->counts[1], 90);
    CHECK(b.host->slots[39] < 200);
    CHECK_EQ(b.host->slots[40], 0xa5a5a5a5a5a5a5a5U);
    CHECK_EQ(b.host->keys[40], 0xa5a5a5a5a5a5a5a5U);
    CHECK_EQ(b.host->scores[0], 0xa5a5a5a5a5a5a5a5U);
    close_box(&b);
}

/* --- the model --------------------------------------------------------------------------------------- */

typedef struct entry {
    uint64_t key, score;
    uint32_t pins;
    bool live;
} entry;

static entry model[MODEL_SLOTS];
static hotbed_index_range ranges[TABLES];

static uint64_t model_find(uint32_t table, uint64_t key) {
    uint64_t first = hotbed_index_slot(ranges[table], 0);
    for (uint64_t s = first; s < first + hotbed_index_range_slots(ranges[table]); s++)
        if (model[s].live && model[s].key == key)
            return s;
    return HOTBED_SLOT_NONE;
}

/* The lowest score of the unpinned among a key's candidates, UINT64_MAX when all are pinned, 0 and *free
 * when one is free. */
static uint64_t model_lowest(uint32_t table, uint64_t key, bool *free_slot) {
    hotbed_index_range range = ranges[table];
    uint64_t lowest = UINT64_MAX;
    *free_slot = false;
    for (uint32_t bucket = 0; bucket < range.buckets; bucket++) {
        if (!hotbed_index_may_hold(range, key, bucket))
            continue;
        for (uint64_t i = 0; i < HOTBED_BUCKET_SLOTS; i++) {
            const entry *e = &model[hotbed_index_slot(range, bucket) + i];
            if (!e->live)
                *free_slot = true;
            else if (e->pins == 0 && e->score < lowest)
                lowest = e->score;
        }
    }
    return lowest;
}

static uint64_t ruled(hotbed_score_rule rule, uint64_t old, uint64_t given) {
    uint64_t score = rule == HOTBED_SCORE_KEEP     ? old
                     : rule == HOTBED_SCORE_ASSIGN ? given
                                                   : old + given;
    return score < HOTBED_SCORE_MOST ? score : HOTBED_SCORE_MOST;
}

/* The batch's evictions leave the model. */
static void model_evictions(const box *b) {
    const batch *h = b->host;
    CHECK_EQ(h->num_evicted, outcomes_that_are(b, HOTBED_INDEX_EVICTED));
    for (uint64_t i = 0; i < h->num_evicted; i++) {
        entry *e = &model[h->evicted_slots[i]];
        CHECK(e->live && e->pins == 0);
        CHECK_EQ(e->key, h->evicted_keys[i]);
        CHECK_EQ(e->score, h->evicted_scores[i]);
        uint32_t table = 0;
        while (table + 1 < TABLES && h->evicted_slots[i] >= hotbed_index_slot(ranges[table + 1], 0))
            table++;
        CHECK(ranges[table].evicts != 0);
        for (uint64_t k = 0; k < h->n; k++) /* not a key of the call */
            CHECK(h->tables[k] != table || h->keys[k] != e->key);
        e->live = false;
    }
}

static void model_insert(box *b, hotbed_score_rule rule, bool with_pin) {
    uint64_t lowest = 0;
    bool room = false;
    if (b->host->n == 1)
        lowest = model_lowest(b->host->tables[0], b->host->keys[0], &room);
    CHECK_OK(insert(b, rule, with_pin));
    const batch *h = b->host;
    for (uint64_t i = 0; i < h->n; i++)
        CHECK_EQ(
            h->outcomes[i] == HOTBED_INDEX_FOUND,
            model_find(h->tables[i], h->keys[i]) != HOTBED_SLOT_NONE);
    if (h->n == 1 && h->outcomes[0] != HOTBED_INDEX_FOUND) {
        CHECK_EQ(h->outcomes[0] == HOTBED_INDEX_INSERTED, room);
        if (h->outcomes[0] == HOTBED_INDEX_EVICTED)
            CHECK_EQ(h->evicted_scores[0], lowest);
        CHECK_EQ(
            h->outcomes[0] == HOTBED_INDEX_PINNED,
            !room && ranges[h->tables[0]].evicts != 0 && lowest == UINT64_MAX);
    }
    model_evictions(b);
    for (uint64_t i = 0; i < h->n; i++) {
        hotbed_index_range range = ranges[h->tables[i]];
        bool free_slot;
        if (h->slots[i] == HOTBED_SLOT_NONE) {
            CHECK_EQ(h->outcomes[i], range.evicts != 0 ? HOTBED_INDEX_PINNED : HOTBED_INDEX_FULL);
            continue;
        }
        entry *e = &model[h->slots[i]];
        if (h->outcomes[i] == HOTBED_INDEX_FOUND) {
            CHECK(e->live && e->key == h->keys[i]);
            e->score = ruled(rule, e->score, h->scores[i]);
        } else {
            CHECK(!e->live);
            *e = (entry){.key = h->keys[i], .live = true};
            e->score = ruled(HOTBED_SCORE_ASSIGN, 0, h->scores[i]);
            CHECK(hotbed_index_may_hold(
                range, e->key, (uint32_t)(h->slots[i] / HOTBED_BUCKET_SLOTS - range.first_bucket)));
        }
        e->pins += with_pin ? 1 : 0;
        (void)free_slot;
    }
    for (uint64_t i = 0; i < h->n; i++) { /* who was refused had no free slot */
        bool free_slot;
        if (h->slots[i] != HOTBED_SLOT_NONE)
            continue;
        (void)model_lowest(h->tables[i], h->keys[i], &free_slot);
        CHECK(!free_slot);
    }
}

/* Every table's keys, slots, scores and pins are the model's. */
static void model_check(box *b) {
    for (uint32_t t = 0; t < TABLES; t++) {
        uint64_t live = 0, pinned = 0;
        uint64_t first = hotbed_index_slot(ranges[t], 0);
        CHECK_OK(hotbed_index_export(
            b->index, t, MOST, b->device->keys, b->device->slots, b->device->scores,
            b->device->counts, b->stream));
        CHECK_OK(download(b));
        for (uint64_t i = 0; i < b->host->counts[0]; i++) {
            const entry *e = &model[b->host->slots[i]];
            CHECK(e->live);
            CHECK_EQ(e->key, b->host->keys[i]);
            CHECK_EQ(e->score, b->host->scores[i]);
        }
        for (uint64_t s = first; s < first + hotbed_index_range_slots(ranges[t]); s++) {
            live += model[s].live ? 1 : 0;
            pinned += model[s].live && model[s].pins > 0 ? 1 : 0;
        }
        CHECK_EQ(b->host->counts[0], live);
        CHECK_EQ(b->host->counts[1], pinned);
    }
}

/* Keys of a batch: from a small space, distinct in their table. */
static void random_keys(box *b, uint64_t n, uint64_t space) {
    static uint64_t edges[MOST];
    batch *h = b->host;
    uint64_t num_edges = edge_keys(edges);
    memset(h, 0, sizeof *h);
    while (h->n < n) {
        uint32_t table = (uint32_t)hotbed_test_below(TABLES);
        uint64_t number = hotbed_test_below(space);
        uint64_t key = number < num_edges ? edges[number] : hotbed_hash_u64(number);
        bool twice = false;
        for (uint64_t i = 0; i < h->n; i++)
            twice = twice || (h->keys[i] == key && h->tables[i] == table);
        if (twice)
            continue;
        h->keys[h->n] = key;
        h->tables[h->n] = table;
        h->scores[h->n++] = hotbed_test_below(30);
    }
}

static void model_erase(box *b) {
    erase(b);
    for (uint64_t i = 0; i < b->host->n; i++) {
        uint64_t slot = model_find(b->host->tables[i], b->host->keys[i]);
        bool gone = slot != HOTBED_SLOT_NONE && model[slot].pins == 0;
        CHECK_EQ(b->host->outcomes[i], gone);
        if (gone)
            model[slot].live = false;
    }
}

static void model_pin(box *b, bool on) {
    find(b);
    for (uint64_t i = 0; i < b->host->n; i++) {
        uint64_t slot = model_find(b->host->tables[i], b->host->keys[i]);
        CHECK_EQ(b->host->slots[i], slot);
        if (slot != HOTBED_SLOT_NONE && (on || model[slot].pins > 0))
            model[slot].pins += on ? 1U : UINT32_MAX;
    }
    pin(b, on);
}

static void random_operations_are_the_models(hotbed_backend backend) {
    box b;
    const uint64_t capacities[TABLES] = {100, 60, 400};
    const hotbed_evict evict[TABLES] = {
        HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST, HOTBED_EVICT_LOWEST};
    open_box(&b, backend, TABLES, capacities, evict);
    memset(model, 0, sizeof model);
    uint64_t buckets = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        ranges[t] = hotbed_index_range_make(capacities[t], evict[t] != 0, buckets);
        buckets += ranges[t].buckets;
    }
    CHECK(buckets * HOTBED_BUCKET_SLOTS <= MODEL_SLOTS);
    for (int step = 0; step < 250; step++) {
        uint64_t what = hotbed_test_below(20);
        random_keys(&b, what % 2 == 0 ? 1 : 1 + hotbed_test_below(80), 900);
        if (what < 12)
            model_insert(&b, (hotbed_score_rule)hotbed_test_below(3), hotbed_test_below(6) == 0);
        else if (what < 14)
            model_erase(&b);
        else if (what < 15)
            model_pin(&b, true);
        else if (what < 19)
            model_pin(&b, false);
        else if (hotbed_test_below(10) == 0) {
            uint32_t table = (uint32_t)hotbed_test_below(TABLES);
            CHECK_OK(hotbed_index_clear(b.index, table, b.stream));
            memset(
                model + hotbed_index_slot(ranges[table], 0), 0,
                hotbed_index_range_slots(ranges[table]) * sizeof model[0]);
        }
        model_check(&b);
    }
    close_box(&b);
}

/* --- streams ------------------------------------------------------------------------------------------ */

static void a_recorded_graph_serves_changing_keys(hotbed_backend backend) {
    box b;
    hotbed_graph *graph;
    const uint64_t capacities[2] = {5000, 64};
    const hotbed_evict evict[2] = {HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST};
    enum { N = 100, LAUNCHES = 10 };
    open_box(&b, backend, 2, capacities, evict);
    number_keys(&b, 0, N);
    upload(&b);
    hotbed_index_insert o = insert_of(&b, HOTBED_SCORE_ASSIGN, false);
    CHECK_OK(hotbed_graph_begin(b.stream));
    CHECK_STATUS(hotbed_index_size(b.index, 0, NULL, NULL, b.stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    CHECK_OK(hotbed_graph_end(b.stream, &graph));
    CHECK_EQ(size_of(&b, 0), 0);
    uint64_t evicted = 0, second = 0;
    for (uint64_t launch = 0; launch < LAUNCHES; launch++) {
        number_keys(&b, launch * N / 2, N); /* half of them are old */
        for (uint32_t i = 0; i < N; i++) {
            b.host->tables[i] = i % 4 == 0;
            b.host->scores[i] = launch;
        }
        upload(&b);
        CHECK_OK(hotbed_graph_launch(graph, b.stream));
        CHECK_OK(download(&b));
        for (uint32_t i = 0; i < N; i++)
            CHECK(b.host->slots[i] != HOTBED_SLOT_NONE);
        CHECK_EQ(b.host->num_evicted, outcomes_that_are(&b, HOTBED_INDEX_EVICTED));
        evicted += b.host->num_evicted;
        for (uint32_t i = 0; i < N; i += 4)
            second += b.host->outcomes[i] != HOTBED_INDEX_FOUND;
    }
    CHECK_EQ(size_of(&b, 1), second - evicted);
    CHECK(evicted > 0);
    hotbed_graph_destroy(graph);
    close_box(&b);
}

static void calls_neither_wait_nor_allocate(hotbed_backend backend) {
    box b;
    open_one(&b, backend, 1000, HOTBED_EVICT_LOWEST);
    number_keys(&b, 0, 1500);
    upload(&b);
    hotbed_counters before, after;
    hotbed_counters_read(&before);
    hotbed_index_insert o = insert_of(&b, HOTBED_SCORE_ASSIGN, true);
    batch *d = b.device;
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    CHECK_OK(hotbed_index_unpin_slots(b.index, 1500, d->slots, b.stream));
    CHECK_OK(hotbed_index_find_keys(b.index, 1500, d->keys, NULL, d->slots, b.stream));
    CHECK_OK(hotbed_index_erase_keys(b.index, 700, d->keys, NULL, NULL, b.stream));
    CHECK_OK(hotbed_index_export(b.index, 0, MOST, d->keys, NULL, NULL, d->counts, b.stream));
    CHECK_OK(hotbed_index_clear(b.index, 0, b.stream));
    hotbed_counters_read(&after);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    close_box(&b);
}

/* Finds on a second stream beside inserts: a key is where it ends up, or not yet there. */
static void finds_run_beside_inserts(hotbed_backend backend) {
    enum { ROUNDS = 20, N = 400 };
    box b;
    hotbed_stream *other;
    hotbed_memory seen;
    open_one(&b, backend, 1000, HOTBED_EVICT_NEVER);
    CHECK_OK(hotbed_stream_create(backend, 0, &other));
    CHECK_OK(hotbed_memory_alloc(
        other, HOTBED_MEMORY_DEVICE, ROUNDS * N * sizeof(uint64_t), NULL, &seen));
    uint64_t *slots = seen.data;
    number_keys(&b, 0, N);
    upload(&b);
    hotbed_index_insert o = insert_of(&b, HOTBED_SCORE_ASSIGN, false);
    CHECK_OK(hotbed_index_find_or_insert(b.index, &o, b.stream));
    for (uint32_t r = 0; r < ROUNDS; r++)
        CHECK_OK(hotbed_index_find_keys(b.index, N, b.device->keys, NULL, slots + r * N, other));
    CHECK_OK(download(&b));
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
    close_box(&b);
}

/* --- backends ------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void both_backends_keep_the_same_keys(hotbed_backend backend) {
    enum { N = 900 };
    box b[2];
    const hotbed_backend backends[2] = {HOTBED_BACKEND_HOST, backend};
    for (int i = 0; i < 2; i++) {
        open_one(&b[i], backends[i], MOST, HOTBED_EVICT_NEVER);
        for (uint64_t round = 0; round < 4; round++) {
            number_keys(&b[i], round * 300, N);
            CHECK_OK(insert(&b[i], HOTBED_SCORE_ADD, round % 2 == 1));
            number_keys(&b[i], round * 300, 100);
            erase(&b[i]);
        }
        CHECK_OK(hotbed_index_export(
            b[i].index, 0, MOST, b[i].device->keys, NULL, NULL, b[i].device->counts, b[i].stream));
        CHECK_OK(download(&b[i]));
        qsort(b[i].host->keys, b[i].host->counts[0], sizeof(uint64_t), by_value);
    }
    CHECK_EQ(b[0].host->counts[0], b[1].host->counts[0]);
    CHECK_EQ(b[0].host->counts[1], b[1].host->counts[1]);
    CHECK_BYTES(b[0].host->keys, b[1].host->keys, b[0].host->counts[0] * sizeof(uint64_t));
    close_box(&b[0]);
    close_box(&b[1]);
}

static void failing_allocations_are_errors(hotbed_backend backend) {
    hotbed_stream *stream;
    hotbed_index *index;
    const uint64_t capacities[2] = {100, 2000};
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    hotbed_index_options options;
    hotbed_index_options_init(&options);
    options.num_tables = 2;
    options.capacities = capacities;
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
    {"bad_options_are_refused", bad_options_are_refused},
    {"bad_arguments_are_refused", bad_arguments_are_refused},
    {"a_table_number_out_of_range_is_a_fault", a_table_number_out_of_range_is_a_fault},
    {"tables_are_described", tables_are_described},
    {"a_slot_takes_16_bytes", a_slot_takes_16_bytes},
    {"every_key_value_is_stored", every_key_value_is_stored},
    {"a_table_takes_as_many_keys_as_it_was_made_for",
     a_table_takes_as_many_keys_as_it_was_made_for},
    {"scores_follow_the_rule", scores_follow_the_rule},
    {"pins_keep_keys", pins_keep_keys},
    {"a_call_does_not_evict_its_own_keys", a_call_does_not_evict_its_own_keys},
    {"an_export_stays_in_its_arrays", an_export_stays_in_its_arrays},
    {"random_operations_are_the_models", random_operations_are_the_models},
    {"a_recorded_graph_serves_changing_keys", a_recorded_graph_serves_changing_keys},
    {"calls_neither_wait_nor_allocate", calls_neither_wait_nor_allocate},
    {"finds_run_beside_inserts", finds_run_beside_inserts},
    {"both_backends_keep_the_same_keys", both_backends_keep_the_same_keys},
    {"failing_allocations_are_errors", failing_allocations_are_errors},
    {NULL, NULL},
};
