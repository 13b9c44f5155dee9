/* bench/plans_trainer.c - the trainer of hotbed-plans: W5's tables, keys and steps, and the layers
 * of a dense model. */
#include "bench/plans.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdlib.h>

/* --- the trainer ------------------------------------------------------------------------------ */

static const void *get_keys(const void *batch) {
    return batch;
}

static const hotbed_field field = {"keys", get_keys, NULL};
static const hotbed_batch_type batch_type = {.name = "batch", .fields = &field, .num_fields = 1};

static size_t batch_bytes(const plans_trainer *s) {
    return workload_keys_a_step(&s->input.shape) * sizeof(int64_t);
}

void *plans_batch(const plans_trainer *example, uint64_t i) {
    return (uint8_t *)example->host.data + i % example->input.shape.batches * batch_bytes(example);
}

static hotbed_status next_batch(void *self, void **batch, bool *end) {
    plans_trainer *s = self;
    *batch = plans_batch(s, s->pulled++);
    *end = false;
    return HOTBED_OK;
}

hotbed_loader plans_loader(plans_trainer *example) {
    return (hotbed_loader){.next = next_batch, .self = example};
}

static hotbed_status copy_batch(
    void *self, uint32_t set, void *host, hotbed_stream *stream, void **batch) {
    plans_trainer *s = self;
    hotbed_kjt *kjt = &s->kjts[set];
    uint8_t *keys = (uint8_t *)s->device.data + set * batch_bytes(s);
    *kjt = (hotbed_kjt){.size = sizeof *kjt};
    kjt->num_features = s->input.shape.tables;
    kjt->batch_size = s->input.shape.samples;
    kjt->num_keys = workload_keys_a_step(&s->input.shape);
    kjt->keys = (const int64_t *)(const void *)keys;
    *batch = kjt;
    return hotbed_copy(keys, host, batch_bytes(s), stream);
}

static hotbed_status model_forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
    plans_trainer *s = self;
    const hotbed_ref argument = hotbed_ref_field(batch, "keys");
    hotbed_ref output;
    HOTBED_TRY(hotbed_module_forward(s->module, &argument, 1, stream, &output));
    if (!hotbed_ref_traced(batch))
        s->outputs[(const hotbed_kjt *)hotbed_ref_data(batch) - s->kjts] = hotbed_ref_data(output);
    return HOTBED_OK;
}

static hotbed_status dense_forward(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    const plans_trainer *s = self;
    return bench_model_run(&s->dense, s->layers, stream);
}

static hotbed_status dense_backward(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    const plans_trainer *s = self;
    HOTBED_TRY(bench_model_run(&s->dense, s->layers, stream));
    return hotbed_copy(s->outputs[set]->gradient, s->gradient.data, s->outputs[set]->bytes, stream);
}

/* These functions write only to their buffer set, or to state that the next batch overwrites. */
static const hotbed_trainer_io trainer_io[] = {
    {.function = "copy_batch"},
    {.function = "forward"},
    {.function = "dense_forward"},
    {.function = "dense_backward"}};

/* --- open and close --------------------------------------------------------------------------- */

static hotbed_status open_collection(plans_trainer *s, const workload *what) {
    static const char *const name = "tables";
    const workload_shape *shape = &s->input.shape;
    workload_tables tables;
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    workload_storage_options(what, shape, &tables, &storage);
    storage.mode = what->mode;
    storage.move_sms = s->move_sms;
    for (uint32_t t = 0; t < shape->tables && workload_tiered(what); t++) {
        tables.options[t].upper_capacity = workload_upper_rows(what, &s->input, t);
        tables.options[t].insertion = s->insertion;
    }
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.max_batch_size = shape->samples;
    options.max_keys = workload_keys_a_step(shape);
    options.capacity = options.max_keys;
    HOTBED_TRY(hotbed_comm_create_self(NULL, &s->comm));
    HOTBED_TRY(hotbed_sharded_create(&options, s->comm, s->stream, &s->collection));
    HOTBED_TRY(hotbed_sharded_modules_create(1, &name, &s->collection, &s->modules));
    s->module = hotbed_sharded_modules_get(s->modules, 0);
    return HOTBED_OK;
}

static hotbed_status open_buffers(plans_trainer *s) {
    const workload_shape *shape = &s->input.shape;
    size_t rows = workload_keys_a_step(shape) * shape->dim * sizeof(float);
    HOTBED_TRY(hotbed_memory_alloc(
        s->stream, HOTBED_MEMORY_PINNED, shape->batches * batch_bytes(s), NULL, &s->host));
    HOTBED_TRY(hotbed_memory_alloc(
        s->stream, HOTBED_MEMORY_DEVICE, PLANS_SLOTS * batch_bytes(s), NULL, &s->device));
    HOTBED_TRY(hotbed_memory_alloc(s->stream, HOTBED_MEMORY_DEVICE, rows, NULL, &s->gradient));
    memcpy(s->host.data, s->input.keys, shape->batches * batch_bytes(s));
    HOTBED_TRY(hotbed_copy(s->gradient.data, s->input.gradient, rows, s->stream));
    HOTBED_TRY(bench_model_open(&s->dense, s->stream));
    return hotbed_stream_sync(s->stream);
}

