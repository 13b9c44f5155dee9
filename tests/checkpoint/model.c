/* tests/checkpoint/model.c - a model of several storages on several ranks, and two blobs. */
#include "tests/checkpoint/model.h"

#include "checkpoint/format/bucket_core.h"
#include "storage/types.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t dim;
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t keys;
    uint32_t home, other_home;
} tables[MODEL_TABLES] = {
    {"users", 8, HOTBED_TABLE_HASH, HOTBED_F32, 300, 0, 1},
    {"items", 4, HOTBED_TABLE_STATIC, HOTBED_F16, 60, 0, 1},
    {"tags", 6, HOTBED_TABLE_HASH, HOTBED_BF16, 150, 1, 0},
    {"words", 8, HOTBED_TABLE_HASH, HOTBED_INT8, 100, 2, 0},
    {"places", 3, HOTBED_TABLE_STATIC, HOTBED_FP8, 20, 2, 0},
};

static const hotbed_pooling poolings[2][MODEL_STORAGES] = {
    {HOTBED_POOL_SUM, HOTBED_POOL_MEAN, HOTBED_POOL_NONE},
    {HOTBED_POOL_NONE, HOTBED_POOL_MEAN, HOTBED_POOL_SUM},
};

static const char dense[] = "the dense part", place[] = "batch 17";

static uint32_t home_of(const model *m, uint32_t table) {
    return m->shape.regrouped ? tables[table].other_home : tables[table].home;
}

static uint32_t num_storages(const model *m) {
    return m->shape.regrouped ? 2 : MODEL_STORAGES;
}

/* Return a table's number in its storage, and its number in all storages, `flat`. */
static uint32_t number_of(const model *m, uint32_t table, uint32_t *flat) {
    uint32_t number = 0, before = 0;
    for (uint32_t t = 0; t < MODEL_TABLES; t++) {
        number += t < table && home_of(m, t) == home_of(m, table);
        before += home_of(m, t) < home_of(m, table);
    }
    *flat = before + number;
    return number;
}

static uint64_t rows_of(const model *m, uint32_t table) {
    return (uint64_t)((int64_t)tables[table].keys + m->shape.more[table]);
}

static uint64_t key_of(uint32_t table, uint64_t i) {
    return tables[table].kind == HOTBED_TABLE_STATIC ? i : (i + 1) * 0x9E3779B97F4A7C15U;
}

static hotbed_dtype dtype_of(const model *m, uint32_t table) {
    return (hotbed_dtype)(1 + (tables[table].dtype - 1 + m->shape.shift) % HOTBED_DTYPE_LAST);
}

/* The type of a table's states, by a mask of those with BF16. */
static hotbed_dtype state_dtype_of(uint32_t table, uint32_t narrow) {
    return (narrow >> table & 1U) == 0 ? HOTBED_F32 : HOTBED_BF16;
}

static void describe(
    const model *m, uint32_t table, uint32_t rank, const hotbed_route *route,
    hotbed_table_options *out) {
    const model_shape *shape = &m->shape;
    uint64_t rows = hotbed_route_rows(route, rank);
    *out = (hotbed_table_options){.size = sizeof *out};
    out->name = shape->names[table] != NULL ? shape->names[table] : tables[table].name;
    out->dim = shape->dim[table] != 0 ? shape->dim[table] : tables[table].dim;
    out->kind = tables[table].kind;
    out->dtype = dtype_of(m, table);
    out->state_dtype = state_dtype_of(table, shape->narrow);
    out->capacity = out->kind == HOTBED_TABLE_HASH ? tables[table].keys : rows == 0 ? 1 : rows;
    if (table == 0 && shape->capacity > 0) {
        out->capacity = shape->capacity;
        out->evict = HOTBED_EVICT_LOWEST;
    }
}

void model_create(model *m, const model_shape *shape, uint32_t world, hotbed_stream *stream) {
    *m = (model){.shape = *shape, .world = world, .stream = stream};
    for (uint32_t t = 0, flat; t < MODEL_TABLES; t++) {
        const bool hash = tables[t].kind == HOTBED_TABLE_HASH;
        number_of(m, t, &flat);
        CHECK_OK(hotbed_route_init(
            &m->routes[flat], hash ? HOTBED_ROUTE_HASH_ROUND_ROBIN : HOTBED_ROUTE_CONTINUOUS, world,
            hash ? 0 : rows_of(m, t)));
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        CHECK_OK(hotbed_checkpoint_mark_create(&m->marks[rank]));
        for (uint32_t s = 0; s < num_storages(m); s++) {
            hotbed_table_options options[MODEL_TABLES];
            hotbed_storage_options storage;
            uint32_t n = 0, flat;
            for (uint32_t t = 0; t < MODEL_TABLES; t++)
                if (home_of(m, t) == s) {
                    number_of(m, t, &flat);
                    describe(m, t, rank, &m->routes[flat], &options[n++]);
                }
            hotbed_storage_options_init(&storage);
            storage.num_tables = n;
            storage.tables = options;
            storage.pooling = poolings[m->shape.regrouped][s];
            storage.optimizer.kind = HOTBED_OPT_ADAM;
            storage.seed = 3;
            CHECK_OK(hotbed_storage_create(&storage, stream, &m->storages[rank][s]));
        }
    }
}

