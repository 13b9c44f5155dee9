/* examples/train/trainer.c - the training run: set it up, and train to the end of the data.
 *
 * Threads read and parse batches ahead (log_reader.h); the pipeline of trainer_pipeline.c takes and
 * trains them. The main thread never waits for a stream: a call at the end of a batch's step
 * returns the batch's buffers, and only the parsing threads wait for free buffers. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Half the width of the range of the initial factors; small against 1 / sqrt(fields). */
static const float first_factors = 0.02F;

/* Load at which a table grows. Well below 1, since polls learn of new keys some steps late. */
static const float growth_load = 0.5F;

bool hotbed_run_fail(hotbed_run *trainer, const char *format, ...) {
    va_list arguments;
    if (trainer->error[0] != '\0')
        return false; /* keep the first failure */
    va_start(arguments, format);
    vsnprintf(trainer->error, sizeof trainer->error, format, arguments);
    va_end(arguments);
    return false;
}

bool hotbed_run_tolerate(void *self, hotbed_status fault) {
    hotbed_run *trainer = self;
    if (fault != HOTBED_ERR_FULL)
        return false;
    pthread_mutex_lock(&trainer->mutex);
    bool first = trainer->full_faults++ == 0;
    pthread_mutex_unlock(&trainer->mutex);
    if (!first)
        return true;
    hotbed_train_say(
        "warning: %s; keys without a slot are not trained: give a larger %s", hotbed_last_error(),
        trainer->options.store != NULL ? "--hbm-mb" : "--capacity or --max-capacity");
    return true;
}

/* Fail because the communicator failed: name the rank that caused it, with the library's text. */
static bool fail_ranks(hotbed_run *t, const char *text) {
    static const char *const reasons[] = {
        "",
        "has failed",
        "is gone: it died, or has ended",
        "did not come in time",
        "did something else than this one",
        "cannot be reached"};
    hotbed_comm_fault fault = {.size = sizeof fault};
    if (hotbed_comm_failure(t->comm, &fault) != HOTBED_OK || fault.reason == HOTBED_COMM_WELL ||
        fault.reason > HOTBED_COMM_TRANSPORT)
        return hotbed_run_fail(t, "%s: %s", hotbed_status_name(HOTBED_ERR_COMM), text);
    char who[32] = "another rank";
    if (fault.rank >= 0)
        snprintf(who, sizeof who, "rank %d", (int)fault.rank);
    return hotbed_run_fail(t, "%s %s: %s", who, reasons[fault.reason], fault.text);
}

bool hotbed_run_fail_step(hotbed_run *t, hotbed_status status) {
    if (status == HOTBED_ERR_COMM)
        return fail_ranks(t, hotbed_last_error());
    if (status == HOTBED_ERR_MEMORY)
        return hotbed_run_fail(
            t, "no memory for batches of %u rows of --dim %u: give a smaller --batch: %s",
            t->options.batch, t->options.dim, hotbed_last_error());
    return hotbed_run_fail(t, "%s: %s", hotbed_status_name(status), hotbed_last_error());
}

bool hotbed_run_ok(hotbed_run *trainer, hotbed_status status, const char *what) {
    if (status == HOTBED_OK)
        return true;
    if (status == HOTBED_ERR_COMM && trainer->comm != NULL)
        return fail_ranks(trainer, hotbed_last_error());
    return hotbed_run_tolerate(trainer, status) ||
           hotbed_run_fail(
               trainer, "%s: %s: %s", what, hotbed_status_name(status), hotbed_last_error());
}

bool hotbed_run_sync(hotbed_run *trainer) {
    return hotbed_run_ok(trainer, hotbed_stream_sync(trainer->stream), "stream");
}

/* --- making a trainer ------------------------------------------------------------------------------ */

static bool choose_backend(hotbed_run *trainer) {
    trainer->backend = trainer->options.backend;
    if (trainer->backend == 0) {
        trainer->backend = HOTBED_BACKEND_HOST;
        if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK)
            trainer->backend = HOTBED_BACKEND_CUDA;
    }
    if (!hotbed_run_ok(trainer, hotbed_backend_probe(trainer->backend), "--backend"))
        return false;
    trainer->kernels = &hotbed_fm_kernels_host;
