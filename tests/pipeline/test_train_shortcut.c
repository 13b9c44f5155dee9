/* tests/pipeline/test_train_shortcut.c - replayed tasks of train pipelines: contexts, rows,
 * gradients, refusals.
 *
 * Each buffer set always has the same batches, so a replayed task must leave the same state as one that
 * runs: the bytes of the trained rows are equal. */
#include "tests/pipeline/example.h"

#include "hotbed/profile.h"
#include "pipeline/train.h"

#include <stdio.h>
#include <string.h>

enum { TABLES = EXAMPLE_MODULES * EXAMPLE_KEYS * EXAMPLE_DIM, ROUNDS = 5 };

/* A loader whose batch number i is batch i % period. */
typedef struct rounds {
    example *s;
    uint64_t next, end, period;
} rounds;

static hotbed_status next_batch(void *self, void **batch, bool *end) {
    rounds *r = self;
    *end = r->next == r->end;
    if (!*end)
        *batch = &r->s->batches[r->next++ % r->period];
    return HOTBED_OK;
}

static void train_rounds(example *s, hotbed_train *train, uint64_t n) {
    const uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    rounds r = {.s = s, .end = n * depth, .period = depth};
    const hotbed_loader loader = {.next = next_batch, .self = &r};
    CHECK_OK(hotbed_pipeline_bind(hotbed_train_pipeline(train), &loader));
    CHECK_EQ(example_run(train), n * depth);
}

static void skip(hotbed_train *train, const char *tasks) {
    CHECK_OK(hotbed_pipeline_shortcut(hotbed_train_pipeline(train), tasks));
}

/* Rows after some rounds: the first runs all tasks, the others skip some. */
static void train_skipping(
    hotbed_backend backend, const char *plan, uint32_t more, const char *skipped, float *rows,
    example *s) {
    example_open(s, backend);
    s->with_postproc = true;
    hotbed_train *train = example_train(s, plan, 0);
    uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train)) + more;
    hotbed_train_destroy(train);
    train = example_train(s, plan, depth);
    train_rounds(s, train, 1);
    skip(train, skipped);
    train_rounds(s, train, ROUNDS - 2);
    skip(train, NULL);
    CHECK_EQ(example_pinned(s), 0); /* snapshots have released their pins */
    train_rounds(s, train, 1);
    hotbed_train_destroy(train);
    example_rows(s, rows);
    CHECK_EQ(example_pinned(s), 0);
    example_close(s);
}

/* For each plan, tasks whose results depend on the batch only. */
typedef struct skippable {
    const char *plan;
    const char *tasks[7]; /* one task at a time; the last entry has all of them */
} skippable;

static const skippable lists[] = {
    {"sparse-dist",
     {"copy_batch_to_gpu", "start_sparse_data_dist", "wait_sparse_data_dist", "zero_grad optimizer",
      "copy_batch_to_gpu start_sparse_data_dist wait_sparse_data_dist wait_for_batch"}},
    {"prefetch",
     {"copy_batch_to_gpu", "start_sparse_data_dist", "wait_sparse_data_dist", "prefetch",
      "copy_batch_to_gpu prefetch",
      "copy_batch_to_gpu start_sparse_data_dist wait_sparse_data_dist prefetch"}},
    {"jagged-prefetch-async",
     {"start_shuffle finish_shuffle", "prefetch",
      "copy_batch_to_gpu start_shuffle finish_shuffle start_sparse_data_dist "
      "wait_sparse_data_dist prefetch loss"}},
    {"sw-serial",
     {"H2DAndShuffle", "EmbInputDistStart", "EmbInputDistWait", "EmbPrefetch", "LossPostprocess",
      "H2DAndShuffle EmbInputDistStart EmbInputDistWait EmbPrefetch"}},
    {"sw-pipelined",
     {"EmbPrefetch", "EmbInputDistStart EmbPrefetch",
      "H2DAndShuffle EmbInputDistStart EmbInputDistWait EmbPrefetch"}},
};