void model_destroy(model *m) {
    for (uint32_t rank = 0; rank < m->world; rank++) {
        hotbed_checkpoint_mark_destroy(m->marks[rank]);
        for (uint32_t s = 0; s < num_storages(m); s++)
            hotbed_storage_destroy(m->storages[rank][s]);
    }
}

/* Write n elements of a row or a state, which were stored as `saved` before. Divided by 4, they are exact in bf16. */
static void write_elements(
    void *to, hotbed_dtype dtype, hotbed_dtype saved, float divisor, uint32_t table, uint64_t i,
    uint32_t version, uint32_t n) {
    float values[HOTBED_DIM_MOST];
    for (uint32_t e = 0; e < n; e++)
        values[e] = (float)(i % 32 + table * 4 + version * 8 + e) / divisor;
    if (saved != dtype) {
        unsigned char row[8 * sizeof(float)];
        CHECK(hotbed_dtype_row_bytes(saved, n) <= sizeof row);
        hotbed_weights_write(saved, n, values, row);
        hotbed_weights_read(saved, n, row, values);
    }
    hotbed_weights_write(dtype, n, values, to);
}

static bool is_some(uint64_t i) {
    return i % 3 == 0;
}

/* The rows i of a rank for which i is below `rows`, and, if `some`, which is_some() chooses. The caller frees
 * them with sample_free(). */
static sample_image image_of(
    const model *m, uint32_t rank, uint32_t table, uint32_t version, uint32_t later, bool some) {
    uint32_t flat, number = number_of(m, table, &flat);
    hotbed_storage *storage = m->storages[rank][home_of(m, table)];
    const hotbed_route *route = &m->routes[flat];
    const bool is_static = tables[table].kind == HOTBED_TABLE_STATIC;
    uint64_t most = rows_of(m, table) < tables[table].keys ? rows_of(m, table) : tables[table].keys;
    sample_image image = sample_new(storage, number, most);
    uint64_t n = 0;
    for (uint64_t i = 0; i < most; i++) {
        uint64_t key = key_of(table, i);
        if ((some && !is_some(i)) || hotbed_route_rank(route, key) != rank)
            continue;
        uint32_t v = later > 0 && is_some(i) ? later : version;
        image.keys[n] = is_static ? hotbed_route_local(route, key) : key;
        image.scores[n] = is_static ? 0 : i + v;
        write_elements(
            image.weights + n * image.weight_bytes, dtype_of(m, table), tables[table].dtype, 4,
            table, i, v, tables[table].dim);
        for (uint32_t s = 0; s < 2 && image.states[s] != NULL; s++)
            write_elements(
                image.states[s] + n * image.state_bytes[s], state_dtype_of(table, m->shape.narrow),
                state_dtype_of(table, m->shape.saved_narrow), m->shape.thirds ? 3 : 4, table + s, i,
                v, tables[table].dim);
        n++;
    }
    image.rows = n;
    return image;
}

void model_fill(model *m, uint32_t version, bool some) {
    for (uint32_t rank = 0; rank < m->world; rank++)
        for (uint32_t t = m->shape.capacity > 0, flat; t < MODEL_TABLES; t++) {
            sample_image image = image_of(m, rank, t, version, 0, some);
            sample_store(
                m->storages[rank][home_of(m, t)], number_of(m, t, &flat), &image, m->stream);
            sample_free(&image);
        }
}

