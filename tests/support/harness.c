/* tests/support/harness.c - main(), checks, random numbers and temporary folders of test programs. */
#define _XOPEN_SOURCE 700 /* nftw() */
#include "tests/support/harness.h"

#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77, MAX_DIRECTORIES = 64 };

static uint64_t seed = 1;
static uint64_t random_state;
static const char *current = "(none)"; /* name of the running test */
static const char *program = "test";
static hotbed_backend backend = HOTBED_BACKEND_HOST;
static bool skipped;
static char directories[MAX_DIRECTORIES][256];
static int num_directories;

/* --- checks ---------------------------------------------------------------------------------- */

void hotbed_check_failed(const char *file, int line, const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s: ", file, line, current);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(
        stderr, "\nfailed; again: HOTBED_TEST_SEED=%" PRIu64 " %s --backend %s %s\n", seed, program,
        backend == HOTBED_BACKEND_CUDA ? "cuda" : "host", current);
    fflush(stderr);
    _Exit(EXIT_FAILURE); /* not exit(): its handlers would free memory that other threads use */
}

void hotbed_check_eq(
    const char *file, int line, const char *a_text, const char *b_text, uint64_t a, uint64_t b) {
    if (a != b)
        hotbed_check_failed(
            file, line,
            "CHECK_EQ(%s, %s): %" PRIu64 " (%" PRId64 ", 0x%" PRIx64 ") and %" PRIu64 " (%" PRId64
            ", 0x%" PRIx64 ")",
            a_text, b_text, a, (int64_t)a, a, b, (int64_t)b, b);
}

void hotbed_check_near(
    const char *file, int line, const char *a_text, const char *b_text, double a, double b,
    double tolerance) {
    if (!(fabs(a - b) <= tolerance))
        hotbed_check_failed(
            file, line, "CHECK_NEAR(%s, %s): %.17g and %.17g differ by %.3g, more than %.3g",
            a_text, b_text, a, b, fabs(a - b), tolerance);
}

void hotbed_check_string(
    const char *file, int line, const char *a_text, const char *b_text, const char *a,
    const char *b) {
    if (a == b || (a != NULL && b != NULL && strcmp(a, b) == 0))
        return;
    hotbed_check_failed(
        file, line, "CHECK_STRING(%s, %s): \"%s\" and \"%s\"", a_text, b_text,
        a != NULL ? a : "(NULL)", b != NULL ? b : "(NULL)");
}

static void print_fields(
    char *text, size_t capacity, const hotbed_error_detail *d, const char *path) {
    (void)snprintf(
        text, capacity,
        "{cause %d, has %u, os_error %d, rank %d, key %" PRIu64
        " of type %u, table %u \"%s\", feature %u, sample %u, parameter \"%s\", value %.17g, limit "
        "%.17g, path \"%s\"}",
        (int)d->cause, d->has, d->os_error, d->rank, d->key, d->key_type, d->table_number, d->table,
        d->feature, d->sample, d->parameter, d->value, d->limit, path);
}

void hotbed_check_fields(
    const char *file, int line, const hotbed_error_detail *found,
    const hotbed_error_detail *expected) {
    char a[1024], b[1024];
    const size_t all = strlen(found->path), end = strlen(expected->path);
    print_fields(a, sizeof a, found, found->path + (end < all ? all - end : 0));
    print_fields(b, sizeof b, expected, expected->path);
    if (strcmp(a, b) != 0)
        hotbed_check_failed(
            file, line, "the fields of \"%s\" are\n  %s, expected\n  %s", hotbed_last_error(), a,
            b);
}

void hotbed_check_bytes(
    const char *file, int line, const char *a_text, const char *b_text, const void *a,
    const void *b, size_t bytes) {
    const unsigned char *left = a, *right = b;
    size_t first = bytes, differing = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (left[i] == right[i])
            continue;
        if (differing == 0)
            first = i;
        differing++;
    }
    if (differing != 0)
        hotbed_check_failed(
            file, line,
            "CHECK_BYTES(%s, %s): %zu of %zu bytes differ, first at %zu: 0x%02x and 0x%02x", a_text,
            b_text, differing, bytes, first, left[first], right[first]);
}

void hotbed_check_status(
    const char *file, int line, const char *call, hotbed_status got, hotbed_status want) {
    if (got != want)
        hotbed_check_failed(
            file, line, "%s is %s, not %s; last error: \"%s\"", call, hotbed_status_name(got),
            hotbed_status_name(want), hotbed_last_error());
    if (want != HOTBED_OK && hotbed_last_error()[0] == '\0')
        hotbed_check_failed(file, line, "%s is %s without a text", call, hotbed_status_name(got));
}

void hotbed_test_skip(const char *reason) {
    skipped = true;
    printf("     %s: skipped, %s\n", current, reason);
}

/* --- size ------------------------------------------------------------------------------------ */

