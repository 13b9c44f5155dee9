/* dist/sharded_context.c - exchange contexts: the keys of a batch to their owners. */
#include "dist/sharded.h"

#include "dist/comm.h"

/* --- create and destroy ------------------------------------------------------------------------------ */

/* Check the arguments without which a rank cannot take part in the comparison of collections. */
static hotbed_status check_first(
    uint32_t n, hotbed_sharded *const *collections, const hotbed_stream *stream) {
    if (n < 1 || collections == NULL || collections[0] == NULL || stream == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "a context needs a stream and a collection; %u collections or NULL were passed", n);
    HOTBED_TRY(hotbed_comm_check_stream(collections[0]->comm, stream));
    return hotbed_stream_may_wait(stream);
}

static hotbed_status check_collections(uint32_t n, hotbed_sharded *const *collections) {
    if (n > HOTBED_MEMBERS_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "a context of %u collections is over %d", n, HOTBED_MEMBERS_MOST);
    for (uint32_t i = 1; i < n; i++) {
        if (collections[i] == NULL)
            return hotbed_fail(HOTBED_ERR_ARGUMENT, "collection %u is NULL", i);
        if (collections[i]->comm != collections[0]->comm ||
            collections[i]->options.plan != collections[0]->options.plan ||
            collections[i]->options.overflow != collections[0]->options.overflow)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT,
                "collections 0 and %u differ in communicator, plan or overflow policy", i);
    }
    return HOTBED_OK;
}

static const hotbed_part_calls *part_calls_of(
    const hotbed_sharded *sharded, const hotbed_group *group) {
    if (sharded->world == 1)
        return &hotbed_alone_calls;
    if (sharded->pooling == HOTBED_POOL_NONE)
        return &hotbed_sequence_calls;
    return group->sums ? &hotbed_pooled_sums_calls : &hotbed_pooled_rows_calls;
}

static hotbed_status make_member(
    hotbed_sharded_context *context, uint32_t number, hotbed_sharded *sharded,
    hotbed_stream *stream) {
    hotbed_member *m = &context->members[number];
    const hotbed_sharded_options *o = &sharded->options;
    uint32_t features =
        o->kjt_features > sharded->num_features ? o->kjt_features : sharded->num_features;
    m->sharded = sharded;
    sharded->num_contexts++;
    m->first_part = context->num_parts;
    m->rows_most = (uint64_t)features * o->max_batch_size;
    for (uint32_t g = 0; g < sharded->num_groups; g++) {
        hotbed_part *part = &context->parts[context->num_parts++];
        part->sharded = sharded;
        part->group = &sharded->groups[g];
        part->member = number;
        part->calls = part_calls_of(sharded, part->group);
        if (part->group->capacity != 0 &&
            (part->group->capacity < o->max_keys || o->large_overflows))
            context->may_overflow = true;
    }
    hotbed_carve carve = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        carve.used = 0;
        m->starts = hotbed_carve_take(&carve, (m->rows_most + 1) * sizeof *m->starts);
        m->bad = hotbed_carve_take(&carve, sizeof *m->bad);
        m->bases = hotbed_carve_take(&carve, ((size_t)features + 1) * sizeof *m->bases);
        if (pass == 0) {
            HOTBED_TRY(
                hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, carve.used, NULL, &m->memory));
            carve.base = m->memory.data;
        }
    }
    return HOTBED_OK;
}

