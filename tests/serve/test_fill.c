/* tests/serve/test_fill.c - storages that are filled with the cuts of a reader answer as the reader does. */
#include "hotbed/hotbed.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

/* A published storage of the host, a reader of it, and a storage of the backend that is filled. */
typedef struct filled {
    hotbed_stream *host, *stream;
    hotbed_storage *trained, *storage;
    hotbed_publisher *publisher;
    hotbed_reader *reader;
    hotbed_memory keys, rows, found; /* for look(), on the backend */
    served_cut cut;
    uint64_t step, version;
    char directory[512];
} filled;

static void options_of(hotbed_table_options tables[SERVED_TABLES], hotbed_storage_options *o) {
    static const char *const names[SERVED_TABLES] = {"rows", "hash", "half"}; /* in another order */
    static const uint32_t numbers[SERVED_TABLES] = {2, 0, 1};
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = names[t];
        tables[t].dim = served_dims[numbers[t]];
        tables[t].capacity = t == 0 ? 6 : 2 * SERVED_KEYS;
        tables[t].kind = t == 0 ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
        tables[t].evict = HOTBED_EVICT_NEVER;
        tables[t].eval_initializer.value = 0.25F * (float)numbers[t];
    }
    hotbed_storage_options_init(o);
    o->num_tables = SERVED_TABLES;
    o->tables = tables;
    o->key_type = HOTBED_KEY_U64;
    o->optimizer.kind = HOTBED_OPT_SGD;
    o->check = HOTBED_CHECK_IGNORE;
}

static void publish(filled *f) {
    for (int i = 0; i < 3; i++)
        served_change(f->trained, f->host);
    served_look(f->trained, NULL, ++f->step, &f->cut, f->host);
    CHECK_OK(hotbed_publisher_publish(f->publisher, f->step, f->host));
    CHECK_OK(hotbed_publisher_wait(f->publisher));
}

static void start(filled *f, hotbed_backend backend, hotbed_mode mode) {
    hotbed_table_options tables[SERVED_TABLES];
    hotbed_storage_options options;
    hotbed_publish_options how = {.size = sizeof how};
    *f =
        (filled){.host = sample_stream(HOTBED_BACKEND_HOST), .stream = hotbed_test_stream(backend)};
    snprintf(f->directory, sizeof f->directory, "%s", sample_path("published"));
    f->trained = served_create(5, 0, f->host);
    how.base_every = 4;
    CHECK_OK(hotbed_publisher_create(f->directory, &f->trained, 1, &how, f->host, &f->publisher));
    publish(f);
    CHECK_OK(hotbed_reader_open(f->directory, NULL, &f->reader));
    options_of(tables, &options);
    options.mode = mode;
    options.hbm_bytes = mode == HOTBED_MODE_HBM_DIRECT ? 0 : 2048; /* of rows of several KiB */
    CHECK_OK(hotbed_storage_create(&options, f->stream, &f->storage));
    const size_t row = SERVED_DIM_MOST * sizeof(float);
    CHECK_OK(
        hotbed_memory_alloc(f->stream, HOTBED_MEMORY_DEVICE, sizeof served_keys, NULL, &f->keys));
    CHECK_OK(
        hotbed_memory_alloc(f->stream, HOTBED_MEMORY_DEVICE, SERVED_KEYS * row, NULL, &f->rows));
    CHECK_OK(hotbed_memory_alloc(f->stream, HOTBED_MEMORY_DEVICE, SERVED_KEYS, NULL, &f->found));
    CHECK_OK(hotbed_copy(f->keys.data, served_keys, sizeof served_keys, f->stream));
    CHECK_OK(hotbed_stream_sync(f->stream));
}

static void end(filled *f) {
    hotbed_memory_free(&f->found);
    hotbed_memory_free(&f->rows);
    hotbed_memory_free(&f->keys);
    hotbed_storage_destroy(f->storage);
    hotbed_reader_close(f->reader);
    hotbed_publisher_destroy(f->publisher);
    hotbed_storage_destroy(f->trained);
    hotbed_stream_destroy(f->stream);
    hotbed_stream_destroy(f->host);
}

