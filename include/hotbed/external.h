/* hotbed/external.h - rows in a store outside of Hotbed: a database on disk, a server, a plug-in of yours.
 *
 * An external store keeps the rows of one or more tables by key, in batches, in host memory terms: all
 * arrays here are host memory.  A *plug-in* is a table of functions, hotbed_external_calls, with a pointer
 * of its own; a hotbed_external is a plug-in in use.  Two come with Hotbed: one in memory, for tests, and
 * one on RocksDB.  docs/external.md shows how to write another.
 *
 * What Hotbed does so that a bad store is an error and never a wrong row:
 *   - every row goes with a seal over its table's name, key, score and bytes; a row that comes back
 *     changed, half-written or under another key is CORRUPT, with table and key;
 *   - what a plug-in returns is checked: statuses, found flags, counts;
 *   - a batch is written whole or not at all.  After an insert that failed, Hotbed reads back how much of
 *     it is there.  While that cannot be read, every call fails, and tries again first.  If it is a part,
 *     the store is *broken*: every later call returns CORRUPT with the reason, until it is destroyed;
 *   - a read that failed says so in `found` too (HOTBED_EXTERNAL_UNKNOWN), so that no kernel takes a row
 *     that could not be read for one that is not there.
 *
 * Threads: calls of one hotbed_external may come from any thread; they are made one at a time, so a
 * plug-in needs no locks against Hotbed.  A slow store makes its callers wait: who calls it directly, or
 * the stream that called it.  A call is never abandoned; see deadline_seconds.
 *
 * A storage can be a cache over a store: hotbed_storage_options.external.
 */
#ifndef HOTBED_EXTERNAL_H
#define HOTBED_EXTERNAL_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_external hotbed_external; /* opaque; owned by the caller */

/* --- tables and options ----------------------------------------------------------------------- */

/* One table of a store.  Plain struct without a size: it is only ever a member. */
typedef struct hotbed_external_table {
    const char *name;   /* unique, [A-Za-z0-9_.-]{1,63}; copied; required */
    uint64_t row_bytes; /* of a row, embedding and states; 1 .. 2^20; required */
} hotbed_external_table;

/* A store in use.  Call hotbed_external_options_init(), then set fields; 0 is every other field's
 * default.  Fields are only ever appended. */
typedef struct hotbed_external_options {
    uint32_t size;                       /* set by init */
    uint32_t num_tables;                 /* 1 .. 65535; required */
    const hotbed_external_table *tables; /* [num_tables]; copied; required */
    double
        deadline_seconds; /* told to the plug-in with each call, which should then give up with IO;
                              * a call that succeeds later counts as late, and its result stands.
                              * 0: none */
    bool verify_writes;   /* read back whether each insert is there, also when it succeeded: CORRUPT
                              * when a store loses rows and says nothing */
} hotbed_external_options;

static inline void hotbed_external_options_init(hotbed_external_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* --- what a plug-in implements ---------------------------------------------------------------- */

/* Kept by the store with each row, as it is; its bytes in a file are the plug-in's matter. */
typedef struct hotbed_external_note {
    uint64_t score; /* the caller's, as of hotbed_rows.scores */
    uint64_t stamp; /* the batch that wrote the row */
    uint64_t seal;  /* over all of it, Hotbed's */
} hotbed_external_note;

enum { HOTBED_EXTERNAL_REASON_BYTES = 256 };

/* Goes with each call of a plug-in.  Fields are only ever appended. */
typedef struct hotbed_external_call {
    uint64_t deadline_ns; /* of CLOCK_MONOTONIC; UINT64_MAX: none */
    char reason
        [HOTBED_EXTERNAL_REASON_BYTES]; /* out: why it failed, a line of text; "" is allowed */
} hotbed_external_call;

/* A plug-in.  Functions return HOTBED_OK or an error's class: IO (the store cannot be reached, read or
 * written, or the deadline is past), CORRUPT, MEMORY, FULL, UNSUPPORTED.  They may block.  They run on
 * a thread of the caller's or of the library, must not call Hotbed, and are never called two at a time.
 * n is at least 1; tables are numbers of the options that open() was given. */
typedef struct hotbed_external_calls {
    uint32_t size;    /* sizeof(hotbed_external_calls) */
    const char *name; /* for messages: "rocksdb" */

    /* Make the tables ready; those that the store has must have the same row_bytes: ARGUMENT otherwise.
     * Called once, first. */
    hotbed_status (*open)(
        void *self, uint32_t num_tables, const hotbed_external_table *tables,
        hotbed_external_call *call);

    /* found[i]: 1 or 0.  Rows and notes of keys that are there; others are left as they are.  Keys may
     * repeat.  rows may be NULL: only found and notes are asked for. */
    hotbed_status (*find)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found,
        void *rows /* [n, row_bytes] */, hotbed_external_note *notes, hotbed_external_call *call);

    /* Insert or overwrite n distinct keys: all of them, or none and an error. */
    hotbed_status (*insert)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys,
        const void *rows /* [n, row_bytes] */, const hotbed_external_note *notes,
        hotbed_external_call *call);

    /* Remove those of n distinct keys that are there: all of them, or none and an error.
     * erased[i]: 1 or 0; may be NULL. */
    hotbed_status (*erase)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased,
        hotbed_external_call *call);

    /* A walk over a table.  A key that is there all the while is seen once; one that comes or goes
     * meanwhile may be seen or not.  next() gives up to `capacity` rows; *n = 0 is the end.  After an
     * error next() may be called again or close() be called. */
    hotbed_status (*cursor_open)(
        void *self, uint32_t table, void **cursor, hotbed_external_call *call);
    hotbed_status (*cursor_next)(
        void *self, void *cursor, uint64_t capacity, uint64_t *keys, void *rows,
        hotbed_external_note *notes, uint64_t *n, hotbed_external_call *call);
    void (*cursor_close)(void *self, void *cursor);

    /* Number of keys of a table, exactly. */
    hotbed_status (*count)(void *self, uint32_t table, uint64_t *keys, hotbed_external_call *call);

    /* All that was written so far survives the end of the process and of the machine.  May be NULL: it
     * always does, or the store is not meant to. */
    hotbed_status (*flush)(void *self, hotbed_external_call *call);

    /* Give everything back, `self` included.  Called once, last. */
    void (*close)(void *self);
} hotbed_external_calls;

