/* tests/pipeline/test_engine.c - the engine: periods, completions, turns, buffer sets, end of data,
 * agreement of ranks. */
#include "pipeline/state.h"
#include "tests/pipeline/fake_plan.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Three stages on three threads and three streams. */
static const fake_task three[] = {
    {.name = "a", .stage = 0, .stream = "memcpy", .group = "io"},
    {.name = "b", .stage = 1, .stream = "dist", .group = "dist", .after = "a", .ordered = true},
    {.name = "c", .stage = 2, .after = "b", .ordered = true},
    {.name = NULL}};

/* The same stages on one thread. */
static const fake_task single[] = {
    {.name = "a", .stage = 0, .stream = "memcpy"},
    {.name = "b", .stage = 1, .stream = "dist", .after = "a", .ordered = true},
    {.name = "c", .stage = 2, .after = "b", .ordered = true},
    {.name = NULL}};

static void periods_run_what_the_stages_say(hotbed_backend backend) {
    fake_plan p;
    fake_plan_open(&p, backend, single);
    fake_plan_start(&p, 4);
    CHECK_EQ(fake_plan_run(&p), 4);
    CHECK_STRING(fake_plan_order(&p), "a0 b0 a1 c0 b1 a2 c1 b2 a3 c2 b3 c3");
    fake_plan_close(&p);
    fake_plan_open(&p, backend, single);
    p.plan.order = HOTBED_ORDER_LISTED;
    fake_plan_start(&p, 3);
    CHECK_EQ(fake_plan_run(&p), 3);
    CHECK_STRING(fake_plan_order(&p), "a0 a1 b0 a2 b1 c0 b2 c1 c2");
    fake_plan_close(&p);
}

/* Each task runs exactly once for each iteration, for every depth and number of batches. */
static void every_task_runs_once_a_batch(hotbed_backend backend) {
    for (uint32_t depth = 3; depth <= 5; depth++)
        for (uint64_t batches = 0; batches <= 7; batches++) {
            fake_plan p;
            bool seen[8][3] = {{false}};
            fake_plan_open(&p, backend, three);
            p.plan.depth = depth;
            fake_plan_start(&p, batches);
            CHECK_EQ(hotbed_pipeline_depth(p.pipeline), depth);
            CHECK_EQ(fake_plan_run(&p), batches);
            CHECK_EQ(p.num_ran, 3 * batches);
            for (uint64_t i = 0; i < p.num_ran; i++) {
                CHECK(!seen[p.ran[i].iteration][p.ran[i].task]);
                seen[p.ran[i].iteration][p.ran[i].task] = true;
            }
            CHECK_EQ(p.given_back, batches);
            fake_plan_close(&p);
        }
}

static hotbed_status no_batch(void *self, void **batch, bool *end) {
    *end = true;
    return HOTBED_OK;
}

/* M batches give M results in order, then END repeatedly; a new loader is accepted after END, and
 * refused before. */
static void m_batches_give_m_results_then_the_end(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline));
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_pipeline_fill(p.pipeline), HOTBED_ERR_STATE);
    fake_plan_bind(&p, 5);
    CHECK_OK(hotbed_pipeline_fill(p.pipeline));
    CHECK_STATUS(hotbed_pipeline_fill(p.pipeline), HOTBED_ERR_STATE);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK_EQ(hotbed_iteration_number(iteration), i);
        CHECK_EQ(hotbed_iteration_buffer_set(iteration), i % 3);
        CHECK(hotbed_iteration_batch(iteration) == &p.memory[i]);
        if (i == 1) {
            const hotbed_loader other = {.next = NULL};
            CHECK_STATUS(hotbed_pipeline_bind(p.pipeline, &other), HOTBED_ERR_ARGUMENT);
            const hotbed_loader middle = {.next = no_batch};
            CHECK_STATUS(hotbed_pipeline_bind(p.pipeline, &middle), HOTBED_ERR_STATE);
            CHECK_STATUS(
                hotbed_pipeline_run_serial(p.pipeline, NULL, p.streams[0].stream, NULL),
                HOTBED_ERR_STATE);
        }
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK(iteration == NULL);
    }
    for (uint64_t batches = 0; batches < 4; batches++) {
        fake_plan_bind(&p, batches);
        CHECK_EQ(fake_plan_run(&p), batches);
    }
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    hotbed_pipeline_stats_read(p.pipeline, &stats);
    CHECK_EQ(stats.pulled, 11);
    CHECK_EQ(stats.iterations, 11);
    CHECK_EQ(stats.tasks, 33);
    CHECK_EQ(stats.threads, 3);
    fake_plan_close(&p);
}

