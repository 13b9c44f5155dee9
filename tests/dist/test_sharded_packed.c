/* tests/dist/test_sharded_packed.c - rows, sums and gradients that travel as int8 or fp8, compared with a plain
 * model on all plans. */
#include "base/float.h"
#include "storage/step/packed_core.h"
#include "tests/dist/sharded_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TABLES = 2, SAMPLES = 4, BAG = 3, ROWS = TABLES * SAMPLES, KEYS = ROWS * BAG };
enum { DIM_MOST = 200, STEPS = 3, RANKS = 4, SEED = 5 };
enum { KEYS_MOST = RANKS * KEYS, ROW_MOST = 5 * DIM_MOST };

typedef struct packed_case {
    hotbed_pooling pooling;
    hotbed_pooled_exchange exchange;
    hotbed_dedup dedup;
    hotbed_plan plan;
    hotbed_dtype rows, forward, backward; /* types of the tables, and what travels */
    uint32_t dims[TABLES];
    bool overflows; /* messages are too small, and batches are sent again */
} packed_case;

static uint32_t columns_of(const packed_case *c) {
    return c->dims[0] + c->dims[1];
}

static uint32_t max_dim(const packed_case *c) {
    return c->dims[0] > c->dims[1] ? c->dims[0] : c->dims[1];
}

/* The batch of a rank: bag t * SAMPLES + s is of feature t. No two ranks or steps have a key in common. */
typedef struct batch {
    int64_t lengths[ROWS];
    uint64_t keys[KEYS];
    uint32_t bags[KEYS];
    uint32_t n, starts[ROWS + 1];
} batch;

static batch batch_of(uint32_t rank, int step) {
    batch b;
    memset(&b, 0, sizeof b);
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint64_t word = hotbed_hash_u64(rank * 1000 + (uint64_t)step * 100 + r + 1);
        b.starts[r] = b.n;
        b.lengths[r] = (int64_t)(word % (BAG + 1));
        for (uint32_t k = 0; k < (uint32_t)b.lengths[r]; k++) {
            b.bags[b.n] = r;
            b.keys[b.n++] = 10000 * ((uint64_t)rank + 1) + 100 * (uint64_t)step +
                            10 * (r / SAMPLES) + (word >> (8 * k + 8)) % 6;
        }
    }
    b.starts[ROWS] = b.n;
    return b;
}

/* A gradient: few elements are large, and some are 0. */
static float gradient_at(uint32_t rank, int step, uint32_t row, uint32_t e) {
    const uint64_t word = hotbed_hash_u64(
        ((uint64_t)rank * 64 + (uint64_t)step) * 65536 + (uint64_t)row * 512 + e + 1);
    const float g = ((float)(word % 2001) - 1000.0F) / 1000.0F;
    return e % 5 == 3 ? 0.0F : e % 17 == 2 ? g : g / 64.0F;
}

/* --- the model --------------------------------------------------------------------------------------- */

static void as_int8(const float *v, uint32_t dim, float *out) {
    float low = v[0], high = v[0];
    for (uint32_t e = 1; e < dim; e++) {
        low = fminf(low, v[e]);
        high = fmaxf(high, v[e]);
    }
    const float offset = hotbed_f16_to_f32(hotbed_f32_to_f16_bound(low, false));
    const float scale = hotbed_f16_to_f32(hotbed_f32_to_f16_bound((high - offset) / 255.0F, true));
    for (uint32_t e = 0; e < dim; e++) {
        const float n = scale > 0.0F ? nearbyintf((v[e] - offset) / scale) : 0.0F;
        out[e] = fminf(fmaxf(n, 0.0F), 255.0F) * scale + offset;
    }
}

static float largest(const float *v, uint32_t n) {
    float most = 0.0F;
    for (uint32_t e = 0; e < n; e++)
        most = fmaxf(most, fabsf(v[e]));
    return most;
}

