/* hotbed/train.h - train pipelines: the pipelines of TorchRec and recsys-examples as plans, by
 * name.
 *
 * Experimental: all calls.
 *
 * For programs that train a model with embedding tables and want embedding work to overlap with the
 * model. A trainer is a model (hotbed/forward.h) and the work around it: copy a batch to the
 * device, shuffle it over ranks, dense forward and backward, loss, gradients, optimizer step. A
 * plan orders this work:
 *
 *     hotbed_trainer trainer = {.size = sizeof trainer};
 *     trainer.model = &model;
 *     trainer.batch = &batch_type;
 *     trainer.copy_batch = copy_batch;
 *     trainer.dense_forward = dense_forward;
 *     trainer.dense_backward = dense_backward;
 *     trainer.optimizer = dense_step;
 *     hotbed_train_options options = {
 *         .size = sizeof options, .plan = "prefetch", .backend = HOTBED_BACKEND_CUDA};
 *     status = hotbed_train_create(&trainer, &options, &train);
 *     hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
 *     status = hotbed_pipeline_bind(pipeline, &loader);
 *     do
 *         status = hotbed_pipeline_progress(pipeline, &iteration);
 *     while (status == HOTBED_OK && iteration != NULL);
 *     hotbed_train_destroy(train);
 *
 * The plans, each with the number of batches that it works on at a time and the pipeline that it
 * reproduces:
 *
 *   name                    batches  reproduces
 *   none                    1        one batch after the other, modules not pipelined
 *   sparse-dist             3        TrainPipelineSparseDist
 *   prefetch                3        PrefetchTrainPipelineSparseDist
 *   jagged-none             1        none, with shuffle, loss and gradient finalization over ranks
 *   jagged-sparse-dist      3        JaggedMegatronTrainPipelineSparseDist
 *   jagged-prefetch         3        JaggedMegatronPrefetchTrainPipelineSparseDist
 *   jagged-prefetch-async   3        the same, with prefetch on a thread of its own
 *   sw-serial               1        SWSerialTrainPipeline: eleven tasks in a row
 *   sw-pipelined            3        the same eleven tasks over three stages and three threads
 *
 * All are plans of the one engine (hotbed/pipeline.h), which provides bind, progress, drain and the
 * log: see hotbed_train_pipeline(). The plans are in pipeline/train_plans.c, in the form of the
 * loops that they reproduce. */
#ifndef HOTBED_TRAIN_H
#define HOTBED_TRAIN_H

#include "hotbed/forward.h"
#include "hotbed/pipeline.h"
#include "hotbed/profile.h"
#include "hotbed/sharded.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_train hotbed_train; /* opaque; owned by the caller */

/* Enqueue work for one batch on `stream`. `set` in [0, depth) selects one of the trainer's own
 * buffers, in device or host memory. No other batch has it until all work of this one has passed:
 * before copy_batch, the host waits for the batch that had the set before. */
typedef hotbed_status (*hotbed_train_function)(
    void *self, uint32_t set, void *batch, hotbed_stream *stream);

/* The effects of one function of a trainer, for shortcuts of the tasks that call it
 * (hotbed_pipeline_shortcut(), profiles). A function that is listed writes to its buffer set
 * that nothing else writes, so that their contents are still valid when the function is skipped for
 * the next batch of that buffer set. `io` captures and restores everything else that it changes. A
 * task that calls a function which is not listed cannot be skipped.
 *
 * Frozen: it has no size field, since trainers have arrays of it. */
typedef struct hotbed_trainer_io {
    /* Name of the field of hotbed_trainer; "forward" is the model's forward. */
    const char *function;
    hotbed_declared_io io; /* all NULL: it changes only the buffer set */
} hotbed_trainer_io;

/* A trainer. 0 is the default of every field but `size`. A function that is NULL is not called. */
typedef struct hotbed_trainer {
    uint32_t size;       /* sizeof(hotbed_trainer) */
    hotbed_model *model; /* required; its forward calls modules, and the dense part follows */
    const hotbed_batch_type *batch; /* required */
    void *self;                     /* first argument of all functions here */
    /* Copy a host batch, as returned by the loader, to the buffer set's device batch. The host
     * batch is NULL on a rank whose loader has ended: make an empty batch. Required. */
    hotbed_status (*copy_batch)(
        void *self, uint32_t set, void *host_batch, hotbed_stream *stream, void **batch);
    hotbed_train_function shuffle_start; /* send workloads to all ranks, start the partition */
    /* Exchange the samples: *shuffled is the batch from now on. */
    hotbed_status (*shuffle_finish)(
        void *self, uint32_t set, void *batch, hotbed_stream *stream, void **shuffled);
    hotbed_train_function zero_grad;      /* its batch is NULL, since it may run before the copy */
    hotbed_train_function global_tokens;  /* count the tokens and sum them over ranks */
    hotbed_train_function dense_forward;  /* after the model's modules */
    hotbed_train_function loss;           /* check the loss and sum it over ranks */
    hotbed_train_function dense_backward; /* down to the gradients of the modules' outputs */
    hotbed_train_function finalize_grads; /* gradients of dense parameters, over ranks */
    hotbed_train_function optimizer;      /* update dense parameters */
    /* [num_io] borrowed; must outlive the pipeline; NULL: no task that calls the trainer can be
     * skipped. */
    const hotbed_trainer_io *io;
    uint32_t num_io;
} hotbed_trainer;

