/* tests/checkpoint/test_checkpoint_faults.c - save and load with failing system calls, damaged files, and
 * failing allocations. */
#include "base/stream.h"
#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Few buckets and small blocks: small files, many system calls, and transfers by several threads. */
enum { BITS = 4, BLOCK_BYTES = 4096 };

typedef struct fixture {
    hotbed_stream *stream;
    hotbed_storage *storage; /* filled */
    hotbed_storage *other;   /* of the same shape */
} fixture;

static const sample shape = {.optimizer = HOTBED_OPT_ADAM, .rows = 150, .narrow_states = true};

static fixture set_up(hotbed_backend backend) {
    fixture b = {.stream = NULL};
    sample_directory();
    CHECK_OK(hotbed_stream_create(backend, 0, &b.stream));
    b.storage = sample_create(&shape, b.stream);
    b.other = sample_create(&shape, b.stream);
    sample_fill(&shape, b.storage, b.stream);
    return b;
}

static void tear_down(fixture *b) {
    hotbed_storage_destroy(b->storage);
    hotbed_storage_destroy(b->other);
    hotbed_stream_destroy(b->stream);
}

static hotbed_status save(fixture *b, const hotbed_io_calls *calls, const char *path) {
    hotbed_checkpoint_config config = {
        .calls = calls, .bucket_bits = BITS, .block_bytes = BLOCK_BYTES};
    hotbed_checkpoint_options options = {.size = sizeof options};
    sample_extra(&options, "extra");
    return sample_write(&config, path, b->storage, &options, b->stream);
}

static hotbed_status load(fixture *b, const hotbed_io_calls *calls, const char *path) {
    hotbed_checkpoint_config config = {
        .calls = calls, .bucket_bits = BITS, .block_bytes = BLOCK_BYTES};
    hotbed_checkpoint_load_options all = {.size = sizeof all};
    return sample_load_with(&config, path, b->other, &all, NULL, b->stream);
}

/* --- the n-th system call fails ------------------------------------------------------------- */

/* The error message has the system's description of the error, not its number. */
static void check_reason(int error) {
    if (strstr(hotbed_last_error(), strerror(error)) == NULL)
        CHECK_STRING(hotbed_last_error(), strerror(error));
    CHECK_EQ(hotbed_last_error_detail()->os_error, error);
    CHECK(hotbed_last_error_detail()->path[0] != '\0');
}

static bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

/* Fail call 1, 2, ... of a save until there are no more calls.  Each time no checkpoint of the name exists,
 * nothing is left in the directory, and the storage is unchanged. */
static void save_with(hotbed_backend backend, sample_fault fault, int error) {
    fixture b = set_up(backend);
    const char *parent = sample_directory(), *path = sample_path("checkpoint");
    sample_disk disk;
    for (uint64_t n = 1;; n += hotbed_test_is_small() ? 8 : 1) {
        sample_disk_init(&disk, fault, n);
        hotbed_status status = save(&b, &disk.calls, path);
        CHECK_EQ(disk.open_files, 0);
        if (disk.count < n)
            CHECK_OK(status);
        if (status == HOTBED_OK) {
            CHECK_OK(load(&b, &hotbed_io_system, path));
            sample_check_same(b.storage, b.other, b.stream);
            sample_remove(path);
        } else {
            CHECK_STATUS(status, HOTBED_ERR_IO);
            check_reason(error);
        }
        CHECK(!exists(path));
        if (status != HOTBED_OK || disk.count < n)
            CHECK_EQ(sample_count_names(parent), 0);
        if (disk.count < n)
            break;
    }
    CHECK(disk.at > 30);
    tear_down(&b);
}

static void save_survives_no_space_at_any_call(hotbed_backend backend) {
    save_with(backend, SAMPLE_FAULT_ENOSPC, ENOSPC);
}

static void save_survives_an_error_at_any_call(hotbed_backend backend) {
    save_with(backend, SAMPLE_FAULT_EIO, EIO);
}

/* Interrupted transfers continue; an interrupted sync or reservation may be an error. */
static void save_survives_an_interrupt_at_any_call(hotbed_backend backend) {
    save_with(backend, SAMPLE_FAULT_EINTR, EINTR);
}

