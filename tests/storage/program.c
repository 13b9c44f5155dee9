/* tests/storage/program.c - random programs of calls on a storage, run beside the model.
 *
 * Prefetches run on one stream, forward, backward and the like on another one or the same.  Calls that need the storage
 * for themselves are ordered with events.
 */
#include "tests/storage/program.h"

#include "hotbed/export.h"
#include "hotbed/storage.h"
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdlib.h>

enum {
    TICKETS = 3,
    BATCH = 4,
    TICKET_KEYS = 64,
    ROWS = 24,
    DIM_MOST = 33,
    TABLES = 3,
    ALL_ROWS = 512
};

/* --- options and operations of a seed -------------------------------------------------------- */

typedef enum operation_kind {
    PREFETCH,
    FORWARD,
    BACKWARD,
    ACCUMULATE, /* reduce, reduce, apply */
    CANCEL,
    KEEP,
    RETAKE,
    FORGET,
    RENEW, /* destroy the ticket, and create it again */
    EVAL,
    SET,
    OFFER,
    GET,
    ERASE,
    CLEAR,
    EXPORT,
    IMPORT_COUNTS,
    GROW,
    FLUSH,
    RESET,
    RATE,
    SCORE,
    STATE,
    CHECK_ALL,
    KINDS
} operation_kind;

static const char *const kind_names[KINDS] = {
    "prefetch",
    "forward",
    "backward",
    "reduce, reduce, apply",
    "cancel",
    "keep",
    "retake",
    "forget",
    "renew the ticket",
    "eval",
    "set_rows",
    "offer_rows",
    "get_rows",
    "erase",
    "clear",
    "export",
    "import_counts",
    "grow",
    "flush",
    "reset",
    "set_learning_rate",
    "set_score",
    "set_state",
    "check all"};

/* Frequency of each kind, in percent. */
static const uint8_t kind_weights[KINDS] = {24, 12, 12, 3, 3, 2, 2, 1, 2, 6, 6, 3,
                                            3,  4,  1,  2, 1, 2, 2, 2, 2, 1, 1, 3};

typedef struct program_shape {
    bool follows_slots; /* the library chooses which keys get slots, and the model follows */
    bool two_streams;   /* one for prefetches, one for the rest of a step */
    bool external;
    uint32_t tickets;
    uint64_t key_space;
    bool extremes;
} program_shape;

/* A number below n; 0 at least every second time. */
static uint32_t often_0(rng *random, uint32_t n) {
    return rng_below(random, 2) == 0 ? 0 : (uint32_t)rng_below(random, n);
}

static void choose_table(setup *s, uint32_t t, program_shape *shape, bool tight, rng *random) {
    static const uint32_t dims[] = {1, 2, 3, 4, 7, 8, 16, 33};
    hotbed_table_options *table = &s->tables[t];
    table->dim = dims[rng_below(random, 8)];
    table->dtype = (hotbed_dtype)(1 + often_0(random, HOTBED_DTYPE_LAST));
    table->state_dtype = (table->dim + t) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
    /* Initial values that the model can compute.  DEBUG gives large keys, which F16 would turn into infinities. */
    table->initializer = (hotbed_initializer){.kind = HOTBED_INIT_DEBUG};
    if (table->dtype == HOTBED_F16 || rng_below(random, 4) == 0)
        table->initializer = (hotbed_initializer){
            .kind = HOTBED_INIT_CONSTANT, .value = (float)rng_below(random, 3) - 1.0F};
    table->eval_initializer.value = (float)rng_below(random, 2);
    table->insertion = (hotbed_insertion)rng_below(random, 3);
    if (rng_below(random, 5) == 0) {
        table->kind = HOTBED_TABLE_STATIC;
        table->insertion = HOTBED_INSERT_AUTO;
        table->capacity = 1 + rng_below(random, 40);
    } else {
        table->capacity = tight ? 1 + rng_below(random, 60) : 400;
        table->score = (hotbed_score_strategy)often_0(random, 5);
        if (rng_below(random, 4) == 0) {
            table->admission = HOTBED_ADMIT_FREQUENCY;
            table->admission_threshold = 1 + rng_below(random, 5);
            table->admission_capacity = 2000;
        } else if (!tight && rng_below(random, 6) == 0) {
            table->admission = HOTBED_ADMIT_PROBABILISTIC;
            table->admission_probability = 0.5F;
            shape->follows_slots = true;
        }
        if (tight && !shape->external && rng_below(random, 2) == 0)
            table->evict = HOTBED_EVICT_LOWEST;
        if (!shape->external && rng_below(random, 3) == 0)
            table->max_capacity = table->capacity + rng_below(random, 300);
    }
    table->upper_capacity = tight ? table->capacity / 5 + 1 : 100 + rng_below(random, 200);
    if (shape->external && !tight)
        table->upper_capacity = 600; /* enough that pinned rows never make it refuse a key */
}

