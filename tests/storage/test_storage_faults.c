/* tests/storage/test_storage_faults.c - calls on a storage when memory runs out.
 *
 * tests/support/fault.h lets the n-th allocation of a call fail, n = 1, 2, ..., until the call succeeds.  Each
 * failure must be the documented error and leave nothing behind.
 */
#include "tests/storage/fixture.h"
#include "tests/support/fault.h"

enum { MAX_N = 2000, BATCH = 16 };

static void two_tables(setup *s) {
    setup_start(s, 3, 4, 200);
    s->tables[1].dim = 9;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 30;
    s->options.pooling = HOTBED_POOL_SUM;
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
}

static void create_without_memory_is_an_error(hotbed_backend backend) {
    setup s;
    two_tables(&s);
    s.options.check = HOTBED_CHECK_WARN; /* allocates memory for warnings */
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s.tables[0].admission_threshold = 2;
    s.tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint64_t n = 1;; n++) {
        hotbed_storage *storage = (hotbed_storage *)stream;
        CHECK(n < MAX_N);
        fault_arm(n);
        hotbed_status status = hotbed_storage_create(&s.options, stream, &storage);
        if (!fault_disarm()) {
            CHECK_OK(status);
            CHECK(n > 3); /* index, rows and the struct have failed */
            hotbed_storage_destroy(storage);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(storage == NULL);
    }
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_stream_destroy(stream);
}

/* The message names the table and the bytes.  No machine has memory for 2^35 rows of 4096 floats. */
static void create_says_which_table_is_too_large(hotbed_backend backend) {
    setup s;
    hotbed_storage *storage = NULL;
    two_tables(&s);
    s.tables[1].capacity = UINT64_C(1) << 35;
    s.tables[1].dim = 4096;
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_MEMORY);
    CHECK(storage == NULL);
    CHECK(strstr(hotbed_last_error(), "table-1") != NULL);
    hotbed_stream_destroy(stream);
}

typedef struct subject {
    fixture r;
    test_ticket l;
    rng random;
} subject;

static const batch_shape usual = {
    .batch_size = BATCH, .max_bag = 3, .key_space = 40, .weights = true};

static void subject_open(subject *v, hotbed_backend backend) {
    setup s;
    two_tables(&s);
    v->random = rng_start(1);
    fixture_open(&v->r, backend, &s.options);
    test_ticket_open(&v->r, &v->l, 200, BATCH);
    test_ticket_step(&v->l, &v->random, &usual);
}

static void subject_close(subject *v) {
    test_ticket_step(&v->l, &v->random, &usual);
    fixture_check(&v->r);
    fixture_close(&v->r);
}

static void ticket_create_without_memory_is_an_error(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend);
    for (uint64_t n = 1;; n++) {
        hotbed_ticket *ticket = v.l.ticket;
        CHECK(n < MAX_N);
        fault_arm(n);
        hotbed_status status = hotbed_ticket_create(v.r.storage, 500, 32, v.r.stream, &ticket);
        if (!fault_disarm()) {
            CHECK_OK(status);
            CHECK(n > 1);
            hotbed_ticket_destroy(ticket);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(ticket == NULL);
        test_ticket_step(&v.l, &v.random, &usual);
    }
    subject_close(&v);
}

/* After many failures, the full number of tickets can be created. */
static void failed_tickets_do_not_count_against_the_limit(hotbed_backend backend) {
    subject v;
    hotbed_ticket *tickets[254];
    subject_open(&v, backend);
    for (int i = 0; i < 300; i++) {
        hotbed_ticket *ticket;
        /* fail the struct or, on the host only, the device memory */
        fault_arm(backend == HOTBED_BACKEND_HOST ? 1 + (uint64_t)i % 2 : 1);
        hotbed_status status = hotbed_ticket_create(v.r.storage, 8, 4, v.r.stream, &ticket);
        CHECK(fault_disarm());
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
    }
    for (int i = 0; i < 254; i++)
        CHECK_OK(hotbed_ticket_create(v.r.storage, 8, 4, v.r.stream, &tickets[i]));
    for (int i = 0; i < 254; i++)
        hotbed_ticket_destroy(tickets[i]);
    subject_close(&v);
}

