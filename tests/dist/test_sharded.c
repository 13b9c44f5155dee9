/* tests/dist/test_sharded.c - training on several ranks equals training in one process, with all
 * three plans. */
#include "base/float.h"
#include "tests/dist/sharded_fixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void run_case(world_rank *me) {
    const sharded_case *how = me->argument;
    sharded_fixture r;
    sharded_fixture_open(&r, me, how);
    for (int step = hotbed_test_is_small() ? how->steps - 2 : 0; step < how->steps; step++)
        sharded_fixture_step(&r, step);
    sharded_fixture_close(&r);
}

static const sharded_case base = {
    .seed = 11,
    .optimizer = HOTBED_OPT_SGD,
    .capacity = FIXTURE_KEYS,
    .key_space = 30,
    .steps = 6,
};

static const hotbed_plan plans[] = {
    HOTBED_PLAN_FIXED, HOTBED_PLAN_TWO_PHASE, HOTBED_PLAN_ONE_SIDED};

/* Run the first `num` plans that the transport supports: FIXED with up to `most` ranks, the others
 * with up to `others`. */
static void run_some(int num, uint32_t most, uint32_t others, const sharded_case *how) {
    for (int p = 0; p < num; p++) {
        sharded_case c = *how;
        if (plans[p] == HOTBED_PLAN_ONE_SIDED && !sharded_fixture_has_windows())
            continue;
        c.plan = plans[p];
        c.seed = how->seed + hotbed_test_seed() * 100;
        c.dealt = p > 0; /* FIXED: blocks of rows */
        sharded_fixture_run(plans[p] == HOTBED_PLAN_FIXED ? most : others, run_case, &c);
    }
}

static void run_plans(uint32_t most, uint32_t others, const sharded_case *how) {
    run_some(3, most, others, how);
}

/* Run a further case of a test; short runs choose one plan for it. */
static void run_more(uint32_t most, uint32_t others, const sharded_case *how) {
    run_some(hotbed_test_is_small() ? 1 : 3, most, others, how);
}

static void sequences_equal_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.statics = true;
    run_plans(33, 33, &c);
    c.dedup = HOTBED_DEDUP_OFF;
    c.seed = 12;
    c.max_gradient = 0.5F;
    c.gradient_scale = 0.25F;
    run_more(8, 8, &c);
}

/* Batches whose arrays are the collection's: keys are not copied before duplicates are removed. */
static void batches_in_order_equal_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.in_order = true;
    c.one_rule = true;
    c.seed = 19;
    run_plans(8, 8, &c);
    c.dedup = HOTBED_DEDUP_OFF;
    run_more(3, 3, &c);
    c.pooling = HOTBED_POOL_SUM;
    run_more(3, 3, &c);
}

/* Scores and admission of keys that several ranks have, each several times. */
static void occurrences_are_counted_as_in_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.counted = true;
    c.key_space = 12;
    c.seed = 18;
    run_plans(8, 8, &c);
    c.statics = true;
    c.capacity = 5; /* FIXED, ONE_SIDED: messages overflow and are sent again */
    run_more(8, 8, &c);
    c.dedup = HOTBED_DEDUP_OFF;
    run_more(3, 3, &c);
    c.pooling = HOTBED_POOL_SUM;
    run_more(3, 3, &c);
}

static void adam_equals_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.optimizer = HOTBED_OPT_ADAM;
    c.seed = 13;
    c.max_gradient = 0.5F;
    run_plans(33, 8, &c);
}

/* Tables that share a lookup or, if their clipping differs, do not. */
static void tables_with_own_parameters_equal_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.own_parameters = true;
    c.seed = 41;
    run_plans(33, 8, &c);
    c.max_gradient = 0.5F;
    c.dedup = HOTBED_DEDUP_OFF;
    run_more(8, 8, &c);
    c.pooling = HOTBED_POOL_SUM;
    run_more(8, 8, &c);
    c.exchange = FIXTURE_BY_BOTH;
    run_more(8, 8, &c);
}

