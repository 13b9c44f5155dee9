/* tests/dist/test_sharded_growth.c - collections whose tables grow from a small size equal
 * collections with large tables. */
#include "tests/dist/sharded_fixture.h"
#include "tests/support/fault.h"

#include <string.h>

static const sharded_case base = {
    .seed = 41,
    .optimizer = HOTBED_OPT_SGD,
    .capacity = FIXTURE_KEYS,
    .key_space = 400,
    .steps = 24,
    .grows = true,
    .one_rule = true,
};

/* A case; short runs take `small` steps, enough for tables to grow. */
static sharded_case start(int small) {
    sharded_case c = base;
    if (hotbed_test_is_small())
        c.steps = small;
    return c;
}

static void check_tables(const sharded_fixture *r) {
    char text[4096];
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_sharded_table table = {.size = sizeof table};
        CHECK_OK(hotbed_sharded_table_read(r->sharded, t, &table));
        CHECK_EQ(table.capacity, r->own_tables[t].capacity);
        CHECK_EQ(table.max_capacity, r->tables[t].capacity);
        /* Growth does not move keys to other ranks. */
        if (table.route.kind == HOTBED_ROUTE_CONTINUOUS)
            CHECK_EQ(table.route.rows, table.max_capacity);
    }
    CHECK_OK(hotbed_sharded_print(r->sharded, text, sizeof text, NULL));
    CHECK(strstr(text, ", growing to ") != NULL);
}

/* --- the same bytes as with large tables ---------------------------------------------------- */

static void grow_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    check_tables(&r);
    CHECK_EQ(sharded_fixture_growths(&r), 0);
    for (int step = 0; step < r.how->steps; step++)
        sharded_fixture_step(&r, step); /* no key is refused */
    CHECK(
        sharded_fixture_growths(&r) >= (r.how->counted ? 1 : 2)); /* admission rejects most keys */
    sharded_fixture_close(&r);
}

/* Run all plans; short runs only `small`. */
static void run_plans(const sharded_case *how, hotbed_plan small) {
    for (int plan = 0; plan < 3; plan++) {
        sharded_case c = *how;
        c.plan = (hotbed_plan)plan;
        c.seed = how->seed + hotbed_test_seed() * 100;
        if (hotbed_test_is_small() && c.plan != small)
            continue;
        if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(4, grow_body, &c);
    }
}

static void sequences_equal_those_of_large_tables(hotbed_backend backend) {
    sharded_case c = start(8);
    run_plans(&c, HOTBED_PLAN_FIXED);
    c.statics = true;
    c.optimizer = HOTBED_OPT_ADAM;
    c.own_keys = true;
    run_plans(&c, HOTBED_PLAN_TWO_PHASE);
    c = start(8);
    c.one_rule = false;
    c.key_space =
        FIXTURE_CAPACITY; /* so that every rank owns keys of tables that are routed in blocks */
    run_plans(&c, HOTBED_PLAN_ONE_SIDED);
}

static void sums_equal_those_of_large_tables(hotbed_backend backend) {
    sharded_case c = start(8);
    c.pooling = HOTBED_POOL_SUM;
    c.weighted = true;
    c.seed = 42;
    run_plans(&c, HOTBED_PLAN_FIXED);
}

/* Scores, times and admission counts have segments too. */
static void occurrences_equal_those_of_large_tables(hotbed_backend backend) {
    sharded_case c = start(14); /* admission rejects most keys */
    c.counted = true;
    c.seed = 43;
    run_plans(&c, HOTBED_PLAN_TWO_PHASE);
}

static void cached_tables_equal_large_ones(hotbed_backend backend) {
    sharded_case c = start(8);
    c.cached = true;
    c.seed = 44;
    run_plans(&c, HOTBED_PLAN_ONE_SIDED);
}

/* --- batches in flight ---------------------------------------------------------------------- */

