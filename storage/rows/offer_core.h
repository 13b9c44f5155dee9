/* storage/rows/offer_core.h - give a key without a slot one by moving rows to other slots.
 *
 * A breadth-first search over buckets finds the shortest sequence of keys of which each can move to
 * the bucket of the next, and the last one to a free slot. No other work uses the table meanwhile,
 * but several tiles search at the same time. A tile claims the free slot that it finds, and locks
 * the slot of each key before it moves the key; if another tile has moved it, the tile searches
 * anew.
 *
 * Rows that tickets hold, and rows of which the upper tier has a copy, do not move. A row moves to
 * another tier only if tiers are chosen by score.
 *
 * Source: cuckoo hashing, Pagh and Rodler 2004. */
#pragma once

#include "storage/rows/rows_core.h"

enum { HOTBED_UPPER = 0, HOTBED_LOWER = 1, HOTBED_TIERS_MOST = 2 };

#define HOTBED_STEP_NONE    UINT32_MAX
#define HOTBED_OFFER_CLOSED UINT32_MAX
#define HOTBED_INSERTED     UINT64_MAX /* in rows.refused: the key has been inserted */

enum { HOTBED_OFFER_ATTEMPTS = 4 };

/* A bucket that a search has reached. */
typedef struct hotbed_offer_step {
    uint64_t line;  /* its first slot */
    uint64_t key;   /* a key that may move here */
    uint32_t from;  /* the step in whose bucket that key is; NONE: it is the new key */
    uint32_t slot;  /* of the key in that bucket */
    uint32_t place; /* of the bucket in `seen` */
    uint32_t unused;
} hotbed_offer_step;

/* Shared by the searches of a call, in device memory. */
typedef struct hotbed_offer_state {
    uint64_t used[HOTBED_TIERS_MOST][2]; /* [tier][0] its keys; [1] its pinned slots, not used */
    uint64_t work; /* candidate buckets at which searches have looked since slots were freed */
    uint64_t left_for_growth; /* keys left that may be in the tier that grows */
} hotbed_offer_state;

typedef struct hotbed_offer_args {
    hotbed_rows_args rows; /* of the call; the keys to insert are in rows.refused */
    /* of a tier, segments included; 0: it has no rows of its own */
    uint64_t slots[HOTBED_TIERS_MOST];
    uint64_t work_most;
    hotbed_offer_state *state;
    hotbed_offer_step *steps; /* [steps_most] */
    uint32_t steps_most;
    uint32_t shares; /* tiles that search at the same time, each with steps_most / shares steps;
                      * more than a tile has lanes */
    /* [buckets of the table], all 0 at first: the number of the last search by one tile alone that
     * reached the bucket, or CLOSED: no free slot can be reached from it */
    uint32_t *seen;
} hotbed_offer_args;

/* The searches of a tile: all lanes have the same values. */
typedef struct hotbed_offer_search {
    hotbed_offer_step *steps;
    uint32_t steps_most;
    uint32_t num_steps;
    uint32_t *seen;   /* NULL: several tiles search, and may reach a bucket repeatedly */
    uint32_t number;  /* of the search */
    uint32_t tiers;   /* in which the key may be: a bit each */
    uint64_t work;    /* of this search */
    bool cut;         /* it ended because `steps` was full or work_most was reached */
    uint64_t claimed; /* slot */
} hotbed_offer_search;

HOTBED_HD hotbed_index_range hotbed_tier_range(const hotbed_table_view *table, uint32_t tier) {
    return tier == HOTBED_UPPER ? table->range : table->lower;
}

HOTBED_HD uint32_t hotbed_tier_of(const hotbed_table_view *table, uint64_t slot) {
    return hotbed_slot_below(table, slot) ? HOTBED_LOWER : HOTBED_UPPER;
}

/* Free slots of the bucket that begins at slot `line`, a bit each. */
HOTBED_HD uint32_t hotbed_offer_free_bits(hotbed_index_view index, uint64_t line) {
    return hotbed_match16(hotbed_index_meta(index, line), 0);
}

