/* hotbed/external.h - rows in a store outside of Hotbed: a database, a server, or your own plug-in.
 *
 * Stable: hotbed_external_create(), hotbed_external_create_rocksdb(), hotbed_external_destroy(),
 * hotbed_external_flush(). Experimental: all other calls.
 *
 * For programs whose tables are larger than the memory of the machine, or whose rows must survive
 * the process. Most programs create a store and pass it to a storage, which then acts as a cache
 * over it (hotbed_storage_options.external). Authors of plug-ins need the second section; see also
 * docs/guide/external-stores.md.
 *
 * An *external store* keeps the rows of one or more tables by key and processes them in batches. A
 * *plug-in* is a table of functions, hotbed_external_calls, with a pointer of its own. A
 * hotbed_external is a plug-in in use. Two plug-ins come with Hotbed: one in memory, for tests, and
 * one for RocksDB. All arrays in this header are host memory.
 *
 *       hotbed_external_table tables[2]; // as many as options.num_tables
 *       hotbed_storage_external_tables(&options, tables);
 *       hotbed_external_options store = {.size = sizeof store, .num_tables = 2, .tables = tables};
 *       hotbed_external_create_rocksdb("/data/rows", NULL, &store, &external);
 *       options.external = external; // hotbed_storage_options
 *       hotbed_storage_create(&options, stream, &storage);
 *       // train, then make the rows durable:
 *       hotbed_storage_flush(storage, stream);
 *       hotbed_stream_sync(stream);
 *       hotbed_external_flush(external);
 *       hotbed_storage_destroy(storage);
 *       hotbed_external_destroy(external);
 *
 * Hotbed checks a store, so that a faulty one causes an error and never a wrong row:
 *   - Every row is stored with a checksum over the name of its table, its key, score and bytes. A
 *     row that comes back changed, half-written or under another key is CORRUPT, with table and
 *     key.
 *   - The results of a plug-in are checked: statuses, found flags, counts.
 *   - A batch is written completely or not at all. After a failed insert, Hotbed reads back how
 *     much of the batch is in the store. Until this succeeds, every call first tries it again, and
 *     fails if it cannot be read. If only a part of the batch was written, the store is *broken*:
 *     every later call returns CORRUPT with the reason, until the store is destroyed.
 *   - A failed read also sets `found` (HOTBED_EXTERNAL_UNKNOWN), so that no kernel takes a row that
 *     could not be read for a missing row.
 *
 * Threads: any thread may call a hotbed_external. The calls of one hotbed_external are made one at
 * a time, so a plug-in needs no locks against Hotbed. A slow store makes its callers wait: the
 * thread of a direct call, or the stream of a call in stream order. A call is never abandoned; see
 * deadline_seconds. */
#ifndef HOTBED_EXTERNAL_H
#define HOTBED_EXTERNAL_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

typedef struct hotbed_external hotbed_external; /* opaque; owned by the caller */

/* --- tables and options ----------------------------------------------------------------------- */

/* One table of a store. Frozen: the struct has no `size`, since stores take arrays of it. */
typedef struct hotbed_external_table {
    const char *name;   /* unique, [A-Za-z0-9_.-]{1,63}; copied; required */
    uint64_t row_bytes; /* of a row, embedding and states; 1 .. 2^20; required */
} hotbed_external_table;

/* Options of a store. 0 is the default of every field but `size`. Fields are only ever appended. */
typedef struct hotbed_external_options {
    uint32_t size;                       /* sizeof(hotbed_external_options) */
    uint32_t num_tables;                 /* 1 .. 65535; required */
    const hotbed_external_table *tables; /* [num_tables]; copied; required */
    /* Time limit of each call of the plug-in; 0: none. The plug-in receives the limit and should
     * fail with IO when it has passed. If a call succeeds after the limit, it counts as late, and
     * its result is used. */
    double deadline_seconds;
    /* Read each insert back, even if it succeeded. The insert fails with CORRUPT if the store has
     * lost rows without an error. */
    bool verify_writes;
} hotbed_external_options;

