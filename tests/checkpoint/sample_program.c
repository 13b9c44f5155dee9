/* tests/checkpoint/sample_program.c - saves a checkpoint for other programs to read.
 *
 * The environment has HOTBED_SAMPLE_PATH, HOTBED_SAMPLE_OPTIMIZER ("adam", ...), and
 * HOTBED_SAMPLE_BITS, the logarithm of the number of buckets; rows are then those of
 * sample_fill_formula().  Or it has HOTBED_SAMPLE_PATH and HOTBED_SAMPLE_RANKS, a number of ranks; rows
 * are then those of ranks_fill() with HOTBED_SAMPLE_VERSION, or 1, with times where there is HOTBED_SAMPLE_TIMES, and where HOTBED_SAMPLE_INCREMENT is a path
 * too, the increment there has what ranks_change_some() does.
 */
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdlib.h>

static void save_ranks(hotbed_backend backend, const char *path, uint32_t world) {
    hotbed_stream *stream = NULL;
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM};
    if (getenv("HOTBED_SAMPLE_TIMES") != NULL)
        shape.score = HOTBED_SCORE_TIMESTAMP_LFU;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    ranks_create(&r, &shape, world, stream);
    ranks_mark(&r);
    const char *version = getenv("HOTBED_SAMPLE_VERSION");
    ranks_fill(&r, version == NULL ? 1 : (uint32_t)strtoul(version, NULL, 10));
    const char *increment = getenv("HOTBED_SAMPLE_INCREMENT");
    ranks_save(&r, path);
    if (increment != NULL) {
        ranks_change_some(&r);
        ranks_save_after(&r, increment, path);
    }
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void save(hotbed_backend backend) {
    const char *path = getenv("HOTBED_SAMPLE_PATH");
    const char *optimizer = getenv("HOTBED_SAMPLE_OPTIMIZER");
    const char *bits = getenv("HOTBED_SAMPLE_BITS"), *world = getenv("HOTBED_SAMPLE_RANKS");
    if (path != NULL && world != NULL) {
        save_ranks(backend, path, (uint32_t)strtoul(world, NULL, 10));
        return;
    }
    if (path == NULL || optimizer == NULL || bits == NULL)
        SKIP("HOTBED_SAMPLE_PATH, _OPTIMIZER and _BITS are not set");
    sample_save_formula(path, optimizer, (uint32_t)strtoul(bits, NULL, 10), backend);
}

const hotbed_test hotbed_tests[] = {
    {"save", save},
    {NULL, NULL},
};
