/* storage/step/unique_kernels.h - dedup of a batch, table by table: the contract of both backends.
 *
 * Reads keys, counts and table_starts of step.batch; writes to step.unique
 *   keys, offsets      the distinct keys of each table, in order of first occurrence; if row_bits is
 *                      set, ascending, and keys without a row count as one
 *   inverse            index in `keys` of each key of the batch; UINT32_MAX past the last key
 *   starts, positions  occurrences of each unique key, ascending; starts[unique keys] = n
 *   counts             their number, or the sum of the batch's counts, at most 2^62
 * and adds keys and unique keys to the tallies. Equal keys of different tables stay separate. The
 * backends use different algorithms (a radix sort, with a parallel hash before it unless row_bits is
 * set; one hash per table) and write the same bytes.
 */
#pragma once

#include "hotbed/stream.h"
#include "storage/step/step_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_unique_kernels {
    /* Bytes of device memory that unique() needs for batches of `bound` keys and `num_tables`
     * tables. */
    size_t (*scratch)(uint64_t bound, uint32_t num_tables);
    /* starts, positions and counts are computed on `grouping`: `stream`, or a branch of it that the
     * caller joins. NULL: they are not wanted, and may be left as they are. */
    hotbed_status (*unique)(
        const hotbed_step_view *step, void *scratch, hotbed_stream *stream,
        hotbed_stream *grouping);
} hotbed_unique_kernels;

extern const hotbed_unique_kernels hotbed_unique_kernels_host;
extern const hotbed_unique_kernels hotbed_unique_kernels_cuda;

HOTBED_END_DECLS
