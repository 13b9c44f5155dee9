/* tests/checkpoint/test_checkpoint_model.c - a checkpoint of several storages: all or nothing, on other ranks, in
 * other storages, in parts. */
#include "checkpoint/verify.h"
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const model_shape usual;

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

static hotbed_status save(model *m, const char *path, const char *parent) {
    return model_save(m, path, parent, &hotbed_io_system);
}

/* Three ranks save; one to five ranks load into storages of other tables, poolings and sizes, and of every
 * dtype from every other. */
static void a_model_is_loaded_on_other_ranks_and_in_other_storages(hotbed_backend backend) {
    static const model_shape shapes[] = {
        {.regrouped = false}, {.regrouped = true},       {.shift = 1}, {.shift = 2}, {.shift = 3},
        {.shift = 4},         {.more = {0, 5, 0, 0, 21}}};
    hotbed_stream *stream = sample_stream(backend);
    model from, to;
    const char *path = sample_path("model");
    model_create(&from, &usual, 3, stream);
    model_fill(&from, 1, false);
    CHECK_OK(save(&from, path, NULL));
    CHECK_OK(hotbed_checkpoint_check(path));
    model_check_blobs(path);
    for (uint32_t world = 1; world <= MODEL_WORLD; world += 2)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            hotbed_checkpoint_report report = {.size = sizeof report};
            model_create(&to, &shapes[s], world, stream);
            CHECK_OK(model_load(&to, path, NULL, &report));
            CHECK_EQ(report.step, 7);
            CHECK_EQ(report.num_tables, MODEL_TABLES);
            CHECK_EQ(report.num_lossy, 0);
            model_check(&to, 1, 0);
            model_destroy(&to);
        }
    model_destroy(&from);
    hotbed_stream_destroy(stream);
}

/* Checkpoints keep the type of states, and states are loaded as either type: F32 ones rounded to nearest. */
static void states_are_loaded_as_either_type(hotbed_backend backend) {
    enum { SOME = 0x0b, OTHERS = 0x1f & ~SOME, ALL = 0x1f };
    static const uint32_t masks[] = {0, SOME, OTHERS, ALL};
    hotbed_stream *stream = sample_stream(backend);
    const char *path = sample_path("model");
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t saved = masks[i / 4], here = masks[i % 4], world = 1 + i % 3;
        const model_shape first = {.narrow = saved, .saved_narrow = saved, .thirds = true};
        const model_shape second = {.narrow = here, .saved_narrow = saved, .thirds = true};
        model from, to;
        hotbed_checkpoint_report report = {.size = sizeof report};
        model_create(&from, &first, 3, stream);
        model_fill(&from, 1, false);
        CHECK_OK(save(&from, path, NULL));
        CHECK_OK(hotbed_checkpoint_check(path));
        model_create(&to, &second, world, stream);
        CHECK_OK(model_load(&to, path, NULL, &report));
        CHECK_EQ(report.num_lossy, 0);
        model_check(&to, 1, 0);
        model_destroy(&to);
        model_destroy(&from);
        sample_remove(path);
    }
    hotbed_stream_destroy(stream);
}

/* Three storages, three ranks, two blobs, a kill at every call: the checkpoint does not exist, or has all of
 * them. */
static void a_kill_at_any_call_leaves_nothing_or_the_whole_model(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    model from, to;
    const char *path = sample_path("model");
    const uint64_t step = hotbed_test_is_small() ? 11 : 3; /* test_strace kills at other calls */
    uint64_t absent = 0, whole = 0;
    sample_disk disk;
    model_create(&from, &usual, 3, stream);
    model_create(&to, &usual, 1, stream);
    model_fill(&from, 2, false);
    for (uint64_t n = 1;; n += step) {
        sample_disk_init(&disk, SAMPLE_FAULT_DEAD, n);
        hotbed_status status = model_save(&from, path, NULL, &disk.calls);
        if (exists(path)) {
            CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, path, NULL));
            if (whole++ == 0) {
                CHECK_OK(model_load(&to, path, NULL, NULL));
                model_check(&to, 2, 0);
                model_check_blobs(path);
            }
            sample_remove(path);
        } else {
            CHECK(status != HOTBED_OK);
            absent++;
        }
        if (disk.count < n)
            break;
    }
    CHECK(absent > 0 && whole > 0);
    model_destroy(&to);
    model_destroy(&from);
    hotbed_stream_destroy(stream);
}

