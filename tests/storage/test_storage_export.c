/* tests/storage/test_storage_export.c - hotbed_storage_export(), against the model.
 *
 * Whole tables are exported through windows of several sizes: each key once, with the model's row, states and score,
 * in the order of slots, and nothing is written beyond the exported keys.
 */
#include "hotbed/export.h"
#include "tests/storage/fixture.h"

#include <stdlib.h>

enum { MAX_DIM = 17, GUARD = 0x5A };

/* A storage, arrays for a window of slots in device or pinned memory, and all keys exported so far. */
typedef struct export_fixture {
    fixture r;
    hotbed_stream *stream;
    hotbed_memory_kind kind;
    uint64_t window;
    hotbed_memory keys, weights, states[2], scores, count;
    uint64_t n; /* keys exported so far; they are in the host arrays below, [most] */
    uint64_t most;
    uint64_t *all_keys, *all_scores;
    char *all_weights;
    float *all_states[2];
} export_fixture;

static void three_tables(setup *s, hotbed_optimizer_kind kind) {
    setup_start(s, 3, 1, 700);
    static const uint32_t dims[] = {3, MAX_DIM, 6};
    for (uint32_t t = 0; t < 3; t++) {
        s->tables[t].dim = dims[t];
        s->tables[t].dtype = (hotbed_dtype)(1 + (kind + t) % HOTBED_DTYPE_LAST);
        s->tables[t].state_dtype = (kind + t) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
    }
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 50;
    s->options.optimizer.kind = kind;
}

static void alloc(export_fixture *d, uint64_t bytes, hotbed_memory *memory) {
    CHECK_OK(hotbed_memory_alloc(d->stream, d->kind, bytes, NULL, memory));
    CHECK_OK(hotbed_fill(memory->data, GUARD, bytes, d->stream));
}

static void export_open(
    export_fixture *d, hotbed_memory_kind kind, uint64_t window, uint64_t most) {
    d->stream = d->r.stream;
    d->kind = kind;
    d->window = window;
    alloc(d, window * sizeof(uint64_t), &d->keys);
    alloc(d, window * MAX_DIM * 4, &d->weights);
    alloc(d, window * MAX_DIM * 4, &d->states[0]);
    alloc(d, window * MAX_DIM * 4, &d->states[1]);
    alloc(d, window * sizeof(uint64_t), &d->scores);
    alloc(d, sizeof(uint64_t), &d->count);
    d->n = 0;
    d->most = most;
    d->all_keys = calloc(most, sizeof(uint64_t));
    d->all_scores = calloc(most, sizeof(uint64_t));
    d->all_weights = calloc(most, MAX_DIM * 4);
    d->all_states[0] = calloc(most, MAX_DIM * 4);
    d->all_states[1] = calloc(most, MAX_DIM * 4);
    CHECK(d->all_keys != NULL && d->all_scores != NULL && d->all_weights != NULL);
    CHECK(d->all_states[0] != NULL && d->all_states[1] != NULL);
}

static void export_close(export_fixture *d) {
    CHECK_OK(hotbed_stream_sync(d->stream));
    hotbed_memory_free(&d->keys);
    hotbed_memory_free(&d->weights);
    hotbed_memory_free(&d->states[0]);
    hotbed_memory_free(&d->states[1]);
    hotbed_memory_free(&d->scores);
    hotbed_memory_free(&d->count);
    free(d->all_keys);
    free(d->all_scores);
    free(d->all_weights);
    free(d->all_states[0]);
    free(d->all_states[1]);
}

/* An export of all parts of d->window slots from `first` on. */
static hotbed_export batch_of(const export_fixture *d, uint32_t table, uint64_t first) {
    uint32_t states = hotbed_optimizer_states(hotbed_storage_optimizer(d->r.storage)->kind);
    hotbed_export e = {.size = sizeof e};
    e.table = table;
    e.first = first;
    e.slots = d->window;
    e.keys = d->keys.data;
    e.count = d->count.data;
    e.rows.weights = d->weights.data;
    e.rows.states[0] = states > 0 ? d->states[0].data : NULL;
    e.rows.states[1] = states > 1 ? d->states[1].data : NULL;
    e.rows.scores = d->scores.data;
    return e;
}