/* --- what a plug-in implements ---------------------------------------------------------------- */

/* Metadata that the store keeps with each row, unchanged; the plug-in chooses its bytes in a file.
 * Frozen: the struct has no `size`, since stores keep arrays of it. */
typedef struct hotbed_external_metadata {
    uint64_t score; /* the caller's, as in hotbed_rows.scores */
    uint64_t stamp; /* identifies the batch that wrote the row */
    /* Hotbed's checksum over the name of the table, the key, the row and the fields above */
    uint64_t checksum;
} hotbed_external_metadata;

enum { HOTBED_EXTERNAL_REASON_BYTES = 256, HOTBED_EXTERNAL_LAYOUT_BYTES = 128 };

/* Passed to each call of a plug-in. The library creates it: a plug-in compiled against newer
 * headers must check `size` before it uses a field that was appended. */
typedef struct hotbed_external_call {
    uint32_t size;        /* size of the library's struct */
    uint64_t deadline_ns; /* of CLOCK_MONOTONIC; UINT64_MAX: none */
    /* out: why the call failed, one line of text; "" is allowed */
    char reason[HOTBED_EXTERNAL_REASON_BYTES];
} hotbed_external_call;

/* A plug-in. The functions return HOTBED_OK or a class of error: IO (the store cannot be reached,
 * read or written, or the deadline has passed), CORRUPT, MEMORY, FULL, UNSUPPORTED. They may block.
 * They run on a thread of the caller or of the library, and are called one at a time. They must not
 * call Hotbed, and may call CUDA only with on_callers_thread. n is at least 1. Tables are numbered
 * as in the options that open() receives. */
typedef struct hotbed_external_calls {
    uint32_t size;    /* sizeof(hotbed_external_calls) */
    const char *name; /* for messages: "rocksdb"; its first 63 bytes are copied */

    /* Prepare the tables. A table that the store already has must have the same row_bytes, else the
     * result is ARGUMENT. Called once, before all other functions. */
    hotbed_status (*open)(
        void *self, uint32_t num_tables, const hotbed_external_table *tables,
        hotbed_external_call *call);

    /* Look up n keys; keys may repeat. Set found[i] to 1 or 0. Write the rows and metadata of found
     * keys, and leave the others unchanged. rows may be NULL: then write only found and
     * metadata. */
    hotbed_status (*find)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found,
        void *rows /* [n, row_bytes] */, hotbed_external_metadata *metadata,
        hotbed_external_call *call);

    /* Insert or overwrite n distinct keys: all of them, or none with an error. */
    hotbed_status (*insert)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys,
        const void *rows /* [n, row_bytes] */, const hotbed_external_metadata *metadata,
        hotbed_external_call *call);

    /* Remove n distinct keys; skip absent keys. Either remove all of them, or return an error and
     * remove none. Set erased[i] to 1 if key i was removed, else to 0; erased may be NULL. */
    hotbed_status (*erase)(
        void *self, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased,
        hotbed_external_call *call);

    /* Iterate over a table. A key that is in the table all the time is returned once; a key that is
     * inserted or erased meanwhile may be returned or not. cursor_next() returns up to `capacity`
     * rows; *n = 0 is the end. After an error, cursor_next() or cursor_close() may be called. */
    hotbed_status (*cursor_open)(
        void *self, uint32_t table, void **cursor, hotbed_external_call *call);
    hotbed_status (*cursor_next)(
        void *self, void *cursor, uint64_t capacity, uint64_t *keys, void *rows,
        hotbed_external_metadata *metadata, uint64_t *n, hotbed_external_call *call);
    void (*cursor_close)(void *self, void *cursor);

    /* Count the keys of a table, exactly. */
    hotbed_status (*count)(void *self, uint32_t table, uint64_t *keys, hotbed_external_call *call);

    /* Make everything written so far durable, against the end of the process and of the machine.
     * May be NULL if writes are always durable, or if the store is not meant to be durable. */
    hotbed_status (*flush)(void *self, hotbed_external_call *call);

    /* Free everything, `self` included. Called once, after all other functions. */
    void (*close)(void *self);

    /* Make calls in stream order on the thread that enqueues them, which first waits for the
     * stream. For plug-ins that call CUDA, which CUDA forbids to functions that a stream runs.
     * Such calls cannot be recorded in a graph (STATE). */
    bool on_callers_thread;

    /* Compare `layout`, which says how the rows of a table are laid out, with the text of the first call; keep it
     * if there was none. It has less than HOTBED_EXTERNAL_LAYOUT_BYTES, for example "f32[8], adagrad f32". Errors:
     * ARGUMENT (another text; the reason has both). Called when a storage is created. May be NULL: then rows of
     * another optimizer or type, if they have as many bytes, are taken for the storage's own. */
    hotbed_status (*layout)(
        void *self, uint32_t table, const char *layout, hotbed_external_call *call);
} hotbed_external_calls;