static float fp8_scale(const float *v, uint32_t n) {
    const float most = largest(v, n);
    float scale = 0x1p-40F;
    while (most > 448.0F * scale)
        scale *= 2.0F;
    return most == 0.0F ? 1.0F : scale;
}

static void as_fp8(const float *v, uint32_t dim, float *out) {
    const uint32_t span = dim <= 64 ? dim : 32;
    for (uint32_t from = 0; from < dim; from += span) {
        const uint32_t n = dim - from < span ? dim - from : span;
        const float scale = fp8_scale(v + from, n);
        for (uint32_t e = from; e < from + n; e++)
            out[e] = hotbed_fp8_to_f32(hotbed_f32_to_fp8(v[e] / scale)) * scale;
    }
}

/* Round a row or a sum as it travels. */
static void travel(hotbed_dtype dtype, uint32_t dim, const float *v, float *out) {
    if (dtype == HOTBED_INT8)
        as_int8(v, dim, out);
    else if (dtype == HOTBED_FP8)
        as_fp8(v, dim, out);
    else
        for (uint32_t e = 0; e < dim; e++)
            out[e] = dtype == HOTBED_F16    ? hotbed_f16_to_f32(hotbed_f32_to_f16(v[e]))
                     : dtype == HOTBED_BF16 ? hotbed_bf16_to_f32(hotbed_f32_to_bf16(v[e]))
                                            : v[e];
}

/* What the owner reads of gradient `number` of a rank: on the grid of its scale, less than a step from the
 * gradient, and 0 where it is 0. */
static void decoded(
    const packed_case *c, const world_rank *me, uint32_t rank, int step, uint32_t number,
    uint32_t dim, const float *g, float *out) {
    const uint32_t layout = max_dim(c), dtype = (uint32_t)c->backward;
    if (me->size == 1 || hotbed_packed_type(dtype) == 0) {
        travel(me->size == 1 ? HOTBED_F32 : c->backward, dim, g, out);
        return;
    }
    HOTBED_ALIGN(16) float values[DIM_MOST + 4] = {0};
    HOTBED_ALIGN(16) uint8_t row[2 * DIM_MOST];
    const uint64_t steps = (uint64_t)step;
    const hotbed_pack_view p = {dtype, 1, layout, rank, SEED ^ hotbed_hash_u64(1), &steps};
    memcpy(values, g, dim * sizeof *g);
    hotbed_pack_row(&p, dim, number, row, hotbed_pack_float4, values, 1);
    for (uint32_t e = 0; e < dim; e += 4) {
        const hotbed_f32x4 v = hotbed_unpack4(dtype, layout, row, e, hotbed_count4(dim, e));
        memcpy(values, &v, sizeof v);
        memcpy(out + e, values, hotbed_count4(dim, e) * sizeof *out);
    }
    const uint32_t span = dtype == HOTBED_FP8 && layout > 64 ? 32 : dim;
    float scale = 1.0F;
    for (uint32_t e = 0; e < dim; e++) {
        if (e % span == 0) {
            const uint32_t n = dim - e < span ? dim - e : span;
            scale = dtype == HOTBED_INT8 ? largest(g + e, n) / 127.0F : fp8_scale(g + e, n);
        }
        const float of = out[e] / scale;
        const float unit = dtype == HOTBED_INT8 ? 1.0F : fmaxf(fabsf(g[e] / scale) / 8.0F, 0x1p-9F);
        CHECK(g[e] != 0.0F || out[e] == 0.0F);
        CHECK_NEAR(of, g[e] / scale, 1.001 * (double)unit);
        if (dtype == HOTBED_INT8)
            CHECK_NEAR(of, roundf(of), 1e-4);
        else
            CHECK(hotbed_fp8_to_f32(hotbed_f32_to_fp8(of)) == of);
    }
}

/* --- a collection, and a storage that has its initial rows ------------------------------------------------ */

typedef struct setup {
    const packed_case *c;
    world_rank *me;
    hotbed_table_options tables[TABLES];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_storage *initial;
    world_bytes keys, lengths, output, gradient;
    /* keys, their rows, and whether they are there: KEYS_MOST of each table */
    world_bytes asked, rows, found;
} setup;

