/* tests/storage/test_storage_rows.c - calls by key: get_rows, set_rows, offer_rows, erase, clear, export, state.
 *
 * Random calls on three tables are compared with the model.  Other tests fill and empty tables, and move a storage to
 * another one. test_storage_rows_full.c sets more rows than a table can hold.
 */
#include "storage/storage.h"
#include "tests/storage/fixture.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_N = 64, MAX_DIM = 17 };

static const uint32_t table_dims[] = {1, 17, 6};

static void three_tables(setup *s, hotbed_optimizer_kind kind) {
    setup_start(s, 3, 1, 2000);
    for (uint32_t t = 0; t < 3; t++) {
        s->tables[t].dim = table_dims[t];
        s->tables[t].dtype = (hotbed_dtype)(1 + (kind + t) % HOTBED_DTYPE_LAST);
        s->tables[t].state_dtype = (kind + t) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
    }
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 50;
    s->options.optimizer.kind = kind;
    s->options.optimizer.initial_accumulator = 0.25F;
}

static uint64_t key_for(const fixture *r, uint32_t table, rng *random) {
    const hotbed_table_options *options = &r->model->tables[table].options;
    if (options->kind == HOTBED_TABLE_STATIC)
        return rng_below(random, options->capacity);
    return rng_below(random, 4) == 0 ? rng_extreme_key(random) : rng_below(random, 150) << 40;
}

/* Choose up to MAX_N random keys, if `distinct` without repetitions.  Returns their number. */
static uint64_t some_keys(
    const fixture *r, uint32_t table, rng *random, uint64_t *keys, bool distinct) {
    uint64_t wanted = rng_below(random, MAX_N + 1), n = 0;
    for (uint64_t i = 0; i < wanted; i++) {
        uint64_t key = key_for(r, table, random);
        bool seen = false;
        for (uint64_t k = 0; k < n && distinct; k++)
            seen = seen || keys[k] == key;
        if (!seen)
            keys[n++] = key;
    }
    return n;
}

typedef struct parts {
    unsigned char weights[MAX_N * MAX_DIM * 4];
    float states[2][MAX_N * MAX_DIM];
    uint64_t scores[MAX_N];
    uint8_t found[MAX_N];
} parts;

/* Bits of the parts that a call passes. */
enum { WITH_WEIGHTS = 1, WITH_STATE0 = 2, WITH_STATE1 = 4, WITH_SCORES = 8 };

static unsigned random_parts(const fixture *r, uint32_t table, rng *random) {
    unsigned which = (unsigned)rng_below(random, 16);
    uint32_t states = hotbed_optimizer_states(r->model->options.optimizer.kind);
    if (states < 1)
        which &= ~(unsigned)WITH_STATE0;
    if (states < 2)
        which &= ~(unsigned)WITH_STATE1;
    if (r->model->tables[table].options.kind == HOTBED_TABLE_STATIC)
        which &= ~(unsigned)WITH_SCORES;
    return which;
}

static hotbed_rows rows_of(parts *device, unsigned which) {
    hotbed_rows rows = {0};
    if ((which & WITH_WEIGHTS) != 0)
        rows.weights = device->weights;
    if ((which & WITH_STATE0) != 0)
        rows.states[0] = device->states[0];
    if ((which & WITH_STATE1) != 0)
        rows.states[1] = device->states[1];
    if ((which & WITH_SCORES) != 0)
        rows.scores = device->scores;
    return rows;
}

/* A fixture with device arrays for keys and parts. */
typedef struct subject {
    fixture r;
    rng random;
    uint64_t keys[MAX_N];
    uint64_t *device_keys;
    parts host, expected;
    parts *device;
} subject;

static void subject_open(subject *d, hotbed_backend backend, hotbed_optimizer_kind kind) {
    setup s;
    three_tables(&s, kind);
    d->random = rng_start((uint64_t)kind);
    fixture_open(&d->r, backend, &s.options);
    d->device_keys = fixture_alloc(&d->r, sizeof d->keys);
    d->device = fixture_alloc(&d->r, sizeof *d->device);
}

