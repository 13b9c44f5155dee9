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

/* What one checkpoint had of a rank's rows. */
typedef struct hotbed_marked {
    hotbed_digest id; /* of the checkpoint; 0: there is none */
    uint32_t num_tables;
    hotbed_mark_table *tables;
} hotbed_marked;

/* Of two checkpoints: who puts a shard does not learn whether the checkpoint got its name, so what the one before
 * had is kept, and the next save says by its parent which of them there is. */
struct hotbed_checkpoint_mark {
    hotbed_marked last, before;
};

/* Room for tables.  Errors: MEMORY. */
hotbed_status hotbed_marked_reserve(uint32_t num_tables, hotbed_marked *out);

/* Free what is in it.  {0} is allowed. */
void hotbed_marked_clear(hotbed_marked *marked);

/* Which of the two is of checkpoint `id`; NULL: neither. */
const hotbed_marked *hotbed_mark_find(const hotbed_checkpoint_mark *mark, hotbed_digest id);

/* A shard of checkpoint `id` was put: *next, which is taken, is the last one, and `base`, which it came from, the one
 * before; NULL, of a full one: what was the last. */
void hotbed_mark_push(
    hotbed_checkpoint_mark *mark, const hotbed_marked *base, hotbed_digest id, hotbed_marked *next);

/* The last one has its name: what was before is not needed.  NULL is allowed. */
void hotbed_mark_settle(hotbed_checkpoint_mark *mark);

/* Room for the rows of a table; takes `keys` (or NULL) for its own, on error too.  Errors: MEMORY. */
hotbed_status hotbed_mark_rows(hotbed_mark_table *table, uint64_t rows, uint64_t *keys);

/* What differs between two marks of a table: keys of `now` that are new or whose rows changed, and keys of
 * `then` that are gone, both in order; of static tables numbers from `first_row` on.  The caller frees both
 * with hotbed_delete().  Errors: MEMORY, STATE (one is of a static table, the other not). */
typedef struct hotbed_mark_changes {
    uint64_t num_changed, num_erased;
    uint64_t *changed, *erased;
} hotbed_mark_changes;

hotbed_status hotbed_mark_compare(
    const hotbed_mark_table *then, const hotbed_mark_table *now, uint32_t bucket_bits,
    uint64_t first_row, hotbed_mark_changes *out);

#endif
