/* tests/storage/test_tier_external_core.c - passes of a cache over an external store, at every tile width.
 *
 * A model has the expected row, score, time and last change of each key; the store is an array, and its calls
 * can fail.  Prefetch, eval, calls on rows by key, and flush run pass by pass with tiles of 1, 2, 8 and 32
 * emulated lanes.  All memory must be equal at all widths, and each row must equal the model's, in the upper
 * tier and in the store.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "hotbed/external.h"
#include "storage/index/index_range.h"
#include "storage/rows/changes_core.h"
#include "storage/step/row_layout.h"
#include "storage/tiers/tier_external_core.h"
#include "storage/types.h"
#include "tests/storage/tier_model.h"
#include "tests/support/emulate.h"

enum {
    TABLES = 3, /* LFU; TIMESTAMP_LFU; static */
    TIMED = 1,
    STATIC = 2,
    KEYS = 70,  /* of a table */
    ABOVE = 20, /* capacity of the upper tier, in keys */
    SLOTS = 48, /* of the upper tier */
    BATCH = 10, /* distinct keys of a table in a batch, or keys of a call */
    ALL = TABLES * BATCH,
    REMOVALS = 256, /* in the log */
    DIM = 9,
    ROW = MODEL_ROW_BYTES, /* the longest row: 9 elements, padding, a time */
    BATCHES = 24,
};

/* Arrays of a call of the store. */
typedef struct lists {
    uint64_t starts[TABLES], counts[TABLES], keys[ALL], scores[ALL];
    uint32_t status[TABLES], ranks[ALL + 1];
    uint32_t epochs[ALL];
    uint8_t found[ALL];
    uint8_t rows[ALL * ROW] HOTBED_ALIGN(16);
} lists;

/* Memory that kernels read and write.  It has no pointers, so that it can be compared between widths byte by byte. */
typedef struct words {
    uint64_t index_keys[TABLES * SLOTS] HOTBED_ALIGN(128);
    uint64_t index_metas[TABLES * SLOTS] HOTBED_ALIGN(128);
    uint8_t rows[TABLES][SLOTS * ROW] HOTBED_ALIGN(16);
    uint64_t times[SLOTS];
    uint32_t changed[TABLES][SLOTS + 2]; /* epochs, and bits */
    hotbed_removal removals[REMOVALS];
    hotbed_clock clock;
    hotbed_timer timer;
    hotbed_tally tallies[TABLES];
    uint64_t unique_keys[ALL], slots[ALL], counts[ALL];
    uint32_t starts[TABLES + 1], missing[ALL], num_missing; /* starts: of distinct keys, or keys */
    hotbed_move moves[ALL];
    lists asked, leaving;
    model_row store[TABLES][KEYS];
    uint32_t stored_epochs[TABLES][KEYS]; /* the largest that came with a row */
    uint8_t got[BATCH * ROW], flags[BATCH];
    uint64_t scores[BATCH], seen[BATCH];
} words;

/* A storage, a ticket, a store and the model, at one tile width; and arguments of the running pass. */
typedef struct work {
    words w;
    hotbed_table_view tables[TABLES], batch_tables[TABLES];
    model_row model[TABLES][KEYS];
    uint32_t epochs[TABLES][KEYS]; /* of the model: of the last change */
    hotbed_tracker tracker;
    uint64_t refused[TABLES], random;
    hotbed_fault fault;
    hotbed_store_step step;
    hotbed_store_eval eval;
    hotbed_store_rows rows;
    hotbed_store_flush flush;
    bool fails[TABLES]; /* calls of the store for this table fail */
    hotbed_store_pass pass;
    uint32_t item, width;
} work;

static work works[WIDTHS];

static uint64_t key_of(uint32_t t, uint32_t number) {
    return t == STATIC ? number : key_of_number(number);
}

