/* hotbed/publish.h - publish what changed in a model's storages, so that other processes can serve it.
 *
 * Experimental: all calls.
 *
 * A *publisher* writes *cuts* of the storages to a directory. A cut is the state of all tables, on
 * all ranks, between two training steps. The first cut, and every n-th after it, is a *base*, which
 * has every row; the others have the rows that changed since the cut before and the keys that were
 * removed. hotbed/read.h reads the directory while it is written; docs/formats.md describes the bytes.
 *
 *       hotbed_publish_options options = {.size = sizeof options, .encoding = HOTBED_ENCODING_F16};
 *       hotbed_publisher *publisher;
 *       status = hotbed_publisher_create("published", &storage, 1, &options, stream, &publisher);
 *       for (uint64_t step = 1; step <= steps; step++) {
 *           train_step(stream); // yours
 *           if (step % 1000 == 0)
 *               status = hotbed_publisher_publish(publisher, step, stream);
 *       }
 *       status = hotbed_publisher_wait(publisher); // the last cut is on disk
 *       hotbed_publisher_destroy(publisher);
 *
 * A publish copies keys and rows to host memory and returns; a thread of the publisher encodes
 * what changed and writes it. The publisher keeps one copy. If the disk is slower than
 * the trainer, the next publish therefore waits until the cut before is on disk, and the trainer
 * waits with it. A trainer that would rather publish less often asks hotbed_publisher_busy() first.
 *
 * Of tables with hotbed_table_options.track_changes, a publish copies the rows that were written since
 * the cut before, and the cost of an increment follows their number. If the storage has lost keys
 * meanwhile (hotbed/changes.h), the cut is a base. Over an external store a publish also counts the table's
 * keys, which a store on disk may have to read. Host memory: the copy of what changed, and of all
 * keys and embeddings while a base is written.
 *
 * Of other tables, changes are found by a digest of each encoded row: a row is published again only if
 * its encoded bytes differ. This covers every way to change a row, also past the library, and reads all
 * rows. Host memory: the copy of all keys and embeddings, and 24 bytes for each row.
 *
 * A cut is complete when the file that names it exists; that file is written last. After a kill, an
 * error or a power cut, the directory has the cuts that were complete. A publisher that starts in a
 * directory with cuts begins with a base.
 *
 * Several ranks publish one cut together if options.comm is set. Each rank writes the rows that it
 * stores; rank 0 names the cut. All ranks make the same calls, at the same step, and see the
 * directory in their file system. */
#ifndef HOTBED_PUBLISH_H
#define HOTBED_PUBLISH_H

#include "hotbed/changes.h"
#include "hotbed/comm.h"
#include "hotbed/route.h"
#include "hotbed/storage.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_publisher hotbed_publisher; /* opaque; owned by the caller */

/* How a row is written. The numbers are part of the file format. */
typedef enum hotbed_encoding {
    HOTBED_ENCODING_TABLE = 0, /* as the table's dtype; FP8 as BF16 */
    HOTBED_ENCODING_F32 = 1,
    HOTBED_ENCODING_F16 = 2,
    HOTBED_ENCODING_BF16 = 3,
    /* Unsigned bytes q, with a scale and an offset in F16 for each row: element e is
     * offset + scale * q[e]. The error is at most 0.51 of the scale. The scale is a 255th of the row's range,
     * and more if the range is below a hundredth of the least element, since the offset is in F16; it is 6e-8
     * or more. */
    HOTBED_ENCODING_INT8 = 4,
} hotbed_encoding;

/* Return "f32", "f16", "bf16" or "int8"; "table" for HOTBED_ENCODING_TABLE, NULL for other numbers. */
HOTBED_API const char *hotbed_encoding_name(hotbed_encoding encoding);

/* Called for each file of a cut when the file has its name and is on disk, on the publisher's
 * thread; the file that names the cut comes last. With several ranks each rank gets the files that it
 * wrote. A status other than OK fails the cut. After a cut that failed, for whatever reason, the next one is a
 * base, which has everything.
 *   name   in  name of the file in the directory
 *   data   in  [bytes] its content, valid during the call */
typedef hotbed_status (*hotbed_publish_file)(
    void *context, const char *name, const void *data, uint64_t bytes);

