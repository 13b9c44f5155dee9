/* bench/bench_base.c - the functions of base/ (copy, gather, sort, scan), which are also limits for
 * the other benchmarks. */
#include "bench/bench.h"
#include "bench/limits.h"

#include "base/sort.h"

#include <stdlib.h>

static void copy(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    size_t bytes = (size_t)bench_arg(state, 0) << 20;
    void *from = bench_alloc(state, bytes);
    void *to = bench_alloc(state, bytes);
    if (!from || !to || !bench_ok(state, hotbed_fill(from, 3, bytes, stream)))
        return;
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(state, hotbed_copy(to, from, bytes, stream)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)bytes);
    bench_bytes(state, (int64_t)(2 * bytes));
}

static void fill(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    size_t bytes = (size_t)bench_arg(state, 0) << 20;
    void *to = bench_alloc(state, bytes);
    if (!to)
        return;
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(state, hotbed_fill(to, 3, bytes, stream)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)bytes);
    bench_bytes(state, (int64_t)bytes);
}

/* Addresses of n random rows of `bytes` bytes among `rows`, on the device. */
static const void *const *random_rows(
    bench_state *state, uint64_t n, uint64_t rows, uint32_t bytes, const char *table) {
    const void **addresses = calloc(n, sizeof *addresses);
    for (uint64_t i = 0; addresses && i < n; i++)
        addresses[i] = table + bench_random(i, rows) * bytes;
    const void *const *sent = bench_upload(state, addresses, n * sizeof *addresses);
    if (!addresses)
        bench_skip(state, "no memory");
    free(addresses);
    return sent;
}

static void gather(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint64_t rows = (uint64_t)bench_arg(state, 1);
    uint32_t bytes = (uint32_t)bench_arg(state, 2);
    char *table = bench_alloc(state, rows * bytes);
    void *output = bench_alloc(state, n * bytes);
    if (!table || !output || !bench_ok(state, hotbed_fill(table, 5, rows * bytes, stream)))
        return;
    const void *const *addresses = random_rows(state, n, rows, bytes, table);
    if (!addresses)
        return;
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(state, bench_gather(n, addresses, bytes, output, stream)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)n);
    bench_bytes(state, (int64_t)(n * (2 * (uint64_t)bytes + sizeof(uint64_t))));
}

/* n random words on the device. */
static uint32_t *random_words(bench_state *state, uint64_t n) {
    uint32_t *words = calloc(n, sizeof *words);
    for (uint64_t i = 0; words && i < n; i++)
        words[i] = (uint32_t)bench_key(i);
    uint32_t *sent = bench_upload(state, words, n * sizeof *words);
    if (!words)
        bench_skip(state, "no memory");
    free(words);
    return sent;
}

static void sort(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    uint64_t n = (uint64_t)bench_arg(state, 0);
    uint32_t bits = (uint32_t)bench_arg(state, 1);
    size_t scratch_bytes = hotbed_sort_pairs_scratch(hotbed_stream_backend(stream), n);
    void *scratch = bench_alloc(state, scratch_bytes);
    uint32_t *keys = random_words(state, n);
    uint32_t *values = random_words(state, n);
    uint32_t *out[2];
    out[0] = bench_alloc(state, n * sizeof(uint32_t));
    out[1] = bench_alloc(state, n * sizeof(uint32_t));
    if (!scratch || !keys || !values || !out[0] || !out[1])
        return;
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(
                state, hotbed_sort_pairs(
                           n, keys, values, out[0], out[1], bits, scratch, scratch_bytes, stream)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)n);
    bench_bytes(
        state, (int64_t)(n * 4 * sizeof(uint32_t))); /* each pair is read and written once */
}

static void scan(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    uint64_t n = (uint64_t)bench_arg(state, 0);
    size_t scratch_bytes = hotbed_scan_scratch(hotbed_stream_backend(stream), n);
    void *scratch = bench_alloc(state, scratch_bytes);
    uint32_t *in = random_words(state, n);
    uint32_t *out = bench_alloc(state, n * sizeof *out);
    if (!scratch || !in || !out)
        return;
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(state, hotbed_scan(n, in, out, scratch, scratch_bytes, stream)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)n);
    bench_bytes(state, (int64_t)(n * 2 * sizeof(uint32_t)));
}

static const char *const mib[] = {"MiB", NULL};
static const int64_t mib_host[] = {64, INT64_MIN};
static const int64_t mib_cuda[] = {64, 1024, INT64_MIN};
static const char *const gather_names[] = {"n", "rows", "bytes", NULL};
static const int64_t gather_host[] = {100000, 200000, 512, 100000, 200000, 128, INT64_MIN};
static const int64_t gather_cuda[] = {1 << 20, 1 << 24, 512,      1 << 20, 1 << 24,
                                      256,     1 << 20, 1 << 26,  128,     1 << 20,
                                      1 << 26, 32,      INT64_MIN};
static const char *const sort_names[] = {"n", "bits", NULL};
static const int64_t sort_host[] = {100000, 24, INT64_MIN};
static const int64_t sort_cuda[] = {1 << 20, 20, 1 << 20, 25, 1 << 20, 32, INT64_MIN};
static const char *const n_names[] = {"n", NULL};
static const int64_t n_host[] = {1000000, INT64_MIN};
static const int64_t n_cuda[] = {1 << 20, 1 << 24, INT64_MIN};

const bench_case bench_base_cases[] = {
    {"base/copy", copy, mib, mib_host, mib_cuda},
    {"base/fill", fill, mib, mib_host, mib_cuda},
    {"base/gather", gather, gather_names, gather_host, gather_cuda},
    {"base/sort_pairs", sort, sort_names, sort_host, sort_cuda},
    {"base/scan", scan, n_names, n_host, n_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
