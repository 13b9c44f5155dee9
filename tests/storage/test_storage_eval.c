/* tests/storage/test_storage_eval.c - hotbed_storage_eval() against the model.
 *
 * Outputs equal the model's; rows, scores, pins and counts do not change; eval runs within a step and beside
 * training.  Races of eval with training are in test_storage_race.c and test_eval_core.c.
 */
#include "storage/storage.h"
#include "tests/storage/fixture.h"

static void two_tables(setup *s, hotbed_pooling pooling) {
    setup_start(s, 3, 5, 500);
    s->tables[0].eval_initializer.value = 0.625F;
    s->tables[1].dtype = HOTBED_BF16;
    /* rounded to the type of the output, not of the rows */
    s->tables[1].eval_initializer.value = 0.1F;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 40;
    s->tables[2].dtype = HOTBED_FP8;
    s->tables[0].dtype = HOTBED_INT8;
    s->options.pooling = pooling;
    s->options.output_dtype = (hotbed_dtype)(1 + (int)pooling);
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
}

static void eval_changes_nothing(hotbed_backend backend) {
    for (int pooling = 0; pooling < 3; pooling++) {
        setup s;
        fixture r;
        test_ticket l, eval;
        rng random = rng_start((uint64_t)pooling);
        two_tables(&s, (hotbed_pooling)pooling);
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 200, 16);
        test_ticket_open(&r, &eval, 400, 40);
        const batch_shape train = {
            .batch_size = 16, .max_bag = 4, .key_space = 100, .weights = true};
        const batch_shape recipes[] = {
            {.batch_size = 40, .max_bag = 4, .key_space = 200, .weights = true},
            {.batch_size = 1, .extremes = true},
            {.batch_size = 0},
            {.batch_size = 33, .max_bag = 2, .key_space = 100, .bound = true},
            {.batch_size = 40, .one_key = true}};
        for (int i = 0; i < 5; i++) {
            test_ticket_step(&l, &random, &train);
            test_ticket_fill(&eval, &random, &recipes[i]);
            test_ticket_eval(&eval);
            CHECK_OK(hotbed_stream_sync(r.stream));
            fixture_check(&r);
        }
        fixture_close(&r);
    }
}

/* Eval between prefetch and backward of a ticket. */
static void eval_inside_of_a_step_leaves_the_ticket_unchanged(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l, eval;
    rng random = rng_start(1);
    two_tables(&s, HOTBED_POOL_SUM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 100, 16);
    test_ticket_open(&r, &eval, 100, 16);
    const batch_shape how = {.batch_size = 16, .key_space = 30};
    for (int i = 0; i < 3; i++) {
        test_ticket_fill(&l, &random, &how);
        test_ticket_fill(&eval, &random, &how);
        test_ticket_eval(&eval);
        test_ticket_prefetch(&l);
        test_ticket_eval(&eval); /* reads the new rows, with their initial values */
        test_ticket_check(&l);
        test_ticket_forward(&l);
        test_ticket_eval(&eval);
        test_ticket_backward(&l, &random);
        test_ticket_eval(&eval);
    }
    fixture_check(&r);
    fixture_close(&r);
}

static void eval_of_an_empty_storage_reads_missing_rows(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(2);
    setup_start(&s, 2, 3, 10);
    s.tables[0].eval_initializer.value = 2.0F;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 64, 32);
    const batch_shape how = {.batch_size = 32, .extremes = true};
    test_ticket_fill(&l, &random, &how);
    test_ticket_eval(&l);
    CHECK_EQ(fixture_size(&r, 0), 0);
    fixture_check(&r);
    fixture_close(&r);
}

static void eval_out_of_range_is_a_fault(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(3);
    two_tables(&s, HOTBED_POOL_NONE);
    s.tables[2].eval_initializer.value = 7.0F;
    s.options.output_dtype = HOTBED_F32;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 48, 16);
    const batch_shape how = {.batch_size = 16};
    test_ticket_fill(&l, &random, &how);
    ((uint64_t *)l.host.keys)[40] = 40;
    test_ticket_upload(&l);
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_storage_eval(r.storage, &batch, l.output, 0, r.stream));
    CHECK_STATUS(hotbed_stream_sync(r.stream), HOTBED_ERR_RANGE);
    CHECK(strstr(hotbed_last_error(), "table table-2") != NULL);
    CHECK(strstr(hotbed_last_error(), "40") != NULL);
    float rows[48 * 5];
    fixture_download(&r, rows, l.output, sizeof rows);
    for (int e = 0; e < 5; e++) {
        CHECK(rows[40 * 5 + e] == 7.0F); /* the value of a missing key */
        CHECK(rows[39 * 5 + e] != 7.0F);
    }
    fixture_check(&r);
    fixture_close(&r);
}

