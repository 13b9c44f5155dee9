/* tests/storage/test_storage_expire.c - hotbed_storage_expire() removes the keys that a model says, and no others. */
#include "hotbed/changes.h"
#include "hotbed/export.h"
#include "tests/storage/fixture.h"

#include <math.h>

enum { CAPACITY = 600, BATCH = 40, SPACE = 300 };

static hotbed_expiry expiry_of(uint64_t unseen, uint64_t min_score, float min_norm) {
    hotbed_expiry e = {
        .size = sizeof e, .unseen = unseen, .min_score = min_score, .min_norm = min_norm};
    return e;
}

static double norm_of(const oracle_row *row, uint32_t dim) {
    double sum = 0.0;
    for (uint32_t e = 0; e < dim; e++)
        sum += (double)row->weights[e] * (double)row->weights[e];
    return sqrt(sum);
}

/* Remove the model's keys; those of a table with a clock that were last in prefetch number `last` or earlier. */
static uint64_t model_expire(fixture *r, const hotbed_expiry *e, uint64_t last) {
    oracle_table *t = &r->model->tables[e->table];
    const bool timed = t->options.score == HOTBED_SCORE_TIMESTAMP ||
                       t->options.score == HOTBED_SCORE_TIMESTAMP_LFU;
    uint64_t gone = 0;
    for (uint32_t i = 0; i < t->num_rows; i++) {
        const oracle_row *row = &t->rows[i];
        if (!row->live || row->pins != 0)
            continue;
        const double norm = norm_of(row, t->options.dim), least = (double)e->min_norm;
        CHECK(fabs(norm - least) > 1e-5 * least || least == 0.0); /* rounding must not decide */
        if (row->score < e->min_score || norm < least ||
            (e->unseen != 0 && (timed ? row->time : row->score) <= last))
            gone += oracle_erase(r->model, e->table, row->key);
    }
    t->stats.expired += gone;
    return gone;
}

static void expire(fixture *r, const hotbed_expiry *e, uint64_t last) {
    CHECK_OK(hotbed_storage_expire(r->storage, e, r->stream));
    (void)model_expire(r, e, last);
    fixture_check(r);
}

static void open(
    fixture *r, setup *s, test_ticket *l, hotbed_backend backend, hotbed_score_strategy score) {
    setup_start(s, 2, 6, CAPACITY);
    s->tables[1].dim = 33;
    s->tables[1].dtype = score == HOTBED_SCORE_LFU ? HOTBED_INT8 : HOTBED_BF16;
    for (int t = 0; t < 2; t++)
        s->tables[t].score = score;
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open(r, backend, &s->options);
    test_ticket_open(r, l, (uint64_t)2 * BATCH, BATCH);
}

static const batch_shape shape = {.batch_size = BATCH, .key_space = SPACE};

/* Keys that were not in the last n prefetches leave, with pinned keys after their backward. */
static void keys_unseen_for_some_steps_leave(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(1);
    open(&r, &s, &l, backend, HOTBED_SCORE_STEP);
    for (uint64_t step = 1; step <= 12; step++) {
        test_ticket_step(&l, &random, &shape);
        hotbed_expiry e = expiry_of(1 + step % 4, 0, 0.0F);
        e.table = step % 2;
        expire(&r, &e, step >= e.unseen ? step - e.unseen : 0);
    }
    test_ticket_fill(&l, &random, &shape);
    test_ticket_prefetch(&l); /* pinned: stays, although its score is low */
    hotbed_expiry all = expiry_of(0, UINT64_MAX, 0.0F);
    expire(&r, &all, 0);
    CHECK(fixture_size(&r, 0) > 0);
    test_ticket_cancel(&l);
    expire(&r, &all, 0);
    CHECK_EQ(fixture_size(&r, 0), 0);
    test_ticket_step(&l, &random, &shape); /* keys come back as new ones */
    fixture_check(&r);
    fixture_close(&r);
}

