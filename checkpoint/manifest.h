/* checkpoint/manifest.h - what a checkpoint holds: every file, table and extent with its digest.
 *
 * MANIFEST is text, docs/formats.md has its grammar, and its last line is the digest of the lines
 * before.  One description of the format (manifest.c) serves writing and reading, so that what is read
 * is exactly what would be written.  A loader needs nothing but this to find and check each byte.
 *
 * Text from a file is not trusted: hotbed_manifest_parse() takes time and memory in proportion to the
 * text, and what it returns has been checked (sizes, counts, overlaps), so that a reader may allocate
 * and seek by it once the files have the sizes that it says.
 */
#ifndef HOTBED_CHECKPOINT_MANIFEST_H
#define HOTBED_CHECKPOINT_MANIFEST_H

#include "checkpoint/digest.h"
#include "hotbed/storage.h"

enum {
    HOTBED_FORMAT_MAJOR = 1,       /* another layout: older readers refuse it */
    HOTBED_FORMAT_MINOR = 2,       /* something new that older readers must not overlook */
    HOTBED_FORMAT_MINOR_PLAIN = 1, /* what is written where nothing asks for more */
    HOTBED_FORMAT_MINOR_TIMES = 2, /* a table has times */
    HOTBED_BLOCK_BYTES =
        1 << 20, /* of a block, where nothing asks for others: each has a digest of its own */
    HOTBED_BLOCK_BYTES_LEAST = 4 << 10,
    HOTBED_BLOCK_BYTES_MOST = 4 << 20, /* what format 1.0 always has */
    HOTBED_MANIFEST_BYTES_MAX = 64 << 20,
    HOTBED_WORLD_MAX = 65536,
};

#define HOTBED_MANIFEST_NAME "MANIFEST"
#define HOTBED_INDEX_NAME    "index.h5"

/* Bytes [offset, offset + bytes) of a shard file.  `root` is the digest of the digests of its blocks,
 * which stand in the shard's blocks extent from number `first_block` on.  An empty extent has offset 0.
 * All digests of more than a row are such roots (hotbed_digest_root()), so that files are checked
 * through a buffer of one block. */
typedef struct hotbed_extent {
    uint64_t offset, bytes;
    uint64_t first_block; /* not in the text: extents have blocks in the order of their lines */
    hotbed_digest root;
} hotbed_extent;

/* Columns of a part, in the order of their lines. */
typedef enum hotbed_column {
    HOTBED_COLUMN_KEYS = 0,   /* i64 or u64 [rows]; HASH, and in an increment every table */
    HOTBED_COLUMN_VALUES = 1, /* the table's dtype [rows, dim] */
    HOTBED_COLUMN_SCORES = 2, /* u64 [rows]; HASH */
    HOTBED_COLUMN_BUCKET = 3, /* u64 [buckets of the part], rows in each; HASH */
    HOTBED_COLUMN_STATE = 4,  /* f32 [rows, state dim], and 5 */
    HOTBED_COLUMN_TIMES = 6,  /* u64 [rows]; HASH with times, format 1.2 */
    HOTBED_ROW_COLUMNS = 7,   /* the columns before have something of each row, but BUCKET */
    HOTBED_COLUMN_COUNTED =
        7, /* i64 or u64 [counted] keys that admission counts; HASH, format 1.1 */
    HOTBED_COLUMN_COUNTS = 8, /* u64 [counted] */
    HOTBED_COLUMN_ERASED = 9, /* i64 or u64 [erased] keys that left; HASH in an increment */
    HOTBED_COLUMNS = 10,
} hotbed_column;

/* How the rows of a hash table are spread over ranks. */
typedef enum hotbed_spread {
    HOTBED_SPREAD_BUCKET = 0, /* each rank has a range of buckets, in order */
    HOTBED_SPREAD_ANY = 1,    /* by another rule: several ranks have rows of a bucket */
} hotbed_spread;

typedef struct hotbed_manifest_shard {
    uint64_t bytes;          /* of the file */
    uint64_t metadata_bytes; /* HDF5's own, at the start of the file */
    hotbed_digest metadata;  /* root of those */
    hotbed_extent extra;     /* the caller's bytes; shard 0 */
    hotbed_extent blocks;    /* u64 [number of blocks, 2]: low, high */
    uint64_t num_blocks;     /* of all other extents; not in the text */
} hotbed_manifest_shard;

/* The rows of a table that one shard has. */
typedef struct hotbed_manifest_part {
    uint64_t rows;
    uint64_t first_row;  /* in the column of all parts */
    uint64_t first, end; /* HASH: buckets [first, end) are here; STATIC: rows of the table */
    uint64_t counted;    /* keys that admission counts */
    uint64_t erased;     /* increments: keys that left since the parent */
    hotbed_extent columns[HOTBED_COLUMNS]; /* those that the table does not have are zero */
} hotbed_manifest_part;

typedef struct hotbed_manifest_table {
    char name[64];
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint32_t dim;
    uint32_t bucket_bits; /* HASH: 2^bits logical buckets; STATIC: 0 */
    bool times;           /* HASH: beside scores there are times (HOTBED_SCORE_TIMESTAMP_LFU) */
    hotbed_spread spread; /* HASH */
    uint32_t route; /* rule by which ranks had the rows: 0 none, else its hotbed_route_kind + 1 */
    uint64_t route_rows;   /* CONTINUOUS: hotbed_route.rows; others: 0 */
    uint64_t rows;         /* here */
    uint64_t capacity;     /* STATIC: rows of the table; a full checkpoint has them all */
    hotbed_digest content; /* sum of the rows' digests, see docs/formats.md */
} hotbed_manifest_table;

