/* tests/checkpoint/test_state_dict.c - state dicts: names, views of the memory that training uses, hooks,
 * loading, and missing names. */
#include "base/error.h"
#include "checkpoint/format/bucket_core.h"
#include "hotbed/state_dict.h"
#include "hotbed/storage.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const sample shape = {.optimizer = HOTBED_OPT_ADAM, .narrow_states = true};

typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_state_dict *dict;
} fixture;

static fixture set_up(hotbed_backend backend) {
    fixture b = {.stream = NULL};
    sample_directory();
    CHECK_OK(hotbed_stream_create(backend, 0, &b.stream));
    b.storage = sample_create(&shape, b.stream);
    sample_fill(&shape, b.storage, b.stream);
    CHECK_OK(hotbed_state_dict_create(b.storage, "sparse.embeddings.", &b.dict));
    return b;
}

static void tear_down(fixture *b) {
    hotbed_state_dict_destroy(b->dict);
    hotbed_storage_destroy(b->storage);
    hotbed_stream_destroy(b->stream);
}

static hotbed_state_tensor tensor(const fixture *b, const char *name) {
    hotbed_state_tensor t = {.size = sizeof t};
    CHECK_OK(hotbed_state_dict_find(b->dict, name, &t));
    return t;
}

static void names_are_torchrecs(hotbed_backend backend) {
    fixture b = set_up(backend);
    static const char *const names[] = {
        "sparse.embeddings.user.id.weight",
        "sparse.embeddings.user.id.weight_id",
        "sparse.embeddings.user.id.bucket",
        "sparse.embeddings.user.id.metadata",
        "optimizer.sparse.embeddings.user.id.weight.user.id.exp_avg",
        "optimizer.sparse.embeddings.user.id.weight.user.id.exp_avg_sq",
        "sparse.embeddings.item.weight",
    };
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
        hotbed_state_tensor t = {.size = sizeof t};
        CHECK_OK(hotbed_state_dict_tensor(b.dict, i, &t));
        CHECK_STRING(t.name, names[i]);
    }
    CHECK_EQ(hotbed_state_dict_size(b.dict), 4 * 6 + 3);
    hotbed_state_tensor t = tensor(&b, "sparse.embeddings.item.weight");
    CHECK_EQ(t.element, HOTBED_ELEMENT_BF16);
    CHECK_EQ(t.columns, 8);
    CHECK_STATUS(hotbed_state_dict_find(b.dict, "embeddings.item.weight", &t), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_state_dict_find(b.dict, "sparse.embeddings.geo-x.bucket", &t), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_state_dict_tensor(b.dict, hotbed_state_dict_size(b.dict), &t), HOTBED_ERR_ARGUMENT);
    hotbed_state_dict *other = NULL;
    CHECK_STATUS(hotbed_state_dict_create(NULL, NULL, &other), HOTBED_ERR_ARGUMENT);
    CHECK(other == NULL);
    tear_down(&b);
}

/* A prefix goes before the table's name, and after "optimizer.". */
static void any_prefix_is_accepted(hotbed_backend backend) {
    static const struct {
        const char *prefix, *weight, *state;
    } cases[] = {
        {NULL, "embeddings.item.weight", "optimizer.embeddings.item.weight.item.exp_avg"},
        {"embedding_bags.", "embedding_bags.item.weight",
         "optimizer.embedding_bags.item.weight.item.exp_avg"},
        {"", "item.weight", "optimizer.item.weight.item.exp_avg"},
        {"a b/", "a b/item.weight", "optimizer.a b/item.weight.item.exp_avg"},
    };
    fixture b = set_up(backend);
    hotbed_state_dict *dict = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hotbed_state_tensor t = {.size = sizeof t};
        CHECK_OK(hotbed_state_dict_create(b.storage, cases[i].prefix, &dict));
        CHECK_OK(hotbed_state_dict_find(dict, cases[i].weight, &t));
        CHECK_OK(hotbed_state_dict_find(dict, cases[i].state, &t));
        hotbed_state_dict_destroy(dict);
    }
    char longest[129] = "";
    memset(longest, 'x', 128);
    CHECK_STATUS(hotbed_state_dict_create(b.storage, longest, &dict), HOTBED_ERR_ARGUMENT);
    longest[127] = '\0';
    CHECK_OK(hotbed_state_dict_create(b.storage, longest, &dict));
    hotbed_state_dict_destroy(dict);
    tear_down(&b);
}

