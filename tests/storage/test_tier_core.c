/* tests/storage/test_tier_core.c - storage/tiers/tier_core.h, which moves rows between two tiers, at every tile width.
 *
 * A model has the expected row, score and time of each key.  Random batches are prefetched, trained and unpinned by
 * tiles of 1, 2, 8 and 32 emulated lanes (tests/support/emulate.h).  All memory must be equal at all widths after
 * each batch, and each row must equal the model's, in the tier in which it belongs.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_range.h"
#include "storage/step/place_core.h"
#include "storage/step/row_layout.h"
#include "storage/tiers/tier_core.h"
#include "storage/types.h"
#include "tests/storage/tier_model.h"
#include "tests/support/emulate.h"

#include <stdlib.h>

enum {
    TABLES =
        3, /* a cache with LFU scores, a cache with times, and a table whose rows are in one tier or the other */
    TIMED = 1,
    EITHER = 2,
    KEYS = 110,  /* of a table */
    ABOVE = 20,  /* capacity of the upper tier, in keys */
    UPPER = 48,  /* slots of the upper tier */
    LOWER = 128, /* slots of the lower tier, at most */
    BATCH = 16,  /* distinct keys of a table in a batch */
    ALL = TABLES * BATCH,
    HELD = 3, /* batches that are pinned at a time */
    DIM = 9,
    ROW = 48,
    BATCHES = 14,
};

/* Memory that kernels read and write.  It has no pointers, so that it can be compared between widths byte by byte. */
typedef struct words {
    uint64_t index_keys[TABLES * (UPPER + LOWER)] HOTBED_ALIGN(128);
    uint64_t index_metas[TABLES * (UPPER + LOWER)] HOTBED_ALIGN(128);
    uint8_t rows[TABLES][UPPER * ROW] HOTBED_ALIGN(16);
    uint8_t lower_rows[TABLES][LOWER * ROW] HOTBED_ALIGN(16);
    uint64_t times[UPPER], lower_times[LOWER];
    hotbed_clock clock;
    hotbed_timer timer;
    hotbed_tally tallies[TABLES];
    uint64_t unique_keys[ALL], slots[ALL], counts[ALL];
    uint32_t starts[TABLES + 1], missing[ALL], num_missing, bins[HOTBED_BIN_WORDS];
    hotbed_move moves[ALL];
    uint64_t held[HELD][ALL];
} words;

/* A storage, a ticket and the model, at one tile width; and arguments of the running pass. */
typedef struct work {
    words w;
    hotbed_table_view tables[TABLES];
    model_row model[TABLES][KEYS];
    hotbed_tally counts[TABLES];  /* expected tallies */
    uint64_t metas[TABLES][KEYS]; /* before the prefetch, of keys in the upper tier; 0: not there */
    uint64_t random;
    hotbed_fault fault;
    hotbed_step_view s;
    uint32_t item, count, width;
} work;

static work works[WIDTHS];

static model_row *entry(work *k, uint32_t t, uint64_t key) {
    for (uint32_t n = 0; n < KEYS; n++)
        if (key_of_number(n) == key)
            return &k->model[t][n];
    CHECK(false);
    return NULL;
}

static uint8_t *row_at(work *k, uint32_t t, uint64_t slot) {
    return hotbed_row_at(k->s.storage.index, &k->tables[t], slot);
}

/* --- setting up ------------------------------------------------------------------------------ */

static void clear(work *k, hotbed_index_range range) {
    for (uint32_t b = 0; b < range.buckets; b++)
        for (uint32_t i = 0; i < HOTBED_BUCKET_SLOTS; i++)
            k->w.index_keys[hotbed_index_slot(range, b) + i] = hotbed_index_marker(range, b, false);
}

