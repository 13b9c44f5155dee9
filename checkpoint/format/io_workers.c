/* checkpoint/format/io_workers.c - jobs on streams of the host backend. */
#include "checkpoint/format/io_workers.h"

#include "base/error.h"

hotbed_status hotbed_io_workers_open(hotbed_io_workers *out, uint32_t num) {
    *out = (hotbed_io_workers){.num = num};
    for (uint32_t i = 0; i < num; i++)
        HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &out->workers[i].stream));
    return HOTBED_OK;
}

void hotbed_io_workers_close(hotbed_io_workers *workers) {
    for (uint32_t i = 0; i < workers->num; i++)
        hotbed_stream_destroy(workers->workers[i].stream); /* finishes queued jobs */
    *workers = (hotbed_io_workers){.num = 0};
}

hotbed_status hotbed_io_job_create(hotbed_io_workers *workers, hotbed_io_job *out) {
    *out = (hotbed_io_job){.bytes = 0};
    return hotbed_event_create(workers->workers[0].stream, &out->done);
}

void hotbed_io_job_destroy(hotbed_io_job *job) {
    if (job->busy && hotbed_event_sync(job->done) != HOTBED_OK)
        return; /* the worker may still use the block, so nothing can be freed */
    hotbed_event_destroy(job->done);
    *job = (hotbed_io_job){.bytes = 0};
}

/* Transfer the block of a job. Runs on the worker's thread. */
static void move_block(void *argument) {
    hotbed_io_job *job = argument;
    hotbed_io_worker *worker = job->worker;
    if (worker->status == HOTBED_OK && job->writes) {
        job->digest = hotbed_digest_of(job->buffer, job->bytes);
        worker->status = hotbed_io_write(job->file, job->buffer, job->bytes, job->offset);
    } else if (worker->status == HOTBED_OK) {
        worker->status = hotbed_io_read(job->file, job->buffer, job->bytes, job->offset);
        if (worker->status == HOTBED_OK)
            job->digest = hotbed_digest_of(job->buffer, job->bytes);
    }
    if (worker->status != HOTBED_OK && worker->error.text[0] == '\0') /* errors are thread-local */
        hotbed_error_copy(&worker->error);
    job->status = worker->status;
}

hotbed_status hotbed_io_workers_begin(hotbed_io_workers *workers, hotbed_io_job *job) {
    job->worker = &workers->workers[0];
    for (uint32_t i = 1; i < workers->num; i++)
        if (workers->workers[i].bytes < job->worker->bytes)
            job->worker = &workers->workers[i];
    HOTBED_TRY(hotbed_stream_call(job->worker->stream, move_block, job));
    HOTBED_TRY(hotbed_event_record(job->done, job->worker->stream));
    job->worker->bytes += job->bytes;
    job->busy = true;
    return HOTBED_OK;
}

hotbed_status hotbed_io_workers_await(hotbed_io_job *job) {
    if (!job->busy)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_event_sync(job->done));
    job->worker->bytes -= job->bytes;
    job->busy = false;
    return job->status == HOTBED_OK ? HOTBED_OK
                                    : hotbed_error_return(&job->worker->error, job->status);
}

hotbed_status hotbed_io_memory(
    hotbed_io_workers *workers, size_t bytes, hotbed_memory *out, unsigned char **data) {
    HOTBED_TRY(hotbed_memory_alloc(
        workers->workers[0].stream, HOTBED_MEMORY_PAGEABLE, bytes + HOTBED_IO_PAGE, NULL, out));
    size_t over = (uintptr_t)out->data % HOTBED_IO_PAGE;
    *data = (unsigned char *)out->data + (over == 0 ? 0 : HOTBED_IO_PAGE - over);
    return HOTBED_OK;
}