/* A drain finishes the iterations in flight; the next loader starts with none. */
static void a_drain_leaves_nothing_in_flight(hotbed_backend backend) {
    for (uint64_t taken = 0; taken < 6; taken++) {
        fake_plan p;
        const hotbed_iteration *iteration;
        fake_plan_open(&p, backend, three);
        fake_plan_start(&p, 100);
        for (uint64_t i = 0; i < taken; i++)
            CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK_OK(hotbed_pipeline_drain(p.pipeline));
        uint64_t pulled = p.next;
        CHECK_EQ(pulled, taken == 0 ? 0 : taken + 2);
        CHECK_EQ(p.num_ran, 3 * pulled); /* whole iterations */
        CHECK_EQ(p.given_back, pulled);
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK(iteration == NULL);
        fake_plan_bind(&p, 2);
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK_EQ(hotbed_iteration_number(iteration), pulled);
        CHECK(hotbed_iteration_batch(iteration) == &p.memory[0]);
        CHECK_EQ(fake_plan_run(&p), 1);
        fake_plan_close(&p);
    }
}

/* With depth 1 nothing is in flight between two iterations. Calls that need this leave the loader
 * bound. */
static void calls_between_iterations_do_not_end_training(hotbed_backend backend) {
    static const fake_task sketch[] = {{.name = "a"}, {.name = "b", .after = "a"}, {.name = NULL}};
    fake_plan p;
    const hotbed_iteration *iteration;
    hotbed_log_entry log[16];
    uint64_t n = 0;
    fake_plan_open(&p, backend, sketch);
    fake_plan_start(&p, 5);
    CHECK_EQ(hotbed_pipeline_depth(p.pipeline), 1);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK(iteration != NULL);
        CHECK_EQ(hotbed_iteration_number(iteration), i);
        CHECK_OK(hotbed_pipeline_log(p.pipeline, 16, log, &n));
        CHECK_EQ(n, 2 * (i + 1));
        CHECK_OK(hotbed_pipeline_shortcut(p.pipeline, NULL));
    }
    CHECK_EQ(fake_plan_run(&p), 0);
    CHECK_EQ(p.given_back, 5);
    CHECK_STRING(fake_plan_order(&p), "a0 b0 a1 b1 a2 b2 a3 b3 a4 b4");
    fake_plan_close(&p);
}

static uint64_t place(const fake_plan *p, const char *task, uint64_t iteration) {
    uint32_t t = fake_plan_find(p, task);
    for (uint64_t i = 0; i < p->num_ran; i++)
        if (p->ran[i].task == t && p->ran[i].iteration == iteration)
            return i;
    hotbed_check_failed(
        __FILE__, __LINE__, "%s of %llu did not run", task, (unsigned long long)iteration);
}

