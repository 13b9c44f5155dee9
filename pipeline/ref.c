/* pipeline/ref.c - refs to parts of a batch: read them, trace them, and evaluate them later without
 * the model. */
#include "pipeline/ref.h"

#include "base/error.h"
#include "base/stream.h"

#include <stdio.h>

/* --- nodes ------------------------------------------------------------------------------------ */

static bool same_node(const hotbed_node *a, const hotbed_node *b) {
    if (a->kind != b->kind || a->parent != b->parent || a->field != b->field ||
        a->index != b->index || a->data != b->data || a->postproc != b->postproc || a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->arguments[i] != b->arguments[i])
            return false;
    return a->text == b->text ||
           (a->text != NULL && b->text != NULL && strcmp(a->text, b->text) == 0);
}

/* Copy the text of the node that will be added next: a model may build it in a local array. */
static bool copy_text(hotbed_trace *trace, const char *text) {
    if (text == NULL)
        return true;
    const size_t bytes = strlen(text) + 1;
    char *copy = hotbed_new(bytes);
    trace->no_memory = trace->no_memory || copy == NULL;
    if (copy == NULL)
        return false;
    memcpy(copy, text, bytes);
    trace->texts[trace->num_nodes] = copy;
    return true;
}

/* Return the number of the node equal to this one, and add it if it is new. Equal paths are one
 * node. */
static uint32_t find_node(hotbed_trace *trace, const hotbed_node *node) {
    for (uint32_t i = 0; i < trace->num_nodes; i++)
        if (same_node(&trace->nodes[i], node))
            return i;
    if (trace->num_nodes == HOTBED_NODES_MOST || !copy_text(trace, node->text))
        return HOTBED_NODE_NONE;
    trace->nodes[trace->num_nodes] = *node;
    trace->nodes[trace->num_nodes].text = trace->texts[trace->num_nodes];
    return trace->num_nodes++;
}

static hotbed_ref traced(
    hotbed_trace *trace, const hotbed_node *node, const hotbed_batch_type *type) {
    return (hotbed_ref){.type = type, .trace = trace, .node = find_node(trace, node)};
}

static hotbed_ref computed(hotbed_trace *trace, const char *why) {
    const hotbed_node node = {
        .kind = HOTBED_NODE_COMPUTED, .parent = HOTBED_NODE_NONE, .text = why};
    return traced(trace, &node, NULL);
}

void hotbed_trace_close(hotbed_trace *trace) {
    for (uint32_t i = 0; i < trace->num_nodes; i++)
        hotbed_delete(trace->texts[i]);
}

hotbed_ref hotbed_trace_batch(hotbed_trace *trace, const hotbed_batch_type *type) {
    const hotbed_node node = {.kind = HOTBED_NODE_BATCH, .parent = HOTBED_NODE_NONE, .type = type};
    trace->type = type;
    return traced(trace, &node, type);
}

/* --- refs ------------------------------------------------------------------------------------- */

static const hotbed_field *find_field(const hotbed_batch_type *type, const char *name) {
    for (uint32_t f = 0; type != NULL && name != NULL && f < type->num_fields; f++)
        if (strcmp(type->fields[f].name, name) == 0)
            return &type->fields[f];
    return NULL;
}

hotbed_ref hotbed_ref_batch(const hotbed_batch_type *type, const void *data) {
    return (hotbed_ref){.data = data, .type = type};
}

hotbed_ref hotbed_ref_field(hotbed_ref ref, const char *name) {
    const hotbed_field *field = find_field(ref.type, name);
    if (ref.trace != NULL) {
        const hotbed_node node = {
            .kind = HOTBED_NODE_FIELD, .parent = ref.node, .type = ref.type, .field = field};
        return field == NULL ? computed(ref.trace, "a field that is not there")
                             : traced(ref.trace, &node, field->type);
    }
    if (field == NULL || ref.data == NULL)
        return (hotbed_ref){0};
    return (hotbed_ref){.data = field->get(ref.data), .type = field->type};
}

