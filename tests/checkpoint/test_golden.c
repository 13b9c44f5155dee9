/* tests/checkpoint/test_golden.c - checkpoints of released formats keep loading.
 *
 * tests/golden has one directory a format version, made once by sample_program and never again.
 */
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

static void format_1_0_loads(hotbed_backend backend) {
    sample_check_formula(HOTBED_TEST_GOLDEN "/checkpoint-1.0", "adam", backend);
}

const hotbed_test hotbed_tests[] = {
    {"format_1_0_loads", format_1_0_loads},
    {NULL, NULL},
};