/* Edges of both signs: b(i) comes after a(i+1), and a(i) after b(i-2). */
static void signed_distances_are_kept(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "a", .stage = 0, .stream = "ahead", .group = "ahead", .after = "b-2"},
        {.name = "b", .stage = 1, .after = "a a+1"},
        {.name = NULL}};
    for (uint64_t batches = 1; batches < 20; batches += 6) {
        fake_plan p;
        fake_plan_open(&p, backend, sketch);
        fake_plan_start(&p, batches);
        CHECK_EQ(fake_plan_run(&p), batches);
        for (uint64_t i = 0; i < batches; i++) {
            CHECK(place(&p, "a", i) < place(&p, "b", i));
            if (i + 1 < batches)
                CHECK(place(&p, "a", i + 1) < place(&p, "b", i));
            if (i >= 2)
                CHECK(place(&p, "b", i - 2) < place(&p, "a", i));
        }
        fake_plan_close(&p);
    }
}

/* Iteration i + depth begins only after iteration i is submitted and returned. */
static void buffer_sets_are_used_by_one_iteration_at_a_time(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    p.plan.depth = 4;
    fake_plan_start(&p, 40);
    for (uint64_t i = 0; i < 40; i++) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        (void)pthread_mutex_lock(&p.lock);
        for (uint64_t n = 0; n < p.num_ran; n++)
            CHECK(p.ran[n].iteration < i + 4);
        (void)pthread_mutex_unlock(&p.lock);
    }
    CHECK_EQ(fake_plan_run(&p), 0);
    for (uint64_t i = 0; i + 4 < 40; i++)
        for (uint64_t n = 0; n < p.num_ran; n++)
            if (p.ran[n].iteration == i + 4)
                CHECK(n > place(&p, "c", i));
    fake_plan_close(&p);
}

/* --- data through streams: TSan and wrong sums reveal a missing wait ------------------------ */

enum { WORDS = 4096, ROUNDS = 30 };

static hotbed_status produce(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    int byte = (int)(hotbed_iteration_number(iteration) % 200) + 1;
    return hotbed_fill(hotbed_iteration_value(iteration, 0), byte, WORDS, stream);
}

static hotbed_status move(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    return hotbed_copy(
        hotbed_iteration_value(iteration, 1), hotbed_iteration_value(iteration, 0), WORDS, stream);
}

/* Each stage copies the output of the previous one, on another stream and thread.  A gate delays
 * the producer, so that the consumer's thread arrives first. */
static void consumers_see_what_a_delayed_producer_made(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "produce", .stage = 0, .stream = "memcpy", .group = "io", .writes = "x"},
        {.name = "move", .stage = 1, .after = "produce", .reads = "x", .writes = "y"},
        {.name = NULL}};
    static const hotbed_value_options values[] = {
        {.name = "x", .bytes = WORDS}, {.name = "y", .bytes = WORDS}};
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, sketch);
    p.plan.values = values;
    p.plan.num_values = 2;
    p.selves[0].work = produce;
    p.selves[1].work = move;
    fake_plan_hold(&p, "produce", 1);
    fake_plan_start(&p, ROUNDS);
    CHECK_OK(hotbed_pipeline_fill(p.pipeline));
    fake_plan_await_waiting(&p, 1);
    fake_plan_release(&p);
    unsigned char *host = malloc((size_t)ROUNDS * WORDS);
    CHECK(host != NULL);
    hotbed_stream *stream = hotbed_pipeline_stream(p.pipeline);
    for (uint64_t i = 0; i < ROUNDS;
         i++) { /* results are copied in stream order, without a host wait */
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK_OK(
            hotbed_copy(host + i * WORDS, hotbed_iteration_value(iteration, 1), WORDS, stream));
    }
    CHECK_OK(hotbed_stream_sync(stream));
    for (uint64_t i = 0; i < (uint64_t)ROUNDS * WORDS; i++)
        if (host[i] != i / WORDS + 1)
            CHECK_EQ(host[i], i / WORDS + 1);
    CHECK_EQ(fake_plan_run(&p), 0);
    free(host);
    fake_plan_close(&p);
}

/* --- host memory of a buffer set --------------------------------------------------------------- */

enum { SETS = 2 };

