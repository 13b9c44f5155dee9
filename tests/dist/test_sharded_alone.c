/* tests/dist/test_sharded_alone.c - a collection of one rank gives the bytes of its storage, for
 * every form of batch, output and calls, and launches no more kernels where the forms are the
 * storage's. */
#include "base/float.h"
#include "hotbed/sharded.h"
#include "tests/dist/arrays.h"

#include <string.h>

enum {
    TABLES = 2,
    FEATURES = 3, /* of the collection; the batch may have one more */
    DIM = 6,
    COLUMNS = FEATURES * DIM,
    SAMPLES = 4,
    BAG = 3,
    KEYS = (FEATURES + 1) * SAMPLES * BAG,
    KEY_SPACE = 9,
};

/* How batches arrive. */
typedef enum batch_form { ONE_KEY, LENGTHS, OFFSETS, STRIDES, OTHER_ORDER, FORMS } batch_form;

typedef struct options_case {
    hotbed_pooling pooling;
    hotbed_dtype dtype; /* of outputs and gradients */
    float scale, max_gradient;
    bool weighted, no_dedup, two_groups;
    bool features_apart; /* the first table's features are not adjacent */
} options_case;

/* A batch in host memory: bag [feature of the batch][sample]. */
typedef struct bags {
    uint32_t num_features, samples, strides[FEATURES + 1];
    uint32_t features[FEATURES + 1]; /* the collection's feature; FEATURES: no feature of it */
    int64_t lengths[(FEATURES + 1) * SAMPLES], offsets[(FEATURES + 1) * SAMPLES + 1];
    uint64_t keys[KEYS];
    float weights[KEYS];
    uint32_t n;
} bags;

/* The same keys in the order of the storage's features. */
typedef struct joined {
    uint64_t keys[KEYS];
    float weights[KEYS];
    int64_t offsets[FEATURES * SAMPLES + 1];
    uint32_t sources[KEYS]; /* position in the batch */
    uint32_t n;
} joined;

typedef struct pair {
    const options_case *how;
    arrays a;
    hotbed_comm *comm;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_storage *storage; /* SUM instead of MEAN, and F32, if outputs are pooled */
    hotbed_ticket *ticket;
    uint32_t feature_tables[FEATURES];
    uint32_t order[FEATURES]; /* the collection's feature that is the storage's feature i */
    uint64_t *keys;
    int64_t *lengths, *offsets;
    float *weights, *sums;
    void *output, *gradient;
} pair;

static const char *const names[FEATURES + 1] = {"a0", "a1", "b0", "none"};

static uint32_t below(uint32_t n) {
    return (uint32_t)(hotbed_test_random() % n);
}

static void describe(pair *p, hotbed_table_options *tables, hotbed_storage_options *storage) {
    const options_case *how = p->how;
    for (uint32_t t = 0; t < TABLES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = t == 0 ? "a" : "b";
        tables[t].dim = DIM;
        tables[t].capacity = 100;
        tables[t].kind = how->two_groups && t == 1 ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
        tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[t].initializer.lower = -1.0F;
        tables[t].initializer.upper = 1.0F;
    }
    p->feature_tables[how->features_apart ? 2 : 1] = 0;
    p->feature_tables[how->features_apart ? 1 : 2] = 1;
    uint32_t n = 0;
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t f = 0; f < FEATURES; f++)
            if (p->feature_tables[f] == t)
                p->order[n++] = f;
    hotbed_storage_options_init(storage);
    storage->num_tables = TABLES;
    storage->tables = tables;
    storage->num_features = FEATURES;
    storage->feature_tables = p->feature_tables;
    storage->pooling = how->pooling;
    storage->output_dtype = how->dtype;
    storage->optimizer.kind = HOTBED_OPT_ADAM;
    storage->optimizer.learning_rate = 0.03F;
    storage->optimizer.max_gradient = how->max_gradient;
}

