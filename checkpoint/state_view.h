/* checkpoint/state_view.h - where a table's rows lie, as the views of a state dict number them. */
#ifndef HOTBED_CHECKPOINT_STATE_VIEW_H
#define HOTBED_CHECKPOINT_STATE_VIEW_H

#include "hotbed/state_dict.h"

/* How many memories a table's rows lie in, and one of them; data is that of embeddings.
 * Errors: ARGUMENT (table, piece). */
hotbed_status hotbed_view_pieces(const hotbed_storage *storage, uint32_t table, uint32_t *out);
hotbed_status hotbed_view_piece(
    const hotbed_storage *storage, uint32_t table, uint32_t piece, hotbed_state_piece *out);

/* Keys and their rows at a time. */
typedef struct hotbed_view_rows {
    uint64_t n;
    uint64_t
        *pairs; /* [2 * n] keys in canonical order, then their rows; freed with hotbed_delete() */
} hotbed_view_rows;

/* Those of a table; none over an external store.  Synchronous.
 * Errors: MEMORY, STATE (the stream records a graph; keys came or went meanwhile), DEVICE. */
hotbed_status hotbed_view_rows_read(
    hotbed_storage *storage, uint32_t table, hotbed_view_rows *out, hotbed_stream *stream);

/* A key's row, or HOTBED_SLOT_NONE. */
uint64_t hotbed_view_row(const hotbed_view_rows *rows, uint64_t key);

#endif