static void set_rows(subject *d, uint32_t table) {
    const oracle_table *m = &d->r.model->tables[table];
    uint32_t dim = m->options.dim;
    uint64_t n = some_keys(&d->r, table, &d->random, d->keys, true);
    unsigned which = random_parts(&d->r, table, &d->random) | WITH_SCORES;
    if (m->options.kind == HOTBED_TABLE_STATIC)
        which &= ~(unsigned)WITH_SCORES;
    for (uint64_t i = 0; i < n; i++) {
        oracle_row *row = oracle_put(d->r.model, table, d->keys[i]);
        d->host.scores[i] = rng_next(&d->random) >> 12; /* scores have 52 bits */
        if ((which & WITH_SCORES) != 0)
            row->score = d->host.scores[i];
        float weights[MAX_DIM];
        for (uint32_t e = 0; e < dim; e++)
            weights[e] = rng_float(&d->random);
        oracle_row_round(m->options.dtype, dim, weights, d->host.weights, i);
        if ((which & WITH_WEIGHTS) != 0)
            oracle_row_set(m, row, d->host.weights, i);
        for (unsigned s = 0; s < 2; s++) {
            for (uint32_t e = 0; e < m->state_dim[s]; e++) /* Adagrad's state cannot be negative */
                oracle_store(
                    m->state_dtype[s], d->host.states[s], i * m->state_dim[s] + e,
                    fabsf(rng_float(&d->random)));
            if ((which & ((uint32_t)WITH_STATE0 << s)) != 0)
                oracle_state_set(m, row, s, d->host.states[s], i);
        }
    }
    fixture_upload(&d->r, d->device_keys, d->keys, sizeof d->keys);
    fixture_upload(&d->r, d->device, &d->host, sizeof d->host);
    const hotbed_rows rows = rows_of(d->device, which);
    CHECK_OK(hotbed_storage_set_rows(d->r.storage, table, n, d->device_keys, &rows, d->r.stream));
    CHECK_OK(hotbed_stream_sync(d->r.stream));
}

/* Get random parts of random keys.  Parts that are not requested and rows of missing keys must stay unchanged. */
static void get_rows(subject *d, uint32_t table) {
    oracle *model = d->r.model;
    const oracle_table *m = &model->tables[table];
    uint64_t n = some_keys(&d->r, table, &d->random, d->keys, false);
    unsigned which = random_parts(&d->r, table, &d->random);
    memset(&d->expected, 0x5A, sizeof d->expected);
    fixture_upload(&d->r, d->device, &d->expected, sizeof d->expected);
    for (uint64_t i = 0; i < n; i++) {
        const oracle_row *row = oracle_find(model, table, d->keys[i]);
        d->expected.found[i] = row != NULL;
        if (row != NULL && (which & WITH_WEIGHTS) != 0)
            oracle_row_get(m, row, d->expected.weights, i);
        for (unsigned s = 0; s < 2; s++)
            if (row != NULL && (which & ((uint32_t)WITH_STATE0 << s)) != 0)
                oracle_state_get(m, row, s, d->expected.states[s], i);
        if (row != NULL && (which & WITH_SCORES) != 0)
            d->expected.scores[i] = row->score;
    }
    fixture_upload(&d->r, d->device_keys, d->keys, sizeof d->keys);
    const hotbed_rows rows = rows_of(d->device, which);
    CHECK_OK(hotbed_storage_get_rows(
        d->r.storage, table, n, d->device_keys, &rows, d->device->found, d->r.stream));
    fixture_download(&d->r, &d->host, d->device, sizeof d->host);
    CHECK_BYTES(&d->host, &d->expected, sizeof d->host);
}

