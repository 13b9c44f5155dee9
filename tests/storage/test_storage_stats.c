/* tests/storage/test_storage_stats.c - contract of hotbed/stats.h: meters and histograms.
 *
 * A meter's counts must equal the model's, or the counts of hotbed_storage_stats().  Readings run beside requests on
 * other threads; histograms are compared with an export of all keys.
 */
#include "hotbed/stats.h"
#include "tests/storage/fixture.h"
#include "tests/support/fault.h"

#include <pthread.h>
#include <stdlib.h>

enum { BATCH = 16 };

static void three_tables(setup *s) {
    setup_start(s, 3, 4, 400);
    s->tables[1].dim = 7;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 20;
}

/* Compare counts with the model's.  These tests evict and reject no key. */
static void check_stats(const hotbed_table_stats *seen, const hotbed_table_stats *expected) {
    CHECK_EQ(seen->keys, expected->keys);
    CHECK_EQ(seen->uniques, expected->uniques);
    CHECK_EQ(seen->hits, expected->hits);
    CHECK_EQ(seen->inserts, expected->inserts);
    CHECK_EQ(seen->evictions, expected->evictions);
    CHECK_EQ(seen->refused, expected->refused);
    CHECK_EQ(seen->rejected, expected->rejected);
}

static hotbed_table_stats difference(const hotbed_table_stats *a, const hotbed_table_stats *b) {
    hotbed_table_stats d = {
        .keys = a->keys - b->keys,
        .uniques = a->uniques - b->uniques,
        .hits = a->hits - b->hits,
        .inserts = a->inserts - b->inserts,
        .evictions = a->evictions - b->evictions,
        .refused = a->refused - b->refused,
        .rejected = a->rejected - b->rejected,
    };
    return d;
}

static void a_reading_equals_the_counts_of_the_model(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(1);
    hotbed_meter *meter;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    hotbed_table_stats before[3] = {{0}};
    uint64_t prefetches = 0, requests = 0, steps = 0;
    three_tables(&s);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 3 * BATCH, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 120};
    test_ticket_step(&l, &random, &how); /* before the meter exists, so not counted in a step */
    for (uint32_t t = 0; t < 3; t++)
        before[t] = r.model->tables[t].stats;
    steps = prefetches = 1;
    CHECK_OK(hotbed_meter_create(r.storage, r.stream, &meter));
    CHECK_OK(hotbed_meter_read(meter, 1, &reading, &total, &step));
    CHECK_EQ(reading.request, 0);
    CHECK_EQ(total.keys, 0);
    for (int i = 0; i < 25; i++) {
        for (uint64_t k = rng_below(&random, 3); k > 0; k--, steps++)
            test_ticket_step(&l, &random, &how);
        CHECK_OK(hotbed_meter_request(meter, r.stream));
        CHECK_OK(hotbed_stream_sync(r.stream));
        requests++;
        for (uint32_t t = 0; t < 3; t++) {
            const hotbed_table_stats *now = &r.model->tables[t].stats;
            hotbed_table_stats expected = difference(now, &before[t]);
            CHECK_OK(hotbed_meter_read(meter, t, &reading, &total, &step));
            CHECK_EQ(reading.request, requests);
            CHECK_EQ(reading.prefetches, steps);
            CHECK_EQ(reading.step_prefetches, steps - prefetches);
            check_stats(&total, now);
            check_stats(&step, &expected);
            before[t] = *now;
        }
        prefetches = steps;
    }
    CHECK(before[0].hits > 0 && before[0].inserts > 0);
    hotbed_meter_destroy(meter);
    hotbed_meter_destroy(NULL);
    fixture_close(&r);
}

