/* tests/storage/test_storage_init.c - initial values of rows: what they depend on, and their distributions.
 *
 * Values must be equal for equal seed, table, key and element, whatever the capacity, order or call; samples of 128,000
 * values are compared with the distribution function and its moments.
 */
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdlib.h>

/* Insert n keys in calls of `batch` keys, in the given order. */
static void insert(fixture *r, uint32_t table, uint64_t n, const uint64_t *keys, uint64_t batch) {
    const hotbed_rows nothing = {0};
    const uint64_t *device = fixture_copy(r, keys, n * sizeof *keys);
    for (uint64_t i = 0; i < n; i += batch)
        CHECK_OK(hotbed_storage_set_rows(
            r->storage, table, n - i < batch ? n - i : batch, device + i, &nothing, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
}

static void read_rows(
    fixture *r, uint32_t table, uint64_t n, const uint64_t *keys, uint64_t row_bytes,
    void *weights) {
    void *device = fixture_alloc(r, n * row_bytes);
    const hotbed_rows rows = {.weights = device};
    CHECK_OK(hotbed_storage_get_rows(
        r->storage, table, n, fixture_copy(r, keys, n * sizeof *keys), &rows, NULL, r->stream));
    fixture_download(r, weights, device, n * row_bytes);
}

static void *block(uint64_t bytes) {
    void *memory = calloc(1, bytes);
    CHECK(memory != NULL);
    return memory;
}

enum { KEYS = 300, DIM = 19 };

static void random_keys(uint64_t *keys) {
    rng random = rng_start(1);
    for (int i = 0; i < KEYS; i++)
        keys[i] = i < 32 ? (uint64_t)(i - 16) : rng_next(&random);
}

typedef struct variant {
    uint64_t seed;
    uint64_t capacity;
    uint64_t batch;
    uint32_t dim;
    uint32_t table;
    bool backwards;
    hotbed_dtype dtype;
    hotbed_initializer_kind kind;
} variant;

/* Create the rows of a variant, and read them as floats [KEYS, variant.dim]. */
static void variant_rows(hotbed_backend backend, const variant *v, float *out) {
    uint64_t keys[KEYS], order[KEYS];
    setup s;
    fixture r;
    random_keys(keys);
    for (int i = 0; i < KEYS; i++)
        order[i] = keys[v->backwards ? KEYS - 1 - i : i];
    setup_start(&s, 3, v->dim, v->capacity);
    hotbed_initializer *initializer = &s.tables[v->table].initializer;
    initializer->kind = v->kind;
    initializer->mean = 0.25F;
    initializer->std = 0.5F;
    s.tables[v->table].dtype = v->dtype;
    s.options.seed = v->seed;
    fixture_open_bare(&r, backend, &s.options);
    insert(&r, v->table, KEYS, order, v->batch);
    uint64_t row_bytes = hotbed_dtype_row_bytes(v->dtype, v->dim);
    void *weights = block(KEYS * row_bytes);
    read_rows(&r, v->table, KEYS, keys, row_bytes, weights);
    for (uint64_t i = 0; i < (uint64_t)KEYS * v->dim; i++)
        out[i] = oracle_load(v->dtype, weights, i);
    free(weights);
    fixture_close(&r);
}

static const variant plain = {
    .seed = 5, .capacity = 1000, .batch = KEYS, .dim = DIM, .table = 1, .dtype = HOTBED_F32};

static void rows_depend_on_seed_table_key_and_element_alone(hotbed_backend backend) {
    static const hotbed_initializer_kind kinds[] = {
        HOTBED_INIT_UNIFORM, HOTBED_INIT_NORMAL, HOTBED_INIT_TRUNCATED_NORMAL};
    for (int k = 0; k < 3; k++) {
        static float rows[KEYS * DIM], other[KEYS * (DIM + 5)];
        variant v = plain;
        v.kind = kinds[k];
        variant_rows(backend, &v, rows);
        v.batch = 7;
        v.backwards = true;
        v.capacity = 40000;
        variant_rows(backend, &v, other);
        CHECK_BYTES(rows, other, sizeof rows);
        v.dim = DIM + 5; /* longer rows begin with the same elements */
        variant_rows(backend, &v, other);
        for (int i = 0; i < KEYS; i++)
            CHECK_BYTES(rows + (ptrdiff_t)i * DIM, other + (ptrdiff_t)i * (DIM + 5), DIM * 4);
        v = plain;
        v.kind = kinds[k];
        v.seed = 6;
        variant_rows(backend, &v, other);
        CHECK(first_difference(rows, other, DIM * 4) < DIM * 4);
        v.seed = 5;
        v.table = 2;
        variant_rows(backend, &v, other);
        CHECK(first_difference(rows, other, DIM * 4) < DIM * 4);
    }
}

/* Rows of F16 and BF16 are the F32 rows, rounded. */
static void narrow_rows_are_rounded_f32_rows(hotbed_backend backend) {
    static float rows[KEYS * DIM], other[KEYS * DIM];
    variant v = plain;
    v.kind = HOTBED_INIT_NORMAL;
    variant_rows(backend, &v, rows);
    for (int d = HOTBED_F16; d <= HOTBED_BF16; d++) {
        v.dtype = (hotbed_dtype)d;
        variant_rows(backend, &v, other);
        for (int i = 0; i < KEYS * DIM; i++) {
            uint16_t narrow;
            oracle_store(v.dtype, &narrow, 0, rows[i]);
            CHECK(oracle_load(v.dtype, &narrow, 0) == other[i]);
        }
    }
}

static void initial_values_differ_between_keys_and_elements(hotbed_backend backend) {
    static float rows[KEYS * DIM];
    variant v = plain;
    v.kind = HOTBED_INIT_UNIFORM;
    variant_rows(backend, &v, rows);
    int same = 0;
    for (int i = 0; i < KEYS * DIM; i++)
        for (int j = i + 1; j < KEYS * DIM && j < i + 3 * DIM; j++)
            same += rows[i] == rows[j];
    CHECK(same < 20); /* about 0.04 expected: 325,000 pairs, at least 2^23 values */
}

/* prefetch, set_rows and static tables create the same rows. */
static void all_ways_to_create_a_row_agree(hotbed_backend backend) {
    enum { N = 50 };
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(2);
    setup_start(&s, 2, 6, N);
    s.tables[1].kind = HOTBED_TABLE_STATIC;
    s.tables[0].initializer.kind = s.tables[1].initializer.kind = HOTBED_INIT_NORMAL;
    s.tables[0].initializer.std = s.tables[1].initializer.std = 1.0F;
    fixture_open(&r, backend, &s.options);
    fixture_check(&r); /* the model's static rows were created by set_rows of a hash table */
    test_ticket_open(&r, &l, 2 * N, N);
    const batch_shape how = {.batch_size = N};
    test_ticket_fill(&l, &random, &how);
    for (uint64_t i = 0; i < N; i++)
        ((uint64_t *)l.host.keys)[i] = ((uint64_t *)l.host.keys)[N + i] = i;
    test_ticket_upload(&l);
    test_ticket_prefetch(&l);
    test_ticket_forward(&l);
    test_ticket_cancel(&l);
    fixture_check(&r);
    fixture_close(&r);
}

static void constant_and_debug_rows_have_their_values(hotbed_backend backend) {
    static const uint64_t keys[] = {
        0, 1, 99999, 100000, 123456789, UINT64_MAX, (uint64_t)INT64_MIN};
    enum { N = sizeof keys / sizeof keys[0] };
    setup s;
    fixture r;
    float rows[N * 3];
    setup_start(&s, 3, 3, 100);
    s.tables[0].initializer = (hotbed_initializer){.kind = HOTBED_INIT_CONSTANT, .value = 0.375F};
    s.tables[1].initializer = (hotbed_initializer){.kind = HOTBED_INIT_DEBUG};
    s.tables[2].initializer = (hotbed_initializer){0};
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    s.options.optimizer.initial_accumulator = 0.5F;
    fixture_open_bare(&r, backend, &s.options);
    for (uint32_t t = 0; t < 3; t++) {
        insert(&r, t, N, keys, N);
        read_rows(&r, t, N, keys, sizeof rows / N, rows);
        for (int i = 0; i < N * 3; i++) {
            float expected = t == 0 ? 0.375F : t == 1 ? (float)(keys[i / 3] % 100000) : 0.0F;
            CHECK(rows[i] == expected);
        }
    }
    float *states = fixture_alloc(&r, 2 * sizeof rows), host[2 * N * 3];
    const hotbed_rows parts = {.states = {states, states + (ptrdiff_t)N * 3}};
    CHECK_OK(hotbed_storage_get_rows(
        r.storage, 0, N, fixture_copy(&r, keys, sizeof keys), &parts, NULL, r.stream));
    fixture_download(&r, host, states, sizeof host);
    for (int i = 0; i < 2 * N * 3; i++)
        CHECK(host[i] == 0.5F);
    fixture_close(&r);
}

/* --- distributions --------------------------------------------------------------------------- */

enum { SAMPLE_KEYS = 4000, SAMPLE_DIM = 32, SAMPLE = SAMPLE_KEYS * SAMPLE_DIM };

/* SAMPLE initial values of sequential keys, which are the hardest case for a counter-based generator. */
static double *sample(hotbed_backend backend, const hotbed_initializer *initializer) {
    static double values[SAMPLE];
    static float rows[SAMPLE];
    static uint64_t keys[SAMPLE_KEYS];
    setup s;
    fixture r;
    for (uint64_t i = 0; i < SAMPLE_KEYS; i++)
        keys[i] = i;
    setup_start(&s, 1, SAMPLE_DIM, SAMPLE_KEYS);
    s.tables[0].initializer = *initializer;
    fixture_open_bare(&r, backend, &s.options);
    insert(&r, 0, SAMPLE_KEYS, keys, SAMPLE_KEYS);
    read_rows(&r, 0, SAMPLE_KEYS, keys, SAMPLE_DIM * sizeof(float), rows);
    for (int i = 0; i < SAMPLE; i++)
        values[i] = rows[i];
    fixture_close(&r);
    return values;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Check the Kolmogorov-Smirnov statistic, the largest distance of the sample from a distribution function.  With the
 * right distribution, 1 of 130,000 seeds exceeds 2.5 / sqrt(n). */
static void check_distribution(double *values, double (*below)(double x)) {
    double worst = 0.0;
    qsort(values, SAMPLE, sizeof *values, ascending);
    for (int i = 0; i < SAMPLE; i++) {
        double p = below(values[i]);
        worst = fmax(worst, fmax(fabs(p - i / (double)SAMPLE), fabs((i + 1) / (double)SAMPLE - p)));
    }
    CHECK_NEAR(worst, 0.0, 2.5 / sqrt(SAMPLE));
}

static void check_moments(const double *values, double mean, double std) {
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < SAMPLE; i++)
        sum += values[i];
    for (int i = 0; i < SAMPLE; i++)
        squares += (values[i] - sum / SAMPLE) * (values[i] - sum / SAMPLE);
    CHECK_NEAR(sum / SAMPLE, mean, 5.0 * std / sqrt(SAMPLE));
    CHECK_NEAR(sqrt(squares / SAMPLE), std, 5.0 * std / sqrt(SAMPLE));
}

static double below_uniform(double x) {
    return (x + 0.25) / 1.0;
}

static double below_normal(double x) {
    return 0.5 * erfc(-(x - 0.5) / 2.0 / sqrt(2.0));
}

/* Mean 0, standard deviation 1, truncated to [-1, 2]. */
static double below_truncated(double x) {
    double low = 0.5 * erfc(1.0 / sqrt(2.0)), high = 0.5 * erfc(-2.0 / sqrt(2.0));
    return (0.5 * erfc(-x / sqrt(2.0)) - low) / (high - low);
}

static void uniform_values_have_their_distribution(hotbed_backend backend) {
    const hotbed_initializer uniform = {
        .kind = HOTBED_INIT_UNIFORM, .lower = -0.25F, .upper = 0.75F};
    double *values = sample(backend, &uniform);
    for (int i = 0; i < SAMPLE; i++)
        CHECK(values[i] >= -0.25 && values[i] < 0.75);
    check_moments(values, 0.25, 1.0 / sqrt(12.0));
    check_distribution(values, below_uniform);
}

static void normal_values_have_their_distribution(hotbed_backend backend) {
    const hotbed_initializer normal = {.kind = HOTBED_INIT_NORMAL, .mean = 0.5F, .std = 2.0F};
    double *values = sample(backend, &normal);
    for (int i = 0; i < SAMPLE; i++)
        CHECK(isfinite(values[i]));
    check_moments(values, 0.5, 2.0);
    check_distribution(values, below_normal);
}

static void truncated_normal_values_have_their_distribution(hotbed_backend backend) {
    const hotbed_initializer truncated = {
        .kind = HOTBED_INIT_TRUNCATED_NORMAL,
        .mean = 0.0F,
        .std = 1.0F,
        .lower = -1.0F,
        .upper = 2.0F};
    double *values = sample(backend, &truncated);
    for (int i = 0; i < SAMPLE; i++)
        CHECK(values[i] >= -1.0 && values[i] <= 2.0);
    check_distribution(values, below_truncated);
}

/* The bounds cut off nearly all of the distribution; values must still be inside of them. */
static void truncated_normal_values_in_a_tail_stay_inside(hotbed_backend backend) {
    const hotbed_initializer tail = {
        .kind = HOTBED_INIT_TRUNCATED_NORMAL,
        .mean = 0.0F,
        .std = 1.0F,
        .lower = 3.0F,
        .upper = 3.5F};
    const double *values = sample(backend, &tail);
    double sum = 0.0;
    for (int i = 0; i < SAMPLE; i++) {
        CHECK(values[i] >= 3.0 && values[i] <= 3.5);
        sum += values[i];
    }
    /* the mean of a normal distribution truncated to [3, 3.5] */
    CHECK_NEAR(sum / SAMPLE, 3.1856, 0.002);
}

/* Bounds that are just accepted give several values. */
static void the_widest_bounds_give_different_values(hotbed_backend backend) {
    const hotbed_initializer widest[] = {
        {.kind = HOTBED_INIT_UNIFORM, .lower = -1.7e38F, .upper = 1.7e38F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 1.0F, .lower = 5.0F, .upper = 9.0F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 1.0F, .lower = -9.0F, .upper = -5.0F},
    };
    for (size_t i = 0; i < sizeof widest / sizeof *widest; i++) {
        double *values = sample(backend, &widest[i]);
        qsort(values, SAMPLE, sizeof *values, ascending);
        CHECK(values[0] >= (double)widest[i].lower);
        CHECK(values[SAMPLE - 1] <= (double)widest[i].upper);
        CHECK(values[SAMPLE - 1] - values[0] > 0.1);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_depend_on_seed_table_key_and_element_alone)},
    {TEST(narrow_rows_are_rounded_f32_rows)},
    {TEST(initial_values_differ_between_keys_and_elements)},
    {TEST(all_ways_to_create_a_row_agree)},
    {TEST(constant_and_debug_rows_have_their_values)},
    {TEST(uniform_values_have_their_distribution)},
    {TEST(normal_values_have_their_distribution)},
    {TEST(truncated_normal_values_have_their_distribution)},
    {TEST(truncated_normal_values_in_a_tail_stay_inside)},
    {TEST(the_widest_bounds_give_different_values)},
    {NULL, NULL},
};
