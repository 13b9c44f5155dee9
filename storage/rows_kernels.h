/* storage/rows_kernels.h - rows of one table by key or slot, and whole-table work: the contract of both
 * backends.
 *
 * `index` is unused for static tables of one tier, whose keys are row numbers.
 */
#ifndef HOTBED_STORAGE_ROWS_KERNELS_H
#define HOTBED_STORAGE_ROWS_KERNELS_H

#include "hotbed/stream.h"
#include "storage/rows_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_rows_kernels {
    hotbed_status (*get)(const hotbed_rows_args *args, hotbed_stream *stream);
    hotbed_status (*set)(const hotbed_rows_args *args, hotbed_stream *stream);
    hotbed_status (*erase)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* The keys that admission counts, none of them counted yet; table.range is the counter's. */
    hotbed_status (*count)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* With an index: all slots of table.range free; without: all rows as new. */
    hotbed_status (*clear)(const hotbed_rows_args *args, hotbed_stream *stream);
    /* counts[0] += keys of table.range, counts[1] += pinned slots; and, where keys is not NULL, key and
     * score of key number counts[0] before. */
    hotbed_status (*list)(
        const hotbed_rows_args *args, uint64_t *keys, uint64_t *scores, uint64_t *counts,
        hotbed_stream *stream);
    /* Rows by slot of the table (0 .. slots-1; others are skipped), for flat tables. */
    hotbed_status (*load)(const hotbed_rows_args *args, hotbed_stream *stream);
    hotbed_status (*store)(const hotbed_rows_args *args, hotbed_stream *stream);
} hotbed_rows_kernels;

extern const hotbed_rows_kernels hotbed_rows_kernels_host;
extern const hotbed_rows_kernels hotbed_rows_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
