/* dist/sharded_agree.c - at creation: whether all ranks have a collection, with equal options, or a
 * context of the same collections.
 *
 * A rank describes its options as a text and sends the others a digest of it. Only if digests
 * differ are two texts exchanged, so that each rank can say which option differs. If a rank's
 * creation failed, its error is the error of all ranks. */
#include "dist/sharded.h"

#include "base/hash_core.h"
#include "base/text.h"
#include "dist/comm/comm.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* --- the options as a text -------------------------------------------------------------------- */

/* Write an option, or count its bytes: two strings, each with its 0, its name and its value. The name
 * is `name`, or "`name` of `of` `which`". */
__attribute__((format(printf, 5, 6))) static void put(
    hotbed_writer *w, const char *name, const char *of, const char *which, const char *format,
    ...) {
    va_list args;
    if (of == NULL)
        hotbed_write(w, "%s", name);
    else
        hotbed_write(w, "%s of %s %s", name, of, which);
    w->length++;
    va_start(args, format);
    hotbed_vwrite(w, format, args);
    va_end(args);
    w->length++;
}

static const char *const nonfinites[] = {"pass", "skip", "error"};
static const char *const poolings[] = {"none", "sum", "mean"};
static const char *const overflows[] = {"replay", "report"};
static const char *const key_types[] = {"i64", "i64", "u64"}; /* 0 is I64 */
static const char *const kinds[] = {"hash", "static"};
static const char *const evictions[] = {"never", "lowest"};
static const char *const scores[] = {"step", "timestamp", "lfu", "custom", "timestamp-lfu"};
static const char *const roundings[] = {"stochastic", "nearest"};
static const char *const insertions[] = {"auto", "plain", "probation"};
static const char *const admissions[] = {"all", "frequency", "probabilistic"};
static const char *const initializers[] = {
    "constant", "uniform", "normal", "truncated normal", "debug"};

/* The digits that tell the value from every other float. */
static int digits_of(float value) {
    char text[32];
    int digits = 6;
    while (digits < 9) {
        (void)hotbed_format(text, sizeof text, "%.*g", digits, (double)value);
        if ((float)hotbed_parse_number(text, NULL) == value)
            break;
        digits++;
    }
    return digits;
}

static void put_initializer(
    hotbed_writer *w, const char *name, const char *table, const hotbed_initializer *i) {
    const char *kind = HOTBED_NAME(initializers, i->kind, "unknown");
    switch (i->kind) {
    case HOTBED_INIT_CONSTANT:
        put(w, name, "table", table, "%s %.*g", kind, digits_of(i->value), (double)i->value);
        return;
    case HOTBED_INIT_UNIFORM:
        put(w, name, "table", table, "%s in [%.*g, %.*g)", kind, digits_of(i->lower),
            (double)i->lower, digits_of(i->upper), (double)i->upper);
        return;
    case HOTBED_INIT_NORMAL:
        put(w, name, "table", table, "%s, mean %.*g, std %.*g", kind, digits_of(i->mean),
            (double)i->mean, digits_of(i->std), (double)i->std);
        return;
    case HOTBED_INIT_TRUNCATED_NORMAL:
        put(w, name, "table", table, "%s in [%.*g, %.*g], mean %.*g, std %.*g", kind,
            digits_of(i->lower), (double)i->lower, digits_of(i->upper), (double)i->upper,
            digits_of(i->mean), (double)i->mean, digits_of(i->std), (double)i->std);
        return;
    case HOTBED_INIT_DEBUG:
        break;
    }
    put(w, name, "table", table, "%s", kind);
}

