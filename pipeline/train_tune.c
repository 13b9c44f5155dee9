/* pipeline/train_tune.c - time the candidates of a schedule by training with them. */
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "pipeline/engine.h"
#include "pipeline/train.h"

#include <math.h>

typedef struct tuning {
    const hotbed_trainer *trainer;
    hotbed_train_options options;
    hotbed_tune_options tune;
} tuning;

static double machine_now(void *self) {
    return hotbed_monotonic_seconds();
}

static hotbed_status read_options(
    const hotbed_train_options *options, const hotbed_tune_options *tune, tuning *to) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(&to->options, hotbed_train_options, pipeline, options));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&to->tune, hotbed_tune_options, now, tune));
    if (to->tune.loader.next == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "tune: no loader");
    to->tune.warmup = to->tune.warmup == 0 ? 4 : to->tune.warmup;
    to->tune.rounds = to->tune.rounds == 0 ? 3 : to->tune.rounds;
    to->tune.iterations = to->tune.iterations == 0 ? 8 : to->tune.iterations;
    if (to->tune.now == NULL)
        to->tune.now = machine_now;
    return HOTBED_OK;
}

/* Run n iterations, and wait for all their work. */
static hotbed_status run(hotbed_pipeline *pipeline, uint32_t n) {
    const hotbed_iteration *iteration = NULL;
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_pipeline_progress(pipeline, &iteration));
        if (iteration == NULL)
            return hotbed_fail(HOTBED_ERR_STATE, "tune: the loader ended in a measurement");
    }
    return hotbed_stream_finish(hotbed_pipeline_stream(pipeline));
}

static hotbed_status measure(const tuning *t, hotbed_train *train, double *seconds) {
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    HOTBED_TRY(hotbed_pipeline_bind(pipeline, &t->tune.loader));
    HOTBED_TRY(run(pipeline, t->tune.warmup));
    double start = t->tune.now(t->tune.now_self);
    HOTBED_TRY(run(pipeline, t->tune.iterations));
    double passed = t->tune.now(t->tune.now_self) - start;
    *seconds = passed > 0.0 ? passed / t->tune.iterations : 0.0;
    HOTBED_TRY(hotbed_pipeline_drain(pipeline));
    return hotbed_agreement_most(&t->options.pipeline.agreement, seconds);
}

static hotbed_status measure_steps(const tuning *t, double *seconds) {
    hotbed_train *train = NULL;
    HOTBED_TRY(hotbed_train_create(t->trainer, &t->options, &train));
    hotbed_status status = measure(t, train, seconds);
    hotbed_train_destroy(train);
    return status;
}

static hotbed_status measure_all(tuning *t, hotbed_schedule *schedule, double *best) {
    uint32_t n = hotbed_schedule_candidates(schedule);
    for (uint32_t r = 0; r < t->tune.rounds; r++)
        for (uint32_t c = 0; c < n; c++) {
            double seconds = 0.0;
            HOTBED_TRY(hotbed_schedule_take(schedule, c));
            t->options.steps = hotbed_schedule_steps(schedule, &t->options.num_steps);
            HOTBED_TRY(measure_steps(t, &seconds));
            best[c] = seconds < best[c] ? seconds : best[c];
        }
    return HOTBED_OK;
}

hotbed_status hotbed_train_tune(
    const hotbed_trainer *trainer, const hotbed_train_options *options,
    const hotbed_tune_options *tune, hotbed_schedule *schedule, double *seconds) {
    tuning t = {.trainer = trainer};
    double best[HOTBED_SCHEDULE_CANDIDATES_MOST];
    HOTBED_TRY(hotbed_check_pointer("schedule", schedule));
    HOTBED_TRY(read_options(options, tune, &t));
    uint32_t before = hotbed_schedule_taken(schedule), n = hotbed_schedule_candidates(schedule);
    uint32_t fastest = 0;
    for (uint32_t c = 0; c < HOTBED_SCHEDULE_CANDIDATES_MOST; c++)
        best[c] = INFINITY;
    hotbed_status status = measure_all(&t, schedule, best);
    for (uint32_t c = 1; c < n && status == HOTBED_OK; c++)
        fastest = best[c] < best[fastest] ? c : fastest;
    (void)!hotbed_schedule_take(schedule, status == HOTBED_OK ? fastest : before);
    if (status == HOTBED_OK && seconds != NULL)
        memcpy(seconds, best, n * sizeof *best);
    return status;
}
