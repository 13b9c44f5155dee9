/* tests/dist/test_sharded_context.c - exchange contexts: overflow, host waits, order of calls,
 * several collections, graphs. */
#include "dist/sharded.h"
#include "tests/dist/sharded_fixture.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const sharded_case base = {
    .seed = 21,
    .optimizer = HOTBED_OPT_SGD,
    .capacity = FIXTURE_KEYS,
    .key_space = 30,
    .steps = 6,
};

/* The value is equal on all ranks. */
static void check_same(world_rank *me, uint64_t value) {
    world_bytes own = world_alloc(me, sizeof value), all = world_alloc(me, me->size * sizeof value);
    memcpy(own.host, &value, sizeof value);
    world_upload(me, &own);
    CHECK_OK(hotbed_comm_all_gather(
        me->comm, sizeof value, own.device.data, all.device.data, me->stream));
    world_download(me, &all);
    for (uint32_t r = 0; r < me->size; r++)
        CHECK_BYTES(all.host + r * sizeof value, &value, sizeof value);
    world_free(&own);
    world_free(&all);
}

/* Run the stages of a batch up to `wait_input`. */
static void start_batch(
    const world_rank *me, hotbed_sharded_context *context, const hotbed_kjt *kjt) {
    CHECK_OK(hotbed_sharded_input_dist(context, kjt, me->stream));
    CHECK_OK(hotbed_sharded_wait_splits(context, me->stream));
    CHECK_OK(hotbed_sharded_wait_input(context, me->stream));
}

static void arrive(sharded_fixture *r) {
    start_batch(r->me, r->context, &r->kjt);
}

/* Wait, without a host wait that is counted, until the keys of the batch have arrived. */
static void await_keys(const sharded_fixture *r) {
    const hotbed_sharded_context *context = r->context;
    bool arrived = !context->watched || context->settled;
    while (!arrived) {
        CHECK_OK(hotbed_event_query(context->arrived, &arrived));
        sched_yield();
    }
}

static void finish(sharded_fixture *r) {
    CHECK_OK(hotbed_sharded_compute(r->context, 0, r->me->stream));
    CHECK_OK(hotbed_sharded_output_dist(r->context, 0, r->me->stream));
    CHECK_OK(hotbed_sharded_wait_output(r->context, 0, r->output.device.data, 0, r->me->stream));
}

/* --- overflow --------------------------------------------------------------------------------- */

/* Number of batches that overflowed, and that did not, on the ranks of this process. */
typedef struct replay_case {
    sharded_case how;
    uint32_t ranks;
    int replayed, whole;
} replay_case;

static void replay_body(world_rank *me) {
    replay_case *c = me->argument;
    sharded_fixture r;
    sharded_fixture_open(&r, me, &c->how);
    __atomic_store_n(&c->ranks, me->size, __ATOMIC_RELAXED);
    for (int step = 0; step < r.how->steps; step++) {
        bool overflowed;
        sharded_fixture_step(&r, step);
        CHECK_OK(hotbed_sharded_overflowed(r.context, &overflowed));
        check_same(me, overflowed);
        __atomic_add_fetch(overflowed ? &c->replayed : &c->whole, 1, __ATOMIC_RELAXED);
    }
    sharded_fixture_close(&r);
}

static void an_overflow_is_replayed_whole(hotbed_backend backend) {
    static const uint64_t capacities[] = {4, 9, 20};
    for (int plan = 0; plan < 3; plan += 2)
        for (int i = 0; i < 6; i++) {
            replay_case c = {.how = base};
            c.how.plan = (hotbed_plan)plan;
            c.how.pooling = i % 2 == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
            c.how.capacity = capacities[i / 2];
            if (plan == HOTBED_PLAN_ONE_SIDED && !sharded_fixture_has_windows())
                continue;
            /* With this capacity some batches overflow. */
            if (hotbed_test_is_small() && i != 2 + plan / 2)
                continue;
            sharded_fixture_run(plan == HOTBED_PLAN_FIXED && i == 2 ? 33 : 8, replay_body, &c);
            if (c.replayed + c.whole == 0)
                return; /* the transport has no such world: the test is skipped */
            /* a rank alone sends nothing */
            CHECK((c.replayed > 0) == (c.ranks > 1) || (c.how.capacity == 20 && c.ranks > 1));
            CHECK(c.whole > 0 || (c.how.capacity == 4 && c.ranks > 1));
        }
}

