/* pipeline/context_capture.c - capture and restore the cells of contexts, for shortcuts of their
 * stages.
 *
 * A capture takes the modules' contexts, with the data in their buffers, out of the ring, and a
 * restore puts them back for one batch. Nothing is copied. A stage thus reads the results of an
 * earlier stage of the same batch, whether or not one of the two is skipped. Snapshots of one
 * context share the contexts. */
#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "pipeline/rewrite.h"

struct hotbed_context_snapshot {
    hotbed_rewrite *rewrite;
    uint32_t number, taken; /* taken: number of modules that were captured */
    hotbed_cell_state state;
    hotbed_dist_cell cells[HOTBED_MODULES_MOST];
    void *captured[HOTBED_MODULES_MOST];
    hotbed_awaitable fused[HOTBED_MODULES_MOST];
    const void *served[HOTBED_POSTPROCS_MOST];
};

hotbed_status hotbed_context_capturable(const hotbed_rewrite *rewrite, bool forwards) {
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        const hotbed_rewrite_report *report = &rewrite->modules[m].report;
        const hotbed_module_calls *calls = rewrite->modules[m].module->calls;
        if (report->pipelined && (calls->capture == NULL || calls->restore == NULL ||
                                  calls->forget == NULL || calls->graft == NULL))
            return hotbed_fail(
                HOTBED_ERR_UNSUPPORTED, "module '%s' cannot be captured", report->module);
        if (forwards && !(report->pipelined && rewrite->attached))
            return hotbed_fail(
                HOTBED_ERR_UNSUPPORTED, "module '%s' is not pipelined", report->module);
    }
    return HOTBED_OK;
}

/* --- capture ---------------------------------------------------------------------------------- */

/* Return the state of the pipelined modules' cells, which is the same for all of them. */
static hotbed_cell_state state_of(const hotbed_rewrite *rewrite, uint32_t number) {
    for (uint32_t m = 0; m < rewrite->num_modules; m++)
        if (rewrite->modules[m].report.pipelined)
            return rewrite->contexts[number].cells[m].state;
    return HOTBED_CELL_EMPTY;
}

static hotbed_status take(hotbed_context_snapshot *snapshot, uint32_t m, hotbed_stream *stream) {
    hotbed_dist_cell *cell = &snapshot->rewrite->contexts[snapshot->number].cells[m];
    const hotbed_module *module = snapshot->rewrite->modules[m].module;
    if (cell->kept != NULL && cell->kept != cell->context)
        return hotbed_fail(
            HOTBED_ERR_STATE, "module '%s': context %u has snapshots of another batch",
            module->name, snapshot->number);
    HOTBED_TRY(module->calls->capture(module->self, cell->context, stream, &snapshot->captured[m]));
    if (cell->kept == NULL)
        cell->own = NULL;
    cell->kept = cell->context;
    cell->captures++;
    snapshot->cells[m] = *cell;
    return HOTBED_OK;
}

hotbed_status hotbed_context_capture(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream,
    hotbed_context_snapshot **out) {
    const hotbed_dist_context *context = &rewrite->contexts[number];
    hotbed_cell_state state = state_of(rewrite, number);
    HOTBED_TRY(hotbed_context_in_state(rewrite, number, "capture", state));
    if (state == HOTBED_CELL_EMPTY || state == HOTBED_CELL_BACKWARD)
        return hotbed_fail_value(
            HOTBED_ERR_STATE, "number", number, "capture: context %u is %s", number,
            hotbed_cell_state_name(state));
    HOTBED_TRY(hotbed_context_capturable(rewrite, state == HOTBED_CELL_CONSUMED));
    hotbed_context_snapshot *snapshot = hotbed_new(sizeof *snapshot);
    HOTBED_TRY_MEMORY(snapshot, "a snapshot of context %u", number);
    snapshot->rewrite = rewrite;
    snapshot->number = number;
    snapshot->state = state;
    memcpy(snapshot->fused, context->fused, sizeof snapshot->fused);
    memcpy(snapshot->served, context->served, sizeof snapshot->served);
    hotbed_status status = HOTBED_OK;
    while (status == HOTBED_OK && snapshot->taken < rewrite->num_modules) {
        if (rewrite->modules[snapshot->taken].report.pipelined)
            status = take(snapshot, snapshot->taken, stream);
        snapshot->taken += status == HOTBED_OK;
    }
    if (status == HOTBED_OK)
        *out = snapshot;
    else
        hotbed_context_drop(snapshot, stream);
    return status;
}

