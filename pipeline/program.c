/* pipeline/program.c - compile a plan into a program: resolve names, lists and edges. */
#include "pipeline/program.h"

#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEP_EDGES_MOST = 64 }; /* a queue entry has a bit for each */

/* --- names ------------------------------------------------------------------------------------ */

size_t hotbed_next_word(const char **list, const char **word) {
    const char *at = *list == NULL ? "" : *list;
    at += strspn(at, " ");
    size_t length = strcspn(at, " ");
    *word = at;
    *list = at + length;
    return length;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool ends_in_grad(const char *name, size_t length) {
    return length > 5 && strncmp(name + length - 5, ".grad", 5) == 0;
}

static hotbed_status copy_name(
    const hotbed_program *program, hotbed_pipeline_plan_name to, const char *name,
    const char *what) {
    size_t length = name == NULL ? 0 : strlen(name);
    bool good = length > 0 && length < HOTBED_PIPELINE_NAME_BYTES && is_letter(name[0]);
    for (size_t i = 1; good && i < length; i++)
        good = is_letter(name[i]) || (name[i] >= '0' && name[i] <= '9') || name[i] == '.';
    if (!good)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_NAME,
            "%s name '%.60s' is not [A-Za-z_][A-Za-z0-9_.]*, 1 to %d bytes", what,
            name == NULL ? "" : name, HOTBED_PIPELINE_NAME_BYTES - 1);
    memcpy(to, name, length + 1);
    return HOTBED_OK;
}

static hotbed_status fail_twice(const hotbed_program *program, const char *what, const char *name) {
    return hotbed_plan_fail(program, HOTBED_PIPELINE_NAME, "two %s are named '%s'", what, name);
}

static bool is_name(const char *name, const char *word, size_t length) {
    return strncmp(name, word, length) == 0 && name[length] == '\0';
}

uint32_t hotbed_program_find_word(const hotbed_program *program, const char *name, size_t length) {
    for (uint32_t s = 0; s < program->num_steps; s++)
        if (is_name(program->steps[s].name, name, length))
            return s;
    return HOTBED_STEP_NONE;
}

uint32_t hotbed_program_find(const hotbed_program *program, const char *name) {
    return hotbed_program_find_word(program, name, strlen(name));
}

/* --- values, streams, tasks ------------------------------------------------------------------- */

static hotbed_status check_count(
    const hotbed_program *program, const char *what, uint32_t n, uint32_t least, uint32_t most,
    const void *array) {
    if (n < least || n > most)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_SIZE, "%u %s: not in [%u, %u]", n, what, least, most);
    if (n > 0 && array == NULL)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_SIZE, "%u %s, but the array is NULL", n, what);
    return HOTBED_OK;
}

static hotbed_status read_values(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    for (uint32_t v = 0; v < plan->num_values; v++) {
        const hotbed_value_options *from = &plan->values[v];
        hotbed_program_value *to = &program->values[v];
        HOTBED_TRY(copy_name(program, to->name, from->name, "value"));
        if (ends_in_grad(to->name, strlen(to->name)))
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_NAME, "value '%s' ends in .grad, which means its gradient",
                to->name);
        for (uint32_t w = 0; w < v; w++)
            if (strcmp(program->values[w].name, to->name) == 0)
                return fail_twice(program, "values", to->name);
        if (from->bytes > (uint64_t)1 << 48 || (from->grad && from->bytes == 0))
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_SIZE, "value '%s': %llu bytes%s", to->name,
                (unsigned long long)from->bytes, from->grad ? " with a gradient" : "");
        to->bytes = from->bytes;
        to->grad = from->grad;
    }
    program->num_values = plan->num_values;
    return HOTBED_OK;
}

