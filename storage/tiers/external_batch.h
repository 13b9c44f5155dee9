/* storage/tiers/external_batch.h - pinned arrays for one batch over all tables of an external store, and
 * the store's calls on it.
 *
 * The keys of a step belong to several tables, and only the device knows how many keys each table
 * has. All tables therefore share the arrays, which hold one batch instead of one batch per table. Kernels fill
 * the arrays, a callback of the stream calls the store, and kernels read the answer.
 */
#pragma once

#include "storage/tiers/stored_changes.h"
#include "storage/tiers/tier_external_core.h"

HOTBED_BEGIN_DECLS

/* Must not move: enqueued and recorded calls hold its address. */
typedef struct hotbed_external_batch {
    hotbed_external *external;
    hotbed_stored_changes *changes; /* gets the epochs of inserted rows; or NULL */
    uint64_t capacity;
    uint32_t num_tables;
    hotbed_store_view view;
    hotbed_memory memory; /* pinned; empty for a borrowed batch */
} hotbed_external_batch;

/* `batch` must be zeroed. Synchronous. Errors: MEMORY. */
hotbed_status hotbed_external_batch_create(
    hotbed_external_batch *batch, hotbed_external *external, hotbed_stored_changes *changes,
    uint64_t capacity, hotbed_stream *stream);
/* Create a batch in the stream's pinned workspace. Batches of one stream share the workspace: the
 * stream's order keeps their uses apart. Nothing has to be freed. Errors: MEMORY, STATE (the
 * workspace would have to grow while a graph is being recorded). */
hotbed_status hotbed_external_batch_borrow(
    hotbed_external_batch *batch, hotbed_external *external, hotbed_stored_changes *changes,
    uint64_t capacity, hotbed_stream *stream);

void hotbed_external_batch_destroy(hotbed_external_batch *batch);

/* Call the store for each table that has keys, one after the other. The results are in `status`;
 * kernels turn errors into faults. An insert skips tables whose status is not OK. Async, unless
 * hotbed_external_enqueue() waits. */
hotbed_status hotbed_external_batch_find(hotbed_external_batch *batch, hotbed_stream *stream);
hotbed_status hotbed_external_batch_insert(hotbed_external_batch *batch, hotbed_stream *stream);
hotbed_status hotbed_external_batch_erase(hotbed_external_batch *batch, hotbed_stream *stream);

HOTBED_END_DECLS
