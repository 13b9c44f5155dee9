/* tests/checkpoint/test_checkpoint_unsupported.c - in a build without HDF5 the calls return UNSUPPORTED. */
#include "hotbed/checkpoint.h"
#include "tests/support/harness.h"

static void calls_are_unsupported(hotbed_backend backend) {
    hotbed_checkpoint_options options = {.size = sizeof options};
    CHECK_STATUS(hotbed_checkpoint_save("path", NULL, 0, &options, NULL), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_checkpoint_load("path", NULL, 0, NULL, NULL, NULL), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_checkpoint_check("path"), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_checkpoint_mark_create(NULL), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_checkpoint_arena_create(1, 1, NULL, NULL), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(
        hotbed_checkpoint_snapshot_take(NULL, 0, &options, NULL, NULL), HOTBED_ERR_UNSUPPORTED);
}

const hotbed_test hotbed_tests[] = {
    {TEST(calls_are_unsupported)},
    {NULL, NULL},
};
