/* tests/pipeline/test_train_ranks.c - sharded collections with every plan, on 1, 2 and 4 ranks.
 *
 * On each rank every plan gives the bytes of the plain loop. */
#include "pipeline/state.h"
#include "tests/pipeline/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_barrier_t rendezvous; /* of all ranks */

/* --- bodies ----------------------------------------------------------------------------------- */

static void train_by_plan(rank *r) {
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    CHECK_OK(rank_run(r, train, ranks_batches()));
    CHECK_EQ(r->iterations, ranks_batches());
    r->order = hotbed_train_pipeline(train)->order_hash;
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    CHECK_EQ(rank_pinned(r), 0);
    rank_close(r);
}

static void check_plans(hotbed_backend backend, hotbed_plan exchange, bool all) {
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        const char *plan;
        ranks_run(backend, *size, exchange, NULL, rank_train_plainly, &t);
        for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL; p++)
            if ((all && !hotbed_test_is_small()) || strcmp(plan, "prefetch") == 0 ||
                strcmp(plan, "sparse-dist") == 0) {
                ranks_run(backend, *size, exchange, plan, train_by_plan, &t);
                for (uint32_t r = 1; r < *size; r++) /* the order of turns was the same */
                    CHECK_EQ(t.ranks[r].order, t.ranks[0].order);
            }
    }
    ranks_close(&t);
}

static void every_plan_gives_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_FIXED, true);
}

static void two_phase_exchanges_give_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_TWO_PHASE, false);
}

static void one_sided_exchanges_give_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_ONE_SIDED, false);
}

/* The jagged plans with a shuffle, which balances samples over the ranks between their other exchanges. */
static void shuffled_batches_give_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    static const char *const plans[] = {"jagged-none",     "jagged-sparse-dist",
                                        "jagged-prefetch", "jagged-prefetch-async",
                                        "sw-serial",       "sw-pipelined"};
    static ranks t;
    ranks_open(&t);
    t.shuffled = true;
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        for (int p = 0; p < 6; p += hotbed_test_is_small() ? 3 : 1)
            ranks_run(backend, *size, HOTBED_PLAN_FIXED, plans[p], train_by_plan, &t);
    }
    ranks_close(&t);
}

/* Rank r has 5 + 2 r batches; ranks without more batches continue with empty ones. */
static void train_unequally(rank *r) {
    hotbed_pipeline_options options;
    hotbed_stream *stream;
    uint64_t calls, digest, least = 0;
    rank_open(r);
    hotbed_comm_agreement *agreement = rank_agree(r, &stream);
    for (int last = 0; last < 2; last++) {
        options = (hotbed_pipeline_options){.size = sizeof options};
        options.agreement = hotbed_comm_agreement_of(agreement);
        options.end = last ? HOTBED_END_LAST : HOTBED_END_FIRST;
        hotbed_train *train = rank_train(r, &options);
        r->next = 0;
        r->iterations = 0;
        CHECK_OK(rank_run(r, train, 5 + 2 * r->number));
        CHECK_EQ(r->iterations, last ? 5 + 2 * (r->all->size - 1) : 5);
        hotbed_train_destroy(train);
        /* All ranks made the same calls. */
        CHECK_OK(hotbed_comm_log_digest(r->comm, &calls, &digest));
        CHECK_OK(options.agreement.least(options.agreement.self, digest, &least));
        CHECK_EQ(least, digest);
        CHECK_OK(options.agreement.least(options.agreement.self, ~digest, &least));
        CHECK_EQ(least, ~digest);
    }
    CHECK_EQ(rank_pinned(r), 0);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
}

static void ranks_with_unequal_batch_counts_end_together(hotbed_backend backend) {
    static const char *const plans[] = {"prefetch", "jagged-prefetch-async", "sw-pipelined"};
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++)
        for (int p = hotbed_test_is_small() ? 2 : 0; p < 3; p++)
            ranks_run(backend, *size, HOTBED_PLAN_FIXED, plans[p], train_unequally, &t);
    ranks_close(&t);
}

/* Evaluate other batches between steps, and cancel the evaluation in the middle. */
static void train_and_evaluate(rank *r) {
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = rank_loader(r);
    const hotbed_iteration *iteration;
    const uint64_t before = hotbed_test_is_small() ? 2 : 6;
    CHECK_OK(rank_run(r, train, before));
    CHECK_OK(hotbed_train_set_training(train, false));
    CHECK(!hotbed_sharded_training(r->collections[1]));
    r->limit = ranks_batches();
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (uint64_t i = 0; i < before / 2; i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    CHECK_OK(hotbed_pipeline_drain(pipeline));
    CHECK_EQ(rank_pinned(r), 0);
    CHECK_OK(hotbed_train_set_training(train, true));
    r->next = before;
    CHECK_OK(rank_run(r, train, ranks_batches()));
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    rank_close(r);
}

static void evaluation_between_steps_changes_nothing(hotbed_backend backend) {
    static const char *const plans[] = {"none", "sparse-dist", "prefetch", "sw-pipelined"};
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        for (int p = 0; p < 4; p += hotbed_test_is_small() ? 3 : 1)
            ranks_run(backend, *size, HOTBED_PLAN_FIXED, plans[p], train_and_evaluate, &t);
    }
    ranks_close(&t);
}

