/* tests/storage/test_storage_scaled.c - tables of int8 and fp8 rows, whose scales are part of the row.
 *
 * The model reads a stored row by the description in hotbed/types.h and computes a step in double precision; every
 * stored element must then be one of the two neighbours of the result.
 */
#include "storage/types.h"
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 24, CAPACITY = 300, DIM_MOST = 260, ROW_MOST = 320 };

static const hotbed_dtype dtypes[] = {HOTBED_INT8, HOTBED_FP8};
/* one and several groups of four, one and several scales, a last block that is not whole */
static const uint32_t dims[] = {1, 3, 4, 16, 32, 64, 65, 96, 128, 260};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0], DIMS = sizeof dims / sizeof dims[0] };

/* --- the model -------------------------------------------------------------------------------- */

static double model_f16(const unsigned char *p) {
    const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25));
}

static double model_fp8(unsigned char byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    const double sign = (byte & 0x80) != 0 ? -1.0 : 1.0;
    return sign * (exponent == 0 ? ldexp(fraction, -9) : ldexp(fraction + 8, exponent - 10));
}

/* Element e of a stored row; *unit is the distance between two neighbours there. */
static double model_element(
    hotbed_dtype dtype, uint32_t dim, const unsigned char *row, uint32_t e, double *unit) {
    if (dtype == HOTBED_INT8) {
        *unit = model_f16(row + dim);
        return row[e] * *unit + model_f16(row + dim + 2);
    }
    float scale;
    memcpy(&scale, row + dim + (dim <= 64 ? 0 : e / 32 * 4), sizeof scale);
    const int exponent = row[e] >> 3 & 15;
    *unit = ldexp((double)scale, (exponent < 1 ? 1 : exponent) - 10);
    return model_fp8(row[e]) * (double)scale;
}

/* --- a table ---------------------------------------------------------------------------------- */

typedef struct side {
    fixture r;
    hotbed_ticket *ticket;
    hotbed_dtype dtype;
    uint32_t dim;
    void *keys, *rows, *gradient; /* device */
} side;

static void side_open(
    side *d, hotbed_backend backend, hotbed_dtype dtype, uint32_t dim, hotbed_optimizer_kind kind,
    hotbed_pooling pooling, hotbed_mode mode, float rate) {
    setup s;
    setup_start(&s, 1, dim, CAPACITY);
    s.tables[0].dtype = d->dtype = dtype;
    setup_feature(&s, 0);
    s.options.optimizer.kind = kind;
    s.options.optimizer.learning_rate = rate;
    s.options.pooling = pooling;
    s.options.seed = 9;
    if (mode != HOTBED_MODE_AUTO) {
        s.options.mode = mode;
        s.tables[0].upper_capacity = 40;
    }
    d->dim = dim;
    fixture_open_bare(&d->r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(d->r.storage, KEYS, KEYS, d->r.stream, &d->ticket));
    d->keys = fixture_alloc(&d->r, KEYS * sizeof(uint64_t));
    d->rows = fixture_alloc(&d->r, KEYS * (dim + 1) * sizeof(float));
    d->gradient = fixture_alloc(&d->r, KEYS * dim * sizeof(float));
}

static void side_close(side *d) {
    hotbed_ticket_destroy(d->ticket);
    fixture_close(&d->r);
}

/* Keys of a step: of 72 keys, so that rows move between tiers. */
static uint64_t key_at(uint32_t step, uint32_t i) {
    return (uint64_t)(step % 3) * KEYS + i;
}

static void side_rows(side *d, uint32_t step, unsigned char *out) {
    uint64_t keys[KEYS];
    const size_t bytes = KEYS * hotbed_dtype_row_bytes(d->dtype, d->dim);
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = key_at(step, i);
    hotbed_rows rows = {.weights = d->rows};
    fixture_upload(&d->r, d->keys, keys, sizeof keys);
    CHECK_OK(hotbed_storage_get_rows(d->r.storage, 0, KEYS, d->keys, &rows, NULL, d->r.stream));
    fixture_download(&d->r, out, rows.weights, bytes);
}

