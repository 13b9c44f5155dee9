/* tests/pipeline/test_train.c - train pipelines on one rank: the bytes of the plain loop, and the
 * order and streams of the pipelines of TorchRec and recsys-examples ("the reference"). */
#include "base/backend.h"
#include "pipeline/rewrite.h"
#include "pipeline/train.h"
#include "tests/pipeline/example.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RESULT = EXAMPLE_MODULES * EXAMPLE_ROWS,
    TABLES = EXAMPLE_MODULES * EXAMPLE_KEYS * EXAMPLE_DIM
};

/* Results of the plain loop, and its tables afterwards. */
typedef struct expected {
    float results[EXAMPLE_BATCHES][RESULT];
    float rows[TABLES];
} expected;

static void train_plainly(hotbed_backend backend, bool postproc, uint64_t n, expected *e) {
    example s;
    example_open(&s, backend);
    s.with_postproc = postproc;
    const hotbed_trainer *t = &s.trainer;
    for (uint64_t b = 0; b < n; b++) {
        void *batch;
        CHECK_OK(t->copy_batch(&s, 0, &s.batches[b], s.stream, &batch));
        CHECK_OK(s.inner.forward(&s, hotbed_ref_batch(&example_batch_type, batch), s.stream));
        CHECK_OK(t->loss(&s, 0, batch, s.stream));
        for (int m = EXAMPLE_MODULES; m-- > 0;)
            CHECK_OK(hotbed_module_backward(&s.modules[m].module, s.stream));
        CHECK_OK(hotbed_stream_sync(s.stream));
        memcpy(e->results[b], s.results[b], sizeof e->results[b]);
    }
    example_rows(&s, e->rows);
    example_close(&s);
}

static void check_results(example *s, const expected *e, uint64_t first, uint64_t n) {
    for (uint64_t b = first; b < first + n; b++)
        CHECK_BYTES(s->results[b], e->results[b], sizeof e->results[b]);
}

static void check_rows(example *s, const expected *e) {
    static float rows[TABLES];
    example_rows(s, rows);
    CHECK_BYTES(rows, e->rows, sizeof rows);
    CHECK_EQ(example_pinned(s), 0);
}

/* Equal bytes, M results for M batches, and no context starts or prefetches twice. */
static void every_plan_trains_to_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    static expected e;
    train_plainly(backend, false, 20, &e);
    const char *plan;
    for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL;
         p += hotbed_test_is_small() ? 4 : 1)
        for (uint32_t more = 0; more < (hotbed_test_is_small() ? 1 : 3); more += 2) {
            example s;
            example_open(&s, backend);
            hotbed_train *train = example_train(&s, plan, 0);
            uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train)) + more;
            hotbed_train_destroy(train);
            train = example_train(&s, plan, depth);
            example_bind(&s, train, 0, 20);
            CHECK_EQ(example_run(train), 20);
            check_results(&s, &e, 0, 20);
            CHECK_EQ(s.pulled, 20);
            CHECK_EQ(s.given_back, 20);
            for (int m = 0; m < EXAMPLE_MODULES; m++) {
                CHECK_EQ(s.modules[m].starts, 20);
                CHECK_EQ(s.modules[m].waits, 20);
                CHECK_EQ(s.modules[m].prefetches, 20);
                CHECK_EQ(s.modules[m].computes, 20);
                CHECK_EQ(s.modules[m].backwards, 20);
            }
            CHECK_EQ(s.losses, 20);
            CHECK_EQ(s.steps, 20);
            CHECK_EQ(s.zeroed, 20);
            bool jagged = strncmp(plan, "jagged", 6) == 0 || strncmp(plan, "sw", 2) == 0;
            CHECK_EQ(s.shuffles_started, jagged ? 20 : 0);
            CHECK_EQ(s.shuffles_finished, jagged ? 20 : 0);
            CHECK_EQ(s.finalized, jagged ? 20 : 0);
            if (hotbed_train_rewrite(train) != NULL) {
                CHECK_EQ(s.fused_runs, 20); /* both modules in one exchange */
                CHECK_EQ(hotbed_load_relaxed_u64(&hotbed_train_rewrite(train)->exchanges), 20);
            }
            CHECK_STATUS(hotbed_train_set_training(NULL, true), HOTBED_ERR_ARGUMENT);
            hotbed_train_destroy(train);
            check_rows(&s, &e);
            example_close(&s);
        }
}

