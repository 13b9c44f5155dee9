/* tests/storage/test_storage_optimizer.c - fifty steps of each optimizer, against a model in double precision.
 *
 * Each step must equal tests/support/oracle.h bit by bit, and be close to a second model that computes the formulas
 * of hotbed/types.h in double.  Gradients are multiples of 1/256, so that F32 sums them exactly and only the
 * optimizer rounds. The second model rounds weights to the row's type after each step, as the library does; values
 * near a rounding boundary may be rounded the other way.
 *
 * Tolerances, relative to max(1, |w|): F32 50 steps of 4 roundings of 2^-24, F16 2^-9 and BF16 2^-6, which is two
 * units in the last place.  Of states: 2^-18, relative to max(1, |state|).
 */
#include "storage/types.h"
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 50, TABLES = 15, KEYS = 6, BATCH = 16 };

static const uint32_t dims[] = {1, 6, 16, 33, 100};

/* --- the model in double precision ----------------------------------------------------------- */

typedef struct double_row {
    bool seen;
    double *weights, *state[2]; /* [dim]; the state of row-wise AdaGrad is state[0][0] */
} double_row;

typedef struct double_model {
    double_row rows[TABLES][KEYS];
    double learning_rate;
    uint64_t steps;
} double_model;

static double *doubles(uint32_t n, double value) {
    double *array = malloc(n * sizeof *array);
    CHECK(array != NULL);
    for (uint32_t e = 0; e < n; e++)
        array[e] = value;
    return array;
}

static void double_open(double_model *t, const oracle *m) {
    memset(t, 0, sizeof *t);
    t->learning_rate = (double)m->options.optimizer.learning_rate;
    for (uint32_t table = 0; table < TABLES; table++)
        for (uint32_t k = 0; k < KEYS; k++) {
            uint32_t dim = m->tables[table].options.dim;
            double_row *row = &t->rows[table][k];
            row->weights = doubles(dim, 0.0);
            for (int s = 0; s < 2; s++)
                row->state[s] = doubles(dim, (double)m->options.optimizer.initial_accumulator);
        }
}

static void double_close(double_model *t) {
    for (uint32_t table = 0; table < TABLES; table++)
        for (uint32_t k = 0; k < KEYS; k++) {
            free(t->rows[table][k].weights);
            free(t->rows[table][k].state[0]);
            free(t->rows[table][k].state[1]);
        }
}

/* The step's direction: the update subtracts learning_rate times this. */
static double direction(
    const hotbed_optimizer *o, const double_model *t, double_row *row, uint32_t e, double g) {
    double *a = row->state[0], *b = row->state[1], eps = (double)o->eps;
    double b1 = (double)o->beta1, b2 = (double)o->beta2;
    switch (o->kind) {
    case HOTBED_OPT_SGD:
        return g;
    case HOTBED_OPT_ADAM:
        a[e] = b1 * a[e] + (1.0 - b1) * g;
        b[e] = b2 * b[e] + (1.0 - b2) * g * g;
        return a[e] / (1.0 - pow(b1, (double)t->steps)) /
               (sqrt(b[e] / (1.0 - pow(b2, (double)t->steps))) + eps);
    case HOTBED_OPT_ADAGRAD:
        a[e] += g * g;
        return g / (sqrt(a[e]) + eps);
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return g / (sqrt(a[0]) + eps);
    }
    return 0.0;
}

static double rounded(hotbed_dtype dtype, double w) {
    float element[1] = {0.0F};
    oracle_store(dtype, element, 0, (float)w);
    return (double)oracle_load(dtype, element, 0);
}

static void double_update(
    const oracle *m, const double_model *t, uint32_t table, double_row *row, const double *g) {
    const hotbed_optimizer *o = &m->options.optimizer;
    uint32_t dim = m->tables[table].options.dim;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD) {
        double squares = 0.0;
        for (uint32_t e = 0; e < dim; e++)
            squares += g[e] * g[e];
        row->state[0][0] += squares / dim;
    }
    for (uint32_t e = 0; e < dim; e++) {
        double *w = &row->weights[e];
        double along = direction(o, t, row, e, g[e]) + (double)o->weight_decay * *w;
        *w = rounded(m->tables[table].options.dtype, *w - t->learning_rate * along);
    }
}

