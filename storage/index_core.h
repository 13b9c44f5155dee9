/* storage/index_core.h - the scored hash index of both backends. docs/design/index.md explains the
 * design.
 *
 * A table's slots form buckets of 16. The keys of a bucket are one 128-byte line, its metas
 * another. A key has an ordered list of candidate buckets: two by hash, then a probe sequence
 * through the buckets after the second. A new key goes to its first bucket if that one has more than
 * HOTBED_BUCKET_SPARE free slots, otherwise to the emptier of the first two. If both are full, it
 * goes to the first bucket of the probe sequence with a free slot. Most keys are thus in their first
 * bucket, and a find reads the second one only if the first lacks the key. Tests check that no key
 * is refused below a load of 0.97, and that 98.5 % of the keys are in one of their first two buckets
 * at that load.
 *
 * A meta is [score:52 | marked | locked | occupied | probation | pins:8]; 0 is a free slot. Metas
 * decide who owns a slot. A find reads keys only, so free slots need a key that no find can match,
 * although every key can be stored: the free slots of bucket b hold a key for which b is not a
 * candidate. Each bucket has two such keys. EMPTY marks slots of buckets that were never full and
 * ends a probe sequence; ERASED marks other free slots.
 *
 * An insertion claims a free slot by compare-and-swap on its meta, which also pins it. The key is
 * stored last, with release order, when the row is initialized (hotbed_index_publish()), so a
 * thread that finds the key also sees the row. An insertion that evicts locks the meta and replaces
 * the old key by ERASED first. The keys of one call are distinct. Calls that insert or erase do not
 * overlap each other; finds, pins and unpins may overlap them.
 *
 * A table that has grown has several parts: its first range, and segments with their own memory,
 * buckets and candidates. A key stays in its part. Finds search the oldest part first, since
 * frequent keys tend to be the oldest; new keys go to the newest part with free slots. A first
 * range in memory of its own, such as a lower tier's, is a segment too.
 *
 * Sources: scored buckets and in-place eviction, HierarchicalKV; two choices, Azar et al. 1999.
 */
#ifndef HOTBED_STORAGE_INDEX_CORE_H
#define HOTBED_STORAGE_INDEX_CORE_H

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/index.h"
#include "storage/hash_core.h"

enum {
    HOTBED_BUCKET_SLOTS = 16,
    /* With fewer spare slots more keys are in their first bucket, but the first key is refused at a
     * lower load: docs/design/index.md has the figures. */
    HOTBED_BUCKET_SPARE = 6,
    HOTBED_WALK_MOST = 128, /* most candidates of a key in a table that refuses keys */
    /* Buckets of a probe sequence between two tests whether it has ended. A test takes as many hashes
     * as a small table has buckets, because EMPTY is hard to find there. */
    HOTBED_WALK_STRIDE = 8,
    HOTBED_WALK_EVICT = 4, /* candidates in a table that evicts; the evicted row is one of theirs */
    HOTBED_PINS_MOST = 255,
};

#define HOTBED_META_PIN         ((uint64_t)1)
#define HOTBED_META_PINS        ((uint64_t)0xff)
#define HOTBED_META_PROBATION   ((uint64_t)1 << 8)
#define HOTBED_META_OCCUPIED    ((uint64_t)1 << 9)
#define HOTBED_META_LOCKED      ((uint64_t)1 << 10)
#define HOTBED_META_MARKED      ((uint64_t)1 << 11) /* see hotbed_index_range.marks */
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
    uint8_t marks;         /* whether marked slots are kept, as pinned ones are */
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

/* Result of claiming a slot for a key. */
typedef struct hotbed_index_result {
    uint64_t slot;         /* HOTBED_SLOT_NONE if refused */
    uint64_t evicted_key;  /* if `outcome` is EVICTED */
    uint64_t evicted_meta; /* likewise */
    hotbed_index_outcome outcome;
} hotbed_index_result;

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

/* Candidate number `choice` (>= 2): the buckets after the second, leaving out the first. */
HOTBED_HD uint32_t
hotbed_index_walk(hotbed_index_range range, hotbed_candidates c, uint32_t choice) {
    uint64_t bucket = (uint64_t)c.second + (choice - 1);
    if (choice - 1 >= c.gap)
        bucket++;
    return (uint32_t)(bucket < range.buckets ? bucket : bucket - range.buckets);
}

/* Whether `key` may be stored in bucket `bucket` of the table. */
HOTBED_HD bool hotbed_index_may_hold(hotbed_index_range range, uint64_t key, uint32_t bucket) {
    hotbed_candidates c = hotbed_index_candidates(range, key);
    if (bucket == c.first)
        return true;
    uint32_t steps = bucket >= c.second ? bucket - c.second : bucket + (range.buckets - c.second);
    uint32_t choice = 1 + steps - (steps > c.gap ? 1U : 0U);
    return choice < range.choices;
}

/* hotbed_index_marker() for buckets that may hold key 0, and for ERASED. */
HOTBED_COLD uint64_t
hotbed_index_marker_search(hotbed_index_range range, uint32_t bucket, bool erased) {
    uint64_t key = 0;
    for (uint32_t found = 0;; key++) {
        if (hotbed_index_may_hold(range, key, bucket))
            continue;
        if (found == (erased ? 1U : 0U))
            return key;
        found++;
    }
}

/* The key of free slots of a bucket: EMPTY is the smallest key that may not be stored there, ERASED
 * the next. Key 0 has hash 0, so its candidates are the first buckets. */
HOTBED_HD uint64_t hotbed_index_marker(hotbed_index_range range, uint32_t bucket, bool erased) {
    return !erased && bucket >= range.choices ? 0
                                              : hotbed_index_marker_search(range, bucket, erased);
}

HOTBED_HD uint64_t hotbed_index_slot(hotbed_index_range range, uint32_t bucket) {
    return (range.first_bucket + bucket) * HOTBED_BUCKET_SLOTS;
}

/* One lane: free all slots of a range whose words are 0. Key 0 then marks free slots, except in
 * its own candidate buckets. */
HOTBED_HD void hotbed_index_start(hotbed_index_view index, hotbed_index_range range) {
    hotbed_candidates c = hotbed_index_candidates(range, 0);
    for (uint32_t choice = 0; choice < range.choices; choice++) {
        uint32_t bucket = choice == 0   ? c.first
                          : choice == 1 ? c.second
                                        : hotbed_index_walk(range, c, choice);
        uint64_t marker = hotbed_index_marker(range, bucket, false);
        for (uint32_t i = 0; i < HOTBED_BUCKET_SLOTS; i++)
            index.keys[hotbed_index_slot(range, bucket) + i] = marker;
    }
}

/* --- lines of 16 words ------------------------------------------------------------------------ */

/* Which words of a line equal `word`, one bit each; each lane returns the bits of the words that it
 * reads. */
