/* examples/train/trainer_pipeline.c - a step of the training run as callbacks of a train pipeline.
 *
 * The model is one module, the collection of all tables, followed by a factorization machine:
 *
 *   copy_batch      copies keys and labels to the device
 *   dense_forward   the machine: forward, loss and gradients in one, or scores
 *   loss            sums over all ranks
 *   optimizer       updates the bias from these sums, and returns the batch to the reader
 *
 * --pipeline selects how much of this, and of the tables' own work, runs ahead (hotbed/train.h).
 * All plans give the same bytes.
 */
#include "examples/train/trainer.h"
#include "hotbed/profile.h"

#include <stdlib.h>

enum {
    LOG_ENTRIES = 1 << 16, /* number of tasks in --trace: the last few thousand steps */
    PICTURE_STEPS = 6,     /* number of steps in --picture */
    SCHEDULE_DEPTH = 3,    /* largest number of batches in flight that sw-auto may choose */
    SETTLING_STEPS = 2     /* first steps, which sw-auto ignores */
};

/* --- callbacks ------------------------------------------------------------------------------------- */

static const void *get_features(const void *batch) {
    return &((const hotbed_train_buffers *)batch)->kjt;
}

static const hotbed_field field = {.name = "features", .get = get_features};
static const hotbed_batch_type batch_type = {.name = "batch", .fields = &field, .num_fields = 1};

/* A buffer set is both the host batch and the device batch. */
static hotbed_status copy_batch(
    void *self, uint32_t place, void *host_batch, hotbed_stream *stream, void **batch) {
    hotbed_train_buffers *b = host_batch;
    hotbed_run *t = self;
    uint32_t n = b->batch->samples;
    (void)place; /* each batch is in its own buffer set */
    b->kjt = (hotbed_kjt){.size = sizeof b->kjt};
    b->kjt.num_features = HOTBED_CRITEO_FIELDS;
    b->kjt.batch_size = n;
    b->kjt.num_keys = (uint64_t)n * HOTBED_CRITEO_FIELDS;
    b->kjt.keys = b->keys;
    *batch = b;
    size_t bytes = b->kjt.num_keys * sizeof(int64_t);
    if (t->evaluating)
        return hotbed_copy(b->keys, b->batch->keys, bytes, stream);
    if (!hotbed_run_harvest_copy(t, b)) /* the set's last step is done */
        return HOTBED_ERR_STATE;
    hotbed_status status = hotbed_event_record(b->copy_begin, stream);
    if (status == HOTBED_OK)
        status = hotbed_copy(b->keys, b->batch->keys, bytes, stream);
    if (status == HOTBED_OK)
        status = hotbed_copy(b->labels, b->batch->labels, n * sizeof(float), stream);
    if (status == HOTBED_OK)
        status = hotbed_event_record(b->copy_end, stream);
    b->copied = status == HOTBED_OK;
    return status;
}

static hotbed_status model_forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
    hotbed_run *t = self;
    const hotbed_ref features = hotbed_ref_field(batch, field.name);
    hotbed_ref output;
    hotbed_status status = hotbed_module_forward(t->module, &features, 1, stream, &output);
    for (uint32_t s = 0; s < HOTBED_TRAIN_BUFFER_SETS; s++)
        if (status == HOTBED_OK && hotbed_ref_data(batch) == &t->buffer_sets[s])
            t->buffer_sets[s].output = hotbed_ref_data(output);
    return status;
}

static hotbed_status dense_forward(void *self, uint32_t place, void *batch, hotbed_stream *stream) {
    hotbed_train_buffers *b = batch;
    hotbed_run *t = self;
    b->job = (hotbed_fm_job){
        .samples = b->batch->samples,
        .fields = HOTBED_CRITEO_FIELDS,
        .dim = t->options.dim,
        .rows = b->output->rows,
        .gradients = b->output->gradient,
        .labels = b->labels,
        .dense = t->dense,
        .learning_rate = t->place.learning_rate,
        .losses = t->losses,
        .errors = t->errors,
        .sums = b->sums,
        .all_sums = b->all_sums,
        .ranks = t->ranks,
        .loss = b->loss,
        .logits = b->logits};
    return t->evaluating ? t->kernels->score(&b->job, stream) : t->kernels->step(&b->job, stream);
}

