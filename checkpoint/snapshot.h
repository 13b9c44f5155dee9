/* checkpoint/snapshot.h - a copy of a storage at one point in time, which becomes a checkpoint. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/arena.h"

/* A table's rows, in slot order. */
typedef struct hotbed_snapshot_table {
    uint64_t rows, capacity;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    void *columns[HOTBED_ROW_COLUMNS]; /* [capacity] */
    hotbed_memory_kind
        kinds[HOTBED_ROW_COLUMNS]; /* memory of each column: DEVICE and PINNED are the arena's */
    hotbed_memory memory[HOTBED_ROW_COLUMNS]; /* of PAGEABLE columns */
    uint64_t *counted;                        /* as from hotbed_plan_counted() */
} hotbed_snapshot_table;

struct hotbed_checkpoint_snapshot {
    hotbed_checkpoint_share share; /* with its own copy of the routes */
    hotbed_manifest manifest;
    hotbed_checkpoint_blob *blobs; /* [manifest.num_blobs] with their own data */
    hotbed_checkpoint_mark
        *mark;    /* NULL: none. Borrowed, and used only while the snapshot is written */
    char *parent; /* path; NULL: a full checkpoint */
    hotbed_snapshot_table *tables; /* [num_tables] */
    hotbed_arena_lease lease;
};

/* Copy columns from device memory to the host, on a stream of its own, and return the device memory
 * to the arena. After an error, columns that were not copied stay in device memory. Errors: MEMORY,
 * DEVICE. */
hotbed_status hotbed_snapshot_land(
    const hotbed_checkpoint_config *config, hotbed_checkpoint_snapshot *snapshot);
