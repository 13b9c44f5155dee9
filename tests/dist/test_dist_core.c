/* tests/dist/test_dist_core.c - rows in messages are the same at every tile width; damaged messages
 * do no harm. */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "dist/balance_core.h"
#include "dist/exchange/bags_core.h"
#include "dist/exchange/deliver_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

#include <stdlib.h>

static const uint32_t widths[] = {1, 2, 4, 8, 16, 32};

enum { WIDTHS = sizeof widths / sizeof widths[0], WORLD = 3, N = 23, ROW = 512 };

/* N keys received from WORLD ranks, and N keys sent to them. */
typedef struct work {
    hotbed_deliver_view d;
    uint32_t segments[2 * WORLD + 1], firsts[2 * WORLD], ranks[WORLD + 1];
    uint32_t places[N], sources[N], inverse[N], overflow;
    uint8_t *rows[WORLD];
    HOTBED_ALIGN(16) uint8_t travelling[WORLD][N * ROW], output[N * ROW];
    uint64_t stride;
    bool plain;
    uint32_t width;
} work;

static void take(void *argument) {
    work *w = argument;
    for (uint32_t i = 0; i < N; i++)
        hotbed_take_row(&w->d, i, w->output, w->stride, w->plain, w->width);
}

static void give(void *argument) {
    work *w = argument;
    uint64_t elements = w->stride / hotbed_dtype_size(w->d.dtype);
    for (uint32_t u = 0; u < N; u++)
        hotbed_send_gradient(&w->d, u, w->output, elements, w->width);
}

static const uint64_t steps_so_far = 9;

/* How gradients are packed if `travel` has scales. */
static hotbed_pack_view pack_of(uint32_t travel, uint32_t layout) {
    const hotbed_pack_view p = {hotbed_packed_type(travel), 1, layout, 3, 77, &steps_so_far};
    return p;
}

static work *work_make(uint32_t dim, uint32_t dtype, uint32_t travel, bool dedup) {
    work *w = aligned_alloc(16, (sizeof *w + 15) / 16 * 16);
    CHECK(w != NULL);
    memset(w, 0, sizeof *w);
    const uint32_t cuts[2 * WORLD + 1] = {0, 4, 4, 9, 15, 20, N};
    uint32_t sent[WORLD] = {0};
    memcpy(w->segments, cuts, sizeof cuts);
    for (uint32_t q = 0; q < 2 * WORLD;
         q++) { /* in each message feature 0 comes before feature 1 */
        w->firsts[q] = sent[q % WORLD];
        sent[q % WORLD] += cuts[q + 1] - cuts[q];
    }
    const uint32_t ranks[WORLD + 1] = {0, 7, 7, N};
    memcpy(w->ranks, ranks, sizeof ranks);
    for (uint32_t i = 0; i < N; i++) {
        w->places[i] = (i * 5 + 3) % N;
        w->sources[i] = (i * 7 + 1) % N;
        w->inverse[i] = i / 2;
    }
    for (uint32_t s = 0; s < WORLD; s++)
        w->rows[s] = w->travelling[s];
    for (size_t i = 0; i < sizeof w->output; i++) {
        w->output[i] = (uint8_t)(hotbed_test_random() & 0x3f); /* finite in every type */
        for (uint32_t s = 0; s < WORLD; s++)
            w->travelling[s][i] = (uint8_t)hotbed_test_random();
    }
    uint64_t bytes = (uint64_t)dim * hotbed_dtype_size(dtype);
    w->stride = bytes + hotbed_dtype_size(dtype);
    w->d = (hotbed_deliver_view){
        .segments = w->segments,
        .firsts = w->firsts,
        .num_segments = 2 * WORLD,
        .ranks = w->ranks,
        .places = w->places,
        .sources = w->sources,
        .inverse = dedup ? w->inverse : NULL,
        .overflow = &w->overflow,
        .world = WORLD,
        .rows = w->rows,
        .row_bytes = hotbed_travel_bytes(travel, dim),
        .dim = dim,
        .dtype = dtype,
        .travel = travel,
        .max_gradient = 0.25F,
        .scale = 0.5F,
        .pack = pack_of(travel, dim),
    };
    w->plain = hotbed_rows_plain(&w->d, w->output, w->stride);
    return w;
}

