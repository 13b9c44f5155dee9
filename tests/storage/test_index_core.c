/* tests/storage/test_index_core.c - the index of storage/index_*_core.h against a model, at every tile width.
 *
 * Random claims, finds, erases, pins and unpins run with tiles of 1, 2, 8 and 32 emulated lanes.  Results and the whole
 * table must be equal at all widths, and the table must equal a list of the expected keys.  Other tests show
 * scores, growth, and two tiles on one table that switch at every access.  test_index_candidates.c tests where keys may
 * be and what marks free slots.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_place_each_core.h"
#include "storage/index/index_range.h"
#include "tests/storage/index_claim.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { MAX_BUCKETS = 40, MAX_SLOTS = MAX_BUCKETS * HOTBED_BUCKET_SLOTS, MAX_KEYS = 2000 };

static const uint32_t widths[] = {1, 2, 8, 32};

enum { WIDTHS = sizeof widths / sizeof widths[0], MAX_WIDTH = 32 };

/* A table at one tile width, and arguments and results of the running call. */
typedef struct table {
    uint64_t keys[MAX_SLOTS] __attribute__((aligned(128)));
    uint64_t metas[MAX_SLOTS] __attribute__((aligned(128)));
    hotbed_index_view view;
    hotbed_index_range range;
    uint64_t key, score, pins;
    hotbed_index_result result; /* of lane 0 */
    uint64_t found;
    uint64_t sought[MAX_WIDTH], founds[MAX_WIDTH]; /* per lane */
    hotbed_index_range ranges[MAX_WIDTH];
    uint32_t wanted; /* one bit per lane */
    hotbed_score_rule rule;
    uint32_t width;
    bool erased;
    bool agreed; /* all lanes got the same result */
} table;

static table tables[WIDTHS];

