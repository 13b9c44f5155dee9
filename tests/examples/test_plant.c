/* tests/examples/test_plant.c - the planted model: rows depend on their number only, and have the
 * expected AUC and key frequencies. */
#include "examples/train/auc.h"
#include "examples/train/plant.h"
#include "tests/support/harness.h"

#include <math.h>

enum { ROWS = 20000 };

static const hotbed_plant_settings planted = {.seed = 5, .alpha = 1.05, .vocab = 10000};

static void a_row_is_a_function_of_its_number(hotbed_backend backend) {
    hotbed_plant first;
    hotbed_plant second;
    hotbed_plant_row a = {0};
    hotbed_plant_row b = {0};
    hotbed_plant_init(&first, &planted);
    hotbed_plant_init(&second, &planted);
    char line[HOTBED_PLANT_LINE];
    char other[HOTBED_PLANT_LINE];
    for (uint64_t i = 0; i < 500; i++) {
        hotbed_plant_draw(&first, i, &a);
        hotbed_plant_draw(&second, 499 - i, &b); /* drawn in another order */
        hotbed_plant_draw(&second, i, &b);
        size_t length = hotbed_plant_print(&a, line);
        CHECK_EQ(length, hotbed_plant_print(&b, other));
        CHECK_BYTES(line, other, length);
        CHECK(a.logit == b.logit);
    }
    hotbed_plant_settings changed = planted;
    changed.seed = 6;
    hotbed_plant_init(&second, &changed);
    hotbed_plant_draw(&second, 499, &b);
    CHECK(a.logit != b.logit);
}

static void rows_parse_to_what_was_drawn(hotbed_backend backend) {
    hotbed_plant plant;
    hotbed_plant_init(&plant, &planted);
    for (uint64_t i = 0; i < 2000; i++) {
        hotbed_plant_row row;
        char line[HOTBED_PLANT_LINE];
        int64_t keys[HOTBED_CRITEO_FIELDS];
        float label;
        hotbed_criteo_fault fault;
        hotbed_plant_draw(&plant, i, &row);
        size_t length = hotbed_plant_print(&row, line);
        CHECK(line[length - 1] == '\n');
        CHECK(hotbed_criteo_parse(line, length - 1, keys, 1, &label, &fault));
        CHECK_NEAR(label, row.label, 0);
        for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
            int64_t want = HOTBED_CRITEO_MISSING;
            if (!row.missing[f])
                want = f < HOTBED_CRITEO_INTEGERS
                           ? hotbed_criteo_bucket(row.integers[f])
                           : (int64_t)row.categories[f - HOTBED_CRITEO_INTEGERS];
            CHECK_EQ(keys[f], want);
        }
    }
}

static void the_planted_model_reaches_a_realistic_auc(hotbed_backend backend) {
    static float logits[ROWS];
    static uint8_t labels[ROWS];
    for (uint64_t seed = 1; seed <= 3; seed++) {
        hotbed_plant plant;
        hotbed_plant_settings settings = planted;
        settings.seed = seed;
        hotbed_plant_init(&plant, &settings);
        double clicks = 0;
        for (uint64_t i = 0; i < ROWS; i++) {
            hotbed_plant_row row;
            hotbed_plant_draw(&plant, i, &row);
            logits[i] = row.logit;
            labels[i] = row.label;
            clicks += row.label;
        }
        double auc;
        CHECK(hotbed_auc(ROWS, logits, labels, &auc));
        CHECK(auc > 0.77 && auc < 0.83);
        CHECK_NEAR(clicks / ROWS, 0.25, 0.02);
    }
}

static void keys_follow_the_power_law(hotbed_backend backend) {
    /* Field c04 uses the whole vocabulary; its most frequent key has about 1 / H(10000, 1.05) of the rows. */
    hotbed_plant plant;
    hotbed_plant_init(&plant, &planted);
    uint32_t column = 0;
    for (uint32_t c = 0; c < HOTBED_CRITEO_CATEGORIES; c++)
        if (plant.ranks[c].n > plant.ranks[column].n)
            column = c;
    CHECK_EQ((uint64_t)plant.ranks[column].n, planted.vocab);
    static uint32_t keys[ROWS];
    uint32_t most = 0;
    for (uint64_t i = 0; i < ROWS; i++) {
        hotbed_plant_row row;
        hotbed_plant_draw(&plant, i, &row);
        keys[i] = row.categories[column];
    }
    for (uint32_t i = 0; i < 200; i++) { /* the most frequent key is among the first 200 rows */
        uint32_t count = 0;
        for (uint32_t j = 0; j < ROWS; j++)
            count += keys[j] == keys[i];
        most = count > most ? count : most;
    }
    double harmonic = 0;
    for (uint32_t r = (uint32_t)planted.vocab; r >= 1; r--)
        harmonic += 1 / pow(r, planted.alpha);
    CHECK_NEAR((double)most / ROWS, 1 / harmonic, 0.02);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_row_is_a_function_of_its_number)},
    {TEST(rows_parse_to_what_was_drawn)},
    {TEST(the_planted_model_reaches_a_realistic_auc)},
    {TEST(keys_follow_the_power_law)},
    {NULL, NULL},
};
