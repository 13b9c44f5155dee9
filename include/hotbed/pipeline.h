/* hotbed/pipeline.h - software pipelines: a training step divided into tasks that overlap over
 * iterations.
 *
 * Experimental: all calls.
 *
 * For programs that build their own pipeline; hotbed/train.h has ready plans. A *task* is a named
 * function that enqueues work of one iteration on a stream. A *plan* says how tasks run: it gives
 * each task a stage, a stream, a thread group, and the tasks that it must come after. The same
 * tasks with another plan form another pipeline. An *iteration* is the state that the tasks of one
 * batch share: the batch, values with their gradients, and the number of a *buffer set* in [0,
 * depth), which selects the buffers that tasks keep themselves.
 *
 * A pipeline of two tasks; copy and train are functions of type hotbed_task_function:
 *
 *     hotbed_task tasks[] = {{.name = "h2d", .run = copy}, {.name = "train", .run = train}};
 *     hotbed_step steps[] = {{.task = "h2d", .stage = 0, .stream = "memcpy"},
 *                            {.task = "train", .stage = 1, .stream = "default", .after = "h2d"}};
 *     hotbed_pipeline_plan_stream streams[] = {{"memcpy", memcpy_stream}, {"default", stream}};
 *     hotbed_pipeline_plan plan = {.size = sizeof plan};
 *     plan.num_tasks = plan.num_steps = plan.num_streams = 2;
 *     plan.tasks = tasks;
 *     plan.steps = steps;
 *     plan.streams = streams;
 *     status = hotbed_pipeline_create(&plan, NULL, &pipeline);
 *     status = hotbed_pipeline_bind(pipeline, &loader);
 *     do
 *         status = hotbed_pipeline_progress(pipeline, &iteration);
 *     while (status == HOTBED_OK && iteration != NULL);
 *     hotbed_pipeline_destroy(pipeline);
 *
 * Period P runs task t for iteration P - stage(t):
 *
 *                period  0    1    2    3    4          3 batches, stages 0 1 2
 *      h2d       stage 0 b0   b1   b2                   the first periods fill the pipeline,
 *      dist      stage 1      b0   b1   b2              the last ones empty it:
 *      train     stage 2           b0   b1   b2         every task runs once for every batch
 *
 * Each thread group is one thread, which runs its tasks in the order of the plan. A task waits for
 * another task in two phases: its thread waits until the other task has been submitted (until then
 * its event is not recorded, and a wait for it would return at once), then its stream waits for the
 * event.
 *
 * The first tasks of an iteration wait on the host until the device has finished the iteration that
 * had the buffer set before, so the host is never more than `depth` iterations ahead. There are no
 * other waits, and nothing is allocated after the pipeline was created.
 *
 * A plan that passes hotbed_pipeline_plan_check() is ordered for loaders of any length, one batch
 * included, and cannot deadlock: tasks are enqueued in an order in which every task follows the
 * tasks that it waits for, so the first unfinished task can always run. Ordered tasks (tasks with collectives)
 * run one at a time in that order, which is the same on all ranks.
 *
 * Modelled on recsys-examples' SWPipeline (tasks, stages, two-phase synchronization, sequencer,
 * shortcut); docs/guide/torchrec-map.md maps the names, and docs/design/pipeline.md describes the
 * differences. */
#ifndef HOTBED_PIPELINE_H
#define HOTBED_PIPELINE_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

typedef struct hotbed_pipeline hotbed_pipeline;   /* opaque; owned by the caller */
typedef struct hotbed_iteration hotbed_iteration; /* opaque; owned by its pipeline */

enum {
    HOTBED_PIPELINE_TASKS_MOST = 64,
    HOTBED_PIPELINE_VALUES_MOST = 64,
    HOTBED_PIPELINE_STATES_MOST = 32,
    HOTBED_PIPELINE_STREAMS_MOST = 16,
    HOTBED_PIPELINE_EDGES_MOST = 512,
    HOTBED_PIPELINE_DEPTH_MOST = 16,
    HOTBED_PIPELINE_NAME_BYTES = 48, /* size of a name with its terminator */
};

