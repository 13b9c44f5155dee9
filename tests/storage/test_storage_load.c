/* tests/storage/test_storage_load.c - a table holds as many keys as its capacity, at a load of 0.97.
 *
 * Tables of many sizes are filled with keys of several patterns (tests/storage/fill.h); none may be refused.
 */
#include "tests/storage/fill.h"
#include "tests/storage/fixture.h"

static void small_tables_hold_their_capacity(hotbed_backend backend) {
    for (uint64_t capacity = 1; capacity <= 70; capacity += 1 + capacity / 8)
        fill_table(backend, capacity, key_makers[capacity % KEY_MAKERS], 1 + capacity / 3);
}

static void tables_of_many_sizes_hold_their_capacity(hotbed_backend backend) {
    static const uint64_t capacities[] = {127, 128, 129, 500, 1000, 1024, 3000, 4097, 10007};
    for (uint32_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++)
        fill_table(backend, capacities[i], key_makers[i % KEY_MAKERS], 1000);
}

static void structured_keys_fill_a_table(hotbed_backend backend) {
    for (int i = 0; i < KEY_MAKERS; i++)
        fill_table(backend, 20000, key_makers[i], 20000);
}

/* Several tables of one storage are filled by prefetches. */
static void prefetch_fills_every_table(hotbed_backend backend) {
    static const uint64_t capacities[] = {40, 333, 2000};
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(1);
    setup_start(&s, 3, 2, 1);
    for (int t = 0; t < 3; t++)
        s.tables[t].capacity = capacities[t];
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 2373, 2000);
    const batch_shape how = {.batch_size = 2000, .max_bag = 1};
    test_ticket_fill(&l, &random, &how);
    int64_t *offsets = (int64_t *)l.host.offsets;
    uint64_t *keys = (uint64_t *)l.host.keys;
    int64_t n = 0;
    for (int t = 0; t < 3; t++)
        for (int sample = 0; sample < 2000; sample++) {
            offsets[t * 2000 + sample] = n;
            if (sample < (int)capacities[t])
                keys[n++] = (uint64_t)sample << t * 20;
        }
    offsets[6000] = n;
    l.num_keys = l.host.num_keys = (uint64_t)n;
    test_ticket_upload(&l);
    test_ticket_prefetch(&l);
    CHECK_OK(hotbed_stream_sync(r.stream));
    test_ticket_check(&l);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    fixture_check(&r);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(small_tables_hold_their_capacity)},
    {TEST(tables_of_many_sizes_hold_their_capacity)},
    {TEST(structured_keys_fill_a_table)},
    {TEST(prefetch_fills_every_table)},
    {NULL, NULL},
};