static void set_rates(world_rank *me) {
    const sharded_case *how = me->argument;
    sharded_fixture r;
    sharded_fixture_open(&r, me, how);
    for (int step = 0; step < 3; step++) {
        const float rate = 0.125F * (float)(1 << step);
        CHECK_OK(hotbed_sharded_set_learning_rate(r.sharded, rate, me->stream));
        CHECK_OK(hotbed_storage_set_learning_rate(r.model, rate, me->stream));
        CHECK_OK(hotbed_sharded_set_table_learning_rate(r.sharded, 3, 2 * rate, me->stream));
        CHECK_OK(hotbed_storage_set_table_learning_rate(r.model, 3, 2 * rate, me->stream));
        sharded_fixture_step(&r, step);
    }
    CHECK_STATUS(
        hotbed_sharded_set_table_learning_rate(r.sharded, 0, 1, me->stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_sharded_set_table_learning_rate(r.sharded, 9, 1, me->stream), HOTBED_ERR_ARGUMENT);
    sharded_fixture_close(&r);
}

static void learning_rates_of_tables_can_be_set(hotbed_backend backend) {
    sharded_case c = base;
    c.own_parameters = true;
    c.seed = 42;
    sharded_fixture_run(8, set_rates, &c);
}

static void keys_of_one_rank_get_the_same_bytes(hotbed_backend backend) {
    sharded_case c = base;
    c.optimizer = HOTBED_OPT_ADAM;
    c.own_keys = true;
    c.key_space = 8;
    c.seed = 14;
    for (int scaled = 0; scaled < 2; scaled++) {
        c.scale_by_world = scaled == 1;
        c.dedup = HOTBED_DEDUP_ON;
        run_more(scaled == 1 ? 33 : 8, 8, &c);
        c.dedup = HOTBED_DEDUP_OFF;
        run_more(8, 8, &c);
    }
}

/* Rows and states are rounded at random by the seed, table, key, element and step, whichever rank has them. */
static void rows_of_every_type_get_the_bytes_of_one_process(hotbed_backend backend) {
    for (int dtype = HOTBED_F32; dtype <= (int)HOTBED_FP8; dtype++) {
        sharded_case c = base;
        c.dtype = (hotbed_dtype)dtype;
        c.state_dtype = dtype % 2 != 0 ? HOTBED_BF16 : HOTBED_F32;
        c.optimizer = HOTBED_OPT_ADAM;
        c.own_keys = true;
        c.statics = true;
        c.key_space = 8;
        c.seed = 50 + (uint64_t)dtype;
        run_more(4, 4, &c);
    }
}

enum { NARROW_RANKS = 4, NARROW_STEPS = 6, NARROW_BYTES = FIXTURE_KEYS * FIXTURE_DIM * 4 };

/* The outputs of all steps, by number of ranks and rank. */
static unsigned char outputs[NARROW_RANKS + 1][NARROW_RANKS][NARROW_STEPS][NARROW_BYTES];
static bool outputs_known[NARROW_RANKS + 1][NARROW_RANKS];
static hotbed_exchange_stats moved[NARROW_RANKS + 1][NARROW_RANKS]; /* in these steps */

/* Train with rows and gradients that travel in other types. Outputs are near those of one process, and have
 * the bytes of the first plan. */
static void narrow_body(world_rank *me) {
    const sharded_case *how = me->argument;
    sharded_fixture r;
    const bool narrow =
        me->size > 1 && (how->forward_dtype > HOTBED_F32 || how->backward_dtype > HOTBED_F32);
    sharded_fixture_open(&r, me, how);
    const uint64_t width =
        how->pooling == HOTBED_POOL_NONE ? FIXTURE_DIM : hotbed_sharded_columns(r.sharded);
    for (int step = 0; step < (hotbed_test_is_small() ? 2 : NARROW_STEPS); step++) {
        hotbed_stream *s = me->stream;
        sharded_fixture_fill(&r, step);
        CHECK_OK(hotbed_sharded_input_dist(r.context, &r.kjt, s));
        CHECK_OK(hotbed_sharded_wait_splits(r.context, s));
        CHECK_OK(hotbed_sharded_wait_input(r.context, s));
        CHECK_OK(hotbed_sharded_prefetch(r.context, 0, s));
        CHECK_OK(hotbed_sharded_read(r.context, 0, r.output.device.data, 0, s));
        CHECK_OK(hotbed_stream_sync(s));
        world_download(me, &r.output);
        sharded_fixture_model_forward(&r);
        const sharded_batch *b = &r.batches[me->rank];
        const bool pooled = how->pooling != HOTBED_POOL_NONE;
        unsigned char *seen = outputs[me->size][me->rank][step];
        for (uint64_t i = 0; i < (pooled ? b->batch_size : b->n); i++) {
            const uint64_t at = pooled ? (uint64_t)me->rank * FIXTURE_BATCH + i
                                       : r.all_at[(size_t)me->rank * FIXTURE_KEYS + i];
            const float *got = (const float *)(const void *)r.output.host + i * width;
            const float *want = (const float *)(const void *)r.all_output.host + at * width;
            if (!pooled && at == UINT32_MAX)
                continue;
            for (uint64_t e = 0; e < width; e++)
                CHECK(
                    pooled || me->size == 1 || how->forward_dtype != HOTBED_F16 ||
                    hotbed_f16_to_f32(hotbed_f32_to_f16(got[e])) == got[e]);
            for (uint64_t e = 0; e < width; e++)
                CHECK_NEAR(got[e], want[e], narrow ? 0.05 * (1.0 + fabs((double)want[e])) : 1e-5);
            if (outputs_known[me->size][me->rank])
                CHECK_BYTES(seen + i * width * sizeof *got, got, width * sizeof *got);
            else
                memcpy(seen + i * width * sizeof *got, got, width * sizeof *got);
        }
        sharded_fixture_model_backward(&r);
        CHECK_OK(hotbed_sharded_backward(r.context, 0, r.gradient.device.data, 0, s));
        CHECK_OK(hotbed_stream_sync(s));
    }
    moved[me->size][me->rank] = (hotbed_exchange_stats){.size = sizeof(hotbed_exchange_stats)};
    CHECK_OK(hotbed_sharded_stats(r.sharded, &moved[me->size][me->rank], me->stream));
    sharded_fixture_free(&r);
}

static void remember(world_rank *me) {
    outputs_known[me->size][me->rank] = true;
}

static void rows_of_16_bits_take_half_of_the_bytes(hotbed_backend backend) {
    static hotbed_exchange_stats wide[NARROW_RANKS + 1][NARROW_RANKS];
    for (int p = 0; p < 2; p++) {
        sharded_case c = base;
        c.plan = plans[p];
        c.seed = 91;
        memset(outputs_known, 0, sizeof outputs_known);
        sharded_fixture_run(NARROW_RANKS, narrow_body, &c);
        memcpy(wide, moved, sizeof wide);
        c.forward_dtype = HOTBED_F16;
        c.backward_dtype = HOTBED_BF16;
        sharded_fixture_run(NARROW_RANKS, narrow_body, &c);
        uint64_t sent = 0, batches = 0; /* of the ranks of this process */
        for (uint32_t n = 2; n <= NARROW_RANKS; n++)
            for (uint32_t rank = 0; rank < n; rank++) {
                sent += moved[n][rank].rows_sent;
                batches += moved[n][rank].batches;
                const hotbed_exchange_stats *a = &wide[n][rank], *b = &moved[n][rank];
                CHECK_EQ(b->keys_sent, a->keys_sent);
                CHECK_EQ(2 * b->rows_sent, a->rows_sent);
                CHECK_EQ(2 * b->rows_received, a->rows_received);
                CHECK_EQ(2 * b->gradients_sent, a->gradients_sent);
                CHECK_EQ(2 * b->gradients_received, a->gradients_received);
            }
        CHECK(sent > 0 || batches == 0);
    }
}

static void rows_and_gradients_travel_in_other_types_on_all_plans(hotbed_backend backend) {
    static const hotbed_dtype types[][2] = {
        {HOTBED_F16, HOTBED_F16}, {HOTBED_BF16, HOTBED_F32}, {0, HOTBED_BF16}, {HOTBED_F16, 0}};
    for (uint32_t i = 0; i < 4 * 4; i += hotbed_test_is_small() ? 5 : 1) {
        sharded_case c = base;
        c.pooling = i / 4 < 2 ? HOTBED_POOL_NONE : (hotbed_pooling)(i / 4 - 1);
        c.dedup = i / 4 == 1 ? HOTBED_DEDUP_OFF : HOTBED_DEDUP_AUTO;
        c.forward_dtype = types[i % 4][0];
        c.backward_dtype = types[i % 4][1];
        c.statics = true;
        c.seed = 70 + i;
        if (c.pooling != HOTBED_POOL_NONE)
            c.exchange = FIXTURE_BY_SUMS;
        memset(outputs_known, 0, sizeof outputs_known);
        for (int p = 0; p < 3; p++) {
            if (plans[p] == HOTBED_PLAN_ONE_SIDED && !sharded_fixture_has_windows())
                continue;
            c.plan = plans[p];
            sharded_fixture_run(NARROW_RANKS, narrow_body, &c);
            sharded_fixture_run(NARROW_RANKS, remember, &c);
        }
    }
}

static void sums_equal_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.pooling = HOTBED_POOL_SUM;
    c.statics = true;
    c.seed = 15;
    run_plans(33, 8, &c);
    c.weighted = true;
    c.gradient_scale = 0.5F;
    run_more(8, 8, &c);
}

