/* checkpoint/positions.h - positions in the changes of storages, and what changed since one. */
#pragma once

#include "checkpoint/storages.h"
#include "hotbed/export.h"

/* The positions that were taken last, one for each table. All calls wait for the stream. */
typedef struct hotbed_positions hotbed_positions;

/* Borrows `storages`. Errors: MEMORY. */
hotbed_status hotbed_positions_create(
    const hotbed_storages *storages, hotbed_stream *stream, hotbed_positions **out);
void hotbed_positions_destroy(hotbed_positions *positions); /* NULL is allowed */

/* Take the positions of all storages that have a table with track_changes. Errors: DEVICE. */
hotbed_status hotbed_positions_take(hotbed_positions *positions, hotbed_stream *stream);

/* The position of a table; epoch 0 if the table does not track changes. */
hotbed_change_position hotbed_positions_of(const hotbed_positions *positions, uint32_t table);

/* Errors: as hotbed_storages_info(). */
hotbed_status hotbed_positions_info(
    const hotbed_positions *positions, uint32_t table, hotbed_table_info *out);

/* Keys in host memory. */
typedef struct hotbed_key_list {
    uint64_t n;
    uint64_t *keys; /* owned; free with hotbed_delete() */
} hotbed_key_list;

/* List the keys that left a table between `since` and the position taken last, and are not back, in no
 * order, some perhaps twice. *lost is not 0 if some are not known (hotbed/changes.h); the list is empty then.
 * On an error it is empty, too. Errors: MEMORY, DEVICE. */
hotbed_status hotbed_positions_removed(
    hotbed_positions *positions, uint32_t table, const hotbed_change_position *since,
    hotbed_stream *stream, hotbed_key_list *out, uint64_t *lost);

/* List the keys of rows that were changed since `since`, as above. Errors: MEMORY, DEVICE. */
hotbed_status hotbed_positions_changed(
    hotbed_positions *positions, uint32_t table, const hotbed_change_position *since,
    hotbed_stream *stream, hotbed_key_list *out);

/* Export all windows of a table one after the other, into arrays of `capacity` items; *n is the number of
 * rows found, those without space included. `since` NULL: all rows. Arrays are pinned or NULL. Errors: as
 * hotbed_storage_export(). */
typedef struct hotbed_positions_rows {
    uint64_t capacity;
    uint64_t *keys;
    void *weights;
    uint64_t *scores;
    void *states[2];
} hotbed_positions_rows;

hotbed_status hotbed_positions_export(
    hotbed_positions *positions, uint32_t table, const hotbed_change_position *since,
    const hotbed_positions_rows *to, hotbed_stream *stream, uint64_t *n);
