/* dist/sharded_alone.c - parts of a collection of one rank: the lookup gets the caller's batch, and
 * no key, row or gradient passes through a message.
 *
 * Rows and gradients pass through the part's own memory only if a stage needs them later than the
 * caller has them, or in another form: if the batch has its features in another order than the
 * collection, or, with pooling, if the output is a mean, has 16 bits, or is scaled. */
#include "dist/comm/comm.h"
#include "dist/sharded.h"

/* --- memory ------------------------------------------------------------------------------------------- */

/* Lay out the part's arrays; called twice, first to count their bytes. */
static size_t carve_part(hotbed_part *part, uint8_t *base) {
    const hotbed_group *g = part->group;
    const hotbed_sharded *c = part->sharded;
    hotbed_carve carve = {base, 0};
    size_t n = c->options.max_keys, rows = (size_t)g->num_features * c->options.max_batch_size;
    hotbed_pick_view *p = &part->pick;
    p->features = hotbed_carve_take(&carve, g->num_features * sizeof(uint32_t));
    p->starts = hotbed_carve_take(&carve, (rows + 1) * sizeof(uint32_t));
    p->keys = hotbed_carve_take(&carve, n * sizeof(uint64_t));
    p->sources = hotbed_carve_take(&carve, n * sizeof(uint32_t));
    p->weights = c->options.weighted ? hotbed_carve_take(&carve, n * sizeof(float)) : NULL;
    part->offsets = hotbed_carve_take(&carve, (rows + 1) * sizeof(int64_t));
    if (part->alone.row_bytes != 0) {
        part->path->owner_rows = hotbed_carve_take(&carve, n * part->alone.row_bytes);
        part->alone.sums = hotbed_carve_take(&carve, n * c->dim * sizeof(float));
    } else {
        part->alone.pooled =
            hotbed_carve_take(&carve, g->columns * c->options.max_batch_size * sizeof(float));
    }
    part->scratch = hotbed_carve_take(&carve, part->scratch_bytes);
    return carve.used;
}

static hotbed_status create(hotbed_part *part, hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    const hotbed_sharded_options *o = &part->sharded->options;
    uint64_t rows = (uint64_t)g->num_features * o->max_batch_size;
    uint64_t batch_rows = part->member->rows_most;
    part->scratch_bytes = hotbed_kjt_scratch(stream, rows > batch_rows ? rows : batch_rows);
    part->pick.num_features = g->num_features;
    if (part->sharded->pooling == HOTBED_POOL_NONE)
        part->alone.row_bytes =
            hotbed_round16(g->max_dim * hotbed_dtype_bytes(part->sharded->output_dtype));
    size_t bytes = carve_part(part, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &part->memory));
    (void)carve_part(part, part->memory.data);
    return hotbed_ticket_create(
        g->lookup, o->max_keys, o->max_batch_size, stream, &part->path->ticket);
}

/* --- keys --------------------------------------------------------------------------------------------- */

/* Whether the part needs the first key of each bag: pooled outputs in another form do. */
static bool needs_bags(const hotbed_part *part) {
    return part->alone.row_bytes == 0 && !part->group->plain;
}

static hotbed_status start_part(
    hotbed_part *part, const hotbed_member *m, const hotbed_kjt_view *view, bool *read,
    hotbed_stream *stream) {
    const hotbed_kjt *kjt = &m->kjt;
    hotbed_batch *batch = &part->batch;
    hotbed_pick_view pick = part->pick;
    hotbed_part_map_features(part, kjt);
    bool whole = hotbed_part_has_order_of(part, kjt);
    *batch = (hotbed_batch){.size = sizeof *batch};
    batch->batch_size = kjt->batch_size;
    batch->num_keys = kjt->num_keys;
    batch->keys = kjt->keys;
    batch->weights = part->sharded->options.weighted ? kjt->weights : NULL;
    part->alone.bag_starts = m->starts;
    part->sources = NULL;
    if (whole && kjt->offsets == NULL && kjt->lengths == NULL && !needs_bags(part))
        return HOTBED_OK;
    if (!*read) {
        const hotbed_part *first = part - (part->group - part->sharded->groups);
        if (kjt->strides != NULL)
            HOTBED_TRY(hotbed_kjt_put_bases(kjt, m->bases, stream));
        HOTBED_TRY(hotbed_kjt_start(view, first->scratch, first->scratch_bytes, stream));
        *read = true;
    }
    batch->offsets = part->offsets;
    pick.kjt = *view;
    pick.stride = pick.batch_size = kjt->batch_size;
    pick.bases = kjt->strides == NULL ? NULL : m->bases;
    if (whole) {
        pick.features = NULL;
        pick.starts = NULL;
        return hotbed_kjt_pick_offsets(&pick, part->offsets, stream);
    }
    batch->keys = pick.keys;
    batch->weights = pick.weights;
    part->alone.bag_starts = pick.starts;
    part->sources = part->alone.row_bytes != 0 ? pick.sources : NULL;
    HOTBED_TRY(hotbed_part_put_features(part, stream));
    HOTBED_TRY(hotbed_kjt_pick(&pick, part->scratch, part->scratch_bytes, stream));
    return hotbed_kjt_pick_offsets(&pick, part->offsets, stream);
}

