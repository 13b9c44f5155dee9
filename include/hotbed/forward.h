/* hotbed/forward.h - models made of sharded modules, and how a pipeline splits their forwards into
 * stages.
 *
 * Experimental: all calls.
 *
 * For programs that describe a model to a train pipeline (hotbed/train.h), and for authors of
 * modules. A *module* looks up sharded embeddings. Its forward is input_dist, then
 * compute_and_output_dist:
 *
 *   input_dist               exchange 1: sizes                 -> an awaitable
 *     wait for it            exchange 2: keys                  -> an awaitable
 *       wait for it          the input: keys of this rank's rows
 *   prefetch                 fetches the input's rows to the device
 *   compute_and_output_dist  reads the rows, sends them to the ranks that requested them
 *
 * A model whose forward passes the batch's field "sparse" to one module:
 *
 *     static hotbed_status forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
 *         struct my_model *my = self;
 *         hotbed_ref sparse = hotbed_ref_field(batch, "sparse");
 *         return hotbed_module_forward(my->users, &sparse, 1, stream, &my->output);
 *     }
 *
 *     hotbed_module *modules[] = {my->users};
 *     hotbed_model model = {.modules = modules, .num_modules = 1, .forward = forward, .self = my};
 *     hotbed_field fields[] = {{.name = "sparse", .get = get_sparse}};
 *     hotbed_batch_type type = {.name = "batch", .fields = fields, .num_fields = 1};
 *
 * A pipeline runs the first stages for a later batch while the model computes. It therefore calls
 * input_dist without the model, so it must know where in a batch a module's arguments are, and a
 * module's forward must use the results of work that ran ahead. For this purpose
 *   - models access batches through *refs*: fields, list elements, keyed elements. A model that
 *   runs once with a traced ref shows where each argument comes from, and no data is accessed;
 *   - a module's forward is a *forward hook*, a function and its `self`, that a rewrite replaces
 *   and restores.
 * A module whose arguments cannot be traced is left unchanged, works, and is named in the report.
 *
 * Modelled on TorchRec's _rewrite_model, ArgInfo and PipelinedForward; docs/guide/torchrec-map.md
 * maps the names. */
#ifndef HOTBED_FORWARD_H
#define HOTBED_FORWARD_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

enum { HOTBED_ARGUMENTS_MOST = 8, HOTBED_MODULES_MOST = 32, HOTBED_POSTPROCS_MOST = 32 };

/* --- batches and refs ------------------------------------------------------------------------- */

typedef struct hotbed_batch_type hotbed_batch_type;

/* A member of a batch. Frozen: it has no size field, since batch types have arrays of it. */
typedef struct hotbed_field {
    const char *name;
    const void *(*get)(const void *parent);
    const hotbed_batch_type *type; /* NULL: it has no fields or elements */
} hotbed_field;

/* The members of a batch. Static data of the caller. Frozen: it has no size field. */
struct hotbed_batch_type {
    const char *name; /* "batch", for messages */
    const hotbed_field *fields;
    uint32_t num_fields;
    const void *(*at)(const void *parent, uint64_t index); /* list element; NULL: not a list */
    /* Dictionary element; NULL: not a dictionary. */
    const void *(*key)(const void *parent, const char *key);
    const hotbed_batch_type *element; /* type of the elements that `at` and `key` return, or NULL */
};

typedef struct hotbed_trace hotbed_trace; /* opaque; belongs to a rewrite */

/* A part of a batch, or a value that a model computed from a batch. Passed by value; owns nothing.
 * Frozen: it has no size field, since it is passed by value. */
typedef struct hotbed_ref {
    const void *data; /* NULL in a trace: use hotbed_ref_data() */
    const hotbed_batch_type *type;
    hotbed_trace *trace; /* NULL: not traced */
    uint32_t node;
} hotbed_ref;

/* Make a ref to a batch, or to other data of that type. Never waits. */
HOTBED_API hotbed_ref hotbed_ref_batch(const hotbed_batch_type *type, const void *data);

/* Return a field, list element or keyed element. A ref to an element that does not exist has no
 * data. A trace copies `key`. */
HOTBED_API hotbed_ref hotbed_ref_field(hotbed_ref ref, const char *name);
HOTBED_API hotbed_ref hotbed_ref_at(hotbed_ref ref, uint64_t index);
HOTBED_API hotbed_ref hotbed_ref_key(hotbed_ref ref, const char *key);

