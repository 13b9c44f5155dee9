/* tests/checkpoint/test_checkpoint_rank_faults.c - failing system calls and damaged files, where several
 * ranks save, and where checkpoints are rewritten or exported. */
#include "base/stream.h"
#include "checkpoint/import.h"
#include "checkpoint/rewrite.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORLD = 4 };

static const ranks_shape shape = {.optimizer = HOTBED_OPT_ADAM};

static bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

static hotbed_stream *set_up(hotbed_backend backend, ranks *r, ranks *other) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    ranks_create(r, &shape, WORLD, stream);
    ranks_create(other, &shape, 1, stream);
    ranks_fill(r, 1);
    return stream;
}

static void tear_down(hotbed_stream *stream, ranks *r, ranks *other) {
    ranks_destroy(r);
    ranks_destroy(other);
    hotbed_stream_destroy(stream);
}

/* Save all ranks one after the other, up to the first failure, as ranks with a communicator do. */
static hotbed_status save(ranks *r, const char *path, const hotbed_io_calls *calls) {
    hotbed_checkpoint_config config = ranks_config(calls);
    hotbed_checkpoint_id id;
    hotbed_status status = hotbed_save_begin(&config, path, &id);
    if (status != HOTBED_OK)
        return status;
    for (uint32_t rank = 0; rank < r->world && status == HOTBED_OK; rank++) {
        hotbed_checkpoint_options options = ranks_options(r, rank);
        status = sample_save_shard(&config, path, id, r->storages[rank], &options, r->stream);
    }
    if (status == HOTBED_OK)
        return hotbed_save_commit(&config, path, id, r->world);
    hotbed_save_abort(&config, path, id);
    return status;
}

/* The calls of rank 0, while the other ranks create a file after each list of a directory. */
typedef struct late_files {
    hotbed_io_calls calls;
    uint32_t left; /* files to be created */
} late_files;

static int list_then_create(
    void *self, int directory, void (*each)(void *context, const char *name), void *context) {
    late_files *late = self;
    int status = hotbed_io_system.list(NULL, directory, each, context);
    if (late->left > 0) {
        int file = hotbed_io_system.open(
            NULL, directory, hotbed_shard_name(late->left--, WORLD).text, HOTBED_IO_CREATE);
        CHECK(file >= 0);
        CHECK_EQ(hotbed_io_system.close(NULL, file), 0);
    }
    return status;
}

/* Rank 0 aborts when its communicator fails, while the other ranks may still be writing. */
static void an_abort_removes_what_ranks_create_meanwhile(hotbed_backend backend) {
    late_files late = {.calls = hotbed_io_system, .left = WORLD - 1};
    hotbed_checkpoint_config config = ranks_config(&late.calls);
    hotbed_checkpoint_id id;
    const char *parent = sample_directory(), *path = sample_path("checkpoint");
    late.calls.self = &late;
    late.calls.list = list_then_create;
    CHECK_OK(hotbed_save_begin(&config, path, &id));
    CHECK_EQ(sample_count_names(parent), 1);
    hotbed_save_abort(&config, path, id);
    CHECK_EQ(late.left, 0);
    CHECK_EQ(sample_count_names(parent), 0);
}

/* Three tables, four ranks, a kill at every call: the checkpoint does not exist or is whole. */
static void a_kill_of_ranks_at_any_call_leaves_nothing_or_all(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    const char *before = sample_path("before"), *path = sample_path("checkpoint");
    const uint64_t step = hotbed_test_is_small() ? 7 : 1;
    uint64_t absent = 0, whole = 0;
    sample_disk disk;
    ranks_save(&r, before);
    for (uint64_t n = 1;; n += step) {
        sample_disk_init(&disk, SAMPLE_FAULT_DEAD, n);
        hotbed_status status = save(&r, path, &disk.calls);
        if (exists(path)) {
            CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, path, NULL));
            sample_remove(path);
            whole++;
        } else {
            CHECK(status != HOTBED_OK);
            absent++;
        }
        if (disk.count < n)
            break;
    }
    CHECK(absent > 100 / step && whole >= (step == 1 ? 2 : 1));
    ranks_load(&other, before, &hotbed_io_system);
    ranks_check(&other, &r);
    tear_down(stream, &r, &other);
}

