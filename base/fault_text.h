/* base/fault_text.h - the errors of faults, with the names of tables.
 *
 * A fault has the number of a table. Streams remember which storages had work on them, so that the
 * text can have the table's name. */
#pragma once

#include "base/error.h"
#include "base/fault.h"
#include "hotbed/types.h"

#include <stdbool.h>
#include <stddef.h>

HOTBED_BEGIN_DECLS

/* The names of a storage's tables. Shared, because a fault can outlive its storage. */
typedef struct hotbed_table_names hotbed_table_names;

/* The keys of a table. A static table of one of several ranks stores row numbers, and keys that are
 * not in the table as they are (CONTINUOUS of hotbed/route.h). */
typedef struct hotbed_table_keys {
    bool any; /* every key is valid, so no fault KEY_RANGE is of this table */
    uint32_t rank;
    uint64_t rows;        /* of all ranks; 0: the table stores keys */
    uint64_t first, step; /* row number i is of key first + i * step */
} hotbed_table_keys;

/* Copy the names of n tables, whose keys have this type. Each of the `structs`, which are `stride` bytes apart,
 * begins with a name. The caller releases the result. NULL: out of memory. */
hotbed_table_names *hotbed_table_names_create(
    const void *structs, uint32_t n, size_t stride, hotbed_key_type type);

/* Describe the keys of a table; before any work on it is enqueued. Without this call, the table
 * stores keys, and some keys are invalid. */
void hotbed_table_names_set_keys(
    hotbed_table_names *names, uint32_t table, const hotbed_table_keys *keys);
void hotbed_table_names_release(hotbed_table_names *names); /* NULL is allowed */

enum { HOTBED_FAULT_SOURCES_MOST = 8 };

/* The work on a stream that may latch its next fault. Zeros: none. */
typedef struct hotbed_fault_sources {
    hotbed_table_names *names[HOTBED_FAULT_SOURCES_MOST];
    uint32_t num;
    bool unnamed;  /* also work whose tables have no names, or of too many storages */
    bool recorded; /* some work is in a graph, which may repeat it at any time */
} hotbed_fault_sources;

/* Add work of a storage with these names; NULL: work whose tables have no names. Keeps a reference
 * to the names. Never allocates. */
void hotbed_fault_sources_add(
    hotbed_fault_sources *sources, hotbed_table_names *names, bool recorded);

/* Remove the sources that can latch no fault any more: all that are not in a graph if all work is
 * `done`; otherwise storages that were destroyed, since their work was done before. */
void hotbed_fault_sources_passed(hotbed_fault_sources *sources, bool done);
void hotbed_fault_sources_clear(hotbed_fault_sources *sources);

/* Make the error of a fault: its text and its fields. The table has its name if only one name is
 * possible, and otherwise its number and, in the text, the possible names. A key outside of a static
 * table of several ranks is compared with the rows of all ranks if only one table is possible. */
void hotbed_fault_describe(
    hotbed_fault fault, const hotbed_fault_sources *sources, hotbed_error *out);

HOTBED_END_DECLS
