/* tests/pipeline/test_shortcut.c - tasks that are replayed instead of run, their declared state,
 * and the gradients around them.
 *
 * The model: x = batch, h = 2 x + w, y = 3 h + v; gradients flow back through y and h to the table
 * of x. */
#include "tests/pipeline/fake_plan.h"

#include "hotbed/profile.h"

#include "base/error.h"
#include "base/host_launch.h"
#include "base/port.h"

#include <string.h>

enum { X, H, Y, N = 8, BYTES = N * sizeof(float) };

static const hotbed_value_options values[] = {
    {.name = "x", .bytes = BYTES, .grad = true},
    {.name = "h", .bytes = BYTES, .grad = true},
    {.name = "y", .bytes = BYTES, .grad = true},
};

/* Tasks work on the stream; the host backend suffices to test the engine. */
typedef struct line {
    const float *from;
    float *to;
    float factor, offset;
    bool add;
} line;

static void line_body(const void *args, uint64_t begin, uint64_t end) {
    const line *l = args;
    for (uint64_t i = begin; i < end; i++) {
        float value = l->factor * (l->from == NULL ? 1.0F : l->from[i]) + l->offset;
        l->to[i] = l->add ? l->to[i] + value : value;
    }
}

static hotbed_status launch(const line *l, hotbed_stream *stream) {
    return hotbed_host_launch(stream, N, 0, line_body, l, sizeof *l);
}

/* State that tasks share beside their values. */
typedef struct world {
    float table[N]; /* trained: minus the gradient of x */
    uint64_t epoch; /* outside state of `dist`, which increments it */
    uint64_t captured, restored, released;
    void *x_grad_seen;
} world;

static world w;

static hotbed_status dist(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const line l = {
        .to = hotbed_iteration_value(it, X),
        .factor = 1.0F,
        .offset = (float)hotbed_iteration_number(it)};
    w.epoch++;
    return launch(&l, stream);
}

static hotbed_status lower(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const line l = {
        .from = hotbed_iteration_value(it, X),
        .to = hotbed_iteration_value(it, H),
        .factor = 2.0F,
        .offset = 0.5F};
    return launch(&l, stream);
}

static hotbed_status upper(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const line l = {
        .from = hotbed_iteration_value(it, H),
        .to = hotbed_iteration_value(it, Y),
        .factor = 3.0F,
        .offset = 0.25F};
    return launch(&l, stream);
}

static hotbed_status loss(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    void *grad;
    HOTBED_TRY(hotbed_iteration_grad_add(it, Y, stream, &grad));
    const line l = {
        .from = hotbed_iteration_value(it, Y), .to = grad, .factor = 0.125F, .add = true};
    return launch(&l, stream);
}

/* grad(to) += factor * grad(from) */
static hotbed_status chain(
    hotbed_iteration *it, uint32_t from, uint32_t to, float factor, hotbed_stream *stream) {
    void *upstream, *grad;
    HOTBED_TRY(hotbed_iteration_grad(it, from, &upstream));
    HOTBED_TRY(hotbed_iteration_grad_add(it, to, stream, &grad));
    const line l = {.from = upstream, .to = grad, .factor = factor, .add = true};
    return launch(&l, stream);
}

static hotbed_status upper_back(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    return chain(it, Y, H, 3.0F, stream);
}

static hotbed_status lower_back(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    return chain(it, H, X, 2.0F, stream);
}

static hotbed_status train(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    void *grad;
    HOTBED_TRY(hotbed_iteration_grad(it, X, &grad));
    w.x_grad_seen = grad;
    const line l = {.from = grad, .to = w.table, .factor = -1.0F, .add = true};
    return launch(&l, stream);
}

