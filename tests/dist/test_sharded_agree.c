/* tests/dist/test_sharded_agree.c - creation of collections whose options differ between ranks, and of contexts whose
 * collections differ. */
#include "dist/sharded.h"
#include "tests/dist/sharded_fixture.h"
#include "tests/support/fault.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 2 };

typedef struct setup {
    hotbed_table_options tables[TABLES];
    hotbed_route_kind routes[TABLES];
    const char *features[TABLES];
    uint32_t feature_tables[TABLES];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
} setup;

static void describe(setup *s) {
    memset(s, 0, sizeof *s);
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_table_options_init(&s->tables[t]);
        s->tables[t].name = t == 0 ? "user" : "item";
        s->tables[t].dim = 8;
        s->tables[t].capacity = 1000;
        s->features[t] = t == 0 ? "seen" : "bought";
        s->feature_tables[t] = t;
    }
    hotbed_storage_options_init(&s->storage);
    s->storage.num_tables = TABLES;
    s->storage.tables = s->tables;
    s->storage.num_features = TABLES;
    s->storage.feature_tables = s->feature_tables;
    s->storage.optimizer.kind = HOTBED_OPT_ADAM;
    hotbed_sharded_options_init(&s->options);
    s->options.storage = &s->storage;
    s->options.routes = s->routes;
    s->options.features = s->features;
    s->options.max_batch_size = 4;
    s->options.max_keys = 40;
    s->options.capacity = 30;
}

static hotbed_status create(const setup *s, const world_rank *me) {
    hotbed_sharded *sharded = NULL;
    hotbed_status status = hotbed_sharded_create(&s->options, me->comm, me->stream, &sharded);
    CHECK_EQ(sharded != NULL, status == HOTBED_OK);
    hotbed_sharded_destroy(sharded);
    return status;
}

/* Check the text of the last error: it says `own` of the last rank, and `others` of rank 0.  With `others` NULL the
 * last rank cannot create `what`, for the reason `own`, and the others report that. */
static void check_text(
    const world_rank *me, const char *own, const char *others, const char *what) {
    const uint32_t culprit = me->size - 1;
    char expected[200];
    if (others != NULL)
        (void)snprintf(
            expected, sizeof expected, "%s on rank %u, but %s on rank 0", own, culprit, others);
    else if (me->rank != culprit)
        (void)snprintf(
            expected, sizeof expected, "rank %u cannot create its %s: %s", culprit, what, own);
    else
        (void)snprintf(expected, sizeof expected, "%s", own);
    CHECK(strncmp(hotbed_last_error(), expected, strlen(expected)) == 0);
}

/* Run `body` in each world of two to four ranks. */
static void run_worlds(world_body body) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++)
        if (where->size > 1 && world_is_wanted(where, 4))
            world_run(where, NULL, body, NULL);
}

/* --- options that differ ---------------------------------------------------------------------- */

/* A change of one option on one rank, and what all ranks say of that rank and of rank 0.  With
 * `others` NULL the rank fails by itself, and the others say why. */
typedef struct change {
    void (*make)(setup *s);
    const char *own, *others;
} change;

static void tables(setup *s) {
    s->storage.num_tables = s->storage.num_features = 1;
}
static void features(setup *s) {
    s->storage.num_features = 0;
    s->options.features = NULL;
}
static void table_name(setup *s) {
    s->tables[1].name = "shop";
}
static void feature_name(setup *s) {
    s->features[1] = "sold";
}
static void dim(setup *s) {
    s->tables[0].dim = s->tables[1].dim = 16;
}
static void dtype(setup *s) {
    s->tables[1].dtype = HOTBED_BF16;
}
static void kind(setup *s) {
    s->tables[1].kind = HOTBED_TABLE_STATIC;
    s->routes[1] = HOTBED_ROUTE_CONTINUOUS;
}
static void route(setup *s) {
    s->routes[0] = HOTBED_ROUTE_ROUND_ROBIN;
}
static void table_capacity(setup *s) {
    s->tables[0].capacity = 1001;
}
static void max_capacity(setup *s) {
    s->tables[0].max_capacity = 2000;
}
static void evict(setup *s) {
    s->tables[0].evict = HOTBED_EVICT_LOWEST;
}
static void score(setup *s) {
    s->tables[1].score = HOTBED_SCORE_LFU;
}
static void insertion(setup *s) {
    s->tables[1].insertion = HOTBED_INSERT_PROBATION;
}
static void initializer(setup *s) {
    s->tables[1].initializer.kind = HOTBED_INIT_UNIFORM;
    s->tables[1].initializer.upper = 0.5F;
}
static void eval_initializer(setup *s) {
    s->tables[1].eval_initializer.value = 2.0F;
}
static void admission(setup *s) {
    s->tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s->tables[0].admission_threshold = 3;
}
static void pooling(setup *s) {
    s->storage.pooling = HOTBED_POOL_MEAN;
}
static void key_type(setup *s) {
    s->storage.key_type = HOTBED_KEY_U64;
}
static void output_dtype(setup *s) {
    s->storage.output_dtype = HOTBED_F16;
}
static void optimizer(setup *s) {
    s->storage.optimizer.kind = HOTBED_OPT_SGD;
}
static void beta2(setup *s) {
    s->storage.optimizer.beta2 = 0.5F;
}
static void seed(setup *s) {
    s->storage.seed = 7;
}
static void plan(setup *s) {
    s->options.plan = HOTBED_PLAN_TWO_PHASE;
}
static void overflow(setup *s) {
    s->options.overflow = HOTBED_OVERFLOW_REPORT;
}
static void dedup(setup *s) {
    s->options.dedup = HOTBED_DEDUP_OFF;
}
static void gradient_scale(setup *s) {
    s->options.gradient_scale = 0.25F;
}
static void max_batch_size(setup *s) {
    s->options.max_batch_size = 5;
}
static void max_keys(setup *s) {
    s->options.max_keys = 41;
}
static void capacity(setup *s) {
    s->options.capacity = 31;
}
/* The last two fail on their rank alone. */
static void no_keys(setup *s) {
    s->options.max_keys = 0;
}
static void wrong_table(setup *s) {
    s->tables[1].max_capacity = 1;
}

