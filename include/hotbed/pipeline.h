/* hotbed/pipeline.h - software pipelines: a training step cut into tasks that overlap over
 * iterations.
 *
 * A *task* is a named function that enqueues work of one iteration on a stream.  A *plan* says how
 * tasks are run: for each one a stage, a stream, a thread group, and what it comes after.  The same
 * tasks under another plan are another pipeline.  An *iteration* is what the tasks of one batch
 * share: the batch, values with their gradients, and a slot number in [0, depth) for what the tasks
 * keep themselves.
 *
 *   period P runs task t for iteration P - stage(t):
 *
 *                period  0    1    2    3    4          3 batches, stages 0 1 2
 *      h2d       stage 0 b0   b1   b2                   the first periods fill the pipeline,
 *      dist      stage 1      b0   b1   b2              the last ones empty it:
 *      train     stage 2           b0   b1   b2         every task runs once for every batch
 *
 * Each thread group is one thread that runs its tasks in the order of the plan.  What one task
 * comes after is waited for in two phases: the thread waits until the other task has been submitted
 * (else its event would not be recorded yet, and waiting for it would be passed at once), then the
 * stream waits for the event.  Nothing else is waited for, and nothing is allocated after the
 * pipeline was made.
 *
 * A plan that passes hotbed_pipeline_plan_check() cannot deadlock: tasks are put into the queues in
 * an order in which every task comes after what it waits for, so the first one that is not done can
 * always run.  Ordered tasks (those with collectives) run one at a time in that order, which is the
 * same on all ranks.
 *
 * After recsys-examples' SWPipeline (tasks, stages, two-phase synchronisation, sequencer,
 * shortcut); docs/torchrec-map.md has the names and docs/design.md what differs.
 */
#ifndef HOTBED_PIPELINE_H
#define HOTBED_PIPELINE_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_pipeline hotbed_pipeline;   /* opaque; owned by the caller */
typedef struct hotbed_iteration hotbed_iteration; /* opaque; owned by its pipeline */

enum {
    HOTBED_PIPELINE_TASKS_MOST = 64,
    HOTBED_PIPELINE_VALUES_MOST = 64,
    HOTBED_PIPELINE_STATES_MOST = 32,
    HOTBED_PIPELINE_STREAMS_MOST = 16,
    HOTBED_PIPELINE_EDGES_MOST = 512,
    HOTBED_PIPELINE_DEPTH_MOST = 16,
    HOTBED_PIPELINE_NAME_BYTES = 48, /* of a name and its terminator */
};

/* --- tasks ------------------------------------------------------------------------------------ */

/* The work of a task: enqueue on `stream`, return.  Runs on the thread of the task's group.  An
 * error stops the pipeline.  It may wait on the host where it must (a communicator's deadline, a
 * count). */
typedef hotbed_status (*hotbed_task_function)(
    hotbed_iteration *iteration, void *self, hotbed_stream *stream);

/* Outside state that a task changes beside its values, for shortcuts: `capture` runs after the task
 * and keeps what it did, `restore` does that again in another iteration instead of the task, any
 * number of times, and `release` frees the snapshot.  Work goes to `stream`. */
typedef struct hotbed_declared_io {
    hotbed_status (*capture)(
        void *self, hotbed_iteration *iteration, hotbed_stream *stream, void **snapshot);
    hotbed_status (*restore)(
        void *self, hotbed_iteration *iteration, hotbed_stream *stream, void *snapshot);
    void (*release)(void *self, void *snapshot); /* NULL: nothing to free */
    void *self;
} hotbed_declared_io;

/* A task.  Lists of names are separated by spaces; NULL is the empty list.  Names are
 * [A-Za-z_][A-Za-z0-9_.]*.  Plain struct without a size: it is only ever a member. */
