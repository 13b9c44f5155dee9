/* hotbed/storage.h - a group of embedding tables that are looked up and trained together.
 *
 * Experimental: hotbed_storage_external_tables(), hotbed_storage_reduce(),
 * hotbed_storage_apply(), hotbed_ticket_keep(), hotbed_ticket_retake(), hotbed_ticket_forget(),
 * hotbed_storage_set_table_learning_rate(), hotbed_storage_now(), hotbed_storage_set_score(), hotbed_ticket_read(),
 * hotbed_storage_offer_rows(), hotbed_storage_expire(), hotbed_storage_export_keys(), hotbed_storage_export_counts(),
 * hotbed_storage_import_counts(), hotbed_storage_get_state(), hotbed_storage_set_state(),
 * hotbed_storage_explain(), hotbed_storage_poll_growth(),
 * hotbed_storage_segment(). Stable: all other calls.
 *
 * For programs that train or serve embedding tables in one process. Distributed jobs use the
 * sharded collections of hotbed/sharded.h, which are built on storages.
 *
 * A *storage* holds one or more tables. A *table* maps 64-bit keys to rows. A *row* is an embedding
 * of `dim` elements followed by its optimizer state. A *slot* is the position of a row; it does not
 * change while the key is in the table, except in mode DEFAULT by score. A *feature* is one
 * categorical input and reads one table; several features may share a table. A *batch* has a *bag*
 * of keys for each feature and sample.
 *
 * A training step is three calls on a *ticket*, which carries the state of the step:
 *   hotbed_storage_prefetch   dedup the keys, find or insert each distinct key, pin its row
 *   hotbed_storage_forward    read the rows and pool the bags
 *   hotbed_storage_backward   sum the gradients of each row, apply the optimizer, unpin
 * hotbed_storage_prefetch_forward() does the first two in one call, in less time; separate calls let
 * a prefetch run ahead, beside the previous step. hotbed_storage_reduce() and
 * hotbed_storage_apply() do the work of backward in two calls.
 * hotbed_storage_eval() is the lookup for evaluation: one call, which changes nothing.
 *
 *       hotbed_table_options table = {
 *           .size = sizeof table, .name = "words", .dim = 64, .capacity = 1000000};
 *       hotbed_storage_options options;
 *       hotbed_storage_options_init(&options);
 *       options.num_tables = 1, options.tables = &table;
 *       options.optimizer.kind = HOTBED_OPT_ADAM;
 *       hotbed_storage_create(&options, stream, &storage);
 *       hotbed_ticket_create(storage, max_keys, max_batch_size, stream, &ticket);
 *       for (int step = 0; step < steps; step++) { // batch: see hotbed_batch
 *           hotbed_storage_prefetch(storage, &batch, ticket, stream);
 *           hotbed_storage_forward(storage, ticket, output, 0, stream);
 *           model(output, gradient, stream); // yours: reads output, writes gradient
 *           hotbed_storage_backward(storage, ticket, gradient, 0, stream);
 *       }
 *       hotbed_stream_sync(stream); // returns the first fault
 *
 * A storage can have 255 tickets, and any number of them may be in flight. A pinned row is never
 * evicted.
 *
 * Execution: the calls of a step and hotbed_storage_eval() are asynchronous. They never block and
 * allocate nothing, except for eval's workspace. They can be recorded into a hotbed_graph, which
 * can be launched again with other keys in the same buffers. A prefetch and its backward may be
 * recorded into two graphs; pins are taken and released by launches, not by recording. Every
 * backward that is launched must follow a prefetch of its ticket. Record all calls of a ticket or
 * none, since a direct call does not know of launches. A prefetch first releases the pins that its
 * ticket still holds. Arrays are device memory of the storage's backend unless a comment says
 * otherwise.
 *
 * Order: several streams may use one storage if the caller orders, with events, all prefetches one
 * after another, and all forwards and backwards one after another and each after its own prefetch.
 * A prefetch may overlap the forward and backward of another ticket, but must run after the
 * backward of its own ticket's previous batch. Calls that set or remove rows must not overlap any
 * other call. This loop prefetches the next batch on stream `ahead`, beside the present step on
 * `stream`:
 *
 *       // tickets[2], batches[2] with arrays of their own, and events fetched[2] and trained[2]
 *       hotbed_storage_prefetch(storage, &batches[0], tickets[0], ahead);
 *       hotbed_event_record(fetched[0], ahead);
 *       for (int step = 0; step < steps; step++) {
 *           int now = step % 2, next = 1 - now;
 *           if (step + 1 < steps) {
 *               hotbed_stream_wait(ahead, trained[next]); // the ticket's previous backward
 *               fill(&batches[next], ahead); // yours: enqueues the keys of batch step + 1
 *               hotbed_storage_prefetch(storage, &batches[next], tickets[next], ahead);
 *               hotbed_event_record(fetched[next], ahead);
 *           }
 *           hotbed_stream_wait(stream, fetched[now]);
 *           hotbed_storage_forward(storage, tickets[now], output, 0, stream);
 *           model(output, gradient, stream);
 *           hotbed_storage_backward(storage, tickets[now], gradient, 0, stream);
 *           hotbed_event_record(trained[now], stream);
 *       }
 *
 * Faults: a kernel may find that a table is full, or that a key lies outside of a static table. The
 * affected key then reads as a defined row and trains nothing, and all other keys are served. The
 * stream's next hotbed_stream_sync() returns FULL or RANGE with the table's name and the key, unless
 * hotbed_storage_options.check selects another reaction. The storage stays usable.
 *
 * Results: sums run in a fixed order, so two runs, both backends and any prefetch depth give the
 * same bytes; see hotbed_storage_backward(). This holds while no key is evicted or refused. A pinned
 * row is not evicted, so which key makes way for a new one depends on the prefetch depth, the mode,
 * and the time at which a backward on another stream unpins its rows. The same elements are NaN in
 * every case, but the sign and the payload of a computed NaN depend on the processor and on the
 * order of the operands of an instruction.
 *
 * Origins: fusion and fused backward are from FBGEMM's table-batched embeddings; hash tables that
 * grow by key, prefetch state and counters from dynamicemb; scored buckets from HierarchicalKV. */
#ifndef HOTBED_STORAGE_H
#define HOTBED_STORAGE_H

#include "hotbed/external.h"
#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_storage hotbed_storage; /* opaque; owned by the caller */
typedef struct hotbed_ticket hotbed_ticket;   /* opaque; owned by the caller */

typedef enum hotbed_table_kind {
    HOTBED_TABLE_HASH = 0, /* accepts every key; a row is created when its key is first seen */
    /* keys are 0 .. capacity-1 and all rows exist, as in nn.EmbeddingBag */
    HOTBED_TABLE_STATIC = 1,
} hotbed_table_kind;

