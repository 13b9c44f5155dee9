/* dist/sharded_context.c - exchange contexts: the keys of a batch to their owners. */
#include "dist/sharded.h"

#include "base/check.h"
#include "base/options.h"
#include "dist/comm/comm.h"

/* --- stages ---------------------------------------------------------------------------------------------- */

static const char *stage_name(hotbed_stage stage) {
    static const char *const names[] = {"empty",         "input_dist", "wait_splits", "wait_input",
                                        "prefetch",      "compute",    "output_dist", "wait_output",
                                        "backward_dist", "update"};
    return names[stage];
}

hotbed_status hotbed_sharded_context_enter(
    hotbed_sharded_context *context, hotbed_stream *stream, const char *call) {
    HOTBED_TRY(hotbed_check_pointer_of(call, "context", context));
    HOTBED_TRY(hotbed_check_pointer_of(call, "stream", stream));
    HOTBED_TRY(hotbed_comm_check_stream(context->comm, stream));
    const uint64_t recording = hotbed_stream_recording_number(stream);
    if (recording != 0 && recording == context->recording)
        return HOTBED_OK; /* the previous call is before this one in the graph */
    return hotbed_stream_wait(stream, context->event);
}

hotbed_status hotbed_sharded_context_fail_stage(const char *call, hotbed_stage stage) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: the batch's last stage was %s", call, stage_name(stage));
}

/* Record an event for the host or other streams. In a recording, the branch does it, so that the next
 * kernel need not wait for the graph's node. */
static hotbed_status record_event(hotbed_event *event, hotbed_stream *stream) {
    hotbed_stream *branch = stream;
    if (hotbed_stream_recording_number(stream) != 0)
        HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    return hotbed_event_record(event, branch);
}

hotbed_status hotbed_sharded_context_leave(hotbed_sharded_context *context, hotbed_stream *stream) {
    context->recording = hotbed_stream_recording_number(stream);
    return record_event(context->event, stream);
}

/* --- input_dist --------------------------------------------------------------------------------------------- */

/* Replace a batch that is over the sizes by one without samples, if it may overflow instead. */
static bool put_off(const hotbed_member *m, hotbed_kjt *kjt) {
    const hotbed_sharded_options *o = &m->sharded->options;
    if (!o->large_overflows ||
        (kjt->batch_size <= o->max_batch_size && kjt->num_keys <= o->max_keys))
        return false;
    kjt->batch_size = 0;
    kjt->num_keys = 0;
    kjt->strides = NULL;
    kjt->lengths = kjt->offsets = NULL;
    kjt->weights = NULL;
    return true;
}

static hotbed_status check_kjt(const hotbed_member *m, const hotbed_kjt *kjt) {
    const hotbed_sharded *c = m->sharded;
    const hotbed_sharded_options *o = &c->options;
    const bool many = kjt->num_keys > o->max_keys;
    if (many || kjt->batch_size > o->max_batch_size)
        return hotbed_error_cause_is(
            hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, many ? "num_keys" : "batch_size",
                many ? (double)kjt->num_keys : kjt->batch_size,
                many ? (double)o->max_keys : o->max_batch_size,
                "kjt: %u samples, %llu keys; the collection takes up to %u samples, %llu keys",
                kjt->batch_size, (unsigned long long)kjt->num_keys, o->max_batch_size,
                (unsigned long long)o->max_keys),
            HOTBED_CAUSE_BATCH_TOO_LARGE);
    if (kjt->num_features > m->features_most)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_features", kjt->num_features, m->features_most,
            "kjt: %u features; kjt_features allows %u", kjt->num_features, m->features_most);
    if (kjt->weights != NULL && !o->weighted && c->pooling != HOTBED_POOL_NONE)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "kjt: it has weights, but the collection is not weighted");
    for (uint32_t f = 0; f < c->num_features; f++)
        if (hotbed_part_find_feature(c, kjt, f, f) >= kjt->num_features) {
            if (c->features == NULL)
                return hotbed_fail_feature(HOTBED_ERR_ARGUMENT, f, "kjt: feature %u is missing", f);
            return hotbed_fail_feature(
                HOTBED_ERR_ARGUMENT, f, "kjt: feature %s is missing", c->features[f]);
        }
    return HOTBED_OK;
}

