/* pipeline/engine.h - functions of the engine that other files of pipeline/ call. */
#pragma once

#include "pipeline/state.h"

/* Check that nothing is in flight. Releases the iteration that the caller holds. Errors: STATE
 * (iterations are in flight); the failure of a pipeline that has failed. */
hotbed_status hotbed_pipeline_idle(hotbed_pipeline *pipeline, const char *function);

/* Replace a time, not below 0, by the longest of all ranks' times. Does nothing on one rank. */
hotbed_status hotbed_agreement_most(const hotbed_agreement *agreement, double *seconds);

/* A function that the serial run calls after each step. */
typedef hotbed_status (*hotbed_step_watch)(void *self, uint32_t step);
hotbed_status hotbed_pipeline_run_watched(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, hotbed_step_watch watch,
    void *self, const hotbed_iteration **out);

/* Join the threads that have ended, or, with `all`, wait for all threads. */
void hotbed_pipeline_join(hotbed_pipeline *pipeline, bool all);

/* Mark a task that cannot be skipped; `format` is the reason, for error messages. Call it before
 * the first iteration. */
__attribute__((format(printf, 3, 4))) void hotbed_pipeline_refuse(
    hotbed_pipeline *pipeline, uint32_t step, const char *format, ...);
