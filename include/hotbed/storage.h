/* hotbed/storage.h - a fused group of embedding tables: prefetch, forward, backward.
 *
 * A storage holds one or more tables.  A *table* maps 64-bit keys to rows; a *row* is an embedding of
 * `dim` elements and its optimiser state; a *slot* is the place of a row, and does not change while the
 * key is in the table.  A *feature* is one categorical input and reads one table (several features may
 * share a table).  A *batch* has, for each feature and sample, a *bag* of keys.
 *
 * A training step is three calls on a *ticket*, which carries the step's state:
 *   hotbed_storage_prefetch   dedup the keys, find or insert each unique key, pin its row
 *   hotbed_storage_forward    read the rows, pool the bags
 *   hotbed_storage_backward   sum the gradients of each row, apply the optimiser, unpin
 * or, for the last one, two: hotbed_storage_reduce and hotbed_storage_apply.
 * Any number of tickets may be in flight (255 a storage); a pinned row is never evicted.  Evaluation is
 * one call, hotbed_storage_eval(), which changes nothing.
 *
 * All these calls are async, allocate nothing, never wait, and can be recorded into a hotbed_graph and
 * launched again with other keys in the same buffers.  One storage is used from several streams if the
 * caller orders, with events, prefetches among themselves, and forwards and backwards among themselves and
 * after their own prefetch; a prefetch may overlap another ticket's forward and backward.  Calls that set
 * or remove rows overlap nothing.  Arrays are device memory of the storage's backend unless said otherwise.
 *
 * Faults (a full table, a key outside of a static table) are found by kernels: the affected key gets a
 * defined row and trains nothing, the other keys are served, and the stream's next hotbed_stream_sync()
 * returns FULL or RANGE with table and key, or what hotbed_check says.  The storage stays usable.
 *
 * Sums run in a fixed order, so two runs, both backends and any prefetch depth give the same bytes:
 * see hotbed_storage_backward().  Ideas: FBGEMM's table-batched embeddings (fusion, fused backward),
 * dynamicemb (hash tables that grow by key, prefetch state, counters), HierarchicalKV (scored buckets).
 */
#ifndef HOTBED_STORAGE_H
#define HOTBED_STORAGE_H

#include "hotbed/external.h"
#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_storage hotbed_storage; /* opaque; owned by the caller */
typedef struct hotbed_ticket hotbed_ticket;   /* opaque; owned by the caller */

typedef enum hotbed_table_kind {
    HOTBED_TABLE_HASH = 0, /* any key; rows are made when a key is first seen */
    HOTBED_TABLE_STATIC =
        1, /* keys are 0 .. capacity-1 and all rows exist, as in nn.EmbeddingBag */
} hotbed_table_kind;

/* What the score of a key is.  Training gives each key of a batch a score at prefetch; a table that evicts
 * gives up its lowest scores first.  Every strategy works without eviction too: the table then keeps all
 * its keys and the scores are what export shows. */
typedef enum hotbed_score_strategy {
    HOTBED_SCORE_STEP = 0,      /* number of the last prefetch that had the key */
    HOTBED_SCORE_TIMESTAMP = 1, /* LRU: when that was, in microseconds since the storage's first
                                 * prefetch; one time a batch, later than the batch before and than
                                 * every score that hotbed_storage_set_rows() has set */
    HOTBED_SCORE_LFU = 2,       /* occurrences so far, counted exactly, up to 2^52 - 1 */
    HOTBED_SCORE_CUSTOM = 3,    /* as hotbed_storage_set_score() says */
    /* dynamicemb's pair: the score is LFU's, and beside it a key has the time of TIMESTAMP, in
     * hotbed_rows.times.  The lowest count goes first, and of equal counts the one seen longest ago.  8
     * more bytes a slot. */
    HOTBED_SCORE_TIMESTAMP_LFU = 4,
} hotbed_score_strategy;

/* Where a new key stands in the order of eviction.  Its score is the same either way. */
typedef enum hotbed_insertion {
    /* PROBATION where rows move between tiers, since the order of the upper one says which rows are near, and none is
     * lost by it: HASH in mode CACHE, in DEFAULT by score, and over an external store.  PLAIN elsewhere. */
    HOTBED_INSERT_AUTO = 0,
    /* Where its score puts it. */
    HOTBED_INSERT_PLAIN = 1,
    /* Before all that have been seen again, until a later batch has it; equal to others in its place.  A cycle
     * of more keys than fit then keeps some instead of none. */
    HOTBED_INSERT_PROBATION = 2,
} hotbed_insertion;

