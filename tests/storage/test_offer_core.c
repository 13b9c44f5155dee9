/* tests/storage/test_offer_core.c - storage/rows/offer_core.h: keys without a slot get one by moves, at every
 * tile width.
 *
 * A table is filled until some keys find all candidates occupied, and then those are inserted. Every slot must then
 * have a key, and every key its row, score, time and probation as before.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_range.h"
#include "storage/rows/offer_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum {
    UPPER = 60, /* buckets */
    LOWER = 45, /* of the lower tier or the segment */
    BUCKETS = UPPER + LOWER,
    SLOTS = BUCKETS * HOTBED_BUCKET_SLOTS,
    MOST = SLOTS + 10, /* keys */
    DIM = 5,
    SHARES = 16,
    STEPS = SHARES * (BUCKETS + 32)
};

static const uint32_t widths[] = {1, 2, 8, 32};

typedef struct row {
    float weights[DIM], state;
} row;

/* Tiers and segments of a table. */
typedef enum shape { ONE, GROWN, CACHE, BY_SCORE, BY_HASH, SHAPES } shape;

typedef struct work {
    hotbed_offer_args a;
    uint64_t keys[SLOTS] __attribute__((aligned(128)));
    uint64_t metas[SLOTS] __attribute__((aligned(128)));
    uint64_t times[SLOTS];
    row rows[SLOTS];
    hotbed_index_segment segments[3];
    hotbed_timer timer;
    hotbed_tally tally;
    hotbed_offer_state state;
    hotbed_offer_step steps[STEPS];
    uint32_t seen[BUCKETS];
    /* the call: all keys, in the table or refused, and their rows */
    uint64_t refused[MOST + 1], call_keys[MOST], scores[MOST], call_times[MOST], n;
    float weights[MOST][DIM], states[MOST];
    uint64_t all_metas[MOST];
    uint32_t width;
} work;

static row row_of(uint64_t key) {
    row r;
    for (int e = 0; e < DIM; e++)
        r.weights[e] = (float)(key >> (8 * e) & 0xff);
    r.state = (float)(key >> 40 & 0xff);
    return r;
}

static uint64_t time_of(uint64_t key) {
    return key >> 20 & 0xffff;
}

/* An empty table. Pointers are set again after a copy. */
static void link_up(work *w, shape kind, bool evicts) {
    hotbed_table_view *t = &w->a.rows.table;
    const bool lower = kind == CACHE || kind == BY_SCORE || kind == BY_HASH;
    memset(&w->a, 0, sizeof w->a);
    t->rows = (uint8_t *)w->rows;
    t->row_bytes = sizeof(row);
    t->slots = UPPER * HOTBED_BUCKET_SLOTS;
    t->lower_first = UINT64_MAX;
    t->dim = DIM;
    t->dtype = HOTBED_F32;
    t->states = 1;
    t->state_dtype[0] = t->state_dtype[1] = HOTBED_F32;
    t->state_bytes[0] = sizeof(float);
    t->state_offset[0] = offsetof(row, state);
    t->score = HOTBED_SCORE_CUSTOM;
    t->split = UINT64_MAX / BUCKETS * UPPER;
    t->tiers = kind == CACHE      ? HOTBED_TIERS_CACHE
               : kind == BY_SCORE ? HOTBED_TIERS_SCORE
               : kind == BY_HASH  ? HOTBED_TIERS_HASH
                                  : HOTBED_TIERS_ONE;
    hotbed_index_range part = {.buckets = UPPER, .choices = evicts ? 4 : 8};
    part.times = w->times;
    t->range = part;
    part.buckets = LOWER;
    part.choices = evicts ? 4 : 8;
    part.times = w->times + t->slots;
    if (lower) {
        part.first_bucket = UPPER;
        t->lower = part;
        t->lower_first = t->slots;
        t->lower_slots = LOWER * HOTBED_BUCKET_SLOTS;
        t->lower_rows = (uint8_t *)(w->rows + t->slots);
    } else if (kind == GROWN) {
        t->range.segment = 1;
        w->segments[1].keys = w->keys + t->slots;
        w->segments[1].metas = w->metas + t->slots;
        w->segments[1].rows = (uint8_t *)(w->rows + t->slots);
        w->segments[1].range = part;
        w->a.rows.index.segments = w->segments;
    }
    w->a.rows.index.keys = w->keys;
    w->a.rows.index.metas = w->metas;
    w->a.rows.timer = &w->timer;
    w->a.rows.tally = &w->tally;
    w->a.rows.keys = w->call_keys;
    w->a.rows.rows =
        (hotbed_rows_view){(uint8_t *)w->weights, {(uint8_t *)w->states}, w->scores, w->call_times};
    w->a.rows.offered = 1;
    w->a.rows.refused = w->refused;
    w->a.slots[HOTBED_UPPER] = kind == CACHE ? 0 : kind == GROWN ? SLOTS : t->slots;
    w->a.slots[HOTBED_LOWER] = t->lower_slots;
    w->a.state = &w->state;
    w->a.steps = w->steps;
    w->a.steps_most = STEPS;
    w->a.shares = SHARES;
    w->a.work_most = UINT64_MAX;
    w->a.seen = w->seen;
}