/* All counts, with evictions, refusals and rejections, equal the counts of hotbed_storage_stats(). */
static void every_count_is_read(hotbed_backend backend) {
    setup s;
    fixture r;
    rng random = rng_start(2);
    hotbed_ticket *ticket;
    hotbed_meter *meter;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    hotbed_table_stats stats = {.size = sizeof stats}, before = {0};
    uint64_t keys[64];
    setup_start(&s, 2, 2, 100);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[1].capacity = 40;
    s.tables[1].admission = HOTBED_ADMIT_PROBABILISTIC;
    s.tables[1].admission_probability = 0.5F;
    s.options.check = HOTBED_CHECK_IGNORE;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(r.storage, 64, 32, r.stream, &ticket));
    CHECK_OK(hotbed_meter_create(r.storage, r.stream, &meter));
    uint64_t *device = fixture_alloc(&r, sizeof keys);
    hotbed_batch batch = {.size = sizeof batch, .batch_size = 32, .num_keys = 64, .keys = device};
    for (int i = 0; i < 40; i++) {
        for (int k = 0; k < 64; k++)
            keys[k] = rng_below(&random, 500);
        fixture_upload(&r, device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
        CHECK_OK(hotbed_meter_request(meter, r.stream));
        CHECK_OK(hotbed_stream_sync(r.stream));
    }
    for (uint32_t t = 0; t < 2; t++) {
        CHECK_OK(hotbed_meter_read(meter, t, &reading, &total, &step));
        CHECK_OK(hotbed_storage_stats(r.storage, t, &stats, r.stream));
        check_stats(&total, &stats);
        CHECK_EQ(step.keys, 32);
        CHECK_EQ(step.uniques, step.hits + step.inserts + step.refused + step.rejected);
        before.evictions += stats.evictions;
        before.refused += stats.refused;
        before.rejected += stats.rejected;
    }
    CHECK(before.evictions > 0 && before.refused > 0 && before.rejected > 0);
    hotbed_meter_destroy(meter);
    CHECK_OK(hotbed_ticket_cancel(ticket, r.stream));
    hotbed_ticket_destroy(ticket);
    fixture_close(&r);
}

/* A storage with a meter; every step has BATCH keys, so counts show the number of steps. */
typedef struct meter_fixture {
    fixture r;
    hotbed_ticket *ticket;
    hotbed_meter *meter;
    hotbed_batch batch;
} meter_fixture;

static void meter_open(meter_fixture *d, hotbed_backend backend) {
    setup s;
    uint64_t keys[2 * BATCH];
    setup_start(&s, 2, 2, 100);
    fixture_open_bare(&d->r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(d->r.storage, 2 * BATCH, BATCH, d->r.stream, &d->ticket));
    CHECK_OK(hotbed_meter_create(d->r.storage, d->r.stream, &d->meter));
    for (uint64_t k = 0; k < 2 * BATCH; k++)
        keys[k] = k;
    d->batch = (hotbed_batch){.size = sizeof d->batch, .batch_size = BATCH, .num_keys = 2 * BATCH};
    d->batch.keys = fixture_copy(&d->r, keys, sizeof keys);
}

static void meter_step(meter_fixture *d) {
    CHECK_OK(hotbed_storage_prefetch(d->r.storage, &d->batch, d->ticket, d->r.stream));
    CHECK_OK(hotbed_meter_request(d->meter, d->r.stream));
}

static void meter_close(meter_fixture *d) {
    hotbed_ticket_destroy(d->ticket);
    hotbed_meter_destroy(d->meter);
    fixture_close(&d->r);
}

static void requests_can_be_recorded(hotbed_backend backend) {
    meter_fixture d;
    hotbed_graph *graph;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    meter_open(&d, backend);
    CHECK_OK(hotbed_graph_begin(d.r.stream));
    meter_step(&d);
    CHECK_OK(hotbed_graph_end(d.r.stream, &graph));
    for (uint64_t i = 1; i <= 20; i++) {
        CHECK_OK(hotbed_graph_launch(graph, d.r.stream));
        if (i % 7 != 0)
            continue;
        CHECK_OK(hotbed_stream_sync(d.r.stream));
        CHECK_OK(hotbed_meter_read(d.meter, 1, &reading, &total, &step));
        CHECK_EQ(reading.request, i);
        CHECK_EQ(reading.prefetches, i);
        CHECK_EQ(reading.step_prefetches, 1);
        CHECK_EQ(total.keys, i * BATCH);
        CHECK_EQ(step.keys, BATCH);
        CHECK_EQ(step.hits, BATCH);
    }
    CHECK_OK(hotbed_stream_sync(d.r.stream));
    hotbed_graph_destroy(graph);
    meter_close(&d);
}

/* Requests on a stream that is not ordered with the prefetches, whose counts TSan checks. Each prefetch is counted
 * once, and a reading never has more hits than keys. */
