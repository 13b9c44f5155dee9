/* bench/exchange_bags.c - sharded steps of W9 to W12: bags of several keys, pooled. Each rank has batches of its own.
 *
 * Rows are compared with an oracle and between plans bit for bit, outputs within the rounding of
 * their sums, and bit for bit between plans in which features travel in the same way. */
#include "bench/exchange.h"

#include "base/error.h"
#include "storage/step/row_core.h"

#include <stdlib.h>

const char *const exchange_stages[EXCHANGE_STAGES] = {"input_dist",    "wait_input",  "prefetch",
                                                      "compute",       "output_dist", "wait_output",
                                                      "backward_dist", "update"};
const char *const exchange_steps[EXCHANGE_STEPS] = {"train", "eval"};

typedef struct bag_run {
    const exchange_rank *me;
    hotbed_comm *comm; /* of the collection: the world's, or of this rank alone */
    const workload *what;
    exchange_bag_times *times;
    uint64_t n; /* keys of a batch */
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    workload_run run; /* buffers; the storage is the collection's lookup */
    hotbed_kjt kjt;   /* with the keys in run.fixed */
    hotbed_route routes[WORKLOAD_TABLES];
    hotbed_route_kind kinds[WORKLOAD_TABLES];
    workload_place places[WORKLOAD_TABLES];
    hotbed_graph *steps[EXCHANGE_STEPS], *stages[EXCHANGE_STAGES];
    hotbed_event *marks[2 * EXCHANGE_STAGES];
} bag_run;

/* --- create ----------------------------------------------------------------------------------- */

static hotbed_status create_buffers(bag_run *b) {
    const workload_shape *shape = &b->run.input->shape;
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    const size_t keys = b->n * sizeof(int64_t);
    const size_t rows = workload_bags_a_step(shape) * shape->dim * sizeof(float);
    const size_t offsets = (workload_bags_a_step(shape) + 1) * sizeof(int64_t);
    hotbed_stream *s = b->me->stream;
    workload_run *run = &b->run;
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys * shape->batches, NULL, &run->keys));
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys, NULL, &run->fixed));
    HOTBED_TRY(hotbed_memory_alloc(s, device, offsets, NULL, &run->offsets));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->gradient));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->output));
    for (int i = 0; i < 2 * EXCHANGE_STAGES; i++)
        HOTBED_TRY(hotbed_event_create(s, &b->marks[i]));
    HOTBED_TRY(hotbed_copy(run->keys.data, run->input->keys, keys * shape->batches, s));
    HOTBED_TRY(hotbed_copy(run->offsets.data, run->input->offsets, offsets, s));
    HOTBED_TRY(hotbed_copy(run->gradient.data, run->input->gradient, rows, s));
    HOTBED_TRY(hotbed_fill(run->output.data, 0xff, rows, s));
    return hotbed_stream_sync(s);
}

static hotbed_status create_routes(bag_run *b, uint32_t world) {
    const workload_shape *shape = &b->run.input->shape;
    bool hash = b->what->kind == HOTBED_TABLE_HASH;
    for (uint32_t t = 0; t < shape->tables; t++) {
        /* Keys are numbered by frequency. */
        b->kinds[t] = hash ? HOTBED_ROUTE_HASH_ROUND_ROBIN : HOTBED_ROUTE_ROUND_ROBIN;
        HOTBED_TRY(hotbed_route_init(&b->routes[t], b->kinds[t], world, shape->table_rows[t]));
    }
    return HOTBED_OK;
}

/* The largest number of keys that a batch has for one rank. */
static uint64_t count_capacity(const bag_run *b) {
    const workload_shape *shape = &b->run.input->shape;
    const uint32_t world = b->routes[0].world;
    uint64_t most = 0;
    for (uint32_t batch = 0; batch < shape->batches; batch++) {
        uint64_t counts[EXCHANGE_WORLDS] = {0};
        const int64_t *keys = b->run.input->keys + batch * b->n;
        for (uint32_t t = 0; t < shape->tables; t++)
            for (uint64_t i = workload_first_key(shape, t); i < workload_first_key(shape, t + 1);
                 i++)
                counts[hotbed_route_rank(&b->routes[t], (uint64_t)keys[i])]++;
        for (uint32_t r = 0; r < world; r++)
            most = counts[r] > most ? counts[r] : most;
    }
    return most;
}

