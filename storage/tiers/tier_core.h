/* storage/tiers/tier_core.h - moving rows between two tiers: what a prefetch does for keys that the upper
 * tier lacks.
 *
 *   seek     find and pin their slots in the lower tier
 *   claim    take an upper-tier slot, perhaps by evicting a row; CACHE: a lower-tier slot too
 *   settle   choose each evicted row's lower-tier slot; count moves by region of the lower tier
 *   order    sort the moves by region, because the link is slow for random addresses
 *   exchange copy evicted rows down and publish them there, then copy up the rows that replace them
 *   arrive   initialize new rows, publish keys
 *
 * Each is one pass over all missing keys. No move reads lower-tier memory that another move writes:
 * rows to be promoted are pinned there, and evicted rows belong to keys that are not in the batch.
 * Exchange does little but copy rows, because it is bound by the link and should use few SMs.
 *
 * A key whose candidates in the upper tier are all pinned stays in the lower tier for this batch
 * and is used there. While another ticket pins it there, it is not promoted. Pins therefore never
 * refuse a key, and the tier of a row does not affect its values.
 *
 * Invariants between prefetches. CACHE: every key is in the lower tier, and is flagged there if and
 * only if the upper tier has it too. SCORE: every key is in exactly one tier. During a prefetch the
 * row of a key can be found and read at all times, at its source until it has been published at its
 * destination.
 */
#pragma once

#include "base/fault.h"
#include "storage/index/index_place_core.h"
#include "storage/step/score_core.h"
#include "storage/step/step_core.h"

/* hotbed_move.flags */
#define HOTBED_MOVE_NEW 1U /* the row has to be initialized */
/* it gets a slot in the upper tier; otherwise the lower tier's is used */
#define HOTBED_MOVE_UP 2U

/* --- seek ------------------------------------------------------------------------------------- */

/* Find and pin the lower-tier slots of missing keys first .. first+count-1, at most one per
 * lane. */
HOTBED_HD void hotbed_seek_lower(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    bool mine = lane < count;
    uint32_t u = s->unique.missing[first + (mine ? lane : 0)];
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t lower = hotbed_index_find_each(
        s->storage.index, table->lower, s->unique.keys[u], hotbed_tile_ballot(width, mine), false,
        width);
    if (!mine)
        return;
    if (lower != HOTBED_SLOT_NONE)
        hotbed_add_relaxed_u64(hotbed_index_meta(s->storage.index, lower), HOTBED_META_PIN);
    hotbed_move move = {
        lower, HOTBED_SLOT_NONE, 0, lower == HOTBED_SLOT_NONE ? HOTBED_MOVE_NEW : 0, 0};
    s->moves.items[first + lane] = move;
}

/* --- claim ------------------------------------------------------------------------------------ */

/* Claim a slot in the lower tier, locked and pinned once, evicting there if the table evicts.
 *
 * A slot that was free still has EMPTY for its key, which ends a search. With SCORE, another key
 * may be demoted to a later slot of the same probe sequence, and must be found there before this
 * slot's key is published. The key is therefore set to ERASED at once.
 */
HOTBED_HD uint64_t hotbed_claim_lower(
    const hotbed_step_view *s, uint32_t t, uint64_t key, uint64_t score, uint32_t width) {
    const hotbed_table_view *table = &s->storage.tables[t];
    hotbed_index_result r =
        hotbed_index_place(s->storage.index, table->lower, key, hotbed_meta_new(score, 1), width);
    if (s->storage.tracker != NULL && r.outcome == HOTBED_INDEX_EVICTED)
        hotbed_log_removed_one(s->storage.tracker, table, t, r.evicted_key, width);
    if (hotbed_tile_rank(width) != 0)
        return r.slot;
    if (r.outcome == HOTBED_INDEX_EVICTED)
        hotbed_add_relaxed_u64(&s->storage.tallies[t].evictions, 1);
    else if (r.slot != HOTBED_SLOT_NONE && table->tiers == HOTBED_TIERS_SCORE)
        hotbed_index_forget(s->storage.index, table->lower, r.slot);
    return r.slot;
}

