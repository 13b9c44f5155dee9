/* tests/pipeline/test_plan.c - the check of plans: each kind of fault is found, and the message
 * names the place. */
#include "tests/pipeline/fake_plan.h"

#include <stdio.h>
#include <string.h>

/* A valid plan, as of prefetch pipelines. */
static const fake_task right[] = {
    {.name = "h2d", .stage = 0, .stream = "memcpy", .group = "io", .writes = "keys"},
    {.name = "dist",
     .stage = 1,
     .stream = "dist",
     .after = "h2d",
     .ordered = true,
     .reads = "keys",
     .writes = "local"},
    {.name = "prefetch",
     .stage = 1,
     .stream = "dist",
     .after = "dist backward-2",
     .reads = "local",
     .states = "tables"},
    {.name = "forward", .stage = 2, .after = "prefetch", .reads = "local", .writes = "rows"},
    {.name = "backward",
     .stage = 2,
     .after = "forward prefetch+1",
     .reads = "rows",
     .states = "tables"},
    {.name = NULL}};

static const hotbed_value_options values[] = {
    {.name = "keys", .bytes = 64}, {.name = "local"}, {.name = "rows", .bytes = 16, .grad = true}};

static void open_right(fake_plan *p, hotbed_backend backend) {
    fake_plan_open(p, backend, right);
    p->plan.values = values;
    p->plan.num_values = 3;
}

static void check_fault(fake_plan *p, hotbed_pipeline_plan_fault fault, const char *text) {
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    hotbed_pipeline *pipeline = (hotbed_pipeline *)p;
    CHECK_STATUS(hotbed_pipeline_plan_check(&p->plan, &report), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(report.fault, fault);
    if (strstr(report.text, text) == NULL)
        CHECK_STRING(report.text, text);
    char name[32];
    (void)snprintf(name, sizeof name, "%s: ", hotbed_pipeline_plan_fault_name(fault));
    CHECK_EQ(strncmp(hotbed_last_error(), name, strlen(name)), 0);
    CHECK_STATUS(hotbed_pipeline_create(&p->plan, NULL, &pipeline), HOTBED_ERR_ARGUMENT);
    CHECK(pipeline == NULL);
}

static void a_valid_plan_passes(hotbed_backend backend) {
    fake_plan p;
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    open_right(&p, backend);
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, &report));
    CHECK_EQ(report.fault, HOTBED_PIPELINE_OK);
    CHECK_EQ(report.num_groups, 2);
    CHECK_EQ(report.max_stage, 2);
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    for (int fault = 0; fault <= HOTBED_PIPELINE_BACKWARD; fault++)
        CHECK(
            strcmp(
                hotbed_pipeline_plan_fault_name((hotbed_pipeline_plan_fault)fault),
                "UNKNOWN_FAULT") != 0);
    CHECK_STRING(hotbed_pipeline_plan_fault_name((hotbed_pipeline_plan_fault)99), "UNKNOWN_FAULT");
    fake_plan_close(&p);
}

static void invalid_sizes_and_names_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.plan.num_tasks = 0;
    check_fault(&p, HOTBED_PIPELINE_SIZE, "0 tasks");
    p.plan.num_tasks = p.n;
    p.plan.num_streams = 17;
    check_fault(&p, HOTBED_PIPELINE_SIZE, "17 streams");
    p.plan.num_streams = 3;
    p.plan.depth = 17;
    check_fault(&p, HOTBED_PIPELINE_SIZE, "depth 17");
    p.plan.depth = 0;
    p.plan.steps = NULL;
    check_fault(&p, HOTBED_PIPELINE_SIZE, "steps");
    p.plan.steps = p.steps;
    p.tasks[1].name = p.steps[1].task = "di st";
    check_fault(&p, HOTBED_PIPELINE_NAME, "di st");
    p.tasks[1].name = p.steps[1].task = "a_task_name_that_has_one_byte_more_than_is_legal"; /* 48 */
    check_fault(&p, HOTBED_PIPELINE_NAME, "47 bytes");
    p.tasks[1].name = p.steps[1].task = "dist";
    p.steps[2].after = "dist backward-17";
    check_fault(&p, HOTBED_PIPELINE_NAME, "backward-17");
    p.steps[2].after = "dist backward-99999999999999999999";
    check_fault(&p, HOTBED_PIPELINE_NAME, "backward-99999999999999999999");
    p.steps[2].after = "dist backward-0";
    check_fault(&p, HOTBED_PIPELINE_NAME, "backward-0");
    p.steps[2].after = "dist backward-2";
    const hotbed_value_options twice[] = {values[0], values[1], values[2], values[0]};
    p.plan.values = twice;
    p.plan.num_values = 4;
    check_fault(&p, HOTBED_PIPELINE_NAME, "keys");
    p.plan.size = 3;
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    CHECK_STATUS(hotbed_pipeline_plan_check(&p.plan, &report), HOTBED_ERR_ARGUMENT);
    fake_plan_close(&p);
}