HOTBED_HD uint32_t hotbed_line_match(const uint64_t *line, uint64_t word, uint32_t width) {
    uint32_t bits = 0;
    if (width == 1)
        return hotbed_match16(line, word);
    HOTBED_UNROLL
    for (uint32_t pair = hotbed_tile_rank(width); pair < HOTBED_BUCKET_SLOTS / 2; pair += width) {
        hotbed_u64x2 words = hotbed_load_relaxed_u64x2(line + (size_t)2 * pair);
        bits |= (words.a == word ? 1U : 0U) << (2 * pair);
        bits |= (words.b == word ? 2U : 0U) << (2 * pair);
    }
    return bits;
}

enum { HOTBED_LINES_AHEAD = 4 }; /* lines that a tile reads at most before it looks at the first */

/* Which words of each lane's own line equal the lane's word, one bit each, for the lanes in `wanted`
 * (a bit each); 0 for others. The lanes read the lines together, `ahead` at a time, a literal: 2 or
 * 4. `cached`, equal on all lanes: read as by hotbed_load_cached_u64x2(). */
HOTBED_HD uint32_t hotbed_line_match_each(
    const uint64_t *line, uint64_t word, uint32_t wanted, uint32_t ahead, bool cached,
    uint32_t width) {
    const uint32_t rank = hotbed_tile_rank(width);
    uint32_t equal = 0;
    if (width == 1)
        return wanted != 0 ? hotbed_match16(line, word) : 0;
    for (uint32_t left = wanted; left != 0;) {
        uint32_t lane[HOTBED_LINES_AHEAD]; /* whose line it is; UINT32_MAX: there are no more */
        hotbed_u64x2 words[HOTBED_LINES_AHEAD][HOTBED_BUCKET_SLOTS / 4];
        uint32_t bits[HOTBED_LINES_AHEAD / 2] = {0}; /* 16 for each line, two lines to a word */
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_LINES_AHEAD; k++) {
            if (k >= ahead || k >= width)
                continue;
            lane[k] = left != 0 ? hotbed_lowest_bit(left) : UINT32_MAX;
            left &= left - 1;
            const uint64_t *at = (const uint64_t *)(uintptr_t)hotbed_tile_shuffle_u64(
                                     width, (uint64_t)(uintptr_t)line, lane[k] % width) +
                                 (size_t)2 * rank;
            HOTBED_UNROLL
            for (uint32_t j = 0; j < HOTBED_BUCKET_SLOTS / 4; j++) {
                const hotbed_u64x2 none = {0, 0};
                words[k][j] = none;
                if (j * width < HOTBED_BUCKET_SLOTS / 2 &&
                    rank + j * width < HOTBED_BUCKET_SLOTS / 2 && lane[k] != UINT32_MAX)
                    words[k][j] = cached ? hotbed_load_cached_u64x2(at + (size_t)2 * j * width)
                                         : hotbed_load_relaxed_u64x2(at + (size_t)2 * j * width);
            }
        }
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_LINES_AHEAD; k++) {
            if (k >= ahead || k >= width)
                continue;
            const uint64_t sought = hotbed_tile_shuffle_u64(width, word, lane[k] % width);
            HOTBED_UNROLL
            for (uint32_t j = 0; j < HOTBED_BUCKET_SLOTS / 4; j++) {
                const hotbed_u64x2 pair = words[k][j];
                if (j * width >= HOTBED_BUCKET_SLOTS / 2 ||
                    rank + j * width >= HOTBED_BUCKET_SLOTS / 2)
                    continue;
                const uint32_t shift = 16 * (k % 2) + 2 * j * width;
                if (pair.a == sought)
                    bits[k / 2] |= 1U << shift;
                if (pair.b == sought)
                    bits[k / 2] |= 2U << shift;
            }
        }
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_LINES_AHEAD; k++) {
            if (k >= ahead || k >= width)
                continue;
            if (k % 2 == 0)
                bits[k / 2] = hotbed_tile_or(width, bits[k / 2] << 2 * (rank % 8));
            if (rank == lane[k])
                equal = bits[k / 2] >> 16 * (k % 2) & 0xffffU;
        }
    }
    return equal;
}

/* --- find ------------------------------------------------------------------------------------- */

/* A key and the first slots of its first two candidate buckets. */
typedef struct hotbed_probe {
    uint64_t key;
    uint64_t first, second; /* slots */
} hotbed_probe;

HOTBED_HD hotbed_probe hotbed_index_probe(hotbed_index_range range, uint64_t key) {
    hotbed_candidates c = hotbed_index_candidates(range, key);
    hotbed_probe probe;
    probe.key = key;
    probe.first = hotbed_index_slot(range, c.first);
    probe.second = range.choices > 1 ? hotbed_index_slot(range, c.second) : probe.first;
    return probe;
}

/* Slot of a line that holds the key, from the bits of hotbed_line_match(), or HOTBED_SLOT_NONE. */
HOTBED_HD uint64_t hotbed_line_slot(uint64_t line, uint32_t bits, uint32_t width) {
    uint32_t hit = hotbed_tile_ballot(width, bits != 0);
    if (hit == 0)
        return HOTBED_SLOT_NONE;
    return line + hotbed_lowest_bit(hotbed_tile_shuffle_u32(width, bits, hotbed_lowest_bit(hit)));
}

/* Slot of the probe's key in one of the two buckets, or HOTBED_SLOT_NONE. */
HOTBED_HD uint64_t
hotbed_index_probe_slot(hotbed_index_view index, hotbed_probe probe, uint32_t width) {
    uint64_t slot = hotbed_line_slot(
        probe.first, hotbed_line_match(hotbed_index_key(index, probe.first), probe.key, width),
        width);
    if (slot != HOTBED_SLOT_NONE)
        return slot;
    return hotbed_line_slot(
        probe.second, hotbed_line_match(hotbed_index_key(index, probe.second), probe.key, width),
        width);
}

/* Which slots of a bucket were never used; each lane returns the bits of the words that it reads.
 * A search ends at such a bucket. For short probe sequences the test costs more than it saves, so
 * it is skipped. */
HOTBED_HD uint32_t hotbed_index_walk_ends(
    hotbed_index_view index, hotbed_index_range range, uint32_t bucket, uint32_t width) {
    if (range.choices <= HOTBED_WALK_EVICT)
        return 0;
    return hotbed_line_match(
        hotbed_index_key(index, hotbed_index_slot(range, bucket)),
        hotbed_index_marker(range, bucket, false), width);
}

/* Search the probe sequence of a key that is in neither of its first two candidates. */
HOTBED_HD uint64_t hotbed_index_find_walk(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    if (range.choices <= 2)
        return HOTBED_SLOT_NONE;
    hotbed_candidates c = hotbed_index_candidates(range, key);
    uint32_t bits = hotbed_index_walk_ends(index, range, c.first, width) |
                    hotbed_index_walk_ends(index, range, c.second, width);
    for (uint32_t choice = 2; choice < range.choices; choice++) {
        if (choice % HOTBED_WALK_STRIDE == 2 && hotbed_tile_ballot(width, bits != 0) != 0)
            return HOTBED_SLOT_NONE; /* an earlier candidate was never full */
        uint32_t bucket = hotbed_index_walk(range, c, choice);
        uint64_t slot = hotbed_index_slot(range, bucket);
        slot = hotbed_line_slot(
            slot, hotbed_line_match(hotbed_index_key(index, slot), key, width), width);
        if (slot != HOTBED_SLOT_NONE)
            return slot;
        if ((choice + 1) % HOTBED_WALK_STRIDE == 2)
            bits = hotbed_index_walk_ends(index, range, bucket, width);
    }
    return HOTBED_SLOT_NONE;
}

