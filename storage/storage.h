/* storage/storage.h - internals of storages, for the files of storage/. */
#pragma once

#include "base/carve.h"
#include "base/error.h"
#include "base/stream.h"
#include "hotbed/export.h"
#include "hotbed/external.h"
#include "hotbed/storage.h"
#include "storage/rows/changes_kernels.h"
#include "storage/rows/export_kernels.h"
#include "storage/rows/rows_kernels.h"
#include "storage/stats_kernels.h"
#include "storage/step/lookup_kernels.h"
#include "storage/step/score_kernels.h"
#include "storage/step/unique_kernels.h"
#include "storage/step/update_kernels.h"
#include "storage/tiers/external_batch.h"
#include "storage/tiers/stored_changes.h"
#include "storage/tiers/tier_external_kernels.h"
#include "storage/tiers/tier_kernels.h"
#include "storage/types.h"

#include <pthread.h>

enum {
    HOTBED_TICKETS_MOST = HOTBED_PINS_MOST, /* a slot has at most one pin per ticket */
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
    const hotbed_changes_kernels *changes;
    const hotbed_tier_kernels *tier;
    const hotbed_tier_external_kernels *external;
} hotbed_kernels;

/* A segment added by growth. */
typedef struct hotbed_grown {
    struct hotbed_grown *next;
    hotbed_index_segment segment;
    hotbed_memory index; /* keys, metas, and times if the table keeps them */
    hotbed_memory rows;
    hotbed_memory staging; /* pinned: source of the copy to the device */
} hotbed_grown;

typedef struct hotbed_table {
    char name[HOTBED_NAME_BYTES]; /* first member, for hotbed_names_check() */
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t capacity; /* current */
    uint64_t first;    /* capacity at creation */
    uint64_t most;     /* limit of growth; equal to the first capacity if the table does not grow */
    float growth_load; /* keys / capacity from which a poll grows the table */
    uint32_t num_grown;
    hotbed_grown *grown; /* oldest first */
    /* atomic: work of hotbed_storage_offer_rows() since slots were freed; UINT64_MAX: enough */
    uint64_t search_work;
    bool graph_erases;       /* atomic: a graph may free slots whenever it is launched */
    uint64_t counted;        /* FREQUENCY: keys that the admission counter holds */
    uint64_t upper_capacity; /* with two tiers: keys for which the upper one is sized */
    bool evicts;
    bool tracks;                /* changes */
    hotbed_table_rates rates;   /* at creation */
    hotbed_insertion insertion; /* the option; AUTO is resolved in `view` */
    hotbed_table_view view;     /* host copy of the device's view */
    hotbed_memory rows, lower_rows;
    hotbed_memory changed, lower_changed; /* with track_changes */
    hotbed_memory times; /* TIMESTAMP_LFU: for all slots of this table in the storage's index */
    /* keys, metas and times of a lower tier with memory of its own; its range is then a segment,
     * see index_layout_core.h */
    hotbed_memory lower_index;
} hotbed_table;

/* The batch of an external store for calls outside of tickets. It belongs to one stream, whose
 * order separates its uses, and its memory is the stream's pinned workspace. The struct lives as
 * long as the storage, since graphs may point to it. */
typedef struct hotbed_call_batch {
    struct hotbed_call_batch *next;
    const hotbed_stream *stream;
    hotbed_external_batch batch;
} hotbed_call_batch;

/* State of an export of a table over an external store. */
typedef struct hotbed_store_walk {
    hotbed_external_cursor *cursor; /* of an export of all rows */
    hotbed_changed_keys changed;    /* keys of an export of changed rows */
    uint64_t next;                  /* of `changed`, to look at */
    uint64_t at;                    /* keys returned so far */
    bool ended;
} hotbed_store_walk;

/* Counts of one table. */
typedef struct hotbed_key_counts {
    uint64_t keys, pinned;
} hotbed_key_counts;