/* Choose options and shape of the program of `seed`. */
static void choose(uint64_t seed, setup *s, program_shape *shape) {
    rng random = {seed * 2 + 1};
    uint32_t tables = 1 + (uint32_t)rng_below(&random, TABLES);
    setup_start(s, tables, 1, 1);
    memset(shape, 0, sizeof *shape);
    shape->tickets = 1 + (uint32_t)rng_below(&random, TICKETS);
    shape->two_streams = rng_below(&random, 2) == 0;
    shape->extremes = rng_below(&random, 3) == 0;
    shape->key_space = 5 + rng_below(&random, 60);
    bool tight = rng_below(&random, 2) == 0;
    shape->follows_slots = tight;
    if (tight) /* more keys than the 32 slots of the smallest tables */
        shape->key_space += rng_below(&random, 60);
    switch (rng_below(&random, 5)) {
    case 0:
        s->options.mode = HOTBED_MODE_HBM_DIRECT;
        break;
    case 1:
        s->options.mode = HOTBED_MODE_CACHE;
        break;
    case 2:
        s->options.mode = HOTBED_MODE_DEFAULT;
        break;
    case 3:
        s->options.mode = HOTBED_MODE_DEFAULT;
        s->options.placement = HOTBED_PLACE_BY_HASH;
        break;
    default:
        s->options.mode = HOTBED_MODE_CACHE;
        shape->external = true;
        break;
    }
    for (uint32_t t = 0; t < tables; t++)
        choose_table(s, t, shape, tight, &random);
    for (uint32_t t = 0; t < tables; t++)
        for (uint64_t f = rng_below(&random, 3); f < 3; f += 2)
            setup_feature(s, t);
    if (s->options.num_features == 0)
        setup_feature(s, 0);
    if (!shape->external && rng_below(&random, 3) == 0)
        s->options.lower_index_memory = HOTBED_MEMORY_PINNED;
    s->options.pooling = (hotbed_pooling)rng_below(&random, 3);
    s->options.output_dtype = (hotbed_dtype)(1 + often_0(&random, 3));
    s->options.check = (hotbed_check)often_0(&random, 3);
    s->options.optimizer.kind = (hotbed_optimizer_kind)(1 + rng_below(&random, 4));
    s->options.optimizer.max_gradient = often_0(&random, 2) == 0 ? 0.0F : 0.5F;
    s->options.optimizer.weight_decay = often_0(&random, 2) == 0 ? 0.0F : 0.0625F;
    s->options.optimizer.initial_accumulator = often_0(&random, 2) == 0 ? 0.0F : 0.25F;
}

typedef struct operation {
    operation_kind kind;
    rng random;
} operation;

static operation operation_of(uint64_t seed, uint32_t number) {
    rng random = {seed ^ (uint64_t)(number + 1) << 40};
    operation o = {PREFETCH, {rng_next(&random)}};
    uint64_t at = rng_below(&random, 100);
    uint32_t kind = 0;
    for (uint64_t end = kind_weights[0]; at >= end && kind + 1 < KINDS; end += kind_weights[++kind])
        continue;
    o.kind = (operation_kind)kind;
    return o;
}

uint32_t program_length(uint64_t seed) {
    rng random = {seed * 2};
    return 4 + (uint32_t)rng_below(&random, PROGRAM_OPERATIONS - 3);
}

void program_print(uint64_t seed, uint64_t mask, FILE *file) {
    setup s;
    program_shape shape;
    choose(seed, &s, &shape);
    fprintf(
        file, "mode %d, placement %d%s, index %s, pooling %d, output %d, check %d, optimizer %d\n",
        (int)s.options.mode, (int)s.options.placement, shape.external ? ", external store" : "",
        s.options.lower_index_memory == 0 ? "device" : "pinned", (int)s.options.pooling,
        (int)s.options.output_dtype, (int)s.options.check, (int)s.options.optimizer.kind);
    for (uint32_t t = 0; t < s.options.num_tables; t++) {
        const hotbed_table_options *o = &s.tables[t];
        fprintf(
            file,
            "table %u: %s, dim %u, dtype %d, states %d, capacity %llu up to %llu, upper %llu, "
            "evict %d, score "
            "%d, "
            "insertion %d, admission %d from %llu on\n",
            t, o->kind == HOTBED_TABLE_STATIC ? "static" : "hash", o->dim, (int)o->dtype,
            (int)o->state_dtype, (unsigned long long)o->capacity,
            (unsigned long long)o->max_capacity, (unsigned long long)o->upper_capacity,
            (int)o->evict, (int)o->score, (int)o->insertion, (int)o->admission,
            (unsigned long long)o->admission_threshold);
    }
    fprintf(file, "features of tables");
    for (uint32_t f = 0; f < s.options.num_features; f++)
        fprintf(file, " %u", s.features[f]);
    fprintf(
        file, "; %u tickets on %d streams, %llu keys%s\n", shape.tickets, shape.two_streams ? 2 : 1,
        (unsigned long long)shape.key_space, shape.extremes ? " and extreme ones" : "");
    for (uint32_t i = 0; i < program_length(seed); i++)
        if ((mask >> i & 1) != 0) {
            operation o = operation_of(seed, i);
            fprintf(
                file, "  %2u %s, of ticket or table %llu\n", i, kind_names[o.kind],
                (unsigned long long)rng_below(&o.random, TICKETS));
        }
}

/* --- running a program ----------------------------------------------------------------------- */

typedef struct parts {
    unsigned char weights[ROWS * DIM_MOST * 4];
    float states[2][ROWS * DIM_MOST];
    uint64_t scores[ROWS], times[ROWS];
    uint8_t found[ROWS];
} parts;

typedef struct runner {
    setup s;
    program_shape shape;
    fixture r;
    hotbed_stream *ahead, *training; /* for prefetches and for steps; may be the same */
    hotbed_event *moved;             /* recorded behind the last exclusive call */
    hotbed_event *trained;           /* recorded behind the last call on `training` */
    test_ticket tickets[TICKETS], evals;
    hotbed_event *prefetched[TICKETS];
    bool kept[TICKETS];
    uint64_t *device_keys; /* [ROWS] */
    uint64_t *all_keys;    /* [ALL_ROWS] */
    uint8_t *all_found;    /* [ALL_ROWS] */
    parts *device;
    float *sums; /* [TICKET_KEYS, largest dim] */
} runner;

/* Initial values as the header defines them. */
static void initial(void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights) {
    const runner *p = self;
    const hotbed_table_options *o = &p->s.tables[table];
    for (uint64_t i = 0; i < n; i++) {
        float row[DIM_MOST];
        for (uint32_t e = 0; e < o->dim; e++)
            row[e] = o->initializer.kind == HOTBED_INIT_DEBUG ? (float)(keys[i] % 100000)
                                                              : o->initializer.value;
        oracle_row_round(o->dtype, o->dim, row, weights, i);
    }
}