/* The meaning of a key's score. Each prefetch gives a score to every key of its batch; a table that
 * evicts removes the keys with the lowest scores first. Every strategy also works without eviction:
 * the table then keeps all its keys, and export shows the scores. */
typedef enum hotbed_score_strategy {
    HOTBED_SCORE_STEP = 0, /* number of the last prefetch that contained the key */
    /* LRU: the time of that prefetch, in microseconds since the storage's first prefetch. All keys
     * of a batch get the same time. It is later than the time of the previous batch and than every
     * time that hotbed_storage_set_rows() has set in a table of the storage. A time of 2^52 - 1, the
     * largest, stops this clock. */
    HOTBED_SCORE_TIMESTAMP = 1,
    HOTBED_SCORE_LFU = 2,    /* occurrences so far, counted exactly, up to 2^52 - 1 */
    HOTBED_SCORE_CUSTOM = 3, /* the value set by hotbed_storage_set_score() */
    /* dynamicemb's pair: the score is LFU's count, and each key also has TIMESTAMP's time, in
     * hotbed_rows.times. The key with the lowest count is evicted first; among equal counts, the
     * key that was seen longest ago. Takes 8 more bytes per slot. */
    HOTBED_SCORE_TIMESTAMP_LFU = 4,
} hotbed_score_strategy;

/* The place of a new key in the order of eviction. Its score is the same either way. */
typedef enum hotbed_insertion {
    /* PROBATION where rows move between tiers: HASH tables in mode CACHE, in mode DEFAULT by score,
     * and over an external store. There the order of eviction only decides which rows are in the
     * upper tier, and no row is lost by it. PLAIN elsewhere. */
    HOTBED_INSERT_AUTO = 0,
    /* Its score alone decides. */
    HOTBED_INSERT_PLAIN = 1,
    /* The key is evicted before all keys that a second batch has contained, until a later batch
     * contains it. All keys on probation rank equal. A cycle through more keys than fit then keeps some of them
     * instead of none. PLAIN may fetch fewer rows where keys are fresh and their popularity changes fast. */
    HOTBED_INSERT_PROBATION = 2,
} hotbed_insertion;

/* Which new keys of a batch get a row. A rejected key has no slot: it reads as its initial row, the
 * same each time, trains nothing, and raises no fault. Counts are exact until the counter is
 * full. */
typedef enum hotbed_admission {
    HOTBED_ADMIT_ALL = 0,
    HOTBED_ADMIT_FREQUENCY = 1, /* keys seen admission_threshold times, this batch included */
    /* a random share, admission_probability, of the new keys, drawn anew in each batch from
     * (seed, table, key, number of the prefetch) */
    HOTBED_ADMIT_PROBABILISTIC = 2,
} hotbed_admission;

/* The reaction to a key of a batch that gets no slot, because its table is full or because a static
 * table has no such key. hotbed_table_stats.refused counts these keys in any case (eval does not
 * count them). Invalid offsets, and rows that find no slot in hotbed_storage_set_rows(), always
 * raise a fault, whatever this option says. */
typedef enum hotbed_check {
    HOTBED_CHECK_ERROR = 0,  /* raise the fault FULL or RANGE */
    HOTBED_CHECK_WARN = 1,   /* keep a text for hotbed_storage_warning() */
    HOTBED_CHECK_IGNORE = 2, /* do nothing else */
} hotbed_check;

/* What backward and apply do with a row whose gradient is NaN or infinite in some element: the sum
 * over its occurrences, after max_gradient. With SKIP and ERROR the row and its optimizer state stay as
 * they are, all other rows are updated, and hotbed_table_stats.nonfinite counts it; the step
 * counts. The call never waits, and rows with finite gradients get the same bytes with each value. */
typedef enum hotbed_nonfinite {
    HOTBED_NONFINITE_PASS = 0, /* update it: its elements become NaN or infinite */
    /* skip it, and keep a text for hotbed_storage_warning() */
    HOTBED_NONFINITE_SKIP = 1,
    HOTBED_NONFINITE_ERROR = 2, /* skip it, and raise the fault ARGUMENT */
} hotbed_nonfinite;

/* Where rows are stored (dynamicemb's StorageMode). The *upper tier* is device memory, the *lower
 * tier* host memory (hotbed_storage_options.lower_memory). The elements and states of a row do not
 * depend on the mode. Where rows move between tiers (CACHE, and DEFAULT by score), row_bytes is
 * rounded up to a multiple of 128, or of 64, if a row grows by at most an eighth: the link takes
 * longer for a part of a line.
 *
 * Each tier has an index of 16 bytes per slot (TIMESTAMP_LFU: 24) in device memory. The index of
 * the lower tier is the larger one and may be in host memory instead
 * (hotbed_storage_options.lower_index_memory). hbm_bytes is a budget for rows: no index counts
 * against it, wherever the index is, and the place of the index does not affect the choice of the
 * mode.
 *
 * In modes CACHE and DEFAULT, a prefetch moves the rows of the batch to the upper tier. It evicts
 * from there the rows with the lowest scores among the unpinned ones; CACHE writes an evicted row
 * back only if it has changed. If all rows that could be evicted are pinned, a row is used in the
 * lower tier (hotbed_table_stats.in_place), so pins never cause a refusal.
 *
 * CACHE over an *external store* (hotbed_storage_options.external) has no lower tier. The store
 * keeps every row, by table number and key. Rows that are already in the store are served: after
 * the store was closed and opened again, training continues with its rows, and
 * hotbed_storage_set_state() restores the step counters.
 *
 *   - A row in the store has the layout of hotbed_table_info: the embedding, each state at its
 *     state_offset, row_bytes in all. In TIMESTAMP_LFU tables the last 16 bytes are the time, as a
 *     uint64, and 8 zero bytes. The score is stored beside the row. A row of a STATIC table that
 *     the store lacks reads as a new row.
 *   - A row is written back if it or its score differs from the store's copy. This is the case for
 *     every row that was prefetched.
 *   - The store keeps all keys: capacity refuses no key, and evict is NEVER. A prefetch needs a
 *     slot in the upper tier for each distinct key, and each key has up to 64 candidate slots. A
 *     key whose candidates are all pinned, by this batch or by other tickets, is refused with the
 *     fault FULL. This can happen before the tier is full: make upper_capacity twice the number
 *     of rows that are pinned at once.
 *   - Every prefetch, eval and call on rows queries the store, in stream order. The stream waits
 *     for the store, the calling thread does not. hotbed_external_stats counts these waits;
 *     hotbed_counters.host_waits does not.
 *   - A failure of the store is a fault of the stream, whatever hotbed_check says, and
 *     hotbed_external_failure() returns the store's message. Keys that could not be looked up are
 *     refused for the batch. A row that could not be written keeps its slot in the upper tier, and
 *     the key that was to get the slot is refused. Nothing is lost, and the next step succeeds if
 *     the store works again.
 *   - Two storages must not share the tables of a store, and nothing else may change them while a
 *     storage uses them. */