/* The save after a load is an increment: a load fills the mark. */
static void a_save_after_a_load_is_an_increment(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    model from, to;
    const char *full = sample_path("full"), *more = sample_path("more"),
               *last = sample_path("last");
    model_create(&from, &usual, 3, stream);
    model_fill(&from, 1, false);
    CHECK_OK(save(&from, full, NULL));
    model_destroy(&from);
    model_create(&from, &usual, 3, stream);
    CHECK_OK(model_load(&from, full, NULL, NULL));
    CHECK_STATUS(save(&from, more, full), HOTBED_ERR_STATE); /* what other ranks lost is unknown */
    model_destroy(&from);
    model_create(&from, &usual, 1, stream);
    CHECK_OK(model_load(&from, full, NULL, NULL));
    CHECK_STATUS(save(&from, more, full), HOTBED_ERR_STATE); /* the parent has three ranks */
    CHECK_OK(save(&from, more, NULL));
    CHECK_OK(model_load(&from, more, NULL, NULL));
    model_fill(&from, 2, true);
    CHECK_OK(save(&from, last, more));
    CHECK_OK(hotbed_checkpoint_check(last));
    for (int chain = 0; chain < 2; chain++) { /* the mark of a chain continues it, too */
        model_create(&to, &usual, 1, stream);
        CHECK_OK(model_load(&to, more, last, NULL));
        model_check(&to, 1, 2);
        model_destroy(&to);
    }
    /* A mark of a load that did not take everything is empty. */
    static const model_shape fewer = {.capacity = 40};
    hotbed_checkpoint_report report = {.size = sizeof report};
    model_create(&to, &fewer, 1, stream);
    CHECK_OK(model_load(&to, more, NULL, &report));
    CHECK_EQ(report.num_lossy, 1);
    CHECK_STATUS(save(&to, sample_path("none"), more), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "the mark does not belong to") != NULL);
    model_destroy(&to);
    model_destroy(&from);
    hotbed_stream_destroy(stream);
}

static void snapshots_have_all_storages(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    model from, to;
    const char *path = sample_path("model"), *more[] = {sample_path("a"), sample_path("b")};
    hotbed_checkpoint_arena *arena = NULL;
    CHECK_OK(hotbed_checkpoint_arena_create(1 << 16, 1 << 16, stream, &arena));
    for (int with = 0; with < 2; with++) {
        hotbed_checkpoint_snapshot *snapshot = NULL;
        model_create(&from, &usual, 1, stream);
        model_create(&to, &usual, 1, stream);
        model_fill(&from, 1, false);
        hotbed_checkpoint_options options = model_options(&from, 0);
        options.arena = with == 0 ? NULL : arena;
        CHECK_OK(hotbed_checkpoint_snapshot_take(
            from.storages[0], MODEL_STORAGES, &options, stream, &snapshot));
        model_fill(&from, 2, true);
        CHECK_OK(hotbed_checkpoint_snapshot_write(snapshot, path));
        CHECK_OK(hotbed_checkpoint_check(path));
        CHECK_OK(model_load(&to, path, NULL, NULL));
        model_check(&to, 1, 0);
        model_check_blobs(path);
        hotbed_checkpoint_snapshot_destroy(snapshot);
        options.parent = path;
        CHECK_OK(
            hotbed_checkpoint_save(more[with], from.storages[0], MODEL_STORAGES, &options, stream));
        CHECK_OK(model_load(&to, path, more[with], NULL));
        model_check(&to, 1, 2);
        sample_remove(path);
        model_destroy(&to);
        model_destroy(&from);
    }
    hotbed_checkpoint_arena_destroy(arena);
    hotbed_stream_destroy(stream);
}