/* With too few file descriptors a save fails, and still removes what it made. */
static void save_survives_a_lack_of_descriptors(hotbed_backend backend) {
    if (backend != HOTBED_BACKEND_HOST)
        return; /* a CUDA driver may need descriptors, too */
    fixture b = set_up(backend);
    const char *parent = sample_directory(), *path = sample_path("checkpoint");
    struct rlimit all;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
    int lowest = dup(STDERR_FILENO);
    CHECK(lowest >= 0);
    (void)close(lowest);
    hotbed_status status = HOTBED_ERR_IO;
    int spare = 0;
    for (; status != HOTBED_OK && spare < 64; spare++) {
        const struct rlimit few = {(rlim_t)(lowest + spare), all.rlim_max};
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        status = save(&b, &hotbed_io_system, path);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
        if (status == HOTBED_OK)
            continue;
        CHECK_STATUS(status, HOTBED_ERR_IO);
        check_reason(EMFILE);
        CHECK(strstr(hotbed_last_error(), "(ulimit -n)") != NULL);
        CHECK_EQ(sample_count_names(parent), 0);
    }
    CHECK_OK(status);
    CHECK(spare > 2);
    tear_down(&b);
}

static void short_transfers_are_continued(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_SHORT, 1);
    const char *path = sample_path("checkpoint");
    CHECK_OK(save(&b, &disk.calls, path));
    sample_disk_init(&disk, SAMPLE_FAULT_SHORT, 1);
    CHECK_OK(load(&b, &disk.calls, path));
    sample_check_same(b.storage, b.other, b.stream);
    tear_down(&b);
}

/* Whole pages bypass the kernel's cache in both directions where the file system supports it; a file system
 * that does not support it fails the open or the first transfer. */
static void file_systems_without_direct_transfers_work(hotbed_backend backend) {
    static const sample_fault faults[] = {
        SAMPLE_FAULT_NONE, SAMPLE_FAULT_NO_DIRECT_OPEN, SAMPLE_FAULT_NO_DIRECT};
    fixture b = set_up(backend);
    sample_disk disk;
    for (int i = 0; i < 3; i++) {
        const char *path = sample_path("checkpoint");
        sample_disk_init(&disk, faults[i], 0);
        CHECK_OK(save(&b, &disk.calls, path));
        uint64_t saved = disk.direct_bytes;
        CHECK_OK(load(&b, &disk.calls, path));
        uint64_t loaded = disk.direct_bytes - saved;
        sample_check_same(b.storage, b.other, b.stream);
        int handle = hotbed_io_system.open(
            NULL, HOTBED_IO_HERE, sample_path("checkpoint/shard-00000-of-00001.h5"),
            HOTBED_IO_READ_DIRECT);
        if (faults[i] == SAMPLE_FAULT_NONE && handle >= 0)
            CHECK(saved > 0 && loaded == saved);
        if (faults[i] != SAMPLE_FAULT_NONE)
            CHECK_EQ(saved + loaded, 0);
        if (handle >= 0)
            CHECK_EQ(hotbed_io_system.close(NULL, handle), 0);
        CHECK_EQ(disk.open_files, 0);
        sample_remove(path);
    }
    tear_down(&b);
}

/* Something else removes a file of the draft just before any call of a save: the save fails, and leaves
 * nothing. */
