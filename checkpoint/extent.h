/* checkpoint/extent.h - bytes of an extent in order, block by block, each block with its digest.
 *
 * A writer collects bytes in a buffer of one block, which is digested and written when it is full.
 * A reader reads a whole block and compares its digest before it returns a byte of it. With
 * workers, the next blocks are read at the same time.
 *
 * A reader with so many open extents that one block of each is too much memory reads blocks in
 * pieces. It returns each piece before the digest of the block is known: after an error, everything
 * made from these bytes must be discarded. */
#pragma once

#include "checkpoint/format/io.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/write_behind.h"

enum { HOTBED_EXTENT_AHEAD = 3 }; /* blocks that are read ahead */

typedef struct hotbed_extent_stream {
    hotbed_io_file *file;
    hotbed_write_behind
        *behind; /* writes the blocks; NULL: the caller's thread writes them. Borrowed */
    const char *table, *column; /* for messages; borrowed */
    hotbed_extent extent;
    hotbed_digest *blocks; /* the shard's digests, [num_blocks]; borrowed */
    size_t block_bytes;
    uint64_t done; /* bytes written to the file, or read from it */
    /* [block_bytes], or the extent's bytes if it has fewer; borrowed. If NULL, and without
     * `behind`, the stream allocates it at the first byte that is put and frees it after the
     * last. */
    unsigned char *buffer;
    bool owned; /* the stream allocated `buffer` */
    /* reading without workers: bytes of a piece, a power of two; 0: whole blocks */
    size_t piece_bytes;
    hotbed_digest_pieces *pieces; /* if piece_bytes > 0: digest of the block at `digested`; owned */
    uint64_t digested;            /* end of the bytes that are checked, or added to `pieces` */
    size_t filled, taken;         /* bytes in the buffer, and how many of them were returned */
    size_t skip;                  /* bytes of the next block that are not returned */
    /* read the blocks; NULL: the caller's thread reads them. Borrowed */
    hotbed_io_workers *workers;
    /* with workers: blocks from `done` on, in buffers of the same size */
    hotbed_io_job ahead[HOTBED_EXTENT_AHEAD];
    uint32_t first, num_ahead; /* ring of `ahead`: the first job in flight, and their number */
    uint64_t begun;            /* end of the last block in flight */
    uint64_t limit;            /* blocks from here on are not read ahead */
} hotbed_extent_stream;

/* Append to the extent, in all at most its bytes. Errors: IO, MEMORY, STATE (too many
 * bytes). */
hotbed_status hotbed_extent_put(hotbed_extent_stream *stream, const void *data, size_t bytes);

/* End the extent after all its bytes were put. Errors: STATE (bytes are missing). */
hotbed_status hotbed_extent_end(hotbed_extent_stream *stream);

/* Free the memory of a write that failed. */
void hotbed_extent_drop(hotbed_extent_stream *stream);

/* Return the root of an extent, from the block digests of its shard. */
hotbed_digest hotbed_extent_root(
    const hotbed_extent *extent, const hotbed_digest *blocks, size_t block_bytes);

/* Continue at byte `at` of the extent, at most its end. If piece_bytes > 0, `at` must not be before
 * bytes that were returned. A block that is in the buffer is not read again. */
void hotbed_extent_seek(hotbed_extent_stream *stream, uint64_t at);

/* Announce that bytes up to `limit` will be taken, and start to read the first of their blocks.
 * Does nothing without workers. */
hotbed_status hotbed_extent_ahead(hotbed_extent_stream *stream, uint64_t limit);

/* If piece_bytes > 0, read the rest of a block of which a piece was read, and check its digest.
 * Nothing can be taken from the stream afterwards. Errors: IO, CORRUPT. */
hotbed_status hotbed_extent_finish(hotbed_extent_stream *stream);

/* Wait for blocks in flight, and free the stream's memory. Nothing can be taken afterwards. Keeps
 * the error text. */
void hotbed_extent_stop(hotbed_extent_stream *stream);

/* Read the extent's next bytes. Errors: IO, CORRUPT (with file, extent and block). */
hotbed_status hotbed_extent_take(hotbed_extent_stream *stream, void *data, size_t bytes);

/* Read from memory instead of the file, from the first byte on. `all` is the whole extent, and the
 * caller has checked its digests. */
void hotbed_extent_hold(hotbed_extent_stream *stream, unsigned char *all);

/* Read the next 8 bytes without consuming them. A number never crosses the end of a block. Errors:
 * IO, CORRUPT. */
hotbed_status hotbed_extent_peek(hotbed_extent_stream *stream, uint64_t *word);

/* Write a whole extent. */
hotbed_status hotbed_extent_write(
    hotbed_extent_stream *stream, const void *data, hotbed_digest *root);

/* Check that the block digests give the extent's root. Errors: CORRUPT. */
hotbed_status hotbed_extent_check_root(const hotbed_extent_stream *stream);

/* Compare `bytes` bytes at `offset` with a root. Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_extent_check_bytes(
    hotbed_io_file *file, const char *what, uint64_t offset, uint64_t bytes, hotbed_digest root,
    size_t block_bytes);