static void open_pair(pair *p, const options_case *how, hotbed_backend backend) {
    hotbed_table_options tables[TABLES];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    memset(p, 0, sizeof *p);
    p->how = how;
    p->a = arrays_open(backend);
    CHECK_OK(hotbed_comm_create_self(NULL, &p->comm));
    describe(p, tables, &storage);
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.features = names;
    options.dedup = how->no_dedup ? HOTBED_DEDUP_OFF : HOTBED_DEDUP_ON;
    options.plan = (hotbed_plan)below(3);
    options.gradient_scale = how->scale;
    options.max_batch_size = SAMPLES;
    options.max_keys = KEYS;
    options.capacity = 2; /* of messages, which one rank does not send */
    options.kjt_features = FEATURES + 1;
    options.weighted = how->weighted;
    CHECK_OK(hotbed_sharded_create(&options, p->comm, p->a.stream, &p->sharded));
    CHECK_EQ(hotbed_sharded_num_lookups(p->sharded), how->two_groups ? 2 : 1);
    CHECK_OK(hotbed_sharded_create_context(1, &p->sharded, p->a.stream, &p->context));
    uint32_t ordered[FEATURES];
    for (uint32_t f = 0; f < FEATURES; f++)
        ordered[f] = p->feature_tables[p->order[f]];
    storage.feature_tables = ordered;
    if (how->pooling != HOTBED_POOL_NONE) {
        storage.pooling = HOTBED_POOL_SUM;
        storage.output_dtype = HOTBED_F32;
        storage.optimizer.max_gradient = 0.0F;
    }
    CHECK_OK(hotbed_storage_create(&storage, p->a.stream, &p->storage));
    CHECK_OK(hotbed_ticket_create(p->storage, KEYS, SAMPLES, p->a.stream, &p->ticket));
    p->keys = arrays_alloc(&p->a, KEYS * 8);
    p->lengths = arrays_alloc(&p->a, (FEATURES + 1) * SAMPLES * 8);
    p->offsets = arrays_alloc(&p->a, ((FEATURES + 1) * SAMPLES + 1) * 8);
    p->weights = arrays_alloc(&p->a, KEYS * 4);
    p->sums = arrays_alloc(&p->a, KEYS * DIM * 4);
    p->output = arrays_alloc(&p->a, KEYS * COLUMNS * 4);
    p->gradient = arrays_alloc(&p->a, KEYS * COLUMNS * 4);
}

static void close_pair(pair *p) {
    hotbed_ticket_destroy(p->ticket);
    hotbed_storage_destroy(p->storage);
    hotbed_sharded_context_destroy(p->context);
    hotbed_sharded_destroy(p->sharded);
    hotbed_comm_destroy(p->comm);
    arrays_close(&p->a);
}

/* --- batches ---------------------------------------------------------------------------------- */

static bags make_bags(const pair *p, batch_form form) {
    bags b;
    memset(&b, 0, sizeof b);
    b.num_features = form == OTHER_ORDER ? FEATURES + 1 : FEATURES;
    b.samples = 1 + below(SAMPLES);
    uint32_t row = 0;
    for (uint32_t f = 0; f < b.num_features; f++) {
        /* Otherwise the storage's own order, except that the caller's differs if features of a
         * table are apart. */
        b.features[f] = form == OTHER_ORDER ? FEATURES - f : p->order[f];
        b.strides[f] = form == STRIDES ? below(b.samples + 1) : b.samples;
        for (uint32_t s = 0; s < b.strides[f]; s++, row++) {
            uint32_t n = form == ONE_KEY ? 1 : below(BAG + 1);
            b.offsets[row] = b.n;
            b.lengths[row] = n;
            for (uint32_t i = 0; i < n; i++) {
                b.weights[b.n] = (float)below(9) / 4.0F;
                b.keys[b.n++] = below(KEY_SPACE);
            }
        }
    }
    b.offsets[row] = b.n;
    return b;
}

static joined join(const pair *p, const bags *b) {
    joined j;
    memset(&j, 0, sizeof j);
    uint32_t bag = 0;
    for (uint32_t i = 0; i < FEATURES; i++) {
        uint32_t f = 0, first = 0;
        while (b->features[f] != p->order[i])
            first += b->strides[f++];
        for (uint32_t s = 0; s < b->samples; s++) {
            j.offsets[bag++] = j.n;
            for (int64_t k = 0; s < b->strides[f] && k < b->lengths[first + s]; k++) {
                uint32_t from = (uint32_t)(b->offsets[first + s] + k);
                j.keys[j.n] = b->keys[from];
                j.weights[j.n] = b->weights[from];
                j.sources[j.n++] = from;
            }
        }
    }
    j.offsets[bag] = j.n;
    return j;
}

