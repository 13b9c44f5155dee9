/* pipeline/iteration.c - the batch, values and gradients that the tasks of one iteration share. */
#include "pipeline/state.h"

#include "base/check.h"

uint64_t hotbed_iteration_number(const hotbed_iteration *iteration) {
    return iteration == NULL ? 0 : iteration->number;
}

uint32_t hotbed_iteration_buffer_set(const hotbed_iteration *iteration) {
    return iteration == NULL ? 0 : iteration->buffer_set;
}

void *hotbed_iteration_batch(const hotbed_iteration *iteration) {
    return iteration == NULL ? NULL : iteration->batch;
}

void *hotbed_iteration_value(const hotbed_iteration *iteration, uint32_t value) {
    if (iteration == NULL || value >= iteration->pipeline->program->num_values)
        return NULL;
    return iteration->cells[value].data;
}

static hotbed_status check_value(const hotbed_iteration *iteration, uint32_t value) {
    HOTBED_TRY(hotbed_check_pointer("iteration", iteration));
    HOTBED_TRY(hotbed_check_below("value", value, iteration->pipeline->program->num_values));
    return HOTBED_OK;
}

hotbed_status hotbed_iteration_set(hotbed_iteration *iteration, uint32_t value, void *pointer) {
    HOTBED_TRY(check_value(iteration, value));
    if (iteration->cells[value].own != NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "value '%s' has memory, it is not a pointer",
            iteration->pipeline->program->values[value].name);
    iteration->cells[value].data = pointer;
    return HOTBED_OK;
}

static hotbed_status check_grad(const hotbed_iteration *iteration, uint32_t value) {
    HOTBED_TRY(check_value(iteration, value));
    if (iteration->cells[value].grad == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "value '%s' has no gradient",
            iteration->pipeline->program->values[value].name);
    return HOTBED_OK;
}

hotbed_status hotbed_iteration_grad_add(
    hotbed_iteration *iteration, uint32_t value, hotbed_stream *stream, void **grad) {
    HOTBED_TRY(check_grad(iteration, value));
    HOTBED_TRY(hotbed_check_pointer("grad", grad));
    hotbed_cell *cell = &iteration->cells[value];
    if (!cell->grad_there) {
        size_t bytes = (size_t)iteration->pipeline->program->values[value].bytes;
        HOTBED_TRY(hotbed_fill(cell->grad, 0, bytes, stream));
        cell->grad_there = true;
    }
    *grad = cell->grad;
    return HOTBED_OK;
}

hotbed_status hotbed_iteration_grad(
    const hotbed_iteration *iteration, uint32_t value, void **grad) {
    HOTBED_TRY(check_grad(iteration, value));
    HOTBED_TRY(hotbed_check_pointer("grad", grad));
    if (!iteration->cells[value].grad_there)
        return hotbed_fail_value(
            HOTBED_ERR_STATE, NULL, iteration->number,
            "the gradient of '%s' is read, but nobody added to it in iteration %llu",
            iteration->pipeline->program->values[value].name,
            (unsigned long long)iteration->number);
    *grad = iteration->cells[value].grad;
    return HOTBED_OK;
}