/* The first eval on a stream allocates its workspace. */
static void eval_without_memory_is_an_error(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend);
    hotbed_stream *fresh = hotbed_test_stream(backend);
    const hotbed_batch batch = test_ticket_batch(&v.l);
    CHECK_OK(hotbed_stream_sync(v.r.stream));
    for (uint64_t n = 1;; n++) {
        CHECK(n < MAX_N);
        fault_arm(n);
        hotbed_status status =
            hotbed_storage_eval(v.r.storage, &batch, v.l.output, v.l.stride, fresh);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
    }
    CHECK_OK(hotbed_stream_sync(fresh));
    hotbed_stream_destroy(fresh);
    test_ticket_eval(&v.l);
    subject_close(&v);
}

static hotbed_status read_back(subject *v, int call) {
    uint64_t keys[300], scores[300], n, pinned;
    hotbed_storage_state state = {.size = sizeof state};
    hotbed_table_stats stats = {.size = sizeof stats};
    switch (call) {
    case 0:
        return hotbed_storage_export_keys(v->r.storage, 0, 300, keys, scores, &n, v->r.stream);
    case 1:
        return hotbed_storage_size(v->r.storage, 1, &n, &pinned, v->r.stream);
    case 2:
        return hotbed_storage_get_state(v->r.storage, &state, v->r.stream);
    default:
        return hotbed_storage_stats(v->r.storage, 0, &stats, v->r.stream);
    }
}

static void reading_back_without_memory_is_an_error(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend);
    for (int call = 0; call < 4; call++)
        for (uint64_t n = 1;; n++) {
            CHECK(n < MAX_N);
            fault_arm(n);
            hotbed_status status = read_back(&v, call);
            if (!fault_disarm()) {
                CHECK_OK(status);
                break;
            }
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            fixture_check(&v.r);
        }
    subject_close(&v);
}

/* Another stream, and the first key of its next batch. */
typedef struct inserter {
    fixture *r;
    hotbed_stream *stream;
    uint64_t next;
} inserter;

static void insert_keys(void *argument) {
    inserter *i = argument;
    uint64_t keys[64];
    hotbed_ticket *ticket;
    for (int k = 0; k < 64; k++)
        keys[k] = i->next++;
    const hotbed_batch batch = {
        .size = sizeof batch,
        .batch_size = 64,
        .num_keys = 64,
        .keys = fixture_copy(i->r, keys, sizeof keys)};
    CHECK_OK(hotbed_ticket_create(i->r->storage, 64, 64, i->stream, &ticket));
    CHECK_OK(hotbed_storage_prefetch(i->r->storage, &batch, ticket, i->stream));
    hotbed_ticket_destroy(ticket);
}

/* Insert keys before any allocation of an export: its memory is for the keys that it counted before. */
static void an_export_has_all_keys_that_were_there_before(hotbed_backend backend) {
    enum { MOST = 20000 };
    setup s;
    fixture r;
    static uint64_t keys[MOST], scores[MOST];
    hotbed_stream *other;
    setup_start(&s, 1, 4, MOST);
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    for (int way = 0; way < 2; way++) { /* the table's keys, the counter's */
        s.tables[0].admission_threshold = way == 0 ? 1 : 2;
        fixture_open_bare(&r, backend, &s.options);
        CHECK_OK(hotbed_stream_create(backend, 0, &other));
        inserter i = {&r, other, 0};
        insert_keys(&i);
        for (uint64_t n = 0;; n++) { /* 0: none; later calls have the stream's workspace */
            const uint64_t before = i.next;
            uint64_t found = 0, exported = 0;
            fault_arm_call(n, insert_keys, &i);
            hotbed_status status =
                (way == 0 ? hotbed_storage_export_keys : hotbed_storage_export_counts)(
                    r.storage, 0, MOST, keys, scores, &exported, r.stream);
            const bool reached = fault_disarm();
            CHECK_OK(status);
            CHECK(exported >= before && exported <= i.next);
            for (uint64_t k = 0; k < exported; k++) {
                CHECK(keys[k] < i.next && scores[k] <= n + 2);
                found += keys[k] < before ? 1 : 0;
            }
            CHECK_EQ(found, before);
            if (n > 0 && !reached)
                break;
            CHECK(n == 0 || i.next > before);
        }
        fixture_close(&r);
        hotbed_stream_destroy(other);
    }
}

