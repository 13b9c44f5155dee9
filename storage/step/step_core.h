/* storage/step/step_core.h - the data of a step as kernels see it: batch, ticket, and tables. */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/types.h"
#include "storage/step/change_core.h"
#include "storage/step/optimizer_core.h"
#include "storage/step/row_core.h"

/* Cumulative counts of a table; the source of hotbed_table_stats. */
typedef struct hotbed_tally {
    uint64_t keys, uniques, inserts, evictions, refused, rejected;
    uint64_t fetches;      /* rows promoted or fetched */
    uint64_t write_backs;  /* rows demoted or written back */
    uint64_t in_place;     /* unique keys whose rows were used in the lower tier */
    uint64_t nonfinite;    /* rows that were not updated, because the gradient was not finite */
    uint64_t rounded_away; /* rows that an update should have changed, but rounding did not */
    uint64_t expired;
} hotbed_tally;

/* In tables whose rows move between tiers: what a prefetch does for a unique key that the upper
 * tier lacks. */
typedef struct hotbed_move {
    /* slot of its row in the lower tier, or HOTBED_SLOT_NONE; with a store, its place in the
     * batch */
    uint64_t lower;
    uint64_t evicted_lower; /* lower-tier slot of the row evicted for it */
    uint64_t evicted_meta;  /* meta of the evicted row; 0: the slot was free */
    uint32_t flags;
    uint32_t unused;
} hotbed_move;

/* Time for scores of TIMESTAMP and TIMESTAMP_LFU tables, in microseconds. */
typedef struct hotbed_timer {
    uint64_t now;    /* time of the latest prefetch; 0: there was none */
    uint64_t offset; /* this time minus the machine's clock, modulo 2^64 */
    uint64_t newest; /* largest timestamp that was set by key */
} hotbed_timer;

/* Add the number of lanes for which `counts` holds. */
HOTBED_HD void hotbed_tally_lanes(uint64_t *tally, bool counts, uint32_t width) {
    uint32_t lanes = hotbed_bits_set(hotbed_tile_ballot(width, counts));
    if (hotbed_tile_rank(width) == 0 && lanes != 0)
        hotbed_add_relaxed_u64(tally, lanes);
}

struct hotbed_fault; /* base/fault.h */

/* --- the view of a step -------------------------------------------------------------------------
 *
 * Plain pointers to the arrays that kernels read and write, in device memory, and numbers. */

enum { HOTBED_REGISTER_DIM_MOST = 128 }; /* largest dim of rows that updates keep in registers */

/* The storage, the same for all batches. */
typedef struct hotbed_storage_view {
    const hotbed_table_view *tables; /* [num_tables] */
    const uint32_t *feature_tables;  /* [num_features] */
    const uint64_t *columns;         /* [num_features + 1] first output column */
    hotbed_index_view index;
    /* slots below it are in the index; slots from it on are rows of static tables */
    uint64_t index_slots;
    hotbed_clock *clock;
    hotbed_tally *tallies;         /* [num_tables] */
    hotbed_timer *timer;           /* NULL if no table has timestamps */
    const uint64_t *custom_scores; /* [num_tables] */
    uint32_t *holding;             /* one word: kinds of pins, counted over all tickets */
    const float *zeros;            /* [HOTBED_REGISTER_DIM_MOST] */
    hotbed_tracker *tracker;       /* NULL if no table tracks changes */
    uint32_t num_tables, num_features;
    uint32_t pooling;      /* hotbed_pooling */
    uint32_t output_dtype; /* hotbed_dtype */
    uint32_t indexed;      /* whether at least one table has its keys in the index */
    uint32_t keys_leave;   /* whether keys may leave their slots: a table evicts or moves rows */
    uint32_t rows_form;    /* hotbed_rows_form, of all tables */
    uint32_t row_bits; /* bits of hotbed_row_number(), by which keys are deduplicated; 0: by hash */
} hotbed_storage_view;

/* The batch. Its number of keys is table_starts[num_tables], which the host does not know. */
typedef struct hotbed_batch_view {
    const uint64_t *keys;        /* [bound] */
    const int64_t *offsets;      /* [num_features * size + 1], or NULL */
    const float *weights;        /* [bound], or NULL */
    const uint32_t *counts;      /* [bound] occurrences that each key stands for; NULL: 1 */
    uint64_t bound;              /* upper bound of the number of keys */
    uint32_t *feature_starts;    /* [num_features + 1] first key of each feature */
    uint32_t *table_starts;      /* [num_tables + 1] first key of each table */
    uint32_t *bags;              /* [bound] bag of each key; NULL if each key is its own bag */
    struct hotbed_fault *faults; /* for faults of keys; NULL: not latched */
    struct hotbed_fault *offset_faults; /* for faults of the offsets */
    uint32_t size;                      /* samples */
    /* Not 0: the batch is empty, and its prefetch is not counted, because the same keys will come
     * again; NULL: 0. */
    const uint32_t *overflow;
} hotbed_batch_view;

