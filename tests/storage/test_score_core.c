/* tests/storage/test_score_core.c - storage/step/score_core.h: admission at every tile width, and the clock of times.
 *
 * Admission by frequency is compared with exact counts of all keys; admission by chance, between tiles of 1, 4, 8 and
 * 32 emulated lanes.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/index/index_call_core.h"
#include "storage/index/index_range.h"
#include "storage/step/place_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { KEYS = 300, UNIQUES = 60, CAPACITY = 400, SLOTS = 1024, THRESHOLD = 4 };

/* A storage of one table, and the arrays of a prefetch. */
typedef struct work {
    hotbed_step_view s;
    hotbed_table_view table;
    hotbed_clock clock;
    hotbed_tally tally;
    hotbed_fault fault;
    uint64_t index_keys[SLOTS], index_metas[SLOTS];
    uint64_t unique_keys[UNIQUES], slots[UNIQUES], counts[UNIQUES];
    uint32_t unique_offsets[2], missing[UNIQUES], num_missing;
    float rows[SLOTS];
    uint32_t width;
} work;

static void clear(const work *w, hotbed_index_range range) {
    hotbed_index_args args;
    memset(&args, 0, sizeof args);
    args.index = w->s.storage.index;
    args.range = range;
    for (uint64_t i = 0; i < hotbed_index_range_slots(range); i++)
        hotbed_call_clear(&args, i);
}

static void start(work *w, uint32_t width, hotbed_admission admission) {
    memset(w, 0, sizeof *w);
    w->width = width;
    w->table.range = hotbed_index_range_make(CAPACITY, false, 0);
    w->table.counter = hotbed_index_range_make(CAPACITY, true, w->table.range.buckets);
    CHECK(
        hotbed_index_range_slots(w->table.range) + hotbed_index_range_slots(w->table.counter) <=
        SLOTS);
    w->table.rows = (uint8_t *)w->rows;
    w->table.row_bytes = sizeof(float);
    w->table.lower_first = UINT64_MAX;
    w->table.dim = 1;
    w->table.dtype = HOTBED_F32;
    w->table.score = HOTBED_SCORE_LFU;
    w->table.probation = 1;
    w->table.admission = (uint32_t)admission;
    w->table.admit = admission == HOTBED_ADMIT_FREQUENCY ? THRESHOLD : (uint64_t)1 << 31;
    w->s.storage.tables = &w->table;
    w->s.storage.index.keys = w->index_keys;
    w->s.storage.index.metas = w->index_metas;
    w->s.storage.index_slots = SLOTS;
    w->s.storage.clock = &w->clock;
    w->s.storage.tallies = &w->tally;
    w->s.unique.keys = w->unique_keys;
    w->s.unique.offsets = w->unique_offsets;
    w->s.unique.counts = w->counts;
    w->s.unique.slots = w->slots;
    w->s.unique.missing = w->missing;
    w->s.unique.num_missing = &w->num_missing;
    w->s.batch.faults = &w->fault;
    w->s.storage.num_tables = 1;
    clear(w, w->table.range);
    clear(w, w->table.counter);
}

HOTBED_HD void prefetch_of(work *w, uint32_t width) {
    for (uint32_t u = 0; u < w->unique_offsets[1]; u++) {
        uint64_t slot =
            hotbed_index_find(w->s.storage.index, w->table.range, w->unique_keys[u], width);
        if (hotbed_tile_rank(width) != 0)
            continue;
        w->slots[u] = slot;
        if (slot == HOTBED_SLOT_NONE)
            w->missing[w->num_missing++] = u;
    }
    hotbed_tile_sync(width);
    uint32_t n = w->num_missing;
    for (uint32_t i = 0; i < n; i++)
        hotbed_admit_missing(&w->s, i, width);
    hotbed_tile_sync(width); /* the end of a kernel */
    for (uint32_t i = 0; i < n; i++)
        hotbed_count_missing(&w->s, i, width);
    for (uint32_t i = 0; i < n; i++) {
        const hotbed_placed p = hotbed_place_uniques(&w->s, i, 1, width);
        hotbed_tally_places(&w->s, p.t, p.r, p.mine, width);
    }
}

/* In a kernel the width is a literal, so here, too. */
static void prefetch(void *argument) {
    work *w = argument;
    switch (w->width) {
    case 1:
        prefetch_of(w, 1);
        break;
    case 4:
        prefetch_of(w, 4);
        break;
    case 8:
        prefetch_of(w, 8);
        break;
    default:
        CHECK_EQ(w->width, 32);
        prefetch_of(w, 32);
        break;
    }
}

