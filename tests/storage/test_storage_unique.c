/* tests/storage/test_storage_unique.c - dedup of a batch, as the ticket's arrays show it.
 *
 * Distinct keys, their order, counts and the inverse are compared with the model, and the batch is rebuilt from them.
 */
#include "base/hash_core.h"
#include "tests/storage/fixture.h"

#include <stdlib.h>

/* Check that distinct keys and inverse give the batch again.  This needs no model. */
static void check_rebuilds(test_ticket *l) {
    const oracle *m = l->r->model;
    hotbed_ticket_view view = {.size = sizeof view};
    uint32_t *offsets = malloc((m->num_tables + 1U) * sizeof *offsets);
    CHECK(offsets != NULL);
    CHECK_OK(hotbed_ticket_read(l->ticket, &view));
    fixture_download(l->r, offsets, view.unique_offsets, (m->num_tables + 1U) * sizeof *offsets);
    uint64_t uniques = offsets[m->num_tables];
    CHECK(uniques <= l->num_keys);
    uint64_t *keys = calloc(uniques + 1, sizeof *keys);
    uint64_t *counts = calloc(uniques + 1, sizeof *counts);
    uint64_t *sums = calloc(uniques + 1, sizeof *sums);
    uint32_t *seen = calloc(uniques + 1, sizeof *seen);
    uint32_t *inverse = calloc(l->num_keys + 1, sizeof *inverse);
    CHECK(keys != NULL && counts != NULL && sums != NULL && seen != NULL && inverse != NULL);
    fixture_download(l->r, keys, view.unique_keys, uniques * sizeof *keys);
    fixture_download(l->r, counts, view.counts, uniques * sizeof *counts);
    fixture_download(l->r, inverse, view.inverse, l->num_keys * sizeof *inverse);
    uint32_t next = 0;
    for (uint64_t i = 0; i < l->num_keys; i++) {
        uint32_t u = inverse[i];
        CHECK(u < uniques);
        uint32_t table = m->feature_tables[l->model->bags[i] / l->host.batch_size];
        uint64_t key = ((const uint64_t *)l->host.keys)[i],
                 rows = m->tables[table].options.capacity;
        if (m->by_row && key >= rows)
            CHECK(keys[u] >= rows); /* keys without a row count as one */
        else
            CHECK_EQ(keys[u], key);
        CHECK(u >= offsets[table] && u < offsets[table + 1]);
        if (m->by_row)
            CHECK(u == offsets[table] || keys[u - 1] < keys[u]);
        if (seen[u]++ == 0) {
            CHECK(m->by_row || u == next);
            next++;
        }
        sums[u] += l->use_counts ? l->host.counts[i] : 1;
    }
    CHECK_EQ(next, uniques);
    for (uint64_t u = 0; u < uniques; u++)
        CHECK_EQ(counts[u], sums[u]);
    free(offsets);
    free(keys);
    free(counts);
    free(sums);
    free(seen);
    free(inverse);
}

static void dedup(test_ticket *l) {
    test_ticket_upload(l);
    test_ticket_prefetch(l);
    test_ticket_check(l);
    check_rebuilds(l);
    test_ticket_cancel(l);
}

static void dedup_random(test_ticket *l, rng *random, const batch_shape *how) {
    test_ticket_fill(l, random, how);
    dedup(l);
}

static void small_batches_are_deduplicated(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(1);
    setup_start(&s, 3, 2, 50000);
    setup_feature(&s, 0);
    setup_feature(&s, 0);
    setup_feature(&s, 1);
    setup_feature(&s, 2);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 1000, 64);
    for (uint32_t i = 0; i < 60; i++) {
        const batch_shape how = {
            .batch_size = (uint32_t)rng_below(&random, 65),
            .max_bag = (uint32_t)rng_below(&random, 5),
            .key_space = rng_below(&random, 2) == 0 ? 0 : 1 + rng_below(&random, 100),
            .extremes = i % 3 == 0,
            .one_key = i % 7 == 0,
            .counts = i % 4 < 2,
            .bound = i % 2 == 0};
        dedup_random(&l, &random, &how);
    }
    fixture_close(&r);
}

static void equal_keys_of_two_tables_are_two_rows(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(2);
    setup_start(&s, 32, 1, 4000);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 32 * 64, 64);
    const batch_shape how = {.batch_size = 64, .key_space = 40};
    dedup_random(&l, &random, &how);
    const batch_shape one = {.batch_size = 64, .one_key = true};
    dedup_random(&l, &random, &one);
    uint32_t uniques = 0;
    hotbed_ticket_view view = {.size = sizeof view};
    test_ticket_prefetch(&l);
    CHECK_OK(hotbed_ticket_read(l.ticket, &view));
    fixture_download(&r, &uniques, view.unique_offsets + 32, sizeof uniques);
    CHECK_EQ(uniques, 32);
    fixture_check(&r);
    fixture_close(&r);
}

