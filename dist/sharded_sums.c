/* dist/sharded_sums.c - pooled parts: each owner's sums of a bag travel. */
#include "dist/sharded.h"

static hotbed_pool_view pool_of(const hotbed_sharded_context *context, const hotbed_part *part) {
    return hotbed_part_pool(
        context, part, part->pick.starts, part->sharded->options.max_batch_size);
}

static hotbed_status place_gradients(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_stream *stream) {
    (void)context, (void)part, (void)stream;
    return HOTBED_OK;
}

static hotbed_status output_dist(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_stream *stream) {
    return hotbed_comm_reduce_scatter(
        context->comm, part->group->counts, 1.0F, part->all_pooled, part->pooled, stream);
}

static hotbed_status wait_output(
    const hotbed_sharded_context *context, const hotbed_part *part, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_pool_view p = pool_of(context, part);
    p.wire = hotbed_wire_rows(context, part, HOTBED_WIRE_ROWS);
    return hotbed_dist_kernels_of(stream)->pool_finish(
        &p, part->group->columns, part->pooled, output, stride, stream);
}

static hotbed_status backward_dist(
    hotbed_sharded_context *context, hotbed_part *part, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_pool_view p = pool_of(context, part);
    p.wire = hotbed_wire_rows(context, part, HOTBED_WIRE_GRADIENTS);
    uint64_t floats = part->group->columns * part->sharded->options.max_batch_size;
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->pool_start(
        &p, part->group->columns, gradient, stride, part->pooled, stream));
    return hotbed_comm_all_gather(
        context->comm, floats * sizeof(float), part->pooled, part->all_pooled, stream);
}

static hotbed_status update(const hotbed_part *part, hotbed_stream *stream) {
    uint64_t stride;
    const void *gradient = hotbed_part_local(part, &stride);
    return hotbed_storage_backward(
        part->group->lookup, part->path->ticket, gradient, stride, stream);
}

const hotbed_part_calls hotbed_pooled_calls = {
    hotbed_part_create, place_gradients, hotbed_step_compute_local, output_dist, wait_output,
    backward_dist,      update,
};