/* Search the segments of a table that grows. */
HOTBED_COLD uint64_t hotbed_index_find_grown(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    for (uint32_t grown = 0; hotbed_index_grown(index, range, grown) != 0; grown++) {
        hotbed_index_part part = hotbed_index_part_at(index, range, grown + 1);
        hotbed_probe probe = hotbed_index_probe(part.range, key);
        uint64_t slot = hotbed_index_probe_slot(part.index, probe, width);
        if (slot == HOTBED_SLOT_NONE)
            slot = hotbed_index_find_walk(part.index, part.range, key, width);
        if (slot != HOTBED_SLOT_NONE)
            return part.first + slot;
    }
    return HOTBED_SLOT_NONE;
}

/* Search for a key that is in neither of its first two candidates of the first part. */
HOTBED_HD uint64_t hotbed_index_find_rest(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    uint64_t slot = hotbed_index_find_walk(index, range, key, width);
    return slot == HOTBED_SLOT_NONE && hotbed_index_grows(index, range)
               ? hotbed_index_find_grown(index, range, key, width)
               : slot;
}

/* Slot of the probe's key, or HOTBED_SLOT_NONE. All lanes get the same result. */
HOTBED_HD uint64_t hotbed_index_find_probe(
    hotbed_index_view index, hotbed_index_range range, hotbed_probe probe, uint32_t width) {
    uint64_t slot = hotbed_index_probe_slot(index, probe, width);
    return slot != HOTBED_SLOT_NONE ? slot : hotbed_index_find_rest(index, range, probe.key, width);
}

HOTBED_HD uint64_t
hotbed_index_find(hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    return hotbed_index_find_probe(index, range, hotbed_index_probe(range, key), width);
}

/* The range of lane `lane`. */
HOTBED_HD hotbed_index_range
hotbed_index_range_of(hotbed_index_range mine, uint32_t lane, uint32_t width) {
    hotbed_index_range range = mine;
    range.first_bucket = hotbed_tile_shuffle_u64(width, mine.first_bucket, lane);
    range.buckets = hotbed_tile_shuffle_u32(width, mine.buckets, lane);
    range.choices = hotbed_tile_shuffle_u32(width, mine.choices, lane);
    const uint32_t bits =
        mine.evicts | (uint32_t)mine.marks << 8 | (uint32_t)mine.region_bits << 16;
    const uint32_t its = hotbed_tile_shuffle_u32(width, bits, lane);
    range.evicts = (uint8_t)its;
    range.marks = (uint8_t)(its >> 8);
    range.region_bits = (uint16_t)(its >> 16);
    range.segment = hotbed_tile_shuffle_u32(width, mine.segment, lane);
    range.times = (uint64_t *)(uintptr_t)hotbed_tile_shuffle_u64(
        width, (uint64_t)(uintptr_t)mine.times, lane);
    return range;
}

/* Candidate number `choice` of a key. */
HOTBED_HD uint32_t
hotbed_index_candidate(hotbed_index_range range, hotbed_candidates c, uint32_t choice) {
    return choice == 0 ? c.first : choice == 1 ? c.second : hotbed_index_walk(range, c, choice);
}

/* Find the key of each lane in `wanted` (a bit each). Each lane hashes its own key; then all lanes
 * read the lines of several keys at a time: first the first bucket of each key, then the second
 * buckets of the keys not found, and so on. `cached`, equal on all lanes: lines may come from the L1
 * cache, so a search may miss a key that was inserted since the start of the kernel, and find a
 * key that was removed since then. */
HOTBED_HD uint64_t hotbed_index_find_each(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t wanted, bool cached,
    uint32_t width) {
    const uint32_t rank = hotbed_tile_rank(width);
    const bool mine = (wanted >> rank & 1U) != 0;
    hotbed_candidates c = {0, 0, 0};
    if (mine)
        c = hotbed_index_candidates(range, key);
    else
        range.first_bucket = range.segment = 0;
    uint32_t bucket = c.first;
    uint64_t line = hotbed_index_slot(range, bucket), found = HOTBED_SLOT_NONE;
    bool looks = mine; /* the search has not ended */
    uint32_t equal = hotbed_line_match_each(
        hotbed_index_key(index, line), key, wanted, HOTBED_LINES_AHEAD, cached, width);
    for (uint32_t choice = 1;; choice++) {
        if (equal != 0)
            found = line + hotbed_lowest_bit(equal);
        looks = looks && found == HOTBED_SLOT_NONE && choice < range.choices;
        if (choice % HOTBED_WALK_STRIDE == 2) { /* the bucket read last may end the search */
            const bool tests = looks && range.choices > HOTBED_WALK_EVICT;
            const uint32_t testing = hotbed_tile_ballot(width, tests);
            if (testing != 0) {
                const uint64_t empty = tests ? hotbed_index_marker(range, bucket, false) : 0;
                equal = hotbed_line_match_each(
                    hotbed_index_key(index, line), empty, testing, HOTBED_LINES_AHEAD / 2, cached,
                    width);
                looks = looks && equal == 0;
            }
        }
        const uint32_t left = hotbed_tile_ballot(width, looks);
        if (left == 0)
            break;
        if (looks) {
            bucket = hotbed_index_candidate(range, c, choice);
            line = hotbed_index_slot(range, bucket);
        }
        equal = hotbed_line_match_each(
            hotbed_index_key(index, line), key, left, HOTBED_LINES_AHEAD / 2, cached, width);
    }
    if (index.segments == NULL)
        return found;
    const bool lacks = mine && found == HOTBED_SLOT_NONE && hotbed_index_grows(index, range);
    for (uint32_t left = hotbed_tile_ballot(width, lacks); left != 0; left &= left - 1) {
        const uint32_t lane = hotbed_lowest_bit(left);
        const uint64_t slot = hotbed_index_find_grown(
            index, hotbed_index_range_of(range, lane, width),
            hotbed_tile_shuffle_u64(width, key, lane), width);
        if (rank == lane)
            found = slot;
    }
    return found;
}

/* --- claim: find, or insert and perhaps evict ------------------------------------------------- */

HOTBED_HD uint64_t hotbed_meta_score(uint64_t meta) {
    return meta >> HOTBED_META_SCORE_SHIFT;
}

/* Order of eviction: the lowest rank goes first, and keys on probation before all others. Keys on
 * probation have equal rank, so the lowest slot goes first. Evicting the oldest of them instead
 * would, for keys that recur in a cycle longer than the table, evict each key just before it
 * recurs. */