/* One call fails: the save returns an error and leaves only the earlier files. */
static void save_of_ranks_survives_an_error_at_any_call(hotbed_backend backend) {
    static const sample_fault faults[] = {SAMPLE_FAULT_ENOSPC, SAMPLE_FAULT_EINTR};
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    const char *parent = sample_directory(), *path = sample_path("checkpoint");
    sample_disk disk;
    for (int i = 0; i < 2; i++)
        for (uint64_t n = 1;; n += hotbed_test_is_small() ? 16 : 1) {
            sample_disk_init(&disk, faults[i], n);
            hotbed_status status = save(&r, path, &disk.calls);
            CHECK_EQ(disk.open_files, 0);
            if (status == HOTBED_OK)
                sample_remove(path);
            else
                CHECK_STATUS(status, HOTBED_ERR_IO);
            /* A failing removal leaves a file in a draft, which readers ignore. */
            CHECK(!exists(path) && sample_count_names(parent) <= 1);
            if (sample_count_names(parent) == 1) {
                parent = sample_directory();
                path = sample_path("checkpoint");
            }
            if (disk.count < n)
                break;
        }
    CHECK_OK(save(&r, path, &hotbed_io_system));
    ranks_load(&other, path, &hotbed_io_system);
    ranks_check(&other, &r);
    tear_down(stream, &r, &other);
}

static void everything_of_all_ranks_is_synced_before_the_rename(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    CHECK_OK(save(&r, sample_path("checkpoint"), &disk.calls));
    CHECK_EQ(disk.lost_at_rename, 0);
    CHECK_EQ(disk.num_dirty, 0);
    tear_down(stream, &r, &other);
}

/* The same for a checkpoint that is rewritten from another. */
static void a_rewrite_survives_an_error_at_any_call(hotbed_backend backend) {
    static const sample_fault faults[] = {SAMPLE_FAULT_EIO, SAMPLE_FAULT_DEAD, SAMPLE_FAULT_SHORT};
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    const char *from = sample_path("from"), *path = sample_path("to");
    hotbed_rewrite_options options = {.world = 2, .block_bytes = 4096};
    sample_disk disk;
    ranks_save(&r, from);
    for (int i = 0; i < 3; i++)
        for (uint64_t n = 1;; n += hotbed_test_is_small() ? 7 : 1) {
            hotbed_chain chain;
            sample_disk_init(&disk, faults[i], n);
            hotbed_status status = hotbed_chain_open(&disk.calls, &from, 1, &chain);
            if (status == HOTBED_OK)
                status = hotbed_checkpoint_rewrite(&disk.calls, &chain, path, &options);
            hotbed_chain_close(&chain);
            if (faults[i] != SAMPLE_FAULT_DEAD)
                CHECK_EQ(disk.open_files, 0);
            CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
            if (exists(path)) {
                CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, path, NULL));
                sample_remove(path);
            } else {
                CHECK(status != HOTBED_OK);
            }
            if (disk.count < n || faults[i] == SAMPLE_FAULT_SHORT)
                break;
        }
    tear_down(stream, &r, &other);
}

/* A rewrite whose MANIFEST may become too large is refused at the start; the estimate is never less than the
 * bytes written. */
static void a_rewrite_to_too_many_shards_fails_at_once(hotbed_backend backend) {
    static const hotbed_rewrite_options options[] = {
        {.world = 1}, {.world = 7}, {.world = 30, .route = HOTBED_ROUTE_ROUND_ROBIN + 1}};
    hotbed_rewrite_options many = {.world = HOTBED_WORLD_MAX};
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    const char *from = sample_path("from");
    hotbed_chain chain;
    sample_disk disk;
    sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
    ranks_save(&r, from);
    CHECK_OK(hotbed_chain_open(&disk.calls, &from, 1, &chain));
    uint64_t count = disk.count;
    CHECK_STATUS(
        hotbed_checkpoint_rewrite(&disk.calls, &chain, sample_path("to"), &many),
        HOTBED_ERR_UNSUPPORTED);
    CHECK_EQ(disk.count, count);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t bytes = 0;
        uint64_t most = hotbed_rewrite_manifest_bytes(&chain, &options[i]);
        CHECK_OK(hotbed_checkpoint_rewrite(&disk.calls, &chain, sample_path("to"), &options[i]));
        free(sample_read_file(sample_path("to/MANIFEST"), &bytes));
        CHECK(bytes <= most && most <= 2 * bytes + 4096);
        sample_remove(sample_path("to"));
    }
    hotbed_chain_close(&chain);
    tear_down(stream, &r, &other);
}