/* View and table are one memory: values written through the view are read by key, and vice versa. */
static void views_are_the_memory_that_training_uses(hotbed_backend backend) {
    fixture b = set_up(backend);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(b.storage, 2, &info));
    hotbed_state_tensor weight = tensor(&b, "sparse.embeddings.geo-x.weight");
    hotbed_state_tensor state =
        tensor(&b, "optimizer.sparse.embeddings.geo-x.weight.geo-x.exp_avg_sq");
    CHECK(weight.data == info.weights && weight.rows == info.capacity);
    CHECK(state.data == (char *)info.weights + info.state_offsets[1]);
    uint16_t row[5] = {1, 2, 3, 4, 5}, back[5] = {0};
    float moments[5] = {0.5F, 1, 2, 3, 4};
    char *at = (char *)weight.data + 7 * weight.row_bytes;
    CHECK_OK(hotbed_copy(at, row, sizeof row, b.stream));
    CHECK_OK(
        hotbed_copy((char *)state.data + 7 * state.row_bytes, moments, sizeof moments, b.stream));
    CHECK_OK(hotbed_stream_sync(b.stream));
    sample_image image = sample_read(b.storage, 2, b.stream);
    CHECK_BYTES(image.weights + 7 * image.weight_bytes, row, sizeof row);
    CHECK_BYTES(image.states[1] + 7 * image.state_bytes[1], moments, sizeof moments);
    memset(image.weights, 9, image.rows * image.weight_bytes);
    sample_store(b.storage, 2, &image, b.stream);
    CHECK_OK(hotbed_copy(back, at, sizeof back, b.stream));
    CHECK_OK(hotbed_stream_sync(b.stream));
    CHECK_BYTES(back, image.weights, sizeof back);
    sample_free(&image);
    tear_down(&b);
}

/* Create a storage of a mode with the tables "hash" and "static"; the first may grow to `most` rows. */
static fixture set_up_mode(
    hotbed_backend backend, hotbed_mode mode, hotbed_placement placement, uint64_t most) {
    enum { HASH = 64, STATIC = 40 };
    fixture b = {.stream = NULL};
    hotbed_table_options tables[2];
    hotbed_storage_options options;
    for (int t = 0; t < 2; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].dim = 6 + (uint32_t)t;
        tables[t].upper_capacity = mode == HOTBED_MODE_HBM_DIRECT ? 0 : 16;
    }
    tables[0].name = "hash";
    tables[0].capacity = HASH;
    tables[0].max_capacity = most;
    tables[1].name = "static";
    tables[1].kind = HOTBED_TABLE_STATIC;
    tables[1].capacity = STATIC;
    hotbed_storage_options_init(&options);
    options.num_tables = 2;
    options.tables = tables;
    options.optimizer.kind = HOTBED_OPT_ADAM;
    options.mode = mode;
    options.placement = placement;
    CHECK_OK(hotbed_stream_create(backend, 0, &b.stream));
    CHECK_OK(hotbed_storage_create(&options, b.stream, &b.storage));
    CHECK_OK(hotbed_state_dict_create(b.storage, NULL, &b.dict));
    for (uint64_t capacity = 2 * HASH; capacity <= most; capacity *= 2)
        CHECK_OK(hotbed_storage_grow(b.storage, 0, capacity, b.stream));
    return b;
}

/* The address of row `row` in a view. */
static char *view_at(const fixture *b, const char *name, uint64_t row, uint64_t *pieces) {
    hotbed_state_tensor t = tensor(b, name);
    CHECK(row < t.rows && (t.pieces == 1) == (t.data != NULL));
    for (uint32_t number = 0; number < hotbed_state_dict_size(b->dict); number++) {
        hotbed_state_tensor other = {.size = sizeof other};
        CHECK_OK(hotbed_state_dict_tensor(b->dict, number, &other));
        if (other.name != t.name)
            continue;
        for (uint32_t p = 0; p < t.pieces; p++) {
            hotbed_state_piece piece;
            CHECK_OK(hotbed_state_dict_piece(b->dict, number, p, &piece));
            if (row - piece.first_row >= piece.rows)
                continue;
            *pieces |= (uint64_t)1 << p;
            return (char *)piece.data + (row - piece.first_row) * t.row_bytes;
        }
    }
    hotbed_check_failed(__FILE__, __LINE__, "row %d of %s is in no piece", (int)row, name);
}