static const fake_task sketch[] = {
    {.name = "dist", .stage = 0, .stream = "dist", .group = "dist", .writes = "x", .ordered = true},
    {.name = "lower", .stage = 1, .after = "dist", .reads = "x", .writes = "h"},
    {.name = "upper", .stage = 1, .after = "lower", .reads = "h", .writes = "y"},
    {.name = "loss", .stage = 1, .after = "upper", .reads = "y", .writes = "y.grad"},
    {.name = "upper_back",
     .stage = 1,
     .after = "loss",
     .reads = "y.grad",
     .writes = "h.grad",
     .backward_of = "upper"},
    {.name = "lower_back",
     .stage = 1,
     .after = "upper_back",
     .reads = "h.grad",
     .writes = "x.grad",
     .backward_of = "lower"},
    {.name = "train", .stage = 1, .after = "lower_back", .reads = "x.grad", .states = "table"},
    {.name = NULL}};

static hotbed_status (*const works[])(hotbed_iteration *, void *, hotbed_stream *) = {
    dist, lower, upper, loss, upper_back, lower_back, train};

static void open_model(fake_plan *p, hotbed_backend backend) {
    memset(&w, 0, sizeof w);
    fake_plan_open(p, backend, sketch);
    p->plan.values = values;
    p->plan.num_values = 3;
    for (uint32_t i = 0; i < p->n; i++)
        p->selves[i].work = works[i];
    CHECK_OK(hotbed_pipeline_create(&p->plan, &p->options, &p->pipeline));
}

/* Train with some tasks skipped; return the table's sums, and y of the last iteration. */
static void train_with(
    fake_plan *p, uint64_t batches, const char *skipped, float table[N], float y[N]) {
    const hotbed_iteration *iteration;
    memset(w.table, 0, sizeof w.table);
    CHECK_OK(hotbed_pipeline_shortcut(p->pipeline, skipped));
    fake_plan_bind(p, batches);
    hotbed_stream *stream = hotbed_pipeline_stream(p->pipeline);
    for (uint64_t i = 0; i < batches; i++) {
        CHECK_OK(hotbed_pipeline_progress(p->pipeline, &iteration));
        CHECK_OK(hotbed_copy(y, hotbed_iteration_value(iteration, Y), BYTES, stream));
    }
    CHECK_OK(hotbed_stream_sync(stream));
    memcpy(table, w.table, sizeof w.table);
    CHECK_EQ(fake_plan_run(p), 0);
}

static uint64_t runs(fake_plan *p, const char *task) {
    return __atomic_load_n(&p->selves[fake_plan_find(p, task)].runs, __ATOMIC_RELAXED);
}

/* The function is called once; then its outputs exist and its turns are taken without it. */
static void a_task_is_captured_once_and_replayed(hotbed_backend backend) {
    fake_plan p;
    float table[N], y[N];
    hotbed_log_entry log[64];
    uint64_t n, turns = 0;
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    open_model(&p, backend);
    train_with(&p, 6, "dist", table, y);
    CHECK_EQ(runs(&p, "dist"), 1);
    CHECK_EQ(runs(&p, "lower"), 6);
    CHECK_NEAR(y[0], 3.0F * (2.0F * 1.0F + 0.5F) + 0.25F, 0.0); /* x of iteration 0 */
    hotbed_pipeline_stats_read(p.pipeline, &stats);
    CHECK_EQ(stats.replays, 5);
    CHECK_OK(hotbed_pipeline_log(p.pipeline, 64, log, &n));
    for (uint64_t i = 0; i < n; i++) {
        turns += log[i].turn != 0;
        if (log[i].task == 0)
            CHECK_EQ(log[i].mode, log[i].iteration == 0 ? HOTBED_TASK_CAPTURE : HOTBED_TASK_REPLAY);
    }
    CHECK_EQ(turns, 6);
    train_with(&p, 2, NULL, table, y); /* not skipped any more: x of iteration 7 */
    CHECK_EQ(runs(&p, "dist"), 3);
    CHECK_NEAR(y[0], 3.0F * (2.0F * 8.0F + 0.5F) + 0.25F, 0.0);
    fake_plan_close(&p);
}

