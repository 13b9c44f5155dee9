/* checkpoint/write_behind.h - blocks of a file, written and digested by lanes while the caller fills others. */
#ifndef HOTBED_CHECKPOINT_WRITE_BEHIND_H
#define HOTBED_CHECKPOINT_WRITE_BEHIND_H

#include "checkpoint/lanes.h"

enum { HOTBED_WRITE_BEHIND_BLOCKS = 8 }; /* on their way at a time */

typedef struct hotbed_write_behind_job {
    hotbed_io_job job;
    hotbed_digest *digest; /* where the block's goes; borrowed */
} hotbed_write_behind_job;

typedef struct hotbed_write_behind {
    hotbed_io_lanes lanes;
    hotbed_io_file *file; /* borrowed; the lanes' until hotbed_write_behind_drain() */
    uint64_t next;        /* job, counted from the first */
    hotbed_write_behind_job jobs[HOTBED_WRITE_BEHIND_BLOCKS];
    hotbed_memory memory;
} hotbed_write_behind;

/* On `lanes` lanes, with `spare` blocks of memory for the caller, at page boundaries, one after the other from
 * *blocks on.  *out does not move.  The caller calls hotbed_write_behind_close() in any case.  Errors: MEMORY. */
hotbed_status hotbed_write_behind_open(
    hotbed_write_behind *out, hotbed_io_file *file, uint32_t lanes, size_t block_bytes,
    uint32_t spare, unsigned char **blocks);

/* Have *buffer, [block_bytes], written at `offset`; *buffer becomes another one, which is free until
 * hotbed_write_behind_close().  *digest is set by hotbed_write_behind_drain() at the latest.  Waits while all
 * jobs are on their way.  Errors: those of blocks before. */
hotbed_status hotbed_write_behind_put(
    hotbed_write_behind *behind, unsigned char **buffer, size_t bytes, uint64_t offset,
    hotbed_digest *digest);

/* Wait for all blocks: the file is the caller's.  {0} is allowed.  Errors: IO. */
hotbed_status hotbed_write_behind_drain(hotbed_write_behind *behind);

/* Waits for blocks on their way.  {0} is allowed; keeps the error text. */
void hotbed_write_behind_close(hotbed_write_behind *behind);

#endif
