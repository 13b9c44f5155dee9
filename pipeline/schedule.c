/* pipeline/schedule.c - predict the time of a plan with a model of streams, and find the division
 * of a serial plan into stages that is fastest in the model. */
#include "hotbed/profile.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "pipeline/program.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

enum {
    DEPTH_MOST = 6,
    /* lists of all edges of a plan: for each edge a name, up to 3 characters of a distance, and a
     * space or 0; for a step without edges a 0 */
    AFTER_BYTES =
        HOTBED_PIPELINE_EDGES_MOST * (HOTBED_PIPELINE_NAME_BYTES + 3) + HOTBED_PIPELINE_TASKS_MOST,
    RACES_MOST = 256,
    CANDIDATES_MOST = HOTBED_SCHEDULE_CANDIDATES_MOST /* hand-written plans included */
};

/* A plan, and the names that its steps point to. */
typedef struct candidate {
    uint32_t num_steps, stages;
    hotbed_step steps[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan_name tasks[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan_name streams[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan_name groups[HOTBED_PIPELINE_TASKS_MOST];
    char after[AFTER_BYTES]; /* the lists of all steps */
    double seconds;
} candidate;

struct hotbed_schedule {
    uint32_t num_candidates, taken;
    double serial_seconds;
    candidate *candidates[CANDIDATES_MOST]; /* sorted by seconds */
};

/* --- the model -------------------------------------------------------------------------------- */

enum { SIMULATED = 64 }; /* iterations simulated: the second half is the steady state */

typedef struct simulation {
    const hotbed_program *program;
    const double *costs;
    double end[SIMULATED][HOTBED_PIPELINE_TASKS_MOST];
    double over[SIMULATED]; /* the iteration's end, and the end of all before */
    double streams[HOTBED_PIPELINE_STREAMS_MOST];
} simulation;

static void simulate_step(simulation *m, uint32_t s, uint32_t iteration) {
    const hotbed_program_step *step = &m->program->steps[s];
    double start = m->streams[step->stream];
    if (step->root && iteration >= m->program->depth)
        start = fmax(start, m->over[iteration - m->program->depth]);
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &m->program->edges[step->first_edge + e];
        int64_t on = (int64_t)iteration - edge->distance;
        if (on >= 0 && on < SIMULATED)
            start = fmax(start, m->end[on][edge->on]);
    }
    double end = start + m->costs[s];
    m->end[iteration][s] = end;
    m->streams[step->stream] = end;
    m->over[iteration] = fmax(m->over[iteration], end);
}

/* Predict the seconds of an iteration in the steady state. */
static double simulate(const hotbed_program *program, const double *costs, simulation *m) {
    memset(m, 0, sizeof *m);
    m->program = program;
    m->costs = costs;
    for (uint32_t period = 0; period < SIMULATED + program->max_stage; period++)
        for (uint32_t n = 0; n < program->num_steps; n++) {
            uint32_t s = program->order[n], stage = program->steps[s].stage;
            if (period >= stage && period - stage < SIMULATED)
                simulate_step(m, s, period - stage);
        }
    return (m->over[SIMULATED - 1] - m->over[SIMULATED / 2 - 1]) / (0.5 * SIMULATED);
}

static hotbed_status check_costs(const hotbed_program *program, const double *costs) {
    for (uint32_t s = 0; s < program->num_steps; s++)
        if (!(costs[s] >= 0.0) || !isfinite(costs[s]))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "costs", costs[s], "cost %g of '%s' is not a time", costs[s],
                program->steps[s].name);
    return HOTBED_OK;
}

/* --- a candidate ------------------------------------------------------------------------------ */

typedef struct search {
    const hotbed_program *serial;
    const double *costs;
    hotbed_program *program; /* the cut being tried */
    simulation *m;
    uint32_t most; /* number of candidates to keep */
    hotbed_schedule *found;
    bool no_memory; /* the allocation of a candidate failed */
} search;

/* Add an edge to a step. */
static bool add_edge(hotbed_program *program, uint32_t s, hotbed_program_edge edge) {
    uint32_t at = program->steps[s].first_edge + program->steps[s].num_edges;
    if (program->num_edges == HOTBED_PIPELINE_EDGES_MOST || program->steps[s].num_edges == 64)
        return false;
    memmove(
        &program->edges[at + 1], &program->edges[at],
        (program->num_edges - at) * sizeof *program->edges);
    program->edges[at] = edge;
    program->num_edges++;
    program->steps[s].num_edges++;
    for (uint32_t other = 0; other < program->num_steps; other++)
        if (other != s && program->steps[other].first_edge >= at)
            program->steps[other].first_edge++;
    uint32_t length = (uint32_t)(edge.distance < 0 ? -edge.distance : edge.distance);
    if (length > program->max_distance)
        program->max_distance = length;
    return true;
}

static uint32_t place(const hotbed_program *program, uint32_t step) {
    uint32_t at = 0;
    while (program->order[at] != step)
        at++;
    return at;
}

/* Add edges between tasks that share a state, in the order in which they are enqueued. If two tasks
 * of one period may come in either order, the older iteration's comes first, or, with `younger`,
 * the younger one's. Returns false if no order is possible; *open is set if such pairs exist. */
static bool order_states(hotbed_program *program, bool younger, bool *open) {
    for (int n = 0; n < RACES_MOST; n++) {
        hotbed_program_race race;
        bool raced = false;
        if (hotbed_program_arrange(program, HOTBED_ORDER_OLDEST) != HOTBED_OK ||
            hotbed_program_check_order(program, &race, &raced) != HOTBED_OK)
            return false;
        if (!raced)
            return true;
        uint32_t period = program->steps[race.first].stage;
        uint32_t other = program->steps[race.second].stage + (uint32_t)race.distance;
        bool first = period < other;
        if (period == other) {
            first = place(program, race.first) < place(program, race.second);
            *open = *open || !race.in_order;
            if (younger && !race.in_order && race.distance > 0)
                first = false;
        }
        if (race.in_order && !first)
            return false;
        const hotbed_program_edge edge = {
            first ? race.first : race.second, first ? race.distance : -race.distance};
        if (!add_edge(program, first ? race.second : race.first, edge))
            return false;
    }
    return false;
}

/* Return the stage of a position in the serial order; `cuts` are the positions where stages
 * begin. */
static uint32_t stage_of(uint32_t at, const uint32_t *cuts, uint32_t num_cuts) {
    uint32_t stage = 0;
    while (stage < num_cuts && cuts[stage] <= at)
        stage++;
    return stage;
}

/* Write the list of a step's edges at offset `at` of the candidate's lists, and return the offset
 * after it. */
static size_t write_after(
    const hotbed_program *p, const hotbed_program_step *step, size_t at, candidate *to) {
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *edge = &p->edges[step->first_edge + e];
        char distance[16] = "";
        if (edge->distance != 0)
            (void)snprintf(distance, sizeof distance, "%+d", -edge->distance);
        at += (size_t)snprintf(
            to->after + at, AFTER_BYTES - at, "%s%s%s", e == 0 ? "" : " ", p->steps[edge->on].name,
            distance);
        assert(at < AFTER_BYTES);
    }
    to->after[at] = '\0';
    return at + 1;
}

