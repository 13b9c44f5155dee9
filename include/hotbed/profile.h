/* hotbed/profile.h - the costs of a pipeline's tasks, schedules derived from them, and timelines.
 *
 * Experimental: all calls.
 *
 * For programs that look for the expensive tasks of a training step, or for a faster plan. Measure
 * the tasks of a pipeline, print them, and find a schedule for them:
 *
 *     static hotbed_profile profile;
 *     hotbed_profile_options options = {.size = sizeof options};
 *     options.num_batches = num_batches;
 *     options.batches = batches;
 *     options.stream = stream;
 *     status = hotbed_profile_run(hotbed_train_pipeline(train), &options, &profile);
 *     status = hotbed_profile_print(&profile, text, sizeof text, NULL);
 *     puts(text);
 *     status = hotbed_train_schedule(train, &profile, 0, &schedule);
 *     printf("%g s, serial %g s\n", hotbed_schedule_seconds(schedule),
 *            hotbed_schedule_serial_seconds(schedule));
 *     hotbed_schedule_destroy(schedule);
 *
 * A task's *exposed time* is the time that an iteration would save without the task: the time of a
 * serial iteration with all tasks, minus its time when this task is replayed by a shortcut. Both
 * are measured one after the other in every round, and the median over the rounds counts. For tasks
 * that cannot be skipped, the time between synchronizations around them counts. From such costs a
 * model predicts the time of an iteration under a plan, and a search finds the plan with the
 * shortest predicted time.
 *
 * In the model, tasks of one stream run one after the other in the plan's order; a task starts when
 * the tasks that it comes after are complete and its buffer set is free; streams do not slow each
 * other down. Real streams share a machine, so predictions are for comparing plans. */
#ifndef HOTBED_PROFILE_H
#define HOTBED_PROFILE_H

#include "hotbed/pipeline.h"

HOTBED_BEGIN_DECLS

/* --- profiles --------------------------------------------------------------------------------- */

/* Options of a profile. 0 is the default of every field but `size`. */
typedef struct hotbed_profile_options {
    uint32_t size;        /* sizeof(hotbed_profile_options) */
    uint32_t warmup;      /* iterations before each measurement; 0 is 2 */
    uint32_t rounds;      /* each round measures everything once; the median counts; 0 is 5 */
    uint32_t iterations;  /* iterations per measurement; 0 is 4 */
    uint32_t num_batches; /* required */
    /* [num_batches] used in turn, from one measurement to the next; required. If there is a cache,
     * pass enough batches that it cannot hold all of their keys. */
    void *const *batches;
    hotbed_stream *stream;     /* iterations run on it, one after the other; required */
    double (*now)(void *self); /* returns seconds; NULL is the machine's clock */
    void *now_self;
} hotbed_profile_options;

/* The costs of one task. Frozen: it has no size field, since hotbed_profile has an array of it. */
typedef struct hotbed_profile_task {
    char name[HOTBED_PIPELINE_NAME_BYTES];
    double exposed; /* seconds, not below 0; equal to alone if skipped is false */
    double alone;   /* seconds between synchronizations around the task */
    bool skipped;   /* whether the task was skipped by a shortcut to measure it */
} hotbed_profile_task;

/* The costs of a pipeline's tasks, in the order of the plan's steps. Plain data. Frozen: it has no
 * size field, like its tasks. */
typedef struct hotbed_profile {
    uint32_t num_tasks;
    double baseline; /* seconds per serial iteration */
    hotbed_profile_task tasks[HOTBED_PIPELINE_TASKS_MOST];
} hotbed_profile;

/* Measure a pipeline's tasks by serial iterations; nothing may be in flight. The iterations train:
 * they change the state that tasks change. Runs at most rounds * (w + iterations) * (tasks + 2)
 * iterations, where w is the larger of warmup and the depth. Synchronous. All ranks of the
 * pipeline's agreement must make the same call. Each time in *out is the longest of all ranks'
 * times, so all ranks find the same schedule.
 * Errors: ARGUMENT, MEMORY, STATE, those returned by tasks. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_profile_run(
    hotbed_pipeline *pipeline, const hotbed_profile_options *options, hotbed_profile *out);

/* Format a profile as a table of text, truncated to fit, always terminated by 0. *length (NULL is
 * allowed) is the length of the whole text without the 0. Never waits.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_profile_print(const hotbed_profile *profile, char *text, size_t capacity, size_t *length);

/* --- schedules -------------------------------------------------------------------------------- */

enum { HOTBED_SCHEDULE_CANDIDATES_MOST = 16 };

/* Options of a search. 0 is the default of every field but `size`. */
typedef struct hotbed_schedule_options {
    uint32_t size;       /* sizeof(hotbed_schedule_options) */
    uint32_t max_depth;  /* largest number of iterations in flight; 0 is 3, at most 6 */
    const double *costs; /* [plan->num_steps] seconds of each step; required */
    /* Names of tasks that stay in the last stage, for example tasks that must see all earlier
     * iterations; tasks that come after them stay there too. */
    const char *last;
    /* Number of candidates to keep, with the serial plan among them; 0 is 1, the best. */
    uint32_t candidates;
    uint32_t num_also;
    /* [num_also] hand-written plans of the same tasks, streams and values, which are candidates
     * too. */
    const hotbed_pipeline_plan *also;
} hotbed_schedule_options;