static hotbed_status make(plans_trainer *s, const workload *what, double scale) {
    HOTBED_TRY(workload_input_for(what, scale, &s->input));
    HOTBED_TRY(hotbed_stream_create(s->backend, 0, &s->stream));
    for (int i = 0; i < 2; i++)
        HOTBED_TRY(hotbed_event_create(s->stream, &s->passed[i]));
    HOTBED_TRY(open_buffers(s));
    HOTBED_TRY(open_collection(s, what));
    s->model = (hotbed_model){
        .modules = &s->module, .num_modules = 1, .forward = model_forward, .self = s};
    s->trainer = (hotbed_trainer){.size = sizeof s->trainer};
    s->trainer.model = &s->model;
    s->trainer.batch = &batch_type;
    s->trainer.self = s;
    s->trainer.copy_batch = copy_batch;
    s->trainer.dense_forward = dense_forward;
    s->trainer.dense_backward = dense_backward;
    s->trainer.io = trainer_io;
    s->trainer.num_io = sizeof trainer_io / sizeof *trainer_io;
    return HOTBED_OK;
}

hotbed_status plans_open(
    const workload *what, double scale, hotbed_insertion insertion, uint32_t move_sms,
    hotbed_backend backend, plans_trainer *example) {
    *example = (plans_trainer){.backend = backend, .insertion = insertion, .move_sms = move_sms};
    hotbed_status status = make(example, what, scale);
    if (status != HOTBED_OK)
        plans_close(example);
    return status;
}

void plans_close(plans_trainer *example) {
    hotbed_sharded_modules_destroy(example->modules);
    hotbed_sharded_destroy(example->collection);
    hotbed_comm_destroy(example->comm);
    hotbed_memory_free(&example->host);
    hotbed_memory_free(&example->device);
    hotbed_memory_free(&example->gradient);
    bench_model_close(&example->dense);
    for (int i = 0; i < 2; i++)
        hotbed_event_destroy(example->passed[i]);
    hotbed_stream_destroy(example->stream);
    workload_input_destroy(&example->input);
    *example = (plans_trainer){0};
}

/* --- time ------------------------------------------------------------------------------------- */

hotbed_status plans_set_dense(plans_trainer *example, double wanted, double *seconds) {
    HOTBED_TRY(bench_model_size(
        &example->dense, 0.5 * wanted, &example->layers, seconds, example->stream));
    *seconds *= 2.0;
    return HOTBED_OK;
}

void plans_options(
    const plans_trainer *example, const plans_entry *entry, uint64_t log,
    hotbed_train_options *options) {
    *options = (hotbed_train_options){.size = sizeof *options};
    options->plan = entry->plan;
    options->steps = entry->steps;
    options->num_steps = entry->num_steps;
    options->backend = example->backend;
    options->same_priority = entry->same_priority;
    options->pipeline = (hotbed_pipeline_options){
        .size = sizeof options->pipeline, .log_entries = (uint32_t)log, .timed = log > 0};
}

hotbed_status plans_make(
    plans_trainer *example, const plans_entry *entry, uint64_t log, hotbed_train **out) {
    hotbed_train_options options;
    plans_options(example, entry, log, &options);
    return hotbed_train_create(&example->trainer, &options, out);
}

/* The log has device times only of tasks that have completed when their buffer set is used again.
 * So the host waits for the step before the last one; the streams have the next step's work by
 * then. */
static hotbed_status run_steps(const plans_trainer *example, hotbed_train *train, uint32_t steps) {
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_iteration *iteration = NULL;
    for (uint32_t i = 0; i < steps; i++) {
        HOTBED_TRY(hotbed_pipeline_progress(pipeline, &iteration));
        HOTBED_TRY(hotbed_event_record(example->passed[i % 2], hotbed_pipeline_stream(pipeline)));
        HOTBED_TRY(hotbed_event_sync(example->passed[(i + 1) % 2]));
    }
    return hotbed_stream_sync(hotbed_pipeline_stream(pipeline));
}

hotbed_status plans_time(
    plans_trainer *example, hotbed_train *train, uint32_t warmup, uint32_t steps, double *seconds) {
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = plans_loader(example);
    example->pulled = 0;
    HOTBED_TRY(hotbed_pipeline_bind(pipeline, &loader));
    HOTBED_TRY(run_steps(example, train, warmup));
    double start = hotbed_monotonic_seconds();
    HOTBED_TRY(run_steps(example, train, steps));
    *seconds = (hotbed_monotonic_seconds() - start) / steps;
    return hotbed_pipeline_drain(pipeline);
}