static void clear(table *t, hotbed_index_range range, uint32_t width) {
    memset(t, 0, sizeof *t);
    t->view.keys = t->keys;
    t->view.metas = t->metas;
    t->range = range;
    t->width = width;
    for (uint32_t b = 0; b < range.buckets; b++)
        for (uint64_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
            t->keys[hotbed_index_slot(range, b) + s] = hotbed_index_marker(range, b, false);
}

/* Make the table segment number `number`, with its words in `segments` instead of in the index. */
static void use_segment(table *t, hotbed_index_segment *segments, uint32_t number) {
    segments[number].keys = t->keys;
    segments[number].metas = t->metas;
    segments[number].range = t->range;
    t->view.keys = t->view.metas = NULL;
    t->view.segments = segments;
    t->range.first_bucket = (uint64_t)number << HOTBED_SEGMENT_BUCKET_SHIFT;
}

/* --- calls on all lanes of a tile ------------------------------------------------------------ */

static void find_lane(void *argument) {
    table *t = argument;
    uint64_t slot = hotbed_index_find(t->view, t->range, t->key, t->width);
    if (hotbed_emulate_lane() == 0)
        t->found = slot;
    hotbed_tile_sync(t->width);
    if (slot != t->found)
        t->agreed = false;
}

static uint64_t find(table *t, uint64_t key) {
    t->key = key;
    t->agreed = true;
    hotbed_emulate_run(t->width, find_lane, t);
    CHECK(t->agreed);
    return t->found;
}

static void each_lane(void *argument) {
    table *t = argument;
    uint32_t lane = hotbed_emulate_lane();
    t->founds[lane] = hotbed_index_find_each(
        t->view, t->ranges[lane], t->sought[lane], t->wanted, false, t->width);
}

/* Find with a key per lane: each wanted lane must get the result of a find of its key alone, the others nothing. */
static void find_each(table *t) {
    t->wanted = (uint32_t)hotbed_test_random();
    t->wanted |= (uint32_t)hotbed_test_random(); /* three of four lanes want a key */
    if (t->width < MAX_WIDTH)
        t->wanted &= (1U << t->width) - 1U;
    hotbed_emulate_run(t->width, each_lane, t);
    for (uint32_t lane = 0; lane < t->width; lane++)
        CHECK_EQ(
            t->founds[lane], (t->wanted >> lane & 1U) == 0
                                 ? HOTBED_SLOT_NONE
                                 : hotbed_index_find(t->view, t->ranges[lane], t->sought[lane], 1));
}

/* index_claim(), but a new key is placed by one of the lanes. */
static hotbed_index_result claim_by_lane(table *t) {
    const uint32_t lane = (uint32_t)(t->key >> 1) % t->width;
    if (hotbed_index_find(t->view, t->range, t->key, t->width) != HOTBED_SLOT_NONE)
        return index_claim(t->view, t->range, t->key, t->rule, t->score, t->pins, t->width);
    hotbed_index_result result = hotbed_index_place_each_timed(
        t->view, t->range, t->key, hotbed_meta_new(t->score, t->pins),
        hotbed_tile_rank(t->width) == lane, t->width);
    result.slot = hotbed_tile_shuffle_u64(t->width, result.slot, lane);
    result.evicted_key = hotbed_tile_shuffle_u64(t->width, result.evicted_key, lane);
    result.evicted_meta = hotbed_tile_shuffle_u64(t->width, result.evicted_meta, lane);
    result.outcome =
        (hotbed_index_outcome)hotbed_tile_shuffle_u32(t->width, (uint32_t)result.outcome, lane);
    return result;
}

/* Odd keys are claimed by the tile, even keys by one lane; the results are the same. */
static void claim_lane(void *argument) {
    table *t = argument;
    hotbed_index_result result =
        t->key % 2 != 0
            ? index_claim(t->view, t->range, t->key, t->rule, t->score, t->pins, t->width)
            : claim_by_lane(t);
    if (hotbed_emulate_lane() == 0)
        t->result = result;
    hotbed_tile_sync(t->width);
    if (result.slot != t->result.slot || result.outcome != t->result.outcome ||
        result.evicted_key != t->result.evicted_key ||
        result.evicted_meta != t->result.evicted_meta)
        t->agreed = false;
    bool fresh = result.outcome == HOTBED_INDEX_INSERTED || result.outcome == HOTBED_INDEX_EVICTED;
    if (fresh && hotbed_tile_rank(t->width) == 0)
        hotbed_index_publish(t->view, result.slot, t->key);
    hotbed_tile_sync(t->width);
}

static hotbed_index_result claim(
    table *t, uint64_t key, hotbed_score_rule rule, uint64_t score, uint64_t pins) {
    t->key = key;
    t->rule = rule;
    t->score = score;
    t->pins = pins;
    t->agreed = true;
    hotbed_emulate_run(t->width, claim_lane, t);
    CHECK(t->agreed);
    return t->result;
}

static void erase_lane(void *argument) {
    table *t = argument;
    bool erased = hotbed_index_erase(t->view, t->range, t->key, t->width);
    if (hotbed_emulate_lane() == 0)
        t->erased = erased;
    hotbed_tile_sync(t->width);
    if (erased != t->erased)
        t->agreed = false;
}

static bool erase(table *t, uint64_t key) {
    t->key = key;
    t->agreed = true;
    hotbed_emulate_run(t->width, erase_lane, t);
    CHECK(t->agreed);
    return t->erased;
}

/* --- the model ------------------------------------------------------------------------------ */

typedef struct model_key {
    uint64_t key, slot, score, pins;
    bool there;
} model_key;

static model_key model[MAX_KEYS];
static uint32_t num_keys; /* of `model` */

static model_key *entry(uint64_t key) {
    for (uint32_t i = 0; i < num_keys; i++)
        if (model[i].key == key)
            return &model[i];
    CHECK(false);
    return NULL;
}

/* Make a model of n keys: edges of the key types, keys that mark free slots of the range, random keys. */
static void make_keys(hotbed_index_range range, uint32_t n) {
    static const uint64_t edges[] = {
        0, 1, 2, 3, UINT64_MAX, UINT64_MAX - 1, INT64_MAX, (uint64_t)INT64_MAX + 1};
    CHECK(n <= MAX_KEYS);
    memset(model, 0, sizeof model);
    num_keys = n;
    for (uint32_t i = 0; i < n; i++)
        model[i].key = i < 8 ? edges[i] : hotbed_test_random();
    for (uint32_t i = 8; i < 40 && i < n; i++) {
        const uint64_t key = hotbed_index_marker(range, (i - 8) / 2 % range.buckets, i % 2 != 0);
        bool fresh = true;
        for (uint32_t k = 0; k < i; k++)
            fresh = fresh && model[k].key != key;
        model[i].key = fresh ? key : model[i].key;
    }
}

/* Check that the table has the keys of the model, in the model's slots, and no others. */
static void check_table(table *t) {
    uint64_t there = 0, occupied = 0;
    for (uint32_t i = 0; i < num_keys; i++) {
        CHECK_EQ(find(t, model[i].key), model[i].there ? model[i].slot : HOTBED_SLOT_NONE);
        there += model[i].there;
        if (!model[i].there)
            continue;
        uint64_t meta = *hotbed_index_meta(t->view, model[i].slot);
        CHECK_EQ(*hotbed_index_key(t->view, model[i].slot), model[i].key);
        CHECK_EQ(meta & HOTBED_META_PINS, model[i].pins);
        CHECK_EQ(hotbed_meta_score(meta), model[i].score);
        CHECK_EQ(meta & HOTBED_META_LOCKED, 0);
    }
    for (uint64_t s = 0; s < (uint64_t)t->range.buckets * HOTBED_BUCKET_SLOTS; s++) {
        occupied += t->metas[s] != 0;
        uint32_t bucket = (uint32_t)(s / HOTBED_BUCKET_SLOTS);
        CHECK_EQ(index_may_hold(t->range, t->keys[s], bucket), t->metas[s] != 0);
    }
    CHECK_EQ(occupied, there);
}

/* Find some keys of the model, one per lane at a time. */
static void find_some(table *t) {
    for (uint32_t i = 0; i < 2 * MAX_WIDTH; i += t->width) {
        for (uint32_t lane = 0; lane < t->width; lane++) {
            t->ranges[lane] = t->range;
            t->sought[lane] = model[hotbed_test_below(num_keys)].key;
        }
        find_each(t);
    }
}

/* Check the result of a claim, and make it in the model. */
static void model_claim(const hotbed_index_result *r, uint64_t key, uint64_t score, uint64_t pins) {
    model_key *k = entry(key);
    if (k->there) {
        CHECK_EQ(r->outcome, HOTBED_INDEX_FOUND);
        CHECK_EQ(r->slot, k->slot);
        k->score = score;
        k->pins += pins;
        return;
    }
    CHECK(r->outcome != HOTBED_INDEX_FOUND);
    if (r->outcome == HOTBED_INDEX_FULL || r->outcome == HOTBED_INDEX_PINNED) {
        CHECK_EQ(r->slot, HOTBED_SLOT_NONE);
        return;
    }
    if (r->outcome == HOTBED_INDEX_EVICTED) {
        model_key *evicted = entry(r->evicted_key);
        CHECK(evicted->there && evicted->pins == 0);
        CHECK_EQ(evicted->slot, r->slot);
        CHECK_EQ(evicted->score, hotbed_meta_score(r->evicted_meta));
        for (uint32_t i = 0; i < num_keys;
             i++) /* it had the lowest score of its bucket, at least */
            if (model[i].there && model[i].pins == 0 &&
                model[i].slot / HOTBED_BUCKET_SLOTS == r->slot / HOTBED_BUCKET_SLOTS)
                CHECK(model[i].score >= evicted->score);
        evicted->there = false;
    }
    *k = (model_key){key, r->slot, score, pins, true};
}

/* Run a random operation at every width, and compare the results with each other and with the model. */
static void step_all(uint64_t clock) {
    uint64_t key = model[hotbed_test_below(num_keys)].key, what = hotbed_test_below(10);
    model_key *k = entry(key);
    if (what < 6) {
        uint64_t pins = k->pins < 200 ? hotbed_test_below(2) : 0;
        for (uint32_t w = 0; w < WIDTHS; w++) {
            hotbed_index_result r = claim(&tables[w], key, HOTBED_SCORE_ASSIGN, clock, pins);
            if (w == 0)
                model_claim(&r, key, clock, pins);
            else
                CHECK_EQ(r.slot, tables[0].result.slot);
            CHECK_EQ(r.outcome, tables[0].result.outcome);
        }
    } else if (what < 8) {
        bool erasable = k->there && k->pins == 0;
        for (uint32_t w = 0; w < WIDTHS; w++)
            CHECK_EQ(erase(&tables[w], key), erasable);
        k->there = k->there && !erasable;
    } else if (k->there && k->pins != 0) {
        for (uint32_t w = 0; w < WIDTHS; w++)
            hotbed_index_unpin(tables[w].view, k->slot, tables[w].range.evicts != 0);
        k->pins--;
    } else {
        for (uint32_t w = 0; w < WIDTHS; w++)
            CHECK_EQ(find(&tables[w], key), k->there ? k->slot : HOTBED_SLOT_NONE);
    }
}

static void compare_widths(void) {
    for (uint32_t w = 1; w < WIDTHS; w++) {
        CHECK_BYTES(tables[w].keys, tables[0].keys, sizeof tables[0].keys);
        CHECK_BYTES(tables[w].metas, tables[0].metas, sizeof tables[0].metas);
    }
}

/* Run random operations on a table.  The tables of all widths are compared with each other, but only one with the
 * model, because each call of a wide tile switches between 32 stacks.  `number`: the segment that the range is; 0:
 * none. */
static void trace_in(hotbed_index_range range, uint32_t number, uint32_t keys, uint32_t steps) {
    static hotbed_index_segment segments[WIDTHS][4];
    make_keys(range, keys);
    for (uint32_t w = 0; w < WIDTHS; w++) {
        clear(&tables[w], range, widths[w]);
        if (number != 0)
            use_segment(&tables[w], segments[w], number);
    }
    for (uint32_t i = 1; i <= steps; i++) {
        step_all(1 + i / 16); /* 16 operations have equal scores, like the keys of a batch */
        if (i % 50 == 0)
            compare_widths();
        if (i % 100 == 0)
            check_table(&tables[0]);
    }
    compare_widths();
    check_table(&tables[2]);
    for (uint32_t w = 0; w < WIDTHS; w++)
        find_some(&tables[w]);
}

static void trace(hotbed_index_range range, uint32_t keys, uint32_t steps) {
    trace_in(range, 0, keys, steps);
}

static void a_table_that_refuses_is_the_same_at_every_width(hotbed_backend backend) {
    trace((hotbed_index_range){.buckets = 2, .choices = 1}, 50, 300);
    trace((hotbed_index_range){.buckets = 3, .choices = 2}, 70, 300);
    trace((hotbed_index_range){.buckets = 5, .choices = 4}, 120, 500);
    trace((hotbed_index_range){.buckets = MAX_BUCKETS, .choices = 20}, 700, 900);
    trace((hotbed_index_range){.buckets = 24, .choices = 20, .region_bits = 2}, 370, 400);
}

static void a_table_that_evicts_is_the_same_at_every_width(hotbed_backend backend) {
    trace((hotbed_index_range){.buckets = 2, .choices = 1, .evicts = 1}, 80, 300);
    trace((hotbed_index_range){.buckets = 5, .choices = 4, .evicts = 1}, 200, 500);
    trace((hotbed_index_range){.buckets = 11, .choices = 2, .evicts = 1}, 400, 600);
    trace(
        (hotbed_index_range){.buckets = 17, .choices = 4, .evicts = 1, .region_bits = 3}, 500, 400);
}

/* The words of the table are not in the index but in memory of their own, like a lower tier's in host memory. */
static void a_table_in_separate_memory_is_the_same_at_every_width(hotbed_backend backend) {
    trace_in((hotbed_index_range){.buckets = 5, .choices = 4}, 3, 120, 300);
    trace_in((hotbed_index_range){.buckets = 5, .choices = 4, .evicts = 1}, 2, 200, 300);
    for (uint32_t i = 0; i < num_keys; i++)
        CHECK(!model[i].there || model[i].slot >> HOTBED_SEGMENT_SHIFT == 2);
}

/* Calls on one table leave the slots of the other tables of the index unchanged. */
static void tables_of_one_index_do_not_touch_each_other(hotbed_backend backend) {
    static table t;
    const hotbed_index_range range = {.first_bucket = 7, .buckets = 6, .choices = 4};
    make_keys(range, 300);
    clear(&t, range, 8);
    const uint64_t from = 7 * HOTBED_BUCKET_SLOTS, to = 13 * HOTBED_BUCKET_SLOTS;
    for (uint64_t s = 0; s < MAX_SLOTS; s++)
        if (s < from || s >= to)
            t.keys[s] = t.metas[s] = 0x1234;
    for (uint32_t i = 0; i < 200; i++) {
        hotbed_index_result r = claim(&t, model[i].key, HOTBED_SCORE_ASSIGN, 1, 0);
        CHECK(r.slot == HOTBED_SLOT_NONE || (r.slot >= from && r.slot < to));
        if (i % 3 == 0)
            (void)erase(&t, model[i / 2].key);
    }
    for (uint64_t s = 0; s < MAX_SLOTS; s++)
        if (s < from || s >= to)
            CHECK(t.keys[s] == 0x1234 && t.metas[s] == 0x1234);
}

/* The lanes of a tile search in several tables, with short and with long probe sequences. */
static void lanes_search_in_tables_of_their_own(hotbed_backend backend) {
    static const hotbed_index_range ranges[] = {
        {.buckets = 10, .choices = 9},
        {.first_bucket = 10, .buckets = 12, .choices = 4, .evicts = 1, .region_bits = 1},
        {.first_bucket = 22, .buckets = 8, .choices = 4},
        {.first_bucket = 30, .buckets = 2, .choices = 1, .evicts = 1}};
    enum { TABLES = sizeof ranges / sizeof ranges[0] };
    uint32_t far[TABLES] = {0};
    for (uint32_t w = 0; w < WIDTHS; w++) {
        table *t = &tables[w];
        make_keys(ranges[0], 240);
        clear(t, ranges[0], widths[w]);
        for (uint32_t r = 0; r < TABLES; r++) {
            for (uint32_t b = 0; b < ranges[r].buckets; b++)
                for (uint32_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
                    t->keys[hotbed_index_slot(ranges[r], b) + s] =
                        hotbed_index_marker(ranges[r], b, false);
            for (uint32_t i = 0; i < num_keys; i++) { /* the tables are full */
                hotbed_index_result claimed =
                    index_claim(t->view, ranges[r], model[i].key, HOTBED_SCORE_ASSIGN, i, 0, 1);
                uint64_t slot = claimed.slot;
                if (slot != HOTBED_SLOT_NONE)
                    hotbed_index_publish(t->view, slot, model[i].key);
                hotbed_candidates c = hotbed_index_candidates(ranges[r], model[i].key);
                uint64_t bucket = slot / HOTBED_BUCKET_SLOTS - ranges[r].first_bucket;
                far[r] += slot != HOTBED_SLOT_NONE && bucket != c.first && bucket != c.second;
            }
        }
        for (uint32_t i = 0; i < 2 * MAX_WIDTH; i += t->width) {
            for (uint32_t lane = 0; lane < t->width; lane++) {
                t->ranges[lane] = ranges[hotbed_test_below(TABLES)];
                t->sought[lane] = model[hotbed_test_below(num_keys)].key;
            }
            find_each(t);
        }
    }
    CHECK(far[0] + far[2] > 0 && far[1] > 0);
}

/* A random key whose candidate number `choice` is `bucket`. */
static uint64_t key_of_candidate(hotbed_index_range range, uint32_t choice, uint64_t bucket) {
    for (;;) {
        uint64_t key = hotbed_test_random();
        if (hotbed_index_candidate(range, hotbed_index_candidates(range, key), choice) == bucket)
            return key;
    }
}

/* All buckets but one are full. A key in that bucket is found, whichever of its candidates the bucket is. */
static void a_key_is_found_in_a_bucket_that_was_never_full(hotbed_backend backend) {
    enum { OPEN = 17 };
    const hotbed_index_range range = {.buckets = MAX_BUCKETS, .choices = MAX_BUCKETS - 4};
    const uint64_t empty = hotbed_index_marker(range, OPEN, false);
    table *t = &tables[0];
    clear(t, range, 1);
    for (uint32_t full = 0; full < (MAX_BUCKETS - 1) * HOTBED_BUCKET_SLOTS;) {
        uint64_t slot = claim(t, hotbed_test_random(), HOTBED_SCORE_ASSIGN, 1, 0).slot;
        full += slot != HOTBED_SLOT_NONE && slot / HOTBED_BUCKET_SLOTS != OPEN;
        if (slot / HOTBED_BUCKET_SLOTS != OPEN)
            continue;
        t->keys[slot] = empty; /* as before the claim */
        t->metas[slot] = 0;
    }
    for (uint32_t choice = 0; choice < range.choices; choice++) {
        const uint64_t key = key_of_candidate(range, choice, OPEN);
        t->width = 1;
        const uint64_t slot = claim(t, key, HOTBED_SCORE_ASSIGN, 1, 0).slot;
        CHECK_EQ(slot / HOTBED_BUCKET_SLOTS, OPEN);
        for (uint32_t w = 0; w < WIDTHS; w++) {
            t->width = widths[w];
            CHECK_EQ(find(t, key), slot);
            for (uint32_t lane = 0; lane < t->width; lane++) {
                t->ranges[lane] = range;
                t->sought[lane] = key;
            }
            find_each(t);
        }
        t->keys[slot] = empty;
        t->metas[slot] = 0;
    }
}

/* A full table has keys at every candidate number; then keys are erased. A search that skips a candidate, or that
 * ends at an erased slot, misses keys. */
static void keys_are_found_at_every_candidate(hotbed_backend backend) {
    enum { FULL = 800 };
    const uint32_t passes = hotbed_test_is_small() ? 1 : 3;
    const hotbed_index_range range = {.buckets = MAX_BUCKETS, .choices = MAX_BUCKETS - 4};
    table *first = &tables[0];
    make_keys(range, FULL + range.choices);
    clear(first, range, widths[0]);
    for (uint32_t i = 0; i < FULL; i++) {
        hotbed_index_result r = claim(first, model[i].key, HOTBED_SCORE_ASSIGN, 1, 0);
        model_claim(&r, model[i].key, 1, 0);
    }
    for (uint32_t choice = 0; choice < range.choices; choice++) {
        model_key *erased = &model[hotbed_test_below(FULL)], *placed = &model[FULL + choice];
        while (!erased->there)
            erased = &model[hotbed_test_below(FULL)];
        placed->key = key_of_candidate(range, choice, erased->slot / HOTBED_BUCKET_SLOTS);
        CHECK(erase(first, erased->key));
        erased->there = false;
        hotbed_index_result r = claim(first, placed->key, HOTBED_SCORE_ASSIGN, 1, 0);
        model_claim(&r, placed->key, 1, 0);
        CHECK_EQ(r.slot, erased->slot); /* no other slot is free */
    }
    for (uint32_t i = 0; i < FULL; i++) {
        if (!model[i].there || hotbed_test_below(4) != 0)
            continue;
        CHECK(erase(first, model[i].key));
        model[i].there = false;
    }
    for (uint32_t w = 0; w < WIDTHS; w++) {
        table *t = &tables[w];
        if (w > 0)
            *t = *first;
        t->view.keys = t->keys;
        t->view.metas = t->metas;
        t->width = widths[w];
        check_table(t);
        for (uint32_t i = 0; i < passes * num_keys; i += t->width) {
            for (uint32_t lane = 0; lane < t->width; lane++) {
                t->ranges[lane] = range;
                t->sought[lane] = model[(i + lane) % num_keys].key;
            }
            find_each(t);
        }
    }
}

/* Rules keep, assign and add; scores saturate at 52 bits. */
static void scores_follow_their_rule(hotbed_backend backend) {
    static table t;
    const hotbed_index_range range = {.buckets = 4, .choices = 3};
    make_keys(range, 10);
    for (uint32_t w = 0; w < WIDTHS; w++) {
        clear(&t, range, widths[w]);
        uint64_t slot = claim(&t, 5, HOTBED_SCORE_KEEP, 10, 1).slot;
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), 10);
        (void)claim(&t, 5, HOTBED_SCORE_KEEP, 99, 1);
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), 10);
        (void)claim(&t, 5, HOTBED_SCORE_ADD, 7, 1);
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), 17);
        (void)claim(&t, 5, HOTBED_SCORE_ASSIGN, 3, 1);
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), 3);
        (void)claim(&t, 5, HOTBED_SCORE_ASSIGN, UINT64_MAX, 0);
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), HOTBED_SCORE_MOST);
        (void)claim(&t, 5, HOTBED_SCORE_ADD, 7, 0);
        CHECK_EQ(hotbed_meta_score(t.metas[slot]), HOTBED_SCORE_MOST);
        CHECK_EQ(t.metas[slot] & HOTBED_META_PINS, 4);
    }
}

