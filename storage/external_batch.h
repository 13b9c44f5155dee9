/* storage/external_batch.h - pinned arrays for one batch of all tables of an external store, and calls with it.
 *
 * A hotbed_external_request is of one table; a step's keys are of all, and how many are of which only the
 * device knows.  Here tables share the arrays, so that they need room for the batch and not for a batch a
 * table.  Kernels fill them, a thread of the library calls the store, kernels read what it said.
 */
#ifndef HOTBED_STORAGE_EXTERNAL_BATCH_H
#define HOTBED_STORAGE_EXTERNAL_BATCH_H

#include "storage/tier_external_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In its place for good: calls that are enqueued, or recorded, point to it. */
typedef struct hotbed_external_batch {
    hotbed_external *external;
    uint64_t capacity;
    uint32_t num_tables;
    hotbed_store_view view;
    hotbed_memory memory; /* pinned; none where it is borrowed */
} hotbed_external_batch;

/* Synchronous; zeroed memory in `batch`.  Errors: MEMORY. */
hotbed_status hotbed_external_batch_create(
    hotbed_external_batch *batch, hotbed_external *external, uint64_t capacity,
    hotbed_stream *stream);
/* The same in the stream's pinned workspace, which other batches of the stream share: what is enqueued for one is over
 * before what is enqueued for the next.  The memory is the stream's.
 * Errors: MEMORY, STATE (the workspace would have to grow while a graph is recorded). */
hotbed_status hotbed_external_batch_borrow(
    hotbed_external_batch *batch, hotbed_external *external, uint64_t capacity,
    hotbed_stream *stream);

void hotbed_external_batch_destroy(hotbed_external_batch *batch);

/* Calls for each table that has keys, one after the other.  Async.  What failed is in `status`; kernels make
 * it a fault.  An insert leaves out tables whose status is not OK. */
hotbed_status hotbed_external_batch_find(hotbed_external_batch *batch, hotbed_stream *stream);
hotbed_status hotbed_external_batch_insert(hotbed_external_batch *batch, hotbed_stream *stream);
hotbed_status hotbed_external_batch_erase(hotbed_external_batch *batch, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