static const change changes[] = {
    {tables, "num_tables is 1", "2"},
    {features, "name of feature 0 is user", "seen"},
    {table_name, "name of table 1 is shop", "item"},
    {feature_name, "name of feature 1 is sold", "bought"},
    {dim, "dim of table user is 16", "8"},
    {dtype, "dtype of table item is bf16", "f32"},
    {kind, "kind of table item is static", "hash"},
    {route, "route of table user is roundrobin", "hash_roundrobin"},
    {table_capacity, "capacity of table user is 1001", "1000"},
    {max_capacity, "max_capacity of table user is 2000", "1000"},
    {evict, "evict of table user is lowest", "never"},
    {score, "score of table item is lfu", "step"},
    {insertion, "insertion of table item is probation", "auto"},
    {initializer, "initializer of table item is uniform in [0, 0.5)", "constant 0"},
    {eval_initializer, "eval_initializer of table item is constant 2", "constant 0"},
    {admission, "admission of table user is frequency", "all"},
    {pooling, "pooling is mean", "none"},
    {key_type, "key_type is u64", "i64"},
    {output_dtype, "output_dtype is f16", "f32"},
    {optimizer, "optimizer is sgd", "adam"},
    {beta2, "beta2 of optimizer adam is 0.5", "0.999"},
    {seed, "seed is 7", "0"},
    {plan, "plan is two-phase", "fixed"},
    {overflow, "overflow is report", "replay"},
    {dedup, "dedup is off", "on"},
    {gradient_scale, "gradient_scale is 0.25", "1"},
    {max_batch_size, "max_batch_size is 5", "4"},
    {max_keys, "max_keys is 41", "40"},
    {capacity, "capacity is 31", "30"},
    {no_keys, "max_keys 0 is not in [1, 2^30]", NULL},
    {wrong_table, "table item: max_capacity 1", NULL},
};
enum { CHANGES = sizeof changes / sizeof changes[0] };

/* One rank changes one option, and all ranks report it.  Then the communicator still works. */
static void differences_body(world_rank *me) {
    setup s;
    for (int i = 0; i < CHANGES; i++) {
        describe(&s);
        if (me->rank == me->size - 1)
            changes[i].make(&s);
        CHECK_STATUS(create(&s, me), HOTBED_ERR_ARGUMENT);
        check_text(me, changes[i].own, changes[i].others, "part of the collection");
    }
    describe(&s);
    CHECK_OK(create(&s, me));
}

static void a_difference_is_reported_by_all_ranks(hotbed_backend backend) {
    (void)backend;
    run_worlds(differences_body);
}

/* --- options that may differ ------------------------------------------------------------------ */

/* Options that concern one rank only, and different spellings of one value. */
static void same_body(world_rank *me) {
    setup s;
    uint64_t before, after;
    describe(&s);
    s.options.capacity = 1000; /* at most max_keys */
    CHECK_OK(hotbed_comm_log_digest(me->comm, &before, NULL));
    CHECK_OK(create(&s, me));
    CHECK_OK(hotbed_comm_log_digest(me->comm, &after, NULL));
    CHECK_EQ(after - before, me->size > 1 ? 1 : 0); /* digests only */
    if (me->rank + 1 == me->size) {
        s.options.capacity = 40;
        s.options.kjt_features = 7;
        s.options.growth_every = 3;
        s.options.dedup = HOTBED_DEDUP_ON;
        s.options.routes = NULL;
        s.storage.num_features = 0;
        s.storage.feature_tables = NULL;
        s.storage.check = HOTBED_CHECK_IGNORE;
        s.storage.mode = HOTBED_MODE_CACHE;
        s.storage.key_type = HOTBED_KEY_I64;
        s.storage.output_dtype = HOTBED_F32;
        s.tables[0].dtype = HOTBED_F32;
        s.tables[0].max_capacity = 1000;
        s.tables[0].upper_capacity = s.tables[1].upper_capacity = 100;
    }
    CHECK_OK(create(&s, me));
}

