/* checkpoint/verify.h - whole checkpoints read and checked, and two of them compared. */
#ifndef HOTBED_CHECKPOINT_VERIFY_H
#define HOTBED_CHECKPOINT_VERIFY_H

#include "checkpoint/rewrite.h"

/* Read every byte of the checkpoint at `path`, full or increment, and check it: each block's digest, the
 * order of keys, counts, each table's content, that gaps are zero, and that HDF5's metadata and the index are what
 * this library makes for the MANIFEST, unless another version wrote it.
 * Errors: IO, CORRUPT, UNSUPPORTED, MEMORY. */
hotbed_status hotbed_checkpoint_verify(
    const hotbed_io_calls *calls, const char *path, const hotbed_progress *progress);

/* What a table of chain b has that chain a has not. */
typedef struct hotbed_difference {
    uint64_t added, removed; /* rows whose keys only b, only a has */
    uint64_t changed;        /* rows that differ */
    uint64_t weights;        /* of those, rows whose weights do */
    double largest;          /* largest |difference| of two weights that are numbers */
} hotbed_difference;

/* Compare tables of one name, number `table_a` and `table_b`.
 * Errors: STATE (kind, dtype, dim, buckets or states differ), IO, CORRUPT, MEMORY. */
hotbed_status hotbed_checkpoint_diff(
    hotbed_chain *a, uint32_t table_a, hotbed_chain *b, uint32_t table_b,
    const hotbed_progress *progress, hotbed_difference *out);

#endif