static hotbed_status create_collection(bag_run *b, hotbed_plan plan, uint64_t capacity) {
    const workload_shape *shape = &b->run.input->shape;
    hotbed_stream *stream = b->me->stream;
    workload_tables *tables = malloc(sizeof *tables);
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    float factors[WORKLOAD_TABLES];
    if (tables == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for tables");
    workload_storage_options(b->what, shape, tables, &storage);
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.routes = b->kinds;
    options.plan = plan;
    options.forward_dtype = b->me->p->forward;
    options.backward_dtype = b->me->p->backward;
    options.overflow = HOTBED_OVERFLOW_REPORT; /* graphs need it; the check would find zeros */
    options.max_batch_size = shape->samples;
    options.max_keys = b->n;
    options.capacity = capacity;
    options.pooling_factors = factors;
    for (uint32_t t = 0; t < shape->tables; t++)
        factors[t] = (float)workload_bag(shape, t);
    hotbed_status status = hotbed_sharded_create(&options, b->comm, stream, &b->sharded);
    free(tables);
    HOTBED_TRY(status);
    for (uint32_t t = 0; t < shape->tables; t++) {
        hotbed_sharded_table info = {.size = sizeof info};
        HOTBED_TRY(hotbed_sharded_table_read(b->sharded, t, &info));
        b->places[t] = (workload_place){hotbed_sharded_lookup(b->sharded, info.lookup), info.table};
    }
    b->run.places = b->places;
    b->run.storage = b->places[0].storage;
    return hotbed_sharded_create_context(1, &b->sharded, stream, &b->context);
}

static void destroy(bag_run *b) {
    for (int i = 0; i < EXCHANGE_STAGES; i++)
        hotbed_graph_destroy(b->stages[i]);
    for (int i = 0; i < EXCHANGE_STEPS; i++)
        hotbed_graph_destroy(b->steps[i]);
    for (int i = 0; i < 2 * EXCHANGE_STAGES; i++)
        hotbed_event_destroy(b->marks[i]);
    hotbed_sharded_context_destroy(b->context);
    hotbed_sharded_destroy(b->sharded);
    hotbed_memory_free(&b->run.keys);
    hotbed_memory_free(&b->run.fixed);
    hotbed_memory_free(&b->run.offsets);
    hotbed_memory_free(&b->run.gradient);
    hotbed_memory_free(&b->run.output);
}

static hotbed_status create(bag_run *b, hotbed_plan plan) {
    const workload_shape *shape = &b->run.input->shape;
    const uint32_t world = hotbed_comm_size(b->comm);
    b->n = workload_keys_a_step(shape);
    HOTBED_TRY(create_routes(b, world));
    b->run.stream = b->me->stream;
    b->run.what = b->what;
    b->run.routes = b->routes;
    b->run.ranks = world;
    b->run.rank = hotbed_comm_rank(b->comm);
    HOTBED_TRY(create_buffers(b));
    b->kjt = (hotbed_kjt){.size = sizeof b->kjt};
    b->kjt.num_features = shape->tables;
    b->kjt.batch_size = shape->samples;
    b->kjt.num_keys = b->n;
    b->kjt.keys = b->run.fixed.data;
    b->kjt.offsets = b->run.offsets.data;
    return create_collection(b, plan, count_capacity(b));
}

/* --- stages and steps ------------------------------------------------------------------------- */

static hotbed_status input_dist(bag_run *b) {
    return hotbed_sharded_input_dist(b->context, &b->kjt, b->me->stream);
}

static hotbed_status wait_input(bag_run *b) {
    HOTBED_TRY(hotbed_sharded_wait_splits(b->context, b->me->stream));
    return hotbed_sharded_wait_input(b->context, b->me->stream);
}

static hotbed_status prefetch(bag_run *b) {
    return hotbed_sharded_prefetch(b->context, 0, b->me->stream);
}

static hotbed_status compute(bag_run *b) {
    return hotbed_sharded_compute(b->context, 0, b->me->stream);
}

static hotbed_status output_dist(bag_run *b) {
    return hotbed_sharded_output_dist(b->context, 0, b->me->stream);
}

static hotbed_status wait_output(bag_run *b) {
    return hotbed_sharded_wait_output(b->context, 0, b->run.output.data, 0, b->me->stream);
}

static hotbed_status backward_dist(bag_run *b) {
    return hotbed_sharded_backward_dist(b->context, 0, b->run.gradient.data, 0, b->me->stream);
}

static hotbed_status update(bag_run *b) {
    return hotbed_sharded_update(b->context, 0, b->me->stream);
}

typedef hotbed_status (*call)(bag_run *b);

static const call stage_calls[EXCHANGE_STAGES] = {input_dist,  wait_input,  prefetch,      compute,
                                                  output_dist, wait_output, backward_dist, update};

static hotbed_status eval(bag_run *b) {
    HOTBED_TRY(input_dist(b));
    HOTBED_TRY(wait_input(b));
    return hotbed_sharded_read(b->context, 0, b->run.output.data, 0, b->me->stream);
}

static hotbed_status train(bag_run *b) {
    HOTBED_TRY(input_dist(b));
    HOTBED_TRY(wait_input(b));
    HOTBED_TRY(hotbed_sharded_read(b->context, 0, b->run.output.data, 0, b->me->stream));
    return hotbed_sharded_backward(b->context, 0, b->run.gradient.data, 0, b->me->stream);
}

static const call step_calls[EXCHANGE_STEPS] = {train, eval};

/* The batch of this rank in step `step`. */
static uint64_t batch_of(const bag_run *b, uint64_t step) {
    return (step * b->run.ranks + b->run.rank) % b->run.input->shape.batches;
}

static hotbed_status put_keys(bag_run *b, uint64_t step) {
    const int64_t *keys = b->run.keys.data;
    return hotbed_copy(
        b->run.fixed.data, keys + batch_of(b, step) * b->n, b->run.fixed.bytes, b->me->stream);
}

static hotbed_status launch(bag_run *b, hotbed_graph *graph, call eager) {
    return graph != NULL ? hotbed_graph_launch(graph, b->me->stream) : eager(b);
}

/* Run n steps; evals repeat the batches of the first ones. */
static hotbed_status run_steps(bag_run *b, int kind, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(put_keys(b, kind == EXCHANGE_TRAIN ? b->run.steps++ : i));
        HOTBED_TRY(launch(b, b->steps[kind], step_calls[kind]));
    }
    return HOTBED_OK;
}

