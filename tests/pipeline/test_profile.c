/* tests/pipeline/test_profile.c - profiles, which measure tasks by skipping them, and schedules
 * made from them.
 *
 * Tasks advance a clock that nothing else advances, so times are exact. */
#include "tests/pipeline/example.h"
#include "tests/pipeline/fake_plan.h"

#include "hotbed/profile.h"

#include <stdio.h>
#include <string.h>

static double clock_now; /* seconds */
static double costs[FAKE_PLAN_MOST];
static double slower;          /* seconds by which each iteration is slower than the previous one */
static const void *used[4096]; /* the batches of all iterations */
static uint32_t iterations;

static double read_clock(void *self) {
    return clock_now;
}

static hotbed_status spend(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const fake_task_state *me = self;
    clock_now += costs[me->number];
    return HOTBED_OK;
}

/* The first task of an iteration, on a machine that slows down. */
static hotbed_status spend_more(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    CHECK(iterations < sizeof used / sizeof *used);
    clock_now += slower * iterations;
    used[iterations++] = hotbed_iteration_batch(it);
    return spend(it, self, stream);
}

static const fake_task chain[] = {
    {.name = "h2d", .writes = "b"},
    {.name = "start", .after = "h2d", .reads = "b", .ordered = true},
    {.name = "wait", .after = "start", .ordered = true},
    {.name = "prefetch", .after = "wait", .states = "tables"},
    {.name = "forward", .after = "prefetch", .serial = "rows", .ordered = true},
    {.name = "backward", .after = "forward", .states = "tables", .serial = "rows dense"},
    {.name = "optimizer", .after = "backward", .serial = "dense"},
    {.name = NULL}};

static const hotbed_value_options values[] = {{.name = "b"}};

static void open_chain(fake_plan *p, hotbed_backend backend) {
    static const double seconds[] = {1.0, 2.0, 0.5, 3.0, 4.0, 5.0, 0.0};
    fake_plan_open(p, backend, chain);
    p->plan.values = values;
    p->plan.num_values = 1;
    memcpy(costs, seconds, sizeof seconds);
    for (uint32_t i = 0; i < p->n; i++)
        p->selves[i].work = spend;
}

static hotbed_profile_options options_of(fake_plan *p) {
    static void *batches[2];
    hotbed_profile_options options = {.size = sizeof options};
    batches[0] = &p->memory[0];
    batches[1] = &p->memory[1];
    options.batches = batches;
    options.num_batches = 2;
    options.stream = p->streams[0].stream;
    options.now = read_clock;
    return options;
}

/* A task's exposed time is its own time, 0 for a task that does nothing; the sum is the time of an
 * iteration. */
static void exposed_times_equal_task_times(hotbed_backend backend) {
    fake_plan p;
    static hotbed_profile profile;
    char text[2048];
    size_t length;
    double sum = 0.0;
    open_chain(&p, backend);
    p.tasks[5].always = true;
    CHECK_OK(hotbed_pipeline_create(&p.plan, NULL, &p.pipeline));
    const hotbed_profile_options options = options_of(&p);
    CHECK_OK(hotbed_profile_run(p.pipeline, &options, &profile));
    CHECK_NEAR(profile.baseline, 15.5, 1e-9);
    CHECK_EQ(profile.num_tasks, 7);
    for (uint32_t s = 0; s < 7; s++) {
        CHECK_STRING(profile.tasks[s].name, chain[s].name);
        CHECK_NEAR(profile.tasks[s].exposed, costs[s], 1e-9);
        CHECK_NEAR(profile.tasks[s].alone, costs[s], 1e-9);
        CHECK_EQ(profile.tasks[s].skipped, s != 5);
        sum += profile.tasks[s].exposed;
    }
    CHECK_NEAR(sum, profile.baseline, 1e-9);
    CHECK_OK(hotbed_profile_print(&profile, text, sizeof text, &length));
    CHECK_EQ(strlen(text), length);
    CHECK(strstr(text, "prefetch                            3000000.0    19.4%") != NULL);
    CHECK_OK(hotbed_profile_print(&profile, text, 20, &length));
    CHECK_EQ(strlen(text), 19);
    CHECK(length > 300);
    fake_plan_close(&p);
}

