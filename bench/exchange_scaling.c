/* bench/exchange_scaling.c - weak scaling: each rank trains batches of W1 on tables that all ranks share. */
#include "bench/exchange.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

enum { BATCHES = 16 }; /* of each rank */

/* Largest number of distinct keys of a batch, counted per table. */
static hotbed_status count_uniques(
    const workload_shape *shape, const int64_t *keys, uint64_t *most) {
    uint64_t words = shape->range / 64 + 1, n = workload_keys_a_step(shape);
    uint64_t *bits = malloc(words * sizeof *bits);
    if (bits == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "scaling: no memory to count keys");
    *most = 0;
    for (uint32_t b = 0; b < BATCHES; b++) {
        uint64_t count = 0;
        for (uint32_t t = 0; t < shape->tables; t++) {
            const int64_t *of = keys + b * n + (uint64_t)t * shape->samples;
            memset(bits, 0, words * sizeof *bits);
            for (uint32_t i = 0; i < shape->samples; i++) {
                uint64_t bit = (uint64_t)1 << (of[i] & 63), *word = &bits[of[i] / 64];
                count += (*word & bit) == 0;
                *word |= bit;
            }
        }
        *most = count > *most ? count : *most;
    }
    free(bits);
    return HOTBED_OK;
}

hotbed_status exchange_digest(const exchange_rank *me, workload_run *run, workload_digest *out) {
    workload_digest *all = malloc(me->size * sizeof *all);
    if (all == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "scaling: no memory for digests");
    hotbed_status status = workload_run_digest(run, out);
    uint64_t own = out->output;
    if (status == HOTBED_OK)
        status = exchange_tell(me, out, sizeof *out, all);
    *out = (workload_digest){.output = own};
    for (uint32_t r = 0; r < me->size && status == HOTBED_OK; r++) {
        out->rows += all[r].rows;
        out->table[0] += all[r].table[0];
        out->table[1] += all[r].table[1];
    }
    free(all);
    return status;
}

static hotbed_status digest(
    const exchange_rank *me, hotbed_storage *storage, const hotbed_memory *output,
    workload_digest *out) {
    workload_run run = {
        .what = &workloads[0],
        .input = &me->p->input,
        .stream = me->stream,
        .storage = storage,
        .output = *output,
    };
    return exchange_digest(me, &run, out);
}

hotbed_status exchange_compare(
    const exchange_rank *me, const char *name, const workload_digest *want,
    const workload_digest *got) {
    if (want->rows == got->rows && want->table[0] == got->table[0] &&
        want->table[1] == got->table[1] && want->output == got->output)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_CORRUPT, "%s: rank %u of %u has other rows or outputs than before", name,
        me->rank, me->size);
}

/* --- one plan --------------------------------------------------------------------------------- */

static hotbed_status time_plan(exchange_run *run, workload_digest *out) {
    exchange_result *result = run->me->result;
    uint32_t steps = run->me->p->steps;
    HOTBED_TRY(exchange_run_steps(run, BATCHES));
    HOTBED_TRY(exchange_run_time(run, steps, &result->scaling_eager[run->plan]));
    if (run->plan == HOTBED_PLAN_TWO_PHASE) {
        HOTBED_TRY(exchange_run_steps(run, 2 * steps)); /* as many steps as for the other plans */
    } else {
        HOTBED_TRY(exchange_run_record(run));
        HOTBED_TRY(exchange_run_time(run, steps, &result->scaling_graph[run->plan]));
    }
    HOTBED_TRY(hotbed_stream_sync(run->me->stream));
    return digest(run->me, hotbed_sharded_lookup(run->sharded, 0), &run->output, out);
}

