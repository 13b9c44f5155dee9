/* tests/checkpoint/test_checkpoint_together.c - ranks that save and load with a communicator: each byte is read
 * once, and what fails on one fails on all. */
#include "base/stream.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's call, in a thread of its own. */
typedef struct rank_call {
    ranks *r;
    hotbed_comm *comm;
    const char *path, *parent;
    const char *const *increments;
    uint32_t rank;
    uint32_t num_increments;
    sample_disk disk;
    hotbed_status status;
    bool load;
    char text[256];
} rank_call;

static void run(rank_call *c) {
    hotbed_stream *stream = NULL;
    hotbed_checkpoint_config config = ranks_config(&c->disk.calls);
    hotbed_checkpoint_options save = ranks_options(c->r, c->rank);
    hotbed_checkpoint_load_options load;
    uint64_t step = 0;
    hotbed_checkpoint_load_options_init(&load);
    load.share = save.share;
    load.comm = save.comm = c->comm;
    load.increments = c->increments;
    load.num_increments = c->num_increments;
    save.mark = c->r->marks[c->rank];
    save.parent = c->parent;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_storage *storage = c->r->storages[c->rank];
    c->status =
        c->load
            ? hotbed_checkpoint_read(&config, c->path, storage, &load, &step, NULL, NULL, stream)
            : hotbed_checkpoint_write(&config, c->path, storage, &save, stream);
    snprintf(c->text, sizeof c->text, "%s", hotbed_last_error());
    hotbed_stream_destroy(stream);
}

static void *run_thread(void *argument) {
    run(argument);
    return NULL;
}

/* All ranks of `r` at once; the calls that come back have what became of them. */
static rank_call *together(ranks *r, const rank_call *model) {
    static rank_call calls[RANKS_MOST];
    static pthread_t threads[RANKS_MOST];
    static hotbed_comm *comms[RANKS_MOST];
    CHECK_OK(hotbed_comm_create_threads(NULL, r->world, comms));
    for (uint32_t i = 0; i < r->world; i++) {
        calls[i] = *model;
        calls[i].r = r;
        calls[i].rank = i;
        calls[i].comm = comms[i];
        bool fails = i == model->rank;
        sample_disk_init(
            &calls[i].disk, fails ? model->disk.fault : SAMPLE_FAULT_NONE, model->disk.at);
        CHECK(pthread_create(&threads[i], NULL, run_thread, &calls[i]) == 0);
    }
    for (uint32_t i = 0; i < r->world; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (uint32_t i = 0; i < r->world; i++)
        hotbed_comm_destroy(comms[i]);
    return calls;
}

static rank_call *all_good(ranks *r, const rank_call *model) {
    rank_call *calls = together(r, model);
    for (uint32_t i = 0; i < r->world; i++)
        if (calls[i].status != HOTBED_OK)
            hotbed_check_failed(__FILE__, __LINE__, "rank %u: %s", i, calls[i].text);
    return calls;
}

static const uint32_t pairs[][2] = {{1, 3}, {3, 1},  {4, 2}, {2, 5}, {7, 8},
                                    {5, 3}, {16, 4}, {3, 3}, {1, 1}, {2, 16}};

static void ranks_save_and_load_together(hotbed_backend backend) {
    (void)backend;
    hotbed_stream *stream = NULL;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    sample_directory();
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        ranks from, to;
        ranks_shape shape = {
            .optimizer = (hotbed_optimizer_kind)(HOTBED_OPT_SGD + i % 4),
            .route = (hotbed_route_kind)(i % 3),
            .score = i % 3 == 1 ? HOTBED_SCORE_TIMESTAMP_LFU : HOTBED_SCORE_STEP,
        };
        const char *full = sample_path("full"), *one = sample_path("one");
        ranks_create(&from, &shape, pairs[i][0], stream);
        ranks_create(&to, &shape, pairs[i][1], stream);
        ranks_mark(&from);
        ranks_fill(&from, 1);
        all_good(&from, &(rank_call){.path = full});
        ranks_change_some(&from);
        all_good(&from, &(rank_call){.path = one, .parent = full});
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, one, NULL));
        all_good(
            &to, &(rank_call){.load = true, .path = full, .increments = &one, .num_increments = 1});
        ranks_check(&to, &from);
        sample_remove(full);
        sample_remove(one);
        ranks_destroy(&from);
        ranks_destroy(&to);
    }
    hotbed_stream_destroy(stream);
}

enum { KEYS = 8000, DIM = 32 };

/* Ranks with one table, empty. */
static void create_large(ranks *r, uint32_t world, hotbed_stream *stream) {
    hotbed_table_options table;
    hotbed_storage_options options;
    *r = (ranks){.world = world, .stream = stream};
    CHECK_OK(hotbed_route_init(&r->routes[0], HOTBED_ROUTE_HASH_ROUND_ROBIN, world, 0));
    hotbed_table_options_init(&table);
    table.name = "large";
    table.dim = DIM;
    table.capacity = KEYS;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    for (uint32_t i = 0; i < world; i++)
        CHECK_OK(hotbed_storage_create(&options, stream, &r->storages[i]));
}