/* Write the steps of the candidate, in the order of a period. */
static void write_steps(const hotbed_program *p, bool own_groups, candidate *to) {
    size_t after = 0;
    to->num_steps = p->num_steps;
    to->stages = p->max_stage + 1;
    for (uint32_t n = 0; n < p->num_steps; n++) {
        const hotbed_program_step *step = &p->steps[p->order[n]];
        memcpy(to->tasks[n], step->name, sizeof to->tasks[n]);
        memcpy(to->streams[n], p->stream_names[step->stream], sizeof to->streams[n]);
        memcpy(
            to->groups[n], own_groups ? p->groups[step->group] : p->stream_names[step->stream],
            sizeof to->groups[n]);
        to->steps[n] = (hotbed_step){
            .task = to->tasks[n],
            .stage = step->stage,
            .ordered = step->ordered,
            .stream = to->streams[n],
            .group = to->groups[n],
            .after = to->after + after};
        after = write_after(p, step, after, to);
    }
}

/* Insert a candidate by its time, after candidates that are equally fast, so that a tie goes to the
 * plan with fewer stages. */
static void insert(hotbed_schedule *found, candidate *c) {
    uint32_t at = found->num_candidates++;
    for (; at > 0 && c->seconds < found->candidates[at - 1]->seconds * (1.0 - 1e-9); at--)
        found->candidates[at] = found->candidates[at - 1];
    found->candidates[at] = c;
}

