/* tests/storage/fixture.c - a storage and its model, driven with the same calls. */
#include "tests/storage/fixture.h"

#include "hotbed/storage.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { INITIAL_BATCH = 256, GUARD = 0xA5 };

/* --- random numbers -------------------------------------------------------------------------- */

uint64_t rng_next(rng *random) {
    return hotbed_test_random_r(&random->state);
}

rng rng_start(uint64_t stream) {
    rng random = {hotbed_test_seed() ^ (stream << 32)};
    random.state = rng_next(&random);
    return random;
}

uint64_t rng_below(rng *random, uint64_t bound) {
    return rng_next(random) % bound;
}

float rng_float(rng *random) {
    return (float)(rng_next(random) >> 40) * 0x1p-23F - 1.0F;
}

uint64_t rng_extreme_key(rng *random) {
    static const uint64_t edges[] = {0, (uint64_t)INT64_MAX, 1U << 31, UINT64_C(1) << 32};
    return edges[rng_below(random, 4)] + rng_below(random, 9) - 4U;
}

/* --- memory of the process ------------------------------------------------------------------- */

/* statm has the resident pages as its second number. */
uint64_t fixture_resident(void) {
    char text[128] = "", *end;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    (void)fclose(file);
    (void)strtoull(text, &end, 10);
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void *take(uint64_t bytes) {
    void *block = calloc(1, bytes == 0 ? 1 : (size_t)bytes);
    if (block == NULL)
        abort();
    return block;
}

void *fixture_alloc(fixture *r, uint64_t bytes) {
    CHECK(r->num_memories < FIXTURE_MEMORIES);
    hotbed_memory *memory = &r->memories[r->num_memories];
    CHECK_OK(hotbed_memory_alloc(
        r->stream, HOTBED_MEMORY_DEVICE, bytes == 0 ? 8 : (size_t)bytes, NULL, memory));
    r->num_memories++;
    return memory->data;
}

void fixture_upload(fixture *r, void *device, const void *host, uint64_t bytes) {
    if (bytes == 0)
        return;
    CHECK_OK(hotbed_copy(device, host, (size_t)bytes, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
}

void fixture_download(fixture *r, void *host, const void *device, uint64_t bytes) {
    fixture_upload(r, host, device, bytes);
}

void *fixture_copy(fixture *r, const void *host, uint64_t bytes) {
    void *device = fixture_alloc(r, bytes);
    fixture_upload(r, device, host, bytes);
    return device;
}

uint64_t first_difference(const void *a, const void *b, uint64_t bytes) {
    const unsigned char *x = a, *y = b;
    uint64_t i = 0;
    while (i < bytes && x[i] == y[i])
        i++;
    return i;
}

/* --- options --------------------------------------------------------------------------------- */

void setup_start(setup *s, uint32_t num_tables, uint32_t dim, uint64_t capacity) {
    memset(s, 0, sizeof *s);
    CHECK(num_tables <= FIXTURE_TABLES);
    for (uint32_t t = 0; t < num_tables; t++) {
        s->tables[t] = (hotbed_table_options){.size = sizeof s->tables[t]};
        (void)snprintf(s->names[t], sizeof s->names[t], "table-%u", t);
        s->tables[t].name = s->names[t];
        s->tables[t].dim = dim;
        s->tables[t].capacity = capacity;
        s->tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        s->tables[t].initializer.lower = -0.5F;
        s->tables[t].initializer.upper = 0.5F;
        s->tables[t].insertion = HOTBED_INSERT_PLAIN;
    }
    hotbed_storage_options_init(&s->options);
    s->options.num_tables = num_tables;
    s->options.tables = s->tables;
    s->options.optimizer.kind = HOTBED_OPT_SGD;
    s->options.optimizer.learning_rate = 0.125F;
    s->options.seed = 20240229;
}

void setup_decay(hotbed_optimizer *optimizer, float decay) {
    const uint32_t uses = hotbed_optimizer_describe(optimizer->kind)->parameters;
    *((uses & HOTBED_USES_WEIGHT_DECAY) != 0 ? &optimizer->weight_decay : &optimizer->l2_decay) =
        decay;
}

void setup_feature(setup *s, uint32_t table) {
    CHECK(s->options.num_features < FIXTURE_FEATURES);
    s->features[s->options.num_features++] = table;
    s->options.feature_tables = s->features;
}

/* --- opening --------------------------------------------------------------------------------- */

static void open_initial(fixture *r, const hotbed_storage_options *options) {
    hotbed_table_options tables[FIXTURE_TABLES];
    hotbed_storage_options initial = *options;
    CHECK(options->num_tables <= FIXTURE_TABLES);
    for (uint32_t t = 0; t < options->num_tables; t++) {
        tables[t] = options->tables[t];
        tables[t].kind = HOTBED_TABLE_HASH;
        tables[t].evict = HOTBED_EVICT_NEVER;
        tables[t].capacity = 4 * INITIAL_BATCH;
        tables[t].max_capacity = 0;
    }
    initial.tables = tables;
    initial.external = NULL;
    initial.optimizer.kind = (hotbed_optimizer_kind)0;
    for (uint32_t t = 0; t < options->num_tables; t++)
        tables[t].optimizer = NULL;
    CHECK_OK(hotbed_stream_create(r->backend, 0, &r->initial_stream));
    CHECK_OK(hotbed_storage_create(&initial, r->initial_stream, &r->initial));
}

void fixture_initial(void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights) {
    fixture *r = self;
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->initial, table, &info));
    uint64_t row_bytes = hotbed_dtype_row_bytes(info.dtype, info.dim);
    hotbed_memory device_keys, device_rows;
    CHECK_OK(hotbed_memory_alloc(
        r->initial_stream, HOTBED_MEMORY_DEVICE, INITIAL_BATCH * sizeof *keys, NULL, &device_keys));
    CHECK_OK(hotbed_memory_alloc(
        r->initial_stream, HOTBED_MEMORY_DEVICE, INITIAL_BATCH * row_bytes, NULL, &device_rows));
    const hotbed_rows nothing = {0};
    const hotbed_rows rows = {.weights = device_rows.data};
    for (uint64_t i = 0; i < n; i += INITIAL_BATCH) {
        uint64_t count = n - i < INITIAL_BATCH ? n - i : INITIAL_BATCH;
        hotbed_stream *s = r->initial_stream;
        CHECK_OK(hotbed_copy(device_keys.data, keys + i, count * sizeof *keys, s));
        CHECK_OK(hotbed_storage_set_rows(r->initial, table, count, device_keys.data, &nothing, s));
        CHECK_OK(
            hotbed_storage_get_rows(r->initial, table, count, device_keys.data, &rows, NULL, s));
        CHECK_OK(hotbed_storage_erase(r->initial, table, count, device_keys.data, NULL, s));
        CHECK_OK(
            hotbed_copy((char *)weights + i * row_bytes, device_rows.data, count * row_bytes, s));
        CHECK_OK(hotbed_stream_sync(s));
    }
    hotbed_memory_free(&device_keys);
    hotbed_memory_free(&device_rows);
}

/* Apply HOTBED_TEST_MODE to a storage whose test has not chosen a mode.  CTest sets it in the entries NAME.cache,
 * NAME.score, NAME.hash and NAME.external, also with "_pinned" behind it or "pinned" alone: the lower tier's index is
 * then in pinned memory.
 *
 * The upper tier gets a fifth of the keys, or half of them over an external store, where keys are refused if all
 * candidates are pinned.  Tables that evict stay without an external store. */
static void choose_mode(
    fixture *r, hotbed_storage_options *options, hotbed_table_options tables[FIXTURE_TABLES]) {
    const char *mode = getenv("HOTBED_TEST_MODE");
    if (mode == NULL || mode[0] == 0)
        return;
    if (strstr(mode, "pinned") != NULL && options->lower_index_memory == 0 &&
        options->external == NULL)
        options->lower_index_memory = HOTBED_MEMORY_PINNED;
    if (strcmp(mode, "pinned") == 0 || options->mode != HOTBED_MODE_AUTO)
        return;
    bool external = strcmp(mode, "external") == 0;
    for (uint32_t t = 0; external && t < options->num_tables; t++)
        if (options->tables[t].evict != HOTBED_EVICT_NEVER)
            return;
    options->mode =
        external || strncmp(mode, "cache", 5) == 0 ? HOTBED_MODE_CACHE : HOTBED_MODE_DEFAULT;
    if (strncmp(mode, "hash", 4) == 0)
        options->placement = HOTBED_PLACE_BY_HASH;
    for (uint32_t t = 0; t < options->num_tables; t++) {
        tables[t] = options->tables[t];
        tables[t].upper_capacity = tables[t].capacity / (external ? 2 : 5) + 1;
    }
    options->tables = tables;
    if (external)
        fixture_store(options, &r->store);
    options->external = r->store;
}

void fixture_store(const hotbed_storage_options *options, hotbed_external **out) {
    hotbed_external_table tables[FIXTURE_TABLES];
    hotbed_external_options o = {
        .size = sizeof o, .num_tables = options->num_tables, .tables = tables};
    CHECK_OK(hotbed_storage_external_tables(options, tables));
    CHECK_OK(hotbed_external_create_memory(&o, out));
}

void fixture_open_bare(fixture *r, hotbed_backend backend, const hotbed_storage_options *options) {
    hotbed_table_options tables[FIXTURE_TABLES];
    hotbed_storage_options chosen = *options;
    memset(r, 0, sizeof *r);
    r->backend = backend;
    choose_mode(r, &chosen, tables);
    CHECK_OK(hotbed_stream_create(backend, 0, &r->stream));
    CHECK_OK(hotbed_storage_create(&chosen, r->stream, &r->storage));
    /* initcheck considers only the first 32 bytes of a bulk copy as written. */
    if (hotbed_test_is_under("initcheck"))
        r->storage->bulk_bytes = 0;
}

bool fixture_moves(const fixture *r) {
    return hotbed_storage_mode(r->storage) != HOTBED_MODE_HBM_DIRECT;
}

bool fixture_by_row(const fixture *r) {
    bool by_row = hotbed_storage_mode(r->storage) == HOTBED_MODE_HBM_DIRECT;
    for (uint32_t t = 0; t < hotbed_storage_num_tables(r->storage); t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(r->storage, t, &info));
        by_row = by_row && info.kind == HOTBED_TABLE_STATIC;
    }
    return by_row;
}

