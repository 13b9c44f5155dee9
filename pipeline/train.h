/* pipeline/train.h - train pipelines: finding tasks and plans by name. */
#pragma once

#include "hotbed/train.h"
#include "pipeline/engine.h"
#include "pipeline/rewrite.h"

/* A train pipeline as a plan. */
typedef struct hotbed_train_plan {
    const char *name;
    bool pipelined; /* forwards of modules are replaced */
    hotbed_rewrite_kind kind;
    const hotbed_step *steps; /* in the order of a period */
    uint32_t num_steps;
} hotbed_train_plan;

/* Return plan number `number`; NULL after the last one. */
const hotbed_train_plan *hotbed_train_plan_at(uint32_t number);

bool hotbed_train_plan_has(const hotbed_train_plan *plan, const char *task);

/* Values of an iteration. */
enum {
    HOTBED_TRAIN_COPIED, /* the batch as copied to the device */
    HOTBED_TRAIN_BATCH,  /* after the shuffle */
    HOTBED_TRAIN_STARTED, /* input_dist_splits_requests; this and the next ones are also states of contexts' cells */
    HOTBED_TRAIN_TENSORS,    /* input_dist_tensors_requests */
    HOTBED_TRAIN_PREFETCHED, /* module_input_post_prefetch */
    HOTBED_TRAIN_OUTPUT,
    HOTBED_TRAIN_VALUES
};

enum {
    HOTBED_TRAIN_STREAMS = 4,
    HOTBED_TRAIN_TASKS_MOST = 16,  /* of a plan */
    HOTBED_TRAIN_ACTIONS_MOST = 3, /* of a task */
    HOTBED_TRAIN_IO_MOST = 4       /* of a task: the trainer's functions and the contexts */
};

/* What the task of a step does, in order, and the io of its shortcuts. */
typedef struct hotbed_train_work {
    hotbed_train *train;
    const struct hotbed_train_action *actions[HOTBED_TRAIN_ACTIONS_MOST];
    uint32_t num_actions, num_io;
    hotbed_declared_io io[HOTBED_TRAIN_IO_MOST];
} hotbed_train_work;

struct hotbed_train {
    hotbed_trainer trainer;
    bool training;
    hotbed_rewrite *rewrite;
    const hotbed_train_plan *plan;
    hotbed_stream *streams[HOTBED_TRAIN_STREAMS]; /* the last one is the default stream */
    hotbed_pipeline *pipeline;
    hotbed_train_work work[HOTBED_TRAIN_TASKS_MOST]; /* of the plan's steps */
};

/* --- train_tasks.c ---------------------------------------------------------------------------- */

/* Errors: ARGUMENT (a function that trainers do not have; capture without restore or the
 * reverse). */
hotbed_status hotbed_train_check_io(const hotbed_trainer *trainer);

/* Make the task of a step of the plan. If the plan lacks a task, another task does its work. */
void hotbed_train_take(hotbed_train *train, uint32_t step, hotbed_task *to);

/* Mark the tasks of the pipeline that cannot be skipped, each with a reason. Call it after the
 * rewrite was created. */
void hotbed_train_refuse(hotbed_train *train);