typedef enum hotbed_mode {
    /* CACHE over an external store; otherwise HBM_DIRECT if all rows fit into hbm_bytes, else CACHE
     * if `caching` is set, else DEFAULT */
    HOTBED_MODE_AUTO = 0,
    HOTBED_MODE_HBM_DIRECT = 1, /* all rows are in the upper tier */
    /* every row has a backing location in the lower tier or an external store; the upper tier holds
     * copies of upper_capacity of them; see hotbed_storage_flush() */
    HOTBED_MODE_CACHE = 2,
    /* dynamicemb's DEFAULT, not the initial value of a mode, which is AUTO: each row is in one of
     * the tiers, chosen by `placement` */
    HOTBED_MODE_DEFAULT = 3,
} hotbed_mode;

/* The bytes that hotbed_storage_options.hbm_bytes counts. A hash table has spare slots, so that it can be
 * filled to its capacity: 3 % more slots than keys, rounded up to whole buckets of 16. */
typedef enum hotbed_budget {
    HOTBED_BUDGET_SLOTS = 0, /* the memory of all rows, spare slots and padding included */
    /* the rows of the keys alone, as in dynamicemb's budgets: hbm_bytes of N * row_bytes holds
     * exactly N keys, and spare slots take up to 3 % and 32 rows per table beyond the budget, and
     * the padding of rows that move between tiers up to an eighth */
    HOTBED_BUDGET_KEYS = 1,
} hotbed_budget;

/* Which tier a row is in, in mode DEFAULT. */
typedef enum hotbed_placement {
    /* rows in use are promoted, rows with the lowest scores are demoted */
    HOTBED_PLACE_BY_SCORE = 0,
    /* chosen by the key alone; rows do not move, and rows in the lower tier are read and updated
     * there */
    HOTBED_PLACE_BY_HASH = 1,
} hotbed_placement;

/* Options of one table. 0 is the default of every field but `size`. Fields are only ever appended;
 * `size` says which of them the caller knows. */
typedef struct hotbed_table_options {
    uint32_t size;    /* sizeof(hotbed_table_options) */
    uint32_t dim;     /* elements of an embedding, 1 .. 4096; required */
    const char *name; /* unique in the storage, [A-Za-z0-9_.-]{1,63}; copied; required */
    /* STATIC: number of rows. HASH: number of keys that are stored before one is refused. A table
     * that evicts searches 64 slots for a new key; with more than a few hundred keys, it may evict
     * its first key when it holds 92 to 99 % of its capacity. 1 .. 2^35; required */
    uint64_t capacity;
    hotbed_table_kind kind;
    hotbed_dtype dtype; /* of the embedding; 0 is F32 */
    /* HASH only; with NEVER, a refused key is a fault FULL, see hotbed_check */
    hotbed_evict evict;
    hotbed_initializer initializer;      /* of the embedding of a new row */
    hotbed_initializer eval_initializer; /* the row of a missing key in eval; CONSTANT only */
    hotbed_score_strategy score;         /* HASH only */
    hotbed_insertion insertion;          /* HASH only; 0 is AUTO */
    hotbed_admission admission;          /* HASH only */
    float admission_probability;         /* PROBABILISTIC: in (0, 1] */
    /* with max_capacity: the load, as a share of the present capacity, from which
     * hotbed_storage_poll_growth() grows the table; in (0, 1]; 0: 0.9 */
    float growth_load;
    uint64_t admission_threshold; /* FREQUENCY: 1 .. 2^52 - 1 */
    /* FREQUENCY: number of keys that are counted before the lowest count is forgotten; 16 bytes
     * each; 0: capacity; at most 2^35 */
    uint64_t admission_capacity;
    /* CACHE, DEFAULT: number of the table's keys that the upper tier holds; 0: the table's share of
     * hbm_bytes, in proportion to the bytes of its rows, but at least one row. More than the table's
     * largest capacity counts as that capacity. In a CACHE table that evicts, more than three
     * fifths of it counts as three fifths, because a row with a copy in the upper tier is not
     * evicted. Over an external store the limit is 2^35. hotbed_table_info.upper_capacity has the
     * number that is used */
    uint64_t upper_capacity;
    /* HASH: the table starts with `capacity` and may grow to this capacity, see
     * hotbed_storage_poll_growth(). 0: it does not grow */
    uint64_t max_capacity;
    hotbed_rounding rounding; /* of updated rows and states of types narrower than F32 */
    /* Record which rows change and which keys leave, for hotbed/changes.h, in 4 more bytes per slot, and
     * over an external store in host memory; see changed_capacity */
    bool track_changes;
    /* Parameters of this table's own; copied; NULL: those of the storage. Kind and size are the
     * storage's, and so are all parameters except learning_rate, weight_decay, l2_decay and
     * max_gradient. Tables of one optimizer that differ in these are trained by one call; on CUDA it
     * takes longer than for tables that agree, by the time that optimizers take which have no
     * kernels of their own */
    const hotbed_optimizer *optimizer;
    /* of the optimizer's states: F32 (0 is the same) or BF16. It applies to states that are as long as the
     * row, see hotbed_optimizer_state_dtype(). On CUDA, if one table of a storage has BF16 states, all its
     * tables are updated by one kernel for Adam, or by one for all other optimizers, which may take longer */
    hotbed_dtype state_dtype;
} hotbed_table_options;

enum { HOTBED_MOVE_SMS_MOST = 64 };

