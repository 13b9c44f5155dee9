/* examples/train/trainer_eval.c - scores of held-out rows: exact AUC and logloss. */
#include "examples/train/auc.h"
#include "examples/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>

static bool reserve(hotbed_eval_scores *scores, uint64_t rows) {
    if (rows <= scores->room)
        return true;
    uint64_t room = rows > 2 * scores->room ? rows : 2 * scores->room;
    float *logits = realloc(scores->logits, room * sizeof *logits);
    if (logits != NULL)
        scores->logits = logits;
    uint8_t *labels = realloc(scores->labels, room);
    if (labels != NULL)
        scores->labels = labels;
    if (logits == NULL || labels == NULL)
        return false;
    scores->room = room;
    return true;
}

/* The compute stream has passed a batch: keep its scores. */
static void batch_done(void *argument) {
    hotbed_train_slot *slot = argument;
    hotbed_eval_scores *scores = &slot->trainer->scores;
    uint32_t n = slot->batch->samples;
    pthread_mutex_lock(&slot->trainer->mutex);
    if (reserve(scores, scores->rows + n)) {
        for (uint32_t s = 0; s < n; s++) {
            float label = slot->batch->labels[s];
            scores->logits[scores->rows + s] = slot->logits[s];
            scores->labels[scores->rows + s] = label > 0;
            scores->loss += hotbed_fm_logistic(slot->logits[s], label).loss;
        }
        scores->rows += n;
    } else {
        scores->no_memory = true;
    }
    pthread_mutex_unlock(&slot->trainer->mutex);
    hotbed_reader_give(slot->reader);
}

static bool score(hotbed_trainer *t, hotbed_train_slot *slot) {
    uint32_t n = slot->batch->samples;
    hotbed_kjt kjt = hotbed_trainer_kjt(slot);
    slot->job = (hotbed_fm_job){
        .samples = n,
        .fields = HOTBED_CRITEO_FIELDS,
        .dim = t->options.dim,
        .rows = t->rows,
        .dense = t->dense,
        .logits = slot->logits};
    return hotbed_trainer_ok(
               t,
               hotbed_copy(
                   slot->keys, slot->batch->keys, kjt.num_keys * sizeof(int64_t), t->compute),
               "copy") &&
           hotbed_trainer_ok(
               t,
               hotbed_trace_enqueue(
                   t->trace, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_EVAL, true, t->compute),
               "trace") &&
           hotbed_trainer_ok(
               t, hotbed_sharded_forward(t->contexts[0], 0, &kjt, t->rows, 0, t->compute),
               "eval") &&
           hotbed_trainer_ok(t, t->kernels->score(&slot->job, t->compute), "model") &&
           hotbed_trainer_ok(
               t,
               hotbed_trace_enqueue(
                   t->trace, HOTBED_TRACK_COMPUTE, HOTBED_PHASE_EVAL, false, t->compute),
               "trace") &&
           hotbed_trainer_ok(t, hotbed_stream_call(t->compute, batch_done, slot), "call");
}

/* The scores of all ranks, in rank order: the AUC does not ask for an order. */
static bool join_scores(hotbed_trainer *t) {
    hotbed_eval_scores *scores = &t->scores;
    uint64_t counts[64], most = 0, rows = 0;
    double losses[64];
    if (t->ranks == 1)
        return true;
    if (!hotbed_trainer_gather(t, sizeof scores->rows, &scores->rows, counts) ||
        !hotbed_trainer_gather(t, sizeof scores->loss, &scores->loss, losses))
        return false;
    for (uint32_t r = 0; r < t->ranks; r++)
        most = counts[r] > most ? counts[r] : most;
    float *logits = calloc(most * t->ranks + 1, sizeof *logits);
    uint8_t *labels = calloc(most * t->ranks + 1, sizeof *labels);
    bool room = logits != NULL && labels != NULL && reserve(scores, most * t->ranks + 1);
    bool ok = hotbed_trainer_agree(t, room || hotbed_trainer_fail(t, "no memory for all scores"));
    if (room && ok)
        ok = hotbed_trainer_gather(t, most * sizeof *logits, scores->logits, logits) &&
             hotbed_trainer_gather(t, most, scores->labels, labels);
    scores->loss = 0;
    for (uint32_t r = 0; room && ok && r < t->ranks; r++) {
        memcpy(scores->logits + rows, logits + r * most, counts[r] * sizeof *logits);
        memcpy(scores->labels + rows, labels + r * most, counts[r]);
        scores->loss += losses[r];
        rows += counts[r];
    }
    scores->rows = rows;
    free(logits);
    free(labels);
    return ok;
}

bool hotbed_trainer_eval(hotbed_trainer *t) {
    hotbed_progress progress;
    hotbed_train_slot *slot;
    uint64_t rows = 0;
    bool ok = true;
    hotbed_reader *reader = hotbed_trainer_open(t, t->options.eval, NULL, 1);
    if (reader == NULL)
        return false;
    hotbed_progress_begin(&progress, "eval", t->options.quiet);
    ok = hotbed_trainer_ok(t, hotbed_sharded_set_training(t->sharded, false), "eval");
    while (ok && (slot = hotbed_trainer_take(t, reader)) != NULL) {
        rows += slot->batch->rows;
        double fraction =
            slot->batch->fraction; /* the slot is not ours once its work is enqueued */
        ok = score(t, slot);
        hotbed_progress_show(&progress, rows, fraction, -1);
    }
    ok = hotbed_trainer_sync(t) && ok && t->error[0] == '\0';
    hotbed_progress_end(&progress);
    t->bad_lines += hotbed_reader_bad(reader);
    hotbed_reader_stop(reader);
    ok = ok && hotbed_trainer_ok(t, hotbed_sharded_set_training(t->sharded, true), "training");
    if (!ok || !join_scores(t))
        return false;
    if (t->scores.rows == 0 && !t->scores.no_memory)
        return hotbed_trainer_fail(t, "%s: no rows", t->options.eval);
    if (t->scores.no_memory ||
        !hotbed_auc(t->scores.rows, t->scores.logits, t->scores.labels, &t->auc))
        return hotbed_trainer_fail(
            t, "no memory for the scores of %llu rows", (unsigned long long)rows);
    t->logloss = t->scores.loss / (double)t->scores.rows;
    return true;
}
