/* bench/workload_link.c - the rates of the link between two tiers: copies, and kernels that move rows. */
#include "bench/limits.h"
#include "bench/workload.h"

#include "base/error.h"

#include <stdlib.h>

enum { REPETITIONS = 5 };

/* Buffers of the measurements, large enough for both row sizes. */
typedef struct link {
    hotbed_stream *stream, *second, *host;
    hotbed_memory lower;   /* pinned memory */
    hotbed_memory upper;   /* device memory: consecutive rows */
    hotbed_memory dram;    /* pageable memory: the same on the host */
    hotbed_memory numbers; /* device memory: [REPETITIONS][n] */
    uint32_t *chosen;      /* the same on the host */
    hotbed_event *marks[3];
    uint64_t most; /* largest number of bytes that one repetition moves */
} link_buffers;

static const uint32_t row_bytes[WORKLOAD_LINK_SIZES] = {512, 1536};

static hotbed_status create(hotbed_backend backend, double scale, link_buffers *r) {
    double share = scale > 1.0 / 256 ? scale : 1.0 / 256;
    size_t lower = (size_t)(share * (double)((size_t)8 << 30));
    r->most = (uint64_t)(share * 256) << 20;
    size_t numbers = REPETITIONS * (r->most / row_bytes[0]) * sizeof(uint32_t);
    HOTBED_TRY(hotbed_stream_create(backend, 0, &r->stream));
    HOTBED_TRY(hotbed_stream_create(backend, 0, &r->second));
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &r->host));
    HOTBED_TRY(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_PINNED, lower, NULL, &r->lower));
    HOTBED_TRY(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_DEVICE, 2 * r->most, NULL, &r->upper));
    HOTBED_TRY(hotbed_memory_alloc(r->host, HOTBED_MEMORY_DEVICE, r->most, NULL, &r->dram));
    HOTBED_TRY(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_DEVICE, numbers, NULL, &r->numbers));
    r->chosen = malloc(numbers);
    if (!r->chosen)
        return hotbed_fail(HOTBED_ERR_MEMORY, "link: no memory for %zu bytes", numbers);
    for (int i = 0; i < 3; i++)
        HOTBED_TRY(hotbed_event_create(r->stream, &r->marks[i]));
    HOTBED_TRY(hotbed_fill(r->dram.data, 1, r->dram.bytes, r->host));
    HOTBED_TRY(hotbed_fill(r->upper.data, 2, r->upper.bytes, r->stream));
    HOTBED_TRY(
        hotbed_fill(r->lower.data, 3, r->lower.bytes, r->host)); /* makes the pages resident */
    HOTBED_TRY(hotbed_stream_sync(r->host));
    return hotbed_stream_sync(r->stream);
}

static void destroy(link_buffers *r) {
    for (int i = 0; i < 3; i++)
        hotbed_event_destroy(r->marks[i]);
    free(r->chosen);
    hotbed_memory_free(&r->numbers);
    hotbed_memory_free(&r->dram);
    hotbed_memory_free(&r->upper);
    hotbed_memory_free(&r->lower);
    hotbed_stream_destroy(r->host);
    hotbed_stream_destroy(r->second);
    hotbed_stream_destroy(r->stream);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Copy `most` bytes to the device on one stream, from it on another, or both at once; bytes per second. */
static hotbed_status time_copies(link_buffers *r, bool down, bool up, double *rate) {
    double seconds[REPETITIONS];
    char *device = r->upper.data;
    char *pinned = r->lower.data;
    for (int i = 0; i < REPETITIONS; i++) {
        HOTBED_TRY(hotbed_event_record(r->marks[0], r->stream));
        HOTBED_TRY(hotbed_stream_wait(r->second, r->marks[0]));
        if (down)
            HOTBED_TRY(hotbed_copy(device, pinned, r->most, r->stream));
        if (up)
            HOTBED_TRY(hotbed_copy(pinned + r->most, device + r->most, r->most, r->second));
        HOTBED_TRY(hotbed_event_record(r->marks[1], r->second));
        HOTBED_TRY(hotbed_stream_wait(r->stream, r->marks[1]));
        HOTBED_TRY(hotbed_event_record(r->marks[2], r->stream));
        HOTBED_TRY(hotbed_stream_sync(r->stream));
        HOTBED_TRY(hotbed_event_seconds(r->marks[0], r->marks[2], &seconds[i]));
    }
    double bytes = (double)r->most * (down && up ? 2 : 1);
    *rate = bytes / bench_median(seconds, REPETITIONS);
    return HOTBED_OK;
}

/* --- rows ------------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Choose n random rows of the lower memory for each repetition. */
static hotbed_status choose(link_buffers *r, uint64_t n, uint64_t rows, bool sorted) {
    for (uint64_t i = 0; i < REPETITIONS * n; i++)
        r->chosen[i] = (uint32_t)(workload_mix(i + 1) % rows);
    for (uint64_t i = 0; sorted && i < REPETITIONS; i++)
        qsort(r->chosen + i * n, n, sizeof *r->chosen, compare_numbers);
    HOTBED_TRY(
        hotbed_copy(r->numbers.data, r->chosen, REPETITIONS * n * sizeof *r->chosen, r->stream));
    return hotbed_stream_sync(r->stream);
}

static hotbed_status enqueue_move(const workload_limit *l, uint32_t repetition) {
    bench_move move = {.n = l->n, .bytes = l->row_bytes, .table = l->to};
    const link_buffers *r = l->from;
    bool host = l->stream == r->host;
    move.numbers = (host ? r->chosen : (const uint32_t *)r->numbers.data) + repetition * l->n;
    move.dense = host ? r->dram.data : r->upper.data;
    move.scatter = l->bytes != 0;
    return bench_move_rows(&move, l->stream);
}

static hotbed_status time_rows(
    link_buffers *r, hotbed_stream *stream, uint32_t bytes, bool scatter, double *rate) {
    workload_limit l = {.enqueue = enqueue_move, .stream = stream, .to = r->lower.data, .from = r};
    double seconds = 0;
    l.row_bytes = bytes;
    l.n = r->most / bytes;
    l.bytes = scatter;
    HOTBED_TRY(workload_time_limit(&l, REPETITIONS, &seconds));
    *rate = (double)(l.n * bytes) / seconds;
    return HOTBED_OK;
}

static hotbed_status measure(link_buffers *r, workload_link *out) {
    out->bytes = r->lower.bytes;
    HOTBED_TRY(time_copies(r, true, false, &out->down));
    HOTBED_TRY(time_copies(r, false, true, &out->up));
    HOTBED_TRY(time_copies(r, true, true, &out->both));
    for (int size = 0; size < WORKLOAD_LINK_SIZES; size++) {
        uint32_t bytes = row_bytes[size];
        for (int sorted = 0; sorted < 2; sorted++) {
            HOTBED_TRY(choose(r, r->most / bytes, r->lower.bytes / bytes, sorted));
            HOTBED_TRY(time_rows(r, r->stream, bytes, false, &out->gather[size][sorted]));
            HOTBED_TRY(time_rows(r, r->stream, bytes, true, &out->scatter[size][sorted]));
            HOTBED_TRY(time_rows(r, r->host, bytes, false, &out->host_gather[size][sorted]));
        }
    }
    return HOTBED_OK;
}

hotbed_status workload_measure_link(hotbed_backend backend, double scale, workload_link *out) {
    link_buffers r = {0};
    hotbed_status status = create(backend, scale, &r);
    if (status == HOTBED_OK)
        status = measure(&r, out);
    destroy(&r);
    return status;
}