static hotbed_kjt upload(pair *p, const bags *b, batch_form form, const char **feature_names) {
    hotbed_stream *s = p->a.stream;
    hotbed_kjt kjt = {.size = sizeof kjt};
    for (uint32_t f = 0; f < b->num_features; f++)
        feature_names[f] = names[b->features[f]];
    CHECK_OK(hotbed_copy(p->keys, b->keys, sizeof b->keys, s));
    CHECK_OK(hotbed_copy(p->lengths, b->lengths, sizeof b->lengths, s));
    CHECK_OK(hotbed_copy(p->offsets, b->offsets, sizeof b->offsets, s));
    CHECK_OK(hotbed_copy(p->weights, b->weights, sizeof b->weights, s));
    CHECK_OK(hotbed_stream_sync(s));
    kjt.num_features = b->num_features;
    kjt.features = feature_names;
    kjt.batch_size = b->samples;
    kjt.strides = form == STRIDES ? b->strides : NULL;
    kjt.num_keys = form == ONE_KEY ? b->n : KEYS; /* an upper bound is enough */
    kjt.keys = p->keys;
    kjt.lengths = form == LENGTHS ? p->lengths : NULL;
    kjt.offsets = form == LENGTHS || form == ONE_KEY ? NULL : p->offsets;
    kjt.weights = p->how->weighted ? p->weights : NULL;
    return kjt;
}

/* --- the storage's step ----------------------------------------------------------------------- */

static float rounded(hotbed_dtype dtype, float value) {
    return dtype == HOTBED_BF16 ? hotbed_bf16_to_f32(hotbed_f32_to_bf16(value)) : value;
}

static float element(const pair *p, const void *rows, uint64_t i) {
    if (p->how->dtype == HOTBED_F32)
        return ((const float *)rows)[i];
    return hotbed_bf16_to_f32(((const uint16_t *)rows)[i]);
}

static float clamped(const pair *p, float g) {
    float most = p->how->max_gradient;
    return most > 0.0F && g > most ? most : most > 0.0F && g < -most ? -most : g;
}

static uint64_t bag_length(const joined *j, const bags *b, uint32_t feature, uint32_t sample) {
    uint32_t bag = feature * b->samples + sample;
    return (uint64_t)(j->offsets[bag + 1] - j->offsets[bag]);
}

/* Compare the collection's output with the storage's. */
static void check_output(
    pair *p, const bags *b, const joined *j, const void *got, const float *want) {
    const options_case *how = p->how;
    for (uint32_t i = 0; i < j->n && how->pooling == HOTBED_POOL_NONE; i++)
        for (uint32_t e = 0; e < DIM; e++)
            CHECK(
                element(p, got, (uint64_t)j->sources[i] * DIM + e) ==
                element(p, want, (uint64_t)i * DIM + e));
    for (uint32_t s = 0; s < b->samples && how->pooling != HOTBED_POOL_NONE; s++)
        for (uint32_t c = 0; c < COLUMNS; c++) {
            uint64_t n = bag_length(j, b, c / DIM, s);
            float value = want[s * COLUMNS + c];
            if (how->pooling == HOTBED_POOL_MEAN && n > 0)
                value = value / (float)n;
            uint64_t column = p->order[c / DIM] * DIM + c % DIM;
            CHECK(element(p, got, s * COLUMNS + column) == rounded(how->dtype, value));
        }
}