/* Concatenate the files of an export, *bytes is 0 if a file is missing; the caller frees *out. */
static size_t read_export(const char *name, bool npy, unsigned char **out) {
    static const char *const files[] = {"hash.weight_id",  "hash.weight",       "hash.metadata",
                                        "hash.exp_avg",    "hash.exp_avg_sq",   "static.weight",
                                        "static.exp_avg",  "static.exp_avg_sq", "small.weight_id",
                                        "small.weight",    "small.metadata",    "small.exp_avg",
                                        "small.exp_avg_sq"};
    size_t sum = 0;
    *out = NULL;
    if (!npy)
        *out = sample_read_file(sample_path(name), &sum);
    for (size_t i = 0; npy && i < sizeof files / sizeof *files; i++) {
        char file[64];
        size_t bytes = 0;
        snprintf(file, sizeof file, "%s/%s.npy", name, files[i]);
        if (!exists(sample_path(file)))
            return 0;
        unsigned char *data = sample_read_file(sample_path(file), &bytes);
        *out = realloc(*out, sum + bytes);
        CHECK(*out != NULL);
        memcpy(*out + sum, data, bytes);
        sum += bytes;
        free(data);
    }
    return sum;
}

/* A call of an export fails, or all calls from there on do nothing: the export's name exists exactly if it is
 * complete. */
static void an_export_is_renamed_only_when_complete(hotbed_backend backend) {
    static const sample_fault faults[] = {SAMPLE_FAULT_ENOSPC, SAMPLE_FAULT_DEAD};
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("from"));
    for (int i = 0; i < 4; i++) {
        bool npy = i % 2 == 0;
        unsigned char *right = NULL;
        size_t bytes = 0;
        uint64_t absent = 0;
        for (uint64_t n = 0;; n += n > 0 && hotbed_test_is_small() ? 3 : 1) {
            const char *from = sample_path("from"), *path = sample_path("to");
            hotbed_chain chain;
            sample_disk disk;
            sample_disk_init(&disk, n == 0 ? SAMPLE_FAULT_NONE : faults[i / 2], n);
            CHECK_OK(hotbed_chain_open(&hotbed_io_system, &from, 1, &chain));
            hotbed_status status =
                (npy ? hotbed_checkpoint_export_npy
                     : hotbed_checkpoint_export_h5)(&disk.calls, &chain, path, NULL);
            hotbed_chain_close(&chain);
            CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
            if (n == 0)
                bytes = read_export("to", npy, &right);
            if (exists(path)) {
                unsigned char *found = NULL;
                CHECK_EQ(read_export("to", npy, &found), bytes);
                CHECK_BYTES(found, right, bytes);
                free(found);
                if (npy)
                    sample_remove(sample_path("to"));
                else
                    CHECK(unlink(sample_path("to")) == 0);
            } else {
                CHECK(status != HOTBED_OK);
                absent++;
            }
            if (n > 0 && disk.count < n)
                break;
        }
        CHECK(bytes > 0 && absent >= (hotbed_test_is_small() ? 3 : 8));
        free(right);
    }
    tear_down(stream, &r, &other);
}

/* The calls of an export, while another program creates the export's name when it was last found free. */
typedef struct taken_name {
    hotbed_io_calls calls;
    const char *name;
    uint32_t left; /* checks of the name, up to the last one */
} taken_name;

static int exists_then_create(void *self, int directory, const char *name) {
    taken_name *taken = self;
    int found = hotbed_io_system.exists(NULL, directory, name);
    if (strcmp(name, taken->name) == 0 && --taken->left == 0)
        sample_write_file(sample_path(name), "theirs", 6);
    return found;
}

/* Of two exports to one name, one fails, and changes nothing of the other's file. */
static void an_export_replaces_no_file(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("from"));
    for (int npy = 0; npy < 2; npy++) {
        const char *from = sample_path("from"), *path = sample_path("to");
        taken_name taken = {.calls = hotbed_io_system, .name = "to", .left = npy ? 1 : 2};
        hotbed_chain chain;
        size_t bytes = 0;
        taken.calls.self = &taken;
        taken.calls.exists = exists_then_create;
        CHECK_OK(hotbed_chain_open(&hotbed_io_system, &from, 1, &chain));
        CHECK_STATUS(
            (npy ? hotbed_checkpoint_export_npy
                 : hotbed_checkpoint_export_h5)(&taken.calls, &chain, path, NULL),
            HOTBED_ERR_STATE);
        CHECK(strstr(hotbed_last_error(), "to was created meanwhile, by another program") != NULL);
        hotbed_chain_close(&chain);
        CHECK_EQ(taken.left, 0);
        unsigned char *data = sample_read_file(path, &bytes);
        CHECK(bytes == 6 && memcmp(data, "theirs", 6) == 0);
        free(data);
        CHECK_EQ(unlink(path), 0);
        CHECK_EQ(sample_count_names(sample_path(".")), 1);
    }
    tear_down(stream, &r, &other);
}

