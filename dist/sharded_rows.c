/* dist/sharded_rows.c - parts whose rows travel: sequences, and pooled features by rows.
 *
 * A sequence's rows are copied to the caller's output. Pooled, the requester's step view describes a
 * batch that is pooled, of rows that are where they arrived. */
#include "dist/sharded.h"

static hotbed_status place_gradients(const hotbed_part *part, hotbed_stream *stream) {
    hotbed_dedup_occurrences o = hotbed_dedup_occurrences_of(part->path->ticket);
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->owner_in, true);
    return hotbed_dist_kernels_of(stream)->find_places(
        &d, part->path->owner_rows, o.num_keys, o.positions, stream);
}

/* Write the rows of received keys to the messages to their requesters or, one-sided, to the
 * requesters' windows. A requester no longer reads earlier rows there: its stream sent these keys
 * after it had read the rows of the context's previous batch. */
static hotbed_status compute(const hotbed_part *part, hotbed_stream *stream) {
    const hotbed_deliver_view d = hotbed_part_deliver(part, part->path->owner_out, false);
    const hotbed_scatter_view to = hotbed_owner_rows(&d);
    return hotbed_part_compute_to(part, &to, stream);
}

static hotbed_status wait_output(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->requester_in, false);
    d.wire = hotbed_wire_rows(part, HOTBED_WIRE_ROWS);
    return hotbed_dist_kernels_of(stream)->take_rows(
        &d, output, stride * hotbed_dtype_bytes(part->sharded->output_dtype), stream);
}

hotbed_status hotbed_rows_compute_tables(
    const hotbed_part *part, uint32_t first, uint32_t end, hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->owner_out, false);
    d.segments += (uint64_t)first * part->context->world;
    d.firsts += (uint64_t)first * part->context->world;
    d.num_segments = (end - first) * part->context->world;
    d.few = hotbed_packed_type(d.travel) == 0 ? 1 : 0; /* packing computes more, for fewer bytes */
    const hotbed_scatter_view to = hotbed_owner_rows(&d);
    return hotbed_part_compute_to(part, &to, stream);
}

hotbed_status hotbed_rows_take_tables(
    const hotbed_part *part, uint32_t first, uint32_t end, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->requester_in, false);
    if (first == 0)
        d.wire = hotbed_wire_rows(part, HOTBED_WIRE_ROWS);
    d.first_key = part->dedup.batch.table_starts + first;
    d.num_keys = part->dedup.batch.table_starts + end;
    return hotbed_dist_kernels_of(stream)->take_rows(
        &d, output, stride * hotbed_dtype_bytes(part->sharded->output_dtype), stream);
}

static hotbed_status wait_pooled(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->requester_in, false);
    d.wire = hotbed_wire_rows(part, HOTBED_WIRE_ROWS);
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->find_rows(&d, part->addresses, stream));
    return hotbed_dedup_pool(
        part->group->lookup, &part->dedup, &part->rows, part->addresses, output, stride, stream);
}

/* Write the sums of gradients of the distinct keys to their messages or windows. */
static hotbed_status send_sums(
    const hotbed_part *part, const hotbed_deliver_view *d, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_sharded *c = part->sharded;
    hotbed_gradient_view view = {gradient, stride, (uint32_t)c->output_dtype, NULL};
    hotbed_sums_view sums = {
        .rows = part->addresses,
        .dtype = (uint32_t)part->group->gradient_dtype,
        .scale = c->options.gradient_scale,
        .pack = d->pack,
    };
    hotbed_optimizer_view optimizer = c->optimizer_view;
    optimizer.max_gradient = part->group->max_gradient;
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->find_rows(d, part->addresses, stream));
    return hotbed_dedup_sums(
        part->group->lookup, &part->dedup, &optimizer, view, sums, part->group->max_dim,
        part->dedup_scratch, stream);
}

/* Send the gradients to their owners; the gradients of keys that occur several times are summed
 * first. */
static hotbed_status backward_dist(
    hotbed_part *part, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    hotbed_deliver_view d = hotbed_part_deliver(part, part->path->requester_out, true);
    d.wire = hotbed_wire_rows(part, HOTBED_WIRE_GRADIENTS);
    if (part->group->dedup)
        HOTBED_TRY(send_sums(part, &d, gradient, stride, stream));
    else
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->send_gradients(&d, gradient, stride, stream));
    return hotbed_exchange_rows(part, true, stream);
}

/* Gradients with scales become f32 first: the kernels that keep rows in registers read no others. */
static hotbed_status update(const hotbed_part *part, hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    hotbed_path *path = part->path;
    hotbed_gradient_view gradient = {path->wide, g->wide_stride, HOTBED_F32, NULL};
    if (hotbed_packed_type((uint32_t)g->gradient_dtype) == 0) {
        const uint32_t dtype = (uint32_t)g->gradient_dtype;
        gradient = (hotbed_gradient_view){
            path->owner_rows, g->gradient_bytes / hotbed_dtype_size(dtype), dtype, NULL};
    } else {
        const hotbed_deliver_view d = hotbed_part_deliver(part, path->owner_in, true);
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->widen_rows(
            &d, path->owner_rows, path->wide, g->wide_stride, stream));
    }
    return hotbed_storage_backward_from(g->lookup, path->ticket, &gradient, stream);
}

const hotbed_part_calls hotbed_sequence_calls = {
    hotbed_part_create, place_gradients, compute, wait_output, backward_dist, update,
};

const hotbed_part_calls hotbed_pooled_rows_calls = {
    hotbed_part_create, place_gradients, compute, wait_pooled, backward_dist, update,
};