/* By rows, a bag is summed in one place, in the order of its keys: whatever the values, outputs have
 * the bytes of one process, and so have the rows of keys that only one rank has. */
static void pooled_rows_give_the_bytes_of_one_process(hotbed_backend backend) {
    for (int i = 0; i < 8; i++) {
        sharded_case c = base;
        c.pooling = i % 2 == 0 ? HOTBED_POOL_SUM : HOTBED_POOL_MEAN;
        c.exchange = FIXTURE_BY_ROWS;
        c.optimizer = HOTBED_OPT_ADAM;
        c.own_keys = true;
        c.key_space = 8;
        c.seed = 31 + (uint64_t)i;
        c.weighted = (i / 2) % 2 == 1;
        c.in_order = i >= 4;
        c.one_rule = i >= 4;
        if (i < 2)
            run_plans(33, 8, &c);
        else
            run_more(4, 4, &c);
    }
}

static void pooled_exchanges_equal_one_process(hotbed_backend backend) {
    static const fixture_exchange exchanges[] = {
        FIXTURE_BY_SUMS, FIXTURE_BY_ROWS, FIXTURE_BY_BOTH, FIXTURE_BY_RULE};
    for (int i = 0; i < 16; i++) {
        sharded_case c = base;
        c.pooling = HOTBED_POOL_SUM;
        c.exchange = exchanges[i % 4];
        c.seed = 40 + (uint64_t)i;
        c.statics = i % 3 == 0;
        c.weighted = (i / 4) % 2 == 1;
        c.counted = i / 4 == 3;
        c.max_gradient = i / 4 == 2 ? 0.5F : 0.0F;
        c.gradient_scale = i / 4 == 1 ? 0.5F : 1.0F;
        c.capacity = i / 4 == 3 ? 5 : FIXTURE_KEYS; /* batches overflow and are sent again */
        if (i < 4)
            run_plans(8, 4, &c);
        else if (!hotbed_test_is_small() || i % 3 == 0)
            run_more(4, 4, &c);
    }
}