/* Fewer batches than the depth, down to none; the next loader continues after them. */
static void fewer_batches_than_the_depth_are_trained(hotbed_backend backend) {
    static expected e;
    train_plainly(backend, false, 10, &e);
    const char *plan;
    for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL; p++) {
        example s;
        const hotbed_iteration *iteration;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, plan, 0);
        for (uint64_t n = 0, first = 0; n < 5; first += n++) {
            example_bind(&s, train, first, n);
            CHECK_EQ(example_run(train), n);
            CHECK_EQ(s.given_back, n);
            CHECK_OK(hotbed_pipeline_progress(hotbed_train_pipeline(train), &iteration));
            CHECK(iteration == NULL); /* END again */
        }
        check_results(&s, &e, 0, 10);
        hotbed_train_destroy(train);
        check_rows(&s, &e);
        example_close(&s);
    }
}

/* A pipeline that is destroyed without a drain drops batches, as the reference does with
 * execute_all_batches=False. */
static void destroy_drops_batches_in_flight(hotbed_backend backend) {
    static const char *const names[] = {"sparse-dist", "prefetch", "jagged-prefetch-async"};
    for (int p = 0; p < 3; p++)
        for (uint64_t taken = 1; taken < 6; taken++) {
            example s;
            const hotbed_iteration *iteration;
            example_open(&s, backend);
            hotbed_train *train = example_train(&s, names[p], 0);
            example_bind(&s, train, 0, 40);
            for (uint64_t i = 0; i < taken; i++)
                CHECK_OK(hotbed_pipeline_progress(hotbed_train_pipeline(train), &iteration));
            CHECK_EQ(s.pulled, taken + hotbed_pipeline_depth(hotbed_train_pipeline(train)) - 1);
            hotbed_train_destroy(train);
            CHECK_EQ(example_pinned(&s), 0);
            example_close(&s);
        }
}

/* The stream of each stage, from the reference's table of fields. */
static void stages_run_on_the_reference_streams(hotbed_backend backend) {
    static const char *const wanted[][2] = {
        {"copy_batch_to_gpu", "memcpy"},
        {"start_shuffle", "memcpy"},
        {"finish_shuffle", "memcpy"},
        {"start_sparse_data_dist", "dist"},
        {"wait_sparse_data_dist", "dist"},
        {"prefetch", "prefetch"},
        {"forward", "default"},
        {"loss", "default"},
        {"backward", "default"},
        {"embedding_backward", "default"},
        {"finalize_model_grads", "default"},
        {"optimizer", "default"},
        {"dequeue_batch", "default"},
    };
    static const char *const names[] = {
        "sparse-dist", "prefetch", "jagged-sparse-dist", "jagged-prefetch",
        "jagged-prefetch-async"};
    uint32_t seen = 0;
    for (int p = 0; p < 5; p++) {
        const hotbed_step *steps;
        uint32_t n;
        CHECK_OK(hotbed_train_plan_steps(names[p], &steps, &n));
        for (uint32_t i = 0; i < n; i++)
            for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++)
                if (strcmp(steps[i].task, wanted[w][0]) == 0) {
                    CHECK_STRING(steps[i].stream, wanted[w][1]);
                    seen++;
                }
    }
    CHECK_EQ(seen, 7 + 9 + 11 + 13 + 13);
}

/* The tasks of a period in the steady state, with batch numbers relative to the batch that it returns. */
static const char *period_of(hotbed_train *train, uint64_t batch) {
    static char text[1024];
    static hotbed_log_entry log[2048];
    uint64_t n, first = 0, last = 0;
    size_t used = 0;
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    CHECK_OK(hotbed_pipeline_log(pipeline, 2048, log, &n));
    text[0] = '\0';
    /* a period begins with the first step of its batch */
    for (uint64_t i = 0; i < n; i++) {
        if (log[i].task == 0 && log[i].iteration == batch)
            first = i;
        if (log[i].task == 0 && log[i].iteration == batch + 1)
            last = i;
    }
    for (uint64_t i = first; i < last; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "%s%u:%llu", i == first ? "" : " ", log[i].task,
            (unsigned long long)(log[i].iteration - batch));
    return text;
}

/* The order of the reference's progress(), written down from its source; embedding_backward is the
 * end of its backward. */
