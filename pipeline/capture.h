/* pipeline/capture.h - keep the outputs of a task, and give them out again instead of running it. */
#ifndef HOTBED_PIPELINE_CAPTURE_H
#define HOTBED_PIPELINE_CAPTURE_H

#include "pipeline/state.h"

/* Copy what the step wrote for this iteration.  The first capture allocates; copies are asynchronous. */
hotbed_status hotbed_capture_take(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);

/* Give this iteration the captured outputs.  With `verify`: CORRUPT if a reader changed them. */
hotbed_status hotbed_capture_replay(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);

/* The gradient graft: zeros into the gradients of the values that `forward` reads. */
hotbed_status hotbed_graft(
    const hotbed_program_step *forward, hotbed_iteration *iteration, hotbed_stream *stream);

/* Free captured memory; the streams have passed all work that uses it. */
void hotbed_capture_drop(hotbed_capture *capture, const hotbed_program_step *step);

#endif
