/* hotbed/sharded.h - embedding tables sharded by row over the ranks of a communicator.
 *
 * A *sharded collection* is TorchRec's ShardedEmbeddingCollection (pooling NONE: a row for each key) and
 * ShardedEmbeddingBagCollection (SUM, MEAN: a row for each sample) in one.  Every rank has a part of every
 * table's rows, by the rules of hotbed/route.h, and feeds a batch of its own.  The tables of one rule are a
 * group with one input dist, one *lookup* (a hotbed_storage) and one output dist.
 *
 * A *context* carries one batch of one or several collections through its stages:
 *
 *   input_dist              dedup, keys by the rank that owns them, exchange #1
 *   wait_splits             TWO_PHASE: its one host wait, for the sizes; exchange #2 is enqueued
 *   wait_input              the keys of all ranks as one batch by (feature, rank, sample)
 *   prefetch                find or insert the rows, pin them
 *   compute                 read the rows, pool this rank's part
 *   output_dist             exchange #3: rows to who asked
 *   wait_output             rows in the order of the caller's batch; pooled: sums over ranks
 *   backward_dist           gradients of duplicates summed, scaled; exchange #4
 *   update                  the optimiser, and the rows are unpinned
 *
 * Each is started by one call and awaited by the next, on whatever stream: a context's own events order its
 * stages.  One batch's exchange can run under another's compute, in a context of its own.  The caller orders,
 * with events where streams differ, prefetches of a collection among themselves, and its computes and updates
 * among themselves (hotbed/storage.h).  A context is used again once its stages are enqueued: the next batch's
 * are ordered after them.
 *
 * All ranks make the same calls in the same order, and do the same operations whatever their counts are: a rank
 * with no samples, no keys, or none of a feature, is one like the others.
 *
 * The three plans give the same bytes:
 *
 *   FIXED       messages have room for `capacity` keys and say how many they have: no host wait
 *   TWO_PHASE   sizes first, then exact messages; the host waits once a batch.  It takes any batch
 *   ONE_SIDED   as FIXED, but kernels write into other ranks' memory (hotbed_window): no host wait
 *
 * A batch that has more keys for some rank than a message holds overflows.  All ranks see it in the same
 * batch, and none uses any of it; with HOTBED_OVERFLOW_REPLAY prefetch (or compute in eval) then sends the
 * batch again by TWO_PHASE on all ranks together.  To know, the host reads a word that the device wrote; it waits
 * only when the batch's keys have not arrived yet, which in a pipeline they have.  Where capacity is at
 * least max_keys nothing overflows, and nobody looks.
 *
 * When the communicator fails, calls return COMM, and what was enqueued runs to its end within its memory, with
 * batches of which anything may have come: rows that it trained are those of no step.  Load the last checkpoint.
 *
 * Gradients are the caller's to scale: gradient_scale multiplies what backward is given, 1 unless set; see
 * hotbed/comm.h.  Sums of duplicates are taken where the batch is, in the order of hotbed_storage_backward(),
 * then over ranks by the owner in rank order; so the rows of keys that one rank alone has get the bytes of
 * one process.
 *
 * Tables with max_capacity grow (hotbed/growth.h), each rank's part by itself when that is nearly full: no rank waits
 * for, or hears of, another's growth.  Every growth_every-th prefetch polls, on its stream, before it looks for
 * keys; batches that are under way keep their rows.  The collection orders growths with its evals; calls of the
 * caller's own that look for keys in a lookup are ordered with prefetches by the caller.
 */
#ifndef HOTBED_SHARDED_H
#define HOTBED_SHARDED_H

#include "hotbed/comm.h"
#include "hotbed/kjt.h"
#include "hotbed/route.h"
#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_sharded hotbed_sharded;                 /* opaque; owned by the caller */
typedef struct hotbed_sharded_context hotbed_sharded_context; /* opaque; owned by the caller */

