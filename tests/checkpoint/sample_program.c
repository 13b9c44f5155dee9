/* tests/checkpoint/sample_program.c - saves checkpoints that tests in other languages read.
 *
 * The environment selects one of four forms:
 * - HOTBED_SAMPLE_PATH and HOTBED_SAMPLE_MODEL, a number of ranks: the model of model.h with rows of version
 *   HOTBED_SAMPLE_VERSION (1 if unset).  If HOTBED_SAMPLE_INCREMENT is set, it is the path of an increment with
 *   some rows of the version after.
 * - HOTBED_SAMPLE_PATH, HOTBED_SAMPLE_OPTIMIZER ("adam", ...) and HOTBED_SAMPLE_BITS, the logarithm of the
 *   number of buckets: rows of sample_fill_formula().
 * - HOTBED_SAMPLE_PATH and HOTBED_SAMPLE_RANKS, a number of ranks: rows of ranks_fill() with version
 *   HOTBED_SAMPLE_VERSION (1 if unset), with times if HOTBED_SAMPLE_TIMES is set, and routed by ROUND_ROBIN if
 *   HOTBED_SAMPLE_DEALT is set.  If HOTBED_SAMPLE_INCREMENT is set, it is the path of an increment with the
 *   changes of ranks_change_some().  HOTBED_SAMPLE_EXTRA has the caller's bytes.
 * - HOTBED_SAMPLE_PATH, a directory, HOTBED_SAMPLE_RANKS, and HOTBED_SAMPLE_SAVES, the checkpoints to save in
 *   it, separated by blanks: "name:step", or "name:step:parent" for an increment.  A few rows change before
 *   each save. */
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void save_ranks(hotbed_backend backend, const char *path, uint32_t world) {
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM};
    if (getenv("HOTBED_SAMPLE_TIMES") != NULL)
        shape.score = HOTBED_SCORE_TIMESTAMP_LFU;
    if (getenv("HOTBED_SAMPLE_DEALT") != NULL)
        shape.route = HOTBED_ROUTE_ROUND_ROBIN;
    hotbed_stream *stream = hotbed_test_stream(backend);
    ranks_create(&r, &shape, world, stream);
    ranks_mark(&r);
    const char *version = getenv("HOTBED_SAMPLE_VERSION");
    ranks_fill(&r, version == NULL ? 1 : (uint32_t)strtoul(version, NULL, 10));
    const char *increment = getenv("HOTBED_SAMPLE_INCREMENT");
    r.extra = getenv("HOTBED_SAMPLE_EXTRA");
    ranks_save(&r, path);
    if (increment != NULL) {
        ranks_change_some(&r);
        ranks_save_after(&r, increment, path);
    }
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void save_model(hotbed_backend backend, const char *path, uint32_t world) {
    static const model_shape usual;
    model m;
    const char *version = getenv("HOTBED_SAMPLE_VERSION");
    const char *increment = getenv("HOTBED_SAMPLE_INCREMENT");
    uint32_t first = version == NULL ? 1 : (uint32_t)strtoul(version, NULL, 10);
    hotbed_stream *stream = hotbed_test_stream(backend);
    model_create(&m, &usual, world, stream);
    model_fill(&m, first, false);
    CHECK_OK(model_save(&m, path, NULL, &hotbed_io_system));
    if (increment != NULL) {
        model_fill(&m, first + 1, true);
        CHECK_OK(model_save(&m, increment, path, &hotbed_io_system));
    }
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

/* Save one checkpoint of HOTBED_SAMPLE_SAVES. */
static void save_named(ranks *r, const char *directory, char *save, uint32_t number) {
    char path[1024], parent[1024], *step = strchr(save, ':');
    CHECK(step != NULL);
    *step++ = '\0';
    char *before = strchr(step, ':');
    if (before != NULL)
        *before++ = '\0';
    snprintf(path, sizeof path, "%s/%s", directory, save);
    snprintf(parent, sizeof parent, "%s/%s", directory, before == NULL ? "" : before);
    r->step = strtoull(step, NULL, 10);
    ranks_change(r, 2 + number, number % 40, 40);
    ranks_save_after(r, path, before == NULL ? NULL : parent);
}

static void save_all(
    hotbed_backend backend, const char *directory, uint32_t world, const char *list) {
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_SGD};
    char *saves = strdup(list), *rest = saves;
    CHECK(saves != NULL);
    hotbed_stream *stream = hotbed_test_stream(backend);
    ranks_create(&r, &shape, world, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    uint32_t number = 0;
    for (char *one; (one = strtok_r(rest, " ", &rest)) != NULL; number++)
        save_named(&r, directory, one, number);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
    free(saves);
}

static void save(hotbed_backend backend) {
    const char *path = getenv("HOTBED_SAMPLE_PATH");
    const char *optimizer = getenv("HOTBED_SAMPLE_OPTIMIZER");
    const char *bits = getenv("HOTBED_SAMPLE_BITS"), *world = getenv("HOTBED_SAMPLE_RANKS");
    const char *saves = getenv("HOTBED_SAMPLE_SAVES"),
               *ranks_of_model = getenv("HOTBED_SAMPLE_MODEL");
    if (path != NULL && ranks_of_model != NULL) {
        save_model(backend, path, (uint32_t)strtoul(ranks_of_model, NULL, 10));
        return;
    }
    if (path != NULL && world != NULL && saves != NULL) {
        save_all(backend, path, (uint32_t)strtoul(world, NULL, 10), saves);
        return;
    }
    if (path != NULL && world != NULL) {
        save_ranks(backend, path, (uint32_t)strtoul(world, NULL, 10));
        return;
    }
    if (path == NULL || optimizer == NULL || bits == NULL)
        SKIP("HOTBED_SAMPLE_PATH, _OPTIMIZER and _BITS are not set");
    sample_save_formula(path, optimizer, (uint32_t)strtoul(bits, NULL, 10), backend);
}

const hotbed_test hotbed_tests[] = {
    {TEST(save)},
    {NULL, NULL},
};
