/* pipeline/sharded_module.c - sharded collections as modules: one exchange context per batch for a
 * set of collections.
 *
 * A rewrite fuses the first exchanges of a set into the one input_dist of a hotbed_sharded_context
 * of all its collections; the first module's batch owns that context. A plain forward uses a
 * context of its own collection alone. Both are created when a batch first needs them, on all ranks
 * alike, and destroyed with the batch's context. */
#include "hotbed/train.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "dist/sharded.h"

#include <stdio.h>

enum { SET_MOST = HOTBED_MODULES_MOST, NAME_BYTES = 64 };

typedef struct member member;
typedef struct fused fused;

/* The key exchange of a set of modules. */
struct fused {
    hotbed_sharded_context *context;
    bool arrived; /* the wait for the input is done, for all members */
    hotbed_awaitable tensors[SET_MOST];
};

/* A batch of one module. */
typedef struct place {
    member *of;
    fused shared;                  /* the set's exchange; only in the first module's batch */
    hotbed_sharded_context *alone; /* for plain forwards */
    hotbed_sharded_context *now;   /* context of this batch; NULL: not started */
    uint32_t number;               /* number of the collection in `now` */
    fused *with;                   /* the exchange of the set; NULL: alone */
    hotbed_kjt kjt;
    hotbed_memory memory; /* rows and gradient */
    hotbed_sharded_output output;
    hotbed_awaitable tensors;
} place;

struct member {
    hotbed_module module;
    hotbed_module_calls calls;
    char name[NAME_BYTES];
    hotbed_sharded *collection;
    uint64_t most_rows, columns, element; /* of an output */
};

struct hotbed_sharded_modules {
    uint32_t n;
    member *members; /* [n] */
};

/* --- places ----------------------------------------------------------------------------------- */

static void place_destroy(void *self, void *context) {
    place *p = context;
    hotbed_sharded_context_destroy(p->shared.context);
    hotbed_sharded_context_destroy(p->alone);
    hotbed_memory_free(&p->memory);
    hotbed_delete(p);
}

static hotbed_status place_create(void *self, hotbed_stream *stream, void **out) {
    member *m = self;
    size_t bytes = (size_t)(m->most_rows * m->columns * m->element);
    place *p = hotbed_new(sizeof *p);
    HOTBED_TRY_MEMORY(p, "a batch of module '%s'", m->name);
    p->of = m;
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 2 * bytes, NULL, &p->memory);
    if (status != HOTBED_OK) {
        place_destroy(self, p);
        return status;
    }
    p->output.rows = p->memory.data;
    p->output.gradient = (unsigned char *)p->memory.data + bytes;
    p->output.stride = m->columns;
    p->output.kjt = &p->kjt;
    *out = p;
    return HOTBED_OK;
}

/* --- exchange of keys ------------------------------------------------------------------------- */

/* Return the batch as the module's input: its context has the keys. */
static hotbed_status take_input(void *self, hotbed_stream *stream, void **result) {
    place *p = self;
    if (p->with == NULL || !p->with->arrived)
        HOTBED_TRY(hotbed_sharded_wait_input(p->now, stream));
    if (p->with != NULL)
        p->with->arrived = true;
    *result = p;
    return HOTBED_OK;
}

/* Start the exchange of a module that is not fused, in a context of this collection alone. */
static hotbed_status exchange_alone(void *self, hotbed_stream *stream, void **result) {
    place *p = self;
    if (p->alone == NULL)
        HOTBED_TRY(hotbed_sharded_create_context(1, &p->of->collection, stream, &p->alone));
    p->now = p->alone;
    p->number = 0;
    p->with = NULL;
    HOTBED_TRY(hotbed_sharded_input_dist(p->now, &p->kjt, stream));
    HOTBED_TRY(hotbed_sharded_wait_splits(p->now, stream));
    p->tensors = (hotbed_awaitable){take_input, p};
    *result = &p->tensors;
    return HOTBED_OK;
}

static hotbed_status input_dist(
    void *self, void *context, const void *const *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_awaitable *splits) {
    const member *m = self;
    place *p = context;
    if (n != 1)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, n, 1,
            "module '%s' takes one keyed jagged tensor, not %u arguments", m->name, n);
    HOTBED_TRY(hotbed_kjt_read(arguments[0], &p->kjt));
    p->kjt.size = sizeof p->kjt; /* of this library, also if the caller's struct has another size */
    p->output.num_rows =
        m->collection->pooling == HOTBED_POOL_NONE ? p->kjt.num_keys : p->kjt.batch_size;
    p->output.bytes = p->output.num_rows * m->columns * m->element;
    if (p->output.num_rows > m->most_rows)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, p->output.num_rows, m->most_rows,
            "module '%s': %llu rows are above %llu", m->name,
            (unsigned long long)p->output.num_rows, (unsigned long long)m->most_rows);
    *splits = (hotbed_awaitable){exchange_alone, p};
    return HOTBED_OK;
}

