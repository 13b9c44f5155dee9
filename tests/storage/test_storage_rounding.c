/* tests/storage/test_storage_rounding.c - small optimizer steps of narrow rows, with both kinds of rounding.
 *
 * The other programs compare every stored element with the model (tests/support/oracle.c), which rounds by values. Here
 * are the effects: steps that are lost, or add up.
 */
#include "storage/step/row_core.h"
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 6, DIM_MOST = 160 };

typedef struct side {
    fixture r;
    hotbed_ticket *ticket;
    hotbed_dtype dtype;
    uint32_t dim;
} side;

static void side_open(
    side *d, hotbed_backend backend, hotbed_dtype dtype, uint32_t dim, hotbed_pooling pooling,
    hotbed_rounding rounding, float rate) {
    setup s;
    setup_start(&s, 1, dim, 200);
    s.tables[0].dtype = d->dtype = dtype;
    s.tables[0].rounding = rounding;
    s.tables[0].initializer = (hotbed_initializer){.kind = HOTBED_INIT_CONSTANT, .value = 1.0F};
    setup_feature(&s, 0);
    s.options.optimizer.kind = HOTBED_OPT_SGD;
    s.options.optimizer.learning_rate = rate;
    s.options.pooling = pooling;
    s.options.seed = 5;
    d->dim = dim;
    fixture_open_bare(&d->r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(d->r.storage, KEYS, KEYS, d->r.stream, &d->ticket));
}

static void side_close(side *d) {
    hotbed_ticket_destroy(d->ticket);
    fixture_close(&d->r);
}

/* Train keys 0 .. KEYS-1 in `steps` steps with gradient 1. */
static void side_train(side *d, uint32_t steps) {
    uint64_t keys[KEYS];
    float ones[KEYS * DIM_MOST];
    hotbed_batch batch = {.size = sizeof batch};
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = i;
    for (uint32_t i = 0; i < KEYS * d->dim; i++)
        ones[i] = 1.0F;
    batch.batch_size = KEYS, batch.num_keys = KEYS;
    batch.keys = fixture_copy(&d->r, keys, sizeof keys);
    const void *gradient = fixture_copy(&d->r, ones, KEYS * d->dim * sizeof(float));
    for (uint32_t step = 0; step < steps; step++) {
        CHECK_OK(hotbed_storage_prefetch(d->r.storage, &batch, d->ticket, d->r.stream));
        CHECK_OK(hotbed_storage_backward(d->r.storage, d->ticket, gradient, 0, d->r.stream));
    }
    CHECK_OK(hotbed_stream_sync(d->r.stream));
}

static uint64_t side_rounded_away(side *d) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(d->r.storage, 0, &stats, d->r.stream));
    return stats.rounded_away;
}

/* The rows as they are stored. Returns their bytes. */
static size_t side_rows(side *d, void *out) {
    uint64_t keys[KEYS];
    const size_t bytes = KEYS * hotbed_dtype_row_bytes(d->dtype, d->dim);
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = i;
    hotbed_rows rows = {.weights = fixture_alloc(&d->r, bytes)};
    const uint64_t *device = fixture_copy(&d->r, keys, sizeof keys);
    CHECK_OK(hotbed_storage_get_rows(d->r.storage, 0, KEYS, device, &rows, NULL, d->r.stream));
    fixture_download(&d->r, out, rows.weights, bytes);
    return bytes;
}

static const struct {
    hotbed_dtype dtype;
    float rate; /* 1.0 does not move by half of the distance to its neighbours, which is more */
} narrow[] = {{HOTBED_BF16, 1e-3F}, {HOTBED_F16, 1e-4F}};

enum { NARROW = sizeof narrow / sizeof narrow[0] };

