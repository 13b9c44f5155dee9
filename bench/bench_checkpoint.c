/* bench/bench_checkpoint.c - rows saved and loaded per second, in bytes, compared with the disk's own speed.
 *
 * One table of Adam rows.  Before each save and load, two probes write or read the same number of bytes of one file
 * with O_DIRECT, 4 MiB at a time, from one thread: the first with memory from malloc(), the second with huge pages.
 * They show the rate of a plain program on this disk at that moment.  Saves and probes end when all bytes are on disk.
 * Files are in TMPDIR or /tmp; if that has no O_DIRECT (tmpfs), the probes do not use it.  `take` is the time that
 * training waits for a snapshot, which copies to new memory or to an arena's pinned or device memory; `write` is the
 * rest, in the background.  Counters, medians over the iterations:
 *
 *   probe_gb_per_s, huge_probe_gb_per_s   bytes per second of the first and of the second probe
 *   of_probe, of_huge_probe               the case's bytes per second, divided by the rate of the probe before it
 *   others                                fraction of the machine's processors that other programs used meanwhile
 */
#define _GNU_SOURCE /* O_DIRECT, madvise() */
#include "bench/bench.h"

#include "base/clock.h"
#include "hotbed/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DIM = 128, PATH_BYTES = 512, BLOCK = 4 << 20, ROW_BYTES = 16 + 3 * 4 * DIM, ROUNDS = 256 };

enum { PLAIN = 0, HUGE = 1, PROBES = 2, HUGE_PAGE = 2 << 20 };

typedef struct fixture {
    hotbed_storage *storage;
    int64_t rows;
    char root[PATH_BYTES], path[PATH_BYTES], probe[PATH_BYTES];
    void *blocks[PROBES];
    int rounds; /* number of measured iterations */
    double rates[PROBES][ROUNDS], shares[PROBES][ROUNDS], others[ROUNDS];
} fixture;

static bool make_root(bench_state *state, fixture *f) {
    const char *place = getenv("TMPDIR");
    snprintf(f->root, sizeof f->root, "%.300s/hotbed-bench-XXXXXX", place == NULL ? "/tmp" : place);
    if (mkdtemp(f->root) == NULL) {
        bench_skip(state, "no directory for files");
        return false;
    }
    snprintf(f->path, sizeof f->path, "%.400s/checkpoint", f->root);
    snprintf(f->probe, sizeof f->probe, "%.400s/probe", f->root);
    return true;
}

/* Create a table of that many rows, with keys 0, 1, ... */
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
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
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
    bench_remove_directory(f->path);
    (void)!unlink(f->probe);
    free(f->blocks[PLAIN]);
    free(f->blocks[HUGE]);
    if (f->root[0] != '\0')
        (void)!rmdir(f->root);
    hotbed_storage_destroy(f->storage);
}

/* --- the disk by itself ----------------------------------------------------------------------- */

static int open_direct(const char *path, int flags) {
    int file = open(path, flags | O_DIRECT | O_CLOEXEC, 0600);
    return file < 0 && errno == EINVAL ? open(path, flags | O_CLOEXEC, 0600) : file;
}

/* Write or read the bytes of all rows, one block at a time. False if the disk fails. */
static bool move(int file, char *block, int64_t bytes, bool writes) {
    for (int64_t at = 0; at < bytes; at += BLOCK) {
        ssize_t n = writes ? pwrite(file, block, BLOCK, at) : pread(file, block, BLOCK, at);
        if (n != BLOCK)
            return false;
    }
    return !writes || fsync(file) == 0;
}

static char *block_of(fixture *f, int which) {
    unsigned char *block = NULL;
    if (f->blocks[which] == NULL &&
        posix_memalign(&f->blocks[which], which == HUGE ? HUGE_PAGE : 4096, BLOCK) == 0) {
        block = f->blocks[which];
        if (which == HUGE)
            (void)madvise(block, BLOCK, MADV_HUGEPAGE);
        for (int i = 0; i < BLOCK; i++)
            block[i] = (unsigned char)(i * 31 >> 3);
    }
    return f->blocks[which];
}

