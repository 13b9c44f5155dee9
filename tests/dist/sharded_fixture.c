/* tests/dist/sharded_fixture.c - a sharded collection, and a model of it: one storage that receives
 * the batches of all ranks at once. */
#include "tests/dist/sharded_fixture.h"

#include <math.h>
#include <stdlib.h>

static const char *const table_names[FIXTURE_TABLES] = {"user", "item", "shop", "word"};
static const char *const feature_names[FIXTURE_FEATURES + 1] = {"user", "seen",  "bought",
                                                                "shop", "words", "other"};
static const uint32_t feature_tables[FIXTURE_FEATURES] = {0, 1, 1, 2, 3};

/* --- options ---------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state, uint64_t below) {
    return hotbed_test_random_r(state) % below;
}

/* The collection has tables like the model's, but in other memory. */
static void describe_own(sharded_fixture *r) {
    r->own_options = r->storage_options;
    r->own_options.tables = r->own_tables;
    r->options.storage = &r->own_options;
    r->options.growth_every = 1;
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_table_options *o = &r->own_tables[t];
        *o = r->tables[t];
        if (r->how->grows && o->kind == HOTBED_TABLE_HASH) {
            o->capacity = (uint64_t)128 * r->me->size;
            o->max_capacity = FIXTURE_CAPACITY;
            /* The free slots suffice for the batches up to the next poll. */
            o->growth_load = hotbed_test_is_small() ? 0.015625F : 0.0625F;
        }
        if (r->how->cached)
            o->upper_capacity = 40;
    }
    if (r->how->cached)
        r->own_options.mode = HOTBED_MODE_CACHE;
}

static void describe(sharded_fixture *r) {
    const sharded_case *how = r->how;
    uint64_t random = how->seed;
    bool dyadic = !how->own_keys;
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_table_options *o = &r->tables[t];
        *o = (hotbed_table_options){.size = sizeof *o};
        o->name = table_names[t];
        o->dim = how->pooling == HOTBED_POOL_NONE ? FIXTURE_DIM : 1 + t;
        o->capacity = FIXTURE_CAPACITY;
        o->dtype = how->dtype;
        o->state_dtype = how->state_dtype;
        o->initializer = (hotbed_initializer){.value = 0.5F};
        if (how->pooling == HOTBED_POOL_NONE)
            o->initializer =
                (hotbed_initializer){.kind = HOTBED_INIT_UNIFORM, .lower = -0.5F, .upper = 0.5F};
        if (how->one_sign && how->pooling == HOTBED_POOL_NONE)
            o->initializer =
                (hotbed_initializer){.kind = HOTBED_INIT_UNIFORM, .lower = -1.0F, .upper = -0.5F};
        else if (how->one_sign)
            o->initializer.value = 0.0F; /* so that rows are exact sums of their updates */
        r->routes[t] =
            how->one_rule ? HOTBED_ROUTE_HASH_ROUND_ROBIN : (hotbed_route_kind)draw(&random, 3);
        if (how->counted && t != 2) {
            o->score = t == 3 ? HOTBED_SCORE_TIMESTAMP_LFU : HOTBED_SCORE_LFU;
            o->admission = t == 0 ? HOTBED_ADMIT_ALL : HOTBED_ADMIT_FREQUENCY;
            o->admission_threshold = t == 0 ? 0 : 5;
        }
        if (t == 2 && how->statics) {
            o->kind = HOTBED_TABLE_STATIC;
            o->capacity = how->key_space;
            r->routes[t] = how->dealt ? HOTBED_ROUTE_ROUND_ROBIN : HOTBED_ROUTE_CONTINUOUS;
        }
    }
    hotbed_storage_options *s = &r->storage_options;
    hotbed_storage_options_init(s);
    s->num_tables = FIXTURE_TABLES;
    s->tables = r->tables;
    s->num_features = FIXTURE_FEATURES;
    s->feature_tables = feature_tables;
    s->pooling = how->pooling;
    s->output_dtype = how->output_dtype;
    s->optimizer.kind = how->optimizer;
    s->optimizer.learning_rate = dyadic ? 0.125F : 0.05F;
    s->optimizer.max_gradient = how->max_gradient;
    s->seed = 5;
    for (uint32_t i = 0; i < 2 && how->own_parameters; i++) {
        r->own_optimizers[i] = s->optimizer;
        r->own_optimizers[i].learning_rate = i == 0 ? 0.5F : 0.0625F;
        r->own_optimizers[i].max_gradient = i == 0 ? 0.25F : how->max_gradient;
        r->tables[1 + 2 * i].optimizer = &r->own_optimizers[i];
    }
    hotbed_sharded_options *o = &r->options;
    hotbed_sharded_options_init(o);
    o->storage = s;
    o->routes = r->routes;
    o->features = feature_names;
    o->plan = how->plan;
    o->overflow = how->overflow;
    o->dedup = how->dedup;
    o->forward_dtype = how->forward_dtype;
    o->backward_dtype = how->backward_dtype;
    o->gradient_scale = how->gradient_scale == 0.0F ? 1.0F : how->gradient_scale;
    if (how->scale_by_world)
        o->gradient_scale = 1.0F / (float)r->me->size;
    o->max_batch_size = FIXTURE_BATCH;
    o->max_keys = FIXTURE_KEYS;
    o->capacity = how->capacity;
    o->kjt_features = FIXTURE_FEATURES + 1;
    o->weighted = how->weighted;
    for (uint32_t f = 0; f < FIXTURE_FEATURES; f++) {
        const bool rows = how->exchange == FIXTURE_BY_ROWS ||
                          (how->exchange == FIXTURE_BY_BOTH && feature_tables[f] % 2 == 1);
        r->exchanges[f] = rows ? HOTBED_POOLED_ROWS : HOTBED_POOLED_SUMS;
    }
    if (how->pooling != HOTBED_POOL_NONE && how->exchange != FIXTURE_BY_RULE)
        o->exchanges = r->exchanges;
    if (how->grows || how->cached)
        describe_own(r);
}