static void unseen_for_some_time(hotbed_backend backend, hotbed_score_strategy score) {
    enum { STEPS = 8 };
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(2);
    uint64_t now[STEPS + 1] = {0};
    open(&r, &s, &l, backend, score);
    for (uint64_t step = 1; step <= STEPS; step++) {
        test_ticket_step(&l, &random, &shape);
        CHECK_OK(hotbed_storage_now(r.storage, 1, &now[step], r.stream));
    }
    for (uint64_t last = 2; last < STEPS; last += 2) {
        hotbed_expiry e = expiry_of(now[STEPS] - now[last], 0, 0.0F);
        e.table = 1;
        expire(&r, &e, last);
    }
    CHECK(r.model->tables[1].stats.expired > 0 && fixture_size(&r, 1) > 0);
    fixture_close(&r);
}

static void keys_unseen_for_some_time_leave(hotbed_backend backend) {
    unseen_for_some_time(backend, HOTBED_SCORE_TIMESTAMP);
    unseen_for_some_time(backend, HOTBED_SCORE_TIMESTAMP_LFU);
}

/* A key leaves if one of the conditions applies. */
static void keys_of_low_scores_or_short_rows_leave(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(3);
    open(&r, &s, &l, backend, HOTBED_SCORE_LFU);
    for (int step = 0; step < 10; step++) {
        test_ticket_step(&l, &random, &shape);
        hotbed_expiry e = expiry_of(0, step % 3 == 0 ? 2 : 0, step % 3 == 0 ? 0.0F : 0.5F);
        if (step % 3 == 2)
            e.min_score = 2, e.table = 1, e.min_norm = 1.637F;
        expire(&r, &e, 0);
    }
    CHECK(r.model->tables[0].stats.expired > 0 && r.model->tables[1].stats.expired > 0);
    fixture_close(&r);
}

/* A call looks at no more slots than it was told, and a round of calls at all of them; in a graph, too. */
static void calls_are_bounded_and_go_on(hotbed_backend backend) {
    enum { WINDOW = 70 };
    setup s;
    fixture r;
    test_ticket l;
    hotbed_graph *graph;
    uint64_t slots;
    rng random = rng_start(4);
    open(&r, &s, &l, backend, HOTBED_SCORE_STEP);
    hotbed_expiry e = expiry_of(0, UINT64_MAX, 0.0F);
    e.slots = WINDOW;
    CHECK_OK(hotbed_storage_export_end(r.storage, 0, &slots, r.stream));
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_expire(r.storage, &e, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int round = 0; round < 3; round++) {
        for (int step = 0; step < 6; step++)
            test_ticket_step(&l, &random, &shape);
        uint64_t before = fixture_size(&r, 0);
        const uint64_t all = before;
        for (uint64_t seen = 0; seen < slots; seen += WINDOW) {
            if (round == 1)
                CHECK_OK(hotbed_graph_launch(graph, r.stream));
            else
                CHECK_OK(hotbed_storage_expire(r.storage, &e, r.stream));
            const uint64_t after = fixture_size(&r, 0);
            CHECK(before - after <= WINDOW);
            CHECK(after > 0 || seen + WINDOW >= all);
            before = after;
        }
        CHECK_EQ(before, 0);
        CHECK_EQ(model_expire(&r, &e, 0), all);
        fixture_check(&r);
    }
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

/* Rows of segments expire, too. */
static void keys_of_a_table_that_has_grown_leave(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(5);
    setup_start(&s, 1, 6, 100);
    s.tables[0].max_capacity = 4000;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, BATCH, BATCH);
    const batch_shape any = {.batch_size = BATCH};
    for (uint64_t step = 1; step <= 20; step++) {
        if (step % 2 == 0)
            CHECK_OK(hotbed_storage_grow(r.storage, 0, 100 * step, r.stream));
        test_ticket_step(&l, &random, &any);
        hotbed_expiry e = expiry_of(6, 0, 0.0F);
        if (step % 5 == 0)
            expire(&r, &e, step > 6 ? step - 6 : 0);
    }
    CHECK(r.model->tables[0].stats.expired > 0);
    fixture_close(&r);
}

