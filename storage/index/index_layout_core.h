/* storage/index/index_layout_core.h - the index's memory: buckets, metas and segments, and the buckets that
 * may hold a key. docs/design/index.md explains the design; index_find_core.h searches, and
 * index_place_core.h places and evicts.
 *
 * A table's slots form buckets of 16. The keys of a bucket are one 128-byte line, its metas
 * another. A key has an ordered list of candidate buckets: two by hash, then a probe sequence
 * from the second on, whose step also depends on the hash in large tables that refuse keys. Tests
 * check that no key is refused below a load of 0.97, and that 98.5 % of the keys are in one of
 * their first two buckets at that load.
 *
 * A meta is [score:52 | flagged | locked | occupied | probation | pins:8]; 0 is a free slot. Metas
 * decide who owns a slot. A find reads keys only, so free slots need a key that no find can match,
 * although every key can be stored: the free slots of bucket b hold a key for which b is not a
 * candidate. Each bucket has two such keys, its markers. EMPTY marks slots of buckets that were
 * never full and ends a probe sequence; ERASED marks other free slots.
 *
 * A table that has grown has several parts: its first range, and segments with their own memory,
 * buckets and candidates. A first range in memory of its own, such as a lower tier's, is a segment
 * too.
 *
 * Sources: scored buckets and in-place eviction, HierarchicalKV; two choices, Azar et al. 1999.
 */
#pragma once

#include "base/hash_core.h"
#include "base/port.h"
#include "hotbed/index.h"

enum {
    HOTBED_BUCKET_SLOTS = 16,
    /* With fewer spare slots more keys are in their first bucket, but the first key is refused at a
     * lower load: docs/design/index.md has the figures. */
    HOTBED_BUCKET_SPARE = 6,
    HOTBED_WALK_MOST = 128, /* candidates of a key in a large table that refuses keys */
    HOTBED_WALK_EVICT = 4, /* candidates in a table that evicts; the evicted row is one of theirs */
    HOTBED_PINS_MOST = 255,
};

#define HOTBED_META_PIN         ((uint64_t)1)
#define HOTBED_META_PINS        ((uint64_t)0xff)
#define HOTBED_META_PROBATION   ((uint64_t)1 << 8)
#define HOTBED_META_OCCUPIED    ((uint64_t)1 << 9)
#define HOTBED_META_LOCKED      ((uint64_t)1 << 10)
#define HOTBED_META_FLAGGED     ((uint64_t)1 << 11) /* see hotbed_index_range.flags */
#define HOTBED_META_SCORE_SHIFT 12
#define HOTBED_SCORE_MOST       (((uint64_t)1 << 52) - 1)

/* Slot i of segment n is n << HOTBED_SEGMENT_SHIFT | i. Segments are numbered from 1. */
#define HOTBED_SEGMENT_SHIFT 38
#define HOTBED_SEGMENT_SLOT  (((uint64_t)1 << HOTBED_SEGMENT_SHIFT) - 1)
/* The same shift for bucket numbers, as in hotbed_index_range.first_bucket; a bucket has 2^4
 * slots. */
#define HOTBED_SEGMENT_BUCKET_SHIFT (HOTBED_SEGMENT_SHIFT - 4)
/* Slots below this are in the index. Rows of static tables without an index follow. */
#define HOTBED_SLOT_UNINDEXED ((uint64_t)1 << 62)

/* One table's part of the index. */
typedef struct hotbed_index_range {
    uint64_t first_bucket; /* in a segment, the upper bits have the segment's number */
    uint32_t buckets;      /* at least 2 */
    uint32_t choices;      /* candidates of a key; less than `buckets` */
    uint8_t evicts;        /* whether a key whose candidates are full evicts the lowest score */
    uint8_t flags;         /* whether flagged slots are kept, as pinned ones are */
    uint16_t region_bits;  /* bits of the hash that a key's first two candidates share */
    uint32_t segment; /* number of the first segment that growth adds; 0: the table does not grow */
    uint64_t *times;  /* [slots] or NULL; the earliest time is evicted first among equal scores */
} hotbed_index_range;

HOTBED_HD uint64_t hotbed_index_range_slots(hotbed_index_range range) {
    return (uint64_t)range.buckets * HOTBED_BUCKET_SLOTS;
}

/* A segment that growth added, or a first range in memory of its own. The segments of a table have
 * consecutive numbers; one with no buckets ends the list. */
