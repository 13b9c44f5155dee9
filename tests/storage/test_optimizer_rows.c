/* tests/storage/test_optimizer_rows.c - hotbed/optimizer.h: optimizer steps on rows in the caller's memory.
 *
 * The rows of a batch are copied out of a storage and updated with the ticket's summed gradients, as separate arrays
 * and as rows of a flat table.  They must have the bytes of the storage's rows after hotbed_storage_apply().
 */
#include "hotbed/flat_table.h"
#include "hotbed/optimizer.h"
#include "tests/storage/fixture.h"

#include <stdlib.h>

enum { KEYS = 200, STEPS = 4 };

/* Device arrays of the weights and states of up to KEYS rows. */
typedef struct parts {
    hotbed_rows rows;
    uint64_t bytes[3]; /* of a row: weights, states */
    uint32_t dim;
    hotbed_dtype dtype, state_dtype;
} parts;

static parts parts_make(
    fixture *r, uint32_t dim, hotbed_dtype dtype, hotbed_dtype state_dtype,
    hotbed_optimizer_kind kind) {
    uint32_t states = hotbed_optimizer_states(kind);
    parts p = {.dim = dim, .dtype = dtype, .state_dtype = state_dtype};
    p.bytes[0] = hotbed_dtype_row_bytes(dtype, dim);
    p.rows.weights = fixture_alloc(r, KEYS * p.bytes[0]);
    for (uint32_t s = 0; s < states; s++) {
        p.bytes[1 + s] = hotbed_optimizer_state_dim(kind, s, dim) *
                         hotbed_dtype_bytes(hotbed_optimizer_state_dtype(kind, s, state_dtype));
        p.rows.states[s] = fixture_alloc(r, KEYS * p.bytes[1 + s]);
    }
    return p;
}

static void parts_same(fixture *r, const parts *a, const parts *b, uint64_t n) {
    const void *x[3] = {a->rows.weights, a->rows.states[0], a->rows.states[1]};
    const void *y[3] = {b->rows.weights, b->rows.states[0], b->rows.states[1]};
    for (int p = 0; p < 3; p++) {
        uint64_t bytes = n * a->bytes[p];
        void *seen = malloc(bytes + 1), *expected = malloc(bytes + 1);
        CHECK(seen != NULL && expected != NULL);
        fixture_download(r, seen, x[p], bytes);
        fixture_download(r, expected, y[p], bytes);
        CHECK_BYTES(seen, expected, bytes);
        free(seen);
        free(expected);
    }
}

/* With `keys`, rows are rounded as those of the fixture's table. */
static hotbed_row_update update_of(
    const parts *p, uint64_t n, const float *gradients, const oracle *model, const uint64_t *keys) {
    hotbed_row_update u = {.size = sizeof u};
    u.dim = p->dim;
    u.dtype = p->dtype;
    u.state_dtype = p->state_dtype;
    if (keys != NULL) {
        u.keys = keys;
        u.name = model->tables[0].options.name;
        u.seed = model->options.seed;
    }
    u.n = n;
    u.rows = p->rows;
    u.gradients = gradients;
    return u;
}

static hotbed_optimizer_clock *clock_make(fixture *r, const hotbed_optimizer *optimizer) {
    hotbed_optimizer_clock clock;
    hotbed_optimizer_clock_init(&clock, optimizer);
    return fixture_copy(r, &clock, sizeof clock);
}

