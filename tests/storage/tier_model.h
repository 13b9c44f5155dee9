/* tests/storage/tier_model.h - model rows, random keys and tile widths for tests of cores that move rows. */
#pragma once

#include "tests/support/harness.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const uint32_t widths[] = {1, 2, 8, 32};

enum {
    WIDTHS = sizeof widths / sizeof widths[0],
    MODEL_KEYS = 128,     /* largest number of keys of a table */
    MODEL_ROW_BYTES = 64, /* largest row */
};

/* The row of a key in a model, or in a store. */
typedef struct model_row {
    uint64_t score, time;
    uint8_t row[MODEL_ROW_BYTES];
    bool there;
} model_row;

static inline uint32_t draw_below(uint64_t *random, uint32_t bound) {
    return (uint32_t)(hotbed_test_random_r(random) % bound);
}

/* Draw n distinct numbers below `of`. */
static inline void draw_distinct(uint64_t *random, uint32_t of, uint32_t n, uint32_t *numbers) {
    bool used[MODEL_KEYS] = {false};
    CHECK(n <= of && of <= MODEL_KEYS);
    while (n > 0) {
        uint32_t number = draw_below(random, of);
        if (used[number])
            continue;
        used[number] = true;
        numbers[--n] = number;
    }
}

/* Key `number`, with bits that look random. */
static inline uint64_t key_of_number(uint32_t number) {
    return (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline float row_element(const uint8_t *row, uint32_t e) {
    float value;
    memcpy(&value, row + e * sizeof value, sizeof value);
    return value;
}

/* Train a row and its model: add 1 to each element. */
static inline void train_row(model_row *model, uint8_t *row, uint32_t dim) {
    for (uint32_t e = 0; e < dim; e++) {
        float value = row_element(row, e) + 1.0F;
        memcpy(row + e * sizeof value, &value, sizeof value);
        memcpy(model->row + e * sizeof value, &value, sizeof value);
    }
}
