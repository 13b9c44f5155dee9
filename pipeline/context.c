/* pipeline/context.c - the stages of a batch's embeddings: start, wait, prefetch, forward,
 * backward. */
#include "base/check.h"
#include "base/error.h"
#include "base/port.h"
#include "base/text.h"
#include "pipeline/rewrite.h"

const char *hotbed_cell_state_name(hotbed_cell_state state) {
    static const char *const names[] = {"EMPTY",      "STARTED",  "TENSORS",
                                        "PREFETCHED", "CONSUMED", "BACKWARD"};
    return HOTBED_NAME(names, state, "UNKNOWN");
}

static hotbed_status fail_state(
    const hotbed_rewritten *module, const hotbed_dist_context *context, const char *call,
    hotbed_cell_state state, hotbed_cell_state wanted) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: module '%s' of batch %llu of context %u is %s, not %s", call,
        module->report.module, (unsigned long long)context->batches,
        (unsigned)(context - module->rewrite->contexts), hotbed_cell_state_name(state),
        hotbed_cell_state_name(wanted));
}

hotbed_status hotbed_context_in_state(
    const hotbed_rewrite *rewrite, uint32_t number, const char *call, hotbed_cell_state wanted) {
    const hotbed_dist_context *context = &rewrite->contexts[number];
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_cell_state state = context->cells[m].state;
        if (rewrite->modules[m].report.pipelined && state != wanted)
            return fail_state(&rewrite->modules[m], context, call, state, wanted);
    }
    return HOTBED_OK;
}

/* --- start ------------------------------------------------------------------------------------ */

/* The arguments of functions that evaluate nodes. */
typedef struct looking {
    hotbed_rewrite *rewrite;
    hotbed_dist_context *context;
    uint32_t number;
    hotbed_stream *stream;
} looking;

/* Return the result of a postproc, which runs once per batch. */
static hotbed_status run_postproc(
    void *self, const hotbed_node *node, const void *batch, const void **out) {
    looking *l = self;
    const void *arguments[HOTBED_ARGUMENTS_MOST];
    uint32_t p = 0;
    while (p < l->rewrite->num_postprocs && l->rewrite->postprocs[p] != node->postproc)
        p++;
    if (p == l->rewrite->num_postprocs)
        return hotbed_fail_bound(
            HOTBED_ERR_ARGUMENT, HOTBED_POSTPROCS_MOST, "more than %d postprocs",
            HOTBED_POSTPROCS_MOST);
    if (l->context->served[p] == NULL) {
        for (uint32_t i = 0; i < node->n; i++)
            HOTBED_TRY(hotbed_trace_evaluate(
                &l->rewrite->trace, node->arguments[i], batch, run_postproc, l, &arguments[i]));
        HOTBED_TRY_CALLBACK(
            "a postproc", node->postproc->call(
                              node->postproc->self, l->number, arguments, node->n, l->stream,
                              &l->context->served[p]));
    }
    *out = l->context->served[p];
    return HOTBED_OK;
}

static hotbed_status start_module(looking *l, uint32_t m, const void *batch) {
    const hotbed_rewritten *to = &l->rewrite->modules[m];
    hotbed_dist_cell *cell = &l->context->cells[m];
    const void *arguments[HOTBED_ARGUMENTS_MOST];
    if (cell->own == NULL) /* a snapshot owns it now */
        HOTBED_TRY(to->module->calls->context_create(to->module->self, l->stream, &cell->own));
    cell->context = cell->own;
    for (uint32_t i = 0; i < to->n; i++)
        HOTBED_TRY(hotbed_trace_evaluate(
            &l->rewrite->trace, to->arguments[i], batch, run_postproc, l, &arguments[i]));
    HOTBED_TRY(to->module->calls->input_dist(
        to->module->self, cell->context, arguments, to->n, l->stream, &cell->splits));
    cell->state = HOTBED_CELL_STARTED;
    return HOTBED_OK;
}

/* List the members of a fused group, in order. Returns their number. */
static uint32_t list_group(const hotbed_rewrite *rewrite, uint32_t group, uint32_t *members) {
    uint32_t n = 0;
    for (uint32_t m = 0; m < rewrite->num_modules; m++)
        if (rewrite->modules[m].group == group)
            members[n++] = m;
    return n;
}

