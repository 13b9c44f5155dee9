/* bench/workload_measure.c - run, check and record the passes of each workload. */
#include "bench/workload.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdlib.h>

static hotbed_status warm_up(workload_run *run) {
    for (uint32_t b = 0; b < run->input->shape.warm; b++)
        HOTBED_TRY(workload_step(run));
    return hotbed_stream_sync(run->stream);
}

static hotbed_status read_load(workload_run *run, workload_result *result) {
    uint64_t slots = 0;
    for (uint32_t t = 0; t < run->input->shape.tables; t++) {
        hotbed_table_info info = {.size = sizeof info};
        uint64_t n = 0;
        uint64_t pinned = 0;
        HOTBED_TRY(hotbed_storage_table(run->storage, t, &info));
        HOTBED_TRY(hotbed_storage_size(run->storage, t, &n, &pinned, run->stream));
        if (pinned != 0)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "table %u: %llu slots are pinned between steps", t,
                (unsigned long long)pinned);
        result->keys += n;
        result->upper_rows += workload_upper_rows(run->what, run->input, t);
        slots += workload_tiered(run->what) ? info.capacity : info.slots;
    }
    result->load = (double)result->keys / (double)slots;
    return HOTBED_OK;
}

static hotbed_status check_train(workload_oracle *oracle, workload_run *run) {
    return oracle ? workload_oracle_check(oracle, run) : HOTBED_OK;
}

enum { COUNTED_PASSES = 3 }; /* passes whose traffic is counted: eager, split, graph */

/* Rows and bytes over the link per step, from two readings of the statistics. */
static void count_traffic(
    const hotbed_table_stats *before, const hotbed_table_stats *after, uint32_t steps,
    workload_traffic *out) {
    out->fetches = (double)(after->fetches - before->fetches) / steps;
    out->in_place = (double)(after->in_place - before->in_place) / steps;
    out->write_backs = (double)(after->write_backs - before->write_backs) / steps;
    out->read_bytes = (double)(after->link_read_bytes - before->link_read_bytes) / steps;
    out->write_bytes = (double)(after->link_write_bytes - before->link_write_bytes) / steps;
}

/* Run the passes that only some workloads have. */
static hotbed_status time_more(
    workload_run *run, const workload_program *p, workload_oracle *oracle,
    workload_result *result) {
    double dense = (p->backend == HOTBED_BACKEND_CUDA ? 2e-3 : 20e-3) * p->scale;
    if (p->overlap) {
        HOTBED_TRY(
            workload_pass_overlap(run, result->steps, dense, &result->overlap, &result->host));
        HOTBED_TRY(check_train(oracle, run));
    }
    if (workload_tiered(run->what))
        HOTBED_TRY(workload_pass_prefetch(run, result->steps, &result->prefetch, &result->host));
    else
        HOTBED_TRY(workload_pass_stages(run, result->steps, &result->stages, &result->host));
    return check_train(oracle, run);
}

static hotbed_status time_training(
    workload_run *run, const workload_program *p, workload_oracle *oracle,
    workload_result *result) {
    const uint32_t steps = result->steps;
    hotbed_table_stats before = {.size = sizeof before};
    hotbed_table_stats after = {.size = sizeof after};
    HOTBED_TRY(workload_stats(run, &before));
    HOTBED_TRY(workload_pass_eager(run, steps, &result->eager, &result->least, &result->host));
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_pass_split(run, steps, &result->graph, &result->host));
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_pass_graph(run, steps, &result->graph, &result->host));
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_stats(run, &after));
    result->uniques = (after.uniques - before.uniques) / (COUNTED_PASSES * steps);
    count_traffic(&before, &after, COUNTED_PASSES * steps, &result->traffic);
    return time_more(run, p, oracle, result);
}

static hotbed_status time_eval(
    workload_run *run, const workload_program *p, workload_result *result) {
    uint32_t last =
        (uint32_t)(workload_eval_batch(run, result->steps, result->steps - 1) % run->input->shape.batches);
    workload_times unused;
    for (int pass = 0; pass < (workload_tiered(run->what) ? 2 : 3); pass++) {
        if (pass < 2)
            HOTBED_TRY(workload_pass_eval(
                run, result->steps, pass == 1, pass == 1 ? &result->graph : &result->eager,
                pass == 1 ? &unused : &result->least, &result->host));
        else
            HOTBED_TRY(
                workload_pass_eval_stages(run, result->steps, &result->stages, &result->host));
        if (p->check)
            HOTBED_TRY(workload_check_eval(run, last));
    }
    return HOTBED_OK;
}

static hotbed_status flush_between(
    workload_run *run, hotbed_event *const marks[2], double *seconds) {
    HOTBED_TRY(hotbed_event_record(marks[0], run->stream));
    HOTBED_TRY(hotbed_storage_flush(run->storage, run->stream));
    HOTBED_TRY(hotbed_event_record(marks[1], run->stream));
    HOTBED_TRY(hotbed_stream_sync(run->stream));
    return hotbed_event_seconds(marks[0], marks[1], seconds);
}

