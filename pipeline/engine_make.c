/* pipeline/engine_make.c - create and destroy a pipeline: memory, events, threads. */
#include "pipeline/capture.h"
#include "pipeline/engine.h"
#include "pipeline/nvtx.h"
#include "pipeline/worker.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/hash_core.h"
#include "base/options.h"
#include "base/thread.h"

enum { ALIGNMENT = 256, DEADLINE_SECONDS = 60 };

/* --- making ----------------------------------------------------------------------------------- */

static size_t aligned(uint64_t bytes) {
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static hotbed_status make_values(hotbed_pipeline *pipeline) {
    const hotbed_program *program = pipeline->program;
    size_t set_bytes = 0;
    for (uint32_t v = 0; v < program->num_values; v++)
        set_bytes += aligned(program->values[v].bytes) * (program->values[v].grad ? 2 : 1);
    HOTBED_TRY(hotbed_memory_alloc(
        program->streams[0], HOTBED_MEMORY_DEVICE, set_bytes * program->depth, NULL,
        &pipeline->memory));
    unsigned char *at = pipeline->memory.data;
    for (uint32_t i = 0; i < program->depth; i++) {
        for (uint32_t v = 0; v < program->num_values; v++) {
            hotbed_cell *cell = &pipeline->iterations[i].cells[v];
            size_t bytes = aligned(program->values[v].bytes);
            if (bytes == 0)
                continue;
            cell->own = at;
            at += bytes;
            if (program->values[v].grad) {
                cell->grad = at;
                at += bytes;
            }
        }
    }
    return HOTBED_OK;
}

static hotbed_status make_events(hotbed_pipeline *pipeline) {
    hotbed_stream *any = pipeline->stream;
    size_t completions = (size_t)pipeline->num_completions * pipeline->program->num_steps;
    for (uint32_t i = 0; i < pipeline->program->depth; i++)
        HOTBED_TRY(hotbed_event_create(any, &pipeline->iterations[i].released));
    for (size_t m = 0; m < completions; m++) {
        HOTBED_TRY(hotbed_event_create(any, &pipeline->completions[m].end));
        if (pipeline->options.timed)
            HOTBED_TRY(hotbed_event_create(any, &pipeline->completions[m].begin));
    }
    if (!pipeline->options.timed)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_event_create(any, &pipeline->base));
    HOTBED_TRY(hotbed_event_record(pipeline->base, any));
    return hotbed_event_sync(pipeline->base); /* the zero of device and host times */
}

static hotbed_status no_memory(void) {
    return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a pipeline");
}

static hotbed_status make_arrays(hotbed_pipeline *pipeline) {
    const hotbed_program *program = pipeline->program;
    pipeline->num_completions = program->depth + program->max_distance;
    pipeline->iterations = hotbed_new(program->depth * sizeof *pipeline->iterations);
    pipeline->completions = hotbed_new(
        (size_t)pipeline->num_completions * program->num_steps * sizeof *pipeline->completions);
    pipeline->captures =
        hotbed_new((size_t)program->num_steps * program->depth * sizeof *pipeline->captures);
    pipeline->groups = hotbed_new(program->num_groups * sizeof *pipeline->groups);
    if (pipeline->iterations == NULL || pipeline->completions == NULL ||
        pipeline->captures == NULL || pipeline->groups == NULL)
        return no_memory();
    if (pipeline->options.log_entries > 0) {
        pipeline->log = hotbed_new(pipeline->options.log_entries * sizeof *pipeline->log);
        if (pipeline->log == NULL)
            return no_memory();
    }
    for (uint32_t i = 0; i < program->depth; i++) {
        pipeline->iterations[i].pipeline = pipeline;
        pipeline->iterations[i].buffer_set = i;
    }
    return HOTBED_OK;
}

static hotbed_status start_group(hotbed_pipeline *pipeline, uint32_t g) {
    hotbed_task_group *group = &pipeline->groups[g];
    group->pipeline = pipeline;
    group->number = g;
    for (uint32_t s = 0; s < pipeline->program->num_steps; s++)
        if (pipeline->program->steps[s].group == g)
            group->capacity += pipeline->program->depth;
    group->queue = hotbed_new(group->capacity * sizeof *group->queue);
    if (group->queue == NULL)
        return no_memory();
    (void)pthread_mutex_lock(&pipeline->lock);
    int error = hotbed_thread_start(&group->thread, hotbed_task_group_main, group);
    if (error == 0) {
        group->started = true;
        pipeline->stats.threads++;
    }
    (void)pthread_mutex_unlock(&pipeline->lock);
    if (error != 0)
        return hotbed_fail_os(
            HOTBED_ERR_MEMORY, error, "the thread of group '%s' cannot be started",
            pipeline->program->groups[g]);
    return HOTBED_OK;
}

