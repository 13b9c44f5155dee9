/* tests/checkpoint/test_checkpoint.c - save and load through the public API, on every backend. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/verify.h"
#include "storage/storage.h"
#include "storage/types.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void save(const char *path, hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_checkpoint_options options = {.size = sizeof options, .step = 77};
    CHECK_OK(hotbed_checkpoint_save(path, &storage, 1, &options, stream));
}

static void round_trip(hotbed_backend backend, const sample *from, const sample *to) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage *a = sample_create(from, stream), *b = sample_create(to, stream);
    const char *path = sample_path("checkpoint");
    uint64_t step = 0;
    sample_fill(from, a, stream);
    sample_fill(to, b, stream); /* rows that the load must remove */
    save(path, a, stream);
    CHECK_OK(sample_load(path, b, NULL, &step, stream));
    CHECK_EQ(step, 77);
    sample_check_same(a, b, stream);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

static void loads_what_was_saved_with_sgd(hotbed_backend backend) {
    sample s = {.optimizer = HOTBED_OPT_SGD};
    round_trip(backend, &s, &s);
}

static void loads_what_was_saved_with_adam(hotbed_backend backend) {
    sample s = {.optimizer = HOTBED_OPT_ADAM, .key_type = HOTBED_KEY_U64};
    round_trip(backend, &s, &s);
}

static void loads_what_was_saved_with_adagrad(hotbed_backend backend) {
    sample s = {.optimizer = HOTBED_OPT_ADAGRAD};
    round_trip(backend, &s, &s);
}

static void loads_what_was_saved_with_rowwise_adagrad(hotbed_backend backend) {
    sample s = {.optimizer = HOTBED_OPT_ROWWISE_ADAGRAD};
    round_trip(backend, &s, &s);
}

static void loads_what_was_saved_with_other_optimizers(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_ROWWISE_ADAGRAD + 1; kind <= HOTBED_OPT_LAST; kind++) {
        sample s = {
            .optimizer = (hotbed_optimizer_kind)kind, .rows = 100, .narrow_states = kind % 2 == 0};
        round_trip(backend, &s, &s);
    }
}

static void loads_into_another_capacity(hotbed_backend backend) {
    sample from = {.optimizer = HOTBED_OPT_ADAM, .rows = 1000, .capacity = 1100};
    sample to = {.optimizer = HOTBED_OPT_ADAM, .rows = 1000, .capacity = 9000};
    round_trip(backend, &from, &to);
}

/* Load into a table that grows to take the rows, and save and load from there into a table of fixed size. */
static void loads_into_a_table_that_grows(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample from = {.rows = 5000, .capacity = 6000};
    sample to = {.rows = 90, .capacity = 100, .max_capacity = 5000};
    hotbed_storage *a = sample_create(&from, stream), *b = sample_create(&to, stream);
    hotbed_storage *c = sample_create(&from, stream);
    const char *path = sample_path("checkpoint"), *again = sample_path("again");
    hotbed_table_info info = {.size = sizeof info};
    sample_fill(&from, a, stream);
    sample_fill(&to, b, stream);
    save(path, a, stream);
    CHECK_OK(hotbed_checkpoint_load(path, &b, 1, NULL, NULL, stream));
    CHECK_OK(hotbed_storage_table(b, 0, &info));
    CHECK_EQ(info.capacity, 5000);
    CHECK_EQ(info.segments, 1);
    sample_check_same(a, b, stream);
    save(again, b, stream);
    CHECK_OK(hotbed_checkpoint_load(again, &c, 1, NULL, NULL, stream));
    sample_check_same(a, c, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_snapshot *snapshot;
    const char *copied = sample_path("copied");
    CHECK_OK(hotbed_checkpoint_snapshot_take(&b, 1, &options, stream, &snapshot));
    CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, copied));
    hotbed_checkpoint_snapshot_destroy(snapshot);
    CHECK_OK(hotbed_checkpoint_load(copied, &c, 1, NULL, NULL, stream));
    sample_check_same(a, c, stream);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_storage_destroy(c);
    hotbed_stream_destroy(stream);
}

/* After a load a table has the space that polls leave for new keys: polls lag behind, so a table that is full
 * to its last slot would refuse the keys of the first batches. */