/* Check that the storage has exactly the rows of the cut. */
static void look(const filled *f) {
    static const uint32_t numbers[SERVED_TABLES] = {2, 0, 1};
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        const uint32_t at = numbers[t], dim = served_dims[at];
        float rows[SERVED_KEYS * SERVED_DIM_MOST];
        uint8_t found[SERVED_KEYS];
        const hotbed_rows out = {.weights = f->rows.data};
        uint64_t keys = 0;
        CHECK_OK(hotbed_fill(f->rows.data, 0, f->rows.bytes, f->stream)); /* of missing keys, too */
        CHECK_OK(hotbed_storage_get_rows(
            f->storage, t, SERVED_KEYS, f->keys.data, &out, f->found.data, f->stream));
        CHECK_OK(hotbed_copy(rows, f->rows.data, sizeof rows, f->stream));
        CHECK_OK(hotbed_copy(found, f->found.data, sizeof found, f->stream));
        CHECK_OK(hotbed_stream_sync(f->stream));
        for (uint32_t k = 0; k < SERVED_KEYS; k++) {
            for (uint32_t e = 0; e < dim && found[k] == 0; e++)
                CHECK(f->cut.rows[at][k][e] == 0.25F * (float)at);
            if (found[k] != 0)
                CHECK_BYTES(rows + k * dim, f->cut.rows[at][k], dim * sizeof(float));
        }
        CHECK_OK(hotbed_storage_size(f->storage, t, &keys, NULL, f->stream));
        CHECK_EQ(keys, f->cut.keys[at]);
    }
}

/* Increments one by one, several at once, and a base after an increment that was never read. */
static void a_filled_storage_follows_the_cuts(hotbed_backend backend) {
    static const hotbed_mode modes[] = {
        HOTBED_MODE_HBM_DIRECT, HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    for (uint32_t m = 0; m < 3; m++) {
        filled f;
        start(&f, backend, modes[m]);
        for (uint32_t i = 0; i < 10; i++) {
            CHECK_OK(hotbed_reader_poll(f.reader));
            CHECK_OK(hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, &f.version));
            CHECK_EQ(f.version, f.step);
            look(&f);
            /* There is nothing to do. */
            CHECK_OK(hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, &f.version));
            for (uint64_t more = 1 + hotbed_test_below(6); more > 0; more--) {
                publish(&f);
                CHECK_OK(hotbed_reader_poll(f.reader));
            }
        }
        end(&f);
    }
}

static void only_what_changed_is_written(hotbed_backend backend) {
    filled f;
    float row[5] = {7, 7, 7, 7, 7};
    uint64_t key = 12345;
    start(&f, backend, HOTBED_MODE_HBM_DIRECT);
    CHECK_OK(hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, &f.version));
    const hotbed_rows set = {.weights = f.rows.data};
    CHECK_OK(hotbed_copy(f.rows.data, row, sizeof row, f.stream));
    CHECK_OK(hotbed_copy(f.keys.data, &key, sizeof key, f.stream));
    CHECK_OK(hotbed_storage_set_rows(f.storage, 1, 1, f.keys.data, &set, f.stream));
    CHECK_OK(hotbed_stream_sync(f.stream));
    publish(&f); /* an increment */
    CHECK_OK(hotbed_reader_poll(f.reader));
    /* The storage's own key is still there, which its number of keys shows. */
    CHECK_STATUS(
        hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, &f.version), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "table 'hash' holds") != NULL);
    CHECK_EQ(f.version, 0);
    CHECK_OK(hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, &f.version)); /* from its base */
    CHECK_EQ(f.version, 2);
    end(&f);
}

/* --- states ---------------------------------------------------------------------------------------- */

