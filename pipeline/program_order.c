/* pipeline/program_order.c - the order in which a plan runs its tasks, and whether it is
 * sufficient.
 *
 * Period P runs step s for iteration P - stage(s). The edge "s of iteration i after d of iteration
 * i - N" can be kept if d runs in no later period, stage(d) - N <= stage(s), and if the steps of
 * one period can be sorted so that every s comes after the d with stage(d) - N = stage(s). Queues
 * that are filled in this order, period by period, cannot deadlock: all that the first unfinished
 * task waits for is done, and it is at the head of its queue. */
#include "pipeline/program.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"

#include <stdio.h>

static bool same_period(
    const hotbed_program *program, uint32_t s, const hotbed_program_edge *edge) {
    return (int64_t)program->steps[edge->on].stage - edge->distance ==
           (int64_t)program->steps[s].stage;
}

typedef bool (*edge_filter)(
    const hotbed_program *program, uint32_t s, const hotbed_program_edge *edge);

static bool same_iteration(
    const hotbed_program *program, uint32_t s, const hotbed_program_edge *edge) {
    return edge->distance == 0;
}

/* Whether all steps that s comes after, by the edges that `counts` selects, are in `done`. */
static bool ready(const hotbed_program *program, uint32_t s, uint64_t done, edge_filter counts) {
    const hotbed_program_step *step = &program->steps[s];
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &program->edges[step->first_edge + e];
        if (counts(program, s, edge) && (done >> edge->on & 1) == 0)
            return false;
    }
    return true;
}

/* Sort the steps by the edges that `counts` selects. Ties are ordered by stage (the highest first
 * if `oldest`), then as listed. Returns the number of sorted steps: fewer than all if there is a
 * cycle. */
static uint32_t sort_steps(
    const hotbed_program *program, edge_filter counts, bool oldest, uint32_t *order,
    uint64_t *done) {
    *done = 0;
    for (uint32_t n = 0; n < program->num_steps; n++) {
        uint32_t best = HOTBED_STEP_NONE;
        for (uint32_t s = 0; s < program->num_steps; s++) {
            if ((*done >> s & 1) != 0 || !ready(program, s, *done, counts))
                continue;
            if (best == HOTBED_STEP_NONE ||
                (oldest && program->steps[s].stage > program->steps[best].stage))
                best = s;
        }
        if (best == HOTBED_STEP_NONE)
            return n;
        order[n] = best;
        *done |= (uint64_t)1 << best;
    }
    return program->num_steps;
}

/* Return a step, not in `done`, that step s comes after. There is one, or s could be sorted. */
static uint32_t behind(
    const hotbed_program *program, uint32_t s, uint64_t done, edge_filter counts) {
    const hotbed_program_edge *edge = &program->edges[program->steps[s].first_edge];
    while (!counts(program, s, edge) || (done >> edge->on & 1) != 0)
        edge++;
    return edge->on;
}

/* Fail with the names of a cycle among the steps that are not `done`. */
static hotbed_status fail_cycle(const hotbed_program *program, edge_filter counts, uint64_t done) {
    uint32_t start = 0;
    while ((done >> start & 1) != 0)
        start++;
    for (uint32_t n = 0; n < program->num_steps; n++) /* after this many, `start` is in a cycle */
        start = behind(program, start, done, counts);
    bool stages = counts != same_iteration;
    char names[sizeof program->report->text];
    hotbed_writer w = {names, sizeof names, 0};
    uint32_t at = start;
    do {
        hotbed_write(&w, "%s'%s'", w.length == 0 ? "" : ", ", program->steps[at].name);
        stages = stages || program->steps[at].stage != program->steps[start].stage;
        at = behind(program, at, done, counts);
    } while (at != start);
    return hotbed_plan_fail(
        program, stages ? HOTBED_PIPELINE_STAGE_CYCLE : HOTBED_PIPELINE_CYCLE,
        "tasks come after each other in a cycle, each after the next and the last after the first: "
        "%s",
        names);
}

hotbed_status hotbed_program_arrange(hotbed_program *program, hotbed_pipeline_plan_order order) {
    uint64_t done = 0;
    if (sort_steps(program, same_iteration, false, program->serial, &done) < program->num_steps)
        return fail_cycle(program, same_iteration, done);
    for (uint32_t s = 0; s < program->num_steps; s++) {
        const hotbed_program_step *step = &program->steps[s];
        for (uint32_t e = 0; e < step->num_edges; e++) {
            const hotbed_program_edge *edge = &program->edges[step->first_edge + e];
            const hotbed_program_step *on = &program->steps[edge->on];
            if ((int64_t)on->stage - edge->distance > (int64_t)step->stage)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_LATER_STAGE,
                    "'%s' (stage %u) comes after '%s' (stage %u) of iteration i%+d, which runs "
                    "%lld "
                    "periods later",
                    step->name, step->stage, on->name, on->stage, -edge->distance,
                    (long long)on->stage - edge->distance - (long long)step->stage);
        }
    }
    if (sort_steps(program, same_period, order == HOTBED_ORDER_OLDEST, program->order, &done) <
        program->num_steps)
        return fail_cycle(program, same_period, done);
    return HOTBED_OK;
}

