/* dist/sharded_step.c - from a batch's arrival to its update: rows to the requesters, gradients
 * back, the optimizer. */
#include "dist/sharded.h"

/* --- what the calls share -------------------------------------------------------------------------------- */

/* Check the call, and order the stream after the context's work; *out is the collection's member. */
static hotbed_status enter(
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

static hotbed_status leave(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stage stage, hotbed_stream *stream) {
    m->stage = stage;
    return hotbed_sharded_context_leave(context, stream);
}

static hotbed_part *part_of(
    const hotbed_sharded_context *context, const hotbed_member *m, uint32_t group) {
    return &context->parts[m->first_part + group];
}

/* The received keys as a batch of the lookup. */
static hotbed_batch batch_of(const hotbed_sharded_context *context, const hotbed_part *part) {
    const hotbed_gather_view *g = &part->path->gather;
    hotbed_batch batch;
    hotbed_batch_init(&batch);
    batch.batch_size =
        part->row_bytes != 0 ? 1 : context->world * part->sharded->options.max_batch_size;
    batch.num_keys = part->path->num_keys;
    batch.keys = g->keys;
    batch.offsets = g->offsets;
    batch.weights = g->weights;
    batch.counts = g->counts;
    return batch;
}

/* Where a lookup's output goes, and the elements between two of its rows. */
static void *output_of(const hotbed_part *part, uint64_t *stride) {
    if (part->row_bytes == 0) {
        *stride = part->group->columns;
        return part->all_pooled;
    }
    *stride = part->row_bytes / hotbed_dtype_bytes(part->sharded->output_dtype);
    return part->path->local;
}

static uint64_t least_stride(const hotbed_sharded *c) {
    return c->pooling == HOTBED_POOL_NONE ? c->dim : hotbed_sharded_columns(c);
}

/* Check the caller's output or gradient; a *stride of 0 becomes the least stride. */
static hotbed_status check_rows(
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

static hotbed_pool_view pool_of(const hotbed_member *m, const hotbed_part *part) {
    const hotbed_sharded *c = m->sharded;
    hotbed_pool_view view = {
        .starts = part->pick.starts,
        .columns = part->group->columns32,
        .output_columns = part->group->output_columns,
        .num_features = part->group->num_features,
        .batch_size = c->options.max_batch_size,
        .samples = m->kjt.batch_size,
        .mean = c->pooling == HOTBED_POOL_MEAN ? 1 : 0,
        .dtype = (uint32_t)c->output_dtype,
        .max_gradient = c->optimizer_view.max_gradient,
        .scale = c->options.gradient_scale,
    };
    return view;
}

/* --- forward ------------------------------------------------------------------------------------------------ */

static hotbed_status prefetch(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    HOTBED_TRY(hotbed_sharded_growth_due(m->sharded, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        hotbed_batch batch = batch_of(context, part);
        HOTBED_TRY(
            hotbed_storage_prefetch(part->group->lookup, &batch, part->path->ticket, stream));
    }
    m->stage = HOTBED_STAGE_PREFETCHED;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_prefetch(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "prefetch", HOTBED_STAGE_READY, &m));
    if (!m->training)
        return hotbed_fail(HOTBED_ERR_STATE, "prefetch: the collection is in eval mode");
    HOTBED_TRY(prefetch(context, m, stream));
    return hotbed_sharded_context_leave(context, stream);
}

static hotbed_status compute(
    hotbed_sharded_context *context, const hotbed_member *m, hotbed_stream *stream) {
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        hotbed_storage *lookup = part->group->lookup;
        uint64_t stride;
        void *output = output_of(part, &stride);
        if (m->training) {
            HOTBED_TRY(hotbed_storage_forward(lookup, part->path->ticket, output, stride, stream));
            continue;
        }
        hotbed_batch batch = batch_of(context, part);
        HOTBED_TRY(hotbed_sharded_search_begin(m->sharded, stream));
        hotbed_status status = hotbed_storage_eval(lookup, &batch, output, stride, stream);
        HOTBED_TRY(hotbed_sharded_search_end(m->sharded, status, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_compute(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    bool ready = context != NULL && number < context->num_members &&
                 context->members[number].stage == HOTBED_STAGE_READY;
    HOTBED_TRY(enter(
        context, number, stream, "compute", ready ? HOTBED_STAGE_READY : HOTBED_STAGE_PREFETCHED,
        &m));
    if (ready && m->training)
        HOTBED_TRY(prefetch(context, m, stream));
    if (!m->training)
        HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    HOTBED_TRY(compute(context, m, stream));
    return leave(context, m, HOTBED_STAGE_COMPUTED, stream);
}

hotbed_status hotbed_sharded_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "output_dist", HOTBED_STAGE_COMPUTED, &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        if (part->row_bytes == 0) {
            HOTBED_TRY(hotbed_comm_reduce_scatter(
                context->comm, part->group->counts, 1.0F, part->all_pooled, part->pooled, stream));
            continue;
        }
        hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->owner_out);
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->owner_copy(&d, part->path->local, true, stream));
        HOTBED_TRY(hotbed_exchange_rows(context, part, false, stream));
    }
    return leave(context, m, HOTBED_STAGE_DELIVERING, stream);
}

hotbed_status hotbed_sharded_compute_and_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_compute(context, number, stream));
    return hotbed_sharded_output_dist(context, number, stream);
}

