/* tests/serve/served.c - random changes of a storage, and its rows by key. */
#include "tests/serve/served.h"

#include "serve/encode.h"
#include "serve/format.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

uint64_t served_keys[SERVED_KEYS] = {0, 1, 2, 3, 4, 5, 6, 7, UINT64_MAX, (uint64_t)1 << 63};
const uint32_t served_dims[SERVED_TABLES] = {5, 16, 3};

enum { STATIC_ROWS = 6 };

static hotbed_storage *create(
    uint64_t seed, uint32_t tracks, hotbed_stream *stream, hotbed_external **store) {
    static const char *const names[SERVED_TABLES] = {"hash", "half", "rows"};
    static const hotbed_dtype dtypes[SERVED_TABLES] = {HOTBED_F32, HOTBED_F16, HOTBED_BF16};
    hotbed_table_options tables[SERVED_TABLES];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    for (uint64_t i = 10; i < SERVED_KEYS; i++)
        served_keys[i] = i * 0x9e3779b97f4a7c15U;
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = names[t];
        tables[t].dim = served_dims[t];
        tables[t].dtype = dtypes[t];
        tables[t].capacity = t == 2 ? STATIC_ROWS : t == 0 ? 20 : 2 * SERVED_KEYS;
        tables[t].kind = t == 2 ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
        tables[t].evict = t == 0 ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER;
        tables[t].score = t == 1 ? HOTBED_SCORE_LFU : tables[t].score;
        tables[t].track_changes = (tracks >> t & 1U) != 0;
        tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[t].initializer.lower = -1.0F;
        tables[t].initializer.upper = 1.0F;
        tables[t].eval_initializer.value = 0.25F * (float)t;
    }
    hotbed_storage_options_init(&options);
    options.num_tables = SERVED_TABLES;
    options.tables = tables;
    options.key_type = HOTBED_KEY_U64;
    options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    options.optimizer.learning_rate = 0.125F;
    options.seed = seed;
    options.check = HOTBED_CHECK_IGNORE;
    options.removed_capacity = 16;
    if (store != NULL) {
        hotbed_external_table of[SERVED_TABLES];
        hotbed_external_options external = {
            .size = sizeof external, .num_tables = SERVED_TABLES, .tables = of};
        tables[0].evict = HOTBED_EVICT_NEVER;
        for (uint32_t t = 0; t < SERVED_TABLES; t++)
            tables[t].upper_capacity = t == 2 ? 3 : 20;
        CHECK_OK(hotbed_storage_external_tables(&options, of));
        CHECK_OK(hotbed_external_create_memory(&external, store));
        options.external = *store;
        options.mode = HOTBED_MODE_CACHE;
    }
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

hotbed_storage *served_create(uint64_t seed, uint32_t tracks, hotbed_stream *stream) {
    return create(seed, tracks, stream, NULL);
}

/* One key for each table. The batch stays until the stream has passed it. */
static void train(hotbed_storage *storage, hotbed_stream *stream) {
    uint64_t keys[SERVED_TABLES * 8];
    float gradient[SERVED_TABLES * 8 * SERVED_DIM_MOST];
    hotbed_ticket *ticket = NULL;
    hotbed_batch batch = {.size = sizeof batch};
    uint32_t samples = 1 + (uint32_t)hotbed_test_below(8), n = samples * SERVED_TABLES;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = i / samples == 2 ? hotbed_test_below(STATIC_ROWS)
                                   : served_keys[hotbed_test_below(SERVED_KEYS)];
    for (uint32_t i = 0; i < n * SERVED_DIM_MOST; i++)
        gradient[i] = hotbed_test_float();
    batch.batch_size = samples;
    batch.num_keys = n;
    batch.keys = keys;
    CHECK_OK(hotbed_ticket_create(storage, n, samples, stream, &ticket));
    CHECK_OK(hotbed_storage_prefetch(storage, &batch, ticket, stream));
    CHECK_OK(hotbed_storage_backward(storage, ticket, gradient, SERVED_DIM_MOST, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_ticket_destroy(ticket);
}

void served_change(hotbed_storage *storage, hotbed_stream *stream) {
    for (uint64_t left = hotbed_test_below(4); left > 0; left--)
        train(storage, stream);
    if (hotbed_test_below(3) == 0) {
        uint64_t keys[4];
        for (uint32_t i = 0; i < 4; i++)
            keys[i] = served_keys[hotbed_test_below(SERVED_KEYS)];
        CHECK_OK(
            hotbed_storage_erase(storage, (uint32_t)hotbed_test_below(2), 4, keys, NULL, stream));
        CHECK_OK(hotbed_stream_sync(stream)); /* before the keys go */
    }
    if (hotbed_test_below(12) == 0)
        CHECK_OK(hotbed_storage_clear(storage, (uint32_t)hotbed_test_below(3), stream));
    CHECK_OK(hotbed_stream_sync(stream));
}

void served_look(
    hotbed_storage *storage, const hotbed_encoding encodings[SERVED_TABLES], uint64_t step,
    served_cut *cut, hotbed_stream *stream) {
    cut->step = step;
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        float weights[SERVED_KEYS * SERVED_DIM_MOST];
        uint8_t found[SERVED_KEYS];
        hotbed_rows rows = {.weights = weights};
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(storage, t, &info));
        CHECK_OK(
            hotbed_storage_get_rows(storage, t, SERVED_KEYS, served_keys, &rows, found, stream));
        CHECK_OK(hotbed_stream_sync(stream));
        hotbed_encoding encoding = encodings == NULL ? HOTBED_ENCODING_TABLE : encodings[t];
        if (encoding == HOTBED_ENCODING_TABLE)
            encoding = (hotbed_encoding)info.dtype;
        for (uint32_t k = 0; k < SERVED_KEYS; k++) {
            unsigned char row[4 * SERVED_DIM_MOST + 8];
            float value;
            size_t bytes = info.dim * hotbed_dtype_bytes(info.dtype);
            float *to = cut->rows[t][k];
            for (uint32_t e = 0; e < info.dim; e++)
                to[e] = 0.25F * (float)t;
            if (found[k] == 0)
                continue;
            CHECK(hotbed_row_encode(
                encoding, info.dim, info.dtype, (char *)weights + k * bytes, row, &value));
            hotbed_row_decode(encoding, info.dim, row, to);
        }
        CHECK_OK(hotbed_storage_size(storage, t, &cut->keys[t], NULL, stream));
    }
}