/* State of growth polls. */
typedef struct hotbed_growth {
    hotbed_memory counting;    /* device */
    hotbed_memory counted;     /* pinned */
    hotbed_key_counts *counts; /* [num_tables] in `counted` */
    hotbed_event *arrived;     /* recorded after the copy to `counted` */
    bool under_way;            /* the copy to `counted` is enqueued, and may not be complete */
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
    char why[192];              /* reason for the mode, for hotbed_storage_explain() */
    hotbed_optimizer optimizer; /* kind 0: none */
    hotbed_optimizer_view optimizer_view;
    uint64_t seed;
    uint32_t num_tables, num_features;
    uint32_t max_dim;
    /* longest row of the tables whose rows move; 0: some size is no multiple of 16 */
    uint32_t bulk_bytes;
    uint32_t move_sms; /* of hotbed_storage_options */
    hotbed_check check;
    hotbed_nonfinite nonfinite;
    hotbed_rows_form rows_form;
    uint32_t row_bits;         /* see hotbed_storage_view */
    bool indexed;              /* at least one table has its keys in the index */
    bool own_rates;            /* at least one table has an optimizer of its own */
    bool keys_leave;           /* at least one table evicts, so keys may leave their slots */
    bool timed;                /* at least one table has timestamps for scores */
    bool tracks;               /* at least one table tracks changes */
    uint64_t removed_capacity; /* a power of two */
    uint64_t changed_capacity; /* over an external store */
    bool admits;               /* a table has admission */
    bool counts_score;         /* a table's scores or admission need the occurrences of each key */
    uint32_t tickets;          /* number of tickets; atomic */
    uint32_t held;             /* number of tickets that hold pins; atomic */
    hotbed_table *tables;      /* [num_tables] */
    hotbed_table_names *names; /* of the tables, for the texts of faults */
    uint32_t *feature_tables;  /* [num_features] */
    uint64_t *columns;         /* [num_features + 1] */
    hotbed_index_view index;
    uint64_t index_slots; /* of the tables' first ranges in `index` */
    /* largest number of segments of the tables, plus 1 for the unused number 0; 0: no segments */
    uint32_t num_segments;
    uint64_t lower_bytes; /* bytes of lower-tier rows, segments included; atomic */
    hotbed_memory_kind lower_memory;
    hotbed_memory_kind lower_index_memory; /* DEVICE: lower tiers' indexes are in `index` */
    char *lower_directory;                 /* or NULL */
    hotbed_growth growth;
    hotbed_memory index_keys, index_metas;
    hotbed_memory described; /* device: table views, feature tables, columns, clock, tallies */
    hotbed_table_view *device_tables;
    hotbed_index_segment *device_segments; /* [num_segments] */
    uint32_t *device_feature_tables;
    uint64_t *device_columns;
    hotbed_clock *clock;
    hotbed_table_rates *rates; /* [num_tables], or NULL: no table has an optimizer of its own */
    hotbed_tally *tallies;
    uint64_t *expire_at;     /* [num_tables] number of the slot at which the next call begins */
    uint32_t *below;         /* see hotbed_eval_view */
    uint32_t *twice;         /* see hotbed_distinct_args; of the latest call that sets rows */
    uint32_t *holding;       /* see hotbed_storage_view */
    float *zeros;            /* likewise */
    hotbed_timer *timer;     /* NULL unless `timed` */
    hotbed_tracker *tracker; /* NULL unless `tracks` */
    hotbed_memory removals;  /* of the tracker */
    uint64_t *custom_scores;
    hotbed_memory warning;     /* pinned: a hotbed_fault, for CHECK_WARN and NONFINITE_SKIP */
    char load_warning[256];    /* for hotbed_storage_warning() */
    uint32_t load_warned;      /* atomic: load_warning has a text */
    hotbed_external *external; /* the store that has all rows; or NULL */
    pthread_mutex_t call_batches_lock;
    hotbed_call_batch *call_batches;
    hotbed_store_walk *walks;              /* [num_tables] exports; NULL before the first */
    hotbed_stored_changes *stored_changes; /* NULL unless `tracks` */
};