/* A storage of one optimizer, like the served one, that never evicts. */
static hotbed_storage *trainer(
    const hotbed_optimizer *optimizer, hotbed_mode mode, hotbed_stream *stream) {
    hotbed_table_options tables[SERVED_TABLES];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    options_of(tables, &options);
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[t].initializer.lower = -1.0F;
        tables[t].initializer.upper = 1.0F;
        tables[t].dtype = t == 0 ? HOTBED_BF16 : t == 1 ? HOTBED_F32 : HOTBED_INT8;
        tables[t].rounding = HOTBED_ROUND_NEAREST;
        tables[t].state_dtype = t == 1 ? HOTBED_BF16 : HOTBED_F32;
    }
    options.optimizer = *optimizer;
    options.mode = mode;
    options.hbm_bytes = mode == HOTBED_MODE_HBM_DIRECT ? 0 : 2048;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

enum {
    ROW_BYTES = SERVED_DIM_MOST * sizeof(float) + 2 * sizeof(float),
    STATE = SERVED_DIM_MOST + 1
};

/* Rows of all keys with their states, on the host. */
typedef struct whole {
    unsigned char weights[SERVED_KEYS * ROW_BYTES], found[SERVED_KEYS];
    float states[2][SERVED_KEYS * STATE];
} whole;

static void get_whole(hotbed_storage *storage, uint32_t t, hotbed_stream *stream, whole *out) {
    const hotbed_optimizer_kind kind = hotbed_storage_optimizer(storage)->kind;
    hotbed_memory memory;
    memset(out, 0, sizeof *out);
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof *out, NULL, &memory));
    whole *device = memory.data;
    hotbed_rows rows = {.weights = device->weights};
    for (uint32_t s = 0; s < hotbed_optimizer_states(kind); s++)
        rows.states[s] = device->states[s];
    hotbed_memory keys;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof served_keys, NULL, &keys));
    CHECK_OK(hotbed_copy(keys.data, served_keys, sizeof served_keys, stream));
    CHECK_OK(hotbed_fill(device, 0, sizeof *device, stream));
    CHECK_OK(
        hotbed_storage_get_rows(storage, t, SERVED_KEYS, keys.data, &rows, device->found, stream));
    CHECK_OK(hotbed_copy(out, device, sizeof *out, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_memory_free(&keys);
    hotbed_memory_free(&memory);
}

static void expect_twin(const filled *f, hotbed_storage *twin) {
    static whole a, b;
    hotbed_storage_state first = {.size = sizeof first}, second = {.size = sizeof second};
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        get_whole(f->trained, t, f->host, &a);
        get_whole(twin, t, f->stream, &b);
        CHECK_BYTES(&a, &b, sizeof a);
    }
    CHECK_OK(hotbed_storage_get_state(f->trained, &first, f->host));
    CHECK_OK(hotbed_storage_get_state(twin, &second, f->stream));
    CHECK_EQ(second.optimizer_steps, first.optimizer_steps);
    CHECK(second.beta1_power == first.beta1_power && second.beta2_power == first.beta2_power);
}

/* One step on the same keys and gradients in both storages, if there are two. */
static void step(hotbed_storage *const *storages, hotbed_stream *const *streams, uint32_t n) {
    enum { SAMPLES = 8, KEYS = SAMPLES * SERVED_TABLES };
    uint64_t keys[KEYS];
    float gradient[KEYS * SERVED_DIM_MOST];
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = i < SAMPLES ? hotbed_test_below(6) : served_keys[hotbed_test_below(SERVED_KEYS)];
    for (uint32_t i = 0; i < KEYS * SERVED_DIM_MOST; i++)
        gradient[i] = hotbed_test_float();
    for (uint32_t s = 0; s < n; s++) {
        hotbed_ticket *ticket = NULL;
        hotbed_batch batch = {.size = sizeof batch};
        hotbed_memory memory;
        CHECK_OK(hotbed_memory_alloc(
            streams[s], HOTBED_MEMORY_DEVICE, sizeof keys + sizeof gradient, NULL, &memory));
        CHECK_OK(hotbed_copy(memory.data, keys, sizeof keys, streams[s]));
        CHECK_OK(
            hotbed_copy((char *)memory.data + sizeof keys, gradient, sizeof gradient, streams[s]));
        batch.batch_size = SAMPLES;
        batch.num_keys = KEYS;
        batch.keys = memory.data;
        CHECK_OK(hotbed_ticket_create(storages[s], KEYS, SAMPLES, streams[s], &ticket));
        CHECK_OK(hotbed_storage_prefetch(storages[s], &batch, ticket, streams[s]));
        CHECK_OK(hotbed_storage_backward(
            storages[s], ticket, (float *)(void *)((char *)memory.data + sizeof keys),
            SERVED_DIM_MOST, streams[s]));
        CHECK_OK(hotbed_stream_sync(streams[s]));
        hotbed_ticket_destroy(ticket);
        hotbed_memory_free(&memory);
    }
}