/* Exposed times compare measurements of the same round, so a drift of the machine adds at most one
 * round's drift; the baseline contains half of the whole drift.  Each measurement takes the next
 * batch. */
static void exposed_times_contain_no_drift(hotbed_backend backend) {
    enum { SKIPPABLE = 5, A_ROUND = 3 + 4 + SKIPPABLE * 6 }; /* iterations */
    static hotbed_profile profile;
    fake_plan p;
    open_chain(&p, backend);
    p.tasks[0].always = true;
    p.tasks[5].always = true;
    p.selves[0].work = spend_more;
    slower = 1e-3;
    iterations = 0;
    CHECK_OK(hotbed_pipeline_create(&p.plan, NULL, &p.pipeline));
    hotbed_profile_options options = options_of(&p);
    options.warmup = 1;
    options.iterations = 3;
    options.rounds = 9;
    CHECK_OK(hotbed_profile_run(p.pipeline, &options, &profile));
    CHECK(iterations > 9 * 20);
    CHECK(profile.baseline > 15.5 + 4 * 20 * slower);
    for (uint32_t s = 1; s < 7; s++)
        if (s != 5)
            CHECK_NEAR(profile.tasks[s].exposed, costs[s], A_ROUND * slower);
    for (uint32_t i = 1; i < iterations; i++)
        CHECK(used[i] != used[i - 1]);
    fake_plan_close(&p);
}

/* The seconds of a plan in the model, by the costs of the serial plan's steps. No plan of the same tasks is slower than
 * the serial one. */
static double predict(
    const hotbed_pipeline_plan *serial, const hotbed_pipeline_plan *plan, const double *times) {
    hotbed_schedule *schedule;
    hotbed_schedule_options options = {.size = sizeof options, .max_depth = 1, .costs = times};
    options.num_also = 1;
    options.also = plan;
    CHECK_OK(hotbed_schedule_find(serial, &options, &schedule));
    CHECK_EQ(hotbed_schedule_candidates(schedule), 2);
    const double seconds = hotbed_schedule_seconds(schedule);
    hotbed_schedule_destroy(schedule);
    return seconds;
}

static void predictions_follow_the_model(hotbed_backend backend) {
    static const fake_task overlapped[] = {
        {.name = "a", .stage = 0, .stream = "s0"},
        {.name = "b", .stage = 1, .stream = "s1", .after = "a"},
        {.name = "c", .stage = 2, .after = "b"},
        {.name = NULL}};
    const double times[3] = {3.0, 1.0, 2.0};
    fake_plan p;
    fake_plan_open(&p, backend, overlapped);
    hotbed_step steps[3];
    hotbed_pipeline_plan serial = p.plan;
    for (int i = 0; i < 3; i++) {
        steps[i] = p.steps[i];
        steps[i].stage = 0;
    }
    serial.steps = steps;
    CHECK_NEAR(predict(&serial, &p.plan, times), 3.0, 1e-9); /* the longest stream */
    p.steps[0].after = "c-1"; /* nothing overlaps: an iteration waits for the previous one */
    p.plan.depth = 3;
    for (int i = 0; i < 3; i++)
        p.steps[i].stage = 0;
    CHECK_NEAR(predict(&serial, &p.plan, times), 6.0, 1e-9);
    p.steps[0].after =
        ""; /* the same with a single buffer set, which the previous iteration holds until its end */
    p.plan.depth = 1;
    CHECK_NEAR(predict(&serial, &p.plan, times), 6.0, 1e-9);
    p.plan.depth = 2; /* with two buffer sets: the longest stream */
    CHECK_NEAR(predict(&serial, &p.plan, times), 3.0, 1e-9);
    fake_plan_close(&p);
}

static void add_streams(fake_plan *p, const char *const *names, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) { /* inserted before "default", which stays last */
        p->streams[p->plan.num_streams] = p->streams[p->plan.num_streams - 1];
        p->streams[p->plan.num_streams - 1].name = names[i];
        CHECK_OK(hotbed_stream_create(p->backend, 0, &p->streams[p->plan.num_streams - 1].stream));
        p->plan.num_streams++;
    }
}

static const char *const names[] = {"s0", "s1", "s2"};

