/* tests/storage/test_storage_accumulate.c - backward in two calls, hotbed_storage_reduce() and
 * hotbed_storage_apply().
 *
 * The model has both calls, too, and its backward makes them.  Sums, rows and outputs must have the bytes of the
 * model, here and in test_storage_step.c; so reduce and apply together give the bytes of backward.
 */
#include "tests/storage/fixture.h"

#include <stdlib.h>

enum { GUARD = 0x5B, TABLES = 4 };

/* Sums of a batch, of the library and of the model. */
typedef struct sums {
    test_ticket *l;
    float *device; /* aligned to 16 bytes, or only to a float */
    float *host;
    float *seen;
    uint64_t bytes;
} sums;

static void sums_open(sums *s, test_ticket *l, bool aligned) {
    s->l = l;
    s->bytes = l->max_keys * l->r->model->max_dim * sizeof(float);
    s->device = (float *)fixture_alloc(l->r, s->bytes + 4) + (aligned ? 0 : 1);
    s->host = malloc(s->bytes);
    s->seen = malloc(s->bytes);
    CHECK(s->host != NULL && s->seen != NULL);
    memset(s->host, GUARD, s->bytes);
    CHECK_OK(hotbed_fill(s->device, GUARD, s->bytes, l->r->stream));
}

static void sums_close(sums *s) {
    free(s->host);
    free(s->seen);
}

/* Reduce random gradients and compare the sums, with the bytes between and behind them. */
static void sums_reduce(sums *s, rng *random, bool add) {
    test_ticket *l = s->l;
    hotbed_dtype dtype = l->r->model->options.output_dtype;
    for (uint64_t i = 0; i < l->output_bytes / hotbed_dtype_bytes(dtype); i++)
        oracle_store(dtype, l->scratch[0], i, rng_float(random));
    fixture_upload(l->r, l->gradient, l->scratch[0], l->output_bytes);
    CHECK_OK(hotbed_storage_reduce(
        l->r->storage, l->ticket, l->gradient, l->stride, add, s->device, l->r->stream));
    oracle_reduce(l->model, l->scratch[0], l->stride, add, s->host);
    fixture_download(l->r, s->seen, s->device, s->bytes);
    CHECK_BYTES(s->seen, s->host, s->bytes);
}

static void sums_apply(sums *s) {
    CHECK_OK(hotbed_storage_apply(s->l->r->storage, s->l->ticket, s->device, s->l->r->stream));
    oracle_apply(s->l->model, s->host);
}

/* A step that sums `micros` gradients. */
static void sums_step(sums *s, rng *random, const batch_shape *how, int micros) {
    test_ticket_fill(s->l, random, how);
    test_ticket_prefetch(s->l);
    for (int i = 0; i < micros; i++)
        sums_reduce(s, random, i > 0);
    sums_apply(s);
}

static void mixed_setup(
    setup *s, rng *random, hotbed_optimizer_kind kind, hotbed_pooling pooling, uint32_t n) {
    static const uint32_t dims[] = {1, 3, 4, 7, 16, 17, 33, 64, 100, 128, 129, 515};
    static const uint32_t features[] = {0, 1, 2, 2, 2, 3};
    setup_start(s, TABLES, 4, 4096);
    for (uint32_t t = 0; t < TABLES; t++) {
        s->tables[t].dim = dims[(n * TABLES + t * 5) % 12];
        s->tables[t].dtype = (hotbed_dtype)(1 + (n + t) % HOTBED_DTYPE_LAST);
        s->tables[t].state_dtype = n % 2 != 0 && t > 0 ? HOTBED_BF16 : HOTBED_F32;
    }
    s->tables[1].kind = HOTBED_TABLE_STATIC;
    s->tables[1].capacity = 100;
    /* never full; but tables that evict are unpinned in another way */
    s->tables[3].evict = HOTBED_EVICT_LOWEST;
    for (uint32_t f = 0; f < sizeof features / sizeof features[0]; f++)
        setup_feature(s, features[f]);
    s->options.pooling = pooling;
    s->options.output_dtype = (hotbed_dtype)(1 + n % 3);
    s->options.optimizer.kind = kind;
    setup_decay(&s->options.optimizer, n % 2 == 0 ? 0.0F : 0.01F);
    s->options.optimizer.max_gradient = n % 4 < 2 ? 0.0F : 0.75F;
    s->options.optimizer.initial_accumulator = 0.1F * (float)rng_below(random, 2);
}

