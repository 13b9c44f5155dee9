/* storage/tiers/tier_external_core.h - a cache over an external store: rows in the upper tier are copies
 * of the store's.
 *
 * The store is slow and may fail. Its calls are therefore made for batches
 * (storage/tiers/external_batch.h), and no row is evicted before the store has answered. A prefetch,
 * after the search of the upper tier:
 *
 *   want     flag the missing keys; prefix sums number them, in the same order on every backend
 *   ask      copy their keys to the batch; then the store's find is called
 *   answer   found; new; or unknown, because the store failed
 *   claim    claim a slot in the upper tier; the evicted key can still be found there
 *   leave    copy changed rows that are evicted to another batch; then the store's insert is called
 *   arrive   if it succeeded, copy or initialize rows and publish keys; if not, undo the claim:
 *            the evicted row keeps its slot, and the new key is refused for this batch
 *
 * A row is *changed* (its slot is flagged) if its bytes or its score differ from the store's. A
 * prefetch scores every key that it pins, so pinned rows are always flagged and backward need not
 * flag them.
 *
 * With track_changes, a row that is copied to a batch takes the epoch of its last change along: the host
 * keeps it (storage/tiers/stored_changes.h), because neither the store nor the slot will know it. A row that
 * arrives from the store begins as one that was not changed.
 */
#pragma once

#include "storage/index/index_place_core.h"
#include "storage/rows/rows_core.h"
#include "storage/step/pool_core.h"
#include "storage/tiers/tier_core.h"

/* The passes over the items of a call, in this order:
 *
 *   prefetch     WANT, ASK, ANSWER, CLAIM, LEAVE, ARRIVE
 *   eval         WANT, ASK, ANSWER
 *   get          GET, ASK, GET_ANSWER
 *   set          SET, ASK, SET_ANSWER (fills in rows for the store's insert), FAULT
 *   erase        ERASE, ASK, ERASE_ANSWER
 *   flush        WANT, LEAVE, LEFT, and DROP if the upper tier is emptied
 *
 * Prefix sums of `ranks` follow each first pass, and CLAIM. The store's call follows ASK,
 * SET_ANSWER and LEAVE. */
typedef enum hotbed_store_pass {
    HOTBED_PASS_WANT,
    HOTBED_PASS_ASK,
    HOTBED_PASS_ANSWER,
    HOTBED_PASS_CLAIM,
    HOTBED_PASS_LEAVE,
    HOTBED_PASS_ARRIVE,
    HOTBED_PASS_GET,
    HOTBED_PASS_SET,
    HOTBED_PASS_ERASE,
    HOTBED_PASS_GET_ANSWER,
    HOTBED_PASS_SET_ANSWER,
    HOTBED_PASS_ERASE_ANSWER,
    HOTBED_PASS_FAULT,
    HOTBED_PASS_LEFT,
    HOTBED_PASS_DROP,
} hotbed_store_pass;

/* The arrays of a hotbed_external_batch in pinned memory, as plain pointers. */
typedef struct hotbed_store_view {
    uint64_t *starts; /* [num_tables] first key of the table */
    uint64_t *counts; /* [num_tables] keys of the table */
    uint32_t *status; /* [num_tables] hotbed_status of the last call; OK for tables without keys */
    uint64_t *keys;   /* [capacity] */
    uint64_t *scores; /* [capacity] */
    uint8_t *found;   /* [capacity] results of find and erase, as in hotbed/external.h */
    /* [capacity, stride]: the rows of table t are dense from starts[t] * stride on */
    uint8_t *rows;
    uint64_t stride; /* of the longest row, so that tables do not overlap */
    /* [capacity] for the store's insert: when the row was changed, or 0; NULL: no table tracks changes */
    uint32_t *epochs;
} hotbed_store_view;

/* A choice of some of n items for a batch. Before the prefix sums `ranks` is 1 for a chosen item
 * and 0 for the others. */
typedef struct hotbed_store_list {
    hotbed_store_view batch;
    uint32_t *ranks; /* [n + 1] number of chosen items before each item */
} hotbed_store_list;

