/* storage/rows/expire_core.h - removes keys by age and value, slot by slot; see hotbed_storage_expire(). */
#pragma once

#include "storage/rows/rows_core.h"
#include "storage/step/optimizer_core.h"

typedef struct hotbed_expire_args {
    hotbed_rows_args rows; /* of the table; no keys */
    uint64_t *at;          /* one word: number of the first slot; the pass advances it at its end */
    uint64_t all;          /* slots of the table */
    uint64_t slots;        /* to look at, at most all */
    uint64_t unseen, min_score;
    float min_norm;
} hotbed_expire_args;

/* The present time of the table's scores, see hotbed_storage_now(). */
HOTBED_HD uint64_t hotbed_expire_now(const hotbed_expire_args *a) {
    if (a->rows.table.score == HOTBED_SCORE_STEP)
        return a->rows.clock->prefetches;
    const hotbed_timer *timer = a->rows.timer;
    return timer->now > timer->newest ? timer->now : timer->newest;
}

/* The L2 norm of a row. All lanes get it. */
HOTBED_HD float hotbed_expire_norm(
    const hotbed_table_view *table, const uint8_t *row, uint32_t width) {
    float shares[32];
    for (uint32_t k = 0; k < 32 / width; k++)
        shares[k] = 0.0F;
    for (uint32_t first = 0; first < table->dim; first += 4 * width) {
        const uint32_t e = first + 4 * hotbed_tile_rank(width), k = (e / 4 % 32) / width;
        const uint32_t count = e < table->dim ? hotbed_count4(table->dim, e) : 0;
        if (count > 0)
            shares[k] = hotbed_add_squares(
                shares[k], hotbed_row_load4(false, table->dtype, table->dim, row, e, count));
    }
    return sqrtf(hotbed_sum_shares(shares, width));
}

/* Whether a condition applies to the key whose newest row is in `slot`. All lanes get the answer. */
HOTBED_HD bool hotbed_is_expired(
    const hotbed_expire_args *a, uint64_t slot, uint64_t meta, uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    const uint64_t score = hotbed_meta_score(meta);
    if (score < a->min_score)
        return true;
    if (a->unseen != 0) {
        const uint64_t now = hotbed_expire_now(a);
        uint64_t seen = score;
        if (table->score == HOTBED_SCORE_TIMESTAMP_LFU)
            seen = hotbed_load_relaxed_u64(hotbed_table_time(a->rows.index, table, slot));
        if (seen <= now && now - seen >= a->unseen)
            return true;
    }
    return a->min_norm > 0.0F &&
           hotbed_expire_norm(table, hotbed_row_at(a->rows.index, table, slot), width) <
               a->min_norm;
}

/* Remove the key in slot number i of the pass if it is expired. */
HOTBED_HD void hotbed_expire_slot(const hotbed_expire_args *a, uint64_t i, uint32_t width) {
    const hotbed_table_view *table = &a->rows.table;
    const uint64_t number = (*a->at % a->all + i) % a->all;
    if (table->tiers == HOTBED_TIERS_CACHE && number < table->slots)
        return; /* the key has a slot in the lower tier, too */
    const uint64_t slot = hotbed_numbered_slot(a->rows.index, table, number);
    /* One lane reads what other tiles may change meanwhile. */
    uint64_t key = 0, newest = HOTBED_SLOT_NONE, meta = 0;
    if (hotbed_tile_rank(width) == 0 &&
        hotbed_load_relaxed_u64(hotbed_index_meta(a->rows.index, slot)) != 0) {
        key = hotbed_load_relaxed_u64(hotbed_index_key(a->rows.index, slot));
        newest = hotbed_newest_slot(a->rows.index, table, slot);
        meta = hotbed_load_relaxed_u64(hotbed_index_meta(a->rows.index, newest));
    }
    key = hotbed_tile_shuffle_u64(width, key, 0);
    newest = hotbed_tile_shuffle_u64(width, newest, 0);
    meta = hotbed_tile_shuffle_u64(width, meta, 0);
    if (meta == 0 || (meta & (HOTBED_META_LOCKED | HOTBED_META_PINS)) != 0)
        return;
    if (hotbed_is_expired(a, newest, meta, width) && hotbed_rows_erase_key(&a->rows, key, width) &&
        hotbed_tile_rank(width) == 0)
        hotbed_add_relaxed_u64(&a->rows.tally->expired, 1);
}

/* One lane, after all slots: the next pass goes on from here. */
HOTBED_HD void hotbed_expire_advance(const hotbed_expire_args *a) {
    *a->at = (*a->at % a->all + a->slots) % a->all;
}
