/* hotbed/export.h - the keys and rows of a table, batch by batch.
 *
 * For dumps and increments of tables that are too large to be copied at once.  A batch looks at a window of
 * the table's slots and gives the keys it finds there, in order of slots, so that the host knows where the
 * next batch begins without waiting for this one, and memory is what the window asks for:
 *
 *     hotbed_export e;
 *     hotbed_export_init(&e);
 *     e.slots = 65536;
 *     e.keys = ..., e.rows.weights = ..., e.count = ...
 *     uint64_t end = 0;
 *     hotbed_storage_export_end(storage, e.table, &end, stream);
 *     for (e.first = 0; e.first < end; e.first += e.slots)
 *         hotbed_storage_export(storage, &e, stream), and use the arrays in stream order
 *
 * With two tiers the upper one's slots come first; with CACHE those give nothing, and the lower one's the newest
 * rows and scores.  What a table has grown comes last.
 *
 * `first` is all the state there is: an export is taken up again from it, in the same process.
 *
 * Over an external store the keys of a HASH table have the order that the store's cursor gives, and windows
 * follow each other from 0 on; the first flushes the upper tier.  Calls are then synchronous, and read each row
 * from the store twice.
 *
 * A table may be changed between batches.  Keys do not change their slot (with DEFAULT BY_SCORE they do), so
 * one that is in the table from the first batch to the last is given once.  One that comes or goes meanwhile is given or not, and one that
 * goes and comes back may be given twice, at two slots.  Scores and rows are those of the time of the batch.
 * A table that is not changed gives the same batches each time.
 */
#ifndef HOTBED_EXPORT_H
#define HOTBED_EXPORT_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One batch.  Call hotbed_export_init(), then set fields.  Arrays are device or pinned memory and have room
 * for `slots` items, or for `room`; those beyond `count` are left as they are. */
typedef struct hotbed_export {
    uint32_t size;      /* set by init */
    uint32_t table;     /* number of the table */
    uint64_t first;     /* the window: slots [first, first + slots) of the table's, from 0 */
    uint64_t slots;     /* 1 .. 2^30; required */
    uint64_t min_score; /* only keys whose score is at least this; keys of STATIC tables have 0 */
    uint64_t min_time;  /* TIMESTAMP_LFU tables: only keys whose time is at least this; else 0 */
    uint64_t *keys;     /* out [count]; may be NULL */
    uint64_t *count;    /* out [1] keys that were given, or that there was no room for; required */
    hotbed_rows rows;   /* out [count, ..] the parts that are not NULL */
    uint64_t *numbers;  /* out [count] number of each key's slot, as `first` counts; may be NULL */
    uint64_t room;      /* items that arrays have room for: the first ones are given; 0: `slots` */
} hotbed_export;

static inline void hotbed_export_init(hotbed_export *batch) {
    memset(batch, 0, sizeof *batch);
    batch->size = sizeof *batch;
}

/* Give the keys in a window of a table's slots.  Async; nothing is changed.  A window past the last slot
 * gives none.  Ordered by the caller with prefetches and with calls that set or remove rows; rows that a
 * backward changes meanwhile are old or new, element by element.
 * Uses the stream's workspace, about half a byte a slot of the window: the first call with a larger window on
 * a stream allocates.
 * Errors: ARGUMENT (NULL, table number, slots, a state or time that the table does not have), MEMORY, STATE (the
 * workspace would have to grow while a graph is recorded), DEVICE; over an external store also the store's, after
 * which the export begins again at 0, and STATE (a graph is recorded; a window that does not begin where the one
 * before ended). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_export(hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream);

/* Where windows of a table end: its slots of both tiers and all growths; over an external store its keys, and the
 * call is then hotbed_storage_size().  Errors: ARGUMENT; over a store those of hotbed_storage_size(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_end(
    hotbed_storage *storage, uint32_t table, uint64_t *end, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