/* Compare all arrays after each step, at each width. */
static void rows_are_the_same_at_every_width(hotbed_backend backend) {
    static const uint32_t dims[] = {1, 3, 4, 8, 31, 64, 126};
    static void (*const steps[])(void *) = {take, give, take};
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (uint32_t travel = HOTBED_F32; travel <= HOTBED_FP8; travel++)
            for (int dedup = 0; dedup < 2; dedup++) {
                const uint32_t dtype = travel <= HOTBED_BF16 ? travel : (uint32_t)HOTBED_F32;
                work *start = work_make(dims[d], dtype, travel, dedup == 1);
                work *want = work_make(1, HOTBED_F32, HOTBED_F32, false);
                for (int s = 0; s < WIDTHS; s++) {
                    work w = *start;
                    w.width = widths[s];
                    w.d.rows = w.rows;
                    for (uint32_t p = 0; p < WORLD; p++)
                        w.rows[p] = w.travelling[p];
                    for (int k = 0; k < 3; k++) {
                        w.overflow = k == 2; /* the last step writes zeros */
                        hotbed_emulate_run(w.width, steps[k], &w);
                    }
                    if (s == 0)
                        *want = w;
                    CHECK_BYTES(w.output, want->output, sizeof w.output);
                    CHECK_BYTES(w.travelling, want->travelling, sizeof w.travelling);
                }
                free(start), free(want);
            }
}

/* The requester reads rows where the owner writes them. */
static void rows_reach_the_requesting_rank(hotbed_backend backend) {
    work *w = work_make(8, HOTBED_F32, HOTBED_F32, false);
    w->width = 1;
    for (uint32_t m = 0; m < N; m++) {
        uint32_t q = 0;
        while (m >= w->segments[q + 1])
            q++;
        uint32_t k = w->firsts[q] + m - w->segments[q];
        CHECK(hotbed_owner_row(&w->d, m) == w->travelling[q % WORLD] + (size_t)k * 32);
    }
    take(w);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t p = w->places[i] < 7 ? 0 : 2, k = w->places[i] - (p == 0 ? 0 : 7);
        CHECK_BYTES(w->output + w->sources[i] * w->stride, w->travelling[p] + k * 32, 32);
    }
    float *gradient = (float *)(void *)w->output;
    for (uint32_t i = 0; i < N * ROW / 4; i++)
        gradient[i] = (float)i / 1024.0F - 0.5F;
    give(w);
    for (uint32_t u = 0; u < N; u++) {
        uint32_t p = w->places[u] < 7 ? 0 : 2, k = w->places[u] - (p == 0 ? 0 : 7);
        for (uint32_t e = 0; e < 8; e++) {
            float g = gradient[w->sources[u] * (w->stride / 4) + e], got;
            g = (g > 0.25F ? 0.25F : g < -0.25F ? -0.25F : g) * 0.5F;
            memcpy(&got, w->travelling[p] + k * 32 + e * 4, 4);
            CHECK(got == g);
        }
    }
    free(w);
}

/* --- bags ------------------------------------------------------------------------------------- */

enum { BAGS = 6, BAG_FEATURES = 2, BATCH = BAGS / BAG_FEATURES, COLUMNS = 300 };

/* The sums or gradients of bags between this rank and WORLD ranks. */
typedef struct bag_work {
    hotbed_bags_view v;
    uint32_t row_starts[WORLD * (BAGS + 1)], places[WORLD * BAGS + 1], starts[BAGS + 1];
    uint32_t dims[BAG_FEATURES], columns[BAG_FEATURES], overflow, width;
    uint8_t *rows[WORLD];
    HOTBED_ALIGN(16) uint8_t travelling[WORLD][BAGS * ROW];
    HOTBED_ALIGN(16) float values[BATCH * COLUMNS];
    HOTBED_ALIGN(16) float wide[WORLD * BAGS * ROW / 4];
    uint64_t moved;
} bag_work;

