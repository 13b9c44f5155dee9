/* checkpoint/state_view.h - the memory of a table's rows, and the row numbers of a state dict's
 * views. */
#pragma once

#include "hotbed/state_dict.h"

/* Return the number of memories that hold a table's rows, and one of them, whose data is the
 * embeddings. Errors: ARGUMENT (table, piece). */
hotbed_status hotbed_view_pieces(const hotbed_storage *storage, uint32_t table, uint32_t *out);
hotbed_status hotbed_view_piece(
    const hotbed_storage *storage, uint32_t table, uint32_t piece, hotbed_state_piece *out);

/* The keys of a table and their rows, at one point in time. */
typedef struct hotbed_view_rows {
    uint64_t n;
    uint64_t
        *pairs; /* [2 * n] keys in canonical order, then their rows; freed with hotbed_delete() */
} hotbed_view_rows;

/* List the keys and rows of a table; none over an external store. Synchronous. Errors: MEMORY,
 * STATE (the stream records a graph; the set of keys changed meanwhile), DEVICE. */
hotbed_status hotbed_view_rows_read(
    hotbed_storage *storage, uint32_t table, hotbed_view_rows *out, hotbed_stream *stream);

/* Return the row of a key, or HOTBED_SLOT_NONE. */
uint64_t hotbed_view_row(const hotbed_view_rows *rows, uint64_t key);
