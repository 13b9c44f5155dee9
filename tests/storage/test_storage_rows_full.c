/* tests/storage/test_storage_rows_full.c - set_rows and offer_rows on full tables: which rows stay, go or find
 * no slot. */
#include "storage/storage.h"
#include "tests/storage/fixture.h"

#include <stdlib.h>
#include <string.h>

enum { FULL_OF = 3000, CALL = 96 };

/* A full table that evicts; all rows are 7 and all scores equal. */
typedef struct full_table {
    fixture r;
    rng random;
    uint64_t keys[FULL_OF];
    uint64_t *device; /* [FULL_OF] keys of a call */
    float *weights;   /* [FULL_OF] */
    uint8_t *found;   /* [FULL_OF] */
} full_table;

static void full_open(full_table *f, hotbed_backend backend, uint64_t capacity, uint64_t score) {
    setup s;
    f->random = rng_start(30);
    setup_start(&s, 1, 1, capacity);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    fixture_open_bare(&f->r, backend, &s.options);
    f->device = fixture_alloc(&f->r, sizeof f->keys);
    f->weights = fixture_alloc(&f->r, FULL_OF * sizeof *f->weights);
    f->found = fixture_alloc(&f->r, FULL_OF);
    float sevens[FULL_OF];
    uint64_t scores[FULL_OF];
    for (int i = 0; i < FULL_OF; i++) {
        f->keys[i] = rng_next(&f->random);
        sevens[i] = 7.0F;
        scores[i] = score;
    }
    const hotbed_rows rows = {
        .weights = fixture_copy(&f->r, sevens, sizeof sevens),
        .scores = fixture_copy(&f->r, scores, sizeof scores)};
    fixture_upload(&f->r, f->device, f->keys, sizeof f->keys);
    CHECK_OK(hotbed_storage_offer_rows(f->r.storage, 0, FULL_OF, f->device, &rows, f->r.stream));
    CHECK_OK(hotbed_stream_sync(f->r.stream));
    CHECK(fixture_size(&f->r, 0) < FULL_OF); /* the table is full */
}

/* Read which of n keys the table has, and their rows. */
static void full_read(
    full_table *f, uint64_t n, const uint64_t *keys, uint8_t *found, float *weights) {
    const hotbed_rows rows = {.weights = f->weights};
    fixture_upload(&f->r, f->device, keys, n * sizeof *keys);
    CHECK_OK(hotbed_fill(f->weights, 0, n * sizeof *weights, f->r.stream)); /* of absent keys */
    CHECK_OK(hotbed_storage_get_rows(f->r.storage, 0, n, f->device, &rows, f->found, f->r.stream));
    fixture_download(&f->r, found, f->found, n);
    fixture_download(&f->r, weights, f->weights, n * sizeof *weights);
}

static uint64_t full_evictions(full_table *f) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(f->r.storage, 0, &stats, f->r.stream));
    return stats.evictions;
}

/* All keys of the call, present and new, have the lowest scores of the table.  Only the rule that a call does not
 * evict its own keys protects them. */
static void a_call_does_not_evict_its_own_keys(hotbed_backend backend) {
    full_table f;
    uint64_t keys[CALL], scores[CALL], present = 0;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    full_open(&f, backend, 1000, 1000);
    for (int round = 0; round < 8; round++) {
        full_read(&f, FULL_OF, f.keys, found, weights);
        present = 0;
        for (uint64_t i = 0; i < FULL_OF && present < CALL / 2; i++)
            if (found[i] == 1 && i % 3 == (uint64_t)round % 3)
                keys[present++] = f.keys[i];
        for (uint64_t i = present; i < CALL; i++)
            keys[i] = rng_next(&f.random);
        for (uint64_t i = 0; i < CALL; i++)
            scores[i] = 1;
        uint64_t before = fixture_size(&f.r, 0), evicted = full_evictions(&f);
        const hotbed_rows rows = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
        fixture_upload(&f.r, f.device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, CALL, f.device, &rows, f.r.stream));
        CHECK_OK(hotbed_stream_sync(f.r.stream));
        full_read(&f, CALL, keys, found, weights);
        for (uint64_t i = 0; i < CALL; i++) {
            CHECK_EQ(found[i], 1);
            /* the old row, or a new one */
            CHECK(i < present ? weights[i] == 7.0F : weights[i] != 7.0F);
        }
        CHECK_EQ(full_evictions(&f) - evicted, before + CALL - present - fixture_size(&f.r, 0));
        for (uint64_t i = 0; i < CALL; i++) /* scores for the next round */
            scores[i] = 1000;
        const hotbed_rows again = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
        fixture_upload(&f.r, f.device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, CALL, f.device, &again, f.r.stream));
    }
    CHECK_EQ(fixture_pinned(&f.r), 0);
    fixture_close(&f.r);
}