/* Options of a storage. Call hotbed_storage_options_init(), then set fields. */
typedef struct hotbed_storage_options {
    uint32_t size;                      /* set by init */
    uint32_t num_tables;                /* 1 .. 65535; required */
    const hotbed_table_options *tables; /* [num_tables]; copied; required */
    uint32_t num_features;              /* 0: one feature per table, in table order */
    const uint32_t *feature_tables;     /* [num_features] table of each feature, ascending */
    hotbed_key_type key_type;           /* 0 is I64 */
    hotbed_pooling pooling;             /* 0 is NONE */
    hotbed_dtype output_dtype;          /* of outputs and gradients; 0 is F32 */
    /* kind 0: a storage for lookups only; backward returns STATE */
    hotbed_optimizer optimizer;
    uint64_t seed; /* of the initializers */
    hotbed_mode mode;
    /* budget for rows in device memory, indexes not counted; 0: no limit; see `budget` */
    uint64_t hbm_bytes;
    hotbed_check check;         /* 0 is ERROR */
    bool caching;               /* AUTO: choose CACHE instead of DEFAULT */
    hotbed_placement placement; /* DEFAULT; 0 is BY_SCORE */
    /* of the lower tier's rows; 0 is PINNED, the only kind for CUDA; the host backend also accepts
     * PAGEABLE and FILE */
    hotbed_memory_kind lower_memory;
    /* FILE: directory of the file; NULL as in hotbed_memory_alloc(); not kept */
    const char *lower_directory;
    /* CACHE: the store that keeps all rows, instead of a lower tier; must outlive the storage; see
     * hotbed_storage_external_tables() */
    hotbed_external *external;
    /* Memory of the lower tier's index and of everything that growth adds to it; 0 is DEVICE. With
     * PINNED, kernels search and change the index over the link: this frees its bytes of device
     * memory (hotbed_table_info.lower_index_bytes, less 64 per table) and takes longer for each key
     * that the upper tier lacks. The host backend also accepts PAGEABLE and FILE. Neither the
     * result of a lookup nor the bytes of a row depend on it. It has no meaning without a lower
     * tier. */
    hotbed_memory_kind lower_index_memory;
    /* Number of a GPU's SMs that move rows between the tiers, at most HOTBED_MOVE_SMS_MOST; 0: as
     * many as saturate the link (8 on Hopper, 12 on other GPUs). With fewer, a prefetch takes
     * longer and leaves more of the GPU to concurrent kernels. Fewer SMs help if a dense model runs
     * long enough to hide the prefetch, and hurt if the model waits for the rows. */
    uint32_t move_sms;
    hotbed_budget budget;       /* what hbm_bytes counts; 0 is SLOTS */
    hotbed_nonfinite nonfinite; /* gradients that are NaN or infinite; 0 is PASS */
    /* with track_changes: keys that have left the tables and are remembered, 16 bytes of device memory
     * each; rounded up to a power of two; 0: 2^20; at most 2^32 */
    uint64_t removed_capacity;
    /* with track_changes over an external store: changed rows of all tables that have left the upper tier and
     * are remembered, at least the newest half of them. Up to 44 bytes of host memory each, which are
     * allocated as rows leave, and once more that much of a table while its share doubles; 0: 2^24; at most
     * 2^40 */
    uint64_t changed_capacity;
} hotbed_storage_options;

/* Set every field to its default. `size` is sizeof(hotbed_storage_options) in the calling program;
 * C programs call hotbed_storage_options_init(), which passes it. */
HOTBED_API void hotbed_storage_options_init_sized(hotbed_storage_options *options, size_t size);

static inline void hotbed_storage_options_init(hotbed_storage_options *options) {
    hotbed_storage_options_init_sized(options, sizeof *options);
}

/* Describe the tables that an external store needs for a storage with these options: their names
 * and bytes per row. Ignores `options->external`, which is usually not created yet.
 *   tables  out  [num_tables] host; names point to the names in the options
 * Errors: ARGUMENT (as hotbed_storage_create()). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_external_tables(
    const hotbed_storage_options *options, hotbed_external_table *tables);

/* Create a storage on the backend and device of `stream`. Synchronous. The rows of static tables
 * are initialized. On the host backend nothing else is written: pages of rows and indexes are
 * allocated by the operating system when keys first use them, so a system that overcommits memory
 * may run out of it later. Hash tables have small pages until half of the pages around the used
 * ones are there; then they get huge pages, and take at most twice as much. *out is NULL on error.
 * Errors: ARGUMENT (the field and its value; CACHE or DEFAULT with a table that has no
 * upper_capacity while hbm_bytes is 0; an external store whose tables differ from
 * hotbed_storage_external_tables(), or that is combined with a lower tier, a mode other than CACHE,
 * or tables that evict), MEMORY (the table, tier and bytes), IO (FILE), UNSUPPORTED (lower_memory,
 * lower_index_memory), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_create(
    const hotbed_storage_options *options, hotbed_stream *stream, hotbed_storage **out);

/* Free the storage. The caller must have destroyed all tickets, and all work that uses the storage
 * must be done. NULL is allowed. */
HOTBED_API void hotbed_storage_destroy(hotbed_storage *storage);

/* --- the training step ---------------------------------------------------------------------- */

/* The keys of one batch, feature by feature: bag b = feature * batch_size + sample. The same layout
 * as TorchRec's KJT, whose values are `keys` here. Arrays are aligned to their elements, as in all
 * calls of this header. */
typedef struct hotbed_batch {
    uint32_t size;       /* sizeof(hotbed_batch) */
    uint32_t batch_size; /* samples per feature; 0 is an empty batch */
    uint64_t num_keys;   /* length of `keys`, an upper bound: offsets[last] is the number of keys */
    const void *keys;    /* [num_keys] int64 or uint64, device */
    /* [num_features * batch_size + 1] device. Bag b is keys[offsets[b]] up to keys[offsets[b+1]];
     * offsets[0] is 0, and offsets never decrease. Offsets that break these rules raise the fault
     * RANGE, and their bags are empty. With pooling NONE only the first offset of each feature and
     * the last offset are read, since no output depends on the others. NULL: every bag has one key,
     * and num_keys is num_features * batch_size. */
    const int64_t *offsets;
    const float *weights; /* [num_keys] device, per-sample weights of SUM and MEAN; NULL is 1 */
    /* [num_keys] device, the number of occurrences that each key stands for in scores (LFU,
     * TIMESTAMP_LFU) and admission (FREQUENCY), for keys that the caller has deduplicated. A key
     * with count 0 is read and trained, but not counted. Gradients, pooling, statistics and eval
     * ignore the counts. NULL is 1. */
    const uint32_t *counts;
} hotbed_batch;

/* Create a ticket for batches of up to `max_keys` keys (1 to 2^30) and `max_batch_size` samples per
 * feature. Synchronous. Allocates all memory that the steps of the ticket need; over an external
 * store this includes pinned memory for twice max_keys rows of the longest kind.
 * Errors: ARGUMENT (also: features * samples over 2^30), MEMORY, STATE (255 tickets exist; the
 * stream records a graph); over an external store CORRUPT (it is broken), and the store's own if an
 * insert that failed earlier must be read back first. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_ticket_create(
    hotbed_storage *storage, uint64_t max_keys, uint32_t max_batch_size, hotbed_stream *stream,
    hotbed_ticket **out);

/* Release the ticket's pins on the stream of its last call, wait for that stream, and free the
 * ticket. The stream must still exist. NULL is allowed. */
HOTBED_API void hotbed_ticket_destroy(hotbed_ticket *ticket);

/* Return the bytes of memory that a ticket has allocated for its batches; 0 for NULL. */
HOTBED_API uint64_t hotbed_ticket_bytes(const hotbed_ticket *ticket);