/* The first state of the rows of step 0. */
static void side_states(side *d, float *out) {
    hotbed_rows rows = {.states = {d->rows}};
    CHECK_OK(hotbed_storage_get_rows(d->r.storage, 0, KEYS, d->keys, &rows, NULL, d->r.stream));
    fixture_download(&d->r, out, d->rows, KEYS * d->dim * sizeof(float));
}

/* One step with each key once; `output` gets the forward's rows. */
static void side_step(side *d, uint32_t step, const float *gradient, float *output) {
    uint64_t keys[KEYS];
    hotbed_batch batch = {.size = sizeof batch};
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = key_at(step, i);
    batch.batch_size = KEYS, batch.num_keys = KEYS;
    batch.keys = d->keys;
    const size_t bytes = KEYS * d->dim * sizeof(float);
    fixture_upload(&d->r, d->keys, keys, sizeof keys);
    fixture_upload(&d->r, d->gradient, gradient, bytes);
    CHECK_OK(hotbed_storage_prefetch(d->r.storage, &batch, d->ticket, d->r.stream));
    CHECK_OK(hotbed_storage_forward(d->r.storage, d->ticket, d->rows, 0, d->r.stream));
    CHECK_OK(hotbed_storage_backward(d->r.storage, d->ticket, d->gradient, 0, d->r.stream));
    fixture_download(&d->r, output, d->rows, bytes);
}