static void a_save_whose_files_are_removed_fails(hotbed_backend backend) {
    static const char *const names[] = {
        "shard-00000-of-00001.h5", "shard-00000-of-00001.part", "index.h5", "MANIFEST"};
    enum { LAST = 30 }; /* try each of the commit's calls, and some of the calls for rows */
    fixture b = set_up(backend);
    const char *parent = sample_directory();
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    CHECK_OK(save(&b, &disk.calls, sample_path("checkpoint")));
    sample_remove(sample_path("checkpoint"));
    uint64_t calls = disk.count;
    for (int i = 0; i < 4; i++) {
        uint64_t removals = 0;
        for (uint64_t n = 1;; n += hotbed_test_is_small() || n + LAST < calls ? 8 : 1) {
            const char *path = sample_path("checkpoint");
            sample_disk_init(&disk, SAMPLE_FAULT_REMOVE, n);
            disk.removes = names[i];
            hotbed_status status = save(&b, &disk.calls, path);
            CHECK_EQ(disk.open_files, 0);
            removals += disk.removed;
            if (disk.removed)
                CHECK(status == HOTBED_ERR_IO || status == HOTBED_ERR_STATE);
            else
                CHECK_OK(status);
            if (status == HOTBED_OK)
                sample_remove(path);
            CHECK_EQ(sample_count_names(parent), 0);
            if (disk.count < n)
                break;
        }
        CHECK(removals > 0);
    }
    tear_down(&b);
}

/* All files and their directory are synced before the rename, and the parent directory after it. */
static void everything_is_synced_before_the_rename(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    CHECK_OK(save(&b, &disk.calls, sample_path("checkpoint")));
    CHECK(disk.count > 20);
    CHECK_EQ(disk.lost_at_rename, 0);
    CHECK_EQ(disk.num_dirty, 0);
    tear_down(&b);
}

/* From call n on nothing takes effect, as after a kill: the checkpoint does not exist or is whole, and the
 * earlier checkpoint is unchanged. */
static void a_kill_at_any_call_leaves_nothing_or_all(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_disk disk;
    const char *before = sample_path("before"), *path = sample_path("checkpoint");
    uint64_t absent = 0, whole = 0;
    CHECK_OK(save(&b, &hotbed_io_system, before));
    for (uint64_t n = 1;; n++) {
        sample_disk_init(&disk, SAMPLE_FAULT_DEAD, n);
        hotbed_status status = save(&b, &disk.calls, path);
        if (exists(path)) {
            CHECK_OK(load(&b, &hotbed_io_system, path));
            sample_check_same(b.storage, b.other, b.stream);
            sample_remove(path);
            whole++;
        } else {
            CHECK(status != HOTBED_OK);
            absent++;
        }
        if (disk.count < n)
            break;
    }
    CHECK(absent > 20 && whole >= 2);
    CHECK_OK(load(&b, &hotbed_io_system, before));
    sample_check_same(b.storage, b.other, b.stream);
    tear_down(&b);
}

/* A load that fails with IO leaves the tables unchanged or empty. */
static void load_survives_an_error_at_any_call(hotbed_backend backend) {
    fixture b = set_up(backend);
    sample_disk disk;
    const char *path = sample_path("checkpoint");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    for (uint64_t n = 1;; n++) {
        sample_disk_init(&disk, SAMPLE_FAULT_EIO, n);
        hotbed_status status = load(&b, &disk.calls, path);
        CHECK_EQ(disk.open_files, 0);
        if (status == HOTBED_OK) {
            sample_check_same(b.storage, b.other, b.stream);
            if (disk.count < n)
                break;
            for (uint32_t t = 0; t < SAMPLE_TABLES; t++)
                CHECK_OK(hotbed_storage_clear(b.other, t, b.stream));
            continue;
        }
        CHECK_STATUS(status, HOTBED_ERR_IO);
        check_reason(EIO);
        sample_check_empty(b.other, b.stream);
    }
    CHECK(disk.at > 20);
    tear_down(&b);
}

/* --- allocations fail ----------------------------------------------------------------------- */

static void save_survives_no_memory_at_any_allocation(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *parent = sample_directory(), *path = sample_path("checkpoint");
    CHECK_OK(save(&b, &hotbed_io_system, path)); /* one-time allocations are done */
    sample_remove(path);
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = save(&b, &hotbed_io_system, path);
        bool failed = fault_disarm();
        if (!failed) {
            CHECK_OK(status);
            break;
        }
        if (status == HOTBED_OK) { /* the call succeeds without the allocation */
            sample_remove(path);
            continue;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK_EQ(sample_count_names(parent), 0);
    }
    CHECK_OK(load(&b, &hotbed_io_system, path));
    sample_check_same(b.storage, b.other, b.stream);
    tear_down(&b);
}