/* --- tasks ------------------------------------------------------------------------------------ */

/* The work of a task: enqueue it on `stream` and return. Runs on the thread of the task's group. An
 * error stops the pipeline. The function may wait on the host where it must (a communicator's
 * deadline, a count). */
typedef hotbed_status (*hotbed_task_function)(
    hotbed_iteration *iteration, void *self, hotbed_stream *stream);

/* State that a task changes outside its values, for shortcuts. `capture` runs after the task and
 * stores its effects. `restore` repeats these effects in another iteration instead of the task, any
 * number of times. `release` frees the snapshot. Work is enqueued on `stream`.
 * Frozen: it has no size field, since it is a member of tasks. */
typedef struct hotbed_declared_io {
    hotbed_status (*capture)(
        void *self, hotbed_iteration *iteration, hotbed_stream *stream, void **snapshot);
    hotbed_status (*restore)(
        void *self, hotbed_iteration *iteration, hotbed_stream *stream, void *snapshot);
    void (*release)(void *self, void *snapshot); /* NULL: nothing to free */
    void *self;
} hotbed_declared_io;

/* A task. Lists of names are separated by spaces; NULL is the empty list. Names match
 * [A-Za-z_][A-Za-z0-9_.]*. Frozen: it has no size field, since plans have arrays of it. */
typedef struct hotbed_task {
    const char *name;         /* unique in the plan; required */
    hotbed_task_function run; /* NULL: nothing runs; the task keeps its place in the plan */
    void *self;               /* first argument of run */
    const char *reads;        /* values of the iteration; "x.grad" is the gradient of x */
    const char *writes;       /* values, each with one writer; a gradient may have several */
    /* State that tasks of different iterations share and change, for example a cache: the plan must
     * order all tasks that name a state, in either order. */
    const char *states;
    /* State as above, but in the order of a serial run: for example rows whose changes the next
     * iteration must read. */
    const char *serial;
    /* The task whose backward this is: after that task was replayed by a shortcut, this task sets
     * the gradients of its inputs to zero. */
    const char *backward_of;
    const hotbed_declared_io *io; /* [num_io] */
    uint32_t num_io;
    bool always; /* cannot be skipped: it has effects outside its writes and io */
    /* Captured once in each buffer set, and replayed there: its pointers and io depend on it. */
    bool by_buffer_set;
} hotbed_task;

/* A value of an iteration: `bytes` of device memory in each buffer set, and as much again for a
 * gradient. If `bytes` is 0, the value is a pointer that tasks set. Frozen: it has no size field,
 * since plans have arrays of it. */
typedef struct hotbed_value_options {
    const char *name; /* unique; must not end in ".grad" */
    uint64_t bytes;
    bool grad;
} hotbed_value_options;

/* --- plans ------------------------------------------------------------------------------------ */

/* How a task runs. `after` lists the tasks that it comes after: "x" is task x of the same
 * iteration, "x-1" of the previous iteration, "x+1" of the next one, which the plan must run
 * earlier. There is no wait for an iteration that does not exist, before the first or after the
 * last.
 * Frozen: it has no size field, since plans have arrays of it. */
typedef struct hotbed_step {
    const char *task;   /* name of a task; each task has one step */
    uint32_t stage;     /* period P runs iteration P - stage; the lowest stage is 0 */
    bool ordered;       /* takes its turn among all ordered tasks: the same order on all ranks */
    const char *stream; /* name of a stream; each stream of a plan belongs to one thread group */
    const char *group;  /* name of the thread that runs it; NULL is "main" */
    const char *after;
} hotbed_step;

/* A stream with a name. Frozen: it has no size field, since plans have arrays of it. */
typedef struct hotbed_pipeline_plan_stream {
    const char *name;
    /* All streams have the same backend and device; used by the thread of its group only. */
    hotbed_stream *stream;
} hotbed_pipeline_plan_stream;

