/* tests/pipeline/test_timeline.c - a trace is valid JSON with every task, a picture valid SVG with
 * a rectangle for every task. */
#include "hotbed/profile.h"
#include "tests/pipeline/example.h"
#include "tests/support/comma.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    char *text = calloc(1, 1 << 22);
    CHECK(text != NULL);
    size_t n = fread(text, 1, (1 << 22) - 1, file);
    CHECK(n > 0);
    (void)fclose(file);
    return text;
}

static uint64_t count(const char *text, const char *word) {
    uint64_t n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

/* --- a strict parser of the JSON that traces use -------------------------------------------- */

static const char *skip_space(const char *at) {
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

static const char *read_string(const char *at) {
    CHECK_EQ(*at, '"');
    for (at++; *at != '"'; at++)
        CHECK(*at >= ' ' && *at != '\\'); /* no name needs an escape */
    return at + 1;
}

static const char *read_value(const char *at);

static const char *read_items(const char *at, char close, bool keys) {
    at = skip_space(at + 1);
    while (*at != close) {
        if (keys) {
            at = skip_space(read_string(at));
            CHECK_EQ(*at, ':');
            at = skip_space(at + 1);
        }
        at = skip_space(read_value(at));
        if (*at == ',') {
            at = skip_space(at + 1);
            CHECK(*at != close); /* no trailing comma */
        } else {
            CHECK_EQ(*at, close);
        }
    }
    return at + 1;
}

static const char *read_value(const char *at) {
    char *end;
    if (*at == '{')
        return read_items(at, '}', true);
    if (*at == '[')
        return read_items(at, ']', false);
    if (*at == '"')
        return read_string(at);
    (void)strtod(at, &end);
    CHECK(end > at);
    return end;
}

/* Every tag is closed, and texts have only ordinary characters. */
static void check_xml(const char *text) {
    int depth = 0;
    for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        CHECK(end != NULL);
        if (at[1] == '/')
            depth--;
        else if (end[-1] != '/')
            depth++;
        CHECK(depth >= 0);
    }
    CHECK_EQ(depth, 0);
    CHECK(strchr(text, '&') == NULL);
}

/* --- tests ------------------------------------------------------------------------------------ */

static hotbed_train *train_of(example *s, const char *plan, bool timed, int rank) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_train *train;
    options.plan = plan;
    options.backend = s->backend;
    options.pipeline = (hotbed_pipeline_options){
        .size = sizeof options.pipeline, .log_entries = 1000, .timed = timed, .rank = rank};
    CHECK_OK(hotbed_train_create(&s->trainer, &options, &train));
    example_bind(s, train, 0, 12);
    CHECK_EQ(example_run(train), 12);
    return train;
}

static void a_trace_is_json_with_every_task(hotbed_backend backend) {
    example s;
    char path[512], word[64];
    const hotbed_step *steps;
    uint32_t n;
    (void)snprintf(path, sizeof path, "%s/trace.json", hotbed_test_directory());
    example_open(&s, backend);
    hotbed_train *train = train_of(&s, "sw-pipelined", true, 3);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    CHECK_OK(hotbed_timeline_write_trace(1, &pipeline, path));
    char *text = read_file(path);
    CHECK_STRING(skip_space(read_value(text)), "");
    CHECK_OK(hotbed_train_plan_steps("sw-pipelined", &steps, &n));
    for (uint32_t i = 0; i < n; i++) { /* host time, and device time where it is known */
        (void)snprintf(word, sizeof word, "\"name\":\"%s\",\"cat\":\"host\"", steps[i].task);
        CHECK_EQ(count(text, word), 12);
        (void)snprintf(word, sizeof word, "\"name\":\"%s\",\"cat\":\"device\"", steps[i].task);
        CHECK(count(text, word) > 0);
    }
    CHECK(count(text, "\"iteration\":7,") >= n);
    CHECK_EQ(count(text, "\"pid\":3"), count(text, "\"pid\":"));
    CHECK(strstr(text, "\"stream prefetch\"") != NULL);
    CHECK(strstr(text, "\"host io\"") != NULL);
    free(text);
    hotbed_train_destroy(train);
    example_close(&s);
}

