/* storage/index/index_place_each_core.h - claim slots for new keys, one key per lane. The lanes read the
 * metas of each key's candidates together. */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "storage/index/index_place_core.h"

/* The candidates of a key in a range that evicts. */
typedef struct hotbed_eviction_candidates {
    const uint64_t *metas;               /* of the range's first slot */
    uint32_t buckets[HOTBED_WALK_EVICT]; /* ascending; the first `choices` of them */
    uint32_t choices;
    uint32_t flags;
} hotbed_eviction_candidates;

HOTBED_HD hotbed_eviction_candidates hotbed_index_eviction_candidates(
    hotbed_index_view index, hotbed_index_range range, hotbed_candidates c) {
    hotbed_eviction_candidates v;
    v.metas = hotbed_index_meta(index, hotbed_index_slot(range, 0));
    v.choices = range.choices;
    v.flags = range.flags;
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
    const uint32_t options = hotbed_tile_shuffle_u32(width, mine->choices | mine->flags << 8, lane);
    const uint32_t choices = options & 0xffU;
    const uint64_t kept = HOTBED_META_PINS | (options >> 8 != 0 ? HOTBED_META_FLAGGED : 0);
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

/* hotbed_index_place() for a key of each lane with `wants`; others get HOTBED_SLOT_NONE. Lanes
 * choose and claim slots at the same time. No table has times. `may_evict` is a literal,
 * false if no table evicts. */
HOTBED_HD hotbed_index_result hotbed_index_place_each(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool wants,
    bool may_evict, uint32_t width) {
    hotbed_index_result result = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL};
    hotbed_candidates c = {0, 0, 0};
    if (width == 1)
        return wants ? hotbed_index_place(index, range, key, meta, 1) : result;
    if (!wants)
        range.first_bucket = range.segment = range.evicts = 0;
    const uint32_t grown = hotbed_index_growths(index, range);
    hotbed_index_part part = hotbed_index_part_in_turn(index, range, grown, key, 0);
    if (wants)
        c = hotbed_index_candidates(part.range, key);
    const uint32_t from = (uint32_t)(hotbed_hash_u64(key) >> 16) % HOTBED_BUCKET_SLOTS;
    for (uint32_t turn = 0;;) {
        const bool evicts = may_evict && part.range.evicts != 0;
        if (hotbed_tile_ballot(width, wants) == 0)
            return result;
        hotbed_choice choice = {HOTBED_SLOT_NONE, 0, false};
        uint32_t lanes = hotbed_tile_ballot(width, wants && !evicts);
        if (lanes != 0)
            choice = hotbed_index_choose_free(part.index, part.range, c, from, lanes, width);
        lanes = may_evict ? hotbed_tile_ballot(width, wants && evicts) : 0;
        if (lanes != 0) {
            const hotbed_choice slot =
                hotbed_index_choose_slot(part.index, part.range, c, from, lanes, width);
            choice = evicts ? slot : choice;
        }
        if (!wants)
            continue;
        if (choice.slot == HOTBED_SLOT_NONE) {
            if (choice.busy)
                continue;
            result.outcome = evicts ? HOTBED_INDEX_PINNED : HOTBED_INDEX_FULL;
            wants = hotbed_index_grows(index, range) && ++turn < hotbed_index_turns(range, grown);
            if (wants) {
                part = hotbed_index_part_in_turn(index, range, grown, key, turn);
                c = hotbed_index_candidates(part.range, key);
            }
            continue;
        }
        /* The claim and the old key's load overlap. ERASED is stored after the load: a GPU takes
         * several times as long to store to a part of a line that it is still loading. */
        uint64_t *stored = hotbed_index_key(part.index, choice.slot);
        const uint64_t old = choice.meta != 0 ? hotbed_load_relaxed_u64(stored) : 0;
        /* Slots are freed by earlier passes only. */
        if (!hotbed_cas_pass_u64(hotbed_index_meta(part.index, choice.slot), choice.meta, meta))
            continue;
        wants = false;
        result.slot = part.first + choice.slot;
        result.outcome = HOTBED_INDEX_INSERTED;
        if (choice.meta == 0)
            continue;
        result.outcome = HOTBED_INDEX_EVICTED;
        result.evicted_key = old;
        result.evicted_meta = choice.meta;
        const uint64_t erased = hotbed_index_marker(
            part.range, (uint32_t)(choice.slot / HOTBED_BUCKET_SLOTS - part.range.first_bucket),
            true);
        if (old != erased) /* always; so the store waits for `old` */
            hotbed_store_relaxed_u64(stored, erased);
        /* The fence orders what the caller writes to the row after the accesses of the ticket that
         * released the last pin, and after the old key is gone, as in hotbed_index_forget(). */
        hotbed_fence();
    }
}

/* hotbed_index_place(), not inlined. */
HOTBED_COLD hotbed_index_result hotbed_index_place_rarely(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta,
    uint32_t width) {
    return hotbed_index_place(index, range, key, meta, width);
}

/* hotbed_index_place_each() for tables that may evict and may have times. Keys of tables with times,
 * which are rare, are placed one after the other. */
HOTBED_HD hotbed_index_result hotbed_index_place_each_timed(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool wants,
    uint32_t width) {
    const bool timed = wants && range.times != NULL;
    hotbed_index_result result =
        hotbed_index_place_each(index, range, key, meta, wants && !timed, true, width);
    for (uint32_t left = hotbed_tile_ballot(width, timed); left != 0; left &= left - 1) {
        const uint32_t lane = hotbed_lowest_bit(left);
        const hotbed_index_result its = hotbed_index_place_rarely(
            index, hotbed_index_range_of(range, lane, width),
            hotbed_tile_shuffle_u64(width, key, lane), hotbed_tile_shuffle_u64(width, meta, lane),
            width);
        if (hotbed_tile_rank(width) == lane)
            result = its;
    }
    return result;
}
