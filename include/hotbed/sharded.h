/* hotbed/sharded.h - embedding tables sharded by row over the ranks of a communicator.
 *
 * Stable: hotbed_kjt_check(), hotbed_sharded_options_init(), hotbed_sharded_create(),
 * hotbed_sharded_destroy(), hotbed_sharded_create_context(), hotbed_sharded_context_destroy(),
 * hotbed_sharded_read(), hotbed_sharded_backward(), hotbed_sharded_cancel(),
 * hotbed_sharded_forward(), hotbed_sharded_set_training(), hotbed_sharded_set_learning_rate(),
 * hotbed_sharded_table_read(). Experimental: all other calls.
 *
 * Programs that train or serve tables on several ranks need it. A *sharded collection* combines
 * TorchRec's ShardedEmbeddingCollection (pooling NONE: a row for each key) and
 * ShardedEmbeddingBagCollection (SUM, MEAN: a row for each sample). Every rank has a part of every
 * table's rows, by the rules of hotbed/route.h, and looks up a batch of its own. The tables of one
 * rule form a group with one input dist, one *lookup* (a hotbed_storage) and one output dist. Pooled
 * tables of which rows travel, and those of which sums travel (hotbed_pooled_exchange), form
 * separate groups, the former by the type of their elements.
 *
 * Every rank creates its part and trains, here without checks of the status:
 *
 *     hotbed_sharded_options options;
 *     hotbed_sharded_options_init(&options);
 *     options.storage = &storage_options;
 *     options.max_batch_size = 1024;
 *     options.max_keys = 32768;
 *     hotbed_sharded_create(&options, comm, stream, &sharded);
 *     hotbed_sharded_create_context(1, &sharded, stream, &context);
 *
 *     hotbed_sharded_input_dist(context, &kjt, stream);
 *     hotbed_sharded_wait_splits(context, stream);
 *     hotbed_sharded_wait_input(context, stream);
 *     hotbed_sharded_prefetch(context, 0, stream);
 *     hotbed_sharded_read(context, 0, output, 0, stream);
 *     hotbed_sharded_backward(context, 0, gradient, 0, stream);
 *
 * A *context* carries one batch of one or several collections through its stages:
 *
 *   input_dist              dedup, keys by the rank that owns them, exchange #1
 *   wait_splits             TWO_PHASE: its one host wait, for the sizes; exchange #2 is enqueued
 *   wait_input              the keys of all ranks as one batch by (feature, rank, sample)
 *   prefetch                find or insert the rows, pin them
 *   compute                 read the rows; by SUMS: pool this rank's part
 *   output_dist             exchange #3: rows or sums to the ranks that requested them
 *   wait_output             rows in the order of the caller's batch, or pooled
 *   backward_dist           gradients of duplicates summed, scaled; exchange #4
 *   update                  the optimizer step; the rows are unpinned
 *
 * Each stage is started by one call and awaited by the next, on any stream: a context's own events
 * order its stages. The exchange of one batch can overlap with the computation of another batch,
 * which uses another context. The caller orders the prefetches of a collection among themselves,
 * and its computes and updates among themselves (hotbed/storage.h), with events if they are on
 * different streams. A context can be reused as soon as its stages are enqueued: the stages of the
 * next batch are ordered after them.
 *
 * All ranks make the same calls in the same order, and perform the same operations whatever their
 * counts are, also a rank without samples, without keys, or without keys of a feature.
 *
 * The three plans give the same bytes, if pooled features travel in the same way:
 *
 *   FIXED       messages have space for `capacity` keys and carry their count: no host wait
 *   TWO_PHASE   sizes first, then exact messages; the host waits once per batch. Accepts any batch
 *   ONE_SIDED   as FIXED, but kernels write into other ranks' memory: no host wait
 *
 * With one rank nothing is sent: the lookups read the caller's batch, whatever the plan. There are
 * no sizes to wait for, and no batch overflows.
 *
 * A batch overflows if it has more keys for some rank than a message holds. All ranks see the
 * overflow in the same batch, and none uses any part of it. With HOTBED_OVERFLOW_REPLAY, prefetch
 * (or compute in eval) then sends the batch again by TWO_PHASE, on all ranks together. The host
 * polls a flag that the device sets; it waits only if the batch's keys have not arrived yet, which
 * in a pipeline they have. If capacity is at least max_keys, nothing can overflow, and the flag is
 * not read.
 *
 * When the communicator fails, calls return COMM. Enqueued work runs to its end within its memory,
 * but its batches may contain anything: rows that it trained match no training step. Load the last
 * checkpoint.
 *
 * The caller scales gradients: gradient_scale multiplies the gradients that backward receives, and
 * is 1 unless set; see hotbed/comm.h. Gradients of duplicates are first summed on the rank that has
 * the batch, in the order of hotbed_storage_backward(), then over ranks by the owner, in rank
 * order. Rows of keys that only one rank has therefore get the same bytes as in one process.
 *
 * Tables with max_capacity grow (hotbed/storage.h). Each rank's part grows by itself when it is
 * nearly full; no rank waits for another rank's growth or learns of it. Every growth_every-th
 * prefetch polls, on its stream, before it looks for keys; batches in flight keep their rows. The
 * collection orders growths with its evals. The caller orders its own calls that look for keys in a
 * lookup with prefetches. */
