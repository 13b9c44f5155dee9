/* tests/dist/test_sharded_contract.c - what the header promises: refused arguments, eval,
 * forward as one call, views. */
#include "dist/sharded.h"
#include "tests/dist/sharded_fixture.h"

#include "storage/storage.h"
#include "tests/support/fault.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const sharded_case base = {
    .seed = 31,
    .optimizer = HOTBED_OPT_SGD,
    .capacity = FIXTURE_KEYS,
    .key_space = 30,
    .statics = true,
    .steps = 3,
};

/* --- eval, and forward as one call ------------------------------------------------------------ */

static void eval_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    const int each = hotbed_test_is_small() ? 1 : 3;
    for (int step = 0; step < each; step++)
        sharded_fixture_step(&r, step);
    CHECK(hotbed_sharded_training(r.sharded));
    CHECK_OK(hotbed_sharded_set_training(r.sharded, false));
    for (int step = 3; step < 3 + each; step++) {
        /* With new keys among them, which close() must not find in either storage. */
        sharded_fixture_fill(&r, step);
        CHECK_OK(hotbed_sharded_forward(r.context, 0, &r.kjt, r.output.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        sharded_fixture_model_eval(&r);
        sharded_fixture_check_output(&r);
        CHECK_STATUS(
            hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, me->stream),
            HOTBED_ERR_STATE);
    }
    CHECK_OK(hotbed_sharded_set_training(r.sharded, true));
    sharded_fixture_step(&r, 6);
    sharded_fixture_close(&r);
}

static void eval_changes_nothing(hotbed_backend backend) {
    for (int i = 0; i < 4; i += hotbed_test_is_small() ? 3 : 1) {
        sharded_case c = base;
        c.pooling = i % 2 == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
        c.capacity = i < 2 ? FIXTURE_KEYS : 8; /* with replays */
        sharded_fixture_run(8, eval_body, &c);
    }
}

/* --- clear ------------------------------------------------------------------------------------ */

/* Rows of static tables get the initial values of their keys again, whatever rank they are on. */
static void clear_body(world_rank *me) {
    sharded_fixture r;
    hotbed_sharded_table info = {.size = sizeof info};
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_step(&r, 0);
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        CHECK_OK(hotbed_sharded_table_read(r.sharded, t, &info));
        CHECK_OK(hotbed_storage_clear(
            hotbed_sharded_lookup(r.sharded, info.lookup), info.table, me->stream));
        CHECK_OK(hotbed_storage_clear(r.model, t, me->stream));
    }
    sharded_fixture_check_rows(&r);
    sharded_fixture_step(&r, 1);
    sharded_fixture_close(&r);
}

static void a_cleared_table_has_its_initial_rows(hotbed_backend backend) {
    for (int i = 0; i < 4; i++) {
        sharded_case c = base;
        c.dealt = i % 2 == 1;
        c.cached = i >= 2;
        sharded_fixture_run(8, clear_body, &c);
    }
}

