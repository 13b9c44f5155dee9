/* bench/bench_pipeline.c - what the engine costs, and what the plans hide.
 *
 *   pipeline/engine  an iteration of tasks that do nothing, in so many threads: the host's time
 *   pipeline/train   a step of a sharded collection of one rank (sequence, Adam) beside a dense model of about
 *                    the same length, which is copies of device memory; by plan.  dense:0 leaves the dense part
 *                    out, and plan:-1 the embeddings: what is not hidden is a plan's step less that one's
 */
#include "bench/bench.h"

#include "hotbed/sharded_module.h"
#include "hotbed/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Batches without end. */
static hotbed_status next_batch(void *self, void **batch, bool *end) {
    *batch = self;
    *end = false;
    return HOTBED_OK;
}

/* Steps a measurement has; streams are finished at its end. */
enum { STEPS = 20 };

static void measure(bench_state *state, hotbed_pipeline *pipeline, hotbed_stream *last) {
    const hotbed_iteration *iteration;
    while (bench_next(state)) {
        double start = now();
        for (int i = 0; i < STEPS; i++)
            if (!bench_ok(state, hotbed_pipeline_progress(pipeline, &iteration)))
                return;
        if (!bench_ok(state, hotbed_stream_sync(hotbed_pipeline_stream(pipeline))) ||
            !bench_ok(state, hotbed_stream_sync(last)))
            return;
        bench_seconds(state, (now() - start) / STEPS);
    }
}

/* --- the engine ------------------------------------------------------------------------------- */

enum { TASKS = 11, THREADS_MOST = 3 };

static hotbed_status nothing(hotbed_iteration *iteration, void *self, hotbed_stream *stream) {
    (void)iteration;
    (void)self;
    (void)stream;
    return HOTBED_OK;
}

/* A chain of tasks over as many stages, threads and streams as are asked for. */
static void run_engine(bench_state *state) {
    static const char *const names[TASKS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
    static const char *const lanes[THREADS_MOST] = {"one", "two", "three"};
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
        streams[made].name = lanes[made];
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
            .stream = lanes[stage],
            .group = lanes[stage],
            .after = t == 0 ? NULL : names[t - 1]};
    }
    hotbed_pipeline_plan_init(&plan);
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

/* --- training --------------------------------------------------------------------------------- */

enum { BATCHES = 8, DEPTH = 4, DIM = 128 };

typedef struct shop {
    uint64_t keys, dense_bytes;
    int copies; /* of dense_bytes, in each of forward and backward */
    hotbed_comm *comm;
    hotbed_sharded *collection;
    hotbed_sharded_modules *modules;
    hotbed_module *module;
    hotbed_model model;
    int64_t *host[BATCHES]; /* pinned */
    int64_t *device[DEPTH];
    hotbed_kjt kjts[DEPTH];
    const hotbed_sharded_output *outputs[DEPTH];
    uint8_t *dense; /* twice dense_bytes */
    uint64_t pulled;
    hotbed_memory memory;
} shop;

static const void *get_keys(const void *batch) {
    return batch;
}

static const hotbed_field field = {"keys", HOTBED_FIELD_JAGGED, false, get_keys, NULL};
static const hotbed_batch_type batch_type = {.name = "batch", .fields = &field, .num_fields = 1};

static hotbed_status next_keys(void *self, void **batch, bool *end) {
    shop *s = self;
    *batch = s->host[s->pulled++ % BATCHES];
    *end = false;
    return HOTBED_OK;
}

static hotbed_status copy_batch(
    void *self, uint32_t slot, void *host, hotbed_stream *stream, void **batch) {
    shop *s = self;
    hotbed_kjt *kjt = &s->kjts[slot];
    hotbed_kjt_init(kjt);
    kjt->num_features = 1;
    kjt->batch_size = (uint32_t)s->keys;
    kjt->num_keys = s->keys;
    kjt->keys = s->device[slot];
    *batch = kjt;
    return hotbed_copy(s->device[slot], host, s->keys * sizeof(int64_t), stream);
}

