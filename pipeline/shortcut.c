/* pipeline/shortcut.c - tasks that are replayed instead of run, and the gradients around them. */
#include "pipeline/engine.h"

#include <stdarg.h>
#include <stdio.h>

/* FNV-1a of device memory.  Waits: for verification only. */
static hotbed_status digest(
    const void *data, uint64_t bytes, hotbed_stream *stream, uint64_t *out) {
    hotbed_memory host = {0};
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PAGEABLE, (size_t)bytes, NULL, &host));
    hotbed_status status = hotbed_copy(host.data, data, (size_t)bytes, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_finish(stream);
    const unsigned char *at = host.data;
    *out = 0xCBF29CE484222325U;
    for (uint64_t i = 0; status == HOTBED_OK && i < bytes; i++)
        *out = (*out ^ at[i]) * 0x100000001B3U;
    hotbed_memory_free(&host);
    return status;
}

/* A copy of `bytes` at `from`, in stream order. */
static hotbed_status keep(
    hotbed_memory *copy, const void *from, uint64_t bytes, hotbed_stream *stream) {
    if (copy->data == NULL)
        HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, (size_t)bytes, NULL, copy));
    return hotbed_copy(copy->data, from, (size_t)bytes, stream);
}

hotbed_status hotbed_capture_take(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream) {
    const hotbed_program *program = iteration->pipeline->program;
    for (uint32_t v = 0; v < program->num_values; v++) {
        const hotbed_cell *cell = &iteration->cells[v];
        uint64_t bytes = program->values[v].bytes;
        if ((step->writes_grad >> v & 1) != 0 && cell->grad_there)
            HOTBED_TRY(keep(&capture->grads[v], cell->grad, bytes, stream));
        if ((step->writes >> v & 1) == 0)
            continue;
        capture->pointers[v] = cell->data;
        if (cell->own == NULL)
            continue;
        HOTBED_TRY(keep(&capture->values[v], cell->data, bytes, stream));
        if (capture->verify)
            HOTBED_TRY(digest(capture->values[v].data, bytes, stream, &capture->digests[v]));
    }
    for (uint32_t i = 0; i < step->num_io; i++)
        HOTBED_TRY(
            step->io[i].capture(step->io[i].self, iteration, stream, &capture->snapshots[i]));
    capture->there = true;
    return HOTBED_OK;
}

hotbed_status hotbed_capture_replay(
    hotbed_capture *capture, const hotbed_program_step *step, hotbed_iteration *iteration,
    hotbed_stream *stream) {
    const hotbed_program *program = iteration->pipeline->program;
    for (uint32_t v = 0; v < program->num_values; v++) {
        hotbed_cell *cell = &iteration->cells[v];
        uint64_t bytes = program->values[v].bytes, now = 0;
        if (capture->grads[v].data != NULL) {
            HOTBED_TRY(hotbed_copy(cell->grad, capture->grads[v].data, (size_t)bytes, stream));
            cell->grad_there = true;
        }
        if ((step->writes >> v & 1) == 0)
            continue;
        cell->data = cell->own == NULL ? capture->pointers[v] : capture->values[v].data;
        if (!capture->verify || cell->own == NULL)
            continue;
        HOTBED_TRY(digest(cell->data, bytes, stream, &now));
        if (now != capture->digests[v])
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "value '%s' was changed by a task that reads it",
                program->values[v].name);
    }
    for (uint32_t i = 0; i < step->num_io; i++)
        HOTBED_TRY(step->io[i].restore(step->io[i].self, iteration, stream, capture->snapshots[i]));
    return HOTBED_OK;
}

hotbed_status hotbed_graft(
    const hotbed_program_step *forward, hotbed_iteration *iteration, hotbed_stream *stream) {
    void *grad;
    for (uint32_t v = 0; v < iteration->pipeline->program->num_values; v++)
        if ((forward->reads >> v & 1) != 0 && iteration->cells[v].grad != NULL)
            HOTBED_TRY(hotbed_iteration_grad_add(iteration, v, stream, &grad));
    return HOTBED_OK;
}

void hotbed_capture_drop(hotbed_capture *capture, const hotbed_program_step *step) {
    for (uint32_t i = 0; i < step->num_io; i++) {
        if (step->io[i].release != NULL && capture->snapshots[i] != NULL)
            step->io[i].release(step->io[i].self, capture->snapshots[i]);
        capture->snapshots[i] = NULL;
    }
    for (uint32_t v = 0; v < HOTBED_PIPELINE_VALUES_MOST; v++) {
        hotbed_memory_free(&capture->values[v]);
        hotbed_memory_free(&capture->grads[v]);
    }
    capture->there = false;
    capture->on = false;
}

/* What a rank says that cannot read its list: no other says it. */
static const uint64_t refused = UINT64_C(0x9E3779B97F4A7C15);