/* Return the position of the candidate that a better candidate replaces: the last one, or the
 * one before it if the last is the serial plan. If the list is not full, return num_candidates. */
static uint32_t find_last(const search *f) {
    uint32_t n = f->found->num_candidates;
    if (n < f->most)
        return n;
    return n > 1 && f->found->candidates[n - 1]->stages == 1 ? n - 2 : n - 1;
}

/* Return the position for a plan with these seconds and stages: the position of a candidate with
 * the same number of stages and the same time to within 0.1 %, otherwise find_last(). */
static uint32_t find_worse(const search *f, double seconds, uint32_t stages) {
    candidate *const *list = f->found->candidates;
    for (uint32_t at = 0; at < f->found->num_candidates; at++)
        if (list[at]->stages == stages && fabs(list[at]->seconds - seconds) <= 1e-3 * seconds)
            return at;
    return find_last(f);
}

static bool is_better(const search *f, double seconds, uint32_t than) {
    return than == f->found->num_candidates ||
           seconds < f->found->candidates[than]->seconds * (1.0 - 1e-9);
}

/* Remove a candidate from the list so that it can be overwritten, or create one. */
static candidate *make_place(search *f, uint32_t at) {
    hotbed_schedule *found = f->found;
    if (at == found->num_candidates) {
        candidate *made = hotbed_new(sizeof *made);
        f->no_memory = f->no_memory || made == NULL;
        return made;
    }
    candidate *worse = found->candidates[at];
    for (found->num_candidates--; at < found->num_candidates; at++)
        found->candidates[at] = found->candidates[at + 1];
    memset(worse, 0, sizeof *worse);
    return worse;
}

static void try_cuts(search *f, const uint32_t *cuts, uint32_t num_cuts, bool younger) {
    hotbed_program *p = f->program;
    bool open = false;
    *p = *f->serial;
    for (uint32_t at = 0; at < p->num_steps; at++) {
        hotbed_program_step *step = &p->steps[p->serial[at]];
        step->stage = stage_of(at, cuts, num_cuts);
        step->stream = step->stage == num_cuts ? p->num_streams - 1 : num_cuts - 1 - step->stage;
    }
    p->max_stage = num_cuts;
    p->depth = num_cuts + 1;
    if (hotbed_program_arrange(p, HOTBED_ORDER_OLDEST) != HOTBED_OK ||
        !is_better(
            f, simulate(p, f->costs, f->m),
            find_last(f))) /* adding order can only make it slower */
        return;
    p->depth++; /* train pipelines have one more buffer set; the model is of the least depth */
    bool ordered = order_states(p, younger, &open);
    p->depth--;
    if (!ordered || (younger && !open))
        return;
    double seconds = simulate(p, f->costs, f->m);
    uint32_t worse = find_worse(f, seconds, num_cuts + 1);
    candidate *c = is_better(f, seconds, worse) ? make_place(f, worse) : NULL;
    if (c == NULL)
        return;
    c->seconds = seconds;
    write_steps(p, false, c);
    insert(f->found, c);
}

