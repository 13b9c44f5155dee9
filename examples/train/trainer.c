/* examples/train/trainer.c - the training run: making it, and training to the end of the data.
 *
 * A thread reads batches ahead; the pipeline of trainer_pipeline.c takes and trains them.  The main thread
 * never waits for a stream: a batch's buffers are given back by a call at the end of its step, and only the
 * reader waits for them.
 */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Half of the width of the first factors; small against 1 / sqrt(fields). */
static const float first_factors = 0.02F;

/* Of its capacity, what a table holds when it grows: polls know of keys some steps after they came. */
static const float growth_load = 0.5F;

bool hotbed_run_fail(hotbed_run *trainer, const char *format, ...) {
    va_list arguments;
    if (trainer->error[0] != '\0')
        return false; /* the first failure counts */
    va_start(arguments, format);
    vsnprintf(trainer->error, sizeof trainer->error, format, arguments);
    va_end(arguments);
    return false;
}

bool hotbed_run_forgive(void *self, hotbed_status fault) {
    hotbed_run *trainer = self;
    if (fault != HOTBED_ERR_FULL)
        return false;
    pthread_mutex_lock(&trainer->mutex);
    bool first = trainer->full_faults++ == 0;
    pthread_mutex_unlock(&trainer->mutex);
    if (first)
        hotbed_train_say(
            "warning: %s; keys without a slot are not trained: give a larger --capacity or "
            "--max-capacity",
            hotbed_last_error());
    return true;
}

