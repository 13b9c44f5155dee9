/* storage/rows/rows_kernels.h - rows of one table by key or slot, and whole-table calls: the contract of
 * both backends.
 *
 * `index` is unused for static tables of one tier, whose keys are row numbers.
 */
#pragma once

#include "hotbed/stream.h"
#include "storage/rows/expire_core.h"
#include "storage/rows/offer_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_rows_kernels {
    hotbed_status (*get)(const hotbed_rows_args *args, hotbed_stream *stream);
    hotbed_status (*set)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* Before set() or count(): enter all keys in args->places, which is free everywhere, and latch a
     * fault if a key is there twice. */
    hotbed_status (*distinct)(const hotbed_distinct_args *args, hotbed_stream *stream);
    /* After a set() that refused keys: insert them by moving other rows, with args->shares tiles at
     * the same time. The last call has one tile; it lists the keys that are left. */
    hotbed_status (*insert_refused)(const hotbed_offer_args *args, hotbed_stream *stream);
    hotbed_status (*erase)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* Remove the expired keys of a pass, then advance *args->at. */
    hotbed_status (*expire)(const hotbed_expire_args *args, hotbed_stream *stream);
    /* Admission: insert counts of keys that have none. table.range is the counter's. */
    hotbed_status (*count)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* With an index: free all slots of table.range. Without: initialize all rows. */
    hotbed_status (*clear)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* Add the keys of table.range to counts[0] and its pinned slots to counts[1]. If `keys` is not
     * NULL, append keys and scores from position counts[0] on. */
    hotbed_status (*list)(
        const hotbed_rows_args *args, uint64_t *keys, uint64_t *scores, uint64_t *counts,
        hotbed_stream *stream);
    /* For flat tables: rows by slot; slots outside the table are skipped. */
    hotbed_status (*load)(const hotbed_rows_args *args, hotbed_stream *stream);
    hotbed_status (*store)(const hotbed_rows_args *args, hotbed_stream *stream);
} hotbed_rows_kernels;

extern const hotbed_rows_kernels hotbed_rows_kernels_host;
extern const hotbed_rows_kernels hotbed_rows_kernels_cuda;

HOTBED_END_DECLS