/* Use the row in the lower tier. SCORE: claim a lower-tier slot for a new key. */
HOTBED_HD void hotbed_stay_lower(
    const hotbed_step_view *s, uint32_t t, uint32_t u, hotbed_move *move, uint64_t score,
    uint32_t width) {
    if (move->lower == HOTBED_SLOT_NONE)
        move->lower = hotbed_claim_lower(s, t, s->unique.keys[u], score, width);
    else if ((move->flags & HOTBED_MOVE_NEW) == 0 && hotbed_tile_rank(width) == 0)
        hotbed_index_touch_found(
            s->storage.index, move->lower, hotbed_unique_rule(&s->storage.tables[t]), score, 0);
    move->flags &= ~HOTBED_MOVE_UP;
}

/* Meta for a claimed slot of the upper tier. */
HOTBED_HD uint64_t hotbed_upper_meta(
    const hotbed_table_view *table, const hotbed_move *move, uint64_t lower_meta, uint64_t score) {
    uint64_t meta = hotbed_meta_new(score, 1);
    if ((move->flags & HOTBED_MOVE_NEW) == 0) {
        /* the lower tier's meta has the earlier score */
        uint64_t before = lower_meta >> HOTBED_META_SCORE_SHIFT << HOTBED_META_SCORE_SHIFT;
        meta = hotbed_meta_rescore(
            before | HOTBED_META_OCCUPIED | HOTBED_META_LOCKED | HOTBED_META_PIN,
            hotbed_unique_rule(table), score);
    } else if (table->tiers == HOTBED_TIERS_CACHE) {
        meta |= HOTBED_META_FLAGGED; /* the lower tier has no row yet */
    }
    return table->probation != 0 ? meta | HOTBED_META_PROBATION : meta;
}

/* Claim a slot of the upper tier for entry i of `missing`; if there is none, use the lower tier. */
HOTBED_HD void hotbed_claim_missing(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t key = s->unique.keys[u], score = hotbed_unique_score(s, table, t, u);
    hotbed_move move = s->moves.items[i];
    if (move.lower == HOTBED_SLOT_NONE && table->tiers == HOTBED_TIERS_CACHE)
        move.lower = hotbed_claim_lower(s, t, key, score, width);
    uint64_t slot = HOTBED_SLOT_NONE;
    if (move.lower != HOTBED_SLOT_NONE || table->tiers == HOTBED_TIERS_SCORE) {
        bool fresh = (move.flags & HOTBED_MOVE_NEW) != 0;
        uint64_t lower_meta = 0;
        if (!fresh && hotbed_tile_rank(width) == 0)
            lower_meta = hotbed_load_pass_u64(hotbed_index_meta(s->storage.index, move.lower));
        lower_meta = hotbed_tile_shuffle_u64(width, lower_meta, 0);
        /* One pin is this batch's. If there are more, another ticket may be about to update the
         * row in the lower tier, so this batch uses it there too. If there are none, those updates
         * happened before this load. */
        if (fresh || (lower_meta & HOTBED_META_PINS) == HOTBED_META_PIN) {
            hotbed_index_result r = hotbed_index_place_over(
                s->storage.index, table->range, key,
                hotbed_upper_meta(table, &move, lower_meta, score), true, width);
            slot = r.slot;
            if (r.outcome == HOTBED_INDEX_EVICTED)
                move.evicted_meta = r.evicted_meta;
        }
        if (slot != HOTBED_SLOT_NONE) {
            move.flags |= HOTBED_MOVE_UP;
        } else {
            hotbed_stay_lower(s, t, u, &move, score, width);
            slot = move.lower;
        }
    }
    if (hotbed_tile_rank(width) != 0)
        return;
    s->unique.slots[u] = slot;
    s->moves.items[i] = move;
}

/* --- settle and order ------------------------------------------------------------------------- */

/* Whether the evicted row has to be copied to the lower tier. */
HOTBED_HD bool hotbed_move_writes(const hotbed_table_view *table, const hotbed_move *move) {
    return move->evicted_meta != 0 &&
           (table->tiers == HOTBED_TIERS_SCORE || (move->evicted_meta & HOTBED_META_FLAGGED) != 0);
}

HOTBED_HD bool hotbed_move_fetches(const hotbed_move *move) {
    return move->flags == HOTBED_MOVE_UP;
}

/* Whether the move takes part in exchange: a row is promoted or evicted. */
HOTBED_HD bool hotbed_move_exchanges(const hotbed_move *move) {
    return hotbed_move_fetches(move) || move->evicted_meta != 0;
}

