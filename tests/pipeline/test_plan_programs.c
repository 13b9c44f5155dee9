/* tests/pipeline/test_plan_programs.c - random plans: the check of plans against an interpreter.
 *
 * The interpreter runs a plan as pipeline.h describes it, for loaders of 1, 2, 3 and more batches:
 * threads submit tasks, streams execute them. It runs a plan once for each task of each iteration,
 * and delays that task on the device until nothing else can continue. So it sees, for each pair of
 * tasks, whether the second can run before the first, under every legal order. Values hold the
 * number of the iteration that wrote them.
 *
 *   HOTBED_TEST_SECONDS=N    check plans for N seconds
 *   HOTBED_TEST_PROGRAM=N    check plan N only, and print it
 *
 * A plan that the check accepts must read right values, and its tasks must share states in the
 * order that they ask for. If the check refuses a plan because of its order, a run must show it.
 * If it refuses a plan because of a cycle, some run must stop. Other reasons are rules. */
#include "base/clock.h"
#include "hotbed/pipeline.h"
#include "tests/support/harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS_MOST = 7,
    STREAMS = 4,
    GROUPS = 3,
    DEPTH_MOST = 4,
    VALUES = 3,
    STATES = 2,
    EDGES_MOST = 3, /* of a step */
    BATCHES_MOST = 2 * DEPTH_MOST + 2,
    OPS_MOST = STEPS_MOST * BATCHES_MOST,
    PLANS = 3000,
    NONE = 255,
};

/* --- plans ------------------------------------------------------------------------------------ */

typedef struct edge {
    uint32_t on;
    int distance; /* the step of iteration i comes after `on` of iteration i - distance */
} edge;

/* A step with its task. Masks have a bit for each value or state. */
typedef struct step {
    uint32_t stage, stream;
    bool ordered;
    edge edges[EDGES_MOST];
    uint32_t num_edges;
    uint32_t reads, writes, reads_grad, writes_grad, states, serial;
} step;

typedef struct random_plan {
    uint32_t num_steps, depth;
    bool oldest;
    uint32_t group[STREAMS];
    step steps[STEPS_MOST];
    uint32_t order[STEPS_MOST];  /* steps of a period */
    uint32_t serial[STEPS_MOST]; /* place of each step in the serial order */
    bool cyclic;                 /* no order of a period exists: `order` is as listed */
} random_plan;

static uint64_t state;

static uint32_t below(uint32_t bound) {
    return (uint32_t)(hotbed_test_random_r(&state) % bound);
}

static bool one_in(uint32_t n) {
    return below(n) == 0;
}

/* A random edge of step s, most of the time one that the stages allow. */
static void add_edge(random_plan *p, uint32_t s) {
    step *to = &p->steps[s];
    edge e = {.on = below(p->num_steps)};
    int lowest = (int)p->steps[e.on].stage - (int)to->stage; /* stage(on) - distance <= stage(s) */
    if (lowest <= 0 && !one_in(4))
        e.distance = 0;
    else
        e.distance = lowest + (int)below(3) - (one_in(8) ? 1 : 0);
    if (e.distance < -DEPTH_MOST || e.distance > DEPTH_MOST || (e.on == s && e.distance <= 0))
        return;
    if (e.distance == 0 && e.on > s && !one_in(20))
        return; /* mostly no cycles */
    to->edges[to->num_edges++] = e;
}

static void add_values(random_plan *p) {
    for (uint32_t v = 0; v < VALUES; v++) {
        uint32_t writer = below(p->num_steps);
        if (one_in(3))
            continue;
        p->steps[writer].writes |= 1U << v;
        for (uint32_t s = 0; s < p->num_steps; s++) {
            if (s == writer || p->steps[s].stage < p->steps[writer].stage)
                continue;
            if (one_in(3))
                p->steps[s].reads |= 1U << v;
            else if (one_in(6))
                p->steps[s].writes_grad |= 1U << v;
        }
        for (uint32_t s = 0; s < p->num_steps; s++)
            if ((p->steps[s].writes_grad >> v & 1) == 0 && one_in(10))
                p->steps[s].reads_grad |= 1U << v;
    }
}

