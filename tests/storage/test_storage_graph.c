/* tests/storage/test_storage_graph.c - steps recorded as graphs and launched with changing keys, against the model.
 *
 * Between launches, copies in stream order put the next batch into the arrays that the graph reads.  All launches of a
 * test are enqueued without a wait; outputs and rows must equal the model's.
 */
#include "tests/storage/fixture.h"

enum { BATCH = 8, MAX_KEYS = 96, RING = 8 };

/* Batches in device memory, one of which is copied into a ticket's arrays before each launch. */
typedef struct ring {
    hotbed_batch host[RING]; /* for the model */
    void *keys[RING], *offsets[RING], *weights[RING], *gradients[RING];
    uint64_t keys_bytes, offsets_bytes, weights_bytes, gradient_bytes;
} ring;

static void three_tables(setup *s, hotbed_pooling pooling, hotbed_optimizer_kind kind) {
    setup_start(s, 3, 4, 500);
    s->tables[1].dim = 7;
    s->tables[0].dtype = kind == HOTBED_OPT_ADAM ? HOTBED_INT8 : HOTBED_F32;
    s->tables[1].dtype = kind == HOTBED_OPT_ADAM ? HOTBED_FP8 : HOTBED_BF16;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 20;
    s->options.pooling = pooling;
    s->options.optimizer.kind = kind;
}

/* Copy device memory to pinned memory that fixture_close() frees. */
static void *host_copy(fixture *r, const void *device, uint64_t bytes) {
    CHECK(r->num_memories < FIXTURE_MEMORIES);
    hotbed_memory *memory = &r->memories[r->num_memories++];
    CHECK_OK(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_PINNED, bytes, NULL, memory));
    fixture_download(r, memory->data, device, bytes);
    return memory->data;
}

static void fill_ring(ring *g, test_ticket *l, rng *random) {
    fixture *r = l->r;
    const batch_shape how = {.batch_size = BATCH, .max_bag = 6, .key_space = 25, .weights = true};
    g->keys_bytes = MAX_KEYS * sizeof(uint64_t);
    g->offsets_bytes = (3U * BATCH + 1U) * sizeof(int64_t);
    g->weights_bytes = MAX_KEYS * sizeof(float);
    g->gradient_bytes = l->output_bytes;
    for (int i = 0; i < RING; i++) {
        test_ticket_fill(l, random, &how);
        /* the graph records this bound; the last offset is the real number */
        l->host.num_keys = MAX_KEYS;
        g->keys[i] = fixture_copy(r, l->host.keys, g->keys_bytes);
        g->offsets[i] = fixture_copy(r, l->host.offsets, g->offsets_bytes);
        g->weights[i] = fixture_copy(r, l->host.weights, g->weights_bytes);
        float *gradient = l->scratch[0];
        for (uint64_t e = 0; e < g->gradient_bytes / sizeof(float); e++)
            gradient[e] = rng_float(random);
        g->gradients[i] = fixture_copy(r, gradient, g->gradient_bytes);
        g->host[i] = l->host;
        g->host[i].keys = host_copy(r, g->keys[i], g->keys_bytes);
        g->host[i].offsets = host_copy(r, g->offsets[i], g->offsets_bytes);
        g->host[i].weights = host_copy(r, g->weights[i], g->weights_bytes);
    }
}

/* Copy batch i into the ticket's arrays, in stream order. */
static void load(const ring *g, test_ticket *l, int i) {
    hotbed_stream *s = l->r->stream;
    CHECK_OK(hotbed_copy((void *)l->device.keys, g->keys[i], g->keys_bytes, s));
    CHECK_OK(hotbed_copy((void *)l->device.offsets, g->offsets[i], g->offsets_bytes, s));
    CHECK_OK(hotbed_copy((void *)l->device.weights, g->weights[i], g->weights_bytes, s));
    CHECK_OK(hotbed_copy(l->gradient, g->gradients[i], g->gradient_bytes, s));
}