/* Keys far along their probe sequences are found at every width. */
static void keys_are_found_along_steps_of_their_own(hotbed_backend backend) {
    enum { CAPACITY = 6000 };
    const hotbed_index_range range = hotbed_index_range_make(CAPACITY, false, 0);
    const uint64_t slots = hotbed_index_range_slots(range);
    uint64_t *words = aligned_alloc(128, 2 * slots * sizeof *words);
    uint32_t far = 0, sought = 0;
    CHECK(hotbed_index_steps_differ(range) && words != NULL);
    memset(words, 0, 2 * slots * sizeof *words);
    table *t = &tables[0];
    memset(t, 0, sizeof *t);
    t->view = (hotbed_index_view){words, words + slots, NULL};
    t->range = range;
    hotbed_index_start(t->view, range);
    for (uint64_t key = 0; far < 40; key++) { /* beyond the capacity, for long probe sequences */
        const hotbed_index_result r =
            hotbed_index_place(t->view, range, key, hotbed_meta_new(1, 0), 1);
        if (r.slot == HOTBED_SLOT_NONE)
            break;
        hotbed_index_publish(t->view, r.slot, key);
        const hotbed_candidates c = hotbed_index_candidates(range, key);
        const uint32_t bucket = (uint32_t)(r.slot / HOTBED_BUCKET_SLOTS);
        if (bucket == c.first || bucket == c.second)
            continue;
        far++;
        for (uint32_t w = 0; w < WIDTHS; w++) {
            t->width = widths[w];
            CHECK_EQ(find(t, key), r.slot);
            for (uint32_t lane = 0; lane < t->width; lane++) {
                t->ranges[lane] = range;
                t->sought[lane] = key - lane;
            }
            find_each(t);
            sought++;
        }
    }
    CHECK(sought == 40 * WIDTHS);
    free(words);
}