static uint32_t number_of(uint32_t t, uint64_t key) {
    for (uint32_t n = 0; n < KEYS; n++)
        if (key_of(t, n) == key)
            return n;
    CHECK(false);
    return 0;
}

static model_row *entry(model_row (*of)[KEYS], uint32_t t, uint64_t key) {
    return &of[t][number_of(t, key)];
}

/* The row of a key is changed now. */
static void model_changes(work *k, uint32_t t, uint64_t key) {
    k->epochs[t][number_of(t, key)] = (uint32_t)k->tracker.epoch;
}

static void take_position(work *k) {
    for (uint32_t t = 0; t < TABLES; t++)
        hotbed_settle_slots(k->tables[t].changed, SLOTS, (uint32_t)k->tracker.epoch, 0, 1);
    k->tracker.epoch++;
}

/* --- setting up ------------------------------------------------------------------------------ */

static hotbed_store_view view_of(lists *l) {
    hotbed_store_view view = {l->starts, l->counts, l->status, l->keys,  l->scores,
                              l->found,  l->rows,   ROW,       l->epochs};
    return view;
}

static void start(work *k, uint32_t width) {
    static const char *const names[] = {"counted", "timed", "static"};
    const hotbed_initializer uniform = {.kind = HOTBED_INIT_UNIFORM, .lower = -1, .upper = 1};
    memset(k, 0, sizeof *k);
    k->width = width;
    k->random = hotbed_test_seed();
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_table_view *table = &k->tables[t];
        table->dim = DIM - t;
        table->dtype = HOTBED_F32;
        hotbed_row_lay_out(table, (hotbed_optimizer_kind)0, HOTBED_F32);
        if (t == TIMED)
            table->row_bytes = hotbed_round_up(table->row_bytes, HOTBED_ROW_TIME) + HOTBED_ROW_TIME;
        CHECK(table->row_bytes <= ROW);
        table->rows = k->w.rows[t];
        table->changed = k->w.changed[t];
        table->first_slot = t * SLOTS;
        table->slots = SLOTS;
        table->capacity = KEYS;
        table->range = hotbed_index_range_make(ABOVE, true, t * SLOTS / HOTBED_BUCKET_SLOTS);
        CHECK_EQ(hotbed_index_range_slots(table->range), SLOTS);
        table->init = hotbed_init_make(&uniform, names[t], 7);
        table->eval_value = 0.25F;
        table->is_static = t == STATIC;
        table->tiers = HOTBED_TIERS_EXTERNAL;
        table->score = t == TIMED    ? HOTBED_SCORE_TIMESTAMP_LFU
                       : t == STATIC ? HOTBED_SCORE_STEP
                                     : HOTBED_SCORE_LFU;
        for (uint64_t i = 0; i < SLOTS; i++)
            k->w.index_keys[t * SLOTS + i] =
                hotbed_index_marker(table->range, (uint32_t)(i / HOTBED_BUCKET_SLOTS), false);
    }
    k->tables[TIMED].range.times = k->w.times;
    hotbed_step_view *s = &k->step.s;
    s->storage.tables = k->tables;
    s->storage.index = (hotbed_index_view){k->w.index_keys, k->w.index_metas, NULL};
    s->storage.index_slots = HOTBED_SLOT_UNINDEXED;
    s->storage.clock = &k->w.clock;
    s->storage.timer = &k->w.timer;
    s->storage.tallies = k->w.tallies;
    k->tracker = (hotbed_tracker){.epoch = 1, .capacity = REMOVALS, .items = k->w.removals};
    s->storage.tracker = &k->tracker;
    s->unique.keys = k->w.unique_keys;
    s->unique.offsets = s->batch.table_starts = s->batch.feature_starts = k->w.starts;
    s->unique.slots = k->w.slots;
    s->unique.counts = k->w.counts;
    s->unique.missing = k->w.missing;
    s->unique.num_missing = &k->w.num_missing;
    s->moves.items = k->w.moves;
    s->batch.faults = s->batch.offset_faults = &k->fault;
    s->storage.num_tables = s->storage.num_features = TABLES;
    k->step.asked = (hotbed_store_list){view_of(&k->w.asked), k->w.asked.ranks};
    k->step.leaving = (hotbed_store_list){view_of(&k->w.leaving), k->w.leaving.ranks};
}