/* Look up the keys of a batch and pin their rows: dedup the keys of each table, find each distinct
 * key or insert it if it is admitted, initialize new rows, and set scores. Asynchronous. Afterwards
 * the ticket holds the batch. Pins that the ticket still held are released first. The arrays of the
 * batch must stay valid and unchanged until the stream has passed the ticket's backward, cancel or
 * next prefetch.
 * Errors: ARGUMENT (NULL, sizes over the ticket's, num_keys without offsets that is not features *
 * samples).
 * Faults: FULL, RANGE (a key outside of a static table; bad offsets), the external store's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_prefetch(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket,
    hotbed_stream *stream);

/* Read the rows of a prefetched ticket into `output`, pooled per bag unless pooling is NONE.
 * Asynchronous.
 *
 *   output  out  device, elements of the storage's output_dtype
 *                pooling NONE: [num_keys, stride], row i is the embedding of keys[i]
 *                SUM, MEAN:    [batch_size, stride], the columns of the features in order, as many
 *                              for each as its table's dim
 *   stride  in   elements from one row of output to the next; 0 is the minimum: the largest dim
 *                (NONE) or hotbed_storage_columns() (SUM, MEAN)
 *
 * A key that got no slot reads as its initial row. The rows of a bag are summed in the order of the
 * bag. If no backward follows, call hotbed_ticket_cancel() or prefetch the ticket again.
 * Errors: ARGUMENT (NULL, stride below the minimum), STATE (the ticket is not prefetched). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_forward(
    hotbed_storage *storage, hotbed_ticket *ticket, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Prefetch a batch and read its rows into `output`: hotbed_storage_prefetch() and
 * hotbed_storage_forward() in one call, with the same bytes. Asynchronous. On CUDA it takes less
 * time than the two calls, because the occurrences of each key are grouped for the backward beside
 * the forward. The two calls describe parameters, errors and faults. An ARGUMENT error leaves the
 * ticket unchanged. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_prefetch_forward(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket, void *output,
    uint64_t stride, hotbed_stream *stream);

/* Sum the gradients of each distinct row, apply the optimizer to the row, and unpin it.
 * Asynchronous. The ticket is empty afterwards.
 *
 *   gradient  in  shape, type and stride as for the output of hotbed_storage_forward()
 *
 * Order of a row's sum: its occurrences, by position in the batch, are added in groups of 32, one
 * after another from zero; the sums of the groups are added in groups of 32 in the same way; and so
 * on. With MEAN, each key of a bag receives g * (1 / keys of the bag), then multiplied by its
 * weight.
 * Errors: ARGUMENT, STATE (the ticket is not prefetched; the storage has no optimizer).
 * Faults: ARGUMENT (a gradient that is NaN or infinite, with HOTBED_NONFINITE_ERROR). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_backward(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride,
    hotbed_stream *stream);

/* Sum the gradients of each distinct key: the first half of hotbed_storage_backward().
 * Asynchronous. The ticket stays prefetched, and its rows stay pinned and unchanged, so the call
 * can be repeated with other gradients of the same batch for gradient accumulation.
 *
 *   gradient          in   as for hotbed_storage_backward()
 *   add               in   false: write the sums; true: add them, in f32, to unique_gradients
 *   unique_gradients  out  f32 [num_keys, largest dim], device: row u belongs to unique_keys[u] of
 *                          the ticket, even if that key got no slot. The first dim elements of the
 *                          row are written; all other elements and rows are left unchanged
 *
 * The sums have the order of backward. max_gradient is applied here. The caller orders this call
 * like a forward.
 * Errors: ARGUMENT, STATE (the ticket is not prefetched; the storage has no optimizer). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_reduce(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride, bool add,
    float *unique_gradients, hotbed_stream *stream);

/* Count an optimizer step, apply it to the rows of the ticket, and unpin them: the second half of
 * hotbed_storage_backward(). Asynchronous. The ticket is empty afterwards. hotbed_storage_reduce()
 * followed by this call gives the same bytes as backward.
 *
 *   unique_gradients  in  as written by hotbed_storage_reduce(), possibly changed since; not clamped
 *
 * Errors: ARGUMENT, STATE (the ticket is not prefetched; the storage has no optimizer).
 * Faults: as hotbed_storage_backward(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_apply(
    hotbed_storage *storage, hotbed_ticket *ticket, const float *unique_gradients,
    hotbed_stream *stream);

/* Unpin the rows of a prefetched ticket, which is empty afterwards. Asynchronous. Leaves an empty
 * ticket unchanged.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_cancel(hotbed_ticket *ticket, hotbed_stream *stream);

/* Keep the rows of a prefetched ticket pinned beyond its backward or cancel, so that
 * hotbed_ticket_retake() can use the batch again; pipelines replay batches this way. The rows stay
 * pinned until the ticket is forgotten, prefetched again or destroyed. Meanwhile the ticket counts
 * as two of the storage's tickets. Leaves a kept ticket unchanged. Asynchronous.
 * Errors: ARGUMENT, STATE (the ticket is not prefetched; 255 tickets exist), UNSUPPORTED (over an
 * external store, whose rows are released by their backward). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_keep(hotbed_ticket *ticket, hotbed_stream *stream);

/* Use the batch of a kept ticket again. The ticket is then in its state after the prefetch, but
 * nothing is looked up, counted or scored. The arrays of the batch must be as they were at the
 * prefetch. Leaves a ticket that still holds its batch unchanged. Asynchronous.
 * Errors: ARGUMENT, STATE (the ticket is not kept). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_retake(hotbed_ticket *ticket, hotbed_stream *stream);

/* Undo hotbed_ticket_keep(): release the pins that it holds. A batch that the ticket holds stays.
 * Asynchronous. Leaves a ticket that is not kept unchanged.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_forget(hotbed_ticket *ticket, hotbed_stream *stream);

/* Compute the output of a batch for evaluation, as hotbed_storage_forward() would. Asynchronous.
 * Nothing is inserted and no score, pin or state changes; a missing key reads as the table's
 * eval_initializer.
 *
 * The call may run beside training on another stream. Then each element is a value that the key's
 * row had during the eval or, for a key without a row or whose row is being evicted (over an
 * external store: written back), a value of the eval_initializer. Keys that an external store could
 * not look up read as missing.
 *
 * On CUDA with two tiers and without pooling, many lower-tier rows are read faster if the previous
 * eval also found many of them; the bytes do not depend on it. Uses the stream's workspace: the
 * first call on a stream with a larger num_keys allocates. Over an external store it also allocates
 * pinned memory for num_keys rows, which is freed with the stream.
 * Errors: ARGUMENT, MEMORY, STATE (the workspace would have to grow while a graph is recorded).
 * Faults: RANGE, the external store's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_eval(
    hotbed_storage *storage, const hotbed_batch *batch, void *output, uint64_t stride,
    hotbed_stream *stream);

/* Set the learning rate of all later backwards and applies on `stream`. Tables that have an optimizer
 * of their own keep their learning rates. Asynchronous, and can be recorded: graphs see the change.
 * Errors: ARGUMENT (not finite). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_learning_rate(
    hotbed_storage *storage, float learning_rate, hotbed_stream *stream);

/* The same for one table, which must have an optimizer of its own. The rate is no part of
 * hotbed_storage_state, so a trainer that changes it sets it again after a checkpoint is loaded.
 * Errors: ARGUMENT (not finite; the table has no optimizer of its own). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_table_learning_rate(
    hotbed_storage *storage, uint32_t table, float learning_rate, hotbed_stream *stream);

/* Read the present time of a table's scores. No key has a later score, and all later prefetches
 * give later scores. (An exception: in a STEP table, scores that are set by key may be later.) To
 * find the keys that are seen from now on, call hotbed_storage_export() later with min_score
 * (TIMESTAMP_LFU: min_time) one above this value. Synchronous.
 *   now  out  host. TIMESTAMP, TIMESTAMP_LFU: the time of the last prefetch, or a later time that
 *             was set by key; STEP: the number of the last prefetch. Rows that are set by key
 *             without a score get the score of the last prefetch
 * Errors: ARGUMENT (NULL; a table that is STATIC, LFU or CUSTOM), STATE (the stream records a
 * graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_now(hotbed_storage *storage, uint32_t table, uint64_t *now, hotbed_stream *stream);

/* Set the score that all later prefetches on `stream` give to the keys of a CUSTOM table. The
 * initial value is 1. Asynchronous.
 * Errors: ARGUMENT (the table is not CUSTOM; value not in [1, 2^52 - 1]). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_score(
    hotbed_storage *storage, uint32_t table, uint64_t value, hotbed_stream *stream);

/* --- contents of a ticket --------------------------------------------------------------------- */

