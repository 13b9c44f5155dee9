/* bench/limits.h - limits: the simplest code that moves the same bytes, with which results are compared. */
#pragma once

#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* Copy n rows of `bytes` bytes (a power of two, at least 16), rows[i] to output[i * bytes]. Asynchronous. */
hotbed_status bench_gather(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);

/* Move n rows of `bytes` bytes (512 or 1536) from table[numbers[i] * bytes] to dense[i * bytes], or
 * with `scatter` in the other direction. numbers is in device memory; kernels can address table and
 * dense. Asynchronous. */
typedef struct bench_move {
    uint64_t n;
    const uint32_t *numbers; /* [n] */
    uint32_t bytes;
    bool scatter;
    void *table, *dense;
} bench_move;

hotbed_status bench_move_rows(const bench_move *move, hotbed_stream *stream);

/* Sum the rows of each bag, of 128 elements, into output rows of 128 floats. Bag b has the rows
 * rows[offsets[b]] up to rows[offsets[b + 1]]; its output is row b % samples of table b / samples.
 * Asynchronous. */
typedef struct bench_pool {
    uint64_t bags;
    const int64_t *offsets;
    const void *const *rows;
    uint32_t samples, tables;
    bool half; /* rows of f16 */
    float *output;
} bench_pool;

hotbed_status bench_run_pool(const bench_pool *pool, hotbed_stream *stream);

/* Read n random lines of 128 bytes as a lookup in an index does: out[i] is a mix of the words of line lines[i] of the
 * table.  All arrays are in device memory.  Asynchronous. */
typedef struct bench_probe {
    uint64_t n;
    const uint32_t *lines; /* [n] */
    const void *table;
    uint64_t *out; /* [n] */
} bench_probe;

hotbed_status bench_probe_lines(const bench_probe *probe, hotbed_stream *stream);

/* Compute one layer of a dense model, out = max(in weights, 0) in f32. The kernel is short and
 * tiled, and leaves SMs for other work, as the layers of real models do. rows and width are
 * multiples of 64; in is [rows, width], weights [width, width]. Asynchronous. */
typedef struct bench_layer {
    uint32_t rows, width;
    const float *in, *weights;
    float *out;
} bench_layer;

hotbed_status bench_run_layer(const bench_layer *layer, hotbed_stream *stream);

/* The name of the stream's device, and the version of its driver; "" on the host backend. */
hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);

/* Return the median of n numbers, which it sorts. */
double bench_median(double *values, uint32_t n);

/* The implementations of each backend; the functions above select one. */
hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_move_rows_host(const bench_move *move, hotbed_stream *stream);
#if defined(HOTBED_WITH_CUDA)
hotbed_status bench_move_rows_cuda(const bench_move *move, hotbed_stream *stream);
hotbed_status bench_probe_lines_cuda(const bench_probe *probe, hotbed_stream *stream);
hotbed_status bench_run_pool_cuda(const bench_pool *pool, hotbed_stream *stream);
hotbed_status bench_run_layer_cuda(const bench_layer *layer, hotbed_stream *stream);
hotbed_status bench_gather_cuda(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_device_cuda(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);
#endif

HOTBED_END_DECLS