/* --- the store ------------------------------------------------------------------------------- */

typedef enum store_call { FIND, INSERT, ERASE } store_call;

static void call_store(work *k, lists *l, store_call call) {
    for (uint32_t t = 0; t < TABLES; t++) {
        l->status[t] = l->counts[t] > 0 && k->fails[t] ? HOTBED_ERR_IO : HOTBED_OK;
        for (uint64_t i = 0; i < l->counts[t]; i++) {
            uint64_t at = l->starts[t] + i, bytes = k->tables[t].row_bytes;
            uint8_t *row = l->rows + l->starts[t] * ROW + i * bytes;
            const uint32_t number = number_of(t, l->keys[at]);
            model_row *mine = &k->w.store[t][number];
            if (call == INSERT && l->epochs[at] > k->w.stored_epochs[t][number])
                k->w.stored_epochs[t][number] = l->epochs[at];
            if (k->fails[t]) {
                l->found[at] = HOTBED_EXTERNAL_UNKNOWN;
                continue;
            }
            if (call == INSERT) {
                memcpy(mine->row, row, bytes);
                mine->score = l->scores[at];
                mine->there = true;
                continue;
            }
            l->found[at] = mine->there ? HOTBED_EXTERNAL_FOUND : HOTBED_EXTERNAL_MISSING;
            if (call == FIND && mine->there) {
                memcpy(row, mine->row, bytes);
                l->scores[at] = mine->score;
            }
            mine->there = mine->there && call == FIND;
        }
    }
}

static void scan(uint32_t *ranks, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t one = i < n ? ranks[i] : 0;
        ranks[i] = sum;
        sum += one;
    }
}

/* --- passes ---------------------------------------------------------------------------------- */

static void step_lane(void *argument) {
    work *k = argument;
    hotbed_step_item(&k->step, k->pass, k->item, k->width);
}

static void eval_lane(void *argument) {
    work *k = argument;
    hotbed_eval_item(&k->eval, k->pass, k->item, k->width);
}

static void rows_lane(void *argument) {
    work *k = argument;
    hotbed_rows_item(&k->rows, k->pass, k->item, k->width);
}

static void flush_lane(void *argument) {
    work *k = argument;
    hotbed_flush_item(&k->flush, k->pass, k->item, k->width);
}

/* Run a pass: by tiles of emulated lanes, or one lane per item, called directly. */
static void pass(
    work *k, void (*lane)(void *), hotbed_store_pass which, bool by_tiles, uint32_t items) {
    uint32_t width = k->width;
    k->pass = which;
    k->width = by_tiles ? width : 1;
    for (k->item = 0; k->item < items; k->item++) {
        if (by_tiles)
            hotbed_emulate_run(k->width, lane, k);
        else
            lane(k);
    }
    k->width = width;
    for (uint32_t t = 0; t < TABLES; t++) {
        if (lane == step_lane)
            hotbed_step_table(&k->step, which, t);
        else if (lane == eval_lane)
            hotbed_eval_table(&k->eval, which, t);
        else if (lane == rows_lane)
            hotbed_rows_table(&k->rows, which, t);
        else
            hotbed_flush_table(&k->flush, which, t);
    }
}

/* --- a training step ------------------------------------------------------------------------- */