/* Device arrays of a prefetched ticket (dynamicemb's PrefetchState), valid until the ticket's next
 * prefetch. The counts are in device memory; the host does not know them. */
typedef struct hotbed_ticket_view {
    uint32_t size; /* set by the caller: sizeof(hotbed_ticket_view) */
    /* [unique_offsets[T]] distinct keys, table by table, in order of first occurrence. In a storage
     * of static tables in mode HBM_DIRECT, with fewer than 2^31 rows: ascending, and the keys that a
     * table does not have count as one. */
    const uint64_t *unique_keys;
    const uint32_t *inverse; /* [num_keys] position of each key in unique_keys */
    /* [num_tables + 1] the distinct keys of table t are [t] up to [t + 1] */
    const uint32_t *unique_offsets;
    /* slot of each distinct key; HOTBED_SLOT_NONE if it was refused or not admitted */
    const uint64_t *slots;
    /* occurrences of each distinct key: the sum of its hotbed_batch.counts */
    const uint64_t *counts;
} hotbed_ticket_view;

/* Get the arrays of a prefetched ticket. The host sees the pointers at once.
 * Errors: ARGUMENT (NULL), STATE (the ticket is not prefetched). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_ticket_read(const hotbed_ticket *ticket, hotbed_ticket_view *out);

/* --- rows by key ------------------------------------------------------------------------------
 * Over an external store, these calls read and write the store in batches of 32 MiB, except for
 * rows that are in the upper tier. The first call on a stream with more rows than before allocates
 * pinned memory, which is freed with the stream. It then may fail with MEMORY, or with STATE while
 * a graph is recorded. A batch that the store failed to process is skipped and raises the store's
 * fault; synchronous calls return it. */

/* Copy the rows of n keys of table number `table` without changing anything. Asynchronous.
 *
 *   keys   in   [n], duplicates allowed
 *   rows   out  the parts to copy; the rows of missing keys are left unchanged; NULL: only `found`
 *               is written
 *   found  out  [n] 1 or 0; HOTBED_EXTERNAL_UNKNOWN where an external store failed; may be NULL
 *
 * Errors: ARGUMENT (NULL, table number, a state or times that the table does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_get_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    uint8_t *found, hotbed_stream *stream);

/* Insert or overwrite the rows of n distinct keys, whatever the admission rule. Asynchronous.
 *
 *   keys  in  [n]
 *   rows  in  the parts to set. A NULL part, or all parts if `rows` is NULL, keeps its value. For a
 *             new key it gets its initial value; the initial score is the score that the last
 *             prefetch would have given, or 1 in LFU and TIMESTAMP_LFU tables; times likewise
 *
 * In a table that evicts, a new key replaces the key with the lowest score among its candidates,
 * which hotbed_table_stats.evictions counts. Keys of the same call are never evicted. If a new key
 * finds nothing else to evict, because the call sets a large part of the keys that the table holds
 * or because tickets have pinned the rest, it is skipped with the fault FULL. Admission forgets its
 * count of a key that gets a row.
 *
 * If a key occurs twice, the call sets nothing and raises the fault ARGUMENT with the key and its
 * two positions. The search for it uses the stream's workspace: the first call on a stream with a
 * larger n allocates up to 6 bytes for each key.
 * Errors: ARGUMENT (also: n over 2^31), MEMORY, STATE (the workspace would have to grow while a graph
 * is recorded).
 * Faults: FULL, RANGE, ARGUMENT (a key twice). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream);

/* Set rows like hotbed_storage_set_rows(), but to fill a table, for example from a checkpoint.
 * While no ticket holds rows, a hash table takes as many rows as it has slots: rows move to other
 * slots where a new key would find none. About one slot in a million may stay free in a table of
 * more than 16 million slots, one in 500 in a table whose rows move between tiers, and some in one
 * of 32 slots; a table has more slots than its capacity, so all keys up to the capacity get one. A
 * table that does not evict and is full at max_capacity grows beyond it, by 1,280 keys at most. The
 * other calls of this header refuse or evict keys before a table is full.
 *
 * The call may offer more rows than an evicting table can hold. A new key then evicts a row only if
 * that row is on probation, has a lower score, or has the same score and an older time. Rows that
 * the same call has inserted can be evicted, too. If no candidate slot has such a row, the key is
 * skipped without a fault. So the rows with the highest scores stay, as far as the candidate slots
 * allow, and of rows with equal scores the first ones. In mode DEFAULT by score, rows of the upper
 * tier stay whatever their score.
 *
 * A key that had a row before may be evicted and inserted again within the call. The parts that
 * the call does not give then have their initial values.
 *
 * May wait for the stream; the last rows are set asynchronously. No other call on the rows of the table may
 * run meanwhile.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE.
 * Faults: FULL (the table does not evict), RANGE, ARGUMENT (a key twice). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_offer_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream);

/* Remove n keys from a HASH table. Absent and pinned keys are skipped. Asynchronous.
 *   erased  out  [n] 1 or 0; HOTBED_EXTERNAL_UNKNOWN where an external store failed; may be NULL
 * Errors: ARGUMENT (also: a STATIC table). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_erase(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, uint8_t *erased,
    hotbed_stream *stream);

/* Which keys of a HASH table hotbed_storage_expire() removes: those to which at least one condition
 * applies. 0 is the default of every field but `size`; a condition that is 0 is none. */