/* Flush all changed rows to the lower tier; reading them afterwards must give the same rows. */
static hotbed_status time_flush(
    workload_run *run, workload_oracle *oracle, workload_result *result) {
    hotbed_event *marks[2] = {NULL, NULL};
    hotbed_table_stats before = {.size = sizeof before};
    hotbed_table_stats after = {.size = sizeof after};
    if (!workload_tiered(run->what))
        return HOTBED_OK;
    HOTBED_TRY(workload_stats(run, &before));
    hotbed_status status = hotbed_event_create(run->stream, &marks[0]);
    if (status == HOTBED_OK)
        status = hotbed_event_create(run->stream, &marks[1]);
    if (status == HOTBED_OK)
        status = flush_between(run, marks, &result->flush);
    hotbed_event_destroy(marks[0]);
    hotbed_event_destroy(marks[1]);
    HOTBED_TRY(status);
    HOTBED_TRY(workload_stats(run, &after));
    result->flush_bytes = (double)(after.link_write_bytes - before.link_write_bytes);
    return oracle ? workload_oracle_check_rows(oracle, run) : HOTBED_OK;
}

static hotbed_status measure_with(
    workload_run *run, const workload_program *p, workload_oracle *oracle,
    workload_result *result) {
    HOTBED_TRY(warm_up(run));
    HOTBED_TRY(time_training(run, p, oracle, result));
    HOTBED_TRY(time_eval(run, p, result));
    HOTBED_TRY(time_flush(run, oracle, result));
    HOTBED_TRY(read_load(run, result));
    HOTBED_TRY(workload_measure_limits(run, &result->limits));
    workload_result_limits(result);
    result->checked = oracle ? workload_oracle_rows(oracle) : 0;
    if (result->host.waits != 0 || result->host.allocations != 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s: %llu host waits and %llu allocations in %llu steps",
            result->what->name, (unsigned long long)result->host.waits,
            (unsigned long long)result->host.allocations, (unsigned long long)result->host.steps);
    return HOTBED_OK;
}

static hotbed_status measure(
    const workload_input *input, workload_program *p, workload_result *result) {
    workload_run run;
    workload_oracle *oracle = NULL;
    double start = hotbed_monotonic_seconds();
    HOTBED_TRY(workload_run_create(result->what, input, result->insertion, p->backend, &run));
    result->made = hotbed_monotonic_seconds() - start;
    hotbed_status status = workload_machine_read(run.stream, &p->machine);
    if (status == HOTBED_OK && p->check)
        status = workload_oracle_create(result->what, input, run.stream, &oracle);
    if (status == HOTBED_OK)
        status = measure_with(&run, p, oracle, result);
    workload_oracle_destroy(oracle);
    workload_run_destroy(&run);
    result->took = hotbed_monotonic_seconds() - start;
    return status;
}

/* State of a run over several workloads. */
typedef struct session {
    workload_input input;
    workload_link link; /* bytes 0: not measured yet */
    workload_result results[2 * WORKLOADS];
    size_t count;
} session;

/* Count the rows that exact policies fetch, which depend neither on the optimizer nor on the
 * insertion policy. */
static hotbed_status count_fetches(const session *s, workload_result *result) {
    const workload *what = result->what;
    uint64_t capacities[WORKLOAD_TABLES];
    if (!workload_tiered(what))
        return HOTBED_OK;
    for (size_t i = 0; i < s->count; i++) {
        const workload *other = s->results[i].what;
        if (other->mode == what->mode && other->upper == what->upper &&
            other->stream == what->stream) {
            result->traffic.exact = s->results[i].traffic.exact;
            return HOTBED_OK;
        }
    }
    for (uint32_t t = 0; t < s->input.shape.tables; t++)
        capacities[t] = workload_upper_rows(what, &s->input, t);
    return workload_count_fetches(
        &s->input, capacities, COUNTED_PASSES * result->steps, &result->traffic.exact);
}

static hotbed_status measure_one(
    const workload *what, hotbed_insertion insertion, workload_program *p, session *s) {
    workload_result *result = &s->results[s->count];
    HOTBED_TRY(workload_input_for(what, p->scale, &s->input));
    if (workload_tiered(what) && s->link.bytes == 0) {
        HOTBED_TRY(workload_measure_link(p->backend, p->scale, &s->link));
        workload_print_link(stdout, &s->link);
    }
    *result = (workload_result){.what = what, .insertion = insertion, .shape = s->input.shape};
    result->scale = p->scale;
    result->steps = p->steps;
    if (what->stream == WORKLOAD_POWER_DRIFT && p->steps > WORKLOAD_DRIFT_STEPS)
        result->steps = WORKLOAD_DRIFT_STEPS;
    result->link = s->link;
    HOTBED_TRY(count_fetches(s, result));
    HOTBED_TRY(measure(&s->input, p, result));
    if (s->count == 0)
        printf(
            "%s, driver %s, commit %s\n", p->machine.device, p->machine.driver, p->machine.commit);
    workload_print(stdout, &p->machine, result);
    (void)fflush(stdout);
    s->count++;
    /* after each workload, so that an interrupted run keeps its results */
    return p->json ? workload_write_json(p->json, &p->machine, s->results, s->count) : HOTBED_OK;
}

hotbed_status workload_measure_all(workload_program *p) {
    session *s = calloc(1, sizeof *s);
    if (!s)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for results");
    hotbed_status first = HOTBED_OK;
    for (size_t w = 0; w < WORKLOADS; w++) {
        for (int i = HOTBED_INSERT_PLAIN; i <= HOTBED_INSERT_PROBATION; i++) {
            if (!workload_chosen(p, &workloads[w]) ||
                !workload_has_insertion(p, &workloads[w], (hotbed_insertion)i))
                continue;
            hotbed_status status = measure_one(&workloads[w], (hotbed_insertion)i, p, s);
            if (status != HOTBED_OK)
                (void)fprintf(stderr, "%s: %s\n", workloads[w].name, hotbed_last_error());
            if (first == HOTBED_OK)
                first = status;
        }
    }
    workload_input_destroy(&s->input);
    free(s);
    return first;
}