typedef struct hotbed_index_segment {
    uint64_t *keys;      /* [slots] */
    uint64_t *metas;     /* [slots] */
    uint8_t *rows;       /* in storages: the row of slot i is at rows + i * row_bytes */
    uint64_t lower_byte; /* in storages: where the rows begin in the lower tier, see row_core.h */
    hotbed_index_range range; /* slots are counted from 0 */
    uint32_t *changed;        /* in storages: see hotbed_table_view; or NULL */
} hotbed_index_segment;

/* All slots of an index; plain pointers without ownership. */
typedef struct hotbed_index_view {
    uint64_t *keys;  /* [slots] */
    uint64_t *metas; /* [slots] */
    /* by number; a literal NULL compiles kernels without code for segments */
    const hotbed_index_segment *segments;
} hotbed_index_view;

HOTBED_HD uint64_t *hotbed_index_meta(hotbed_index_view index, uint64_t slot) {
    uint64_t number = slot >> HOTBED_SEGMENT_SHIFT;
    return index.segments == NULL || number == 0
               ? &index.metas[slot]
               : &index.segments[number].metas[slot & HOTBED_SEGMENT_SLOT];
}

HOTBED_HD uint64_t *hotbed_index_key(hotbed_index_view index, uint64_t slot) {
    uint64_t number = slot >> HOTBED_SEGMENT_SHIFT;
    return index.segments == NULL || number == 0
               ? &index.keys[slot]
               : &index.segments[number].keys[slot & HOTBED_SEGMENT_SLOT];
}

/* A range of slots, and the index that its slot numbers refer to. */
typedef struct hotbed_index_part {
    hotbed_index_view index;
    hotbed_index_range range;
    uint64_t first; /* slot 0 of the part is slot `first` of the table */
} hotbed_index_part;

/* Part `part` of a table; 0 is its first range. */
HOTBED_HD hotbed_index_part
hotbed_index_part_at(hotbed_index_view index, hotbed_index_range range, uint32_t part) {
    hotbed_index_part at = {index, range, 0};
    if (part == 0)
        return at;
    uint64_t number = (uint64_t)range.segment + part - 1;
    const hotbed_index_segment *segment = &index.segments[number];
    at.index.keys = segment->keys;
    at.index.metas = segment->metas;
    at.range = segment->range;
    at.first = number << HOTBED_SEGMENT_SHIFT;
    return at;
}

/* The part of the table that contains `slot`. */
HOTBED_HD hotbed_index_part
hotbed_index_part_of(hotbed_index_view index, hotbed_index_range range, uint64_t slot) {
    uint64_t number = slot >> HOTBED_SEGMENT_SHIFT;
    bool first =
        index.segments == NULL || number == range.first_bucket >> HOTBED_SEGMENT_BUCKET_SHIFT;
    return hotbed_index_part_at(index, range, first ? 0 : (uint32_t)(number - range.segment) + 1);
}

/* Whether a table may have segments. */
HOTBED_HD bool hotbed_index_grows(hotbed_index_view index, hotbed_index_range range) {
    return index.segments != NULL && range.segment != 0;
}

/* Buckets of the grown segment number `grown`, counted from 0; 0 if it does not exist. */
HOTBED_HD uint32_t
hotbed_index_grown(hotbed_index_view index, hotbed_index_range range, uint32_t grown) {
    return index.segments[(uint64_t)range.segment + grown].range.buckets;
}

/* --- candidates ------------------------------------------------------------------------------- */

typedef struct hotbed_candidates {
    uint32_t first, second; /* bucket numbers within the table */
    uint32_t gap;           /* steps from `second` to `first`, wrapping around */
} hotbed_candidates;

/* The multiplication decorrelates candidates from the hash's order. Checkpoints list keys in that
 * order, so without it the front of a table would fill up first while loading. A table has
 * 2^region_bits regions; both of a key's first two candidates are in one, at about the same
 * relative position in every table with as many regions. */
HOTBED_HD hotbed_candidates hotbed_index_candidates(hotbed_index_range range, uint64_t key) {
    uint64_t hash = hotbed_hash_u64(key) * 0x9e3779b97f4a7c15U;
    hotbed_candidates c;
    uint32_t first = (uint32_t)hash, second = (uint32_t)(hash >> 32),
             within = UINT32_MAX >> range.region_bits;
    c.first = hotbed_scale_u32(first, range.buckets);
    c.second = hotbed_scale_u32((first & ~within) | (second & within), range.buckets);
    if (c.second == c.first)
        c.second = c.first + 1 == range.buckets ? 0 : c.first + 1;
    c.gap = c.first > c.second ? c.first - c.second : c.first + (range.buckets - c.second);
    return c;
}

