/* tests/storage/program.h - random programs of calls on a storage, run beside the model.
 *
 * A seed determines a program: the options of a storage and a list of operations.  Each operation has its own random
 * numbers, so any operation can be left out.  Every output is compared with tests/support/oracle.h; the whole storage
 * is compared from time to time and at the end.
 */
#pragma once

#include "hotbed/stream.h"

#include <stdint.h>
#include <stdio.h>

enum { PROGRAM_OPERATIONS = 64 };

/* Number of operations of the program of `seed`, at most PROGRAM_OPERATIONS. */
uint32_t program_length(uint64_t seed);

/* Run the operations whose bit is set in `mask`. */
void program_run(hotbed_backend backend, uint64_t seed, uint64_t mask);

/* Write the options and the operations in `mask`, one to a line. */
void program_print(uint64_t seed, uint64_t mask, FILE *file);