/* Copy the options to the library's struct and check them, without the tables. Errors: ARGUMENT. */
hotbed_status hotbed_storage_read_options(
    const hotbed_storage_options *options, hotbed_storage_options *out);

/* Read and check the options of all tables, and describe the tables in storage->tables. The
 * storage's own options must have been set. Errors: ARGUMENT, MEMORY. */
hotbed_status hotbed_storage_read_tables(
    hotbed_storage *storage, const hotbed_storage_options *options);

/* Choose the storage's mode and the number of keys of each upper tier. Tables must have
 * their options and row_bytes. Errors: ARGUMENT (CACHE or DEFAULT without a size), UNSUPPORTED
 * (memory of the lower tier). */
hotbed_status hotbed_mode_choose(hotbed_storage *storage, const hotbed_storage_options *options);

/* Assign slots to all tables, those in the index first, and numbers to their segments. */
void hotbed_storage_lay_out(hotbed_storage *storage);

/* The number of keys for which the tier that grows is sized in a table of `capacity`. With two tiers,
 * the lower one grows. */
uint64_t hotbed_layout_growing_keys(
    const hotbed_storage *storage, const hotbed_table *table, uint64_t capacity);

/* Slots of all tiers and segments of a table. */
uint64_t hotbed_table_all_slots(const hotbed_table *table);

/* Part number `part` of a table with an index: the upper tier, the lower tier if there is one, then
 * the segments. False if there is no such part. */
bool hotbed_table_part(
    const hotbed_storage *storage, const hotbed_table *table, uint32_t part,
    hotbed_index_part *out);

/* Whether a table may grow. */
static inline bool hotbed_table_grows(const hotbed_table *table) {
    return hotbed_table_growing(&table->view).segment != 0;
}

/* A segment as an index of its own. */
hotbed_index_part hotbed_segment_part(const hotbed_index_segment *segment);

/* The lower tier of a table as a segment; its `keys` is NULL if the lower tier is not a segment. */
hotbed_index_segment hotbed_table_lower_segment(const hotbed_table *table);

/* Bytes of a table's index, segments included. `upper` also has the admission counter. */
typedef struct hotbed_index_bytes {
    uint64_t upper, lower;
} hotbed_index_bytes;
hotbed_index_bytes hotbed_table_index_bytes(const hotbed_table *table);

void hotbed_growth_free(hotbed_table *table);

/* Grow a table so far that it holds `keys` keys and is below growth_load; without the memory for
 * that, so far that it holds them. max_capacity limits both. Does not wait.
 * Errors: as hotbed_storage_grow(). */
hotbed_status hotbed_growth_reserve(
    hotbed_storage *storage, uint32_t table, uint64_t keys, hotbed_stream *stream);

/* Whether hotbed_growth_exceed() can grow the table. */
bool hotbed_growth_may_exceed(const hotbed_storage *storage, const hotbed_table *table);

/* Grow a table that has reached max_capacity for `keys` more keys. A table that has grown in many
 * small steps has more slots than a table that has grown in few; a checkpoint of the first must
 * load into the second. *grown is false, and nothing has happened, if the table evicts or does not grow, or if
 * they are too many. Errors: MEMORY, DEVICE. */
hotbed_status hotbed_growth_exceed(
    hotbed_storage *storage, uint32_t table, uint64_t keys, hotbed_stream *stream, bool *grown);

/* Allocate what polls need if a table grows; does nothing otherwise. */
hotbed_status hotbed_growth_create(hotbed_storage *storage, hotbed_stream *stream);
void hotbed_growth_destroy(hotbed_storage *storage);

/* Write the changed rows of one table to the lower tier or the store; with `drop` also empty the
 * upper tier. Does nothing unless the mode is CACHE. Async. */
