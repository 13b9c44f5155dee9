/* bench/workload_limits.c - limits: the rates of plain code on this machine, measured in the run
 * that they are compared with. */
#include "bench/limits.h"
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"

#include <stdlib.h>

enum { COPIES = 15, GATHER_BATCHES = 16 };

hotbed_status workload_time_limit(const workload_limit *l, uint32_t repetitions, double *seconds) {
    double times[COPIES > GATHER_BATCHES ? COPIES : GATHER_BATCHES];
    hotbed_event *marks[2] = {NULL, NULL};
    hotbed_status status = hotbed_event_create(l->stream, &marks[0]);
    if (status == HOTBED_OK)
        status = hotbed_event_create(l->stream, &marks[1]);
    for (uint32_t r = 0; r < repetitions + 2 && status == HOTBED_OK;
         r++) { /* the first two warm up */
        status = hotbed_event_record(marks[0], l->stream);
        if (status == HOTBED_OK)
            status = l->enqueue(l, r % repetitions);
        if (status == HOTBED_OK)
            status = hotbed_event_record(marks[1], l->stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_sync(l->stream);
        if (status == HOTBED_OK)
            status = hotbed_event_seconds(marks[0], marks[1], &times[r % repetitions]);
    }
    if (status == HOTBED_OK)
        *seconds = bench_median(times, repetitions);
    hotbed_event_destroy(marks[0]);
    hotbed_event_destroy(marks[1]);
    return status;
}

static hotbed_status enqueue_copy(const workload_limit *l, uint32_t repetition) {
    return hotbed_copy(l->to, l->from, l->bytes, l->stream);
}

static hotbed_status enqueue_gather(const workload_limit *l, uint32_t repetition) {
    const void *const *rows = (const void *const *)l->from + repetition * l->n;
    return bench_gather(l->n, rows, l->row_bytes, l->to, l->stream);
}

static hotbed_status enqueue_pool(const workload_limit *l, uint32_t repetition) {
    bench_pool pool = *l->pool;
    pool.rows = (const void *const *)l->from + repetition * l->n;
    return bench_run_pool(&pool, l->stream);
}

hotbed_status workload_measure_copy(hotbed_stream *stream, double *rate) {
    bool cuda = hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA;
    workload_limit l = {.enqueue = enqueue_copy, .stream = stream};
    /* Many times larger than the last-level cache. */
    l.bytes = cuda ? (size_t)1 << 30 : (size_t)1 << 27;
    hotbed_memory buffers[2] = {{0}, {0}};
    double seconds = 0;
    hotbed_status status = HOTBED_OK;
    for (int i = 0; i < 2 && status == HOTBED_OK; i++) {
        status = hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, l.bytes, NULL, &buffers[i]);
        if (status == HOTBED_OK)
            status = hotbed_fill(buffers[i].data, 0x35 + i, l.bytes, stream);
    }
    l.to = buffers[0].data;
    l.from = buffers[1].data;
    if (status == HOTBED_OK)
        status = workload_time_limit(&l, COPIES, &seconds);
    if (status == HOTBED_OK)
        *rate = 2.0 * (double)l.bytes / seconds;
    hotbed_memory_free(&buffers[0]);
    hotbed_memory_free(&buffers[1]);
    return status;
}