static void a_loaded_table_has_space_for_new_keys(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample from = {.rows = 5000, .capacity = 6000};
    sample to = {.rows = 90, .capacity = 100, .max_capacity = 60000};
    hotbed_storage *a = sample_create(&from, stream), *b = sample_create(&to, stream);
    const char *path = sample_path("checkpoint");
    hotbed_table_info info = {.size = sizeof info};
    sample_fill(&from, a, stream);
    save(path, a, stream);
    CHECK_OK(hotbed_checkpoint_load(path, &b, 1, NULL, NULL, stream));
    CHECK_OK(hotbed_storage_table(b, 0, &info));
    CHECK_EQ(info.capacity, 5556); /* of which 5,000 are less than 0.9 */
    CHECK_EQ(info.segments, 1);
    for (int i = 0; i < 2; i++) { /* the second poll has the count of the first */
        uint32_t grown;
        CHECK_OK(hotbed_storage_poll_growth(b, stream, &grown));
        CHECK_EQ(grown, 0);
        CHECK_OK(hotbed_stream_sync(stream));
    }
    sample_check_same(a, b, stream);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

/* Each column has more bytes than a chunk and than a block. */
static void loads_a_table_of_many_blocks(hotbed_backend backend) {
    sample s = {
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .rows = hotbed_test_is_small() ? 6000 : 20000,
        .dim = 128};
    round_trip(backend, &s, &s);
}

/* A table that is full to its capacity can be loaded into a table of the same capacity, although its rows arrive in
 * file order. */
static void a_table_that_is_full_is_loaded(hotbed_backend backend) {
    static const uint64_t sizes[] = {1000, 5000, 20000, 60000};
    for (size_t i = 0; i < (hotbed_test_is_small() ? 2 : sizeof sizes / sizeof *sizes); i++) {
        sample s = {.rows = sizes[i], .capacity = sizes[i], .dim = 1};
        round_trip(backend, &s, &s);
    }
}

static void blobs_come_back(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 10};
    hotbed_storage *storage = sample_create(&s, stream);
    unsigned char extra[5000], back[6000];
    uint64_t bytes = sizeof back;
    hotbed_checkpoint_options options = {.size = sizeof options};
    const char *path = sample_path("checkpoint");
    for (size_t i = 0; i < sizeof extra; i++)
        extra[i] = (unsigned char)hotbed_test_random();
    const hotbed_checkpoint_blob blobs[] = {
        {"none", NULL, 0}, {".", extra, sizeof extra}, {"place", extra, 3}};
    options.blobs = blobs;
    options.num_blobs = 3;
    CHECK_OK(hotbed_checkpoint_save(path, &storage, 1, &options, stream));
    CHECK_OK(hotbed_checkpoint_read_blob(path, ".", back, &bytes));
    CHECK_EQ(bytes, sizeof extra);
    CHECK_BYTES(extra, back, sizeof extra);
    CHECK_OK(hotbed_checkpoint_read_blob(path, "none", NULL, &bytes));
    CHECK_EQ(bytes, 0);
    CHECK_OK(hotbed_checkpoint_read_blob(path, "place", NULL, &bytes));
    CHECK_EQ(bytes, 3);
    CHECK_STATUS(hotbed_checkpoint_read_blob(path, "other", back, &bytes), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "has no blob 'other'; it has 3") != NULL);
    bytes = sizeof extra - 1;
    memset(back, 7, sizeof back);
    CHECK_STATUS(hotbed_checkpoint_read_blob(path, ".", back, &bytes), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "5000") != NULL);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "bytes",
            .value = sizeof extra - 1, .limit = sizeof extra, .path = "checkpoint");
    CHECK_EQ(bytes, sizeof extra - 1);
    CHECK_EQ(back[0], 7);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void two_saves_write_the_same_payload(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.optimizer = HOTBED_OPT_ADAM, .narrow_states = true};
    hotbed_storage *a = sample_create(&s, stream), *b = sample_create(&s, stream);
    size_t bytes[2];
    sample_fill(&s, a, stream);
    save(sample_path("one"), a, stream);
    CHECK_OK(hotbed_checkpoint_load(sample_path("one"), &b, 1, NULL, NULL, stream));
    save(sample_path("two"), b, stream);
    unsigned char *x = sample_read_file(sample_path("one/shard-00000-of-00001.h5"), &bytes[0]);
    unsigned char *y = sample_read_file(sample_path("two/shard-00000-of-00001.h5"), &bytes[1]);
    CHECK_EQ(bytes[0], bytes[1]);
    /* The metadata has id and time; the bytes after it are equal, because rows are in canonical order. */
    hotbed_manifest m;
    size_t text_bytes;
    unsigned char *text = sample_read_file(sample_path("one/MANIFEST"), &text_bytes);
    CHECK_OK(hotbed_manifest_parse("MANIFEST", (const char *)text, text_bytes, &m));
    size_t from = m.shards[0].metadata_bytes;
    CHECK(from < bytes[0]);
    CHECK_BYTES(x + from, y + from, bytes[0] - from);
    hotbed_manifest_free(&m);
    free(text);
    free(x);
    free(y);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