static void record_step(test_ticket *l, bool two_calls, hotbed_graph **graph) {
    fixture *r = l->r;
    const hotbed_batch batch = test_ticket_batch(l);
    CHECK_OK(hotbed_graph_begin(r->stream));
    if (two_calls) {
        CHECK_OK(hotbed_storage_prefetch(r->storage, &batch, l->ticket, r->stream));
        CHECK_OK(hotbed_storage_forward(r->storage, l->ticket, l->output, l->stride, r->stream));
    } else {
        CHECK_OK(hotbed_storage_prefetch_forward(
            r->storage, &batch, l->ticket, l->output, l->stride, r->stream));
    }
    CHECK_OK(hotbed_storage_backward(r->storage, l->ticket, l->gradient, l->stride, r->stream));
    CHECK_OK(hotbed_graph_end(r->stream, graph));
}

/* Train batch i in the model; `gradient` is in host memory. */
static void model_step(const ring *g, test_ticket *l, int i, void *gradient) {
    oracle_prefetch(l->r->model, &g->host[i], l->model, NULL);
    memset(l->scratch[1], 0, (size_t)l->output_bytes);
    oracle_forward(l->model, l->scratch[1], l->stride);
    oracle_backward(l->model, gradient, l->stride);
}

static void compare_output(test_ticket *l) {
    const oracle *m = l->r->model;
    uint64_t stride = l->stride == 0 ? oracle_least_stride(m) : l->stride;
    uint64_t rows = m->options.pooling == HOTBED_POOL_NONE ? l->model->num_keys : BATCH;
    fixture_download(l->r, l->scratch[0], l->output, rows * stride * sizeof(float));
    CHECK_BYTES(l->scratch[0], l->scratch[1], rows * stride * sizeof(float));
}

