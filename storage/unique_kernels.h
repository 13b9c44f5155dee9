/* storage/unique_kernels.h - dedup of a batch, table by table: the contract of both backends.
 *
 * Reads keys, key_counts and table_starts of the step; writes
 *   unique_keys, unique_offsets  the distinct keys of each table, in order of first occurrence
 *   inverse                      position in unique_keys of each key; UINT32_MAX past the last key
 *   starts, positions            occurrences of each unique, ascending; starts[number of uniques] = n
 *   counts                       how many those are, or the sum of their key_counts: 2^62 at most
 * and adds keys and uniques to the tallies.  Equal keys of different tables stay apart.  The two
 * algorithms differ (a parallel hash and a radix sort, a hash a table), the bytes do not.
 */
#ifndef HOTBED_STORAGE_UNIQUE_KERNELS_H
#define HOTBED_STORAGE_UNIQUE_KERNELS_H

#include "hotbed/stream.h"
#include "storage/step_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_unique_kernels {
    /* Bytes of device memory that unique() needs for batches of `bound` keys and that many tables. */
    size_t (*scratch)(uint64_t bound, uint32_t num_tables);
    hotbed_status (*unique)(
        const hotbed_step_view *step, void *scratch, size_t scratch_bytes, hotbed_stream *stream);
} hotbed_unique_kernels;

extern const hotbed_unique_kernels hotbed_unique_kernels_host;
extern const hotbed_unique_kernels hotbed_unique_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
