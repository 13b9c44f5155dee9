/* tests/checkpoint/test_golden.c - checkpoints of released formats keep loading.
 *
 * tests/golden has one directory a format version, made once by sample_program and never again.
 */
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

static void format_1_0_loads(hotbed_backend backend) {
    sample_check_formula(HOTBED_TEST_GOLDEN "/checkpoint-1.0", "adam", backend);
}

static void format_1_1_loads(hotbed_backend backend) {
    static const uint32_t worlds[] = {1, 2, 3};
    const char *increment = HOTBED_TEST_GOLDEN "/checkpoint-1.1-delta";
    hotbed_stream *stream = NULL;
    ranks model, to;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM};
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    ranks_create(&model, &shape, 1, stream);
    ranks_fill(&model, 1);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t w = 0; w < 3; w++) {
            ranks_create(&to, &shape, worlds[w], stream);
            ranks_load_chain(
                &to, HOTBED_TEST_GOLDEN "/checkpoint-1.1", &increment, i, &hotbed_io_system);
            ranks_check(&to, &model);
            ranks_destroy(&to);
        }
        ranks_change_some(&model);
    }
    ranks_destroy(&model);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {"format_1_1_loads", format_1_1_loads},
    {"format_1_0_loads", format_1_0_loads},
    {NULL, NULL},
};