/* Rows read by key and rows in the views are the same memory. */
static void check_one_memory(const fixture *b, uint32_t table, uint64_t *pieces) {
    static const char *const weights[] = {"embeddings.hash.weight", "embeddings.static.weight"};
    static const char *const states[] = {
        "optimizer.embeddings.hash.weight.hash.exp_avg_sq",
        "optimizer.embeddings.static.weight.static.exp_avg_sq"};
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(b->storage, table, &info));
    uint64_t n = table == 0 ? info.capacity - 10 : info.capacity, rows[256];
    sample_image image = sample_new(b->storage, table, n);
    for (uint64_t i = 0; i < n; i++)
        image.keys[i] = table == 0 ? i * 0x9E3779B97F4A7C15U : i;
    for (uint64_t i = 0; i < n * image.weight_bytes; i++)
        image.weights[i] = (unsigned char)hotbed_test_random();
    for (uint64_t i = 0; i < n * image.state_bytes[1]; i++)
        image.states[1][i] = (unsigned char)hotbed_test_random();
    sample_store(b->storage, table, &image, b->stream);
    CHECK_OK(hotbed_state_dict_collect(b->dict, b->stream));
    CHECK_OK(hotbed_state_dict_rows(b->dict, table, n, image.keys, rows));
    unsigned char back[64];
    for (uint64_t i = 0; i < n; i++) {
        char *weight = view_at(b, weights[table], rows[i], pieces);
        char *state = view_at(b, states[table], rows[i], pieces);
        CHECK_OK(hotbed_copy(back, weight, image.weight_bytes, b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
        CHECK_BYTES(back, image.weights + i * image.weight_bytes, image.weight_bytes);
        CHECK_OK(hotbed_copy(back, state, image.state_bytes[1], b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
        CHECK_BYTES(back, image.states[1] + i * image.state_bytes[1], image.state_bytes[1]);
        memset(back, (int)i, sizeof back); /* vice versa */
        CHECK_OK(hotbed_copy(weight, back, image.weight_bytes, b->stream));
        CHECK_OK(hotbed_copy(state, back, image.state_bytes[1], b->stream));
        CHECK_OK(hotbed_stream_sync(b->stream));
    }
    CHECK_OK(hotbed_storage_reset(b->storage, b->stream));
    sample_image found = sample_read(b->storage, table, b->stream);
    CHECK_EQ(found.rows, n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = 0;
        while (k < n && found.keys[k] != image.keys[i])
            k++;
        CHECK(k < n);
        memset(back, (int)i, sizeof back);
        CHECK_BYTES(found.weights + k * image.weight_bytes, back, image.weight_bytes);
        CHECK_BYTES(found.states[1] + k * image.state_bytes[1], back, image.state_bytes[1]);
    }
    sample_free(&found);
    sample_free(&image);
}

static void rows_of_keys_are_found_in_views_of_every_mode(hotbed_backend backend) {
    static const struct {
        hotbed_mode mode;
        hotbed_placement placement;
        uint64_t most;
        uint64_t pieces; /* number of views with rows of the first table */
    } cases[] = {
        {HOTBED_MODE_HBM_DIRECT, HOTBED_PLACE_BY_SCORE, 0, 1},
        {HOTBED_MODE_CACHE, HOTBED_PLACE_BY_SCORE, 0, 1},
        {HOTBED_MODE_DEFAULT, HOTBED_PLACE_BY_SCORE, 0, 3},
        {HOTBED_MODE_DEFAULT, HOTBED_PLACE_BY_HASH, 0, 3},
        {HOTBED_MODE_HBM_DIRECT, HOTBED_PLACE_BY_SCORE, 256, 7},
        {HOTBED_MODE_CACHE, HOTBED_PLACE_BY_SCORE, 256, 7},
        {HOTBED_MODE_DEFAULT, HOTBED_PLACE_BY_SCORE, 128, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture b = set_up_mode(backend, cases[i].mode, cases[i].placement, cases[i].most);
        uint64_t hash = 0, fixed = 0, key = 12345, row = 0;
        CHECK_STATUS(hotbed_state_dict_rows(b.dict, 0, 1, &key, &row), HOTBED_ERR_STATE);
        check_one_memory(&b, 0, &hash);
        check_one_memory(&b, 1, &fixed);
        CHECK_EQ(hash, cases[i].pieces);
        CHECK_EQ(fixed, cases[i].mode == HOTBED_MODE_DEFAULT ? 3 : 1);
        CHECK_OK(hotbed_state_dict_rows(b.dict, 0, 1, &key, &row));
        CHECK_EQ(row, HOTBED_SLOT_NONE);
        hotbed_state_piece piece;
        CHECK_STATUS(hotbed_state_dict_rows(b.dict, 2, 1, &key, &row), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_state_dict_piece(b.dict, 0, 5, &piece), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_state_dict_piece(b.dict, 1, 0, &piece), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_state_dict_piece(b.dict, 99, 0, &piece), HOTBED_ERR_ARGUMENT);
        tear_down(&b);
    }
}

static void collected_keys_are_in_canonical_order(hotbed_backend backend) {
    fixture b = set_up(backend);
    CHECK(tensor(&b, "sparse.embeddings.user.id.weight_id").data == NULL);
    CHECK_OK(hotbed_state_dict_collect(b.dict, b.stream));
    hotbed_state_tensor ids = tensor(&b, "sparse.embeddings.user.id.weight_id");
    hotbed_state_tensor buckets = tensor(&b, "sparse.embeddings.user.id.bucket");
    hotbed_state_tensor scores = tensor(&b, "sparse.embeddings.user.id.metadata");
    const uint64_t *keys = ids.data, *counts = buckets.data;
    sample_image image = sample_read(b.storage, 0, b.stream);
    CHECK_EQ(ids.rows, image.rows);
    CHECK_EQ(scores.rows, image.rows);
    CHECK_EQ(buckets.rows, 1 << HOTBED_BUCKET_BITS);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < buckets.rows; i++)
        sum += counts[i];
    CHECK_EQ(sum, image.rows);
    for (uint64_t i = 0; i < ids.rows; i++) {
        uint64_t k = 0;
        while (k < image.rows && image.keys[k] != keys[i])
            k++;
        CHECK(k < image.rows && ((const uint64_t *)scores.data)[i] == image.scores[k]);
        CHECK(counts[hotbed_logical_bucket(keys[i], HOTBED_BUCKET_BITS)] > 0);
        if (i == 0)
            continue;
        uint64_t p = hotbed_logical_bucket(keys[i - 1], HOTBED_BUCKET_BITS);
        uint64_t q = hotbed_logical_bucket(keys[i], HOTBED_BUCKET_BITS);
        CHECK(p < q || (p == q && keys[i - 1] < keys[i]));
    }
    CHECK_EQ(tensor(&b, "sparse.embeddings.nothing.weight_id").rows, 0);
    sample_free(&image);
    CHECK_OK(hotbed_state_dict_collect(b.dict, b.stream)); /* a second time */
    tear_down(&b);
}

/* --- hooks ------------------------------------------------------------------------------------ */

static char calls[64];
static hotbed_status answer;

static hotbed_status record_call(void *self, hotbed_state_dict *dict, hotbed_stream *stream) {
    CHECK(dict != NULL && stream != NULL);
    size_t n = strlen(calls);
    CHECK(n + 2 < sizeof calls);
    calls[n] = *(const char *)self;
    calls[n + 1] = '\0';
    return answer == HOTBED_OK ? HOTBED_OK : hotbed_fail(answer, "no, says hook %s", calls + n);
}

static void hooks_are_called_in_order(hotbed_backend backend) {
    fixture b = set_up(backend);
    char words[4][2] = {"a", "b", "c", "d"}, second[] = "e";
    calls[0] = '\0';
    answer = HOTBED_OK;
    for (int m = 0; m < 4; m++)
        CHECK_OK(hotbed_state_dict_add_hook(b.dict, (hotbed_state_moment)m, record_call, words[m]));
    CHECK_OK(hotbed_state_dict_add_hook(b.dict, HOTBED_STATE_BEFORE_LOAD, record_call, second));
    CHECK_OK(hotbed_state_dict_collect(b.dict, b.stream));
    CHECK_STRING(calls, "ab");
    CHECK_OK(hotbed_state_dict_load(b.dict, 0, NULL, false, NULL, b.stream));
    CHECK_STRING(calls, "abced");
    answer = HOTBED_ERR_STATE;
    calls[0] = '\0';
    CHECK_STATUS(hotbed_state_dict_collect(b.dict, b.stream), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), "no, says hook a");
    CHECK_STATUS(hotbed_state_dict_load(b.dict, 0, NULL, false, NULL, b.stream), HOTBED_ERR_STATE);
    CHECK_STRING(calls, "ac");
    CHECK_STATUS(
        hotbed_state_dict_add_hook(b.dict, (hotbed_state_moment)4, record_call, NULL),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_state_dict_add_hook(b.dict, HOTBED_STATE_AFTER_LOAD, NULL, NULL),
        HOTBED_ERR_ARGUMENT);
    tear_down(&b);
}

/* --- load ------------------------------------------------------------------------------------- */

/* Make sources of the rows of `images`. */
static uint32_t make_sources(
    const fixture *b, sample_image images[SAMPLE_TABLES], hotbed_state_source *sources) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < hotbed_state_dict_size(b->dict); i++) {
        hotbed_state_tensor t = {.size = sizeof t};
        CHECK_OK(hotbed_state_dict_tensor(b->dict, i, &t));
        const sample_image *image = &images[t.table];
        const void *data = t.kind == HOTBED_STATE_WEIGHT      ? (const void *)image->weights
                           : t.kind == HOTBED_STATE_WEIGHT_ID ? (const void *)image->keys
                           : t.kind == HOTBED_STATE_METADATA  ? (const void *)image->scores
                           : t.kind == HOTBED_STATE_OPTIMIZER ? (const void *)image->states[t.state]
                                                              : NULL;
        if (data == NULL)
            continue;
        sources[n++] = (hotbed_state_source){
            .name = t.name,
            .element = t.element,
            .rows = image->rows,
            .columns = t.columns,
            .data = data,
        };
    }
    return n;
}

