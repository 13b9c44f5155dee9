/* checkpoint/shard_reader.h - the files of a checkpoint, read and checked.
 *
 * A shard reader has checked the file's size and the digests of its blocks; a part reader
 * gives out one table's rows of it, or a range of them, each block checked before a byte of
 * it is used; where blocks are read in pieces, with the last one.  Nothing is allocated by a number from a file
 * before the file is known to be that large.
 */
#ifndef HOTBED_CHECKPOINT_SHARD_READER_H
#define HOTBED_CHECKPOINT_SHARD_READER_H

#include "checkpoint/extent.h"

/* Read and parse MANIFEST of an open directory; the caller frees *out.
 * Errors: IO, CORRUPT, UNSUPPORTED, MEMORY. */
hotbed_status hotbed_manifest_read(const hotbed_io_file *directory, hotbed_manifest *out);

typedef struct hotbed_shard_reader {
    const hotbed_manifest *manifest; /* borrowed */
    uint32_t number;
    hotbed_io_file file;
    hotbed_digest *blocks;  /* of the shard, all of them */
    hotbed_io_lanes *lanes; /* read rows ahead of who takes them; NULL: nobody does.  Borrowed */
    size_t room;            /* as a hotbed_extent_stream's; set by who has many parts open */
    /* Without lanes: columns that are read when a part is opened, and stay in memory for parts that are opened later.
     * Set by who reads them twice. */
    uint32_t keep_columns;                  /* one bit each */
    uint64_t *keep_bytes;                   /* so many more may stay.  Borrowed */
    unsigned char *(*kept)[HOTBED_COLUMNS]; /* [num_tables]; NULL: nothing was kept */
} hotbed_shard_reader;

/* Open shard `number`: its size and the digests of its blocks are checked.  The caller calls hotbed_shard_reader_close() in any case.
 * Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_shard_reader_open(
    hotbed_shard_reader *reader, const hotbed_io_file *directory, const hotbed_manifest *manifest,
    uint32_t number);

/* Have `lanes`, unless NULL, read ahead for the parts that are opened from here on.  `alone`: nobody else reads these bytes, so
 * past the kernel's cache where that can be.  `directory` as before.  Errors: IO. */
hotbed_status hotbed_shard_reader_ahead(
    hotbed_shard_reader *reader, const hotbed_io_file *directory, hotbed_io_lanes *lanes,
    bool alone);

/* {0} with a closed file is allowed; keeps the error text. */
void hotbed_shard_reader_close(hotbed_shard_reader *reader);

/* Its metadata, and the roots of all of its extents: what can be checked without reading them.  Errors: IO, CORRUPT,
 * MEMORY. */
hotbed_status hotbed_shard_reader_check(hotbed_shard_reader *reader);

/* Copy the caller's bytes, checked; room for shards[0].extra.bytes.  Shard 0. */
hotbed_status hotbed_shard_reader_extra(hotbed_shard_reader *reader, void *extra);

/* With lanes it stays where it was opened. */
typedef struct hotbed_part_reader {
    hotbed_shard_reader *shard; /* borrowed */
    const hotbed_manifest_table *table;
    const hotbed_manifest_part *part;
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    unsigned char *buffers; /* without lanes */
    hotbed_memory memory;   /* with lanes: blocks of all columns */
    bool counts;            /* HASH: rows are compared with what the buckets count */
    uint64_t buckets;       /* of those counts, how many were read */
    uint64_t count;         /* of the last one: rows of the bucket that are still to come */
    uint64_t row;           /* of the part: the next one */
    uint64_t end_row;       /* of the range */
    uint64_t last_bucket, last_key;
    bool skipped; /* rows were passed over: the columns stand at earlier ones */
    bool any;     /* a key was given out since the range was set */
} hotbed_part_reader;

/* The part of table `table`; all its rows are the range.  `counts`: read how many rows of a HASH table are in each
 * bucket, and compare.  The caller calls hotbed_part_reader_close() in any case.  Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_part_reader_open(
    hotbed_part_reader *part, hotbed_shard_reader *shard, uint32_t table, bool counts);

void hotbed_part_reader_close(hotbed_part_reader *part);

/* Rows [first, end) of the part are the range; before any was taken. */
void hotbed_part_reader_range(hotbed_part_reader *part, uint64_t first, uint64_t end);

/* Rows of the range that are still to come. */
static inline uint64_t hotbed_part_reader_left(const hotbed_part_reader *part) {
    return part->end_row - part->row;
}

/* The next n rows, at most those that are left, into columns[i], [n] rows of hotbed_manifest_row_bytes().
 * Keys are given for every table, in canonical order.  Errors: IO, CORRUPT. */
hotbed_status hotbed_part_reader_take(
    hotbed_part_reader *part, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]);

/* Key of the next row, which stays the next one; there is one. */
hotbed_status hotbed_part_reader_key(hotbed_part_reader *part, uint64_t *key);

/* Pass over the next row; its key is checked, what else it has is not read. */
hotbed_status hotbed_part_reader_skip(hotbed_part_reader *part);

/* The next bytes of COUNTED, COUNTS or ERASED. */
hotbed_status hotbed_part_reader_column(
    hotbed_part_reader *part, uint32_t column, void *data, uint64_t bytes);

#endif
