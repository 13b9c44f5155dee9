/* storage/storage.h - the inside of a storage and of a ticket. */
#ifndef HOTBED_STORAGE_STORAGE_H
#define HOTBED_STORAGE_STORAGE_H

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/export.h"
#include "hotbed/external.h"
#include "hotbed/storage.h"
#include "storage/export_kernels.h"
#include "storage/external_batch.h"
#include "storage/lookup_kernels.h"
#include "storage/rows_kernels.h"
#include "storage/score_kernels.h"
#include "storage/stats_kernels.h"
#include "storage/tier_external_kernels.h"
#include "storage/tier_kernels.h"
#include "storage/types.h"
#include "storage/unique_kernels.h"
#include "storage/update_kernels.h"

#include <pthread.h>

enum {
    HOTBED_TICKETS_MOST = HOTBED_PINS_MOST, /* a slot's pins are at most the tickets that hold it */
};

/* The kernels of one backend. */
typedef struct hotbed_kernels {
    const hotbed_unique_kernels *unique;
    const hotbed_lookup_kernels *lookup;
    const hotbed_update_kernels *update;
    const hotbed_rows_kernels *rows;
    const hotbed_score_kernels *score;
    const hotbed_stats_kernels *stats;
    const hotbed_export_kernels *exports;
    const hotbed_tier_kernels *tier;
    const hotbed_tier_external_kernels *external;
} hotbed_kernels;

/* A segment that a table has grown. */
typedef struct hotbed_grown {
    struct hotbed_grown *next;
    hotbed_index_segment segment;
    hotbed_memory index; /* keys, metas, and times where the table has them */
    hotbed_memory rows;
    hotbed_memory staging; /* pinned: what the device copies the segment from */
} hotbed_grown;

typedef struct hotbed_table {
    char name[HOTBED_NAME_BYTES]; /* first, for hotbed_names_check() */
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t capacity; /* as it has grown so far */
    uint64_t most;     /* to which it may grow; `capacity` at creation where it may not */
    float growth_load; /* share of the capacity from which a poll grows it */
    uint32_t num_grown;
    hotbed_grown *grown;     /* oldest first */
    uint64_t counted;        /* FREQUENCY: keys that admission counts */
    uint64_t upper_capacity; /* with two tiers: keys that the upper one is made for */
    bool evicts;
    hotbed_insertion insertion; /* as asked for; the view has what AUTO became */
    hotbed_table_view view;     /* host copy of what the device has */
    hotbed_memory rows, lower_rows;
    hotbed_memory times;       /* TIMESTAMP_LFU: of all slots that the storage's index has */
    hotbed_memory lower_index; /* keys, metas and times of the lower tier, where they have memory of
                                * their own: the range is a segment then, see index_core.h */
} hotbed_table;

/* A batch for calls that are no ticket's: of one stream, whose order keeps its users apart, and in whose pinned
 * workspace it is.  It stays as long as the storage, since graphs may point to it; its memory as long as the stream. */
typedef struct hotbed_store_buffer {
    struct hotbed_store_buffer *next;
    const hotbed_stream *stream;
    hotbed_external_batch batch;
} hotbed_store_buffer;

/* An export of a table over an external store, window by window. */
typedef struct hotbed_store_walk {
    hotbed_external_cursor *cursor;
    uint64_t at; /* keys that it has given */
    bool ended;
} hotbed_store_walk;

/* Of a table: keys, and pinned slots. */
typedef struct hotbed_key_counts {
    uint64_t keys, pinned;
} hotbed_key_counts;

/* What polls of growth go by. */
typedef struct hotbed_growth {
    hotbed_memory counting;    /* device */
    hotbed_memory counted;     /* pinned */
    hotbed_key_counts *counts; /* [num_tables] in `counted` */
    hotbed_event *arrived;     /* marks the copy to `counted` */
    bool under_way;            /* it has not been seen to have arrived */
} hotbed_growth;