/* Make the step in a flat table, whose rows have weights and states one behind the other. */
static void flat_step(
    fixture *r, const hotbed_optimizer *o, const hotbed_optimizer_clock *clock, const parts *before,
    const parts *out, uint64_t n, const float *gradients, const uint64_t *keys) {
    hotbed_flat_table_options options = {.size = sizeof options};
    hotbed_flat_table_view view = {.size = sizeof view};
    hotbed_flat_table *table;
    options.dim = before->dim;
    options.dtype = before->dtype;
    options.state_dtype = before->state_dtype;
    options.capacity = KEYS;
    options.optimizer = o->kind;
    CHECK_OK(hotbed_flat_table_create(&options, r->stream, &table));
    CHECK_OK(hotbed_flat_table_read(table, &view));
    uint64_t slots[KEYS];
    for (uint64_t i = 0; i < KEYS; i++)
        slots[i] = KEYS - 1 - i;
    uint64_t *device = fixture_copy(r, slots + KEYS - n, n * sizeof *slots); /* slots n-1 .. 0 */
    CHECK_OK(hotbed_flat_table_store(table, n, device, &before->rows, r->stream));
    float *turned = fixture_alloc(r, n * view.dim * sizeof(float));
    for (uint64_t i = 0; i < n; i++)
        CHECK_OK(hotbed_copy(
            turned + (n - 1 - i) * view.dim, gradients + i * view.dim, view.dim * sizeof(float),
            r->stream));
    uint64_t *turned_keys = keys == NULL ? NULL : fixture_alloc(r, n * sizeof *keys);
    for (uint64_t i = 0; keys != NULL && i < n; i++)
        CHECK_OK(hotbed_copy(turned_keys + (n - 1 - i), keys + i, sizeof *keys, r->stream));
    hotbed_row_update u = update_of(before, n, turned, r->model, turned_keys);
    u.row_bytes = view.row_bytes;
    u.rows.weights = view.rows;
    for (uint32_t s = 0; s < hotbed_optimizer_states(o->kind); s++)
        u.rows.states[s] = (char *)view.rows + view.state_offsets[s];
    CHECK_OK(hotbed_optimizer_update_rows(o, clock, &u, r->stream));
    CHECK_OK(hotbed_flat_table_load(table, n, device, &out->rows, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
    hotbed_flat_table_destroy(table);
}

static void set_rate(fixture *r, hotbed_optimizer_clock *clock, float rate) {
    float *host = fixture_copy(r, &rate, sizeof rate);
    CHECK_OK(hotbed_copy(&clock->learning_rate, host, sizeof rate, r->stream));
    CHECK_OK(hotbed_storage_set_learning_rate(r->storage, rate, r->stream));
    r->model->state.learning_rate = rate;
}

static void step(
    test_ticket *l, rng *random, hotbed_optimizer_clock *clock, parts p[3], float *sums) {
    fixture *r = l->r;
    const hotbed_optimizer *o = hotbed_storage_optimizer(r->storage);
    const batch_shape how = {.batch_size = 100, .key_space = 60};
    hotbed_ticket_view view = {.size = sizeof view};
    test_ticket_fill(l, random, &how);
    test_ticket_prefetch(l);
    CHECK_OK(hotbed_ticket_read(l->ticket, &view));
    uint64_t n = l->model->unique_offsets[1];
    CHECK(n > 0 && n <= KEYS);
    CHECK_OK(
        hotbed_storage_get_rows(r->storage, 0, n, view.unique_keys, &p[0].rows, NULL, r->stream));
    for (uint64_t i = 0; i < l->output_bytes / sizeof(float); i++)
        ((float *)l->scratch[0])[i] = rng_float(random);
    fixture_upload(r, l->gradient, l->scratch[0], l->output_bytes);
    CHECK_OK(hotbed_storage_reduce(
        r->storage, l->ticket, l->gradient, l->stride, false, sums, r->stream));
    CHECK_OK(hotbed_optimizer_step(o, clock, r->stream));
    const bool nearest = r->model->tables[0].options.rounding == HOTBED_ROUND_NEAREST;
    const uint64_t *keys = nearest ? NULL : view.unique_keys;
    flat_step(r, o, clock, &p[0], &p[1], n, sums, keys);
    hotbed_row_update u = update_of(&p[0], n, sums, r->model, keys);
    /* rows with scales that do not begin at multiples of 4 are refused */
    const bool dense = hotbed_dtype_bytes(p[0].dtype) != 0 || p[0].bytes[0] % 4 == 0;
    CHECK_STATUS(
        hotbed_optimizer_update_rows(o, clock, &u, r->stream),
        dense ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_storage_apply(r->storage, l->ticket, sums, r->stream));
    oracle_backward(l->model, l->scratch[0], l->stride);
    CHECK_OK(
        hotbed_storage_get_rows(r->storage, 0, n, view.unique_keys, &p[2].rows, NULL, r->stream));
    if (dense)
        parts_same(r, &p[0], &p[2], n); /* separate arrays */
    parts_same(r, &p[1], &p[2], n);     /* rows of a flat table */
}

static void same_bytes_as_in_place(hotbed_backend backend, hotbed_optimizer_kind kind) {
    static const uint32_t dims[] = {1, 3, 8, 16, 21, 32, 64, 100, 129, 512};
    rng random = rng_start((uint64_t)kind);
    for (uint32_t i = 0; i < 30; i += hotbed_test_is_small() ? 7 : 1) {
        setup s;
        fixture r;
        test_ticket l;
        parts p[3];
        setup_start(&s, 1, dims[i % 10], 500);
        s.tables[0].dtype = (hotbed_dtype)(1 + (i + i / 10) % HOTBED_DTYPE_LAST);
        s.tables[0].state_dtype = i % 3 == 0 ? HOTBED_F32 : HOTBED_BF16;
        s.tables[0].rounding = i % 4 < 2 ? HOTBED_ROUND_NEAREST : HOTBED_ROUND_STOCHASTIC;
        s.options.seed = i;
        s.options.optimizer.kind = kind;
        setup_decay(&s.options.optimizer, i % 2 == 0 ? 0.0F : 0.02F);
        /* clips gradients in reduce; sums are not clipped */
        s.options.optimizer.max_gradient = 0.75F;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 100, 100);
        for (int k = 0; k < 3; k++)
            p[k] = parts_make(&r, dims[i % 10], s.tables[0].dtype, s.tables[0].state_dtype, kind);
        float *sums = fixture_alloc(&r, 100 * dims[i % 10] * sizeof(float));
        hotbed_optimizer_clock *clock = clock_make(&r, &s.options.optimizer), end;
        for (int k = 0; k < STEPS; k++) {
            if (k == 2)
                set_rate(&r, clock, 0.25F);
            step(&l, &random, clock, p, sums);
        }
        fixture_check(&r);
        fixture_download(&r, &end, clock, sizeof end);
        CHECK_EQ(end.steps, STEPS);
        CHECK(end.beta1_power == r.model->state.beta1_power);
        CHECK(end.beta2_power == r.model->state.beta2_power);
        CHECK(end.learning_rate == 0.25F);
        fixture_close(&r);
    }
}

static void sgd_on_the_callers_rows_equals_the_storage(hotbed_backend backend) {
    same_bytes_as_in_place(backend, HOTBED_OPT_SGD);
}

static void adam_on_the_callers_rows_equals_the_storage(hotbed_backend backend) {
    same_bytes_as_in_place(backend, HOTBED_OPT_ADAM);
}

static void adagrad_on_the_callers_rows_equals_the_storage(hotbed_backend backend) {
    same_bytes_as_in_place(backend, HOTBED_OPT_ADAGRAD);
}

static void rowwise_adagrad_on_the_callers_rows_equals_the_storage(hotbed_backend backend) {
    same_bytes_as_in_place(backend, HOTBED_OPT_ROWWISE_ADAGRAD);
}

static void other_optimizers_on_the_callers_rows_equal_the_storage(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_ROWWISE_ADAGRAD + 1; kind <= HOTBED_OPT_LAST; kind++)
        same_bytes_as_in_place(backend, (hotbed_optimizer_kind)kind);
}

