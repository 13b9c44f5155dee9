/* bench/exchange_run.c - a sharded collection, its batches, and steps in phases, each between two events. */
#include "bench/exchange.h"

#include "base/error.h"
#include "dist/comm/comm.h"

#include <math.h>
#include <stdlib.h>

const char *const exchange_phases[EXCHANGE_PHASES] = {"keys", "rows", "gradients"};
const char *const exchange_plans[EXCHANGE_PLANS] = {"fixed", "two_phase", "one_sided"};

bool exchange_is_narrow(const exchange_program *p) {
    return p->forward > HOTBED_F32 || p->backward > HOTBED_F32 || p->outputs > HOTBED_F32;
}

bool exchange_measures(const exchange_program *p, int plan) {
    if (plan == HOTBED_PLAN_ONE_SIDED && p->transport == HOTBED_TRANSPORT_MPI)
        return false; /* the transport has no windows */
    return (p->plans >> plan & 1U) != 0;
}

/* --- among ranks ------------------------------------------------------------------------------- */

hotbed_status exchange_tell(const exchange_rank *me, const void *own, size_t bytes, void *all) {
    hotbed_memory memory = {0};
    hotbed_stream *s = me->stream;
    HOTBED_TRY(hotbed_memory_alloc(s, HOTBED_MEMORY_DEVICE, (me->size + 1) * bytes, NULL, &memory));
    char *mine = memory.data, *others = mine + bytes;
    hotbed_status status = hotbed_copy(mine, own, bytes, s);
    if (status == HOTBED_OK)
        status = hotbed_comm_all_gather(me->comm, bytes, mine, others, s);
    if (status == HOTBED_OK)
        status = hotbed_copy(all, others, me->size * bytes, s);
    hotbed_status synced = hotbed_stream_sync(s);
    hotbed_memory_free(&memory);
    return status != HOTBED_OK ? status : synced;
}

hotbed_status exchange_slowest(const exchange_rank *me, double *times, uint32_t n) {
    double *all = malloc((size_t)me->size * n * sizeof *all);
    if (all == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for times");
    hotbed_status status = exchange_tell(me, times, n * sizeof *times, all);
    for (size_t i = 0; i < (size_t)me->size * n && status == HOTBED_OK; i++)
        times[i % n] = fmax(times[i % n], all[i]);
    free(all);
    return status;
}

/* --- create ----------------------------------------------------------------------------------- */

static hotbed_status create_buffers(exchange_run *run, const exchange_batches *batches) {
    hotbed_stream *s = run->me->stream;
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    size_t keys = run->n * sizeof(int64_t), rows = run->n * run->dim * sizeof(float);
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys * batches->count, NULL, &run->keys));
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys, NULL, &run->fixed));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->output));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->gradient));
    for (int i = 0; i < 2 * EXCHANGE_PHASES; i++)
        HOTBED_TRY(hotbed_event_create(s, &run->marks[i]));
    HOTBED_TRY(hotbed_fill(run->output.data, 0, rows, s)); /* narrow outputs leave a part of it */
    HOTBED_TRY(hotbed_copy(run->keys.data, batches->keys, keys * batches->count, s));
    void *gradients = malloc(rows);
    if (gradients == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for gradients");
    const hotbed_dtype outputs = run->me->p->outputs == 0 ? HOTBED_F32 : run->me->p->outputs;
    hotbed_status status =
        hotbed_dtype_convert(HOTBED_F32, batches->gradients, outputs, gradients, run->dim, run->n);
    if (status == HOTBED_OK)
        status = hotbed_copy(
            run->gradient.data, gradients, run->n * hotbed_dtype_row_bytes(outputs, run->dim), s);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(s);
    free(gradients);
    return status;
}

