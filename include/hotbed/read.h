/* hotbed/read.h - look up rows of a published directory, in a process that serves a model.
 *
 * Experimental: all calls.
 *
 * A *reader* maps the cuts that a publisher (hotbed/publish.h) writes to a directory, and answers
 * lookups from them. It needs no storage, no stream, no GPU and no HDF5. It follows the publisher: a
 * *version* is one cut, and lookups see a version whole or not at all.
 *
 *       hotbed_reader_options options = {.size = sizeof options, .follow_ms = 200};
 *       hotbed_reader *reader;
 *       status = hotbed_reader_open("published", &options, &reader);
 *       int64_t offsets[] = {0, 1, 3}; // bag 0 has the first key, bag 1 the others
 *       hotbed_lookup lookup = {.batch_size = 2, .num_keys = 3, .keys = keys, .offsets = offsets};
 *       lookup.pooling = HOTBED_POOL_SUM, lookup.output = output, lookup.stride = 16;
 *       status = hotbed_reader_find(reader, "user", &lookup.table);
 *       uint64_t version;
 *       status = hotbed_reader_lookup(reader, &lookup, 1, &version);
 *
 * Lookups may be made by any number of threads, also while a new version appears. They take no lock,
 * never wait and allocate nothing.
 *
 * What a reader answers is exactly the cut that it names. A cut that is missing, incomplete, damaged or
 * out of order is not used: the reader keeps its version and says why in hotbed_reader_health(), until
 * the missing cut or a later base is there. Every byte of a cut is checked before its rows are used.
 *
 * A process that is forked after the open does not follow the publisher, so its calls return STATE: open
 * readers after the fork.
 *
 * Files have been checked once when they are used, and are mapped. A program that changes or truncates
 * them in place breaks the readers (SIGBUS); a publisher only adds and removes files. */
#ifndef HOTBED_READ_H
#define HOTBED_READ_H

#include "hotbed/publish.h"
#include "hotbed/types.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_reader hotbed_reader; /* opaque; owned by the caller */

/* Options of a reader. 0 is the default of every field but `size`. */
typedef struct hotbed_reader_options {
    uint32_t size; /* sizeof(hotbed_reader_options) */
    /* A thread of the reader looks for new cuts so often; 0: hotbed_reader_poll() alone does */
    uint32_t follow_ms;
} hotbed_reader_options;

/* Open a published directory with its newest whole cut. Synchronous: reads all rows once. `options`
 * may be NULL.
 * Errors: ARGUMENT, IO (the directory cannot be read), STATE (it has no whole cut yet; the text says
 * what is wrong with the newest), MEMORY, UNSUPPORTED (a newer format; a build without
 * HOTBED_SERVE). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_reader_open(
    const char *directory, const hotbed_reader_options *options, hotbed_reader **out);

/* Free the reader. No lookup may be in progress. NULL is allowed. */
HOTBED_API void hotbed_reader_close(hotbed_reader *reader);

/* Look for new cuts now, and use the newest one that can be used. Synchronous: reads the new rows. Any
 * thread may call it; calls wait for each other, lookups do not wait.
 * Errors: ARGUMENT, and the reason why a newer cut could not be used; the reader keeps the last one
 * that could: CORRUPT (a file of a cut is missing, incomplete or damaged, with its name), STATE (a cut
 * before it is missing; tables, dims or key types differ from those at the open; the directory was replaced by
 * one without newer cuts; the publisher removes cuts faster than they are read), IO, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_reader_poll(hotbed_reader *reader);

/* One lookup: bags of keys of one table. Start from {0}, then set fields. Frozen: it has no size
 * field, since it is an element of an array. */
typedef struct hotbed_lookup {
    uint32_t table;         /* its number: hotbed_reader_find() */
    hotbed_pooling pooling; /* NONE: one output row for each key */
    uint64_t batch_size;    /* SUM, MEAN: bags */
    uint64_t num_keys;
    const void *keys; /* [num_keys] int64 or uint64 */
    /* SUM, MEAN: [batch_size + 1] bag b is keys[offsets[b]] up to keys[offsets[b + 1]], which may be
     * any ascending part of `keys` */
    const int64_t *offsets;
    const float *weights; /* SUM, MEAN: [num_keys]; NULL is 1 */
    float *output;        /* out: [bags or keys, stride], the first dim elements of each row */
    uint64_t stride;      /* elements; 0: dim */
} hotbed_lookup;