/* --- without a storage ----------------------------------------------------------------------- */

typedef struct rows_fixture {
    fixture r;
    hotbed_optimizer o;
    hotbed_optimizer_clock *clock;
    parts p;
    float *gradients;
} rows_fixture;

static void rows_open(rows_fixture *b, hotbed_backend backend, hotbed_optimizer_kind kind) {
    setup s;
    rng random = rng_start(30);
    setup_start(&s, 1, 4, 8); /* not used; a fixture needs a storage */
    fixture_open_bare(&b->r, backend, &s.options);
    hotbed_optimizer_init(&b->o);
    b->o.kind = kind;
    b->clock = clock_make(&b->r, &b->o);
    b->p = parts_make(&b->r, 9, HOTBED_F32, HOTBED_F32, kind);
    float *values = malloc(KEYS * 9 * sizeof *values);
    CHECK(values != NULL);
    for (int i = 0; i < KEYS * 9; i++)
        values[i] = rng_float(&random);
    b->gradients = fixture_copy(&b->r, values, KEYS * b->p.bytes[0]);
    fixture_upload(&b->r, b->p.rows.weights, values, KEYS * b->p.bytes[0]);
    for (int s2 = 0; s2 < 2; s2++)
        if (b->p.rows.states[s2] != NULL)
            CHECK_OK(hotbed_fill(b->p.rows.states[s2], 0, KEYS * b->p.bytes[1], b->r.stream));
    CHECK_OK(hotbed_stream_sync(b->r.stream));
    free(values);
}