/* Make a batch of distinct random keys of each table. */
static void fill(work *k) {
    for (uint32_t t = 0; t < TABLES; t++) {
        uint32_t numbers[BATCH];
        draw_distinct(&k->random, KEYS, BATCH, numbers);
        for (uint32_t n = 0; n < BATCH; n++) {
            k->w.unique_keys[t * BATCH + n] = key_of(t, numbers[n]);
            k->w.counts[t * BATCH + n] = 1 + draw_below(&k->random, 3);
        }
        k->w.starts[t + 1] = (t + 1) * BATCH;
    }
    k->w.num_missing = 0;
    k->w.clock.prefetches++;
    k->w.timer.now++;
}

static void prefetch(work *k) {
    const bool tiles = true;
    uint32_t n;
    for (uint32_t u = 0; u < ALL; u++)
        hotbed_find_uniques(&k->step.s, u, 1, 1);
    n = k->w.num_missing;
    memset(&k->w.asked, 0, sizeof k->w.asked);
    memset(&k->w.leaving, 0, sizeof k->w.leaving);
    pass(k, step_lane, HOTBED_PASS_WANT, !tiles, n);
    scan(k->w.asked.ranks, ALL);
    pass(k, step_lane, HOTBED_PASS_ASK, !tiles, n);
    call_store(k, &k->w.asked, FIND);
    pass(k, step_lane, HOTBED_PASS_ANSWER, !tiles, n);
    pass(k, step_lane, HOTBED_PASS_CLAIM, tiles, n);
    scan(k->w.leaving.ranks, ALL);
    pass(k, step_lane, HOTBED_PASS_LEAVE, tiles, n);
    /* the store may begin to fail between its calls */
    k->fails[0] = k->fails[0] || draw_below(&k->random, 6) == 0;
    call_store(k, &k->w.leaving, INSERT);
    pass(k, step_lane, HOTBED_PASS_ARRIVE, tiles, n);
}

/* Give a key without a row its initial values. */
static void make_new(const work *k, uint32_t t, uint64_t key, model_row *row) {
    if (!row->there)
        hotbed_row_init(&k->tables[t], row->row, key, 1);
    row->there = true;
}

static void check_row(const work *k, uint32_t t, const uint8_t *row, const model_row *model) {
    CHECK_BYTES(row, model->row, k->tables[t].dim * sizeof(float));
}

/* Check that each key's slot has the model's row, and train the row.  Keys are refused only if the store failed. */
static void train(work *k, const bool failed[TABLES]) {
    for (uint32_t u = 0; u < ALL; u++) {
        uint32_t t = u / BATCH;
        uint64_t key = k->w.unique_keys[u], slot = k->w.slots[u];
        model_row *model = entry(k->model, t, key);
        if (slot == HOTBED_SLOT_NONE) {
            CHECK(failed[t]);
            k->refused[t]++;
            continue;
        }
        CHECK_EQ(k->w.index_keys[slot], key);
        uint64_t before = model->there ? model->score : 0;
        make_new(k, t, key, model);
        model->score = t == STATIC ? k->w.clock.prefetches : before + k->w.counts[u];
        model->time = k->w.timer.now;
        uint8_t *row = hotbed_row_at(k->step.s.storage.index, &k->tables[t], slot);
        check_row(k, t, row, model);
        train_row(model, row, k->tables[t].dim);
        hotbed_set_changed(k->step.s.storage.index, &k->tables[t], slot);
        model_changes(k, t, key);
        hotbed_index_unpin(k->step.s.storage.index, slot, true);
    }
    for (uint32_t t = 0; t < TABLES; t++)
        CHECK_EQ(k->w.tallies[t].refused, k->refused[t]);
}

/* Each key's row is in the upper tier or in the store, and equals the model's; unchanged rows of the upper tier are
 * in both.  Its slot or the host knows when it was changed. */
