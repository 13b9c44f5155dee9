/* pipeline/worker.c - the threads of a pipeline: wait for completions and turns, run a task, mark it as
 * submitted. */
#include "pipeline/worker.h"

#include "base/clock.h"
#include "pipeline/capture.h"
#include "pipeline/nvtx.h"

/* --- one task --------------------------------------------------------------------------------- */

static hotbed_status run_task(
    hotbed_pipeline *pipeline, uint32_t s, hotbed_iteration *iteration, hotbed_stream *stream,
    hotbed_task_mode *mode) {
    const hotbed_program *program = pipeline->program;
    const hotbed_program_step *step = &program->steps[s];
    hotbed_capture *capture = *hotbed_pipeline_capture(pipeline, s, iteration->buffer_set);
    *mode = HOTBED_TASK_RUN;
    if (step->backward_of != HOTBED_STEP_NONE && iteration->replayed[step->backward_of]) {
        *mode = HOTBED_TASK_GRAFT;
        return hotbed_graft(&program->steps[step->backward_of], iteration, stream);
    }
    if (capture != NULL && capture->on && capture->there) {
        *mode = HOTBED_TASK_REPLAY;
        iteration->replayed[s] = true;
        return hotbed_capture_replay(capture, step, iteration, stream);
    }
    if (step->run != NULL)
        HOTBED_TRY_CALLBACK("its function", step->run(iteration, step->self, stream));
    if (capture == NULL || !capture->on)
        return HOTBED_OK;
    *mode = HOTBED_TASK_CAPTURE;
    return hotbed_capture_take(capture, step, iteration, stream);
}

hotbed_status hotbed_task_run(
    hotbed_pipeline *pipeline, uint32_t s, hotbed_iteration *iteration, hotbed_stream *stream,
    hotbed_task_mode *mode) {
    hotbed_nvtx_push(pipeline->program->steps[s].name);
    hotbed_status status = run_task(pipeline, s, iteration, stream, mode);
    hotbed_nvtx_pop();
    return status;
}

/* --- waiting ---------------------------------------------------------------------------------- */

/* Phase one: whether all tasks that this one comes after were submitted, and it has its turn.
 * Called under the lock. */
static bool ready(const hotbed_pipeline *pipeline, const hotbed_queued *queued) {
    const hotbed_program_step *step = &pipeline->program->steps[queued->step];
    if (queued->turn != 0 && pipeline->turns_taken + 1 != queued->turn)
        return false;
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &pipeline->program->edges[step->first_edge + e];
        uint64_t on = queued->iteration - (uint64_t)(int64_t)edge->distance;
        if ((queued->edges >> e & 1) != 0 &&
            hotbed_pipeline_completion(pipeline, on, edge->on)->number <= on)
            return false;
    }
    return true;
}

/* Phase two: make the stream wait for the events. */
static hotbed_status wait_events(
    hotbed_pipeline *pipeline, const hotbed_queued *queued, hotbed_stream *stream,
    uint64_t *waits) {
    const hotbed_program *program = pipeline->program;
    const hotbed_program_step *step = &program->steps[queued->step];
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &program->edges[step->first_edge + e];
        if (program->steps[edge->on].stream == step->stream || (queued->edges >> e & 1) == 0)
            continue;
        uint64_t on = queued->iteration - (uint64_t)(int64_t)edge->distance;
        HOTBED_TRY(
            hotbed_stream_wait(stream, hotbed_pipeline_completion(pipeline, on, edge->on)->end));
        ++*waits;
    }
    return HOTBED_OK;
}

static hotbed_status record(hotbed_event *event, hotbed_stream *stream, uint64_t *events) {
    if (event == NULL)
        return HOTBED_OK;
    ++*events;
    return hotbed_event_record(event, stream);
}

/* A fault that a kernel latched. Any work of the stream may have caused it: the text can only say
 * when it was noticed. */
