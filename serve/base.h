/* serve/base.h - publish rows that are in no storage, such as a checkpoint's, as a base of a directory. */
#pragma once

#include "hotbed/publish.h"

/* A table. Its rows come in the order of a checkpoint. */
typedef struct hotbed_base_table {
    const char *name;
    uint32_t dim;
    hotbed_dtype dtype;
    hotbed_key_type key_type;
    uint64_t rows;
    /* hash: rows come by the top `bits` bits of the hashes of their keys, in any order among rows of equal
     * bits; false: row r has key r */
    bool hash;
    uint32_t bits;
} hotbed_base_table;

/* Rows that follow those of the call before: keys [n], if the table is a hash table, and embeddings of its
 * dtype. 0 rows end the table. */
typedef hotbed_status (*hotbed_base_next)(
    void *context, uint32_t table, uint64_t *n, const uint64_t **keys, const void **rows);

/* Write a base of n tables, and remove older ones, as a publisher does. Tables are asked for in order, each
 * once. Missing keys read as 0.
 *   number  out  of the cut
 * Host memory: 64 MiB, and the rows with equal `bits`. Rows of a table without hash are sorted in a file of
 * the directory that has no name; above 64 GiB of these, a 4096th of them is in memory.
 * After an error, a directory that it has created is gone, unless it has a cut.
 * Errors: IO, STATE (another publisher has the directory; its cuts are of another model), MEMORY, ARGUMENT (the
 * encoding does not have a value; the directory is a checkpoint, or in one, or contains one), UNSUPPORTED (2^32
 * rows or more in a table; a build without HOTBED_SERVE), CORRUPT (a table has another number of rows), and
 * those of `next`. */
hotbed_status hotbed_base_write(
    const char *directory, const hotbed_base_table *tables, uint32_t n, hotbed_encoding encoding,
    uint64_t step, hotbed_base_next next, void *context, uint64_t *number);