/* --- what is ordered -------------------------------------------------------------------------------
 *
 * A table of all pairs (step, iteration) of one run.  Each pair has one bit for every other pair that
 * has certainly completed on the device before the pair starts.  The order follows from edges, from
 * a common stream, and from buffer sets: iteration i + depth starts after all of iteration i.
 *
 * A loader may have any number of batches.  Further iterations before or after only add order: in a
 * shorter run some edges lead to no iteration.  So what is ordered in a run that begins with the
 * one step's iteration and ends with the other's is ordered in every run, and such a run exists.
 * Steps that are `depth` or more iterations apart are ordered by buffer sets.  So the runs of 1 to
 * `depth` iterations are checked, each for pairs of a step of the first iteration and one of the last.
 */

typedef struct order_table {
    const hotbed_program *program;
    uint32_t iterations;
    uint64_t *before; /* [iterations][steps][iterations] masks of steps */
} order_table;

static uint64_t *row(const order_table *table, uint32_t step, uint32_t iteration) {
    size_t at = (size_t)iteration * table->program->num_steps + step;
    return table->before + at * table->iterations;
}

static bool is_before(
    const order_table *table, uint32_t a, uint32_t a_iteration, uint32_t b, uint32_t b_iteration) {
    return (row(table, b, b_iteration)[a_iteration] >> a & 1) != 0;
}

/* Record that (on, on_iteration), and everything before it, comes before (step, iteration). */
static void put_before(const order_table *table, uint32_t on, uint32_t on_iteration, uint64_t *to) {
    const uint64_t *from = row(table, on, on_iteration);
    for (uint32_t i = 0; i < table->iterations; i++)
        to[i] |= from[i];
    to[on_iteration] |= (uint64_t)1 << on;
}

static void fill_row(const order_table *table, uint32_t s, uint32_t iteration, uint32_t *latest) {
    const hotbed_program *program = table->program;
    const hotbed_program_step *step = &program->steps[s];
    uint64_t *to = row(table, s, iteration);
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &program->edges[step->first_edge + e];
        int64_t on = (int64_t)iteration - edge->distance;
        if (on >= 0 && on < (int64_t)table->iterations)
            put_before(table, edge->on, (uint32_t)on, to);
    }
    if (latest[step->stream] != UINT32_MAX)
        put_before(
            table, latest[step->stream] % program->num_steps,
            latest[step->stream] / program->num_steps, to);
    latest[step->stream] = iteration * program->num_steps + s;
    for (uint32_t old = 0; step->root && old + program->depth <= iteration; old++)
        for (uint32_t other = 0; other < program->num_steps; other++)
            put_before(table, other, old, to);
}

static void fill_table(const order_table *table) {
    const hotbed_program *program = table->program;
    uint32_t latest[HOTBED_PIPELINE_STREAMS_MOST];
    memset(latest, 0xFF, sizeof latest);
    for (uint32_t period = 0; period < table->iterations + program->max_stage; period++) {
        for (uint32_t n = 0; n < program->num_steps; n++) {
            uint32_t s = program->order[n], stage = program->steps[s].stage;
            if (period >= stage && period - stage < table->iterations)
                fill_row(table, s, period - stage, latest);
        }
    }
}

static hotbed_status check_values(const order_table *table) {
    const hotbed_program *program = table->program;
    for (uint32_t v = 0; v < program->num_values; v++) {
        uint32_t writer = HOTBED_STEP_NONE;
        for (uint32_t s = 0; s < program->num_steps; s++) {
            if ((program->steps[s].writes >> v & 1) == 0)
                continue;
            if (writer != HOTBED_STEP_NONE)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_WRITERS, "value '%s' is written by '%s' and '%s'",
                    program->values[v].name, program->steps[writer].name, program->steps[s].name);
            writer = s;
        }
        for (uint32_t s = 0; s < program->num_steps; s++) {
            if ((program->steps[s].reads >> v & 1) == 0)
                continue;
            if (writer == HOTBED_STEP_NONE)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_UNWRITTEN,
                    "value '%s' is read by '%s' and written by none", program->values[v].name,
                    program->steps[s].name);
            if (!is_before(table, writer, 0, s, 0))
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_VALUE_ORDER,
                    "'%s' reads '%s' and does not come after its writer '%s' if there is only one "
                    "batch",
                    program->steps[s].name, program->values[v].name, program->steps[writer].name);
        }
    }
    return HOTBED_OK;
}

/* Check two tasks of a gradient: writers may come in any order, each reader comes after all
 * writers. */