/* Try all positions of cut number `cut` and of the later ones, up to position `limit`. */
static void try_all(search *f, uint32_t *cuts, uint32_t cut, uint32_t num_cuts, uint32_t limit) {
    if (cut == num_cuts) {
        try_cuts(f, cuts, num_cuts, false);
        try_cuts(f, cuts, num_cuts, true);
        return;
    }
    for (uint32_t at = cut == 0 ? 1 : cuts[cut - 1] + 1; at <= limit; at++) {
        cuts[cut] = at;
        try_all(f, cuts, cut + 1, num_cuts, limit);
    }
}

/* --- finding ---------------------------------------------------------------------------------- */

/* Find the last possible position of a cut: before the first task that must stay in the last
 * stage. */
static hotbed_status find_limit(const hotbed_program *serial, const char *last, uint32_t *limit) {
    const char *word;
    *limit = serial->num_steps - 1;
    for (size_t n = hotbed_next_word(&last, &word); n > 0; n = hotbed_next_word(&last, &word)) {
        uint32_t at = 0;
        const uint32_t step = hotbed_program_find_word(serial, word, n);
        if (step == HOTBED_STEP_NONE)
            return hotbed_fail_parameter(
                HOTBED_ERR_ARGUMENT, "last", "schedule: last: there is no task '%.*s'", (int)n,
                word);
        while (serial->serial[at] != step)
            at++;
        *limit = at < *limit ? at : *limit;
    }
    return HOTBED_OK;
}

static hotbed_status check_serial(hotbed_program *serial) {
    if (serial->max_stage > 0 || serial->max_distance > 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "schedule: the plan has stage %u and distance %u already",
            serial->max_stage, serial->max_distance);
    for (uint32_t s = 0; s < serial->num_steps; s++)
        serial->steps[s].stream = serial->num_streams - 1;
    return HOTBED_OK;
}

/* Evaluate the serial plan and the hand-written plans, which always stay in the list. */
static hotbed_status add_plan(search *f, const hotbed_program *p, bool own_groups) {
    double costs[HOTBED_PIPELINE_TASKS_MOST];
    bool same = p->num_steps == f->serial->num_steps;
    for (uint32_t s = 0; s < p->num_steps && same; s++) {
        uint32_t at = hotbed_program_find(f->serial, p->steps[s].name);
        same = at != HOTBED_STEP_NONE;
        costs[s] = same ? f->costs[at] : 0.0;
    }
    if (!same)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "schedule: plan %s has other tasks than the serial plan", p->name);
    candidate *c = hotbed_new(sizeof *c);
    HOTBED_TRY_MEMORY(c, "a candidate of a schedule");
    c->seconds = simulate(p, costs, f->m);
    write_steps(p, own_groups, c);
    insert(f->found, c);
    return HOTBED_OK;
}

/* Evaluate the caller's plans. */
static hotbed_status add_others(search *f, const hotbed_schedule_options *o) {
    const void *plan;
    for (uint32_t n = 0; n < o->num_also; n++) {
        HOTBED_TRY(hotbed_options_at(o->also, n, "other plan", &plan));
        HOTBED_TRY(hotbed_program_read(plan, f->program, NULL));
        HOTBED_TRY(add_plan(f, f->program, true));
    }
    return HOTBED_OK;
}

