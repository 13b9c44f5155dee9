/* checkpoint/import.h - make a checkpoint from flat files of rows, and flat files from a
 * checkpoint.
 *
 * A column of a table is a position in a file, with one row every `stride` bytes, in any order of
 * rows. A table may have several parts, each with its own files. dynamicemb's dumps and .npy files
 * both have this form. */
#pragma once

#include "checkpoint/rewrite.h"

/* Where a column is stored. If `file` is NULL, all its values are zero. */
typedef struct hotbed_import_column {
    hotbed_io_file *file; /* borrowed */
    uint64_t offset, stride;
    bool is_signed; /* scores and times: a negative one is an error */
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
    hotbed_dtype state_dtype; /* of the states in the files; the checkpoint gets F32 */
    uint32_t dim;
    uint32_t num_parts;
    /* Scores are ages: the written score is `now` minus the age. `now` is the largest age plus 1,
     * unless it is given and later. */
    bool ages;
    uint64_t now;
    /* A score or time over 2^52 - 1 is an error; otherwise ranks replace all of them. */
    bool exact_scores;
    /* Times and ages are in nanoseconds; microseconds are written. */
    bool nanoseconds;
    hotbed_import_part *parts; /* [num_parts] */
} hotbed_import_table;

typedef struct hotbed_import {
    hotbed_key_type key_type;
    hotbed_optimizer optimizer;
    uint64_t optimizer_steps; /* ADAM: number of updates so far */
    uint64_t step;
    uint32_t num_tables;
    hotbed_import_table *tables; /* [num_tables] */
    const hotbed_progress *progress;
} hotbed_import;

/* Write a full checkpoint with one shard. If a score or time of a table needs more than 52 bits, as
 * nanoseconds do, ranks replace all of them, unless exact_scores is set: 1 for the lowest, equal ranks for equal
 * values. The
 * storage's clock becomes the highest score, so keys that a table sees later score higher. Keys and
 * the order of rows are held in memory, 48 bytes for each row of the largest table. Errors: STATE
 * (`path` exists; a key occurs twice), IO, CORRUPT (an age over 2^63 - 1; a negative score, time or count),
 * UNSUPPORTED (a count over 2^52 - 1, or an exact score), MEMORY. */
hotbed_status hotbed_checkpoint_import(
    const hotbed_io_calls *calls, const char *path, const hotbed_import *import);

/* Write the tables of a chain into the new directory `path`, one .npy file per column:
 * <table>.weight.npy, .weight_id, .metadata, .times and .<state>. Types that .npy does not have, such
 * as bf16, become f32. The directory is named .tmp-<id>, beside `path`, until all files are complete and on
 * disk. A failed export leaves nothing. Errors: ARGUMENT (no name), STATE (`path` exists), IO,
 * CORRUPT, MEMORY. */
hotbed_status hotbed_checkpoint_export_npy(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress);

/* Write the tables of a chain, with their data, into the new HDF5 file `path`, with the object
 * names of index.h5. The file has a temporary name until it is complete and on disk. The errors are
 * the same. */
hotbed_status hotbed_checkpoint_export_h5(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress);

/* The header of a .npy file. */
typedef struct hotbed_npy {
    char type;            /* 'f', 'i' or 'u' */
    uint32_t bytes;       /* of an element */
    uint32_t dims;        /* 1 or 2 */
    uint64_t rows, width; /* width 1 if there is one dimension */
    uint64_t offset;      /* of the first element */
} hotbed_npy;

/* Read the header of a .npy file. It must be little-endian, in C order, have 1 or 2 dimensions, and
 * the size that its header states. Errors: IO, CORRUPT, UNSUPPORTED. */
hotbed_status hotbed_npy_read(hotbed_io_file *file, hotbed_npy *out);
