/* examples/train/trainer_eval.c - scores of held-out rows: exact AUC and logloss. */
#include "examples/train/auc.h"
#include "examples/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>

static bool reserve(hotbed_eval_scores *scores, uint64_t rows) {
    if (rows <= scores->capacity)
        return true;
    uint64_t capacity = rows > 2 * scores->capacity ? rows : 2 * scores->capacity;
    float *logits = realloc(scores->logits, capacity * sizeof *logits);
    if (logits != NULL)
        scores->logits = logits;
    uint8_t *labels = realloc(scores->labels, capacity);
    if (labels != NULL)
        scores->labels = labels;
    if (logits == NULL || labels == NULL)
        return false;
    scores->capacity = capacity;
    return true;
}

void hotbed_run_scores_done(void *argument) {
    hotbed_train_buffers *b = argument;
    hotbed_eval_scores *scores = &b->trainer->scores;
    uint32_t n = b->batch->samples;
    pthread_mutex_lock(&b->trainer->mutex);
    if (reserve(scores, scores->rows + n)) {
        for (uint32_t s = 0; s < n; s++) {
            float label = b->batch->labels[s];
            scores->logits[scores->rows + s] = b->logits[s];
            scores->labels[scores->rows + s] = label > 0;
            scores->loss += hotbed_fm_logistic(b->logits[s], label).loss;
        }
        scores->rows += n;
    } else {
        scores->no_memory = true;
    }
    pthread_mutex_unlock(&b->trainer->mutex);
    hotbed_log_reader_give(b->reader);
}

/* The number of rows and the loss of one rank. */
typedef struct scores_summary {
    uint64_t rows;
    double loss;
} scores_summary;

/* Gather the scores of all ranks, whose numbers of rows are in `all`, in rank order. */
static bool gather_scores(hotbed_run *t, const scores_summary *all) {
    hotbed_eval_scores *scores = &t->scores;
    uint64_t most = 0, rows = 0;
    for (uint32_t r = 0; r < t->ranks; r++)
        most = all[r].rows > most ? all[r].rows : most;
    float *logits = calloc(most * t->ranks + 1, sizeof *logits);
    uint8_t *labels = calloc(most * t->ranks + 1, sizeof *labels);
    bool enough = logits != NULL && labels != NULL && reserve(scores, most * t->ranks + 1);
    bool ok = hotbed_run_agree(t, enough || hotbed_run_fail(t, "no memory for all scores"));
    if (enough && ok)
        ok = hotbed_run_gather(t, most * sizeof *logits, scores->logits, logits) &&
             hotbed_run_gather(t, most, scores->labels, labels);
    scores->loss = 0;
    for (uint32_t r = 0; enough && ok && r < t->ranks; r++) {
        memcpy(scores->logits + rows, logits + r * most, all[r].rows * sizeof *logits);
        memcpy(scores->labels + rows, labels + r * most, all[r].rows);
        scores->loss += all[r].loss;
        rows += all[r].rows;
    }
    scores->rows = rows;
    free(logits);
    free(labels);
    return ok;
}

/* Join the scores of all ranks. The AUC does not depend on their order. */
static bool join_scores(hotbed_run *t) {
    scores_summary mine = {.rows = t->scores.rows, .loss = t->scores.loss};
    if (t->ranks == 1)
        return true;
    scores_summary *all = calloc(t->ranks, sizeof *all);
    if (all == NULL)
        return hotbed_run_fail(t, "no memory for %u ranks", t->ranks);
    bool ok = hotbed_run_gather(t, sizeof mine, &mine, all) && gather_scores(t, all);
    free(all);
    return ok;
}

static void show(hotbed_run *t, void *progress) {
    pthread_mutex_lock(&t->mutex);
    uint64_t rows = t->scores.rows * t->ranks; /* approximate: shares differ by one */
    pthread_mutex_unlock(&t->mutex);
    hotbed_progress_show(progress, rows, t->fraction, -1);
}

bool hotbed_run_eval(hotbed_run *t) {
    hotbed_progress progress;
    bool ok = hotbed_run_ok(t, hotbed_train_set_training(t->train, false), "eval");
    t->reader = ok ? hotbed_run_open(t, t->options.eval, NULL, 1) : NULL;
    if (t->reader == NULL)
        return false;
    t->stop = UINT64_MAX;
    t->evaluating = true;
    hotbed_progress_begin(&progress, "eval", t->options.quiet);
    ok = hotbed_run_pass(t, show, &progress);
    hotbed_progress_end(&progress);
    hotbed_train_destroy(t->train); /* it is done, and after a failure it still uses the buffers */
    t->train = NULL;
    t->bad_lines += hotbed_log_reader_bad(t->reader);
    hotbed_log_reader_stop(t->reader);
    if (!ok || !join_scores(t))
        return false;
    if (t->scores.rows == 0 && !t->scores.no_memory)
        return hotbed_run_fail(t, "%s: no rows", t->options.eval);
    if (t->scores.no_memory ||
        !hotbed_auc(t->scores.rows, t->scores.logits, t->scores.labels, &t->auc))
        return hotbed_run_fail(
            t, "no memory for the scores of %llu rows", (unsigned long long)t->scores.rows);
    t->logloss = t->scores.loss / (double)t->scores.rows;
    return true;
}
