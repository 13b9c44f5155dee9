/* pipeline/train.c - create a train pipeline from a trainer and a plan. */
#include "pipeline/train.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"
#include "pipeline/engine.h"
#include "pipeline/rewrite.h"

#include <assert.h>
#include <stdio.h>

enum { STREAMS = HOTBED_TRAIN_STREAMS, CANDIDATES = 6 /* of a schedule */, OTHERS_MOST = 2 };

static const char *const stream_names[STREAMS] = {"memcpy", "dist", "prefetch", "default"};

/* --- plans ------------------------------------------------------------------------------------ */

const char *hotbed_train_plan_name(uint32_t plan) {
    const hotbed_train_plan *found = hotbed_train_plan_at(plan);
    return found == NULL ? NULL : found->name;
}

static hotbed_status find_plan(const char *name, const hotbed_train_plan **out) {
    char names[256];
    hotbed_writer w = {names, sizeof names, 0};
    for (uint32_t p = 0; (*out = hotbed_train_plan_at(p)) != NULL; p++) {
        if (name != NULL && strcmp((*out)->name, name) == 0)
            return HOTBED_OK;
        hotbed_write(&w, " %s", (*out)->name);
    }
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, "plan", "there is no plan '%s'; there are%s", name == NULL ? "" : name,
        names);
}

hotbed_status hotbed_train_plan_steps(
    const char *plan, const hotbed_step **steps, uint32_t *num_steps) {
    const hotbed_train_plan *found = NULL;
    if (steps == NULL || num_steps == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "steps or num_steps is NULL");
    HOTBED_TRY(find_plan(plan, &found));
    *steps = found->steps;
    *num_steps = found->num_steps;
    return HOTBED_OK;
}

/* --- a train pipeline ------------------------------------------------------------------------- */

/* A plan and its arrays. */
typedef struct made_plan {
    hotbed_pipeline_plan plan;
    hotbed_task tasks[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan_stream streams[STREAMS];
} made_plan;

static void make_plan(hotbed_train *train, made_plan *to) {
    static const hotbed_value_options values[HOTBED_TRAIN_VALUES] = {
        {.name = "copied"},  {.name = "batch"},      {.name = "started"},
        {.name = "tensors"}, {.name = "prefetched"}, {.name = "output"}};
    to->plan = (hotbed_pipeline_plan){.size = sizeof to->plan};
    to->plan.name = "train";
    to->plan.order = HOTBED_ORDER_LISTED;
    to->plan.num_tasks = train->plan->num_steps;
    to->plan.tasks = to->tasks;
    to->plan.num_steps = train->plan->num_steps;
    to->plan.steps = train->plan->steps;
    to->plan.num_values = HOTBED_TRAIN_VALUES;
    to->plan.values = values;
    to->plan.num_streams = STREAMS;
    to->plan.streams = to->streams;
    for (uint32_t s = 0; s < STREAMS; s++)
        to->streams[s] = (hotbed_pipeline_plan_stream){stream_names[s], train->streams[s]};
    for (uint32_t s = 0; s < train->plan->num_steps; s++)
        hotbed_train_take(train, s, &to->tasks[s]);
}

/* One buffer set more than the plan needs: with fewer, a period is enqueued only when the device has
 * finished the period before. */
static uint32_t depth_of(const hotbed_pipeline_plan *plan) {
    uint32_t depth = 2;
    for (uint32_t s = 0; s < plan->num_steps; s++)
        while (depth < plan->steps[s].stage + 2 && depth < HOTBED_PIPELINE_DEPTH_MOST)
            depth++;
    return depth;
}

static hotbed_status make_pipeline(hotbed_train *train, const hotbed_train_options *options) {
    made_plan made;
    make_plan(train, &made);
    if (options->steps != NULL) {
        made.plan.steps = options->steps;
        made.plan.num_steps = options->num_steps;
    }
    made.plan.depth = options->depth == 0 ? depth_of(&made.plan) : options->depth;
    return hotbed_pipeline_create(
        &made.plan, options->pipeline.size == 0 ? NULL : &options->pipeline, &train->pipeline);
}

/* Return the cost of a task for the search: its exposed time, but at most the time that it takes
 * alone and at least half of it. On a busy machine both times vary, and the exposed time, a
 * difference of two measurements, varies more; a task that appears to cost nothing could be put
 * into any stage. */
static double cost_of(const hotbed_profile_task *task) {
    const double least = 0.5 * task->alone;
    double cost = task->exposed < task->alone ? task->exposed : task->alone;
    return cost > least ? cost : least;
}

/* Find the hand-written plans with the same tasks; returns their number. */
static uint32_t find_others(const made_plan *made, const char *plan, hotbed_pipeline_plan *others) {
    const hotbed_train_plan *other;
    uint32_t found = 0;
    for (uint32_t p = 0; (other = hotbed_train_plan_at(p)) != NULL && found < OTHERS_MOST; p++) {
        bool same = strcmp(other->name, plan) != 0 && other->num_steps == made->plan.num_tasks;
        for (uint32_t t = 0; same && t < made->plan.num_tasks; t++)
            same = hotbed_train_plan_has(other, made->tasks[t].name);
        if (!same)
            continue;
        others[found] = made->plan;
        others[found++].steps = other->steps;
    }
    return found;
}

hotbed_status hotbed_train_schedule(
    hotbed_train *train, const hotbed_profile *profile, uint32_t max_depth, hotbed_schedule **out) {
    hotbed_schedule_options options;
    double costs[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan others[OTHERS_MOST];
    made_plan made;
    HOTBED_TRY_OUT(out);
    if (train == NULL || profile == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "train or profile is NULL");
    make_plan(train, &made);
    if (profile->num_tasks != made.plan.num_steps)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "profile", profile->num_tasks, made.plan.num_steps,
            "a profile of %u tasks, and plan '%s' has %u", profile->num_tasks, train->plan->name,
            made.plan.num_steps);
    for (uint32_t s = 0; s < profile->num_tasks; s++)
        costs[s] = cost_of(&profile->tasks[s]);
    options = (hotbed_schedule_options){
        .size = sizeof options, .costs = costs, .max_depth = max_depth, .candidates = CANDIDATES};
    options.num_also = find_others(&made, train->plan->name, others);
    options.also = others;
    return hotbed_schedule_find(&made.plan, &options, out);
}

static hotbed_status make(hotbed_train *train, const hotbed_train_options *options) {
    for (uint32_t s = 0; s < STREAMS; s++) {
        bool ahead = s + 1 < STREAMS && !options->same_priority;
        hotbed_stream_options stream = {.size = sizeof stream};
        stream.backend = options->backend;
        stream.device = options->device;
        stream.priority = ahead ? HOTBED_PRIORITY_HIGH : HOTBED_PRIORITY_NORMAL;
        HOTBED_TRY(hotbed_stream_create_with(&stream, &train->streams[s]));
    }
    HOTBED_TRY(make_pipeline(train, options));
    HOTBED_TRY(hotbed_rewrite_create(
        train->trainer.model, train->trainer.batch, hotbed_pipeline_depth(train->pipeline),
        train->plan->kind, train->streams[STREAMS - 1], &train->rewrite));
    if (!train->plan->pipelined)
        HOTBED_TRY(hotbed_rewrite_detach(train->rewrite));
    hotbed_train_refuse(train);
    return HOTBED_OK;
}

hotbed_status hotbed_train_create(
    const hotbed_trainer *trainer, const hotbed_train_options *options, hotbed_train **out) {
    hotbed_train_options read;
    hotbed_trainer copied;
    const hotbed_train_plan *plan = NULL;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(HOTBED_OPTIONS_READ(&read, hotbed_train_options, pipeline, options));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&copied, hotbed_trainer, shuffle_start, trainer));
    HOTBED_TRY(find_plan(read.plan, &plan));
    HOTBED_TRY(hotbed_train_check_io(&copied));
    HOTBED_TRY(hotbed_check_pointer_of("trainer", "model", copied.model));
    HOTBED_TRY(hotbed_check_pointer_of("trainer", "batch", copied.batch));
    if (copied.copy_batch == NULL)
        return hotbed_fail_null_of("trainer", "copy_batch");
    hotbed_train *train = hotbed_new(sizeof *train);
    HOTBED_TRY_MEMORY(train, "a train pipeline");
    train->trainer = copied;
    train->training = true;
    train->plan = plan;
    hotbed_status status = make(train, &read);
    if (status == HOTBED_OK)
        *out = train;
    else
        hotbed_train_destroy(train);
    return status;
}

