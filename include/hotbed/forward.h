/* hotbed/forward.h - models made of sharded modules, and how a pipeline takes their forwards apart.
 *
 * A *module* looks up sharded embeddings.  Its forward is input_dist, then compute_and_output_dist:
 *
 *   input_dist               exchange 1: how much goes where   -> an awaitable
 *     wait of that           exchange 2: the keys              -> an awaitable
 *       wait of that         the input: keys of this rank's rows
 *   prefetch                 brings the input's rows to the device
 *   compute_and_output_dist  rows, and back to who asked
 *
 * A pipeline runs the first ones for a later batch while the model computes.  It must then call
 * input_dist without the model, so it must know where in a batch a module's arguments are, and a
 * module's forward must take what was done ahead.  For that
 *   - models get at batches through *refs*: fields, list elements, keyed elements.  Run once with a ref
 *     that is traced, a model shows where each argument comes from, and no data is touched;
 *   - a module's forward is a *slot*, function and self, that a rewrite replaces and puts back.
 * What cannot be traced stays as it is, works, and is named in the report.
 *
 * After TorchRec's _rewrite_model, ArgInfo and PipelinedForward; docs/torchrec-map.md has the
 * names.
 */
#ifndef HOTBED_FORWARD_H
#define HOTBED_FORWARD_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HOTBED_ARGUMENTS_MOST = 8, HOTBED_MODULES_MOST = 32, HOTBED_POSTPROCS_MOST = 32 };

/* --- batches and refs ------------------------------------------------------------------------- */

typedef enum hotbed_field_kind {
    HOTBED_FIELD_TENSOR = 0,
    HOTBED_FIELD_JAGGED = 1, /* features: what a module takes */
    HOTBED_FIELD_STRUCT = 2, /* has a type of its own */
} hotbed_field_kind;

typedef struct hotbed_batch_type hotbed_batch_type;

/* A member of a batch. */
typedef struct hotbed_field {
    const char *name;
    hotbed_field_kind kind;
    bool label; /* jagged, but not an input of the model: the direct path passes it over */
    const void *(*get)(const void *parent);
    const hotbed_batch_type *type; /* of a STRUCT; else NULL */
} hotbed_field;

/* What a batch is made of.  Static data of the caller. */
struct hotbed_batch_type {
    const char *name; /* "batch" for messages */
    const hotbed_field *fields;
    uint32_t num_fields;
    const void *(*at)(const void *parent, uint64_t index);   /* of a list; NULL: is none */
    const void *(*key)(const void *parent, const char *key); /* of a dictionary; NULL: is none */
    const hotbed_batch_type *element; /* type of what at and key give, or NULL */
};

typedef struct hotbed_trace hotbed_trace; /* opaque; of a rewrite */

/* A piece of a batch, or of what a model made of it.  By value; owns nothing. */
typedef struct hotbed_ref {
    const void *data; /* NULL in a trace: use hotbed_ref_data() */
    const hotbed_batch_type *type;
    hotbed_trace *trace; /* NULL: not traced */
    uint32_t node;
} hotbed_ref;

/* A batch, or anything of that type.  Never waits. */
HOTBED_API hotbed_ref hotbed_ref_batch(const hotbed_batch_type *type, const void *data);

/* Field, list element or keyed element.  What is not there has no data. */
HOTBED_API hotbed_ref hotbed_ref_field(hotbed_ref ref, const char *name);
HOTBED_API hotbed_ref hotbed_ref_at(hotbed_ref ref, uint64_t index);
HOTBED_API hotbed_ref hotbed_ref_key(hotbed_ref ref, const char *key);

/* A constant, the same for every batch; `like` is any ref of the same forward. */
HOTBED_API hotbed_ref hotbed_ref_constant(hotbed_ref like, const void *data);

/* What the model itself computed: what comes of it cannot be had ahead.  `why` is for the
 * report. */
HOTBED_API hotbed_ref hotbed_ref_computed(hotbed_ref like, const void *data, const char *why);

/* The data.  NULL in a trace: a model looks at refs that are traced only through the calls here,
 * and enqueues nothing itself where hotbed_ref_traced(). */
HOTBED_API const void *hotbed_ref_data(hotbed_ref ref);
HOTBED_API bool hotbed_ref_traced(hotbed_ref ref); /* whether the forward is only looked at */

/* --- awaitables ------------------------------------------------------------------------------- */

/* Something under way.  `wait` gives it, in stream order; it may wait on the host.  Waited for
 * once. */
