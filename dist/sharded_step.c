/* dist/sharded_step.c - from a batch's arrival to its update: rows to the requesters, gradients
 * back, the optimizer. */
#include "dist/sharded.h"

#include "base/check.h"

/* Of the tables whose rows travel while earlier ones are taken. */
enum { PIECES = 4 };

/* --- what the calls share -------------------------------------------------------------------------------- */

/* Check the call, and order the stream after the context's work; *out is the collection's member. */
hotbed_status hotbed_step_begin(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_stage stage, hotbed_member **out) {
    HOTBED_TRY(hotbed_check_pointer_of(call, "context", context));
    HOTBED_TRY(hotbed_check_below("number", number, context->num_members));
    *out = &context->members[number];
    if ((*out)->stage != stage)
        return hotbed_sharded_context_fail_stage(
            call, context->stage != HOTBED_STAGE_WAIT_INPUT ? context->stage : (*out)->stage);
    return hotbed_sharded_context_enter(context, stream, call);
}

hotbed_status hotbed_step_end(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stage stage, hotbed_stream *stream) {
    m->stage = stage;
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_step_check_rows(
    const hotbed_member *m, const void *rows, const char *name, uint64_t *stride) {
    uint64_t least = hotbed_step_least_stride(m->sharded);
    uint64_t n = m->sharded->pooling == HOTBED_POOL_NONE ? m->kjt.num_keys : m->kjt.batch_size;
    if (rows == NULL && n > 0)
        return hotbed_fail_null(name);
    if (*stride == 0)
        *stride = least;
    if (*stride < least)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "stride", (*stride), least, "stride %llu is below %llu",
            (unsigned long long)*stride, (unsigned long long)least);
    return HOTBED_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------ */

/* What a stage of all parts gets. */
typedef struct call_args {
    void *output;
    const void *gradient;
    uint64_t stride;
} call_args;

typedef hotbed_status (*part_stage)(
    hotbed_part *part, const call_args *args, hotbed_stream *stream);

/* Perform a stage of all parts; with `beside`, those after the first on the stream beside. */
static hotbed_status for_parts(
    hotbed_sharded_context *context, const hotbed_member *m, bool beside, part_stage stage,
    const call_args *args, hotbed_stream *stream) {
    const uint32_t n = m->sharded->num_groups;
    hotbed_stream *other;
    HOTBED_TRY(hotbed_parts_fork(beside ? n : 1, stream, &other));
    hotbed_status status = HOTBED_OK;
    for (uint32_t g = 0; g < n && status == HOTBED_OK; g++)
        status = stage(hotbed_step_part(context, m, g), args, g == 0 ? stream : other);
    return hotbed_parts_join(status, stream);
}

/* Whether all parts of the member exchange rows by windows, so that their stages have no
 * collectives. */
static bool in_windows(const hotbed_sharded_context *context, const hotbed_member *m) {
    bool all = true;
    for (uint32_t g = 0; g < m->sharded->num_groups; g++)
        all = all && hotbed_path_in_window(context, hotbed_step_part(context, m, g)->path);
    return all;
}

/* Enqueue the prefetch of a part. What backward needs is on the stream's branch, which the caller
 * joins. */
static hotbed_status enqueue_prefetch(const hotbed_part *part, hotbed_stream *stream) {
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_storage_prefetch_branched(
        part->group->lookup, &part->batch, part->path->ticket, part->path->gather.overflow,
        stream));
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    return part->calls->place_gradients == NULL ? HOTBED_OK
                                                : part->calls->place_gradients(part, branch);
}

static hotbed_status join(hotbed_status status, hotbed_stream *stream) {
    const hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
}

static hotbed_status prefetch_part(
    hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return join(enqueue_prefetch(part, stream), stream);
}

static hotbed_status open_prefetch_part(
    hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return enqueue_prefetch(part, stream);
}

static hotbed_status begin_prefetch(
    hotbed_sharded_context *context, const hotbed_member *m, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    return hotbed_sharded_growth_due(m->sharded, stream);
}