/* --- stores ------------------------------------------------------------------------------------- */

/* Create a store from a plug-in. `calls` are copied, and open() is called. Synchronous. On success
 * the store owns `self` and closes it; on an error the caller still owns it, and *out is NULL.
 * Errors: ARGUMENT (the field and its value; a function is missing), MEMORY, the errors of
 * open(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_create(
    const hotbed_external_options *options, const hotbed_external_calls *calls, void *self,
    hotbed_external **out);

/* Create a store in this process's memory, which is lost with the store. For tests, and as the
 * first plug-in to read (storage/external/external_memory.c). Synchronous.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_create_memory(const hotbed_external_options *options, hotbed_external **out);

/* Options of a RocksDB database. 0 is the default of every field but `size`. */
typedef struct hotbed_rocksdb_options {
    uint32_t size;        /* sizeof(hotbed_rocksdb_options) */
    bool sync;            /* each write is on disk when the call returns; otherwise after a flush */
    bool must_exist;      /* do not create a database that does not exist */
    uint64_t cache_bytes; /* cache of blocks read; 0: 64 MiB */
    /* written rows kept in memory before they go to a file; 0: 64 MiB */
    uint64_t buffer_bytes;
} hotbed_rocksdb_options;

/* Open the RocksDB database in directory `path`, and create it if it does not exist. Synchronous.
 * Tables are found by name. New tables are added; other tables of the database are left unchanged.
 * A batch is written completely or not at all, even if the process dies. Blocks that are read are
 * verified by their checksums.
 *   rocksdb  in  may be NULL: all defaults
 * Errors: ARGUMENT (a table's row_bytes differs from the database's; both values), IO (path,
 * RocksDB's message; in use by another process), CORRUPT, MEMORY, UNSUPPORTED (HOTBED_ROCKSDB is
 * OFF; a newer format). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_create_rocksdb(
    const char *path, const hotbed_rocksdb_options *rocksdb, const hotbed_external_options *options,
    hotbed_external **out);

/* Close the store. All work that uses it must be done, and its cursors must have been
 * destroyed. Does not flush. NULL is allowed. */
HOTBED_API void hotbed_external_destroy(hotbed_external *external);

/* --- direct calls ---------------------------------------------------------------------------------
 * Synchronous, with host arrays of n = 0 to 2^30 keys. Errors of all of these calls: ARGUMENT
 * (NULL; a table number), MEMORY, CORRUPT (the returned data is damaged, or the store is broken),
 * STATE (this process was forked from the one that created the store), and the store's own: IO,
 * FULL, ... */

enum {
    HOTBED_EXTERNAL_MISSING = 0,
    HOTBED_EXTERNAL_FOUND = 1,
    HOTBED_EXTERNAL_UNKNOWN = 2, /* the call failed */
};

