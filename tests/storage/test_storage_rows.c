/* tests/storage/test_storage_rows.c - calls by key: get_rows, set_rows, offer_rows, erase, clear, export, state.
 *
 * Random calls on three tables are compared with the model.  Other tests fill and empty tables, move a storage to
 * another one, and set more rows than a table can hold.
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
    float weights[N], seen[N];
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
        hotbed_rows out = {.weights = fixture_alloc(r, sizeof seen)};
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

/* --- tables that evict ----------------------------------------------------------------------- */

enum { FULL_OF = 3000, CALL = 96 };

/* A full table that evicts; all rows are 7 and all scores equal. */
typedef struct full_table {
    fixture r;
    rng random;
    uint64_t keys[FULL_OF];
    uint64_t *device; /* [FULL_OF] keys of a call */
    float *weights;   /* [FULL_OF] */
    uint8_t *found;   /* [FULL_OF] */
} full_table;

static void full_open(full_table *f, hotbed_backend backend, uint64_t capacity, uint64_t score) {
    setup s;
    f->random = rng_start(30);
    setup_start(&s, 1, 1, capacity);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    fixture_open_bare(&f->r, backend, &s.options);
    f->device = fixture_alloc(&f->r, sizeof f->keys);
    f->weights = fixture_alloc(&f->r, FULL_OF * sizeof *f->weights);
    f->found = fixture_alloc(&f->r, FULL_OF);
    float sevens[FULL_OF];
    uint64_t scores[FULL_OF];
    for (int i = 0; i < FULL_OF; i++) {
        f->keys[i] = rng_next(&f->random);
        sevens[i] = 7.0F;
        scores[i] = score;
    }
    const hotbed_rows rows = {
        .weights = fixture_copy(&f->r, sevens, sizeof sevens),
        .scores = fixture_copy(&f->r, scores, sizeof scores)};
    fixture_upload(&f->r, f->device, f->keys, sizeof f->keys);
    CHECK_OK(hotbed_storage_offer_rows(f->r.storage, 0, FULL_OF, f->device, &rows, f->r.stream));
    CHECK_OK(hotbed_stream_sync(f->r.stream));
    CHECK(fixture_size(&f->r, 0) < FULL_OF); /* the table is full */
}

/* Read which of n keys the table has, and their rows. */
static void full_read(
    full_table *f, uint64_t n, const uint64_t *keys, uint8_t *found, float *weights) {
    const hotbed_rows rows = {.weights = f->weights};
    fixture_upload(&f->r, f->device, keys, n * sizeof *keys);
    CHECK_OK(hotbed_fill(f->weights, 0, n * sizeof *weights, f->r.stream)); /* of absent keys */
    CHECK_OK(hotbed_storage_get_rows(f->r.storage, 0, n, f->device, &rows, f->found, f->r.stream));
    fixture_download(&f->r, found, f->found, n);
    fixture_download(&f->r, weights, f->weights, n * sizeof *weights);
}

static uint64_t full_evictions(full_table *f) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(f->r.storage, 0, &stats, f->r.stream));
    return stats.evictions;
}

/* All keys of the call, present and new, have the lowest scores of the table.  Only the rule that a call does not
 * evict its own keys protects them. */
static void a_call_does_not_evict_its_own_keys(hotbed_backend backend) {
    full_table f;
    uint64_t keys[CALL], scores[CALL], present = 0;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    full_open(&f, backend, 1000, 1000);
    for (int round = 0; round < 8; round++) {
        full_read(&f, FULL_OF, f.keys, found, weights);
        present = 0;
        for (uint64_t i = 0; i < FULL_OF && present < CALL / 2; i++)
            if (found[i] == 1 && i % 3 == (uint64_t)round % 3)
                keys[present++] = f.keys[i];
        for (uint64_t i = present; i < CALL; i++)
            keys[i] = rng_next(&f.random);
        for (uint64_t i = 0; i < CALL; i++)
            scores[i] = 1;
        uint64_t before = fixture_size(&f.r, 0), evicted = full_evictions(&f);
        const hotbed_rows rows = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
        fixture_upload(&f.r, f.device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, CALL, f.device, &rows, f.r.stream));
        CHECK_OK(hotbed_stream_sync(f.r.stream));
        full_read(&f, CALL, keys, found, weights);
        for (uint64_t i = 0; i < CALL; i++) {
            CHECK_EQ(found[i], 1);
            /* the old row, or a new one */
            CHECK(i < present ? weights[i] == 7.0F : weights[i] != 7.0F);
        }
        CHECK_EQ(full_evictions(&f) - evicted, before + CALL - present - fixture_size(&f.r, 0));
        for (uint64_t i = 0; i < CALL; i++) /* scores for the next round */
            scores[i] = 1000;
        const hotbed_rows again = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
        fixture_upload(&f.r, f.device, keys, sizeof keys);
        CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, CALL, f.device, &again, f.r.stream));
    }
    CHECK_EQ(fixture_pinned(&f.r), 0);
    fixture_close(&f.r);
}