struct hotbed_storage {
    hotbed_kernels kernels;
    hotbed_backend backend;
    int device;
    hotbed_key_type key_type;
    hotbed_pooling pooling;
    hotbed_dtype output_dtype;
    hotbed_mode mode;
    hotbed_tiers tiers;
    char why[192];              /* why that mode */
    hotbed_optimizer optimizer; /* kind 0: none */
    hotbed_optimizer_view optimizer_view;
    uint64_t seed;
    uint32_t num_tables, num_features;
    uint32_t max_dim;
    uint32_t
        bulk_bytes; /* the longest row that moves; 0: the length of some row is no multiple of 16 */
    uint32_t move_sms; /* of hotbed_storage_options */
    hotbed_check check;
    bool plain_rows;          /* all tables are of f32 rows whose dim is a multiple of 4 */
    bool keys_leave;          /* a table evicts or has two tiers: keys may leave their slots */
    bool timed;               /* a table's scores are timestamps */
    bool admits;              /* a table does not take all keys */
    uint32_t tickets;         /* that exist; atomic */
    uint32_t held;            /* tickets that hold pins; atomic */
    hotbed_ticket *released;  /* by hotbed_ticket_release(), until they are taken back; atomic */
    hotbed_table *tables;     /* [num_tables] */
    uint32_t *feature_tables; /* [num_features] */
    uint64_t *columns;        /* [num_features + 1] */
    hotbed_index_view index;
    uint64_t index_slots;  /* in `index`: of the tables' first ranges that are no segments */
    uint32_t num_segments; /* that tables may have, and a first that is none; 0: there are none */
    uint64_t lower_bytes;  /* of rows, with what has grown; atomic */
    hotbed_memory_kind lower_memory;
    hotbed_memory_kind
        lower_index_memory; /* DEVICE: the lower tiers' index is beside the uppers' */
    char *lower_directory;  /* or NULL */
    hotbed_growth growth;
    hotbed_memory index_keys, index_metas;
    hotbed_memory described; /* device: table views, feature tables, columns, clock, tallies */
    hotbed_table_view *device_tables;
    hotbed_index_segment *device_segments; /* [num_segments] */
    uint32_t *device_feature_tables;
    uint64_t *device_columns;
    hotbed_clock *clock;
    hotbed_tally *tallies;
    uint32_t *below;     /* see hotbed_step_view */
    uint32_t *holding;   /* likewise */
    hotbed_timer *timer; /* NULL unless `timed` */
    uint64_t *custom_scores;
    hotbed_memory warning;     /* pinned: a hotbed_fault, for CHECK_WARN */
    hotbed_external *external; /* the store that has all rows; NULL: none */
    pthread_mutex_t buffers_lock;
    hotbed_store_buffer *buffers;
    hotbed_store_walk *walks; /* [num_tables] of exports; NULL before the first */
};

struct hotbed_ticket {
    hotbed_storage *storage;
    hotbed_ticket *next; /* in the list of released tickets */
    hotbed_stream *last; /* stream of the last call */
    uint64_t max_keys;
    uint32_t max_batch_size;
    bool holds;         /* prefetched: has a batch and its pins */
    bool recorded;      /* calls on it are in graphs: whether it has pins, the device knows */
    bool kept_recorded; /* calls that keep it are in graphs */
    bool kept;          /* and pins besides, which outlive its backward */
    hotbed_step_view step;
    hotbed_memory memory;
    void *unique_scratch;
    size_t unique_scratch_bytes;
    void *update_scratch;
    size_t update_scratch_bytes;
    uint32_t *bags; /* step.bags when the batch has offsets and is pooled */
    /* With an external store: */
    hotbed_external_batch asked, leaving;
    uint32_t *asked_ranks, *leaving_ranks; /* [max_keys + 1] */
    void *scan_scratch;
    size_t scan_scratch_bytes;
};

/* Choose the storage's mode and how many keys each upper tier takes; tables have their options and row_bytes.
 * Errors: ARGUMENT (CACHE or DEFAULT without a size), UNSUPPORTED (memory of the lower tier). */
hotbed_status hotbed_mode_choose(hotbed_storage *storage, const hotbed_storage_options *options);

/* Give all tables their slots: in the index, then those without; and numbers for their segments. */
void hotbed_mode_lay_out(hotbed_storage *storage);