/* The parameters of a table's own optimizer. Its clipping is its group's. */
static void put_own(hotbed_writer *w, const hotbed_sharded *c, uint32_t t) {
    const hotbed_optimizer *o = c->tables[t].optimizer;
    const char *name = c->tables[t].name;
    const float clip = c->groups[c->table_info[t].lookup].max_gradient;
    put(w, "learning_rate", "table", name, "%.*g", digits_of(o->learning_rate),
        (double)o->learning_rate);
    put(w, "weight_decay", "table", name, "%.*g", digits_of(o->weight_decay),
        (double)o->weight_decay);
    put(w, "l2_decay", "table", name, "%.*g", digits_of(o->l2_decay), (double)o->l2_decay);
    put(w, "max_gradient", "table", name, "%.*g", digits_of(clip), (double)clip);
}

static void put_table(hotbed_writer *w, const hotbed_sharded *c, uint32_t t) {
    const hotbed_table_options *o = &c->tables[t];
    const hotbed_sharded_table *info = &c->table_info[t];
    put(w, "kind", "table", o->name, "%s", HOTBED_NAME(kinds, o->kind, "unknown"));
    put(w, "dim", "table", o->name, "%u", o->dim);
    put(w, "dtype", "table", o->name, "%s",
        hotbed_dtype_name(o->dtype == 0 ? HOTBED_F32 : o->dtype));
    put(w, "state_dtype", "table", o->name, "%s",
        hotbed_dtype_name(o->state_dtype == 0 ? HOTBED_F32 : o->state_dtype));
    put(w, "rounding", "table", o->name, "%s", HOTBED_NAME(roundings, o->rounding, "unknown"));
    put(w, "route", "table", o->name, "%s", hotbed_route_name(info->route.kind));
    put(w, "capacity", "table", o->name, "%" PRIu64, o->capacity);
    put(w, "max_capacity", "table", o->name, "%" PRIu64, info->max_capacity);
    put(w, "evict", "table", o->name, "%s", HOTBED_NAME(evictions, o->evict, "unknown"));
    put(w, "score", "table", o->name, "%s", HOTBED_NAME(scores, o->score, "unknown"));
    put(w, "insertion", "table", o->name, "%s", HOTBED_NAME(insertions, o->insertion, "unknown"));
    put(w, "track_changes", "table", o->name, "%s", o->track_changes ? "true" : "false");
    if (o->optimizer != NULL)
        put_own(w, c, t);
    put_initializer(w, "initializer", o->name, &o->initializer);
    put_initializer(w, "eval_initializer", o->name, &o->eval_initializer);
    put(w, "admission", "table", o->name, "%s", HOTBED_NAME(admissions, o->admission, "unknown"));
    if (o->admission == HOTBED_ADMIT_PROBABILISTIC)
        put(w, "admission_probability", "table", o->name, "%.*g",
            digits_of(o->admission_probability), (double)o->admission_probability);
    if (o->admission != HOTBED_ADMIT_FREQUENCY)
        return;
    put(w, "admission_threshold", "table", o->name, "%" PRIu64, o->admission_threshold);
    put(w, "admission_capacity", "table", o->name, "%" PRIu64,
        o->admission_capacity == 0 ? o->capacity : o->admission_capacity);
}

static void put_optimizer(hotbed_writer *w, const hotbed_optimizer *o) {
    put(w, "optimizer", NULL, NULL, "%s", o->kind == 0 ? "none" : hotbed_optimizer_name(o->kind));
    if (o->kind == 0)
        return;
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        const float value = hotbed_optimizer_value(o, p);
        put(w, p->name, "optimizer", hotbed_optimizer_name(o->kind), "%.*g", digits_of(value),
            (double)value);
    }
}

/* Write all options that decide which rows exist, on which rank, with which values, and the
 * messages. First come numbers and names, so that equal texts up to an option mean the same
 * option. Options that have one meaning have one text. */
