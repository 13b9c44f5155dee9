/* hotbed/growth.h - hash tables that start small and grow during training.
 *
 * For programs that do not know the number of keys in advance. Set
 * hotbed_table_options.max_capacity: the table starts with space for `capacity` keys and may grow
 * to max_capacity. Then poll between steps, outside of graphs. Sharded collections poll by
 * themselves, each rank its own tables (hotbed/sharded.h).
 *
 *       table.capacity = 1 << 20; // hotbed_table_options
 *       table.max_capacity = (uint64_t)1 << 30;
 *       hotbed_storage_create(&options, stream, &storage);
 *       for (uint64_t step = 0; step < steps; step++) {
 *           hotbed_storage_prefetch(storage, &batch, ticket, stream);
 *           // forward, model, backward
 *           uint32_t grown;
 *           if (step % 64 == 0)
 *               hotbed_storage_poll_growth(storage, stream, &grown);
 *       }
 *
 * A growth adds a *segment*: slots with memory of their own, beside the existing ones. Nothing
 * moves: keys keep their slots, rows their addresses, and tickets their slots and pins. A recorded
 * graph stays valid and uses the new slots. The exceptions are recorded calls of
 * hotbed_storage_export() and hotbed_storage_load_histogram(), which must be recorded again to see
 * the new slots.
 *
 * Cost: a growth allocates the memory of the new slots and nothing else, so memory never exceeds
 * the size of the grown table. To find a key of segment n, a lookup reads two lines of 128 bytes in
 * each earlier segment. So choose `capacity` large enough for a few doublings, not twenty.
 *
 * A table that becomes full before it grows behaves like any full table: it refuses the key (a
 * fault FULL, or the reaction that hotbed_check selects), or evicts another key if the table
 * evicts. A refused key gets its row at the first prefetch that contains it after the growth.
 *
 * hotbed_dl_weights() and hotbed_table_info.weights show a table as one array and cover its first
 * range only; hotbed_storage_segment() describes the segments.
 *
 * With two tiers, the lower tier grows, with its rows in lower_memory and its index in
 * lower_index_memory. The upper tier is sized for max_capacity, with the share that the budget
 * allows. */
#ifndef HOTBED_GROWTH_H
#define HOTBED_GROWTH_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of growths of one table; doubling needs 35 at most. */
enum { HOTBED_GROWTHS_MOST = 40 };

/* Grow table number `table` to a capacity of `capacity` keys, effective for later work on `stream`.
 * Allocates memory; does not wait. Leaves the table unchanged if its capacity is already that
 * large.
 *
 * Tickets may hold rows, and forwards and backwards of earlier prefetches may run meanwhile on
 * other streams. The caller orders this call, with events, with all calls that look up keys:
 * prefetches, eval, rows by key.
 *
 * Memory: 1.03 slots for each added key, and for each slot a row and 16 bytes (TIMESTAMP_LFU: 24);
 * and 64 bytes.
 * Errors: ARGUMENT (a table without max_capacity; a capacity over it), MEMORY (the table, slots and
 * bytes; the table is unchanged and may grow later), IO (FILE), STATE (HOTBED_GROWTHS_MOST growths;
 * the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_grow(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, hotbed_stream *stream);

/* Grow each table that is nearly full: to twice its capacity, or max_capacity, once it holds
 * growth_load of the keys that it is sized for. Never waits: the call uses the latest count of keys
 * that has arrived, and starts a new count when the previous one has arrived. A growth therefore
 * lags some polls behind the keys; growth_load leaves space for the batches between. A count reads
 * 8 bytes per slot, and none is made once all tables are at their max_capacity. Poll every ten or
 * hundred steps.
 *
 *   grown  out  host: number of tables that this call has grown, also if it fails; may be NULL
 *
 * The caller orders it like hotbed_storage_grow(), and makes one call at a time.
 * Errors: as hotbed_storage_grow(); the next polls try again. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_poll_growth(hotbed_storage *storage, hotbed_stream *stream, uint32_t *grown);

/* Description of one segment. */
typedef struct hotbed_segment_info {
    uint32_t size;       /* set by the caller: sizeof(hotbed_segment_info) */
    uint64_t first_slot; /* its slots are [first_slot, first_slot + slots) */
    uint64_t slots;
    /* address of the embedding of slot first_slot, as hotbed_table_info.weights; in the lower tier
     * if there are two */
    void *weights;
} hotbed_segment_info;

/* Describe segment number `segment` of a table: 0 .. hotbed_table_info.segments - 1.
 * Errors: ARGUMENT (a number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_segment(
    const hotbed_storage *storage, uint32_t table, uint32_t segment, hotbed_segment_info *out);

#ifdef __cplusplus
}
#endif
#endif