static void load_survives_no_memory_at_any_allocation(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *path = sample_path("checkpoint");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = load(&b, &hotbed_io_system, path);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        if (status != HOTBED_OK)
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
    }
    sample_check_same(b.storage, b.other, b.stream);
    tear_down(&b);
}

/* --- damaged files ---------------------------------------------------------------------------- */

typedef struct whole_file {
    const char *path;
    unsigned char *data;
    size_t bytes;
} whole_file;

/* A load of the damaged checkpoint, or of its blob, reports it; then the file is restored. */
static void check_damaged(fixture *b, const whole_file *file, const char *path) {
    char extra[8];
    uint64_t bytes = sizeof extra;
    hotbed_status status = load(b, &hotbed_io_system, path);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_read_blob(path, "extra", extra, &bytes);
    CHECK_STATUS(status, HOTBED_ERR_CORRUPT);
    sample_write_file(file->path, file->data, file->bytes);
}

static void check_flip(fixture *b, const whole_file *file, const char *path, size_t bit) {
    file->data[bit / 8] ^= (unsigned char)(1U << bit % 8);
    sample_write_file(file->path, file->data, file->bytes);
    file->data[bit / 8] ^= (unsigned char)(1U << bit % 8);
    check_damaged(b, file, path);
}

static whole_file open_whole(const char *name) {
    whole_file file = {.path = sample_path(name)};
    file.data = sample_read_file(file.path, &file.bytes);
    return file;
}

static hotbed_manifest parse_manifest(void) {
    hotbed_manifest m;
    size_t bytes;
    unsigned char *text = sample_read_file(sample_path("c/MANIFEST"), &bytes);
    CHECK_OK(hotbed_manifest_parse("MANIFEST", (const char *)text, bytes, &m));
    free(text);
    return m;
}

/* Flip every bit of some bytes of the metadata, and some bits of every extent. */
static void a_flipped_bit_of_the_shard_is_found(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *path = sample_path("c");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    path = sample_path("c");
    hotbed_manifest m = parse_manifest();
    whole_file file = open_whole("c/shard-00000-of-00001.h5");
    for (int i = 0; i < 60; i++)
        check_flip(&b, &file, path, hotbed_test_below(m.shards[0].metadata_bytes * 8));
    const hotbed_extent *extents[SAMPLE_TABLES * HOTBED_COLUMNS + 2];
    size_t n = 0;
    extents[n++] = &m.blobs[0].extent;
    extents[n++] = &m.shards[0].blocks;
    for (uint32_t t = 0; t < m.num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            extents[n++] = &m.parts[t].columns[i];
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 3 && extents[i]->bytes > 0; k++)
            check_flip(
                &b, &file, path,
                (extents[i]->offset * 8) + hotbed_test_below(extents[i]->bytes * 8));
    CHECK_OK(load(&b, &hotbed_io_system, path));
    hotbed_manifest_free(&m);
    free(file.data);
    tear_down(&b);
}

static void a_block_that_is_damaged_is_named(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *path = sample_path("c");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    path = sample_path("c");
    hotbed_manifest m = parse_manifest();
    whole_file file = open_whole("c/shard-00000-of-00001.h5");
    check_flip(&b, &file, path, m.parts[1].columns[HOTBED_COLUMN_STATE].offset * 8);
    CHECK(strstr(hotbed_last_error(), "shard-00000-of-00001.h5") != NULL);
    CHECK(strstr(hotbed_last_error(), "item/opt/exp_avg: block 0") != NULL);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE, .value = 0, .table = "item",
            .path = "c/shard-00000-of-00001.h5");
    hotbed_manifest_free(&m);
    free(file.data);
    tear_down(&b);
}