static void tensors_are_loaded_by_name(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_image images[SAMPLE_TABLES];
    hotbed_state_source sources[40];
    hotbed_state_report report;
    hotbed_storage *from = sample_create(&shape, b.stream);
    sample_fill(&shape, from, b.stream); /* other values: the generator has advanced */
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++) {
        images[t] = sample_read(from, t, b.stream);
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(b.storage, t, &info));
        CHECK_OK(hotbed_storage_clear(b.storage, t, b.stream));
    }
    uint32_t n = make_sources(&b, images, sources);
    CHECK_OK(hotbed_state_dict_load(b.dict, n, sources, true, &report, b.stream));
    CHECK_EQ(report.num_missing + report.num_unexpected, 0);
    sample_check_same(from, b.storage, b.stream);
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        sample_free(&images[t]);
    hotbed_storage_destroy(from);
    tear_down(&b);
}

/* Make a source of every tensor of a dict. */
static uint32_t pass_on(const hotbed_state_dict *dict, hotbed_state_source *sources) {
    uint32_t n = hotbed_state_dict_size(dict);
    for (uint32_t i = 0; i < n; i++) {
        hotbed_state_tensor t = {.size = sizeof t};
        CHECK_OK(hotbed_state_dict_tensor(dict, i, &t));
        CHECK(t.made);
        sources[i] = (hotbed_state_source){
            .name = t.name,
            .element = t.element,
            .rows = t.rows,
            .columns = t.columns,
            .row_bytes = t.row_bytes,
            .data = t.data,
        };
    }
    return n;
}