static struct {
    fake_plan *p;
    uint64_t owner[SETS]; /* iteration + 1 whose data is in host memory of the set */
    uint64_t submitted, uses;
} host_sets;

static hotbed_status load(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    (void)self, (void)stream;
    uint64_t *owner = &host_sets.owner[hotbed_iteration_buffer_set(iteration)];
    __atomic_store_n(owner, hotbed_iteration_number(iteration) + 1, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

/* The first call stays on the stream until a thread sleeps until its buffer set is free, or until
 * the set has been taken without that. */
static uint64_t lag(void) {
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    const uint64_t number = host_sets.uses++;
    while (number == 0 && stats.set_waits == 0 &&
           __atomic_load_n(&host_sets.submitted, __ATOMIC_RELAXED) <= SETS) {
        (void)sched_yield();
        CHECK_OK(hotbed_pipeline_stats_read(host_sets.p->pipeline, &stats));
    }
    return number;
}

static void use_on_stream(void *argument) {
    const hotbed_iteration *iteration = argument;
    const uint64_t number = lag();
    const uint64_t *owner = &host_sets.owner[number % SETS];
    CHECK_EQ(__atomic_load_n(owner, __ATOMIC_RELAXED), number + 1);
    CHECK_EQ(hotbed_iteration_number(iteration), number);
    CHECK_EQ(hotbed_iteration_buffer_set(iteration), number % SETS);
    CHECK(hotbed_iteration_batch(iteration) == &host_sets.p->memory[number]);
}

static hotbed_status use(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    __atomic_add_fetch(&host_sets.submitted, 1, __ATOMIC_RELAXED);
    return hotbed_stream_call(stream, use_on_stream, iteration);
}

static void open_host_sets(fake_plan *p, hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "load", .stage = 0, .stream = "memcpy", .group = "io"},
        {.name = "use", .stage = 1, .after = "load"},
        {.name = NULL}};
    fake_plan_open(p, backend, sketch);
    memset(&host_sets, 0, sizeof host_sets);
    host_sets.p = p;
    p->plan.depth = SETS;
    p->selves[0].work = load;
    p->selves[1].work = use;
}

/* A task works on host memory of its buffer set at once, while the device may lag behind. */
static void host_memory_of_a_buffer_set_has_one_iteration(hotbed_backend backend) {
    fake_plan p;
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    open_host_sets(&p, backend);
    fake_plan_start(&p, 8);
    CHECK_EQ(fake_plan_run(&p), 8);
    CHECK_EQ(host_sets.uses, 8);
    CHECK_OK(hotbed_pipeline_stats_read(p.pipeline, &stats));
    CHECK(stats.set_waits > 0);
    fake_plan_close(&p);
}

static void lag_on_stream(void *argument) {
    (void)lag();
}

static hotbed_status use_later(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    (void)iteration, (void)self;
    __atomic_add_fetch(&host_sets.submitted, 1, __ATOMIC_RELAXED);
    return hotbed_stream_call(stream, lag_on_stream, NULL);
}

/* The events of a task are recorded again only when they have passed and the log has their times. */
static void device_times_of_a_stream_that_lags_are_logged(hotbed_backend backend) {
    fake_plan p;
    hotbed_log_entry log[64];
    uint64_t n = 0;
    open_host_sets(&p, backend);
    p.selves[1].work = use_later;
    p.options.timed = true;
    p.options.log_entries = 64;
    fake_plan_start(&p, 16);
    CHECK_EQ(fake_plan_run(&p), 16);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &n));
    CHECK_EQ(n, 32);
    for (uint64_t i = 0; i < n; i++)
        CHECK(log[i].device_end > 0.0);
    fake_plan_close(&p);
}

