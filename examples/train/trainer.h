/* examples/train/trainer.h - a training run: tables, model, pipeline, and the position in the data.
 *
 * Functions that return bool return false on failure, with the reason in trainer->error. */
#pragma once

#include "examples/train/criteo.h"
#include "examples/train/log_reader.h"
#include "examples/train/model.h"
#include "examples/train/options.h"
#include "examples/train/progress.h"
#include "examples/train/save_lock.h"
#include "hotbed/train.h"

#include <pthread.h>

enum {
    HOTBED_TRAIN_BUFFER_SETS = 7,  /* batches: four in a pipeline, one waiting, two being filled */
    HOTBED_TRAIN_TIMED_STEPS = 12, /* steps whose times sw-auto's schedule is based on */
    HOTBED_TRAIN_CURVE_STEPS = 10  /* a point of the loss curve is the mean of so many steps */
};

/* The data that a checkpoint carries besides the tables: plain numbers, written as they are in
 * memory. */
typedef struct hotbed_train_place {
    char magic[8]; /* "HBTRAIN1" */
    uint64_t steps;
    uint64_t rows;  /* trained so far */
    uint64_t epoch; /* where to continue: after `lines` lines of it, `bad` malformed */
    uint64_t lines;
    uint64_t bad;
    double loss;        /* sum over all rows */
    double window_loss; /* sum over the rows since the last point of the curve */
    uint64_t window_rows;
    hotbed_fm_dense dense;
    float learning_rate;
    uint32_t batch; /* rows per step */
} hotbed_train_place;

typedef struct hotbed_curve_point {
    uint64_t step;
    double loss;
} hotbed_curve_point;

/* One batch in flight: parsed into pinned memory, copied, trained. No other batch uses its arrays
 * until the last stream has passed it. */
typedef struct hotbed_train_buffers {
    struct hotbed_run *trainer;
    hotbed_log_reader *reader;
    hotbed_log_reader_batch *batch;
    hotbed_memory host;      /* pinned: keys, labels, logits, loss */
    hotbed_memory device;    /* keys, labels, sums */
    int64_t *keys;           /* device [fields * batch] */
    float *labels;           /* device [batch] */
    float *logits;           /* pinned [batch] */
    double *loss;            /* pinned */
    double *sums, *all_sums; /* device: sums of this rank's samples, of all ranks' samples */
    hotbed_event *copy_begin, *copy_end; /* of the copy to the device */
    bool copied; /* training: the events were recorded, and have not been read yet */
    hotbed_kjt kjt;
    const hotbed_sharded_output *output;
    hotbed_fm_job job;
} hotbed_train_buffers;

/* The fraction of the training time in which each stage waited for other stages. The stage that
 * waited least bounds the run. */
typedef struct hotbed_run_waits {
    double reading;    /* the thread that reads and unpacks waited for the parsing threads */
    double parsing;    /* the parsing threads waited for bytes or for free batches */
    double link;       /* no copy to the device was under way */
    double compute;    /* the device had finished all of its steps and waited for a batch */
    const char *bound; /* "reading", "parsing", "link" or "compute" */
} hotbed_run_waits;

/* Scores of the rows of --eval. */
typedef struct hotbed_eval_scores {
    uint64_t rows;
    uint64_t capacity;
    float *logits;
    uint8_t *labels;
    double loss;
    bool no_memory;
} hotbed_eval_scores;

/* A message holds two paths and a text of the library. */
enum { HOTBED_TRAIN_ERROR_BYTES = 2 * 4096 + 2048 };

typedef struct hotbed_run {
    hotbed_run_options options;
    hotbed_comm *joined; /* threads or MPI; created by the caller; NULL: one rank */
    hotbed_comm *comm;   /* ranks that share tables and batches: `joined`, GPUs, or one rank */
    bool owns_comm;
    uint32_t rank, ranks;
    uint32_t share; /* most samples of a batch on this rank */
    hotbed_backend backend;
    const hotbed_fm_kernels *kernels;
    hotbed_stream *stream;  /* for all work outside of the pipeline; idle while the pipeline runs */
    hotbed_external *store; /* --store: holds this rank's rows; NULL: none */
    hotbed_sharded *sharded;
    hotbed_storage *storage;         /* the collection's only storage: this rank's rows */
    hotbed_sharded_modules *modules; /* one module: the collection */
    hotbed_module *module;
    hotbed_model model;
    hotbed_train *train;  /* the pipeline */
    hotbed_memory device; /* losses, errors, dense */
    double *losses;
    float *errors;
    hotbed_fm_dense *dense;
    hotbed_train_buffers buffer_sets[HOTBED_TRAIN_BUFFER_SETS];
    hotbed_log_reader_batch batches[HOTBED_TRAIN_BUFFER_SETS];
    hotbed_log_reader *reader; /* the pipeline takes batches from it */
    uint64_t taken; /* steps taken so far, including those before the loaded checkpoint */
    uint64_t stop;  /* pause when `taken` reaches this */
    bool over;      /* the reader has no more */
    bool evaluating;
    bool timing;     /* sw-auto has no schedule yet: one step at a time */
    uint64_t handed; /* steps of this run that are completely enqueued */
    double starved;  /* seconds in which all of these were done and no batch was ready */
    double linked;   /* seconds of copies to the device */
    hotbed_log_reader_times reader_times; /* of training; set at its end */
    double fraction; /* fraction of the work up to the last batch taken; below 0: not known */

    pthread_mutex_t
        mutex; /* guards place's sums, curve and scores, which the compute stream's calls write */
    hotbed_train_place place;
    char loaded_path[4096];     /* path of that checkpoint; "": none */
    hotbed_save_lock save_lock; /* rank 0: the lock on the directory of --save */
    bool saved; /* step saved_step is in the directory of --save: saved or loaded by this run */
    uint64_t saved_step;
    hotbed_curve_point *curve; /* [curve_capacity]; grows */
    uint64_t curve_points;
    uint64_t curve_capacity;
    bool curve_lost;   /* a point was lost for lack of memory */
    uint64_t diverged; /* first step whose loss was not finite; 0: none */
    double last_done;  /* when the last step was done, by hotbed_progress_clock() */
    hotbed_eval_scores scores;

    uint64_t first_step; /* first step of this run, for the report */
    uint64_t first_rows;
    double first_loss;
    uint64_t bad_lines;
    double seconds;   /* of training; set at its end */
    uint64_t counted; /* steps in which these were counted: not the first of a pipeline */
    uint64_t host_waits;
    uint64_t allocations;
    double signal_waits;  /* per step: waits of the pipeline's threads for each other */
    uint64_t full_faults; /* steps in which a table was full */
    double auc;
    double logloss;
    char error[HOTBED_TRAIN_ERROR_BYTES];
} hotbed_run;

