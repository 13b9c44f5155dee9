/* checkpoint/chain.h - a full checkpoint and the increments after it, read as one checkpoint.
 *
 * All parts of a table, of every shard and increment, are merged in canonical order. If several
 * parts have the same key, the last one counts. A key that an increment erased is absent unless the
 * same increment or a later one has a row for it.
 *
 * The merge holds one block of each column of each part. Where that would exceed 128 MiB, it holds
 * a piece of each block, and returns the bytes of a piece before the digest of its block is
 * checked. If the parts follow each other, only one part is held. A pass over the keys alone keeps
 * up to 192 MiB of them in memory for the next pass. */
#pragma once

#include "checkpoint/shard_reader.h"

typedef struct hotbed_chain_link {
    hotbed_io_file directory;
    hotbed_manifest manifest;
    hotbed_shard_reader *shards; /* [world] */
} hotbed_chain_link;

typedef struct hotbed_chain {
    uint32_t n;
    hotbed_chain_link *links; /* [n]: the full checkpoint, then the increments */
    uint64_t held_bytes; /* the most that the parts of a table hold during a merge; 0: 128 MiB */
    uint64_t keep_bytes; /* bytes of keys that may still be kept; 192 MiB after open */
} hotbed_chain;

/* Open one checkpoint, full or increment. Checks the sizes, metadata and roots of all shards. The
 * caller must call hotbed_chain_link_close() even after an error. Errors: IO, CORRUPT, UNSUPPORTED,
 * MEMORY. */
hotbed_status hotbed_chain_link_open(
    const hotbed_io_calls *calls, const char *path, hotbed_chain_link *link);
void hotbed_chain_link_close(hotbed_chain_link *link);

/* Open n checkpoints: a full one, and increments that each follow the checkpoint before them.
 * Checks the sizes, metadata and roots of all shards. The caller must call hotbed_chain_close()
 * even after an error. Errors: IO, CORRUPT, STATE (a checkpoint is not the parent of the next one),
 * MEMORY. */
hotbed_status hotbed_chain_open(
    const hotbed_io_calls *calls, const char *const *paths, uint32_t n, hotbed_chain *out);

/* Close a chain. {0} is allowed. Keeps the error text. */
void hotbed_chain_close(hotbed_chain *chain);

/* Check that `increment` directly follows `parent` and has the same tables. `name` is the
 * increment's, `parent_name` the parent's. Errors: STATE. */
hotbed_status hotbed_chain_check(
    const char *name, const char *parent_name, const hotbed_manifest *parent,
    const hotbed_manifest *increment);

/* Return the manifest of the last checkpoint, which has the step, state and counters of the
 * chain. */
static inline const hotbed_manifest *hotbed_chain_last(const hotbed_chain *chain) {
    return &chain->links[chain->n - 1].manifest;
}

/* The position in one of the merged columns. */
typedef struct hotbed_chain_head {
    hotbed_part_reader *part;
    uint32_t link;
    bool live; /* bucket and key are set, to the next key */
    uint64_t bucket, key;
    uint64_t left; /* ERASED, COUNTED: keys that have not been read */
} hotbed_chain_head;

/* The data that a pass reads. COUNTED and KEYS keep it. */
typedef enum hotbed_chain_kind {
    HOTBED_CHAIN_ROWS = 0,    /* rows */
    HOTBED_CHAIN_COUNTED = 1, /* keys that admission counts, in the last checkpoint of the chain */
    HOTBED_CHAIN_KEYS = 2,    /* keys of the rows, and nothing else */
} hotbed_chain_kind;

typedef struct hotbed_chain_table {
    hotbed_chain *chain; /* borrowed */
    uint32_t table;
    hotbed_chain_kind kind;
    uint32_t bucket_bits;
    bool hash;
    bool sequential; /* the parts follow each other and need no merge */
    uint32_t next;   /* sequential: the current part, whether open or not yet open */
    bool open;
    hotbed_part_reader *parts; /* [num_parts]; sequential: [1], the current part */
    hotbed_chain_head *heads;  /* [2 * num_parts]: the rows of each part, then its erased keys */
    uint32_t num_parts;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
} hotbed_chain_table;

/* Start reading a table. The caller must call hotbed_chain_table_close() even after an error. */
hotbed_status hotbed_chain_table_open(
    hotbed_chain *chain, uint32_t table, hotbed_chain_kind kind, hotbed_chain_table *out);
void hotbed_chain_table_close(hotbed_chain_table *table);

/* Read the next rows, at most `capacity`. *n is 0 at the end.
 *
 *   columns  out  [capacity] rows of row_bytes[i] each
 *
 * A table opened as KEYS sets columns[KEYS] only. COUNTED sets columns[KEYS], and columns[SCORES]
 * to the counts. Errors: IO, CORRUPT. */
hotbed_status hotbed_chain_table_next(
    hotbed_chain_table *table, uint64_t capacity, void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t *n);

/* Host memory for rows of a table. */
typedef struct hotbed_chunk {
    uint64_t capacity; /* rows */
    void *columns[HOTBED_ROW_COLUMNS];
    void *memory;
} hotbed_chunk;

/* Allocate a chunk of about 1 MiB of rows, of row_bytes[i] each in column i. Each column starts at a
 * multiple of 8 bytes. Errors: MEMORY. */
hotbed_status hotbed_chunk_create(const size_t row_bytes[HOTBED_ROW_COLUMNS], hotbed_chunk *out);
void hotbed_chunk_destroy(hotbed_chunk *chunk);