static void serial_runs_wait_for_their_buffer_set(hotbed_backend backend) {
    fake_plan p;
    hotbed_stream *stream = hotbed_test_stream(backend);
    open_host_sets(&p, backend);
    fake_plan_start(&p, 0);
    CHECK_EQ(fake_plan_run(&p), 0);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, &p.memory[i], stream, NULL));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(host_sets.uses, 4);
    fake_plan_close(&p);
    hotbed_stream_destroy(stream);
}

/* The order of turns does not depend on the timing of threads. */
static void turns_are_the_same_in_every_run(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "a", .stage = 0, .stream = "s0", .group = "g0", .ordered = true},
        {.name = "b", .stage = 0, .stream = "s1", .group = "g1", .ordered = true},
        {.name = "c", .stage = 1, .stream = "s2", .group = "g2", .after = "a", .ordered = true},
        {.name = "d", .stage = 1, .stream = "s3", .group = "g0", .after = "b"},
        {.name = NULL}};
    uint64_t hash = 0;
    for (int run = 0; run < 100; run++) {
        fake_plan p;
        hotbed_log_entry log[64];
        uint64_t n, turn = 0;
        fake_plan_open(&p, backend, sketch);
        fake_plan_start(&p, 8);
        CHECK_EQ(fake_plan_run(&p), 8);
        if (run == 0)
            hash = p.pipeline->order_hash;
        CHECK_EQ(p.pipeline->order_hash, hash);
        CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &n));
        CHECK_EQ(n, 32);
        for (uint64_t i = 0; i < n; i++) {
            CHECK(log[i].begin <= log[i].end);
            CHECK_EQ(log[i].turn != 0, log[i].task != 3);
            if (log[i].turn != 0)
                CHECK_EQ(log[i].turn, ++turn);
        }
        CHECK_EQ(turn, 24);
        fake_plan_close(&p);
    }
}

/* In the steady state the engine neither allocates nor waits for a stream. */
static void a_period_allocates_nothing_and_waits_for_no_stream(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, backend, three);
    fake_plan_start(&p, 60);
    for (int i = 0; i < 5; i++)
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 50; i++)
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(fake_plan_run(&p), 5);
    fake_plan_close(&p);
}

static void serial_runs_and_periods_take_turns(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    hotbed_stream *stream = hotbed_test_stream(backend);
    fake_plan_open(&p, backend, single);
    fake_plan_start(&p, 2);
    CHECK_EQ(fake_plan_run(&p), 2);
    p.num_ran = 0;
    for (uint64_t i = 2; i < 6; i++) {
        CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, &p.memory[i], stream, &iteration));
        CHECK_EQ(hotbed_iteration_number(iteration), i);
        CHECK(hotbed_iteration_batch(iteration) == &p.memory[i]);
    }
    CHECK_STRING(fake_plan_order(&p), "a2 b2 c2 a3 b3 c3 a4 b4 c4 a5 b5 c5");
    CHECK_STATUS(hotbed_pipeline_run_serial(p.pipeline, NULL, NULL, NULL), HOTBED_ERR_ARGUMENT);
    fake_plan_bind(&p, 2);
    p.num_ran = 0;
    CHECK_EQ(fake_plan_run(&p), 2);
    CHECK_STRING(fake_plan_order(&p), "a6 b6 a7 c6 b7 c7");
    fake_plan_close(&p);
    hotbed_stream_destroy(stream);
}

/* The periods that a drain or a progress enqueues after serial runs have no tasks. A drain waits for
 * the plan's streams, also if it has waited for them before, or if no period was enqueued. */
