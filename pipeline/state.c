/* pipeline/state.c - the parts of a pipeline's state that its lock guards: failure, order, log,
 * counters. */
#include "pipeline/state.h"

#include "base/hash_core.h"

static void reset(hotbed_iteration *iteration, uint64_t number) {
    const hotbed_program *program = iteration->pipeline->program;
    iteration->number = number;
    iteration->batch = iteration->next_batch;
    iteration->begun = number + 1;
    memset(iteration->replayed, 0, sizeof iteration->replayed);
    for (uint32_t v = 0; v < program->num_values; v++) {
        iteration->cells[v].data = iteration->cells[v].own;
        iteration->cells[v].grad_there = false;
    }
}

hotbed_status hotbed_iteration_begin(hotbed_iteration *iteration, uint64_t number) {
    hotbed_pipeline *pipeline = iteration->pipeline;
    bool passed = true;
    if (iteration->used)
        HOTBED_TRY(hotbed_event_query(iteration->released, &passed));
    (void)pthread_mutex_lock(&pipeline->lock);
    pipeline->stats.set_waits += !passed;
    (void)pthread_mutex_unlock(&pipeline->lock);
    if (!passed)
        HOTBED_TRY(hotbed_event_await(iteration->released));
    (void)pthread_mutex_lock(&pipeline->lock);
    if (iteration->begun != number + 1)
        reset(iteration, number);
    (void)pthread_mutex_unlock(&pipeline->lock);
    return HOTBED_OK;
}

void hotbed_pipeline_fail(
    hotbed_pipeline *pipeline, hotbed_status status, const char *task, uint64_t iteration) {
    if (!pipeline->failed) {
        pipeline->failed = true;
        pipeline->failure = status;
        if (task == NULL)
            (void)HOTBED_FAIL_AFTER(
                status, "pipeline %s: %s", pipeline->program->name, hotbed_last_error());
        else
            (void)HOTBED_FAIL_AFTER(
                status, "pipeline %s: task %s of iteration %llu: %s", pipeline->program->name, task,
                (unsigned long long)iteration, hotbed_last_error());
        hotbed_error_copy(&pipeline->error);
    }
    (void)pthread_cond_broadcast(&pipeline->changed);
}

hotbed_status hotbed_pipeline_tolerate(const hotbed_pipeline *pipeline, hotbed_status fault) {
    const hotbed_pipeline_options *o = &pipeline->options;
    bool tolerated =
        fault != HOTBED_OK && o->tolerate != NULL && o->tolerate(o->tolerate_self, fault);
    return tolerated ? HOTBED_OK : fault;
}

void hotbed_task_submitted(
    hotbed_pipeline *pipeline, const hotbed_log_entry *entry, hotbed_completion *completion) {
    pipeline->stats.tasks++;
    if (entry->mode == HOTBED_TASK_REPLAY)
        pipeline->stats.replays++;
    const uint64_t words[] = {entry->iteration, entry->task};
    if (entry->turn != 0)
        pipeline->order_hash = hotbed_fnv(pipeline->order_hash, words, sizeof words);
    completion->entry = 0;
    if (pipeline->options.log_entries == 0)
        return;
    pipeline->log[pipeline->logged++ % pipeline->options.log_entries] = *entry;
    if (pipeline->options.timed)
        completion->entry = pipeline->logged;
}

void hotbed_completion_harvest(
    hotbed_pipeline *pipeline, hotbed_completion *completion, bool wait) {
    uint64_t entry = completion->entry;
    bool done = false;
    double begin = 0.0, end = 0.0;
    completion->entry = 0;
    if (entry == 0 || (wait && hotbed_event_sync(completion->end) != HOTBED_OK) ||
        hotbed_event_query(completion->end, &done) != HOTBED_OK || !done ||
        hotbed_event_seconds(pipeline->base, completion->begin, &begin) != HOTBED_OK ||
        hotbed_event_seconds(pipeline->base, completion->end, &end) != HOTBED_OK)
        return;
    (void)pthread_mutex_lock(&pipeline->lock);
    if (pipeline->logged - entry < pipeline->options.log_entries) {
        hotbed_log_entry *to = &pipeline->log[(entry - 1) % pipeline->options.log_entries];
        to->device_begin = begin;
        to->device_end = end;
    }
    (void)pthread_mutex_unlock(&pipeline->lock);
}