typedef struct hotbed_task {
    const char *name;         /* unique in the plan; required */
    hotbed_task_function run; /* NULL: nothing to do, its place in the plan is kept */
    void *self;               /* first argument of run */
    const char *reads;        /* values of the iteration; "x.grad" is the gradient of x */
    const char *writes;       /* values, each with one writer; a gradient may have several */
    const char
        *states; /* what tasks of different iterations share and change, a cache for example: the
                         * plan must order all tasks that name a state, one way or the other */
    const char
        *serial; /* the same, and in the order of a serial run: rows that the next iteration must
                         * see changed */
    const char *backward_of; /* the task whose backward this is: when that one was replayed by a
                              * shortcut, this one puts zeros into the gradients of its inputs */
    const hotbed_declared_io *io; /* [num_io] */
    uint32_t num_io;
    bool always;  /* cannot be skipped: what it does is neither in its writes nor in io */
    bool by_slot; /* captured once in each slot, and replayed there: its pointers and io are
                   * of what the slot has */
} hotbed_task;

/* A value of an iteration.  `bytes` of device memory in each slot, twice that with a gradient; 0 is
 * a pointer that tasks set. */
typedef struct hotbed_value_options {
    const char *name; /* unique; does not end in ".grad" */
    uint64_t bytes;
    bool grad;
} hotbed_value_options;

/* --- plans ------------------------------------------------------------------------------------ */

/* How a task runs.  `after` lists what it comes after: "x" is task x of the same iteration, "x-1"
 * of the iteration before, "x+1" of the next one, which the plan must run earlier.  An iteration
 * that there is not, before the first or after the last, is not waited for. */
typedef struct hotbed_step {
    const char *task;   /* name of a task; each task has one step */
    uint32_t stage;     /* period P runs iteration P - stage; the lowest stage is 0 */
    bool ordered;       /* takes its turn among all ordered tasks: the same order on all ranks */
    const char *stream; /* name of a stream; the streams of a plan are each in one thread group */
    const char *group;  /* name of the thread that runs it; NULL is "main" */
    const char *after;
} hotbed_step;

typedef struct hotbed_pipeline_plan_stream {
    const char *name;
    hotbed_stream
        *stream; /* of one backend and device, all of them; used by its group's thread only */
} hotbed_pipeline_plan_stream;

/* Which task of a period is first, where the steps' `after` leaves it open. */
typedef enum hotbed_pipeline_plan_order {
    HOTBED_ORDER_OLDEST = 0, /* that of the oldest iteration (highest stage), then as listed */
    HOTBED_ORDER_LISTED = 1, /* as listed in `steps`: a plan reads like the body of a loop */
} hotbed_pipeline_plan_order;

/* Call hotbed_pipeline_plan_init(), then set fields.  All of it is borrowed until the call returns,
 * and copied, but for what tasks point to with `self` and `io`.  Fields are only ever appended. */
typedef struct hotbed_pipeline_plan {
    uint32_t size;    /* set by init */
    uint32_t depth;   /* iterations in flight, above the highest stage; 0 is highest stage + 1 */
    const char *name; /* for messages and traces; NULL is "plan" */
    hotbed_pipeline_plan_order order;
    uint32_t num_tasks, num_steps, num_values, num_streams;
    const hotbed_task *tasks;                   /* [num_tasks] 1 .. 64; required */
    const hotbed_step *steps;                   /* [num_steps] one a task; required */
    const hotbed_value_options *values;         /* [num_values] 0 .. 64 */
    const hotbed_pipeline_plan_stream *streams; /* [num_streams] 1 .. 16; required */
} hotbed_pipeline_plan;

static inline void hotbed_pipeline_plan_init(hotbed_pipeline_plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->size = sizeof *plan;
}

