/* tests/storage/program.h - random programs of calls on a storage, run beside the model.
 *
 * A seed gives a program: options of a storage and a list of operations.  Each operation has random numbers of its own,
 * so that a program is still one when operations are left out of it.  Running it compares every output, and the whole
 * storage at times and at the end, with tests/support/oracle.h; a difference fails a check.
 */
#ifndef HOTBED_TESTS_PROGRAM_H
#define HOTBED_TESTS_PROGRAM_H

#include "hotbed/stream.h"

#include <stdint.h>
#include <stdio.h>

enum { PROGRAM_OPERATIONS = 64 };

/* Number of operations of the program that `seed` gives, at most PROGRAM_OPERATIONS. */
uint32_t program_length(uint64_t seed);

/* Run the operations whose bit is set in `mask`. */
void program_run(hotbed_backend backend, uint64_t seed, uint64_t mask);

/* Write options and operations, a line each. */
void program_print(uint64_t seed, uint64_t mask, FILE *file);

#endif