#if HOTBED_WITH_CUDA
    if (trainer->backend == HOTBED_BACKEND_CUDA)
        trainer->kernels = &hotbed_fm_kernels_cuda;
#endif
    return true;
}

/* Set up the ranks of the tables. GPUs are joined through the ranks that the caller gave. */
static bool join(hotbed_run *trainer) {
    trainer->comm = trainer->joined;
    if (trainer->ranks > 1 && trainer->backend == HOTBED_BACKEND_HOST)
        return true;
    trainer->owns_comm = true;
    if (trainer->ranks > 1)
        return hotbed_run_ok(
            trainer,
            hotbed_comm_create_nccl(NULL, (int)trainer->rank, trainer->joined, &trainer->comm),
            "ranks");
    return hotbed_run_ok(trainer, hotbed_comm_create_self(NULL, &trainer->comm), "ranks");
}

static bool create_stream(hotbed_run *trainer) {
    int device = trainer->backend == HOTBED_BACKEND_CUDA ? (int)trainer->rank : 0;
    return hotbed_run_ok(
        trainer, hotbed_stream_create(trainer->backend, device, &trainer->stream), "stream");
}

static bool create_storage(hotbed_run *trainer) {
    const hotbed_run_options *o = &trainer->options;
    hotbed_table_options tables[HOTBED_CRITEO_FIELDS];
    hotbed_storage_options options;
    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
        tables[f] = (hotbed_table_options){.size = sizeof tables[f]};
        tables[f].name = hotbed_criteo_field_name(f);
        tables[f].dim = o->dim + 1;
        tables[f].capacity = HOTBED_CRITEO_BUCKETS;
        if (f >= HOTBED_CRITEO_INTEGERS) {
            tables[f].capacity = o->capacity;
            tables[f].max_capacity = o->max_capacity;
            tables[f].growth_load = growth_load;
        }
        tables[f].dtype = o->dtype;
        tables[f].state_dtype = o->state_dtype;
        tables[f].rounding = o->rounding;
        tables[f].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[f].initializer.lower = -first_factors;
        tables[f].initializer.upper = first_factors;
    }
    hotbed_storage_options_init(&options);
    options.num_tables = HOTBED_CRITEO_FIELDS;
    options.tables = tables;
    options.pooling = HOTBED_POOL_NONE; /* one row per key, feature by feature */
    options.optimizer.kind = o->optimizer;
    options.optimizer.learning_rate = trainer->place.learning_rate;
    /* About what a few dozen rows add to the sum. Without it, a key's first row would move it by
     * the whole rate. */
    if (o->optimizer == HOTBED_OPT_ADAGRAD)
        options.optimizer.initial_accumulator = 1.0F;
    options.seed = o->seed;
    options.mode = o->mode;
    options.hbm_bytes = o->hbm_bytes;
    options.lower_index_memory = o->lower_index;
    if (!hotbed_run_open_store(trainer, &options))
        return false;
    hotbed_sharded_options sharded;
    hotbed_sharded_options_init(&sharded);
    sharded.storage = &options;
    sharded.max_batch_size = trainer->share;
    sharded.max_keys = (uint64_t)trainer->share * HOTBED_CRITEO_FIELDS;
    sharded.plan = o->plan;
    sharded.growth_every = o->growth_every;
    if (trainer->ranks == 1) { /* no sizes to wait for, no other rank */
        sharded.plan = HOTBED_PLAN_FIXED;
        sharded.dedup = HOTBED_DEDUP_OFF;
    }
    if (!hotbed_run_ok(
            trainer,
            hotbed_sharded_create(&sharded, trainer->comm, trainer->stream, &trainer->sharded),
            "tables"))
        return false;
    trainer->storage = hotbed_sharded_lookup(trainer->sharded, 0);
    return true;
}

/* Cut a part from one allocation, aligned to 256 bytes. */
static void *carve(const hotbed_memory *memory, size_t *used, size_t bytes) {
    char *part = (char *)memory->data + *used;
    *used += (bytes + 255) & ~(size_t)255;
    return part;
}