/* Which keys that a batch has and the table does not get a row.  A key that is rejected has no slot: it
 * reads as its initial row, the same each time, trains nothing, and is no fault.  Counts are exact while
 * the counter has room. */
typedef enum hotbed_admission {
    HOTBED_ADMIT_ALL = 0,
    HOTBED_ADMIT_FREQUENCY = 1,     /* those seen admission_threshold times, this batch included */
    HOTBED_ADMIT_PROBABILISTIC = 2, /* a share of admission_probability of them, drawn anew in each
                                     * batch from (seed, table, key, number of the prefetch) */
} hotbed_admission;

/* What keys in batches lead to that get no slot because a table is full or their number is not in it.
 * They are counted in hotbed_table_stats.refused whatever is chosen here (by eval: not).  Offsets that
 * cannot be, and rows that hotbed_storage_set_rows() has no room for, are faults always. */
typedef enum hotbed_check {
    HOTBED_CHECK_ERROR = 0,  /* a fault FULL or RANGE */
    HOTBED_CHECK_WARN = 1,   /* a text for hotbed_storage_warning() */
    HOTBED_CHECK_IGNORE = 2, /* nothing else */
} hotbed_check;

/* Where rows live.  dynamicemb's StorageMode.  The *upper tier* is device memory, the *lower tier* host memory
 * (hotbed_storage_options.lower_memory).  A row's bytes do not depend on the mode.
 *
 * Both tiers have an index, of 16 bytes a slot (TIMESTAMP_LFU: 24), in device memory; that of the lower tier, which
 * is the larger, may be in host memory instead (hotbed_storage_options.lower_index_memory).  hbm_bytes is a budget
 * for rows: no index counts against it, wherever it is, and the mode that is chosen is the same.
 *
 * With CACHE and DEFAULT a prefetch brings the batch's rows up, and takes down the rows with the lowest scores
 * of those that nobody has pinned: with CACHE only if they were changed.  Where all rows that could make room
 * are pinned, a row is used where it is (hotbed_table_stats.in_place): pins refuse no key.
 *
 * CACHE over an *external store* (hotbed_storage_options.external) has no lower tier: the store is the home of
 * every row, by number of the table and key.  What it has is served: a store that is closed and opened again goes on
 * with the rows that it was given, hotbed_storage_set_state() with the step counters.
 *
 *   - A row in the store is that of hotbed_table_info: the embedding, each state at its state_offset, row_bytes in
 *     all; in TIMESTAMP_LFU tables the last 16 bytes are the time, as a uint64, and 8 zeros.  Beside it is its score.
 *     A row of a STATIC table that the store does not have is as new.
 *   - A row is written back when it, or its score, is not what the store has: a row that was prefetched is.
 *   - The store keeps all keys: capacity refuses none and evict is NEVER.  A prefetch needs a slot in the upper
 *     tier for each unique key: one for which all are pinned is refused, with the fault FULL.
 *   - Every prefetch, eval and call on rows asks the store, in stream order: the stream waits for the store, its
 *     caller does not.  hotbed_external_stats counts these waits; hotbed_stream_stats has none.
 *   - When the store fails, that is a fault of the stream, whatever hotbed_check says, and hotbed_external_failure()
 *     has the store's words.  Keys that could not be looked up are refused for the batch.  A row that could not be
 *     written keeps its slot in the upper tier, and the key that was to get it is refused; nothing is lost, and the
 *     next step works when the store does.
 *   - Two storages must not share a store's tables, nor may they be changed behind the storage's back. */
typedef enum hotbed_mode {
    HOTBED_MODE_AUTO =
        0, /* CACHE over an external store; HBM_DIRECT when all rows fit into hbm_bytes, else CACHE if `caching` is
                           * set, else DEFAULT */
    HOTBED_MODE_HBM_DIRECT = 1, /* all rows in the upper tier */
    HOTBED_MODE_CACHE =
        2, /* every row has its place in the lower tier or an external store, the upper
                                 * has copies of upper_capacity of them; see hotbed_storage_flush() */
    HOTBED_MODE_DEFAULT = 3, /* each row is in one tier, by `placement` */
} hotbed_mode;