/* Which task of a period comes first where `after` of the steps leaves it open. */
typedef enum hotbed_pipeline_plan_order {
    /* tasks of the oldest iteration, the highest stage, first; within an iteration, as listed */
    HOTBED_ORDER_OLDEST = 0,
    HOTBED_ORDER_LISTED = 1, /* as listed in `steps`: a plan reads like the body of a loop */
} hotbed_pipeline_plan_order;

/* A plan. 0 is the default of every field but `size`. All of it is borrowed until the call returns,
 * and copied, except the data that `self` and `io` of tasks point to. Fields are only ever
 * appended. */
typedef struct hotbed_pipeline_plan {
    uint32_t size; /* sizeof(hotbed_pipeline_plan) */
    /* Iterations in flight, above the highest stage; 0 is highest stage + 1. With one more, the host
     * enqueues a period while the device still works on the period before. */
    uint32_t depth;
    const char *name; /* for messages and traces; NULL is "plan" */
    hotbed_pipeline_plan_order order;
    uint32_t num_tasks, num_steps, num_values, num_streams;
    const hotbed_task *tasks;                   /* [num_tasks] 1 .. 64; required */
    const hotbed_step *steps;                   /* [num_steps] one per task; required */
    const hotbed_value_options *values;         /* [num_values] 0 .. 64 */
    const hotbed_pipeline_plan_stream *streams; /* [num_streams] 1 .. 16; required */
} hotbed_pipeline_plan;

/* The faults of a plan. */
typedef enum hotbed_pipeline_plan_fault {
    HOTBED_PIPELINE_OK = 0,
    HOTBED_PIPELINE_SIZE = 1,        /* a count is 0 or too large, or the depth is invalid */
    HOTBED_PIPELINE_NAME = 2,        /* missing, too long, invalid characters, or used twice */
    HOTBED_PIPELINE_UNKNOWN = 3,     /* a name that nothing in the plan has */
    HOTBED_PIPELINE_UNSCHEDULED = 4, /* a task without a step, or with two */
    HOTBED_PIPELINE_STAGE = 5,       /* no step of stage 0, or a stage not below the depth */
    HOTBED_PIPELINE_CYCLE = 6,       /* tasks of one stage come after each other */
    /* Tasks of several stages or iterations come after each other. */
    HOTBED_PIPELINE_STAGE_CYCLE = 7,
    HOTBED_PIPELINE_LATER_STAGE = 8,   /* comes after a task that the plan runs in a later period */
    HOTBED_PIPELINE_STREAM_GROUPS = 9, /* a stream is used by two thread groups */
    /* A value has two writers, or two writers of a gradient are not ordered. */
    HOTBED_PIPELINE_WRITERS = 10,
    HOTBED_PIPELINE_UNWRITTEN = 11, /* a value is read but never written */
    /* A task does not come after the writer of a value that it reads. */
    HOTBED_PIPELINE_VALUE_ORDER = 12,
    HOTBED_PIPELINE_STATE_ORDER = 13, /* an edge is missing between tasks that share a state */
    /* backward_of: names the task itself, or gradients are not declared. */
    HOTBED_PIPELINE_BACKWARD = 14,
} hotbed_pipeline_plan_fault;

/* Return "LATER_STAGE" for HOTBED_PIPELINE_LATER_STAGE, and so on; "UNKNOWN_FAULT" for other
 * numbers. */
HOTBED_API const char *hotbed_pipeline_plan_fault_name(hotbed_pipeline_plan_fault fault);

/* The result of a check. */
typedef struct hotbed_pipeline_plan_report {
    uint32_t size; /* set by the caller: sizeof(hotbed_pipeline_plan_report) */
    hotbed_pipeline_plan_fault fault;
    char text[256]; /* the fault with names and values; "" if there is none */
    /* Number of steps that may delay a later stage of their thread group, because they come after
     * another iteration: the plan is slower than possible, but never stuck. */
    uint32_t head_of_line;
    char head_of_line_text[256]; /* the first of these steps; "" */
    uint32_t num_groups;         /* number of threads */
    uint32_t max_stage;
} hotbed_pipeline_plan_report;