static void a_skipped_stage_gives_the_same_bytes(hotbed_backend backend) {
    static float expected[TABLES], rows[TABLES];
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (uint32_t more = 0; more < (hotbed_test_is_small() ? 1 : 2); more++) {
            example s;
            train_skipping(backend, lists[l].plan, more, NULL, expected, &s);
            for (int t = 0; lists[l].tasks[t] != NULL; t++) {
                if (hotbed_test_is_small() && lists[l].tasks[t + 1] != NULL)
                    continue;
                train_skipping(backend, lists[l].plan, more, lists[l].tasks[t], rows, &s);
                CHECK_BYTES(rows, expected, sizeof rows);
            }
        }
}

/* A skipped task runs once in each buffer set; skipping the start skips postprocs too. */
static void a_task_is_captured_once_in_each_buffer_set(hotbed_backend backend) {
    example s;
    example_open(&s, backend);
    s.with_postproc = true;
    hotbed_train *train = example_train(&s, "prefetch", 0);
    const uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    skip(train, "copy_batch_to_gpu start_sparse_data_dist wait_sparse_data_dist prefetch");
    train_rounds(&s, train, ROUNDS);
    for (int m = 0; m < EXAMPLE_MODULES; m++) {
        CHECK_EQ(s.modules[m].starts, depth);
        CHECK_EQ(s.modules[m].waits, depth);
        CHECK_EQ(s.modules[m].prefetches, depth);
        CHECK_EQ(s.modules[m].computes, ROUNDS * depth);
        CHECK_EQ(s.modules[m].contexts, depth); /* nothing else was started */
    }
    CHECK_EQ(s.postproc_runs, depth);
    hotbed_pipeline_stats_read(hotbed_train_pipeline(train), &stats);
    CHECK_EQ(stats.replays, 4 * (ROUNDS - 1) * depth);
    hotbed_train_destroy(train);
    CHECK_EQ(example_pinned(&s), 0);
    example_close(&s);
}

/* A task that runs beside a replayed one uses its own contexts, which are released again. */
static void contexts_of_snapshots_are_released_with_them(hotbed_backend backend) {
    example s;
    example_open(&s, backend);
    hotbed_train *train = example_train(&s, "prefetch", 0);
    const uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    skip(train, "wait_sparse_data_dist");
    train_rounds(&s, train, ROUNDS);
    CHECK_EQ(s.modules[0].contexts, 2 * depth);
    CHECK(s.modules[0].cancels > 0); /* contexts that were started in vain */
    skip(train, "prefetch wait_sparse_data_dist");
    train_rounds(&s, train, ROUNDS);
    CHECK_EQ(s.modules[0].contexts, 3 * depth);
    const rounds endless = {.s = &s, .end = UINT64_MAX, .period = depth};
    rounds r = endless;
    const hotbed_loader loader = {.next = next_batch, .self = &r};
    const hotbed_iteration *iteration;
    CHECK_OK(hotbed_pipeline_bind(hotbed_train_pipeline(train), &loader));
    for (int i = 0; i < 5; i++) /* destroy the pipeline with batches in flight */
        CHECK_OK(hotbed_pipeline_progress(hotbed_train_pipeline(train), &iteration));
    hotbed_train_destroy(train);
    CHECK_EQ(example_pinned(&s), 0);
    example_close(&s);
}

/* A replayed forward gives rows zero gradients; training continues afterwards as if it had not been
 * replayed. */