/* A second call with the same sizes neither allocates nor waits. */
static void eval_allocates_once(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(4);
    two_tables(&s, HOTBED_POOL_SUM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 300, 32);
    const batch_shape how = {.batch_size = 32, .max_bag = 3, .key_space = 90};
    test_ticket_fill(&l, &random, &how);
    test_ticket_eval(&l);
    const hotbed_batch batch = test_ticket_batch(&l);
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 100; i++)
        CHECK_OK(hotbed_storage_eval(r.storage, &batch, l.output, l.stride, r.stream));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.allocations - before.allocations, 0);
    CHECK_EQ(after.host_waits - before.host_waits, 0);
    fixture_close(&r);
}

/* Eval and training on two streams, with features of different tables, so that no row is read while it is written. */
static void eval_runs_beside_training(hotbed_backend backend) {
    enum { BATCH = 32 };
    const int trained = hotbed_test_is_small() ? 40 : 200;
    setup s;
    fixture r;
    test_ticket l, eval;
    rng random = rng_start(5);
    setup_start(&s, 2, 8, 2000);
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    hotbed_stream *other = hotbed_test_stream(backend);
    test_ticket_open(&r, &l, 2 * BATCH, BATCH);
    test_ticket_open(&r, &eval, 2 * BATCH, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 100};
    test_ticket_step(&l, &random, &how); /* create rows in table 1 */
    const batch_shape none = {.batch_size = BATCH, .max_bag = 1, .key_space = 100};
    test_ticket_fill(&eval, &random, &how);
    test_ticket_fill(&l, &random, &none);
    /* training has keys of table 0 only, eval of table 1 only */
    int64_t *offsets = (int64_t *)l.host.offsets;
    for (int b = BATCH; b <= 2 * BATCH; b++)
        offsets[b] = offsets[BATCH];
    l.num_keys = l.host.num_keys = (uint64_t)offsets[2 * BATCH];
    test_ticket_upload(&l);
    int64_t *eval_offsets = (int64_t *)eval.host.offsets;
    for (int b = 0; b <= 2 * BATCH; b++)
        eval_offsets[b] = b <= BATCH ? 0 : b - BATCH;
    eval.num_keys = eval.host.num_keys = BATCH;
    eval.use_offsets = true;
    test_ticket_upload(&eval);
    test_ticket_eval(&eval);
    float expected[2 * 8 * BATCH], seen[2 * 8 * BATCH];
    CHECK_OK(hotbed_stream_sync(r.stream));
    const hotbed_batch batch = test_ticket_batch(&eval);
    CHECK_OK(hotbed_storage_eval(r.storage, &batch, eval.output, 16, other));
    CHECK_OK(hotbed_stream_sync(other));
    fixture_download(&r, expected, eval.output, sizeof expected);
    const hotbed_batch train = test_ticket_batch(&l);
    CHECK_OK(hotbed_fill(l.gradient, 0, l.output_bytes, r.stream));
    for (int i = 0; i < trained; i++) {
        CHECK_OK(hotbed_storage_prefetch(r.storage, &train, l.ticket, r.stream));
        CHECK_OK(hotbed_storage_eval(r.storage, &batch, eval.output, 16, other));
        CHECK_OK(hotbed_storage_forward(r.storage, l.ticket, l.output, l.stride, r.stream));
        CHECK_OK(hotbed_storage_backward(r.storage, l.ticket, l.gradient, l.stride, r.stream));
    }
    CHECK_OK(hotbed_stream_sync(other));
    CHECK_OK(hotbed_stream_sync(r.stream));
    fixture_download(&r, seen, eval.output, sizeof seen);
    CHECK_BYTES(seen, expected, sizeof seen);
    fixture_close(&r);
    hotbed_stream_destroy(other);
}