static hotbed_status check_grad_pair(const order_table *table, uint32_t v, uint32_t a, uint32_t b) {
    const hotbed_program *program = table->program;
    const hotbed_program_step *first = &program->steps[a], *second = &program->steps[b];
    bool both_write = (first->writes_grad & second->writes_grad) >> v & 1;
    bool reads = (first->writes_grad & second->reads_grad) >> v & 1;
    if (both_write && !is_before(table, a, 0, b, 0) && !is_before(table, b, 0, a, 0))
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_WRITERS,
            "'%s' and '%s' add to the gradient of '%s' in no order if there is only one batch",
            first->name, second->name, program->values[v].name);
    if (reads && !is_before(table, a, 0, b, 0))
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_VALUE_ORDER,
            "'%s' reads the gradient of '%s' and does not come after '%s', which adds to it, if "
            "there is only one batch",
            second->name, program->values[v].name, first->name);
    return HOTBED_OK;
}

static hotbed_status check_grads(const order_table *table) {
    const hotbed_program *program = table->program;
    for (uint32_t v = 0; v < program->num_values; v++) {
        uint64_t readers = 0, writers = 0;
        for (uint32_t s = 0; s < program->num_steps; s++) {
            readers |= (program->steps[s].reads_grad >> v & 1) << s;
            writers |= (program->steps[s].writes_grad >> v & 1) << s;
        }
        if (readers != 0 && writers == 0)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNWRITTEN,
                "the gradient of '%s' is read and nobody adds to it", program->values[v].name);
        for (uint32_t a = 0; a < program->num_steps; a++)
            for (uint32_t b = 0; b < program->num_steps; b++)
                if (a != b)
                    HOTBED_TRY(check_grad_pair(table, v, a, b));
    }
    return HOTBED_OK;
}

/* Whether step a of the first iteration and step b of the last one race for a state that both use.
 * *state is its number. */
static bool races(
    const order_table *table, const uint32_t *serial, uint32_t a, uint32_t b,
    hotbed_program_race *race, uint32_t *state) {
    const hotbed_program_step *first = &table->program->steps[a];
    const hotbed_program_step *second = &table->program->steps[b];
    uint32_t distance = table->iterations - 1;
    uint64_t shared = first->states & second->states;
    uint64_t in_order = first->in_order & second->in_order;
    if (shared == 0 || (a == b && distance == 0) || is_before(table, a, 0, b, distance))
        return false;
    if (distance == 0 && serial[a] > serial[b])
        in_order = 0; /* b comes first */
    if (is_before(table, b, distance, a, 0))
        shared = in_order;
    if (shared == 0)
        return false;
    *race = (hotbed_program_race){a, b, (int32_t)distance, in_order != 0};
    if (in_order != 0)
        shared = in_order;
    for (*state = 0; (shared >> *state & 1) == 0;)
        ++*state;
    return true;
}

static bool find_race(const order_table *table, hotbed_program_race *race, uint32_t *state) {
    const hotbed_program *program = table->program;
    uint32_t serial[HOTBED_PIPELINE_TASKS_MOST];
    for (uint32_t n = 0; n < program->num_steps; n++)
        serial[program->serial[n]] = n;
    for (uint32_t a = 0; a < program->num_steps; a++)
        for (uint32_t b = 0; b < program->num_steps; b++)
            if (races(table, serial, a, b, race, state))
                return true;
    return false;
}

hotbed_status hotbed_program_check_order(
    const hotbed_program *program, hotbed_program_race *race, bool *raced) {
    order_table table = {.program = program};
    size_t bytes =
        (size_t)program->depth * program->num_steps * program->depth * sizeof *table.before;
    table.before = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(table.before, "a check of the order of a plan");
    hotbed_status status = HOTBED_OK;
    hotbed_program_race found = {0, 0, 0, false};
    uint32_t state = 0;
    bool any = false;
    while (status == HOTBED_OK && !any && table.iterations < program->depth) {
        table.iterations++;
        memset(table.before, 0, bytes);
        fill_table(&table);
        if (table.iterations == 1)
            status = check_values(&table);
        if (table.iterations == 1 && status == HOTBED_OK)
            status = check_grads(&table);
        any = status == HOTBED_OK && find_race(&table, &found, &state);
    }
    hotbed_delete(table.before);
    if (race != NULL) {
        *race = found;
        *raced = any;
        return status;
    }
    if (any)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_STATE_ORDER,
            found.in_order
                ? "'%s' of iteration i and '%s' of iteration i+%d both use '%s', and are not "
                  "in the order of a serial run if there is no other iteration"
                : "'%s' of iteration i and '%s' of iteration i+%d both change '%s', and "
                  "neither comes after the other if there is no other iteration",
            program->steps[found.first].name, program->steps[found.second].name, found.distance,
            program->states[state]);
    return status;
}
