/* tests/checkpoint/test_checkpoint_sharded.c - a sharded collection whose tables have grown is saved, and
 * training continues on other numbers of ranks. */
#include "hotbed/checkpoint.h"
#include "tests/checkpoint/sample.h"
#include "tests/dist/sharded_fixture.h"

#include <stdio.h>

enum { STEPS = 20, MORE = 6 };

typedef struct grown_case {
    sharded_case how;
    const char *path, *model; /* of the collection, and of the model, which has all of its rows */
} grown_case;

/* The only lookup of the collection, and this rank's share of it. */
static hotbed_storage *lookup_of(
    const sharded_fixture *r, hotbed_route *routes, hotbed_checkpoint_share *share) {
    CHECK_EQ(hotbed_sharded_num_lookups(r->sharded), 1);
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_sharded_table table = {.size = sizeof table};
        CHECK_OK(hotbed_sharded_table_read(r->sharded, t, &table));
        routes[t] = table.route;
    }
    *share = (hotbed_checkpoint_share){r->me->rank, r->me->size, routes};
    return hotbed_sharded_lookup(r->sharded, 0);
}

static void save_body(world_rank *me) {
    const grown_case *c = me->argument;
    hotbed_route routes[FIXTURE_TABLES];
    hotbed_checkpoint_options options = {.size = sizeof options};
    sharded_fixture r;
    sharded_fixture_open(&r, me, &c->how);
    for (int step = 0; step < STEPS; step++)
        sharded_fixture_step(&r, step);
    CHECK(sharded_fixture_growths(&r) >= 2);
    options.comm = me->comm;
    hotbed_storage *lookup = lookup_of(&r, routes, &options.share);
    CHECK_OK(hotbed_checkpoint_save(c->path, &lookup, 1, &options, me->stream));
    options = (hotbed_checkpoint_options){.size = sizeof options};
    if (me->rank == 0)
        CHECK_OK(hotbed_checkpoint_save(c->model, &r.model, 1, &options, me->stream));
    sharded_fixture_close(&r);
}

/* Other ranks, whose tables begin small again, train to the same rows as a table that is large enough from
 * the start. */
static void load_body(world_rank *me) {
    const grown_case *c = me->argument;
    hotbed_route routes[FIXTURE_TABLES];
    hotbed_checkpoint_load_options options = {.size = sizeof options};
    sharded_fixture r;
    sharded_fixture_open(&r, me, &c->how);
    options.comm = me->comm;
    hotbed_storage *lookup = lookup_of(&r, routes, &options.share);
    CHECK_OK(hotbed_checkpoint_load(c->path, &lookup, 1, &options, NULL, me->stream));
    CHECK_OK(hotbed_checkpoint_load(c->model, &r.model, 1, NULL, NULL, me->stream));
    CHECK(
        me->size > 1 ||
        sharded_fixture_growths(&r) > 0); /* the table of a single rank begins too small */
    sharded_fixture_check_rows(&r);
    for (int step = STEPS; step < STEPS + MORE; step++)
        sharded_fixture_step(&r, step);
    CHECK(sharded_fixture_growths(&r) > 0);
    sharded_fixture_close(&r);
}

static void grown_tables_train_on_with_other_ranks(hotbed_backend backend) {
    static const uint32_t pairs[][2] = {{1, 2}, {2, 1}, {4, 1}, {2, 3}, {4, 2}};
    sample_directory();
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char path[256], model[256];
        snprintf(path, sizeof path, "%s", sample_path("collection"));
        snprintf(model, sizeof model, "%s", sample_path("model"));
        grown_case c = {
            .how =
                {.seed = 51 + i,
                 .optimizer = i % 2 == 0 ? HOTBED_OPT_ADAM : HOTBED_OPT_SGD,
                 .plan = i % 3 == 0 ? HOTBED_PLAN_TWO_PHASE : HOTBED_PLAN_FIXED,
                 .capacity = FIXTURE_KEYS,
                 .key_space = 400,
                 .one_rule = true,
                 .grows = true,
                 .cached = i >= 3},
            .path = path,
            .model = model};
        world from = {HOTBED_TRANSPORT_THREADS, pairs[i][0]};
        world to = {HOTBED_TRANSPORT_THREADS, pairs[i][1]};
        world_run(&from, NULL, save_body, &c);
        world_run(&to, NULL, load_body, &c);
        sample_remove(path);
        sample_remove(model);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(grown_tables_train_on_with_other_ranks)},
    {NULL, NULL},
};
