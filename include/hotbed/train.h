/* hotbed/train.h - train pipelines: TorchRec's and recsys-examples' pipelines as plans, by name.
 *
 * A trainer is a model (hotbed/forward.h) and what is done around it: copy a batch to the device,
 * shuffle it over ranks, dense forward and backward, loss, gradients, step.  A plan puts those in
 * order:
 *
 *   name                    batches  order of a period (number: batch that the period hands out, plus it)
 *   none                    1        one batch after the other, modules not pipelined
 *   sparse-dist             3        TrainPipelineSparseDist
 *   prefetch                3        PrefetchTrainPipelineSparseDist
 *   jagged-none             1        none with shuffle, loss and finalisation over ranks
 *   jagged-sparse-dist      3        JaggedMegatronTrainPipelineSparseDist
 *   jagged-prefetch         3        JaggedMegatronPrefetchTrainPipelineSparseDist
 *   jagged-prefetch-async   3        the same, with prefetch on a thread of its own
 *   sw-serial               1        SWSerialTrainPipeline: eleven tasks in a row
 *   sw-pipelined            3        the same eleven tasks over three stages and three threads
 *
 * All are plans of the one engine (hotbed/pipeline.h), which has bind, progress, drain and the log:
 * see hotbed_train_pipeline().  pipeline/train_plans.c has them, and reads like the peers' loops.
 */
#ifndef HOTBED_TRAIN_H
#define HOTBED_TRAIN_H

#include "hotbed/context.h"
#include "hotbed/pipeline.h"
#include "hotbed/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_train hotbed_train; /* opaque; owned by the caller */

/* Work for one batch, enqueued on `stream`.  `slot` in [0, depth) says which of the trainer's own
 * buffers. */
typedef hotbed_status (*hotbed_train_function)(
    void *self, uint32_t slot, void *batch, hotbed_stream *stream);

/* What a function of a trainer leaves behind, for shortcuts of the tasks that call it
 * (hotbed_pipeline_shortcut(), profiles).  One that is listed writes to buffers of its slot that nothing else
 * writes, so that they are as it left them when it is skipped in the next batch of that slot; what
 * it changes beside them is captured and restored by `io`.  A task that calls a function which is
 * not listed cannot be skipped.
 *
 * Plain struct without a size: it is only ever a member. */
typedef struct hotbed_trainer_io {
    const char *function;  /* name of the field of hotbed_trainer; "forward" is the model's */
    hotbed_declared_io io; /* all NULL: there is nothing beside the slot's buffers */
} hotbed_trainer_io;

/* Call hotbed_trainer_init(), then set fields.  Functions that are NULL have nothing to do. */
typedef struct hotbed_trainer {
    uint32_t size; /* set by init */
    hotbed_rewrite_find find;
    hotbed_model *model; /* required; its forward calls modules, the dense part comes after */
    const hotbed_batch_type *batch; /* required */
    const char *field;              /* as of hotbed_rewrite_options */
    void *self;                     /* of all functions here */
    /* Host batch, as the loader gave it, to the slot's device batch.  NULL for a rank that has none
     * left, which makes an empty batch.  Required. */
    hotbed_status (*copy_batch)(
        void *self, uint32_t slot, void *host_batch, hotbed_stream *stream, void **batch);
    hotbed_train_function shuffle_start; /* workloads to all ranks, partition started */
    /* Samples exchanged: the batch from now on. */
    hotbed_status (*shuffle_finish)(
        void *self, uint32_t slot, void *batch, hotbed_stream *stream, void **shuffled);
    hotbed_train_function zero_grad;      /* its batch is NULL: it may come before the copy */
    hotbed_train_function global_tokens;  /* counted and summed over ranks */
    hotbed_train_function dense_forward;  /* after the model's modules */
    hotbed_train_function loss;           /* checked and summed over ranks */
    hotbed_train_function dense_backward; /* to the gradients of modules' outputs */
    hotbed_train_function finalize_grads; /* of dense parameters, over ranks */
    hotbed_train_function optimizer;      /* of dense parameters */
    const hotbed_trainer_io *io; /* [num_io] stays; NULL: no task of the trainer's can be skipped */
    uint32_t num_io;
} hotbed_trainer;

static inline void hotbed_trainer_init(hotbed_trainer *trainer) {
    memset(trainer, 0, sizeof *trainer);
    trainer->size = sizeof *trainer;
}

/* Name of plan number `plan`, or NULL after the last. */
HOTBED_API const char *hotbed_train_plan_name(uint32_t plan);

/* The steps of a plan, for reading and changing: *steps [*num_steps] is static.  Never waits.
 * Errors: ARGUMENT (no such plan; the text lists them). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_train_plan_steps(const char *plan, const hotbed_step **steps, uint32_t *num_steps);

/* Call hotbed_train_options_init(), then set fields; 0 is each field's default. */
typedef struct hotbed_train_options {
    uint32_t size;            /* set by init */
    uint32_t depth;           /* iterations in flight; 0: as few as the plan takes */
    const char *plan;         /* required */
    const hotbed_step *steps; /* [num_steps] run the plan's tasks by these instead, from
                               * hotbed_schedule_find() for example; NULL: the plan's own */
    uint32_t num_steps;
    hotbed_backend backend; /* required */
    int device;
    hotbed_pipeline_options pipeline; /* size 0: defaults */
    bool
        same_priority; /* all streams have NORMAL priority; false: memcpy, dist and prefetch have HIGH,
                         * so that what runs ahead gets through beside the model */
} hotbed_train_options;