static hotbed_status read_streams(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    for (uint32_t s = 0; s < plan->num_streams; s++) {
        const hotbed_pipeline_plan_stream *from = &plan->streams[s];
        HOTBED_TRY(copy_name(program, program->stream_names[s], from->name, "stream"));
        if (from->stream == NULL)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN, "stream '%s' is NULL", from->name);
        for (uint32_t other = 0; other < s; other++) {
            if (strcmp(program->stream_names[other], from->name) == 0)
                return fail_twice(program, "streams", from->name);
            if (program->streams[other] == from->stream)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_NAME, "streams '%s' and '%s' are the same stream",
                    program->stream_names[other], from->name);
        }
        if (hotbed_stream_backend(from->stream) != hotbed_stream_backend(plan->streams[0].stream) ||
            hotbed_stream_device(from->stream) != hotbed_stream_device(plan->streams[0].stream))
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN,
                "stream '%s' is of another backend or device than '%s'", from->name,
                program->stream_names[0]);
        program->streams[s] = from->stream;
    }
    program->num_streams = plan->num_streams;
    return HOTBED_OK;
}

/* Read a list of values into masks of values and of gradients. */
static hotbed_status read_value_list(
    const hotbed_program *program, const char *task, const char *list, uint64_t *values,
    uint64_t *grads) {
    const char *word;
    for (size_t n = hotbed_next_word(&list, &word); n > 0; n = hotbed_next_word(&list, &word)) {
        bool grad = ends_in_grad(word, n);
        size_t length = grad ? n - 5 : n;
        uint32_t v = 0;
        while (v < program->num_values && !is_name(program->values[v].name, word, length))
            v++;
        if (v == program->num_values)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN, "task '%s': there is no value '%.*s'", task,
                (int)length, word);
        if (grad && !program->values[v].grad)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN, "task '%s': value '%s' has no gradient", task,
                program->values[v].name);
        *(grad ? grads : values) |= (uint64_t)1 << v;
    }
    return HOTBED_OK;
}

static hotbed_status read_states(hotbed_program *program, const char *list, uint64_t *states) {
    const char *word;
    *states = 0;
    for (size_t n = hotbed_next_word(&list, &word); n > 0; n = hotbed_next_word(&list, &word)) {
        uint32_t s = 0;
        while (s < program->num_states && !is_name(program->states[s], word, n))
            s++;
        if (s == program->num_states) {
            if (s == HOTBED_PIPELINE_STATES_MOST)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_SIZE, "more than %d states",
                    HOTBED_PIPELINE_STATES_MOST);
            char name[2 * HOTBED_PIPELINE_NAME_BYTES];
            (void)snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : 0), word);
            HOTBED_TRY(copy_name(program, program->states[s], name, "state"));
            program->num_states++;
        }
        *states |= (uint64_t)1 << s;
    }
    return HOTBED_OK;
}

static hotbed_status read_task(
    const hotbed_task *task, hotbed_program *program, hotbed_program_step *step) {
    step->run = task->run;
    step->self = task->self;
    step->io = task->io;
    step->num_io = task->num_io;
    step->always = task->always;
    step->by_buffer_set = task->by_buffer_set;
    if (task->num_io > 0 && task->io == NULL)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_SIZE, "task '%s': %u io, but the array is NULL", task->name,
            task->num_io);
    for (uint32_t i = 0; i < task->num_io; i++)
        if (task->io[i].capture == NULL || task->io[i].restore == NULL)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN, "task '%s': io %u has no capture or no restore",
                task->name, i);
    HOTBED_TRY(read_value_list(program, task->name, task->reads, &step->reads, &step->reads_grad));
    HOTBED_TRY(
        read_value_list(program, task->name, task->writes, &step->writes, &step->writes_grad));
    HOTBED_TRY(read_states(program, task->states, &step->states));
    HOTBED_TRY(read_states(program, task->serial, &step->in_order));
    step->states |= step->in_order;
    return HOTBED_OK;
}

/* --- steps ------------------------------------------------------------------------------------ */

static hotbed_status find_stream(
    const hotbed_program *program, const hotbed_step *from, uint32_t *stream) {
    const char *name = from->stream == NULL ? "" : from->stream;
    for (*stream = 0; *stream < program->num_streams; ++*stream)
        if (strcmp(program->stream_names[*stream], name) == 0)
            return HOTBED_OK;
    return hotbed_plan_fail(
        program, HOTBED_PIPELINE_UNKNOWN, "step '%s': there is no stream '%.40s'", from->task,
        name);
}

