/* pipeline/rewrite.h - the inside of a rewrite: its modules, their forward hooks, and the ring of
 * contexts. */
#pragma once

#include "hotbed/forward.h"
#include "pipeline/ref.h"

typedef enum hotbed_rewrite_kind {
    HOTBED_FORWARD_PIPELINED = 0, /* waits for the tensors, then computes */
    HOTBED_FORWARD_PREFETCH = 1,  /* uses the results of prefetch: never waits */
} hotbed_rewrite_kind;

/* The state of a cell: its contents, by TorchRec's names, and the calls that enter it. */
typedef enum hotbed_cell_state {
    HOTBED_CELL_EMPTY = 0,
    /* start: input_dist_splits_requests, module_contexts; fused: fused_splits_awaitables */
    HOTBED_CELL_STARTED = 1,
    HOTBED_CELL_TENSORS = 2, /* wait: input_dist_tensors_requests, module_contexts */
    /* prefetch: module_input_post_prefetch, module_contexts_post_prefetch */
    HOTBED_CELL_PREFETCHED = 3,
    HOTBED_CELL_CONSUMED = 4, /* forward: the module's context, for its backward */
    HOTBED_CELL_BACKWARD = 5, /* finish; then dequeue */
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
    const hotbed_model *model;
    const hotbed_batch_type *batch;
    hotbed_rewrite_kind kind;
    hotbed_trace trace;
    hotbed_rewritten modules[HOTBED_MODULES_MOST];
    uint32_t num_modules;
    uint32_t num_groups;
    hotbed_postproc *postprocs[HOTBED_POSTPROCS_MOST]; /* postprocs that run ahead */
    uint32_t num_postprocs;
    uint32_t depth;                /* batches in flight */
    hotbed_dist_context *contexts; /* [depth] */
    uint32_t bound;                /* the context that forwards use */
    bool attached;
    uint64_t exchanges; /* atomic */
};

/* Find the modules and their arguments, create the contexts, and replace the forward hooks by
 * pipelined forwards. `stream` is used to create contexts. Synchronous; enqueues nothing of the model.
 * Errors: ARGUMENT (no module; too many), STATE (a module or postproc belongs to another rewrite),
 * errors that the model's forward returns in the trace, MEMORY. */
hotbed_status hotbed_rewrite_create(
    const hotbed_model *model, const hotbed_batch_type *batch, uint32_t depth,
    hotbed_rewrite_kind kind, hotbed_stream *stream, hotbed_rewrite **out);

/* Detach and free. Nothing of its contexts may be in flight on a stream. NULL is allowed. */
void hotbed_rewrite_destroy(hotbed_rewrite *rewrite);

/* --- contexts --------------------------------------------------------------------------------- */

/* Each function advances the cells of all pipelined modules of context `number`. If one is in the
 * wrong state, it returns STATE, names module, batch and states, and has done nothing. The work is
 * enqueued on `stream`; input_dist and its awaitables may wait on the host. One context is used by
 * one thread at a time, different contexts by several threads. */

/* Run postprocs, call input_dist of all modules, and fuse the first exchanges of each group. */
hotbed_status hotbed_context_start(
    hotbed_rewrite *rewrite, uint32_t number, const void *batch, hotbed_stream *stream);

/* Wait for the first exchanges, which starts the second ones. */
hotbed_status hotbed_context_wait(hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream);

/* Wait for the second exchanges, then prefetch. */
hotbed_status hotbed_context_prefetch(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream);

/* Run the model's forward; its modules use the contents of this context, each module at most once. */
hotbed_status hotbed_context_forward(
    hotbed_rewrite *rewrite, uint32_t number, const void *batch, hotbed_stream *stream);

/* Run the backward of all consumed modules, last one first, and also of modules that are not
 * pipelined; if not `train`, only release what they hold of the batch. */
hotbed_status hotbed_context_finish(
    hotbed_rewrite *rewrite, uint32_t number, bool train, hotbed_stream *stream);

/* End the batch, after `finish`. */
hotbed_status hotbed_context_dequeue(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream);

/* Cancel the batch, in any state. */
hotbed_status hotbed_context_cancel(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream);

/* --- snapshots: context_capture.c ------------------------------------------------------------- */

typedef struct hotbed_context_snapshot hotbed_context_snapshot;

/* Capture what the stages of a context have done so far, after start, wait, prefetch or forward. The
 * modules' contexts then belong to the snapshot, with all contents of their buffers, and the number
 * gets others when it next starts a batch. Several snapshots may be taken of one batch. Allocates.
 * Other errors: UNSUPPORTED (as hotbed_context_capturable()), MEMORY. */
hotbed_status hotbed_context_capture(
    hotbed_rewrite *rewrite, uint32_t number, hotbed_stream *stream, hotbed_context_snapshot **out);

/* Restore a snapshot instead of running the stage after which it was captured: the batch of its
 * context continues with the modules' contexts of the snapshot. Work of earlier stages in the batch's
 * own is discarded. The backward of a restored forward gets zero gradients. */
hotbed_status hotbed_context_restore(
    const hotbed_context_snapshot *snapshot, hotbed_stream *stream);

/* Free a snapshot. None of its work may be in flight on other streams. */
void hotbed_context_drop(hotbed_context_snapshot *snapshot, hotbed_stream *stream);

/* Check that all cells of pipelined modules of a context are in state `wanted`. `call` is for
 * messages. */
hotbed_status hotbed_context_in_state(
    const hotbed_rewrite *rewrite, uint32_t number, const char *call, hotbed_cell_state wanted);

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