static void finish_all(void *argument) {
    bag_work *w = argument;
    for (uint32_t r = 0; r < BAGS; r++)
        hotbed_bag_finish_sums(&w->v, r, w->values, COLUMNS, w->width);
}

static void give_all(void *argument) {
    bag_work *w = argument;
    for (uint32_t r = 0; r < BAGS; r++)
        hotbed_bag_send(&w->v, r, w->values, COLUMNS, w->width);
    hotbed_bags_count(&w->v, hotbed_tile_rank(w->width) == 0 ? 5 : 0, w->width);
}

/* As an owner: unpack the gradients of the received bags, then pack them as sums. */
static void widen_all(void *argument) {
    bag_work *w = argument;
    for (uint32_t b = 0; w->v.pack.dtype != 0 && b < WORLD * BAGS; b++)
        hotbed_widen_bag(&w->v, b, w->width);
    for (uint32_t b = 0; w->v.pack.dtype != 0 && b < WORLD * BAGS; b++)
        hotbed_pack_bag(&w->v, b, w->width);
}

static void bag_work_point(bag_work *w) {
    w->v.row_starts = w->row_starts;
    w->v.places = w->v.places == NULL ? NULL : w->places;
    w->v.starts = w->starts;
    w->v.dims = w->dims;
    w->v.output_columns = w->columns;
    w->v.overflow = &w->overflow;
    w->v.rows = w->rows;
    w->v.moved = &w->moved;
    for (uint32_t p = 0; p < WORLD; p++)
        w->rows[p] = w->travelling[p];
    w->v.wide = w->wide;
    w->v.wide_stride = ROW / 4;
}

static void bag_work_make(bag_work *w, uint32_t dim, uint32_t travel, bool exact, bool mean) {
    memset(w, 0, sizeof *w);
    w->v = (hotbed_bags_view){
        .places = exact ? w->places : NULL,
        .num_features = BAG_FEATURES,
        .batch_size = BATCH,
        .world = WORLD,
        .rank = 1,
        .row_bytes = ROW,
        .travel = travel,
        .samples = BATCH - 1,
        .dtype = HOTBED_F32,
        .mean = mean ? 1 : 0,
        .max_gradient = 0.25F,
        .scale = 0.5F,
        .pack = pack_of(travel, dim),
    };
    bag_work_point(w);
    w->dims[0] = dim;
    w->dims[1] = dim / 2 + 1;
    w->columns[1] = dim;
    for (uint32_t p = 0; p < WORLD; p++)
        for (uint32_t r = 0; r < BAGS; r++) {
            uint32_t *start = w->row_starts + p * (BAGS + 1) + r;
            start[1] = start[0] + (uint32_t)hotbed_test_below(3);
            w->starts[r + 1] += start[1] - start[0];
        }
    for (uint32_t r = 0; r < BAGS; r++)
        w->starts[r + 1] += w->starts[r];
    for (size_t i = 0; i < sizeof w->travelling / sizeof(float); i++)
        ((float *)(void *)w->travelling)[i] = (float)hotbed_test_below(1000) * 0.3F;
    for (size_t i = 0; i < BATCH * COLUMNS; i++)
        w->values[i] = (float)hotbed_test_below(1000) * 0.001F - 0.5F;
    uint32_t sum = 0;
    for (uint64_t i = 0; exact && i <= (uint64_t)WORLD * BAGS; i++) {
        hotbed_bag_flag(&w->v, i);
        const uint32_t flag = w->places[i];
        w->places[i] = sum;
        sum += flag;
    }
}

