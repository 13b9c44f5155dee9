/* tests/checkpoint/test_checkpoint_snapshot_increments.c - snapshots that are written as increments, with and
 * without failures. */
#include "checkpoint/verify.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <string.h>

static const ranks_shape shape = {
    .optimizer = HOTBED_OPT_ADAM,
    .route = HOTBED_ROUTE_ROUND_ROBIN,
    .score = HOTBED_SCORE_TIMESTAMP_LFU};

/* Take a snapshot of rank `rank`, as an increment of `parent` unless that is NULL. */
static hotbed_checkpoint_snapshot *take(ranks *r, uint32_t rank, const char *parent) {
    return ranks_take(r, rank, parent, NULL);
}

/* Loading the chain into `to` gives the model's rows. */
static void check_chain(
    ranks *to, const char *full, const char *const *increments, uint32_t n, const ranks *model) {
    for (uint32_t i = 0; i < n; i++)
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, increments[i], NULL));
    ranks_load_chain(to, full, increments, n, &hotbed_io_system);
    ranks_check(to, model);
}

/* --- while training goes on ------------------------------------------------------------------- */

static void same_manifests(const char *a, const char *b) {
    hotbed_manifest x = ranks_manifest(a), y = ranks_manifest(b);
    CHECK(x.increment && y.increment);
    CHECK_BYTES(&x.parent, &y.parent, sizeof x.parent);
    CHECK_BYTES(&x.parent_digest, &y.parent_digest, sizeof x.parent_digest);
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        CHECK_EQ(x.tables[t].rows, y.tables[t].rows);
        CHECK_EQ(x.parts[t].erased, y.parts[t].erased);
        CHECK_BYTES(&x.tables[t].content, &y.tables[t].content, sizeof x.tables[t].content);
    }
    hotbed_manifest_free(&x);
    hotbed_manifest_free(&y);
}

/* Each snapshot, the second taken while its parent is written, has the rows that a save at that point would
 * have, and no later ones. */
