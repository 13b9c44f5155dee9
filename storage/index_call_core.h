/* storage/index_call_core.h - one key or slot of a call of hotbed/index.h. */
#ifndef HOTBED_STORAGE_INDEX_CALL_CORE_H
#define HOTBED_STORAGE_INDEX_CALL_CORE_H

#include "base/fault.h"
#include "storage/index_core.h"

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
        a->faults, HOTBED_ERR_RANGE, HOTBED_FAULT_TABLE_NUMBER, a->tables[i], a->keys[i],
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

HOTBED_HD void hotbed_call_find(const hotbed_index_args *a, uint64_t i, uint32_t width) {
    hotbed_index_range range;
    bool good = hotbed_call_range(a, i, &range);
    uint64_t slot =
        good ? hotbed_index_find(hotbed_call_index(a), range, a->keys[i], width) : HOTBED_SLOT_NONE;
    if (hotbed_tile_rank(width) != 0)
        return;
    if (!good)
        hotbed_call_no_table(a, i);
    a->slots[i] = slot;
}

/* One lane: store the result of key number i. */
HOTBED_HD void hotbed_call_give(
    const hotbed_index_args *a, uint64_t i, uint64_t slot, hotbed_index_outcome outcome) {
    a->slots[i] = slot;
    if (a->outcomes != NULL)
        a->outcomes[i] = (uint8_t)outcome;
}

/* Find or insert in one pass, in tables that do not evict. */
HOTBED_HD void hotbed_call_claim(const hotbed_index_args *a, uint64_t i, uint32_t width) {
    hotbed_index_range range;
    hotbed_index_result r = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_NO_TABLE};
    if (hotbed_call_range(a, i, &range))
        r = hotbed_index_claim(
            hotbed_call_index(a), range, a->keys[i], a->rule, hotbed_call_score(a, i), a->pins,
            width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (r.outcome == HOTBED_INDEX_INSERTED)
        hotbed_index_publish(hotbed_call_index(a), r.slot, a->keys[i]);
    if (r.outcome == HOTBED_INDEX_NO_TABLE)
        hotbed_call_no_table(a, i);
    hotbed_call_give(a, i, r.slot, r.outcome);
}

/* In tables that evict, find-or-insert takes three passes, so that a call does not evict its own
 * keys: all existing keys are scored and pinned before the first new one is placed, new ones are
 * pinned too, and unrequested pins are taken off at the end. Pass one: keys not found get no slot
 * and a preliminary outcome. */
HOTBED_HD void hotbed_call_hold(const hotbed_index_args *a, uint64_t i, uint32_t width) {
    hotbed_index_range range;
    bool good = hotbed_call_range(a, i, &range);
    uint64_t slot =
        good ? hotbed_index_find(hotbed_call_index(a), range, a->keys[i], width) : HOTBED_SLOT_NONE;
    if (hotbed_tile_rank(width) != 0)
        return;
    if (!good)
        hotbed_call_no_table(a, i);
    if (slot != HOTBED_SLOT_NONE)
        hotbed_index_touch_found(hotbed_call_index(a), slot, a->rule, hotbed_call_score(a, i), 1);
    hotbed_call_give(a, i, slot, good ? HOTBED_INDEX_FOUND : HOTBED_INDEX_NO_TABLE);
}

/* Pass two: place key number i if pass one found no slot. All lanes get the same result; FOUND if
 * nothing had to be done. */
HOTBED_HD hotbed_index_result
hotbed_call_place(const hotbed_index_args *a, uint64_t i, uint32_t width) {
    hotbed_index_range range;
    hotbed_index_result r = {HOTBED_SLOT_NONE, 0, 0, HOTBED_INDEX_FOUND};
    uint64_t slot = a->slots[i];
    if (slot != HOTBED_SLOT_NONE || !hotbed_call_range(a, i, &range))
        return r;
    r = hotbed_index_place(
        hotbed_call_index(a), range, a->keys[i], hotbed_meta_new(hotbed_call_score(a, i), 1),
        width);
    if (hotbed_tile_rank(width) == 0) {
        if (r.slot != HOTBED_SLOT_NONE)
            hotbed_index_publish(hotbed_call_index(a), r.slot, a->keys[i]);
        hotbed_call_give(a, i, r.slot, r.outcome);
    }
    return r;
}

/* Pass three: take off the pin of key number i's slot. */
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

/* Slots come from the caller, and a wrong one must not corrupt the bits beside the pins: pins stop
 * at HOTBED_PINS_MOST and at 0. */
HOTBED_HD void hotbed_call_pin(const hotbed_index_args *a, uint64_t i) {
    if (a->slots[i] >= a->index_slots)
        return;
    uint64_t *meta = &a->index.metas[a->slots[i]];
    for (;;) {
        uint64_t old = hotbed_load_relaxed_u64(meta);
        if (old == 0 || (old & HOTBED_META_PINS) == HOTBED_META_PINS ||
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
        a->export_keys[at] = a->index.keys[slot];
    if (a->slots != NULL)
        a->slots[at] = slot;
    if (a->export_scores != NULL)
        a->export_scores[at] = hotbed_meta_score(meta);
}

#endif
