/* tests/storage/test_storage_step.c - training steps against the model, bit by bit.
 *
 * Random batches through prefetch, forward and backward: all optimizers, poolings, types and many dimensions, in
 * tables of either kind with one or more features.
 */
#include "tests/storage/fixture.h"

static const uint32_t all_dims[] = {1, 3, 4, 7, 8, 16, 17, 32, 64, 100, 128, 129, 256, 1023, 1024};

enum { NUM_DIMS = sizeof all_dims / sizeof all_dims[0], TABLES = 4 };

static void random_optimizer(hotbed_optimizer *optimizer, rng *random) {
    optimizer->learning_rate = 0.01F * (float)(1 + rng_below(random, 50));
    optimizer->eps = rng_below(random, 2) == 0 ? 1e-8F : 1e-3F;
    setup_decay(optimizer, rng_below(random, 2) == 0 ? 0.0F : 0.01F);
    if (optimizer->kind > HOTBED_OPT_ROWWISE_ADAGRAD && rng_below(random, 2) == 0)
        optimizer->l2_decay = 0.02F;
    optimizer->initial_accumulator = rng_below(random, 2) == 0 ? 0.0F : 0.1F;
    optimizer->max_gradient = rng_below(random, 2) == 0 ? 0.0F : 0.75F;
}

/* Tables of different dimensions and types; the second is static, the third has three features. */
static void mixed_setup(
    setup *s, rng *random, hotbed_optimizer_kind kind, hotbed_pooling pooling, uint32_t n) {
    setup_start(s, TABLES, 4, 4096);
    for (uint32_t t = 0; t < TABLES; t++) {
        s->tables[t].dim = all_dims[(n * TABLES + t) % NUM_DIMS];
        s->tables[t].dtype = (hotbed_dtype)(1 + (n + t) % HOTBED_DTYPE_LAST);
        s->tables[t].state_dtype = n % 2 != 0 && t != 2 ? HOTBED_BF16 : HOTBED_F32;
        s->tables[t].eval_initializer.value = 0.1F * (float)t;
    }
    s->tables[1].kind = HOTBED_TABLE_STATIC;
    s->tables[1].capacity = 100;
    static const uint32_t features[] = {0, 1, 2, 2, 2, 3};
    for (uint32_t f = 0; f < sizeof features / sizeof features[0]; f++)
        setup_feature(s, features[f]);
    s->options.pooling = pooling;
    s->options.output_dtype = (hotbed_dtype)(1 + n % 3);
    s->options.key_type = n % 2 == 0 ? HOTBED_KEY_I64 : HOTBED_KEY_U64;
    s->options.optimizer.kind = kind;
    random_optimizer(&s->options.optimizer, random);
}

static void mixed_steps(hotbed_backend backend, setup *s, rng *random) {
    fixture r;
    test_ticket l;
    fixture_open(&r, backend, &s->options);
    test_ticket_open(&r, &l, 600, 16);
    const batch_shape recipes[] = {
        {.batch_size = 16, .max_bag = 4, .key_space = 40, .weights = true},
        {.batch_size = 16},
        {.batch_size = 0},
        {.batch_size = 5, .max_bag = 9, .key_space = 40, .extremes = true, .bound = true},
        {.batch_size = 13, .key_space = 3, .weights = true},
        {.batch_size = 16, .max_bag = 6, .one_key = true, .extremes = true},
    };
    for (uint32_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        test_ticket_step(&l, random, &recipes[i]);
    test_ticket_eval(&l);
    fixture_check(&r);
    fixture_close(&r);
}

static void mixed(hotbed_backend backend, hotbed_optimizer_kind kind) {
    rng random = rng_start((uint64_t)kind);
    uint32_t n = (uint32_t)rng_below(&random, NUM_DIMS);
    for (uint32_t i = 0; i < 12; i += hotbed_test_is_small() ? 5 : 1) {
        setup s;
        mixed_setup(&s, &random, kind, (hotbed_pooling)(i % 3), n + i);
        mixed_steps(backend, &s, &random);
    }
}

static void sgd_steps_equal_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_SGD);
}

static void adam_steps_equal_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ADAM);
}

