/* checkpoint/snapshot.h - one cut of a storage in memory, on its way to a checkpoint. */
#ifndef HOTBED_CHECKPOINT_SNAPSHOT_H
#define HOTBED_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/arena.h"
#include "checkpoint/checkpoint.h"

/* A table's rows in order of slots. */
typedef struct hotbed_snapshot_table {
    uint64_t rows, capacity;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    void *columns[HOTBED_ROW_COLUMNS]; /* [capacity] */
    hotbed_memory_kind
        kinds[HOTBED_ROW_COLUMNS];            /* where it is: DEVICE and PINNED are the arena's */
    hotbed_memory memory[HOTBED_ROW_COLUMNS]; /* of PAGEABLE columns */
    uint64_t *counted;                        /* as hotbed_plan_counted() */
} hotbed_snapshot_table;

struct hotbed_checkpoint_snapshot {
    hotbed_checkpoint_share share; /* with routes of its own */
    hotbed_manifest manifest;
    void *extra;
    hotbed_checkpoint_mark *mark;  /* NULL: none.  Borrowed, and used when it is written only */
    char *parent;                  /* path; NULL: a full checkpoint */
    hotbed_snapshot_table *tables; /* [num_tables] */
    hotbed_arena_lease lease;
};

/* Bring columns that are in device memory to the host, on a stream of its own, and give the device memory back.  After
 * an error those that were not brought are where they were.  Errors: MEMORY, DEVICE. */
hotbed_status hotbed_snapshot_land(
    const hotbed_checkpoint_config *config, hotbed_checkpoint_snapshot *snapshot);

#endif
