/* hotbed/stream.h - streams, events, memory, copies and graphs on the two backends.
 *
 * Experimental: hotbed_stream_create_with(), hotbed_stream_call(), hotbed_event_seconds(),
 * hotbed_memory_set_allocator(), hotbed_graph_begin(), hotbed_graph_end(), hotbed_graph_launch(),
 * hotbed_graph_destroy(), hotbed_counters_read(). Stable: all other calls.
 *
 * For every program: all work of the library runs on a stream, and most objects are created for the
 * backend and device of one.
 *
 * A *backend* is where tables are stored and kernels run. HOTBED_BACKEND_CUDA is one GPU.
 * HOTBED_BACKEND_HOST is the memory and the cores of this machine, with the same rules; its "device
 * memory" is ordinary memory. A *stream* is a queue whose work runs in order. A call marked
 * "asynchronous" returns when its work is enqueued; the work runs later, on threads of the stream.
 * A missing hotbed_stream_sync() is therefore a data race on the host backend too.
 *
 *       hotbed_stream *stream;
 *       hotbed_memory memory;
 *       hotbed_event *event;
 *       hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream);
 *       hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 4096, NULL, &memory);
 *       hotbed_event_create(stream, &event);
 *       hotbed_fill(memory.data, 0, memory.bytes, stream); // returns at once
 *       hotbed_event_record(event, stream);
 *       hotbed_stream_wait(other_stream, event); // later work there runs after the fill
 *       hotbed_status status = hotbed_stream_sync(stream); // waits; returns the first fault
 *       hotbed_event_destroy(event);
 *       hotbed_memory_free(&memory); // other_stream must have finished with it, too
 *       hotbed_stream_destroy(stream);
 *
 * Pointers that are passed to an asynchronous call must stay valid until the stream has passed its
 * work. One thread at a time may use a stream; different threads may use different streams at the
 * same time. Only events order work on two streams. Calls for a CUDA stream leave the current
 * device of the calling thread unchanged.
 *
 * fork() copies no threads. If a process had created a stream before it forked, then in the child,
 * calls that would enqueue, wait or allocate fail with STATE, and calls that destroy do nothing. */
#ifndef HOTBED_STREAM_H
#define HOTBED_STREAM_H

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

HOTBED_BEGIN_DECLS

typedef enum hotbed_backend {
    HOTBED_BACKEND_HOST = 1,
    HOTBED_BACKEND_CUDA = 2,
} hotbed_backend;

typedef struct hotbed_stream hotbed_stream; /* opaque; owned by the caller */
typedef struct hotbed_event hotbed_event;   /* opaque; owned by the caller */
typedef struct hotbed_graph hotbed_graph;   /* opaque; owned by the caller */

/* Return "host" or "cuda"; "unknown" for other numbers. */
HOTBED_API const char *hotbed_backend_name(hotbed_backend backend);

/* Check that this build and machine can run `backend`.
 * Errors: UNSUPPORTED (not in this build, no driver, or no GPU; the text says which), ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_backend_probe(hotbed_backend backend);

/* --- streams ------------------------------------------------------------------------------- */

/* Create a stream on GPU number `device` (CUDA), or on the host (`device` must be 0). Synchronous.
 * Errors: ARGUMENT (backend or device out of range), UNSUPPORTED, MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_create(hotbed_backend backend, int device, hotbed_stream **out);

/* Which stream's work is preferred if several streams have work. On a GPU, thread blocks of a HIGH
 * stream's kernels are scheduled first when blocks of other kernels finish. Nothing is interrupted,
 * but a short kernel need not wait for a long one that fills the GPU. Copies are not affected. On
 * the host the priority is stored and has no effect: streams run on threads, which the system
 * schedules alike. */
typedef enum hotbed_priority {
    HOTBED_PRIORITY_NORMAL = 0,
    HOTBED_PRIORITY_HIGH = 1,
} hotbed_priority;

/* Options of a stream. 0 is the default of every field but `size`. */
typedef struct hotbed_stream_options {
    uint32_t size;            /* sizeof(hotbed_stream_options) */
    hotbed_backend backend;   /* required */
    int device;               /* as for hotbed_stream_create() */
    hotbed_priority priority; /* the stream keeps it; 0 is NORMAL */
    /* HOST: each call does its work on the calling thread, with the help of the library's threads,
     * before it returns. For callers that read the output immediately and would otherwise wait
     * after every call: hotbed_stream_sync() finds nothing to wait for, and no thread is started
     * for the stream. A call that waits for the event of another stream, or for other ranks, blocks
     * its caller meanwhile. */
    bool run_inline;
} hotbed_stream_options;

