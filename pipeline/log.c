/* pipeline/log.c - what a pipeline did: log, order, counters. */
#include "pipeline/engine.h"

void hotbed_mark_harvest(hotbed_pipeline *pipeline, hotbed_mark *mark, bool wait) {
    uint64_t entry = mark->entry;
    bool done = false;
    double begin = 0.0, end = 0.0;
    mark->entry = 0;
    if (entry == 0 || (wait && hotbed_event_sync(mark->end) != HOTBED_OK) ||
        hotbed_event_query(mark->end, &done) != HOTBED_OK || !done ||
        hotbed_event_seconds(pipeline->base, mark->begin, &begin) != HOTBED_OK ||
        hotbed_event_seconds(pipeline->base, mark->end, &end) != HOTBED_OK)
        return;
    (void)pthread_mutex_lock(&pipeline->lock);
    if (pipeline->logged - entry < pipeline->options.log_entries) {
        hotbed_log_entry *to = &pipeline->log[(entry - 1) % pipeline->options.log_entries];
        to->device_begin = begin;
        to->device_end = end;
    }
    (void)pthread_mutex_unlock(&pipeline->lock);
}

hotbed_status hotbed_pipeline_log(
    hotbed_pipeline *pipeline, uint64_t capacity, hotbed_log_entry *entries, uint64_t *n) {
    if (pipeline == NULL || n == NULL || (capacity > 0 && entries == NULL))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline, entries or n is NULL");
    uint32_t most = pipeline->options.log_entries;
    if (most == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the pipeline has no log: see log_entries");
    if (!pipeline->failed)
        HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_log"));
    for (size_t m = 0; m < (size_t)pipeline->num_marks * pipeline->program->num_steps; m++)
        hotbed_mark_harvest(pipeline, &pipeline->marks[m], true);
    uint64_t kept = pipeline->logged < most ? pipeline->logged : most;
    *n = kept < capacity ? kept : capacity;
    for (uint64_t i = 0; i < *n; i++)
        entries[i] = pipeline->log[(pipeline->logged - *n + i) % most];
    return HOTBED_OK;
}

uint64_t hotbed_pipeline_order_hash(hotbed_pipeline *pipeline) {
    (void)pthread_mutex_lock(&pipeline->lock);
    uint64_t hash = pipeline->order_hash;
    (void)pthread_mutex_unlock(&pipeline->lock);
    return hash;
}

void hotbed_pipeline_stats_read(hotbed_pipeline *pipeline, hotbed_pipeline_stats *out) {
    if (pipeline == NULL || out == NULL)
        return;
    (void)pthread_mutex_lock(&pipeline->lock);
    *out = pipeline->stats;
    (void)pthread_mutex_unlock(&pipeline->lock);
}