/* Upstream of a skipped task gradients exist and are zero; without skipping all is as before. */
static void a_skipped_task_gives_zero_gradients_upstream(hotbed_backend backend) {
    fake_plan p;
    float expected[N], table[N], y[N];
    open_model(&p, backend);
    train_with(&p, 3, NULL, expected, y);
    for (int i = 0; i < N; i++)
        CHECK(expected[i] != 0.0F);
    train_with(&p, 3, "lower", table, y);
    const float y3 = 3.0F * (2.0F * 4.0F + 0.5F) + 0.25F; /* iteration 3 is captured, and trains */
    for (int i = 0; i < N; i++)
        CHECK_NEAR(table[i], -6.0F * 0.125F * y3, 0.0);
    CHECK(w.x_grad_seen != NULL);
    /* The captured iteration has a backward, replayed ones do not. */
    CHECK_EQ(runs(&p, "lower_back"), 3 + 1);
    fake_plan_close(&p);
    open_model(&p, backend); /* a shortcut taken and removed in between changes no number */
    CHECK_OK(hotbed_pipeline_shortcut(p.pipeline, "upper lower"));
    train_with(&p, 3, NULL, table, y);
    CHECK_BYTES(table, expected, sizeof table);
    fake_plan_close(&p);
}

/* A skipped backward leaves the gradients that were captured. */
static void a_skipped_backward_replays_its_gradients(hotbed_backend backend) {
    fake_plan p;
    float one[N], table[N], y[N];
    open_model(&p, backend);
    train_with(&p, 1, NULL, one, y);
    fake_plan_close(&p);
    open_model(&p, backend);
    train_with(&p, 4, "lower_back", table, y);
    for (int i = 0; i < N; i++)
        CHECK_NEAR(table[i], 4.0F * one[i], 0.0);
    fake_plan_close(&p);
}

static hotbed_status add_number(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    void *grad;
    HOTBED_TRY(hotbed_iteration_grad_add(it, X, stream, &grad));
    const line l = {.to = grad, .factor = (float)hotbed_iteration_number(it), .add = true};
    return launch(&l, stream);
}

static hotbed_status add_tens(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    void *grad;
    HOTBED_TRY(hotbed_iteration_grad_add(it, X, stream, &grad));
    const line l = {.to = grad, .factor = 10.0F * (float)hotbed_iteration_number(it), .add = true};
    return launch(&l, stream);
}

/* A replay of the first task that adds to a gradient keeps what later tasks add. A later task is
 * refused, since its capture would also hold what the first one added; a profile measures it
 * between synchronizations. */
static void only_the_first_that_adds_to_a_gradient_is_skipped(hotbed_backend backend) {
    static const fake_task two[] = {
        {.name = "dist", .writes = "x"},
        {.name = "tens", .after = "number", .reads = "x", .writes = "x.grad"},
        {.name = "number", .after = "dist", .reads = "x", .writes = "x.grad"},
        {.name = "train", .after = "tens", .reads = "x.grad"},
        {.name = NULL}};
    fake_plan p;
    hotbed_profile profile;
    void *batches[1] = {NULL};
    memset(&w, 0, sizeof w);
    fake_plan_open(&p, backend, two);
    p.plan.values = values;
    p.plan.num_values = 1;
    p.selves[0].work = dist;
    p.selves[1].work = add_tens;
    p.selves[2].work = add_number;
    p.selves[3].work = train;
    CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline));
    hotbed_stream *stream = hotbed_pipeline_stream(p.pipeline);
    CHECK_STATUS(hotbed_pipeline_shortcut(p.pipeline, "tens"), HOTBED_ERR_UNSUPPORTED);
    CHECK(
        strstr(
            hotbed_last_error(), "'tens' cannot be skipped: it adds to the gradient of 'x' "
                                 "after 'number'") != NULL);
    CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, NULL, stream, NULL)); /* iteration 0 adds 0 */
    CHECK_OK(hotbed_pipeline_shortcut(p.pipeline, "number"));
    for (int i = 0; i < 3; i++) /* 1 is captured; 10 + 20 + 30 are not */
        CHECK_OK(hotbed_pipeline_run_serial(p.pipeline, NULL, stream, NULL));
    CHECK_OK(hotbed_stream_sync(stream));
    for (int i = 0; i < N; i++)
        CHECK_NEAR(w.table[i], -63.0F, 0.0);
    CHECK_OK(hotbed_pipeline_shortcut(p.pipeline, NULL));
    hotbed_profile_options options = {
        .size = sizeof options, .batches = batches, .num_batches = 1, .stream = stream};
    CHECK_OK(hotbed_profile_run(p.pipeline, &options, &profile));
    CHECK(!profile.tasks[1].skipped);
    CHECK_NEAR(profile.tasks[1].exposed, profile.tasks[1].alone, 0.0);
    CHECK(profile.tasks[2].skipped);
    fake_plan_close(&p);
}