static hotbed_status measure_plan(
    const exchange_rank *me, hotbed_plan plan, const exchange_batches *batches,
    workload_digest *out) {
    workload_tables tables;
    hotbed_storage_options storage;
    exchange_run run;
    const workload_shape *shape = &me->p->input.shape;
    double mean = (double)me->result->step_uniques / me->size;
    uint64_t capacity =
        me->size == 1 ? me->result->step_uniques : (uint64_t)(mean + 6 * sqrt(mean)) + 64;
    workload_storage_options(&workloads[0], shape, &tables, &storage);
    hotbed_status status = exchange_run_create(me, &storage, plan, capacity, batches, &run);
    if (status == HOTBED_OK)
        status = time_plan(&run, out);
    (void)!hotbed_stream_sync(me->stream);
    exchange_run_destroy(&run);
    return status;
}

/* --- the same steps in a storage, without a collection -------------------------------------- */

static hotbed_status time_single(workload_run *run, uint32_t steps, double *seconds) {
    hotbed_event *marks[2] = {NULL, NULL};
    hotbed_status status = hotbed_event_create(run->stream, &marks[0]);
    if (status == HOTBED_OK)
        status = hotbed_event_create(run->stream, &marks[1]);
    /* Run as many steps as for a plan; time the last ones. */
    for (uint32_t i = 0; i < BATCHES + 4 * steps && status == HOTBED_OK; i++) {
        if (i == BATCHES + 3 * steps)
            status = hotbed_event_record(marks[0], run->stream);
        if (status == HOTBED_OK)
            status = workload_step(run);
    }
    if (status == HOTBED_OK)
        status = hotbed_event_record(marks[1], run->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(run->stream);
    if (status == HOTBED_OK)
        status = hotbed_event_seconds(marks[0], marks[1], seconds);
    *seconds /= steps;
    hotbed_event_destroy(marks[0]);
    hotbed_event_destroy(marks[1]);
    return status;
}

static hotbed_status measure_single(const exchange_rank *me, workload_digest *out) {
    workload_input input = me->p->input; /* borrowed */
    workload_run run;
    input.shape.batches = BATCHES;
    HOTBED_TRY(workload_run_create(
        &workloads[0], &input, HOTBED_INSERT_PLAIN, hotbed_stream_backend(me->stream), &run));
    hotbed_status status = time_single(&run, me->p->steps, &me->result->single);
    if (status == HOTBED_OK)
        status = digest(me, run.storage, &run.output, out);
    workload_run_destroy(&run);
    return status;
}

hotbed_status exchange_measure_scaling(const exchange_rank *me) {
    exchange_result *result = me->result;
    const workload_input *input = &me->p->input;
    uint64_t n = workload_keys_a_step(&input->shape);
    uint64_t first = (uint64_t)me->rank * BATCHES % (input->shape.batches - BATCHES + 1);
    exchange_batches batches = {
        .keys = input->keys + first * n,
        .count = BATCHES,
        .features = input->shape.tables,
        .samples = input->shape.samples,
        .gradients = input->gradient,
    };
    double uniques = 0;
    workload_digest want = {0}, got = {0};
    HOTBED_TRY(count_uniques(&input->shape, batches.keys, &result->step_uniques));
    uniques = (double)result->step_uniques;
    /* The largest of all ranks, because all messages have one size. */
    HOTBED_TRY(exchange_slowest(me, &uniques, 1));
    result->step_uniques = (uint64_t)uniques;
    result->step_keys = n;
    bool any = false;
    for (int plan = HOTBED_PLAN_FIXED; plan <= HOTBED_PLAN_ONE_SIDED; plan++) {
        if (!exchange_measures(me->p, plan))
            continue;
        HOTBED_TRY(measure_plan(me, (hotbed_plan)plan, &batches, &got));
        want = any ? want : got;
        any = true;
        HOTBED_TRY(exchange_compare(me, exchange_plans[plan], &want, &got));
    }
    if (me->size > 1)
        return HOTBED_OK;
    HOTBED_TRY(measure_single(me, &got));
    return exchange_is_narrow(me->p) ? HOTBED_OK : exchange_compare(me, "a storage", &want, &got);
}
