/* tests/checkpoint/test_checkpoint_together.c - ranks save and load with a communicator: each byte is read
 * once, by a rewrite too, and a failure of one rank is a failure of all. */
#include "base/stream.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/redistribute.h"
#include "checkpoint/verify.h"
#include "storage/types.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A call of one rank, on its own thread. */
typedef struct rank_call {
    ranks *r;
    hotbed_comm *comm;
    const char *path, *parent;
    const char *odd_path; /* of the call of rank `rank`, without increments; NULL: `path` */
    const char *const *increments;
    uint32_t rank;
    uint32_t num_increments;
    sample_disk disk;
    hotbed_status status;
    bool load;
    bool large;  /* blocks and buckets of the public calls' size */
    bool vote;   /* run the vote alone */
    bool public; /* make the public call */
    /* The error in the options of rank `rank`. */
    enum { ALL_RIGHT, NO_MARK, OTHER_SHARE, NO_INCREMENT, NO_PATH } wrong;
    hotbed_comm_reason reason; /* why the communicator failed */
    /* The number, counted over all ranks, of the allocation that fails; 0: none. */
    uint64_t no_memory;
    pthread_barrier_t *ready;
    char text[1024];
} rank_call;

static hotbed_status do_call(
    rank_call *c, const hotbed_checkpoint_config *config, const hotbed_checkpoint_options *save,
    const hotbed_checkpoint_load_options *load, hotbed_stream *stream) {
    hotbed_storage *storage = c->r->storages[c->rank];
    uint64_t step = 0;
    if (c->vote)
        return hotbed_vote_with(c->comm, HOTBED_OK, &step, sizeof step, stream);
    if (c->public)
        return c->load ? sample_load(c->path, storage, load, &step, stream)
                       : hotbed_checkpoint_save(c->path, &storage, 1, save, stream);
    return c->load ? sample_load_with(config, c->path, storage, load, &step, stream)
                   : sample_write(config, c->path, storage, save, stream);
}

/* Make the requested allocation fail, once all ranks are about to start. */
static void arm(const rank_call *c) {
    if (c->no_memory == 0)
        return;
    /* NOLINTNEXTLINE(bugprone-posix-return): glibc's PTHREAD_BARRIER_SERIAL_THREAD is -1 */
    if (pthread_barrier_wait(c->ready) == PTHREAD_BARRIER_SERIAL_THREAD)
        fault_arm(c->no_memory);
    (void)pthread_barrier_wait(c->ready);
}

static void run(rank_call *c) {
    hotbed_checkpoint_config config = ranks_config(&c->disk.calls);
    if (c->large)
        config =
            (hotbed_checkpoint_config){.calls = &c->disk.calls, .bucket_bits = HOTBED_BUCKET_BITS};
    hotbed_checkpoint_options save = ranks_options(c->r, c->rank);
    hotbed_checkpoint_load_options load = {.size = sizeof load, .share = save.share};
    load.comm = save.comm = c->comm;
    load.increments = c->increments;
    load.num_increments = c->num_increments;
    save.mark = c->r->marks[c->rank];
    save.parent = c->parent;
    if (c->wrong == NO_MARK)
        save.mark = NULL;
    if (c->wrong == OTHER_SHARE)
        load.share.rank = save.share.rank = 0;
    if (c->wrong == NO_INCREMENT)
        load.num_increments = 1;
    if (c->wrong == NO_PATH)
        c->path = NULL;
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    arm(c);
    c->status = do_call(c, &config, &save, &load, stream);
    snprintf(c->text, sizeof c->text, "%s", hotbed_last_error());
    hotbed_comm_fault why = {.size = sizeof why};
    CHECK_OK(hotbed_comm_failure(c->comm, &why));
    c->reason = why.reason;
    if (why.reason == HOTBED_COMM_ABORTED) /* all ranks learn the cause */
        CHECK(strstr(why.text, " aborted: ") != NULL);
    hotbed_stream_destroy(stream);
}

static void *run_thread(void *argument) {
    run(argument);
    return NULL;
}