typedef struct hotbed_schedule hotbed_schedule; /* opaque; owned by the caller */

/* Divide a serial plan (one stage, edges within the iteration) into stages on different streams,
 * such that the iteration is shortest in the model; it is never longer than in the serial plan. The
 * last stage is on the plan's last stream, the stage before it on the first, the stage before that
 * on the second, and so on, each in a thread group of its own. If tasks that share a state would
 * otherwise race, edges between them are added, and both orders are tried: the older iteration's
 * task first, and the younger one's. The same costs give the same schedule. Never waits.
 *
 * The model does not know how much streams slow each other down. With `candidates` above 1 the
 * search therefore returns a short list, the best by the model first, to be measured by
 * hotbed_train_tune(). Among plans with the same number of stages and the same time in the model
 * (to 0.1 %), the list has one.
 *
 * Errors: ARGUMENT (the plan has stages or distances, a cost is below 0 or not finite, an unknown
 * name, too many candidates, one of `also` has a fault, other tasks, or another size than the first
 * one), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_schedule_find(
    const hotbed_pipeline_plan *serial, const hotbed_schedule_options *options,
    hotbed_schedule **out);
HOTBED_API void hotbed_schedule_destroy(hotbed_schedule *schedule); /* NULL is allowed */

/* Return the number of candidates, or the number of the chosen one: at first 0, the best by the
 * model. */
HOTBED_API uint32_t hotbed_schedule_candidates(const hotbed_schedule *schedule);
HOTBED_API uint32_t hotbed_schedule_taken(const hotbed_schedule *schedule);

/* Choose another candidate, which the functions below describe. Never waits.
 * Errors: ARGUMENT (NULL, no such candidate). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_schedule_take(hotbed_schedule *schedule, uint32_t candidate);

/* Return the chosen candidate's steps, for a plan of order LISTED with the same tasks, values and
 * streams. They are valid as long as the schedule exists. */
HOTBED_API const hotbed_step *hotbed_schedule_steps(
    const hotbed_schedule *schedule, uint32_t *num_steps);

/* Return the predicted seconds per iteration of the chosen candidate, and of the serial plan. */
HOTBED_API double hotbed_schedule_seconds(const hotbed_schedule *schedule);
HOTBED_API double hotbed_schedule_serial_seconds(const hotbed_schedule *schedule);

/* --- timelines -------------------------------------------------------------------------------- */

/* Timelines of pipelines, as a trace for Perfetto and as a picture.
 *
 * They show which tasks overlapped, and when streams were idle. Both forms are written after a run,
 * from the logs of pipelines:
 *
 *     hotbed_train_options options = {
 *         .size = sizeof options, .plan = "prefetch", .backend = HOTBED_BACKEND_CUDA};
 *     options.pipeline = (hotbed_pipeline_options){
 *         .size = sizeof options.pipeline, .log_entries = 4096, .timed = true};
 *     status = hotbed_train_create(&trainer, &options, &train);
 *
 *     hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
 *     status = hotbed_pipeline_drain(pipeline);
 *     status = hotbed_timeline_write_trace(1, &pipeline, "trace.json");
 *     status = hotbed_timeline_write_picture(1, &pipeline, 8, "timeline.svg");
 *
 * With `timed`, timelines show when tasks ran on their streams; otherwise they show only when their
 * functions ran on the host. Several pipelines in one file are the ranks of one process: their
 * times count from the same start.
 *
 * In a build with NVTX, which is part of the CUDA toolkit, each task is also a range on the thread
 * that submits it, with the task's name, so NVIDIA's tools show it above the kernels. */

/* Write a trace for https://ui.perfetto.dev and chrome://tracing: a process for each rank, a thread
 * for each thread group and each stream, and for each task a slice with iteration, turn and mode.
 * Synchronous.
 *
 *   pipelines  [n] in   with logs; nothing is in flight
 *   path       in       replaced if it exists
 *
 * Errors: ARGUMENT, STATE (in flight; no log), MEMORY, IO. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_timeline_write_trace(uint32_t n, hotbed_pipeline *const *pipelines, const char *path);

/* Write a picture in SVG: time from left to right, a line for each stream (or thread group, if not
 * timed) of each rank, a rectangle for each task with its iteration, a color for each iteration.
 * Synchronous.
 *
 *   iterations  in   only the latest iterations of each pipeline; 0: all that the log has
 *
 * Errors: as hotbed_timeline_write_trace(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_timeline_write_picture(
    uint32_t n, hotbed_pipeline *const *pipelines, uint64_t iterations, const char *path);

HOTBED_END_DECLS
#endif
