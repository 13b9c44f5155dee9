/* tests/support/test_fault.c - fault.h lets exactly the chosen allocation fail.
 *
 * Covers each wrapped function, called by the test, and the allocations of hotbed_stream_create().
 */
#define _DEFAULT_SOURCE
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, KINDS = 6 };

/* Allocate with function number `kind`. NULL if it failed. */
static void *allocate(int kind) {
    void *out = NULL;
    switch (kind) {
    case 0:
        return malloc(PAGE);
    case 1:
        return calloc(PAGE, 1);
    case 2:
        return realloc(NULL, PAGE);
    case 3:
        return aligned_alloc(256, PAGE);
    case 4:
        return posix_memalign(&out, 256, PAGE) == 0 ? out : NULL;
    default:
        out = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return out != MAP_FAILED ? out : NULL;
    }
}

static void release(int kind, void *memory) {
    if (kind < 5)
        free(memory);
    else if (memory != NULL)
        CHECK(munmap(memory, PAGE) == 0);
}

static void each_allocation_function_can_fail(hotbed_backend backend) {
    for (int kind = 0; kind < KINDS; kind++) {
        fault_arm(1);
        errno = 0;
        void *volatile memory = allocate(kind);
        int error = errno;
        CHECK(fault_disarm());
        CHECK(memory == NULL);
        CHECK(kind == 4 || error == ENOMEM);
        memory = allocate(kind);
        CHECK(memory != NULL);
        release(kind, memory);
    }
}

static void only_the_nth_fails(hotbed_backend backend) {
    for (uint64_t n = 1; n <= 4; n++) {
        fault_arm(n);
        for (uint64_t i = 1; i <= 4; i++) {
            void *volatile memory = malloc(PAGE);
            CHECK_EQ(memory == NULL, i == n);
            free(memory);
        }
        CHECK_EQ(fault_count(), 4);
        CHECK(fault_disarm());
    }
    fault_arm(2);
    void *volatile memory = malloc(PAGE);
    CHECK(memory != NULL);
    free(memory);
    CHECK(!fault_disarm());
}

static void allocations_of_the_library_fail(hotbed_backend backend) {
    for (uint64_t n = 1; n < 100; n++) {
        hotbed_stream *stream = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_stream_create(backend, 0, &stream);
        if (!fault_disarm()) {
            CHECK_OK(status);
            CHECK(n > 1);
            hotbed_stream_destroy(stream);
            return;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(stream == NULL);
    }
    CHECK(false);
}

const hotbed_test hotbed_tests[] = {
    {TEST(each_allocation_function_can_fail)},
    {TEST(only_the_nth_fails)},
    {TEST(allocations_of_the_library_fail)},
    {NULL, NULL},
};