static void forward_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    for (int step = 0; step < 3; step++) {
        sharded_fixture_fill(&r, step);
        CHECK_OK(hotbed_sharded_forward(r.context, 0, &r.kjt, r.output.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        sharded_fixture_model_forward(&r);
        sharded_fixture_check_output(&r);
        sharded_fixture_model_backward(&r);
        CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    sharded_fixture_close(&r);
}

static void one_call_performs_all_stages(hotbed_backend backend) {
    sharded_fixture_run(4, forward_body, (void *)(uintptr_t)&base);
}

/* --- views ------------------------------------------------------------------------------------ */

static void views_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    uint32_t tables = 0;
    for (uint32_t l = 0; l < hotbed_sharded_num_lookups(r.sharded); l++) {
        hotbed_storage *lookup = hotbed_sharded_lookup(r.sharded, l);
        for (uint32_t t = 0; t < hotbed_storage_num_tables(lookup); t++, tables++) {
            hotbed_table_info info = {.size = sizeof info};
            hotbed_sharded_table table = {.size = sizeof table};
            CHECK_OK(hotbed_storage_table(lookup, t, &info));
            uint32_t number = 0;
            while (strcmp(r.tables[number].name, info.name) != 0)
                number++;
            CHECK_OK(hotbed_sharded_table_read(r.sharded, number, &table));
            CHECK_STRING(table.name, info.name);
            CHECK_EQ(table.lookup, l);
            CHECK_EQ(table.table, t);
            CHECK_EQ(table.capacity, r.tables[number].capacity);
            CHECK_EQ(table.route.world, me->size);
            CHECK(info.capacity <= table.capacity);
            if (info.kind == HOTBED_TABLE_HASH)
                CHECK(info.capacity * me->size >= table.capacity);
            CHECK(info.weights == lookup->tables[t].rows.data); /* the memory that training uses */
        }
    }
    CHECK_EQ(tables, FIXTURE_TABLES);
    CHECK(hotbed_sharded_lookup(r.sharded, 9) == NULL);
    CHECK_OK(hotbed_sharded_set_learning_rate(r.sharded, 0.125F, me->stream));
    char text[4096], cut[20];
    size_t length, again;
    CHECK_OK(hotbed_sharded_print(r.sharded, text, sizeof text, &length));
    CHECK_EQ(strlen(text), length);
    static const char *const parts[] = {
        "ShardedEmbeddingCollection", "lookups",      "input_dists", "output_dists", "user.weight",
        "shop.weight: static",        "seen, bought", "plan fixed",  "sgd",          "training"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        CHECK(strstr(text, parts[i]) != NULL);
    CHECK_OK(hotbed_sharded_print(r.sharded, NULL, 0, &again));
    CHECK_EQ(again, length);
    CHECK_OK(hotbed_sharded_print(r.sharded, cut, sizeof cut, &again));
    CHECK_EQ(again, length);
    CHECK_EQ(strlen(cut), sizeof cut - 1);
    CHECK_BYTES(cut, text, sizeof cut - 1);
    sharded_fixture_close(&r);
}

static void views_describe_every_table(hotbed_backend backend) {
    sharded_fixture_run(4, views_body, (void *)(uintptr_t)&base);
}

/* --- the rule for pooled features ----------------------------------------------------------------- */

/* A small table with short bags, of `dim`, and a large one with long bags. */
static void rule_body(world_rank *me) {
    static const float factors[2] = {1.0F, 100.0F};
    const uint32_t dims[2] = {64, 1};
    for (int i = 0; i < 4; i++) {
        hotbed_table_options tables[2];
        hotbed_storage_options storage;
        hotbed_sharded_options options;
        hotbed_sharded *sharded = NULL;
        char text[4096];
        hotbed_storage_options_init(&storage);
        hotbed_sharded_options_init(&options);
        for (uint32_t t = 0; t < 2; t++) {
            tables[t] = (hotbed_table_options){
                .size = sizeof tables[t], .name = t == 0 ? "small" : "large"};
            tables[t].dim =
                i == 1 ? 1 : dims[t]; /* 1: rows save too little for a second exchange */
            tables[t].capacity = t == 0 ? 100 : 400000;
        }
        storage.num_tables = 2;
        storage.tables = tables;
        storage.pooling = HOTBED_POOL_SUM;
        options.storage = &storage;
        options.plan = i == 2 ? HOTBED_PLAN_FIXED : HOTBED_PLAN_TWO_PHASE;
        options.max_batch_size = 1U << 17;
        options.max_keys = (uint64_t)101 << 17;
        options.pooling_factors = i == 3 ? NULL : factors; /* 50 keys a bag in both tables */
        CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
        CHECK_OK(hotbed_sharded_print(sharded, text, sizeof text, NULL));
        const bool rows = me->size > 1 && (i == 0 || i == 3);
        CHECK_EQ(strstr(text, "by rows") != NULL, rows);
        CHECK_EQ(strstr(text, "by sums") != NULL, me->size > 1);
        CHECK_EQ(hotbed_sharded_num_lookups(sharded), rows ? 2 : 1);
        hotbed_sharded_destroy(sharded);
    }
}

static void the_rule_chooses_rows_or_sums(hotbed_backend backend) {
    sharded_fixture_run(2, rule_body, NULL);
}

/* --- without an optimizer -------------------------------------------------------------------------- */

static void untrained_body(world_rank *me) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded = NULL;
    hotbed_storage_options_init(&storage);
    hotbed_sharded_options_init(&options);
    table.name = "one";
    table.dim = 4;
    table.capacity = 100;
    storage.num_tables = 1;
    storage.tables = &table;
    storage.optimizer.max_gradient = NAN; /* unused, so not checked */
    options.storage = &storage;
    options.plan = HOTBED_PLAN_TWO_PHASE;
    options.max_batch_size = 8;
    options.max_keys = 8;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    CHECK_EQ(hotbed_sharded_num_lookups(sharded), 1);
    hotbed_sharded_destroy(sharded);
}

static void clipping_without_an_optimizer_is_unused(hotbed_backend backend) {
    sharded_fixture_run(2, untrained_body, NULL);
}

/* --- refusals --------------------------------------------------------------------------------- */

/* Create a collection with one invalid option: ARGUMENT, with a message that names it. */
static void refuse(
    const sharded_fixture *r, const hotbed_sharded_options *options, const char *text) {
    hotbed_sharded *sharded;
    CHECK_STATUS(
        hotbed_sharded_create(options, r->me->comm, r->me->stream, &sharded), HOTBED_ERR_ARGUMENT);
    CHECK(sharded == NULL);
    if (strstr(hotbed_last_error(), text) == NULL)
        CHECK_STRING(hotbed_last_error(), text);
}

/* Invalid exchanges and pooling factors of pooled features. */
static void refuse_exchanges(
    const sharded_fixture *r, const hotbed_sharded_options *options,
    hotbed_pooled_exchange *exchanges) {
    hotbed_sharded_options o = *options;
    float factors[FIXTURE_FEATURES] = {1.0F, 1.0F, 1.0F, -2.0F, 1.0F};
    exchanges[2] = HOTBED_POOLED_ROWS; /* features 1 and 2 are of one table */
    refuse(r, &o, "features 1 and 2 of table item have exchanges 2 and 1");
    exchanges[2] = (hotbed_pooled_exchange)7;
    refuse(r, &o, "feature 2: unknown exchange 7");
    exchanges[2] = HOTBED_POOLED_SUMS;
    o.pooling_factors = factors;
    refuse(r, &o, "feature 3: pooling factor -2 is negative or not finite");
    hotbed_storage_options storage = *o.storage;
    storage.pooling = HOTBED_POOL_NONE;
    o.storage = &storage;
    refuse(r, &o, "pooling_factors is given, but pooling is NONE");
    o.pooling_factors = NULL;
    refuse(r, &o, "exchanges is given, but pooling is NONE");
}

/* All tables but the static one are routed by hash. */
static void refused_groups(const sharded_fixture *r, const hotbed_route_kind *routes) {
    static const char *const names[] = {"user", "seen", "bought", "words"};
    static const uint32_t without_static[] = {0, 1, 1, 3};
    hotbed_storage_options storage = r->storage_options;
    hotbed_sharded_options o = r->options;
    o.storage = &storage;
    o.routes = routes;
    storage.num_features = 4;
    storage.feature_tables = without_static;
    o.features = names;
    refuse(r, &o, "tables routed continuous, as shop, have no feature");
    storage = r->storage_options;
    storage.pooling = HOTBED_POOL_SUM;
    o.features = r->options.features;
    hotbed_pooled_exchange exchanges[FIXTURE_FEATURES];
    for (uint32_t f = 0; f < FIXTURE_FEATURES; f++)
        exchanges[f] = HOTBED_POOLED_SUMS;
    o.exchanges = exchanges;
    refuse_exchanges(r, &o, exchanges);
    o.max_batch_size = (1U << 30) / FIXTURE_FEATURES;
    if (r->me->size == 2)
        refuse(
            r, &o,
            "max_batch_size 214748364: a lookup of 4 features on 2 ranks has 1717986912 bags, over "
            "2^30");
}

static void refused_options(sharded_fixture *r) {
    hotbed_sharded *sharded;
    hotbed_sharded_options o;
    CHECK_STATUS(
        hotbed_sharded_create(&r->options, NULL, r->me->stream, &sharded), HOTBED_ERR_ARGUMENT);
    memset(&o, 0, sizeof o);
    refuse(r, &o, "size 0 is not in");
    o = r->options;
    o.max_keys = 0;
    refuse(r, &o, "max_keys 0");
    o = r->options;
    o.max_batch_size = 0;
    refuse(r, &o, "max_batch_size 0");
    o = r->options;
    o.plan = (hotbed_plan)7;
    refuse(r, &o, "plan 7");
    o = r->options;
    o.dedup = (hotbed_dedup)7;
    refuse(r, &o, "dedup 7");
    o = r->options;
    o.overflow = (hotbed_overflow)7;
    refuse(r, &o, "overflow 7");
    o = r->options;
    o.weighted = true;
    refuse(r, &o, "weighted");
    o = r->options;
    o.storage = NULL;
    refuse(r, &o, "hotbed_storage_options");
    const char *const twice[] = {"a", "b", "a", "c", "d"}, *const nameless[] = {"a", NULL};
    o = r->options;
    o.features = twice;
    refuse(r, &o, "both called a");
    o.features = nameless;
    refuse(r, &o, "feature 1");
    hotbed_route_kind routes[FIXTURE_TABLES] = {HOTBED_ROUTE_HASH_ROUND_ROBIN};
    o = r->options;
    o.routes = routes;
    refuse(r, &o, "table shop: a static table");
    routes[2] = HOTBED_ROUTE_CONTINUOUS;
    refused_groups(r, routes);
    hotbed_storage_options storage = r->storage_options;
    o = r->options;
    o.storage = &storage;
    storage.pooling = (hotbed_pooling)9;
    refuse(r, &o, "unknown pooling 9");
    storage = r->storage_options;
    storage.output_dtype = HOTBED_INT8;
    refuse(r, &o, "unknown output_dtype 4");
    storage.output_dtype = (hotbed_dtype)77;
    refuse(r, &o, "unknown output_dtype 77");
    r->tables[1].dtype = (hotbed_dtype)77;
    refuse(r, &r->options, "unknown dtype 77");
    r->tables[1].dtype = 0;
    r->tables[1].dim++;
    refuse(r, &r->options, "table item: dim");
    r->tables[1].dim--;
    const char *name = r->tables[1].name;
    r->tables[1].name = "no name";
    refuse(r, &r->options, "no name");
    r->tables[1].name = r->tables[2].name; /* of another lookup */
    refuse(r, &r->options, "two tables have the same name shop");
    r->tables[1].name = name;
    const uint64_t capacity = r->tables[2].capacity;
    r->tables[2].capacity = 0; /* of a static table */
    refuse(r, &r->options, "table shop: rows 0 is not in [1, 2^62]");
    r->tables[2].capacity = capacity;
}

static void refused_batches(sharded_fixture *r) {
    hotbed_stream *s = r->me->stream;
    bool yes;
    sharded_fixture_fill(r, 0);
    CHECK_STATUS(hotbed_sharded_input_dist(NULL, &r->kjt, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, &r->kjt, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sharded_wait_splits(r->context, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_wait_input(r->context, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_prefetch(r->context, 0, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_prefetch(r->context, 1, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sharded_compute(r->context, 0, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_output_dist(r->context, 0, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_update(r->context, 0, s), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_sharded_overflowed(r->context, &yes), HOTBED_ERR_STATE);
    hotbed_kjt kjt = r->kjt;
    kjt.num_features = 2; /* only "user" and "seen" */
    kjt.num_keys = 0;
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, &kjt, s), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "feature bought is missing") != NULL);
    kjt = r->kjt; /* fewer rows than FIXTURE_FEATURES + 1 features of FIXTURE_BATCH samples */
    kjt.num_features = FIXTURE_FEATURES + 2;
    kjt.features = NULL;
    kjt.batch_size = 1;
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, &kjt, s), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "kjt: 7 features; kjt_features allows 6");
    kjt = r->kjt;
    kjt.batch_size = FIXTURE_BATCH + 1;
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, &kjt, s), HOTBED_ERR_ARGUMENT);
    kjt = r->kjt;
    kjt.num_keys = FIXTURE_KEYS + 1;
    CHECK_STATUS(hotbed_sharded_input_dist(r->context, &kjt, s), HOTBED_ERR_ARGUMENT);
    /* No refused call had an effect. */
    sharded_fixture_step(r, 0);
    CHECK_STATUS(
        hotbed_sharded_wait_output(r->context, 0, r->output.device.data, 0, s), HOTBED_ERR_STATE);
    sharded_fixture_fill(r, 1);
    CHECK_OK(hotbed_sharded_input_dist(r->context, &r->kjt, s));
    CHECK_OK(hotbed_sharded_wait_splits(r->context, s));
    CHECK_OK(hotbed_sharded_wait_input(r->context, s));
    CHECK_OK(hotbed_sharded_compute(r->context, 0, s));
    CHECK_OK(hotbed_sharded_output_dist(r->context, 0, s));
    CHECK_STATUS(
        hotbed_sharded_wait_output(r->context, 0, r->output.device.data, 1, s),
        HOTBED_ERR_ARGUMENT);
    /* Pins are released, and the next batch trains. */
    CHECK_OK(hotbed_sharded_cancel(r->context, s));
    sharded_fixture_model_forward(r);
    CHECK_OK(hotbed_ticket_cancel(r->ticket, s));
    sharded_fixture_step(r, 2);
}

static void refusals_body(world_rank *me) {
    sharded_fixture r;
    hotbed_sharded_context *context;
    sharded_fixture_open(&r, me, me->argument);
    refused_options(&r);
    CHECK_STATUS(
        hotbed_sharded_create_context(0, &r.sharded, me->stream, &context), HOTBED_ERR_ARGUMENT);
    CHECK(context == NULL);
    refused_batches(&r);
    hotbed_sharded_context_destroy(NULL);
    hotbed_sharded_destroy(NULL);
    sharded_fixture_close(&r);
}

static void wrong_arguments_are_refused(hotbed_backend backend) {
    sharded_fixture_run(2, refusals_body, (void *)(uintptr_t)&base);
}

/* Invalid lengths are a fault of their rank, whose batch is empty; the other ranks train. */
static void bad_batch_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    sharded_fixture_fill(&r, 0);
    if (me->rank == 0) {
        const int64_t bad = -5;
        memcpy(r.lengths.host, &bad, sizeof bad);
        world_upload(me, &r.lengths);
        memcpy(r.batches[0].lengths, r.lengths.host, sizeof bad);
    }
    CHECK_OK(hotbed_sharded_forward(r.context, 0, &r.kjt, r.output.device.data, 0, me->stream));
    if (me->rank == 0 && r.batches[0].batch_size > 0)
        CHECK_STATUS(hotbed_stream_sync(me->stream), HOTBED_ERR_RANGE);
    else
        CHECK_OK(hotbed_stream_sync(me->stream));
    if (me->rank == 0 && r.batches[0].batch_size > 0) { /* nothing is written for an empty batch */
        world_download(me, &r.output);
        for (size_t i = 0; i < r.output.bytes; i++)
            CHECK_EQ(r.output.host[i], 0xa5);
    }
    /* The model gets the batch without the fault: the rows of other ranks are equal. */
    sharded_fixture_model_forward(&r);
    if (me->rank != 0)
        sharded_fixture_check_output(&r);
    CHECK_OK(hotbed_sharded_cancel(r.context, me->stream));
    CHECK_OK(hotbed_ticket_cancel(r.ticket, me->stream));
    sharded_fixture_free(&r);
}