typedef enum hotbed_plan {
    HOTBED_PLAN_FIXED = 0,
    HOTBED_PLAN_TWO_PHASE = 1,
    HOTBED_PLAN_ONE_SIDED = 2, /* where windows are: see hotbed_window_create() */
} hotbed_plan;

typedef enum hotbed_overflow {
    HOTBED_OVERFLOW_REPLAY = 0, /* send the batch again, whole */
    HOTBED_OVERFLOW_REPORT =
        1, /* the batch is empty on all ranks, and hotbed_sharded_overflowed() says so:
                                 * for graphs, which cannot replay */
} hotbed_overflow;

/* Whether a rank sends each distinct key of a table once.  Pooled collections never do.  Where a table counts
 * occurrences (LFU, TIMESTAMP_LFU, FREQUENCY), the keys travel with theirs, 4 bytes a key, so its owner counts
 * the same. */
typedef enum hotbed_dedup {
    HOTBED_DEDUP_AUTO = 0, /* as ON */
    HOTBED_DEDUP_ON = 1,
    HOTBED_DEDUP_OFF = 2,
} hotbed_dedup;

/* A collection.  Call hotbed_sharded_options_init(), then set fields; the same on all ranks.  0 is every
 * other field's default.  Fields are only ever appended. */
typedef struct hotbed_sharded_options {
    uint32_t size; /* set by init */
    /* Tables, features and all else, as for one process; copied; required.  A table's capacity and max_capacity are
     * over all ranks: a rank's share of a HASH table is a little larger than 1/world, since routing is not exactly
     * even.  hbm_bytes is a rank's; so is `external`, a store of its own, for collections whose tables make one
     * lookup.  pooling NONE: all tables have one dim.  output_dtype is of outputs and gradients, and of what
     * travels, but pooled sums travel as F32. */
    const hotbed_storage_options *storage;
    const hotbed_route_kind
        *routes; /* [tables]; NULL: HASH_ROUND_ROBIN, and CONTINUOUS for STATIC tables,
                                      * which can be nothing else */
    const char *const
        *features; /* [features] names, distinct; copied; NULL: features have none when there
                                  * are several a table, and else those of the tables */
    hotbed_plan plan;
    hotbed_overflow overflow;
    hotbed_dedup dedup;
    float gradient_scale;    /* init: 1 */
    uint32_t max_batch_size; /* samples of a feature on a rank; required */
    uint64_t max_keys;       /* keys of a rank's batch; required */
    uint64_t capacity; /* FIXED, ONE_SIDED: keys of a message, which is for one rank and group;
                              * 0: a quarter more than the share of a rank of max_keys, and 64 */
    uint32_t
        kjt_features; /* features of the largest batch that is given; 0: those of the collection */
    bool weighted;    /* pooled: keys come with weights */
    uint32_t growth_every; /* prefetches from one poll of tables that grow to the next; 0: 16 */
} hotbed_sharded_options;

static inline void hotbed_sharded_options_init(hotbed_sharded_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->gradient_scale = 1.0F;
}

/* Create this rank's part of a collection on the backend and device of `stream`.  Synchronous; needs nothing
 * of other ranks.  `comm` outlives the collection.  *out is NULL on error.
 * Errors: ARGUMENT (the field and its value), as of hotbed_storage_create(); UNSUPPORTED (STATIC tables of several
 * ranks over an external store). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_create(
    const hotbed_sharded_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_sharded **out);

/* Free it.  Its contexts are destroyed, and all work is done.  NULL is allowed. */
HOTBED_API void hotbed_sharded_destroy(hotbed_sharded *sharded);

/* TorchRec's create_context: a context for n collections of one communicator, whose key exchanges travel
 * together: the fused splits.  Synchronous; with ONE_SIDED all ranks call it together.
 *
 *   collections  [n] in   of one plan and one overflow policy; n is 1 .. 64
 *
 * Errors: ARGUMENT, MEMORY, STATE, COMM, UNSUPPORTED (ONE_SIDED, where there are no windows), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_create_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_stream *stream,
    hotbed_sharded_context **out);

/* Wait for the streams of its last calls, which still exist, release its rows, and free it.  With ONE_SIDED
 * every rank has passed its last exchange.  NULL is allowed. */