static void schedules_are_valid_and_never_slower(hotbed_backend backend) {
    fake_plan p;
    hotbed_schedule_options options = {.size = sizeof options};
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    for (int round = 0; round < 60; round++) {
        hotbed_schedule *schedule, *again;
        hotbed_pipeline_plan_report report = {.size = sizeof report};
        uint32_t n, m;
        double serial = 0.0;
        for (uint32_t s = 0; s < p.n; s++) {
            costs[s] = (double)hotbed_test_below(10);
            serial += costs[s];
        }
        options.costs = costs;
        options.max_depth = 1 + (uint32_t)hotbed_test_below(4);
        options.last = round % 2 == 0 ? NULL : "forward";
        CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
        CHECK_NEAR(hotbed_schedule_serial_seconds(schedule), serial, 1e-9);
        CHECK(hotbed_schedule_seconds(schedule) <= serial + 1e-9);
        const hotbed_step *steps = hotbed_schedule_steps(schedule, &n);
        CHECK_EQ(n, p.n);
        hotbed_pipeline_plan plan = p.plan;
        plan.steps = steps;
        plan.order = HOTBED_ORDER_LISTED;
        CHECK_OK(hotbed_pipeline_plan_check(&plan, &report)); /* including the order of states */
        CHECK(report.max_stage < options.max_depth);
        uint32_t forward_stage = 0;
        for (uint32_t s = 0; s < n; s++) {
            uint32_t task = fake_plan_find(&p, steps[s].task);
            CHECK_EQ(steps[s].ordered, p.steps[task].ordered);
            if (task == 4)
                forward_stage = steps[s].stage;
        }
        if (options.last != NULL)
            CHECK_EQ(forward_stage, report.max_stage);
        CHECK_NEAR(predict(&p.plan, &plan, costs), hotbed_schedule_seconds(schedule), 1e-9);
        /* The result is the same each time. */
        CHECK_OK(hotbed_schedule_find(&p.plan, &options, &again));
        const hotbed_step *other = hotbed_schedule_steps(again, &m);
        for (uint32_t s = 0; s < n; s++) {
            CHECK_STRING(steps[s].task, other[s].task);
            CHECK_STRING(steps[s].after, other[s].after);
            CHECK_EQ(steps[s].stage, other[s].stage);
        }
        hotbed_schedule_destroy(again);
        hotbed_schedule_destroy(schedule);
    }
    fake_plan_close(&p);
}

static void a_known_schedule_is_found(hotbed_backend backend) {
    fake_plan p;
    hotbed_schedule *schedule;
    hotbed_schedule_options options = {.size = sizeof options};
    uint32_t n;
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    options.costs = costs; /* 1 2 0.5 3 | 4 5 0: the longest part is 9 */
    CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
    CHECK_NEAR(hotbed_schedule_seconds(schedule), 9.0, 1e-9);
    const hotbed_step *steps = hotbed_schedule_steps(schedule, &n);
    for (uint32_t s = 0; s < n; s++) {
        if (strcmp(steps[s].task, "prefetch") == 0) {
            CHECK_EQ(
                steps[s].stage, 1); /* one stage after h2d, so h2d need not wait for a buffer set */
            CHECK(strstr(steps[s].after, "backward-2") != NULL); /* the schedule has the fence */
        }
        if (strcmp(steps[s].task, "backward") == 0)
            CHECK(strstr(steps[s].after, "prefetch+1") != NULL); /* and TorchRec's rule */
    }
    hotbed_pipeline_plan plan = p.plan;
    plan.steps = steps;
    plan.order = HOTBED_ORDER_LISTED;
    for (uint32_t i = 0; i < p.n; i++)
        p.selves[i].work = NULL; /* the clock is not safe for several threads */
    CHECK_OK(hotbed_pipeline_create(&plan, NULL, &p.pipeline)); /* the schedule runs */
    fake_plan_bind(&p, 6);
    CHECK_EQ(fake_plan_run(&p), 6);
    CHECK_EQ(p.num_ran, 42);
    hotbed_schedule_destroy(schedule);
    hotbed_schedule_destroy(NULL);
    fake_plan_close(&p);
}

/* The last task waits for all others and for its own last run: 64 edges to names of 47 characters. The steps of a
 * schedule keep all edges. */