/* What is wrong with a plan. */
typedef enum hotbed_pipeline_plan_fault {
    HOTBED_PIPELINE_OK = 0,
    HOTBED_PIPELINE_SIZE = 1,        /* too many or none of something; depth */
    HOTBED_PIPELINE_NAME = 2,        /* missing, too long, odd characters, or used twice */
    HOTBED_PIPELINE_UNKNOWN = 3,     /* a name that nothing has */
    HOTBED_PIPELINE_UNSCHEDULED = 4, /* a task without a step, or with two */
    HOTBED_PIPELINE_STAGE = 5,       /* no step of stage 0, or a stage not below the depth */
    HOTBED_PIPELINE_CYCLE = 6,       /* tasks of one stage come after each other */
    HOTBED_PIPELINE_STAGE_CYCLE = 7, /* tasks of several stages or iterations do */
    HOTBED_PIPELINE_LATER_STAGE =
        8, /* comes after something that the plan runs in a later period */
    HOTBED_PIPELINE_STREAM_GROUPS = 9, /* a stream is used from two thread groups */
    HOTBED_PIPELINE_WRITERS =
        10, /* a value has two writers, or two of a gradient are not ordered */
    HOTBED_PIPELINE_UNWRITTEN = 11,   /* a value is read and nobody writes it */
    HOTBED_PIPELINE_VALUE_ORDER = 12, /* a task does not come after the writer of what it reads */
    HOTBED_PIPELINE_STATE_ORDER = 13, /* an edge is missing between tasks that share a state */
    HOTBED_PIPELINE_BACKWARD = 14,    /* backward_of: itself, or gradients that are not declared */
} hotbed_pipeline_plan_fault;

/* "LATER_STAGE" for HOTBED_PIPELINE_LATER_STAGE; "UNKNOWN_FAULT" for other numbers. */
HOTBED_API const char *hotbed_pipeline_plan_fault_name(hotbed_pipeline_plan_fault fault);

/* What a check found. */
typedef struct hotbed_pipeline_plan_report {
    hotbed_pipeline_plan_fault fault;
    char text[256]; /* the fault with names and values; "" when there is none */
    uint32_t
        head_of_line; /* steps that may hold up a later stage of their thread group, because they
                             * come after another iteration: slower than it could be, never stuck */
    char head_of_line_text[256]; /* the first of them; "" */
    uint32_t num_groups;         /* threads */
    uint32_t max_stage;
} hotbed_pipeline_plan_report;

/* Check a plan.  Synchronous; makes nothing.  `report` may be NULL.
 * Errors: ARGUMENT (the plan has a fault; the text starts with the fault's name), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_plan_check(const hotbed_pipeline_plan *plan, hotbed_pipeline_plan_report *report);

/* --- the pipeline ----------------------------------------------------------------------------- */

/* Where batches come from.  Calls come from the thread of fill and progress. */
typedef struct hotbed_loader {
    /* Next batch, or *end.  The batch stays as it is until `done`.  A failure stops the
     * pipeline. */
    hotbed_status (*next)(void *self, void **batch, bool *end);
    /* The pipeline is finished with the batch once `event` is passed (do not record it).  NULL: not
     * called. */
    void (*done)(void *self, void *batch, hotbed_event *event);
    void *self;
} hotbed_loader;

/* What ranks must do alike.  `least` gives all ranks the smallest of their words; it may wait.  All
 * fields NULL: one rank.  Called from the threads of hotbed_pipeline_shortcut(), fill and
 * progress. */
typedef struct hotbed_agreement {
    hotbed_status (*least)(void *self, uint64_t word, uint64_t *least);
    void *self;
} hotbed_agreement;

/* What happens when one rank's loader ends before the others'. */
typedef enum hotbed_end_policy {
    HOTBED_END_ALONE = 0, /* each rank for itself: for one rank, or loaders of equal length */
    HOTBED_END_FIRST =
        1, /* all ranks end with the first one; a batch beyond it goes back by `done` */
    HOTBED_END_LAST = 2, /* ranks without batches go on with empty iterations until the last one */
} hotbed_end_policy;

/* Call hotbed_pipeline_options_init(), then set fields; 0 is each field's default. */
typedef struct hotbed_pipeline_options {
    uint32_t size;        /* set by init */
    uint32_t log_entries; /* tasks that the log keeps, the latest ones; 0: no log */
    bool timed; /* log when tasks began and ended on the device too; costs an event a task */
    int rank;   /* for traces */
    double deadline_seconds; /* progress fails when an iteration takes longer; 0 is 60 */
    hotbed_end_policy end;
    hotbed_agreement agreement;
    void (*revoke)(
        void *self); /* called once when the pipeline fails, before its threads are joined:
                                 * abort communicators here, so that tasks in them return */
    void *revoke_self;
    /* Asked about each fault that work latched on a stream of the plan, on the thread that saw it,
     * where hotbed_last_error() has its text: true to go on.  NULL: all faults end the pipeline. */
    bool (*forgive)(void *self, hotbed_status fault);
    void *forgive_self;
} hotbed_pipeline_options;