static void gathered_tensors_can_be_loaded(hotbed_backend backend) {
    fixture b = set_up(backend);
    hotbed_state_source sources[40];
    hotbed_storage *other = sample_create(&shape, b.stream);
    hotbed_state_dict *dict = NULL;
    CHECK_OK(hotbed_state_dict_create(other, "sparse.embeddings.", &dict));
    CHECK_OK(hotbed_state_dict_gather(b.dict, b.stream));
    uint32_t n = pass_on(b.dict, sources);
    CHECK_OK(hotbed_state_dict_load(dict, n, sources, true, NULL, b.stream));
    hotbed_storage_state state = {.size = sizeof state}; /* steps and clock are not tensors */
    CHECK_OK(hotbed_storage_get_state(b.storage, &state, b.stream));
    CHECK_OK(hotbed_storage_set_state(other, &state, b.stream));
    sample_check_same(b.storage, other, b.stream);
    /* The next collect returns views again. */
    hotbed_state_tensor t = tensor(&b, "sparse.embeddings.item.weight");
    CHECK(t.made && t.row_bytes == 16 && t.pieces == 0);
    CHECK_OK(hotbed_state_dict_collect(b.dict, b.stream));
    t = tensor(&b, "sparse.embeddings.item.weight");
    CHECK(!t.made && t.pieces == 1 && t.row_bytes > 16);
    CHECK_OK(hotbed_state_dict_gather(b.dict, b.stream)); /* a second time */
    CHECK_STATUS(hotbed_state_dict_gather(b.dict, NULL), HOTBED_ERR_ARGUMENT);
    hotbed_state_dict_destroy(dict);
    hotbed_storage_destroy(other);
    tear_down(&b);
}