typedef struct hotbed_manifest {
    uint32_t minor; /* of the format: the least that can say what is there */
    bool increment; /* has what changed since the parent */
    hotbed_digest id;
    hotbed_digest parent;        /* id of the parent; increments */
    hotbed_digest parent_digest; /* last line of its MANIFEST */
    hotbed_digest digest;        /* last line of this one's; parse sets it */
    uint64_t step;
    uint64_t created_ns; /* since 1970, UTC */
    char writer[64];
    uint32_t world;       /* ranks, and shards */
    uint32_t block_bytes; /* a power of two */
    uint32_t num_tables;
    hotbed_key_type key_type;
    uint64_t seed;
    hotbed_optimizer optimizer; /* kind 0: none */
    hotbed_storage_state state;
    uint64_t index_bytes;
    hotbed_digest index;           /* root of index.h5 */
    hotbed_manifest_shard *shards; /* [world] */
    hotbed_manifest_table *tables; /* [num_tables] */
    hotbed_manifest_part *parts;   /* [num_tables * world], by table, then shard */
    uint32_t *by_name;             /* [num_tables] table numbers in order of name; parse sets it */
} hotbed_manifest;

/* Room for the tables and shards of *manifest (world and num_tables are set), zeroed.  Errors: MEMORY. */
hotbed_status hotbed_manifest_reserve(hotbed_manifest *manifest);

/* Free the arrays.  NULL and {0} are allowed. */
void hotbed_manifest_free(hotbed_manifest *manifest);

/* Whether a table has the column. */
bool hotbed_manifest_has(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column);

/* A table gets times, and the manifest the format that has them. */
void hotbed_manifest_set_times(hotbed_manifest *manifest, hotbed_manifest_table *table);

/* Number of a table's logical buckets; of rows of a STATIC table. */
uint64_t hotbed_manifest_range(const hotbed_manifest_table *table);

/* Bytes of one row in a column of HOTBED_ROW_COLUMNS, in memory: a key always has its 8.  0: no such. */
size_t hotbed_manifest_row_bytes(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column);

/* Bytes of a column of a part. */
uint64_t hotbed_manifest_column_bytes(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table,
    const hotbed_manifest_part *part, uint32_t column);

/* "keys", "values", "scores", "bucket", "opt/exp_avg", "times", "admission/keys", "erased": as in MANIFEST and in
 * the shard's group. */
const char *hotbed_manifest_column_name(hotbed_optimizer_kind optimizer, uint32_t column);

/* Number the blocks of each shard's extents: first_block and num_blocks. */
void hotbed_manifest_number_blocks(hotbed_manifest *manifest);

/* The text of *manifest, not NUL-terminated; the caller frees *text with hotbed_delete().
 * Errors: MEMORY, UNSUPPORTED (it would be over HOTBED_MANIFEST_BYTES_MAX). */
hotbed_status hotbed_manifest_print(const hotbed_manifest *manifest, char **text, size_t *bytes);

/* Read a text; `name` is for messages.  On error *out is zeroed; else the caller frees it.
 * Errors: CORRUPT (digest; line and what was expected; sizes that do not agree), UNSUPPORTED (a newer
 * format), MEMORY. */
hotbed_status hotbed_manifest_parse(
    const char *name, const char *text, size_t bytes, hotbed_manifest *out);

/* Every rank's shard is described by itself before MANIFEST is: print the lines about `shard` alone, with a
 * digest as MANIFEST has. */
hotbed_status hotbed_manifest_print_shard(
    const hotbed_manifest *manifest, uint32_t shard, char **text, size_t *bytes);

/* Put shards 0, 1, ... together again: *manifest is {0} for shard 0, and that one's head and tables are
 * then those of the others.  On error the caller still frees *manifest.
 * Errors: CORRUPT, STATE (a table or the step is another than shard 0's, with both values), MEMORY. */
hotbed_status hotbed_manifest_add_shard(
    const char *name, const char *text, size_t bytes, uint32_t shard, hotbed_manifest *manifest);

/* All are there: number rows and blocks, and check what parse would.  Errors: CORRUPT, MEMORY. */
hotbed_status hotbed_manifest_complete(hotbed_manifest *manifest);

/* Whether sizes, ranges and places of *manifest agree; sets by_name and blocks' numbers.  `file` is for
 * messages.  checkpoint/manifest_check.c.  Errors: CORRUPT, MEMORY. */
hotbed_status hotbed_manifest_check(const char *file, hotbed_manifest *manifest);

/* Number of the table with this name, or UINT32_MAX.  After parse. */
uint32_t hotbed_manifest_find(const hotbed_manifest *manifest, const char *name);

/* "shard-00000-of-00001.h5", and "shard-00000-of-00001.part": the description of one that is written. */
void hotbed_shard_name(uint32_t shard, uint32_t world, char name[32]);
void hotbed_shard_part_name(uint32_t shard, uint32_t world, char name[32]);

#endif