static void options_of_one_rank_are_not_compared(hotbed_backend backend) {
    (void)backend;
    sharded_fixture_run(4, same_body, NULL);
}

/* --- contexts --------------------------------------------------------------------------------- */

enum { COLLECTIONS = 3 };

/* Create a context of `n` collections that differ on the last rank. */
static void fail_context(
    const world_rank *me, uint32_t n, hotbed_sharded *const *collections, const char *own,
    const char *others) {
    hotbed_sharded_context *context = NULL;
    CHECK_STATUS(
        hotbed_sharded_create_context(n, collections, me->stream, &context), HOTBED_ERR_ARGUMENT);
    CHECK(context == NULL);
    check_text(me, own, others, "context");
}

/* The first two collections have the same options. */
static void contexts_body(world_rank *me) {
    const bool culprit = me->rank == me->size - 1;
    hotbed_sharded *c[COLLECTIONS] = {NULL};
    hotbed_sharded_context *context = NULL;
    setup s;
    describe(&s);
    for (int i = 0; i < COLLECTIONS; i++) {
        if (i == 2)
            s.storage.num_tables = s.storage.num_features = 1;
        CHECK_OK(hotbed_sharded_create(&s.options, me->comm, me->stream, &c[i]));
    }
    hotbed_sharded *const given[] = {c[0], c[1], c[2]}, *const swapped[] = {c[0], c[2], c[1]};
    hotbed_sharded *const absent[] = {c[0], NULL};
    fail_context(
        me, 3, culprit ? swapped : given, "collection 1 is number 2 (table user)",
        "number 1 (table user and 1 more)");
    CHECK(strstr(hotbed_last_error(), "the same collections, in the same order") != NULL);
    fail_context(
        me, 1, culprit ? &c[1] : c, "collection 0 is number 1 (table user and 1 more)",
        "number 0 (table user and 1 more)");
    fail_context(me, culprit ? 2 : 3, given, "number of collections is 2", "3");
    fail_context(me, 2, culprit ? absent : given, "collection 1 is NULL", NULL);
    CHECK_OK(hotbed_sharded_create_context(3, swapped, me->stream, &context));
    hotbed_sharded_context_destroy(context);
    for (int i = 0; i < COLLECTIONS; i++)
        hotbed_sharded_destroy(c[i]);
}

static void contexts_have_the_same_collections_on_all_ranks(hotbed_backend backend) {
    (void)backend;
    run_worlds(contexts_body);
}

/* --- allocations fail ------------------------------------------------------------------------- */

/* Both ranks create, and one allocation of the process fails. */
typedef struct failing {
    pthread_barrier_t gate;
    uint64_t n; /* number of the allocation */
    bool differs;
    bool reached;
    hotbed_status statuses[2];
} failing;

static void failing_body(world_rank *me) {
    failing *f = me->argument;
    setup s;
    describe(&s);
    if (f->differs && me->rank == 1)
        dim(&s);
    if (me->rank == 0)
        fault_arm(f->n);
    (void)pthread_barrier_wait(&f->gate);
    f->statuses[me->rank] = create(&s, me);
    (void)pthread_barrier_wait(&f->gate);
    if (me->rank == 0)
        f->reached = fault_disarm();
}

static void no_rank_waits_for_one_without_memory(hotbed_backend backend) {
    (void)backend;
    const world two = {HOTBED_TRANSPORT_THREADS, 2};
    if (getenv("HOTBED_TEST_TRANSPORT") != NULL)
        SKIP("is about threads on the host");
    for (int differs = 0; differs < 2; differs++) {
        failing f = {.differs = differs == 1, .reached = true};
        CHECK_EQ(pthread_barrier_init(&f.gate, NULL, 2), 0);
        for (f.n = 1; f.reached; f.n++) {
            world_run(&two, NULL, failing_body, &f);
            const hotbed_status *s = f.statuses;
            hotbed_status well = f.differs ? HOTBED_ERR_ARGUMENT : HOTBED_OK;
            if (f.reached) { /* the other rank reports it, or that the communicator was aborted */
                CHECK(s[0] == HOTBED_ERR_MEMORY || s[1] == HOTBED_ERR_MEMORY);
                CHECK(s[0] == HOTBED_ERR_MEMORY || s[0] == HOTBED_ERR_COMM || s[0] == well);
                CHECK(s[1] == HOTBED_ERR_MEMORY || s[1] == HOTBED_ERR_COMM || s[1] == well);
                continue;
            }
            CHECK_EQ(s[0], well);
            CHECK_EQ(s[1], well);
        }
        CHECK_EQ(pthread_barrier_destroy(&f.gate), 0);
    }
}

const hotbed_test hotbed_tests[] = {
    {"a_difference_is_reported_by_all_ranks", a_difference_is_reported_by_all_ranks},
    {"options_of_one_rank_are_not_compared", options_of_one_rank_are_not_compared},
    {"contexts_have_the_same_collections_on_all_ranks",
     contexts_have_the_same_collections_on_all_ranks},
    {"no_rank_waits_for_one_without_memory", no_rank_waits_for_one_without_memory},
    {NULL, NULL},
};
