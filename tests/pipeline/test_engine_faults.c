/* tests/pipeline/test_engine_faults.c - failures in a pipeline: how they are reported, and that the
 * pipeline ends at once. */
#include "tests/pipeline/fake_plan.h"
#include "tests/support/fault.h"

#include "base/error.h"
#include "base/fault.h"
#include "base/stream.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static const fake_task three[] = {
    {.name = "a", .stage = 0, .stream = "memcpy", .group = "io"},
    {.name = "b", .stage = 1, .stream = "dist", .group = "dist", .after = "a", .ordered = true},
    {.name = "c", .stage = 2, .after = "b c-1", .ordered = true},
    {.name = NULL}};

static void count_call(void *self) {
    ++*(int *)self;
}

/* Fail each task at each of the first iterations.  If the pipeline waited for its deadline, the
 * test would not end. */
static void a_failing_task_is_named_and_ends_all(hotbed_backend backend) {
    for (uint32_t task = 0; task < 3; task++)
        for (uint64_t at = 0; at < 5; at++) {
            fake_plan p;
            char expected[64];
            int revoked = 0;
            const hotbed_iteration *iteration;
            hotbed_pipeline_stats stats = {.size = sizeof stats};
            fake_plan_open(&p, backend, three);
            p.options.revoke = count_call;
            p.options.revoke_self = &revoked;
            p.options.deadline_seconds = 1e6;
            p.selves[task].fails_at = at + 1;
            fake_plan_start(&p, 8);
            hotbed_status status = HOTBED_OK;
            uint64_t good = 0;
            while (status == HOTBED_OK) {
                status = hotbed_pipeline_progress(p.pipeline, &iteration);
                if (status == HOTBED_OK) {
                    CHECK(iteration != NULL);
                    good++;
                }
            }
            CHECK_EQ(status, HOTBED_ERR_FULL);
            CHECK(good <= at);
            CHECK(iteration == NULL);
            (void)snprintf(
                expected, sizeof expected, "pipeline plan: task %s of iteration %llu: it was asked",
                p.tasks[task].name, (unsigned long long)at);
            if (strstr(hotbed_last_error(), expected) == NULL)
                CHECK_STRING(hotbed_last_error(), expected);
            hotbed_pipeline_stats_read(p.pipeline, &stats);
            while (stats.threads > 0) { /* a slow thread was in a task; the next call joins it */
                CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_FULL);
                hotbed_pipeline_stats_read(p.pipeline, &stats);
            }
            CHECK_EQ(revoked, 1);
            CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_FULL);
            CHECK(strstr(hotbed_last_error(), expected) != NULL);
            CHECK_STATUS(hotbed_pipeline_drain(p.pipeline), HOTBED_ERR_FULL);
            CHECK_STATUS(hotbed_pipeline_fill(p.pipeline), HOTBED_ERR_FULL);
            CHECK_EQ(revoked, 1);
            fake_plan_close(&p);
        }
}

/* A task does not return.  All work that does not depend on it is done before the clock runs. */
static void a_stall_lists_what_is_not_done(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    p.options.deadline_seconds = 0.25;
    fake_plan_hold(&p, "b", 0);
    fake_plan_start(&p, 8);
    CHECK_OK(hotbed_pipeline_fill(p.pipeline));
    fake_plan_await_waiting(&p, 1);
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_COMM);
    CHECK(
        strstr(hotbed_last_error(), "iteration 0 is not done after 0.25 seconds; pending: b c") !=
        NULL);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .value = 0, .limit = 0.25);
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_COMM);
    fake_plan_release(&p);
    fake_plan_close(&p);
}

typedef struct failing_loader {
    uint64_t batches;
    bool silent; /* it fails without a text */
} failing_loader;

static hotbed_status fail_later(void *self, void **batch, bool *end) {
    failing_loader *loader = self;
    if (loader->batches-- == 0)
        return loader->silent ? HOTBED_ERR_IO : hotbed_error_set(HOTBED_ERR_IO, "the log is torn");
    *batch = loader;
    *end = false;
    return HOTBED_OK;
}