/* In a range with times, the key with the lowest score is evicted; among equal scores the lowest time, then the
 * lowest slot. */
static void times_decide_between_equal_scores(hotbed_backend backend) {
    static uint64_t times[MAX_SLOTS];
    for (int round = 0; round < 60; round++) {
        const hotbed_index_range plain = hotbed_index_range_make(40, true, 0);
        hotbed_index_range range = plain;
        uint64_t newcomer = hotbed_test_random(), expected = HOTBED_SLOT_NONE;
        range.times = times;
        clear(&tables[0], range, 1);
        table *first = &tables[0];
        for (uint64_t i = 0; i < hotbed_index_range_slots(range); i++) {
            first->keys[i] = hotbed_test_random();
            first->metas[i] = hotbed_meta_new(hotbed_test_below(3), 0) - HOTBED_META_LOCKED;
            times[i] = hotbed_test_below(5);
        }
        for (uint32_t b = 0; b < range.buckets; b++) {
            if (!index_may_hold(range, newcomer, b))
                continue;
            for (uint64_t i = hotbed_index_slot(range, b), n = 0; n < HOTBED_BUCKET_SLOTS;
                 i++, n++) {
                uint64_t best = expected == HOTBED_SLOT_NONE ? i : expected;
                bool lower = first->metas[i] != first->metas[best]
                                 ? first->metas[i] < first->metas[best]
                                 : times[i] < times[best] || (times[i] == times[best] && i < best);
                if (expected == HOTBED_SLOT_NONE || lower)
                    expected = i;
            }
        }
        for (int w = WIDTHS - 1; w >= 0; w--) {
            table *t = &tables[w];
            if (w > 0)
                *t = *first;
            t->view.keys = t->keys;
            t->view.metas = t->metas;
            t->width = widths[w];
            CHECK_EQ(claim(t, newcomer, HOTBED_SCORE_ASSIGN, 1, 0).slot, expected);
            CHECK_EQ(t->result.outcome, HOTBED_INDEX_EVICTED);
        }
    }
}