/* From each mode into each mode. */
static void gathered_tensors_can_be_loaded_in_every_mode(hotbed_backend backend) {
    static const struct {
        hotbed_mode mode;
        uint64_t most;
    } cases[] = {
        {HOTBED_MODE_HBM_DIRECT, 0},   {HOTBED_MODE_CACHE, 0},     {HOTBED_MODE_DEFAULT, 0},
        {HOTBED_MODE_HBM_DIRECT, 256}, {HOTBED_MODE_DEFAULT, 128},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    for (size_t i = 0; i < CASES; i++) {
        fixture from = set_up_mode(backend, cases[i].mode, HOTBED_PLACE_BY_SCORE, cases[i].most);
        fixture to = set_up_mode(
            backend, cases[(i + 1) % CASES].mode, HOTBED_PLACE_BY_SCORE,
            cases[(i + 1) % CASES].most);
        uint64_t pieces = 0;
        hotbed_state_source sources[40];
        check_one_memory(&from, 0, &pieces);
        check_one_memory(&from, 1, &pieces);
        sample_image keys = sample_read(from.storage, 0, from.stream);
        while (keys.rows > 50) /* as many as fit into the smallest mode */
            keys.rows--;
        sample_image rest = sample_read(from.storage, 0, from.stream);
        memmove(rest.keys, rest.keys + keys.rows, (rest.rows - keys.rows) * sizeof *rest.keys);
        rest.rows -= keys.rows;
        sample_erase(from.storage, 0, &rest, from.stream);
        CHECK_OK(hotbed_state_dict_gather(from.dict, from.stream));
        uint32_t n = pass_on(from.dict, sources);
        CHECK_OK(hotbed_state_dict_load(to.dict, n, sources, true, NULL, to.stream));
        for (uint32_t t = 0; t < 2; t++) {
            sample_image x = sample_read(from.storage, t, from.stream);
            sample_image y = sample_read(to.storage, t, to.stream);
            CHECK_EQ(x.rows, y.rows);
            CHECK_BYTES(x.keys, y.keys, x.rows * sizeof *x.keys);
            CHECK_BYTES(x.weights, y.weights, x.rows * x.weight_bytes);
            CHECK_BYTES(x.states[0], y.states[0], x.rows * x.state_bytes[0]);
            CHECK_BYTES(x.states[1], y.states[1], x.rows * x.state_bytes[1]);
            sample_free(&x);
            sample_free(&y);
        }
        sample_free(&keys);
        sample_free(&rest);
        tear_down(&from);
        tear_down(&to);
    }
}

/* A table of capacity 100 grows for 1,000 rows. */
static void tables_grow_for_loaded_rows(hotbed_backend backend) {
    enum { ROWS = 1000 };
    hotbed_storage *storage;
    hotbed_state_dict *dict;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    static float weights[ROWS][2];
    static int64_t keys[ROWS];
    uint64_t found = 0;
    for (int i = 0; i < ROWS; i++)
        keys[i] = 7 * i;
    table.name = "user";
    table.dim = 2;
    table.capacity = 100;
    table.max_capacity = ROWS;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    CHECK_OK(hotbed_state_dict_create(storage, NULL, &dict));
    const hotbed_state_source sources[] = {
        {.name = "embeddings.user.weight",
         .element = HOTBED_ELEMENT_F32,
         .rows = ROWS,
         .columns = 2,
         .data = weights},
        {.name = "embeddings.user.weight_id",
         .element = HOTBED_ELEMENT_I64,
         .rows = ROWS,
         .data = keys},
    };
    CHECK_OK(hotbed_state_dict_load(dict, 2, sources, false, NULL, stream));
    CHECK_OK(hotbed_storage_size(storage, 0, &found, NULL, stream));
    CHECK_EQ(found, ROWS);
    hotbed_state_dict_destroy(dict);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void finish_late(void *argument) {
    const struct timespec time = {.tv_nsec = 20000000};
    (void)nanosleep(&time, NULL);
    __atomic_store_n((bool *)argument, true, __ATOMIC_RELEASE);
}

/* The stream of a load is behind, and an allocation fails: the load waits for the copies that it has enqueued,
 * because they use memory that it frees. The rows are in an external store, for which a load allocates between its
 * copies. */
static void a_failing_load_waits_for_its_copies(hotbed_backend backend) {
    enum { ROWS = 40, DIM = 4 };
    int64_t keys[ROWS];
    float rows[ROWS * DIM];
    const hotbed_state_source sources[] = {
        {.name = "embeddings.t.weight_id",
         .element = HOTBED_ELEMENT_I64,
         .rows = ROWS,
         .data = keys},
        {.name = "embeddings.t.weight",
         .element = HOTBED_ELEMENT_F32,
         .rows = ROWS,
         .columns = DIM,
         .data = rows}};
    hotbed_table_options table;
    hotbed_storage_options options;
    hotbed_external_options store;
    hotbed_external_table stored;
    uint64_t failures = 0;
    for (int i = 0; i < ROWS * DIM; i++) {
        keys[i / DIM] = i / DIM;
        rows[i] = (float)i;
    }
    table = (hotbed_table_options){.size = sizeof table};
    table.name = "t";
    table.dim = DIM;
    table.capacity = 2 * (uint64_t)ROWS;
    table.upper_capacity = 24;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.mode = HOTBED_MODE_CACHE;
    CHECK_OK(hotbed_storage_external_tables(&options, &stored));
    store = (hotbed_external_options){.size = sizeof store, .num_tables = 1, .tables = &stored};
    for (uint64_t n = 1;; n++) {
        fixture b = {.stream = NULL};
        bool finished = false;
        CHECK_OK(hotbed_stream_create(backend, 0, &b.stream));
        CHECK_OK(hotbed_external_create_memory(&store, &options.external));
        CHECK_OK(hotbed_storage_create(&options, b.stream, &b.storage));
        CHECK_OK(hotbed_state_dict_create(b.storage, NULL, &b.dict));
        CHECK_OK(hotbed_stream_call(b.stream, finish_late, &finished));
        fault_arm(n);
        hotbed_status status = hotbed_state_dict_load(b.dict, 2, sources, false, NULL, b.stream);
        bool failed = fault_disarm();
        if (status != HOTBED_OK) {
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            failures++;
        }
        CHECK(__atomic_load_n(&finished, __ATOMIC_ACQUIRE));
        CHECK_OK(hotbed_stream_sync(b.stream));
        tear_down(&b);
        hotbed_external_destroy(options.external);
        if (!failed)
            break;
    }
    CHECK(failures > 0);
}

/* Latch RANGE: prefetch a row number that the static table "geo-x" does not have. */
static void latch_fault(hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_ticket *ticket = NULL;
    hotbed_batch batch = {.size = sizeof batch};
    hotbed_memory keys;
    CHECK_OK(hotbed_ticket_create(storage, SAMPLE_TABLES, 1, stream, &ticket));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, SAMPLE_TABLES * 8, NULL, &keys));
    CHECK_OK(hotbed_fill(keys.data, 0x11, SAMPLE_TABLES * 8, stream));
    batch.batch_size = 1;
    batch.num_keys = SAMPLE_TABLES;
    batch.keys = keys.data;
    CHECK_OK(hotbed_storage_prefetch(storage, &batch, ticket, stream));
    CHECK_OK(hotbed_ticket_cancel(ticket, stream));
    hotbed_ticket_destroy(ticket);
    hotbed_memory_free(&keys);
}