/* --- restore ---------------------------------------------------------------------------------- */

/* Return the state that a cell must have before the stage that leads to `state`. */
static hotbed_cell_state state_before(const hotbed_rewrite *rewrite, hotbed_cell_state state) {
    if (state == HOTBED_CELL_CONSUMED && rewrite->kind == HOTBED_FORWARD_PIPELINED)
        return HOTBED_CELL_TENSORS;
    return (hotbed_cell_state)(state - 1);
}

static hotbed_status put(
    const hotbed_context_snapshot *snapshot, uint32_t m, hotbed_dist_cell *cell,
    hotbed_stream *stream) {
    const hotbed_module *module = snapshot->rewrite->modules[m].module;
    const hotbed_dist_cell *from = &snapshot->cells[m];
    if (cell->context != cell->kept && cell->state != HOTBED_CELL_EMPTY &&
        module->calls->cancel != NULL)
        HOTBED_TRY(module->calls->cancel(module->self, cell->context, stream));
    HOTBED_TRY(module->calls->restore(module->self, cell->kept, snapshot->captured[m], stream));
    cell->context = cell->kept;
    cell->state = from->state;
    cell->splits = from->splits;
    cell->tensors = from->tensors;
    cell->input = from->input;
    cell->replayed = from->state == HOTBED_CELL_CONSUMED;
    return HOTBED_OK;
}

hotbed_status hotbed_context_restore(
    const hotbed_context_snapshot *snapshot, hotbed_stream *stream) {
    const hotbed_rewrite *rewrite = snapshot->rewrite;
    hotbed_dist_context *context = &rewrite->contexts[snapshot->number];
    HOTBED_TRY(hotbed_context_in_state(
        rewrite, snapshot->number, "restore", state_before(rewrite, snapshot->state)));
    for (uint32_t m = 0; m < rewrite->num_modules; m++)
        if (rewrite->modules[m].report.pipelined)
            HOTBED_TRY(put(snapshot, m, &context->cells[m], stream));
    if (snapshot->state != HOTBED_CELL_STARTED)
        return HOTBED_OK;
    memcpy(context->fused, snapshot->fused, sizeof context->fused);
    memcpy(context->served, snapshot->served, sizeof context->served);
    return HOTBED_OK;
}

/* --- drop ------------------------------------------------------------------------------------- */

/* Destroy all contexts of the cell but the current batch's. */
static void destroy_spare(const hotbed_module *module, hotbed_dist_cell *cell) {
    void *spare = cell->kept;
    if (cell->own == NULL || cell->context == cell->kept) {
        spare = cell->own;
        cell->own = cell->kept;
    }
    if (cell->context == NULL)
        cell->context = cell->own;
    cell->kept = NULL;
    if (spare != NULL)
        module->calls->context_destroy(module->self, spare);
}

void hotbed_context_drop(hotbed_context_snapshot *snapshot, hotbed_stream *stream) {
    for (uint32_t m = 0; m < snapshot->taken; m++) {
        hotbed_dist_cell *cell = &snapshot->rewrite->contexts[snapshot->number].cells[m];
        const hotbed_module *module = snapshot->rewrite->modules[m].module;
        if (!snapshot->rewrite->modules[m].report.pipelined)
            continue;
        module->calls->forget(module->self, cell->kept, snapshot->captured[m], stream);
        if (--cell->captures == 0)
            destroy_spare(module, cell);
    }
    hotbed_delete(snapshot);
}