/* The row of distinct key u; a new one starts with the values of the F32 model.  Rows of that model are in the order of
 * their first use, and never erased in this test. */
static double_row *double_row_of(
    double_model *t, const oracle_ticket *ticket, uint32_t table, uint32_t u) {
    const oracle_table *of = &ticket->model->tables[table];
    CHECK(ticket->rows[u] < KEYS);
    double_row *row = &t->rows[table][ticket->rows[u]];
    for (uint32_t e = 0; e < of->options.dim && !row->seen; e++)
        row->weights[e] = (double)of->rows[ticket->rows[u]].weights[e];
    row->seen = true;
    return row;
}

static void double_step(
    double_model *t, const test_ticket *l, const float *gradient, uint64_t stride) {
    const oracle *m = l->r->model;
    double most = (double)m->options.optimizer.max_gradient;
    double g[128];
    t->steps++;
    for (uint32_t table = 0; table < TABLES; table++)
        for (uint32_t u = l->model->unique_offsets[table]; u < l->model->unique_offsets[table + 1];
             u++) {
            for (uint32_t e = 0; e < m->tables[table].options.dim; e++) {
                g[e] = 0.0;
                for (uint64_t i = 0; i < l->model->num_keys; i++) {
                    double one = (double)gradient[i * stride + e];
                    if (l->model->inverse[i] == u)
                        g[e] += most > 0.0 ? fmin(fmax(one, -most), most) : one;
                }
            }
            double_update(m, t, table, double_row_of(t, l->model, table, u), g);
        }
}

/* Check that the F32 model, which the storage equals bit by bit, is close. */
static void double_check(const double_model *t, const oracle *m) {
    static const double tolerance[] = {0.0, STEPS * 0x1p-22, 0x1p-9, 0x1p-6}; /* by dtype */
    hotbed_optimizer_kind kind = m->options.optimizer.kind;
    for (uint32_t table = 0; table < TABLES; table++) {
        const oracle_table *of = &m->tables[table];
        for (uint32_t k = 0; k < of->num_rows; k++) {
            const double_row *row = &t->rows[table][k];
            CHECK(row->seen);
            for (uint32_t e = 0; e < of->options.dim; e++) {
                double w = row->weights[e];
                CHECK_NEAR(
                    of->rows[k].weights[e], w, tolerance[of->options.dtype] * fmax(1.0, fabs(w)));
            }
            for (uint32_t s = 0; s < hotbed_optimizer_states(kind); s++)
                for (uint32_t e = 0; e < of->state_dim; e++) {
                    double x = row->state[s][e];
                    CHECK_NEAR(of->rows[k].states[s][e], x, 0x1p-18 * fmax(1.0, fabs(x)));
                }
        }
    }
}

/* --- fifty steps ----------------------------------------------------------------------------- */

static void every_dim_and_type(setup *s, hotbed_optimizer_kind kind) {
    setup_start(s, TABLES, 1, 64);
    for (uint32_t t = 0; t < TABLES; t++) {
        s->tables[t].dim = dims[t % 5];
        s->tables[t].dtype = (hotbed_dtype)(1 + t / 5);
    }
    s->options.optimizer.kind = kind;
    s->options.optimizer.learning_rate = 0.02F;
    s->options.optimizer.eps = 1e-6F;
}