static void erase(subject *d, uint32_t table) {
    if (d->r.model->tables[table].options.kind == HOTBED_TABLE_STATIC)
        return;
    uint64_t n = some_keys(&d->r, table, &d->random, d->keys, true);
    memset(&d->expected, 0x5A, sizeof d->expected);
    fixture_upload(&d->r, d->device, &d->expected, sizeof d->expected);
    fixture_upload(&d->r, d->device_keys, d->keys, sizeof d->keys);
    CHECK_OK(hotbed_storage_erase(
        d->r.storage, table, n, d->device_keys, d->device->found, d->r.stream));
    fixture_download(&d->r, &d->host, d->device, sizeof d->host);
    for (uint64_t i = 0; i < n; i++)
        d->expected.found[i] = oracle_erase(d->r.model, table, d->keys[i]);
    CHECK_BYTES(d->host.found, d->expected.found, MAX_N);
}

static void random_operations(hotbed_backend backend, hotbed_optimizer_kind kind) {
    static subject d;
    test_ticket l;
    subject_open(&d, backend, kind);
    test_ticket_open(&d.r, &l, 48, 16);
    const batch_shape how = {.batch_size = 16, .key_space = 50};
    const int operations = hotbed_test_is_small() ? 50 : 150;
    for (int i = 0; i < operations; i++) {
        uint32_t table = (uint32_t)rng_below(&d.random, 3);
        switch (rng_below(&d.random, 8)) {
        case 0:
        case 1:
            set_rows(&d, table);
            break;
        case 2:
        case 3:
            get_rows(&d, table);
            break;
        case 4:
        case 5:
            erase(&d, table);
            break;
        case 6:
            test_ticket_step(&l, &d.random, &how);
            break;
        default:
            if (i % 10 == 0) {
                CHECK_OK(hotbed_storage_clear(d.r.storage, table, d.r.stream));
                oracle_clear(d.r.model, table);
            }
            fixture_check(&d.r);
            break;
        }
    }
    fixture_check(&d.r);
    fixture_close(&d.r);
}

static void random_operations_without_state(hotbed_backend backend) {
    random_operations(backend, HOTBED_OPT_SGD);
}

static void random_operations_with_two_states(hotbed_backend backend) {
    random_operations(backend, HOTBED_OPT_ADAM);
}

static void random_operations_with_a_narrow_state(hotbed_backend backend) {
    random_operations(backend, HOTBED_OPT_ROWWISE_ADAGRAD);
}

/* A table is filled and emptied repeatedly; no key is refused, and rows start with initial values. */
static void erased_slots_are_used_again(hotbed_backend backend) {
    enum { CAPACITY = 300 };
    setup s;
    fixture r;
    rng random = rng_start(20);
    setup_start(&s, 1, 2, CAPACITY);
    fixture_open(&r, backend, &s.options);
    uint64_t keys[CAPACITY];
    uint64_t *device = fixture_alloc(&r, sizeof keys);
    uint8_t *flags = fixture_alloc(&r, CAPACITY), seen[CAPACITY];
    const hotbed_rows nothing = {0};
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < CAPACITY; i++)
            keys[i] = rng_next(&random);
        fixture_upload(&r, device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(r.storage, 0, CAPACITY, device, &nothing, r.stream));
        CHECK_OK(hotbed_stream_sync(r.stream)); /* no key is refused */
        CHECK_EQ(fixture_size(&r, 0), CAPACITY);
        CHECK_OK(hotbed_storage_erase(r.storage, 0, CAPACITY, device, flags, r.stream));
        fixture_download(&r, seen, flags, CAPACITY);
        for (int i = 0; i < CAPACITY; i++)
            CHECK_EQ(seen[i], 1);
        CHECK_OK(hotbed_storage_erase(r.storage, 0, CAPACITY, device, flags, r.stream));
        fixture_download(&r, seen, flags, CAPACITY);
        for (int i = 0; i < CAPACITY; i++)
            CHECK_EQ(seen[i], 0);
        CHECK_EQ(fixture_size(&r, 0), 0);
    }
    fixture_close(&r);
}