static size_t row_bytes(const setup *s, uint32_t t) {
    return hotbed_dtype_row_bytes(s->tables[t].dtype, s->c->dims[t]);
}

static void open_setup(setup *s, world_rank *me) {
    static const char *const names[TABLES] = {"user", "item"};
    const packed_case *c = me->argument;
    hotbed_pooled_exchange exchanges[TABLES] = {c->exchange, c->exchange};
    memset(s, 0, sizeof *s);
    s->c = c;
    s->me = me;
    for (int t = 0; t < TABLES; t++) {
        s->tables[t] = (hotbed_table_options){.size = sizeof s->tables[t]};
        s->tables[t].name = names[t];
        s->tables[t].dim = c->dims[t];
        s->tables[t].dtype = c->rows;
        s->tables[t].capacity = 4000;
        s->tables[t].initializer =
            (hotbed_initializer){.kind = HOTBED_INIT_UNIFORM, .lower = -1.0F, .upper = 1.0F};
    }
    hotbed_storage_options_init(&s->storage);
    s->storage.num_tables = TABLES;
    s->storage.tables = s->tables;
    s->storage.pooling = c->pooling;
    s->storage.seed = SEED;
    s->storage.optimizer.kind = HOTBED_OPT_SGD;
    s->storage.optimizer.learning_rate = 1.0F;
    hotbed_sharded_options_init(&s->options);
    s->options.storage = &s->storage;
    s->options.plan = c->plan;
    s->options.dedup = c->dedup;
    s->options.max_batch_size = SAMPLES + 3; /* no random word depends on it */
    s->options.max_keys = KEYS;
    s->options.capacity = c->overflows ? 3 : KEYS;
    s->options.exchanges = c->pooling == HOTBED_POOL_NONE ? NULL : exchanges;
    s->options.forward_dtype = c->forward;
    s->options.backward_dtype = c->backward;
    CHECK_OK(hotbed_sharded_create(&s->options, me->comm, me->stream, &s->sharded));
    CHECK_OK(hotbed_sharded_create_context(1, &s->sharded, me->stream, &s->context));
    hotbed_storage_options alone = s->storage;
    alone.pooling = HOTBED_POOL_NONE;
    CHECK_OK(hotbed_storage_create(&alone, me->stream, &s->initial));
    s->keys = world_alloc(me, KEYS * sizeof(uint64_t));
    s->lengths = world_alloc(me, ROWS * sizeof(int64_t));
    s->output = world_alloc(me, (KEYS + SAMPLES) * 2 * DIM_MOST * sizeof(float));
    s->gradient = world_alloc(me, s->output.bytes);
    s->asked = world_alloc(me, TABLES * KEYS_MOST * sizeof(uint64_t));
    s->rows = world_alloc(me, KEYS_MOST * (row_bytes(s, 0) + row_bytes(s, 1)));
    s->found = world_alloc(me, TABLES * KEYS_MOST);
}

static void close_setup(setup *s) {
    hotbed_sharded_context_destroy(s->context);
    hotbed_sharded_destroy(s->sharded);
    hotbed_storage_destroy(s->initial);
    world_bytes *const all[] = {&s->keys,  &s->lengths, &s->output, &s->gradient,
                                &s->asked, &s->rows,    &s->found};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        world_free(all[i]);
}

/* Decode a row of table t. */
static void decode_row(const setup *s, uint32_t t, const uint8_t *bytes, float *out) {
    HOTBED_ALIGN(16) uint8_t row[ROW_MOST];
    const uint32_t dtype = (uint32_t)s->tables[t].dtype, dim = s->c->dims[t];
    memcpy(row, bytes, row_bytes(s, t));
    for (uint32_t e = 0; e < dim; e += 4) {
        const uint32_t count = hotbed_count4(dim, e);
        const hotbed_f32x4 v = hotbed_row_load4(false, dtype, dim, row, e, count);
        float four[4];
        memcpy(four, &v, sizeof four);
        memcpy(out + e, four, count * sizeof *four);
    }
}