static hotbed_status find_group(hotbed_program *program, const hotbed_step *from, uint32_t *group) {
    const char *name = from->group == NULL ? "main" : from->group;
    for (*group = 0; *group < program->num_groups; ++*group)
        if (strcmp(program->groups[*group], name) == 0)
            return HOTBED_OK;
    HOTBED_TRY(copy_name(program, program->groups[*group], name, "group"));
    program->num_groups++;
    return HOTBED_OK;
}

static hotbed_status read_steps(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    for (uint32_t s = 0; s < plan->num_steps; s++) {
        const hotbed_step *from = &plan->steps[s];
        hotbed_program_step *step = &program->steps[s];
        const hotbed_task *task = NULL;
        HOTBED_TRY(copy_name(program, step->name, from->task, "step's task"));
        if (hotbed_program_find(program, step->name) != HOTBED_STEP_NONE)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNSCHEDULED, "task '%s' has two steps", step->name);
        for (uint32_t t = 0; t < plan->num_tasks; t++)
            if (plan->tasks[t].name != NULL && strcmp(plan->tasks[t].name, step->name) == 0)
                task = &plan->tasks[t];
        if (task == NULL)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN, "step '%s': there is no such task", step->name);
        program->num_steps = s + 1;
        step->stage = from->stage;
        step->ordered = from->ordered;
        HOTBED_TRY(read_task(task, program, step));
        HOTBED_TRY(find_stream(program, from, &step->stream));
        HOTBED_TRY(find_group(program, from, &step->group));
        for (uint32_t other = 0; other < s; other++)
            if (program->steps[other].stream == step->stream &&
                program->steps[other].group != step->group)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_STREAM_GROUPS,
                    "stream '%s' is used from groups '%s' (%s) and '%s' (%s)",
                    program->stream_names[step->stream],
                    program->groups[program->steps[other].group], program->steps[other].name,
                    program->groups[step->group], step->name);
    }
    for (uint32_t t = 0; t < plan->num_tasks; t++) {
        hotbed_pipeline_plan_name name;
        HOTBED_TRY(copy_name(program, name, plan->tasks[t].name, "task"));
        for (uint32_t other = 0; other < t; other++)
            if (strcmp(plan->tasks[other].name, name) == 0)
                return fail_twice(program, "tasks", name);
        if (hotbed_program_find(program, name) == HOTBED_STEP_NONE)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNSCHEDULED, "task '%s' has no step", name);
    }
    return HOTBED_OK;
}

/* One word of `after`: a name, then nothing or a signed distance. */
static hotbed_status read_edge(
    hotbed_program *program, uint32_t s, const char *word, size_t length) {
    hotbed_program_step *step = &program->steps[s];
    char text[2 * HOTBED_PIPELINE_NAME_BYTES], *rest = NULL;
    (void)snprintf(text, sizeof text, "%.*s", (int)length, word);
    size_t name = strcspn(text, "+-");
    long offset = text[name] == '\0' ? 0 : strtol(text + name, &rest, 10);
    const long most = HOTBED_PIPELINE_DEPTH_MOST; /* not labs(): strtol() may return LONG_MIN */
    if (rest != NULL && (*rest != '\0' || offset == 0 || offset < -most || offset > most))
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_NAME, "step '%s' after '%s': the distance is not in [-%d, %d]",
            step->name, text, HOTBED_PIPELINE_DEPTH_MOST, HOTBED_PIPELINE_DEPTH_MOST);
    text[name] = '\0';
    uint32_t on = hotbed_program_find(program, text);
    if (on == HOTBED_STEP_NONE)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_UNKNOWN, "step '%s' after '%s': there is no such task",
            step->name, text);
    if (on == s && offset >= 0)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_CYCLE, "step '%s' comes after itself", step->name);
    const hotbed_program_edge edge = {on, (int32_t)-offset};
    for (uint32_t e = 0; e < step->num_edges; e++) {
        const hotbed_program_edge *other = &program->edges[step->first_edge + e];
        if (other->on == edge.on && other->distance == edge.distance)
            return HOTBED_OK; /* listed twice */
    }
    if (program->num_edges == HOTBED_PIPELINE_EDGES_MOST || step->num_edges == STEP_EDGES_MOST)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_SIZE, "step '%s': more than %d edges, or %d of all steps",
            step->name, STEP_EDGES_MOST, HOTBED_PIPELINE_EDGES_MOST);
    program->edges[program->num_edges++] = edge;
    step->num_edges++;
    if ((uint32_t)labs(offset) > program->max_distance)
        program->max_distance = (uint32_t)labs(offset);
    return HOTBED_OK;
}