/* Launches advance the clock, and use a learning rate that is copied in between. */
static void recorded_steps_advance_the_clock(hotbed_backend backend) {
    rows_fixture eager, recorded;
    hotbed_graph *graph;
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    rows_open(&eager, backend, HOTBED_OPT_ADAM);
    rows_open(&recorded, backend, HOTBED_OPT_ADAM);
    hotbed_row_update u = update_of(&eager.p, KEYS, eager.gradients, NULL, NULL);
    hotbed_row_update v = update_of(&recorded.p, KEYS, recorded.gradients, NULL, NULL);
    hotbed_stream *s = recorded.r.stream;
    CHECK_OK(hotbed_graph_begin(s));
    CHECK_OK(hotbed_optimizer_step(&recorded.o, recorded.clock, s));
    CHECK_OK(hotbed_optimizer_update_rows(&recorded.o, recorded.clock, &v, s));
    CHECK_OK(hotbed_graph_end(s, &graph));
    const float rate = 0.5F;
    rows_fixture *both[2] = {&eager, &recorded};
    for (int i = 0; i < 12; i++) {
        for (int b = 0; i == 6 && b < 2; b++)
            fixture_upload(&both[b]->r, &both[b]->clock->learning_rate, &rate, sizeof rate);
        hotbed_counters_read(&before);
        CHECK_OK(hotbed_optimizer_step(&eager.o, eager.clock, eager.r.stream));
        CHECK_OK(hotbed_optimizer_update_rows(&eager.o, eager.clock, &u, eager.r.stream));
        CHECK_OK(hotbed_graph_launch(graph, s));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
    }
    CHECK_OK(hotbed_stream_sync(s));
    CHECK_OK(hotbed_stream_sync(eager.r.stream));
    parts_same(&eager.r, &eager.p, &recorded.p, KEYS);
    hotbed_graph_destroy(graph);
    fixture_close(&eager.r);
    fixture_close(&recorded.r);
}

/* Rows from n on, and the gaps between rows, stay unchanged. */
static void only_n_rows_are_written(hotbed_backend backend) {
    enum { ROWS = 3, STRIDE = 64 };
    rows_fixture b;
    unsigned char rows[(ROWS + 1) * STRIDE], seen[sizeof rows];
    rows_open(&b, backend, HOTBED_OPT_ROWWISE_ADAGRAD);
    memset(rows, 0x3A, sizeof rows);
    char *device = fixture_copy(&b.r, rows, sizeof rows);
    hotbed_row_update u = update_of(&b.p, ROWS, b.gradients, NULL, NULL);
    u.row_bytes = STRIDE;
    u.rows.weights = device;
    u.rows.states[0] = device + 40; /* weights end at byte 36 */
    CHECK_OK(hotbed_optimizer_step(&b.o, b.clock, b.r.stream));
    CHECK_OK(hotbed_optimizer_update_rows(&b.o, b.clock, &u, b.r.stream));
    fixture_download(&b.r, seen, device, sizeof seen);
    for (uint32_t i = 0; i < sizeof rows; i++) {
        uint32_t at = i % STRIDE;
        bool inside = i < ROWS * STRIDE && (at < 36 || (at >= 40 && at < 44));
        CHECK(inside || seen[i] == 0x3A);
    }
    for (uint32_t i = 0; i < ROWS; i++)
        CHECK(memcmp(seen + (size_t)i * STRIDE, rows, 36) != 0);
    fixture_close(&b.r);
}

