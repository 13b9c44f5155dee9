/* bench/workload_rows.c - rows of a storage, and the output of a run, in host memory; see workload_rows.h. */
#include "bench/workload_rows.h"

#include "base/error.h"
#include "storage/types.h"

#include <stdlib.h>

workload_row_form workload_form_of(const workload *what, const workload_shape *shape) {
    const hotbed_optimizer_kind kind = what->optimizer;
    workload_row_form form = {
        .dim = shape->dim,
        .states = hotbed_optimizer_states(kind),
        .dtype = what->dtype == 0 ? HOTBED_F32 : what->dtype,
        .state_dtype = hotbed_states_dtype(kind, what->state_dtype)};
    for (uint32_t s = 0; s < form.states; s++) {
        form.state_dim[s] = hotbed_optimizer_state_dim(kind, s, shape->dim);
        form.state_bytes[s] = hotbed_state_bytes(kind, s, what->state_dtype, shape->dim);
    }
    return form;
}

void workload_rows_free(workload_row_buffers *b) {
    hotbed_memory_free(&b->keys);
    hotbed_memory_free(&b->weights);
    hotbed_memory_free(&b->states[0]);
    hotbed_memory_free(&b->states[1]);
    free(b->packed);
    b->packed = NULL;
}

hotbed_status workload_rows_alloc(
    uint64_t n, workload_row_form form, hotbed_stream *stream, workload_row_buffers *out) {
    size_t bytes = n * hotbed_weights_bytes(form.dtype, form.dim);
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    *out = (workload_row_buffers){.form = form, .packed = malloc(bytes)};
    hotbed_status status = HOTBED_OK;
    if (!out->packed)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "rows: no memory for %zu bytes", bytes);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(stream, device, n * sizeof(uint64_t), NULL, &out->keys);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(stream, device, bytes, NULL, &out->weights);
    for (uint32_t s = 0; s < form.states && status == HOTBED_OK; s++)
        status =
            hotbed_memory_alloc(stream, device, n * form.state_bytes[s], NULL, &out->states[s]);
    if (status != HOTBED_OK)
        workload_rows_free(out);
    return status;
}

hotbed_status workload_rows_read(
    hotbed_storage *storage, uint32_t table, uint64_t n, const uint64_t *keys,
    workload_row_buffers *b, float *weights, void *const *states, hotbed_stream *stream) {
    const workload_row_form form = b->form;
    hotbed_rows rows = {.weights = b->weights.data};
    size_t bytes = n * hotbed_weights_bytes(form.dtype, form.dim);
    for (uint32_t s = 0; s < 2 && states; s++)
        rows.states[s] = b->states[s].data;
    HOTBED_TRY(hotbed_copy(b->keys.data, keys, n * sizeof *keys, stream));
    HOTBED_TRY(hotbed_fill(b->weights.data, 0xff, bytes, stream));
    HOTBED_TRY(hotbed_storage_get_rows(storage, table, n, b->keys.data, &rows, NULL, stream));
    HOTBED_TRY(hotbed_copy(b->packed, rows.weights, bytes, stream));
    for (uint32_t s = 0; s < 2 && rows.states[s]; s++)
        HOTBED_TRY(hotbed_copy(states[s], rows.states[s], n * form.state_bytes[s], stream));
    HOTBED_TRY(hotbed_stream_sync(stream));
    for (uint64_t i = 0; i < n; i++)
        hotbed_weights_read(
            form.dtype, form.dim,
            (const char *)b->packed + i * hotbed_weights_bytes(form.dtype, form.dim),
            weights + i * form.dim);
    return HOTBED_OK;
}

hotbed_status workload_read_output(workload_run *run, float **out) {
    *out = malloc(run->output.bytes);
    if (!*out)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "check: no memory for %zu bytes of output", run->output.bytes);
    hotbed_status status = hotbed_copy(*out, run->output.data, run->output.bytes, run->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(run->stream);
    if (status != HOTBED_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}
