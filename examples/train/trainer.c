/* examples/train/trainer.c - the training run: making it, and its pipelined loop.
 *
 * Batch n+1 is read by the reader's thread, copied and prefetched on one stream, while batch n is trained
 * on the other:
 *
 *   reader    | parse n+2       | parse n+3
 *   prefetch  |   copy, prefetch n+1     |   copy, prefetch n+2
 *   compute   | forward, model n | backward n | forward, model n+1 | backward n+1
 *
 * Prefetches and backwards of a storage must not overlap, so prefetch n+1 waits for backward n-1 and
 * backward n for prefetch n+1, both by events.  With several ranks, prefetch sends the keys to the ranks that
 * have their rows, and forward and backward send rows and gradients: hotbed/sharded.h.  The main thread never waits for a stream: a batch's
 * buffers are given back by a call at the end of its step, and only the reader waits for them.
 */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Half of the width of the first factors; small against 1 / sqrt(fields). */
static const float first_factors = 0.02F;

bool hotbed_trainer_fail(hotbed_trainer *trainer, const char *format, ...) {
    va_list arguments;
    if (trainer->error[0] != '\0')
        return false; /* the first failure counts */
    va_start(arguments, format);
    vsnprintf(trainer->error, sizeof trainer->error, format, arguments);
    va_end(arguments);
    return false;
}

bool hotbed_trainer_ok(hotbed_trainer *trainer, hotbed_status status, const char *what) {
    if (status == HOTBED_OK)
        return true;
    const char *text = hotbed_last_error();
    if (status == HOTBED_ERR_FULL) {
        if (trainer->full_faults++ == 0)
            hotbed_train_say(
                "warning: %s; keys without a slot are not trained: give a larger --capacity", text);
        return true;
    }
    return hotbed_trainer_fail(trainer, "%s: %s: %s", what, hotbed_status_name(status), text);
}

bool hotbed_trainer_sync(hotbed_trainer *trainer) {
    bool ok = hotbed_trainer_ok(trainer, hotbed_stream_sync(trainer->prefetch), "prefetch stream");
    return hotbed_trainer_ok(trainer, hotbed_stream_sync(trainer->compute), "compute stream") && ok;
}

/* --- making a trainer ------------------------------------------------------------------------------ */

static bool choose_backend(hotbed_trainer *trainer) {
    trainer->backend = trainer->options.backend;
    if (trainer->backend == 0) {
        trainer->backend = HOTBED_BACKEND_HOST;
        if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK)
            trainer->backend = HOTBED_BACKEND_CUDA;
    }
    if (!hotbed_trainer_ok(trainer, hotbed_backend_probe(trainer->backend), "--backend"))
        return false;
    trainer->kernels = &hotbed_fm_kernels_host;
#if HOTBED_WITH_CUDA
    if (trainer->backend == HOTBED_BACKEND_CUDA)
        trainer->kernels = &hotbed_fm_kernels_cuda;
#endif
    return true;
}

/* The ranks of the tables: GPUs are joined through the ranks that were given. */
static bool join(hotbed_trainer *trainer) {
    trainer->comm = trainer->joined;
    if (trainer->ranks > 1 && trainer->backend == HOTBED_BACKEND_HOST)
        return true;
    trainer->owns_comm = true;
    if (trainer->ranks > 1)
        return hotbed_trainer_ok(
            trainer,
            hotbed_comm_create_nccl(NULL, (int)trainer->rank, trainer->joined, &trainer->comm),
            "ranks");
    return hotbed_trainer_ok(trainer, hotbed_comm_create_self(NULL, &trainer->comm), "ranks");
}

static bool create_streams(hotbed_trainer *trainer) {
    int device = trainer->backend == HOTBED_BACKEND_CUDA ? (int)trainer->rank : 0;
    return hotbed_trainer_ok(
               trainer, hotbed_stream_create(trainer->backend, device, &trainer->prefetch),
               "stream") &&
           hotbed_trainer_ok(
               trainer, hotbed_stream_create(trainer->backend, device, &trainer->compute),
               "stream") &&
           hotbed_trainer_ok(
               trainer, hotbed_event_create(trainer->prefetch, &trainer->fetched), "event") &&
           hotbed_trainer_ok(
               trainer, hotbed_event_create(trainer->compute, &trainer->trained), "event");
}