typedef struct hotbed_expiry {
    uint32_t size;  /* sizeof(hotbed_expiry) */
    uint32_t table; /* number of the table */
    /* slots that the call looks at: the bound of its work; 0: all slots of the table */
    uint64_t slots;
    /* The key was last in a batch so long ago: in STEP tables prefetches, in TIMESTAMP and
     * TIMESTAMP_LFU tables microseconds; until the last prefetch, see hotbed_storage_now(). 1 in a
     * STEP table: the key was not in the last prefetch. STEP, TIMESTAMP and TIMESTAMP_LFU only */
    uint64_t unseen;
    uint64_t min_score; /* its score is below this */
    float min_norm;     /* the L2 norm of its embedding is below this; >= 0 */
} hotbed_expiry;

/* Remove keys by age and value: look at the next `slots` slots of a table, and remove the keys that
 * are expired, except pinned ones. The next call goes on where this one has ended, and begins anew
 * after the last slot, so that a call every few steps keeps a table free of expired keys. Keys leave
 * as by hotbed_storage_erase(): a later prefetch makes a new row. hotbed_table_stats.expired counts
 * them. The caller orders it like an erase. Asynchronous; allocates nothing; can be recorded, and a
 * recorded call looks at the slots that the table had then.
 *
 *       hotbed_expiry expiry = {.size = sizeof expiry};
 *       expiry.unseen = 100000; // steps
 *       expiry.slots = 1 << 16;
 *       hotbed_storage_expire(storage, &expiry, stream);
 *
 * Errors: ARGUMENT (NULL, table number; a STATIC table; `unseen` in a table that is LFU or CUSTOM;
 * min_norm that is NaN or negative; no condition), UNSUPPORTED (an external store has the rows). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_expire(hotbed_storage *storage, const hotbed_expiry *expiry, hotbed_stream *stream);

/* Remove all keys of table number `table` and all counts of its admission; in a STATIC table, set
 * all rows to their initial value. An external store is cleared first: if that fails, some of its
 * rows are gone. Synchronous.
 * Errors: ARGUMENT, STATE (tickets hold rows of any table, which includes prefetches in launched
 * graphs; the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_clear(hotbed_storage *storage, uint32_t table, hotbed_stream *stream);

/* Copy all keys of a table, in no particular order, to *host* arrays. Synchronous; changes nothing.
 * Prefetches on other streams may run meanwhile, and their new keys may be missing; but not in mode
 * DEFAULT by score, where they move keys between the tiers: order them before the call. Over an
 * external store, whose upper tier is written back first, order them in every mode.
 *
 *   capacity  in   length of keys and scores
 *   keys      out  may be NULL to query the number only
 *   scores    out  may be NULL
 *   n         out  number of keys in the table
 *
 * Errors: ARGUMENT (capacity below *n, which is set), MEMORY, STATE (the stream records a graph),
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_keys(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *scores,
    uint64_t *n, hotbed_stream *stream);

/* Copy the keys that admission counts for a FREQUENCY table to *host* arrays: keys without a row,
 * and how often each was seen. The parameters are as for hotbed_storage_export_keys(); *n is 0 for
 * other tables. Synchronous.
 * Errors: ARGUMENT (capacity below *n, which is set), MEMORY, STATE (the stream records a graph),
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_export_counts(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *counts,
    uint64_t *n, hotbed_stream *stream);

/* Set the admission counts of n distinct keys that admission does not count yet. A full counter
 * forgets low counts. Does nothing for tables that are not FREQUENCY. Asynchronous.
 *
 *   keys, counts  in  [n] device
 *
 * Errors: as hotbed_storage_set_rows().
 * Faults: ARGUMENT (a key twice; no count is set). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_import_counts(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const uint64_t *counts,
    hotbed_stream *stream);

/* --- the upper tier ----------------------------------------------------------------------------- */

/* In mode CACHE, write the changed rows of the upper tier, and all its scores, to the lower tier;
 * they also stay in the upper tier. Does nothing in other modes. The caller orders it like a call
 * that sets rows. Asynchronous. Rows go to an external store as described under "rows by key"; call
 * hotbed_external_flush() to make them durable.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_flush(hotbed_storage *storage, hotbed_stream *stream);

/* Flush, then empty the upper tier, except for rows that an external store did not accept and rows
 * that are pinned by a prefetch in a launched graph. Asynchronous.
 * Errors: ARGUMENT, STATE (tickets hold rows by calls outside of graphs). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_reset(hotbed_storage *storage, hotbed_stream *stream);

/* --- state and description --------------------------------------------------------------------- */

/* The training state of a storage besides its rows; plain numbers, for checkpoints. */
typedef struct hotbed_storage_state {
    uint32_t size;            /* set by the caller: sizeof(hotbed_storage_state) */
    uint64_t optimizer_steps; /* number of backwards so far: Adam's t */
    /* number of prefetches so far: the STEP score of keys seen in the last one */
    uint64_t clock;
    double beta1_power; /* beta1^t and beta2^t, as running products */
    double beta2_power;
    float learning_rate; /* of tables without an optimizer of their own */
    /* Microseconds; what hotbed_storage_now() reads of TIMESTAMP and TIMESTAMP_LFU tables. It never
     * goes back: a time that is set has an effect only if it is later. 0 if no table has times */
    uint64_t time;
} hotbed_storage_state;