static void report_body(world_rank *me) {
    sharded_fixture r;
    int reported = 0;
    sharded_fixture_open(&r, me, me->argument);
    for (int step = 0; step < r.how->steps; step++) {
        bool overflowed;
        sharded_fixture_fill(&r, step);
        arrive(&r);
        memset(r.output.host, 0xa5, r.output.bytes);
        world_upload(me, &r.output);
        finish(&r);
        CHECK_OK(hotbed_sharded_overflowed(r.context, &overflowed));
        check_same(me, overflowed);
        world_download(me, &r.output);
        const sharded_batch *b = &r.batches[me->rank];
        float zeros[FIXTURE_DIM] = {0};
        for (uint64_t i = 0; i < b->n && overflowed; i++)
            if (r.all_at[(size_t)me->rank * FIXTURE_KEYS + i] != UINT32_MAX)
                CHECK_BYTES(r.output.host + i * sizeof zeros, zeros, sizeof zeros);
        reported += overflowed;
        CHECK_OK(hotbed_sharded_cancel(r.context, me->stream));
    }
    CHECK_EQ(reported > 0, me->size > 1); /* one rank has no messages */
    for (uint32_t l = 0; l < hotbed_sharded_num_lookups(r.sharded); l++)
        for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
            uint64_t pinned = 0;
            hotbed_storage *lookup = hotbed_sharded_lookup(r.sharded, l);
            if (t < hotbed_storage_num_tables(lookup))
                CHECK_OK(hotbed_storage_size(lookup, t, NULL, &pinned, me->stream));
            CHECK_EQ(pinned, 0);
            hotbed_storage_state state = {.size = sizeof state};
            CHECK_OK(hotbed_storage_get_state(lookup, &state, me->stream));
            CHECK_EQ(state.clock, r.how->steps - reported);
        }
    sharded_fixture_free(&r);
}

static void a_reported_overflow_is_empty_everywhere(hotbed_backend backend) {
    sharded_case c = base;
    c.overflow = HOTBED_OVERFLOW_REPORT;
    c.capacity = 3;
    sharded_fixture_run(33, report_body, &c);
}

/* --- waits and order -------------------------------------------------------------------------- */

/* A case with a barrier for the threads of one process that makes no call to the library. */
typedef struct counted_case {
    sharded_case how;
    uint32_t arrived; /* number of arrivals, atomic */
    uint64_t waits, allocations;
    bool threads;
} counted_case;

static void wait_for_threads(world_rank *me, counted_case *c, uint32_t round) {
    if (!c->threads)
        return;
    __atomic_add_fetch(&c->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&c->arrived, __ATOMIC_ACQUIRE) < round * me->size)
        sched_yield();
}

static void counted_body(world_rank *me) {
    const uint32_t steps = hotbed_test_is_small() ? 2 : 5;
    counted_case *c = me->argument;
    sharded_fixture r;
    sharded_fixture_open(&r, me, &c->how);
    sharded_fixture_step(&r, 0);
    sharded_fixture_step(&r, 1);
    sharded_fixture_fill(&r, 4);
    CHECK_OK(hotbed_stream_sync(me->stream));
    wait_for_threads(me, c, 1);
    hotbed_counters before = hotbed_test_counters();
    wait_for_threads(me, c, 2);
    for (uint32_t step = 0; step < steps; step++) {
        arrive(&r);
        await_keys(&r);
        CHECK_OK(hotbed_sharded_prefetch(r.context, 0, me->stream));
        finish(&r);
        CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, me->stream));
    }
    wait_for_threads(me, c, 3);
    hotbed_counters after = hotbed_test_counters();
    wait_for_threads(me, c, 4);
    uint32_t ranks = c->threads ? me->size : 1;
    bool exact = c->how.plan == HOTBED_PLAN_TWO_PHASE && me->size > 1;
    CHECK_EQ(after.host_waits - before.host_waits, exact ? steps * ranks : 0);
    CHECK_EQ(after.allocations - before.allocations, 0);
    CHECK_OK(hotbed_stream_sync(me->stream));
    sharded_fixture_free(&r); /* the model did not run these steps */
}