/* Look up n keys, duplicates allowed.
 *
 *   found   out  [n] FOUND or MISSING; all UNKNOWN if the call failed
 *   rows    out  [n, row_bytes] rows of missing keys are left unchanged; undefined if the call
 *                failed; NULL: rows are not read, and checksums are not verified
 *   scores  out  [n] likewise; may be NULL
 *
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_find(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found,
    void *rows, uint64_t *scores);

/* Insert or overwrite n distinct keys. After an error other than CORRUPT, the batch was
 * written as a whole or not at all: repeat the call.
 *
 *   rows    in  [n, row_bytes]
 *   scores  in  [n]; NULL: 0
 *
 * Errors: the store's; CORRUPT if only a part of the batch was written. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_insert(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, const void *rows,
    const uint64_t *scores);

/* Remove n distinct keys; absent keys are skipped. After an error, repeat the call. The store's
 * promise that no key was removed is not checked.
 *   erased  out  [n] 1 or 0; UNKNOWN if the call failed; may be NULL
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_erase(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased);

/* Make everything written so far durable.
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_flush(hotbed_external *external);

/* Count the keys of a table. A store on disk may have to read all of it.
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_size(hotbed_external *external, uint32_t table, uint64_t *keys);

typedef struct hotbed_external_cursor hotbed_external_cursor; /* opaque; owned by the caller */

/* Create a cursor that reads a whole table, in no particular order. A key that is in the table all
 * the time is read once; a key that is inserted or erased meanwhile may be read or not.
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_cursor_create(
    hotbed_external *external, uint32_t table, hotbed_external_cursor **out);

/* Read the next rows of a cursor.
 *
 *   capacity  in   at least 1
 *   keys      out  [capacity]
 *   rows      out  [capacity, row_bytes]
 *   scores    out  [capacity]; may be NULL
 *   n         out  number of rows read; 0 at the end
 *
 * After an error the arrays are undefined and *n is 0. The next call then returns the rows that
 * this one failed to return. A cursor does not pass a damaged row: every further call is CORRUPT.
 * Errors: see above. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_external_cursor_next(
    hotbed_external_cursor *cursor, uint64_t capacity, uint64_t *keys, void *rows, uint64_t *scores,
    uint64_t *n);
/* Free a cursor. NULL is allowed. */
HOTBED_API void hotbed_external_cursor_destroy(hotbed_external_cursor *cursor);

/* --- description ---------------------------------------------------------------------------------- */

/* Counts since the store was opened. */
typedef struct hotbed_external_stats {
    uint32_t size;         /* set by the caller: sizeof(hotbed_external_stats) */
    uint64_t finds;        /* keys looked up */
    uint64_t hits;         /* keys looked up and found */
    uint64_t inserts;      /* rows inserted or overwritten */
    uint64_t erases;       /* keys in erase calls */
    uint64_t calls;        /* calls of the plug-in, of all kinds, checks included */
    uint64_t failures;     /* calls of this header that failed */
    uint64_t late;         /* calls of the plug-in that succeeded after their deadline */
    uint64_t stream_waits; /* times a stream waited for the store */
    double seconds;        /* time spent in the plug-in */
    /* time that streams waited for the store, including the wait for their turn */
    double stream_seconds;
} hotbed_external_stats;

/* Read the statistics. Never waits for the store.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_external_stats_read(hotbed_external *external, hotbed_external_stats *out);

/* Return the status of the last call that failed, on whatever thread, and get its text; HOTBED_OK
 * and "" if none failed. Never waits for the store. Also returns ARGUMENT if `external` is NULL,
 * or `text` is NULL with bytes above 0.
 *   text  out  up to `bytes`, the terminating 0 included; may be NULL if bytes is 0 */
HOTBED_API hotbed_status
hotbed_external_failure(hotbed_external *external, char *text, size_t bytes);

HOTBED_END_DECLS
#endif