/* Return the name of plan number `plan`, or NULL after the last one. */
HOTBED_API const char *hotbed_train_plan_name(uint32_t plan);

/* Return the steps of a plan, for reading and for making other plans: *steps [*num_steps] is
 * static. Never waits.
 * Errors: ARGUMENT (no such plan; the text lists them). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_train_plan_steps(const char *plan, const hotbed_step **steps, uint32_t *num_steps);

/* Options of a train pipeline. 0 is the default of every field but `size`. */
typedef struct hotbed_train_options {
    uint32_t size; /* sizeof(hotbed_train_options) */
    /* Iterations in flight, and buffer sets of the trainer; 0: one more than the batches of the plan
     * (see the list above), so that the host does not wait where the device keeps up. */
    uint32_t depth;
    const char *plan; /* required */
    /* [num_steps] run the plan's tasks by these steps instead, for example from
     * hotbed_schedule_find(); NULL: the plan's own. */
    const hotbed_step *steps;
    uint32_t num_steps;
    hotbed_backend backend; /* required */
    int device;
    hotbed_pipeline_options pipeline; /* size 0: defaults */
    /* All streams have NORMAL priority; false: memcpy, dist and prefetch have HIGH priority, so
     * that tasks which run ahead make progress beside the model. */
    bool same_priority;
} hotbed_train_options;

/* Create the streams (memcpy, dist, prefetch, default), rewrite the model, and create the pipeline.
 * Synchronous. The trainer is copied; model, batch type, io and self are borrowed, and must outlive
 * the pipeline.
 *
 * Tasks whose effects are all declared can be skipped by shortcuts: exchanges, prefetches and
 * forwards of modules that can be captured (hotbed/forward.h), and functions of the trainer that
 * are listed in its `io`. They are captured in each buffer set. Tasks that change rows or end a
 * batch cannot be skipped: embedding_backward (and backward in plans without it), EmbBackward,
 * dequeue_batch, OptimStep. The backward of a replayed forward gives the rows zero gradients.
 *
 * Errors: ARGUMENT (no such plan; io of a function that does not exist; a model without modules, or
 * with too many), STATE (a module or postproc belongs to another pipeline), errors that the model's
 * forward returns in the trace, those returned by hotbed_pipeline_create(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_create(
    const hotbed_trainer *trainer, const hotbed_train_options *options, hotbed_train **out);

/* Stop, cancel the batches in flight, restore the model's forward hooks, and free. NULL is
 * allowed. */
HOTBED_API void hotbed_train_destroy(hotbed_train *train);

/* Return the engine: bind, progress, drain, log. Borrowed. */
HOTBED_API hotbed_pipeline *hotbed_train_pipeline(hotbed_train *train);

/* Return the rewrite: report, states; NULL with plans that do not pipeline modules. Borrowed. */
HOTBED_API hotbed_rewrite *hotbed_train_rewrite(hotbed_train *train);

/* Find a schedule for the tasks of a one-stage plan, such as "sw-serial", from a profile of this
 * pipeline. The cost of a task is its exposed time, limited to between half and all of the time
 * that it takes alone. Pass the schedule's steps in hotbed_train_options. Never waits.
 *
 * The schedule has several candidates; the one that the model predicts to be fastest is chosen. The
 * serial plan and the plans above with the same tasks ("sw-pipelined" for "sw-serial") are among
 * them.
 *
 *   max_depth  as in hotbed_schedule_options
 *
 * Errors: as hotbed_schedule_find(); ARGUMENT (a profile of another plan). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_schedule(
    hotbed_train *train, const hotbed_profile *profile, uint32_t max_depth, hotbed_schedule **out);

/* Options of hotbed_train_tune(). 0 is the default of every field but `size`. */
typedef struct hotbed_tune_options {
    uint32_t size;             /* sizeof(hotbed_tune_options) */
    uint32_t warmup;           /* iterations before each measurement; 0 is 4 */
    uint32_t rounds;           /* measurements of each candidate; 0 is 3 */
    uint32_t iterations;       /* iterations per measurement; 0 is 8 */
    hotbed_loader loader;      /* where batches come from; required */
    double (*now)(void *self); /* returns seconds; NULL is the machine's clock */
    void *now_self;
} hotbed_tune_options;