/* A batch is prefetched, and tables grow, before the previous batch is trained on another stream. */
static void ahead_body(world_rank *me) {
    const int steps = ((const sharded_case *)me->argument)->steps;
    sharded_fixture r[2]; /* the second fixture's arrays serve every other batch */
    hotbed_stream *early;
    CHECK_OK(hotbed_stream_create(
        hotbed_stream_backend(me->stream), hotbed_stream_device(me->stream), &early));
    sharded_fixture_open(&r[0], me, me->argument);
    sharded_fixture_open(&r[1], me, me->argument);
    hotbed_sharded_context *second;
    CHECK_OK(hotbed_sharded_create_context(1, &r[0].sharded, me->stream, &second));
    hotbed_sharded_context *contexts[2] = {r[0].context, second};
    hotbed_storage *model = r[1].model;
    hotbed_ticket *ticket = r[1].ticket;
    r[1].model = r[0].model; /* batches are trained in order, so both use one model */
    r[1].ticket = r[0].ticket;
    for (int step = 0; step <= steps; step++) {
        hotbed_sharded_context *next = contexts[step % 2], *now = contexts[(step + 1) % 2];
        sharded_fixture *n = &r[step % 2], *w = &r[(step + 1) % 2];
        if (step < steps) {
            uint32_t grown = sharded_fixture_growths(&r[0]);
            sharded_fixture_fill(n, step);
            CHECK_OK(hotbed_sharded_input_dist(next, &n->kjt, early));
            CHECK_OK(hotbed_sharded_wait_splits(next, early));
            CHECK_OK(hotbed_sharded_wait_input(next, early));
            hotbed_counters before = hotbed_test_counters();
            CHECK_OK(hotbed_sharded_prefetch(next, 0, early));
            hotbed_counters after = hotbed_test_counters();
            /* Counters include all threads; the first prefetch on a stream may create its branch. */
            if (me->size == 1 && step > 0) {
                CHECK_EQ(after.host_waits - before.host_waits, 0);
                if (sharded_fixture_growths(&r[0]) == grown)
                    CHECK_EQ(after.allocations - before.allocations, 0);
                else
                    CHECK(after.allocations > before.allocations);
            }
        }
        if (step > 0) {
            CHECK_OK(hotbed_sharded_compute(now, 0, me->stream));
            CHECK_OK(hotbed_sharded_output_dist(now, 0, me->stream));
            CHECK_OK(hotbed_sharded_wait_output(now, 0, w->output.device.data, 0, me->stream));
            sharded_fixture_model_forward(w);
            sharded_fixture_check_output(w);
            sharded_fixture_model_backward(w);
            CHECK_OK(hotbed_sharded_backward(now, 0, w->gradient.device.data, 0, me->stream));
        }
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    CHECK_OK(hotbed_stream_sync(early));
    CHECK(sharded_fixture_growths(&r[0]) >= 2);
    r[1].model = model;
    r[1].ticket = ticket;
    hotbed_sharded_context_destroy(second);
    sharded_fixture_close(&r[0]);
    sharded_fixture_free(&r[1]);
    hotbed_stream_destroy(early);
}

static void batches_in_flight_keep_their_rows(hotbed_backend backend) {
    for (int i = 0; i < 4; i += hotbed_test_is_small() ? 3 : 1) {
        sharded_case c = start(8);
        c.plan = i < 2 ? HOTBED_PLAN_FIXED : HOTBED_PLAN_TWO_PHASE;
        c.cached = i % 2 == 1;
        c.seed = 45;
        sharded_fixture_run(4, ahead_body, &c);
    }
}

/* An eval on another stream looks up keys while tables grow: TSan checks that the collection orders them. */
static void eval_body(world_rank *me) {
    sharded_fixture r, e;
    hotbed_stream *aside;
    hotbed_sharded_context *eval;
    CHECK_OK(hotbed_stream_create(
        hotbed_stream_backend(me->stream), hotbed_stream_device(me->stream), &aside));
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_open(&e, me, me->argument); /* its arrays serve the evals */
    CHECK_OK(hotbed_sharded_create_context(1, &r.sharded, aside, &eval));
    for (int step = 0; step < r.how->steps; step++) {
        sharded_fixture_fill(&r, step);
        sharded_fixture_fill(&e, step + 1000);
        CHECK_OK(hotbed_sharded_set_training(r.sharded, false));
        CHECK_OK(hotbed_sharded_input_dist(eval, &e.kjt, aside));
        CHECK_OK(hotbed_sharded_set_training(r.sharded, true));
        CHECK_OK(hotbed_sharded_wait_splits(eval, aside));
        CHECK_OK(hotbed_sharded_wait_input(eval, aside));
        CHECK_OK(hotbed_sharded_input_dist(r.context, &r.kjt, me->stream));
        CHECK_OK(hotbed_sharded_wait_splits(r.context, me->stream));
        CHECK_OK(hotbed_sharded_wait_input(r.context, me->stream));
        CHECK_OK(hotbed_sharded_compute(eval, 0, aside));
        CHECK_OK(hotbed_sharded_output_dist(eval, 0, aside));
        CHECK_OK(hotbed_sharded_prefetch(r.context, 0, me->stream));
        CHECK_OK(hotbed_sharded_wait_output(eval, 0, e.output.device.data, 0, aside));
        CHECK_OK(hotbed_stream_sync(aside));
        CHECK_OK(hotbed_sharded_cancel(r.context, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    CHECK(sharded_fixture_growths(&r) >= 2);
    hotbed_sharded_context_destroy(eval);
    sharded_fixture_free(&r);
    sharded_fixture_free(&e);
    hotbed_stream_destroy(aside);
}

static void evals_run_during_growth(hotbed_backend backend) {
    sharded_case c = start(8);
    c.seed = 46;
    sharded_fixture_run(4, eval_body, &c);
}

/* --- graphs ----------------------------------------------------------------------------------- */

static void graph_body(world_rank *me) {
    if (!world_records(me))
        return;
    sharded_fixture r;
    hotbed_graph *graph;
    hotbed_stream *s = me->stream;
    uint32_t grown = 9, sum = 0;
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_step(&r, 0); /* so that workspaces are large enough */
    CHECK_OK(hotbed_graph_begin(s));
    CHECK_OK(hotbed_sharded_input_dist(r.context, &r.kjt, s));
    CHECK_OK(hotbed_sharded_wait_splits(r.context, s));
    CHECK_OK(hotbed_sharded_wait_input(r.context, s));
    CHECK_STATUS(hotbed_sharded_poll_growth(r.sharded, s, &grown), HOTBED_ERR_STATE);
    CHECK_EQ(grown, 0);
    CHECK_OK(hotbed_sharded_compute(r.context, 0, s));
    CHECK_OK(hotbed_sharded_output_dist(r.context, 0, s));
    CHECK_OK(hotbed_sharded_wait_output(r.context, 0, r.output.device.data, 0, s));
    CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, s));
    CHECK_OK(hotbed_graph_end(s, &graph));
    for (int step = 1; step < r.how->steps; step++) {
        uint64_t calls, calls_after;
        sharded_fixture_fill(&r, step);
        sharded_fixture_model_forward(&r);
        sharded_fixture_model_backward(&r);
        CHECK_OK(hotbed_graph_launch(graph, s));
        CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, NULL));
        CHECK_OK(hotbed_sharded_poll_growth(r.sharded, s, &grown));
        CHECK_OK(hotbed_comm_log_digest(me->comm, &calls_after, NULL));
        CHECK_EQ(calls_after, calls); /* growth makes no collective calls */
        CHECK_OK(hotbed_stream_sync(s));
        sharded_fixture_check_output(&r);
        sum += grown;
    }
    CHECK(sum >= 2);
    CHECK_EQ(sharded_fixture_growths(&r), sum);
    hotbed_graph_destroy(graph);
    sharded_fixture_close(&r);
}

