/* bench/workload_run.c - a workload's storage, its steps, and the passes that time them. */
#include "bench/limits.h"
#include "bench/workload.h"

#include "base/error.h"

#include <stdlib.h>

void workload_storage_options(
    const workload *what, const workload_shape *shape, uint64_t rows, hotbed_table_options *tables,
    hotbed_storage_options *out) {
    static const char *const names[] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"};
    for (uint32_t t = 0; t < shape->tables; t++) {
        hotbed_table_options_init(&tables[t]);
        tables[t].name = names[t];
        tables[t].dim = shape->dim;
        tables[t].capacity = rows;
        tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[t].initializer.lower = -0.05F;
        tables[t].initializer.upper = 0.05F;
    }
    hotbed_storage_options_init(out);
    out->num_tables = shape->tables;
    out->tables = tables;
    out->optimizer.kind = what->optimizer;
    out->seed = 20;
    out->mode = HOTBED_MODE_HBM_DIRECT;
}

static hotbed_status create_storage(workload_run *run) {
    const workload_shape *shape = &run->input->shape;
    hotbed_table_options tables[10];
    hotbed_storage_options options;
    workload_storage_options(run->what, shape, shape->rows, tables, &options);
    HOTBED_TRY(hotbed_storage_create(&options, run->stream, &run->storage));
    return hotbed_ticket_create(
        run->storage, workload_keys_a_step(shape), shape->samples, run->stream, &run->ticket);
}

static hotbed_status create_buffers(workload_run *run) {
    const workload_shape *shape = &run->input->shape;
    size_t keys = workload_keys_a_step(shape) * sizeof(int64_t);
    size_t rows = workload_keys_a_step(shape) * shape->dim * sizeof(float);
    hotbed_stream *s = run->stream;
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys * shape->batches, NULL, &run->keys));
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys, NULL, &run->fixed));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->gradient));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->output));
    HOTBED_TRY(hotbed_copy(run->keys.data, run->input->keys, keys * shape->batches, s));
    HOTBED_TRY(hotbed_copy(run->gradient.data, run->input->gradient, rows, s));
    return hotbed_stream_sync(s);
}

hotbed_status workload_run_create(
    const workload *what, const workload_input *input, hotbed_backend backend, workload_run *out) {
    *out = (workload_run){.what = what, .input = input};
    hotbed_status status = hotbed_stream_create(backend, 0, &out->stream);
    if (status == HOTBED_OK)
        status = create_buffers(out);
    if (status == HOTBED_OK)
        status = create_storage(out);
    if (status != HOTBED_OK)
        workload_run_destroy(out);
    return status;
}

void workload_run_destroy(workload_run *run) {
    hotbed_ticket_destroy(run->ticket);
    hotbed_storage_destroy(run->storage);
    hotbed_memory_free(&run->keys);
    hotbed_memory_free(&run->fixed);
    hotbed_memory_free(&run->gradient);
    hotbed_memory_free(&run->output);
    hotbed_stream_destroy(run->stream);
    *run = (workload_run){0};
}

/* --- parts of a step ----------------------------------------------------------------------------- */

static const int64_t *keys_of(const workload_run *run, uint64_t step) {
    const workload_shape *shape = &run->input->shape;
    return (const int64_t *)run->keys.data + step % shape->batches * workload_keys_a_step(shape);
}

static hotbed_batch batch_of(const workload_run *run, const void *keys) {
    hotbed_batch batch;
    hotbed_batch_init(&batch);
    batch.batch_size = run->input->shape.samples;
    batch.num_keys = workload_keys_a_step(&run->input->shape);
    batch.keys = keys;
    return batch;
}

static hotbed_status forward(workload_run *run, const void *keys) {
    hotbed_batch batch = batch_of(run, keys);
    HOTBED_TRY(hotbed_storage_prefetch(run->storage, &batch, run->ticket, run->stream));
    return hotbed_storage_forward(run->storage, run->ticket, run->output.data, 0, run->stream);
}

static hotbed_status backward(workload_run *run) {
    return hotbed_storage_backward(run->storage, run->ticket, run->gradient.data, 0, run->stream);
}

static hotbed_status eval(workload_run *run, const void *keys) {
    hotbed_batch batch = batch_of(run, keys);
    return hotbed_storage_eval(run->storage, &batch, run->output.data, 0, run->stream);
}