/* In which tier a row is, with DEFAULT. */
typedef enum hotbed_placement {
    HOTBED_PLACE_BY_SCORE = 0, /* rows in use come up, those with the lowest scores go down */
    HOTBED_PLACE_BY_HASH = 1, /* by the key alone; rows do not move, and those of the lower tier are
                                * read and updated there */
} hotbed_placement;

/* One table.  Call hotbed_table_options_init(), then set fields; 0 is every other field's default.
 * Fields are only ever appended; `size` says which of them the caller knows. */
typedef struct hotbed_table_options {
    uint32_t size;     /* set by init */
    uint32_t dim;      /* elements of an embedding, 1 .. 4096; required */
    const char *name;  /* unique in the storage, [A-Za-z0-9_.-]{1,63}; copied; required */
    uint64_t capacity; /* HASH: keys that are stored before one is refused or evicted; STATIC:
                        * number of rows; 1 .. 2^35; required */
    hotbed_table_kind kind;
    hotbed_dtype dtype; /* of the embedding; 0 is F32 */
    hotbed_evict evict; /* HASH only; NEVER: a key refused is a fault FULL, see hotbed_check */
    hotbed_initializer initializer;      /* of a new row's embedding */
    hotbed_initializer eval_initializer; /* row of a missing key in eval; CONSTANT only */
    hotbed_score_strategy score;         /* HASH only */
    hotbed_insertion insertion;          /* HASH only; 0 is AUTO */
    hotbed_admission admission;          /* HASH only */
    float admission_probability;         /* PROBABILISTIC: in (0, 1] */
    float growth_load;                   /* of max_capacity: share of its capacity from which
                        * hotbed_storage_poll_growth() grows it, in (0, 1]; 0: 0.9 */
    uint64_t admission_threshold;        /* FREQUENCY: 1 .. 2^52 - 1 */
    uint64_t admission_capacity; /* FREQUENCY: keys that are counted before the lowest count is
                                  * forgotten; 16 bytes each; 0: capacity; at most 2^35 */
    uint64_t upper_capacity; /* CACHE, DEFAULT: of the table's keys, those in the upper tier; 0: the
                                  * table's share of hbm_bytes, by bytes of rows, but 16 rows at least */
    uint64_t
        max_capacity; /* HASH: `capacity` is what the table begins with, and this is what it may
                            * grow to, see hotbed/growth.h; 0: it does not grow */
} hotbed_table_options;