static uint64_t slots_of(const work *w) {
    return w->a.slots[HOTBED_UPPER] + w->a.slots[HOTBED_LOWER];
}

static void start(work *w, shape kind, bool evicts) {
    memset(w, 0, sizeof *w);
    link_up(w, kind, evicts);
    const hotbed_table_view *t = &w->a.rows.table;
    hotbed_index_range ranges[2] = {t->range, t->lower};
    if (kind == GROWN)
        ranges[1] = w->segments[1].range;
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t b = 0; b < ranges[p].buckets; b++)
            for (uint32_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
                w->keys[(p * UPPER + b) * HOTBED_BUCKET_SLOTS + s] =
                    hotbed_index_marker(ranges[p], b, false);
}

/* Offer new keys, as many as the table has slots and `more`, to a table that does not move rows. */
static void fill(work *w, uint64_t more) {
    const hotbed_table_view *t = &w->a.rows.table;
    uint64_t of_tier[2] = {0, 0};
    while (w->n < slots_of(w) + more) {
        const uint64_t key = hotbed_test_random(), i = w->n, score = key % 1000;
        const int tier = hotbed_hashed_below(t, key) ? HOTBED_LOWER : HOTBED_UPPER;
        if (t->tiers == HOTBED_TIERS_HASH && of_tier[tier] == w->a.slots[tier])
            continue;
        of_tier[tier]++;
        const row r = row_of(key);
        w->call_keys[i] = key;
        w->scores[i] = score;
        w->call_times[i] = time_of(key);
        memcpy(w->weights[i], r.weights, sizeof r.weights);
        w->states[i] = r.state;
        w->all_metas[i] = hotbed_meta_new(score, 0) - HOTBED_META_LOCKED;
        hotbed_rows_insert(&w->a.rows, i, 1);
        w->n++;
    }
    /* Every third key is on probation. */
    for (uint64_t i = 0; i < w->n; i += 3)
        for (uint64_t s = 0; s < SLOTS; s++)
            if (w->metas[s] != 0 && w->keys[s] == w->call_keys[i]) {
                w->metas[s] |= HOTBED_META_PROBATION;
                w->all_metas[i] |= HOTBED_META_PROBATION;
            }
    memset(w->state.used, 0, sizeof w->state.used);
    for (uint64_t s = 0; s < SLOTS; s++)
        w->state.used[s >= t->lower_first ? HOTBED_LOWER : HOTBED_UPPER][0] += w->metas[s] != 0;
}

/* One tile inserts all keys. */
static void insert(void *arg) {
    const work *w = arg;
    hotbed_offer_insert_rest(&w->a, w->width);
}

/* As many tiles as there are shares insert keys at the same time. */
static void insert_share(void *arg) {
    const work *w = arg;
    hotbed_offer_insert_share(&w->a, hotbed_emulate_lane() / w->width, w->width);
}