static void unknown_names_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.steps[1].after = "h2dd";
    check_fault(&p, HOTBED_PIPELINE_UNKNOWN, "h2dd");
    p.steps[1].after = "h2d";
    p.steps[1].stream = "disk";
    check_fault(&p, HOTBED_PIPELINE_UNKNOWN, "disk");
    p.steps[1].stream = "dist";
    p.tasks[1].reads = "keys counts";
    check_fault(&p, HOTBED_PIPELINE_UNKNOWN, "counts");
    p.tasks[1].reads = "keys.grad";
    check_fault(&p, HOTBED_PIPELINE_UNKNOWN, "no gradient");
    p.tasks[1].reads = "keys";
    p.tasks[4].backward_of = "forwards";
    check_fault(&p, HOTBED_PIPELINE_UNKNOWN, "forwards");
    p.tasks[4].backward_of = NULL;
    p.plan.num_steps = 4;
    check_fault(&p, HOTBED_PIPELINE_UNSCHEDULED, "'backward' has no step");
    p.plan.num_steps = 5;
    p.steps[4] = p.steps[3];
    check_fault(&p, HOTBED_PIPELINE_UNSCHEDULED, "'forward' has two steps");
    fake_plan_close(&p);
}

static void invalid_stages_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.plan.depth = 2;
    check_fault(&p, HOTBED_PIPELINE_STAGE, "depth 2");
    p.plan.depth = 0;
    p.steps[0].stage = 1;
    check_fault(&p, HOTBED_PIPELINE_STAGE, "stage 0");
    p.steps[0].stage = 0;
    p.steps[4].stage = 16;
    check_fault(&p, HOTBED_PIPELINE_STAGE, "16");
    fake_plan_close(&p);
}

static void cycles_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.steps[3].after = "prefetch backward";
    check_fault(&p, HOTBED_PIPELINE_CYCLE, "the first: 'backward', 'forward'");
    p.steps[3].after = "prefetch forward";
    check_fault(&p, HOTBED_PIPELINE_CYCLE, "itself");
    p.steps[3].after = "prefetch";
    p.steps[0].after = "forward"; /* through stages 0, 1 and 2 */
    check_fault(&p, HOTBED_PIPELINE_STAGE_CYCLE, "the first: 'forward', 'prefetch', 'dist', 'h2d'");
    p.steps[0].after = NULL;
    /* dist(i) after prefetch(i+1), which is after dist(i): no period can run them */
    p.steps[2].after = "dist-1";
    p.steps[1].after = "h2d prefetch+1";
    p.steps[2].stage = 0;
    p.steps[2].stream = "default";
    check_fault(&p, HOTBED_PIPELINE_STAGE_CYCLE, "'prefetch', 'dist'");
    fake_plan_close(&p);
}

static void edges_to_later_stages_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.steps[1].stage = 2;
    p.steps[1].stream = "default";
    check_fault(
        &p, HOTBED_PIPELINE_LATER_STAGE, "'prefetch' (stage 1) comes after 'dist' (stage 2)");
    p.steps[1].stage = 1;
    p.steps[1].stream = "dist";
    p.steps[4].after = "forward prefetch+2"; /* runs a period later */
    check_fault(&p, HOTBED_PIPELINE_LATER_STAGE, "i+2, which runs 1 periods later");
    p.steps[4].after = "forward prefetch+1";
    /* This is also a cycle of tasks, but the message about the cycle of stages is clearer. */
    p.steps[2].after = "dist backward";
    check_fault(&p, HOTBED_PIPELINE_STAGE_CYCLE, "");
    p.steps[2].after = "dist backward-2";
    p.steps[0].after = "backward-1"; /* h2d of period P, backward of P - 2 + 1 */
    check_fault(&p, HOTBED_PIPELINE_LATER_STAGE, "'h2d'");
    fake_plan_close(&p);
}

static void streams_of_two_threads_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.steps[2].group = "side";
    check_fault(&p, HOTBED_PIPELINE_STREAM_GROUPS, "'dist'");
    fake_plan_close(&p);
}

static void unordered_values_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.tasks[2].writes = "keys";
    check_fault(&p, HOTBED_PIPELINE_WRITERS, "'h2d' and 'prefetch'");
    p.tasks[2].writes = NULL;
    p.tasks[0].writes = NULL;
    check_fault(&p, HOTBED_PIPELINE_UNWRITTEN, "keys");
    p.tasks[0].writes = "keys";
    p.steps[1].after = NULL;
    check_fault(&p, HOTBED_PIPELINE_VALUE_ORDER, "'dist' reads 'keys'");
    p.steps[1].after = "h2d";
    p.tasks[4].reads = "rows.grad";
    check_fault(&p, HOTBED_PIPELINE_UNWRITTEN, "gradient of 'rows'");
    p.tasks[2].writes = "rows.grad";
    p.tasks[3].writes = "rows.grad rows";
    p.steps[3].after = "dist";
    check_fault(&p, HOTBED_PIPELINE_WRITERS, "'prefetch' and 'forward' add");
    fake_plan_close(&p);
}