static void serial_runs_are_not_run_again(hotbed_backend backend) {
    for (uint64_t trained = 0; trained <= 2; trained += 2) {
        fake_plan p;
        const hotbed_iteration *iteration;
        fake_plan_open(&p, backend, single);
        fake_plan_start(&p, trained);
        hotbed_stream *stream = p.streams[0].stream;
        if (trained > 0)
            CHECK_EQ(fake_plan_run(&p), trained);
        p.num_ran = 0;
        for (uint64_t i = 0; i < 2; i++)
            CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, &p.memory[i], stream, NULL));
        hotbed_counters before = hotbed_test_counters();
        CHECK_OK(hotbed_pipeline_drain(p.pipeline));
        hotbed_counters after = hotbed_test_counters();
        CHECK_EQ(after.host_waits, before.host_waits + p.plan.num_streams);
        CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, &p.memory[2], stream, NULL));
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        CHECK(iteration == NULL);
        fake_plan_bind(&p, 1); /* its tasks run after all tasks that were enqueued before */
        CHECK_EQ(fake_plan_run(&p), 1);
        CHECK_STRING(
            fake_plan_order(&p), trained == 0 ? "a0 b0 c0 a1 b1 c1 a2 b2 c2 a3 b3 c3"
                                              : "a2 b2 c2 a3 b3 c3 a4 b4 c4 a5 b5 c5");
        fake_plan_close(&p);
    }
}

static void device_times_are_logged(hotbed_backend backend) {
    fake_plan p;
    hotbed_log_entry log[64];
    uint64_t n;
    fake_plan_open(&p, backend, three);
    p.options.timed = true;
    p.options.log_entries = 20; /* the log keeps the latest entries */
    fake_plan_start(&p, 9);
    CHECK_EQ(fake_plan_run(&p), 9);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &n));
    CHECK_EQ(n, 20);
    CHECK_EQ(log[19].task, 2);
    CHECK_EQ(log[19].iteration, 8);
    for (uint64_t i = 0; i < n; i++)
        CHECK(log[i].device_end >= log[i].device_begin);
    CHECK(log[19].device_end > 0.0);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 1, log, &n));
    CHECK_EQ(n, 1);
    CHECK_EQ(log[0].iteration, 8);
    fake_plan_close(&p);
}

/* --- ranks as threads ------------------------------------------------------------------------- */

enum { RANKS_MOST = 4 };

/* An agreement of all ranks on the smallest word. */
typedef struct rendezvous {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ranks, here;
    uint64_t round, least, result;
} rendezvous;

static hotbed_status least_word(void *self, uint64_t word, uint64_t *least) {
    rendezvous *m = self;
    (void)pthread_mutex_lock(&m->lock);
    uint64_t round = m->round;
    m->least = m->here == 0 || word < m->least ? word : m->least;
    if (++m->here == m->ranks) {
        m->result = m->least;
        m->here = 0;
        m->round++;
        (void)pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round)
        (void)pthread_cond_wait(&m->changed, &m->lock);
    *least = m->result;
    (void)pthread_mutex_unlock(&m->lock);
    return HOTBED_OK;
}

typedef struct member {
    rendezvous *all;
    const char *shortcut;
    uint64_t batches, iterations, empty, unused, hash;
    hotbed_backend backend;
    uint32_t rank;
    hotbed_end_policy end;
    hotbed_status status;
} member;

static void *train_rank(void *argument) {
    member *m = argument;
    fake_plan p;
    const hotbed_iteration *iteration;
    fake_plan_open(&p, m->backend, three);
    p.options.end = m->end;
    p.options.agreement = (hotbed_agreement){least_word, m->all};
    p.options.rank = (int)m->rank;
    CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline));
    m->status = m->shortcut == NULL ? HOTBED_OK : hotbed_pipeline_shortcut(p.pipeline, m->shortcut);
    fake_plan_bind(&p, m->batches);
    for (;;) {
        CHECK_OK(hotbed_pipeline_progress(p.pipeline, &iteration));
        if (iteration == NULL)
            break;
        m->iterations++;
        m->empty += hotbed_iteration_batch(iteration) == NULL;
    }
    m->unused = p.unused;
    m->hash = p.pipeline->order_hash;
    fake_plan_close(&p);
    return NULL;
}