hotbed_status hotbed_sharded_wait_output(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "wait_output", HOTBED_STAGE_DELIVERING, &m));
    HOTBED_TRY(check_rows(m, output, "output", &stride));
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    uint64_t element = hotbed_dtype_bytes(m->sharded->output_dtype);
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        if (part->row_bytes == 0) {
            hotbed_pool_view p = pool_of(m, part);
            HOTBED_TRY(kernels->pool_finish(
                &p, part->group->columns, part->pooled, output, stride, stream));
            continue;
        }
        hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_in);
        HOTBED_TRY(kernels->take_rows(&d, output, stride * element, stream));
    }
    return leave(context, m, HOTBED_STAGE_DELIVERED, stream);
}

/* --- backward ----------------------------------------------------------------------------------------------- */

/* Send the gradients of a sequence to their owners; the gradients of keys that occur several times
 * are summed first. */
static hotbed_status give(
    hotbed_sharded_context *context, hotbed_part *part, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_sharded *c = part->sharded;
    if (part->group->dedup) {
        hotbed_gradient_view view = {gradient, stride};
        hotbed_sums_view sums = {part->sums, c->dim, false};
        HOTBED_TRY(hotbed_dedup_sums(
            part->group->lookup, &part->dedup, &c->optimizer_view, view, sums, c->dim,
            part->scratch, stream));
        gradient = part->sums;
        stride = c->dim;
    }
    hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_out);
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->give_gradients(&d, gradient, stride, stream));
    return hotbed_exchange_rows(context, part, true, stream);
}

hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "backward_dist", HOTBED_STAGE_DELIVERED, &m));
    if (!m->training)
        return hotbed_fail(HOTBED_ERR_STATE, "backward_dist: the collection is in eval mode");
    if (m->sharded->optimizer.kind == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the collection was created without an optimizer");
    HOTBED_TRY(check_rows(m, gradient, "gradient", &stride));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        if (part->row_bytes != 0) {
            HOTBED_TRY(give(context, part, gradient, stride, stream));
            continue;
        }
        hotbed_pool_view p = pool_of(m, part);
        uint64_t floats = part->group->columns * m->sharded->options.max_batch_size;
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->pool_start(
            &p, part->group->columns, gradient, stride, part->pooled, stream));
        HOTBED_TRY(hotbed_comm_all_gather(
            context->comm, floats * sizeof(float), part->pooled, part->all_pooled, stream));
    }
    return leave(context, m, HOTBED_STAGE_RETURNING, stream);
}

hotbed_status hotbed_sharded_update(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "update", HOTBED_STAGE_RETURNING, &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        uint64_t stride;
        void *gradient = output_of(part, &stride);
        if (part->row_bytes != 0) {
            hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->owner_in);
            HOTBED_TRY(hotbed_dist_kernels_of(stream)->owner_copy(&d, gradient, false, stream));
        }
        HOTBED_TRY(hotbed_storage_backward(
            part->group->lookup, part->path->ticket, gradient, stride, stream));
    }
    return leave(context, m, HOTBED_STAGE_DONE, stream);
}

hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_backward_dist(context, number, gradient, stride, stream));
    return hotbed_sharded_update(context, number, stream);
}

/* --- received keys, and the forward slot ---------------------------------------------------------------------- */

hotbed_status hotbed_sharded_received(
    const hotbed_sharded_context *context, uint32_t number, uint32_t lookup, hotbed_batch *out) {
    if (context == NULL || out == NULL || number >= context->num_members ||
        lookup >= context->members[number].sharded->num_groups)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "no lookup %u of collection %u, or NULL was given", lookup,
            number);
    if (context->stage != HOTBED_STAGE_READY)
        return hotbed_sharded_context_fail_stage("received", context->stage);
    *out = batch_of(context, part_of(context, &context->members[number], lookup));
    return HOTBED_OK;
}

static hotbed_status all_stages(
    void *self, hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt,
    void *output, uint64_t stride, hotbed_stream *stream) {
    (void)self;
    if (context->num_members != 1)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "forward: the context is of %u collections, not one",
            context->num_members);
    HOTBED_TRY(hotbed_sharded_input_dist(context, kjt, stream));
    HOTBED_TRY(hotbed_sharded_wait_splits(context, stream));
    HOTBED_TRY(hotbed_sharded_wait_input(context, stream));
    HOTBED_TRY(hotbed_sharded_compute_and_output_dist(context, number, stream));
    return hotbed_sharded_wait_output(context, number, output, stride, stream);
}

hotbed_status hotbed_sharded_set_forward(
    hotbed_sharded *sharded, hotbed_sharded_forward_function function, void *self) {
    if (sharded == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "sharded is NULL");
    sharded->forward = function == NULL ? all_stages : function;
    sharded->forward_self = function == NULL ? NULL : self;
    return HOTBED_OK;
}

void hotbed_sharded_get_forward(
    const hotbed_sharded *sharded, hotbed_sharded_forward_function *function, void **self) {
    *function = sharded->forward;
    *self = sharded->forward_self;
}

hotbed_status hotbed_sharded_forward(
    hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt, void *output,
    uint64_t stride, hotbed_stream *stream) {
    if (context == NULL || number >= context->num_members)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "forward: context is NULL, or has no collection %u", number);
    const hotbed_sharded *c = context->members[number].sharded;
    return c->forward(c->forward_self, context, number, kjt, output, stride, stream);
}