/* The unique keys of each table, and the ticket's pins on their slots. Eval does not dedup: there,
 * each key of the batch is a unique key of its own, and only `slots` is set. */
typedef struct hotbed_unique_view {
    uint32_t *inverse; /* [bound] unique key of each key of the batch; NULL: its own */
    uint64_t *keys;    /* [bound] */
    uint32_t *offsets; /* [num_tables + 1] first unique key of each table */
    uint64_t *slots;   /* [bound] HOTBED_SLOT_NONE: no row */
    /* [unique keys] where the rows are, instead of in slots: rows that another rank has sent, of the
     * tables' types. NULL, for a key: the row is zeros. Pooling only. */
    uint8_t *const *rows;
    /* [bound + 1] unique key u occurs at positions[starts[u]] .. positions[starts[u + 1] - 1] */
    uint32_t *starts;
    uint32_t *positions; /* [bound] ascending within each unique key */
    uint32_t by_bag;     /* whether `positions` has the bags of the occurrences instead */
    uint64_t *counts;    /* [bound] occurrences of each */
    /* [bound] the keys without a slot, in any order; score_core.h flags keys that are rejected */
    uint32_t *missing;
    uint32_t *num_missing; /* one word */
    uint32_t *held;        /* one word: kinds of pins that the ticket has, see hotbed_step_hold() */
    uint32_t released;     /* layout: the ticket's earlier pins were just released */
} hotbed_unique_view;

/* Indices, sorted by the region of the lower-tier address that each reads. */
typedef struct hotbed_region_sort {
    uint32_t *order; /* [bound] the indices */
    uint32_t *bins;  /* [HOTBED_BIN_WORDS] total, start of each region, entries taken */
} hotbed_region_sort;

/* Moves of rows between tiers. */
typedef struct hotbed_moves_view {
    hotbed_move *items;      /* [bound] one for each of unique.missing; NULL if no rows move */
    hotbed_region_sort sort; /* of indices of `items` */
    uint32_t bulk_bytes;     /* longest row that moves; 0: some size is no multiple of 16 */
    uint32_t sms;            /* move_sms of hotbed_storage_options */
} hotbed_moves_view;

/* Eval, which works beside training; forward_core.h says how. */
typedef struct hotbed_eval_view {
    uint64_t *begun;         /* one word: the epoch at its start */
    uint32_t *rereads;       /* [bound] keys or bags that have to be read again, in any order */
    uint32_t *num_rereads;   /* one word */
    uint64_t *deferred;      /* [bound] slot of each deferred key, otherwise HOTBED_SLOT_NONE */
    hotbed_region_sort sort; /* of deferred keys; order is NULL: no keys are deferred */
    uint32_t *below;         /* one word: lower-tier rows that the previous eval found */
    uint32_t below_from;     /* rows are deferred if the previous eval found at least this many */
    uint32_t on;             /* whether the step is an eval */
} hotbed_eval_view;

/* Where forward and eval write rows, if not to one output.
 *
 * Sequences: consecutive keys form *runs*; the rows of run q are adjacent in array q % num_arrays.
 * Keys outside of the runs are left out. Pooling: only `bags` is used. */
typedef struct hotbed_scatter_view {
    uint32_t on;            /* whether rows are scattered; otherwise other fields are unused */
    uint8_t *const *bags;   /* [bags] where the output of each bag goes; NULL: nowhere */
    uint8_t *const *arrays; /* [num_arrays] */
    uint64_t offset;        /* bytes from the beginning of each array to its row 0 */
    /* from one row to the next; every row is aligned to 16 bytes, packed ones to 4 */
    uint64_t row_bytes;
    const uint32_t *starts; /* [num_runs + 1] first key of each run, and the end of the last */
    const uint32_t *firsts; /* [num_runs] row of the run's first key */
    uint32_t num_runs, num_arrays;
    /* num_arrays writers write to the same arrays at the same time; the number of this one */
    uint32_t writer;
    /* [rows of array `writer`] forward: where each of these rows is: in its table, which is then not
     * copied, or in the array; NULL: all rows are copied */
    uint8_t **own;
    uint32_t few; /* take a quarter of the threads, because other kernels run beside */
    /* Sequences: hotbed_dtype with scales, in which rows are written instead of the storage's output
     * type; 0: none. A stored row of this type is copied. */
    uint32_t packed;
} hotbed_scatter_view;