static void train_storage(pair *p, const bags *b, const joined *j, const float *gradient) {
    const options_case *how = p->how;
    static float host[KEYS * COLUMNS];
    hotbed_stream *s = p->a.stream;
    void *device = arrays_alloc(&p->a, sizeof host);
    if (how->pooling != HOTBED_POOL_NONE) {
        for (uint32_t at = 0; at < b->samples * COLUMNS; at++) {
            uint32_t sample = at / COLUMNS, c = at % COLUMNS;
            uint64_t n = bag_length(j, b, c / DIM, sample);
            float g = clamped(
                p, rounded(
                       how->dtype, gradient[sample * COLUMNS + p->order[c / DIM] * DIM + c % DIM]));
            if (how->pooling == HOTBED_POOL_MEAN)
                g = n > 0 ? g * (1.0F / (float)n) : 0.0F;
            host[at] = g * how->scale;
        }
        CHECK_OK(hotbed_copy(device, host, sizeof host, s));
        CHECK_OK(hotbed_storage_backward(p->storage, p->ticket, device, COLUMNS, s));
        CHECK_OK(hotbed_stream_sync(s));
        return;
    }
    uint16_t *half = (uint16_t *)(void *)host;
    for (uint32_t i = 0; i < j->n * DIM; i++) {
        float g = gradient[j->sources[i / DIM] * DIM + i % DIM];
        if (how->dtype == HOTBED_F32)
            host[i] = g;
        else
            half[i] = hotbed_f32_to_bf16(g);
    }
    CHECK_OK(hotbed_copy(device, host, sizeof host, s));
    CHECK_OK(hotbed_storage_reduce(p->storage, p->ticket, device, DIM, false, p->sums, s));
    arrays_read(&p->a, host, p->sums, KEYS * DIM * sizeof(float));
    for (uint32_t i = 0; i < j->n * DIM; i++)
        host[i] = rounded(how->dtype, host[i] * how->scale);
    CHECK_OK(hotbed_copy(p->sums, host, KEYS * DIM * sizeof(float), s));
    CHECK_OK(hotbed_storage_apply(p->storage, p->ticket, p->sums, s));
    CHECK_OK(hotbed_stream_sync(s));
}

/* --- the same step ---------------------------------------------------------------------------- */

static void forward(pair *p, const hotbed_kjt *kjt, uint64_t stride, bool together) {
    hotbed_stream *s = p->a.stream;
    hotbed_sharded_context *c = p->context;
    if (together) {
        CHECK_OK(hotbed_sharded_forward(c, 0, kjt, p->output, stride, s));
        return;
    }
    CHECK_OK(hotbed_sharded_input_dist(c, kjt, s));
    CHECK_OK(hotbed_sharded_wait_splits(c, s));
    CHECK_OK(hotbed_sharded_wait_input(c, s));
    CHECK_OK(hotbed_sharded_compute(c, 0, s));
    CHECK_OK(hotbed_sharded_output_dist(c, 0, s));
    CHECK_OK(hotbed_sharded_wait_output(c, 0, p->output, stride, s));
}

static void backward(pair *p, uint64_t stride, bool together) {
    hotbed_stream *s = p->a.stream;
    if (together) {
        CHECK_OK(hotbed_sharded_backward(p->context, 0, p->gradient, stride, s));
        return;
    }
    CHECK_OK(hotbed_sharded_backward_dist(p->context, 0, p->gradient, stride, s));
    CHECK_OK(hotbed_sharded_update(p->context, 0, s));
}

