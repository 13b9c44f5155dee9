/* pipeline/profile.c - measure the cost of tasks by skipping them.
 *
 * Each round measures all variants in turn, and only differences within a round count. A machine
 * that gets slower or faster over time therefore affects all variants alike. */
#include "hotbed/profile.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/text.h"
#include "pipeline/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS_MOST = 64 };

static double machine_now(void *self) {
    return hotbed_monotonic_seconds();
}

static hotbed_status read_options(
    const hotbed_pipeline *pipeline, const hotbed_profile_options *from,
    hotbed_profile_options *to) {
    HOTBED_TRY(hotbed_check_pointer("pipeline", pipeline));
    HOTBED_TRY(HOTBED_OPTIONS_READ(to, hotbed_profile_options, now, from));
    if (to->num_batches == 0 || to->batches == NULL || to->stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "profile: no batches, or stream is NULL");
    HOTBED_TRY(hotbed_check_range("rounds", to->rounds, 0, ROUNDS_MOST));
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

/* A measurement in progress. Each run continues with the batch after the previous run's last. */
typedef struct measuring {
    hotbed_pipeline *pipeline;
    hotbed_profile_options o;
    uint64_t used;
} measuring;

static void *take_batch(measuring *m) {
    return m->o.batches[m->used++ % m->o.num_batches];
}

static hotbed_status run(measuring *m, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        HOTBED_TRY(hotbed_pipeline_run_serial(m->pipeline, take_batch(m), m->o.stream, NULL));
    return hotbed_stream_finish(m->o.stream);
}

/* Measure the mean seconds of an iteration. */
static hotbed_status measure(measuring *m, uint32_t warmup, double *seconds) {
    HOTBED_TRY(run(m, warmup));
    double start = m->o.now(m->o.now_self);
    HOTBED_TRY(run(m, m->o.iterations));
    *seconds = (m->o.now(m->o.now_self) - start) / m->o.iterations;
    return HOTBED_OK;
}

/* The same with a task skipped. */
static hotbed_status measure_without(measuring *m, const char *task, double *seconds) {
    uint32_t depth =
        m->pipeline->program->depth; /* each buffer set must run the task once, to capture it */
    HOTBED_TRY(hotbed_pipeline_shortcut(m->pipeline, task));
    HOTBED_TRY(measure(m, m->o.warmup < depth ? depth : m->o.warmup, seconds));
    return hotbed_pipeline_shortcut(m->pipeline, NULL);
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

static hotbed_status watch_iterations(measuring *m, watching *w) {
    for (uint32_t i = 0; i < m->o.iterations; i++) {
        w->since = m->o.now(m->o.now_self);
        HOTBED_TRY(
            hotbed_pipeline_run_watched(m->pipeline, take_batch(m), m->o.stream, watch, w, NULL));
    }
    return HOTBED_OK;
}

/* --- rounds ----------------------------------------------------------------------------------- */

typedef struct measured {
    double baseline[ROUNDS_MOST];
    double alone[HOTBED_PIPELINE_TASKS_MOST][ROUNDS_MOST];
    double saved[HOTBED_PIPELINE_TASKS_MOST][ROUNDS_MOST];
} measured;

/* Measure all variants in one round, so that compared values are measured at nearly the same
 * time. */
static hotbed_status measure_round(measuring *m, uint32_t r, measured *to) {
    const hotbed_program *program = m->pipeline->program;
    watching w = {.options = &m->o};
    HOTBED_TRY(measure(m, m->o.warmup, &to->baseline[r]));
    HOTBED_TRY(watch_iterations(m, &w));
    for (uint32_t s = 0; s < program->num_steps; s++) {
        double without = 0.0;
        to->alone[s][r] = w.sums[s] / m->o.iterations;
        if (program->steps[s].always)
            continue;
        HOTBED_TRY(measure_without(m, program->steps[s].name, &without));
        to->saved[s][r] = to->baseline[r] - without;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_agreement_most(const hotbed_agreement *agreement, double *seconds) {
    uint64_t word = 0, least = 0;
    if (agreement->least == NULL)
        return HOTBED_OK;
    memcpy(
        &word, seconds,
        sizeof word); /* for times of 0 and more, the longer time is the larger word */
    HOTBED_TRY(agreement->least(agreement->self, ~word, &least));
    word = ~least;
    memcpy(seconds, &word, sizeof word);
    return HOTBED_OK;
}

static double not_below_0(double seconds) {
    return seconds > 0.0 ? seconds : 0.0;
}

/* Compute medians over the rounds, then take the slowest rank's, so that all ranks get the same
 * profile. */
static hotbed_status summarise(const measuring *m, measured *rounds, hotbed_profile *out) {
    const hotbed_program *program = m->pipeline->program;
    const hotbed_agreement *agreement = &m->pipeline->options.agreement;
    hotbed_profile profile = {
        .num_tasks = program->num_steps,
        .baseline = not_below_0(median(rounds->baseline, m->o.rounds))};
    HOTBED_TRY(hotbed_agreement_most(agreement, &profile.baseline));
    for (uint32_t s = 0; s < profile.num_tasks; s++) {
        hotbed_profile_task *task = &profile.tasks[s];
        memcpy(task->name, program->steps[s].name, sizeof task->name);
        task->skipped = !program->steps[s].always;
        task->alone = not_below_0(median(rounds->alone[s], m->o.rounds));
        HOTBED_TRY(hotbed_agreement_most(agreement, &task->alone));
        task->exposed =
            task->skipped ? not_below_0(median(rounds->saved[s], m->o.rounds)) : task->alone;
        HOTBED_TRY(hotbed_agreement_most(agreement, &task->exposed));
    }
    *out = profile;
    return HOTBED_OK;
}

hotbed_status hotbed_profile_run(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, hotbed_profile *out) {
    measuring m = {.pipeline = pipeline};
    HOTBED_TRY(hotbed_check_pointer("out", out));
    HOTBED_TRY(read_options(pipeline, options, &m.o));
    measured *rounds = hotbed_new(sizeof *rounds);
    HOTBED_TRY_MEMORY(rounds, "a profile");
    hotbed_status status = HOTBED_OK;
    for (uint32_t r = 0; r < m.o.rounds && status == HOTBED_OK; r++)
        status = measure_round(&m, r, rounds);
    HOTBED_THEN(status, summarise(&m, rounds, out));
    hotbed_delete(rounds);
    return status;
}

hotbed_status hotbed_profile_print(
    const hotbed_profile *profile, char *text, size_t capacity, size_t *length) {
    hotbed_writer w = {text, capacity, 0};
    if (profile == NULL || (capacity > 0 && text == NULL))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "profile or text is NULL");
    hotbed_write(&w, "%-32s %12s %8s %12s\n", "task", "exposed us", "share", "alone us");
    for (uint32_t s = 0; s <= profile->num_tasks; s++) {
        const hotbed_profile_task all = {
            .name = "iteration", .exposed = profile->baseline, .alone = profile->baseline};
        const hotbed_profile_task *task = s < profile->num_tasks ? &profile->tasks[s] : &all;
        hotbed_write(
            &w, "%-32s %12.1f %7.1f%% %12.1f\n", task->name, 1e6 * task->exposed,
            profile->baseline > 0.0 ? 100.0 * task->exposed / profile->baseline : 0.0,
            1e6 * task->alone);
    }
    if (length != NULL)
        *length = w.length;
    return HOTBED_OK;
}
