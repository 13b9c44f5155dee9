/* checkpoint/verify.h - read and check whole checkpoints, and compare two of them. */
#pragma once

#include "checkpoint/rewrite.h"

/* Read every byte of the checkpoint at `path`, full or increment, and check it: the digest of each
 * block, the order of keys, all counts, each table's content, that gaps are zero, and that the HDF5
 * metadata and the index are what this library makes for the MANIFEST, unless another version wrote
 * them. Errors: IO, CORRUPT, UNSUPPORTED, MEMORY. */
hotbed_status hotbed_checkpoint_verify(
    const hotbed_io_calls *calls, const char *path, const hotbed_progress *progress);

/* Check everything except the rows: MANIFEST, the sizes of all files, the index, the metadata, and
 * the digests of blocks. Errors: IO, CORRUPT, UNSUPPORTED, MEMORY. */
hotbed_status hotbed_checkpoint_verify_quick(const hotbed_io_calls *calls, const char *path);

/* hotbed_checkpoint_latest(), after its arguments were checked. Checks each checkpoint at most once. */
hotbed_status hotbed_checkpoint_find_latest(
    const hotbed_io_calls *calls, const char *directory, hotbed_checkpoint_found *out);

/* Check the size and the digest of the index of a checkpoint that is open. Errors: CORRUPT, IO. */
hotbed_status hotbed_checkpoint_check_index(const hotbed_chain_link *link);

/* Check that every shard and the index are plain files of the size in *manifest. Reads none of
 * them. Errors: CORRUPT (missing, not a plain file, another size), IO. */
hotbed_status hotbed_checkpoint_check_files(
    const hotbed_io_file *directory, const hotbed_manifest *manifest);

/* How a table of chain b differs from the table of chain a, in its rows or in its admission
 * counts. */
typedef struct hotbed_difference {
    uint64_t added, removed; /* keys that only b has; keys that only a has */
    uint64_t changed;        /* keys of both whose rows (or counts) differ */
    /* Rows: `changed` keys with different weights, optimizer states, and scores or times. A key can
     * be in several. */
    uint64_t weights, states, scores;
    uint64_t not_finite; /* rows: elements of these weights that are NaN or infinite on a side */
    double largest;      /* rows: largest |difference| of the other elements */
} hotbed_difference;

/* Compare tables number `table_a` and `table_b`: their rows (kind ROWS), in the columns that both
 * have, or their admission counts (COUNTED). With `ignore_scores` the scores and times of rows are
 * not compared. Blocking. Errors: STATE (kind, dtype, dim or number of
 * buckets differ), IO, CORRUPT, MEMORY. */
hotbed_status hotbed_checkpoint_diff(
    hotbed_chain *a, uint32_t table_a, hotbed_chain *b, uint32_t table_b, hotbed_chain_kind kind,
    bool ignore_scores, const hotbed_progress *progress, hotbed_difference *out);
