/* bench/model.h - a stand-in for a dense model: layers of short kernels that leave space for other
 * work. */
#pragma once

#include "hotbed/stream.h"

/* A layer takes 0.1 to 0.2 ms on an H200, half of whose blocks it fills; on the host it takes a
 * millisecond of one core. On a GPU, layers have 16 different sizes. If all had the same number of
 * blocks, the number of SMs that other work can take before each layer takes a quarter longer would
 * depend on that number by accident. */
typedef struct bench_model {
    hotbed_memory memory;
    uint32_t rows, step, width; /* layer i has rows - i * 5 % 16 * step rows */
    const float *in, *weights;  /* [rows, width], [width, width] */
    float *between[2];          /* [rows, width] */
} bench_model;

hotbed_status bench_model_open(bench_model *model, hotbed_stream *stream); /* synchronous */
void bench_model_close(bench_model *model); /* a zeroed model is allowed */

/* Run n layers, with the same input each time. Asynchronous. */
hotbed_status bench_model_run(const bench_model *model, uint32_t n, hotbed_stream *stream);

/* Find how many layers take about `wanted` seconds, at least one, and how long they take.
 * Synchronous. */
hotbed_status bench_model_size(
    const bench_model *model, double wanted, uint32_t *layers, double *seconds,
    hotbed_stream *stream);
