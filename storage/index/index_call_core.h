/* storage/index/index_call_core.h - one key or slot of a call of hotbed/index.h. */
#pragma once

#include "base/fault.h"
#include "storage/index/index_place_each_core.h"

/* Arguments of a call. Arrays are device memory; hotbed/index.h has their meaning. */
typedef struct hotbed_index_args {
    hotbed_index_view index;
    hotbed_index_range range;         /* the table of all keys if `tables` is NULL */
    const hotbed_index_range *ranges; /* [num_tables] */
    hotbed_fault *faults;
    uint64_t n;
    uint64_t index_slots; /* over all tables */
    const uint64_t *keys;
    const uint32_t *tables;
    const uint64_t *scores; /* [n]; NULL: all keys have `score` */
    uint64_t score;
    uint64_t *slots;
    uint8_t *outcomes;        /* or NULL */
    uint64_t *evicted_keys;   /* or NULL */
    uint64_t *evicted_scores; /* or NULL */
    uint64_t *evicted_slots;  /* or NULL */
    uint64_t *num_evicted;    /* or NULL */
    uint64_t capacity;        /* export: length of the arrays, which are `slots` and: */
    uint64_t *export_keys;    /* or NULL */
    uint64_t *export_scores;  /* or NULL */
    uint64_t *export_counts;  /* [2] keys and pinned slots; incremented */
    uint32_t num_tables;
    hotbed_score_rule rule;
    uint32_t pins; /* 0 or 1 */
} hotbed_index_args;

/* An index whose tables do not grow. Storages with growing tables erase through rows_core.h. */
HOTBED_HD hotbed_index_view hotbed_call_index(const hotbed_index_args *a) {
    hotbed_index_view index = {a->index.keys, a->index.metas, NULL};
    return index;
}

/* The range of key number i; false if its table number is out of range. */
HOTBED_HD bool hotbed_call_range(
    const hotbed_index_args *a, uint64_t i, hotbed_index_range *range) {
    *range = a->range;
    if (a->tables == NULL)
        return true;
    uint32_t table = a->tables[i];
    if (table >= a->num_tables)
        return false;
    *range = a->ranges[table];
    return true;
}

/* One lane: the table number of key i is out of range. */
HOTBED_HD void hotbed_call_no_table(const hotbed_index_args *a, uint64_t i) {
    hotbed_fault_latch(
        a->faults, HOTBED_ERR_RANGE, HOTBED_CAUSE_TABLE_NUMBER, a->tables[i], a->keys[i],
        a->num_tables);
}

HOTBED_HD uint64_t hotbed_call_score(const hotbed_index_args *a, uint64_t i) {
    uint64_t score = a->scores == NULL ? a->score : a->scores[i];
    return score < HOTBED_SCORE_MOST ? score : HOTBED_SCORE_MOST;
}

/* Prefetch the lines of key number i's first two candidate buckets. A thread that processes
 * keys one by one would otherwise wait for each line. */
HOTBED_HD void hotbed_call_prefetch(const hotbed_index_args *a, uint64_t i) {
    hotbed_index_range range;
    if (i >= a->n || !hotbed_call_range(a, i, &range))
        return;
    hotbed_candidates c = hotbed_index_candidates(range, a->keys[i]);
    hotbed_prefetch(a->index.keys + hotbed_index_slot(range, c.first));
    hotbed_prefetch(a->index.keys + hotbed_index_slot(range, c.first) + HOTBED_BUCKET_SLOTS / 2);
    hotbed_prefetch(a->index.keys + hotbed_index_slot(range, c.second));
    hotbed_prefetch(a->index.keys + hotbed_index_slot(range, c.second) + HOTBED_BUCKET_SLOTS / 2);
}

/* The key of a lane: number first + rank of the call, if that is below the end of the call. */
typedef struct hotbed_call_key {
    uint64_t i, key;
    hotbed_index_range range;
    bool mine; /* the lane has a key */
    bool good; /* and its table number is in range */
} hotbed_call_key;

HOTBED_HD hotbed_call_key
hotbed_call_key_at(const hotbed_index_args *a, uint64_t first, uint32_t width) {
    hotbed_call_key k;
    k.i = first + hotbed_tile_rank(width);
    k.mine = k.i < a->n;
    k.range = a->range;
    k.good = k.mine && hotbed_call_range(a, k.i, &k.range);
    k.key = k.mine ? a->keys[k.i] : 0;
    if (k.mine && !k.good)
        hotbed_call_no_table(a, k.i);
    return k;
}