/* Keys of a table of `capacity` that the tier is made for which grows: the lower, if there are two. */
uint64_t hotbed_mode_growing_keys(
    const hotbed_storage *storage, const hotbed_table *table, uint64_t capacity);

/* Slots of a table, of both tiers and all segments. */
uint64_t hotbed_table_all_slots(const hotbed_table *table);

/* Part number `part` of a table with an index, for kernels that go through the slots of one: the upper tier's is
 * 0, then comes the lower one's, if there is one, then what the table has grown.  False: there are no more. */
bool hotbed_table_part(
    const hotbed_storage *storage, const hotbed_table *table, uint32_t part,
    hotbed_index_part *out);

/* Whether a table may grow. */
static inline bool hotbed_table_grows(const hotbed_table *table) {
    return hotbed_table_growing(&table->view).segment != 0;
}

/* A segment as an index of its own. */
hotbed_index_part hotbed_segment_part(const hotbed_index_segment *segment);

/* The lower tier of a table as a segment; `keys` is NULL where it is none. */
hotbed_index_segment hotbed_table_lower_segment(const hotbed_table *table);

/* Bytes of a table's index with its grown segments: of the lower tier; and of the upper tier with the counts of
 * admission. */
typedef struct hotbed_index_bytes {
    uint64_t upper, lower;
} hotbed_index_bytes;
hotbed_index_bytes hotbed_table_index_bytes(const hotbed_table *table);

/* Free a table's segments. */
void hotbed_growth_free(hotbed_table *table);

/* What polls need, if a table grows; and free it. */
hotbed_status hotbed_growth_create(hotbed_storage *storage, hotbed_stream *stream);
void hotbed_growth_destroy(hotbed_storage *storage);

/* Write changed rows of one table to the lower tier or the store; with `drop` also empty the upper one.  Async;
 * nothing to do but with CACHE. */
hotbed_status hotbed_storage_flush_table(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream);

/* Free the slots of a table's tiers, and what admission has counted; STATIC: rows of memory as new.  `fresh`: the table
 * is being created.  Synchronous; no ticket holds rows. */
hotbed_status hotbed_storage_empty_table(
    hotbed_storage *storage, uint32_t table, bool fresh, hotbed_stream *stream);

/* Free the slots of args->table.range, or, without an index, give all rows their first values.  `zero`: its memory is
 * fresh, and zero.  Async. */
hotbed_status hotbed_storage_free_slots(
    const hotbed_storage *storage, const hotbed_rows_args *args, bool zero, hotbed_stream *stream);

/* Errors: ARGUMENT when `stream` is NULL or of another backend or device than the storage. */
hotbed_status hotbed_storage_same_device(
    const hotbed_storage *storage, const hotbed_stream *stream);

/* Errors: the same, and ARGUMENT for a table number out of range. */
hotbed_status hotbed_storage_check_table(
    const hotbed_storage *storage, uint32_t table, const hotbed_stream *stream);

/* The kernels' form of `rows`, or nothing where it is NULL.  Errors: ARGUMENT (a state or times that rows do
 * not have). */
hotbed_status hotbed_storage_rows_view(
    const hotbed_storage *storage, uint32_t table, const hotbed_rows *rows, hotbed_rows_view *out);

/* Errors: STATE when a graph is recorded on the stream: for calls that wait. */
hotbed_status hotbed_storage_may_wait(const hotbed_stream *stream);

/* Destroy the tickets that were released, but for those whose last call was on `stream`, which wait for nothing: their
 * pins come off on it, and they stay for hotbed_ticket_create(). */
void hotbed_storage_take_back(hotbed_storage *storage, hotbed_stream *stream);

/* Where kernels on `stream` latch faults of keys; NULL: nowhere. */
hotbed_fault *hotbed_storage_faults(const hotbed_storage *storage, hotbed_stream *stream);

/* A step's view with what the storage gives. */
hotbed_step_view hotbed_storage_step(const hotbed_storage *storage);

/* What a tally, or the difference of two, says. */
hotbed_table_stats hotbed_stats_of(hotbed_tally tally, uint64_t row_bytes);
/* Whether rows move between tiers. */
static inline bool hotbed_storage_moves(const hotbed_storage *storage) {
    return storage->tiers == HOTBED_TIERS_CACHE || storage->tiers == HOTBED_TIERS_SCORE;
}