HOTBED_API void hotbed_sharded_context_destroy(hotbed_sharded_context *context);

/* --- a batch, stage by stage --------------------------------------------------------------------- */
/* `number` is a collection's number in the context.  Errors of all: ARGUMENT, STATE (the
 * stage before is missing), COMM (the communicator failed), MEMORY, DEVICE. */

/* Start the exchange of keys.  Async.
 *
 *   kjts  [n] in  one for each collection.  Their arrays stay unchanged until the context's update, cancel
 *                 or next input_dist is passed; names and strides are only read now.  Features are found
 *                 by name, or by number when the batch has no names; others are left alone.
 *
 * Errors besides: ARGUMENT (a feature is missing, or has more samples or keys than the options say).
 * Faults: RANGE (lengths or offsets that cannot be: this rank's batch then counts as empty). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_input_dist(
    hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_stream *stream);

/* First await.  Async, but for TWO_PHASE, which waits on the host for the sizes, then enqueues the exchange of
 * lengths, keys and weights.  Other plans: nothing is left to do. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_wait_splits(hotbed_sharded_context *context, hotbed_stream *stream);

/* Second await: the received keys become one batch.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_wait_input(hotbed_sharded_context *context, hotbed_stream *stream);

/* Find or insert the received keys, and pin their rows.  Async, but for an overflow: see above.  A growth allocates, and
 * does not wait.
 * Errors besides: STATE (the collection is in eval mode).  MEMORY of a growth: nothing is prefetched yet; called again,
 * it goes on with the table as it is.  Faults: of hotbed_storage_prefetch(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_prefetch(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Read the rows; prefetch them where that was not done; in eval mode, find them without inserting.
 * Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_compute(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Start to send the rows to who asked.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_output_dist(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Both of them.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_compute_and_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Await the rows.  Async.
 *
 *   output  out  pooling NONE: [num_keys of the kjt, stride], row i is of keys[i]; those of features that are
 *                not the collection's are left alone
 *                SUM, MEAN: [batch_size of the kjt, stride], feature f from hotbed_sharded_column(f)
 *   stride  in   elements from one row to the next; 0 is the least: dim, or hotbed_sharded_columns()
 *
 * A batch that was reported to overflow gives zeros. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_wait_output(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Start to send gradients to the owners.  Async.  `gradient` has the output's shape and may be freed or changed once
 * the stream has passed the call.  Each element is clamped to optimizer.max_gradient, then duplicates are
 * summed, then scaled. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* Await them, apply the optimiser, unpin.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_update(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Both of them.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* Give a batch up: release its rows.  Not a collective operation by itself, but all ranks give up the same
 * batch.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_cancel(hotbed_sharded_context *context, hotbed_stream *stream);

/* Whether the batch overflowed; waits for its keys when they have not arrived yet, which counts as a host
 * wait.  After a replay: true.  Errors: ARGUMENT, STATE (before wait_input), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_overflowed(hotbed_sharded_context *context, bool *out);

/* Whether prefetch would not have to wait.  Never waits.  Errors: ARGUMENT, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_ready(hotbed_sharded_context *context, bool *out);

/* The batch that lookup `lookup` of a collection got: keys by (feature, rank, sample).  Device arrays, valid
 * until the next wait_input.  pooling NONE: batch_size 1, offsets of features alone, of tables after dedup; else
 * bags of all samples, max_batch_size a rank.  Errors: ARGUMENT, STATE (before wait_input). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_received(
    const hotbed_sharded_context *context, uint32_t number, uint32_t lookup, hotbed_batch *out);

/* --- forward as one call ---------------------------------------------------------------------------- */

/* What hotbed_sharded_forward() calls: a slot of the collection, function and self, so that a pipeline puts its
 * own there, which finds the batch already under way, and later the old one back. */