static void check_all(const work *k) {
    for (uint32_t t = 0; t < TABLES; t++) {
        for (uint32_t n = 0; n < KEYS; n++) {
            const model_row *model = &k->model[t][n], *below = &k->w.store[t][n];
            const hotbed_table_view *table = &k->tables[t];
            uint64_t slot =
                hotbed_index_find(k->step.s.storage.index, table->range, key_of(t, n), 1);
            uint64_t meta = slot == HOTBED_SLOT_NONE ? 0 : k->w.index_metas[slot];
            CHECK_EQ(meta != 0 || below->there, model->there);
            CHECK_EQ(meta & (HOTBED_META_PINS | HOTBED_META_LOCKED), 0);
            const uint32_t above =
                meta == 0 ? 0
                          : hotbed_changed_epoch(k->step.s.storage.index, table, &k->tracker, slot);
            const uint32_t stored = k->w.stored_epochs[t][n];
            if (model->there)
                CHECK_EQ(above > stored ? above : stored, k->epochs[t][n]);
            if (model->there && (meta & HOTBED_META_FLAGGED) == 0)
                CHECK_EQ(stored, k->epochs[t][n]);
            if (meta != 0) {
                check_row(k, t, table->rows + (slot - table->first_slot) * table->row_bytes, model);
                CHECK_EQ(hotbed_meta_score(meta), model->score);
                if (t == TIMED)
                    CHECK_EQ(k->w.times[slot - table->first_slot], model->time);
            }
            if (model->there && (meta & HOTBED_META_FLAGGED) == 0) {
                uint64_t time;
                check_row(k, t, below->row, model);
                CHECK_EQ(below->score, model->score);
                memcpy(&time, below->row + table->row_bytes - HOTBED_ROW_TIME, sizeof time);
                if (t == TIMED)
                    CHECK_EQ(time, model->time);
            }
        }
    }
}

/* Prefetch, with a store that may fail for some tables, and train. */
static void step(work *k, bool may_fail) {
    for (uint32_t t = 0; t < TABLES; t++)
        k->fails[t] = may_fail && draw_below(&k->random, 4) == 0;
    fill(k);
    prefetch(k);
    train(k, k->fails);
    CHECK_EQ(k->fault.status, k->fault.claim > 0 ? HOTBED_ERR_IO : HOTBED_OK);
    memset(k->fails, 0, sizeof k->fails);
}

static void compare(void) {
    for (uint32_t i = 1; i < WIDTHS; i++)
        CHECK_BYTES(&works[i].w, &works[0].w, sizeof works[0].w);
}

static void prefetches_are_the_same_at_every_width(hotbed_backend backend) {
    for (uint32_t i = 0; i < WIDTHS; i++)
        start(&works[i], widths[i]);
    for (int batch = 0; batch < BATCHES; batch++) {
        for (uint32_t i = 0; i < WIDTHS; i++)
            step(&works[i], batch % 2 == 1);
        compare();
        check_all(&works[batch % WIDTHS]);
        for (uint32_t i = 0; i < WIDTHS && batch % 3 == 0; i++)
            take_position(&works[i]);
    }
    uint64_t fetches = 0, writes = 0, refused = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        const hotbed_tally *tally = &works[0].w.tallies[t];
        fetches += tally->fetches;
        writes += tally->write_backs;
        refused += tally->refused;
        CHECK_EQ(tally->inserts > KEYS / 2, t != STATIC);
    }
    CHECK(fetches > 20);
    CHECK(writes > 20);
    CHECK(refused > 0);
}

/* --- eval ------------------------------------------------------------------------------------ */