static uint64_t width_of(const sharded_fixture *r) {
    return r->how->pooling == HOTBED_POOL_NONE ? FIXTURE_DIM : hotbed_sharded_columns(r->sharded);
}

/* Whether a rank sums the gradients of duplicate keys before it scales them; otherwise it scales each gradient. */
static bool sums_first(const sharded_case *how) {
    return how->pooling == HOTBED_POOL_NONE && how->dedup != HOTBED_DEDUP_OFF;
}

/* Whether each rank first sums its gradients of a mean, which are no dyadic numbers. */
static bool sums_means_by_rank(const sharded_case *how) {
    return how->pooling == HOTBED_POOL_MEAN && how->exchange != FIXTURE_BY_SUMS;
}

void sharded_fixture_open(sharded_fixture *r, world_rank *me, const sharded_case *how) {
    memset(r, 0, sizeof *r);
    r->how = how;
    r->me = me;
    describe(r);
    r->rounds = (how->scale_by_world || sums_means_by_rank(how)) &&
                how->dedup != HOTBED_DEDUP_OFF && !how->own_keys &&
                (sums_means_by_rank(how) || (me->size & (me->size - 1)) != 0);
    CHECK_OK(hotbed_sharded_create(&r->options, me->comm, me->stream, &r->sharded));
    CHECK_OK(hotbed_sharded_create_context(1, &r->sharded, me->stream, &r->context));
    uint64_t all = (uint64_t)me->size * FIXTURE_KEYS, samples = (uint64_t)me->size * FIXTURE_BATCH;
    CHECK_OK(hotbed_storage_create(&r->storage_options, me->stream, &r->model));
    CHECK_OK(hotbed_ticket_create(r->model, all, (uint32_t)samples, me->stream, &r->ticket));
    uint64_t width = width_of(r);
    bool pooled = how->pooling != HOTBED_POOL_NONE;
    r->batches = calloc(me->size, sizeof *r->batches);
    r->all_at = calloc(all, sizeof *r->all_at);
    CHECK(r->batches != NULL && r->all_at != NULL);
    r->keys = world_alloc(me, FIXTURE_KEYS * sizeof(uint64_t));
    r->lengths = world_alloc(me, FIXTURE_ROWS * sizeof(int64_t));
    r->offsets = world_alloc(me, (FIXTURE_ROWS + 1) * sizeof(int64_t));
    r->weights = world_alloc(me, FIXTURE_KEYS * sizeof(float));
    r->output = world_alloc(me, (pooled ? FIXTURE_BATCH : FIXTURE_KEYS) * width * sizeof(float));
    r->gradient = world_alloc(me, r->output.bytes);
    r->all_keys = world_alloc(me, all * sizeof(uint64_t));
    r->all_offsets = world_alloc(me, (FIXTURE_FEATURES * samples + 1) * sizeof(int64_t));
    r->all_weights = world_alloc(me, all * sizeof(float));
    r->all_output = world_alloc(me, r->output.bytes * me->size);
    r->all_gradient = world_alloc(me, r->output.bytes * me->size);
    if (sums_first(how))
        r->all_sums = world_alloc(me, all * FIXTURE_DIM * sizeof(float));
}

