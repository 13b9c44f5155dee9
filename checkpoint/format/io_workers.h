/* checkpoint/format/io_workers.h - threads that transfer blocks between files and memory, and digest them.
 *
 * A worker is a host stream, whose thread runs the jobs. A job is one block; it goes to the worker
 * with the fewest bytes left to transfer. A worker runs its jobs in order, and transfers nothing
 * more after a job has failed. Several transfers are in flight at a time, so the disk stays busy
 * while a thread waits for a processor, and the caller's thread computes no digests. */
#pragma once

#include "base/error.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/io.h"
#include "hotbed/stream.h"

enum { HOTBED_IO_WORKERS = 4 }; /* at most */

typedef struct hotbed_io_worker {
    hotbed_stream *stream;
    uint64_t bytes; /* used by the caller: bytes of jobs that were begun and not yet awaited */
    hotbed_status status; /* of the first failure */
    hotbed_error error;   /* the first failure */
} hotbed_io_worker;

typedef struct hotbed_io_workers {
    uint32_t num;
    hotbed_io_worker workers[HOTBED_IO_WORKERS];
} hotbed_io_workers;

/* A block to transfer. While the job is busy, it belongs to its worker. */
typedef struct hotbed_io_job {
    bool busy;            /* from hotbed_io_workers_begin() to hotbed_io_workers_await() */
    hotbed_io_file *file; /* borrowed; must stay open while the job is busy */
    unsigned char *buffer;
    size_t bytes;
    uint64_t offset;
    bool writes;
    hotbed_digest digest; /* out: of the block */
    hotbed_status status; /* out */
    hotbed_io_worker *worker;
    hotbed_event *done;
} hotbed_io_job;

/* Return how many workers to open for this number of blocks. Starting a thread takes longer than
 * the transfer of a few blocks. */
static inline uint32_t hotbed_io_workers_for(uint64_t blocks) {
    return blocks / 16 < HOTBED_IO_WORKERS ? (uint32_t)(blocks / 16) : HOTBED_IO_WORKERS;
}

/* Open `num` workers, at most HOTBED_IO_WORKERS. *out must not move while it is open. The caller
 * must call hotbed_io_workers_close() even after an error. Errors: MEMORY. */
hotbed_status hotbed_io_workers_open(hotbed_io_workers *out, uint32_t num);

/* Wait for the jobs in flight, and close the workers. {0} is allowed. Keeps the error text. */
void hotbed_io_workers_close(hotbed_io_workers *workers);

/* Create a job without a block. Errors: MEMORY. */
hotbed_status hotbed_io_job_create(hotbed_io_workers *workers, hotbed_io_job *out);

/* Wait for the job if it is busy, and destroy it. {0} is allowed. Keeps the error text. */
void hotbed_io_job_destroy(hotbed_io_job *job);

/* Start the transfer of a job that is not busy. Asynchronous: *job must not move until it was
 * awaited. */
hotbed_status hotbed_io_workers_begin(hotbed_io_workers *workers, hotbed_io_job *job);

/* Wait for a job. A job that is not busy is done. Errors: the first failure of its worker, up to
 * this job. */
hotbed_status hotbed_io_workers_await(hotbed_io_job *job);

/* Allocate memory whose first byte, *data, is at a page boundary. The memory is not cleared.
 * Errors: MEMORY. */
hotbed_status hotbed_io_memory(
    hotbed_io_workers *workers, size_t bytes, hotbed_memory *out, unsigned char **data);
