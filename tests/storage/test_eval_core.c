/* tests/storage/test_eval_core.c - eval beside training, with switches at every access to shared memory.
 *
 * Two emulated tiles share one table (hotbed_emulate_interleaved()): one trains, so that rows move between tiers and
 * are evicted, the other evaluates.  An element of a row is its key plus ROUND times the number of its training
 * steps, so that each element shows to which key and which time it belongs.  The trainer logs the values of every key
 * with their times; every element that eval returns must be a value that its key had at some time during the eval.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_range.h"
#include "storage/step/pool_core.h"
#include "storage/step/row_layout.h"
#include "storage/step/update_core.h"
#include "storage/tiers/tier_core.h"
#include "storage/types.h"
#include "tests/storage/tier_model.h"
#include "tests/support/emulate.h"

enum {
    KEYS = 120, /* of the table, at most */
    UPPER = 48, /* slots */
    LOWER = 144,
    PARTS = 3, /* of the growing tier: its first range and two grown segments */
    DIM_MOST = 8,
    BATCH = 8,      /* distinct keys of a training batch */
    HELD = 2,       /* batches that are pinned at a time */
    EVAL_KEYS = 16, /* keys of an eval */
    STEPS = 120,
    EVALS = 300,
    STATES = 2 * STEPS + 4, /* logged states of a key */
    ROUND = 1024,
    MISSING = -1, /* value that eval returns for a key without a row */
};

/* Sizes and tiers of the table. */
typedef struct layout {
    const char *name;
    uint64_t upper;            /* capacity of the upper tier, in keys */
    uint64_t lower;            /* capacity of the lower tier's first range */
    uint64_t grown[PARTS - 1]; /* capacities of the grown segments */
    hotbed_tiers tiers;
    uint32_t keys;
    uint32_t dim;
    bool evicts; /* the table loses keys */
} layout;

static const layout layouts[] = {
    {"one tier", KEYS, 0, {0, 0}, HOTBED_TIERS_ONE, KEYS, 8, false},
    {"one tier, evicts", 16, 0, {0, 0}, HOTBED_TIERS_ONE, 40, 8, true},
    {"one tier, evicts, has grown", 16, 0, {10, 10}, HOTBED_TIERS_ONE, 100, 7, true},
    {"by hash, evicts", 16, 16, {0, 0}, HOTBED_TIERS_HASH, 80, 8, true},
    {"cache", 20, KEYS, {0, 0}, HOTBED_TIERS_CACHE, KEYS, 8, false},
    {"cache, evicts", 16, 20, {0, 0}, HOTBED_TIERS_CACHE, 60, 8, true},
    {"cache, evicts, has grown", 20, 20, {20, 10}, HOTBED_TIERS_CACHE, KEYS, 7, true},
    {"by score, nearly full", 16, 80, {0, 0}, HOTBED_TIERS_SCORE, KEYS, 8, false},
    {"by score, few keys", 16, 20, {0, 0}, HOTBED_TIERS_SCORE, 50, 8, false},
    {"by score, has grown", 20, 40, {16, 14}, HOTBED_TIERS_SCORE, KEYS, 8, false},
    {"by score, evicts", 16, 30, {0, 0}, HOTBED_TIERS_SCORE, 80, 7, true},
};

/* A value of a key's elements, or MISSING, and the time in which the key may have had it. */
typedef struct state {
    float value;
    uint64_t from, to;
} state;

typedef struct eval_result {
    uint64_t key, from, to;
    float row[DIM_MOST];
} eval_result;

/* The kernels of which an eval consists. */
typedef enum way {
    AT_ONCE,   /* a tile finds keys and reads their rows */
    DEFERRED,  /* as AT_ONCE, but rows of the lower tier are read at the end */
    IN_PASSES, /* find all keys, then read their rows */
    POOLED,    /* as IN_PASSES, in bags of one key */
    WAYS,
} way;

