/* pipeline/engine.h - the inside of a pipeline: slots, marks, thread groups, shortcuts, log.
 *
 * One lock guards what threads share: queues, marks, the sequencer, the log.  One condition is
 * signalled whenever something under it changed; with a few threads and some ten tasks an
 * iteration, finer locks would save nothing.  Tasks run without the lock.
 */
#ifndef HOTBED_PIPELINE_ENGINE_H
#define HOTBED_PIPELINE_ENGINE_H

#include "base/error.h"
#include "base/stream.h"
#include "pipeline/program.h"

#include <pthread.h>

/* A value in one slot. */
typedef struct hotbed_cell {
    void *own;  /* its memory; NULL for a pointer */
    void *data; /* what readers get: own, a captured copy, or the pointer that was set */
    void *grad; /* NULL: has none */
    bool grad_there;
} hotbed_cell;

struct hotbed_iteration {
    hotbed_pipeline *pipeline;
    uint64_t number;
    uint32_t slot;
    void *batch;
    uint32_t remaining; /* tasks not submitted; under the lock */
    bool replayed[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_cell cells[HOTBED_PIPELINE_VALUES_MOST];
    hotbed_event *released; /* the slot may be used again */
    bool used;              /* `released` is recorded */
};

/* Both phases of "step s of iteration i was submitted": `number` for threads, `end` for streams.
 * There are depth + max_distance of them a step, so that who waits still finds the mark of its
 * iteration. */
typedef struct hotbed_mark {
    uint64_t number;           /* iteration + 1; under the lock */
    hotbed_event *begin, *end; /* begin only when the pipeline is timed */
    uint64_t entry; /* of the log + 1 that is to be told when they were passed; 0: none */
} hotbed_mark;

typedef struct hotbed_queued {
    uint64_t iteration, ticket;
    uint64_t edges; /* a bit for each edge of the step whose other iteration there is */
    uint32_t step;
} hotbed_queued;

/* A thread and its queue. */
typedef struct hotbed_task_group {
    hotbed_pipeline *pipeline;
    uint32_t number;
    pthread_t thread;
    bool started, exited;
    bool busy;            /* in a task */
    hotbed_queued *queue; /* ring of `capacity`: its tasks of all slots */
    uint32_t capacity, head, count;
} hotbed_task_group;

/* What was captured of a task. */
typedef struct hotbed_capture {
    bool on, there, verify;
    hotbed_memory values[HOTBED_PIPELINE_VALUES_MOST], grads[HOTBED_PIPELINE_VALUES_MOST];
    void *pointers[HOTBED_PIPELINE_VALUES_MOST];
    uint64_t digests[HOTBED_PIPELINE_VALUES_MOST];
    void **snapshots; /* [num_io] */
} hotbed_capture;

struct hotbed_pipeline {
    hotbed_program *program;
    hotbed_pipeline_options options;
    hotbed_stream *stream;   /* of the thread that calls progress */
    hotbed_memory memory;    /* of values */
    hotbed_iteration *slots; /* [depth] */
    hotbed_mark *marks;      /* [num_marks][num_steps] */
    uint32_t num_marks;
    hotbed_capture **captures; /* [num_steps][depth], NULL where there never was one; of
                                * all slots but 0 only where a step is captured by slot */
    hotbed_event *base;        /* timed: passed at creation */