static void make_plan(random_plan *p, uint64_t seed) {
    memset(p, 0, sizeof *p);
    state = seed * 0x9E3779B97F4A7C15U + 1;
    (void)hotbed_test_random_r(&state);
    p->num_steps = 2 + below(STEPS_MOST - 1);
    p->oldest = one_in(2);
    uint32_t stages = 1 + below(3), streams = 1 + below(STREAMS), highest = 0;
    for (uint32_t n = 0; n < STREAMS; n++)
        p->group[n] = below(GROUPS);
    for (uint32_t s = 0; s < p->num_steps; s++) {
        step *to = &p->steps[s];
        to->stage = one_in(3) ? below(stages) : s * stages / p->num_steps;
        highest = to->stage > highest ? to->stage : highest;
        to->stream = below(streams);
        to->ordered = one_in(4);
    }
    p->steps[0].stage = 0;
    p->depth = highest + 1 + (one_in(3) && highest + 1 < DEPTH_MOST ? 1 : 0);
    for (uint32_t s = 0; s < p->num_steps; s++)
        for (uint32_t n = below(EDGES_MOST + 1); n > 0; n--)
            add_edge(p, s);
    add_values(p);
    for (uint32_t n = 0; n < STATES; n++)
        for (uint32_t s = 0; s < p->num_steps && one_in(2); s++)
            if (one_in(3))
                *(one_in(2) ? &p->steps[s].states : &p->steps[s].serial) |= 1U << n;
}

/* Sort the steps as pipeline.h says: by the edges of one period, or with `serial` of one iteration;
 * then the highest stage first, with `oldest`; then as listed. Returns whether there is an order. */
static bool sort_steps(const random_plan *p, bool serial, bool oldest, uint32_t *order) {
    uint32_t done = 0;
    for (uint32_t n = 0; n < p->num_steps; n++) {
        uint32_t best = NONE;
        for (uint32_t s = 0; s < p->num_steps; s++) {
            const step *at = &p->steps[s];
            bool ready = (done >> s & 1) == 0;
            for (uint32_t e = 0; e < at->num_edges; e++) {
                int later = (int)p->steps[at->edges[e].on].stage - at->edges[e].distance;
                bool counts = serial ? at->edges[e].distance == 0 : later == (int)at->stage;
                ready = ready && (!counts || (done >> at->edges[e].on & 1) != 0);
            }
            if (ready && (best == NONE || (oldest && at->stage > p->steps[best].stage)))
                best = s;
        }
        if (best == NONE)
            return false;
        order[n] = best;
        done |= 1U << best;
    }
    return true;
}

static void sort_plan(random_plan *p) {
    uint32_t serial[STEPS_MOST];
    p->cyclic = !sort_steps(p, true, false, serial) || !sort_steps(p, false, p->oldest, p->order);
    for (uint32_t n = 0; n < p->num_steps; n++) {
        if (p->cyclic)
            p->order[n] = n;
        else
            p->serial[serial[n]] = n;
    }
}

static void list(char *to, uint32_t mask, const char *prefix, const char *suffix) {
    for (uint32_t n = 0; mask >> n != 0; n++)
        if ((mask >> n & 1) != 0)
            (void)sprintf(to + strlen(to), "%s%s%u%s", *to == 0 ? "" : " ", prefix, n, suffix);
}

/* The plan as the library reads it. */
typedef struct plan_text {
    hotbed_pipeline_plan plan;
    hotbed_task tasks[STEPS_MOST];
    hotbed_step steps[STEPS_MOST];
    hotbed_value_options values[VALUES];
    hotbed_pipeline_plan_stream streams[STREAMS];
    char name[STEPS_MOST][8], after[STEPS_MOST][64], reads[STEPS_MOST][64], writes[STEPS_MOST][64];
    char states[STEPS_MOST][16], serial[STEPS_MOST][16];
} plan_text;