static void train(
    hotbed_backend backend, hotbed_pooling pooling, hotbed_optimizer_kind kind, bool two_calls,
    int launches) {
    static ring g;
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start((uint64_t)kind);
    hotbed_graph *graph;
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    void *gradients[RING];
    three_tables(&s, pooling, kind);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    fill_ring(&g, &l, &random);
    for (int i = 0; i < RING; i++)
        gradients[i] = host_copy(&r, g.gradients[i], g.gradient_bytes);
    record_step(&l, two_calls, &graph);
    CHECK_EQ(fixture_size(&r, 0), 0); /* recording has run nothing */
    for (int i = 0; i < launches; i++) {
        if (i == launches / 2) { /* later launches use the new rate */
            CHECK_OK(hotbed_storage_set_learning_rate(r.storage, 0.03125F, r.stream));
            r.model->state.learning_rate = 0.03125F;
        }
        int batch = (int)rng_below(&random, RING);
        CHECK_OK(hotbed_fill(l.output, 0, l.output_bytes, r.stream));
        hotbed_counters_read(&before);
        load(&g, &l, batch);
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        model_step(&g, &l, batch, gradients[batch]);
        if (i % 50 == 49)
            compare_output(&l);
    }
    compare_output(&l);
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

static void a_step_is_launched_1000_times(hotbed_backend backend) {
    train(backend, HOTBED_POOL_SUM, HOTBED_OPT_ADAM, false, hotbed_test_is_small() ? 60 : 1000);
}

static void sequences_and_means_can_be_recorded(hotbed_backend backend) {
    const int launches = hotbed_test_is_small() ? 20 : 100;
    train(backend, HOTBED_POOL_NONE, HOTBED_OPT_SGD, true, launches);
    train(backend, HOTBED_POOL_NONE, HOTBED_OPT_SGD, false, launches);
    train(backend, HOTBED_POOL_MEAN, HOTBED_OPT_ADAGRAD, true, launches);
    train(backend, HOTBED_POOL_SUM, HOTBED_OPT_ROWWISE_ADAGRAD, false, launches);
}

/* Two tickets in one graph, one a batch ahead of the other, as in a pipeline. */
static void a_graph_may_use_two_tickets(hotbed_backend backend) {
    static ring g;
    setup s;
    fixture r;
    test_ticket a, b;
    rng random = rng_start(50);
    hotbed_graph *graph;
    void *gradients[RING];
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_ADAM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &a, MAX_KEYS, BATCH);
    test_ticket_open(&r, &b, MAX_KEYS, BATCH);
    fill_ring(&g, &a, &random);
    fill_ring(&g, &b, &random); /* both tickets use these batches */
    for (int i = 0; i < RING; i++)
        gradients[i] = host_copy(&r, g.gradients[i], g.gradient_bytes);
    a.stride = b.stride;
    const hotbed_batch first = test_ticket_batch(&a), second = test_ticket_batch(&b);
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &first, a.ticket, r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &second, b.ticket, r.stream));
    CHECK_OK(hotbed_storage_backward(r.storage, a.ticket, b.gradient, b.stride, r.stream));
    CHECK_OK(hotbed_storage_backward(r.storage, b.ticket, b.gradient, b.stride, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int i = 0; i < 40; i++) {
        int x = (int)rng_below(&random, RING), y = (int)rng_below(&random, RING);
        CHECK_OK(hotbed_copy((void *)a.device.keys, g.keys[x], g.keys_bytes, r.stream));
        CHECK_OK(hotbed_copy((void *)a.device.offsets, g.offsets[x], g.offsets_bytes, r.stream));
        CHECK_OK(hotbed_copy((void *)a.device.weights, g.weights[x], g.weights_bytes, r.stream));
        load(&g, &b, y);
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        oracle_prefetch(r.model, &g.host[x], a.model, NULL);
        oracle_prefetch(r.model, &g.host[y], b.model, NULL);
        oracle_backward(a.model, gradients[y], b.stride);
        oracle_backward(b.model, gradients[y], b.stride);
    }
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

static void eval_can_be_recorded(hotbed_backend backend) {
    static ring g;
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(51);
    hotbed_graph *graph;
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_SGD);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 15};
    test_ticket_step(&l, &random, &how);
    fill_ring(&g, &l, &random);
    const hotbed_batch batch = test_ticket_batch(&l);
    test_ticket_eval(&l); /* allocates the workspace */
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_eval(r.storage, &batch, l.output, l.stride, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int i = 0; i < RING; i++) {
        load(&g, &l, i);
        CHECK_OK(hotbed_fill(l.output, 0, l.output_bytes, r.stream));
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        memset(l.scratch[1], 0, (size_t)l.output_bytes);
        oracle_eval(r.model, &g.host[i], l.scratch[1], l.stride);
        compare_output(&l);
    }
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

