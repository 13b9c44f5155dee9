/* base/stream.h - the inside of streams: workspace, where faults go, counters. */
#ifndef HOTBED_BASE_STREAM_H
#define HOTBED_BASE_STREAM_H

#include "base/fault.h"
#include "base/port.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where kernels on `stream` latch faults. */
hotbed_fault *hotbed_stream_faults(hotbed_stream *stream);

/* Clear a latched fault, in `text` as hotbed_stream_sync() would say it; "" when none is latched.  Does
 * not wait.  One thread at a time. */
void hotbed_fault_text(hotbed_fault *fault, char *text, size_t capacity);

/* At least `bytes` of device memory for work that the caller enqueues on `stream` next, 256-byte
 * aligned.  The next call on the same stream gives the same memory again: stream order keeps users
 * apart.  Grows by allocating; what it outgrew is freed with the stream, since graphs may hold it.
 * Errors: MEMORY; STATE (it would have to grow while a graph is recorded). */
hotbed_status hotbed_stream_workspace(hotbed_stream *stream, size_t bytes, void **out);

/* Wait for the stream's work, and leave a latched fault for the caller's own hotbed_stream_sync().
 * Errors: DEVICE; STATE (a graph is recorded). */
hotbed_status hotbed_stream_finish(hotbed_stream *stream);

/* "pinned", for texts; NULL: there is no such kind. */
const char *hotbed_memory_name(hotbed_memory_kind kind);

/* True between hotbed_graph_begin() and hotbed_graph_end(). */
bool hotbed_stream_recording(const hotbed_stream *stream);

/* Allocation of the library's own structs, counted, zeroed; NULL when there is none. */
void *hotbed_new(size_t bytes);
void hotbed_delete(void *pointer); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
