/* dist/sharded_context_create.c - create and destroy exchange contexts. */
#include "dist/comm/comm.h"
#include "dist/sharded.h"

#include "base/check.h"

/* Check the arguments without which a rank cannot take part in the comparison of collections. */
static hotbed_status check_first(
    uint32_t n, hotbed_sharded *const *collections, const hotbed_stream *stream) {
    if (n < 1 || collections == NULL || collections[0] == NULL || stream == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "n", n,
            "a context needs a stream and a collection; %u collections or NULL were passed", n);
    HOTBED_TRY(hotbed_comm_check_stream(collections[0]->comm, stream));
    return hotbed_stream_may_wait(stream);
}

static hotbed_status check_collections(uint32_t n, hotbed_sharded *const *collections) {
    if (n > HOTBED_MEMBERS_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "n", n, HOTBED_MEMBERS_MOST,
            "a context of %u collections is over %d", n, HOTBED_MEMBERS_MOST);
    for (uint32_t i = 1; i < n; i++) {
        if (collections[i] == NULL)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "collections", i, "collection %u is NULL", i);
        if (collections[i]->comm != collections[0]->comm ||
            collections[i]->options.plan != collections[0]->options.plan ||
            collections[i]->options.overflow != collections[0]->options.overflow)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "collections", i,
                "collections 0 and %u differ in communicator, plan or overflow policy", i);
    }
    return HOTBED_OK;
}

static const hotbed_part_calls *part_calls_of(
    const hotbed_sharded *sharded, const hotbed_group *group) {
    if (sharded->world == 1)
        return &hotbed_alone_calls;
    if (sharded->pooling == HOTBED_POOL_NONE)
        return &hotbed_sequence_calls;
    return group->sums ? &hotbed_pooled_sums_calls : &hotbed_pooled_rows_calls;
}

static hotbed_status make_member(
    hotbed_sharded_context *context, uint32_t number, hotbed_sharded *sharded,
    hotbed_stream *stream) {
    hotbed_member *m = &context->members[number];
    const hotbed_sharded_options *o = &sharded->options;
    uint32_t features =
        o->kjt_features > sharded->num_features ? o->kjt_features : sharded->num_features;
    m->sharded = sharded;
    sharded->num_contexts++;
    m->first_part = context->num_parts;
    m->features_most = features;
    m->rows_most = (uint64_t)features * o->max_batch_size;
    for (uint32_t g = 0; g < sharded->num_groups; g++) {
        hotbed_part *part = &context->parts[context->num_parts++];
        part->context = context;
        part->member = m;
        part->sharded = sharded;
        part->group = &sharded->groups[g];
        part->calls = part_calls_of(sharded, part->group);
        if (part->group->capacity != 0 &&
            (part->group->capacity < o->max_keys || o->large_overflows))
            context->may_overflow = true;
    }
    hotbed_carve carve = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        carve.used = 0;
        m->starts = hotbed_carve_take(&carve, (m->rows_most + 1) * sizeof *m->starts);
        m->bad = hotbed_carve_take(&carve, sizeof *m->bad);
        m->bases = hotbed_carve_take(&carve, ((size_t)features + 1) * sizeof *m->bases);
        if (pass == 0) {
            HOTBED_TRY(
                hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, carve.used, NULL, &m->memory));
            carve.base = m->memory.data;
        }
    }
    return HOTBED_OK;
}

static hotbed_status make_context(
    hotbed_sharded_context *context, uint32_t n, hotbed_sharded *const *collections,
    hotbed_stream *stream) {
    uint32_t parts = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += collections[i]->num_groups;
    context->members = hotbed_new(n * sizeof *context->members);
    context->parts = hotbed_new(parts * sizeof *context->parts);
    HOTBED_TRY_MEMORY(
        context->members != NULL && context->parts != NULL, "a context of %u parts", parts);
    HOTBED_TRY(hotbed_event_create(stream, &context->event));
    HOTBED_TRY(hotbed_event_create(stream, &context->arrived));
    HOTBED_TRY(hotbed_event_create(stream, &context->grouped[0]));
    HOTBED_TRY(hotbed_event_create(stream, &context->grouped[1]));
    for (uint32_t i = 0; i < n; i++) {
        context->num_members++;
        HOTBED_TRY(make_member(context, i, collections[i], stream));
    }
    return hotbed_parts_create(context, stream);
}

hotbed_status hotbed_sharded_create_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_stream *stream,
    hotbed_sharded_context **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(check_first(n, collections, stream));
    HOTBED_TRY(
        hotbed_sharded_agree_context(n, collections, check_collections(n, collections), stream));
    hotbed_sharded_context *context = hotbed_new(sizeof *context);
    HOTBED_TRY_MEMORY(context, "a context");
    const hotbed_sharded *first = collections[0];
    context->comm = first->comm;
    context->rank = first->rank;
    context->world = first->world;
    /* One rank sends nothing, so it has neither sizes to wait for nor a window. */
    context->plan = first->world == 1 ? HOTBED_PLAN_FIXED : first->options.plan;
    context->calls = first->world == 1 ? &hotbed_alone_context_calls : &hotbed_ranks_calls;
    context->policy = first->options.overflow;
    context->backend = first->backend;
    context->device = first->device;
    hotbed_status status = make_context(context, n, collections, stream);
    if (status != HOTBED_OK) {
        (void)!hotbed_stream_finish(stream); /* enqueued work still uses the memory */
        hotbed_sharded_context_destroy(context);
        return status;
    }
    *out = context;
    return HOTBED_OK;
}

void hotbed_sharded_context_destroy(hotbed_sharded_context *context) {
    if (context == NULL)
        return;
    if (context->event != NULL)
        (void)!hotbed_event_sync(context->event);
    for (int i = 0; i < 2; i++)
        if (context->behind != NULL && context->grouped[i] != NULL)
            (void)!hotbed_event_await(context->grouped[i]);
    hotbed_parts_destroy(context);
    for (uint32_t i = 0; i < context->num_members; i++)
        hotbed_memory_free(&context->members[i].memory);
    for (uint32_t i = 0; i < context->num_members; i++)
        if (context->members[i].sharded != NULL)
            context->members[i].sharded->num_contexts--;
    hotbed_event_destroy(context->event);
    hotbed_event_destroy(context->arrived);
    hotbed_event_destroy(context->grouped[0]);
    hotbed_event_destroy(context->grouped[1]);
    hotbed_delete(context->parts);
    hotbed_delete(context->members);
    hotbed_delete(context);
}