/* Read the caller's structs. */
static hotbed_status read_kjts(
    const hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_kjt *read, bool *late) {
    const void *from;
    for (uint32_t i = 0; i < context->num_members; i++) {
        HOTBED_TRY(hotbed_options_at(kjts, i, "kjt", &from));
        HOTBED_TRY(hotbed_kjt_read(from, &read[i]));
        if (context->world > 1)
            *late = put_off(&context->members[i], &read[i]) || *late;
        HOTBED_TRY(check_kjt(&context->members[i], &read[i]));
    }
    return HOTBED_OK;
}

/* Release the rows of the previous batch. */
static hotbed_status release(hotbed_sharded_context *context, hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++)
        for (int r = 0; r < 2; r++)
            if (context->parts[i].paths[r].ticket != NULL)
                HOTBED_TRY(hotbed_ticket_cancel(context->parts[i].paths[r].ticket, stream));
    context->stage = HOTBED_STAGE_EMPTY;
    for (uint32_t i = 0; i < context->num_members; i++)
        context->members[i].stage = HOTBED_STAGE_EMPTY;
    return HOTBED_OK;
}

/* Begin the work that the keys of a batch wait for shortly before they are sent, on a branch of the
 * stream's branch: release the rows of the previous batch, and pass the first barrier, after which no
 * rank uses the window's earlier contents. */
static hotbed_status make_room(
    hotbed_sharded_context *context, hotbed_stream *stream, hotbed_stream **room) {
    hotbed_stream *branch;
    *room = stream;
    if (context->world > 1) {
        HOTBED_TRY(hotbed_stream_branch(stream, &branch));
        HOTBED_TRY(hotbed_stream_branch(branch, room));
    }
    HOTBED_TRY(release(context, *room));
    return context->window == NULL ? HOTBED_OK : hotbed_window_barrier(context->window, *room);
}

/* Send the keys of a batch. */
static hotbed_status send_batch(
    hotbed_sharded_context *context, const hotbed_kjt *kjts, bool late, hotbed_stream *stream) {
    hotbed_stream *room;
    HOTBED_TRY(make_room(context, stream, &room));
    context->watched = context->settled = context->replayed = context->rewound = false;
    if (context->world > 1)
        HOTBED_TRY(hotbed_exchange_clear(context, stream));
    if (late) /* not 0 */
        HOTBED_TRY(hotbed_fill(context->overflow, 1, sizeof *context->overflow, stream));
    for (uint32_t i = 0; i < context->num_members; i++) {
        hotbed_member *m = &context->members[i];
        m->kjt = kjts[i];
        m->training = m->sharded->training;
        HOTBED_TRY(context->calls->start(context, m, stream));
        m->kjt.features = NULL; /* the caller may change the names and strides now */
        m->kjt.strides = NULL;
    }
    HOTBED_TRY(hotbed_stream_follow(stream, room));
    return context->calls->send(context, context->plan == HOTBED_PLAN_TWO_PHASE, stream);
}

/* --- what backward needs ------------------------------------------------------------------------------------ */

/* Call a function for the stream, and for the one beside it if the context uses it. */
static hotbed_status for_streams(
    hotbed_sharded_context *context, hotbed_stream *stream,
    hotbed_status (*call)(hotbed_sharded_context *context, int which, hotbed_stream *stream)) {
    hotbed_stream *beside;
    HOTBED_TRY(hotbed_parts_fork(context->num_parts, stream, &beside));
    hotbed_status status = call(context, 0, stream);
    if (status == HOTBED_OK && beside != stream)
        status = call(context, 1, beside);
    return hotbed_parts_join(status, stream);
}

