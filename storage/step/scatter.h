/* storage/step/scatter.h - forward and eval that write rows to several arrays, and backward that reads
 * gradients from several.
 *
 * For the exchanges of sharded collections (dist/): rows are written to the messages that are sent,
 * or to the memory of other ranks. */
#pragma once

#include "hotbed/storage.h"
#include "storage/step/update_core.h"

/* As hotbed_storage_forward(), but write the rows where `to` says, which is on and has the batch's
 * keys in its runs or, with pooling, its bags; all addresses are multiples of 16. Bytes behind the
 * elements of a row are not written. Asynchronous.
 * Errors: as hotbed_storage_forward(). */
hotbed_status hotbed_storage_forward_scattered(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_scatter_view *to,
    hotbed_stream *stream);

/* The same for hotbed_storage_eval(). */
hotbed_status hotbed_storage_eval_scattered(
    hotbed_storage *storage, const hotbed_batch *batch, const hotbed_scatter_view *to,
    hotbed_stream *stream);

/* hotbed_storage_prefetch(), whose grouping of occurrences runs on the stream's branch beside the search.
 * The caller joins it, after errors too, before backward. `overflow` is hotbed_batch_view's. */
hotbed_status hotbed_storage_prefetch_branched(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket,
    const uint32_t *overflow, hotbed_stream *stream);

/* hotbed_storage_backward() for gradients that are in several arrays, or not of the output's type.
 * Asynchronous. Errors: as hotbed_storage_backward(). */
hotbed_status hotbed_storage_backward_from(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_gradient_view *gradient,
    hotbed_stream *stream);
