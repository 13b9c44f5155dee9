/* pipeline/ref.h - traces, which find where in a batch a module's arguments come from. */
#pragma once

#include "hotbed/forward.h"

#define HOTBED_NODE_NONE UINT32_MAX

enum { HOTBED_NODES_MOST = 256 };

typedef enum hotbed_node_kind {
    HOTBED_NODE_BATCH,
    HOTBED_NODE_FIELD,
    HOTBED_NODE_AT,
    HOTBED_NODE_KEY,
    HOTBED_NODE_CONSTANT,
    HOTBED_NODE_CALL,     /* of a postproc */
    HOTBED_NODE_COMPUTED, /* known only by running the model */
} hotbed_node_kind;

/* A part of a batch: one step, such as a field, from another part. */
typedef struct hotbed_node {
    hotbed_node_kind kind;
    uint32_t parent;
    const hotbed_batch_type *type; /* field of the parent; BATCH: of the batch */
    const hotbed_field *field;
    uint64_t index;
    const void *data; /* CONSTANT */
    const char *text; /* KEY: the key; COMPUTED: the reason. In a trace: its own copy */
    hotbed_postproc *postproc;
    uint32_t arguments[HOTBED_ARGUMENTS_MOST], n;
} hotbed_node;

typedef struct hotbed_traced_call {
    hotbed_module *module;
    uint32_t arguments[HOTBED_ARGUMENTS_MOST], n;
    uint32_t times;
} hotbed_traced_call;

struct hotbed_trace {
    hotbed_node nodes[HOTBED_NODES_MOST];
    uint32_t num_nodes;
    hotbed_traced_call calls[HOTBED_MODULES_MOST];
    uint32_t num_calls;
    const hotbed_batch_type *type;
    char *texts[HOTBED_NODES_MOST]; /* the nodes' texts, owned; NULL: the node has none */
    bool no_memory;                 /* a node is missing because its text could not be copied */
};

/* Free the texts. {0} is allowed. */
void hotbed_trace_close(hotbed_trace *trace);

/* Begin or continue a trace: return a ref to its batch. */
hotbed_ref hotbed_trace_batch(hotbed_trace *trace, const hotbed_batch_type *type);

/* Record a call. Errors: ARGUMENT (too many modules). */
hotbed_status hotbed_trace_module(
    hotbed_trace *trace, hotbed_module *module, const hotbed_ref *arguments, uint32_t n);
hotbed_ref hotbed_trace_postproc(
    hotbed_trace *trace, hotbed_postproc *postproc, const hotbed_ref *arguments, uint32_t n);

/* Return the node that prevents this one from being evaluated ahead of the model; NULL: none
 * does. */
const hotbed_node *hotbed_trace_obstacle(const hotbed_trace *trace, uint32_t number);

/* Append the node as text, "batch.sparse[2]". */
void hotbed_trace_print(const hotbed_trace *trace, uint32_t number, char *text, size_t capacity);

/* Evaluate the node for `batch`; `call` evaluates postprocs. Errors: ARGUMENT (the batch lacks it),
 * errors of `call`. */
typedef hotbed_status (*hotbed_node_call)(
    void *self, const hotbed_node *node, const void *batch, const void **out);
hotbed_status hotbed_trace_evaluate(
    const hotbed_trace *trace, uint32_t number, const void *batch, hotbed_node_call call,
    void *self, const void **out);