static void mixed(hotbed_backend backend, hotbed_optimizer_kind kind) {
    rng random = rng_start((uint64_t)kind);
    for (uint32_t i = 0; i < 9; i += hotbed_test_is_small() ? 4 : 1) {
        setup s;
        fixture r;
        test_ticket l;
        sums sum;
        mixed_setup(&s, &random, kind, (hotbed_pooling)(i % 3), i);
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 600, 16);
        sums_open(&sum, &l, i % 2 == 0);
        const batch_shape recipes[] = {
            {.batch_size = 16, .max_bag = 4, .key_space = 40, .weights = true},
            {.batch_size = 16},
            {.batch_size = 0},
            {.batch_size = 5, .max_bag = 9, .key_space = 40, .extremes = true, .bound = true},
            {.batch_size = 16, .max_bag = 6, .one_key = true},
        };
        for (uint32_t k = 0; k < sizeof recipes / sizeof recipes[0]; k++)
            sums_step(&sum, &random, &recipes[k], k == 0 ? 3 : 1);
        test_ticket_step(&l, &random, &recipes[0]); /* a step with backward in between */
        sums_step(&sum, &random, &recipes[1], 2);
        fixture_check(&r);
        sums_close(&sum);
        fixture_close(&r);
    }
}

static void sgd_by_reduce_and_apply_equals_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_SGD);
}

static void adam_by_reduce_and_apply_equals_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ADAM);
}

static void adagrad_by_reduce_and_apply_equals_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ADAGRAD);
}

static void rowwise_adagrad_by_reduce_and_apply_equals_the_model(hotbed_backend backend) {
    mixed(backend, HOTBED_OPT_ROWWISE_ADAGRAD);
}

static void other_optimizers_by_reduce_and_apply_equal_the_model(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_ROWWISE_ADAGRAD + 1; kind <= HOTBED_OPT_LAST; kind++)
        mixed(backend, (hotbed_optimizer_kind)kind);
}

/* F32 rows whose dimension is a multiple of 4 have kernels of their own on CUDA. */
static void plain_rows_equal_the_model(hotbed_backend backend) {
    static const uint32_t dims[] = {4, 16, 32, 64, 128, 512};
    rng random = rng_start(20);
    for (uint32_t i = 0; i < 12; i++) {
        setup s;
        fixture r;
        test_ticket l;
        sums sum;
        setup_start(&s, 2, dims[i % 6], 4096);
        s.tables[1].dim = dims[i % 6] / 4 * 4;
        s.options.optimizer.kind = (hotbed_optimizer_kind)(1 + i % HOTBED_OPT_LAST);
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 400, 200);
        l.stride = 0;
        l.gradient = fixture_alloc(&r, l.output_bytes); /* aligned */
        sums_open(&sum, &l, i < 6);
        const batch_shape spread = {.batch_size = 200, .key_space = 60};
        const batch_shape hot = {.batch_size = 200, .key_space = 2};
        sums_step(&sum, &random, &spread, 1);
        sums_step(&sum, &random, &hot, 2);
        fixture_check(&r);
        sums_close(&sum);
        fixture_close(&r);
    }
}

/* Batches whose sums need one to four levels. */
static void sums_follow_the_documented_order(hotbed_backend backend) {
    static const uint32_t sizes[] = {1, 31, 32, 33, 1024, 1025, 1500, 33000};
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(21);
    setup_start(&s, 1, 3, 100);
    s.options.pooling = HOTBED_POOL_SUM;
    s.options.optimizer.kind = HOTBED_OPT_ROWWISE_ADAGRAD;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 33000, 33000);
    sums_open(&sum, &l, false);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const batch_shape one = {.batch_size = sizes[i], .one_key = true, .weights = i % 2 == 0};
        const batch_shape two = {.batch_size = sizes[i], .key_space = 2};
        sums_step(&sum, &random, &one, 1);
        sums_step(&sum, &random, &two, 2);
    }
    fixture_check(&r);
    sums_close(&sum);
    fixture_close(&r);
}