typedef struct work {
    uint64_t index_keys[UPPER + LOWER] HOTBED_ALIGN(128);
    uint64_t index_metas[UPPER + LOWER] HOTBED_ALIGN(128);
    uint64_t grown_keys[PARTS - 1][LOWER] HOTBED_ALIGN(128);
    uint64_t grown_metas[PARTS - 1][LOWER] HOTBED_ALIGN(128);
    float rows[UPPER + LOWER][DIM_MOST] HOTBED_ALIGN(16);
    float grown_rows[PARTS - 1][LOWER][DIM_MOST] HOTBED_ALIGN(16);
    hotbed_index_segment segments[PARTS + 1];
    hotbed_table_view table;
    hotbed_clock clock;
    hotbed_tally tally;
    hotbed_fault fault;
    /* the trainer */
    hotbed_step_view training;
    uint64_t unique_keys[BATCH], slots[BATCH], counts[BATCH], held[HELD][BATCH];
    uint32_t unique_starts[2], missing[BATCH], num_missing, bins[HOTBED_BIN_WORDS];
    hotbed_move moves[BATCH];
    bool there[KEYS];
    state states[KEYS][STATES];
    uint32_t num_states[KEYS];
    uint64_t now; /* incremented when either tile begins or ends something */
    bool over;
    /* the evaluator */
    hotbed_step_view eval;
    uint64_t keys[EVAL_KEYS], found[EVAL_KEYS];
    uint32_t feature_starts[2], feature_tables[1], order[EVAL_KEYS], eval_bins[HOTBED_BIN_WORDS],
        below;
    uint64_t columns[2];
    float output[EVAL_KEYS][DIM_MOST] HOTBED_ALIGN(16);
    /* rows are scattered to `output` in every second round of all ways */
    uint8_t *arrays[1];
    uint8_t *bags[EVAL_KEYS];
    uint32_t run_starts[2], run_firsts[1];
    eval_result results[EVALS * EVAL_KEYS];
    uint32_t num_results;
    uint64_t begun;
    uint32_t again[EVAL_KEYS], num_again;
    const layout *of;
    uint32_t width;
    uint64_t random[2]; /* of the trainer, and of the evaluator */
} work;

static work w;

/* --- setting up ------------------------------------------------------------------------------ */

static hotbed_index_range make_range(
    uint64_t keys, bool evicts, uint64_t first_slot, uint64_t most) {
    hotbed_index_range range =
        hotbed_index_range_make(keys, evicts, first_slot / HOTBED_BUCKET_SLOTS);
    CHECK(hotbed_index_range_slots(range) <= most);
    return range;
}

static void clear(uint64_t *keys, hotbed_index_range range) {
    for (uint32_t b = 0; b < range.buckets; b++)
        for (uint32_t i = 0; i < HOTBED_BUCKET_SLOTS; i++)
            keys[hotbed_index_slot(range, b) + i] = hotbed_index_marker(range, b, false);
}

static void grow(hotbed_index_range *growing) {
    for (uint32_t g = 0; g < PARTS - 1 && w.of->grown[g] != 0; g++) {
        hotbed_index_segment *segment = &w.segments[1 + g];
        growing->segment = 1;
        segment->keys = w.grown_keys[g];
        segment->metas = w.grown_metas[g];
        segment->rows = (uint8_t *)w.grown_rows[g];
        segment->range = make_range(w.of->grown[g], w.of->evicts, 0, LOWER);
        segment->range.flags = growing->flags;
        clear(segment->keys, segment->range);
    }
}

