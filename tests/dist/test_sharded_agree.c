/* tests/dist/test_sharded_agree.c - creation of collections whose options differ between ranks, and of contexts whose
 * collections differ. */
#include "dist/sharded.h"
#include "tests/dist/sharded_fixture.h"
#include "tests/support/comma.h"
#include "tests/support/fault.h"

#include <pthread.h>
#include <stddef.h>
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
    float own_rate, own_clip; /* of table "item" */
    hotbed_sharded_options options;
} setup;

static void describe(setup *s) {
    memset(s, 0, sizeof *s);
    for (uint32_t t = 0; t < TABLES; t++) {
        s->tables[t] = (hotbed_table_options){.size = sizeof s->tables[t]};
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
    s->own_rate = 0.25F;
    hotbed_sharded_options_init(&s->options);
    s->options.storage = &s->storage;
    s->options.routes = s->routes;
    s->options.features = s->features;
    s->options.plan = HOTBED_PLAN_FIXED;
    s->options.max_batch_size = 4;
    s->options.max_keys = 40;
    s->options.capacity = 30;
}

static hotbed_status create(const setup *s, const world_rank *me) {
    hotbed_sharded *sharded = NULL;
    hotbed_table_options tables[TABLES];
    hotbed_storage_options storage = s->storage;
    hotbed_sharded_options options = s->options;
    hotbed_optimizer own = storage.optimizer;
    memcpy(tables, s->tables, sizeof tables);
    own.learning_rate = s->own_rate;
    own.max_gradient = s->own_clip;
    tables[1].optimizer = &own;
    storage.tables = tables;
    options.storage = &storage;
    hotbed_status status = hotbed_sharded_create(&options, me->comm, me->stream, &sharded);
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
    const hotbed_error_detail *fields = hotbed_last_error_detail();
    CHECK((me->rank == culprit && others == NULL) || (fields->has & HOTBED_HAS_RANK) != 0);
    CHECK_EQ(fields->rank, (fields->has & HOTBED_HAS_RANK) != 0 ? culprit : 0);
    /* The option of the rank that fails by itself. */
    CHECK(others != NULL || fields->parameter[0] != '\0');
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

/* A value of an option: a member of setup, and its bytes.  Enumerators and uint32_t are set as int. */
typedef struct value {
    size_t at, bytes;
    const void *bits;
} value;
#define SET(type, member, ...)                                                                     \
    offsetof(setup, member), sizeof(type), &(type) {                                               \
        __VA_ARGS__                                                                                \
    }

/* One option, set by one or two members on one rank, and what all ranks say of that rank and of
 * rank 0.  With `others` NULL the rank fails by itself, and the others say why. */
typedef struct change {
    const char *own, *others;
    value values[2];
} change;

static const change changes[] = {
    {"num_tables is 1",
     "2",
     {{SET(int, storage.num_tables, 1)}, {SET(int, storage.num_features, 1)}}},
    {"name of feature 0 is user",
     "seen",
     {{SET(int, storage.num_features, 0)}, {SET(const char *const *, options.features, NULL)}}},
    {"name of table 1 is shop", "item", {{SET(const char *, tables[1].name, "shop")}}},
    {"name of feature 1 is sold", "bought", {{SET(const char *, features[1], "sold")}}},
    {"dim of table user is 16",
     "8",
     {{SET(int, tables[0].dim, 16)}, {SET(int, tables[1].dim, 16)}}},
    {"dtype of table item is bf16", "f32", {{SET(int, tables[1].dtype, HOTBED_BF16)}}},
    {"state_dtype of table item is bf16", "f32", {{SET(int, tables[1].state_dtype, HOTBED_BF16)}}},
    {"kind of table item is static",
     "hash",
     {{SET(int, tables[1].kind, HOTBED_TABLE_STATIC)},
      {SET(int, routes[1], HOTBED_ROUTE_CONTINUOUS)}}},
    {"route of table user is roundrobin",
     "hash_roundrobin",
     {{SET(int, routes[0], HOTBED_ROUTE_ROUND_ROBIN)}}},
    {"capacity of table user is 1001", "1000", {{SET(uint64_t, tables[0].capacity, 1001)}}},
    {"max_capacity of table user is 2000", "1000", {{SET(uint64_t, tables[0].max_capacity, 2000)}}},
    {"evict of table user is lowest", "never", {{SET(int, tables[0].evict, HOTBED_EVICT_LOWEST)}}},
    {"score of table item is lfu", "step", {{SET(int, tables[1].score, HOTBED_SCORE_LFU)}}},
    {"insertion of table item is probation",
     "auto",
     {{SET(int, tables[1].insertion, HOTBED_INSERT_PROBATION)}}},
    {"track_changes of table item is true", "false", {{SET(bool, tables[1].track_changes, true)}}},
    {"initializer of table item is uniform in [0, 0.5)",
     "constant 0",
     {{SET(
         hotbed_initializer, tables[1].initializer, .kind = HOTBED_INIT_UNIFORM, .upper = 0.5F)}}},
    {"eval_initializer of table item is constant 2",
     "constant 0",
     {{SET(float, tables[1].eval_initializer.value, 2)}}},
    {"admission of table user is frequency",
     "all",
     {{SET(int, tables[0].admission, HOTBED_ADMIT_FREQUENCY)},
      {SET(uint64_t, tables[0].admission_threshold, 3)}}},
    {"pooling is mean", "none", {{SET(int, storage.pooling, HOTBED_POOL_MEAN)}}},
    {"key_type is u64", "i64", {{SET(int, storage.key_type, HOTBED_KEY_U64)}}},
    {"output_dtype is f16", "f32", {{SET(int, storage.output_dtype, HOTBED_F16)}}},
    {"forward_dtype is f16", "not given", {{SET(int, options.forward_dtype, HOTBED_F16)}}},
    {"backward_dtype is bf16", "not given", {{SET(int, options.backward_dtype, HOTBED_BF16)}}},
    {"forward_dtype is int8", "not given", {{SET(int, options.forward_dtype, HOTBED_INT8)}}},
    {"forward_dtype 6 is not f32, f16, bf16, int8 or fp8",
     NULL,
     {{SET(int, options.forward_dtype, HOTBED_FP8 + 1)}}},
    {"backward_dtype -1 is not f32, f16, bf16, int8 or fp8",
     NULL,
     {{SET(int, options.backward_dtype, -1)}}},
    {"optimizer is sgd", "adam", {{SET(int, storage.optimizer.kind, HOTBED_OPT_SGD)}}},
    {"beta2 of optimizer adam is 0.5", "0.999", {{SET(float, storage.optimizer.beta2, 0.5F)}}},
    {"learning_rate of table item is 0.5", "0.25", {{SET(float, own_rate, 0.5F)}}},
    {"max_gradient of table item is 0.5", "0", {{SET(float, own_clip, 0.5F)}}},
    {"nonfinite is skip", "pass", {{SET(int, storage.nonfinite, HOTBED_NONFINITE_SKIP)}}},
    {"seed is 7", "0", {{SET(uint64_t, storage.seed, 7)}}},
    {"plan is two-phase", "fixed", {{SET(int, options.plan, HOTBED_PLAN_TWO_PHASE)}}},
    {"overflow is report", "replay", {{SET(int, options.overflow, HOTBED_OVERFLOW_REPORT)}}},
    {"dedup is off", "on", {{SET(int, options.dedup, HOTBED_DEDUP_OFF)}}},
    {"gradient_scale is 0.25", "1", {{SET(float, options.gradient_scale, 0.25F)}}},
    {"max_batch_size is 5", "4", {{SET(int, options.max_batch_size, 5)}}},
    {"max_keys is 41", "40", {{SET(uint64_t, options.max_keys, 41)}}},
    {"capacity is 31", "30", {{SET(uint64_t, options.capacity, 31)}}},
    {"max_keys 0 is not in [1, 2^30]", NULL, {{SET(uint64_t, options.max_keys, 0)}}},
    {"table item: max_capacity 1", NULL, {{SET(uint64_t, tables[1].max_capacity, 1)}}},
};
enum { CHANGES = sizeof changes / sizeof changes[0] };

static void apply(setup *s, const change *c) {
    for (int i = 0; i < 2; i++)
        if (c->values[i].bytes > 0)
            memcpy((char *)s + c->values[i].at, c->values[i].bits, c->values[i].bytes);
}

/* One rank changes one option, and all ranks report it.  Then the communicator still works. */
static void differences_body(world_rank *me) {
    setup s;
    for (int i = 0; i < CHANGES; i++) {
        describe(&s);
        if (me->rank == me->size - 1)
            apply(&s, &changes[i]);
        CHECK_STATUS(create(&s, me), HOTBED_ERR_ARGUMENT);
        check_text(me, changes[i].own, changes[i].others, "part of the collection");
    }
    describe(&s);
    CHECK_OK(create(&s, me));
}

static void a_difference_is_reported_by_all_ranks(hotbed_backend backend) {
    run_worlds(differences_body);
}

/* --- options that may differ ------------------------------------------------------------------ */

/* Options that concern one rank only, and different spellings of one value. */
static void same_body(world_rank *me) {
    setup s;
    uint64_t before, after;
    describe(&s);
    s.options.capacity = 1000; /* at most max_keys */
    CHECK_OK(create(&s, me));  /* the first one also tries a window */
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
        s.storage.removed_capacity = 64;
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
    run_worlds(contexts_body);
}

/* --- locales that differ ---------------------------------------------------------------------- */

/* The last rank's program has a decimal comma. */
static void comma_body(world_rank *me) {
    setup s;
    describe(&s);
    s.storage.optimizer.learning_rate = 0.1F;
    s.tables[0].initializer.kind = HOTBED_INIT_NORMAL;
    s.tables[0].initializer.std = 0.25F;
    if (me->rank == me->size - 1)
        CHECK(comma_begin() == NULL);
    CHECK_OK(create(&s, me));
    if (me->rank == me->size - 1)
        comma_end();
}

static void a_decimal_comma_is_no_difference(hotbed_backend backend) {
    const char *missing = comma_begin();
    if (missing != NULL)
        SKIP(missing);
    comma_end();
    run_worlds(comma_body);
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
        s.tables[0].dim = s.tables[1].dim = 16;
    if (me->rank == 0)
        fault_arm(f->n);
    (void)pthread_barrier_wait(&f->gate);
    f->statuses[me->rank] = create(&s, me);
    (void)pthread_barrier_wait(&f->gate);
    if (me->rank == 0)
        f->reached = fault_disarm();
}

static void no_rank_waits_for_one_without_memory(hotbed_backend backend) {
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
    {TEST(a_difference_is_reported_by_all_ranks)},
    {TEST(options_of_one_rank_are_not_compared)},
    {TEST(contexts_have_the_same_collections_on_all_ranks)},
    {TEST(a_decimal_comma_is_no_difference)},
    {TEST(no_rank_waits_for_one_without_memory)},
    {NULL, NULL},
};