/* Make a ref to a constant, which is the same for every batch; `like` is any ref of the same
 * forward. */
HOTBED_API hotbed_ref hotbed_ref_constant(hotbed_ref like, const void *data);

/* Make a ref to data that the model itself computed. Nothing derived from it can be computed ahead.
 * `why` appears in the report; a trace copies it. */
HOTBED_API hotbed_ref hotbed_ref_computed(hotbed_ref like, const void *data, const char *why);

/* Return the data; NULL in a trace. A model accesses traced refs only through the functions here,
 * and must enqueue nothing itself if hotbed_ref_traced(). */
HOTBED_API const void *hotbed_ref_data(hotbed_ref ref);
HOTBED_API bool hotbed_ref_traced(hotbed_ref ref); /* whether the forward is being traced */

/* --- awaitables ------------------------------------------------------------------------------- */

/* The result of work in flight. `wait` returns it, in stream order; it may wait on the host. Wait
 * for an awaitable once. Frozen: it has no size field, since it is passed by value. */
typedef struct hotbed_awaitable {
    hotbed_status (*wait)(void *self, hotbed_stream *stream, void **result);
    void *self;
} hotbed_awaitable;

/* --- modules ---------------------------------------------------------------------------------- */

/* The functions of a sharded module. `context` holds everything about one batch: counts, keys,
 * tickets, buffers. The calls for one context are made in the order of the fields. Frozen: it has
 * no size field. */
typedef struct hotbed_module_calls {
    hotbed_status (*context_create)(void *self, hotbed_stream *stream, void **context);
    void (*context_destroy)(void *self, void *context);
    /* Start a batch. A wait for *splits returns a `const hotbed_awaitable *` for the tensors, and a
     * wait for that returns the input. Both awaitables belong to the context. */
    hotbed_status (*input_dist)(
        void *self, void *context, const void *const *arguments, uint32_t n, hotbed_stream *stream,
        hotbed_awaitable *splits);
    /* NULL: there is nothing to fetch. */
    hotbed_status (*prefetch)(void *self, void *context, void *input, hotbed_stream *stream);
    hotbed_status (*compute_and_output_dist)(
        void *self, void *context, void *input, hotbed_stream *stream, const void **output);
    /* Train with the gradient of the context's output. NULL: the module is not trained. */
    hotbed_status (*backward)(void *self, void *context, hotbed_stream *stream);
    /* Release what the context holds of the batch: the batch is cancelled, or finished without a
     * backward (evaluation). Called in any state after input_dist. NULL: nothing to release. */
    hotbed_status (*cancel)(void *self, void *context, hotbed_stream *stream);
    /* Fuse the first exchanges of `n` modules that have the same `fuse` and `group`; none of their
     * splits has been waited for. The result of *fused is an array of [n] tensors' awaitables.
     * NULL: exchanges are not fused. */
    hotbed_status (*fuse)(
        void *group, uint32_t n, void *const *contexts, const hotbed_awaitable *splits,
        hotbed_stream *stream, hotbed_awaitable *fused);
    void *group; /* for example the communicator */
    /* Switch between training and evaluation, from the next batch on. NULL: there is no
     * difference. */
    hotbed_status (*set_training)(void *self, bool training);
    /* For shortcuts of tasks (hotbed_pipeline_shortcut()), all or none of these.
     * `capture` records which call the context has completed, and keeps what it holds, for example
     * pinned rows.
     * `restore` returns the context to that point, any number of times, after its batch has
     * finished or has advanced past that point. Nothing else uses the context in between, so
     * everything that its calls wrote is still in its buffers.
     * `forget` ends the capture.
     * `graft` sets the gradient that `backward` uses to zero. */
    hotbed_status (*capture)(void *self, void *context, hotbed_stream *stream, void **captured);
    hotbed_status (*restore)(
        void *self, void *context, const void *captured, hotbed_stream *stream);
    void (*forget)(void *self, void *context, void *captured, hotbed_stream *stream);
    hotbed_status (*graft)(void *self, void *context, hotbed_stream *stream);
} hotbed_module_calls;

/* A forward hook: function and self. Frozen: it has no size field, since it is a member of
 * hotbed_module. */
typedef struct hotbed_forward {
    hotbed_status (*call)(
        void *self, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
        const void **output);
    void *self;
} hotbed_forward;

/* A module, in the caller's memory. Call hotbed_module_init(); afterwards it must not move. Frozen:
 * it has no size field. */
