/* tests/pipeline/fake_plan.c - plans whose tasks only count and record, see fake_plan.h. */
#include "tests/pipeline/fake_plan.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

uint32_t fake_plan_find(const fake_plan *p, const char *task) {
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->tasks[i].name, task) == 0)
            return i;
    hotbed_check_failed(__FILE__, __LINE__, "there is no task %s", task);
}

static void note(fake_plan *p, uint64_t iteration, uint32_t task) {
    CHECK(p->num_ran < FAKE_PLAN_RUNS);
    p->ran[p->num_ran++] = (fake_run){iteration, task};
}

static hotbed_status run_part(
    hotbed_iteration *iteration, void *self_pointer, hotbed_stream *stream) {
    fake_task_state *self = self_pointer;
    fake_plan *p = self->all;
    uint64_t number = hotbed_iteration_number(iteration);
    (void)pthread_mutex_lock(&p->lock);
    note(p, number, self->number);
    if (self->held_at == number + 1) {
        p->waiting++;
        (void)pthread_cond_broadcast(&p->changed);
        while (!p->open)
            (void)pthread_cond_wait(&p->changed, &p->lock);
        p->waiting--;
    }
    (void)pthread_mutex_unlock(&p->lock);
    __atomic_fetch_add(&self->runs, 1, __ATOMIC_RELAXED);
    if (self->fails_at == number + 1)
        return hotbed_fail(HOTBED_ERR_FULL, "it was asked to fail");
    return self->work == NULL ? HOTBED_OK : self->work(iteration, self, stream);
}

static void add_stream(fake_plan *p, const char *name) {
    uint32_t i = 0;
    while (i < p->plan.num_streams && strcmp(p->streams[i].name, name) != 0)
        i++;
    if (i < p->plan.num_streams)
        return;
    CHECK(i < FAKE_PLAN_STREAMS);
    p->streams[i].name = name;
    CHECK_OK(hotbed_stream_create(p->backend, 0, &p->streams[i].stream));
    p->plan.num_streams++;
}

void fake_plan_open(fake_plan *p, hotbed_backend backend, const fake_task *sketch) {
    memset(p, 0, sizeof *p);
    p->backend = backend;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->changed, NULL);
    p->plan = (hotbed_pipeline_plan){.size = sizeof p->plan};
    p->options =
        (hotbed_pipeline_options){.size = sizeof p->options, .log_entries = FAKE_PLAN_RUNS};
    for (const fake_task *s = sketch; s->name != NULL; s++) {
        uint32_t i = p->n++;
        const char *stream = s->stream == NULL ? "default" : s->stream;
        CHECK(i < FAKE_PLAN_MOST);
        add_stream(p, stream);
        p->selves[i].all = p;
        p->selves[i].number = i;
        p->tasks[i] = (hotbed_task){
            .name = s->name,
            .run = run_part,
            .self = &p->selves[i],
            .reads = s->reads,
            .writes = s->writes,
            .states = s->states,
            .serial = s->serial,
            .backward_of = s->backward_of};
        p->steps[i] = (hotbed_step){
            .task = s->name,
            .stage = s->stage,
            .stream = stream,
            .group = s->group,
            .ordered = s->ordered,
            .after = s->after};
    }
    p->plan.num_tasks = p->n;
    p->plan.num_steps = p->n;
    p->plan.tasks = p->tasks;
    p->plan.steps = p->steps;
    p->plan.streams = p->streams;
}

void fake_plan_close(fake_plan *p) {
    hotbed_pipeline_destroy(p->pipeline);
    for (uint32_t i = 0; i < p->plan.num_streams; i++)
        hotbed_stream_destroy(p->streams[i].stream);
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->lock);
}

static hotbed_status next_batch(void *self, void **batch, bool *end) {
    fake_plan *p = self;
    *end = p->next == p->batches;
    if (!*end)
        *batch = &p->memory[p->next++ % FAKE_PLAN_BATCHES];
    return HOTBED_OK;
}

static void batch_done(void *self, void *batch, hotbed_event *event) {
    fake_plan *p = self;
    p->given_back++;
    p->unused += event == NULL;
}

void fake_plan_bind(fake_plan *p, uint64_t batches) {
    const hotbed_loader loader = {.next = next_batch, .done = batch_done, .self = p};
    p->batches = batches;
    p->next = 0;
    p->given_back = 0;
    CHECK_OK(hotbed_pipeline_bind(p->pipeline, &loader));
}

void fake_plan_start(fake_plan *p, uint64_t batches) {
    CHECK_OK(hotbed_pipeline_create(&p->plan, &p->options, &p->pipeline));
    fake_plan_bind(p, batches);
}

void fake_plan_hold(fake_plan *p, const char *task, uint64_t iteration) {
    p->selves[fake_plan_find(p, task)].held_at = iteration + 1;
}

void fake_plan_await_waiting(fake_plan *p, uint32_t tasks) {
    (void)pthread_mutex_lock(&p->lock);
    while (p->waiting < tasks)
        (void)pthread_cond_wait(&p->changed, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
}

void fake_plan_release(fake_plan *p) {
    (void)pthread_mutex_lock(&p->lock);
    p->open = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

uint64_t fake_plan_run(fake_plan *p) {
    const hotbed_iteration *iteration;
    for (uint64_t n = 0;; n++) {
        CHECK_OK(hotbed_pipeline_progress(p->pipeline, &iteration));
        if (iteration == NULL)
            return n;
    }
}

const char *fake_plan_order(fake_plan *p) {
    static _Thread_local char text[FAKE_PLAN_RUNS * 24];
    size_t used = 0;
    text[0] = '\0';
    (void)pthread_mutex_lock(&p->lock);
    for (uint64_t i = 0; i < p->num_ran && used < sizeof text; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "%s%s%llu", i == 0 ? "" : " ",
            p->tasks[p->ran[i].task].name, (unsigned long long)p->ran[i].iteration);
    (void)pthread_mutex_unlock(&p->lock);
    return text;
}