static hotbed_status prefetch(
    hotbed_sharded_context *context, hotbed_member *m, part_stage stage, hotbed_stream *stream) {
    HOTBED_TRY(begin_prefetch(context, m, stream));
    const call_args args = {NULL, NULL, 0};
    HOTBED_TRY(for_parts(context, m, true, stage, &args, stream));
    m->stage = HOTBED_STAGE_PREFETCH;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_prefetch(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin(context, number, stream, "prefetch", HOTBED_STAGE_WAIT_INPUT, &m));
    if (!m->training)
        return hotbed_fail(HOTBED_ERR_STATE, "prefetch: the collection is in eval mode");
    HOTBED_TRY(prefetch(context, m, prefetch_part, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_step_begin_read(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_member **out) {
    bool ready = context != NULL && number < context->num_members &&
                 context->members[number].stage == HOTBED_STAGE_WAIT_INPUT;
    return hotbed_step_begin(
        context, number, stream, call, ready ? HOTBED_STAGE_WAIT_INPUT : HOTBED_STAGE_PREFETCH,
        out);
}

hotbed_status hotbed_step_prepare(
    hotbed_sharded_context *context, hotbed_member *m, bool *open, hotbed_stream *stream) {
    *open = m->training && m->stage == HOTBED_STAGE_WAIT_INPUT;
    if (!m->training)
        return hotbed_sharded_context_settle(context, stream);
    return *open ? prefetch(context, m, open_prefetch_part, stream) : HOTBED_OK;
}

hotbed_status hotbed_step_compute(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream) {
    hotbed_storage *lookup = part->group->lookup;
    if (part->member->training)
        return hotbed_storage_forward(lookup, part->path->ticket, output, stride, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(part->sharded, stream));
    hotbed_status status = hotbed_storage_eval(lookup, &part->batch, output, stride, stream);
    return hotbed_sharded_search_end(part->sharded, status, stream);
}

/* After a rewind no keys were sent, so a requester may still be reading the rows of the batch. */
static hotbed_status wait_for_readers(hotbed_sharded_context *context, hotbed_stream *stream) {
    if (!context->rewound || context->window == NULL)
        return HOTBED_OK;
    context->rewound = false;
    return hotbed_window_barrier(context->window, stream);
}

static hotbed_status compute_part(hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return part->calls->compute(part, stream);
}

/* Grouping the occurrences for backward takes longer than reading the rows, and runs beside it and
 * the exchange of rows. */
static hotbed_status prefetch_and_compute_part(
    hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    HOTBED_TRY(enqueue_prefetch(part, stream));
    return part->calls->compute(part, stream);
}

static bool reads_in_pieces(const hotbed_sharded_context *context, const hotbed_member *m) {
    const hotbed_group *g = &m->sharded->groups[0];
    return m->training && m->sharded->num_groups == 1 && in_windows(context, m) &&
           m->sharded->pooling == HOTBED_POOL_NONE && g->dedup && g->num_tables > 1;
}

/* While the rows of some tables travel, those of the tables before them are taken. The rows travel on
 * a branch, whose kernels start before those that the stream has enqueued: the link is the bottleneck.
 * The branch is of the stream beside, because the stream's own groups occurrences. */
static hotbed_status read_pieces(
    hotbed_sharded_context *context, const hotbed_member *m, const call_args *args,
    hotbed_stream *ahead, hotbed_stream *stream) {
    const hotbed_part *part = hotbed_step_part(context, m, 0);
    const uint32_t tables = part->group->num_tables, pieces = tables < PIECES ? tables : PIECES;
    for (uint32_t k = 0; k < pieces; k++) {
        const uint32_t first = k * tables / pieces, end = (k + 1) * tables / pieces;
        HOTBED_TRY(hotbed_rows_compute_tables(part, first, end, ahead));
        HOTBED_TRY(hotbed_window_barrier(context->window, ahead));
        HOTBED_TRY(hotbed_stream_follow(stream, ahead));
        HOTBED_TRY(hotbed_rows_take_tables(part, first, end, args->output, args->stride, stream));
    }
    return HOTBED_OK;
}

static hotbed_status read_in_pieces(
    hotbed_sharded_context *context, const hotbed_member *m, const call_args *args,
    hotbed_stream *stream) {
    hotbed_stream *beside, *ahead;
    HOTBED_TRY(hotbed_stream_beside(stream, &beside));
    hotbed_status status = hotbed_stream_branch(beside, &ahead);
    HOTBED_THEN(status, read_pieces(context, m, args, ahead, stream));
    const hotbed_status joined = hotbed_stream_join(beside);
    return hotbed_parts_join(status != HOTBED_OK ? status : joined, stream);
}

/* Compute; with `args`, read the output too if the member can be read in pieces. */
static hotbed_status compute(
    hotbed_sharded_context *context, hotbed_member *m, const call_args *args,
    hotbed_stream *stream) {
    const bool prefetches = m->training && m->stage == HOTBED_STAGE_WAIT_INPUT;
    if (prefetches)
        HOTBED_TRY(begin_prefetch(context, m, stream));
    else if (!m->training)
        HOTBED_TRY(hotbed_sharded_context_settle(context, stream));
    HOTBED_TRY(wait_for_readers(context, stream));
    for (uint32_t g = 0; m->training && g < m->sharded->num_groups; g++)
        HOTBED_TRY(hotbed_part_keep_step(hotbed_step_part(context, m, g), stream));
    const bool pieces = args != NULL && reads_in_pieces(context, m);
    hotbed_status status = HOTBED_OK;
    if (pieces) {
        if (prefetches)
            status = enqueue_prefetch(hotbed_step_part(context, m, 0), stream);
        HOTBED_THEN(status, read_in_pieces(context, m, args, stream));
    } else { /* evals use the stream's workspace */
        const call_args none = {NULL, NULL, 0};
        status = for_parts(
            context, m, m->training, prefetches ? prefetch_and_compute_part : compute_part, &none,
            stream);
    }
    if (prefetches) {
        const hotbed_status left = hotbed_sharded_context_leave_open(context, stream);
        status = status != HOTBED_OK ? status : left;
    }
    HOTBED_TRY(status);
    if (pieces)
        return hotbed_step_end(context, m, HOTBED_STAGE_WAIT_OUTPUT, stream);
    if (in_windows(context, m))
        HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_COMPUTE, stream);
}

hotbed_status hotbed_sharded_compute(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin_read(context, number, stream, "compute", &m));
    return compute(context, m, NULL, stream);
}

hotbed_status hotbed_step_read(
    hotbed_sharded_context *context, hotbed_member *m, void *output, uint64_t stride,
    hotbed_stream *stream) {
    const call_args args = {output, NULL, stride};
    return compute(context, m, &args, stream);
}

hotbed_status hotbed_sharded_output_dist(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin(context, number, stream, "output_dist", HOTBED_STAGE_COMPUTE, &m));
    for (uint32_t g = 0; context->world > 1 && g < m->sharded->num_groups; g++)
        HOTBED_TRY(hotbed_exchange_rows(hotbed_step_part(context, m, g), false, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_OUTPUT_DIST, stream);
}

static hotbed_status wait_part(hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return part->calls->wait_output(part, args->output, args->stride, stream);
}

hotbed_status hotbed_sharded_wait_output(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(
        hotbed_step_begin(context, number, stream, "wait_output", HOTBED_STAGE_OUTPUT_DIST, &m));
    HOTBED_TRY(hotbed_step_check_rows(m, output, "output", &stride));
    const call_args args = {output, NULL, stride};
    HOTBED_TRY(for_parts(context, m, true, wait_part, &args, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_WAIT_OUTPUT, stream);
}

hotbed_status hotbed_sharded_read(
    hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("read", "context", context));
    return context->calls->read(context, number, output, stride, stream);
}

/* --- backward ----------------------------------------------------------------------------------------------- */

hotbed_status hotbed_step_begin_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t *stride,
    hotbed_stream *stream, const char *call, hotbed_member **out) {
    HOTBED_TRY(hotbed_step_begin(context, number, stream, call, HOTBED_STAGE_WAIT_OUTPUT, out));
    if (!(*out)->training)
        return hotbed_fail(HOTBED_ERR_STATE, "%s: the collection is in eval mode", call);
    if ((*out)->sharded->optimizer.kind == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the collection was created without an optimizer");
    return hotbed_step_check_rows(*out, gradient, "gradient", stride);
}

static hotbed_status send_part(hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return part->calls->backward_dist(part, args->gradient, args->stride, stream);
}

hotbed_status hotbed_sharded_backward_dist(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(hotbed_step_begin_backward(
        context, number, gradient, &stride, stream, "backward_dist", &m));
    const bool windows = in_windows(context, m);
    const call_args args = {NULL, gradient, stride};
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    HOTBED_TRY(for_parts(context, m, windows, send_part, &args, stream));
    if (windows)
        HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_BACKWARD_DIST, stream);
}

