/* tests/support/test_harness.c - checks, random numbers, folders and skips of the harness.
 *
 * Here all checks pass; fails_always.c has checks that fail.
 */
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void checks_of_true_statements_pass(hotbed_backend backend) {
    float nan_value = NAN;
    CHECK(backend == HOTBED_BACKEND_HOST);
    CHECK_EQ(UINT64_MAX, UINT64_MAX);
    CHECK_EQ(-1, (int64_t)-1);
    CHECK_EQ(&backend, &backend);
    CHECK_NEAR(1.0F, 1.25F, 0.25);
    CHECK(!(nan_value == nan_value));
    CHECK_STRING("fig", "fig");
    CHECK_BYTES("fig", "fig", 3);
    CHECK_BYTES(NULL, NULL, 0);
}

static void statuses_are_compared(hotbed_backend backend) {
    CHECK_OK(hotbed_backend_probe(backend));
    CHECK_STATUS(hotbed_backend_probe((hotbed_backend)99), HOTBED_ERR_ARGUMENT);
}

static uint64_t first_numbers[4];

static void random_numbers_are_in_their_range(hotbed_backend backend) {
    for (int i = 0; i < 4; i++)
        first_numbers[i] = hotbed_test_random();
    for (int i = 0; i < 1000; i++) {
        float x = hotbed_test_float();
        CHECK(x >= -1.0F && x < 1.0F);
        CHECK(hotbed_test_below(7) < 7);
    }
}

static void random_numbers_depend_on_the_name_of_the_test(hotbed_backend backend) {
    uint64_t first = hotbed_test_random(), state = 5, again = 5;
    CHECK(first != first_numbers[0]);
    CHECK_EQ(hotbed_test_random_r(&state), hotbed_test_random_r(&again));
    CHECK(hotbed_test_random_r(&state) != 5);
}

static void directories_are_new_and_empty(hotbed_backend backend) {
    const char *a = hotbed_test_directory(), *b = hotbed_test_directory();
    char path[512];
    CHECK(strcmp(a, b) != 0);
    CHECK(access(a, W_OK) == 0);
    (void)snprintf(path, sizeof path, "%s/file", a);
    FILE *file = fopen(path, "w"); /* the harness removes it with the directory */
    CHECK(file != NULL);
    CHECK(fclose(file) == 0);
}

static void a_skipped_test_is_not_a_failure(hotbed_backend backend) {
    SKIP("this test always skips");
}

const hotbed_test hotbed_tests[] = {
    {TEST(checks_of_true_statements_pass)},
    {TEST(statuses_are_compared)},
    {TEST(random_numbers_are_in_their_range)},
    {TEST(random_numbers_depend_on_the_name_of_the_test)},
    {TEST(directories_are_new_and_empty)},
    {TEST(a_skipped_test_is_not_a_failure)},
    {NULL, NULL},
};
