/* dist/sharded_ranks.c - batches of several ranks: the keys of a batch to the messages, and the
 * stages of reads and backwards. */
#include "dist/sharded.h"

/* --- keys --------------------------------------------------------------------------------------------- */

/* Whether the part removes the duplicates of the caller's keys where they are. */
static bool dedups_in_place(const hotbed_part *part, const hotbed_kjt *kjt) {
    return part->group->dedup && hotbed_part_has_order_of(part, kjt);
}

static bool has_one_key_a_row(const hotbed_kjt *kjt) {
    return kjt->offsets == NULL && kjt->lengths == NULL;
}

/* Pooled, by rows: describe the bags of the batch, which has offsets unless each bag has one key. */
static hotbed_status make_bags(
    hotbed_part *part, const hotbed_member *m, bool has_offsets, hotbed_stream *stream) {
    hotbed_step_view *d = &part->dedup;
    hotbed_pick_view pick = part->pick;
    d->batch.size = m->kjt.batch_size;
    d->batch.offsets = NULL;
    if (has_offsets) {
        if (part->sources == NULL)
            pick.features = NULL, pick.starts = NULL;
        d->batch.offsets = part->offsets;
        HOTBED_TRY(hotbed_kjt_pick_offsets(&pick, part->offsets, stream));
    }
    return hotbed_dedup_bags(part->group->lookup, d, part->bags, stream);
}

/* Find the distinct keys of each table, and the occurrences of each by position in the caller's
 * batch or, pooled, by bag. */
static hotbed_status dedup(hotbed_part *part, const hotbed_member *m, hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    hotbed_step_view *d = &part->dedup;
    hotbed_table_starts_view view = {
        .starts = part->pick.starts,
        .batch_size = part->pick.batch_size,
        .features = g->table_features,
        .num_tables = g->num_tables,
        .table_starts = d->batch.table_starts,
    };
    d->batch.keys = part->pick.keys;
    d->batch.weights = part->pick.weights;
    if (part->sources == NULL) {
        d->batch.weights = part->pick.weights == NULL ? NULL : m->kjt.weights;
        d->batch.keys = m->kjt.keys;
        view.batch_size = m->kjt.batch_size;
        view.starts = has_one_key_a_row(&m->kjt) ? NULL : m->starts;
        view.bad = view.starts == NULL ? NULL : m->bad;
    }
    HOTBED_TRY(kernels->table_starts(&view, stream));
    if (part->sharded->pooling != HOTBED_POOL_NONE) {
        view.features = g->numbers;
        view.num_tables = g->num_features;
        view.table_starts = d->batch.feature_starts;
        HOTBED_TRY(kernels->table_starts(&view, stream));
        HOTBED_TRY(make_bags(part, m, view.starts != NULL, stream));
    }
    /* Backward needs the occurrences of the keys, and messages need their counts. */
    hotbed_stream *branch = g->counted ? stream : NULL;
    if (branch == NULL && m->training)
        HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    HOTBED_TRY(hotbed_dedup_keys(g->lookup, d, part->dedup_scratch, stream, branch));
    if (part->sources == NULL || part->sharded->pooling != HOTBED_POOL_NONE || !m->training)
        return HOTBED_OK;
    return kernels->follow(
        d->batch.bound, part->num_keys, d->unique.positions, part->sources, branch);
}

static hotbed_status start_part(
    hotbed_part *part, const hotbed_member *m, const hotbed_kjt_view *kjt, hotbed_stream *stream) {
    hotbed_pick_view *p = &part->pick;
    p->kjt = *kjt;
    p->bases = m->kjt.strides == NULL ? NULL : m->bases;
    p->stride = m->kjt.batch_size;
    /* Messages by sample have a row for each sample of the largest batch. */
    p->batch_size = part->group->dedup ? m->kjt.batch_size : part->sharded->options.max_batch_size;
    part->sources = dedups_in_place(part, &m->kjt) ? NULL : p->sources;
    if (part->sources != NULL) {
        HOTBED_TRY(hotbed_part_put_features(part, stream));
        HOTBED_TRY(hotbed_kjt_pick(p, part->scratch, part->scratch_bytes, stream));
    }
    part->dedup.batch.bound = part->bucketize.bound = kjt->bound;
    part->bucketize.capacity = part->group->capacity;
    if (part->group->dedup)
        HOTBED_TRY(dedup(part, m, stream));
    return hotbed_bucketize(&part->bucketize, part->scratch, part->scratch_bytes, stream);
}

static hotbed_status start_member(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream) {
    hotbed_part *parts = &context->parts[m->first_part];
    hotbed_kjt_view view = hotbed_kjt_view_of(&m->kjt, m->starts, m->bad, stream);
    for (uint32_t g = 0; g < m->sharded->num_groups; g++)
        hotbed_part_map_features(&parts[g], &m->kjt);
    /* A batch in the order of a part has no other parts. */
    if (!has_one_key_a_row(&m->kjt) || !dedups_in_place(parts, &m->kjt)) {
        if (m->kjt.strides != NULL)
            HOTBED_TRY(hotbed_kjt_put_bases(&m->kjt, m->bases, stream));
        HOTBED_TRY(hotbed_kjt_start(&view, parts->scratch, parts->scratch_bytes, stream));
    }
    hotbed_stream *beside;
    HOTBED_TRY(hotbed_parts_fork(m->sharded->num_groups, stream, &beside));
    hotbed_status status = HOTBED_OK;
    for (uint32_t g = 0; g < m->sharded->num_groups && status == HOTBED_OK; g++)
        status = start_part(&parts[g], m, &view, g == 0 ? stream : beside);
    return hotbed_parts_join(status, stream);
}

/* --- read and backward: all stages in order ----------------------------------------------------------- */

static hotbed_status read_stages(
    hotbed_sharded_context *context, hotbed_member *m, uint32_t number, void *output,
    uint64_t stride, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_step_read(context, m, output, stride, stream));
    if (m->stage == HOTBED_STAGE_WAIT_OUTPUT)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_sharded_output_dist(context, number, stream));
    return hotbed_sharded_wait_output(context, number, output, stride, stream);
}

static hotbed_status read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin_read(context, number, stream, "read", &m));
    HOTBED_TRY(hotbed_step_check_rows(m, output, "output", &stride));
    for (uint32_t g = 0; g < m->sharded->num_groups; g++)
        hotbed_step_part(context, m, g)->reads = m->training;
    const hotbed_status status = read_stages(context, m, number, output, stride, stream);
    for (uint32_t g = 0; g < m->sharded->num_groups; g++)
        hotbed_step_part(context, m, g)->reads = false;
    return status;
}

/* The owner may read this rank's gradients where the caller has them. */
static void keep_gradient(
    const hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride) {
    const hotbed_member *m = &context->members[number];
    for (uint32_t g = 0; g < m->sharded->num_groups; g++) {
        hotbed_part *part = hotbed_step_part(context, m, g);
        part->gradient = gradient;
        part->gradient_stride = stride == 0 ? hotbed_step_least_stride(m->sharded) : stride;
    }
}

static hotbed_status backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    if (number < context->num_members)
        keep_gradient(context, number, gradient, stride);
    hotbed_status status = hotbed_sharded_backward_dist(context, number, gradient, stride, stream);
    HOTBED_THEN(status, hotbed_sharded_update(context, number, stream));
    if (number < context->num_members)
        keep_gradient(context, number, NULL, 0);
    return status;
}

const hotbed_context_calls hotbed_ranks_calls = {
    start_member,
    hotbed_exchange_send,
    read,
    backward,
};