static void schedules_keep_every_edge(hotbed_backend backend) {
    enum { TASKS = HOTBED_PIPELINE_TASKS_MOST, LETTERS = HOTBED_PIPELINE_NAME_BYTES - 1 };
    static char names_of[TASKS][LETTERS + 1], after[TASKS * (LETTERS + 4)];
    static hotbed_task tasks[TASKS];
    static hotbed_step steps[TASKS], late[TASKS];
    static const double seconds[TASKS] = {0.0};
    hotbed_pipeline_plan_stream stream = {.name = "default"};
    hotbed_pipeline_plan plan, also;
    hotbed_schedule *schedule;
    hotbed_schedule_options options;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream.stream));
    char *end = after;
    for (int t = 0; t < TASKS; t++) {
        (void)snprintf(names_of[t], sizeof names_of[t], "t%0*d", LETTERS - 1, t);
        tasks[t] = (hotbed_task){.name = names_of[t]};
        late[t] = steps[t] = (hotbed_step){.task = names_of[t], .stream = stream.name};
        end += sprintf(end, "%s%s-16", t == 0 ? "" : " ", names_of[t]);
    }
    late[TASKS - 1].after = after;
    plan = (hotbed_pipeline_plan){
        .size = sizeof plan, .tasks = tasks, .steps = steps, .streams = &stream};
    plan.num_tasks = plan.num_steps = TASKS;
    plan.num_streams = 1;
    also = plan;
    also.steps = late;
    also.depth = HOTBED_PIPELINE_DEPTH_MOST;
    options = (hotbed_schedule_options){
        .size = sizeof options, .costs = seconds, .also = &also, .num_also = 1};
    CHECK_OK(hotbed_schedule_find(&plan, &options, &schedule));
    CHECK_EQ(hotbed_schedule_candidates(schedule), 2);
    uint32_t found = 0, n;
    for (uint32_t c = 0; c < 2; c++) {
        CHECK_OK(hotbed_schedule_take(schedule, c));
        const hotbed_step *taken = hotbed_schedule_steps(schedule, &n);
        CHECK_EQ(n, TASKS);
        if (taken[TASKS - 1].after[0] == '\0')
            continue;
        CHECK_STRING(taken[TASKS - 1].after, after);
        found++;
    }
    CHECK_EQ(found, 1);
    hotbed_schedule_destroy(schedule);
    hotbed_stream_destroy(stream.stream);
}

static hotbed_schedule_options short_list(uint32_t candidates) {
    hotbed_schedule_options options = {
        .size = sizeof options, .costs = costs, .candidates = candidates};
    return options;
}

/* Check that the chosen schedule is a valid plan; returns its number of stages. */
static uint32_t check_taken(const fake_plan *p, const hotbed_schedule *schedule) {
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    hotbed_pipeline_plan plan = p->plan;
    plan.steps = hotbed_schedule_steps(schedule, &plan.num_steps);
    plan.order = HOTBED_ORDER_LISTED;
    CHECK_OK(hotbed_pipeline_plan_check(&plan, &report));
    return report.max_stage + 1;
}

static void candidates_are_ranked_by_the_model(hotbed_backend backend) {
    enum { MOST = 6 };
    fake_plan p;
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    for (uint32_t wanted = 1; wanted <= MOST; wanted++)
        for (uint32_t also = 0; also < 2; also++) {
            hotbed_schedule_options options = short_list(wanted);
            hotbed_schedule *schedule;
            uint32_t serials = 0, stages[MOST + 1] = {0};
            double seconds[MOST + 1] = {0};
            options.num_also = also; /* a caller's plan, here the serial one */
            options.also = &p.plan;
            CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
            const uint32_t n = hotbed_schedule_candidates(schedule);
            CHECK_EQ(n, wanted + also);
            CHECK_EQ(hotbed_schedule_taken(schedule), 0);
            for (uint32_t c = 0; c < n; c++) {
                CHECK_OK(hotbed_schedule_take(schedule, c));
                CHECK_EQ(hotbed_schedule_taken(schedule), c);
                stages[c] = check_taken(&p, schedule);
                seconds[c] = hotbed_schedule_seconds(schedule);
                serials += stages[c] == 1;
                CHECK(c == 0 || seconds[c] >= seconds[c - 1] * (1.0 - 1e-9));
                for (uint32_t other = 0; other < c && stages[c] > 1; other++)
                    CHECK(stages[other] != stages[c] || seconds[c] > seconds[other] * (1.0 + 9e-4));
            }
            CHECK_NEAR(seconds[0], 9.0, 1e-9);
            CHECK_EQ(serials, also + (wanted > 1));
            CHECK_NEAR(hotbed_schedule_serial_seconds(schedule), 15.5, 1e-9);
            CHECK_STATUS(hotbed_schedule_take(schedule, n), HOTBED_ERR_ARGUMENT);
            hotbed_schedule_destroy(schedule);
        }
    fake_plan_close(&p);
}