HOTBED_HD bool hotbed_list_has(const hotbed_store_list *list, uint64_t i) {
    return list->ranks[i + 1] != list->ranks[i];
}

/* Row number `place` of the batch; `start` is the first row of its table. */
HOTBED_HD uint8_t *hotbed_batch_row(
    const hotbed_store_view *batch, uint64_t start, uint64_t place, uint64_t row_bytes) {
    return batch->rows + start * batch->stride + (place - start) * row_bytes;
}

/* One lane: set the range of table t in the batch: the chosen ones of items first .. end-1. */
HOTBED_HD void hotbed_list_part(
    const hotbed_store_list *list, uint32_t t, uint64_t first, uint64_t end) {
    list->batch.starts[t] = list->ranks[first];
    list->batch.counts[t] = list->ranks[end] - list->ranks[first];
    list->batch.status[t] = HOTBED_OK;
}

/* One lane: latch a fault if the call for table t failed. */
HOTBED_HD void hotbed_list_fault(const hotbed_store_list *list, hotbed_fault *faults, uint32_t t) {
    uint32_t status = list->batch.status[t];
    if (status != HOTBED_OK)
        hotbed_fault_latch(
            faults, status, HOTBED_CAUSE_EXTERNAL, t, list->batch.counts[t], list->batch.counts[t]);
}

/* The time at the end of a store's row, in tables that keep times. */
HOTBED_HD uint64_t *hotbed_row_time(const hotbed_table_view *table, uint8_t *row) {
    return (uint64_t *)(void *)(row + table->row_bytes - HOTBED_ROW_TIME);
}

/* One lane: complete the copy of slot's row at `row` with its time. */
HOTBED_HD void hotbed_row_leaves(
    hotbed_index_view index, const hotbed_table_view *table, uint8_t *row, uint64_t slot) {
    if (table->range.times == NULL)
        return;
    hotbed_row_time(table, row)[0] = hotbed_load_relaxed_u64(hotbed_table_time(index, table, slot));
    hotbed_row_time(table, row)[1] = 0;
}

/* One lane: complete row number `place` of the batch with when slot's row was changed. */
HOTBED_HD void hotbed_change_leaves(
    const hotbed_store_view *batch, uint64_t place, hotbed_index_view index,
    const hotbed_table_view *table, const hotbed_tracker *tracker, uint64_t slot) {
    if (batch->epochs != NULL)
        batch->epochs[place] = hotbed_changed_epoch(index, table, tracker, slot);
}

/* --- prefetch --------------------------------------------------------------------------------- */

/* hotbed_move.flags: the store failed, so whether it has the key is not known */
#define HOTBED_MOVE_UNKNOWN 4U

typedef struct hotbed_store_step {
    hotbed_step_view s;
    hotbed_store_list asked;   /* items are unique keys that are missing */
    hotbed_store_list leaving; /* items are unique keys whose slots evict a changed row */
} hotbed_store_step;

HOTBED_HD void hotbed_want_missing(const hotbed_store_step *a, uint32_t i) {
    a->asked.ranks[a->s.unique.missing[i]] = 1;
}

HOTBED_HD void hotbed_ask_missing(const hotbed_store_step *a, uint32_t i) {
    uint32_t u = a->s.unique.missing[i];
    a->asked.batch.keys[a->asked.ranks[u]] = a->s.unique.keys[u];
}

/* Admission sees only whether a slot is set, so keys that the store has, or may have, are always
 * admitted. */
HOTBED_HD void hotbed_answer_missing(const hotbed_store_step *a, uint32_t i) {
    uint32_t place = a->asked.ranks[a->s.unique.missing[i]];
    uint8_t found = a->asked.batch.found[place];
    hotbed_move move = {place, HOTBED_SLOT_NONE, 0, 0, 0};
    if (found == HOTBED_EXTERNAL_MISSING) {
        move.lower = HOTBED_SLOT_NONE;
        move.flags = HOTBED_MOVE_NEW;
    } else if (found != HOTBED_EXTERNAL_FOUND) {
        move.flags = HOTBED_MOVE_UNKNOWN;
    }
    a->s.moves.items[i] = move;
}