#ifndef HOTBED_SHARDED_H
#define HOTBED_SHARDED_H

#include "hotbed/comm.h"
#include "hotbed/route.h"
#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

/* --- batches ---------------------------------------------------------------------------------- */

/* A keyed jagged tensor has a bag of keys for each feature and sample.
 *
 * Sharded collections and batch balance (hotbed/balance.h) take batches in this form. Here a *row*
 * is a row of the batch, not of a table: the bag of one feature and sample. Rows are feature-major: first the
 * rows of feature 0 in the order of its samples, then the rows of feature 1, and so on; keys are in the order
 * of the rows. Every feature has batch_size samples, or, with `strides`, a number of its own (a variable
 * batch), which may differ between ranks. Lengths or offsets give the number of keys of each row.
 *
 * Two features of 1024 samples, with arrays in device memory:
 *
 *     static const char *const names[] = {"user", "item"};
 *     hotbed_kjt kjt = {.size = sizeof kjt};
 *     kjt.num_features = 2;
 *     kjt.features = names;
 *     kjt.batch_size = 1024;
 *     kjt.num_keys = num_keys;
 *     kjt.keys = keys;
 *     kjt.lengths = lengths;
 *     status = hotbed_kjt_check(&kjt);
 *     status = hotbed_sharded_input_dist(context, &kjt, stream);
 *
 * Arrays of keys, lengths, offsets and weights are in device memory, names and strides in host
 * memory. The functions that use a batch are asynchronous and check it on the device: invalid
 * lengths or offsets latch a fault RANGE on the stream, which contains the number of the row, and
 * the batch then counts as empty. hotbed_kjt_validate() waits, and reports feature and sample.
 *
 * Modelled on TorchRec's KeyedJaggedTensor. */

/* A view of a batch; it owns nothing. 0 is the default of every field but `size`. */
typedef struct hotbed_kjt {
    uint32_t size;               /* sizeof(hotbed_kjt) */
    uint32_t num_features;       /* 1 .. 65535 */
    const char *const *features; /* [num_features] names; NULL: features are known by number only */
    uint32_t batch_size; /* samples of each feature; with strides: the largest stride, or more */
    const uint32_t *strides; /* [num_features] samples of each feature; NULL: batch_size each */
    uint64_t num_keys; /* length of `keys`: an upper bound, since the rows give the exact number */
    const void *keys;  /* [num_keys] int64 or uint64 */
    const int64_t *lengths; /* [rows] keys of each row, or NULL */
    /* [rows + 1] row r is keys[offsets[r]] up to keys[offsets[r + 1]], offsets[0] = 0; has
     * precedence over lengths. Neither: one key per row. */
    const int64_t *offsets;
    const float *weights; /* [num_keys] weights of the keys; NULL: none */
} hotbed_kjt;