static inline void hotbed_table_options_init(hotbed_table_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

enum { HOTBED_MOVE_SMS_MOST = 64 };

/* A storage.  Call hotbed_storage_options_init(), then set fields. */
typedef struct hotbed_storage_options {
    uint32_t size;                      /* set by init */
    uint32_t num_tables;                /* 1 .. 65535; required */
    const hotbed_table_options *tables; /* [num_tables]; copied; required */
    uint32_t num_features;              /* 0: one feature a table, in table order */
    const uint32_t *feature_tables;     /* [num_features] table of each feature, ascending */
    hotbed_key_type key_type;           /* 0 is I64 */
    hotbed_pooling pooling;             /* 0 is NONE */
    hotbed_dtype output_dtype;          /* of outputs and gradients; 0 is F32 */
    hotbed_optimizer optimizer;         /* kind 0: a storage for lookup only, backward is STATE */
    uint64_t seed;                      /* of the initialisers */
    hotbed_mode mode;
    uint64_t hbm_bytes; /* budget for rows in device memory, not for indexes; 0 is no limit */
    hotbed_check check; /* 0 is ERROR */
    bool caching;       /* AUTO: CACHE instead of DEFAULT */
    hotbed_placement placement; /* DEFAULT; 0 is BY_SCORE */
    hotbed_memory_kind
        lower_memory;            /* of the lower tier; 0 is PINNED, the only one for CUDA; PAGEABLE
                                      * and FILE for the host backend */
    const char *lower_directory; /* FILE: where; NULL as in hotbed_memory_alloc(); not kept */
    hotbed_external
        *external; /* CACHE: the home of all rows, instead of a lower tier; outlives the storage;
                                    * see hotbed_storage_external_tables() */
    /* Of the lower tier's index, with what it grows; 0 is DEVICE.  PINNED: kernels search and change it over the
     * link, which is slower for each key that the upper tier lacks, and leaves its bytes
     * (hotbed_table_info.lower_index_bytes, less 64 a table) of device memory to others.  PAGEABLE and FILE for the
     * host backend.  What is found, and a row's bytes, do not depend on it.  Without a lower tier it has no meaning. */
    hotbed_memory_kind lower_index_memory;
    /* How many of a GPU's SMs take rows between the tiers, at most HOTBED_MOVE_SMS_MOST; 0: as many as fill the link
     * (8 of a Hopper, 12 of others).  With fewer a prefetch takes longer and leaves more of the GPU to what runs
     * beside it: better behind a dense model that is long enough, worse before one that waits for the rows. */
    uint32_t move_sms;
} hotbed_storage_options;

static inline void hotbed_storage_options_init(hotbed_storage_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    hotbed_optimizer_init(&options->optimizer);
}

/* The tables of a store for a storage with these options, whose `external` is not looked at: name and bytes of a
 * row.
 *   tables  out  [num_tables]; names are those of the options
 * Errors: ARGUMENT (as hotbed_storage_create()). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_external_tables(
    const hotbed_storage_options *options, hotbed_external_table *tables);

/* Create a storage on the backend and device of `stream`.  Synchronous; rows of static tables are
 * initialised.  *out is NULL on error.
 * Errors: ARGUMENT (the field and its value; CACHE or DEFAULT of a table without upper_capacity and without
 * hbm_bytes; an external store whose tables are not those of hotbed_storage_external_tables(), beside a lower tier
 * or mode that is not CACHE, or with tables that evict), MEMORY (the table, tier and bytes), IO (FILE), UNSUPPORTED
 * (lower_memory, lower_index_memory), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_create(
    const hotbed_storage_options *options, hotbed_stream *stream, hotbed_storage **out);

/* Free the storage.  The caller has destroyed its tickets, and all work that uses it is done.
 * NULL is allowed. */
HOTBED_API void hotbed_storage_destroy(hotbed_storage *storage);

/* --- the training step ---------------------------------------------------------------------- */

/* The keys of a batch, feature-major: bag b = feature * batch_size + sample.  TorchRec's KJT with
 * `keys` for its values. */
typedef struct hotbed_batch {
    uint32_t size;       /* sizeof(hotbed_batch), set by init */
    uint32_t batch_size; /* samples a feature; 0 is an empty batch */
    uint64_t num_keys;   /* length of `keys`: a bound, the number is offsets[last] */
    const void *keys;    /* [num_keys] int64 or uint64, device */
    const int64_t
        *offsets;         /* [num_features * batch_size + 1] device; bag b is keys[offsets[b]] up to
                             * keys[offsets[b+1]], offsets[0] = 0, never descending.
                             * NULL: every bag has one key, num_keys = num_features * batch_size */
    const float *weights; /* [num_keys] device, per-sample weights of SUM and MEAN; NULL is 1 */
    /* [num_keys] device, how many occurrences each key stands for in scores (LFU, TIMESTAMP_LFU) and admission
     * (FREQUENCY): for keys that were deduplicated before.  0: read and trained, not counted.  Nothing else
     * looks at it: not gradients, pooling, statistics, eval.  NULL is 1. */
    const uint32_t *counts;
} hotbed_batch;

static inline void hotbed_batch_init(hotbed_batch *batch) {
    memset(batch, 0, sizeof *batch);
    batch->size = sizeof *batch;
}

/* Create a ticket for batches of up to `max_keys` keys (1 to 2^30) and `max_batch_size` samples a
 * feature, with all the memory that its steps need; over an external store that is pinned memory for twice
 * max_keys of the longest rows, too.  Synchronous.
 * Errors: ARGUMENT (features * samples over 2^30 too), MEMORY, STATE (255 tickets exist; the stream records
 * a graph), and what hotbed_external_request_create() returns. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_ticket_create(
    hotbed_storage *storage, uint64_t max_keys, uint32_t max_batch_size, hotbed_stream *stream,
    hotbed_ticket **out);

/* Release the ticket's pins on the stream of its last call, which still exists, wait for that stream,
 * and free the ticket.  NULL is allowed. */
HOTBED_API void hotbed_ticket_destroy(hotbed_ticket *ticket);

/* Dedup the batch's keys a table, find or insert each unique key that is admitted, initialise new rows,
 * set scores, and pin the rows.  The ticket then holds the batch; pins that it still held are released
 * first.  Async.
 * The batch's arrays must stay valid and unchanged until the ticket's backward, cancel or next prefetch
 * is passed by the stream.
 * Errors: ARGUMENT (NULL, sizes over the ticket's, num_keys without offsets not features * samples).
 * Faults: FULL, RANGE (key outside of a static table; bad offsets), an external store's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_prefetch(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket,
    hotbed_stream *stream);

/* Read the rows of a prefetched ticket.  Async.
 *
 *   output  out  pooling NONE: [num_keys, stride], row i is the embedding of keys[i]
 *                SUM, MEAN:    [batch_size, stride], feature f from column hotbed_storage_column(f);
 *                of the storage's output_dtype
 *   stride  in   elements from one row of output to the next; 0 is the least: the largest dim (NONE),
 *                hotbed_storage_columns() (SUM, MEAN)
 *
 * A key that got no slot reads as its initial row.  A sum of a bag is taken in bag order.
 * Without backward: hotbed_ticket_cancel(), or just prefetch the ticket again.
 * Errors: ARGUMENT (NULL, stride below the least), STATE (the ticket is not prefetched). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_forward(
    hotbed_storage *storage, hotbed_ticket *ticket, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Sum the gradients of each unique row, apply the optimiser to it, and unpin.  Async.  The ticket is
 * then empty.
 *
 *   gradient  in  shape, type and stride rules as the output's
 *
 * Order of a row's sum: its occurrences by position in the batch, in groups of 32 added one after the
 * other from zero; the groups' sums, in groups of 32 likewise; and so on.  What a key of a bag takes of a mean's
 * gradient is g * (1 / keys of the bag), then times its weight.
 * Errors: ARGUMENT, STATE (not prefetched; a storage without optimiser). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_backward(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* The first half of hotbed_storage_backward(): only the sums, of each unique key.  Async.  The ticket stays
 * prefetched, its rows pinned and unchanged, so this can be called again with other gradients of the same
 * batch: gradient accumulation.
 *
 *   gradient          in   as of backward
 *   add               in   false: write the sums; true: add them, in f32, to what unique_gradients holds
 *   unique_gradients  out  f32 [num_keys, largest dim]: row u is of unique_keys[u] of the ticket (also of a
 *                          key that got no slot), its first dim elements are written.  Rows and elements
 *                          beyond are left as they are
 *
 * The sums are those of backward, in its order; max_gradient clamps here.  Ordered by the caller as a
 * forward is.
 * Errors: ARGUMENT, STATE (not prefetched; a storage without optimiser). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_reduce(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride, bool add,
    float *unique_gradients, hotbed_stream *stream);

/* The second half of hotbed_storage_backward(): count an optimiser step, apply it to the ticket's rows, and
 * unpin.  Async.  The ticket is then empty.  hotbed_storage_reduce() and this one give the bytes of backward.
 *
 *   unique_gradients  in  as hotbed_storage_reduce() writes them, perhaps changed since; not clamped
 *
 * Errors: ARGUMENT, STATE (not prefetched; a storage without optimiser). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_apply(
    hotbed_storage *storage, hotbed_ticket *ticket, const float *unique_gradients,
    hotbed_stream *stream);

/* Unpin the rows of a prefetched ticket, which is then empty.  Async.  An empty ticket is left as it is.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_cancel(hotbed_ticket *ticket, hotbed_stream *stream);

/* Keep the rows of a prefetched ticket pinned beyond its backward or cancel, until it is forgotten, prefetched
 * again or destroyed, so that its batch can be taken again: what a shortcut of a pipeline replays.  Counts as one more
 * of the storage's tickets meanwhile.  A ticket that is kept is left as it is.  Async.
 * Errors: ARGUMENT, STATE (the ticket is not prefetched; 255 tickets exist), UNSUPPORTED (over an external store,
 * whose rows leave with their backward). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_keep(hotbed_ticket *ticket, hotbed_stream *stream);

/* Take the batch of a kept ticket again: the ticket is as after its prefetch, but nothing was looked up, counted or
 * scored.  The batch's arrays are as they were then.  A ticket that still holds its batch is left as it is.  Async.
 * Errors: ARGUMENT, STATE (the ticket is not kept). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_retake(hotbed_ticket *ticket, hotbed_stream *stream);

/* Unpin what is kept; a batch that the ticket holds stays.  Async.  A ticket that is not kept is left as it is.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_forget(hotbed_ticket *ticket, hotbed_stream *stream);

/* Output rows of a batch as forward would give them, for evaluation: nothing is inserted, no score, pin
 * or state changes, a missing key reads as the table's eval_initializer.  Async.  It may run beside
 * training on another stream: rows that are being updated then read as old or new, and keys that
 * are being evicted (over an external store: that are being written back) as their row or as missing, element by
 * element.  Keys that a store could not look up read as missing.
 * With two tiers on CUDA and without pooling it takes less time where many rows are in the lower one, if the eval before
 * found many there too; bytes do not depend on it.
 * Uses the stream's workspace: the first call with a larger num_keys on a stream allocates; over an external store
 * also pinned memory for num_keys rows.
 * Errors: ARGUMENT, MEMORY, STATE (the workspace would have to grow while a graph is recorded).
 * Faults: RANGE, an external store's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_eval(
    hotbed_storage *storage, const hotbed_batch *batch, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Set the learning rate of all later backwards and applies on `stream`.  Async.
 * Errors: ARGUMENT (not finite). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_learning_rate(
    hotbed_storage *storage, float learning_rate, hotbed_stream *stream);

/* Set the score that keys of a CUSTOM table get in all later prefetches on `stream`; it is 1 at first.
 * Async.  Errors: ARGUMENT (the table is not CUSTOM; value not in [1, 2^52 - 1]). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_score(
    hotbed_storage *storage, uint32_t table, uint64_t value, hotbed_stream *stream);

/* --- what a ticket holds --------------------------------------------------------------------- */

/* Device arrays of a prefetched ticket (dynamicemb's PrefetchState), valid until its next prefetch.  The
 * counts are in device memory: the host does not know them. */
typedef struct hotbed_ticket_view {
    const uint64_t *unique_keys;    /* [unique_offsets[T]] a table, in order of first occurrence */
    const uint32_t *inverse;        /* [num_keys] position of each key in unique_keys */
    const uint32_t *unique_offsets; /* [num_tables + 1] uniques of table t: [t] up to [t + 1] */
    const uint64_t *slots;          /* slot of each unique key, or HOTBED_SLOT_NONE: refused, or not
                                     * admitted */
    const uint64_t *counts; /* occurrences of each unique key: the sum of its hotbed_batch.counts */
} hotbed_ticket_view;

/* Errors: ARGUMENT (NULL), STATE (the ticket is not prefetched). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_read(const hotbed_ticket *ticket, hotbed_ticket_view *out);

/* --- rows by key ------------------------------------------------------------------------------
 * Over an external store rows go to and from it, those of the upper tier excepted, in batches of 32 MiB.  The first
 * call on a stream with more rows then allocates: MEMORY; STATE (while a graph is recorded).  A batch of the call that
 * the store failed is left out, with the store's fault; synchronous calls return it.
 */

/* Copy out the rows of n keys of table number `table`, without changing anything.  Async.
 *
 *   keys   in   [n], duplicates allowed
 *   rows   out  what is wanted; rows of missing keys are left as they are; NULL: only `found` is
 *   found  out  [n] 1 or 0; HOTBED_EXTERNAL_UNKNOWN where an external store failed; may be NULL
 *
 * Errors: ARGUMENT (NULL, table number, a state or times that the table does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_get_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    uint8_t *found, hotbed_stream *stream);

/* Insert or overwrite the rows of n distinct keys, admitted or not.  Async.  A part that is NULL, or
 * `rows` itself, keeps its value, or gets its initial value when the key is new: as score, what the last
 * prefetch would have given it, or 1 in LFU and TIMESTAMP_LFU tables; times likewise.
 * Errors: ARGUMENT.  Faults: FULL, RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream);

/* Remove n keys from a HASH table; absent and pinned keys are left.  Async.
 *   erased  out  [n] 1 or 0; HOTBED_EXTERNAL_UNKNOWN where an external store failed; may be NULL
 * Errors: ARGUMENT (a STATIC table too). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_erase(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, uint8_t *erased,
    hotbed_stream *stream);

/* Remove all keys of table `table`, pinned ones too, and what admission has counted (STATIC: set all rows
 * to their initial value).  An external store is emptied first: after its error some of its rows are gone.
 * Synchronous.  Errors: ARGUMENT, STATE (tickets hold pins; the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_clear(hotbed_storage *storage, uint32_t table, hotbed_stream *stream);

/* All keys of a table, in no particular order, into *host* arrays.  Synchronous.
 *
 *   capacity  in   length of keys and scores
 *   keys      out  may be NULL to ask for the number only
 *   scores    out  may be NULL
 *   n         out  number of keys in the table
 *
 * Errors: ARGUMENT (capacity below *n, which is set), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_keys(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *scores,
    uint64_t *n, hotbed_stream *stream);

/* What admission has counted of a FREQUENCY table, as hotbed_storage_export_keys(), into *host* arrays: keys
 * that have no row yet, and how often they were seen.  *n is 0 of other tables.  Synchronous.
 * Errors: ARGUMENT (capacity below *n, which is set), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_counts(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *counts,
    uint64_t *n, hotbed_stream *stream);

/* Count n distinct keys that admission does not count yet, as often as `counts` says; a counter that is full
 * forgets low counts.  Nothing of tables that are not FREQUENCY.  Async.
 *
 *   keys, counts  in  [n] device
 *
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_import_counts(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const uint64_t *counts,
    hotbed_stream *stream);

/* --- the upper tier ----------------------------------------------------------------------------- */

/* With CACHE, write the changed rows of the upper tier, and all its scores, to the lower one; they stay in
 * the upper one too.  Nothing to do in other modes.  Ordered by the caller as a call that sets rows.  Async.
 * To an external store they go as in calls on rows, and are durable after hotbed_external_flush().
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_flush(hotbed_storage *storage, hotbed_stream *stream);

/* The same, and empty the upper tier, but for rows that an external store did not take.  Async.  Errors: ARGUMENT, STATE (tickets hold rows). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_reset(hotbed_storage *storage, hotbed_stream *stream);

/* --- state and description --------------------------------------------------------------------- */

/* What training state the storage has beside its rows; plain numbers, for checkpoints. */
typedef struct hotbed_storage_state {
    uint64_t optimizer_steps; /* backwards so far: Adam's t */
    uint64_t clock;           /* prefetches so far: the STEP score of keys seen in the last one */
    double beta1_power;       /* beta1^t and beta2^t, as running products */
    double beta2_power;
    float learning_rate;
} hotbed_storage_state;

/* Read the state, or replace it.  Synchronous.
 * Errors: ARGUMENT (a power of beta not in [0, 1], a clock over 2^52 - 1, a learning rate that is not
 * finite), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_get_state(hotbed_storage *storage, hotbed_storage_state *out, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_state(
    hotbed_storage *storage, const hotbed_storage_state *state, hotbed_stream *stream);

typedef struct hotbed_table_info {
    const char *name; /* valid while the storage is */
    uint32_t dim;
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t capacity;    /* as asked for, or grown to */
    uint64_t slots;       /* rows allocated, those of segments not among them */
    uint64_t first_slot;  /* slots of this table are [first_slot, first_slot + slots) */
    uint64_t row_bytes;   /* embedding + state + padding (+ time: TIMESTAMP_LFU, external store) */
    uint64_t index_bytes; /* HASH: 16 a slot of each tier (TIMESTAMP_LFU: 24), and 16 a place where
                           * admission counts; STATIC: 0 with HBM_DIRECT, else the same */
    void *weights; /* device address of slot first_slot's embedding; element e of slot s is at
                           * byte (s - first_slot) * row_bytes + e * element size */
    uint64_t state_offsets[2]; /* bytes from a row's start to each F32 state */
    uint64_t upper_capacity;   /* CACHE, DEFAULT: keys that the upper tier is made for; else 0 */
    uint64_t lower_slots; /* rows allocated in the lower tier; those above are the upper tier's */
    uint64_t first_lower_slot; /* HOTBED_SLOT_NONE without a lower tier */
    void *lower_weights;       /* as weights; NULL without a lower tier */
    uint64_t max_capacity;     /* `capacity` where the table does not grow */
    uint64_t segment_slots;    /* rows allocated by growth, all segments together */
    uint32_t segments;         /* that it has grown, see hotbed_storage_segment() */
    hotbed_score_strategy score;
    uint64_t
        lower_index_bytes; /* of index_bytes, those of the lower tier, what it has grown among them */
    hotbed_memory_kind lower_index_memory; /* where they are; 0 without a lower tier */
    hotbed_insertion insertion;            /* PLAIN or PROBATION, also where it was AUTO */
} hotbed_table_info;

/* Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_table(const hotbed_storage *storage, uint32_t table, hotbed_table_info *out);

/* What the storage was created with; AUTO is replaced by the mode that was chosen. */
HOTBED_API uint32_t hotbed_storage_num_tables(const hotbed_storage *storage);
HOTBED_API uint32_t hotbed_storage_num_features(const hotbed_storage *storage);
HOTBED_API hotbed_key_type hotbed_storage_key_type(const hotbed_storage *storage);
HOTBED_API const hotbed_optimizer *hotbed_storage_optimizer(const hotbed_storage *storage);
HOTBED_API uint64_t hotbed_storage_seed(const hotbed_storage *storage);
HOTBED_API hotbed_mode hotbed_storage_mode(const hotbed_storage *storage);

/* Why it has that mode, and what its indexes take beside the budget, as they have grown: "needs 412 GB, budget 40 GB,
 * caching on: CACHE; index 1.3 GB in device memory, the lower tier's 13.2 GB in pinned memory".
 *   text      out  cut to fit, always ended by 0
 *   capacity  in   bytes of text, at least 1; 256 are enough
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_explain(const hotbed_storage *storage, char *text, size_t capacity);

/* First output column of a feature, and the number of columns: sums of dims.  SUM and MEAN. */
HOTBED_API uint64_t hotbed_storage_column(const hotbed_storage *storage, uint32_t feature);
HOTBED_API uint64_t hotbed_storage_columns(const hotbed_storage *storage);

