/* tests/storage/test_storage_optimizer.c - fifty steps of each optimizer, against a model in double precision.
 *
 * Each step must equal tests/support/oracle.h bit by bit, and be close to a second model that computes the formulas
 * of hotbed/types.h in double.  Gradients are multiples of 1/256, so that F32 sums them exactly and only the
 * optimizer rounds. The second model rounds weights to the row's type after each step, as the library does; values
 * near a rounding boundary may be rounded the other way.
 *
 * Tolerances, relative to max(1, |w|): F32 50 steps of 4 roundings of 2^-24, F16 2^-9 and BF16 2^-6, which is two
 * units in the last place.  Of states: 2^-18, relative to max(1, |state|).
 *
 * Odd variants have BF16 states where the optimizer allows it. The second model rounds them, too. A state that is
 * rounded the other way differs by 2^-8 of its value, for as many steps as the state remembers, and moves the
 * weight by up to that share of its way.
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
    double *weights, *state[2]; /* [dim]; a state of one number is element 0 */
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
                row->state[s] = doubles(
                    dim + 1, (double)oracle_first_state(&m->options.optimizer, (uint32_t)s));
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

/* Update a moment: keep `share` of it. */
static void average(double *m, float share, double value) {
    *m = (double)share * *m + (1.0 - (double)share) * value;
}

static double adam(const hotbed_optimizer *o, const double_model *t, double m, double v) {
    return m / (1.0 - pow((double)o->beta1, (double)t->steps)) /
           (sqrt(v / (1.0 - pow((double)o->beta2, (double)t->steps))) + (double)o->eps);
}

/* The new weight of FTRL. */
static double ftrl(const hotbed_optimizer *o, double lr, double w, double g, double *z, double *n) {
    const double power = -(double)o->learning_rate_power, before = pow(*n, power);
    *n += g * g;
    *z += g - (pow(*n, power) - before) / lr * w;
    const double size = fmax(fabs(*z) - (double)o->l1_reg, 0.0);
    const double rate = ((double)o->ftrl_beta + pow(*n, power)) / lr + (double)o->l2_reg;
    return size == 0.0 ? 0.0 : -copysign(size, *z) / rate;
}

/* The step's direction: the update subtracts learning_rate times this, and times decay. */
static double direction(
    const hotbed_optimizer *o, const double_model *t, double_row *row, uint32_t dim, uint32_t e,
    double g) {
    double *a = &row->state[0][e], *b = &row->state[1][e], eps = (double)o->eps;
    switch (o->kind) {
    case HOTBED_OPT_SGD:
        return g;
    case HOTBED_OPT_ROW_STEPS_ADAM: { /* the number of the row's steps is counted before */
        double_model own = *t;
        own.steps = (uint64_t)row->state[1][dim];
        average(a, o->beta1, g);
        average(b, o->beta2, g * g);
        return adam(o, &own, *a, *b);
    }
    case HOTBED_OPT_ADAM:
    case HOTBED_OPT_LAMB:
        average(a, o->beta1, g);
        average(b, o->beta2, g * g);
        return adam(o, t, *a, *b);
    case HOTBED_OPT_ROWWISE_ADAM:
        return adam(o, t, row->state[0][0], row->state[1][0]);
    case HOTBED_OPT_PARTIAL_ROWWISE_ADAM:
        average(a, o->beta1, g);
        return adam(o, t, *a, row->state[1][0]);
    case HOTBED_OPT_ADAGRAD:
        *a += g * g;
        return g / (sqrt(*a) + eps);
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return g / (sqrt(row->state[0][0]) + eps);
    case HOTBED_OPT_MOMENTUM:
        return *a = (double)o->momentum * *a + g;
    case HOTBED_OPT_NESTEROV:
        *a = (double)o->momentum * *a + g;
        return g + (double)o->momentum * *a;
    case HOTBED_OPT_RMSPROP:
        average(a, o->rho, g * g);
        return g / (sqrt(*a) + eps);
    case HOTBED_OPT_ADADELTA: {
        average(a, o->rho, g * g);
        const double d = sqrt(*b + eps) / sqrt(*a + eps) * g;
        average(b, o->rho, d * d);
        return d;
    }
    case HOTBED_OPT_LION: {
        const double mixed = (double)o->beta1 * *a + (1.0 - (double)o->beta1) * g;
        average(a, o->beta2, g);
        return mixed == 0.0 ? 0.0 : copysign(1.0, mixed);
    }
    case HOTBED_OPT_FTRL: /* double_update() has the formula */
    case HOTBED_OPT_LARS:
        break;
    }
    return 0.0;
}