/* Options of a publisher. 0 is the default of every field but `size`. */
typedef struct hotbed_publish_options {
    uint32_t size;            /* sizeof(hotbed_publish_options) */
    hotbed_encoding encoding; /* of all tables; 0 is TABLE */
    /* [tables of all storages] of each table; NULL: `encoding` */
    const hotbed_encoding *encodings;
    uint32_t base_every; /* each n-th cut is a base; 1: every cut; 0: 16 */
    /* Bases that stay in the directory, with the cuts after them; older files are removed when a new
     * base is complete. A reader that has opened them goes on. 0: 2 */
    uint32_t keep_bases;
    /* The ranks that publish together; used by the publisher's thread alone while the publisher
     * exists, so a collection that trains needs another one. Its transport serves host streams. NULL:
     * this rank alone. */
    hotbed_comm *comm;
    /* [tables of all storages, in order] with several ranks: as hotbed_checkpoint_share.routes. Copied. */
    const hotbed_route *routes;
    hotbed_publish_file file; /* NULL: none */
    void *context;            /* first argument of `file` */
    /* [tables of all storages, in order]: which changed rows of a table an increment has; NULL: all. Copied.
     * Removed keys are always in it, and a base has all rows. A row that an increment leaves out is compared
     * again for the next one. The limits are of each rank, and the receiver's rows are those that readers
     * have, as they decode them. A table with a filter is read as a whole for each cut, also with
     * track_changes. Host memory: 24 bytes for each row, with min_occurrences 8 more, and with min_change also
     * the rows as they were published. */
    const hotbed_change_filter *filters;
    /* Rows have the states of the optimizer, too, in F32, and a cut has the count of steps: a trainer that
     * hotbed_reader_fill() writes to goes on as this one would. Lookups read embeddings alone. The size of a
     * row grows by 4 bytes for each number of a state, in files, host memory and Redis */
    bool states;
} hotbed_publish_options;

/* Create a publisher, and the directory if it does not exist; after an error, that directory is removed. Unfinished
 * files of an earlier publisher are removed. Synchronous. While the publisher exists, no other one can be created in
 * the directory, on this machine or, where the file system carries locks between machines, on another.
 *
 *   directory     in  its parent exists. Its cuts, if it has any, are of the same model: tables of the same names,
 *                     dims and key types, in the same order. It is no checkpoint, and in none, and contains none
 *   storages      in  [num_storages], which outlive the publisher; names of tables are distinct
 *
 * Errors: ARGUMENT (an encoding that does not exist; a filter that hotbed_change_filter_check() refuses; routes
 * without ranks or of another world; a communicator of GPUs; a directory of checkpoints), STATE (another
 * publisher has the directory; its cuts are of another model, with both values; ranks have other tables or
 * options), IO, MEMORY, COMM, UNSUPPORTED (a build without HOTBED_SERVE). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_publisher_create(
    const char *directory, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_publish_options *options, hotbed_stream *stream, hotbed_publisher **out);

/* Wait for the cut that is being written, and free the publisher. With several ranks all call it.
 * NULL is allowed. */
HOTBED_API void hotbed_publisher_destroy(hotbed_publisher *publisher);

/* Publish the storages as the stream's work so far has left them. Waits until the cut before is on
 * disk, then for the copy of the rows; the cut is written later. The caller orders it like a save.
 *
 *   step  in  recorded in the cut: the caller's count of training steps; the same on all ranks
 *
 * If the cut before could not be written, the call returns its error once, and copies nothing: the
 * next call publishes, and its cut has the changes of both.
 *
 * Errors: ARGUMENT, STATE (rows entered or left a table during the call; ranks are at different
 * steps; the stream records a graph), MEMORY, DEVICE, UNSUPPORTED (2^32 rows or more in a table of a
 * rank); of the cut before: IO (no space, with path and reason), ARGUMENT (a value that the encoding
 * does not have, with table and key), COMM, MEMORY, and the callback's. With several ranks all
 * return the error of one. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_publisher_publish(hotbed_publisher *publisher, uint64_t step, hotbed_stream *stream);

/* Wait until the last cut is on disk. Returns its error once, as hotbed_publisher_publish() does.
 * Synchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_publisher_wait(hotbed_publisher *publisher);

/* Return whether a cut is being written, so that hotbed_publisher_publish() would wait. Never waits.
 * With several ranks one rank asks, and the ranks agree whether they publish. */
HOTBED_API bool hotbed_publisher_busy(const hotbed_publisher *publisher);

/* What a publisher has done. */
typedef struct hotbed_publish_stats {
    uint32_t size;        /* set by the caller: sizeof(hotbed_publish_stats) */
    uint32_t failed;      /* cuts that could not be written */
    uint64_t number;      /* of the last cut on disk; 0: none */
    uint64_t step;        /* of that cut */
    uint64_t cuts, bases; /* on disk, bases included */
    uint64_t rows;        /* rows in all cuts of this rank */
    uint64_t erased;      /* keys to remove in all cuts of this rank */
    uint64_t bytes;       /* of all files of this rank */
    uint64_t last_rows, last_erased, last_bytes; /* of the last cut */
    double copy_seconds;                         /* the trainer waited so long for copies, ... */
    double wait_seconds;                         /* ... and so long for the disk */
    double last_copy_seconds, last_write_seconds;
    uint64_t not_removed; /* old files that could not be removed; the next base tries again */
} hotbed_publish_stats;

/* Read the counts of a publisher. May be called from any thread.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_publisher_stats(const hotbed_publisher *publisher, hotbed_publish_stats *out);

HOTBED_END_DECLS
#endif