/* set_rows with more keys than slots: keys without a slot are a fault, and the others keep their rows. */
static void keys_that_do_not_fit_are_faults(hotbed_backend backend) {
    full_table f;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    hotbed_table_info info = {.size = sizeof info};
    full_open(&f, backend, 200, 5);
    for (int i = 0; i < FULL_OF; i++)
        f.keys[i] = rng_next(&f.random);
    const hotbed_rows nothing = {0};
    fixture_upload(&f.r, f.device, f.keys, sizeof f.keys);
    CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, FULL_OF, f.device, &nothing, f.r.stream));
    CHECK_STATUS(hotbed_stream_sync(f.r.stream), HOTBED_ERR_FULL);
    CHECK_EQ(fixture_pinned(&f.r), 0);
    uint64_t size = fixture_size(&f.r, 0), kept = 0;
    full_read(&f, FULL_OF, f.keys, found, weights);
    for (int i = 0; i < FULL_OF; i++)
        kept += found[i] == 1;
    CHECK_OK(hotbed_storage_table(f.r.storage, 0, &info));
    CHECK(kept <= info.slots + info.lower_slots && kept + kept / 8 >= info.capacity);
    CHECK(kept <= size);
    fixture_close(&f.r);
}

/* offer_rows with the same keys: no fault, and all rows of the table are of the higher half of scores. */
static void offered_rows_are_kept_by_score(hotbed_backend backend) {
    full_table f;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    uint64_t scores[FULL_OF];
    full_open(&f, backend, 300, 5);
    CHECK_OK(hotbed_storage_clear(f.r.storage, 0, f.r.stream));
    for (uint64_t i = 0; i < FULL_OF; i++) /* not in the order of keys or slots */
        scores[i] = 1 + i * 7 % FULL_OF;
    const hotbed_rows rows = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
    fixture_upload(&f.r, f.device, f.keys, sizeof f.keys);
    uint64_t evicted = full_evictions(&f);
    CHECK_OK(hotbed_storage_offer_rows(f.r.storage, 0, FULL_OF, f.device, &rows, f.r.stream));
    CHECK_OK(hotbed_stream_sync(f.r.stream));
    full_read(&f, FULL_OF, f.keys, found, weights);
    uint64_t size = fixture_size(&f.r, 0), high = 0;
    for (uint64_t i = 0; i < FULL_OF; i++)
        high += found[i] == 1 && scores[i] > FULL_OF / 2;
    /* Each key evicts at most one. */
    CHECK(full_evictions(&f) > evicted && full_evictions(&f) <= evicted + FULL_OF);
    /* In mode DEFAULT, the first rows stay in the upper tier, whatever their scores. */
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(f.r.storage, 0, &info));
    bool apart = hotbed_storage_mode(f.r.storage) == HOTBED_MODE_DEFAULT;
    CHECK(high >= size - (apart ? info.slots : 0));
    CHECK_EQ(fixture_pinned(&f.r), 0);
    fixture_close(&f.r);
}

/* Tables with these options are not over an external store, where they have no size. */
static void without_store(setup *s) {
    const char *mode = getenv("HOTBED_TEST_MODE");
    if (mode != NULL && strcmp(mode, "external") == 0)
        s->options.mode = HOTBED_MODE_HBM_DIRECT;
}

/* Slots of table 0 that can have a row of their own. */
static uint64_t full_slots(fixture *r) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->storage, 0, &info));
    uint64_t slots = info.lower_slots;
    if (hotbed_storage_mode(r->storage) != HOTBED_MODE_CACHE)
        slots += info.slots;
    for (uint32_t g = 0; g < info.segments; g++) {
        hotbed_segment_info segment = {.size = sizeof segment};
        CHECK_OK(hotbed_storage_segment(r->storage, 0, g, &segment));
        slots += segment.slots;
    }
    return slots;
}

