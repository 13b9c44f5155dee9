/* storage/step_core.h - the data of a step as kernels see it: batch, ticket, and tables. */
#ifndef HOTBED_STORAGE_STEP_CORE_H
#define HOTBED_STORAGE_STEP_CORE_H

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/types.h"
#include "storage/optimizer_core.h"
#include "storage/row_core.h"

/* Cumulative counts of a table; the source of hotbed_table_stats. */
typedef struct hotbed_tally {
    uint64_t keys, uniques, inserts, evictions, refused, rejected;
    uint64_t fetches;     /* rows promoted or fetched */
    uint64_t write_backs; /* rows demoted or written back */
    uint64_t in_place;    /* unique keys whose rows were used in the lower tier */
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

struct hotbed_fault; /* base/fault.h */

/* Plain pointers; arrays are in device memory. The number of keys n of the batch is
 * table_starts[num_tables], which the host does not know; `bound` is its upper bound. */
typedef struct hotbed_step_view {
    /* the storage */
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
    /* the batch */
    const uint64_t *keys;       /* [bound] */
    const int64_t *offsets;     /* [num_features * batch_size + 1], or NULL */
    const float *weights;       /* [bound], or NULL */
    const uint32_t *key_counts; /* [bound] occurrences that each key stands for; NULL: 1 */
    uint64_t bound;
    /* the ticket */
    uint32_t *feature_starts; /* [num_features + 1] first key of each feature */
    uint32_t *table_starts;   /* [num_tables + 1] first key of each table */
    uint32_t *inverse; /* [bound] unique key of each key; NULL in eval, where each key is its own */
    uint64_t *unique_keys;    /* [bound] */
    uint32_t *unique_offsets; /* [num_tables + 1] */
    uint64_t *slots;          /* [bound] of each unique key */
    /* [bound + 1] unique key u occurs at positions[starts[u]] .. positions[starts[u + 1] - 1] */
    uint32_t *starts;
    uint32_t *positions; /* [bound] ascending within each unique key */
    uint64_t *counts;    /* [bound] occurrences of each unique key */
    uint32_t *bags;      /* [bound] bag of each key; NULL if each key is its own bag */
    /* [bound] unique keys that their tables lack, in any order. score_core.h flags those not
     * admitted. In eval: keys or bags that have to be read again, see lookup_core.h. */
    uint32_t *missing;
    uint32_t *num_missing; /* one word */
    uint32_t *held;        /* one word: kinds of pins that the ticket has, see hotbed_step_hold() */
    uint32_t *holding;     /* one word of the storage: kinds of pins, counted over its tickets */
    hotbed_move *moves;    /* [bound] one for each of `missing`; NULL if no table's rows move */
    /* [bound] indices of moves, sorted by region of the lower-tier address that they read. In
     * eval: deferred keys, sorted by region; NULL: keys are not deferred. */
    uint32_t *move_order;
    /* [HOTBED_MOVE_WORDS] counters for it: total, start of each region, entries taken */
    uint32_t *move_bins;
    uint32_t *below;             /* one word: lower-tier rows that the previous eval found */
    uint64_t *begun;             /* eval, one word: the epoch at its start, see lookup_core.h */
    struct hotbed_fault *faults; /* for faults of keys; NULL: not latched */
    struct hotbed_fault *offset_faults; /* for faults of the batch's offsets */
    uint32_t num_tables, num_features, batch_size;
    uint32_t pooling;      /* hotbed_pooling */
    uint32_t output_dtype; /* hotbed_dtype */
    uint32_t eval;
    uint32_t released; /* layout: the ticket's earlier pins were just released */
    /* longest row of the tables whose rows move; 0: some size is no multiple of 16 */
    uint32_t bulk_bytes;
    uint32_t move_sms; /* of hotbed_storage_options */
    /* eval defers lower-tier rows if the previous eval found at least this many */
    uint32_t below_from;
    uint32_t indexed;   /* whether a table's keys are in the index */
    uint32_t rows_form; /* hotbed_rows_form, of all tables */
} hotbed_step_view;

/* The view in a kernel for storages whose tables do not grow: with `grows`, a literal, false, the
 * code for segments is not compiled and takes no registers. */
HOTBED_HD hotbed_step_view hotbed_step_as(hotbed_step_view s, bool grows) {
    if (!grows)
        s.index.segments = NULL;
    return s;
}

/* Number of regions of the lower tier, at least 128 MiB each. Moves are sorted by region only. */
enum { HOTBED_MOVE_BINS = 1023, HOTBED_MOVE_WORDS = HOTBED_MOVE_BINS + 2 };

/* The region of a lower-tier slot. */
HOTBED_HD uint32_t
hotbed_lower_bin(hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    uint64_t byte = table->lower_byte + (slot - table->lower_first) * table->row_bytes;
    if (hotbed_slot_grown(index, slot))
        byte = index.segments[slot >> HOTBED_SEGMENT_SHIFT].lower_byte +
               (slot & HOTBED_SEGMENT_SLOT) * table->row_bytes;
    uint64_t bin = byte >> table->bin_shift;
    return (uint32_t)(bin < HOTBED_MOVE_BINS ? bin : HOTBED_MOVE_BINS - 1);
}

/* in `bags`: a key outside of all bags, because offsets are invalid */
#define HOTBED_NO_BAG UINT32_MAX

/* Kinds of pins that a ticket has on its slots, one pin each: bits of hotbed_step_view.held. */
#define HOTBED_HELD_BATCH 1U /* until its backward */
#define HOTBED_HELD_KEPT  2U /* hotbed_ticket_keep() */

/* One lane: record that the ticket has pins of kind `why`, or has none. This is kept on the
 * device, because the host does not know which recorded calls were launched. */
HOTBED_HD void hotbed_step_hold(const hotbed_step_view *s, uint32_t why, bool on) {
    if (((*s->held & why) != 0) == on)
        return;
    *s->held ^= why;
    hotbed_add_relaxed_u32(s->holding, on ? 1U : UINT32_MAX);
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
 * earlier position. */
HOTBED_HD uint32_t hotbed_part_after(const uint32_t *starts, uint32_t part, uint32_t at) {
    while (starts[part + 1] <= at)
        part++;
    return part;
}

/* First key and end of bag b, within its feature. `good` is false if its offsets are invalid. */
typedef struct hotbed_bag {
    uint32_t begin, end;
    bool good;
} hotbed_bag;

HOTBED_HD hotbed_bag hotbed_bag_at(const hotbed_step_view *s, uint64_t b, uint32_t feature) {
    hotbed_bag bag = {(uint32_t)b, (uint32_t)b + 1, true};
    if (s->offsets == NULL)
        return bag;
    int64_t begin = s->offsets[b], end = s->offsets[b + 1];
    int64_t low = s->feature_starts[feature], high = s->feature_starts[feature + 1];
    bag.good = begin >= low && begin <= end && end <= high;
    bag.begin = bag.good ? (uint32_t)begin : (uint32_t)low;
    bag.end = bag.good ? (uint32_t)end : (uint32_t)low;
    return bag;
}

#endif
