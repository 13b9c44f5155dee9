/* serve/format.h - the files of a published directory: names, structs, and their checks.
 *
 * docs/formats.md has the same for people. A cut is one file "cut-<number>", which names the rows files
 * "rows-<number>-<rank>" of all ranks with their sizes and digests. All numbers are little-endian; so
 * are the machines that Hotbed runs on. */
#pragma once

#include "base/hash_core.h"
#include "checkpoint/format/digest.h"
#include "hotbed/publish.h"

#include <assert.h>

enum {
    HOTBED_CUT_VERSION = 1,
    HOTBED_CUT_NAME_BYTES = 40,
    HOTBED_CUT_ALIGN = 64, /* extents begin at multiples of this */
    HOTBED_CUT_TABLES_MOST = 65535,
    HOTBED_CUT_RANKS_MOST = 65536,
    HOTBED_CUT_BITS_MOST = 31, /* buckets of a table in a file */
    HOTBED_CUT_DIM_MOST = 4096,
};

#define HOTBED_CUT_NUMBER_MOST 999999999999U /* twelve digits */
#define HOTBED_CUT_MAGIC       "HOTBEDcu"
#define HOTBED_ROWS_MAGIC      "HOTBEDro"
#define HOTBED_CUT_NO_ROUTE    UINT32_MAX

/* The beginning of a cut's file. */
typedef struct hotbed_cut_head {
    char magic[8];
    uint32_t version;
    uint32_t tables;
    uint32_t world;
    uint32_t reserved;
    hotbed_digest run;    /* random; the same in all cuts of one publisher */
    uint64_t number;      /* numbers rise from cut to cut, not always by one */
    uint64_t base;        /* number of the base; `number` in a base */
    uint64_t parent;      /* number of the cut before; 0 in a base */
    hotbed_digest before; /* digest of that cut's file; 0 in a base */
    uint64_t step;
    uint64_t created_ns; /* when the rows were copied; since 1970, UTC */
    uint64_t unused[4];
} hotbed_cut_head;
static_assert(sizeof(hotbed_cut_head) == 128, "the size is part of the format");

/* A table of a cut; [tables] of them follow the head. */
typedef struct hotbed_cut_table {
    char name[64]; /* padded with 0 */
    uint32_t dim;
    uint32_t encoding; /* hotbed_encoding, from F32 on */
    uint32_t key_type; /* hotbed_key_type */
    uint32_t route;    /* hotbed_route_kind, or HOTBED_CUT_NO_ROUTE with one rank */
    uint64_t route_rows;
    uint64_t keys; /* of the table in this cut, on all ranks */
    float missing; /* each element of the row of a missing key */
    /* hotbed_optimizer_kind whose states are behind each row; 0: rows have none, and the numbers below are 0 */
    uint32_t optimizer;
    uint64_t optimizer_steps; /* as in hotbed_storage_state */
    double beta1_power, beta2_power;
} hotbed_cut_table;
static_assert(sizeof(hotbed_cut_table) == 128, "the size is part of the format");

/* A rows file of a cut; [world] of them follow the tables. The digest of the file so far, of 16 bytes,
 * ends the file. */
typedef struct hotbed_cut_part {
    uint64_t bytes;
    hotbed_digest digest; /* at the end of the rows file's tables */
    uint64_t unused;
} hotbed_cut_part;
static_assert(sizeof(hotbed_cut_part) == 32, "the size is part of the format");

/* The beginning of a rows file. */
typedef struct hotbed_rows_head {
    char magic[8];
    uint32_t version;
    uint32_t tables;
    uint32_t rank;
    uint32_t reserved;
    hotbed_digest run;
    uint64_t number;
    uint64_t parent; /* number of the cut before; 0 in a base */
    uint64_t unused;
} hotbed_rows_head;
static_assert(sizeof(hotbed_rows_head) == 64, "the size is part of the format");

/* The columns of a table in a rows file. */
typedef enum hotbed_rows_column {
    HOTBED_ROWS_KEYS = 0,   /* [rows] u64, in the order of their hashes */
    HOTBED_ROWS_STARTS = 1, /* [2^bits + 1] u32: bucket b has keys [starts[b], starts[b + 1]) */
    HOTBED_ROWS_VALUES = 2, /* [rows] encoded rows */
    HOTBED_ROWS_ERASED = 3, /* [erased] u64 keys to remove, in the order of their hashes */
    HOTBED_ROWS_COLUMNS = 4,
} hotbed_rows_column;