static void a_replayed_forward_trains_nothing(hotbed_backend backend) {
    static const char *const names[][2] = {
        {"sparse-dist", "forward"},  {"prefetch", "forward"},        {"jagged-prefetch", "forward"},
        {"sw-serial", "EmbForward"}, {"sw-pipelined", "EmbForward"},
    };
    static float expected[TABLES], rows[TABLES], result[EXAMPLE_MODULES * EXAMPLE_ROWS];
    for (size_t p = 0; p < sizeof names / sizeof *names; p += hotbed_test_is_small() ? 4 : 1) {
        example s;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, names[p][0], 0);
        train_rounds(&s, train, 2);
        example_rows(&s, expected);
        memcpy(result, s.results[0], sizeof result);
        train_rounds(&s, train, 2);
        hotbed_train_destroy(train);
        example_close(&s);
        example_open(&s, backend);
        train = example_train(&s, names[p][0], 0);
        train_rounds(&s, train, 1);
        skip(train, names[p][1]);
        train_rounds(&s, train, 1); /* captured and trained */
        example_rows(&s, rows);
        CHECK_BYTES(rows, expected, sizeof rows);
        uint64_t backwards = s.modules[0].backwards;
        for (int more = 0; more < 2; more++) {
            train_rounds(&s, train, 2);
            example_rows(&s, rows);
            CHECK_BYTES(rows, expected, sizeof rows);
            CHECK_BYTES(s.results[0], result, sizeof result);
        }
        CHECK(s.modules[0].backwards > backwards); /* they run, with zeros */
        skip(train, NULL);
        train_rounds(&s, train, 2);
        float after[TABLES];
        example_rows(&s, after);
        hotbed_train_destroy(train);
        example_close(&s);
        example_open(&s, backend);
        train = example_train(&s, names[p][0], 0);
        train_rounds(&s, train, 4);
        example_rows(&s, expected);
        CHECK_BYTES(after, expected, sizeof after);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

/* --- profiles --------------------------------------------------------------------------------- */

/* A clock that advances with each call of the modules and of the trainer. */
static double calls_so_far(void *self) {
    const example *s = self;
    const example_module *m = &s->modules[0];
    return 1.0 * (double)m->starts + 0.5 * (double)m->waits + 3.0 * (double)m->prefetches +
           4.0 * (double)m->computes + 5.0 * (double)m->backwards + 2.0 * (double)s->losses +
           0.25 * (double)s->finalized;
}

typedef struct known_cost {
    const char *plan, *task;
    double seconds;
    bool skipped;
} known_cost;

static const known_cost costs[] = {
    {"sw-serial", "H2DAndShuffle", 0.0, true},
    {"sw-serial", "EmbInputDistStart", 1.0, true},
    {"sw-serial", "EmbInputDistWait", 0.5, true},
    {"sw-serial", "EmbPrefetch", 3.0, true},
    {"sw-serial", "EmbForward", 4.0, true},
    {"sw-serial", "DenseForward", 0.0, true},
    {"sw-serial", "LossPostprocess", 2.0, true},
    {"sw-serial", "DenseBackward", 0.0, true},
    {"sw-serial", "EmbBackward", 5.0, false},
    {"sw-serial", "FinalizeGrads", 0.25, true},
    {"sw-serial", "OptimStep", 0.0, false},
    {"prefetch", "copy_batch_to_gpu", 0.0, true},
    {"prefetch", "start_sparse_data_dist", 1.0, true},
    {"prefetch", "wait_sparse_data_dist", 0.5, true},
    {"prefetch", "prefetch", 3.0, true},
    {"prefetch", "forward", 4.0, true},
    {"prefetch", "backward", 2.0, true}, /* includes the loss */
    {"prefetch", "embedding_backward", 5.0, false},
    {"prefetch", "optimizer", 0.0, true},
    {"prefetch", "dequeue_batch", 0.0, false},
    {"sparse-dist", "forward", 7.0, true}, /* includes the prefetch */
    {"none", "forward", 8.5, false},
};

/* The exposed times of all tasks are exact, and sum to the time of an iteration. */
static void exposed_times_of_train_pipelines_are_exact(hotbed_backend backend) {
    static const char *const plans[] = {"sw-serial", "prefetch", "sparse-dist", "none"};
    static hotbed_profile profile;
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p += hotbed_test_is_small() ? 3 : 1) {
        example s;
        double sum = 0.0;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, plans[p], 0);
        void *batches[2] = {&s.batches[0], &s.batches[1]};
        hotbed_profile_options options = {
            .size = sizeof options, .batches = batches, .num_batches = 2};
        options.stream = hotbed_train_stream(train, "default");
        options.rounds = 1;
        options.now = calls_so_far;
        options.now_self = &s;
        CHECK_OK(hotbed_profile_run(hotbed_train_pipeline(train), &options, &profile));
        for (uint32_t t = 0; t < profile.num_tasks; t++) {
            sum += profile.tasks[t].exposed;
            for (size_t c = 0; c < sizeof costs / sizeof *costs; c++) {
                if (strcmp(costs[c].plan, plans[p]) != 0 ||
                    strcmp(costs[c].task, profile.tasks[t].name) != 0)
                    continue;
                CHECK_EQ(profile.tasks[t].skipped, costs[c].skipped);
                CHECK_NEAR(profile.tasks[t].exposed, costs[c].seconds, 1e-9);
                CHECK_NEAR(profile.tasks[t].alone, costs[c].seconds, 1e-9);
            }
        }
        CHECK_NEAR(sum, profile.baseline, 1e-9);
        CHECK_EQ(example_pinned(&s), 0);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

static void check_refusal(hotbed_train *train, const char *task, const char *why) {
    char text[256];
    (void)snprintf(text, sizeof text, "task '%s' cannot be skipped: %s", task, why);
    CHECK_STATUS(
        hotbed_pipeline_shortcut(hotbed_train_pipeline(train), task), HOTBED_ERR_UNSUPPORTED);
    CHECK_STRING(hotbed_last_error(), text);
}

static void tasks_that_cannot_be_skipped_are_named(hotbed_backend backend) {
    example s;
    example_open(&s, backend);
    hotbed_train *train = example_train(&s, "sw-serial", 0);
    check_refusal(train, "EmbBackward", "it changes rows of tables");
    check_refusal(train, "OptimStep", "it ends the batch");
    skip(train, "EmbPrefetch LossPostprocess");
    hotbed_train_destroy(train);
    train = example_train(&s, "prefetch", 0);
    check_refusal(train, "embedding_backward", "it changes rows of tables");
    check_refusal(train, "dequeue_batch", "it ends the batch");
    hotbed_train_destroy(train);
    train = example_train(&s, "none", 0);
    check_refusal(train, "forward", "module 'ranker.sparse.users' is not pipelined");
    hotbed_train_destroy(train);
    s.trainer.num_io = 1; /* only the copy is declared */
    train = example_train(&s, "jagged-prefetch", 0);
    check_refusal(train, "loss", "the trainer declares no io of loss");
    check_refusal(train, "forward", "the trainer declares no io of forward");
    skip(train, "copy_batch_to_gpu prefetch global_tokens");
    hotbed_train_destroy(train);
    example_close(&s);
    example_open(&s, backend);
    s.with_postproc = true;
    s.postproc.trainable = true; /* module items is not pipelined */
    train = example_train(&s, "prefetch", 0);
    check_refusal(train, "forward", "module 'ranker.sparse.items' is not pipelined");
    skip(train, "prefetch");
    train_rounds(&s, train, 3);
    hotbed_train_destroy(train);
    example_close(&s);
    example_open(&s, backend);
    hotbed_module_calls calls = *s.modules[1].module.calls;
    calls.capture = NULL;
    s.modules[1].module.calls = &calls;
    train = example_train(&s, "prefetch", 0);
    check_refusal(train, "prefetch", "module 'ranker.sparse.items' cannot be captured");
    skip(train, "copy_batch_to_gpu");
    hotbed_train_destroy(train);
    example_close(&s);
}

static hotbed_status capture_nothing(
    void *self, hotbed_iteration *iteration, hotbed_stream *stream, void **snapshot) {
    *snapshot = NULL;
    return HOTBED_OK;
}

static hotbed_status restore_nothing(
    void *self, hotbed_iteration *iteration, hotbed_stream *stream, void *snapshot) {
    return HOTBED_OK;
}

/* The actions of each task of each plan fit, and so does the state that they change, although the trainer declares the
 * effects of all its functions. */
static void the_changes_of_each_task_are_known(hotbed_backend backend) {
    static const char *const functions[] = {"copy_batch",     "shuffle_start", "shuffle_finish",
                                            "zero_grad",      "global_tokens", "dense_forward",
                                            "forward",        "loss",          "dense_backward",
                                            "finalize_grads", "optimizer"};
    enum { FUNCTIONS = sizeof functions / sizeof functions[0] };
    hotbed_trainer_io declared[FUNCTIONS];
    const char *plan;
    uint32_t most = 0;
    example s;
    example_open(&s, backend);
    for (uint32_t f = 0; f < FUNCTIONS; f++)
        declared[f] = (hotbed_trainer_io){
            .function = functions[f],
            .io = {.capture = capture_nothing, .restore = restore_nothing}};
    s.trainer.io = declared;
    s.trainer.num_io = FUNCTIONS;
    for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL; p++) {
        hotbed_train *train = example_train(&s, plan, 0);
        const hotbed_program *program = hotbed_train_pipeline(train)->program;
        for (uint32_t t = 0; t < program->num_steps; t++) {
            const hotbed_program_step *step = &program->steps[t];
            CHECK_EQ(step->run == NULL, strcmp(step->name, "wait_for_batch") == 0);
            most = step->num_io > most ? step->num_io : most;
        }
        hotbed_train_destroy(train);
    }
    CHECK_EQ(most, 3); /* of a forward: forward, dense_forward and the contexts */
    example_close(&s);
}

