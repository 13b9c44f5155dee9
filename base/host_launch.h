/* base/host_launch.h - the host backend's <<<>>>: run a body over a range, in stream order, on
 * threads. */
#pragma once

#include "hotbed/stream.h"

/* Process items [begin, end). Runs on several threads at once, with ranges that do not overlap. */
typedef void (*hotbed_host_body)(const void *args, uint64_t begin, uint64_t end);

enum { HOTBED_HOST_ARGS_BYTES = 768 }; /* largest size of `args` */

/* Enqueue `body` over [0, n), cut into ranges of `grain` items (0: one range).
 *
 * Each range starts at a multiple of grain, and the last may be shorter. A single range runs on the
 * stream's worker thread. `args` is copied (args_bytes <= HOTBED_HOST_ARGS_BYTES). The stream goes
 * on when all ranges are done. n = 0 enqueues nothing.
 *
 * Asynchronous, and allocates nothing unless a graph is being recorded. When 8192 tasks of the
 * stream have not run yet, the call waits for half of them, which counts as a host wait.
 *
 * Errors: ARGUMENT (too many bytes of args, a stream of another backend), MEMORY (recording). */
hotbed_status hotbed_host_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes);

/* hotbed_host_launch() of a body with the arguments *args. */
#define HOTBED_HOST_LAUNCH(stream, n, grain, body, args)                                           \
    hotbed_host_launch(stream, n, grain, body, args, sizeof *(args))

/* Define a body that evaluates `call`, with `args`, for each item i of its range. */
#define HOTBED_HOST_EACH(body, call)                                                               \
    static void body(const void *args, uint64_t begin, uint64_t end) {                             \
        for (uint64_t i = begin; i < end; i++)                                                     \
            (call);                                                                                \
    }

/* The same for the items of its range below `n`, which only device memory may have; `a` is the
 * arguments, of this type. */
#define HOTBED_HOST_BELOW(body, type, n, call)                                                     \
    static void body(const void *args, uint64_t begin, uint64_t end) {                             \
        const type *a = args;                                                                      \
        for (uint64_t i = begin, most = (n); i < end && i < most; i++)                             \
            (call);                                                                                \
    }

/* Define a call of a table of kernels: it launches name_body over n items with the arguments *a, of
 * this type. */
#define HOTBED_HOST_CALL(name, type, n, grain)                                                     \
    static hotbed_status name(const type *a, hotbed_stream *stream) {                              \
        return HOTBED_HOST_LAUNCH(stream, n, grain, name##_body, a);                               \
    }

/* Number of threads that run a body, including the stream's worker thread: the value of
 * HOTBED_THREADS (1 .. 1024) when the first stream is created, or, if it is not set, the number of
 * cores that this process may use. */
unsigned hotbed_host_threads(void);
