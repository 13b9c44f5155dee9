/* checkpoint/mark.h - what a checkpoint had, for the next one to have only what changed. */
#ifndef HOTBED_CHECKPOINT_MARK_H
#define HOTBED_CHECKPOINT_MARK_H

#include "checkpoint/manifest.h"
#include "hotbed/checkpoint.h"

/* A table's rows in the order that they are saved in. */
typedef struct hotbed_mark_table {
    uint64_t rows;
    uint64_t *keys;         /* [rows]; NULL for a static table */
    hotbed_digest *digests; /* [rows] */
} hotbed_mark_table;

struct hotbed_checkpoint_mark {
    hotbed_digest id; /* of the checkpoint; 0: none yet */
    uint32_t num_tables;
    hotbed_mark_table *tables;
};

/* Room for tables.  Errors: MEMORY. */
hotbed_status hotbed_mark_reserve(uint32_t num_tables, hotbed_checkpoint_mark *out);

/* Room for the rows of a table; takes `keys` (or NULL) for its own, on error too.  Errors: MEMORY. */
hotbed_status hotbed_mark_rows(hotbed_mark_table *table, uint64_t rows, uint64_t *keys);

/* Free what is in it.  {0} is allowed. */
void hotbed_mark_clear(hotbed_checkpoint_mark *mark);

/* What differs between two marks of a table: keys of `now` that are new or whose rows changed, and keys of
 * `then` that are gone, both in order; of static tables numbers from `first_row` on.  The caller frees both
 * with hotbed_delete().  Errors: MEMORY. */
typedef struct hotbed_mark_changes {
    uint64_t num_changed, num_erased;
    uint64_t *changed, *erased;
} hotbed_mark_changes;

hotbed_status hotbed_mark_compare(
    const hotbed_mark_table *then, const hotbed_mark_table *now, uint32_t bucket_bits,
    uint64_t first_row, hotbed_mark_changes *out);

#endif
