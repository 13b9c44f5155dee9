/* pipeline/rewrite.c - find the modules of a model and their arguments; replace and restore their
 * forward hooks. */
#include "pipeline/rewrite.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"

#include <stdio.h>

/* --- models ----------------------------------------------------------------------------------- */

/* Write "prefix.name", or, if one of the two is empty, the other. */
static hotbed_status join(char *to, size_t capacity, const char *prefix, const char *name) {
    const char *dot = prefix[0] == '\0' || name[0] == '\0' ? "" : ".";
    int length = snprintf(to, capacity, "%s%s%s", prefix, dot, name);
    if (length < 0 || (size_t)length >= capacity)
        return hotbed_fail_bound(
            HOTBED_ERR_ARGUMENT, capacity - 1, "the name %s%s%s is longer than %zu bytes", prefix,
            dot, name, capacity - 1);
    return HOTBED_OK;
}

static hotbed_status add_module(
    hotbed_rewrite *rewrite, const char *prefix, hotbed_module *module) {
    for (uint32_t m = 0; m < rewrite->num_modules; m++)
        if (rewrite->modules[m].module == module)
            return HOTBED_OK; /* a shared module keeps its first name */
    if (rewrite->num_modules == HOTBED_MODULES_MOST)
        return hotbed_fail_bound(
            HOTBED_ERR_ARGUMENT, HOTBED_MODULES_MOST, "a model of more than %d modules",
            HOTBED_MODULES_MOST);
    hotbed_rewritten *to = &rewrite->modules[rewrite->num_modules++];
    to->module = module;
    to->rewrite = rewrite;
    to->group = HOTBED_GROUP_NONE;
    return join(to->report.module, sizeof to->report.module, prefix, module->name);
}

static hotbed_status add_modules(
    hotbed_rewrite *rewrite, const char *prefix, const hotbed_model *model) {
    char name[128];
    HOTBED_TRY(join(name, sizeof name, prefix, model->name == NULL ? "" : model->name));
    for (uint32_t m = 0; m < model->num_modules; m++)
        HOTBED_TRY(add_module(rewrite, name, model->modules[m]));
    for (uint32_t m = 0; m < model->num_models; m++)
        HOTBED_TRY(add_modules(rewrite, name, model->models[m]));
    return HOTBED_OK;
}

/* --- arguments -------------------------------------------------------------------------------- */

static void skip(hotbed_rewritten *to, const char *why, const char *name, const char *rest) {
    to->report.pipelined = false;
    (void)snprintf(to->report.text, sizeof to->report.text, "%s%s%s", why, name, rest);
}

static void add_postprocs(hotbed_rewrite *rewrite, const hotbed_trace *trace, uint32_t number) {
    const hotbed_node *node = &trace->nodes[number];
    if (node->kind == HOTBED_NODE_FIELD || node->kind == HOTBED_NODE_AT ||
        node->kind == HOTBED_NODE_KEY)
        add_postprocs(rewrite, trace, node->parent);
    for (uint32_t i = 0; i < node->n; i++)
        add_postprocs(rewrite, trace, node->arguments[i]);
    if (node->kind != HOTBED_NODE_CALL)
        return;
    for (uint32_t p = 0; p < rewrite->num_postprocs; p++)
        if (rewrite->postprocs[p] == node->postproc)
            return;
    if (rewrite->num_postprocs < HOTBED_POSTPROCS_MOST)
        rewrite->postprocs[rewrite->num_postprocs++] = node->postproc;
}

static const hotbed_traced_call *find_call(const hotbed_trace *trace, const hotbed_module *module) {
    for (uint32_t c = 0; c < trace->num_calls; c++)
        if (trace->calls[c].module == module)
            return &trace->calls[c];
    return NULL;
}

static void take_arguments(hotbed_rewritten *to, const hotbed_traced_call *call) {
    const hotbed_trace *trace = &to->rewrite->trace;
    for (uint32_t i = 0; i < call->n; i++) {
        const hotbed_node *obstacle = hotbed_trace_obstacle(trace, call->arguments[i]);
        if (obstacle != NULL && obstacle->kind == HOTBED_NODE_COMPUTED) {
            skip(to, "an argument needs the model: ", obstacle->text, "");
            return;
        }
        if (obstacle != NULL) {
            skip(
                to, "an argument comes from postproc ", obstacle->postproc->name,
                obstacle->postproc->trainable ? ", which training changes"
                                              : ", which is called with different arguments");
            return;
        }
    }
    to->n = call->n;
    to->report.text[0] = '\0';
    for (uint32_t i = 0; i < call->n; i++) {
        size_t used = strlen(to->report.text);
        (void)snprintf(
            to->report.text + used, sizeof to->report.text - used, "%s", i == 0 ? "" : ", ");
        to->arguments[i] = call->arguments[i];
        hotbed_trace_print(trace, call->arguments[i], to->report.text, sizeof to->report.text);
        add_postprocs(to->rewrite, trace, call->arguments[i]);
    }
    to->report.pipelined = true;
}

