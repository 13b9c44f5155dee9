/* pipeline/engine.c - feed, advance and drain a pipeline, and end it when it fails. */
#include "pipeline/engine.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "pipeline/worker.h"

#include <stdio.h>

/* Seconds that a failed pipeline waits for threads that are still in a task. */
static const double join_seconds = 0.5;

static uint64_t in_seconds(double seconds) {
    return hotbed_monotonic_now() + (uint64_t)(1e9 * seconds);
}

/* --- failing ---------------------------------------------------------------------------------- */

void hotbed_pipeline_join(hotbed_pipeline *pipeline, bool all) {
    for (uint32_t g = 0; pipeline->groups != NULL && g < pipeline->program->num_groups; g++) {
        hotbed_task_group *group = &pipeline->groups[g];
        (void)pthread_mutex_lock(&pipeline->lock);
        bool join = group->started && (all || group->exited);
        (void)pthread_mutex_unlock(&pipeline->lock);
        if (join) {
            (void)pthread_join(group->thread, NULL);
            group->started = false;
        }
    }
}

/* Whether a thread is still running although it has no task, and will therefore end soon. All
 * threads are awake. Called under the lock. */
static bool one_ends(const hotbed_pipeline *pipeline) {
    for (uint32_t g = 0; g < pipeline->program->num_groups; g++)
        if (!pipeline->groups[g].exited && !pipeline->groups[g].busy)
            return true;
    return false;
}

/* Wake waiting threads of a failed pipeline, join them, and return the failure. */
static hotbed_status finish_failure(hotbed_pipeline *pipeline) {
    (void)pthread_mutex_lock(&pipeline->lock);
    bool revoke = !pipeline->revoked && pipeline->options.revoke != NULL;
    pipeline->revoked = true;
    (void)pthread_mutex_unlock(&pipeline->lock);
    if (revoke)
        pipeline->options.revoke(pipeline->options.revoke_self);
    const uint64_t until = in_seconds(join_seconds);
    bool in_time = true;
    (void)pthread_mutex_lock(&pipeline->lock);
    while (pipeline->stats.threads > 0 && (in_time || one_ends(pipeline)))
        if (in_time)
            in_time = hotbed_cond_wait(&pipeline->changed, &pipeline->lock, until);
        else
            (void)pthread_cond_wait(&pipeline->changed, &pipeline->lock);
    (void)pthread_mutex_unlock(&pipeline->lock);
    hotbed_pipeline_join(pipeline, false);
    return hotbed_error_return(&pipeline->error, pipeline->failure);
}

/* Record a failure of the caller's thread, with its last error. */
static hotbed_status fail_here(
    hotbed_pipeline *pipeline, hotbed_status status, const char *task, uint64_t iteration) {
    (void)pthread_mutex_lock(&pipeline->lock);
    hotbed_pipeline_fail(pipeline, status, task, iteration);
    (void)pthread_mutex_unlock(&pipeline->lock);
    return finish_failure(pipeline);
}

static hotbed_status check_alive(hotbed_pipeline *pipeline) {
    HOTBED_TRY(hotbed_fork_check());
    (void)pthread_mutex_lock(&pipeline->lock);
    bool failed = pipeline->failed;
    (void)pthread_mutex_unlock(&pipeline->lock);
    return failed ? finish_failure(pipeline) : HOTBED_OK;
}

/* --- feeding ---------------------------------------------------------------------------------- */

/* Release the iteration that the caller holds: its buffer set is free once the caller's stream has
 * passed the work enqueued so far. */