static void unordered_uses_of_a_state_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.steps[4].after = "forward"; /* without TorchRec's rule: backward(i) after prefetch(i+1) */
    check_fault(
        &p, HOTBED_PIPELINE_STATE_ORDER,
        "'backward' of iteration i and 'prefetch' of iteration i+1");
    p.steps[4].after = "forward prefetch+1";
    p.steps[2].after = "dist"; /* without the fence: prefetch(i+2) after backward(i) */
    check_fault(
        &p, HOTBED_PIPELINE_STATE_ORDER,
        "'backward' of iteration i and 'prefetch' of iteration i+2");
    /* one stream orders the tasks without edges */
    p.steps[2].after = "dist";
    p.steps[4].after = "forward";
    p.steps[2].stream = p.steps[1].stream = "default";
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    /* a depth of one does too */
    for (uint32_t i = 0; i < p.n; i++)
        p.steps[i].stage = 0;
    p.steps[2].stream = p.steps[1].stream = "dist";
    p.steps[4].after = "forward";
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    fake_plan_close(&p);
}

/* The tasks are ordered, but not in the order of a serial run: forward would read old rows. */
static void differences_from_the_serial_order_are_found(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "forward", .stage = 0, .stream = "ahead", .serial = "rows"},
        {.name = "backward", .stage = 1, .after = "forward forward+1", .serial = "rows"},
        {.name = NULL}};
    fake_plan p;
    fake_plan_open(&p, backend, sketch);
    check_fault(
        &p, HOTBED_PIPELINE_STATE_ORDER,
        "'backward' of iteration i and 'forward' of iteration i+1 both use 'rows', and are not in "
        "the");
    p.steps[1].after = "forward";
    p.steps[0].after = "backward-1";
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    fake_plan_close(&p);
}

/* An order that leads through the next iteration is none in the last iteration. */
static void an_order_through_the_next_iteration_is_not_enough(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "write", .stage = 0, .stream = "ahead", .writes = "keys"},
        {.name = "between", .stage = 1, .stream = "ahead"},
        {.name = "read", .stage = 2, .after = "between+1", .reads = "keys"},
        {.name = NULL}};
    fake_plan p;
    fake_plan_open(&p, backend, sketch);
    p.plan.values = values;
    p.plan.num_values = 3;
    check_fault(&p, HOTBED_PIPELINE_VALUE_ORDER, "'read' reads 'keys'");
    p.tasks[0].writes = p.tasks[2].reads = NULL;
    p.tasks[0].states = p.tasks[2].states = "tables";
    check_fault(
        &p, HOTBED_PIPELINE_STATE_ORDER, "'write' of iteration i and 'read' of iteration i+0");
    p.tasks[0].states = p.tasks[2].states = NULL;
    p.tasks[0].writes = "rows rows.grad";
    p.tasks[2].reads = "rows.grad";
    check_fault(&p, HOTBED_PIPELINE_VALUE_ORDER, "'read' reads the gradient of 'rows'");
    p.tasks[0].writes = "rows";
    p.tasks[2].reads = "rows";
    p.steps[2].after = "between+1 between";
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    fake_plan_close(&p);
}

static void invalid_backwards_are_found(hotbed_backend backend) {
    fake_plan p;
    open_right(&p, backend);
    p.tasks[3].reads = "local rows";
    p.tasks[3].writes = NULL;
    p.tasks[2].writes = "rows";
    p.tasks[4].backward_of = "forward";
    check_fault(&p, HOTBED_PIPELINE_BACKWARD, "rows.grad");
    p.tasks[4].writes = "rows.grad";
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, NULL));
    p.tasks[4].backward_of = "backward";
    check_fault(&p, HOTBED_PIPELINE_BACKWARD, "");
    fake_plan_close(&p);
}

static void head_of_line_blocking_is_reported(hotbed_backend backend) {
    static const fake_task sketch[] = {
        {.name = "young", .stage = 0, .after = "young-1"},
        {.name = "old", .stage = 1, .after = "young"},
        {.name = NULL}};
    fake_plan p;
    hotbed_pipeline_plan_report report = {.size = sizeof report};
    fake_plan_open(&p, backend, sketch);
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, &report)); /* the oldest iteration goes first */
    CHECK_EQ(report.head_of_line, 0);
    p.plan.order = HOTBED_ORDER_LISTED;
    CHECK_OK(hotbed_pipeline_plan_check(&p.plan, &report));
    CHECK_EQ(report.head_of_line, 1);
    CHECK(strstr(report.head_of_line_text, "'young'") != NULL);
    fake_plan_close(&p);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_valid_plan_passes)},
    {TEST(invalid_sizes_and_names_are_found)},
    {TEST(unknown_names_are_found)},
    {TEST(invalid_stages_are_found)},
    {TEST(cycles_are_found)},
    {TEST(edges_to_later_stages_are_found)},
    {TEST(streams_of_two_threads_are_found)},
    {TEST(unordered_values_are_found)},
    {TEST(unordered_uses_of_a_state_are_found)},
    {TEST(differences_from_the_serial_order_are_found)},
    {TEST(an_order_through_the_next_iteration_is_not_enough)},
    {TEST(invalid_backwards_are_found)},
    {TEST(head_of_line_blocking_is_reported)},
    {NULL, NULL},
};