static hotbed_status make(hotbed_pipeline *pipeline) {
    const hotbed_program *program = pipeline->program;
    HOTBED_TRY(make_arrays(pipeline));
    HOTBED_TRY(hotbed_stream_create(
        hotbed_stream_backend(program->streams[0]), hotbed_stream_device(program->streams[0]),
        &pipeline->stream));
    HOTBED_TRY(make_values(pipeline));
    HOTBED_TRY(make_events(pipeline));
    pipeline->started = hotbed_monotonic_seconds();
    for (uint32_t g = 0; g < program->num_groups; g++)
        HOTBED_TRY(start_group(pipeline, g));
    return HOTBED_OK;
}

static hotbed_status read_options(
    const hotbed_pipeline_options *from, hotbed_pipeline_options *to) {
    *to = (hotbed_pipeline_options){.size = sizeof *to};
    if (from != NULL)
        HOTBED_TRY(HOTBED_OPTIONS_READ(to, hotbed_pipeline_options, log_entries, from));
    for (size_t i = 0; i < sizeof to->reserved / sizeof *to->reserved; i++)
        if (to->reserved[i] != 0)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "reserved", i,
                "hotbed_pipeline_options: reserved[%zu] is not 0", i);
    HOTBED_TRY(hotbed_check_interval("deadline_seconds", to->deadline_seconds, 0, 1e6));
    if (to->deadline_seconds == 0.0)
        to->deadline_seconds = DEADLINE_SECONDS;
    HOTBED_TRY(hotbed_check_choice("end", to->end, HOTBED_END_ALONE, HOTBED_END_LAST));
    if (to->end != HOTBED_END_ALONE && to->agreement.least == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "end", to->end, "end policy %d needs an agreement between ranks",
            (int)to->end);
    if (to->timed && to->log_entries == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "timed, but log_entries is 0");
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_create(
    const hotbed_pipeline_plan *plan, const hotbed_pipeline_options *options,
    hotbed_pipeline **out) {
    hotbed_pipeline_options read;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(read_options(options, &read));
    hotbed_pipeline *pipeline = hotbed_new(sizeof *pipeline);
    hotbed_program *program = hotbed_new(sizeof *program);
    if (pipeline == NULL || program == NULL) {
        hotbed_delete(pipeline);
        hotbed_delete(program);
        return no_memory();
    }
    pipeline->program = program;
    pipeline->options = read;
    pipeline->order_hash = HOTBED_FNV_FIRST;
    (void)pthread_mutex_init(&pipeline->lock, NULL);
    hotbed_cond_init(&pipeline->changed);
    hotbed_nvtx_start();
    hotbed_status status = hotbed_program_read(plan, program, NULL);
    HOTBED_THEN(status, make(pipeline));
    if (status == HOTBED_OK)
        *out = pipeline;
    else
        hotbed_pipeline_destroy(pipeline);
    return status;
}

/* --- unmaking --------------------------------------------------------------------------------- */

static void destroy_events(hotbed_pipeline *pipeline) {
    size_t completions = (size_t)pipeline->num_completions * pipeline->program->num_steps;
    for (uint32_t i = 0; pipeline->iterations != NULL && i < pipeline->program->depth; i++)
        hotbed_event_destroy(pipeline->iterations[i].released);
    for (size_t m = 0; pipeline->completions != NULL && m < completions; m++) {
        hotbed_event_destroy(pipeline->completions[m].end);
        hotbed_event_destroy(pipeline->completions[m].begin);
    }
    hotbed_event_destroy(pipeline->base);
}

void hotbed_pipeline_destroy(hotbed_pipeline *pipeline) {
    if (pipeline == NULL || hotbed_forked())
        return;
    const hotbed_program *program = pipeline->program;
    (void)pthread_mutex_lock(&pipeline->lock);
    pipeline->stop = true;
    (void)pthread_cond_broadcast(&pipeline->changed);
    (void)pthread_mutex_unlock(&pipeline->lock);
    hotbed_pipeline_join(pipeline, true);
    if (pipeline->stream != NULL) {
        for (uint32_t i = 0; i < program->num_streams; i++)
            (void)!hotbed_stream_finish(program->streams[i]);
        hotbed_stream_destroy(pipeline->stream);
    }
    size_t captures = (size_t)program->num_steps * program->depth;
    for (size_t c = 0; pipeline->captures != NULL && c < captures; c++) {
        if (pipeline->captures[c] != NULL) {
            hotbed_capture_drop(pipeline->captures[c], &program->steps[c / program->depth]);
            hotbed_delete(pipeline->captures[c]->snapshots);
            hotbed_delete(pipeline->captures[c]);
        }
    }
    destroy_events(pipeline);
    for (uint32_t g = 0; pipeline->groups != NULL && g < program->num_groups; g++)
        hotbed_delete(pipeline->groups[g].queue);
    hotbed_memory_free(&pipeline->memory);
    (void)pthread_cond_destroy(&pipeline->changed);
    (void)pthread_mutex_destroy(&pipeline->lock);
    hotbed_delete(pipeline->groups);
    hotbed_delete(pipeline->captures);
    hotbed_delete(pipeline->completions);
    hotbed_delete(pipeline->iterations);
    hotbed_delete(pipeline->log);
    hotbed_delete(pipeline->program);
    hotbed_delete(pipeline);
}
