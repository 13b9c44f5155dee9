/* bench/workload_overlap.c - steps whose prefetch runs on a second stream, beside the previous step.
 *
 *   side   prefetch 0 | prefetch 1          | prefetch 2          | ...
 *   main              | fwd 0, dense, bwd 0 | fwd 1, dense, bwd 1 | ...
 *
 * Two tickets take turns; a prefetch waits for the backward that last used its ticket.
 */
#include "bench/model.h"
#include "bench/workload.h"

#include "base/error.h"

#include <stdlib.h>

/* The marks of a step; the first two are on stream `side`. */
typedef enum mark { PREFETCH, PREFETCHED, TRAIN, FORWARD, DENSE, END, NUM_MARKS } mark;

typedef struct overlap {
    workload_run *run;
    hotbed_stream *side;
    hotbed_ticket *second;
    hotbed_ticket *tickets[2];
    hotbed_event **marks; /* [steps, NUM_MARKS] */
    bench_model model;
    uint32_t steps, layers;
} overlap;

static hotbed_event *mark_of(const overlap *o, uint32_t s, mark m) {
    return o->marks[(size_t)s * NUM_MARKS + m];
}

static hotbed_status create(overlap *o) {
    workload_run *run = o->run;
    const workload_shape *shape = &run->input->shape;
    o->marks = calloc((size_t)o->steps * NUM_MARKS, sizeof(hotbed_event *));
    if (!o->marks)
        return hotbed_fail(HOTBED_ERR_MEMORY, "overlap: no memory for %u steps", o->steps);
    hotbed_stream_options side = {.size = sizeof side};
    side.backend = hotbed_stream_backend(run->stream);
    side.device = hotbed_stream_device(run->stream);
    side.priority = HOTBED_PRIORITY_HIGH;
    HOTBED_TRY(hotbed_stream_create_with(&side, &o->side));
    HOTBED_TRY(hotbed_ticket_create(
        run->storage, workload_keys_a_step(shape), shape->samples, o->side, &o->second));
    HOTBED_TRY(bench_model_open(&o->model, run->stream));
    o->tickets[0] = run->ticket;
    o->tickets[1] = o->second;
    for (size_t i = 0; i < (size_t)o->steps * NUM_MARKS; i++)
        HOTBED_TRY(hotbed_event_create(run->stream, &o->marks[i]));
    return HOTBED_OK;
}

static void destroy(overlap *o) {
    hotbed_ticket_destroy(o->second);
    for (size_t i = 0; o->marks && i < (size_t)o->steps * NUM_MARKS; i++)
        hotbed_event_destroy(o->marks[i]);
    free(o->marks);
    bench_model_close(&o->model);
    hotbed_stream_destroy(o->side);
}

/* Enqueue the prefetch of step s of this pass, which is step first + s of the run. */
static hotbed_status prefetch(overlap *o, uint64_t first, uint32_t s) {
    uint64_t step = first + s;
    hotbed_batch batch = workload_batch_of(o->run, workload_keys_of(o->run, step));
    if (s >= 2)
        HOTBED_TRY(hotbed_stream_wait(o->side, mark_of(o, s - 2, END)));
    HOTBED_TRY(hotbed_event_record(mark_of(o, s, PREFETCH), o->side));
    HOTBED_TRY(hotbed_storage_prefetch(o->run->storage, &batch, o->tickets[step % 2], o->side));
    return hotbed_event_record(mark_of(o, s, PREFETCHED), o->side);
}

