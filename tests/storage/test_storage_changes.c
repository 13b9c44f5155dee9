/* tests/storage/test_storage_changes.c - hotbed/changes.h: replicas that get changes only are the storage.
 *
 * Random operations change a storage of four tables.  Receivers take positions at random times, apply what was changed
 * to a copy of their own, and compare all of it with an export of all rows.
 */
#include "hotbed/changes.h"
#include "hotbed/export.h"
#include "tests/storage/fixture.h"
#include "tests/support/bad_store.h"
#include "tests/support/fault.h"

#include <stdlib.h>

enum { DIM = 6, TABLES = 4, KEYS = 96, MOST = 4096, RECEIVERS = 3, ROW = 2 * DIM };

/* The keys of a table in ascending order, and their rows: embedding and state. */
typedef struct copy {
    uint64_t n;
    uint64_t keys[MOST];
    float rows[MOST][ROW];
} copy;

typedef struct receiver {
    hotbed_change_position since;
    uint64_t lost;      /* how often some keys were */
    uint64_t forgotten; /* how often the keys that were lost had a number */
    copy tables[TABLES];
} receiver;

/* A storage without a model, and arrays for one call.  Arrays of `pinned` are for the library's output. */
typedef struct world {
    fixture r;
    hotbed_ticket *ticket;
    hotbed_batch batch;
    void *keys, *offsets, *output, *gradient, *rows;
    hotbed_memory pinned;
    hotbed_change_position *now, *since;
    uint64_t *count, *lost, *out_keys;
    float *out_weights, *out_states;
    receiver *receivers;
    rng random;
    bad_store bad;
    hotbed_external *external; /* of `bad`; or NULL */
} world;

/* Options of a world; 0 is the default of each field. */
typedef struct shape {
    uint64_t seed, removed_capacity, changed_capacity;
    bool bad; /* over a store that can be made to fail */
} shape;

static bool in_external_mode(void) {
    const char *mode = getenv("HOTBED_TEST_MODE");
    return mode != NULL && strcmp(mode, "external") == 0;
}

static void open_bad_store(world *w, setup *s) {
    hotbed_external_table tables[TABLES];
    hotbed_external_options o = {.size = sizeof o, .num_tables = TABLES, .tables = tables};
    CHECK_OK(hotbed_storage_external_tables(&s->options, tables));
    bad_store_start(&w->bad);
    CHECK_OK(hotbed_external_create(&o, &bad_store_calls, &w->bad, &w->external));
    s->options.external = w->external;
    s->options.mode = HOTBED_MODE_CACHE;
    for (uint32_t t = 0; t < TABLES; t++)
        s->tables[t].upper_capacity = s->tables[t].capacity / 2 + 1;
}

static void *take(uint8_t **at, uint64_t bytes) {
    void *memory = *at;
    *at += (bytes + 15) / 16 * 16;
    return memory;
}

static void world_open(world *w, hotbed_backend backend, const shape *how) {
    setup s;
    memset(w, 0, sizeof *w);
    w->random = rng_start(how->seed);
    setup_start(&s, TABLES, DIM, 300);
    for (uint32_t t = 0; t < TABLES; t++)
        s.tables[t].track_changes = true;
    s.tables[0].capacity = 64;
    s.tables[1].capacity = 100;
    s.tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    s.tables[2].capacity = 120;
    s.tables[3].capacity = 48;
    if (!how->bad && !in_external_mode()) { /* tables over a store do neither */
        s.tables[0].evict = s.tables[3].evict = HOTBED_EVICT_LOWEST;
        s.tables[1].max_capacity = 1200;
        s.tables[3].max_capacity = 200;
    }
    s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    s.options.check = HOTBED_CHECK_IGNORE;
    s.options.removed_capacity = how->removed_capacity;
    s.options.changed_capacity = how->changed_capacity;
    if (how->bad)
        open_bad_store(w, &s);
    fixture_open_bare(&w->r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(w->r.storage, KEYS, KEYS, w->r.stream, &w->ticket));
    w->keys = fixture_alloc(&w->r, KEYS * sizeof(uint64_t));
    w->offsets = fixture_alloc(&w->r, (TABLES * KEYS + 1) * sizeof(int64_t));
    w->output = fixture_alloc(&w->r, KEYS * DIM * sizeof(float));
    w->gradient = fixture_alloc(&w->r, KEYS * DIM * sizeof(float));
    w->rows = fixture_alloc(&w->r, KEYS * DIM * sizeof(float));
    CHECK_OK(hotbed_memory_alloc(
        w->r.stream, HOTBED_MEMORY_PINNED, 4096 + MOST * (8 + 4 * ROW), NULL, &w->pinned));
    uint8_t *at = w->pinned.data;
    w->now = take(&at, sizeof *w->now);
    w->since = take(&at, sizeof *w->since);
    w->count = take(&at, sizeof *w->count);
    w->lost = take(&at, sizeof *w->lost);
    w->out_keys = take(&at, MOST * sizeof(uint64_t));
    w->out_weights = take(&at, MOST * DIM * sizeof(float));
    w->out_states = take(&at, MOST * DIM * sizeof(float));
    w->receivers = calloc(RECEIVERS + 1, sizeof *w->receivers);
    CHECK(w->receivers != NULL);
}

