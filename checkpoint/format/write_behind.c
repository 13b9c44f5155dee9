/* checkpoint/format/write_behind.c - a ring of blocks that workers write. */
#include "checkpoint/format/write_behind.h"

#include "base/error.h"

hotbed_status hotbed_write_behind_open(
    hotbed_write_behind *out, hotbed_io_file *file, uint32_t workers, size_t block_bytes,
    uint32_t spare, unsigned char **blocks) {
    unsigned char *at = NULL;
    *out = (hotbed_write_behind){.file = file};
    HOTBED_TRY(hotbed_io_workers_open(&out->workers, workers));
    HOTBED_TRY(hotbed_io_memory(
        &out->workers, (HOTBED_WRITE_BEHIND_BLOCKS + spare) * block_bytes, &out->memory, &at));
    for (uint32_t i = 0; i < HOTBED_WRITE_BEHIND_BLOCKS; i++, at += block_bytes) {
        HOTBED_TRY(hotbed_io_job_create(&out->workers, &out->jobs[i].job));
        out->jobs[i].job.file = file;
        out->jobs[i].job.writes = true;
        out->jobs[i].job.buffer = at;
    }
    *blocks = at;
    return HOTBED_OK;
}

static hotbed_status await(hotbed_write_behind_job *job) {
    bool busy = job->job.busy;
    HOTBED_TRY(hotbed_io_workers_await(&job->job));
    if (busy)
        *job->digest = job->job.digest;
    return HOTBED_OK;
}

hotbed_status hotbed_write_behind_put(
    hotbed_write_behind *behind, unsigned char **buffer, size_t bytes, uint64_t offset,
    hotbed_digest *digest) {
    hotbed_write_behind_job *job = &behind->jobs[behind->next++ % HOTBED_WRITE_BEHIND_BLOCKS];
    HOTBED_TRY(await(job));
    unsigned char *freed = job->job.buffer;
    job->job.buffer = *buffer;
    *buffer = freed;
    job->job.bytes = bytes;
    job->job.offset = offset;
    job->digest = digest;
    return hotbed_io_workers_begin(&behind->workers, &job->job);
}

hotbed_status hotbed_write_behind_drain(hotbed_write_behind *behind) {
    for (uint64_t i = 0; i < HOTBED_WRITE_BEHIND_BLOCKS; i++) /* oldest first */
        HOTBED_TRY(await(&behind->jobs[(behind->next + i) % HOTBED_WRITE_BEHIND_BLOCKS]));
    return HOTBED_OK;
}

void hotbed_write_behind_close(hotbed_write_behind *behind) {
    for (uint32_t i = 0; i < HOTBED_WRITE_BEHIND_BLOCKS; i++)
        hotbed_io_job_destroy(&behind->jobs[i].job);
    hotbed_io_workers_close(&behind->workers);
    hotbed_memory_free(&behind->memory);
    *behind = (hotbed_write_behind){.file = NULL};
}