/* --- choosing --------------------------------------------------------------------------------- */

static hotbed_status read_tasks(
    const hotbed_program *program, const char *tasks, uint64_t *chosen) {
    const char *word;
    *chosen = 0;
    for (size_t n = hotbed_next_word(&tasks, &word); n > 0; n = hotbed_next_word(&tasks, &word)) {
        uint32_t s = 0;
        while (s < program->num_steps &&
               (strncmp(program->steps[s].name, word, n) != 0 || program->steps[s].name[n] != '\0'))
            s++;
        if (s == program->num_steps)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "plan %s has no task '%.*s'", program->name, (int)n, word);
        if (program->steps[s].always)
            return hotbed_fail(
                HOTBED_ERR_UNSUPPORTED, "task '%s' cannot be skipped%s%s", program->steps[s].name,
                program->steps[s].why[0] == '\0' ? "" : ": ", program->steps[s].why);
        *chosen |= (uint64_t)1 << s;
    }
    return HOTBED_OK;
}

/* All ranks have the same word, or all get COMM. */
static hotbed_status agree(const hotbed_agreement *agreement, uint64_t word) {
    uint64_t least = 0, least_inverse = 0;
    if (agreement->least == NULL)
        return HOTBED_OK;
    HOTBED_TRY(agreement->least(agreement->self, word, &least));
    HOTBED_TRY(agreement->least(agreement->self, ~word, &least_inverse));
    if (least != word || least_inverse != ~word)
        return hotbed_fail(
            HOTBED_ERR_COMM,
            "ranks name different tasks for a shortcut: here %016llx, elsewhere %016llx",
            (unsigned long long)word, (unsigned long long)(least != word ? least : ~least_inverse));
    return HOTBED_OK;
}

void hotbed_pipeline_refuse(hotbed_pipeline *pipeline, uint32_t step, const char *format, ...) {
    hotbed_program_step *refused_step = &pipeline->program->steps[step];
    va_list args;
    va_start(args, format);
    refused_step->always = true;
    (void)vsnprintf(refused_step->why, sizeof refused_step->why, format, args);
    va_end(args);
}

static hotbed_status make_capture(hotbed_pipeline *pipeline, uint32_t s, uint32_t slot) {
    const hotbed_program_step *step = &pipeline->program->steps[s];
    hotbed_capture **to = hotbed_pipeline_capture(pipeline, s, slot);
    if (*to != NULL)
        return HOTBED_OK;
    hotbed_capture *capture = hotbed_new(sizeof *capture);
    void **snapshots = hotbed_new((step->num_io + 1) * sizeof *snapshots);
    if (capture == NULL || snapshots == NULL) {
        hotbed_delete(capture);
        hotbed_delete(snapshots);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a shortcut of '%s'", step->name);
    }
    capture->snapshots = snapshots;
    *to = capture;
    return HOTBED_OK;
}

/* The streams' work is done: captured memory may be freed. */
static hotbed_status finish_streams(const hotbed_pipeline *pipeline) {
    for (uint32_t i = 0; i < pipeline->program->num_streams; i++)
        HOTBED_TRY(hotbed_stream_finish(pipeline->program->streams[i]));
    return hotbed_stream_finish(pipeline->stream);
}

hotbed_status hotbed_pipeline_shortcut(hotbed_pipeline *pipeline, const char *tasks, bool verify) {
    uint64_t chosen = 0;
    if (pipeline == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "pipeline is NULL");
    HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_shortcut"));
    hotbed_status status = read_tasks(pipeline->program, tasks, &chosen);
    if (status != HOTBED_OK) { /* the others must learn of it, too */
        char text[128];
        (void)snprintf(text, sizeof text, "%s", hotbed_last_error());
        (void)!agree(&pipeline->options.agreement, refused);
        return hotbed_fail(status, "%s", text);
    }
    HOTBED_TRY(agree(&pipeline->options.agreement, chosen));
    HOTBED_TRY(finish_streams(pipeline));
    const uint32_t depth = pipeline->program->depth;
    for (uint32_t s = 0; s < pipeline->program->num_steps; s++)
        for (uint32_t slot = 0; (chosen >> s & 1) != 0 && slot < depth; slot++)
            HOTBED_TRY(make_capture(pipeline, s, slot));
    for (uint32_t c = 0; c < pipeline->program->num_steps * depth; c++) {
        hotbed_capture *capture = pipeline->captures[c];
        if (capture == NULL)
            continue;
        hotbed_capture_drop(capture, &pipeline->program->steps[c / depth]);
        capture->on = (chosen >> (c / depth) & 1) != 0;
        capture->verify = verify;
    }
    return finish_streams(pipeline); /* what releasing enqueued */
}
