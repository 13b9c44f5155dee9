/* tests/serve/test_serve_unsupported.c - a build without HOTBED_SERVE says so. */
#include "hotbed/read.h"
#include "tests/support/harness.h"

static void the_calls_say_that_the_part_is_off(hotbed_backend backend) {
    hotbed_reader *reader = NULL;
    CHECK_STATUS(hotbed_reader_open("published", NULL, &reader), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_publisher_wait(NULL), HOTBED_ERR_UNSUPPORTED);
    hotbed_reader_close(NULL);
    hotbed_publisher_destroy(NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_calls_say_that_the_part_is_off)},
    {NULL, NULL},
};