static hotbed_status train(overlap *o, uint64_t first, uint32_t s) {
    workload_run *run = o->run;
    hotbed_ticket *ticket = o->tickets[(first + s) % 2];
    HOTBED_TRY(hotbed_stream_wait(run->stream, mark_of(o, s, PREFETCHED)));
    HOTBED_TRY(hotbed_event_record(mark_of(o, s, TRAIN), run->stream));
    HOTBED_TRY(hotbed_storage_forward(run->storage, ticket, run->output.data, 0, run->stream));
    HOTBED_TRY(hotbed_event_record(mark_of(o, s, FORWARD), run->stream));
    HOTBED_TRY(bench_model_run(&o->model, o->layers, run->stream));
    HOTBED_TRY(hotbed_event_record(mark_of(o, s, DENSE), run->stream));
    HOTBED_TRY(hotbed_storage_backward(run->storage, ticket, run->gradient.data, 0, run->stream));
    return hotbed_event_record(mark_of(o, s, END), run->stream);
}

static hotbed_status enqueue(overlap *o) {
    workload_run *run = o->run;
    uint64_t first = run->steps;
    HOTBED_TRY(prefetch(o, first, 0));
    for (uint32_t s = 0; s < o->steps; s++) {
        if (s + 1 < o->steps)
            HOTBED_TRY(prefetch(o, first, s + 1));
        else /* as in the other passes: the check finds elements that no step wrote */
            HOTBED_TRY(hotbed_fill(run->output.data, 0xff, run->output.bytes, run->stream));
        HOTBED_TRY(train(o, first, s));
        run->steps++;
    }
    return HOTBED_OK;
}

static hotbed_status run_steps(overlap *o, workload_host *host) {
    hotbed_counters before = {.size = sizeof before};
    hotbed_counters after = {.size = sizeof after};
    HOTBED_TRY(hotbed_stream_sync(o->run->stream));
    hotbed_counters_read(&before);
    hotbed_status status = enqueue(o);
    hotbed_counters_read(&after);
    host->steps += o->steps;
    host->waits += after.host_waits - before.host_waits;
    host->allocations += after.allocations - before.allocations;
    hotbed_status synced = hotbed_stream_sync(o->side);
    if (status == HOTBED_OK)
        status = synced;
    synced = hotbed_stream_sync(o->run->stream);
    return status == HOTBED_OK ? synced : status;
}

/* Median over the steps, without the first, of the time between two marks; `later`: the second mark
 * is of the next step. */
static hotbed_status read_median(
    const overlap *o, mark from, mark to, uint32_t later, double *out) {
    double *seconds = malloc(o->steps * sizeof *seconds);
    if (!seconds)
        return hotbed_fail(HOTBED_ERR_MEMORY, "overlap: no memory for %u steps", o->steps);
    hotbed_status status = HOTBED_OK;
    uint32_t n = 0;
    for (uint32_t s = 1 - later; s + later < o->steps && status == HOTBED_OK; s++, n++)
        status = hotbed_event_seconds(mark_of(o, s, from), mark_of(o, s + later, to), &seconds[n]);
    if (status == HOTBED_OK)
        *out = bench_median(seconds, n);
    free(seconds);
    return status;
}

static hotbed_status read_times(const overlap *o, workload_overlap *out) {
    HOTBED_TRY(read_median(o, END, END, 1, &out->train));
    HOTBED_TRY(read_median(o, PREFETCH, PREFETCHED, 0, &out->prefetch));
    HOTBED_TRY(read_median(o, TRAIN, FORWARD, 0, &out->forward));
    HOTBED_TRY(read_median(o, FORWARD, DENSE, 0, &out->dense_beside));
    return read_median(o, DENSE, END, 0, &out->backward);
}

hotbed_status workload_pass_overlap(
    workload_run *run, uint32_t steps, double dense, workload_overlap *out, workload_host *host) {
    overlap o = {.run = run, .steps = steps < 2 ? 2 : steps};
    hotbed_status status = create(&o);
    if (status == HOTBED_OK)
        status = bench_model_size(&o.model, dense, &o.layers, &out->dense, run->stream);
    if (status == HOTBED_OK)
        status = run_steps(&o, host);
    if (status == HOTBED_OK)
        status = read_times(&o, out);
    destroy(&o);
    return status;
}
