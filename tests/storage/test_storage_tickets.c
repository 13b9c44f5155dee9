/* tests/storage/test_storage_tickets.c - several tickets at a time: order, pins, reuse, keep and retake.
 *
 * Random calls on up to eight tickets are compared with the model, with the pins of all rows.  Counters of memory,
 * pins and waits show that abandoned tickets leak nothing.
 */
#include "tests/storage/fixture.h"

#include <pthread.h>

enum { MAX_DEPTH = 8 };

/* Three tables of different sizes, large enough for MAX_DEPTH * 48 pinned keys. */
static void three_tables(setup *s, hotbed_pooling pooling, hotbed_optimizer_kind kind) {
    setup_start(s, 3, 4, 1000);
    s->tables[0].capacity = 5000;
    s->tables[1].capacity = 600;
    s->tables[1].dim = 9;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 37;
    s->options.pooling = pooling;
    s->options.optimizer.kind = kind;
}

static void refill(test_ticket *l, rng *random) {
    const batch_shape how = {
        .batch_size = 1 + (uint32_t)rng_below(random, 8),
        .max_bag = (uint32_t)rng_below(random, 3),
        .key_space = 60,
        .weights = rng_below(random, 2) == 0};
    test_ticket_fill(l, random, &how);
    test_ticket_prefetch(l);
}

/* Make a random call on a ticket, in the storage and in the model. */
static void random_call(fixture *r, test_ticket *l, rng *random) {
    if (!l->model->held) {
        hotbed_ticket_view view = {.size = sizeof view};
        CHECK_STATUS(hotbed_ticket_read(l->ticket, &view), HOTBED_ERR_STATE);
        refill(l, random);
        return;
    }
    switch (rng_below(random, 8)) {
    case 0:
        test_ticket_cancel(l);
        test_ticket_cancel(l); /* an empty ticket stays empty */
        break;
    case 1:
        refill(l, random); /* releases the pins of its previous batch */
        break;
    case 2:
        test_ticket_close(l); /* releases its pins */
        test_ticket_open(r, l, 64, 8);
        break;
    case 3:
    case 4:
        test_ticket_forward(l);
        break;
    case 5:
        test_ticket_check(l);
        break;
    default:
        test_ticket_forward(l);
        test_ticket_backward(l, random);
        break;
    }
}

static void random_calls(hotbed_backend backend, uint32_t depth, int length) {
    setup s;
    fixture r;
    test_ticket tickets[MAX_DEPTH];
    rng random = rng_start(depth);
    three_tables(&s, (hotbed_pooling)(depth % 3), (hotbed_optimizer_kind)(1 + depth % 4));
    fixture_open(&r, backend, &s.options);
    for (uint32_t i = 0; i < depth; i++)
        test_ticket_open(&r, &tickets[i], 64, 8);
    for (int i = 0; i < length; i++) {
        random_call(&r, &tickets[rng_below(&random, depth)], &random);
        if (i % 16 == 0)
            fixture_check(&r); /* compares pins, too */
    }
    for (uint32_t i = 0; i < depth; i++) {
        if (i % 2 == 0)
            test_ticket_cancel(&tickets[i]);
        test_ticket_close(&tickets[i]);
    }
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_check(&r);
    fixture_close(&r);
}

static void random_calls_on_1_to_3_tickets_equal_the_model(hotbed_backend backend) {
    for (uint32_t depth = 1; depth <= 3; depth++)
        random_calls(backend, depth, 80);
}

static void random_calls_on_4_to_8_tickets_equal_the_model(hotbed_backend backend) {
    for (uint32_t depth = 4; depth <= MAX_DEPTH; depth += hotbed_test_is_small() ? 2 : 1)
        random_calls(backend, depth, 80);
}

