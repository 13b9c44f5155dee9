/* tests/support/fault.h - make the n-th allocation of the program fail, or do something else just before it.
 *
 * For tests registered with FAULT (cmake/hotbed_test.cmake).  Counts calls of malloc, calloc,
 * realloc, aligned_alloc, posix_memalign and mmap in the library's and the test's own code, on all
 * threads.  Calls inside of shared libraries are not counted.  The usual loop:
 *
 *     for (uint64_t n = 1; ; n++) {
 *         fault_arm(n);
 *         hotbed_status status = call(&out);
 *         if (!fault_disarm()) { CHECK_OK(status); break; }   // fewer than n allocations
 *         CHECK_STATUS(status, HOTBED_ERR_MEMORY);
 *         CHECK(out == NULL);
 *     }
 */
#ifndef HOTBED_TESTS_FAULT_H
#define HOTBED_TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Make the n-th allocation from now on fail with ENOMEM, once; n >= 1. */
void fault_arm(uint64_t n);

/* The same, but the allocation succeeds: call(argument) runs first, on the thread that allocates.
 * Pinned memory of GPUs counts too. */
void fault_arm_call(uint64_t n, void (*call)(void *argument), void *argument);

/* Let all allocations succeed from now on. Returns whether one has failed, or call() has run, since
 * fault_arm(). */
bool fault_disarm(void);

/* Number of allocations since the last fault_arm(), including the failed one. */
uint64_t fault_count(void);

#endif