static hotbed_status record(bag_run *b, call body, hotbed_graph **out) {
    HOTBED_TRY(hotbed_graph_begin(b->me->stream));
    hotbed_status status = body(b);
    hotbed_status ended = hotbed_graph_end(b->me->stream, out);
    return status != HOTBED_OK ? status : ended;
}

/* --- time ------------------------------------------------------------------------------------- */

/* The mean time of n steps without barriers, of the slowest rank. */
static hotbed_status time_steps(bag_run *b, int kind, bool graph) {
    const uint32_t n = b->me->p->steps;
    double *seconds = graph ? &b->times->graph[kind] : &b->times->eager[kind];
    HOTBED_TRY(run_steps(b, kind, 2));
    HOTBED_TRY(hotbed_comm_barrier(b->comm, b->me->stream));
    HOTBED_TRY(hotbed_event_record(b->marks[0], b->me->stream));
    HOTBED_TRY(run_steps(b, kind, n));
    HOTBED_TRY(hotbed_event_record(b->marks[1], b->me->stream));
    HOTBED_TRY(hotbed_stream_sync(b->me->stream));
    HOTBED_TRY(hotbed_event_seconds(b->marks[0], b->marks[1], seconds));
    *seconds /= n;
    return exchange_slowest(b->me, seconds, 1);
}

/* One step, each stage after a barrier of all ranks. */
static hotbed_status time_stages_once(bag_run *b, double *seconds, uint32_t n, uint32_t step) {
    hotbed_stream *s = b->me->stream;
    HOTBED_TRY(put_keys(b, b->run.steps++));
    for (int stage = 0; stage < EXCHANGE_STAGES; stage++) {
        HOTBED_TRY(hotbed_comm_barrier(b->comm, s));
        HOTBED_TRY(hotbed_event_record(b->marks[2 * stage], s));
        HOTBED_TRY(launch(b, b->stages[stage], stage_calls[stage]));
        HOTBED_TRY(hotbed_event_record(b->marks[2 * stage + 1], s));
    }
    HOTBED_TRY(hotbed_stream_sync(s));
    for (uint32_t stage = 0; stage < EXCHANGE_STAGES; stage++)
        HOTBED_TRY(hotbed_event_seconds(
            b->marks[2 * stage], b->marks[2 * stage + 1], &seconds[stage * n + step]));
    return HOTBED_OK;
}

