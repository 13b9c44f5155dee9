/* hotbed/context.h - the state that the stages of a pipeline pass to each other: a ring of
 * contexts, with one cell per module.
 *
 * For pipelines of a rewritten model (hotbed/forward.h) that do not use hotbed/train.h, which calls
 * these functions in its tasks. A context belongs to one batch; its number, `slot`, is in [0,
 * depth). In each context, every module that a rewrite pipelines has a cell with a state
 * (TorchRec's TrainPipelineContext). Each function here advances all cells of a context. If a cell
 * is in the wrong state, the function returns an error that names module, batch and states, and has
 * done nothing:
 *
 *   state        contents (TorchRec's name)                       entered by  left by
 *   EMPTY        -
 *   STARTED      input_dist_splits_requests, module_contexts;     start       wait
 *                fused over modules: fused_splits_awaitables
 *   TENSORS      input_dist_tensors_requests, module_contexts     wait        forward, or prefetch
 *   PREFETCHED   module_input_post_prefetch,                      prefetch    forward
 *                module_contexts_post_prefetch
 *   CONSUMED     the module's context, for its backward           forward     backward, or release
 *   BACKWARD     -                                                backward    dequeue
 *
 * One batch with prefetch:
 *
 *     status = hotbed_context_start(rewrite, slot, batch, stream);
 *     status = hotbed_context_wait(rewrite, slot, stream);
 *     status = hotbed_context_prefetch(rewrite, slot, stream);
 *     status = hotbed_context_forward(rewrite, slot, batch, stream);
 *     if (training)
 *         status = hotbed_context_backward(rewrite, slot, stream);
 *     else
 *         status = hotbed_context_release(rewrite, slot, stream);
 *     status = hotbed_context_dequeue(rewrite, slot, stream);
 *
 * The work of each stage is enqueued on the stream that it receives. If the next stage uses another
 * stream, the caller orders the two (the engine of hotbed/pipeline.h does so). Nothing is
 * allocated. One context is used by one thread at a time, different contexts by several threads. */
#ifndef HOTBED_CONTEXT_H
#define HOTBED_CONTEXT_H

#include "hotbed/forward.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hotbed_cell_state {
    HOTBED_CELL_EMPTY = 0,
    HOTBED_CELL_STARTED = 1,
    HOTBED_CELL_TENSORS = 2,
    HOTBED_CELL_PREFETCHED = 3,
    HOTBED_CELL_CONSUMED = 4,
    HOTBED_CELL_BACKWARD = 5,
} hotbed_cell_state;

/* Return "EMPTY", ...; "UNKNOWN" for other numbers. */
HOTBED_API const char *hotbed_cell_state_name(hotbed_cell_state state);

/* Errors of all functions here: ARGUMENT (NULL; slot), STATE (a cell is in another state), those
 * returned by the module. */

/* Start a batch (start_sparse_data_dist): run postprocs, call input_dist of all modules for the
 * batch, and fuse the first exchanges of each group. Asynchronous, except for the waits of the
 * modules. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_start(
    hotbed_rewrite *rewrite, uint32_t slot, const void *batch, hotbed_stream *stream);

/* Wait for the first exchanges, which starts the second ones (wait_sparse_data_dist). Asynchronous,
 * except for the waits of the modules. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_wait(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Wait for the second exchanges, then prefetch (_prefetch_embeddings). Asynchronous, except for the
 * waits of the modules. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_prefetch(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Run the model's forward; its modules use the contents of this context, each module at most once.
 * Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_forward(
    hotbed_rewrite *rewrite, uint32_t slot, const void *batch, hotbed_stream *stream);

/* Run the backward of all consumed modules, last one first, and also of modules that are not
 * pipelined. Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_backward(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Release, in evaluation and instead of a backward, what modules hold of the batch.
 * Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_release(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Finish the batch, after its backward or release: all cells become EMPTY. Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_dequeue(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Cancel the batch, in any state. Asynchronous. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_cancel(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* --- shortcuts -------------------------------------------------------------------------------- */

typedef struct hotbed_context_snapshot hotbed_context_snapshot; /* opaque; belongs to its rewrite */

/* Capture what the stages of a slot have done so far, after start, wait, prefetch or forward, for
 * the declared io of a task (hotbed/pipeline.h); the tasks of train pipelines use it. The modules'
 * contexts then belong to the snapshot, with all contents of their buffers, and the slot gets
 * others when it next starts a batch. Several snapshots may be taken of one batch. Allocates;
 * device work is asynchronous.
 * Other errors: UNSUPPORTED (a module without `capture`; after a forward, a module that is not
 * pipelined), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_capture(
    hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream, hotbed_context_snapshot **out);

/* Restore a snapshot instead of running the stage after which it was captured: the slot's batch
 * continues with the contexts of the snapshot. Work of earlier stages in the slot's own contexts is
 * discarded. The backward of a restored forward gets zero gradients. Asynchronous.
 * Other errors: ARGUMENT (a snapshot of another slot). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_restore(
    hotbed_rewrite *rewrite, uint32_t slot, const hotbed_context_snapshot *snapshot,
    hotbed_stream *stream);

/* Free a snapshot. None of its work may be in flight on other streams. NULL is allowed. */
HOTBED_API void hotbed_context_drop(hotbed_context_snapshot *snapshot, hotbed_stream *stream);

/* Return the state of the cell of module number `module` (see hotbed_rewrite_modules()). Never
 * waits.
 * Errors: ARGUMENT (NULL; slot; no such module, or a module that is not pipelined). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_state(
    const hotbed_rewrite *rewrite, uint32_t slot, uint32_t module, hotbed_cell_state *state);

/* Return the number of first exchanges that were started, after fusing, since the rewrite was
 * created. */
HOTBED_API uint64_t hotbed_context_exchanges(const hotbed_rewrite *rewrite);

#ifdef __cplusplus
}
#endif
#endif