/* The stream's fault is still latched, with the name of its table. */
static void check_latched(hotbed_stream *stream) {
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_RANGE);
    CHECK(strstr(hotbed_last_error(), "geo-x") != NULL);
    CHECK_OK(hotbed_stream_sync(stream));
}

/* Collect, gather, snapshot and save succeed, and leave an earlier call's fault latched. */
static void a_fault_of_earlier_work_stays_latched(hotbed_backend backend) {
    fixture b = set_up(backend);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_snapshot *snapshot = NULL;
    latch_fault(b.storage, b.stream);
    CHECK_OK(hotbed_state_dict_collect(b.dict, b.stream));
    check_latched(b.stream);
    latch_fault(b.storage, b.stream);
    CHECK_OK(hotbed_state_dict_gather(b.dict, b.stream));
    check_latched(b.stream);
    latch_fault(b.storage, b.stream);
    CHECK_OK(hotbed_checkpoint_snapshot_take(&b.storage, 1, &options, b.stream, &snapshot));
    check_latched(b.stream);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    latch_fault(b.storage, b.stream);
    CHECK_OK(hotbed_checkpoint_save(sample_path("full"), &b.storage, 1, &options, b.stream));
    check_latched(b.stream);
    latch_fault(b.storage, b.stream);
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("full"), &b.storage, 1, &options, b.stream),
        HOTBED_ERR_STATE);
    check_latched(b.stream);
    tear_down(&b);
}

/* A load returns an earlier call's fault before it changes anything; the next load succeeds. */
static void a_load_returns_a_fault_of_earlier_work_first(hotbed_backend backend) {
    fixture b = set_up(backend), to = set_up(backend);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_state_source sources[40];
    const char *path = sample_path("full");
    CHECK_OK(hotbed_checkpoint_save(path, &b.storage, 1, &options, b.stream));
    sample_image images[SAMPLE_TABLES];
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        images[t] = sample_read(b.storage, t, b.stream);
    const uint32_t n = make_sources(&b, images, sources);
    hotbed_storage *other = sample_create(&shape, b.stream);
    hotbed_state_dict *dict = NULL;
    CHECK_OK(hotbed_state_dict_create(other, "sparse.embeddings.", &dict));
    latch_fault(other, b.stream);
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        CHECK_OK(hotbed_storage_clear(other, t, b.stream));
    CHECK_STATUS(hotbed_state_dict_load(dict, n, sources, true, NULL, b.stream), HOTBED_ERR_RANGE);
    sample_check_empty(other, b.stream);
    CHECK_OK(hotbed_state_dict_load(dict, n, sources, true, NULL, b.stream));

    /* A load that fails for its arguments leaves the fault latched. */
    latch_fault(to.storage, to.stream);
    CHECK_STATUS(
        hotbed_checkpoint_load(sample_path("none"), &to.storage, 1, NULL, NULL, to.stream),
        HOTBED_ERR_IO);
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &to.storage, 1, NULL, NULL, to.stream), HOTBED_ERR_RANGE);
    CHECK_OK(hotbed_checkpoint_load(path, &to.storage, 1, NULL, NULL, to.stream));
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        sample_free(&images[t]);
    hotbed_state_dict_destroy(dict);
    hotbed_storage_destroy(other);
    tear_down(&to);
    tear_down(&b);
}

/* A load copies chunk by chunk. A key that occurs twice is refused in one chunk and in two, with its name, and
 * before anything is copied. */