/* Create a stream as hotbed_stream_create() does, with options. Synchronous.
 * Errors: as hotbed_stream_create(); ARGUMENT (priority out of range), UNSUPPORTED (run_inline on
 * CUDA). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_create_with(const hotbed_stream_options *options, hotbed_stream **out);

/* Use a caller's cudaStream_t of GPU `device` as a stream. Synchronous.
 *
 *   native  in  the cudaStream_t. NULL is the default stream, which PyTorch uses and which
 *               hotbed_graph_begin() cannot record. The caller keeps ownership, and must destroy
 *               it after the hotbed_stream
 *
 * The caller may capture `native` itself, as torch.cuda.graph() does. During the capture, calls
 * that would wait or allocate, for example because the workspace would have to grow, fail with
 * STATE, and the capture stays valid. So run a step of the same sizes before the capture.
 *
 * Memory that is passed to asynchronous calls must not be given to another owner before the stream
 * has passed them. With PyTorch's caching allocator, keep the tensors until then, or call
 * Tensor.record_stream() for tensors of another stream.
 * Errors: as hotbed_stream_create(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_wrap_cuda(int device, void *native, hotbed_stream **out);

/* Finish the stream's work, then free the stream. Blocks. NULL is allowed. A latched fault is
 * dropped. */
HOTBED_API void hotbed_stream_destroy(hotbed_stream *stream);

/* Return the backend or the device number that the stream was created on. */
HOTBED_API hotbed_backend hotbed_stream_backend(const hotbed_stream *stream);
HOTBED_API int hotbed_stream_device(const hotbed_stream *stream);
/* Return the cudaStream_t of a stream; NULL on host. */
HOTBED_API void *hotbed_stream_native(const hotbed_stream *stream);

/* Wait until the stream's work is done, and return and clear the first fault that the work latched.
 * Synchronous; counts as one host wait.
 * Errors: the latched fault (FULL, RANGE, ...), ARGUMENT, STATE (the stream records a graph),
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_stream_sync(hotbed_stream *stream);

/* Return and clear the first fault latched so far, without waiting. After HOTBED_OK, work that has
 * not run yet may still fail.
 * Errors: the latched fault, ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_stream_fault(hotbed_stream *stream);

/* Call `function(argument)` on a thread of the library when the stream reaches this point.
 * Asynchronous. The function must not call the library.
 * Errors: ARGUMENT (NULL), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_call(hotbed_stream *stream, void (*function)(void *argument), void *argument);

/* --- events --------------------------------------------------------------------------------- */

/* Create an event for streams of the backend and device of `stream`. Synchronous.
 * Errors: ARGUMENT, MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_create(hotbed_stream *stream, hotbed_event **out);
/* Free an event. NULL is allowed. */
HOTBED_API void hotbed_event_destroy(hotbed_event *event);

/* Record the end of all work enqueued on `stream` so far in the event, in place of an earlier
 * record. Asynchronous.
 * Errors: ARGUMENT (NULL; a stream of another backend or device), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_record(hotbed_event *event, hotbed_stream *stream);

/* Make all later work on `stream` run after the event's latest record. Asynchronous, no host wait.
 * An event that was never recorded does not delay the stream.
 * Errors: as hotbed_event_record(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_stream_wait(hotbed_stream *stream, hotbed_event *event);

/* Return in *done whether the work before the event's latest record is done; true if the event
 * was never recorded. Never waits.
 * Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_event_query(hotbed_event *event, bool *done);

/* Wait for the work before the event's latest record. Synchronous; counts as one host wait.
 * Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_event_sync(hotbed_event *event);

/* Return the seconds between two recorded events that have been passed. Never waits.
 * Errors: ARGUMENT (NULL; events of two backends or devices), STATE (an event was not recorded, or
 * is not passed yet), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds);

/* --- memory --------------------------------------------------------------------------------- */

typedef enum hotbed_memory_kind {
    HOTBED_MEMORY_DEVICE = 1,   /* HBM; ordinary memory on the host backend */
    HOTBED_MEMORY_PINNED = 2,   /* host memory that the GPU reads and writes at the same address */
    HOTBED_MEMORY_PAGEABLE = 3, /* host memory whose pages are allocated when they are first used */
    /* host memory mapped from an unnamed file, for more than DRAM holds */
    HOTBED_MEMORY_FILE = 4,
} hotbed_memory_kind;

/* One allocation. Plain data; `data` is 256-byte aligned. Frozen: the struct has no `size`. */
typedef struct hotbed_memory {
    void *data;
    size_t bytes;
    hotbed_memory_kind kind;
    hotbed_backend backend;
    int device;
} hotbed_memory;