static hotbed_status read_edges(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    for (uint32_t s = 0; s < plan->num_steps; s++) {
        const char *list = plan->steps[s].after, *word;
        program->steps[s].first_edge = program->num_edges;
        for (size_t n = hotbed_next_word(&list, &word); n > 0; n = hotbed_next_word(&list, &word))
            HOTBED_TRY(read_edge(program, s, word, n));
    }
    for (uint32_t s = 0; s < plan->num_steps; s++) {
        program->steps[s].root = true;
        program->steps[s].sink = true;
    }
    for (uint32_t s = 0; s < plan->num_steps; s++) {
        for (uint32_t e = 0; e < program->steps[s].num_edges; e++) {
            const hotbed_program_edge *edge = &program->edges[program->steps[s].first_edge + e];
            if (edge->distance == 0) {
                program->steps[s].root = false;
                program->steps[edge->on].sink = false;
            }
        }
    }
    return HOTBED_OK;
}

/* The backward of a task writes the gradients of the values that the task reads. */
static hotbed_status read_backward(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    for (uint32_t t = 0; t < plan->num_tasks; t++) {
        hotbed_program_step *step =
            &program->steps[hotbed_program_find(program, plan->tasks[t].name)];
        step->backward_of = HOTBED_STEP_NONE;
        if (plan->tasks[t].backward_of == NULL)
            continue;
        uint32_t of = hotbed_program_find(program, plan->tasks[t].backward_of);
        if (of == HOTBED_STEP_NONE)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_UNKNOWN,
                "task '%s' is the backward of '%.40s', which is not there", step->name,
                plan->tasks[t].backward_of);
        for (uint32_t v = 0; v < program->num_values; v++)
            if (program->values[v].grad && (program->steps[of].reads >> v & 1) != 0 &&
                (step->writes_grad >> v & 1) == 0)
                return hotbed_plan_fail(
                    program, HOTBED_PIPELINE_BACKWARD,
                    "task '%s' is the backward of '%s', which reads '%s', but does not write "
                    "%s.grad",
                    step->name, program->steps[of].name, program->values[v].name,
                    program->values[v].name);
        if (&program->steps[of] == step)
            return hotbed_plan_fail(
                program, HOTBED_PIPELINE_BACKWARD, "task '%s' is its own backward", step->name);
        step->backward_of = of;
    }
    return HOTBED_OK;
}

static hotbed_status read_depth(const hotbed_pipeline_plan *plan, hotbed_program *program) {
    uint32_t least = UINT32_MAX;
    for (uint32_t s = 0; s < program->num_steps; s++) {
        const hotbed_program_step *step = &program->steps[s];
        least = step->stage < least ? step->stage : least;
        program->max_stage = step->stage > program->max_stage ? step->stage : program->max_stage;
    }
    if (least != 0)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_STAGE, "no step has stage 0, the lowest is %u", least);
    if (program->max_stage >= HOTBED_PIPELINE_DEPTH_MOST)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_STAGE, "stage %u is not below %d", program->max_stage,
            HOTBED_PIPELINE_DEPTH_MOST);
    program->depth = plan->depth == 0 ? program->max_stage + 1 : plan->depth;
    if (program->depth > HOTBED_PIPELINE_DEPTH_MOST)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_SIZE, "depth %u is above %d", program->depth,
            HOTBED_PIPELINE_DEPTH_MOST);
    if (program->depth <= program->max_stage)
        return hotbed_plan_fail(
            program, HOTBED_PIPELINE_STAGE, "depth %u takes no stage %u", program->depth,
            program->max_stage);
    return HOTBED_OK;
}

/* Describe a plan, and count head-of-line blocking: steps that wait for another iteration while a
 * step of a later stage is queued behind them on the same thread, in the same period, and so waits
 * too. */
