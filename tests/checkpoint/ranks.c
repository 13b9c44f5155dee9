/* tests/checkpoint/ranks.c - the storages of several ranks, which share tables. */
#include "tests/checkpoint/ranks.h"

#include "base/float.h"
#include "checkpoint/shard_reader.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t dim;
    hotbed_table_kind kind;
    hotbed_dtype dtype;
    uint64_t keys;
} tables[RANKS_TABLES] = {
    {"hash", 6, HOTBED_TABLE_HASH, HOTBED_F32, 400},
    {"static", 3, HOTBED_TABLE_STATIC, HOTBED_BF16, 90},
    {"small", 1, HOTBED_TABLE_HASH, HOTBED_F32, 5},
};

static uint64_t rows_of(const ranks *r, uint32_t table) {
    return tables[table].kind == HOTBED_TABLE_STATIC && r->shape.rows != 0 ? r->shape.rows
                                                                           : tables[table].keys;
}

/* The i-th key of a table: some at the ends of the key range, some adjacent. */
static uint64_t key_of(uint32_t table, uint64_t i) {
    if (tables[table].kind == HOTBED_TABLE_STATIC || i % 4 == 0)
        return i;
    if (i % 4 == 1)
        return UINT64_MAX - i;
    return i % 4 == 2 ? ((uint64_t)1 << 63) + i : i * 0x9E3779B97F4A7C15U;
}

static uint32_t value_of(uint32_t table, uint64_t key, uint32_t version, uint64_t element) {
    uint64_t mixed = (key + 1) * 0xD1342543DE82EF95U +
                     (version * 977 + element * 131 + table + 1) * 0x9E3779B97F4A7C15U;
    return (uint32_t)(mixed >> 40) + 1;
}

/* Put a rank's rows into a store, with room for half of them in the upper tier. */
static void open_store(
    ranks *r, uint32_t rank, hotbed_storage_options *storage, hotbed_table_options *options) {
    hotbed_external_table of[RANKS_TABLES];
    hotbed_external_options external = {
        .size = sizeof external, .num_tables = RANKS_TABLES, .tables = of};
    for (uint32_t t = 0; t < RANKS_TABLES; t++)
        options[t].upper_capacity = options[t].capacity / 2 + 1;
    CHECK_OK(hotbed_storage_external_tables(storage, of));
    CHECK_OK(hotbed_external_create_memory(&external, &r->stores[rank]));
    storage->external = r->stores[rank];
    storage->mode = HOTBED_MODE_CACHE;
}

void ranks_create(ranks *r, const ranks_shape *shape, uint32_t world, hotbed_stream *stream) {
    *r = (ranks){.world = world, .stream = stream, .shape = *shape, .step = 5};
    hotbed_table_options options[RANKS_TABLES];
    hotbed_storage_options storage;
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        bool hash = tables[t].kind == HOTBED_TABLE_HASH;
        hotbed_route_kind kind = shape->route;
        if (!hash && kind == HOTBED_ROUTE_HASH_ROUND_ROBIN)
            kind = HOTBED_ROUTE_CONTINUOUS;
        uint64_t rows = !hash ? rows_of(r, t) : kind == HOTBED_ROUTE_CONTINUOUS ? 100 : 0;
        CHECK_OK(hotbed_route_init(&r->routes[t], kind, world, rows));
        options[t] = (hotbed_table_options){.size = sizeof options[t]};
        options[t].name = tables[t].name;
        options[t].dim = tables[t].dim;
        options[t].kind = tables[t].kind;
        options[t].dtype = tables[t].dtype;
        options[t].state_dtype = tables[t].dtype == HOTBED_BF16 ? HOTBED_BF16 : HOTBED_F32;
    }
    options[0].score = shape->score;
    for (uint32_t rank = 0; rank < world; rank++) {
        for (uint32_t t = 0; t < RANKS_TABLES; t++) {
            uint64_t rows = hotbed_route_rows(&r->routes[t], rank);
            options[t].track_changes = shape->tracks;
            options[t].capacity = tables[t].kind == HOTBED_TABLE_HASH ? tables[t].keys
                                  : rows == 0                         ? 1
                                                                      : rows;
        }
        hotbed_storage_options_init(&storage);
        storage.num_tables = RANKS_TABLES;
        storage.tables = options;
        storage.optimizer.kind = shape->optimizer;
        storage.seed = 3;
        if (shape->stored)
            open_store(r, rank, &storage, options);
        CHECK_OK(hotbed_storage_create(&storage, stream, &r->storages[rank]));
    }
}

void ranks_destroy(ranks *r) {
    for (uint32_t rank = 0; rank < r->world; rank++)
        hotbed_storage_destroy(r->storages[rank]);
    for (uint32_t rank = 0; rank < r->world; rank++)
        hotbed_external_destroy(r->stores[rank]);
    for (uint32_t rank = 0; rank < r->world; rank++)
        hotbed_checkpoint_mark_destroy(r->marks[rank]);
}