/* After a reduce, forward, another reduce, cancel and backward are allowed. */
static void reduce_changes_neither_rows_nor_pins(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(22);
    setup_start(&s, 2, 6, 500);
    s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 200, 64);
    sums_open(&sum, &l, true);
    const batch_shape how = {.batch_size = 64, .key_space = 20};
    test_ticket_fill(&l, &random, &how);
    for (int end = 0; end < 3; end++) {
        test_ticket_prefetch(&l);
        uint64_t pinned = fixture_pinned(&r);
        CHECK(pinned > 0);
        sums_reduce(&sum, &random, false);
        CHECK_EQ(fixture_pinned(&r), pinned);
        fixture_check(&r); /* no step is counted, no row has changed */
        test_ticket_check(&l);
        test_ticket_forward(&l);
        if (end == 0)
            test_ticket_cancel(&l);
        else if (end == 1)
            test_ticket_backward(&l, &random);
        else
            sums_apply(&sum);
        CHECK_EQ(fixture_pinned(&r), 0);
        CHECK_STATUS(
            hotbed_storage_apply(r.storage, l.ticket, sum.device, r.stream), HOTBED_ERR_STATE);
        fixture_check(&r);
    }
    sums_close(&sum);
    fixture_close(&r);
}

/* Refused keys have sums, which apply ignores. */
static void refused_keys_have_sums(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(23);
    setup_start(&s, 2, 5, 16);
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 512, 256);
    sums_open(&sum, &l, true);
    const batch_shape how = {.batch_size = 256};
    test_ticket_fill(&l, &random, &how);
    CHECK_EQ(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_FULL);
    sums_reduce(&sum, &random, false);
    sums_apply(&sum);
    fixture_check(&r);
    sums_close(&sum);
    fixture_close(&r);
}

/* apply uses the sums as the caller has changed them. */
static void changed_sums_are_applied(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(24);
    setup_start(&s, 2, 8, 500);
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    s.options.optimizer.max_gradient = 0.5F; /* clips gradients, not sums */
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 200, 64);
    sums_open(&sum, &l, true);
    for (int step = 0; step < 3; step++) {
        const batch_shape how = {.batch_size = 64, .key_space = 20};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        sums_reduce(&sum, &random, false);
        uint32_t uniques = l.model->unique_offsets[2];
        for (uint64_t i = 0; i < (uint64_t)uniques * 8; i++)
            sum.host[i] = i % 5 == 0 ? -0.0F : sum.host[i] * 3.0F;
        fixture_upload(&r, sum.device, sum.host, sum.bytes);
        sums_apply(&sum);
    }
    fixture_check(&r);
    sums_close(&sum);
    fixture_close(&r);
}

/* A graph of two reduces and an apply. */
static void a_recorded_step_may_sum_two_gradients(hotbed_backend backend) {
    enum { LAUNCHES = 30 };
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(25);
    hotbed_graph *graph;
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    setup_start(&s, 2, 7, 500);
    s.options.pooling = HOTBED_POOL_MEAN;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 128, 64);
    sums_open(&sum, &l, false);
    const batch_shape how = {.batch_size = 64, .key_space = 30};
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    float *gradients[2], *host[2];
    for (int g = 0; g < 2; g++) {
        gradients[g] = fixture_alloc(&r, l.output_bytes);
        host[g] = malloc(l.output_bytes);
        CHECK(host[g] != NULL);
    }
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
    for (int g = 0; g < 2; g++)
        CHECK_OK(hotbed_storage_reduce(
            r.storage, l.ticket, gradients[g], l.stride, g > 0, sum.device, r.stream));
    CHECK_OK(hotbed_storage_apply(r.storage, l.ticket, sum.device, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int i = 0; i < LAUNCHES; i++) {
        hotbed_batch model = l.host;
        model.offsets = NULL;
        model.weights = NULL;
        test_ticket_fill(&l, &random, &how); /* other keys in the same arrays */
        for (int g = 0; g < 2; g++) {
            for (uint64_t e = 0; e < l.output_bytes / sizeof(float); e++)
                host[g][e] = rng_float(&random);
            fixture_upload(&r, gradients[g], host[g], l.output_bytes);
        }
        hotbed_counters_read(&before);
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        oracle_prefetch(r.model, &model, l.model, NULL);
        for (int g = 0; g < 2; g++)
            oracle_reduce(l.model, host[g], l.stride, g > 0, sum.host);
        oracle_apply(l.model, sum.host);
    }
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    free(host[0]);
    free(host[1]);
    sums_close(&sum);
    fixture_close(&r);
}