static void a_failing_loader_is_named(hotbed_backend backend) {
    for (uint64_t at = 0; at < 5; at++) {
        fake_plan p;
        const hotbed_iteration *iteration;
        failing_loader self = {at, at % 2 == 1};
        const hotbed_loader loader = {.next = fail_later, .self = &self};
        fake_plan_open(&p, backend, three);
        CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline));
        CHECK_OK(hotbed_pipeline_bind(p.pipeline, &loader));
        hotbed_status status = HOTBED_OK;
        while (status == HOTBED_OK)
            status = hotbed_pipeline_progress(p.pipeline, &iteration);
        CHECK_EQ(status, HOTBED_ERR_IO);
        CHECK(strstr(hotbed_last_error(), "task loader of iteration") != NULL);
        CHECK(
            strstr(
                hotbed_last_error(), self.silent ? "the loader returned IO" : "the log is torn") !=
            NULL);
        fake_plan_close(&p);
    }
}

static hotbed_status least_fails(void *self, uint64_t word, uint64_t *least) {
    uint64_t *good = self;
    *least = word;
    return (*good)-- == 0 ? hotbed_error_set(HOTBED_ERR_COMM, "a rank is gone") : HOTBED_OK;
}

/* The batch that ranks failed to agree on is returned through `done`; no task has seen it. */
static void a_failing_agreement_returns_the_batch(hotbed_backend backend) {
    static const hotbed_end_policy ends[] = {HOTBED_END_FIRST, HOTBED_END_LAST};
    for (int e = 0; e < 2; e++)
        for (uint64_t at = 0; at < 6; at++) {
            fake_plan p;
            const hotbed_iteration *iteration;
            uint64_t good = at;
            fake_plan_open(&p, backend, three);
            p.options.end = ends[e];
            p.options.agreement = (hotbed_agreement){least_fails, &good};
            fake_plan_start(&p, 5);
            hotbed_status status = HOTBED_OK;
            while (status == HOTBED_OK)
                status = hotbed_pipeline_progress(p.pipeline, &iteration);
            CHECK_EQ(status, HOTBED_ERR_COMM);
            CHECK(strstr(hotbed_last_error(), "a rank is gone") != NULL);
            CHECK_EQ(p.next, at < 5 ? at + 1 : 5);
            CHECK_EQ(p.unused, at < 5); /* in the last round the loader had ended */
            fake_plan_close(&p);
        }
}

static hotbed_status latch(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    if (hotbed_iteration_number(iteration) == 2) { /* as a kernel would latch it */
        hotbed_fault *fault = hotbed_stream_faults(stream);
        *fault = (hotbed_fault){
            .status = HOTBED_ERR_RANGE, .what = HOTBED_CAUSE_KEY_RANGE, .key = 7, .bound = 5};
    }
    return HOTBED_OK;
}

static void a_fault_of_a_kernel_stops_the_pipeline(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    p.selves[1].work = latch;
    fake_plan_start(&p, 8);
    hotbed_status status = HOTBED_OK;
    while (status == HOTBED_OK)
        status = hotbed_pipeline_progress(p.pipeline, &iteration);
    CHECK_EQ(status, HOTBED_ERR_RANGE);
    CHECK(
        strstr(hotbed_last_error(), "task b of iteration 2: fault found after it on stream dist") !=
        NULL);
    CHECK(strstr(hotbed_last_error(), "key 7") != NULL);
    CHECK_FIELDS(
            .cause = HOTBED_CAUSE_KEY_RANGE,
            .has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT, .key = 7,
            .limit = 5);
    fake_plan_close(&p);
}

static bool tolerate_range(void *self, hotbed_status fault) {
    CHECK(strstr(hotbed_last_error(), "key 7") != NULL);
    ++*(int *)self;
    return fault == HOTBED_ERR_RANGE;
}

static void a_tolerated_fault_stops_nothing(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    int asked = 0;
    fake_plan_open(&p, backend, three);
    p.selves[1].work = latch;
    p.options.tolerate = tolerate_range;
    p.options.tolerate_self = &asked;
    fake_plan_start(&p, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK(iteration != NULL);
    }
    CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
    CHECK(iteration == NULL);
    CHECK_EQ(asked, 1);
    fake_plan_close(&p);
}

