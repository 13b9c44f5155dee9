/* bench/model.h - a stand-in of a dense model, for what runs beside one: layers of short kernels that leave room beside them. */
#ifndef HOTBED_BENCH_MODEL_H
#define HOTBED_BENCH_MODEL_H

#include "hotbed/stream.h"

/* A layer takes 0.1 to 0.2 ms on an H200, of whose blocks it fills a half; on the host a millisecond of a core.  On a GPU
 * layers are of 16 sizes: if all had the same number of blocks, how many SMs something beside them can take before
 * each layer takes a quarter longer would be an accident of that number. */
typedef struct bench_model {
    hotbed_memory memory;
    uint32_t rows, step, width; /* of layer i: rows - i * 5 % 16 * step */
    const float *in, *weights;  /* [rows, width], [width, width] */
    float *between[2];          /* [rows, width] */
} bench_model;

hotbed_status bench_model_open(bench_model *model, hotbed_stream *stream); /* synchronous */
void bench_model_close(bench_model *model);                                /* zeroed is allowed */

/* n layers, from the same numbers each time.  Async. */
hotbed_status bench_model_run(const bench_model *model, uint32_t n, hotbed_stream *stream);

/* How many layers take about `wanted` seconds, at least one, and what they take.  Synchronous. */
hotbed_status bench_model_size(
    const bench_model *model, double wanted, uint32_t *layers, double *seconds,
    hotbed_stream *stream);

#endif