static void bad_calls_are_refused(hotbed_backend backend) {
    const hotbed_status bad = HOTBED_ERR_ARGUMENT;
    rows_fixture b;
    rows_open(&b, backend, HOTBED_OPT_ADAGRAD);
    hotbed_stream *s = b.r.stream;
    const hotbed_row_update good = update_of(&b.p, KEYS, b.gradients, NULL, NULL);
    hotbed_optimizer o = b.o;
    hotbed_row_update u = good;
    CHECK_STATUS(hotbed_optimizer_step(NULL, b.clock, s), bad);
    CHECK_STATUS(hotbed_optimizer_step(&o, NULL, s), bad);
    CHECK_STATUS(hotbed_optimizer_step(&o, b.clock, NULL), bad);
    CHECK_STATUS(hotbed_optimizer_update_rows(NULL, b.clock, &u, s), bad);
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, NULL, &u, s), bad);
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, NULL, s), bad);
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, NULL), bad);
    o.beta1 = 1.0F;
    CHECK_STATUS(hotbed_optimizer_step(&o, b.clock, s), bad);
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    o = b.o;
    u.size = 0;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.dim = 0;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u.dim = 4097;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.dtype = (hotbed_dtype)99;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.state_dtype = HOTBED_F16;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    CHECK(strstr(hotbed_last_error(), "state_dtype 2 (f16) is neither F32 nor BF16") != NULL);
    u = good;
    u.keys = (const uint64_t *)(const void *)b.gradients;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    CHECK(strstr(hotbed_last_error(), "keys is set, but name is NULL") != NULL);
    u = good;
    u.dtype = HOTBED_INT8; /* 13 bytes a row */
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u.row_bytes = 14;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u.row_bytes = 16;
    u.rows.weights = (char *)good.rows.weights + 1;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    CHECK(strstr(hotbed_last_error(), "begin 1 bytes after a multiple of 4") != NULL);
    u = good;
    u.gradients = NULL;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.rows.weights = NULL;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.rows.states[0] = NULL;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.rows.states[1] = b.gradients;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.rows.scores = (uint64_t *)(void *)b.gradients;
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.row_bytes = 35; /* smaller than the weights */
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u.dtype = HOTBED_BF16;
    u.row_bytes = 20; /* smaller than the states */
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    CHECK(
        strstr(hotbed_last_error(), "row_bytes 20 is less than a row's longest part (36 bytes)") !=
        NULL);
    u = good;
    u.row_bytes = 78; /* states would not be aligned */
    CHECK_STATUS(hotbed_optimizer_update_rows(&o, b.clock, &u, s), bad);
    u = good;
    u.n = 0;
    u.gradients = NULL;
    CHECK_OK(hotbed_optimizer_update_rows(&o, b.clock, &u, s)); /* no rows */
    fixture_close(&b.r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(other_optimizers_on_the_callers_rows_equal_the_storage)},
    {TEST(sgd_on_the_callers_rows_equals_the_storage)},
    {TEST(adam_on_the_callers_rows_equals_the_storage)},
    {TEST(adagrad_on_the_callers_rows_equals_the_storage)},
    {TEST(rowwise_adagrad_on_the_callers_rows_equals_the_storage)},
    {TEST(recorded_steps_advance_the_clock)},
    {TEST(only_n_rows_are_written)},
    {TEST(bad_calls_are_refused)},
    {NULL, NULL},
};