/* Check the fields that are known on the host. Never waits.
 * Errors: ARGUMENT (no features; a name that is NULL; a stride over batch_size, with the
 * feature's name; no keys; over 2^30 rows or keys; one key per row, and num_keys is not the
 * number of rows). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_kjt_check(const hotbed_kjt *kjt);

/* Check everything, including lengths or offsets. Synchronous: for tests and for finding faults.
 * Errors: as hotbed_kjt_check(); ARGUMENT (feature, sample and the fault: a negative length, a
 * descending offset, keys beyond num_keys), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_kjt_validate(const hotbed_kjt *kjt, hotbed_stream *stream);

/* --- collections ------------------------------------------------------------------------------ */

typedef struct hotbed_sharded hotbed_sharded;                 /* opaque; owned by the caller */
typedef struct hotbed_sharded_context hotbed_sharded_context; /* opaque; owned by the caller */

typedef enum hotbed_plan {
    HOTBED_PLAN_FIXED = 0,
    HOTBED_PLAN_TWO_PHASE = 1,
    /* self, threads, or NCCL on GPUs that are all in one NVLink domain */
    HOTBED_PLAN_ONE_SIDED = 2,
    /* ONE_SIDED if windows work between all ranks, otherwise FIXED: chosen when the collection is
     * created, the same on all ranks; hotbed_sharded_print() says which. */
    HOTBED_PLAN_AUTO = 3,
} hotbed_plan;

typedef enum hotbed_overflow {
    HOTBED_OVERFLOW_REPLAY = 0, /* send the whole batch again */
    /* The batch is empty on all ranks, its prefetch is not counted, and hotbed_sharded_overflowed()
     * reports it: for graphs, which cannot replay, and for callers who send it again after they
     * have enqueued its stages. */
    HOTBED_OVERFLOW_REPORT = 1,
} hotbed_overflow;

/* Whether a rank sends each distinct key of a table once. Pooled features by ROWS always do, by SUMS
 * never.
 * If a table counts occurrences (LFU, TIMESTAMP_LFU, FREQUENCY), a count of 4 bytes travels with
 * each key, so the owner counts the same occurrences. */
typedef enum hotbed_dedup {
    HOTBED_DEDUP_AUTO = 0, /* as ON */
    HOTBED_DEDUP_ON = 1,
    HOTBED_DEDUP_OFF = 2,
} hotbed_dedup;

/* What travels for a pooled feature. The features of a table have one value, since a row gets one
 * update per step.
 *
 *   ROWS  Each distinct row that a rank's batch needs travels to the rank once, as it is stored: a
 *         16-bit row as 16 bits. The rank pools its bags itself, in the order of their keys, so the
 *         output has the same bytes as in one process, unless forward_dtype rounds the rows. Sums of
 *         gradients travel back, one for each distinct row, of type output_dtype: as in sequences,
 *         gradients of duplicates are first summed on the rank that has the batch.
 *   SUMS  Each owner sends its sum for each bag with a key there, in f32. The rank adds the sums in
 *         the order of ranks, so the last bits of an output depend on the number of ranks. The
 *         gradients of such bags travel back: as the caller passes them, or in f32 if they are
 *         clamped, scaled or divided (MEAN). The owner adds the gradients of a row in the order of
 *         one process.
 *   AUTO  ROWS if the expected bytes are not more than with SUMS. Expected is, for each rank and
 *         table, that a third of a batch's keys are distinct, but not more than the table's rows;
 *         and that keys are spread evenly over the ranks. If some tables are better by SUMS, and
 *         ROWS of the others save less than 16 MiB a step, all are SUMS, because a second exchange
 *         takes as long. With FIXED, whose messages travel whole,
 *         and over an external store it is SUMS. hotbed_sharded_print() prints the choice. */
typedef enum hotbed_pooled_exchange {
    HOTBED_POOLED_AUTO = 0,
    HOTBED_POOLED_ROWS = 1,
    HOTBED_POOLED_SUMS = 2,
} hotbed_pooled_exchange;

/* Options of a collection. Call hotbed_sharded_options_init(), then set fields. The default of a
 * field is 0 unless its comment says otherwise. Fields are only ever appended.
 *
 * All ranks pass the same options, and hotbed_sharded_create() compares them. A rank may choose for
 * itself where its rows are stored (mode, caching, placement, hbm_bytes, budget, upper_capacity,
 * lower_memory, lower_directory, lower_index_memory, move_sms, external), how much of its changes it
 * remembers (removed_capacity, changed_capacity), kjt_features, growth_load, growth_every and check. */