static void world_close(world *w) {
    CHECK_OK(hotbed_stream_sync(w->r.stream));
    hotbed_ticket_destroy(w->ticket);
    hotbed_memory_free(&w->pinned);
    free(w->receivers);
    fixture_close(&w->r);
    if (w->external != NULL) {
        hotbed_external_destroy(w->external);
        bad_store_end(&w->bad);
    }
}

/* --- operations ------------------------------------------------------------------------------ */

static uint64_t random_key(world *w, uint32_t table) {
    return table == 2 ? rng_below(&w->random, 120) : rng_below(&w->random, 400) << 32;
}

/* Upload n distinct keys of a table. */
static uint32_t some_keys(world *w, uint32_t table, uint32_t most) {
    uint64_t keys[KEYS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < most; i++) {
        keys[n] = random_key(w, table);
        uint32_t k = 0;
        while (keys[k] != keys[n])
            k++;
        n += k == n;
    }
    fixture_upload(&w->r, w->keys, keys, n * sizeof *keys);
    return n;
}

static void upload_values(world *w, void *to) {
    float values[KEYS * DIM];
    for (uint32_t i = 0; i < KEYS * DIM; i++)
        values[i] = rng_float(&w->random);
    fixture_upload(&w->r, to, values, sizeof values);
}

/* A batch of one key per bag, `each` of each table. */
static void fill_batch_of(world *w, uint32_t each) {
    uint64_t keys[KEYS];
    int64_t offsets[TABLES * KEYS + 1];
    for (uint32_t i = 0; i < TABLES * each; i++)
        keys[i] = random_key(w, i / each);
    for (uint32_t i = 0; i <= TABLES * each; i++)
        offsets[i] = i;
    fixture_upload(&w->r, w->keys, keys, TABLES * each * sizeof *keys);
    fixture_upload(&w->r, w->offsets, offsets, (TABLES * each + 1) * sizeof *offsets);
    upload_values(w, w->gradient);
    w->batch = (hotbed_batch){.size = sizeof w->batch};
    w->batch.batch_size = each;
    w->batch.num_keys = TABLES * each;
    w->batch.keys = w->keys;
    w->batch.offsets = w->offsets;
}

static void fill_batch(world *w) {
    fill_batch_of(w, 1 + (uint32_t)rng_below(&w->random, KEYS / TABLES));
}

static void step(world *w) {
    hotbed_stream *stream = w->r.stream;
    CHECK_OK(hotbed_storage_prefetch(w->r.storage, &w->batch, w->ticket, stream));
    CHECK_OK(hotbed_storage_forward(w->r.storage, w->ticket, w->output, DIM, stream));
    CHECK_OK(hotbed_storage_backward(w->r.storage, w->ticket, w->gradient, DIM, stream));
}

static void change(world *w) {
    hotbed_stream *stream = w->r.stream;
    const uint32_t table = (uint32_t)rng_below(&w->random, TABLES);
    hotbed_rows rows = {.weights = w->rows};
    uint32_t grown, n;
    switch (rng_below(&w->random, 16)) {
    case 0:
    case 1:
        n = some_keys(w, table, 20);
        upload_values(w, w->rows);
        /* a table that refuses keys may be full: that fault is none of this test */
        CHECK_OK(hotbed_storage_set_rows(w->r.storage, table, n, w->keys, &rows, stream));
        (void)!hotbed_stream_sync(stream);
        break;
    case 2:
        n = some_keys(w, table, KEYS);
        upload_values(w, w->rows);
        CHECK_OK(hotbed_storage_offer_rows(w->r.storage, table, n, w->keys, &rows, stream));
        (void)!hotbed_stream_sync(stream);
        break;
    case 3:
    case 4:
        n = some_keys(w, table, 30);
        if (table != 2)
            CHECK_OK(hotbed_storage_erase(w->r.storage, table, n, w->keys, NULL, stream));
        break;
    case 5:
        CHECK_OK(hotbed_storage_flush(w->r.storage, stream));
        break;
    case 6:
        CHECK_OK(hotbed_storage_reset(w->r.storage, stream));
        break;
    case 7:
        CHECK_OK(hotbed_storage_poll_growth(w->r.storage, stream, &grown));
        break;
    case 8: /* keys get rows that are not trained */
        fill_batch(w);
        CHECK_OK(hotbed_storage_prefetch(w->r.storage, &w->batch, w->ticket, stream));
        CHECK_OK(hotbed_ticket_cancel(w->ticket, stream));
        break;
    case 10: {
        hotbed_expiry expiry = {
            .size = sizeof expiry, .table = table, .min_norm = 0.9F, .slots = 50};
        if (table != 2 && w->r.store == NULL)
            CHECK_OK(hotbed_storage_expire(w->r.storage, &expiry, stream));
        break;
    }
    case 9:
        if (rng_below(&w->random, 8) == 0)
            CHECK_OK(hotbed_storage_clear(w->r.storage, table, stream));
        break;
    default:
        fill_batch(w);
        step(w);
        break;
    }
}

/* --- copies ---------------------------------------------------------------------------------- */