/* Half of a full table is erased and filled again; the other keys are still found. */
static void erase_keeps_the_other_keys(hotbed_backend backend) {
    enum { CAPACITY = 1000, HALF = CAPACITY / 2 };
    setup s;
    fixture r;
    rng random = rng_start(21);
    setup_start(&s, 1, 1, CAPACITY);
    fixture_open_bare(&r, backend, &s.options);
    uint64_t keys[CAPACITY];
    uint64_t *device = fixture_alloc(&r, sizeof keys);
    uint8_t *flags = fixture_alloc(&r, CAPACITY), seen[CAPACITY];
    const hotbed_rows nothing = {0};
    for (int i = 0; i < CAPACITY; i++)
        keys[i] = rng_next(&random);
    for (int round = 0; round < 10; round++) {
        fixture_upload(&r, device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(r.storage, 0, CAPACITY, device, &nothing, r.stream));
        CHECK_OK(hotbed_stream_sync(r.stream));
        CHECK_OK(hotbed_storage_erase(r.storage, 0, HALF, device, NULL, r.stream));
        CHECK_OK(
            hotbed_storage_get_rows(r.storage, 0, CAPACITY, device, &nothing, flags, r.stream));
        fixture_download(&r, seen, flags, CAPACITY);
        for (int i = 0; i < CAPACITY; i++)
            CHECK_EQ(seen[i], i >= HALF);
        for (int i = 0; i < HALF; i++) { /* replace the erased keys by new ones, in another order */
            keys[i] = keys[HALF + i];
            keys[HALF + i] = rng_next(&random);
        }
    }
    fixture_close(&r);
}

static void pinned_keys_are_not_erased(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(22);
    setup_start(&s, 1, 3, 100);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 20, 20);
    const batch_shape how = {.batch_size = 20};
    test_ticket_step(&l, &random, &how);
    test_ticket_prefetch(&l);
    uint8_t *flags = fixture_alloc(&r, 20), seen[20];
    CHECK_OK(hotbed_storage_erase(r.storage, 0, 20, l.device.keys, flags, r.stream));
    fixture_download(&r, seen, flags, 20);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(seen[i], 0);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    fixture_check(&r);
    CHECK_OK(hotbed_storage_erase(r.storage, 0, 20, l.device.keys, flags, r.stream));
    fixture_download(&r, seen, flags, 20);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(seen[i], 1);
    CHECK_EQ(fixture_size(&r, 0), 0);
    fixture_close(&r);
}

/* A key that was erased or cleared gets initial weights and states. */
static void erased_rows_come_back_with_initial_values(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(23);
    three_tables(&s, HOTBED_OPT_ADAM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 48, 16);
    const batch_shape how = {.batch_size = 16, .key_space = 10};
    test_ticket_step(&l, &random, &how);
    CHECK_OK(hotbed_storage_erase(r.storage, 0, 16, l.device.keys, NULL, r.stream));
    for (int i = 0; i < 16; i++)
        (void)oracle_erase(r.model, 0, ((const uint64_t *)l.host.keys)[i]);
    test_ticket_step(&l, &random, &how);
    for (uint32_t t = 1; t < 3; t++) {
        CHECK_OK(hotbed_storage_clear(r.storage, t, r.stream));
        oracle_clear(r.model, t);
    }
    fixture_check(&r);
    test_ticket_step(&l, &random, &how);
    fixture_check(&r);
    fixture_close(&r);
}

/* --- a storage is copied, as a checkpoint does ---------------------------------------------- */

static void move_table(
    fixture *from, fixture *to, uint32_t table, uint64_t n, const uint64_t *keys) {
    const oracle_table *m = &from->model->tables[table];
    hotbed_rows rows = {
        .weights = fixture_alloc(from, n * m->options.dim * sizeof(float)),
        .states =
            {fixture_alloc(from, n * m->state_bytes[0]),
             fixture_alloc(from, n * m->state_bytes[1])},
        .scores = fixture_alloc(from, n * sizeof(uint64_t))};
    if (m->options.kind == HOTBED_TABLE_STATIC)
        rows.scores = NULL;
    const uint64_t *device = fixture_copy(from, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_get_rows(from->storage, table, n, device, &rows, NULL, from->stream));
    CHECK_OK(hotbed_stream_sync(from->stream));
    CHECK_OK(hotbed_storage_set_rows(to->storage, table, n, device, &rows, to->stream));
    CHECK_OK(hotbed_stream_sync(to->stream));
}