/* Create a trainer whose cuts have states, and a publisher and a reader of them. */
static void start_trainer(filled *f, hotbed_backend backend, const hotbed_optimizer *optimizer) {
    hotbed_publish_options how = {.size = sizeof how};
    *f =
        (filled){.host = sample_stream(HOTBED_BACKEND_HOST), .stream = hotbed_test_stream(backend)};
    for (uint64_t i = 10; i < SERVED_KEYS; i++)
        served_keys[i] = i * 0x9e3779b97f4a7c15U;
    snprintf(f->directory, sizeof f->directory, "%s", sample_path("states"));
    f->trained = trainer(optimizer, HOTBED_MODE_HBM_DIRECT, f->host);
    how.base_every = 4;
    how.states = true;
    CHECK_OK(hotbed_publisher_create(f->directory, &f->trained, 1, &how, f->host, &f->publisher));
    step(&f->trained, &f->host, 1);
    CHECK_OK(hotbed_publisher_publish(f->publisher, ++f->step, f->host));
    CHECK_OK(hotbed_publisher_wait(f->publisher));
    CHECK_OK(hotbed_reader_open(f->directory, NULL, &f->reader));
}

static void a_second_trainer_follows(hotbed_backend backend) {
    static const hotbed_optimizer_kind kinds[] = {
        HOTBED_OPT_ADAM, HOTBED_OPT_ROWWISE_ADAGRAD, HOTBED_OPT_ROW_STEPS_ADAM};
    static const hotbed_mode modes[] = {
        HOTBED_MODE_HBM_DIRECT, HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    for (uint32_t k = 0; k < 3; k++) {
        filled f;
        hotbed_optimizer optimizer;
        hotbed_optimizer_init(&optimizer);
        optimizer.kind = kinds[k];
        optimizer.learning_rate = 0.125F;
        start_trainer(&f, backend, &optimizer);
        hotbed_storage *twin = trainer(&optimizer, modes[k], f.stream);
        for (uint32_t i = 0; i < 9; i++) {
            CHECK_OK(hotbed_reader_poll(f.reader));
            CHECK_OK(hotbed_reader_fill(f.reader, &twin, 1, f.stream, &f.version));
            CHECK_EQ(f.version, f.step);
            expect_twin(&f, twin);
            for (uint64_t more = hotbed_test_below(3); more > 0; more--)
                step(&f.trained, &f.host, 1);
            if (hotbed_test_below(2) == 0)
                CHECK_OK(hotbed_storage_erase(
                    f.trained, 1, 1, &served_keys[hotbed_test_below(SERVED_KEYS)], NULL, f.host));
            CHECK_OK(hotbed_publisher_publish(f.publisher, ++f.step, f.host));
            CHECK_OK(hotbed_publisher_wait(f.publisher));
        }
        CHECK_OK(hotbed_reader_poll(f.reader));
        CHECK_OK(hotbed_reader_fill(f.reader, &twin, 1, f.stream, &f.version));
        /* both go on with the same bytes; rows of new keys begin with random numbers of the same seed */
        hotbed_storage *const both[] = {f.trained, twin};
        hotbed_stream *const streams[] = {f.host, f.stream};
        for (int i = 0; i < 3; i++)
            step(both, streams, 2);
        expect_twin(&f, twin);
        hotbed_storage_destroy(twin);
        end(&f);
    }
}

static void other_states_are_refused(hotbed_backend backend) {
    filled f;
    hotbed_optimizer optimizer;
    uint64_t version = 0;
    hotbed_optimizer_init(&optimizer);
    optimizer.kind = HOTBED_OPT_ADAM;
    start_trainer(&f, backend, &optimizer);
    optimizer.kind = HOTBED_OPT_ADAGRAD;
    hotbed_storage *other = trainer(&optimizer, HOTBED_MODE_HBM_DIRECT, f.stream);
    CHECK_STATUS(
        hotbed_reader_fill(f.reader, &other, 1, f.stream, &version), HOTBED_ERR_UNSUPPORTED);
    CHECK_FIELDS(.table = "rows");
    CHECK(strstr(hotbed_last_error(), "adagrad with the states") != NULL);
    CHECK(strstr(hotbed_last_error(), "by adam with exp_avg[3], exp_avg_sq[3]") != NULL);
    hotbed_storage_destroy(other);
    optimizer.kind = HOTBED_OPT_SGD; /* has no states, and gets embeddings */
    other = trainer(&optimizer, HOTBED_MODE_HBM_DIRECT, f.stream);
    CHECK_OK(hotbed_reader_fill(f.reader, &other, 1, f.stream, &version));
    static whole a, b;
    get_whole(f.trained, 1, f.host, &a);
    get_whole(other, 1, f.stream, &b);
    CHECK_BYTES(a.weights, b.weights, sizeof a.weights);
    hotbed_storage_destroy(other);
    end(&f);
}

/* A cut has no states, or other storages shared their counts of steps. */
static void counts_of_steps_are_of_a_storage(hotbed_backend backend) {
    filled f;
    hotbed_optimizer optimizer;
    hotbed_publish_options how;
    hotbed_storage *halves[2] = {NULL, NULL}, *both = NULL;
    static const char *const names[] = {"first", "second"};
    hotbed_table_options tables[2];
    hotbed_storage_options options;
    f = (filled){.host = sample_stream(HOTBED_BACKEND_HOST), .stream = hotbed_test_stream(backend)};
    snprintf(f.directory, sizeof f.directory, "%s", sample_path("counts"));
    hotbed_optimizer_init(&optimizer);
    optimizer.kind = HOTBED_OPT_ADAM;
    for (uint32_t t = 0; t < 2; t++) {
        tables[t] = (hotbed_table_options){
            .size = sizeof tables[t], .name = names[t], .dim = 4, .capacity = 8};
        hotbed_storage_options_init(&options);
        options.num_tables = 1;
        options.tables = &tables[t];
        options.optimizer = optimizer;
        CHECK_OK(hotbed_storage_create(&options, f.host, &halves[t]));
    }
    hotbed_storage_state state = {.size = sizeof state};
    CHECK_OK(hotbed_storage_get_state(halves[1], &state, f.host));
    state.optimizer_steps = 3;
    CHECK_OK(hotbed_storage_set_state(halves[1], &state, f.host));
    how = (hotbed_publish_options){.size = sizeof how, .states = true};
    CHECK_OK(hotbed_publisher_create(f.directory, halves, 2, &how, f.host, &f.publisher));
    CHECK_OK(hotbed_publisher_publish(f.publisher, 1, f.host));
    CHECK_OK(hotbed_publisher_wait(f.publisher));
    CHECK_OK(hotbed_reader_open(f.directory, NULL, &f.reader));
    options.num_tables = 2;
    options.tables = tables;
    CHECK_OK(hotbed_storage_create(&options, f.stream, &both));
    CHECK_STATUS(
        hotbed_reader_fill(f.reader, &both, 1, f.stream, &f.version), HOTBED_ERR_UNSUPPORTED);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "optimizer_steps",
            .table = "second", .value = 3, .limit = 0);
    hotbed_storage_destroy(both);
    hotbed_reader_close(f.reader);
    hotbed_publisher_destroy(f.publisher);
    hotbed_storage_destroy(halves[0]);
    hotbed_storage_destroy(halves[1]);
    hotbed_stream_destroy(f.stream);
    hotbed_stream_destroy(f.host);
}

