/* tests/checkpoint/test_checkpoint_world.c - ranks save and load together over every transport, as threads
 * and as processes. */
#include "storage/types.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 4, PATH_BYTES = 512 };

/* Use the directory of rank 0 on all ranks. */
static void share_directory(const world_rank *me, char path[PATH_BYTES]) {
    world_bytes b = world_alloc(me, PATH_BYTES);
    if (me->rank == 0)
        snprintf((char *)b.host, PATH_BYTES, "%s", hotbed_test_directory());
    world_upload(me, &b);
    CHECK_OK(hotbed_comm_broadcast(me->comm, 0, PATH_BYTES, b.device.data, me->stream));
    world_download(me, &b);
    memcpy(path, b.host, PATH_BYTES);
    world_free(&b);
}

static void meet(const world_rank *me) {
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

/* The calls of all ranks returned the same status. */
static void check_all_have(const world_rank *me, hotbed_status status) {
    world_bytes b = world_alloc(me, sizeof status);
    memcpy(b.host, &status, sizeof status);
    world_upload(me, &b);
    CHECK_OK(hotbed_comm_broadcast(me->comm, 0, sizeof status, b.device.data, me->stream));
    world_download(me, &b);
    CHECK_BYTES(b.host, &status, sizeof status);
    world_free(&b);
}

static const char *name_in(char out[PATH_BYTES + 32], const char *directory, const char *name) {
    snprintf(out, PATH_BYTES + 32, "%s/%s", directory, name);
    return out;
}

static hotbed_status save(
    const world_rank *me, const ranks *r, const char *path, const char *parent,
    const hotbed_io_calls *calls) {
    hotbed_checkpoint_config config = ranks_config(calls);
    hotbed_checkpoint_options options = ranks_options(r, me->rank);
    options.comm = me->comm;
    options.mark = r->marks[me->rank];
    options.parent = parent;
    return sample_write(&config, path, r->storages[me->rank], &options, me->stream);
}

static hotbed_status load(
    const world_rank *me, const ranks *r, const char *path, const char *increment,
    const hotbed_io_calls *calls) {
    hotbed_checkpoint_config config = ranks_config(calls);
    hotbed_checkpoint_load_options options = {.size = sizeof options};
    uint64_t step = 0;
    options.share = ranks_options(r, me->rank).share;
    options.comm = me->comm;
    options.increments = &increment;
    options.num_increments = increment == NULL ? 0 : 1;
    hotbed_status status =
        sample_load_with(&config, path, r->storages[me->rank], &options, &step, me->stream);
    CHECK(status != HOTBED_OK || step == 5);
    return status;
}

/* Each process creates the storages of all ranks, and saves and loads its own. */
static void make(
    const world_rank *me, ranks *r, hotbed_optimizer_kind optimizer, hotbed_route_kind route) {
    ranks_shape shape = {
        .optimizer = optimizer, .route = route, .score = HOTBED_SCORE_TIMESTAMP_LFU};
    ranks_create(r, &shape, me->size, me->stream);
}

static void save_and_load(world_rank *me) {
    char directory[PATH_BYTES], full[PATH_BYTES + 32], one[PATH_BYTES + 32];
    hotbed_io_calls calls = ranks_calls();
    ranks from, same, other;
    share_directory(me, directory);
    name_in(full, directory, "full");
    name_in(one, directory, "increment");
    for (uint32_t kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++) {
        make(me, &from, (hotbed_optimizer_kind)kind, HOTBED_ROUTE_HASH_ROUND_ROBIN);
        make(me, &same, (hotbed_optimizer_kind)kind, HOTBED_ROUTE_HASH_ROUND_ROBIN);
        make(me, &other, (hotbed_optimizer_kind)kind, HOTBED_ROUTE_ROUND_ROBIN);
        ranks_mark(&from);
        ranks_fill(&from, 1);
        CHECK_OK(save(me, &from, full, NULL, &calls));
        ranks_change_some(&from);
        CHECK_OK(save(me, &from, one, full, &calls));
        CHECK_OK(load(me, &same, full, one, &calls));
        ranks_check_rank(&same, &from, me->rank);
        CHECK_OK(load(me, &other, full, one, &calls)); /* rows move between ranks */
        ranks_check_rank(&other, &from, me->rank);
        meet(me);
        if (me->rank == 0) {
            sample_remove(full);
            sample_remove(one);
        }
        ranks_destroy(&from);
        ranks_destroy(&same);
        ranks_destroy(&other);
    }
}

/* Load a checkpoint of another number of ranks, and load this one by another number. */
static void reshard(world_rank *me) {
    static const uint32_t worlds[] = {1, 2, 3, 5};
    char directory[PATH_BYTES], before[PATH_BYTES + 32], after[PATH_BYTES + 32];
    hotbed_io_calls calls = ranks_calls();
    share_directory(me, directory);
    name_in(before, directory, "before");
    name_in(after, directory, "after");
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM, .score = HOTBED_SCORE_TIMESTAMP_LFU};
        ranks few, here;
        ranks_create(&few, &shape, worlds[i], me->stream);
        make(me, &here, HOTBED_OPT_ADAM, HOTBED_ROUTE_HASH_ROUND_ROBIN);
        ranks_fill(&few, 1);
        if (me->rank == 0)
            ranks_save(&few, before);
        meet(me);
        CHECK_OK(load(me, &here, before, NULL, &calls));
        ranks_check_rank(&here, &few, me->rank);
        CHECK_OK(save(me, &here, after, NULL, &calls));
        if (me->rank == 0) {
            ranks_change(&few, 9, 0, 1);
            ranks_load(&few, after, &calls);
            ranks_fill(&here, 1); /* record the expected rows */
            ranks_check(&few, &here);
            sample_remove(before);
            sample_remove(after);
        }
        meet(me);
        ranks_destroy(&few);
        ranks_destroy(&here);
    }
}