/* Read the rows of the keys of n batches as f32, with one upload and two downloads, since each makes the rank wait for
 * its stream: out[p][i] is the row of key i of batch p if here[p][i]. */
static void read_rows(
    setup *s, hotbed_storage *storage, const batch *batches, uint32_t n, bool insert,
    float (*out)[KEYS][DIM_MOST], bool (*here)[KEYS]) {
    uint32_t at[RANKS][KEYS];
    uint64_t *keys = (uint64_t *)(void *)s->asked.host;
    uint32_t distinct[TABLES] = {0};
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t i = 0; i < batches[p].n; i++) {
            const uint32_t t = batches[p].bags[i] / SAMPLES;
            uint32_t k = 0;
            while (k < distinct[t] && keys[t * KEYS_MOST + k] != batches[p].keys[i])
                k++;
            keys[t * KEYS_MOST + k] = batches[p].keys[i];
            distinct[t] += k == distinct[t] ? 1 : 0;
            at[p][i] = k;
        }
    world_upload(s->me, &s->asked);
    for (uint32_t t = 0; t < TABLES; t++) {
        const uint64_t *asked = (const uint64_t *)s->asked.device.data + (size_t)t * KEYS_MOST;
        const hotbed_rows parts = {
            .weights = (uint8_t *)s->rows.device.data + t * KEYS_MOST * row_bytes(s, 0)};
        uint8_t *found = (uint8_t *)s->found.device.data + (size_t)t * KEYS_MOST;
        if (insert)
            CHECK_OK(hotbed_storage_set_rows(storage, t, distinct[t], asked, NULL, s->me->stream));
        CHECK_OK(
            hotbed_storage_get_rows(storage, t, distinct[t], asked, &parts, found, s->me->stream));
    }
    world_download(s->me, &s->rows);
    world_download(s->me, &s->found);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t i = 0; i < batches[p].n; i++) {
            const uint32_t t = batches[p].bags[i] / SAMPLES;
            const uint8_t *rows = s->rows.host + t * KEYS_MOST * row_bytes(s, 0);
            here[p][i] = s->found.host[t * KEYS_MOST + at[p][i]] == 1;
            decode_row(s, t, rows + at[p][i] * row_bytes(s, t), out[p][i]);
        }
}

/* Compare the output with the model, for a batch whose initial rows are `rows`. */
static void check_output(
    setup *s, const batch *b, float (*rows)[DIM_MOST], const hotbed_route *route) {
    const packed_case *c = s->c;
    const bool pooled = c->pooling != HOTBED_POOL_NONE, alone = s->me->size == 1;
    const bool sums = c->exchange == HOTBED_POOLED_SUMS;
    const hotbed_dtype type = alone             ? HOTBED_F32
                              : c->forward != 0 ? c->forward
                              : pooled && !sums ? c->rows
                                                : HOTBED_F32;
    const float *output = (const float *)(const void *)s->output.host;
    float sent[KEYS][DIM_MOST];
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t dim = c->dims[b->bags[i] / SAMPLES];
        travel(type == c->rows || (pooled && sums) ? HOTBED_F32 : type, dim, rows[i], sent[i]);
        for (uint32_t e = 0; e < dim && !pooled; e++)
            CHECK(output[i * dim + e] == sent[i][e]);
    }
    for (uint32_t r = 0; r < ROWS && pooled; r++) {
        const uint32_t t = r / SAMPLES, dim = c->dims[t], n = b->starts[r + 1] - b->starts[r];
        const float *got = output + (r % SAMPLES) * columns_of(c) + (t == 0 ? 0 : c->dims[0]);
        float want[DIM_MOST] = {0};
        for (uint32_t p = 0; p < (sums && !alone ? s->me->size : 1); p++) {
            float sum[DIM_MOST] = {0}, part[DIM_MOST];
            bool any = false;
            for (uint32_t i = b->starts[r]; i < b->starts[r + 1]; i++) {
                if (sums && !alone && hotbed_route_rank(&route[t], b->keys[i]) != p)
                    continue;
                any = true;
                for (uint32_t e = 0; e < dim; e++)
                    sum[e] += sent[i][e];
            }
            travel(sums ? type : HOTBED_F32, dim, sum, part);
            for (uint32_t e = 0; e < dim && any; e++)
                want[e] += part[e];
        }
        for (uint32_t e = 0; e < dim; e++)
            CHECK(
                got[e] == (c->pooling == HOTBED_POOL_MEAN && n > 0 ? want[e] / (float)n : want[e]));
    }
}