/* Backward in the storage and in both models, with gradients that F32 adds without rounding. */
static void step(test_ticket *l, rng *random, double_model *t) {
    uint64_t stride = l->stride == 0 ? oracle_least_stride(l->r->model) : l->stride;
    float *gradient = l->scratch[0];
    for (uint64_t i = 0; i < l->host.num_keys * stride; i++)
        gradient[i] = (float)((int)rng_below(random, 513) - 256) / 256.0F;
    fixture_upload(l->r, l->gradient, gradient, l->host.num_keys * stride * sizeof(float));
    CHECK_OK(
        hotbed_storage_backward(l->r->storage, l->ticket, l->gradient, l->stride, l->r->stream));
    if (t != NULL)
        double_step(t, l, gradient, stride);
    oracle_backward(l->model, gradient, l->stride);
}

static void set_rate(fixture *r, double_model *t, float rate) {
    CHECK_OK(hotbed_storage_set_learning_rate(r->storage, rate, r->stream));
    r->model->state.learning_rate = rate;
    t->learning_rate = (double)rate;
}

static void fifty_steps(hotbed_backend backend, const setup *s) {
    fixture r;
    test_ticket l;
    double_model t;
    rng random = rng_start((uint64_t)s->options.optimizer.kind);
    fixture_open(&r, backend, &s->options);
    test_ticket_open(&r, &l, TABLES * BATCH, BATCH);
    double_open(&t, r.model);
    const int steps = hotbed_test_is_small() ? 10 : STEPS;
    for (int i = 0; i < steps; i++) {
        if (i % 10 == 9)
            set_rate(&r, &t, 0.03F - 0.0004F * (float)i);
        const batch_shape how = {.batch_size = BATCH, .key_space = KEYS};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        step(&l, &random, &t);
        if (i % 10 == 0)
            fixture_check(&r);
    }
    fixture_check(&r);
    double_check(&t, r.model);
    double_close(&t);
    fixture_close(&r);
}

/* With and without clipping, decay and an initial accumulator. */
static void variants(hotbed_backend backend, hotbed_optimizer_kind kind) {
    for (int i = 0; i < 4; i += hotbed_test_is_small() ? 3 : 1) {
        setup s;
        every_dim_and_type(&s, kind);
        s.options.optimizer.max_gradient = (i & 1) != 0 ? 0.625F : 0.0F;
        s.options.optimizer.weight_decay = (i & 2) != 0 ? 0.05F : 0.0F;
        s.options.optimizer.initial_accumulator = i == 3 ? 0.25F : 0.0F;
        fifty_steps(backend, &s);
    }
}

static void sgd_follows_double_precision(hotbed_backend backend) {
    variants(backend, HOTBED_OPT_SGD);
}

static void adam_follows_double_precision(hotbed_backend backend) {
    variants(backend, HOTBED_OPT_ADAM);
}

static void adagrad_follows_double_precision(hotbed_backend backend) {
    variants(backend, HOTBED_OPT_ADAGRAD);
}

static void rowwise_adagrad_follows_double_precision(hotbed_backend backend) {
    variants(backend, HOTBED_OPT_ROWWISE_ADAGRAD);
}

/* --- the learning rate and graphs ------------------------------------------------------------ */

/* Fill the gradient in device memory, and the model's in host memory. */
static void fill_gradient(test_ticket *l, rng *random) {
    float *gradient = l->scratch[0];
    for (uint64_t i = 0; i < l->output_bytes / sizeof(float); i++)
        gradient[i] = rng_float(random);
    fixture_upload(l->r, l->gradient, gradient, l->output_bytes);
}

static void record(test_ticket *l, const float *rates, hotbed_graph **graph) {
    fixture *r = l->r;
    const hotbed_batch batch = test_ticket_batch(l);
    CHECK_OK(hotbed_graph_begin(r->stream));
    for (int i = 0; i < (rates == NULL ? 1 : 2); i++) {
        if (rates != NULL)
            CHECK_OK(hotbed_storage_set_learning_rate(r->storage, rates[i], r->stream));
        CHECK_OK(hotbed_storage_prefetch(r->storage, &batch, l->ticket, r->stream));
        CHECK_OK(hotbed_storage_backward(r->storage, l->ticket, l->gradient, l->stride, r->stream));
    }
    CHECK_OK(hotbed_graph_end(r->stream, graph));
}