/* set_rows with more keys than slots: keys without a slot are a fault, and the others keep their rows. */
static void keys_that_do_not_fit_are_faults(hotbed_backend backend) {
    full_table f;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    hotbed_table_info info = {.size = sizeof info};
    full_open(&f, backend, 200, 5);
    for (int i = 0; i < FULL_OF; i++)
        f.keys[i] = rng_next(&f.random);
    const hotbed_rows nothing = {0};
    fixture_upload(&f.r, f.device, f.keys, sizeof f.keys);
    CHECK_OK(hotbed_storage_set_rows(f.r.storage, 0, FULL_OF, f.device, &nothing, f.r.stream));
    CHECK_STATUS(hotbed_stream_sync(f.r.stream), HOTBED_ERR_FULL);
    CHECK_EQ(fixture_pinned(&f.r), 0);
    uint64_t size = fixture_size(&f.r, 0), kept = 0;
    full_read(&f, FULL_OF, f.keys, found, weights);
    for (int i = 0; i < FULL_OF; i++)
        kept += found[i] == 1;
    CHECK_OK(hotbed_storage_table(f.r.storage, 0, &info));
    CHECK(kept <= info.slots + info.lower_slots && kept + kept / 8 >= info.capacity);
    CHECK(kept <= size);
    fixture_close(&f.r);
}

/* offer_rows with the same keys: no fault, and all rows of the table are of the higher half of scores. */
static void offered_rows_are_kept_by_score(hotbed_backend backend) {
    full_table f;
    uint8_t found[FULL_OF];
    float weights[FULL_OF];
    uint64_t scores[FULL_OF];
    full_open(&f, backend, 300, 5);
    CHECK_OK(hotbed_storage_clear(f.r.storage, 0, f.r.stream));
    for (uint64_t i = 0; i < FULL_OF; i++) /* not in the order of keys or slots */
        scores[i] = 1 + i * 7 % FULL_OF;
    const hotbed_rows rows = {.scores = fixture_copy(&f.r, scores, sizeof scores)};
    fixture_upload(&f.r, f.device, f.keys, sizeof f.keys);
    uint64_t evicted = full_evictions(&f);
    CHECK_OK(hotbed_storage_offer_rows(f.r.storage, 0, FULL_OF, f.device, &rows, f.r.stream));
    CHECK_OK(hotbed_stream_sync(f.r.stream));
    full_read(&f, FULL_OF, f.keys, found, weights);
    uint64_t size = fixture_size(&f.r, 0), high = 0;
    for (uint64_t i = 0; i < FULL_OF; i++)
        high += found[i] == 1 && scores[i] > FULL_OF / 2;
    /* Each key evicts at most one. */
    CHECK(full_evictions(&f) > evicted && full_evictions(&f) <= evicted + FULL_OF);
    /* In mode DEFAULT, the first rows stay in the upper tier, whatever their scores. */
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(f.r.storage, 0, &info));
    bool apart = hotbed_storage_mode(f.r.storage) == HOTBED_MODE_DEFAULT;
    CHECK(high >= size - (apart ? info.slots : 0));
    CHECK_EQ(fixture_pinned(&f.r), 0);
    fixture_close(&f.r);
}

/* Tables with these options are not over an external store, where they have no size. */
static void without_store(setup *s) {
    const char *mode = getenv("HOTBED_TEST_MODE");
    if (mode != NULL && strcmp(mode, "external") == 0)
        s->options.mode = HOTBED_MODE_HBM_DIRECT;
}

/* Slots of table 0 that can have a row of their own. */
static uint64_t full_slots(fixture *r) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->storage, 0, &info));
    uint64_t slots = info.lower_slots;
    if (hotbed_storage_mode(r->storage) != HOTBED_MODE_CACHE)
        slots += info.slots;
    for (uint32_t g = 0; g < info.segments; g++) {
        hotbed_segment_info segment = {.size = sizeof segment};
        CHECK_OK(hotbed_storage_segment(r->storage, 0, g, &segment));
        slots += segment.slots;
    }
    return slots;
}

