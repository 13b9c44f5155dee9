/* bench/limits.c - limits: selection of the backend, and the host backend. */
#include "bench/limits.h"

#include "base/error.h"
#include "base/float.h"
#include "base/host_launch.h"
#include "base/port.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gather_args {
    const void *const *rows;
    char *output;
    uint32_t bytes;
} gather_args;

static void gather_body(const void *args, uint64_t begin, uint64_t end) {
    const gather_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        memcpy(a->output + i * a->bytes, a->rows[i], a->bytes);
    }
}

hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    gather_args args = {rows, output, bytes};
    return hotbed_host_launch(stream, n, 4096, gather_body, &args, sizeof args);
}

hotbed_status bench_gather(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    if (bytes < 16 || (bytes & (bytes - 1)) != 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "gather: bytes %u is not a power of two from 16 on", bytes);
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_gather_cuda(n, rows, bytes, output, stream);
#endif
    return bench_gather_host(n, rows, bytes, output, stream);
}

static void move_body(const void *args, uint64_t begin, uint64_t end) {
    const bench_move *m = args;
    for (uint64_t i = begin; i < end; i++) {
        char *row = (char *)m->table + (uint64_t)m->numbers[i] * m->bytes;
        char *dense = (char *)m->dense + i * m->bytes;
        memcpy(m->scatter ? row : dense, m->scatter ? dense : row, m->bytes);
    }
}

hotbed_status bench_move_rows_host(const bench_move *move, hotbed_stream *stream) {
    return hotbed_host_launch(stream, move->n, 1024, move_body, move, sizeof *move);
}

hotbed_status bench_move_rows(const bench_move *move, hotbed_stream *stream) {
    if (move->bytes != 512 && move->bytes != 1536)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "move: rows of %u bytes, not of 512 or 1536", move->bytes);
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_move_rows_cuda(move, stream);
#endif
    return bench_move_rows_host(move, stream);
}

static void pool_body(const void *args, uint64_t begin, uint64_t end) {
    enum { DIM = 128 };
    const bench_pool *p = args;
    for (uint64_t b = begin; b < end; b++) {
        float *out = p->output + (b % p->samples * p->tables + b / p->samples) * DIM;
        memset(out, 0, DIM * sizeof *out);
        for (int64_t i = p->offsets[b]; i < p->offsets[b + 1]; i++) {
            const uint16_t *half = p->rows[i];
            const float *row = p->rows[i];
            for (uint32_t e = 0; e < DIM; e++)
                out[e] += p->half ? hotbed_f16_to_f32(half[e]) : row[e];
        }
    }
}

hotbed_status bench_run_pool(const bench_pool *pool, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_run_pool_cuda(pool, stream);
#endif
    return hotbed_host_launch(stream, pool->bags, 256, pool_body, pool, sizeof *pool);
}

/* Lines are requested ahead of their use, so that many reads are in flight. */
static void probe_body(const void *args, uint64_t begin, uint64_t end) {
    enum { LINE = 16, AHEAD = 16 }; /* words; lines */
    const bench_probe *p = args;
    const uint64_t *table = p->table;
    for (uint64_t i = begin; i < end; i++) {
        if (i + AHEAD < end)
            hotbed_prefetch_item(
                table + (uint64_t)p->lines[i + AHEAD] * LINE, LINE * sizeof *table);
        const uint64_t *line = table + (uint64_t)p->lines[i] * LINE;
        uint64_t mix = 0;
        for (int w = 0; w < LINE; w++)
            mix ^= line[w];
        p->out[i] = mix;
    }
}

hotbed_status bench_probe_lines(const bench_probe *probe, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_probe_lines_cuda(probe, stream);
#endif
    return hotbed_host_launch(stream, probe->n, 4096, probe_body, probe, sizeof *probe);
}

/* Compute rows of a layer; the inner loop runs along a row of weights. */
static void layer_body(const void *args, uint64_t begin, uint64_t end) {
    const bench_layer *l = args;
    const uint32_t width = l->width;
    for (uint64_t r = begin; r < end; r++) {
        const float *in = l->in + r * width;
        float *out = l->out + r * width;
        memset(out, 0, width * sizeof *out);
        for (uint32_t k = 0; k < width; k++)
            for (uint32_t c = 0; c < width; c++)
                out[c] += in[k] * l->weights[(size_t)k * width + c];
        for (uint32_t c = 0; c < width; c++)
            out[c] = out[c] > 0.0F ? out[c] : 0.0F;
    }
}

hotbed_status bench_run_layer(const bench_layer *layer, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_run_layer_cuda(layer, stream);
#endif
    return hotbed_host_launch(stream, layer->rows, 8, layer_body, layer, sizeof *layer);
}

/* "model name : X" of /proc/cpuinfo, and the number of threads. */
static void host_name(char *device, size_t bytes) {
    char line[256];
    char name[96] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (file)
        (void)fclose(file);
    (void)snprintf(device, bytes, "%s, %u threads", name, hotbed_host_threads());
}

hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_device_cuda(stream, device, device_bytes, driver, driver_bytes);
#endif
    host_name(device, device_bytes);
    (void)snprintf(driver, driver_bytes, "%s", "");
    return HOTBED_OK;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}
