/* pipeline/worker.h - run tasks: on the threads of a pipeline's groups, or one on the caller's thread. */
#ifndef HOTBED_PIPELINE_WORKER_H
#define HOTBED_PIPELINE_WORKER_H

#include "pipeline/state.h"

/* Run, capture, replay or graft one task on `stream`, without waiting for its dependencies; *mode says which. */
hotbed_status hotbed_task_run(
    hotbed_pipeline *pipeline, uint32_t step, hotbed_iteration *iteration, hotbed_stream *stream,
    hotbed_task_mode *mode);

/* The thread of a group; `argument` is a hotbed_task_group. */
void *hotbed_task_group_main(void *argument);

#endif
