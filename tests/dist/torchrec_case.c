/* tests/dist/torchrec_case.c - Hotbed's side of test_torchrec.py: train a case and write what each
 * rank received and computed.
 *
 * The environment variable TORCHREC_CASE names a file of numbers, in the order in which read_case()
 * takes them; floats are hexadecimal, so that no bit is lost.  The case runs with each plan, with a
 * thread for each rank.  Rank r writes TORCHREC_RESULT.<plan>.<r>: lines with a name, the step, and
 * the values. */
#include "dist/sharded.h"
#include "storage/types.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 }; /* largest number of tables, features, ranks and steps */

/* The batch and gradient of one rank. */
typedef struct torchrec_batch {
    uint32_t samples;
    uint64_t n, floats;
    int64_t *lengths;
    uint64_t *keys;
    float *gradient;
} torchrec_batch;

typedef struct torchrec_case {
    uint32_t ranks, steps, pooled, dedup, optimizer, tables, features, dim, max_samples;
    uint64_t max_keys;
    float rate, eps, scale;
    uint64_t rows[MOST];
    uint32_t feature_tables[MOST];
    float *weights[MOST];
    torchrec_batch batches[MOST][MOST]; /* [steps][ranks] */
    hotbed_plan plan;
} torchrec_case;

/* --- the case --------------------------------------------------------------------------------- */

static uint64_t read_number(FILE *from, uint64_t most) {
    char word[64], *end;
    CHECK_EQ(fscanf(from, "%63s", word), 1);
    uint64_t value = strtoull(word, &end, 10);
    CHECK(*end == '\0' && value <= most);
    return value;
}

static float read_float(FILE *from) {
    char word[64], *end;
    CHECK_EQ(fscanf(from, "%63s", word), 1);
    float value = strtof(word, &end);
    CHECK(*end == '\0');
    return value;
}

static void *take(uint64_t n, size_t bytes) {
    void *memory = calloc(n + 1, bytes);
    CHECK(memory != NULL);
    return memory;
}

static float *read_floats(FILE *from, uint64_t n) {
    float *values = take(n, sizeof *values);
    for (uint64_t i = 0; i < n; i++)
        values[i] = read_float(from);
    return values;
}

static void read_batch(FILE *from, torchrec_case *c, torchrec_batch *b) {
    enum { SAMPLES = 1000, KEYS = 100000 };
    b->samples = (uint32_t)read_number(from, SAMPLES);
    uint64_t bags = (uint64_t)c->features * b->samples;
    b->lengths = take(bags, sizeof *b->lengths);
    for (uint64_t i = 0; i < bags; i++) {
        b->lengths[i] = (int64_t)read_number(from, KEYS);
        b->n += (uint64_t)b->lengths[i];
    }
    b->keys = take(b->n, sizeof *b->keys);
    for (uint64_t i = 0; i < b->n; i++)
        b->keys[i] = read_number(from, UINT64_MAX);
    b->floats = (c->pooled != 0 ? bags : b->n) * c->dim;
    b->gradient = read_floats(from, b->floats);
    c->max_samples = b->samples > c->max_samples ? b->samples : c->max_samples;
    c->max_keys = b->n > c->max_keys ? b->n : c->max_keys;
}

static void read_case(FILE *from, torchrec_case *c) {
    c->ranks = (uint32_t)read_number(from, MOST);
    c->steps = (uint32_t)read_number(from, MOST);
    c->pooled = (uint32_t)read_number(from, 1);
    c->dedup = (uint32_t)read_number(from, 1);
    c->optimizer = (uint32_t)read_number(from, HOTBED_OPT_LAST);
    c->rate = read_float(from);
    c->eps = read_float(from);
    c->scale = read_float(from);
    c->dim = (uint32_t)read_number(from, 1000);
    c->tables = (uint32_t)read_number(from, MOST);
    for (uint32_t t = 0; t < c->tables; t++) {
        c->rows[t] = read_number(from, 100000);
        c->weights[t] = read_floats(from, c->rows[t] * c->dim);
    }
    c->features = (uint32_t)read_number(from, MOST);
    for (uint32_t f = 0; f < c->features; f++)
        c->feature_tables[f] = (uint32_t)read_number(from, c->tables - 1);
    for (uint32_t s = 0; s < c->steps; s++)
        for (uint32_t r = 0; r < c->ranks; r++)
            read_batch(from, c, &c->batches[s][r]);
}