/* Write the shard with changed words of a column of table 0, and recompute all digests. */
static void forge(
    const whole_file *file, const unsigned char *manifest, size_t manifest_bytes, uint32_t column,
    const uint64_t *words, size_t num_words) {
    hotbed_manifest m;
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(hotbed_manifest_parse("MANIFEST", (const char *)manifest, manifest_bytes, &m));
    hotbed_extent *extent = &m.parts[0].columns[column], *blocks = &m.shards[0].blocks;
    unsigned char *data = malloc(file->bytes);
    CHECK(data != NULL && num_words * sizeof *words <= extent->bytes);
    memcpy(data, file->data, file->bytes);
    memcpy(data + extent->offset, words, num_words * sizeof *words);
    hotbed_digest digest = hotbed_digest_of(data + extent->offset, extent->bytes); /* one block */
    memcpy(data + blocks->offset + extent->first_block * sizeof digest, &digest, sizeof digest);
    extent->root = hotbed_digest_of(&digest, sizeof digest);
    blocks->root = hotbed_digest_root(data + blocks->offset, blocks->bytes, HOTBED_BLOCK_BYTES);
    sample_write_file(file->path, data, file->bytes);
    CHECK_OK(hotbed_manifest_print(&m, &text, &bytes));
    sample_write_file(sample_path("c/MANIFEST"), text, bytes);
    hotbed_delete(text);
    hotbed_manifest_free(&m);
    free(data);
}

/* All digests are correct, but keys repeat, are out of order, or are miscounted. */
static void damage_with_correct_digests_is_found(hotbed_backend backend) {
    fixture b = set_up(backend);
    CHECK_OK(save(&b, &hotbed_io_system, sample_path("c")));
    whole_file file = open_whole("c/shard-00000-of-00001.h5");
    size_t bytes;
    unsigned char *manifest = sample_read_file(sample_path("c/MANIFEST"), &bytes);
    hotbed_manifest m = parse_manifest();
    uint64_t keys[2], counts[1 << BITS];
    memcpy(keys, file.data + m.parts[0].columns[HOTBED_COLUMN_KEYS].offset, sizeof keys);
    memcpy(counts, file.data + m.parts[0].columns[HOTBED_COLUMN_BUCKET].offset, sizeof counts);
    const uint64_t swapped[] = {keys[1], keys[0]}, twice[] = {keys[0], keys[0]};
    const uint64_t huge[] = {UINT64_MAX, 1}, shifted[] = {counts[0] + counts[1], 0};
    uint64_t scores[2], high[2] = {1, (uint64_t)1 << 52};
    memcpy(scores, file.data + m.parts[0].columns[HOTBED_COLUMN_SCORES].offset, sizeof scores);
    const struct {
        const uint64_t *words;
        uint32_t column;
        hotbed_status status;
    } cases[] = {
        {swapped, HOTBED_COLUMN_KEYS, HOTBED_ERR_CORRUPT},
        {twice, HOTBED_COLUMN_KEYS, HOTBED_ERR_CORRUPT},
        {huge, HOTBED_COLUMN_BUCKET, HOTBED_ERR_CORRUPT},
        {shifted, HOTBED_COLUMN_BUCKET, HOTBED_ERR_CORRUPT},
        {high, HOTBED_COLUMN_SCORES, HOTBED_ERR_UNSUPPORTED}, /* a score above 52 bits */
        /* Control: without a change the rewritten shard is accepted. */
        {keys, HOTBED_COLUMN_KEYS, HOTBED_OK},
        {counts, HOTBED_COLUMN_BUCKET, HOTBED_OK},
        {scores, HOTBED_COLUMN_SCORES, HOTBED_OK},
    };
    CHECK(counts[1] > 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        forge(&file, manifest, bytes, cases[i].column, cases[i].words, 2);
        hotbed_status status = load(&b, &hotbed_io_system, sample_path("c"));
        CHECK_STATUS(status, cases[i].status);
        if (status != HOTBED_OK)
            sample_check_empty(b.other, b.stream);
    }
    hotbed_manifest_free(&m);
    free(manifest);
    free(file.data);
    tear_down(&b);
}

