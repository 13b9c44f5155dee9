/* examples/train/trainer.h - a training run: tables, model, pipeline, and the place in the data.
 *
 * Functions return false after a failure, with the reason in trainer->error.
 */
#ifndef HOTBED_EXAMPLES_TRAINER_H
#define HOTBED_EXAMPLES_TRAINER_H

#include "examples/train/criteo.h"
#include "examples/train/log_reader.h"
#include "examples/train/model.h"
#include "examples/train/options.h"
#include "examples/train/progress.h"
#include "hotbed/sharded_module.h"
#include "hotbed/train.h"

#include <pthread.h>

enum {
    HOTBED_TRAIN_SLOTS = 5, /* batches that are being read or trained: three in a pipeline, one
                             * that waits, one in the reader */
    HOTBED_TRAIN_TIMED_STEPS = 12, /* that sw-auto makes its schedule from */
    HOTBED_TRAIN_CURVE_STEPS = 10  /* steps that a point of the loss curve is the mean of */
};

/* What a checkpoint carries beside the tables: plain numbers, written as they lie in memory. */
typedef struct hotbed_train_place {
    char magic[8]; /* "HBTRAIN1" */
    uint64_t steps;
    uint64_t rows;  /* trained so far */
    uint64_t epoch; /* where to go on: after `lines` lines of this epoch, `bad` of them bad */
    uint64_t lines;
    uint64_t bad;
    double loss;        /* sum over all rows */
    double window_loss; /* sum over the rows since the curve's last point */
    uint64_t window_rows;
    hotbed_fm_dense dense;
    float learning_rate;
    uint32_t reserved; /* 0 */
} hotbed_train_place;

typedef struct hotbed_curve_point {
    uint64_t step;
    double loss;
} hotbed_curve_point;

/* One batch on its way: parsed into pinned memory, copied, trained.  Its arrays are used by no other
 * batch until the last stream has passed it. */
typedef struct hotbed_train_slot {
    struct hotbed_run *trainer;
    hotbed_reader *reader;
    hotbed_reader_batch *batch;
    hotbed_memory host;      /* pinned: keys, labels, logits, loss */
    hotbed_memory device;    /* keys, labels, sums */
    int64_t *keys;           /* device [fields * batch] */
    float *labels;           /* device [batch] */
    float *logits;           /* pinned [batch] */
    double *loss;            /* pinned */
    double *sums, *all_sums; /* device: of this rank's samples, of all ranks' */
    hotbed_kjt kjt;
    const hotbed_sharded_output *output;
    hotbed_fm_job job;
} hotbed_train_slot;

/* Scores of the rows of --eval. */
typedef struct hotbed_eval_scores {
    uint64_t rows;
    uint64_t room;
    float *logits;
    uint8_t *labels;
    double loss;
    bool no_memory;
} hotbed_eval_scores;

typedef struct hotbed_run {
    hotbed_run_options options;
    hotbed_comm *joined; /* over threads or MPI, given by who makes the trainer; NULL: one rank */
    hotbed_comm
        *comm; /* what tables and batches are shared by: `joined`, or of GPUs, or of one rank */
    bool owns_comm;
    uint32_t rank, ranks;
    uint32_t share; /* samples of a batch on this rank, at most */
    hotbed_backend backend;
    const hotbed_fm_kernels *kernels;
    hotbed_stream *stream;  /* of all that is not in the pipeline; idle while that runs */
    hotbed_external *store; /* --store: where this rank's rows are; NULL: none */
    hotbed_sharded *sharded;
    hotbed_storage *storage;         /* the collection's one lookup: this rank's rows */
    hotbed_sharded_modules *modules; /* one: the collection */
    hotbed_module *module;
    hotbed_model model;
    hotbed_train *train;  /* the pipeline */
    hotbed_memory device; /* losses, errors, dense */
    double *losses;
    float *errors;
    hotbed_fm_dense *dense;
    hotbed_train_slot slots[HOTBED_TRAIN_SLOTS];
    hotbed_reader_batch batches[HOTBED_TRAIN_SLOTS];
    hotbed_reader *reader; /* that the pipeline takes batches from */
    uint64_t taken;        /* steps taken from it and before, in this run and its checkpoint */
    uint64_t stop;         /* take no more for now when there are as many */
    bool over;             /* the reader has no more */
    bool evaluating;
    bool timing;     /* sw-auto has no schedule yet: one step at a time */
    double fraction; /* part of the work up to the last batch taken; below 0: not known */

    pthread_mutex_t
        mutex; /* guards place's sums, curve and scores: the compute stream's calls write */
    hotbed_train_place place;
    hotbed_train_place loaded; /* of a checkpoint that is being read */
    hotbed_curve_point *curve; /* [curve_room]; made longer by steps */
    uint64_t curve_points;
    uint64_t curve_room;
    bool curve_lost;   /* no memory for a point */
    uint64_t diverged; /* first step whose loss was not finite; 0: none */
    hotbed_eval_scores scores;

    uint64_t first_step; /* of this run, for the report */
    uint64_t first_rows;
    uint64_t bad_lines;
    double seconds; /* of training */
    uint64_t
        counted; /* steps of this run in which these were counted: not the first of a pipeline */
    uint64_t host_waits;
    uint64_t allocations;
    double signal_waits;  /* a step: of the pipeline's threads for each other */
    uint64_t full_faults; /* steps in which a table was full */
    double auc;
    double logloss;
    char error[1024];
} hotbed_run;