static void write_plan(const random_plan *p, hotbed_stream *const *streams, plan_text *to) {
    static const char *const value_names[] = {"v0", "v1", "v2"};
    static const char *const stream_names[] = {"a", "b", "c", "d"};
    static const char *const group_names[] = {"x", "y", "z"};
    memset(to, 0, sizeof *to);
    to->plan = (hotbed_pipeline_plan){.size = sizeof to->plan};
    for (uint32_t s = 0; s < p->num_steps; s++) {
        const step *from = &p->steps[s];
        (void)sprintf(to->name[s], "t%u", s);
        for (uint32_t e = 0; e < from->num_edges; e++) {
            char *at = to->after[s] + strlen(to->after[s]);
            const edge *on = &from->edges[e];
            if (on->distance == 0)
                (void)sprintf(at, "t%u ", on->on);
            else
                (void)sprintf(at, "t%u%+d ", on->on, -on->distance);
        }
        list(to->reads[s], from->reads, "v", ""),
            list(to->reads[s], from->reads_grad, "v", ".grad");
        list(to->writes[s], from->writes, "v", "");
        list(to->writes[s], from->writes_grad, "v", ".grad");
        list(to->states[s], from->states, "s", ""), list(to->serial[s], from->serial, "s", "");
        to->tasks[s] = (hotbed_task){
            .name = to->name[s],
            .reads = to->reads[s],
            .writes = to->writes[s],
            .states = to->states[s],
            .serial = to->serial[s]};
        to->steps[s] = (hotbed_step){
            .task = to->name[s],
            .stage = from->stage,
            .ordered = from->ordered,
            .stream = stream_names[from->stream],
            .group = group_names[p->group[from->stream]],
            .after = to->after[s]};
    }
    for (uint32_t v = 0; v < VALUES; v++)
        to->values[v] = (hotbed_value_options){value_names[v], 8, true};
    for (uint32_t n = 0; n < STREAMS; n++)
        to->streams[n] = (hotbed_pipeline_plan_stream){stream_names[n], streams[n]};
    to->plan.depth = p->depth;
    to->plan.order = p->oldest ? HOTBED_ORDER_OLDEST : HOTBED_ORDER_LISTED;
    to->plan.num_tasks = to->plan.num_steps = p->num_steps;
    to->plan.num_values = VALUES, to->plan.num_streams = STREAMS;
    to->plan.tasks = to->tasks, to->plan.steps = to->steps;
    to->plan.values = to->values, to->plan.streams = to->streams;
}

static void print_plan(const plan_text *t) {
    printf(
        "depth %u, %s\n", t->plan.depth,
        t->plan.order == HOTBED_ORDER_OLDEST ? "oldest" : "listed");
    for (uint32_t s = 0; s < t->plan.num_steps; s++)
        printf(
            "%s: stage %u%s, stream %s, group %s, after '%s', reads '%s', writes '%s', states "
            "'%s', serial '%s'\n",
            t->name[s], t->steps[s].stage, t->steps[s].ordered ? " ordered" : "",
            t->steps[s].stream, t->steps[s].group, t->after[s], t->reads[s], t->writes[s],
            t->states[s], t->serial[s]);
}

/* --- the interpreter ---------------------------------------------------------------------------
 *
 * An op is a step of an iteration, number iteration * num_steps + step. */

typedef struct queue {
    uint32_t ops[OPS_MOST], head, count;
} queue;

typedef struct machine {
    const random_plan *p;
    uint32_t batches, delayed; /* delayed: op */
    /* the threads */
    queue groups[GROUPS];
    uint32_t edges[OPS_MOST]; /* bits: the edge leads to an iteration */
    uint32_t tickets[OPS_MOST], given, turn;
    bool submitted[OPS_MOST];
    bool zeroes[OPS_MOST][VALUES]; /* the op sets the gradient to zero first */
    uint32_t zeroed[BATCHES_MOST]; /* gradients with such an op */
    /* the caller */
    uint32_t period, pulled, retired;
    /* the device */
    queue streams[STREAMS];
    bool done[OPS_MOST];
    uint32_t joined; /* iterations whose last use has passed on the caller's stream */
    /* the memory: iteration + 1 that wrote */
    uint32_t values[VALUES][DEPTH_MOST], grads[VALUES][DEPTH_MOST], adders[VALUES][DEPTH_MOST];
    bool wrong; /* an op read a value that was not its iteration's */
} machine;