/* Equal words, and words that differ in one half, at every position of a line, aligned or not. */
static void a_bucket_is_matched_word_by_word(hotbed_backend backend) {
    const uint64_t word = 0x123456789abcdef0U;
    const uint64_t others[] = {0,          ~word,     word ^ 1, word ^ ((uint64_t)1 << 32),
                               word << 32, UINT64_MAX};
    uint64_t lines[HOTBED_BUCKET_SLOTS + 1] __attribute__((aligned(128)));
    for (uint32_t shift = 0; shift < 2; shift++) {
        uint64_t *line = lines + shift;
        for (uint32_t bits = 0; bits < 1U << HOTBED_BUCKET_SLOTS; bits += 7) {
            for (uint32_t i = 0; i < HOTBED_BUCKET_SLOTS; i++)
                line[i] = (bits >> i & 1U) != 0 ? word : others[(bits + i) % 6];
            CHECK_EQ(hotbed_match16(line, word), bits);
        }
    }
}

/* --- growth ---------------------------------------------------------------------------------- */

enum { PARTS = 3, PART_KEYS = 60, PARTS_RUN = 400 };

/* Two segments of a table.  Their slots are in the table's arrays, behind the first range.  With `apart` the first
 * range is a segment, too, and theirs have the following numbers. */