/* --- errors ---------------------------------------------------------------------------------------- */

/* Create a storage of other options, and try to fill it. */
static void refused(
    filled *f, const hotbed_storage_options *options, hotbed_status status, const char *text) {
    hotbed_storage *other = NULL;
    uint64_t version = 0;
    CHECK_OK(hotbed_storage_create(options, f->stream, &other));
    CHECK_STATUS(hotbed_reader_fill(f->reader, &other, 1, f->stream, &version), status);
    CHECK(strstr(hotbed_last_error(), text) != NULL);
    CHECK_EQ(version, 0);
    hotbed_storage_destroy(other);
}

static void other_tables_are_named(hotbed_backend backend) {
    filled f;
    hotbed_table_options tables[SERVED_TABLES];
    hotbed_storage_options options;
    uint64_t version = 0;
    start(&f, backend, HOTBED_MODE_HBM_DIRECT);
    for (int i = 0; i < 20; i++)
        publish(&f); /* until the table has keys */
    CHECK_OK(hotbed_reader_poll(f.reader));
    hotbed_storage *none = NULL;
    CHECK_STATUS(hotbed_reader_fill(NULL, &f.storage, 1, f.stream, &version), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_fill(f.reader, NULL, 1, f.stream, &version), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_fill(f.reader, &none, 1, f.stream, &version), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_fill(f.reader, &f.storage, 1, NULL, &version), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_fill(f.reader, &f.storage, 1, f.stream, NULL), HOTBED_ERR_ARGUMENT);
    options_of(tables, &options);
    tables[1].name = "another";
    refused(&f, &options, HOTBED_ERR_ARGUMENT, "has no table 'another'");
    options_of(tables, &options);
    tables[1].dim = 7;
    refused(&f, &options, HOTBED_ERR_ARGUMENT, "table 'hash' has dim 7; in the cut it has 5");
    options_of(tables, &options);
    tables[2].eval_initializer.value = 2.0F;
    refused(&f, &options, HOTBED_ERR_ARGUMENT, "table 'half' read as 2; in the cut they are 0.25");
    options_of(tables, &options);
    options.key_type = HOTBED_KEY_I64;
    refused(&f, &options, HOTBED_ERR_ARGUMENT, "keys of another type");
    options_of(tables, &options);
    tables[0].capacity = 7;
    refused(&f, &options, HOTBED_ERR_ARGUMENT, "table 'rows' has 7 rows; in the cut it has 6");
    options_of(tables, &options);
    tables[0].capacity = 1; /* row 1 and later ones have no place */
    refused(&f, &options, HOTBED_ERR_RANGE, "rows");
    end(&f);
}