static void a_bad_batch_is_a_fault_of_its_rank(hotbed_backend backend) {
    for (int in_order = 0; in_order < 2; in_order++) {
        sharded_case c = base;
        c.statics = in_order == 0;
        c.one_rule = c.in_order = in_order == 1;
        sharded_fixture_run(4, bad_batch_body, &c);
    }
}

/* Latch a fault for row `row` of a static table, which is a key if no rank has such a row, after a row of a hash
 * table of another lookup with the same number. */
static void check_row(const sharded_fixture *r, const hotbed_sharded_table *info, uint64_t row) {
    char expected[128];
    world_bytes key = world_alloc(r->me, sizeof row);
    memcpy(key.host, &row, sizeof row);
    world_upload(r->me, &key);
    const uint32_t other = info->lookup == 0 ? 1 : 0;
    CHECK_OK(hotbed_storage_set_rows(
        hotbed_sharded_lookup(r->sharded, other), info->table, 1, key.device.data, NULL,
        r->me->stream));
    CHECK_OK(hotbed_storage_set_rows(
        hotbed_sharded_lookup(r->sharded, info->lookup), info->table, 1, key.device.data, NULL,
        r->me->stream));
    CHECK_STATUS(hotbed_stream_sync(r->me->stream), HOTBED_ERR_RANGE);
    const uint64_t rows = hotbed_route_rows(&info->route, r->me->rank);
    if (row < info->route.rows)
        snprintf(
            expected, sizeof expected,
            "table shop: row %" PRIu64 " of rank %u is not in [0, %" PRIu64 ")", row, r->me->rank,
            rows == 0 ? 1 : rows);
    else
        snprintf(
            expected, sizeof expected, "table shop: key %" PRIu64 " is not in [0, %" PRIu64 ")",
            row, info->route.rows);
    CHECK_STRING(hotbed_last_error(), expected);
    world_free(&key);
}

