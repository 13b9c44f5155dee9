/* checkpoint/shard_writer.h - write one shard file, table by table, with rows in canonical order.
 *
 * Before a byte is written, the manifest states how many rows, counted keys and erased keys each
 * part has, and libhdf5 lays out the file from these numbers. Then each table is begun, given its
 * columns, and ended. Without writing behind, every column that was begun and is not complete has a
 * block of memory. */
#pragma once

#include "checkpoint/extent.h"

typedef struct hotbed_shard_writer {
    hotbed_manifest *manifest; /* borrowed; its shard, parts and contents are filled in */
    uint32_t number;
    hotbed_io_file file;
    hotbed_write_behind behind;
    hotbed_digest *blocks; /* [num_blocks] of the shard */
    void *metadata;
    hotbed_manifest_table *table; /* the table that was begun */
    hotbed_manifest_part *part;
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    unsigned char *row; /* scratch buffer of one row's bytes, for its digest */
} hotbed_shard_writer;

/* Lay out the shard, and create its file in `directory`. The row and key counts of its parts must
 * be set. Shard 0 also gets the blobs: blobs[i] has manifest->blobs[i].extent.bytes bytes. The
 * caller must call hotbed_shard_writer_close() even after an error. Errors: IO, MEMORY, UNSUPPORTED
 * (too many tables). */
hotbed_status hotbed_shard_writer_open(
    hotbed_shard_writer *writer, const hotbed_io_file *directory, hotbed_manifest *manifest,
    uint32_t number, const void *const *blobs);

/* Let other threads write everything that follows while the caller continues, bypassing the page
 * cache where possible. Does nothing for small shards. Write errors are reported by later calls.
 * `directory` is the argument of open. *writer must not move from now on. Errors: IO, MEMORY. */
hotbed_status hotbed_shard_writer_behind(
    hotbed_shard_writer *writer, const hotbed_io_file *directory);

hotbed_status hotbed_shard_writer_begin(hotbed_shard_writer *writer, uint32_t table);

/* Append n rows. columns[i] has [n] rows of hotbed_manifest_row_bytes(); keys are required for
 * every table. `digests`, [n] out, receives the rows' digests; it may be NULL. */
hotbed_status hotbed_shard_writer_rows(
    hotbed_shard_writer *writer, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS],
    hotbed_digest *digests);

/* Append to a column without one entry per row: BUCKET, COUNTED, COUNTS or ERASED. */
hotbed_status hotbed_shard_writer_column(
    hotbed_shard_writer *writer, uint32_t column, const void *data, uint64_t bytes);

/* Write how many of the part's rows each bucket has, if the part has that column. The keys are `stride` bytes
 * apart. */
hotbed_status hotbed_shard_writer_buckets(
    hotbed_shard_writer *writer, const void *keys, size_t stride);

/* Write the columns that do not have one entry per row; static tables have none. All keys are in
 * canonical order.
 *
 *   keys     in  keys of the part's rows; the column of rows per bucket, if the part has one, is
 *                computed from them
 *   counted  in  [2 * counted] keys that admission counts, and then their counts
 *   erased   in  erased keys
 *
 * Errors: MEMORY, IO. */
hotbed_status hotbed_shard_writer_alone(
    hotbed_shard_writer *writer, const uint64_t *keys, const uint64_t *counted,
    const uint64_t *erased);

/* End the table after all its columns were written. Errors: IO, STATE (a column is incomplete). */
hotbed_status hotbed_shard_writer_end(hotbed_shard_writer *writer);

/* Finish the shard after all its tables: write the block digests, sync and close the file. */
hotbed_status hotbed_shard_writer_finish(hotbed_shard_writer *writer);

/* Close a writer. {0} with a closed file is allowed. Keeps the error text. */
void hotbed_shard_writer_close(hotbed_shard_writer *writer);

/* Compute the digests of n rows, and add them to *sum. A digest covers the bytes of the key, then
 * of the other columns in order. `columns` are as in hotbed_shard_writer_rows().
 *
 *   row      scratch buffer of one row's bytes
 *   digests  out  [n]; may be NULL */
void hotbed_digest_rows(
    uint64_t n, void *const columns[HOTBED_ROW_COLUMNS], const size_t row_bytes[HOTBED_ROW_COLUMNS],
    unsigned char *row, hotbed_digest *sum, hotbed_digest *digests);
