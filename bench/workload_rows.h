/* bench/workload_rows.h - rows of a storage, and the output of a run, in host memory. */
#ifndef HOTBED_BENCH_WORKLOAD_ROWS_H
#define HOTBED_BENCH_WORKLOAD_ROWS_H

#include "bench/workload.h"

/* Device buffers for rows of one table. */
typedef struct workload_row_buffers {
    hotbed_memory keys, weights, states[2];
} workload_row_buffers;

hotbed_status workload_rows_alloc(
    uint64_t n, uint32_t dim, uint32_t states, hotbed_stream *stream, workload_row_buffers *out);
void workload_rows_free(workload_row_buffers *b);

/* Rows of n keys of a table into host arrays; states may be NULL. */
hotbed_status workload_rows_read(
    hotbed_storage *storage, uint32_t table, uint64_t n, const uint64_t *keys, uint32_t dim,
    workload_row_buffers *b, float *weights, float *const *states, hotbed_stream *stream);

/* The output of a run; the caller frees it. */
hotbed_status workload_read_output(workload_run *run, float **out);

#endif