/* Slot of each lane's key. */
HOTBED_HD uint64_t
hotbed_call_slot(const hotbed_index_args *a, const hotbed_call_key *k, uint32_t width) {
    return hotbed_index_find_each(
        hotbed_call_index(a), k->range, k->key, hotbed_tile_ballot(width, k->good), false, width);
}

/* Find keys first, first + 1, ... of the call, one per lane. */
HOTBED_HD void hotbed_call_find(const hotbed_index_args *a, uint64_t first, uint32_t width) {
    const hotbed_call_key k = hotbed_call_key_at(a, first, width);
    const uint64_t slot = hotbed_call_slot(a, &k, width);
    if (k.mine)
        a->slots[k.i] = slot;
}

/* Pins that the caller may add to a slot. One more is for find-or-insert in tables that evict, which pins for the time
 * of a call. */
HOTBED_HD bool hotbed_call_may_pin(uint64_t meta) {
    return (meta & HOTBED_META_PINS) < HOTBED_PINS_MOST - 1;
}

/* The pin that the caller wants for a key that was found in `slot`. */
HOTBED_HD uint64_t hotbed_call_pins(const hotbed_index_args *a, uint64_t slot) {
    const bool may =
        a->pins == 0 || hotbed_call_may_pin(hotbed_load_relaxed_u64(&a->index.metas[slot]));
    return may ? a->pins : 0;
}

/* One lane: store the result of key number i. */
HOTBED_HD void hotbed_call_return(
    const hotbed_index_args *a, uint64_t i, uint64_t slot, hotbed_index_outcome outcome) {
    a->slots[i] = slot;
    if (a->outcomes != NULL)
        a->outcomes[i] = (uint8_t)outcome;
}

/* Find or insert keys first, first + 1, ... of the call, one per lane, in tables that do not
 * evict. */
HOTBED_HD void hotbed_call_claim(const hotbed_index_args *a, uint64_t first, uint32_t width) {
    const hotbed_index_view index = hotbed_call_index(a);
    const hotbed_call_key k = hotbed_call_key_at(a, first, width);
    const uint64_t score = k.good ? hotbed_call_score(a, k.i) : 0;
    uint64_t slot = hotbed_call_slot(a, &k, width);
    hotbed_index_outcome outcome = k.good ? HOTBED_INDEX_FOUND : HOTBED_INDEX_NO_TABLE;
    if (slot != HOTBED_SLOT_NONE)
        hotbed_index_touch_found(index, slot, a->rule, score, hotbed_call_pins(a, slot));
    const bool lacks = k.good && slot == HOTBED_SLOT_NONE;
    if (hotbed_tile_ballot(width, lacks) != 0) {
        const hotbed_index_result r = hotbed_index_place_each(
            index, k.range, k.key, hotbed_meta_new(score, a->pins), lacks, false, width);
        if (lacks) {
            slot = r.slot;
            outcome = r.outcome;
        }
    }
    if (outcome == HOTBED_INDEX_INSERTED)
        hotbed_index_publish_held(index, slot, k.key);
    if (k.mine)
        hotbed_call_return(a, k.i, slot, outcome);
}

/* In tables that evict, find-or-insert takes three passes, so that a call does not evict its own
 * keys: all existing keys are scored and pinned before the first new one is placed, new ones are
 * pinned too, and unrequested pins are taken off at the end. Pass one: keys not found get no slot
 * and a preliminary outcome. */
HOTBED_HD void hotbed_call_hold(const hotbed_index_args *a, uint64_t first, uint32_t width) {
    const hotbed_call_key k = hotbed_call_key_at(a, first, width);
    const uint64_t slot = hotbed_call_slot(a, &k, width);
    if (slot != HOTBED_SLOT_NONE)
        hotbed_index_touch_found(
            hotbed_call_index(a), slot, a->rule, hotbed_call_score(a, k.i),
            a->pins == 0 ? 1 : hotbed_call_pins(a, slot));
    if (k.mine)
        hotbed_call_return(a, k.i, slot, k.good ? HOTBED_INDEX_FOUND : HOTBED_INDEX_NO_TABLE);
}

/* Pass two: place keys first, first + 1, ... of the call, one per lane, if pass one found no slot.
 * Each lane gets the result of its key; FOUND if nothing had to be done. */