void ranks_mark(ranks *r) {
    for (uint32_t rank = 0; rank < r->world; rank++)
        CHECK_OK(hotbed_checkpoint_mark_create(&r->marks[rank]));
}

static void fill_words(void *to, size_t bytes, uint32_t table, uint64_t key, uint32_t version) {
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half = (uint16_t)value_of(table, key, version, i / 2);
        memcpy((char *)to + i, &half, 2);
    }
}

/* Return the rows that the model expects on rank `rank` of `r`, for the keys first, first + step, ... The caller frees
 * them with sample_free(). */
static sample_image expected(
    const ranks *r, const ranks *model, uint32_t rank, uint32_t table, uint32_t first,
    uint32_t step) {
    sample_image image = sample_new(r->storages[rank], table, rows_of(r, table));
    uint64_t n = 0;
    for (uint64_t i = first; i < rows_of(r, table); i += step) {
        uint64_t key = key_of(table, i);
        uint32_t version = model->versions[table][i];
        if (version == 0 || hotbed_route_rank(&r->routes[table], key) != rank)
            continue;
        image.keys[n] = key;
        if (tables[table].kind == HOTBED_TABLE_STATIC)
            image.keys[n] = hotbed_route_local(&r->routes[table], key);
        image.scores[n] =
            tables[table].kind == HOTBED_TABLE_HASH ? value_of(table, key, version, 1000) : 0;
        if (image.times != NULL)
            image.times[n] = value_of(table, key, version, 2000);
        fill_words(image.weights + n * image.weight_bytes, image.weight_bytes, table, key, version);
        for (uint32_t s = 0; s < 2; s++)
            if (image.states[s] != NULL)
                fill_words(
                    image.states[s] + n * image.state_bytes[s], image.state_bytes[s], table, key,
                    version + 50 + s);
        n++;
    }
    image.rows = n;
    return image;
}

void ranks_fill(ranks *r, uint32_t version) {
    ranks_change(r, version, 0, 1);
}

void ranks_change(ranks *r, uint32_t version, uint32_t first, uint32_t step) {
    for (uint32_t t = 0; t < RANKS_TABLES; t++)
        for (uint64_t i = first; i < rows_of(r, t); i += step)
            r->versions[t][i] = version;
    for (uint32_t rank = 0; rank < r->world; rank++)
        for (uint32_t t = 0; t < RANKS_TABLES; t++) {
            sample_image image = expected(r, r, rank, t, first, step);
            sample_store(r->storages[rank], t, &image, r->stream);
            sample_free(&image);
        }
}

void ranks_erase(ranks *r, uint32_t first, uint32_t step) {
    for (uint32_t rank = 0; rank < r->world; rank++)
        for (uint32_t t = 0; t < RANKS_TABLES; t++) {
            if (tables[t].kind == HOTBED_TABLE_STATIC)
                continue;
            sample_image image = expected(r, r, rank, t, first, step);
            sample_erase(r->storages[rank], t, &image, r->stream);
            sample_free(&image);
        }
    for (uint32_t t = 0; t < RANKS_TABLES; t++)
        for (uint64_t i = first; i < rows_of(r, t); i += step)
            if (tables[t].kind == HOTBED_TABLE_HASH)
                r->versions[t][i] = 0;
}

void ranks_change_some(ranks *r) {
    ranks_change(r, 2, 0, 9);
    ranks_erase(r, 1, 11);
}

static uint64_t find(const sample_image *image, uint64_t key) {
    uint64_t i = 0;
    while (i < image->rows && image->keys[i] != key)
        i++;
    return i;
}

void ranks_check(ranks *r, const ranks *model) {
    for (uint32_t rank = 0; rank < r->world; rank++)
        ranks_check_rank(r, model, rank);
}

void ranks_check_rank(ranks *r, const ranks *model, uint32_t rank) {
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        sample_image right = expected(r, model, rank, t, 0, 1);
        uint64_t rows = right.rows;
        sample_image found = sample_read(r->storages[rank], t, r->stream);
        bool is_static = tables[t].kind == HOTBED_TABLE_STATIC;
        CHECK(is_static ? found.rows >= rows : found.rows == rows);
        for (uint64_t i = 0; i < rows; i++) {
            uint64_t at = find(&found, right.keys[i]);
            CHECK(at < found.rows);
            CHECK_BYTES(
                found.weights + at * found.weight_bytes, right.weights + i * found.weight_bytes,
                found.weight_bytes);
            CHECK(is_static || found.scores[at] == right.scores[i]);
            CHECK(
                found.times == NULL || found.times[at] == right.times[i] ||
                model->shape.score != HOTBED_SCORE_TIMESTAMP_LFU);
            for (uint32_t s = 0; s < 2; s++)
                if (found.states[s] != NULL)
                    CHECK_BYTES(
                        found.states[s] + at * found.state_bytes[s],
                        right.states[s] + i * found.state_bytes[s], found.state_bytes[s]);
        }
        sample_free(&right);
        sample_free(&found);
    }
}