hotbed_status hotbed_storage_flush_table(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream);

/* Free all slots of a table and its admission counter; STATIC: initialize all rows. `fresh`: the
 * table is being created. No ticket may hold rows. Synchronous. */
hotbed_status hotbed_storage_empty_table(
    hotbed_storage *storage, uint32_t table, bool fresh, hotbed_stream *stream);

/* Free the slots of args->table.range; without an index, initialize all rows. `zero`: the memory
 * is new and zero. Async. */
hotbed_status hotbed_storage_free_slots(
    const hotbed_storage *storage, const hotbed_rows_args *args, bool zero, hotbed_stream *stream);

/* Errors: ARGUMENT if `stream` is NULL, or of another backend or device than the storage. */
hotbed_status hotbed_storage_same_device(
    const hotbed_storage *storage, const hotbed_stream *stream);

/* Errors: as above, and ARGUMENT if the table number is out of range. */
hotbed_status hotbed_storage_check_table(
    const hotbed_storage *storage, uint32_t table, const hotbed_stream *stream);

/* ARGUMENT: the table does not track changes. */
hotbed_status hotbed_fail_untracked(const hotbed_storage *storage, uint32_t table);

/* Export the selected slots of a window: args has everything but `bits`, `starts` and `groups`. Async. Uses
 * the stream's workspace. Errors: MEMORY, STATE (the workspace would have to grow while a graph is
 * recorded). */
hotbed_status hotbed_export_slots(
    const hotbed_storage *storage, hotbed_export_args *args, hotbed_stream *stream);

/* STATE unless `held`, the number of tickets that hold rows, is 0. */
hotbed_status hotbed_storage_check_held(uint32_t held);

/* Convert `rows` for kernels; NULL gives an empty view. Errors: ARGUMENT (states or times that the
 * rows do not have). */
hotbed_status hotbed_storage_rows_view(
    const hotbed_storage *storage, uint32_t table, const hotbed_rows *rows, hotbed_rows_view *out);

/* Arguments of kernels for a call on n rows by key. Errors: ARGUMENT, as of the call. */
hotbed_status hotbed_storage_rows_args(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    uint8_t *flags, hotbed_stream *stream, hotbed_rows_args *out);

/* Enqueue a search for a key that `args` has twice, and set args->twice, so that kernels then set
 * nothing. Uses the stream's workspace until then. Errors: ARGUMENT (n over 2^31), MEMORY, STATE (the
 * workspace would have to grow while a graph is recorded). */
hotbed_status hotbed_storage_check_distinct(
    const hotbed_storage *storage, hotbed_rows_args *args, hotbed_stream *stream);

/* Where kernels latch faults of keys, on a stream with the faults `of_stream`; NULL: faults are not
 * latched. */
hotbed_fault *hotbed_storage_faults(const hotbed_storage *storage, hotbed_fault *of_stream);

/* Check the values of a state as hotbed_storage_set_state() does. Errors: ARGUMENT. */
hotbed_status hotbed_storage_check_state(
    const hotbed_storage_state *state, hotbed_optimizer_kind kind);

/* Keep a text for hotbed_storage_warning() if the loaded checkpoint was `saved` with another seed
 * than the storage's, and new keys depend on the seed; but not if an earlier one was not read. */
void hotbed_storage_warn_of_seed(hotbed_storage *storage, uint64_t saved);

/* A step view with the storage's members set. */
hotbed_step_view hotbed_storage_step(const hotbed_storage *storage);

/* Convert a tally, or the difference of two. */
hotbed_table_stats hotbed_stats_of(hotbed_tally tally, uint64_t row_bytes);
/* Whether rows move between tiers. */
static inline bool hotbed_storage_moves(const hotbed_storage *storage) {
    return storage->tiers == HOTBED_TIERS_CACHE || storage->tiers == HOTBED_TIERS_SCORE;
}
