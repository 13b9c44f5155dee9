/* tests/support/fails_always.c - one failing check of each kind.
 *
 * CMakeLists.txt runs each test by itself and expects the message of a failed test.
 */
#include "tests/support/harness.h"

static void check_fails(hotbed_backend backend) {
    CHECK(backend == (hotbed_backend)99);
}

static void eq_fails(hotbed_backend backend) {
    CHECK_EQ(backend, 99);
}

static void near_fails(hotbed_backend backend) {
    CHECK_NEAR((double)backend, 99.0, 0.5);
}

static void string_fails(hotbed_backend backend) {
    CHECK_STRING(hotbed_backend_name(backend), "a fig tree");
}

static void bytes_fails(hotbed_backend backend) {
    uint32_t a[2] = {1, 2}, b[2] = {1, 3};
    CHECK_BYTES(a, b, sizeof a);
}

static void ok_fails(hotbed_backend backend) {
    CHECK_OK(hotbed_backend_probe((hotbed_backend)99));
}

static void status_fails(hotbed_backend backend) {
    CHECK_STATUS(hotbed_backend_probe((hotbed_backend)99), HOTBED_ERR_IO);
}

const hotbed_test hotbed_tests[] = {
    {TEST(check_fails)}, {TEST(eq_fails)}, {TEST(near_fails)},   {TEST(string_fails)},
    {TEST(bytes_fails)}, {TEST(ok_fails)}, {TEST(status_fails)}, {NULL, NULL},
};
