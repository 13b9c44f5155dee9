/* storage/scatter.h - forward and eval of sequences whose rows are written to several arrays.
 *
 * For the exchanges of sharded collections (dist/): rows are written to the messages that are sent,
 * or to the memory of other ranks. */
#ifndef HOTBED_STORAGE_SCATTER_H
#define HOTBED_STORAGE_SCATTER_H

#include "hotbed/storage.h"
#include "storage/step_core.h"

/* As hotbed_storage_forward() with pooling NONE, but write the rows where `to` says, which is on and
 * has the batch's keys in its runs. Bytes behind the elements of a row are not written. Asynchronous.
 * Errors: as hotbed_storage_forward(). */
hotbed_status hotbed_storage_forward_scattered(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_scatter_view *to,
    hotbed_stream *stream);

/* The same for hotbed_storage_eval(). */
hotbed_status hotbed_storage_eval_scattered(
    hotbed_storage *storage, const hotbed_batch *batch, const hotbed_scatter_view *to,
    hotbed_stream *stream);

#endif
