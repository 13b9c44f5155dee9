/* tests/checkpoint/test_checkpoint_arena.c - snapshots that keep their copy of the rows in device or pinned
 * memory of an arena: the files have the same rows wherever the copy was. */
#include "checkpoint/verify.h"
#include "tests/checkpoint/ranks.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <string.h>

static const ranks_shape shape = {
    .optimizer = HOTBED_OPT_ADAM, .score = HOTBED_SCORE_TIMESTAMP_LFU};

static const hotbed_memory_kind kinds[] = {
    HOTBED_MEMORY_DEVICE, HOTBED_MEMORY_PINNED, HOTBED_MEMORY_PAGEABLE};

static hotbed_checkpoint_arena *new_arena(
    uint64_t device_bytes, uint64_t pinned_bytes, hotbed_stream *stream) {
    hotbed_checkpoint_arena *arena = NULL;
    CHECK_OK(hotbed_checkpoint_arena_create(device_bytes, pinned_bytes, stream, &arena));
    return arena;
}

static uint64_t bytes_of(const hotbed_checkpoint_snapshot *snapshot) {
    uint64_t bytes = 0;
    for (int k = 0; k < 3; k++)
        bytes += hotbed_checkpoint_snapshot_bytes(snapshot, kinds[k]);
    return bytes;
}

/* Every column of every part has the same bytes. */
static void same_bytes(const char *a, const char *b) {
    hotbed_manifest x = ranks_manifest(a), y = ranks_manifest(b);
    CHECK_EQ(x.num_tables, y.num_tables);
    for (uint32_t t = 0; t < x.num_tables; t++) {
        CHECK_EQ(x.tables[t].rows, y.tables[t].rows);
        CHECK_BYTES(&x.tables[t].content, &y.tables[t].content, sizeof x.tables[t].content);
    }
    for (uint32_t p = 0; p < x.num_tables * x.world; p++)
        for (uint32_t c = 0; c < HOTBED_COLUMNS; c++) {
            const hotbed_extent *m = &x.parts[p].columns[c], *n = &y.parts[p].columns[c];
            CHECK_EQ(m->bytes, n->bytes);
            CHECK_BYTES(&m->root, &n->root, sizeof m->root);
        }
    hotbed_manifest_free(&x);
    hotbed_manifest_free(&y);
}

/* --- where copies are stored ---------------------------------------------------------------- */

/* The arena has no memory, enough memory, one byte too little, or enough for a part of the rows. In
 * each case the files equal the files of a save. */
static void the_copy_may_be_in_any_memory(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    const char *saved = sample_path("saved"), *path = sample_path("c");
    ranks_create(&r, &shape, 1, stream);
    ranks_fill(&r, 1);
    ranks_erase(&r, 3, 7);
    ranks_save(&r, saved);
    hotbed_checkpoint_snapshot *snapshot = ranks_take(&r, 0, NULL, NULL);
    uint64_t all = bytes_of(snapshot);
    CHECK(all > 0);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_PAGEABLE), all);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    const uint64_t budgets[][2] = {{0, 0},       {all, 0},       {0, all},           {all - 1, 0},
                                   {0, all - 1}, {all / 2, all}, {all / 3, all / 3}, {255, 1},
                                   {256, 0},     {all, all}};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        const uint64_t device = budgets[i][0], pinned = budgets[i][1];
        hotbed_checkpoint_arena *arena = new_arena(device, pinned, stream);
        for (int round = 0; round < 2;
             round++) { /* the second round reuses the memory of the first */
            snapshot = ranks_take(&r, 0, NULL, arena);
            uint64_t on[3];
            for (int k = 0; k < 3; k++)
                on[k] = hotbed_checkpoint_snapshot_bytes(snapshot, kinds[k]);
            CHECK_EQ(on[0] + on[1] + on[2], all);
            CHECK(on[0] <= device && on[1] <= pinned);
            CHECK((device < all) == (on[0] < all));
            CHECK(device < 256 || on[0] > 0);
            CHECK((on[2] == 0) == (device + pinned >= all && (device != all / 2 || pinned == all)));
            CHECK_OK(ranks_write(snapshot, path));
            CHECK_EQ(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_DEVICE), 0);
            CHECK_EQ(bytes_of(snapshot), all);
            same_bytes(saved, path);
            hotbed_checkpoint_snapshot_destroy(snapshot);
            sample_remove(path);
        }
        hotbed_checkpoint_arena_destroy(arena);
    }
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

/* One snapshot at a time uses each part of an arena: device memory until the snapshot is written, pinned
 * memory until it is destroyed. */
