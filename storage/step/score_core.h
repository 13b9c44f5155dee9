/* storage/step/score_core.h - scores of a batch's keys, and admission of new keys. */
#pragma once

#include "base/philox.h"
#include "storage/index/index_place_core.h"
#include "storage/step/step_core.h"

/* --- time ------------------------------------------------------------------------------------- */

/* Set the time of a prefetch at `clock` microseconds of the machine's clock. It is later than all
 * earlier times. These include times that were set by key: the timestamps of a checkpoint may come
 * from another clock. */
HOTBED_HD void hotbed_timer_tick(hotbed_timer *timer, uint64_t clock) {
    if (timer->now == 0)
        timer->offset = 0 - clock;
    uint64_t time = clock + timer->offset;
    uint64_t least = (timer->now > timer->newest ? timer->now : timer->newest) + 1;
    if ((int64_t)(time - least) < 0) {
        timer->offset += least - time;
        time = least;
    }
    timer->now = time < HOTBED_SCORE_MOST ? time : HOTBED_SCORE_MOST;
}

/* Record a timestamp that was set by key. */
HOTBED_HD void hotbed_timer_raise(hotbed_timer *timer, uint64_t time) {
    if (time > HOTBED_SCORE_MOST)
        time = HOTBED_SCORE_MOST;
    uint64_t old = hotbed_load_relaxed_u64(&timer->newest);
    while (time > old && !hotbed_cas_u64(&timer->newest, old, time))
        old = hotbed_load_relaxed_u64(&timer->newest);
}

/* --- scores ----------------------------------------------------------------------------------- */

/* The score that the batch gives unique key u of table t. hotbed_unique_rule() says
 * how it combines with an existing score. */
HOTBED_HD uint64_t hotbed_unique_score(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t t, uint32_t u) {
    switch (table->score) {
    case HOTBED_SCORE_TIMESTAMP:
        return s->storage.timer->now;
    case HOTBED_SCORE_LFU:
    case HOTBED_SCORE_TIMESTAMP_LFU:
        return s->unique.counts[u];
    case HOTBED_SCORE_CUSTOM:
        return s->storage.custom_scores[t];
    default:
        return s->storage.clock->prefetches;
    }
}

HOTBED_HD hotbed_score_rule hotbed_unique_rule(const hotbed_table_view *table) {
    bool counts = table->score == HOTBED_SCORE_LFU || table->score == HOTBED_SCORE_TIMESTAMP_LFU;
    return counts ? HOTBED_SCORE_ADD : HOTBED_SCORE_ASSIGN;
}

/* One lane: set the time of `slot` to this prefetch's, in tables that keep times beside scores. */
HOTBED_HD void hotbed_unique_seen(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot) {
    if (table->range.times != NULL)
        hotbed_store_relaxed_u64(
            hotbed_table_time(s->storage.index, table, slot), s->storage.timer->now);
}

/* --- admission -------------------------------------------------------------------------------- */

/* Flags of entries of `missing`; numbers of unique keys are below 2^30. */
#define HOTBED_MISSING_REJECTED ((uint32_t)1 << 31) /* will not be placed */
#define HOTBED_MISSING_COUNTED  ((uint32_t)1 << 30) /* will be placed in the table's counter */

/* Whether this prefetch admits `key`, with admission PROBABILISTIC. */
HOTBED_HD bool hotbed_admit_drawn(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t key) {
    uint64_t step = s->storage.clock->prefetches;
    hotbed_u32x4 counter;
    counter.x = (uint32_t)key;
    counter.y = (uint32_t)(key >> 32);
    counter.z = (uint32_t)step;
    counter.w = table->init.table;
    /* Initializers draw with the seed itself, so admission uses other words. */
    return hotbed_philox(counter, table->init.seed0 + (uint32_t)(step >> 32), ~table->init.seed1)
               .x < table->admit;
}

/* The index without segments, because counters do not grow. */
HOTBED_HD hotbed_index_view hotbed_admission_index(const hotbed_step_view *s) {
    hotbed_index_view index = {s->storage.index.keys, s->storage.index.metas, NULL};
    return index;
}

/* Decide whether entry i of `missing` is admitted, and flag it if not. Nothing is placed in tables
 * or counters meanwhile, so this tile alone changes the count. */
HOTBED_HD void hotbed_admit_missing(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    uint32_t u = s->unique.missing[i];
    if (s->moves.items != NULL && s->moves.items[i].lower != HOTBED_SLOT_NONE)
        return; /* the lower tier has the key */
    uint32_t t = hotbed_table_of_unique(s, u);
    const hotbed_table_view *table = &s->storage.tables[t];
    if (table->admission == HOTBED_ADMIT_ALL)
        return;
    uint64_t key = s->unique.keys[u];
    uint32_t marks = HOTBED_MISSING_REJECTED;
    bool admitted;
    if (table->admission == HOTBED_ADMIT_PROBABILISTIC) {
        admitted = hotbed_admit_drawn(s, table, key);
        hotbed_tile_sync(width);
    } else {
        uint64_t count = s->unique.counts[u], before = 0;
        uint64_t slot = hotbed_index_find(hotbed_admission_index(s), table->counter, key, width);
        if (slot != HOTBED_SLOT_NONE)
            before = hotbed_meta_score(hotbed_load_relaxed_u64(&s->storage.index.metas[slot]));
        hotbed_tile_sync(width); /* all lanes have read the count */
        admitted = before + count >= table->admit;
        if (slot == HOTBED_SLOT_NONE)
            marks |= HOTBED_MISSING_COUNTED;
        else if (admitted)
            (void)hotbed_index_erase(hotbed_admission_index(s), table->counter, key, width);
        else if (hotbed_tile_rank(width) == 0)
            hotbed_index_touch_found(hotbed_admission_index(s), slot, HOTBED_SCORE_ADD, count, 0);
    }
    if (admitted || hotbed_tile_rank(width) != 0)
        return;
    s->unique.missing[i] = u | marks;
    hotbed_add_relaxed_u64(&s->storage.tallies[t].rejected, 1);
}

/* If entry i of `missing` is to be counted, insert it in its table's counter. A full counter drops
 * a low count. */
HOTBED_HD void hotbed_count_missing(const hotbed_step_view *s, uint32_t i, uint32_t width) {
    if ((s->unique.missing[i] & HOTBED_MISSING_COUNTED) == 0)
        return;
    uint32_t u = s->unique.missing[i] & (HOTBED_MISSING_COUNTED - 1);
    uint32_t t = hotbed_table_of_unique(s, u);
    uint64_t key = s->unique.keys[u];
    hotbed_index_result r = hotbed_index_place(
        hotbed_admission_index(s), s->storage.tables[t].counter, key,
        hotbed_meta_new(s->unique.counts[u], 0), width);
    if (r.slot != HOTBED_SLOT_NONE && hotbed_tile_rank(width) == 0)
        hotbed_index_publish(hotbed_admission_index(s), r.slot, key);
}
