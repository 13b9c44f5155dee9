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

/* Move n rows of `bytes` bytes, 512 or 1536: to dense[i * bytes] from table[numbers[i] * bytes], or with
 * `scatter` the other way.  numbers is device memory; table and dense are what kernels reach.  Async. */
typedef struct bench_move {
    uint64_t n;
    const uint32_t *numbers; /* [n] */
    uint32_t bytes;
    bool scatter;
    void *table, *dense;
} bench_move;

hotbed_status bench_move_rows(const bench_move *move, hotbed_stream *stream);

/* One layer of a dense model, out = max(in weights, 0), f32: a short kernel of tiles that leaves room beside it, as
 * the layers of real models do.  rows and width are multiples of 64; [rows, width], [width, width].  Async. */
typedef struct bench_layer {
    uint32_t rows, width;
    const float *in, *weights;
    float *out;
} bench_layer;

hotbed_status bench_run_layer(const bench_layer *layer, hotbed_stream *stream);

/* Name of the stream's device, and version of its driver; "" on the host backend. */
hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);

/* The two backends of these; the ones above choose. */
hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_move_rows_host(const bench_move *move, hotbed_stream *stream);
#if defined(HOTBED_WITH_CUDA)
hotbed_status bench_move_rows_cuda(const bench_move *move, hotbed_stream *stream);
hotbed_status bench_run_layer_cuda(const bench_layer *layer, hotbed_stream *stream);
hotbed_status bench_gather_cuda(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_device_cuda(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);
#endif

#ifdef __cplusplus
}
#endif
#endif
