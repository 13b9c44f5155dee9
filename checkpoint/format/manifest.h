/* checkpoint/format/manifest.h - the content of a checkpoint: every file, table and extent with its
 * digest.
 *
 * MANIFEST is text. docs/formats.md has its grammar. Its last line is the digest of all lines
 * before. One description of the format (manifest.c) serves both writing and reading, so the reader
 * accepts exactly the text that the writer would write. A loader needs only the manifest to find
 * and check each byte.
 *
 * Text from a file is not trusted. hotbed_manifest_parse() takes time and memory in proportion to
 * the text, and checks sizes, counts and overlaps. After it, a reader may allocate and seek by the
 * manifest once the files are known to have the sizes that it states. */
#pragma once

#include "checkpoint/format/digest.h"
#include "hotbed/storage.h"

enum {
    HOTBED_FORMAT = 1,            /* readers refuse a higher one */
    HOTBED_BLOCK_BYTES = 1 << 20, /* default size of a block; each block has its own digest */
    HOTBED_BLOCK_BYTES_LEAST = 4 << 10,
    HOTBED_BLOCK_BYTES_MOST = 4 << 20,
    HOTBED_MANIFEST_BYTES_MAX = 64 << 20,
    HOTBED_STORAGES_MAX = 65535,
    HOTBED_BLOBS_MAX = 1024,
    HOTBED_WORLD_MAX = 65536,
};

#define HOTBED_MANIFEST_NAME "MANIFEST"
#define HOTBED_INDEX_NAME    "index.h5"

/* Bytes [offset, offset + bytes) of a shard file. `root` is the digest of the digests of its
 * blocks. The blocks' digests are in the shard's `blocks` extent, from entry `first_block` on. An
 * empty extent has offset 0. All digests of more than a row are such roots (hotbed_digest_root()),
 * so files are checked through a buffer of one block. */
typedef struct hotbed_extent {
    uint64_t offset, bytes;
    uint64_t first_block; /* not in the text: blocks are in the order of the extents' lines */
    hotbed_digest root;
} hotbed_extent;

/* Columns of a part, in the order of their lines. */
typedef enum hotbed_column {
    HOTBED_COLUMN_KEYS = 0,   /* i64 or u64 [rows]; HASH, and in an increment every table */
    HOTBED_COLUMN_VALUES = 1, /* the table's dtype [rows, dim] */
    HOTBED_COLUMN_SCORES = 2, /* u64 [rows]; HASH */
    /* u64 [buckets of the part], rows in each; HASH. Empty in a part that has fewer rows than
     * buckets. */
    HOTBED_COLUMN_BUCKET = 3,
    HOTBED_COLUMN_STATE = 4, /* f32 or bf16 [rows, state dim]; also column 5 */
    HOTBED_COLUMN_TIMES = 6, /* u64 [rows]; HASH with times */
    HOTBED_ROW_COLUMNS = 7,  /* the columns before, except BUCKET, have one entry per row */
    /* i64 or u64 [counted] keys that admission counts; HASH */
    HOTBED_COLUMN_COUNTED = 7,
    HOTBED_COLUMN_COUNTS = 8, /* u64 [counted] */
    /* i64 or u64 [erased] keys without a row since the parent; HASH in an increment */
    HOTBED_COLUMN_ERASED = 9,
    HOTBED_COLUMNS = 10,
} hotbed_column;

/* How the rows of a hash table are distributed over ranks. */
typedef enum hotbed_spread {
    HOTBED_SPREAD_BUCKET = 0, /* each rank has a range of buckets, in order */
    HOTBED_SPREAD_ANY = 1,    /* by another rule: several ranks have rows of a bucket */
} hotbed_spread;

/* A storage that was saved: what its tables have in common. */
typedef struct hotbed_manifest_storage {
    char name[64];
    hotbed_pooling pooling; /* information: no loader compares it */
    hotbed_key_type key_type;
    uint64_t seed;
    hotbed_optimizer optimizer; /* kind 0: none */
    hotbed_storage_state state;
} hotbed_manifest_storage;

/* Bytes of the caller. They are in shard 0. */
typedef struct hotbed_manifest_blob {
    char name[64];
    hotbed_extent extent;
} hotbed_manifest_blob;

typedef struct hotbed_manifest_shard {
    uint64_t bytes;          /* of the file */
    uint64_t metadata_bytes; /* HDF5 metadata, at the start of the file */
    hotbed_digest metadata;  /* root of the metadata */
    hotbed_extent blocks;    /* u64 [number of blocks, 2]: low, high */
    uint64_t num_blocks;     /* of all other extents; not in the text */
} hotbed_manifest_shard;