static void runner_open(runner *p, hotbed_backend backend, uint64_t seed) {
    memset(p, 0, sizeof *p);
    choose(seed, &p->s, &p->shape);
    hotbed_external *store = NULL;
    if (p->shape.external)
        fixture_store(&p->s.options, &store);
    p->s.options.external = store;
    fixture_open_bare(&p->r, backend, &p->s.options);
    p->r.store = store;
    p->r.model = oracle_create(&p->s.options, initial, p);
    p->r.model->by_row = fixture_by_row(&p->r);
    p->ahead = p->training = p->r.stream;
    if (p->shape.two_streams)
        CHECK_OK(hotbed_stream_create(backend, 0, &p->training));
    CHECK_OK(hotbed_event_create(p->r.stream, &p->moved));
    CHECK_OK(hotbed_event_create(p->r.stream, &p->trained));
    for (uint32_t l = 0; l < p->shape.tickets; l++) {
        test_ticket_open(&p->r, &p->tickets[l], TICKET_KEYS, BATCH);
        CHECK_OK(hotbed_event_create(p->r.stream, &p->prefetched[l]));
    }
    test_ticket_open(&p->r, &p->evals, TICKET_KEYS, BATCH);
    p->device_keys = fixture_alloc(&p->r, ROWS * sizeof(uint64_t));
    p->all_keys = fixture_alloc(&p->r, ALL_ROWS * sizeof(uint64_t));
    p->all_found = fixture_alloc(&p->r, ALL_ROWS);
    p->device = fixture_alloc(&p->r, sizeof *p->device);
    p->sums = fixture_alloc(&p->r, (uint64_t)TICKET_KEYS * DIM_MOST * sizeof(float));
}

/* Let the next call run on `training`, after the prefetch of ticket l and after the last exclusive call. */
static void on_training(runner *p, uint32_t l) {
    CHECK_OK(hotbed_stream_wait(p->training, p->moved));
    CHECK_OK(hotbed_stream_wait(p->training, p->prefetched[l]));
    p->r.stream = p->training;
}

static void end_training(runner *p) {
    CHECK_OK(hotbed_event_record(p->trained, p->training));
    p->r.stream = p->ahead;
}

/* Order the next call, on `ahead`, behind all calls so far; end_exclusive() orders later steps behind it. */
static void begin_exclusive(runner *p) {
    CHECK_OK(hotbed_stream_wait(p->ahead, p->trained));
}

static void end_exclusive(runner *p) {
    CHECK_OK(hotbed_event_record(p->moved, p->ahead));
}

/* --- kept pins ------------------------------------------------------------------------------- */

static void model_pin(runner *p, uint32_t l, bool on) {
    const oracle_ticket *ticket = p->tickets[l].model;
    oracle *m = p->r.model;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++)
            if (ticket->rows[u] != UINT32_MAX)
                m->tables[t].rows[ticket->rows[u]].pins += on ? 1 : UINT32_MAX;
}

static void model_forget(runner *p, uint32_t l) {
    if (p->kept[l])
        model_pin(p, l, false);
    p->kept[l] = false;
}

static uint32_t held_tickets(const runner *p) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < p->shape.tickets; l++)
        n += p->tickets[l].model->held || p->kept[l];
    return n;
}

/* --- the keys of a table --------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t model_keys(const oracle_table *table, uint64_t *keys) {
    uint64_t n = 0;
    CHECK(table->size <= ALL_ROWS);
    for (uint32_t i = 0; i < table->num_rows; i++)
        if (table->rows[i].live)
            keys[n++] = table->rows[i].key;
    qsort(keys, n, sizeof *keys, by_value);
    return n;
}

/* --- tables that evict ----------------------------------------------------------------------- */

/* Evict from the model the keys that the library has evicted, and check that none was pinned.  Returns their number.
 * get_rows finds them, because an export would flush the upper tier each time. */
static uint64_t follow_evictions(runner *p, uint32_t number) {
    uint64_t keys[ALL_ROWS], gone = 0;
    uint8_t found[ALL_ROWS];
    oracle_table *table = &p->r.model->tables[number];
    uint64_t n = model_keys(table, keys);
    fixture_upload(&p->r, p->all_keys, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_get_rows(
        p->r.storage, number, n, p->all_keys, NULL, p->all_found, p->r.stream));
    fixture_download(&p->r, found, p->all_found, n);
    for (uint64_t i = 0; i < n; i++)
        if (found[i] != 1) {
            CHECK_EQ(oracle_find(p->r.model, number, keys[i])->pins, 0);
            CHECK(oracle_evict(p->r.model, number, keys[i]));
            gone++;
        }
    return gone;
}

static void follow_all(runner *p) {
    for (uint32_t t = 0; t < p->r.model->num_tables; t++)
        if (p->s.tables[t].evict != HOTBED_EVICT_NEVER)
            (void)follow_evictions(p, t);
}

static uint64_t all_refused(const runner *p) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < p->r.model->num_tables; t++)
        n += p->r.model->tables[t].stats.refused;
    return n;
}

/* --- the step -------------------------------------------------------------------------------- */

static batch_shape any_recipe(const runner *p, rng *random) {
    batch_shape how = {
        .batch_size = (uint32_t)rng_below(random, BATCH + 1),
        .max_bag = (uint32_t)rng_below(random, 4),
        .key_space = p->shape.key_space,
        .weights = rng_below(random, 2) == 0,
        .counts = rng_below(random, 3) == 0,
        .extremes = p->shape.extremes,
        .one_key = rng_below(random, 12) == 0,
        .bound = rng_below(random, 2) == 0,
    };
    return how;
}

