/* hotbed/stats.h - counts of a storage, without waiting: totals, and the counts of the last step.
 *
 * Experimental: all calls.
 *
 * For monitoring during training. hotbed_storage_stats() waits for its stream; a *meter* does not.
 * A request is work on a stream that copies the counts of all tables to pinned memory. A read
 * returns the latest counts that have arrived. A training loop requests once per step, perhaps in a
 * recorded graph, and reads at any time: the counts are one or two steps old.
 *
 *       hotbed_meter *meter;
 *       hotbed_meter_create(storage, stream, &meter);
 *       for (int step = 0; step < steps; step++) {
 *           // prefetch, forward, model, backward
 *           hotbed_meter_request(meter, stream);
 *       }
 *
 *       // at any time, on any thread:
 *       hotbed_reading reading = {.size = sizeof reading};
 *       hotbed_table_stats total = {.size = sizeof total}, last = {.size = sizeof last};
 *       hotbed_meter_read(meter, table, &reading, &total, &last);
 *       printf("%f of the keys found\n", (double)last.hits / (double)last.uniques); */
#ifndef HOTBED_STATS_H
#define HOTBED_STATS_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* opaque; owned by the caller; a storage can have any number */
typedef struct hotbed_meter hotbed_meter;

/* The request that a reading belongs to. All fields are 0 before the first request is done. */
typedef struct hotbed_reading {
    uint32_t size;    /* set by the caller: sizeof(hotbed_reading) */
    uint64_t request; /* number of the request, from 1 */
    /* prefetches of the storage when the request was done */
    uint64_t prefetches;
    uint64_t step_prefetches; /* prefetches since the previous request; 1 if each step requests */
} hotbed_reading;

/* Create a meter for a storage, which must outlive it. Synchronous. No prefetch runs meanwhile.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_meter_create(hotbed_storage *storage, hotbed_stream *stream, hotbed_meter **out);

/* Free the meter. Its requests must be done. NULL is allowed. */
HOTBED_API void hotbed_meter_destroy(hotbed_meter *meter);

/* Copy the counts when the stream reaches this point. Asynchronous; allocates nothing. In a
 * recorded graph, each launch is a request. The caller orders the requests of one meter one after
 * another, and each one after the prefetches that it counts. A prefetch on another stream may run
 * meanwhile: what it has not counted yet is in the next request.
 * Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_meter_request(hotbed_meter *meter, hotbed_stream *stream);

/* Read the latest counts of table `table` that have arrived. Never waits. Any thread may call it,
 * also while requests run.
 *
 *   out    out  the request that was read
 *   total  out  counts since the storage was created; may be NULL
 *   step   out  counts since the previous request, or since the meter was created; belongs to the
 *               same request as total; may be NULL
 *
 * Errors: ARGUMENT (NULL, size, table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_meter_read(
    const hotbed_meter *meter, uint32_t table, hotbed_reading *out, hotbed_table_stats *total,
    hotbed_table_stats *step);

/* Number of possible loads of a bucket: the buckets of an index have 16 slots. */
enum { HOTBED_LOADS = 17 };

/* Measure how evenly the index of a HASH table is filled: count the buckets that hold 0, 1, .. 16
 * keys. Asynchronous. The sum of the counts is the number of buckets. A key goes to the emptier of
 * two buckets, so few buckets are far from the mean. Keys that a prefetch on another stream is
 * placing meanwhile are counted or not.
 *
 *   buckets  out  [HOTBED_LOADS] device or pinned memory
 *
 * Uses the stream's workspace: the first call on a stream may allocate.
 * Errors: ARGUMENT (also: a STATIC table), MEMORY, STATE (the workspace would have to grow while a
 * graph is recorded), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_load_histogram(
    hotbed_storage *storage, uint32_t table, uint64_t *buckets, hotbed_stream *stream);

HOTBED_END_DECLS
#endif