void sharded_fixture_close(sharded_fixture *r) {
    sharded_fixture_check_rows(r);
    sharded_fixture_free(r);
}

void sharded_fixture_free(sharded_fixture *r) {
    hotbed_sharded_context_destroy(r->context);
    hotbed_sharded_destroy(r->sharded);
    hotbed_ticket_destroy(r->ticket);
    hotbed_storage_destroy(r->model);
    world_bytes *all[] = {&r->keys,        &r->lengths,    &r->offsets,      &r->weights,
                          &r->output,      &r->gradient,   &r->all_keys,     &r->all_offsets,
                          &r->all_weights, &r->all_output, &r->all_gradient, &r->all_sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        world_free(all[i]);
    free(r->batches);
    free(r->all_at);
}

/* --- batches ---------------------------------------------------------------------------------- */

static uint64_t draw_key(
    const sharded_fixture *r, uint64_t *random, uint32_t rank, uint32_t feature) {
    const uint64_t edges[4] = {(uint64_t)INT64_MIN, UINT64_MAX, 0, INT64_MAX};
    const sharded_case *how = r->how;
    bool fixed = feature < FIXTURE_FEATURES && how->statics && feature_tables[feature] == 2;
    uint64_t key = draw(random, how->key_space);
    if (how->own_keys)
        return fixed ? rank : key * r->me->size + rank;
    return !fixed && draw(random, 6) == 0 ? edges[draw(random, 4)] : key;
}

/* Whether the batches of a step have one key in each row. */
static bool has_one_key_a_row(const sharded_case *how, int step) {
    return how->in_order && step % 3 == 1;
}

static void make_batch(const sharded_fixture *r, sharded_batch *b, int step, uint32_t rank) {
    uint64_t random = r->how->seed * 1000003U + (uint64_t)step * 1009U + rank;
    uint32_t features = FIXTURE_FEATURES + (r->how->in_order ? 0 : 1), row = 0;
    memset(b, 0, sizeof *b);
    b->num_features = features;
    /* Batch sizes differ between ranks; some are 0. */
    b->batch_size = (uint32_t)draw(&random, FIXTURE_BATCH + 1);
    if (r->how->steady) {
        b->batch_size = FIXTURE_BATCH;
        step = 0;
    }
    uint32_t empty = (uint32_t)draw(&random, 2 * features);
    bool keyless = draw(&random, 7) == 0;
    for (uint32_t f = 0; f < features; f++) {
        uint32_t feature = r->how->in_order ? f : (f + (uint32_t)step) % features;
        b->features[f] = feature;
        b->names[f] = feature_names[feature];
        b->strides[f] =
            (uint32_t)step % 3 == 2 ? (uint32_t)draw(&random, b->batch_size + 1) : b->batch_size;
        b->starts[f] = row;
        for (uint32_t s = 0; s < b->strides[f]; s++, row++) {
            uint64_t n = f == empty || keyless ? 0 : draw(&random, FIXTURE_BAG + 1);
            if (has_one_key_a_row(r->how, step))
                n = 1;
            b->lengths[row] = (int64_t)n;
            b->offsets[row] = (int64_t)b->n;
            for (uint64_t i = 0; i < n; i++) {
                b->weights[b->n] = (float)draw(&random, 8) / 4.0F;
                b->keys[b->n++] = draw_key(r, &random, rank, feature);
            }
        }
    }
    b->starts[features] = row;
    b->offsets[row] = (int64_t)b->n;
}

/* Build the model's batch: in order of feature, rank, sample. */
static void join_batches(sharded_fixture *r) {
    uint64_t *keys = (uint64_t *)(void *)r->all_keys.host;
    int64_t *offsets = (int64_t *)(void *)r->all_offsets.host;
    float *weights = (float *)(void *)r->all_weights.host;
    uint64_t n = 0, bag = 0;
    memset(r->all_at, 0xff, (size_t)r->me->size * FIXTURE_KEYS * sizeof *r->all_at);
    for (uint32_t feature = 0; feature < FIXTURE_FEATURES; feature++)
        for (uint32_t rank = 0; rank < r->me->size; rank++) {
            const sharded_batch *b = &r->batches[rank];
            uint32_t f = 0;
            while (b->features[f] != feature)
                f++;
            for (uint32_t s = 0; s < FIXTURE_BATCH; s++) {
                offsets[bag++] = (int64_t)n;
                if (s >= b->strides[f])
                    continue;
                uint32_t row = b->starts[f] + s;
                for (int64_t i = b->offsets[row]; i < b->offsets[row + 1]; i++) {
                    r->all_at[(size_t)rank * FIXTURE_KEYS + (size_t)i] = (uint32_t)n;
                    weights[n] = b->weights[i];
                    keys[n++] = b->keys[i];
                }
            }
        }
    offsets[bag] = (int64_t)n;
}

void sharded_fixture_fill(sharded_fixture *r, int step) {
    bool steady = r->how->steady, strides = !steady && step % 3 == 2;
    for (uint32_t rank = 0; rank < r->me->size; rank++)
        make_batch(r, &r->batches[rank], step, rank);
    join_batches(r);
    const sharded_batch *b = &r->batches[r->me->rank];
    memcpy(r->keys.host, b->keys, sizeof b->keys);
    memcpy(r->lengths.host, b->lengths, sizeof b->lengths);
    memcpy(r->offsets.host, b->offsets, sizeof b->offsets);
    memcpy(r->weights.host, b->weights, sizeof b->weights);
    world_upload(r->me, &r->keys);
    world_upload(r->me, &r->lengths);
    world_upload(r->me, &r->offsets);
    world_upload(r->me, &r->weights);
    world_upload(r->me, &r->all_keys);
    world_upload(r->me, &r->all_offsets);
    world_upload(r->me, &r->all_weights);
    r->kjt = (hotbed_kjt){.size = sizeof r->kjt};
    r->kjt.num_features = b->num_features;
    r->kjt.features = b->names;
    r->kjt.batch_size = b->batch_size;
    r->kjt.strides = strides ? b->strides : NULL;
    r->kjt.num_keys = steady ? FIXTURE_KEYS : b->n;
    r->kjt.keys = r->keys.device.data;
    if (has_one_key_a_row(r->how, step))
        r->kjt.lengths = NULL;
    else if (step % 2 == 0 && !steady)
        r->kjt.lengths = r->lengths.device.data;
    else
        r->kjt.offsets = r->offsets.device.data;
    r->kjt.weights = r->how->weighted ? r->weights.device.data : NULL;
}

/* --- the model -------------------------------------------------------------------------------- */

static hotbed_batch model_batch(const sharded_fixture *r) {
    hotbed_batch batch = {.size = sizeof batch};
    batch.batch_size = r->me->size * FIXTURE_BATCH;
    batch.num_keys = (uint64_t)r->me->size * FIXTURE_KEYS;
    batch.keys = r->all_keys.device.data;
    batch.offsets = r->all_offsets.device.data;
    batch.weights = r->how->weighted ? r->all_weights.device.data : NULL;
    return batch;
}

void sharded_fixture_model_forward(sharded_fixture *r) {
    hotbed_batch batch = model_batch(r);
    CHECK_OK(hotbed_storage_prefetch(r->model, &batch, r->ticket, r->me->stream));
    CHECK_OK(hotbed_storage_forward(
        r->model, r->ticket, r->all_output.device.data, width_of(r), r->me->stream));
    CHECK_OK(hotbed_stream_sync(r->me->stream));
    world_download(r->me, &r->all_output);
}

void sharded_fixture_model_eval(sharded_fixture *r) {
    hotbed_batch batch = model_batch(r);
    CHECK_OK(hotbed_storage_eval(
        r->model, &batch, r->all_output.device.data, width_of(r), r->me->stream));
    world_download(r->me, &r->all_output);
}

/* n floats equal the model's: in all bytes, or within 1e-6 if they `round`. */
static void check_floats(const void *got, const void *want, uint64_t n, bool round) {
    const float *a = got, *b = want;
    if (!round)
        CHECK_BYTES(a, b, n * sizeof *a);
    for (uint64_t i = 0; i < n && round; i++)
        CHECK_NEAR(a[i], b[i], 1e-6 * fabs((double)b[i]));
}

void sharded_fixture_check_output(sharded_fixture *r) {
    hotbed_pooling pooling = r->how->pooling;
    bool exact = r->how->exchange == FIXTURE_BY_ROWS && !r->rounds;
    bool sums = pooling == HOTBED_POOL_MEAN || /* sums of rows that are no longer dyadic numbers */
                (pooling == HOTBED_POOL_SUM && r->how->scale_by_world);
    bool round = r->moved && !exact && (r->rounds || sums);
    uint64_t row = width_of(r) * hotbed_dtype_bytes(
                                     r->how->output_dtype == 0 ? HOTBED_F32 : r->how->output_dtype);
    world_download(r->me, &r->output);
    const sharded_batch *b = &r->batches[r->me->rank];
    if (pooling != HOTBED_POOL_NONE) {
        check_floats(
            r->output.host, r->all_output.host + r->me->rank * FIXTURE_BATCH * row,
            b->batch_size * row / sizeof(float), round);
        return;
    }
    for (uint64_t i = 0; i < b->n; i++) {
        uint32_t at = r->all_at[(size_t)r->me->rank * FIXTURE_KEYS + i];
        if (at != UINT32_MAX && round)
            check_floats(
                r->output.host + i * row, r->all_output.host + at * row, FIXTURE_DIM, true);
        else if (at != UINT32_MAX)
            CHECK_BYTES(r->output.host + i * row, r->all_output.host + at * row, row);
    }
}

/* Gradient of element e of row i of a rank. */
static float gradient_of(const sharded_fixture *r, uint32_t rank, uint64_t i, uint64_t e) {
    uint64_t state = r->how->seed + rank * 7919U + i * 104729U + e * 31U;
    float g = ((float)draw(&state, 33) - 16.0F) / 16.0F;
    /* The owner sums gradients of pooled rows in the order of one process, so they may round. */
    if (r->how->own_keys || r->how->pooling == HOTBED_POOL_MEAN)
        g = g * 0.3F + (float)draw(&state, 1000) * 1e-6F;
    return r->how->one_sign ? fabsf(g) : g;
}

/* Train the model with scaled sums of gradients. */
static void apply_scaled_sums(sharded_fixture *r) {
    hotbed_stream *s = r->me->stream;
    float *sums = (float *)(void *)r->all_sums.host;
    void *device = r->all_sums.device.data;
    CHECK_OK(hotbed_storage_reduce(
        r->model, r->ticket, r->all_gradient.device.data, FIXTURE_DIM, false, device, s));
    world_download(r->me, &r->all_sums);
    for (uint64_t i = 0; i < r->all_sums.bytes / sizeof *sums; i++)
        sums[i] = sums[i] * r->options.gradient_scale;
    world_upload(r->me, &r->all_sums);
    CHECK_OK(hotbed_storage_apply(r->model, r->ticket, device, s));
}

void sharded_fixture_model_backward(sharded_fixture *r) {
    uint64_t width = width_of(r);
    bool sums = sums_first(r->how);
    float *own = (float *)(void *)r->gradient.host;
    float *all = (float *)(void *)r->all_gradient.host;
    bool pooled = r->how->pooling != HOTBED_POOL_NONE;
    CHECK(r->how->output_dtype == 0);
    memset(all, 0, r->all_gradient.bytes);
    for (uint32_t rank = 0; rank < r->me->size; rank++) {
        const sharded_batch *b = &r->batches[rank];
        for (uint64_t i = 0; i < (pooled ? b->batch_size : b->n); i++) {
            uint64_t at = (uint64_t)rank * FIXTURE_BATCH + i;
            if (!pooled)
                at = r->all_at[(size_t)rank * FIXTURE_KEYS + i];
            for (uint64_t e = 0; e < width; e++) {
                float g = gradient_of(r, rank, i, e), most = r->how->max_gradient;
                if (rank == r->me->rank)
                    own[i * width + e] = g;
                if (most > 0.0F)
                    g = g > most ? most : g < -most ? -most : g;
                if (at != UINT32_MAX)
                    all[at * width + e] = sums ? g : g * r->options.gradient_scale;
            }
        }
    }
    world_upload(r->me, &r->gradient);
    world_upload(r->me, &r->all_gradient);
    if (sums)
        apply_scaled_sums(r);
    else
        CHECK_OK(hotbed_storage_backward(
            r->model, r->ticket, r->all_gradient.device.data, width, r->me->stream));
    r->moved = true;
}

void sharded_fixture_step(sharded_fixture *r, int step) {
    hotbed_stream *s = r->me->stream;
    sharded_fixture_fill(r, step);
    CHECK_OK(hotbed_sharded_input_dist(r->context, &r->kjt, s));
    CHECK_OK(hotbed_sharded_wait_splits(r->context, s));
    CHECK_OK(hotbed_sharded_wait_input(r->context, s));
    CHECK_OK(hotbed_sharded_prefetch(r->context, 0, s));
    if (step % 2 == 0) {
        CHECK_OK(hotbed_sharded_read(r->context, 0, r->output.device.data, 0, s));
    } else {
        CHECK_OK(hotbed_sharded_compute(r->context, 0, s));
        CHECK_OK(hotbed_sharded_output_dist(r->context, 0, s));
        CHECK_OK(hotbed_sharded_wait_output(r->context, 0, r->output.device.data, 0, s));
    }
    CHECK_OK(hotbed_stream_sync(s));
    sharded_fixture_model_forward(r);
    sharded_fixture_check_output(r);
    sharded_fixture_model_backward(r);
    if (step / 2 % 2 == 0) {
        CHECK_OK(hotbed_sharded_backward(r->context, 0, r->gradient.device.data, 0, s));
    } else {
        CHECK_OK(hotbed_sharded_backward_dist(r->context, 0, r->gradient.device.data, 0, s));
        CHECK_OK(hotbed_sharded_update(r->context, 0, s));
    }
    CHECK_OK(hotbed_stream_sync(s));
}

/* --- rows ------------------------------------------------------------------------------------- */

static void check_table(sharded_fixture *r, uint32_t table, const uint64_t *keys, uint64_t n) {
    world_rank *me = r->me;
    hotbed_sharded_table info = {.size = sizeof info};
    CHECK_OK(hotbed_sharded_table_read(r->sharded, table, &info));
    hotbed_storage *lookup = hotbed_sharded_lookup(r->sharded, info.lookup);
    const hotbed_dtype dtype = r->how->dtype == 0 ? HOTBED_F32 : r->how->dtype;
    size_t row = hotbed_dtype_row_bytes(dtype, r->tables[table].dim);
    world_bytes names = world_alloc(me, n * 8), locals = world_alloc(me, n * 8);
    world_bytes found = world_alloc(me, n), rows = world_alloc(me, n * row);
    world_bytes want_found = world_alloc(me, n), want = world_alloc(me, n * row);
    world_bytes scores = world_alloc(me, n * 8), want_scores = world_alloc(me, n * 8);
    bool counted = r->how->counted && r->tables[table].kind == HOTBED_TABLE_HASH;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t local = info.local_ids ? hotbed_route_local(&info.route, keys[i]) : keys[i];
        memcpy(names.host + 8 * i, &keys[i], 8);
        memcpy(locals.host + 8 * i, &local, 8);
    }
    world_upload(me, &names);
    world_upload(me, &locals);
    hotbed_rows got_rows = {.weights = rows.device.data}, want_rows = {.weights = want.device.data};
    if (counted) {
        got_rows.scores = scores.device.data;
        want_rows.scores = want_scores.device.data;
    }
    CHECK_OK(hotbed_storage_get_rows(
        lookup, info.table, n, locals.device.data, &got_rows, found.device.data, me->stream));
    CHECK_OK(hotbed_storage_get_rows(
        r->model, table, n, names.device.data, &want_rows, want_found.device.data, me->stream));
    world_download(me, &found);
    world_download(me, &rows);
    world_download(me, &want_found);
    world_download(me, &want);
    world_download(me, &scores);
    world_download(me, &want_scores);
    for (uint64_t i = 0; i < n; i++) {
        if (hotbed_route_rank(&info.route, keys[i]) != me->rank)
            continue;
        CHECK_EQ(found.host[i], want_found.host[i]);
        if (found.host[i] == 0)
            continue;
        if (counted)
            CHECK_BYTES(scores.host + 8 * i, want_scores.host + 8 * i, 8);
        if (dtype == HOTBED_F32)
            check_floats(rows.host + i * row, want.host + i * row, r->tables[table].dim, r->rounds);
        else
            CHECK_BYTES(rows.host + i * row, want.host + i * row, row);
    }
    world_bytes *all[] = {&names,      &locals, &found,  &rows,
                          &want_found, &want,   &scores, &want_scores};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        world_free(all[i]);
}