typedef struct hotbed_awaitable {
    hotbed_status (*wait)(void *self, hotbed_stream *stream, void **result);
    void *self;
} hotbed_awaitable;

/* --- modules ---------------------------------------------------------------------------------- */

/* What a sharded module can do.  `context` holds all of one batch: counts, keys, tickets, buffers.
 * The calls for one context come in the order in which they stand here. */
typedef struct hotbed_module_calls {
    hotbed_status (*context_create)(void *self, hotbed_stream *stream, void **context);
    void (*context_destroy)(void *self, void *context);
    /* Start.  The result of *splits is a `const hotbed_awaitable *`, the tensors', whose result is
     * the input.  Both are the context's. */
    hotbed_status (*input_dist)(
        void *self, void *context, const void *const *arguments, uint32_t n, hotbed_stream *stream,
        hotbed_awaitable *splits);
    /* NULL: nothing to bring. */
    hotbed_status (*prefetch)(void *self, void *context, void *input, hotbed_stream *stream);
    hotbed_status (*compute_and_output_dist)(
        void *self, void *context, void *input, hotbed_stream *stream, const void **output);
    /* From the gradient that the context's output has.  NULL: not trained. */
    hotbed_status (*backward)(void *self, void *context, hotbed_stream *stream);
    /* The batch is given up, or over without a backward (evaluation): release what it holds.  In
     * any state after input_dist.  NULL: nothing to release. */
    hotbed_status (*cancel)(void *self, void *context, hotbed_stream *stream);
    /* Fuse the first exchanges of `n` modules that have the same `fuse` and `group`: none of their
     * splits was waited for.  The result of *fused is an array of [n] tensors' awaitables.  NULL:
     * not fused. */
    hotbed_status (*fuse)(
        void *group, uint32_t n, void *const *contexts, const hotbed_awaitable *splits,
        hotbed_stream *stream, hotbed_awaitable *fused);
    void *group; /* the communicator, say */
    /* Train from the next batch on, or only evaluate.  NULL: makes no difference. */
    hotbed_status (*set_training)(void *self, bool training);
    /* For shortcuts (hotbed/context.h), all or none of these.  `capture` notes which call the context
     * has behind it, and keeps what it holds, rows pinned for example.  `restore` brings the context
     * back there, when its batch is over or later than that, any number of times: nobody else
     * has used the context meanwhile, so all that its calls wrote is still in its buffers.
     * `forget` ends that.  `graft` puts zeros into the gradient that `backward` takes. */
    hotbed_status (*capture)(void *self, void *context, hotbed_stream *stream, void **mark);
    hotbed_status (*restore)(void *self, void *context, const void *mark, hotbed_stream *stream);
    void (*forget)(void *self, void *context, void *mark, hotbed_stream *stream);
    hotbed_status (*graft)(void *self, void *context, hotbed_stream *stream);
} hotbed_module_calls;

/* A forward: function and self. */
typedef struct hotbed_forward {
    hotbed_status (*call)(
        void *self, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
        const void **output);
    void *self;
} hotbed_forward;

/* A module.  The caller's memory; hotbed_module_init(), then it stays where it is. */
typedef struct hotbed_module {
    const char *name;
    const hotbed_module_calls *calls;
    void *self;
    hotbed_forward forward; /* the slot: only rewrites write it */
    void *context;          /* of the plain forward; made when first needed */
    bool pending;           /* a plain forward was not followed by its backward yet */
    void *owner;            /* the rewrite that has the slot; NULL: none */
} hotbed_module;

/* Set a module up, with the plain forward.  Never waits.
 * Errors: ARGUMENT (NULL; a call that must be there). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_module_init(
    hotbed_module *module, const char *name, const hotbed_module_calls *calls, void *self);

/* Free what the plain forward made.  Not while a rewrite has it.  NULL is allowed. */
HOTBED_API void hotbed_module_close(hotbed_module *module);

/* Call the module, for models: through its slot, or into the trace.
 *
 *   arguments  [n] in   1 .. HOTBED_ARGUMENTS_MOST
 *   output     out      the module's; a computed value
 *
 * Async but for what input_dist waits for.
 * Errors: ARGUMENT, STATE (a pipelined forward: the batch's input was consumed, or was not there),
 * the module's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_module_forward(
    hotbed_module *module, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output);

/* The backward of a plain forward; of the contexts of a rewrite see hotbed/context.h.  Async.
 * Errors: STATE (there was no forward), the module's. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_module_backward(hotbed_module *module, hotbed_stream *stream);

/* A function between batch and module: features from fields, hashing, truncation. */
typedef struct hotbed_postproc {
    const char *name;
    /* `slot` in [0, depth): the batch's buffers; 0 when it is called by the model. */
    hotbed_status (*call)(
        void *self, uint32_t slot, const void *const *arguments, uint32_t n, hotbed_stream *stream,
        const void **output);
    void *self;
    bool trainable; /* has state that training changes: cannot run ahead */
    void *owner;    /* of the rewrite that runs it ahead; NULL at first */
} hotbed_postproc;

