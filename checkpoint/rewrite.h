/* checkpoint/rewrite.h - write checkpoints from checkpoints: for another number of ranks, or
 * increments merged into a full one. */
#pragma once

#include "checkpoint/chain.h"
#include "checkpoint/checkpoint.h"

/* Progress of a long call, in rows. */
typedef struct hotbed_progress {
    void (*report)(void *self, uint64_t done, uint64_t total);
    void *self;
} hotbed_progress;

/* Report progress. Does nothing if `progress` or its `report` is NULL. */
void hotbed_progress_report(const hotbed_progress *progress, uint64_t done, uint64_t total);

typedef struct hotbed_rewrite_options {
    uint32_t world; /* number of shards to write */
    /* 0: hash tables by ranges of buckets, static tables in blocks; else a hotbed_route_kind + 1,
     * except CONTINUOUS. HASH_ROUND_ROBIN also leaves static tables in blocks. */
    uint32_t route;
    uint32_t block_bytes; /* 0: HOTBED_BLOCK_BYTES */
    /* of the rows and states of all tables, rounded to nearest; 0: each table keeps its own */
    hotbed_row_types types;
    const hotbed_progress *progress;
} hotbed_rewrite_options;

/* Return an upper bound of the size of a rewrite's MANIFEST in bytes. */
uint64_t hotbed_rewrite_manifest_bytes(
    const hotbed_chain *chain, const hotbed_rewrite_options *options);

/* Write the rows of a chain as a new full checkpoint at `path`, with the step, storages, counters and
 * blobs of the chain's last checkpoint.
 *
 * The first pass reads the keys, the second pass everything. Keys that exceed chain->keep_bytes are
 * read in both passes. Whatever the number of shards, the rewrite uses at most 128 MiB for shards
 * that are read, 192 MiB for keys and 128 MiB for shards that are written. For this, each part that
 * is merged keeps less than a block in memory, and if many shards are written at once, their blocks
 * are smaller (block_bytes 0).
 *
 * Errors: ARGUMENT (options; a value that `types` do not have, with table, key and value), UNSUPPORTED (the
 * MANIFEST of so many shards may be too large; this is checked before anything is read or written), STATE
 * (`path` exists), IO, CORRUPT, MEMORY. */
hotbed_status hotbed_checkpoint_rewrite(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_rewrite_options *options);