typedef struct hotbed_sharded_options {
    uint32_t size; /* set by init */
    /* Required; copied. Tables, features and all else, as for one process.
     * A table's capacity and max_capacity count rows over all ranks. A rank's share of a HASH
     * table is a little larger than 1/world, since routing is not exactly even. hbm_bytes is per
     * rank. `external` is also per rank, a store of its own, and is for collections whose tables
     * form one lookup. With pooling NONE all tables have the same
     * dim. output_dtype is the type of outputs and gradients, and, with pooling NONE, of the data
     * that ranks exchange. */
    const hotbed_storage_options *storage;
    /* [tables]; NULL: HASH_ROUND_ROBIN, and CONTINUOUS for STATIC tables, which also allow
     * ROUND_ROBIN: choose it if keys are numbered by frequency, because CONTINUOUS gives rank 0 the
     * most frequent ones. */
    const hotbed_route_kind *routes;
    /* [features] distinct names; copied; NULL: the names of the tables, or no names if a table has
     * several features. */
    const char *const *features;
    hotbed_plan plan; /* set to AUTO by init */
    hotbed_overflow overflow;
    hotbed_dedup dedup;
    float gradient_scale; /* set to 1 by init */
    /* Samples per feature on a rank; required. Times the features it is at most 2^30; for pooled
     * tables of one rule, times their features and the ranks. */
    uint32_t max_batch_size;
    uint64_t max_keys; /* keys of a rank's batch; required */
    /* FIXED, ONE_SIDED: keys per message, which is for one rank and lookup; 0: 1.25 times a rank's
     * share of the lookup's keys, plus 64. These are max_keys, or, with pooling_factors, 1.25 times
     * the keys expected if that is less. */
    uint64_t capacity;
    /* Features of the largest batch that is passed; 0: the features of the collection. */
    uint32_t kjt_features;
    bool weighted; /* pooled: keys have weights */
    /* With REPORT, and not with TWO_PHASE: a batch of more samples or keys than max_batch_size and
     * max_keys overflows on all ranks, and is no error. All ranks then call
     * hotbed_sharded_resize(). */
    bool large_overflows;
    uint32_t growth_every; /* tables that grow are polled after so many prefetches; 0: 16 */
    /* [features] SUM, MEAN: what travels; NULL: AUTO */
    const hotbed_pooled_exchange *exchanges;
    /* [features] keys of a bag, on average, for AUTO and for the default of `capacity`; NULL:
     * max_keys / (max_batch_size * features) */
    const float *pooling_factors;
    /* Several ranks: the types in which rows or sums travel, and in which gradients travel back, also those
     * that a rank sends itself. 0: rows of sequences as output_dtype, rows of pooled tables as they are
     * stored, sums as F32, gradients as output_dtype or, of pooled tables by sums that are scaled, clamped
     * or divided, as F32. All plans give the same bytes.
     *
     *   F32, F16, BF16  rounded to nearest
     *   INT8, FP8       rows and sums in the form of a table's rows (hotbed/types.h), rounded to nearest;
     *                   a row that is stored in the type travels without loss. INT8 clamps values to the
     *                   range of F16.
     *                   Gradients as FP8 in the same form; as INT8 an element is a byte b, (b - 128) * scale,
     *                   and the scale an f32 behind the bytes, the largest element / 127. They are rounded
     *                   at random, so that elements far below their row's largest one are not lost: by the
     *                   storage's seed, the number of the optimizer step, the rank, and the number of the row
     *                   or bag in its batch. A row with an element that is not finite is not finite for its
     *                   owner, which skips it (hotbed/storage.h); of FP8 the element alone is NaN.
     *
     * A row of `dim` elements takes as many bytes as in a table (hotbed_dtype_row_bytes()), rounded up to 16,
     * or to 4 as INT8 and FP8. */
    hotbed_dtype forward_dtype, backward_dtype;
} hotbed_sharded_options;