static hotbed_status start(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    hotbed_kjt_view view = hotbed_kjt_view_of(&m->kjt, m->starts, m->bad, stream);
    bool read = false; /* whether the starts of the batch's rows have been computed */
    for (uint32_t g = 0; g < m->sharded->num_groups; g++)
        HOTBED_TRY(start_part(&context->parts[m->first_part + g], m, &view, &read, stream));
    return HOTBED_OK;
}

static hotbed_status send(hotbed_sharded_context *context, bool exact, hotbed_stream *stream) {
    return hotbed_comm_check_call("input_dist", context->comm, stream);
}

static hotbed_status place_gradients(const hotbed_part *part, hotbed_stream *stream) {
    hotbed_dedup_occurrences o = hotbed_dedup_occurrences_of(part->path->ticket);
    if (part->sources == NULL)
        return HOTBED_OK;
    return hotbed_dist_kernels_of(stream)->follow(
        part->batch.num_keys, o.num_keys, o.positions, part->sources, stream);
}

/* --- rows --------------------------------------------------------------------------------------------- */

/* Where rows and gradients are that the caller's memory does not hold: the path's rows or `pooled`,
 * and the elements from one row to the next. */
static void *local_rows(const hotbed_part *part, uint64_t *stride) {
    if (part->alone.row_bytes == 0) {
        *stride = part->group->columns;
        return part->alone.pooled;
    }
    *stride = part->alone.row_bytes / hotbed_dtype_bytes(part->sharded->output_dtype);
    return part->path->owner_rows;
}

static hotbed_status compute_local(const hotbed_part *part, hotbed_stream *stream) {
    uint64_t stride;
    void *local = local_rows(part, &stride);
    return hotbed_step_compute(part, local, stride, stream);
}

/* Whether the lookup can write its output to the caller's rows itself, or read the caller's
 * gradients. Otherwise they pass through local_rows(). */
static bool reads_into_output(const hotbed_part *part) {
    return part->alone.row_bytes != 0 ? part->sources == NULL : part->group->plain;
}

/* Sums that travel are scaled and have the caller's data type. */
static bool sums_change(const hotbed_sharded *c) {
    return c->options.gradient_scale != 1.0F || c->output_dtype != HOTBED_F32;
}

static bool takes_gradients(const hotbed_part *part) {
    return part->alone.row_bytes != 0 ? !sums_change(part->sharded) : part->group->plain;
}

/* The rows of the lookup's output or gradients; the caller sets where they come from and go to. */
static hotbed_copies_view rows_of(const hotbed_part *part) {
    const hotbed_sharded *c = part->sharded;
    const hotbed_batch *batch = &part->batch;
    uint64_t element = hotbed_dtype_bytes(c->output_dtype);
    hotbed_copies_view view = {.bound = batch->batch_size, .bytes = part->group->columns * element};
    if (part->alone.row_bytes == 0)
        return view;
    view.at = part->sources;
    view.bound = batch->num_keys;
    view.bytes = c->dim * element;
    if (batch->offsets != NULL)
        view.num_rows = batch->offsets + (uint64_t)part->group->num_features * batch->batch_size;
    return view;
}

static hotbed_status copy_rows(hotbed_copies_view *view, hotbed_stream *stream) {
    view->plain = hotbed_copies_are_plain(view);
    return hotbed_dist_kernels_of(stream)->copy_rows(view, stream);
}