static hotbed_status create_collection(
    exchange_run *run, const hotbed_storage_options *storage, uint64_t capacity,
    const exchange_batches *batches) {
    hotbed_sharded_options options;
    hotbed_storage_options tables = *storage;
    tables.output_dtype = run->me->p->outputs;
    hotbed_sharded_options_init(&options);
    options.storage = &tables;
    options.plan = run->plan;
    options.forward_dtype = run->me->p->forward;
    options.backward_dtype = run->me->p->backward;
    options.overflow =
        HOTBED_OVERFLOW_REPORT; /* graphs need it; the check would find missing rows */
    options.dedup = batches->distinct ? HOTBED_DEDUP_OFF : HOTBED_DEDUP_ON;
    options.max_batch_size = batches->samples;
    options.max_keys = run->n;
    options.capacity = capacity;
    HOTBED_TRY(hotbed_sharded_create(&options, run->me->comm, run->me->stream, &run->sharded));
    return hotbed_sharded_create_context(1, &run->sharded, run->me->stream, &run->context);
}

hotbed_status exchange_run_create(
    const exchange_rank *me, const hotbed_storage_options *storage, hotbed_plan plan,
    uint64_t capacity, const exchange_batches *batches, exchange_run *out) {
    *out = (exchange_run){.me = me, .plan = plan, .batches = batches->count};
    out->dim = storage->tables[0].dim;
    out->n = (uint64_t)batches->features * batches->samples;
    hotbed_status status = create_buffers(out, batches);
    if (status == HOTBED_OK)
        status = create_collection(out, storage, capacity, batches);
    out->kjt = (hotbed_kjt){.size = sizeof out->kjt};
    out->kjt.num_features = batches->features;
    out->kjt.batch_size = batches->samples;
    out->kjt.num_keys = out->n;
    out->kjt.keys = out->fixed.data;
    return status;
}

void exchange_run_destroy(exchange_run *run) {
    for (int i = 0; i < EXCHANGE_PHASES; i++)
        hotbed_graph_destroy(run->graphs[i]);
    for (int i = 0; i < 2 * EXCHANGE_PHASES; i++)
        hotbed_event_destroy(run->marks[i]);
    hotbed_graph_destroy(run->whole);
    hotbed_sharded_context_destroy(run->context);
    hotbed_sharded_destroy(run->sharded);
    hotbed_memory_free(&run->keys);
    hotbed_memory_free(&run->fixed);
    hotbed_memory_free(&run->output);
    hotbed_memory_free(&run->gradient);
}

/* --- phases ----------------------------------------------------------------------------------- */

static hotbed_status send_keys(exchange_run *run) {
    hotbed_stream *s = run->me->stream;
    HOTBED_TRY(hotbed_sharded_input_dist(run->context, &run->kjt, s));
    HOTBED_TRY(hotbed_sharded_wait_splits(run->context, s));
    return hotbed_sharded_wait_input(run->context, s);
}

static hotbed_status send_rows(exchange_run *run) {
    return hotbed_sharded_read(run->context, 0, run->output.data, 0, run->me->stream);
}

static hotbed_status send_gradients(exchange_run *run) {
    return hotbed_sharded_backward(run->context, 0, run->gradient.data, 0, run->me->stream);
}

static hotbed_status (*const phases[EXCHANGE_PHASES])(exchange_run *run) = {
    send_keys, send_rows, send_gradients};

static hotbed_status put_keys(exchange_run *run, uint64_t step) {
    const int64_t *keys = run->keys.data;
    return hotbed_copy(
        run->fixed.data, keys + step % run->batches * run->n, run->fixed.bytes, run->me->stream);
}

static hotbed_status run_phase(exchange_run *run, int phase) {
    if (run->graphs[phase] != NULL)
        return hotbed_graph_launch(run->graphs[phase], run->me->stream);
    return phases[phase](run);
}

/* Run the phases from `first` up to before `end`. */
static hotbed_status run_phases(exchange_run *run, int first, int end) {
    for (int phase = first; phase < end; phase++)
        HOTBED_TRY(run_phase(run, phase));
    return HOTBED_OK;
}