HOTBED_HD uint64_t hotbed_meta_rank(uint64_t meta) {
    return (meta & HOTBED_META_PROBATION) != 0 ? 0 : hotbed_meta_score(meta) + 1;
}

HOTBED_HD uint64_t hotbed_meta_rescore(uint64_t meta, hotbed_score_rule rule, uint64_t score) {
    uint64_t old = hotbed_meta_score(meta);
    uint64_t value = rule == HOTBED_SCORE_KEEP     ? old
                     : rule == HOTBED_SCORE_ASSIGN ? score
                                                   : old + score;
    if (value > HOTBED_SCORE_MOST)
        value = HOTBED_SCORE_MOST;
    meta &= ((uint64_t)1 << HOTBED_META_SCORE_SHIFT) - 1;
    if (rule != HOTBED_SCORE_KEEP)
        meta &= ~HOTBED_META_PROBATION;
    return meta | value << HOTBED_META_SCORE_SHIFT;
}

/* Meta of a slot claimed for a new key. */
HOTBED_HD uint64_t hotbed_meta_new(uint64_t score, uint64_t pins) {
    return hotbed_meta_rescore(
        HOTBED_META_OCCUPIED | HOTBED_META_LOCKED | pins, HOTBED_SCORE_ASSIGN, score);
}

/* One lane: score the key that was found in `slot` and add to its pins. Only for tables whose keys
 * stay in their slots during the call: other threads then change pins only, so an addition
 * suffices. */
HOTBED_HD void hotbed_index_touch_found(
    hotbed_index_view index, uint64_t slot, hotbed_score_rule rule, uint64_t score, uint64_t pins) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    uint64_t old = hotbed_load_relaxed_u64(meta);
    hotbed_add_relaxed_u64(meta, hotbed_meta_rescore(old, rule, score) - old + pins);
}

/* One lane: the same while other keys are being placed; false if the key has been evicted since it
 * was found. The key is compared under the lock, because a meta loaded after the find may belong
 * to the slot's next key. */
HOTBED_HD bool hotbed_index_touch(
    hotbed_index_view index, uint64_t slot, uint64_t key, hotbed_score_rule rule, uint64_t score,
    uint64_t pins) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    uint64_t old = hotbed_load_relaxed_u64(meta);
    for (; (old & HOTBED_META_LOCKED) == 0 && old != 0; old = hotbed_load_relaxed_u64(meta)) {
        if (!hotbed_cas_u64(meta, old, old | HOTBED_META_LOCKED))
            continue;
        bool same = hotbed_load_relaxed_u64(hotbed_index_key(index, slot)) == key;
        uint64_t change = same ? hotbed_meta_rescore(old, rule, score) - old + pins : 0;
        hotbed_add_release_u64(meta, change - HOTBED_META_LOCKED);
        return same;
    }
    return false;
}

/* Free slots of candidate buckets, and the row with the lowest rank among the metas that this lane
 * reads. */
typedef struct hotbed_bucket_scan {
    uint32_t free;        /* bits of free slots, over all lanes */
    uint64_t lowest_rank; /* UINT64_MAX: no row can be evicted */
    uint64_t lowest_time; /* only if the range has times */
    uint64_t lowest_meta;
    uint64_t lowest_slot;
    bool busy; /* a slot is locked and not pinned, so it may soon be evictable */
} hotbed_bucket_scan;

/* Whether a slot is evicted before the lowest one found so far. */
HOTBED_HD bool hotbed_evicts_before(
    const hotbed_bucket_scan *scan, uint64_t rank, uint64_t time, uint64_t slot) {
    if (rank != scan->lowest_rank)
        return rank < scan->lowest_rank;
    return time < scan->lowest_time || (time == scan->lowest_time && slot < scan->lowest_slot);
}

/* The time of a slot, in a range that has times. */
HOTBED_HD uint64_t *hotbed_index_time(hotbed_index_range range, uint64_t slot) {
    return range.times + (slot - hotbed_index_slot(range, 0));
}

HOTBED_HD uint32_t hotbed_index_scan(
    hotbed_index_view index, hotbed_index_range range, uint64_t line, hotbed_bucket_scan *scan,
    uint32_t width) {
    const uint64_t kept = HOTBED_META_PINS | (range.marks != 0 ? HOTBED_META_MARKED : 0);
    const uint64_t *words = hotbed_index_meta(index, line);
    const uint32_t first = hotbed_tile_rank(width);
    hotbed_u64x2 pairs[HOTBED_BUCKET_SLOTS / 2] = {{0, 0}};
    uint32_t free = 0;
    HOTBED_UNROLL
    for (uint32_t k = 0; k < HOTBED_BUCKET_SLOTS / 2; k++)
        if (first + k * width < HOTBED_BUCKET_SLOTS / 2)
            pairs[k] = hotbed_load_relaxed_u64x2(words + (size_t)2 * (first + k * width));
    HOTBED_UNROLL
    for (uint32_t k = 0; k < HOTBED_BUCKET_SLOTS / 2; k++) {
        const uint32_t pair = first + k * width;
        if (pair >= HOTBED_BUCKET_SLOTS / 2)
            continue;
        const hotbed_u64x2 metas = pairs[k];
        free |= (metas.a == 0 ? 1U : 0U) << (2 * pair);
        free |= (metas.b == 0 ? 2U : 0U) << (2 * pair);
        HOTBED_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            uint64_t meta = half == 0 ? metas.a : metas.b;
            if (range.evicts == 0)
                continue;
            if ((meta & HOTBED_META_LOCKED) != 0 && (meta & kept) == 0)
                scan->busy = true;
            if (meta == 0 || (meta & (kept | HOTBED_META_LOCKED)) != 0)
                continue;
            uint64_t rank = hotbed_meta_rank(meta), slot = line + 2 * pair + half, time = 0;
            if (range.times != NULL && (meta & HOTBED_META_PROBATION) == 0)
                time = hotbed_load_relaxed_u64(hotbed_index_time(range, slot));
            if (hotbed_evicts_before(scan, rank, time, slot)) {
                scan->lowest_rank = rank;
                scan->lowest_time = time;
                scan->lowest_meta = meta;
                scan->lowest_slot = slot;
            }
        }
    }
    return hotbed_tile_or(width, free);
}

/* One lane: replace the key of a claimed slot by ERASED, so that finds miss it and probe sequences
 * continue past it. */
HOTBED_HD void hotbed_index_forget(
    hotbed_index_view index, hotbed_index_range range, uint64_t slot) {
    hotbed_index_part part = hotbed_index_part_of(index, range, slot);
    slot -= part.first;
    uint32_t bucket = (uint32_t)(slot / HOTBED_BUCKET_SLOTS - part.range.first_bucket);
    hotbed_store_release_u64(
        hotbed_index_key(part.index, slot), hotbed_index_marker(part.range, bucket, true));
    hotbed_fence(); /* an eval that reads the new row also sees that the old key is gone */
}

