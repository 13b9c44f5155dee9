/* tests/pipeline/fake_plan.h - plans whose tasks only count, record when they run, and wait at a
 * gate.
 *
 * A test gives a table of fake_task; it becomes a plan of real tasks and steps.  No test sleeps: a
 * task waits at a gate until the test opens it. */
#pragma once

#include "hotbed/pipeline.h"
#include "tests/support/harness.h"

#include <pthread.h>

enum { FAKE_PLAN_MOST = 16, FAKE_PLAN_RUNS = 4096, FAKE_PLAN_STREAMS = 4, FAKE_PLAN_BATCHES = 128 };

/* A task and its step. */
typedef struct fake_task {
    const char *name;
    uint32_t stage;
    bool ordered;
    const char *stream, *group, *after;
    const char *reads, *writes, *states, *serial;
    const char *backward_of;
} fake_task;

typedef struct fake_plan fake_plan;

/* The state of one task. */
typedef struct fake_task_state {
    fake_plan *all;
    uint32_t number;
    hotbed_status (*work)(hotbed_iteration *iteration, void *self, hotbed_stream *stream);
    uint64_t held_at;  /* 1 + the iteration that waits at the gate before it works; 0: none */
    uint64_t fails_at; /* 1 + the iteration that fails; 0: none */
    uint64_t runs;     /* number of runs, atomic */
} fake_task_state;

/* The tasks that ran, in the order in which they began. */
typedef struct fake_run {
    uint64_t iteration;
    uint32_t task;
} fake_run;

struct fake_plan {
    hotbed_backend backend;
    uint32_t n;
    hotbed_task tasks[FAKE_PLAN_MOST];
    hotbed_step steps[FAKE_PLAN_MOST];
    fake_task_state selves[FAKE_PLAN_MOST];
    hotbed_pipeline_plan_stream streams[FAKE_PLAN_STREAMS];
    hotbed_pipeline_plan plan;
    hotbed_pipeline_options options;
    hotbed_pipeline *pipeline;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;        /* whether the gate is open */
    uint32_t waiting; /* number of tasks at the gate */
    fake_run ran[FAKE_PLAN_RUNS];
    uint64_t num_ran;
    /* the loader */
    uint64_t batches, next, given_back, unused;
    int memory[FAKE_PLAN_BATCHES];
};

/* Make a plan of the tasks up to one without a name, and create the streams that they name. */
void fake_plan_open(fake_plan *p, hotbed_backend backend, const fake_task *sketch);
void fake_plan_close(fake_plan *p);

/* Create the pipeline, and bind a loader of `batches` batches: batch b is &p->memory[b]. */
void fake_plan_start(fake_plan *p, uint64_t batches);
void fake_plan_bind(fake_plan *p, uint64_t batches);

/* Make a task wait at the gate; wait until so many tasks wait there; open the gate. */
void fake_plan_hold(fake_plan *p, const char *task, uint64_t iteration);
void fake_plan_await_waiting(fake_plan *p, uint32_t tasks);
void fake_plan_release(fake_plan *p);

uint32_t fake_plan_find(const fake_plan *p, const char *task);

/* Make progress to the end; returns the number of iterations. */
uint64_t fake_plan_run(fake_plan *p);

/* The tasks that ran, as text: "name0 other0 name1 ..." */
const char *fake_plan_order(fake_plan *p);