hotbed_status exchange_run_steps(exchange_run *run, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(put_keys(run, run->steps++));
        if (run->whole != NULL)
            HOTBED_TRY(hotbed_graph_launch(run->whole, run->me->stream));
        else
            HOTBED_TRY(run_phases(run, 0, EXCHANGE_PHASES));
    }
    return HOTBED_OK;
}

static hotbed_status record(exchange_run *run, int first, int end, hotbed_graph **graph) {
    HOTBED_TRY(hotbed_graph_begin(run->me->stream));
    const hotbed_status status = run_phases(run, first, end);
    const hotbed_status ended = hotbed_graph_end(run->me->stream, graph);
    return status != HOTBED_OK ? status : ended;
}

/* Record the step as one graph, and each phase as one of its own. */
hotbed_status exchange_run_record(exchange_run *run) {
    HOTBED_TRY(hotbed_stream_sync(run->me->stream));
    HOTBED_TRY(record(run, 0, EXCHANGE_PHASES, &run->whole));
    for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
        HOTBED_TRY(record(run, phase, phase + 1, &run->graphs[phase]));
    return HOTBED_OK;
}

hotbed_status exchange_run_forward(exchange_run *run, uint64_t step) {
    HOTBED_TRY(put_keys(run, step));
    HOTBED_TRY(send_keys(run));
    HOTBED_TRY(send_rows(run));
    HOTBED_TRY(hotbed_sharded_cancel(run->context, run->me->stream));
    return hotbed_stream_sync(run->me->stream);
}

/* --- time ------------------------------------------------------------------------------------- */

/* Run one step, and time each phase. */
static hotbed_status time_phases(exchange_run *run, double *seconds, uint32_t n, uint32_t step) {
    const exchange_rank *me = run->me;
    HOTBED_TRY(put_keys(run, run->steps++));
    for (int phase = 0; phase < EXCHANGE_PHASES; phase++) {
        HOTBED_TRY(hotbed_comm_barrier(me->comm, me->stream));
        HOTBED_TRY(hotbed_event_record(run->marks[2 * phase], me->stream));
        HOTBED_TRY(run_phase(run, phase));
        HOTBED_TRY(hotbed_event_record(run->marks[2 * phase + 1], me->stream));
    }
    HOTBED_TRY(hotbed_stream_sync(me->stream));
    for (uint32_t phase = 0; phase < EXCHANGE_PHASES; phase++)
        HOTBED_TRY(hotbed_event_seconds(
            run->marks[2 * phase], run->marks[2 * phase + 1], &seconds[phase * n + step]));
    return HOTBED_OK;
}

static hotbed_status time_steps(exchange_run *run, uint32_t n, double *seconds) {
    const exchange_rank *me = run->me;
    HOTBED_TRY(hotbed_comm_barrier(me->comm, me->stream));
    HOTBED_TRY(hotbed_event_record(run->marks[0], me->stream));
    HOTBED_TRY(exchange_run_steps(run, n));
    HOTBED_TRY(hotbed_event_record(run->marks[1], me->stream));
    HOTBED_TRY(hotbed_stream_sync(me->stream));
    HOTBED_TRY(hotbed_event_seconds(run->marks[0], run->marks[1], seconds));
    *seconds /= n;
    return HOTBED_OK;
}

hotbed_status exchange_run_time(exchange_run *run, uint32_t n, exchange_times *out) {
    double *seconds = malloc((size_t)EXCHANGE_PHASES * n * sizeof *seconds);
    if (seconds == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for %u steps", n);
    hotbed_status status = HOTBED_OK;
    for (uint32_t step = 0; step < n && status == HOTBED_OK; step++)
        status = time_phases(run, seconds, n, step);
    for (uint32_t phase = 0; phase < EXCHANGE_PHASES && status == HOTBED_OK; phase++)
        out->phase[phase] = bench_median(seconds + (size_t)phase * n, n);
    free(seconds);
    HOTBED_TRY(status);
    HOTBED_TRY(time_steps(run, n, &out->step));
    HOTBED_TRY(exchange_slowest(run->me, out->phase, EXCHANGE_PHASES));
    return exchange_slowest(run->me, &out->step, 1);
}
