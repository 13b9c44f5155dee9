/* pipeline/train.h - the registry of train pipelines: tasks by name, plans by name. */
#ifndef HOTBED_PIPELINE_TRAIN_H
#define HOTBED_PIPELINE_TRAIN_H

#include "hotbed/train.h"

/* A train pipeline as a plan. */
typedef struct hotbed_train_plan {
    const char *name;
    bool pipelined; /* modules' forwards are replaced */
    hotbed_rewrite_kind kind;
    const hotbed_step *steps; /* in the order of a period */
    uint32_t num_steps;
} hotbed_train_plan;

/* NULL after the last. */
const hotbed_train_plan *hotbed_train_plan_at(uint32_t number);

/* What values a task of a train pipeline touches, and what it does. */
const hotbed_task *hotbed_train_task(const char *name);

/* Values of an iteration. */
enum {
    HOTBED_TRAIN_COPIED, /* the batch as it was copied */
    HOTBED_TRAIN_BATCH,  /* after the shuffle */
    HOTBED_TRAIN_STARTED, /* input_dist_splits_requests; the rest are marks of contexts' cells, too */
    HOTBED_TRAIN_TENSORS,    /* input_dist_tensors_requests */
    HOTBED_TRAIN_PREFETCHED, /* module_input_post_prefetch */
    HOTBED_TRAIN_OUTPUT,
    HOTBED_TRAIN_VALUES
};

#endif
