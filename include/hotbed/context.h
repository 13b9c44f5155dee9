/* hotbed/context.h - what the stages of a pipeline hand to each other: a ring of contexts, with a
 * cell a module.
 *
 * A context is that of one batch; its number, `slot`, is in [0, depth).  Each module that a rewrite
 * pipelines has a cell in it, which goes through states; each call here moves all cells of a
 * context.  A cell in the wrong state is an error that names module, batch and states, and the call
 * then did nothing:
 *
 *   state        what it holds (TorchRec's name)                          made by   taken by
 *   EMPTY        -
 *   STARTED      input_dist_splits_requests, module_contexts;             start     wait
 *                fused over modules: fused_splits_awaitables
 *   TENSORS      input_dist_tensors_requests, module_contexts             wait      forward, or prefetch
 *   PREFETCHED   module_input_post_prefetch, module_contexts_post_prefetch prefetch forward
 *   CONSUMED     the module's context, for its backward                   forward   backward, or release
 *   BACKWARD     -                                                        backward  dequeue
 *
 * Each stage's work is on the stream it is given; who takes on another stream orders it after (the
 * engine of hotbed/pipeline.h does).  Nothing is allocated.  One context is used by one thread at a
 * time, different contexts by several.
 */
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

/* "EMPTY", ...; "UNKNOWN" for other numbers. */
HOTBED_API const char *hotbed_cell_state_name(hotbed_cell_state state);

/* Errors of all calls here: ARGUMENT (NULL; slot), STATE (a cell is in another state), the
 * module's. */

/* start_sparse_data_dist: run postprocs, call input_dist of all modules for the batch, fuse the
 * first exchanges of each group.  Async but for what the modules wait for. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_start(
    hotbed_rewrite *rewrite, uint32_t slot, const void *batch, hotbed_stream *stream);

/* wait_sparse_data_dist: wait for the first exchanges, which starts the second ones.  Async but for
 * what the modules wait for. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_wait(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* _prefetch_embeddings: wait for the second exchanges, then prefetch.  Async but for what the
 * modules wait for. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_prefetch(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Run the model's forward: its modules take from this context.  Each module at most once.
 * Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_forward(
    hotbed_rewrite *rewrite, uint32_t slot, const void *batch, hotbed_stream *stream);

/* Backward of all modules that were consumed, last one first; of modules that are not pipelined
 * too.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_backward(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Instead of a backward, for evaluation: modules release what they hold of the batch.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_release(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* The batch is over, after its backward or release: all cells are EMPTY again.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_dequeue(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* Give the batch up, in any state.  Async. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_context_cancel(hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream);

/* --- shortcuts -------------------------------------------------------------------------------- */

typedef struct hotbed_context_snapshot hotbed_context_snapshot; /* opaque; of its rewrite */

/* Capture what the stages of a slot did so far, after start, wait, prefetch or forward, for the declared io of
 * a task (hotbed/pipeline.h): the train pipelines' tasks use it.  The modules' contexts are then the
 * snapshot's, with all that is in their buffers, and the slot gets others when it next starts a
 * batch.  Several snapshots may be of one batch.  Allocates; device work is async.
 * Errors besides: UNSUPPORTED (a module without `capture`; after a forward, a module that is not pipelined),
 * MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_capture(
    hotbed_rewrite *rewrite, uint32_t slot, hotbed_stream *stream, hotbed_context_snapshot **out);

/* Instead of the stage after which it was captured: the slot's batch goes on with the contexts of the snapshot.
 * What stages that did run did in the slot's own contexts is given up.  The backward of a forward that was
 * restored gets zero gradients.  Async.
 * Errors besides: ARGUMENT (a snapshot of another slot). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_restore(
    hotbed_rewrite *rewrite, uint32_t slot, const hotbed_context_snapshot *snapshot,
    hotbed_stream *stream);

/* Free a snapshot: nothing is under way on other streams.  NULL is allowed. */
HOTBED_API void hotbed_context_drop(hotbed_context_snapshot *snapshot, hotbed_stream *stream);

/* State of the cell of module number `module` (of hotbed_rewrite_modules()).  Never waits.
 * Errors: ARGUMENT (NULL; slot; no such module, or one that is not pipelined). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_context_state(
    const hotbed_rewrite *rewrite, uint32_t slot, uint32_t module, hotbed_cell_state *state);

/* First exchanges that were started, after fusing, since the rewrite was made. */
HOTBED_API uint64_t hotbed_context_exchanges(const hotbed_rewrite *rewrite);

#ifdef __cplusplus
}
#endif
#endif