/* The addresses of the rows of a batch's keys, from the slots that a prefetch finds. */
static hotbed_status row_addresses(
    workload_run *run, uint32_t number, uint32_t *inverse, uint64_t *slots, const void **rows) {
    const workload_shape *shape = &run->input->shape;
    uint64_t n = workload_keys_a_step(shape);
    hotbed_batch batch = workload_batch_of(run, workload_keys_of(run, number));
    hotbed_ticket_view view = {.size = sizeof view};
    HOTBED_TRY(hotbed_storage_prefetch(run->storage, &batch, run->ticket, run->stream));
    HOTBED_TRY(hotbed_ticket_read(run->ticket, &view));
    HOTBED_TRY(hotbed_copy(inverse, view.inverse, n * sizeof *inverse, run->stream));
    HOTBED_TRY(hotbed_copy(slots, view.slots, n * sizeof *slots, run->stream));
    HOTBED_TRY(hotbed_ticket_cancel(run->ticket, run->stream));
    HOTBED_TRY(hotbed_stream_sync(run->stream));
    for (uint32_t t = 0; t < shape->tables; t++) {
        hotbed_table_info info = {.size = sizeof info};
        HOTBED_TRY(hotbed_storage_table(run->storage, t, &info));
        for (uint64_t i = workload_first_key(shape, t); i < workload_first_key(shape, t + 1); i++) {
            uint64_t slot = slots[inverse[i]];
            if (slot - info.first_slot >= info.slots)
                return hotbed_fail(
                    HOTBED_ERR_CORRUPT, "gather: table %u has no slot %llu", t,
                    (unsigned long long)slot);
            rows[i] = (const char *)info.weights + (slot - info.first_slot) * info.row_bytes;
        }
    }
    return HOTBED_OK;
}

static hotbed_status gather_with(
    workload_run *run, uint32_t batches, const void **host, uint64_t *slots, double *seconds) {
    uint64_t n = workload_keys_a_step(&run->input->shape);
    uint32_t *inverse = (uint32_t *)(slots + n);
    for (uint32_t b = 0; b < batches; b++)
        HOTBED_TRY(row_addresses(run, b, inverse, slots, host + b * n));
    hotbed_memory device = {0};
    size_t bytes = batches * n * sizeof *host;
    HOTBED_TRY(hotbed_memory_alloc(run->stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &device));
    const workload_shape *shape = &run->input->shape;
    const bench_pool pool = {
        .bags = workload_bags_a_step(shape),
        .offsets = run->offsets.data,
        .samples = shape->samples,
        .tables = shape->tables,
        .half = workload_form_of(run->what, shape).dtype == HOTBED_F16,
        .output = run->output.data};
    workload_limit l = {
        .enqueue = shape->pooled ? enqueue_pool : enqueue_gather,
        .stream = run->stream,
        .to = run->output.data,
        .from = device.data,
        .pool = &pool,
        .n = n,
        .row_bytes = shape->dim * (uint32_t)sizeof(float)};
    hotbed_status status = hotbed_copy(device.data, host, bytes, run->stream);
    if (status == HOTBED_OK)
        status = workload_time_limit(&l, batches, seconds);
    hotbed_memory_free(&device);
    return status;
}

static hotbed_status measure_gather(workload_run *run, double *seconds) {
    const workload_shape *shape = &run->input->shape;
    uint64_t n = workload_keys_a_step(shape);
    uint32_t batches = shape->batches < GATHER_BATCHES ? shape->batches : GATHER_BATCHES;
    const void **rows = malloc(batches * n * sizeof *rows);
    uint64_t *slots = malloc(n * (sizeof *slots + sizeof(uint32_t)));
    hotbed_status status = HOTBED_OK;
    if (!rows || !slots)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "gather: no memory for %u batches", batches);
    else
        status = gather_with(run, batches, rows, slots, seconds);
    free(rows);
    free(slots);
    return status;
}

hotbed_status workload_measure_limits(workload_run *run, workload_limits *out) {
    const workload_shape *shape = &run->input->shape;
    HOTBED_TRY(workload_measure_copy(run->stream, &out->copy));
    const workload_row_form form = workload_form_of(run->what, shape);
    double row = (double)hotbed_dtype_row_bytes(form.dtype, shape->dim);
    double bytes = (double)workload_keys_a_step(shape) * row +
                   (double)workload_bags_a_step(shape) * shape->dim * sizeof(float);
    const bool plain = form.dtype == HOTBED_F32 || (shape->pooled && form.dtype == HOTBED_F16);
    if (workload_tiered(run->what) ||
        !plain) /* rows outside device memory, or no kernel for them */
        out->gather = bytes / out->copy;
    else
        HOTBED_TRY(measure_gather(run, &out->gather));
    out->gather_rate = bytes / out->gather;
    return HOTBED_OK;
}