static bool create_storage(hotbed_trainer *trainer) {
    const hotbed_train_options *o = &trainer->options;
    hotbed_table_options tables[HOTBED_CRITEO_FIELDS];
    hotbed_storage_options options;
    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
        hotbed_table_options_init(&tables[f]);
        tables[f].name = hotbed_criteo_field_name(f);
        tables[f].dim = o->dim + 1;
        tables[f].capacity = f < HOTBED_CRITEO_INTEGERS ? HOTBED_CRITEO_BUCKETS : o->capacity;
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
    if (!hotbed_trainer_open_store(trainer, &options))
        return false;
    hotbed_sharded_options sharded;
    hotbed_sharded_options_init(&sharded);
    sharded.storage = &options;
    sharded.max_batch_size = trainer->share;
    sharded.max_keys = (uint64_t)trainer->share * HOTBED_CRITEO_FIELDS;
    sharded.plan = o->plan;
    if (trainer->ranks == 1) { /* no sizes to wait for, and nobody to send fewer keys to */
        sharded.plan = HOTBED_PLAN_FIXED;
        sharded.dedup = HOTBED_DEDUP_OFF;
    }
    if (!hotbed_trainer_ok(
            trainer,
            hotbed_sharded_create(&sharded, trainer->comm, trainer->compute, &trainer->sharded),
            "tables"))
        return false;
    trainer->storage = hotbed_sharded_lookup(trainer->sharded, 0);
    for (int c = 0; c < 2; c++)
        if (!hotbed_trainer_ok(
                trainer,
                hotbed_sharded_create_context(
                    1, &trainer->sharded, trainer->prefetch, &trainer->contexts[c]),
                "context"))
            return false;
    return true;
}

/* Parts of one allocation, each aligned to 256 bytes. */
static void *carve(const hotbed_memory *memory, size_t *used, size_t bytes) {
    char *part = (char *)memory->data + *used;
    *used += (bytes + 255) & ~(size_t)255;
    return part;
}

static bool alloc(
    hotbed_trainer *trainer, hotbed_memory_kind kind, size_t bytes, hotbed_memory *memory) {
    return hotbed_trainer_ok(
        trainer, hotbed_memory_alloc(trainer->compute, kind, bytes, NULL, memory), "batch buffers");
}

static bool create_slot(hotbed_trainer *trainer, uint32_t s) {
    hotbed_train_slot *slot = &trainer->slots[s];
    size_t batch = trainer->share;
    size_t key_bytes = batch * HOTBED_CRITEO_FIELDS * sizeof(int64_t);
    size_t used = 0;
    slot->trainer = trainer;
    slot->batch = &trainer->batches[s];
    if (!alloc(trainer, HOTBED_MEMORY_PINNED, key_bytes + batch * 8 + 1024, &slot->host) ||
        !alloc(trainer, HOTBED_MEMORY_DEVICE, key_bytes + batch * 4 + 1024, &slot->device))
        return false;
    slot->batch->keys = carve(&slot->host, &used, key_bytes);
    slot->batch->labels = carve(&slot->host, &used, batch * sizeof(float));
    slot->logits = carve(&slot->host, &used, batch * sizeof(float));
    slot->loss = carve(&slot->host, &used, sizeof(double));
    used = 0;
    slot->keys = carve(&slot->device, &used, key_bytes);
    slot->labels = carve(&slot->device, &used, batch * sizeof(float));
    return true;
}

static bool create_buffers(hotbed_trainer *trainer) {
    size_t batch = trainer->share, sums = 2 * sizeof(double);
    size_t row_bytes = batch * HOTBED_CRITEO_FIELDS * (trainer->options.dim + 1) * sizeof(float);
    size_t used = 0;
    if (!alloc(
            trainer, HOTBED_MEMORY_DEVICE, row_bytes + batch * 12 + (trainer->ranks + 7) * 256,
            &trainer->device))
        return false;
    trainer->rows = carve(&trainer->device, &used, row_bytes);
    trainer->losses = carve(&trainer->device, &used, batch * sizeof(double));
    trainer->errors = carve(&trainer->device, &used, batch * sizeof(float));
    trainer->dense = carve(&trainer->device, &used, sizeof *trainer->dense);
    trainer->sums = carve(&trainer->device, &used, sums);
    trainer->all_sums = carve(&trainer->device, &used, sums * trainer->ranks);
    for (uint32_t s = 0; s < HOTBED_TRAIN_SLOTS; s++)
        if (!create_slot(trainer, s))
            return false;
    return hotbed_trainer_ok(
        trainer, hotbed_fill(trainer->dense, 0, sizeof *trainer->dense, trainer->compute), "bias");
}

