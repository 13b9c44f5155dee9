/* hotbed/sharded_module.h - sharded collections as modules of a model that a pipeline splits into
 * stages.
 *
 * For programs that train sharded collections (hotbed/sharded.h) with a train pipeline
 * (hotbed/train.h). Collections of one communicator that are called for the same batch form one set
 * of modules: when pipelined, their key exchanges travel together (the fused splits), through one
 * hotbed_sharded_context per batch. A module's argument is a `const hotbed_kjt *`, its output a
 * `const hotbed_sharded_output *`, and its backward reads the gradient from that output.
 *
 *     const char *names[] = {"users"};
 *     status = hotbed_sharded_modules_create(1, names, &collection, &modules);
 *     status = hotbed_comm_agreement_create(agreement_comm, agreement_stream, &agreement);
 *     hotbed_module *list[] = {hotbed_sharded_modules_get(modules, 0)};
 *     hotbed_model model = {.modules = list, .num_modules = 1, .forward = forward, .self = my};
 *     trainer.model = &model;
 *     hotbed_pipeline_options_init(&options.pipeline);
 *     options.pipeline.agreement = hotbed_comm_agreement_of(agreement);
 *     status = hotbed_train_create(&trainer, &options, &train);
 *
 * Here forward calls hotbed_module_forward() (hotbed/forward.h), and options is a
 * hotbed_train_options.
 *
 * A module uses its communicator only in ordered steps of the train pipelines, which take turns, so
 * one communicator is used by one thread at a time, in the same order on all ranks. */
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

/* The output of a module. Device memory that belongs to the batch until its backward or release.
 * The library creates it, so it has no size field; fields are only appended. */
typedef struct hotbed_sharded_output {
    const void *rows; /* as hotbed_sharded_wait_output() writes them */
    void *gradient;   /* to be written before the backward; same shape as rows */
    uint64_t num_rows, stride;
    uint64_t bytes; /* size of num_rows * stride elements */
    const hotbed_kjt *kjt;
} hotbed_sharded_output;

/* Create modules for n collections. Synchronous. The memory of a batch in flight is allocated when
 * a rewrite is created, and its hotbed_sharded_context by the first batch that needs it, on all
 * ranks alike.
 *
 *   names        [n] in   of the modules; copied
 *   collections  [n] in   of one communicator, as for hotbed_sharded_create_context(); they must
 *                         outlive the modules
 *
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_sharded_modules_create(
    uint32_t n, const char *const *names, hotbed_sharded *const *collections,
    hotbed_sharded_modules **out);

/* Free the modules. No rewrite may use them, all work must be complete, and the streams that they
 * were used on must still exist. NULL is allowed. */
HOTBED_API void hotbed_sharded_modules_destroy(hotbed_sharded_modules *modules);

/* Return module number `module`, for a hotbed_model; NULL if there is none. Borrowed. */
HOTBED_API hotbed_module *hotbed_sharded_modules_get(
    hotbed_sharded_modules *modules, uint32_t module);

/* Create an agreement of a communicator's ranks, for hotbed_pipeline_options. The communicator must
 * serve no other purpose: it is used on the thread that calls progress, while tasks use other
 * communicators. Each agreement waits on the host for all ranks. Synchronous.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_agreement_create(hotbed_comm *comm, hotbed_stream *stream, hotbed_comm_agreement **out);
HOTBED_API void hotbed_comm_agreement_destroy(
    hotbed_comm_agreement *agreement); /* NULL is allowed */

/* Return the value of `agreement` in hotbed_pipeline_options, valid as long as the object
 * exists. */
HOTBED_API hotbed_agreement hotbed_comm_agreement_of(hotbed_comm_agreement *agreement);

#ifdef __cplusplus
}
#endif
#endif