static void a_moved_storage_trains_on_with_the_same_bytes(hotbed_backend backend) {
    setup s;
    fixture r, moved;
    test_ticket l;
    rng random = rng_start(24);
    three_tables(&s, HOTBED_OPT_ADAM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 48, 16);
    const batch_shape how = {.batch_size = 16, .key_space = 40};
    for (int i = 0; i < 5; i++)
        test_ticket_step(&l, &random, &how);
    s.tables[0].capacity = 5000; /* rows get other slots */
    fixture_open_bare(&moved, backend, &s.options);
    for (uint32_t t = 0; t < 3; t++) {
        uint64_t keys[2000], n = 0;
        CHECK_OK(hotbed_storage_export_keys(r.storage, t, 2000, keys, NULL, &n, r.stream));
        move_table(&r, &moved, t, n, keys);
    }
    hotbed_storage_state state = {.size = sizeof state};
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    CHECK_OK(hotbed_storage_set_state(moved.storage, &state, moved.stream));
    for (uint32_t t = 0; t < 3; t++) /* statistics are not copied */
        memset(&r.model->tables[t].stats, 0, sizeof r.model->tables[t].stats);
    /* From here on the moved storage is compared with the model. */
    hotbed_ticket_destroy(l.ticket);
    hotbed_storage *old = r.storage;
    r.storage = moved.storage;
    moved.storage = old;
    CHECK_OK(hotbed_ticket_create(r.storage, 48, 16, r.stream, &l.ticket));
    fixture_check(&r);
    for (int i = 0; i < 4; i++)
        test_ticket_step(&l, &random, &how);
    fixture_check(&r);
    fixture_close(&r);
    fixture_close(&moved);
}

static void the_state_of_a_storage_can_be_read_and_set(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_storage_state state = {.size = sizeof state};
    const hotbed_storage_state other = {
        .size = sizeof other,
        .optimizer_steps = 12345678901U,
        .clock = 98765432109U,
        .beta1_power = 0.25,
        .beta2_power = 0.5,
        .learning_rate = 0.0625F,
    };
    three_tables(&s, HOTBED_OPT_ADAM);
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    CHECK_EQ(state.optimizer_steps, 0);
    CHECK_EQ(state.clock, 0);
    CHECK(state.beta1_power == 1.0 && state.beta2_power == 1.0);
    CHECK(state.learning_rate == 0.125F);
    CHECK_OK(hotbed_storage_set_state(r.storage, &other, r.stream));
    CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
    CHECK_EQ(state.optimizer_steps, other.optimizer_steps);
    CHECK_EQ(state.clock, other.clock);
    CHECK(state.beta1_power == 0.25 && state.beta2_power == 0.5);
    CHECK(state.learning_rate == 0.0625F);
    fixture_close(&r);
}

/* Calls with so many rows that the library splits the work. */
static void calls_may_have_many_rows(hotbed_backend backend) {
    enum { N = 30000 };
    setup s;
    fixture r;
    setup_start(&s, 1, 3, N);
    s.options.optimizer.kind = HOTBED_OPT_ROWWISE_ADAGRAD;
    fixture_open_bare(&r, backend, &s.options);
    uint64_t *keys = calloc(N, sizeof *keys);
    float *weights = calloc(N, 3 * sizeof *weights), *seen = calloc(N, 3 * sizeof *seen);
    CHECK(keys != NULL && weights != NULL && seen != NULL);
    for (uint64_t i = 0; i < N; i++)
        keys[i] = i * i;
    for (int i = 0; i < N * 3; i++)
        weights[i] = (float)i;
    hotbed_rows rows = {.weights = fixture_copy(&r, weights, N * 3 * sizeof *weights)};
    const uint64_t *device = fixture_copy(&r, keys, N * sizeof *keys);
    CHECK_OK(hotbed_storage_set_rows(r.storage, 0, N, device, &rows, r.stream));
    rows.weights = fixture_alloc(&r, N * 3 * sizeof *weights);
    CHECK_OK(hotbed_storage_get_rows(r.storage, 0, N, device, &rows, NULL, r.stream));
    fixture_download(&r, seen, rows.weights, N * 3 * sizeof *seen);
    CHECK_BYTES(seen, weights, N * 3 * sizeof *seen);
    CHECK_EQ(fixture_size(&r, 0), N);
    free(keys);
    free(weights);
    free(seen);
    fixture_close(&r);
}

