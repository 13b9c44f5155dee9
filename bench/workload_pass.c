/* bench/workload_pass.c - passes over steps, with events around the parts of each step. */
#include "bench/workload.h"

#include "base/error.h"
#include "storage/storage.h"
#include "storage/ticket.h"

#include <stdlib.h>
#include <string.h>

static hotbed_status copy_keys(workload_run *run, uint64_t step) {
    return hotbed_copy(run->fixed.data, workload_keys_of(run, step), run->fixed.bytes, run->stream);
}

/* Fill the output with NaNs, so that the check finds elements that no step writes. */
static hotbed_status poison(workload_run *run) {
    return hotbed_fill(run->output.data, 0xff, run->output.bytes, run->stream);
}

/* --- timing ----------------------------------------------------------------------------------- */

enum { MARKS = 8 }; /* largest number of events of a step */

typedef struct pass pass;

/* A kind of pass. */
typedef struct pass_kind {
    hotbed_status (*record)(pass *p); /* records the graphs; may be NULL */
    hotbed_status (*step)(pass *p, hotbed_event **marks, uint64_t step);
    uint32_t marks; /* number of events that a step records */
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

/* Times of a pass in seconds. */
typedef struct pass_times {
    double part[MARKS - 1]; /* from mark i to mark i + 1 */
    double all;             /* from the first to the last mark */
} pass_times;

/* Median and minimum over the steps of the time from mark a to mark b. */
static hotbed_status time_between(
    const pass *p, uint32_t a, uint32_t b, double *median, double *least) {
    double *seconds = malloc(p->steps * sizeof *seconds);
    if (!seconds)
        return hotbed_fail(HOTBED_ERR_MEMORY, "timing: no memory for %u steps", p->steps);
    hotbed_status status = HOTBED_OK;
    for (uint32_t s = 0; s < p->steps && status == HOTBED_OK; s++)
        status =
            hotbed_event_seconds(p->events[s * MARKS + a], p->events[s * MARKS + b], &seconds[s]);
    if (status == HOTBED_OK) {
        *median = bench_median(seconds, p->steps); /* sorts */
        *least = seconds[0];
    }
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
    hotbed_counters before = {.size = sizeof before};
    hotbed_counters after = {.size = sizeof after};
    hotbed_counters_read(&before);
    for (uint32_t s = 0; s < p->steps; s++) {
        if (s + 1 == p->steps)
            HOTBED_TRY(poison(p->run)); /* before the first mark of the step, so it is not timed */
        uint64_t step = kind->trains ? p->run->steps : workload_eval_batch(p->run, p->steps, s);
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

/* Run the pass, and return the medians of its times and, unless `least` is NULL, the minima. */
static hotbed_status run_pass(
    workload_run *run, const pass_kind *kind, uint32_t steps, pass_times *median, pass_times *least,
    workload_host *host) {
    pass p = {.run = run, .steps = steps};
    const uint32_t last = kind->marks - 1;
    pass_times unused;
    if (least == NULL)
        least = &unused;
    hotbed_status status = run_pass_steps(&p, kind, host);
    for (uint32_t i = 0; i < last && status == HOTBED_OK; i++)
        status = time_between(&p, i, i + 1, &median->part[i], &least->part[i]);
    if (status == HOTBED_OK)
        status = time_between(&p, 0, last, &median->all, &least->all);
    destroy_pass(&p);
    return status;
}

/* --- the passes ------------------------------------------------------------------------------- */

static hotbed_status eager_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(workload_forward(p->run, workload_keys_of(p->run, step)));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(workload_backward(p->run));
    return mark(p, marks[2]);
}

/* Record the work of `fn` as a graph; a failure inside ends the recording. */
static hotbed_status record(
    workload_run *run, hotbed_status (*fn)(workload_run *run), hotbed_graph **out) {
    HOTBED_TRY(hotbed_graph_begin(run->stream));
    hotbed_status status = fn(run);
    hotbed_status ended = hotbed_graph_end(run->stream, out);
    return status != HOTBED_OK ? status : ended;
}

static hotbed_status fixed_forward(workload_run *run) {
    return workload_forward(run, run->fixed.data);
}

static hotbed_status fixed_train(workload_run *run) {
    HOTBED_TRY(fixed_forward(run));
    return workload_backward(run);
}

static hotbed_status fixed_eval(workload_run *run) {
    return workload_eval(run, run->fixed.data);
}

static hotbed_status split_record(pass *p) {
    HOTBED_TRY(record(p->run, fixed_forward, &p->graphs[0]));
    return record(p->run, workload_backward, &p->graphs[1]);
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
    return mark(p, marks[1]);
}

static hotbed_status eval_step(pass *p, hotbed_event **marks, uint64_t step) {
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(workload_eval(p->run, workload_keys_of(p->run, step)));
    return mark(p, marks[1]);
}

static hotbed_status eval_record(pass *p) {
    return record(p->run, fixed_eval, &p->graphs[0]);
}

hotbed_status workload_pass_eager(
    workload_run *run, uint32_t steps, workload_times *times, workload_times *least,
    workload_host *host) {
    const pass_kind kind = {.step = eager_step, .marks = 3, .trains = true};
    pass_times took;
    pass_times took_least;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, &took_least, host));
    *times = (workload_times){.forward = took.part[0], .backward = took.part[1], .train = took.all};
    *least = (workload_times){
        .forward = took_least.part[0], .backward = took_least.part[1], .train = took_least.all};
    return HOTBED_OK;
}

