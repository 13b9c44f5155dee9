/* tests/checkpoint/test_golden.c - checkpoints of released formats still load.
 *
 * tests/golden has one directory for each format version, written once by sample_program and never changed.
 */
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

static void format_1_0_loads(hotbed_backend backend) {
    sample_check_formula(HOTBED_TEST_GOLDEN "/checkpoint-1.0", "adam", backend);
}

/* Load a full checkpoint of two ranks, and its increment if there is one. */
static void check_golden(
    hotbed_backend backend, hotbed_score_strategy score, const char *full, const char *increment) {
    static const uint32_t worlds[] = {1, 2, 3};
    hotbed_stream *stream = NULL;
    ranks model, to;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .score = score};
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    ranks_create(&model, &shape, 1, stream);
    ranks_fill(&model, 1);
    for (uint32_t i = 0; i < (increment == NULL ? 1U : 2U); i++) {
        for (uint32_t w = 0; w < 3; w++) {
            ranks_create(&to, &shape, worlds[w], stream);
            ranks_load_chain(&to, full, &increment, i, &hotbed_io_system);
            ranks_check(&to, &model);
            ranks_destroy(&to);
        }
        ranks_change_some(&model);
    }
    ranks_destroy(&model);
    hotbed_stream_destroy(stream);
}

static void format_1_1_loads(hotbed_backend backend) {
    check_golden(
        backend, HOTBED_SCORE_STEP, HOTBED_TEST_GOLDEN "/checkpoint-1.1",
        HOTBED_TEST_GOLDEN "/checkpoint-1.1-delta");
}

static void format_1_2_loads(hotbed_backend backend) {
    check_golden(backend, HOTBED_SCORE_TIMESTAMP_LFU, HOTBED_TEST_GOLDEN "/checkpoint-1.2", NULL);
}

static void format_1_3_loads(hotbed_backend backend) {
    check_golden(
        backend, HOTBED_SCORE_TIMESTAMP_LFU, HOTBED_TEST_GOLDEN "/checkpoint-1.3",
        HOTBED_TEST_GOLDEN "/checkpoint-1.3-delta");
}

const hotbed_test hotbed_tests[] = {
    {"format_1_3_loads", format_1_3_loads},
    {"format_1_2_loads", format_1_2_loads},
    {"format_1_1_loads", format_1_1_loads},
    {"format_1_0_loads", format_1_0_loads},
    {NULL, NULL},
};