/* The region that a move reads in the lower tier; if it reads nothing there, the region of the
 * evicted row's slot. */
HOTBED_HD uint32_t
hotbed_move_bin(hotbed_index_view index, const hotbed_table_view *table, const hotbed_move *move) {
    return hotbed_lower_bin(
        index, table, hotbed_move_fetches(move) ? move->lower : move->evicted_lower);
}

/* SCORE: the lower tier has no slot for the evicted row, so it stays in the upper tier. */
HOTBED_HD void hotbed_keep_upper(
    const hotbed_step_view *s, uint32_t t, uint32_t u, hotbed_move *move, uint32_t width) {
    uint64_t slot = s->unique.slots[u];
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        hotbed_store_relaxed_u64(hotbed_index_meta(s->storage.index, slot), move->evicted_meta);
    move->evicted_meta = 0;
    hotbed_stay_lower(s, t, u, move, hotbed_unique_score(s, &s->storage.tables[t], t, u), width);
    if (hotbed_tile_rank(width) == 0)
        s->unique.slots[u] = move->lower;
}

/* Choose the lower-tier slot of the row that move i evicts. */
HOTBED_HD void hotbed_settle_missing(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    hotbed_move move = s->moves.items[i];
    if (move.evicted_meta != 0) {
        uint64_t evicted =
            hotbed_load_relaxed_u64(hotbed_index_key(s->storage.index, s->unique.slots[u]));
        if (table->tiers == HOTBED_TIERS_CACHE)
            move.evicted_lower = hotbed_index_find(s->storage.index, table->lower, evicted, width);
        else
            move.evicted_lower =
                hotbed_claim_lower(s, t, evicted, hotbed_meta_score(move.evicted_meta), width);
        if (move.evicted_lower == HOTBED_SLOT_NONE)
            hotbed_keep_upper(s, t, u, &move, width);
        hotbed_tile_sync(width);
        if (hotbed_tile_rank(width) == 0)
            s->moves.items[i] = move;
    }
    if (hotbed_tile_rank(width) != 0)
        return;
    if (hotbed_move_exchanges(&move))
        hotbed_add_relaxed_u32(
            &s->moves.sort.bins[1 + hotbed_move_bin(s->storage.index, table, &move)], 1);
}

/* --- exchange --------------------------------------------------------------------------------- */

enum { HOTBED_COPY_AHEAD = 4 }; /* words that a lane reads before it writes the first */

/* Copy a row. Rows are aligned like row_bytes, up to 16 bytes. */
HOTBED_HD void hotbed_row_copy(uint8_t *to, const uint8_t *from, uint64_t bytes, uint32_t width) {
    uint64_t lane = hotbed_tile_rank(width);
    if (bytes % sizeof(hotbed_u64x2) == 0) {
        uint64_t n = bytes / sizeof(hotbed_u64x2);
        const hotbed_u64x2 *source = (const hotbed_u64x2 *)(const void *)from;
        hotbed_u64x2 *target = (hotbed_u64x2 *)(void *)to;
        for (uint64_t at = lane; at < n; at += (uint64_t)HOTBED_COPY_AHEAD * width) {
            hotbed_u64x2 words[HOTBED_COPY_AHEAD];
            HOTBED_POINT();
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_COPY_AHEAD; k++)
                if (at + (uint64_t)k * width < n)
                    words[k] = source[at + (uint64_t)k * width];
            HOTBED_UNROLL
            for (uint32_t k = 0; k < HOTBED_COPY_AHEAD; k++)
                if (at + (uint64_t)k * width < n)
                    target[at + (uint64_t)k * width] = words[k];
        }
    } else if (bytes % sizeof(uint32_t) == 0) {
        for (uint64_t at = lane; at < bytes / sizeof(uint32_t); at += width)
            ((uint32_t *)(void *)to)[at] = ((const uint32_t *)(const void *)from)[at];
    } else {
        for (uint64_t at = lane; at < bytes / sizeof(uint16_t); at += width)
            ((uint16_t *)(void *)to)[at] = ((const uint16_t *)(const void *)from)[at];
    }
}

/* One lane, CACHE: the row in lower-tier slot `lower` has left the upper tier, where its meta was
 * `meta`. */