/* In the steady state no step of any rank allocates or waits on the host: the counters cover all ranks. */
static void train_without_allocations(rank *r) {
    const hotbed_iteration *iteration;
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = rank_loader(r);
    r->limit = UINT64_MAX;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (int i = 0; i < (hotbed_test_is_small() ? 8 : 12); i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    CHECK_OK(hotbed_stream_sync(hotbed_pipeline_stream(pipeline))); /* queues are bounded */
    (void)pthread_barrier_wait(&rendezvous);
    hotbed_counters before = hotbed_test_counters();
    (void)pthread_barrier_wait(&rendezvous);
    for (int i = 0; i < (hotbed_test_is_small() ? 2 : 8); i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    (void)pthread_barrier_wait(&rendezvous);
    hotbed_counters after = hotbed_test_counters();
    (void)pthread_barrier_wait(&rendezvous);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_OK(hotbed_pipeline_drain(pipeline));
    hotbed_train_destroy(train);
    rank_close(r);
}

static void steps_of_ranks_allocate_nothing(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        CHECK_EQ(pthread_barrier_init(&rendezvous, NULL, *size), 0);
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "prefetch", train_without_allocations, &t);
        CHECK_EQ(pthread_barrier_destroy(&rendezvous), 0);
    }
    ranks_close(&t);
}

/* --- schedules -------------------------------------------------------------------------------- */

/* A schedule from a synthetic profile, in which the tasks that run ahead take as long as the model;
 * the same on all ranks. */
static hotbed_schedule *find_schedule(rank *r) {
    hotbed_profile profile = {.num_tasks = 11, .baseline = 4.0};
    hotbed_schedule *schedule;
    hotbed_train *train = rank_train(r, NULL);
    for (uint32_t t = 1; t < 9; t++)
        profile.tasks[t].exposed = profile.tasks[t].alone = 1.0 + 0.25 * t;
    CHECK_OK(hotbed_train_schedule(train, &profile, 3, &schedule));
    hotbed_train_destroy(train);
    return schedule;
}

static void train_by_each_candidate(rank *r) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_train *train;
    rank_open(r);
    hotbed_schedule *schedule = find_schedule(r);
    options.plan = r->all->plan;
    options.backend = r->all->backend;
    options.device = r->device;
    const uint32_t next = hotbed_test_is_small() ? 4 : 1;
    for (uint32_t c = 0; c < hotbed_schedule_candidates(schedule); c += next) {
        rank_close(r);
        rank_open(r); /* with the initial rows */
        r->next = 0;
        CHECK_OK(hotbed_schedule_take(schedule, c));
        options.steps = hotbed_schedule_steps(schedule, &options.num_steps);
        CHECK_OK(hotbed_train_create(&r->trainer, &options, &train));
        CHECK_OK(rank_run(r, train, ranks_batches()));
        CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
        hotbed_train_destroy(train);
        CHECK_EQ(rank_pinned(r), 0);
    }
    hotbed_schedule_destroy(schedule);
    rank_close(r);
}

static void every_candidate_gives_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "sw-serial", train_by_each_candidate, &t);
    }
    ranks_close(&t);
}

typedef struct own_clock {
    const rank *r;
    uint32_t calls;
} own_clock;

/* A clock that advances by a second each time it is read, on rank 1 by two, and so on. */
static double read_slower_clock(void *self) {
    own_clock *clock = self;
    return (double)(1 + clock->r->number) * clock->calls++;
}

static void profile_on_a_rank(rank *r) {
    own_clock clock = {.r = r};
    static hotbed_profile profiles[RANKS_MOST];
    hotbed_profile *profile = &profiles[r->number];
    const double most = r->all->size; /* a second on the slowest rank's clock */
    void *batches[2] = {NULL, NULL};
    hotbed_pipeline_options pipeline = {.size = sizeof pipeline};
    hotbed_profile_options options = {.size = sizeof options};
    hotbed_stream *stream;
    rank_open(r);
    hotbed_comm_agreement *agreement = rank_agree(r, &stream);
    pipeline.agreement = hotbed_comm_agreement_of(agreement);
    hotbed_train *train = rank_train(r, &pipeline);
    for (int b = 0; b < 2; b++)
        batches[b] = &r->batches[b];
    options.rounds = 1;
    options.warmup = 1;
    options.iterations = 1;
    options.batches = batches;
    options.num_batches = 2;
    options.stream = hotbed_train_stream(train, "default");
    options.now = read_slower_clock;
    options.now_self = &clock;
    CHECK_OK(hotbed_profile_run(hotbed_train_pipeline(train), &options, profile));
    CHECK_NEAR(profile->baseline, most, 1e-9);
    for (uint32_t t = 0; t < profile->num_tasks; t++) {
        CHECK_NEAR(profile->tasks[t].alone, most, 1e-9);
        CHECK_NEAR(profile->tasks[t].exposed, profile->tasks[t].skipped ? 0.0 : most, 1e-9);
    }
    hotbed_train_destroy(train);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
}