static void start(const layout *of, uint32_t width, uint64_t seed) {
    const hotbed_initializer debug = {.kind = HOTBED_INIT_DEBUG};
    memset(&w, 0, sizeof w);
    w.of = of;
    w.width = width;
    w.random[0] = seed;
    w.random[1] = ~seed;
    memset(w.held, 0xff, sizeof w.held); /* HOTBED_SLOT_NONE */
    hotbed_table_view *table = &w.table;
    table->dim = of->dim;
    table->dtype = HOTBED_F32;
    hotbed_row_lay_out(table, (hotbed_optimizer_kind)0, HOTBED_F32);
    table->row_bytes = sizeof w.rows[0];
    table->rows = (uint8_t *)w.rows;
    table->lower_rows = (uint8_t *)w.rows[UPPER];
    table->tiers = of->tiers;
    table->init = hotbed_init_make(&debug, "table", 7);
    table->eval_value = MISSING;
    table->lower_first = of->lower != 0 ? UPPER : UINT64_MAX;
    table->split = UINT64_MAX / 2;
    table->bin_shift = 27;
    table->score = seed % 4 != 0 ? HOTBED_SCORE_LFU : HOTBED_SCORE_STEP;
    const bool moves = hotbed_table_moves(table);
    const uint64_t slots = of->lower != 0 ? UPPER : UPPER + LOWER;
    table->range = make_range(of->upper, moves || of->evicts, 0, slots);
    table->slots = hotbed_index_range_slots(table->range);
    clear(w.index_keys, table->range);
    if (of->lower != 0) {
        table->lower = make_range(of->lower, of->evicts, UPPER, LOWER);
        table->lower_slots = hotbed_index_range_slots(table->lower);
        table->lower.flags = of->tiers == HOTBED_TIERS_CACHE;
        clear(w.index_keys, table->lower);
    }
    grow(of->lower != 0 ? &table->lower : &table->range);
    /* Unwritten rows hold a value that no eval may return. */
    for (uint32_t e = 0; e < DIM_MOST; e++) {
        for (uint32_t i = 0; i < UPPER + LOWER; i++)
            w.rows[i][e] = -2;
        for (uint32_t i = 0; i < LOWER; i++)
            w.grown_rows[0][i][e] = w.grown_rows[1][i][e] = -3;
    }
    for (uint32_t n = 0; n < KEYS; n++) {
        w.states[n][0] = (state){MISSING, 0, UINT64_MAX};
        w.num_states[n] = 1;
    }
    hotbed_step_view s = {
        .storage = {.tables = table, .index_slots = HOTBED_SLOT_UNINDEXED, .num_tables = 1}};
    s.storage.index =
        (hotbed_index_view){w.index_keys, w.index_metas, of->grown[0] != 0 ? w.segments : NULL};
    s.storage.clock = &w.clock;
    s.storage.tallies = &w.tally;
    s.batch.faults = s.batch.offset_faults = &w.fault;
    w.training = w.eval = s;
    s.unique.keys = w.unique_keys;
    s.unique.offsets = w.unique_starts;
    s.unique.slots = w.slots;
    s.unique.counts = w.counts;
    s.unique.missing = w.missing;
    s.unique.num_missing = &w.num_missing;
    s.moves.items = w.moves;
    s.moves.sort.bins = w.bins;
    w.training = s;
    hotbed_step_view *e = &w.eval;
    w.columns[1] = w.of->dim;
    w.feature_starts[1] = EVAL_KEYS;
    e->eval.on = 1;
    e->storage.output_dtype = HOTBED_F32;
    e->batch.keys = w.keys;
    e->unique.slots = w.found;
    e->batch.feature_starts = w.feature_starts;
    e->storage.feature_tables = w.feature_tables;
    e->storage.num_features = 1;
    e->storage.columns = w.columns;
    e->batch.bound = e->batch.size = EVAL_KEYS;
    e->eval.deferred = w.found; /* as in hotbed_storage_eval() */
    e->eval.sort.order = w.order;
    e->eval.sort.bins = w.eval_bins;
    e->eval.below = &w.below;
    e->eval.begun = &w.begun;
    w.arrays[0] = (uint8_t *)w.output;
    e->to.arrays = w.arrays;
    for (uint32_t b = 0; b < EVAL_KEYS; b++)
        w.bags[b] = (uint8_t *)w.output[b];
    e->to.bags = w.bags;
    w.run_starts[1] = EVAL_KEYS;
    e->to.row_bytes = sizeof w.output[0];
    e->to.starts = w.run_starts;
    e->to.firsts = w.run_firsts;
    e->to.num_runs = e->to.num_arrays = 1;
    e->eval.rereads = w.again;
    e->eval.num_rereads = &w.num_again;
}