static void put_collection(
    hotbed_writer *w, const hotbed_sharded *c, const hotbed_storage_options *s) {
    const hotbed_sharded_options *o = &c->options;
    char number[16];
    put(w, "num_tables", NULL, NULL, "%u", c->num_tables);
    put(w, "num_features", NULL, NULL, "%u", c->num_features);
    for (uint32_t t = 0; t < c->num_tables; t++) {
        (void)snprintf(number, sizeof number, "%u", t);
        put(w, "name", "table", number, "%s", c->tables[t].name);
    }
    for (uint32_t f = 0; f < c->num_features; f++) {
        (void)snprintf(number, sizeof number, "%u", f);
        put(w, "name", "feature", number, "%s", c->features == NULL ? "not given" : c->features[f]);
        put(w, "table", "feature", number, "%s", c->tables[c->feature_tables[f]].name);
    }
    put(w, "pooling", NULL, NULL, "%s", HOTBED_NAME(poolings, c->pooling, "unknown"));
    put(w, "key_type", NULL, NULL, "%s", HOTBED_NAME(key_types, s->key_type, "unknown"));
    put(w, "output_dtype", NULL, NULL, "%s", hotbed_dtype_name(c->output_dtype));
    put(w, "forward_dtype", NULL, NULL, "%s",
        o->forward_dtype == 0 ? "not given" : hotbed_dtype_name(o->forward_dtype));
    put(w, "backward_dtype", NULL, NULL, "%s",
        o->backward_dtype == 0 ? "not given" : hotbed_dtype_name(o->backward_dtype));
    put(w, "nonfinite", NULL, NULL, "%s", HOTBED_NAME(nonfinites, s->nonfinite, "unknown"));
    put(w, "seed", NULL, NULL, "%" PRIu64, s->seed);
    put(w, "plan", NULL, NULL, "%s", hotbed_plan_name(o->plan));
    put(w, "overflow", NULL, NULL, "%s", HOTBED_NAME(overflows, o->overflow, "unknown"));
    if (c->pooling == HOTBED_POOL_NONE)
        put(w, "dedup", NULL, NULL, "%s", o->dedup == HOTBED_DEDUP_OFF ? "off" : "on");
    put(w, "gradient_scale", NULL, NULL, "%.*g", digits_of(o->gradient_scale),
        (double)o->gradient_scale);
    put(w, "max_batch_size", NULL, NULL, "%u", o->max_batch_size);
    put(w, "max_keys", NULL, NULL, "%" PRIu64, o->max_keys);
    for (uint32_t t = 0; t < c->num_tables && c->pooling != HOTBED_POOL_NONE; t++)
        put(w, "exchange", "table", c->tables[t].name, "by %s", c->by_rows[t] ? "rows" : "sums");
    put(w, "capacity", NULL, NULL, "%" PRIu64, c->groups[0].capacity);
    put(w, "weighted", NULL, NULL, "%s", o->weighted ? "true" : "false");
    put(w, "large_overflows", NULL, NULL, "%s", o->large_overflows ? "true" : "false");
    put_optimizer(w, &c->optimizer);
    for (uint32_t t = 0; t < c->num_tables; t++)
        put_table(w, c, t);
    /* Last, because lookups follow from the options of tables. */
    for (uint32_t g = 1; g < c->num_groups; g++) {
        (void)snprintf(number, sizeof number, "%u", g);
        put(w, "capacity", "lookup", number, "%" PRIu64, c->groups[g].capacity);
    }
}

/* The collections of a context, by the numbers that all ranks gave them at their creation. */
static void put_context(hotbed_writer *w, uint32_t n, hotbed_sharded *const *collections) {
    put(w, "number of collections", NULL, NULL, "%u", n);
    for (uint32_t i = 0; i < n; i++) {
        const hotbed_sharded *c = collections[i];
        char name[24], more[24] = "";
        if (c->num_tables > 1)
            (void)snprintf(more, sizeof more, " and %u more", c->num_tables - 1);
        (void)snprintf(name, sizeof name, "collection %u", i);
        put(w, name, NULL, NULL, "number %u (table %s%s)", c->number, c->tables[0].name, more);
    }
}

