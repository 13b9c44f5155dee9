/* bench/bench_external.c - external stores: rows found and written per second, in memory and in
 * RocksDB.
 *
 * The table has 16 batches; each iteration finds or overwrites one batch of distinct keys. The
 * RocksDB store is in TMPDIR or /tmp, is removed at the end, and is not synced. So the result is
 * the cost of the library and of memory, and includes a disk only if the table does not fit its
 * caches. */
#include "bench/bench.h"

#include "base/clock.h"
#include "hotbed/external.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCHES = 16, IN_MEMORY = 0, IN_ROCKSDB = 1, PATH_BYTES = 512 };

typedef struct fixture {
    hotbed_external *external;
    uint64_t n, row_bytes;
    uint64_t *keys, *scores;
    uint8_t *rows, *found;
    char path[PATH_BYTES]; /* of the database; "" if the store is in memory */
} fixture;

static void end(fixture *f) {
    hotbed_external_destroy(f->external);
    if (f->path[0] != 0)
        bench_remove_directory(f->path);
    free(f->keys);
    free(f->scores);
    free(f->rows);
    free(f->found);
}

static hotbed_status open_store(int64_t kind, fixture *f) {
    hotbed_external_table table = {"table", f->row_bytes};
    hotbed_external_options o = {.size = sizeof o, .num_tables = 1, .tables = &table};
    if (kind == IN_MEMORY)
        return hotbed_external_create_memory(&o, &f->external);
    const char *directory = getenv("TMPDIR");
    snprintf(
        f->path, sizeof f->path, "%s/hotbed-bench-%ld", directory == NULL ? "/tmp" : directory,
        (long)getpid());
    return hotbed_external_create_rocksdb(f->path, NULL, &o, &f->external);
}

static void choose(fixture *f, uint64_t batch) {
    for (uint64_t i = 0; i < f->n; i++) {
        f->keys[i] = (i * BATCHES + batch % BATCHES) * 0x9e3779b97f4a7c15U;
        f->scores[i] = batch;
    }
}

/* Arguments: kind of store, rows per batch, bytes per row. */
static bool prepare(bench_state *state, fixture *f) {
    *f = (fixture){.n = (uint64_t)bench_arg(state, 1), .row_bytes = (uint64_t)bench_arg(state, 2)};
    f->keys = malloc(f->n * sizeof *f->keys);
    f->scores = malloc(f->n * sizeof *f->scores);
    f->rows = calloc(f->n, f->row_bytes);
    f->found = malloc(f->n);
    bool ok = f->keys != NULL && f->scores != NULL && f->rows != NULL && f->found != NULL;
    if (!ok)
        bench_skip(state, "no memory");
    ok = ok && bench_ok(state, open_store(bench_arg(state, 0), f));
    for (uint64_t b = 0; ok && b < BATCHES; b++) {
        choose(f, b);
        ok = bench_ok(
            state, hotbed_external_insert(f->external, 0, f->n, f->keys, f->rows, f->scores));
    }
    if (!ok)
        end(f);
    return ok;
}

static void run(bench_state *state, bool writes) {
    fixture f;
    if (!prepare(state, &f))
        return;
    bool ok = true;
    for (uint64_t b = 0; ok && bench_next(state); b++) {
        choose(&f, b * 5);
        double start = hotbed_monotonic_seconds();
        ok = bench_ok(
            state,
            writes ? hotbed_external_insert(f.external, 0, f.n, f.keys, f.rows, f.scores)
                   : hotbed_external_find(f.external, 0, f.n, f.keys, f.found, f.rows, f.scores));
        bench_seconds(state, hotbed_monotonic_seconds() - start);
    }
    bench_items(state, (int64_t)f.n);
    /* Every row is read once and written once. */
    bench_bytes(state, (int64_t)(2 * f.n * f.row_bytes));
    end(&f);
}

static void find(bench_state *state) {
    run(state, false);
}

static void insert(bench_state *state) {
    run(state, true);
}

static const char *const names[] = {"rocksdb", "rows", "bytes", NULL};
static const int64_t args[] = {IN_MEMORY, 4096, 256,        IN_MEMORY, 4096, 1536,     IN_ROCKSDB,
                               4096,      256,  IN_ROCKSDB, 4096,      1536, INT64_MIN};

static const int64_t none[] = {INT64_MIN}; /* stores are on the host */

const bench_case bench_external_cases[] = {
    {"external/find", find, names, args, none},
    {"external/insert", insert, names, args, none},
    {NULL, NULL, NULL, NULL, NULL},
};
