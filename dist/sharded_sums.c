/* dist/sharded_sums.c - pooled parts whose sums travel: the owner sums the keys of a bag that it has,
 * and the requester adds the sums of all owners. */
#include "dist/sharded.h"

bool hotbed_part_gives_plainly(const hotbed_sharded *sharded) {
    return sharded->pooling == HOTBED_POOL_SUM && sharded->options.gradient_scale == 1.0F &&
           sharded->optimizer_view.max_gradient <= 0.0F;
}

hotbed_bags_view hotbed_part_bags(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_ends ends,
    bool gradients, bool owner) {
    const hotbed_sharded *c = part->sharded;
    const hotbed_group *g = part->group;
    const hotbed_path *path = part->path;
    hotbed_bags_view view = {
        .messages = owner ? path->from.at : NULL,
        .messages_offset = path->from.offset,
        .row_starts = part->bucketize.row_starts,
        .places = owner ? path->owner_places : path->requester_places,
        .overflow = path->gather.overflow,
        .num_features = g->num_features,
        .batch_size = c->options.max_batch_size,
        .world = context->world,
        .rank = context->rank,
        .rows = ends.at,
        .rows_offset = ends.offset,
        .row_bytes = gradients ? g->gradient_bytes : g->row_bytes,
        .travel = (uint32_t)(gradients ? g->gradient_dtype : g->row_dtype),
        .starts = part->pick.starts,
        .dims = g->dims,
        .output_columns = g->output_columns,
        .samples = context->members[part->member].kjt.batch_size,
        .dtype = (uint32_t)c->output_dtype,
        .mean = c->pooling == HOTBED_POOL_MEAN ? 1 : 0,
        .max_gradient = c->optimizer_view.max_gradient,
        .scale = c->options.gradient_scale,
    };
    /* In hotbed_sharded_backward(), gradients that travel as they are need not be copied to this
     * rank itself. */
    if (gradients && part->gradient != NULL && g->aligned && hotbed_part_gives_plainly(c)) {
        view.own = part->gradient;
        view.own_stride = part->gradient_stride * hotbed_dtype_bytes(c->output_dtype);
    }
    return view;
}

/* Count what the kernel that gets the view moves. Messages of fixed size travel whole, unless kernels
 * write them where they are read. */
static void count(
    const hotbed_sharded_context *context, const hotbed_part *part, bool gradients, bool owner,
    hotbed_bags_view *view) {
    hotbed_wire_counts *counts = part->sharded->wire.data;
    const hotbed_wire_phase phase = gradients ? HOTBED_WIRE_GRADIENTS : HOTBED_WIRE_ROWS;
    view->moved = gradients == owner ? &counts->received[phase] : &counts->sent[phase];
    view->whole = part->path->capacity != 0 && context->window == NULL ? 1 : 0;
}

static hotbed_status place_gradients(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_stream *stream) {
    (void)context, (void)part, (void)stream;
    return HOTBED_OK;
}

static hotbed_status compute(
    const hotbed_sharded_context *context, const hotbed_member *m, const hotbed_part *part,
    hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(context, part, part->path->owner_out, false, true);
    count(context, part, false, true, &v);
    const hotbed_scatter_view to = {.on = 1, .bags = part->addresses};
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_addresses(&v, part->addresses, stream));
    return hotbed_step_compute_to(m, part, &to, stream);
}

static hotbed_status output_dist(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_stream *stream) {
    return hotbed_exchange_rows(context, part, false, stream);
}

static hotbed_status wait_output(
    const hotbed_sharded_context *context, const hotbed_part *part, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(context, part, part->path->requester_in, false, false);
    count(context, part, false, false, &v);
    return hotbed_dist_kernels_of(stream)->finish_bags(
        &v, part->group->max_dim, output, stride, stream);
}

static hotbed_status backward_dist(
    hotbed_sharded_context *context, hotbed_part *part, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(context, part, part->path->requester_out, true, false);
    count(context, part, true, false, &v);
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->give_bags(
        &v, part->group->max_dim, gradient, stride, stream));
    return hotbed_exchange_rows(context, part, true, stream);
}

static hotbed_status update(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(context, part, part->path->owner_in, true, true);
    count(context, part, true, true, &v);
    const hotbed_gradient_view gradient = {
        v.own, v.own == NULL ? 0 : part->gradient_stride, (uint32_t)part->group->gradient_dtype,
        (const uint8_t *const *)part->addresses};
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_addresses(&v, part->addresses, stream));
    return hotbed_storage_backward_from(part->group->lookup, part->path->ticket, &gradient, stream);
}

const hotbed_part_calls hotbed_pooled_sums_calls = {
    hotbed_part_create, place_gradients, compute, output_dist, wait_output, backward_dist, update,
};
