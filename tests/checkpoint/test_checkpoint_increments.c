/* tests/checkpoint/test_checkpoint_increments.c - increments: their content, replay by any number of ranks,
 * wrong chains, compaction, and admission counts. */
#include "base/stream.h"
#include "checkpoint/mark.h"
#include "checkpoint/rewrite.h"
#include "checkpoint/verify.h"
#include "storage/types.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STEPS = 4 };

/* Save a full checkpoint of n ranks and three increments; the returned paths are static. */
static const char *const *save_chain(
    ranks *r, const ranks_shape *shape, uint32_t n, hotbed_stream *stream) {
    static const char *paths[STEPS];
    ranks_create(r, shape, n, stream);
    ranks_mark(r);
    for (int i = 0; i < STEPS; i++)
        paths[i] = sample_path(i == 0 ? "full" : i == 1 ? "one" : i == 2 ? "two" : "three");
    ranks_change(r, 1, 0, 2); /* every other key */
    ranks_save(r, paths[0]);
    ranks_change(r, 2, 1, 4); /* new keys */
    ranks_erase(r, 0, 8);     /* erased keys */
    ranks_save_after(r, paths[1], paths[0]);
    ranks_change(r, 3, 0, 16); /* some erased keys return */
    ranks_change(r, 3, 2, 10);
    ranks_save_after(r, paths[2], paths[1]);
    ranks_erase(r, 1, 3);
    ranks_save_after(r, paths[3], paths[2]);
    return paths;
}

static hotbed_status open_chain(const char *const *paths, uint32_t n, hotbed_chain *chain) {
    return hotbed_chain_open(&hotbed_io_system, paths, n, chain);
}

static void remove_chain(const char *const *paths) {
    for (int i = 0; i < STEPS; i++)
        sample_remove(paths[i]);
}

/* Replay by m ranks, or compaction to m shards, gives the rows of a full checkpoint saved at the end. */
static void replay(hotbed_stream *stream, uint32_t n, uint32_t m, uint32_t turn) {
    ranks from, to;
    ranks_shape shape = {
        .optimizer = (hotbed_optimizer_kind)(HOTBED_OPT_SGD + turn % HOTBED_OPT_LAST),
        .route = (hotbed_route_kind)(turn / 7 % 3),
        .score = turn % 3 == 0 ? HOTBED_SCORE_TIMESTAMP_LFU : HOTBED_SCORE_STEP,
        .tracks = turn % 4 >= 2,
    };
    const char *const *paths = save_chain(&from, &shape, n, stream);
    ranks_create(&to, &shape, m, stream);
    ranks_fill(&to, 9); /* rows that the load must remove */
    ranks_load_chain(&to, paths[0], paths + 1, STEPS - 1, &hotbed_io_system);
    ranks_check(&to, &from);

    const char *compact = sample_path("compact"), *full = sample_path("again");
    hotbed_chain chain;
    hotbed_rewrite_options options = {.world = m, .block_bytes = 4096};
    CHECK_OK(open_chain(paths, STEPS, &chain));
    chain.held_bytes = turn % 2; /* 1: blocks are given out in the smallest pieces */
    CHECK_OK(hotbed_checkpoint_rewrite(&hotbed_io_system, &chain, compact, &options));
    hotbed_chain_close(&chain);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, compact, NULL));
    ranks_save(&from, full);
    hotbed_manifest a = ranks_manifest(compact), b = ranks_manifest(full);
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        CHECK_EQ(a.tables[t].rows, b.tables[t].rows);
        CHECK_BYTES(&a.tables[t].content, &b.tables[t].content, sizeof a.tables[t].content);
    }
    CHECK(!a.increment);
    hotbed_manifest_free(&a);
    hotbed_manifest_free(&b);
    sample_remove(compact);
    sample_remove(full);
    remove_chain(paths);
    ranks_destroy(&from);
    ranks_destroy(&to);
}