/* Train with each candidate of a schedule in turn, in several rounds, and take the candidate with
 * the shortest iteration in its best round, because other activity on a machine only makes
 * iterations longer. Batches are trained in the loader's order, as by any plan, and nothing is in
 * flight afterwards: at most rounds * candidates * (warmup + iterations + 2 * depth) batches. The
 * model must have no other train pipeline during the call. Synchronous; waits; allocates.
 *
 * With several ranks, all call it with the same schedule, and all take the same candidate: the time
 * of a candidate is the slowest rank's, by options->pipeline.agreement.
 *
 *   options  as for hotbed_train_create(); the steps are the candidate's
 *   seconds  [hotbed_schedule_candidates()] out: seconds per iteration of each; NULL is allowed
 *
 * Errors: ARGUMENT (NULL, no loader), STATE (the loader ended), those returned by
 * hotbed_train_create() and hotbed_pipeline_progress(). After an error the schedule's candidate is
 * unchanged. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_train_tune(
    const hotbed_trainer *trainer, const hotbed_train_options *options,
    const hotbed_tune_options *tune, hotbed_schedule *schedule, double *seconds);

/* Return the stream called "memcpy", "dist", "prefetch" or "default"; NULL for other names.
 * Borrowed. */
HOTBED_API hotbed_stream *hotbed_train_stream(hotbed_train *train, const char *name);

/* Switch to evaluation, without gradients and optimizer steps, or back to training. Modules are
 * notified; in evaluation, they release what they hold of a batch. Never waits.
 * Errors: STATE (iterations are in flight: drain first), those returned by modules. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_train_set_training(hotbed_train *train, bool training);

/* --- sharded collections ---------------------------------------------------------------------- */

/* Sharded collections as modules of a model.
 *
 * Collections of one communicator that are called for the same batch form one set
 * of modules: when pipelined, their key exchanges travel together (the fused splits), through one
 * hotbed_sharded_context per batch. A module's argument is a `const hotbed_kjt *`, its output a
 * `const hotbed_sharded_output *`, and its backward reads the gradient from that output.
 *
 *     const char *names[] = {"users"};
 *     status = hotbed_sharded_modules_create(1, names, &collection, &modules);
 *     status = hotbed_comm_agreement_create(agreement_comm, agreement_stream, &agreement);
 *     hotbed_module *list[] = {hotbed_sharded_modules_get(modules, 0)};
 *     hotbed_model model = {.modules = list, .num_modules = 1, .forward = forward, .self = my};
 *     trainer.model = &model;
 *     options.pipeline = (hotbed_pipeline_options){.size = sizeof options.pipeline};
 *     options.pipeline.agreement = hotbed_comm_agreement_of(agreement);
 *     status = hotbed_train_create(&trainer, &options, &train);
 *
 * Here forward calls hotbed_module_forward() (hotbed/forward.h), and options is a
 * hotbed_train_options.
 *
 * A module uses its communicator only in ordered steps of the train pipelines, which take turns, so
 * one communicator is used by one thread at a time, in the same order on all ranks. */

typedef struct hotbed_sharded_modules hotbed_sharded_modules; /* opaque; owned by the caller */
typedef struct hotbed_comm_agreement hotbed_comm_agreement;   /* opaque; owned by the caller */

/* The output of a module. Device memory that belongs to the batch until its backward or release.
 * The library creates it, so it has no size field; fields are only appended. */
typedef struct hotbed_sharded_output {
    const void *rows; /* as hotbed_sharded_wait_output() writes them */
    void *gradient;   /* to be written before the backward; same shape as rows */
    uint64_t num_rows, stride;
    uint64_t bytes; /* size of num_rows * stride elements */
    const hotbed_kjt *kjt;
} hotbed_sharded_output;

/* Create modules for n collections. Synchronous. The memory of a batch in flight is allocated when
 * a rewrite is created, and its hotbed_sharded_context by the first batch that needs it, on all
 * ranks alike.
 *
 *   names        [n] in   of the modules; copied
 *   collections  [n] in   of one communicator, as for hotbed_sharded_create_context(); they must
 *                         outlive the modules
 *
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_modules_create(
    uint32_t n, const char *const *names, hotbed_sharded *const *collections,
    hotbed_sharded_modules **out);

/* Free the modules. No rewrite may use them, all work must be complete, and the streams that they
 * were used on must still exist. NULL is allowed. */
HOTBED_API void hotbed_sharded_modules_destroy(hotbed_sharded_modules *modules);

/* Return module number `module`, for a hotbed_model; NULL if there is none. Borrowed. */
HOTBED_API hotbed_module *hotbed_sharded_modules_get(
    hotbed_sharded_modules *modules, uint32_t module);

/* Create an agreement of a communicator's ranks, for hotbed_pipeline_options. The communicator must
 * serve no other purpose: it is used on the thread that calls progress, while tasks use other
 * communicators. Each agreement waits on the host for all ranks. Synchronous.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_agreement_create(hotbed_comm *comm, hotbed_stream *stream, hotbed_comm_agreement **out);
HOTBED_API void hotbed_comm_agreement_destroy(
    hotbed_comm_agreement *agreement); /* NULL is allowed */

/* Return the value of `agreement` in hotbed_pipeline_options, valid as long as the object
 * exists. */
HOTBED_API hotbed_agreement hotbed_comm_agreement_of(hotbed_comm_agreement *agreement);

HOTBED_END_DECLS
#endif