static uint64_t find(const copy *c, uint64_t key) {
    uint64_t low = 0, high = c->n;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (c->keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void copy_set(copy *c, uint64_t key, const float *weights, const float *state) {
    const uint64_t at = find(c, key);
    if (at == c->n || c->keys[at] != key) {
        CHECK(c->n < MOST);
        memmove(&c->keys[at + 1], &c->keys[at], (c->n - at) * sizeof c->keys[0]);
        memmove(&c->rows[at + 1], &c->rows[at], (c->n - at) * sizeof c->rows[0]);
        c->keys[at] = key;
        c->n++;
    }
    memcpy(c->rows[at], weights, DIM * sizeof(float));
    memcpy(c->rows[at] + DIM, state, DIM * sizeof(float));
}

static void copy_erase(copy *c, uint64_t key) {
    const uint64_t at = find(c, key);
    if (at == c->n || c->keys[at] != key)
        return; /* it came and left between two positions */
    c->n--;
    memmove(&c->keys[at], &c->keys[at + 1], (c->n - at) * sizeof c->keys[0]);
    memmove(&c->rows[at], &c->rows[at + 1], (c->n - at) * sizeof c->rows[0]);
}

/* Export rows of a table into `to`; returns how many. */
static uint64_t export_rows(
    world *w, uint32_t table, const hotbed_change_position *since, copy *to) {
    uint64_t end, all = 0;
    hotbed_export e = {.size = sizeof e};
    e.table = table;
    e.slots = 333;
    e.keys = w->out_keys;
    e.rows.weights = w->out_weights;
    e.rows.states[0] = w->out_states;
    e.count = w->count;
    e.since = since;
    CHECK_OK(hotbed_storage_export_end(w->r.storage, table, &end, w->r.stream));
    for (; e.first < end; e.first += e.slots) {
        CHECK_OK(hotbed_storage_export(w->r.storage, &e, w->r.stream));
        CHECK_OK(hotbed_stream_sync(w->r.stream));
        for (uint64_t i = 0; i < *w->count; i++)
            copy_set(to, w->out_keys[i], w->out_weights + i * DIM, w->out_states + i * DIM);
        all += *w->count;
    }
    return all;
}

/* The number of removed keys, which are in w->out_keys; *w->lost is set. */
static uint64_t removed_keys(world *w, uint32_t table) {
    hotbed_removed r = {.size = sizeof r};
    r.table = table;
    r.since = w->since;
    r.until = w->now;
    r.keys = w->out_keys;
    r.capacity = MOST;
    r.count = w->count;
    r.lost = w->lost;
    CHECK_OK(hotbed_storage_removed(w->r.storage, &r, w->r.stream));
    CHECK_OK(hotbed_stream_sync(w->r.stream));
    CHECK(*w->count <= MOST);
    CHECK(*w->lost == 0 || *w->count == 0);
    return *w->count;
}

/* Bring the copies of a receiver up to date, and compare them with the storage. Returns the rows that
 * were sent. */
static uint64_t receive(world *w, receiver *c) {
    receiver *check = &w->receivers[RECEIVERS];
    uint64_t rows = 0;
    CHECK_OK(hotbed_storage_position(w->r.storage, w->now, w->r.stream));
    *w->since = c->since;
    for (uint32_t t = 0; t < TABLES; t++) {
        const uint64_t n = removed_keys(w, t);
        for (uint64_t i = 0; i < n; i++)
            copy_erase(&c->tables[t], w->out_keys[i]);
        const bool whole = *w->lost != 0;
        c->lost += whole;
        c->forgotten += whole && *w->lost != UINT64_MAX;
        if (whole)
            c->tables[t].n = 0;
        rows += export_rows(w, t, whole ? NULL : w->since, &c->tables[t]);
        check->tables[t].n = 0;
        (void)export_rows(w, t, NULL, &check->tables[t]);
        CHECK_EQ(c->tables[t].n, check->tables[t].n);
        CHECK_BYTES(c->tables[t].keys, check->tables[t].keys, check->tables[t].n * 8);
        CHECK_BYTES(
            c->tables[t].rows, check->tables[t].rows, check->tables[t].n * sizeof(float) * ROW);
    }
    c->since = *w->now;
    return rows;
}

/* --- tests ----------------------------------------------------------------------------------- */

/* Returns how often keys were lost, not counting lost positions. */
static uint64_t run_random(hotbed_backend backend, const shape *how) {
    world w;
    uint64_t lost = 0;
    world_open(&w, backend, how);
    for (int i = 0; i < (hotbed_test_is_small() ? 30 : 200); i++) {
        change(&w);
        for (uint32_t k = 0; k < RECEIVERS; k++)
            if (rng_below(&w.random, 2 + 10 * k) == 0)
                (void)receive(&w, &w.receivers[k]);
    }
    for (uint32_t k = 0; k < RECEIVERS; k++) {
        (void)receive(&w, &w.receivers[k]);
        lost += w.receivers[k].forgotten;
    }
    world_close(&w);
    return lost;
}

static void replicas_of_several_receivers_are_the_storage(hotbed_backend backend) {
    for (uint64_t seed = 0; seed < (hotbed_test_is_small() ? 1 : 4); seed++)
        (void)run_random(backend, &(shape){.seed = 700 + seed});
}

static void an_overflow_of_the_log_is_counted_and_recovered_from(hotbed_backend backend) {
    uint64_t lost = 0;
    for (uint64_t seed = 0; seed < 3; seed++)
        lost += run_random(backend, &(shape){.seed = 800 + seed, .removed_capacity = 16});
    CHECK(lost > 0);
}

/* Over a store: rows that have left the upper tier are forgotten. */
static void forgotten_changes_are_counted_and_recovered_from(hotbed_backend backend) {
    uint64_t lost = 0;
    for (uint64_t seed = 0; seed < 3; seed++)
        lost += run_random(backend, &(shape){.seed = 850 + seed, .changed_capacity = 16});
    CHECK_EQ(lost > 0, in_external_mode());
}

/* The cost follows what was changed: nothing that was not is returned. */
static void only_rows_that_were_changed_are_returned(hotbed_backend backend) {
    world w;
    world_open(&w, backend, &(shape){.seed = 60});
    receiver *c = &w.receivers[0];
    for (int i = 0; i < 20; i++) {
        fill_batch(&w);
        step(&w);
    }
    (void)receive(&w, c);
    CHECK_EQ(receive(&w, c), 0);
    upload_values(&w, w.rows);
    const hotbed_rows rows = {.weights = w.rows};
    const uint64_t keys[] = {3, 5, 119};
    fixture_upload(&w.r, w.keys, keys, sizeof keys);
    CHECK_OK(hotbed_storage_set_rows(w.r.storage, 2, 3, w.keys, &rows, w.r.stream));
    CHECK_EQ(receive(&w, c), 3);
    CHECK_EQ(receive(&w, c), 0);
    if (w.r.store == NULL) /* tables over a store do not grow */
        CHECK_OK(hotbed_storage_grow(w.r.storage, 1, 1200, w.r.stream));
    for (int i = 0; i < 10; i++) { /* the segment gets rows */
        fill_batch(&w);
        step(&w);
    }
    CHECK(receive(&w, c) > 0);
    CHECK_EQ(receive(&w, c), 0);
    for (int i = 0; i < 5; i++) { /* moves of rows are no changes */
        CHECK_OK(hotbed_storage_reset(w.r.storage, w.r.stream));
        CHECK_EQ(receive(&w, c), 0);
    }
    world_close(&w);
}

/* A row that moves to the slot of a changed row is not returned for it. */
static void rows_that_move_are_not_returned(hotbed_backend backend) {
    enum { ROWS = 120, CHANGED = 3 };
    world w;
    world_open(&w, backend, &(shape){.seed = 62});
    receiver *c = &w.receivers[0];
    hotbed_stream *stream = w.r.stream;
    const hotbed_rows rows = {.weights = w.rows};
    (void)receive(&w, c);
    for (int round = 0; round < 20; round++) {
        upload_values(&w, w.rows);
        uint64_t keys[KEYS];
        for (uint64_t i = 0; i < CHANGED; i++)
            keys[i] = (uint64_t)(round * CHANGED + (int)i) * 7 % ROWS;
        fixture_upload(&w.r, w.keys, keys, CHANGED * sizeof *keys);
        CHECK_OK(hotbed_storage_set_rows(w.r.storage, 2, CHANGED, w.keys, &rows, stream));
        fill_batch_of(&w, KEYS / TABLES);
        int64_t offsets[TABLES * KEYS + 1] = {0};
        const uint32_t each = w.batch.batch_size;
        for (uint32_t i = 0; i <= TABLES * each; i++)
            offsets[i] = i < 2 * each ? 0 : i < 3 * each ? i - 2 * each : each;
        for (uint32_t i = 0; i < each; i++)
            keys[i] = rng_below(&w.random, ROWS);
        fixture_upload(&w.r, w.keys, keys, each * sizeof *keys);
        fixture_upload(&w.r, w.offsets, offsets, (TABLES * each + 1) * sizeof *offsets);
        w.batch.num_keys = each;
        CHECK_OK(hotbed_storage_prefetch(w.r.storage, &w.batch, w.ticket, stream));
        CHECK_OK(hotbed_storage_forward(w.r.storage, w.ticket, w.output, DIM, stream));
        CHECK_OK(hotbed_ticket_cancel(w.ticket, stream));
        CHECK_EQ(receive(&w, c), CHANGED);
    }
    world_close(&w);
}

/* Step, position, export and removed keys in one graph, launched with other keys. */
static void changes_are_recorded_and_launched_again(hotbed_backend backend) {
    world w;
    hotbed_graph *graph;
    world_open(&w, backend, &(shape){.seed = 61});
    hotbed_memory workspace;
    hotbed_memory counts;
    CHECK_OK(
        hotbed_memory_alloc(w.r.stream, HOTBED_MEMORY_PINNED, 4 * sizeof(uint64_t), NULL, &counts));
    CHECK_OK(hotbed_memory_alloc(
        w.r.stream, HOTBED_MEMORY_PINNED, MOST * sizeof(uint64_t), NULL, &workspace));
    hotbed_export e = {.size = sizeof e};
    hotbed_removed r = {.size = sizeof r};
    uint64_t end;
    CHECK_OK(hotbed_storage_export_end(w.r.storage, 0, &end, w.r.stream));
    e.slots = end > 0 ? end : 1; /* over a store: keys */
    e.keys = w.out_keys;
    e.rows.weights = w.out_weights;
    e.rows.states[0] = w.out_states;
    e.count = counts.data;
    e.since = w.since;
    r.since = w.since;
    r.until = w.now;
    r.keys = workspace.data;
    r.capacity = MOST;
    r.count = (uint64_t *)counts.data + 1;
    r.lost = (uint64_t *)counts.data + 2;
    fill_batch_of(&w, KEYS / TABLES);
    step(&w); /* before the recording: a workspace may grow */
    CHECK_OK(hotbed_storage_export(w.r.storage, &e, w.r.stream));
    CHECK_OK(hotbed_stream_sync(w.r.stream));
    receiver *c = &w.receivers[0];
    (void)receive(&w, c);
    CHECK_OK(hotbed_graph_begin(w.r.stream));
    step(&w);
    CHECK_OK(hotbed_storage_position(w.r.storage, w.now, w.r.stream));
    if (w.r.store != NULL) { /* calls that wait for the store */
        CHECK_STATUS(hotbed_storage_export(w.r.storage, &e, w.r.stream), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_storage_removed(w.r.storage, &r, w.r.stream), HOTBED_ERR_STATE);
        CHECK_OK(hotbed_graph_end(w.r.stream, &graph));
        goto done;
    }
    CHECK_OK(hotbed_storage_export(w.r.storage, &e, w.r.stream));
    CHECK_OK(hotbed_storage_removed(w.r.storage, &r, w.r.stream));
    CHECK_OK(hotbed_graph_end(w.r.stream, &graph));
    for (int i = 0; i < 12; i++) {
        fill_batch_of(&w, KEYS / TABLES);
        *w.since = c->since;
        CHECK_OK(hotbed_graph_launch(graph, w.r.stream));
        CHECK_OK(hotbed_stream_sync(w.r.stream));
        const uint64_t *n = counts.data;
        CHECK_EQ(n[2], 0);
        for (uint64_t k = 0; k < n[1]; k++)
            copy_erase(&c->tables[0], ((const uint64_t *)workspace.data)[k]);
        for (uint64_t k = 0; k < n[0]; k++)
            copy_set(&c->tables[0], w.out_keys[k], w.out_weights + k * DIM, w.out_states + k * DIM);
        c->since = *w.now;
        copy *check = &w.receivers[RECEIVERS].tables[0];
        check->n = 0;
        (void)export_rows(&w, 0, NULL, check);
        CHECK_EQ(c->tables[0].n, check->n);
        CHECK_BYTES(c->tables[0].keys, check->keys, check->n * sizeof(uint64_t));
        CHECK_BYTES(c->tables[0].rows, check->rows, check->n * sizeof(float) * ROW);
    }
done:
    hotbed_graph_destroy(graph);
    hotbed_memory_free(&counts);
    hotbed_memory_free(&workspace);
    world_close(&w);
}

static void a_position_of_another_storage_has_lost_everything(hotbed_backend backend) {
    world a, b;
    world_open(&a, backend, &(shape){.seed = 62});
    world_open(&b, backend, &(shape){.seed = 63});
    CHECK_OK(hotbed_storage_position(a.r.storage, b.since, a.r.stream));
    CHECK_OK(hotbed_stream_sync(a.r.stream));
    CHECK_OK(hotbed_storage_position(b.r.storage, b.now, b.r.stream));
    (void)removed_keys(&b, 0);
    CHECK_EQ(*b.lost, UINT64_MAX);
    world_close(&a);
    world_close(&b);
}

static void wrong_arguments_are_named(hotbed_backend backend) {
    setup s;
    fixture r;
    world w;
    setup_start(&s, 2, DIM, 300);
    s.tables[1].track_changes = true;
    s.options.removed_capacity = ((uint64_t)1 << 32) + 1;
    hotbed_storage *none;
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &none), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "removed_capacity",
            .value = 0x1p32 + 1, .limit = 0x1p32);
    s.options.removed_capacity = 0;
    fixture_open_bare(&r, backend, &s.options);
    world_open(&w, backend, &(shape){.seed = 64});
    hotbed_export e = {.size = sizeof e, .slots = 16, .count = w.count, .since = w.since};
    CHECK_STATUS(hotbed_storage_export(r.storage, &e, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.table = "table-0");
    hotbed_removed q = {
        .size = sizeof q, .since = w.since, .until = w.now, .count = w.count, .lost = w.lost};
    CHECK_STATUS(hotbed_storage_removed(r.storage, &q, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.table = "table-0");
    q.table = 1, q.capacity = 1;
    CHECK_STATUS(hotbed_storage_removed(r.storage, &q, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "keys");
    q.capacity = 0, q.lost = NULL;
    CHECK_STATUS(hotbed_storage_removed(r.storage, &q, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "lost");
    CHECK_STATUS(hotbed_storage_position(r.storage, NULL, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "position");
    CHECK_STATUS(hotbed_storage_position(NULL, w.now, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "storage");
    hotbed_stream_destroy(stream);
    world_close(&w);
    fixture_close(&r);
}

/* --- over an external store ------------------------------------------------------------------ */

/* Set rows of n keys of table 1 from `first` on. */
static void set_keys(world *w, uint64_t first, uint32_t n) {
    uint64_t keys[KEYS];
    const hotbed_rows rows = {.weights = w->rows};
    for (uint32_t i = 0; i < n; i++)
        keys[i] = first + i;
    upload_values(w, w->rows);
    fixture_upload(&w->r, w->keys, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_set_rows(w->r.storage, 1, n, w->keys, &rows, w->r.stream));
    CHECK_OK(hotbed_stream_sync(w->r.stream));
}

static hotbed_change_position position_of(world *w) {
    CHECK_OK(hotbed_storage_position(w->r.storage, w->now, w->r.stream));
    CHECK_OK(hotbed_stream_sync(w->r.stream));
    return *w->now;
}

/* Old changes are forgotten first.  An export since a position that has lost some is an error. */
static void the_newest_half_of_the_changes_is_remembered(hotbed_backend backend) {
    world w;
    copy *to = calloc(1, sizeof *to);
    CHECK(to != NULL);
    world_open(&w, backend, &(shape){.seed = 65, .changed_capacity = 64, .bad = true});
    const hotbed_change_position first = position_of(&w);
    set_keys(&w, 0, 32);
    const hotbed_change_position second = position_of(&w);
    set_keys(&w, 32, 32);
    *w.since = first;
    (void)removed_keys(&w, 1);
    CHECK_EQ(*w.lost, 0);
    CHECK_EQ(export_rows(&w, 1, w.since, to), 64);
    set_keys(&w, 64, 5);
    (void)position_of(&w);
    (void)removed_keys(&w, 1);
    CHECK_EQ(*w.lost, 32);
    (void)removed_keys(&w, 2); /* static: no key leaves, but rows are forgotten */
    CHECK_EQ(*w.lost, 32);
    hotbed_export e = {.size = sizeof e, .table = 1, .slots = 16};
    e.count = w.count;
    e.since = w.since;
    CHECK_STATUS(hotbed_storage_export(w.r.storage, &e, w.r.stream), HOTBED_ERR_STATE);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE, .parameter = "since", .value = 32);
    *w.since = second;
    (void)removed_keys(&w, 1);
    CHECK_EQ(*w.lost, 0);
    CHECK_EQ(export_rows(&w, 1, w.since, to), 37);
    CHECK_EQ(to->n, 69);
    free(to);
    world_close(&w);
}

/* A key that is back in the store, and in no slot, has not left. */
static void keys_that_are_back_in_the_store_have_not_left(hotbed_backend backend) {
    world w;
    world_open(&w, backend, &(shape){.seed = 69, .bad = true});
    const hotbed_change_position first = position_of(&w);
    set_keys(&w, 0, 10); /* which are in w.keys */
    CHECK_OK(hotbed_storage_erase(w.r.storage, 1, 10, w.keys, NULL, w.r.stream));
    set_keys(&w, 4, 3);
    (void)position_of(&w);
    *w.since = first;
    CHECK_EQ(removed_keys(&w, 1), 7);
    for (uint64_t i = 0; i < 7; i++)
        CHECK(w.out_keys[i] < 4 || w.out_keys[i] > 6);
    world_close(&w);
}

/* Some keys may be gone, and none is logged. */
static void a_clear_that_fails_loses_all_positions(hotbed_backend backend) {
    world w;
    world_open(&w, backend, &(shape){.seed = 70, .bad = true});
    const hotbed_change_position first = position_of(&w);
    set_keys(&w, 0, 10);
    w.bad.status = HOTBED_ERR_IO;
    bad_store_next(&w.bad, BAD_FAIL, 100);
    CHECK_STATUS(hotbed_storage_clear(w.r.storage, 1, w.r.stream), HOTBED_ERR_IO);
    bad_store_next(&w.bad, BAD_NOT, 1);
    (void)position_of(&w);
    *w.since = first;
    CHECK_EQ(removed_keys(&w, 1), 0);
    CHECK_EQ(*w.lost, UINT64_MAX);
    world_close(&w);
}

/* Windows of changed rows follow each other from 0, as those of all rows; after an error they start again. */
static void windows_of_changes_follow_each_other(hotbed_backend backend) {
    world w;
    world_open(&w, backend, &(shape){.seed = 66, .bad = true});
    *w.since = position_of(&w);
    set_keys(&w, 0, 40);
    uint64_t gone[10], *numbers = w.out_keys + 100;
    for (uint64_t i = 0; i < 10; i++)
        gone[i] = 4 * i;
    fixture_upload(&w.r, w.keys, gone, sizeof gone);
    CHECK_OK(hotbed_storage_erase(w.r.storage, 1, 10, w.keys, NULL, w.r.stream));
    hotbed_export e = {.size = sizeof e, .table = 1, .first = 7, .slots = 7};
    e.keys = w.out_keys;
    e.numbers = numbers;
    e.count = w.count;
    e.since = w.since;
    CHECK_STATUS(hotbed_storage_export(w.r.storage, &e, w.r.stream), HOTBED_ERR_STATE);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "first", .value = 7);
    for (int round = 0; round < 2; round++) {
        uint64_t all = 0;
        for (e.first = 0; e.first < 49; e.first += 7) {
            CHECK_OK(hotbed_storage_export(w.r.storage, &e, w.r.stream));
            CHECK_EQ(*w.count, e.first < 28 ? 7 : e.first == 28 ? 2 : 0);
            for (uint64_t i = 0; i < *w.count; i++, all++) {
                CHECK_EQ(w.out_keys[i], all + all / 3 + 1);
                CHECK_EQ(numbers[i], all);
            }
        }
        CHECK_EQ(all, 30);
    }
    e.first = 0;
    CHECK_OK(hotbed_storage_export(w.r.storage, &e, w.r.stream));
    e.first = 7;
    bad_store_next(&w.bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_storage_export(w.r.storage, &e, w.r.stream), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_storage_export(w.r.storage, &e, w.r.stream), HOTBED_ERR_STATE);
    world_close(&w);
}

/* Change a storage whose store fails now and then.  A call that erases is repeated, as hotbed/external.h says. */
static void change_badly(world *w) {
    const bad_way ways[] = {BAD_FAIL, BAD_DONE};
    const uint32_t table = (uint32_t)rng_below(&w->random, TABLES);
    hotbed_stream *stream = w->r.stream;
    hotbed_rows rows = {.weights = w->rows};
    w->bad.way = ways[rng_below(&w->random, 2)];
    w->bad.status = HOTBED_ERR_IO;
    w->bad.from = w->bad.calls + rng_below(&w->random, 6);
    w->bad.to = w->bad.from + rng_below(&w->random, 3);
    uint32_t n;
    switch (rng_below(&w->random, 8)) {
    case 0:
        n = some_keys(w, table, 20);
        upload_values(w, w->rows);
        CHECK_OK(hotbed_storage_set_rows(w->r.storage, table, n, w->keys, &rows, stream));
        break;
    case 1:
        n = some_keys(w, table, 30);
        for (int again = 0; again < 2 && table != 2; again++) {
            CHECK_OK(hotbed_storage_erase(w->r.storage, table, n, w->keys, NULL, stream));
            (void)!hotbed_stream_sync(stream);
            w->bad.to = 0;
        }
        break;
    case 2:
        CHECK_OK(hotbed_storage_flush(w->r.storage, stream));
        break;
    case 3:
        if (rng_below(&w->random, 4) == 0 &&
            hotbed_storage_clear(w->r.storage, table, stream) != HOTBED_OK) {
            w->bad.to = 0;
            CHECK_OK(hotbed_storage_clear(w->r.storage, table, stream));
        }
        break;
    default:
        fill_batch(w);
        step(w);
        break;
    }
    (void)!hotbed_stream_sync(stream);
    w->bad.to = 0;
}

/* Read what was changed while a call of the store fails; returns whether all of it was read. */
static bool read_badly(world *w, const receiver *c, uint64_t call) {
    uint64_t end;
    hotbed_removed r = {.size = sizeof r, .table = 1, .keys = w->out_keys, .capacity = MOST};
    hotbed_export e = {.size = sizeof e, .table = 1, .keys = w->out_keys, .count = w->count};
    *w->now = position_of(w);
    *w->since = c->since;
    r.since = e.since = w->since;
    r.until = w->now;
    r.count = w->count;
    r.lost = w->lost;
    w->bad.way = BAD_FAIL;
    w->bad.status = HOTBED_ERR_IO;
    w->bad.from = w->bad.to = w->bad.calls + call;
    hotbed_status status = hotbed_storage_removed(w->r.storage, &r, w->r.stream);
    if (status == HOTBED_OK)
        status = hotbed_storage_export_end(w->r.storage, 1, &end, w->r.stream);
    e.slots = 32;
    for (; status == HOTBED_OK && e.first < end; e.first += e.slots)
        status = hotbed_storage_export(w->r.storage, &e, w->r.stream);
    const bool failed = w->bad.calls >= w->bad.to;
    w->bad.to = 0;
    CHECK_EQ(status, failed ? HOTBED_ERR_IO : HOTBED_OK);
    return !failed;
}

/* A store that fails, while rows are changed or while changes are read, loses none of them. */
static void a_failing_store_loses_no_change(hotbed_backend backend) {
    for (uint64_t seed = 0; seed < (hotbed_test_is_small() ? 1 : 6); seed++) {
        world w;
        uint64_t failures = 0;
        world_open(&w, backend, &(shape){.seed = 900 + seed, .bad = true});
        for (int i = 0; i < 60; i++) {
            change_badly(&w);
            if (i % 3 != 0)
                continue;
            receiver *c = &w.receivers[(uint32_t)i / 3 % RECEIVERS];
            for (uint64_t call = 1; c->since.epoch != 0 && !read_badly(&w, c, call); call++)
                failures++;
            (void)receive(&w, c);
        }
        CHECK(failures > 20);
        world_close(&w);
    }
}

/* Without memory to remember changes, positions lose them; without memory to read changes, the call fails. */
static void changes_without_memory_are_lost_or_refused(hotbed_backend backend) {
    uint64_t lost = 0, refused = 0;
    for (uint64_t n = 1;; n++) {
        world w;
        uint64_t keys[KEYS];
        world_open(&w, backend, &(shape){.seed = 67, .bad = true});
        const hotbed_rows rows = {.weights = w.rows};
        receiver *c = &w.receivers[0];
        (void)receive(&w, c);
        set_keys(&w, 0, 1);
        for (uint64_t i = 0; i < KEYS; i++)
            keys[i] = 1 + i;
        fixture_upload(&w.r, w.keys, keys, sizeof keys);
        fault_arm(n);
        hotbed_status status =
            hotbed_storage_set_rows(w.r.storage, 1, KEYS, w.keys, &rows, w.r.stream);
        const hotbed_status set = hotbed_stream_sync(w.r.stream);
        const bool failed = fault_disarm();
        status = status == HOTBED_OK ? set : status;
        CHECK(status == HOTBED_OK || (failed && status == HOTBED_ERR_MEMORY));
        const uint64_t before = c->forgotten;
        (void)receive(&w, c);
        lost += c->forgotten - before;
        world_close(&w);
        if (!failed)
            break;
    }
    CHECK(lost > 0);
    for (uint32_t table = 0; table < 2; table++) {
        world w;
        world_open(&w, backend, &(shape){.seed = 68, .bad = true});
        *w.since = position_of(&w);
        for (int i = 0; i < 4; i++) {
            fill_batch(&w);
            step(&w);
        }
        const uint32_t k = some_keys(&w, 1, 20);
        CHECK_OK(hotbed_storage_erase(w.r.storage, 1, k, w.keys, NULL, w.r.stream));
        (void)position_of(&w);
        for (uint64_t n = 1;; n++, refused++) {
            hotbed_removed r = {.size = sizeof r, .table = 1, .keys = w.out_keys, .capacity = MOST};
            hotbed_export e = {.size = sizeof e, .table = 1, .slots = 32, .keys = w.out_keys};
            r.since = e.since = w.since;
            r.until = w.now;
            r.count = e.count = w.count;
            r.lost = w.lost;
            fault_arm(n);
            const hotbed_status status = table == 0
                                             ? hotbed_storage_removed(w.r.storage, &r, w.r.stream)
                                             : hotbed_storage_export(w.r.storage, &e, w.r.stream);
            if (!fault_disarm()) {
                CHECK_OK(status);
                break;
            }
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        }
        world_close(&w);
    }
    /* Allocations of the GPU's memory do not fail. */
    CHECK(refused >= (backend == HOTBED_BACKEND_HOST ? 5 : 2));
}

static void a_storage_without_memory_to_track_a_store_is_not_created(hotbed_backend backend) {
    setup s;
    hotbed_external *store;
    hotbed_storage *storage;
    hotbed_stream *stream = hotbed_test_stream(backend);
    setup_start(&s, 1, DIM, 300);
    s.tables[0].upper_capacity = 100;
    s.tables[0].track_changes = true;
    fixture_store(&s.options, &store);
    s.options.external = store;
    s.options.changed_capacity = ((uint64_t)1 << 40) + 1;
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "changed_capacity",
            .value = 0x1p40 + 1, .limit = 0x1p40);
    s.options.changed_capacity = 0;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        const hotbed_status status = hotbed_storage_create(&s.options, stream, &storage);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(storage == NULL);
    }
    hotbed_storage_destroy(storage);
    hotbed_external_destroy(store);
    hotbed_stream_destroy(stream);
}

/* --- filters --------------------------------------------------------------------------------- */

static void a_filter_chooses_rows(hotbed_backend backend) {
    (void)backend;
    const uint64_t scores[] = {5, 9, 5, 1, 9, 5}, occurrences[] = {1, 2, 3, 4, 5, 6};
    const double changes[] = {0.5, 0.25, 0.125, 4, 4, 4};
    bool passes[6];
    const struct {
        hotbed_change_filter filter;
        unsigned want; /* bit i: row i */
    } cases[] = {
        {{.min_score = 0}, 63},
        {{.min_score = 5}, 55},
        {{.min_occurrences = 3}, 60},
        {{.min_change = 0.25F}, 59},
        {{.most_rows = 3}, 19}, /* of the rows with score 5, the first */
        {{.most_rows = 6}, 63},
        {{.min_score = 2, .min_occurrences = 2, .most_rows = 2, .min_change = 4}, 48},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        unsigned got = 0;
        CHECK_OK(
            hotbed_change_filter_select(&cases[c].filter, 6, scores, occurrences, changes, passes));
        for (unsigned i = 0; i < 6; i++)
            got |= (unsigned)passes[i] << i;
        CHECK_EQ(got, cases[c].want);
    }
    /* A norm is NaN if one of the rows has a NaN: the receiver gets the row that replaces it. */
    const double repaired[] = {NAN, 0.5, INFINITY};
    const hotbed_change_filter large = {.min_change = 1};
    CHECK_OK(hotbed_change_filter_select(&large, 3, NULL, NULL, repaired, passes));
    CHECK(passes[0] && !passes[1] && passes[2]);
    const char *const names[] = {"scores", "occurrences", "scores", "changes"};
    const hotbed_change_filter lack[] = {
        {.min_score = 1}, {.min_occurrences = 1}, {.most_rows = 1}, {.min_change = 1}};
    for (size_t c = 0; c < 4; c++) {
        CHECK_STATUS(
            hotbed_change_filter_select(&lack[c], 6, NULL, NULL, NULL, passes),
            HOTBED_ERR_ARGUMENT);
        CHECK(strcmp(hotbed_last_error_detail()->parameter, names[c]) == 0);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_filter_chooses_rows)},
    {TEST(replicas_of_several_receivers_are_the_storage)},
    {TEST(an_overflow_of_the_log_is_counted_and_recovered_from)},
    {TEST(forgotten_changes_are_counted_and_recovered_from)},
    {TEST(only_rows_that_were_changed_are_returned)},
    {TEST(rows_that_move_are_not_returned)},
    {TEST(changes_are_recorded_and_launched_again)},
    {TEST(a_position_of_another_storage_has_lost_everything)},
    {TEST(wrong_arguments_are_named)},
    {TEST(the_newest_half_of_the_changes_is_remembered)},
    {TEST(keys_that_are_back_in_the_store_have_not_left)},
    {TEST(a_clear_that_fails_loses_all_positions)},
    {TEST(windows_of_changes_follow_each_other)},
    {TEST(a_failing_store_loses_no_change)},
    {TEST(changes_without_memory_are_lost_or_refused)},
    {TEST(a_storage_without_memory_to_track_a_store_is_not_created)},
    {NULL, NULL},
};