/* Calls that wait or allocate cannot be recorded; refusing them leaves the recording valid. */
static void waiting_calls_are_refused_while_recording(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(52);
    hotbed_graph *graph;
    hotbed_ticket *ticket = NULL;
    hotbed_storage_state state = {.size = sizeof state};
    uint64_t n, pinned;
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_SGD);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 15};
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_fill(l.gradient, 0, l.output_bytes, r.stream));
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
    CHECK_STATUS(hotbed_storage_size(r.storage, 0, &n, &pinned, r.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_storage_export_keys(r.storage, 0, 0, NULL, NULL, &n, r.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_storage_get_state(r.storage, &state, r.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_ticket_create(r.storage, MAX_KEYS, BATCH, r.stream, &ticket), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_storage_backward(r.storage, l.ticket, l.gradient, l.stride, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    CHECK_OK(hotbed_graph_launch(graph, r.stream));
    hotbed_batch host = l.host;
    host.offsets = NULL;
    host.weights = NULL;
    oracle_prefetch(r.model, &host, l.model, NULL);
    memset(l.scratch[0], 0, (size_t)l.output_bytes);
    oracle_backward(l.model, l.scratch[0], l.stride);
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

static void eager_steps_neither_wait_nor_allocate(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(53);
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_ADAM);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .max_bag = 3, .weights = true};
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_fill(l.gradient, 0, l.output_bytes, r.stream));
    hotbed_counters_read(&before); /* the first step does not allocate, either */
    const int steps = hotbed_test_is_small() ? 20 : 200;
    for (int i = 0; i < steps; i++) {
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
        CHECK_OK(hotbed_storage_forward(r.storage, l.ticket, l.output, l.stride, r.stream));
        CHECK_OK(hotbed_storage_backward(r.storage, l.ticket, l.gradient, l.stride, r.stream));
        CHECK_OK(hotbed_storage_set_learning_rate(r.storage, 0.5F, r.stream));
    }
    hotbed_counters_read(&after);
    CHECK_EQ(after.host_waits - before.host_waits, 0);
    CHECK_EQ(after.allocations - before.allocations, 0);
    CHECK(after.launches > before.launches);
    fixture_close(&r);
}

/* Launches count, admit and score keys; compared with plain counts. */
static void admission_and_counts_are_recorded(hotbed_backend backend) {
    enum { KEYS = 40, THRESHOLD = 5, LAUNCHES = 60 };
    setup s;
    fixture r;
    hotbed_ticket *ticket;
    hotbed_graph *graph;
    hotbed_batch batch;
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    rng random = rng_start(40);
    uint64_t seen[KEYS] = {0}, score[KEYS] = {0}, rejected = 0;
    setup_start(&s, 1, 4, 100);
    s.tables[0].score = HOTBED_SCORE_LFU;
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s.tables[0].admission_threshold = THRESHOLD;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_ticket_create(r.storage, MAX_KEYS, MAX_KEYS, r.stream, &ticket));
    float *gradient = fixture_alloc(&r, MAX_KEYS * 4 * sizeof(float));
    float *output = fixture_alloc(&r, MAX_KEYS * 4 * sizeof(float));
    uint64_t *keys = fixture_alloc(&r, MAX_KEYS * sizeof *keys);
    batch = (hotbed_batch){
        .size = sizeof batch, .batch_size = MAX_KEYS, .num_keys = MAX_KEYS, .keys = keys};
    CHECK_OK(hotbed_fill(gradient, 0, MAX_KEYS * 4 * sizeof(float), r.stream));
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
    CHECK_OK(hotbed_storage_forward(r.storage, ticket, output, 0, r.stream));
    CHECK_OK(hotbed_storage_backward(r.storage, ticket, gradient, 0, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int launch = 0; launch < LAUNCHES; launch++) {
        uint64_t host[MAX_KEYS], counts[KEYS] = {0};
        /* low keys are frequent, high keys rare; the last one occurs once */
        uint64_t space = 1 + rng_below(&random, KEYS - 1);
        for (int i = 0; i < MAX_KEYS; i++) {
            host[i] = space - 1 - (i > 4 ? 0 : rng_below(&random, space));
            if (launch == 0 && i == 0)
                host[i] = KEYS - 1;
            counts[host[i]]++;
        }
        fixture_upload(&r, keys, host, sizeof host);
        hotbed_counters_read(&before);
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        hotbed_counters_read(&after);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        CHECK_OK(hotbed_stream_sync(r.stream));
        for (uint64_t k = 0; k < KEYS; k++) {
            seen[k] += counts[k];
            if (seen[k] >= THRESHOLD)
                score[k] += counts[k]; /* counted from the batch that admits the key */
            else
                rejected += counts[k] > 0;
        }
    }
    uint64_t exported[KEYS], scores[KEYS], n = 0, expected = 0;
    CHECK_OK(hotbed_storage_export_keys(r.storage, 0, KEYS, exported, scores, &n, r.stream));
    for (uint64_t k = 0; k < KEYS; k++)
        expected += score[k] > 0;
    CHECK_EQ(n, expected);
    CHECK(rejected > 0 && n < KEYS && n > KEYS / 4);
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(scores[i], score[exported[i]]);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
    CHECK_EQ(stats.rejected, rejected);
    CHECK_EQ(fixture_pinned(&r), 0);
    hotbed_graph_destroy(graph);
    hotbed_ticket_destroy(ticket);
    fixture_close(&r);
}

/* --- graphs of part of a step ---------------------------------------------------------------- */

/* A step in two graphs.  The host's state of the ticket does not change with launches; pins must follow them. */
typedef struct halves {
    fixture r;
    test_ticket l;
    rng random;
    hotbed_graph *first, *second; /* prefetch and forward; backward */
    uint64_t uniques;             /* distinct keys of hash tables in the batch */
} halves;

static void halves_open(halves *h, hotbed_backend backend) {
    setup s;
    three_tables(&s, HOTBED_POOL_SUM, HOTBED_OPT_ADAGRAD);
    h->random = rng_start(40);
    fixture_open(&h->r, backend, &s.options);
    test_ticket_open(&h->r, &h->l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 19};
    test_ticket_fill(&h->l, &h->random, &how);
    const hotbed_batch batch = test_ticket_batch(&h->l);
    hotbed_stream *stream = h->r.stream;
    CHECK_OK(hotbed_fill(h->l.gradient, 0, h->l.output_bytes, stream));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_storage_prefetch(h->r.storage, &batch, h->l.ticket, stream));
    CHECK_OK(hotbed_storage_forward(h->r.storage, h->l.ticket, h->l.output, h->l.stride, stream));
    CHECK_OK(hotbed_graph_end(stream, &h->first));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(
        hotbed_storage_backward(h->r.storage, h->l.ticket, h->l.gradient, h->l.stride, stream));
    CHECK_OK(hotbed_graph_end(stream, &h->second));
    CHECK_OK(hotbed_graph_launch(h->first, stream));
    CHECK_OK(hotbed_graph_launch(h->second, stream));
    h->uniques = fixture_size(&h->r, 0) + fixture_size(&h->r, 1);
    CHECK(h->uniques > 0);
    CHECK_EQ(fixture_pinned(&h->r), 0);
}

static uint64_t hash_pins(halves *h) {
    uint64_t pins[2];
    for (uint32_t t = 0; t < 2; t++)
        CHECK_OK(hotbed_storage_size(h->r.storage, t, NULL, &pins[t], h->r.stream));
    return pins[0] + pins[1];
}

static void halves_close(halves *h) {
    CHECK_EQ(fixture_pinned(&h->r), 0);
    for (uint32_t t = 0; t < 3; t++)
        CHECK_OK(hotbed_storage_clear(h->r.storage, t, h->r.stream));
    hotbed_graph_destroy(h->first);
    hotbed_graph_destroy(h->second);
    fixture_close(&h->r);
}

static void a_launched_prefetch_pins_rows(hotbed_backend backend) {
    halves h;
    halves_open(&h, backend);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hotbed_graph_launch(h.first, h.r.stream));
        CHECK_EQ(hash_pins(&h), h.uniques);
        for (uint32_t t = 0; t < 3; t++)
            CHECK_STATUS(hotbed_storage_clear(h.r.storage, t, h.r.stream), HOTBED_ERR_STATE);
        CHECK_OK(hotbed_storage_reset(h.r.storage, h.r.stream)); /* keeps pinned rows */
        CHECK_EQ(hash_pins(&h), h.uniques);
        if (i == 0)
            CHECK_OK(hotbed_graph_launch(h.second, h.r.stream));
        else
            CHECK_OK(hotbed_ticket_cancel(h.l.ticket, h.r.stream));
        CHECK_EQ(fixture_pinned(&h.r), 0);
    }
    halves_close(&h);
}