static void run_step(pair *p, batch_form form, bool training) {
    static float got[KEYS * COLUMNS], want[KEYS * COLUMNS], gradient[KEYS * COLUMNS];
    const options_case *how = p->how;
    bool pooled = how->pooling != HOTBED_POOL_NONE;
    hotbed_stream *s = p->a.stream;
    const char *feature_names[FEATURES + 1];
    bags b = make_bags(p, form);
    joined j = join(p, &b);
    hotbed_kjt kjt = upload(p, &b, form, feature_names);
    hotbed_batch batch = {.size = sizeof batch, .batch_size = b.samples, .num_keys = KEYS};
    batch.keys = arrays_copy(&p->a, j.keys, sizeof j.keys);
    batch.offsets = arrays_copy(&p->a, j.offsets, sizeof j.offsets);
    batch.weights = how->weighted ? arrays_copy(&p->a, j.weights, sizeof j.weights) : NULL;
    void *output = arrays_alloc(&p->a, sizeof want);
    uint64_t width = pooled ? COLUMNS : DIM;
    CHECK_OK(hotbed_fill(p->output, 0xa5, sizeof got, s));
    CHECK_OK(hotbed_sharded_set_training(p->sharded, training));
    forward(p, &kjt, width, below(2) == 0);
    if (training) {
        CHECK_OK(hotbed_storage_prefetch(p->storage, &batch, p->ticket, s));
        CHECK_OK(hotbed_storage_forward(p->storage, p->ticket, output, width, s));
    } else {
        CHECK_OK(hotbed_storage_eval(p->storage, &batch, output, width, s));
    }
    arrays_read(&p->a, got, p->output, sizeof got);
    arrays_read(&p->a, want, output, sizeof want);
    check_output(p, &b, &j, got, want);
    if (!pooled) { /* rows past the last key are not written */
        uint64_t bytes = DIM * hotbed_dtype_bytes(how->dtype), n = kjt.num_keys;
        for (uint64_t at = b.n * bytes; at < n * bytes; at++)
            CHECK_EQ(((const uint8_t *)got)[at], 0xa5);
    }
    if (!training)
        return;
    for (uint32_t i = 0; i < KEYS * COLUMNS; i++)
        gradient[i] = ((float)below(2001) - 1000.0F) / 777.0F;
    uint16_t *half = (uint16_t *)(void *)got;
    for (uint32_t i = 0; i < KEYS * COLUMNS; i++)
        half[i] = hotbed_f32_to_bf16(gradient[i]);
    const void *source = how->dtype == HOTBED_F32 ? (const void *)gradient : half;
    CHECK_OK(hotbed_copy(p->gradient, source, sizeof gradient, s));
    CHECK_OK(hotbed_stream_sync(s));
    backward(p, width, below(2) == 0);
    train_storage(p, &b, &j, gradient);
}

static void check_rows(pair *p) {
    static uint64_t keys[KEY_SPACE];
    static float got[KEY_SPACE * DIM], want[KEY_SPACE * DIM];
    for (uint32_t t = 0; t < TABLES; t++) {
        uint8_t got_found[KEY_SPACE], want_found[KEY_SPACE];
        hotbed_sharded_table table = {.size = sizeof table};
        CHECK_OK(hotbed_sharded_table_read(p->sharded, t, &table));
        for (uint64_t i = 0; i < KEY_SPACE; i++)
            keys[i] = i;
        void *device = arrays_copy(&p->a, keys, sizeof keys);
        uint8_t *found = arrays_alloc(&p->a, KEY_SPACE);
        hotbed_rows rows = {.weights = arrays_alloc(&p->a, sizeof got)};
        CHECK_OK(hotbed_storage_get_rows(
            hotbed_sharded_lookup(p->sharded, table.lookup), table.table, KEY_SPACE, device, &rows,
            found, p->a.stream));
        arrays_read(&p->a, got, rows.weights, sizeof got);
        arrays_read(&p->a, got_found, found, KEY_SPACE);
        rows.weights = arrays_alloc(&p->a, sizeof got);
        CHECK_OK(
            hotbed_storage_get_rows(p->storage, t, KEY_SPACE, device, &rows, found, p->a.stream));
        arrays_read(&p->a, want, rows.weights, sizeof want);
        arrays_read(&p->a, want_found, found, KEY_SPACE);
        CHECK_BYTES(got_found, want_found, KEY_SPACE);
        for (uint32_t i = 0; i < KEY_SPACE; i++)
            if (got_found[i] == 1)
                CHECK_BYTES(got + i * DIM, want + i * DIM, DIM * sizeof(float));
    }
}

static void run_case(const options_case *how, hotbed_backend backend) {
    pair p;
    open_pair(&p, how, backend);
    for (int form = 0; form < FORMS; form++) {
        run_step(&p, (batch_form)form, true);
        run_step(&p, (batch_form)form, false);
    }
    check_rows(&p);
    close_pair(&p);
}

static void every_form_gives_the_bytes_of_the_storage(hotbed_backend backend) {
    for (uint32_t i = 0; i < 96; i += hotbed_test_is_small() ? 7 : 1) {
        options_case how = {
            .pooling = (hotbed_pooling)(i % 3),
            .dtype = i / 3 % 4 == 3 ? HOTBED_BF16 : HOTBED_F32,
            .scale = i / 12 % 2 == 1 ? 0.3F : 1.0F,
            .max_gradient = below(3) == 0 ? 0.5F : 0.0F,
            .weighted = i % 3 != 0 && below(2) == 0,
            .no_dedup = below(2) == 0,
            .two_groups = below(3) == 0,
            .features_apart = below(2) == 0,
        };
        run_case(&how, backend);
    }
}

