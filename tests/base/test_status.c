/* tests/base/test_status.c - contract of statuses, hotbed_last_error() and hotbed_version().
 *
 * Errors are raised with hotbed_fail(); their texts are compared with the expected ones.
 */
#include "base/error.h"
#include "hotbed/version.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void every_status_has_its_name(hotbed_backend backend) {
    static const char *const names[] = {"OK",          "ARGUMENT", "MEMORY", "FULL",
                                        "UNSUPPORTED", "DEVICE",   "COMM",   "IO",
                                        "CORRUPT",     "RANGE",    "STATE"};
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        CHECK_STRING(hotbed_status_name((hotbed_status)i), names[i]);
    CHECK_STRING(hotbed_status_name((hotbed_status)11), "UNKNOWN");
    CHECK_STRING(hotbed_status_name((hotbed_status)-1), "UNKNOWN");
}

static void last_error_keeps_the_text_of_the_latest_failure(hotbed_backend backend) {
    CHECK_STRING(hotbed_last_error(), "");
    CHECK_EQ(hotbed_fail(HOTBED_ERR_RANGE, "row %d of %s", 7, "table"), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), "row 7 of table");
    hotbed_counters counters = {.size = sizeof counters};
    hotbed_counters_read(&counters); /* a call that succeeds */
    CHECK_STRING(hotbed_last_error(), "row 7 of table");
}

static void functions_of_the_caller_set_a_text(hotbed_backend backend) {
    char text[] = "line 7: %s";
    CHECK_EQ(hotbed_error_set(HOTBED_ERR_IO, text), HOTBED_ERR_IO);
    text[0] = 'x'; /* the text was copied */
    CHECK_STRING(hotbed_last_error(), "line 7: %s");
    CHECK_EQ(hotbed_error_set(HOTBED_ERR_FULL, hotbed_last_error()), HOTBED_ERR_FULL);
    CHECK_STRING(hotbed_last_error(), "line 7: %s");
    CHECK_EQ(hotbed_error_set(HOTBED_ERR_STATE, NULL), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), "");
    /* An older text is not taken for the function's. */
    (void)hotbed_error_set(HOTBED_ERR_IO, "older");
    const uint64_t before = hotbed_error_count();
    CHECK_EQ(hotbed_callback_status(HOTBED_OK, before, "the loader"), HOTBED_OK);
    CHECK_STRING(hotbed_last_error(), "older");
    CHECK_EQ(hotbed_callback_status(HOTBED_ERR_IO, before - 1, "the loader"), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error(), "older");
    CHECK_EQ(hotbed_callback_status(HOTBED_ERR_IO, before, "the loader"), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error(), "the loader returned IO");
}

static void last_error_may_be_an_argument(hotbed_backend backend) {
    (void)hotbed_fail(HOTBED_ERR_IO, "inner");
    (void)hotbed_fail(HOTBED_ERR_IO, "outer: %s", hotbed_last_error());
    CHECK_STRING(hotbed_last_error(), "outer: inner");
}

static void each_error_has_its_own_fields(hotbed_backend backend) {
    char name[100];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK_EQ(hotbed_error_set(HOTBED_ERR_STATE, "no fields"), HOTBED_ERR_STATE);
    CHECK_EQ(hotbed_last_error_detail()->size, sizeof(hotbed_error_detail));
    CHECK_EQ(hotbed_last_error_detail()->status, HOTBED_ERR_STATE);
    CHECK_FIELDS(.has = 0);
    CHECK_EQ(
        hotbed_fail_limit(HOTBED_ERR_ARGUMENT, "dim", 0, hotbed_bound(0, 1, 9), "dim %d", 0),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "dim", .limit = 1);
    CHECK_NEAR(hotbed_bound(10, 1, 9), 9, 0);
    /* A field that is set stays, and OK sets none. */
    CHECK_EQ(hotbed_error_limit(HOTBED_ERR_ARGUMENT, 5), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(hotbed_error_key(HOTBED_OK, 5, 1), HOTBED_OK);
    CHECK_EQ(hotbed_error_table(HOTBED_OK, "user"), HOTBED_OK);
    CHECK_EQ(hotbed_error_rank(HOTBED_ERR_COMM, -1), HOTBED_ERR_COMM);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "dim", .limit = 1);
    CHECK_EQ(hotbed_fail_os(HOTBED_ERR_IO, ENOSPC, "file %s", "a"), HOTBED_ERR_IO);
    CHECK_FIELDS(.os_error = ENOSPC);
    CHECK_STRING(hotbed_last_error(), "file a: No space left on device");
    hotbed_error copy;
    hotbed_error_copy(&copy);
    CHECK_EQ(hotbed_fail_table(HOTBED_ERR_STATE, "a\nb", "x"), HOTBED_ERR_STATE);
    CHECK_FIELDS(.table = "a\\x0ab");
    (void)hotbed_fail_table(HOTBED_ERR_STATE, name, "x");
    CHECK_EQ(strlen(hotbed_last_error_detail()->table), 63);
    /* The fields of an error stay with a text that contains its text. */
    CHECK_EQ(hotbed_error_return(&copy, HOTBED_ERR_IO), HOTBED_ERR_IO);
    CHECK_EQ(
        HOTBED_FAIL_AFTER(HOTBED_ERR_CORRUPT, "load: %s", hotbed_last_error()), HOTBED_ERR_CORRUPT);
    CHECK_STRING(hotbed_last_error(), "load: file a: No space left on device");
    /* The beginning of a long path would be the path of another file. */
    char path[600];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    CHECK_EQ(hotbed_fail_path(HOTBED_ERR_CORRUPT, path, "x"), HOTBED_ERR_CORRUPT);
    CHECK_STRING(hotbed_last_error_detail()->path, "");
    CHECK_EQ(hotbed_fail_path(HOTBED_ERR_CORRUPT, path + 88, "x"), HOTBED_ERR_CORRUPT);
    CHECK_STRING(hotbed_last_error_detail()->path, path + 88);
    CHECK_EQ(hotbed_fail_null_of("save", "keys"), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "save: keys is NULL");
    CHECK_FIELDS(.parameter = "keys");
    CHECK_EQ(hotbed_fail_null("keys"), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "keys is NULL");
    (void)hotbed_error_return(&copy, HOTBED_ERR_CORRUPT);
    CHECK_EQ(hotbed_last_error_detail()->status, HOTBED_ERR_CORRUPT);
    CHECK_FIELDS(.os_error = ENOSPC);
}