/* A table takes as many rows as it has slots, so the rows of a full table fit into another one. */
static void full_tables_are_filled_again(hotbed_backend backend) {
    enum { MOST = 3000 };
    for (int way = 0; way < 4; way++) {
        const bool evicts = way % 2 == 0, grown = way >= 2;
        setup s;
        fixture r[2];
        static uint64_t keys[MOST], scores[MOST];
        static float weights[2][2 * MOST], moments[2][2 * MOST];
        uint8_t found[MOST];
        rng random = rng_start((uint64_t)way);
        setup_start(&s, 1, 2, grown ? 200 : 1000);
        s.tables[0].score = HOTBED_SCORE_CUSTOM;
        s.tables[0].evict = evicts ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER;
        s.tables[0].max_capacity = grown ? 1000 : 0;
        without_store(&s);
        s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
        uint64_t n = MOST;
        for (int copy = 0; copy < 2; copy++) {
            fixture *f = &r[copy];
            fixture_open_bare(f, backend, &s.options);
            /* in three steps; or in one, after which the table has fewer slots */
            const uint64_t first_step = copy == 0 || evicts ? 400 : 1000;
            for (uint64_t capacity = first_step; grown && capacity <= 1000; capacity += 300)
                CHECK_OK(hotbed_storage_grow(f->storage, 0, capacity, f->stream));
            for (uint64_t i = 0; i < MOST && copy == 0; i++) {
                keys[i] = rng_next(&random);
                scores[i] = 1 + rng_below(&random, 100);
                for (uint64_t e = 0; e < 2; e++) {
                    weights[0][2 * i + e] = rng_float(&random);
                    moments[0][2 * i + e] = rng_float(&random);
                }
            }
            const uint64_t *device = fixture_copy(f, keys, sizeof keys);
            hotbed_rows rows = {
                .weights = fixture_copy(f, weights[0], sizeof weights[0]),
                .states = {fixture_copy(f, moments[0], sizeof moments[0])},
                .scores = fixture_copy(f, scores, sizeof scores)};
            for (uint64_t first = 0; first < n; first += 700) { /* several calls */
                hotbed_rows some = {
                    .weights = (float *)rows.weights + 2 * first,
                    .states = {(float *)rows.states[0] + 2 * first},
                    .scores = rows.scores + first};
                const uint64_t count = n - first < 700 ? n - first : 700;
                /* set_rows() does not grow the table */
                CHECK_OK(
                    copy == 0 && grown && !evicts
                        ? hotbed_storage_set_rows(
                              f->storage, 0, count, device + first, &some, f->stream)
                        : hotbed_storage_offer_rows(
                              f->storage, 0, count, device + first, &some, f->stream));
            }
            const hotbed_status fault = hotbed_stream_sync(f->stream);
            CHECK(fault == HOTBED_OK || (copy == 0 && !evicts && fault == HOTBED_ERR_FULL));
            uint8_t *flags = fixture_alloc(f, MOST);
            rows.scores = NULL;
            if (copy == 1) {
                CHECK_EQ(fixture_size(f, 0), n);
                CHECK_OK(
                    hotbed_storage_get_rows(f->storage, 0, n, device, &rows, flags, f->stream));
                fixture_download(f, found, flags, n);
                fixture_download(f, weights[1], rows.weights, 2 * n * sizeof(float));
                fixture_download(f, moments[1], rows.states[0], 2 * n * sizeof(float));
                for (uint64_t i = 0; i < n; i++)
                    CHECK_EQ(found[i], 1);
                CHECK_BYTES(weights[1], weights[0], 2 * n * sizeof(float));
                CHECK_BYTES(moments[1], moments[0], 2 * n * sizeof(float));
                continue;
            }
            CHECK_OK(hotbed_storage_export_keys(f->storage, 0, MOST, keys, scores, &n, f->stream));
            const uint64_t slots = full_slots(f);
            CHECK(evicts || !grown ? n == slots : n <= slots && n > slots - slots / 50);
            fixture_upload(f, (void *)device, keys, n * sizeof *keys);
            CHECK_OK(hotbed_storage_get_rows(f->storage, 0, n, device, &rows, NULL, f->stream));
            fixture_download(f, weights[0], rows.weights, 2 * n * sizeof(float));
            fixture_download(f, moments[0], rows.states[0], 2 * n * sizeof(float));
        }
        fixture_close(&r[0]);
        fixture_close(&r[1]);
    }
}