static bool alloc(
    hotbed_run *trainer, hotbed_memory_kind kind, size_t bytes, hotbed_memory *memory) {
    hotbed_status status = hotbed_memory_alloc(trainer->stream, kind, bytes, NULL, memory);
    return status == HOTBED_OK || hotbed_run_fail_step(trainer, status);
}

static bool create_buffer_set(hotbed_run *trainer, uint32_t s) {
    hotbed_train_buffers *b = &trainer->buffer_sets[s];
    size_t batch = trainer->share;
    size_t key_bytes = batch * HOTBED_CRITEO_FIELDS * sizeof(int64_t), sums = 2 * sizeof(double);
    size_t used = 0;
    b->trainer = trainer;
    b->batch = &trainer->batches[s];
    if (!alloc(trainer, HOTBED_MEMORY_PINNED, key_bytes + batch * 8 + 1024, &b->host) ||
        !alloc(
            trainer, HOTBED_MEMORY_DEVICE, key_bytes + batch * 4 + (trainer->ranks + 7) * 256,
            &b->device))
        return false;
    b->batch->keys = carve(&b->host, &used, key_bytes);
    b->batch->labels = carve(&b->host, &used, batch * sizeof(float));
    b->logits = carve(&b->host, &used, batch * sizeof(float));
    b->loss = carve(&b->host, &used, sizeof(double));
    used = 0;
    b->keys = carve(&b->device, &used, key_bytes);
    b->labels = carve(&b->device, &used, batch * sizeof(float));
    b->sums = carve(&b->device, &used, sums);
    b->all_sums = carve(&b->device, &used, sums * trainer->ranks);
    return hotbed_run_ok(trainer, hotbed_event_create(trainer->stream, &b->copy_begin), "event") &&
           hotbed_run_ok(trainer, hotbed_event_create(trainer->stream, &b->copy_end), "event");
}

static bool create_buffers(hotbed_run *trainer) {
    size_t batch = trainer->share, used = 0;
    if (!alloc(trainer, HOTBED_MEMORY_DEVICE, batch * 12 + 1024, &trainer->device))
        return false;
    trainer->losses = carve(&trainer->device, &used, batch * sizeof(double));
    trainer->errors = carve(&trainer->device, &used, batch * sizeof(float));
    trainer->dense = carve(&trainer->device, &used, sizeof *trainer->dense);
    for (uint32_t s = 0; s < HOTBED_TRAIN_BUFFER_SETS; s++)
        if (!create_buffer_set(trainer, s))
            return false;
    return hotbed_run_ok(
        trainer, hotbed_fill(trainer->dense, 0, sizeof *trainer->dense, trainer->stream), "bias");
}

bool hotbed_run_create(
    hotbed_run *trainer, const hotbed_run_options *options, hotbed_comm *joined) {
    memset(trainer, 0, sizeof *trainer);
    trainer->options = *options;
    trainer->joined = joined;
    trainer->rank = joined == NULL ? 0 : hotbed_comm_rank(joined);
    trainer->ranks = joined == NULL ? 1 : hotbed_comm_size(joined);
    trainer->share = hotbed_log_reader_share(options->batch, trainer->ranks);
    memcpy(trainer->place.magic, "HBTRAIN1", sizeof trainer->place.magic);
    trainer->place.learning_rate = options->learning_rate > 0
                                       ? options->learning_rate
                                       : hotbed_train_default_rate(options->optimizer);
    trainer->place.batch = options->batch;
    pthread_mutex_init(&trainer->mutex, NULL);
    return choose_backend(trainer) && join(trainer) && create_stream(trainer) &&
           create_storage(trainer) && create_buffers(trainer) && hotbed_run_sync(trainer) &&
           hotbed_run_create_pipeline(trainer);
}