typedef struct hotbed_step_view {
    hotbed_storage_view storage;
    hotbed_batch_view batch;
    hotbed_unique_view unique;
    hotbed_moves_view moves;
    hotbed_eval_view eval;
    hotbed_scatter_view to;
} hotbed_step_view;

/* The view in a kernel for storages whose tables do not grow: with `grows`, a literal, false, the
 * code for segments is not compiled and takes no registers. */
HOTBED_HD hotbed_step_view hotbed_step_as(hotbed_step_view s, bool grows) {
    if (!grows)
        s.storage.index.segments = NULL;
    return s;
}

/* Kinds of output. */
typedef enum hotbed_step_output {
    HOTBED_TO_ONE,
    HOTBED_TO_MANY, /* scattered */
    HOTBED_TO_MANY_PACKED,
} hotbed_step_output;

/* The view in a kernel for one kind of output, a literal: the code for the others is not compiled. */
HOTBED_HD hotbed_step_view hotbed_step_to(hotbed_step_view s, hotbed_step_output output) {
    s.to.on = output != HOTBED_TO_ONE ? 1 : 0;
    if (output != HOTBED_TO_MANY_PACKED)
        s.to.packed = 0;
    return s;
}

/* The kind of a step's output. */
HOTBED_HD hotbed_step_output hotbed_step_output_of(const hotbed_step_view *s) {
    if (s->to.on == 0)
        return HOTBED_TO_ONE;
    return s->to.packed == 0 ? HOTBED_TO_MANY : HOTBED_TO_MANY_PACKED;
}

/* Number of regions of the lower tier, at least 16 MiB each. Entries of one region are not
 * sorted. */
enum { HOTBED_BINS = 1023, HOTBED_BIN_WORDS = HOTBED_BINS + 2 };

/* The region of a lower-tier slot. */
HOTBED_HD uint32_t
hotbed_lower_bin(hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    uint64_t byte = table->lower_byte + (slot - table->lower_first) * table->row_bytes;
    if (hotbed_slot_grown(index, slot))
        byte = index.segments[slot >> HOTBED_SEGMENT_SHIFT].lower_byte +
               (slot & HOTBED_SEGMENT_SLOT) * table->row_bytes;
    uint64_t bin = byte >> table->bin_shift;
    return (uint32_t)(bin < HOTBED_BINS ? bin : HOTBED_BINS - 1);
}

/* in `bags`: a key outside of all bags, because offsets are invalid */
#define HOTBED_NO_BAG UINT32_MAX

/* The bag of an occurrence in `positions`. */
HOTBED_HD uint32_t hotbed_occurrence_bag(const hotbed_step_view *s, uint32_t position) {
    return s->unique.by_bag != 0 || s->batch.bags == NULL ? position : s->batch.bags[position];
}

/* Kinds of pins that a ticket has on its slots, one pin each: bits of hotbed_unique_view.held. */
#define HOTBED_HELD_BATCH 1U /* until its backward */
#define HOTBED_HELD_KEPT  2U /* hotbed_ticket_keep() */

/* Whether the batch's prefetch is counted. */
HOTBED_HD bool hotbed_batch_counts(const hotbed_step_view *s) {
    return s->batch.overflow == NULL || *s->batch.overflow == 0;
}

/* One lane: record that the ticket has pins of kind `why`, or has none. This is kept on the
 * device, because the host does not know which recorded calls were launched. */
HOTBED_HD void hotbed_step_hold(const hotbed_step_view *s, uint32_t why, bool on) {
    if (((*s->unique.held & why) != 0) == on)
        return;
    *s->unique.held ^= why;
    hotbed_add_relaxed_u32(s->storage.holding, on ? 1U : UINT32_MAX);
}

/* The i with starts[i] <= at < starts[i + 1], in an ascending array of n + 1 entries. `at` must be
 * less than starts[n]. */
