/* base/host_launch.h - the host backend's <<<>>>: a body over a range, in stream order, on threads. */
#ifndef HOTBED_BASE_HOST_LAUNCH_H
#define HOTBED_BASE_HOST_LAUNCH_H

#include "hotbed/stream.h"

/* Work on items [begin, end).  Runs on several threads at once with ranges that do not overlap. */
typedef void (*hotbed_host_body)(const void *args, uint64_t begin, uint64_t end);

enum { HOTBED_HOST_ARGS_BYTES = 512 }; /* most bytes of args */

/* Enqueue body over [0, n), cut into ranges of `grain` items (0: one range), of which the last may be
 * shorter; each range starts at a multiple of grain, and one range runs on the stream's own thread.
 * `args` is copied (args_bytes <= HOTBED_HOST_ARGS_BYTES).  All ranges are done before the stream goes
 * on.  n of 0 enqueues nothing.  Allocates nothing unless a graph is recorded; when 8192 tasks of the
 * stream have not run yet, it waits for half of them, which counts as a host wait.
 * Errors: ARGUMENT (too many args, a stream of another backend), MEMORY (recording). */
hotbed_status hotbed_host_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes);

/* Number of threads that run a body, the stream's own included: HOTBED_THREADS (1 .. 1024) when the first
 * stream is made, else the cores this process may use. */
unsigned hotbed_host_threads(void);

#endif