    /* The caller's thread only. */
    hotbed_loader loader;
    bool bound, filled, exhausted, ever_bound;
    bool finished;    /* the streams were waited for at the end */
    uint64_t period;  /* to be enqueued next; pulls iteration `period` */
    uint64_t first;   /* iteration of this loader */
    uint64_t pulled;  /* iterations there are */
    uint64_t retired; /* iterations handed out */
    bool holding;     /* iteration retired - 1 is in the caller's hands */
    uint64_t tickets; /* given out */

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hotbed_task_group *groups; /* [num_groups] */
    uint64_t turn;             /* tickets served */
    bool stop, failed;
    bool revoked;
    hotbed_status failure;
    char failure_text[512];
    uint64_t order_hash;
    hotbed_log_entry *log; /* [options.log_entries] */
    uint64_t logged;
    hotbed_pipeline_stats stats;
    double started;
};

double hotbed_pipeline_now(void); /* monotonic seconds */

static inline hotbed_mark *hotbed_pipeline_mark(
    const hotbed_pipeline *pipeline, uint64_t iteration, uint32_t step) {
    size_t row = (size_t)(iteration % pipeline->num_marks);
    return &pipeline->marks[row * pipeline->program->num_steps + step];
}

static inline hotbed_iteration *hotbed_pipeline_slot(
    const hotbed_pipeline *pipeline, uint64_t iteration) {
    return &pipeline->slots[iteration % pipeline->program->depth];
}

/* STATE when iterations are in flight or in the caller's hands; the failure when the pipeline
 * failed. */
hotbed_status hotbed_pipeline_idle(hotbed_pipeline *pipeline, const char *function);

/* Of all ranks' times, which are not below 0, the longest; on one rank nothing changes. */
hotbed_status hotbed_agreement_most(const hotbed_agreement *agreement, double *seconds);

/* hotbed_pipeline_run_serial() with a function that is called after each step. */
typedef hotbed_status (*hotbed_step_watch)(void *self, uint32_t step);
hotbed_status hotbed_pipeline_run_watched(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, hotbed_step_watch watch,
    void *self, const hotbed_iteration **out);

/* Join the threads that have ended, or all. */
void hotbed_pipeline_join(hotbed_pipeline *pipeline, bool all);

/* The thread of a group. */
void *hotbed_task_group_main(void *argument);

/* Note the first failure, with this thread's last error, and wake everybody.  Under the lock. */
void hotbed_pipeline_fail(
    hotbed_pipeline *pipeline, hotbed_status status, const char *task, uint64_t iteration);

/* Run one task on `stream`: without waiting for anything, in whatever mode it is. */
/* OK for a fault of a stream that the options forgive. */
hotbed_status hotbed_pipeline_forgive(const hotbed_pipeline *pipeline, hotbed_status fault);

hotbed_status hotbed_task_run(
    hotbed_pipeline *pipeline, uint32_t step, hotbed_iteration *iteration, hotbed_stream *stream,
    hotbed_task_mode *mode);

/* A task was submitted: counts, order, log.  Under the lock. */
void hotbed_task_note(hotbed_pipeline *pipeline, const hotbed_log_entry *entry, hotbed_mark *mark);

/* Tell the log when a mark's events were passed, if they were. */
void hotbed_mark_harvest(hotbed_pipeline *pipeline, hotbed_mark *mark, bool wait);

/* Make the iteration's values and flags those of a new iteration. */
void hotbed_iteration_begin(hotbed_iteration *iteration, uint64_t number, void *batch);

/* --- shortcut.c ------------------------------------------------------------------------------- */

static inline hotbed_capture **hotbed_pipeline_capture(
    const hotbed_pipeline *pipeline, uint32_t step, uint32_t slot) {
    uint32_t at = pipeline->program->steps[step].by_slot ? slot : 0;
    return &pipeline->captures[(size_t)step * pipeline->program->depth + at];
}

/* From now on a task cannot be skipped: `why` is for the message.  Before anything runs. */
__attribute__((format(printf, 3, 4))) void hotbed_pipeline_refuse(
    hotbed_pipeline *pipeline, uint32_t step, const char *format, ...);

hotbed_status hotbed_capture_take(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);
hotbed_status hotbed_capture_replay(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);
/* Zeros into the gradients of what `forward` reads. */
hotbed_status hotbed_graft(
    const hotbed_program_step *forward, hotbed_iteration *iteration, hotbed_stream *stream);
void hotbed_capture_drop(hotbed_capture *capture, const hotbed_program_step *step);

#endif
