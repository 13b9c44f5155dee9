/* pipeline/log.c - read a pipeline's log and counters. */
#include "pipeline/engine.h"

#include "base/check.h"
#include "base/options.h"

hotbed_status hotbed_pipeline_log(
    hotbed_pipeline *pipeline, uint64_t capacity, hotbed_log_entry *entries, uint64_t *n) {
    if (pipeline == NULL || n == NULL || (capacity > 0 && entries == NULL))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline, entries or n is NULL");
    uint32_t most = pipeline->options.log_entries;
    if (most == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the pipeline has no log: see log_entries");
    /* In a failed pipeline a thread may still run a task, which adds a log entry and uses its
     * completions. */
    (void)pthread_mutex_lock(&pipeline->lock);
    bool failed = pipeline->failed, working = failed && pipeline->stats.threads > 0;
    (void)pthread_mutex_unlock(&pipeline->lock);
    if (!failed)
        HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_log"));
    for (size_t m = 0;
         !working && m < (size_t)pipeline->num_completions * pipeline->program->num_steps; m++)
        hotbed_completion_harvest(pipeline, &pipeline->completions[m], true);
    (void)pthread_mutex_lock(&pipeline->lock);
    uint64_t kept = pipeline->logged < most ? pipeline->logged : most;
    *n = kept < capacity ? kept : capacity;
    for (uint64_t i = 0; i < *n; i++)
        entries[i] = pipeline->log[(pipeline->logged - *n + i) % most];
    (void)pthread_mutex_unlock(&pipeline->lock);
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_stats_read(hotbed_pipeline *pipeline, hotbed_pipeline_stats *out) {
    HOTBED_TRY(hotbed_check_pointer("pipeline", pipeline));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_pipeline_stats"));
    (void)pthread_mutex_lock(&pipeline->lock);
    hotbed_pipeline_stats stats = pipeline->stats;
    (void)pthread_mutex_unlock(&pipeline->lock);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}
