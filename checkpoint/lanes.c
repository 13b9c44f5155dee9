/* checkpoint/lanes.c - jobs on streams of the host backend. */
#include "checkpoint/lanes.h"

#include "base/error.h"
#include "base/stream.h"

#include <stdio.h>

hotbed_status hotbed_io_lanes_open(hotbed_io_lanes *out, uint32_t num) {
    *out = (hotbed_io_lanes){.num = num};
    for (uint32_t i = 0; i < num; i++)
        HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &out->lanes[i].stream));
    return HOTBED_OK;
}

void hotbed_io_lanes_close(hotbed_io_lanes *lanes) {
    for (uint32_t i = 0; i < lanes->num; i++)
        hotbed_stream_destroy(lanes->lanes[i].stream); /* runs the jobs that are still queued */
    *lanes = (hotbed_io_lanes){.num = 0};
}

hotbed_status hotbed_io_job_create(hotbed_io_lanes *lanes, hotbed_io_job *out) {
    *out = (hotbed_io_job){.bytes = 0};
    return hotbed_event_create(lanes->lanes[0].stream, &out->done);
}

void hotbed_io_job_destroy(hotbed_io_job *job) {
    if (job->busy && hotbed_event_sync(job->done) != HOTBED_OK)
        return; /* the lane may still use the block, so nothing can be freed */
    hotbed_event_destroy(job->done);
    *job = (hotbed_io_job){.bytes = 0};
}

/* Transfer the block of a job. Runs on the lane's thread. */
static void move_block(void *argument) {
    hotbed_io_job *job = argument;
    hotbed_io_lane *lane = job->lane;
    if (lane->status == HOTBED_OK && job->writes) {
        job->digest = hotbed_digest_of(job->buffer, job->bytes);
        lane->status = hotbed_io_write(job->file, job->buffer, job->bytes, job->offset);
    } else if (lane->status == HOTBED_OK) {
        lane->status = hotbed_io_read(job->file, job->buffer, job->bytes, job->offset);
        if (lane->status == HOTBED_OK)
            job->digest = hotbed_digest_of(job->buffer, job->bytes);
    }
    if (lane->status != HOTBED_OK && lane->text[0] == '\0') /* the error text is thread-local */
        snprintf(lane->text, sizeof lane->text, "%s", hotbed_last_error());
    job->status = lane->status;
}

hotbed_status hotbed_io_lanes_begin(hotbed_io_lanes *lanes, hotbed_io_job *job) {
    job->lane = &lanes->lanes[0];
    for (uint32_t i = 1; i < lanes->num; i++)
        if (lanes->lanes[i].bytes < job->lane->bytes)
            job->lane = &lanes->lanes[i];
    HOTBED_TRY(hotbed_stream_call(job->lane->stream, move_block, job));
    HOTBED_TRY(hotbed_event_record(job->done, job->lane->stream));
    job->lane->bytes += job->bytes;
    job->busy = true;
    return HOTBED_OK;
}

hotbed_status hotbed_io_lanes_await(hotbed_io_job *job) {
    if (!job->busy)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_event_sync(job->done));
    job->lane->bytes -= job->bytes;
    job->busy = false;
    return job->status == HOTBED_OK ? HOTBED_OK : hotbed_fail(job->status, "%s", job->lane->text);
}

hotbed_status hotbed_io_memory(
    hotbed_io_lanes *lanes, size_t bytes, hotbed_memory *out, unsigned char **data) {
    HOTBED_TRY(hotbed_memory_alloc(
        lanes->lanes[0].stream, HOTBED_MEMORY_PAGEABLE, bytes + HOTBED_IO_PAGE, NULL, out));
    size_t over = (uintptr_t)out->data % HOTBED_IO_PAGE;
    *data = (unsigned char *)out->data + (over == 0 ? 0 : HOTBED_IO_PAGE - over);
    return HOTBED_OK;
}
