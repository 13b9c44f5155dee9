/* examples/train/trace.h - a timeline that Perfetto and chrome://tracing open. */
#ifndef HOTBED_EXAMPLES_TRACE_H
#define HOTBED_EXAMPLES_TRACE_H

#include "hotbed/stream.h"

typedef enum hotbed_trace_track {
    HOTBED_TRACK_READER = 1,
    HOTBED_TRACK_MAIN = 2,
    HOTBED_TRACK_PREFETCH = 3, /* the prefetch stream */
    HOTBED_TRACK_COMPUTE = 4,  /* the compute stream */
} hotbed_trace_track;

typedef enum hotbed_phase {
    HOTBED_PHASE_READ,
    HOTBED_PHASE_PREFETCH,
    HOTBED_PHASE_FORWARD,
    HOTBED_PHASE_MODEL,
    HOTBED_PHASE_BACKWARD,
    HOTBED_PHASE_EVAL,
    HOTBED_PHASE_SAVE,
    HOTBED_PHASES,
} hotbed_phase;

typedef struct hotbed_trace hotbed_trace;

/* NULL when there is no memory. */
hotbed_trace *hotbed_trace_create(void);
void hotbed_trace_destroy(hotbed_trace *trace); /* NULL is allowed */

/* Note that a phase begins or ends now, on this thread.  Nothing is done when trace is NULL. */
void hotbed_trace_mark(
    hotbed_trace *trace, hotbed_trace_track track, hotbed_phase phase, bool begin);

/* The same when `stream` gets there.  Async. */
hotbed_status hotbed_trace_enqueue(
    hotbed_trace *trace, hotbed_trace_track track, hotbed_phase phase, bool begin,
    hotbed_stream *stream);

/* Write the timeline; false with errno set.  Streams are synced. */
bool hotbed_trace_write(hotbed_trace *trace, const char *path);

#endif
