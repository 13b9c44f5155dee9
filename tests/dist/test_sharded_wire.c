/* tests/dist/test_sharded_wire.c - the bytes that ranks exchange, counted, in batches with the bags of W9. */
#include "bench/workload.h"
#include "hotbed/sharded.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 4, STEPS = 2, SAMPLES = 24 };

typedef struct wire_case {
    const workload_input *input; /* batch r belongs to rank r */
    hotbed_plan plan;
    hotbed_pooling pooling;
    uint64_t capacity;                       /* 0: chosen so that nothing overflows */
    const hotbed_pooled_exchange *exchanges; /* NULL: chosen by rule from pooling_factors */
    const float *pooling_factors;
    hotbed_exchange_stats stats[16];
} wire_case;

static void make_input(uint32_t batches, uint32_t samples, double scale, workload_input *out) {
    workload_shape shape = {.dim = 1, .samples = samples, .batches = batches, .warm = 1};
    workload_bag_tables(scale, &shape);
    CHECK_OK(workload_input_create(&shape, WORKLOAD_POWER_BAGS, 1.05, out));
}

static hotbed_route route_of(const workload_shape *shape, uint32_t table, uint32_t size) {
    hotbed_route route;
    CHECK_OK(
        hotbed_route_init(&route, HOTBED_ROUTE_HASH_ROUND_ROBIN, size, shape->table_rows[table]));
    return route;
}

static void make_tables(
    const workload_shape *shape, hotbed_table_options *tables, char (*names)[16]) {
    for (uint32_t t = 0; t < shape->tables; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        (void)snprintf(names[t], sizeof names[t], "t%u", t);
        tables[t].name = names[t];
        tables[t].dim = DIM;
        tables[t].capacity = 2 * shape->table_rows[t] + 64;
    }
}

static void exchange_body(world_rank *me) {
    wire_case *c = me->argument;
    const workload_shape *shape = &c->input->shape;
    const bool pooled = c->pooling != HOTBED_POOL_NONE;
    hotbed_table_options tables[32];
    char names[32][16];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    const uint64_t n = workload_keys_a_step(shape);
    const uint64_t rows = pooled ? workload_bags_a_step(shape) : n;
    world_bytes keys = world_alloc(me, n * sizeof(int64_t));
    world_bytes offsets = world_alloc(me, (workload_bags_a_step(shape) + 1) * sizeof(int64_t));
    world_bytes output = world_alloc(me, rows * DIM * sizeof(float));
    hotbed_kjt kjt;
    make_tables(shape, tables, names);
    hotbed_storage_options_init(&storage);
    storage.num_tables = shape->tables;
    storage.tables = tables;
    storage.pooling = c->pooling;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.plan = c->plan;
    options.max_batch_size = shape->samples;
    options.max_keys = n;
    options.capacity = c->capacity != 0 ? c->capacity : n;
    options.exchanges = c->exchanges;
    options.pooling_factors = c->pooling_factors;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    memcpy(keys.host, c->input->keys + me->rank * n, keys.bytes);
    memcpy(offsets.host, c->input->offsets, offsets.bytes);
    world_upload(me, &keys);
    world_upload(me, &offsets);
    kjt = (hotbed_kjt){.size = sizeof kjt};
    kjt.num_features = shape->tables;
    kjt.batch_size = shape->samples;
    kjt.num_keys = n;
    kjt.keys = keys.device.data;
    kjt.offsets = offsets.device.data;
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(hotbed_sharded_forward(context, 0, &kjt, output.device.data, 0, me->stream));
        CHECK_OK(hotbed_sharded_backward(context, 0, output.device.data, 0, me->stream));
    }
    c->stats[me->rank].size = sizeof c->stats[me->rank];
    CHECK_OK(hotbed_sharded_stats(sharded, &c->stats[me->rank], me->stream));
    uint32_t repeated = 0;
    CHECK_OK(hotbed_sharded_repeated_overflows(context, &repeated));
    CHECK_EQ(repeated, c->stats[me->rank].overflows);
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
    world_free(&keys);
    world_free(&offsets);
    world_free(&output);
}