static hotbed_status make_context(
    hotbed_sharded_context *context, uint32_t n, hotbed_sharded *const *collections,
    hotbed_stream *stream) {
    uint32_t parts = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += collections[i]->num_groups;
    context->members = hotbed_new(n * sizeof *context->members);
    context->parts = hotbed_new(parts * sizeof *context->parts);
    if (context->members == NULL || context->parts == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a context of %u parts", parts);
    HOTBED_TRY(hotbed_event_create(stream, &context->event));
    HOTBED_TRY(hotbed_event_create(stream, &context->arrived));
    for (uint32_t i = 0; i < n; i++) {
        context->num_members++;
        HOTBED_TRY(make_member(context, i, collections[i], stream));
    }
    return hotbed_parts_create(context, stream);
}

hotbed_status hotbed_sharded_create_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_stream *stream,
    hotbed_sharded_context **out) {
    if (out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    HOTBED_TRY(check_first(n, collections, stream));
    HOTBED_TRY(
        hotbed_sharded_agree_context(n, collections, check_collections(n, collections), stream));
    hotbed_sharded_context *context = hotbed_new(sizeof *context);
    if (context == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a context");
    const hotbed_sharded *first = collections[0];
    context->comm = first->comm;
    context->rank = first->rank;
    context->world = first->world;
    /* One rank sends nothing, so it has neither sizes to wait for nor a window. */
    context->plan = first->world == 1 ? HOTBED_PLAN_FIXED : first->options.plan;
    context->calls = first->world == 1 ? &hotbed_alone_context_calls : &hotbed_ranks_calls;
    context->policy = first->options.overflow;
    context->backend = first->backend;
    context->device = first->device;
    hotbed_status status = make_context(context, n, collections, stream);
    if (status != HOTBED_OK) {
        (void)!hotbed_stream_finish(stream); /* enqueued work still uses the memory */
        hotbed_sharded_context_destroy(context);
        return status;
    }
    *out = context;
    return HOTBED_OK;
}

void hotbed_sharded_context_destroy(hotbed_sharded_context *context) {
    if (context == NULL)
        return;
    if (context->event != NULL)
        (void)!hotbed_event_sync(context->event);
    hotbed_parts_destroy(context);
    for (uint32_t i = 0; i < context->num_members; i++)
        hotbed_memory_free(&context->members[i].memory);
    for (uint32_t i = 0; i < context->num_members; i++)
        if (context->members[i].sharded != NULL)
            context->members[i].sharded->num_contexts--;
    hotbed_event_destroy(context->event);
    hotbed_event_destroy(context->arrived);
    hotbed_delete(context->parts);
    hotbed_delete(context->members);
    hotbed_delete(context);
}

/* --- stages ---------------------------------------------------------------------------------------------- */

static const char *stage_name(hotbed_stage stage) {
    static const char *const names[] = {"empty",         "input_dist", "wait_splits", "wait_input",
                                        "prefetch",      "compute",    "output_dist", "wait_output",
                                        "backward_dist", "update"};
    return names[stage];
}

hotbed_status hotbed_sharded_context_enter(
    hotbed_sharded_context *context, hotbed_stream *stream, const char *call) {
    if (context == NULL || stream == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s: %s is NULL", call, context == NULL ? "context" : "stream");
    HOTBED_TRY(hotbed_comm_check_stream(context->comm, stream));
    return hotbed_stream_wait(stream, context->event);
}

hotbed_status hotbed_sharded_context_fail_stage(const char *call, hotbed_stage stage) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: the batch's last stage was %s", call, stage_name(stage));
}

hotbed_status hotbed_sharded_context_leave(hotbed_sharded_context *context, hotbed_stream *stream) {
    return hotbed_event_record(context->event, stream);
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
    if (kjt->batch_size > o->max_batch_size || kjt->num_keys > o->max_keys)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "kjt: %u samples, %llu keys; the collection takes up to %u samples, %llu keys",
            kjt->batch_size, (unsigned long long)kjt->num_keys, o->max_batch_size,
            (unsigned long long)o->max_keys);
    if ((uint64_t)kjt->num_features * kjt->batch_size > m->rows_most)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "kjt: %u features are more than kjt_features", kjt->num_features);
    if (kjt->weights != NULL && !o->weighted && c->pooling != HOTBED_POOL_NONE)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "kjt: it has weights, but the collection is not weighted");
    for (uint32_t f = 0; f < c->num_features; f++)
        if (hotbed_part_find_feature(c, kjt, f, f) >= kjt->num_features) {
            if (c->features == NULL)
                return hotbed_fail(HOTBED_ERR_ARGUMENT, "kjt: feature %u is missing", f);
            return hotbed_fail(HOTBED_ERR_ARGUMENT, "kjt: feature %s is missing", c->features[f]);
        }
    return HOTBED_OK;
}