/* Parts of one block of memory, one after the other, each 256-byte aligned.  Without a base nothing is
 * placed, and `used` says how large the block must be. */
typedef struct hotbed_carve {
    uint8_t *base;
    size_t used;
} hotbed_carve;

static inline void *hotbed_carve_take(hotbed_carve *carve, size_t bytes) {
    void *at = carve->base == NULL ? NULL : carve->base + carve->used;
    carve->used += (bytes + 255) / 256 * 256;
    return at;
}

/* --- a cache over an external store: tier_external.c, tier_external_rows.c ------------------------- */

/* Whether the store is one for these tables.  Errors: ARGUMENT. */
hotbed_status hotbed_storage_check_external(const hotbed_storage *storage);
void hotbed_storage_close_external(hotbed_storage *storage); /* free all buffers */

/* What a ticket has beside its other arrays, in device and in pinned memory. */
void hotbed_ticket_carve_external(hotbed_ticket *ticket, hotbed_carve *carve);
hotbed_status hotbed_ticket_open_external(hotbed_ticket *ticket, hotbed_stream *stream);

/* Instead of seek, admit and move of the two tiers.  Async. */
hotbed_status hotbed_ticket_fetch(hotbed_ticket *ticket, hotbed_stream *stream);

/* How many of n rows go into one batch. */
uint64_t hotbed_store_buffer_rows(const hotbed_storage *storage, uint64_t n);

/* A batch for up to `capacity` rows, for work that is enqueued on `stream` next.
 * Errors: MEMORY, STATE (it would have to be allocated while a graph is recorded). */
hotbed_status hotbed_store_buffer_take(
    hotbed_storage *storage, uint64_t capacity, hotbed_stream *stream, hotbed_external_batch **out);

/* Device memory that goes with a batch of n items: part of a workspace, or all of it. */
typedef struct hotbed_store_scratch {
    uint32_t *ranks;           /* [n + 1] */
    hotbed_table_view *tables; /* [num_tables] */
    void *scan;
    size_t scan_bytes;
} hotbed_store_scratch;

void hotbed_store_scratch_carve(
    const hotbed_storage *storage, uint64_t n, hotbed_carve *carve, hotbed_store_scratch *out);
hotbed_status hotbed_store_scratch_workspace(
    const hotbed_storage *storage, uint64_t n, hotbed_stream *stream, hotbed_store_scratch *out);

/* Prefix sums of the n ranks. */
hotbed_status hotbed_store_scan(
    const hotbed_store_scratch *scratch, uint64_t n, hotbed_stream *stream);

/* Keys without a slot, in step->slots, get slots of the batch where the store has them; step->tables are then
 * tables of the scratch.  Async. */
hotbed_status hotbed_storage_eval_external(
    hotbed_storage *storage, hotbed_step_view *step, const hotbed_store_scratch *scratch,
    hotbed_external_batch *batch, hotbed_stream *stream);

/* hotbed_storage_flush_table(). */
hotbed_status hotbed_storage_flush_external(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream);

/* get, set or erase: `pass` is HOTBED_PASS_GET, _SET or _ERASE.  Async. */
hotbed_status hotbed_storage_rows_external(
    hotbed_storage *storage, const hotbed_rows_args *rows, hotbed_store_pass pass,
    hotbed_stream *stream);

/* Remove all keys of a table from the store.  Synchronous. */
hotbed_status hotbed_storage_clear_external(hotbed_storage *storage, uint32_t table);

/* Number of keys in either place, and of pinned slots.  Synchronous. */
hotbed_status hotbed_storage_size_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t counts[2],
    hotbed_stream *stream);

/* A window of a table, its fields checked.  Synchronous; and the end of all exports. */
hotbed_status hotbed_export_external(
    hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream);
void hotbed_export_close_external(hotbed_storage *storage);

/* hotbed_storage_export_keys() of a HASH table. */
hotbed_status hotbed_storage_export_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t capacity, uint64_t *keys,
    uint64_t *scores, uint64_t *n, hotbed_stream *stream);

#endif
