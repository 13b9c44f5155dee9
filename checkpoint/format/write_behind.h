/* checkpoint/format/write_behind.h - blocks of a file, written and digested by workers while the caller
 * fills others. */
#pragma once

#include "checkpoint/format/io_workers.h"

enum { HOTBED_WRITE_BEHIND_BLOCKS = 8 }; /* in flight at a time */

typedef struct hotbed_write_behind_job {
    hotbed_io_job job;
    hotbed_digest *digest; /* receives the digest of the block; borrowed */
} hotbed_write_behind_job;

typedef struct hotbed_write_behind {
    hotbed_io_workers workers;
    hotbed_io_file *file; /* borrowed; used by the workers until hotbed_write_behind_drain() */
    uint64_t next;        /* number of the next job */
    hotbed_write_behind_job jobs[HOTBED_WRITE_BEHIND_BLOCKS];
    hotbed_memory memory;
} hotbed_write_behind;

/* Open a ring of blocks on `workers` workers. The caller gets `spare` blocks of memory, at page
 * boundaries, contiguous from *blocks on. *out must not move while it is open. The caller must call
 * hotbed_write_behind_close() even after an error. Errors: MEMORY. */
hotbed_status hotbed_write_behind_open(
    hotbed_write_behind *out, hotbed_io_file *file, uint32_t workers, size_t block_bytes,
    uint32_t spare, unsigned char **blocks);

/* Start to write *buffer, [block_bytes], at `offset`. *buffer is replaced by another buffer, which
 * the caller may use until hotbed_write_behind_close(). *digest is set by
 * hotbed_write_behind_drain() at the latest. Blocks while all jobs are in flight. Errors: the
 * errors of earlier blocks. */
hotbed_status hotbed_write_behind_put(
    hotbed_write_behind *behind, unsigned char **buffer, size_t bytes, uint64_t offset,
    hotbed_digest *digest);

/* Wait for all blocks. The caller may then use the file. {0} is allowed. Errors: IO. */
hotbed_status hotbed_write_behind_drain(hotbed_write_behind *behind);

/* Wait for blocks in flight, and close. {0} is allowed. Keeps the error text. */
void hotbed_write_behind_close(hotbed_write_behind *behind);