void fixture_open(fixture *r, hotbed_backend backend, const hotbed_storage_options *options) {
    fixture_open_bare(r, backend, options);
    open_initial(r, options);
    r->model = oracle_create(options, fixture_initial, r);
    r->model->by_row = fixture_by_row(r);
}

uint64_t fixture_size(fixture *r, uint32_t table) {
    uint64_t keys = UINT64_MAX, pinned = UINT64_MAX;
    CHECK_OK(hotbed_storage_size(r->storage, table, &keys, &pinned, r->stream));
    return keys;
}

uint64_t fixture_pinned(fixture *r) {
    uint64_t all = 0;
    for (uint32_t t = 0; t < hotbed_storage_num_tables(r->storage); t++) {
        uint64_t keys = UINT64_MAX, pinned = UINT64_MAX;
        CHECK_OK(hotbed_storage_size(r->storage, t, &keys, &pinned, r->stream));
        all += pinned;
    }
    return all;
}

void fixture_close(fixture *r) {
    while (r->tickets != NULL)
        test_ticket_close(r->tickets);
    if (r->model != NULL)
        CHECK_EQ(fixture_pinned(r), 0);
    oracle_destroy(r->model);
    hotbed_storage_destroy(r->initial);
    hotbed_storage_destroy(r->storage);
    hotbed_external_destroy(r->store);
    hotbed_stream_destroy(r->initial_stream);
    for (uint32_t i = 0; i < r->num_memories; i++)
        hotbed_memory_free(&r->memories[i]);
    hotbed_stream_destroy(r->stream);
    memset(r, 0, sizeof *r);
}