HOTBED_HD void hotbed_lower_alone(hotbed_index_view index, uint64_t lower, uint64_t meta) {
    uint64_t old = hotbed_load_relaxed_u64(hotbed_index_meta(index, lower));
    uint64_t rescored = hotbed_meta_rescore(old, HOTBED_SCORE_ASSIGN, hotbed_meta_score(meta));
    hotbed_store_release_u64(hotbed_index_meta(index, lower), rescored & ~HOTBED_META_FLAGGED);
}

/* One copy of a row between the tiers. */
typedef struct hotbed_transfer {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes;
} hotbed_transfer;

/* One lane: the copy that move i makes of the evicted row (`down`) or of its own. */
HOTBED_HD hotbed_transfer hotbed_transfer_of(const hotbed_step_view *s, uint32_t i, bool down) {
    uint32_t u = s->unique.missing[i];
    const hotbed_table_view *table = &s->storage.tables[hotbed_table_of_unique(s, u)];
    uint8_t *above = hotbed_row_at(s->storage.index, table, s->unique.slots[u]);
    uint8_t *below = hotbed_row_at(
        s->storage.index, table, down ? s->moves.items[i].evicted_lower : s->moves.items[i].lower);
    hotbed_transfer transfer = {down ? below : above, down ? above : below, table->row_bytes};
    return transfer;
}

/* One lane: the row that move i evicted, if any, is now used in the lower tier, where its bytes
 * already are. */
HOTBED_HD void hotbed_leave_upper(const hotbed_step_view *s, uint32_t i) {
    hotbed_move move = s->moves.items[i];
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0 || move.evicted_meta == 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t slot = s->unique.slots[u];
    hotbed_table_copy_time(s->storage.index, table, move.evicted_lower, slot);
    hotbed_copy_changed(s->storage.index, table, move.evicted_lower, slot);
    if (table->tiers == HOTBED_TIERS_CACHE) {
        hotbed_lower_alone(s->storage.index, move.evicted_lower, move.evicted_meta);
    } else {
        hotbed_index_publish(
            s->storage.index, move.evicted_lower,
            hotbed_load_relaxed_u64(hotbed_index_key(s->storage.index, slot)));
        hotbed_index_unpin(s->storage.index, move.evicted_lower, true);
    }
    hotbed_index_forget(s->storage.index, table->range, slot);
}

/* One lane, CACHE: the row in lower-tier slot `lower` now has a copy in the upper tier. The slot
 * of a new key is locked. */
HOTBED_HD void hotbed_lower_copied(
    hotbed_index_view index, uint64_t lower, uint64_t key, bool fresh) {
    uint64_t taken = HOTBED_META_PIN;
    if (fresh) {
        hotbed_store_release_u64(hotbed_index_key(index, lower), key);
        taken += HOTBED_META_LOCKED;
    }
    hotbed_add_release_u64(hotbed_index_meta(index, lower), HOTBED_META_FLAGGED - taken);
}

/* Count the results of moves first .. first+count-1, at most one per lane. A tile adds once per
 * table and counter, because additions to one word are serialized. */
HOTBED_HD void hotbed_tally_moves(
    const hotbed_step_view *s, uint32_t first, uint32_t count, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width), i = first + (lane < count ? lane : 0);
    hotbed_move move = s->moves.items[i];
    uint32_t u = s->unique.missing[i];
    bool mine = lane < count && (u & HOTBED_MISSING_REJECTED) == 0;
    u = mine ? u : 0;
    uint32_t t = hotbed_table_of_unique(s, u);
    bool placed = mine && s->unique.slots[u] != HOTBED_SLOT_NONE,
         fresh = (move.flags & HOTBED_MOVE_NEW) != 0;
    bool up = (move.flags & HOTBED_MOVE_UP) != 0;
    for (uint32_t left = hotbed_tile_ballot(width, mine); left != 0;) {
        uint32_t one = hotbed_tile_shuffle_u32(width, t, hotbed_lowest_bit(left));
        const hotbed_table_view *table = &s->storage.tables[one];
        hotbed_tally *tally = &s->storage.tallies[one];
        bool ours = mine && t == one, there = ours && placed;
        hotbed_tally_lanes(&tally->refused, ours && !placed, width);
        hotbed_tally_lanes(&tally->inserts, there && fresh, width);
        hotbed_tally_lanes(&tally->fetches, there && !fresh && up, width);
        hotbed_tally_lanes(&tally->in_place, there && !up, width);
        hotbed_tally_lanes(&tally->write_backs, there && hotbed_move_writes(table, &move), width);
        if (ours && !placed)
            hotbed_fault_latch(
                s->batch.faults, HOTBED_ERR_FULL,
                table->lower.evicts != 0 ? HOTBED_CAUSE_ALL_PINNED : HOTBED_CAUSE_TABLE_FULL, t,
                s->unique.keys[u], hotbed_table_slots(s->storage.index, table));
        left &= ~hotbed_tile_ballot(width, ours);
    }
}