hotbed_status workload_step(workload_run *run) {
    HOTBED_TRY(forward(run, keys_of(run, run->steps)));
    HOTBED_TRY(backward(run));
    run->steps++;
    return HOTBED_OK;
}

static hotbed_status copy_keys(workload_run *run, uint64_t step) {
    return hotbed_copy(run->fixed.data, keys_of(run, step), run->fixed.bytes, run->stream);
}

/* NaNs everywhere: what a step does not write is then seen by the check. */
static hotbed_status poison(workload_run *run) {
    return hotbed_fill(run->output.data, 0xff, run->output.bytes, run->stream);
}

/* --- timing -------------------------------------------------------------------------------------- */

enum { MARKS = 3 }; /* events a step */

typedef struct pass pass;

/* One kind of pass. */
typedef struct pass_kind {
    hotbed_status (*record)(pass *p); /* graphs; may be NULL */
    hotbed_status (*step)(pass *p, hotbed_event **marks, uint64_t step);
    bool trains;
} pass_kind;

struct pass {
    workload_run *run;
    hotbed_graph *graphs[2];
    hotbed_event **events; /* [steps][MARKS] */
    uint32_t steps;
};

static hotbed_status mark(pass *p, hotbed_event *event) {
    return hotbed_event_record(event, p->run->stream);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Median over the steps of the time from mark a to mark b. */
static hotbed_status median_between(const pass *p, int a, int b, double *out) {
    double *seconds = malloc(p->steps * sizeof *seconds);
    if (!seconds)
        return hotbed_fail(HOTBED_ERR_MEMORY, "timing: no memory for %u steps", p->steps);
    hotbed_status status = HOTBED_OK;
    for (uint32_t s = 0; s < p->steps && status == HOTBED_OK; s++)
        status = hotbed_event_seconds(
            p->events[s * MARKS + (uint32_t)a], p->events[s * MARKS + (uint32_t)b], &seconds[s]);
    if (status == HOTBED_OK)
        *out = median(seconds, p->steps);
    free(seconds);
    return status;
}

static hotbed_status create_events(pass *p) {
    p->events = calloc((size_t)p->steps * MARKS, sizeof(hotbed_event *));
    if (!p->events)
        return hotbed_fail(HOTBED_ERR_MEMORY, "timing: no memory for %u steps", p->steps);
    for (uint32_t i = 0; i < p->steps * MARKS; i++)
        HOTBED_TRY(hotbed_event_create(p->run->stream, &p->events[i]));
    return HOTBED_OK;
}

static hotbed_status enqueue(pass *p, const pass_kind *kind, workload_host *host) {
    hotbed_counters before;
    hotbed_counters after;
    hotbed_counters_read(&before);
    for (uint32_t s = 0; s < p->steps; s++) {
        if (s + 1 == p->steps)
            HOTBED_TRY(poison(p->run)); /* before the step's first mark: not timed */
        uint64_t step = kind->trains ? p->run->steps : s;
        HOTBED_TRY(kind->step(p, &p->events[(size_t)s * MARKS], step));
        if (kind->trains)
            p->run->steps++;
    }
    hotbed_counters_read(&after);
    host->steps += p->steps;
    host->waits += after.host_waits - before.host_waits;
    host->allocations += after.allocations - before.allocations;
    return HOTBED_OK;
}

static hotbed_status run_pass_steps(pass *p, const pass_kind *kind, workload_host *host) {
    if (kind->record)
        HOTBED_TRY(kind->record(p));
    HOTBED_TRY(create_events(p));
    HOTBED_TRY(hotbed_stream_sync(p->run->stream));
    HOTBED_TRY(enqueue(p, kind, host));
    return hotbed_stream_sync(p->run->stream);
}

static void destroy_pass(pass *p) {
    for (uint32_t i = 0; p->events && i < p->steps * MARKS; i++)
        hotbed_event_destroy(p->events[i]);
    free(p->events);
    hotbed_graph_destroy(p->graphs[0]);
    hotbed_graph_destroy(p->graphs[1]);
}

/* Run the pass; out[i] is the median time from mark i to mark i+1, out[2] that from 0 to 2. */
static hotbed_status run_pass(
    workload_run *run, const pass_kind *kind, uint32_t steps, double out[MARKS],
    workload_host *host) {
    pass p = {.run = run, .steps = steps};
    hotbed_status status = run_pass_steps(&p, kind, host);
    for (int i = 0; i + 1 < MARKS && status == HOTBED_OK; i++)
        status = median_between(&p, i, i + 1, &out[i]);
    if (status == HOTBED_OK)
        status = median_between(&p, 0, MARKS - 1, &out[MARKS - 1]);
    destroy_pass(&p);
    return status;
}

/* --- the passes ---------------------------------------------------------------------------------- */

static hotbed_status eager_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(forward(p->run, keys_of(p->run, step)));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(backward(p->run));
    return mark(p, marks[2]);
}