static hotbed_status release_held(hotbed_pipeline *pipeline) {
    if (!pipeline->holding)
        return HOTBED_OK;
    pipeline->holding = false;
    hotbed_iteration *iteration = hotbed_pipeline_iteration(pipeline, pipeline->retired - 1);
    hotbed_status status = hotbed_event_record(iteration->released, pipeline->stream);
    if (status != HOTBED_OK)
        return fail_here(pipeline, status, NULL, 0);
    iteration->used = true;
    if (iteration->batch != NULL && pipeline->loader.done != NULL)
        pipeline->loader.done(pipeline->loader.self, iteration->batch, iteration->released);
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_idle(hotbed_pipeline *pipeline, const char *function) {
    HOTBED_TRY(check_alive(pipeline));
    if (pipeline->retired < pipeline->pulled)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s: iterations %llu to %llu are in flight", function,
            (unsigned long long)pipeline->retired, (unsigned long long)pipeline->pulled - 1);
    return release_held(pipeline);
}

/* Apply the end policy, which decides for all ranks together whether training ends. On entry, *end
 * tells whether this rank has no batch. */
static hotbed_status agree(const hotbed_pipeline *pipeline, bool *end) {
    const hotbed_agreement *agreement = &pipeline->options.agreement;
    uint64_t least = 0;
    switch (pipeline->options.end) {
    case HOTBED_END_ALONE:
        break;
    case HOTBED_END_FIRST:
        HOTBED_TRY_CALLBACK(
            "the agreement", agreement->least(agreement->self, *end ? 0 : 1, &least));
        *end = least == 0;
        break;
    case HOTBED_END_LAST:
        HOTBED_TRY_CALLBACK(
            "the agreement", agreement->least(agreement->self, *end ? 1 : 0, &least));
        *end = least == 1;
        break;
    }
    return HOTBED_OK;
}

/* Get the next batch, unless the ranks end. */
static hotbed_status next_batch(hotbed_pipeline *pipeline, void **batch, bool *end) {
    const hotbed_loader *loader = &pipeline->loader;
    *batch = NULL;
    *end = !pipeline->bound;
    if (pipeline->bound)
        HOTBED_TRY_CALLBACK("the loader", loader->next(loader->self, batch, end));
    if (*end) {
        pipeline->bound = false; /* the loader is not called again */
        *batch = NULL;
    }
    const bool given = !*end;
    hotbed_status status = agree(pipeline, end);
    /* No task has seen a batch that is not used. */
    if (given && (status != HOTBED_OK || *end) && loader->done != NULL)
        loader->done(loader->self, *batch, NULL);
    return status;
}

static hotbed_status pull(hotbed_pipeline *pipeline) {
    void *batch = NULL;
    bool end = false;
    if (pipeline->exhausted || pipeline->period != pipeline->pulled)
        return HOTBED_OK;
    hotbed_status status = next_batch(pipeline, &batch, &end);
    if (status != HOTBED_OK)
        return fail_here(pipeline, status, "loader", pipeline->pulled);
    if (end) {
        pipeline->exhausted = true;
        pipeline->bound = false;
        return HOTBED_OK;
    }
    hotbed_iteration *iteration = hotbed_pipeline_iteration(pipeline, pipeline->pulled);
    pipeline->pulled++;
    (void)pthread_mutex_lock(&pipeline->lock);
    iteration->next_batch = batch;
    iteration->remaining = pipeline->program->num_steps;
    pipeline->stats.pulled++;
    (void)pthread_mutex_unlock(&pipeline->lock);
    return HOTBED_OK;
}

/* Called under the lock. */
static void enqueue(hotbed_pipeline *pipeline, uint32_t s, uint64_t iteration) {
    const hotbed_program_step *step = &pipeline->program->steps[s];
    hotbed_task_group *group = &pipeline->groups[step->group];
    hotbed_queued *to = &group->queue[(group->head + group->count++) % group->capacity];
    *to = (hotbed_queued){.iteration = iteration, .step = s};
    if (step->ordered)
        to->turn = ++pipeline->turns;
    for (uint32_t e = 0; e < step->num_edges; e++) {
        int64_t on = (int64_t)iteration - pipeline->program->edges[step->first_edge + e].distance;
        if (on >= 0 && (uint64_t)on < pipeline->pulled)
            to->edges |= (uint64_t)1 << e;
    }
}