static void run_ranks(rendezvous *all, member *members) {
    pthread_t threads[RANKS_MOST];
    for (uint32_t r = 0; r < all->ranks; r++)
        CHECK_EQ(pthread_create(&threads[r], NULL, train_rank, &members[r]), 0);
    for (uint32_t r = 0; r < all->ranks; r++)
        CHECK_EQ(pthread_join(threads[r], NULL), 0);
}

/* Ranks with different numbers of batches end together, with the same order of turns. */
static void unequal_batch_counts_end_on_all_ranks(hotbed_backend backend) {
    static const uint32_t sizes[] = {1, 2, 4};
    for (int n = 0; n < 3; n++)
        for (int last = 0; last < 2; last++) {
            rendezvous all = {
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .changed = PTHREAD_COND_INITIALIZER,
                .ranks = sizes[n]};
            member members[RANKS_MOST];
            memset(members, 0, sizeof members);
            for (uint32_t r = 0; r < sizes[n]; r++)
                members[r] = (member){
                    .all = &all,
                    .backend = backend,
                    .rank = r,
                    .batches = 3 + 2 * r,
                    .end = last ? HOTBED_END_LAST : HOTBED_END_FIRST};
            run_ranks(&all, members);
            uint64_t expected = last ? 3 + 2 * (sizes[n] - 1) : 3;
            for (uint32_t r = 0; r < sizes[n]; r++) {
                CHECK_EQ(members[r].iterations, expected);
                CHECK_EQ(members[r].empty, last ? expected - members[r].batches : 0);
                CHECK_EQ(members[r].unused, !last && r > 0);
                CHECK_EQ(members[r].hash, members[0].hash);
            }
        }
}

/* If ranks name different tasks to skip, all refuse, and nothing changes. */
static void ranks_agree_on_shortcuts(hotbed_backend backend) {
    static const char *const named[3][2] = {{"a", "a"}, {"a", "a b"}, {"b", "nothing"}};
    for (int n = 0; n < 3; n++) {
        rendezvous all = {
            .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .ranks = 2};
        member members[RANKS_MOST];
        memset(members, 0, sizeof members);
        for (uint32_t r = 0; r < 2; r++)
            members[r] = (member){
                .all = &all,
                .backend = backend,
                .rank = r,
                .batches = 4,
                .shortcut = named[n][r],
                .end = HOTBED_END_FIRST};
        run_ranks(&all, members);
        static const hotbed_status expected[3][2] = {
            {HOTBED_OK, HOTBED_OK},
            {HOTBED_ERR_COMM, HOTBED_ERR_COMM},
            {HOTBED_ERR_COMM, HOTBED_ERR_ARGUMENT}};
        for (uint32_t r = 0; r < 2; r++) {
            CHECK_EQ(members[r].status, expected[n][r]);
            CHECK_EQ(members[r].iterations, 4);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(periods_run_what_the_stages_say)},
    {TEST(every_task_runs_once_a_batch)},
    {TEST(m_batches_give_m_results_then_the_end)},
    {TEST(a_drain_leaves_nothing_in_flight)},
    {TEST(calls_between_iterations_do_not_end_training)},
    {TEST(signed_distances_are_kept)},
    {TEST(buffer_sets_are_used_by_one_iteration_at_a_time)},
    {TEST(consumers_see_what_a_delayed_producer_made)},
    {TEST(host_memory_of_a_buffer_set_has_one_iteration)},
    {TEST(device_times_of_a_stream_that_lags_are_logged)},
    {TEST(serial_runs_wait_for_their_buffer_set)},
    {TEST(turns_are_the_same_in_every_run)},
    {TEST(a_period_allocates_nothing_and_waits_for_no_stream)},
    {TEST(serial_runs_and_periods_take_turns)},
    {TEST(serial_runs_are_not_run_again)},
    {TEST(device_times_are_logged)},
    {TEST(unequal_batch_counts_end_on_all_ranks)},
    {TEST(ranks_agree_on_shortcuts)},
    {NULL, NULL},
};