/* Number of keys in a table, and of slots that are pinned; either may be NULL.  Synchronous; an external store may
 * read all its keys for it.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_size(
    hotbed_storage *storage, uint32_t table, uint64_t *keys, uint64_t *pinned,
    hotbed_stream *stream);

/* What has happened to a table since the storage was created, occurrences counted by unique key. */
typedef struct hotbed_table_stats {
    uint64_t keys;    /* keys in training batches, duplicates included */
    uint64_t uniques; /* unique keys of those batches */
    uint64_t hits;    /* uniques that were found */
    uint64_t inserts; /* uniques that got a new row */
    uint64_t evictions;
    uint64_t refused;  /* uniques that got no slot: full, or out of range */
    uint64_t rejected; /* uniques that got no slot: not admitted */
    /* Two tiers; hits are those of both. */
    uint64_t fetches;     /* uniques whose rows came up */
    uint64_t in_place;    /* uniques whose rows were used in the lower tier though they may move */
    uint64_t write_backs; /* rows that went down, by flushes too */
    uint64_t link_read_bytes;  /* of the fetches */
    uint64_t link_write_bytes; /* of the write-backs */
} hotbed_table_stats;

/* Cumulative counts of a table as of the work that `stream` has passed.  Synchronous.
 * Errors: ARGUMENT, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_stats(
    hotbed_storage *storage, uint32_t table, hotbed_table_stats *out, hotbed_stream *stream);

/* The first key since the last call that got no slot, as text, in a storage of CHECK_WARN: table, key and
 * why, as the fault would have said.  "" when there was none, and with other checks.  Does not wait: it
 * knows of work that is done, and perhaps of more.
 *
 *   text      out  cut to fit, always ended by 0
 *   capacity  in   bytes of text, at least 1; 256 are enough
 *
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_warning(hotbed_storage *storage, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