/* A storage whose rows have a type that lacks a value of the cut gets an error, not an infinity. */
static void a_value_that_the_type_of_the_table_lacks_is_refused(hotbed_backend backend) {
    filled f;
    hotbed_table_options tables[SERVED_TABLES];
    hotbed_storage_options options;
    float row[5] = {1, 2, 1e6F, 4, 5};
    hotbed_rows rows = {.weights = row};
    start(&f, backend, HOTBED_MODE_HBM_DIRECT);
    CHECK_OK(hotbed_storage_set_rows(f.trained, 0, 1, &served_keys[3], &rows, f.host));
    CHECK_OK(hotbed_publisher_publish(f.publisher, ++f.step, f.host));
    CHECK_OK(hotbed_publisher_wait(f.publisher));
    CHECK_OK(hotbed_reader_poll(f.reader));
    options_of(tables, &options);
    tables[1].dtype = HOTBED_F16;
    refused(
        &f, &options, HOTBED_ERR_ARGUMENT,
        "table 'hash', key 3: f16 does not have the value 1e+06");
    end(&f);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_value_that_the_type_of_the_table_lacks_is_refused)},
    {TEST(a_filled_storage_follows_the_cuts)},
    {TEST(only_what_changed_is_written)},
    {TEST(other_tables_are_named)},
    {TEST(a_second_trainer_follows)},
    {TEST(other_states_are_refused)},
    {TEST(counts_of_steps_are_of_a_storage)},
    {NULL, NULL},
};
