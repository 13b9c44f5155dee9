/* tests/support/harness.h - what a test program is made of.
 *
 * A program defines hotbed_tests[]; the harness has main().  Options:
 *   --backend host|cuda  handed to each test (host unless given); exit 77 where it cannot run
 *   --list               names of the tests
 *   NAME...              only tests whose name contains one of these
 * The environment's HOTBED_TEST_SEED (1 unless set) seeds the random numbers; it is printed.  Each test
 * starts its numbers anew from the seed and its name, so a test run alone sees what it saw before.
 * HOTBED_TEST_SMALL, set to anything, makes long tests small: hotbed_test_is_small().
 * HOTBED_TEST_TOOL is the tool that watches, if any does: hotbed_test_is_under().
 *
 * A check that fails prints the place and the values, and ends the program with status 1: objects of the
 * library may hold threads, so no later test could be trusted.  Checks may be made on any thread.
 */
#ifndef HOTBED_TESTS_HARNESS_H
#define HOTBED_TESTS_HARNESS_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hotbed_test {
    const char *name; /* a sentence: full_table_refuses_new_keys */
    void (*run)(hotbed_backend backend);
} hotbed_test;

/* Defined by the test program; ends with {NULL, NULL}. */
extern const hotbed_test hotbed_tests[];

/* --- checks --------------------------------------------------------------------------------- */

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0 : hotbed_check_failed(__FILE__, __LINE__, "CHECK(%s)", #condition))

/* Two integers, enums, bools or pointers. */
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        static_assert(                                                                             \
            _Generic((a), float : 0, double : 0, default : 1) &&                                   \
                _Generic((b), float : 0, double : 0, default : 1),                                 \
            "CHECK_EQ takes no floating point: use CHECK_NEAR or CHECK_BYTES");                    \
        hotbed_check_eq(__FILE__, __LINE__, #a, #b, (uint64_t)(a), (uint64_t)(b));                 \
    } while (0)

/* Two numbers that differ by `tolerance` at most; a NaN fails. */
#define CHECK_NEAR(a, b, tolerance)                                                                \
    hotbed_check_near(__FILE__, __LINE__, #a, #b, (double)(a), (double)(b), (double)(tolerance))

#define CHECK_STRING(a, b) hotbed_check_string(__FILE__, __LINE__, #a, #b, (a), (b))

/* The same `bytes` bytes at a and b; says where the first difference is. */
#define CHECK_BYTES(a, b, bytes) hotbed_check_bytes(__FILE__, __LINE__, #a, #b, (a), (b), (bytes))

/* The call returns HOTBED_OK; prints hotbed_last_error() when it does not. */
#define CHECK_OK(call) hotbed_check_status(__FILE__, __LINE__, #call, (call), HOTBED_OK)

/* The call returns `status`, and, when that is an error, hotbed_last_error() has a text. */
#define CHECK_STATUS(call, status) hotbed_check_status(__FILE__, __LINE__, #call, (call), (status))

/* Leave the test; it counts as skipped. */
#define SKIP(reason)                                                                               \
    do {                                                                                           \
        hotbed_test_skip(reason);                                                                  \
        return;                                                                                    \
    } while (0)

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

/* --- size --------------------------------------------------------------------------------------- */

/* Whether HOTBED_TEST_SMALL is set, as it is under tools that take a hundred times as long for each launch.
 * Tests of more than about a thousand launches then take fewer steps, ranks and combinations, of each kind
 * some, and check all that they check without it. */
bool hotbed_test_is_small(void);

/* Whether HOTBED_TEST_TOOL is `tool`, for what that tool gets wrong. */
bool hotbed_test_is_under(const char *tool);

/* --- random numbers, from the seed ------------------------------------------------------------ */

uint64_t hotbed_test_seed(void); /* as printed */

/* The next number of this test; from one thread at a time. */
uint64_t hotbed_test_random(void);
uint64_t hotbed_test_below(uint64_t bound); /* in [0, bound); bound > 0 */
float hotbed_test_float(void);              /* in [-1, 1), a multiple of 2^-23 */

/* A generator of one's own, for threads: *state is any number at first. */
uint64_t hotbed_test_random_r(uint64_t *state);

/* --- files ------------------------------------------------------------------------------------ */

/* A new empty directory in TMPDIR or /tmp, removed with all in it when the program ends well.  The
 * string is valid until then. */
const char *hotbed_test_directory(void);

#endif