/* Set out[i] to the gradient by which the row of key i of a rank's batch is updated, if wanted[i]. */
static void model_gradients(
    setup *s, uint32_t rank, int step, const batch *b, const bool *wanted, float (*out)[DIM_MOST]) {
    const packed_case *c = s->c;
    const bool pooled = c->pooling != HOTBED_POOL_NONE;
    const bool each = !pooled && c->dedup == HOTBED_DEDUP_OFF; /* each occurrence travels */
    const bool sums = pooled && c->exchange == HOTBED_POOLED_SUMS;
    uint32_t number = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t t = b->bags[i] / SAMPLES, dim = c->dims[t];
        uint32_t first = b->starts[t * SAMPLES];
        while (b->keys[first] != b->keys[i])
            first++;
        if (first < i) {
            memcpy(out[i], out[first], sizeof *out);
            continue;
        }
        const uint32_t mine = number++;
        float sum[DIM_MOST] = {0}, g[DIM_MOST], part[DIM_MOST];
        for (uint32_t k = i; wanted[i] && k < b->starts[(t + 1) * SAMPLES]; k++) {
            const uint32_t r = b->bags[k];
            if (b->keys[k] != b->keys[i])
                continue;
            for (uint32_t e = 0; e < dim; e++) {
                g[e] = pooled ? gradient_at(rank, step, r % SAMPLES, e + (t == 0 ? 0 : c->dims[0]))
                              : gradient_at(rank, step, k, e);
                if (c->pooling == HOTBED_POOL_MEAN)
                    g[e] = g[e] * (1.0F / (float)b->lengths[r]);
            }
            const uint32_t bag = r % SAMPLES * TABLES + t;
            if (each || sums)
                decoded(c, s->me, rank, step, sums ? bag : k, dim, g, part);
            for (uint32_t e = 0; e < dim; e++)
                sum[e] += each || sums ? part[e] : g[e];
        }
        if (each || sums)
            memcpy(out[i], sum, sizeof sum);
        else if (wanted[i])
            decoded(c, s->me, rank, step, mine, dim, sum, out[i]);
    }
}

/* For the batches of all ranks, this rank has the rows that are routed to it, and they equal the model's. */
static void check_rows(
    setup *s, int step, const batch *all, const hotbed_route *route,
    float (*before)[KEYS][DIM_MOST]) {
    static _Thread_local float after[RANKS][KEYS][DIM_MOST], gradients[KEYS][DIM_MOST];
    bool here[RANKS][KEYS];
    read_rows(s, hotbed_sharded_lookup(s->sharded, 0), all, s->me->size, false, after, here);
    for (uint32_t p = 0; p < s->me->size; p++) {
        model_gradients(s, p, step, &all[p], here[p], gradients);
        for (uint32_t i = 0; i < all[p].n; i++) {
            const uint32_t t = all[p].bags[i] / SAMPLES;
            CHECK_EQ(here[p][i], hotbed_route_rank(&route[t], all[p].keys[i]) == s->me->rank);
            for (uint32_t e = 0; here[p][i] && e < s->c->dims[t]; e++)
                CHECK(after[p][i][e] == before[p][i][e] - gradients[i][e]);
        }
    }
}

/* Rows that each rank has sent and received, by plan, size and rank. */
static uint64_t counted[3][RANKS + 1][RANKS][4];
static bool counts_known;

