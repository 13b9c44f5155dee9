/* base/stream.h - internals of streams: workspace, location of faults, counters. */
#pragma once

#include "base/fault.h"
#include "base/fault_text.h"
#include "base/port.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* The place where kernels on `stream` latch faults without a table. */
hotbed_fault *hotbed_stream_faults(hotbed_stream *stream);

/* The same, for work that is enqueued next and whose faults have numbers of tables. `names` are the
 * tables' names, NULL if they have none. */
hotbed_fault *hotbed_stream_table_faults(hotbed_stream *stream, hotbed_table_names *names);

/* Clear a latched fault, and make the error that hotbed_stream_sync() would report; false: no fault is
 * latched. `names`: of the tables. Keeps the thread's last error. Never blocks. One thread at a
 * time. */
bool hotbed_fault_take(hotbed_fault *fault, hotbed_table_names *names, hotbed_error *out);

/* Get at least `bytes` of device memory, 256-byte aligned, for the work that the caller enqueues on
 * `stream` next.
 *
 * The next call on the same stream returns the same memory again: stream order keeps the users
 * apart. The workspace grows by allocating. The memory that it outgrew is freed with the stream,
 * since graphs may refer to it.
 *
 * Errors: MEMORY; STATE (it would have to grow while a graph is recorded). */
hotbed_status hotbed_stream_workspace(hotbed_stream *stream, size_t bytes, void **out);

/* The same for pinned memory, which is zeroed when it is allocated. bytes 0: the existing memory,
 * perhaps NULL. */
hotbed_status hotbed_stream_pinned_workspace(hotbed_stream *stream, size_t bytes, void **out);

/* Wait for the stream's work, and leave a latched fault for the caller's own hotbed_stream_sync().
 * Errors: DEVICE; STATE (a graph is being recorded). */
hotbed_status hotbed_stream_finish(hotbed_stream *stream);

/* Wait for work that a failed call left enqueued. Returns `status`, the error of that call, and
 * keeps its text; faults of the work are dropped. */
hotbed_status hotbed_stream_settle(hotbed_stream *stream, hotbed_status status);

/* A latched fault that was taken from a stream, with the work that it may come from. */
typedef struct hotbed_held_fault {
    hotbed_fault fault; /* status 0: no fault was latched */
    hotbed_fault_sources sources;
} hotbed_held_fault;

/* Wait for the stream's work, and move its latched fault, if any, to *held. Between this call and
 * hotbed_stream_return_fault(), hotbed_stream_sync() returns only faults of work that is enqueued
 * in between. After an error, *held has no fault. Errors: as hotbed_stream_finish(). */
hotbed_status hotbed_stream_hold_fault(hotbed_stream *stream, hotbed_held_fault *held);

/* Wait for the stream's work, and latch the fault in *held again, in place of a later fault. Keeps
 * the thread's last error, unless the device fails. */
void hotbed_stream_return_fault(hotbed_stream *stream, hotbed_held_fault *held);

/* Whether memory from hotbed_memory_alloc() starts as zeros and uses no pages until it is accessed.
 * True for host memory, unless it is pinned for a GPU or comes from a caller's allocator. */
bool hotbed_memory_is_fresh_zero(const hotbed_memory *memory);

/* Let memory of hashed slots on the host backend have small pages until it is used densely. Call it
 * before the first access; it does nothing for other memory. */
void hotbed_memory_start_small(const hotbed_memory *memory);

/* Branches: work that runs beside the caller's next work on `stream`.
 *
 * hotbed_stream_branch() sets *branch to a stream whose next work follows all work that is enqueued
 * on `stream` now; a second call makes it follow the work enqueued since. Work that is enqueued on
 * `stream` after hotbed_stream_join() follows the branch. A graph that is being recorded contains
 * both. Callers join after errors too. Each stream has one branch, which is created on first use.
 * *branch is `stream` itself on the host backend, and if no branch can be created.
 *
 * A call may leave a branch open for a later call to join, if hotbed_stream_keeps_branches(). Then
 * hotbed_stream_sync() waits for it, and the beginning and the end of a recording join it.
 *
 * Errors: DEVICE. */
hotbed_status hotbed_stream_branch(hotbed_stream *stream, hotbed_stream **branch);
hotbed_status hotbed_stream_join(hotbed_stream *stream);

/* Work that is enqueued on `stream` from now on follows the work enqueued on `branch` so far, which
 * is a branch of it or of its branch; `branch` stays open. Errors: DEVICE. */
hotbed_status hotbed_stream_follow(hotbed_stream *stream, hotbed_stream *branch);

/* False while the caller itself captures the stream: branches must be joined before the call
 * returns, because the caller ends the capture. */
bool hotbed_stream_keeps_branches(const hotbed_stream *stream);

/* The same for a second stream, which has the default priority and a branch of its own: for work that
 * has branches, beside other work that has. It has no workspace. */
hotbed_status hotbed_stream_beside(hotbed_stream *stream, hotbed_stream **beside);
hotbed_status hotbed_stream_join_beside(hotbed_stream *stream);

/* Name of a memory kind for messages ("pinned"); NULL: there is no such kind. */
const char *hotbed_memory_name(hotbed_memory_kind kind);

/* True between hotbed_graph_begin() and hotbed_graph_end(), and while the caller itself captures a
 * wrapped stream. */
bool hotbed_stream_recording(const hotbed_stream *stream);

/* A number of the recording that hotbed_graph_begin() began, which no other recording of the process
 * has; 0: there is none. */
uint64_t hotbed_stream_recording_number(const hotbed_stream *stream);

/* For calls that wait for the stream. Errors: STATE if a graph is being recorded on it. */
hotbed_status hotbed_stream_may_wait(const hotbed_stream *stream);

/* The stream, which may be NULL, is of the object's backend and device; `object` is its noun: "the stream is of cuda
 * 1, the index of cuda 0". */
hotbed_status hotbed_check_stream(
    const hotbed_stream *stream, const char *object, hotbed_backend backend, int device);

/* Whether this process was forked from a process that had streams, sockets of a communicator or
 * external stores. The child has neither their threads, nor their sockets, nor CUDA's threads.
 * hotbed_fork_check() then returns STATE. Calls that would lock, wait or enqueue check first. Calls that
 * destroy objects leave everything to the system. */
bool hotbed_forked(void);
hotbed_status hotbed_fork_check(void);
void hotbed_fork_watch(void); /* called before the first thread is started */

/* Wait on the host for an event, without counting a host wait: for threads that would otherwise run
 * ahead of the device without bound. */
hotbed_status hotbed_event_await(hotbed_event *event);

/* Allocate one of the library's own structs, counted and zeroed. NULL: out of memory. */
void *hotbed_new(size_t bytes);
void hotbed_delete(void *pointer); /* NULL is allowed */

/* Make space for `more` elements after the n of an array, of `bytes` each. `array` points to the pointer
 * to the array: NULL, or from hotbed_new(). It moves if *capacity is too small. false: out of memory, and
 * nothing has changed. */
bool hotbed_reserve(void *array, uint64_t n, uint64_t more, uint64_t *capacity, size_t bytes);

/* The table of functions of a backend: for `name`, &name_cuda or &name_host. */
#if defined(HOTBED_WITH_CUDA)
#define HOTBED_OF_BACKEND(backend, name)                                                           \
    ((backend) == HOTBED_BACKEND_CUDA ? &name##_cuda : &name##_host)
#else
#define HOTBED_OF_BACKEND(backend, name) ((void)(backend), &name##_host)
#endif

HOTBED_END_DECLS
