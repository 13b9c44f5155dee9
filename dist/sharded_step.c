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

static hotbed_pool_view pool_of(const hotbed_sharded_context *context, const hotbed_part *part) {
    return hotbed_part_pool(
        context, part, part->pick.starts, part->sharded->options.max_batch_size);
}

/* --- forward ------------------------------------------------------------------------------------------------ */

static hotbed_status prefetch(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    HOTBED_TRY(hotbed_sharded_growth_due(m->sharded, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = part_of(context, m, g);
        hotbed_ticket *ticket = part->path->ticket;
        HOTBED_TRY(hotbed_storage_prefetch(part->group->lookup, &part->batch, ticket, stream));
        HOTBED_TRY(hotbed_part_place_gradients(context, part, stream));
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

/* Begin a call that reads the rows: prefetch them if they have not been. */
static hotbed_status enter_compute(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_member **m) {
    bool ready = context != NULL && number < context->num_members &&
                 context->members[number].stage == HOTBED_STAGE_READY;
    return enter(
        context, number, stream, call, ready ? HOTBED_STAGE_READY : HOTBED_STAGE_PREFETCHED, m);
}

static hotbed_status prepare_compute(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    if (!m->training)
        return hotbed_sharded_context_settle(context, stream);
    return m->stage == HOTBED_STAGE_READY ? prefetch(context, m, stream) : HOTBED_OK;
}

/* Write the lookup's output to `output`. */
static hotbed_status compute(
    const hotbed_member *m, const hotbed_part *part, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_storage *lookup = part->group->lookup;
    if (m->training)
        return hotbed_storage_forward(lookup, part->path->ticket, output, stride, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(m->sharded, stream));
    hotbed_status status = hotbed_storage_eval(lookup, &part->batch, output, stride, stream);
    return hotbed_sharded_search_end(m->sharded, status, stream);
}

static hotbed_status compute_local(
    const hotbed_member *m, const hotbed_part *part, hotbed_stream *stream) {
    uint64_t stride;
    void *local = hotbed_part_local(part, &stride);
    return compute(m, part, local, stride, stream);
}

/* Write the rows of received keys to the messages to their requesters or, one-sided, to the
 * requesters' windows. A requester no longer reads earlier rows there: its stream sent these keys
 * after it had read the rows of the context's previous batch. */
static hotbed_status compute_rows(
    const hotbed_sharded_context *context, const hotbed_member *m, const hotbed_part *part,
    hotbed_stream *stream) {
    const hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->owner_out);
    const hotbed_scatter_view to = hotbed_owner_rows(&d);
    hotbed_storage *lookup = part->group->lookup;
    if (m->training)
        return hotbed_storage_forward_scattered(lookup, part->path->ticket, &to, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(m->sharded, stream));
    hotbed_status status = hotbed_storage_eval_scattered(lookup, &part->batch, &to, stream);
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
    HOTBED_TRY(enter_compute(context, number, stream, "compute", &m));
    HOTBED_TRY(prepare_compute(context, m, stream));
    HOTBED_TRY(wait_for_readers(context, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = part_of(context, m, g);
        if (context->world == 1 || part->row_bytes == 0) {
            HOTBED_TRY(compute_local(m, part, stream));
            continue;
        }
        HOTBED_TRY(compute_rows(context, m, part, stream));
        in_window = in_window || hotbed_path_in_window(context, part->path);
    }
    if (in_window)
        HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    return leave(context, m, HOTBED_STAGE_COMPUTED, stream);
}

hotbed_status hotbed_sharded_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter(context, number, stream, "output_dist", HOTBED_STAGE_COMPUTED, &m));
    for (uint32_t g = 0; g < m->sharded->num_groups && context->world > 1; g++) {
        hotbed_part *part = part_of(context, m, g);
        if (part->row_bytes == 0) {
            HOTBED_TRY(hotbed_comm_reduce_scatter(
                context->comm, part->group->counts, 1.0F, part->all_pooled, part->pooled, stream));
            continue;
        }
        HOTBED_TRY(hotbed_exchange_rows(context, part, false, stream));
    }
    return leave(context, m, HOTBED_STAGE_DELIVERING, stream);
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
        const hotbed_part *part = part_of(context, m, g);
        if (context->world == 1) {
            HOTBED_TRY(hotbed_alone_wait_output(context, part, output, stride, stream));
            continue;
        }
        if (part->row_bytes == 0) {
            hotbed_pool_view p = pool_of(context, part);
            HOTBED_TRY(kernels->pool_finish(
                &p, part->group->columns, part->pooled, output, stride, stream));
            continue;
        }
        hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_in);
        HOTBED_TRY(kernels->take_rows(&d, output, stride * element, stream));
    }
    return leave(context, m, HOTBED_STAGE_DELIVERED, stream);
}