static void steps_add_up_or_are_counted(hotbed_backend backend) {
    static const uint32_t dims[] = {8, 5, 160};
    static uint16_t rows[KEYS * DIM_MOST];
    const uint32_t steps = hotbed_test_is_small() ? 50 : 1000;
    for (uint32_t k = 0; k < 2 * 3 * NARROW; k += hotbed_test_is_small() ? 5 : 1) {
        const uint32_t n = k % NARROW, dim = dims[k / NARROW % 3];
        const hotbed_pooling pooling = k / NARROW / 3 == 0 ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
        const double moved = 1.0 - steps * (double)narrow[n].rate;
        side d;
        side_open(&d, backend, narrow[n].dtype, dim, pooling, HOTBED_ROUND_NEAREST, narrow[n].rate);
        side_train(&d, steps);
        (void)side_rows(&d, rows);
        for (uint32_t i = 0; i < KEYS * dim; i++)
            CHECK(oracle_load(d.dtype, rows, i) == 1.0F);
        CHECK_EQ(side_rounded_away(&d), steps * KEYS);
        side_close(&d);
        side_open(
            &d, backend, narrow[n].dtype, dim, pooling, HOTBED_ROUND_STOCHASTIC, narrow[n].rate);
        side_train(&d, steps);
        (void)side_rows(&d, rows);
        double sum = 0.0;
        for (uint32_t i = 0; i < KEYS * dim; i++) {
            CHECK_NEAR(oracle_load(d.dtype, rows, i), moved, 0.25);
            sum += (double)oracle_load(d.dtype, rows, i);
        }
        CHECK_NEAR(sum / (KEYS * dim), moved, 0.03);
        CHECK(side_rounded_away(&d) < steps * KEYS);
        side_close(&d);
    }
}

/* Every row of a batch gets other random words, and every step does. */
static void words_differ_between_rows_elements_and_steps(hotbed_backend backend) {
    static uint16_t rows[KEYS * DIM_MOST], later[KEYS * DIM_MOST];
    side d;
    side_open(&d, backend, HOTBED_BF16, DIM_MOST, HOTBED_POOL_SUM, HOTBED_ROUND_STOCHASTIC, 1e-3F);
    side_train(&d, 1);
    (void)side_rows(&d, rows);
    side_train(&d, 1);
    (void)side_rows(&d, later);
    uint32_t moved = 0, both = 0, alike = 0;
    for (uint32_t i = 0; i < KEYS * DIM_MOST; i++) {
        const bool first = rows[i] != 0x3f80, second = later[i] != rows[i];
        moved += first;
        both += first && second;
        alike += i >= DIM_MOST && first && rows[i - DIM_MOST] != 0x3f80;
    }
    /* one element in four moves, because 1 - 2^-8 is the neighbour below 1 */
    CHECK_NEAR(moved, KEYS * DIM_MOST / 4.0, 60.0);
    CHECK_NEAR(both, KEYS * DIM_MOST / 16.0, 40.0);
    CHECK_NEAR(alike, (KEYS - 1) * DIM_MOST / 16.0, 40.0);
    side_close(&d);
}

/* Adam's average of squared gradients with beta2 0.999 moves by a thousandth of the rest of its way: rounded to
 * nearest, it stops when that is less than half of the distance to its neighbour. Rounded at random, it follows
 * f32's. */