/* A batch over the sizes overflows on all ranks; after a resize it is exchanged. */
static void resize_body(world_rank *me) {
    const uint64_t keys_most = 8;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_kjt kjt;
    bool overflowed = false;
    char text[512];
    world_bytes keys = world_alloc(me, 2 * keys_most * sizeof(int64_t));
    world_bytes output = world_alloc(me, 2 * keys_most * DIM * sizeof(float));
    table.name = "t";
    table.dim = DIM;
    table.capacity = 1000;
    table.initializer.value = 2.0F;
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_sharded_options_init(&options);
    CHECK_EQ(options.plan, HOTBED_PLAN_AUTO);
    options.storage = &storage;
    options.overflow = HOTBED_OVERFLOW_REPORT;
    options.large_overflows = true;
    options.max_batch_size = (uint32_t)keys_most;
    options.max_keys = keys_most;
    options.capacity = keys_most;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    CHECK_OK(hotbed_sharded_print(sharded, text, sizeof text, NULL));
    CHECK(strstr(text, "plan one-sided") != NULL);
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    for (uint64_t i = 0; i < 2 * keys_most; i++)
        ((int64_t *)(void *)keys.host)[i] = (int64_t)(100 * me->rank + i);
    world_upload(me, &keys);
    kjt = (hotbed_kjt){.size = sizeof kjt, .num_features = 1, .keys = keys.device.data};
    for (int pass = 0; pass < 2; pass++) {
        /* Only rank 0 has too many keys. */
        kjt.num_keys = me->rank == 0 ? 2 * keys_most : keys_most;
        kjt.batch_size = (uint32_t)kjt.num_keys;
        CHECK_OK(hotbed_sharded_input_dist(context, &kjt, me->stream));
        CHECK_OK(hotbed_sharded_wait_splits(context, me->stream));
        CHECK_OK(hotbed_sharded_wait_input(context, me->stream));
        CHECK_OK(hotbed_sharded_overflowed(context, &overflowed));
        CHECK_EQ(overflowed, pass == 0);
        if (pass == 1)
            break;
        CHECK_OK(hotbed_sharded_cancel(context, me->stream));
        CHECK_STATUS(hotbed_sharded_resize(sharded, 64, 64, 64), HOTBED_ERR_STATE);
        hotbed_sharded_context_destroy(context);
        CHECK_STATUS(hotbed_sharded_resize(sharded, 0, 64, 64), HOTBED_ERR_ARGUMENT);
        CHECK_OK(hotbed_sharded_resize(
            sharded, (uint32_t)(2 * keys_most), 2 * keys_most, 2 * keys_most));
        CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    }
    CHECK_OK(hotbed_sharded_prefetch(context, 0, me->stream));
    CHECK_OK(hotbed_sharded_read(context, 0, output.device.data, 0, me->stream));
    world_download(me, &output);
    for (uint64_t i = 0; i < kjt.num_keys * DIM; i++)
        CHECK_EQ(((float *)(void *)output.host)[i] == 2.0F, true);
    CHECK_OK(hotbed_sharded_cancel(context, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
    world_free(&keys);
    world_free(&output);
}

static void a_batch_over_the_sizes_overflows_everywhere(hotbed_backend backend) {
    const world where = {HOTBED_TRANSPORT_THREADS, 3};
    world_run(&where, NULL, resize_body, NULL);
}

/* --- the model ---------------------------------------------------------------------------------- */

/* The number of distinct keys that rank `from` has for each rank. */
static void count_distinct(
    const workload_input *input, uint32_t size, uint32_t from, uint64_t *counts) {
    const workload_shape *shape = &input->shape;
    uint8_t *seen = malloc(shape->range);
    CHECK(seen != NULL);
    memset(counts, 0, size * sizeof *counts);
    for (uint32_t t = 0; t < shape->tables; t++) {
        const hotbed_route route = route_of(shape, t, size);
        const int64_t *keys = input->keys + from * workload_keys_a_step(shape);
        memset(seen, 0, shape->range);
        for (uint64_t i = workload_first_key(shape, t); i < workload_first_key(shape, t + 1); i++) {
            counts[hotbed_route_rank(&route, (uint64_t)keys[i])] += seen[keys[i]] == 0;
            seen[keys[i]] = 1;
        }
    }
    free(seen);
}

static uint64_t round16(uint64_t bytes) {
    return (bytes + 15) / 16 * 16;
}

/* A message: a header of 16 bytes, the first key of each row, and the keys. */
static uint64_t message_bytes(uint64_t rows, uint64_t keys) {
    return 16 + round16((rows + 1) * sizeof(uint32_t)) + round16(keys * sizeof(uint64_t));
}

static void run_world(wire_case *c, uint32_t size) {
    const world where = {HOTBED_TRANSPORT_THREADS, size};
    memset(c->stats, 0, sizeof c->stats);
    world_run(&where, NULL, exchange_body, c);
}

/* --- tests -------------------------------------------------------------------------------------- */

/* Count for each table what rank `from` requests of rank `to`: bags with a key there, and distinct
 * keys. */
static void count_requests(
    const workload_input *input, uint32_t size, uint32_t from, uint32_t to, uint64_t *bags,
    uint64_t *distinct) {
    const workload_shape *shape = &input->shape;
    const int64_t *keys = input->keys + from * workload_keys_a_step(shape);
    uint8_t *seen = malloc(shape->range);
    CHECK(seen != NULL);
    for (uint32_t t = 0; t < shape->tables; t++) {
        const hotbed_route route = route_of(shape, t, size);
        memset(seen, 0, shape->range);
        bags[t] = distinct[t] = 0;
        for (uint64_t b = 0; b < shape->samples; b++) {
            bool travels = false;
            const int64_t *bag = input->offsets + t * shape->samples + b;
            for (int64_t i = bag[0]; i < bag[1]; i++) {
                if (hotbed_route_rank(&route, (uint64_t)keys[i]) != to)
                    continue;
                travels = true;
                distinct[t] += seen[keys[i]] == 0;
                seen[keys[i]] = 1;
            }
            bags[t] += travels;
        }
    }
    free(seen);
}

/* By sums only bags with a key on the owner travel, by rows only distinct rows; a message of fixed
 * size travels whole. The rule chooses sums for batches so small. */
static void bags_or_distinct_rows_travel(hotbed_backend backend) {
    enum { TABLES = 32, WAYS = 3 };
    hotbed_pooled_exchange exchanges[2][TABLES];
    float factors[TABLES];
    workload_input input;
    make_input(16, SAMPLES, 1.0 / 4096, &input);
    const workload_shape *shape = &input.shape;
    for (uint32_t t = 0; t < shape->tables; t++) {
        exchanges[0][t] = HOTBED_POOLED_SUMS;
        exchanges[1][t] = HOTBED_POOLED_ROWS;
        factors[t] = (float)(workload_first_key(shape, t + 1) - workload_first_key(shape, t)) /
                     (float)shape->samples;
    }
    for (uint32_t size = 2; size <= 16; size *= 2)
        for (int way = 0; way < WAYS; way++)
            for (int plan = 1; plan < 3; plan++) {
                wire_case c = {
                    .input = &input, .plan = (hotbed_plan)plan, .pooling = HOTBED_POOL_SUM};
                c.exchanges = way < 2 ? exchanges[way] : NULL;
                c.pooling_factors = factors;
                run_world(&c, size);
                for (uint32_t r = 0; r < size; r++) {
                    uint64_t requested = 0, owned = 0;
                    for (uint32_t p = 0; p < size; p++) {
                        uint64_t bags[2][TABLES], distinct[2][TABLES];
                        if (p == r)
                            continue;
                        count_requests(&input, size, r, p, bags[0], distinct[0]);
                        count_requests(&input, size, p, r, bags[1], distinct[1]);
                        for (uint32_t t = 0; t < shape->tables; t++) {
                            const bool rows = way == 1;
                            requested += rows ? distinct[0][t] : bags[0][t];
                            owned += rows ? distinct[1][t] : bags[1][t];
                        }
                    }
                    const uint64_t row = STEPS * DIM * sizeof(float);
                    CHECK_EQ(c.stats[r].batches, STEPS);
                    CHECK_EQ(c.stats[r].rows_sent, owned * row);
                    CHECK_EQ(c.stats[r].rows_received, requested * row);
                    CHECK_EQ(c.stats[r].gradients_sent, requested * row);
                    CHECK_EQ(c.stats[r].gradients_received, owned * row);
                }
            }
    workload_input_destroy(&input);
}

static void distinct_rows_of_sequences_travel(hotbed_backend backend) {
    workload_input input;
    make_input(8, SAMPLES, 1.0 / 4096, &input);
    const uint64_t row = DIM * sizeof(float), tables = input.shape.tables;
    for (uint32_t size = 2; size <= 8; size *= 2) {
        uint64_t counts[8][8];
        for (uint32_t r = 0; r < size; r++)
            count_distinct(&input, size, r, counts[r]);
        for (int plan = 0; plan < 3; plan++) {
            wire_case c = {.input = &input, .plan = (hotbed_plan)plan};
            const uint64_t whole = workload_keys_a_step(&input.shape);
            run_world(&c, size);
            for (uint32_t r = 0; r < size; r++) {
                hotbed_exchange_stats want = {.size = sizeof want, .batches = STEPS};
                for (uint32_t p = 0; p < size; p++) {
                    const bool fixed = plan == HOTBED_PLAN_FIXED;
                    const uint64_t out = fixed ? whole : counts[r][p];
                    const uint64_t in = fixed ? whole : counts[p][r];
                    if (p == r)
                        continue;
                    want.keys_sent += STEPS * message_bytes(tables, out);
                    want.keys_received += STEPS * message_bytes(tables, in);
                    want.rows_sent += STEPS * in * row;
                    want.rows_received += STEPS * out * row;
                }
                want.gradients_sent = want.rows_received;
                want.gradients_received = want.rows_sent;
                CHECK_BYTES(&c.stats[r], &want, sizeof want);
            }
        }
    }
    workload_input_destroy(&input);
}

static void repeated_overflows_are_counted(hotbed_backend backend) {
    workload_input input;
    make_input(2, SAMPLES, 1.0 / 4096, &input);
    for (int plan = 0; plan < 3; plan += 2) {
        wire_case c = {.input = &input, .plan = (hotbed_plan)plan, .capacity = 16};
        run_world(&c, 2);
        CHECK_EQ(c.stats[0].batches, STEPS);
        CHECK_EQ(c.stats[0].overflows, STEPS);
        CHECK_EQ(c.stats[1].overflows, STEPS);
        CHECK(c.stats[0].rows_received > 0); /* of the replay */
    }
    workload_input_destroy(&input);
}

/* What the choices of hotbed/sharded.h move in one direction for a batch of W9 with rows of 512 bytes, in MB. */
static void choices_move_so_many_bytes(hotbed_backend backend) {
    static const struct {
        uint32_t size;
        double sums, bags, distinct, best;
    } table[] = {
        {2, 109, 78, 112, 41},
        {4, 327, 166, 168, 87},
        {8, 763, 277, 196, 132},
        {16, 1636, 375, 210, 176},
    };
    workload_input input;
    make_input(1, 8192, 1, &input);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        hotbed_route routes[32];
        workload_moved moved;
        for (uint32_t t = 0; t < input.shape.tables; t++)
            routes[t] = route_of(&input.shape, t, table[i].size);
        CHECK_OK(workload_count_moved(&input.shape, input.keys, routes, 0, &moved));
        const double mb = 512e-6;
        CHECK_NEAR((double)moved.sums * mb / table[i].sums, 1, 0.03);
        CHECK_NEAR((double)moved.bags * mb / table[i].bags, 1, 0.03);
        CHECK_NEAR((double)moved.distinct * mb / table[i].distinct, 1, 0.03);
        CHECK_NEAR((double)moved.best * mb / table[i].best, 1, 0.03);
    }
    workload_input_destroy(&input);
}

const hotbed_test hotbed_tests[] = {
    {TEST(bags_or_distinct_rows_travel)},   {TEST(distinct_rows_of_sequences_travel)},
    {TEST(repeated_overflows_are_counted)}, {TEST(a_batch_over_the_sizes_overflows_everywhere)},
    {TEST(choices_move_so_many_bytes)},     {NULL, NULL},
};