hotbed_status workload_pass_split(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host) {
    const pass_kind kind = {.record = split_record, .step = split_step, .marks = 3, .trains = true};
    pass_times took;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, NULL, host));
    times->forward = took.part[0];
    times->backward = took.part[1];
    return HOTBED_OK;
}

hotbed_status workload_pass_graph(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host) {
    const pass_kind kind = {.record = graph_record, .step = graph_step, .marks = 2, .trains = true};
    pass_times took;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, NULL, host));
    times->train = took.all;
    return HOTBED_OK;
}

hotbed_status workload_pass_eval(
    workload_run *run, uint32_t steps, bool graph, workload_times *times, workload_times *least,
    workload_host *host) {
    const pass_kind eager = {.step = eval_step, .marks = 2};
    const pass_kind graphed = {.record = eval_record, .step = graph_step, .marks = 2};
    /* The first eval on a stream may allocate its workspace. */
    HOTBED_TRY(workload_eval(run, workload_keys_of(run, 0)));
    pass_times took;
    pass_times took_least;
    HOTBED_TRY(run_pass(run, graph ? &graphed : &eager, steps, &took, &took_least, host));
    times->eval = took.all;
    least->eval = took_least.all;
    return HOTBED_OK;
}

static hotbed_status prefetch_step(pass *p, hotbed_event **marks, uint64_t step) {
    workload_run *run = p->run;
    hotbed_batch batch = workload_batch_of(run, workload_keys_of(run, step));
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(hotbed_storage_prefetch(run->storage, &batch, run->ticket, run->stream));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(hotbed_storage_forward(run->storage, run->ticket, run->output.data, 0, run->stream));
    return workload_backward(run);
}

hotbed_status workload_pass_prefetch(
    workload_run *run, uint32_t steps, double *prefetch, workload_host *host) {
    const pass_kind kind = {.step = prefetch_step, .marks = 2, .trains = true};
    pass_times took;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, NULL, host));
    *prefetch = took.all;
    return HOTBED_OK;
}

/* --- stages ----------------------------------------------------------------------------------- */

/* Elements between the starts of two rows of the output. */
static uint64_t output_stride(const hotbed_storage *storage) {
    return storage->pooling == HOTBED_POOL_NONE ? storage->max_dim
                                                : hotbed_storage_columns(storage);
}

/* Enqueue the kernels of a step one by one, as storage/ticket.c does. */
static hotbed_status stages_step(pass *p, hotbed_event **marks, uint64_t step) {
    hotbed_ticket *t = p->run->ticket;
    const hotbed_storage *s = p->run->storage;
    hotbed_stream *stream = p->run->stream;
    uint64_t stride = output_stride(s);
    hotbed_gradient_view gradient = {p->run->gradient.data, stride, HOTBED_F32, NULL};
    t->step.batch.keys = (const uint64_t *)(const void *)workload_keys_of(p->run, step);
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(s->kernels.lookup->layout(&t->step, stream));
    if (t->step.batch.bags)
        HOTBED_TRY(s->kernels.lookup->bags(&t->step, stream));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(s->kernels.unique->unique(&t->step, t->unique_scratch, stream, stream));
    HOTBED_TRY(mark(p, marks[2]));
    HOTBED_TRY(s->kernels.lookup->find(&t->step, stream));
    HOTBED_TRY(mark(p, marks[3]));
    HOTBED_TRY(s->kernels.lookup->place(&t->step, stream));
    HOTBED_TRY(mark(p, marks[4]));
    HOTBED_TRY(
        s->kernels.lookup->forward(&t->step, p->run->output.data, stride, s->max_dim, stream));
    HOTBED_TRY(mark(p, marks[5]));
    HOTBED_TRY(s->kernels.update->update(
        &t->step, &s->optimizer_view, gradient, s->max_dim, t->update_scratch, stream));
    return mark(p, marks[6]);
}

/* Enqueue the stages of an eval. The ticket is empty, so its arrays are free to use. */
static hotbed_status eval_stages_step(pass *p, hotbed_event **marks, uint64_t step) {
    const hotbed_storage *s = p->run->storage;
    hotbed_stream *stream = p->run->stream;
    hotbed_step_view view = p->run->ticket->step;
    view.batch.keys = (const uint64_t *)(const void *)workload_keys_of(p->run, step);
    view.eval.on = 1;
    view.eval.begun = view.unique.counts;
    view.eval.rereads = view.unique.missing;
    view.eval.num_rereads = view.unique.num_missing;
    view.unique.inverse = NULL;
    HOTBED_TRY(mark(p, marks[0]));
    HOTBED_TRY(s->kernels.lookup->layout(&view, stream));
    HOTBED_TRY(mark(p, marks[1]));
    HOTBED_TRY(s->kernels.lookup->find_keys(&view, stream));
    HOTBED_TRY(mark(p, marks[2]));
    HOTBED_TRY(s->kernels.lookup->forward(
        &view, p->run->output.data, output_stride(s), s->max_dim, stream));
    return mark(p, marks[3]);
}

hotbed_status workload_pass_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host) {
    const pass_kind kind = {.step = stages_step, .marks = 7, .trains = true};
    pass_times took;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, NULL, host));
    memcpy(stages->train, took.part, sizeof stages->train);
    return HOTBED_OK;
}

hotbed_status workload_pass_eval_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host) {
    const pass_kind kind = {.step = eval_stages_step, .marks = 4};
    pass_times took;
    HOTBED_TRY(run_pass(run, &kind, steps, &took, NULL, host));
    stages->eval[0] = took.part[1];
    stages->eval[1] = took.part[2];
    return HOTBED_OK;
}