/* The median time of each stage, of the slowest rank. */
static hotbed_status time_stages(bag_run *b, bool graph) {
    const uint32_t n = b->me->p->steps;
    double *out = graph ? b->times->graph_stages : b->times->eager_stages;
    double *seconds = malloc((size_t)EXCHANGE_STAGES * n * sizeof *seconds);
    if (seconds == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for %u steps", n);
    hotbed_status status = HOTBED_OK;
    for (uint32_t step = 0; step < n && status == HOTBED_OK; step++)
        status = time_stages_once(b, seconds, n, step);
    for (uint32_t stage = 0; stage < EXCHANGE_STAGES && status == HOTBED_OK; stage++)
        out[stage] = bench_median(seconds + (size_t)stage * n, n);
    free(seconds);
    return status == HOTBED_OK ? exchange_slowest(b->me, out, EXCHANGE_STAGES) : status;
}

static hotbed_status record_stages(bag_run *b) {
    HOTBED_TRY(hotbed_stream_sync(b->me->stream));
    for (int stage = 0; stage < EXCHANGE_STAGES; stage++)
        HOTBED_TRY(record(b, stage_calls[stage], &b->stages[stage]));
    return HOTBED_OK;
}

static hotbed_status time_graph(bag_run *b, int kind) {
    HOTBED_TRY(hotbed_stream_sync(b->me->stream));
    HOTBED_TRY(record(b, step_calls[kind], &b->steps[kind]));
    return time_steps(b, kind, true);
}

/* Read what a rank has sent so far. */
static hotbed_status read_sent(const bag_run *b, double *sent) {
    hotbed_exchange_stats stats = {.size = sizeof stats};
    HOTBED_TRY(hotbed_sharded_stats(b->sharded, &stats, b->me->stream));
    sent[0] = (double)stats.keys_sent;
    sent[1] = (double)stats.rows_sent;
    sent[2] = (double)stats.gradients_sent;
    return HOTBED_OK;
}

/* Time training; all plans run equally many steps, so that their rows are equal. */
static hotbed_status time_training(bag_run *b, bool graphs, bool stages) {
    const uint32_t n = b->me->p->steps, batches = b->run.input->shape.batches;
    HOTBED_TRY(run_steps(b, EXCHANGE_TRAIN, batches));
    HOTBED_TRY(read_sent(b, b->times->sent));
    for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
        b->times->sent[phase] /= batches;
    HOTBED_TRY(time_steps(b, EXCHANGE_TRAIN, false));
    if (graphs)
        HOTBED_TRY(time_graph(b, EXCHANGE_TRAIN));
    else
        HOTBED_TRY(run_steps(b, EXCHANGE_TRAIN, n + 2));
    if (!stages)
        return HOTBED_OK;
    HOTBED_TRY(time_stages(b, false));
    if (!graphs)
        return run_steps(b, EXCHANGE_TRAIN, n);
    HOTBED_TRY(record_stages(b));
    return time_stages(b, true);
}

static hotbed_status time_evals(bag_run *b, bool graphs) {
    HOTBED_TRY(hotbed_sharded_set_training(b->sharded, false));
    HOTBED_TRY(time_steps(b, EXCHANGE_EVAL, false));
    return graphs ? time_graph(b, EXCHANGE_EVAL) : HOTBED_OK;
}

/* --- one plan --------------------------------------------------------------------------------- */

static hotbed_status check(bag_run *b, workload_oracle *oracle, workload_digest *out) {
    HOTBED_TRY(hotbed_stream_sync(b->me->stream));
    if (!exchange_is_narrow(b->me->p))
        HOTBED_TRY(workload_oracle_check(oracle, &b->run));
    HOTBED_TRY(exchange_digest(b->me, &b->run, out));
    return hotbed_sharded_set_training(b->sharded, false);
}

static hotbed_status check_eval(bag_run *b, const workload_oracle *oracle, workload_digest *out) {
    uint64_t digest = 0;
    HOTBED_TRY(put_keys(b, 1));
    HOTBED_TRY(eval(b));
    HOTBED_TRY(hotbed_stream_sync(b->me->stream));
    if (!exchange_is_narrow(b->me->p))
        HOTBED_TRY(workload_oracle_check_eval(oracle, &b->run, batch_of(b, 1)));
    HOTBED_TRY(workload_run_digest_output(&b->run, &digest)); /* rows are those of check() */
    out->output ^= workload_mix(digest);
    return HOTBED_OK;
}

static hotbed_status measure_with(
    bag_run *b, hotbed_plan plan, workload_oracle *oracle, workload_digest *out) {
    bool graphs = plan != HOTBED_PLAN_TWO_PHASE;
    HOTBED_TRY(create(b, plan));
    HOTBED_TRY(time_training(b, graphs, oracle != NULL));
    if (oracle != NULL)
        HOTBED_TRY(check(b, oracle, out));
    HOTBED_TRY(time_evals(b, graphs));
    return oracle != NULL ? check_eval(b, oracle, out) : HOTBED_OK;
}

/* Measure a plan over `comm`; with an oracle also check it. */
static hotbed_status measure_plan(
    const exchange_rank *me, hotbed_comm *comm, const workload *what, const workload_input *input,
    hotbed_plan plan, workload_oracle *oracle, exchange_bag_times *times, workload_digest *out) {
    bag_run *b = calloc(1, sizeof *b);
    if (b == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "exchange: no memory for a run");
    *b = (bag_run){.me = me, .comm = comm, .what = what, .times = times, .run.input = input};
    hotbed_status status = measure_with(b, plan, oracle, out);
    (void)!hotbed_stream_sync(me->stream);
    destroy(b);
    free(b);
    return status;
}

/* The same batches on every rank alone, all ranks at once. */
static hotbed_status measure_alone(
    const exchange_rank *me, const workload_input *input, exchange_bags *out) {
    hotbed_comm_options options = {.size = sizeof options};
    hotbed_comm *comm = NULL;
    HOTBED_TRY(hotbed_comm_create_self(&options, &comm));
    hotbed_status status =
        measure_plan(me, comm, out->what, input, HOTBED_PLAN_FIXED, NULL, &out->alone, NULL);
    hotbed_comm_destroy(comm);
    return status;
}

/* All plans run equally many steps, so one oracle serves all. */
static hotbed_status measure_plans_with(
    const exchange_rank *me, const workload_input *input, workload_oracle *oracle,
    exchange_bags *out) {
    workload_digest first = {0};
    bool any = false, by_rule = false; /* whether a plan was measured; other than FIXED */
    for (int plan = HOTBED_PLAN_FIXED; plan <= HOTBED_PLAN_ONE_SIDED; plan++) {
        workload_digest digest = {0};
        if (!exchange_measures(me->p, plan))
            continue;
        HOTBED_TRY(measure_plan(
            me, me->comm, out->what, input, (hotbed_plan)plan, oracle, &out->times[plan], &digest));
        if (!any)
            first = digest;
        /* With FIXED all features travel by sums, which round where rows do not. */
        if (plan != HOTBED_PLAN_FIXED && !by_rule && exchange_is_narrow(me->p))
            first = digest;
        else if (plan != HOTBED_PLAN_FIXED && !by_rule)
            first.output = digest.output;
        any = true;
        by_rule = plan != HOTBED_PLAN_FIXED;
        HOTBED_TRY(exchange_compare(me, exchange_plans[plan], &first, &digest));
    }
    out->rows = first.rows;
    out->digest[0] = first.table[0];
    out->digest[1] = first.table[1];
    return HOTBED_OK;
}

static hotbed_status measure_plans(
    const exchange_rank *me, const workload_input *input, exchange_bags *out) {
    workload_oracle *oracle = NULL;
    HOTBED_TRY(workload_oracle_create(out->what, input, me->stream, &oracle));
    hotbed_status status = measure_plans_with(me, input, oracle, out);
    out->checked = exchange_is_narrow(me->p) ? 0 : workload_oracle_rows(oracle);
    workload_oracle_destroy(oracle);
    return status;
}

/* --- what must travel --------------------------------------------------------------------------- */

static hotbed_status count_rows(
    const exchange_rank *me, const workload_input *input, exchange_bags *out) {
    const workload_shape *shape = &input->shape;
    static const hotbed_route_kind kinds[] = {
        [HOTBED_TABLE_HASH] = HOTBED_ROUTE_HASH_ROUND_ROBIN,
        [HOTBED_TABLE_STATIC] = HOTBED_ROUTE_ROUND_ROBIN};
    hotbed_route routes[32];
    for (uint32_t t = 0; t < shape->tables; t++)
        HOTBED_TRY(
            hotbed_route_init(&routes[t], kinds[out->what->kind], me->size, shape->table_rows[t]));
    return workload_count_moved(shape, input->keys, routes, 0, &out->must);
}

/* --- all workloads ------------------------------------------------------------------------------- */

hotbed_status exchange_measure_bags(const exchange_rank *me) {
    exchange_result *result = me->result;
    for (uint32_t i = 0; i < me->p->num_bags; i++) {
        const workload_input *input = &me->p->inputs[me->p->input_of[i]];
        exchange_bags *out = &result->bags[i];
        out->what = me->p->bags[i];
        out->keys = workload_keys_a_step(&input->shape);
        out->samples = input->shape.samples;
        out->row_bytes = hotbed_weights_bytes(
            out->what->dtype == 0 ? HOTBED_F32 : out->what->dtype, input->shape.dim);
        HOTBED_TRY(count_rows(me, input, out));
        HOTBED_TRY(measure_alone(me, input, out));
        HOTBED_TRY(measure_plans(me, input, out));
    }
    return HOTBED_OK;
}
