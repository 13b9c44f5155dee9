/* tests/checkpoint/test_checkpoint_ranks.c - N ranks save, M ranks load: every row is equal byte for byte. */
#include "base/stream.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/shard_reader.h"
#include "checkpoint/verify.h"
#include "storage/types.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_content(const char *a, const char *b) {
    hotbed_manifest x = ranks_manifest(a), y = ranks_manifest(b);
    CHECK_EQ(x.num_tables, y.num_tables);
    for (uint32_t t = 0; t < x.num_tables; t++) {
        CHECK_EQ(x.tables[t].rows, y.tables[t].rows);
        CHECK_BYTES(&x.tables[t].content, &y.tables[t].content, sizeof x.tables[t].content);
    }
    hotbed_manifest_free(&x);
    hotbed_manifest_free(&y);
}

/* Redistribute from n ranks to m; the optimizer and the route change with each call. */
static void reshard(hotbed_stream *stream, uint32_t n, uint32_t m, uint32_t turn) {
    ranks from, to;
    ranks_shape shape = {
        .optimizer = (hotbed_optimizer_kind)(HOTBED_OPT_SGD + turn % HOTBED_OPT_LAST),
        .route = (hotbed_route_kind)(turn / 7 % 3),
        .score = turn % 3 == 0 ? HOTBED_SCORE_TIMESTAMP_LFU : HOTBED_SCORE_STEP,
    };
    const char *path = sample_path("first"), *again = sample_path("second");
    ranks_create(&from, &shape, n, stream);
    shape.route = (hotbed_route_kind)(turn / 12 % 3);
    ranks_create(&to, &shape, m, stream);
    ranks_fill(&from, 1);
    ranks_save(&from, path);
    ranks_load(&to, path, &hotbed_io_system);
    ranks_check(&to, &from);
    ranks_save(&to, again);
    check_content(path, again);
    sample_remove(path);
    sample_remove(again);
    ranks_destroy(&from);
    ranks_destroy(&to);
}

static void reshard_from(hotbed_backend backend, uint32_t index) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    for (uint32_t i = 0; i < (hotbed_test_is_small() ? 2 : RANKS_WORLDS); i++)
        for (uint32_t kind = 0; kind < (ranks_whole() ? 4U : 1U); kind++)
            reshard(stream, ranks_worlds[index], ranks_worlds[i], index * 5 + i * 7 + kind);
    hotbed_stream_destroy(stream);
}

static void one_rank_to_any(hotbed_backend backend) {
    reshard_from(backend, 0);
}
static void two_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 1);
}
static void three_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 2);
}
static void four_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 3);
}
static void five_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 4);
}
static void seven_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 5);
}
static void eight_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 6);
}
static void sixteen_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 7);
}
static void sixty_one_ranks_to_any(hotbed_backend backend) {
    reshard_from(backend, 8);
}

/* With the same number of ranks and the same routes, each rank reads only its own shard, and each byte once.
 * (In addition every rank reads and checks all metadata and block digests, and readers of blocks read their
 * digests again.) */
static void the_same_ranks_read_their_own_shards(hotbed_backend backend) {
    ranks from;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .route = HOTBED_ROUTE_HASH_ROUND_ROBIN};
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    const char *path = sample_path("c");
    ranks_create(&from, &shape, 4, stream);
    ranks_fill(&from, 1);
    ranks_save(&from, path);
    hotbed_manifest m = ranks_manifest(path);
    uint64_t payload = 0, beside = 0, blocks = 0;
    for (uint32_t s = 0; s < m.world; s++) {
        beside += m.shards[s].metadata_bytes + m.shards[s].blocks.bytes;
        blocks += m.shards[s].blocks.bytes;
        for (uint32_t t = 0; t < m.num_tables; t++)
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
                payload += m.parts[t * m.world + s].columns[i].bytes;
    }
    size_t text = 0;
    free(sample_read_file(sample_path("c/MANIFEST"), &text));
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    ranks_load(&from, path, &disk.calls);
    CHECK_EQ(disk.bytes_read, payload + m.world * (beside + text) + blocks);
    ranks_check(&from, &from);
    hotbed_manifest_free(&m);
    ranks_destroy(&from);
    hotbed_stream_destroy(stream);
}