static void steps_neither_wait_nor_allocate(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan++)
        for (int pooled = 0; pooled < 2; pooled++)
            for (const world *w = world_list(); w->size != 0; w++) {
                if ((plan == HOTBED_PLAN_ONE_SIDED && !sharded_fixture_has_windows()) ||
                    !world_is_wanted(w, 33) || (hotbed_test_is_small() && pooled != plan % 2) ||
                    (w->size > 8 && (plan != HOTBED_PLAN_FIXED || pooled == 1)))
                    continue;
                counted_case c = {.how = base};
                c.how.plan = (hotbed_plan)plan;
                c.how.pooling = pooled == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_MEAN;
                /* Large enough: a batch might overflow, so it is checked, but none does. */
                c.how.capacity = FIXTURE_KEYS - 1;
                const char *transport = getenv("HOTBED_TEST_TRANSPORT");
                c.threads = w->transport == HOTBED_TRANSPORT_THREADS ||
                            (transport != NULL && strcmp(transport, "nccl") == 0);
                world_run_kept(w, counted_body, &c);
            }
}

/* Between compute and wait_output, each lookup launches one kernel, and its rows are one exchange; rows
 * in windows need one barrier. On the host an exchange or a barrier is one task. */
static void sent_body(world_rank *me) {
    counted_case *c = me->argument;
    sharded_fixture r;
    hotbed_counters counters[2];
    sharded_fixture_open(&r, me, &c->how);
    sharded_fixture_step(&r, 0);
    sharded_fixture_fill(&r, 4);
    arrive(&r);
    await_keys(&r);
    CHECK_OK(hotbed_sharded_prefetch(r.context, 0, me->stream));
    for (uint32_t i = 0; i < 2; i++) {
        wait_for_threads(me, c, 2 * i + 1);
        counters[i] = (hotbed_counters){.size = sizeof counters[i]};
        hotbed_counters_read(&counters[i]);
        wait_for_threads(me, c, 2 * i + 2);
        if (i == 0) {
            CHECK_OK(hotbed_sharded_compute(r.context, 0, me->stream));
            CHECK_OK(hotbed_sharded_output_dist(r.context, 0, me->stream));
        }
    }
    const uint64_t parts = hotbed_sharded_num_lookups(r.sharded);
    const uint64_t exchanges = c->how.plan == HOTBED_PLAN_ONE_SIDED ? 1 : parts;
    const uint64_t most = (parts + exchanges) * (c->threads ? me->size : 1);
    if (hotbed_stream_backend(me->stream) == HOTBED_BACKEND_HOST)
        CHECK(counters[1].launches - counters[0].launches <= most); /* a part may have no keys */
    CHECK_OK(hotbed_sharded_wait_output(r.context, 0, r.output.device.data, 0, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    sharded_fixture_free(&r); /* the model did not run this step */
}

static void rows_are_written_where_they_are_sent(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan++)
        for (const world *w = world_list(); w->size != 0; w++) {
            if ((plan == HOTBED_PLAN_ONE_SIDED && !sharded_fixture_has_windows()) ||
                !world_is_wanted(w, 8) || w->size == 1)
                continue;
            counted_case c = {.how = base};
            c.how.plan = (hotbed_plan)plan;
            c.how.capacity = FIXTURE_KEYS - 1;
            const char *transport = getenv("HOTBED_TEST_TRANSPORT");
            c.threads = w->transport == HOTBED_TRANSPORT_THREADS ||
                        (transport != NULL && strcmp(transport, "nccl") == 0);
            world_run_kept(w, sent_body, &c);
        }
}

static void order_body(world_rank *me) {
    sharded_fixture r;
    uint64_t calls, digest;
    sharded_fixture_open(&r, me, me->argument);
    for (int step = 0; step < r.how->steps; step++)
        sharded_fixture_step(&r, step);
    CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, &digest));
    check_same(me, calls);
    check_same(me, digest);
    sharded_fixture_close(&r);
}

static void all_ranks_make_the_same_calls(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan++) {
        sharded_case c = base;
        c.plan = (hotbed_plan)plan;
        c.capacity = 8; /* with replays */
        c.steps = hotbed_test_is_small() ? 2 : 8;
        if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(plan == HOTBED_PLAN_FIXED ? 33 : 8, order_body, &c);
    }
}