static void adagrad_steps_equal_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ADAGRAD);
}

static void rowwise_adagrad_steps_equal_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ROWWISE_ADAGRAD);
}

/* On CUDA these have kernels that read the kind when they run. */
static void steps_of_the_other_optimizers_equal_the_model(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_ROWWISE_ADAGRAD + 1; kind <= HOTBED_OPT_LAST; kind++)
        mixed(backend, (hotbed_optimizer_kind)kind);
}

/* L2 decay with each optimizer, in rows of one dimension, which on CUDA stay in registers. */
static void l2_decay_equals_the_model(hotbed_backend backend) {
    static const uint32_t dims[] = {8, 32, 64, 128, 256};
    rng random = rng_start(9);
    for (uint32_t i = 0; i < 2 * HOTBED_OPT_LAST; i++) {
        setup s;
        fixture r;
        test_ticket l;
        setup_start(&s, 1, dims[i % 5], 500);
        s.tables[0].dtype = (hotbed_dtype)(1 + i / 2 % HOTBED_DTYPE_LAST);
        s.tables[0].state_dtype = i % 2 == 0 ? HOTBED_F32 : HOTBED_BF16;
        s.options.pooling = i % 3 == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
        s.options.optimizer.kind = (hotbed_optimizer_kind)(1 + i / 2);
        s.options.optimizer.l2_decay = 0.125F;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 600, 120);
        l.stride = 0;
        l.gradient = fixture_alloc(&r, l.output_bytes); /* aligned */
        for (int step = 0; step < 3; step++) {
            const batch_shape how = {
                .batch_size = 120, .max_bag = i % 3 == 0 ? 0 : 5, .key_space = step == 1 ? 3 : 60};
            test_ticket_step(&l, &random, &how);
        }
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* Each dimension in a storage of its own, because the largest dimension decides how work is split. */
static void every_dimension_equals_the_model(hotbed_backend backend) {
    rng random = rng_start(7);
    for (uint32_t i = 0; i < 2 * NUM_DIMS; i += hotbed_test_is_small() ? 3 : 1) {
        const uint32_t d = i % NUM_DIMS;
        setup s;
        fixture r;
        test_ticket l;
        setup_start(&s, 1, all_dims[d], 500);
        s.tables[0].dtype = (hotbed_dtype)(1 + d % HOTBED_DTYPE_LAST);
        s.tables[0].state_dtype = i < NUM_DIMS ? HOTBED_F32 : HOTBED_BF16;
        s.options.pooling = (hotbed_pooling)((d + 1) % 3);
        s.options.optimizer.kind = (hotbed_optimizer_kind)(1 + (i + 1) % HOTBED_OPT_LAST);
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 128, 32);
        for (int step = 0; step < 3; step++) {
            const batch_shape how = {
                .batch_size = 32, .max_bag = 5, .key_space = 60, .weights = true};
            test_ticket_step(&l, &random, &how);
        }
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* Bags of up to 100 keys: more than the kernels take at a time. */
static void long_bags_equal_the_model(hotbed_backend backend) {
    static const uint32_t dims[] = {3, 32, 100};
    rng random = rng_start(12);
    for (uint32_t i = 0; i < 12; i += hotbed_test_is_small() ? 5 : 1) {
        setup s;
        fixture r;
        test_ticket l;
        setup_start(&s, 1, dims[i % 3], 2000);
        s.tables[0].dtype = (hotbed_dtype)(1 + i / 2 % HOTBED_DTYPE_LAST);
        s.options.pooling = i % 2 == 0 ? HOTBED_POOL_SUM : HOTBED_POOL_MEAN;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 1600, 16);
        for (int step = 0; step < 3; step++) {
            const batch_shape how = {
                .batch_size = 16, .max_bag = 100, .key_space = 500, .weights = step == 1};
            test_ticket_step(&l, &random, &how);
        }
        test_ticket_eval(&l);
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* Many occurrences of few keys: their sums have one to four levels of groups of 32. */
static void sums_follow_the_documented_order(hotbed_backend backend) {
    static const uint32_t sizes[] = {1, 31, 32, 33, 64, 1023, 1024, 1025, 1500, 33000};
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(8);
    setup_start(&s, 1, 3, 100);
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 33000, 33000);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const batch_shape one = {.batch_size = sizes[i], .one_key = true, .weights = i % 2 == 0};
        test_ticket_step(&l, &random, &one);
        const batch_shape two = {.batch_size = sizes[i], .key_space = 2};
        test_ticket_step(&l, &random, &two);
    }
    fixture_check(&r);
    fixture_close(&r);
}

/* A few keys with thousands of occurrences among many rare ones. */
static void a_batch_may_have_hot_and_cold_keys(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(9);
    setup_start(&s, 2, 5, 20000);
    s.options.pooling = HOTBED_POOL_SUM;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 8192, 4096);
    for (int step = 0; step < 2; step++) {
        const batch_shape how = {.batch_size = 4096, .key_space = 1000};
        test_ticket_fill(&l, &random, &how);
        uint64_t *keys = (uint64_t *)l.host.keys;
        for (uint64_t i = 0; i < l.num_keys; i++)
            if (rng_below(&random, 2) == 0)
                keys[i] = rng_below(&random, 2);
        test_ticket_upload(&l);
        test_ticket_prefetch(&l);
        test_ticket_check(&l);
        test_ticket_forward(&l);
        test_ticket_backward(&l, &random);
    }
    fixture_check(&r);
    fixture_close(&r);
}

