/* tests/pipeline/test_train_ranks.c - sharded collections under every plan, on 1, 2 and 4 ranks.
 *
 * Every plan gives the bytes of the plain loop, rank by rank.
 */
#include "tests/pipeline/team.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_barrier_t meeting; /* of a team's ranks */

/* --- bodies ----------------------------------------------------------------------------------- */

static void *train_by_plan(void *argument) {
    rank *r = argument;
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    CHECK_OK(rank_run(r, train, BATCHES));
    CHECK_EQ(r->iterations, BATCHES);
    r->order = hotbed_pipeline_order_hash(hotbed_train_pipeline(train));
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    CHECK_EQ(rank_pinned(r), 0);
    rank_close(r);
    return NULL;
}

static const uint32_t sizes[] = {1, 2, 4};

static void check_plans(hotbed_backend backend, hotbed_plan exchange, bool all) {
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        const char *plan;
        team_run(backend, sizes[n], exchange, NULL, rank_train_plainly, &t);
        for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL; p++)
            if (all || strcmp(plan, "prefetch") == 0 || strcmp(plan, "sparse-dist") == 0) {
                team_run(backend, sizes[n], exchange, plan, train_by_plan, &t);
                for (uint32_t r = 1; r < sizes[n]; r++) /* turns were the same */
                    CHECK_EQ(t.ranks[r].order, t.ranks[0].order);
            }
    }
    team_close(&t);
}

static void every_plan_gives_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_FIXED, true);
}

static void so_with_sizes_that_are_waited_for(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_TWO_PHASE, false);
}

static void and_with_one_sided_exchanges(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_ONE_SIDED, false);
}

/* The jagged plans with a shuffle: balanced over the ranks, in turn with all else that they
 * exchange. */
static void shuffled_batches_give_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    static const char *const plans[] = {"jagged-none",     "jagged-sparse-dist",
                                        "jagged-prefetch", "jagged-prefetch-async",
                                        "sw-serial",       "sw-pipelined"};
    static team t;
    team_open(&t);
    t.shuffled = true;
    for (int n = 0; n < 3; n++) {
        team_run(backend, sizes[n], HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        for (int p = 0; p < 6; p++)
            team_run(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_by_plan, &t);
    }
    team_close(&t);
}

/* Rank r has 5 + 2 r batches; the ranks without go on with empty ones. */
static void *train_unequally(void *argument) {
    rank *r = argument;
    hotbed_comm_agreement *agreement;
    hotbed_pipeline_options options;
    hotbed_stream *stream;
    uint64_t calls, digest, least = 0;
    rank_open(r);
    CHECK_OK(hotbed_stream_create(r->all->backend, 0, &stream));
    CHECK_OK(hotbed_comm_agreement_create(r->agreeing, stream, &agreement));
    for (int last = 0; last < 2; last++) {
        hotbed_pipeline_options_init(&options);
        options.agreement = hotbed_comm_agreement_of(agreement);
        options.end = last ? HOTBED_END_LAST : HOTBED_END_FIRST;
        hotbed_train *train = rank_train(r, &options);
        r->next = 0;
        r->iterations = 0;
        CHECK_OK(rank_run(r, train, 5 + 2 * r->number));
        CHECK_EQ(r->iterations, last ? 5 + 2 * (r->all->size - 1) : 5);
        hotbed_train_destroy(train);
        CHECK_OK(hotbed_comm_log_digest(r->comm, &calls, &digest)); /* all did the same */
        CHECK_OK(options.agreement.least(options.agreement.self, digest, &least));
        CHECK_EQ(least, digest);
        CHECK_OK(options.agreement.least(options.agreement.self, ~digest, &least));
        CHECK_EQ(least, ~digest);
    }
    CHECK_EQ(rank_pinned(r), 0);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
    return NULL;
}

static void unequal_ranks_end_together(hotbed_backend backend) {
    static const char *const plans[] = {"prefetch", "jagged-prefetch-async", "sw-pipelined"};
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++)
        for (int p = 0; p < 3; p++)
            team_run(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_unequally, &t);
    team_close(&t);
}

