/* tests/checkpoint/test_golden.c - checkpoints of every format load.
 *
 * tests/golden has a checkpoint and an increment of each format, written once by sample_program and never changed.
 */
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

static void format_1_loads(hotbed_backend backend) {
    static const char full[] = HOTBED_TEST_GOLDEN "/checkpoint-1";
    static const char increment[] = HOTBED_TEST_GOLDEN "/checkpoint-1-delta";
    static const model_shape usual;
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_checkpoint_check(full));
    CHECK_OK(hotbed_checkpoint_check(increment));
    model_check_blobs(increment);
    for (uint32_t world = 1; world <= MODEL_WORLD; world++) {
        model m;
        model_create(&m, &usual, world, stream);
        CHECK_OK(model_load(&m, full, NULL, NULL));
        model_check(&m, 1, 0);
        CHECK_OK(model_load(&m, full, increment, NULL));
        model_check(&m, 1, 2);
        model_destroy(&m);
    }
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(format_1_loads)},
    {NULL, NULL},
};