HOTBED_HD uint32_t hotbed_part_of(const uint32_t *starts, uint32_t n, uint32_t at) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (starts[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The same, for callers that visit positions in ascending order: `part` is the result for an
 * earlier position. It is mostly the same part or one of the next. */
HOTBED_HD uint32_t
hotbed_part_after(const uint32_t *starts, uint32_t n, uint32_t part, uint32_t at) {
    for (uint32_t i = 0; i < 4; i++, part++)
        if (starts[part + 1] > at)
            return part;
    return part + hotbed_part_of(starts + part, n - part, at);
}

/* Where the row of key number i is written. */
typedef struct hotbed_scatter_place {
    uint32_t array;
    uint64_t row;
} hotbed_scatter_place;

HOTBED_HD hotbed_scatter_place hotbed_scatter_at(const hotbed_scatter_view *to, uint32_t i) {
    const uint32_t q = hotbed_part_of(to->starts, to->num_runs, i);
    hotbed_scatter_place at = {q % to->num_arrays, (uint64_t)to->firsts[q] + (i - to->starts[q])};
    return at;
}

HOTBED_HD uint8_t *hotbed_scatter_address(const hotbed_scatter_view *to, hotbed_scatter_place at) {
    return to->arrays[at.array] + to->offset + at.row * to->row_bytes;
}

HOTBED_HD uint8_t *hotbed_scatter_row(const hotbed_scatter_view *to, uint32_t i) {
    return hotbed_scatter_address(to, hotbed_scatter_at(to, i));
}

/* The keys of a batch of n whose rows forward and eval write. */
typedef struct hotbed_key_range {
    uint64_t begin, end;
} hotbed_key_range;

HOTBED_HD hotbed_key_range hotbed_scattered_keys(const hotbed_scatter_view *to, uint64_t n) {
    hotbed_key_range keys = {0, n};
    if (to->on != 0 && to->starts[to->num_runs] < n)
        keys.end = to->starts[to->num_runs];
    if (to->on != 0)
        keys.begin = to->starts[0] < keys.end ? to->starts[0] : keys.end;
    return keys;
}

/* Forward and eval of sequences handle n keys in tiles of `width` neighbouring keys. Return the first
 * key of the tile whose turn is number i / width. One output is written in the order of keys. If all
 * writers of several arrays did that, they would write to the same array at a time and wait for its
 * link. Therefore consecutive turns are of distant tiles, and each writer begins at another run. */
HOTBED_HD uint64_t
hotbed_tile_first(const hotbed_scatter_view *to, uint64_t n, uint64_t i, uint32_t width) {
    if (to->on == 0)
        return i;
    const uint32_t tiles = (uint32_t)((n + width - 1) / width), turn = (uint32_t)(i / width);
    const uint32_t each = tiles / to->num_arrays, longer = tiles % to->num_arrays;
    const uint32_t stretch = turn % to->num_arrays; /* the first `longer` have a tile more */
    uint64_t tile = (uint64_t)stretch * each + (stretch < longer ? stretch : longer) +
                    turn / to->num_arrays + (uint64_t)to->writer * (tiles / to->num_runs);
    return (tile < tiles ? tile : tile - tiles) * width;
}

/* The table of unique key u. */
HOTBED_HD uint32_t hotbed_table_of_unique(const hotbed_step_view *s, uint32_t u) {
    return hotbed_part_of(s->unique.offsets, s->storage.num_tables, u);
}

/* Row of a key of a static table. The keys that the table does not have share the row after its
 * last one. */
HOTBED_HD uint64_t hotbed_static_row(const hotbed_table_view *table, uint64_t key) {
    return key < table->capacity ? key : table->capacity;
}

/* Number of a key's row in a storage whose tables are all static: by table, then by row. */
HOTBED_HD uint32_t hotbed_row_number(const hotbed_step_view *s, uint32_t t, uint64_t key) {
    const hotbed_table_view *table = &s->storage.tables[t];
    const uint64_t first = table->first_slot - HOTBED_SLOT_UNINDEXED + t;
    return (uint32_t)(first + hotbed_static_row(table, key));
}

/* First key and end of bag b, within its feature. `good` is false if its offsets are invalid. */
typedef struct hotbed_bag {
    uint32_t begin, end;
    bool good;
} hotbed_bag;

HOTBED_HD hotbed_bag hotbed_bag_at(const hotbed_step_view *s, uint64_t b, uint32_t feature) {
    hotbed_bag bag = {(uint32_t)b, (uint32_t)b + 1, true};
    if (s->batch.offsets == NULL)
        return bag;
    int64_t begin = s->batch.offsets[b], end = s->batch.offsets[b + 1];
    int64_t low = s->batch.feature_starts[feature], high = s->batch.feature_starts[feature + 1];
    bag.good = begin >= low && begin <= end && end <= high;
    bag.begin = bag.good ? (uint32_t)begin : (uint32_t)low;
    bag.end = bag.good ? (uint32_t)end : (uint32_t)low;
    return bag;
}
