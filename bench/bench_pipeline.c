/* bench/bench_pipeline.c - the overhead of the engine: an iteration of empty tasks on several
 * threads.
 *
 * hotbed-plans measures how much time plans hide. */
#include "bench/bench.h"

#include "base/clock.h"
#include "hotbed/pipeline.h"

/* An endless sequence of batches. */
static hotbed_status next_batch(void *self, void **batch, bool *end) {
    *batch = self;
    *end = false;
    return HOTBED_OK;
}

/* Steps per measurement; streams are synchronized at its end. */
enum { STEPS = 20 };

static void measure(bench_state *state, hotbed_pipeline *pipeline, hotbed_stream *last) {
    const hotbed_iteration *iteration;
    while (bench_next(state)) {
        double start = hotbed_monotonic_seconds();
        for (int i = 0; i < STEPS; i++)
            if (!bench_ok(state, hotbed_pipeline_progress(pipeline, &iteration)))
                return;
        if (!bench_ok(state, hotbed_stream_sync(hotbed_pipeline_stream(pipeline))) ||
            !bench_ok(state, hotbed_stream_sync(last)))
            return;
        bench_seconds(state, (hotbed_monotonic_seconds() - start) / STEPS);
    }
}

/* --- the engine ------------------------------------------------------------------------------- */

enum { TASKS = 11, THREADS_MOST = 3 };

static hotbed_status nothing(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    return HOTBED_OK;
}

/* Run a chain of tasks over the requested numbers of stages, threads and streams. */
static void run_engine(bench_state *state) {
    static const char *const names[TASKS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
    static const char *const group_names[THREADS_MOST] = {"one", "two", "three"};
    uint32_t threads = (uint32_t)bench_arg(state, 0);
    threads = threads < THREADS_MOST ? threads : THREADS_MOST;
    hotbed_stream *any = bench_stream(state);
    hotbed_task tasks[TASKS];
    hotbed_step steps[TASKS];
    hotbed_pipeline_plan_stream streams[THREADS_MOST] = {{NULL, NULL}};
    hotbed_pipeline *pipeline = NULL;
    hotbed_pipeline_plan plan;
    const hotbed_loader loader = {.next = next_batch, .self = tasks};
    uint32_t made = 0;
    hotbed_status status = HOTBED_OK;
    for (; made < threads && status == HOTBED_OK; made++) {
        streams[made].name = group_names[made];
        status = hotbed_stream_create(
            hotbed_stream_backend(any), hotbed_stream_device(any), &streams[made].stream);
    }
    for (uint32_t t = 0; t < TASKS; t++) {
        uint32_t stage = t * threads / TASKS;
        tasks[t] = (hotbed_task){.name = names[t], .run = nothing};
        steps[t] = (hotbed_step){
            .task = names[t],
            .stage = stage,
            .ordered = t % 2 == 0,
            .stream = group_names[stage],
            .group = group_names[stage],
            .after = t == 0 ? NULL : names[t - 1]};
    }
    plan = (hotbed_pipeline_plan){.size = sizeof plan};
    plan.num_tasks = TASKS;
    plan.tasks = tasks;
    plan.num_steps = TASKS;
    plan.steps = steps;
    plan.num_streams = threads;
    plan.streams = streams;
    if (status == HOTBED_OK)
        status = hotbed_pipeline_create(&plan, NULL, &pipeline);
    if (status == HOTBED_OK)
        status = hotbed_pipeline_bind(pipeline, &loader);
    if (bench_ok(state, status))
        measure(state, pipeline, streams[threads - 1].stream);
    bench_items(state, TASKS);
    hotbed_pipeline_destroy(pipeline);
    for (uint32_t i = 0; i < made; i++)
        hotbed_stream_destroy(streams[i].stream);
}

static const char *const engine_names[] = {"threads", NULL};
static const int64_t engine_args[] = {1, 2, 3, INT64_MIN};

const bench_case bench_pipeline_cases[] = {
    {"pipeline/engine", run_engine, engine_names, engine_args, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