static void means_equal_one_process(hotbed_backend backend) {
    sharded_case c = base;
    c.pooling = HOTBED_POOL_MEAN;
    c.seed = 16;
    c.one_sign =
        true; /* sums of rows over ranks round; sums of gradients have the order of one process */
    run_plans(33, 33, &c);
    c.weighted = true;
    run_more(8, 8, &c);
    c.max_gradient = 0.125F;
    run_more(8, 8, &c);
}

static void gradients_are_scaled_by_world(hotbed_backend backend) {
    sharded_case c = base;
    c.scale_by_world = true;
    c.one_sign = true;
    c.seed = 17;
    run_plans(33, 8, &c);
    c.dedup = HOTBED_DEDUP_OFF; /* gradients are scaled one by one, as in one process */
    run_more(8, 8, &c);
    c.pooling = HOTBED_POOL_SUM;
    c.exchange = FIXTURE_BY_SUMS; /* by rows, sums are scaled */
    run_more(33, 8, &c);
}

/* --- outputs as gradients ------------------------------------------------------------------- */

/* All ranks look up the same keys, and pass the output as gradient: each row loses rate * world *
 * scale of itself. */
static void outputs_as_gradients_body(world_rank *me) {
    enum { KEYS = 10, DIM = 4 };
    const float rate = 0.0625F, *scale = me->argument;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded = NULL;
    hotbed_sharded_context *context = NULL;
    table.name = "user";
    table.dim = DIM;
    table.capacity = 1000;
    table.initializer.kind = HOTBED_INIT_DEBUG; /* an element's value is its key */
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    storage.optimizer.learning_rate = rate;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.max_batch_size = KEYS;
    options.max_keys = KEYS;
    options.capacity = KEYS;
    options.gradient_scale = *scale == 0.0F ? 1.0F / (float)me->size : *scale;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    world_bytes keys = world_alloc(me, KEYS * sizeof(uint64_t));
    world_bytes rows = world_alloc(me, KEYS * DIM * sizeof(float));
    for (uint64_t i = 0; i < KEYS; i++)
        memcpy(keys.host + i * sizeof i, &i, sizeof i);
    world_upload(me, &keys);
    hotbed_kjt kjt = {.size = sizeof kjt};
    kjt.num_features = 1;
    kjt.batch_size = KEYS;
    kjt.num_keys = KEYS;
    kjt.keys = keys.device.data;
    double left = 1.0;
    for (int step = 0; step < 3; step++) {
        CHECK_OK(hotbed_sharded_forward(context, 0, &kjt, rows.device.data, 0, me->stream));
        CHECK_OK(hotbed_sharded_backward(context, 0, rows.device.data, 0, me->stream));
        world_download(me, &rows);
        for (int i = 0; i < KEYS * DIM; i++) {
            const int key = i / DIM;
            double want = left * key;
            CHECK_NEAR(((const float *)(void *)rows.host)[i], want, 1e-6 * fabs(want));
        }
        left *= 1.0 - (double)rate * (double)me->size * (double)options.gradient_scale;
    }
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
    world_free(&keys);
    world_free(&rows);
}

