/* tests/storage/tier_model.h - what tests of tiers at every tile width share: rows as they should be, and random keys. */
#ifndef HOTBED_TESTS_TIER_MODEL_H
#define HOTBED_TESTS_TIER_MODEL_H

#include "tests/support/harness.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const uint32_t widths[] = {1, 2, 8, 32};

enum {
    WIDTHS = sizeof widths / sizeof widths[0],
    KEPT_KEYS = 128, /* at most, of a table */
    KEPT_ROW = 64,   /* bytes, at most */
};

/* A row as it should be, or as a store has it. */
typedef struct kept {
    uint64_t score, time;
    uint8_t row[KEPT_ROW];
    bool there;
} kept;

static inline uint32_t kept_draw(uint64_t *random, uint32_t bound) {
    return (uint32_t)(hotbed_test_random_r(random) % bound);
}

/* numbers[n]: distinct ones below `of`. */
static inline void kept_draw_some(uint64_t *random, uint32_t of, uint32_t n, uint32_t *numbers) {
    bool used[KEPT_KEYS] = {false};
    CHECK(n <= of && of <= KEPT_KEYS);
    while (n > 0) {
        uint32_t number = kept_draw(random, of);
        if (used[number])
            continue;
        used[number] = true;
        numbers[--n] = number;
    }
}

/* A key that says nothing of its number. */
static inline uint64_t kept_key(uint32_t number) {
    return (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline float kept_element(const uint8_t *row, uint32_t e) {
    float value;
    memcpy(&value, row + e * sizeof value, sizeof value);
    return value;
}

/* What training does to a row, and to the model's. */
static inline void kept_train(kept *model, uint8_t *row, uint32_t dim) {
    for (uint32_t e = 0; e < dim; e++) {
        float value = kept_element(row, e) + 1.0F;
        memcpy(row + e * sizeof value, &value, sizeof value);
        memcpy(model->row + e * sizeof value, &value, sizeof value);
    }
}

#endif
