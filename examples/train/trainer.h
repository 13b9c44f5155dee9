/* examples/train/trainer.h - a training run: streams, tables, model, and the place in the data.
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
#include "examples/train/trace.h"
#include "hotbed/sharded.h"

#include <pthread.h>

enum {
    HOTBED_TRAIN_SLOTS =
        4, /* batches that are being parsed or trained: one is in each of parse, wait,
                                  * prefetch and compute */
    HOTBED_TRAIN_CURVE_STEPS = 10 /* steps that a point of the loss curve is the mean of */
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
 * batch until the compute stream has passed it. */
typedef struct hotbed_train_slot {
    struct hotbed_trainer *trainer;
    hotbed_reader *reader;
    hotbed_reader_batch *batch;
    hotbed_memory host;   /* pinned: keys, labels, logits, loss */
    hotbed_memory device; /* keys, labels */
    int64_t *keys;        /* device [fields * batch] */
    float *labels;        /* device [batch] */
    float *logits;        /* pinned [batch] */
    double *loss;         /* pinned */
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

typedef struct hotbed_trainer {
    hotbed_train_options options;
    hotbed_comm *joined; /* over threads or MPI, given by who makes the trainer; NULL: one rank */
    hotbed_comm
        *comm; /* what tables and batches are shared by: `joined`, or of GPUs, or of one rank */
    bool owns_comm;
    uint32_t rank, ranks;
    uint32_t share; /* samples of a batch on this rank, at most */
    hotbed_backend backend;
    const hotbed_fm_kernels *kernels;
    hotbed_stream *prefetch;
    hotbed_stream *compute;
    hotbed_event *fetched;  /* the last prefetch */
    hotbed_event *trained;  /* the last backward */
    hotbed_external *store; /* --store: where this rank's rows are; NULL: none */
    hotbed_sharded *sharded;
    hotbed_storage *storage; /* the collection's one lookup: this rank's rows */
    hotbed_sharded_context *contexts[2];
    hotbed_memory device; /* rows, losses, errors, dense */
    float *rows;          /* [fields, samples, dim + 1]: forward's output, then its gradient */
    double *losses;
    float *errors;
    hotbed_fm_dense *dense;
    double *sums, *all_sums; /* of this rank's samples, of all ranks' */
    hotbed_train_slot slots[HOTBED_TRAIN_SLOTS];
    hotbed_reader_batch batches[HOTBED_TRAIN_SLOTS];
    hotbed_trace *trace; /* NULL: none */

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
    double seconds;      /* of training */
    uint64_t host_waits; /* in the steps of this run */
    uint64_t allocations;
    uint64_t full_faults; /* steps in which a table was full */
    double auc;
    double logloss;
    char error[1024];
} hotbed_trainer;

/* Make all that the options ask for.  `joined` has the ranks, or is NULL.  Call destroy after a failure,
 * too. */
bool hotbed_trainer_create(
    hotbed_trainer *trainer, const hotbed_train_options *options, hotbed_comm *joined);
void hotbed_trainer_destroy(hotbed_trainer *trainer);

/* Train to the end of the data, saving on the way. */
bool hotbed_trainer_run(hotbed_trainer *trainer);

/* Open --store for tables of these options; and, at the end, put all rows into it.  Nothing without --store. */
bool hotbed_trainer_open_store(hotbed_trainer *trainer, hotbed_storage_options *options);
bool hotbed_trainer_flush_store(hotbed_trainer *trainer);

/* Score the rows of options.eval: auc and logloss. */
bool hotbed_trainer_eval(hotbed_trainer *trainer);

/* Wait for both streams; a full table is counted and is no failure. */
bool hotbed_trainer_sync(hotbed_trainer *trainer);

/* Check that DIR of --save can be used, load what --load names, save, in trainer_save.c. */
bool hotbed_trainer_prepare_save(hotbed_trainer *trainer);
bool hotbed_trainer_load(hotbed_trainer *trainer);

/* The same from the newest whole checkpoint of options.save, if there is one. */
bool hotbed_trainer_resume(hotbed_trainer *t);
bool hotbed_trainer_save(hotbed_trainer *trainer);

/* Write the JSON report. */
bool hotbed_trainer_report(hotbed_trainer *trainer, const char *path);

/* For the files of the trainer: set `error` and return false; the same from a status, with the
 * library's text. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool
hotbed_trainer_fail(hotbed_trainer *trainer, const char *format, ...);
bool hotbed_trainer_ok(hotbed_trainer *trainer, hotbed_status status, const char *what);

/* The features of a slot's batch, in device memory. */
hotbed_kjt hotbed_trainer_kjt(const hotbed_train_slot *slot);

/* Bytes of every rank to every rank, from host memory to host memory.  Waits; the same number on all. */
bool hotbed_trainer_gather(hotbed_trainer *trainer, size_t bytes, const void *mine, void *all);

/* What rank 0 has, to all. */
bool hotbed_trainer_share(hotbed_trainer *trainer, size_t bytes, void *data);

/* Whether all ranks are well; a rank that is not has told why. */
bool hotbed_trainer_agree(hotbed_trainer *trainer, bool well);

/* Start a reader of `path` over the trainer's slots. */
hotbed_reader *hotbed_trainer_open(
    hotbed_trainer *trainer, const char *path, const hotbed_train_place *from, uint32_t epochs);

/* The next batch of a reader, in its slot; NULL at the end or on an error (trainer->error is set). */
hotbed_train_slot *hotbed_trainer_take(hotbed_trainer *trainer, hotbed_reader *reader);

#endif