/* More launches than the pin count of a slot can hold. */
static void forwards_may_be_launched_without_backwards(hotbed_backend backend) {
    halves h;
    halves_open(&h, backend);
    for (int i = 0; i < 300; i++)
        CHECK_OK(hotbed_graph_launch(h.first, h.r.stream));
    CHECK_EQ(hash_pins(&h), h.uniques);
    const hotbed_batch batch = test_ticket_batch(&h.l);
    CHECK_OK(hotbed_storage_prefetch(h.r.storage, &batch, h.l.ticket, h.r.stream));
    CHECK_EQ(hash_pins(&h), h.uniques);
    CHECK_OK(hotbed_graph_launch(h.second, h.r.stream));
    CHECK_EQ(fixture_pinned(&h.r), 0);
    CHECK_OK(hotbed_ticket_cancel(h.l.ticket, h.r.stream));
    halves_close(&h);
}

static void a_ticket_may_be_destroyed_between_forward_and_backward(hotbed_backend backend) {
    for (int launched = 0; launched < 3; launched++) {
        halves h;
        halves_open(&h, backend);
        if (launched == 1)
            CHECK_OK(hotbed_graph_launch(h.first, h.r.stream));
        hotbed_ticket *other; /* first only its prefetch is recorded, then only its backward */
        const hotbed_batch batch = test_ticket_batch(&h.l);
        CHECK_OK(hotbed_ticket_create(h.r.storage, MAX_KEYS, BATCH, h.r.stream, &other));
        hotbed_graph *graph;
        if (launched == 2)
            CHECK_OK(hotbed_storage_prefetch(h.r.storage, &batch, other, h.r.stream));
        CHECK_OK(hotbed_graph_begin(h.r.stream));
        if (launched == 2)
            CHECK_OK(hotbed_storage_backward(h.r.storage, other, h.l.gradient, 0, h.r.stream));
        else
            CHECK_OK(hotbed_storage_prefetch(h.r.storage, &batch, other, h.r.stream));
        CHECK_OK(hotbed_graph_end(h.r.stream, &graph));
        CHECK_EQ(hash_pins(&h), launched == 0 ? 0 : h.uniques);
        hotbed_ticket_destroy(other);
        CHECK_EQ(hash_pins(&h), launched == 1 ? h.uniques : 0);
        hotbed_ticket_destroy(h.l.ticket);
        h.l.ticket = NULL;
        hotbed_graph_destroy(graph);
        halves_close(&h);
    }
}

