/* storage/storage.h - the inside of a storage and of a ticket. */
#ifndef HOTBED_STORAGE_STORAGE_H
#define HOTBED_STORAGE_STORAGE_H

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/storage.h"
#include "storage/export_kernels.h"
#include "storage/lookup_kernels.h"
#include "storage/rows_kernels.h"
#include "storage/score_kernels.h"
#include "storage/stats_kernels.h"
#include "storage/tier_kernels.h"
#include "storage/types.h"
#include "storage/unique_kernels.h"
#include "storage/update_kernels.h"

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
} hotbed_kernels;

typedef struct hotbed_table {
    char name[HOTBED_NAME_BYTES]; /* first, for hotbed_names_check() */
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t capacity;
    uint64_t counted;        /* FREQUENCY: keys that admission counts */
    uint64_t upper_capacity; /* with two tiers: keys that the upper one is made for */
    bool evicts;
    hotbed_table_view view; /* host copy of what the device has */
    hotbed_memory rows, lower_rows;
    hotbed_memory times; /* TIMESTAMP_LFU: of both tiers' slots */
} hotbed_table;

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
    hotbed_check check;
    bool plain_rows;          /* all tables are of f32 rows whose dim is a multiple of 4 */
    bool timed;               /* a table's scores are timestamps */
    bool admits;              /* a table does not take all keys */
    uint32_t tickets;         /* that exist; atomic */
    uint32_t held;            /* tickets that hold pins; atomic */
    hotbed_table *tables;     /* [num_tables] */
    uint32_t *feature_tables; /* [num_features] */
    uint64_t *columns;        /* [num_features + 1] */
    hotbed_index_view index;
    uint64_t index_slots;
    hotbed_memory index_keys, index_metas;
    hotbed_memory described; /* device: table views, feature tables, columns, clock, tallies */
    hotbed_table_view *device_tables;
    uint32_t *device_feature_tables;
    uint64_t *device_columns;
    hotbed_clock *clock;
    hotbed_tally *tallies;
    hotbed_timer *timer; /* NULL unless `timed` */
    uint64_t *custom_scores;
    hotbed_memory warning; /* pinned: a hotbed_fault, for CHECK_WARN */
};

struct hotbed_ticket {
    hotbed_storage *storage;
    hotbed_stream *last; /* stream of the last call */
    uint64_t max_keys;
    uint32_t max_batch_size;
    bool holds; /* prefetched: has a batch and its pins */
    hotbed_step_view step;
    hotbed_memory memory;
    void *unique_scratch;
    size_t unique_scratch_bytes;
    void *update_scratch;
    size_t update_scratch_bytes;
    uint32_t *bags; /* step.bags when the batch has offsets and is pooled */
};

/* Choose the storage's mode and how many keys each upper tier takes; tables have their options and row_bytes.
 * Errors: ARGUMENT (CACHE or DEFAULT without a size), UNSUPPORTED (memory of the lower tier). */
hotbed_status hotbed_mode_choose(hotbed_storage *storage, const hotbed_storage_options *options);

/* Give all tables their slots: in the index, then those without. */
void hotbed_mode_lay_out(hotbed_storage *storage);

/* Write changed rows of one table to the lower tier; with `drop` also empty the upper one.  Async; nothing to
 * do but with CACHE. */
hotbed_status hotbed_storage_flush_table(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream);

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

/* Where kernels on `stream` latch faults of keys; NULL: nowhere. */
hotbed_fault *hotbed_storage_faults(const hotbed_storage *storage, hotbed_stream *stream);

/* A step's view with what the storage gives. */
hotbed_step_view hotbed_storage_step(const hotbed_storage *storage);

/* What a tally, or the difference of two, says. */
void hotbed_stats_of(hotbed_tally tally, uint64_t row_bytes, hotbed_table_stats *out);
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

#endif