void hotbed_run_destroy(hotbed_run *trainer) {
    hotbed_train_destroy(trainer->train);
    hotbed_sharded_modules_destroy(trainer->modules);
    hotbed_sharded_destroy(trainer->sharded);
    hotbed_external_destroy(trainer->store);
    for (uint32_t s = 0; s < HOTBED_TRAIN_BUFFER_SETS; s++) {
        hotbed_event_destroy(trainer->buffer_sets[s].copy_begin);
        hotbed_event_destroy(trainer->buffer_sets[s].copy_end);
    }
    hotbed_stream_destroy(trainer->stream);
    if (trainer->owns_comm)
        hotbed_comm_destroy(trainer->comm);
    for (uint32_t s = 0; s < HOTBED_TRAIN_BUFFER_SETS; s++) {
        hotbed_memory_free(&trainer->buffer_sets[s].host);
        hotbed_memory_free(&trainer->buffer_sets[s].device);
    }
    hotbed_memory_free(&trainer->device);
    hotbed_save_lock_release(&trainer->save_lock);
    free(trainer->curve);
    free(trainer->scores.logits);
    free(trainer->scores.labels);
    pthread_mutex_destroy(&trainer->mutex);
}

/* --- reading --------------------------------------------------------------------------------------- */

hotbed_log_reader *hotbed_run_open(
    hotbed_run *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs) {
    hotbed_log_reader_options options = {
        .path = path,
        .batch_size = trainer->options.batch,
        .rank = trainer->rank,
        .ranks = trainer->ranks,
        .num_batches = HOTBED_TRAIN_BUFFER_SETS,
        .batches = trainer->batches,
        .epochs = epochs,
        .skip_bad = trainer->options.skip_bad,
        .first_epoch = from != NULL ? (uint32_t)from->epoch : 0,
        .first_line = from != NULL ? from->lines : 0,
        .first_bad = from != NULL ? from->bad : 0,
        .threads = trainer->options.parse_threads};
    char message[HOTBED_TRAIN_ERROR_BYTES];
    hotbed_log_reader *reader = hotbed_log_reader_start(&options, message, sizeof message);
    if (reader == NULL)
        hotbed_run_fail(trainer, "%s", message);
    return reader;
}

/* If all enqueued steps are done, the device has been idle since its last step: count that time. */
static void count_starved(hotbed_run *trainer, double since) {
    pthread_mutex_lock(&trainer->mutex);
    bool idle = trainer->place.steps - trainer->first_step == trainer->handed;
    double last_done = trainer->last_done;
    pthread_mutex_unlock(&trainer->mutex);
    if (idle && !trainer->evaluating)
        trainer->starved += hotbed_progress_clock() - (last_done > since ? last_done : since);
}

hotbed_train_buffers *hotbed_run_take(hotbed_run *trainer, hotbed_log_reader *reader) {
    double begin = hotbed_progress_clock();
    hotbed_log_reader_batch *batch = hotbed_log_reader_take(reader);
    count_starved(trainer, begin);
    if (batch == NULL) {
        if (hotbed_log_reader_error(reader) != NULL)
            hotbed_run_fail(trainer, "%s", hotbed_log_reader_error(reader));
        return NULL;
    }
    hotbed_train_buffers *b = &trainer->buffer_sets[batch - trainer->batches];
    b->reader = reader;
    return b;
}

/* --- training -------------------------------------------------------------------------------------- */

void hotbed_run_step_done(void *argument) {
    hotbed_train_buffers *b = argument;
    hotbed_run *t = b->trainer;
    hotbed_train_place *place = &t->place;
    pthread_mutex_lock(&t->mutex);
    place->steps++;
    t->last_done = hotbed_progress_clock();
    place->rows += b->batch->rows;
    place->epoch = b->batch->epoch;
    place->lines = b->batch->lines;
    place->bad = b->batch->bad;
    place->loss += *b->loss;
    if (!isfinite(*b->loss) && t->diverged == 0)
        t->diverged = place->steps;
    place->window_loss += *b->loss;
    place->window_rows += b->batch->rows;
    if (place->steps % HOTBED_TRAIN_CURVE_STEPS == 0) {
        if (t->curve_points == t->curve_capacity) {
            uint64_t capacity = t->curve_capacity == 0 ? 256 : t->curve_capacity * 2;
            hotbed_curve_point *curve = realloc(t->curve, capacity * sizeof *curve);
            if (curve != NULL) {
                t->curve = curve;
                t->curve_capacity = capacity;
            }
        }
        if (t->curve_points < t->curve_capacity)
            t->curve[t->curve_points++] =
                (hotbed_curve_point){place->steps, place->window_loss / (double)place->window_rows};
        else
            t->curve_lost = true;
        place->window_loss = 0;
        place->window_rows = 0;
    }
    pthread_mutex_unlock(&t->mutex);
    hotbed_log_reader_give(b->reader);
}