/* Run the call on all ranks of `r` at once; the returned calls have their results. */
static rank_call *together(ranks *r, const rank_call *model) {
    static rank_call calls[RANKS_MOST];
    static pthread_t threads[RANKS_MOST];
    static hotbed_comm *comms[RANKS_MOST];
    pthread_barrier_t ready;
    hotbed_comm_options options = {.size = sizeof options};
    options.deadline_ms = 900000; /* on a busy machine a rank may be minutes behind */
    CHECK_OK(hotbed_comm_create_threads(&options, r->world, comms));
    CHECK(pthread_barrier_init(&ready, NULL, r->world) == 0);
    for (uint32_t i = 0; i < r->world; i++) {
        calls[i] = *model;
        calls[i].ready = &ready;
        calls[i].r = r;
        calls[i].rank = i;
        calls[i].comm = comms[i];
        if (i == model->rank && model->odd_path != NULL) {
            calls[i].path = model->odd_path;
            calls[i].num_increments = 0;
        }
        bool fails = i == model->rank;
        if (!fails)
            calls[i].wrong = ALL_RIGHT;
        sample_disk_init(
            &calls[i].disk, fails ? model->disk.fault : SAMPLE_FAULT_NONE, model->disk.at);
        CHECK(pthread_create(&threads[i], NULL, run_thread, &calls[i]) == 0);
    }
    for (uint32_t i = 0; i < r->world; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (uint32_t i = 0; i < r->world; i++)
        hotbed_comm_destroy(comms[i]);
    CHECK(pthread_barrier_destroy(&ready) == 0);
    return calls;
}

static rank_call *all_good(ranks *r, const rank_call *model) {
    rank_call *calls = together(r, model);
    for (uint32_t i = 0; i < r->world; i++)
        if (calls[i].status != HOTBED_OK)
            hotbed_check_failed(__FILE__, __LINE__, "rank %u: %s", i, calls[i].text);
    return calls;
}

static const ranks_shape adagrad = {.optimizer = HOTBED_OPT_ADAGRAD},
                         sgd = {.optimizer = HOTBED_OPT_SGD};

/* The ranks of a test, and its stream. */
typedef struct sides {
    hotbed_stream *stream;
    ranks from, to;
} sides;

/* Create `from` ranks with rows and `to` ranks without, in an empty directory.  One test has one at a time. */
static sides *open_sides(const ranks_shape *shape, uint32_t from, uint32_t to) {
    static sides s;
    s = (sides){.stream = sample_stream(HOTBED_BACKEND_HOST)};
    ranks_create(&s.from, shape, from, s.stream);
    if (to > 0)
        ranks_create(&s.to, shape, to, s.stream);
    ranks_fill(&s.from, 1);
    return &s;
}

static void close_sides(sides *s) {
    ranks_destroy(&s->from);
    ranks_destroy(&s->to);
    hotbed_stream_destroy(s->stream);
}

static const uint32_t pairs[][2] = {{1, 3}, {3, 1},  {4, 2}, {2, 5}, {7, 8},
                                    {5, 3}, {16, 4}, {3, 3}, {1, 1}, {2, 16}};

static void ranks_save_and_load_together(hotbed_backend backend) {
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        ranks_shape shape = {
            .optimizer = (hotbed_optimizer_kind)(HOTBED_OPT_SGD + i % HOTBED_OPT_LAST),
            .route = (hotbed_route_kind)(i % 3),
            .score = i % 3 == 1 ? HOTBED_SCORE_TIMESTAMP_LFU : HOTBED_SCORE_STEP,
        };
        sides *s = open_sides(&shape, pairs[i][0], pairs[i][1]);
        const char *full = sample_path("full"), *one = sample_path("one");
        ranks_mark(&s->from);
        all_good(&s->from, &(rank_call){.path = full});
        ranks_change_some(&s->from);
        all_good(&s->from, &(rank_call){.path = one, .parent = full});
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, one, NULL));
        all_good(
            &s->to,
            &(rank_call){.load = true, .path = full, .increments = &one, .num_increments = 1});
        ranks_check(&s->to, &s->from);
        close_sides(s);
    }
}

/* Ranks without optimizer load what ranks with Adam saved, from their own shards and redistributed. */
static void ranks_without_optimizer_load_the_weights(hotbed_backend backend) {
    const ranks_shape adam = {.optimizer = HOTBED_OPT_ADAM}, none = {0};
    for (uint32_t world = 2; world <= 3; world++) {
        sides *s = open_sides(&adam, 2, 0);
        const char *path = sample_path("adam");
        all_good(&s->from, &(rank_call){.path = path});
        ranks_create(&s->to, &none, world, s->stream);
        all_good(&s->to, &(rank_call){.load = true, .path = path});
        ranks_check(&s->to, &s->from);
        close_sides(s);
    }
}

/* --- each byte is read once ----------------------------------------------------------------- */

enum { BULK_TABLES = 2, STEPS = 4, DIM = 64 };

/* The number of keys of the hash table "keys" and of rows of the static table "rows"; 2 GB with
 * HOTBED_TEST_WHOLE. */
