/* pipeline/profile.c - what tasks cost, by leaving them out. */
#include "hotbed/profile.h"

#include "base/options.h"
#include "pipeline/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS_MOST = 64 };

static double machine_now(void *self) {
    (void)self;
    return hotbed_pipeline_now();
}

static hotbed_status read_options(
    const hotbed_pipeline *pipeline, const hotbed_profile_options *from,
    hotbed_profile_options *to) {
    if (pipeline == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline is NULL");
    HOTBED_TRY(hotbed_options_read(to, sizeof *to, sizeof *to, from, "hotbed_profile_options"));
    if (to->num_batches == 0 || to->batches == NULL || to->stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "profile: no batches, or stream is NULL");
    if (to->rounds > ROUNDS_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "profile: %u rounds, at most %d", to->rounds, ROUNDS_MOST);
    to->warmup = to->warmup == 0 ? 2 : to->warmup;
    to->rounds = to->rounds == 0 ? 5 : to->rounds;
    to->iterations = to->iterations == 0 ? 4 : to->iterations;
    if (to->now == NULL)
        to->now = machine_now;
    return HOTBED_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static hotbed_status run(hotbed_pipeline *pipeline, const hotbed_profile_options *o, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        HOTBED_TRY(
            hotbed_pipeline_run_serial(pipeline, o->batches[i % o->num_batches], o->stream, NULL));
    return hotbed_stream_finish(o->stream);
}

/* Median over rounds of an iteration's mean time. */
static hotbed_status measure(
    hotbed_pipeline *pipeline, const hotbed_profile_options *o, double *seconds) {
    double rounds[ROUNDS_MOST];
    HOTBED_TRY(run(pipeline, o, o->warmup));
    for (uint32_t r = 0; r < o->rounds; r++) {
        double start = o->now(o->now_self);
        HOTBED_TRY(run(pipeline, o, o->iterations));
        rounds[r] = (o->now(o->now_self) - start) / o->iterations;
    }
    *seconds = median(rounds, o->rounds);
    return HOTBED_OK;
}

/* --- each task between syncs ------------------------------------------------------------------ */

typedef struct watching {
    const hotbed_profile_options *options;
    double since;
    double sums[HOTBED_PIPELINE_TASKS_MOST];
} watching;

static hotbed_status watch(void *self, uint32_t step) {
    watching *w = self;
    HOTBED_TRY(hotbed_stream_finish(w->options->stream));
    double now = w->options->now(w->options->now_self);
    w->sums[step] += now - w->since;
    w->since = w->options->now(w->options->now_self);
    return HOTBED_OK;
}

static hotbed_status measure_alone(
    hotbed_pipeline *pipeline, const hotbed_profile_options *o, hotbed_profile *out) {
    double rounds[HOTBED_PIPELINE_TASKS_MOST][ROUNDS_MOST];
    for (uint32_t r = 0; r < o->rounds; r++) {
        watching w = {.options = o};
        for (uint32_t i = 0; i < o->iterations; i++) {
            w.since = o->now(o->now_self);
            HOTBED_TRY(hotbed_pipeline_run_watched(
                pipeline, o->batches[i % o->num_batches], o->stream, watch, &w, NULL));
        }
        for (uint32_t s = 0; s < out->num_tasks; s++)
            rounds[s][r] = w.sums[s] / o->iterations;
    }
    for (uint32_t s = 0; s < out->num_tasks; s++)
        out->tasks[s].alone = median(rounds[s], o->rounds);
    return HOTBED_OK;
}

/* --- by shortcuts ----------------------------------------------------------------------------- */

static hotbed_status measure_without(
    hotbed_pipeline *pipeline, const hotbed_profile_options *o, const char *tasks,
    double *seconds) {
    hotbed_profile_options captured = *o; /* each slot captures once */
    if (captured.warmup < pipeline->program->depth)
        captured.warmup = pipeline->program->depth;
    HOTBED_TRY(hotbed_pipeline_shortcut(pipeline, tasks, false));
    HOTBED_TRY(measure(pipeline, &captured, seconds));
    return hotbed_pipeline_shortcut(pipeline, NULL, false);
}

hotbed_status hotbed_profile_run(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, hotbed_profile *out) {
    hotbed_profile_options o;
    if (out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "out is NULL");
    HOTBED_TRY(read_options(pipeline, options, &o));
    memset(out, 0, sizeof *out);
    out->num_tasks = pipeline->program->num_steps;
    HOTBED_TRY(measure(pipeline, &o, &out->baseline));
    HOTBED_TRY(measure_alone(pipeline, &o, out));
    for (uint32_t s = 0; s < out->num_tasks; s++) {
        hotbed_profile_task *task = &out->tasks[s];
        double without = 0.0;
        memcpy(task->name, pipeline->program->steps[s].name, sizeof task->name);
        task->skipped = !pipeline->program->steps[s].always;
        task->exposed = task->alone;
        if (!task->skipped)
            continue;
        HOTBED_TRY(measure_without(pipeline, &o, task->name, &without));
        task->exposed = out->baseline > without ? out->baseline - without : 0.0;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_profile_set(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, const char *tasks,
    double *exposed) {
    hotbed_profile_options o;
    double baseline = 0.0, without = 0.0;
    if (exposed == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "exposed is NULL");
    HOTBED_TRY(read_options(pipeline, options, &o));
    HOTBED_TRY(measure(pipeline, &o, &baseline));
    HOTBED_TRY(measure_without(pipeline, &o, tasks, &without));
    *exposed = baseline > without ? baseline - without : 0.0;
    return HOTBED_OK;
}

hotbed_status hotbed_profile_print(
    const hotbed_profile *profile, char *text, size_t capacity, size_t *length) {
    size_t used = 0;
    if (profile == NULL || (capacity > 0 && text == NULL))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "profile or text is NULL");
    used += (size_t)snprintf(
        text, capacity, "%-32s %12s %8s %12s\n", "task", "exposed us", "share", "alone us");
    for (uint32_t s = 0; s <= profile->num_tasks; s++) {
        const hotbed_profile_task all = {
            .name = "iteration", .exposed = profile->baseline, .alone = profile->baseline};
        const hotbed_profile_task *task = s < profile->num_tasks ? &profile->tasks[s] : &all;
        size_t room = used < capacity ? capacity - used : 0;
        used += (size_t)snprintf(
            room == 0 ? NULL : text + used, room, "%-32s %12.1f %7.1f%% %12.1f\n", task->name,
            1e6 * task->exposed,
            profile->baseline > 0.0 ? 100.0 * task->exposed / profile->baseline : 0.0,
            1e6 * task->alone);
    }
    if (length != NULL)
        *length = used;
    return HOTBED_OK;
}
