/* dist/sharded_step.c - from a batch's arrival to its update: rows to the requesters, gradients
 * back, the optimizer. */
#include "dist/sharded.h"

/* --- what the calls share -------------------------------------------------------------------------------- */

/* Check the call, and order the stream after the context's work; *out is the collection's member. */
hotbed_status hotbed_step_begin(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_stage stage, hotbed_member **out) {
    if (context == NULL || number >= context->num_members)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s: context is NULL, or has no collection %u", call, number);
    *out = &context->members[number];
    if ((*out)->stage != stage)
        return hotbed_sharded_context_fail_stage(
            call, context->stage != HOTBED_STAGE_READY ? context->stage : (*out)->stage);
    return hotbed_sharded_context_enter(context, stream, call);
}

hotbed_status hotbed_step_end(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stage stage, hotbed_stream *stream) {
    m->stage = stage;
    return hotbed_sharded_context_leave(context, stream);
}

static uint64_t least_stride(const hotbed_sharded *c) {
    return c->pooling == HOTBED_POOL_NONE ? c->dim : hotbed_sharded_columns(c);
}

hotbed_status hotbed_step_check_rows(
    const hotbed_member *m, const void *rows, const char *name, uint64_t *stride) {
    uint64_t least = least_stride(m->sharded);
    uint64_t n = m->sharded->pooling == HOTBED_POOL_NONE ? m->kjt.num_keys : m->kjt.batch_size;
    if (rows == NULL && n > 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", name);
    if (*stride == 0)
        *stride = least;
    if (*stride < least)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "stride %llu is below %llu", (unsigned long long)*stride,
            (unsigned long long)least);
    return HOTBED_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------ */

static hotbed_status prefetch(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    HOTBED_TRY(hotbed_sharded_growth_due(m->sharded, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = hotbed_step_part(context, m, g);
        hotbed_ticket *ticket = part->path->ticket;
        HOTBED_TRY(hotbed_storage_prefetch(part->group->lookup, &part->batch, ticket, stream));
        HOTBED_TRY(part->calls->place_gradients(context, part, stream));
    }
    m->stage = HOTBED_STAGE_PREFETCHED;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_prefetch(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin(context, number, stream, "prefetch", HOTBED_STAGE_READY, &m));
    if (!m->training)
        return hotbed_fail(HOTBED_ERR_STATE, "prefetch: the collection is in eval mode");
    HOTBED_TRY(prefetch(context, m, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_step_begin_read(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_member **out) {
    bool ready = context != NULL && number < context->num_members &&
                 context->members[number].stage == HOTBED_STAGE_READY;
    return hotbed_step_begin(
        context, number, stream, call, ready ? HOTBED_STAGE_READY : HOTBED_STAGE_PREFETCHED, out);
}

hotbed_status hotbed_step_prepare(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    if (!m->training)
        return hotbed_sharded_context_settle(context, stream);
    return m->stage == HOTBED_STAGE_READY ? prefetch(context, m, stream) : HOTBED_OK;
}

hotbed_status hotbed_step_compute(
    const hotbed_member *m, const hotbed_part *part, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_storage *lookup = part->group->lookup;
    if (m->training)
        return hotbed_storage_forward(lookup, part->path->ticket, output, stride, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(m->sharded, stream));
    hotbed_status status = hotbed_storage_eval(lookup, &part->batch, output, stride, stream);
    return hotbed_sharded_search_end(m->sharded, status, stream);
}

hotbed_status hotbed_step_compute_to(
    const hotbed_member *m, const hotbed_part *part, const hotbed_scatter_view *to,
    hotbed_stream *stream) {
    hotbed_storage *lookup = part->group->lookup;
    if (m->training)
        return hotbed_storage_forward_scattered(lookup, part->path->ticket, to, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(m->sharded, stream));
    hotbed_status status = hotbed_storage_eval_scattered(lookup, &part->batch, to, stream);
    return hotbed_sharded_search_end(m->sharded, status, stream);
}

/* After a rewind no keys were sent, so a requester may still be reading the rows of the batch. */
static hotbed_status wait_for_readers(hotbed_sharded_context *context, hotbed_stream *stream) {
    if (!context->rewound || context->window == NULL)
        return HOTBED_OK;
    context->rewound = false;
    return hotbed_window_barrier(context->window, stream);
}

hotbed_status hotbed_sharded_compute(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    bool in_window = false; /* whether rows are written into windows */
    HOTBED_TRY(hotbed_step_begin_read(context, number, stream, "compute", &m));
    HOTBED_TRY(hotbed_step_prepare(context, m, stream));
    HOTBED_TRY(wait_for_readers(context, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = hotbed_step_part(context, m, g);
        HOTBED_TRY(part->calls->compute(context, m, part, stream));
        in_window = in_window || hotbed_path_in_window(context, part->path);
    }
    if (in_window)
        HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_COMPUTED, stream);
}

hotbed_status hotbed_sharded_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(
        hotbed_step_begin(context, number, stream, "output_dist", HOTBED_STAGE_COMPUTED, &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = hotbed_step_part(context, m, g);
        HOTBED_TRY(part->calls->output_dist(context, part, stream));
    }
    return hotbed_step_end(context, m, HOTBED_STAGE_DELIVERING, stream);
}

hotbed_status hotbed_sharded_wait_output(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(
        hotbed_step_begin(context, number, stream, "wait_output", HOTBED_STAGE_DELIVERING, &m));
    HOTBED_TRY(hotbed_step_check_rows(m, output, "output", &stride));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = hotbed_step_part(context, m, g);
        HOTBED_TRY(part->calls->wait_output(context, part, output, stride, stream));
    }
    return hotbed_step_end(context, m, HOTBED_STAGE_DELIVERED, stream);
}

hotbed_status hotbed_ranks_read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_compute(context, number, stream));
    HOTBED_TRY(hotbed_sharded_output_dist(context, number, stream));
    return hotbed_sharded_wait_output(context, number, output, stride, stream);
}

static hotbed_status fail_no_context(const char *call) {
    return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s: context is NULL", call);
}

hotbed_status hotbed_sharded_read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    if (context == NULL)
        return fail_no_context("read");
    return context->calls->read(context, number, output, stride, stream);
}

/* --- backward ----------------------------------------------------------------------------------------------- */

hotbed_status hotbed_step_begin_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t *stride,
    hotbed_stream *stream, const char *call, hotbed_member **out) {
    HOTBED_TRY(hotbed_step_begin(context, number, stream, call, HOTBED_STAGE_DELIVERED, out));
    if (!(*out)->training)
        return hotbed_fail(HOTBED_ERR_STATE, "%s: the collection is in eval mode", call);
    if ((*out)->sharded->optimizer.kind == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the collection was created without an optimizer");
    return hotbed_step_check_rows(*out, gradient, "gradient", stride);
}

hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin_backward(
        context, number, gradient, &stride, stream, "backward_dist", &m));
    bool in_window = false; /* whether gradients are written into windows */
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = hotbed_step_part(context, m, g);
        HOTBED_TRY(part->calls->backward_dist(context, part, gradient, stride, stream));
        in_window = in_window || hotbed_path_in_window(context, part->path);
    }
    if (in_window)
        HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_RETURNING, stream);
}