/* Make all that the options ask for.  `joined` has the ranks, or is NULL.  Call destroy after a failure,
 * too. */
bool hotbed_run_create(hotbed_run *trainer, const hotbed_run_options *options, hotbed_comm *joined);
void hotbed_run_destroy(hotbed_run *trainer);

/* Train to the end of the data, saving on the way. */
bool hotbed_run_train(hotbed_run *trainer);

/* Open --store for tables of these options; and, at the end, put all rows into it.  Nothing without --store. */
bool hotbed_run_open_store(hotbed_run *trainer, hotbed_storage_options *options);
bool hotbed_run_flush_store(hotbed_run *trainer);

/* Score the rows of options.eval: auc and logloss. */
bool hotbed_run_eval(hotbed_run *trainer);

/* Wait for the stream; a full table is counted and is no failure. */
bool hotbed_run_sync(hotbed_run *trainer);

/* The pipeline that is asked for, in trainer_pipeline.c; made again, by its own times, when it is sw-auto
 * and has run HOTBED_TRAIN_TIMED_STEPS. */
bool hotbed_run_create_pipeline(hotbed_run *trainer);
bool hotbed_run_reschedule(hotbed_run *trainer);

/* Run the pipeline on batches of trainer->reader until trainer->stop or their end.  `show` is called after
 * each. */
bool hotbed_run_pass(
    hotbed_run *trainer, void (*show)(hotbed_run *trainer, void *argument), void *argument);

/* Write --trace and --picture. */
bool hotbed_run_write_timeline(hotbed_run *trainer);

/* The last stream has passed a batch, whose slot is the argument: keep its loss, or its scores, and give it
 * back. */
void hotbed_run_step_done(void *argument);
void hotbed_run_scores_done(void *argument);

/* Check that DIR of --save can be used, load what --load names, save, in trainer_save.c. */
bool hotbed_run_prepare_save(hotbed_run *trainer);
bool hotbed_run_load(hotbed_run *trainer);

/* The same from the newest whole checkpoint of options.save, if there is one. */
bool hotbed_run_resume(hotbed_run *t);
bool hotbed_run_save(hotbed_run *trainer);

/* Write the JSON report. */
bool hotbed_run_report(hotbed_run *trainer, const char *path);

/* For the files of the trainer: set `error` and return false; the same from a status, with the
 * library's text. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool
hotbed_run_fail(hotbed_run *trainer, const char *format, ...);
bool hotbed_run_ok(hotbed_run *trainer, hotbed_status status, const char *what);

/* Whether a fault is that of a full table, which is counted, told the first time, and no failure. */
bool hotbed_run_forgive(void *self, hotbed_status fault);

/* Bytes of every rank to every rank, from host memory to host memory.  Waits; the same number on all. */
bool hotbed_run_gather(hotbed_run *trainer, size_t bytes, const void *mine, void *all);

/* What rank 0 has, to all. */
bool hotbed_run_share(hotbed_run *trainer, size_t bytes, void *data);

/* Whether all ranks are well; a rank that is not has told why. */
bool hotbed_run_agree(hotbed_run *trainer, bool well);

/* Start a reader of `path` over the trainer's slots. */
hotbed_reader *hotbed_run_open(
    hotbed_run *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs);

/* The next batch of a reader, in its slot; NULL at the end or on an error (trainer->error is set). */
hotbed_train_slot *hotbed_run_take(hotbed_run *trainer, hotbed_reader *reader);

#endif
