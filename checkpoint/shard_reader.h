/* checkpoint/shard_reader.h - the files of a checkpoint, read and checked.
 *
 * Opening a shard reader checks the file's size and the digests of its blocks. A part reader
 * returns the rows of one table in the shard, or a range of them. Each block is checked before a
 * byte of it is used, or, if blocks are read in pieces, with the last piece. A size that a file
 * states is used to allocate memory only after the file is known to be that large. */
#pragma once

#include "checkpoint/extent.h"
#include "hotbed/route.h"

/* Read and parse MANIFEST of an open directory. The caller frees *out. Errors: IO, CORRUPT (it is
 * missing, or damaged), UNSUPPORTED, MEMORY. */
hotbed_status hotbed_manifest_read(const hotbed_io_file *directory, hotbed_manifest *out);

typedef struct hotbed_shard_reader {
    const hotbed_manifest *manifest; /* borrowed */
    uint32_t number;
    hotbed_io_file file;
    hotbed_digest *blocks; /* the digests of all blocks of the shard */
    /* read ahead of the caller; NULL: nothing is read ahead. Borrowed */
    hotbed_io_workers *workers;
    size_t piece_bytes; /* as in hotbed_extent_stream; set by a caller with many open parts */
    /* Without workers: columns that are read as a whole when a part is opened, and stay in memory
     * for parts that are opened later. Set by a caller that reads them twice. */
    uint32_t keep_columns;                  /* one bit per column */
    uint64_t *keep_bytes;                   /* how many more bytes may be kept. Borrowed */
    unsigned char *(*kept)[HOTBED_COLUMNS]; /* [num_tables]; NULL: nothing was kept */
} hotbed_shard_reader;

/* Open shard `number`, and check its size and the digests of its blocks. The caller must call
 * hotbed_shard_reader_close() even after an error. Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_shard_reader_open(
    hotbed_shard_reader *reader, const hotbed_io_file *directory, const hotbed_manifest *manifest,
    uint32_t number);

/* Let `workers`, unless NULL, read ahead for the parts that are opened from now on. If `alone`, no
 * other rank reads these bytes, so they bypass the page cache where possible. `directory` is the
 * argument of open. Errors: IO. */
hotbed_status hotbed_shard_reader_ahead(
    hotbed_shard_reader *reader, const hotbed_io_file *directory, hotbed_io_workers *workers,
    bool alone);

/* Close a shard. {0} with a closed file is allowed. Keeps the error text. */
void hotbed_shard_reader_close(hotbed_shard_reader *reader);

/* Check the metadata, and the roots of all extents: everything that can be checked without reading
 * the extents. Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_shard_reader_check(hotbed_shard_reader *reader);

/* Copy blob `number` to `out`, [its extent.bytes], and check it. Shard 0 only. */
hotbed_status hotbed_shard_reader_blob(hotbed_shard_reader *reader, uint32_t number, void *out);

/* The previous key of a column whose keys are in canonical order. */
typedef struct hotbed_last_key {
    bool any;
    uint64_t bucket, key;
} hotbed_last_key;

/* The reader of one part. With workers it must not move while it is open. */
typedef struct hotbed_part_reader {
    hotbed_shard_reader *shard; /* borrowed */
    const hotbed_manifest_table *table;
    const hotbed_manifest_part *part;
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    unsigned char *buffers;     /* without workers */
    hotbed_memory memory;       /* with workers: blocks of all columns */
    hotbed_row_numbers numbers; /* STATIC: of the part's rows */
    bool counts;                /* HASH: rows are compared with the bucket counts */
    uint64_t buckets;           /* number of bucket counts that were read */
    uint64_t count;             /* rows of the current bucket that have not been read */
    uint64_t row;               /* the next row, in the part */
    uint64_t end_row;           /* end of the range */
    bool skipped;               /* rows were skipped: the columns are at earlier rows */
    bool routed;                /* the route must assign each key to the shard's number */
    hotbed_route route;
    hotbed_last_key last[HOTBED_COLUMNS]; /* of KEYS, COUNTED and ERASED */
} hotbed_part_reader;

/* Open the part of table `table`, with all its rows as the range. If `counts`, read the bucket
 * counts of a HASH table and compare them with the rows. The caller must call
 * hotbed_part_reader_close() even after an error. Errors: IO, CORRUPT, MEMORY. */
hotbed_status hotbed_part_reader_open(
    hotbed_part_reader *part, hotbed_shard_reader *shard, uint32_t table, bool counts);

void hotbed_part_reader_close(hotbed_part_reader *part);

/* Limit the range to rows [first, end) of the part. Call it before any row was taken. */
void hotbed_part_reader_range(hotbed_part_reader *part, uint64_t first, uint64_t end);

/* Return the number of rows left in the range. */
static inline uint64_t hotbed_part_reader_left(const hotbed_part_reader *part) {
    return part->end_row - part->row;
}

/* Read the next n rows, at most hotbed_part_reader_left(), into columns[i], [n] rows of
 * hotbed_manifest_row_bytes(). Keys are returned for every table, in canonical order. Errors: IO,
 * CORRUPT (also: the table's route assigns a key to another shard), UNSUPPORTED (a score or time
 * over 2^52 - 1). */
hotbed_status hotbed_part_reader_take(
    hotbed_part_reader *part, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]);

/* Return the key of the next row without consuming it. A row must be left. */
hotbed_status hotbed_part_reader_key(hotbed_part_reader *part, uint64_t *key);

/* Skip the next row. Its key is checked; its other columns are not read. */
hotbed_status hotbed_part_reader_skip(hotbed_part_reader *part);

/* Read the next n keys of COUNTED or ERASED. Errors: IO, CORRUPT (out of order, or in the wrong
 * shard). */
hotbed_status hotbed_part_reader_keys(
    hotbed_part_reader *part, uint32_t column, uint64_t n, uint64_t *keys);

/* Read the next n counts of COUNTS. Errors: IO, CORRUPT, UNSUPPORTED (a count over 2^52 - 1). */
hotbed_status hotbed_part_reader_counts(hotbed_part_reader *part, uint64_t n, uint64_t *counts);