/* --- several collections, several contexts ---------------------------------------------------- */

/* A newer caller's struct: it has a field that the library does not know. */
typedef struct newer_kjt {
    hotbed_kjt kjt;
    uint64_t unknown;
} newer_kjt;

/* Start the batches, once in an array of the library's structs and once in one of a newer caller's. */
static void start_several(
    hotbed_sharded_context *context, const sharded_fixture *fixtures, bool newer,
    hotbed_stream *stream) {
    hotbed_kjt kjts[3];
    newer_kjt larger[3];
    memset(larger, 0, sizeof larger);
    for (int i = 0; i < 3; i++) {
        kjts[i] = larger[i].kjt = fixtures[i].kjt;
        larger[i].kjt.size = sizeof larger[i];
    }
    CHECK_OK(hotbed_sharded_input_dist(context, newer ? &larger[0].kjt : kjts, stream));
    char text[100];
    (void)snprintf(
        text, sizeof text, "kjt 2: size %zu is not %zu, that of kjt 0", sizeof *kjts - 8,
        sizeof *kjts);
    kjts[2].size -= 8;
    CHECK_STATUS(hotbed_sharded_input_dist(context, kjts, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), text);
}

static void several_body(world_rank *me) {
    const hotbed_plan *plan = me->argument;
    sharded_case cases[3] = {base, base, base};
    cases[1].optimizer = HOTBED_OPT_ADAM;
    cases[1].seed = 22;
    cases[2].pooling = HOTBED_POOL_SUM;
    cases[2].weighted = true;
    cases[2].seed = 23;
    sharded_fixture fixtures[3];
    hotbed_sharded *collections[3];
    hotbed_sharded_context *context;
    for (int i = 0; i < 3; i++) {
        cases[i].plan = *plan;
        sharded_fixture_open(&fixtures[i], me, &cases[i]);
        collections[i] = fixtures[i].sharded;
    }
    CHECK_OK(hotbed_sharded_create_context(3, collections, me->stream, &context));
    const int steps = hotbed_test_is_small() ? 2 : 4;
    for (int step = 0; step < steps; step++) {
        uint64_t calls, calls_after;
        for (int i = 0; i < 3; i++)
            sharded_fixture_fill(&fixtures[i], step);
        CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, NULL));
        start_several(context, fixtures, step % 2 == 1, me->stream);
        CHECK_OK(hotbed_comm_log_digest(me->comm, &calls_after, NULL));
        uint64_t exchanges = *plan == HOTBED_PLAN_ONE_SIDED ? 2 : 1;
        CHECK_EQ(calls_after - calls, me->size > 1 ? exchanges : 0);
        CHECK_OK(hotbed_sharded_wait_splits(context, me->stream));
        CHECK_OK(hotbed_sharded_wait_input(context, me->stream));
        for (uint32_t i = 0; i < 3; i++) {
            CHECK_OK(hotbed_sharded_compute(context, i, me->stream));
            CHECK_OK(hotbed_sharded_output_dist(context, i, me->stream));
            CHECK_OK(hotbed_sharded_wait_output(
                context, i, fixtures[i].output.device.data, 0, me->stream));
        }
        for (uint32_t i = 0; i < 3; i++) {
            sharded_fixture_model_forward(&fixtures[i]);
            sharded_fixture_check_output(&fixtures[i]);
            sharded_fixture_model_backward(&fixtures[i]);
            CHECK_OK(hotbed_sharded_backward(
                context, i, fixtures[i].gradient.device.data, 0, me->stream));
        }
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    hotbed_sharded_context_destroy(context);
    for (int i = 0; i < 3; i++)
        sharded_fixture_close(&fixtures[i]);
}

static void splits_of_several_collections_are_one_exchange(hotbed_backend backend) {
    for (int p = 0; p < 3; p += hotbed_test_is_small() ? 2 : 1) {
        hotbed_plan plan = (hotbed_plan)p;
        if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(plan == HOTBED_PLAN_FIXED ? 33 : 8, several_body, &plan);
    }
}

