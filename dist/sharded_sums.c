/* dist/sharded_sums.c - pooled parts whose sums travel: the owner sums the keys of a bag that it has,
 * and the requester adds the sums of all owners. */
#include "dist/sharded.h"

/* Count what the kernel that gets the view moves. Messages of fixed size travel whole, unless kernels
 * write them where they are read. */
static void count(const hotbed_part *part, bool gradients, bool owner, hotbed_bags_view *view) {
    hotbed_wire_counts *counts = part->sharded->wire.data;
    const hotbed_wire_phase phase = gradients ? HOTBED_WIRE_GRADIENTS : HOTBED_WIRE_ROWS;
    view->moved = gradients == owner ? &counts->received[phase] : &counts->sent[phase];
    view->whole = part->path->capacity != 0 && part->context->window == NULL ? 1 : 0;
}

static hotbed_status compute(const hotbed_part *part, hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(part, part->path->owner_out, false, true);
    count(part, false, true, &v);
    const hotbed_scatter_view to = {.on = 1, .bags = part->addresses};
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_addresses(&v, part->addresses, stream));
    HOTBED_TRY(hotbed_part_compute_to(part, &to, stream));
    return v.wide == NULL ? HOTBED_OK : hotbed_dist_kernels_of(stream)->pack_bags(&v, stream);
}

static hotbed_status wait_output(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(part, part->path->requester_in, false, false);
    count(part, false, false, &v);
    return hotbed_dist_kernels_of(stream)->finish_bags(
        &v, part->group->max_dim, output, stride, stream);
}

static hotbed_status backward_dist(
    hotbed_part *part, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(part, part->path->requester_out, true, false);
    count(part, true, false, &v);
    v.remote = hotbed_path_in_window(part->context, part->path) ? 1 : 0;
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->send_bags(
        &v, part->group->max_dim, gradient, stride, stream));
    return hotbed_exchange_rows(part, true, stream);
}

static hotbed_status update(const hotbed_part *part, hotbed_stream *stream) {
    hotbed_bags_view v = hotbed_part_bags(part, part->path->owner_in, true, true);
    count(part, true, true, &v);
    const hotbed_gradient_view gradient = {
        v.own, v.own == NULL ? 0 : part->gradient_stride,
        v.wide == NULL ? (uint32_t)part->group->gradient_dtype : (uint32_t)HOTBED_F32,
        (const uint8_t *const *)part->addresses};
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_addresses(&v, part->addresses, stream));
    if (v.wide != NULL)
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->widen_bags(&v, stream));
    return hotbed_storage_backward_from(part->group->lookup, part->path->ticket, &gradient, stream);
}

const hotbed_part_calls hotbed_pooled_sums_calls = {
    hotbed_part_create, NULL, compute, wait_output, backward_dist, update,
};