bool hotbed_run_ok(hotbed_run *trainer, hotbed_status status, const char *what) {
    if (status == HOTBED_OK)
        return true;
    return hotbed_run_forgive(trainer, status) ||
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

/* The ranks of the tables: GPUs are joined through the ranks that were given. */
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
        hotbed_table_options_init(&tables[f]);
        tables[f].name = hotbed_criteo_field_name(f);
        tables[f].dim = o->dim + 1;
        tables[f].capacity = HOTBED_CRITEO_BUCKETS;
        if (f >= HOTBED_CRITEO_INTEGERS) {
            tables[f].capacity = o->capacity;
            tables[f].max_capacity = o->max_capacity;
            tables[f].growth_load = growth_load;
        }
        tables[f].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[f].initializer.lower = -first_factors;
        tables[f].initializer.upper = first_factors;
    }
    hotbed_storage_options_init(&options);
    options.num_tables = HOTBED_CRITEO_FIELDS;
    options.tables = tables;
    options.pooling = HOTBED_POOL_NONE; /* a row a key, feature by feature */
    options.optimizer.kind = o->optimizer;
    options.optimizer.learning_rate = trainer->place.learning_rate;
    /* The gradient of a few dozen rows; without it a key's first row would move it by the whole rate. */
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
    if (trainer->ranks == 1) { /* no sizes to wait for, and nobody to send fewer keys to */
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

/* Parts of one allocation, each aligned to 256 bytes. */
static void *carve(const hotbed_memory *memory, size_t *used, size_t bytes) {
    char *part = (char *)memory->data + *used;
    *used += (bytes + 255) & ~(size_t)255;
    return part;
}

static bool alloc(
    hotbed_run *trainer, hotbed_memory_kind kind, size_t bytes, hotbed_memory *memory) {
    return hotbed_run_ok(
        trainer, hotbed_memory_alloc(trainer->stream, kind, bytes, NULL, memory), "batch buffers");
}

static bool create_slot(hotbed_run *trainer, uint32_t s) {
    hotbed_train_slot *slot = &trainer->slots[s];
    size_t batch = trainer->share;
    size_t key_bytes = batch * HOTBED_CRITEO_FIELDS * sizeof(int64_t), sums = 2 * sizeof(double);
    size_t used = 0;
    slot->trainer = trainer;
    slot->batch = &trainer->batches[s];
    if (!alloc(trainer, HOTBED_MEMORY_PINNED, key_bytes + batch * 8 + 1024, &slot->host) ||
        !alloc(
            trainer, HOTBED_MEMORY_DEVICE, key_bytes + batch * 4 + (trainer->ranks + 7) * 256,
            &slot->device))
        return false;
    slot->batch->keys = carve(&slot->host, &used, key_bytes);
    slot->batch->labels = carve(&slot->host, &used, batch * sizeof(float));
    slot->logits = carve(&slot->host, &used, batch * sizeof(float));
    slot->loss = carve(&slot->host, &used, sizeof(double));
    used = 0;
    slot->keys = carve(&slot->device, &used, key_bytes);
    slot->labels = carve(&slot->device, &used, batch * sizeof(float));
    slot->sums = carve(&slot->device, &used, sums);
    slot->all_sums = carve(&slot->device, &used, sums * trainer->ranks);
    return true;
}

static bool create_buffers(hotbed_run *trainer) {
    size_t batch = trainer->share, used = 0;
    if (!alloc(trainer, HOTBED_MEMORY_DEVICE, batch * 12 + 1024, &trainer->device))
        return false;
    trainer->losses = carve(&trainer->device, &used, batch * sizeof(double));
    trainer->errors = carve(&trainer->device, &used, batch * sizeof(float));
    trainer->dense = carve(&trainer->device, &used, sizeof *trainer->dense);
    for (uint32_t s = 0; s < HOTBED_TRAIN_SLOTS; s++)
        if (!create_slot(trainer, s))
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
    trainer->share = hotbed_reader_share(options->batch, trainer->ranks);
    memcpy(trainer->place.magic, "HBTRAIN1", sizeof trainer->place.magic);
    trainer->place.learning_rate = options->learning_rate > 0
                                       ? options->learning_rate
                                       : hotbed_train_default_rate(options->optimizer);
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
    hotbed_stream_destroy(trainer->stream);
    if (trainer->owns_comm)
        hotbed_comm_destroy(trainer->comm);
    for (uint32_t s = 0; s < HOTBED_TRAIN_SLOTS; s++) {
        hotbed_memory_free(&trainer->slots[s].host);
        hotbed_memory_free(&trainer->slots[s].device);
    }
    hotbed_memory_free(&trainer->device);
    free(trainer->curve);
    free(trainer->scores.logits);
    free(trainer->scores.labels);
    pthread_mutex_destroy(&trainer->mutex);
}

/* --- reading --------------------------------------------------------------------------------------- */

hotbed_reader *hotbed_run_open(
    hotbed_run *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs) {
    hotbed_reader_options options = {
        .path = path,
        .batch_size = trainer->options.batch,
        .rank = trainer->rank,
        .ranks = trainer->ranks,
        .num_batches = HOTBED_TRAIN_SLOTS,
        .batches = trainer->batches,
        .epochs = epochs,
        .skip_bad = trainer->options.skip_bad,
        .first_epoch = from != NULL ? (uint32_t)from->epoch : 0,
        .first_line = from != NULL ? from->lines : 0,
        .first_bad = from != NULL ? from->bad : 0};
    char message[512];
    hotbed_reader *reader = hotbed_reader_start(&options, message, sizeof message);
    if (reader == NULL)
        hotbed_run_fail(trainer, "%s", message);
    return reader;
}

hotbed_train_slot *hotbed_run_take(hotbed_run *trainer, hotbed_reader *reader) {
    hotbed_reader_batch *batch = hotbed_reader_take(reader);
    if (batch == NULL) {
        if (hotbed_reader_error(reader) != NULL)
            hotbed_run_fail(trainer, "%s", hotbed_reader_error(reader));
        return NULL;
    }
    hotbed_train_slot *slot = &trainer->slots[batch - trainer->batches];
    slot->reader = reader;
    return slot;
}

/* --- training -------------------------------------------------------------------------------------- */

void hotbed_run_step_done(void *argument) {
    hotbed_train_slot *slot = argument;
    hotbed_run *t = slot->trainer;
    hotbed_train_place *place = &t->place;
    pthread_mutex_lock(&t->mutex);
    place->steps++;
    place->rows += slot->batch->rows;
    place->epoch = slot->batch->epoch;
    place->lines = slot->batch->lines;
    place->bad = slot->batch->bad;
    place->loss += *slot->loss;
    if (!isfinite(*slot->loss) && t->diverged == 0)
        t->diverged = place->steps;
    place->window_loss += *slot->loss;
    place->window_rows += slot->batch->rows;
    if (place->steps % HOTBED_TRAIN_CURVE_STEPS == 0) {
        if (t->curve_points == t->curve_room) {
            uint64_t room = t->curve_room == 0 ? 256 : t->curve_room * 2;
            hotbed_curve_point *curve = realloc(t->curve, room * sizeof *curve);
            if (curve != NULL) {
                t->curve = curve;
                t->curve_room = room;
            }
        }
        if (t->curve_points < t->curve_room)
            t->curve[t->curve_points++] =
                (hotbed_curve_point){place->steps, place->window_loss / (double)place->window_rows};
        else
            t->curve_lost = true;
        place->window_loss = 0;
        place->window_rows = 0;
    }
    pthread_mutex_unlock(&t->mutex);
    hotbed_reader_give(slot->reader);
}

/* Whether the loss has been a number so far; without a wait. */
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

/* Pass after pass of the pipeline: it is empty where a checkpoint is written or its plan changes. */
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

bool hotbed_run_train(hotbed_run *t) {
    hotbed_progress progress;
    t->first_step = t->place.steps;
    t->first_rows = t->place.rows;
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
    if (!ok) { /* its streams use the slots */
        hotbed_train_destroy(t->train);
        t->train = NULL;
    }
    t->bad_lines = hotbed_reader_bad(t->reader);
    hotbed_reader_stop(t->reader);
    if (ok && t->place.rows == 0)
        ok = hotbed_run_fail(t, "%s: no rows", t->options.data);
    if (ok && t->options.save != NULL)
        ok = hotbed_run_save(t);
    return ok;
}
