/* bench/workload_rows.h - read rows of a storage, and the output of a run, into host memory. */
#pragma once

#include "bench/workload.h"

/* The layout of a row of a workload. */
typedef struct workload_row_form {
    uint32_t dim, states, state_dim[2];
    size_t state_bytes[2];
    hotbed_dtype dtype, state_dtype;
} workload_row_form;

workload_row_form workload_form_of(const workload *what, const workload_shape *shape);

/* Buffers for rows of one table: in device memory, and in host memory for weights in the table's type. */
typedef struct workload_row_buffers {
    workload_row_form form;
    hotbed_memory keys, weights, states[2];
    void *packed;
} workload_row_buffers;

hotbed_status workload_rows_alloc(
    uint64_t n, workload_row_form form, hotbed_stream *stream, workload_row_buffers *out);
void workload_rows_free(workload_row_buffers *b);

/* Read the rows of n keys of a table into host arrays: weights [n, dim] as f32, and states [n,
 * state_bytes] each, as they are stored, which may be NULL. */
hotbed_status workload_rows_read(
    hotbed_storage *storage, uint32_t table, uint64_t n, const uint64_t *keys,
    workload_row_buffers *b, float *weights, void *const *states, hotbed_stream *stream);

/* Read the output of a run; the caller frees it. */
hotbed_status workload_read_output(workload_run *run, float **out);