typedef hotbed_status (*hotbed_sharded_forward_function)(
    void *self, hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt,
    void *output, uint64_t stride, hotbed_stream *stream);

/* Set the slot; NULL puts the collection's own function there, which does all stages up to wait_output, for a
 * context of one collection.  Never waits.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_set_forward(
    hotbed_sharded *sharded, hotbed_sharded_forward_function function, void *self);
HOTBED_API void hotbed_sharded_get_forward(
    const hotbed_sharded *sharded, hotbed_sharded_forward_function *function,
    void **self); /* what is in the slot */

/* Call what is in the slot.  Async.  Errors: its. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_forward(
    hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt, void *output,
    uint64_t stride, hotbed_stream *stream);

/* --- what is inside ------------------------------------------------------------------------------------ */

/* Training (at first) or eval, which inserts and changes nothing; passed down to all lookups.  Applies to
 * batches that are started later.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_set_training(hotbed_sharded *sharded, bool training);
HOTBED_API bool hotbed_sharded_training(const hotbed_sharded *sharded); /* the mode */

/* Poll tables that grow, of this rank, beside the polls that prefetch makes: for steps in graphs, which make none.
 * Ordered by the caller as a prefetch.  Never waits, and is not collective.
 *
 *   grown  out  tables that have grown in this call, also where it fails; may be NULL
 *
 * Errors: as hotbed_storage_poll_growth(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_poll_growth(hotbed_sharded *sharded, hotbed_stream *stream, uint32_t *grown);

/* Set the learning rate of all lookups for later updates on `stream`.  Async.
 * Errors: ARGUMENT (not finite). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_set_learning_rate(
    hotbed_sharded *sharded, float learning_rate, hotbed_stream *stream);

/* Numbers of tables, features and lookups; TorchRec's _lookups are borrowed, and have this rank's rows. */
HOTBED_API uint32_t hotbed_sharded_num_tables(const hotbed_sharded *sharded);
HOTBED_API uint32_t hotbed_sharded_num_features(const hotbed_sharded *sharded);
HOTBED_API uint32_t hotbed_sharded_num_lookups(const hotbed_sharded *sharded);
HOTBED_API hotbed_storage *hotbed_sharded_lookup(const hotbed_sharded *sharded, uint32_t lookup);
HOTBED_API hotbed_comm *hotbed_sharded_comm(const hotbed_sharded *sharded); /* borrowed */

/* First output column of a feature, and the number of columns.  SUM and MEAN. */
HOTBED_API uint64_t hotbed_sharded_column(const hotbed_sharded *sharded, uint32_t feature);
HOTBED_API uint64_t hotbed_sharded_columns(const hotbed_sharded *sharded);

/* One table, TorchRec's named_parameters_by_table: this rank's part is table number `table` of `lookup`, and
 * hotbed_storage_table() of these has the address of its rows: the memory that computes. */
typedef struct hotbed_sharded_table {
    const char *name;      /* valid while the collection is */
    uint64_t capacity;     /* over all ranks, as given; hotbed_storage_table() has this rank's */
    uint64_t max_capacity; /* the same; `capacity` where the table does not grow */
    hotbed_route route;
    bool local_ids; /* the lookup knows keys by hotbed_route_local(): STATIC tables */
    uint32_t lookup, table;
} hotbed_sharded_table;

/* Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_table_read(const hotbed_sharded *sharded, uint32_t table, hotbed_sharded_table *out);

/* Number of the table called `name`, or num_tables. */
HOTBED_API uint32_t hotbed_sharded_find_table(const hotbed_sharded *sharded, const char *name);

/* All that is inside, as text: collection, lookups, tables, dists.  Never waits.
 *
 *   text      out  cut to fit, always ended by 0; NULL with capacity 0 to ask for the length
 *   capacity  in   bytes of text
 *   length    out  bytes that the whole text has, without the 0; may be NULL
 *
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_print(const hotbed_sharded *sharded, char *text, size_t capacity, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