static void increments_are_replayed_by_any_number_of_ranks(hotbed_backend backend) {
    static const uint32_t worlds[][2] = {{1, 1}, {1, 3}, {2, 1}, {3, 2}, {2, 5}, {4, 4},
                                         {5, 7}, {7, 8}, {8, 3}, {3, 3}, {4, 1}, {1, 16}};
    hotbed_stream *stream = sample_stream(backend);
    for (uint32_t i = 0; i < sizeof worlds / sizeof *worlds; i += hotbed_test_is_small() ? 4 : 1)
        replay(stream, worlds[i][0], worlds[i][1], i);
    uint32_t pairs = RANKS_WORLDS * RANKS_WORLDS;
    for (uint32_t i = 0; ranks_whole() && i < 4 * pairs; i++) /* each optimizer in turn */
        replay(
            stream, ranks_worlds[i % pairs / RANKS_WORLDS], ranks_worlds[i % RANKS_WORLDS],
            i / pairs + 4 * (i % 3));
    hotbed_stream_destroy(stream);
}

/* A load skips rows that a later increment replaces, but still checks their bytes in a block that is given
 * out in pieces. */
static void damage_is_found_in_pieces_of_blocks(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    enum { BYTES = 3 * sizeof(uint16_t) }; /* of a state of a row */
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .rows = RANKS_KEYS};
    const char *paths[] = {sample_path("full"), sample_path("one")}, *made = sample_path("made");
    const char *file = sample_path("full/shard-00000-of-00001.h5");
    hotbed_io_calls calls = ranks_calls();
    hotbed_rewrite_options options = {.world = 1};
    ranks_create(&r, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, paths[0]);
    ranks_change(&r, 2, RANKS_KEYS - 50, 1);
    ranks_save_after(&r, paths[1], paths[0]);
    hotbed_manifest m = ranks_manifest(paths[0]);
    size_t bytes;
    unsigned char *data = sample_read_file(file, &bytes);
    const hotbed_extent *states = &m.parts[1].columns[HOTBED_COLUMN_STATE]; /* of table "static" */
    CHECK_EQ(states->bytes, RANKS_KEYS * BYTES); /* the last block begins before the changed rows */
    for (uint64_t row = 0; row < RANKS_KEYS; row += hotbed_test_is_small() ? 9 : 1) {
        hotbed_chain chain;
        data[states->offset + row * BYTES] ^= 1;
        sample_write_file(file, data, bytes);
        CHECK_OK(hotbed_chain_open(&calls, paths, 2, &chain));
        chain.held_bytes = 1;
        CHECK_STATUS(hotbed_checkpoint_rewrite(&calls, &chain, made, &options), HOTBED_ERR_CORRUPT);
        hotbed_chain_close(&chain);
        data[states->offset + row * BYTES] ^= 1;
    }
    free(data);
    hotbed_manifest_free(&m);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

/* An increment has exactly the changed rows and the erased keys. */
static void an_increment_has_what_changed(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM};
    ranks_create(&r, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, sample_path("full"));
    ranks_save_after(&r, sample_path("same"), sample_path("full"));
    ranks_change(&r, 2, 0, 100);  /* 4 keys, 1 row, 1 key */
    ranks_change(&r, 1, 50, 100); /* no new keys */
    ranks_erase(&r, 1, 200);      /* 2 keys, and 1 key */
    ranks_save_after(&r, sample_path("some"), sample_path("same"));
    hotbed_manifest same = ranks_manifest(sample_path("same"));
    hotbed_manifest some = ranks_manifest(sample_path("some"));
    const uint64_t rows[RANKS_TABLES] = {4, 1, 1}, erased[RANKS_TABLES] = {2, 0, 1};
    CHECK(same.increment && some.increment);
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        CHECK_EQ(same.tables[t].rows, 0);
        CHECK_EQ(same.parts[t].erased, 0);
        CHECK_EQ(some.tables[t].rows, rows[t]);
        CHECK_EQ(some.parts[t].erased, erased[t]);
    }
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("some"), NULL));
    hotbed_manifest_free(&same);
    hotbed_manifest_free(&some);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

