/* tests/pipeline/test_profile.c - costs by leaving tasks out, and plans from costs.
 *
 * Tasks take time of a clock that only they move, so that times are exact.
 */
#include "tests/pipeline/parts.h"
#include "tests/pipeline/shop.h"

#include "hotbed/profile.h"

#include <stdio.h>
#include <string.h>

static double clock_now; /* seconds */
static double costs[PARTS_MOST];

static double read_clock(void *self) {
    (void)self;
    return clock_now;
}

static hotbed_status spend(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const part_self *me = self;
    (void)it;
    (void)stream;
    clock_now += costs[me->number];
    return HOTBED_OK;
}

static const part chain[] = {
    {.name = "h2d", .writes = "b"},
    {.name = "start", .after = "h2d", .reads = "b", .ordered = true},
    {.name = "wait", .after = "start", .ordered = true},
    {.name = "prefetch", .after = "wait", .states = "tables"},
    {.name = "forward", .after = "prefetch", .serial = "rows", .ordered = true},
    {.name = "backward", .after = "forward", .states = "tables", .serial = "rows dense"},
    {.name = "optimizer", .after = "backward", .serial = "dense"},
    {.name = NULL}};

static const hotbed_value_options values[] = {{.name = "b"}};

static void open_chain(parts *p, hotbed_backend backend) {
    static const double seconds[] = {1.0, 2.0, 0.5, 3.0, 4.0, 5.0, 0.0};
    parts_open(p, backend, chain);
    p->plan.values = values;
    p->plan.num_values = 1;
    memcpy(costs, seconds, sizeof seconds);
    for (uint32_t i = 0; i < p->n; i++)
        p->selves[i].work = spend;
}

static hotbed_profile_options options_of(parts *p) {
    static void *batches[2];
    hotbed_profile_options options;
    hotbed_profile_options_init(&options);
    batches[0] = &p->memory[0];
    batches[1] = &p->memory[1];
    options.batches = batches;
    options.num_batches = 2;
    options.stream = p->streams[0].stream;
    options.now = read_clock;
    return options;
}

/* A task's exposed time is what it takes; of one that does nothing 0; they sum to the
 * baseline. */
static void exposed_times_are_what_tasks_take(hotbed_backend backend) {
    parts p;
    static hotbed_profile profile;
    char text[2048];
    size_t length;
    double sum = 0.0, both;
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
    CHECK_OK(hotbed_profile_set(p.pipeline, &options, "start wait", &both));
    CHECK_NEAR(both, 2.5, 1e-9);
    CHECK_STATUS(
        hotbed_profile_set(p.pipeline, &options, "backward", &both), HOTBED_ERR_UNSUPPORTED);
    CHECK_OK(hotbed_profile_print(&profile, text, sizeof text, &length));
    CHECK_EQ(strlen(text), length);
    CHECK(strstr(text, "prefetch                            3000000.0    19.4%") != NULL);
    CHECK_OK(hotbed_profile_print(&profile, text, 20, &length));
    CHECK_EQ(strlen(text), 19);
    CHECK(length > 300);
    parts_close(&p);
}

static void predictions_follow_the_model(hotbed_backend backend) {
    static const part overlapped[] = {
        {.name = "a", .stage = 0, .stream = "s0"},
        {.name = "b", .stage = 1, .stream = "s1", .after = "a"},
        {.name = "c", .stage = 2, .after = "b"},
        {.name = NULL}};
    const double times[3] = {3.0, 1.0, 2.0};
    const double bad[3] = {3.0, -1.0, 2.0};
    parts p;
    double seconds;
    parts_open(&p, backend, overlapped);
    CHECK_OK(hotbed_schedule_predict(&p.plan, times, &seconds));
    CHECK_NEAR(seconds, 3.0, 1e-9); /* the longest stream */
    p.steps[0].after = "c-1";       /* nothing overlaps: an iteration waits for the one before */
    p.plan.depth = 3;
    for (int i = 0; i < 3; i++)
        p.steps[i].stage = 0;
    CHECK_OK(hotbed_schedule_predict(&p.plan, times, &seconds));
    CHECK_NEAR(seconds, 6.0, 1e-9);
    CHECK_STATUS(hotbed_schedule_predict(&p.plan, bad, &seconds), HOTBED_ERR_ARGUMENT);
    parts_close(&p);
}