/* With prefetches `depth` batches ahead, as in a pipeline, rows are the same as with one batch at a time. */
static void prefetching_ahead_does_not_change_the_rows(hotbed_backend backend) {
    for (uint32_t depth = 1; depth <= 4; depth++) {
        setup s;
        fixture r;
        test_ticket tickets[4];
        three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_ADAM);
        fixture_open(&r, backend, &s.options);
        for (uint32_t i = 0; i < depth; i++)
            test_ticket_open(&r, &tickets[i], 64, 8);
        rng batches = rng_start(100), gradients = rng_start(101); /* equal at every depth */
        const batch_shape how = {.batch_size = 8, .max_bag = 2, .key_space = 30, .weights = true};
        for (uint32_t step = 0; step < 24 + depth; step++) {
            test_ticket *l = &tickets[step % depth];
            if (step >= depth) {
                test_ticket_forward(l);
                test_ticket_backward(l, &gradients);
            }
            if (step < 24) {
                test_ticket_fill(l, &batches, &how);
                test_ticket_prefetch(l);
            }
        }
        fixture_check(&r);
        fixture_close(&r);
    }
}

static void pins_are_counted_per_ticket(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket a, b;
    rng random = rng_start(3);
    three_tables(&s, HOTBED_POOL_NONE, HOTBED_OPT_SGD);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &a, 64, 8);
    test_ticket_open(&r, &b, 64, 8);
    const batch_shape how = {.batch_size = 8, .one_key = true};
    test_ticket_fill(&a, &random, &how);
    memcpy((void *)b.host.keys, a.host.keys, a.num_keys * sizeof(uint64_t));
    test_ticket_prefetch(&a);
    /* One row of each table is pinned, however often it occurs; static tables only if their rows may move. */
    const uint64_t rows = fixture_moves(&r) ? 3 : 2;
    CHECK_EQ(fixture_pinned(&r), rows);
    const batch_shape other = {.batch_size = 8};
    test_ticket_fill(&b, &random, &other);
    memcpy((void *)b.host.keys, a.host.keys, a.num_keys * sizeof(uint64_t));
    test_ticket_upload(&b);
    test_ticket_prefetch(&b);
    CHECK_EQ(fixture_pinned(&r), rows);
    test_ticket_backward(&a, &random);
    CHECK_EQ(fixture_pinned(&r), rows); /* b still pins them */
    test_ticket_cancel(&b);
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_check(&r);
    fixture_close(&r);
}

/* Forwards without backward: neither pins nor memory grow, and the host never waits. */
static void ten_thousand_forwards_leak_nothing(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(4);
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_SGD);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 24, 4);
    const batch_shape how = {.batch_size = 4, .key_space = 60};
    test_ticket_fill(&l, &random, &how);
    test_ticket_prefetch(&l);
    test_ticket_forward(&l);
    const hotbed_batch batch = test_ticket_batch(&l);
    const int forwards = hotbed_test_is_small() ? 100 : 10000;
    for (int i = 0; i < forwards; i++) {
        hotbed_counters_read(&before);
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
        CHECK_OK(hotbed_storage_forward(r.storage, l.ticket, l.output, l.stride, r.stream));
        if (i % 3 == 0)
            CHECK_OK(hotbed_ticket_cancel(l.ticket, r.stream));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        if (i % 64 == 63) /* a full queue of the stream would make calls wait */
            CHECK_OK(hotbed_stream_sync(r.stream));
    }
    CHECK_EQ(fixture_pinned(&r), 0); /* the last batch was cancelled */
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
    CHECK(fixture_pinned(&r) >= 2);
    test_ticket_close(&l);
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_close(&r);
}

