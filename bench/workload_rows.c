/* bench/workload_rows.c - see workload_rows.h. */
#include "bench/workload_rows.h"

#include "base/error.h"

#include <stdlib.h>

void workload_rows_free(workload_row_buffers *b) {
    hotbed_memory_free(&b->keys);
    hotbed_memory_free(&b->weights);
    hotbed_memory_free(&b->states[0]);
    hotbed_memory_free(&b->states[1]);
}

hotbed_status workload_rows_alloc(
    uint64_t n, uint32_t dim, uint32_t states, hotbed_stream *stream, workload_row_buffers *out) {
    size_t bytes = n * dim * sizeof(float);
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    *out = (workload_row_buffers){{0}, {0}, {{0}, {0}}};
    hotbed_status status =
        hotbed_memory_alloc(stream, device, n * sizeof(uint64_t), NULL, &out->keys);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(stream, device, bytes, NULL, &out->weights);
    for (uint32_t s = 0; s < states && status == HOTBED_OK; s++)
        status = hotbed_memory_alloc(stream, device, bytes, NULL, &out->states[s]);
    if (status != HOTBED_OK)
        workload_rows_free(out);
    return status;
}

hotbed_status workload_rows_read(
    hotbed_storage *storage, uint32_t table, uint64_t n, const uint64_t *keys, uint32_t dim,
    workload_row_buffers *b, float *weights, float *const *states, hotbed_stream *stream) {
    hotbed_rows rows = {.weights = b->weights.data};
    size_t bytes = n * dim * sizeof(float);
    for (uint32_t s = 0; s < 2; s++)
        rows.states[s] = b->states[s].data;
    HOTBED_TRY(hotbed_copy(b->keys.data, keys, n * sizeof *keys, stream));
    HOTBED_TRY(hotbed_fill(b->weights.data, 0xff, bytes, stream));
    HOTBED_TRY(hotbed_storage_get_rows(storage, table, n, b->keys.data, &rows, NULL, stream));
    HOTBED_TRY(hotbed_copy(weights, b->weights.data, bytes, stream));
    for (uint32_t s = 0; s < 2 && rows.states[s]; s++)
        HOTBED_TRY(hotbed_copy(states[s], rows.states[s], bytes, stream));
    return hotbed_stream_sync(stream);
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
