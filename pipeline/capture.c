/* pipeline/capture.c - capture the outputs of a task and replay them; the gradients around them. */
#include "pipeline/capture.h"

/* Copy `bytes` bytes at `from` into memory of their own, in stream order. */
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
    }
    for (uint32_t i = 0; i < step->num_io; i++)
        HOTBED_TRY_CALLBACK(
            "capture of an io",
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
        uint64_t bytes = program->values[v].bytes;
        if (capture->grads[v].data != NULL) {
            HOTBED_TRY(hotbed_copy(cell->grad, capture->grads[v].data, (size_t)bytes, stream));
            cell->grad_there = true;
        }
        if ((step->writes >> v & 1) != 0)
            cell->data = cell->own == NULL ? capture->pointers[v] : capture->values[v].data;
    }
    for (uint32_t i = 0; i < step->num_io; i++)
        HOTBED_TRY_CALLBACK(
            "restore of an io",
            step->io[i].restore(step->io[i].self, iteration, stream, capture->snapshots[i]));
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
