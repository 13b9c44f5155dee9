/* dist/sharded_rows.c - parts whose rows travel: sequences. */
#include "dist/sharded.h"

static hotbed_status place_gradients(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_stream *stream) {
    hotbed_dedup_occurrences o = hotbed_dedup_occurrences_of(part->path->ticket);
    hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->owner_in);
    return hotbed_dist_kernels_of(stream)->find_places(
        &d, part->path->owner_rows, o.num_keys, o.positions, stream);
}

/* Write the rows of received keys to the messages to their requesters or, one-sided, to the
 * requesters' windows. A requester no longer reads earlier rows there: its stream sent these keys
 * after it had read the rows of the context's previous batch. */
static hotbed_status compute(
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

static hotbed_status output_dist(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_stream *stream) {
    return hotbed_exchange_rows(context, part, false, stream);
}

static hotbed_status wait_output(
    const hotbed_sharded_context *context, const hotbed_part *part, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_in);
    d.wire = hotbed_wire_rows(context, part, HOTBED_WIRE_ROWS);
    return hotbed_dist_kernels_of(stream)->take_rows(
        &d, output, stride * hotbed_dtype_bytes(part->sharded->output_dtype), stream);
}

/* Send the gradients of a sequence to their owners; the gradients of keys that occur several times
 * are summed first. */
static hotbed_status backward_dist(
    hotbed_sharded_context *context, hotbed_part *part, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_sharded *c = part->sharded;
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    hotbed_deliver_view d = hotbed_part_deliver(context, part, part->path->requester_out);
    d.wire = hotbed_wire_rows(context, part, HOTBED_WIRE_GRADIENTS);
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

static hotbed_status update(const hotbed_part *part, hotbed_stream *stream) {
    uint64_t stride;
    const void *gradient = hotbed_part_local(part, &stride);
    return hotbed_storage_backward(
        part->group->lookup, part->path->ticket, gradient, stride, stream);
}

const hotbed_part_calls hotbed_sequence_calls = {
    hotbed_part_create, place_gradients, compute, output_dist, wait_output, backward_dist, update,
};
