/* pipeline/capture.h - capture the outputs of a task, and replay them instead of running the
 * task. */
#pragma once

#include "pipeline/state.h"

/* Copy everything that the step wrote for this iteration. The first capture allocates; copies are
 * asynchronous. */
hotbed_status hotbed_capture_take(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);

/* Set the iteration's values to the captured outputs. Errors: with `verify`, CORRUPT if a reader
 * has changed them. */
hotbed_status hotbed_capture_replay(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream);

/* The gradient graft: set the gradients of the values that `forward` reads to 0. */
hotbed_status hotbed_graft(
    const hotbed_program_step *forward, hotbed_iteration *iteration, hotbed_stream *stream);

/* Free captured memory. The streams must have passed all work that uses it. */
void hotbed_capture_drop(hotbed_capture *capture, const hotbed_program_step *step);