static void averages_of_squares_stop_or_follow_f32(hotbed_backend backend) {
    enum { DIM = 16 };
    const uint32_t steps = hotbed_test_is_small() ? 400 : 2000;
    static const struct {
        hotbed_dtype dtype;
        hotbed_rounding rounding;
    } ways[] = {
        {HOTBED_F32, HOTBED_ROUND_NEAREST},
        {HOTBED_BF16, HOTBED_ROUND_NEAREST},
        {HOTBED_BF16, HOTBED_ROUND_STOCHASTIC}};
    double means[3];
    for (int w = 0; w < 3; w++) {
        static unsigned char found[KEYS * DIM * sizeof(float)];
        setup s;
        side d = {.dtype = HOTBED_F32, .dim = DIM};
        setup_start(&s, 1, DIM, 200);
        s.tables[0].state_dtype = ways[w].dtype;
        s.tables[0].rounding = ways[w].rounding;
        setup_feature(&s, 0);
        s.options.optimizer.kind = HOTBED_OPT_ADAM;
        s.options.seed = 7;
        fixture_open_bare(&d.r, backend, &s.options);
        CHECK_OK(hotbed_ticket_create(d.r.storage, KEYS, KEYS, d.r.stream, &d.ticket));
        side_train(&d, steps);
        CHECK_EQ(side_rounded_away(&d), 0); /* rows of f32 are not counted */
        uint64_t keys[KEYS];
        for (uint32_t i = 0; i < KEYS; i++)
            keys[i] = i;
        const size_t bytes = KEYS * DIM * hotbed_dtype_bytes(ways[w].dtype);
        const hotbed_rows rows = {.states = {NULL, fixture_alloc(&d.r, bytes)}};
        CHECK_OK(hotbed_storage_get_rows(
            d.r.storage, 0, KEYS, fixture_copy(&d.r, keys, sizeof keys), &rows, NULL, d.r.stream));
        fixture_download(&d.r, found, rows.states[1], bytes);
        means[w] = 0.0;
        for (uint32_t i = 0; i < KEYS * DIM; i++)
            means[w] += (double)oracle_load(ways[w].dtype, found, i) / (KEYS * DIM);
        side_close(&d);
    }
    CHECK_NEAR(means[0], 1.0 - pow(0.999, steps), 1e-4);
    CHECK_NEAR(means[1], 0.25, 1e-6); /* from there on, it does not move */
    CHECK_NEAR(means[2], means[0], 0.02);
}

/* A row and its states have random words of their own. */
static void words_differ_between_a_row_and_its_states(hotbed_backend backend) {
    const hotbed_rounding_view r = {true, 77, 5, 6, 0x123456789abcdefU};
    (void)backend;
    for (uint32_t what = 0; what < 2; what++)
        for (uint32_t other = 0; other < 2; other++)
            for (uint32_t e = 0; e < HOTBED_DIM_MOST; e += 4) {
                const hotbed_u32x4 a = hotbed_rounding_words_of(&r, what, e);
                const hotbed_u32x4 b =
                    hotbed_rounding_words_of(&r, other, (e + 4 * other) % HOTBED_DIM_MOST);
                const bool same = memcmp(&a, &b, sizeof a) == 0;
                CHECK_EQ(same, what == 0 && other == 0);
            }
}

static void runs_give_the_same_bytes(hotbed_backend backend) {
    static uint16_t rows[2][KEYS * DIM_MOST];
    for (uint32_t n = 0; n < NARROW; n++) {
        size_t bytes = 0;
        for (int run = 0; run < 2; run++) {
            side d;
            side_open(
                &d, backend, narrow[n].dtype, 16, HOTBED_POOL_SUM, HOTBED_ROUND_STOCHASTIC, 1e-2F);
            side_train(&d, 50);
            bytes = side_rows(&d, rows[run]);
            side_close(&d);
        }
        CHECK_BYTES(rows[0], rows[1], bytes);
    }
}

static void an_unknown_rounding_is_refused(hotbed_backend backend) {
    setup s;
    hotbed_storage *storage = NULL;
    hotbed_stream *stream = hotbed_test_stream(backend);
    setup_start(&s, 1, 8, 100);
    s.tables[0].rounding = (hotbed_rounding)2;
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "unknown rounding 2") != NULL);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(steps_add_up_or_are_counted)},
    {TEST(words_differ_between_rows_elements_and_steps)},
    {TEST(averages_of_squares_stop_or_follow_f32)},
    {TEST(words_differ_between_a_row_and_its_states)},
    {TEST(runs_give_the_same_bytes)},
    {TEST(an_unknown_rounding_is_refused)},
    {NULL, NULL},
};
