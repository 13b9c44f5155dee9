/* pipeline/shortcut.c - choose which tasks are replayed instead of run. */
#include "base/check.h"
#include "base/text.h"
#include "pipeline/capture.h"
#include "pipeline/engine.h"

#include <stdarg.h>

/* The word of a rank that cannot read its list of tasks; no valid list has it. */
static const uint64_t refused = UINT64_C(0x9E3779B97F4A7C15);

/* --- choosing --------------------------------------------------------------------------------- */

static hotbed_status read_tasks(
    const hotbed_program *program, const char *tasks, uint64_t *chosen) {
    const char *word;
    *chosen = 0;
    for (size_t n = hotbed_next_word(&tasks, &word); n > 0; n = hotbed_next_word(&tasks, &word)) {
        const uint32_t s = hotbed_program_find_word(program, word, n);
        if (s == HOTBED_STEP_NONE)
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

/* Check that all ranks have the same word; otherwise all ranks fail with COMM. */
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
    (void)hotbed_vformat(refused_step->why, sizeof refused_step->why, format, args);
    va_end(args);
}

static hotbed_status make_capture(hotbed_pipeline *pipeline, uint32_t s, uint32_t set) {
    const hotbed_program_step *step = &pipeline->program->steps[s];
    hotbed_capture **to = hotbed_pipeline_capture(pipeline, s, set);
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

/* Wait for all streams, so that captured memory can be freed. */
static hotbed_status finish_streams(const hotbed_pipeline *pipeline) {
    for (uint32_t i = 0; i < pipeline->program->num_streams; i++)
        HOTBED_TRY(hotbed_stream_finish(pipeline->program->streams[i]));
    return hotbed_stream_finish(pipeline->stream);
}

hotbed_status hotbed_pipeline_shortcut(hotbed_pipeline *pipeline, const char *tasks) {
    uint64_t chosen = 0;
    HOTBED_TRY(hotbed_check_pointer("pipeline", pipeline));
    HOTBED_TRY(hotbed_pipeline_idle(pipeline, "hotbed_pipeline_shortcut"));
    hotbed_status status = read_tasks(pipeline->program, tasks, &chosen);
    if (status != HOTBED_OK) { /* make the call fail on the other ranks too */
        hotbed_error error;
        hotbed_error_copy(&error);
        (void)!agree(&pipeline->options.agreement, refused);
        return hotbed_error_return(&error, status);
    }
    HOTBED_TRY(agree(&pipeline->options.agreement, chosen));
    HOTBED_TRY(finish_streams(pipeline));
    const uint32_t depth = pipeline->program->depth;
    for (uint32_t s = 0; s < pipeline->program->num_steps; s++)
        for (uint32_t set = 0; (chosen >> s & 1) != 0 && set < depth; set++)
            HOTBED_TRY(make_capture(pipeline, s, set));
    for (uint32_t c = 0; c < pipeline->program->num_steps * depth; c++) {
        hotbed_capture *capture = pipeline->captures[c];
        if (capture == NULL)
            continue;
        hotbed_capture_drop(capture, &pipeline->program->steps[c / depth]);
        capture->on = (chosen >> (c / depth) & 1) != 0;
    }
    return finish_streams(pipeline); /* releasing snapshots enqueues work */
}