/* `below`: capacity of the lower tiers, in keys. */
static void start(work *k, uint32_t width, uint64_t below) {
    static const char *const names[] = {"counted", "timed", "either"};
    const hotbed_initializer uniform = {.kind = HOTBED_INIT_UNIFORM, .lower = -1, .upper = 1};
    memset(k, 0, sizeof *k);
    k->width = width;
    k->random = hotbed_test_seed();
    memset(k->w.held, 0xff, sizeof k->w.held); /* HOTBED_SLOT_NONE */
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_table_view *table = &k->tables[t];
        table->dim = DIM - t;
        table->dtype = HOTBED_F32;
        hotbed_row_lay_out(table, (hotbed_optimizer_kind)0, HOTBED_F32);
        CHECK(table->row_bytes <= ROW);
        table->rows = k->w.rows[t];
        table->lower_rows = k->w.lower_rows[t];
        table->first_slot = t * UPPER;
        table->slots = UPPER;
        table->lower_first = TABLES * UPPER + t * LOWER;
        table->capacity = KEYS;
        table->range =
            hotbed_index_range_make(ABOVE, true, table->first_slot / HOTBED_BUCKET_SLOTS);
        table->lower =
            hotbed_index_range_make(below, false, table->lower_first / HOTBED_BUCKET_SLOTS);
        CHECK_EQ(hotbed_index_range_slots(table->range), UPPER);
        table->lower_slots = hotbed_index_range_slots(table->lower);
        CHECK(table->lower_slots <= LOWER);
        table->range.region_bits = table->lower.region_bits = (uint16_t)t;
        table->init = hotbed_init_make(&uniform, names[t], 7);
        table->tiers = t == EITHER ? HOTBED_TIERS_SCORE : HOTBED_TIERS_CACHE;
        table->lower.flags = t != EITHER;
        table->score = t == TIMED    ? HOTBED_SCORE_TIMESTAMP_LFU
                       : t == EITHER ? HOTBED_SCORE_STEP
                                     : HOTBED_SCORE_LFU;
        clear(k, table->range);
        clear(k, table->lower);
    }
    k->tables[TIMED].range.times = k->w.times;
    k->tables[TIMED].lower.times = k->w.lower_times;
    hotbed_step_view *s = &k->s;
    s->storage.tables = k->tables;
    s->storage.index = (hotbed_index_view){k->w.index_keys, k->w.index_metas, NULL};
    s->storage.index_slots = HOTBED_SLOT_UNINDEXED;
    s->storage.clock = &k->w.clock;
    s->storage.timer = &k->w.timer;
    s->storage.tallies = k->w.tallies;
    s->unique.keys = k->w.unique_keys;
    s->unique.offsets = k->w.starts;
    s->unique.slots = k->w.slots;
    s->unique.counts = k->w.counts;
    s->unique.missing = k->w.missing;
    s->unique.num_missing = &k->w.num_missing;
    s->moves.items = k->w.moves;
    s->moves.sort.bins = k->w.bins;
    s->batch.faults = &k->fault;
    s->storage.num_tables = TABLES;
}

/* --- passes ---------------------------------------------------------------------------------- */

static void find_lane(void *argument) {
    work *k = argument;
    hotbed_find_uniques(&k->s, k->item, k->count, k->width);
}

static void seek_lane(void *argument) {
    work *k = argument;
    hotbed_seek_lower(&k->s, k->item, k->count, k->width);
}

static void claim_lane(void *argument) {
    work *k = argument;
    hotbed_claim_missing(&k->s, k->item, k->width);
}

static void settle_lane(void *argument) {
    work *k = argument;
    hotbed_settle_missing(&k->s, k->item, k->width);
}