static void outputs_as_gradients_take_world_times_scale(hotbed_backend backend) {
    static float scales[] = {1.0F, 0.25F, 0.0F}; /* 0 stands for 1/world */
    for (int i = 0; i < 3; i++)
        sharded_fixture_run(33, outputs_as_gradients_body, &scales[i]);
}

/* --- keys beyond a static table -------------------------------------------------------------- */

typedef struct exchange_mode {
    hotbed_plan plan;
    hotbed_dedup dedup;
    hotbed_pooling pooling;
} exchange_mode;

enum { SMALL_ROWS = 3, SMALL_DIM = 4, SMALL_BATCH = SMALL_ROWS + 1 };

static hotbed_sharded *create_small(const world_rank *me, const exchange_mode *mode) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded = NULL;
    table.name = "user";
    table.kind = HOTBED_TABLE_STATIC;
    table.dim = SMALL_DIM;
    table.capacity = SMALL_ROWS;
    table.initializer.kind = HOTBED_INIT_DEBUG; /* an element's value is its key */
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    storage.pooling = mode->pooling;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.plan = mode->plan;
    options.dedup = mode->dedup;
    options.max_batch_size = SMALL_BATCH;
    options.max_keys = options.capacity = SMALL_BATCH;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    return sharded;
}

/* All ranks look up all rows; the last rank also looks up `bad`, which its owner reports, and which
 * reads as a row that does not exist. */