static hotbed_status find(
    const hotbed_pipeline_plan *plan, const hotbed_schedule_options *o, search *f,
    hotbed_program *serial) {
    uint32_t cuts[DEPTH_MOST], limit = 0;
    HOTBED_TRY(hotbed_program_read(plan, serial, NULL));
    HOTBED_TRY(check_costs(serial, o->costs));
    HOTBED_TRY(check_serial(serial));
    HOTBED_TRY(find_limit(serial, o->last, &limit));
    HOTBED_TRY(hotbed_program_arrange(serial, HOTBED_ORDER_OLDEST));
    f->serial = serial;
    f->costs = o->costs;
    f->most = o->candidates;
    HOTBED_TRY(add_plan(f, serial, false));
    f->found->serial_seconds = f->found->candidates[0]->seconds;
    for (uint32_t n = 1; n < o->max_depth && n < serial->num_streams; n++)
        try_all(f, cuts, 0, n, limit);
    if (f->no_memory)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a candidate of a schedule");
    return add_others(f, o);
}

static hotbed_status read_options(
    const hotbed_schedule_options *from, hotbed_schedule_options *to) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(to, hotbed_schedule_options, last, from));
    to->max_depth = to->max_depth == 0 ? 3 : to->max_depth;
    to->candidates = to->candidates == 0 ? 1 : to->candidates;
    HOTBED_TRY(hotbed_check_pointer("costs", to->costs));
    HOTBED_TRY(hotbed_check_range("max_depth", to->max_depth, 0, DEPTH_MOST));
    HOTBED_TRY(hotbed_check_array("also", to->also, to->num_also));
    if ((uint64_t)to->candidates + to->num_also > CANDIDATES_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "candidates", to->candidates, CANDIDATES_MOST,
            "schedule: %u candidates and %u other plans, at most %d together", to->candidates,
            to->num_also, CANDIDATES_MOST);
    return HOTBED_OK;
}

hotbed_status hotbed_schedule_find(
    const hotbed_pipeline_plan *serial, const hotbed_schedule_options *options,
    hotbed_schedule **out) {
    hotbed_schedule_options o;
    search f = {0};
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(read_options(options, &o));
    hotbed_program *read = hotbed_new(sizeof *read);
    f.found = hotbed_new(sizeof *f.found);
    f.program = hotbed_new(sizeof *f.program);
    f.m = hotbed_new(sizeof *f.m);
    hotbed_status status = HOTBED_OK;
    if (read == NULL || f.found == NULL || f.program == NULL || f.m == NULL)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory to find a schedule");
    else
        status = find(serial, &o, &f, read);
    hotbed_delete(f.m);
    hotbed_delete(f.program);
    hotbed_delete(read);
    if (status == HOTBED_OK)
        *out = f.found;
    else
        hotbed_schedule_destroy(f.found);
    return status;
}

void hotbed_schedule_destroy(hotbed_schedule *schedule) {
    for (uint32_t n = 0; schedule != NULL && n < schedule->num_candidates; n++)
        hotbed_delete(schedule->candidates[n]);
    hotbed_delete(schedule);
}

uint32_t hotbed_schedule_candidates(const hotbed_schedule *schedule) {
    return schedule == NULL ? 0 : schedule->num_candidates;
}

uint32_t hotbed_schedule_taken(const hotbed_schedule *schedule) {
    return schedule == NULL ? 0 : schedule->taken;
}

hotbed_status hotbed_schedule_take(hotbed_schedule *schedule, uint32_t number) {
    if (schedule == NULL || number >= schedule->num_candidates)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "number", number, "schedule is NULL, or has no candidate %u",
            number);
    schedule->taken = number;
    return HOTBED_OK;
}

const hotbed_step *hotbed_schedule_steps(const hotbed_schedule *schedule, uint32_t *num_steps) {
    const candidate *c = schedule == NULL ? NULL : schedule->candidates[schedule->taken];
    if (num_steps != NULL)
        *num_steps = c == NULL ? 0 : c->num_steps;
    return c == NULL ? NULL : c->steps;
}

double hotbed_schedule_seconds(const hotbed_schedule *schedule) {
    return schedule == NULL ? 0 : schedule->candidates[schedule->taken]->seconds;
}

double hotbed_schedule_serial_seconds(const hotbed_schedule *schedule) {
    return schedule == NULL ? 0 : schedule->serial_seconds;
}