/* Whether this lane is the first of this search to reach a bucket. */
HOTBED_HD bool hotbed_offer_reaches(const hotbed_offer_search *s, uint32_t place) {
    if (s->seen == NULL)
        return true;
    const uint32_t before = hotbed_load_relaxed_u32(&s->seen[place]);
    return before != s->number && before != HOTBED_OFFER_CLOSED &&
           hotbed_cas_relaxed_u32(&s->seen[place], before, s->number) == before;
}

/* Claim a free slot of the bucket of a step. */
HOTBED_HD bool hotbed_offer_claim(
    hotbed_index_view index, hotbed_offer_search *s, uint32_t step, uint32_t width) {
    const uint64_t line = s->steps[step].line;
    uint32_t slot = HOTBED_BUCKET_SLOTS;
    if (hotbed_tile_rank(width) == 0)
        for (uint32_t free = hotbed_offer_free_bits(index, line); free != 0; free &= free - 1) {
            slot = hotbed_lowest_bit(free);
            if (hotbed_cas_u64(
                    hotbed_index_meta(index, line + slot), 0,
                    HOTBED_META_OCCUPIED | HOTBED_META_LOCKED))
                break;
            slot = HOTBED_BUCKET_SLOTS;
        }
    slot = hotbed_tile_shuffle_u32(width, slot, 0);
    s->claimed = line + slot;
    return slot != HOTBED_BUCKET_SLOTS;
}

HOTBED_HD bool hotbed_offer_movable(uint64_t meta) {
    return meta != 0 && (meta & (HOTBED_META_PINS | HOTBED_META_LOCKED | HOTBED_META_FLAGGED)) == 0;
}

/* Append the buckets of part `at` to which the keys in the bucket of step `from` may move, or where
 * `key` may be if `from` is NONE. The lanes look at one bucket each. Claims a free slot in the first
 * bucket that has one, and returns that step; else returns NONE. */
HOTBED_HD uint32_t hotbed_offer_reach_part(
    const hotbed_offer_args *a, hotbed_offer_search *s, const hotbed_index_part *at,
    uint32_t first_place, uint32_t from, uint64_t key, uint32_t width) {
    const hotbed_index_view index = a->rows.index;
    const uint32_t keys = from == HOTBED_STEP_NONE ? 1 : HOTBED_BUCKET_SLOTS,
                   lanes_before = (1U << hotbed_tile_rank(width)) - 1;
    const uint64_t line = from == HOTBED_STEP_NONE ? HOTBED_SLOT_NONE : s->steps[from].line;
    /* Rows do not move across the borders of regions: a search for each row that a full region
     * lacks space for would reach the whole region before it crosses. */
    const uint32_t choices =
        from != HOTBED_STEP_NONE && at->range.region_bits != 0 ? 2 : at->range.choices;
    /* The first candidates of all keys, then their second ones, and so on: before a key moves to a
     * late candidate, the earlier ones are known to be full, and a find will continue past them. */
    for (uint32_t first = 0; first < keys * choices; first += width) {
        if (s->num_steps + width > s->steps_most) {
            s->cut = true;
            return HOTBED_STEP_NONE;
        }
        s->work += width;
        const uint32_t item = first + hotbed_tile_rank(width);
        hotbed_offer_step step = {HOTBED_SLOT_NONE, key, from, item % keys, 0, 0};
        bool reached = item < keys * choices;
        if (reached && from != HOTBED_STEP_NONE) {
            const uint64_t slot = line + step.slot;
            step.key = hotbed_load_relaxed_u64(hotbed_index_key(index, slot));
            reached = hotbed_offer_movable(hotbed_load_relaxed_u64(hotbed_index_meta(index, slot)));
        }
        if (reached) {
            const uint32_t bucket = hotbed_index_candidate(
                at->range, hotbed_index_candidates(at->range, step.key), item / keys);
            step.line = at->first + hotbed_index_slot(at->range, bucket);
            step.place = first_place + bucket;
            reached = step.line != line && hotbed_offer_reaches(s, step.place);
        }
        const bool free = reached && hotbed_offer_free_bits(index, step.line) != 0;
        const uint32_t all = hotbed_tile_ballot(width, reached), begin = s->num_steps;
        uint32_t hits = hotbed_tile_ballot(width, free);
        if (reached)
            s->steps[begin + hotbed_bits_set(all & lanes_before)] = step;
        s->num_steps += hotbed_bits_set(all);
        hotbed_tile_sync(width);
        for (; hits != 0; hits &= hits - 1) {
            const uint32_t found =
                begin + hotbed_bits_set(all & ((1U << hotbed_lowest_bit(hits)) - 1));
            if (hotbed_offer_claim(index, s, found, width))
                return found;
        }
    }
    return HOTBED_STEP_NONE;
}