/* Times are loaded into tables that keep them; if the checkpoint has none, they are set as for new rows. */
static void times_are_loaded_where_tables_keep_them(hotbed_backend backend) {
    static const hotbed_score_strategy scores[] = {
        HOTBED_SCORE_TIMESTAMP_LFU, HOTBED_SCORE_LFU, HOTBED_SCORE_TIMESTAMP_LFU};
    ranks r[3];
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    for (uint32_t i = 0; i < 3; i++) {
        ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .score = scores[i]};
        ranks_create(&r[i], &shape, i + 1, stream);
    }
    ranks_fill(&r[0], 1);
    for (uint32_t i = 0; i < 2; i++) {
        const char *path = sample_path(i == 0 ? "pairs" : "counts");
        ranks_save(&r[i], path);
        hotbed_manifest m = ranks_manifest(path);
        CHECK_EQ(m.tables[0].times, i == 0);
        CHECK(!m.tables[2].times);
        hotbed_manifest_free(&m);
        ranks_load(&r[i + 1], path, &hotbed_io_system);
        ranks_check(&r[i + 1], &r[i]);
        memcpy(r[i + 1].versions, r[i].versions, sizeof r[i].versions);
    }
    for (uint32_t i = 0; i < 3; i++)
        ranks_destroy(&r[i]);
    hotbed_stream_destroy(stream);
}

/* Rows that were dealt to 2 ranks in turn go to 3 ranks and to 1, in turn and in blocks, and blocks go to
 * ranks that deal; the rows of an increment too. */
static void dealt_rows_go_to_any_ranks(hotbed_backend backend) {
    static const struct {
        uint32_t from, to;
        bool was_dealt, is_dealt;
    } cases[] = {{2, 3, true, true},  {2, 1, true, true},  {2, 3, true, false}, {2, 1, true, false},
                 {2, 3, false, true}, {1, 3, true, true},  {7, 3, true, true},  {3, 3, true, false},
                 {3, 3, false, true}, {61, 2, true, true}, {2, 61, true, true}, {3, 3, true, true}};
    hotbed_stream *stream = sample_stream(backend);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static ranks from, to;
        ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .rows = i % 2 == 0 ? 0 : 31};
        const char *full = sample_path("full"), *more = sample_path("more");
        shape.route = cases[i].was_dealt ? HOTBED_ROUTE_ROUND_ROBIN : HOTBED_ROUTE_CONTINUOUS;
        ranks_create(&from, &shape, cases[i].from, stream);
        shape.route = cases[i].is_dealt ? HOTBED_ROUTE_ROUND_ROBIN : HOTBED_ROUTE_CONTINUOUS;
        ranks_create(&to, &shape, cases[i].to, stream);
        ranks_mark(&from);
        ranks_fill(&from, 1);
        ranks_save(&from, full);
        ranks_load(&to, full, &hotbed_io_system);
        ranks_check(&to, &from);
        ranks_change(&from, 2, 1, 4);
        ranks_save_after(&from, more, full);
        for (int k = 0; k < 2; k++)
            CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, k == 0 ? full : more, NULL));
        hotbed_manifest m = ranks_manifest(more);
        CHECK_EQ(m.tables[1].rows, shape.rows == 0 ? 23 : 8); /* the rows 1, 5, 9, ... */
        hotbed_manifest_free(&m);
        ranks_load_chain(&to, full, &more, 1, &hotbed_io_system);
        ranks_check(&to, &from);
        sample_remove(full);
        sample_remove(more);
        ranks_destroy(&from);
        ranks_destroy(&to);
    }
    hotbed_stream_destroy(stream);
}