/* Check all keys but the refused ones; returns the number of keys in the table. */
static uint64_t check(const work *w) {
    const hotbed_table_view *t = &w->a.rows.table;
    uint64_t there = 0, used[HOTBED_TIERS_MOST] = {0, 0};
    for (uint64_t s = 0; s < SLOTS; s++)
        used[hotbed_tier_of(t, s)] += w->metas[s] != 0;
    for (uint64_t i = 0; i < w->n; i++) {
        bool refused = false;
        for (uint64_t j = 0; j < w->refused[0]; j++)
            refused = refused || w->refused[1 + j] == i;
        const uint64_t slot = hotbed_rows_find(&w->a.rows, i, 1);
        CHECK_EQ(slot == HOTBED_SLOT_NONE, refused);
        if (refused)
            continue;
        there++;
        const row expected = row_of(w->call_keys[i]);
        CHECK_BYTES(hotbed_row_at(w->a.rows.index, t, slot), &expected, sizeof expected);
        CHECK_EQ(*hotbed_index_meta(w->a.rows.index, slot), w->all_metas[i]);
        CHECK_EQ(*hotbed_table_time(w->a.rows.index, t, slot), time_of(w->call_keys[i]));
    }
    CHECK_EQ(there, used[HOTBED_UPPER] + used[HOTBED_LOWER]);
    for (uint32_t tier = 0; tier < HOTBED_TIERS_MOST; tier++)
        CHECK_EQ(w->state.used[tier][0], used[tier]);
    return there;
}

static void refused_keys_get_slots_at_every_width(hotbed_backend backend) {
    static work first, w;
    for (int kind = 0; kind < SHAPES; kind++)
        for (int evicts = 0; evicts < 2; evicts++) {
            start(&first, (shape)kind, evicts != 0);
            fill(&first, 0);
            CHECK(first.refused[0] > 0);
            for (int i = 0; i < 4; i++) {
                w = first;
                link_up(&w, (shape)kind, evicts != 0);
                w.width = widths[i];
                hotbed_emulate_run(w.width, insert, &w);
                CHECK_EQ(w.refused[0], 0);
                CHECK_EQ(check(&w), slots_of(&w));
            }
        }
}

/* Tiles that switch at random points move each other's rows; what they leave, one tile inserts. */
static void tiles_insert_keys_at_the_same_time(hotbed_backend backend) {
    static work first, w;
    uint64_t random = hotbed_test_random(), left = 0, inserted = 0;
    for (int kind = 0; kind < SHAPES; kind++)
        for (int evicts = 0; evicts < 2; evicts++) {
            start(&first, (shape)kind, evicts != 0);
            fill(&first, 0);
            for (uint32_t run = 0; run < 24; run++) {
                w = first;
                link_up(&w, (shape)kind, evicts != 0);
                w.width = 1 + run % 2;
                hotbed_emulate_interleaved(SHARES * w.width, w.width, insert_share, &w, &random);
                for (uint64_t j = 0; j < w.refused[0]; j++) {
                    left += w.refused[1 + j] != HOTBED_INSERTED;
                    inserted += w.refused[1 + j] == HOTBED_INSERTED;
                }
                w.width = 32;
                hotbed_emulate_run(w.width, insert, &w);
                CHECK_EQ(w.refused[0], 0);
                CHECK_EQ(check(&w), slots_of(&w));
            }
        }
    CHECK(left > 0 && inserted > left);
}

/* A move that finds its row locked frees the claimed slot. Its bucket has looked full to other tiles, so searches for
 * keys continue past it. */
static void a_move_that_fails_frees_the_slot(hotbed_backend backend) {
    static work w;
    uint32_t moves = 0;
    start(&w, ONE, false);
    fill(&w, 0);
    for (uint64_t j = 0; j < w.refused[0]; j++) {
        hotbed_offer_search s = {
            .steps = w.steps, .steps_most = STEPS, .tiers = 1U << HOTBED_UPPER};
        const uint32_t last = hotbed_offer_find(&w.a, &s, w.call_keys[w.refused[1 + j]], 1);
        CHECK(last != HOTBED_STEP_NONE && w.metas[s.claimed] != 0);
        const hotbed_offer_step *step = &w.steps[last];
        CHECK(step->from != HOTBED_STEP_NONE);
        uint64_t *meta = &w.metas[w.steps[step->from].line + step->slot];
        *meta |= HOTBED_META_LOCKED;
        CHECK_EQ(hotbed_offer_make_room(&w.a, &s, last, 1), HOTBED_SLOT_NONE);
        *meta &= ~HOTBED_META_LOCKED;
        CHECK_EQ(w.metas[s.claimed], 0);
        CHECK_EQ(
            w.keys[s.claimed],
            hotbed_index_marker(
                w.a.rows.table.range, (uint32_t)(s.claimed / HOTBED_BUCKET_SLOTS), true));
        moves++;
    }
    CHECK(moves > 0);
}