/* Set every field to its default. `size` is the caller's sizeof(hotbed_sharded_options); C programs
 * call hotbed_sharded_options_init(), which passes it. */
HOTBED_API void hotbed_sharded_options_init_sized(hotbed_sharded_options *options, size_t size);

static inline void hotbed_sharded_options_init(hotbed_sharded_options *options) {
    hotbed_sharded_options_init_sized(options, sizeof *options);
}

/* Create this rank's part of a collection on the backend and device of `stream`. Synchronous: all
 * ranks call it together, and no rank returns before all have called it. `comm` must outlive the
 * collection. *out is NULL on error.
 *
 * If one rank fails, all ranks return its status; on the others the text names the rank and the
 * cause. The communicator stays usable, unless a rank has no memory for this exchange. A rank that
 * passes NULL for comm, stream or out, or a stream that `comm` does not accept or that records a
 * graph, takes no part: the others wait until the deadline.
 *
 * Errors: ARGUMENT (the field and its value; an option that differs between two ranks, with both
 * values), as hotbed_storage_create(); UNSUPPORTED (STATIC tables of several ranks over an external
 * store); STATE (the stream records a graph); COMM. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_create(
    const hotbed_sharded_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_sharded **out);

/* Free a collection. Its contexts must have been destroyed, and all its work must be complete. NULL
 * is allowed. */
HOTBED_API void hotbed_sharded_destroy(hotbed_sharded *sharded);

/* Change the sizes of contexts that are created later. No context of the collection may exist. All
 * ranks call it with equal arguments, as options of hotbed_sharded_options; nothing is sent.
 * Errors: ARGUMENT (as hotbed_sharded_create()), STATE (a context exists). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_resize(
    hotbed_sharded *sharded, uint32_t max_batch_size, uint64_t max_keys, uint64_t capacity);

/* Create a context for n collections of one communicator, whose key exchanges travel together
 * (TorchRec's create_context and its fused splits). Synchronous: all ranks call it together, and no
 * rank returns before all have called it.
 *
 *   collections  [n] in   of one plan and one overflow policy; n is 1 .. 64; the same collections, in
 *                         the same order, on all ranks
 *
 * The ranks compare their collections by the order in which these were created. If they differ, or
 * if a rank's arguments are invalid, all ranks return ARGUMENT; the text names a rank and, for
 * collections that differ, both values. A rank that passes no collection, NULL for the first one,
 * for stream or for out, or a stream that the communicator does not accept or that records a graph,
 * takes no part: the others wait until the deadline.
 *
 * Errors: ARGUMENT, MEMORY, STATE, COMM, UNSUPPORTED (ONE_SIDED without windows), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_create_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_stream *stream,
    hotbed_sharded_context **out);

/* Wait for the streams of the context's last calls, which must still exist, release its rows,
 * and free it. With ONE_SIDED every rank must have passed the context's last exchange. NULL is
 * allowed. */
HOTBED_API void hotbed_sharded_context_destroy(hotbed_sharded_context *context);

/* Return the bytes of memory that a context has allocated on this rank: keys, messages, rows and
 * gradients of a batch, and its tickets. The first batch that is sent again may add to them. 0 for NULL. */
HOTBED_API uint64_t hotbed_sharded_context_bytes(const hotbed_sharded_context *context);

/* --- a batch, stage by stage ------------------------------------------------------------------ */
/* `number` is the number of a collection in the context. Errors of all functions: ARGUMENT, STATE
 * (the previous stage is missing), COMM (the communicator failed), MEMORY, DEVICE. */