static void ranks_have_the_same_profile(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++)
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "sw-serial", profile_on_a_rank, &t);
    ranks_close(&t);
}

/* A clock by which measurement c takes 1 second on rank c and 3 on the others, and 2 on all ranks
 * for c >= size. */
static double read_own_clock(void *self) {
    own_clock *clock = self;
    uint32_t call = clock->calls++, candidate = call / 2;
    if (call % 2 == 0)
        return 0.0;
    if (candidate >= clock->r->all->size)
        return 2.0;
    return candidate == clock->r->number ? 1.0 : 3.0;
}

static void tune_on_a_rank(rank *r) {
    own_clock clock = {.r = r};
    double seconds[HOTBED_SCHEDULE_CANDIDATES_MOST];
    hotbed_train_options options = {.size = sizeof options};
    hotbed_tune_options tune = {.size = sizeof tune};
    hotbed_stream *stream;
    rank_open(r);
    hotbed_comm_agreement *agreement = rank_agree(r, &stream);
    hotbed_schedule *schedule = find_schedule(r);
    CHECK(hotbed_schedule_candidates(schedule) > RANKS_MOST);
    options.plan = r->all->plan;
    options.backend = r->all->backend;
    options.device = r->device;
    options.pipeline = (hotbed_pipeline_options){.size = sizeof options.pipeline};
    options.pipeline.agreement = hotbed_comm_agreement_of(agreement);
    tune.warmup = 1;
    tune.iterations = 1;
    tune.rounds = 1;
    tune.loader = rank_loader(r);
    tune.now = read_own_clock;
    tune.now_self = &clock;
    r->limit = UINT64_MAX;
    CHECK_OK(hotbed_train_tune(&r->trainer, &options, &tune, schedule, seconds));
    CHECK_EQ(hotbed_schedule_taken(schedule), r->all->size == 1 ? 0 : r->all->size);
    CHECK_NEAR(seconds[0], r->all->size == 1 ? 1.0 : 3.0, 1e-9); /* of the slowest rank */
    CHECK_EQ(rank_pinned(r), 0);
    hotbed_schedule_destroy(schedule);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
}

static void ranks_take_the_same_candidate(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++)
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "sw-serial", tune_on_a_rank, &t);
    ranks_close(&t);
}

/* --- failing ---------------------------------------------------------------------------------- */

static void revoke(void *self) {
    hotbed_comm_abort(self, NULL, NULL);
}

/* A task fails on the last rank; the others learn of it through the communicator, and name their own task. */
static void train_to_a_failure(rank *r) {
    hotbed_pipeline_options options = {.size = sizeof options};
    rank_open(r);
    r->fails_at = r->number == r->all->size - 1 ? 4 : 0;
    options.revoke = revoke;
    options.revoke_self = r->comm;
    hotbed_train *train = rank_train(r, &options);
    r->status = rank_run(r, train, ranks_batches());
    (void)snprintf(r->text, sizeof r->text, "%s", hotbed_last_error());
    hotbed_train_destroy(train);
    rank_close(r);
}

static void a_failure_ends_all_ranks(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    t.aborts = true;
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "jagged-prefetch", train_to_a_failure, &t);
        for (uint32_t r = 0; r < *size; r++) {
            bool failed_here = r == *size - 1;
            CHECK_EQ(t.ranks[r].status, failed_here ? HOTBED_ERR_RANGE : HOTBED_ERR_COMM);
            if (failed_here)
                CHECK(strstr(t.ranks[r].text, "task loss of iteration 3: the loss is nan") != NULL);
        }
    }
    ranks_close(&t);
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_plan_gives_the_bytes_of_the_plain_loop)},
    {TEST(two_phase_exchanges_give_the_bytes_of_the_plain_loop)},
    {TEST(one_sided_exchanges_give_the_bytes_of_the_plain_loop)},
    {TEST(shuffled_batches_give_the_bytes_of_the_plain_loop)},
    {TEST(ranks_with_unequal_batch_counts_end_together)},
    {TEST(evaluation_between_steps_changes_nothing)},
    {TEST(steps_of_ranks_allocate_nothing)},
    {TEST(every_candidate_gives_the_bytes_of_the_plain_loop)},
    {TEST(ranks_have_the_same_profile)},
    {TEST(ranks_take_the_same_candidate)},
    {TEST(a_failure_ends_all_ranks)},
    {NULL, NULL},
};
