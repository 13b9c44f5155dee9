/* checkpoint/snapshot.h - one cut of a storage in host memory, on its way to a checkpoint. */
#ifndef HOTBED_CHECKPOINT_SNAPSHOT_H
#define HOTBED_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/checkpoint.h"

/* A table's rows in order of slots. */
typedef struct hotbed_snapshot_table {
    uint64_t rows, capacity;
    hotbed_memory memory[HOTBED_ROW_COLUMNS];
    void *columns[HOTBED_ROW_COLUMNS]; /* [capacity], in memory */
    uint64_t *counted;                 /* as hotbed_plan_counted() */
} hotbed_snapshot_table;

struct hotbed_checkpoint_snapshot {
    hotbed_checkpoint_share share; /* with routes of its own */
    hotbed_manifest manifest;
    void *extra;
    hotbed_checkpoint_mark *mark;  /* NULL: none.  Borrowed, and used when it is written only */
    char *parent;                  /* path; NULL: a full checkpoint */
    hotbed_snapshot_table *tables; /* [num_tables] */
};

#endif
