/* tests/examples/test_auc.c - the AUC equals the share of ordered pairs, counted one by one. */
#include "examples/train/auc.h"
#include "tests/support/harness.h"

#include <math.h>

enum { MOST = 300 };

static double by_pairs(uint64_t n, const float *scores, const uint8_t *labels) {
    double wins = 0;
    double pairs = 0;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            if (labels[i] == 0 || labels[j] != 0)
                continue;
            pairs += 1;
            wins += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
        }
    return pairs > 0 ? wins / pairs : 0.5;
}

static void equals_the_share_of_pairs_in_order(hotbed_backend backend) {
    float scores[MOST];
    uint8_t labels[MOST];
    for (int round = 0; round < 60; round++) {
        uint64_t n = 1 + hotbed_test_below(MOST);
        uint64_t values = 1 + hotbed_test_below(2 * n); /* few values: many ties */
        for (uint64_t i = 0; i < n; i++) {
            scores[i] = (float)hotbed_test_below(values) - (float)values / 2;
            labels[i] = (uint8_t)hotbed_test_below(2);
        }
        double auc;
        CHECK(hotbed_auc(n, scores, labels, &auc));
        CHECK_NEAR(auc, by_pairs(n, scores, labels), 1e-12);
    }
}

static void extreme_orders_give_0_and_1(hotbed_backend backend) {
    const float rising[4] = {-INFINITY, -1, 2, INFINITY};
    const uint8_t labels[4] = {0, 0, 1, 1};
    const uint8_t against[4] = {1, 1, 0, 0};
    const float zeros[4] = {0.0F, -0.0F, 0.0F, -0.0F};
    double auc;
    CHECK(hotbed_auc(4, rising, labels, &auc));
    CHECK_NEAR(auc, 1, 0);
    CHECK(hotbed_auc(4, rising, against, &auc));
    CHECK_NEAR(auc, 0, 0);
    CHECK(hotbed_auc(4, zeros, labels, &auc));
    CHECK_NEAR(auc, 0.5, 0);
    CHECK(hotbed_auc(2, rising, labels, &auc)); /* one class */
    CHECK_NEAR(auc, 0.5, 0);
    CHECK(hotbed_auc(0, NULL, NULL, &auc));
    CHECK_NEAR(auc, 0.5, 0);
}

const hotbed_test hotbed_tests[] = {
    {TEST(equals_the_share_of_pairs_in_order)},
    {TEST(extreme_orders_give_0_and_1)},
    {NULL, NULL},
};
