/* bench/bench_checkpoint.c - bytes of rows saved and loaded a second, beside what the disk does by itself.
 *
 * One table of Adam rows.  The probes write and read as many bytes of one file with O_DIRECT, 4 MiB at a time,
 * from one thread: the most that a save or load by one rank could get of this disk.  A save ends when all is
 * on disk, and so does the probe.  Files lie in TMPDIR or /tmp; where that has no O_DIRECT (tmpfs), probes go
 * without.  `take` is what training waits for when a snapshot is taken, `write` what follows in the background.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include "bench/bench.h"

#include "hotbed/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DIM = 128, PATH_BYTES = 512, BLOCK = 4 << 20, ROW_BYTES = 16 + 3 * 4 * DIM };

typedef struct fixture {
    hotbed_storage *storage;
    int64_t rows;
    char root[PATH_BYTES], path[PATH_BYTES];
} fixture;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A directory that holds files only. */
static void remove_directory(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d))
        (void)!unlinkat(dirfd(d), entry->d_name, 0); /* "." and ".." stay */
    closedir(d);
    (void)!rmdir(path);
}

static bool make_root(bench_state *state, fixture *f) {
    const char *place = getenv("TMPDIR");
    snprintf(f->root, sizeof f->root, "%.300s/hotbed-bench-XXXXXX", place == NULL ? "/tmp" : place);
    if (mkdtemp(f->root) == NULL) {
        bench_skip(state, "no directory for files");
        return false;
    }
    snprintf(f->path, sizeof f->path, "%.400s/checkpoint", f->root);
    return true;
}

/* A table of that many rows, keys 0, 1, ... */
static hotbed_status fill(fixture *f, hotbed_stream *stream) {
    enum { CHUNK = 1 << 16 };
    hotbed_memory memory;
    uint64_t *keys = malloc(CHUNK * sizeof *keys);
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, CHUNK * sizeof *keys, NULL, &memory);
    for (int64_t first = 0; status == HOTBED_OK && first < f->rows; first += CHUNK) {
        int64_t n = f->rows - first < CHUNK ? f->rows - first : CHUNK;
        for (int64_t i = 0; keys != NULL && i < n; i++)
            keys[i] = (uint64_t)(first + i) * 0x9E3779B97F4A7C15U;
        if (keys != NULL)
            status = hotbed_copy(memory.data, keys, (size_t)n * sizeof *keys, stream);
        if (status == HOTBED_OK)
            status = hotbed_storage_set_rows(f->storage, 0, (uint64_t)n, memory.data, NULL, stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_sync(stream);
    }
    hotbed_memory_free(&memory);
    free(keys);
    return status;
}

static bool begin(bench_state *state, fixture *f) {
    hotbed_table_options table;
    hotbed_storage_options options;
    hotbed_table_options_init(&table);
    hotbed_storage_options_init(&options);
    f->rows = bench_arg(state, 0);
    table.name = "rows";
    table.dim = DIM;
    table.capacity = (uint64_t)f->rows;
    table.initializer = (hotbed_initializer){.kind = HOTBED_INIT_NORMAL, .std = 1};
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_ADAM;
    if (!bench_ok(state, hotbed_storage_create(&options, bench_stream(state), &f->storage)))
        return false;
    return bench_ok(state, fill(f, bench_stream(state))) && make_root(state, f);
}

static void end(fixture *f) {
    remove_directory(f->path);
    if (f->root[0] != '\0')
        (void)!rmdir(f->root);
    hotbed_storage_destroy(f->storage);
}

static void report(bench_state *state, const fixture *f) {
    bench_items(state, f->rows);
    bench_bytes(state, f->rows * ROW_BYTES);
}

static void run_save(bench_state *state) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options;
    hotbed_checkpoint_options_init(&options);
    bool good = begin(state, &f);
    while (good && bench_next(state)) {
        double start = now();
        good = bench_ok(
            state, hotbed_checkpoint_save(f.path, f.storage, &options, bench_stream(state)));
        bench_seconds(state, now() - start);
        remove_directory(f.path);
    }
    report(state, &f);
    end(&f);
}

/* What the kernel still holds of the files would be read from memory. */
static void drop_pages(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        int file = openat(dirfd(d), entry->d_name, O_RDONLY);
        if (file < 0)
            continue;
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    closedir(d);
}