/* --- stores ------------------------------------------------------------------------------------- */

/* Use a plug-in: `calls` are copied, open() is called.  Synchronous.  On success the store owns `self` and
 * closes it; on an error the caller still does, and *out is NULL.
 * Errors: ARGUMENT (the field and its value; a function is missing), MEMORY, what open() returns. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_create(
    const hotbed_external_options *options, const hotbed_external_calls *calls, void *self,
    hotbed_external **out);

/* Rows in this process's memory, gone with the store: for tests, and as the plug-in to read first
 * (storage/external_memory.c).  Synchronous.  Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_create_memory(const hotbed_external_options *options, hotbed_external **out);

/* A RocksDB database.  Call hotbed_rocksdb_options_init(), then set fields. */
typedef struct hotbed_rocksdb_options {
    uint32_t size;   /* set by init */
    bool sync;       /* each write is on the disk when the call returns; otherwise after flush */
    bool must_exist; /* do not make a database that is not there */
    uint64_t cache_bytes;  /* of blocks read; 0: 64 MiB */
    uint64_t buffer_bytes; /* written rows kept in memory before they go to a file; 0: 64 MiB */
} hotbed_rocksdb_options;

static inline void hotbed_rocksdb_options_init(hotbed_rocksdb_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Open the database in directory `path`, and make it if it is not there.  Tables are found by name; new
 * ones are added, others that it has are left alone.  A batch is in the database whole or not at all,
 * whatever happens to the process.  Blocks read are checked against their checksums.  Synchronous.
 *   rocksdb  in  may be NULL: all defaults
 * Errors: ARGUMENT (a table's row_bytes is not the database's; both values), IO (path, RocksDB's words; in
 * use by another process), CORRUPT, MEMORY, UNSUPPORTED (HOTBED_ROCKSDB is OFF; a newer format). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_create_rocksdb(
    const char *path, const hotbed_rocksdb_options *rocksdb, const hotbed_external_options *options,
    hotbed_external **out);

/* Close the store.  Work that uses it is done, its requests and cursors are destroyed before.  Does not
 * flush.  NULL is allowed. */
HOTBED_API void hotbed_external_destroy(hotbed_external *external);

/* --- direct calls ---------------------------------------------------------------------------------
 * Synchronous, with host arrays of n = 0 to 2^30 keys.  Errors of all of them: ARGUMENT (NULL; a table
 * number), MEMORY, CORRUPT (what came back is damaged, or the store is broken), and what the store
 * returns: IO, FULL, ... */

enum {
    HOTBED_EXTERNAL_MISSING = 0,
    HOTBED_EXTERNAL_FOUND = 1,
    HOTBED_EXTERNAL_UNKNOWN = 2, /* the call failed */
};

/* Look up n keys, duplicates allowed.
 *
 *   found   out  [n] FOUND or MISSING; all UNKNOWN when the call failed
 *   rows    out  [n, row_bytes] rows of missing keys are left as they are; undefined when the call
 *                failed; NULL: not wanted, and seals are not checked
 *   scores  out  [n] likewise; may be NULL
 *
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_find(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found,
    void *rows, uint64_t *scores);

/* Insert or overwrite n distinct keys.  After an error all rows of the batch are as before, or all are new
 * when the store failed to say that it was done: repeat the call.
 *
 *   rows    in  [n, row_bytes]
 *   scores  in  [n]; NULL: 0
 *
 * Errors: see above; a batch that was written in part is CORRUPT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_insert(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, const void *rows,
    const uint64_t *scores);

/* Remove n distinct keys; absent ones are left.  After an error: repeat the call; whether the store kept
 * its word that none is gone is not checked.
 *   erased  out  [n] 1 or 0; UNKNOWN when the call failed; may be NULL
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_erase(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased);

/* Make all that was written so far durable.  Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_flush(hotbed_external *external);

/* Number of keys in a table, counted: a store on disk may read all of it.  Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_size(hotbed_external *external, uint32_t table, uint64_t *keys);

typedef struct hotbed_external_cursor hotbed_external_cursor; /* opaque; owned by the caller */

/* Start to read all of a table.  A key that is there all the while is read once, in no particular order;
 * one that is inserted or erased meanwhile may be read or not.  Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_cursor_create(
    hotbed_external *external, uint32_t table, hotbed_external_cursor **out);

/* The next rows.
 *
 *   capacity  in   at least 1
 *   keys      out  [capacity]
 *   rows      out  [capacity, row_bytes]
 *   scores    out  [capacity]; may be NULL
 *   n         out  rows given; 0: that was all
 *
 * Errors: see above.  The arrays are then undefined and *n is 0; the cursor can be asked again, and gives
 * the rows that it failed to give.  Past a damaged row it does not go: CORRUPT, again. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_cursor_next(
    hotbed_external_cursor *cursor, uint64_t capacity, uint64_t *keys, void *rows, uint64_t *scores,
    uint64_t *n);
HOTBED_API void hotbed_external_cursor_destroy(
    hotbed_external_cursor *cursor); /* NULL is allowed */

/* --- calls in stream order ------------------------------------------------------------------------
 * A request has arrays in pinned memory for one table's batches, which kernels fill before the call and
 * read after it.  The call is made by a thread of the library when the stream gets there; the stream
 * waits for the store, the caller does not.  hotbed_external_stats counts these waits.  Requests can be
 * recorded in a graph.  A call that fails is a fault of the stream: the next hotbed_stream_sync() returns its
 * status, and hotbed_external_failure() has the store's words. */

typedef struct hotbed_external_request hotbed_external_request; /* opaque; owned by the caller */

/* Pinned arrays; valid while the request is. */
typedef struct hotbed_external_request_view {
    uint32_t table;
    uint64_t capacity;
    uint64_t row_bytes;
    uint64_t *n;      /* how many of the keys are meant; more than capacity is a fault RANGE */
    uint64_t *keys;   /* [capacity] */
    void *rows;       /* [capacity, row_bytes] */
    uint64_t *scores; /* [capacity] */
    uint8_t *found;   /* [capacity] of find, and of erase: as in the direct calls */
    uint32_t *status; /* hotbed_status of the last call that the stream passed */
} hotbed_external_request_view;

/* Make a request for up to `capacity` rows (1 .. 2^30) of a table, on `stream`.  Synchronous.  *n is 0.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), CORRUPT (the store is broken), and, when
 * an insert that failed has to be read back first, what the store returns. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_request_create(
    hotbed_external *external, uint32_t table, uint64_t capacity, hotbed_stream *stream,
    hotbed_external_request **out);
HOTBED_API void hotbed_external_request_destroy(
    hotbed_external_request *request); /* work is done; NULL is allowed */

/* Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_request_read(
    const hotbed_external_request *request, hotbed_external_request_view *out);

/* Find, insert or erase the request's first *n keys, on the stream that it was made on.  Async, allocates
 * nothing.  Errors: ARGUMENT (NULL; another stream), DEVICE.  Faults: as the direct calls' errors. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_find_async(hotbed_external_request *request, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_insert_async(hotbed_external_request *request, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_erase_async(hotbed_external_request *request, hotbed_stream *stream);

/* --- description ---------------------------------------------------------------------------------- */

HOTBED_API uint32_t
hotbed_external_num_tables(const hotbed_external *external); /* of the options */

/* A table as in the options; name is valid while the store is.  Errors: ARGUMENT (table number). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_table_read(
    const hotbed_external *external, uint32_t table, hotbed_external_table *out);

/* What has happened since the store was opened. */
typedef struct hotbed_external_stats {
    uint64_t finds;        /* keys looked up */
    uint64_t hits;         /* of them, found */
    uint64_t inserts;      /* rows inserted or overwritten */
    uint64_t erases;       /* keys asked to be erased */
    uint64_t calls;        /* calls of the plug-in, all kinds, those to check included */
    uint64_t failures;     /* calls of this header that failed */
    uint64_t late;         /* calls of the plug-in that succeeded after their deadline */
    uint64_t stream_waits; /* times a stream waited for the store */
    double seconds;        /* spent in the plug-in */
    double stream_seconds; /* that streams waited, for their turn too */
} hotbed_external_stats;

/* Never waits for the store.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_stats_read(hotbed_external *external, hotbed_external_stats *out);

/* Status and text of the last call that failed, on whatever thread: HOTBED_OK and "" when none did.  Never
 * waits for the store.  ARGUMENT, too, for a NULL.
 *   text  out  up to `bytes` with the ending 0; may be NULL when bytes is 0 */
HOTBED_API hotbed_status
hotbed_external_failure(hotbed_external *external, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