/* Claim a free slot of a line, the first at or after `from`; HOTBED_SLOT_NONE if another tile
 * claimed it. */
HOTBED_HD uint64_t hotbed_index_take(
    hotbed_index_view index, uint64_t line, uint32_t free, uint32_t from, uint64_t meta,
    uint32_t width) {
    uint32_t after = free >> from << from;
    uint64_t slot = line + hotbed_lowest_bit(after != 0 ? after : free);
    bool won =
        hotbed_tile_rank(width) == 0 && hotbed_cas_u64(hotbed_index_meta(index, slot), 0, meta);
    return hotbed_tile_ballot(width, won) != 0 ? slot : HOTBED_SLOT_NONE;
}

/* hotbed_index_place_over() within one part of a table. */
HOTBED_HD hotbed_index_result hotbed_index_place_in(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    uint32_t width) {
    hotbed_candidates c = hotbed_index_candidates(range, key);
    hotbed_index_result result = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_INSERTED};
    /* Start at different slots of a bucket, so that tiles that place keys at once do not all try
     * the same one. */
    uint32_t from = (uint32_t)(hotbed_hash_u64(key) >> 16) % HOTBED_BUCKET_SLOTS;
    /* An eviction compares all candidates. */
    for (uint32_t choice = 2; range.evicts != 0 && choice < range.choices; choice++)
        hotbed_prefetch_item(
            hotbed_index_meta(index, hotbed_index_slot(range, hotbed_index_walk(range, c, choice))),
            HOTBED_BUCKET_SLOTS * sizeof(uint64_t));
    for (;;) {
        hotbed_bucket_scan scan = {0, UINT64_MAX, 0, 0, HOTBED_SLOT_NONE, false};
        bool evicts = range.evicts != 0;
        uint64_t line[2];
        uint32_t free[2];
        line[0] = hotbed_index_slot(range, c.first);
        free[0] = hotbed_index_scan(index, range, line[0], &scan, width);
        line[1] = line[0];
        free[1] = 0;
        if (range.choices > 1 && hotbed_bits_set(free[0]) <= HOTBED_BUCKET_SPARE) {
            line[1] = hotbed_index_slot(range, c.second);
            free[1] = hotbed_index_scan(index, range, line[1], &scan, width);
        }
        if ((free[0] | free[1]) != 0) {
            bool second = hotbed_bits_set(free[1]) > hotbed_bits_set(free[0]);
            result.slot = hotbed_index_take(
                index, second ? line[1] : line[0], second ? free[1] : free[0], from, meta, width);
            if (result.slot != HOTBED_SLOT_NONE)
                return result;
            continue; /* the counts of free slots may have changed */
        }
        bool lost = false;
        for (uint32_t choice = 2; choice < range.choices && !lost; choice++) {
            uint64_t next = hotbed_index_slot(range, hotbed_index_walk(range, c, choice));
            uint32_t bits = hotbed_index_scan(index, range, next, &scan, width);
            if (bits == 0)
                continue;
            result.slot = hotbed_index_take(index, next, bits, from, meta, width);
            if (result.slot != HOTBED_SLOT_NONE)
                return result;
            lost = true;
        }
        if (lost)
            continue;
        if (!evicts) {
            result.outcome = HOTBED_INDEX_FULL;
            return result;
        }
        /* Combine the lanes' results: the lowest of all. */
        for (uint32_t step = 1; step < width; step *= 2) {
            uint32_t other = hotbed_tile_rank(width) ^ step;
            uint64_t rank = hotbed_tile_shuffle_u64(width, scan.lowest_rank, other);
            uint64_t time = hotbed_tile_shuffle_u64(width, scan.lowest_time, other);
            uint64_t slot = hotbed_tile_shuffle_u64(width, scan.lowest_slot, other);
            uint64_t old = hotbed_tile_shuffle_u64(width, scan.lowest_meta, other);
            if (hotbed_evicts_before(&scan, rank, time, slot)) {
                scan.lowest_rank = rank;
                scan.lowest_time = time;
                scan.lowest_slot = slot;
                scan.lowest_meta = old;
            }
        }
        if (scan.lowest_rank == UINT64_MAX) {
            if (hotbed_tile_ballot(width, scan.busy) != 0)
                continue; /* another tile is about to publish its row */
            result.outcome = HOTBED_INDEX_PINNED;
            return result;
        }
        bool won = false;
        uint64_t evicted = 0;
        uint64_t *word = hotbed_index_meta(index, scan.lowest_slot);
        if (hotbed_tile_rank(width) == 0 &&
            (stay ? hotbed_cas_pass_u64(word, scan.lowest_meta, meta)
                  : hotbed_cas_u64(word, scan.lowest_meta, meta))) {
            won = true;
            evicted = hotbed_load_relaxed_u64(hotbed_index_key(index, scan.lowest_slot));
            if (!stay)
                hotbed_index_forget(index, range, scan.lowest_slot);
        }
        if (hotbed_tile_ballot(width, won) != 0) {
            result.slot = scan.lowest_slot;
            result.evicted_key = hotbed_tile_shuffle_u64(width, evicted, 0);
            result.evicted_meta = scan.lowest_meta;
            result.outcome = HOTBED_INDEX_EVICTED;
            return result;
        }
    }
}

/* Draw the part in which a key evicts, with probability proportional to the number of buckets. */
HOTBED_HD uint32_t hotbed_index_drawn_part(
    hotbed_index_view index, hotbed_index_range range, uint32_t grown, uint64_t key) {
    uint64_t buckets = range.buckets;
    for (uint32_t g = 0; g < grown; g++)
        buckets += hotbed_index_grown(index, range, g);
    /* Do not use the bits of the hash that select the candidates. */
    uint64_t at = (hotbed_hash_u64(~key) >> 40) * buckets >> 24;
    uint64_t end = range.buckets;
    uint32_t part = 0;
    while (at >= end)
        end += hotbed_index_grown(index, range, part++);
    return part;
}

/* hotbed_index_place_over() for a table that has grown: take a free slot in the newest part that
 * has one, else evict. */
HOTBED_COLD hotbed_index_result hotbed_index_place_grown(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    uint32_t width) {
    uint32_t grown = 1;
    while (hotbed_index_grown(index, range, grown) != 0)
        grown++;
    uint32_t drawn = hotbed_index_drawn_part(index, range, grown, key);
    hotbed_index_result result = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL};
    for (uint32_t i = 0; i < (range.evicts != 0 ? 2 : 1) * (grown + 1); i++) {
        bool over = i > grown;
        hotbed_index_part part =
            hotbed_index_part_at(index, range, over ? (drawn + i) % (grown + 1) : grown - i);
        part.range.evicts = over ? 1 : 0;
        result = hotbed_index_place_in(part.index, part.range, key, meta, stay, width);
        if (result.slot == HOTBED_SLOT_NONE)
            continue;
        result.slot += part.first;
        break;
    }
    return result;
}