/* --- damage ----------------------------------------------------------------------------------- */

static hotbed_status open_link(const char *path) {
    hotbed_chain_link link;
    hotbed_status status = hotbed_chain_link_open(&hotbed_io_system, path, &link);
    hotbed_chain_link_close(&link);
    return status;
}

/* Lengths at, just before and just after each boundary in the file. */
static void a_changed_length_of_any_shard_is_found(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("c"));
    hotbed_manifest m = ranks_manifest(sample_path("c"));
    for (uint32_t s = 0; s < WORLD; s++) {
        char name[48];
        size_t bytes;
        snprintf(name, sizeof name, "c/%s", hotbed_shard_name(s, WORLD).text);
        unsigned char *data = sample_read_file(sample_path(name), &bytes);
        uint64_t places[2 * RANKS_TABLES * HOTBED_COLUMNS + 6], n = 0;
        places[n++] = 0;
        places[n++] = bytes;
        places[n++] = m.shards[s].metadata_bytes;
        places[n++] = m.shards[s].blocks.offset;
        for (uint32_t t = 0; t < RANKS_TABLES; t++)
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
                const hotbed_extent *e = &m.parts[t * WORLD + s].columns[i];
                places[n++] = e->offset;
                places[n++] = e->offset + e->bytes;
            }
        for (uint64_t i = 0; i < n; i++)
            for (int by = -1; by <= 1; by++) {
                uint64_t length = places[i] + (uint64_t)(int64_t)by;
                if (length >= bytes)
                    continue;
                sample_write_file(sample_path(name), data, length);
                CHECK_STATUS(open_link(sample_path("c")), HOTBED_ERR_CORRUPT);
            }
        sample_write_file(sample_path(name), data, bytes);
        free(data);
    }
    CHECK_OK(open_link(sample_path("c")));
    hotbed_manifest_free(&m);
    tear_down(stream, &r, &other);
}

/* Flip bits of every shard's metadata, and of every byte that verify reads. */
static void a_flipped_bit_of_any_shard_is_found(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("c"));
    hotbed_manifest m = ranks_manifest(sample_path("c"));
    for (uint32_t s = 0; s < WORLD; s++) {
        char name[48];
        size_t bytes;
        snprintf(name, sizeof name, "c/%s", hotbed_shard_name(s, WORLD).text);
        unsigned char *data = sample_read_file(sample_path(name), &bytes);
        for (int i = 0, flips = hotbed_test_is_small() ? 30 : 120; i < flips; i++) {
            bool metadata = i < flips / 2;
            uint64_t bit = metadata ? hotbed_test_below(m.shards[s].metadata_bytes * 8)
                                    : hotbed_test_below(bytes * 8);
            data[bit / 8] ^= (unsigned char)(1U << bit % 8);
            sample_write_file(sample_path(name), data, bytes);
            CHECK_STATUS(
                metadata ? open_link(sample_path("c"))
                         : hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL),
                HOTBED_ERR_CORRUPT);
            data[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
        sample_write_file(sample_path(name), data, bytes);
        free(data);
    }
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL));
    hotbed_manifest_free(&m);
    tear_down(stream, &r, &other);
}

/* Flip every bit of the MANIFEST of four ranks. */
static void every_flipped_bit_of_the_manifest_is_found(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    size_t bytes;
    ranks_save(&r, sample_path("c"));
    unsigned char *text = sample_read_file(sample_path("c/MANIFEST"), &bytes);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        hotbed_manifest m;
        text[bit / 8] ^= (unsigned char)(1U << bit % 8);
        CHECK_STATUS(
            hotbed_manifest_parse("MANIFEST", (const char *)text, bytes, &m), HOTBED_ERR_CORRUPT);
        text[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    free(text);
    tear_down(stream, &r, &other);
}

/* Exchange shards, and put one shard in the place of another. */
static void exchanged_shards_are_found(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("c"));
    const char *a = sample_path("c/shard-00000-of-00004.h5");
    const char *b = sample_path("c/shard-00001-of-00004.h5"), *away = sample_path("away");
    CHECK(rename(a, away) == 0 && rename(b, a) == 0 && rename(away, b) == 0);
    CHECK_STATUS(open_link(sample_path("c")), HOTBED_ERR_CORRUPT);
    size_t bytes;
    unsigned char *data = sample_read_file(sample_path("c/shard-00002-of-00004.h5"), &bytes);
    sample_write_file(sample_path("c/shard-00003-of-00004.h5"), data, bytes);
    CHECK_STATUS(open_link(sample_path("c")), HOTBED_ERR_CORRUPT);
    free(data);
    tear_down(stream, &r, &other);
}