typedef struct bulk {
    uint64_t keys, rows;
} bulk;

static void create_bulk(ranks *r, uint32_t world, const bulk *b, hotbed_stream *stream) {
    hotbed_table_options tables[BULK_TABLES];
    hotbed_storage_options options;
    *r = (ranks){.world = world, .stream = stream};
    CHECK_OK(hotbed_route_init(&r->routes[0], HOTBED_ROUTE_HASH_ROUND_ROBIN, world, 0));
    CHECK_OK(hotbed_route_init(&r->routes[1], HOTBED_ROUTE_CONTINUOUS, world, b->rows));
    for (uint32_t i = 0; i < world; i++) {
        for (uint32_t t = 0; t < BULK_TABLES; t++) {
            tables[t] = (hotbed_table_options){
                .size = sizeof tables[t], .name = t == 0 ? "keys" : "rows", .dim = DIM};
        }
        uint64_t rows = hotbed_route_rows(&r->routes[1], i);
        tables[0].capacity = b->keys / world + b->keys / world / 8 + 200;
        tables[1].kind = HOTBED_TABLE_STATIC;
        tables[1].capacity = rows == 0 ? 1 : rows;
        hotbed_storage_options_init(&options);
        options.num_tables = BULK_TABLES;
        options.tables = tables;
        options.optimizer.kind = HOTBED_OPT_ADAM;
        CHECK_OK(hotbed_storage_create(&options, stream, &r->storages[i]));
    }
}

/* Set every `step`-th key and row from `first` on to `value`, or to the initial row of a new key. */
static void set_bulk(ranks *r, const bulk *b, uint64_t first, uint64_t step, float value) {
    enum { MAX_KEYS = 4096 };
    static uint64_t keys[MAX_KEYS];
    static float weights[MAX_KEYS * DIM];
    hotbed_rows rows = {.weights = weights};
    for (uint64_t i = 0; i < (uint64_t)MAX_KEYS * DIM; i++)
        weights[i] = value + (float)(i % 1000);
    for (uint32_t rank = 0; rank < r->world; rank++)
        for (uint32_t t = 0; t < BULK_TABLES; t++)
            for (uint64_t key = first, n = 0, end = t == 0 ? b->keys : b->rows; key < end;) {
                for (n = 0; n < MAX_KEYS && key < end; key += step)
                    if (hotbed_route_rank(&r->routes[t], key) == rank)
                        keys[n++] = t == 0 ? key : hotbed_route_local(&r->routes[t], key);
                CHECK_OK(hotbed_storage_set_rows(
                    r->storages[rank], t, n, keys, value == 0 ? NULL : &rows, r->stream));
                CHECK_OK(hotbed_stream_sync(r->stream));
            }
}

static void erase_bulk(ranks *r, const bulk *b, uint64_t first, uint64_t step) {
    for (uint64_t key = first; key < b->keys; key += step) {
        uint32_t rank = hotbed_route_rank(&r->routes[0], key);
        CHECK_OK(hotbed_storage_erase(r->storages[rank], 0, 1, &key, NULL, r->stream));
        CHECK_OK(hotbed_stream_sync(r->stream));
    }
}

/* The bytes that this process has read, as the kernel counts them. */
static uint64_t bytes_by_kernel(void) {
    char line[64] = "";
    FILE *file = fopen("/proc/self/io", "r");
    bool read = file != NULL && fgets(line, sizeof line, file) != NULL;
    if (file != NULL)
        fclose(file);
    return read && strncmp(line, "rchar: ", 7) == 0 ? strtoull(line + 7, NULL, 10) : 0;
}

/* The bytes that a load has to read. */
typedef struct amount {
    uint64_t rows;    /* of all columns but ERASED */
    uint64_t payload; /* by one rank: columns, metadata, and block digests */
    uint64_t each;    /* by every rank: MANIFEST, and erased keys with their block digests */
    /* The most block digests of a shard, which every reader of its rows reads. */
    uint64_t most_blocks;
    uint64_t shards; /* number of shards */
} amount;