hotbed_ref hotbed_ref_at(hotbed_ref ref, uint64_t index) {
    bool list = ref.type != NULL && ref.type->at != NULL;
    if (ref.trace != NULL) {
        const hotbed_node node = {
            .kind = HOTBED_NODE_AT, .parent = ref.node, .type = ref.type, .index = index};
        return list ? traced(ref.trace, &node, ref.type->element)
                    : computed(ref.trace, "an element of a value that is no list");
    }
    if (!list || ref.data == NULL)
        return (hotbed_ref){0};
    return (hotbed_ref){.data = ref.type->at(ref.data, index), .type = ref.type->element};
}

hotbed_ref hotbed_ref_key(hotbed_ref ref, const char *key) {
    bool dictionary = ref.type != NULL && ref.type->key != NULL && key != NULL;
    if (ref.trace != NULL) {
        const hotbed_node node = {
            .kind = HOTBED_NODE_KEY, .parent = ref.node, .type = ref.type, .text = key};
        return dictionary ? traced(ref.trace, &node, ref.type->element)
                          : computed(ref.trace, "a key of a value that is no dictionary");
    }
    if (!dictionary || ref.data == NULL)
        return (hotbed_ref){0};
    return (hotbed_ref){.data = ref.type->key(ref.data, key), .type = ref.type->element};
}

hotbed_ref hotbed_ref_constant(hotbed_ref like, const void *data) {
    if (like.trace == NULL)
        return (hotbed_ref){.data = data};
    const hotbed_node node = {
        .kind = HOTBED_NODE_CONSTANT, .parent = HOTBED_NODE_NONE, .data = data};
    return traced(like.trace, &node, NULL);
}

hotbed_ref hotbed_ref_computed(hotbed_ref like, const void *data, const char *why) {
    if (like.trace == NULL)
        return (hotbed_ref){.data = data};
    return computed(like.trace, why == NULL ? "what the model computes" : why);
}

const void *hotbed_ref_data(hotbed_ref ref) {
    return ref.data;
}

bool hotbed_ref_traced(hotbed_ref ref) {
    return ref.trace != NULL;
}

/* --- calls ------------------------------------------------------------------------------------ */

hotbed_status hotbed_trace_module(
    hotbed_trace *trace, hotbed_module *module, const hotbed_ref *arguments, uint32_t n) {
    for (uint32_t c = 0; c < trace->num_calls; c++)
        if (trace->calls[c].module == module) {
            trace->calls[c].times++;
            return HOTBED_OK;
        }
    if (trace->num_calls == HOTBED_MODULES_MOST)
        return hotbed_fail_bound(
            HOTBED_ERR_ARGUMENT, HOTBED_MODULES_MOST,
            "module '%s': a model calls more than %d modules", module->name, HOTBED_MODULES_MOST);
    hotbed_traced_call *call = &trace->calls[trace->num_calls++];
    *call = (hotbed_traced_call){.module = module, .n = n, .times = 1};
    for (uint32_t i = 0; i < n; i++)
        call->arguments[i] = arguments[i].trace == trace ? arguments[i].node : HOTBED_NODE_NONE;
    return HOTBED_OK;
}

hotbed_ref hotbed_trace_postproc(
    hotbed_trace *trace, hotbed_postproc *postproc, const hotbed_ref *arguments, uint32_t n) {
    hotbed_node node = {
        .kind = HOTBED_NODE_CALL, .parent = HOTBED_NODE_NONE, .postproc = postproc, .n = n};
    for (uint32_t i = 0; i < n; i++)
        node.arguments[i] = arguments[i].trace == trace ? arguments[i].node : HOTBED_NODE_NONE;
    return traced(trace, &node, NULL);
}

static const hotbed_node too_many = {
    .kind = HOTBED_NODE_COMPUTED, .text = "a ref that is not of this forward, or too many of them"};