/* The keys of the next batch travel, on their own stream, before the rows of this batch. */
static void two_streams_body(world_rank *me) {
    const int steps = hotbed_test_is_small() ? 3 : 6;
    sharded_fixture r[2];
    hotbed_stream *early;
    CHECK_OK(hotbed_stream_create(
        hotbed_stream_backend(me->stream), hotbed_stream_device(me->stream), &early));
    sharded_fixture_open(&r[0], me, me->argument);
    sharded_fixture_open(&r[1], me, me->argument); /* its arrays serve every other batch */
    hotbed_sharded_context *second;
    CHECK_OK(hotbed_sharded_create_context(1, &r[0].sharded, me->stream, &second));
    hotbed_sharded_context *contexts[2] = {r[0].context, second};
    for (int step = 0; step <= steps; step++) {
        hotbed_sharded_context *next = contexts[step % 2], *now = contexts[(step + 1) % 2];
        sharded_fixture *n = &r[step % 2], *w = &r[(step + 1) % 2];
        if (step < steps) {
            sharded_fixture_fill(n, step);
            CHECK_OK(hotbed_sharded_input_dist(next, &n->kjt, early));
            CHECK_OK(hotbed_sharded_wait_splits(next, early));
        }
        if (step > 0) {
            CHECK_OK(hotbed_sharded_wait_input(now, early));
            CHECK_OK(hotbed_sharded_prefetch(now, 0, early));
            CHECK_OK(hotbed_sharded_compute(now, 0, me->stream));
            CHECK_OK(hotbed_sharded_output_dist(now, 0, me->stream));
            CHECK_OK(hotbed_sharded_wait_output(now, 0, w->output.device.data, 0, me->stream));
            /* Both fixtures use the first one's model, because batches are trained in order. */
            hotbed_storage *model = w->model;
            hotbed_ticket *ticket = w->ticket;
            w->model = r[0].model;
            w->ticket = r[0].ticket;
            sharded_fixture_model_forward(w);
            sharded_fixture_check_output(w);
            sharded_fixture_model_backward(w);
            w->model = model;
            w->ticket = ticket;
            CHECK_OK(hotbed_sharded_backward(now, 0, w->gradient.device.data, 0, me->stream));
        }
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    CHECK_OK(hotbed_stream_sync(early));
    hotbed_sharded_context_destroy(second);
    sharded_fixture_close(&r[0]);
    sharded_fixture_free(&r[1]);
    hotbed_stream_destroy(early);
}

static void stages_run_on_several_streams(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan += hotbed_test_is_small() ? 2 : 1) {
        sharded_case c = base;
        c.plan = (hotbed_plan)plan;
        if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(plan == HOTBED_PLAN_FIXED ? 33 : 8, two_streams_body, &c);
    }
}

/* --- rows that other ranks write -------------------------------------------------------------- */

