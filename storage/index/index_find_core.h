/* storage/index/index_find_core.h - find keys in the index.
 *
 * Most keys are in their first bucket, and a find reads the second one only if the first lacks the
 * key. In a table that has grown, the oldest part is searched first, since frequent keys tend to be
 * the oldest.
 */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "storage/index/index_layout_core.h"

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
 * 4. `cached`, equal on all lanes: read as by hotbed_load_cached_u64x2(). `ending`: a second word of
 * each lane, or a literal NULL; *ends is whether the lane's line has that word. */
HOTBED_HD uint32_t hotbed_line_match_each_ending(
    const uint64_t *line, uint64_t word, const uint64_t *ending, bool *ends, uint32_t wanted,
    uint32_t ahead, bool cached, uint32_t width) {
    const uint32_t rank = hotbed_tile_rank(width);
    uint32_t equal = 0;
    if (width == 1) {
        if (ending != NULL)
            *ends = wanted != 0 && hotbed_match16(line, *ending) != 0;
        return wanted != 0 ? hotbed_match16(line, word) : 0;
    }
    for (uint32_t left = wanted; left != 0;) {
        uint32_t lane[HOTBED_LINES_AHEAD]; /* whose line it is; UINT32_MAX: there are no more */
        hotbed_u64x2 words[HOTBED_LINES_AHEAD][HOTBED_BUCKET_SLOTS / 4];
        uint32_t bits[HOTBED_LINES_AHEAD / 2] = {0}; /* 16 for each line, two lines to a word */
        uint32_t ended = 0;                          /* a bit for each line */
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
            uint64_t last = 0;
            bool has = false;
            if (ending != NULL)
                last = hotbed_tile_shuffle_u64(width, *ending, lane[k] % width);
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
                has = has || pair.a == last || pair.b == last;
            }
            ended |= (has ? 1U : 0U) << k;
        }
        if (ending != NULL)
            ended = hotbed_tile_or(width, ended);
        HOTBED_UNROLL
        for (uint32_t k = 0; k < HOTBED_LINES_AHEAD; k++) {
            if (k >= ahead || k >= width)
                continue;
            if (k % 2 == 0)
                bits[k / 2] = hotbed_tile_or(width, bits[k / 2] << 2 * (rank % 8));
            if (rank != lane[k])
                continue;
            equal = bits[k / 2] >> 16 * (k % 2) & 0xffffU;
            if (ending != NULL)
                *ends = (ended >> k & 1U) != 0;
        }
    }
    return equal;
}