static void exchange_lane(void *argument) {
    work *k = argument;
    const hotbed_move move = k->w.moves[k->item];
    const uint32_t u = k->w.missing[k->item];
    if (hotbed_move_writes(&k->tables[u / BATCH], &move)) {
        hotbed_transfer row = hotbed_transfer_of(&k->s, k->item, true);
        hotbed_row_copy(row.to, row.from, row.bytes, k->width);
    }
    hotbed_tile_sync(k->width);
    if (hotbed_tile_rank(k->width) == 0)
        hotbed_leave_upper(&k->s, k->item);
    hotbed_tile_sync(k->width);
    if (hotbed_move_fetches(&move)) {
        hotbed_transfer row = hotbed_transfer_of(&k->s, k->item, false);
        hotbed_row_copy(row.to, row.from, row.bytes, k->width);
    }
}

static void tally_lane(void *argument) {
    work *k = argument;
    hotbed_tally_moves(&k->s, k->item, k->count, k->width);
}

static void end_lane(void *argument) {
    work *k = argument;
    hotbed_end_move(&k->s, k->item, k->width);
}

/* Run a pass.  A tile processes one item at a time, or as many items as it has lanes if `each`. */
static void pass(work *k, void (*lane)(void *), bool each, uint32_t items) {
    const uint32_t step = each ? k->width : 1;
    for (k->item = 0; k->item < items; k->item += step) {
        k->count = items - k->item < step ? items - k->item : step;
        hotbed_emulate_run(k->width, lane, k);
    }
}

/* --- a training step ------------------------------------------------------------------------- */

/* Make a batch of distinct random keys of each table. */
static void fill(work *k) {
    for (uint32_t t = 0; t < TABLES; t++) {
        uint32_t numbers[BATCH];
        draw_distinct(&k->random, KEYS, BATCH, numbers);
        for (uint32_t n = 0; n < BATCH; n++) {
            k->w.unique_keys[t * BATCH + n] = key_of_number(numbers[n]);
            k->w.counts[t * BATCH + n] = 1 + draw_below(&k->random, 3);
        }
        k->w.starts[t + 1] = (t + 1) * BATCH;
    }
    k->w.num_missing = 0;
    k->w.clock.prefetches++;
    k->w.timer.now++;
}

static int by_number(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static uint64_t upper_meta(const work *k, uint32_t t, uint32_t number) {
    uint64_t slot =
        hotbed_index_find(k->s.storage.index, k->tables[t].range, key_of_number(number), 1);
    return slot == HOTBED_SLOT_NONE ? 0 : k->w.index_metas[slot];
}

static void prefetch(work *k) {
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t n = 0; n < KEYS; n++)
            k->metas[t][n] = upper_meta(k, t, n);
    pass(k, find_lane, true, ALL);
    const uint32_t n = k->w.num_missing;
    /* The order of `missing` depends on the order of the lanes; sort it, so that widths can be compared. */
    qsort(k->w.missing, n, sizeof k->w.missing[0], by_number);
    memset(k->w.bins, 0, sizeof k->w.bins);
    pass(k, seek_lane, true, n);
    pass(k, claim_lane, false, n);
    pass(k, settle_lane, false, n);
    uint32_t exchanges = 0, counted = 0;
    for (uint32_t i = 0; i < n; i++)
        exchanges += hotbed_move_exchanges(&k->w.moves[i]) ? 1 : 0;
    for (uint32_t b = 0; b < HOTBED_BINS; b++)
        counted += k->w.bins[1 + b];
    CHECK_EQ(counted, exchanges);
    pass(k, exchange_lane, false, n);
    pass(k, tally_lane, true, n);
    pass(k, end_lane, false, n);
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t number = 0; number < KEYS; number++)
            if (k->metas[t][number] != 0 && upper_meta(k, t, number) == 0 &&
                (t == EITHER || (k->metas[t][number] & HOTBED_META_FLAGGED) != 0))
                k->counts[t].write_backs++;
}