static void snapshots_become_increments_during_training(hotbed_backend backend) {
    static ranks r, to, cuts[3];
    hotbed_stream *stream = sample_stream(backend);
    ranks_writer b[2];
    const char *full = sample_path("full");
    const char *more[] = {
        sample_path("one"), sample_path("two"), sample_path("three"), sample_path("four")};
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_change(&r, 1, 0, 2);
    ranks_write_begin(&b[0], take(&r, 0, NULL), full);
    ranks_train(&r, 2);
    cuts[0] = r;
    hotbed_checkpoint_snapshot *one = take(&r, 0, full);
    ranks_train(&r, 10);
    ranks_write_end(&b[0]);
    ranks_write_begin(&b[1], one, more[0]);
    ranks_train(&r, 20);
    cuts[1] = r;
    hotbed_checkpoint_snapshot *two = take(&r, 0, more[0]);
    ranks_train(&r, 30);
    ranks_write_end(&b[1]);
    check_chain(&to, full, more, 1, &cuts[0]);
    CHECK_OK(ranks_write(two, more[1]));
    hotbed_checkpoint_snapshot_destroy(two);
    check_chain(&to, full, more, 2, &cuts[1]);
    /* A save continues from the mark of a snapshot, and a snapshot from the mark of a save. */
    ranks_save_after(&r, more[2], more[1]);
    check_chain(&to, full, more, 3, &r);
    ranks_train(&r, 40);
    hotbed_checkpoint_snapshot *four = take(&r, 0, more[2]);
    CHECK_OK(ranks_write(four, more[3]));
    hotbed_checkpoint_snapshot_destroy(four);
    check_chain(&to, full, more, 4, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* A save and a snapshot of the same state, each with its own mark, have the same rows and erased keys. */
static void a_snapshot_has_the_rows_of_a_save(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    const char *full = sample_path("full"), *saved = sample_path("saved"),
               *cut = sample_path("cut");
    ranks_create(&r, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    ranks_save(&r, full);
    hotbed_checkpoint_snapshot *same = take(&r, 0, full);
    CHECK_OK(ranks_write(same, sample_path("same"))); /* an increment without changes */
    hotbed_checkpoint_snapshot_destroy(same);
    hotbed_manifest m = ranks_manifest(sample_path("same"));
    for (uint32_t t = 0; t < RANKS_TABLES; t++)
        CHECK(m.tables[t].rows == 0 && m.parts[t].erased == 0);
    hotbed_manifest_free(&m);
    ranks_train(&r, 2);
    hotbed_checkpoint_snapshot *snapshot = take(&r, 0, sample_path("same"));
    hotbed_checkpoint_id id;
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    options.mark = r.marks[0];
    options.parent = sample_path("same");
    /* After a put without its commit, the mark knows both checkpoints. */
    CHECK_OK(hotbed_save_begin(&config, saved, &id));
    CHECK_OK(sample_save_shard(&config, saved, id, r.storages[0], &options, stream));
    hotbed_checkpoint_id id_2;
    CHECK_OK(hotbed_save_begin(&config, cut, &id_2));
    CHECK_OK(hotbed_snapshot_put(&config, cut, id_2, snapshot));
    CHECK_OK(hotbed_save_commit(&config, saved, id, 1));
    CHECK_OK(hotbed_save_commit(&config, cut, id_2, 1));
    same_manifests(saved, cut);
    m = ranks_manifest(cut);
    CHECK(m.tables[0].rows > 0 && m.parts[0].erased > 0 && m.tables[1].rows > 0);
    hotbed_manifest_free(&m);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

/* --- keys that are evicted -------------------------------------------------------------------- */

enum { CAPACITY = 64, BATCH = 24 };

static hotbed_storage *create_evicting(uint64_t capacity, hotbed_stream *stream) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    table.name = "t";
    table.dim = 4;
    table.capacity = capacity;
    table.score = HOTBED_SCORE_STEP;
    table.evict = HOTBED_EVICT_LOWEST;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

/* Prefetch a batch of the keys first, first + 1, ... */
static void see(hotbed_storage *storage, uint64_t first, hotbed_stream *stream) {
    uint64_t keys[BATCH];
    for (uint64_t i = 0; i < BATCH; i++)
        keys[i] = (first + i) * 0x9E3779B97F4A7C15U;
    sample_see(storage, BATCH, BATCH, keys, stream);
}

/* The increment erases keys that were evicted.  It is loaded into a larger table: the saved table has filled
 * every slot, and a table of the same size, which receives the rows in another order, could not place all of
 * them. */
static void evicted_keys_are_erased(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage *storage = create_evicting(CAPACITY, stream);
    hotbed_storage *to = create_evicting(4 * CAPACITY, stream);
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_load_options load;
    hotbed_checkpoint_snapshot *snapshot = NULL;
    const char *full = sample_path("full"), *one = sample_path("one");
    CHECK_OK(hotbed_checkpoint_mark_create(&options.mark));
    see(storage, 0, stream);
    see(storage, BATCH, stream);
    CHECK_OK(hotbed_checkpoint_save(full, &storage, 1, &options, stream));
    sample_image before = sample_read(storage, 0, stream);
    for (uint64_t i = 2; i < 6; i++)
        see(storage, i * BATCH, stream);
    options.parent = full;
    CHECK_OK(hotbed_checkpoint_snapshot_take(&storage, 1, &options, stream, &snapshot));
    CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, one));
    sample_image after = sample_read(storage, 0, stream);
    uint64_t gone = 0;
    for (uint64_t i = 0, k = 0; i < before.rows; i++) { /* both in order of key */
        while (k < after.rows && after.keys[k] < before.keys[i])
            k++;
        gone += k == after.rows || after.keys[k] != before.keys[i];
    }
    hotbed_manifest m = ranks_manifest(one);
    CHECK(gone > 0);
    CHECK_EQ(m.parts[0].erased, gone);
    hotbed_manifest_free(&m);
    load = (hotbed_checkpoint_load_options){
        .size = sizeof load, .increments = &one, .num_increments = 1};
    CHECK_OK(hotbed_checkpoint_load(full, &to, 1, &load, NULL, stream));
    sample_check_same(storage, to, stream);
    sample_free(&before);
    sample_free(&after);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_checkpoint_mark_destroy(options.mark);
    hotbed_storage_destroy(storage);
    hotbed_storage_destroy(to);
    hotbed_stream_destroy(stream);
}

/* --- failures --------------------------------------------------------------------------------- */

/* A write, its commit included, fails at any call, or a snapshot is dropped: the next increment has all
 * changes. */
static void changes_of_a_failed_increment_are_in_the_next(hotbed_backend backend) {
    static ranks r, to;
    hotbed_stream *stream = sample_stream(backend);
    sample_disk disk;
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    uint64_t failed = 0;
    for (uint64_t n = 1;; n += hotbed_test_is_small() ? 5 : 1) {
        const char *full = sample_path("full"), *one = sample_path("one");
        ranks_save(&r, full);
        ranks_change(&r, 1 + (uint32_t)n, (uint32_t)n % 3, 7);
        ranks_erase(&r, (uint32_t)n % 11, 11);
        hotbed_checkpoint_snapshot *dropped = take(&r, 0, full), *snapshot = dropped;
        if (n % 2 == 0) {
            ranks_change(&r, 1 + (uint32_t)n, 0, 5);
            hotbed_checkpoint_snapshot_destroy(dropped);
            snapshot = take(&r, 0, full);
        }
        sample_disk_init(&disk, SAMPLE_FAULT_EIO, n);
        hotbed_checkpoint_config config = ranks_config(&disk.calls);
        hotbed_status status = hotbed_snapshot_write(&config, one, snapshot);
        CHECK_EQ(disk.open_files, 0);
        if (status != HOTBED_OK) {
            CHECK_STATUS(status, HOTBED_ERR_IO);
            failed++;
            /* Repeat the write or save instead; either has the changes since the parent. */
            if (n % 3 == 0)
                ranks_save_after(&r, one, full);
            else
                CHECK_OK(ranks_write(snapshot, one));
        }
        hotbed_checkpoint_snapshot_destroy(snapshot);
        bool last = disk.count < n;
        if (last || n % 4 == 0)
            check_chain(&to, full, &one, 1, &r);
        sample_remove(one);
        sample_remove(full);
        if (last)
            break;
    }
    CHECK(failed > (hotbed_test_is_small() ? 4 : 20));
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* Two full saves, or writes of a full snapshot, fail at any call, their commits included: an increment can still
 * follow the checkpoint before them. */
static void fail_full(hotbed_stream *stream, bool snapshots) {
    static ranks r, to;
    sample_disk disk;
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    options.mark = r.marks[0];
    uint64_t n = 0;
    do {
        const char *base = sample_path("base"), *full = sample_path("full"),
                   *one = sample_path("one");
        hotbed_checkpoint_snapshot *snapshot = NULL;
        hotbed_status status = HOTBED_ERR_IO;
        n++;
        ranks_save(&r, base);
        ranks_change(&r, 2 + (uint32_t)n, 0, 7);
        if (snapshots)
            snapshot = take(&r, 0, NULL);
        for (int i = 0; i < 2 && status != HOTBED_OK; i++) {
            sample_disk_init(&disk, SAMPLE_FAULT_ENOSPC, n);
            hotbed_checkpoint_config config = ranks_config(&disk.calls);
            status = snapshots ? hotbed_snapshot_write(&config, full, snapshot)
                               : sample_write(&config, full, r.storages[0], &options, stream);
        }
        hotbed_checkpoint_snapshot_destroy(snapshot);
        if (status == HOTBED_OK) {
            sample_remove(full);
        } else {
            CHECK_STATUS(status, HOTBED_ERR_IO);
            if (snapshots) {
                snapshot = take(&r, 0, base);
                CHECK_OK(ranks_write(snapshot, one));
                hotbed_checkpoint_snapshot_destroy(snapshot);
            } else {
                ranks_save_after(&r, one, base);
            }
            check_chain(&to, base, &one, 1, &r);
            sample_remove(one);
        }
        sample_remove(base);
    } while (disk.count >= n);
    CHECK(n > 20);
    ranks_destroy(&r);
    ranks_destroy(&to);
}

static void failed_full_writes_do_not_change_the_mark(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    fail_full(stream, false);
    fail_full(stream, true);
    hotbed_stream_destroy(stream);
}

static void no_memory_at_any_allocation(hotbed_backend backend) {
    static ranks r, to;
    hotbed_stream *stream = sample_stream(backend);
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    const char *full = sample_path("full"), *one = sample_path("one");
    hotbed_checkpoint_config config = ranks_config(&hotbed_io_system);
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    options.mark = r.marks[0];
    /* Fail an allocation of the full snapshot, then of the increment; of the take, then of the write. */
    for (int step = 0; step < 2; step++) {
        const char *path = step == 0 ? full : one;
        hotbed_checkpoint_snapshot *snapshot = NULL;
        options.parent = step == 0 ? NULL : full;
        for (uint64_t n = 1;; n++) {
            fault_arm(n);
            hotbed_status status =
                sample_snapshot_take(&config, r.storages[0], &options, stream, &snapshot);
            bool failed = fault_disarm();
            if (status == HOTBED_OK && !failed)
                break;
            if (status != HOTBED_OK)
                CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            CHECK((status == HOTBED_OK) == (snapshot != NULL));
            hotbed_checkpoint_snapshot_destroy(snapshot);
        }
        for (uint64_t n = 1;; n++) {
            fault_arm(n);
            hotbed_status status = ranks_write(snapshot, path);
            bool failed = fault_disarm();
            if (status == HOTBED_OK && !failed)
                break;
            if (status != HOTBED_OK) {
                CHECK_STATUS(status, HOTBED_ERR_MEMORY);
                continue;
            }
            if (step == 1) { /* the mark belongs to the checkpoint that was written last */
                sample_remove(full);
                ranks_save(&r, full);
                hotbed_checkpoint_snapshot_destroy(snapshot);
                snapshot = take(&r, 0, full);
            }
            sample_remove(path);
        }
        hotbed_checkpoint_snapshot_destroy(snapshot);
        if (step == 0)
            ranks_train(&r, 2);
    }
    check_chain(&to, full, &one, 1, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* --- ranks ------------------------------------------------------------------------------------ */

enum { WORLD = 3 };

/* Each rank puts a snapshot or a save; the disk of rank `fails` fails, WORLD: none. */
static void put_all(
    ranks *r, const char *path, const char *parent, bool snapshots, uint32_t fails) {
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    hotbed_checkpoint_id id;
    CHECK_OK(hotbed_save_begin(&config, path, &id));
    for (uint32_t i = 0; i < WORLD; i++) {
        sample_disk disk;
        sample_disk_init(&disk, i == fails ? SAMPLE_FAULT_EIO : SAMPLE_FAULT_NONE, 12);
        config.calls = &disk.calls;
        hotbed_checkpoint_options options = ranks_options(r, i);
        options.mark = r->marks[i];
        options.parent = parent;
        hotbed_status status;
        if (snapshots) {
            hotbed_checkpoint_snapshot *snapshot = take(r, i, parent);
            status = hotbed_snapshot_put(&config, path, id, snapshot);
            hotbed_checkpoint_snapshot_destroy(snapshot);
        } else {
            status = sample_save_shard(&config, path, id, r->storages[i], &options, r->stream);
        }
        CHECK_STATUS(status, i == fails ? HOTBED_ERR_IO : HOTBED_OK);
    }
    config.calls = &calls;
    if (fails < WORLD)
        hotbed_save_abort(&config, path, id);
    else
        CHECK_OK(hotbed_save_commit(&config, path, id, WORLD));
}

/* If one rank fails, no checkpoint is created, and the marks of the other ranks keep their parent. */
static void ranks_write_increments(hotbed_backend backend) {
    static ranks r, to;
    hotbed_stream *stream = sample_stream(backend);
    ranks_create(&r, &shape, WORLD, stream);
    ranks_create(&to, &shape, 2, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    const char *full = sample_path("full");
    const char *more[] = {sample_path("one"), sample_path("two"), sample_path("three")};
    put_all(&r, full, NULL, true, WORLD);
    ranks_train(&r, 2);
    put_all(&r, more[0], full, true, 1);
    ranks_change(&r, 9, 1, 13);
    put_all(&r, more[0], full, false, 2);
    put_all(&r, more[0], full, true, WORLD);
    check_chain(&to, full, more, 1, &r);
    ranks_train(&r, 11);
    put_all(&r, more[1], more[0], false, 0);
    put_all(&r, more[1], more[0], true, 0);
    put_all(&r, more[1], more[0], false, WORLD);
    ranks_train(&r, 20);
    put_all(&r, more[2], more[1], true, WORLD);
    check_chain(&to, full, more, 3, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* --- refused calls -------------------------------------------------------------------------- */

static void snapshots_that_do_not_follow_their_parent_are_refused(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    ranks_create(&r, &shape, 1, stream);
    ranks_fill(&r, 1);
    const char *full = sample_path("full"), *one = sample_path("one");
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    hotbed_checkpoint_snapshot *snapshot = NULL;
    options.parent = full;
    CHECK_STATUS(
        hotbed_checkpoint_snapshot_take(&r.storages[0], 1, &options, stream, &snapshot),
        HOTBED_ERR_ARGUMENT); /* without a mark */
    CHECK(snapshot == NULL);
    ranks_mark(&r);
    snapshot = take(&r, 0, full);
    CHECK_STATUS(ranks_write(snapshot, one), HOTBED_ERR_IO); /* the parent does not exist */
    hotbed_checkpoint_mark *mark = r.marks[0];
    r.marks[0] = NULL;
    ranks_save(&r, full);
    r.marks[0] = mark;
    CHECK_STATUS(
        ranks_write(snapshot, one), HOTBED_ERR_STATE); /* the parent was saved without the mark */
    CHECK(strstr(hotbed_last_error(), "full checkpoint") != NULL);
    sample_remove(full);
    ranks_save(&r, full);
    CHECK_OK(ranks_write(snapshot, one));
    /* The mark belongs to `one`. */
    CHECK_STATUS(ranks_write(snapshot, sample_path("two")), HOTBED_ERR_STATE);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    /* A mark of a storage whose tables are of other kinds. */
    static ranks others;
    ranks_create(&others, &shape, 1, stream);
    hotbed_table_options tables[RANKS_TABLES];
    hotbed_storage_options storage;
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        static const char *const names[] = {"hash", "static", "small"};
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = names[t];
        tables[t].dim = 4;
        tables[t].capacity = 8;
        tables[t].kind = t == 0 ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
    }
    hotbed_storage_options_init(&storage);
    storage.num_tables = RANKS_TABLES;
    storage.tables = tables;
    storage.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_storage *stranger = NULL;
    CHECK_OK(hotbed_storage_create(&storage, stream, &stranger));
    options =
        (hotbed_checkpoint_options){.size = sizeof options, .mark = r.marks[0], .parent = one};
    const char *three = sample_path("three");
    CHECK_STATUS(hotbed_checkpoint_save(three, &stranger, 1, &options, stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_checkpoint_snapshot_take(&stranger, 1, &options, stream, &snapshot));
    CHECK_STATUS(hotbed_checkpoint_snapshot_write(snapshot, three), HOTBED_ERR_STATE);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_storage_destroy(stranger);
    ranks_destroy(&others);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(snapshots_become_increments_during_training)},
    {TEST(a_snapshot_has_the_rows_of_a_save)},
    {TEST(evicted_keys_are_erased)},
    {TEST(changes_of_a_failed_increment_are_in_the_next)},
    {TEST(failed_full_writes_do_not_change_the_mark)},
    {TEST(no_memory_at_any_allocation)},
    {TEST(ranks_write_increments)},
    {TEST(snapshots_that_do_not_follow_their_parent_are_refused)},
    {NULL, NULL},
};