/* The key of an eval loses its slot to another key between the pass that finds and the pass that reads. */
static void a_key_evicted_meanwhile_reads_as_missing(hotbed_backend backend) {
    enum { DIM = 8 };
    setup s;
    fixture r;
    setup_start(&s, 1, DIM, 100);
    s.tables[0].dim = DIM;
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].initializer = (hotbed_initializer){.value = 3};
    s.tables[0].eval_initializer.value = 0.5F;
    for (int pooling = HOTBED_POOL_NONE; pooling <= HOTBED_POOL_SUM; pooling++) {
        s.options.pooling = (hotbed_pooling)pooling;
        fixture_open_bare(&r, backend, &s.options);
        const uint64_t keys[2] = {5, 6};
        hotbed_batch batch = {.size = sizeof batch};
        batch.keys = fixture_copy(&r, keys, sizeof keys);
        batch.batch_size = 1;
        batch.num_keys = 1;
        hotbed_ticket *ticket;
        hotbed_ticket_view view = {.size = sizeof view};
        uint64_t slots[2];
        float output[2][DIM];
        CHECK_OK(hotbed_ticket_create(r.storage, 1, 1, r.stream, &ticket));
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
        CHECK_OK(hotbed_ticket_read(ticket, &view));
        fixture_download(&r, &slots[0], view.slots, sizeof slots[0]);
        slots[1] = slots[0]; /* as if key 6 had been in this slot when it was found */
        const uint32_t starts[2] = {0, 2};
        hotbed_step_view step = hotbed_storage_step(r.storage);
        step.eval.on = 1;
        step.batch.keys = batch.keys;
        step.batch.bound = 2;
        step.batch.size = 2;
        step.unique.slots = fixture_copy(&r, slots, sizeof slots);
        step.batch.feature_starts = fixture_copy(&r, starts, sizeof starts);
        const uint64_t prefetches = 1; /* no prefetch has run since */
        const uint32_t none = 0;
        step.eval.begun = fixture_copy(&r, &prefetches, sizeof prefetches);
        step.storage.feature_tables = r.storage->device_feature_tables;
        step.eval.rereads = fixture_alloc(&r, 2 * sizeof *step.eval.rereads);
        step.eval.num_rereads = fixture_copy(&r, &none, sizeof none);
        void *device = fixture_alloc(&r, sizeof output);
        CHECK_OK(r.storage->kernels.lookup->forward(&step, device, DIM, DIM, r.stream));
        CHECK_OK(r.storage->kernels.lookup->again(&step, device, DIM, r.stream));
        fixture_download(&r, output, device, sizeof output);
        for (int e = 0; e < DIM; e++) {
            CHECK(output[0][e] == 3.0F);
            CHECK(output[1][e] == 0.5F);
        }
        hotbed_ticket_destroy(ticket);
        fixture_close(&r);
    }
}

/* An eval counts its lower-tier rows.  On CUDA, if the previous eval found many, they are deferred and read by
 * address. */
static void lower_tier_rows_are_counted_and_deferred(hotbed_backend backend) {
    enum { BATCH = 300, KEYS = 2 * BATCH };
    for (int pooled = 0; pooled < 2; pooled++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(6 + (uint64_t)pooled);
        setup_start(&s, 2, 20, KEYS);
        s.tables[1].dim = 36;
        for (int t = 0; t < 2; t++)
            s.tables[t].upper_capacity = KEYS / 4;
        s.options.mode = HOTBED_MODE_DEFAULT;
        s.options.placement = HOTBED_PLACE_BY_HASH;
        s.options.pooling = pooled ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, KEYS, BATCH);
        const batch_shape how = {.batch_size = BATCH, .key_space = KEYS / 2};
        test_ticket_step(&l, &random, &how);
        uint32_t below = 0, counted = 0;
        for (uint32_t i = 0; i < KEYS; i++) {
            const hotbed_table_view *view = &r.storage->tables[i / BATCH].view;
            const uint64_t key = ((const uint64_t *)l.host.keys)[i];
            below += hotbed_table_range(view, key).first_bucket == view->lower.first_bucket;
        }
        CHECK(below > KEYS / 2 && below < KEYS);
        for (int pass = 0; pass < 3; pass++) {
            test_ticket_eval(&l); /* counted; deferred; counted */
            fixture_download(&r, &counted, r.storage->below, sizeof counted);
            CHECK_EQ(counted, backend == HOTBED_BACKEND_CUDA && !pooled ? below : 0);
            if (pass == 1)
                r.storage->lower_bytes = (uint64_t)below << 21; /* a page for each row */
        }
        fixture_close(&r);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(eval_changes_nothing)},
    {TEST(eval_inside_of_a_step_leaves_the_ticket_unchanged)},
    {TEST(eval_of_an_empty_storage_reads_missing_rows)},
    {TEST(eval_out_of_range_is_a_fault)},
    {TEST(eval_allocates_once)},
    {TEST(eval_runs_beside_training)},
    {TEST(a_key_evicted_meanwhile_reads_as_missing)},
    {TEST(lower_tier_rows_are_counted_and_deferred)},
    {NULL, NULL},
};