/* Read the caller's structs. The size of the first one is the stride of the array. */
static hotbed_status read_kjts(
    const hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_kjt *read, bool *late) {
    uint32_t stride, size;
    memcpy(&stride, kjts, sizeof stride);
    for (uint32_t i = 0; i < context->num_members; i++) {
        const void *from = (const unsigned char *)kjts + (size_t)i * stride;
        memcpy(&size, from, sizeof size);
        if (size != stride)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "kjt %u: size %u is not the first kjt's %u", i, size, stride);
        HOTBED_TRY(hotbed_kjt_read(from, &read[i]));
        if (context->world > 1)
            *late = put_off(&context->members[i], &read[i]) || *late;
        HOTBED_TRY(check_kjt(&context->members[i], &read[i]));
    }
    return HOTBED_OK;
}

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
    hotbed_stream *branch = stream;
    if (!g->counted)
        HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    HOTBED_TRY(hotbed_dedup_keys(g->lookup, d, part->dedup_scratch, stream, branch));
    if (part->sources == NULL || part->sharded->pooling != HOTBED_POOL_NONE)
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
    hotbed_status status = part->group->dedup ? dedup(part, m, stream) : HOTBED_OK;
    if (status == HOTBED_OK)
        status = hotbed_bucketize(&part->bucketize, part->scratch, part->scratch_bytes, stream);
    hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
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

const hotbed_context_calls hotbed_ranks_calls = {
    start_member,           hotbed_exchange_clear, hotbed_exchange_send,
    hotbed_exchange_gather, hotbed_ranks_read,     hotbed_ranks_backward,
};

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

hotbed_status hotbed_sharded_input_dist(
    hotbed_sharded_context *context, const hotbed_kjt *kjts, hotbed_stream *stream) {
    hotbed_kjt read[HOTBED_MEMBERS_MOST];
    if (context == NULL || kjts == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", context == NULL ? "context" : "kjts");
    bool late = false; /* a batch is over the sizes */
    HOTBED_TRY(read_kjts(context, kjts, read, &late));
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "input_dist"));
    HOTBED_TRY(release(context, stream));
    context->watched = context->settled = context->replayed = context->rewound = false;
    HOTBED_TRY(context->calls->clear(context, stream));
    if (late) /* not 0 */
        HOTBED_TRY(hotbed_fill(context->overflow, 1, sizeof *context->overflow, stream));
    for (uint32_t i = 0; i < context->num_members; i++) {
        hotbed_member *m = &context->members[i];
        m->kjt = read[i];
        m->training = m->sharded->training;
        HOTBED_TRY(context->calls->start(context, m, stream));
        m->kjt.features = NULL; /* the caller may change the names and strides now */
        m->kjt.strides = NULL;
    }
    HOTBED_TRY(context->calls->send(context, context->plan == HOTBED_PLAN_TWO_PHASE, stream));
    context->stage = HOTBED_STAGE_STARTED;
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_wait_splits(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "wait_splits"));
    if (context->stage != HOTBED_STAGE_STARTED)
        return hotbed_sharded_context_fail_stage("wait_splits", context->stage);
    if (context->plan == HOTBED_PLAN_TWO_PHASE) {
        HOTBED_TRY(hotbed_stream_may_wait(stream));
        HOTBED_TRY(hotbed_exchange_sizes(context, stream));
    }
    context->stage = HOTBED_STAGE_SENT;
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_wait_input(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "wait_input"));
    if (context->stage != HOTBED_STAGE_SENT)
        return hotbed_sharded_context_fail_stage("wait_input", context->stage);
    HOTBED_TRY(context->calls->gather(context, stream));
    if (context->may_overflow) {
        HOTBED_TRY(hotbed_copy(
            context->host_overflow, context->overflows, sizeof *context->overflows, stream));
        HOTBED_TRY(hotbed_event_record(context->arrived, stream));
        context->watched = true;
    }
    context->stage = HOTBED_STAGE_READY;
    for (uint32_t i = 0; i < context->num_members; i++)
        context->members[i].stage = HOTBED_STAGE_READY;
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
    *overflowed = context->host_overflow[0] != 0;
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