/* Publish the key of move i at its slot. A new row is initialized first. */
HOTBED_HD void hotbed_end_move(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    hotbed_move move = s->moves.items[i];
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t key = s->unique.keys[u], slot = s->unique.slots[u];
    if (hotbed_tile_rank(width) == 0 && slot != HOTBED_SLOT_NONE)
        hotbed_unique_seen(s, table, slot);
    bool fresh = (move.flags & HOTBED_MOVE_NEW) != 0, up = (move.flags & HOTBED_MOVE_UP) != 0;
    if (slot == HOTBED_SLOT_NONE || (!fresh && !up))
        return;
    if (fresh)
        hotbed_row_init(table, hotbed_row_at(s->storage.index, table, slot), key, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0) {
        if (fresh)
            hotbed_set_changed(s->storage.index, table, slot);
        else
            hotbed_copy_changed(s->storage.index, table, slot, move.lower);
        hotbed_index_publish(s->storage.index, slot, key);
        if (up && table->tiers == HOTBED_TIERS_CACHE)
            hotbed_lower_copied(s->storage.index, move.lower, key, fresh);
    }
    if (!fresh && table->tiers == HOTBED_TIERS_SCORE)
        (void)hotbed_index_vacate(
            s->storage.index, table->lower, move.lower, HOTBED_META_PIN, width);
}

/* --- flush ------------------------------------------------------------------------------------ */

/* Arguments of flush, for one table with CACHE. */
typedef struct hotbed_flush_args {
    hotbed_table_view table;
    hotbed_index_view index;
    hotbed_tally *tally;
    uint32_t drop; /* also empty the upper tier, except for pinned rows */
} hotbed_flush_args;

/* Write slot number i of the upper tier to the lower tier: its score, and its row if it has
 * changed. Rows that launched graphs have pinned, unknown to the host, are not dropped. */
HOTBED_HD void hotbed_flush_slot(const hotbed_flush_args *a, uint64_t i, uint32_t width) {
    uint64_t slot = a->table.first_slot + i;
    uint64_t meta = 0;
    if (hotbed_tile_rank(width) == 0)
        meta = hotbed_load_relaxed_u64(hotbed_index_meta(a->index, slot));
    meta = hotbed_tile_shuffle_u64(width, meta, 0);
    if (meta == 0)
        return;
    uint64_t key = hotbed_load_relaxed_u64(hotbed_index_key(a->index, slot));
    uint64_t lower = hotbed_index_find(a->index, a->table.lower, key, width);
    if (lower == HOTBED_SLOT_NONE)
        return;
    bool writes = (meta & HOTBED_META_FLAGGED) != 0;
    if (writes)
        hotbed_row_copy(
            hotbed_row_at(a->index, &a->table, lower), hotbed_row_at(a->index, &a->table, slot),
            a->table.row_bytes, width);
    hotbed_tile_sync(width);
    bool drops = a->drop != 0 && (meta & HOTBED_META_PINS) == 0;
    if (hotbed_tile_rank(width) == 0) {
        hotbed_table_copy_time(a->index, &a->table, lower, slot);
        hotbed_copy_changed(a->index, &a->table, lower, slot);
        hotbed_lower_alone(a->index, lower, meta);
        if (!drops)
            hotbed_add_release_u64(hotbed_index_meta(a->index, lower), HOTBED_META_FLAGGED);
        if (writes) {
            hotbed_add_release_u64(hotbed_index_meta(a->index, slot), 0 - HOTBED_META_FLAGGED);
            hotbed_add_relaxed_u64(&a->tally->write_backs, 1);
        }
    }
    if (drops)
        (void)hotbed_index_vacate(a->index, a->table.range, slot, 0, width);
}