static void check_counts(setup *s) {
    hotbed_exchange_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_sharded_stats(s->sharded, &stats, s->me->stream));
    const packed_case *c = s->c;
    const hotbed_dtype forward = c->forward != 0                     ? c->forward
                                 : c->exchange == HOTBED_POOLED_ROWS ? c->rows
                                                                     : HOTBED_F32;
    const hotbed_dtype backward = c->backward != 0 ? c->backward : HOTBED_F32;
    uint64_t row[2];
    for (int k = 0; k < 2; k++) {
        const hotbed_dtype dtype = k == 0 ? forward : backward;
        const uint64_t bytes = hotbed_dtype_row_bytes(dtype, max_dim(c));
        const uint64_t unit = dtype == HOTBED_INT8 || dtype == HOTBED_FP8 ? 4 : 16;
        row[k] = (bytes + unit - 1) / unit * unit;
        if (dtype == HOTBED_INT8 && max_dim(c) == 128)
            CHECK_EQ(row[k], 132);
    }
    const uint64_t moved[4] = {
        stats.rows_sent, stats.rows_received, stats.gradients_sent, stats.gradients_received};
    for (int k = 0; k < 4; k++) {
        uint64_t *first = &counted[c->plan][s->me->size][s->me->rank][k];
        CHECK_EQ(moved[k] % row[k / 2], 0);
        if (!counts_known)
            *first = moved[k] / row[k / 2];
        CHECK_EQ(moved[k] / row[k / 2], *first);
    }
}