typedef struct late_fault {
    fake_plan *p;
    hotbed_fault *fault;
} late_fault;

static late_fault late;

/* Runs on the stream's own thread, once the gate is open. */
static void latch_when_open(void *unused) {
    (void)pthread_mutex_lock(&late.p->lock);
    while (!late.p->open)
        (void)pthread_cond_wait(&late.p->changed, &late.p->lock);
    (void)pthread_mutex_unlock(&late.p->lock);
    late.fault->what = HOTBED_CAUSE_KEY_RANGE;
    late.fault->key = 9;
    __atomic_store_n(&late.fault->status, HOTBED_ERR_RANGE, __ATOMIC_RELEASE);
}

static hotbed_status latch_late(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    late.fault = hotbed_stream_faults(stream);
    return hotbed_iteration_number(iteration) == 3
               ? hotbed_stream_call(stream, latch_when_open, NULL)
               : HOTBED_OK;
}

/* A fault that is latched after the last task was submitted is returned at the end. */
static void a_late_fault_is_returned_at_the_end(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    late.p = &p;
    p.selves[2].work = latch_late;
    fake_plan_start(&p, 4);
    for (int i = 0; i < 4; i++)
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
    fake_plan_release(&p);
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_RANGE);
    CHECK(
        strstr(hotbed_last_error(), "fault found on stream default when the pipeline ended") !=
        NULL);
    CHECK(strstr(hotbed_last_error(), "key 9") != NULL);
    fake_plan_close(&p);
}

/* A plan whose task a fails at iteration 2, while b of iteration 0 is held, and the work of a at
 * iteration 1 is not done before the test says so. */
static struct beside {
    fake_plan *p;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* whether a's work may end */
    bool read; /* whether the log has been read */
} beside = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Runs on the stream's own thread. */
static void wait_until_done(void *unused) {
    (void)pthread_mutex_lock(&beside.lock);
    while (!beside.done)
        (void)pthread_cond_wait(&beside.changed, &beside.lock);
    (void)pthread_mutex_unlock(&beside.lock);
}

static hotbed_status fail_beside_b(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    if (hotbed_iteration_number(iteration) == 1)
        return hotbed_stream_call(stream, wait_until_done, NULL);
    if (hotbed_iteration_number(iteration) < 2)
        return HOTBED_OK;
    fake_plan_await_waiting(((fake_task_state *)self)->all, 1);
    return hotbed_fail(HOTBED_ERR_FULL, "b is still running");
}

static uint64_t host_waits(void) {
    hotbed_counters counters = {.size = sizeof counters};
    CHECK_OK(hotbed_counters_read(&counters));
    return counters.host_waits;
}

/* A log that waits for the completions of a has passed those of b, which come first: let b end
 * meanwhile, and then a. */
static void *end_b_in_the_middle(void *waits) {
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    hotbed_pipeline_stats_read(beside.p->pipeline, &stats);
    const uint64_t tasks = stats.tasks;
    while (host_waits() == *(uint64_t *)waits && !__atomic_load_n(&beside.read, __ATOMIC_RELAXED))
        (void)sched_yield();
    fake_plan_release(beside.p);
    while (stats.tasks == tasks)
        hotbed_pipeline_stats_read(beside.p->pipeline, &stats);
    (void)pthread_mutex_lock(&beside.lock);
    beside.done = true;
    (void)pthread_cond_broadcast(&beside.changed);
    (void)pthread_mutex_unlock(&beside.lock);
    return NULL;
}

/* One task fails while another still runs on another thread: the entry of the latter appears when
 * it has ended, and reading the log does not touch its completion. */
static void the_log_of_a_failed_pipeline_is_read_beside_a_running_task(hotbed_backend backend) {
    fake_plan p;
    hotbed_log_entry log[64];
    const hotbed_iteration *iteration;
    uint64_t n = 0, before = 0;
    pthread_t other;
    fake_plan_open(&p, backend, three);
    beside.p = &p;
    beside.done = beside.read = false;
    p.options.log_entries = 64;
    p.options.timed = true;
    p.selves[0].work = fail_beside_b;
    fake_plan_hold(&p, "b", 0);
    fake_plan_start(&p, 8);
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_FULL);
    uint64_t waits = host_waits();
    CHECK_EQ(pthread_create(&other, NULL, end_b_in_the_middle, &waits), 0);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &before));
    CHECK(before > 0);
    __atomic_store_n(&beside.read, true, __ATOMIC_RELAXED);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &n));
    CHECK_EQ(n, before + 1);
    CHECK_EQ(log[before].task, fake_plan_find(&p, "b"));
    CHECK_EQ(log[before].iteration, 0);
    fake_plan_close(&p);
}