/* Copy n items of `bytes` to the host, and check that the memory behind them is unchanged. */
static void collect(
    export_fixture *d, void *to, const hotbed_memory *from, uint64_t n, uint64_t bytes) {
    unsigned char *image = malloc(d->window * bytes + 1);
    CHECK(image != NULL);
    fixture_download(&d->r, image, from->data, d->window * bytes);
    memcpy(to, image, n * bytes);
    for (uint64_t i = n * bytes; i < d->window * bytes; i++)
        CHECK_EQ(image[i], GUARD);
    CHECK_OK(hotbed_fill(from->data, GUARD, d->window * bytes, d->stream));
    free(image);
}

/* Export a window, and append its keys to those collected. */
static uint64_t run_batch(export_fixture *d, const hotbed_export *e) {
    hotbed_table_info info = {.size = sizeof info};
    uint64_t n = UINT64_MAX;
    CHECK_OK(hotbed_storage_table(d->r.storage, e->table, &info));
    CHECK_OK(hotbed_storage_export(d->r.storage, e, d->stream));
    fixture_download(&d->r, &n, d->count.data, sizeof n);
    CHECK(n <= e->slots && d->n + n <= d->most);
    const hotbed_optimizer_kind kind = hotbed_storage_optimizer(d->r.storage)->kind;
    uint64_t row = hotbed_dtype_row_bytes(info.dtype, info.dim);
    collect(d, d->all_keys + d->n, &d->keys, n, sizeof(uint64_t));
    collect(d, d->all_scores + d->n, &d->scores, n, sizeof(uint64_t));
    collect(d, d->all_weights + d->n * row, &d->weights, n, row);
    for (uint32_t s = 0; s < hotbed_optimizer_states(kind); s++) {
        const uint64_t state = hotbed_optimizer_state_dim(kind, s, info.dim) *
                               hotbed_dtype_bytes(info.state_dtypes[s]);
        collect(d, (char *)d->all_states[s] + d->n * state, &d->states[s], n, state);
    }
    d->n += n;
    return n;
}

static void run_all(export_fixture *d, uint32_t table) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(d->r.storage, table, &info));
    d->n = 0;
    for (uint64_t first = 0; first < info.slots + info.lower_slots; first += d->window) {
        const hotbed_export e = batch_of(d, table, first);
        (void)run_batch(d, &e);
    }
}

/* Check that the collected keys are the model's, each once, with its row. */
static void check_all(export_fixture *d, uint32_t table) {
    const oracle_table *m = &d->r.model->tables[table];
    const uint64_t size = hotbed_dtype_row_bytes(m->options.dtype, m->options.dim);
    bool hash = m->options.kind == HOTBED_TABLE_HASH;
    CHECK_EQ(d->n, m->size);
    for (uint64_t i = 0; i < d->n; i++) {
        oracle_row *row = oracle_find(d->r.model, table, d->all_keys[i]);
        CHECK(row != NULL);
        CHECK_EQ(row->pins, 0);
        row->pins = 1; /* seen */
        CHECK_EQ(d->all_scores[i], hash ? row->score : 0);
        uint8_t want[MAX_DIM * 4];
        oracle_row_get(m, row, want, 0);
        CHECK_BYTES(d->all_weights + i * size, want, size);
        for (uint32_t s = 0; s < hotbed_optimizer_states(d->r.model->options.optimizer.kind); s++) {
            oracle_state_get(m, row, s, want, 0);
            CHECK_BYTES((char *)d->all_states[s] + i * m->state_bytes[s], want, m->state_bytes[s]);
        }
    }
    for (uint64_t i = 0; i < d->n; i++)
        oracle_find(d->r.model, table, d->all_keys[i])->pins = 0;
}