static void what_is_not_loaded_is_reported(hotbed_backend backend) {
    /* users lose rows, items are smaller, tags have another dim, words are new under another name */
    static const model_shape other = {
        .regrouped = true,
        .more = {0, -20, 0, 0, 3},
        .dim = {0, 0, 5},
        .names = {NULL, NULL, NULL, "sentences"},
        .capacity = 40,
    };
    static const struct {
        const char *name;
        hotbed_checkpoint_taken taken;
        uint64_t saved, loaded; /* loaded UINT64_MAX: fewer than saved */
    } right[] = {
        {"users", HOTBED_TAKEN, 300, UINT64_MAX}, {"items", HOTBED_TAKEN, 60, 40},
        {"tags", HOTBED_TAKEN_DIM, 150, 0},       {"words", HOTBED_TAKEN_DROPPED, 100, 0},
        {"places", HOTBED_TAKEN, 20, 20},         {"sentences", HOTBED_TAKEN_NEW, 0, 0},
    };
    hotbed_stream *stream = sample_stream(backend);
    model from, to;
    const char *path = sample_path("model");
    hotbed_checkpoint_table tables[MODEL_TABLES + 1];
    hotbed_checkpoint_report report = {
        .size = sizeof report, .capacity = MODEL_TABLES + 1, .tables = tables};
    model_create(&from, &usual, 3, stream);
    model_fill(&from, 1, false);
    for (uint32_t i = 0; i < MODEL_STORAGES; i++) {
        hotbed_storage_state state = {.size = sizeof state};
        CHECK_OK(hotbed_storage_get_state(from.storages[0][i], &state, stream));
        state.optimizer_steps = 7;
        state.learning_rate = 0.25F;
        CHECK_OK(hotbed_storage_set_state(from.storages[0][i], &state, stream));
    }
    CHECK_OK(save(&from, path, NULL));
    model_create(&to, &other, 1, stream);
    CHECK_STATUS(model_load(&to, path, NULL, NULL), HOTBED_ERR_STATE);
    model_fill(&to, 3, false);
    CHECK_OK(model_load(&to, path, NULL, &report));
    CHECK_EQ(report.num_tables, MODEL_TABLES + 1);
    CHECK_EQ(report.num_lossy, 4);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        const hotbed_checkpoint_table *t = model_find(&report, right[i].name);
        CHECK_EQ(t->taken, right[i].taken);
        CHECK_EQ(t->saved, right[i].saved);
        CHECK_EQ(t->optimizer_steps, t->taken == HOTBED_TAKEN_NEW ? 0 : 7);
        CHECK(t->learning_rate == (t->taken == HOTBED_TAKEN_NEW ? 0 : 0.25F));
        CHECK(
            right[i].loaded == UINT64_MAX ? t->loaded < t->saved && t->loaded > 0
                                          : t->loaded == right[i].loaded);
    }
    model_check_table(&to, 1, 1, 0);
    model_check_table(&to, 2, 3, 0); /* unchanged: tags and sentences */
    model_check_table(&to, 3, 3, 0);
    model_check_table(&to, 4, 1, 0);
    model_destroy(&to);
    static const model_shape stranger = {.names = {"a", "b", "c", "d", "e"}};
    model_create(&to, &stranger, 1, stream);
    CHECK_STATUS(model_load(&to, path, NULL, &report), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "has no rows for any table of the storages") != NULL);
    model_destroy(&to);
    static const model_shape narrow = {.dim = {5}};
    const hotbed_error_detail *detail = hotbed_last_error_detail();
    model_create(&to, &narrow, 1, stream);
    CHECK_STATUS(model_load(&to, path, NULL, NULL), HOTBED_ERR_STATE);
    CHECK(strcmp(detail->table, "users") == 0 && strcmp(detail->parameter, "dim") == 0);
    CHECK_EQ((uint64_t)detail->value, 8);
    model_destroy(&to);
    model_destroy(&from);
    hotbed_stream_destroy(stream);
}

/* Storages that are saved together have distinct names of tables. */
static void two_tables_of_one_name_are_refused(hotbed_backend backend) {
    static const model_shape same = {.names = {NULL, NULL, "users"}};
    hotbed_stream *stream = sample_stream(backend);
    model m;
    model_create(&m, &same, 1, stream);
    CHECK_STATUS(save(&m, sample_path("model"), NULL), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "two tables have the name 'users'") != NULL);
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

/* Check that the newest whole checkpoint of the directory has these paths; NULL: fewer. */
static void check_latest(const char *directory, const char *first, const char *second) {
    hotbed_checkpoint_found found = {.size = sizeof found};
    CHECK_OK(hotbed_checkpoint_latest(directory, &found));
    CHECK_EQ(found.num_paths, (uint32_t)(first != NULL) + (second != NULL));
    if (first != NULL)
        CHECK_STRING(found.paths[0], first);
    if (second != NULL)
        CHECK_STRING(found.paths[1], second);
    hotbed_checkpoint_found_free(&found);
    CHECK(found.paths == NULL);
}