static void refuses_a_name_that_exists(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 10};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    const char *path = sample_path("taken");
    CHECK(mkdir(path, 0777) == 0);
    CHECK_STATUS(hotbed_checkpoint_save(path, &storage, 1, &options, stream), HOTBED_ERR_STATE);
    CHECK_EQ(sample_count_names(path), 0);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void takes_paths_of_any_shape(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 10};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    save(sample_path("slashes///"), storage, stream);
    CHECK_OK(hotbed_checkpoint_load(sample_path("slashes"), &storage, 1, NULL, NULL, stream));
    const char *bad[] = {"", "/", "..", "a/..", "x/.tmp-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_STATUS(
            hotbed_checkpoint_save(bad[i], &storage, 1, &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("no/such/parent"), &storage, 1, &options, stream),
        HOTBED_ERR_IO);
    CHECK(
        strstr(
            hotbed_last_error(),
            "no/such, in which parent is to be saved, does not exist: create it") != NULL);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* Two ranks without a communicator, for example, save to one path at the same time. */
static void reports_a_name_that_appears_during_the_save(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 10};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_id id;
    const char *path = sample_path("twice");
    CHECK_OK(hotbed_checkpoint_begin(path, &id));
    CHECK_OK(hotbed_checkpoint_put(path, id, &storage, 1, &options, stream));
    save(path, storage, stream);
    CHECK_STATUS(hotbed_checkpoint_commit(path, id, 1), HOTBED_ERR_STATE);
    CHECK(
        strstr(
            hotbed_last_error(),
            "twice was created meanwhile, by another program or by another rank or thread") !=
        NULL);
    CHECK_OK(hotbed_checkpoint_load(path, &storage, 1, NULL, NULL, stream));
    /* Not even an empty directory is replaced. */
    path = sample_path("empty");
    CHECK_OK(hotbed_checkpoint_begin(path, &id));
    CHECK_OK(hotbed_checkpoint_put(path, id, &storage, 1, &options, stream));
    CHECK_EQ(mkdir(path, 0777), 0);
    CHECK_STATUS(hotbed_checkpoint_commit(path, id, 1), HOTBED_ERR_STATE);
    CHECK_EQ(rmdir(path), 0);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void refuses_wrong_arguments(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 10};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    const char *path = sample_path("never");
    CHECK_STATUS(hotbed_checkpoint_save(NULL, &storage, 1, &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_save: path is NULL");
    CHECK_FIELDS(.parameter = "path");
    CHECK_STATUS(hotbed_checkpoint_save(path, NULL, 0, &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_save: storages has 0 storages, not 1 to 65535");
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "storages", .limit = 1,
            .path = "never");
    CHECK_STATUS(hotbed_checkpoint_save(path, &storage, 1, NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_save: options is NULL");
    CHECK_STATUS(hotbed_checkpoint_save(path, &storage, 1, &options, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_save: stream is NULL");
    hotbed_storage *const twice[] = {storage, storage};
    CHECK_STATUS(hotbed_checkpoint_save(path, twice, 2, &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "two tables have the name '.'") != NULL);
    CHECK_FIELDS(.table = ".", .path = "never");
    static const struct {
        hotbed_checkpoint_blob blobs[2];
        const char *text;
    } wrong[] = {
        {{{"a", NULL, 1}, {"b", NULL, 0}}, "the data of blob 'a' is NULL, but it has 1 bytes"},
        {{{"a", NULL, 0}, {"a", NULL, 0}}, "two blobs 'a'"},
        {{{"a", NULL, 0}, {"a/b", NULL, 0}}, "blobs[1]: 'a/b' is not a name"},
        {{{"a", NULL, 0}, {NULL, NULL, 0}}, "blobs[1]: '(NULL)' is not a name"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.blobs = wrong[i].blobs;
        options.num_blobs = 2;
        CHECK_STATUS(
            hotbed_checkpoint_save(path, &storage, 1, &options, stream), HOTBED_ERR_ARGUMENT);
        CHECK(strstr(hotbed_last_error(), wrong[i].text) != NULL);
    }
    const char *name = "a b";
    options = (hotbed_checkpoint_options){.size = sizeof options, .names = &name};
    CHECK_STATUS(hotbed_checkpoint_save(path, &storage, 1, &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "names[0]: 'a b' is not a name") != NULL);
    options.names = NULL;
    struct {
        hotbed_checkpoint_options options;
        uint32_t newer;
    } wider = {.newer = 1};
    wider.options.size = sizeof wider;
    CHECK_STATUS(
        hotbed_checkpoint_save(path, &storage, 1, &wider.options, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_checkpoint_load(NULL, &storage, 1, NULL, NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_load: path is NULL");
    CHECK_STATUS(hotbed_checkpoint_load(path, NULL, 0, NULL, NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_load: storages has 0 storages, not 1 to 65535");
    CHECK_STATUS(hotbed_checkpoint_load(path, &storage, 1, NULL, NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "checkpoint_load: stream is NULL");
    hotbed_checkpoint_report report = {.size = sizeof report, .capacity = 1};
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &storage, 1, NULL, &report, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_load(path, &storage, 1, NULL, NULL, stream), HOTBED_ERR_IO);
    CHECK(access(path, F_OK) != 0);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* A storage of one table that differs from the saved one in one property. */
typedef struct shape {
    const char *name;
    uint64_t capacity;
    uint32_t dim;
    uint32_t num_tables;
    hotbed_dtype dtype, state_dtype;
    hotbed_table_kind kind;
    hotbed_key_type key_type;
    hotbed_optimizer_kind optimizer;
    bool evicts;
    const char *words[2];  /* words of the expected message */
    const char *parameter; /* of the error, with the saved value; NULL: not checked */
    double value;
} shape;

static hotbed_storage *create_shape(const shape *s, hotbed_stream *stream) {
    hotbed_table_options tables[2];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    tables[0] = (hotbed_table_options){.size = sizeof tables[0]};
    tables[0].name = s->name;
    tables[0].dim = s->dim;
    tables[0].dtype = s->dtype;
    tables[0].state_dtype = s->state_dtype;
    tables[0].kind = s->kind;
    tables[0].evict = s->evicts ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER;
    tables[0].capacity = s->capacity;
    tables[1] = tables[0];
    tables[1].name = "other";
    hotbed_storage_options_init(&options);
    options.num_tables = s->num_tables;
    options.tables = tables;
    options.key_type = s->key_type;
    options.optimizer.kind = s->optimizer;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

static void refuses_a_storage_of_another_shape(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    const shape saved = {
        .name = "t",
        .capacity = 50,
        .dim = 8,
        .num_tables = 1,
        .dtype = HOTBED_F32,
        .kind = HOTBED_TABLE_STATIC,
        .key_type = HOTBED_KEY_I64,
        .optimizer = HOTBED_OPT_ADAM,
    };
    shape others[] = {saved, saved, saved, saved, saved, saved, saved, saved, saved};
    others[0].dim = 12, others[0].words[0] = "8", others[0].words[1] = "12";
    others[1].dtype = HOTBED_BF16, others[1].words[0] = "f32", others[1].words[1] = "bf16";
    others[2].kind = HOTBED_TABLE_HASH, others[2].words[0] = "static", others[2].words[1] = "hash";
    others[3].capacity = 51, others[3].words[0] = "50", others[3].words[1] = "51";
    others[4].key_type = HOTBED_KEY_U64, others[4].words[0] = "i64", others[4].words[1] = "u64";
    others[5].optimizer = HOTBED_OPT_SGD, others[5].words[0] = "adam", others[5].words[1] = "sgd";
    others[6].name = "u", others[6].words[0] = "'u'",
    others[6].words[1] = "no table 'u', which the storage has";
    others[7].num_tables = 2, others[7].words[0] = "'other'", others[7].words[1] = "no table";
    others[8].state_dtype = HOTBED_BF16, others[8].words[0] = "state_dtype is f32";
    others[8].words[1] = "bf16";
    others[0].parameter = "dim", others[0].value = 8;
    others[1].parameter = "dtype", others[1].value = HOTBED_F32;
    others[5].parameter = "optimizer", others[5].value = HOTBED_OPT_ADAM;
    others[8].parameter = "state_dtype", others[8].value = HOTBED_F32;
    const char *path = sample_path("shape");
    hotbed_storage *storage = create_shape(&saved, stream);
    save(path, storage, stream);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        hotbed_storage *other = create_shape(&others[i], stream);
        CHECK_STATUS(hotbed_checkpoint_load(path, &other, 1, NULL, NULL, stream), HOTBED_ERR_STATE);
        CHECK(strstr(hotbed_last_error(), others[i].words[0]) != NULL);
        CHECK(strstr(hotbed_last_error(), others[i].words[1]) != NULL);
        const hotbed_error_detail *detail = hotbed_last_error_detail();
        if (others[i].parameter != NULL)
            CHECK(
                strcmp(detail->parameter, others[i].parameter) == 0 &&
                detail->value == others[i].value && strcmp(detail->table, "t") == 0);
        hotbed_storage_destroy(other);
    }
    hotbed_storage_destroy(storage);
    /* The opposite case: the checkpoint has a table that the storage lacks. */
    storage = create_shape(&others[7], stream);
    path = sample_path("two-tables");
    save(path, storage, stream);
    hotbed_storage_destroy(storage);
    storage = create_shape(&saved, stream);
    CHECK_STATUS(hotbed_checkpoint_load(path, &storage, 1, NULL, NULL, stream), HOTBED_ERR_STATE);
    CHECK(
        strstr(
            hotbed_last_error(), "two-tables has 2 tables, but the storages have 1: the storages "
                                 "have no table 'other'") != NULL);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .value = 2, .limit = 1, .table = "other",
            .path = "two-tables");
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void too_small_a_table_is_full_and_empty(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample from = {.rows = 3000}, to = {.rows = 10, .capacity = 200};
    hotbed_storage *a = sample_create(&from, stream), *b = sample_create(&to, stream);
    const char *path = sample_path("large");
    sample_fill(&from, a, stream);
    save(path, a, stream);
    CHECK_STATUS(hotbed_checkpoint_load(path, &b, 1, NULL, NULL, stream), HOTBED_ERR_FULL);
    sample_check_empty(b, stream);
    sample_fill(&to, b, stream); /* the storage is still usable */
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

static void many_tables_are_saved(hotbed_backend backend) {
    enum { TABLES = 300 };
    static char names[TABLES][16];
    static hotbed_table_options tables[TABLES];
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    for (int i = 0; i < TABLES; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tables[i] = (hotbed_table_options){.size = sizeof tables[i]};
        tables[i].name = names[i];
        tables[i].dim = 3;
        tables[i].capacity = (uint64_t)i % 5 + 1;
        tables[i].kind = HOTBED_TABLE_STATIC;
        tables[i].initializer = (hotbed_initializer){.kind = HOTBED_INIT_NORMAL, .std = 1};
    }
    hotbed_storage_options_init(&options);
    options.num_tables = TABLES;
    options.tables = tables;
    options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    options.seed = 1;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    save(sample_path("many"), storage, stream);
    options.seed = 2;
    hotbed_storage *other = NULL;
    CHECK_OK(hotbed_storage_create(&options, stream, &other));
    CHECK_OK(hotbed_checkpoint_load(sample_path("many"), &other, 1, NULL, NULL, stream));
    sample_check_same(storage, other, stream);
    hotbed_storage_destroy(storage);
    hotbed_storage_destroy(other);
    hotbed_stream_destroy(stream);
}

static shape one_table(uint64_t capacity, bool evicts) {
    shape s = {
        .name = "t",
        .capacity = capacity,
        .dim = 4,
        .num_tables = 1,
        .dtype = HOTBED_F32,
        .key_type = HOTBED_KEY_I64,
        .optimizer = HOTBED_OPT_SGD,
        .evicts = evicts,
    };
    return s;
}

/* The table has fewer slots than the checkpoint has rows: the rows with the highest scores stay. */
static void a_smaller_table_that_evicts_keeps_the_highest_scores(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    shape s = one_table(4000, false);
    enum { ROWS = 2000 };
    static uint64_t keys[ROWS];
    hotbed_memory memory;
    hotbed_storage *from = create_shape(&s, stream);
    s.capacity = 300;
    s.evicts = true;
    hotbed_storage *to = create_shape(&s, stream);
    hotbed_table_info info = {.size = sizeof info};
    uint64_t rows = 0;
    for (uint64_t i = 0; i < ROWS; i++)
        keys[i] = i;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof keys, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, keys, sizeof keys, stream));
    hotbed_rows parts = {.scores = memory.data}; /* the score of a key is the key */
    CHECK_OK(hotbed_storage_set_rows(from, 0, ROWS, memory.data, &parts, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    save(sample_path("many"), from, stream);
    CHECK_OK(hotbed_checkpoint_load(sample_path("many"), &to, 1, NULL, NULL, stream));
    CHECK_OK(hotbed_storage_table(to, 0, &info));
    CHECK_OK(hotbed_storage_export_keys(to, 0, ROWS, keys, NULL, &rows, stream));
    CHECK(rows >= 250 && rows <= info.slots);
    uint64_t high = 0;
    for (uint64_t i = 0; i < rows; i++)
        high += keys[i] >= ROWS / 2 ? 1 : 0;
    CHECK_EQ(high, rows);
    hotbed_memory_free(&memory);
    hotbed_storage_destroy(from);
    hotbed_storage_destroy(to);
    hotbed_stream_destroy(stream);
}

/* Set row `key` of a table of dim 4, and its state, to one value. */
static void set_value(hotbed_storage *storage, uint64_t key, float value, hotbed_stream *stream) {
    float *values = NULL;
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 64, NULL, &memory));
    float row[6] = {0.5F, value, 0.25F, 0.125F};
    memcpy(row + 4, &key, sizeof key);
    values = memory.data;
    CHECK_OK(hotbed_copy(values, row, sizeof row, stream));
    hotbed_rows parts = {.weights = values, .states = {values}};
    CHECK_OK(hotbed_storage_set_rows(storage, 0, 1, (void *)(values + 4), &parts, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_memory_free(&memory);
}

/* A load into a table of another type refuses what the type does not have, and keeps NaN and infinity where
 * it has them. */
static void a_value_that_the_type_of_the_table_lacks_is_refused(hotbed_backend backend) {
    static const struct {
        hotbed_dtype dtype, state_dtype;
        hotbed_table_kind kind;
        float value;
        const char *error; /* NULL: the value is loaded */
    } cases[] = {
        {HOTBED_INT8, HOTBED_F32, HOTBED_TABLE_HASH, 1e6F, "int8 does not have the value 1e+06"},
        {HOTBED_INT8, HOTBED_F32, HOTBED_TABLE_HASH, NAN, "int8 does not have the value nan"},
        {HOTBED_INT8, HOTBED_F32, HOTBED_TABLE_HASH, 65504.0F, NULL},
        {HOTBED_F16, HOTBED_F32, HOTBED_TABLE_STATIC, -65520.0F,
         "f16 does not have the value -65520"},
        {HOTBED_F16, HOTBED_F32, HOTBED_TABLE_HASH, 65519.0F, NULL},
        {HOTBED_F16, HOTBED_F32, HOTBED_TABLE_HASH, -INFINITY, NULL},
        {HOTBED_BF16, HOTBED_F32, HOTBED_TABLE_HASH, 3.4e38F,
         "bf16 does not have the value 3.4e+38"},
        {HOTBED_BF16, HOTBED_F32, HOTBED_TABLE_STATIC, NAN, NULL},
        {HOTBED_FP8, HOTBED_F32, HOTBED_TABLE_HASH, INFINITY, "fp8 does not have the value inf"},
        {HOTBED_FP8, HOTBED_F32, HOTBED_TABLE_HASH, 3.4e38F, NULL},
        {HOTBED_FP8, HOTBED_F32, HOTBED_TABLE_HASH, NAN, NULL},
        {HOTBED_F32, HOTBED_BF16, HOTBED_TABLE_HASH, 3.4e38F,
         "state sum: bf16 does not have the value 3.4e+38"},
        {HOTBED_F32, HOTBED_BF16, HOTBED_TABLE_HASH, 3.3e38F, NULL},
    };
    hotbed_stream *stream = sample_stream(backend);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shape s = one_table(50, false);
        s.optimizer = HOTBED_OPT_ADAGRAD;
        s.kind = cases[i].kind;
        hotbed_storage *from = create_shape(&s, stream), *to = NULL;
        s.dtype = cases[i].dtype;
        s.state_dtype = cases[i].state_dtype;
        to = create_shape(&s, stream);
        set_value(from, 7, cases[i].value, stream);
        save(sample_path("values"), from, stream);
        hotbed_checkpoint_report report = {.size = sizeof report};
        const hotbed_status status =
            hotbed_checkpoint_load(sample_path("values"), &to, 1, NULL, &report, stream);
        CHECK_STATUS(status, cases[i].error == NULL ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
        if (cases[i].error != NULL) {
            CHECK(strstr(hotbed_last_error(), cases[i].error) != NULL);
            CHECK(strstr(hotbed_last_error(), "table 't', key 7") != NULL);
            CHECK_EQ(hotbed_last_error_detail()->key, 7);
            CHECK_STRING(hotbed_last_error_detail()->table, "t");
        }
        sample_remove(sample_path("values"));
        hotbed_storage_destroy(from);
        hotbed_storage_destroy(to);
    }
    hotbed_stream_destroy(stream);
}

/* A table that evicts has filled every slot.  A table of the same size, which receives the rows in another
 * order, takes as many; a table a third larger has the same rows. */
static void a_full_table_that_evicts_keeps_its_capacity(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    const shape s = one_table(3000, true), more = one_table(4000, true);
    enum { ROWS = 1500, TIMES = 12 };
    static uint64_t keys[TIMES * ROWS];
    hotbed_memory memory;
    hotbed_storage *from = create_shape(&s, stream), *to = create_shape(&s, stream);
    hotbed_storage *larger = create_shape(&more, stream);
    hotbed_table_info info = {.size = sizeof info};
    uint64_t rows = 0;
    for (uint64_t i = 0; i < TIMES * ROWS; i++)
        keys[i] = i * 0x9E3779B97F4A7C15U;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof keys, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, keys, sizeof keys, stream));
    for (uint64_t i = 0; i < TIMES; i++)
        CHECK_OK(hotbed_storage_offer_rows(
            from, 0, ROWS, (uint64_t *)memory.data + i * ROWS, NULL, stream));
    CHECK_OK(hotbed_storage_table(from, 0, &info));
    CHECK_OK(hotbed_storage_size(from, 0, &rows, NULL, stream));
    CHECK_EQ(rows, info.slots);
    save(sample_path("full"), from, stream);
    CHECK_OK(hotbed_checkpoint_load(sample_path("full"), &to, 1, NULL, NULL, stream));
    CHECK_OK(hotbed_storage_size(to, 0, &rows, NULL, stream));
    CHECK_EQ(rows, info.slots);
    CHECK_OK(hotbed_checkpoint_load(sample_path("full"), &larger, 1, NULL, NULL, stream));
    sample_check_same(from, larger, stream);
    hotbed_memory_free(&memory);
    hotbed_storage_destroy(from);
    hotbed_storage_destroy(to);
    hotbed_storage_destroy(larger);
    hotbed_stream_destroy(stream);
}

/* A save beside the prefetch of the next batch has the rows as they are. A load would take the rows
 * away from under the ticket. */
static void saves_and_refuses_to_load_while_tickets_hold_rows(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.optimizer = HOTBED_OPT_SGD};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_ticket *ticket = NULL;
    hotbed_batch batch = {.size = sizeof batch};
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_memory keys;
    const char *path = sample_path("held");
    save(sample_path("free"), storage, stream);
    CHECK_OK(hotbed_ticket_create(storage, SAMPLE_TABLES, 1, stream, &ticket));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, SAMPLE_TABLES * 8, NULL, &keys));
    CHECK_OK(hotbed_fill(keys.data, 0, SAMPLE_TABLES * 8, stream));
    batch.batch_size = 1;
    batch.num_keys = SAMPLE_TABLES;
    batch.keys = keys.data;
    CHECK_OK(hotbed_storage_prefetch(storage, &batch, ticket, stream));
    hotbed_checkpoint_snapshot *snapshot = NULL;
    CHECK_OK(hotbed_checkpoint_save(path, &storage, 1, &options, stream));
    CHECK_OK(hotbed_checkpoint_snapshot_take(&storage, 1, &options, stream, &snapshot));
    CHECK_STATUS(
        hotbed_checkpoint_load(sample_path("free"), &storage, 1, NULL, NULL, stream),
        HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "tickets hold") != NULL);
    CHECK_EQ(hotbed_last_error_detail()->cause, HOTBED_CAUSE_HELD);
    CHECK_OK(hotbed_ticket_cancel(ticket, stream));
    CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, sample_path("copied")));
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_storage *other = sample_create(&s, stream);
    const char *const paths[] = {path, sample_path("copied")};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hotbed_checkpoint_load(paths[i], &other, 1, NULL, NULL, stream));
        sample_check_same(storage, other, stream);
    }
    hotbed_storage_destroy(other);
    hotbed_ticket_destroy(ticket);
    hotbed_memory_free(&keys);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* A prefetch after the largest count: the checkpoint that is saved then can be loaded. */
static void the_largest_count_of_prefetches_is_loaded(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.optimizer = HOTBED_OPT_SGD};
    hotbed_storage *storage = sample_create(&s, stream);
    hotbed_storage_state state = {.size = sizeof state};
    const uint64_t keys[SAMPLE_TABLES] = {0};
    CHECK_OK(hotbed_storage_get_state(storage, &state, stream));
    state.clock = ((uint64_t)1 << 52) - 1;
    CHECK_OK(hotbed_storage_set_state(storage, &state, stream));
    sample_see(storage, 1, SAMPLE_TABLES, keys, stream);
    save(sample_path("full"), storage, stream);
    CHECK_OK(hotbed_checkpoint_load(sample_path("full"), &storage, 1, NULL, NULL, stream));
    CHECK_OK(hotbed_storage_get_state(storage, &state, stream));
    CHECK_EQ(state.clock, ((uint64_t)1 << 52) - 1);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* A bit that changes anywhere in a shard is found without a storage. */
static void a_check_finds_damage(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample s = {.rows = 100};
    hotbed_storage *storage = sample_create(&s, stream);
    const char *path = sample_path("checked");
    char shard[300];
    size_t bytes = 0;
    sample_fill(&s, storage, stream);
    save(path, storage, stream);
    CHECK_OK(hotbed_checkpoint_check(path));
    CHECK_OK(hotbed_checkpoint_verify_quick(&hotbed_io_system, path));
    snprintf(shard, sizeof shard, "%s/shard-00000-of-00001.h5", path);
    unsigned char *data = sample_read_file(shard, &bytes);
    for (int i = 0; i < 20; i++) {
        size_t at = hotbed_test_random() % bytes;
        data[at] ^= 1;
        sample_write_file(shard, data, bytes);
        CHECK_STATUS(hotbed_checkpoint_check(path), HOTBED_ERR_CORRUPT);
        data[at] ^= 1;
    }
    sample_write_file(shard, data, bytes - 1);
    CHECK_STATUS(hotbed_checkpoint_verify_quick(&hotbed_io_system, path), HOTBED_ERR_CORRUPT);
    sample_write_file(shard, data, bytes);
    data[100] ^= 1; /* of the metadata */
    sample_write_file(shard, data, bytes);
    CHECK_STATUS(hotbed_checkpoint_verify_quick(&hotbed_io_system, path), HOTBED_ERR_CORRUPT);
    free(data);
    CHECK_STATUS(hotbed_checkpoint_check(sample_path("none")), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_checkpoint_check(NULL), HOTBED_ERR_ARGUMENT);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* A storage of one table whose initializer and admission may draw random numbers. */
typedef struct drawing {
    hotbed_table_kind kind;
    hotbed_initializer_kind initializer;
    hotbed_admission admission;
} drawing;

static hotbed_storage *create_drawing(const drawing *d, uint64_t seed, hotbed_stream *stream) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage;
    table.name = "t";
    table.dim = 4;
    table.capacity = 20;
    table.kind = d->kind;
    table.initializer =
        (hotbed_initializer){.kind = d->initializer, .lower = -1, .upper = 1, .std = 1};
    table.admission = d->admission;
    table.admission_probability = d->admission == HOTBED_ADMIT_PROBABILISTIC ? 0.5F : 0;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    options.seed = seed;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

/* New keys then get other rows than in the run that saved the checkpoint, if a hash table draws random numbers and the
 * checkpoint is of a training run. */
static void another_seed_is_reported(hotbed_backend backend) {
    static const struct {
        uint64_t seed, steps;
        drawing storage;
        bool reported;
    } cases[] = {
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_UNIFORM, HOTBED_ADMIT_ALL}, true},
        {1, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_UNIFORM, HOTBED_ADMIT_ALL}, false},
        {2, 0, {HOTBED_TABLE_HASH, HOTBED_INIT_UNIFORM, HOTBED_ADMIT_ALL}, false},
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_NORMAL, HOTBED_ADMIT_ALL}, true},
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_TRUNCATED_NORMAL, HOTBED_ADMIT_ALL}, true},
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_CONSTANT, HOTBED_ADMIT_ALL}, false},
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_DEBUG, HOTBED_ADMIT_ALL}, false},
        {2, 5, {HOTBED_TABLE_HASH, HOTBED_INIT_CONSTANT, HOTBED_ADMIT_PROBABILISTIC}, true},
        {2, 5, {HOTBED_TABLE_STATIC, HOTBED_INIT_UNIFORM, HOTBED_ADMIT_ALL}, false},
    };
    hotbed_stream *stream = sample_stream(backend);
    char name[16], text[256];
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hotbed_storage_state state = {.size = sizeof state};
        hotbed_storage *from = create_drawing(&cases[i].storage, 1, stream);
        hotbed_storage *to = create_drawing(&cases[i].storage, cases[i].seed, stream);
        (void)snprintf(name, sizeof name, "seed-%u", i);
        CHECK_OK(hotbed_storage_get_state(from, &state, stream));
        state.optimizer_steps = cases[i].steps;
        CHECK_OK(hotbed_storage_set_state(from, &state, stream));
        save(sample_path(name), from, stream);
        CHECK_OK(hotbed_checkpoint_load(sample_path(name), &to, 1, NULL, NULL, stream));
        CHECK_EQ(to->seed, cases[i].seed);
        CHECK_OK(hotbed_storage_warning(to, text, sizeof text, NULL));
        CHECK_STRING(
            text, cases[i].reported ? "the checkpoint was saved with seed 1, but the storage has "
                                      "seed 2: new keys get other initial "
                                      "rows than in the run that saved it"
                                    : "");
        CHECK_OK(hotbed_storage_warning(to, text, sizeof text, NULL));
        CHECK_STRING(text, ""); /* a warning is returned once */
        hotbed_storage_destroy(from);
        hotbed_storage_destroy(to);
    }
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(loads_what_was_saved_with_other_optimizers)},
    {TEST(another_seed_is_reported)},
    {TEST(loads_what_was_saved_with_sgd)},
    {TEST(loads_what_was_saved_with_adam)},
    {TEST(loads_what_was_saved_with_adagrad)},
    {TEST(loads_what_was_saved_with_rowwise_adagrad)},
    {TEST(loads_into_another_capacity)},
    {TEST(loads_into_a_table_that_grows)},
    {TEST(a_loaded_table_has_space_for_new_keys)},
    {TEST(loads_a_table_of_many_blocks)},
    {TEST(a_table_that_is_full_is_loaded)},
    {TEST(blobs_come_back)},
    {TEST(two_saves_write_the_same_payload)},
    {TEST(refuses_a_name_that_exists)},
    {TEST(reports_a_name_that_appears_during_the_save)},
    {TEST(takes_paths_of_any_shape)},
    {TEST(refuses_wrong_arguments)},
    {TEST(refuses_a_storage_of_another_shape)},
    {TEST(too_small_a_table_is_full_and_empty)},
    {TEST(many_tables_are_saved)},
    {TEST(a_smaller_table_that_evicts_keeps_the_highest_scores)},
    {TEST(a_full_table_that_evicts_keeps_its_capacity)},
    {TEST(a_value_that_the_type_of_the_table_lacks_is_refused)},
    {TEST(saves_and_refuses_to_load_while_tickets_hold_rows)},
    {TEST(the_largest_count_of_prefetches_is_loaded)},
    {TEST(a_check_finds_damage)},
    {NULL, NULL},
};
