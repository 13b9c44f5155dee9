/* tests/storage/test_host_sets.c - loops of the host backend give the same results with every
 * instruction set: searches of the index, sums of rows. */
#include "storage/index/index_place_core.h"
#include "storage/index/index_range.h"
#include "storage/index/index_search.h"
#include "storage/step/pool_host.h"
#include "storage/step/row_core.h"
#include "tests/support/harness.h"

#include <stdlib.h>

/* --- searches --------------------------------------------------------------------------------- */

enum { PARTS = 3, MAX_SLOTS = 1 << 14 };

/* A table with one part or, if it grows, several. */
typedef struct table {
    uint64_t keys[PARTS][MAX_SLOTS] __attribute__((aligned(128)));
    uint64_t metas[PARTS][MAX_SLOTS] __attribute__((aligned(128)));
    hotbed_index_segment segments[PARTS + 1];
    hotbed_index_view view;
    hotbed_index_range range;
} table;

static table t;

static uint64_t key_of(uint64_t i) {
    return i < 4 ? i : i * 0x9e3779b97f4a7c15U;
}

/* Make an empty table; `parts` > 1: its later parts are segments. */
static void make_table(hotbed_index_range range, uint32_t parts) {
    memset(&t, 0, sizeof t);
    t.range = range;
    t.view.keys = t.keys[0];
    t.view.metas = t.metas[0];
    hotbed_index_start(t.view, range);
    if (parts == 1)
        return;
    t.view.segments = t.segments;
    t.range.segment = 1;
    for (uint32_t p = 1; p < parts; p++) {
        hotbed_index_segment *segment = &t.segments[p];
        segment->range = range;
        segment->range.first_bucket = 0;
        segment->keys = t.keys[p];
        segment->metas = t.metas[p];
        const hotbed_index_view view = {segment->keys, segment->metas, NULL};
        hotbed_index_start(view, segment->range);
    }
}

static void insert(uint64_t key) {
    const hotbed_index_result r =
        hotbed_index_place(t.view, t.range, key, hotbed_meta_new(1, 0), 1);
    if (r.slot != HOTBED_SLOT_NONE)
        hotbed_index_publish(t.view, r.slot, key);
}

/* Search for keys first .. first+n-1 with every set that the processor has. */
static void search(uint64_t first, uint32_t n) {
    uint64_t keys[HOTBED_SEARCH_KEYS], slots[HOTBED_SEARCH_KEYS];
    for (uint32_t k = 0; k < n; k++)
        keys[k] = key_of(first + k);
    for (hotbed_host_set set = HOTBED_HOST_PLAIN; set <= hotbed_host_set_best(); set++) {
        hotbed_search q;
        hotbed_search_start(&q, set, t.view, t.range, keys, n);
        hotbed_search_first(&q, slots);
        hotbed_search_second(&q, slots);
        for (uint32_t k = 0; k < n; k++)
            CHECK_EQ(slots[k], hotbed_index_find(t.view, t.range, keys[k], 1));
    }
}

/* Tables of all sizes, empty to full, that refuse or evict, with and without regions and segments. */
static void searches_find_what_single_finds_find(hotbed_backend backend) {
    for (uint32_t round = 0; round < (hotbed_test_is_small() ? 15 : 60); round++) {
        const bool strides = round % 10 == 9; /* full, and with steps of their own for its keys */
        const uint64_t capacity = strides ? 4200 + hotbed_test_below(4000)
                                          : 1 + hotbed_test_below((uint64_t)1 << (4 + round % 10));
        hotbed_index_range range =
            hotbed_index_range_make(capacity, round % 2 == 0, hotbed_test_below(3));
        range.region_bits = (uint16_t)(round % 3);
        if (round % 7 == 6)
            range.choices = 1;
        const uint64_t slots = hotbed_index_range_slots(range);
        CHECK(slots + 3 * HOTBED_BUCKET_SLOTS <= MAX_SLOTS);
        const uint32_t parts = round % 5 == 4 ? PARTS : 1;
        make_table(range, parts);
        CHECK(!strides || hotbed_index_steps_differ(range));
        uint64_t n = strides ? parts * slots : hotbed_test_below(parts * slots * 5 / 4);
        for (uint64_t i = 0; i < n; i++)
            insert(key_of(i));
        for (uint64_t i = 0; i < n; i += 1 + hotbed_test_below(8))
            (void)hotbed_index_erase(t.view, t.range, key_of(i), 1);
        for (uint64_t i = 0; i < n + 3 * HOTBED_SEARCH_KEYS;) {
            const uint32_t count = 1 + (uint32_t)hotbed_test_below(HOTBED_SEARCH_KEYS);
            search(i, count);
            i += count;
        }
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

enum { DIM_MOST = 300 };

/* A finite value of the type at p[e]: all exponents, subnormal ones too. */
static void put(uint32_t dtype, uint8_t *p, uint32_t e) {
    const uint64_t bits = hotbed_test_random();
    float value = hotbed_bits_float((uint32_t)bits);
    if (!(value > -1e30F && value < 1e30F))
        value = 0.5F;
    if (dtype == HOTBED_F16)
        value = hotbed_f16_to_f32((uint16_t)(bits & 0xbbffU));
    hotbed_store1(dtype, p, e, value);
}

static void rows_are_added_alike(hotbed_backend backend) {
    static uint8_t data[HOTBED_POOL_RING][DIM_MOST * sizeof(float)] __attribute__((aligned(16)));
    for (uint32_t round = 0; round < 300; round++) {
        const uint32_t dtype = HOTBED_F32 + round % 3;
        const uint32_t dim = 1 + (uint32_t)hotbed_test_below(DIM_MOST);
        const uint32_t first = (uint32_t)hotbed_test_below(1000);
        const uint32_t n = (uint32_t)hotbed_test_below(HOTBED_POOL_RING / 2 + 1);
        hotbed_pool_rows rows = {.end = first + n};
        for (uint32_t i = first; i < first + n; i++) {
            uint8_t *row = data[i % HOTBED_POOL_RING];
            rows.row[i % HOTBED_POOL_RING] = row;
            rows.weight[i % HOTBED_POOL_RING] =
                round % 2 == 0 ? 1.0F : (float)hotbed_test_below(1000) * 0.37F - 100.0F;
            for (uint32_t e = 0; e < dim; e++)
                put(dtype, row, e);
        }
        float expected[DIM_MOST];
        for (uint32_t e = 0; e < dim; e++) {
            expected[e] = (float)e * 0.125F;
            for (uint32_t i = first; i < first + n; i++)
                expected[e] = expected[e] + hotbed_load1(dtype, rows.row[i % HOTBED_POOL_RING], e) *
                                                rows.weight[i % HOTBED_POOL_RING];
        }
        for (hotbed_host_set set = HOTBED_HOST_PLAIN; set <= hotbed_host_set_best(); set++) {
            float sum[DIM_MOST];
            for (uint32_t e = 0; e < dim; e++)
                sum[e] = (float)e * 0.125F;
            hotbed_pool_add(set, &rows, first, n, dtype, dim, sum);
            CHECK(memcmp(sum, expected, dim * sizeof *sum) == 0);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(searches_find_what_single_finds_find)},
    {TEST(rows_are_added_alike)},
    {NULL, NULL},
};