/* A table takes as many rows as it has slots, so the rows of a full table fit into another one. */
static void full_tables_are_filled_again(hotbed_backend backend) {
    enum { MOST = 3000 };
    for (int way = 0; way < 4; way++) {
        const bool evicts = way % 2 == 0, grown = way >= 2;
        setup s;
        fixture r[2];
        static uint64_t keys[MOST], scores[MOST];
        static float weights[2][2 * MOST], moments[2][2 * MOST];
        uint8_t found[MOST];
        rng random = rng_start((uint64_t)way);
        setup_start(&s, 1, 2, grown ? 200 : 1000);
        s.tables[0].score = HOTBED_SCORE_CUSTOM;
        s.tables[0].evict = evicts ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER;
        s.tables[0].max_capacity = grown ? 1000 : 0;
        without_store(&s);
        s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
        uint64_t n = MOST;
        for (int copy = 0; copy < 2; copy++) {
            fixture *f = &r[copy];
            fixture_open_bare(f, backend, &s.options);
            /* in three steps; or in one, after which the table has fewer slots */
            const uint64_t first_step = copy == 0 || evicts ? 400 : 1000;
            for (uint64_t capacity = first_step; grown && capacity <= 1000; capacity += 300)
                CHECK_OK(hotbed_storage_grow(f->storage, 0, capacity, f->stream));
            for (uint64_t i = 0; i < MOST && copy == 0; i++) {
                keys[i] = rng_next(&random);
                scores[i] = 1 + rng_below(&random, 100);
                for (uint64_t e = 0; e < 2; e++) {
                    weights[0][2 * i + e] = rng_float(&random);
                    moments[0][2 * i + e] = rng_float(&random);
                }
            }
            const uint64_t *device = fixture_copy(f, keys, sizeof keys);
            hotbed_rows rows = {
                .weights = fixture_copy(f, weights[0], sizeof weights[0]),
                .states = {fixture_copy(f, moments[0], sizeof moments[0])},
                .scores = fixture_copy(f, scores, sizeof scores)};
            for (uint64_t first = 0; first < n; first += 700) { /* several calls */
                hotbed_rows some = {
                    .weights = (float *)rows.weights + 2 * first,
                    .states = {(float *)rows.states[0] + 2 * first},
                    .scores = rows.scores + first};
                const uint64_t count = n - first < 700 ? n - first : 700;
                /* set_rows() does not grow the table */
                CHECK_OK(
                    copy == 0 && grown && !evicts
                        ? hotbed_storage_set_rows(
                              f->storage, 0, count, device + first, &some, f->stream)
                        : hotbed_storage_offer_rows(
                              f->storage, 0, count, device + first, &some, f->stream));
            }
            const hotbed_status fault = hotbed_stream_sync(f->stream);
            CHECK(fault == HOTBED_OK || (copy == 0 && !evicts && fault == HOTBED_ERR_FULL));
            uint8_t *flags = fixture_alloc(f, MOST);
            rows.scores = NULL;
            if (copy == 1) {
                CHECK_EQ(fixture_size(f, 0), n);
                CHECK_OK(
                    hotbed_storage_get_rows(f->storage, 0, n, device, &rows, flags, f->stream));
                fixture_download(f, found, flags, n);
                fixture_download(f, weights[1], rows.weights, 2 * n * sizeof(float));
                fixture_download(f, moments[1], rows.states[0], 2 * n * sizeof(float));
                for (uint64_t i = 0; i < n; i++)
                    CHECK_EQ(found[i], 1);
                CHECK_BYTES(weights[1], weights[0], 2 * n * sizeof(float));
                CHECK_BYTES(moments[1], moments[0], 2 * n * sizeof(float));
                continue;
            }
            CHECK_OK(hotbed_storage_export_keys(f->storage, 0, MOST, keys, scores, &n, f->stream));
            const uint64_t slots = full_slots(f);
            CHECK(evicts || !grown ? n == slots : n <= slots && n > slots - slots / 50);
            fixture_upload(f, (void *)device, keys, n * sizeof *keys);
            CHECK_OK(hotbed_storage_get_rows(f->storage, 0, n, device, &rows, NULL, f->stream));
            fixture_download(f, weights[0], rows.weights, 2 * n * sizeof(float));
            fixture_download(f, moments[0], rows.states[0], 2 * n * sizeof(float));
        }
        fixture_close(&r[0]);
        fixture_close(&r[1]);
    }
}