static void a_part_serves_one_snapshot_at_a_time(hotbed_backend backend) {
    enum { ARENA_BYTES = 1 << 20 };
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    ranks_create(&r, &shape, 1, stream);
    ranks_fill(&r, 1);
    hotbed_checkpoint_arena *arena = new_arena(ARENA_BYTES, ARENA_BYTES, stream);
    hotbed_checkpoint_snapshot *one = ranks_take(&r, 0, NULL, arena),
                               *two = ranks_take(&r, 0, NULL, arena);
    hotbed_checkpoint_snapshot *three = ranks_take(&r, 0, NULL, arena);
    uint64_t all = bytes_of(one);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(one, HOTBED_MEMORY_DEVICE), all);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(two, HOTBED_MEMORY_PINNED), all);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(three, HOTBED_MEMORY_PAGEABLE), all);
    hotbed_checkpoint_snapshot_destroy(three);
    /* Moves to its own memory: `two` has the pinned part. */
    CHECK_OK(ranks_write(one, sample_path("one")));
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(one, HOTBED_MEMORY_PAGEABLE), all);
    three = ranks_take(&r, 0, NULL, arena);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(three, HOTBED_MEMORY_DEVICE), all);
    hotbed_checkpoint_snapshot_destroy(two);
    CHECK_OK(ranks_write(three, sample_path("three")));
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(three, HOTBED_MEMORY_PINNED), all);
    same_bytes(sample_path("one"), sample_path("three"));
    two = ranks_take(&r, 0, NULL, arena);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(two, HOTBED_MEMORY_DEVICE), all);
    hotbed_checkpoint_snapshot_destroy(one);
    hotbed_checkpoint_snapshot_destroy(two); /* its copy is still in device memory */
    hotbed_checkpoint_snapshot_destroy(three);
    hotbed_checkpoint_arena_destroy(arena);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

/* A snapshot into an arena has the rows of a save, which is written to `saved`; its copy is in memory of
 * `kind`. */
static void check_image(
    hotbed_storage *storage, const char *saved, hotbed_memory_kind kind, hotbed_stream *stream) {
    const char *path = sample_path("image");
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    hotbed_checkpoint_snapshot *snapshot = NULL;
    hotbed_checkpoint_options options = {.size = sizeof options};
    options.arena = new_arena(1 << 20, 1 << 20, stream);
    CHECK_OK(sample_write(&config, saved, storage, &options, stream));
    CHECK_OK(sample_snapshot_take(&config, storage, &options, stream, &snapshot));
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(snapshot, kind), bytes_of(snapshot));
    CHECK_OK(hotbed_snapshot_write(&config, path, snapshot));
    same_bytes(saved, path);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_checkpoint_arena_destroy(options.arena);
}

/* The copy contains the rows of both tiers, and of a table that has grown. */
static void the_copy_has_all_tiers_and_segments(hotbed_backend backend) {
    static const sample cases[] = {
        {.optimizer = HOTBED_OPT_ADAM, .mode = HOTBED_MODE_CACHE, .hbm_bytes = 32768},
        {.optimizer = HOTBED_OPT_ADAM, .mode = HOTBED_MODE_DEFAULT, .hbm_bytes = 32768},
    };
    static const sample grows = {
        .optimizer = HOTBED_OPT_ADAM, .rows = 90, .capacity = 100, .max_capacity = 5000};
    hotbed_stream *stream = sample_stream(backend);
    hotbed_storage *grown = sample_create(&grows, stream);
    const char *const names[] = {"cache", "default"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hotbed_storage *storage = sample_create(&cases[i], stream);
        const char *saved = sample_path(names[i]);
        sample_fill(&cases[i], storage, stream);
        check_image(storage, saved, HOTBED_MEMORY_PINNED, stream);
        CHECK_OK(hotbed_checkpoint_load(saved, &grown, 1, NULL, NULL, stream));
        sample_check_same(storage, grown, stream);
        sample_remove(sample_path("image"));
        hotbed_storage_destroy(storage);
    }
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(grown, 0, &info));
    CHECK(info.segments > 0);
    check_image(grown, sample_path("grown"), HOTBED_MEMORY_DEVICE, stream);
    hotbed_storage_destroy(grown);
    hotbed_stream_destroy(stream);
}

/* --- snapshots during training -------------------------------------------------------------- */

/* Take a full snapshot and increments, each while the previous one may still be copied or written: each has
 * the rows of the time at which it was taken. */