/* Destroy the pipeline in each state. */
static void teardown_in_any_state(hotbed_backend backend) {
    for (int state = 0; state < 4; state++) {
        fake_plan p;
        const hotbed_iteration *iteration;
        fake_plan_open(&p, backend, three);
        if (state > 0)
            fake_plan_start(&p, 8);
        if (state > 1)
            CHECK_OK(hotbed_pipeline_fill(p.pipeline));
        for (int i = 0; state > 2 && i < 3; i++)
            CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        fake_plan_close(&p);
    }
    hotbed_pipeline_destroy(NULL);
}

static void create_survives_any_allocation(hotbed_backend backend) {
    static const hotbed_value_options values[] = {{.name = "x", .bytes = 64, .grad = true}};
    fake_plan p;
    fake_plan_open(&p, backend, three);
    p.plan.values = values;
    p.plan.num_values = 1;
    p.options.timed = true;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        if (status == HOTBED_OK) { /* libc's own allocation, which may fail */
            hotbed_pipeline_destroy(p.pipeline);
            continue;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(p.pipeline == NULL);
    }
    fake_plan_bind(&p, 3);
    CHECK_EQ(fake_plan_run(&p), 3);
    fake_plan_close(&p);
}

static void bad_arguments(hotbed_backend backend) {
    fake_plan p;
    hotbed_pipeline *pipeline;
    uint64_t n;
    fake_plan_open(&p, backend, three);
    CHECK_STATUS(hotbed_pipeline_create(&p.plan, NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_create(NULL, NULL, &pipeline), HOTBED_ERR_ARGUMENT);
    p.options.deadline_seconds = -1.0;
    CHECK_STATUS(hotbed_pipeline_create(&p.plan, &p.options, &pipeline), HOTBED_ERR_ARGUMENT);
    p.options.deadline_seconds = 0.0;
    p.options.end = HOTBED_END_LAST;
    CHECK_STATUS(hotbed_pipeline_create(&p.plan, &p.options, &pipeline), HOTBED_ERR_ARGUMENT);
    p.options.end = (hotbed_end_policy)9;
    CHECK_STATUS(hotbed_pipeline_create(&p.plan, &p.options, &pipeline), HOTBED_ERR_ARGUMENT);
    p.options.end = HOTBED_END_ALONE;
    p.options.log_entries = 0;
    CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &pipeline));
    CHECK_STATUS(hotbed_pipeline_log(pipeline, 0, NULL, &n), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_pipeline_log(NULL, 0, NULL, &n), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_progress(pipeline, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_bind(pipeline, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_drain(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_shortcut(NULL, "a"), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_pipeline_shortcut(pipeline, "a nobody"), HOTBED_ERR_ARGUMENT);
    hotbed_pipeline_destroy(pipeline);
    p.options.timed = true;
    CHECK_STATUS(hotbed_pipeline_create(&p.plan, &p.options, &pipeline), HOTBED_ERR_ARGUMENT);
    fake_plan_close(&p);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_failing_task_is_named_and_ends_all)},
    {TEST(a_stall_lists_what_is_not_done)},
    {TEST(a_failing_loader_is_named)},
    {TEST(a_failing_agreement_returns_the_batch)},
    {TEST(a_fault_of_a_kernel_stops_the_pipeline)},
    {TEST(a_tolerated_fault_stops_nothing)},
    {TEST(a_late_fault_is_returned_at_the_end)},
    {TEST(the_log_of_a_failed_pipeline_is_read_beside_a_running_task)},
    {TEST(teardown_in_any_state)},
    {TEST(create_survives_any_allocation)},
    {TEST(bad_arguments)},
    {NULL, NULL},
};