static hotbed_index_segment segments[WIDTHS][PARTS + 2];

static void clear_parts(uint32_t w, bool evicts, bool apart) {
    table *t = &tables[w];
    clear(t, hotbed_index_range_make(PART_KEYS, evicts, 0), widths[w]);
    uint64_t slots = hotbed_index_range_slots(t->range);
    CHECK(PARTS * slots <= MAX_SLOTS);
    memset(segments[w], 0, sizeof segments[w]);
    t->view.segments = segments[w];
    if (apart)
        use_segment(t, segments[w], 1);
    t->range.segment = apart ? 2 : 1;
}

/* Grow the table by a segment, its part number `part`. */
static void grow(uint32_t w, uint32_t part) {
    table *t = &tables[w];
    uint64_t slots = hotbed_index_range_slots(t->range);
    hotbed_index_segment *segment = &segments[w][t->range.segment + part - 1];
    segment->range = t->range;
    segment->range.segment = 0;
    segment->range.first_bucket = 0;
    segment->keys = t->keys + part * slots;
    segment->metas = t->metas + part * slots;
    for (uint64_t s = 0; s < slots; s++)
        segment->keys[s] =
            hotbed_index_marker(segment->range, (uint32_t)(s / HOTBED_BUCKET_SLOTS), false);
}

/* The part that a slot is in. */
static uint64_t part_of(bool apart, uint64_t slot) {
    return (slot >> HOTBED_SEGMENT_SHIFT) - (apart ? 1 : 0);
}

/* New keys go to the newest part; older ones keep their slots; keys are found, erased and evicted in all parts. */
static void run_parts(
    uint32_t w, bool evicts, bool apart, hotbed_index_result *results, uint64_t *slots) {
    table *t = &tables[w];
    uint32_t n = 0, parts[PARTS] = {0};
    clear_parts(w, evicts, apart);
    for (uint32_t part = 0; part < PARTS; part++) {
        if (part > 0)
            grow(w, part);
        for (uint32_t i = 0; i < PART_KEYS; i++, n++)
            results[n] = claim(t, model[n].key, HOTBED_SCORE_ASSIGN, n + 1, 0);
        CHECK_EQ(part_of(apart, results[n - 1].slot), part);
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(results[i].outcome, HOTBED_INDEX_INSERTED);
        CHECK_EQ(find(t, model[i].key), results[i].slot);
        parts[part_of(apart, results[i].slot)]++;
    }
    for (uint32_t part = 0; part < PARTS; part++)
        CHECK_EQ(parts[part], PART_KEYS);
    for (uint32_t i = 0; i < n; i += 7)
        CHECK(erase(t, model[i].key));
    for (uint32_t i = 0; i < n; i++)
        CHECK((find(t, model[i].key) == HOTBED_SLOT_NONE) == (i % 7 == 0));
    for (; n < PARTS_RUN; n++)
        results[n] = claim(t, model[n].key, HOTBED_SCORE_ASSIGN, n + 1, 0);
    memset(parts, 0, sizeof parts);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = find(t, model[i].key);
        if (slots[i] != HOTBED_SLOT_NONE)
            parts[part_of(apart, slots[i])]++;
        if (i >= PARTS * PART_KEYS)
            CHECK_EQ(results[i].slot == HOTBED_SLOT_NONE, results[i].outcome == HOTBED_INDEX_FULL);
    }
    for (uint32_t part = 0; part < PARTS; part++)
        CHECK(parts[part] >= PART_KEYS * 9 / 10);
    find_some(t);
    /* Keys were evicted from all parts, or none was evicted. */
    memset(parts, 0, sizeof parts);
    for (uint32_t i = 0; i < n; i++) {
        if (results[i].outcome == HOTBED_INDEX_EVICTED)
            parts[part_of(apart, results[i].slot)]++;
        if (!evicts && i < PARTS * PART_KEYS)
            CHECK((slots[i] == HOTBED_SLOT_NONE) == (i % 7 == 0));
    }
    for (uint32_t part = 0; part < PARTS; part++)
        CHECK((parts[part] > 0) == evicts);
    CHECK_EQ(results[n - 1].outcome, evicts ? HOTBED_INDEX_EVICTED : HOTBED_INDEX_FULL);
}