/* The same for so many rows that a few find their candidates occupied long before the table is full. The second table
 * gets the rows in the order of the first one's slots. */
static void large_tables_are_filled_again(hotbed_backend backend) {
    enum { N = 1 << 18, AT_ONCE = 1 << 13 };
    setup s;
    rng random = rng_start(31);
    setup_start(&s, 1, 1, hotbed_test_is_small() ? N / 4 : N);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    without_store(&s);
    uint64_t *keys = NULL, n = 0;
    for (int copy = 0; copy < 2; copy++) {
        fixture r;
        hotbed_table_stats stats = {.size = sizeof stats};
        fixture_open_bare(&r, backend, &s.options);
        const uint64_t slots = full_slots(&r);
        if (copy == 0) {
            n = slots + slots / 8;
            keys = calloc(n, sizeof *keys);
            CHECK(keys != NULL);
            for (uint64_t i = 0; i < n; i++)
                keys[i] = rng_next(&random);
        }
        const uint64_t *device = fixture_copy(&r, keys, n * sizeof *keys);
        for (uint64_t first = 0; first < n; first += AT_ONCE) {
            const uint64_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
            CHECK_OK(
                hotbed_storage_offer_rows(r.storage, 0, count, device + first, NULL, r.stream));
        }
        CHECK_OK(hotbed_stream_sync(r.stream));
        CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        CHECK_EQ(stats.evictions, 0);
        /* Where rows move between tiers, the table has regions, and a few rows cannot leave a full one. */
        const char *mode = getenv("HOTBED_TEST_MODE");
        const bool moves =
            mode != NULL && (strncmp(mode, "cache", 5) == 0 || strncmp(mode, "score", 5) == 0);
        const uint64_t size = fixture_size(&r, 0), wanted = copy == 0 ? slots : n;
        CHECK(size == wanted || (moves && size > wanted - wanted / 1000));
        CHECK_OK(hotbed_storage_export_keys(r.storage, 0, n, keys, NULL, &n, r.stream));
        fixture_close(&r);
    }
    free(keys);
}

/* A call that finds the table full ends the searches for free slots, but not if a recorded graph erases keys. */
static void slots_freed_by_a_graph_are_filled(hotbed_backend backend) {
    enum { ERASED = 64, MOST = 8000 };
    static uint64_t keys[MOST], scores[MOST];
    setup s;
    fixture r;
    hotbed_graph *graph = NULL;
    rng random = rng_start(33);
    setup_start(&s, 1, 1, 4000);
    s.options.mode = HOTBED_MODE_HBM_DIRECT;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    fixture_open_bare(&r, backend, &s.options);
    const uint64_t slots = full_slots(&r);
    CHECK(slots + 2 * ERASED <= MOST);
    for (uint64_t i = 0; i < MOST; i++) {
        keys[i] = rng_next(&random);
        scores[i] = i < slots ? 100 : 1;
    }
    const uint64_t *device = fixture_copy(&r, keys, sizeof keys);
    hotbed_rows rows = {.scores = fixture_copy(&r, scores, sizeof scores)};
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_erase(r.storage, 0, ERASED, device, NULL, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, slots + ERASED, device, &rows, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots);
    CHECK_OK(hotbed_graph_launch(graph, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots - ERASED);
    rows.scores += slots + ERASED;
    CHECK_OK(
        hotbed_storage_offer_rows(r.storage, 0, ERASED, device + slots + ERASED, &rows, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots);
    CHECK_OK(hotbed_stream_sync(r.stream));
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

/* A table that does not evict takes a few rows beyond its last slot, also if a call ends with it: it grows. */
static void full_tables_grow_a_little(hotbed_backend backend) {
    enum { AT_ONCE = 100, MANY = 600, MORE = 200 };
    setup s;
    fixture r;
    rng random = rng_start(32);
    setup_start(&s, 1, 1, 20000);
    s.tables[0].max_capacity = 21000;
    without_store(&s);
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_grow(r.storage, 0, 21000, r.stream));
    uint64_t slots = full_slots(&r), set = 0, keys[MANY];
    uint64_t *device = fixture_alloc(&r, 2 * sizeof keys);
    const char *mode = getenv("HOTBED_TEST_MODE"); /* by hash the upper tier does not grow */
    const bool by_hash = mode != NULL && strncmp(mode, "hash", 4) == 0;
    while (set < slots + MORE + MANY) {
        const uint64_t most = set < slots + MORE ? AT_ONCE : MANY,
                       n = set < slots && slots - set < most ? slots - set : most;
        for (uint64_t i = 0; i < n; i++)
            keys[i] = rng_next(&random);
        fixture_upload(&r, device, keys, n * sizeof *keys);
        CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, n, device, NULL, r.stream));
        set += n;
        const hotbed_status status = hotbed_stream_sync(r.stream);
        if (status == HOTBED_OK)
            continue;
        CHECK(by_hash); /* the upper tier is full */
        CHECK_EQ(status, HOTBED_ERR_FULL);
        uint8_t found[MANY], *flags = (uint8_t *)(device + MANY);
        CHECK_OK(hotbed_storage_get_rows(r.storage, 0, n, device, NULL, flags, r.stream));
        fixture_download(&r, found, flags, n);
        for (uint64_t i = 0; i < n; i++)
            CHECK(found[i] == 1 || !hotbed_hashed_below(&r.storage->tables[0].view, keys[i]));
    }
    if (!by_hash)
        CHECK_EQ(fixture_size(&r, 0), set);
    fixture_close(&r);
}