static hotbed_status loss(void *self, uint32_t place, void *batch, hotbed_stream *stream) {
    hotbed_train_buffers *b = batch;
    hotbed_run *t = self;
    if (t->evaluating)
        return hotbed_stream_call(stream, hotbed_run_scores_done, b);
    return hotbed_comm_all_gather(t->comm, 2 * sizeof *b->sums, b->sums, b->all_sums, stream);
}

static hotbed_status optimizer(void *self, uint32_t place, void *batch, hotbed_stream *stream) {
    hotbed_train_buffers *b = batch;
    const hotbed_run *t = self;
    hotbed_status status = t->kernels->finish(&b->job, stream);
    return status == HOTBED_OK ? hotbed_stream_call(stream, hotbed_run_step_done, b) : status;
}

/* --- making the pipeline --------------------------------------------------------------------------- */

/* Abort, so that no rank waits for a rank whose pipeline has failed. */
static void revoke(void *self) {
    const hotbed_run *t = self;
    hotbed_comm_abort(t->comm, NULL, NULL);
}

static bool create(hotbed_run *t, const char *plan, bool timed, const hotbed_schedule *schedule) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_trainer trainer = {.size = sizeof trainer};
    trainer.model = &t->model;
    trainer.batch = &batch_type;
    trainer.self = t;
    trainer.copy_batch = copy_batch;
    trainer.dense_forward = dense_forward;
    trainer.loss = loss;
    trainer.optimizer = optimizer;
    options.plan = plan;
    options.backend = t->backend;
    options.device = hotbed_stream_device(t->stream);
    if (schedule != NULL)
        options.steps = hotbed_schedule_steps(schedule, &options.num_steps);
    options.pipeline = (hotbed_pipeline_options){.size = sizeof options.pipeline};
    options.pipeline.rank = (int)t->rank;
    options.pipeline.timed = timed;
    options.pipeline.log_entries = timed ? LOG_ENTRIES : 0;
    options.pipeline.revoke = revoke;
    options.pipeline.revoke_self = t;
    options.pipeline.tolerate = hotbed_run_tolerate;
    options.pipeline.tolerate_self = t;
    hotbed_status status = hotbed_train_create(&trainer, &options, &t->train);
    return status == HOTBED_ERR_MEMORY ? hotbed_run_fail_step(t, status)
                                       : hotbed_run_ok(t, status, "--pipeline");
}

static bool draws(const hotbed_run *t) {
    return t->options.trace != NULL || t->options.picture != NULL;
}

bool hotbed_run_create_pipeline(hotbed_run *t) {
    static const char *const name = "tables";
    if (!hotbed_run_ok(
            t, hotbed_sharded_modules_create(1, &name, &t->sharded, &t->modules), "modules"))
        return false;
    t->module = hotbed_sharded_modules_get(t->modules, 0);
    t->model = (hotbed_model){
        .modules = &t->module, .num_modules = 1, .forward = model_forward, .self = t};
    t->timing = strcmp(t->options.pipeline, "sw-auto") == 0;
    return t->timing ? create(t, "sw-serial", true, NULL)
                     : create(t, t->options.pipeline, draws(t), NULL);
}

/* --- sw-auto --------------------------------------------------------------------------------------- */

/* Mean seconds of each task: on its stream or on the host, whichever is longer. */
static bool read_costs(hotbed_run *t, uint32_t num_tasks, double *costs) {
    static const uint64_t most = (uint64_t)HOTBED_TRAIN_TIMED_STEPS * HOTBED_PIPELINE_TASKS_MOST;
    hotbed_log_entry *entries = calloc(most, sizeof *entries);
    uint64_t n = 0;
    if (entries == NULL)
        return hotbed_run_fail(t, "no memory for a log");
    bool ok = hotbed_run_ok(
        t, hotbed_pipeline_log(hotbed_train_pipeline(t->train), most, entries, &n), "sw-auto");
    for (uint64_t i = 0; ok && i < n; i++) {
        const hotbed_log_entry *e = &entries[i];
        double host = e->end - e->begin, device = e->device_end - e->device_begin;
        if (e->iteration >= SETTLING_STEPS && e->task < num_tasks)
            costs[e->task] +=
                (host > device ? host : device) / (HOTBED_TRAIN_TIMED_STEPS - SETTLING_STEPS);
    }
    free(entries);
    return ok;
}