static double norm(const double *v, uint32_t dim) {
    double sum = 0.0;
    for (uint32_t e = 0; e < dim; e++)
        sum += v[e] * v[e];
    return sqrt(sum);
}

static double rounded(hotbed_dtype dtype, double w) {
    float element[1] = {0.0F};
    oracle_store(dtype, element, 0, (float)w);
    return (double)oracle_load(dtype, element, 0);
}

static void double_update(
    const oracle *m, const double_model *t, uint32_t table, double_row *row, double *g) {
    const hotbed_optimizer *o = &m->options.optimizer;
    const hotbed_dtype dtype = m->tables[table].options.dtype;
    const double decay = (double)o->weight_decay;
    uint32_t dim = m->tables[table].options.dim;
    double along[128], lr = t->learning_rate;
    for (uint32_t e = 0; e < dim; e++)
        g[e] += (double)o->l2_decay * row->weights[e];
    if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        row->state[0][0] += norm(g, dim) * norm(g, dim) / dim;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAM) {
        double mean = 0.0;
        for (uint32_t e = 0; e < dim; e++)
            mean += g[e] / dim;
        average(&row->state[0][0], o->beta1, mean);
    }
    if (o->kind == HOTBED_OPT_PARTIAL_ROWWISE_ADAM || o->kind == HOTBED_OPT_ROWWISE_ADAM)
        average(row->state[1], o->beta2, norm(g, dim) * norm(g, dim) / dim);
    const double size = norm(row->weights, dim);
    if (o->kind == HOTBED_OPT_ROW_STEPS_ADAM)
        row->state[1][dim] += 1.0;
    if (o->kind == HOTBED_OPT_LARS && size > 0.0 && norm(g, dim) > 0.0)
        lr *= (double)o->trust * size / (norm(g, dim) + decay * size + (double)o->eps);
    for (uint32_t e = 0; e < dim; e++) {
        double *w = &row->weights[e];
        if (o->kind == HOTBED_OPT_FTRL) {
            *w = rounded(dtype, ftrl(o, lr, *w, g[e], &row->state[0][e], &row->state[1][e]));
        } else if (o->kind == HOTBED_OPT_LARS) {
            row->state[0][e] = (double)o->momentum * row->state[0][e] + lr * (g[e] + decay * *w);
            *w = rounded(dtype, *w - row->state[0][e]);
        } else {
            along[e] = direction(o, t, row, dim, e, g[e]) + decay * *w;
        }
    }
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t e = 0; e < dim && m->tables[table].state_dtype[s] == HOTBED_BF16; e++)
            row->state[s][e] = rounded(HOTBED_BF16, row->state[s][e]);
    if (o->kind == HOTBED_OPT_FTRL || o->kind == HOTBED_OPT_LARS)
        return;
    if (o->kind == HOTBED_OPT_LAMB && size > 0.0 && norm(along, dim) > 0.0)
        lr *= size / norm(along, dim);
    for (uint32_t e = 0; e < dim; e++)
        row->weights[e] = rounded(dtype, row->weights[e] - lr * along[e]);
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
    const hotbed_optimizer *o = &m->options.optimizer;
    hotbed_optimizer_kind kind = o->kind;
    /* whether states depend on weights, whose roundings they then follow; FTRL's by sqrt(n) / lr */
    const double follows = kind == HOTBED_OPT_FTRL                          ? 256.0
                           : o->l2_decay != 0.0F || kind == HOTBED_OPT_LARS ? 1.0
                                                                            : 0.0;
    for (uint32_t table = 0; table < TABLES; table++) {
        const oracle_table *of = &m->tables[table];
        const bool narrow = of->state_dtype[0] == HOTBED_BF16 || of->state_dtype[1] == HOTBED_BF16;
        const double moved = narrow ? 0x1p-6 : 0.0;
        for (uint32_t k = 0; k < of->num_rows; k++) {
            const double_row *row = &t->rows[table][k];
            CHECK(row->seen);
            for (uint32_t e = 0; e < of->options.dim; e++) {
                double w = row->weights[e];
                CHECK_NEAR(
                    of->rows[k].weights[e], w,
                    (tolerance[of->options.dtype] + moved) * fmax(1.0, fabs(w)));
            }
            for (uint32_t s = 0; s < hotbed_optimizer_states(kind); s++)
                for (uint32_t e = 0; e < of->state_dim[s]; e++) {
                    double x = row->state[s][e];
                    CHECK_NEAR(
                        of->rows[k].states[s][e], x,
                        (of->state_dtype[s] == HOTBED_BF16 ? 0x1p-6 : 0x1p-18) *
                                fmax(1.0, fabs(x)) +
                            follows * (tolerance[of->options.dtype] + moved) * fmax(1.0, fabs(x)));
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
        s->tables[t].rounding = HOTBED_ROUND_NEAREST; /* as the model in double precision */
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

/* With and without clipping, both kinds of decay, an initial accumulator, and FTRL's parameters. */
static void variants(hotbed_backend backend, hotbed_optimizer_kind kind) {
    const uint32_t uses = hotbed_optimizer_describe(kind)->parameters;
    for (int i = 0; i < 6; i += hotbed_test_is_small() ? 5 : 1) {
        setup s;
        every_dim_and_type(&s, kind);
        for (uint32_t t = 0; t < TABLES; t++)
            s.tables[t].state_dtype = (i & 1) != 0 ? HOTBED_BF16 : HOTBED_F32;
        hotbed_optimizer *o = &s.options.optimizer;
        o->max_gradient = (i & 1) != 0 ? 0.625F : 0.0F;
        if ((uses & HOTBED_USES_WEIGHT_DECAY) != 0)
            o->weight_decay = (i & 2) != 0 ? 0.05F : 0.0F;
        o->initial_accumulator = i == 3 ? 0.25F : 0.0F;
        o->l2_decay = i >= 4 ? 0.03F : 0.0F;
        if (kind == HOTBED_OPT_FTRL && i >= 2) {
            o->learning_rate_power = i == 2 ? -0.5F : i == 3 ? -0.75F : i == 4 ? 0.0F : -0.25F;
            o->ftrl_beta = 1.0F, o->l1_reg = 0.125F, o->l2_reg = 0.5F;
        }
        fifty_steps(backend, &s);
    }
}

#define FOLLOWS(name, KIND)                                                                        \
    static void name##_follows_double_precision(hotbed_backend backend) {                          \
        variants(backend, HOTBED_OPT_##KIND);                                                      \
    }
FOLLOWS(sgd, SGD)
FOLLOWS(adam, ADAM)
FOLLOWS(adagrad, ADAGRAD)
FOLLOWS(rowwise_adagrad, ROWWISE_ADAGRAD)
FOLLOWS(ftrl, FTRL)
FOLLOWS(momentum, MOMENTUM)
FOLLOWS(rmsprop, RMSPROP)
FOLLOWS(adadelta, ADADELTA)
FOLLOWS(lion, LION)
FOLLOWS(partial_rowwise_adam, PARTIAL_ROWWISE_ADAM)
FOLLOWS(lamb, LAMB)
FOLLOWS(lars, LARS)
FOLLOWS(nesterov, NESTEROV)
FOLLOWS(row_steps_adam, ROW_STEPS_ADAM)
FOLLOWS(rowwise_adam, ROWWISE_ADAM)

/* Powers are within one unit in the last place, over all exponents. */
static void powers_are_correct_to_one_unit(hotbed_backend backend) {
    static const float powers[] = {0.25F, 0.3333F, 0.5F, 0.75F, 1.0F, 1.5F, 2.0F, 0.001F};
    (void)backend;
    for (size_t p = 0; p < sizeof powers / sizeof *powers; p++)
        for (uint32_t bits = 1; bits < 0x7F800000U; bits += 99991) {
            float x;
            memcpy(&x, &bits, sizeof x);
            const float right = (float)pow((double)x, (double)powers[p]);
            const float y = hotbed_power(x, powers[p]);
            CHECK(y >= nextafterf(right, 0.0F) && y <= nextafterf(right, INFINITY));
        }
    CHECK(hotbed_power(0.0F, 0.3F) == 0.0F && hotbed_power(0.0F, 0.0F) == 1.0F);
    CHECK(isinf(hotbed_power(INFINITY, 0.3F)) && isnan(hotbed_power(NAN, 0.3F)));
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
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind += hotbed_test_is_small() ? 3 : 1)
        graphs_and_rates(backend, (hotbed_optimizer_kind)kind);
}

/* After many steps, a new row's first step is as long as the learning rate, and Adam's is not. */
static void a_late_row_begins_as_adam_begins(hotbed_backend backend) {
    for (int own = 0; own < 2; own++) {
        setup s;
        fixture r;
        hotbed_ticket *ticket;
        float before, after;
        setup_start(&s, 1, 1, 64);
        s.options.optimizer.kind = own == 1 ? HOTBED_OPT_ROW_STEPS_ADAM : HOTBED_OPT_ADAM;
        s.options.optimizer.learning_rate = 0.25F;
        fixture_open_bare(&r, backend, &s.options);
        CHECK_OK(hotbed_ticket_create(r.storage, 1, 1, r.stream, &ticket));
        uint64_t key = 7;
        const float gradient = 0.5F;
        void *keys = fixture_alloc(&r, sizeof key), *output = fixture_alloc(&r, sizeof before);
        void *gradients = fixture_copy(&r, &gradient, sizeof gradient);
        for (int step = 0; step < 101; step++) {
            key = step == 100 ? 8 : 7;
            fixture_upload(&r, keys, &key, sizeof key);
            const hotbed_batch batch = {
                .size = sizeof batch, .batch_size = 1, .num_keys = 1, .keys = keys};
            CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
            CHECK_OK(hotbed_storage_forward(r.storage, ticket, output, 0, r.stream));
            fixture_download(&r, &before, output, sizeof before);
            CHECK_OK(hotbed_storage_backward(r.storage, ticket, gradients, 0, r.stream));
            CHECK_OK(hotbed_storage_eval(r.storage, &batch, output, 0, r.stream));
            fixture_download(&r, &after, output, sizeof after);
        }
        CHECK((fabsf(before - after - 0.25F) < 1e-5F) == (own == 1));
        hotbed_ticket_destroy(ticket);
        fixture_close(&r);
    }
}

/* Three of four tables have parameters of their own, eager and in a graph, with pooling and without. */
static void steps_with_own_parameters(
    hotbed_backend backend, hotbed_optimizer_kind kind, hotbed_pooling pooling) {
    setup s;
    fixture r;
    test_ticket l;
    hotbed_optimizer own[3];
    hotbed_graph *graph;
    rng random = rng_start(200 + (uint64_t)kind);
    every_dim_and_type(&s, kind);
    s.options.pooling = pooling;
    for (int i = 0; i < 3; i++)
        own[i] = s.options.optimizer;
    own[0].learning_rate = 0.5F;
    setup_decay(&own[1], 0.125F);
    own[1].max_gradient = 0.25F;
    own[2].learning_rate = 0.25F;
    own[2].l2_decay = 0.0625F;
    for (uint32_t t = 0; t < TABLES; t++)
        s.tables[t].optimizer = t % 4 == 3 ? NULL : &own[t % 4];
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, TABLES * BATCH * 3, BATCH);
    const batch_shape how = {
        .batch_size = BATCH, .key_space = KEYS, .max_bag = pooling == HOTBED_POOL_NONE ? 0 : 3};
    for (int i = 0; i < (hotbed_test_is_small() ? 2 : 4); i++)
        test_ticket_step(&l, &random, &how);
    fixture_check(&r);
    if (pooling == HOTBED_POOL_NONE) {
        test_ticket_fill(&l, &random, &how);
        record(&l, NULL, &graph);
        for (int i = 0; i < 3; i++) { /* launches see what was set before them */
            const float rate = 0.03125F * (float)(i + 1);
            CHECK_OK(hotbed_storage_set_table_learning_rate(r.storage, 2, rate, r.stream));
            CHECK_OK(hotbed_storage_set_learning_rate(r.storage, 2.0F * rate, r.stream));
            r.model->tables[2].optimizer.learning_rate = rate;
            r.model->state.learning_rate = 2.0F * rate;
            test_ticket_fill(&l, &random, &how);
            fill_gradient(&l, &random);
            CHECK_OK(hotbed_graph_launch(graph, r.stream));
            model_step(&l);
            fixture_check(&r);
        }
        hotbed_graph_destroy(graph);
    }
    fixture_close(&r);
}

static void tables_may_have_rates_decays_and_clipping_of_their_own(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++) {
        if (!hotbed_test_is_small() || kind % 3 == 0)
            steps_with_own_parameters(backend, (hotbed_optimizer_kind)kind, HOTBED_POOL_NONE);
        steps_with_own_parameters(
            backend, (hotbed_optimizer_kind)kind,
            kind % 2 == 0 ? HOTBED_POOL_SUM : HOTBED_POOL_MEAN);
    }
}