void hotbed_train_destroy(hotbed_train *train) {
    if (train == NULL)
        return;
    hotbed_stream *stream = train->streams[STREAMS - 1];
    uint32_t depth = train->pipeline == NULL ? 0 : hotbed_pipeline_depth(train->pipeline);
    hotbed_pipeline_destroy(train->pipeline); /* waits for the pipeline's streams */
    for (uint32_t set = 0; train->rewrite != NULL && set < depth; set++)
        (void)!hotbed_context_cancel(train->rewrite, set, stream);
    if (train->rewrite != NULL) {
        (void)!hotbed_stream_finish(stream);
        for (uint32_t m = 0; m < train->rewrite->num_modules;
             m++) /* modules may still have work on these streams */
            hotbed_module_close(train->rewrite->modules[m].module);
    }
    hotbed_rewrite_destroy(train->rewrite);
    for (uint32_t s = 0; s < STREAMS; s++)
        hotbed_stream_destroy(train->streams[s]);
    hotbed_delete(train);
}

hotbed_pipeline *hotbed_train_pipeline(hotbed_train *train) {
    return train == NULL ? NULL : train->pipeline;
}

hotbed_rewrite *hotbed_train_rewrite(hotbed_train *train) {
    return train != NULL && train->plan->pipelined ? train->rewrite : NULL;
}

hotbed_stream *hotbed_train_stream(hotbed_train *train, const char *name) {
    for (uint32_t s = 0; train != NULL && name != NULL && s < STREAMS; s++)
        if (strcmp(stream_names[s], name) == 0)
            return train->streams[s];
    return NULL;
}

hotbed_status hotbed_train_set_training(hotbed_train *train, bool training) {
    HOTBED_TRY(hotbed_check_pointer("train", train));
    HOTBED_TRY(hotbed_pipeline_idle(train->pipeline, "hotbed_train_set_training"));
    for (uint32_t m = 0; m < train->rewrite->num_modules; m++) {
        const hotbed_module *module = train->rewrite->modules[m].module;
        if (module->calls->set_training != NULL)
            HOTBED_TRY_CALLBACK(
                "set_training of a module", module->calls->set_training(module->self, training));
    }
    train->training = training;
    return HOTBED_OK;
}
