/* checkpoint/extent.h - bytes of an extent in order, block by block, each block with its digest.
 *
 * Writing, bytes gather in a buffer of one block, which is digested and written when it is full.
 * Reading, a block is read whole and its digest compared before a byte of it is given out.  With lanes the
 * next ones are read while this one is given out.  Who has so many extents open that a block of each is too much
 * memory reads blocks in pieces, and each is given out before the block's digest is known: after an error what was
 * made of them is worth nothing.
 */
#ifndef HOTBED_CHECKPOINT_EXTENT_H
#define HOTBED_CHECKPOINT_EXTENT_H

#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/write_behind.h"

enum { HOTBED_EXTENT_AHEAD = 3 }; /* blocks that are read before they are asked for */

typedef struct hotbed_extent_stream {
    hotbed_io_file *file;
    hotbed_write_behind *behind; /* writes the blocks; NULL: the caller's thread does.  Borrowed */
    const char *table, *column;  /* for messages; borrowed */
    hotbed_extent extent;
    hotbed_digest *blocks; /* [num_blocks] of the shard; borrowed */
    size_t block_bytes;
    uint64_t done; /* bytes written to, or read from the file */
    unsigned char *
        buffer; /* [block_bytes], or of the extent's bytes if it has fewer; borrowed.  NULL, and without
                            * `behind`: it is there from the first byte that is put to the last */
    bool owned;  /* that one */
    size_t room; /* reading without lanes: bytes of a piece, a power of two; 0: whole blocks */
    hotbed_digest_pieces *pieces; /* with room: of the block in `digested`; owned */
    uint64_t digested;            /* bytes up to here are in it, or in blocks that were checked */
    size_t filled, taken;         /* bytes in the buffer, and those of them given out */
    size_t skip;                  /* bytes of the next block that are not given out */
    hotbed_io_lanes *lanes;       /* read blocks; NULL: the caller's thread does.  Borrowed */
    hotbed_io_job
        ahead[HOTBED_EXTENT_AHEAD]; /* with lanes: blocks from `done` on, in buffers as large */
    uint32_t first, num_ahead;      /* of them that are on their way */
    uint64_t begun;                 /* end of the last one on its way */
    uint64_t limit;                 /* blocks from here on are not read before they are asked for */
} hotbed_extent_stream;

/* Append to the extent; not more than its bytes in all.  Errors: IO. */
hotbed_status hotbed_extent_put(hotbed_extent_stream *stream, const void *data, size_t bytes);

/* All bytes were put.  Errors: STATE (they were not). */
hotbed_status hotbed_extent_end(hotbed_extent_stream *stream);

/* Free what a write that failed left. */
void hotbed_extent_drop(hotbed_extent_stream *stream);

/* Root of an extent, from the blocks' digests of its shard. */
hotbed_digest hotbed_extent_root(
    const hotbed_extent *extent, const hotbed_digest *blocks, size_t block_bytes);

/* Go on at byte `at` of the extent, at most its end; with room, not before what was given out.  A block that is in the
 * buffer is not read again. */
void hotbed_extent_seek(hotbed_extent_stream *stream, uint64_t at);

/* Bytes up to `limit` will be asked for: have the first blocks of them read.  Without lanes nothing is done. */
hotbed_status hotbed_extent_ahead(hotbed_extent_stream *stream, uint64_t limit);

/* With room: the rest of a block of which a piece was read, so that it is checked.  The stream gives out no more.
 * Errors: IO, CORRUPT. */
hotbed_status hotbed_extent_finish(hotbed_extent_stream *stream);

/* Waits for blocks on their way; the stream gives out no more.  Keeps the error text. */
void hotbed_extent_stop(hotbed_extent_stream *stream);

/* The extent's next bytes.  Errors: IO, CORRUPT (file, extent and block). */
hotbed_status hotbed_extent_take(hotbed_extent_stream *stream, void *data, size_t bytes);

/* All of the extent's bytes are in memory, and were checked: give them out, from the first one on. */
void hotbed_extent_hold(hotbed_extent_stream *stream, unsigned char *all);

/* The next 8 bytes, which stay the next ones; numbers do not lie across blocks.  Errors: IO, CORRUPT. */
hotbed_status hotbed_extent_peek(hotbed_extent_stream *stream, uint64_t *word);

/* Write an extent in one go. */
hotbed_status hotbed_extent_write(
    hotbed_extent_stream *stream, const void *data, hotbed_digest *root);

/* Whether the blocks' digests give the extent's root.  Errors: CORRUPT. */
hotbed_status hotbed_extent_check_root(const hotbed_extent_stream *stream);

/* Compare bytes [0, bytes) at `offset` with a root.  Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_extent_check_bytes(
    hotbed_io_file *file, const char *what, uint64_t offset, uint64_t bytes, hotbed_digest root,
    size_t block_bytes);

#endif