static void bad_row_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    CHECK_OK(hotbed_stream_sync(me->stream));
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_sharded_table info = {.size = sizeof info};
        CHECK_OK(hotbed_sharded_table_read(r.sharded, t, &info));
        if (!info.local_ids)
            continue;
        const uint64_t rows = hotbed_route_rows(&info.route, me->rank);
        check_row(&r, &info, rows == 0 ? 1 : rows);
        check_row(&r, &info, hotbed_route_rows(&info.route, 0) + 5);
        check_row(&r, &info, info.route.rows);
        check_row(&r, &info, INT64_MAX);
    }
    sharded_fixture_free(&r);
}

/* The lookup stores row numbers, and the text compares a key with the rows of all ranks. */
static void a_fault_names_the_key_of_a_numbered_row(hotbed_backend backend) {
    sharded_fixture_run(4, bad_row_body, (void *)(uintptr_t)&base);
}

/* --- allocations fail ----------------------------------------------------------------------- */

static void failing_body(world_rank *me) {
    sharded_fixture r;
    sharded_fixture_open(&r, me, me->argument);
    for (uint64_t n = 1;; n++) {
        hotbed_sharded *sharded = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_sharded_create(&r.options, me->comm, me->stream, &sharded);
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_sharded_destroy(sharded);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(sharded == NULL);
    }
    for (uint64_t n = 1;; n++) {
        hotbed_sharded_context *context = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_sharded_create_context(1, &r.sharded, me->stream, &context);
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_sharded_context_destroy(context);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(context == NULL);
    }
    sharded_fixture_step(&r, 0);
    sharded_fixture_close(&r);
}

static void creation_survives_no_memory(hotbed_backend backend) {
    for (int plan = 0; plan < 2; plan++) {
        sharded_case c = base;
        c.plan = (hotbed_plan)plan;
        sharded_fixture_run(1, failing_body, &c);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(eval_changes_nothing)},
    {TEST(a_cleared_table_has_its_initial_rows)},
    {TEST(one_call_performs_all_stages)},
    {TEST(views_describe_every_table)},
    {TEST(the_rule_chooses_rows_or_sums)},
    {TEST(clipping_without_an_optimizer_is_unused)},
    {TEST(wrong_arguments_are_refused)},
    {TEST(a_bad_batch_is_a_fault_of_its_rank)},
    {TEST(a_fault_names_the_key_of_a_numbered_row)},
    {TEST(creation_survives_no_memory)},
    {NULL, NULL},
};
