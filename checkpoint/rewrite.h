/* checkpoint/rewrite.h - checkpoints from checkpoints: other numbers of ranks, and increments made full. */
#ifndef HOTBED_CHECKPOINT_REWRITE_H
#define HOTBED_CHECKPOINT_REWRITE_H

#include "checkpoint/chain.h"
#include "checkpoint/checkpoint.h"

/* How far a long call has come; units are rows. */
typedef struct hotbed_progress {
    void (*report)(void *self, uint64_t done, uint64_t total);
    void *self;
} hotbed_progress;

/* One that is not there, or whose report is NULL, is not called. */
void hotbed_progress_report(const hotbed_progress *progress, uint64_t done, uint64_t total);

typedef struct hotbed_rewrite_options {
    uint32_t world;       /* shards to write */
    uint32_t route;       /* of hash tables: 0 ranges of buckets, else a hotbed_route_kind + 1, not
                           * CONTINUOUS */
    uint32_t block_bytes; /* 0: HOTBED_BLOCK_BYTES */
    const hotbed_progress *progress;
} hotbed_rewrite_options;

/* Write the chain's rows as a new full checkpoint at `path`, with the last one's step, state, counters and
 * the caller's bytes.  Two passes: the keys, then everything; keys that chain->keep_bytes has no room for are read
 * in both.  Memory does not grow with the number of shards beyond 128 MiB for those that are read, 192 for keys and 128
 * for those that are written: parts that are merged hold less than a block each, and shards that are written in turn
 * have smaller blocks (block_bytes 0).
 * Errors: ARGUMENT, STATE (`path` exists), IO, CORRUPT, MEMORY, UNSUPPORTED. */
hotbed_status hotbed_checkpoint_rewrite(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_rewrite_options *options);

#endif