/* --- a key twice ------------------------------------------------------------------------------ */

typedef hotbed_status set_call(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream);

/* set_rows() or offer_rows() of a table with a key at two or three positions: nothing is set, and the fault has the key
 * and its first two positions, whatever the threads do. */
static void a_key_twice(fixture *r, uint32_t table, set_call *call) {
    enum { N = 5000 };
    static const uint64_t cases[][3] = {
        {0, 1, 1}, {0, N - 1, N - 1}, {17, 2300, 4000}, {N - 2, N - 1, N - 1}};
    uint64_t keys[N];
    float weights[N], seen[N] = {0};
    uint8_t found[N];
    rng random = rng_start(40);
    for (uint64_t i = 0; i < N; i++)
        weights[i] = (float)i;
    const uint64_t before = fixture_size(r, table);
    hotbed_rows rows = {.weights = fixture_copy(r, weights, sizeof weights)};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char text[128];
        for (uint64_t i = 0; i < N; i++)
            keys[i] = r->model->tables[table].options.kind == HOTBED_TABLE_STATIC
                          ? N - 1 - i
                          : rng_next(&random);
        const uint64_t key = keys[cases[c][1]] = keys[cases[c][2]] = keys[cases[c][0]];
        uint64_t *device = fixture_copy(r, keys, sizeof keys);
        CHECK_OK(call(r->storage, table, N, device, &rows, r->stream));
        CHECK_STATUS(hotbed_stream_sync(r->stream), HOTBED_ERR_ARGUMENT);
        if (hotbed_storage_key_type(r->storage) == HOTBED_KEY_I64)
            snprintf(text, sizeof text, "table table-%u: key %" PRId64, table, (int64_t)key);
        else
            snprintf(text, sizeof text, "table table-%u: key %" PRIu64, table, key);
        CHECK(strstr(hotbed_last_error(), text) != NULL);
        snprintf(
            text, sizeof text, "at positions %" PRIu64 " and %" PRIu64 " ", cases[c][0],
            cases[c][1]);
        CHECK(strstr(hotbed_last_error(), text) != NULL);
        CHECK_EQ(fixture_size(r, table), before);
        hotbed_rows out = {.weights = fixture_copy(r, seen, sizeof seen)};
        uint8_t *flags = fixture_alloc(r, sizeof found);
        CHECK_OK(hotbed_storage_get_rows(r->storage, table, N, device, &out, flags, r->stream));
        fixture_download(r, seen, out.weights, sizeof seen);
        fixture_download(r, found, flags, sizeof found);
        for (uint64_t i = 0; i < N; i++)
            CHECK(found[i] == 0 || seen[i] < 1.0F); /* the initial value of a static table's row */
    }
    /* the storage is usable, and remembers nothing of the fault */
    for (uint64_t i = 0; i < N; i++)
        keys[i] = i;
    CHECK_OK(call(r->storage, table, N, fixture_copy(r, keys, sizeof keys), &rows, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
    CHECK_EQ(fixture_size(r, table), N);
}

static void a_call_with_a_key_twice_sets_nothing(hotbed_backend backend) {
    static set_call *const calls[] = {hotbed_storage_set_rows, hotbed_storage_offer_rows};
    for (int i = 0; i < 2; i++) {
        setup s;
        fixture r;
        setup_start(&s, 3, 1, 5000);
        s.tables[1].kind = HOTBED_TABLE_STATIC;
        s.tables[2].evict = HOTBED_EVICT_LOWEST;
        s.tables[2].capacity = 8000; /* all keys of a call fit */
        if (getenv("HOTBED_TEST_MODE") != NULL &&
            strcmp(getenv("HOTBED_TEST_MODE"), "external") == 0)
            s.tables[2].evict = HOTBED_EVICT_NEVER;
        fixture_open(&r, backend, &s.options);
        for (uint32_t t = 0; t < 3; t++)
            a_key_twice(&r, t, calls[i]);
        fixture_close(&r);
    }
}

/* One of the counts would be lost, or the key would be counted apart from itself. */
static void imported_counts_are_of_distinct_keys(hotbed_backend backend) {
    setup s;
    fixture r;
    uint64_t keys[3] = {5, 6, 5}, counts[3] = {1, 2, 3}, n = 0;
    setup_start(&s, 1, 1, 100);
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s.tables[0].admission_threshold = 10;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_import_counts(
        r.storage, 0, 3, fixture_copy(&r, keys, sizeof keys),
        fixture_copy(&r, counts, sizeof counts), r.stream));
    CHECK_STATUS(hotbed_stream_sync(r.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "key 5 occurs twice, at positions 0 and 2") != NULL);
    CHECK_FIELDS(
            .cause = HOTBED_CAUSE_KEY_TWICE,
            .has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT,
            .table = "table-0", .key = 5, .key_type = HOTBED_KEY_I64, .limit = 0, .value = 2);
    CHECK_OK(hotbed_storage_export_counts(r.storage, 0, 0, NULL, NULL, &n, r.stream));
    CHECK_EQ(n, 0);
    fixture_close(&r);
}