static hotbed_status record_branch(
    hotbed_sharded_context *context, int which, hotbed_stream *stream) {
    hotbed_stream *branch;
    HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    return hotbed_event_record(context->grouped[which], branch);
}

static hotbed_status join_branch(
    hotbed_sharded_context *context, int which, hotbed_stream *stream) {
    return hotbed_stream_join(stream);
}

hotbed_status hotbed_sharded_context_catch_up(
    hotbed_sharded_context *context, hotbed_stream *stream) {
    const hotbed_stream *behind = context->behind;
    if (behind == NULL)
        return HOTBED_OK;
    context->behind = NULL;
    if (behind != stream) {
        HOTBED_TRY(hotbed_stream_wait(stream, context->grouped[0]));
        return hotbed_stream_wait(stream, context->grouped[1]);
    }
    /* A capture by the caller cannot depend on work before it. */
    return hotbed_stream_keeps_branches(stream) ? for_streams(context, stream, join_branch)
                                                : HOTBED_OK;
}

hotbed_status hotbed_sharded_context_leave_open(
    hotbed_sharded_context *context, hotbed_stream *stream) {
    if (context->world == 1 || !hotbed_stream_keeps_branches(stream))
        return for_streams(context, stream, join_branch);
    if (context->behind != stream)
        HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    context->behind = stream;
    return for_streams(context, stream, record_branch);
}

static bool trains(const hotbed_sharded_context *context) {
    bool any = false;
    for (uint32_t i = 0; i < context->num_members; i++)
        any = any || context->members[i].training;
    return any;
}

hotbed_status hotbed_sharded_input_dist(
    hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_stream *stream) {
    hotbed_kjt read[HOTBED_MEMBERS_MOST];
    HOTBED_TRY(hotbed_check_pointer("context", context));
    HOTBED_TRY(hotbed_check_pointer("kjts", kjts));
    bool late = false; /* a batch is over the sizes */
    HOTBED_TRY(read_kjts(context, kjts, read, &late));
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "input_dist"));
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    const hotbed_status sent = send_batch(context, read, late, stream);
    hotbed_status left = HOTBED_OK;
    if (context->world > 1)
        left = trains(context) ? hotbed_sharded_context_leave_open(context, stream)
                               : for_streams(context, stream, join_branch);
    HOTBED_TRY(sent != HOTBED_OK ? sent : left);
    context->stage = HOTBED_STAGE_INPUT_DIST;
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_wait_splits(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "wait_splits"));
    if (context->stage != HOTBED_STAGE_INPUT_DIST)
        return hotbed_sharded_context_fail_stage("wait_splits", context->stage);
    if (context->plan == HOTBED_PLAN_TWO_PHASE) {
        HOTBED_TRY(hotbed_stream_may_wait(stream));
        HOTBED_TRY(hotbed_exchange_sizes(context, stream));
    }
    context->stage = HOTBED_STAGE_WAIT_SPLITS;
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_wait_input(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "wait_input"));
    if (context->stage != HOTBED_STAGE_WAIT_SPLITS)
        return hotbed_sharded_context_fail_stage("wait_input", context->stage);
    if (context->world > 1)
        HOTBED_TRY(hotbed_exchange_gather(context, stream));
    if (context->may_overflow) {
        HOTBED_TRY(record_event(context->arrived, stream));
        context->watched = true;
    }
    context->stage = HOTBED_STAGE_WAIT_INPUT;
    for (uint32_t i = 0; i < context->num_members; i++)
        context->members[i].stage = HOTBED_STAGE_WAIT_INPUT;
    return hotbed_sharded_context_leave(context, stream);
}

/* --- overflow -------------------------------------------------------------------------------------------- */