/* Fuse the exchanges of splits in a group (TorchRec's _fuse_input_dist_splits). */
static hotbed_status fuse_splits(looking *l) {
    uint32_t members[HOTBED_MODULES_MOST];
    void *contexts[HOTBED_MODULES_MOST];
    hotbed_awaitable splits[HOTBED_MODULES_MOST];
    uint64_t alone = 0;
    for (uint32_t g = 0; g < l->rewrite->num_groups; g++) {
        uint32_t n = list_group(l->rewrite, g, members);
        for (uint32_t i = 0; i < n; i++) {
            contexts[i] = l->context->cells[members[i]].context;
            splits[i] = l->context->cells[members[i]].splits;
        }
        const hotbed_module_calls *calls = l->rewrite->modules[members[0]].module->calls;
        HOTBED_TRY(
            calls->fuse(calls->group, n, contexts, splits, l->stream, &l->context->fused[g]));
    }
    for (uint32_t m = 0; m < l->rewrite->num_modules; m++)
        alone += l->rewrite->modules[m].report.pipelined &&
                 l->rewrite->modules[m].group == HOTBED_GROUP_NONE;
    hotbed_add_relaxed_u64(&l->rewrite->exchanges, alone + l->rewrite->num_groups);
    return HOTBED_OK;
}

hotbed_status hotbed_context_start(
    hotbed_rewrite *rewrite, uint32_t number, const void *batch, hotbed_stream *stream) {
    looking l = {rewrite, &rewrite->contexts[number], number, stream};
    HOTBED_TRY(hotbed_check_pointer("batch", batch)); /* of a trainer's shuffle */
    HOTBED_TRY(hotbed_context_in_state(rewrite, number, "start", HOTBED_CELL_EMPTY));
    for (uint32_t m = 0; m < rewrite->num_modules; m++)
        if (rewrite->modules[m].report.pipelined)
            HOTBED_TRY(start_module(&l, m, batch));
    return fuse_splits(&l);
}

/* --- wait, prefetch --------------------------------------------------------------------------- */

hotbed_status hotbed_context_wait(hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream) {
    hotbed_dist_context *context = &rewrite->contexts[number];
    uint32_t members[HOTBED_MODULES_MOST];
    void *result = NULL;
    HOTBED_TRY(hotbed_context_in_state(rewrite, number, "wait", HOTBED_CELL_STARTED));
    for (uint32_t g = 0; g < rewrite->num_groups; g++) {
        uint32_t n = list_group(rewrite, g, members);
        HOTBED_TRY(context->fused[g].wait(context->fused[g].self, stream, &result));
        for (uint32_t i = 0; i < n; i++) {
            context->cells[members[i]].tensors = (const hotbed_awaitable *)result + i;
            context->cells[members[i]].state = HOTBED_CELL_TENSORS;
        }
    }
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_dist_cell *cell = &context->cells[m];
        if (!rewrite->modules[m].report.pipelined || rewrite->modules[m].group != HOTBED_GROUP_NONE)
            continue;
        HOTBED_TRY(cell->splits.wait(cell->splits.self, stream, &result));
        cell->tensors = result;
        cell->state = HOTBED_CELL_TENSORS;
    }
    return HOTBED_OK;
}

/* Wait for a module's tensors, and make them its input. */
static hotbed_status take_tensors(
    const hotbed_module *module, hotbed_dist_cell *cell, hotbed_stream *stream) {
    HOTBED_TRY(cell->tensors->wait(cell->tensors->self, stream, &cell->input));
    cell->tensors = NULL;
    if (module->calls->prefetch == NULL)
        return HOTBED_OK;
    return module->calls->prefetch(module->self, cell->context, cell->input, stream);
}

hotbed_status hotbed_context_prefetch(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream) {
    hotbed_dist_context *context = &rewrite->contexts[number];
    HOTBED_TRY(hotbed_context_in_state(rewrite, number, "prefetch", HOTBED_CELL_TENSORS));
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        if (!rewrite->modules[m].report.pipelined)
            continue;
        HOTBED_TRY(take_tensors(rewrite->modules[m].module, &context->cells[m], stream));
        context->cells[m].state = HOTBED_CELL_PREFETCHED;
    }
    return HOTBED_OK;
}

/* --- forward ---------------------------------------------------------------------------------- */