/* The same without an ending word. */
HOTBED_HD uint32_t hotbed_line_match_each(
    const uint64_t *line, uint64_t word, uint32_t wanted, uint32_t ahead, bool cached,
    uint32_t width) {
    return hotbed_line_match_each_ending(line, word, NULL, NULL, wanted, ahead, cached, width);
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

/* Whether a slot of the bucket was never used. A search ends at such a bucket. For short probe
 * sequences the test costs more than it saves, so it is skipped. */
HOTBED_HD bool hotbed_index_walk_ends(
    hotbed_index_view index, hotbed_index_range range, uint32_t bucket, uint32_t width) {
    if (range.choices <= HOTBED_WALK_EVICT)
        return false;
    const uint32_t bits = hotbed_line_match(
        hotbed_index_key(index, hotbed_index_slot(range, bucket)),
        hotbed_index_marker(range, bucket, false), width);
    return hotbed_tile_ballot(width, bits != 0) != 0;
}

/* Search the probe sequence of a key that is in neither of its first two candidates. */
HOTBED_HD uint64_t hotbed_index_find_walk(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t width) {
    if (range.choices <= 2)
        return HOTBED_SLOT_NONE;
    hotbed_candidates c = hotbed_index_candidates(range, key);
    uint32_t bucket = c.second;
    if (hotbed_index_walk_ends(index, range, c.first, width))
        return HOTBED_SLOT_NONE;
    for (uint32_t choice = 2; choice < range.choices; choice++) {
        if (hotbed_index_walk_ends(index, range, bucket, width))
            return HOTBED_SLOT_NONE;
        bucket = hotbed_index_walk(range, c, choice);
        uint64_t slot = hotbed_index_slot(range, bucket);
        slot = hotbed_line_slot(
            slot, hotbed_line_match(hotbed_index_key(index, slot), key, width), width);
        if (slot != HOTBED_SLOT_NONE)
            return slot;
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
        mine.evicts | (uint32_t)mine.flags << 8 | (uint32_t)mine.region_bits << 16;
    const uint32_t its = hotbed_tile_shuffle_u32(width, bits, lane);
    range.evicts = (uint8_t)its;
    range.flags = (uint8_t)(its >> 8);
    range.region_bits = (uint16_t)(its >> 16);
    range.segment = hotbed_tile_shuffle_u32(width, mine.segment, lane);
    range.times = (uint64_t *)(uintptr_t)hotbed_tile_shuffle_u64(
        width, (uint64_t)(uintptr_t)mine.times, lane);
    return range;
}

/* hotbed_index_find_each() within a part of each lane's table. The slots are counted in that part. */
HOTBED_HD uint64_t hotbed_index_find_each_in(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t wanted, bool cached,
    uint32_t width) {
    const bool mine = (wanted >> hotbed_tile_rank(width) & 1U) != 0;
    hotbed_candidates c = {0, 0, 0};
    if (mine)
        c = hotbed_index_candidates(range, key);
    uint32_t bucket = c.first;
    uint64_t line = hotbed_index_slot(range, bucket);
    bool looks = mine; /* the search has not ended */
    uint32_t equal = hotbed_line_match_each(
        hotbed_index_key(index, line), key, wanted, HOTBED_LINES_AHEAD, cached, width);
    uint64_t found = HOTBED_SLOT_NONE;
    for (uint32_t choice = 1;; choice++) {
        if (equal != 0)
            found = line + hotbed_lowest_bit(equal);
        looks = looks && found == HOTBED_SLOT_NONE && choice < range.choices;
        const uint32_t left = hotbed_tile_vote(width, looks);
        if (left == 0)
            return found;
        uint64_t empty = key; /* short probe sequences are read to their end */
        if (looks) {
            bucket = hotbed_index_candidate(range, c, choice);
            line = hotbed_index_slot(range, bucket);
            if (range.choices > HOTBED_WALK_EVICT)
                empty = hotbed_index_marker(range, bucket, false);
        }
        bool ends = false;
        equal = hotbed_line_match_each_ending(
            hotbed_index_key(index, line), key, &empty, &ends, left, HOTBED_LINES_AHEAD / 2, cached,
            width);
        looks = looks && !ends;
    }
}

/* Find the key of each lane in `wanted` (a bit each). Each lane hashes its own key; then all lanes
 * read the lines of several keys at a time: first the first bucket of each key, then the second
 * buckets of the keys not found, and so on, and then the next parts of the tables that have grown.
 * `cached`, equal on all lanes: lines may come from the L1 cache, so a search may miss a key that was
 * inserted since the start of the kernel, and find a key that was removed since then. */
HOTBED_HD uint64_t hotbed_index_find_each(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint32_t wanted, bool cached,
    uint32_t width) {
    if ((wanted >> hotbed_tile_rank(width) & 1U) == 0)
        range.first_bucket = range.segment = 0;
    hotbed_index_part part = hotbed_index_part_at(index, range, 0);
    uint64_t found = HOTBED_SLOT_NONE;
    for (uint32_t grown = 0;; grown++) {
        const uint64_t slot =
            hotbed_index_find_each_in(part.index, part.range, key, wanted, cached, width);
        if (slot != HOTBED_SLOT_NONE)
            found = part.first + slot;
        if (index.segments == NULL)
            return found;
        const bool goes_on = found == HOTBED_SLOT_NONE && hotbed_index_grows(index, range) &&
                             hotbed_index_grown(index, range, grown) != 0;
        wanted = hotbed_tile_ballot(width, goes_on);
        if (wanted == 0)
            return found;
        if (goes_on)
            part = hotbed_index_part_at(index, range, grown + 1);
    }
}
