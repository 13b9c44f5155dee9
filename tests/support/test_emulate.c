/* tests/support/test_emulate.c - the tile emulator: results, order of lanes, reports, and switches between tiles.
 *
 * Small functions with known results run on all numbers of lanes and widths; faulty functions must give the expected
 * report.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "tests/support/emulate.h"
#include "tests/support/harness.h"

typedef struct work {
    uint32_t lanes;
    uint32_t width; /* of the tiles */
    uint64_t sums[32];
    uint32_t ballots[32];
    uint32_t order[32]; /* lanes in the order in which they ran */
    uint32_t ran;
} work;

static void sum_of_lane_numbers(void *arg) {
    work *w = arg;
    uint32_t lane = hotbed_emulate_lane();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < w->width; i++)
        sum += hotbed_tile_shuffle_u64(w->width, lane, i);
    w->sums[lane] = sum;
    w->ballots[lane] = hotbed_tile_ballot(w->width, hotbed_tile_rank(w->width) % 2 == 1);
    hotbed_tile_sync(w->width);
}

static void tile_calls_give_the_results_of_a_gpu_at_every_width(hotbed_backend backend) {
    for (uint32_t lanes = 1; lanes <= 32; lanes *= 2)
        for (uint32_t width = 1; width <= lanes; width *= 2) {
            work w = {.lanes = lanes, .width = width};
            hotbed_emulate_run(lanes, sum_of_lane_numbers, &w);
            for (uint32_t lane = 0; lane < lanes; lane++) {
                uint64_t first = lane - lane % width;
                CHECK_EQ(w.sums[lane], width * first + (uint64_t)width * (width - 1) / 2);
                CHECK_EQ(w.ballots[lane], 0xaaaaaaaaU & (0xffffffffU >> (32 - width)));
            }
        }
}

static void floats_are_shuffled_by_their_bits(hotbed_backend backend) {
    CHECK_EQ(hotbed_float_bits(hotbed_tile_shuffle_f32(1, -0.0F, 0)), 0x80000000U);
    CHECK_EQ(hotbed_tile_rank(8), 0); /* outside of a run */
}

static void each_lane_stores_in_turn(void *arg) {
    work *w = arg;
    for (int round = 0; round < 2; round++) {
        w->order[w->ran++ % 32] = hotbed_emulate_lane();
        hotbed_tile_sync(w->width);
    }
}

static void lanes_take_turns_in_both_orders(hotbed_backend backend) {
    work w = {.lanes = 4, .width = 4};
    hotbed_emulate_run(4, each_lane_stores_in_turn, &w);
    const uint32_t expected[8] = {0, 1, 2, 3, 3, 2, 1, 0};
    CHECK_BYTES(w.order, expected, sizeof expected);
}

static void ballot_under_a_lane_condition(void *arg) {
    work *w = arg;
    if (hotbed_tile_rank(w->width) == 0)
        w->ballots[0] = hotbed_tile_ballot(w->width, true);
}

static void one_lane_shuffles_instead(void *arg) {
    work *w = arg;
    if (hotbed_tile_rank(w->width) == 1)
        w->sums[1] = hotbed_tile_shuffle_u64(w->width, 1, 0);
    else
        w->ballots[0] = hotbed_tile_ballot(w->width, true);
}

static void one_lane_has_another_width(void *arg) {
    work *w = arg;
    uint32_t width = hotbed_emulate_lane() == 3 ? 2 : w->width;
    w->ballots[hotbed_emulate_lane()] = hotbed_tile_ballot(width, true);
}

static void lanes_at_different_calls_are_reported(hotbed_backend backend) {
    work w = {.lanes = 4, .width = 4};
    CHECK_STRING(
        hotbed_emulate_try(4, ballot_under_a_lane_condition, &w),
        "lane 0 waits at its tile call 1 (ballot or sync, width 4), but lane 1 has ended");
    CHECK_STRING(
        hotbed_emulate_try(4, one_lane_shuffles_instead, &w),
        "lanes 0 and 1 are at different tile calls: ballot or sync of width 4, shuffle of width 4");
    CHECK_STRING(
        hotbed_emulate_try(4, one_lane_has_another_width, &w),
        "lanes 0 and 3 are at different tile calls: ballot or sync of width 4, "
        "ballot or sync of width 2");
    CHECK(hotbed_emulate_try(4, sum_of_lane_numbers, &w) == NULL);
}

static void each_lane_adds_in_two_accesses(void *arg) {
    work *w = arg;
    for (int round = 0; round < 20; round++) {
        const uint64_t before = hotbed_load_relaxed_u64(&w->sums[0]);
        hotbed_store_relaxed_u64(&w->sums[0], before + 1);
        if (hotbed_tile_ballot(w->width, true) != (1U << w->width) - 1U)
            hotbed_check_failed(
                __FILE__, __LINE__, "a ballot of one tile counted lanes of another");
    }
}

/* Tiles switch between a lane's load and its store, so additions are lost; a seed always loses the same number. */
static void tiles_switch_at_each_access(hotbed_backend backend) {
    bool lost = false;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint64_t sums[2];
        for (int again = 0; again < 2; again++) {
            work w = {.lanes = 8, .width = 4};
            uint64_t random = seed;
            hotbed_emulate_interleaved(
                w.lanes, w.width, each_lane_adds_in_two_accesses, &w, &random);
            sums[again] = w.sums[0];
        }
        CHECK_EQ(sums[0], sums[1]);
        CHECK(sums[0] <= 160);
        lost = lost || sums[0] < 160;
    }
    CHECK(lost);
}

const hotbed_test hotbed_tests[] = {
    {TEST(tile_calls_give_the_results_of_a_gpu_at_every_width)},
    {TEST(floats_are_shuffled_by_their_bits)},
    {TEST(lanes_take_turns_in_both_orders)},
    {TEST(lanes_at_different_calls_are_reported)},
    {TEST(tiles_switch_at_each_access)},
    {NULL, NULL},
};