/* The same in all parts of the search's tiers. */
HOTBED_HD uint32_t hotbed_offer_reach(
    const hotbed_offer_args *a, hotbed_offer_search *s, uint32_t from, uint64_t key,
    uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    uint32_t found = HOTBED_STEP_NONE;
    for (uint32_t tier = 0; tier < HOTBED_TIERS_MOST; tier++) {
        if ((s->tiers >> tier & 1U) == 0)
            continue;
        const hotbed_index_range range = hotbed_tier_range(table, tier);
        const uint32_t parts = hotbed_index_growths(a->rows.index, range) + 1;
        uint32_t first_place = tier == HOTBED_UPPER ? 0 : table->range.buckets;
        for (uint32_t p = 0; p < parts && found == HOTBED_STEP_NONE && !s->cut; p++) {
            const hotbed_index_part at = hotbed_index_part_at(a->rows.index, range, p);
            found = hotbed_offer_reach_part(a, s, &at, first_place, from, key, width);
            first_place += at.range.buckets;
        }
    }
    return found;
}

/* Search for a free slot that can be reached from `key`, and claim it. Returns the last step, or
 * NONE. */
HOTBED_HD uint32_t hotbed_offer_find(
    const hotbed_offer_args *a, hotbed_offer_search *s, uint64_t key, uint32_t width) {
    const uint64_t done =
                       hotbed_tile_shuffle_u64(width, hotbed_load_relaxed_u64(&a->state->work), 0),
                   most = done < a->work_most ? a->work_most - done : 0;
    s->num_steps = 0;
    s->number++;
    s->work = 0;
    s->cut = most == 0;
    if (s->cut)
        return HOTBED_STEP_NONE;
    uint32_t found = hotbed_offer_reach(a, s, HOTBED_STEP_NONE, key, width);
    for (uint32_t at = 0; found == HOTBED_STEP_NONE && !s->cut && at < s->num_steps; at++) {
        found = hotbed_offer_reach(a, s, at, key, width);
        s->cut = s->cut || (found == HOTBED_STEP_NONE && s->work >= most);
    }
    if (hotbed_tile_rank(width) == 0)
        hotbed_add_relaxed_u64(&a->state->work, s->work);
    if (found == HOTBED_STEP_NONE && s->seen != NULL)
        for (uint32_t i = hotbed_tile_rank(width); i < s->num_steps; i += width)
            s->seen[s->steps[i].place] = HOTBED_OFFER_CLOSED;
    hotbed_tile_sync(width);
    return found;
}

/* Move `key` and its row from slot `from` to the claimed slot `to`; then `from` is claimed. Returns
 * false if the key is not there any more. */