static void describe(const hotbed_program *program, hotbed_pipeline_plan_report *report) {
    report->num_groups = program->num_groups;
    report->max_stage = program->max_stage;
    for (uint32_t a = 0; a < program->num_steps; a++) {
        const hotbed_program_step *step = &program->steps[program->order[a]];
        bool waits = false;
        for (uint32_t e = 0; e < step->num_edges; e++)
            waits = waits || program->edges[step->first_edge + e].distance != 0;
        for (uint32_t b = a + 1; waits && b < program->num_steps; b++) {
            const hotbed_program_step *behind = &program->steps[program->order[b]];
            if (behind->group != step->group || behind->stage <= step->stage)
                continue;
            if (report->head_of_line++ == 0)
                (void)snprintf(
                    report->head_of_line_text, sizeof report->head_of_line_text,
                    "'%s' waits for another iteration, before '%s' of a later stage in group '%s'",
                    step->name, behind->name, program->groups[step->group]);
            break;
        }
    }
}

/* A capture of a gradient holds all that was added before, so a replay would discard what earlier
 * tasks of the current iteration added: only the first task that adds to it can be skipped. */
static void refuse_later_adders(hotbed_program *program) {
    for (uint32_t v = 0; v < program->num_values; v++) {
        const hotbed_program_step *first = NULL;
        for (uint32_t n = 0; n < program->num_steps; n++) {
            hotbed_program_step *step = &program->steps[program->serial[n]];
            if ((step->writes_grad >> v & 1) == 0)
                continue;
            if (first == NULL) {
                first = step;
            } else if (!step->always) {
                step->always = true;
                hotbed_write(
                    &(hotbed_writer){step->why, sizeof step->why, 0},
                    "it adds to the gradient of '%s' after '%s'", program->values[v].name,
                    first->name);
            }
        }
    }
}

hotbed_status hotbed_program_read(
    const hotbed_pipeline_plan *plan, hotbed_program *program,
    hotbed_pipeline_plan_report *report) {
    hotbed_pipeline_plan p;
    memset(program, 0, sizeof *program);
    program->report = report;
    HOTBED_TRY(hotbed_options_read(
        &p, sizeof p, offsetof(hotbed_pipeline_plan, streams) + sizeof p.streams, plan,
        "hotbed_pipeline_plan"));
    HOTBED_TRY(check_count(program, "tasks", p.num_tasks, 1, HOTBED_PIPELINE_TASKS_MOST, p.tasks));
    HOTBED_TRY(check_count(program, "steps", p.num_steps, 1, HOTBED_PIPELINE_TASKS_MOST, p.steps));
    HOTBED_TRY(
        check_count(program, "values", p.num_values, 0, HOTBED_PIPELINE_VALUES_MOST, p.values));
    HOTBED_TRY(
        check_count(program, "streams", p.num_streams, 1, HOTBED_PIPELINE_STREAMS_MOST, p.streams));
    if (p.order != HOTBED_ORDER_OLDEST && p.order != HOTBED_ORDER_LISTED)
        return hotbed_plan_fail(program, HOTBED_PIPELINE_SIZE, "order %d is unknown", (int)p.order);
    HOTBED_TRY(copy_name(program, program->name, p.name == NULL ? "plan" : p.name, "plan"));
    HOTBED_TRY(read_values(&p, program));
    HOTBED_TRY(read_streams(&p, program));
    HOTBED_TRY(read_steps(&p, program));
    HOTBED_TRY(read_depth(&p, program));
    HOTBED_TRY(read_edges(&p, program));
    HOTBED_TRY(read_backward(&p, program));
    HOTBED_TRY(hotbed_program_arrange(program, p.order));
    refuse_later_adders(program);
    if (report != NULL)
        describe(program, report);
    return hotbed_program_check_order(program, NULL, NULL);
}

hotbed_status hotbed_pipeline_plan_check(
    const hotbed_pipeline_plan *plan, hotbed_pipeline_plan_report *report) {
    hotbed_pipeline_plan_report own = {.size = sizeof own};
    if (report != NULL)
        HOTBED_TRY(hotbed_output_check(report, "hotbed_pipeline_plan_report"));
    hotbed_program *program = hotbed_new(sizeof *program);
    HOTBED_TRY_MEMORY(program, "a check of a plan");
    hotbed_status status = hotbed_program_read(plan, program, &own);
    hotbed_delete(program);
    if (report != NULL)
        hotbed_output_write(report, &own, sizeof own);
    return status;
}