/* Admission on this rank has counted the keys of this rank as often as the model has. */
static void check_counts(sharded_fixture *r, uint32_t table) {
    enum { MOST = 4000 };
    hotbed_sharded_table info = {.size = sizeof info};
    CHECK_OK(hotbed_sharded_table_read(r->sharded, table, &info));
    uint64_t *words = malloc(4 * MOST * sizeof *words), n = 0, all = 0, own = 0;
    CHECK(words != NULL);
    uint64_t *keys = words, *counts = words + MOST, *want = counts + MOST, *wanted = want + MOST;
    CHECK_OK(hotbed_storage_export_counts(
        hotbed_sharded_lookup(r->sharded, info.lookup), info.table, MOST, keys, counts, &n,
        r->me->stream));
    CHECK_OK(
        hotbed_storage_export_counts(r->model, table, MOST, want, wanted, &all, r->me->stream));
    for (uint64_t i = 0; i < all; i++) {
        if (hotbed_route_rank(&info.route, want[i]) != r->me->rank)
            continue;
        uint64_t at = 0;
        while (at < n && keys[at] != want[i])
            at++;
        CHECK(at < n);
        if (at < n)
            CHECK_EQ(counts[at], wanted[i]);
        own++;
    }
    CHECK_EQ(own, n);
    free(words);
}