static void a_key_that_occurs_twice_is_refused(hotbed_backend backend) {
    enum { ROWS = 60000, DIM = 16, KEY = 1000003 };
    fixture b = set_up(backend);
    hotbed_storage *other = sample_create(&shape, b.stream);
    hotbed_state_dict *dict = NULL;
    CHECK_OK(hotbed_state_dict_create(other, "sparse.embeddings.", &dict));
    uint64_t *keys =
        calloc(2 * ROWS, sizeof *keys); /* every second word, so that rows have a stride */
    float *weights = calloc((size_t)ROWS * DIM, sizeof *weights);
    CHECK(keys != NULL && weights != NULL);
    const hotbed_state_source sources[] = {
        {.name = "sparse.embeddings.user.id.weight",
         .element = HOTBED_ELEMENT_F32,
         .rows = ROWS,
         .columns = DIM,
         .data = weights},
        {.name = "sparse.embeddings.user.id.weight_id",
         .element = HOTBED_ELEMENT_I64,
         .rows = ROWS,
         .row_bytes = 2 * sizeof *keys,
         .data = keys},
    };
    for (uint64_t apart = 1; apart < ROWS; apart += ROWS - 2) {
        for (uint64_t i = 0; i < ROWS; i++)
            keys[2 * i] = i == ROWS - 1 || i == ROWS - 1 - apart ? KEY : i;
        CHECK_STATUS(
            hotbed_state_dict_load(dict, 2, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
        CHECK_STRING(
            hotbed_last_error(),
            "state_dict_load: 'sparse.embeddings.user.id.weight_id': key 1000003 occurs "
            "twice; pass each key once");
        sample_check_empty(other, b.stream);
    }
    free(keys);
    free(weights);
    hotbed_state_dict_destroy(dict);
    hotbed_storage_destroy(other);
    tear_down(&b);
}

static void unmatched_names_are_reported(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_image images[SAMPLE_TABLES];
    hotbed_state_source sources[40];
    hotbed_state_report report;
    hotbed_storage *other = sample_create(&shape, b.stream);
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        images[t] = sample_read(b.storage, t, b.stream);
    uint32_t n = make_sources(&b, images, sources);
    hotbed_state_dict *dict = NULL;
    CHECK_OK(hotbed_state_dict_create(other, "sparse.embeddings.", &dict));

    /* A load without any tensors misses only the static table's names. */
    CHECK_STATUS(hotbed_state_dict_load(dict, 0, NULL, true, &report, b.stream), HOTBED_ERR_STATE);
    CHECK_EQ(report.num_missing, 3);
    CHECK_STRING(report.missing[0], "sparse.embeddings.geo-x.weight");
    CHECK_OK(hotbed_state_dict_load(dict, 0, NULL, false, &report, b.stream));

    /* One name too many: nothing is copied. */
    sources[n] = sources[0];
    sources[n].name = "sparse.embeddings.else.weight";
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n + 1, sources, true, &report, b.stream), HOTBED_ERR_STATE);
    CHECK_EQ(report.num_unexpected, 1);
    CHECK_STRING(report.unexpected[0], "sparse.embeddings.else.weight");
    sample_check_empty(other, b.stream);

    /* Wrong shapes and element types, and a name given twice. */
    hotbed_state_source right = sources[0];
    sources[n].name = sources[0].name;
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n + 1, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
    sources[0].columns++;
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
    sources[0] = right;
    sources[0].element = HOTBED_ELEMENT_F16;
    memset(&report, 0xEE, sizeof report);
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n, sources, false, &report, b.stream), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(report.num_missing + report.num_unexpected, 0);
    sources[0] = right;
    sources[0].row_bytes = 1; /* rows that overlap */
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "row_bytes 1, but its rows have 64 bytes") != NULL);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "row_bytes", .value = 1,
            .limit = 64);
    sources[0] = right;
    for (uint32_t i = 0; i < n; i++) {
        const hotbed_state_source given = sources[i];
        sources[i].rows = (uint64_t)1 << 62;
        sources[i].row_bytes = 0;
        CHECK_STATUS(
            hotbed_state_dict_load(dict, n, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
        CHECK(strstr(hotbed_last_error(), "has 4611686018427387904 rows of") != NULL);
        sources[i] = given;
    }
    uint64_t *scores = images[0].scores, score = scores[3];
    scores[3] = (uint64_t)1 << 52;
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "has 4503599627370496 in row 3") != NULL);
    scores[3] = score;
    sources[0].rows--;
    CHECK_STATUS(
        hotbed_state_dict_load(dict, n, sources, false, NULL, b.stream), HOTBED_ERR_ARGUMENT);
    sample_check_empty(other, b.stream);

    /* A hash table's weight without its keys is ignored. */
    sources[0] = right;
    CHECK_OK(hotbed_state_dict_load(dict, 1, sources, false, NULL, b.stream));
    sample_check_empty(other, b.stream);
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
        sample_free(&images[t]);
    hotbed_state_dict_destroy(dict);
    hotbed_storage_destroy(other);
    tear_down(&b);
}

const hotbed_test hotbed_tests[] = {
    {TEST(names_are_torchrecs)},
    {TEST(views_are_the_memory_that_training_uses)},
    {TEST(rows_of_keys_are_found_in_views_of_every_mode)},
    {TEST(collected_keys_are_in_canonical_order)},
    {TEST(hooks_are_called_in_order)},
    {TEST(tensors_are_loaded_by_name)},
    {TEST(any_prefix_is_accepted)},
    {TEST(gathered_tensors_can_be_loaded)},
    {TEST(gathered_tensors_can_be_loaded_in_every_mode)},
    {TEST(tables_grow_for_loaded_rows)},
    {TEST(a_failing_load_waits_for_its_copies)},
    {TEST(a_fault_of_earlier_work_stays_latched)},
    {TEST(a_load_returns_a_fault_of_earlier_work_first)},
    {TEST(a_key_that_occurs_twice_is_refused)},
    {TEST(unmatched_names_are_reported)},
    {NULL, NULL},
};