static void the_newest_whole_checkpoint_is_found(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    const char *directory = sample_directory();
    const char *full = sample_path("b"), *more = sample_path("a"), *broken = sample_path("c");
    char text[300];
    model m;
    hotbed_checkpoint_found found = {.size = sizeof found};
    check_latest(directory, NULL, NULL);
    CHECK_STATUS(hotbed_checkpoint_latest(sample_path("none"), &found), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_checkpoint_latest(NULL, &found), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_latest(directory, NULL), HOTBED_ERR_ARGUMENT);
    model_create(&m, &usual, 1, stream);
    model_fill(&m, 1, false);
    CHECK_OK(save(&m, full, NULL));
    check_latest(directory, full, NULL);
    model_fill(&m, 2, true);
    CHECK_OK(save(&m, more, full));
    check_latest(directory, full, more);
    /* A newer one without one of its files is skipped, with the reason. */
    CHECK_OK(save(&m, broken, NULL));
    snprintf(text, sizeof text, "%s/shard-00000-of-00001.h5", broken);
    CHECK_EQ(unlink(text), 0);
    CHECK_OK(hotbed_checkpoint_latest(directory, &found));
    CHECK_EQ(found.num_paths, 2);
    CHECK_EQ(found.num_skipped, 1);
    CHECK_STRING(found.skipped[0].path, broken);
    CHECK_STATUS(found.skipped[0].status, HOTBED_ERR_CORRUPT);
    CHECK(strstr(found.skipped[0].why, "shard-00000-of-00001.h5") != NULL);
    hotbed_checkpoint_found_free(&found);
    /* A link to nowhere may be a newer checkpoint, on a file system that is not mounted. */
    sample_remove(broken);
    CHECK_EQ(symlink("nowhere", broken), 0);
    CHECK_OK(hotbed_checkpoint_latest(directory, &found));
    CHECK_EQ(found.num_paths, 2);
    CHECK_EQ(found.num_skipped, 1);
    CHECK_STRING(found.skipped[0].path, broken);
    CHECK_STATUS(found.skipped[0].status, HOTBED_ERR_STATE);
    CHECK_STRING(found.skipped[0].why, "a symbolic link whose target does not exist");
    hotbed_checkpoint_found_free(&found);
    CHECK_EQ(unlink(broken), 0);
    /* An increment without its parent is no checkpoint. */
    sample_remove(full);
    CHECK_OK(hotbed_checkpoint_latest(directory, &found));
    CHECK_EQ(found.num_paths, 0);
    CHECK_EQ(found.num_skipped, 1);
    CHECK_STATUS(found.skipped[0].status, HOTBED_ERR_STATE);
    CHECK(strstr(found.skipped[0].why, "is an increment, whose parent was not found") != NULL);
    hotbed_checkpoint_found_free(&found);
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

static void copy_checkpoint(const char *from, const char *to) {
    static const char *const names[] = {"MANIFEST", "index.h5", "shard-00000-of-00001.h5"};
    CHECK_EQ(mkdir(to, 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s", from, names[i]);
        unsigned char *data = sample_read_file(path, &bytes);
        snprintf(path, sizeof path, "%s/%s", to, names[i]);
        sample_write_file(path, data, bytes);
        free(data);
    }
}

/* The newest of a chain can be used if one copy of each checkpoint is whole. The copies have names before and
 * after the original's. */
static void a_whole_copy_of_a_parent_is_enough(hotbed_backend backend) {
    static const char *const copies[] = {"a", "z"};
    hotbed_stream *stream = sample_stream(backend);
    const char *directory = sample_directory();
    const char *full = sample_path("m"), *more = sample_path("n");
    char shard[300];
    model m;
    model_create(&m, &usual, 1, stream);
    model_fill(&m, 1, false);
    CHECK_OK(save(&m, full, NULL));
    model_fill(&m, 2, true);
    CHECK_OK(save(&m, more, full));
    snprintf(shard, sizeof shard, "%s/shard-00000-of-00001.h5", full);
    for (size_t i = 0; i < 2; i++) {
        const char *other = sample_path(copies[i]);
        copy_checkpoint(full, other);
        CHECK_EQ(truncate(shard, 1), 0);
        check_latest(directory, other, more);
        CHECK_EQ(rename(full, sample_path("kept")), 0);
        CHECK_EQ(rename(other, full), 0);
        sample_remove(sample_path("kept"));
        check_latest(directory, full, more);
    }
    /* Both are damaged: the reason is one of theirs. */
    hotbed_checkpoint_found found = {.size = sizeof found};
    CHECK_EQ(truncate(shard, 1), 0);
    CHECK_OK(hotbed_checkpoint_latest(directory, &found));
    CHECK_EQ(found.num_paths, 0);
    CHECK_EQ(found.num_skipped, 2);
    CHECK_STRING(found.skipped[0].path, more);
    CHECK_STATUS(found.skipped[0].status, HOTBED_ERR_STATE);
    CHECK(strstr(found.skipped[0].why, "n follows a damaged checkpoint: ") != NULL);
    CHECK(strstr(found.skipped[0].why, "m/shard-00000-of-00001.h5") != NULL);
    CHECK_STRING(found.skipped[1].path, full);
    CHECK_STATUS(found.skipped[1].status, HOTBED_ERR_CORRUPT);
    hotbed_checkpoint_found_free(&found);
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

/* With a damaged base no checkpoint of a chain is whole, and the search checks each of them once. */
static void each_checkpoint_of_a_damaged_chain_is_checked_once(hotbed_backend backend) {
    enum { LENGTH = 5 };
    hotbed_stream *stream = sample_stream(backend);
    const char *directory = sample_directory(), *paths[LENGTH];
    char text[300];
    sample_disk whole, damaged;
    model m;
    model_create(&m, &usual, 1, stream);
    for (uint32_t i = 0; i < LENGTH; i++) {
        snprintf(text, sizeof text, "%u", i);
        paths[i] = sample_path(text);
        model_fill(&m, i + 1, i > 0);
        CHECK_OK(save(&m, paths[i], i == 0 ? NULL : paths[i - 1]));
    }
    hotbed_checkpoint_found found = {.size = sizeof found};
    sample_disk_init(&whole, SAMPLE_FAULT_NONE, 0);
    CHECK_OK(hotbed_checkpoint_find_latest(&whole.calls, directory, &found));
    CHECK_EQ(found.num_paths, LENGTH);
    hotbed_checkpoint_found_free(&found);
    snprintf(text, sizeof text, "%s/shard-00000-of-00001.h5", paths[0]);
    CHECK_EQ(truncate(text, 1), 0);
    sample_disk_init(&damaged, SAMPLE_FAULT_NONE, 0);
    CHECK_OK(hotbed_checkpoint_find_latest(&damaged.calls, directory, &found));
    CHECK_EQ(found.num_paths, 0);
    CHECK_EQ(found.num_skipped, LENGTH);
    CHECK(damaged.count <= whole.count);
    hotbed_checkpoint_found_free(&found);
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

static void the_newest_of_a_checkpoint_is_refused(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    const char *path = sample_path("a");
    hotbed_checkpoint_found found = {.size = sizeof found};
    char text[300];
    model m;
    model_create(&m, &usual, 1, stream);
    model_fill(&m, 1, false);
    CHECK_OK(save(&m, path, NULL));
    for (uint32_t i = 0; i < 2; i++) { /* whole, then without MANIFEST */
        CHECK_STATUS(hotbed_checkpoint_latest(path, &found), HOTBED_ERR_ARGUMENT);
        CHECK(
            strstr(hotbed_last_error(), "a is a checkpoint, not a directory of checkpoints") !=
            NULL);
        CHECK_STRING(hotbed_last_error_detail()->parameter, "directory");
        snprintf(text, sizeof text, "%s/MANIFEST", path);
        CHECK(unlink(text) == 0 || i > 0);
    }
    model_destroy(&m);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_model_is_loaded_on_other_ranks_and_in_other_storages)},
    {TEST(states_are_loaded_as_either_type)},
    {TEST(a_kill_at_any_call_leaves_nothing_or_the_whole_model)},
    {TEST(a_save_after_a_load_is_an_increment)},
    {TEST(snapshots_have_all_storages)},
    {TEST(what_is_not_loaded_is_reported)},
    {TEST(two_tables_of_one_name_are_refused)},
    {TEST(the_newest_whole_checkpoint_is_found)},
    {TEST(a_whole_copy_of_a_parent_is_enough)},
    {TEST(each_checkpoint_of_a_damaged_chain_is_checked_once)},
    {TEST(the_newest_of_a_checkpoint_is_refused)},
    {NULL, NULL},
};