static void tables_that_grow_are_the_same_at_every_width(hotbed_backend backend) {
    static hotbed_index_result first[MAX_KEYS], other[MAX_KEYS];
    static uint64_t slots[MAX_KEYS], other_slots[MAX_KEYS];
    for (int way = 0; way < 3; way++) {
        bool evicts = way > 0, apart = way == 2;
        make_keys(hotbed_index_range_make(PART_KEYS, evicts, 0), MAX_KEYS);
        memset(first, 0, sizeof first);
        run_parts(0, evicts, apart, first, slots);
        for (uint32_t w = 1; w < WIDTHS; w++) {
            memset(other, 0, sizeof other);
            run_parts(w, evicts, apart, other, other_slots);
            for (uint32_t i = 0; i < PARTS_RUN; i++) {
                CHECK_EQ(other[i].slot, first[i].slot);
                CHECK_EQ(other[i].outcome, first[i].outcome);
                CHECK_EQ(other[i].evicted_key, first[i].evicted_key);
                CHECK_EQ(other_slots[i], slots[i]);
            }
        }
    }
}

/* Keys that the lanes of a tile place at the same time, and the results. */
static struct {
    uint64_t keys[MAX_WIDTH];
    hotbed_index_range ranges[MAX_WIDTH];
    uint64_t score;
    hotbed_index_result results[MAX_WIDTH];
} placing;

static void place_lane(void *argument) {
    table *t = argument;
    const uint32_t lane = hotbed_emulate_lane();
    const bool wants = (t->wanted >> lane & 1U) != 0;
    placing.results[lane] = hotbed_index_place_each(
        t->view, placing.ranges[lane], placing.keys[lane], hotbed_meta_new(placing.score, 0), wants,
        true, t->width);
    hotbed_tile_sync(t->width);
    if (wants && placing.results[lane].slot != HOTBED_SLOT_NONE)
        hotbed_index_publish_held(t->view, placing.results[lane].slot, placing.keys[lane]);
}

/* Check the result of lane `lane`, and make it in the model. Its key is number n of the model. A lane whose range
 * has no segments places its key in the first part. Returns whether a key was evicted. */
static bool check_placed(uint32_t lane, uint32_t n, bool evicts, bool apart, uint32_t *refused) {
    const hotbed_index_result *r = &placing.results[lane];
    if (r->slot == HOTBED_SLOT_NONE) {
        CHECK_EQ(r->outcome, HOTBED_INDEX_FULL);
        CHECK(!evicts);
        ++*refused;
        return false;
    }
    if (placing.ranges[lane].segment == 0)
        CHECK_EQ(part_of(apart, r->slot), 0);
    CHECK(r->outcome == HOTBED_INDEX_INSERTED || r->outcome == HOTBED_INDEX_EVICTED);
    if (r->outcome == HOTBED_INDEX_EVICTED) {
        model_key *old = entry(r->evicted_key);
        CHECK(evicts && old->there);
        CHECK_EQ(old->slot, r->slot);
        CHECK_EQ(old->score, hotbed_meta_score(r->evicted_meta));
        old->there = false;
    }
    for (uint32_t i = 0; i < num_keys; i++)
        CHECK(!model[i].there || model[i].slot != r->slot);
    model[n] = (model_key){placing.keys[lane], r->slot, placing.score, 0, true};
    return r->outcome == HOTBED_INDEX_EVICTED;
}

/* The lanes of a tile place a key each: most in a table with segments, some in a table without. */
static void lanes_place_in_all_parts(hotbed_backend backend) {
    for (uint32_t w = 1; w < WIDTHS; w++) {
        for (int way = 0; way < 4; way++) {
            const bool evicts = way % 2 != 0, apart = way / 2 != 0;
            table *t = &tables[w];
            uint32_t evictions[PARTS] = {0}, parts[PARTS] = {0}, refused = 0;
            make_keys(hotbed_index_range_make(PART_KEYS, evicts, 0), MAX_KEYS);
            clear_parts(w, evicts, apart);
            for (uint32_t part = 1; part < PARTS; part++)
                grow(w, part);
            for (uint32_t n = 0; n < PARTS_RUN;) {
                const uint32_t first = n;
                t->wanted = 0;
                placing.score = n + 1;
                for (uint32_t lane = 0; lane < t->width; lane++) {
                    placing.ranges[lane] = t->range;
                    if (hotbed_test_below(8) == 0)
                        placing.ranges[lane].segment = 0;
                    if (hotbed_test_below(4) != 0 && n < PARTS_RUN) {
                        placing.keys[lane] = model[n++].key;
                        t->wanted |= 1U << lane;
                    }
                }
                hotbed_emulate_run(t->width, place_lane, t);
                n = first;
                for (uint32_t lane = 0; lane < t->width; lane++) {
                    if ((t->wanted >> lane & 1U) == 0)
                        CHECK_EQ(placing.results[lane].slot, HOTBED_SLOT_NONE);
                    else if (check_placed(lane, n++, evicts, apart, &refused))
                        evictions[part_of(apart, placing.results[lane].slot)]++;
                }
                if (first < PART_KEYS / 2 && n >= PART_KEYS / 2) /* the newest part comes first */
                    for (uint32_t i = 0; i < n; i++)
                        CHECK(part_of(apart, model[i].slot) % (PARTS - 1) == 0);
            }
            for (uint32_t i = 0; i < PARTS_RUN; i++) {
                CHECK_EQ(find(t, model[i].key), model[i].there ? model[i].slot : HOTBED_SLOT_NONE);
                if (model[i].there)
                    parts[part_of(apart, model[i].slot)]++;
            }
            for (uint32_t part = 0; part < PARTS; part++) {
                CHECK(parts[part] >= PART_KEYS);
                CHECK((evictions[part] > 0) == evicts);
            }
            CHECK((refused > 0) == !evicts);
        }
    }
}

/* --- two tiles on one table ------------------------------------------------------------------ */

enum { TWO_KEYS = 20 }; /* keys of a test with two tiles */

