/* checkpoint/touched.h - what was changed since a position, for increments. */
#ifndef HOTBED_CHECKPOINT_TOUCHED_H
#define HOTBED_CHECKPOINT_TOUCHED_H

#include "checkpoint/mark.h"
#include "checkpoint/storages.h"

/* The positions of a save, one for each storage. */
typedef struct hotbed_touched hotbed_touched;

/* Take the positions of all storages that have a table with track_changes. Waits for the stream.
 * Errors: MEMORY, DEVICE. */
hotbed_status hotbed_touched_create(
    const hotbed_storages *storages, hotbed_stream *stream, hotbed_touched **out);
void hotbed_touched_destroy(hotbed_touched *touched); /* NULL is allowed */

/* The position for a table; epoch 0 if the table does not track changes. */
hotbed_change_position hotbed_touched_position(const hotbed_touched *touched, uint32_t table);

/* List the keys of a table that were changed since `since`, below `rows` if it is STATIC, and those that
 * have left, in no order. The caller frees both lists with hotbed_delete(), also after an error. Errors: STATE
 * (it is not known which keys have left), MEMORY, DEVICE. */
hotbed_status hotbed_touched_list(
    hotbed_touched *touched, uint32_t table, const hotbed_change_position *since, uint64_t rows,
    hotbed_stream *stream, hotbed_mark_changes *out);

/* Sort both lists in canonical order, and leave each removed key once. Errors: MEMORY. */
hotbed_status hotbed_touched_sort(
    hotbed_key_type type, uint32_t bucket_bits, hotbed_mark_changes *changes);

#endif