/* Claim a locked slot for a key that is not in the table. All lanes get the same result. With
 * `stay` the evicted key can still be found, because its row has yet to be moved; the caller then
 * calls hotbed_index_forget() after the move. */
HOTBED_HD hotbed_index_result hotbed_index_place_over(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    uint32_t width) {
    return hotbed_index_grows(index, range) && hotbed_index_grown(index, range, 0) != 0
               ? hotbed_index_place_grown(index, range, key, meta, stay, width)
               : hotbed_index_place_in(index, range, key, meta, stay, width);
}

HOTBED_HD hotbed_index_result hotbed_index_place(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta,
    uint32_t width) {
    return hotbed_index_place_over(index, range, key, meta, false, width);
}

/* The same, not inlined, as hotbed_index_find_rarely(). */
HOTBED_COLD hotbed_index_result hotbed_index_place_rarely(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta,
    uint32_t width) {
    return hotbed_index_place(index, range, key, meta, width);
}

/* --- place: one key per lane ------------------------------------------------------------------- */

/* The candidates of a key in a range that evicts. */
typedef struct hotbed_eviction_candidates {
    const uint64_t *metas;               /* of the range's first slot */
    uint32_t buckets[HOTBED_WALK_EVICT]; /* ascending; the first `choices` of them */
    uint32_t choices;
    uint32_t marks;
} hotbed_eviction_candidates;

HOTBED_HD hotbed_eviction_candidates hotbed_index_eviction_candidates(
    hotbed_index_view index, hotbed_index_range range, hotbed_candidates c) {
    hotbed_eviction_candidates v;
    v.metas = hotbed_index_meta(index, hotbed_index_slot(range, 0));
    v.choices = range.choices;
    v.marks = range.marks;
    HOTBED_UNROLL
    for (uint32_t n = 0; n < HOTBED_WALK_EVICT; n++) {
        uint32_t bucket = n < range.choices ? hotbed_index_candidate(range, c, n) : UINT32_MAX;
        HOTBED_UNROLL
        for (uint32_t m = 0; m < n; m++) { /* insert it */
            const uint32_t other = v.buckets[m];
            v.buckets[m] = bucket < other ? bucket : other;
            bucket = bucket < other ? other : bucket;
        }
        v.buckets[n] = bucket;
    }
    return v;
}

/* Free slots of a key's candidates and the row to evict if there are none. */
typedef struct hotbed_eviction_scan {
    uint32_t free[HOTBED_WALK_EVICT / 2]; /* 16 bits per bucket, two buckets to a word */
    uint64_t rank; /* (hotbed_meta_rank(), order of the bucket, number in it); UINT64_MAX: none */
    uint64_t meta;
    bool busy; /* a slot is locked and not pinned, so it may soon be evictable */
} hotbed_eviction_scan;

enum {
    HOTBED_EVICTION_BITS = 6
}; /* of hotbed_eviction_scan.rank for the bucket and the slot in it */

/* Scan the candidates of lane `lane`, with all lanes and one round of loads. All lanes get the same
 * result. */
HOTBED_HD hotbed_eviction_scan hotbed_index_scan_candidates(
    const hotbed_eviction_candidates *mine, uint32_t lane, uint32_t width) {
    const uint32_t rank = hotbed_tile_rank(width);
    const uint64_t *metas = (const uint64_t *)(uintptr_t)hotbed_tile_shuffle_u64(
        width, (uint64_t)(uintptr_t)mine->metas, lane);
    const uint32_t options = hotbed_tile_shuffle_u32(width, mine->choices | mine->marks << 8, lane);
    const uint32_t choices = options & 0xffU;
    const uint64_t kept = HOTBED_META_PINS | (options >> 8 != 0 ? HOTBED_META_MARKED : 0);
    hotbed_u64x2 words[HOTBED_WALK_EVICT][HOTBED_BUCKET_SLOTS / 2];
    HOTBED_UNROLL
    for (uint32_t n = 0; n < HOTBED_WALK_EVICT; n++) {
        const uint32_t bucket = hotbed_tile_shuffle_u32(width, mine->buckets[n], lane);
        const uint64_t *line = metas + (uint64_t)bucket * HOTBED_BUCKET_SLOTS;
        HOTBED_UNROLL
        for (uint32_t j = 0; j < HOTBED_BUCKET_SLOTS / 2; j++)
            if (j * width < HOTBED_BUCKET_SLOTS / 2 && n < choices &&
                rank + j * width < HOTBED_BUCKET_SLOTS / 2)
                words[n][j] = hotbed_load_relaxed_u64x2(line + (size_t)2 * (rank + j * width));
    }
    hotbed_eviction_scan v = {{0, 0}, UINT64_MAX, 0, false};
    HOTBED_UNROLL
    for (uint32_t n = 0; n < HOTBED_WALK_EVICT; n++) {
        HOTBED_UNROLL
        for (uint32_t j = 0; j < HOTBED_BUCKET_SLOTS / 2; j++) {
            if (j * width >= HOTBED_BUCKET_SLOTS / 2 || n >= choices ||
                rank + j * width >= HOTBED_BUCKET_SLOTS / 2)
                continue;
            HOTBED_UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                const uint64_t meta = half == 0 ? words[n][j].a : words[n][j].b;
                const uint32_t at = 2 * (rank + j * width) + half;
                if (meta == 0)
                    v.free[n / 2] |= 1U << at << 16 * (n % 2);
                else if ((meta & (kept | HOTBED_META_LOCKED)) != 0)
                    v.busy = v.busy || (meta & kept) == 0;
                else if (
                    (hotbed_meta_rank(meta) << HOTBED_EVICTION_BITS | n * HOTBED_BUCKET_SLOTS |
                     at) < v.rank) {
                    v.rank = hotbed_meta_rank(meta) << HOTBED_EVICTION_BITS |
                             n * HOTBED_BUCKET_SLOTS | at;
                    v.meta = meta;
                }
            }
        }
    }
    if (hotbed_tile_ballot(width, (v.free[0] | v.free[1]) != 0) != 0) {
        v.free[0] = hotbed_tile_or(width, v.free[0]);
        v.free[1] = hotbed_tile_or(width, v.free[1]);
        return v;
    }
    for (uint32_t step = 1; step < width; step *= 2) {
        const uint64_t other = hotbed_tile_shuffle_u64(width, v.rank, rank ^ step);
        const uint64_t meta = hotbed_tile_shuffle_u64(width, v.meta, rank ^ step);
        if (other < v.rank) {
            v.rank = other;
            v.meta = meta;
        }
    }
    v.busy = hotbed_tile_ballot(width, v.busy) != 0;
    return v;
}

/* The slot that a lane takes among its candidates: a free one, or one whose row it evicts. */
typedef struct hotbed_choice {
    uint64_t slot; /* HOTBED_SLOT_NONE: there is none */
    uint64_t meta; /* that it has; 0: it is free */
    bool busy;     /* as in hotbed_eviction_scan */
} hotbed_choice;