static void requests_run_beside_prefetches(hotbed_backend backend) {
    enum { STEPS = 100 };
    meter_fixture d;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    uint64_t keys = 0, prefetches = 0, last = 0;
    meter_open(&d, backend);
    hotbed_stream *beside = hotbed_test_stream(backend);
    for (uint64_t i = 0; i <= STEPS; i++) {
        if (i < STEPS)
            CHECK_OK(hotbed_storage_prefetch(d.r.storage, &d.batch, d.ticket, d.r.stream));
        else
            CHECK_OK(hotbed_stream_sync(d.r.stream)); /* the last request counts all */
        CHECK_OK(hotbed_meter_request(d.meter, beside));
        CHECK_OK(hotbed_stream_sync(beside));
        CHECK_OK(hotbed_meter_read(d.meter, 1, &reading, &total, &step));
        CHECK_EQ(reading.request, ++last);
        CHECK(total.hits <= total.uniques && step.hits <= BATCH * STEPS);
        keys += step.keys;
        prefetches += reading.step_prefetches;
        CHECK_EQ(total.keys, keys);
        CHECK_EQ(reading.prefetches, prefetches);
    }
    CHECK_EQ(keys, STEPS * BATCH);
    CHECK_EQ(prefetches, STEPS);
    CHECK_OK(hotbed_stream_sync(d.r.stream));
    hotbed_stream_destroy(beside);
    meter_close(&d);
}

static void requests_and_readings_neither_wait_nor_allocate(hotbed_backend backend) {
    meter_fixture d;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    meter_open(&d, backend);
    meter_step(&d);
    CHECK_OK(hotbed_stream_sync(d.r.stream));
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 30; i++) {
        meter_step(&d);
        CHECK_OK(hotbed_meter_read(d.meter, 0, &reading, &total, &step));
        CHECK(reading.request >= 1);
    }
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_OK(hotbed_stream_sync(d.r.stream));
    meter_close(&d);
}

/* More threads than cores read while thousands of requests run.  So some readers are interrupted within a record,
 * which is used for another request before they go on; still, each reading must be of one request. */
typedef struct reader {
    const hotbed_meter *meter;
    uint64_t last; /* request to stop after */
} reader;

static void *read_until_last(void *argument) {
    const reader *r = argument;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    for (uint64_t seen = 0; seen < r->last; seen = reading.request) {
        CHECK_OK(hotbed_meter_read(r->meter, 1, &reading, &total, &step));
        CHECK(reading.request >= seen);
        CHECK_EQ(reading.prefetches, reading.request);
        CHECK_EQ(total.keys, reading.request * BATCH);
        CHECK_EQ(step.keys, reading.request == 0 ? 0 : BATCH);
        CHECK_EQ(total.hits + total.inserts, total.uniques);
    }
    return NULL;
}

static void concurrent_readings_are_of_one_request(hotbed_backend backend) {
    enum { READERS = 8 };
    uint64_t steps = hotbed_test_is_small() ? 40 : backend == HOTBED_BACKEND_HOST ? 10000 : 400;
    meter_fixture d;
    pthread_t threads[READERS];
    meter_open(&d, backend);
    reader r = {d.meter, steps};
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, read_until_last, &r), 0);
    for (uint64_t i = 0; i < steps; i++)
        meter_step(&d);
    CHECK_OK(hotbed_stream_sync(d.r.stream));
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    meter_close(&d);
}

/* --- histograms ------------------------------------------------------------------------------ */

static void histograms_count_the_slots(hotbed_backend backend) {
    enum { CAPACITY = 3000, STEP = 100 };
    setup s;
    fixture r;
    rng random = rng_start(3);
    hotbed_ticket *ticket;
    hotbed_ticket_view view = {.size = sizeof view};
    hotbed_table_info info = {.size = sizeof info};
    hotbed_memory pinned;
    uint64_t keys[2 * STEP], slots[2 * STEP];
    setup_start(&s, 2, 1, CAPACITY);
    s.options.mode = HOTBED_MODE_HBM_DIRECT; /* keys of two tiers change their buckets */
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(r.storage, 2 * STEP, STEP, r.stream, &ticket));
    CHECK_OK(hotbed_memory_alloc(
        r.stream, HOTBED_MEMORY_PINNED, HOTBED_LOADS * sizeof(uint64_t), NULL, &pinned));
    CHECK_OK(hotbed_storage_table(r.storage, 1, &info));
    uint8_t *loads = calloc(info.slots / 16, 1);
    CHECK(loads != NULL);
    hotbed_batch batch = {.size = sizeof batch, .batch_size = STEP, .num_keys = 2 * STEP};
    batch.keys = fixture_alloc(&r, sizeof keys);
    for (int i = 0; i < CAPACITY / STEP; i++) {
        for (int k = 0; k < 2 * STEP; k++)
            keys[k] = rng_next(&random);
        fixture_upload(&r, (void *)batch.keys, keys, sizeof keys);
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
        CHECK_OK(hotbed_storage_load_histogram(r.storage, 1, pinned.data, r.stream));
        CHECK_OK(hotbed_ticket_read(ticket, &view));
        fixture_download(&r, slots, view.slots, sizeof slots);
        for (int k = STEP; k < 2 * STEP; k++)
            loads[(slots[k] - info.first_slot) / 16]++;
        uint64_t expected[HOTBED_LOADS] = {0};
        for (uint64_t b = 0; b < info.slots / 16; b++)
            expected[loads[b]]++;
        CHECK_BYTES(pinned.data, expected, sizeof expected);
    }
    free(loads);
    hotbed_memory_free(&pinned);
    hotbed_ticket_destroy(ticket);
    fixture_close(&r);
}