/* Start the exchange of keys. Asynchronous.
 *
 *   kjts  [n] in  one per collection. Their arrays must not change until the context's update,
 *                 cancel or next input_dist has been passed; names and strides are read during the
 *                 call only. Features are found by name, or by number if the batch has no names;
 *                 other features are ignored.
 *
 * Other errors: ARGUMENT (a feature is missing, or has more samples or keys than the options allow;
 * the kjts have different sizes).
 * Faults: RANGE (invalid lengths or offsets: this rank's batch then counts as empty). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_input_dist(
    hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_stream *stream);

/* Wait for the sizes of the key exchange (the first await). Asynchronous, except with TWO_PHASE: it
 * waits on the host for the sizes, then enqueues the exchange of lengths, keys and weights. With
 * the other plans it does nothing. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_wait_splits(hotbed_sharded_context *context, hotbed_stream *stream);

/* Combine the received keys into one batch (the second await). Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_wait_input(hotbed_sharded_context *context, hotbed_stream *stream);

/* Find or insert the received keys, and pin their rows. Asynchronous, except after an overflow (see
 * the top of this file). If a table grows, the call allocates memory, but does not wait.
 * Other errors: STATE (the collection is in eval mode); MEMORY (a table could not grow, and nothing
 * has been prefetched; a second call continues with the table's present capacity). Faults: as
 * hotbed_storage_prefetch(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_prefetch(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Read the rows. If they have not been prefetched, prefetch them first; in eval mode, find them
 * without inserting. With ONE_SIDED the rows or sums are written into the memory of the ranks that
 * requested them, so this call is then the exchange, and output_dist does nothing.
 * Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_compute(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Start to send the rows to the ranks that requested them. Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_output_dist(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Await the rows. Asynchronous.
 *
 *   output  out  pooling NONE: [num_keys of the kjt, stride], row i belongs to keys[i]; rows of
 *                features that are not in the collection are not written
 *                SUM, MEAN: [batch_size of the kjt, stride], the columns of the features in order,
 *                as many for each as its table's dim
 *   stride  in   elements from one row to the next; 0: the smallest possible, dim or
 *                hotbed_sharded_columns()
 *
 * A batch whose overflow was reported gives zeros. With large_overflows, a rank whose batch is over the
 * sizes keeps what `output` had: hotbed_sharded_overflowed() says that the batch is to be sent again. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_wait_output(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Call hotbed_sharded_compute(), hotbed_sharded_output_dist() and hotbed_sharded_wait_output().
 * Asynchronous. With one rank the rows are read straight into `output`, where the calls one by one
 * copy them. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Start to send gradients to the owners. Asynchronous. `gradient` has the output's shape, and may
 * be freed or changed once the stream has passed the call. Each element is clamped to
 * optimizer.max_gradient, then duplicates are summed, then the sums are scaled. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* Await the gradients, apply the optimizer, and unpin the rows. Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_update(hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream);

/* Call hotbed_sharded_backward_dist(), then hotbed_sharded_update(). Asynchronous. With one rank
 * the optimizer reads `gradient` itself, where the calls one by one copy the sums. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* Cancel a batch: release its rows. Asynchronous. Not a collective operation by itself, but all
 * ranks must cancel the same batch. Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_cancel(hotbed_sharded_context *context, hotbed_stream *stream);

/* Return whether the batch overflowed. Waits if its keys have not arrived yet, which counts as a
 * host wait: enqueue the batch's other stages first. After a replay: true. Errors: ARGUMENT, STATE (before
 * wait_input), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_overflowed(hotbed_sharded_context *context, bool *out);

/* --- forward as one call ---------------------------------------------------------------------- */

/* Perform all stages from input_dist to wait_output, for a context of one collection. Asynchronous,
 * except for the wait of hotbed_sharded_wait_splits(). `output` and `stride` as in
 * hotbed_sharded_wait_output(). Errors: ARGUMENT (a context of several collections), the stages'
 * errors. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_forward(
    hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt, void *output,
    uint64_t stride, hotbed_stream *stream);

/* --- properties ------------------------------------------------------------------------------- */

/* Choose training (the initial mode) or eval, which neither inserts keys nor changes rows; passed
 * on to all lookups. Applies to batches that are started later. Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_set_training(hotbed_sharded *sharded, bool training);
HOTBED_API bool hotbed_sharded_training(const hotbed_sharded *sharded); /* the mode */