/* --- declared io ------------------------------------------------------------------------------ */

static uint64_t kept;

static hotbed_status capture(
    void *self, hotbed_iteration *it, hotbed_stream *stream, void **snapshot) {
    world *all = self;
    all->captured++;
    kept = all->epoch;
    *snapshot = &kept;
    return HOTBED_OK;
}

static hotbed_status restore(
    void *self, hotbed_iteration *it, hotbed_stream *stream, void *snapshot) {
    world *all = self;
    all->restored++;
    all->epoch = *(uint64_t *)snapshot;
    return HOTBED_OK;
}

static void release(void *self, void *snapshot) {
    world *all = self;
    CHECK(snapshot == &kept);
    all->released++;
}

static void outside_state_is_restored(hotbed_backend backend) {
    fake_plan p;
    float table[N], y[N];
    const hotbed_declared_io io = {capture, restore, release, &w};
    open_model(&p, backend);
    hotbed_pipeline_destroy(p.pipeline);
    p.tasks[0].io = &io;
    p.tasks[0].num_io = 1;
    CHECK_OK(hotbed_pipeline_create(&p.plan, &p.options, &p.pipeline));
    train_with(&p, 5, "dist", table, y);
    CHECK_EQ(w.captured, 1);
    CHECK_EQ(w.restored, 4);
    CHECK_EQ(w.epoch, 1);
    CHECK_EQ(w.released, 0);
    train_with(&p, 1, "upper", table, y);
    CHECK_EQ(w.released, 1);
    CHECK_EQ(w.epoch, 2);
    train_with(&p, 2, "dist", table, y);
    fake_plan_close(&p);
    CHECK_EQ(w.released, 2);
}

static void values_and_gradients_are_checked(hotbed_backend backend) {
    fake_plan p;
    const hotbed_iteration *iteration;
    void *grad;
    open_model(&p, backend);
    p.selves[3].work = NULL; /* no task adds to the gradient of y */
    fake_plan_bind(&p, 2);
    CHECK_STATUS(hotbed_pipeline_progress(p.pipeline, &iteration), HOTBED_ERR_STATE);
    CHECK(
        strstr(hotbed_last_error(), "task upper_back of iteration 0: the gradient of 'y'") != NULL);
    fake_plan_close(&p);
    open_model(&p, backend);
    CHECK_OK(hotbed_pipeline_run_serial(
        p.pipeline, NULL, hotbed_pipeline_stream(p.pipeline), &iteration));
    CHECK_STATUS(hotbed_iteration_grad(iteration, 3, &grad), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_iteration_grad(iteration, X, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_iteration_grad(iteration, X, &grad));
    CHECK_STATUS(hotbed_iteration_set((hotbed_iteration *)iteration, X, grad), HOTBED_ERR_ARGUMENT);
    CHECK(hotbed_iteration_value(iteration, 3) == NULL);
    fake_plan_close(&p);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_task_is_captured_once_and_replayed)},
    {TEST(a_skipped_task_gives_zero_gradients_upstream)},
    {TEST(a_skipped_backward_replays_its_gradients)},
    {TEST(only_the_first_that_adds_to_a_gradient_is_skipped)},
    {TEST(outside_state_is_restored)},
    {TEST(values_and_gradients_are_checked)},
    {NULL, NULL},
};