static void look_beyond(
    const world_rank *me, hotbed_sharded *sharded, hotbed_sharded_context *context, uint64_t bad,
    bool training) {
    world_bytes keys = world_alloc(me, SMALL_BATCH * sizeof(uint64_t));
    world_bytes rows = world_alloc(me, (size_t)SMALL_BATCH * SMALL_DIM * sizeof(float));
    for (uint64_t i = 0; i < SMALL_BATCH; i++) {
        uint64_t key = i < SMALL_ROWS ? i : me->rank == me->size - 1 ? bad : 0;
        memcpy(keys.host + i * sizeof key, &key, sizeof key);
    }
    world_upload(me, &keys);
    hotbed_kjt kjt = {.size = sizeof kjt};
    kjt.num_features = 1;
    kjt.batch_size = SMALL_BATCH;
    kjt.num_keys = SMALL_BATCH;
    kjt.keys = keys.device.data;
    CHECK_OK(hotbed_sharded_forward(context, 0, &kjt, rows.device.data, 0, me->stream));
    hotbed_sharded_table info = {.size = sizeof info};
    CHECK_OK(hotbed_sharded_table_read(sharded, 0, &info));
    if (hotbed_route_rank(&info.route, bad) == me->rank) {
        char expected[100];
        (void)snprintf(
            expected, sizeof expected, "table user: key %" PRIu64 " is not in [0, 3)", bad);
        CHECK_STATUS(hotbed_stream_sync(me->stream), HOTBED_ERR_RANGE);
        CHECK_STRING(hotbed_last_error(), expected);
    }
    world_download(me, &rows); /* all other streams have no fault */
    for (uint64_t i = 0; i < SMALL_BATCH * SMALL_DIM; i++) {
        uint64_t key, absent = training ? bad % 100000 : 0;
        memcpy(&key, keys.host + i / SMALL_DIM * sizeof key, sizeof key);
        CHECK_NEAR(((const float *)(void *)rows.host)[i], (double)(key == bad ? absent : key), 0);
    }
    CHECK_OK(hotbed_sharded_cancel(context, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    world_free(&keys);
    world_free(&rows);
}

/* Most ranks own no row of the table, and one of them owns the first key beyond it. */
static void beyond_body(world_rank *me) {
    const uint64_t bad[] = {SMALL_ROWS, SMALL_ROWS + 1, 7, 8, 100, INT64_MAX};
    hotbed_sharded *sharded = create_small(me, me->argument);
    hotbed_sharded_context *context = NULL;
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    for (int pass = 0; pass < 2; pass++) {
        const bool training = pass == 0;
        CHECK_OK(hotbed_sharded_set_training(sharded, training));
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            look_beyond(me, sharded, context, bad[i], training);
    }
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
}

static void keys_beyond_a_static_table_are_faults(hotbed_backend backend) {
    const hotbed_pooling poolings[] = {HOTBED_POOL_NONE, HOTBED_POOL_NONE, HOTBED_POOL_SUM};
    const hotbed_dedup dedups[] = {HOTBED_DEDUP_ON, HOTBED_DEDUP_OFF, HOTBED_DEDUP_AUTO};
    for (int plan = 0; plan < 3; plan++)
        for (int i = 0; i < 3; i++) {
            exchange_mode mode = {(hotbed_plan)plan, dedups[i], poolings[i]};
            if (plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
                sharded_fixture_run(8, beyond_body, &mode);
        }
}

const hotbed_test hotbed_tests[] = {
    {TEST(sequences_equal_one_process)},
    {TEST(batches_in_order_equal_one_process)},
    {TEST(occurrences_are_counted_as_in_one_process)},
    {TEST(adam_equals_one_process)},
    {TEST(tables_with_own_parameters_equal_one_process)},
    {TEST(learning_rates_of_tables_can_be_set)},
    {TEST(keys_of_one_rank_get_the_same_bytes)},
    {TEST(rows_of_every_type_get_the_bytes_of_one_process)},
    {TEST(rows_of_16_bits_take_half_of_the_bytes)},
    {TEST(rows_and_gradients_travel_in_other_types_on_all_plans)},
    {TEST(sums_equal_one_process)},
    {TEST(pooled_rows_give_the_bytes_of_one_process)},
    {TEST(pooled_exchanges_equal_one_process)},
    {TEST(means_equal_one_process)},
    {TEST(gradients_are_scaled_by_world)},
    {TEST(outputs_as_gradients_take_world_times_scale)},
    {TEST(keys_beyond_a_static_table_are_faults)},
    {NULL, NULL},
};