/* With tables that record their changes: what was written, also with the same bytes. */
static void check_touched(hotbed_backend backend, bool stored) {
    hotbed_stream *stream = sample_stream(backend);
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .tracks = true, .stored = stored};
    ranks_create(&r, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, sample_path("full"));
    ranks_save_after(&r, sample_path("same"), sample_path("full"));
    ranks_change(&r, 1, 0, 100); /* 4 keys, 1 row, 1 key, which have these bytes */
    ranks_erase(&r, 1, 200);     /* 2 keys, and 1 key */
    ranks_save_after(&r, sample_path("some"), sample_path("same"));
    hotbed_manifest same = ranks_manifest(sample_path("same"));
    hotbed_manifest some = ranks_manifest(sample_path("some"));
    const uint64_t rows[RANKS_TABLES] = {4, 1, 1}, erased[RANKS_TABLES] = {2, 0, 1};
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        CHECK_EQ(same.tables[t].rows + same.parts[t].erased, 0);
        CHECK_EQ(some.tables[t].rows, rows[t]);
        CHECK_EQ(some.parts[t].erased, erased[t]);
        const hotbed_mark_table *mark = &r.marks[0]->last.tables[t]; /* no memory for each row */
        CHECK(mark->rows == 0 && mark->keys == NULL && mark->digests == NULL);
    }
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("some"), NULL));
    hotbed_manifest_free(&same);
    hotbed_manifest_free(&some);

    hotbed_checkpoint_options options = ranks_options(&r, 0);
    hotbed_storage *const *storage = &r.storages[0];
    options.mark = r.marks[0];
    options.touched = 2;
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("whole"), storage, 1, &options, stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "touched", .value = 2,
            .limit = 1, .path = "/whole");
    options.touched = 1;
    hotbed_checkpoint_snapshot *none;
    CHECK_STATUS(
        hotbed_checkpoint_snapshot_take(storage, 1, &options, stream, &none), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error_detail()->parameter, "touched");
    CHECK_OK(hotbed_checkpoint_save(sample_path("whole"), storage, 1, &options, stream));
    options.parent = sample_path("whole");
    options.touched = 0; /* there are no digests */
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("after"), storage, 1, &options, stream),
        HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "no digests") != NULL);
    options.touched = 1;
    CHECK_OK(hotbed_checkpoint_save(sample_path("after"), storage, 1, &options, stream));
    options.parent = sample_path("after");
    CHECK_OK(hotbed_storage_clear(r.storages[0], 0, stream)); /* of which no log has the keys */
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("lost"), storage, 1, &options, stream),
        HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error_detail()->parameter, "touched");
    options.parent = NULL;
    CHECK_OK(hotbed_checkpoint_save(sample_path("lost"), storage, 1, &options, stream));
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void an_increment_has_what_was_touched(hotbed_backend backend) {
    check_touched(backend, false);
}

static void an_increment_over_a_store_has_what_was_touched(hotbed_backend backend) {
    check_touched(backend, true);
}

static hotbed_storage *two_tiers(hotbed_stream *stream, uint32_t rows) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    table.name = "rows", table.dim = 2, table.capacity = rows;
    table.kind = HOTBED_TABLE_STATIC;
    table.upper_capacity = rows / 4;
    table.track_changes = 1;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    options.mode = HOTBED_MODE_DEFAULT;
    options.optimizer.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