/* Record fn's work; a failure inside ends the recording too. */
static hotbed_status record(
    workload_run *run, hotbed_status (*fn)(workload_run *run), hotbed_graph **out) {
    HOTBED_TRY(hotbed_graph_begin(run->stream));
    hotbed_status status = fn(run);
    hotbed_status ended = hotbed_graph_end(run->stream, out);
    return status != HOTBED_OK ? status : ended;
}

static hotbed_status fixed_forward(workload_run *run) {
    return forward(run, run->fixed.data);
}

static hotbed_status fixed_train(workload_run *run) {
    HOTBED_TRY(fixed_forward(run));
    return backward(run);
}

static hotbed_status fixed_eval(workload_run *run) {
    return eval(run, run->fixed.data);
}

static hotbed_status split_record(pass *p) {
    HOTBED_TRY(record(p->run, fixed_forward, &p->graphs[0]));
    return record(p->run, backward, &p->graphs[1]);
}

static hotbed_status split_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(copy_keys(p->run, step));
    HOTBED_TRY(hotbed_graph_launch(p->graphs[0], p->run->stream));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(hotbed_graph_launch(p->graphs[1], p->run->stream));
    return mark(p, marks[2]);
}

static hotbed_status graph_record(pass *p) {
    return record(p->run, fixed_train, &p->graphs[0]);
}

static hotbed_status graph_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(copy_keys(p->run, step));
    HOTBED_TRY(hotbed_graph_launch(p->graphs[0], p->run->stream));
    HOTBED_TRY(mark(p, marks[1]));
    return mark(p, marks[2]);
}

static hotbed_status eval_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(eval(p->run, keys_of(p->run, step)));
    HOTBED_TRY(mark(p, marks[1]));
    return mark(p, marks[2]);
}

static hotbed_status eval_record(pass *p) {
    return record(p->run, fixed_eval, &p->graphs[0]);
}

hotbed_status workload_pass_eager(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host) {
    const pass_kind kind = {.step = eager_step, .trains = true};
    double out[MARKS];
    HOTBED_TRY(run_pass(run, &kind, steps, out, host));
    times->forward = out[0];
    times->backward = out[1];
    times->train = out[2];
    return HOTBED_OK;
}

hotbed_status workload_pass_split(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host) {
    const pass_kind kind = {.record = split_record, .step = split_step, .trains = true};
    double out[MARKS];
    HOTBED_TRY(run_pass(run, &kind, steps, out, host));
    times->forward = out[0];
    times->backward = out[1];
    return HOTBED_OK;
}

hotbed_status workload_pass_graph(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host) {
    const pass_kind kind = {.record = graph_record, .step = graph_step, .trains = true};
    double out[MARKS];
    HOTBED_TRY(run_pass(run, &kind, steps, out, host));
    times->train = out[0];
    return HOTBED_OK;
}

hotbed_status workload_pass_eval(
    workload_run *run, uint32_t steps, bool graph, workload_times *times, workload_host *host) {
    const pass_kind eager = {.step = eval_step};
    const pass_kind graphed = {.record = eval_record, .step = graph_step};
    double out[MARKS];
    /* The first eval on a stream may allocate its workspace. */
    HOTBED_TRY(eval(run, keys_of(run, 0)));
    HOTBED_TRY(run_pass(run, graph ? &graphed : &eager, steps, out, host));
    times->eval = out[0];
    return HOTBED_OK;
}

/* --- limits -------------------------------------------------------------------------------------- */

enum { COPIES = 15, GATHER_BATCHES = 16 };

/* Work for a limit: one repetition. */
typedef struct limit {
    hotbed_status (*enqueue)(const struct limit *limit, uint32_t repetition);
    hotbed_stream *stream;
    void *to;
    const void *from;
    size_t bytes;
    uint64_t n;
    uint32_t row_bytes;
} limit;

