/* pipeline/rewrite.h - the inside of a rewrite: its modules, their forward hooks, and the ring of
 * contexts. */
#pragma once

#include "hotbed/forward.h"
#include "pipeline/ref.h"

typedef enum hotbed_cell_state {
    HOTBED_CELL_EMPTY = 0,
    HOTBED_CELL_STARTED = 1,
    HOTBED_CELL_TENSORS = 2,
    HOTBED_CELL_PREFETCHED = 3,
    HOTBED_CELL_CONSUMED = 4,
    HOTBED_CELL_BACKWARD = 5,
} hotbed_cell_state;

/* Return "EMPTY", ...; "UNKNOWN" for other numbers. */
const char *hotbed_cell_state_name(hotbed_cell_state state);

/* The state of one module in one context. */
typedef struct hotbed_dist_cell {
    hotbed_cell_state state;
    void *context; /* the context of this batch: `own` or `kept` */
    void *own;  /* the module's own context; NULL from a capture to the start of the next batch */
    void *kept; /* the context of snapshots; NULL: there are none */
    uint32_t captures; /* number of snapshots that use `kept` */
    bool replayed;     /* the forward was restored: its backward gets zero gradients */
    hotbed_awaitable splits;
    const hotbed_awaitable *tensors;
    void *input;
} hotbed_dist_cell;

/* A batch's context. */
typedef struct hotbed_dist_context {
    hotbed_dist_cell cells[HOTBED_MODULES_MOST];
    hotbed_awaitable fused[HOTBED_MODULES_MOST]; /* one per group */
    const void *served[HOTBED_POSTPROCS_MOST];   /* results of postprocs; NULL: not run yet */
    uint64_t batches;
} hotbed_dist_context;

typedef struct hotbed_rewritten {
    hotbed_module *module;
    hotbed_rewrite_report report;
    uint32_t arguments[HOTBED_ARGUMENTS_MOST], n; /* nodes */
    uint32_t group; /* group of fused exchanges; HOTBED_GROUP_NONE: not fused */
    hotbed_forward saved;
    hotbed_rewrite *rewrite;
} hotbed_rewritten;

#define HOTBED_GROUP_NONE   UINT32_MAX
#define HOTBED_SLOT_UNBOUND UINT32_MAX

struct hotbed_rewrite {
    hotbed_rewrite_options options;
    hotbed_trace trace;
    hotbed_rewritten modules[HOTBED_MODULES_MOST];
    uint32_t num_modules;
    uint32_t num_groups;
    hotbed_postproc *postprocs[HOTBED_POSTPROCS_MOST]; /* postprocs that run ahead */
    uint32_t num_postprocs;
    hotbed_dist_context *contexts; /* [depth] */
    uint32_t bound;                /* the context that forwards use */
    bool attached;
    uint64_t exchanges; /* atomic */
};

/* Find a context by its number; all its cells of pipelined modules must be in state `wanted`.
 * `call` is for messages. */
hotbed_status hotbed_context_in_state(
    const hotbed_rewrite *rewrite, uint32_t number, const char *call, hotbed_cell_state wanted,
    hotbed_dist_context **context);

/* Check that snapshots can be taken, with `forwards` also of forwards. Errors: UNSUPPORTED (with
 * the module's name). */
hotbed_status hotbed_context_capturable(const hotbed_rewrite *rewrite, bool forwards);

/* The pipelined forward of both kinds; `self` is a hotbed_rewritten. */
hotbed_status hotbed_rewrite_forward(
    void *self, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    const void **output);

/* Release what a plain forward holds, if no backward follows. */
hotbed_status hotbed_module_release(hotbed_module *module, hotbed_stream *stream);

/* The model, or the first model inside it, that has a forward; NULL if none has. */
const hotbed_model *hotbed_model_forward(const hotbed_model *model);
