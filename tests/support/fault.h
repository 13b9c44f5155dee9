/* tests/support/fault.h - make the n-th allocation of the program fail, or call a function just before it.
 *
 * For tests registered with FAULT (cmake/hotbed_test.cmake).  Counts calls of malloc, calloc, realloc, aligned_alloc,
 * posix_memalign and mmap by the library and the test, on all threads, but not by shared libraries.  The usual loop
 * fails each allocation of a call in turn:
 *
 *     for (uint64_t n = 1; ; n++) {
 *         fault_arm(n);
 *         hotbed_status status = call(&out);
 *         if (!fault_disarm()) { CHECK_OK(status); break; }   // fewer than n allocations
 *         CHECK_STATUS(status, HOTBED_ERR_MEMORY);
 *         CHECK(out == NULL);
 *     }
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Make the n-th allocation from now on fail with ENOMEM, once; n >= 1. */
void fault_arm(uint64_t n);

/* Run call(argument) before the n-th allocation from now on, on the thread that allocates.  The allocation succeeds.
 * Allocations of pinned memory by CUDA are counted, too. */
void fault_arm_call(uint64_t n, void (*call)(void *argument), void *argument);

/* Let all allocations succeed from now on.  Returns whether the n-th allocation was reached since fault_arm() or
 * fault_arm_call(). */
bool fault_disarm(void);

/* Number of allocations since the last fault_arm(), including the failed one. */
uint64_t fault_count(void);