bool hotbed_test_is_small(void) {
    return getenv("HOTBED_TEST_SMALL") != NULL;
}

bool hotbed_test_is_under(const char *tool) {
    const char *name = getenv("HOTBED_TEST_TOOL");
    return name != NULL && strcmp(name, tool) == 0;
}

hotbed_stream *hotbed_test_stream(hotbed_backend on) {
    hotbed_stream *stream = NULL;
    CHECK_OK(hotbed_stream_create(on, 0, &stream));
    return stream;
}

hotbed_counters hotbed_test_counters(void) {
    hotbed_counters counters = {.size = sizeof counters};
    CHECK_OK(hotbed_counters_read(&counters));
    return counters;
}

/* --- random numbers -------------------------------------------------------------------------- */

/* splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
uint64_t hotbed_test_random_r(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

uint64_t hotbed_test_seed(void) {
    return seed;
}

uint64_t hotbed_test_random(void) {
    return hotbed_test_random_r(&random_state);
}

uint64_t hotbed_test_below(uint64_t bound) {
    CHECK(bound > 0);
    return hotbed_test_random() % bound; /* the bias does not matter here */
}

float hotbed_test_float(void) {
    return (float)(hotbed_test_random() >> 40) * 0x1p-23F - 1.0F;
}

static void seed_test(const char *name) {
    random_state = seed;
    for (const char *c = name; *c != '\0'; c++) {
        random_state ^= (unsigned char)*c;
        (void)hotbed_test_random();
    }
}

/* --- files ----------------------------------------------------------------------------------- */

const char *hotbed_test_directory(void) {
    CHECK(num_directories < MAX_DIRECTORIES);
    char *path = directories[num_directories];
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] == '\0')
        parent = "/tmp";
    int length = snprintf(path, sizeof directories[0], "%s/hotbed-test-XXXXXX", parent);
    CHECK(length > 0 && (size_t)length < sizeof directories[0]);
    CHECK(mkdtemp(path) != NULL);
    num_directories++;
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    return remove(path);
}

static void remove_directories(void) {
    while (num_directories > 0)
        (void)nftw(directories[--num_directories], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- the program ----------------------------------------------------------------------------- */

static bool wanted(const char *name, int num_filters, char **filters) {
    bool any = num_filters == 0;
    for (int i = 0; i < num_filters; i++)
        any = any || strstr(name, filters[i]) != NULL;
    return any;
}

static int usage(const char *problem) {
    fprintf(stderr, "%s\nusage: %s [--backend host|cuda] [--list] [NAME...]\n", problem, program);
    return 2;
}

/* Remove the options from the front of argv, so that only filters are left.  Returns 0, or the exit status. */
static int read_arguments(int *argc, char ***argv, bool *list) {
    program = (*argv)[0];
    (*argv)++;
    (*argc)--;
    for (; *argc > 0 && strncmp(**argv, "--", 2) == 0; (*argv)++, (*argc)--) {
        if (strcmp(**argv, "--list") == 0) {
            *list = true;
        } else if (strcmp(**argv, "--backend") == 0 && *argc > 1) {
            (*argv)++;
            (*argc)--;
            if (strcmp(**argv, "cuda") == 0)
                backend = HOTBED_BACKEND_CUDA;
            else if (strcmp(**argv, "host") != 0)
                return usage("unknown backend");
        } else {
            return usage("unknown option");
        }
    }
    const char *text = getenv("HOTBED_TEST_SEED");
    if (text != NULL && text[0] != '\0') {
        char *end;
        seed = strtoull(text, &end, 0);
        if (*end != '\0')
            return usage("HOTBED_TEST_SEED is not a number");
    }
    return 0;
}

int main(int argc, char **argv) {
    bool list = false;
    int status = read_arguments(&argc, &argv, &list);
    if (status != 0)
        return status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!list && hotbed_backend_probe(backend) != HOTBED_OK) {
        printf("skipped: %s\n", hotbed_last_error());
        return EXIT_SKIPPED;
    }
    if (!list)
        printf("seed %" PRIu64 "\n", seed);
    int passed = 0, skips = 0;
    for (const hotbed_test *test = hotbed_tests; test->name != NULL; test++) {
        if (!wanted(test->name, argc, argv))
            continue;
        if (list) {
            printf("%s\n", test->name);
            continue;
        }
        current = test->name;
        skipped = false;
        seed_test(test->name);
        test->run(backend);
        if (skipped)
            skips++;
        else
            printf("ok   %s\n", test->name);
        passed += !skipped;
    }
    remove_directories();
    if (list)
        return EXIT_SUCCESS;
    printf("%d passed, %d skipped\n", passed, skips);
    if (passed == 0 && skips == 0)
        return usage("no test's name contains any NAME");
    return passed == 0 ? EXIT_SKIPPED : EXIT_SUCCESS;
}