/* Allocate `bytes` of memory for the backend and device of `stream`. The contents are undefined
 * (FILE: zero). 0 bytes are allowed and give data = NULL. Synchronous. The caller owns the memory
 * and frees it with hotbed_memory_free().
 *
 *   directory  in  FILE: directory of the file; NULL is the environment's TMPDIR, else /tmp.
 *                  Ignored for other kinds
 *
 * Errors: ARGUMENT (unknown kind), MEMORY (with the requested bytes), IO (FILE: the file cannot be
 * created, or is too large for the disk), STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_memory_alloc(
    hotbed_stream *stream, hotbed_memory_kind kind, size_t bytes, const char *directory,
    hotbed_memory *out);

/* Free the memory and zero *memory. All work that uses it must be done. NULL and {0} are allowed. */
HOTBED_API void hotbed_memory_free(hotbed_memory *memory);

/* A caller's allocator of device memory, so that one pool owns all memory of a GPU: PyTorch's
 * caching allocator, for example. The functions may be called by any thread that calls Hotbed, and
 * must not call Hotbed. */
typedef struct hotbed_allocator {
    uint32_t size; /* sizeof(hotbed_allocator) */
    /* Return `bytes` (above 0) of memory on GPU number `device`, 256-byte aligned, for work on
     * `native`, a cudaStream_t (NULL on the host backend). Return NULL if no memory is left.
     * Required. */
    void *(*allocate)(void *self, int device, size_t bytes, void *native);
    /* Free memory; all work that uses it is done. Required. */
    void (*release)(void *self, int device, void *data, size_t bytes);
    void *self;
} hotbed_allocator;

/* Take all later DEVICE memory of a backend from `allocator`, which is copied; NULL: from the
 * library's own allocator again. Synchronous. Call it before the first stream, storage or
 * communicator is created, since memory must go back to the allocator that it came from.
 * Errors: ARGUMENT (backend, size, a function that is NULL), STATE (DEVICE memory of the backend is
 * allocated; the text has the number of allocations), UNSUPPORTED (the backend is not in this
 * build). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_memory_set_allocator(hotbed_backend backend, const hotbed_allocator *allocator);

/* Copy `bytes` between any two memories of the stream's machine. Asynchronous if all host memory
 * involved is pinned; with other host memory on CUDA the call may wait, and then counts a host
 * wait.
 * Errors: ARGUMENT (NULL with bytes above 0), DEVICE, STATE (it would wait, but the stream records
 * a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_copy(void *to, const void *from, size_t bytes, hotbed_stream *stream);

/* Set `bytes` bytes to `value`. Asynchronous.
 * Errors: as hotbed_copy(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_fill(void *to, int value, size_t bytes, hotbed_stream *stream);

/* --- graphs --------------------------------------------------------------------------------- */

/* Record asynchronous calls: between begin and end, asynchronous calls on `stream` are recorded
 * instead of run, and calls that wait or allocate fail with STATE. On CUDA this is stream capture;
 * the host backend keeps a list. The caller owns *out.
 *
 * A graph keeps the pointers and counts that it was recorded with; the contents of the memory may
 * change from launch to launch. Launch it on the stream that recorded it. If the recording contains
 * hotbed_event_record() or hotbed_stream_wait(), each launch records the event again, or waits for
 * the event's record at that time.
 * Errors: ARGUMENT, STATE (already recording; end without begin), MEMORY (recorded calls need host
 * memory, so they can fail with MEMORY too), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_graph_begin(hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_graph_end(hotbed_stream *stream, hotbed_graph **out);

/* Run the recorded work once more, in stream order. Asynchronous.
 * Errors: ARGUMENT (NULL; another stream), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_graph_launch(hotbed_graph *graph, hotbed_stream *stream);
/* Free a graph. Its launches must be done. NULL is allowed. */
HOTBED_API void hotbed_graph_destroy(hotbed_graph *graph);

/* --- counters ------------------------------------------------------------------------------- */

/* Counts since the process started, of all threads. */
typedef struct hotbed_counters {
    uint32_t size; /* set by the caller: sizeof(hotbed_counters) */
    /* times a thread waited for a stream or an event; hotbed_pipeline_stats.set_waits is apart */
    uint64_t host_waits;
    /* allocations of memory of any kind, the library's own structs included */
    uint64_t allocations;
    uint64_t allocated_bytes; /* bytes of those allocations */
    uint64_t launches;        /* kernels, host tasks and graphs enqueued */
    uint64_t copies;          /* hotbed_copy() calls, the library's own included */
    uint64_t copied_bytes;
    /* bytes of hotbed_memory_alloc(), by kind: a part of allocated_bytes; [0] is 0 */
    uint64_t memory_bytes[HOTBED_MEMORY_FILE + 1];
} hotbed_counters;

/* Read the counters. The difference of two reads shows what happened between them.
 * Errors: ARGUMENT (NULL, size). */
HOTBED_API hotbed_status hotbed_counters_read(hotbed_counters *out);

HOTBED_END_DECLS
#endif