static hotbed_status wait_fused(void *self, hotbed_stream *stream, void **result) {
    fused *f = self;
    HOTBED_TRY(hotbed_sharded_wait_splits(f->context, stream));
    *result = f->tensors;
    return HOTBED_OK;
}

static hotbed_status fuse(
    void *group, uint32_t n, void *const *contexts, const hotbed_awaitable *splits,
    hotbed_stream *stream, hotbed_awaitable *out) {
    hotbed_sharded *collections[SET_MOST] = {NULL};
    hotbed_kjt kjts[SET_MOST];
    fused *f = &((place *)contexts[0])->shared;
    (void)splits; /* nothing was started */
    for (uint32_t i = 0; i < n; i++)
        collections[i] = ((place *)contexts[i])->of->collection;
    if (f->context == NULL)
        HOTBED_TRY(hotbed_sharded_create_context(n, collections, stream, &f->context));
    f->arrived = false;
    for (uint32_t i = 0; i < n; i++) {
        place *p = contexts[i];
        p->now = f->context;
        p->number = i;
        p->with = f;
        kjts[i] = p->kjt;
        f->tensors[i] = (hotbed_awaitable){take_input, p};
    }
    *out = (hotbed_awaitable){wait_fused, f};
    return hotbed_sharded_input_dist(f->context, kjts, stream);
}

/* --- rows ------------------------------------------------------------------------------------- */

static hotbed_status prefetch(void *self, void *context, void *input, hotbed_stream *stream) {
    const member *m = self;
    const place *p = context;
    if (!hotbed_sharded_training(m->collection))
        return HOTBED_OK; /* eval finds rows when it reads them */
    return hotbed_sharded_prefetch(p->now, p->number, stream);
}

static hotbed_status compute(
    void *self, void *context, void *input, hotbed_stream *stream, const void **output) {
    place *p = context;
    HOTBED_TRY(hotbed_sharded_read(p->now, p->number, p->memory.data, p->output.stride, stream));
    *output = &p->output;
    return HOTBED_OK;
}

static hotbed_status backward(void *self, void *context, hotbed_stream *stream) {
    place *p = context;
    HOTBED_TRY(
        hotbed_sharded_backward(p->now, p->number, p->output.gradient, p->output.stride, stream));
    p->now = NULL;
    return HOTBED_OK;
}

static hotbed_status cancel(void *self, void *context, hotbed_stream *stream) {
    place *p = context;
    hotbed_sharded_context *now = p->now;
    p->now = NULL;
    return now == NULL ? HOTBED_OK : hotbed_sharded_cancel(now, stream);
}

/* --- shortcuts -------------------------------------------------------------------------------- */

typedef struct place_point {
    hotbed_sharded_context *now; /* NULL: nothing has been started */
    fused *with;
    bool arrived;
    hotbed_sharded_point stage;
} place_point;

/* Whether this module makes the calls for its set's context: only the set's first module does. */
static bool acts(const place *p, const hotbed_sharded_context *now) {
    return now != NULL && (p->with == NULL || p->number == 0);
}

static hotbed_status capture(void *self, void *context, hotbed_stream *stream, void **out) {
    const place *p = context;
    const member *m = self;
    place_point *point = hotbed_new(sizeof *point);
    HOTBED_TRY_MEMORY(point, "a capture of module '%s'", m->name);
    point->now = p->now;
    point->with = p->with;
    point->arrived = p->with != NULL && p->with->arrived;
    hotbed_status status =
        acts(p, p->now) ? hotbed_sharded_keep(p->now, &point->stage, stream) : HOTBED_OK;
    if (status == HOTBED_OK)
        *out = point;
    else
        hotbed_delete(point);
    return status;
}

static hotbed_status restore(void *self, void *context, const void *from, hotbed_stream *stream) {
    const place_point *point = from;
    place *p = context;
    p->now = point->now;
    p->with = point->with;
    if (p->with != NULL)
        p->with->arrived = point->arrived;
    return acts(p, p->now) ? hotbed_sharded_rewind(p->now, &point->stage, stream) : HOTBED_OK;
}

static void forget(void *self, void *context, void *from, hotbed_stream *stream) {
    place_point *point = from;
    if (acts(context, point->now))
        (void)!hotbed_sharded_forget(point->now, stream);
    hotbed_delete(point);
}

static hotbed_status graft(void *self, void *context, hotbed_stream *stream) {
    const place *p = context;
    return hotbed_fill(p->output.gradient, 0, p->output.bytes, stream);
}

/* Rows of an external store cannot be kept beyond their backward. */
static bool capturable(const hotbed_sharded *collection) {
    return !collection->external;
}

static hotbed_status set_training(void *self, bool training) {
    const member *m = self;
    return hotbed_sharded_set_training(m->collection, training);
}

/* --- sets ------------------------------------------------------------------------------------- */

