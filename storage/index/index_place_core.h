/* storage/index/index_place_core.h - claim a slot for a new key, perhaps by eviction; publish the key; free
 * its slot. All lanes of a tile work on one key; index_place_each_core.h has one key per lane.
 *
 * A new key goes to its first bucket if that one has more than HOTBED_BUCKET_SPARE free slots,
 * otherwise to the emptier of the first two. If both are full, it goes to the first bucket of the
 * probe sequence with a free slot. In a table that has grown it goes to the newest part with free
 * slots.
 *
 * An insertion claims a free slot by compare-and-swap on its meta, which also pins it. The key is
 * stored last, with release order, when the row is initialized (hotbed_index_publish()), so a
 * thread that finds the key also sees the row. An insertion that evicts locks the meta and replaces
 * the old key by ERASED first. The keys of one call are distinct. Calls that insert or erase do not
 * overlap each other; finds, pins and unpins may overlap them.
 */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "storage/index/index_find_core.h"
#include "storage/index/index_meta_core.h"

/* Result of claiming a slot for a key. */
typedef struct hotbed_index_result {
    uint64_t slot;         /* HOTBED_SLOT_NONE if refused */
    uint64_t evicted_key;  /* if `outcome` is EVICTED */
    uint64_t evicted_meta; /* likewise */
    hotbed_index_outcome outcome;
} hotbed_index_result;

/* Which rows a new key may evict: rows with a lower rank than `rank`, or with the same rank and an
 * older time than `time`. If `rank` is UINT64_MAX: any row. Of keys that are placed at the same
 * time, one may evict an equal rank with a newer time. */
typedef struct hotbed_evict_limit {
    uint64_t rank, time;
} hotbed_evict_limit;

HOTBED_HD hotbed_evict_limit hotbed_evict_any(void) {
    hotbed_evict_limit limit = {UINT64_MAX, UINT64_MAX};
    return limit;
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

HOTBED_HD uint32_t hotbed_index_scan(
    hotbed_index_view index, hotbed_index_range range, uint64_t line, hotbed_bucket_scan *scan,
    uint32_t width) {
    const uint64_t kept = HOTBED_META_PINS | (range.flags != 0 ? HOTBED_META_FLAGGED : 0);
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

/* Whether the lowest row of the scan is within `limit`. */
HOTBED_HD bool hotbed_evicts_within(const hotbed_bucket_scan *scan, hotbed_evict_limit limit) {
    return limit.rank == UINT64_MAX || scan->lowest_rank < limit.rank ||
           (scan->lowest_rank == limit.rank && scan->lowest_time < limit.time);
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

/* Claim a locked slot in one part of a table for a key that it lacks; for `stay` and `limit` see
 * hotbed_index_place_over() and hotbed_index_place_within(). */
HOTBED_HD hotbed_index_result hotbed_index_place_in(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    hotbed_evict_limit limit, uint32_t width) {
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
        if (scan.lowest_rank == UINT64_MAX || !hotbed_evicts_within(&scan, limit)) {
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

/* How many times a table has grown. */
HOTBED_HD uint32_t hotbed_index_growths(hotbed_index_view index, hotbed_index_range range) {
    uint32_t grown = 0;
    while (hotbed_index_grows(index, range) && hotbed_index_grown(index, range, grown) != 0)
        grown++;
    return grown;
}

/* Number of parts in which a new key looks for a slot, one after the other. */
HOTBED_HD uint32_t hotbed_index_turns(hotbed_index_range range, uint32_t grown) {
    return range.evicts != 0 && grown > 0 ? 2 * (grown + 1) : grown + 1;
}

/* The part in which a new key looks for a slot at its turn number `turn`, in a table that has grown
 * `grown` times: for a free slot from the newest part to the oldest; then for a row to evict. */
HOTBED_HD hotbed_index_part hotbed_index_part_in_turn(
    hotbed_index_view index, hotbed_index_range range, uint32_t grown, uint64_t key,
    uint32_t turn) {
    if (grown == 0)
        return hotbed_index_part_at(index, range, 0);
    const bool evicts = turn > grown;
    hotbed_index_part part = hotbed_index_part_at(
        index, range,
        evicts ? (hotbed_index_drawn_part(index, range, grown, key) + turn) % (grown + 1)
               : grown - turn);
    part.range.evicts = evicts ? 1 : 0;
    return part;
}

/* The same in a table that has grown: take a free slot in the newest part that has one, else
 * evict. */
HOTBED_HD hotbed_index_result hotbed_index_place_by_turns(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    hotbed_evict_limit limit, uint32_t width) {
    const uint32_t grown = hotbed_index_growths(index, range);
    hotbed_index_result result = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FULL};
    for (uint32_t turn = 0; turn < hotbed_index_turns(range, grown); turn++) {
        const hotbed_index_part part = hotbed_index_part_in_turn(index, range, grown, key, turn);
        result = hotbed_index_place_in(part.index, part.range, key, meta, stay, limit, width);
        if (result.slot == HOTBED_SLOT_NONE)
            continue;
        result.slot += part.first;
        break;
    }
    return result;
}

/* The same, not inlined, for a key that may evict any row. */
HOTBED_COLD hotbed_index_result hotbed_index_place_grown(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    uint32_t width) {
    return hotbed_index_place_by_turns(index, range, key, meta, stay, hotbed_evict_any(), width);
}

HOTBED_HD bool hotbed_index_has_grown(hotbed_index_view index, hotbed_index_range range) {
    return hotbed_index_grows(index, range) && hotbed_index_grown(index, range, 0) != 0;
}

/* Claim a locked slot for a key that is not in the table. All lanes get the same result. With
 * `stay` the evicted key can still be found, because its row has yet to be moved; the caller then
 * calls hotbed_index_forget() after the move. */
HOTBED_HD hotbed_index_result hotbed_index_place_over(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta, bool stay,
    uint32_t width) {
    return hotbed_index_has_grown(index, range)
               ? hotbed_index_place_grown(index, range, key, meta, stay, width)
               : hotbed_index_place_in(index, range, key, meta, stay, hotbed_evict_any(), width);
}

/* The same for a key that evicts only within `limit`. In a table that evicts, the outcome is
 * PINNED if there is neither a free slot nor such a row. */
HOTBED_HD hotbed_index_result hotbed_index_place_within(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta,
    hotbed_evict_limit limit, uint32_t width) {
    return hotbed_index_has_grown(index, range)
               ? hotbed_index_place_by_turns(index, range, key, meta, false, limit, width)
               : hotbed_index_place_in(index, range, key, meta, false, limit, width);
}

HOTBED_HD hotbed_index_result hotbed_index_place(
    hotbed_index_view index, hotbed_index_range range, uint64_t key, uint64_t meta,
    uint32_t width) {
    return hotbed_index_place_over(index, range, key, meta, false, width);
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
