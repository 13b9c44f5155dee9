/* checkpoint/lanes.h - threads that transfer blocks between files and memory, and digest them.
 *
 * Here a lane is one stream of the host backend with its worker thread. A job is one block. It goes
 * to the lane that has the fewest bytes to transfer. A lane runs its jobs in order, and transfers
 * nothing more after a job has failed. So the disk has several transfers at a time and keeps
 * working while a thread waits for a processor, and digests take no time of the caller's thread. */
#ifndef HOTBED_CHECKPOINT_LANES_H
#define HOTBED_CHECKPOINT_LANES_H

#include "checkpoint/digest.h"
#include "checkpoint/io.h"
#include "hotbed/stream.h"

enum { HOTBED_IO_LANES = 4 }; /* at most */

typedef struct hotbed_io_lane {
    hotbed_stream *stream;
    uint64_t bytes;       /* used by the caller: bytes of jobs that were begun and not awaited */
    hotbed_status status; /* of the first failure */
    char text[1024];      /* its text */
} hotbed_io_lane;

typedef struct hotbed_io_lanes {
    uint32_t num;
    hotbed_io_lane lanes[HOTBED_IO_LANES];
} hotbed_io_lanes;

/* A block to transfer. While the job is busy, it belongs to its lane. */
typedef struct hotbed_io_job {
    bool busy;            /* from hotbed_io_lanes_begin() to hotbed_io_lanes_await() */
    hotbed_io_file *file; /* borrowed; must stay open while the job is busy */
    unsigned char *buffer;
    size_t bytes;
    uint64_t offset;
    bool writes;
    hotbed_digest digest; /* out: of the block */
    hotbed_status status; /* out */
    hotbed_io_lane *lane;
    hotbed_event *done;
} hotbed_io_job;

/* Return how many lanes to open for this number of blocks. Starting a thread takes longer than the
 * transfer of a few blocks. */
static inline uint32_t hotbed_io_lanes_for(uint64_t blocks) {
    return blocks / 16 < HOTBED_IO_LANES ? (uint32_t)(blocks / 16) : HOTBED_IO_LANES;
}

/* Open `num` lanes, at most HOTBED_IO_LANES. *out must not move while it is open. The caller must
 * call hotbed_io_lanes_close() even after an error. Errors: MEMORY. */
hotbed_status hotbed_io_lanes_open(hotbed_io_lanes *out, uint32_t num);

/* Wait for the jobs in flight, and close the lanes. {0} is allowed. Keeps the error text. */
void hotbed_io_lanes_close(hotbed_io_lanes *lanes);

/* Create a job without a block. Errors: MEMORY. */
hotbed_status hotbed_io_job_create(hotbed_io_lanes *lanes, hotbed_io_job *out);

/* Wait for the job if it is busy, and destroy it. {0} is allowed. Keeps the error text. */
void hotbed_io_job_destroy(hotbed_io_job *job);

/* Start the transfer of a job that is not busy. Asynchronous: *job must not move until it was
 * awaited. */
hotbed_status hotbed_io_lanes_begin(hotbed_io_lanes *lanes, hotbed_io_job *job);

/* Wait for a job. A job that is not busy is done. Errors: the first failure of its lane, up to this
 * job. */
hotbed_status hotbed_io_lanes_await(hotbed_io_job *job);

/* Allocate memory whose first byte, *data, is at a page boundary. The memory is not cleared.
 * Errors: MEMORY. */
hotbed_status hotbed_io_memory(
    hotbed_io_lanes *lanes, size_t bytes, hotbed_memory *out, unsigned char **data);

#endif
