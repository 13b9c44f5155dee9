/* checkpoint/extent.h - bytes of an extent in order, block by block, each block with its digest.
 *
 * Writing, bytes gather in a buffer of one block, which is digested and written when it is full.
 * Reading, a block is read whole and its digest compared before a byte of it is given out.
 */
#ifndef HOTBED_CHECKPOINT_EXTENT_H
#define HOTBED_CHECKPOINT_EXTENT_H

#include "checkpoint/io.h"
#include "checkpoint/manifest.h"

typedef struct hotbed_extent_stream {
    hotbed_io_file *file;
    const char *table, *column; /* for messages; borrowed */
    hotbed_extent extent;
    hotbed_digest *blocks; /* [num_blocks] of the shard; borrowed */
    uint64_t done;         /* bytes written to, or read from the file */
    unsigned char *buffer; /* [HOTBED_BLOCK_BYTES]; borrowed */
    size_t filled, taken;  /* bytes in the buffer, and those of them given out */
} hotbed_extent_stream;

/* Append to the extent; not more than its bytes in all.  Errors: IO. */
hotbed_status hotbed_extent_put(hotbed_extent_stream *stream, const void *data, size_t bytes);

/* Write the last block, and set *root. */
hotbed_status hotbed_extent_end(hotbed_extent_stream *stream, hotbed_digest *root);

/* The extent's next bytes.  Errors: IO, CORRUPT (file, extent and block). */
hotbed_status hotbed_extent_take(hotbed_extent_stream *stream, void *data, size_t bytes);

/* Write or read an extent in one go. */
hotbed_status hotbed_extent_write(
    hotbed_extent_stream *stream, const void *data, hotbed_digest *root);

/* Whether the blocks' digests give the extent's root.  Errors: CORRUPT. */
hotbed_status hotbed_extent_check_root(const hotbed_extent_stream *stream);

/* Compare bytes [0, bytes) at `offset` with a root, through `buffer` of one block.
 * Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_extent_check_bytes(
    hotbed_io_file *file, const char *what, uint64_t offset, uint64_t bytes, hotbed_digest root,
    unsigned char *buffer);

#endif