static void push(queue *q, uint32_t op) {
    q->ops[q->count++] = op;
}

static void enqueue_period(machine *m) {
    const random_plan *p = m->p;
    if (m->pulled < m->batches && m->period == m->pulled)
        m->pulled++;
    for (uint32_t n = 0; n < p->num_steps; n++) {
        const uint32_t s = p->order[n];
        const step *at = &p->steps[s];
        if (m->period < at->stage || m->period - at->stage >= m->pulled)
            continue;
        const uint32_t iteration = m->period - at->stage, op = iteration * p->num_steps + s;
        for (uint32_t e = 0; e < at->num_edges; e++) {
            int on = (int)iteration - at->edges[e].distance;
            if (on >= 0 && on < (int)m->pulled)
                m->edges[op] |= 1U << e;
        }
        m->tickets[op] = at->ordered ? ++m->given : 0;
        push(&m->groups[p->group[at->stream]], op);
    }
    m->period++;
}

/* Whether all ops that op comes after by edges are marked. */
static bool edges_are(const machine *m, uint32_t op, const bool *marks) {
    const step *at = &m->p->steps[op % m->p->num_steps];
    for (uint32_t e = 0; e < at->num_edges; e++) {
        int on = (int)(op / m->p->num_steps) - at->edges[e].distance;
        if ((m->edges[op] >> e & 1) != 0 &&
            !marks[(uint32_t)on * m->p->num_steps + at->edges[e].on])
            return false;
    }
    return true;
}

static bool is_root(const random_plan *p, uint32_t s) {
    for (uint32_t e = 0; e < p->steps[s].num_edges; e++)
        if (p->steps[s].edges[e].distance == 0)
            return false;
    return true;
}

/* A thread submits its next op. */
static bool submit(machine *m, queue *group) {
    if (group->head == group->count)
        return false;
    const uint32_t op = group->ops[group->head], iteration = op / m->p->num_steps;
    const uint32_t s = op % m->p->num_steps;
    if (!edges_are(m, op, m->submitted) || (m->tickets[op] != 0 && m->tickets[op] != m->turn + 1))
        return false;
    if (is_root(m->p, s) && iteration >= m->p->depth && m->joined <= iteration - m->p->depth)
        return false; /* the buffer set is still in use */
    group->head++;
    m->submitted[op] = true;
    m->turn += m->tickets[op] != 0;
    for (uint32_t v = 0; v < VALUES; v++) {
        m->zeroes[op][v] = (m->p->steps[s].writes_grad & ~m->zeroed[iteration]) >> v & 1;
        m->zeroed[iteration] |= m->p->steps[s].writes_grad & 1U << v;
    }
    push(&m->streams[m->p->steps[s].stream], op);
    return true;
}

static uint32_t adders_of(const random_plan *p, uint32_t v) {
    uint32_t mask = 0;
    for (uint32_t s = 0; s < p->num_steps; s++)
        mask |= (p->steps[s].writes_grad >> v & 1) << s;
    return mask;
}

static void execute(machine *m, uint32_t op) {
    const uint32_t s = op % m->p->num_steps, i = op / m->p->num_steps, set = i % m->p->depth;
    const step *at = &m->p->steps[s];
    for (uint32_t v = 0; v < VALUES; v++) {
        if ((at->reads >> v & 1) != 0 && m->values[v][set] != i + 1)
            m->wrong = true;
        if ((at->writes >> v & 1) != 0)
            m->values[v][set] = i + 1;
        if (m->zeroes[op][v])
            m->grads[v][set] = i + 1, m->adders[v][set] = 0;
        if (((at->writes_grad | at->reads_grad) >> v & 1) != 0 && m->grads[v][set] != i + 1)
            m->wrong = true;
        if ((at->writes_grad >> v & 1) != 0)
            m->adders[v][set] |= 1U << s;
        if ((at->reads_grad >> v & 1) != 0 && m->adders[v][set] != adders_of(m->p, v))
            m->wrong = true;
    }
}