typedef struct progress_table {
    const char *plan;
    const char *order[20]; /* "task+batches ahead" */
} progress_table;

static const progress_table tables[] = {
    {"sparse-dist",
     {"zero_grad+0", "wait_for_batch+0", "start_sparse_data_dist+1", "copy_batch_to_gpu+2",
      "forward+0", "wait_sparse_data_dist+1", "backward+0", "optimizer+0", "dequeue_batch+0"}},
    {"prefetch",
     {"zero_grad+0", "wait_for_batch+0", "copy_batch_to_gpu+2", "wait_sparse_data_dist+1",
      "forward+0", "prefetch+1", "backward+0", "embedding_backward+0", "optimizer+0",
      "start_sparse_data_dist+2", "dequeue_batch+0"}},
    {"jagged-none",
     {"zero_grad+0", "copy_batch_to_gpu+0", "start_shuffle+0", "finish_shuffle+0",
      "global_tokens+0", "forward+0", "loss+0", "backward+0", "finalize_model_grads+0",
      "optimizer+0", "dequeue_batch+0"}},
    {"jagged-sparse-dist",
     {"zero_grad+0", "global_tokens+0", "wait_for_batch+0", "start_sparse_data_dist+1",
      "copy_batch_to_gpu+2", "wait_sparse_data_dist+1", "start_shuffle+2", "forward+0",
      "finish_shuffle+2", "loss+0", "backward+0", "finalize_model_grads+0", "optimizer+0",
      "dequeue_batch+0"}},
    {"jagged-prefetch",
     {"zero_grad+0", "global_tokens+0", "wait_for_batch+0", "copy_batch_to_gpu+2",
      "wait_sparse_data_dist+1", "start_shuffle+2", "forward+0", "finish_shuffle+2", "loss+0",
      "prefetch+1", "backward+0", "embedding_backward+0", "finalize_model_grads+0", "optimizer+0",
      "start_sparse_data_dist+2", "dequeue_batch+0"}},
    {"sw-serial",
     {"H2DAndShuffle+0", "EmbInputDistStart+0", "EmbInputDistWait+0", "EmbPrefetch+0",
      "EmbForward+0", "DenseForward+0", "LossPostprocess+0", "DenseBackward+0", "EmbBackward+0",
      "FinalizeGrads+0", "OptimStep+0"}},
};

static void the_order_of_steps_equals_the_reference(hotbed_backend backend) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        example s;
        const hotbed_step *steps;
        uint32_t num_steps;
        char expected_text[1024];
        size_t used = 0;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, tables[t].plan, 0);
        example_bind(&s, train, 0, 12);
        CHECK_EQ(example_run(train), 12);
        CHECK_OK(hotbed_train_plan_steps(tables[t].plan, &steps, &num_steps));
        for (uint32_t i = 0; tables[t].order[i] != NULL; i++) {
            const char *plus = strchr(tables[t].order[i], '+');
            size_t length = (size_t)(plus - tables[t].order[i]);
            uint32_t step = 0;
            while (step < num_steps &&
                   (strncmp(steps[step].task, tables[t].order[i], length) != 0 ||
                    steps[step].task[length] != '\0'))
                step++;
            used += (size_t)snprintf(
                expected_text + used, sizeof expected_text - used, "%s%u:%s", i == 0 ? "" : " ",
                step, plus + 1);
        }
        CHECK_STRING(period_of(train, 5), expected_text);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

static uint64_t place(const hotbed_log_entry *log, uint64_t n, uint32_t task, uint64_t iteration) {
    for (uint64_t i = 0; i < n; i++)
        if (log[i].task == task && log[i].iteration == iteration)
            return i;
    hotbed_check_failed(__FILE__, __LINE__, "task %u did not run", task);
}

/* On all threads prefetch(i+1) ends before batch i changes the tables, and begins after batch i-1
 * has changed them. */