bool hotbed_trainer_create(
    hotbed_trainer *trainer, const hotbed_train_options *options, hotbed_comm *joined) {
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
    if (options->trace != NULL && (trainer->trace = hotbed_trace_create()) == NULL)
        return hotbed_trainer_fail(trainer, "no memory for the trace");
    return choose_backend(trainer) && join(trainer) && create_streams(trainer) &&
           create_storage(trainer) && create_buffers(trainer) && hotbed_trainer_sync(trainer);
}

void hotbed_trainer_destroy(hotbed_trainer *trainer) {
    for (int c = 0; c < 2; c++)
        hotbed_sharded_context_destroy(trainer->contexts[c]);
    hotbed_sharded_destroy(trainer->sharded);
    hotbed_external_destroy(trainer->store);
    hotbed_event_destroy(trainer->fetched);
    hotbed_event_destroy(trainer->trained);
    hotbed_stream_destroy(trainer->prefetch);
    hotbed_stream_destroy(trainer->compute);
    if (trainer->owns_comm)
        hotbed_comm_destroy(trainer->comm);
    for (uint32_t s = 0; s < HOTBED_TRAIN_SLOTS; s++) {
        hotbed_memory_free(&trainer->slots[s].host);
        hotbed_memory_free(&trainer->slots[s].device);
    }
    hotbed_memory_free(&trainer->device);
    hotbed_trace_destroy(trainer->trace);
    free(trainer->curve);
    free(trainer->scores.logits);
    free(trainer->scores.labels);
    pthread_mutex_destroy(&trainer->mutex);
}

/* --- reading --------------------------------------------------------------------------------------- */

static void mark_read(void *argument, bool begin) {
    hotbed_trace_mark(argument, HOTBED_TRACK_READER, HOTBED_PHASE_READ, begin);
}

hotbed_reader *hotbed_trainer_open(
    hotbed_trainer *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs) {
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
        .first_bad = from != NULL ? from->bad : 0,
        .mark = trainer->trace != NULL ? mark_read : NULL,
        .mark_argument = trainer->trace};
    char message[512];
    hotbed_reader *reader = hotbed_reader_start(&options, message, sizeof message);
    if (reader == NULL)
        hotbed_trainer_fail(trainer, "%s", message);
    return reader;
}

hotbed_train_slot *hotbed_trainer_take(hotbed_trainer *trainer, hotbed_reader *reader) {
    hotbed_reader_batch *batch = hotbed_reader_take(reader);
    if (batch == NULL) {
        if (hotbed_reader_error(reader) != NULL)
            hotbed_trainer_fail(trainer, "%s", hotbed_reader_error(reader));
        return NULL;
    }
    hotbed_train_slot *slot = &trainer->slots[batch - trainer->batches];
    slot->reader = reader;
    return slot;
}

/* --- a step ---------------------------------------------------------------------------------------- */

static bool begin(
    hotbed_trainer *t, hotbed_trace_track track, hotbed_phase phase, hotbed_stream *stream) {
    return hotbed_trainer_ok(
        t, hotbed_trace_enqueue(t->trace, track, phase, true, stream), "trace");
}

static bool end(
    hotbed_trainer *t, hotbed_trace_track track, hotbed_phase phase, hotbed_stream *stream) {
    return hotbed_trainer_ok(
        t, hotbed_trace_enqueue(t->trace, track, phase, false, stream), "trace");
}

static bool copy(hotbed_trainer *t, void *to, const void *from, size_t bytes) {
    return hotbed_trainer_ok(t, hotbed_copy(to, from, bytes, t->prefetch), "copy");
}

hotbed_kjt hotbed_trainer_kjt(const hotbed_train_slot *slot) {
    hotbed_kjt kjt;
    hotbed_kjt_init(&kjt);
    kjt.num_features = HOTBED_CRITEO_FIELDS;
    kjt.batch_size = slot->batch->samples;
    kjt.num_keys = (uint64_t)slot->batch->samples * HOTBED_CRITEO_FIELDS;
    kjt.keys = slot->keys;
    return kjt;
}