/* Poll this rank's tables that grow. Prefetch polls by itself; this function is for steps in
 * graphs, which do not poll. The caller orders it like a prefetch. Never waits, and is not
 * collective.
 *
 *   grown  out  number of tables that have grown in this call, also if it fails; may be NULL
 *
 * Errors: as hotbed_storage_poll_growth(). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_poll_growth(hotbed_sharded *sharded, hotbed_stream *stream, uint32_t *grown);

/* Set the learning rate of all lookups for later updates on `stream`. Tables that have an optimizer of
 * their own (hotbed_table_options.optimizer) keep their rates. Asynchronous.
 * Errors: ARGUMENT (not finite). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_set_learning_rate(
    hotbed_sharded *sharded, float learning_rate, hotbed_stream *stream);

/* Set the learning rate of a table that has an optimizer of its own, as
 * hotbed_storage_set_table_learning_rate() does. Tables whose max_gradient differs are in different
 * lookups. Asynchronous.
 * Errors: ARGUMENT (table number; not finite; the table has no optimizer of its own). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_set_table_learning_rate(
    hotbed_sharded *sharded, uint32_t table, float learning_rate, hotbed_stream *stream);

/* Return the number of lookups, or a lookup (TorchRec's _lookups). Lookups are borrowed, and have
 * this rank's rows. */
HOTBED_API uint32_t hotbed_sharded_num_lookups(const hotbed_sharded *sharded);
HOTBED_API hotbed_storage *hotbed_sharded_lookup(const hotbed_sharded *sharded, uint32_t lookup);

/* Return the number of output columns: the sum of the features' dims. For SUM and MEAN. */
HOTBED_API uint64_t hotbed_sharded_columns(const hotbed_sharded *sharded);

/* One table (TorchRec's named_parameters_by_table). This rank's part is table number `table` of
 * `lookup`; hotbed_storage_table() of these returns the address of its rows, in the memory that
 * forward and backward use. */
typedef struct hotbed_sharded_table {
    uint32_t size;    /* set by the caller: sizeof(hotbed_sharded_table) */
    const char *name; /* valid while the collection is */
    /* Over all ranks, as given; hotbed_storage_table() reports this rank's capacity. */
    uint64_t capacity;
    uint64_t max_capacity; /* over all ranks; `capacity` if the table does not grow */
    hotbed_route route;
    /* What was chosen for a pooled table of several ranks: ROWS or SUMS; AUTO for all others. */
    hotbed_pooled_exchange exchange;
    bool local_ids; /* the lookup stores hotbed_route_local() of keys: STATIC tables */
    uint32_t lookup, table;
} hotbed_sharded_table;

/* Read the properties of a table. Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_table_read(const hotbed_sharded *sharded, uint32_t table, hotbed_sharded_table *out);

/* What a rank has exchanged with the others, in bytes. All are counted where the numbers are known,
 * so batches of recorded graphs are counted too, and nothing waits. A message of fixed size counts
 * whole, used or not. Not counted: sizes, barriers, and what stays on the rank; with one rank all
 * fields are 0. */
typedef struct hotbed_exchange_stats {
    uint32_t size;                     /* set by the caller: sizeof(hotbed_exchange_stats) */
    uint64_t batches;                  /* batches whose keys arrived */
    uint64_t overflows;                /* batches that overflowed, replayed or reported */
    uint64_t keys_sent, keys_received; /* with their lengths, weights and counts */
    uint64_t rows_sent, rows_received; /* rows, or sums of bags */
    uint64_t gradients_sent, gradients_received;
} hotbed_exchange_stats;

/* Read the counts since the collection was created. Synchronous: waits for `stream`, on which, or
 * before which, the counted work was enqueued.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_stats(
    const hotbed_sharded *sharded, hotbed_exchange_stats *out, hotbed_stream *stream);

/* Return how many batches of a context in a row, up to the last one whose keys arrived, have
 * overflowed. Each was replayed, which is slow, or was empty: set a larger capacity. Never waits:
 * for loops that launch graphs, which do not see overflows otherwise. Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_repeated_overflows(const hotbed_sharded_context *context, uint32_t *out);

/* Describe the collection as text: lookups, tables, dists. Never waits.
 *
 *   text      out  truncated to fit, always terminated by 0; NULL with capacity 0 to ask for the
 *                  length
 *   capacity  in   size of `text` in bytes
 *   length    out  length of the whole text in bytes, without the 0; may be NULL
 *
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_sharded_print(const hotbed_sharded *sharded, char *text, size_t capacity, size_t *length);

HOTBED_END_DECLS
#endif