/* The candidates of the lanes in `wanted` (a bit each), whose tables evict. */
HOTBED_HD hotbed_choice hotbed_index_choose_slot(
    hotbed_index_view index, hotbed_index_range range, hotbed_candidates c, uint32_t from,
    uint32_t wanted, uint32_t width) {
    const hotbed_eviction_candidates mine = hotbed_index_eviction_candidates(index, range, c);
    hotbed_choice choice = {HOTBED_SLOT_NONE, 0, false};
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        const uint32_t lane = hotbed_lowest_bit(left);
        const hotbed_eviction_scan v = hotbed_index_scan_candidates(&mine, lane, width);
        if (hotbed_tile_rank(width) != lane)
            continue;
        choice.busy = v.busy;
        if ((v.free[0] | v.free[1]) != 0) {
            uint32_t free = 0, bucket = 0;
            for (uint32_t n = 0; n < range.choices; n++) { /* as hotbed_index_choose_free() */
                const uint32_t next = hotbed_index_candidate(range, c, n);
                uint32_t bits = 0;
                HOTBED_UNROLL
                for (uint32_t m = 0; m < HOTBED_WALK_EVICT; m++)
                    if (mine.buckets[m] == next)
                        bits = v.free[m / 2] >> 16 * (m % 2) & 0xffffU;
                if (hotbed_bits_set(bits) > hotbed_bits_set(free)) {
                    free = bits;
                    bucket = next;
                }
                if (n == 0 ? hotbed_bits_set(free) > HOTBED_BUCKET_SPARE : free != 0)
                    break;
            }
            const uint32_t after = free >> from << from;
            choice.slot =
                hotbed_index_slot(range, bucket) + hotbed_lowest_bit(after != 0 ? after : free);
        } else if (v.rank != UINT64_MAX) {
            const uint32_t at = (uint32_t)v.rank & ((1U << HOTBED_EVICTION_BITS) - 1U);
            uint32_t bucket = 0;
            HOTBED_UNROLL
            for (uint32_t m = 0; m < HOTBED_WALK_EVICT; m++)
                bucket = m == at / HOTBED_BUCKET_SLOTS ? mine.buckets[m] : bucket;
            choice.slot = hotbed_index_slot(range, bucket) + at % HOTBED_BUCKET_SLOTS;
            choice.meta = v.meta;
        }
    }
    return choice;
}

/* Free slots for the keys of the lanes in `wanted` (a bit each). */
HOTBED_HD hotbed_choice hotbed_index_choose_free(
    hotbed_index_view index, hotbed_index_range range, hotbed_candidates c, uint32_t from,
    uint32_t wanted, uint32_t width) {
    hotbed_choice choice = {HOTBED_SLOT_NONE, 0, false};
    bool looks = (wanted >> hotbed_tile_rank(width) & 1U) != 0;
    uint32_t best = 0; /* free slots of the line, one bit each */
    uint64_t line = 0;
    for (uint32_t n = 0; hotbed_tile_ballot(width, looks) != 0; n++) {
        const uint64_t next =
            hotbed_index_slot(range, looks ? hotbed_index_candidate(range, c, n) : 0);
        const uint32_t free = hotbed_line_match_each(
            hotbed_index_meta(index, next), 0, hotbed_tile_ballot(width, looks), HOTBED_LINES_AHEAD,
            false, width);
        if (looks && hotbed_bits_set(free) > hotbed_bits_set(best)) {
            best = free;
            line = next;
        }
        looks = looks && n + 1 < range.choices &&
                (n == 0 ? hotbed_bits_set(best) <= HOTBED_BUCKET_SPARE : best == 0);
    }
    const uint32_t after = best >> from << from;
    if (best != 0)
        choice.slot = line + hotbed_lowest_bit(after != 0 ? after : best);
    return choice;
}

/* The ways in which hotbed_index_place_each() may find a slot. */
typedef enum hotbed_place_kind {
    HOTBED_PLACE_FREE = 0,   /* no table evicts or has times */
    HOTBED_PLACE_EVICT = 1,  /* the caller needs no evicted keys */
    HOTBED_PLACE_REPORT = 2, /* the caller needs the evicted keys; no table has times */
} hotbed_place_kind;

/* hotbed_index_place() for a key of each lane with `wants`; others get HOTBED_SLOT_NONE. Lanes
 * choose and claim slots at the same time. `kind` is a literal. */
HOTBED_HD hotbed_index_result hotbed_index_place_each(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool wants,
    hotbed_place_kind kind, uint32_t width) {
    const uint32_t rank = hotbed_tile_rank(width);
    hotbed_index_result result = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL};
    hotbed_candidates c = {0, 0, 0};
    if (width == 1)
        return wants ? hotbed_index_place(index, range, key, meta, 1) : result;
    if (wants)
        c = hotbed_index_candidates(range, key);
    else
        range.first_bucket = range.segment = range.evicts = 0;
    const uint32_t from = (uint32_t)(hotbed_hash_u64(key) >> 16) % HOTBED_BUCKET_SLOTS;
    const bool evicts = kind != HOTBED_PLACE_FREE && range.evicts != 0;
    const bool alone = wants && (hotbed_index_grows(index, range) ||
                                 (kind == HOTBED_PLACE_EVICT && range.times != NULL));
    for (;;) {
        const bool looks = wants && !alone;
        if (hotbed_tile_ballot(width, looks) == 0)
            break;
        hotbed_choice choice = {HOTBED_SLOT_NONE, 0, false};
        uint32_t lanes = hotbed_tile_ballot(width, looks && !evicts);
        if (lanes != 0)
            choice = hotbed_index_choose_free(index, range, c, from, lanes, width);
        lanes = kind == HOTBED_PLACE_FREE ? 0 : hotbed_tile_ballot(width, looks && evicts);
        if (lanes != 0) {
            const hotbed_choice slot =
                hotbed_index_choose_slot(index, range, c, from, lanes, width);
            choice = evicts ? slot : choice;
        }
        if (!looks)
            continue;
        if (choice.slot == HOTBED_SLOT_NONE) {
            wants = choice.busy;
            result.outcome = evicts ? HOTBED_INDEX_PINNED : HOTBED_INDEX_FULL;
            continue;
        }
        /* Slots are freed by earlier passes only. */
        if (!hotbed_cas_pass_u64(hotbed_index_meta(index, choice.slot), choice.meta, meta))
            continue;
        wants = false;
        result.slot = choice.slot;
        result.outcome = HOTBED_INDEX_INSERTED;
        if (choice.meta == 0)
            continue;
        result.outcome = HOTBED_INDEX_EVICTED;
        result.evicted_meta = choice.meta;
        if (kind == HOTBED_PLACE_REPORT)
            result.evicted_key = hotbed_load_relaxed_u64(hotbed_index_key(index, choice.slot));
        /* The fence orders what the caller writes to the row after the accesses of the ticket that
         * released the last pin, and after the old key is gone, as in hotbed_index_forget(). */
        hotbed_store_relaxed_u64(
            hotbed_index_key(index, choice.slot),
            hotbed_index_marker(
                range, (uint32_t)(choice.slot / HOTBED_BUCKET_SLOTS - range.first_bucket), true));
        hotbed_fence();
    }
    uint32_t left = 0;
    if (index.segments != NULL || kind == HOTBED_PLACE_EVICT)
        left = hotbed_tile_ballot(width, wants && alone);
    for (; left != 0; left &= left - 1) {
        const uint32_t lane = hotbed_lowest_bit(left);
        const hotbed_index_result its = hotbed_index_place_rarely(
            index, hotbed_index_range_of(range, lane, width),
            hotbed_tile_shuffle_u64(width, key, lane), hotbed_tile_shuffle_u64(width, meta, lane),
            width);
        if (rank == lane)
            result = its;
    }
    return result;
}

