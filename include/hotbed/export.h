/* hotbed/export.h - the keys and rows of a table, batch by batch.
 *
 * Experimental: all calls.
 *
 * For dumps and increments of tables that are too large to copy at once. A batch covers a *window*
 * of the table's slots and returns the keys found there, in order of slots. So the host knows where
 * the next batch starts without waiting for this one, and the window bounds the memory.
 *
 *       hotbed_export e = {.size = sizeof e, .table = 0, .slots = 65536};
 *       e.keys = keys; // device or pinned, [65536]
 *       e.rows.weights = weights; // [65536, dim]
 *       e.count = count; // [1]
 *       uint64_t end = 0;
 *       hotbed_storage_export_end(storage, e.table, &end, stream);
 *       for (e.first = 0; e.first < end; e.first += e.slots) {
 *           hotbed_storage_export(storage, &e, stream);
 *           write_rows(keys, weights, count, stream); // yours, in stream order
 *       }
 *
 * `first` is the only state: an export can be resumed from it in the same process.
 *
 * Order: with two tiers, the slots of the upper tier come first. In mode CACHE these yield nothing,
 * and the slots of the lower tier yield the newest rows and scores. Segments added by growth come
 * last.
 *
 * External stores: the keys of a HASH table have the order of the store's cursor, and windows must
 * follow each other from 0; the first window flushes the upper tier. The calls are then
 * synchronous, and read each row from the store twice. With `since`, also of a STATIC table, the first window
 * lists the keys of changed rows instead, in 8 bytes of host memory each until the next export of the table.
 * They come in ascending order, and the first window with fewer than `slots` keys is the last one: there is
 * no need to count the table's keys.
 *
 * Changes: a table may change between batches. Keys do not change their slot (except in mode
 * DEFAULT by score), so a key that is in the table from the first batch to the last is returned
 * once. A key that is inserted or removed meanwhile may or may not be returned. A key that is
 * removed and inserted again may be returned twice, from two slots. Scores and rows are from the
 * time of the batch. A table that does not change yields the same batches each time. */
#ifndef HOTBED_EXPORT_H
#define HOTBED_EXPORT_H

#include "hotbed/changes.h"
#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* One batch. 0 is the default of every field but `size`. Arrays are device or pinned memory with
 * space for `slots` items, or for `capacity` items if it is set. Items beyond `count` are left
 * unchanged. */
typedef struct hotbed_export {
    uint32_t size;  /* sizeof(hotbed_export) */
    uint32_t table; /* number of the table */
    /* the window: slots [first, first + slots) of the table, numbered from 0 */
    uint64_t first;
    uint64_t slots; /* 1 .. 2^30; required */
    /* return only keys whose score is at least this; keys of STATIC tables have 0 */
    uint64_t min_score;
    /* TIMESTAMP_LFU tables: return only keys whose time is at least this; otherwise 0 */
    uint64_t min_time;
    uint64_t *keys; /* out [count]; may be NULL */
    /* out [1] number of keys found in the window, returned or beyond `capacity`; required */
    uint64_t *count;
    hotbed_rows rows; /* out [count, ..] the parts that are not NULL */
    /* out [count] number of each key's slot, numbered like `first`; may be NULL */
    uint64_t *numbers;
    /* capacity of the arrays in items; only the first items are returned; 0: `slots` */
    uint64_t capacity;
    /* device or pinned: return only rows that were changed since this position, see hotbed/changes.h;
     * a position of zeros, or NULL: all rows */
    const hotbed_change_position *since;
} hotbed_export;

/* Return the keys in a window of a table's slots. Asynchronous; changes nothing. A window past the
 * last slot returns no keys. The caller orders the call with prefetches and with calls that set or
 * remove rows. If a backward changes a row meanwhile, each of its elements is old or new.
 *
 * Uses the stream's workspace, about half a byte per slot of the window: the first call on a stream
 * with a larger window allocates.
 * Errors: ARGUMENT (NULL, table number, slots, a state or time that the table does not have; `since` for
 * a table that does not track changes), MEMORY, STATE (the workspace would have to grow while a graph is
 * recorded), DEVICE. Over an external store, where the call is synchronous, also the store's errors, after
 * which the export must start again at 0, and STATE (a graph is recorded; the window does not start where the
 * previous one ended; changes since `since` are forgotten). A fault of an earlier call stays latched on the
 * stream; the export does not fail for it. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_export(hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream);

/* Get the end of a table's windows: the number of its slots in both tiers and all segments. Over an
 * external store it is the number of keys, and the call is hotbed_storage_size().
 * Errors: ARGUMENT; over a store also the errors of hotbed_storage_size(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_end(
    hotbed_storage *storage, uint32_t table, uint64_t *end, hotbed_stream *stream);

HOTBED_END_DECLS
#endif