/* A stream executes its next op. */
static bool advance(machine *m, queue *stream, bool delay) {
    if (stream->head == stream->count)
        return false;
    const uint32_t op = stream->ops[stream->head];
    if (!edges_are(m, op, m->done) || (delay && op == m->delayed))
        return false;
    stream->head++;
    m->done[op] = true;
    execute(m, op);
    return true;
}

static bool all_of(const machine *m, uint32_t iteration, const bool *marks) {
    for (uint32_t s = 0; s < m->p->num_steps; s++)
        if (!marks[iteration * m->p->num_steps + s])
            return false;
    return true;
}

/* The caller takes the next iteration, releases it, and enqueues a period. */
static bool progress(machine *m) {
    if (m->retired == m->pulled || !all_of(m, m->retired, m->submitted))
        return false;
    m->retired++;
    enqueue_period(m);
    return true;
}

/* Run until nothing can continue. */
static void run(machine *m, bool delay) {
    for (bool more = true; more;) {
        more = progress(m);
        for (uint32_t g = 0; g < GROUPS; g++)
            more = submit(m, &m->groups[g]) || more;
        for (uint32_t n = 0; n < STREAMS; n++)
            more = advance(m, &m->streams[n], delay) || more;
        if (m->joined < m->retired && all_of(m, m->joined, m->done)) {
            m->joined++;
            more = true;
        }
    }
}

/* The faults that a run can show. */
enum { STOPS = 1, READS_WRONG = 2, RACES = 4 };

static bool free_of[OPS_MOST][OPS_MOST]; /* [a][b]: b can run before a */

/* Whether two ops use a state against its rule, or add to a gradient at a time, as the runs have
 * shown. */
static bool races(const random_plan *p, uint32_t a, uint32_t b) {
    const step *first = &p->steps[a % p->num_steps], *second = &p->steps[b % p->num_steps];
    const uint32_t i = a / p->num_steps, j = b / p->num_steps;
    bool a_first = i < j || (i == j && p->serial[a % p->num_steps] < p->serial[b % p->num_steps]);
    if (a_first && (first->serial & second->serial) != 0 && free_of[a][b])
        return true;
    bool share = ((first->states | first->serial) & (second->states | second->serial)) != 0 ||
                 (i == j && (first->writes_grad & second->writes_grad) != 0);
    return share && free_of[a][b] && free_of[b][a];
}

static int interpret(const random_plan *p, uint32_t batches) {
    static machine m;
    const uint32_t ops = batches * p->num_steps;
    int found = 0;
    for (uint32_t x = 0; x < ops; x++) {
        memset(&m, 0, sizeof m);
        m.p = p;
        m.batches = batches;
        m.delayed = x;
        for (uint32_t n = 0; n < p->depth; n++)
            enqueue_period(&m);
        run(&m, true);
        memcpy(free_of[x], m.done, ops * sizeof *m.done);
        run(&m, false);
        found |= m.wrong ? READS_WRONG : 0;
        found |= m.joined < batches ? STOPS : 0;
    }
    for (uint32_t a = 0; a < ops; a++)
        for (uint32_t b = 0; b < ops; b++)
            found |= a != b && races(p, a, b) ? RACES : 0;
    return found;
}

/* --- the test --------------------------------------------------------------------------------- */

typedef struct counts {
    uint64_t plans, accepted, shown, cycles, rules, runs;
} counts;

/* Run loaders of 1, 2, 3, up to `depth` and of many batches, until a run shows one of `until`. */
static int search(const random_plan *p, int until, counts *n) {
    int found = 0;
    for (uint32_t batches = 1; batches <= BATCHES_MOST && (found & until) == 0; batches++) {
        if (batches <= 3 || batches <= p->depth || batches == BATCHES_MOST) {
            found |= interpret(p, batches);
            n->runs += batches * p->num_steps;
        }
    }
    return found;
}

