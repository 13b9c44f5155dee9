/* checkpoint/chain.h - a full checkpoint and the increments after it, read as one.
 *
 * All parts of a table, of every shard and increment, are merged in canonical order; of a key that several
 * have, the last one counts, and a key that an increment erased is gone unless the same one or a later one
 * has it again.  What is held at a time is a block of each column of each part, and where that would be over
 * 128 MiB, a piece of each, which is given out before its block is checked; of parts that follow each other, of one.
 * Keys that are read alone stay in memory, up to 192 MiB, for when they are read again.
 */
#ifndef HOTBED_CHECKPOINT_CHAIN_H
#define HOTBED_CHECKPOINT_CHAIN_H

#include "checkpoint/shard_reader.h"

typedef struct hotbed_chain_link {
    hotbed_io_file directory;
    hotbed_manifest manifest;
    hotbed_shard_reader *shards; /* [world] */
} hotbed_chain_link;

typedef struct hotbed_chain {
    uint32_t n;
    hotbed_chain_link *links; /* [n]: the full one, then increments */
    uint64_t held_bytes; /* most that the parts of a table hold while they are merged; 0: 128 MiB */
    uint64_t keep_bytes; /* of keys, that may still be kept; 192 MiB when it is opened */
} hotbed_chain;

/* Open one checkpoint, full or increment.  Sizes, metadata and roots of all shards are checked.  The caller
 * calls hotbed_chain_link_close() in any case.  Errors: IO, CORRUPT, UNSUPPORTED, MEMORY. */
hotbed_status hotbed_chain_link_open(
    const hotbed_io_calls *calls, const char *path, hotbed_chain_link *link);
void hotbed_chain_link_close(hotbed_chain_link *link);

/* Open n checkpoints: the first is full, each other one the increment after the one before.  Sizes, metadata
 * and roots of all shards are checked.  The caller calls hotbed_chain_close() in any case.
 * Errors: IO, CORRUPT, STATE (not each the other's parent), MEMORY. */
hotbed_status hotbed_chain_open(
    const hotbed_io_calls *calls, const char *const *paths, uint32_t n, hotbed_chain *out);

/* {0} is allowed; keeps the error text. */
void hotbed_chain_close(hotbed_chain *chain);

/* Whether `increment` comes right after `parent`, of the same tables.  `name` is the increment's.
 * Errors: STATE. */
hotbed_status hotbed_chain_check(
    const char *name, const hotbed_manifest *parent, const hotbed_manifest *increment);

/* The manifest of the last one: step, state and counters are its. */
static inline const hotbed_manifest *hotbed_chain_last(const hotbed_chain *chain) {
    return &chain->links[chain->n - 1].manifest;
}

/* Where one of the merged columns stands. */
typedef struct hotbed_chain_head {
    hotbed_part_reader *part;
    uint32_t link;
    bool live; /* bucket and key are of the next one */
    bool any;  /* last_* are of the one before */
    uint64_t bucket, key, last_bucket, last_key;
    uint64_t left; /* ERASED, COUNTED: how many are still to come */
} hotbed_chain_head;

/* What COUNTED and KEYS read is kept. */
typedef enum hotbed_chain_kind {
    HOTBED_CHAIN_ROWS = 0,    /* rows */
    HOTBED_CHAIN_COUNTED = 1, /* keys that admission counts, of the last one of the chain */
    HOTBED_CHAIN_KEYS = 2,    /* keys of the rows: nothing else is read */
} hotbed_chain_kind;

typedef struct hotbed_chain_table {
    hotbed_chain *chain; /* borrowed */
    uint32_t table;
    hotbed_chain_kind kind;
    uint32_t bucket_bits;
    bool hash;
    bool sequential; /* the parts follow each other: nothing is to be merged */
    uint32_t next;   /* of them: the part that is read, open or to be opened */
    bool open;
    hotbed_part_reader *parts; /* [num_parts]; sequential: one, that which is read */
    hotbed_chain_head *heads;  /* [2 * num_parts]: of the parts' rows, then of what they erased */
    uint32_t num_parts;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
} hotbed_chain_table;

/* Begin with a table.  The caller calls hotbed_chain_table_close() in any case. */
hotbed_status hotbed_chain_table_open(
    hotbed_chain *chain, uint32_t table, hotbed_chain_kind kind, hotbed_chain_table *out);
void hotbed_chain_table_close(hotbed_chain_table *table);

/* The next rows, up to `capacity`; *n is 0 at the end.
 *
 *   columns  out  [capacity] rows of row_bytes[i] each
 *
 * KEYS: columns[KEYS] alone.  COUNTED: columns[KEYS] and, in columns[SCORES], the counts.  Errors: IO, CORRUPT. */
hotbed_status hotbed_chain_table_next(
    hotbed_chain_table *table, uint64_t capacity, void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t *n);

/* Room for a table's rows in host memory. */
typedef struct hotbed_chunk {
    uint64_t capacity; /* rows */
    void *columns[HOTBED_ROW_COLUMNS];
    void *memory;
} hotbed_chunk;

/* About 1 MiB of rows of row_bytes[i] each.  Errors: MEMORY. */
hotbed_status hotbed_chunk_create(const size_t row_bytes[HOTBED_ROW_COLUMNS], hotbed_chunk *out);
void hotbed_chunk_destroy(hotbed_chunk *chunk);

#endif