/* Check a plan. Synchronous; creates nothing. `report` may be NULL.
 * Errors: ARGUMENT (the plan has a fault; the text starts with the fault's name), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_plan_check(const hotbed_pipeline_plan *plan, hotbed_pipeline_plan_report *report);

/* --- the pipeline ----------------------------------------------------------------------------- */

/* Where batches come from. Called on the thread that calls fill and progress. Frozen: it has no
 * size field. */
typedef struct hotbed_loader {
    /* Return the next batch, or set *end, which is false before. The batch must not change until
     * `done`. An error stops the pipeline. */
    hotbed_status (*next)(void *self, void **batch, bool *end);
    /* The pipeline has finished with the batch once `event` has passed (do not record it); at once
     * if `event` is NULL. Not called for iterations that a failure or hotbed_pipeline_destroy()
     * drops. NULL: not called at all. */
    void (*done)(void *self, void *batch, hotbed_event *event);
    void *self;
} hotbed_loader;

/* How ranks agree. `least` gives all ranks the smallest of their words; it may wait. All fields
 * NULL: one rank. Called on the threads that call hotbed_pipeline_shortcut(), fill and progress.
 * Frozen: it has no size field, since it is a member of options. */
typedef struct hotbed_agreement {
    hotbed_status (*least)(void *self, uint64_t word, uint64_t *least);
    void *self;
} hotbed_agreement;

/* What happens when one rank's loader ends before the loaders of other ranks. */
typedef enum hotbed_end_policy {
    HOTBED_END_ALONE = 0, /* each rank ends by itself: for one rank, or loaders of equal length */
    /* All ranks end with the first one; a batch beyond the end is returned through `done`. */
    HOTBED_END_FIRST = 1,
    /* Ranks without batches continue with empty iterations until the last loader ends. */
    HOTBED_END_LAST = 2,
} hotbed_end_policy;

/* Options of a pipeline. 0 is the default of every field but `size`. Frozen, since it is a member
 * of hotbed_train_options: a new option uses reserved words. */
typedef struct hotbed_pipeline_options {
    uint32_t size;        /* sizeof(hotbed_pipeline_options) */
    uint32_t log_entries; /* number of latest tasks that the log keeps; 0: no log */
    bool timed; /* also log when tasks began and ended on the device; costs an event per task */
    int rank;   /* for traces */
    double deadline_seconds; /* progress fails if an iteration takes longer; 0 is 60 */
    hotbed_end_policy end;
    hotbed_agreement agreement;
    /* Called once when the pipeline fails, before its threads are joined: abort communicators here,
     * so that tasks blocked in them return. */
    void (*revoke)(void *self);
    void *revoke_self;
    /* Called for each fault that work latched on a stream of the plan, on the thread that found it,
     * where hotbed_last_error() has its text. Return true to continue. NULL: every fault stops the
     * pipeline. */
    bool (*tolerate)(void *self, hotbed_status fault);
    void *tolerate_self;
    uint64_t reserved[8]; /* for options of later versions; must be 0 */
} hotbed_pipeline_options;

/* Create a pipeline from a plan, and start its threads. Synchronous. Allocates the memory of the
 * values, times depth. `options` NULL means all defaults.
 * Errors: ARGUMENT (the plan, see hotbed_pipeline_plan_check(); an option), MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_create(
    const hotbed_pipeline_plan *plan, const hotbed_pipeline_options *options,
    hotbed_pipeline **out);

/* Stop and join the threads in any state, finish the plan's streams, and free. Iterations in flight
 * are dropped; call hotbed_pipeline_drain() first to finish them. NULL is allowed. */
HOTBED_API void hotbed_pipeline_destroy(hotbed_pipeline *pipeline);

