/* tests/storage/test_storage_nonfinite.c - gradients that are NaN or infinite: passed, skipped or a fault.
 *
 * Two storages of one seed get the same batch and gradient, and only one of them skips. All rows with finite gradients
 * must be equal.
 */
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES = 24, KEYS = 3 * SAMPLES, TABLES = 2, CAPACITY = 200, DIM_MOST = 160 };

typedef struct side {
    fixture r;
    hotbed_ticket *ticket;
} side;

/* Keys of table 0 occur up to three times, those of the static table 1 once. */
static uint64_t key_at(uint32_t i) {
    return i < 2 * SAMPLES ? (uint64_t)1 << 40 | i % 20 : i;
}

static hotbed_batch batch_of(side *d) {
    uint64_t keys[KEYS];
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = key_at(i);
    hotbed_batch batch = {.size = sizeof batch, .batch_size = SAMPLES, .num_keys = KEYS};
    batch.keys = fixture_copy(&d->r, keys, sizeof keys);
    return batch;
}

static void side_open(
    side *d, hotbed_backend backend, uint32_t dim, hotbed_optimizer_kind kind,
    hotbed_pooling pooling, hotbed_nonfinite nonfinite) {
    setup s;
    setup_start(&s, TABLES, dim, CAPACITY);
    s.tables[1].kind = HOTBED_TABLE_STATIC;
    setup_feature(&s, 0), setup_feature(&s, 0), setup_feature(&s, 1);
    s.options.optimizer.kind = kind;
    s.options.pooling = pooling;
    s.options.nonfinite = nonfinite;
    fixture_open_bare(&d->r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(d->r.storage, KEYS, SAMPLES, d->r.stream, &d->ticket));
}

static void side_close(side *d) {
    hotbed_ticket_destroy(d->ticket);
    fixture_close(&d->r);
}

/* Train one batch. With `apart` by reduce and apply. */
static hotbed_status side_step(
    side *d, const float *gradient, size_t bytes, uint32_t dim, bool apart) {
    hotbed_batch batch = batch_of(d);
    const float *device = fixture_copy(&d->r, gradient, bytes);
    float *sums = fixture_alloc(&d->r, sizeof(float) * KEYS * dim);
    CHECK_OK(hotbed_storage_prefetch(d->r.storage, &batch, d->ticket, d->r.stream));
    if (apart) {
        CHECK_OK(
            hotbed_storage_reduce(d->r.storage, d->ticket, device, 0, false, sums, d->r.stream));
        CHECK_OK(hotbed_storage_apply(d->r.storage, d->ticket, sums, d->r.stream));
    } else {
        CHECK_OK(hotbed_storage_backward(d->r.storage, d->ticket, device, 0, d->r.stream));
    }
    return hotbed_stream_sync(d->r.stream);
}

static void side_row(side *d, uint32_t table, uint64_t key, uint32_t dim, float *weights) {
    hotbed_rows rows = {.weights = fixture_alloc(&d->r, dim * sizeof(float))};
    const uint64_t *keys = fixture_copy(&d->r, &key, sizeof key);
    CHECK_OK(hotbed_storage_get_rows(d->r.storage, table, 1, keys, &rows, NULL, d->r.stream));
    fixture_download(&d->r, weights, rows.weights, dim * sizeof(float));
}

static uint64_t side_count(side *d, uint32_t table) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(d->r.storage, table, &stats, d->r.stream));
    return stats.nonfinite;
}

/* Element e of the gradient of key number i. */
static float *element(float *gradient, uint32_t i, uint32_t dim, bool pooled, uint32_t e) {
    return pooled ? gradient + (size_t)(i % SAMPLES) * 3 * dim + (i / SAMPLES) * dim + e
                  : gradient + (size_t)i * dim + e;
}

static void compare(
    hotbed_backend backend, uint32_t dim, hotbed_optimizer_kind kind, bool pooled, bool apart) {
    static float gradient[KEYS * DIM_MOST];
    const hotbed_pooling pooling = pooled ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
    const size_t bytes = sizeof(float) * KEYS * dim;
    float first[DIM_MOST], row[DIM_MOST], other[DIM_MOST];
    char text[256];
    side skip, pass;
    rng random = rng_start(dim);
    side_open(&skip, backend, dim, kind, pooling, HOTBED_NONFINITE_SKIP);
    side_open(&pass, backend, dim, kind, pooling, HOTBED_NONFINITE_PASS);
    for (uint32_t i = 0; i < KEYS * dim; i++)
        gradient[i] = rng_float(&random);
    CHECK_OK(side_step(&skip, gradient, bytes, dim, apart)); /* all finite: the same bytes */
    CHECK_OK(side_step(&pass, gradient, bytes, dim, apart));
    CHECK_EQ(side_count(&skip, 0) + side_count(&skip, 1), 0);
    CHECK_OK(hotbed_storage_warning(skip.r.storage, text, sizeof text, NULL));
    CHECK(text[0] == 0);
    const uint32_t bad[2] = {5, 2 * SAMPLES + 7}; /* of table 0, in its last element; of table 1 */
    *element(gradient, bad[0], dim, pooled, dim - 1) = NAN;
    *element(gradient, bad[1], dim, pooled, 0) = -INFINITY;
    side_row(&skip, 0, key_at(bad[0]), dim, first);
    side_row(&skip, 1, key_at(bad[1]), dim, other);
    CHECK_OK(side_step(&skip, gradient, bytes, dim, apart));
    CHECK_OK(side_step(&pass, gradient, bytes, dim, apart));
    side_row(&skip, 0, key_at(bad[0]), dim, row);
    CHECK_BYTES(row, first, dim * sizeof *row);
    side_row(&skip, 1, key_at(bad[1]), dim, row);
    CHECK_BYTES(row, other, dim * sizeof *row);
    side_row(&pass, 0, key_at(bad[0]), dim, row);
    CHECK(isnan(row[dim - 1]));
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint32_t table = i < 2 * SAMPLES ? 0 : 1;
        if (key_at(i) == key_at(bad[table]))
            continue;
        side_row(&skip, table, key_at(i), dim, row);
        side_row(&pass, table, key_at(i), dim, other);
        CHECK_BYTES(row, other, dim * sizeof *row);
    }
    CHECK_EQ(side_count(&skip, 0), 1);
    CHECK_EQ(side_count(&skip, 1), 1);
    CHECK_EQ(side_count(&pass, 0), 0);
    CHECK_OK(hotbed_storage_warning(skip.r.storage, text, sizeof text, NULL));
    CHECK(
        strstr(text, "the gradient of key ") != NULL && strstr(text, "is NaN or infinite") != NULL);
    for (uint32_t i = 0; i < KEYS * dim; i++) /* the row trains on, with the state of before */
        gradient[i] = 1.0F;
    CHECK_OK(side_step(&skip, gradient, bytes, dim, apart));
    side_row(&skip, 0, key_at(bad[0]), dim, row);
    CHECK(isfinite(row[dim - 1]) && row[dim - 1] != first[dim - 1]);
    side_close(&skip);
    side_close(&pass);
}