/* Seconds that a probe takes; negative if it failed. A reading probe needs the file of a writing probe. */
static double probe(fixture *f, int which, bool writes) {
    char *block = block_of(f, which);
    if (writes)
        (void)!unlink(f->probe);
    int file = open_direct(f->probe, writes ? O_RDWR | O_CREAT : O_RDONLY);
    double start = hotbed_monotonic_seconds();
    bool moved = file >= 0 && block != NULL && move(file, block, f->rows * ROW_BYTES, writes);
    double seconds = hotbed_monotonic_seconds() - start;
    if (file >= 0)
        close(file);
    return moved ? seconds : -1;
}

/* --- rounds: two probes, then the measured call --------------------------------------------- */

/* Busy seconds of all processors, and their total seconds; 0 if the system does not report them. */
static void processor_time(double *busy, double *all) {
    enum { KINDS = 8, IDLE = 3, WAITING = 4 };
    unsigned long long ticks[KINDS] = {0};
    char line[256] = "";
    FILE *file = fopen("/proc/stat", "re");
    if (file != NULL) {
        if (fgets(line, sizeof line, file) == NULL)
            line[0] = '\0';
        fclose(file);
    }
    char *at = strchr(line, ' '); /* "cpu  1 2 ..." */
    for (int i = 0; at != NULL && i < KINDS; i++)
        ticks[i] = strtoull(at, &at, 10);
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK), sum = 0;
    for (int i = 0; i < KINDS; i++)
        sum += (double)ticks[i] * tick;
    *all = sum;
    *busy = sum - (double)(ticks[IDLE] + ticks[WAITING]) * tick;
}

static double own_time(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

typedef struct round {
    double probes[PROBES], start;
    double own, busy, all;
} round;

static bool begin_round(bench_state *state, fixture *f, bool writes, round *r) {
    r->own = own_time();
    processor_time(&r->busy, &r->all);
    for (int i = 0; i < PROBES; i++)
        r->probes[i] = probe(f, i, writes);
    bool moved = r->probes[PLAIN] > 0 && r->probes[HUGE] > 0;
    if (!moved)
        bench_skip(state, "the probe's file cannot be moved");
    if (writes)
        (void)!unlink(f->probe);
    r->start = hotbed_monotonic_seconds();
    return moved;
}

/* End the measured part. */
static void end_round(bench_state *state, fixture *f, const round *r) {
    double seconds = hotbed_monotonic_seconds() - r->start, busy = 0, all = 0;
    int at = f->rounds++ % ROUNDS;
    bench_seconds(state, seconds);
    processor_time(&busy, &all);
    for (int i = 0; i < PROBES; i++) {
        f->rates[i][at] = (double)(f->rows * ROW_BYTES) / r->probes[i] * 1e-9;
        f->shares[i][at] = r->probes[i] / seconds;
    }
    f->others[at] = all > r->all ? (busy - r->busy - (own_time() - r->own)) / (all - r->all) : 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

static void report(bench_state *state, fixture *f) {
    int n = f->rounds < ROUNDS ? f->rounds : ROUNDS;
    bench_items(state, f->rows);
    bench_bytes(state, f->rows * ROW_BYTES);
    if (n == 0)
        return;
    bench_counter(state, "probe_gb_per_s", median(f->rates[PLAIN], n));
    bench_counter(state, "of_probe", median(f->shares[PLAIN], n));
    bench_counter(state, "huge_probe_gb_per_s", median(f->rates[HUGE], n));
    bench_counter(state, "of_huge_probe", median(f->shares[HUGE], n));
    bench_counter(state, "others", median(f->others, n));
}

static void run_save(bench_state *state) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options = {.size = sizeof options};
    round r;
    bool good = begin(state, &f);
    while (good && bench_next(state)) {
        good = begin_round(state, &f, true, &r) &&
               bench_ok(
                   state,
                   hotbed_checkpoint_save(f.path, &f.storage, 1, &options, bench_stream(state)));
        end_round(state, &f, &r);
        bench_remove_directory(f.path);
    }
    report(state, &f);
    end(&f);
}

/* Drop the files from the kernel's cache, so that they are read from the disk. */
static void drop_pages(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        int file = openat(dirfd(d), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    closedir(d);
}

static void run_load(bench_state *state) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options = {.size = sizeof options};
    round r;
    bool good =
        begin(state, &f) && probe(&f, PLAIN, true) >= 0 &&
        bench_ok(
            state, hotbed_checkpoint_save(f.path, &f.storage, 1, &options, bench_stream(state)));
    while (good && bench_next(state)) {
        drop_pages(f.path);
        good = begin_round(state, &f, false, &r) &&
               bench_ok(
                   state,
                   hotbed_checkpoint_load(f.path, &f.storage, 1, NULL, NULL, bench_stream(state)));
        end_round(state, &f, &r);
    }
    report(state, &f);
    end(&f);
}

/* An arena with capacity for the whole image in memory of `kind`; 0: no arena. */
static bool make_arena(
    bench_state *state, const fixture *f, hotbed_memory_kind kind, hotbed_checkpoint_arena **out) {
    uint64_t bytes = (uint64_t)f->rows * ROW_BYTES + 5 * 256; /* of five columns */
    *out = NULL;
    return kind == 0 ||
           bench_ok(
               state, hotbed_checkpoint_arena_create(
                          kind == HOTBED_MEMORY_DEVICE ? bytes : 0,
                          kind == HOTBED_MEMORY_PINNED ? bytes : 0, bench_stream(state), out));
}

static void run_take_to(bench_state *state, hotbed_memory_kind kind) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options = {.size = sizeof options};
    bool good = begin(state, &f) && make_arena(state, &f, kind, &options.arena);
    while (good && bench_next(state)) {
        hotbed_checkpoint_snapshot *snapshot = NULL;
        double start = hotbed_monotonic_seconds();
        good = bench_ok(
            state, hotbed_checkpoint_snapshot_take(
                       &f.storage, 1, &options, bench_stream(state), &snapshot));
        bench_seconds(state, hotbed_monotonic_seconds() - start);
        if (good && kind != 0 &&
            hotbed_checkpoint_snapshot_bytes(snapshot, HOTBED_MEMORY_PAGEABLE) > 0) {
            bench_skip(state, "the image is not in the arena");
            good = false;
        }
        hotbed_checkpoint_snapshot_destroy(snapshot);
    }
    hotbed_checkpoint_arena_destroy(options.arena);
    report(state, &f);
    end(&f);
}