/* The same for so many rows that a few find their candidates occupied long before the table is full. The second table
 * gets the rows in the order of the first one's slots. */
static void large_tables_are_filled_again(hotbed_backend backend) {
    enum { N = 1 << 20, AT_ONCE = 1 << 13 };
    setup s;
    rng random = rng_start(31);
    setup_start(&s, 1, 1, hotbed_test_is_small() ? N / 16 : N);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    without_store(&s);
    uint64_t *keys = NULL, n = 0;
    for (int copy = 0; copy < 2; copy++) {
        fixture r;
        hotbed_table_stats stats = {.size = sizeof stats};
        fixture_open_bare(&r, backend, &s.options);
        const uint64_t slots = full_slots(&r);
        if (copy == 0) {
            n = slots + slots / 8;
            keys = calloc(n, sizeof *keys);
            CHECK(keys != NULL);
            for (uint64_t i = 0; i < n; i++)
                keys[i] = rng_next(&random);
        }
        const uint64_t *device = fixture_copy(&r, keys, n * sizeof *keys);
        for (uint64_t first = 0; first < n; first += AT_ONCE) {
            const uint64_t count = n - first < AT_ONCE ? n - first : AT_ONCE;
            CHECK_OK(
                hotbed_storage_offer_rows(r.storage, 0, count, device + first, NULL, r.stream));
        }
        CHECK_OK(hotbed_stream_sync(r.stream));
        CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        CHECK_EQ(stats.evictions, 0);
        /* Where rows move between tiers, the table has regions, and a few rows cannot leave a full one. */
        const char *mode = getenv("HOTBED_TEST_MODE");
        const bool moves =
            mode != NULL && (strncmp(mode, "cache", 5) == 0 || strncmp(mode, "score", 5) == 0);
        const uint64_t size = fixture_size(&r, 0), wanted = copy == 0 ? slots : n;
        CHECK(size == wanted || (moves && size > wanted - wanted / 1000));
        CHECK_OK(hotbed_storage_export_keys(r.storage, 0, n, keys, NULL, &n, r.stream));
        fixture_close(&r);
    }
    free(keys);
}

/* A call that finds the table full ends the searches for free slots, but not if a recorded graph erases keys. */
static void slots_freed_by_a_graph_are_filled(hotbed_backend backend) {
    enum { ERASED = 64, MOST = 8000 };
    static uint64_t keys[MOST], scores[MOST];
    setup s;
    fixture r;
    hotbed_graph *graph = NULL;
    rng random = rng_start(33);
    setup_start(&s, 1, 1, 4000);
    s.options.mode = HOTBED_MODE_HBM_DIRECT;
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    fixture_open_bare(&r, backend, &s.options);
    const uint64_t slots = full_slots(&r);
    CHECK(slots + 2 * ERASED <= MOST);
    for (uint64_t i = 0; i < MOST; i++) {
        keys[i] = rng_next(&random);
        scores[i] = i < slots ? 100 : 1;
    }
    const uint64_t *device = fixture_copy(&r, keys, sizeof keys);
    hotbed_rows rows = {.scores = fixture_copy(&r, scores, sizeof scores)};
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_erase(r.storage, 0, ERASED, device, NULL, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, slots + ERASED, device, &rows, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots);
    CHECK_OK(hotbed_graph_launch(graph, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots - ERASED);
    rows.scores += slots + ERASED;
    CHECK_OK(
        hotbed_storage_offer_rows(r.storage, 0, ERASED, device + slots + ERASED, &rows, r.stream));
    CHECK_EQ(fixture_size(&r, 0), slots);
    CHECK_OK(hotbed_stream_sync(r.stream));
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

/* A table that does not evict takes a few rows beyond its last slot, also if a call ends with it: it grows. */
static void full_tables_grow_a_little(hotbed_backend backend) {
    enum { AT_ONCE = 100, MANY = 600, MORE = 200 };
    setup s;
    fixture r;
    rng random = rng_start(32);
    setup_start(&s, 1, 1, 20000);
    s.tables[0].max_capacity = 21000;
    without_store(&s);
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_grow(r.storage, 0, 21000, r.stream));
    uint64_t slots = full_slots(&r), set = 0, keys[MANY];
    uint64_t *device = fixture_alloc(&r, 2 * sizeof keys);
    const char *mode = getenv("HOTBED_TEST_MODE"); /* by hash the upper tier does not grow */
    const bool by_hash = mode != NULL && strncmp(mode, "hash", 4) == 0;
    while (set < slots + MORE + MANY) {
        const uint64_t most = set < slots + MORE ? AT_ONCE : MANY,
                       n = set < slots && slots - set < most ? slots - set : most;
        for (uint64_t i = 0; i < n; i++)
            keys[i] = rng_next(&random);
        fixture_upload(&r, device, keys, n * sizeof *keys);
        CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, n, device, NULL, r.stream));
        set += n;
        const hotbed_status status = hotbed_stream_sync(r.stream);
        if (status == HOTBED_OK)
            continue;
        CHECK(by_hash); /* the upper tier is full */
        CHECK_EQ(status, HOTBED_ERR_FULL);
        uint8_t found[MANY], *flags = (uint8_t *)(device + MANY);
        CHECK_OK(hotbed_storage_get_rows(r.storage, 0, n, device, NULL, flags, r.stream));
        fixture_download(&r, found, flags, n);
        for (uint64_t i = 0; i < n; i++)
            CHECK(found[i] == 1 || !hotbed_hashed_below(&r.storage->tables[0].view, keys[i]));
    }
    if (!by_hash)
        CHECK_EQ(fixture_size(&r, 0), set);
    fixture_close(&r);
}

