/* storage/step_core.h - what the kernels of a step see: a batch, a ticket's arrays and the tables. */
#ifndef HOTBED_STORAGE_STEP_CORE_H
#define HOTBED_STORAGE_STEP_CORE_H

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/types.h"
#include "storage/optimizer_core.h"
#include "storage/row_core.h"

/* Cumulative counts of a table; hotbed_table_stats is made from them. */
typedef struct hotbed_tally {
    uint64_t keys, uniques, inserts, evictions, refused, rejected;
    uint64_t fetches;     /* rows that came up from the lower tier */
    uint64_t write_backs; /* rows that went down */
    uint64_t in_place;    /* uniques whose rows were used in the lower tier */
} hotbed_tally;

/* What becomes of a unique that the upper tier does not have, in tables whose rows move. */
typedef struct hotbed_move {
    uint64_t backing;         /* its slot in the lower tier; HOTBED_SLOT_NONE: none */
    uint64_t evicted_backing; /* the lower tier's slot of the row that it evicts */
    uint64_t evicted_meta;    /* of the evicted row; 0: the slot was free */
    uint32_t flags;
    uint32_t unused;
} hotbed_move;

/* The time of TIMESTAMP tables, in microseconds. */
typedef struct hotbed_timer {
    uint64_t now;    /* of the last prefetch; 0: there was none */
    uint64_t offset; /* of the time from the machine's clock, modulo 2^64 */
    uint64_t newest; /* largest timestamp that was set by key */
} hotbed_timer;

struct hotbed_fault; /* base/fault.h */

/* Plain pointers; arrays are device memory.  n is the number of keys of the batch, which only the device
 * knows: table_starts[num_tables].  `bound` is the host's bound on it. */
typedef struct hotbed_step_view {
    /* the storage */
    const hotbed_table_view *tables; /* [num_tables] */
    const uint32_t *feature_tables;  /* [num_features] */
    const uint64_t *columns;         /* [num_features + 1] first output column */
    hotbed_index_view index;
    uint64_t index_slots; /* slots below it are in the index, others of static tables */
    hotbed_clock *clock;
    hotbed_tally *tallies;         /* [num_tables] */
    hotbed_timer *timer;           /* NULL: no table has timestamps */
    const uint64_t *custom_scores; /* [num_tables] */
    /* the batch */
    const uint64_t *keys;       /* [bound] */
    const int64_t *offsets;     /* [num_features * batch_size + 1], or NULL */
    const float *weights;       /* [bound], or NULL */
    const uint32_t *key_counts; /* [bound] occurrences that a key stands for, or NULL: 1 */
    uint64_t bound;
    /* the ticket */
    uint32_t *feature_starts; /* [num_features + 1] first key of each feature */
    uint32_t *table_starts;   /* [num_tables + 1] first key of each table */
    uint32_t *inverse;        /* [bound] key to unique; NULL in eval: every key is its own */
    uint64_t *unique_keys;    /* [bound] */
    uint32_t *unique_offsets; /* [num_tables + 1] */
    uint64_t *slots;          /* [bound] of each unique */
    uint32_t *starts;         /* [bound + 1] occurrences of unique u: positions[starts[u]] .. */
    uint32_t *positions;      /* [bound] ascending in each unique */
    uint64_t *counts;         /* [bound] occurrences that each unique stands for */
    uint32_t *bags;           /* [bound] bag of each key; NULL when a key is its own bag */
    /* [bound] uniques that their tables do not have, in any order; uniques that are not admitted are marked, see
     * score_core.h.  In eval, keys or bags that have to be read again, see lookup_core.h. */
    uint32_t *missing;
    uint32_t *num_missing; /* one word */
    uint32_t
        *held; /* one word: which pins of the ticket are on its slots, see hotbed_step_hold() */
    uint32_t *holding;  /* one word of the storage: bits that its tickets have there */
    hotbed_move *moves; /* [bound] of the missing; NULL: no table's rows move */
    /* [bound] numbers of moves by address of what they read below; in eval numbers of keys, by address of their
     * rows there, or NULL: rows are read in the order of the keys */
    uint32_t *move_order;
    /* [HOTBED_MOVE_WORDS] for it: their number, starts, and how many are taken */
    uint32_t *move_bins;
    uint32_t *below; /* one word: keys of the last eval whose rows were in the lower tier */
    uint64_t *begun; /* eval: one word, the prefetches before it, see lookup_core.h */
    struct hotbed_fault *faults;        /* of keys; NULL: not latched */
    struct hotbed_fault *offset_faults; /* of the batch's offsets */
    uint32_t num_tables, num_features, batch_size;
    uint32_t pooling;      /* hotbed_pooling */
    uint32_t output_dtype; /* hotbed_dtype */
    uint32_t eval;
    uint32_t
        released; /* layout: pins that the ticket may still have had were removed just before */
    uint32_t
        bulk_bytes; /* the longest row that moves; 0: the length of some row is no multiple of 16 */
    uint32_t move_sms;   /* of hotbed_storage_options */
    uint32_t below_from; /* eval reads rows of the lower tier by address if there are so many */
    uint32_t plain_rows; /* all tables are of f32 rows whose dim is a multiple of 4 */
} hotbed_step_view;

/* The view as a kernel sees it in a storage of which no table grows: what finds segments is not compiled, and
 * takes no registers.  `grows` is a literal. */
HOTBED_HD hotbed_step_view hotbed_step_as(hotbed_step_view s, bool grows) {
    if (!grows)
        s.index.segments = NULL;
    return s;
}

/* Parts of the lower tier, at least 128 MiB each; within one, rows may move in any order. */
enum { HOTBED_MOVE_BINS = 1023, HOTBED_MOVE_WORDS = HOTBED_MOVE_BINS + 2 };

/* Which of them a slot of the lower tier is in. */
HOTBED_HD uint32_t
hotbed_lower_bin(hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    uint64_t byte = table->lower_byte + (slot - table->lower_first) * table->row_bytes;
    if (hotbed_slot_grown(index, slot))
        byte = index.segments[slot >> HOTBED_SEGMENT_SHIFT].lower_byte +
               (slot & HOTBED_SEGMENT_SLOT) * table->row_bytes;
    uint64_t bin = byte >> table->bin_shift;
    return (uint32_t)(bin < HOTBED_MOVE_BINS ? bin : HOTBED_MOVE_BINS - 1);
}

#define HOTBED_NO_BAG UINT32_MAX /* in `bags`: a key that bad offsets left out */

/* Why a ticket has pins on its slots, one each: bits of hotbed_step_view.held. */
#define HOTBED_HELD_BATCH 1U /* until its backward */
#define HOTBED_HELD_KEPT  2U /* hotbed_ticket_keep() */

/* One lane: the pins are on from now on, or no more.  The device keeps count, because only it knows which recorded calls
 * were launched. */
HOTBED_HD void hotbed_step_hold(const hotbed_step_view *s, uint32_t why, bool on) {
    if (((*s->held & why) != 0) == on)
        return;
    *s->held ^= why;
    hotbed_add_relaxed_u32(s->holding, on ? 1U : UINT32_MAX);
}

/* The i with starts[i] <= at < starts[i + 1], in an ascending array of n + 1; at < starts[n]. */
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

/* The same for a caller that walks positions in order: goes on from the part of an earlier position. */
HOTBED_HD uint32_t hotbed_part_after(const uint32_t *starts, uint32_t part, uint32_t at) {
    while (starts[part + 1] <= at)
        part++;
    return part;
}

/* First and last key of bag b, inside of its feature; `good` is false when its offsets are not. */
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