/* Call a postproc, for models: runs it, or serves what was run ahead, or into the trace.  Async.
 * Errors: ARGUMENT, its own. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_postproc_call(
    hotbed_postproc *postproc, const hotbed_ref *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_ref *output);

/* --- models ----------------------------------------------------------------------------------- */

/* A model: modules and models in it.  A wrapper (of data parallelism, of mixed precision) has no
 * name and does not show in module names: "over.sparse.users" is module users of model sparse of
 * model over. */
typedef struct hotbed_model hotbed_model;
struct hotbed_model {
    const char *name;              /* NULL or "": a wrapper, or the outermost */
    hotbed_module *const *modules; /* [num_modules] */
    uint32_t num_modules;
    hotbed_model *const *models; /* [num_models] */
    uint32_t num_models;
    /* Calls modules and postprocs for a batch; of the outermost model, or of the first below it
     * that has one. */
    hotbed_status (*forward)(void *self, hotbed_ref batch, hotbed_stream *stream);
    void *self;
};

/* --- rewriting -------------------------------------------------------------------------------- */

typedef struct hotbed_rewrite hotbed_rewrite; /* opaque; owned by the caller */

typedef enum hotbed_rewrite_find {
    HOTBED_FIND_TRACE = 0,  /* run the model's forward on a traced batch */
    HOTBED_FIND_DIRECT = 1, /* all modules take the batch's one jagged field that is no label */
} hotbed_rewrite_find;

typedef enum hotbed_rewrite_kind {
    HOTBED_FORWARD_PIPELINED = 0, /* waits for the tensors, then computes */
    HOTBED_FORWARD_PREFETCH = 1,  /* takes what prefetch left: waits for nothing */
} hotbed_rewrite_kind;

/* Call hotbed_rewrite_options_init(), then set fields; 0 is each field's default. */
typedef struct hotbed_rewrite_options {
    uint32_t size;                  /* set by init */
    uint32_t depth;                 /* batches in flight; required */
    hotbed_model *model;            /* required; stays */
    const hotbed_batch_type *batch; /* required; stays */
    hotbed_rewrite_find find;
    hotbed_rewrite_kind kind;
    const char *field; /* DIRECT: take this field of the batch; NULL: the only one */
} hotbed_rewrite_options;

static inline void hotbed_rewrite_options_init(hotbed_rewrite_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Find the modules and their arguments, make contexts, and put pipelined forwards into the slots.
 * `stream` is for making contexts.  Synchronous; enqueues nothing of the model.
 *
 * Errors: ARGUMENT (no module; too many; DIRECT: no field, or several, with their names), STATE (a
 * module is another rewrite's), what the model's forward returns in the trace, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_rewrite_create(
    const hotbed_rewrite_options *options, hotbed_stream *stream, hotbed_rewrite **out);

/* Put the slots back, as they were before: pointer-equal.  Batches in flight stay in their
 * contexts.  Then again: replace them.  Never waits.
 * Errors: STATE (somebody else wrote a slot meanwhile, or has it: nothing is changed). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_rewrite_detach(hotbed_rewrite *rewrite);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_rewrite_attach(hotbed_rewrite *rewrite);

/* Detach and free.  Nothing of its contexts is in flight on a stream.  NULL is allowed. */
HOTBED_API void hotbed_rewrite_destroy(hotbed_rewrite *rewrite);

/* What became of a module. */
typedef struct hotbed_rewrite_report {
    char module[128]; /* with the names of the models that it is in */
    bool pipelined;
    char
        text[256]; /* its arguments, "batch.sparse, trim(batch.ids)"; or why it was not pipelined */
} hotbed_rewrite_report;

/* Modules of the model in order.  Never waits. */
HOTBED_API uint32_t hotbed_rewrite_modules(const hotbed_rewrite *rewrite);
/* Report of module number `module`.  Never waits.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_rewrite_module(const hotbed_rewrite *rewrite, uint32_t module, hotbed_rewrite_report *out);

#ifdef __cplusplus
}
#endif
#endif