static void gradients_of(rng *random, float *gradient, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        gradient[i] = rng_float(random);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void a_step_gives_neighbours_of_the_exact_result(hotbed_backend backend) {
    static unsigned char before[KEYS * ROW_MOST], after[KEYS * ROW_MOST];
    static float gradient[KEYS * DIM_MOST], output[KEYS * DIM_MOST];
    for (uint32_t k = 0; k < 2 * DIMS * DTYPES; k++) {
        const hotbed_dtype dtype = dtypes[k % DTYPES];
        const uint32_t dim = dims[k / DTYPES % DIMS];
        const size_t row = hotbed_dtype_row_bytes(dtype, dim);
        side d;
        rng random = rng_start(k);
        side_open(
            &d, backend, dtype, dim, HOTBED_OPT_SGD,
            k / DTYPES / DIMS == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM, HOTBED_MODE_AUTO, 0.05F);
        gradients_of(&random, gradient, KEYS * dim);
        side_step(&d, 0, gradient, output); /* creates the rows */
        double error = 0.0, units = 0.0;
        for (uint32_t step = 0; step < 12; step += 3) {
            gradients_of(&random, gradient, KEYS * dim);
            side_rows(&d, step, before);
            side_step(&d, step, gradient, output);
            side_rows(&d, step, after);
            for (uint32_t i = 0; i < KEYS; i++)
                for (uint32_t e = 0; e < dim; e++) {
                    double unit;
                    const double w = model_element(dtype, dim, before + i * row, e, &unit);
                    CHECK_NEAR(output[i * dim + e], w, 1e-6 * (1.0 + fabs(w)));
                    const double want = w - 0.05 * (double)gradient[i * dim + e];
                    const double got = model_element(dtype, dim, after + i * row, e, &unit);
                    CHECK_NEAR(got, want, unit * 1.0001 + 1e-6);
                    error += (got - want) / unit;
                    units += 1.0;
                }
        }
        CHECK_NEAR(error / units, 0.0, 3.0 / sqrt(units) + 0.01); /* the expected row is exact */
        side_close(&d);
    }
}

/* Initial rows and rows that are converted are rounded to nearest; without updates they do not change. */
static void rows_are_rounded_to_nearest_when_made(hotbed_backend backend) {
    static unsigned char rows[KEYS * ROW_MOST], again[ROW_MOST];
    static float gradient[KEYS * DIM_MOST], output[KEYS * DIM_MOST], exact[KEYS * DIM_MOST];
    for (uint32_t k = 0; k < DIMS * DTYPES; k++) {
        const hotbed_dtype dtype = dtypes[k % DTYPES];
        const uint32_t dim = dims[k / DTYPES];
        const size_t row = hotbed_dtype_row_bytes(dtype, dim);
        side d, wide;
        memset(gradient, 0, sizeof gradient);
        side_open(
            &d, backend, dtype, dim, HOTBED_OPT_SGD, HOTBED_POOL_NONE, HOTBED_MODE_AUTO, 0.1F);
        side_open(
            &wide, backend, HOTBED_F32, dim, HOTBED_OPT_SGD, HOTBED_POOL_NONE, HOTBED_MODE_AUTO,
            0.1F);
        side_step(&wide, 0, gradient, exact);
        side_step(&d, 0, gradient, output);
        side_rows(&d, 0, rows);
        for (uint32_t i = 0; i < KEYS; i++) {
            float weights[DIM_MOST];
            for (uint32_t e = 0; e < dim; e++) {
                double unit;
                const double got = model_element(dtype, dim, rows + i * row, e, &unit);
                CHECK_NEAR(got, exact[i * dim + e], unit * 0.5001 + 1e-6);
                CHECK_NEAR(got, output[i * dim + e], 1e-6);
            }
            hotbed_weights_write(dtype, dim, exact + (size_t)i * dim, again);
            hotbed_weights_read(dtype, dim, again, weights);
            for (uint32_t e = 0; e < dim; e++) {
                double unit;
                CHECK_NEAR(
                    model_element(dtype, dim, again, e, &unit), weights[e],
                    1e-6 * (1.0 + fabs((double)weights[e])));
                CHECK_NEAR(weights[e], exact[i * dim + e], unit * 0.5001 + 1e-6);
            }
        }
        side_close(&d);
        side_close(&wide);
    }
}

static void modes_give_the_same_bytes(hotbed_backend backend) {
    static unsigned char rows[3][KEYS * ROW_MOST];
    static float gradient[KEYS * DIM_MOST], output[KEYS * DIM_MOST];
    static const hotbed_mode modes[] = {HOTBED_MODE_AUTO, HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    const bool small = hotbed_test_is_small(); /* one dim and type for each optimizer, by turns */
    for (uint32_t k = 0; k < DIMS * DTYPES * HOTBED_OPT_LAST; k += small ? DIMS * DTYPES + 1 : 1) {
        const hotbed_dtype dtype = dtypes[k % DTYPES];
        const uint32_t dim = dims[k / DTYPES % DIMS];
        const hotbed_optimizer_kind kind = (hotbed_optimizer_kind)(1 + k / DTYPES / DIMS);
        for (uint32_t m = 0; m < 3; m++) {
            side d;
            rng random = rng_start(k);
            side_open(&d, backend, dtype, dim, kind, HOTBED_POOL_SUM, modes[m], 0.02F);
            for (uint32_t step = 0; step < (small ? 4 : 9); step++) {
                gradients_of(&random, gradient, KEYS * dim);
                side_step(&d, step, gradient, output);
            }
            side_rows(&d, 0, rows[m]);
            side_close(&d);
        }
        CHECK_BYTES(rows[1], rows[0], KEYS * hotbed_dtype_row_bytes(dtype, dim));
        CHECK_BYTES(rows[2], rows[0], KEYS * hotbed_dtype_row_bytes(dtype, dim));
    }
}

/* Half of the elements have a gradient of 0. They keep their values while the row keeps its scale; where it is chosen
 * again they are rounded without a drift. */
static void elements_without_a_gradient_do_not_drift(hotbed_backend backend) {
    enum { DIM = 64, TRAINED = 120 };
    static unsigned char first[KEYS * ROW_MOST], before[KEYS * ROW_MOST], after[KEYS * ROW_MOST];
    static float gradient[KEYS * DIM], output[KEYS * DIM];
    for (uint32_t k = 0; k < DTYPES; k++) {
        const hotbed_dtype dtype = dtypes[k];
        const size_t row = hotbed_dtype_row_bytes(dtype, DIM);
        double drift = 0.0, most = 0.0;
        uint32_t chosen = 0;
        side d;
        rng random = rng_start(k);
        side_open(
            &d, backend, dtype, DIM, HOTBED_OPT_SGD, HOTBED_POOL_NONE, HOTBED_MODE_AUTO, 0.05F);
        memset(gradient, 0, sizeof gradient);
        side_step(&d, 0, gradient, output);
        side_step(&d, 0, gradient, output); /* an int8 row has room from its first step on */
        side_rows(&d, 0, first);
        memcpy(before, first, sizeof before);
        for (uint32_t step = 0; step < TRAINED; step++) {
            for (uint32_t i = 0; i < KEYS * DIM; i += 2)
                gradient[i] = rng_float(&random);
            side_step(&d, 0, gradient, output);
            side_rows(&d, 0, after);
            for (uint32_t i = 0; i < KEYS; i++) {
                const bool kept = memcmp(before + i * row + DIM, after + i * row + DIM, 4) == 0;
                chosen += !kept;
                for (uint32_t e = 1; kept && e < DIM; e += 2)
                    CHECK_EQ(after[i * row + e], before[i * row + e]);
            }
            memcpy(before, after, sizeof before);
        }
        for (uint32_t i = 0; i < KEYS; i++)
            for (uint32_t e = 1; e < DIM; e += 2) {
                double unit, moved = model_element(dtype, DIM, after + i * row, e, &unit) -
                                     model_element(dtype, DIM, first + i * row, e, &unit);
                drift += moved;
                most = fmax(most, fabs(moved));
            }
        drift /= 0.5 * KEYS * DIM;
        CHECK(chosen > KEYS); /* rows grow here */
        CHECK_NEAR(drift, 0.0, 0.002);
        CHECK_NEAR(most, 0.0, dtype == HOTBED_INT8 ? 0.1 : 0.05);
        side_close(&d);
    }
}

/* A state of f32 carries what rounding leaves over. After many steps without a direction, stored elements are those of
 * an f32 row rounded to nearest, and the states are near. */
static void rows_with_states_follow_f32_rows(hotbed_backend backend) {
    const uint32_t steps = hotbed_test_is_small() ? 30 : 300;
    static const hotbed_optimizer_kind kinds[] = {
        HOTBED_OPT_ADAGRAD, HOTBED_OPT_ADAM, HOTBED_OPT_MOMENTUM};
    static unsigned char rows[KEYS * ROW_MOST];
    static float gradient[KEYS * DIM_MOST], output[KEYS * DIM_MOST], exact[KEYS * DIM_MOST];
    for (uint32_t k = 0; k < 3 * DTYPES; k++) {
        const hotbed_dtype dtype = dtypes[k % DTYPES];
        const hotbed_optimizer_kind kind = kinds[k / DTYPES];
        const uint32_t dim = k < DTYPES ? 96 : 17;
        const float rate = kind == HOTBED_OPT_ADAGRAD ? 0.05F : 0.002F;
        const size_t row = hotbed_dtype_row_bytes(dtype, dim);
        float states[2][KEYS * DIM_MOST];
        side d, wide;
        rng random = rng_start(k);
        side_open(&d, backend, dtype, dim, kind, HOTBED_POOL_NONE, HOTBED_MODE_AUTO, rate);
        side_open(&wide, backend, HOTBED_F32, dim, kind, HOTBED_POOL_NONE, HOTBED_MODE_AUTO, rate);
        for (uint32_t step = 0; step < steps; step++) {
            gradients_of(&random, gradient, KEYS * dim);
            if (step == 0) /* creates rows of the same values */
                memset(gradient, 0, sizeof gradient);
            side_step(&d, 0, gradient, output);
            side_step(&wide, 0, gradient, exact);
            if (step != 0)
                continue;
            hotbed_rows same = {.weights = wide.rows};
            fixture_upload(&wide.r, wide.rows, output, KEYS * dim * sizeof(float));
            CHECK_OK(
                hotbed_storage_set_rows(wide.r.storage, 0, KEYS, wide.keys, &same, wide.r.stream));
        }
        side_rows(&d, 0, rows);
        side_rows(&wide, 0, (unsigned char *)exact);
        side_states(&d, states[0]);
        side_states(&wide, states[1]);
        for (uint32_t i = 0; i < KEYS; i++)
            for (uint32_t e = 0; e < dim; e++) {
                double unit;
                const double got = model_element(dtype, dim, rows + i * row, e, &unit);
                const float want = states[1][i * dim + e];
                /* larger elements than it is now have had coarser remainders */
                CHECK_NEAR(got, exact[i * dim + e], 0.6 * unit + 5e-3);
                CHECK_NEAR(states[0][i * dim + e], want, 1e-3 * (fabs((double)want) + 0.2));
            }
        side_close(&d);
        side_close(&wide);
    }
}

static void runs_give_the_same_bytes(hotbed_backend backend) {
    static unsigned char rows[2][KEYS * ROW_MOST];
    static float gradient[KEYS * DIM_MOST], output[KEYS * DIM_MOST];
    for (uint32_t k = 0; k < DIMS * DTYPES; k++) {
        const uint32_t dim = dims[k / DTYPES];
        const size_t bytes = KEYS * hotbed_dtype_row_bytes(dtypes[k % DTYPES], dim);
        for (uint32_t run = 0; run < 2; run++) {
            side d;
            rng random = rng_start(k);
            side_open(
                &d, backend, dtypes[k % DTYPES], dim, HOTBED_OPT_ADAM, HOTBED_POOL_SUM,
                HOTBED_MODE_AUTO, 0.02F);
            for (uint32_t step = 0; step < 9; step++) {
                gradients_of(&random, gradient, KEYS * dim);
                side_step(&d, step, gradient, output);
            }
            side_rows(&d, 0, rows[run]);
            side_close(&d);
        }
        CHECK_BYTES(rows[1], rows[0], bytes);
    }
}

static void rows_that_are_not_finite_read_as_nan(hotbed_backend backend) {
    float weights[8] = {1, 2, 3, INFINITY, 5, -6, 7, 8}, read[8];
    unsigned char row[ROW_MOST];
    (void)backend;
    hotbed_weights_write(HOTBED_INT8, 8, weights, row);
    hotbed_weights_read(HOTBED_INT8, 8, row, read);
    for (int e = 0; e < 8; e++)
        CHECK(isnan(read[e]));
    hotbed_weights_write(HOTBED_FP8, 8, weights, row);
    hotbed_weights_read(HOTBED_FP8, 8, row, read);
    for (int e = 0; e < 8; e++)
        CHECK(e == 3 ? isnan(read[e]) : read[e] == weights[e]);
}

/* A static table has its rows without a step that makes them. */
static void static_rows_of_zeros_have_the_described_bytes(hotbed_backend backend) {
    const hotbed_mode modes[] = {HOTBED_MODE_HBM_DIRECT, HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    enum { DIM = 65 };
    const float zeros[DIM] = {0};
    unsigned char row[ROW_MOST], expected[ROW_MOST];
    for (int k = 0; k < 3 * DTYPES; k++) {
        setup s;
        fixture r;
        setup_start(&s, 1, DIM, KEYS);
        s.tables[0].kind = HOTBED_TABLE_STATIC;
        s.tables[0].dtype = dtypes[k % DTYPES];
        s.tables[0].initializer = (hotbed_initializer){.kind = HOTBED_INIT_CONSTANT};
        s.tables[0].upper_capacity = modes[k / DTYPES] == HOTBED_MODE_HBM_DIRECT ? 0 : KEYS / 2;
        s.options.mode = modes[k / DTYPES];
        fixture_open_bare(&r, backend, &s.options);
        const uint64_t key = 1;
        const size_t bytes = hotbed_dtype_row_bytes(dtypes[k % DTYPES], DIM);
        void *keys = fixture_copy(&r, &key, sizeof key);
        hotbed_rows rows = {.weights = fixture_alloc(&r, bytes)};
        CHECK_OK(hotbed_storage_get_rows(r.storage, 0, 1, keys, &rows, NULL, r.stream));
        fixture_download(&r, row, rows.weights, bytes);
        hotbed_weights_write(dtypes[k % DTYPES], DIM, zeros, expected);
        CHECK_BYTES(row, expected, bytes);
        fixture_close(&r);
    }
}

static void rows_are_converted(hotbed_backend backend) {
    enum { ROWS = 3, DIM = 5 };
    float weights[ROWS * DIM], in_place[ROWS * (DIM + 4)];
    unsigned char bytes[ROWS * (DIM + 4)], one[DIM + 4];
    (void)backend;
    for (int i = 0; i < ROWS * DIM; i++)
        weights[i] = (float)(i % 7) * 0.3F - 1.0F;
    for (int to = 1; to <= (int)HOTBED_DTYPE_LAST; to++) {
        const size_t row = hotbed_dtype_row_bytes((hotbed_dtype)to, DIM);
        memcpy(in_place, weights, sizeof weights);
        CHECK_OK(hotbed_dtype_convert(HOTBED_F32, in_place, (hotbed_dtype)to, in_place, DIM, ROWS));
        for (int i = 0; i < ROWS; i++) {
            float expected[DIM + 4];
            hotbed_weights_write((hotbed_dtype)to, DIM, weights + (size_t)i * DIM, expected);
            CHECK_BYTES((char *)in_place + (size_t)i * row, expected, row);
        }
        if (to == HOTBED_INT8)
            memcpy(bytes, in_place, sizeof bytes);
    }
    CHECK_OK(hotbed_dtype_convert(HOTBED_INT8, bytes, HOTBED_F32, weights, DIM, ROWS));
    memcpy(in_place, bytes, sizeof bytes);
    CHECK_OK(hotbed_dtype_convert(HOTBED_INT8, in_place, HOTBED_F32, in_place, DIM, ROWS));
    CHECK_BYTES(in_place, weights, sizeof weights);
    CHECK_OK(hotbed_dtype_convert(HOTBED_INT8, bytes, HOTBED_INT8, one, DIM, 1));
    CHECK_BYTES(one, bytes, sizeof one);
    const hotbed_status bad = HOTBED_ERR_ARGUMENT;
    CHECK_STATUS(hotbed_dtype_convert(HOTBED_INT8, NULL, HOTBED_F32, weights, DIM, 1), bad);
    CHECK_STATUS(hotbed_dtype_convert(HOTBED_INT8, bytes, HOTBED_F32, NULL, DIM, 1), bad);
    CHECK_STATUS(hotbed_dtype_convert((hotbed_dtype)9, bytes, HOTBED_F32, weights, DIM, 1), bad);
    CHECK(strstr(hotbed_last_error(), "unknown from_dtype 9") != NULL);
    CHECK_STATUS(hotbed_dtype_convert(HOTBED_INT8, bytes, (hotbed_dtype)0, weights, DIM, 1), bad);
    CHECK_STATUS(hotbed_dtype_convert(HOTBED_INT8, bytes, HOTBED_F32, weights, 0, 1), bad);
    CHECK_STATUS(hotbed_dtype_convert(HOTBED_INT8, bytes, HOTBED_F32, weights, 4097, 1), bad);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_step_gives_neighbours_of_the_exact_result)},
    {TEST(rows_are_rounded_to_nearest_when_made)},
    {TEST(modes_give_the_same_bytes)},
    {TEST(elements_without_a_gradient_do_not_drift)},
    {TEST(rows_with_states_follow_f32_rows)},
    {TEST(runs_give_the_same_bytes)},
    {TEST(static_rows_of_zeros_have_the_described_bytes)},
    {TEST(rows_are_converted)},
    {TEST(rows_that_are_not_finite_read_as_nan)},
    {NULL, NULL},
};