static void model_step(test_ticket *l) {
    hotbed_batch batch = l->host;
    batch.offsets = NULL;
    batch.weights = NULL;
    oracle_prefetch(l->r->model, &batch, l->model, NULL);
    oracle_backward(l->model, l->scratch[0], l->stride);
}

/* A launch uses the rate that was set before it; a rate that the graph sets stays after it. */
static void graphs_and_rates(hotbed_backend backend, hotbed_optimizer_kind kind) {
    static const float recorded[2] = {0.5F, 0.03125F};
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(100 + (uint64_t)kind);
    hotbed_graph *plain, *setting;
    every_dim_and_type(&s, kind);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, TABLES * BATCH, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = KEYS};
    test_ticket_fill(&l, &random, &how);
    record(&l, NULL, &plain);
    record(&l, recorded, &setting);
    hotbed_storage_state state = {.size = sizeof state};
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    CHECK(state.learning_rate == 0.02F); /* recording has run nothing */
    for (int i = 0; i < (hotbed_test_is_small() ? 4 : 12); i++) {
        test_ticket_fill(&l, &random, &how);
        fill_gradient(&l, &random);
        if (i % 4 == 1) {
            r.model->state.learning_rate = 0.01F * (float)i;
            CHECK_OK(hotbed_storage_set_learning_rate(
                r.storage, r.model->state.learning_rate, r.stream));
        }
        if (i % 4 == 3) {
            CHECK_OK(hotbed_graph_launch(setting, r.stream));
            for (int k = 0; k < 2; k++) {
                r.model->state.learning_rate = recorded[k];
                model_step(&l);
            }
        } else {
            CHECK_OK(hotbed_graph_launch(plain, r.stream));
            model_step(&l);
        }
        fixture_check(&r);
    }
    test_ticket_prefetch(&l); /* an eager step uses the rate that the graph has set */
    step(&l, &random, NULL);
    fixture_check(&r);
    hotbed_graph_destroy(plain);
    hotbed_graph_destroy(setting);
    fixture_close(&r);
}

static void learning_rates_can_be_set_inside_and_outside_of_graphs(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++)
        graphs_and_rates(backend, (hotbed_optimizer_kind)kind);
}

/* --- the description ------------------------------------------------------------------------- */

static void every_optimizer_is_described(hotbed_backend backend) {
    const hotbed_optimizer_info *info;
    int kind = 1;
    (void)backend;
    for (; (info = hotbed_optimizer_describe((hotbed_optimizer_kind)kind)) != NULL; kind++) {
        CHECK_EQ((int)info->kind, kind);
        CHECK(strcmp(info->name, hotbed_optimizer_name(info->kind)) == 0);
        CHECK_EQ(info->states, hotbed_optimizer_states(info->kind));
        for (uint32_t s = 0; s < 2; s++)
            CHECK_EQ(info->state_names[s][0] != 0, s < info->states);
        CHECK(
            info->states == 0 ||
            hotbed_optimizer_state_dim(info->kind, 6) == (info->one_number ? 1 : 6));
        CHECK(hotbed_optimizer_parameter_at(0) != NULL && (info->parameters & 1U) != 0);
    }
    CHECK_EQ(kind, HOTBED_OPT_LAST + 1);
    CHECK(hotbed_optimizer_describe((hotbed_optimizer_kind)0) == NULL);
}

/* Each parameter is refused outside of its range by the name of its field, and the defaults are
 * inside. */