static void snapshots_do_not_change_during_training(hotbed_backend backend) {
    enum { CUTS = 4 };
    static ranks r, to, cuts[CUTS];
    ranks_writer b[2];
    char names[CUTS][8];
    const char *paths[CUTS];
    hotbed_stream *stream = sample_stream(backend);
    ranks_create(&r, &shape, 1, stream);
    ranks_create(&to, &shape, 1, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    hotbed_checkpoint_arena *arena = new_arena(1 << 20, 1 << 16, stream);
    for (uint32_t c = 0; c < CUTS; c++) {
        names[c][0] = (char)('a' + c);
        names[c][1] = '\0';
        paths[c] = sample_path(names[c]);
        cuts[c] = r;
        hotbed_checkpoint_snapshot *snapshot =
            ranks_take(&r, 0, c == 0 ? NULL : paths[c - 1], arena);
        ranks_train(&r, 10 * c + 2);
        if (c > 0)
            ranks_write_end(&b[(c - 1) % 2]);
        ranks_write_begin(&b[c % 2], snapshot, paths[c]);
        ranks_train(&r, 10 * c + 6);
    }
    ranks_write_end(&b[(CUTS - 1) % 2]);
    for (uint32_t c = 0; c < CUTS; c++) {
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, paths[c], NULL));
        ranks_load_chain(&to, paths[0], &paths[1], c, &hotbed_io_system);
        ranks_check(&to, &cuts[c]);
    }
    hotbed_checkpoint_arena_destroy(arena);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* Three ranks with an arena for two of them write one checkpoint. */
static void ranks_write_snapshots_from_an_arena(hotbed_backend backend) {
    enum { WORLD = 3 };
    static ranks r, to;
    hotbed_stream *stream = sample_stream(backend);
    hotbed_io_calls calls = ranks_calls();
    hotbed_checkpoint_config config = ranks_config(&calls);
    hotbed_checkpoint_snapshot *snapshots[WORLD];
    hotbed_checkpoint_arena *arenas[2];
    const char *paths[2] = {sample_path("full"), sample_path("one")};
    ranks_create(&r, &shape, WORLD, stream);
    ranks_create(&to, &shape, 2, stream);
    ranks_mark(&r);
    ranks_fill(&r, 1);
    for (int i = 0; i < 2; i++)
        arenas[i] = new_arena(1 << 20, 0, stream);
    for (uint32_t step = 0; step < 2; step++) {
        hotbed_checkpoint_id id;
        for (uint32_t i = 0; i < WORLD; i++)
            snapshots[i] = ranks_take(&r, i, step == 0 ? NULL : paths[0], i < 2 ? arenas[i] : NULL);
        CHECK_OK(hotbed_save_begin(&config, paths[step], &id));
        for (uint32_t i = 0; i < WORLD; i++) {
            CHECK_EQ(
                hotbed_checkpoint_snapshot_bytes(snapshots[i], HOTBED_MEMORY_DEVICE),
                i < 2 ? bytes_of(snapshots[i]) : 0);
            CHECK_OK(hotbed_snapshot_put(&config, paths[step], id, snapshots[i]));
            hotbed_checkpoint_snapshot_destroy(snapshots[i]);
        }
        CHECK_OK(hotbed_save_commit(&config, paths[step], id, WORLD));
        ranks_load_chain(&to, paths[0], &paths[1], step, &hotbed_io_system);
        ranks_check(&to, &r);
        ranks_train(&r, 2);
    }
    for (int i = 0; i < 2; i++)
        hotbed_checkpoint_arena_destroy(arenas[i]);
    ranks_destroy(&r);
    ranks_destroy(&to);
    hotbed_stream_destroy(stream);
}

/* --- failures --------------------------------------------------------------------------------- */

/* After a take without memory the arena is free for the next one; a write without memory can be repeated. */
static void no_memory_at_any_allocation(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    const char *saved = sample_path("saved"), *path = sample_path("c");
    ranks_create(&r, &shape, 1, stream);
    ranks_fill(&r, 1);
    ranks_save(&r, saved);
    hotbed_checkpoint_arena *arena = NULL;
    for (uint64_t n = 1; arena == NULL; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_checkpoint_arena_create(1 << 16, 256, stream, &arena);
        bool failed = fault_disarm();
        CHECK((status == HOTBED_OK) == (arena != NULL));
        if (!failed || status != HOTBED_OK) {
            CHECK_STATUS(status, failed ? HOTBED_ERR_MEMORY : HOTBED_OK);
            continue;
        }
        hotbed_checkpoint_arena_destroy(arena); /* libc's own allocation, which may fail */
        arena = NULL;
    }
    hotbed_checkpoint_config config = ranks_config(&hotbed_io_system);
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    options.arena = arena;
    hotbed_checkpoint_snapshot *snapshot = NULL;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status =
            sample_snapshot_take(&config, r.storages[0], &options, stream, &snapshot);
        bool failed = fault_disarm();
        CHECK((status == HOTBED_OK) == (snapshot != NULL));
        if (status == HOTBED_OK && !failed)
            break;
        if (status != HOTBED_OK)
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        hotbed_checkpoint_snapshot_destroy(snapshot);
    }
    for (uint64_t n = 1;; n++) {
        CHECK(hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_DEVICE) > 0);
        fault_arm(n);
        hotbed_status status = ranks_write(snapshot, path);
        bool failed = fault_disarm();
        if (status != HOTBED_OK) {
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            CHECK_OK(ranks_write(snapshot, path));
        }
        if (n % 8 == 0 || !failed)
            same_bytes(saved, path);
        sample_remove(path);
        hotbed_checkpoint_snapshot_destroy(snapshot);
        if (status == HOTBED_OK && !failed)
            break;
        snapshot = ranks_take(&r, 0, NULL, arena);
    }
    hotbed_checkpoint_arena_destroy(arena);
    ranks_destroy(&r);
    hotbed_stream_destroy(stream);
}

