/* tests/support/harness.h - main(), checks, random numbers and temporary folders of a test program.
 *
 * A test program defines the table hotbed_tests[]; the harness defines main().  Arguments:
 *   --backend host|cuda  backend that is passed to each test (default host); exit status 77 if it is not available
 *   --list               print the names of the tests
 *   NAME...              run only the tests whose name contains one of these
 * Environment:
 *   HOTBED_TEST_SEED     seed of the random numbers (default 1); it is printed
 *   HOTBED_TEST_SMALL    if set, long tests are shortened: hotbed_test_is_small()
 *   HOTBED_TEST_TOOL     the tool under which the program runs, if any: hotbed_test_is_under()
 *
 * The random numbers of a test depend only on the seed and the test's name, so that a test gets the same numbers when
 * it runs alone.
 *
 * A failed check prints its place and the values, and ends the program with status 1.  No further test runs, because
 * threads of the failed one may still use its objects.  Checks may be made on any thread.
 */
#pragma once

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hotbed_test {
    const char *name; /* a sentence: a_full_table_refuses_new_keys */
    void (*run)(hotbed_backend backend);
} hotbed_test;
#define TEST(name) #name, name

/* Defined by the test program; ends with {NULL, NULL}. */
extern const hotbed_test hotbed_tests[];

/* --- checks ---------------------------------------------------------------------------------- */

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0 : hotbed_check_failed(__FILE__, __LINE__, "CHECK(%s)", #condition))

/* Check that two integers, enums, bools or pointers are equal. */
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        static_assert(                                                                             \
            _Generic((a), float : 0, double : 0, default : 1) &&                                   \
                _Generic((b), float : 0, double : 0, default : 1),                                 \
            "CHECK_EQ takes no floating point: use CHECK_NEAR or CHECK_BYTES");                    \
        hotbed_check_eq(__FILE__, __LINE__, #a, #b, (uint64_t)(a), (uint64_t)(b));                 \
    } while (0)

/* Check that two numbers differ by `tolerance` at most. A NaN fails. */
#define CHECK_NEAR(a, b, tolerance)                                                                \
    hotbed_check_near(__FILE__, __LINE__, #a, #b, (double)(a), (double)(b), (double)(tolerance))

#define CHECK_STRING(a, b) hotbed_check_string(__FILE__, __LINE__, #a, #b, (a), (b))

/* Check that `bytes` bytes at a and b are equal. Prints the place of the first difference. */
#define CHECK_BYTES(a, b, bytes) hotbed_check_bytes(__FILE__, __LINE__, #a, #b, (a), (b), (bytes))

/* Check that the call returns HOTBED_OK. Prints hotbed_last_error() if it does not. */
#define CHECK_OK(call) hotbed_check_status(__FILE__, __LINE__, #call, (call), HOTBED_OK)

/* Check that the call returns `status`.  If `status` is an error, hotbed_last_error() must have a text. */
#define CHECK_STATUS(call, status) hotbed_check_status(__FILE__, __LINE__, #call, (call), (status))

/* Check the fields of hotbed_last_error_detail(), all but size and status: the given ones, by name, and
 * that all others are absent.  Of a path give the end.
 * CHECK_FIELDS(.has = HOTBED_HAS_KEY, .key = 7, .table = "user", .path = "/MANIFEST"); */
#define CHECK_FIELDS(...)                                                                          \
    hotbed_check_fields(                                                                           \
        __FILE__, __LINE__, hotbed_last_error_detail(), &(hotbed_error_detail){__VA_ARGS__})

/* Return from the test and count it as skipped. */
#define SKIP(reason)                                                                               \
    do {                                                                                           \
        hotbed_test_skip(reason);                                                                  \
        return;                                                                                    \
    } while (0)

void hotbed_check_fields(
    const char *file, int line, const hotbed_error_detail *found,
    const hotbed_error_detail *expected);
_Noreturn void hotbed_check_failed(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hotbed_check_eq(
    const char *file, int line, const char *a_text, const char *b_text, uint64_t a, uint64_t b);
void hotbed_check_near(
    const char *file, int line, const char *a_text, const char *b_text, double a, double b,
    double tolerance);
void hotbed_check_string(
    const char *file, int line, const char *a_text, const char *b_text, const char *a,
    const char *b);
void hotbed_check_bytes(
    const char *file, int line, const char *a_text, const char *b_text, const void *a,
    const void *b, size_t bytes);
void hotbed_check_status(
    const char *file, int line, const char *call, hotbed_status got, hotbed_status want);
void hotbed_test_skip(const char *reason);

/* --- size ------------------------------------------------------------------------------------ */

/* Whether HOTBED_TEST_SMALL is set, as it is under tools that slow each launch down a hundredfold.  Tests with more
 * than about a thousand launches then run fewer steps, ranks and combinations of each kind, with the same checks. */
bool hotbed_test_is_small(void);

/* Whether HOTBED_TEST_TOOL is `tool`.  For tests in which the tool reports false errors. */
bool hotbed_test_is_under(const char *tool);

/* --- streams and counters -------------------------------------------------------------------- */

hotbed_stream *hotbed_test_stream(hotbed_backend on); /* a stream of device 0 */
hotbed_counters hotbed_test_counters(void);

/* --- random numbers, from the seed ----------------------------------------------------------- */

uint64_t hotbed_test_seed(void); /* the seed that is printed */

/* The next random number of this test.  Not thread-safe. */
uint64_t hotbed_test_random(void);
uint64_t hotbed_test_below(uint64_t bound); /* in [0, bound); bound > 0 */
float hotbed_test_float(void);              /* in [-1, 1), a multiple of 2^-23 */

/* The next number of a generator of the caller's, for instance one per thread.  *state starts with any number. */
uint64_t hotbed_test_random_r(uint64_t *state);

/* --- files ----------------------------------------------------------------------------------- */

/* Create an empty directory in TMPDIR or /tmp.  It is removed with its contents when all tests have passed.  The string
 * is valid until the program ends. */
const char *hotbed_test_directory(void);