/* --- the trainer ----------------------------------------------------------------------------- */

/* Key n has `value` from now on, or possibly since `from`. */
static void log_state(uint32_t n, float value, uint64_t from) {
    state *last = &w.states[n][w.num_states[n] - 1];
    CHECK(w.num_states[n] < STATES);
    last->to = w.now;
    last[1] = (state){value, from, UINT64_MAX};
    w.num_states[n]++;
}

static bool in_table(uint64_t key) {
    const hotbed_index_view index = w.training.storage.index;
    hotbed_index_range range = hotbed_table_range(&w.table, key);
    return hotbed_index_find(index, range, key, 1) != HOTBED_SLOT_NONE ||
           (hotbed_table_moves(&w.table) &&
            hotbed_index_find(index, w.table.lower, key, 1) != HOTBED_SLOT_NONE);
}

static void fill(uint32_t *numbers) {
    draw_distinct(&w.random[0], w.of->keys, BATCH, numbers);
    for (uint32_t u = 0; u < BATCH; u++) {
        w.unique_keys[u] = numbers[u];
        w.counts[u] = 1;
    }
    w.unique_starts[1] = BATCH;
    w.num_missing = 0;
    w.now++;
    hotbed_count_prefetch(&w.clock);
}

static void swap(uint32_t i, uint32_t width) {
    const hotbed_step_view *s = &w.training;
    const hotbed_move move = w.moves[i];
    if (hotbed_move_writes(&w.table, &move)) {
        hotbed_transfer row = hotbed_transfer_of(s, i, true);
        hotbed_row_copy(row.to, row.from, row.bytes, width);
    }
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        hotbed_leave_upper(s, i);
    hotbed_tile_sync(width);
    if (hotbed_move_fetches(&move)) {
        hotbed_transfer row = hotbed_transfer_of(s, i, false);
        hotbed_row_copy(row.to, row.from, row.bytes, width);
    }
    hotbed_tile_sync(width);
}

static uint32_t at_most(uint32_t n, uint32_t width) {
    return n < width ? n : width;
}

static void prefetch(uint32_t width) {
    const hotbed_step_view *s = &w.training;
    for (uint32_t u = 0; u < BATCH; u += width)
        hotbed_find_uniques(s, u, at_most(BATCH - u, width), width);
    hotbed_tile_sync(width);
    const uint32_t n = w.num_missing;
    if (!hotbed_table_moves(&w.table)) {
        for (uint32_t i = 0; i < n; i += width) {
            const hotbed_placed p = hotbed_place_uniques(s, i, at_most(n - i, width), width);
            hotbed_tally_places(s, p.t, p.r, p.mine, width);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i += width)
        hotbed_seek_lower(s, i, at_most(n - i, width), width);
    hotbed_tile_sync(width);
    for (uint32_t i = 0; i < n; i++)
        hotbed_claim_missing(s, i, width);
    hotbed_tile_sync(width);
    for (uint32_t i = 0; i < n; i++)
        hotbed_settle_missing(s, i, width);
    hotbed_tile_sync(width);
    for (uint32_t i = 0; i < n; i++)
        swap(i, width);
    for (uint32_t i = 0; i < n; i++)
        hotbed_end_move(s, i, width);
}

/* Log which keys the prefetch that began at `from` has inserted or evicted. */
static void log_prefetch(uint64_t from) {
    w.now++;
    for (uint32_t n = 0; n < KEYS; n++) {
        bool there = in_table(n);
        if (there != w.there[n])
            log_state(n, there ? (float)n : MISSING, from);
        w.there[n] = there;
        CHECK(there || w.of->evicts || w.states[n][w.num_states[n] - 1].value == MISSING);
    }
}

/* Train the row of distinct key u by one step. */
static void update(uint32_t u, uint32_t width) {
    const uint64_t slot = w.slots[u];
    uint8_t *row = hotbed_row_at(w.training.storage.index, &w.table, slot);
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < w.of->dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(w.of->dim, e);
        const hotbed_f32x4 old = hotbed_load4(HOTBED_F32, row, e, count);
        hotbed_store4(HOTBED_F32, row, e, count, hotbed_add4(old, hotbed_f32x4_of(ROUND)));
    }
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0 && w.table.tiers == HOTBED_TIERS_CACHE &&
        slot < w.table.lower_first)
        hotbed_index_flag(w.training.storage.index, slot);
}

