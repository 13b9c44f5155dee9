/* storage/tiers/external_request.c - hotbed_external_request: calls of an external store in stream order,
 * for one table. */
#include "storage/external/external.h"

#include "base/carve.h"
#include "base/error.h"
#include "base/monotonic.h"
#include "base/options.h"
#include "base/stream.h"
#include "storage/step/row_layout.h"

struct hotbed_external_request {
    hotbed_external *external;
    hotbed_stream *stream;
    hotbed_fault *faults;
    hotbed_memory memory; /* pinned; holds all arrays of the view */
    hotbed_external_request_view view;
};

typedef enum operation { FIND, INSERT, ERASE } operation;

/* --- callbacks, on a thread of the stream or of the caller ------------------------------------ */

static hotbed_status call_store(const hotbed_external_request *r, operation what, uint64_t n) {
    const hotbed_external_request_view *v = &r->view;
    switch (what) {
    case FIND:
        return hotbed_external_find(
            r->external, v->table, n, v->keys, v->found, v->rows, v->scores);
    case INSERT:
        return hotbed_external_insert(r->external, v->table, n, v->keys, v->rows, v->scores);
    case ERASE:
        return hotbed_external_erase(r->external, v->table, n, v->keys, v->found);
    }
    return HOTBED_OK;
}

static void run(const hotbed_external_request *r, operation what) {
    const hotbed_external_request_view *v = &r->view;
    uint64_t start = hotbed_monotonic_now(), n = *v->n;
    hotbed_status status;
    if (n > v->capacity) {
        memset(v->found, HOTBED_EXTERNAL_UNKNOWN, v->capacity);
        status = hotbed_external_failed(
            r->external, hotbed_fail(
                             HOTBED_ERR_RANGE, "%llu rows, but the request has a capacity of %llu",
                             (unsigned long long)n, (unsigned long long)v->capacity));
    } else {
        status = call_store(r, what, n);
    }
    hotbed_external_count_stream_wait(r->external, hotbed_monotonic_now() - start);
    *v->status = (uint32_t)status;
    if (status != HOTBED_OK)
        hotbed_fault_latch(
            r->faults, (uint32_t)status, HOTBED_CAUSE_EXTERNAL, v->table, n, v->capacity);
}

static void run_find(void *argument) {
    run(argument, FIND);
}

static void run_insert(void *argument) {
    run(argument, INSERT);
}

static void run_erase(void *argument) {
    run(argument, ERASE);
}

/* --- requests --------------------------------------------------------------------------------- */

/* Returns the size. */
static size_t carve_request(hotbed_external_request_view *view, void *base) {
    hotbed_carve carve = {base, 0};
    view->n = hotbed_carve_take(&carve, sizeof *view->n);
    view->status = hotbed_carve_take(&carve, sizeof *view->status);
    view->keys = hotbed_carve_take(&carve, view->capacity * sizeof *view->keys);
    view->rows = hotbed_carve_take(&carve, view->capacity * view->row_bytes);
    view->scores = hotbed_carve_take(&carve, view->capacity * sizeof *view->scores);
    view->found = hotbed_carve_take(&carve, view->capacity);
    return carve.used;
}

hotbed_status hotbed_external_request_create(
    hotbed_external *external, uint32_t table, uint64_t capacity, hotbed_stream *stream,
    hotbed_external_request **out) {
    if (out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "stream is NULL");
    hotbed_external_table of;
    HOTBED_TRY(hotbed_external_table_read(external, table, &of));
    if (capacity < 1 || capacity > HOTBED_EXTERNAL_BATCH_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "capacity", (double)capacity,
            hotbed_bound((double)capacity, 1, 0x1p30), "capacity %llu is not in [1, 2^30]",
            (unsigned long long)capacity);
    HOTBED_TRY(hotbed_external_reserve(external, capacity));
    hotbed_external_request *r = hotbed_new(sizeof *r);
    if (r == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a request");
    r->external = external;
    r->stream = stream;
    r->faults = hotbed_stream_faults(stream);
    r->view.table = table;
    r->view.capacity = capacity;
    r->view.row_bytes = of.row_bytes;
    hotbed_status status = hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, carve_request(&r->view, NULL), NULL, &r->memory);
    if (status != HOTBED_OK) {
        hotbed_delete(r);
        return status;
    }
    (void)carve_request(&r->view, r->memory.data);
    *r->view.n = 0;
    *r->view.status = HOTBED_OK;
    *out = r;
    return HOTBED_OK;
}

void hotbed_external_request_destroy(hotbed_external_request *request) {
    if (request == NULL)
        return;
    hotbed_memory_free(&request->memory);
    hotbed_delete(request);
}

hotbed_status hotbed_external_request_read(
    const hotbed_external_request *request, hotbed_external_request_view *out) {
    if (request == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "request is NULL");
    HOTBED_TRY(hotbed_output_check(out, "hotbed_external_request_view"));
    hotbed_output_write(out, &request->view, sizeof request->view);
    return HOTBED_OK;
}

static hotbed_status enqueue(
    hotbed_external_request *request, void (*function)(void *argument), hotbed_stream *stream) {
    if (request == NULL || stream == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s is NULL", request == NULL ? "request" : "stream");
    if (stream != request->stream)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "the request was made on another stream");
    (void)hotbed_stream_table_faults(stream, NULL); /* `faults`, before they may be latched */
    return hotbed_external_enqueue(request->external, stream, function, request);
}

hotbed_status hotbed_external_find_async(hotbed_external_request *request, hotbed_stream *stream) {
    return enqueue(request, run_find, stream);
}

hotbed_status hotbed_external_insert_async(
    hotbed_external_request *request, hotbed_stream *stream) {
    return enqueue(request, run_insert, stream);
}

hotbed_status hotbed_external_erase_async(hotbed_external_request *request, hotbed_stream *stream) {
    return enqueue(request, run_erase, stream);
}
