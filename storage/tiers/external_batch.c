/* storage/tiers/external_batch.c - calls of an external store for one batch over all tables, in stream
 * order. */
#include "storage/tiers/external_batch.h"

#include "base/carve.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "storage/external/external.h"
#include "storage/step/row_layout.h"

#include <string.h>

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns the size. */
static size_t carve_batch(hotbed_external_batch *batch, void *base) {
    const size_t tables = batch->num_tables, keys = batch->capacity;
    hotbed_store_view *view = &batch->view;
    hotbed_carve carve = {base, 0};
    view->starts = hotbed_carve_take(&carve, tables * sizeof *view->starts);
    view->counts = hotbed_carve_take(&carve, tables * sizeof *view->counts);
    view->status = hotbed_carve_take(&carve, tables * sizeof *view->status);
    view->keys = hotbed_carve_take(&carve, keys * sizeof *view->keys);
    view->scores = hotbed_carve_take(&carve, keys * sizeof *view->scores);
    view->epochs =
        batch->changes == NULL ? NULL : hotbed_carve_take(&carve, keys * sizeof *view->epochs);
    view->found = hotbed_carve_take(&carve, keys);
    view->rows = hotbed_carve_take(&carve, keys * view->stride);
    return carve.used;
}

static hotbed_status describe(
    hotbed_external_batch *batch, hotbed_external *external, hotbed_stored_changes *changes,
    uint64_t capacity) {
    batch->external = external;
    batch->changes = changes;
    batch->capacity = capacity;
    batch->num_tables = hotbed_external_num_tables(external);
    for (uint32_t t = 0; t < batch->num_tables; t++) {
        hotbed_external_table table;
        HOTBED_TRY(hotbed_external_table_read(external, t, &table));
        /* so that every table's rows are aligned */
        uint64_t stride = hotbed_round_up(table.row_bytes, 16);
        if (stride > batch->view.stride)
            batch->view.stride = stride;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_external_batch_create(
    hotbed_external_batch *batch, hotbed_external *external, hotbed_stored_changes *changes,
    uint64_t capacity, hotbed_stream *stream) {
    HOTBED_TRY(describe(batch, external, changes, capacity));
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, carve_batch(batch, NULL), NULL, &batch->memory));
    memset(batch->memory.data, 0, batch->memory.bytes);
    (void)carve_batch(batch, batch->memory.data);
    return HOTBED_OK;
}

hotbed_status hotbed_external_batch_borrow(
    hotbed_external_batch *batch, hotbed_external *external, hotbed_stored_changes *changes,
    uint64_t capacity, hotbed_stream *stream) {
    void *memory;
    HOTBED_TRY(describe(batch, external, changes, capacity));
    HOTBED_TRY(hotbed_stream_pinned_workspace(stream, carve_batch(batch, NULL), &memory));
    (void)carve_batch(batch, memory);
    return HOTBED_OK;
}

void hotbed_external_batch_destroy(hotbed_external_batch *batch) {
    hotbed_memory_free(&batch->memory);
}

/* --- callbacks, on a thread of the stream or of the caller ------------------------------------ */

typedef hotbed_status (*call_function)(
    const hotbed_external_batch *batch, const hotbed_store_view *v, uint32_t t, uint64_t at,
    uint64_t n);

static hotbed_status call_find(
    const hotbed_external_batch *batch, const hotbed_store_view *v, uint32_t t, uint64_t at,
    uint64_t n) {
    return hotbed_external_find(
        batch->external, t, n, v->keys + at, v->found + at, v->rows + at * v->stride,
        v->scores + at);
}

static hotbed_status call_insert(
    const hotbed_external_batch *batch, const hotbed_store_view *v, uint32_t t, uint64_t at,
    uint64_t n) {
    if (v->status[t] != HOTBED_OK)
        return (hotbed_status)v->status[t];
    /* before the insert: after a failed one, the store may have the rows */
    if (batch->changes != NULL)
        hotbed_stored_changes_put(batch->changes, t, n, v->keys + at, v->epochs + at);
    return hotbed_external_insert(
        batch->external, t, n, v->keys + at, v->rows + at * v->stride, v->scores + at);
}

static hotbed_status call_erase(
    const hotbed_external_batch *batch, const hotbed_store_view *v, uint32_t t, uint64_t at,
    uint64_t n) {
    return hotbed_external_erase(batch->external, t, n, v->keys + at, v->found + at);
}

static void run(const hotbed_external_batch *batch, call_function call) {
    const hotbed_store_view *v = &batch->view;
    uint64_t start = hotbed_monotonic_now();
    bool waited = false;
    for (uint32_t t = 0; t < batch->num_tables; t++) {
        hotbed_status status = HOTBED_OK;
        if (v->counts[t] > 0) {
            status = call(batch, v, t, v->starts[t], v->counts[t]);
            waited = true;
        }
        v->status[t] = (uint32_t)status;
    }
    if (waited)
        hotbed_external_count_stream_wait(batch->external, hotbed_monotonic_now() - start);
}

static void run_find(void *argument) {
    run(argument, call_find);
}

static void run_insert(void *argument) {
    run(argument, call_insert);
}

static void run_erase(void *argument) {
    run(argument, call_erase);
}

hotbed_status hotbed_external_batch_find(hotbed_external_batch *batch, hotbed_stream *stream) {
    return hotbed_external_enqueue(batch->external, stream, run_find, batch);
}

hotbed_status hotbed_external_batch_insert(hotbed_external_batch *batch, hotbed_stream *stream) {
    return hotbed_external_enqueue(batch->external, stream, run_insert, batch);
}

hotbed_status hotbed_external_batch_erase(hotbed_external_batch *batch, hotbed_stream *stream) {
    return hotbed_external_enqueue(batch->external, stream, run_erase, batch);
}