static void tables_without_keys_have_no_distinct_keys(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(3);
    setup_start(&s, 9, 2, 1000); /* some of the tables have no feature */
    setup_feature(&s, 1);
    setup_feature(&s, 2);
    setup_feature(&s, 6);
    setup_feature(&s, 7);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 400, 50);
    const batch_shape how = {.batch_size = 50, .max_bag = 2, .key_space = 30};
    dedup_random(&l, &random, &how);
    int64_t *offsets = (int64_t *)l.host.offsets; /* now feature 1 has no key, either */
    int64_t gap = offsets[100] - offsets[50];
    for (int b = 51; b <= 200; b++)
        offsets[b] = b <= 100 ? offsets[50] : offsets[b] - gap;
    l.num_keys = l.host.num_keys = (uint64_t)offsets[200];
    dedup(&l);
    for (int b = 0; b <= 200; b++)
        offsets[b] = 0;
    l.num_keys = l.host.num_keys = 0;
    dedup(&l);
    fixture_close(&r);
}

/* Patterns of keys that collide if the hash is weak. */
static void patterned_keys_are_deduplicated(hotbed_backend backend) {
    enum { N = 6000 };
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(4);
    setup_start(&s, 1, 1, 60000);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, N, N);
    for (uint32_t shift = 0; shift < 64; shift += 9) {
        const batch_shape how = {.batch_size = N, .one_key = true};
        test_ticket_fill(&l, &random, &how);
        uint64_t *keys = (uint64_t *)l.host.keys;
        for (uint64_t i = 0; i < N; i++)
            keys[i] = (i % (N - 7)) << shift;
        dedup(&l);
    }
    fixture_close(&r);
}

static void large_batches_are_deduplicated(hotbed_backend backend) {
    enum { N = 60000 };
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(5);
    setup_start(&s, 2, 1, N);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, N, N / 2);
    const batch_shape how = {.batch_size = N / 2, .key_space = 20000};
    dedup_random(&l, &random, &how);
    batch_shape one = {.batch_size = N / 2, .one_key = true};
    dedup_random(&l, &random, &one);
    one.counts = true; /* counts add up to more than 2^32 */
    dedup_random(&l, &random, &one);
    const batch_shape counted = {.batch_size = N / 2, .key_space = 3000, .counts = true};
    dedup_random(&l, &random, &counted);
    fixture_close(&r);
}

/* Of static tables, whose keys are numbered by row. */
static void keys_of_static_tables_are_ordered_by_row(hotbed_backend backend) {
    enum { TABLES = 5, N = 4000 };
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(6);
    setup_start(&s, TABLES, 1, 1);
    s.options.check = HOTBED_CHECK_IGNORE; /* some keys have no row */
    for (uint32_t t = 0; t < TABLES; t++) {
        s.tables[t].kind = HOTBED_TABLE_STATIC;
        /* over an external store, half of the rows have to suffice for a batch */
        s.tables[t].capacity = t == 1 ? 1 : t == 2 ? 70000 : 2000 * (t + 1);
        setup_feature(&s, t);
    }
    setup_feature(&s, TABLES - 1);
    fixture_open(&r, backend, &s.options);
    CHECK(r.model->by_row || hotbed_storage_mode(r.storage) != HOTBED_MODE_HBM_DIRECT);
    test_ticket_open(&r, &l, N, 64);
    for (uint32_t i = 0; i < 60; i++) {
        const batch_shape how = {
            .batch_size = (uint32_t)rng_below(&random, 65),
            .max_bag = (uint32_t)rng_below(&random, 10),
            .key_space = rng_below(&random, 2) == 0 ? 0 : 1 + rng_below(&random, 100),
            .counts = i % 4 < 2,
            .bound = i % 2 == 0};
        test_ticket_fill(&l, &random, &how);
        uint64_t *keys = (uint64_t *)l.host.keys;
        for (uint64_t k = 0; i % 3 == 0 && k < l.num_keys; k++)
            if (rng_below(&random, 8) == 0)
                keys[k] = rng_below(&random, 2) == 0 ? UINT64_MAX - rng_below(&random, 3)
                                                     : keys[k] + 100000;
        dedup(&l);
    }
    fixture_close(&r);
}

/* Files have keys in the order of their hashes, so a call may have all keys of a narrow range of hashes. */
static void keys_in_the_order_of_their_hashes_have_places_apart(hotbed_backend backend) {
    enum { KEYS = 4096, PLACES = 2 * KEYS };
    static bool taken[PLACES];
    uint64_t steps = 0;
    (void)backend;
    for (uint64_t i = 0; i < KEYS; i++) {
        uint32_t at = hotbed_place_u32(hotbed_unhash_u64(i << 40), PLACES);
        for (; taken[at]; at = at + 1 == PLACES ? 0 : at + 1)
            steps++;
        taken[at] = true;
    }
    CHECK(steps < KEYS); /* 0.5 steps a key at a load of 0.5; with neighbouring places KEYS / 2 */
}

const hotbed_test hotbed_tests[] = {
    {TEST(keys_in_the_order_of_their_hashes_have_places_apart)},
    {TEST(small_batches_are_deduplicated)},
    {TEST(equal_keys_of_two_tables_are_two_rows)},
    {TEST(tables_without_keys_have_no_distinct_keys)},
    {TEST(patterned_keys_are_deduplicated)},
    {TEST(large_batches_are_deduplicated)},
    {TEST(keys_of_static_tables_are_ordered_by_row)},
    {NULL, NULL},
};