static void long_text_is_truncated(hotbed_backend backend) {
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)hotbed_fail(HOTBED_ERR_IO, "%s", text);
    size_t length = strlen(hotbed_last_error());
    CHECK(length >= 500 && length < sizeof text - 1);
    CHECK_BYTES(hotbed_last_error(), text, length);
}

static void *fail_elsewhere(void *text) {
    snprintf(text, 100, "%s", hotbed_last_error());
    CHECK_EQ(hotbed_last_error_detail()->status, HOTBED_OK);
    CHECK_FIELDS(.has = 0);
    (void)hotbed_error_rank(hotbed_fail(HOTBED_ERR_COMM, "of the other thread"), 3);
    CHECK_FIELDS(.has = HOTBED_HAS_RANK, .rank = 3);
    return NULL;
}

static void each_thread_has_its_own_last_error(hotbed_backend backend) {
    char before[100] = "unset";
    pthread_t thread;
    (void)hotbed_fail_os(HOTBED_ERR_IO, ENOENT, "of this thread");
    CHECK_EQ(pthread_create(&thread, NULL, fail_elsewhere, before), 0);
    pthread_join(thread, NULL);
    CHECK_STRING(before, "");
    CHECK_STRING(hotbed_last_error(), "of this thread: No such file or directory");
    CHECK_FIELDS(.os_error = ENOENT);
}

/* For errno values that the system does not know, only the number at the end is compared. */
static void errno_values_have_the_text_of_strerror(hotbed_backend backend) {
    char text[HOTBED_REASON_BYTES];
    for (int error = 1; error < 134; error++) {
        CHECK(hotbed_reason(error, text) == text);
        if (strstr(strerror(error), "nknown error") == NULL)
            CHECK_STRING(text, strerror(error));
        else
            CHECK_STRING(text + sizeof "unknown system error" - 1, strrchr(strerror(error), ' '));
    }
}

static hotbed_status try_twice(int *calls, hotbed_status first) {
    ++*calls;
    HOTBED_TRY(first);
    ++*calls;
    return HOTBED_OK;
}

static void try_returns_the_first_failure(hotbed_backend backend) {
    int calls = 0;
    CHECK_EQ(try_twice(&calls, HOTBED_ERR_FULL), HOTBED_ERR_FULL);
    CHECK_EQ(calls, 1);
    CHECK_EQ(try_twice(&calls, HOTBED_OK), HOTBED_OK);
    CHECK_EQ(calls, 3);
}

static void the_library_has_the_version_of_the_header(hotbed_backend backend) {
    char text[32];
    snprintf(
        text, sizeof text, "%d.%d.%d", HOTBED_VERSION_MAJOR, HOTBED_VERSION_MINOR,
        HOTBED_VERSION_PATCH);
    CHECK_STRING(hotbed_version(), HOTBED_VERSION);
    CHECK_STRING(hotbed_version(), text);
}

const hotbed_test hotbed_tests[] = {
    /* first: expects that no error has occurred yet */
    {TEST(last_error_keeps_the_text_of_the_latest_failure)},
    {TEST(every_status_has_its_name)},
    {TEST(functions_of_the_caller_set_a_text)},
    {TEST(last_error_may_be_an_argument)},
    {TEST(each_error_has_its_own_fields)},
    {TEST(long_text_is_truncated)},
    {TEST(errno_values_have_the_text_of_strerror)},
    {TEST(each_thread_has_its_own_last_error)},
    {TEST(try_returns_the_first_failure)},
    {TEST(the_library_has_the_version_of_the_header)},
    {NULL, NULL},
};