static hotbed_status wait_output(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream) {
    uint64_t element = hotbed_dtype_bytes(part->sharded->output_dtype);
    if (needs_bags(part)) {
        hotbed_pool_view p = hotbed_part_pool(part, part->alone.bag_starts, part->batch.batch_size);
        return hotbed_dist_kernels_of(stream)->pool_finish(
            &p, part->group->columns, part->alone.pooled, output, stride, stream);
    }
    hotbed_copies_view rows = rows_of(part);
    rows.from = local_rows(part, &rows.from_stride);
    rows.to = output;
    rows.from_stride *= element;
    rows.to_stride = stride * element;
    return copy_rows(&rows, stream);
}

static hotbed_status backward_dist(
    hotbed_part *part, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    const hotbed_sharded *c = part->sharded;
    if (part->alone.row_bytes != 0) {
        HOTBED_TRY(hotbed_storage_reduce(
            part->group->lookup, part->path->ticket, gradient, stride, false, part->alone.sums,
            stream));
        if (!sums_change(c))
            return HOTBED_OK;
        hotbed_ticket_view ticket = {.size = sizeof ticket};
        HOTBED_TRY(hotbed_ticket_read(part->path->ticket, &ticket));
        hotbed_sent_view sums = {
            .sums = part->alone.sums,
            .num_rows = ticket.unique_offsets + part->group->num_tables,
            .bound = part->batch.num_keys,
            .dim = c->dim,
            .dtype = (uint32_t)c->output_dtype,
            .scale = c->options.gradient_scale,
        };
        return kernels->finish_sums(&sums, stream);
    }
    if (needs_bags(part)) {
        hotbed_pool_view p = hotbed_part_pool(part, part->alone.bag_starts, part->batch.batch_size);
        return kernels->pool_start(
            &p, part->group->columns, gradient, stride, part->alone.pooled, stream);
    }
    hotbed_copies_view rows = rows_of(part);
    rows.from = gradient;
    rows.from_stride = stride * sizeof(float);
    rows.to = local_rows(part, &rows.to_stride);
    rows.to_stride *= sizeof(float);
    return copy_rows(&rows, stream);
}

static hotbed_status update(const hotbed_part *part, hotbed_stream *stream) {
    if (part->alone.row_bytes != 0)
        return hotbed_storage_apply(
            part->group->lookup, part->path->ticket, part->alone.sums, stream);
    return hotbed_storage_backward(
        part->group->lookup, part->path->ticket, part->alone.pooled, part->group->columns, stream);
}

const hotbed_part_calls hotbed_alone_calls = {
    create, place_gradients, compute_local, wait_output, backward_dist, update,
};

/* --- read and backward: the lookup uses the caller's rows and gradients where it can ------------------- */

static hotbed_status read_parts(
    const hotbed_sharded_context *context, const hotbed_member *m, void *output, uint64_t stride,
    hotbed_stream *stream) {
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        const hotbed_part *part = hotbed_step_part(context, m, g);
        if (reads_into_output(part)) {
            HOTBED_TRY(hotbed_step_compute(part, output, stride, stream));
            continue;
        }
        HOTBED_TRY(compute_local(part, stream));
        HOTBED_TRY(wait_output(part, output, stride, stream));
    }
    return HOTBED_OK;
}

/* Rows are read while branches group the occurrences for backward; tables without an index need
 * nothing of the dedup before. */
static hotbed_status read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    bool open;
    HOTBED_TRY(hotbed_step_begin_read(context, number, stream, "read", &m));
    HOTBED_TRY(hotbed_step_check_rows(m, output, "output", &stride));
    hotbed_status status = hotbed_step_prepare(context, m, &open, stream);
    HOTBED_THEN(status, read_parts(context, m, output, stride, stream));
    const hotbed_status joined =
        open ? hotbed_sharded_context_leave_open(context, stream) : HOTBED_OK;
    HOTBED_TRY(status);
    HOTBED_TRY(joined);
    return hotbed_step_end(context, m, HOTBED_STAGE_WAIT_OUTPUT, stream);
}

static hotbed_status backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(
        hotbed_step_begin_backward(context, number, gradient, &stride, stream, "backward", &m));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = hotbed_step_part(context, m, g);
        if (takes_gradients(part)) {
            HOTBED_TRY(hotbed_storage_backward(
                part->group->lookup, part->path->ticket, gradient, stride, stream));
            continue;
        }
        HOTBED_TRY(backward_dist(part, gradient, stride, stream));
        HOTBED_TRY(update(part, stream));
    }
    return hotbed_step_end(context, m, HOTBED_STAGE_UPDATE, stream);
}

const hotbed_context_calls hotbed_alone_context_calls = {
    start,
    send,
    read,
    backward,
};