/* Make a batch of distinct keys with 1 to 3 occurrences each. */
static void fill(work *w, uint64_t *random) {
    bool used[KEYS] = {false};
    uint32_t n = 0;
    while (n < UNIQUES) {
        uint32_t key = (uint32_t)(hotbed_test_random_r(random) % KEYS);
        if (used[key])
            continue;
        used[key] = true;
        w->unique_keys[n] = (uint64_t)key * 0x23456789abcdefU;
        w->counts[n++] = 1 + hotbed_test_random_r(random) % 3;
    }
    w->unique_offsets[1] = n;
    w->num_missing = 0;
    w->clock.prefetches++;
}

static void counted(uint32_t width) {
    static work w;
    uint64_t counts[KEYS] = {0}, random = hotbed_test_seed(), rejected = 0, stored = 0;
    start(&w, width, HOTBED_ADMIT_FREQUENCY);
    for (int batch = 0; batch < 20; batch++) {
        fill(&w, &random);
        hotbed_emulate_run(width, prefetch, &w);
        for (uint32_t u = 0; u < UNIQUES; u++) {
            uint64_t *count = &counts[w.unique_keys[u] / 0x23456789abcdefU];
            uint64_t before = *count, now = w.counts[u];
            *count += now;
            uint64_t slot = w.slots[u];
            bool admitted = *count >= THRESHOLD;
            CHECK_EQ(slot != HOTBED_SLOT_NONE, admitted);
            rejected += !admitted;
            stored += admitted && before < THRESHOLD;
            uint64_t in_counter =
                hotbed_index_find(w.s.storage.index, w.table.counter, w.unique_keys[u], 1);
            CHECK_EQ(in_counter != HOTBED_SLOT_NONE, !admitted);
            if (!admitted)
                CHECK_EQ(hotbed_meta_score(w.index_metas[in_counter]), *count);
            else if (before < THRESHOLD) /* admitted by this batch: pinned, on probation */
                CHECK_EQ(
                    w.index_metas[slot], now << HOTBED_META_SCORE_SHIFT | HOTBED_META_OCCUPIED |
                                             HOTBED_META_PROBATION | HOTBED_META_PIN);
        }
    }
    CHECK_EQ(w.tally.rejected, rejected);
    CHECK_EQ(w.tally.inserts, stored);
    CHECK_EQ(w.fault.status, 0);
    CHECK(stored > 100);
}

static void counts_are_exact_at_every_width(hotbed_backend backend) {
    counted(1);
    counted(4);
    counted(8);
    counted(32);
}

static void admission_draws_are_the_same_at_every_width(hotbed_backend backend) {
    static work first, w;
    static const uint32_t widths[] = {1, 4, 8, 32};
    for (int i = 0; i < 4; i++) {
        uint64_t random = hotbed_test_seed();
        start(&w, widths[i], HOTBED_ADMIT_PROBABILISTIC);
        for (int batch = 0; batch < 5; batch++) {
            fill(&w, &random);
            hotbed_emulate_run(widths[i], prefetch, &w);
        }
        if (i == 0)
            first = w;
        CHECK_EQ(w.tally.inserts, first.tally.inserts);
        CHECK_EQ(w.tally.rejected, first.tally.rejected);
        CHECK_BYTES(w.index_keys, first.index_keys, sizeof w.index_keys);
        CHECK_BYTES(w.index_metas, first.index_metas, sizeof w.index_metas);
    }
    CHECK(w.tally.inserts > 50 && w.tally.rejected > 50);
}

/* If the machine's clock stands still or goes back, times increase by one. */
static void times_always_increase(hotbed_backend backend) {
    hotbed_timer timer = {0, 0, 0};
    static const uint64_t clocks[] = {5000, 5000, 5007, 4000, 4100, 4100};
    static const uint64_t times[] = {1, 2, 9, 10, 110, 111};
    for (int i = 0; i < 6; i++) {
        hotbed_timer_tick(&timer, clocks[i]);
        CHECK_EQ(timer.now, times[i]);
    }
    hotbed_timer_raise(&timer, 50);
    hotbed_timer_tick(&timer, 4200);
    CHECK_EQ(timer.now, 211);
    hotbed_timer_raise(&timer, 1000000);
    hotbed_timer_tick(&timer, 4300);
    CHECK_EQ(timer.now, 1000001);
    hotbed_timer_tick(&timer, 4350);
    CHECK_EQ(timer.now, 1000051);
    hotbed_timer_raise(&timer, UINT64_MAX);
    hotbed_timer_tick(&timer, 4400);
    CHECK_EQ(timer.now, HOTBED_SCORE_MOST);
    hotbed_timer_tick(&timer, 4500);
    CHECK_EQ(timer.now, HOTBED_SCORE_MOST);
}

const hotbed_test hotbed_tests[] = {
    {TEST(counts_are_exact_at_every_width)},
    {TEST(admission_draws_are_the_same_at_every_width)},
    {TEST(times_always_increase)},
    {NULL, NULL},
};