static void a_picture_has_a_box_for_every_task(hotbed_backend backend) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/picture.svg", hotbed_test_directory());
    for (int timed = 0; timed < 2; timed++) {
        example s;
        example_open(&s, backend);
        hotbed_train *train = train_of(&s, "prefetch", timed == 1, 0);
        hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
        CHECK_OK(hotbed_timeline_write_picture(1, &pipeline, 0, path));
        char *text = read_file(path);
        check_xml(text);
        if (timed == 0)
            CHECK_EQ(count(text, "<title>"), 12 * 11);
        CHECK(count(text, "<title>prefetch ") > 0);
        free(text);
        CHECK_OK(hotbed_timeline_write_picture(1, &pipeline, 2, path));
        text = read_file(path);
        check_xml(text);
        CHECK_EQ(count(text, "<title>forward 9:"), 0);
        CHECK_EQ(count(text, "<title>forward 11:"), 1);
        free(text);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

/* Times and coordinates have decimal points where the program's locale has a comma. */
static void a_timeline_has_decimal_points(hotbed_backend backend) {
    example s;
    char json[512], svg[512];
    (void)snprintf(json, sizeof json, "%s/comma.json", hotbed_test_directory());
    (void)snprintf(svg, sizeof svg, "%s/comma.svg", hotbed_test_directory());
    const char *missing = comma_begin();
    if (missing != NULL)
        SKIP(missing);
    example_open(&s, backend);
    hotbed_train *train = train_of(&s, "prefetch", true, 0);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    CHECK_OK(hotbed_timeline_write_trace(1, &pipeline, json));
    CHECK_OK(hotbed_timeline_write_picture(1, &pipeline, 0, svg));
    hotbed_train_destroy(train);
    example_close(&s);
    comma_end();
    char *text = read_file(json);
    CHECK_STRING(skip_space(read_value(text)), "");
    free(text);
    text = read_file(svg);
    check_xml(text);
    for (const char *at = text; (at = strstr(at, "<rect x=\"")) != NULL; at++) {
        const char *number = at + strlen("<rect x=\"");
        CHECK_EQ(number[strspn(number, "0123456789.")], '"');
    }
    free(text);
}

static void ranks_share_a_file(hotbed_backend backend) {
    example s;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/ranks.json", hotbed_test_directory());
    example_open(&s, backend);
    hotbed_train *trains[2];
    hotbed_pipeline *pipelines[2];
    for (int r = 0; r < 2; r++) { /* one after the other: a model has one pipeline at a time */
        trains[r] = train_of(&s, "none", false, r);
        pipelines[r] = hotbed_train_pipeline(trains[r]);
    }
    CHECK_OK(hotbed_timeline_write_trace(2, pipelines, path));
    char *text = read_file(path);
    CHECK_STRING(skip_space(read_value(text)), "");
    CHECK_EQ(count(text, "\"pid\":0"), count(text, "\"pid\":1"));
    free(text);
    (void)snprintf(path, sizeof path, "%s/ranks.svg", hotbed_test_directory());
    CHECK_OK(hotbed_timeline_write_picture(2, pipelines, 0, path));
    text = read_file(path);
    check_xml(text);
    CHECK(strstr(text, "rank 1 main") != NULL);
    free(text);
    for (int r = 0; r < 2; r++)
        hotbed_train_destroy(trains[r]);
    example_close(&s);
}

static void write_errors_are_returned(hotbed_backend backend) {
    example s;
    example_open(&s, backend);
    hotbed_train *train = train_of(&s, "none", false, 0);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train), *none = NULL;
    CHECK_STATUS(hotbed_timeline_write_trace(0, &pipeline, "x"), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_timeline_write_trace(1, &none, "x"), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_timeline_write_trace(1, &pipeline, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_timeline_write_picture(1, &pipeline, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_timeline_write_trace(1, &pipeline, "/no/such/directory/x"), HOTBED_ERR_IO);
    CHECK(strstr(hotbed_last_error(), strerror(ENOENT)) != NULL);
    CHECK_STATUS(hotbed_timeline_write_picture(1, &pipeline, 0, "/dev/full"), HOTBED_ERR_IO);
    CHECK(strstr(hotbed_last_error(), strerror(ENOSPC)) != NULL);
    hotbed_train_destroy(train);
    train = NULL;
    hotbed_train_options options = {.size = sizeof options, .plan = "none", .backend = backend};
    CHECK_OK(hotbed_train_create(&s.trainer, &options, &train)); /* without a log */
    pipeline = hotbed_train_pipeline(train);
    CHECK_STATUS(hotbed_timeline_write_trace(1, &pipeline, "x"), HOTBED_ERR_STATE);
    hotbed_train_destroy(train);
    example_close(&s);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_trace_is_json_with_every_task)}, {TEST(a_picture_has_a_box_for_every_task)},
    {TEST(a_timeline_has_decimal_points)},   {TEST(ranks_share_a_file)},
    {TEST(write_errors_are_returned)},       {NULL, NULL},
};