/* The batch's keys to the ranks that have their rows. */
static bool input_dist(
    hotbed_trainer *t, const hotbed_train_slot *slot, hotbed_sharded_context *context) {
    hotbed_kjt kjt = hotbed_trainer_kjt(slot);
    return hotbed_trainer_ok(
               t, hotbed_sharded_input_dist(context, &kjt, t->prefetch), "input dist") &&
           hotbed_trainer_ok(t, hotbed_sharded_wait_splits(context, t->prefetch), "splits") &&
           hotbed_trainer_ok(t, hotbed_sharded_wait_input(context, t->prefetch), "input");
}

/* Copy a batch to the device, and prefetch its rows into `context`, behind the last backward. */
static bool prefetch(hotbed_trainer *t, hotbed_train_slot *slot, hotbed_sharded_context *context) {
    uint32_t n = slot->batch->samples;
    return copy(
               t, slot->keys, slot->batch->keys,
               (size_t)n * HOTBED_CRITEO_FIELDS * sizeof(int64_t)) &&
           copy(t, slot->labels, slot->batch->labels, n * sizeof(float)) &&
           hotbed_trainer_ok(t, hotbed_stream_wait(t->prefetch, t->trained), "wait") &&
           begin(t, HOTBED_TRACK_PREFETCH, HOTBED_PHASE_PREFETCH, t->prefetch) &&
           input_dist(t, slot, context) &&
           hotbed_trainer_ok(t, hotbed_sharded_prefetch(context, 0, t->prefetch), "prefetch") &&
           end(t, HOTBED_TRACK_PREFETCH, HOTBED_PHASE_PREFETCH, t->prefetch) &&
           hotbed_trainer_ok(t, hotbed_event_record(t->fetched, t->prefetch), "record") &&
           hotbed_trainer_ok(t, hotbed_stream_wait(t->compute, t->fetched), "wait");
}

/* Loss and bias of all ranks. */
static bool model(hotbed_trainer *t, hotbed_train_slot *slot) {
    return hotbed_trainer_ok(t, t->kernels->step(&slot->job, t->compute), "model") &&
           hotbed_trainer_ok(
               t,
               hotbed_comm_all_gather(
                   t->comm, 2 * sizeof(double), t->sums, t->all_sums, t->compute),
               "sums of all ranks") &&
           hotbed_trainer_ok(t, t->kernels->finish(&slot->job, t->compute), "model");
}

/* Read the batch's rows, and put their gradients in their place. */
static bool forward_and_model(
    hotbed_trainer *t, hotbed_train_slot *slot, hotbed_sharded_context *context) {
    slot->job = (hotbed_fm_job){
        .samples = slot->batch->samples,
        .fields = HOTBED_CRITEO_FIELDS,
        .dim = t->options.dim,
        .rows = t->rows,
        .labels = slot->labels,
        .dense = t->dense,
        .learning_rate = t->place.learning_rate,
        .losses = t->losses,
        .errors = t->errors,
        .sums = t->sums,
        .all_sums = t->all_sums,
        .ranks = t->ranks,
        .loss = slot->loss};
    return begin(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_FORWARD, t->compute) &&
           hotbed_trainer_ok(
               t, hotbed_sharded_compute_and_output_dist(context, 0, t->compute), "forward") &&
           hotbed_trainer_ok(
               t, hotbed_sharded_wait_output(context, 0, t->rows, 0, t->compute), "output") &&
           end(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_FORWARD, t->compute) &&
           begin(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_MODEL, t->compute) && model(t, slot) &&
           end(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_MODEL, t->compute);
}

