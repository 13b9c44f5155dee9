/* pipeline/state.h - the state of a pipeline and its lock: buffer sets, completions, thread groups,
 * captures, log.
 *
 * One lock guards all that threads share: queues, completions, the sequencer, the log.  One condition is
 * signalled whenever something under the lock changes; with a few threads and some ten tasks per
 * iteration, finer locks would save nothing.  Tasks run without the lock.
 *
 * state.c is the lowest of the engine's files; capture.c, worker.c and engine.c are above it in
 * this order, log.c and shortcut.c use all of them.
 */
#pragma once

#include "base/error.h"
#include "base/stream.h"
#include "pipeline/program.h"

#include <pthread.h>

/* A value in one buffer set. */
typedef struct hotbed_cell {
    void *own; /* the value's memory; NULL if the value is a pointer */
    /* the address that readers get: `own`, a captured copy, or the pointer that was set */
    void *data;
    void *grad; /* NULL: the value has no gradient */
    bool grad_there;
} hotbed_cell;

struct hotbed_iteration {
    hotbed_pipeline *pipeline;
    uint64_t number;
    uint32_t buffer_set;
    void *batch;
    void *next_batch;   /* of the iteration that has the buffer set next */
    uint64_t begun;     /* number + 1 of the latest iteration that has begun; under the lock */
    uint32_t remaining; /* number of tasks not submitted yet; under the lock */
    bool replayed[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_cell cells[HOTBED_PIPELINE_VALUES_MOST];
    hotbed_event *released; /* the last use of the buffer set; nothing in it changes before */
    bool used;              /* `released` is recorded */
};

/* Records that a step of an iteration was submitted: threads wait for `number`, streams for `end`.
 * Each step has depth + max_distance completions, so that a waiting task still finds the completion of its
 * iteration. */
typedef struct hotbed_completion {
    uint64_t number;           /* iteration + 1; under the lock */
    hotbed_event *begin, *end; /* `begin` only if the pipeline is timed */
    uint64_t entry; /* log entry + 1 that gets the device times of this completion; 0: none */
} hotbed_completion;

typedef struct hotbed_queued {
    uint64_t iteration, turn; /* `turn` as in hotbed_log_entry */
    uint64_t edges; /* one bit per edge of the step: the iteration that it leads to exists */
    uint32_t step;
} hotbed_queued;

/* A thread and its queue. */
typedef struct hotbed_task_group {
    hotbed_pipeline *pipeline;
    uint32_t number;
    pthread_t thread;
    bool started, exited;
    bool busy;            /* a task is running */
    hotbed_queued *queue; /* ring of `capacity`: its tasks of all buffer sets */
    uint32_t capacity, head, count;
} hotbed_task_group;

/* The captured outputs of a task. */
typedef struct hotbed_capture {
    bool on, there;
    hotbed_memory values[HOTBED_PIPELINE_VALUES_MOST], grads[HOTBED_PIPELINE_VALUES_MOST];
    void *pointers[HOTBED_PIPELINE_VALUES_MOST];
    void **snapshots; /* [num_io] */
} hotbed_capture;

struct hotbed_pipeline {
    hotbed_program *program;
    hotbed_pipeline_options options;
    hotbed_stream *stream;          /* the stream of the thread that calls progress */
    hotbed_memory memory;           /* memory of the values */
    hotbed_iteration *iterations;   /* [depth] */
    hotbed_completion *completions; /* [num_completions][num_steps] */
    uint32_t num_completions;
    /* [num_steps][depth], NULL until a step is first captured; steps that are not captured by
     * buffer set use number 0 only */
    hotbed_capture **captures;
    hotbed_event *base; /* timed: the zero of device times */

    /* The fields below are used by the caller's thread only. */
    hotbed_loader loader;
    bool bound, filled, exhausted, ever_bound;
    bool finished;   /* the streams were waited for at the end */
    uint64_t period; /* number of the next period to be enqueued, which begins iteration `period` */
    uint64_t first;  /* the first iteration of this loader */
    uint64_t pulled; /* iterations begun so far */
    uint64_t retired; /* iterations handed out */
    bool holding;     /* the caller still uses iteration retired - 1 */
    uint64_t turns;   /* of tasks that were queued */

    /* The fields below are guarded by the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hotbed_task_group *groups; /* [num_groups] */
    uint64_t turns_taken;      /* by tasks that were submitted */
    bool stop, failed;
    bool revoked;
    hotbed_status failure;
    hotbed_error error; /* with the names of the pipeline, the task and the iteration */
    /* Hash of (iteration, task) of all ordered tasks: equal on all ranks. For tests. */
    uint64_t order_hash;
    hotbed_log_entry *log; /* [options.log_entries] */
    uint64_t logged;
    hotbed_pipeline_stats stats;
    double started;
};

static inline hotbed_completion *hotbed_pipeline_completion(
    const hotbed_pipeline *pipeline, uint64_t iteration, uint32_t step) {
    size_t row = (size_t)(iteration % pipeline->num_completions);
    return &pipeline->completions[row * pipeline->program->num_steps + step];
}

static inline hotbed_iteration *hotbed_pipeline_iteration(
    const hotbed_pipeline *pipeline, uint64_t iteration) {
    return &pipeline->iterations[iteration % pipeline->program->depth];
}

static inline hotbed_capture **hotbed_pipeline_capture(
    const hotbed_pipeline *pipeline, uint32_t step, uint32_t set) {
    uint32_t at = pipeline->program->steps[step].by_buffer_set ? set : 0;
    return &pipeline->captures[(size_t)step * pipeline->program->depth + at];
}

/* Record the first failure, with this thread's last error, and wake all threads. Called under the
 * lock. */
void hotbed_pipeline_fail(
    hotbed_pipeline *pipeline, hotbed_status status, const char *task, uint64_t iteration);

/* Return OK instead of a stream's fault that the options tolerate, and any other status
 * unchanged. */
hotbed_status hotbed_pipeline_tolerate(const hotbed_pipeline *pipeline, hotbed_status fault);

/* A task was submitted: update counts, order and log. Called under the lock. */
void hotbed_task_submitted(
    hotbed_pipeline *pipeline, const hotbed_log_entry *entry, hotbed_completion *completion);

/* Write the device times of a completion whose events have passed into the log; with `wait`, wait for
 * them. */
void hotbed_completion_harvest(hotbed_pipeline *pipeline, hotbed_completion *completion, bool wait);

/* Let an iteration take over its buffer set, with `next_batch`: wait on the host until the device
 * has finished the iteration that had it before, then reset values and flags. Does nothing if
 * another thread has done so. */
hotbed_status hotbed_iteration_begin(hotbed_iteration *iteration, uint64_t number);