static void add_amount(const char *path, amount *a) {
    hotbed_manifest m = ranks_manifest(path);
    char name[300];
    size_t text = 0;
    snprintf(name, sizeof name, "%s/MANIFEST", path);
    free(sample_read_file(name, &text));
    a->each += text;
    a->shards += m.world;
    for (uint32_t s = 0; s < m.world; s++) {
        uint64_t blocks = m.shards[s].blocks.bytes, rows = 0, erased = 0;
        a->payload += m.shards[s].metadata_bytes + blocks;
        a->most_blocks = blocks > a->most_blocks ? blocks : a->most_blocks;
        for (uint32_t t = 0; t < m.num_tables; t++) {
            const hotbed_manifest_part *part = &m.parts[t * m.world + s];
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
                rows += i == HOTBED_COLUMN_ERASED ? 0 : part->columns[i].bytes;
            erased += part->columns[HOTBED_COLUMN_ERASED].bytes;
        }
        a->rows += rows;
        a->payload += rows;
        a->each += erased == 0 ? 0 : erased + blocks; /* every rank reads the erased keys */
    }
    hotbed_manifest_free(&m);
}

/* Load the chain, and check how many bytes were read. */
static void read_bulk(ranks *to, const char *const *paths, uint32_t n, bool whole, uint32_t from) {
    amount a = {.rows = 0};
    for (uint32_t i = 0; i < n; i++)
        add_amount(paths[i], &a);
    uint64_t before = bytes_by_kernel(), read = 0;
    rank_call *calls = all_good(
        to, &(rank_call){
                .load = true,
                .large = whole,
                .path = paths[0],
                .increments = paths + 1,
                .num_increments = n - 1,
            });
    uint64_t kernel = bytes_by_kernel() - before;
    for (uint32_t i = 0; i < to->world; i++)
        read += calls[i].disk.bytes_read;
    uint64_t once = read - to->world * a.each, readers = a.shards + n * to->world;
    if (whole)
        printf(
            "%u to %u, %u increments: %.3f GB, read %.5f times, of these and %.2f MB of metadata "
            "and digests %.5f times, beside %u times %llu bytes; by the kernel's count %+lld "
            "bytes\n",
            from, to->world, n - 1, (double)a.rows / 1e9, (double)once / (double)a.rows,
            (double)(a.payload - a.rows) / 1e6, (double)once / (double)a.payload, to->world,
            (unsigned long long)a.each, (long long)(kernel - read));
    CHECK(once >= a.rows);
    CHECK(once <= a.payload + readers * a.most_blocks * BULK_TABLES);
    CHECK(!whole || (double)once <= 1.001 * (double)a.payload);
}

