/* hotbed/timeline.h - what pipelines did and when, for Perfetto and as a picture.
 *
 * Both are written from the logs of pipelines (hotbed_pipeline_options.log_entries), after a run.
 * With `timed` they have when tasks ran on their streams, otherwise only when their functions ran
 * on the host.  Several pipelines in one file are the ranks of one process: their times count from
 * the same start.
 *
 * In a build with NVTX, which comes with the CUDA toolkit, each task is also a range on the thread that
 * submits it, by the task's name, so that NVIDIA's tools show it above the kernels.
 */
#ifndef HOTBED_TIMELINE_H
#define HOTBED_TIMELINE_H

#include "hotbed/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write a trace that https://ui.perfetto.dev and chrome://tracing open: a process a rank, a thread
 * for each thread group and each stream, and for each task a slice with iteration, turn and mode.
 * Synchronous.
 *
 *   pipelines  [n] in   with logs; nothing is in flight
 *   path       in       replaced when it is there
 *
 * Errors: ARGUMENT, STATE (in flight; no log), MEMORY, IO. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_timeline_write_trace(uint32_t n, hotbed_pipeline *const *pipelines, const char *path);

/* Write a picture, SVG: time to the right, a line for each stream (thread group, when not timed) of
 * each rank, a box for each task with its iteration, a colour for each iteration.  Synchronous.
 *
 *   iterations  in   only the latest ones of each pipeline; 0: all that the log has
 *
 * Errors: as hotbed_timeline_write_trace(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_timeline_write_picture(
    uint32_t n, hotbed_pipeline *const *pipelines, uint64_t iterations, const char *path);

#ifdef __cplusplus
}
#endif
#endif