/* A table's optimizer differs from the storage's in four parameters only. */
static void other_parameters_of_a_table_are_refused(hotbed_backend backend) {
    const hotbed_optimizer_parameter *p;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_optimizer own;
    setup s;
    setup_start(&s, 2, 4, 10);
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    s.tables[1].optimizer = &own;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        own = s.options.optimizer;
        if ((hotbed_optimizer_describe(own.kind)->parameters >> i & 1U) == 0)
            continue;
        hotbed_optimizer_set(&own, p, 0.375F);
        const bool may = strcmp(p->name, "learning_rate") == 0 ||
                         strcmp(p->name, "weight_decay") == 0 || strcmp(p->name, "l2_decay") == 0 ||
                         strcmp(p->name, "max_gradient") == 0;
        hotbed_status status = hotbed_storage_create(&s.options, stream, &storage);
        CHECK_STATUS(status, may ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
        CHECK(may || strstr(hotbed_last_error(), p->name) != NULL);
        CHECK(may || strstr(hotbed_last_error(), "table-1") != NULL);
        hotbed_storage_destroy(storage);
    }
    own = s.options.optimizer;
    own.kind = HOTBED_OPT_SGD;
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "its optimizer is sgd, but the storage's is adam") != NULL);
    own.kind = HOTBED_OPT_ADAM;
    CHECK_OK(hotbed_storage_create(&s.options, stream, &storage));
    CHECK_STATUS(
        hotbed_storage_set_table_learning_rate(storage, 0, 0.5F, stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "table-0 has no optimizer of its own") != NULL);
    CHECK_STATUS(
        hotbed_storage_set_table_learning_rate(storage, 1, NAN, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_storage_set_table_learning_rate(storage, 2, 0.5F, stream), HOTBED_ERR_ARGUMENT);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
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
        for (uint32_t s = 0; s < 2; s++)
            CHECK_EQ(
                hotbed_optimizer_state_dim(info->kind, s, 6),
                s >= info->states                                   ? 0
                : info->one_number[s]                               ? 1
                : s == 1 && info->kind == HOTBED_OPT_ROW_STEPS_ADAM ? 7
                                                                    : 6);
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
        o.kind = HOTBED_OPT_SGD; /* one that uses it */
        while ((hotbed_optimizer_describe(o.kind)->parameters >> i & 1U) == 0)
            o.kind++;
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

/* Decay that would have no effect is an error; so is another optimizer's parameter. */
static void a_parameter_that_an_optimizer_lacks_is_refused(hotbed_backend backend) {
    hotbed_optimizer o;
    (void)backend;
    hotbed_optimizer_init(&o);
    o.kind = HOTBED_OPT_FTRL;
    o.weight_decay = 0.5F;
    CHECK_EQ(hotbed_optimizer_check(&o), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "weight_decay is 0.5, but ftrl") != NULL);
    o.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_optimizer_check(&o));
    o.momentum = 0.5F;
    CHECK_EQ(hotbed_optimizer_check(&o), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "momentum is 0.5, but sgd") != NULL);
}

