/* tests/base/cases.h - what the tests of base/ share.
 *
 * run_case() of case_core.h over arrays, on either backend; device arrays; gates, which block a stream.
 */
#pragma once

#include "base/stream.h"
#include "tests/base/case_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue the case for items [0, n). `in` and `out` are device memory. */
hotbed_status cases_launch(
    case_kind kind, uint64_t n, const void *in, void *out, hotbed_stream *stream);
hotbed_status cases_launch_cuda(
    case_kind kind, uint64_t n, const void *in, void *out, hotbed_stream *stream);

/* Copy `in` to the device, run the case for items [0, n), copy the results to `out`. Synchronous. */
void cases_run(
    hotbed_stream *stream, case_kind kind, uint64_t n, const void *in, size_t in_bytes, void *out,
    size_t out_bytes);

void cases_add_one(void *counter); /* for hotbed_stream_call(): increments an int */
hotbed_event *cases_event(hotbed_stream *stream);
bool cases_is_done(hotbed_event *event);

/* Allocate device memory. If `data` is not NULL, fill the memory with a copy of it. Synchronous. */
hotbed_memory cases_device(hotbed_stream *stream, size_t bytes, const void *data);

/* Copy device memory to the host. Synchronous. */
void cases_download(hotbed_stream *stream, void *to, const void *from, size_t bytes);

/* A gate blocks a stream: hotbed_stream_call(stream, gate_wait, gate) returns after gate_open(). */
typedef struct gate gate;
gate *gate_create(void);
void gate_wait(void *held);
void gate_open(gate *g);
void gate_destroy(gate *g);

#ifdef __cplusplus
}
#endif