/* The disk of the last rank fails: all ranks return an error, no files are left, and the communicator still
 * works. */
static void fail_together(world_rank *me) {
    char directory[PATH_BYTES], good[PATH_BYTES + 32], bad[PATH_BYTES + 32];
    hotbed_io_calls calls = ranks_calls();
    ranks r;
    share_directory(me, directory);
    name_in(good, directory, "good");
    name_in(bad, directory, "bad");
    make(me, &r, HOTBED_OPT_ADAGRAD, HOTBED_ROUTE_ROUND_ROBIN);
    ranks_fill(&r, 1);
    CHECK_OK(save(me, &r, good, NULL, &calls));
    for (uint64_t at = 2; at < 12; at += 3)
        for (int loads = 0; loads < 2; loads++) {
            sample_disk disk;
            bool fails = me->rank == me->size - 1;
            sample_disk_init(&disk, fails ? SAMPLE_FAULT_EIO : SAMPLE_FAULT_NONE, at);
            disk.calls.sync = calls.sync;
            hotbed_status status = loads == 1 ? load(me, &r, good, NULL, &disk.calls)
                                              : save(me, &r, bad, NULL, &disk.calls);
            /* A close that fails after reading is ignored: then all ranks succeed. */
            CHECK(status == HOTBED_ERR_IO || (status == HOTBED_OK && at > 2));
            CHECK_EQ(disk.open_files, 0);
            check_all_have(me, status);
            if (me->rank == 0 && loads == 0 && status == HOTBED_OK)
                sample_remove(bad);
            CHECK(me->rank != 0 || sample_count_names(directory) == 1);
            meet(me);
        }
    CHECK_OK(load(me, &r, good, NULL, &calls));
    ranks_check_rank(&r, &r, me->rank);
    meet(me);
    if (me->rank == 0)
        sample_remove(good);
    ranks_destroy(&r);
}

