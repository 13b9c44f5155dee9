/* hotbed/timeline.h - timelines of pipelines, as a trace for Perfetto and as a picture.
 *
 * For programs that need to see which tasks overlapped, and when streams were idle. Both forms are
 * written after a run, from the logs of pipelines:
 *
 *     hotbed_train_options options;
 *     hotbed_train_options_init(&options);
 *     options.plan = "prefetch";
 *     options.backend = HOTBED_BACKEND_CUDA;
 *     hotbed_pipeline_options_init(&options.pipeline);
 *     options.pipeline.log_entries = 4096;
 *     options.pipeline.timed = true;
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
#ifndef HOTBED_TIMELINE_H
#define HOTBED_TIMELINE_H

#include "hotbed/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