/* Rows of a STATIC table are exported tier by tier, so not in the order of their numbers. */
static void changed_rows_of_two_tiers_are_in_order(hotbed_backend backend) {
    enum { ROWS = 64, SOME = 24 };
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage *storage = two_tiers(stream, ROWS);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_load_options load;
    CHECK_OK(hotbed_checkpoint_mark_create(&options.mark));
    options.touched = 1;
    CHECK_OK(hotbed_checkpoint_save(sample_path("full"), &storage, 1, &options, stream));
    struct {
        uint64_t keys[ROWS];
        float rows[2][ROWS][2];
        uint8_t found[ROWS];
    } * data;
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, sizeof *data, NULL, &memory));
    data = memory.data;
    hotbed_rows of[2] = {{.weights = data->rows[0]}, {.weights = data->rows[1]}};
    for (uint64_t i = 0; i < SOME; i++) { /* from the last row on */
        data->keys[i] = ROWS - 1 - 2 * i;
        data->rows[0][i][0] = (float)data->keys[i];
        data->rows[0][i][1] = 1.0F;
    }
    CHECK_OK(hotbed_storage_set_rows(storage, 0, SOME, data->keys, &of[0], stream));
    options.parent = sample_path("full");
    CHECK_OK(hotbed_checkpoint_save(sample_path("some"), &storage, 1, &options, stream));
    hotbed_checkpoint_mark_destroy(options.mark);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("some"), NULL));
    hotbed_storage *loaded = two_tiers(stream, ROWS);
    const char *increment = sample_path("some");
    load = (hotbed_checkpoint_load_options){
        .size = sizeof load, .num_increments = 1, .increments = &increment};
    CHECK_OK(hotbed_checkpoint_load(sample_path("full"), &loaded, 1, &load, NULL, stream));
    for (uint64_t key = 0; key < ROWS; key++)
        data->keys[key] = key;
    for (int i = 0; i < 2; i++)
        CHECK_OK(hotbed_storage_get_rows(
            i == 0 ? storage : loaded, 0, ROWS, data->keys, &of[i], data->found, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_BYTES(data->rows[1], data->rows[0], sizeof data->rows[0]);
    hotbed_memory_free(&memory);
    hotbed_storage_destroy(loaded);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static hotbed_status load_all(
    ranks *r, const char *path, const char *const *increments, uint32_t n) {
    hotbed_checkpoint_load_options options = {.size = sizeof options};
    options.share = ranks_options(r, 0).share;
    options.num_increments = n;
    options.increments = increments;
    return hotbed_checkpoint_load(path, &r->storages[0], 1, &options, NULL, r->stream);
}

/* Chains with gaps, repeats or a wrong order are refused, and the storage is unchanged. */
static void increments_out_of_order_are_refused(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    ranks from, to;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAGRAD};
    const char *const *p = save_chain(&from, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_fill(&to, 9);
    const struct {
        const char *path;
        const char *increments[3];
        uint32_t n;
    } cases[] = {
        {p[1], {NULL}, 0},             /* does not begin with a full checkpoint */
        {p[1], {p[2], p[3]}, 2},       /* the full checkpoint is missing */
        {p[0], {p[2]}, 1},             /* a gap */
        {p[0], {p[1], p[3]}, 2},       /* an increment of another parent */
        {p[0], {p[1], p[1]}, 2},       /* an increment twice */
        {p[0], {p[2], p[1]}, 2},       /* reversed */
        {p[0], {p[0]}, 1},             /* a full checkpoint as an increment */
        {p[0], {p[1], p[2], p[1]}, 3}, /* an increment again after its successor */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const *increments = cases[i].increments;
        CHECK_STATUS(load_all(&to, cases[i].path, increments, cases[i].n), HOTBED_ERR_STATE);
        ranks_check(&to, &to);
        const char *paths[4] = {cases[i].path, increments[0], increments[1], increments[2]};
        hotbed_chain chain;
        CHECK_STATUS(open_chain(paths, cases[i].n + 1, &chain), HOTBED_ERR_STATE);
        hotbed_chain_close(&chain);
    }
    /* The message names the parent's id, and the checkpoint before with its own. */
    hotbed_manifest first = ranks_manifest(p[0]), second = ranks_manifest(p[1]);
    char text_of[1024];
    snprintf(
        text_of, sizeof text_of, "its parent has the id %s, but %s has the id %s",
        hotbed_digest_text(second.id).text, p[0], hotbed_digest_text(first.id).text);
    CHECK_STATUS(load_all(&to, p[0], p + 2, 1), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), text_of) != NULL);
    hotbed_manifest_free(&first);
    hotbed_manifest_free(&second);
    const char *missing[] = {p[1], NULL};
    CHECK_STATUS(load_all(&to, p[0], missing, 2), HOTBED_ERR_ARGUMENT);
    missing[1] = "/no/such/path";
    CHECK_STATUS(load_all(&to, p[0], missing, 2), HOTBED_ERR_IO);
    /* A parent with the same id but other bytes. */
    size_t bytes;
    unsigned char *text = sample_read_file(sample_path("one/MANIFEST"), &bytes);
    hotbed_manifest m;
    char *changed = NULL;
    CHECK_OK(hotbed_manifest_parse("MANIFEST", (const char *)text, bytes, &m));
    m.step++;
    CHECK_OK(hotbed_manifest_print(&m, &changed, &bytes));
    sample_write_file(sample_path("one/MANIFEST"), changed, bytes);
    CHECK_STATUS(load_all(&to, p[0], p + 1, 3), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "digest") != NULL);
    ranks_check(&to, &to);
    hotbed_delete(changed);
    hotbed_manifest_free(&m);
    free(text);
    ranks_destroy(&from);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* A mark belongs to the checkpoint that was last saved with it; a save that fails does not change it. */