/* One rank: the lookup writes the caller's rows itself where it can. */
static hotbed_status read_alone(
    hotbed_sharded_context *context, hotbed_member *m, void *output, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(check_rows(m, output, "output", &stride));
    HOTBED_TRY(prepare_compute(context, m, stream));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = part_of(context, m, g);
        if (hotbed_alone_reads_into_output(part)) {
            HOTBED_TRY(compute(m, part, output, stride, stream));
            continue;
        }
        HOTBED_TRY(compute_local(m, part, stream));
        HOTBED_TRY(hotbed_alone_wait_output(context, part, output, stride, stream));
    }
    return leave(context, m, HOTBED_STAGE_DELIVERED, stream);
}

hotbed_status hotbed_sharded_read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    if (context != NULL && context->world == 1) {
        HOTBED_TRY(enter_compute(context, number, stream, "read", &m));
        return read_alone(context, m, output, stride, stream);
    }
    HOTBED_TRY(hotbed_sharded_compute(context, number, stream));
    HOTBED_TRY(hotbed_sharded_output_dist(context, number, stream));
    return hotbed_sharded_wait_output(context, number, output, stride, stream);
}

/* --- backward ----------------------------------------------------------------------------------------------- */

/* Send the gradients of a sequence to their owners; the gradients of keys that occur several times
 * are summed first. */
static hotbed_status give(
    hotbed_sharded_context *context, hotbed_part *part, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_sharded *c = part->sharded;
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_out);
    if (part->group->dedup) {
        hotbed_gradient_view view = {gradient, stride};
        hotbed_sums_view sums = {
            .rows = part->sum_rows,
            .dtype = (uint32_t)c->output_dtype,
            .scale = c->options.gradient_scale,
        };
        HOTBED_TRY(kernels->find_rows(&d, part->sum_rows, stream));
        HOTBED_TRY(hotbed_dedup_sums(
            part->group->lookup, &part->dedup, &c->optimizer_view, view, sums, c->dim,
            part->scratch, stream));
    } else {
        HOTBED_TRY(kernels->give_gradients(&d, gradient, stride, stream));
    }
    return hotbed_exchange_rows(context, part, true, stream);
}

/* Begin a call that takes the gradient. */
static hotbed_status enter_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t *stride,
    hotbed_stream *stream, const char *call, hotbed_member **out) {
    HOTBED_TRY(enter(context, number, stream, call, HOTBED_STAGE_DELIVERED, out));
    if (!(*out)->training)
        return hotbed_fail(HOTBED_ERR_STATE, "%s: the collection is in eval mode", call);
    if ((*out)->sharded->optimizer.kind == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the collection was created without an optimizer");
    return check_rows(*out, gradient, "gradient", stride);
}

hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(enter_backward(context, number, gradient, &stride, stream, "backward_dist", &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = part_of(context, m, g);
        if (context->world == 1) {
            HOTBED_TRY(hotbed_alone_start_backward(context, part, gradient, stride, stream));
            continue;
        }
        if (part->row_bytes != 0) {
            HOTBED_TRY(give(context, part, gradient, stride, stream));
            continue;
        }
        hotbed_pool_view p = pool_of(context, part);
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
        const hotbed_part *part = part_of(context, m, g);
        if (context->world == 1) {
            HOTBED_TRY(hotbed_alone_update(part, stream));
            continue;
        }
        uint64_t stride;
        const void *gradient = hotbed_part_local(part, &stride);
        HOTBED_TRY(hotbed_storage_backward(
            part->group->lookup, part->path->ticket, gradient, stride, stream));
    }
    return leave(context, m, HOTBED_STAGE_DONE, stream);
}

/* One rank: the lookup reads the caller's gradients itself where it can. */
static hotbed_status backward_alone(
    hotbed_sharded_context *context, hotbed_member *m, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = part_of(context, m, g);
        if (hotbed_alone_takes_gradients(part)) {
            HOTBED_TRY(hotbed_storage_backward(
                part->group->lookup, part->path->ticket, gradient, stride, stream));
            continue;
        }
        HOTBED_TRY(hotbed_alone_start_backward(context, part, gradient, stride, stream));
        HOTBED_TRY(hotbed_alone_update(part, stream));
    }
    return leave(context, m, HOTBED_STAGE_DONE, stream);
}

hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    if (context != NULL && context->world == 1) {
        HOTBED_TRY(enter_backward(context, number, gradient, &stride, stream, "backward", &m));
        return backward_alone(context, m, gradient, stride, stream);
    }
    HOTBED_TRY(hotbed_sharded_backward_dist(context, number, gradient, stride, stream));
    return hotbed_sharded_update(context, number, stream);
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
    *out = part_of(context, &context->members[number], lookup)->batch;
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