static hotbed_status check_ready(const hotbed_sharded_context *context, const void *out) {
    if (context == NULL || out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", context == NULL ? "context" : "out");
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_overflowed(hotbed_sharded_context *context, bool *out) {
    HOTBED_TRY(check_ready(context, out));
    if (context->stage != HOTBED_STAGE_READY)
        return hotbed_sharded_context_fail_stage("overflowed", context->stage);
    if (context->settled) {
        *out = context->replayed;
        return HOTBED_OK;
    }
    return look(context, out);
}

hotbed_status hotbed_sharded_ready(hotbed_sharded_context *context, bool *out) {
    HOTBED_TRY(check_ready(context, out));
    *out = context->stage == HOTBED_STAGE_READY;
    if (!*out || !context->watched || context->settled)
        return HOTBED_OK;
    return hotbed_event_query(context->arrived, out);
}

/* --- marks ------------------------------------------------------------------------------------------------ */

typedef hotbed_status (*ticket_call)(hotbed_ticket *ticket, hotbed_stream *stream);

/* Call a function for all tickets that hold rows in the marked stage. */
static hotbed_status for_held(
    hotbed_sharded_context *context, const hotbed_sharded_mark *mark, ticket_call call,
    hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        hotbed_stage stage = mark->members[part->member];
        if (context->members[part->member].training && stage >= HOTBED_STAGE_PREFETCHED &&
            stage < HOTBED_STAGE_DONE)
            HOTBED_TRY(call(part->path->ticket, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_keep(
    hotbed_sharded_context *context, hotbed_sharded_mark *mark, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "keep"));
    if (context->stage == HOTBED_STAGE_EMPTY)
        return hotbed_sharded_context_fail_stage("keep", context->stage);
    memset(mark, 0, sizeof *mark);
    mark->stage = context->stage;
    mark->watched = context->watched;
    mark->settled = context->settled;
    mark->replayed = context->replayed;
    for (uint32_t i = 0; i < context->num_members; i++)
        mark->members[i] = context->members[i].stage;
    HOTBED_TRY(for_held(context, mark, hotbed_ticket_keep, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_rewind(
    hotbed_sharded_context *context, const hotbed_sharded_mark *mark, hotbed_stream *stream) {
    bool exact = mark->replayed || context->plan == HOTBED_PLAN_TWO_PHASE;
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "rewind"));
    HOTBED_TRY(release(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++)
        context->parts[i].path = &context->parts[i].paths[exact ? 1 : 0];
    HOTBED_TRY(for_held(context, mark, hotbed_ticket_retake, stream));
    context->stage = mark->stage;
    context->watched = mark->watched;
    context->settled = mark->settled;
    context->replayed = mark->replayed;
    context->rewound = true;
    for (uint32_t i = 0; i < context->num_members; i++)
        context->members[i].stage = mark->members[i];
    /* The sizes will be written again. The next wait for `arrived` must cover the exchanges that
     * still read them. */
    if (context->plan == HOTBED_PLAN_TWO_PHASE && mark->stage == HOTBED_STAGE_STARTED)
        HOTBED_TRY(hotbed_event_record(context->arrived, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_forget(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "forget"));
    for (uint32_t i = 0; i < context->num_parts; i++)
        for (int r = 0; r < 2; r++)
            if (context->parts[i].paths[r].ticket != NULL)
                HOTBED_TRY(hotbed_ticket_forget(context->parts[i].paths[r].ticket, stream));
    return hotbed_sharded_context_leave(context, stream);
}

hotbed_status hotbed_sharded_cancel(hotbed_sharded_context *context, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_sharded_context_enter(context, stream, "cancel"));
    HOTBED_TRY(release(context, stream));
    return hotbed_sharded_context_leave(context, stream);
}