/* Claim a locked slot for entry i of `missing`; the evicted key can still be found. */
HOTBED_HD void hotbed_claim_cached(const hotbed_store_step *a, uint32_t i, uint32_t width) {
    const hotbed_step_view *s = &a->s;
    uint32_t u = s->unique.missing[i];
    hotbed_move move = s->moves.items[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0 || move.flags == HOTBED_MOVE_UNKNOWN)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    uint64_t before = 0;
    if (move.lower != HOTBED_SLOT_NONE)
        before = hotbed_meta_rescore(0, HOTBED_SCORE_ASSIGN, a->asked.batch.scores[move.lower]);
    uint64_t meta = hotbed_upper_meta(table, &move, before, hotbed_unique_score(s, table, t, u));
    hotbed_index_result r = hotbed_index_place_over(
        s->storage.index, table->range, s->unique.keys[u], meta | HOTBED_META_FLAGGED, true, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    s->unique.slots[u] = r.slot;
    if (r.outcome != HOTBED_INDEX_EVICTED)
        return;
    s->moves.items[i].evicted_meta = r.evicted_meta;
    if ((r.evicted_meta & HOTBED_META_FLAGGED) != 0)
        a->leaving.ranks[u] = 1;
}

/* Copy the row that entry i of `missing` evicts to the batch, if it has changed. */
HOTBED_HD void hotbed_leave_for(const hotbed_store_step *a, uint32_t i, uint32_t width) {
    const hotbed_step_view *s = &a->s;
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0 || !hotbed_list_has(&a->leaving, u))
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    const hotbed_store_view *batch = &a->leaving.batch;
    uint64_t slot = s->unique.slots[u], place = a->leaving.ranks[u];
    uint8_t *row =
        hotbed_batch_row(batch, a->leaving.ranks[s->unique.offsets[t]], place, table->row_bytes);
    hotbed_row_copy(row, hotbed_row_at(s->storage.index, table, slot), table->row_bytes, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    hotbed_row_leaves(s->storage.index, table, row, slot);
    hotbed_change_leaves(batch, place, s->storage.index, table, s->storage.tracker, slot);
    batch->keys[place] = hotbed_load_relaxed_u64(&s->storage.index.keys[slot]);
    batch->scores[place] = hotbed_meta_score(s->moves.items[i].evicted_meta);
}

/* One lane: remove the row that the move has evicted. False if the store did not take it; the row
 * then keeps its slot. */
HOTBED_HD bool hotbed_evicted_left(
    const hotbed_store_step *a, uint32_t t, uint32_t u, const hotbed_move *move) {
    const hotbed_step_view *s = &a->s;
    if (move->evicted_meta == 0)
        return true;
    if (hotbed_list_has(&a->leaving, u)) {
        if (a->leaving.batch.status[t] != HOTBED_OK) {
            hotbed_store_relaxed_u64(
                &s->storage.index.metas[s->unique.slots[u]], move->evicted_meta);
            return false;
        }
        hotbed_add_relaxed_u64(&s->storage.tallies[t].write_backs, 1);
    }
    hotbed_index_forget(s->storage.index, s->storage.tables[t].range, s->unique.slots[u]);
    return true;
}

/* One lane: whether unique key u gets its slot; adds to the tallies. */
HOTBED_HD bool hotbed_arrives(
    const hotbed_store_step *a, uint32_t t, uint32_t u, const hotbed_move *move) {
    const hotbed_step_view *s = &a->s;
    hotbed_tally *tally = &s->storage.tallies[t];
    if (move->flags == HOTBED_MOVE_UNKNOWN || s->unique.slots[u] == HOTBED_SLOT_NONE) {
        if (move->flags != HOTBED_MOVE_UNKNOWN)
            hotbed_fault_latch(
                s->batch.faults, HOTBED_ERR_FULL, HOTBED_CAUSE_ALL_PINNED, t, s->unique.keys[u],
                s->storage.tables[t].slots);
        hotbed_add_relaxed_u64(&tally->refused, 1);
        return false;
    }
    if (!hotbed_evicted_left(a, t, u, move)) {
        s->unique.slots[u] = HOTBED_SLOT_NONE;
        hotbed_add_relaxed_u64(&tally->refused, 1);
        return false;
    }
    if (move->flags != HOTBED_MOVE_NEW)
        hotbed_add_relaxed_u64(&tally->fetches, 1);
    else if (s->storage.tables[t].is_static == 0)
        hotbed_add_relaxed_u64(&tally->inserts, 1);
    return true;
}

HOTBED_HD void hotbed_arrive(const hotbed_store_step *a, uint32_t i, uint32_t width) {
    const hotbed_step_view *s = &a->s;
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    hotbed_move move = s->moves.items[i];
    uint64_t slot = s->unique.slots[u];
    hotbed_tile_sync(width); /* all lanes have read the slot, which lane 0 may take back */
    bool arrives = hotbed_tile_rank(width) == 0 && hotbed_arrives(a, t, u, &move);
    if (hotbed_tile_ballot(width, arrives) == 0)
        return;
    /* the evicted key can no longer be found, so its row may be overwritten */
    hotbed_tile_sync(width);
    uint8_t *row = hotbed_row_at(s->storage.index, table, slot);
    if (move.flags == HOTBED_MOVE_NEW)
        hotbed_row_init(table, row, s->unique.keys[u], width);
    else
        hotbed_row_copy(
            row,
            hotbed_batch_row(
                &a->asked.batch, a->asked.ranks[s->unique.offsets[t]], move.lower,
                table->row_bytes),
            table->row_bytes, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    hotbed_unique_seen(s, table, slot);
    if (move.flags == HOTBED_MOVE_NEW && table->is_static == 0)
        hotbed_set_changed(s->storage.index, table, slot);
    else
        hotbed_set_unchanged(s->storage.index, table, slot);
    hotbed_index_publish(s->storage.index, slot, s->unique.keys[u]);
}

/* --- eval ------------------------------------------------------------------------------------- */

/* Keys that the upper tier lacks are read from the batch, which serves as a lower tier whose slots
 * are in no index. */
typedef struct hotbed_store_eval {
    hotbed_step_view s;
    hotbed_store_list asked; /* items are keys */
    /* [num_tables] the tables, with the batch as their lower tier */
    hotbed_table_view *batch_tables;
} hotbed_store_eval;

#define HOTBED_BATCH_SLOT ((uint64_t)1 << 63) /* first row of a table in the batch */

HOTBED_HD void hotbed_eval_want(const hotbed_store_eval *a, uint32_t i) {
    const hotbed_table_view *table = &a->s.storage.tables[hotbed_table_of_key(&a->s, i)];
    bool valid = table->is_static == 0 || a->s.batch.keys[i] < table->capacity;
    a->asked.ranks[i] = a->s.unique.slots[i] == HOTBED_SLOT_NONE && valid;
}

HOTBED_HD void hotbed_eval_ask(const hotbed_store_eval *a, uint32_t i) {
    if (hotbed_list_has(&a->asked, i))
        a->asked.batch.keys[a->asked.ranks[i]] = a->s.batch.keys[i];
}

HOTBED_HD void hotbed_eval_ask_table(const hotbed_store_eval *a, uint32_t t) {
    hotbed_list_part(&a->asked, t, a->s.batch.table_starts[t], a->s.batch.table_starts[t + 1]);
    hotbed_table_view table = a->s.storage.tables[t];
    table.lower_first = HOTBED_BATCH_SLOT;
    table.lower_rows =
        a->asked.batch.rows + a->asked.ranks[a->s.batch.table_starts[t]] * a->asked.batch.stride;
    a->batch_tables[t] = table;
}

/* Set the slots of keys that the store has. Rows of STATIC tables that it lacks have their initial
 * values. */
HOTBED_HD void hotbed_eval_answer(const hotbed_store_eval *a, uint32_t i, uint32_t width) {
    if (!hotbed_list_has(&a->asked, i))
        return;
    uint32_t t = hotbed_table_of_key(&a->s, i);
    const hotbed_table_view *table = &a->batch_tables[t];
    uint64_t place = a->asked.ranks[i];
    uint8_t found = a->asked.batch.found[place];
    bool first = found == HOTBED_EXTERNAL_MISSING && table->is_static != 0;
    uint64_t slot = HOTBED_BATCH_SLOT + (place - a->asked.ranks[a->s.batch.table_starts[t]]);
    if (first)
        hotbed_row_init(
            table, hotbed_row_at(a->s.storage.index, table, slot), a->s.batch.keys[i], width);
    if (hotbed_tile_rank(width) == 0 && (first || found == HOTBED_EXTERNAL_FOUND))
        a->s.unique.slots[i] = slot;
}

/* --- rows by key ------------------------------------------------------------------------------ */

/* Part of a call: keys first .. first+count-1 of `rows`. */
typedef struct hotbed_store_rows {
    hotbed_rows_args rows;
    hotbed_store_list asked; /* items are the `count` keys */
    uint64_t first;
    uint32_t count, num_tables;
} hotbed_store_rows;

HOTBED_HD uint64_t hotbed_rows_upper(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    return hotbed_index_find(
        a->rows.index, a->rows.table.range, hotbed_rows_key(&a->rows, a->first + i), width);
}

HOTBED_HD bool hotbed_rows_valid(const hotbed_store_rows *a, uint32_t i) {
    return a->rows.table.is_static == 0 ||
           hotbed_rows_key(&a->rows, a->first + i) < a->rows.table.capacity;
}

HOTBED_HD void hotbed_rows_ask(const hotbed_store_rows *a, uint32_t i) {
    if (hotbed_list_has(&a->asked, i))
        a->asked.batch.keys[a->asked.ranks[i]] = hotbed_rows_key(&a->rows, a->first + i);
}

HOTBED_HD uint8_t *hotbed_rows_place(const hotbed_store_rows *a, uint32_t i) {
    return hotbed_batch_row(&a->asked.batch, 0, a->asked.ranks[i], a->rows.table.row_bytes);
}

HOTBED_HD void hotbed_get_upper(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    bool valid = hotbed_rows_valid(a, i);
    bool above = valid && hotbed_rows_upper(a, i, width) != HOTBED_SLOT_NONE;
    if (above)
        hotbed_rows_get(&a->rows, a->first + i, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    a->asked.ranks[i] = valid && !above;
    if (!valid && a->rows.flags != NULL)
        a->rows.flags[a->first + i] = HOTBED_EXTERNAL_MISSING;
}

/* Copy out the row of key number i from the batch, if the upper tier lacks the key. */
HOTBED_HD void hotbed_get_answer(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    if (!hotbed_list_has(&a->asked, i))
        return;
    const hotbed_table_view *table = &a->rows.table;
    uint64_t at = a->first + i, place = a->asked.ranks[i];
    uint8_t found = a->asked.batch.found[place];
    bool first = found == HOTBED_EXTERNAL_MISSING && table->is_static != 0;
    uint8_t *row = hotbed_rows_place(a, i);
    if (first)
        hotbed_row_init(table, row, hotbed_rows_key(&a->rows, at), width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0 && a->rows.flags != NULL)
        a->rows.flags[at] = first ? (uint8_t)HOTBED_EXTERNAL_FOUND : found;
    if (!first && found != HOTBED_EXTERNAL_FOUND)
        return;
    hotbed_row_get(table, row, a->rows.rows, at, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (a->rows.rows.scores != NULL)
        a->rows.rows.scores[at] = table->is_static != 0 ? 0 : a->asked.batch.scores[place];
    if (a->rows.rows.times != NULL)
        a->rows.rows.times[at] = *hotbed_row_time(table, row);
}

/* Set keys that the upper tier has; select the others. */
HOTBED_HD void hotbed_set_upper(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    bool barred = hotbed_rows_barred(&a->rows);
    bool valid = !barred && hotbed_rows_valid(a, i);
    bool above = valid && hotbed_rows_upper(a, i, width) != HOTBED_SLOT_NONE;
    if (above || (!valid && !barred))
        hotbed_rows_set(&a->rows, a->first + i, HOTBED_ROWS_SET, width);
    if (hotbed_tile_rank(width) == 0)
        a->asked.ranks[i] = valid && !above;
}

/* Complete the row of key number i, which the upper tier lacks, for the store's insert. */
HOTBED_HD void hotbed_set_answer(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    if (!hotbed_list_has(&a->asked, i))
        return;
    const hotbed_table_view *table = &a->rows.table;
    uint64_t at = a->first + i, place = a->asked.ranks[i];
    bool is_new = a->asked.batch.found[place] == HOTBED_EXTERNAL_MISSING;
    uint8_t *row = hotbed_rows_place(a, i);
    if (is_new) {
        uint64_t key = hotbed_rows_key(&a->rows, at);
        hotbed_row_init(table, row, key, width);
        if (table->counter.buckets != 0) /* admission counts only keys without a row */
            (void)hotbed_index_erase(a->rows.index, table->counter, key, width);
    }
    hotbed_tile_sync(width);
    hotbed_row_set(table, row, a->rows.rows, at, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (a->asked.batch.epochs != NULL)
        a->asked.batch.epochs[place] =
            table->changed == NULL ? 0 : (uint32_t)a->rows.tracker->epoch;
    if (a->rows.rows.scores != NULL && table->is_static == 0) {
        uint64_t score = a->rows.rows.scores[at];
        a->asked.batch.scores[place] = score < HOTBED_SCORE_MOST ? score : HOTBED_SCORE_MOST;
        if (table->score == HOTBED_SCORE_TIMESTAMP)
            hotbed_timer_raise(a->rows.timer, score);
    } else if (is_new) {
        a->asked.batch.scores[place] = hotbed_rows_score(&a->rows);
    }
    if (table->range.times == NULL || (a->rows.rows.times == NULL && !is_new))
        return;
    uint64_t time = hotbed_rows_time(&a->rows, at);
    hotbed_row_time(table, row)[0] = time;
    hotbed_row_time(table, row)[1] = 0;
}

/* Select all keys except pinned ones. The store erases first: if it failed after the upper tier
 * had erased its copy, the store's outdated row would come back. */
HOTBED_HD void hotbed_erase_want(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    uint64_t slot = hotbed_rows_upper(a, i, width);
    if (hotbed_tile_rank(width) != 0)
        return;
    bool pinned = slot != HOTBED_SLOT_NONE &&
                  (hotbed_load_relaxed_u64(&a->rows.index.metas[slot]) & HOTBED_META_PINS) != 0;
    a->asked.ranks[i] = !pinned;
    if (pinned && a->rows.flags != NULL)
        a->rows.flags[a->first + i] = 0;
}

HOTBED_HD void hotbed_erase_answer(const hotbed_store_rows *a, uint32_t i, uint32_t width) {
    if (!hotbed_list_has(&a->asked, i))
        return;
    uint8_t erased = a->asked.batch.found[a->asked.ranks[i]];
    uint64_t slot = hotbed_rows_upper(a, i, width);
    if (erased <= 1 && slot != HOTBED_SLOT_NONE &&
        hotbed_index_vacate(a->rows.index, a->rows.table.range, slot, 0, width))
        erased = 1;
    /* After a failed call, too: the store may have erased the key, and a second call would not find it. A
     * logged key that is in the table counts as one that is back. */
    if (a->rows.tracker != NULL && erased != 0)
        hotbed_log_removed_one(
            a->rows.tracker, &a->rows.table, a->rows.table_number,
            hotbed_rows_key(&a->rows, a->first + i), width);
    if (hotbed_tile_rank(width) == 0 && a->rows.flags != NULL)
        a->rows.flags[a->first + i] = erased;
}

/* --- flush ------------------------------------------------------------------------------------ */

/* Slots first .. first+count-1 of the upper tier. */
typedef struct hotbed_store_flush {
    hotbed_table_view table;
    hotbed_index_view index;
    const hotbed_tracker *tracker; /* NULL if no table tracks changes */
    hotbed_tally *tally;
    hotbed_fault *faults;
    hotbed_store_list leaving; /* items are the `count` slots */
    uint64_t first;
    uint32_t count, num_tables;
    uint32_t table_number, unused;
} hotbed_store_flush;

HOTBED_HD uint64_t hotbed_flush_meta(const hotbed_store_flush *a, uint32_t i) {
    return hotbed_load_relaxed_u64(&a->index.metas[a->first + i]);
}

HOTBED_HD void hotbed_flush_want(const hotbed_store_flush *a, uint32_t i) {
    a->leaving.ranks[i] = (hotbed_flush_meta(a, i) & HOTBED_META_FLAGGED) != 0;
}

HOTBED_HD void hotbed_flush_leave(const hotbed_store_flush *a, uint32_t i, uint32_t width) {
    if (!hotbed_list_has(&a->leaving, i))
        return;
    uint64_t slot = a->first + i, place = a->leaving.ranks[i];
    uint8_t *row = hotbed_batch_row(&a->leaving.batch, 0, place, a->table.row_bytes);
    hotbed_row_copy(row, hotbed_row_at(a->index, &a->table, slot), a->table.row_bytes, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) != 0)
        return;
    hotbed_row_leaves(a->index, &a->table, row, slot);
    hotbed_change_leaves(&a->leaving.batch, place, a->index, &a->table, a->tracker, slot);
    a->leaving.batch.keys[place] = hotbed_load_relaxed_u64(&a->index.keys[slot]);
    a->leaving.batch.scores[place] = hotbed_meta_score(hotbed_flush_meta(a, i));
}

/* A pinned row may still change, so it stays flagged. */
HOTBED_HD void hotbed_flush_left(const hotbed_store_flush *a, uint32_t i) {
    if (!hotbed_list_has(&a->leaving, i) || a->leaving.batch.status[a->table_number] != HOTBED_OK)
        return;
    hotbed_add_relaxed_u64(&a->tally->write_backs, 1);
    if ((hotbed_flush_meta(a, i) & HOTBED_META_PINS) == 0)
        hotbed_add_release_u64(&a->index.metas[a->first + i], 0 - HOTBED_META_FLAGGED);
}

/* Empty slot number i, unless its row has changed since the store got it. */
HOTBED_HD void hotbed_flush_drop(const hotbed_store_flush *a, uint32_t i, uint32_t width) {
    uint64_t meta = 0;
    if (hotbed_tile_rank(width) == 0)
        meta = hotbed_flush_meta(a, i);
    meta = hotbed_tile_shuffle_u64(width, meta, 0);
    if (meta != 0 && (meta & HOTBED_META_FLAGGED) == 0)
        (void)hotbed_index_vacate(a->index, a->table.range, a->first + i, 0, width);
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Pass `pass` of item i, by a tile; or of table t, by a lane. */
HOTBED_HD void hotbed_step_item(
    const hotbed_store_step *a, hotbed_store_pass pass, uint32_t i, uint32_t width) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        hotbed_want_missing(a, i);
        break;
    case HOTBED_PASS_ASK:
        hotbed_ask_missing(a, i);
        break;
    case HOTBED_PASS_ANSWER:
        hotbed_answer_missing(a, i);
        break;
    case HOTBED_PASS_CLAIM:
        hotbed_claim_cached(a, i, width);
        break;
    case HOTBED_PASS_LEAVE:
        hotbed_leave_for(a, i, width);
        break;
    case HOTBED_PASS_ARRIVE:
        hotbed_arrive(a, i, width);
        break;
    default:
        break;
    }
}

HOTBED_HD void hotbed_step_table(const hotbed_store_step *a, hotbed_store_pass pass, uint32_t t) {
    if (pass == HOTBED_PASS_ASK)
        hotbed_list_part(&a->asked, t, a->s.unique.offsets[t], a->s.unique.offsets[t + 1]);
    if (pass == HOTBED_PASS_LEAVE)
        hotbed_list_part(&a->leaving, t, a->s.unique.offsets[t], a->s.unique.offsets[t + 1]);
    if (pass == HOTBED_PASS_ANSWER || pass == HOTBED_PASS_ARRIVE)
        hotbed_list_fault(
            pass == HOTBED_PASS_ANSWER ? &a->asked : &a->leaving, a->s.batch.offset_faults, t);
}

HOTBED_HD void hotbed_eval_item(
    const hotbed_store_eval *a, hotbed_store_pass pass, uint32_t i, uint32_t width) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        hotbed_eval_want(a, i);
        break;
    case HOTBED_PASS_ASK:
        hotbed_eval_ask(a, i);
        break;
    case HOTBED_PASS_ANSWER:
        hotbed_eval_answer(a, i, width);
        break;
    default:
        break;
    }
}

HOTBED_HD void hotbed_eval_table(const hotbed_store_eval *a, hotbed_store_pass pass, uint32_t t) {
    if (pass == HOTBED_PASS_ASK)
        hotbed_eval_ask_table(a, t);
    if (pass == HOTBED_PASS_ANSWER)
        hotbed_list_fault(&a->asked, a->s.batch.offset_faults, t);
}

HOTBED_HD void hotbed_rows_item(
    const hotbed_store_rows *a, hotbed_store_pass pass, uint32_t i, uint32_t width) {
    switch (pass) {
    case HOTBED_PASS_GET:
        hotbed_get_upper(a, i, width);
        break;
    case HOTBED_PASS_SET:
        hotbed_set_upper(a, i, width);
        break;
    case HOTBED_PASS_ERASE:
        hotbed_erase_want(a, i, width);
        break;
    case HOTBED_PASS_ASK:
        hotbed_rows_ask(a, i);
        break;
    case HOTBED_PASS_GET_ANSWER:
        hotbed_get_answer(a, i, width);
        break;
    case HOTBED_PASS_SET_ANSWER:
        hotbed_set_answer(a, i, width);
        break;
    case HOTBED_PASS_ERASE_ANSWER:
        hotbed_erase_answer(a, i, width);
        break;
    default:
        break;
    }
}

/* Only the call's table has keys in the batch. */
HOTBED_HD void hotbed_rows_table(const hotbed_store_rows *a, hotbed_store_pass pass, uint32_t t) {
    if (pass == HOTBED_PASS_ASK)
        hotbed_list_part(&a->asked, t, 0, t == a->rows.table_number ? a->count : 0);
    if (pass == HOTBED_PASS_GET_ANSWER || pass == HOTBED_PASS_ERASE_ANSWER ||
        pass == HOTBED_PASS_FAULT)
        hotbed_list_fault(&a->asked, a->rows.faults, t);
}

HOTBED_HD void hotbed_flush_item(
    const hotbed_store_flush *a, hotbed_store_pass pass, uint32_t i, uint32_t width) {
    switch (pass) {
    case HOTBED_PASS_WANT:
        hotbed_flush_want(a, i);
        break;
    case HOTBED_PASS_LEAVE:
        hotbed_flush_leave(a, i, width);
        break;
    case HOTBED_PASS_LEFT:
        hotbed_flush_left(a, i);
        break;
    case HOTBED_PASS_DROP:
        hotbed_flush_drop(a, i, width);
        break;
    default:
        break;
    }
}

HOTBED_HD void hotbed_flush_table(const hotbed_store_flush *a, hotbed_store_pass pass, uint32_t t) {
    if (pass == HOTBED_PASS_LEAVE)
        hotbed_list_part(&a->leaving, t, 0, t == a->table_number ? a->count : 0);
    if (pass == HOTBED_PASS_LEFT)
        hotbed_list_fault(&a->leaving, a->faults, t);
}