/* Unpin the batch of HELD steps ago. */
static void hold(uint32_t step) {
    uint64_t *held = w.held[step % HELD];
    for (uint32_t u = 0; u < BATCH; u++)
        if (held[u] != HOTBED_SLOT_NONE)
            hotbed_index_unpin(w.training.storage.index, held[u], true);
    memcpy(held, w.slots, sizeof w.slots);
}

static void train(uint32_t width) {
    const bool first = hotbed_tile_rank(width) == 0;
    uint32_t numbers[BATCH];
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t from = w.now + 1;
        if (first)
            fill(numbers);
        hotbed_tile_sync(width);
        prefetch(width);
        hotbed_tile_sync(width);
        if (first)
            log_prefetch(from);
        for (uint32_t u = 0; u < BATCH; u++) {
            if (w.slots[u] == HOTBED_SLOT_NONE)
                continue;
            from = w.now + 1;
            hotbed_tile_sync(width);
            if (first)
                w.now++;
            update(u, width);
            hotbed_tile_sync(width);
            if (!first)
                continue;
            w.now++;
            const uint32_t n = numbers[u];
            log_state(n, w.states[n][w.num_states[n] - 1].value + ROUND, from);
        }
        if (first)
            hold(step);
        hotbed_tile_sync(width);
    }
    if (first)
        w.over = true;
}

/* --- the evaluator --------------------------------------------------------------------------- */

static void find_all(uint32_t width) {
    for (uint32_t i = 0; i < EVAL_KEYS; i += width)
        hotbed_find_keys(&w.eval, i, at_most(EVAL_KEYS - i, width), width);
    hotbed_tile_sync(width);
}

static void deferred(uint32_t find_width, uint32_t width) {
    uint64_t epoch = hotbed_eval_epoch(&w.eval);
    for (uint32_t i = 0; i < EVAL_KEYS; i += width)
        hotbed_eval_rows(
            &w.eval, i, at_most(EVAL_KEYS - i, width), w.output, DIM_MOST, true, &epoch, find_width,
            width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0) { /* all keys are in the first bin */
        w.eval_bins[0] = w.eval_bins[1];
        w.eval_bins[1] = 0;
        for (uint32_t i = 0; i < EVAL_KEYS; i++)
            hotbed_order_key(&w.eval, i);
    }
    hotbed_tile_sync(width);
    const uint32_t n = w.eval_bins[0];
    CHECK(n <= EVAL_KEYS);
    for (uint32_t i = 0; i < n; i += at_most(4, width))
        hotbed_eval_below(
            &w.eval, i, at_most(n - i, at_most(4, width)), w.output, DIM_MOST, find_width, width);
    hotbed_tile_sync(width);
    if (hotbed_tile_rank(width) == 0)
        memset(w.eval_bins, 0, sizeof w.eval_bins);
}

static void eval_by(way by, uint32_t width) {
    const uint32_t find_width = at_most(4, width);
    uint64_t epoch = hotbed_eval_epoch(&w.eval);
    switch (by) {
    case AT_ONCE:
        for (uint32_t i = 0; i < EVAL_KEYS; i += width)
            hotbed_eval_rows(
                &w.eval, i, at_most(EVAL_KEYS - i, width), w.output, DIM_MOST, false, &epoch,
                find_width, width);
        break;
    case DEFERRED:
        deferred(find_width, width);
        break;
    case IN_PASSES:
        find_all(find_width);
        for (uint32_t i = 0; i < EVAL_KEYS; i += width)
            hotbed_forward_rows(
                &w.eval, i, at_most(EVAL_KEYS - i, width), w.output, DIM_MOST, width);
        break;
    default:
        find_all(find_width);
        for (uint64_t b = 0; b < EVAL_KEYS; b++)
            hotbed_forward_bag_checked(&w.eval, b, w.output, DIM_MOST, width);
        break;
    }
    hotbed_tile_sync(width);
    CHECK(w.num_again <= EVAL_KEYS);
    for (uint32_t n = 0; n < w.num_again; n++)
        hotbed_eval_again(&w.eval, n, w.output, DIM_MOST, width);
    hotbed_tile_sync(width);
}