/* Read whether the batch overflowed, once it has arrived. */
static hotbed_status look(hotbed_sharded_context *context, bool *overflowed) {
    bool done = false;
    *overflowed = false;
    if (!context->watched)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_event_query(context->arrived, &done));
    if (!done)
        HOTBED_TRY(hotbed_event_sync(context->arrived));
    *overflowed = *context->host_overflow != 0;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_context_settle(
    hotbed_sharded_context *context, hotbed_stream *stream) {
    bool overflowed;
    if (!context->watched || context->settled || context->policy == HOTBED_OVERFLOW_REPORT)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(look(context, &overflowed));
    if (overflowed) {
        HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
        HOTBED_TRY(hotbed_parts_make_exact(context, stream));
        HOTBED_TRY(hotbed_exchange_clear(context, stream));
        HOTBED_TRY(hotbed_exchange_send(context, true, stream));
        HOTBED_TRY(hotbed_exchange_sizes(context, stream));
        HOTBED_TRY(hotbed_exchange_gather(context, stream));
    }
    context->replayed = overflowed;
    context->settled = true;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_overflowed(hotbed_sharded_context *context, bool *out) {
    HOTBED_TRY(hotbed_check_pointer("context", context));
    HOTBED_TRY(hotbed_check_pointer("out", out));
    if (context->stage != HOTBED_STAGE_WAIT_INPUT)
        return hotbed_sharded_context_fail_stage("overflowed", context->stage);
    if (context->settled) {
        *out = context->replayed;
        return HOTBED_OK;
    }
    return look(context, out);
}

/* --- points ----------------------------------------------------------------------------------------------- */

typedef hotbed_status (*ticket_call)(hotbed_ticket *ticket, hotbed_stream *stream);

/* Call a function for all tickets that hold rows in the stage of a point. */
static hotbed_status for_held(
    hotbed_sharded_context *context, const hotbed_sharded_point *point, ticket_call call,
    hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        hotbed_stage stage = point->members[part->member - context->members];
        if (part->member->training && stage >= HOTBED_STAGE_PREFETCH && stage < HOTBED_STAGE_UPDATE)
            HOTBED_TRY(call(part->path->ticket, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_keep(
    hotbed_sharded_context *context, hotbed_sharded_point *point, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "keep"));
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    if (context->stage == HOTBED_STAGE_EMPTY)
        return hotbed_sharded_context_fail_stage("keep", context->stage);
    memset(point, 0, sizeof *point);
    point->stage = context->stage;
    point->watched = context->watched;
    point->settled = context->settled;
    point->replayed = context->replayed;
    for (uint32_t i = 0; i < context->num_members; i++)
        point->members[i] = context->members[i].stage;
    HOTBED_TRY(for_held(context, point, hotbed_ticket_keep, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_rewind(
    hotbed_sharded_context *context, const hotbed_sharded_point *point, hotbed_stream *stream) {
    bool exact = point->replayed || context->plan == HOTBED_PLAN_TWO_PHASE;
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "rewind"));
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    HOTBED_TRY(release(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++)
        context->parts[i].path = &context->parts[i].paths[exact ? 1 : 0];
    HOTBED_TRY(for_held(context, point, hotbed_ticket_retake, stream));
    context->stage = point->stage;
    context->watched = point->watched;
    context->settled = point->settled;
    context->replayed = point->replayed;
    context->rewound = true;
    for (uint32_t i = 0; i < context->num_members; i++)
        context->members[i].stage = point->members[i];
    /* The sizes will be written again. The next wait for `arrived` must cover the exchanges that
     * still read them. */
    if (context->plan == HOTBED_PLAN_TWO_PHASE && point->stage == HOTBED_STAGE_INPUT_DIST)
        HOTBED_TRY(hotbed_event_record(context->arrived, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_forget(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "forget"));
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++)
        for (int r = 0; r < 2; r++)
            if (context->parts[i].paths[r].ticket != NULL)
                HOTBED_TRY(hotbed_ticket_forget(context->parts[i].paths[r].ticket, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_cancel(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "cancel"));
    HOTBED_TRY(hotbed_sharded_context_catch_up(context, stream));
    HOTBED_TRY(release(context, stream));
    return hotbed_sharded_context_leave(context, stream);
}