hotbed_checkpoint_options ranks_options(const ranks *r, uint32_t rank) {
    hotbed_checkpoint_options options = {.size = sizeof options, .step = r->step};
    sample_extra(&options, r->extra);
    options.share = (hotbed_checkpoint_share){.rank = rank, .world = r->world, .routes = r->routes};
    return options;
}

hotbed_checkpoint_config ranks_config(const hotbed_io_calls *calls) {
    return (hotbed_checkpoint_config){
        .calls = calls,
        .bucket_bits = 5,
        .block_bytes = 4096,
        .window_slots = 100,
        .window_bytes = 1000,
    };
}

void ranks_save(ranks *r, const char *path) {
    ranks_save_after(r, path, NULL);
}

const uint32_t ranks_worlds[RANKS_WORLDS] = {1, 2, 3, 4, 5, 7, 8, 16, RANKS_MOST};

bool ranks_whole(void) {
    return getenv("HOTBED_TEST_WHOLE") != NULL;
}

/* Syncing many small files would take most of the time; test_checkpoint_rank_faults.c tests syncs. */
static int no_sync(void *self, int file) {
    return 0;
}

hotbed_io_calls ranks_calls(void) {
    hotbed_io_calls calls = hotbed_io_system;
    calls.sync = no_sync;
    return calls;
}

void ranks_save_after(ranks *r, const char *path, const char *parent) {
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    hotbed_checkpoint_id id;
    CHECK_OK(hotbed_save_begin(&config, path, &id));
    for (uint32_t rank = 0; rank < r->world; rank++) {
        hotbed_checkpoint_options options = ranks_options(r, rank);
        options.mark = r->marks[rank];
        options.parent = parent;
        options.touched = r->shape.tracks ? 1 : 0;
        CHECK_OK(sample_save_shard(&config, path, id, r->storages[rank], &options, r->stream));
    }
    CHECK_OK(hotbed_save_commit(&config, path, id, r->world));
}

void ranks_load(ranks *r, const char *path, const hotbed_io_calls *calls) {
    ranks_load_chain(r, path, NULL, 0, calls);
}

void ranks_load_chain(
    ranks *r, const char *path, const char *const *increments, uint32_t n,
    const hotbed_io_calls *calls) {
    hotbed_checkpoint_config config = ranks_config(calls);
    for (uint32_t rank = 0; rank < r->world; rank++) {
        hotbed_checkpoint_load_options options = {.size = sizeof options};
        uint64_t step = 0;
        options.share = ranks_options(r, rank).share;
        options.num_increments = n;
        options.increments = increments;
        CHECK_OK(sample_load_with(&config, path, r->storages[rank], &options, &step, r->stream));
        CHECK_EQ(step, 5);
    }
}

hotbed_manifest ranks_manifest(const char *path) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    hotbed_manifest m;
    CHECK_OK(hotbed_io_open(&hotbed_io_system, NULL, path, HOTBED_IO_DIRECTORY, &directory));
    CHECK_OK(hotbed_manifest_read(&directory, &m));
    hotbed_io_drop(&directory);
    return m;
}

/* --- snapshots -------------------------------------------------------------------------------- */

void ranks_train(ranks *r, uint32_t version) {
    for (uint32_t i = 0; i < 4; i++)
        ranks_change(r, version + i, i, 7);
    ranks_erase(r, version % 5, 9);
}

hotbed_checkpoint_snapshot *ranks_take(
    ranks *r, uint32_t rank, const char *parent, hotbed_checkpoint_arena *arena) {
    hotbed_checkpoint_snapshot *snapshot = NULL;
    hotbed_checkpoint_config config = ranks_config(&hotbed_io_system);
    hotbed_checkpoint_options options = ranks_options(r, rank);
    options.mark = r->marks[rank];
    options.parent = parent;
    options.arena = arena;
    CHECK_OK(sample_snapshot_take(&config, r->storages[rank], &options, r->stream, &snapshot));
    return snapshot;
}

hotbed_status ranks_write(hotbed_checkpoint_snapshot *snapshot, const char *path) {
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    return hotbed_snapshot_write(&config, path, snapshot);
}

static void *write_it(void *argument) {
    ranks_writer *w = argument;
    w->status = ranks_write(w->snapshot, w->path);
    return NULL;
}

void ranks_write_begin(ranks_writer *w, hotbed_checkpoint_snapshot *snapshot, const char *path) {
    *w = (ranks_writer){.snapshot = snapshot, .path = path};
    CHECK(pthread_create(&w->thread, NULL, write_it, w) == 0);
}

void ranks_write_end(ranks_writer *w) {
    CHECK(pthread_join(w->thread, NULL) == 0);
    CHECK_OK(w->status);
    hotbed_checkpoint_snapshot_destroy(w->snapshot);
}
