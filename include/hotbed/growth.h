/* hotbed/growth.h - hash tables that begin small and grow while they are trained.
 *
 * A table whose hotbed_table_options.max_capacity is set begins with room for `capacity` keys and grows up to
 * max_capacity.  A growth adds a *segment*: slots with memory of their own, beside those that are there.
 * Nothing moves: a key keeps its slot, its row its address, a ticket its slots and pins, and a recorded graph
 * stays valid and uses the new slots.  Just a recorded hotbed_storage_export() or hotbed_storage_load_histogram()
 * has to be recorded again to see the new slots.
 *
 * A training loop polls between steps, outside of graphs; see hotbed_storage_poll_growth().  Sharded collections
 * poll by themselves, each rank its own part (hotbed/sharded.h).  What it costs: a
 * growth takes the memory of the new slots and no other, so that no more is used at any time than by the
 * table that it makes.  A key of segment n is found by looking at two lines of 128 bytes in each of the
 * segments before it, so a table should begin large enough to double a few times, not twenty.
 *
 * A table that is full before it grows is as any full one: a key is refused (a fault FULL, or what
 * hotbed_check says), or, where the table evicts, takes the place of another.  A refused key gets its row at
 * the first prefetch after the growth that has it.
 *
 * What shows a table as one array (hotbed_dl_weights(), hotbed_table_info.weights) shows what it began with;
 * hotbed_storage_segment() has the rest.
 *
 * With two tiers it is the lower one that grows, its rows in lower_memory and its index in lower_index_memory; the
 * upper one is made for max_capacity, with the share of it that the budget allows.
 */
#ifndef HOTBED_GROWTH_H
#define HOTBED_GROWTH_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Growths of one table; doubling needs 35 at most. */
enum { HOTBED_GROWTHS_MOST = 40 };

/* Let table number `table` hold `capacity` keys from here on in `stream`.  Allocates; does not wait.  A table
 * that holds as many is left as it is.
 *
 * Tickets may hold rows, and forwards and backwards of prefetches before may run meanwhile on other streams.
 * Ordered by the caller, with events, with all calls that look for keys: prefetches, eval, rows by key.
 *
 * Memory: for the added keys, 1.03 slots each, a row and 16 bytes (TIMESTAMP_LFU: 24), and 64 bytes.
 * Errors: ARGUMENT (a table without max_capacity; a capacity over it), MEMORY (the table, slots and bytes; the
 * table is as it was and may grow later), IO (FILE), STATE (HOTBED_GROWTHS_MOST growths; the stream
 * records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_grow(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, hotbed_stream *stream);

/* Grow each table that is nearly full: to twice its capacity, or max_capacity, when it holds growth_load of
 * the keys that it is made for.  Never waits: it goes by the newest count of keys that has come back, and has
 * keys counted when the count before has.  So a growth comes some polls after the keys; growth_load leaves room
 * for the batches between.  A count reads 8 bytes a slot, and none is made when all tables are at their
 * max_capacity; poll each ten or hundred steps.
 *
 *   grown  out  tables that have grown in this call, also where it fails; may be NULL
 *
 * Ordered by the caller as hotbed_storage_grow(); one call at a time.  Errors: as hotbed_storage_grow(); the
 * next polls try again. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_poll_growth(hotbed_storage *storage, hotbed_stream *stream, uint32_t *grown);

/* What one growth has added. */
typedef struct hotbed_segment_info {
    uint64_t first_slot; /* its slots are [first_slot, first_slot + slots) */
    uint64_t slots;
    void *weights; /* address of slot first_slot's embedding, as hotbed_table_info.weights: of the
                    * lower tier, where there are two */
} hotbed_segment_info;

/* Segment number `segment` of a table, from 0, below hotbed_table_info.segments.
 * Errors: ARGUMENT (a number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_segment(
    const hotbed_storage *storage, uint32_t table, uint32_t segment, hotbed_segment_info *out);

#ifdef __cplusplus
}
#endif
#endif