static hotbed_status model_forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
    shop *s = self;
    const hotbed_ref argument = hotbed_ref_field(batch, "keys");
    hotbed_ref output;
    hotbed_status status = hotbed_module_forward(s->module, &argument, 1, stream, &output);
    if (status == HOTBED_OK && !hotbed_ref_traced(batch))
        s->outputs[(const hotbed_kjt *)hotbed_ref_data(batch) - s->kjts] = hotbed_ref_data(output);
    return status;
}

static hotbed_status dense(const shop *s, hotbed_stream *stream) {
    hotbed_status status = HOTBED_OK;
    for (int i = 0; i < s->copies && status == HOTBED_OK; i++)
        status = hotbed_copy(s->dense + s->dense_bytes, s->dense, s->dense_bytes, stream);
    return status;
}

static hotbed_status dense_forward(void *self, uint32_t slot, void *batch, hotbed_stream *stream) {
    (void)slot;
    (void)batch;
    return dense(self, stream);
}

static hotbed_status dense_backward(void *self, uint32_t slot, void *batch, hotbed_stream *stream) {
    const shop *s = self;
    const hotbed_sharded_output *output = s->outputs[slot];
    (void)batch;
    hotbed_status status = hotbed_copy(output->gradient, output->rows, output->bytes, stream);
    return status == HOTBED_OK ? dense(s, stream) : status;
}

static hotbed_status open_collection(shop *s, uint64_t rows, hotbed_stream *stream) {
    hotbed_table_options table;
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    const char *const name = "keys";
    hotbed_table_options_init(&table);
    table.name = name;
    table.dim = DIM;
    table.capacity = rows;
    table.initializer.kind = HOTBED_INIT_UNIFORM;
    table.initializer.lower = -0.01F;
    table.initializer.upper = 0.01F;
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    hotbed_optimizer_init(&storage.optimizer);
    storage.optimizer.kind = HOTBED_OPT_ADAM;
    storage.optimizer.learning_rate = 0.001F;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.max_batch_size = (uint32_t)s->keys;
    options.max_keys = s->keys;
    options.capacity = s->keys;
    hotbed_status status = hotbed_comm_create_self(NULL, &s->comm);
    if (status == HOTBED_OK)
        status = hotbed_sharded_create(&options, s->comm, stream, &s->collection);
    if (status == HOTBED_OK)
        status = hotbed_sharded_modules_create(1, &name, &s->collection, &s->modules);
    if (status == HOTBED_OK)
        s->module = hotbed_sharded_modules_get(s->modules, 0);
    return status;
}

/* Keys of a power law over the rows; the dense part takes about as long as the rows' copies. */
static bool open_shop(bench_state *state, shop *s) {
    hotbed_stream *stream = bench_stream(state);
    uint64_t rows = (uint64_t)bench_arg(state, 2), bytes = s->keys * sizeof(int64_t);
    uint64_t *numbers = malloc(s->keys * sizeof *numbers);
    s->dense = bench_alloc(state, 2 * s->dense_bytes);
    for (int slot = 0; slot < DEPTH; slot++)
        s->device[slot] = bench_alloc(state, bytes);
    bool ok =
        numbers != NULL && s->dense != NULL && s->device[DEPTH - 1] != NULL &&
        bench_ok(
            state,
            hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, BATCHES * bytes, NULL, &s->memory)) &&
        bench_ok(state, open_collection(s, rows, stream));
    for (uint64_t b = 0; ok && b < BATCHES; b++) {
        s->host[b] = (int64_t *)s->memory.data + b * s->keys;
        bench_zipf(1.05, rows / 2, s->keys, b, numbers);
        for (uint64_t i = 0; i < s->keys; i++)
            s->host[b][i] = (int64_t)bench_key(numbers[i]);
    }
    free(numbers);
    s->model = (hotbed_model){
        .modules = &s->module, .num_modules = 1, .forward = model_forward, .self = s};
    return ok;
}