/* --- admission -------------------------------------------------------------------------------- */

/* Admission counts only keys without rows. */
static void admission_does_not_count_keys_that_are_set(hotbed_backend backend) {
    enum { KEYS = 40 };
    setup s;
    fixture r;
    uint64_t keys[KEYS], counted[KEYS], counts[KEYS], n = 0;
    setup_start(&s, 1, 2, 1000);
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s.tables[0].admission_threshold = 10;
    fixture_open_bare(&r, backend, &s.options);
    for (uint64_t i = 0; i < KEYS; i++)
        keys[i] = i << 50, counts[i] = i + 1;
    const uint64_t *device = fixture_copy(&r, keys, sizeof keys);
    const uint64_t *device_counts = fixture_copy(&r, counts, sizeof counts);
    CHECK_OK(hotbed_storage_import_counts(r.storage, 0, KEYS, device, device_counts, r.stream));
    CHECK_OK(hotbed_storage_set_rows(r.storage, 0, KEYS / 2, device, NULL, r.stream));
    CHECK_OK(hotbed_storage_export_counts(r.storage, 0, KEYS, counted, counts, &n, r.stream));
    CHECK_EQ(n, KEYS / 2);
    for (uint64_t i = 0; i < n; i++)
        CHECK(counted[i] >> 50 >= KEYS / 2 && counts[i] == (counted[i] >> 50) + 1);
    CHECK_EQ(fixture_size(&r, 0), KEYS / 2);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(random_operations_without_state)},
    {TEST(random_operations_with_two_states)},
    {TEST(random_operations_with_a_narrow_state)},
    {TEST(erased_slots_are_used_again)},
    {TEST(erase_keeps_the_other_keys)},
    {TEST(pinned_keys_are_not_erased)},
    {TEST(erased_rows_come_back_with_initial_values)},
    {TEST(a_moved_storage_trains_on_with_the_same_bytes)},
    {TEST(the_state_of_a_storage_can_be_read_and_set)},
    {TEST(calls_may_have_many_rows)},
    {TEST(a_call_with_a_key_twice_sets_nothing)},
    {TEST(imported_counts_are_of_distinct_keys)},
    {TEST(admission_does_not_count_keys_that_are_set)},
    {NULL, NULL},
};
