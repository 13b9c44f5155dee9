/* checkpoint/import.h - a checkpoint from flat files of rows, in any order, and flat files from a checkpoint.
 *
 * A column of a table is bytes at a place of a file, a row every `stride` bytes; a table may have several
 * parts, each with its own files.  dynamicemb's dumps and .npy files are both of that kind.
 */
#ifndef HOTBED_CHECKPOINT_IMPORT_H
#define HOTBED_CHECKPOINT_IMPORT_H

#include "checkpoint/rewrite.h"

/* Where a column lies; a file that is NULL: all zeros. */
typedef struct hotbed_import_column {
    hotbed_io_file *file; /* borrowed */
    uint64_t offset, stride;
} hotbed_import_column;

typedef struct hotbed_import_part {
    uint64_t rows;
    hotbed_import_column columns[HOTBED_ROW_COLUMNS]; /* KEYS: HASH tables */
    uint64_t counted;
    hotbed_import_column counted_keys, counts;
} hotbed_import_part;

typedef struct hotbed_import_table {
    char name[64];
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint32_t dim;
    uint32_t num_parts;
    bool ages; /* scores are ages: what is written is the oldest age less each, plus 1 */
    hotbed_import_part *parts; /* [num_parts] */
} hotbed_import_table;

typedef struct hotbed_import {
    hotbed_key_type key_type;
    hotbed_optimizer optimizer;
    uint64_t step;
    uint32_t num_tables;
    hotbed_import_table *tables; /* [num_tables] */
    const hotbed_progress *progress;
} hotbed_import;

/* Write a full checkpoint of one shard.  Keys and the order of rows are held in memory, 24 bytes for each row
 * of the largest table.  Errors: STATE (`path` exists; a key is there twice), IO, CORRUPT, MEMORY. */
hotbed_status hotbed_checkpoint_import(
    const hotbed_io_calls *calls, const char *path, const hotbed_import *import);

/* Write a chain's tables into the new directory `path`, a .npy file a column: <table>.weight.npy, .weight_id,
 * .metadata, and .<state>.  bf16, which .npy does not know, becomes f32. */
hotbed_status hotbed_checkpoint_export_npy(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress);

/* Write a chain's tables into one new HDF5 file, under the names of index.h5, with their data. */
hotbed_status hotbed_checkpoint_export_h5(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress);

/* What a .npy file's header says. */
typedef struct hotbed_npy {
    char type;            /* 'f', 'i' or 'u' */
    uint32_t bytes;       /* of an element */
    uint32_t dims;        /* 1 or 2 */
    uint64_t rows, width; /* width 1 when there is one dimension */
    uint64_t offset;      /* of the first element */
} hotbed_npy;

/* Read the header of a .npy file: little-endian, C order, 1 or 2 dimensions, as long as it says.
 * Errors: IO, CORRUPT, UNSUPPORTED. */
hotbed_status hotbed_npy_read(hotbed_io_file *file, hotbed_npy *out);

#endif
