/* checkpoint/lanes.h - blocks that move between a file and memory on other threads, and their digests.
 *
 * A job is one block.  It goes to the lane of the host backend that has the fewest bytes to move; a lane moves
 * its jobs one after the other, and after one that failed it moves no more.  So the disk has several transfers at
 * a time, goes on while a thread waits for a processor, and digests take no time of the caller's thread.
 */
#ifndef HOTBED_CHECKPOINT_LANES_H
#define HOTBED_CHECKPOINT_LANES_H

#include "checkpoint/digest.h"
#include "checkpoint/io.h"
#include "hotbed/stream.h"

enum { HOTBED_IO_LANES = 4 }; /* at most */

typedef struct hotbed_io_lane {
    hotbed_stream *stream;
    uint64_t bytes;       /* the caller's: of jobs that were begun and not awaited */
    hotbed_status status; /* of the first failure */
    char text[1024];      /* its text */
} hotbed_io_lane;

typedef struct hotbed_io_lanes {
    uint32_t num;
    hotbed_io_lane lanes[HOTBED_IO_LANES];
} hotbed_io_lanes;

/* While it is busy a job is its lane's. */
typedef struct hotbed_io_job {
    bool busy;            /* from hotbed_io_lanes_begin() to hotbed_io_lanes_await() */
    hotbed_io_file *file; /* borrowed; nobody closes it meanwhile */
    unsigned char *buffer;
    size_t bytes;
    uint64_t offset;
    bool writes;
    hotbed_digest digest; /* of the block, out */
    hotbed_status status; /* out */
    hotbed_io_lane *lane;
    hotbed_event *done;
} hotbed_io_job;

/* How many lanes so many blocks are worth; a thread takes longer to start than a few small blocks to move. */
static inline uint32_t hotbed_io_lanes_for(uint64_t blocks) {
    return blocks / 16 < HOTBED_IO_LANES ? (uint32_t)(blocks / 16) : HOTBED_IO_LANES;
}

/* Open `num` lanes, at most HOTBED_IO_LANES.  *out does not move.  The caller calls hotbed_io_lanes_close() in any
 * case.  Errors: MEMORY. */
hotbed_status hotbed_io_lanes_open(hotbed_io_lanes *out, uint32_t num);

/* Waits for jobs on their way.  {0} is allowed; keeps the error text. */
void hotbed_io_lanes_close(hotbed_io_lanes *lanes);

/* A job without a block.  Errors: MEMORY. */
hotbed_status hotbed_io_job_create(hotbed_io_lanes *lanes, hotbed_io_job *out);

/* Waits for it when it is busy.  {0} is allowed; keeps the error text. */
void hotbed_io_job_destroy(hotbed_io_job *job);

/* Have the block of a job that is not busy moved.  Async; *job stays where it is until it was awaited. */
hotbed_status hotbed_io_lanes_begin(hotbed_io_lanes *lanes, hotbed_io_job *job);

/* Wait for a job; one that is not busy is done.  Errors: its lane's first failure, up to this job. */
hotbed_status hotbed_io_lanes_await(hotbed_io_job *job);

/* Memory whose first byte, *data, is at a page boundary; not cleared.  Errors: MEMORY. */
hotbed_status hotbed_io_memory(
    hotbed_io_lanes *lanes, size_t bytes, hotbed_memory *out, unsigned char **data);

#endif