/* Now and then, put a key into the batch that a static table does not have. */
static void spoil_key(runner *p, test_ticket *l, rng *random) {
    if (!p->shape.follows_slots || l->num_keys == 0 || rng_below(random, 8) != 0)
        return;
    uint64_t *keys = (uint64_t *)l->host.keys;
    const oracle *m = p->r.model;
    for (uint64_t b = 0; b < (uint64_t)m->num_features * l->host.batch_size; b++) {
        const hotbed_table_options *o =
            &m->tables[m->feature_tables[b / l->host.batch_size]].options;
        if (o->kind == HOTBED_TABLE_STATIC && l->host.offsets[b + 1] > l->host.offsets[b])
            keys[l->host.offsets[b]] = o->capacity + rng_below(random, 3);
    }
    test_ticket_upload(l);
}

/* Call prefetch, backward or cancel.  If `launches` is not 0, record the call and launch it so many times instead. */
static void call_ticket(runner *p, test_ticket *l, operation_kind which, uint32_t launches) {
    bool record = launches > 0;
    hotbed_stream *stream = p->r.stream;
    const hotbed_batch batch = test_ticket_batch(l);
    hotbed_graph *graph = NULL;
    if (record)
        CHECK_OK(hotbed_graph_begin(stream));
    if (which == PREFETCH && !l->forwarded)
        CHECK_OK(hotbed_storage_prefetch(p->r.storage, &batch, l->ticket, stream));
    else if (which == PREFETCH)
        CHECK_OK(hotbed_storage_prefetch_forward(
            p->r.storage, &batch, l->ticket, l->output, l->stride, stream));
    else if (which == BACKWARD)
        CHECK_OK(hotbed_storage_backward(p->r.storage, l->ticket, l->gradient, l->stride, stream));
    else
        CHECK_OK(hotbed_ticket_cancel(l->ticket, stream));
    if (!record)
        return;
    CHECK_OK(hotbed_graph_end(stream, &graph));
    for (uint32_t i = 0; i < launches; i++)
        CHECK_OK(hotbed_graph_launch(graph, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_graph_destroy(graph);
}

static void prefetch(runner *p, uint32_t l, rng *random) {
    test_ticket *mine = &p->tickets[l];
    oracle *m = p->r.model;
    begin_exclusive(p); /* the ticket's previous step may still read the arrays */
    const batch_shape how = any_recipe(p, random);
    test_ticket_fill(mine, random, &how);
    spoil_key(p, mine, random);
    model_forget(p, l);
    if (!p->shape.follows_slots) {
        uint32_t launches = rng_below(random, 6) == 0 ? 1 + (uint32_t)rng_below(random, 2) : 0;
        const hotbed_batch batch = {
            .size = sizeof batch,
            .batch_size = mine->host.batch_size,
            .num_keys = mine->host.num_keys,
            .keys = mine->host.keys,
            .offsets = mine->use_offsets ? mine->host.offsets : NULL,
            .weights = mine->use_weights ? mine->host.weights : NULL,
            .counts = mine->use_counts ? mine->host.counts : NULL,
        };
        mine->forwarded = !mine->forwarded;
        call_ticket(p, mine, PREFETCH, launches);
        for (uint32_t i = 0; i < launches || i == 0; i++)
            oracle_prefetch(m, &batch, mine->model, NULL);
    } else {
        uint64_t refused = all_refused(p);
        hotbed_status status = test_ticket_prefetch_with_slots(mine);
        bool faults = all_refused(p) > refused && p->s.options.check == HOTBED_CHECK_ERROR;
        CHECK_EQ(status != HOTBED_OK, faults);
        CHECK(!faults || status == HOTBED_ERR_FULL || status == HOTBED_ERR_RANGE);
        follow_all(p);
    }
    test_ticket_check(mine);
    CHECK_OK(hotbed_event_record(p->prefetched[l], p->ahead));
    if (p->shape.follows_slots)
        end_exclusive(p);
}

static void any_gradient(runner *p, test_ticket *l, rng *random) {
    hotbed_dtype dtype = p->r.model->options.output_dtype;
    for (uint64_t i = 0; i < l->output_bytes / hotbed_dtype_bytes(dtype); i++)
        oracle_store(dtype, l->scratch[0], i, rng_float(random));
    fixture_upload(&p->r, l->gradient, l->scratch[0], l->output_bytes);
}

static void train(runner *p, uint32_t l, operation_kind kind, rng *random) {
    test_ticket *mine = &p->tickets[l];
    if (!mine->model->held) {
        if (kind != CANCEL)
            CHECK_STATUS(
                hotbed_storage_forward(p->r.storage, mine->ticket, mine->output, 0, p->ahead),
                HOTBED_ERR_STATE);
        return;
    }
    uint32_t launches = rng_below(random, 8) == 0;
    on_training(p, l);
    if (kind == FORWARD) {
        test_ticket_forward(mine);
    } else if (kind == CANCEL) {
        call_ticket(p, mine, CANCEL, launches);
        oracle_cancel(mine->model);
    } else if (kind == BACKWARD) {
        any_gradient(p, mine, random);
        call_ticket(p, mine, BACKWARD, launches);
        oracle_backward(mine->model, mine->scratch[0], mine->stride);
    } else {
        float sums[TICKET_KEYS * DIM_MOST] = {0};
        for (int i = 0; i < 2; i++) {
            any_gradient(p, mine, random);
            CHECK_OK(hotbed_storage_reduce(
                p->r.storage, mine->ticket, mine->gradient, mine->stride, i > 0, p->sums,
                p->r.stream));
            oracle_reduce(mine->model, mine->scratch[0], mine->stride, i > 0, sums);
        }
        CHECK_OK(hotbed_storage_apply(p->r.storage, mine->ticket, p->sums, p->r.stream));
        oracle_apply(mine->model, sums);
    }
    end_training(p);
}

static void keep(runner *p, uint32_t l, operation_kind kind) {
    test_ticket *mine = &p->tickets[l];
    begin_exclusive(p);
    if (kind == RENEW) {
        model_forget(p, l);
        oracle_ticket_destroy(mine->model);
        mine->model = oracle_ticket_create(p->r.model);
        hotbed_ticket_destroy(mine->ticket);
        CHECK_OK(hotbed_ticket_create(p->r.storage, TICKET_KEYS, BATCH, p->ahead, &mine->ticket));
    } else if (kind == FORGET) {
        CHECK_OK(hotbed_ticket_forget(mine->ticket, p->ahead));
        model_forget(p, l);
    } else if (kind == KEEP) {
        hotbed_status expected = !mine->model->held  ? HOTBED_ERR_STATE
                                 : p->shape.external ? HOTBED_ERR_UNSUPPORTED
                                                     : HOTBED_OK;
        CHECK_STATUS(hotbed_ticket_keep(mine->ticket, p->ahead), expected);
        if (expected == HOTBED_OK && !p->kept[l])
            model_pin(p, l, true);
        p->kept[l] = p->kept[l] || expected == HOTBED_OK;
    } else {
        CHECK_STATUS(
            hotbed_ticket_retake(mine->ticket, p->ahead),
            p->kept[l] ? HOTBED_OK : HOTBED_ERR_STATE);
        if (p->kept[l] && !mine->model->held) {
            model_pin(p, l, true);
            mine->model->held = true;
        }
    }
    CHECK_OK(hotbed_event_record(p->prefetched[l], p->ahead));
    end_exclusive(p);
}

static void eval(runner *p, rng *random) {
    const batch_shape how = any_recipe(p, random);
    begin_exclusive(p);
    test_ticket_fill(&p->evals, random, &how);
    test_ticket_eval(&p->evals);
    end_exclusive(p);
}

/* --- rows by key ----------------------------------------------------------------------------- */

static uint64_t any_key(const runner *p, uint32_t table, rng *random) {
    const hotbed_table_options *o = &p->s.tables[table];
    if (o->kind == HOTBED_TABLE_STATIC)
        return rng_below(random, o->capacity);
    if (p->shape.extremes && rng_below(random, 3) == 0)
        return rng_extreme_key(random);
    rng spread = {rng_below(random, p->shape.key_space)}; /* the same keys as test_ticket_fill() */
    return rng_next(&spread);
}

/* Choose distinct keys and copy them to the device. */
static uint64_t any_keys(runner *p, uint32_t table, rng *random, uint64_t *keys) {
    uint64_t wanted = rng_below(random, ROWS + 1), n = 0;
    for (uint64_t i = 0; i < wanted; i++) {
        uint64_t key = any_key(p, table, random), k = 0;
        while (k < n && keys[k] != key)
            k++;
        if (k == n)
            keys[n++] = key;
    }
    fixture_upload(&p->r, p->device_keys, keys, n * sizeof *keys);
    return n;
}

enum { WITH_WEIGHTS = 1, WITH_STATE0 = 2, WITH_STATE1 = 4, WITH_SCORES = 8, WITH_TIMES = 16 };

/* The parts in `which` that the table has. */
static unsigned parts_of(const runner *p, uint32_t table, unsigned which) {
    const hotbed_table_options *o = &p->s.tables[table];
    uint32_t states = hotbed_optimizer_states(p->s.options.optimizer.kind);
    which &= states > 1 ? ~0U : states > 0 ? ~4U : ~6U;
    if (o->kind == HOTBED_TABLE_STATIC)
        which &= ~(unsigned)(WITH_SCORES | WITH_TIMES);
    return o->score == HOTBED_SCORE_TIMESTAMP_LFU ? which : which & ~(unsigned)WITH_TIMES;
}

static unsigned any_parts(const runner *p, uint32_t table, rng *random) {
    return parts_of(p, table, (unsigned)rng_below(random, 32));
}

static hotbed_rows rows_of(parts *device, unsigned which) {
    hotbed_rows rows = {
        .weights = (which & WITH_WEIGHTS) != 0 ? device->weights : NULL,
        .states =
            {(which & WITH_STATE0) != 0 ? device->states[0] : NULL,
             (which & WITH_STATE1) != 0 ? device->states[1] : NULL},
        .scores = (which & WITH_SCORES) != 0 ? device->scores : NULL,
        .times = (which & WITH_TIMES) != 0 ? device->times : NULL,
    };
    return rows;
}

static void any_values(runner *p, uint32_t table, uint64_t n, rng *random, parts *to) {
    const oracle_table *m = &p->r.model->tables[table];
    for (uint64_t i = 0; i < n; i++) {
        float row[DIM_MOST];
        for (uint32_t e = 0; e < m->options.dim; e++)
            row[e] = rng_float(random);
        oracle_row_round(m->options.dtype, m->options.dim, row, to->weights, i);
    }
    for (int s = 0; s < 2; s++)
        for (uint64_t i = 0; i < n * m->state_dim[s]; i++) /* Adagrad's state cannot be negative */
            oracle_store(m->state_dtype[s], to->states[s], i, fabsf(rng_float(random)));
    for (uint64_t i = 0; i < n; i++) {
        to->scores[i] = rng_below(random, 1000);
        to->times[i] = rng_below(random, 1000);
    }
}

/* Set row i of a call in the model, after the library has accepted it. */
static void model_set(
    runner *p, uint32_t table, uint64_t key, uint64_t i, unsigned which, const parts *from) {
    oracle *m = p->r.model;
    const oracle_table *t = &m->tables[table];
    hotbed_score_strategy kind = t->options.score;
    bool fresh = oracle_find(m, table, key) == NULL, hash = t->options.kind == HOTBED_TABLE_HASH;
    oracle_row *row = oracle_put(m, table, key);
    if ((which & WITH_WEIGHTS) != 0)
        oracle_row_set(t, row, from->weights, i);
    for (unsigned s = 0; s < 2; s++)
        if ((which & ((unsigned)WITH_STATE0 << s)) != 0)
            oracle_state_set(t, row, s, from->states[s], i);
    if (fresh) {
        oracle_forget_count(m, table, key);
        row->time = m->time;
        row->score = kind == HOTBED_SCORE_STEP        ? m->state.clock
                     : kind == HOTBED_SCORE_CUSTOM    ? t->custom_score
                     : kind == HOTBED_SCORE_TIMESTAMP ? 0
                                                      : 1;
        if (!hash)
            row->score = 0;
    }
    if ((which & WITH_SCORES) != 0 && kind == HOTBED_SCORE_TIMESTAMP) {
        row->time = from->scores[i];
        row->set_time = true;
    } else if ((which & WITH_SCORES) != 0) {
        row->score = from->scores[i];
    }
    if ((which & WITH_TIMES) != 0) {
        row->time = from->times[i];
        row->set_time = true;
    }
}

/* Whether the library's admission counts a key. */
static bool is_counted(runner *p, uint32_t table, uint64_t key) {
    uint64_t keys[ALL_ROWS], n = 0, i = 0;
    CHECK_OK(
        hotbed_storage_export_counts(p->r.storage, table, ALL_ROWS, keys, NULL, &n, p->r.stream));
    while (i < n && keys[i] != key)
        i++;
    return i < n;
}

static void set(runner *p, uint32_t table, bool offer, rng *random) {
    uint64_t keys[ROWS];
    parts from;
    memset(&from, 0, sizeof from);
    begin_exclusive(p);
    uint64_t n = any_keys(p, table, random, keys), present = 0, taken = 0;
    bool evicts = p->s.tables[table].evict != HOTBED_EVICT_NEVER;
    unsigned which = any_parts(p, table, random);
    if (offer && evicts) /* a key that is evicted and inserted again has lost the other parts */
        which = parts_of(p, table, ~0U);
    any_values(p, table, n, random, &from);
    fixture_upload(&p->r, p->device, &from, sizeof from);
    const hotbed_rows rows = rows_of(p->device, which);
    CHECK_OK(
        offer
            ? hotbed_storage_offer_rows(p->r.storage, table, n, p->device_keys, &rows, p->r.stream)
            : hotbed_storage_set_rows(p->r.storage, table, n, p->device_keys, &rows, p->r.stream));
    hotbed_status status = hotbed_stream_sync(p->r.stream);
    CHECK_OK(hotbed_storage_get_rows(
        p->r.storage, table, n, p->device_keys, NULL, p->device->found, p->r.stream));
    fixture_download(&p->r, from.found, p->device->found, ROWS);
    for (uint64_t i = 0; i < n; i++) {
        bool had = oracle_find(p->r.model, table, keys[i]) != NULL;
        present += had && from.found[i] == 1;
        taken += from.found[i];
        CHECK(
            from.found[i] == 1 || !had ||
            (offer && evicts)); /* set_rows() evicts no key of its call */
        if (from.found[i] == 1)
            model_set(p, table, keys[i], i, which, &from);
        else if (evicts && offer && !is_counted(p, table, keys[i]))
            oracle_forget_count(
                p->r.model, table, keys[i]); /* it was inserted and evicted within the call */
    }
    /* An offered key that finds no row to evict is ignored; a set one is a fault. */
    CHECK_EQ(status, taken < n && !(offer && evicts) ? HOTBED_ERR_FULL : HOTBED_OK);
    CHECK(p->shape.follows_slots || status == HOTBED_OK);
    if (evicts) {
        uint64_t *counted = &p->r.model->tables[table].stats.evictions, before = *counted;
        uint64_t gone = follow_evictions(p, table);
        hotbed_table_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_storage_stats(p->r.storage, table, &stats, p->r.stream));
        if (offer) { /* each key evicts at most one, which may be of the call */
            CHECK(stats.evictions >= *counted && stats.evictions <= before + n);
            *counted = stats.evictions;
        } else {
            CHECK(gone <= taken - present);
        }
        CHECK_EQ(stats.evictions, *counted);
    }
    end_exclusive(p);
}

static void get(runner *p, uint32_t table, rng *random) {
    uint64_t keys[ROWS];
    parts seen, expected;
    const oracle_table *m = &p->r.model->tables[table];
    begin_exclusive(p);
    uint64_t n = any_keys(p, table, random, keys);
    memset(&expected, 0x5A, sizeof expected);
    fixture_upload(&p->r, p->device, &expected, sizeof expected);
    const hotbed_rows rows = rows_of(p->device, WITH_WEIGHTS);
    CHECK_OK(hotbed_storage_get_rows(
        p->r.storage, table, n, p->device_keys, &rows, p->device->found, p->r.stream));
    fixture_download(&p->r, &seen, p->device, sizeof seen);
    for (uint64_t i = 0; i < n; i++) {
        const oracle_row *row = oracle_find(p->r.model, table, keys[i]);
        expected.found[i] = row != NULL;
        if (row != NULL)
            oracle_row_get(m, row, expected.weights, i);
    }
    CHECK_BYTES(&seen, &expected, sizeof seen);
    end_exclusive(p);
}

static void erase(runner *p, uint32_t table, rng *random) {
    uint64_t keys[ROWS];
    uint8_t erased[ROWS];
    begin_exclusive(p);
    uint64_t n = any_keys(p, table, random, keys);
    hotbed_status status =
        hotbed_storage_erase(p->r.storage, table, n, p->device_keys, p->device->found, p->r.stream);
    if (p->s.tables[table].kind == HOTBED_TABLE_STATIC) {
        CHECK_EQ(status, HOTBED_ERR_ARGUMENT);
    } else {
        CHECK_OK(status);
        fixture_download(&p->r, erased, p->device->found, n); /* the others are not written */
        for (uint64_t i = 0; i < n; i++)
            CHECK_EQ(erased[i], oracle_erase(p->r.model, table, keys[i]));
    }
    end_exclusive(p);
}

static void clear(runner *p, uint32_t table) {
    begin_exclusive(p);
    hotbed_status expected = held_tickets(p) > 0 ? HOTBED_ERR_STATE : HOTBED_OK;
    CHECK_OK(hotbed_stream_sync(p->ahead));
    CHECK_STATUS(hotbed_storage_clear(p->r.storage, table, p->ahead), expected);
    if (expected == HOTBED_OK)
        oracle_clear(p->r.model, table);
    end_exclusive(p);
}

/* --- the whole table ------------------------------------------------------------------------- */

/* Windows over all slots give each key once. */
static void export_windows(runner *p, uint32_t table, rng *random) {
    enum { WINDOW = 256 };
    uint64_t got[ALL_ROWS], expected[ALL_ROWS], n = 0, end = 0;
    begin_exclusive(p);
    hotbed_export e = {.size = sizeof e, .table = table};
    e.slots = 1 + rng_below(random, WINDOW);
    e.keys = fixture_alloc(&p->r, (WINDOW + 1) * sizeof *e.keys);
    e.count = e.keys + WINDOW;
    CHECK_OK(hotbed_storage_export_end(p->r.storage, table, &end, p->r.stream));
    for (e.first = 0; e.first < end; e.first += e.slots) {
        uint64_t count = 0;
        CHECK_OK(hotbed_storage_export(p->r.storage, &e, p->r.stream));
        fixture_download(&p->r, &count, e.count, sizeof count);
        CHECK(count <= e.slots && n + count <= ALL_ROWS);
        fixture_download(&p->r, got + n, e.keys, count * sizeof *got);
        n += count;
    }
    qsort(got, n, sizeof *got, by_value);
    CHECK_EQ(n, p->r.model->tables[table].size);
    CHECK_EQ(n, model_keys(&p->r.model->tables[table], expected));
    CHECK_BYTES(got, expected, n * sizeof *got);
    hotbed_memory_free(&p->r.memories[--p->r.num_memories]);
    end_exclusive(p);
}

static void check_counts(runner *p, uint32_t table) {
    uint64_t keys[ALL_ROWS], counts[ALL_ROWS], n = 0;
    CHECK_OK(
        hotbed_storage_export_counts(p->r.storage, table, ALL_ROWS, keys, counts, &n, p->r.stream));
    CHECK_EQ(n, p->r.model->tables[table].num_counted);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t *count = oracle_count(p->r.model, table, keys[i]);
        CHECK(count != NULL);
        CHECK_EQ(counts[i], *count);
    }
}

