/* hotbed/stats.h - counts of a storage without a wait: in all, and of the last step.
 *
 * hotbed_storage_stats() waits for its stream.  A *meter* does not: a request is work on a stream that puts
 * the counts of all tables into pinned memory, and a read takes the newest that have arrived.  A training
 * loop requests once a step, perhaps in a recorded graph, and reads whenever it likes: it sees counts that
 * are a step or two old.
 *
 *     prefetch, forward, backward, hotbed_meter_request(meter, stream)     each step
 *     hotbed_meter_read(meter, table, &reading)                            any time, any thread
 */
#ifndef HOTBED_STATS_H
#define HOTBED_STATS_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_meter hotbed_meter; /* opaque; owned by the caller; any number a storage */

/* Counts of one table.  Before the first request is done, all are 0. */
typedef struct hotbed_reading {
    uint64_t request;         /* number of the request that is read, from 1 */
    uint64_t prefetches;      /* of the storage when the request was done */
    uint64_t step_prefetches; /* since the request before; 1 where each step requests */
    hotbed_table_stats total; /* since the storage was created */
    hotbed_table_stats step;  /* since the request before; the first: since the meter was created */
} hotbed_reading;

/* Create a meter for a storage, which outlives it.  Synchronous.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_meter_create(hotbed_storage *storage, hotbed_stream *stream, hotbed_meter **out);

/* Free the meter; its requests are done.  NULL is allowed. */
HOTBED_API void hotbed_meter_destroy(hotbed_meter *meter);

/* Have the counts read when the stream gets there.  Async; allocates nothing; in a recorded graph each launch
 * is a request.  Ordered by the caller after prefetches that are to be counted, and, like those, with other
 * requests and prefetches.
 * Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_meter_request(hotbed_meter *meter, hotbed_stream *stream);

/* The newest counts of table `table` that have arrived.  Never waits, from any thread, while requests run too;
 * total and step are of one request.
 * Errors: ARGUMENT (NULL, table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_meter_read(const hotbed_meter *meter, uint32_t table, hotbed_reading *out);

enum { HOTBED_LOADS = 17 }; /* a bucket of the index has 16 slots */

/* How evenly a HASH table's index is filled: the number of its buckets that hold 0, 1, .. 16 keys.  Async.
 * The sum is the number of buckets; a key goes to the emptier of two, so that buckets that are far from the
 * mean are few.  Keys that a prefetch on another stream is placing meanwhile are counted or not.
 *
 *   buckets  out  [HOTBED_LOADS] device or pinned memory
 *
 * Uses the stream's workspace: the first call on a stream may allocate.
 * Errors: ARGUMENT (a STATIC table too), MEMORY, STATE (the workspace would have to grow while a graph is
 * recorded), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_load_histogram(
    hotbed_storage *storage, uint32_t table, uint64_t *buckets, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
