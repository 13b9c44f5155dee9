/* tests/support/fault.h - make the n-th allocation of the program fail, or do something else just before it.
 *
 * For tests registered with FAULT (cmake/hotbed_test.cmake).  Counts malloc, calloc, realloc,
 * aligned_alloc, posix_memalign and mmap calls made by the library's and the test's own code, on all
 * threads; calls made inside of shared libraries are not seen.  The usual loop:
 *
 *     for (uint64_t n = 1; ; n++) {
 *         fault_arm(n);
 *         hotbed_status status = call(&out);
 *         if (!fault_disarm()) { CHECK_OK(status); break; }   // it needed fewer than n
 *         CHECK_STATUS(status, HOTBED_ERR_MEMORY);
 *         CHECK(out == NULL);
 *     }
 */
#ifndef HOTBED_TESTS_FAULT_H
#define HOTBED_TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* The n-th allocation from now on fails with ENOMEM, once; n >= 1. */
void fault_arm(uint64_t n);

/* The same, but the allocation does not fail: call(argument) runs first, on the thread that allocates.  Pinned memory of
 * GPUs counts too. */
void fault_arm_call(uint64_t n, void (*call)(void *argument), void *argument);

/* No allocation fails from now on.  Whether one did since fault_arm(), or call() ran. */
bool fault_disarm(void);

/* Allocations since the last fault_arm(), the failed one included. */
uint64_t fault_count(void);

#endif