/* Eval of a batch; the last key of the static table is out of range, and the store fails for table 1. */
static void evaluate(work *k) {
    static const uint32_t features[TABLES] = {0, 1, 2};
    uint64_t keys[ALL];
    fill(k);
    memcpy(keys, k->w.unique_keys, sizeof keys);
    keys[ALL - 1] = KEYS;
    hotbed_step_view *s = &k->eval.s;
    *s = k->step.s;
    s->batch.keys = keys;
    s->storage.feature_tables = features;
    s->eval.on = 1;
    for (uint32_t i = 0; i < ALL; i++)
        k->w.slots[i] = hotbed_index_find(s->storage.index, k->tables[i / BATCH].range, keys[i], 1);
    memset(&k->w.asked, 0, sizeof k->w.asked);
    k->eval.asked = k->step.asked;
    k->eval.batch_tables = k->batch_tables;
    k->fails[1] = true;
    pass(k, eval_lane, HOTBED_PASS_WANT, false, ALL);
    scan(k->w.asked.ranks, ALL);
    pass(k, eval_lane, HOTBED_PASS_ASK, false, ALL);
    call_store(k, &k->w.asked, FIND);
    pass(k, eval_lane, HOTBED_PASS_ANSWER, true, ALL);
    k->fails[1] = false;
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t t = i / BATCH;
        uint64_t slot = k->w.slots[i];
        if (i == ALL - 1) {
            CHECK_EQ(slot, HOTBED_SLOT_NONE);
            continue;
        }
        model_row model = *entry(k->model, t, keys[i]);
        if (t == STATIC)
            make_new(k, t, keys[i], &model);
        if (t == 1 && slot == HOTBED_SLOT_NONE)
            continue; /* not in the upper tier, and the store failed */
        CHECK_EQ(slot != HOTBED_SLOT_NONE, model.there);
        if (model.there)
            check_row(k, t, hotbed_row_at(s->storage.index, &k->batch_tables[t], slot), &model);
    }
}

static void evaluations_are_the_same_at_every_width(hotbed_backend backend) {
    for (uint32_t i = 0; i < WIDTHS; i++) {
        start(&works[i], widths[i]);
        for (int batch = 0; batch < 3; batch++) {
            step(&works[i], false);
            step(&works[i], false);
            evaluate(&works[i]);
        }
        check_all(&works[i]);
    }
    compare();
}

/* --- rows by key ----------------------------------------------------------------------------- */

/* Make keys of table t for a call; the last key of the static table is out of range. */
static void call_keys(work *k, uint32_t t, uint64_t *keys) {
    fill(k);
    memcpy(keys, k->w.unique_keys + (size_t)t * BATCH, BATCH * sizeof *keys);
    if (t == STATIC)
        keys[BATCH - 1] = KEYS;
    hotbed_rows_args args = {
        .table = k->tables[t],
        .index = k->step.s.storage.index,
        .clock = &k->w.clock,
        .timer = &k->w.timer,
        .faults = &k->fault,
        .keys = keys,
        .flags = k->w.flags,
        .n = BATCH,
        .tracker = &k->tracker,
        .table_number = t};
    args.rows.weights = k->w.got;
    args.rows.scores = k->w.scores;
    args.rows.times = t == TIMED ? k->w.seen : NULL;
    k->rows = (hotbed_store_rows){
        .rows = args, .asked = k->step.asked, .count = BATCH, .num_tables = TABLES};
    memset(&k->w.asked, 0, sizeof k->w.asked);
}

static void ask(work *k, hotbed_store_pass which, store_call call) {
    pass(k, rows_lane, which, true, BATCH);
    scan(k->w.asked.ranks, BATCH);
    pass(k, rows_lane, HOTBED_PASS_ASK, false, BATCH);
    call_store(k, &k->w.asked, call);
}

static void get(work *k, uint32_t t) {
    uint64_t keys[BATCH];
    uint32_t dim = k->tables[t].dim;
    call_keys(k, t, keys);
    memset(k->w.got, 0, sizeof k->w.got);
    ask(k, HOTBED_PASS_GET, FIND);
    pass(k, rows_lane, HOTBED_PASS_GET_ANSWER, true, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) {
        if (keys[i] == KEYS && t == STATIC) {
            CHECK_EQ(k->w.flags[i], HOTBED_EXTERNAL_MISSING);
            continue;
        }
        model_row model = *entry(k->model, t, keys[i]);
        if (t == STATIC)
            make_new(k, t, keys[i], &model);
        CHECK_EQ(k->w.flags[i], model.there ? HOTBED_EXTERNAL_FOUND : HOTBED_EXTERNAL_MISSING);
        if (!model.there)
            continue;
        check_row(k, t, k->w.got + (size_t)i * dim * sizeof(float), &model);
        CHECK_EQ(k->w.scores[i], t == STATIC ? 0 : model.score);
        if (t == TIMED)
            CHECK_EQ(k->w.seen[i], model.time);
    }
}