static void prefetches_and_backwards_alternate(hotbed_backend backend) {
    static const char *const names[] = {"jagged-prefetch-async", "sw-pipelined", "prefetch"};
    static hotbed_log_entry log[2048];
    for (int p = 0; p < 3; p++) {
        example s;
        const hotbed_step *steps;
        uint32_t num_steps, before = 0, after = 0;
        uint64_t n;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, names[p], 5);
        example_bind(&s, train, 0, 30);
        CHECK_EQ(example_run(train), 30);
        CHECK_OK(hotbed_train_plan_steps(names[p], &steps, &num_steps));
        for (uint32_t i = 0; i < num_steps; i++) {
            if (strcmp(steps[i].task, p == 1 ? "EmbPrefetch" : "prefetch") == 0)
                before = i;
            if (strcmp(steps[i].task, p == 1 ? "EmbBackward" : "embedding_backward") == 0)
                after = i;
        }
        CHECK_OK(hotbed_pipeline_log(hotbed_train_pipeline(train), 2048, log, &n));
        for (uint64_t i = 0; i + 2 < 30; i++) {
            CHECK(place(log, n, before, i + 1) < place(log, n, after, i));
            CHECK(place(log, n, after, i) < place(log, n, before, i + 2));
        }
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

/* The states of contexts, and the tasks that change them. */
static void cells_are_empty_after_the_last_batch(hotbed_backend backend) {
    example s;
    example_open(&s, backend);
    hotbed_train *train = example_train(&s, "prefetch", 0);
    const hotbed_iteration *iteration;
    example_bind(&s, train, 0, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(hotbed_pipeline_progress(hotbed_train_pipeline(train), &iteration));
        const hotbed_dist_context *context =
            &hotbed_train_rewrite(train)->contexts[hotbed_iteration_buffer_set(iteration)];
        for (uint32_t m = 0; m < EXAMPLE_MODULES; m++)
            CHECK_EQ(context->cells[m].state, HOTBED_CELL_EMPTY);
    }
    CHECK_EQ(example_run(train), 0);
    hotbed_train_destroy(train);
    example_close(&s);
}

/* Evaluation between steps changes nothing and leaves nothing behind. */
static void evaluation_between_steps_changes_nothing(hotbed_backend backend) {
    static expected e;
    train_plainly(backend, false, 12, &e);
    const char *plan;
    for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL;
         p += hotbed_test_is_small() ? 4 : 1) {
        example s;
        const hotbed_iteration *iteration;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, plan, 0);
        hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
        example_bind(&s, train, 0, 6);
        CHECK_EQ(example_run(train), 6);
        uint64_t steps = s.steps;
        CHECK_OK(hotbed_train_set_training(train, false));
        example_bind(&s, train, 0, 40); /* truncated */
        for (int i = 0; i < 3; i++)
            CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
        CHECK_STATUS(
            hotbed_train_set_training(train, true), s.pulled > 3 ? HOTBED_ERR_STATE : HOTBED_OK);
        CHECK_OK(hotbed_pipeline_drain(pipeline));
        CHECK_OK(hotbed_stream_sync(hotbed_pipeline_stream(pipeline)));
        CHECK_EQ(s.steps, steps);
        CHECK_EQ(example_pinned(&s), 0);
        CHECK_OK(hotbed_train_set_training(train, true));
        example_bind(&s, train, 6, 6);
        CHECK_EQ(example_run(train), 6);
        check_results(&s, &e, 6, 6);
        hotbed_train_destroy(train);
        check_rows(&s, &e);
        example_close(&s);
    }
}

/* Each postproc runs ahead, once for each batch, and the model receives its result. */
static void postprocs_run_ahead_once_for_each_batch(hotbed_backend backend) {
    static expected e;
    train_plainly(backend, true, 10, &e);
    static const char *const names[] = {"none", "sparse-dist", "prefetch", "sw-pipelined"};
    for (int p = 0; p < 4; p++) {
        example s;
        example_open(&s, backend);
        s.with_postproc = true;
        hotbed_train *train = example_train(&s, names[p], 0);
        example_bind(&s, train, 0, 10);
        CHECK_EQ(example_run(train), 10);
        CHECK_EQ(s.postproc_runs, 10);
        check_results(&s, &e, 0, 10);
        hotbed_train_destroy(train);
        check_rows(&s, &e);
        example_close(&s);
    }
}

/* A module that cannot be pipelined is reported, and trains all the same. */
static void a_module_that_is_not_pipelined_still_trains(hotbed_backend backend) {
    static expected e;
    train_plainly(backend, true, 10, &e);
    static const char *const names[] = {"sparse-dist", "prefetch", "jagged-prefetch"};
    for (int p = 0; p < 3; p++) {
        example s;
        hotbed_rewrite_report report = {.size = sizeof report};
        example_open(&s, backend);
        s.with_postproc = true;
        s.postproc.trainable = true;
        hotbed_train *train = example_train(&s, names[p], 0);
        CHECK_OK(hotbed_rewrite_module(hotbed_train_rewrite(train), 1, &report));
        CHECK(!report.pipelined);
        example_bind(&s, train, 0, 10);
        CHECK_EQ(example_run(train), 10);
        check_results(&s, &e, 0, 10);
        hotbed_train_destroy(train);
        check_rows(&s, &e);
        example_close(&s);
    }
}