/* Expired keys are in the record of changes, as erased keys are. */
static void expired_keys_are_logged(hotbed_backend backend) {
    enum { KEYS = 50 };
    setup s;
    fixture r;
    uint64_t keys[KEYS], removed[KEYS], count, lost;
    hotbed_change_position before, after;
    const hotbed_rows nothing = {0};
    setup_start(&s, 1, 4, CAPACITY);
    s.tables[0].track_changes = true;
    fixture_open_bare(&r, backend, &s.options);
    for (uint64_t i = 0; i < KEYS; i++)
        keys[i] = (i + 1) << 40;
    void *device = fixture_copy(&r, keys, sizeof keys);
    hotbed_change_position *at = fixture_alloc(&r, 2 * sizeof *at);
    uint64_t *out = fixture_alloc(&r, sizeof keys + 16);
    CHECK_OK(hotbed_storage_set_rows(r.storage, 0, KEYS, device, &nothing, r.stream));
    CHECK_OK(hotbed_storage_position(r.storage, &at[0], r.stream));
    const hotbed_expiry e = expiry_of(0, UINT64_MAX, 0.0F);
    const hotbed_counters idle = hotbed_test_counters();
    CHECK_OK(hotbed_storage_expire(r.storage, &e, r.stream));
    CHECK_EQ(hotbed_test_counters().host_waits - idle.host_waits, 0);
    CHECK_OK(hotbed_storage_position(r.storage, &at[1], r.stream));
    hotbed_removed batch = {.size = sizeof batch};
    batch.since = &at[0], batch.until = &at[1], batch.capacity = KEYS;
    batch.keys = out, batch.count = out + KEYS, batch.lost = out + KEYS + 1;
    CHECK_OK(hotbed_storage_removed(r.storage, &batch, r.stream));
    fixture_download(&r, removed, out, sizeof removed);
    fixture_download(&r, &count, out + KEYS, sizeof count);
    fixture_download(&r, &lost, out + KEYS + 1, sizeof lost);
    fixture_download(&r, &before, &at[0], sizeof before);
    fixture_download(&r, &after, &at[1], sizeof after);
    CHECK_EQ(count, KEYS);
    CHECK_EQ(lost, 0);
    CHECK_EQ(after.removed - before.removed, KEYS);
    bool seen[KEYS] = {false};
    for (int i = 0; i < KEYS; i++) {
        const uint64_t number = removed[i] >> 40;
        CHECK(number >= 1 && number <= KEYS && removed[i] == number << 40 && !seen[number - 1]);
        seen[number - 1] = true;
    }
    fixture_close(&r);
}

static void refused(fixture *r, hotbed_expiry e, hotbed_status status, const char *text) {
    CHECK_STATUS(hotbed_storage_expire(r->storage, &e, r->stream), status);
    CHECK(strstr(hotbed_last_error(), text) != NULL);
}

static void bad_arguments_are_named(hotbed_backend backend) {
    setup s;
    fixture r;
    setup_start(&s, 3, 4, 100);
    s.tables[1].score = HOTBED_SCORE_LFU;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    fixture_open_bare(&r, backend, &s.options);
    hotbed_expiry e = expiry_of(1, 0, 0.0F);
    CHECK_STATUS(hotbed_storage_expire(r.storage, NULL, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_expire(NULL, &e, r.stream), HOTBED_ERR_ARGUMENT);
    e.table = 3;
    refused(&r, e, HOTBED_ERR_ARGUMENT, "table 3 is not below 3");
    e.table = 2;
    refused(&r, e, HOTBED_ERR_ARGUMENT, "table table-2 is static");
    e.table = 1;
    refused(&r, e, HOTBED_ERR_ARGUMENT, "table table-1 has no clock for unseen 1: it is LFU");
    refused(&r, expiry_of(0, 0, 0.0F), HOTBED_ERR_ARGUMENT, "nothing can expire");
    refused(&r, expiry_of(0, 0, -1.0F), HOTBED_ERR_ARGUMENT, "min_norm -1 is not at least 0");
    refused(&r, expiry_of(1, 0, NAN), HOTBED_ERR_ARGUMENT, "min_norm");
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(keys_unseen_for_some_steps_leave)},
    {TEST(keys_unseen_for_some_time_leave)},
    {TEST(keys_of_low_scores_or_short_rows_leave)},
    {TEST(calls_are_bounded_and_go_on)},
    {TEST(keys_of_a_table_that_has_grown_leave)},
    {TEST(expired_keys_are_logged)},
    {TEST(bad_arguments_are_named)},
    {NULL, NULL},
};