/* A newer caller's plan: it has a field that the library does not know. */
typedef struct newer_plan {
    hotbed_pipeline_plan plan;
    uint64_t unknown;
} newer_plan;

static void plans_of_newer_callers_are_candidates(hotbed_backend backend) {
    fake_plan p;
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    newer_plan plans[2] = {{.plan = p.plan}, {.plan = p.plan}};
    plans[0].plan.size = plans[1].plan.size = sizeof plans[0];
    hotbed_schedule_options options = short_list(1);
    hotbed_schedule *schedule;
    options.num_also = 2;
    options.also = &plans[0].plan;
    CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
    CHECK_EQ(hotbed_schedule_candidates(schedule), 3);
    hotbed_schedule_destroy(schedule);
    char text[128];
    (void)snprintf(
        text, sizeof text, "other plan 1: size %u is not %zu, that of other plan 0", p.plan.size,
        sizeof plans[0]);
    plans[1].plan.size = p.plan.size;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &options, &schedule), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), text);
    fake_plan_close(&p);
}

/* Prefetch of iteration i + 1 beside forward of iteration i, in two stages: the later iteration's
 * task runs first. */
static void a_later_iteration_may_run_first(hotbed_backend backend) {
    static const double seconds[] = {0.0, 0.0, 0.0, 4.0, 4.0, 5.0, 0.0};
    fake_plan p;
    hotbed_schedule *schedule;
    uint32_t n;
    open_chain(&p, backend);
    add_streams(&p, names, 1);
    memcpy(costs, seconds, sizeof seconds);
    hotbed_schedule_options options = short_list(1);
    options.max_depth = 2;
    CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
    CHECK_NEAR(hotbed_schedule_seconds(schedule), 9.0, 1e-9);
    CHECK_EQ(check_taken(&p, schedule), 2);
    const hotbed_step *steps = hotbed_schedule_steps(schedule, &n);
    for (uint32_t s = 0; s < n; s++)
        if (strcmp(steps[s].task, "backward") == 0)
            CHECK(strstr(steps[s].after, "prefetch+1") != NULL);
    hotbed_schedule_destroy(schedule);
    fake_plan_close(&p);
}

/* A train pipeline runs its eleven tasks by a schedule made from measured costs. */
static void a_scheduled_train_pipeline_trains_the_same(hotbed_backend backend) {
    static float expected[EXAMPLE_BATCHES][EXAMPLE_MODULES * EXAMPLE_ROWS];
    static hotbed_profile profile;
    hotbed_schedule *schedule;
    const hotbed_step *serial;
    uint32_t num_serial;
    example s;
    example_open(&s, backend);
    hotbed_train *train = example_train(&s, "sw-serial", 0);
    example_bind(&s, train, 0, 16);
    CHECK_EQ(example_run(train), 16);
    for (int b = 0; b < 16; b++)
        memcpy(expected[b], s.results[b], sizeof expected[b]);
    void *batches[2] = {&s.batches[20], &s.batches[21]};
    hotbed_profile_options options = {.size = sizeof options, .batches = batches, .num_batches = 2};
    options.stream = hotbed_train_stream(train, "default");
    if (hotbed_test_is_small())
        options.rounds = options.warmup = options.iterations = 1;
    CHECK_OK(hotbed_profile_run(hotbed_train_pipeline(train), &options, &profile));
    CHECK(profile.baseline > 0.0);
    CHECK_OK(hotbed_train_schedule(train, &profile, 3, &schedule));
    CHECK(hotbed_schedule_seconds(schedule) <= hotbed_schedule_serial_seconds(schedule));
    hotbed_train_destroy(train);
    example_close(&s);
    CHECK_OK(hotbed_train_plan_steps("sw-serial", &serial, &num_serial));
    example_open(&s, backend);
    hotbed_train_options make = {.size = sizeof make, .plan = "sw-serial", .backend = backend};
    make.steps = hotbed_schedule_steps(schedule, &make.num_steps);
    CHECK_EQ(make.num_steps, num_serial);
    CHECK_OK(hotbed_train_create(&s.trainer, &make, &train));
    hotbed_schedule_destroy(schedule);
    example_bind(&s, train, 0, 16);
    CHECK_EQ(example_run(train), 16);
    for (int b = 0; b < 16; b++)
        CHECK_BYTES(s.results[b], expected[b], sizeof expected[b]);
    hotbed_train_destroy(train);
    example_close(&s);
}