/* --- errors ---------------------------------------------------------------------------------- */

static void documented_errors(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_meter *meter = (hotbed_meter *)&s, *good;
    hotbed_reading reading = {.size = sizeof reading};
    hotbed_table_stats total = {.size = sizeof total}, step = {.size = sizeof step};
    three_tables(&s);
    s.options.mode = HOTBED_MODE_HBM_DIRECT; /* static tables have no index in this mode */
    fixture_open_bare(&r, backend, &s.options);
    CHECK_STATUS(hotbed_meter_create(r.storage, r.stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_meter_create(NULL, r.stream, &meter), HOTBED_ERR_ARGUMENT);
    CHECK(meter == NULL);
    CHECK_STATUS(hotbed_meter_create(r.storage, NULL, &meter), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_STATUS(hotbed_meter_create(r.storage, r.stream, &meter), HOTBED_ERR_STATE);
    hotbed_graph *graph;
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    hotbed_graph_destroy(graph);
    CHECK_OK(hotbed_meter_create(r.storage, r.stream, &good));
    CHECK_STATUS(hotbed_meter_request(NULL, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_meter_request(good, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_meter_read(NULL, 0, &reading, &total, &step), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_meter_read(good, 3, &reading, &total, &step), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_meter_read(good, 0, NULL, NULL, NULL), HOTBED_ERR_ARGUMENT);
    uint64_t *loads = fixture_alloc(&r, HOTBED_LOADS * sizeof *loads);
    CHECK_STATUS(hotbed_storage_load_histogram(NULL, 0, loads, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_load_histogram(r.storage, 3, loads, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_load_histogram(r.storage, 0, NULL, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_load_histogram(r.storage, 2, loads, r.stream), HOTBED_ERR_ARGUMENT);
    hotbed_meter_destroy(good);
    fixture_close(&r);
}

static void a_histogram_does_not_grow_a_recorded_workspace(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_graph *graph;
    three_tables(&s);
    fixture_open_bare(&r, backend, &s.options);
    uint64_t *loads = fixture_alloc(&r, HOTBED_LOADS * sizeof *loads);
    hotbed_stream *fresh = hotbed_test_stream(backend);
    CHECK_OK(hotbed_graph_begin(fresh));
    CHECK_STATUS(hotbed_storage_load_histogram(r.storage, 0, loads, fresh), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_end(fresh, &graph));
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(fresh);
    fixture_close(&r);
}

static void meter_create_without_memory_is_an_error(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_meter *meter = NULL;
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("allocations of the driver are not ours to fail");
    three_tables(&s);
    fixture_open_bare(&r, backend, &s.options);
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_meter_create(r.storage, r.stream, &meter);
        if (!fault_disarm()) {
            CHECK_OK(status);
            CHECK(n > 3);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(meter == NULL);
    }
    hotbed_meter_destroy(meter);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_reading_equals_the_counts_of_the_model)},
    {TEST(every_count_is_read)},
    {TEST(requests_can_be_recorded)},
    {TEST(requests_run_beside_prefetches)},
    {TEST(requests_and_readings_neither_wait_nor_allocate)},
    {TEST(concurrent_readings_are_of_one_request)},
    {TEST(histograms_count_the_slots)},
    {TEST(documented_errors)},
    {TEST(a_histogram_does_not_grow_a_recorded_workspace)},
    {TEST(meter_create_without_memory_is_an_error)},
    {NULL, NULL},
};