static void import_counts(runner *p, uint32_t table, rng *random) {
    uint64_t keys[ROWS], counts[ROWS], n = 0;
    begin_exclusive(p);
    uint64_t candidates = any_keys(p, table, random, keys);
    for (uint64_t i = 0; i < candidates; i++)
        if (oracle_find(p->r.model, table, keys[i]) == NULL &&
            oracle_count(p->r.model, table, keys[i]) == NULL)
            keys[n++] = keys[i];
    for (uint64_t i = 0; i < n; i++)
        counts[i] = rng_below(random, 8);
    fixture_upload(&p->r, p->device_keys, keys, n * sizeof *keys);
    fixture_upload(&p->r, p->device->scores, counts, n * sizeof *counts);
    CHECK_OK(hotbed_storage_import_counts(
        p->r.storage, table, n, p->device_keys, p->device->scores, p->r.stream));
    for (uint64_t i = 0; i < n && p->s.tables[table].admission == HOTBED_ADMIT_FREQUENCY; i++)
        oracle_set_count(p->r.model, table, keys[i], counts[i]);
    end_exclusive(p);
}

/* Times order keys as the model's do, are equal for the keys of one batch, and are exact if they were set by key. */
static void check_times(runner *p, uint32_t table) {
    const oracle_table *m = &p->r.model->tables[table];
    bool pair = m->options.score == HOTBED_SCORE_TIMESTAMP_LFU;
    uint64_t keys[ALL_ROWS], times[ALL_ROWS], logical[ALL_ROWS], now = 0, n = 0;
    if (m->options.kind == HOTBED_TABLE_STATIC ||
        (!pair && m->options.score != HOTBED_SCORE_TIMESTAMP))
        return;
    n = model_keys(m, keys);
    uint64_t *device = fixture_alloc(&p->r, (uint64_t)2 * ALL_ROWS * sizeof *device);
    fixture_upload(&p->r, device, keys, n * sizeof *keys);
    hotbed_rows rows = {0};
    if (pair)
        rows.times = device + ALL_ROWS;
    else
        rows.scores = device + ALL_ROWS;
    CHECK_OK(hotbed_storage_get_rows(p->r.storage, table, n, device, &rows, NULL, p->r.stream));
    fixture_download(&p->r, times, device + ALL_ROWS, n * sizeof *times);
    CHECK_OK(hotbed_storage_now(p->r.storage, table, &now, p->r.stream));
    for (uint64_t i = 0; i < n; i++) {
        const oracle_row *row = oracle_find(p->r.model, table, keys[i]);
        logical[i] = row->time;
        CHECK(times[i] <= now);
        if (row->set_time)
            CHECK_EQ(times[i], row->time);
        for (uint64_t k = 0; k < i && !row->set_time; k++) {
            if (oracle_find(p->r.model, table, keys[k])->set_time)
                continue;
            CHECK_EQ(times[k] < times[i], logical[k] < logical[i]);
            CHECK_EQ(times[k] > times[i], logical[k] > logical[i]);
        }
    }
    hotbed_memory_free(&p->r.memories[--p->r.num_memories]);
}