static void a_256th_ticket_is_refused(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    hotbed_ticket *tickets[255];
    rng random = rng_start(5);
    three_tables(&s, HOTBED_POOL_NONE, HOTBED_OPT_SGD);
    fixture_open(&r, backend, &s.options);
    for (int i = 0; i < 255; i++)
        CHECK_OK(hotbed_ticket_create(r.storage, 12, 4, r.stream, &tickets[i]));
    hotbed_ticket *none = tickets[0];
    CHECK_STATUS(hotbed_ticket_create(r.storage, 12, 4, r.stream, &none), HOTBED_ERR_STATE);
    CHECK(none == NULL);
    hotbed_ticket_destroy(tickets[100]);
    test_ticket_open(&r, &l, 12, 4); /* uses the number of the destroyed ticket */
    const batch_shape how = {.batch_size = 4};
    test_ticket_step(&l, &random, &how);
    test_ticket_close(&l);
    CHECK_OK(hotbed_ticket_create(r.storage, 12, 4, r.stream, &tickets[100]));
    for (int i = 0; i < 255; i++)
        hotbed_ticket_destroy(tickets[i]);
    fixture_check(&r);
    fixture_close(&r);
}

/* All 255 tickets pin the same key; its pin count must hold that number. */
static void a_row_can_be_pinned_by_all_tickets(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_ticket *tickets[255];
    setup_start(&s, 1, 2, 4);
    fixture_open_bare(&r, backend, &s.options);
    const uint64_t key = 77;
    hotbed_batch batch = {.size = sizeof batch, .batch_size = 1, .num_keys = 1};
    batch.keys = fixture_copy(&r, &key, sizeof key);
    for (int i = 0; i < 255; i++) {
        CHECK_OK(hotbed_ticket_create(r.storage, 1, 1, r.stream, &tickets[i]));
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, tickets[i], r.stream));
    }
    CHECK_OK(hotbed_stream_sync(r.stream));
    CHECK_EQ(fixture_pinned(&r), 1);
    for (int i = 0; i < 255; i++) {
        if (!hotbed_test_is_small() || i % 16 == 14) /* the last one among them */
            CHECK_EQ(fixture_pinned(&r), 1);
        hotbed_ticket_destroy(tickets[i]);
    }
    CHECK_EQ(fixture_pinned(&r), 0);
    CHECK_EQ(fixture_size(&r, 0), 1);
    fixture_close(&r);
}

/* A step of a batch that is prefetched, or retaken if `again`.  The output serves as gradient, and is copied to
 * `output`. */
static void step_of(fixture *r, test_ticket *l, bool again, void *output, uint64_t bytes) {
    const hotbed_batch batch = test_ticket_batch(l);
    if (again)
        CHECK_OK(hotbed_ticket_retake(l->ticket, r->stream));
    else
        CHECK_OK(hotbed_storage_prefetch(r->storage, &batch, l->ticket, r->stream));
    CHECK_OK(hotbed_storage_forward(r->storage, l->ticket, l->output, 0, r->stream));
    CHECK_OK(hotbed_storage_backward(r->storage, l->ticket, l->output, 0, r->stream));
    fixture_download(r, output, l->output, bytes);
}