static void rows_of_bad_gradients_stay_and_others_train(hotbed_backend backend) {
    static const uint32_t dims[] = {1, 8, 64, DIM_MOST};
    for (int kind = 1; kind <= HOTBED_OPT_LAST; kind++)
        for (int d = 0; d < 4; d++)
            for (int way = 0; way < 4; way++) {
                if (hotbed_test_is_small() && (d != kind % 4 || way != kind / 4 % 4))
                    continue;
                compare(backend, dims[d], (hotbed_optimizer_kind)kind, way % 2 != 0, way / 2 != 0);
            }
}

static void a_bad_gradient_may_be_a_fault(hotbed_backend backend) {
    enum { DIM = 8 };
    float gradient[KEYS * DIM] = {0}, before[DIM], after[DIM];
    side d;
    side_open(&d, backend, DIM, HOTBED_OPT_SGD, HOTBED_POOL_NONE, HOTBED_NONFINITE_ERROR);
    CHECK_OK(side_step(&d, gradient, sizeof gradient, DIM, false));
    side_row(&d, 1, key_at(60), DIM, before);
    gradient[60 * DIM + 3] = INFINITY;
    CHECK_STATUS(side_step(&d, gradient, sizeof gradient, DIM, false), HOTBED_ERR_ARGUMENT);
    CHECK(
        strstr(hotbed_last_error(), "table table-1: the gradient of key 60 is NaN or infinite") !=
        NULL);
    CHECK_FIELDS(
            .cause = HOTBED_CAUSE_GRADIENT, .has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY,
            .table = "table-1", .table_number = 1, .key = 60, .key_type = HOTBED_KEY_I64);
    CHECK_STATUS(side_step(&d, gradient, sizeof gradient, DIM, true), HOTBED_ERR_ARGUMENT);
    side_row(&d, 1, key_at(60), DIM, after);
    CHECK_BYTES(after, before, sizeof after);
    CHECK_EQ(side_count(&d, 1), 2);
    CHECK_EQ(fixture_pinned(&d.r), 0); /* the rows were unpinned */
    side_close(&d);
}

/* A clamp makes a bound of infinity, but leaves NaN. */
static void clamped_gradients_are_finite(hotbed_backend backend) {
    enum { DIM = 4 };
    float gradient[KEYS * DIM] = {INFINITY};
    setup s;
    side d;
    setup_start(&s, TABLES, DIM, CAPACITY);
    s.tables[1].kind = HOTBED_TABLE_STATIC;
    setup_feature(&s, 0), setup_feature(&s, 0), setup_feature(&s, 1);
    s.options.optimizer.max_gradient = 2.0F;
    s.options.nonfinite = HOTBED_NONFINITE_SKIP;
    fixture_open_bare(&d.r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(d.r.storage, KEYS, SAMPLES, d.r.stream, &d.ticket));
    CHECK_OK(side_step(&d, gradient, sizeof gradient, DIM, false));
    CHECK_EQ(side_count(&d, 0), 0);
    gradient[0] = NAN;
    CHECK_OK(side_step(&d, gradient, sizeof gradient, DIM, false));
    CHECK_EQ(side_count(&d, 0), 1);
    side_close(&d);
}

static void unknown_policies_are_errors(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_storage *storage;
    setup_start(&s, 1, 4, 10);
    fixture_open_bare(&r, backend, &s.options);
    s.options.nonfinite = (hotbed_nonfinite)3;
    CHECK_STATUS(hotbed_storage_create(&s.options, r.stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "nonfinite 3") != NULL);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_of_bad_gradients_stay_and_others_train)},
    {TEST(a_bad_gradient_may_be_a_fault)},
    {TEST(clamped_gradients_are_finite)},
    {TEST(unknown_policies_are_errors)},
    {NULL, NULL},
};