/* Median seconds of a repetition. */
static hotbed_status time_limit(const limit *l, uint32_t repetitions, double *seconds) {
    double times[COPIES > GATHER_BATCHES ? COPIES : GATHER_BATCHES];
    hotbed_event *marks[2] = {NULL, NULL};
    hotbed_status status = hotbed_event_create(l->stream, &marks[0]);
    if (status == HOTBED_OK)
        status = hotbed_event_create(l->stream, &marks[1]);
    for (uint32_t r = 0; r < repetitions + 2 && status == HOTBED_OK; r++) { /* 2 warm up */
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
        *seconds = median(times, repetitions);
    hotbed_event_destroy(marks[0]);
    hotbed_event_destroy(marks[1]);
    return status;
}

static hotbed_status enqueue_copy(const limit *l, uint32_t repetition) {
    (void)repetition;
    return hotbed_copy(l->to, l->from, l->bytes, l->stream);
}

static hotbed_status enqueue_gather(const limit *l, uint32_t repetition) {
    const void *const *rows = (const void *const *)l->from + repetition * l->n;
    return bench_gather(l->n, rows, l->row_bytes, l->to, l->stream);
}

static hotbed_status measure_copy(workload_run *run, double *rate) {
    bool cuda = hotbed_stream_backend(run->stream) == HOTBED_BACKEND_CUDA;
    limit l = {.enqueue = enqueue_copy, .stream = run->stream};
    l.bytes = cuda ? (size_t)1 << 30 : (size_t)1 << 27; /* many times the last cache */
    hotbed_memory buffers[2] = {{0}, {0}};
    double seconds = 0;
    hotbed_status status = HOTBED_OK;
    for (int i = 0; i < 2 && status == HOTBED_OK; i++) {
        status = hotbed_memory_alloc(run->stream, HOTBED_MEMORY_DEVICE, l.bytes, NULL, &buffers[i]);
        if (status == HOTBED_OK)
            status = hotbed_fill(buffers[i].data, 0x35 + i, l.bytes, run->stream);
    }
    l.to = buffers[0].data;
    l.from = buffers[1].data;
    if (status == HOTBED_OK)
        status = time_limit(&l, COPIES, &seconds);
    if (status == HOTBED_OK)
        *rate = 2.0 * (double)l.bytes / seconds;
    hotbed_memory_free(&buffers[0]);
    hotbed_memory_free(&buffers[1]);
    return status;
}

/* Addresses of the rows of a batch's keys, from the slots that a prefetch finds. */
static hotbed_status row_addresses(
    workload_run *run, uint32_t number, uint32_t *inverse, uint64_t *slots, const void **rows) {
    const workload_shape *shape = &run->input->shape;
    uint64_t n = workload_keys_a_step(shape);
    hotbed_batch batch = batch_of(run, keys_of(run, number));
    hotbed_ticket_view view;
    HOTBED_TRY(hotbed_storage_prefetch(run->storage, &batch, run->ticket, run->stream));
    HOTBED_TRY(hotbed_ticket_read(run->ticket, &view));
    HOTBED_TRY(hotbed_copy(inverse, view.inverse, n * sizeof *inverse, run->stream));
    HOTBED_TRY(hotbed_copy(slots, view.slots, n * sizeof *slots, run->stream));
    HOTBED_TRY(hotbed_ticket_cancel(run->ticket, run->stream));
    HOTBED_TRY(hotbed_stream_sync(run->stream));
    for (uint32_t t = 0; t < shape->tables; t++) {
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storage_table(run->storage, t, &info));
        for (uint64_t i = (uint64_t)t * shape->samples; i < (t + 1ULL) * shape->samples; i++) {
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
    limit l = {
        .enqueue = enqueue_gather,
        .stream = run->stream,
        .to = run->output.data,
        .from = device.data,
        .n = n,
        .row_bytes = run->input->shape.dim * (uint32_t)sizeof(float)};
    hotbed_status status = hotbed_copy(device.data, host, bytes, run->stream);
    if (status == HOTBED_OK)
        status = time_limit(&l, batches, seconds);
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
    HOTBED_TRY(measure_copy(run, &out->copy));
    HOTBED_TRY(measure_gather(run, &out->gather));
    double bytes = (double)workload_keys_a_step(shape) * shape->dim * sizeof(float);
    out->gather_rate = 2.0 * bytes / out->gather;
    return HOTBED_OK;
}