static void evaluate(uint32_t width) {
    const bool first = hotbed_tile_rank(width) == 0;
    uint64_t from = 0;
    for (uint32_t e = 0; e < EVALS && !w.over; e++) {
        hotbed_tile_sync(width);
        if (first) {
            /* Every second key is in the current batch, so its row may be moving. */
            for (uint32_t i = 0; i < EVAL_KEYS; i++)
                w.keys[i] = i % 2 == 0 ? draw_below(&w.random[1], w.of->keys)
                                       : w.unique_keys[draw_below(&w.random[1], BATCH)];
            w.eval.storage.pooling = e % WAYS == POOLED ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
            w.eval.to.on = e / WAYS % 2;
            from = ++w.now;
            hotbed_eval_begin(&w.eval);
        }
        hotbed_tile_sync(width);
        eval_by((way)(e % WAYS), width);
        if (first) {
            const uint64_t to = ++w.now;
            for (uint32_t i = 0; i < EVAL_KEYS; i++) {
                eval_result *a = &w.results[w.num_results++];
                *a = (eval_result){.key = w.keys[i], .from = from, .to = to};
                memcpy(a->row, w.output[i], sizeof a->row);
            }
        }
        hotbed_tile_sync(width);
    }
}

/* --- checks ---------------------------------------------------------------------------------- */

static void lane(void *argument) {
    if (hotbed_emulate_lane() < w.width)
        train(w.width);
    else
        evaluate(w.width);
}

/* Whether the key may have had this value at some time during the eval. */
static bool was(const eval_result *a, float value) {
    for (uint32_t i = 0; i < w.num_states[a->key]; i++) {
        const state *s = &w.states[a->key][i];
        if (s->value == value && s->from <= a->to && s->to >= a->from)
            return true;
    }
    return false;
}

static void check(uint64_t seed) {
    for (uint32_t i = 0; i < w.num_results; i++) {
        const eval_result *a = &w.results[i];
        for (uint32_t e = 0; e < w.of->dim; e++)
            if (!was(a, a->row[e]))
                hotbed_check_failed(
                    __FILE__, __LINE__,
                    "%s, width %u, seed %llu, eval %u (way %u): element %u of key %u is %g, which "
                    "is "
                    "step %d of key %d; its row was %g",
                    w.of->name, w.width, (unsigned long long)seed, i / EVAL_KEYS,
                    i / EVAL_KEYS % WAYS, e, (unsigned)a->key, (double)a->row[e],
                    (int)a->row[e] / ROUND, (int)a->row[e] % ROUND,
                    (double)w.states[a->key][w.num_states[a->key] - 1].value);
    }
}

static void run(const layout *of, uint32_t width, uint64_t seed) {
    uint64_t random = seed;
    start(of, width, seed);
    hotbed_emulate_interleaved(2 * width, width, lane, NULL, &random);
    CHECK(w.over);
    check(seed);
}

static void eval_beside_training_reads_values_that_its_keys_had(hotbed_backend backend) {
    static const uint32_t tiles[] = {1, 4, 16};
    uint64_t evals = 0, evictions = 0;
    for (uint32_t round = 0; round < (hotbed_test_is_small() ? 1 : 3); round++)
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            run(&layouts[i], tiles[round], hotbed_test_random());
            evals += w.num_results / EVAL_KEYS;
            evictions += w.tally.evictions;
        }
    CHECK(evals > 200);
    CHECK(evictions > 300);
}

const hotbed_test hotbed_tests[] = {
    {TEST(eval_beside_training_reads_values_that_its_keys_had)},
    {NULL, NULL},
};