static void body(world_rank *me) {
    const packed_case *c = me->argument;
    const bool pooled = c->pooling != HOTBED_POOL_NONE;
    setup s;
    hotbed_route route[TABLES];
    open_setup(&s, me);
    for (int t = 0; t < TABLES; t++)
        CHECK_OK(hotbed_route_init(&route[t], HOTBED_ROUTE_HASH_ROUND_ROBIN, me->size, 0));
    for (int step = 0; step < (hotbed_test_is_small() ? 2 : STEPS); step++) {
        static _Thread_local float initial[RANKS][KEYS][DIM_MOST];
        bool here[RANKS][KEYS];
        batch all[RANKS];
        for (uint32_t p = 0; p < me->size; p++)
            all[p] = batch_of(p, step);
        const batch b = all[me->rank];
        float(*rows)[DIM_MOST] = initial[me->rank];
        read_rows(&s, s.initial, all, me->size, true, initial, here);
        memcpy(s.keys.host, b.keys, sizeof b.keys);
        memcpy(s.lengths.host, b.lengths, sizeof b.lengths);
        const uint32_t width = pooled ? columns_of(c) : c->dims[0];
        float *gradient = (float *)(void *)s.gradient.host;
        for (uint32_t r = 0; r < (pooled ? (uint32_t)SAMPLES : b.n); r++)
            for (uint32_t e = 0; e < width; e++)
                gradient[r * width + e] = gradient_at(me->rank, step, r, e);
        world_upload(me, &s.keys);
        world_upload(me, &s.lengths);
        world_upload(me, &s.gradient);
        hotbed_kjt kjt = {.size = sizeof kjt};
        kjt.num_features = TABLES;
        kjt.batch_size = SAMPLES;
        kjt.num_keys = b.n;
        kjt.keys = s.keys.device.data;
        kjt.lengths = s.lengths.device.data;
        CHECK_OK(hotbed_sharded_forward(s.context, 0, &kjt, s.output.device.data, 0, me->stream));
        world_download(me, &s.output);
        check_output(&s, &b, rows, route);
        CHECK_OK(hotbed_sharded_backward(s.context, 0, s.gradient.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        if (c->rows == HOTBED_F32)
            check_rows(&s, step, all, route, initial);
        CHECK_OK(hotbed_sharded_set_training(s.sharded, false));
        CHECK_OK(hotbed_sharded_forward(s.context, 0, &kjt, s.output.device.data, 0, me->stream));
        world_download(me, &s.output);
        CHECK_OK(hotbed_sharded_set_training(s.sharded, true));
        if (c->rows == HOTBED_F32) {
            static _Thread_local float gradients[KEYS][DIM_MOST];
            model_gradients(&s, me->rank, step, &b, here[me->rank], gradients);
            for (uint32_t i = 0; i < b.n; i++)
                for (uint32_t e = 0; e < c->dims[b.bags[i] / SAMPLES]; e++)
                    rows[i][e] = rows[i][e] - gradients[i][e];
            check_output(&s, &b, rows, route);
        }
    }
    if (!c->overflows)
        check_counts(&s);
    close_setup(&s);
}

static void run_plans(const packed_case *how) {
    static const hotbed_plan plans[] = {
        HOTBED_PLAN_FIXED, HOTBED_PLAN_TWO_PHASE, HOTBED_PLAN_ONE_SIDED};
    for (int p = 0; p < 3; p++) {
        packed_case c = *how;
        c.plan = plans[p];
        if (c.plan != HOTBED_PLAN_ONE_SIDED || sharded_fixture_has_windows())
            sharded_fixture_run(RANKS, body, &c);
    }
}

/* Run a case with all types that travel, first F32, with up to `most` dims: sequences, or bags of tables of different
 * dims. */
static void run_types(const packed_case *how, int most) {
    static const hotbed_dtype types[][2] = {{HOTBED_F32, HOTBED_F32},   {HOTBED_INT8, HOTBED_INT8},
                                            {HOTBED_FP8, HOTBED_FP8},   {HOTBED_F16, HOTBED_INT8},
                                            {HOTBED_INT8, HOTBED_BF16}, {0, HOTBED_FP8}};
    static const uint32_t dims[] = {6, 128, 200, 35};
    const bool small = hotbed_test_is_small();
    for (int d = 0; d < (small ? most / 2 : most); d++) {
        packed_case c = *how;
        c.dims[0] = c.dims[1] = dims[d];
        if (c.pooling != HOTBED_POOL_NONE)
            c.dims[1] = d % 2 == 0 ? 12 : 72;
        counts_known = false;
        for (int i = 0; i < (small ? 3 : 6); i += small ? 1 + d : 1) {
            c.forward = types[i][0];
            c.backward = types[i][1];
            run_plans(&c);
            counts_known = !how->overflows;
        }
    }
}

static const packed_case base = {.rows = HOTBED_F32};

static void sequences_equal_the_model(hotbed_backend backend) {
    packed_case c = base;
    run_types(&c, 4);
    c.dedup = HOTBED_DEDUP_OFF;
    run_types(&c, 2);
}

static void pooled_rows_equal_the_model(hotbed_backend backend) {
    packed_case c = base;
    c.exchange = HOTBED_POOLED_ROWS;
    c.pooling = HOTBED_POOL_SUM;
    run_types(&c, 4);
    c.pooling = HOTBED_POOL_MEAN;
    run_types(&c, 2);
}

static void pooled_sums_equal_the_model(hotbed_backend backend) {
    packed_case c = base;
    c.exchange = HOTBED_POOLED_SUMS;
    c.pooling = HOTBED_POOL_SUM;
    run_types(&c, 4);
    c.pooling = HOTBED_POOL_MEAN;
    run_types(&c, 2);
}

static void batches_that_are_sent_again_equal_the_model(hotbed_backend backend) {
    packed_case c = base;
    c.overflows = true;
    c.forward = HOTBED_INT8;
    c.backward = HOTBED_INT8;
    c.dims[0] = c.dims[1] = 24;
    run_plans(&c);
    c.pooling = HOTBED_POOL_SUM;
    c.exchange = HOTBED_POOLED_SUMS;
    run_plans(&c);
    c.exchange = HOTBED_POOLED_ROWS;
    run_plans(&c);
}

/* Rows of a table's own type travel as they are stored: outputs are the rows' values. */
static void stored_rows_travel_as_they_are(hotbed_backend backend) {
    for (int dtype = HOTBED_F16; dtype <= (int)HOTBED_FP8; dtype++)
        for (int kind = 0; kind < 3; kind++) {
            if (hotbed_test_is_small() && kind != dtype % 3)
                continue;
            packed_case c = base;
            c.rows = (hotbed_dtype)dtype;
            c.forward = kind == 2 ? 0 : (hotbed_dtype)dtype;
            c.pooling = kind == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
            c.exchange = kind == 0 ? HOTBED_POOLED_AUTO : HOTBED_POOLED_ROWS;
            c.dims[0] = 72;
            c.dims[1] = kind == 0 ? 72 : 10;
            counts_known = false;
            run_plans(&c);
        }
}

/* --- training ------------------------------------------------------------------------------------------- */

/* A type of gradients, and an element beside which 1 is rounded to 0 by the nearest number. */
typedef struct train_case {
    hotbed_dtype backward;
    float large;
} train_case;

/* One row of 8 elements: the first one's gradient is large and of changing sign. */
static void train_body(world_rank *me) {
    enum { DIM = 8 };
    const int steps = hotbed_test_is_small() ? 32 : 400;
    const train_case *c = me->argument;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_kjt kjt;
    world_bytes key = world_alloc(me, sizeof(uint64_t));
    world_bytes output = world_alloc(me, DIM * sizeof(float));
    world_bytes gradient = world_alloc(me, DIM * sizeof(float));
    float *g = (float *)(void *)gradient.host;
    const float *w = (const float *)(const void *)output.host;
    table.name = "t";
    table.dim = DIM;
    table.capacity = 100;
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    storage.optimizer.learning_rate = 1.0F / 64.0F;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.max_batch_size = 1;
    options.max_keys = 1;
    options.capacity = 1;
    options.backward_dtype = c->backward;
    CHECK_OK(hotbed_sharded_create(&options, me->comm, me->stream, &sharded));
    CHECK_OK(hotbed_sharded_create_context(1, &sharded, me->stream, &context));
    *(uint64_t *)(void *)key.host = 7;
    world_upload(me, &key);
    kjt = (hotbed_kjt){.size = sizeof kjt};
    kjt.num_features = 1;
    kjt.batch_size = 1;
    kjt.num_keys = 1;
    kjt.keys = key.device.data;
    for (int step = 0; step < steps; step++) {
        CHECK_OK(hotbed_sharded_forward(context, 0, &kjt, output.device.data, 0, me->stream));
        world_download(me, &output);
        g[0] = step % 2 == 0 ? c->large : -c->large;
        for (int e = 1; e < DIM; e++) /* towards 1 */
            g[e] = (w[e] - 1.0F) / (float)me->size;
        world_upload(me, &gradient);
        CHECK_OK(hotbed_sharded_backward(context, 0, gradient.device.data, 0, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
    }
    double sum = 0.0;
    for (int e = 1; e < DIM; e++)
        sum += (double)w[e];
    CHECK_NEAR(sum / (DIM - 1), 1.0 - pow(1.0 - 1.0 / 64.0, steps), 0.35);
    hotbed_sharded_context_destroy(context);
    hotbed_sharded_destroy(sharded);
    world_free(&key);
    world_free(&output);
    world_free(&gradient);
}

static void small_elements_beside_a_large_one_are_trained(hotbed_backend backend) {
    train_case cases[] = {{HOTBED_F32, 1e3F}, {HOTBED_INT8, 1e3F}, {HOTBED_FP8, 1e6F}};
    for (int i = 0; i < 3; i++)
        sharded_fixture_run(RANKS, train_body, &cases[i]);
}

const hotbed_test hotbed_tests[] = {
    {TEST(sequences_equal_the_model)},
    {TEST(pooled_rows_equal_the_model)},
    {TEST(pooled_sums_equal_the_model)},
    {TEST(batches_that_are_sent_again_equal_the_model)},
    {TEST(stored_rows_travel_as_they_are)},
    {TEST(small_elements_beside_a_large_one_are_trained)},
    {NULL, NULL},
};
