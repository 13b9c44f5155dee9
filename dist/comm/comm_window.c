/* dist/comm/comm_window.c - windows: the public calls, and windows of ordinary memory. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>

hotbed_status hotbed_window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_comm_check_call("hotbed_window_create", comm, stream));
    HOTBED_TRY(hotbed_check_range("bytes", bytes, 1, SIZE_MAX / 2));
    if (comm->ops->window_create == NULL)
        return hotbed_error_cause_is(
            hotbed_fail(
                HOTBED_ERR_UNSUPPORTED, "communicators of %s have no windows",
                hotbed_transport_name(comm->ops->transport)),
            HOTBED_CAUSE_NO_WINDOWS);
    hotbed_comm_write_log(comm, HOTBED_COMM_WINDOW_CREATE, bytes);
    return comm->ops->window_create(comm, bytes, stream, out);
}

void hotbed_window_destroy(hotbed_window *window) {
    if (window != NULL)
        window->comm->ops->window_destroy(window);
}

hotbed_status hotbed_window_barrier(hotbed_window *window, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_window_barrier", "window", window));
    hotbed_comm *comm = window->comm;
    HOTBED_TRY(hotbed_comm_check_call("hotbed_window_barrier", comm, stream));
    hotbed_comm_write_log(comm, HOTBED_COMM_WINDOW_BARRIER, 0);
    if (comm->ops->window_barrier != NULL)
        return comm->ops->window_barrier(window, stream);
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_WINDOW_BARRIER, 0);
    return hotbed_comm_enqueue(comm, &batch, stream);
}

hotbed_status hotbed_window_probe(hotbed_comm *comm, hotbed_stream *stream) {
    hotbed_window *window = NULL;
    if (comm->windows != HOTBED_WINDOWS_UNKNOWN)
        return HOTBED_OK;
    if (comm->size == 1 || comm->ops->window_create == NULL) {
        comm->windows = HOTBED_WINDOWS_FAIL;
        return HOTBED_OK;
    }
    /* All ranks get the same result: a window cannot reach a rank outside of the domain. */
    hotbed_status status = hotbed_window_create(comm, 16, stream, &window);
    hotbed_window_destroy(window);
    if (status != HOTBED_OK && status != HOTBED_ERR_UNSUPPORTED)
        return status;
    comm->windows = status == HOTBED_OK ? HOTBED_WINDOWS_WORK : HOTBED_WINDOWS_FAIL;
    return HOTBED_OK;
}

/* --- of ordinary memory ----------------------------------------------------------------------- */

typedef struct local_window {
    hotbed_window base;
    hotbed_memory data, parts;
} local_window;

void hotbed_comm_local_window_destroy(hotbed_window *base) {
    local_window *window = (local_window *)base;
    hotbed_memory_free(&window->parts);
    hotbed_memory_free(&window->data);
    hotbed_delete(window);
}

/* Allocate everything; the addresses of the other ranks are not known yet. */
static hotbed_status alloc(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, local_window **out) {
    local_window *window = hotbed_new(sizeof *window);
    HOTBED_TRY_MEMORY(window, "a window");
    window->base.comm = comm;
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &window->data);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(
            stream, HOTBED_MEMORY_DEVICE, comm->size * sizeof(void *), NULL, &window->parts);
    HOTBED_THEN(status, hotbed_fill(window->data.data, 0, bytes, stream));
    if (status == HOTBED_OK) /* others may write as soon as they have the address */
        status = hotbed_stream_finish(stream);
    if (status != HOTBED_OK) {
        hotbed_comm_local_window_destroy(&window->base);
        return status;
    }
    window->base.data = window->data.data;
    window->base.parts = window->parts.data;
    *out = window;
    return HOTBED_OK;
}

hotbed_status hotbed_window_check_notices(
    const hotbed_comm *comm, uint64_t bytes, const hotbed_window_notice *notices) {
    for (uint32_t p = 0; p < comm->size; p++) {
        if (notices[p].data == NULL)
            return hotbed_fail_rank(
                HOTBED_ERR_MEMORY, p, "rank %u has no memory for a window of %" PRIu64 " bytes", p,
                notices[p].bytes);
        if (notices[p].bytes != bytes)
            return hotbed_fail_rank_limit(
                HOTBED_ERR_ARGUMENT, p, "bytes", (double)notices[p].bytes, bytes,
                "rank %u makes a window of %" PRIu64 " bytes, rank %u of %" PRIu64, p,
                notices[p].bytes, comm->rank, bytes);
    }
    return HOTBED_OK;
}

static hotbed_status share(
    hotbed_comm *comm, uint64_t bytes, const local_window *window, hotbed_window_notice *notices,
    hotbed_stream *stream) {
    hotbed_window_notice own = {window == NULL ? NULL : window->base.data, bytes};
    notices[comm->rank] = own;
    if (comm->ops->run != NULL) { /* NULL with a single rank */
        hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_WINDOW_CREATE, 1);
        batch.parts[0] = (hotbed_comm_part){
            .kind = HOTBED_PART_GATHER,
            .bytes = sizeof own,
            .send = (const uint8_t *)&own,
            .recv = (uint8_t *)notices,
        };
        if (!hotbed_comm_run_now(comm, &batch))
            return hotbed_comm_fail(comm);
    }
    if (window == NULL)
        return HOTBED_OK; /* the caller's own error says more */
    HOTBED_TRY(hotbed_window_check_notices(comm, bytes, notices));
    hotbed_status status = HOTBED_OK;
    for (uint32_t p = 0; p < comm->size && status == HOTBED_OK; p++)
        status =
            hotbed_copy(&window->base.parts[p], &notices[p].data, sizeof notices[p].data, stream);
    hotbed_status finished = hotbed_stream_finish(stream); /* also if a copy failed: others run */
    return status != HOTBED_OK ? status : finished;
}

hotbed_status hotbed_comm_local_window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out) {
    hotbed_window_notice notices[HOTBED_COMM_RANKS_MAX];
    local_window *window = NULL;
    hotbed_status status = alloc(comm, bytes, stream, &window);
    /* Also if the allocation failed: the other ranks still wait for this rank's message. */
    hotbed_status shared = share(comm, bytes, window, notices, stream);
    HOTBED_THEN(status, shared);
    if (status == HOTBED_OK)
        *out = &window->base;
    else if (window != NULL)
        hotbed_comm_local_window_destroy(&window->base);
    return status;
}
