/* tests/storage/test_export_core.c - a window of slots at every tile width: the same items in one order. */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/export_core.h"
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
    uint64_t group, room;
    uint32_t width;
} work;

static void mark(void *arg) {
    const work *w = arg;
    hotbed_export_mark(&w->a, w->group, w->width);
}

static void give(void *arg) {
    const work *w = arg;
    hotbed_export_give(&w->a, w->group, w->width);
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
    w->a.room = w->room;
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

static void items_are_the_same_at_every_width(hotbed_backend backend) {
    static work w, one;
    (void)backend;
    for (int i = 0; i < SLOTS; i++) {
        uint64_t state = hotbed_test_below(4), score = hotbed_test_below(1000);
        w.index_keys[i] = hotbed_test_random();
        w.index_metas[i] = state == 0 ? 0 : hotbed_meta_new(score, 0);
        if (state > 1) /* else it is being placed */
            w.index_metas[i] -= HOTBED_META_LOCKED;
        for (int e = 0; e < DIM; e++)
            w.rows[i][e] = hotbed_test_float();
    }
    w.room = WINDOW;
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
        enum { ROOM = 45 }; /* ends in the middle of a group */
        other = w;
        other.room = ROOM;
        run(&other, width);
        CHECK_EQ(other.count, n);
        CHECK_BYTES(other.keys, one.keys, ROOM * sizeof one.keys[0]);
        CHECK_BYTES(other.weights, one.weights, ROOM * sizeof one.weights[0]);
        CHECK_BYTES(other.keys + ROOM, w.keys + ROOM, (WINDOW - ROOM) * sizeof w.keys[0]);
        CHECK_BYTES(other.scores + ROOM, w.scores + ROOM, (WINDOW - ROOM) * sizeof w.scores[0]);
        CHECK_BYTES(other.weights + ROOM, w.weights + ROOM, (WINDOW - ROOM) * sizeof w.weights[0]);
    }
}

const hotbed_test hotbed_tests[] = {
    {"items_are_the_same_at_every_width", items_are_the_same_at_every_width},
    {NULL, NULL},
};
