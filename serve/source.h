/* serve/source.h - what changed in the storages since the last cut.
 *
 * A source copies rows on the trainer's thread, and tells the publisher's thread, table by table, which
 * rows to write and which keys to remove. Of a table that tracks changes and has no filter it copies what
 * changed since the position of the last cut (hotbed/changes.h). Of other tables it copies all rows, and
 * compares digests of their encoded bytes. The publisher knows nothing else of where changes come from. */
#pragma once

#include "checkpoint/storages.h"
#include "hotbed/publish.h"
#include "serve/encode.h"

typedef struct hotbed_source hotbed_source;

/* Create a source. `cut`, [tables], describes the rows of a cut; hotbed_source_take() sets their steps and powers.
 * `routes` are NULL with one rank, `filters` are copied or NULL. All other pointers are borrowed while it
 * exists. Errors: MEMORY. */
hotbed_status hotbed_source_create(
    const hotbed_storages *storages, hotbed_cut_table *cut, const hotbed_route *routes,
    const hotbed_change_filter *filters, uint32_t rank, hotbed_source **out);
void hotbed_source_destroy(hotbed_source *source); /* NULL is allowed */

/* Take the position of the next cut, and list the keys that have left the tables. Sets *whole if the
 * cut has to have all rows, because the source does not know all changes since the last cut that was settled.
 * Waits for the stream's work, whose latched fault stays. Errors: MEMORY, DEVICE, STATE. */
hotbed_status hotbed_source_begin(hotbed_source *source, bool *whole, hotbed_stream *stream);

/* Copy the keys and rows that changed, or all of them. Waits as hotbed_source_begin() does.
 * Errors: STATE (rows entered or left a table meanwhile), MEMORY, DEVICE, UNSUPPORTED. */
hotbed_status hotbed_source_take(hotbed_source *source, bool whole, hotbed_stream *stream);

/* The changes of a table of this rank. Arrays belong to the source. */
typedef struct hotbed_changes {
    uint64_t keys_after; /* keys that readers have of the table after the cut */
    uint64_t num_rows, num_erased;
    const uint64_t *keys;   /* [num_rows] in the order of their hashes */
    const uint32_t *places; /* [num_rows] number of the key's row in `rows` */
    const void *rows;       /* [.., dim] of the table's dtype */
    /* [.., hotbed_cut_state_dim()] of these dtypes; NULL: rows of the cut have no such state */
    const void *states[2];
    hotbed_dtype state_dtypes[2];
    const uint64_t
        *erased; /* [num_erased] in the order of their hashes; the cut before may lack some */
} hotbed_changes;

/* The states of a row of changes. */
static inline hotbed_row_states hotbed_changes_states(
    const hotbed_cut_table *table, const hotbed_changes *changes, uint64_t place) {
    hotbed_row_states row = {.dtypes = {changes->state_dtypes[0], changes->state_dtypes[1]}};
    for (uint32_t s = 0; s < 2; s++)
        if (changes->states[s] != NULL)
            row.of[s] = (const char *)changes->states[s] +
                        place * hotbed_cut_state_dim(table, s) * hotbed_dtype_bytes(row.dtypes[s]);
    return row;
}

/* Find the changes of a table between the last cut that was settled and the copy; `whole`, as for the copy:
 * all rows.
 * Valid until the next call for any table. Errors: MEMORY, STATE (a key belongs to another rank),
 * ARGUMENT (the encoding does not have a value, with table and key). */
hotbed_status hotbed_source_changes(
    hotbed_source *source, uint32_t table, bool whole, hotbed_changes *out);

/* The cut with the changes of all tables is on disk: compare with it from now on. */
void hotbed_source_settle(hotbed_source *source);
