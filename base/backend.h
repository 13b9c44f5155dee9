/* base/backend.h - what a backend does for stream.c, and the parts of the objects that both share.
 *
 * stream.c checks arguments, counts and dispatches; host_stream.c and cuda_stream.cu do the work.  An
 * operation is called with checked arguments, sizes above 0, and objects of its own backend.
 */
#ifndef HOTBED_BASE_BACKEND_H
#define HOTBED_BASE_BACKEND_H

#include "base/error.h"
#include "base/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_backend_ops {
    hotbed_status (*probe)(void);
    /* *out is the backend's own struct, which starts with a hotbed_stream; the operation sets its
     * fault, stream.c the other fields.  `wrap`: use `native` instead of a new stream. */
    hotbed_status (*stream_create)(
        int device, hotbed_priority priority, bool wrap, void *native, hotbed_stream **out);
    void (*stream_destroy)(hotbed_stream *stream); /* its work is done */
    void *(*stream_native)(const hotbed_stream *stream);
    hotbed_status (*stream_sync)(hotbed_stream *stream);
    hotbed_status (*stream_call)(
        hotbed_stream *stream, void (*function)(void *argument), void *argument);

    hotbed_status (*event_create)(hotbed_stream *stream, hotbed_event **out);
    void (*event_destroy)(hotbed_event *event);
    hotbed_status (*event_record)(hotbed_event *event, hotbed_stream *stream);
    hotbed_status (*stream_wait)(hotbed_stream *stream, hotbed_event *event);
    /* *recorded: whether it ever was; *done is true for one that was not. */
    hotbed_status (*event_query)(hotbed_event *event, bool *recorded, bool *done);
    hotbed_status (*event_sync)(hotbed_event *event);
    /* Both are recorded and done. */
    hotbed_status (*event_seconds)(hotbed_event *start, hotbed_event *stop, double *seconds);

    /* DEVICE and PINNED; what is pageable or a file is the same on every backend. */
    hotbed_status (*memory_alloc)(int device, hotbed_memory_kind kind, size_t bytes, void **out);
    void (*memory_free)(int device, hotbed_memory_kind kind, void *data);
    hotbed_status (*copy)(void *to, const void *from, size_t bytes, hotbed_stream *stream);
    hotbed_status (*fill)(void *to, int value, size_t bytes, hotbed_stream *stream);

    hotbed_status (*graph_begin)(hotbed_stream *stream);
    /* Ends the recording whatever it returns; `out` NULL drops what was recorded. */
    hotbed_status (*graph_end)(hotbed_stream *stream, hotbed_graph **out);
    hotbed_status (*graph_launch)(hotbed_graph *graph, hotbed_stream *stream);
    void (*graph_destroy)(hotbed_graph *graph);
} hotbed_backend_ops;

extern const hotbed_backend_ops hotbed_host_ops;
#if defined(HOTBED_WITH_CUDA)
extern const hotbed_backend_ops hotbed_cuda_ops;
#endif

/* A workspace that was outgrown is kept here; each is at least twice as large as the one before. */
enum { HOTBED_RETIRED_MAX = 64 };

struct hotbed_stream {
    const hotbed_backend_ops *ops;
    hotbed_backend backend;
    int device;
    hotbed_priority priority;
    bool recording;
    hotbed_fault *fault;
    hotbed_memory workspace;
    hotbed_memory retired[HOTBED_RETIRED_MAX];
    uint32_t num_retired;
};

struct hotbed_event {
    const hotbed_backend_ops *ops;
    int device;
};

struct hotbed_graph {
    const hotbed_backend_ops *ops;
    const hotbed_stream *stream; /* where it was recorded; compared, not followed */
};

/* Pageable memory, and the host backend's DEVICE and PINNED; NULL when there is none.  Not counted. */
void *hotbed_host_alloc(size_t bytes);
void hotbed_host_free(void *data); /* NULL is allowed */

/* `bytes` of an unnamed file in `directory`, mapped.  The disk blocks are taken now, so that a full
 * disk is an error here and not a signal at the first touch.  Errors: IO, MEMORY (no address space). */
hotbed_status hotbed_file_alloc(const char *directory, size_t bytes, void **out);
void hotbed_file_free(void *data, size_t bytes);

void hotbed_count_wait(void);
void hotbed_count_launch(void);
void hotbed_count_allocation(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