/* Offer n keys, move those that have rows afterwards to the front, and return their number. */
static uint64_t offer_keys(fixture *r, uint64_t *device, uint64_t *keys, uint64_t n) {
    static uint8_t found[4096];
    uint64_t count = 0;
    fixture_upload(r, device, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_offer_rows(r->storage, 0, n, device, NULL, r->stream));
    (void)!hotbed_stream_sync(r->stream); /* FULL */
    uint8_t *flags = (uint8_t *)(device + n);
    CHECK_OK(hotbed_storage_get_rows(r->storage, 0, n, device, NULL, flags, r->stream));
    fixture_download(r, found, flags, n);
    for (uint64_t i = 0; i < n; i++)
        if (found[i] != 0)
            keys[count++] = keys[i];
    return count;
}

/* However many calls offer rows beyond max_capacity, a table of the same options takes all of them
 * at once, as a load does. */
static void rows_beyond_max_capacity_fit_into_a_table_of_the_same_options(hotbed_backend backend) {
    static const uint64_t some[] = {1952, 154, 262, 632};
    static uint64_t keys[4096];
    for (int round = 0; round < 2; round++) { /* a few large calls, and many small ones */
        setup s;
        fixture r, again;
        setup_start(&s, 1, 1, 250);
        s.tables[0].max_capacity = 1000;
        without_store(&s);
        fixture_open_bare(&r, backend, &s.options);
        fixture_open_bare(&again, backend, &s.options);
        uint64_t *device = fixture_alloc(&r, 4096 * 9);
        uint64_t *other = fixture_alloc(&again, 4096 * 9);
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 500, r.stream));
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 1000, r.stream));
        uint64_t rows = 0;
        for (uint64_t i = 0, at = 0; at < 3000; i++) {
            const uint64_t n = round == 0 ? some[i] : 100;
            for (uint64_t k = 0; k < n; k++)
                keys[rows + k] = at + k;
            rows += offer_keys(&r, device, keys + rows, n);
            at += n;
        }
        CHECK(rows > 1000);
        CHECK_EQ(fixture_size(&r, 0), rows);
        for (uint64_t k = rows - 1; k > 0; k--) { /* a load has an order of its own */
            const uint64_t j = hotbed_test_below(k + 1), key = keys[k];
            keys[k] = keys[j];
            keys[j] = key;
        }
        CHECK_OK(hotbed_growth_reserve(again.storage, 0, rows, again.stream));
        CHECK_EQ(offer_keys(&again, other, keys, rows), rows);
        fixture_close(&r);
        fixture_close(&again);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_call_does_not_evict_its_own_keys)},
    {TEST(keys_that_do_not_fit_are_faults)},
    {TEST(offered_rows_are_kept_by_score)},
    {TEST(full_tables_are_filled_again)},
    {TEST(full_tables_grow_a_little)},
    {TEST(large_tables_are_filled_again)},
    {TEST(slots_freed_by_a_graph_are_filled)},
    {TEST(rows_beyond_max_capacity_fit_into_a_table_of_the_same_options)},
    {NULL, NULL},
};
