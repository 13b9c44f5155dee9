/* tests/storage/test_expire_core.c - storage/rows/expire_core.h: a pass over slots at every tile width. */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/rows/expire_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { SLOTS = 320, KEYS = 250, FIRST = 300, WINDOW = 200, DIM = 9, CLOCK = 100, UNSEEN = 40 };

typedef struct work {
    hotbed_expire_args a;
    uint64_t keys[SLOTS], metas[SLOTS];
    float rows[SLOTS][DIM + 3];
    hotbed_clock clock;
    hotbed_tally tally;
    uint64_t at, i;
    uint32_t width;
} work;

static void one_slot(void *arg) {
    const work *w = arg;
    hotbed_expire_slot(&w->a, w->i, w->width);
}

static void prepare(work *w) {
    hotbed_table_view *table = &w->a.rows.table;
    w->a.rows.index.keys = w->keys;
    w->a.rows.index.metas = w->metas;
    w->a.rows.clock = &w->clock;
    w->a.rows.tally = &w->tally;
    w->a.at = &w->at;
    table->rows = (uint8_t *)w->rows;
    table->row_bytes = sizeof w->rows[0];
    table->slots = SLOTS;
    table->range.buckets = SLOTS / HOTBED_BUCKET_SLOTS;
    table->range.choices = 4;
    table->lower_first = UINT64_MAX;
    table->dim = DIM;
    table->dtype = HOTBED_F32;
    table->score = HOTBED_SCORE_STEP;
}

static void run(work *w, uint32_t width) {
    prepare(w);
    w->width = width;
    for (w->i = 0; w->i < WINDOW; w->i++)
        hotbed_emulate_run(width, one_slot, w);
    hotbed_expire_advance(&w->a);
}

static bool in_window(uint64_t slot) {
    return (slot + SLOTS - FIRST) % SLOTS < WINDOW;
}

static void a_pass_removes_the_same_keys_at_every_width(hotbed_backend backend) {
    static work start, w;
    uint64_t slots[KEYS], expected = 0;
    (void)backend;
    prepare(&start);
    start.at = FIRST;
    start.clock.prefetches = CLOCK;
    start.a.all = SLOTS;
    start.a.slots = WINDOW;
    start.a.unseen = UNSEEN;
    start.a.min_score = 5;
    start.a.min_norm = 1.25F;
    for (uint64_t k = 0; k < KEYS; k++) {
        const uint64_t key = hotbed_test_random(), score = 1 + hotbed_test_below(CLOCK);
        const uint64_t meta = hotbed_meta_new(score, k % 7 == 0 ? 1 : 0); /* some are pinned */
        slots[k] =
            hotbed_index_place(start.a.rows.index, start.a.rows.table.range, key, meta, 1).slot;
        CHECK(slots[k] < SLOTS);
        hotbed_index_publish(start.a.rows.index, slots[k], key);
        for (int e = 0; e < DIM; e++)
            start.rows[slots[k]][e] = 2.0F * hotbed_test_float() - 1.0F;
    }
    for (uint32_t width = 1; width <= 32; width *= 2) {
        w = start;
        run(&w, width);
        expected = 0;
        for (uint64_t k = 0; k < KEYS; k++) {
            const uint64_t slot = slots[k], score = hotbed_meta_score(start.metas[slot]);
            double sum = 0.0;
            for (int e = 0; e < DIM; e++)
                sum += (double)start.rows[slot][e] * (double)start.rows[slot][e];
            const bool old = CLOCK - score >= UNSEEN || score < 5;
            const bool gone = in_window(slot) && k % 7 != 0 && (old || sum < 1.25 * 1.25);
            CHECK(fabs(sum - 1.25 * 1.25) > 1e-5);
            CHECK_EQ(w.metas[slot] == 0, gone);
            expected += gone;
        }
        CHECK_EQ(w.tally.expired, expected);
        CHECK_EQ(w.at, (FIRST + WINDOW) % SLOTS);
    }
    CHECK(expected > KEYS / 4);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_pass_removes_the_same_keys_at_every_width)},
    {NULL, NULL},
};
