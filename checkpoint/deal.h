/* checkpoint/deal.h - ranks that load together: what they agree on, and rows that one reads for another.
 *
 * Where a checkpoint's ranks are not those that load it, each rank reads a range of the logical buckets of
 * every shard, which is one piece of each column, and sends the rows to the ranks that have them: each byte is
 * read by one rank.
 */
#ifndef HOTBED_CHECKPOINT_DEAL_H
#define HOTBED_CHECKPOINT_DEAL_H

#include "checkpoint/shard_reader.h"
#include "hotbed/checkpoint.h"

/* Whether all ranks got so far.  OK when all of them say so; else this rank's own failure, or the first other
 * one's, with its text.  Synchronous; all ranks call it.  Errors besides: COMM, MEMORY, DEVICE. */
hotbed_status hotbed_vote(hotbed_comm *comm, hotbed_status status, hotbed_stream *stream);

/* The same, and everybody gets rank 0's `bytes` bytes, at most 64. */
hotbed_status hotbed_vote_with(
    hotbed_comm *comm, hotbed_status status, void *data, size_t bytes, hotbed_stream *stream);

/* One table of a checkpoint. */
typedef struct hotbed_deal {
    hotbed_comm *comm;
    hotbed_stream *stream;
    hotbed_storage *storage;
    const hotbed_checkpoint_share *share;
    uint32_t number; /* of the table in the storage */
    const hotbed_io_file *directory;
    const hotbed_manifest *manifest;
    uint32_t table;         /* in the manifest */
    hotbed_io_lanes *lanes; /* or NULL */
} hotbed_deal;

/* Read a share of the rows, and set the rows that all ranks send it.  Synchronous; all ranks call it.  One
 * rank's failure ends it on all.  Errors: IO, CORRUPT, COMM, MEMORY, DEVICE. */
hotbed_status hotbed_deal_rows(const hotbed_deal *deal);

#endif