static void bags_are_the_same_at_every_width(hotbed_backend backend) {
    static const uint32_t dims[] = {1, 4, 7, 64, 126};
    static void (*const steps[])(void *) = {
        finish_all, give_all, widen_all, finish_all, finish_all};
    static bag_work start, want, got;
    static const uint32_t types[] = {HOTBED_F32, HOTBED_INT8, HOTBED_FP8};
    static float before[BATCH * COLUMNS];
    for (int i = 0; i < 3 * 4 * (int)(sizeof dims / sizeof dims[0]); i++) {
        bag_work_make(&start, dims[i / 12], types[i / 4 % 3], i % 2 == 1, (i / 2) % 2 == 1);
        for (int s = 0; s < WIDTHS; s++) {
            got = start;
            got.width = widths[s];
            bag_work_point(&got);
            for (int k = 0; k < 5; k++) {
                got.overflow = k == 4; /* the last step writes zeros */
                hotbed_emulate_run(got.width, steps[k], &got);
                if (k == 3 && s == 0)
                    memcpy(before, got.values, sizeof before);
                if (k == 3)
                    CHECK_BYTES(got.values, before, sizeof before);
            }
            if (s == 0)
                want = got;
            CHECK_BYTES(got.wide, want.wide, sizeof got.wide);
            CHECK_BYTES(got.values, want.values, sizeof got.values);
            CHECK_BYTES(got.travelling, want.travelling, sizeof got.travelling);
            CHECK_EQ(got.moved, 5 * ROW);
        }
    }
}

/* Messages have arbitrary bytes, as after a failed exchange.  Keys must be read only within the messages, and written
 * only within the new batch.  Each array is allocated separately, so that sanitizers see out-of-bounds accesses. */
static void balance_survives_damaged_messages(hotbed_backend backend) {
    enum { FEATURES = 3, SAMPLES = 4, ROWS = FEATURES * SAMPLES, CAPACITY = 10, BOUND = 20 };
    uint64_t kept = 0;
    for (int round = 0; round < 200; round++) {
        hotbed_balance_view v = {
            .capacity = CAPACITY,
            .shape = {ROWS, 1, 0},
            .num_features = FEATURES,
            .batch_size = SAMPLES,
            .world = WORLD,
            .bound = BOUND,
        };
        v.message_bytes = hotbed_message_bytes(v.shape, CAPACITY);
        uint32_t *samples = malloc(SAMPLES * sizeof *samples);
        v.messages = malloc(WORLD * v.message_bytes);
        v.starts = malloc((ROWS + 1) * sizeof *v.starts);
        v.keys = malloc(BOUND * sizeof *v.keys);
        v.weights = malloc(BOUND * sizeof *v.weights);
        CHECK(samples != NULL && v.messages != NULL && v.starts != NULL);
        CHECK(v.keys != NULL && v.weights != NULL);
        v.samples = samples;
        for (uint32_t b = 0; b < SAMPLES; b++)
            samples[b] = (uint32_t)hotbed_test_below(WORLD * SAMPLES);
        for (size_t i = 0; i < WORLD * v.message_bytes / 4; i++)
            ((uint32_t *)(void *)v.messages)[i] = hotbed_test_below(4) == 0
                                                      ? (uint32_t)hotbed_test_random()
                                                      : (uint32_t)hotbed_test_below(CAPACITY + 2);
        uint32_t sum = 0;
        for (uint32_t r = 0; r <= ROWS; r++) {
            hotbed_balance_length(&v, r);
            uint32_t length = v.starts[r];
            CHECK(length <= CAPACITY);
            v.starts[r] = sum;
            sum += length;
        }
        for (uint32_t i = 0; i < sum && i < BOUND; i++, kept++)
            hotbed_balance_key(&v, i);
        free(samples), free(v.messages), free(v.starts), free(v.keys), free(v.weights);
    }
    CHECK(kept > 100);
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_are_the_same_at_every_width)},
    {TEST(rows_reach_the_requesting_rank)},
    {TEST(bags_are_the_same_at_every_width)},
    {TEST(balance_survives_damaged_messages)},
    {NULL, NULL},
};