/* --- work ------------------------------------------------------------------------------------- */

static hotbed_counters count(void) {
    hotbed_counters counters = {.size = sizeof counters};
    CHECK_OK(hotbed_counters_read(&counters));
    return counters;
}

/* A step whose batch, output and gradients have the storage's form launches its kernels only. */
static void a_step_launches_the_kernels_of_the_storage(hotbed_backend backend) {
    for (uint32_t i = 0; i < 2; i++) {
        const options_case how = {
            .pooling = i == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM,
            .dtype = HOTBED_F32,
            .scale = 1.0F};
        const char *feature_names[FEATURES + 1];
        pair p;
        open_pair(&p, &how, backend);
        bags b = make_bags(&p, ONE_KEY);
        hotbed_kjt kjt = upload(&p, &b, ONE_KEY, feature_names);
        hotbed_batch batch = {
            .size = sizeof batch, .batch_size = b.samples, .num_keys = b.n, .keys = p.keys};
        hotbed_stream *s = p.a.stream;
        for (int step = 0; step < 2; step++) { /* the first one copies the numbers of features */
            hotbed_counters begin = count();
            forward(&p, &kjt, 0, true);
            backward(&p, 0, true);
            hotbed_counters middle = count();
            CHECK_OK(hotbed_storage_prefetch(p.storage, &batch, p.ticket, s));
            CHECK_OK(hotbed_storage_forward(p.storage, p.ticket, p.output, 0, s));
            CHECK_OK(hotbed_storage_backward(p.storage, p.ticket, p.gradient, 0, s));
            hotbed_counters end = count();
            if (step == 1) {
                CHECK_EQ(middle.launches - begin.launches, end.launches - middle.launches);
                CHECK_EQ(middle.copies - begin.copies, 0);
                CHECK_EQ(middle.allocations - begin.allocations, 0);
                CHECK_EQ(middle.host_waits - begin.host_waits, 0);
            }
            CHECK_OK(hotbed_stream_sync(s));
        }
        close_pair(&p);
    }
}

static void tickets_and_contexts_report_their_bytes(hotbed_backend backend) {
    for (uint32_t i = 0; i < 2; i++) {
        const options_case how = {
            .pooling = i == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM,
            .dtype = HOTBED_F32,
            .scale = 1.0F};
        pair p;
        hotbed_ticket *ticket;
        hotbed_sharded_context *context;
        open_pair(&p, &how, backend);
        hotbed_counters begin = count();
        CHECK_OK(hotbed_ticket_create(p.storage, KEYS, SAMPLES, p.a.stream, &ticket));
        hotbed_counters middle = count();
        CHECK_OK(hotbed_sharded_create_context(1, &p.sharded, p.a.stream, &context));
        hotbed_counters end = count();
        CHECK_EQ(
            hotbed_ticket_bytes(ticket),
            middle.memory_bytes[HOTBED_MEMORY_DEVICE] - begin.memory_bytes[HOTBED_MEMORY_DEVICE]);
        /* The pinned memory is the context's, or staging that is free again. */
        const uint64_t device =
            end.memory_bytes[HOTBED_MEMORY_DEVICE] - middle.memory_bytes[HOTBED_MEMORY_DEVICE];
        const uint64_t pinned =
            end.memory_bytes[HOTBED_MEMORY_PINNED] - middle.memory_bytes[HOTBED_MEMORY_PINNED];
        CHECK(hotbed_sharded_context_bytes(context) >= device && device > 0);
        CHECK(hotbed_sharded_context_bytes(context) <= device + pinned);
        CHECK_EQ(hotbed_ticket_bytes(NULL) + hotbed_sharded_context_bytes(NULL), 0);
        hotbed_ticket_destroy(ticket);
        hotbed_sharded_context_destroy(context);
        close_pair(&p);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_form_gives_the_bytes_of_the_storage)},
    {TEST(a_step_launches_the_kernels_of_the_storage)},
    {TEST(tickets_and_contexts_report_their_bytes)},
    {NULL, NULL},
};