static void wrong_arenas_are_refused(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend), *host = NULL;
    hotbed_checkpoint_snapshot *snapshot = NULL;
    hotbed_checkpoint_options options = {.size = sizeof options};
    ranks_create(&r, &shape, 1, stream);
    CHECK_STATUS(hotbed_checkpoint_arena_create(1, 1, stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_checkpoint_arena_create(1, 1, NULL, &options.arena), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_checkpoint_arena_create(UINT64_MAX / 2, 0, stream, &options.arena),
        HOTBED_ERR_MEMORY);
    CHECK(options.arena == NULL);
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &host));
    options.arena = new_arena(4096, 4096, host);
    hotbed_status status =
        hotbed_checkpoint_snapshot_take(&r.storages[0], 1, &options, stream, &snapshot);
    CHECK_STATUS(status, backend == HOTBED_BACKEND_HOST ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
    hotbed_checkpoint_snapshot_destroy(snapshot);
    hotbed_checkpoint_arena_destroy(options.arena);
    hotbed_checkpoint_arena_destroy(NULL);
    CHECK_EQ(hotbed_checkpoint_snapshot_bytes(NULL, HOTBED_MEMORY_DEVICE), 0);
    ranks_destroy(&r);
    hotbed_stream_destroy(host);
    hotbed_stream_destroy(stream);
}

/* --- storages that change during a take ----------------------------------------------------- */

static void keys_come(void *argument) {
    ranks_change(argument, 1, 1, 2);
}

static void keys_leave(void *argument) {
    ranks_erase(argument, 0, 4);
}

/* Change the table before any allocation of a take: between the count of its rows and the end of their copy,
 * the take is refused. */
static void a_table_that_changes_meanwhile_is_refused(hotbed_backend backend) {
    static ranks r;
    hotbed_stream *stream = sample_stream(backend);
    hotbed_checkpoint_arena *arena = new_arena(1 << 20, 0, stream);
    hotbed_stream *other = hotbed_test_stream(backend);
    ranks_create(&r, &shape, 1, other);
    hotbed_checkpoint_config config = ranks_config(&hotbed_io_system);
    hotbed_checkpoint_options options = ranks_options(&r, 0);
    for (int way = 0; way < 4; way++) {
        uint64_t refused = 0;
        options.arena = way < 2 ? NULL : arena;
        for (uint64_t n = 1;; n++) {
            hotbed_checkpoint_snapshot *snapshot = NULL;
            ranks_erase(&r, 0, 1);
            ranks_change(&r, 1, 0, 2);
            fault_arm_call(n, way % 2 == 0 ? keys_come : keys_leave, &r);
            hotbed_status status =
                sample_snapshot_take(&config, r.storages[0], &options, stream, &snapshot);
            bool changed = fault_disarm();
            CHECK((status == HOTBED_OK) == (snapshot != NULL));
            if (status != HOTBED_OK) {
                CHECK_STATUS(status, HOTBED_ERR_STATE);
                CHECK(strstr(hotbed_last_error(), "was changed while") != NULL);
                refused++;
            }
            hotbed_checkpoint_snapshot_destroy(snapshot);
            if (!changed)
                break;
        }
        CHECK(refused > 0);
    }
    hotbed_checkpoint_arena_destroy(arena);
    ranks_destroy(&r);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_copy_may_be_in_any_memory)},
    {TEST(a_part_serves_one_snapshot_at_a_time)},
    {TEST(the_copy_has_all_tiers_and_segments)},
    {TEST(snapshots_do_not_change_during_training)},
    {TEST(ranks_write_snapshots_from_an_arena)},
    {TEST(no_memory_at_any_allocation)},
    {TEST(wrong_arenas_are_refused)},
    {TEST(a_table_that_changes_meanwhile_is_refused)},
    {NULL, NULL},
};
