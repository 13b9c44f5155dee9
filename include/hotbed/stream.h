/* hotbed/stream.h - streams, events, memory, copies and graphs on the two backends.
 *
 * A backend is where tables live and kernels run: HOTBED_BACKEND_CUDA is one GPU, and
 * HOTBED_BACKEND_HOST is this machine's memory and cores, with the same rules.  A stream is an
 * in-order lane of work: calls marked "async" return once the work is enqueued, and it runs later, on
 * threads of the stream.  A missing hotbed_stream_sync() is a race on the host backend too.
 *
 * Pointers handed to an async call must stay valid until the stream passes that work.  "Device memory"
 * of the host backend is ordinary memory.  A stream is used from one thread at a time; different
 * streams from different threads at once.  Work on two streams is ordered by events only.
 *
 * Calls for a CUDA stream leave its GPU as the calling thread's current device.
 */
#ifndef HOTBED_STREAM_H
#define HOTBED_STREAM_H

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hotbed_backend {
    HOTBED_BACKEND_HOST = 1,
    HOTBED_BACKEND_CUDA = 2,
} hotbed_backend;

typedef struct hotbed_stream hotbed_stream; /* opaque; owned by who created it */
typedef struct hotbed_event hotbed_event;   /* opaque; owned by who created it */
typedef struct hotbed_graph hotbed_graph;   /* opaque; owned by who created it */

/* "host" or "cuda"; "unknown" for other numbers. */
HOTBED_API const char *hotbed_backend_name(hotbed_backend backend);

/* Whether this build and machine can run `backend`.
 * Errors: UNSUPPORTED (not in this build, no driver, no GPU; the text says which), ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_backend_probe(hotbed_backend backend);

/* --- streams ------------------------------------------------------------------------------- */

/* Create a stream on GPU number `device` (CUDA), or on the host (`device` must be 0).
 * Synchronous.  Errors: ARGUMENT (backend or device out of range), UNSUPPORTED, MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_create(hotbed_backend backend, int device, hotbed_stream **out);

/* Which stream's work goes first where several have some.  On a GPU: thread blocks of a HIGH stream's
 * kernels take the places that other kernels' blocks leave (nothing is interrupted), so a short kernel
 * need not wait for a long one that fills the GPU; copies are not ordered by it.  On the host it is kept
 * and has no effect: lanes are threads, which the system schedules alike. */
typedef enum hotbed_priority {
    HOTBED_PRIORITY_NORMAL = 0,
    HOTBED_PRIORITY_HIGH = 1,
} hotbed_priority;

/* hotbed_stream_create() with a priority, which the stream keeps.
 * Errors: as hotbed_stream_create(); ARGUMENT (priority out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_stream_create_with_priority(
    hotbed_backend backend, int device, hotbed_priority priority, hotbed_stream **out);

/* What it was created with; of a wrapped stream NORMAL, whatever the caller gave it. */
HOTBED_API hotbed_priority hotbed_stream_priority(const hotbed_stream *stream);

/* Use a caller's cudaStream_t of the current context's GPU `device` as a stream: `native` is the
 * cudaStream_t.  The caller keeps it, and destroys it after the hotbed_stream.
 * Errors: as hotbed_stream_create(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_wrap_cuda(int device, void *native, hotbed_stream **out);

/* Finish the stream's work, then free the stream.  NULL is allowed.  A latched fault is dropped. */
HOTBED_API void hotbed_stream_destroy(hotbed_stream *stream);

/* What the stream was created on. */
HOTBED_API hotbed_backend hotbed_stream_backend(const hotbed_stream *stream);
HOTBED_API int hotbed_stream_device(const hotbed_stream *stream);
HOTBED_API void *hotbed_stream_native(const hotbed_stream *stream); /* cudaStream_t; NULL on host */

/* Wait until the stream's work is done, and return the first fault that its work latched, which is
 * thereby cleared.  Counts as one host wait.
 * Errors: the latched one (FULL, RANGE, ...), ARGUMENT, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_stream_sync(hotbed_stream *stream);

/* The first fault latched so far, cleared, without waiting: HOTBED_OK says nothing about work that
 * has not run yet.  Errors: the latched one, ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_stream_fault(hotbed_stream *stream);

/* Call `function(argument)` on a thread of the library when the stream gets there.  Async.
 * The function must not call the library.  Errors: ARGUMENT (NULL), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_call(hotbed_stream *stream, void (*function)(void *argument), void *argument);

/* --- events --------------------------------------------------------------------------------- */

/* Create an event for streams of the backend and device of `stream`.  Errors: ARGUMENT, MEMORY,
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_create(hotbed_stream *stream, hotbed_event **out);
HOTBED_API void hotbed_event_destroy(hotbed_event *event); /* NULL is allowed */