/* The bytes of HDF5's metadata are changed and all digests recomputed: verify generates the metadata again
 * and finds the change. */
static void changed_metadata_with_correct_digests_is_found(hotbed_backend backend) {
    enum { SHARD = 2 };
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    static const char name[] = "c/shard-00002-of-00004.h5";
    ranks_save(&r, sample_path("c"));
    CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL));
    size_t bytes, text_bytes;
    unsigned char *data = sample_read_file(sample_path(name), &bytes);
    hotbed_manifest m = ranks_manifest(sample_path("c"));
    hotbed_manifest_shard *shard = &m.shards[SHARD];
    for (int i = 0; i < (hotbed_test_is_small() ? 10 : 40); i++) {
        char *text = NULL;
        uint64_t bit = hotbed_test_below(shard->metadata_bytes * 8);
        data[bit / 8] ^= (unsigned char)(1U << bit % 8);
        shard->metadata = hotbed_digest_root(data, shard->metadata_bytes, m.block_bytes);
        sample_write_file(sample_path(name), data, bytes);
        CHECK_OK(hotbed_manifest_print(&m, &text, &text_bytes));
        sample_write_file(sample_path("c/MANIFEST"), text, text_bytes);
        /* Control: without a change, recomputed digests are accepted. */
        CHECK_OK(open_link(sample_path("c")));
        CHECK_STATUS(
            hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL),
            HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), "HDF5 metadata") != NULL);
        hotbed_delete(text);
        data[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    hotbed_manifest_free(&m);
    free(data);
    tear_down(stream, &r, &other);
}

/* The same with the index. */
static void a_changed_index_with_correct_digests_is_found(hotbed_backend backend) {
    ranks r, other;
    hotbed_stream *stream = set_up(backend, &r, &other);
    ranks_save(&r, sample_path("c"));
    size_t bytes, text_bytes;
    unsigned char *data = sample_read_file(sample_path("c/index.h5"), &bytes);
    hotbed_manifest m = ranks_manifest(sample_path("c"));
    for (int i = 0; i <= (hotbed_test_is_small() ? 10 : 40); i++) {
        char *text = NULL;
        uint64_t bit = hotbed_test_below(bytes * 8);
        unsigned char mask = (unsigned char)(i == 0 ? 0 : 1U << bit % 8);
        data[bit / 8] ^= mask;
        m.index = hotbed_digest_root(data, bytes, m.block_bytes);
        sample_write_file(sample_path("c/index.h5"), data, bytes);
        CHECK_OK(hotbed_manifest_print(&m, &text, &text_bytes));
        sample_write_file(sample_path("c/MANIFEST"), text, text_bytes);
        CHECK_STATUS(
            hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL),
            mask == 0 ? HOTBED_OK : HOTBED_ERR_CORRUPT);
        CHECK(mask == 0 || strstr(hotbed_last_error(), "index.h5: its HDF5 metadata") != NULL);
        hotbed_delete(text);
        data[bit / 8] ^= mask;
    }
    hotbed_manifest_free(&m);
    free(data);
    tear_down(stream, &r, &other);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_changed_index_with_correct_digests_is_found)},
    {TEST(changed_metadata_with_correct_digests_is_found)},
    {TEST(an_abort_removes_what_ranks_create_meanwhile)},
    {TEST(a_kill_of_ranks_at_any_call_leaves_nothing_or_all)},
    {TEST(save_of_ranks_survives_an_error_at_any_call)},
    {TEST(everything_of_all_ranks_is_synced_before_the_rename)},
    {TEST(a_rewrite_survives_an_error_at_any_call)},
    {TEST(a_rewrite_to_too_many_shards_fails_at_once)},
    {TEST(an_export_is_renamed_only_when_complete)},
    {TEST(an_export_replaces_no_file)},
    {TEST(a_changed_length_of_any_shard_is_found)},
    {TEST(a_flipped_bit_of_any_shard_is_found)},
    {TEST(every_flipped_bit_of_the_manifest_is_found)},
    {TEST(exchanged_shards_are_found)},
    {NULL, NULL},
};