/* Read the state, or replace it. Synchronous.
 * Errors: ARGUMENT (a power of beta not in [0, 1], a clock or time over 2^52 - 1, a learning rate that
 * is not finite), STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_get_state(hotbed_storage *storage, hotbed_storage_state *out, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_set_state(
    hotbed_storage *storage, const hotbed_storage_state *state, hotbed_stream *stream);

typedef struct hotbed_table_info {
    uint32_t size;    /* set by the caller: sizeof(hotbed_table_info) */
    const char *name; /* valid while the storage exists */
    uint32_t dim;
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t capacity;   /* as requested, or as grown */
    uint64_t slots;      /* rows allocated, without segments */
    uint64_t first_slot; /* the slots of this table are [first_slot, first_slot + slots) */
    uint64_t row_bytes;  /* embedding + state + padding (+ time: TIMESTAMP_LFU, external store) */
    /* HASH: 16 per slot of each tier (TIMESTAMP_LFU: 24), and 16 per key that admission can count;
     * STATIC: 0 with HBM_DIRECT, otherwise the same */
    uint64_t index_bytes;
    /* device address of the embedding of slot first_slot; element e of slot s is at byte
     * (s - first_slot) * row_bytes + e * element size */
    void *weights;
    uint64_t state_offsets[2]; /* bytes from the start of a row to each state */
    /* CACHE, DEFAULT: number of keys that the upper tier is sized for; otherwise 0 */
    uint64_t upper_capacity;
    /* rows allocated in the lower tier; `slots` and `first_slot` describe the upper tier */
    uint64_t lower_slots;
    uint64_t first_lower_slot; /* HOTBED_SLOT_NONE without a lower tier */
    void *lower_weights;       /* as `weights`; NULL without a lower tier */
    uint64_t max_capacity;     /* `capacity` if the table does not grow */
    uint64_t segment_slots;    /* rows allocated by growth, in all segments */
    uint32_t segments;         /* number of growths, see hotbed_storage_segment() */
    hotbed_score_strategy score;
    /* the part of index_bytes that belongs to the lower tier, growth included */
    uint64_t lower_index_bytes;
    /* memory of the lower tier's index; 0 without a lower tier */
    hotbed_memory_kind lower_index_memory;
    hotbed_insertion insertion; /* PLAIN or PROBATION, also if the option was AUTO */
    float eval_value;           /* each element of the row of a missing key in eval */
    /* with track_changes: 4 bytes and a bit for each slot of each tier, beside the index; else 0 */
    uint64_t change_bytes;
    hotbed_dtype state_dtypes[2]; /* of each state; F32 if the row has no such state */
} hotbed_table_info;

/* Describe a table.
 * Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_table(const hotbed_storage *storage, uint32_t table, hotbed_table_info *out);

/* Return a property that the storage was created with. If the mode was AUTO, hotbed_storage_mode()
 * returns the mode that was chosen. */
HOTBED_API uint32_t hotbed_storage_num_tables(const hotbed_storage *storage);
HOTBED_API hotbed_key_type hotbed_storage_key_type(const hotbed_storage *storage);
HOTBED_API const hotbed_optimizer *hotbed_storage_optimizer(const hotbed_storage *storage);
HOTBED_API hotbed_mode hotbed_storage_mode(const hotbed_storage *storage);

/* Explain in a sentence why the storage has its mode, and what its indexes take beside the budget,
 * growth included: "needs 412 GB, budget 40 GB, caching on: CACHE; index 1.3 GB in device memory,
 * the lower tier's 13.2 GB in pinned memory; a row of user: 20 bytes of int8, 4 of states, 32 in all".
 * A row is explained for each table. Beside embedding and states it has padding, and a time or metadata
 * where the table has them.
 *   text      out  truncated to fit, always terminated by 0
 *   capacity  in   bytes of text, at least 1; 256 are enough without the rows, 160 more for each table
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_storage_explain(const hotbed_storage *storage, char *text, size_t capacity);

/* Return the number of output columns: the sum of the features' dims. SUM and MEAN only. */
HOTBED_API uint64_t hotbed_storage_columns(const hotbed_storage *storage);

/* Count the keys of a table and its pinned slots; either pointer may be NULL. A STATIC table of one
 * tier has no pinned slots, since its rows never move. Synchronous. An external store may have to
 * read all its keys.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_size(
    hotbed_storage *storage, uint32_t table, uint64_t *keys, uint64_t *pinned,
    hotbed_stream *stream);

/* Counts of events of a table since the storage was created. A *unique* is a distinct key of a
 * batch. */
typedef struct hotbed_table_stats {
    uint32_t size;      /* set by the caller: sizeof(hotbed_table_stats) */
    uint64_t keys;      /* keys in training batches, duplicates included */
    uint64_t uniques;   /* distinct keys of those batches */
    uint64_t hits;      /* uniques that were found */
    uint64_t inserts;   /* uniques that got a new row */
    uint64_t evictions; /* keys that were evicted, also by rows that were set by key */
    uint64_t refused;   /* uniques that got no slot: table full, or key out of range */
    uint64_t rejected;  /* uniques that got no slot: not admitted */
    /* For storages with two tiers; hits count the keys found in either tier. */
    uint64_t fetches; /* uniques whose rows were fetched or promoted */
    /* uniques whose rows were used in the lower tier although they may move */
    uint64_t in_place;
    uint64_t write_backs;      /* rows written back or demoted, by flushes too */
    uint64_t link_read_bytes;  /* bytes of the fetches */
    uint64_t link_write_bytes; /* bytes of the write-backs */
    /* updates that were skipped because of a gradient that is NaN or infinite; see
     * hotbed_nonfinite */
    uint64_t nonfinite;
    /* updates that should have changed a row and did not change one of its elements, because all
     * were rounded to their old values; see hotbed_rounding. F32 rows are not counted. */
    uint64_t rounded_away;
    uint64_t expired; /* keys that hotbed_storage_expire() has removed */
} hotbed_table_stats;

/* Read the cumulative counts of a table, up to the work that `stream` has passed. Synchronous.
 * Errors: ARGUMENT, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_stats(
    hotbed_storage *storage, uint32_t table, hotbed_table_stats *out, hotbed_stream *stream);

/* Get a warning that was not returned before:
 *   - after a load of a checkpoint that was trained with another seed, both seeds
 *     (hotbed_checkpoint_load());
 *   - in a storage with CHECK_WARN, the first key since the last call that got no slot; in one with
 *     NONFINITE_SKIP, the first row whose update was skipped; of both, the first: table, key and
 *     reason, as in the text of the fault.
 * The text is "" if there is none. The thread's last error is left unchanged. Never blocks: the text
 * covers all finished work, and perhaps work still running.
 *
 *   text      out  truncated to fit, always terminated by 0
 *   capacity  in   bytes of text, at least 1; 256 are enough
 *   detail    out  the fault's fields; all are absent for a text about seeds or no text. The caller sets
 *                  size. NULL is allowed
 *
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_storage_warning(
    hotbed_storage *storage, char *text, size_t capacity, hotbed_error_detail *detail);

/* --- growth ----------------------------------------------------------------------------------- */

/* Hash tables can start small and grow during training.
 *
 * Use this if the number of keys is not known in advance. Set hotbed_table_options.max_capacity:
 * the table starts with space for `capacity` keys and may grow to max_capacity. Then poll between
 * steps, outside of graphs. Sharded collections poll by themselves, each rank its own tables
 * (hotbed/sharded.h).
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
 * and 72 bytes; with track_changes, 4 bytes and a bit more.
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

HOTBED_END_DECLS
#endif