/* A collection or a context that is created. */
typedef struct subject {
    const hotbed_sharded *collection;
    const hotbed_storage_options *storage;
    uint32_t n; /* a context of n collections, unless `collections` is NULL */
    hotbed_sharded *const *collections;
} subject;

static void put_subject(hotbed_writer *w, const subject *what) {
    if (what->collections == NULL)
        put_collection(w, what->collection, what->storage);
    else
        put_context(w, what->n, what->collections);
}

/* --- the exchange ----------------------------------------------------------------------------- */

/* The first message of each rank. */
typedef struct summary {
    int64_t status;         /* of the rank's creation */
    uint64_t digest, bytes; /* of its text */
} summary;

static hotbed_status gather(
    hotbed_comm *comm, const summary *own, summary *all, hotbed_stream *stream) {
    hotbed_memory memory;
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, (comm->size + 1) * sizeof *own, NULL, &memory));
    summary *device = memory.data;
    hotbed_status status = hotbed_copy(device, own, sizeof *own, stream);
    HOTBED_THEN(status, hotbed_comm_all_gather(comm, sizeof *own, device, device + 1, stream));
    HOTBED_THEN(status, hotbed_copy(all, device + 1, comm->size * sizeof *all, stream));
    hotbed_status synced = hotbed_stream_sync(stream); /* enqueued work uses the memory */
    hotbed_memory_free(&memory);
    return status == HOTBED_OK ? synced : status;
}

/* Copy the text of rank `root` to all ranks. *out is freed by the caller, and ends with two 0. */
static hotbed_status fetch(
    hotbed_comm *comm, uint32_t root, const char *own, uint64_t bytes, hotbed_stream *stream,
    char **out) {
    *out = hotbed_new(bytes + 2);
    if (*out == NULL)
        return hotbed_fail_rank(
            HOTBED_ERR_MEMORY, root, "no memory for the options of rank %u", root);
    hotbed_memory memory;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    hotbed_status status = HOTBED_OK;
    if (comm->rank == root)
        status = hotbed_copy(memory.data, own, bytes, stream);
    HOTBED_THEN(status, hotbed_comm_broadcast(comm, root, bytes, memory.data, stream));
    HOTBED_THEN(status, hotbed_copy(*out, memory.data, bytes, stream));
    hotbed_status synced = hotbed_stream_sync(stream);
    hotbed_memory_free(&memory);
    return status == HOTBED_OK ? synced : status;
}

/* Return ARGUMENT with the first option in which the texts of ranks 0 and p differ. */
static hotbed_status fail_difference(
    const subject *what, const char *first, const char *end, const char *other, uint32_t p) {
    const char *value = first, *others = other;
    while (first < end) {
        value = first + strlen(first) + 1;
        others = other + strlen(other) + 1;
        if (strcmp(first, other) != 0 || strcmp(value, others) != 0)
            break;
        first = value + strlen(value) + 1;
        other = others + strlen(others) + 1;
    }
    return hotbed_fail_rank(
        HOTBED_ERR_ARGUMENT, p,
        "%.200s is %.200s on rank %u, but %.200s on rank 0; all ranks create %s", other, others, p,
        strcmp(first, other) == 0 ? value : "not set",
        what->collections == NULL ? "a collection with the same options"
                                  : "a context of the same collections, in the same order");
}

/* Exchange texts because the summaries show a failure, or different options. Sets *result on all
 * ranks. Errors: the exchange failed. */