typedef struct hotbed_module {
    const char *name;
    const hotbed_module_calls *calls;
    void *self;
    hotbed_forward forward; /* the forward hook: only rewrites write it */
    void *context;          /* context of the plain forward; created when first needed */
    bool pending;           /* a plain forward has not been followed by its backward yet */
    void *owner;            /* the rewrite that replaced the hook; NULL: none */
} hotbed_module;

/* Initialize a module with the plain forward. Never waits.
 * Errors: ARGUMENT (NULL; a required function is missing). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_module_init(
    hotbed_module *module, const char *name, const hotbed_module_calls *calls, void *self);

/* Free what the plain forward created. No rewrite may use the module. NULL is allowed. */
HOTBED_API void hotbed_module_close(hotbed_module *module);

/* Call the module, for models: through its forward hook, or, in a trace, record the call.
 *
 *   arguments  [n] in   1 .. HOTBED_ARGUMENTS_MOST
 *   output     out      the module's output, as a computed value
 *
 * Asynchronous, except for the waits of input_dist.
 * Errors: ARGUMENT, STATE (a pipelined forward: the batch's input was consumed already, or does not
 * exist), those returned by the module. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_module_forward(
    hotbed_module *module, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output);

/* Run the backward of a plain forward. Asynchronous.
 * Errors: STATE (there was no forward), those returned by the module. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_module_backward(hotbed_module *module, hotbed_stream *stream);

/* A function between batch and module: features from fields, hashing, truncation. Frozen: it has no
 * size field. */
typedef struct hotbed_postproc {
    const char *name;
    /* `set` in [0, depth) selects the batch's buffers; 0 if the model calls it. */
    hotbed_status (*call)(
        void *self, uint32_t set, const void *const *arguments, uint32_t n, hotbed_stream *stream,
        const void **output);
    void *self;
    bool trainable; /* has state that training changes: cannot run ahead */
    void *owner;    /* the rewrite that runs it ahead; NULL at first */
} hotbed_postproc;

/* Call a postproc, for models: run it, return the result that was computed ahead, or, in a trace,
 * record the call. Asynchronous.
 * Errors: ARGUMENT, those returned by the postproc. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_postproc_call(
    hotbed_postproc *postproc, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output);

/* --- models ----------------------------------------------------------------------------------- */

/* A model: its modules, and the models inside it. A wrapper (for data parallelism, for mixed
 * precision) has no name and does not appear in module names: "over.sparse.users" is module users
 * of model sparse of model over. Frozen: it has no size field. */
typedef struct hotbed_model hotbed_model;
struct hotbed_model {
    const char *name;              /* NULL or "": a wrapper, or the outermost model */
    hotbed_module *const *modules; /* [num_modules] */
    uint32_t num_modules;
    hotbed_model *const *models; /* [num_models] */
    uint32_t num_models;
    /* Calls modules and postprocs for a batch. The forward of the outermost model is used, or, if
     * it has none, of the first model below it that has one. */
    hotbed_status (*forward)(void *self, hotbed_ref batch, hotbed_stream *stream);
    void *self;
};

/* --- rewriting -------------------------------------------------------------------------------- */

/* The result of hotbed_train_create() for a model: its modules, their arguments, and the forward hooks
 * that were replaced. */
typedef struct hotbed_rewrite hotbed_rewrite; /* opaque; belongs to a train pipeline */

/* Restore the forward hooks, pointer-equal to their earlier values, or, with attach, replace them
 * again. Batches in flight stay in their contexts. Never waits.
 * Errors: STATE (another writer has changed or owns a hook, or another rewrite owns a postproc:
 * nothing is changed). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_rewrite_detach(hotbed_rewrite *rewrite);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_rewrite_attach(hotbed_rewrite *rewrite);

/* The result of a rewrite for one module. */
typedef struct hotbed_rewrite_report {
    uint32_t size;    /* set by the caller: sizeof(hotbed_rewrite_report) */
    char module[128]; /* with the names of the models that contain it */
    bool pipelined;
    /* Its arguments, "batch.sparse, trim(batch.ids)"; or the reason why it is not pipelined. */
    char text[256];
} hotbed_rewrite_report;

/* Return the number of modules of the model, in order. Never waits. */
HOTBED_API uint32_t hotbed_rewrite_modules(const hotbed_rewrite *rewrite);
/* Read the report of module number `module`. Never waits. Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_rewrite_module(const hotbed_rewrite *rewrite, uint32_t module, hotbed_rewrite_report *out);

HOTBED_END_DECLS
#endif
