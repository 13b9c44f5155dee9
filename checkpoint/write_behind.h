/* checkpoint/write_behind.h - blocks written to a file by another thread, in order.
 *
 * The caller fills a block while those before it go to the kernel.  A lane of the host backend makes the calls, one
 * after the other as the caller would; after one that failed it makes no more.
 */
#ifndef HOTBED_CHECKPOINT_WRITE_BEHIND_H
#define HOTBED_CHECKPOINT_WRITE_BEHIND_H

#include "checkpoint/io.h"
#include "hotbed/stream.h"

enum { HOTBED_WRITE_BEHIND_BLOCKS = 4 }; /* on their way at a time */

/* A block on its way. */
typedef struct hotbed_write_behind_job {
    struct hotbed_write_behind *owner;
    unsigned char *buffer; /* [block_bytes] */
    size_t bytes;
    uint64_t offset;
    hotbed_event *done;
    hotbed_status status; /* the lane's, while it is on its way */
} hotbed_write_behind_job;

typedef struct hotbed_write_behind {
    hotbed_stream *lane;
    hotbed_io_file *file; /* borrowed; the lane's until hotbed_write_behind_drain() */
    uint64_t next;        /* job, counted from the first */
    hotbed_write_behind_job jobs[HOTBED_WRITE_BEHIND_BLOCKS];
    unsigned char *buffers;
    bool failed;     /* the lane's */
    char text[1024]; /* of the first failure; the lane's until its job is done */
} hotbed_write_behind;

/* *out does not move.  The caller calls hotbed_write_behind_close() in any case.  Errors: MEMORY. */
hotbed_status hotbed_write_behind_open(
    hotbed_write_behind *out, hotbed_io_file *file, size_t block_bytes);

/* Have *buffer, [block_bytes], written at `offset`; *buffer becomes another one, which is free until
 * hotbed_write_behind_close().  Waits while all jobs are on their way.  Errors: those of blocks before. */
hotbed_status hotbed_write_behind_put(
    hotbed_write_behind *behind, unsigned char **buffer, size_t bytes, uint64_t offset);

/* Wait for all blocks: the file is the caller's.  {0} is allowed.  Errors: IO. */
hotbed_status hotbed_write_behind_drain(hotbed_write_behind *behind);

/* Waits for blocks on their way.  {0} is allowed; keeps the error text. */
void hotbed_write_behind_close(hotbed_write_behind *behind);

#endif