static void whole_tables(
    hotbed_backend backend, hotbed_optimizer_kind kind, hotbed_memory_kind memory) {
    static const uint64_t windows[] = {1, 7, 31, 32, 33, 257, 5000};
    setup s;
    export_fixture d;
    test_ticket l;
    rng random = rng_start(30 + (uint64_t)kind);
    three_tables(&s, kind);
    fixture_open(&d.r, backend, &s.options);
    test_ticket_open(&d.r, &l, 96, 32);
    const batch_shape how = {.batch_size = 32, .key_space = 300, .extremes = true};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        if (windows[w] == 1 && backend != HOTBED_BACKEND_HOST)
            continue; /* too many synchronous copies */
        if (windows[w] < 33 && hotbed_test_is_small())
            continue; /* the same */
        for (int i = 0; i < 3; i++)
            test_ticket_step(&l, &random, &how);
        export_open(&d, memory, windows[w], 1000);
        for (uint32_t t = 0; t < 3; t++) {
            run_all(&d, t);
            check_all(&d, t);
        }
        export_close(&d);
    }
    fixture_close(&d.r);
}

static void whole_tables_are_exported_to_device_memory(hotbed_backend backend) {
    whole_tables(backend, HOTBED_OPT_ADAM, HOTBED_MEMORY_DEVICE);
}

static void whole_tables_are_exported_to_pinned_memory(hotbed_backend backend) {
    whole_tables(backend, HOTBED_OPT_ROWWISE_ADAGRAD, HOTBED_MEMORY_PINNED);
}

/* Open a storage of one table with the keys 1 .. n, whose scores are their squares. */
static void numbered(export_fixture *d, hotbed_backend backend, uint64_t n, uint64_t capacity) {
    setup s;
    uint64_t *keys = calloc(n, sizeof *keys), *scores = calloc(n, sizeof *scores);
    CHECK(keys != NULL && scores != NULL);
    setup_start(&s, 1, 2, capacity);
    s.tables[0].score = HOTBED_SCORE_CUSTOM;
    fixture_open_bare(&d->r, backend, &s.options);
    for (uint64_t i = 0; i < n; i++) {
        keys[i] = i + 1;
        scores[i] = keys[i] * keys[i];
    }
    const hotbed_rows rows = {.scores = fixture_copy(&d->r, scores, n * sizeof *scores)};
    const void *device = fixture_copy(&d->r, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_set_rows(d->r.storage, 0, n, device, &rows, d->r.stream));
    CHECK_OK(hotbed_stream_sync(d->r.stream));
    free(keys);
    free(scores);
}

/* The order of keys is the same with any window, and with a window of one slot it is the order of slots. */
static void keys_are_in_the_order_of_slots(hotbed_backend backend) {
    enum { N = 150 };
    export_fixture d;
    uint64_t order[N];
    numbered(&d, backend, N, N);
    export_open(&d, HOTBED_MEMORY_DEVICE, 1, N);
    run_all(&d, 0);
    CHECK_EQ(d.n, N);
    memcpy(order, d.all_keys, sizeof order);
    export_close(&d);
    for (uint64_t window = hotbed_test_is_small() ? 45 : 5; window < 500; window *= 3) {
        export_open(&d, HOTBED_MEMORY_DEVICE, window, N);
        run_all(&d, 0);
        CHECK_EQ(d.n, N);
        CHECK_BYTES(d.all_keys, order, sizeof order);
        export_close(&d);
    }
    fixture_close(&d.r);
}

static void only_keys_from_a_minimum_score_are_exported(hotbed_backend backend) {
    enum { N = 100 };
    static const uint64_t thresholds[] = {0, 1, 2, 50 * 50, 50 * 50 + 1, N * N, N * N + 1};
    export_fixture d;
    numbered(&d, backend, N, 200);
    export_open(&d, HOTBED_MEMORY_DEVICE, 1000, N);
    for (size_t i = 0; i < sizeof thresholds / sizeof thresholds[0]; i++) {
        uint64_t expected = 0;
        for (uint64_t k = 1; k <= N; k++)
            expected += k * k >= thresholds[i];
        hotbed_export e = batch_of(&d, 0, 0);
        e.min_score = thresholds[i];
        d.n = 0;
        CHECK_EQ(run_batch(&d, &e), expected);
        for (uint64_t k = 0; k < d.n; k++) {
            CHECK_EQ(d.all_scores[k], d.all_keys[k] * d.all_keys[k]);
            CHECK(d.all_scores[k] >= thresholds[i]);
        }
    }
    export_close(&d);
    fixture_close(&d.r);
}