/* Return how the check is wrong, or NULL. */
static const char *judge(const random_plan *p, hotbed_pipeline_plan_fault fault, counts *n) {
    switch (fault) {
    case HOTBED_PIPELINE_OK: {
        n->accepted++;
        int found = p->cyclic ? STOPS : search(p, STOPS | READS_WRONG | RACES, n);
        if ((found & STOPS) != 0)
            return "an accepted plan stops";
        if ((found & READS_WRONG) != 0)
            return "an accepted plan reads a wrong value";
        return found != 0 ? "an accepted plan races" : NULL;
    }
    case HOTBED_PIPELINE_VALUE_ORDER:
        n->shown++;
        return search(p, READS_WRONG, n) & READS_WRONG ? NULL : "a refused plan reads right values";
    case HOTBED_PIPELINE_WRITERS:
    case HOTBED_PIPELINE_STATE_ORDER:
        n->shown++;
        return search(p, RACES, n) & RACES ? NULL : "a refused plan does not race";
    case HOTBED_PIPELINE_CYCLE:
    case HOTBED_PIPELINE_STAGE_CYCLE:
        n->cycles++;
        return p->cyclic && search(p, STOPS, n) & STOPS ? NULL : "a refused plan does not stop";
    default:
        n->rules++;
        return NULL;
    }
}

static void check_plan(uint64_t seed, hotbed_stream *const *streams, bool print, counts *n) {
    static random_plan p;
    static plan_text text;
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    make_plan(&p, seed);
    sort_plan(&p);
    write_plan(&p, streams, &text);
    (void)!hotbed_pipeline_plan_check(&text.plan, &report);
    n->plans++;
    const char *fault = judge(&p, report.fault, n);
    if (print || fault != NULL) {
        print_plan(&text);
        printf("check: %s %s\n", hotbed_pipeline_plan_fault_name(report.fault), report.text);
    }
    if (fault != NULL)
        hotbed_check_failed(__FILE__, __LINE__, "%s: HOTBED_TEST_PROGRAM=%" PRIu64, fault, seed);
}

static void the_check_agrees_with_an_interpreter(hotbed_backend backend) {
    const char *alone = getenv("HOTBED_TEST_PROGRAM"), *limit = getenv("HOTBED_TEST_SECONDS");
    hotbed_stream *streams[STREAMS];
    counts n = {0};
    for (uint32_t i = 0; i < STREAMS; i++)
        CHECK_OK(hotbed_stream_create(backend, 0, &streams[i]));
    if (alone != NULL && alone[0] != 0) {
        check_plan(strtoull(alone, NULL, 10), streams, true, &n);
    } else {
        const uint64_t seed = (hotbed_test_seed() - 1) * 1000000000;
        const uint32_t count = hotbed_test_is_small() ? PLANS / 10 : PLANS;
        const double end = limit == NULL ? 0.0 : hotbed_monotonic_seconds() + strtod(limit, NULL);
        while (n.plans < count || hotbed_monotonic_seconds() < end) {
            check_plan(seed + n.plans, streams, false, &n);
            if (limit != NULL && n.plans % 100000 == 0) {
                printf("%" PRIu64 " plans\n", n.plans);
                (void)fflush(stdout);
            }
        }
        printf(
            "%" PRIu64 " plans: %" PRIu64 " accepted, %" PRIu64
            " refused with a run that shows it, "
            "%" PRIu64 " cycles, %" PRIu64 " refused by a rule; %" PRIu64 " runs\n",
            n.plans, n.accepted, n.shown, n.cycles, n.rules, n.runs);
        CHECK(n.accepted > n.plans / 20 && n.shown > n.plans / 20 && n.cycles > 0);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        hotbed_stream_destroy(streams[i]);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_check_agrees_with_an_interpreter)},
    {NULL, NULL},
};
