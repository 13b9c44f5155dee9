/* bench/limits.h - the simplest code that moves the same bytes: the limit with which results are
 * compared. */
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

/* Sum the rows of each bag, of 128 elements, into output rows of 128 floats: bag b's are rows[offsets[b]] up to
 * rows[offsets[b + 1]], and its output belongs to table b / samples, row b % samples.  Asynchronous. */
typedef struct bench_pool {
    uint64_t bags;
    const int64_t *offsets;
    const void *const *rows;
    uint32_t samples, tables;
    bool half; /* rows of f16 */
    float *output;
} bench_pool;

hotbed_status bench_run_pool(const bench_pool *pool, hotbed_stream *stream);

/* Run one layer of a dense model, out = max(in weights, 0), f32: a short kernel of tiles that
 * leaves space for other work beside it, as the layers of real models do. rows and width are
 * multiples of 64; [rows, width], [width, width]. Asynchronous. */
typedef struct bench_layer {
    uint32_t rows, width;
    const float *in, *weights;
    float *out;
} bench_layer;

hotbed_status bench_run_layer(const bench_layer *layer, hotbed_stream *stream);

/* Name of the stream's device, and version of its driver; "" on the host backend. */
hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes);

/* The implementations of both backends; the functions above choose one. */
hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream);
hotbed_status bench_move_rows_host(const bench_move *move, hotbed_stream *stream);
#if defined(HOTBED_WITH_CUDA)
hotbed_status bench_move_rows_cuda(const bench_move *move, hotbed_stream *stream);
hotbed_status bench_run_pool_cuda(const bench_pool *pool, hotbed_stream *stream);
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