static void reduce_and_apply_neither_wait_nor_allocate(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    sums sum;
    rng random = rng_start(26);
    setup_start(&s, 2, 7, 500);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 128, 64);
    sums_open(&sum, &l, false);
    const batch_shape how = {.batch_size = 64, .key_space = 30};
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_fill(l.gradient, 0, l.output_bytes, r.stream));
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 50; i++) {
        if (i == 1) /* the first reduce creates the stream's branch */
            before = hotbed_test_counters();
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
        CHECK_OK(hotbed_storage_reduce(
            r.storage, l.ticket, l.gradient, l.stride, false, sum.device, r.stream));
        CHECK_OK(hotbed_storage_apply(r.storage, l.ticket, sum.device, r.stream));
    }
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits - before.host_waits, 0);
    CHECK_EQ(after.allocations - before.allocations, 0);
    sums_close(&sum);
    fixture_close(&r);
}

static void bad_calls_are_refused(hotbed_backend backend) {
    setup s;
    fixture r, other;
    test_ticket l;
    sums sum;
    rng random = rng_start(27);
    setup_start(&s, 1, 4, 100);
    fixture_open(&r, backend, &s.options);
    fixture_open_bare(&other, backend, &s.options);
    test_ticket_open(&r, &l, 64, 64);
    sums_open(&sum, &l, true);
    hotbed_storage *t = r.storage;
    float *d = sum.device;
    void *g = l.gradient;
    CHECK_STATUS(hotbed_storage_reduce(t, l.ticket, g, 0, false, d, r.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_storage_apply(t, l.ticket, d, r.stream), HOTBED_ERR_STATE);
    const batch_shape how = {.batch_size = 64};
    test_ticket_fill(&l, &random, &how);
    test_ticket_prefetch(&l);
    const hotbed_status bad = HOTBED_ERR_ARGUMENT;
    CHECK_STATUS(hotbed_storage_reduce(NULL, l.ticket, g, 0, false, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_reduce(t, NULL, g, 0, false, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_reduce(t, l.ticket, NULL, 0, false, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_reduce(t, l.ticket, g, 3, false, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_reduce(t, l.ticket, g, 0, false, NULL, r.stream), bad);
    CHECK_STATUS(hotbed_storage_reduce(t, l.ticket, g, 0, false, d, NULL), bad);
    CHECK_STATUS(hotbed_storage_reduce(other.storage, l.ticket, g, 0, false, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_apply(NULL, l.ticket, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_apply(t, NULL, d, r.stream), bad);
    CHECK_STATUS(hotbed_storage_apply(t, l.ticket, NULL, r.stream), bad);
    CHECK_STATUS(hotbed_storage_apply(t, l.ticket, d, NULL), bad);
    CHECK_STATUS(hotbed_storage_apply(other.storage, l.ticket, d, r.stream), bad);
    sums_reduce(&sum, &random, false); /* the refused calls have not changed the ticket */
    sums_apply(&sum);
    fixture_check(&r);
    sums_close(&sum);
    fixture_close(&r);
    fixture_close(&other);
    s.options.optimizer.kind = (hotbed_optimizer_kind)0;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 64, 64);
    sums_open(&sum, &l, true);
    test_ticket_fill(&l, &random, &how);
    test_ticket_prefetch(&l);
    CHECK_STATUS(
        hotbed_storage_reduce(r.storage, l.ticket, l.gradient, 0, false, sum.device, r.stream),
        HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_storage_apply(r.storage, l.ticket, sum.device, r.stream), HOTBED_ERR_STATE);
    test_ticket_cancel(&l);
    sums_close(&sum);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(other_optimizers_by_reduce_and_apply_equal_the_model)},
    {TEST(sgd_by_reduce_and_apply_equals_the_model)},
    {TEST(adam_by_reduce_and_apply_equals_the_model)},
    {TEST(adagrad_by_reduce_and_apply_equals_the_model)},
    {TEST(rowwise_adagrad_by_reduce_and_apply_equals_the_model)},
    {TEST(plain_rows_equal_the_model)},
    {TEST(sums_follow_the_documented_order)},
    {TEST(reduce_changes_neither_rows_nor_pins)},
    {TEST(refused_keys_have_sums)},
    {TEST(changed_sums_are_applied)},
    {TEST(a_recorded_step_may_sum_two_gradients)},
    {TEST(reduce_and_apply_neither_wait_nor_allocate)},
    {TEST(bad_calls_are_refused)},
    {NULL, NULL},
};