void sharded_fixture_check_rows(sharded_fixture *r) {
    uint64_t capacity = r->how->key_space * (r->how->own_keys ? r->me->size : 1) + 4;
    uint64_t *keys = malloc(capacity * sizeof *keys);
    CHECK(keys != NULL);
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        bool fixed = r->tables[t].kind == HOTBED_TABLE_STATIC;
        uint64_t n = fixed ? r->tables[t].capacity : capacity - 4;
        for (uint64_t i = 0; i < n; i++)
            keys[i] = i;
        const uint64_t edges[4] = {(uint64_t)INT64_MIN, UINT64_MAX, INT64_MAX, 1};
        for (int i = 0; i < 4 && !fixed; i++)
            keys[n++] = edges[i];
        check_table(r, t, keys, n);
        check_counts(r, t);
    }
    free(keys);
}

uint32_t sharded_fixture_growths(const sharded_fixture *r) {
    uint32_t sum = 0;
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hotbed_sharded_table table = {.size = sizeof table};
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_sharded_table_read(r->sharded, t, &table));
        CHECK_OK(hotbed_storage_table(
            hotbed_sharded_lookup(r->sharded, table.lookup), table.table, &info));
        sum += info.segments;
    }
    return sum;
}

/* --- worlds ----------------------------------------------------------------------------------- */

void sharded_fixture_run(uint32_t most, world_body body, void *argument) {
    if (world_missing() != NULL)
        SKIP(world_missing());
    for (const world *w = world_list(); w->size != 0; w++)
        if (world_is_wanted(w, most))
            world_run_kept(w, body, argument);
}

bool sharded_fixture_has_windows(void) {
    hotbed_transport transport = world_list()[0].transport;
    return transport != HOTBED_TRANSPORT_MPI && transport != HOTBED_TRANSPORT_SOCKETS;
}