hotbed_status hotbed_sharded_update(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin(context, number, stream, "update", HOTBED_STAGE_RETURNING, &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = hotbed_step_part(context, m, g);
        HOTBED_TRY(part->calls->update(context, part, stream));
    }
    return hotbed_step_end(context, m, HOTBED_STAGE_DONE, stream);
}

/* The owner may read this rank's gradients where the caller has them. */
static void keep_gradient(
    const hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride) {
    const hotbed_member *m = &context->members[number];
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = hotbed_step_part(context, m, g);
        part->gradient = gradient;
        part->gradient_stride = stride == 0 ? least_stride(m->sharded) : stride;
    }
}

hotbed_status hotbed_ranks_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    if (number < context->num_members)
        keep_gradient(context, number, gradient, stride);
    hotbed_status status = hotbed_sharded_backward_dist(context, number, gradient, stride, stream);
    if (status == HOTBED_OK)
        status = hotbed_sharded_update(context, number, stream);
    if (number < context->num_members)
        keep_gradient(context, number, NULL, 0);
    return status;
}

hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    if (context == NULL)
        return fail_no_context("backward");
    return context->calls->backward(context, number, gradient, stride, stream);
}

/* --- received keys, and forward as one call ------------------------------------------------------------------- */

hotbed_status hotbed_sharded_received(
    const hotbed_sharded_context *context, uint32_t number, uint32_t lookup, hotbed_batch *out) {
    if (context == NULL || out == NULL || number >= context->num_members ||
        lookup >= context->members[number].sharded->num_groups)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "no lookup %u of collection %u, or NULL was given", lookup,
            number);
    if (context->stage != HOTBED_STAGE_READY)
        return hotbed_sharded_context_fail_stage("received", context->stage);
    *out = hotbed_step_part(context, &context->members[number], lookup)->batch;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_forward(
    hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt, void *output,
    uint64_t stride, hotbed_stream *stream) {
    if (context == NULL || number >= context->num_members)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "forward: context is NULL, or has no collection %u", number);
    if (context->num_members != 1)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "forward: the context is of %u collections, not one",
            context->num_members);
    HOTBED_TRY(hotbed_sharded_input_dist(context, kjt, stream));
    HOTBED_TRY(hotbed_sharded_wait_splits(context, stream));
    HOTBED_TRY(hotbed_sharded_wait_input(context, stream));
    return hotbed_sharded_read(context, number, output, stride, stream);
}