static void static_tables_have_score_0(hotbed_backend backend) {
    setup s;
    export_fixture d;
    setup_start(&s, 1, 2, 70);
    s.tables[0].kind = HOTBED_TABLE_STATIC;
    s.options.mode = HOTBED_MODE_HBM_DIRECT; /* slots are row numbers */
    fixture_open_bare(&d.r, backend, &s.options);
    export_open(&d, HOTBED_MEMORY_DEVICE, 40, 100);
    hotbed_export e = batch_of(&d, 0, 35);
    CHECK_EQ(run_batch(&d, &e), 35);
    for (uint64_t i = 0; i < 35; i++) {
        CHECK_EQ(d.all_keys[i], 35 + i);
        CHECK_EQ(d.all_scores[i], 0);
    }
    e.min_score = 1;
    CHECK_EQ(run_batch(&d, &e), 0);
    export_close(&d);
    fixture_close(&d.r);
}

/* Windows that end or begin after the last slot; parts that are NULL are skipped. */
static void windows_may_end_or_begin_after_the_last_slot(hotbed_backend backend) {
    enum { N = 60, WINDOW = 21 };
    export_fixture d;
    hotbed_table_info info = {.size = sizeof info};
    uint64_t n = 0;
    numbered(&d, backend, N, N);
    CHECK_OK(hotbed_storage_table(d.r.storage, 0, &info));
    export_open(&d, HOTBED_MEMORY_DEVICE, info.slots + info.lower_slots, N);
    hotbed_export e = batch_of(&d, 0, info.slots + info.lower_slots);
    CHECK_EQ(run_batch(&d, &e), 0);
    e.first = UINT64_MAX;
    CHECK_EQ(run_batch(&d, &e), 0);
    e.first = info.slots + info.lower_slots - 1;
    CHECK(run_batch(&d, &e) <= 1);
    d.n = 0;
    e = batch_of(&d, 0, 0);
    e.keys = NULL;
    memset(&e.rows, 0, sizeof e.rows);
    CHECK_OK(hotbed_storage_export(d.r.storage, &e, d.stream));
    fixture_download(&d.r, &n, d.count.data, sizeof n);
    CHECK_EQ(n, N);
    collect(&d, d.all_keys, &d.keys, 0, sizeof(uint64_t));
    collect(&d, d.all_weights, &d.weights, 0, 8);
    e.rows.weights = d.weights.data;
    CHECK_OK(hotbed_storage_export(d.r.storage, &e, d.stream));
    collect(&d, d.all_scores, &d.scores, 0, sizeof(uint64_t));
    collect(&d, d.all_weights, &d.weights, N, 8);
    uint64_t keys[N];
    e = batch_of(&d, 0, 0);
    CHECK_EQ(run_batch(&d, &e), N);
    memcpy(keys, d.all_keys, sizeof keys);
    e.capacity = WINDOW; /* capacity for the first keys only */
    CHECK_OK(hotbed_storage_export(d.r.storage, &e, d.stream));
    fixture_download(&d.r, &n, d.count.data, sizeof n);
    CHECK_EQ(n, N);
    collect(&d, d.all_keys, &d.keys, WINDOW, sizeof(uint64_t));
    collect(&d, d.all_weights, &d.weights, WINDOW, 8);
    CHECK_BYTES(d.all_keys, keys, WINDOW * sizeof keys[0]);
    export_close(&d);
    fixture_close(&d.r);
}

