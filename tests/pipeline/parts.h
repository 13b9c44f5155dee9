/* tests/pipeline/parts.h - plans of made-up tasks: what runs when is noted, and can be held up.
 *
 * A sketch is a table of steps; from it comes a plan whose tasks count, note their order, and stop
 * at gates.  No test sleeps: a gate is a condition that the test opens.
 */
#ifndef HOTBED_TESTS_PARTS_H
#define HOTBED_TESTS_PARTS_H

#include "hotbed/pipeline.h"
#include "tests/support/harness.h"

#include <pthread.h>

enum { PARTS_MOST = 16, PARTS_RUNS = 4096, PARTS_STREAMS = 4, PARTS_BATCHES = 128 };

/* A step with its task. */
typedef struct part {
    const char *name;
    uint32_t stage;
    bool ordered;
    const char *stream, *group, *after;
    const char *reads, *writes, *states, *serial;
    const char *backward_of;
} part;

typedef struct parts parts;

/* Of one task. */
typedef struct part_self {
    parts *all;
    uint32_t number;
    hotbed_status (*work)(hotbed_iteration *iteration, void *self, hotbed_stream *stream);
    uint64_t held_at;  /* iteration + 1 that waits at the gate before it works; 0: none */
    uint64_t fails_at; /* iteration + 1 that fails; 0: none */
    uint64_t runs;     /* atomic */
} part_self;

/* (iteration, task) in the order in which tasks began. */
typedef struct part_run {
    uint64_t iteration;
    uint32_t task;
} part_run;

struct parts {
    hotbed_backend backend;
    uint32_t n;
    hotbed_task tasks[PARTS_MOST];
    hotbed_step steps[PARTS_MOST];
    part_self selves[PARTS_MOST];
    hotbed_pipeline_plan_stream streams[PARTS_STREAMS];
    hotbed_pipeline_plan plan;
    hotbed_pipeline_options options;
    hotbed_pipeline *pipeline;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;        /* of the gate */
    uint32_t waiting; /* tasks at the gate */
    part_run ran[PARTS_RUNS];
    uint64_t num_ran;
    /* loader */
    uint64_t batches, next, given_back, unused;
    int memory[PARTS_BATCHES];
};

/* Steps until one without a name.  Streams are those named, made here. */
void parts_open(parts *p, hotbed_backend backend, const part *sketch);
void parts_close(parts *p);

/* Make the pipeline, and bind a loader of `batches` batches: batch b is &p->memory[b]. */
void parts_start(parts *p, uint64_t batches);
void parts_bind(parts *p, uint64_t batches);

/* Gate. */
void parts_hold(parts *p, const char *task, uint64_t iteration);
void parts_await_waiting(parts *p, uint32_t tasks);
void parts_release(parts *p);

uint32_t parts_find(const parts *p, const char *task);

/* Progress until the end: how many iterations there were. */
uint64_t parts_run(parts *p);

/* What ran, as text: "name0 other0 name1 ..." */
const char *parts_order(parts *p);

#endif