static hotbed_status enqueue_period(hotbed_pipeline *pipeline) {
    const hotbed_program *program = pipeline->program;
    HOTBED_TRY(pull(pipeline));
    (void)pthread_mutex_lock(&pipeline->lock);
    for (uint32_t n = 0; n < program->num_steps; n++) {
        uint32_t s = program->order[n], stage = program->steps[s].stage;
        if (pipeline->period >= pipeline->first + stage &&
            pipeline->period - stage < pipeline->pulled)
            enqueue(pipeline, s, pipeline->period - stage);
    }
    (void)pthread_cond_broadcast(&pipeline->changed);
    (void)pthread_mutex_unlock(&pipeline->lock);
    pipeline->period++;
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_bind(hotbed_pipeline *pipeline, const hotbed_loader *loader) {
    if (pipeline == NULL || loader == NULL || loader->next == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline, loader or its next is NULL");
    HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_bind"));
    for (uint32_t i = 0; i < pipeline->program->depth;
         i++) { /* new iterations start after all work enqueued so far */
        HOTBED_TRY(hotbed_event_record(pipeline->iterations[i].released, pipeline->stream));
        pipeline->iterations[i].used = true;
    }
    pipeline->loader = *loader;
    pipeline->bound = true;
    pipeline->ever_bound = true;
    pipeline->filled = false;
    pipeline->exhausted = false;
    pipeline->finished = false;
    pipeline->first = pipeline->pulled;
    pipeline->period = pipeline->pulled;
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_fill(hotbed_pipeline *pipeline) {
    HOTBED_TRY(hotbed_check_pointer("pipeline", pipeline));
    HOTBED_TRY(check_alive(pipeline));
    if (!pipeline->ever_bound)
        return hotbed_fail(HOTBED_ERR_STATE, "hotbed_pipeline_fill: no loader is bound");
    if (pipeline->filled)
        return hotbed_fail(HOTBED_ERR_STATE, "hotbed_pipeline_fill: filled already");
    HOTBED_TRY(release_held(pipeline));
    pipeline->filled = true;
    for (uint32_t i = 0; i < pipeline->program->depth; i++)
        HOTBED_TRY(enqueue_period(pipeline));
    return HOTBED_OK;
}

/* --- advancing -------------------------------------------------------------------------------- */

/* Names of tasks that the iteration has not submitted. Called under the lock. */
static void list_pending(const hotbed_pipeline *pipeline, uint64_t iteration, hotbed_writer *w) {
    for (uint32_t i = 0; i < pipeline->program->num_steps; i++) {
        uint32_t s = pipeline->program->serial[i];
        if (hotbed_pipeline_completion(pipeline, iteration, s)->number <= iteration)
            hotbed_write(w, " %s", pipeline->program->steps[s].name);
    }
}

/* Phase one for a whole iteration: wait until all its tasks are submitted. */
static hotbed_status await(hotbed_pipeline *pipeline, uint64_t number) {
    const hotbed_iteration *iteration = hotbed_pipeline_iteration(pipeline, number);
    const uint64_t until = in_seconds(pipeline->options.deadline_seconds);
    char pending[256] = "";
    (void)pthread_mutex_lock(&pipeline->lock);
    while (iteration->remaining > 0 && !pipeline->failed)
        if (!hotbed_cond_wait(&pipeline->changed, &pipeline->lock, until))
            break;
    bool failed = pipeline->failed, late = iteration->remaining > 0;
    if (late)
        list_pending(pipeline, number, &(hotbed_writer){pending, sizeof pending, 0});
    (void)pthread_mutex_unlock(&pipeline->lock);
    if (failed)
        return finish_failure(pipeline);
    if (!late)
        return HOTBED_OK;
    hotbed_status status = hotbed_fail_limit(
        HOTBED_ERR_COMM, NULL, number, pipeline->options.deadline_seconds,
        "iteration %llu is not done after %g seconds; pending:%s", (unsigned long long)number,
        pipeline->options.deadline_seconds, pending);
    return fail_here(pipeline, status, NULL, 0);
}

/* Phase two: the caller's stream waits for all tasks that no other task waits for. */
static hotbed_status join_streams(hotbed_pipeline *pipeline, uint64_t number) {
    for (uint32_t s = 0; s < pipeline->program->num_steps; s++) {
        if (!pipeline->program->steps[s].sink)
            continue;
        hotbed_status status = hotbed_stream_wait(
            pipeline->stream, hotbed_pipeline_completion(pipeline, number, s)->end);
        if (status != HOTBED_OK)
            return fail_here(pipeline, status, NULL, 0);
    }
    return HOTBED_OK;
}

static const hotbed_iteration *hand_out(hotbed_pipeline *pipeline, uint64_t number) {
    (void)pthread_mutex_lock(&pipeline->lock);
    pipeline->stats.iterations++;
    (void)pthread_mutex_unlock(&pipeline->lock);
    pipeline->retired = number + 1;
    pipeline->holding = true;
    return hotbed_pipeline_iteration(pipeline, number);
}

/* At the end, wait for the streams: only then is every fault of their kernels known. */
static hotbed_status finish_streams(hotbed_pipeline *pipeline) {
    const hotbed_program *program = pipeline->program;
    if (pipeline->finished)
        return HOTBED_OK;
    pipeline->finished = true;
    for (uint32_t i = 0; i < program->num_streams; i++) {
        hotbed_status status =
            hotbed_pipeline_tolerate(pipeline, hotbed_stream_sync(program->streams[i]));
        if (status != HOTBED_OK) {
            status = HOTBED_FAIL_AFTER(
                status, "fault found on stream %s when the pipeline ended: %s",
                program->stream_names[i], hotbed_last_error());
            return fail_here(pipeline, status, NULL, 0);
        }
    }
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_progress(hotbed_pipeline *pipeline, const hotbed_iteration **out) {
    if (pipeline == NULL || out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline or out is NULL");
    *out = NULL;
    HOTBED_TRY(check_alive(pipeline));
    if (!pipeline->filled) {
        HOTBED_TRY(hotbed_pipeline_fill(pipeline));
    } else {
        HOTBED_TRY(release_held(pipeline));
        /* `holding` does not tell that a period is due: hotbed_pipeline_idle() clears it. */
        if (pipeline->period < pipeline->retired + pipeline->program->depth)
            HOTBED_TRY(enqueue_period(pipeline));
    }
    if (pipeline->retired == pipeline->pulled)
        return finish_streams(pipeline); /* no iteration is left */
    HOTBED_TRY(await(pipeline, pipeline->retired));
    HOTBED_TRY(join_streams(pipeline, pipeline->retired));
    *out = hand_out(pipeline, pipeline->retired);
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_drain(hotbed_pipeline *pipeline) {
    const hotbed_iteration *iteration = NULL;
    HOTBED_TRY(hotbed_check_pointer("pipeline", pipeline));
    HOTBED_TRY(check_alive(pipeline));
    pipeline->exhausted = true;
    pipeline->bound = false;
    if (!pipeline->filled) { /* only serial iterations may have run */
        HOTBED_TRY(release_held(pipeline));
        return finish_streams(pipeline);
    }
    do
        HOTBED_TRY(hotbed_pipeline_progress(pipeline, &iteration));
    while (iteration != NULL);
    return HOTBED_OK;
}

/* --- one after the other ---------------------------------------------------------------------- */

static hotbed_status run_step(
    hotbed_pipeline *pipeline, uint32_t s, hotbed_iteration *iteration, hotbed_stream *stream) {
    hotbed_completion *completion = hotbed_pipeline_completion(pipeline, iteration->number, s);
    hotbed_log_entry entry = {.iteration = iteration->number, .task = s, .group = UINT32_MAX};
    if (pipeline->program->steps[s].ordered)
        entry.turn = ++pipeline->turns;
    hotbed_completion_harvest(pipeline, completion, false);
    if (completion->begin != NULL)
        HOTBED_TRY(hotbed_event_record(completion->begin, stream));
    entry.begin = hotbed_monotonic_seconds() - pipeline->started;
    HOTBED_TRY(hotbed_task_run(pipeline, s, iteration, stream, &entry.mode));
    entry.end = hotbed_monotonic_seconds() - pipeline->started;
    HOTBED_TRY(hotbed_event_record(completion->end, stream));
    HOTBED_TRY(hotbed_pipeline_tolerate(pipeline, hotbed_stream_fault(stream)));
    (void)pthread_mutex_lock(&pipeline->lock);
    hotbed_task_submitted(pipeline, &entry, completion);
    completion->number = iteration->number + 1;
    pipeline->turns_taken += entry.turn != 0;
    pipeline->stats.events += completion->begin == NULL ? 1 : 2;
    (void)pthread_mutex_unlock(&pipeline->lock);
    return HOTBED_OK;
}

hotbed_status hotbed_pipeline_run_serial(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, const hotbed_iteration **out) {
    return hotbed_pipeline_run_watched(pipeline, batch, stream, NULL, NULL, out);
}

hotbed_status hotbed_pipeline_run_watched(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, hotbed_step_watch watch,
    void *self, const hotbed_iteration **out) {
    if (out != NULL)
        *out = NULL;
    if (pipeline == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline or stream is NULL");
    if (hotbed_stream_backend(stream) != hotbed_stream_backend(pipeline->stream) ||
        hotbed_stream_device(stream) != hotbed_stream_device(pipeline->stream))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "the stream is of another backend or device than the pipeline");
    HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_run_serial"));
    uint64_t number = pipeline->pulled;
    hotbed_iteration *iteration = hotbed_pipeline_iteration(pipeline, number);
    iteration->next_batch = batch;
    hotbed_status begun = hotbed_iteration_begin(iteration, number);
    if (begun != HOTBED_OK)
        return fail_here(pipeline, begun, NULL, 0);
    if (number > 0) /* after the previous iteration, on whatever stream it ran */
        HOTBED_TRY(
            hotbed_stream_wait(stream, hotbed_pipeline_iteration(pipeline, number - 1)->released));
    for (uint32_t n = 0; n < pipeline->program->num_steps; n++) {
        uint32_t s = pipeline->program->serial[n];
        hotbed_status status = run_step(pipeline, s, iteration, stream);
        if (status == HOTBED_OK && watch != NULL)
            status = watch(self, s);
        if (status != HOTBED_OK)
            return fail_here(pipeline, status, pipeline->program->steps[s].name, number);
    }
    HOTBED_TRY(join_streams(pipeline, number));
    pipeline->pulled++;
    const hotbed_iteration *given = hand_out(pipeline, number);
    pipeline->loader = (hotbed_loader){0}; /* the caller owns the batch */
    pipeline->bound = false;
    pipeline->exhausted = true;
    pipeline->finished = false;
    pipeline->first = pipeline->pulled; /* later periods do not run this iteration again */
    pipeline->period = pipeline->pulled;
    if (out != NULL)
        *out = given;
    return HOTBED_OK;
}

/* --- asking ----------------------------------------------------------------------------------- */

hotbed_stream *hotbed_pipeline_stream(const hotbed_pipeline *pipeline) {
    return pipeline == NULL ? NULL : pipeline->stream;
}

uint32_t hotbed_pipeline_depth(const hotbed_pipeline *pipeline) {
    return pipeline == NULL ? 0 : pipeline->program->depth;
}