/* If a rank is missing, or its share differs, no checkpoint is created. */
static void ranks_that_differ_are_refused(hotbed_backend backend) {
    ranks a, b;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM}, other = shape;
    other.rows = 17;
    hotbed_stream *stream = hotbed_test_stream(backend);
    const char *parent = sample_directory(), *path = sample_path("c");
    ranks_create(&a, &shape, 3, stream);
    ranks_create(&b, &other, 3, stream);
    ranks_fill(&a, 1);
    hotbed_checkpoint_id id;
    hotbed_checkpoint_options options;
    CHECK_OK(hotbed_checkpoint_begin(path, &id));
    for (uint32_t r = 0; r < 2; r++) {
        options = ranks_options(&a, r);
        CHECK_OK(hotbed_checkpoint_put(path, id, &a.storages[r], 1, &options, stream));
    }
    CHECK_EQ(sample_count_names(parent), 1); /* the draft */
    CHECK_STATUS(hotbed_checkpoint_commit(path, id, 3), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "rank 2 of 3 has put no shard") != NULL);
    CHECK_EQ(hotbed_last_error_detail()->rank, 2);
    CHECK_EQ(sample_count_names(parent), 0);

    /* A commit for another number of ranks fails, and removes the draft. */
    for (uint32_t world = 1; world < 6; world += world == 2 ? 2 : 1) {
        CHECK_OK(hotbed_checkpoint_begin(path, &id));
        for (uint32_t r = 0; r < 3; r++) {
            options = ranks_options(&a, r);
            CHECK_OK(hotbed_checkpoint_put(path, id, &a.storages[r], 1, &options, stream));
        }
        CHECK_STATUS(hotbed_checkpoint_commit(path, id, world), HOTBED_ERR_STATE);
        CHECK_EQ(sample_count_names(parent), 0);
    }

    const struct {
        ranks *from;
        uint64_t step;
        const char *word;
    } cases[] = {{&a, 6, "step"}, {&b, 5, "route's rows"}, {&a, 5, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hotbed_checkpoint_begin(path, &id));
        for (uint32_t r = 0; r < 3; r++) {
            options = ranks_options(r == 2 ? cases[i].from : &a, r);
            options.step = r == 2 ? cases[i].step : 5;
            CHECK_OK(hotbed_checkpoint_put(
                path, id, &(r == 2 ? cases[i].from : &a)->storages[r], 1, &options, stream));
        }
        hotbed_status status = hotbed_checkpoint_commit(path, id, 3);
        CHECK_STATUS(status, cases[i].word == NULL ? HOTBED_OK : HOTBED_ERR_STATE);
        if (cases[i].word != NULL)
            CHECK(strstr(hotbed_last_error(), cases[i].word) != NULL);
        if (i == 0)
            CHECK_FIELDS(
                    .has = HOTBED_HAS_RANK | HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .rank = 2,
                    .value = 6, .limit = 5, .path = "/c");
        CHECK_EQ(sample_count_names(parent), cases[i].word == NULL ? 1 : 0);
    }
    ranks_destroy(&a);
    ranks_destroy(&b);
    hotbed_stream_destroy(stream);
}

/* --- keys that another rank owns ------------------------------------------------------------ */

/* A key of table 0 that rank `owner` owns. */
static uint64_t key_of_rank(const ranks *r, uint32_t owner) {
    uint64_t key = 1000000;
    while (hotbed_route_rank(&r->routes[0], key) != owner)
        key++;
    return key;
}

/* Give rank `rank` a row of `key`. */
static void add_key(ranks *r, uint32_t rank, uint64_t key) {
    sample_image image = sample_new(r->storages[rank], 0, 1);
    image.keys[0] = key;
    sample_store(r->storages[rank], 0, &image, r->stream);
    sample_free(&image);
}

static void check_says(const char *text) {
    if (strstr(hotbed_last_error(), text) == NULL)
        CHECK_STRING(hotbed_last_error(), text);
}