/* Take batches from `loader` until it ends. The loader is copied.
 * Errors: ARGUMENT; STATE (iterations are in flight: drain first; the pipeline failed). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_bind(hotbed_pipeline *pipeline, const hotbed_loader *loader);

/* Enqueue the first `depth` periods. hotbed_pipeline_progress() does so if necessary. Only host
 * work.
 * Errors: STATE (no loader; filled already; failed), those returned by the loader, COMM. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_fill(hotbed_pipeline *pipeline);

/* Return the next iteration in order. M batches give M iterations; then *out is NULL, which marks
 * the end, and stays NULL until a loader is bound.
 *
 * Enqueues the next period, then waits on the host until all tasks of the iteration have been
 * submitted. Their work may still run: hotbed_pipeline_stream() is ordered after it. *out is valid
 * until the next call; the buffer set is reused after the work that has been enqueued on that
 * stream by then. At the end it waits for the plan's streams, so that faults of the last iterations
 * are reported.
 *
 * Errors: those returned by a task, with "task NAME of iteration N" in the text; a fault that a
 * kernel latched on a stream of the plan; COMM (deadline_seconds passed; the text names the
 * unfinished tasks); STATE (no loader was ever bound). After an error all threads are joined,
 * except a thread that is stuck in a task, and every later call returns the same error; the
 * pipeline can only be destroyed. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_progress(hotbed_pipeline *pipeline, const hotbed_iteration **out);

/* Take no more batches, finish the iterations in flight, and drop their results. Then a loader can
 * be bound. Waits for the plan's streams, so that faults of the last iterations are reported. Ranks
 * that share collectives must drain at the same iteration.
 * Errors: as hotbed_pipeline_progress(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_drain(hotbed_pipeline *pipeline);

/* Run the tasks for one batch on the calling thread, one after the other, all on `stream`: the
 * reference that a pipelined run must equal. Nothing may be in flight; a loader is unbound. *out
 * (NULL is allowed) as with progress.
 * Errors: as hotbed_pipeline_progress(); ARGUMENT (stream NULL or of another device); STATE
 * (iterations are in flight). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_run_serial(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, const hotbed_iteration **out);

/* Return the pipeline's own stream, for the thread that calls progress: enqueue copies of results
 * here. Borrowed. */
HOTBED_API hotbed_stream *hotbed_pipeline_stream(const hotbed_pipeline *pipeline);

/* Return the largest number of iterations in flight. */
HOTBED_API uint32_t hotbed_pipeline_depth(const hotbed_pipeline *pipeline);

/* --- iterations ------------------------------------------------------------------------------- */

/* Return the iteration's number, counted from 0 over the life of the pipeline. */
HOTBED_API uint64_t hotbed_iteration_number(const hotbed_iteration *iteration);

/* Return the number of the buffer set, in [0, depth). No other iteration has it until all work of
 * this one has passed on the device, so tasks may use host memory of the set, too: at once, or in
 * calls on the stream. */
HOTBED_API uint32_t hotbed_iteration_buffer_set(const hotbed_iteration *iteration);

/* Return the batch from the loader; NULL in an empty iteration (HOTBED_END_LAST). */
HOTBED_API void *hotbed_iteration_batch(const hotbed_iteration *iteration);

/* Return the memory of value number `value` of the plan, or the pointer that was set; NULL if there
 * is no such value. While its writer is replayed by a shortcut, this memory must not be written. */
HOTBED_API void *hotbed_iteration_value(const hotbed_iteration *iteration, uint32_t value);

/* Set a value of 0 bytes. For the writer of the value. Never waits.
 * Errors: ARGUMENT (no such value, or a value with memory). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_iteration_set(hotbed_iteration *iteration, uint32_t value, void *pointer);

/* Return the gradient of a value, to add to: it is zero in `stream` order before the first use in
 * an iteration. Asynchronous.
 * Errors: ARGUMENT (no such value, or a value without gradient), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_iteration_grad_add(
    hotbed_iteration *iteration, uint32_t value, hotbed_stream *stream, void **grad);

/* Return the gradient of a value, to read. Never waits.
 * Errors: ARGUMENT (as above); STATE (no task has added to it in this iteration). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_iteration_grad(const hotbed_iteration *iteration, uint32_t value, void **grad);

/* --- shortcuts -------------------------------------------------------------------------------- */

