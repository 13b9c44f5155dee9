/* storage/external_tier.h - what the calls do in a storage that is a cache over an external store.
 * Implemented in storage/tiers/. */
#pragma once

#include "storage/storage.h"

/* Check that the store fits the storage's tables. Errors: ARGUMENT. */
hotbed_status hotbed_storage_check_external(const hotbed_storage *storage);
void hotbed_storage_close_external(hotbed_storage *storage);

/* Place the device arrays, and allocate the pinned ones, that a ticket needs for an external
 * store. */
void hotbed_ticket_carve_external(hotbed_ticket *ticket, hotbed_carve *carve);
hotbed_status hotbed_ticket_open_external(hotbed_ticket *ticket, hotbed_stream *stream);

/* The part of a prefetch after find: replaces seek, admit and move. Async. */
hotbed_status hotbed_ticket_fetch(hotbed_ticket *ticket, hotbed_stream *stream);

/* Rows of one batch, for a call on n rows. */
uint64_t hotbed_call_batch_rows(const hotbed_storage *storage, uint64_t n);

/* The stream's batch for at least `capacity` rows; its content belongs to the work that is enqueued
 * on `stream` next. Errors: MEMORY, STATE (it would have to be allocated while a graph is being
 * recorded). */
hotbed_status hotbed_call_batch_take(
    hotbed_storage *storage, uint64_t capacity, hotbed_stream *stream, hotbed_external_batch **out);

/* Device scratch memory for a batch of n items. */
typedef struct hotbed_external_scratch {
    uint32_t *ranks;           /* [n + 1] */
    hotbed_table_view *tables; /* [num_tables] */
    void *scan;
    size_t scan_bytes;
} hotbed_external_scratch;

void hotbed_external_scratch_carve(
    const hotbed_storage *storage, uint64_t n, hotbed_carve *carve, hotbed_external_scratch *out);
hotbed_status hotbed_external_scratch_take(
    const hotbed_storage *storage, uint64_t n, hotbed_stream *stream, hotbed_external_scratch *out);

/* Enqueue the prefix sums of the n ranks. */
hotbed_status hotbed_external_scratch_scan(
    const hotbed_external_scratch *scratch, uint64_t n, hotbed_stream *stream);

/* Set the slots of keys that the upper tier lacks to their places in the batch, if the store has
 * them. step->storage.tables are the tables in `scratch` afterwards. Async. */
hotbed_status hotbed_storage_eval_external(
    hotbed_storage *storage, hotbed_step_view *step, const hotbed_external_scratch *scratch,
    hotbed_external_batch *batch, hotbed_stream *stream);

/* hotbed_storage_flush_table() over an external store. */
hotbed_status hotbed_storage_flush_external(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream);

/* Get, set or erase rows: `pass` is HOTBED_PASS_GET, _SET or _ERASE. Async. */
hotbed_status hotbed_storage_rows_external(
    hotbed_storage *storage, const hotbed_rows_args *rows, hotbed_store_pass pass,
    hotbed_stream *stream);

/* Remove all keys of a table from the store. Synchronous. */
hotbed_status hotbed_storage_clear_external(hotbed_storage *storage, uint32_t table);

/* Count the keys of the store and the upper tier, and the pinned slots. Synchronous. */
hotbed_status hotbed_storage_size_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t counts[2],
    hotbed_stream *stream);

/* hotbed_storage_removed() of a HASH table; the arguments are checked. Synchronous. */
hotbed_status hotbed_removed_external(
    hotbed_storage *storage, const hotbed_removed_args *args, hotbed_stream *stream);

/* List the keys of a table whose rows were changed since a position, ascending, in the upper tier and in the
 * store. Keys that were erased may be among them. *keys must be empty; the caller frees it, also after an
 * error. Synchronous. Errors: MEMORY, DEVICE, STATE (some are forgotten).
 *   since  in  device or pinned
 *   epoch  in  of the position */
hotbed_status hotbed_changed_external(
    hotbed_storage *storage, uint32_t table, const hotbed_change_position *since, uint64_t epoch,
    hotbed_stream *stream, hotbed_changed_keys *keys);

/* hotbed_storage_export() of one window; the arguments are checked. Synchronous. close() ends all
 * exports. */
hotbed_status hotbed_export_external(
    hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream);
void hotbed_export_close_external(hotbed_storage *storage);

/* hotbed_storage_export_keys() of a HASH table. */
hotbed_status hotbed_storage_export_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t capacity, uint64_t *keys,
    uint64_t *scores, uint64_t *n, hotbed_stream *stream);