const hotbed_node *hotbed_trace_obstacle(const hotbed_trace *trace, uint32_t number) {
    if (number == HOTBED_NODE_NONE)
        return &too_many;
    const hotbed_node *node = &trace->nodes[number];
    if (node->kind == HOTBED_NODE_COMPUTED ||
        (node->kind == HOTBED_NODE_CALL && node->postproc->trainable))
        return node;
    if (node->kind == HOTBED_NODE_FIELD || node->kind == HOTBED_NODE_AT ||
        node->kind == HOTBED_NODE_KEY)
        return hotbed_trace_obstacle(trace, node->parent);
    for (uint32_t i = 0; i < node->n; i++) {
        const hotbed_node *obstacle = hotbed_trace_obstacle(trace, node->arguments[i]);
        if (obstacle != NULL)
            return obstacle;
    }
    for (uint32_t i = 0; node->kind == HOTBED_NODE_CALL && i < trace->num_nodes; i++)
        if (&trace->nodes[i] != node && trace->nodes[i].postproc == node->postproc)
            return node; /* the postproc has two results per batch; a call could take the wrong one */
    return NULL;
}

/* --- text ------------------------------------------------------------------------------------- */

static void append(char *text, size_t capacity, const char *more) {
    size_t used = strlen(text);
    (void)snprintf(text + used, capacity - used, "%s", more);
}

void hotbed_trace_print(const hotbed_trace *trace, uint32_t number, char *text, size_t capacity) {
    if (number == HOTBED_NODE_NONE) {
        append(text, capacity, too_many.text);
        return;
    }
    const hotbed_node *node = &trace->nodes[number];
    char step[96] = "";
    switch (node->kind) {
    case HOTBED_NODE_BATCH:
        append(text, capacity, node->type->name);
        return;
    case HOTBED_NODE_FIELD:
        (void)snprintf(step, sizeof step, ".%s", node->field->name);
        break;
    case HOTBED_NODE_AT:
        (void)snprintf(step, sizeof step, "[%llu]", (unsigned long long)node->index);
        break;
    case HOTBED_NODE_KEY:
        (void)snprintf(step, sizeof step, "['%s']", node->text);
        break;
    case HOTBED_NODE_CONSTANT:
        append(text, capacity, "constant");
        return;
    case HOTBED_NODE_COMPUTED:
        append(text, capacity, node->text);
        return;
    case HOTBED_NODE_CALL:
        append(text, capacity, node->postproc->name);
        for (uint32_t i = 0; i < node->n; i++) {
            append(text, capacity, i == 0 ? "(" : ", ");
            hotbed_trace_print(trace, node->arguments[i], text, capacity);
        }
        append(text, capacity, ")");
        return;
    }
    hotbed_trace_print(trace, node->parent, text, capacity);
    append(text, capacity, step);
}

/* --- evaluation without the model ------------------------------------------------------------- */

hotbed_status hotbed_trace_evaluate(
    const hotbed_trace *trace, uint32_t number, const void *batch, hotbed_node_call call,
    void *self, const void **out) {
    const hotbed_node *node = &trace->nodes[number];
    const void *parent = NULL;
    char text[128] = "";
    *out = NULL;
    switch (node->kind) {
    case HOTBED_NODE_CONSTANT:
        *out = node->data;
        return HOTBED_OK;
    case HOTBED_NODE_CALL:
        return call(self, node, batch, out);
    case HOTBED_NODE_BATCH:
        *out = batch;
        break;
    case HOTBED_NODE_FIELD:
    case HOTBED_NODE_AT:
    case HOTBED_NODE_KEY:
        HOTBED_TRY(hotbed_trace_evaluate(trace, node->parent, batch, call, self, &parent));
        if (node->kind == HOTBED_NODE_FIELD)
            *out = node->field->get(parent);
        else if (node->kind == HOTBED_NODE_AT)
            *out = node->type->at(parent, node->index);
        else
            *out = node->type->key(parent, node->text);
        break;
    case HOTBED_NODE_COMPUTED:
        break;
    }
    if (*out != NULL)
        return HOTBED_OK;
    hotbed_trace_print(trace, number, text, sizeof text);
    return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s: the batch has none", text);
}