/* Answer n lookups from one version. Never waits. A missing key, also one outside of a static table,
 * reads as the table's eval_initializer. The rows of a bag are summed in its order; MEAN divides by its
 * keys. With encodings F32, or the table's dtype, the bytes are those of hotbed_storage_eval().
 *
 *   lookups  in   [n]
 *   version  out  number of the cut; may be NULL
 *
 * Errors: ARGUMENT (NULL, a table number, a stride below dim, a pooling that does not exist), RANGE
 * (offsets that fall or leave the keys, with the bag); outputs may have been written then. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_reader_lookup(
    hotbed_reader *reader, const hotbed_lookup *lookups, uint32_t n, uint64_t *version);

/* Write the rows of the reader's version to storages, whose lookups then answer that cut: on a GPU, with rows
 * in the tiers of each storage's mode. Between two batches a process calls hotbed_reader_poll() and this, and
 * then hotbed_storage_eval() on `stream`.
 *
 * All tables of the storages are brought to one cut, each found by its name; the cut may have others. Only
 * what changed since *version is written, and keys that left are removed; without a version, or with one that
 * is older than the version's base, the tables are cleared, and all rows are written. F32 rows are as
 * hotbed_reader_lookup() has them, and INT8 rows of an INT8 cut as they are there; others are rounded to
 * nearest. Later work on `stream` sees the whole cut. Hash tables should not evict, and have space for all keys
 * of a cut.
 *
 * If rows of the cut have states (hotbed_publish_options.states), a storage whose optimizer has the same states
 * gets them too, and the optimizer's count of steps, for example to train on in another process. A storage whose
 * optimizer has no states gets embeddings alone.
 *
 *   storages  in     [n]
 *   version   inout  number of the cut that these storages have by this reader; 0: none
 *
 * Synchronous: waits for the stream, and copies the rows in pieces of 8 MiB. No other call on the storages may
 * run meanwhile.
 * Errors: ARGUMENT (NULL; a table that the cut does not have, or that has another dim, type of keys or
 * eval_initializer there; a STATIC table with more rows), UNSUPPORTED (its optimizer has other states than the
 * cut, with the names of both; tables of one storage have different counts of steps there): nothing is written.
 * After others *version is 0, and the tables have a part of the cut: STATE (a table did not keep all keys, with
 * their numbers; tickets hold rows, the stream records a graph), ARGUMENT (a value that the type of its table
 * does not have, with key and value), the faults of hotbed_storage_offer_rows(), among them RANGE (a row that a
 * STATIC table does not have), MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_reader_fill(
    hotbed_reader *reader, hotbed_storage *const *storages, uint32_t n, hotbed_stream *stream,
    uint64_t *version);

/* Description of a table. */
typedef struct hotbed_reader_table {
    uint32_t size; /* set by the caller: sizeof(hotbed_reader_table) */
    uint32_t dim;
    char name[64];
    hotbed_encoding encoding; /* in the present version */
    hotbed_key_type key_type;
    float missing; /* each element of the row of a missing key */
    uint32_t reserved;
    uint64_t keys; /* in the present version */
} hotbed_reader_table;

/* Return the number of tables, which does not change; and find a table by name.
 * Errors: ARGUMENT (there is no such table). */
HOTBED_API uint32_t hotbed_reader_num_tables(const hotbed_reader *reader);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_reader_find(const hotbed_reader *reader, const char *name, uint32_t *table);

/* Describe a table. Never waits.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_reader_table_info(hotbed_reader *reader, uint32_t table, hotbed_reader_table *out);

/* The state of a reader. */
typedef struct hotbed_reader_stats {
    uint32_t size;         /* set by the caller: sizeof(hotbed_reader_stats) */
    uint32_t behind;       /* cuts in the directory that are newer than the version */
    uint64_t version;      /* number of the cut that answers lookups, */
    uint64_t base;         /* of its base, */
    uint64_t step;         /* and its training step */
    uint64_t newest;       /* number of the newest cut that was seen */
    double age;            /* seconds since the trainer copied the rows, or since their first */
                           /* use if that is longer: a clock may have been set back */
    double lag;            /* seconds from that copy until the version was used */
    uint64_t versions;     /* versions that were used so far */
    uint64_t bases;        /* of them bases */
    uint64_t refused;      /* polls that could not use a newer cut */
    uint64_t lookups;      /* calls, ... */
    uint64_t keys;         /* ... and their keys, ... */
    uint64_t missing;      /* ... of which the tables did not have so many */
    uint64_t mapped_bytes; /* of files */
    uint64_t memory_bytes; /* of memory: the index of the rows that changed since the base */
} hotbed_reader_stats;

/* Read the state of a reader. Never waits for a poll.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_reader_get_stats(hotbed_reader *reader, hotbed_reader_stats *out);

/* Check that the reader is up to date: OK, or the reason of the last refusal while it lasts, or STATE
 * if the version is older than `most_seconds` (0: any age), with both numbers. Never waits for a poll.
 * Errors: ARGUMENT (`most_seconds` is negative or NaN), STATE, and as hotbed_reader_poll(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_reader_health(hotbed_reader *reader, double most_seconds);

/* Write the state in Prometheus's text format. Numbers may have more digits in the next call: after asking for
 * the size, add a page.
 *   text      out  [capacity], always terminated by 0; NULL: return the size only
 *   capacity  in   bytes of `text`
 *   bytes     out  length of the whole text, without the 0
 * Errors: ARGUMENT (`text` is too small, with the bytes needed in *bytes). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_reader_metrics(hotbed_reader *reader, char *text, uint64_t capacity, uint64_t *bytes);

HOTBED_END_DECLS
#endif