/* A batch that is kept and retaken, with others in between, gives the bytes of a batch that is prefetched again. */
static void a_kept_batch_can_be_retaken(hotbed_backend backend) {
    enum { STEPS = 12, BYTES = 8 * 17 * sizeof(float) };
    static unsigned char outputs[2][STEPS][2][BYTES];
    for (int kept = 0; kept < 2; kept++) {
        setup s;
        fixture r;
        test_ticket l, other;
        rng random = rng_start(7);
        three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_ADAGRAD);
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 64, 8);
        test_ticket_open(&r, &other, 64, 8);
        const batch_shape how = {.batch_size = 8, .max_bag = 2, .key_space = 16};
        CHECK(8 * hotbed_storage_columns(r.storage) * sizeof(float) <= BYTES);
        const uint64_t bytes = 8 * hotbed_storage_columns(r.storage) * sizeof(uint16_t);
        test_ticket_fill(&l, &random, &how);
        CHECK_STATUS(hotbed_ticket_keep(l.ticket, r.stream), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_ticket_retake(l.ticket, r.stream), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_ticket_keep(NULL, r.stream), HOTBED_ERR_ARGUMENT);
        if (kept != 0) {
            const hotbed_batch batch = test_ticket_batch(&l);
            CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
            if (r.store != NULL) {
                CHECK_STATUS(hotbed_ticket_keep(l.ticket, r.stream), HOTBED_ERR_UNSUPPORTED);
                fixture_close(&r);
                return;
            }
            CHECK_OK(hotbed_ticket_keep(l.ticket, r.stream));
            CHECK_OK(hotbed_ticket_keep(l.ticket, r.stream)); /* a second keep has no effect */
            CHECK_OK(hotbed_ticket_cancel(l.ticket, r.stream));
            CHECK(fixture_pinned(&r) > 0);
            CHECK_STATUS(hotbed_storage_clear(r.storage, 0, r.stream), HOTBED_ERR_STATE);
        }
        for (int step = 0; step < STEPS; step++) {
            const batch_shape others = {.batch_size = 8, .max_bag = 2, .key_space = 40};
            step_of(&r, &l, kept != 0, outputs[kept][step][0], bytes);
            test_ticket_fill(&other, &random, &others);
            step_of(&r, &other, false, outputs[kept][step][1], bytes);
        }
        CHECK_OK(hotbed_ticket_forget(l.ticket, r.stream));
        CHECK_OK(hotbed_ticket_forget(l.ticket, r.stream));
        CHECK_EQ(fixture_pinned(&r), 0);
        CHECK_STATUS(hotbed_ticket_retake(l.ticket, r.stream), HOTBED_ERR_STATE);
        fixture_close(&r);
    }
    CHECK_BYTES(outputs[1], outputs[0], sizeof outputs[0]);
}

/* Prefetch on one stream, forward and backward on another, ordered by events as documented. */
static void prefetch_may_run_on_a_stream_of_its_own(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket tickets[3];
    hotbed_event *prefetched, *trained;
    rng random = rng_start(6);
    three_tables(&s, HOTBED_POOL_MEAN, HOTBED_OPT_ADAGRAD);
    fixture_open(&r, backend, &s.options);
    hotbed_stream *ahead = hotbed_test_stream(backend);
    CHECK_OK(hotbed_event_create(ahead, &prefetched));
    CHECK_OK(hotbed_event_create(r.stream, &trained));
    hotbed_stream *training = r.stream;
    for (int i = 0; i < 3; i++)
        test_ticket_open(&r, &tickets[i], 64, 8);
    const batch_shape how = {.batch_size = 8, .max_bag = 2, .key_space = 30};
    for (int step = 0; step < 30; step++) {
        test_ticket *l = &tickets[step % 3];
        r.stream = ahead;
        CHECK_OK(hotbed_stream_wait(ahead, trained));
        test_ticket_fill(l, &random, &how);
        test_ticket_prefetch(l);
        CHECK_OK(hotbed_event_record(prefetched, ahead));
        r.stream = training;
        CHECK_OK(hotbed_stream_wait(training, prefetched));
        if (step < 2)
            continue;
        l = &tickets[(step - 2) % 3];
        test_ticket_forward(l);
        test_ticket_backward(l, &random);
        CHECK_OK(hotbed_event_record(trained, training));
    }
    for (int i = 0; i < 3; i++)
        test_ticket_close(&tickets[i]);
    fixture_check(&r);
    CHECK_OK(hotbed_stream_sync(ahead));
    hotbed_event_destroy(prefetched);
    hotbed_event_destroy(trained);
    fixture_close(&r);
    hotbed_stream_destroy(ahead);
}

const hotbed_test hotbed_tests[] = {
    {TEST(random_calls_on_1_to_3_tickets_equal_the_model)},
    {TEST(random_calls_on_4_to_8_tickets_equal_the_model)},
    {TEST(prefetching_ahead_does_not_change_the_rows)},
    {TEST(pins_are_counted_per_ticket)},
    {TEST(ten_thousand_forwards_leak_nothing)},
    {TEST(a_256th_ticket_is_refused)},
    {TEST(a_row_can_be_pinned_by_all_tickets)},
    {TEST(a_kept_batch_can_be_retaken)},
    {TEST(prefetch_may_run_on_a_stream_of_its_own)},
    {NULL, NULL},
};