HOTBED_HD bool hotbed_offer_move(
    const hotbed_offer_args *a, uint64_t to, uint64_t from, uint64_t key, uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    const hotbed_index_view index = a->rows.index;
    uint64_t *meta = hotbed_index_meta(index, from), old = 0;
    bool locked = false;
    if (hotbed_tile_rank(width) == 0) {
        old = hotbed_load_relaxed_u64(meta);
        locked = hotbed_offer_movable(old) && hotbed_cas_u64(meta, old, old | HOTBED_META_LOCKED);
        if (locked && hotbed_load_relaxed_u64(hotbed_index_key(index, from)) != key) {
            hotbed_store_release_u64(meta, old);
            locked = false;
        }
    }
    hotbed_tile_sync(width); /* another tile may have moved the row here */
    if (hotbed_tile_ballot(width, locked) == 0)
        return false;
    uint8_t *row = hotbed_row_at(index, table, to);
    const uint8_t *its = hotbed_row_at(index, table, from);
    hotbed_copy_part(row, its, hotbed_weights_bytes(table->dtype, table->dim), width);
    for (uint32_t s = 0; s < table->states; s++)
        hotbed_copy_part(
            row + table->state_offset[s], its + table->state_offset[s], table->state_bytes[s],
            width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0) {
        hotbed_table_copy_time(index, table, to, from);
        hotbed_copy_changed(index, table, to, from);
        hotbed_store_release_u64(hotbed_index_key(index, to), key);
        hotbed_index_forget(index, hotbed_tier_range(table, hotbed_tier_of(table, from)), from);
        hotbed_store_release_u64(hotbed_index_meta(index, to), old);
    }
    hotbed_tile_sync(width);
    return true;
}

/* One lane: free `slot`, the claimed one, because its next key cannot be moved there. Other tiles may
 * have seen the bucket full, so the slot's key becomes ERASED. */
HOTBED_HD void hotbed_offer_release(
    const hotbed_offer_args *a, const hotbed_offer_search *s, uint64_t slot) {
    const hotbed_table_view *table = &a->rows.table;
    const uint32_t tier = hotbed_tier_of(table, slot);
    hotbed_index_forget(a->rows.index, hotbed_tier_range(table, tier), slot);
    hotbed_add_relaxed_u64(&a->state->used[hotbed_tier_of(table, s->claimed)][0], 1);
    hotbed_add_relaxed_u64(&a->state->used[tier][0], UINT64_MAX);
    hotbed_store_release_u64(hotbed_index_meta(a->rows.index, slot), 0);
}

/* Move the keys of the steps up to `last`, the last one first. Returns the claimed slot of the
 * first step's bucket, or NONE if another tile has moved one of the keys. */
HOTBED_HD uint64_t hotbed_offer_make_room(
    const hotbed_offer_args *a, const hotbed_offer_search *s, uint32_t last, uint32_t width) {
    hotbed_offer_step step = s->steps[last];
    uint64_t to = s->claimed;
    while (step.from != HOTBED_STEP_NONE) {
        const hotbed_offer_step before = s->steps[step.from];
        const uint64_t from = before.line + step.slot;
        if (!hotbed_offer_move(a, to, from, step.key, width)) {
            if (hotbed_tile_rank(width) == 0)
                hotbed_offer_release(a, s, to);
            hotbed_tile_sync(width);
            return HOTBED_SLOT_NONE;
        }
        to = from;
        step = before;
    }
    return to;
}

/* The tiers in which key number i may be: a bit each. */
HOTBED_HD uint32_t hotbed_offer_tiers(const hotbed_rows_args *a, uint64_t i) {
    const hotbed_table_view *table = &a->table;
    const uint32_t upper = 1U << HOTBED_UPPER, lower = 1U << HOTBED_LOWER;
    if (table->tiers == HOTBED_TIERS_HASH)
        return hotbed_hashed_below(table, hotbed_rows_key(a, i)) ? lower : upper;
    return table->tiers == HOTBED_TIERS_ONE     ? upper
           : table->tiers == HOTBED_TIERS_CACHE ? lower /* the upper tier has copies only */
                                                : upper | lower;
}

