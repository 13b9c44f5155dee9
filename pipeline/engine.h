/* pipeline/engine.h - what the other files of the folder ask of a pipeline. */
#ifndef HOTBED_PIPELINE_ENGINE_H
#define HOTBED_PIPELINE_ENGINE_H

#include "pipeline/state.h"

/* STATE if iterations are in flight; the failure if the pipeline has failed.  Releases the iteration that the
 * caller holds. */
hotbed_status hotbed_pipeline_idle(hotbed_pipeline *pipeline, const char *function);

/* The longest of all ranks' times, which are not below 0; on one rank nothing changes. */
hotbed_status hotbed_agreement_most(const hotbed_agreement *agreement, double *seconds);

/* hotbed_pipeline_run_serial() with a function that is called after each step. */
typedef hotbed_status (*hotbed_step_watch)(void *self, uint32_t step);
hotbed_status hotbed_pipeline_run_watched(
    hotbed_pipeline *pipeline, void *batch, hotbed_stream *stream, hotbed_step_watch watch,
    void *self, const hotbed_iteration **out);

/* Join the threads that have ended, or all. */
void hotbed_pipeline_join(hotbed_pipeline *pipeline, bool all);

/* From now on a task cannot be skipped; `format` gives the reason for the message.  Before anything runs. */
__attribute__((format(printf, 3, 4))) void hotbed_pipeline_refuse(
    hotbed_pipeline *pipeline, uint32_t step, const char *format, ...);

#endif