static void check_all(runner *p) {
    begin_exclusive(p);
    fixture_check(&p->r);
    for (uint32_t t = 0; t < p->r.model->num_tables; t++) {
        check_times(p, t);
        check_counts(p, t);
    }
    end_exclusive(p);
}

static void grow(runner *p, uint32_t table, rng *random) {
    const hotbed_table_options *o = &p->s.tables[table];
    begin_exclusive(p);
    if (rng_below(random, 3) == 0)
        CHECK_OK(hotbed_storage_poll_growth(p->r.storage, p->ahead, NULL));
    else if (o->max_capacity > o->capacity)
        CHECK_OK(hotbed_storage_grow(
            p->r.storage, table, o->capacity + rng_below(random, o->max_capacity - o->capacity + 1),
            p->ahead));
    else
        CHECK_STATUS(hotbed_storage_grow(p->r.storage, table, 1, p->ahead), HOTBED_ERR_ARGUMENT);
    end_exclusive(p);
}

static void set_state(runner *p, rng *random) {
    hotbed_storage_state *m = &p->r.model->state, state = {.size = sizeof state};
    begin_exclusive(p);
    CHECK_OK(hotbed_storage_get_state(p->r.storage, &state, p->ahead));
    CHECK_EQ(state.clock, m->clock);
    CHECK_EQ(state.optimizer_steps, m->optimizer_steps);
    state.clock += rng_below(random, 5);
    state.optimizer_steps += rng_below(random, 5);
    state.beta1_power *= 0.5;
    CHECK_OK(hotbed_storage_set_state(p->r.storage, &state, p->ahead));
    *m = state;
    end_exclusive(p);
}

