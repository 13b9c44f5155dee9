/* pipeline/module.c - calls of modules, postprocs and models; the plain forward. */
#include "base/error.h"
#include "pipeline/ref.h"
#include "pipeline/rewrite.h"

static hotbed_status check_arguments(
    const char *what, const char *name, const hotbed_ref *arguments, uint32_t n) {
    if (n < 1 || n > HOTBED_ARGUMENTS_MOST || arguments == NULL)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, n, hotbed_bound(n, 1, HOTBED_ARGUMENTS_MOST),
            "%s '%s': %u arguments, not 1 to %d", what, name, n, HOTBED_ARGUMENTS_MOST);
    return HOTBED_OK;
}

/* The data of refs. Errors: ARGUMENT if a ref has none. */
static hotbed_status read_arguments(
    const char *what, const char *name, const hotbed_ref *arguments, uint32_t n,
    const void **data) {
    for (uint32_t i = 0; i < n; i++) {
        data[i] = hotbed_ref_data(arguments[i]);
        if (data[i] == NULL)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, NULL, i, "%s '%s': argument %u is not there", what, name, i);
    }
    return HOTBED_OK;
}

/* --- the plain forward ------------------------------------------------------------------------ */

hotbed_status hotbed_module_release(hotbed_module *module, hotbed_stream *stream) {
    if (!module->pending)
        return HOTBED_OK;
    module->pending = false;
    if (module->calls->cancel == NULL)
        return HOTBED_OK;
    return module->calls->cancel(module->self, module->context, stream);
}

static hotbed_status plain_forward(
    void *self, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    const void **output) {
    hotbed_module *module = self;
    const hotbed_module_calls *calls = module->calls;
    const void *data[HOTBED_ARGUMENTS_MOST];
    hotbed_awaitable splits = {NULL, NULL};
    void *tensors_pointer = NULL, *input = NULL;
    HOTBED_TRY(read_arguments("module", module->name, arguments, n, data));
    if (module->context == NULL)
        HOTBED_TRY(calls->context_create(module->self, stream, &module->context));
    HOTBED_TRY(hotbed_module_release(module, stream));
    module->pending = true;
    HOTBED_TRY(calls->input_dist(module->self, module->context, data, n, stream, &splits));
    HOTBED_TRY(splits.wait(splits.self, stream, &tensors_pointer));
    const hotbed_awaitable *tensors = tensors_pointer;
    HOTBED_TRY(tensors->wait(tensors->self, stream, &input));
    if (calls->prefetch != NULL)
        HOTBED_TRY(calls->prefetch(module->self, module->context, input, stream));
    return calls->compute_and_output_dist(module->self, module->context, input, stream, output);
}

hotbed_status hotbed_module_init(
    hotbed_module *module, const char *name, const hotbed_module_calls *calls, void *self) {
    if (module == NULL || name == NULL || calls == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "module, name or calls is NULL");
    if (calls->context_create == NULL || calls->context_destroy == NULL ||
        calls->input_dist == NULL || calls->compute_and_output_dist == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "module '%s': context_create, context_destroy, input_dist or compute_and_output_dist "
            "is "
            "NULL",
            name);
    *module = (hotbed_module){
        .name = name, .calls = calls, .self = self, .forward = {plain_forward, module}};
    return HOTBED_OK;
}

void hotbed_module_close(hotbed_module *module) {
    if (module == NULL || module->context == NULL)
        return;
    module->calls->context_destroy(module->self, module->context);
    module->context = NULL;
    module->pending = false;
}

hotbed_status hotbed_module_backward(hotbed_module *module, hotbed_stream *stream) {
    if (module == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "module or stream is NULL");
    if (!module->pending)
        return hotbed_fail(
            HOTBED_ERR_STATE, "module '%s': a backward without a forward", module->name);
    if (module->calls->backward == NULL)
        return hotbed_module_release(module, stream);
    module->pending = false;
    return module->calls->backward(module->self, module->context, stream);
}

/* --- as a model calls them -------------------------------------------------------------------- */

hotbed_status hotbed_module_forward(
    hotbed_module *module, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output) {
    const void *data = NULL;
    if (module == NULL || output == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "module or output is NULL");
    HOTBED_TRY(check_arguments("module", module->name, arguments, n));
    if (arguments[0].trace != NULL) {
        HOTBED_TRY(hotbed_trace_module(arguments[0].trace, module, arguments, n));
        *output = hotbed_ref_computed(arguments[0], NULL, "the output of a module");
        return HOTBED_OK;
    }
    HOTBED_TRY(module->forward.call(module->forward.self, arguments, n, stream, &data));
    *output = (hotbed_ref){.data = data};
    return HOTBED_OK;
}

/* Whether the postproc ran ahead for the bound batch. If so, *result is its result. */
static bool served(const hotbed_postproc *postproc, const void **result) {
    const hotbed_rewrite *rewrite = postproc->owner;
    if (rewrite == NULL || rewrite->bound == HOTBED_SLOT_UNBOUND)
        return false;
    for (uint32_t p = 0; p < rewrite->num_postprocs; p++)
        if (rewrite->postprocs[p] == postproc) {
            *result = rewrite->contexts[rewrite->bound].served[p];
            return *result != NULL;
        }
    return false;
}

hotbed_status hotbed_postproc_call(
    hotbed_postproc *postproc, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output) {
    const void *data[HOTBED_ARGUMENTS_MOST], *result = NULL;
    if (postproc == NULL || postproc->call == NULL || output == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "postproc, its call or output is NULL");
    HOTBED_TRY(check_arguments("postproc", postproc->name, arguments, n));
    if (arguments[0].trace != NULL) {
        *output = hotbed_trace_postproc(arguments[0].trace, postproc, arguments, n);
        return HOTBED_OK;
    }
    if (!served(postproc, &result)) {
        HOTBED_TRY(read_arguments("postproc", postproc->name, arguments, n, data));
        HOTBED_TRY(postproc->call(postproc->self, 0, data, n, stream, &result));
    }
    *output = (hotbed_ref){.data = result};
    return HOTBED_OK;
}

const hotbed_model *hotbed_model_forward(const hotbed_model *model) {
    if (model->forward != NULL)
        return model;
    for (uint32_t m = 0; m < model->num_models; m++) {
        const hotbed_model *found = hotbed_model_forward(model->models[m]);
        if (found != NULL)
            return found;
    }
    return NULL;
}