/* The compute stream has passed a step. */
static void step_done(void *argument) {
    hotbed_train_slot *slot = argument;
    hotbed_trainer *t = slot->trainer;
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

/* Apply the gradients, and give the slot back. */
static bool backward(hotbed_trainer *t, hotbed_train_slot *slot, hotbed_sharded_context *context) {
    return begin(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_BACKWARD, t->compute) &&
           hotbed_trainer_ok(
               t, hotbed_sharded_backward(context, 0, t->rows, 0, t->compute), "backward") &&
           end(t, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_BACKWARD, t->compute) &&
           hotbed_trainer_ok(t, hotbed_event_record(t->trained, t->compute), "record") &&
           hotbed_trainer_ok(t, hotbed_stream_call(t->compute, step_done, slot), "call");
}

/* What has gone wrong so far, without a wait. */
static bool check_faults(hotbed_trainer *t) {
    pthread_mutex_lock(&t->mutex);
    uint64_t diverged = t->diverged;
    pthread_mutex_unlock(&t->mutex);
    if (diverged > 0)
        return hotbed_trainer_fail(
            t, "the loss of step %llu is not finite: --lr is too large",
            (unsigned long long)diverged);
    return hotbed_trainer_ok(t, hotbed_stream_fault(t->prefetch), "prefetch stream") &&
           hotbed_trainer_ok(t, hotbed_stream_fault(t->compute), "compute stream");
}

/* --- the loop -------------------------------------------------------------------------------------- */

static double done_part(const hotbed_trainer *t, const hotbed_reader_batch *batch) {
    if (batch->fraction < 0)
        return -1;
    return (batch->epoch + batch->fraction) / t->options.epochs;
}

static void show(hotbed_trainer *t, hotbed_progress *progress, double fraction) {
    pthread_mutex_lock(&t->mutex);
    uint64_t rows = t->place.rows - t->first_rows;
    double loss = t->curve_points > 0 ? t->curve[t->curve_points - 1].loss : -1;
    pthread_mutex_unlock(&t->mutex);
    hotbed_progress_show(progress, rows, fraction, loss);
}

/* Train `*current`, whose prefetch is enqueued, and enqueue that of the next batch: before its backward,
 * or, when a checkpoint is to be written after the step, behind that. */
static bool step(
    hotbed_trainer *t, hotbed_reader *reader, uint64_t number, hotbed_train_slot **current) {
    hotbed_train_slot *slot = *current;
    hotbed_train_slot *next = NULL;
    hotbed_sharded_context *context = t->contexts[number % 2];
    hotbed_sharded_context *next_context = t->contexts[(number + 1) % 2];
    bool save = t->options.save_every > 0 && (number + 1) % t->options.save_every == 0;
    if (!forward_and_model(t, slot, context))
        return false;
    if (!save) {
        next = hotbed_trainer_take(t, reader);
        if (next != NULL && !prefetch(t, next, next_context))
            return false;
    }
    if (!backward(t, slot, context) || !check_faults(t))
        return false;
    if (save) {
        if (!hotbed_trainer_save(t))
            return false;
        next = hotbed_trainer_take(t, reader);
        if (next != NULL && !prefetch(t, next, next_context))
            return false;
    }
    *current = next;
    return t->error[0] == '\0';
}

static bool train(hotbed_trainer *t, hotbed_reader *reader, hotbed_progress *progress) {
    hotbed_counters before;
    hotbed_counters after;
    uint64_t number = t->place.steps;
    hotbed_train_slot *slot = hotbed_trainer_take(t, reader);
    if (slot != NULL && !prefetch(t, slot, t->contexts[number % 2]))
        return false;
    while (slot != NULL) {
        double fraction = done_part(t, slot->batch);
        bool saves = t->options.save_every > 0 && (number + 1) % t->options.save_every == 0;
        hotbed_counters_read(&before);
        if (!step(t, reader, number, &slot))
            return false;
        hotbed_counters_read(&after);
        if (!saves) { /* a save waits, of course */
            t->host_waits += after.host_waits - before.host_waits;
            t->allocations += after.allocations - before.allocations;
        }
        number++;
        show(t, progress, fraction);
    }
    return t->error[0] == '\0';
}

bool hotbed_trainer_run(hotbed_trainer *t) {
    hotbed_progress progress;
    t->first_step = t->place.steps;
    t->first_rows = t->place.rows;
    hotbed_reader *reader = hotbed_trainer_open(t, t->options.data, &t->place, t->options.epochs);
    if (reader == NULL)
        return false;
    hotbed_progress_begin(&progress, "train", t->options.quiet);
    double start = hotbed_progress_clock();
    bool ok = train(t, reader, &progress);
    ok = hotbed_trainer_sync(t) && ok; /* after a failure, too: streams use the slots */
    ok = ok && check_faults(t);
    t->seconds = hotbed_progress_clock() - start;
    hotbed_progress_end(&progress);
    t->bad_lines = hotbed_reader_bad(reader);
    hotbed_reader_stop(reader);
    if (ok && t->place.rows == 0)
        ok = hotbed_trainer_fail(t, "%s: no rows", t->options.data);
    if (ok && t->options.save != NULL)
        ok = hotbed_trainer_save(t);
    return ok;
}