hotbed_status hotbed_rewrite_forward(
    void *self, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    const void **output) {
    const hotbed_rewritten *to = self;
    hotbed_rewrite *rewrite = to->rewrite;
    const hotbed_module *module = to->module;
    (void)arguments; /* the arguments were evaluated at start */
    if (rewrite->bound == HOTBED_SLOT_UNBOUND)
        return hotbed_fail(
            HOTBED_ERR_STATE, "module '%s' is pipelined, and no context is bound: detach first",
            to->report.module);
    hotbed_dist_context *context = &rewrite->contexts[rewrite->bound];
    hotbed_dist_cell *cell = &context->cells[to - rewrite->modules];
    bool prefetch = rewrite->kind == HOTBED_FORWARD_PREFETCH;
    hotbed_cell_state wanted = prefetch ? HOTBED_CELL_PREFETCHED : HOTBED_CELL_TENSORS;
    if (cell->state == HOTBED_CELL_CONSUMED)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "forward: module '%s' was consumed: a forward calls a pipelined module once",
            to->report.module);
    if (cell->state != wanted)
        return fail_state(to, context, "forward", cell->state, wanted);
    if (!prefetch)
        HOTBED_TRY(take_tensors(module, cell, stream));
    HOTBED_TRY(module->calls->compute_and_output_dist(
        module->self, cell->context, cell->input, stream, output));
    cell->state = HOTBED_CELL_CONSUMED;
    return HOTBED_OK;
}

hotbed_status hotbed_context_forward(
    hotbed_rewrite *rewrite, uint32_t number, const void *batch, hotbed_stream *stream) {
    const hotbed_model *model = hotbed_model_forward(rewrite->model);
    HOTBED_TRY(hotbed_check_pointer("batch", batch));
    rewrite->bound = number;
    const uint64_t errors = hotbed_error_count();
    hotbed_status status =
        model->forward(model->self, hotbed_ref_batch(rewrite->batch, batch), stream);
    status = hotbed_callback_status(status, errors, "the model's forward");
    rewrite->bound = HOTBED_SLOT_UNBOUND;
    return status;
}

/* --- backward, end ---------------------------------------------------------------------------- */

hotbed_status hotbed_context_finish(
    hotbed_rewrite *rewrite, uint32_t number, bool train, hotbed_stream *stream) {
    hotbed_dist_context *context = &rewrite->contexts[number];
    const char *call = train ? "backward" : "release";
    if (rewrite->attached)
        HOTBED_TRY(hotbed_context_in_state(rewrite, number, call, HOTBED_CELL_CONSUMED));
    for (uint32_t m = rewrite->num_modules; m-- > 0;) {
        hotbed_module *module = rewrite->modules[m].module;
        const hotbed_module_calls *calls = module->calls;
        hotbed_dist_cell *cell = &context->cells[m];
        if (train && module->pending) /* its forward ran outside of the pipeline */
            HOTBED_TRY(hotbed_module_backward(module, stream));
        HOTBED_TRY(hotbed_module_release(module, stream));
        if (cell->state != HOTBED_CELL_CONSUMED)
            continue;
        if (train && cell->replayed)
            HOTBED_TRY(calls->graft(module->self, cell->context, stream));
        if (train && calls->backward != NULL)
            HOTBED_TRY(calls->backward(module->self, cell->context, stream));
        else if (calls->cancel != NULL)
            HOTBED_TRY(calls->cancel(module->self, cell->context, stream));
        cell->state = HOTBED_CELL_BACKWARD;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_context_cancel(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream) {
    hotbed_dist_context *context = &rewrite->contexts[number];
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_module *module = rewrite->modules[m].module;
        hotbed_dist_cell *cell = &context->cells[m];
        HOTBED_TRY(hotbed_module_release(module, stream));
        if (cell->state != HOTBED_CELL_EMPTY && cell->state != HOTBED_CELL_BACKWARD &&
            module->calls->cancel != NULL)
            HOTBED_TRY(module->calls->cancel(module->self, cell->context, stream));
        *cell = (hotbed_dist_cell){
            .context = cell->own, .own = cell->own, .kept = cell->kept, .captures = cell->captures};
    }
    memset(context->served, 0, sizeof context->served);
    context->batches++;
    return HOTBED_OK;
}

hotbed_status hotbed_context_dequeue(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream) {
    if (rewrite->attached)
        HOTBED_TRY(hotbed_context_in_state(rewrite, number, "dequeue", HOTBED_CELL_BACKWARD));
    return hotbed_context_cancel(rewrite, number, stream);
}