static inline void hotbed_train_options_init(hotbed_train_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Make streams (memcpy, dist, prefetch, default), rewrite the model, and make the pipeline.
 * Synchronous.  The trainer is copied; model, batch type, io and self stay.
 *
 * Tasks whose effects are all declared can be skipped by shortcuts: exchanges, prefetches and
 * forwards of modules that can be captured (hotbed/forward.h), and functions of the trainer that are in its
 * `io`.  They are captured in each slot.  What changes rows or ends a batch cannot: embedding_backward (and backward in
 * plans without it), EmbBackward, dequeue_batch, OptimStep.  The backward of a forward that was replayed gives the rows zero
 * gradients.
 *
 * Errors: ARGUMENT (no such plan; io of a function that there is not), those of hotbed_rewrite_create() and
 * hotbed_pipeline_create(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_create(
    const hotbed_trainer *trainer, const hotbed_train_options *options, hotbed_train **out);

/* Stop, give up what is in flight, put the model's forwards back, free.  NULL is allowed. */
HOTBED_API void hotbed_train_destroy(hotbed_train *train);

/* The engine: bind, progress, drain, log.  Borrowed. */
HOTBED_API hotbed_pipeline *hotbed_train_pipeline(hotbed_train *train);

/* The rewrite: report, states; NULL with plans that do not pipeline modules.  Borrowed. */
HOTBED_API hotbed_rewrite *hotbed_train_rewrite(hotbed_train *train);

/* Find a schedule for the plan's tasks from a profile of this pipeline, each with its exposed
 * time, but at most what it takes alone, and at least a half of that: for a plan of one stage,
 * "sw-serial" for example.  Its steps go into hotbed_train_options.  Never waits.
 *
 * It has some candidates, and the best by the model is taken: the serial plan and the plans above that have the same
 * tasks ("sw-pipelined" for "sw-serial") are among them.
 *
 *   max_depth  as of hotbed_schedule_options
 *
 * Errors: as of hotbed_schedule_find(); ARGUMENT (a profile of another plan). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_schedule(
    hotbed_train *train, const hotbed_profile *profile, uint32_t max_depth, hotbed_schedule **out);

/* Call hotbed_tune_options_init(), then set fields; 0 is each other field's default. */
typedef struct hotbed_tune_options {
    uint32_t size;             /* set by init */
    uint32_t warmup;           /* iterations before each measurement; 0 is 4 */
    uint32_t rounds;           /* measurements of each candidate; 0 is 3 */
    uint32_t iterations;       /* of a measurement; 0 is 8 */
    hotbed_loader loader;      /* of the batches; required */
    double (*now)(void *self); /* seconds; NULL is the machine's clock */
    void *now_self;
} hotbed_tune_options;

static inline void hotbed_tune_options_init(hotbed_tune_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Train with each candidate of a schedule in turn, some rounds, and take the one whose iteration was shortest in its
 * best round: what else a machine does only adds to a time.  Batches are trained in the loader's order, as by any
 * plan, and nothing is in flight afterwards: at most rounds * candidates * (warmup + iterations + 2 * depth) of
 * them.  The model has no other train pipeline meanwhile.  Synchronous; waits; allocates.
 *
 * On several ranks all call it with the same schedule, of which all take the same candidate: a time is that of its slowest
 * rank, by options->pipeline.agreement.
 *
 *   options  as of hotbed_train_create(); steps are the candidate's
 *   seconds  [hotbed_schedule_candidates()] out: an iteration's, of each; NULL is allowed
 *
 * Errors: ARGUMENT (NULL, no loader), STATE (the loader ended), those of hotbed_train_create() and
 * hotbed_pipeline_progress(); the schedule's candidate is what it was. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_tune(
    const hotbed_trainer *trainer, const hotbed_train_options *options,
    const hotbed_tune_options *tune, hotbed_schedule *schedule, double *seconds);

/* "memcpy", "dist", "prefetch" or "default"; NULL for other names.  Borrowed. */
HOTBED_API hotbed_stream *hotbed_train_stream(hotbed_train *train, const char *name);

/* The device batch of an iteration: the shuffled one. */
HOTBED_API void *hotbed_train_batch(const hotbed_train *train, const hotbed_iteration *iteration);

/* Evaluate from now on: no gradients, no steps; modules are told, and what they hold of a batch is
 * released.  Or train again.  Never waits.
 * Errors: STATE (iterations are in flight: drain first), those of modules. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_train_set_training(hotbed_train *train, bool training);

#ifdef __cplusplus
}
#endif
#endif