/* --- comparison of all rows ------------------------------------------------------------------ */

static void check_same(
    const char *what, const oracle_table *table, uint64_t row_bytes, uint64_t n,
    const uint64_t *keys, const void *seen, const void *expected) {
    uint64_t at = first_difference(seen, expected, n * row_bytes);
    if (at == n * row_bytes)
        return;
    uint64_t row = at / row_bytes;
    uint32_t a = 0, b = 0;
    memcpy(&a, (const char *)seen + (at & ~UINT64_C(3)), sizeof a);
    memcpy(&b, (const char *)expected + (at & ~UINT64_C(3)), sizeof b);
    (void)fprintf(
        stderr, "table %s key %llu: %s byte %llu is in word %08x, expected %08x\n",
        table->options.name, (unsigned long long)keys[row], what,
        (unsigned long long)(at % row_bytes), a, b);
    CHECK(at == n * row_bytes);
}

typedef struct table_image {
    uint64_t n;
    uint64_t *keys;
    void *weights;
    void *states[2];
    uint64_t *scores;
} table_image;

static table_image model_image(const oracle_table *table) {
    table_image image = {.n = 0};
    image.keys = take(table->size * sizeof(uint64_t));
    image.weights =
        take(table->size * hotbed_dtype_row_bytes(table->options.dtype, table->options.dim));
    image.states[0] = take(table->size * table->state_bytes[0]);
    image.states[1] = take(table->size * table->state_bytes[1]);
    image.scores = take(table->size * sizeof(uint64_t));
    for (uint32_t i = 0; i < table->num_rows; i++) {
        const oracle_row *row = &table->rows[i];
        if (!row->live)
            continue;
        image.keys[image.n] = row->key;
        image.scores[image.n] = row->score;
        oracle_row_get(table, row, image.weights, image.n);
        for (uint32_t s = 0; s < 2; s++)
            if (table->state_bytes[s] != 0)
                oracle_state_get(table, row, s, image.states[s], image.n);
        image.n++;
    }
    return image;
}

static void free_image(table_image *image) {
    free(image->keys);
    free(image->weights);
    free(image->states[0]);
    free(image->states[1]);
    free(image->scores);
}

/* Whether scores can be compared.  Times cannot: the model's differ from the library's. */
static bool has_scores(const oracle_table *table) {
    return table->options.kind == HOTBED_TABLE_HASH &&
           table->options.score != HOTBED_SCORE_TIMESTAMP;
}

static void *fetch(fixture *r, const hotbed_memory *memory, uint64_t bytes) {
    void *host = take(bytes);
    if (bytes != 0)
        fixture_download(r, host, memory->data, bytes);
    return host;
}

static void alloc(fixture *r, uint64_t bytes, hotbed_memory *memory) {
    CHECK_OK(hotbed_memory_alloc(
        r->stream, HOTBED_MEMORY_DEVICE, bytes == 0 ? 8 : (size_t)bytes, NULL, memory));
}