bool hotbed_run_reschedule(hotbed_run *t) {
    double costs[HOTBED_PIPELINE_TASKS_MOST] = {0};
    hotbed_profile profile = {0};
    hotbed_schedule *schedule = NULL;
    const hotbed_step *steps;
    bool ok = hotbed_run_ok(
                  t, hotbed_train_plan_steps("sw-serial", &steps, &profile.num_tasks), "sw-auto") &&
              hotbed_run_agree(t, read_costs(t, profile.num_tasks, costs)) &&
              hotbed_run_share(t, sizeof costs, costs); /* rank 0's times decide */
    for (uint32_t s = 0; s < profile.num_tasks; s++)
        profile.tasks[s].exposed = costs[s];
    ok = ok &&
         hotbed_run_ok(
             t, hotbed_train_schedule(t->train, &profile, SCHEDULE_DEPTH, &schedule), "sw-auto");
    if (ok && !t->options.quiet)
        hotbed_train_say(
            "sw-auto: %.3g ms a step, %.3g ms in a row, by the times of %d steps",
            1e3 * hotbed_schedule_seconds(schedule), 1e3 * hotbed_schedule_serial_seconds(schedule),
            HOTBED_TRAIN_TIMED_STEPS);
    if (ok) {
        hotbed_train_destroy(t->train);
        t->train = NULL;
        t->timing = false;
        ok = create(t, "sw-serial", draws(t), schedule);
    }
    hotbed_schedule_destroy(schedule);
    return ok;
}

/* --- running it ------------------------------------------------------------------------------------ */

static hotbed_status next_batch(void *self, void **batch, bool *end) {
    hotbed_run *t = self;
    *end = t->taken == t->stop;
    if (*end)
        return HOTBED_OK;
    hotbed_train_buffers *b = hotbed_run_take(t, t->reader);
    if (b == NULL) {
        *end = true;
        t->over = true;
        return t->error[0] == '\0' ? HOTBED_OK : HOTBED_ERR_IO;
    }
    t->taken++;
    t->fraction = b->batch->fraction;
    if (t->fraction >= 0 && !t->evaluating)
        t->fraction = (b->batch->epoch + t->fraction) / t->options.epochs;
    *batch = b;
    return HOTBED_OK;
}

/* Count the overhead of a step. Not called for the first steps of a pipeline, which create
 * contexts. */
static void count(hotbed_run *t, hotbed_counters *last) {
    hotbed_counters now = {.size = sizeof now};
    hotbed_counters_read(&now);
    t->host_waits += now.host_waits - last->host_waits;
    t->allocations += now.allocations - last->allocations;
    t->counted++;
    *last = now;
}

bool hotbed_run_pass(
    hotbed_run *t, void (*show)(hotbed_run *trainer, void *argument), void *argument) {
    const hotbed_loader loader = {.next = next_batch, .self = t};
    hotbed_pipeline *pipeline = hotbed_train_pipeline(t->train);
    hotbed_pipeline_stats stats = {.size = sizeof stats};
    hotbed_counters last = {.size = sizeof last};
    const hotbed_iteration *iteration;
    hotbed_status status = hotbed_pipeline_bind(pipeline, &loader);
    hotbed_counters_read(&last);
    while (status == HOTBED_OK && t->error[0] == '\0') {
        status = hotbed_pipeline_progress(pipeline, &iteration);
        if (status != HOTBED_OK || iteration == NULL)
            break;
        t->handed++;
        if (t->timing)
            status = hotbed_stream_sync(hotbed_pipeline_stream(pipeline));
        if (t->timing || t->evaluating ||
            hotbed_iteration_number(iteration) < hotbed_pipeline_depth(pipeline))
            hotbed_counters_read(&last);
        else
            count(t, &last);
        show(t, argument);
    }
    if (status != HOTBED_OK)
        return hotbed_run_fail_step(t, status);
    hotbed_pipeline_stats_read(pipeline, &stats);
    if (!t->evaluating && stats.iterations > 0)
        t->signal_waits = (double)stats.signal_waits / (double)stats.iterations;
    return t->error[0] == '\0';
}

bool hotbed_run_write_timeline(hotbed_run *t) {
    hotbed_pipeline *pipeline = hotbed_train_pipeline(t->train);
    return (t->options.trace == NULL ||
            hotbed_run_ok(
                t, hotbed_timeline_write_trace(1, &pipeline, t->options.trace), "--trace")) &&
           (t->options.picture == NULL ||
            hotbed_run_ok(
                t, hotbed_timeline_write_picture(1, &pipeline, PICTURE_STEPS, t->options.picture),
                "--picture"));
}