static void run_load(bench_state *state) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options;
    hotbed_checkpoint_options_init(&options);
    bool good =
        begin(state, &f) &&
        bench_ok(state, hotbed_checkpoint_save(f.path, f.storage, &options, bench_stream(state)));
    while (good && bench_next(state)) {
        drop_pages(f.path);
        double start = now();
        good = bench_ok(
            state,
            hotbed_checkpoint_load(f.path, f.storage, NULL, NULL, NULL, bench_stream(state)));
        bench_seconds(state, now() - start);
    }
    report(state, &f);
    end(&f);
}

static void run_snapshot(bench_state *state, bool writes) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options;
    hotbed_checkpoint_options_init(&options);
    bool good = begin(state, &f);
    while (good && bench_next(state)) {
        hotbed_checkpoint_snapshot *snapshot = NULL;
        double start = now();
        good = bench_ok(
            state,
            hotbed_checkpoint_snapshot_take(f.storage, &options, bench_stream(state), &snapshot));
        if (good && writes) {
            start = now();
            good = bench_ok(state, hotbed_checkpoint_snapshot_write(snapshot, f.path));
        }
        bench_seconds(state, now() - start);
        hotbed_checkpoint_snapshot_destroy(snapshot);
        remove_directory(f.path);
    }
    report(state, &f);
    end(&f);
}

static void run_take(bench_state *state) {
    run_snapshot(state, false);
}

static void run_write(bench_state *state) {
    run_snapshot(state, true);
}

/* --- the disk by itself ---------------------------------------------------------------------------------- */

static int open_direct(const char *path, int flags) {
    int file = open(path, flags | O_DIRECT, 0600);
    return file < 0 && errno == EINVAL ? open(path, flags, 0600) : file;
}

/* Move the bytes of all rows, a block at a time; false when the disk does not. */
static bool move(int file, char *block, int64_t bytes, bool writes) {
    for (int64_t at = 0; at < bytes; at += BLOCK) {
        ssize_t n = writes ? pwrite(file, block, BLOCK, at) : pread(file, block, BLOCK, at);
        if (n != BLOCK)
            return false;
    }
    return !writes || fsync(file) == 0;
}

static void run_probe(bench_state *state, bool writes) {
    fixture f = {.rows = bench_arg(state, 0)};
    int64_t bytes = f.rows * ROW_BYTES;
    void *block = NULL;
    bool good = make_root(state, &f) && posix_memalign(&block, 4096, BLOCK) == 0;
    for (int i = 0; good && i < BLOCK; i++)
        ((unsigned char *)block)[i] = (unsigned char)(i * 31 >> 3);
    int file = good ? open_direct(f.path, O_RDWR | O_CREAT | O_TRUNC) : -1;
    good = file >= 0 && move(file, block, bytes, true);
    if (!good)
        bench_skip(state, "the probe's file cannot be written");
    while (good && bench_next(state)) {
        if (writes) {
            close(file);
            (void)!unlink(f.path);
            file = open_direct(f.path, O_RDWR | O_CREAT | O_TRUNC);
        }
        double start = now();
        good = file >= 0 && move(file, block, bytes, writes);
        bench_seconds(state, now() - start);
        if (!good)
            bench_skip(state, "the probe's file cannot be moved");
    }
    if (file >= 0)
        close(file);
    report(state, &f);
    (void)!unlink(f.path);
    (void)!rmdir(f.root);
    free(block);
}

static void run_probe_write(bench_state *state) {
    run_probe(state, true);
}

static void run_probe_read(bench_state *state) {
    run_probe(state, false);
}

static const char *const names[] = {"rows", NULL};
static const int64_t host_sizes[] = {1 << 17, INT64_MIN};
static const int64_t cuda_sizes[] = {1 << 19, INT64_MIN};

const bench_case bench_checkpoint_cases[] = {
    {"checkpoint/probe_write", run_probe_write, names, host_sizes, cuda_sizes},
    {"checkpoint/save", run_save, names, host_sizes, cuda_sizes},
    {"checkpoint/probe_read", run_probe_read, names, host_sizes, cuda_sizes},
    {"checkpoint/load", run_load, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_take", run_take, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_write", run_write, names, host_sizes, cuda_sizes},
    {NULL, NULL, NULL, NULL, NULL},
};