/* A table of row numbers whose row 1, the last rank's, has a value that int8 lacks. */
static hotbed_storage *make_numbered(
    const world_rank *me, hotbed_dtype dtype, const hotbed_route *route) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    hotbed_memory memory;
    table.name = "t", table.dim = 4, table.kind = HOTBED_TABLE_STATIC, table.dtype = dtype;
    table.capacity = hotbed_route_rows(route, me->rank);
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    CHECK_OK(hotbed_storage_create(&options, me->stream, &storage));
    if (dtype != HOTBED_F32 || hotbed_route_rank(route, 1) != me->rank)
        return storage;
    float row[6] = {1, 1e6F, 0, 0};
    const uint64_t local = hotbed_route_local(route, 1);
    memcpy(row + 4, &local, sizeof local);
    CHECK_OK(hotbed_memory_alloc(me->stream, HOTBED_MEMORY_DEVICE, sizeof row, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, row, sizeof row, me->stream));
    hotbed_rows parts = {.weights = memory.data};
    CHECK_OK(hotbed_storage_set_rows(
        storage, 0, 1, (void *)((float *)memory.data + 4), &parts, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_memory_free(&memory);
    return storage;
}

/* One rank meets a value that the type of the table lacks: all ranks fail, and the error of that rank names
 * the key, whether the rows stay on their ranks or move. */
static void lack_value_together(world_rank *me) {
    char directory[PATH_BYTES], path[PATH_BYTES + 32];
    hotbed_route dealt, blocks;
    share_directory(me, directory);
    name_in(path, directory, "values");
    CHECK_OK(hotbed_route_init(&dealt, HOTBED_ROUTE_ROUND_ROBIN, me->size, 40));
    CHECK_OK(hotbed_route_init(&blocks, HOTBED_ROUTE_CONTINUOUS, me->size, 40));
    hotbed_storage *from = make_numbered(me, HOTBED_F32, &dealt);
    hotbed_checkpoint_options options = {.size = sizeof options};
    options.share = (hotbed_checkpoint_share){me->rank, me->size, &dealt};
    options.comm = me->comm;
    CHECK_OK(hotbed_checkpoint_save(path, &from, 1, &options, me->stream));
    for (int moves = 0; moves < 2; moves++) {
        const hotbed_route *route = moves != 0 ? &blocks : &dealt;
        hotbed_storage *to = make_numbered(me, HOTBED_INT8, route);
        hotbed_checkpoint_load_options load = {.size = sizeof load};
        load.share = (hotbed_checkpoint_share){me->rank, me->size, route};
        load.comm = me->comm;
        hotbed_checkpoint_report report = {.size = sizeof report};
        const hotbed_status status =
            hotbed_checkpoint_load(path, &to, 1, &load, &report, me->stream);
        CHECK_STATUS(status, HOTBED_ERR_ARGUMENT);
        if (strstr(hotbed_last_error(), "int8 does not have the value 1e+06") != NULL)
            CHECK_EQ(hotbed_last_error_detail()->key, 1);
        else
            CHECK(me->size > 1 && strstr(hotbed_last_error(), "rank ") != NULL);
        meet(me);
        hotbed_storage_destroy(to);
    }
    if (me->rank == 0)
        sample_remove(path);
    hotbed_storage_destroy(from);
}

/* For few ranks only, because each process creates the storages of all. */
static void run_small(world_body body) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++)
        if (world_is_wanted(where, MOST))
            world_run(where, NULL, body, NULL);
}

static void ranks_save_and_load(hotbed_backend backend) {
    run_small(save_and_load);
}

static void other_numbers_of_ranks_load(hotbed_backend backend) {
    run_small(reshard);
}

static void a_failing_rank_fails_all(hotbed_backend backend) {
    run_small(fail_together);
}

static void a_value_that_a_rank_cannot_load_fails_all(hotbed_backend backend) {
    run_small(lack_value_together);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_value_that_a_rank_cannot_load_fails_all)},
    {TEST(ranks_save_and_load)},
    {TEST(other_numbers_of_ranks_load)},
    {TEST(a_failing_rank_fails_all)},
    {NULL, NULL},
};