static void close_shop(shop *s) {
    hotbed_sharded_modules_destroy(s->modules);
    hotbed_sharded_destroy(s->collection);
    hotbed_comm_destroy(s->comm);
    hotbed_memory_free(&s->memory);
}

static void measure_plan(bench_state *state, shop *s, const char *plan) {
    hotbed_stream *stream = bench_stream(state);
    hotbed_train_options options;
    hotbed_trainer trainer;
    hotbed_train *train = NULL;
    const hotbed_loader loader = {.next = next_keys, .self = s};
    hotbed_trainer_init(&trainer);
    trainer.model = &s->model;
    trainer.batch = &batch_type;
    trainer.self = s;
    trainer.copy_batch = copy_batch;
    trainer.dense_forward = dense_forward;
    trainer.dense_backward = dense_backward;
    hotbed_train_options_init(&options);
    options.plan = plan;
    options.backend = hotbed_stream_backend(stream);
    options.device = hotbed_stream_device(stream);
    if (bench_ok(state, hotbed_train_create(&trainer, &options, &train)) &&
        bench_ok(state, hotbed_pipeline_bind(hotbed_train_pipeline(train), &loader)))
        measure(state, hotbed_train_pipeline(train), hotbed_train_stream(train, "default"));
    hotbed_train_destroy(train);
}

/* Arguments: plan (its number, -1 for the dense part alone), whether there is a dense part, rows,
 * keys, dense copies. */
static void run_train(bench_state *state) {
    int64_t plan = bench_arg(state, 0);
    shop s = {
        .keys = (uint64_t)bench_arg(state, 3),
        .copies = bench_arg(state, 1) == 0 ? 0 : (int)bench_arg(state, 4),
    };
    s.dense_bytes = s.keys * DIM * sizeof(float);
    if (open_shop(state, &s) && plan >= 0)
        measure_plan(state, &s, hotbed_train_plan_name((uint32_t)plan));
    while (plan < 0 && bench_next(state)) {
        hotbed_stream *stream = bench_stream(state);
        double start = now();
        for (int i = 0; i < 2 * STEPS; i++) /* forwards and backwards */
            if (!bench_ok(state, dense(&s, stream)))
                break;
        if (!bench_ok(state, hotbed_stream_sync(stream)))
            break;
        bench_seconds(state, (now() - start) / STEPS);
    }
    bench_items(state, (int64_t)s.keys);
    close_shop(&s);
}

/* Plans: 0 none, 1 sparse-dist, 2 prefetch, 6 jagged-prefetch-async, 7 sw-serial, 8
 * sw-pipelined. */
static const char *const train_names[] = {"plan", "dense", "rows", "keys", "copies", NULL};
static const int64_t train_args[] = {
    -1, 1,     20000, 2048, 2, 0, 1,     20000, 2048, 2, 1, 1,     20000, 2048, 2,        2,
    1,  20000, 2048,  2,    8, 1, 20000, 2048,  2,    0, 0, 20000, 2048,  2,    INT64_MIN};
static const int64_t train_cuda_args[] = {
    -1, 1, 8000000, 131072, 8, 0, 1, 8000000, 131072, 8, 1,        1, 8000000, 131072, 8,
    2,  1, 8000000, 131072, 8, 6, 1, 8000000, 131072, 8, 7,        1, 8000000, 131072, 8,
    8,  1, 8000000, 131072, 8, 0, 0, 8000000, 131072, 8, INT64_MIN};

const bench_case bench_pipeline_cases[] = {
    {"pipeline/engine", run_engine, engine_names, engine_args, NULL},
    {"pipeline/train", run_train, train_names, train_args, train_cuda_args},
    {NULL, NULL, NULL, NULL, NULL},
};