/* Eager calls alternate with launches, with batches of other sizes. */
static void launches_and_eager_calls_may_alternate(hotbed_backend backend) {
    halves h;
    halves_open(&h, backend);
    const hotbed_batch whole = test_ticket_batch(&h.l);
    for (int i = 0; i < 60; i++) {
        hotbed_batch small = whole;
        small.batch_size = 0, small.num_keys = 0, small.offsets = NULL;
        hotbed_stream *s = h.r.stream;
        switch (rng_below(&h.random, 5)) {
        case 0:
            CHECK_OK(hotbed_storage_prefetch(h.r.storage, &whole, h.l.ticket, s));
            CHECK_EQ(hash_pins(&h), h.uniques);
            break;
        case 1:
            CHECK_OK(hotbed_storage_prefetch(h.r.storage, &small, h.l.ticket, s));
            CHECK_EQ(hash_pins(&h), 0);
            break;
        case 2:
            CHECK_OK(hotbed_ticket_cancel(h.l.ticket, s));
            CHECK_EQ(hash_pins(&h), 0);
            break;
        case 3:
            CHECK_OK(hotbed_graph_launch(h.first, s));
            CHECK_EQ(hash_pins(&h), h.uniques);
            break;
        default:
            CHECK_OK(hotbed_graph_launch(h.first, s));
            CHECK_OK(hotbed_graph_launch(h.second, s));
            CHECK_EQ(hash_pins(&h), 0);
            break;
        }
    }
    CHECK_OK(hotbed_ticket_cancel(h.l.ticket, h.r.stream));
    halves_close(&h);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_step_is_launched_1000_times)},
    {TEST(sequences_and_means_can_be_recorded)},
    {TEST(a_graph_may_use_two_tickets)},
    {TEST(eval_can_be_recorded)},
    {TEST(waiting_calls_are_refused_while_recording)},
    {TEST(eager_steps_neither_wait_nor_allocate)},
    {TEST(admission_and_counts_are_recorded)},
    {TEST(a_launched_prefetch_pins_rows)},
    {TEST(forwards_may_be_launched_without_backwards)},
    {TEST(a_ticket_may_be_destroyed_between_forward_and_backward)},
    {TEST(launches_and_eager_calls_may_alternate)},
    {NULL, NULL},
};