/* Create everything that the options ask for. `joined` has the ranks, or is NULL. Call destroy
 * after a failure too. */
bool hotbed_run_create(hotbed_run *trainer, const hotbed_run_options *options, hotbed_comm *joined);
void hotbed_run_destroy(hotbed_run *trainer);

/* Train to the end of the data; save checkpoints as --save-every asks. */
bool hotbed_run_train(hotbed_run *trainer);

/* Open --store for tables of these options. At the end, write all rows to it. Both do nothing
 * without --store. */
bool hotbed_run_open_store(hotbed_run *trainer, hotbed_storage_options *options);
bool hotbed_run_flush_store(hotbed_run *trainer);

/* Score the rows of options.eval: set auc and logloss. */
bool hotbed_run_eval(hotbed_run *trainer);

/* The waits of training. Call it after training has ended. */
hotbed_run_waits hotbed_run_waits_of(const hotbed_run *trainer);

/* Add the time of a buffer set's last copy to the device to `linked`. The copy must be done. */
bool hotbed_run_harvest_copy(hotbed_run *trainer, hotbed_train_buffers *b);

/* Wait for the stream. A full table is counted and is not a failure. */
bool hotbed_run_sync(hotbed_run *trainer);

/* Create the pipeline of --pipeline (trainer_pipeline.c). For sw-auto, create it again from its own
 * times after HOTBED_TRAIN_TIMED_STEPS. */
bool hotbed_run_create_pipeline(hotbed_run *trainer);
bool hotbed_run_reschedule(hotbed_run *trainer);

/* Run the pipeline on batches of trainer->reader until trainer->stop or the last batch. Calls
 * `show` after each batch. */
bool hotbed_run_pass(
    hotbed_run *trainer, void (*show)(hotbed_run *trainer, void *argument), void *argument);

/* Write --trace and --picture. */
bool hotbed_run_write_timeline(hotbed_run *trainer);

/* Called after the last stream has passed a batch; the argument is its buffer set. Keep the batch's
 * loss, or its scores, and return the batch to the reader. */
void hotbed_run_step_done(void *argument);
void hotbed_run_scores_done(void *argument);

/* In trainer_save.c: create and lock the directory of --save; after loading, check that it has no
 * newer checkpoint; save. */
bool hotbed_run_lock_save(hotbed_run *trainer);
bool hotbed_run_prepare_save(hotbed_run *trainer);

/* Load the checkpoint of --load, or the newest whole one in the directory of --load or, with
 * --resume, of --save. --resume renames damaged ones, and needs none. */
bool hotbed_run_load(hotbed_run *trainer);
bool hotbed_run_save(hotbed_run *trainer);

/* Write the JSON report. */
bool hotbed_run_report(hotbed_run *trainer, const char *path);

/* Set `error` and return false; the second function does so for a status that is not OK, with the
 * library's text. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool
hotbed_run_fail(hotbed_run *trainer, const char *format, ...);
bool hotbed_run_ok(hotbed_run *trainer, hotbed_status status, const char *what);

/* hotbed_run_ok() for a step. The message begins with the rank that is gone, or with the batch that
 * is too large. */
bool hotbed_run_fail_step(hotbed_run *trainer, hotbed_status status);

/* Whether a fault is only a full table. A full table is counted, reported the first time, and not a
 * failure. */
bool hotbed_run_tolerate(void *self, hotbed_status fault);

/* Gather `bytes` of every rank on every rank, from host memory to host memory. Blocks. `bytes` must
 * be equal on all ranks. */
bool hotbed_run_gather(hotbed_run *trainer, size_t bytes, const void *mine, void *all);

/* Copy rank 0's bytes to all ranks. */
bool hotbed_run_share(hotbed_run *trainer, size_t bytes, void *data);

/* Set *first to the lowest rank whose flag is set, or to the number of ranks. */
bool hotbed_run_find(hotbed_run *trainer, bool flag, uint32_t *first);

/* Whether all ranks are well. A rank that is not has reported why. */
bool hotbed_run_agree(hotbed_run *trainer, bool well);

/* Start a reader of `path` over the trainer's buffer sets. */
hotbed_log_reader *hotbed_run_open(
    hotbed_run *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs);

/* Take the next batch of a reader, in its buffer set. NULL at the end, or on an error
 * (trainer->error is set). */
hotbed_train_buffers *hotbed_run_take(hotbed_run *trainer, hotbed_log_reader *reader);
