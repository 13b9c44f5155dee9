/* tests/storage/test_storage_programs.c - random programs of calls on a storage equal the model, byte for byte.
 *
 *   HOTBED_TEST_SEED=N      begins at another program; programs follow each other
 *   HOTBED_TEST_SECONDS=N   goes on for so long, for hours on demand
 *   HOTBED_TEST_PROGRAM=S:M runs the program of seed S alone, with the operations in the bits of M (hexadecimal)
 *
 * On the host every program is run by a child process.  When one fails, operations are left out as long as what remains
 * fails too, and the rest is printed with the command that runs it.
 */
#include "tests/storage/program.h"
#include "tests/support/harness.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PROGRAMS = 400, /* about 4 seconds */
    TOGETHER = 20,  /* of a child */
    PATIENCE = 120, /* seconds that a child may hang, where it takes a fraction of one */
};

/* --- fewer operations ------------------------------------------------------------------------------------- */

typedef bool (*fails_function)(const void *self, uint64_t mask);

/* Leave out operations, runs of them first, as long as what remains fails. */
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

static void what_fails_is_made_short(hotbed_backend backend) {
    (void)backend;
    for (int i = 0; i < 200; i++) {
        uint64_t needed = 0;
        for (int k = 0; k < 3; k++)
            needed |= UINT64_C(1) << hotbed_test_below(PROGRAM_OPERATIONS);
        if ((needed & (needed - 1)) == 0)
            continue;
        uint64_t mask = minimise(has_two_of_three, &needed, UINT64_MAX), rest = mask & (mask - 1);
        CHECK(has_two_of_three(&needed, mask));
        CHECK(rest != 0 && (rest & (rest - 1)) == 0); /* two operations, and no other */
    }
}

/* --- child processes --------------------------------------------------------------------------------------- */

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

/* Whether a child that runs the programs with the operations in `mask` fails. */
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
        (void)alarm(PATIENCE);
        for (uint32_t i = 0; i < p->count; i++)
            program_run(p->backend, p->seed + i, mask & whole(p->seed + i));
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && !p->quiet)
        fprintf(
            stderr, "signal %d%s\n", WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* One of the programs fails: which, and by how few operations. */
_Noreturn static void report(const programs *these) {
    programs one = *these;
    one.count = 1;
    one.quiet = true;
    while (one.seed + 1 < these->seed + these->count && !fails(&one, UINT64_MAX))
        one.seed++;
    uint64_t mask = minimise(fails, &one, whole(one.seed));
    one.quiet = false;
    bool again = fails(&one, mask); /* for its message */
    program_print(one.seed, mask, stderr);
    fprintf(
        stderr, "%s: HOTBED_TEST_PROGRAM=%" PRIu64 ":%" PRIx64 "\n",
        again ? "the program fails by these operations" : "it fails now and then", one.seed, mask);
    hotbed_check_failed(__FILE__, __LINE__, "program %" PRIu64, one.seed);
}

static double seconds_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
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
    double end = limit == NULL ? 0.0 : seconds_now() + strtod(limit, NULL);
    programs some = {.backend = backend, .seed = seed, .count = TOGETHER};
    for (uint32_t done = 0; done < count || seconds_now() < end; done += TOGETHER) {
        some.seed = seed + done;
        some.quiet = true;
        if (backend != HOTBED_BACKEND_HOST) { /* a GPU's context does not outlive a fork */
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
    {"what_fails_is_made_short", what_fails_is_made_short},
    {"random_programs_equal_the_model", random_programs_equal_the_model},
    {NULL, NULL},
};