/* Mark the work enqueued on `stream` so far; a later record moves the mark.  Async.
 * Errors: ARGUMENT (NULL; a stream of another backend or device), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_record(hotbed_event *event, hotbed_stream *stream);

/* Work enqueued on `stream` from now on runs after the event's latest mark.  Async, no host wait.
 * An event that was never recorded is passed at once.  Errors: as hotbed_event_record(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_wait(hotbed_stream *stream, hotbed_event *event);

/* Whether the event's latest mark has been passed; true when it was never recorded.  Never waits.
 * Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_event_query(hotbed_event *event, bool *done);

/* Wait for the event's latest mark.  Counts as one host wait.  Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_event_sync(hotbed_event *event);

/* Seconds between two recorded events that have been passed.
 * Errors: ARGUMENT (NULL; of two backends or devices), STATE (one was not recorded or not passed yet),
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds);

/* --- memory --------------------------------------------------------------------------------- */

typedef enum hotbed_memory_kind {
    HOTBED_MEMORY_DEVICE = 1,   /* HBM; ordinary memory on the host backend */
    HOTBED_MEMORY_PINNED = 2,   /* host memory that the GPU reads and writes at the same address */
    HOTBED_MEMORY_PAGEABLE = 3, /* host memory, pages made when touched */
    HOTBED_MEMORY_FILE = 4, /* host memory mapped from an unnamed file, for more than DRAM holds */
} hotbed_memory_kind;

/* One allocation.  Plain data; `data` is 256-byte aligned. */
typedef struct hotbed_memory {
    void *data;
    size_t bytes;
    hotbed_memory_kind kind;
    hotbed_backend backend;
    int device;
} hotbed_memory;

/* Allocate `bytes` (0 is allowed and gives data = NULL) for use with `stream`'s backend and device,
 * contents undefined (FILE: zero).  Synchronous.
 *
 *   directory  in  FILE: where the file is made; NULL is the environment's TMPDIR, else /tmp.
 *                  Ignored for other kinds.
 *
 * Errors: ARGUMENT (unknown kind), MEMORY (with the bytes asked for), IO (FILE: the file cannot be
 * made or is too large for the disk), STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_memory_alloc(
    hotbed_stream *stream, hotbed_memory_kind kind, size_t bytes, const char *directory,
    hotbed_memory *out);

/* Free and zero *memory.  All work that uses it must be done.  NULL and {0} are allowed. */
HOTBED_API void hotbed_memory_free(hotbed_memory *memory);

/* Copy `bytes` between any two memories of the stream's machine.  Async when host memory is pinned;
 * with other host memory on CUDA the call may wait, and then counts a host wait.
 * Errors: ARGUMENT (NULL with bytes above 0), DEVICE, STATE (it would wait, but the stream records a
 * graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_copy(void *to, const void *from, size_t bytes, hotbed_stream *stream);

/* Set `bytes` bytes to `value`.  Async.  Errors: as hotbed_copy(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_fill(void *to, int value, size_t bytes, hotbed_stream *stream);

/* --- graphs --------------------------------------------------------------------------------- */

/* Between begin and end, async calls on `stream` are recorded instead of run.  Calls that wait or
 * allocate fail with STATE.  On CUDA this is stream capture; the host backend keeps a list.
 * A graph keeps the pointers and counts it was recorded with, while the memory behind them may change
 * from launch to launch.  Launch it on the stream that it was recorded on.  An event in a recording is
 * recorded, or waited for as it is then marked, by each launch.
 * Errors: ARGUMENT, STATE (already recording; end without begin), MEMORY (what is recorded takes host
 * memory, so recorded calls too), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_graph_begin(hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_graph_end(hotbed_stream *stream, hotbed_graph **out);

/* Run the recorded work once more, in stream order.  Async.
 * Errors: ARGUMENT (NULL; another stream), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_graph_launch(hotbed_graph *graph, hotbed_stream *stream);
HOTBED_API void hotbed_graph_destroy(
    hotbed_graph *graph); /* its launches are done; NULL is allowed */

/* --- counters ------------------------------------------------------------------------------- */

/* What the library has done since the process started, all threads together. */
typedef struct hotbed_counters {
    uint64_t host_waits;      /* times a thread waited for a stream or an event */
    uint64_t allocations;     /* of memory of any kind, the library's own structs included */
    uint64_t allocated_bytes; /* bytes of those allocations */
    uint64_t launches;        /* kernels, host tasks and graphs enqueued */
    uint64_t copies;          /* hotbed_copy() calls, the library's own included */
    uint64_t copied_bytes;
    uint64_t memory_bytes[HOTBED_MEMORY_FILE + 1]; /* of hotbed_memory_alloc(), by kind: a part of
                                                    * allocated_bytes; [0] is 0 */
} hotbed_counters;

/* Read the counters; the difference of two reads says what the calls between them did. */
HOTBED_API void hotbed_counters_read(hotbed_counters *out);

#ifdef __cplusplus
}
#endif
#endif