/* A search of one tier that is cut does not end the searches of the other. */
static void tiers_are_searched_apart(hotbed_backend backend) {
    static work w;
    start(&w, BY_HASH, true);
    fill(&w, 0);
    /* The lower tier gets free slots everywhere, and of each bucket's the first. */
    for (uint64_t s = w.a.rows.table.slots; s < SLOTS; s += HOTBED_BUCKET_SLOTS / 2)
        if (w.metas[s] != 0) {
            w.metas[s] = 0;
            w.keys[s] = hotbed_index_marker(
                w.a.rows.table.lower, (uint32_t)(s / HOTBED_BUCKET_SLOTS - UPPER), true);
            w.state.used[HOTBED_LOWER][0]--;
        }
    uint64_t sorted[MOST], n = 0; /* keys of the upper tier first */
    for (uint64_t below = 0; below < 2; below++)
        for (uint64_t j = 0; j < w.refused[0]; j++)
            if (hotbed_hashed_below(&w.a.rows.table, w.call_keys[w.refused[1 + j]]) == (below != 0))
                sorted[n++] = w.refused[1 + j];
    memcpy(w.refused + 1, sorted, n * sizeof *sorted);
    w.width = 1;
    w.a.steps_most = 7; /* so many are not enough for the upper tier */
    hotbed_emulate_run(w.width, insert, &w);
    CHECK(w.refused[0] > 0);
    for (uint64_t j = 0; j < w.refused[0]; j++)
        CHECK(!hotbed_hashed_below(&w.a.rows.table, w.call_keys[w.refused[1 + j]]));
    CHECK_EQ(w.state.left_for_growth, 0); /* the lower tier grows */
}

/* More keys than slots: the keys that are left are listed, and nothing else changes. */
static void keys_without_a_slot_stay_refused(hotbed_backend backend) {
    enum { MORE = 7 };
    static work first, w;
    start(&first, ONE, true);
    fill(&first, MORE);
    for (int i = 0; i < 4; i++) {
        w = first;
        link_up(&w, ONE, true);
        w.width = widths[i];
        hotbed_emulate_run(w.width, insert, &w);
        CHECK_EQ(w.refused[0], MORE);
        CHECK_EQ(w.state.left_for_growth, MORE);
        CHECK_EQ(check(&w), slots_of(&w));
    }
}

/* Pinned and locked rows, and rows of which the upper tier has a copy, stay in their slots. */
static void held_rows_do_not_move(hotbed_backend backend) {
    static work w;
    static uint64_t before[SLOTS];
    static const uint64_t holds[] = {HOTBED_META_PIN, HOTBED_META_LOCKED, HOTBED_META_FLAGGED};
    for (int h = 0; h < 3; h++) {
        start(&w, CACHE, true);
        fill(&w, 0);
        for (uint64_t s = 0; s < SLOTS; s += 2)
            if (w.metas[s] != 0)
                w.metas[s] |= holds[h];
        memcpy(before, w.keys, sizeof before);
        const uint64_t refused = w.refused[0];
        w.width = 32;
        hotbed_emulate_run(w.width, insert, &w);
        CHECK(w.refused[0] < refused);
        for (uint64_t s = 0; s < SLOTS; s++)
            if ((w.metas[s] & holds[h]) != 0)
                CHECK_EQ(w.keys[s], before[s]);
    }
}

/* A search that is cut because there is no memory for more steps leaves the table as it was, and says so. */
static void a_search_that_is_cut_changes_nothing(hotbed_backend backend) {
    static work w;
    start(&w, ONE, true);
    fill(&w, 0);
    const uint64_t refused = w.refused[0];
    w.width = 4;
    w.a.steps_most = 6;
    hotbed_emulate_run(w.width, insert, &w);
    CHECK_EQ(w.refused[0], refused);
    CHECK_EQ(check(&w), slots_of(&w) - refused);
    w.a.steps_most = STEPS;
    memset(w.seen, 0, sizeof w.seen);
    hotbed_emulate_run(w.width, insert, &w);
    CHECK_EQ(w.refused[0], 0);
    CHECK_EQ(check(&w), slots_of(&w));
}

const hotbed_test hotbed_tests[] = {
    {TEST(refused_keys_get_slots_at_every_width)}, {TEST(tiles_insert_keys_at_the_same_time)},
    {TEST(a_move_that_fails_frees_the_slot)},      {TEST(tiers_are_searched_apart)},
    {TEST(keys_without_a_slot_stay_refused)},      {TEST(held_rows_do_not_move)},
    {TEST(a_search_that_is_cut_changes_nothing)},  {NULL, NULL},
};