/* Offer n keys, move those that have rows afterwards to the front, and return their number. */
static uint64_t offer_keys(fixture *r, uint64_t *device, uint64_t *keys, uint64_t n) {
    static uint8_t found[4096];
    uint64_t count = 0;
    fixture_upload(r, device, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_offer_rows(r->storage, 0, n, device, NULL, r->stream));
    (void)!hotbed_stream_sync(r->stream); /* FULL */
    uint8_t *flags = (uint8_t *)(device + n);
    CHECK_OK(hotbed_storage_get_rows(r->storage, 0, n, device, NULL, flags, r->stream));
    fixture_download(r, found, flags, n);
    for (uint64_t i = 0; i < n; i++)
        if (found[i] != 0)
            keys[count++] = keys[i];
    return count;
}

/* However many calls offer rows beyond max_capacity, a table of the same options takes all of them
 * at once, as a load does. */
static void rows_beyond_max_capacity_fit_into_a_table_of_the_same_options(hotbed_backend backend) {
    static const uint64_t some[] = {1952, 154, 262, 632};
    static uint64_t keys[4096];
    for (int round = 0; round < 2; round++) { /* a few large calls, and many small ones */
        setup s;
        fixture r, again;
        setup_start(&s, 1, 1, 250);
        s.tables[0].max_capacity = 1000;
        without_store(&s);
        fixture_open_bare(&r, backend, &s.options);
        fixture_open_bare(&again, backend, &s.options);
        uint64_t *device = fixture_alloc(&r, 4096 * 9);
        uint64_t *other = fixture_alloc(&again, 4096 * 9);
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 500, r.stream));
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 1000, r.stream));
        uint64_t rows = 0;
        for (uint64_t i = 0, at = 0; at < 3000; i++) {
            const uint64_t n = round == 0 ? some[i] : 100;
            for (uint64_t k = 0; k < n; k++)
                keys[rows + k] = at + k;
            rows += offer_keys(&r, device, keys + rows, n);
            at += n;
        }
        CHECK(rows > 1000);
        CHECK_EQ(fixture_size(&r, 0), rows);
        for (uint64_t k = rows - 1; k > 0; k--) { /* a load has an order of its own */
            const uint64_t j = hotbed_test_below(k + 1), key = keys[k];
            keys[k] = keys[j];
            keys[j] = key;
        }
        CHECK_OK(hotbed_growth_reserve(again.storage, 0, rows, again.stream));
        CHECK_EQ(offer_keys(&again, other, keys, rows), rows);
        fixture_close(&r);
        fixture_close(&again);
    }
}

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
    {TEST(a_call_does_not_evict_its_own_keys)},
    {TEST(keys_that_do_not_fit_are_faults)},
    {TEST(offered_rows_are_kept_by_score)},
    {TEST(full_tables_are_filled_again)},
    {TEST(full_tables_grow_a_little)},
    {TEST(large_tables_are_filled_again)},
    {TEST(slots_freed_by_a_graph_are_filled)},
    {TEST(rows_beyond_max_capacity_fit_into_a_table_of_the_same_options)},
    {TEST(admission_does_not_count_keys_that_are_set)},
    {NULL, NULL},
};