enum { KEYS, WEIGHTS, STATE0, STATE1, SCORES, FOUND, PARTS };

static void check_rows(fixture *r, uint32_t number) {
    const oracle_table *table = &r->model->tables[number];
    table_image image = model_image(table);
    bool hash = has_scores(table);
    const uint64_t sizes[PARTS] = {
        sizeof(uint64_t),
        hotbed_dtype_row_bytes(table->options.dtype, table->options.dim),
        table->state_bytes[0],
        table->state_bytes[1],
        hash ? sizeof(uint64_t) : 0,
        1};
    const void *expected[PARTS] = {image.keys,      image.weights, image.states[0],
                                   image.states[1], image.scores,  NULL};
    hotbed_memory memory[PARTS];
    for (int p = 0; p < PARTS; p++)
        alloc(r, image.n * sizes[p], &memory[p]);
    fixture_upload(r, memory[KEYS].data, image.keys, image.n * sizes[KEYS]);
    hotbed_rows rows = {
        .weights = memory[WEIGHTS].data,
        .states = {memory[STATE0].data, memory[STATE1].data},
        .scores = hash ? memory[SCORES].data : NULL};
    for (int s = 0; s < 2; s++)
        if (sizes[STATE0 + s] == 0)
            rows.states[s] = NULL;
    CHECK_OK(hotbed_storage_get_rows(
        r->storage, number, image.n, memory[KEYS].data, &rows, memory[FOUND].data, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
    static const char *const names[PARTS] = {"key", "weights", "state 0", "state 1", "score", ""};
    uint8_t *found = fetch(r, &memory[FOUND], image.n);
    for (uint64_t i = 0; i < image.n; i++)
        CHECK_EQ(found[i], 1);
    free(found);
    for (int p = WEIGHTS; p < FOUND; p++) {
        void *seen = fetch(r, &memory[p], image.n * sizes[p]);
        if (sizes[p] != 0)
            check_same(names[p], table, sizes[p], image.n, image.keys, seen, expected[p]);
        free(seen);
    }
    for (int p = 0; p < PARTS; p++)
        hotbed_memory_free(&memory[p]);
    free_image(&image);
}

static void check_keys(fixture *r, uint32_t number) {
    const oracle_table *table = &r->model->tables[number];
    uint64_t n = UINT64_MAX;
    uint64_t *keys = take(table->size * sizeof *keys);
    uint64_t *scores = take(table->size * sizeof *scores);
    bool hash = has_scores(table);
    CHECK_OK(hotbed_storage_export_keys(
        r->storage, number, table->size, keys, hash ? scores : NULL, &n, r->stream));
    CHECK_EQ(n, table->size);
    for (uint64_t i = 0; i < n; i++) {
        const oracle_row *row = oracle_find(r->model, number, keys[i]);
        CHECK(row != NULL);
        if (row != NULL && hash)
            CHECK_EQ(scores[i], row->score);
    }
    free(keys);
    free(scores);
}

static void check_counts(fixture *r, uint32_t number) {
    const oracle_table *table = &r->model->tables[number];
    uint64_t keys = UINT64_MAX, pinned = UINT64_MAX;
    CHECK_OK(hotbed_storage_size(r->storage, number, &keys, &pinned, r->stream));
    CHECK_EQ(keys, table->size);
    bool is_static = table->options.kind == HOTBED_TABLE_STATIC;
    if (!is_static ||
        !fixture_moves(r)) /* rows of static tables are pinned only if they may move */
        CHECK_EQ(pinned, oracle_pinned(r->model, number));
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(r->storage, number, &stats, r->stream));
    CHECK_EQ(stats.keys, table->stats.keys);
    CHECK_EQ(stats.uniques, table->stats.uniques);
    CHECK_EQ(stats.hits, table->stats.hits);
    CHECK_EQ(stats.inserts, table->stats.inserts);
    CHECK_EQ(stats.refused, table->stats.refused);
    CHECK_EQ(stats.rejected, table->stats.rejected);
    CHECK_EQ(stats.evictions, table->stats.evictions);
    CHECK_EQ(stats.rounded_away, table->stats.rounded_away);
    CHECK_EQ(stats.expired, table->stats.expired);
}

void fixture_check_rows(fixture *r) {
    for (uint32_t t = 0; t < r->model->num_tables; t++) {
        check_keys(r, t);
        check_rows(r, t);
    }
}

void fixture_check(fixture *r) {
    for (uint32_t t = 0; t < r->model->num_tables; t++)
        check_counts(r, t);
    fixture_check_rows(r);
    hotbed_storage_state state = {.size = sizeof state};
    CHECK_OK(hotbed_storage_get_state(r->storage, &state, r->stream));
    CHECK_EQ(state.optimizer_steps, r->model->state.optimizer_steps);
    CHECK_EQ(state.clock, r->model->state.clock);
    CHECK(state.beta1_power == r->model->state.beta1_power);
    CHECK(state.beta2_power == r->model->state.beta2_power);
    CHECK(state.learning_rate == r->model->state.learning_rate);
}

/* --- tickets --------------------------------------------------------------------------------- */

/* Bytes of an output or gradient of `rows` rows, plus one element to detect writes behind the end. */
static uint64_t array_bytes(const test_ticket *l, uint64_t rows) {
    const oracle *m = l->r->model;
    uint64_t stride = l->stride == 0 ? oracle_least_stride(m) : l->stride;
    return (rows * stride + 1) * hotbed_dtype_bytes(m->options.output_dtype);
}

static uint64_t output_rows(const test_ticket *l) {
    return l->r->model->options.pooling == HOTBED_POOL_NONE ? l->host.num_keys : l->host.batch_size;
}

/* A device array that may be aligned to its elements only, like slices of a caller's tensors. */
static void *shifted(fixture *r, rng *random, uint64_t n, uint64_t element_bytes) {
    uint64_t shift = rng_below(random, 2) * rng_below(random, 8);
    return (char *)fixture_alloc(r, (n + shift) * element_bytes) + shift * element_bytes;
}

void test_ticket_open(fixture *r, test_ticket *l, uint64_t max_keys, uint32_t max_batch_size) {
    memset(l, 0, sizeof *l);
    l->r = r;
    l->next = r->tickets;
    r->tickets = l;
    l->max_keys = max_keys;
    rng random = rng_start(max_keys ^ r->num_memories);
    if (rng_below(&random, 2) == 0)
        l->stride = oracle_least_stride(r->model) + rng_below(&random, 9);
    CHECK_OK(hotbed_ticket_create(r->storage, max_keys, max_batch_size, r->stream, &l->ticket));
    l->model = oracle_ticket_create(r->model);
    uint64_t bags = (uint64_t)r->model->num_features * max_batch_size;
    l->host = (hotbed_batch){.size = sizeof l->host};
    l->host.keys = take(max_keys * sizeof(uint64_t));
    l->host.offsets = take((bags + 1) * sizeof(int64_t));
    l->host.weights = take(max_keys * sizeof(float));
    l->device = l->host;
    l->device.keys = shifted(r, &random, max_keys, sizeof(uint64_t));
    l->device.offsets = shifted(r, &random, bags + 1, sizeof(int64_t));
    l->device.weights = shifted(r, &random, max_keys, sizeof(float));
    uint64_t rows = max_keys > max_batch_size ? max_keys : max_batch_size;
    l->output_bytes = array_bytes(l, rows);
    uint64_t element = hotbed_dtype_bytes(r->model->options.output_dtype);
    l->output = shifted(r, &random, l->output_bytes / element, element);
    /* with the gaps between rows */
    CHECK_OK(hotbed_fill(l->output, 0xa5, (size_t)l->output_bytes, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
    l->gradient = shifted(r, &random, l->output_bytes / element, element);
    l->scratch[0] = take(l->output_bytes);
    l->scratch[1] = take(l->output_bytes);
}

void test_ticket_close(test_ticket *l) {
    test_ticket **at = &l->r->tickets;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    hotbed_ticket_destroy(l->ticket);
    oracle_ticket_destroy(l->model);
    free((void *)l->host.keys);
    free((void *)l->host.offsets);
    free((void *)l->host.weights);
    free((void *)l->host.counts);
    free(l->scratch[0]);
    free(l->scratch[1]);
    memset(l, 0, sizeof *l);
}

static hotbed_batch used_arrays(const test_ticket *l, const hotbed_batch *all) {
    hotbed_batch batch = *all;
    batch.batch_size = l->host.batch_size;
    batch.num_keys = l->host.num_keys;
    if (!l->use_offsets)
        batch.offsets = NULL;
    if (!l->use_weights)
        batch.weights = NULL;
    if (!l->use_counts)
        batch.counts = NULL;
    return batch;
}

hotbed_batch test_ticket_batch(const test_ticket *l) {
    return used_arrays(l, &l->device);
}

static uint64_t any_key(rng *random, const batch_shape *how) {
    if (how->extremes && rng_below(random, 3) == 0)
        return rng_extreme_key(random);
    if (how->key_space == 0)
        return rng_next(random);
    rng spread = {rng_below(random, how->key_space)}; /* key_space different keys, far apart */
    return rng_next(&spread);
}

static uint64_t table_key(const test_ticket *l, uint64_t bag, uint64_t key) {
    const oracle *m = l->r->model;
    const hotbed_table_options *options =
        &m->tables[m->feature_tables[bag / l->host.batch_size]].options;
    return options->kind == HOTBED_TABLE_STATIC ? key % options->capacity : key;
}

static uint32_t any_count(rng *random) {
    uint64_t n = rng_below(random, 8);
    return n == 7 ? UINT32_MAX - (uint32_t)rng_below(random, 3) : (uint32_t)n;
}

void test_ticket_fill(test_ticket *l, rng *random, const batch_shape *how) {
    uint64_t bags = (uint64_t)l->r->model->num_features * how->batch_size;
    int64_t *offsets = (int64_t *)l->host.offsets;
    uint64_t *keys = (uint64_t *)l->host.keys;
    float *weights = (float *)l->host.weights;
    if (how->counts && l->host.counts == NULL) {
        l->host.counts = take(l->max_keys * sizeof(uint32_t));
        l->device.counts = shifted(l->r, random, l->max_keys, sizeof(uint32_t));
    }
    uint32_t *counts = (uint32_t *)l->host.counts;
    uint64_t first = any_key(random, how);
    l->host.batch_size = how->batch_size;
    offsets[0] = 0;
    for (uint64_t b = 0; b < bags; b++) {
        uint64_t n = how->max_bag == 0 ? 1 : rng_below(random, how->max_bag + 1U);
        if ((uint64_t)offsets[b] + n > l->max_keys)
            n = l->max_keys - (uint64_t)offsets[b];
        offsets[b + 1] = offsets[b] + (int64_t)n;
        for (int64_t i = offsets[b]; i < offsets[b + 1]; i++) {
            keys[i] = table_key(l, b, how->one_key ? first : any_key(random, how));
            weights[i] = rng_float(random);
            if (how->counts)
                counts[i] = any_count(random);
        }
    }
    l->num_keys = (uint64_t)offsets[bags];
    l->host.num_keys = l->num_keys;
    if (how->bound && how->max_bag != 0 && l->num_keys < l->max_keys)
        l->host.num_keys += rng_below(random, l->max_keys - l->num_keys + 1);
    l->use_offsets = how->max_bag != 0;
    l->use_weights = how->weights;
    l->use_counts = how->counts;
    test_ticket_upload(l);
}

void test_ticket_upload(test_ticket *l) {
    uint64_t bags = (uint64_t)l->r->model->num_features * l->host.batch_size;
    fixture_upload(l->r, (void *)l->device.keys, l->host.keys, l->num_keys * sizeof(uint64_t));
    fixture_upload(l->r, (void *)l->device.offsets, l->host.offsets, (bags + 1) * sizeof(int64_t));
    fixture_upload(l->r, (void *)l->device.weights, l->host.weights, l->num_keys * sizeof(float));
    if (l->use_counts)
        fixture_upload(
            l->r, (void *)l->device.counts, l->host.counts, l->num_keys * sizeof(uint32_t));
}

static void guard_outputs(test_ticket *l) {
    uint64_t bytes = array_bytes(l, output_rows(l));
    memset(l->scratch[1], GUARD, (size_t)bytes);
    CHECK_OK(hotbed_fill(l->output, GUARD, (size_t)bytes, l->r->stream));
}

/* Every second call also reads the rows. */
static void prefetch_library(test_ticket *l) {
    const hotbed_batch batch = test_ticket_batch(l);
    l->forwarded = !l->forwarded;
    if (l->forwarded) {
        guard_outputs(l);
        CHECK_OK(hotbed_storage_prefetch_forward(
            l->r->storage, &batch, l->ticket, l->output, l->stride, l->r->stream));
    } else {
        CHECK_OK(hotbed_storage_prefetch(l->r->storage, &batch, l->ticket, l->r->stream));
    }
}

void test_ticket_prefetch(test_ticket *l) {
    hotbed_batch batch = used_arrays(l, &l->host);
    prefetch_library(l);
    oracle_prefetch(l->r->model, &batch, l->model, NULL);
}

hotbed_status test_ticket_prefetch_with_slots(test_ticket *l) {
    hotbed_batch batch = used_arrays(l, &l->host);
    hotbed_ticket_view view = {.size = sizeof view};
    uint32_t uniques = 0, tables = l->r->model->num_tables;
    prefetch_library(l);
    hotbed_status fault = hotbed_stream_sync(l->r->stream);
    CHECK_OK(hotbed_ticket_read(l->ticket, &view));
    fixture_download(l->r, &uniques, view.unique_offsets + tables, sizeof uniques);
    uint64_t *slots = take(uniques * sizeof *slots);
    fixture_download(l->r, slots, view.slots, uniques * sizeof *slots);
    oracle_prefetch(l->r->model, &batch, l->model, slots);
    free(slots);
    return fault;
}

/* guard_outputs() has set both outputs to the same bytes, so bytes that forward must not write are compared, too. */
static void compare_outputs(test_ticket *l) {
    uint64_t bytes = array_bytes(l, output_rows(l));
    uint64_t compared = bytes;
    if (l->host.num_keys > l->num_keys && l->r->model->options.pooling == HOTBED_POOL_NONE)
        compared =
            array_bytes(l, l->num_keys) -
            hotbed_dtype_bytes(
                l->r->model->options.output_dtype); /* rows behind the last key are unspecified */
    fixture_download(l->r, l->scratch[0], l->output, bytes);
    uint64_t at = first_difference(l->scratch[0], l->scratch[1], compared);
    if (at != compared) {
        uint64_t element = at / hotbed_dtype_bytes(l->r->model->options.output_dtype);
        uint64_t stride = l->stride == 0 ? oracle_least_stride(l->r->model) : l->stride;
        (void)fprintf(
            stderr, "output row %llu element %llu is %g, the model's is %g\n",
            (unsigned long long)(element / stride), (unsigned long long)(element % stride),
            (double)oracle_load(l->r->model->options.output_dtype, l->scratch[0], element),
            (double)oracle_load(l->r->model->options.output_dtype, l->scratch[1], element));
    }
    CHECK_EQ(at, compared);
}

/* The bytes of all arrays: the rows of scratch[1], and guards. */
static uint8_t *scattered_rows(const test_ticket *l, const test_scatter *s) {
    const oracle *m = l->r->model;
    const uint64_t element = hotbed_dtype_bytes(m->options.output_dtype);
    const uint64_t stride = (l->stride == 0 ? oracle_least_stride(m) : l->stride) * element;
    uint8_t *rows = take(s->rows.bytes);
    memset(rows, GUARD, s->rows.bytes);
    for (uint64_t i = 0, q = 0, f = 0; i < l->num_keys; i++) {
        while (i >= s->starts[q + 1])
            q++;
        while (i >= (l->use_offsets ? (uint64_t)l->host.offsets[(f + 1) * l->host.batch_size]
                                    : (f + 1) * l->host.batch_size))
            f++;
        const uint64_t row = 1 + s->firsts[q] + i - s->starts[q];
        memcpy(
            rows + q % TEST_SCATTER_ARRAYS * s->array_bytes + row * s->to.row_bytes,
            (uint8_t *)l->scratch[1] + i * stride,
            m->tables[m->feature_tables[f]].options.dim * element);
    }
    return rows;
}

void test_scatter_open(test_ticket *l, test_scatter *s) {
    const oracle *m = l->r->model;
    const uint64_t n = l->num_keys;
    const uint64_t row = oracle_least_stride(m) * hotbed_dtype_bytes(m->options.output_dtype);
    uint32_t used[TEST_SCATTER_ARRAYS] = {0};
    uint8_t *arrays[TEST_SCATTER_ARRAYS];
    for (uint32_t q = 0; q <= TEST_SCATTER_RUNS;
         q++) /* the first is empty; if n is small, others too */
        s->starts[q] = q < 2 ? 0 : (uint32_t)(n * q / TEST_SCATTER_RUNS);
    for (uint32_t q = 0; q < TEST_SCATTER_RUNS; q++) {
        s->firsts[q] = used[q % TEST_SCATTER_ARRAYS];
        used[q % TEST_SCATTER_ARRAYS] += s->starts[q + 1] - s->starts[q];
    }
    s->to = (hotbed_scatter_view){
        .on = 1,
        .row_bytes = (row + 15) / 16 * 16,
        .num_runs = TEST_SCATTER_RUNS,
        .num_arrays = TEST_SCATTER_ARRAYS,
        .writer = (uint32_t)(n % TEST_SCATTER_ARRAYS),
    };
    s->to.offset = s->to.row_bytes;
    s->array_bytes = (n + 1) * s->to.row_bytes;
    CHECK_OK(hotbed_memory_alloc(
        l->r->stream, HOTBED_MEMORY_DEVICE, TEST_SCATTER_ARRAYS * s->array_bytes, NULL, &s->rows));
    CHECK_OK(hotbed_memory_alloc(
        l->r->stream, HOTBED_MEMORY_DEVICE, sizeof arrays + sizeof s->starts + sizeof s->firsts,
        NULL, &s->views));
    for (uint32_t a = 0; a < TEST_SCATTER_ARRAYS; a++)
        arrays[a] = (uint8_t *)s->rows.data + a * s->array_bytes;
    uint8_t **pointers = s->views.data;
    uint32_t *starts = (uint32_t *)(pointers + TEST_SCATTER_ARRAYS);
    uint32_t *firsts = starts + TEST_SCATTER_RUNS + 1;
    CHECK_OK(hotbed_fill(s->rows.data, GUARD, s->rows.bytes, l->r->stream));
    fixture_upload(l->r, pointers, arrays, sizeof arrays);
    fixture_upload(l->r, starts, s->starts, sizeof s->starts);
    fixture_upload(l->r, firsts, s->firsts, sizeof s->firsts);
    s->to.arrays = pointers;
    s->to.starts = starts;
    s->to.firsts = firsts;
}

void test_scatter_close(test_ticket *l, test_scatter *s) {
    uint8_t *want = scattered_rows(l, s), *seen = take(s->rows.bytes);
    fixture_download(l->r, seen, s->rows.data, s->rows.bytes);
    CHECK_EQ(first_difference(seen, want, s->rows.bytes), s->rows.bytes);
    free(want);
    free(seen);
    hotbed_memory_free(&s->rows);
    hotbed_memory_free(&s->views);
}

/* Write the rows again, scattered, and compare them with scratch[1]. */
static void compare_scattered(test_ticket *l, bool eval) {
    const hotbed_batch batch = test_ticket_batch(l);
    test_scatter s;
    if (l->r->model->options.pooling != HOTBED_POOL_NONE)
        return;
    test_scatter_open(l, &s);
    CHECK_OK(
        eval ? hotbed_storage_eval_scattered(l->r->storage, &batch, &s.to, l->r->stream)
             : hotbed_storage_forward_scattered(l->r->storage, l->ticket, &s.to, l->r->stream));
    test_scatter_close(l, &s);
}

void test_ticket_forward(test_ticket *l) {
    guard_outputs(l);
    CHECK_OK(hotbed_storage_forward(l->r->storage, l->ticket, l->output, l->stride, l->r->stream));
    oracle_forward(l->model, l->scratch[1], l->stride);
    compare_outputs(l);
    compare_scattered(l, false);
}

void test_ticket_eval(test_ticket *l) {
    hotbed_batch host = used_arrays(l, &l->host), device = test_ticket_batch(l);
    guard_outputs(l);
    CHECK_OK(hotbed_storage_eval(l->r->storage, &device, l->output, l->stride, l->r->stream));
    oracle_eval(l->r->model, &host, l->scratch[1], l->stride);
    compare_outputs(l);
    compare_scattered(l, true);
}

void test_ticket_backward(test_ticket *l, rng *random) {
    hotbed_dtype dtype = l->r->model->options.output_dtype;
    uint64_t bytes = array_bytes(l, output_rows(l));
    for (uint64_t i = 0; i < bytes / hotbed_dtype_bytes(dtype); i++)
        oracle_store(dtype, l->scratch[0], i, rng_float(random));
    fixture_upload(l->r, l->gradient, l->scratch[0], bytes);
    CHECK_OK(
        hotbed_storage_backward(l->r->storage, l->ticket, l->gradient, l->stride, l->r->stream));
    oracle_backward(l->model, l->scratch[0], l->stride);
}

void test_ticket_cancel(test_ticket *l) {
    CHECK_OK(hotbed_ticket_cancel(l->ticket, l->r->stream));
    oracle_cancel(l->model);
}

static void check_array(
    test_ticket *l, const char *what, const void *device, const void *expected, uint64_t bytes) {
    void *seen = take(bytes);
    fixture_download(l->r, seen, device, bytes);
    uint64_t at = first_difference(seen, expected, bytes);
    if (at != bytes)
        (void)fprintf(stderr, "the tickets' %s differ\n", what);
    CHECK_EQ(at, bytes);
    free(seen);
}

/* Whether a slot is in one of the ranges that the table reports. */
static bool is_slot(const fixture *r, uint32_t table, uint64_t slot) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->storage, table, &info));
    bool found =
        slot - info.first_slot < info.slots || slot - info.first_lower_slot < info.lower_slots;
    for (uint32_t g = 0; g < info.segments; g++) {
        hotbed_segment_info segment = {.size = sizeof segment};
        CHECK_OK(hotbed_storage_segment(r->storage, table, g, &segment));
        found = found || slot - segment.first_slot < segment.slots;
    }
    return found;
}