/* Skip tasks, to measure their cost. Each named task runs once more (once in each buffer set if it
 * is `by_buffer_set`) and is captured: its declared writes are copied, and its io is captured. From
 * then on the task is replayed from the capture, without running. An ordered task still takes its
 * turn. The backward of a replayed task gives zero gradients to its inputs. Writes of 0 bytes keep
 * their pointer. If several tasks add to a gradient, only the first of them can be skipped. Nothing
 * may be in flight. May allocate.
 *
 *   tasks  names, separated by spaces; NULL or "": none
 *
 * All ranks of the agreement make the same call.
 * Errors: ARGUMENT (no such task); UNSUPPORTED (a task that is `always`, with the reason if it is
 * known, or a later one that adds to a gradient); COMM (ranks name different tasks: no rank has
 * changed anything); STATE (in flight); MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_pipeline_shortcut(hotbed_pipeline *pipeline, const char *tasks);

/* --- log and counters ------------------------------------------------------------------------- */

typedef enum hotbed_task_mode {
    HOTBED_TASK_RUN = 0,
    HOTBED_TASK_CAPTURE = 1, /* ran, and was captured */
    HOTBED_TASK_REPLAY = 2,
    HOTBED_TASK_GRAFT = 3, /* zero gradients instead of a backward */
} hotbed_task_mode;

/* A task that ran. Seconds count from the creation of the pipeline.
 * Frozen: it has no size field, since calls fill arrays of it. */
typedef struct hotbed_log_entry {
    uint64_t iteration;
    uint32_t task;  /* number of its step in the plan */
    uint32_t group; /* thread, in the order of first use in the plan; UINT32_MAX in a serial run */
    uint64_t turn;  /* its place among ordered tasks, from 1; 0: not ordered */
    hotbed_task_mode mode;
    double begin, end; /* time of its function on the host, without the wait for its turn */
    double device_begin,
        device_end; /* time on its stream; 0 and 0 if not timed, or if the pipeline has failed */
} hotbed_log_entry;

/* Copy up to `capacity` of the latest entries, oldest first, in the order in which tasks were
 * submitted. *n is the number of entries copied. Synchronous; nothing may be in flight unless the
 * pipeline has failed: then a task that still runs adds its entry when it ends.
 * Errors: ARGUMENT, STATE (in flight; the pipeline has no log). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_pipeline_log(
    hotbed_pipeline *pipeline, uint64_t capacity, hotbed_log_entry *entries, uint64_t *n);

/* Counters since the pipeline was created. */
typedef struct hotbed_pipeline_stats {
    uint32_t size;       /* set by the caller: sizeof(hotbed_pipeline_stats) */
    uint64_t pulled;     /* batches taken from loaders */
    uint64_t iterations; /* returned by progress */
    uint64_t tasks;      /* run, captured, replayed or grafted */
    uint64_t replays;    /* tasks that were replayed */
    /* Times a thread slept until another task was submitted, or for its turn. */
    uint64_t signal_waits;
    uint64_t stream_waits; /* events that streams were made to wait for */
    uint64_t events;       /* events that were recorded */
    uint32_t threads;      /* threads that are running now */
    /* Times a thread slept until the device had finished with the buffer set of a new iteration. */
    uint64_t set_waits;
} hotbed_pipeline_stats;

/* Read the counters. Never waits for the pipeline's work. Errors: ARGUMENT (NULL, size). */
HOTBED_API hotbed_status
hotbed_pipeline_stats_read(hotbed_pipeline *pipeline, hotbed_pipeline_stats *out);

HOTBED_END_DECLS
#endif