static void add_streams(parts *p, const char *const *names, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) { /* before "default", which stays the last */
        p->streams[p->plan.num_streams] = p->streams[p->plan.num_streams - 1];
        p->streams[p->plan.num_streams - 1].name = names[i];
        CHECK_OK(hotbed_stream_create(p->backend, 0, &p->streams[p->plan.num_streams - 1].stream));
        p->plan.num_streams++;
    }
}

static const char *const names[] = {"s0", "s1", "s2"};

static void schedules_are_right_and_never_slower(hotbed_backend backend) {
    parts p;
    hotbed_schedule_options options;
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    hotbed_schedule_options_init(&options);
    for (int round = 0; round < 60; round++) {
        hotbed_schedule *schedule, *again;
        hotbed_pipeline_plan_report report;
        uint32_t n, m;
        double serial = 0.0, predicted, ordered[PARTS_MOST];
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
        CHECK_OK(hotbed_pipeline_plan_check(&plan, &report)); /* states and all */
        CHECK(report.max_stage < options.max_depth);
        uint32_t forward_stage = 0;
        for (uint32_t s = 0; s < n; s++) {
            uint32_t task = parts_find(&p, steps[s].task);
            ordered[s] = costs[task];
            CHECK_EQ(steps[s].ordered, p.steps[task].ordered);
            if (task == 4)
                forward_stage = steps[s].stage;
        }
        if (options.last != NULL)
            CHECK_EQ(forward_stage, report.max_stage);
        CHECK_OK(hotbed_schedule_predict(&plan, ordered, &predicted));
        CHECK_NEAR(predicted, hotbed_schedule_seconds(schedule), 1e-9);
        CHECK_OK(hotbed_schedule_find(&p.plan, &options, &again)); /* the same again */
        const hotbed_step *other = hotbed_schedule_steps(again, &m);
        for (uint32_t s = 0; s < n; s++) {
            CHECK_STRING(steps[s].task, other[s].task);
            CHECK_STRING(steps[s].after, other[s].after);
            CHECK_EQ(steps[s].stage, other[s].stage);
        }
        hotbed_schedule_destroy(again);
        hotbed_schedule_destroy(schedule);
    }
    parts_close(&p);
}

static void a_known_cut_is_found(hotbed_backend backend) {
    parts p;
    hotbed_schedule *schedule;
    hotbed_schedule_options options;
    uint32_t n;
    open_chain(&p, backend);
    add_streams(&p, names, 3);
    hotbed_schedule_options_init(&options);
    options.costs =
        costs; /* 1 2 0.5 3 | 4 5 0: 9 is the longest that must be one after the other */
    CHECK_OK(hotbed_schedule_find(&p.plan, &options, &schedule));
    CHECK_NEAR(hotbed_schedule_seconds(schedule), 9.0, 1e-9);
    const hotbed_step *steps = hotbed_schedule_steps(schedule, &n);
    for (uint32_t s = 0; s < n; s++) {
        if (strcmp(steps[s].task, "prefetch") == 0) {
            CHECK_EQ(steps[s].stage, 0);
            CHECK(strstr(steps[s].after, "backward-2") != NULL); /* the fence, found by itself */
        }
        if (strcmp(steps[s].task, "backward") == 0)
            CHECK(strstr(steps[s].after, "prefetch+1") != NULL); /* and the peers' rule */
    }
    hotbed_pipeline_plan plan = p.plan;
    plan.steps = steps;
    plan.order = HOTBED_ORDER_LISTED;
    for (uint32_t i = 0; i < p.n; i++)
        p.selves[i].work = NULL; /* the clock is not for several threads */
    CHECK_OK(hotbed_pipeline_create(&plan, NULL, &p.pipeline)); /* and it runs */
    parts_bind(&p, 6);
    CHECK_EQ(parts_run(&p), 6);
    CHECK_EQ(p.num_ran, 42);
    hotbed_schedule_destroy(schedule);
    hotbed_schedule_destroy(NULL);
    parts_close(&p);
}