void test_ticket_check(test_ticket *l) {
    const oracle *m = l->r->model;
    const oracle_ticket *t = l->model;
    uint32_t uniques = t->unique_offsets[m->num_tables];
    hotbed_ticket_view view = {.size = sizeof view};
    CHECK_OK(hotbed_ticket_read(l->ticket, &view));
    check_array(
        l, "unique_offsets", view.unique_offsets, t->unique_offsets,
        (m->num_tables + 1U) * sizeof(uint32_t));
    check_array(l, "unique_keys", view.unique_keys, t->unique_keys, uniques * sizeof(uint64_t));
    check_array(l, "counts", view.counts, t->counts, uniques * sizeof(uint64_t));
    check_array(l, "inverse", view.inverse, t->inverse, t->num_keys * sizeof(uint32_t));
    uint64_t *slots = take(uniques * sizeof *slots);
    fixture_download(l->r, slots, view.slots, uniques * sizeof *slots);
    for (uint32_t table = 0; table < m->num_tables; table++) {
        for (uint32_t u = t->unique_offsets[table]; u < t->unique_offsets[table + 1]; u++) {
            if (t->rows[u] == UINT32_MAX)
                CHECK_EQ(slots[u], HOTBED_SLOT_NONE);
            else
                CHECK(is_slot(l->r, table, slots[u]));
        }
    }
    free(slots);
}

void test_ticket_step(test_ticket *l, rng *random, const batch_shape *how) {
    test_ticket_fill(l, random, how);
    test_ticket_prefetch(l);
    test_ticket_check(l);
    if (l->forwarded) {
        oracle_forward(l->model, l->scratch[1], l->stride);
        compare_outputs(l);
    }
    test_ticket_forward(l);
    test_ticket_backward(l, random);
    CHECK_OK(hotbed_stream_sync(l->r->stream));
}
