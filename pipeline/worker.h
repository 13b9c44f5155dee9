/* pipeline/worker.h - run the tasks of a pipeline, on the threads of its groups or on the caller's
 * thread. */
#pragma once

#include "pipeline/state.h"

/* Run, capture, replay or graft one task on `stream`, without waiting for its dependencies. *mode
 * returns which of the four was done. */
hotbed_status hotbed_task_run(
    hotbed_pipeline *pipeline, uint32_t step, hotbed_iteration *iteration, hotbed_stream *stream,
    hotbed_task_mode *mode);

/* The main function of a group's thread; `argument` is its hotbed_task_group. */
void *hotbed_task_group_main(void *argument);