/* Whether the loss has been finite so far. Never blocks. */
static bool check_loss(hotbed_run *t) {
    pthread_mutex_lock(&t->mutex);
    uint64_t diverged = t->diverged;
    pthread_mutex_unlock(&t->mutex);
    return diverged == 0 || hotbed_run_fail(
                                t, "the loss of step %llu is not finite: --lr is too large",
                                (unsigned long long)diverged);
}

static void show(hotbed_run *t, void *progress) {
    pthread_mutex_lock(&t->mutex);
    uint64_t rows = t->place.rows - t->first_rows;
    double loss = t->curve_points > 0 ? t->curve[t->curve_points - 1].loss : -1;
    pthread_mutex_unlock(&t->mutex);
    (void)check_loss(t);
    hotbed_progress_show(progress, rows, t->fraction, loss);
}

/* Run the pipeline in passes: it drains before each checkpoint and before a change of its plan. */
static bool train(hotbed_run *t, hotbed_progress *progress) {
    uint64_t every = t->options.save_every;
    uint64_t timed_until = t->taken + HOTBED_TRAIN_TIMED_STEPS;
    while (!t->over) {
        t->stop = every > 0 ? (t->taken / every + 1) * every : UINT64_MAX;
        if (t->timing && timed_until < t->stop)
            t->stop = timed_until;
        if (!hotbed_run_pass(t, show, progress))
            return false;
        if (every > 0 && t->taken == t->stop && t->taken % every == 0 && !hotbed_run_save(t))
            return false;
        if (t->timing && t->taken == timed_until && !hotbed_run_reschedule(t))
            return false;
    }
    return true;
}

bool hotbed_run_harvest_copy(hotbed_run *t, hotbed_train_buffers *b) {
    double seconds = 0;
    if (!b->copied)
        return true;
    b->copied = false;
    bool ok = hotbed_run_ok(
        t, hotbed_event_seconds(b->copy_begin, b->copy_end, &seconds), "time of a copy");
    t->linked += seconds;
    return ok;
}

bool hotbed_run_train(hotbed_run *t) {
    hotbed_progress progress;
    t->first_step = t->place.steps;
    t->first_rows = t->place.rows;
    t->first_loss = t->place.loss;
    t->taken = t->place.steps;
    t->reader = hotbed_run_open(t, t->options.data, &t->place, t->options.epochs);
    if (t->reader == NULL)
        return false;
    hotbed_progress_begin(&progress, "train", t->options.quiet);
    double start = hotbed_progress_clock();
    bool ok = train(t, &progress) && check_loss(t);
    t->seconds = hotbed_progress_clock() - start;
    hotbed_progress_end(&progress);
    ok = ok && hotbed_run_write_timeline(t);
    if (!ok) { /* its streams use the buffers */
        hotbed_train_destroy(t->train);
        t->train = NULL;
    }
    for (uint32_t i = 0; ok && i < HOTBED_TRAIN_BUFFER_SETS; i++)
        ok = hotbed_run_harvest_copy(t, &t->buffer_sets[i]);
    t->bad_lines = hotbed_log_reader_bad(t->reader);
    t->reader_times = hotbed_log_reader_times_of(t->reader);
    hotbed_log_reader_stop(t->reader);
    if (ok && t->place.rows == 0)
        ok = hotbed_run_fail(t, "%s: no rows", t->options.data);
    if (ok && t->options.save != NULL)
        ok = hotbed_run_save(t);
    return ok;
}