/* Check that each key's slot has the model's row, and train the row. */
static void train(work *k) {
    for (uint32_t u = 0; u < ALL; u++) {
        uint32_t t = u / BATCH;
        uint64_t key = k->w.unique_keys[u], slot = k->w.slots[u];
        model_row *model = entry(k, t, key);
        if (slot == HOTBED_SLOT_NONE) {
            CHECK(!model->there);
            k->counts[t].refused++;
            continue;
        }
        CHECK_EQ(k->w.index_keys[slot], key);
        bool above = slot < k->tables[t].lower_first;
        if (!model->there) {
            hotbed_row_init(&k->tables[t], model->row, key, 1);
            k->counts[t].inserts++;
        } else if (above && k->metas[t][model - k->model[t]] == 0) {
            k->counts[t].fetches++;
        }
        k->counts[t].in_place += above ? 0 : 1;
        model->score = t == EITHER ? k->w.clock.prefetches
                                   : (model->there ? model->score : 0) + k->w.counts[u];
        model->time = k->w.timer.now;
        model->there = true;
        uint8_t *row = row_at(k, t, slot);
        CHECK_BYTES(row, model->row, k->tables[t].row_bytes);
        train_row(model, row, k->tables[t].dim);
        if (t != EITHER && above)
            hotbed_index_flag(k->s.storage.index, slot);
    }
}

/* Keep the pins of this batch for HELD batches. */
static void hold(work *k, uint32_t batch) {
    uint64_t *held = k->w.held[batch % HELD];
    for (uint32_t u = 0; u < ALL; u++)
        if (held[u] != HOTBED_SLOT_NONE)
            hotbed_index_unpin(k->s.storage.index, held[u], true);
    memcpy(held, k->w.slots, sizeof k->w.slots);
}

/* --- checks ---------------------------------------------------------------------------------- */

/* A cache has every key in the lower tier, marked if the upper tier has a copy.  The third table has each key in one
 * tier only.  All rows equal the model's. */
static void check_all(work *k, bool pinned) {
    for (uint32_t t = 0; t < TABLES; t++) {
        const hotbed_table_view *table = &k->tables[t];
        for (uint32_t n = 0; n < KEYS; n++) {
            const model_row *model = &k->model[t][n];
            uint64_t up = hotbed_index_find(k->s.storage.index, table->range, key_of_number(n), 1);
            uint64_t backing =
                hotbed_index_find(k->s.storage.index, table->lower, key_of_number(n), 1);
            bool above = up != HOTBED_SLOT_NONE, below = backing != HOTBED_SLOT_NONE;
            CHECK_EQ(above || below, model->there);
            if (!model->there)
                continue;
            uint64_t slot = above ? up : backing, meta = k->w.index_metas[slot];
            CHECK_BYTES(row_at(k, t, slot), model->row, table->row_bytes);
            CHECK_EQ(hotbed_meta_score(meta), model->score);
            CHECK(pinned || (meta & HOTBED_META_PINS) == 0);
            CHECK_EQ(meta & HOTBED_META_LOCKED, 0);
            if (t == TIMED)
                CHECK_EQ(*hotbed_table_time(k->s.storage.index, table, slot), model->time);
            if (t == EITHER) {
                CHECK(above != below);
                continue;
            }
            CHECK(below);
            CHECK_EQ((k->w.index_metas[backing] & HOTBED_META_FLAGGED) != 0, above);
            if (above && (meta & HOTBED_META_FLAGGED) == 0)
                CHECK_BYTES(row_at(k, t, backing), model->row, table->row_bytes);
        }
        CHECK_BYTES(&k->w.tallies[t], &k->counts[t], sizeof k->counts[t]);
    }
}

static void run(uint64_t below) {
    for (uint32_t i = 0; i < WIDTHS; i++)
        start(&works[i], widths[i], below);
    for (uint32_t batch = 0; batch < BATCHES; batch++) {
        for (uint32_t i = 0; i < WIDTHS; i++) {
            fill(&works[i]);
            prefetch(&works[i]);
            train(&works[i]);
            hold(&works[i], batch);
            CHECK_BYTES(&works[i].w, &works[0].w, sizeof works[0].w);
        }
        check_all(&works[batch % WIDTHS], true);
    }
    for (uint32_t batch = 0; batch < HELD; batch++) {
        memset(works[0].w.slots, 0xff, sizeof works[0].w.slots);
        hold(&works[0], BATCHES + batch);
    }
    check_all(&works[0], false);
}