static void free_case(torchrec_case *c) {
    for (uint32_t t = 0; t < c->tables; t++)
        free(c->weights[t]);
    for (uint32_t s = 0; s < c->steps; s++)
        for (uint32_t r = 0; r < c->ranks; r++) {
            free(c->batches[s][r].lengths);
            free(c->batches[s][r].keys);
            free(c->batches[s][r].gradient);
        }
}

/* --- output --------------------------------------------------------------------------------- */

static FILE *open_result(const torchrec_case *c, uint32_t rank) {
    char path[4096];
    int length =
        snprintf(path, sizeof path, "%s.%d.%u", getenv("TORCHREC_RESULT"), (int)c->plan, rank);
    CHECK(length > 0 && (size_t)length < sizeof path);
    FILE *to = fopen(path, "w");
    CHECK(to != NULL);
    return to;
}

static void write_numbers(
    FILE *to, const char *name, uint32_t step, uint64_t n, const uint64_t *values) {
    (void)fprintf(to, "%s %u", name, step);
    for (uint64_t i = 0; i < n; i++)
        (void)fprintf(to, " %" PRIu64, values[i]);
    (void)fprintf(to, "\n");
}

static void write_floats(
    FILE *to, const char *name, uint32_t number, uint64_t n, const float *values) {
    (void)fprintf(to, "%s %u", name, number);
    for (uint64_t i = 0; i < n; i++)
        (void)fprintf(to, " %a", (double)values[i]);
    (void)fprintf(to, "\n");
}

/* --- one rank --------------------------------------------------------------------------------- */

static hotbed_sharded *create(const torchrec_case *c, const world_rank *me) {
    static const char *const names[MOST] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"};
    hotbed_table_options tables[MOST];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded = NULL;
    for (uint32_t t = 0; t < c->tables; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t], .name = names[t]};
        tables[t].kind = HOTBED_TABLE_STATIC; /* keys are row numbers; routed CONTINUOUS */
        tables[t].dim = c->dim;
        tables[t].capacity = c->rows[t];
    }
    hotbed_storage_options_init(&storage);
    storage.num_tables = c->tables;
    storage.tables = tables;
    storage.num_features = c->features;
    storage.feature_tables = c->feature_tables;
    storage.pooling = c->pooled != 0 ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
    storage.optimizer.kind = (hotbed_optimizer_kind)c->optimizer;
    storage.optimizer.learning_rate = c->rate;
    storage.optimizer.eps = c->eps;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.plan = c->plan;
    options.dedup = c->dedup != 0 ? HOTBED_DEDUP_ON : HOTBED_DEDUP_OFF;
    options.gradient_scale = c->scale;
    options.max_batch_size = c->max_samples;
    options.max_keys = c->max_keys;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    return sharded;
}

/* Set, or write to the file, this rank's rows of each table, in order of local id. */
static void move_rows(
    const torchrec_case *c, const world_rank *me, hotbed_sharded *sharded, FILE *to) {
    for (uint32_t t = 0; t < c->tables; t++) {
        hotbed_sharded_table table = {.size = sizeof table};
        CHECK_OK(hotbed_sharded_table_read(sharded, t, &table));
        hotbed_storage *lookup = hotbed_sharded_lookup(sharded, table.lookup);
        uint64_t n = hotbed_route_rows(&table.route, me->rank);
        world_bytes keys = world_alloc(me, n * sizeof(uint64_t));
        world_bytes rows = world_alloc(me, n * c->dim * sizeof(float));
        hotbed_rows parts = {.weights = rows.device.data};
        for (uint64_t i = 0; i < n; i++) {
            uint64_t row = hotbed_route_key(&table.route, me->rank, i);
            memcpy(keys.host + i * sizeof i, &i, sizeof i);
            memcpy(
                rows.host + i * c->dim * sizeof(float), c->weights[t] + row * c->dim,
                c->dim * sizeof(float));
        }
        world_upload(me, &keys);
        world_upload(me, &rows);
        if (to == NULL) {
            CHECK_OK(hotbed_storage_set_rows(
                lookup, table.table, n, keys.device.data, &parts, me->stream));
            CHECK_OK(hotbed_stream_sync(me->stream));
        } else {
            CHECK_OK(hotbed_storage_get_rows(
                lookup, table.table, n, keys.device.data, &parts, NULL, me->stream));
            world_download(me, &rows);
            write_floats(to, "rows", t, n * c->dim, (float *)(void *)rows.host);
        }
        world_free(&keys);
        world_free(&rows);
    }
}