static void parameters_are_checked_by_their_ranges(hotbed_backend backend) {
    const hotbed_optimizer_parameter *p;
    hotbed_optimizer o;
    hotbed_optimizer_init(&o);
    o.kind = HOTBED_OPT_ADAM;
    CHECK_OK(hotbed_optimizer_check(&o));
    (void)backend;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        const float before = hotbed_optimizer_value(&o, p);
        const float bad[] = {
            NAN,
            INFINITY,
            -INFINITY,
            p->below_most ? p->most : NAN,
            nextafterf(p->least, -INFINITY),
            nextafterf(p->most, INFINITY)};
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            hotbed_optimizer_set(&o, p, bad[k]);
            CHECK_EQ(hotbed_optimizer_check(&o), HOTBED_ERR_ARGUMENT);
            CHECK(strstr(hotbed_last_error(), p->name) != NULL);
        }
        hotbed_optimizer_set(&o, p, p->least);
        CHECK_OK(hotbed_optimizer_check(&o));
        hotbed_optimizer_set(&o, p, before);
    }
}

/* --- NaN ------------------------------------------------------------------------------------ */

/* One step of ADAGRAD on rows of one element, each with its gradient. */
static void one_step(
    hotbed_backend backend, float eps, float accumulator, float clamp, const float *gradients,
    uint32_t n, float *weights) {
    setup s;
    fixture r;
    hotbed_ticket *ticket;
    uint64_t keys[8];
    for (uint64_t i = 0; i < n; i++)
        keys[i] = i;
    setup_start(&s, 1, 1, 100);
    s.tables[0].initializer = (hotbed_initializer){.kind = HOTBED_INIT_CONSTANT, .value = 2.0F};
    s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    s.options.optimizer.eps = eps;
    s.options.optimizer.initial_accumulator = accumulator;
    s.options.optimizer.max_gradient = clamp;
    fixture_open_bare(&r, backend, &s.options);
    hotbed_batch batch;
    hotbed_batch_init(&batch);
    batch.batch_size = n;
    batch.num_keys = n;
    batch.keys = fixture_copy(&r, keys, n * sizeof *keys);
    const float *device = fixture_copy(&r, gradients, n * sizeof *gradients);
    const hotbed_rows rows = {.weights = fixture_alloc(&r, n * sizeof *weights)};
    CHECK_OK(hotbed_ticket_create(r.storage, n, n, r.stream, &ticket));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
    CHECK_OK(hotbed_storage_backward(r.storage, ticket, device, 0, r.stream));
    CHECK_OK(hotbed_storage_get_rows(r.storage, 0, n, batch.keys, &rows, NULL, r.stream));
    fixture_download(&r, weights, rows.weights, n * sizeof *weights);
    hotbed_ticket_destroy(ticket);
    fixture_close(&r);
}

/* As documented at max_gradient and eps of hotbed_optimizer. */
static void nans_follow_the_documented_rules(hotbed_backend backend) {
    const float gradients[] = {NAN, INFINITY, -INFINITY, 0.0F, 0.25F};
    float weights[5];
    one_step(backend, 1e-8F, 0.0F, 0.5F, gradients, 5, weights);
    CHECK(isnan(weights[0]));
    CHECK(weights[1] < 2.0F && weights[2] > 2.0F); /* clamped */
    CHECK(weights[3] == 2.0F && weights[4] < 2.0F);
    one_step(backend, 0.0F, 0.0F, 0.5F, gradients, 5, weights);
    CHECK(isnan(weights[3]) && weights[4] < 2.0F);
    one_step(backend, 0.0F, 0.125F, 0.5F, gradients, 5, weights);
    CHECK(weights[3] == 2.0F && weights[4] < 2.0F);
}

const hotbed_test hotbed_tests[] = {
    {"sgd_follows_double_precision", sgd_follows_double_precision},
    {"adam_follows_double_precision", adam_follows_double_precision},
    {"adagrad_follows_double_precision", adagrad_follows_double_precision},
    {"rowwise_adagrad_follows_double_precision", rowwise_adagrad_follows_double_precision},
    {"learning_rates_can_be_set_inside_and_outside_of_graphs",
     learning_rates_can_be_set_inside_and_outside_of_graphs},
    {"every_optimizer_is_described", every_optimizer_is_described},
    {"parameters_are_checked_by_their_ranges", parameters_are_checked_by_their_ranges},
    {"nans_follow_the_documented_rules", nans_follow_the_documented_rules},
    {NULL, NULL},
};
