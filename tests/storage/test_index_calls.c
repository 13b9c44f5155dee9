/* tests/storage/test_index_calls.c - storage/index/index_call_core.h, the calls of hotbed/index.h, at every tile width.
 *
 * Random batches of find, insert, pin, evict and erase run with tiles of 1, 2, 4, 8 and 32 emulated lanes; results
 * and the whole index must have the same bytes at all widths.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_call_core.h"
#include "storage/index/index_range.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { TABLES = 3, SLOTS = 256, KEYS = 40, STEPS = 40 };

static const uint32_t widths[] = {1, 2, 4, 8, 32};

enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* An index at one tile width, and the arrays of the running call. */
typedef struct work {
    uint64_t words[2][SLOTS] __attribute__((aligned(128))); /* keys, metas */
    hotbed_index_range ranges[TABLES];
    uint64_t keys[KEYS], scores[KEYS], slots[KEYS];
    uint32_t tables[KEYS];
    uint8_t outcomes[KEYS];
    uint64_t evicted[3][KEYS], num_evicted;
    hotbed_fault fault;
    hotbed_index_args args;
    uint64_t item;
    uint32_t width;
    void (*call)(struct work *b);
} work;

static work works[WIDTHS];

static void start(work *b, uint32_t width) {
    memset(b, 0, sizeof *b);
    b->width = width;
    b->args.index.keys = b->words[0];
    b->args.index.metas = b->words[1];
    for (uint32_t t = 0; t < TABLES; t++) {
        b->ranges[t] =
            hotbed_index_range_make(50, t > 0, b->args.index_slots / HOTBED_BUCKET_SLOTS);
        b->args.index_slots += hotbed_index_range_slots(b->ranges[t]);
        b->args.range = b->ranges[t];
        for (uint64_t i = 0; i < hotbed_index_range_slots(b->ranges[t]); i++)
            hotbed_call_clear(&b->args, i);
    }
    CHECK(b->args.index_slots <= SLOTS);
    b->args.range = b->ranges[0];
    b->args.ranges = b->ranges;
    b->args.num_tables = TABLES;
    b->args.faults = &b->fault;
    b->args.keys = b->keys;
    b->args.tables = b->tables;
    b->args.scores = b->scores;
    b->args.slots = b->slots;
    b->args.outcomes = b->outcomes;
    b->args.evicted_keys = b->evicted[0];
    b->args.evicted_scores = b->evicted[1];
    b->args.evicted_slots = b->evicted[2];
    b->args.num_evicted = &b->num_evicted;
}

static void find(work *b) {
    hotbed_call_find(&b->args, b->item, b->width);
}

static void claim(work *b) {
    hotbed_call_claim(&b->args, b->item, b->width);
}

static void hold(work *b) {
    hotbed_call_hold(&b->args, b->item, b->width);
}

static void place(work *b) {
    hotbed_index_result r = hotbed_call_place(&b->args, b->item, b->width);
    if (r.outcome == HOTBED_INDEX_EVICTED)
        hotbed_call_evicted(&b->args, r, b->num_evicted++);
}

static void erase(work *b) {
    hotbed_call_erase(&b->args, b->item, b->width);
}

static void lane(void *argument) {
    work *b = argument;
    b->call(b);
}

/* Run the call for the keys of `together` lanes at a time, one tile after the other. */
static void run(work *b, void (*call)(work *b), uint32_t together) {
    const uint64_t n = b->args.n;
    b->call = call;
    for (b->item = 0; b->item < n; b->item += together) {
        b->args.n = b->item + together < n ? b->item + together : n;
        hotbed_emulate_run(b->width, lane, b);
    }
    b->args.n = n;
}

/* Some keys have the number of a table that does not exist. */
static void random_keys(work *b) {
    b->args.n = 1 + hotbed_test_below(KEYS);
    for (uint64_t i = 0; i < b->args.n; i++) {
        b->keys[i] = hotbed_hash_u64(KEYS * hotbed_test_below(20) + i);
        b->tables[i] = (uint32_t)hotbed_test_below(TABLES + (i % 16 == 0));
        b->scores[i] = hotbed_test_below(50);
    }
    b->args.rule = (hotbed_score_rule)hotbed_test_below(3);
    b->args.pins = hotbed_test_below(8) == 0;
}

static void step(work *b, uint64_t what) {
    b->num_evicted = 0;
    memset(&b->fault, 0, sizeof b->fault);
    if (what == 0)
        run(b, erase, 1);
    else if (what == 1)
        run(b, find, b->width);
    else if (what < 4) { /* without table numbers all keys are of table 0, which does not evict */
        b->args.tables = NULL;
        run(b, claim, 1);
        b->args.tables = b->tables;
    } else {
        run(b, hold, b->width);
        run(b, place, 1);
        for (uint64_t i = 0; b->args.pins == 0 && i < b->args.n; i++)
            hotbed_call_release(&b->args, i);
    }
}

static void calls_give_the_same_results_at_every_width(hotbed_backend backend) {
    for (uint32_t w = 0; w < WIDTHS; w++)
        start(&works[w], widths[w]);
    work *first = &works[0];
    uint64_t evictions = 0;
    for (int i = 0; i < STEPS; i++) {
        random_keys(first);
        uint64_t what = hotbed_test_below(12);
        for (uint32_t w = 0; w < WIDTHS; w++) {
            work *b = &works[w];
            memcpy(b->keys, first->keys, sizeof b->keys);
            memcpy(b->tables, first->tables, sizeof b->tables);
            memcpy(b->scores, first->scores, sizeof b->scores);
            b->args.n = first->args.n;
            b->args.rule = first->args.rule;
            b->args.pins = first->args.pins;
            step(b, what);
            CHECK_BYTES(b->words, first->words, sizeof b->words);
            CHECK_BYTES(b->slots, first->slots, sizeof b->slots);
            CHECK_BYTES(b->outcomes, first->outcomes, sizeof b->outcomes);
            CHECK_BYTES(b->evicted, first->evicted, sizeof b->evicted);
            CHECK_EQ(b->num_evicted, first->num_evicted);
            CHECK_BYTES(&b->fault, &first->fault, sizeof b->fault);
        }
        evictions += first->num_evicted;
    }
    CHECK(evictions > 0);
}

const hotbed_test hotbed_tests[] = {
    {TEST(calls_give_the_same_results_at_every_width)},
    {NULL, NULL},
};