/* Every kind of save refuses a key that another rank owns, and names the key and its owner. */
static void keys_of_another_rank_are_not_saved(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    const char *parent = sample_directory(), *path = sample_path("c"), *full = sample_path("full");
    for (int route = HOTBED_ROUTE_HASH_ROUND_ROBIN; route <= HOTBED_ROUTE_CONTINUOUS; route++) {
        ranks r;
        ranks_shape shape = {.route = (hotbed_route_kind)route, .optimizer = HOTBED_OPT_SGD};
        hotbed_checkpoint_id id;
        ranks_create(&r, &shape, 3, stream);
        ranks_mark(&r);
        ranks_fill(&r, 1);
        ranks_save(&r, full);
        add_key(&r, 0, key_of_rank(&r, 0));
        uint64_t key = key_of_rank(&r, 2);
        add_key(&r, 0, key);
        char text[160];
        snprintf(
            text, sizeof text, "key %llu is on rank 0, but its route (%s) gives it to rank 2",
            (unsigned long long)key, hotbed_route_name(shape.route));
        for (int way = 0; way < 4; way++) { /* saves and snapshots, full and incremental */
            hotbed_checkpoint_options options = ranks_options(&r, 0);
            hotbed_checkpoint_snapshot *snapshot = NULL;
            options.mark = r.marks[0];
            options.parent = way >= 2 ? full : NULL;
            CHECK_OK(hotbed_checkpoint_begin(path, &id));
            hotbed_checkpoint_config config = ranks_config(&hotbed_io_system);
            hotbed_status status;
            if (way % 2 == 0) {
                status = sample_save_shard(&config, path, id, r.storages[0], &options, stream);
            } else {
                CHECK_OK(sample_snapshot_take(&config, r.storages[0], &options, stream, &snapshot));
                status = hotbed_snapshot_put(&config, path, id, snapshot);
            }
            CHECK_STATUS(status, HOTBED_ERR_STATE);
            check_says(text);
            check_says("table 'hash'");
            hotbed_checkpoint_snapshot_destroy(snapshot);
            hotbed_checkpoint_abort(path, id);
        }
        CHECK_EQ(sample_count_names(parent), 1);
        ranks_destroy(&r);
        sample_remove(full);
    }
    hotbed_stream_destroy(stream);
}