static void a_mark_belongs_to_one_checkpoint(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    ranks r, to;
    ranks_shape shape = {.optimizer = HOTBED_OPT_SGD};
    hotbed_checkpoint_options options = {.size = sizeof options};
    ranks_create(&r, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    hotbed_storage *storage = r.storages[0];
    const char *full = sample_path("full"), *one = sample_path("one"), *two;
    options.parent = full;
    CHECK_STATUS(hotbed_checkpoint_save(one, &storage, 1, &options, stream), HOTBED_ERR_ARGUMENT);
    options.mark = r.marks[0];
    CHECK_STATUS(hotbed_checkpoint_save(one, &storage, 1, &options, stream), HOTBED_ERR_IO);
    ranks_save(&r, full);
    ranks_save(&r, sample_path("other"));
    ranks_save(&r, sample_path("last")); /* the mark now belongs to "last" */
    CHECK_STATUS(hotbed_checkpoint_save(one, &storage, 1, &options, stream), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "full checkpoint") != NULL);
    /* A failing increment leaves nothing, and the next one has the changes since the last successful save. */
    sample_disk disk;
    for (uint64_t n = 1;; n += hotbed_test_is_small() ? 5 : 1) {
        const char *base = sample_path("base");
        ranks_save(&r, base);
        ranks_change(&r, 1 + (uint32_t)n, 0, 7);
        sample_disk_init(&disk, SAMPLE_FAULT_EIO, n);
        hotbed_checkpoint_config config = ranks_config(&disk.calls);
        options.parent = base;
        options.step = 5;
        one = sample_path("one");
        hotbed_status status = sample_write(&config, one, storage, &options, stream);
        if (disk.count < n) {
            CHECK_OK(status);
            break;
        }
        if (status != HOTBED_OK) {
            CHECK_STATUS(status, HOTBED_ERR_IO);
            ranks_save_after(&r, one, base);
        }
        hotbed_manifest m = ranks_manifest(one);
        CHECK(m.increment && m.tables[0].rows > 0);
        hotbed_manifest_free(&m);
        sample_remove(one);
        sample_remove(base);
    }
    CHECK(disk.at > 20);
    two = sample_path("two");
    ranks_save_after(&r, two, one);
    ranks_create(&to, &shape, 1, stream);
    const char *increments[] = {one, two};
    ranks_load_chain(&to, sample_path("base"), increments, 2, &hotbed_io_system);
    ranks_check(&to, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* --- size ------------------------------------------------------------------------------------- */

/* The size of a checkpoint's files. */
static uint64_t bytes_of(const char *path) {
    static const char *const names[] = {"MANIFEST", "index.h5", "shard-00000-of-00001.h5"};
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        char name[600];
        struct stat info;
        snprintf(name, sizeof name, "%s/%s", path, names[i]);
        CHECK(stat(name, &info) == 0);
        sum += (uint64_t)info.st_size;
    }
    return sum;
}

/* An increment of a few rows takes a few kilobytes for each table, whatever the number of buckets is. */
static void a_small_increment_is_small(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    sample shape = {.optimizer = HOTBED_OPT_ADAM, .rows = 100000};
    hotbed_storage *storage = sample_create(&shape, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    const char *full = sample_path("full"), *five = sample_path("five");
    sample_fill(&shape, storage, stream);
    CHECK_OK(hotbed_checkpoint_mark_create(&options.mark));
    CHECK_OK(hotbed_checkpoint_save(full, &storage, 1, &options, stream));
    sample_image image = sample_new(storage, 0, 5);
    for (uint64_t i = 0; i < image.rows; i++)
        image.keys[i] = i;
    sample_store(storage, 0, &image, stream);
    sample_free(&image);
    options.parent = full;
    CHECK_OK(hotbed_checkpoint_save(five, &storage, 1, &options, stream));
    hotbed_manifest m = ranks_manifest(five);
    CHECK(m.tables[0].rows <= 5);
    hotbed_manifest_free(&m);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, five, NULL));
    CHECK(bytes_of(five) < SAMPLE_TABLES * (12 << 10));
    hotbed_checkpoint_mark_destroy(options.mark);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* --- admission -------------------------------------------------------------------------------- */

enum { THRESHOLD = 3, COUNTED = 50 };

static hotbed_storage *create_counting(hotbed_stream *stream) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    table.name = "t";
    table.dim = 4;
    table.capacity = 100;
    table.admission = HOTBED_ADMIT_FREQUENCY;
    table.admission_threshold = THRESHOLD;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

/* Prefetch the keys 0 .. COUNTED-1 once. */
static void see(hotbed_storage *storage, hotbed_stream *stream) {
    uint64_t keys[COUNTED];
    for (uint64_t i = 0; i < COUNTED; i++)
        keys[i] = i * 0x9E3779B97F4A7C15U;
    sample_see(storage, COUNTED, COUNTED, keys, stream);
}

static uint64_t size_of(hotbed_storage *storage, hotbed_stream *stream) {
    uint64_t keys = 0;
    CHECK_OK(hotbed_storage_size(storage, 0, &keys, NULL, stream));
    return keys;
}

/* Save a full checkpoint after the first occurrence of each key, and an increment after the second. */
static void admission_counts_survive_a_load(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage *a = create_counting(stream), *b = create_counting(stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_load_options load = {.size = sizeof load};
    const char *full = sample_path("full"), *one = sample_path("one");
    CHECK_OK(hotbed_checkpoint_mark_create(&options.mark));
    see(a, stream);
    CHECK_OK(hotbed_checkpoint_save(full, &a, 1, &options, stream));
    see(a, stream);
    options.parent = full;
    CHECK_OK(hotbed_checkpoint_save(one, &a, 1, &options, stream));
    see(b, stream);
    CHECK_OK(hotbed_checkpoint_load(full, &b, 1, NULL, NULL, stream));
    see(b, stream);
    CHECK_EQ(size_of(b, stream), 0); /* seen twice: the load replaced the counts of b */
    load.increments = &one;
    load.num_increments = 1;
    CHECK_OK(hotbed_checkpoint_load(full, &b, 1, &load, NULL, stream));
    uint64_t keys[COUNTED], counts[COUNTED], n = 0;
    CHECK_OK(hotbed_storage_export_counts(b, 0, COUNTED, keys, counts, &n, stream));
    CHECK_EQ(n, COUNTED);
    for (int i = 0; i < COUNTED; i++)
        CHECK_EQ(counts[i], 2);
    see(b, stream);
    CHECK_EQ(size_of(b, stream), COUNTED);
    CHECK_OK(hotbed_storage_export_counts(b, 0, 0, NULL, NULL, &n, stream));
    CHECK_EQ(n, 0);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, one, NULL));
    hotbed_checkpoint_mark_destroy(options.mark);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(increments_are_replayed_by_any_number_of_ranks)},
    {TEST(damage_is_found_in_pieces_of_blocks)},
    {TEST(an_increment_has_what_changed)},
    {TEST(an_increment_has_what_was_touched)},
    {TEST(an_increment_over_a_store_has_what_was_touched)},
    {TEST(changed_rows_of_two_tiers_are_in_order)},
    {TEST(increments_out_of_order_are_refused)},
    {TEST(a_mark_belongs_to_one_checkpoint)},
    {TEST(admission_counts_survive_a_load)},
    {TEST(a_small_increment_is_small)},
    {NULL, NULL},
};
