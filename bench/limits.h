/* bench/limits.h - the simplest code that moves the same bytes: the limit that results stand beside. */
#ifndef HOTBED_BENCH_LIMITS_H
#define HOTBED_BENCH_LIMITS_H

#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copy n rows of `bytes` bytes (a power of two, 16 or more), rows[i] to output[i * bytes].  Async. */
hotbed_status bench_gather(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);

/* Name of the stream's device, and version of its driver; "" on the host backend. */
hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);

/* The two backends of these; the ones above choose. */
hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
#if defined(HOTBED_WITH_CUDA)
hotbed_status bench_gather_cuda(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_device_cuda(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);
#endif

#ifdef __cplusplus
}
#endif
#endif