/* Whether the buckets are so many that the steps of probe sequences differ between keys. With equal
 * steps, a run of full buckets as long as a probe sequence would refuse keys, and such runs form
 * when many keys are placed at the same time. */
HOTBED_HD bool hotbed_index_steps_differ(hotbed_index_range range) {
    return range.choices == HOTBED_WALK_MOST && range.buckets > 2 * HOTBED_WALK_MOST;
}

/* Buckets between two candidates of a probe sequence: at most buckets / HOTBED_WALK_MOST, so that no
 * bucket is visited twice; 1 if `second` follows `first`. */
HOTBED_HD uint32_t hotbed_index_step(hotbed_index_range range, hotbed_candidates c) {
    return 1 + hotbed_scale_u32(
                   (c.second - c.first - 1) * 0x9e3779b1U,
                   hotbed_index_steps_differ(range) ? range.buckets / HOTBED_WALK_MOST : 1);
}

/* Candidate number `choice` (>= 2). Where all steps are 1, a probe sequence leaves out the first
 * bucket. */
HOTBED_HD uint32_t
hotbed_index_walk(hotbed_index_range range, hotbed_candidates c, uint32_t choice) {
    uint64_t bucket = c.second + (uint64_t)(choice - 1) * hotbed_index_step(range, c);
    if (choice - 1 >= c.gap && !hotbed_index_steps_differ(range))
        bucket++;
    return (uint32_t)(bucket < range.buckets ? bucket : bucket - range.buckets);
}

/* Candidate number `choice` of a key. */
HOTBED_HD uint32_t
hotbed_index_candidate(hotbed_index_range range, hotbed_candidates c, uint32_t choice) {
    return choice == 0 ? c.first : choice == 1 ? c.second : hotbed_index_walk(range, c, choice);
}

/* --- markers ---------------------------------------------------------------------------------- */

/* The key for which hotbed_index_candidates() gets a word with two equal halves. Its candidates are
 * the bucket to which `half` scales, and those after it. */
HOTBED_HD uint64_t hotbed_index_key_from(uint32_t half) {
    return hotbed_unhash_u64(((uint64_t)half << 32 | half) * 0xf1de83e19937733dU);
}

/* hotbed_index_marker() in a small table: a key whose candidates begin with the next bucket. */
HOTBED_COLD uint64_t
hotbed_index_marker_near(hotbed_index_range range, uint32_t bucket, bool erased) {
    const uint64_t next = bucket + 1 == range.buckets ? 0 : bucket + 1;
    const uint64_t half = ((next << 32) + range.buckets - 1) / range.buckets;
    return hotbed_index_key_from((uint32_t)half + (erased ? 1U : 0U));
}

/* The key of free slots of a bucket: EMPTY, or, with `erased`, a literal, ERASED. It takes equally
 * long for all buckets of a table: if keys of some buckets were placed later than others, these
 * buckets would fill up first. In a large table the markers of the first buckets have their
 * candidates in the middle, and the others' are the first buckets. Their EMPTY is 0, as in new
 * memory. */
HOTBED_HD uint64_t hotbed_index_marker(hotbed_index_range range, uint32_t bucket, bool erased) {
    if (range.buckets <= 2 * range.choices)
        return hotbed_index_marker_near(range, bucket, erased);
    const uint32_t second = erased ? 1U : 0U;
    return bucket < range.choices ? hotbed_index_key_from((1U << 31) + second)
                                  : hotbed_index_key_from(second);
}

HOTBED_HD uint64_t hotbed_index_slot(hotbed_index_range range, uint32_t bucket) {
    return (range.first_bucket + bucket) * HOTBED_BUCKET_SLOTS;
}

/* The time of a slot, in a range that has times. */
HOTBED_HD uint64_t *hotbed_index_time(hotbed_index_range range, uint64_t slot) {
    return range.times + (slot - hotbed_index_slot(range, 0));
}

/* One lane: free all slots of a range whose words are 0, which is EMPTY in large tables, but for the
 * first buckets. */
HOTBED_HD void hotbed_index_start(hotbed_index_view index, hotbed_index_range range) {
    const uint32_t other = range.buckets <= 2 * range.choices ? range.buckets : range.choices;
    for (uint32_t bucket = 0; bucket < other; bucket++) {
        const uint64_t marker = hotbed_index_marker(range, bucket, false);
        for (uint32_t i = 0; i < HOTBED_BUCKET_SLOTS; i++)
            index.keys[hotbed_index_slot(range, bucket) + i] = marker;
    }
}