static hotbed_status find_arguments(hotbed_rewrite *rewrite, hotbed_stream *stream) {
    const hotbed_model *model = hotbed_model_forward(rewrite->model);
    if (model == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "the model has no forward to trace");
    HOTBED_TRY(
        model->forward(model->self, hotbed_trace_batch(&rewrite->trace, rewrite->batch), stream));
    if (rewrite->trace.no_memory)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for the keys that the model's forward uses");
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_rewritten *to = &rewrite->modules[m];
        const hotbed_traced_call *call = find_call(&rewrite->trace, to->module);
        if (call == NULL)
            skip(to, "the model's forward did not call it", "", "");
        else if (call->times > 1)
            skip(to, "the model's forward calls it more than once", "", "");
        else
            take_arguments(to, call);
    }
    return HOTBED_OK;
}

/* --- hooks ------------------------------------------------------------------------------------ */

static bool has_hook(const hotbed_rewritten *to) {
    const hotbed_forward *forward = &to->module->forward;
    return forward->call == hotbed_rewrite_forward && forward->self == to;
}

/* Check that no other rewrite owns a module or postproc. A postproc's results are found through its
 * owner, so with two owners a model would get results of the other one's batches. */
static hotbed_status check_owners(const hotbed_rewrite *rewrite) {
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        const hotbed_rewritten *to = &rewrite->modules[m];
        if (to->report.pipelined && to->module->owner != NULL)
            return hotbed_fail(
                HOTBED_ERR_STATE, "module '%s' is pipelined by another rewrite", to->report.module);
    }
    for (uint32_t p = 0; p < rewrite->num_postprocs; p++)
        if (rewrite->postprocs[p]->owner != NULL)
            return hotbed_fail(
                HOTBED_ERR_STATE, "postproc '%s' is run ahead by another rewrite",
                rewrite->postprocs[p]->name);
    return HOTBED_OK;
}

static void release_postprocs(const hotbed_rewrite *rewrite) {
    for (uint32_t p = 0; p < rewrite->num_postprocs; p++)
        if (rewrite->postprocs[p]->owner == rewrite)
            rewrite->postprocs[p]->owner = NULL;
}

hotbed_status hotbed_rewrite_attach(hotbed_rewrite *rewrite) {
    HOTBED_TRY(hotbed_check_pointer("rewrite", rewrite));
    if (rewrite->attached)
        return hotbed_fail(HOTBED_ERR_STATE, "the rewrite is attached already");
    HOTBED_TRY(check_owners(rewrite));
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_rewritten *to = &rewrite->modules[m];
        if (!to->report.pipelined)
            continue;
        to->saved = to->module->forward;
        to->module->forward = (hotbed_forward){hotbed_rewrite_forward, to};
        to->module->owner = rewrite;
    }
    for (uint32_t p = 0; p < rewrite->num_postprocs; p++)
        rewrite->postprocs[p]->owner = rewrite;
    rewrite->attached = true;
    return HOTBED_OK;
}

hotbed_status hotbed_rewrite_detach(hotbed_rewrite *rewrite) {
    HOTBED_TRY(hotbed_check_pointer("rewrite", rewrite));
    if (!rewrite->attached)
        return hotbed_fail(HOTBED_ERR_STATE, "the rewrite is not attached");
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        const hotbed_rewritten *to = &rewrite->modules[m];
        if (to->report.pipelined && !has_hook(to))
            return hotbed_fail(
                HOTBED_ERR_STATE, "module '%s': somebody else has written its forward",
                to->report.module);
    }
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_rewritten *to = &rewrite->modules[m];
        if (!to->report.pipelined)
            continue;
        to->module->forward = to->saved;
        to->module->owner = NULL;
    }
    release_postprocs(rewrite);
    rewrite->attached = false;
    return HOTBED_OK;
}

/* --- making ----------------------------------------------------------------------------------- */