/* Find `key` and score it, or claim a slot for it. Adds `pins` (0 or 1) either way. The caller
 * initializes the row of a claimed slot and then publishes it. All lanes get the same result. */
HOTBED_HD hotbed_index_result hotbed_index_claim(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, hotbed_score_rule rule,
    uint64_t score, uint64_t pins, uint32_t width) {
    uint64_t slot = hotbed_index_find(index, range, key, width);
    if (slot != HOTBED_SLOT_NONE) {
        bool held = hotbed_tile_rank(width) == 0;
        if (held && range.evicts == 0)
            hotbed_index_touch_found(index, slot, rule, score, pins);
        else if (held)
            held = hotbed_index_touch(index, slot, key, rule, score, pins);
        if (hotbed_tile_ballot(width, held) != 0) {
            hotbed_index_result result = {slot, 0, 0, HOTBED_INDEX_FOUND};
            return result;
        }
    }
    return hotbed_index_place(index, range, key, hotbed_meta_new(score, pins), width);
}

/* One lane: make a claimed slot visible to finds. The row must have been written before, by this
 * thread or before a tile sync. */
HOTBED_HD void hotbed_index_publish(hotbed_index_view index, uint64_t slot, uint64_t key) {
    hotbed_store_release_u64(hotbed_index_key(index, slot), key);
    hotbed_add_release_u64(hotbed_index_meta(index, slot), (uint64_t)0 - HOTBED_META_LOCKED);
}

/* One lane: the same for slots that nobody evicts during this pass. */
HOTBED_HD void hotbed_index_publish_held(hotbed_index_view index, uint64_t slot, uint64_t key) {
    hotbed_store_release_u64(hotbed_index_key(index, slot), key);
    hotbed_add_relaxed_u64(hotbed_index_meta(index, slot), (uint64_t)0 - HOTBED_META_LOCKED);
}

/* One lane: set the mark of a slot that holds a key, if it is not set. */
HOTBED_HD void hotbed_index_mark(hotbed_index_view index, uint64_t slot) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    if ((hotbed_load_relaxed_u64(meta) & HOTBED_META_MARKED) == 0)
        hotbed_add_relaxed_u64(meta, HOTBED_META_MARKED);
}

/* --- pins ----------------------------------------------------------------------------------------
 *
 * A pin keeps a key in its slot and a row in its tier. The owner of a pin may read and write the
 * row. Pins are counted in the meta, and they order accesses to the row:
 *
 * - Adding a pin orders nothing (relaxed): an earlier pass or step found the key, after its row was
 *   published.
 * - Releasing a pin has release order: all accesses to the row by the ticket happen before the meta
 *   loses the pin. Later additions by others continue the release sequence, so the order in which
 *   pins are released does not matter.
 * - Moving or replacing a row needs a meta without other pins, and reading that meta has acquire
 *   order: the compare-and-swap that claims an evicted row's slot, or the load that claims a row of
 *   the lower tier (hotbed_claim_missing()). On CUDA both are relaxed: only a later kernel of the
 *   same stream touches the row, and the end of a kernel orders its reads before the next kernel's
 *   accesses.
 */

/* One lane: add a pin to a slot that is already pinned, so its key cannot change. */
HOTBED_HD void hotbed_index_pin_again(hotbed_index_view index, uint64_t slot) {
    hotbed_add_release_u64(hotbed_index_meta(index, slot), HOTBED_META_PIN);
}

/* One lane: release a pin. If the slot may then be reused (`evicts`), the release orders the
 * tile's accesses to the row before the accesses by a prefetch on another stream. */
HOTBED_HD void hotbed_index_unpin(hotbed_index_view index, uint64_t slot, bool evicts) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    if (evicts)
        hotbed_add_release_u64(meta, (uint64_t)0 - HOTBED_META_PIN);
    else
        hotbed_add_relaxed_u64(meta, (uint64_t)0 - HOTBED_META_PIN);
}

/* Free a slot that has exactly `pins` pins, the caller's. All lanes get the same result. */
HOTBED_HD bool hotbed_index_vacate(
    hotbed_index_view index, hotbed_index_range range, uint64_t slot, uint64_t pins,
    uint32_t width) {
    hotbed_index_part part = hotbed_index_part_of(index, range, slot);
    slot -= part.first;
    uint64_t line = slot - slot % HOTBED_BUCKET_SLOTS;
    uint32_t bucket = (uint32_t)(line / HOTBED_BUCKET_SLOTS - part.range.first_bucket);
    uint64_t empty = hotbed_index_marker(part.range, bucket, false);
    /* A slot that is claimed but not published still has EMPTY for its key. It is not free: the
     * bucket may be full, and probe sequences may continue past it. */
    uint32_t unused = hotbed_line_match(hotbed_index_key(part.index, line), empty, width) &
                      hotbed_line_match(hotbed_index_meta(part.index, line), 0, width);
    bool never_full = hotbed_tile_ballot(width, unused != 0) != 0;
    bool won = false;
    if (hotbed_tile_rank(width) == 0) {
        uint64_t *meta = hotbed_index_meta(part.index, slot);
        uint64_t old = hotbed_load_relaxed_u64(meta);
        /* Keep the lock until the key is gone, because a slot with meta 0 can be claimed at
         * once. */
        if (old != 0 && (old & (HOTBED_META_PINS | HOTBED_META_LOCKED)) == pins &&
            hotbed_cas_u64(meta, old, old | HOTBED_META_LOCKED)) {
            hotbed_store_relaxed_u64(
                hotbed_index_key(part.index, slot),
                never_full ? empty : hotbed_index_marker(part.range, bucket, true));
            hotbed_store_release_u64(meta, 0);
            won = true;
        }
    }
    return hotbed_tile_ballot(width, won) != 0;
}

/* Remove `key`; false if it is absent or pinned. All lanes get the same result. */
HOTBED_HD bool hotbed_index_erase(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    uint64_t slot = hotbed_index_find(index, range, key, width);
    return slot != HOTBED_SLOT_NONE && hotbed_index_vacate(index, range, slot, 0, width);
}

#endif
