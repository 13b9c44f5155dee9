/* tests/storage/test_storage_programs.c - random programs of calls on a storage against the model, byte by byte.
 *
 * tests/storage/program.h makes a program of a seed and runs it.  Environment:
 *   HOTBED_TEST_SEED=N       start with other programs
 *   HOTBED_TEST_SECONDS=N    run programs for N seconds
 *   HOTBED_TEST_PROGRAM=S:M  run only the program of seed S, with the operations in the bit mask M (hexadecimal)
 *
 * On the host, child processes run the programs.  If a program fails, operations are removed as long as the rest still
 * fails, and the shortest program is printed with the variable that repeats it.
 */
#include "base/clock.h"
#include "tests/storage/program.h"
#include "tests/support/harness.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PROGRAMS = 400, /* 4 seconds */
    TOGETHER = 20,  /* programs of a child process */
    TIMEOUT = 120,  /* seconds; a child that hangs is killed */
};

/* --- minimising ------------------------------------------------------------------------------ */

typedef bool (*fails_function)(const void *self, uint64_t mask);

/* Remove operations, long runs first, as long as the rest still fails.  Returns the remaining ones. */
static uint64_t minimise(fails_function fails, const void *self, uint64_t mask) {
    for (uint32_t run = PROGRAM_OPERATIONS / 2; run > 0;) {
        bool shorter = false;
        for (uint32_t first = 0; first < PROGRAM_OPERATIONS; first += run) {
            uint64_t without = mask & ~(((UINT64_C(1) << run) - 1) << first);
            if (without == mask || !fails(self, without))
                continue;
            mask = without;
            shorter = true;
        }
        if (!shorter || run > 1)
            run /= 2;
    }
    return mask;
}

static bool has_two_of_three(const void *self, uint64_t mask) {
    uint64_t needed = *(const uint64_t *)self & mask;
    return (needed & (needed - 1)) != 0;
}

static void failing_programs_are_minimised(hotbed_backend backend) {
    for (int i = 0; i < 200; i++) {
        uint64_t needed = 0;
        for (int k = 0; k < 3; k++)
            needed |= UINT64_C(1) << hotbed_test_below(PROGRAM_OPERATIONS);
        if ((needed & (needed - 1)) == 0)
            continue;
        uint64_t mask = minimise(has_two_of_three, &needed, UINT64_MAX), rest = mask & (mask - 1);
        CHECK(has_two_of_three(&needed, mask));
        CHECK(rest != 0 && (rest & (rest - 1)) == 0); /* exactly two operations remain */
    }
}

/* --- child processes ------------------------------------------------------------------------- */

typedef struct programs {
    hotbed_backend backend;
    uint64_t seed;
    uint32_t count;
    bool quiet;
} programs;

static uint64_t whole(uint64_t seed) {
    uint32_t n = program_length(seed);
    return n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

/* Run the programs, with the operations in `mask`, in a child process.  Returns whether it failed. */
static bool fails(const void *self, uint64_t mask) {
    const programs *p = self;
    (void)fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (p->quiet) {
            int nothing = open("/dev/null", O_WRONLY);
            if (nothing < 0 || dup2(nothing, STDERR_FILENO) < 0)
                _exit(2);
        }
        (void)alarm(TIMEOUT);
        for (uint32_t i = 0; i < p->count; i++)
            program_run(p->backend, p->seed + i, mask & whole(p->seed + i));
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && !p->quiet)
        fprintf(
            stderr, "signal %d%s\n", WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? "; it ran too long" : "");
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Find the program that fails, minimise it, print it, and fail. */
_Noreturn static void report(const programs *these) {
    programs one = *these;
    one.count = 1;
    one.quiet = true;
    while (one.seed + 1 < these->seed + these->count && !fails(&one, UINT64_MAX))
        one.seed++;
    uint64_t mask = minimise(fails, &one, whole(one.seed));
    one.quiet = false;
    bool again = fails(&one, mask); /* to print its message */
    program_print(one.seed, mask, stderr);
    fprintf(
        stderr, "%s: HOTBED_TEST_PROGRAM=%" PRIu64 ":%" PRIx64 "\n",
        again ? "the program fails with these operations" : "the failure is not reproducible",
        one.seed, mask);
    hotbed_check_failed(__FILE__, __LINE__, "program %" PRIu64, one.seed);
}

static void random_programs_equal_the_model(hotbed_backend backend) {
    const char *alone = getenv("HOTBED_TEST_PROGRAM"), *limit = getenv("HOTBED_TEST_SECONDS");
    if (alone != NULL && alone[0] != 0) {
        char *end;
        uint64_t seed = strtoull(alone, &end, 10);
        uint64_t mask = *end == ':' ? strtoull(end + 1, NULL, 16) : UINT64_MAX;
        program_print(seed, mask & whole(seed), stdout);
        program_run(backend, seed, mask & whole(seed));
        return;
    }
    uint64_t seed = (hotbed_test_seed() - 1) * 1000000;
    uint32_t count = hotbed_test_is_small() ? 40 : PROGRAMS;
    double end = limit == NULL ? 0.0 : hotbed_monotonic_seconds() + strtod(limit, NULL);
    programs some = {.backend = backend, .seed = seed, .count = TOGETHER};
    for (uint32_t done = 0; done < count || hotbed_monotonic_seconds() < end; done += TOGETHER) {
        some.seed = seed + done;
        some.quiet = true;
        if (backend != HOTBED_BACKEND_HOST) { /* CUDA does not work in a forked child */
            for (uint32_t i = 0; i < TOGETHER; i++)
                program_run(backend, some.seed + i, whole(some.seed + i));
        } else if (fails(&some, UINT64_MAX)) {
            report(&some);
        }
        if (limit != NULL && done % 5000 == 0 && done > 0)
            printf("%u programs\n", done);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(failing_programs_are_minimised)},
    {TEST(random_programs_equal_the_model)},
    {NULL, NULL},
};
