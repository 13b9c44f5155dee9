/* tests/checkpoint/test_checkpoint_snapshot.c - a snapshot is written while the storage changes. */
#include "checkpoint/verify.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static const ranks_shape shape = {
    .optimizer = HOTBED_OPT_ADAM,
    .route = HOTBED_ROUTE_ROUND_ROBIN,
    .score = HOTBED_SCORE_TIMESTAMP_LFU};

typedef struct background {
    hotbed_checkpoint_snapshot *snapshot;
    const char *path;
    hotbed_status status;
} background;

static void *write_it(void *argument) {
    background *b = argument;
    b->status = hotbed_checkpoint_snapshot_write(b->snapshot, b->path);
    return NULL;
}

static void same_content(const char *a, const char *b) {
    hotbed_manifest x = ranks_manifest(a), y = ranks_manifest(b);
    for (uint32_t t = 0; t < RANKS_TABLES; t++) {
        CHECK_EQ(x.tables[t].rows, y.tables[t].rows);
        CHECK_BYTES(&x.tables[t].content, &y.tables[t].content, sizeof x.tables[t].content);
    }
    CHECK_BYTES(
        &x.storages[0].state.clock, &y.storages[0].state.clock, sizeof x.storages[0].state.clock);
    hotbed_manifest_free(&x);
    hotbed_manifest_free(&y);
}

/* The files have the rows of the time of the snapshot, whatever happens to the storage later; a snapshot can
 * be written twice. */
static void a_snapshot_has_the_rows_of_one_moment(hotbed_backend backend) {
    ranks r, to;
    background b = {.path = NULL};
    pthread_t thread;
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_fill(&r, 1);
    const char *saved = sample_path("saved"), *again = sample_path("again");
    b.path = sample_path("snapshot");
    options.step = 5;
    sample_extra(&options, "extra");
    CHECK_OK(hotbed_checkpoint_save(saved, &r.storages[0], 1, &options, stream));
    CHECK_OK(hotbed_checkpoint_snapshot_take(&r.storages[0], 1, &options, stream, &b.snapshot));
    sample_extra(&options, NULL);
    CHECK(pthread_create(&thread, NULL, write_it, &b) == 0);
    for (uint32_t v = 2; v < 12; v++)
        ranks_change(&r, v, v % 3, 2);
    ranks_erase(&r, 0, 2);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(b.status);
    same_content(saved, b.path);
    CHECK_OK(hotbed_checkpoint_snapshot_write(b.snapshot, again));
    same_content(saved, again);
    CHECK_STATUS(hotbed_checkpoint_snapshot_write(b.snapshot, again), HOTBED_ERR_STATE);
    hotbed_checkpoint_snapshot_destroy(b.snapshot);
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, b.path, NULL));
    char extra[8] = "";
    uint64_t bytes = sizeof extra;
    CHECK_OK(hotbed_checkpoint_load(again, &to.storages[0], 1, NULL, NULL, stream));
    CHECK_OK(hotbed_checkpoint_read_blob(again, "extra", extra, &bytes));
    CHECK_EQ(bytes, 5);
    CHECK_BYTES(extra, "extra", 5);
    ranks_fill(&r, 1);
    ranks_check(&to, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* The snapshots of all ranks form one checkpoint, as saves do. */
static void ranks_write_their_snapshots(hotbed_backend backend) {
    ranks r, to;
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    ranks_create(&r, &shape, 3, stream);
    ranks_create(&to, &shape, 2, stream);
    ranks_fill(&r, 1);
    hotbed_checkpoint_snapshot *snapshots[3];
    hotbed_checkpoint_id id;
    const char *path = sample_path("c");
    for (uint32_t i = 0; i < 3; i++) {
        hotbed_checkpoint_options options = ranks_options(&r, i);
        CHECK_OK(
            hotbed_checkpoint_snapshot_take(&r.storages[i], 1, &options, stream, &snapshots[i]));
    }
    CHECK_STATUS(hotbed_checkpoint_snapshot_write(snapshots[0], path), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_checkpoint_begin(path, &id));
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_OK(hotbed_checkpoint_snapshot_put(snapshots[i], path, id));
        hotbed_checkpoint_snapshot_destroy(snapshots[i]);
    }
    CHECK_OK(hotbed_checkpoint_commit(path, id, 3));
    ranks_load(&to, path, &hotbed_io_system);
    ranks_check(&to, &r);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* A failing write leaves no files, and the snapshot can be written again. */
static void a_snapshot_outlives_a_failing_disk(hotbed_backend backend) {
    ranks r;
    hotbed_stream *stream = hotbed_test_stream(backend);
    const char *parent = sample_directory();
    ranks_create(&r, &shape, 1, stream);
    ranks_fill(&r, 1);
    hotbed_checkpoint_snapshot *snapshot = NULL;
    hotbed_checkpoint_options options = {.size = sizeof options};
    CHECK_OK(hotbed_checkpoint_snapshot_take(&r.storages[0], 1, &options, stream, &snapshot));
    sample_disk disk;
    for (uint64_t n = 1;; n++) {
        sample_disk_init(&disk, SAMPLE_FAULT_ENOSPC, n);
        hotbed_checkpoint_config config = ranks_config(&disk.calls);
        hotbed_status status = hotbed_snapshot_write(&config, sample_path("c"), snapshot);
        CHECK_EQ(disk.open_files, 0);
        if (status == HOTBED_OK) {
            CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL));
            sample_remove(sample_path("c"));
        } else {
            CHECK_STATUS(status, HOTBED_ERR_IO);
        }
        CHECK_EQ(sample_count_names(parent), 0);
        if (disk.count < n)
            break;
    }
    CHECK(disk.at > 20);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void snapshots_of_a_wrong_kind_are_refused(hotbed_backend backend) {
    ranks r;
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    ranks_create(&r, &shape, 1, stream);
    hotbed_checkpoint_snapshot *snapshot = NULL;
    hotbed_checkpoint_options options = {.size = sizeof options};
    CHECK_OK(hotbed_comm_create_self(NULL, &options.comm));
    CHECK_STATUS(
        hotbed_checkpoint_snapshot_take(&r.storages[0], 1, &options, stream, &snapshot),
        HOTBED_ERR_ARGUMENT);
    hotbed_comm_destroy(options.comm);
    options.comm = NULL;
    CHECK_STATUS(
        hotbed_checkpoint_snapshot_take(NULL, 0, &options, stream, &snapshot), HOTBED_ERR_ARGUMENT);
    CHECK(snapshot == NULL);
    CHECK_STATUS(hotbed_checkpoint_snapshot_write(NULL, "x"), HOTBED_ERR_ARGUMENT);
    hotbed_checkpoint_snapshot_destroy(NULL);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_snapshot_has_the_rows_of_one_moment)},
    {TEST(ranks_write_their_snapshots)},
    {TEST(a_snapshot_outlives_a_failing_disk)},
    {TEST(snapshots_of_a_wrong_kind_are_refused)},
    {NULL, NULL},
};