static void run_take(bench_state *state) {
    run_take_to(state, 0);
}

static void run_take_pinned(bench_state *state) {
    run_take_to(state, HOTBED_MEMORY_PINNED);
}

static void run_take_device(bench_state *state) {
    run_take_to(state, HOTBED_MEMORY_DEVICE);
}

static void run_write(bench_state *state) {
    fixture f = {.storage = NULL};
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_checkpoint_snapshot *snapshot = NULL;
    round r;
    bool good = begin(state, &f) &&
                bench_ok(
                    state, hotbed_checkpoint_snapshot_take(
                               &f.storage, 1, &options, bench_stream(state), &snapshot));
    while (good && bench_next(state)) {
        good = begin_round(state, &f, true, &r) &&
               bench_ok(state, hotbed_checkpoint_snapshot_write(snapshot, f.path));
        end_round(state, &f, &r);
        bench_remove_directory(f.path);
    }
    hotbed_checkpoint_snapshot_destroy(snapshot);
    report(state, &f);
    end(&f);
}

static const char *const names[] = {"rows", NULL};
static const int64_t host_sizes[] = {1 << 17, 1 << 19, INT64_MIN};
static const int64_t cuda_sizes[] = {1 << 17, 1 << 21, INT64_MIN};

const bench_case bench_checkpoint_cases[] = {
    {"checkpoint/save", run_save, names, host_sizes, cuda_sizes},
    {"checkpoint/load", run_load, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_take", run_take, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_take_pinned", run_take_pinned, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_take_device", run_take_device, names, host_sizes, cuda_sizes},
    {"checkpoint/snapshot_write", run_write, names, host_sizes, cuda_sizes},
    {NULL, NULL, NULL, NULL, NULL},
};