static void clear_without_memory_is_an_error(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend);
    for (uint64_t n = 1;; n++) {
        CHECK(n < MAX_N);
        fault_arm(n);
        hotbed_status status = hotbed_storage_clear(v.r.storage, 2, v.r.stream);
        if (!fault_disarm()) {
            CHECK_OK(status);
            oracle_clear(v.r.model, 2);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        fixture_check(&v.r);
    }
    subject_close(&v);
}

/* Steps allocate nothing, on any thread. */
static void a_step_allocates_nothing(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend);
    const hotbed_batch batch = test_ticket_batch(&v.l);
    hotbed_status status[4];
    CHECK_OK(hotbed_stream_sync(v.r.stream));
    fault_arm(1);
    status[0] = hotbed_storage_prefetch(v.r.storage, &batch, v.l.ticket, v.r.stream);
    status[1] = hotbed_storage_forward(v.r.storage, v.l.ticket, v.l.output, v.l.stride, v.r.stream);
    status[2] = hotbed_ticket_cancel(v.l.ticket, v.r.stream);
    status[3] = hotbed_stream_sync(v.r.stream);
    CHECK(!fault_disarm());
    CHECK_EQ(fault_count(), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(status[i], HOTBED_OK);
    hotbed_batch host = v.l.host;
    oracle_prefetch(v.r.model, &host, v.l.model, NULL);
    oracle_cancel(v.l.model);
    subject_close(&v);
}

/* A full table at max_capacity may grow a little for offered keys.  Without memory for that, the key is refused. */
static void a_full_table_refuses_keys_without_memory_to_grow(hotbed_backend backend) {
    setup s;
    fixture r;
    rng random = rng_start(34);
    uint64_t keys[400];
    for (uint64_t i = 0; i < 400; i++)
        keys[i] = rng_next(&random);
    setup_start(&s, 1, 4, 100);
    s.tables[0].max_capacity = 200;
    s.options.mode = HOTBED_MODE_HBM_DIRECT;
    bool refused = false;
    for (uint64_t n = 1; n < MAX_N; n++) {
        fixture_open_bare(&r, backend, &s.options);
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 200, r.stream));
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
        const uint64_t slots = info.slots + info.segment_slots,
                       *device = fixture_copy(&r, keys, sizeof keys);
        CHECK(slots < 400);
        CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, slots, device, NULL, r.stream));
        fault_arm(n);
        const hotbed_status status =
            hotbed_storage_offer_rows(r.storage, 0, 1, device + slots, NULL, r.stream);
        const bool reached = fault_disarm();
        const hotbed_status fault = hotbed_stream_sync(r.stream);
        const uint64_t size = fixture_size(&r, 0);
        if (!reached)
            CHECK(status == HOTBED_OK && fault == HOTBED_OK && size == slots + 1);
        else if (status == HOTBED_OK)
            CHECK(fault == HOTBED_ERR_FULL && size == slots);
        else
            CHECK(
                status == HOTBED_ERR_MEMORY && size == slots &&
                strstr(hotbed_last_error(), "to grow") == NULL);
        refused = refused || fault == HOTBED_ERR_FULL;
        fixture_close(&r);
        if (!reached)
            break;
    }
    CHECK(refused);
}

const hotbed_test hotbed_tests[] = {
    {TEST(create_without_memory_is_an_error)},
    {TEST(create_says_which_table_is_too_large)},
    {TEST(ticket_create_without_memory_is_an_error)},
    {TEST(failed_tickets_do_not_count_against_the_limit)},
    {TEST(eval_without_memory_is_an_error)},
    {TEST(reading_back_without_memory_is_an_error)},
    {TEST(an_export_has_all_keys_that_were_there_before)},
    {TEST(clear_without_memory_is_an_error)},
    {TEST(a_step_allocates_nothing)},
    {TEST(a_full_table_refuses_keys_without_memory_to_grow)},
    {NULL, NULL},
};