/* The trainer returns an error at any batch: it is reported, and everything can be destroyed. */
static void everything_is_released_after_an_error(hotbed_backend backend) {
    for (uint32_t at = 0; at < 4; at++) {
        example s;
        const hotbed_iteration *iteration;
        example_open(&s, backend);
        s.fail_batch = at + 1;
        hotbed_train *train = example_train(&s, "jagged-prefetch-async", 0);
        example_bind(&s, train, 0, 10);
        hotbed_status status = HOTBED_OK;
        while (status == HOTBED_OK)
            status = hotbed_pipeline_progress(hotbed_train_pipeline(train), &iteration);
        CHECK_EQ(status, HOTBED_ERR_RANGE);
        CHECK(strstr(hotbed_last_error(), "task loss of iteration") != NULL);
        hotbed_train_destroy(train);
        CHECK_EQ(example_pinned(&s), 0);
        example_close(&s);
    }
}

static void a_step_allocates_nothing_and_waits_for_nothing(hotbed_backend backend) {
    static const char *const names[] = {"sparse-dist", "prefetch", "jagged-prefetch-async"};
    for (int p = 0; p < 3; p++) {
        example s;
        const hotbed_iteration *iteration;
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, names[p], 0);
        hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
        example_bind(&s, train, 0, 40);
        for (int i = 0; i < 10; i++)
            CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
        hotbed_counters before = hotbed_test_counters();
        for (int i = 0; i < 25; i++)
            CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
        hotbed_counters after = hotbed_test_counters();
        CHECK_EQ(after.allocations, before.allocations);
        CHECK_EQ(after.host_waits, before.host_waits);
        CHECK_EQ(example_run(train), 5);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

/* --- host memory of a buffer set ---------------------------------------------------------------- */

static struct {
    hotbed_status (*copy)(
        void *self, uint32_t set, void *host_batch, hotbed_stream *stream, void **batch);
    hotbed_pipeline *pipeline;
    uint64_t owner[EXAMPLE_DEPTH]; /* the batch + 1 whose data is in host memory of the set */
    uint64_t copies, steps;
} host_sets;

static hotbed_status copy_to_host_set(
    void *self, uint32_t set, void *host_batch, hotbed_stream *stream, void **batch) {
    const uint64_t owner = __atomic_add_fetch(&host_sets.copies, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&host_sets.owner[set], owner, __ATOMIC_RELAXED);
    return host_sets.copy(self, set, host_batch, stream, batch);
}

/* The first call stays on the stream until copy_batch waits for its buffer set, or has run. */
static void step_on_stream(void *owner) {
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    const uint64_t step = ++host_sets.steps;
    while (step == 1 && stats.set_waits == 0 &&
           __atomic_load_n(&host_sets.copies, __ATOMIC_RELAXED) <=
               hotbed_pipeline_depth(host_sets.pipeline)) {
        (void)sched_yield();
        CHECK_OK(hotbed_pipeline_stats_read(host_sets.pipeline, &stats));
    }
    CHECK_EQ(__atomic_load_n((uint64_t *)owner, __ATOMIC_RELAXED), step);
}

static hotbed_status step_of_host_set(
    void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    (void)self, (void)batch;
    return hotbed_stream_call(stream, step_on_stream, &host_sets.owner[set]);
}

/* copy_batch makes a host struct, which calls on the stream read. */
static void a_host_struct_lives_until_its_batch_has_passed(hotbed_backend backend) {
    for (uint32_t p = 0; hotbed_train_plan_name(p) != NULL; p++) {
        example s;
        example_open(&s, backend);
        memset(&host_sets, 0, sizeof host_sets);
        host_sets.copy = s.trainer.copy_batch;
        s.trainer.copy_batch = copy_to_host_set;
        s.trainer.optimizer = step_of_host_set;
        hotbed_train *train = example_train(&s, hotbed_train_plan_name(p), 0);
        host_sets.pipeline = hotbed_train_pipeline(train);
        example_bind(&s, train, 0, 10);
        CHECK_EQ(example_run(train), 10);
        CHECK_EQ(host_sets.steps, 10);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

static void plans_are_found_by_name(hotbed_backend backend) {
    example s;
    hotbed_train *train;
    hotbed_train_options options = {.size = sizeof options};
    const hotbed_step *steps;
    uint32_t n;
    CHECK_STATUS(hotbed_train_plan_steps("no-such", &steps, &n), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "jagged-prefetch-async") != NULL);
    CHECK_STATUS(hotbed_train_plan_steps("none", NULL, &n), HOTBED_ERR_ARGUMENT);
    example_open(&s, backend);
    options.backend = backend;
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, &train), HOTBED_ERR_ARGUMENT);
    options.plan = "none";
    CHECK_STATUS(hotbed_train_create(NULL, &options, &train), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, NULL), HOTBED_ERR_ARGUMENT);
    hotbed_trainer lacking = s.trainer;
    lacking.model = NULL;
    CHECK_STATUS(hotbed_train_create(&lacking, &options, &train), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "trainer: model is NULL");
    CHECK_OK(hotbed_train_create(&s.trainer, &options, &train));
    CHECK(hotbed_train_rewrite(train) == NULL);
    CHECK(hotbed_train_stream(train, "dist") != NULL);
    CHECK(hotbed_train_stream(train, "disk") == NULL);
    hotbed_train_destroy(train);
    hotbed_train_destroy(NULL);
    /* a caller's own steps: the prefetch plan without its fence */
    static hotbed_step own[16];
    CHECK_OK(hotbed_train_plan_steps("prefetch", &steps, &n));
    memcpy(own, steps, n * sizeof *own);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(own[i].task, "prefetch") == 0)
            own[i].after = "wait_sparse_data_dist";
    options.plan = "prefetch";
    options.steps = own;
    options.num_steps = n;
    CHECK_STATUS(hotbed_train_create(&s.trainer, &options, &train), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(strncmp(hotbed_last_error(), "STATE_ORDER", 11), 0);
    example_close(&s);
}