void model_check_table(model *m, uint32_t table, uint32_t version, uint32_t later) {
    uint64_t all = 0;
    for (uint32_t rank = 0; rank < m->world; rank++) {
        uint32_t flat, number = number_of(m, table, &flat);
        sample_image right = image_of(m, rank, table, version, later, false);
        sample_image found = sample_read(m->storages[rank][home_of(m, table)], number, m->stream);
        CHECK(tables[table].kind == HOTBED_TABLE_STATIC || found.rows == right.rows);
        all += right.rows;
        for (uint64_t i = 0; i < right.rows; i++) {
            uint64_t at = 0;
            while (at < found.rows && found.keys[at] != right.keys[i])
                at++;
            CHECK(at < found.rows);
            CHECK_BYTES(
                found.weights + at * found.weight_bytes, right.weights + i * right.weight_bytes,
                right.weight_bytes);
            CHECK(tables[table].kind == HOTBED_TABLE_STATIC || found.scores[at] == right.scores[i]);
            for (uint32_t s = 0; s < 2; s++)
                CHECK_BYTES(
                    found.states[s] + at * found.state_bytes[s],
                    right.states[s] + i * right.state_bytes[s], right.state_bytes[s]);
        }
        sample_free(&right);
        sample_free(&found);
    }
    CHECK(all > 0);
}

void model_check(model *m, uint32_t version, uint32_t later) {
    for (uint32_t t = 0; t < MODEL_TABLES; t++)
        model_check_table(m, t, version, later);
}

hotbed_checkpoint_options model_options(model *m, uint32_t rank) {
    static const hotbed_checkpoint_blob blobs[] = {
        {"dense", dense, sizeof dense}, {"place", place, sizeof place}};
    static const char *const names[] = {"sums", "means", "sequences"};
    hotbed_checkpoint_options options = {.size = sizeof options};
    options.step = 7;
    options.blobs = blobs;
    options.num_blobs = 2;
    options.names = names;
    options.mark = m->marks[rank];
    options.share = (hotbed_checkpoint_share){.rank = rank, .world = m->world, .routes = m->routes};
    return options;
}

static hotbed_status put(
    model *m, const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t rank, const char *parent) {
    hotbed_checkpoint_options options = model_options(m, rank);
    hotbed_storages storages;
    options.parent = parent;
    hotbed_status status =
        hotbed_storages_open("put", m->storages[rank], num_storages(m), &storages);
    if (status == HOTBED_OK)
        status = hotbed_save_shard(config, path, id, &storages, &options, m->stream);
    hotbed_storages_close(&storages);
    return status;
}

static hotbed_checkpoint_config config_of(const hotbed_io_calls *calls) {
    return (hotbed_checkpoint_config){
        .calls = calls, .bucket_bits = 6, .block_bytes = HOTBED_BLOCK_BYTES_LEAST};
}

hotbed_status model_save(
    model *m, const char *path, const char *parent, const hotbed_io_calls *calls) {
    hotbed_checkpoint_config config = config_of(calls);
    hotbed_checkpoint_id id;
    hotbed_status status = hotbed_save_begin(&config, path, &id);
    if (status != HOTBED_OK)
        return status;
    for (uint32_t rank = 0; rank < m->world && status == HOTBED_OK; rank++)
        status = put(m, &config, path, id, rank, parent);
    if (status == HOTBED_OK)
        return hotbed_save_commit(&config, path, id, m->world);
    hotbed_save_abort(&config, path, id);
    return status;
}

hotbed_status model_load(
    model *m, const char *path, const char *increment, hotbed_checkpoint_report *report) {
    hotbed_checkpoint_config config = config_of(&hotbed_io_system);
    hotbed_status status = HOTBED_OK;
    for (uint32_t rank = 0; rank < m->world && status == HOTBED_OK; rank++) {
        hotbed_checkpoint_load_options options = {.size = sizeof options};
        hotbed_storages storages;
        options.share =
            (hotbed_checkpoint_share){.rank = rank, .world = m->world, .routes = m->routes};
        options.increments = &increment;
        options.num_increments = increment != NULL;
        options.mark = m->marks[rank];
        status = hotbed_storages_open("load", m->storages[rank], num_storages(m), &storages);
        if (status == HOTBED_OK)
            status = hotbed_checkpoint_read(&config, path, &storages, &options, report, m->stream);
        hotbed_storages_close(&storages);
    }
    return status;
}

void model_check_blobs(const char *path) {
    char text[64];
    uint64_t bytes = sizeof text;
    CHECK_OK(hotbed_checkpoint_read_blob(path, "dense", text, &bytes));
    CHECK_EQ(bytes, sizeof dense);
    CHECK_STRING(text, dense);
    bytes = sizeof text;
    CHECK_OK(hotbed_checkpoint_read_blob(path, "place", text, &bytes));
    CHECK_STRING(text, place);
}

const hotbed_checkpoint_table *model_find(
    const hotbed_checkpoint_report *report, const char *name) {
    for (uint32_t i = 0; i < report->num_tables && i < report->capacity; i++)
        if (strcmp(report->tables[i].name, name) == 0)
            return &report->tables[i];
    hotbed_check_failed(__FILE__, __LINE__, "the report has no table '%s'", name);
    return NULL;
}