/* A clock by which measurement i takes seconds[i % n]. */
typedef struct script {
    const double *seconds;
    uint32_t n, calls;
} script;

static double read_script(void *self) {
    script *s = self;
    uint32_t call = s->calls++;
    return call % 2 == 0 ? 0.0 : s->seconds[call / 2 % s->n];
}

/* A schedule from a synthetic profile, in which prefetch, forward and the dense part take equal time. */
static hotbed_schedule *made_up_schedule(example *s) {
    hotbed_profile profile = {.num_tasks = 11, .baseline = 4.0};
    hotbed_schedule *schedule;
    hotbed_train *train = example_train(s, "sw-serial", 0);
    for (uint32_t t = 3; t < 9; t++)
        profile.tasks[t].exposed = profile.tasks[t].alone = 1.0;
    CHECK_OK(hotbed_train_schedule(train, &profile, 3, &schedule));
    hotbed_train_destroy(train);
    return schedule;
}

/* Make each candidate the fastest in turn: it is taken, and training gives the bytes of the plain loop. */
static void the_fastest_candidate_is_taken(hotbed_backend backend) {
    static float expected[EXAMPLE_BATCHES][EXAMPLE_MODULES * EXAMPLE_ROWS];
    double seconds[2 * HOTBED_SCHEDULE_CANDIDATES_MOST], best[HOTBED_SCHEDULE_CANDIDATES_MOST];
    hotbed_train_options options = {.size = sizeof options};
    hotbed_tune_options tune = {.size = sizeof tune};
    example s;
    example_open(&s, backend);
    hotbed_train *train = example_train(&s, "none", 0);
    example_bind(&s, train, 0, EXAMPLE_BATCHES);
    CHECK_EQ(example_run(train), EXAMPLE_BATCHES);
    for (int b = 0; b < EXAMPLE_BATCHES; b++)
        memcpy(expected[b], s.results[b], sizeof expected[b]);
    hotbed_train_destroy(train);
    example_close(&s);
    options.plan = "sw-serial";
    options.backend = backend;
    tune.warmup = 1;
    tune.iterations = 1;
    tune.now = read_script;
    for (uint32_t fastest = 0, n = 1; fastest < n; fastest += hotbed_test_is_small() ? 3 : 1) {
        example_open(&s, backend);
        hotbed_schedule *schedule = made_up_schedule(&s);
        n = hotbed_schedule_candidates(schedule);
        CHECK(n >= 3);
        for (uint32_t i = 0; i < 2 * n; i++) /* two rounds, of which the better counts */
            seconds[i] = i == fastest + n ? 1.0 : 2.0 + (i % n) * 0.5;
        script clock = {.seconds = seconds, .n = 2 * n};
        tune.rounds = fastest == 0 ? 1 : 2;
        /* 64 batches suffice for one round over all candidates. */
        clock.calls = fastest == 0 ? 2 * n : 0;
        tune.now_self = &clock;
        tune.loader = example_loader(&s, 0, EXAMPLE_BATCHES);
        CHECK_OK(hotbed_train_tune(&s.trainer, &options, &tune, schedule, best));
        CHECK_EQ(hotbed_schedule_taken(schedule), fastest);
        for (uint32_t c = 0; c < n; c++)
            CHECK_NEAR(best[c], c == fastest ? 1.0 : 2.0 + c * 0.5, 1e-9);
        CHECK_EQ(s.pulled, s.given_back);
        CHECK_EQ(example_pinned(&s), 0);
        for (uint64_t b = 0; b < s.pulled; b++)
            CHECK_BYTES(s.results[b], expected[b], sizeof expected[b]);
        hotbed_schedule_destroy(schedule);
        example_close(&s);
    }
}