/* Streams that run ahead have priority, unless the option is off. */
static void streams_that_run_ahead_have_priority(hotbed_backend backend) {
    static const char *const names[] = {"memcpy", "dist", "prefetch", "default"};
    for (int same = 0; same < 2; same++) {
        example s;
        hotbed_train *train;
        hotbed_train_options options = {.size = sizeof options};
        example_open(&s, backend);
        options.plan = "prefetch";
        options.backend = backend;
        options.same_priority = same != 0;
        CHECK_OK(hotbed_train_create(&s.trainer, &options, &train));
        for (int i = 0; i < 4; i++)
            CHECK_EQ(
                hotbed_train_stream(train, names[i])->priority,
                i < 3 && same == 0 ? HOTBED_PRIORITY_HIGH : HOTBED_PRIORITY_NORMAL);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

static void every_plan_fits_into_its_array(hotbed_backend backend) {
    const hotbed_train_plan *plan;
    for (uint32_t p = 0; (plan = hotbed_train_plan_at(p)) != NULL; p++)
        CHECK(plan->num_steps <= HOTBED_TRAIN_TASKS_MOST); /* hotbed_train.io */
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_plan_fits_into_its_array)},
    {TEST(every_plan_trains_to_the_bytes_of_the_plain_loop)},
    {TEST(fewer_batches_than_the_depth_are_trained)},
    {TEST(destroy_drops_batches_in_flight)},
    {TEST(stages_run_on_the_reference_streams)},
    {TEST(the_order_of_steps_equals_the_reference)},
    {TEST(streams_that_run_ahead_have_priority)},
    {TEST(prefetches_and_backwards_alternate)},
    {TEST(cells_are_empty_after_the_last_batch)},
    {TEST(evaluation_between_steps_changes_nothing)},
    {TEST(postprocs_run_ahead_once_for_each_batch)},
    {TEST(a_module_that_is_not_pipelined_still_trains)},
    {TEST(everything_is_released_after_an_error)},
    {TEST(a_step_allocates_nothing_and_waits_for_nothing)},
    {TEST(a_host_struct_lives_until_its_batch_has_passed)},
    {TEST(plans_are_found_by_name)},
    {NULL, NULL},
};