/* Insert key number i, which the table lacks. Returns whether it now has a row. */
HOTBED_HD bool hotbed_offer_insert(
    const hotbed_offer_args *a, hotbed_offer_search *s, uint64_t i, uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    uint64_t slot = HOTBED_SLOT_NONE, full = 0;
    s->tiers = hotbed_offer_tiers(&a->rows, i);
    s->cut = false;
    if (hotbed_tile_rank(width) == 0)
        for (uint32_t tier = 0; tier < HOTBED_TIERS_MOST; tier++)
            full |= (uint64_t)(hotbed_load_relaxed_u64(&a->state->used[tier][0]) == a->slots[tier])
                    << tier;
    if ((s->tiers & ~hotbed_tile_shuffle_u64(width, full, 0)) == 0)
        return false;
    for (uint32_t attempt = 0; slot == HOTBED_SLOT_NONE && attempt < HOTBED_OFFER_ATTEMPTS;
         attempt++) {
        const uint32_t last = hotbed_offer_find(a, s, hotbed_rows_key(&a->rows, i), width);
        if (last == HOTBED_STEP_NONE)
            return false;
        const uint32_t tier = hotbed_tier_of(table, s->claimed);
        slot = hotbed_offer_make_room(a, s, last, width);
        if (slot != HOTBED_SLOT_NONE && hotbed_tile_rank(width) == 0)
            hotbed_add_relaxed_u64(&a->state->used[tier][0], 1);
    }
    if (slot == HOTBED_SLOT_NONE)
        return false;
    if (hotbed_tile_rank(width) == 0)
        hotbed_store_relaxed_u64(
            hotbed_index_meta(a->rows.index, slot),
            hotbed_meta_new(hotbed_rows_new_score(&a->rows, i), 0));
    hotbed_tile_sync(width);
    hotbed_rows_use(&a->rows, i, slot, width);
    hotbed_tile_sync(width);
    return true;
}

/* Insert the refused keys of share number `share`, by one tile each. Inserted ones become INSERTED
 * in the list. */
HOTBED_HD void hotbed_offer_insert_share(
    const hotbed_offer_args *a, uint64_t share, uint32_t width) {
    uint64_t *refused = a->rows.refused;
    const uint64_t n = refused[0];
    hotbed_offer_search s;
    memset(&s, 0, sizeof s);
    s.steps_most = a->steps_most / a->shares;
    s.steps = a->steps + share * s.steps_most;
    for (uint64_t j = share; j < n; j += a->shares) {
        const uint64_t i = refused[1 + j];
        hotbed_tile_sync(width); /* all lanes have read it */
        if (i != HOTBED_INSERTED && hotbed_offer_insert(a, &s, i, width) &&
            hotbed_tile_rank(width) == 0)
            refused[1 + j] = HOTBED_INSERTED;
    }
}

/* Insert the keys that are left, by one tile alone; the list then has the keys that it could not
 * insert. After a search that was cut, keys of the same tiers are not tried. */
HOTBED_HD void hotbed_offer_insert_rest(const hotbed_offer_args *a, uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    const uint32_t growing = table->lower.buckets != 0 ? HOTBED_LOWER : HOTBED_UPPER;
    uint64_t *refused = a->rows.refused;
    const uint64_t n = refused[0];
    uint64_t left = 0, left_for_growth = 0;
    uint32_t cut = 0; /* a bit for each set of tiers */
    hotbed_offer_search s;
    memset(&s, 0, sizeof s);
    s.steps = a->steps;
    s.steps_most = a->steps_most;
    s.seen = a->seen;
    hotbed_tile_sync(width); /* all lanes have read the number of keys */
    for (uint64_t j = 0; j < n; j++) {
        const uint64_t i = refused[1 + j];
        hotbed_tile_sync(width);
        if (i == HOTBED_INSERTED)
            continue;
        const uint32_t tiers = hotbed_offer_tiers(&a->rows, i);
        if ((cut >> tiers & 1U) == 0) {
            if (hotbed_offer_insert(a, &s, i, width))
                continue;
            cut |= (s.cut ? 1U : 0U) << tiers;
        }
        left_for_growth += tiers >> growing & 1U;
        if (hotbed_tile_rank(width) == 0)
            refused[1 + left] = i;
        left++;
    }
    if (hotbed_tile_rank(width) == 0) {
        refused[0] = left;
        a->state->left_for_growth = left_for_growth;
    }
}