/* Other keys are inserted and erased between windows. */
static void keys_that_stay_are_exported_once(hotbed_backend backend) {
    enum { N = 500, STAY = 200, WINDOW = 64 };
    export_fixture d;
    hotbed_table_info info = {.size = sizeof info};
    uint32_t given[N + 1] = {0};
    uint64_t keys[N];
    rng random = rng_start(31);
    numbered(&d, backend, STAY, 2 * N);
    for (uint64_t i = STAY; i < N; i++)
        keys[i] = i + 1;
    const uint64_t *others = fixture_copy(&d.r, keys, sizeof keys);
    CHECK_OK(hotbed_storage_table(d.r.storage, 0, &info));
    export_open(&d, HOTBED_MEMORY_DEVICE, WINDOW, WINDOW);
    const hotbed_rows nothing = {0};
    for (uint64_t first = 0; first < info.slots + info.lower_slots; first += WINDOW) {
        uint64_t from = STAY + rng_below(&random, N - STAY), n = rng_below(&random, N - from + 1);
        CHECK_OK(hotbed_storage_set_rows(d.r.storage, 0, n, others + from, &nothing, d.r.stream));
        const hotbed_export e = batch_of(&d, 0, first);
        d.n = 0;
        (void)run_batch(&d, &e);
        for (uint64_t i = 0; i < d.n; i++) {
            CHECK(d.all_keys[i] >= 1 && d.all_keys[i] <= N);
            given[d.all_keys[i]]++;
        }
        from = STAY + rng_below(&random, N - STAY), n = rng_below(&random, N - from + 1);
        CHECK_OK(hotbed_storage_erase(d.r.storage, 0, n, others + from, NULL, d.r.stream));
    }
    for (uint64_t k = 1; k <= STAY; k++)
        CHECK_EQ(given[k], 1);
    export_close(&d);
    fixture_close(&d.r);
}

/* The graph is launched again after the table has changed; calls never wait. */
static void an_export_is_recorded_and_launched_again(hotbed_backend backend) {
    enum { N = 90 };
    export_fixture d;
    hotbed_graph *graph;
    uint64_t n = 0, key = 12345;
    numbered(&d, backend, N, 400);
    const void *another = fixture_copy(&d.r, &key, sizeof key);
    const hotbed_rows nothing = {0};
    export_open(&d, HOTBED_MEMORY_PINNED, 1000, N + 1);
    const hotbed_export e = batch_of(&d, 0, 0);
    CHECK_EQ(run_batch(&d, &e), N); /* allocates the workspace */
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_storage_export(d.r.storage, &e, d.stream));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_OK(hotbed_graph_begin(d.stream));
    CHECK_OK(hotbed_storage_export(d.r.storage, &e, d.stream));
    CHECK_OK(hotbed_graph_end(d.stream, &graph));
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_OK(hotbed_graph_launch(graph, d.stream));
        fixture_download(&d.r, &n, d.count.data, sizeof n);
        CHECK_EQ(n, N + i);
        CHECK_OK(hotbed_storage_set_rows(d.r.storage, 0, 1, another, &nothing, d.stream));
    }
    CHECK_OK(hotbed_stream_sync(d.stream));
    hotbed_graph_destroy(graph);
    export_close(&d);
    fixture_close(&d.r);
}

static void documented_errors(hotbed_backend backend) {
    export_fixture d;
    hotbed_stream *fresh;
    hotbed_graph *graph;
    numbered(&d, backend, 5, 100);
    export_open(&d, HOTBED_MEMORY_DEVICE, 10, 10);
    const hotbed_export good = batch_of(&d, 0, 0);
    hotbed_export e = good;
    CHECK_STATUS(hotbed_storage_export(NULL, &e, d.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_export(d.r.storage, NULL, d.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, NULL), HOTBED_ERR_ARGUMENT);
    e.size = 8;
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    e = good;
    e.table = 1;
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    e = good;
    e.slots = 0;
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    e.slots = ((uint64_t)1 << 30) + 1;
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    e = good;
    e.count = NULL;
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    e = good;
    e.rows.states[0] = d.states[0].data; /* SGD has no state */
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &e, d.stream), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_stream_create(backend, 0, &fresh));
    CHECK_OK(hotbed_graph_begin(fresh));
    CHECK_STATUS(hotbed_storage_export(d.r.storage, &good, fresh), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_end(fresh, &graph));
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(fresh);
    export_close(&d);
    fixture_close(&d.r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(whole_tables_are_exported_to_device_memory)},
    {TEST(whole_tables_are_exported_to_pinned_memory)},
    {TEST(keys_are_in_the_order_of_slots)},
    {TEST(only_keys_from_a_minimum_score_are_exported)},
    {TEST(static_tables_have_score_0)},
    {TEST(windows_may_end_or_begin_after_the_last_slot)},
    {TEST(keys_that_stay_are_exported_once)},
    {TEST(an_export_is_recorded_and_launched_again)},
    {TEST(documented_errors)},
    {NULL, NULL},
};
