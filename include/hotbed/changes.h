/* hotbed/changes.h - which rows of a storage were changed since a position, and which keys have left.
 *
 * Experimental: all calls.
 *
 * For programs that send changes on: to serving processes, to a replica, to a checkpoint. Set
 * hotbed_table_options.track_changes. The library then records the last change of each row: by a backward
 * or an apply, by the insertion of its key, by a call that sets rows. Keys that are evicted or erased go
 * into a log of the storage. A *position* is a point in this record. Any number of receivers may have
 * one each; they do not know of each other, and nothing has to be registered or freed.
 *
 *       hotbed_change_position *last, *now; // pinned, and so are the other pointers
 *       uint64_t *lost, *count, *gone;
 *       hotbed_storage_position(storage, last, stream); // begin: then send all rows
 *       // ... training steps ...
 *       hotbed_storage_position(storage, now, stream);
 *       hotbed_removed r = {.size = sizeof r}; // keys that have left and are not back
 *       r.since = last, r.until = now;
 *       r.keys = gone, r.capacity = 65536, r.count = count, r.lost = lost;
 *       hotbed_storage_removed(storage, &r, stream);
 *       // and, with `since`, an export of hotbed/export.h: rows that were changed
 *       hotbed_stream_sync(stream);
 *       // send the rows and the keys, or all rows if *lost > 0; then *last = *now
 *
 * What is exported in stream order right after `now` is exactly the change from `last` to `now`: each key
 * whose row differs is returned, with perhaps others, whose rows were written with the same bytes. Keys
 * that came and left in between are among the removed ones. A score alone is no change: a key that was
 * looked up and not trained has a new score only.
 *
 * The log holds hotbed_storage_options.removed_capacity keys of all tables. If more keys have left since
 * a position, `lost` is their number, and the receiver has to send all rows. hotbed_storage_clear() also
 * loses all earlier positions.
 *
 * Over an external store, the host remembers the keys of changed rows that are no longer in the upper tier,
 * in up to 44 bytes each: hotbed_storage_options.changed_capacity keys of all tables, at least the newest
 * half of them. A position whose changes are forgotten has `lost` keys, too; without host memory for the
 * next key all of them are forgotten. hotbed_storage_removed() of a HASH table and hotbed_storage_export()
 * then wait for the stream and the store, and fail with its errors. A call that has failed has changed
 * nothing: repeat it with the same positions. Repeat a failed hotbed_storage_erase(), too: its keys are
 * logged, and are returned if they are gone.
 *
 * Writes past the library are not seen: through hotbed_table_info.weights, hotbed/dlpack.h or the views
 * of a state dict.
 *
 * Order: the caller orders hotbed_storage_position() with events, like an export, and also with forwards
 * and backwards. All calls are asynchronous, never wait, and can be recorded in a graph, except over an
 * external store. */
#ifndef HOTBED_CHANGES_H
#define HOTBED_CHANGES_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* A point in the record of changes. A position of zeros is the time before the first change. A position
 * belongs to one storage of one process; the fields are the library's. Frozen. */
typedef struct hotbed_change_position {
    uint64_t storage;
    uint64_t epoch;
    uint64_t removed; /* keys that had left the tables */
} hotbed_change_position;

/* Take a position: later changes come after it, earlier ones before. Asynchronous.
 *   position  out  device or pinned
 * Errors: ARGUMENT (NULL; no table of the storage tracks changes). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_position(
    hotbed_storage *storage, hotbed_change_position *position, hotbed_stream *stream);

/* Keys that have left a table. Arrays and pointers are device or pinned memory. 0 is the default of
 * every field but `size`. */
typedef struct hotbed_removed {
    uint32_t size;                               /* sizeof(hotbed_removed) */
    uint32_t table;                              /* number of the table */
    const hotbed_change_position *since, *until; /* required */
    /* out [count]: keys that left between the two and are not in the table now, in no order; a key that
     * left twice may be there twice. NULL with capacity 0 */
    uint64_t *keys;
    uint64_t capacity; /* of `keys` */
    uint64_t *count;   /* out [1] number of keys, those beyond `capacity` included; required */
    /* out [1] required: number of keys of all tables that are no longer remembered, UINT64_MAX if `since`
     * is of another storage or a table was cleared. If it is not 0, no keys are returned. Over an external
     * store it counts all changed rows that were ever forgotten. */
    uint64_t *lost;
} hotbed_removed;

/* Return the keys that have left a table. Asynchronous; over an external store synchronous. Changes
 * nothing. The caller orders it like an export.
 * Errors: ARGUMENT (NULL, table number; the table does not track changes). Over an external store also the
 * store's errors, MEMORY, DEVICE, STATE (a graph is recorded). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_removed(hotbed_storage *storage, const hotbed_removed *batch, hotbed_stream *stream);

/* Which changed rows a receiver gets: rows that are within all limits. 0 does not restrict. A row that is
 * left out stays at the receiver as it was. hotbed_publish_options has a filter for each table; other
 * receivers call hotbed_change_filter_select(). Frozen. */
typedef struct hotbed_change_filter {
    uint64_t min_score; /* of the key */
    /* LFU and TIMESTAMP_LFU tables: how often batches had the key since the receiver got its row, or since
     * the key came to the table, if the receiver does not have it */
    uint64_t min_occurrences;
    uint64_t most_rows; /* at most so many rows, those with the highest scores */
    /* Euclidean norm of the change from the row that the receiver has, or that it uses for a missing key.
     * A norm that is NaN, because one of the rows has a NaN, passes */
    float min_change;
    uint32_t unused; /* 0 */
} hotbed_change_filter;

/* Check that a filter fits a table. Synchronous; reads no rows.
 * Errors: ARGUMENT (NULL; table number; a limit of scores for a STATIC table; min_occurrences for a table that
 * does not count occurrences; min_change negative or not finite; `unused` not 0). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_change_filter_check(
    const hotbed_storage *storage, uint32_t table, const hotbed_change_filter *filter);

/* Choose among changed rows. Host memory; synchronous. Arrays are required if the filter has a limit for
 * them, else they may be NULL.
 *   filter   in   of one table
 *   n        in   number of rows
 *   scores   in   [n] for min_score and most_rows
 *   occurrences  in   [n] for min_occurrences
 *   changes  in   [n] norms, for min_change
 *   passes   out  [n] whether the receiver gets the row. Of equal scores, earlier rows come first
 * Errors: ARGUMENT (NULL), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_change_filter_select(
    const hotbed_change_filter *filter, uint64_t n, const uint64_t *scores,
    const uint64_t *occurrences, const double *changes, bool *passes);

HOTBED_END_DECLS
#endif
