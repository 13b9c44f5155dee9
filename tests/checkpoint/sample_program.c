/* tests/checkpoint/sample_program.c - saves a checkpoint for other programs to read.
 *
 * The environment has HOTBED_SAMPLE_PATH, HOTBED_SAMPLE_OPTIMIZER ("adam", ...), and
 * HOTBED_SAMPLE_BITS, the logarithm of the number of buckets.  Rows are those of
 * sample_fill_formula().
 */
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdlib.h>

static void save(hotbed_backend backend) {
    const char *path = getenv("HOTBED_SAMPLE_PATH");
    const char *optimizer = getenv("HOTBED_SAMPLE_OPTIMIZER");
    const char *bits = getenv("HOTBED_SAMPLE_BITS");
    if (path == NULL || optimizer == NULL || bits == NULL)
        SKIP("HOTBED_SAMPLE_PATH, _OPTIMIZER and _BITS are not set");
    sample_save_formula(path, optimizer, (uint32_t)strtoul(bits, NULL, 10), backend);
}

const hotbed_test hotbed_tests[] = {
    {"save", save},
    {NULL, NULL},
};