/* Two tiles on one table: the lanes below the width run `first`, the others `second`. */
typedef struct two_tiles {
    table *t;
    uint64_t keys[TWO_KEYS + 1], slots[TWO_KEYS + 1];
    void (*first)(struct two_tiles *b, uint32_t width);
    void (*second)(struct two_tiles *b, uint32_t width);
    bool over;
} two_tiles;

static void two_tiles_lane(void *argument) {
    two_tiles *b = argument;
    (hotbed_emulate_lane() < b->t->width ? b->first : b->second)(b, b->t->width);
}

static void run_two_tiles(two_tiles *b) {
    uint64_t random = hotbed_test_random();
    hotbed_emulate_interleaved(2 * b->t->width, b->t->width, two_tiles_lane, b, &random);
}

static void claim_one(two_tiles *b, uint32_t n, uint32_t width) {
    hotbed_index_result r =
        index_claim(b->t->view, b->t->range, b->keys[n], HOTBED_SCORE_ASSIGN, 2, 1, width);
    CHECK(r.slot != HOTBED_SLOT_NONE);
    if (hotbed_tile_rank(width) != 0)
        return;
    if (r.outcome != HOTBED_INDEX_FOUND)
        hotbed_index_publish(b->t->view, r.slot, b->keys[n]);
    b->slots[n] = r.slot;
}

/* Claim the key that is the next to be evicted. */
static void claim_present(two_tiles *b, uint32_t width) {
    claim_one(b, 0, width);
}

static void claim_new(two_tiles *b, uint32_t width) {
    for (uint32_t n = 1; n < HOTBED_BUCKET_SLOTS; n++)
        claim_one(b, n, width);
}

/* One tile claims a key of the table while the other claims new keys, which may evict it.  Each key ends up in a slot
 * of its own, with one pin. */
static void a_key_is_claimed_beside_evictions(hotbed_backend backend) {
    for (uint32_t round = 0; round < 60; round++) {
        table *t = &tables[round % 2 == 0 ? 0 : 1];
        two_tiles b = {.t = t, .first = claim_new, .second = claim_present};
        clear(
            t, (hotbed_index_range){.buckets = 2, .choices = 1, .evicts = 1},
            round % 2 == 0 ? 1 : 8);
        uint32_t n = 0, more = 1;
        for (uint64_t key = 1; more < HOTBED_BUCKET_SLOTS; key++) {
            if (hotbed_index_candidates(t->range, key).first != 0)
                continue;
            if (n == HOTBED_BUCKET_SLOTS) { /* the bucket is full */
                b.keys[more++] = key;
                continue;
            }
            hotbed_index_result r =
                hotbed_index_place(t->view, t->range, key, hotbed_meta_new(1, 0), 1);
            hotbed_index_publish(t->view, r.slot, key);
            if (r.slot == 0)
                b.keys[0] =
                    key; /* scores are equal, so the key of the lowest slot is evicted first */
            n++;
        }
        run_two_tiles(&b);
        for (n = 0; n < HOTBED_BUCKET_SLOTS; n++) {
            CHECK_EQ(hotbed_index_find(t->view, t->range, b.keys[n], 1), b.slots[n]);
            CHECK_EQ(t->metas[b.slots[n]] & (HOTBED_META_PINS | HOTBED_META_LOCKED), 1);
        }
    }
}

static void erase_all(two_tiles *b, uint32_t width) {
    for (uint32_t n = 0; n < TWO_KEYS; n++)
        CHECK(hotbed_index_erase(b->t->view, b->t->range, b->keys[n], width));
    if (hotbed_tile_rank(width) == 0)
        b->over = true;
}

/* While keys are erased: a slot whose meta is 0 must no longer have its key. */
static void look_at_free(two_tiles *b, uint32_t width) {
    while (!b->over)
        for (uint32_t n = 0; n < TWO_KEYS; n++)
            if (hotbed_load_acquire_u64(&b->t->metas[b->slots[n]]) == 0)
                CHECK(hotbed_load_acquire_u64(&b->t->keys[b->slots[n]]) != b->keys[n]);
}

static void a_slot_is_freed_after_its_key_is_gone(hotbed_backend backend) {
    for (uint32_t round = 0; round < 200; round++) {
        table *t = &tables[0];
        two_tiles b = {.t = t, .first = erase_all, .second = look_at_free};
        clear(t, (hotbed_index_range){.buckets = 4, .choices = 3}, round % 2 == 0 ? 1 : 8);
        for (uint32_t n = 0; n < TWO_KEYS; n++) {
            b.keys[n] = hotbed_test_random();
            hotbed_index_result r =
                hotbed_index_place(t->view, t->range, b.keys[n], hotbed_meta_new(1, 0), 1);
            hotbed_index_publish(t->view, r.slot, b.keys[n]);
            b.slots[n] = r.slot;
        }
        run_two_tiles(&b);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_key_is_claimed_beside_evictions)},
    {TEST(a_slot_is_freed_after_its_key_is_gone)},
    {TEST(a_bucket_is_matched_word_by_word)},
    {TEST(a_table_that_refuses_is_the_same_at_every_width)},
    {TEST(a_table_that_evicts_is_the_same_at_every_width)},
    {TEST(a_table_in_separate_memory_is_the_same_at_every_width)},
    {TEST(tables_of_one_index_do_not_touch_each_other)},
    {TEST(lanes_search_in_tables_of_their_own)},
    {TEST(a_key_is_found_in_a_bucket_that_was_never_full)},
    {TEST(keys_are_found_at_every_candidate)},
    {TEST(times_decide_between_equal_scores)},
    {TEST(scores_follow_their_rule)},
    {TEST(keys_are_found_along_steps_of_their_own)},
    {TEST(tables_that_grow_are_the_same_at_every_width)},
    {TEST(lanes_place_in_all_parts)},
    {NULL, NULL},
};
