/* base/backend.h - the operations of a backend, and the object fields that stream.c shares with the
 * backends.
 *
 * stream.c checks arguments, counts and dispatches; host_stream.c and cuda_stream.cu do the work.
 * stream.c calls an operation with checked arguments, sizes above 0, and objects of the same
 * backend. */
#pragma once

#include "base/error.h"
#include "base/fault_text.h"
#include "base/stream.h"

HOTBED_BEGIN_DECLS

/* A stream to create. The requirements of both backends have been checked. */
typedef struct hotbed_stream_spec {
    int device;
    hotbed_priority priority;
    bool run_inline;
    bool wrap; /* use `native` instead of a new stream */
    void *native;
} hotbed_stream_spec;

typedef struct hotbed_backend_ops {
    hotbed_status (*probe)(void);
    /* *out is the backend's own struct, which starts with a hotbed_stream. The operation sets
     * `fault`, stream.c sets the other fields. */
    hotbed_status (*stream_create)(const hotbed_stream_spec *spec, hotbed_stream **out);
    void (*stream_destroy)(hotbed_stream *stream); /* the stream's work is done */
    void *(*stream_native)(const hotbed_stream *stream);
    /* Report a capture of the stream that hotbed_graph_begin() did not start. */
    bool (*stream_captured)(const hotbed_stream *stream);
    hotbed_status (*stream_sync)(hotbed_stream *stream);
    hotbed_status (*stream_call)(
        hotbed_stream *stream, void (*function)(void *argument), void *argument);

    /* NULL if the backend has no branches. */
    /* `which`: 0 for the branch, 1 for the stream beside */
    hotbed_status (*stream_branch)(hotbed_stream *stream, int which, hotbed_stream **branch);
    hotbed_status (*stream_join)(hotbed_stream *stream, int which);
    hotbed_status (*stream_follow)(hotbed_stream *stream, hotbed_stream *branch);

    hotbed_status (*event_create)(hotbed_stream *stream, hotbed_event **out);
    void (*event_destroy)(hotbed_event *event);
    hotbed_status (*event_record)(hotbed_event *event, hotbed_stream *stream);
    hotbed_status (*stream_wait)(hotbed_stream *stream, hotbed_event *event);
    /* *recorded: whether the event was ever recorded; if not, *done is true. */
    hotbed_status (*event_query)(hotbed_event *event, bool *recorded, bool *done);
    hotbed_status (*event_sync)(hotbed_event *event);
    /* The caller has checked that both events are recorded and have passed. */
    hotbed_status (*event_seconds)(hotbed_event *start, hotbed_event *stop, double *seconds);

    /* DEVICE and PINNED memory only: pageable memory and files are the same on every backend. */
    hotbed_status (*memory_alloc)(int device, hotbed_memory_kind kind, size_t bytes, void **out);
    void (*memory_free)(int device, hotbed_memory_kind kind, void *data, size_t bytes);
    hotbed_status (*copy)(void *to, const void *from, size_t bytes, hotbed_stream *stream);
    hotbed_status (*fill)(void *to, int value, size_t bytes, hotbed_stream *stream);

    hotbed_status (*graph_begin)(hotbed_stream *stream);
    /* End the recording, whatever the call returns. If `out` is NULL, discard what was recorded. */
    hotbed_status (*graph_end)(hotbed_stream *stream, hotbed_graph **out);
    hotbed_status (*graph_launch)(hotbed_graph *graph, hotbed_stream *stream);
    void (*graph_destroy)(hotbed_graph *graph);
} hotbed_backend_ops;

extern const hotbed_backend_ops hotbed_host_ops;
#if defined(HOTBED_WITH_CUDA)
extern const hotbed_backend_ops hotbed_cuda_ops;
#endif

/* Blocks that a workspace has outgrown are kept here. Each is at least twice as large as the one
 * before. */
enum { HOTBED_RETIRED_MAX = 64 };

typedef struct hotbed_workspace {
    hotbed_memory memory;
    hotbed_memory retired[HOTBED_RETIRED_MAX];
    uint32_t num_retired;
} hotbed_workspace;

struct hotbed_stream {
    const hotbed_backend_ops *ops;
    hotbed_backend backend;
    int device;
    uint64_t number; /* of the stream in this process; 0: a branch, or cudaStreamPerThread */
    hotbed_priority priority;
    bool recording;
    uint64_t recording_number;
    bool run_inline;
    hotbed_stream
        *parent; /* of a branch, and of a stream beside; it has their fault and its sources */
    hotbed_fault *fault;
    hotbed_fault_sources sources; /* of `fault` */
    hotbed_workspace device_workspace, pinned_workspace;
};

struct hotbed_event {
    const hotbed_backend_ops *ops;
    int device;
    /* Atomic: the number of the stream that recorded the event last; 0 if it is not known, because the event
     * is in a recording, whose launches record it. */
    uint64_t recorder;
    bool in_graph; /* atomic */
};

struct hotbed_graph {
    const hotbed_backend_ops *ops;
    const hotbed_stream *stream; /* where it was recorded; compared, never dereferenced */
};

/* Allocate pageable memory, or DEVICE or PINNED memory of the host backend. NULL: out of memory.
 * The allocation is not counted. */
void *hotbed_host_alloc(size_t bytes);
void hotbed_host_free(void *data, size_t bytes); /* NULL is allowed */

/* Let memory of hotbed_host_alloc() have small pages until it is used densely. Call it before the
 * first access. hotbed_host_look_at_pages(), which threads of host streams call after each task,
 * gives dense memory huge pages. */
void hotbed_host_start_small(void *data, size_t bytes);
void hotbed_host_look_at_pages(void);

/* Map `bytes` of an unnamed file in `directory`. The disk blocks are allocated now, so that a full
 * disk is an error of this call and not a signal at the first access. Errors: IO, MEMORY (no
 * address space). */
hotbed_status hotbed_file_alloc(const char *directory, size_t bytes, void **out);
void hotbed_file_free(void *data, size_t bytes);

void hotbed_count_wait(void);
void hotbed_count_launch(void);
void hotbed_count_allocation(size_t bytes);
void hotbed_count_memory(hotbed_memory_kind kind, size_t bytes); /* an allocation of this kind */
void hotbed_count_copy(size_t bytes);

HOTBED_END_DECLS