static void tuning_fails_with_a_reason(hotbed_backend backend) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_tune_options tune = {.size = sizeof tune};
    example s;
    example_open(&s, backend);
    hotbed_schedule *schedule = made_up_schedule(&s);
    CHECK_OK(hotbed_schedule_take(schedule, 1));
    options.plan = "sw-serial";
    options.backend = backend;
    CHECK_STATUS(
        hotbed_train_tune(&s.trainer, &options, &tune, schedule, NULL), HOTBED_ERR_ARGUMENT);
    tune.loader = example_loader(
        &s, 0, 20); /* the batches end while the second or third candidate is measured */
    CHECK_STATUS(hotbed_train_tune(&s.trainer, &options, &tune, NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_train_tune(&s.trainer, &options, &tune, schedule, NULL), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "the loader ended") != NULL);
    CHECK_EQ(hotbed_schedule_taken(schedule), 1);
    CHECK_EQ(example_pinned(&s), 0);
    tune.loader = example_loader(&s, 20, 20);
    s.fail_batch = 23;
    CHECK_STATUS(hotbed_train_tune(&s.trainer, &options, &tune, schedule, NULL), HOTBED_ERR_RANGE);
    CHECK(strstr(hotbed_last_error(), "task LossPostprocess") != NULL);
    hotbed_schedule_destroy(schedule);
    example_close(&s);
}

static void bad_arguments(hotbed_backend backend) {
    fake_plan p;
    static hotbed_profile profile;
    hotbed_schedule *schedule;
    hotbed_schedule_options find = {.size = sizeof find};
    open_chain(&p, backend);
    CHECK_OK(hotbed_pipeline_create(&p.plan, NULL, &p.pipeline));
    hotbed_profile_options options = options_of(&p);
    CHECK_STATUS(hotbed_profile_run(NULL, &options, &profile), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_profile_run(p.pipeline, &options, NULL), HOTBED_ERR_ARGUMENT);
    options.rounds = 65;
    CHECK_STATUS(hotbed_profile_run(p.pipeline, &options, &profile), HOTBED_ERR_ARGUMENT);
    options.rounds = 0;
    options.num_batches = 0;
    CHECK_STATUS(hotbed_profile_run(p.pipeline, &options, &profile), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_profile_print(NULL, NULL, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.costs = costs;
    find.last = "nobody";
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.last = NULL;
    find.max_depth = 7;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.max_depth = 0;
    find.candidates = HOTBED_SCHEDULE_CANDIDATES_MOST + 1;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.candidates = HOTBED_SCHEDULE_CANDIDATES_MOST;
    find.num_also = 1;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.also = &p.plan;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.candidates = 0;
    hotbed_pipeline_plan other = p.plan; /* without the last task */
    other.num_tasks = other.num_steps = p.n - 1;
    find.also = &other;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "other tasks") != NULL);
    find.num_also = 0;
    p.steps[6].stage = 1;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    CHECK(schedule == NULL);
    fake_plan_close(&p);
}

const hotbed_test hotbed_tests[] = {
    {TEST(exposed_times_equal_task_times)},
    {TEST(exposed_times_contain_no_drift)},
    {TEST(predictions_follow_the_model)},
    {TEST(schedules_are_valid_and_never_slower)},
    {TEST(a_known_schedule_is_found)},
    {TEST(schedules_keep_every_edge)},
    {TEST(candidates_are_ranked_by_the_model)},
    {TEST(plans_of_newer_callers_are_candidates)},
    {TEST(a_later_iteration_may_run_first)},
    {TEST(the_fastest_candidate_is_taken)},
    {TEST(tuning_fails_with_a_reason)},
    {TEST(a_scheduled_train_pipeline_trains_the_same)},
    {TEST(bad_arguments)},
    {NULL, NULL},
};