/* The rows of a table in one shard. */
typedef struct hotbed_manifest_part {
    uint64_t rows;
    uint64_t first_row; /* in the column of all parts */
    /* HASH: has buckets [first, end). STATIC: has the places [first, end) of a list of all rows, one
     * rank's after another's; hotbed_manifest_numbers() has the numbers of these rows. */
    uint64_t first, end;
    uint64_t counted;                      /* keys that admission counts */
    uint64_t erased;                       /* increments: keys that left since the parent */
    hotbed_extent columns[HOTBED_COLUMNS]; /* zero for columns that the table does not have */
} hotbed_manifest_part;

typedef struct hotbed_manifest_table {
    char name[64];
    uint32_t storage; /* number of the storage that it was saved from */
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    hotbed_dtype state_dtype; /* hotbed_states_dtype() */
    uint32_t dim;
    uint32_t bucket_bits; /* HASH: 2^bits logical buckets; STATIC: 0 */
    bool times; /* HASH: the table has times besides scores (HOTBED_SCORE_TIMESTAMP_LFU) */
    hotbed_spread spread; /* HASH */
    /* routing rule that assigned rows to ranks; 0: none, else its hotbed_route_kind + 1 */
    uint32_t route;
    uint64_t route_rows;   /* hotbed_route.rows; 0 if the route numbers no rows */
    uint64_t rows;         /* in this checkpoint */
    uint64_t keys;         /* HASH: that the table had; a full checkpoint has a row for each */
    uint64_t capacity;     /* STATIC: rows of the table; a full checkpoint has all of them */
    hotbed_digest content; /* sum of the rows' digests, see docs/formats.md */
} hotbed_manifest_table;

typedef struct hotbed_manifest {
    bool increment; /* has only the rows that changed since the parent */
    hotbed_digest id;
    hotbed_digest parent;        /* increments: id of the parent */
    hotbed_digest parent_digest; /* increments: digest in the last line of the parent's MANIFEST */
    hotbed_digest digest;        /* digest in the last line of this MANIFEST; parse sets it */
    uint64_t step;
    uint64_t created_ns; /* since 1970, UTC */
    char writer[64];
    uint32_t world;       /* number of ranks, and of shards */
    uint32_t block_bytes; /* a power of two */
    uint32_t num_storages;
    uint32_t num_tables; /* of all storages */
    uint32_t num_blobs;
    uint64_t index_bytes;
    hotbed_digest index;               /* root of index.h5 */
    hotbed_manifest_storage *storages; /* [num_storages] */
    hotbed_manifest_blob *blobs;       /* [num_blobs] */
    hotbed_manifest_shard *shards;     /* [world] */
    hotbed_manifest_table *tables;     /* [num_tables] */
    hotbed_manifest_part *parts;       /* [num_tables * world], by table, then shard */
    uint32_t *by_name; /* [num_tables] table numbers in order of name; parse sets it */
} hotbed_manifest;

/* Return the storage of a table, and the kind of its optimizer. */
static inline const hotbed_manifest_storage *hotbed_manifest_origin(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table) {
    return &manifest->storages[table->storage];
}

static inline hotbed_optimizer_kind hotbed_manifest_optimizer(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table) {
    return hotbed_manifest_origin(manifest, table)->optimizer.kind;
}

/* Whether a table of m and one of n have the same name and form of rows: kind, types, dim, buckets, optimizer. */
bool hotbed_manifest_same_rows(
    const hotbed_manifest *m, const hotbed_manifest_table *x, const hotbed_manifest *n,
    const hotbed_manifest_table *y);

/* Allocate the arrays of *manifest, zeroed. world and the numbers of storages, blobs and tables
 * must be set. Errors: MEMORY. */
hotbed_status hotbed_manifest_reserve(hotbed_manifest *manifest);

/* Free the arrays. NULL and {0} are allowed. */
void hotbed_manifest_free(hotbed_manifest *manifest);

/* Whether a table has the column. */
bool hotbed_manifest_has(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column);

/* Return the number of logical buckets of a HASH table, or of rows of a STATIC table. */
uint64_t hotbed_manifest_range(const hotbed_manifest_table *table);

/* Whether the rows of a STATIC table are dealt to the ranks in turn, by ROUND_ROBIN. Otherwise each
 * rank has a block of rows. */
bool hotbed_manifest_deals(const hotbed_manifest *manifest, const hotbed_manifest_table *table);

/* The numbers of the rows of a STATIC table in one shard: row k of the part is row
 * first + k * step of the table. */
typedef struct hotbed_row_numbers {
    uint64_t first, step;
} hotbed_row_numbers;

static inline uint64_t hotbed_numbers_at(hotbed_row_numbers numbers, uint64_t row) {
    return numbers.first + row * numbers.step;
}

/* Return the numbers of the rows in shard `shard`. `table` is one of *manifest's. */
hotbed_row_numbers hotbed_manifest_numbers(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t shard);

/* The types of the rows of a table: of embeddings, and hotbed_table_options.state_dtype. */
typedef struct hotbed_row_types {
    hotbed_dtype values, states;
} hotbed_row_types;

/* What a row has in a column of numbers that may have one of several types. */
typedef struct hotbed_column_form {
    hotbed_dtype dtype;
    uint32_t dim; /* 0: another column, or the table does not have it */
} hotbed_column_form;