static void sleep_a_little(void *argument) {
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Read the rows of a batch whose keys have arrived. If `late`, this rank's stream sleeps before it
 * takes them. */
static void read_rows(
    const world_rank *me, hotbed_sharded_context *context, const world_bytes *output, bool late) {
    CHECK_OK(hotbed_sharded_compute(context, 0, me->stream));
    CHECK_OK(hotbed_sharded_output_dist(context, 0, me->stream));
    if (late)
        CHECK_OK(hotbed_stream_call(me->stream, sleep_a_little, NULL));
    CHECK_OK(hotbed_sharded_wait_output(context, 0, output->device.data, 0, me->stream));
}

/* A context evaluates two batches in turn, and then one of them twice, the second time without its
 * rows. One rank is late each time, while the others go on. */
static void late_body(world_rank *me) {
    enum { ROUNDS = 7 };
    sharded_fixture r[2]; /* with the first and the second batch, for the collection of the first */
    hotbed_sharded_point point;
    world_bytes want[2], got[ROUNDS + 1];
    for (int b = 0; b < 2; b++)
        sharded_fixture_open(&r[b], me, me->argument);
    for (int step = 0; step < 2; step++)
        sharded_fixture_step(&r[0], step); /* the keys get rows */
    CHECK_OK(hotbed_sharded_set_training(r[0].sharded, false));
    hotbed_sharded_context *context = r[0].context;
    for (int b = 0; b < 2; b++) {
        sharded_fixture_fill(&r[b], b);
        want[b] = world_alloc(me, r[b].output.bytes);
    }
    for (int k = 0; k <= ROUNDS; k++)
        got[k] = world_alloc(me, r[0].output.bytes);
    for (int k = -2; k < ROUNDS; k++) {
        start_batch(me, context, &r[k & 1].kjt);
        if (k == ROUNDS - 1)
            CHECK_OK(hotbed_sharded_keep(context, &point, me->stream));
        read_rows(
            me, context, k < 0 ? &want[k & 1] : &got[k],
            k >= 0 && (uint32_t)k % me->size == me->rank);
        if (k < 0)
            world_download(me, &want[k & 1]);
    }
    CHECK_OK(hotbed_sharded_rewind(context, &point, me->stream));
    for (uint32_t l = 0; l < hotbed_sharded_num_lookups(r[0].sharded); l++) {
        hotbed_storage *lookup = hotbed_sharded_lookup(r[0].sharded, l);
        for (uint32_t t = 0; t < hotbed_storage_num_tables(lookup); t++)
            CHECK_OK(hotbed_storage_clear(lookup, t, me->stream));
    }
    read_rows(me, context, &got[ROUNDS], false);
    for (int k = 0; k <= ROUNDS; k++) {
        world_download(me, &got[k]);
        if (k < ROUNDS)
            CHECK_BYTES(got[k].host, want[k & 1].host, want[k & 1].bytes);
        else
            CHECK(
                r[0].batches[me->rank].n == 0 ||
                memcmp(got[k].host, want[0].host, want[0].bytes) != 0);
        world_free(&got[k]);
    }
    /* Destroy the contexts after compute. Rank 0 is late to write into the windows of the others. */
    start_batch(me, context, &r[1].kjt);
    if (me->rank == 0)
        CHECK_OK(hotbed_stream_call(me->stream, sleep_a_little, NULL));
    CHECK_OK(hotbed_sharded_compute(context, 0, me->stream));
    for (int b = 0; b < 2; b++) {
        world_free(&want[b]);
        sharded_fixture_free(&r[b]);
    }
}

static void rows_stay_until_the_last_rank_has_read_them(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan++) {
        sharded_case c = base;
        c.plan = (hotbed_plan)plan;
        if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(4, late_body, &c);
    }
}

/* --- graphs ----------------------------------------------------------------------------------- */

static void graph_body(world_rank *me) {
    if (!world_records(me))
        return;
    sharded_fixture r;
    hotbed_graph *graph;
    hotbed_stream *s = me->stream;
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_step(&r, 0); /* so that workspaces are large enough */
    CHECK_OK(hotbed_graph_begin(s));
    arrive(&r);
    finish(&r);
    CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, s));
    CHECK_OK(hotbed_graph_end(s, &graph));
    for (int step = 1; step < r.how->steps; step++) {
        sharded_fixture_fill(&r, step);
        sharded_fixture_model_forward(&r);
        sharded_fixture_model_backward(&r);
        CHECK_OK(hotbed_graph_launch(graph, s));
        CHECK_OK(hotbed_stream_sync(s));
        sharded_fixture_check_output(&r);
    }
    hotbed_graph_destroy(graph);
    sharded_fixture_close(&r);
}

static void a_step_is_launched_with_other_keys(hotbed_backend backend) {
    for (int plan = 0; plan < 3; plan += 2)
        for (int pooled = 0; pooled < 2; pooled++) {
            sharded_case c = base;
            c.plan = (hotbed_plan)plan;
            c.steady = true;
            c.steps = hotbed_test_is_small() ? 4 : 6;
            c.pooling = pooled == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
            uint32_t most = plan == HOTBED_PLAN_FIXED && pooled == 0 ? 33 : 8;
            if (hotbed_test_is_small())
                most = 1; /* threads on a GPU cannot be recorded */
            if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
                sharded_fixture_run(most, graph_body, &c);
        }
}

/* A batch whose features are in one of two orders, and its output. */
typedef struct ordered {
    const char *names[FIXTURE_FEATURES + 1];
    hotbed_kjt kjt;
    hotbed_graph *graph;
    uint8_t *want;
} ordered;

/* Enqueue or record a forward, whose rows are released again. */
static void forward_ordered(sharded_fixture *r, const ordered *o) {
    hotbed_stream *s = r->me->stream;
    r->kjt = o->kjt;
    CHECK_OK(hotbed_fill(r->output.device.data, 0, r->output.bytes, s));
    arrive(r);
    finish(r);
    CHECK_OK(hotbed_sharded_cancel(r->context, s));
}