/* Files that are shortened or extended. */
static void a_changed_length_is_found(hotbed_backend backend) {
    static const char *const names[] = {"c/shard-00000-of-00001.h5", "c/MANIFEST"};
    fixture b = set_up(backend);
    const char *path = sample_path("c");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    path = sample_path("c");
    for (int i = 0; i < 2; i++) {
        whole_file file = open_whole(names[i]);
        for (int k = 0; k < 12; k++) {
            size_t bytes = k == 0 ? 0 : k == 1 ? file.bytes - 1 : hotbed_test_below(file.bytes);
            sample_write_file(file.path, file.data, bytes);
            check_damaged(&b, &file, path);
        }
        unsigned char *longer = malloc(file.bytes + 1);
        CHECK(longer != NULL);
        memcpy(longer, file.data, file.bytes);
        longer[file.bytes] = '\n';
        sample_write_file(file.path, longer, file.bytes + 1);
        check_damaged(&b, &file, path);
        free(longer);
        free(file.data);
    }
    tear_down(&b);
}

/* Links, pipes and directories in the place of a file are refused, and no call hangs. */
static void only_plain_files_are_read(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *path = sample_path("c");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    static const char *const names[] = {"c/MANIFEST", "c/shard-00000-of-00001.h5"};
    for (int i = 0; i < 2; i++) {
        const char *name = sample_path(names[i]), *away = sample_path("away");
        path = sample_path("c");
        CHECK(rename(name, away) == 0);
        CHECK_STATUS(load(&b, &hotbed_io_system, path), HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), "is missing") != NULL);
        CHECK_STRING(hotbed_last_error_detail()->path, name);
        CHECK(symlink(away, name) == 0);
        CHECK_STATUS(load(&b, &hotbed_io_system, path), HOTBED_ERR_CORRUPT);
        CHECK(unlink(name) == 0 && mkfifo(name, 0600) == 0);
        CHECK_STATUS(load(&b, &hotbed_io_system, path), HOTBED_ERR_CORRUPT);
        CHECK(unlink(name) == 0 && mkdir(name, 0700) == 0);
        CHECK_STATUS(load(&b, &hotbed_io_system, path), HOTBED_ERR_CORRUPT);
        CHECK(rmdir(name) == 0 && rename(away, name) == 0);
    }
    CHECK_OK(load(&b, &hotbed_io_system, path));
    /* A path without a checkpoint is not damage. */
    CHECK_STATUS(load(&b, &hotbed_io_system, sample_path("none")), HOTBED_ERR_IO);
    check_reason(ENOENT);
    tear_down(&b);
}

/* Shards of two checkpoints do not form one. */
static void a_shard_of_another_checkpoint_is_refused(hotbed_backend backend) {
    fixture b = set_up(backend);
    const char *path = sample_path("c"), *other = sample_path("d");
    CHECK_OK(save(&b, &hotbed_io_system, path));
    CHECK_OK(save(&b, &hotbed_io_system, other));
    CHECK(
        rename(
            sample_path("d/shard-00000-of-00001.h5"), sample_path("c/shard-00000-of-00001.h5")) ==
        0);
    CHECK_STATUS(load(&b, &hotbed_io_system, sample_path("c")), HOTBED_ERR_CORRUPT);
    tear_down(&b);
}

const hotbed_test hotbed_tests[] = {
    {TEST(save_survives_no_space_at_any_call)},
    {TEST(save_survives_an_error_at_any_call)},
    {TEST(save_survives_an_interrupt_at_any_call)},
    {TEST(save_survives_a_lack_of_descriptors)},
    {TEST(short_transfers_are_continued)},
    {TEST(file_systems_without_direct_transfers_work)},
    {TEST(a_save_whose_files_are_removed_fails)},
    {TEST(everything_is_synced_before_the_rename)},
    {TEST(a_kill_at_any_call_leaves_nothing_or_all)},
    {TEST(load_survives_an_error_at_any_call)},
    {TEST(save_survives_no_memory_at_any_allocation)},
    {TEST(load_survives_no_memory_at_any_allocation)},
    {TEST(a_flipped_bit_of_the_shard_is_found)},
    {TEST(a_block_that_is_damaged_is_named)},
    {TEST(damage_with_correct_digests_is_found)},
    {TEST(a_changed_length_is_found)},
    {TEST(only_plain_files_are_read)},
    {TEST(a_shard_of_another_checkpoint_is_refused)},
    {NULL, NULL},
};