void served_check(hotbed_reader *reader, const served_cut *cut) {
    float out[SERVED_TABLES][SERVED_KEYS * SERVED_DIM_MOST];
    hotbed_lookup lookups[SERVED_TABLES];
    uint64_t version = 0;
    hotbed_reader_stats stats = {.size = sizeof stats};
    for (uint32_t t = 0; t < SERVED_TABLES; t++)
        lookups[t] = (hotbed_lookup){
            .table = t,
            .num_keys = SERVED_KEYS,
            .keys = served_keys,
            .output = out[t],
            .stride = SERVED_DIM_MOST};
    CHECK_OK(hotbed_reader_lookup(reader, lookups, SERVED_TABLES, &version));
    CHECK_OK(hotbed_reader_get_stats(reader, &stats));
    CHECK_EQ(stats.version, version);
    CHECK_EQ(stats.step, cut->step);
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        hotbed_reader_table info = {.size = sizeof info};
        CHECK_OK(hotbed_reader_table_info(reader, t, &info));
        CHECK_EQ(info.keys, cut->keys[t]);
        for (uint32_t k = 0; k < SERVED_KEYS; k++)
            CHECK_BYTES(
                &out[t][k * SERVED_DIM_MOST], cut->rows[t][k], served_dims[t] * sizeof(float));
    }
}

uint64_t served_newest(const char *directory) {
    uint64_t newest = 0;
    DIR *list = opendir(directory);
    CHECK(list != NULL);
    for (struct dirent *item; (item = readdir(list)) != NULL;) {
        uint64_t number = hotbed_cut_number(item->d_name);
        newest = number > newest ? number : newest;
    }
    closedir(list);
    return newest;
}

void served_begin_with(served *s, hotbed_backend backend, uint32_t tracks, bool stored) {
    *s = (served){.stream = sample_stream(backend)};
    s->storage = create(7, tracks, s->stream, stored ? &s->store : NULL);
    s->options = (hotbed_publish_options){.size = sizeof s->options};
    snprintf(s->directory, sizeof s->directory, "%s", sample_path("published"));
}

void served_begin(served *s, hotbed_backend backend) {
    served_begin_with(s, backend, 0, false);
}

void served_start(served *s) {
    CHECK_OK(hotbed_publisher_create(
        s->directory, &s->storage, 1, &s->options, s->stream, &s->publisher));
}

void served_step(served *s) {
    for (int i = 0; i < 3; i++)
        served_change(s->storage, s->stream);
    served_look(s->storage, s->options.encodings, ++s->step, &s->cut, s->stream);
}

void served_publish(served *s) {
    served_step(s);
    CHECK_OK(hotbed_publisher_publish(s->publisher, s->step, s->stream));
    CHECK_OK(hotbed_publisher_wait(s->publisher));
}

const char *served_file(const served *s, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", s->directory, name);
    return path;
}

void served_finish(served *s) {
    hotbed_reader_close(s->reader);
    hotbed_publisher_destroy(s->publisher);
    hotbed_storage_destroy(s->storage);
    hotbed_external_destroy(s->store);
    hotbed_stream_destroy(s->stream);
}