static hotbed_status update_part(hotbed_part *part, const call_args *args, hotbed_stream *stream) {
    return part->calls->update(part, stream);
}

hotbed_status hotbed_sharded_update(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    hotbed_member *m = NULL;
    HOTBED_TRY(
        hotbed_step_begin(context, number, stream, "update", HOTBED_STAGE_BACKWARD_DIST, &m));
    const call_args args = {NULL, NULL, 0};
    HOTBED_TRY(for_parts(context, m, true, update_part, &args, stream));
    return hotbed_step_end(context, m, HOTBED_STAGE_UPDATE, stream);
}

hotbed_status hotbed_sharded_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("backward", "context", context));
    return context->calls->backward(context, number, gradient, stride, stream);
}

/* --- forward as one call ------------------------------------------------------------------- */

hotbed_status hotbed_sharded_forward(
    hotbed_sharded_context *context, uint32_t number, const hotbed_kjt *kjt, void *output,
    uint64_t stride, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("forward", "context", context));
    HOTBED_TRY(hotbed_check_below("number", number, context->num_members));
    if (context->num_members != 1)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, context->num_members, 1,
            "forward: the context is of %u collections, not one", context->num_members);
    HOTBED_TRY(hotbed_sharded_input_dist(context, kjt, stream));
    HOTBED_TRY(hotbed_sharded_wait_splits(context, stream));
    HOTBED_TRY(hotbed_sharded_wait_input(context, stream));
    return hotbed_sharded_read(context, number, output, stride, stream);
}