/* Admission counts follow the same rule as keys. */
static void counts_of_another_rank_are_not_saved(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options create;
    hotbed_storage *storage = NULL;
    hotbed_route route;
    hotbed_checkpoint_options options;
    hotbed_checkpoint_id id;
    table.name = "t";
    table.dim = 1;
    table.capacity = 10;
    table.admission = HOTBED_ADMIT_FREQUENCY;
    table.admission_threshold = 5;
    hotbed_storage_options_init(&create);
    create.num_tables = 1;
    create.tables = &table;
    create.optimizer.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_storage_create(&create, stream, &storage));
    CHECK_OK(hotbed_route_init(&route, HOTBED_ROUTE_ROUND_ROBIN, 2, 0));
    hotbed_memory memory;
    uint64_t words[] = {(uint64_t)-7, 1}; /* a key and its count */
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof words, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, words, sizeof words, stream));
    const uint64_t *device = memory.data;
    CHECK_OK(hotbed_storage_import_counts(storage, 0, 1, device, device + 1, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    options = (hotbed_checkpoint_options){.size = sizeof options};
    options.share = (hotbed_checkpoint_share){.rank = 0, .world = 2, .routes = &route};
    CHECK_OK(hotbed_checkpoint_begin(sample_path("c"), &id));
    CHECK_STATUS(
        hotbed_checkpoint_put(sample_path("c"), id, &storage, 1, &options, stream),
        HOTBED_ERR_STATE);
    check_says("table 't': key -7 is on rank 0, but its route (roundrobin) gives it to rank 1");
    hotbed_checkpoint_abort(sample_path("c"), id);
    hotbed_memory_free(&memory);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* Loading the checkpoint at `path` by `loaders`, and verifying it, reports damage. */
static void check_misplaced(const char *path, ranks *loaders) {
    for (uint32_t rank = 0; rank < loaders->world; rank++) {
        hotbed_checkpoint_load_options options = {.size = sizeof options};
        options.share = ranks_options(loaders, rank).share;
        CHECK_STATUS(
            hotbed_checkpoint_load(
                path, &loaders->storages[rank], 1, &options, NULL, loaders->stream),
            HOTBED_ERR_CORRUPT);
        check_says("is in the wrong shard: the route");
    }
    CHECK_STATUS(hotbed_checkpoint_verify(&hotbed_io_system, path, NULL), HOTBED_ERR_CORRUPT);
    check_says("is in the wrong shard: the route");
}

/* Write the MANIFEST of a checkpoint, and free *m. */
static void write_manifest(const char *path, hotbed_manifest *m) {
    char name[600], *text = NULL;
    size_t bytes = 0;
    CHECK_OK(hotbed_manifest_print(m, &text, &bytes));
    snprintf(name, sizeof name, "%s/MANIFEST", path);
    sample_write_file(name, text, bytes);
    hotbed_delete(text);
    hotbed_manifest_free(m);
}

/* Change the route of table 0 in MANIFEST. */
static void reroute(const char *path, hotbed_route_kind route) {
    hotbed_manifest m = ranks_manifest(path);
    m.tables[0].route = (uint32_t)route + 1;
    write_manifest(path, &m);
}

/* An increment has row 1 in the shard of rank 0, but its rows are dealt, so row 1 is of rank 1. */
static void a_dealt_row_in_the_wrong_shard_is_found(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    static ranks r, to;
    ranks_shape shape = {.route = HOTBED_ROUTE_CONTINUOUS, .optimizer = HOTBED_OPT_SGD};
    const char *full = sample_path("full"), *more = sample_path("more");
    ranks_create(&r, &shape, 2, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, full);
    ranks_change(&r, 2, 1, 90);
    ranks_save_after(&r, more, full);
    for (int k = 0; k < 2; k++) { /* both routes give each rank 45 of 90 rows */
        hotbed_manifest first = ranks_manifest(full), m = ranks_manifest(k == 0 ? full : more);
        m.tables[1].route = HOTBED_ROUTE_ROUND_ROBIN + 1;
        if (k == 1)
            m.parent_digest = first.digest;
        write_manifest(k == 0 ? full : more, &m);
        hotbed_manifest_free(&first);
    }
    hotbed_checkpoint_load_options options = {.size = sizeof options};
    options.share = ranks_options(&to, 0).share;
    options.num_increments = 1;
    options.increments = &more;
    CHECK_STATUS(
        hotbed_checkpoint_load(full, to.storages, 1, &options, NULL, stream), HOTBED_ERR_CORRUPT);
    check_says("static: row 1 is out of order or not of this shard");
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* Keys in the shard of a rank that does not own them: a rank that loads by the route would not find them. */
static void keys_in_the_wrong_shard_are_found(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    static ranks r, same, one;
    ranks_shape shape = {.route = HOTBED_ROUTE_ROUND_ROBIN, .optimizer = HOTBED_OPT_ADAM};
    const char *path = sample_path("c"), *increment = sample_path("d");
    ranks_create(&r, &shape, 3, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, path);
    ranks_erase(&r, 0, 3); /* the increment has no rows of hash tables, only erased keys */
    ranks_save_after(&r, increment, path);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, increment, NULL));
    reroute(increment, HOTBED_ROUTE_HASH_ROUND_ROBIN);
    CHECK_STATUS(hotbed_checkpoint_verify(&hotbed_io_system, increment, NULL), HOTBED_ERR_CORRUPT);
    check_says("hash/erased: key");
    shape.route = HOTBED_ROUTE_HASH_ROUND_ROBIN;
    ranks_create(&same, &shape, 3, stream);
    ranks_create(&one, &shape, 1, stream);
    reroute(path, HOTBED_ROUTE_HASH_ROUND_ROBIN);
    check_misplaced(path, &same);
    check_misplaced(path, &one);
    ranks_destroy(&r);
    ranks_destroy(&same);
    ranks_destroy(&one);
    hotbed_stream_destroy(stream);
}

/* Two ranks saved the same key, one of them against the route. */
static void a_key_in_two_shards_is_found(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    static ranks r, one;
    ranks_shape shape = {.route = HOTBED_ROUTE_CONTINUOUS, .optimizer = HOTBED_OPT_SGD};
    const char *path = sample_path("c");
    ranks_create(&r, &shape, 2, stream); /* rank 0 owns 0 .. 49, rank 1 owns 50 .. 99 */
    ranks_create(&one, &shape, 1, stream);
    add_key(&r, 0, 49);
    add_key(&r, 1, 49);
    hotbed_checkpoint_id id;
    CHECK_OK(hotbed_checkpoint_begin(path, &id));
    for (uint32_t rank = 0; rank < 2; rank++) {
        hotbed_checkpoint_options options = ranks_options(&r, rank);
        uint64_t block = r.routes[0].block;
        if (rank == 1)
            r.routes[0].block = 49; /* a program that built its own route */
        CHECK_OK(hotbed_checkpoint_put(path, id, &r.storages[rank], 1, &options, stream));
        r.routes[0].block = block;
    }
    CHECK_OK(hotbed_checkpoint_commit(path, id, 2));
    check_misplaced(path, &one);
    ranks_destroy(&r);
    ranks_destroy(&one);
    hotbed_stream_destroy(stream);
}

/* The rank that had a key lists it as erased, so an increment must have the ranks and routes of its parent. */
static void increments_keep_ranks_and_routes(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    static ranks r;
    ranks_shape shape = {.route = HOTBED_ROUTE_ROUND_ROBIN, .optimizer = HOTBED_OPT_SGD};
    const char *path = sample_path("c");
    hotbed_checkpoint_id id;
    ranks_create(&r, &shape, 2, stream);
    ranks_mark(&r);
    ranks_save(&r, path);
    CHECK_OK(hotbed_route_init(&r.routes[0], HOTBED_ROUTE_HASH_ROUND_ROBIN, 2, 0));
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    options.mark = r.marks[0];
    options.parent = path;
    hotbed_checkpoint_config config = ranks_config(&hotbed_io_system); /* as the parent's */
    CHECK_OK(hotbed_checkpoint_begin(sample_path("d"), &id));
    CHECK_STATUS(
        sample_save_shard(&config, sample_path("d"), id, r.storages[0], &options, stream),
        HOTBED_ERR_STATE);
    check_says("the rows of table 'hash' are assigned to 2 ranks in another way");
    hotbed_checkpoint_abort(sample_path("d"), id);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void wrong_shares_are_refused(hotbed_backend backend) {
    ranks a;
    ranks_shape shape = {.optimizer = HOTBED_OPT_SGD};
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    const char *path = sample_path("c");
    ranks_create(&a, &shape, 2, stream);
    ranks_save(&a, path);
    hotbed_checkpoint_options options = ranks_options(&a, 0);
    hotbed_checkpoint_load_options load = {.size = sizeof load};
    hotbed_checkpoint_share *share = &load.share;
    *share = options.share;
    CHECK_STATUS(
        hotbed_checkpoint_save(sample_path("d"), &a.storages[0], 1, &options, stream),
        HOTBED_ERR_ARGUMENT);
    share->rank = 2;
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    share->rank = 0;
    share->world = 3;
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    share->routes = NULL;
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    hotbed_route routes[RANKS_TABLES];
    share->world = 2;
    share->routes = routes;
    for (int t = 0; t < RANKS_TABLES; t++)
        CHECK_OK(hotbed_route_init(&routes[t], HOTBED_ROUTE_ROUND_ROBIN, 2, 0));
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    check_says("share: table 'static' is static, but its route numbers no rows");
    CHECK_OK(hotbed_route_init(&routes[1], HOTBED_ROUTE_HASH_ROUND_ROBIN, 2, 0));
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    check_says("is static, but its route is hash_roundrobin, not continuous or roundrobin");
    CHECK_OK(hotbed_route_init(&routes[0], HOTBED_ROUTE_ROUND_ROBIN, 2, 400));
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &a.storages[0], 1, &load, NULL, stream), HOTBED_ERR_ARGUMENT);
    check_says("share: table 'hash' stores keys, but its route numbers 400 rows");
    hotbed_checkpoint_id id = {.low = 1};
    CHECK_STATUS(hotbed_checkpoint_commit(path, id, 0), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_commit(NULL, id, 1), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_begin(path, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_begin(path, &id), HOTBED_ERR_STATE);
    hotbed_checkpoint_abort(NULL, id);
    ranks_destroy(&a);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(one_rank_to_any)},
    {TEST(two_ranks_to_any)},
    {TEST(three_ranks_to_any)},
    {TEST(four_ranks_to_any)},
    {TEST(five_ranks_to_any)},
    {TEST(seven_ranks_to_any)},
    {TEST(eight_ranks_to_any)},
    {TEST(sixteen_ranks_to_any)},
    {TEST(sixty_one_ranks_to_any)},
    {TEST(the_same_ranks_read_their_own_shards)},
    {TEST(times_are_loaded_where_tables_keep_them)},
    {TEST(ranks_that_differ_are_refused)},
    {TEST(dealt_rows_go_to_any_ranks)},
    {TEST(a_dealt_row_in_the_wrong_shard_is_found)},
    {TEST(wrong_shares_are_refused)},
    {TEST(keys_of_another_rank_are_not_saved)},
    {TEST(counts_of_another_rank_are_not_saved)},
    {TEST(keys_in_the_wrong_shard_are_found)},
    {TEST(a_key_in_two_shards_is_found)},
    {TEST(increments_keep_ranks_and_routes)},
    {NULL, NULL},
};