/* A train pipeline of measured costs: the eleven tasks by a schedule that nobody wrote. */
static void a_scheduled_train_pipeline_trains_the_same(hotbed_backend backend) {
    static float expected[SHOP_BATCHES][SHOP_MODULES * SHOP_ROWS];
    static hotbed_profile profile;
    hotbed_schedule *schedule;
    const hotbed_step *serial;
    uint32_t num_serial;
    shop s;
    shop_open(&s, backend);
    hotbed_train *train = shop_train(&s, "sw-serial", 0);
    shop_bind(&s, train, 0, 16);
    CHECK_EQ(shop_run(train), 16);
    for (int b = 0; b < 16; b++)
        memcpy(expected[b], s.results[b], sizeof expected[b]);
    void *batches[2] = {&s.batches[20], &s.batches[21]};
    hotbed_profile_options options;
    hotbed_profile_options_init(&options);
    options.batches = batches;
    options.num_batches = 2;
    options.stream = hotbed_train_stream(train, "default");
    CHECK_OK(hotbed_profile_run(hotbed_train_pipeline(train), &options, &profile));
    CHECK(profile.baseline > 0.0);
    CHECK_OK(hotbed_train_schedule(train, &profile, 3, &schedule));
    CHECK(hotbed_schedule_seconds(schedule) <= hotbed_schedule_serial_seconds(schedule));
    hotbed_train_destroy(train);
    shop_close(&s);
    CHECK_OK(hotbed_train_plan_steps("sw-serial", &serial, &num_serial));
    shop_open(&s, backend);
    hotbed_train_options make;
    hotbed_train_options_init(&make);
    make.plan = "sw-serial";
    make.backend = backend;
    make.steps = hotbed_schedule_steps(schedule, &make.num_steps);
    CHECK_EQ(make.num_steps, num_serial);
    CHECK_OK(hotbed_train_create(&s.trainer, &make, &train));
    hotbed_schedule_destroy(schedule);
    shop_bind(&s, train, 0, 16);
    CHECK_EQ(shop_run(train), 16);
    for (int b = 0; b < 16; b++)
        CHECK_BYTES(s.results[b], expected[b], sizeof expected[b]);
    hotbed_train_destroy(train);
    shop_close(&s);
}

static void bad_arguments(hotbed_backend backend) {
    parts p;
    static hotbed_profile profile;
    hotbed_schedule *schedule;
    hotbed_schedule_options find;
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
    hotbed_schedule_options_init(&find);
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.costs = costs;
    find.last = "nobody";
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.last = NULL;
    find.max_depth = 7;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    find.max_depth = 0;
    p.steps[6].stage = 1;
    CHECK_STATUS(hotbed_schedule_find(&p.plan, &find, &schedule), HOTBED_ERR_ARGUMENT);
    CHECK(schedule == NULL);
    parts_close(&p);
}

const hotbed_test hotbed_tests[] = {
    {"exposed_times_are_what_tasks_take", exposed_times_are_what_tasks_take},
    {"predictions_follow_the_model", predictions_follow_the_model},
    {"schedules_are_right_and_never_slower", schedules_are_right_and_never_slower},
    {"a_known_cut_is_found", a_known_cut_is_found},
    {"a_scheduled_train_pipeline_trains_the_same", a_scheduled_train_pipeline_trains_the_same},
    {"bad_arguments", bad_arguments},
    {NULL, NULL},
};