static void prefetches_are_the_same_at_every_width(hotbed_backend backend) {
    run(KEYS);
    for (uint32_t t = 0; t < TABLES; t++) {
        const hotbed_tally *tally = &works[0].w.tallies[t];
        CHECK(tally->fetches > 10);
        CHECK(tally->write_backs > 20);
        CHECK(tally->in_place > 0);
        CHECK_EQ(tally->refused, 0);
    }
}

/* Keys that find no place are refused, and no other row is lost. */
static void full_lower_tiers_refuse_at_every_width(hotbed_backend backend) {
    run(ABOVE / 2);
    for (uint32_t t = 0; t < TABLES; t++)
        CHECK(works[0].w.tallies[t].refused > 0);
    CHECK_EQ(works[0].fault.status, HOTBED_ERR_FULL);
}

/* --- probes ---------------------------------------------------------------------------------- */

typedef struct claims {
    work *k;
    uint64_t keys[2], slots[2];
} claims;

static void claim_lanes(void *argument) {
    claims *c = argument;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t slot = hotbed_claim_lower(&c->k->s, EITHER, c->keys[i], 1, c->k->width);
        if (hotbed_tile_rank(c->k->width) == 0)
            c->slots[i] = slot;
    }
}

/* Two keys have the same two candidate buckets, with one free slot: the first key claims it, the second takes a slot
 * behind it.  The second key is published before the first, as may happen to rows that one prefetch demotes. */
static void a_key_is_found_behind_a_claimed_slot(hotbed_backend backend) {
    for (uint32_t i = 0; i < WIDTHS; i++) {
        work *k = &works[i];
        start(k, widths[i], KEYS);
        const hotbed_index_range range = k->tables[EITHER].lower;
        claims c = {.k = k};
        uint64_t key = 1;
        for (uint32_t n = 0; n < 2 * HOTBED_BUCKET_SLOTS + 1; key++) {
            const hotbed_candidates at = hotbed_index_candidates(range, key);
            if (at.first + at.second != 1) /* buckets 0 and 1 */
                continue;
            if (n >= 2 * HOTBED_BUCKET_SLOTS - 1) {
                c.keys[n++ - (2 * HOTBED_BUCKET_SLOTS - 1)] = key;
                continue;
            }
            hotbed_index_result placed =
                hotbed_index_place(k->s.storage.index, range, key, hotbed_meta_new(1, 0), 1);
            hotbed_index_publish(k->s.storage.index, placed.slot, key);
            n++;
        }
        hotbed_emulate_run(k->width, claim_lanes, &c);
        CHECK(
            c.slots[0] < hotbed_index_slot(range, 2) && c.slots[1] >= hotbed_index_slot(range, 2));
        CHECK_EQ(hotbed_index_find(k->s.storage.index, range, c.keys[1], 1), HOTBED_SLOT_NONE);
        hotbed_index_publish(k->s.storage.index, c.slots[1], c.keys[1]);
        CHECK_EQ(hotbed_index_find(k->s.storage.index, range, c.keys[1], 1), c.slots[1]);
        CHECK_EQ(hotbed_index_find(k->s.storage.index, range, c.keys[0], 1), HOTBED_SLOT_NONE);
        hotbed_index_publish(k->s.storage.index, c.slots[0], c.keys[0]);
        CHECK_EQ(hotbed_index_find(k->s.storage.index, range, c.keys[0], 1), c.slots[0]);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(prefetches_are_the_same_at_every_width)},
    {TEST(full_lower_tiers_refuse_at_every_width)},
    {TEST(a_key_is_found_behind_a_claimed_slot)},
    {NULL, NULL},
};
