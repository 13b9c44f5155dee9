/* hotbed/sharded_module.h - sharded collections as modules of a model that a pipeline takes apart.
 *
 * Collections of one communicator that are called for the same batch make one set of modules:
 * pipelined, their key exchanges travel together (the fused splits), through one
 * hotbed_sharded_context a batch.  A module's argument is a `const hotbed_kjt *`, its output a
 * `const hotbed_sharded_output *`, and its backward takes the gradient from that.
 *
 * All that a module does with its communicator is in turn-taking steps of the train pipelines
 * (hotbed/train.h), so one communicator is used by one thread at a time, in the same order on all
 * ranks.
 */
#ifndef HOTBED_SHARDED_MODULE_H
#define HOTBED_SHARDED_MODULE_H

#include "hotbed/forward.h"
#include "hotbed/pipeline.h"
#include "hotbed/sharded.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_sharded_modules hotbed_sharded_modules; /* opaque; owned by the caller */
typedef struct hotbed_comm_agreement hotbed_comm_agreement;   /* opaque; owned by the caller */

/* What a module gives.  Device memory, the batch's own until its backward or release. */
typedef struct hotbed_sharded_output {
    const void *rows; /* as hotbed_sharded_wait_output() writes them */
    void *gradient;   /* to be filled before the backward; shape as rows */
    uint64_t num_rows, stride;
    uint64_t bytes; /* num_rows * stride elements */
    const hotbed_kjt *kjt;
} hotbed_sharded_output;

/* Make modules of n collections.  Synchronous.  Memory of a batch in flight is made when a rewrite
 * is, and its hotbed_sharded_context by the first batch that needs it, on all ranks alike.
 *
 *   names        [n] in   of the modules; copied
 *   collections  [n] in   of one communicator, as of hotbed_sharded_create_context(); they outlive the modules
 *
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_modules_create(
    uint32_t n, const char *const *names, hotbed_sharded *const *collections,
    hotbed_sharded_modules **out);

/* Free them.  No rewrite has them, and all work is done; streams that they were used on still
 * exist.  NULL is allowed. */
HOTBED_API void hotbed_sharded_modules_destroy(hotbed_sharded_modules *modules);

/* Module number `module`, for a hotbed_model; NULL when there is none.  Borrowed. */
HOTBED_API hotbed_module *hotbed_sharded_modules_get(
    hotbed_sharded_modules *modules, uint32_t module);

/* An agreement of a communicator's ranks, for hotbed_pipeline_options.  The communicator is for
 * this alone: it is used from the thread that calls progress, while tasks use others.  Each
 * agreement waits on the host for all ranks.  Synchronous.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_agreement_create(hotbed_comm *comm, hotbed_stream *stream, hotbed_comm_agreement **out);
HOTBED_API void hotbed_comm_agreement_destroy(
    hotbed_comm_agreement *agreement); /* NULL is allowed */

/* The field of hotbed_pipeline_options: valid while the agreement is. */
HOTBED_API hotbed_agreement hotbed_comm_agreement_of(hotbed_comm_agreement *agreement);

#ifdef __cplusplus
}
#endif
#endif