static void set_score(runner *p, uint32_t table, rng *random) {
    uint64_t score = 1 + rng_below(random, 9);
    bool custom = p->s.tables[table].kind == HOTBED_TABLE_HASH &&
                  p->s.tables[table].score == HOTBED_SCORE_CUSTOM;
    CHECK_STATUS(
        hotbed_storage_set_score(p->r.storage, table, score, p->ahead),
        custom ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
    if (custom)
        p->r.model->tables[table].custom_score = score;
}

static void set_rate(runner *p, rng *random) {
    float rate = (float)rng_below(random, 8) * 0.03125F;
    begin_exclusive(p);
    CHECK_OK(hotbed_storage_set_learning_rate(p->r.storage, rate, p->ahead));
    p->r.model->state.learning_rate = rate;
    end_exclusive(p);
}

static void flush(runner *p, bool reset) {
    begin_exclusive(p);
    if (!reset)
        CHECK_OK(hotbed_storage_flush(p->r.storage, p->ahead));
    else
        CHECK_STATUS(
            hotbed_storage_reset(p->r.storage, p->ahead),
            held_tickets(p) > 0 ? HOTBED_ERR_STATE : HOTBED_OK);
    end_exclusive(p);
}

static void operate(runner *p, operation *o) {
    uint64_t which = rng_below(&o->random, TICKETS);
    uint32_t l = (uint32_t)which % p->shape.tickets;
    uint32_t t = (uint32_t)which % p->s.options.num_tables;
    rng *random = &o->random;
    switch (o->kind) {
    case PREFETCH:
        prefetch(p, l, random);
        break;
    case FORWARD:
    case BACKWARD:
    case ACCUMULATE:
    case CANCEL:
        train(p, l, o->kind, random);
        break;
    case KEEP:
    case RETAKE:
    case FORGET:
    case RENEW:
        keep(p, l, o->kind);
        break;
    case EVAL:
        eval(p, random);
        break;
    case SET:
    case OFFER:
        set(p, t, o->kind == OFFER, random);
        break;
    case GET:
        get(p, t, random);
        break;
    case ERASE:
        erase(p, t, random);
        break;
    case CLEAR:
        clear(p, t);
        break;
    case EXPORT:
        export_windows(p, t, random);
        break;
    case IMPORT_COUNTS:
        import_counts(p, t, random);
        break;
    case GROW:
        grow(p, t, random);
        break;
    case FLUSH:
    case RESET:
        flush(p, o->kind == RESET);
        break;
    case RATE:
        set_rate(p, random);
        break;
    case SCORE:
        set_score(p, t, random);
        break;
    case STATE:
        set_state(p, random);
        break;
    default:
        check_all(p);
        break;
    }
}

void program_run(hotbed_backend backend, uint64_t seed, uint64_t mask) {
    static runner p;
    runner_open(&p, backend, seed);
    for (uint32_t i = 0; i < program_length(seed); i++)
        if ((mask >> i & 1) != 0) {
            operation o = operation_of(seed, i);
            operate(&p, &o);
        }
    check_all(&p);
    CHECK_OK(hotbed_stream_sync(p.training));
    for (uint32_t l = 0; l < p.shape.tickets; l++) {
        model_forget(&p, l);
        test_ticket_close(&p.tickets[l]);
        hotbed_event_destroy(p.prefetched[l]);
    }
    test_ticket_close(&p.evals);
    CHECK_OK(hotbed_stream_sync(p.ahead));
    if (p.training != p.ahead)
        hotbed_stream_destroy(p.training);
    hotbed_event_destroy(p.moved);
    hotbed_event_destroy(p.trained);
    fixture_close(&p.r); /* checks that no pins are left */
}