static void io_of_trainers_is_checked(hotbed_backend backend) {
    example s;
    hotbed_train *train;
    hotbed_train_options options = {.size = sizeof options};
    hotbed_trainer_io io = {.function = "los"};
    example_open(&s, backend);
    options.plan = "prefetch";
    options.backend = backend;
    s.trainer.io = &io;
    s.trainer.num_io = 1;
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, &train), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "'los', which is no function") != NULL);
    io.function = "loss";
    io.io.restore = restore_nothing;
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, &train), HOTBED_ERR_ARGUMENT);
    s.trainer.io = NULL;
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, &train), HOTBED_ERR_ARGUMENT);
    example_close(&s);
}

/* --- contexts --------------------------------------------------------------------------------- */

static void snapshots_fit_one_context_and_one_state(hotbed_backend backend) {
    example s;
    hotbed_rewrite *rewrite;
    hotbed_context_snapshot *started = NULL, *other = NULL;
    example_open(&s, backend);
    CHECK_OK(hotbed_rewrite_create(
        &s.model, &example_batch_type, 2, HOTBED_FORWARD_PREFETCH, s.stream, &rewrite));
    CHECK_STATUS(hotbed_context_capture(rewrite, 0, s.stream, &started), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "context 0 is EMPTY") != NULL);
    CHECK_OK(hotbed_context_start(rewrite, 0, &s.batches[0], s.stream));
    CHECK_OK(hotbed_context_capture(rewrite, 0, s.stream, &started));
    CHECK_STATUS(hotbed_context_restore(started, s.stream), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "is STARTED, not EMPTY") != NULL);
    CHECK_OK(hotbed_context_cancel(rewrite, 0, s.stream));
    CHECK_OK(hotbed_context_start(rewrite, 0, &s.batches[1], s.stream)); /* in another context */
    CHECK_STATUS(hotbed_context_capture(rewrite, 0, s.stream, &other), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "snapshots of another batch") != NULL);
    CHECK_OK(hotbed_context_cancel(rewrite, 0, s.stream));
    CHECK_OK(hotbed_context_restore(started, s.stream));
    CHECK_EQ(rewrite->contexts[0].cells[0].state, HOTBED_CELL_STARTED);
    CHECK_OK(hotbed_context_wait(rewrite, 0, s.stream));
    CHECK_OK(hotbed_context_prefetch(rewrite, 0, s.stream));
    hotbed_context_drop(started, s.stream); /* while its context is in use */
    CHECK_OK(hotbed_context_forward(rewrite, 0, &s.batches[0], s.stream));
    CHECK_OK(hotbed_context_finish(rewrite, 0, true, s.stream));
    CHECK_OK(hotbed_context_dequeue(rewrite, 0, s.stream));
    CHECK_OK(hotbed_stream_sync(s.stream));
    CHECK_EQ(s.modules[0].contexts, 3);
    hotbed_rewrite_destroy(rewrite);
    CHECK_EQ(example_pinned(&s), 0);
    example_close(&s);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_skipped_stage_gives_the_same_bytes)},
    {TEST(a_task_is_captured_once_in_each_buffer_set)},
    {TEST(contexts_of_snapshots_are_released_with_them)},
    {TEST(a_replayed_forward_trains_nothing)},
    {TEST(exposed_times_of_train_pipelines_are_exact)},
    {TEST(tasks_that_cannot_be_skipped_are_named)},
    {TEST(the_changes_of_each_task_are_known)},
    {TEST(io_of_trainers_is_checked)},
    {TEST(snapshots_fit_one_context_and_one_state)},
    {NULL, NULL},
};