static hotbed_status make_member(
    hotbed_sharded_modules *set, uint32_t number, const char *name, hotbed_sharded *collection) {
    member *m = &set->members[number];
    bool pooled = collection->pooling != HOTBED_POOL_NONE;
    int length = snprintf(m->name, sizeof m->name, "%s", name);
    if (length <= 0 || (size_t)length >= sizeof m->name)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "name", "module name '%s' is not of 1 to %d bytes", name,
            NAME_BYTES - 1);
    m->collection = collection;
    m->most_rows = pooled ? collection->options.max_batch_size : collection->options.max_keys;
    m->columns = pooled ? hotbed_sharded_columns(collection) : collection->dim;
    m->element = hotbed_dtype_bytes(collection->output_dtype);
    m->calls = (hotbed_module_calls){
        .context_create = place_create,
        .context_destroy = place_destroy,
        .input_dist = input_dist,
        .prefetch = prefetch,
        .compute_and_output_dist = compute,
        .backward = backward,
        .cancel = cancel,
        .fuse = set->n > 1 ? fuse : NULL,
        .group = set,
        .set_training = set_training};
    if (capturable(collection)) {
        m->calls.capture = capture;
        m->calls.restore = restore;
        m->calls.forget = forget;
        m->calls.graft = graft;
    }
    return hotbed_module_init(&m->module, m->name, &m->calls, m);
}

static hotbed_status make(
    hotbed_sharded_modules *set, const char *const *names, hotbed_sharded *const *collections) {
    set->members = hotbed_new(set->n * sizeof *set->members);
    HOTBED_TRY_MEMORY(set->members, "%u modules", set->n);
    for (uint32_t i = 0; i < set->n; i++) {
        if (names[i] == NULL || collections[i] == NULL)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "collections", i, "name or collection %u is NULL", i);
        HOTBED_TRY(make_member(set, i, names[i], collections[i]));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_modules_create(
    uint32_t n, const char *const *names, hotbed_sharded *const *collections,
    hotbed_sharded_modules **out) {
    HOTBED_TRY_OUT(out);
    if (n < 1 || n > SET_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "n", n, hotbed_bound(n, 1, SET_MOST), "%u modules: not in [1, %d]",
            n, SET_MOST);
    if (names == NULL || collections == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "names or collections is NULL");
    hotbed_sharded_modules *set = hotbed_new(sizeof *set);
    HOTBED_TRY_MEMORY(set, "%u modules", n);
    set->n = n;
    hotbed_status status = make(set, names, collections);
    if (status == HOTBED_OK)
        *out = set;
    else
        hotbed_sharded_modules_destroy(set);
    return status;
}

void hotbed_sharded_modules_destroy(hotbed_sharded_modules *modules) {
    if (modules == NULL)
        return;
    for (uint32_t i = 0; modules->members != NULL && i < modules->n; i++)
        hotbed_module_close(&modules->members[i].module);
    hotbed_delete(modules->members);
    hotbed_delete(modules);
}

hotbed_module *hotbed_sharded_modules_get(hotbed_sharded_modules *modules, uint32_t module) {
    return modules != NULL && module < modules->n ? &modules->members[module].module : NULL;
}

/* --- agreement -------------------------------------------------------------------------------- */

struct hotbed_comm_agreement {
    hotbed_comm *comm;
    hotbed_stream *stream;
    hotbed_memory memory; /* pinned: this rank's word, then the words of all ranks */
};

hotbed_status hotbed_comm_agreement_create(
    hotbed_comm *comm, hotbed_stream *stream, hotbed_comm_agreement **out) {
    HOTBED_TRY_OUT(out);
    if (comm == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "comm or stream is NULL");
    hotbed_comm_agreement *agreement = hotbed_new(sizeof *agreement);
    HOTBED_TRY_MEMORY(agreement, "an agreement");
    agreement->comm = comm;
    agreement->stream = stream;
    hotbed_status status = hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, (hotbed_comm_size(comm) + 1) * sizeof(uint64_t), NULL,
        &agreement->memory);
    if (status == HOTBED_OK)
        *out = agreement;
    else
        hotbed_delete(agreement);
    return status;
}

void hotbed_comm_agreement_destroy(hotbed_comm_agreement *agreement) {
    if (agreement == NULL)
        return;
    hotbed_memory_free(&agreement->memory);
    hotbed_delete(agreement);
}

static hotbed_status least_word(void *self, uint64_t word, uint64_t *least) {
    hotbed_comm_agreement *agreement = self;
    HOTBED_TRY(hotbed_check_pointer("agreement", agreement));
    uint64_t *words = agreement->memory.data;
    uint32_t n = hotbed_comm_size(agreement->comm);
    words[0] = word;
    HOTBED_TRY(
        hotbed_comm_all_gather(agreement->comm, sizeof word, words, words + 1, agreement->stream));
    HOTBED_TRY(hotbed_stream_sync(agreement->stream));
    *least = words[1];
    for (uint32_t r = 1; r < n; r++)
        *least = words[1 + r] < *least ? words[1 + r] : *least;
    return HOTBED_OK;
}

hotbed_agreement hotbed_comm_agreement_of(hotbed_comm_agreement *agreement) {
    return (hotbed_agreement){least_word, agreement};
}
