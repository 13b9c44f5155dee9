/* checkpoint/shard_writer.h - one shard file, table by table, rows in canonical order.
 *
 * Before a byte is written the manifest says how many rows, counted and erased keys each part has; libhdf5
 * lays the file out by that.  Then each table is begun, given its columns, and ended.  What is not written behind
 * has a block of memory for each column that was begun and is not complete.
 */
#ifndef HOTBED_CHECKPOINT_SHARD_WRITER_H
#define HOTBED_CHECKPOINT_SHARD_WRITER_H

#include "checkpoint/extent.h"

typedef struct hotbed_shard_writer {
    hotbed_manifest *manifest; /* borrowed; its shard, parts and contents are filled in */
    uint32_t number;
    hotbed_io_file file;
    hotbed_write_behind behind;
    hotbed_digest *blocks; /* [num_blocks] of the shard */
    void *metadata;
    hotbed_manifest_table *table; /* that was begun */
    hotbed_manifest_part *part;
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    unsigned char *row; /* one row's bytes, for its digest */
} hotbed_shard_writer;

/* Lay the shard out and make its file in `directory`.  The counts of its parts are set; `extra` are the
 * bytes that shards[number].extra says.  The caller calls hotbed_shard_writer_close() in any case.
 * Errors: IO, MEMORY, UNSUPPORTED (too many tables). */
hotbed_status hotbed_shard_writer_open(
    hotbed_shard_writer *writer, const hotbed_io_file *directory, hotbed_manifest *manifest,
    uint32_t number, const void *extra);

/* Have what follows, unless it is little, written by other threads, past the kernel's cache where that can be,
 * while the caller goes on; failures come later.  `directory` as before.  *writer does not move from here on.  Errors: IO, MEMORY. */
hotbed_status hotbed_shard_writer_behind(
    hotbed_shard_writer *writer, const hotbed_io_file *directory);

hotbed_status hotbed_shard_writer_begin(hotbed_shard_writer *writer, uint32_t table);

/* Append n rows.  columns[i] is [n] rows of hotbed_manifest_row_bytes(); keys are there for every table.
 * `digests` are the rows', [n], out; NULL: not wanted. */
hotbed_status hotbed_shard_writer_rows(
    hotbed_shard_writer *writer, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS],
    hotbed_digest *digests);

/* Append to a column that has nothing of each row: BUCKET, COUNTED, COUNTS, ERASED. */
hotbed_status hotbed_shard_writer_column(
    hotbed_shard_writer *writer, uint32_t column, const void *data, uint64_t bytes);

/* All columns that have nothing of each row: how many of the part's rows each bucket has, from their `keys`; the
 * counted keys and their counts, [2 * counted], and the erased ones, in canonical order.  Static tables have none.
 * Errors: MEMORY, IO. */
hotbed_status hotbed_shard_writer_alone(
    hotbed_shard_writer *writer, const uint64_t *keys, const uint64_t *counted,
    const uint64_t *erased);

/* All columns of the table are complete.  Errors: IO, STATE (they are not). */
hotbed_status hotbed_shard_writer_end(hotbed_shard_writer *writer);

/* All tables were written: the digests, then everything to disk. */
hotbed_status hotbed_shard_writer_finish(hotbed_shard_writer *writer);

/* {0} with a closed file is allowed; keeps the error text. */
void hotbed_shard_writer_close(hotbed_shard_writer *writer);

/* Digests of n rows, columns as above: the bytes of key, then of the columns in order.  Adds them to *sum.
 *   row      scratch of one row's bytes
 *   digests  out  [n]; may be NULL */
void hotbed_digest_rows(
    uint64_t n, void *const columns[HOTBED_ROW_COLUMNS], const size_t row_bytes[HOTBED_ROW_COLUMNS],
    unsigned char *row, hotbed_digest *sum, hotbed_digest *digests);

#endif
