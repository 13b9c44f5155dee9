/* serve/version.h - one cut as a reader uses it: a base, and an index of what changed since.
 *
 * A version never changes once lookups see it. The next one is built beside it, from the same mapped
 * files and one more cut. */
#pragma once

#include "hotbed/read.h"
#include "serve/format.h"

/* A mapped file. */
typedef struct hotbed_map {
    unsigned char *data; /* NULL: not mapped */
    uint64_t bytes;
} hotbed_map;

/* The mapped files of a cut, which versions share. */
typedef struct hotbed_files {
    uint64_t users; /* versions; of the thread that polls */
    hotbed_map cut_map;
    hotbed_cut cut;
    hotbed_map *maps;       /* [world] */
    hotbed_rows_file *rows; /* [world] */
} hotbed_files;

/* Open and map the files of a cut, and check every byte. `directory` is an open directory, `path` its
 * name for messages. Errors: CORRUPT, IO, MEMORY, UNSUPPORTED. */
hotbed_status hotbed_files_open(
    int directory, const char *path, uint64_t number, hotbed_files **out);

/* Map only the cut's file, and check it. */
hotbed_status hotbed_files_head(
    int directory, const char *path, uint64_t number, hotbed_files **out);

/* Release one user; the last one unmaps the files. NULL is allowed. */
void hotbed_files_release(hotbed_files *files);

/* An entry of a table's index of changes. `ref` is 0: empty; bit 63: the key was removed; otherwise the
 * number of the rows file in hotbed_version.rows, plus 1, in bits 32 .. 62, and the row's number below. */
typedef struct hotbed_change {
    uint64_t key, ref;
} hotbed_change;

#define HOTBED_CHANGE_ERASED ((uint64_t)1 << 63)

/* A table of a version. */
typedef struct hotbed_version_table {
    uint32_t dim;
    hotbed_encoding encoding;
    float missing;
    uint32_t row_bytes, value_bytes; /* with states, and of the embedding */
    uint64_t keys;                   /* of the table */
    uint64_t num_changes;
    uint64_t mask; /* entries - 1, a power of two less one; 0: there are no changes */
    hotbed_change *changes;
    hotbed_route route; /* with several ranks */
} hotbed_version_table;

typedef struct hotbed_version {
    uint64_t number;
    hotbed_digest digest;            /* of the cut's file */
    uint64_t base, step, created_ns; /* as in the cut */
    uint64_t used_ns;                /* monotonic: when lookups first saw it */
    double lag;                      /* its age then, in seconds */
    hotbed_digest run;
    uint32_t num_tables, world;
    uint64_t num_files, num_rows; /* rows: rows files of all `files` */
    hotbed_files **files;         /* [num_files] the base and the increments after it */
    const hotbed_rows_file **rows;
    hotbed_version_table *tables;
    uint64_t released; /* lookups that have finished with it, once it is not the newest */
} hotbed_version;

/* Make a version of a base, or of a version and the increment after it. Takes a user of *files on
 * success. Errors: CORRUPT (the number of keys is not the one that the cut claims), STATE (the increment
 * follows another cut; another encoding or table), MEMORY. */
hotbed_status hotbed_version_of_base(hotbed_files *files, hotbed_version **out);
hotbed_status hotbed_version_after(
    const hotbed_version *before, hotbed_files *files, hotbed_version **out);

void hotbed_version_free(hotbed_version *version); /* NULL is allowed */

/* Take the version that a reader answers from, until it is given back. Errors: ARGUMENT, STATE (forked). */
hotbed_status hotbed_reader_take(
    hotbed_reader *reader, const char *call, const hotbed_version **out);
void hotbed_reader_give(const hotbed_version *version);

/* Seconds since the rows of a cut were copied, by the wall clock, and at least since the cut was first used, in
 * monotonic time: a cut grows old although a clock was set back. */
double hotbed_cut_age(uint64_t created_ns, uint64_t used_ns);

/* Whether a cut has the same tables, dims and key types as another one; its encodings may differ. */
bool hotbed_cut_same_tables(const hotbed_cut *a, const hotbed_cut *b);

uint64_t hotbed_version_mapped(const hotbed_version *version);
uint64_t hotbed_version_memory(const hotbed_version *version);

/* Find the encoded rows of n keys, at most HOTBED_FIND_MOST; NULL for a missing key. Starts to load the
 * rows that it finds. */
enum { HOTBED_FIND_MOST = 32 };
void hotbed_version_find(
    const hotbed_version *version, uint32_t table, uint32_t n, const uint64_t *keys,
    const unsigned char **rows);
