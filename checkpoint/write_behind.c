/* checkpoint/write_behind.c - a ring of blocks and the lane that writes them. */
#include "checkpoint/write_behind.h"

#include "base/error.h"
#include "base/stream.h"

#include <stdio.h>

/* On the lane. */
static void write_block(void *argument) {
    hotbed_write_behind_job *job = argument;
    hotbed_write_behind *behind = job->owner;
    job->status = HOTBED_OK;
    if (behind->failed)
        return;
    job->status = hotbed_io_write(behind->file, job->buffer, job->bytes, job->offset);
    behind->failed = job->status != HOTBED_OK;
    if (behind->failed) /* the text is this thread's */
        snprintf(behind->text, sizeof behind->text, "%s", hotbed_last_error());
}

/* How the block went that has the job. */
static hotbed_status await(const hotbed_write_behind *behind, const hotbed_write_behind_job *job) {
    HOTBED_TRY(hotbed_event_sync(job->done));
    return job->status == HOTBED_OK ? HOTBED_OK : hotbed_fail(job->status, "%s", behind->text);
}

hotbed_status hotbed_write_behind_open(
    hotbed_write_behind *out, hotbed_io_file *file, size_t block_bytes) {
    *out = (hotbed_write_behind){.file = file};
    out->buffers = hotbed_new(HOTBED_WRITE_BEHIND_BLOCKS * block_bytes);
    if (out->buffers == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for %d blocks of %zu bytes", HOTBED_WRITE_BEHIND_BLOCKS,
            block_bytes);
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &out->lane));
    for (uint32_t i = 0; i < HOTBED_WRITE_BEHIND_BLOCKS; i++) {
        out->jobs[i].owner = out;
        out->jobs[i].buffer = out->buffers + i * block_bytes;
        HOTBED_TRY(hotbed_event_create(out->lane, &out->jobs[i].done));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_write_behind_put(
    hotbed_write_behind *behind, unsigned char **buffer, size_t bytes, uint64_t offset) {
    hotbed_write_behind_job *job = &behind->jobs[behind->next++ % HOTBED_WRITE_BEHIND_BLOCKS];
    HOTBED_TRY(await(behind, job));
    unsigned char *freed = job->buffer;
    job->buffer = *buffer;
    *buffer = freed;
    job->bytes = bytes;
    job->offset = offset;
    HOTBED_TRY(hotbed_stream_call(behind->lane, write_block, job));
    return hotbed_event_record(job->done, behind->lane);
}

hotbed_status hotbed_write_behind_drain(hotbed_write_behind *behind) {
    for (uint64_t i = 0; behind->lane != NULL && i < HOTBED_WRITE_BEHIND_BLOCKS;
         i++) /* oldest first */
        HOTBED_TRY(await(behind, &behind->jobs[(behind->next + i) % HOTBED_WRITE_BEHIND_BLOCKS]));
    return HOTBED_OK;
}

void hotbed_write_behind_close(hotbed_write_behind *behind) {
    hotbed_stream_destroy(behind->lane); /* runs what it has */
    for (uint32_t i = 0; i < HOTBED_WRITE_BEHIND_BLOCKS; i++)
        hotbed_event_destroy(behind->jobs[i].done);
    hotbed_delete(behind->buffers);
    *behind = (hotbed_write_behind){.lane = NULL};
}