/* The bytes of a checkpoint's files without gaps and index: MANIFEST, metadata, block digests, all columns. */
static uint64_t payload_of(const char *path) {
    hotbed_manifest m = ranks_manifest(path);
    char name[300];
    size_t bytes = 0;
    snprintf(name, sizeof name, "%s/MANIFEST", path);
    free(sample_read_file(name, &bytes));
    for (uint32_t s = 0; s < m.world; s++)
        bytes += m.shards[s].metadata_bytes + m.shards[s].blocks.bytes;
    for (uint32_t p = 0; p < m.num_tables * m.world; p++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            bytes += m.parts[p].columns[i].bytes;
    hotbed_manifest_free(&m);
    return bytes;
}

/* The bytes that a rewrite of the chain reads, with `keep_bytes` for keys and `held_bytes` for blocks. */
static uint64_t read_by_rewrite(
    const char *const *paths, uint32_t n, const hotbed_rewrite_options *options,
    uint64_t keep_bytes, uint64_t held_bytes) {
    hotbed_chain chain;
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    disk.calls.sync = ranks_calls().sync;
    CHECK_OK(hotbed_chain_open(&disk.calls, paths, n, &chain));
    chain.held_bytes = held_bytes;
    if (keep_bytes < chain.keep_bytes)
        chain.keep_bytes = keep_bytes;
    CHECK_OK(hotbed_checkpoint_rewrite(&disk.calls, &chain, sample_path("made"), options));
    hotbed_chain_close(&chain);
    sample_remove(sample_path("made"));
    return disk.bytes_read;
}

/* Rewrite the chain as a full checkpoint of other ranks: each byte is read once, though keys are counted
 * before rows are read, and even if no part can hold a block. */
static void rewrite_bulk(const char *const *paths, uint32_t n, uint32_t world) {
    uint64_t payload = 0;
    hotbed_rewrite_options options = {.world = world};
    for (uint32_t i = 0; i < n; i++)
        payload += payload_of(paths[i]);
    CHECK(read_by_rewrite(paths, n, &options, 0, 0) > payload); /* keys do not fit in memory */
    for (uint32_t route = 0; route < 2; route++) {
        options.route = route * (HOTBED_ROUTE_HASH_ROUND_ROBIN + 1);
        uint64_t read = read_by_rewrite(paths, n, &options, UINT64_MAX, route);
        CHECK(n == 1 ? read == payload : read <= payload); /* superseded blocks are not read */
    }
}

/* The loaded rows are those saved last. */
static void check_bulk(ranks *from, ranks *to, bool whole) {
    const char *a = sample_path("a"), *b = sample_path("b");
    all_good(from, &(rank_call){.path = a, .large = whole});
    all_good(to, &(rank_call){.path = b, .large = whole});
    hotbed_manifest x = ranks_manifest(a), y = ranks_manifest(b);
    for (uint32_t t = 0; t < BULK_TABLES; t++)
        CHECK_BYTES(&x.tables[t].content, &y.tables[t].content, sizeof x.tables[t].content);
    hotbed_manifest_free(&x);
    hotbed_manifest_free(&y);
    sample_remove(a);
    sample_remove(b);
}

static void read_pair(uint32_t n, uint32_t m, bool whole, hotbed_stream *stream) {
    static ranks from, to;
    const bulk b = whole ? (bulk){1700000, 850000} : (bulk){8000, 3000};
    const char *paths[STEPS];
    create_bulk(&from, n, &b, stream);
    create_bulk(&to, m, &b, stream);
    ranks_mark(&from);
    for (uint32_t i = 0; i < STEPS; i++) {
        char name[16];
        snprintf(name, sizeof name, "step-%u", i);
        paths[i] = sample_path(name);
        if (i == 0)
            set_bulk(&from, &b, 0, 1, 0);
        else
            set_bulk(&from, &b, i, 50, (float)i);
        if (i > 0)
            erase_bulk(&from, &b, i, whole ? 5000 : 50);
        all_good(
            &from,
            &(rank_call){.path = paths[i], .parent = i == 0 ? NULL : paths[i - 1], .large = whole});
        if (i == 0)
            read_bulk(&to, paths, 1, whole, n);
    }
    read_bulk(&to, paths, STEPS, whole, n);
    rewrite_bulk(paths, 1, m);
    rewrite_bulk(paths, STEPS, m);
    check_bulk(&from, &to, whole);
    for (uint32_t i = 0; i < STEPS; i++)
        sample_remove(paths[i]);
    ranks_destroy(&from);
    ranks_destroy(&to);
}

/* Each byte of a row is read by one rank, whatever the numbers of ranks; besides, block digests are read
 * twice and metadata once. */
static void each_byte_is_read_once(hotbed_backend backend) {
    static const uint32_t some[][2] = {{3, 4}, {1, 3}, {8, 3}, {3, 3}};
    static const uint32_t all[][2] = {{61, 16}, {16, 61}, {1, 4}, {4, 1},
                                      {3, 8},   {8, 3},   {5, 7}, {8, 8}};
    hotbed_stream *stream = sample_stream(HOTBED_BACKEND_HOST);
    bool whole = ranks_whole();
    const size_t count = whole                    ? sizeof all / sizeof *all
                         : hotbed_test_is_small() ? 1
                                                  : sizeof some / sizeof *some;
    for (size_t i = 0; i < count; i++)
        read_pair(whole ? all[i][0] : some[i][0], whole ? all[i][1] : some[i][1], whole, stream);
    hotbed_stream_destroy(stream);
}

/* Write `key` over the key of row `row` of table 0 of a checkpoint of one rank, with digests that agree. */
static void forge_key(const char *path, uint64_t row, uint64_t key) {
    hotbed_manifest m = ranks_manifest(path);
    hotbed_extent *keys = &m.parts[0].columns[HOTBED_COLUMN_KEYS], *blocks = &m.shards[0].blocks;
    char name[600], *text = NULL;
    size_t bytes = 0;
    snprintf(name, sizeof name, "%s/shard-00000-of-00001.h5", path);
    unsigned char *file = sample_read_file(name, &bytes), *all = file + keys->offset;
    memcpy(all + row * sizeof key, &key, sizeof key);
    uint64_t number = row * sizeof key / m.block_bytes, first = number * m.block_bytes;
    uint64_t n = keys->bytes - first < m.block_bytes ? keys->bytes - first : m.block_bytes;
    hotbed_digest digest = hotbed_digest_of(all + first, n);
    memcpy(
        file + blocks->offset + (keys->first_block + number) * sizeof digest, &digest,
        sizeof digest);
    keys->root = hotbed_digest_root(all, keys->bytes, m.block_bytes);
    blocks->root = hotbed_digest_root(file + blocks->offset, blocks->bytes, m.block_bytes);
    sample_write_file(name, file, bytes);
    free(file);
    CHECK_OK(hotbed_manifest_print(&m, &text, &bytes));
    snprintf(name, sizeof name, "%s/MANIFEST", path);
    sample_write_file(name, text, bytes);
    hotbed_delete(text);
    hotbed_manifest_free(&m);
}

/* Three ranks read a part. The first key of the second rank is the last one of the first: the later row must
 * not win in silence. */
static void a_key_that_two_ranks_read_is_found(hotbed_backend backend) {
    enum { BORDER = 2560 }; /* of 8000 rows: blocks of 512 keys begin at 2560 and 5120 */
    static ranks one, to;
    const bulk b = {8000, 3000};
    hotbed_stream *stream = sample_stream(HOTBED_BACKEND_HOST);
    const char *path = sample_path("c");
    create_bulk(&one, 1, &b, stream);
    create_bulk(&to, 3, &b, stream);
    set_bulk(&one, &b, 0, 1, 0);
    all_good(&one, &(rank_call){.path = path});
    all_good(&to, &(rank_call){.load = true, .path = path});
    hotbed_manifest m = ranks_manifest(path);
    uint64_t key = 0;
    char text[64];
    size_t bytes = 0;
    unsigned char *file = sample_read_file(sample_path("c/shard-00000-of-00001.h5"), &bytes);
    memcpy(
        &key, file + m.parts[0].columns[HOTBED_COLUMN_KEYS].offset + (BORDER - 1) * sizeof key,
        sizeof key);
    free(file);
    hotbed_manifest_free(&m);
    forge_key(path, BORDER, key);
    rank_call *calls = together(&to, &(rank_call){.load = true, .path = path});
    snprintf(text, sizeof text, ": keys: key %llu is out of order", (unsigned long long)key);
    for (uint32_t i = 0; i < 3; i++) {
        if (calls[i].status != HOTBED_ERR_CORRUPT || strstr(calls[i].text, text) == NULL)
            hotbed_check_failed(__FILE__, __LINE__, "rank %u: %s", i, calls[i].text);
    }
    ranks_destroy(&one);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* One of four ranks reads a damaged block: the others, too, learn its file, column and block. */
static void all_ranks_name_the_block_that_one_found_damaged(hotbed_backend backend) {
    sides *s = open_sides(&adagrad, 2, 4);
    const char *path = sample_path("c"), *name = sample_path("c/shard-00001-of-00002.h5");
    size_t bytes = 0;
    all_good(&s->from, &(rank_call){.path = path});
    hotbed_manifest m = ranks_manifest(path);
    const hotbed_extent *values = &m.parts[1].columns[HOTBED_COLUMN_VALUES];
    unsigned char *file = sample_read_file(name, &bytes);
    file[values->offset + values->bytes - 1] ^= 1;
    sample_write_file(name, file, bytes);
    free(file);
    hotbed_manifest_free(&m);
    rank_call *calls = together(&s->to, &(rank_call){.load = true, .path = path});
    for (uint32_t i = 0; i < 4; i++)
        if (calls[i].status != HOTBED_ERR_CORRUPT ||
            strstr(calls[i].text, "/shard-00001-of-00002.h5: hash/values: block ") == NULL)
            hotbed_check_failed(__FILE__, __LINE__, "rank %u: %s", i, calls[i].text);
    close_sides(s);
}

/* A rank's disk fails at any call: all ranks return an error, none waits for the failed one, and no files are
 * left. */
static void a_failing_rank_fails_all(hotbed_backend backend) {
    sides *s = open_sides(&adagrad, 2, 3);
    const char *path = sample_path("good");
    all_good(&s->from, &(rank_call){.path = path});
    for (int load = 0; load < 2; load++)
        for (uint64_t n = 1;; n += 3) {
            rank_call model = {
                .load = load == 1,
                .path = load == 1 ? path : sample_path("bad"),
                .rank = 1,
                .disk = {.fault = SAMPLE_FAULT_EIO, .at = n},
            };
            ranks *r = load == 1 ? &s->to : &s->from;
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
            CHECK_EQ(sample_count_names(sample_path(".")), 1);
            path = sample_path("good");
            if (over)
                break;
        }
    ranks_check(&s->to, &s->from);
    close_sides(s);
}

/* Two full saves fail at any call of rank 0's disk (short runs: at each seventh), their commits included: no
 * rank's mark changes. */
static void failed_saves_change_no_ranks_mark(hotbed_backend backend) {
    sides *s = open_sides(&adagrad, 2, 0);
    ranks *r = &s->from;
    ranks_mark(r);
    const uint64_t step = hotbed_test_is_small() ? 7 : 1;
    uint64_t n = 0, count = 0;
    do {
        const char *base = sample_path("base"), *full = sample_path("full"),
                   *one = sample_path("one");
        rank_call model = {.path = full, .disk = {.fault = SAMPLE_FAULT_ENOSPC, .at = n += step}};
        hotbed_status status = HOTBED_ERR_IO;
        all_good(r, &(rank_call){.path = base});
        for (int i = 0; i < 2 && status != HOTBED_OK; i++) {
            const rank_call *calls = together(r, &model);
            status = calls[0].status;
            count = calls[0].disk.count;
            CHECK_EQ(calls[1].status, status);
        }
        if (status == HOTBED_OK) {
            sample_remove(full);
        } else {
            CHECK_EQ(status, HOTBED_ERR_IO);
            all_good(r, &(rank_call){.path = one, .parent = base});
            sample_remove(one);
        }
        sample_remove(base);
    } while (count >= n);
    CHECK(n > 20);
    close_sides(s);
}

/* The n-th allocation fails on one rank: all ranks fail or none does, and none waits until the deadline for a
 * rank that has left. */
static bool without_memory(ranks *r, rank_call model, uint64_t n) {
    model.no_memory = n;
    rank_call *calls = together(r, &model);
    bool failed = fault_disarm(), good = calls[0].status == HOTBED_OK, memory = false;
    for (uint32_t i = 0; i < r->world; i++) {
        memory = memory || calls[i].status == HOTBED_ERR_MEMORY;
        CHECK(calls[i].reason != HOTBED_COMM_DEADLINE);
        CHECK((calls[i].status == HOTBED_OK) == good);
    }
    CHECK(good || (failed && memory));
    return failed;
}

static void a_rank_without_memory_fails_all_at_once(hotbed_backend backend) {
    sides *s = open_sides(&adagrad, 2, 3);
    const char *parent = sample_path("."), *path = sample_path("good"), *bad = sample_path("bad");
    all_good(&s->from, &(rank_call){.path = path});
    for (uint64_t n = 1; without_memory(&s->from, (rank_call){.vote = true}, n); n++)
        continue;
    for (uint64_t n = 1; without_memory(&s->to, (rank_call){.load = true, .path = path}, n);)
        n += 1 + n / 8;
    ranks_check(&s->to, &s->from);
    for (uint64_t n = 1; without_memory(&s->from, (rank_call){.path = bad}, n); n += 1 + n / 8) {
        /* The call succeeded without the allocation, or the last vote failed. */
        if (sample_count_names(parent) == 2)
            sample_remove(bad);
        CHECK_EQ(sample_count_names(parent), 1);
    }
    close_sides(s);
}

/* Rank 1 loads another checkpoint than the others, or fewer increments: no rank loads anything. */
static void ranks_that_load_different_checkpoints_are_refused(hotbed_backend backend) {
    sides *s = open_sides(&sgd, 2, 0);
    ranks *r = &s->from;
    ranks_mark(r);
    const char *full = sample_path("full"), *one = sample_path("one"), *two = sample_path("two");
    all_good(r, &(rank_call){.path = two});
    all_good(r, &(rank_call){.path = full});
    all_good(r, &(rank_call){.path = one, .parent = full});
    const rank_call model = {
        .load = true, .path = full, .increments = &one, .num_increments = 1, .rank = 1};
    for (int i = 0; i < 2; i++) {
        rank_call odd = model;
        odd.odd_path = i == 0 ? two : full;
        const rank_call *calls = together(r, &odd);
        for (uint32_t k = 0; k < r->world; k++) {
            CHECK_EQ(calls[k].status, HOTBED_ERR_STATE);
            CHECK(
                strstr(
                    calls[k].text, i == 0 ? "rank 1 loads another checkpoint than rank 0"
                                          : "rank 1 loads 0 increments, rank 0 1") != NULL);
        }
    }
    ranks_check(r, r);
    all_good(r, &model);
    close_sides(s);
}

/* Rank 1 saves under another name or in another directory: all ranks fail, and name both paths. A path that is
 * only written in another way is the same. */
static void ranks_that_save_to_different_paths_are_refused(hotbed_backend backend) {
    sides *s = open_sides(&sgd, 3, 0);
    ranks *r = &s->from;
    const char *directory = sample_path("."), *path = sample_path("step-1");
    const char *other = sample_path("other"), *same = sample_path(".//step-1/");
    const char *odd[] = {
        sample_path("step-10"), sample_path("step-2"), sample_path("other/step-1")};
    CHECK(mkdir(other, 0700) == 0);
    for (int i = 0; i < 3; i++) {
        const rank_call model = {.path = path, .odd_path = odd[i], .rank = 1};
        const rank_call *calls = together(r, &model);
        for (uint32_t k = 0; k < r->world; k++) {
            CHECK_EQ(calls[k].status, i < 2 ? HOTBED_ERR_ARGUMENT : HOTBED_ERR_IO);
            CHECK_EQ(calls[k].reason, HOTBED_COMM_WELL);
            CHECK(strstr(calls[k].text, i < 2 ? odd[i] : other) != NULL);
            CHECK(strstr(strstr(calls[k].text, "rank 0"), path) != NULL);
        }
        CHECK_EQ(sample_count_names(directory), 1); /* "other" */
    }
    all_good(r, &(rank_call){.path = path, .odd_path = same, .rank = 1});
    CHECK_EQ(sample_count_names(directory), 2);
    close_sides(s);
}

/* The checks of a rank's options fail all ranks, with its text, and the communicator stays usable. */
static void wrong_options_of_a_rank_fail_all(hotbed_backend backend) {
    sides *s = open_sides(&sgd, 2, 0);
    ranks *r = &s->from;
    ranks_mark(r);
    const char *full = sample_path("full"), *next = sample_path("next");
    all_good(r, &(rank_call){.path = full, .public = true});
    const rank_call models[] = {
        {.path = next, .parent = full, .wrong = NO_MARK},
        {.path = next, .wrong = OTHER_SHARE},
        {.path = full, .load = true, .wrong = OTHER_SHARE},
        {.path = full, .load = true, .wrong = NO_INCREMENT},
        {.path = next, .wrong = NO_PATH},
        {.path = full, .load = true, .wrong = NO_PATH},
    };
    static const char *const says[] = {
        [NO_MARK] = "needs a mark",
        [OTHER_SHARE] = "share says rank 0 of 2, the communicator 1 of 2",
        [NO_INCREMENT] = "path of increment 0 is NULL",
        [NO_PATH] = "path is NULL",
    };
    for (uint32_t i = 0; i < sizeof models / sizeof *models; i++) {
        rank_call odd = models[i];
        odd.rank = 1;
        odd.public = true;
        const rank_call *calls = together(r, &odd);
        for (uint32_t k = 0; k < r->world; k++) {
            CHECK_EQ(calls[k].status, HOTBED_ERR_ARGUMENT);
            CHECK_EQ(calls[k].reason, HOTBED_COMM_WELL);
            CHECK(strstr(calls[k].text, says[odd.wrong]) != NULL);
        }
    }
    all_good(r, &(rank_call){.path = next, .parent = full, .public = true});
    close_sides(s);
}

/* The share and the communicator must name the same rank. */
static void a_rank_that_differs_from_the_communicators_is_refused(hotbed_backend backend) {
    sides *s = open_sides(&sgd, 2, 0);
    hotbed_comm *comm = NULL;
    CHECK_OK(hotbed_comm_create_self(NULL, &comm));
    hotbed_checkpoint_options options = ranks_options(&s->from, 1);
    hotbed_checkpoint_load_options load = {.size = sizeof load};
    load.comm = options.comm = comm;
    load.share = options.share;
    const char *path = sample_path("c");
    CHECK_STATUS(
        hotbed_checkpoint_save(path, &s->from.storages[1], 1, &options, s->stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_checkpoint_load(path, &s->from.storages[1], 1, &load, NULL, s->stream),
        HOTBED_ERR_ARGUMENT);
    hotbed_comm_destroy(comm);
    close_sides(s);
}

const hotbed_test hotbed_tests[] = {
    {TEST(ranks_save_and_load_together)},
    {TEST(ranks_without_optimizer_load_the_weights)},
    {TEST(each_byte_is_read_once)},
    {TEST(a_key_that_two_ranks_read_is_found)},
    {TEST(all_ranks_name_the_block_that_one_found_damaged)},
    {TEST(a_failing_rank_fails_all)},
    {TEST(failed_saves_change_no_ranks_mark)},
    {TEST(a_rank_without_memory_fails_all_at_once)},
    {TEST(ranks_that_load_different_checkpoints_are_refused)},
    {TEST(ranks_that_save_to_different_paths_are_refused)},
    {TEST(wrong_options_of_a_rank_fail_all)},
    {TEST(a_rank_that_differs_from_the_communicators_is_refused)},
    {NULL, NULL},
};
