/* tests/storage/test_export_core.c - storage/rows/export_core.h: a window of slots, exported at every tile width.
 *
 * Keys, scores and rows must be the same, in the order of slots, with tiles of 1 lane and of more emulated lanes.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/rows/export_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { SLOTS = 640, FIRST = 37, WINDOW = 555, GROUPS = (WINDOW + 31) / 32, DIM = 5 };

typedef struct work {
    hotbed_export_args a;
    uint64_t index_keys[SLOTS], index_metas[SLOTS];
    float rows[SLOTS][DIM + 3];
    uint32_t bits[GROUPS], starts[GROUPS + 1];
    uint64_t keys[WINDOW], scores[WINDOW], count;
    float weights[WINDOW][DIM];
    uint64_t group, capacity;
    uint32_t width;
} work;

static void mark(void *arg) {
    const work *w = arg;
    hotbed_export_select(&w->a, w->group, w->width);
}

static void give(void *arg) {
    const work *w = arg;
    hotbed_export_write(&w->a, w->group, w->width);
}

static void run(work *w, uint32_t width) {
    w->width = width;
    w->a.index.keys = w->index_keys;
    w->a.index.metas = w->index_metas;
    w->a.table.rows = (uint8_t *)w->rows;
    w->a.table.row_bytes = sizeof w->rows[0];
    w->a.table.slots = SLOTS;
    w->a.table.range.buckets = SLOTS / HOTBED_BUCKET_SLOTS;
    w->a.table.lower_first = UINT64_MAX;
    w->a.table.dim = DIM;
    w->a.table.dtype = HOTBED_F32;
    w->a.rows.weights = (uint8_t *)w->weights;
    w->a.rows.scores = w->scores;
    w->a.keys = w->keys;
    w->a.count = &w->count;
    w->a.bits = w->bits;
    w->a.starts = w->starts;
    w->a.first = FIRST;
    w->a.slots = WINDOW;
    w->a.capacity = w->capacity;
    w->a.groups = GROUPS;
    w->a.min_score = 300;
    for (w->group = 0; w->group <= GROUPS; w->group++)
        hotbed_emulate_run(width, mark, w);
    uint32_t sum = 0;
    for (int g = 0; g <= GROUPS; g++) {
        uint32_t count = w->starts[g];
        w->starts[g] = sum;
        sum += count;
    }
    for (w->group = 0; w->group <= GROUPS; w->group++)
        hotbed_emulate_run(width, give, w);
}

static void exported_items_are_the_same_at_every_width(hotbed_backend backend) {
    static work w, one;
    for (int i = 0; i < SLOTS; i++) {
        uint64_t state = hotbed_test_below(4), score = hotbed_test_below(1000);
        w.index_keys[i] = hotbed_test_random();
        w.index_metas[i] = state == 0 ? 0 : hotbed_meta_new(score, 0);
        if (state > 1) /* otherwise the slot is locked: its key is being inserted */
            w.index_metas[i] -= HOTBED_META_LOCKED;
        for (int e = 0; e < DIM; e++)
            w.rows[i][e] = hotbed_test_float();
    }
    w.capacity = WINDOW;
    one = w;
    uint64_t n = 0;
    run(&one, 1);
    for (int i = FIRST; i < FIRST + WINDOW; i++) {
        uint64_t meta = w.index_metas[i];
        if (meta == 0 || (meta & HOTBED_META_LOCKED) != 0 || hotbed_meta_score(meta) < 300)
            continue;
        CHECK_EQ(one.keys[n], w.index_keys[i]);
        CHECK_EQ(one.scores[n], hotbed_meta_score(meta));
        CHECK_BYTES(one.weights[n], w.rows[i], sizeof one.weights[n]);
        n++;
    }
    CHECK_EQ(one.count, n);
    CHECK(n > WINDOW / 5);
    for (uint32_t width = 2; width <= 32; width *= 2) {
        static work other;
        other = w;
        run(&other, width);
        CHECK_EQ(other.count, n);
        CHECK_BYTES(other.keys, one.keys, sizeof one.keys);
        CHECK_BYTES(other.scores, one.scores, sizeof one.scores);
        CHECK_BYTES(other.weights, one.weights, sizeof one.weights);
        enum { MOST = 45 }; /* capacity of the arrays; ends in the middle of a group */
        other = w;
        other.capacity = MOST;
        run(&other, width);
        CHECK_EQ(other.count, n);
        CHECK_BYTES(other.keys, one.keys, MOST * sizeof one.keys[0]);
        CHECK_BYTES(other.weights, one.weights, MOST * sizeof one.weights[0]);
        CHECK_BYTES(other.keys + MOST, w.keys + MOST, (WINDOW - MOST) * sizeof w.keys[0]);
        CHECK_BYTES(other.scores + MOST, w.scores + MOST, (WINDOW - MOST) * sizeof w.scores[0]);
        CHECK_BYTES(other.weights + MOST, w.weights + MOST, (WINDOW - MOST) * sizeof w.weights[0]);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(exported_items_are_the_same_at_every_width)},
    {NULL, NULL},
};