/* Set new weights; `all`: with scores and times. */
static void set(work *k, uint32_t t, bool all) {
    uint64_t keys[BATCH];
    uint32_t dim = k->tables[t].dim;
    call_keys(k, t, keys);
    for (uint32_t i = 0; i < BATCH; i++) {
        float value = (float)draw_below(&k->random, 1000);
        for (uint32_t e = 0; e < dim; e++)
            memcpy(k->w.got + ((size_t)i * dim + e) * sizeof value, &value, sizeof value);
        k->w.scores[i] = 1 + draw_below(&k->random, 50);
        k->w.seen[i] = 1 + draw_below(&k->random, 50);
    }
    if (!all)
        k->rows.rows.rows.scores = k->rows.rows.rows.times = NULL;
    ask(k, HOTBED_PASS_SET, FIND);
    pass(k, rows_lane, HOTBED_PASS_SET_ANSWER, true, BATCH);
    call_store(k, &k->w.asked, INSERT);
    pass(k, rows_lane, HOTBED_PASS_FAULT, false, BATCH);
    CHECK_EQ(k->fault.status, t == STATIC ? HOTBED_ERR_RANGE : HOTBED_OK);
    memset(&k->fault, 0, sizeof k->fault);
    for (uint32_t i = 0; i < BATCH; i++) {
        if (keys[i] == KEYS && t == STATIC)
            continue;
        model_row *model = entry(k->model, t, keys[i]);
        bool is_new = !model->there;
        model_changes(k, t, keys[i]);
        make_new(k, t, keys[i], model);
        memcpy(model->row, k->w.got + (size_t)i * dim * sizeof(float), dim * sizeof(float));
        if (t == STATIC && is_new)
            model->score = k->w.clock.prefetches;
        else if (t != STATIC && (all || is_new))
            model->score = all ? k->w.scores[i] : 1;
        if (all || is_new)
            model->time = all ? k->w.seen[i] : k->w.timer.now;
    }
}

static void erase(work *k, uint32_t t) {
    uint64_t keys[BATCH];
    call_keys(k, t, keys);
    uint64_t pinned = hotbed_index_find(k->step.s.storage.index, k->tables[t].range, keys[0], 1);
    if (pinned != HOTBED_SLOT_NONE)
        k->w.index_metas[pinned] += HOTBED_META_PIN;
    uint64_t logged = k->tracker.removed;
    ask(k, HOTBED_PASS_ERASE, ERASE);
    pass(k, rows_lane, HOTBED_PASS_ERASE_ANSWER, true, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) {
        model_row *model = entry(k->model, t, keys[i]);
        bool stays = i == 0 && pinned != HOTBED_SLOT_NONE;
        CHECK_EQ(k->w.flags[i], model->there && !stays);
        if (k->w.flags[i] != 0) {
            const hotbed_removal *item = &k->w.removals[logged++ % REMOVALS];
            CHECK_EQ(item->key, keys[i]);
            CHECK_EQ(item->table, t);
        }
        model->there = model->there && stays;
    }
    CHECK_EQ(k->tracker.removed, logged);
    if (pinned != HOTBED_SLOT_NONE)
        k->w.index_metas[pinned] -= HOTBED_META_PIN;
}