static inline hotbed_row_types hotbed_manifest_types(const hotbed_manifest_table *table) {
    return (hotbed_row_types){table->dtype, table->state_dtype};
}

/* The types of a table of a storage. */
static inline hotbed_row_types hotbed_row_types_of(const hotbed_table_info *info) {
    const hotbed_dtype first = info->state_dtypes[0];
    return (hotbed_row_types){info->dtype, first != HOTBED_F32 ? first : info->state_dtypes[1]};
}

/* Return the form of a column if the table has rows of these types, which need not be its own. */
hotbed_column_form hotbed_manifest_form(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, hotbed_row_types types,
    uint32_t column);

/* Return the bytes per row of a column below HOTBED_ROW_COLUMNS, in memory. A key always has 8. 0:
 * the table has no such column. */
size_t hotbed_manifest_row_bytes(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column);

/* Return the size in bytes of a column of a part. */
uint64_t hotbed_manifest_column_bytes(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table,
    const hotbed_manifest_part *part, uint32_t column);

/* Return the name of a column, "keys", "values", "scores", "bucket", "opt/exp_avg", "times",
 * "admission/keys" or "erased" for example, as in MANIFEST and in the shard's group. */
const char *hotbed_manifest_column_name(hotbed_optimizer_kind optimizer, uint32_t column);

/* Fail as hotbed_unfit_fail(): a row of a table has this value in VALUES or a state. */
hotbed_status hotbed_manifest_unfit_fail(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column,
    uint64_t key, hotbed_dtype dtype, float value);

/* Number the blocks of each shard's extents: sets first_block and num_blocks. */
void hotbed_manifest_number_blocks(hotbed_manifest *manifest);

/* Return whether two optimizers of one kind have the same arguments. */
bool hotbed_manifest_same_arguments(const hotbed_optimizer *a, const hotbed_optimizer *b);

/* Print *manifest as text, without a final NUL. The caller frees *text with hotbed_delete().
 * Errors: MEMORY, UNSUPPORTED (the text would exceed HOTBED_MANIFEST_BYTES_MAX). */
hotbed_status hotbed_manifest_print(const hotbed_manifest *manifest, char **text, size_t *bytes);

/* Parse the text of a MANIFEST. `name` is for messages. The caller frees *out; after an error it is
 * zeroed. Errors: CORRUPT (the digest is wrong; a line is not the expected one; sizes do not
 * agree), UNSUPPORTED (a newer format), MEMORY. */
hotbed_status hotbed_manifest_parse(
    const char *name, const char *text, size_t bytes, hotbed_manifest *out);

/* Print the description of one shard: the lines about `shard` only, and a digest as in MANIFEST.
 * Each rank's shard has such a description until MANIFEST is written. */
hotbed_status hotbed_manifest_print_shard(
    const hotbed_manifest *manifest, uint32_t shard, char **text, size_t *bytes);

/* Add the description of one shard. Call it for shards 0, 1, ... in order, with *manifest {0} for
 * shard 0, whose head, storages and tables all other shards must have. The caller frees *manifest even after
 * an error. Errors: CORRUPT, STATE (a table or the step differs from shard 0's; the message has
 * both values), MEMORY. */
hotbed_status hotbed_manifest_add_shard(
    const char *name, const char *text, size_t bytes, uint32_t shard, hotbed_manifest *manifest);

/* Complete *manifest after all shards were added: number rows and blocks, and make the checks of
 * parse. Errors: CORRUPT, MEMORY. */
hotbed_status hotbed_manifest_complete(hotbed_manifest *manifest);

/* Check that sizes, ranges and offsets of *manifest agree, and set by_name and the block numbers.
 * `file` is for messages. Implemented in checkpoint/format/manifest_check.c. Errors: CORRUPT, MEMORY. */
hotbed_status hotbed_manifest_check(const char *file, hotbed_manifest *manifest);

/* Copy the extents of a shard, also empty ones, in the order of their offsets. The caller frees *out with
 * hotbed_delete(). Errors: MEMORY. */
hotbed_status hotbed_manifest_extents(
    const hotbed_manifest *manifest, uint32_t shard, hotbed_extent **out, size_t *n);

/* Return the number of the table with this name, or UINT32_MAX. Call after parse. */
uint32_t hotbed_manifest_find(const hotbed_manifest *manifest, const char *name);

/* Return the blob with this name, or NULL. */
const hotbed_manifest_blob *hotbed_manifest_find_blob(
    const hotbed_manifest *manifest, const char *name);

/* Write the file name of a shard, "shard-00000-of-00001.h5", or of its description,
 * "shard-00000-of-00001.part". */
typedef struct hotbed_file_name {
    char text[32];
} hotbed_file_name;
hotbed_file_name hotbed_shard_name(uint32_t shard, uint32_t world);
hotbed_file_name hotbed_shard_part_name(uint32_t shard, uint32_t world);