static void launches_use_rows_that_polls_added(hotbed_backend backend) {
    sharded_case c = start(8);
    c.steady = true;
    c.seed = 47;
    sharded_fixture_run(
        hotbed_test_is_small() ? 1 : 4, graph_body, &c); /* threads on a GPU cannot be recorded */
}

/* --- failures and refusals ------------------------------------------------------------------ */

static void no_memory_body(world_rank *me) {
    sharded_fixture r;
    int failures = 0;
    sharded_fixture_open(&r, me, me->argument);
    for (int step = 0; step < r.how->steps; step++) {
        uint32_t grown = sharded_fixture_growths(&r);
        sharded_fixture_fill(&r, step);
        CHECK_OK(hotbed_sharded_input_dist(r.context, &r.kjt, me->stream));
        CHECK_OK(hotbed_sharded_wait_splits(r.context, me->stream));
        CHECK_OK(hotbed_sharded_wait_input(r.context, me->stream));
        /* The first prefetch on a stream may create its branch, and goes on without it. */
        fault_arm(failures == 0 && step > 0 ? 1 : UINT64_MAX);
        hotbed_status status = hotbed_sharded_prefetch(r.context, 0, me->stream);
        if (fault_disarm()) { /* the first growth after it */
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            CHECK_EQ(sharded_fixture_growths(&r), grown);
            status = hotbed_sharded_prefetch(r.context, 0, me->stream);
            CHECK_EQ(sharded_fixture_growths(&r), grown);
            failures++;
        }
        CHECK_OK(status);
        CHECK_OK(hotbed_sharded_compute(r.context, 0, me->stream));
        CHECK_OK(hotbed_sharded_output_dist(r.context, 0, me->stream));
        CHECK_OK(hotbed_sharded_wait_output(r.context, 0, r.output.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        sharded_fixture_model_forward(&r);
        sharded_fixture_check_output(&r);
        sharded_fixture_model_backward(&r);
        CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    CHECK_EQ(failures, 1);
    CHECK(sharded_fixture_growths(&r) >= 2);
    sharded_fixture_close(&r);
}

static void a_prefetch_without_memory_can_be_repeated(hotbed_backend backend) {
    sharded_case c = start(8);
    c.seed = 48;
    sharded_fixture_run(1, no_memory_body, &c);
}

static void refusals_body(world_rank *me) {
    sharded_fixture r;
    hotbed_sharded *sharded;
    uint32_t grown = 9;
    sharded_fixture_open(&r, me, me->argument);
    CHECK_STATUS(hotbed_sharded_poll_growth(NULL, me->stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sharded_poll_growth(r.sharded, NULL, NULL), HOTBED_ERR_ARGUMENT);
    /* Tables without max_capacity do not grow. */
    CHECK_OK(hotbed_sharded_poll_growth(r.sharded, me->stream, &grown));
    CHECK_EQ(grown, 0);
    r.tables[0].max_capacity = r.tables[0].capacity - 1;
    CHECK_STATUS(
        hotbed_sharded_create(&r.options, me->comm, me->stream, &sharded), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "table user: max_capacity") != NULL);
    for (uint64_t n = 1;; n++) {
        r.tables[0].max_capacity = 2 * r.tables[0].capacity;
        fault_arm(n);
        hotbed_status status = hotbed_sharded_create(&r.options, me->comm, me->stream, &sharded);
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_sharded_destroy(sharded);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(sharded == NULL);
    }
    sharded_fixture_free(&r);
}

static void growth_with_invalid_arguments_is_refused(hotbed_backend backend) {
    sharded_case c = start(8);
    c.grows = false;
    sharded_fixture_run(1, refusals_body, &c);
}

const hotbed_test hotbed_tests[] = {
    {TEST(sequences_equal_those_of_large_tables)},
    {TEST(sums_equal_those_of_large_tables)},
    {TEST(occurrences_equal_those_of_large_tables)},
    {TEST(cached_tables_equal_large_ones)},
    {TEST(batches_in_flight_keep_their_rows)},
    {TEST(evals_run_during_growth)},
    {TEST(launches_use_rows_that_polls_added)},
    {TEST(a_prefetch_without_memory_can_be_repeated)},
    {TEST(growth_with_invalid_arguments_is_refused)},
    {NULL, NULL},
};