/* A table of a rows file; [tables] of them follow the head, and then the digest of both, 16 bytes. */
typedef struct hotbed_rows_table {
    uint64_t rows;
    uint64_t erased;
    uint64_t offsets[HOTBED_ROWS_COLUMNS]; /* 0: empty */
    hotbed_digest digests[HOTBED_ROWS_COLUMNS];
    uint32_t bits;
    uint32_t row_bytes;
    uint64_t unused;
} hotbed_rows_table;
static_assert(sizeof(hotbed_rows_table) == 128, "the size is part of the format");

/* The name of a file. */
typedef struct hotbed_cut_file {
    char text[HOTBED_CUT_NAME_BYTES];
} hotbed_cut_file;
hotbed_cut_file hotbed_cut_name(uint64_t number);
hotbed_cut_file hotbed_rows_name(uint64_t number, uint32_t rank);

/* Return the number in the name of a cut's file, or of a rows file; 0: it is no such name. */
uint64_t hotbed_cut_number(const char *name);
uint64_t hotbed_rows_number(const char *name);

/* Bytes of an encoded embedding, and of the columns of a table. */
uint32_t hotbed_encoded_bytes(hotbed_encoding encoding, uint32_t dim);
uint64_t hotbed_rows_column_bytes(const hotbed_rows_table *table, hotbed_rows_column column);

/* Elements of a state of a row; 0: rows have no such state. */
uint32_t hotbed_cut_state_dim(const hotbed_cut_table *table, uint32_t state);

/* A row of a file is the encoded embedding, and if it has states, zeros up to a multiple of 4 and the
 * states in F32. Bytes of a row, and where its states begin. */
uint32_t hotbed_cut_row_bytes(const hotbed_cut_table *table);
uint32_t hotbed_cut_states_at(const hotbed_cut_table *table);

/* Buckets for `rows` rows: about 4 keys in each. */
uint32_t hotbed_rows_bits(uint64_t rows);

/* The bucket of a key among 2^bits. */
static inline uint64_t hotbed_rows_bucket(uint64_t key, uint32_t bits) {
    return bits == 0 ? 0 : hotbed_hash_u64(key) >> (64 - bits);
}

/* Bytes of the parts of a file. */
static inline uint64_t hotbed_cut_bytes(uint32_t tables, uint32_t world) {
    return sizeof(hotbed_cut_head) + (uint64_t)tables * sizeof(hotbed_cut_table) +
           (uint64_t)world * sizeof(hotbed_cut_part) + sizeof(hotbed_digest);
}

static inline uint64_t hotbed_rows_front_bytes(uint32_t tables) {
    return sizeof(hotbed_rows_head) + (uint64_t)tables * sizeof(hotbed_rows_table) +
           sizeof(hotbed_digest);
}

/* A cut's file in memory, which is borrowed. */
typedef struct hotbed_cut {
    const hotbed_cut_head *head;
    const hotbed_cut_table *tables;
    const hotbed_cut_part *parts;
    hotbed_digest digest; /* of the file */
} hotbed_cut;

/* Check the bytes of a cut's file and find its parts. `data` is aligned to 8 bytes. Errors: CORRUPT,
 * with `name`, UNSUPPORTED (a newer format). */
hotbed_status hotbed_cut_parse(
    const char *name, uint64_t number, const void *data, uint64_t bytes, hotbed_cut *out);

/* A rows file in memory, which is borrowed. */
typedef struct hotbed_rows_file {
    const unsigned char *data;
    const hotbed_rows_table *tables;
} hotbed_rows_file;

/* Check the front of a rows file, and that all columns lie inside of it, against its cut. The contents of
 * the columns are not read. Errors: CORRUPT, with `name`. */
hotbed_status hotbed_rows_parse(
    const char *name, const hotbed_cut *cut, uint32_t rank, const void *data, uint64_t bytes,
    hotbed_rows_file *out);

/* Check the columns of a parsed rows file: digests, order of keys, buckets, and the rank of each key.
 * Reads all of it. Errors: CORRUPT, with `name`. */
hotbed_status hotbed_rows_verify(
    const char *name, const hotbed_cut *cut, uint32_t rank, const hotbed_rows_file *file);

/* Check a rows file whose cut is not written yet: its front, the number and rank in its name, and its
 * columns, except for the rank of each key. `data` is aligned to 8 bytes. Errors: CORRUPT, with `name`;
 * UNSUPPORTED (another format). */
hotbed_status hotbed_rows_check(
    const char *name, const void *data, uint64_t bytes, hotbed_rows_file *out);

static inline const void *hotbed_rows_column_of(
    const hotbed_rows_file *file, uint32_t table, hotbed_rows_column column) {
    return file->data + file->tables[table].offsets[column];
}