/* FTRL divides by the learning rate. */
static void ftrl_refuses_a_learning_rate_of_zero(hotbed_backend backend) {
    setup s;
    fixture r;
    setup_start(&s, 1, 1, 64);
    s.options.optimizer.kind = HOTBED_OPT_FTRL;
    s.options.optimizer.learning_rate = 0.0F;
    CHECK_EQ(hotbed_optimizer_check(&s.options.optimizer), HOTBED_ERR_ARGUMENT);
    s.options.optimizer.learning_rate = 0.5F;
    fixture_open(&r, backend, &s.options);
    CHECK_STATUS(hotbed_storage_set_learning_rate(r.storage, 0.0F, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "learning_rate 0 of ftrl") != NULL);
    hotbed_storage_state state = {.size = sizeof state};
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    state.learning_rate = -1.0F;
    CHECK_STATUS(hotbed_storage_set_state(r.storage, &state, r.stream), HOTBED_ERR_ARGUMENT);
    fixture_close(&r);
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
    hotbed_batch batch = {.size = sizeof batch, .batch_size = n, .num_keys = n};
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
    {TEST(sgd_follows_double_precision)},
    {TEST(adam_follows_double_precision)},
    {TEST(adagrad_follows_double_precision)},
    {TEST(rowwise_adagrad_follows_double_precision)},
    {TEST(ftrl_follows_double_precision)},
    {TEST(momentum_follows_double_precision)},
    {TEST(rmsprop_follows_double_precision)},
    {TEST(adadelta_follows_double_precision)},
    {TEST(lion_follows_double_precision)},
    {TEST(partial_rowwise_adam_follows_double_precision)},
    {TEST(lamb_follows_double_precision)},
    {TEST(lars_follows_double_precision)},
    {TEST(nesterov_follows_double_precision)},
    {TEST(row_steps_adam_follows_double_precision)},
    {TEST(rowwise_adam_follows_double_precision)},
    {TEST(a_late_row_begins_as_adam_begins)},
    {TEST(powers_are_correct_to_one_unit)},
    {TEST(a_parameter_that_an_optimizer_lacks_is_refused)},
    {TEST(ftrl_refuses_a_learning_rate_of_zero)},
    {TEST(learning_rates_can_be_set_inside_and_outside_of_graphs)},
    {TEST(tables_may_have_rates_decays_and_clipping_of_their_own)},
    {TEST(other_parameters_of_a_table_are_refused)},
    {TEST(every_optimizer_is_described)},
    {TEST(parameters_are_checked_by_their_ranges)},
    {TEST(nans_follow_the_documented_rules)},
    {NULL, NULL},
};
