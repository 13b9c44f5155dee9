/* checkpoint/mark.h - the rows of the last checkpoint, from which the next one finds what
 * changed. */
#pragma once

#include "checkpoint/format/manifest.h"
#include "hotbed/changes.h"
#include "hotbed/checkpoint.h"

/* A table's rows, in the order in which they are saved. */
typedef struct hotbed_mark_table {
    uint64_t rows;
    uint64_t *keys;         /* [rows]; NULL for a static table */
    hotbed_digest *digests; /* [rows] */
    /* instead of rows, keys and digests: the position of the save; epoch 0: there is none */
    hotbed_change_position position;
} hotbed_mark_table;

/* One rank's rows in one checkpoint. */
typedef struct hotbed_marked {
    hotbed_digest id; /* of the checkpoint; 0: there is none */
    uint32_t num_tables;
    hotbed_mark_table *tables;
} hotbed_marked;

/* A mark has the rows of two checkpoints. A rank that puts its shard does not learn whether the
 * checkpoint got its name, so the rows of the checkpoint before are kept. The parent of the next
 * save says which of the two exists. */
struct hotbed_checkpoint_mark {
    hotbed_marked last, before;
};

/* Allocate the tables. Errors: MEMORY. */
hotbed_status hotbed_marked_reserve(uint32_t num_tables, hotbed_marked *out);

/* Free the tables and their rows. {0} is allowed. */
void hotbed_marked_clear(hotbed_marked *marked);

/* Return the rows of checkpoint `id`, or NULL if the mark does not have them. */
const hotbed_marked *hotbed_mark_find(const hotbed_checkpoint_mark *mark, hotbed_digest id);

/* The change that a put makes to a mark. */
typedef struct hotbed_mark_update {
    const hotbed_marked *base; /* rows of the mark that an increment was compared with, or NULL */
    hotbed_marked next;        /* owned; the rows of the checkpoint; {0}: there is no mark */
} hotbed_mark_update;

/* Record that a shard was put. update->next, which the mark takes over, becomes `last`.
 * update->base becomes `before`. For a full checkpoint `base` is NULL, and the old `last` becomes
 * `before`. Without a mark (NULL) nothing happens.
 *
 * A save in one call learns whether the checkpoint got its name. It calls this function after the
 * commit, so that a failed save does not change the mark. */
void hotbed_mark_push(hotbed_checkpoint_mark *mark, hotbed_mark_update *update);

/* Record how a save in one call ended: if the checkpoint got its name, it is pushed, and the rows of the
 * checkpoint before it are freed. Clears update->next. NULL is allowed. */
void hotbed_mark_end(
    hotbed_checkpoint_mark *mark, hotbed_mark_update *update, hotbed_status status);

/* Allocate the rows of a table. Takes ownership of `keys` (or NULL), even after an error. Errors:
 * MEMORY. */
hotbed_status hotbed_mark_rows(hotbed_mark_table *table, uint64_t rows, uint64_t *keys);

/* Compare two marks of a table. `changed` has the keys of `now` that are new or whose rows changed,
 * `erased` the keys of `then` that are gone, both in order. For static tables these are row numbers,
 * of which the part has `numbers`. The caller frees both with hotbed_delete(). Errors: MEMORY, STATE (one table
 * is static, the other is not; `then` has a position). */
typedef struct hotbed_mark_changes {
    uint64_t num_changed, num_erased;
    uint64_t *changed, *erased;
} hotbed_mark_changes;

hotbed_status hotbed_mark_compare(
    const hotbed_mark_table *then, const hotbed_mark_table *now, uint32_t bucket_bits,
    hotbed_row_numbers numbers, hotbed_mark_changes *out);
