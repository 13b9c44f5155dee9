/* checkpoint/redistribute.h - ranks that load together: votes, and redistribution of rows.
 *
 * If the ranks that load are not the ranks that saved, each rank reads a range of the rows of the
 * checkpoint, which is one piece of each column, and sends the rows to the ranks that store them.
 * Each byte is read by one rank only. */
#pragma once

#include "checkpoint/shard_reader.h"
#include "hotbed/checkpoint.h"

/* Report a status to all ranks. Returns OK if all ranks report OK; otherwise this rank's own
 * failure, or the failure of the lowest rank that failed, with its text. A rank that cannot vote
 * aborts the communicator, so the others fail at once (COMM). Synchronous; all ranks must call it.
 * Other errors: COMM, MEMORY, DEVICE. */
hotbed_status hotbed_vote(hotbed_comm *comm, hotbed_status status, hotbed_stream *stream);

enum { HOTBED_VOTE_BYTES = 512 };

/* Report a status as hotbed_vote() does, and copy rank 0's `bytes` bytes, at most HOTBED_VOTE_BYTES,
 * to all ranks. */
hotbed_status hotbed_vote_with(
    hotbed_comm *comm, hotbed_status status, void *data, size_t bytes, hotbed_stream *stream);

/* Replace n counts by their sums over all ranks, if all ranks report OK. */
hotbed_status hotbed_vote_sum(
    hotbed_comm *comm, hotbed_status status, uint64_t *counts, uint32_t n, hotbed_stream *stream);

/* One table of a checkpoint. */
typedef struct hotbed_redistribution {
    hotbed_comm *comm;
    hotbed_stream *stream;
    hotbed_storage *storage;
    uint32_t number; /* of the table in the storage */
    const hotbed_checkpoint_share *share;
    uint32_t route; /* number of the table's route in the share */
    const hotbed_io_file *directory;
    const hotbed_manifest *manifest;
    uint32_t table;             /* in the manifest */
    hotbed_row_types types;     /* of the table in the storage */
    uint64_t rows;              /* STATIC: of the table on all ranks; later rows are dropped */
    hotbed_io_workers *workers; /* may be NULL */
} hotbed_redistribution;

/* Read a share of the rows, send them to the ranks that store them, and store the rows that this
 * rank receives. Synchronous; all ranks must call it and then vote: a failure of one rank ends
 * the call on all ranks, but on the others with OK. Errors: IO, CORRUPT, COMM, MEMORY, DEVICE. */
hotbed_status hotbed_redistribute(const hotbed_redistribution *job);