static void calls_on_rows_are_the_same_at_every_width(hotbed_backend backend) {
    for (uint32_t i = 0; i < WIDTHS; i++) {
        work *k = &works[i];
        start(k, widths[i]);
        for (int round = 0; round < 3; round++) {
            step(k, false);
            take_position(k);
            for (uint32_t t = 0; t < TABLES; t++) {
                set(k, t, round % 2 == 0);
                get(k, t);
                if (t != STATIC)
                    erase(k, t);
                check_all(k);
            }
        }
    }
    compare();
}

/* --- flush ----------------------------------------------------------------------------------- */

/* Flush a table: changed rows are written, unless the store fails; with `drop`, written rows also leave the upper
 * tier.  One row is pinned: it is written, but stays marked as changed. */
static void flush(work *k, uint32_t t, bool fails, bool drop) {
    const hotbed_table_view *table = &k->tables[t];
    uint64_t left = 0, before = k->w.tallies[t].write_backs, pinned = table->first_slot;
    while (k->w.index_metas[pinned] == 0)
        pinned++;
    k->w.index_metas[pinned] += HOTBED_META_PIN;
    for (k->flush = (hotbed_store_flush){.first = table->first_slot};
         k->flush.first < table->first_slot + SLOTS; k->flush.first += BATCH) {
        uint64_t slots = table->first_slot + SLOTS - k->flush.first;
        k->flush = (hotbed_store_flush){
            .table = *table,
            .index = k->step.s.storage.index,
            .tracker = &k->tracker,
            .tally = &k->w.tallies[t],
            .faults = &k->fault,
            .leaving = k->step.leaving,
            .first = k->flush.first,
            .count = slots < BATCH ? (uint32_t)slots : BATCH,
            .num_tables = TABLES,
            .table_number = t};
        memset(&k->w.leaving, 0, sizeof k->w.leaving);
        k->fails[t] = fails;
        pass(k, flush_lane, HOTBED_PASS_WANT, false, k->flush.count);
        scan(k->w.leaving.ranks, k->flush.count);
        pass(k, flush_lane, HOTBED_PASS_LEAVE, true, k->flush.count);
        call_store(k, &k->w.leaving, INSERT);
        left += k->w.leaving.counts[t];
        pass(k, flush_lane, HOTBED_PASS_LEFT, false, k->flush.count);
        if (drop)
            pass(k, flush_lane, HOTBED_PASS_DROP, true, k->flush.count);
    }
    k->fails[t] = false;
    k->w.index_metas[pinned] -= HOTBED_META_PIN;
    CHECK(left > 5);
    CHECK_EQ(k->w.tallies[t].write_backs - before, fails ? 0 : left);
    CHECK_EQ(k->fault.status, fails ? HOTBED_ERR_IO : HOTBED_OK);
    memset(&k->fault, 0, sizeof k->fault);
    uint64_t above = 0, changed = 0;
    for (uint64_t slot = table->first_slot; slot < table->first_slot + SLOTS; slot++) {
        above += k->w.index_metas[slot] != 0;
        changed += (k->w.index_metas[slot] & HOTBED_META_FLAGGED) != 0;
    }
    CHECK_EQ(changed, fails ? left : 1);
    if (drop)
        CHECK_EQ(above, changed);
}

static void flushes_are_the_same_at_every_width(hotbed_backend backend) {
    for (uint32_t i = 0; i < WIDTHS; i++) {
        work *k = &works[i];
        start(k, widths[i]);
        for (int round = 0; round < 4; round++) {
            step(k, false);
            step(k, false);
            take_position(k);
            for (uint32_t t = 0; t < TABLES; t++) {
                flush(k, t, round == 2, round >= 2);
                check_all(k);
            }
        }
    }
    compare();
}

const hotbed_test hotbed_tests[] = {
    {TEST(prefetches_are_the_same_at_every_width)},
    {TEST(evaluations_are_the_same_at_every_width)},
    {TEST(calls_on_rows_are_the_same_at_every_width)},
    {TEST(flushes_are_the_same_at_every_width)},
    {NULL, NULL},
};
