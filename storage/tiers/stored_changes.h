/* storage/tiers/stored_changes.h - when rows of an external store were changed that are no longer in the
 * upper tier.
 *
 * A slot knows when its row was changed. When the row leaves for the store, its key and epoch go into a map
 * in host memory. There are two generations of maps: keys go into the young one, and when that has half of
 * the capacity, the old one is forgotten and the young one becomes the old one. So at least the newest half
 * is remembered, and nothing is removed key by key. Positions up to the newest forgotten epoch have lost
 * changes. A key may be in both generations and also in the upper tier, and a key that was erased stays in
 * the map: whoever reads a list drops keys that occur twice and keys that the store does not have.
 */
#pragma once

#include "hotbed/stream.h"
#include "storage/step/change_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_stored_changes hotbed_stored_changes;

/* Keys in host memory. */
typedef struct hotbed_changed_keys {
    uint64_t *items; /* free with hotbed_delete() */
    uint64_t n, capacity;
} hotbed_changed_keys;

/* Get memory for n more keys; *keys stays valid after an error. Errors: MEMORY. */
hotbed_status hotbed_changed_keys_reserve(hotbed_changed_keys *keys, uint64_t n);

/* Remember up to `capacity` keys of all tables. Synchronous. Errors: MEMORY. */
hotbed_status hotbed_stored_changes_create(
    uint32_t num_tables, uint64_t capacity, hotbed_stream *stream, hotbed_stored_changes **out);
void hotbed_stored_changes_destroy(hotbed_stored_changes *changes); /* NULL is allowed */

/* What was forgotten, in pinned memory. */
const hotbed_forgotten *hotbed_stored_changes_forgotten(const hotbed_stored_changes *changes);

/* Remember that the rows of n keys were changed in `epochs`; 0: the row was not. Without memory, everything
 * is forgotten. Any thread may call this function, also one that a stream runs. */
void hotbed_stored_changes_put(
    hotbed_stored_changes *changes, uint32_t table, uint64_t n, const uint64_t *keys,
    const uint32_t *epochs);

/* Free the maps, after all positions have lost changes. */
void hotbed_stored_changes_clear(hotbed_stored_changes *changes);

/* Append the keys of a table that were changed in epoch `since` or later, some perhaps twice. Errors:
 * MEMORY; STATE: some of them are forgotten. */
hotbed_status hotbed_stored_changes_list(
    hotbed_stored_changes *changes, uint32_t table, uint64_t since, hotbed_changed_keys *keys);

HOTBED_END_DECLS