static inline void hotbed_pipeline_options_init(hotbed_pipeline_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Make a pipeline of a plan, and start its threads.  Synchronous.  Takes the values' memory times
 * depth.  `options` NULL is all defaults.
 * Errors: ARGUMENT (the plan, see hotbed_pipeline_plan_check(); an option), MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_create(
    const hotbed_pipeline_plan *plan, const hotbed_pipeline_options *options,
    hotbed_pipeline **out);

/* Stop and join the threads, in whatever state, finish the plan's streams, free.  Iterations in
 * flight are dropped: hotbed_pipeline_drain() before it finishes them.  NULL is allowed. */
HOTBED_API void hotbed_pipeline_destroy(hotbed_pipeline *pipeline);

/* Take batches from `loader` from now on, until it ends; copied.
 * Errors: ARGUMENT; STATE (iterations are in flight: drain first; the pipeline failed). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_bind(hotbed_pipeline *pipeline, const hotbed_loader *loader);

/* Enqueue the first `depth` periods.  hotbed_pipeline_progress() does it if need be.  Host work
 * only.
 * Errors: STATE (no loader; filled already; failed), the loader's, COMM. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_fill(hotbed_pipeline *pipeline);

/* The next iteration in order: M batches give M iterations, then *out is NULL, which is the end,
 * and again NULL until a loader is bound.
 *
 * Enqueues the next period, then waits on the host until all tasks of the iteration are submitted.
 * Their work may still run: hotbed_pipeline_stream() is ordered after it.  *out is valid until the
 * next call; the slot is used again after the work that is by then on that stream.  At the end it
 * waits for the plan's streams, so that faults of the last iterations are told.
 *
 * Errors: that of a task, with "task NAME of iteration N" in the text; a fault that a kernel
 * latched on a stream of the plan; COMM (deadline_seconds passed; the text names what is not done);
 * STATE (no loader was ever bound).  After an error all threads are joined, unless one is stuck in
 * a task, and every later call returns the same error; only destroy is left. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_progress(hotbed_pipeline *pipeline, const hotbed_iteration **out);

/* Take no more batches, finish what is in flight, and drop the results.  Then a loader can be
 * bound.  Ranks that share collectives drain at the same iteration.
 * Errors: as hotbed_pipeline_progress(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_drain(hotbed_pipeline *pipeline);

/* Run the tasks for one batch on the calling thread, one after the other, each on `stream`: what
 * the pipelined run must equal.  Nothing may be in flight; a loader is unbound.  *out (NULL is
 * allowed) as with progress.
 * Errors: as hotbed_pipeline_progress(); ARGUMENT (stream NULL or of another device); STATE
 * (iterations are in flight). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_run_serial(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, const hotbed_iteration **out);

/* The pipeline's own stream, for the thread that calls progress: copy results here.  Borrowed. */
HOTBED_API hotbed_stream *hotbed_pipeline_stream(const hotbed_pipeline *pipeline);

/* Iterations in flight at most. */
HOTBED_API uint32_t hotbed_pipeline_depth(const hotbed_pipeline *pipeline);

/* --- iterations ------------------------------------------------------------------------------- */

/* Counts from 0 over the life of the pipeline. */
HOTBED_API uint64_t hotbed_iteration_number(const hotbed_iteration *iteration);

/* In [0, depth): no other iteration in flight has it. */
HOTBED_API uint32_t hotbed_iteration_slot(const hotbed_iteration *iteration);

/* What the loader gave; NULL in an empty iteration (HOTBED_END_LAST). */
HOTBED_API void *hotbed_iteration_batch(const hotbed_iteration *iteration);

/* The memory of value number `value` of the plan, or the pointer that was set; NULL when there is
 * no such value.  While its writer is replayed by a shortcut, a memory that must not be written. */
HOTBED_API void *hotbed_iteration_value(const hotbed_iteration *iteration, uint32_t value);

/* Set a value of 0 bytes.  For its writer.  Never waits.
 * Errors: ARGUMENT (no such value, or one with memory). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_iteration_set(hotbed_iteration *iteration, uint32_t value, void *pointer);

/* The gradient of a value, to add to: zeros in `stream` order before the first use in an iteration.
 * Async.
 * Errors: ARGUMENT (no such value, or one without gradient), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_iteration_grad_add(
    hotbed_iteration *iteration, uint32_t value, hotbed_stream *stream, void **grad);

/* The gradient of a value, to read.  Never waits.
 * Errors: ARGUMENT (as above); STATE (nobody has added to it in this iteration). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_iteration_grad(const hotbed_iteration *iteration, uint32_t value, void **grad);

/* --- shortcuts -------------------------------------------------------------------------------- */

/* Skip tasks, to see what they cost: each one named runs once more (once in each slot, where it is
 * `by_slot`) and is captured (its declared writes are copied, its io is captured), then it is
 * replayed from that, without running.  An
 * ordered task takes its turn all the same.  The backward of a replayed task gives zero gradients
 * to its inputs.  Writes of 0 bytes keep their pointer.  Nothing may be in flight.  May allocate.
 *
 *   tasks   names, separated by spaces; NULL or "": none
 *   verify  at each replay compare what was captured with what is there now: waits, for debugging
 *
 * The call is made alike on all ranks of the agreement.
 * Errors: ARGUMENT (no such task); UNSUPPORTED (a task that is `always`, with the reason where it is known); COMM (ranks name
 * different tasks: no rank has changed anything); STATE (in flight); MEMORY.  A replay that finds a
 * value changed fails with CORRUPT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_shortcut(hotbed_pipeline *pipeline, const char *tasks, bool verify);

/* --- what it did ------------------------------------------------------------------------------ */

typedef enum hotbed_task_mode {
    HOTBED_TASK_RUN = 0,
    HOTBED_TASK_CAPTURE = 1, /* ran, and was captured */
    HOTBED_TASK_REPLAY = 2,
    HOTBED_TASK_GRAFT = 3, /* zero gradients instead of a backward */
} hotbed_task_mode;

/* A task that ran.  Seconds count from the creation of the pipeline. */
typedef struct hotbed_log_entry {
    uint64_t iteration;
    uint32_t task;   /* number of its step in the plan */
    uint32_t group;  /* thread, in the order of first use in the plan; UINT32_MAX in a serial run */
    uint64_t ticket; /* turn among ordered tasks, from 1; 0: not ordered */
    hotbed_task_mode mode;
    double begin, end; /* on the host: its function, without waiting for its turn */
    double device_begin,
        device_end; /* on its stream; 0 and 0 when not timed, or not known in time */
} hotbed_log_entry;

/* Copy the latest entries, oldest first, in the order in which tasks were submitted: up to
 * `capacity`, and *n is how many.  Synchronous; nothing may be in flight.
 * Errors: ARGUMENT, STATE (in flight; the pipeline has no log). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_log(
    hotbed_pipeline *pipeline, uint64_t capacity, hotbed_log_entry *entries, uint64_t *n);

/* A hash of the sequence of (iteration, task) of all ordered tasks since the start: equal on all
 * ranks that did the same.  Waits for nothing. */
HOTBED_API uint64_t hotbed_pipeline_order_hash(hotbed_pipeline *pipeline);

/* Since the pipeline was made. */
typedef struct hotbed_pipeline_stats {
    uint64_t pulled;     /* batches taken from loaders */
    uint64_t iterations; /* handed out by progress */
    uint64_t tasks;      /* run, captured, replayed or grafted */
    uint64_t replays;    /* of them replayed */
    uint64_t
        signal_waits; /* times a thread slept until another task was submitted, or for its turn */
    uint64_t stream_waits; /* events that streams were made to wait for */
    uint64_t events;       /* recorded */
    uint32_t threads;      /* that run now */
} hotbed_pipeline_stats;

/* Read the counters.  NULL is ignored. */
HOTBED_API void hotbed_pipeline_stats_read(hotbed_pipeline *pipeline, hotbed_pipeline_stats *out);

#ifdef __cplusplus
}
#endif
#endif
