/* checkpoint/touched.h - what was changed since a position, for increments. */
#pragma once

#include "checkpoint/mark.h"
#include "checkpoint/positions.h"

/* List the keys of a table that were changed since `since`, below `rows` if it is STATIC, then in order, and
 * those that have left. The caller frees both lists with hotbed_delete(), also after an error. Errors: STATE
 * (it is not known which keys have left), MEMORY, DEVICE. */
hotbed_status hotbed_touched_list(
    hotbed_positions *positions, uint32_t table, const hotbed_change_position *since, uint64_t rows,
    hotbed_stream *stream, hotbed_mark_changes *out);

/* Sort both lists in canonical order, and leave each removed key once. Errors: MEMORY. */
hotbed_status hotbed_touched_sort(
    hotbed_key_type type, uint32_t bucket_bits, hotbed_mark_changes *changes);