/* Group the modules whose first exchanges travel together. */
static void find_groups(hotbed_rewrite *rewrite) {
    for (uint32_t m = 0; m < rewrite->num_modules; m++) {
        hotbed_rewritten *to = &rewrite->modules[m];
        const hotbed_module_calls *calls = to->module->calls;
        if (!to->report.pipelined || calls->fuse == NULL)
            continue;
        for (uint32_t other = 0; other < m; other++) {
            const hotbed_rewritten *before = &rewrite->modules[other];
            if (before->group != HOTBED_GROUP_NONE && before->module->calls->fuse == calls->fuse &&
                before->module->calls->group == calls->group)
                to->group = before->group;
        }
        if (to->group == HOTBED_GROUP_NONE)
            to->group = rewrite->num_groups++;
    }
}

static hotbed_status make_contexts(hotbed_rewrite *rewrite, hotbed_stream *stream) {
    rewrite->contexts = hotbed_new(rewrite->depth * sizeof *rewrite->contexts);
    HOTBED_TRY_MEMORY(rewrite->contexts, "%u contexts", rewrite->depth);
    for (uint32_t number = 0; number < rewrite->depth; number++)
        for (uint32_t m = 0; m < rewrite->num_modules; m++)
            if (rewrite->modules[m].report.pipelined) {
                const hotbed_module *module = rewrite->modules[m].module;
                hotbed_dist_cell *cell = &rewrite->contexts[number].cells[m];
                HOTBED_TRY_CALLBACK(
                    "context_create of a module",
                    module->calls->context_create(module->self, stream, &cell->own));
                cell->context = cell->own;
            }
    return HOTBED_OK;
}

static hotbed_status make(hotbed_rewrite *rewrite, hotbed_stream *stream) {
    HOTBED_TRY(add_modules(rewrite, "", rewrite->model));
    if (rewrite->num_modules == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "the model has no modules");
    HOTBED_TRY(find_arguments(rewrite, stream));
    find_groups(rewrite);
    HOTBED_TRY(make_contexts(rewrite, stream));
    return hotbed_rewrite_attach(rewrite);
}

hotbed_status hotbed_rewrite_create(
    const hotbed_model *model, const hotbed_batch_type *batch, uint32_t depth,
    hotbed_rewrite_kind kind, hotbed_stream *stream, hotbed_rewrite **out) {
    *out = NULL;
    hotbed_rewrite *rewrite = hotbed_new(sizeof *rewrite);
    HOTBED_TRY_MEMORY(rewrite, "a rewrite");
    rewrite->model = model;
    rewrite->batch = batch;
    rewrite->kind = kind;
    rewrite->depth = depth;
    rewrite->bound = HOTBED_SLOT_UNBOUND;
    hotbed_status status = make(rewrite, stream);
    if (status == HOTBED_OK)
        *out = rewrite;
    else
        hotbed_rewrite_destroy(rewrite);
    return status;
}

void hotbed_rewrite_destroy(hotbed_rewrite *rewrite) {
    if (rewrite == NULL)
        return;
    for (uint32_t m = 0; rewrite->attached && m < rewrite->num_modules; m++) {
        hotbed_rewritten *to = &rewrite->modules[m];
        if (to->report.pipelined && to->module->owner == rewrite) {
            if (has_hook(to)) /* otherwise another owner has replaced the hook, which stays */
                to->module->forward = to->saved;
            to->module->owner = NULL;
        }
    }
    release_postprocs(rewrite);
    for (uint32_t number = 0; rewrite->contexts != NULL && number < rewrite->depth; number++)
        for (uint32_t m = 0; m < rewrite->num_modules; m++) {
            const hotbed_module *module = rewrite->modules[m].module;
            const hotbed_dist_cell *cell = &rewrite->contexts[number].cells[m];
            if (cell->own != NULL)
                module->calls->context_destroy(module->self, cell->own);
            if (cell->kept != NULL)
                module->calls->context_destroy(module->self, cell->kept);
        }
    hotbed_trace_close(&rewrite->trace);
    hotbed_delete(rewrite->contexts);
    hotbed_delete(rewrite);
}

/* --- report ----------------------------------------------------------------------------------- */

uint32_t hotbed_rewrite_modules(const hotbed_rewrite *rewrite) {
    return rewrite == NULL ? 0 : rewrite->num_modules;
}

hotbed_status hotbed_rewrite_module(
    const hotbed_rewrite *rewrite, uint32_t module, hotbed_rewrite_report *out) {
    if (rewrite == NULL || module >= rewrite->num_modules)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "module", module, "rewrite is NULL, or no module %u", module);
    HOTBED_TRY(hotbed_output_check(out, "hotbed_rewrite_report"));
    hotbed_output_write(out, &rewrite->modules[module].report, sizeof(hotbed_rewrite_report));
    return HOTBED_OK;
}
