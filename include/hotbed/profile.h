/* hotbed/profile.h - what tasks of a pipeline cost, and plans made from that.
 *
 * A task's *exposed time* is what an iteration would save without it: the serial iteration's time
 * with all tasks, less that with this one replayed by a shortcut, measured one after the other in each
 * of some rounds, the median of which counts.  Tasks that cannot be skipped count with the time between
 * syncs around them.  From such costs a model predicts how long an
 * iteration takes under a plan, and a search finds the plan for which that is least.
 *
 * The model: tasks of one stream run one after the other in the plan's order; a task starts when
 * what it comes after is over, and its slot is free; streams do not slow each other down.  Real
 * streams share a machine, so predictions are for comparing plans.
 */
#ifndef HOTBED_PROFILE_H
#define HOTBED_PROFILE_H

#include "hotbed/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- profiles --------------------------------------------------------------------------------- */

/* Call hotbed_profile_options_init(), then set fields; 0 is each other field's default. */
typedef struct hotbed_profile_options {
    uint32_t size;        /* set by init */
    uint32_t warmup;      /* iterations before each measurement; 0 is 2 */
    uint32_t rounds;      /* each measures everything once; the median counts; 0 is 5 */
    uint32_t iterations;  /* of a measurement; 0 is 4 */
    uint32_t num_batches; /* required */
    void *const
        *batches; /* [num_batches] used in turn, from one measurement to the next: as many as a
                                * cache does not have all the keys of, where there is one; required */
    hotbed_stream *stream;     /* that iterations run on, one after the other; required */
    double (*now)(void *self); /* seconds; NULL is the machine's clock */
    void *now_self;
} hotbed_profile_options;

static inline void hotbed_profile_options_init(hotbed_profile_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

typedef struct hotbed_profile_task {
    char name[HOTBED_PIPELINE_NAME_BYTES];
    double exposed; /* seconds, not below 0; equal to alone where skipped is false */
    double alone;   /* seconds between syncs around it */
    bool skipped;   /* whether a shortcut was taken to find out */
} hotbed_profile_task;

/* Costs of a pipeline's tasks, in the order of the plan's steps.  Plain data. */
typedef struct hotbed_profile {
    uint32_t num_tasks;
    double baseline; /* seconds of a serial iteration */
    hotbed_profile_task tasks[HOTBED_PIPELINE_TASKS_MOST];
} hotbed_profile;

/* Measure a pipeline's tasks by serial iterations; nothing may be in flight.  It trains: state that
 * tasks change is changed.  Takes rounds * (warmup + iterations) * (tasks + 2) iterations, more where warmup is below the depth.
 * Synchronous; waits.  Called alike on all ranks of the pipeline's agreement, each time in *out is that of its
 * slowest rank, so that all find the same schedule.
 * Errors: ARGUMENT, MEMORY, STATE, those of tasks. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_profile_run(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, hotbed_profile *out);

/* What the set of tasks named saves together, in seconds, not below 0.  Synchronous, otherwise as
 * hotbed_profile_run().
 * Errors besides: UNSUPPORTED (one of them cannot be skipped). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_profile_set(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, const char *tasks,
    double *exposed);

/* A table as text, cut to fit, always ended by 0; *length (NULL is allowed) is that of the whole
 * text without the 0.  Never waits.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_profile_print(const hotbed_profile *profile, char *text, size_t capacity, size_t *length);

/* --- schedules -------------------------------------------------------------------------------- */

/* Seconds an iteration takes under a plan in the steady state, by the model.  Never waits.
 *
 *   costs  in  [plan->num_steps] seconds of each step, not below 0
 *
 * Errors: ARGUMENT (the plan, a cost), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_schedule_predict(const hotbed_pipeline_plan *plan, const double *costs, double *seconds);

enum { HOTBED_SCHEDULE_CANDIDATES_MOST = 16 };

/* Call hotbed_schedule_options_init(), then set fields; 0 is each other field's default. */
typedef struct hotbed_schedule_options {
    uint32_t size;       /* set by init */
    uint32_t max_depth;  /* most iterations in flight; 0 is 3, at most 6 */
    const double *costs; /* [plan->num_steps] seconds of each step; required */
    const char
        *last; /* names of tasks that stay in the last stage: of whatever must see all earlier
                          * iterations, for example; the ones after them stay there too */
    uint32_t candidates; /* to keep, the serial plan among them; 0 is 1, the best */
    uint32_t num_also;
    const hotbed_pipeline_plan
        *also; /* [num_also] plans of the same tasks, streams and values that somebody
                                       * wrote: they are candidates, too, beside the others */
} hotbed_schedule_options;

static inline void hotbed_schedule_options_init(hotbed_schedule_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

typedef struct hotbed_schedule hotbed_schedule; /* opaque; owned by the caller */

/* Cut a serial plan (one stage, edges within the iteration) into stages on streams of their own,
 * such that the model's iteration is shortest: never longer than the serial one.  The last stage is
 * on the plan's last stream, the one before on the first, the one before that on the second, and so
 * on, each in a thread group of its own.  Edges between tasks that share a state and would
 * otherwise race are added, both ways round: the older iteration's task first, and the younger one's.
 * The same costs give the same schedule.  Never waits.
 *
 * The model cannot know what streams cost each other.  So with `candidates` above 1 it gives a short list, the
 * best by the model first, to be measured: hotbed_train_tune().  Of plans with as many stages that take the same
 * time by the model (to 0.1 %) one is in it.
 *
 * Errors: ARGUMENT (the plan has stages or distances, a cost is below 0 or not finite, an unknown
 * name, too many candidates, one of `also` has a fault or other tasks), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_schedule_find(
    const hotbed_pipeline_plan *serial, const hotbed_schedule_options *options,
    hotbed_schedule **out);
HOTBED_API void hotbed_schedule_destroy(hotbed_schedule *schedule); /* NULL is allowed */

/* How many candidates there are, and which one is taken: 0, the best by the model, at first. */
HOTBED_API uint32_t hotbed_schedule_candidates(const hotbed_schedule *schedule);
HOTBED_API uint32_t hotbed_schedule_taken(const hotbed_schedule *schedule);

/* Take another candidate: what the calls below are about.  Never waits.
 * Errors: ARGUMENT (NULL, no such candidate). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_schedule_take(hotbed_schedule *schedule, uint32_t candidate);

/* Its steps, for a plan of order LISTED with the same tasks, values and streams: valid while the
 * schedule is. */
HOTBED_API const hotbed_step *hotbed_schedule_steps(
    const hotbed_schedule *schedule, uint32_t *num_steps);

/* What the model says of it, and of the serial plan. */
HOTBED_API double hotbed_schedule_seconds(const hotbed_schedule *schedule);
HOTBED_API double hotbed_schedule_serial_seconds(const hotbed_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