/* Write the result of input_dist of sequences: keys, and the offsets of features, or of tables after dedup. */
static void write_received(
    const torchrec_case *c, const world_rank *me, const hotbed_sharded_context *context,
    uint32_t step, FILE *to) {
    const hotbed_batch got = hotbed_step_part(context, &context->members[0], 0)->batch;
    uint64_t starts = c->dedup != 0 ? c->tables : c->features;
    uint64_t *offsets = take(starts + 1, sizeof *offsets);
    CHECK_OK(hotbed_copy(offsets, got.offsets, (starts + 1) * sizeof *offsets, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    uint64_t *keys = take(offsets[starts], sizeof *keys);
    CHECK_OK(hotbed_copy(keys, got.keys, offsets[starts] * sizeof *keys, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    write_numbers(to, "offsets", step, starts + 1, offsets);
    write_numbers(to, "keys", step, offsets[starts], keys);
    free(keys);
    free(offsets);
}

static void run_step(
    const torchrec_case *c, const world_rank *me, hotbed_sharded_context *context, uint32_t step,
    FILE *to) {
    const torchrec_batch *b = &c->batches[step][me->rank];
    world_bytes keys = world_alloc(me, b->n * sizeof *b->keys);
    world_bytes lengths = world_alloc(me, (uint64_t)c->features * b->samples * sizeof *b->lengths);
    world_bytes gradient = world_alloc(me, b->floats * sizeof(float));
    world_bytes output = world_alloc(me, b->floats * sizeof(float));
    memcpy(keys.host, b->keys, keys.bytes);
    memcpy(lengths.host, b->lengths, lengths.bytes);
    memcpy(gradient.host, b->gradient, gradient.bytes);
    world_upload(me, &keys);
    world_upload(me, &lengths);
    world_upload(me, &gradient);
    hotbed_kjt kjt = {.size = sizeof kjt};
    kjt.num_features = c->features;
    kjt.batch_size = b->samples;
    kjt.num_keys = b->n;
    kjt.keys = keys.device.data;
    kjt.lengths = lengths.device.data;
    CHECK_OK(hotbed_sharded_input_dist(context, &kjt, me->stream));
    CHECK_OK(hotbed_sharded_wait_splits(context, me->stream));
    CHECK_OK(hotbed_sharded_wait_input(context, me->stream));
    if (c->pooled == 0)
        write_received(c, me, context, step, to);
    CHECK_OK(hotbed_sharded_compute(context, 0, me->stream));
    CHECK_OK(hotbed_sharded_output_dist(context, 0, me->stream));
    CHECK_OK(hotbed_sharded_wait_output(context, 0, output.device.data, 0, me->stream));
    CHECK_OK(hotbed_sharded_backward(context, 0, gradient.device.data, 0, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    world_download(me, &output);
    write_floats(to, "output", step, b->floats, (float *)(void *)output.host);
    world_free(&keys);
    world_free(&lengths);
    world_free(&gradient);
    world_free(&output);
}

static void train(world_rank *me) {
    const torchrec_case *c = me->argument;
    hotbed_sharded_context *context = NULL;
    hotbed_sharded *sharded = create(c, me);
    FILE *to = open_result(c, me->rank);
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    move_rows(c, me, sharded, NULL);
    for (uint32_t step = 0; step < c->steps; step++)
        run_step(c, me, context, step, to);
    move_rows(c, me, sharded, to);
    CHECK_EQ(fclose(to), 0);
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
}

static void by_each_plan(hotbed_backend backend) {
    static torchrec_case c;
    if (getenv("TORCHREC_CASE") == NULL || getenv("TORCHREC_RESULT") == NULL)
        SKIP("not run by test_torchrec.py");
    FILE *from = fopen(getenv("TORCHREC_CASE"), "r");
    CHECK(from != NULL);
    read_case(from, &c);
    CHECK_EQ(fclose(from), 0);
    const world where = {HOTBED_TRANSPORT_THREADS, c.ranks};
    for (int plan = HOTBED_PLAN_FIXED; plan <= HOTBED_PLAN_ONE_SIDED; plan++) {
        c.plan = (hotbed_plan)plan;
        world_run(&where, NULL, train, &c);
    }
    free_case(&c);
}

const hotbed_test hotbed_tests[] = {{"by_each_plan", by_each_plan}, {NULL, NULL}};