static hotbed_status check_fault(const hotbed_pipeline *pipeline, uint32_t stream) {
    const hotbed_program *program = pipeline->program;
    hotbed_status status =
        hotbed_pipeline_tolerate(pipeline, hotbed_stream_fault(program->streams[stream]));
    if (status == HOTBED_OK)
        return HOTBED_OK;
    return HOTBED_FAIL_AFTER(
        status, "fault found after it on stream %s: %s", program->stream_names[stream],
        hotbed_last_error());
}

typedef struct counts {
    uint64_t waits, events;
} counts;

static hotbed_status submit(
    hotbed_pipeline *pipeline, const hotbed_queued *queued, hotbed_completion *completion,
    hotbed_log_entry *entry, counts *did) {
    const hotbed_program_step *step = &pipeline->program->steps[queued->step];
    hotbed_stream *stream = pipeline->program->streams[step->stream];
    hotbed_iteration *iteration = hotbed_pipeline_iteration(pipeline, queued->iteration);
    /* Every other task of the iteration comes after a root, and so after this wait. */
    if (step->root)
        HOTBED_TRY(hotbed_iteration_begin(iteration, queued->iteration));
    hotbed_completion_harvest(pipeline, completion, false);
    HOTBED_TRY(wait_events(pipeline, queued, stream, &did->waits));
    HOTBED_TRY(record(completion->begin, stream, &did->events));
    entry->begin = hotbed_monotonic_seconds() - pipeline->started;
    hotbed_status status = hotbed_task_run(pipeline, queued->step, iteration, stream, &entry->mode);
    entry->end = hotbed_monotonic_seconds() - pipeline->started;
    HOTBED_TRY(status);
    HOTBED_TRY(record(completion->end, stream, &did->events));
    return check_fault(pipeline, step->stream);
}

/* Run the task at the head of the queue. The caller holds the lock, which is released while the
 * task runs. */
static void run_head(hotbed_pipeline *pipeline, hotbed_task_group *group) {
    const hotbed_queued queued = group->queue[group->head];
    group->head = (group->head + 1) % group->capacity;
    group->count--;
    group->busy = true;
    (void)pthread_mutex_unlock(&pipeline->lock);
    hotbed_completion *completion =
        hotbed_pipeline_completion(pipeline, queued.iteration, queued.step);
    hotbed_log_entry entry = {
        .iteration = queued.iteration,
        .task = queued.step,
        .group = group->number,
        .turn = queued.turn};
    counts did = {0, 0};
    hotbed_status status = submit(pipeline, &queued, completion, &entry, &did);
    (void)pthread_mutex_lock(&pipeline->lock);
    group->busy = false;
    pipeline->stats.stream_waits += did.waits;
    pipeline->stats.events += did.events;
    if (status != HOTBED_OK) {
        const char *task = pipeline->program->steps[queued.step].name;
        hotbed_pipeline_fail(pipeline, status, task, queued.iteration);
        return;
    }
    hotbed_task_submitted(pipeline, &entry, completion);
    completion->number = queued.iteration + 1;
    hotbed_pipeline_iteration(pipeline, queued.iteration)->remaining--;
    if (queued.turn != 0)
        pipeline->turns_taken++;
    (void)pthread_cond_broadcast(&pipeline->changed);
}

void *hotbed_task_group_main(void *argument) {
    hotbed_task_group *group = argument;
    hotbed_pipeline *pipeline = group->pipeline;
    (void)pthread_mutex_lock(&pipeline->lock);
    while (!pipeline->stop && !pipeline->failed) {
        if (group->count > 0 && ready(pipeline, &group->queue[group->head])) {
            run_head(pipeline, group);
            continue;
        }
        if (group->count > 0)
            pipeline->stats.signal_waits++;
        (void)pthread_cond_wait(&pipeline->changed, &pipeline->lock);
    }
    group->exited = true;
    pipeline->stats.threads--;
    (void)pthread_cond_broadcast(&pipeline->changed);
    (void)pthread_mutex_unlock(&pipeline->lock);
    return NULL;
}