static void the_learning_rate_may_change_between_steps(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(10);
    setup_start(&s, 2, 8, 1000);
    s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 64, 32);
    const batch_shape how = {.batch_size = 32, .key_space = 50};
    static const float rates[] = {0.5F, 0.0F, 1e-3F, -0.25F};
    for (int i = 0; i < 4; i++) {
        test_ticket_step(&l, &random, &how);
        CHECK_OK(hotbed_storage_set_learning_rate(r.storage, rates[i], r.stream));
        r.model->state.learning_rate = rates[i];
    }
    test_ticket_step(&l, &random, &how);
    fixture_check(&r);
    fixture_close(&r);
}

/* Batches without keys count as prefetches and as optimizer steps. */
static void empty_batches_count_as_steps(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(11);
    setup_start(&s, 3, 4, 100);
    s.options.pooling = HOTBED_POOL_MEAN;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 64, 8);
    const batch_shape full = {.batch_size = 8, .max_bag = 3, .key_space = 20};
    const batch_shape none = {.batch_size = 0};
    test_ticket_step(&l, &random, &full);
    test_ticket_step(&l, &random, &none);
    test_ticket_fill(&l, &random, &full); /* samples whose bags are all empty */
    memset((void *)l.host.offsets, 0, (3U * 8U + 1U) * sizeof(int64_t));
    l.num_keys = l.host.num_keys = 0;
    test_ticket_upload(&l);
    test_ticket_prefetch(&l);
    test_ticket_check(&l);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    test_ticket_step(&l, &random, &full);
    fixture_check(&r);
    fixture_close(&r);
}

static void a_storage_for_lookup_only_has_no_state(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(12);
    setup_start(&s, 2, 6, 500);
    s.options.optimizer.kind = (hotbed_optimizer_kind)0;
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 100, 16);
    for (int i = 0; i < 3; i++) {
        const batch_shape how = {.batch_size = 16, .max_bag = 4, .weights = i == 1};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        test_ticket_forward(&l);
        test_ticket_cancel(&l);
    }
    fixture_check(&r);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(sgd_steps_equal_the_model)},
    {TEST(adam_steps_equal_the_model)},
    {TEST(adagrad_steps_equal_the_model)},
    {TEST(rowwise_adagrad_steps_equal_the_model)},
    {TEST(steps_of_the_other_optimizers_equal_the_model)},
    {TEST(l2_decay_equals_the_model)},
    {TEST(every_dimension_equals_the_model)},
    {TEST(long_bags_equal_the_model)},
    {TEST(sums_follow_the_documented_order)},
    {TEST(a_batch_may_have_hot_and_cold_keys)},
    {TEST(the_learning_rate_may_change_between_steps)},
    {TEST(empty_batches_count_as_steps)},
    {TEST(a_storage_for_lookup_only_has_no_state)},
    {NULL, NULL},
};