static hotbed_status explain(
    hotbed_comm *comm, const subject *what, const summary *all, const char *own,
    hotbed_stream *stream, hotbed_status *result) {
    char *texts[2] = {NULL, NULL};
    uint32_t failed = 0, other = 0;
    while (failed < comm->size && all[failed].status == HOTBED_OK)
        failed++;
    while (other < comm->size && all[other].digest == all[0].digest)
        other++;
    hotbed_status status = HOTBED_OK;
    if (failed < comm->size) {
        status = fetch(comm, failed, own, all[failed].bytes, stream, &texts[0]);
        if (status == HOTBED_OK) {
            hotbed_error error;
            memcpy(&error, texts[0], sizeof error);
            *result = hotbed_error_rank(
                hotbed_fail_again(
                    &error.fields, (hotbed_status)all[failed].status,
                    "rank %u cannot create its %s: %s", failed,
                    what->collections == NULL ? "part of the collection" : "context", error.text),
                failed);
        }
    } else if (other < comm->size) {
        status = fetch(comm, 0, own, all[0].bytes, stream, &texts[0]);
        HOTBED_THEN(status, fetch(comm, other, own, all[other].bytes, stream, &texts[1]));
        if (status == HOTBED_OK)
            *result = fail_difference(what, texts[0], texts[0] + all[0].bytes, texts[1], other);
    }
    hotbed_delete(texts[0]);
    hotbed_delete(texts[1]);
    return status;
}

static hotbed_status compare(
    hotbed_comm *comm, const subject *what, const summary *own, const char *text,
    hotbed_stream *stream, hotbed_status *result) {
    summary *all = hotbed_new(comm->size * sizeof *all);
    HOTBED_TRY_MEMORY(all, "the digests of %u ranks", comm->size);
    hotbed_status status = gather(comm, own, all, stream);
    HOTBED_THEN(status, explain(comm, what, all, text, stream, result));
    hotbed_delete(all);
    return status;
}

/* Describe the options: *out is freed by the caller. */
static hotbed_status describe(const subject *what, hotbed_writer *out) {
    put_subject(out, what);
    out->text = hotbed_new(out->length);
    HOTBED_TRY_MEMORY(out->text, "the %zu bytes that describe what is created", out->length);
    out->capacity = out->length;
    out->length = 0;
    put_subject(out, what);
    return HOTBED_OK;
}

static hotbed_status agree(
    hotbed_comm *comm, const subject *what, hotbed_status status, hotbed_stream *stream) {
    hotbed_error error;
    hotbed_writer described = {.text = NULL};
    if (comm->size == 1)
        return status;
    HOTBED_THEN(status, describe(what, &described));
    hotbed_error_copy(&error);
    const char *text = status == HOTBED_OK ? described.text : (const char *)&error;
    const size_t bytes = status == HOTBED_OK ? described.length : sizeof error;
    const summary own = {(int64_t)status, hotbed_fnv(HOTBED_FNV_FIRST, text, bytes), bytes};
    hotbed_status result = HOTBED_OK;
    hotbed_held_fault held = {.fault = {.status = HOTBED_OK}};
    hotbed_status exchanged = hotbed_stream_hold_fault(stream, &held);
    if (exchanged == HOTBED_OK)
        exchanged = compare(comm, what, &own, text, stream, &result);
    if (exchanged != HOTBED_OK && hotbed_comm_has_failed(comm))
        exchanged = hotbed_comm_fail(comm);
    else if (exchanged != HOTBED_OK) /* the other ranks would wait for this one */
        hotbed_comm_abort(comm, hotbed_last_error(), hotbed_last_error_detail());
    hotbed_stream_return_fault(stream, &held);
    hotbed_delete(described.text);
    if (status != HOTBED_OK)
        return hotbed_error_return(&error, status);
    return exchanged != HOTBED_OK ? exchanged : result;
}

hotbed_status hotbed_sharded_agree(
    hotbed_comm *comm, const hotbed_sharded *c, const hotbed_storage_options *storage,
    hotbed_status status, hotbed_stream *stream) {
    return agree(comm, &(subject){.collection = c, .storage = storage}, status, stream);
}

hotbed_status hotbed_sharded_agree_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_status status, hotbed_stream *stream) {
    const subject what = {.n = n, .collections = collections};
    return agree(collections[0]->comm, &what, status, stream);
}