HOTBED_HD hotbed_index_result
hotbed_call_place(const hotbed_index_args *a, uint64_t first, uint32_t width) {
    const uint64_t i = first + hotbed_tile_rank(width);
    const hotbed_index_view index = hotbed_call_index(a);
    hotbed_index_result r = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FOUND};
    hotbed_index_range range = a->range;
    const bool lacks =
        i < a->n && a->slots[i] == HOTBED_SLOT_NONE && hotbed_call_range(a, i, &range);
    range.times = NULL;
    if (hotbed_tile_ballot(width, lacks) == 0)
        return r;
    const uint64_t key = lacks ? a->keys[i] : 0, score = lacks ? hotbed_call_score(a, i) : 0;
    const hotbed_index_result placed =
        hotbed_index_place_each(index, range, key, hotbed_meta_new(score, 1), lacks, true, width);
    if (!lacks)
        return r;
    if (placed.slot != HOTBED_SLOT_NONE)
        hotbed_index_publish_held(index, placed.slot, key);
    hotbed_call_return(a, i, placed.slot, placed.outcome);
    return placed;
}

/* Pass three: release the pin of key number i. */
HOTBED_HD void hotbed_call_release(const hotbed_index_args *a, uint64_t i) {
    if (a->slots[i] != HOTBED_SLOT_NONE)
        hotbed_index_unpin(hotbed_call_index(a), a->slots[i], false);
}

/* One lane: write an eviction to entry `at` of the lists. */
HOTBED_HD void hotbed_call_evicted(const hotbed_index_args *a, hotbed_index_result r, uint64_t at) {
    if (a->evicted_keys != NULL)
        a->evicted_keys[at] = r.evicted_key;
    if (a->evicted_scores != NULL)
        a->evicted_scores[at] = hotbed_meta_score(r.evicted_meta);
    if (a->evicted_slots != NULL)
        a->evicted_slots[at] = r.slot;
}

HOTBED_HD void hotbed_call_erase(const hotbed_index_args *a, uint64_t i, uint32_t width) {
    hotbed_index_range range;
    bool good = hotbed_call_range(a, i, &range);
    bool erased = good && hotbed_index_erase(hotbed_call_index(a), range, a->keys[i], width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (!good)
        hotbed_call_no_table(a, i);
    if (a->outcomes != NULL)
        a->outcomes[i] = erased;
}

/* Slots come from the caller, and a wrong one must not corrupt the bits beside the pins: they stop at 0, too. */
HOTBED_HD void hotbed_call_pin(const hotbed_index_args *a, uint64_t i) {
    if (a->slots[i] >= a->index_slots)
        return;
    uint64_t *meta = &a->index.metas[a->slots[i]];
    for (;;) {
        uint64_t old = hotbed_load_relaxed_u64(meta);
        if (old == 0 || !hotbed_call_may_pin(old) ||
            hotbed_cas_u64(meta, old, old + HOTBED_META_PIN))
            return;
    }
}

HOTBED_HD void hotbed_call_unpin(const hotbed_index_args *a, uint64_t i) {
    if (a->slots[i] >= a->index_slots)
        return;
    uint64_t *meta = &a->index.metas[a->slots[i]];
    for (;;) {
        uint64_t old = hotbed_load_relaxed_u64(meta);
        if ((old & HOTBED_META_PINS) == 0 || hotbed_cas_u64(meta, old, old - HOTBED_META_PIN))
            return;
    }
}

/* --- whole tables ----------------------------------------------------------------------------- */

/* Free slot number i of the table. */
HOTBED_HD void hotbed_call_clear(const hotbed_index_args *a, uint64_t i) {
    uint32_t bucket = (uint32_t)(i / HOTBED_BUCKET_SLOTS);
    uint64_t slot = hotbed_index_slot(a->range, bucket) + i % HOTBED_BUCKET_SLOTS;
    a->index.keys[slot] = hotbed_index_marker(a->range, bucket, false);
    a->index.metas[slot] = 0;
}

/* Meta of slot number i of the table; 0 if it holds no key. */
HOTBED_HD uint64_t hotbed_call_meta(const hotbed_index_args *a, uint64_t i) {
    uint64_t meta = hotbed_load_relaxed_u64(&a->index.metas[hotbed_index_slot(a->range, 0) + i]);
    return (meta & HOTBED_META_LOCKED) != 0 ? 0 : meta;
}

/* Write slot number i to entry `at` of the exported arrays. */
HOTBED_HD void hotbed_call_export(
    const hotbed_index_args *a, uint64_t i, uint64_t meta, uint64_t at) {
    uint64_t slot = hotbed_index_slot(a->range, 0) + i;
    if (at >= a->capacity)
        return;
    if (a->export_keys != NULL)
        a->export_keys[at] = hotbed_load_relaxed_u64(&a->index.keys[slot]);
    if (a->slots != NULL)
        a->slots[at] = slot;
    if (a->export_scores != NULL)
        a->export_scores[at] = hotbed_meta_score(meta);
}