static void record_ordered(sharded_fixture *r, ordered *o) {
    hotbed_graph_destroy(o->graph);
    CHECK_OK(hotbed_graph_begin(r->me->stream));
    forward_ordered(r, o);
    CHECK_OK(hotbed_graph_end(r->me->stream, &o->graph));
}

static void check_ordered(sharded_fixture *r, const ordered *o, bool launch) {
    if (launch)
        CHECK_OK(hotbed_graph_launch(o->graph, r->me->stream));
    else
        forward_ordered(r, o);
    world_download(r->me, &r->output);
    CHECK_BYTES(r->output.host, o->want, r->output.bytes);
}

static void orders_body(world_rank *me) {
    if (!world_records(me))
        return;
    sharded_fixture r;
    ordered o[2] = {{.graph = NULL}, {.graph = NULL}};
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_fill(&r, 0);
    const uint32_t n = r.kjt.num_features;
    for (uint32_t i = 0; i < 2; i++) {
        o[i].kjt = r.kjt;
        for (uint32_t f = 0; f < n; f++)
            o[i].names[f] = r.batches[me->rank].names[(f + i) % n];
        o[i].kjt.features = o[i].names;
    }
    for (uint32_t i = 0; i < 2; i++) {
        forward_ordered(&r, &o[i]);
        world_download(me, &r.output);
        o[i].want = malloc(r.output.bytes);
        CHECK(o[i].want != NULL);
        memcpy(o[i].want, r.output.host, r.output.bytes);
    }
    CHECK(memcmp(o[0].want, o[1].want, r.output.bytes) != 0);
    check_ordered(&r, &o[0], false);
    record_ordered(&r, &o[1]); /* is not launched, so the device keeps the first order */
    check_ordered(&r, &o[1], false);
    check_ordered(&r, &o[0], false);
    record_ordered(&r, &o[0]);
    record_ordered(&r, &o[1]);
    check_ordered(&r, &o[1], true);
    check_ordered(&r, &o[0], true);
    check_ordered(&r, &o[1], false);
    check_ordered(&r, &o[0], true); /* between two batches of the other order */
    check_ordered(&r, &o[1], false);
    for (int i = 0; i < 2; i++) {
        hotbed_graph_destroy(o[i].graph);
        free(o[i].want);
    }
    sharded_fixture_free(&r);
}

static void graphs_of_several_orders_of_features_keep_theirs(hotbed_backend backend) {
    for (int pooled = 0; pooled < 2; pooled++) {
        sharded_case c = base;
        c.steady = true;
        c.pooling = pooled == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
        sharded_fixture_run(hotbed_test_is_small() ? 1 : 4, orders_body, &c);
    }
}

static void lines_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    CHECK_EQ(r.context->message_bytes % 128, 0);
    for (uint32_t i = 0; i < r.context->num_parts; i++) {
        const hotbed_part *part = &r.context->parts[i];
        CHECK_EQ(part->message_at % 128, 0);
        if (r.context->window != NULL)
            CHECK_EQ(part->window_requester % 128, 0);
    }
    sharded_fixture_close(&r);
}

static void messages_and_rows_begin_at_lines_of_memory(hotbed_backend backend) {
    for (uint64_t capacity = 60; capacity < 64; capacity++) {
        sharded_case c = base;
        c.plan = sharded_fixture_has_windows() ? HOTBED_PLAN_ONE_SIDED : HOTBED_PLAN_FIXED;
        c.capacity = capacity;
        sharded_fixture_run(2, lines_body, &c);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(an_overflow_is_replayed_whole)},
    {TEST(a_reported_overflow_is_empty_everywhere)},
    {TEST(steps_neither_wait_nor_allocate)},
    {TEST(rows_are_written_where_they_are_sent)},
    {TEST(all_ranks_make_the_same_calls)},
    {TEST(splits_of_several_collections_are_one_exchange)},
    {TEST(stages_run_on_several_streams)},
    {TEST(rows_stay_until_the_last_rank_has_read_them)},
    {TEST(a_step_is_launched_with_other_keys)},
    {TEST(graphs_of_several_orders_of_features_keep_theirs)},
    {TEST(messages_and_rows_begin_at_lines_of_memory)},
    {NULL, NULL},
};