/* Evaluation of other batches in between, given up in the middle. */
static void *train_and_evaluate(void *argument) {
    rank *r = argument;
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = rank_loader(r);
    const hotbed_iteration *iteration;
    CHECK_OK(rank_run(r, train, 6));
    CHECK_OK(hotbed_train_set_training(train, false));
    CHECK(!hotbed_sharded_training(r->collections[1]));
    r->limit = BATCHES;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (int i = 0; i < 3; i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    CHECK_OK(hotbed_pipeline_drain(pipeline));
    CHECK_EQ(rank_pinned(r), 0);
    CHECK_OK(hotbed_train_set_training(train, true));
    r->next = 6;
    CHECK_OK(rank_run(r, train, BATCHES));
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    rank_close(r);
    return NULL;
}

static void evaluation_in_between_changes_nothing(hotbed_backend backend) {
    static const char *const plans[] = {"none", "sparse-dist", "prefetch", "sw-pipelined"};
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        team_run(backend, sizes[n], HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        for (int p = 0; p < 4; p++)
            team_run(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_and_evaluate, &t);
    }
    team_close(&t);
}

/* Once warm, no step of any rank allocates or waits on the host: counters are of all of them. */
static void *train_without_allocations(void *argument) {
    rank *r = argument;
    hotbed_counters before, after;
    const hotbed_iteration *iteration;
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = rank_loader(r);
    r->limit = UINT64_MAX;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (int i = 0; i < 12; i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    CHECK_OK(hotbed_stream_sync(hotbed_pipeline_stream(pipeline))); /* queues have an end */
    (void)pthread_barrier_wait(&meeting);
    hotbed_counters_read(&before);
    (void)pthread_barrier_wait(&meeting);
    for (int i = 0; i < 8; i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    (void)pthread_barrier_wait(&meeting);
    hotbed_counters_read(&after);
    (void)pthread_barrier_wait(&meeting);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_OK(hotbed_pipeline_drain(pipeline));
    hotbed_train_destroy(train);
    rank_close(r);
    return NULL;
}

static void steps_of_ranks_allocate_nothing(hotbed_backend backend) {
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        CHECK_EQ(pthread_barrier_init(&meeting, NULL, sizes[n]), 0);
        team_run(backend, sizes[n], HOTBED_PLAN_FIXED, "prefetch", train_without_allocations, &t);
        CHECK_EQ(pthread_barrier_destroy(&meeting), 0);
    }
    team_close(&t);
}

static void revoke(void *self) {
    hotbed_comm_abort(self);
}

/* A task fails on the last rank; the others learn of it by the communicator, and name what they
 * were at. */
static void *train_to_a_failure(void *argument) {
    rank *r = argument;
    hotbed_pipeline_options options;
    rank_open(r);
    r->fails_at = r->number == r->all->size - 1 ? 4 : 0;
    hotbed_pipeline_options_init(&options);
    options.revoke = revoke;
    options.revoke_self = r->comm;
    hotbed_train *train = rank_train(r, &options);
    r->status = rank_run(r, train, BATCHES);
    (void)snprintf(r->text, sizeof r->text, "%s", hotbed_last_error());
    hotbed_train_destroy(train);
    rank_close(r);
    return NULL;
}

static void a_failure_ends_all_ranks(hotbed_backend backend) {
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        team_run(backend, sizes[n], HOTBED_PLAN_FIXED, "jagged-prefetch", train_to_a_failure, &t);
        for (uint32_t r = 0; r < sizes[n]; r++) {
            bool failed_here = r == sizes[n] - 1;
            CHECK_EQ(t.ranks[r].status, failed_here ? HOTBED_ERR_RANGE : HOTBED_ERR_COMM);
            if (failed_here)
                CHECK(strstr(t.ranks[r].text, "task loss of iteration 3: the loss is nan") != NULL);
        }
    }
    team_close(&t);
}

const hotbed_test hotbed_tests[] = {
    {"every_plan_gives_the_bytes_of_the_plain_loop", every_plan_gives_the_bytes_of_the_plain_loop},
    {"so_with_sizes_that_are_waited_for", so_with_sizes_that_are_waited_for},
    {"and_with_one_sided_exchanges", and_with_one_sided_exchanges},
    {"shuffled_batches_give_the_bytes_of_the_plain_loop",
     shuffled_batches_give_the_bytes_of_the_plain_loop},
    {"unequal_ranks_end_together", unequal_ranks_end_together},
    {"evaluation_in_between_changes_nothing", evaluation_in_between_changes_nothing},
    {"steps_of_ranks_allocate_nothing", steps_of_ranks_allocate_nothing},
    {"a_failure_ends_all_ranks", a_failure_ends_all_ranks},
    {NULL, NULL},
};