/* Keys 0 .. KEYS-1 to their ranks, as new rows. */
static void fill_large(ranks *r) {
    static uint64_t keys[KEYS];
    for (uint32_t i = 0; i < r->world; i++) {
        uint64_t n = 0;
        for (uint64_t key = 0; key < KEYS; key++)
            if (hotbed_route_rank(&r->routes[0], key) == i)
                keys[n++] = key;
        CHECK_OK(hotbed_storage_set_rows(r->storages[i], 0, n, keys, NULL, r->stream));
        CHECK_OK(hotbed_stream_sync(r->stream));
    }
}

/* Each byte of a row is read by one rank, but for the blocks in which two ranks' ranges meet.  (Were each rank
 * to read all, it would be four times as much.) */
static void each_byte_is_read_once(hotbed_backend backend) {
    (void)backend;
    enum { FROM = 3, TO = 4, ROW = 8 + 4 * DIM + 8, COLUMNS = 3, BLOCK = 4096 };
    hotbed_stream *stream = NULL;
    ranks from, to;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    sample_directory();
    const char *path = sample_path("c");
    create_large(&from, FROM, stream);
    create_large(&to, TO, stream);
    fill_large(&from);
    all_good(&from, &(rank_call){.path = path});
    hotbed_manifest m = ranks_manifest(path);
    uint64_t once = 0, beside = 0; /* what every rank checks: before the load, and with the rows */
    for (uint32_t s = 0; s < FROM; s++) {
        once += m.parts[s].rows * ROW;
        beside += 2 * (m.shards[s].metadata_bytes + m.shards[s].blocks.bytes) +
                  m.parts[s].columns[HOTBED_COLUMN_BUCKET].bytes;
    }
    size_t text = 0;
    free(sample_read_file(sample_path("c/MANIFEST"), &text));
    rank_call *calls = all_good(&to, &(rank_call){.load = true, .path = path});
    uint64_t read = 0, keys = 0, all = 0;
    for (uint32_t i = 0; i < TO; i++) {
        CHECK_OK(hotbed_storage_size(to.storages[i], 0, &keys, NULL, stream));
        read += calls[i].disk.bytes_read;
        all += keys;
    }
    CHECK_EQ(all, KEYS);
    CHECK_EQ(once, (uint64_t)KEYS * ROW);
    read -= TO * (beside + text);
    CHECK(read >= once && read <= once + (TO - 1) * FROM * COLUMNS * BLOCK);
    hotbed_manifest_free(&m);
    ranks_destroy(&from);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* A rank's disk fails at any call: all ranks say so, nobody waits for it, and nothing is left. */
static void a_failing_rank_fails_all(hotbed_backend backend) {
    (void)backend;
    hotbed_stream *stream = NULL;
    ranks from, to;
    ranks_shape shape = {.optimizer = HOTBED_OPT_ADAGRAD};
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    const char *parent = sample_directory();
    ranks_create(&from, &shape, 2, stream);
    ranks_create(&to, &shape, 3, stream);
    ranks_fill(&from, 1);
    const char *path = sample_path("good");
    all_good(&from, &(rank_call){.path = path});
    for (int load = 0; load < 2; load++)
        for (uint64_t n = 1;; n += 3) {
            rank_call model = {
                .load = load == 1,
                .path = load == 1 ? path : sample_path("bad"),
                .rank = 1,
                .disk = {.fault = SAMPLE_FAULT_EIO, .at = n},
            };
            ranks *r = load == 1 ? &to : &from;
            rank_call *calls = together(r, &model);
            bool good = calls[0].status == HOTBED_OK;
            for (uint32_t i = 0; i < r->world; i++) {
                CHECK((calls[i].status == HOTBED_OK) == good);
                CHECK(good || calls[i].status == HOTBED_ERR_IO);
                CHECK_EQ(calls[i].disk.open_files, 0);
            }
            bool over = calls[1].disk.count < n;
            if (load == 0 && good)
                sample_remove(sample_path("bad"));
            CHECK_EQ(sample_count_names(parent), 1);
            path = sample_path("good");
            if (over)
                break;
        }
    ranks_check(&to, &from);
    ranks_destroy(&from);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* The share and the communicator are of the same rank. */
static void another_rank_than_the_communicators_is_refused(hotbed_backend backend) {
    (void)backend;
    hotbed_stream *stream = NULL;
    hotbed_comm *comm = NULL;
    ranks r;
    ranks_shape shape = {.optimizer = HOTBED_OPT_SGD};
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    sample_directory();
    CHECK_OK(hotbed_comm_create_self(NULL, &comm));
    ranks_create(&r, &shape, 2, stream);
    hotbed_checkpoint_options options = ranks_options(&r, 1);
    hotbed_checkpoint_load_options load;
    hotbed_checkpoint_load_options_init(&load);
    load.comm = options.comm = comm;
    load.share = options.share;
    const char *path = sample_path("c");
    CHECK_STATUS(
        hotbed_checkpoint_save(path, r.storages[1], &options, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_checkpoint_load_with(path, r.storages[1], &load, NULL, NULL, NULL, stream),
        HOTBED_ERR_ARGUMENT);
    hotbed_comm_destroy(comm);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {"ranks_save_and_load_together", ranks_save_and_load_together},
    {"each_byte_is_read_once", each_byte_is_read_once},
    {"a_failing_rank_fails_all", a_failing_rank_fails_all},
    {"another_rank_than_the_communicators_is_refused",
     another_rank_than_the_communicators_is_refused},
    {NULL, NULL},
};
