/* dist/sharded_part.c - the parts of a context: their memory, and their exchanges by each plan. */
#include "dist/comm.h"
#include "dist/sharded.h"

#include <string.h>

#define KEYS_MOST ((uint64_t)1 << 30)

uint64_t hotbed_part_row_bytes(const hotbed_sharded *sharded) {
    if (sharded->pooling != HOTBED_POOL_NONE)
        return 0;
    return hotbed_round16(sharded->dim * hotbed_dtype_bytes(sharded->output_dtype));
}

static hotbed_message_shape shape_of(const hotbed_part *part) {
    hotbed_message_shape shape = {
        part->group->message_features * part->group->message_batch,
        part->sharded->options.weighted ? 1 : 0, part->group->counted ? 1 : 0};
    return shape;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* --- memory of a part ------------------------------------------------------------------------------- */

static size_t scratch_of(
    const hotbed_sharded_context *context, const hotbed_part *part, const hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    uint64_t keys = part->sharded->options.max_keys;
    uint64_t rows = (uint64_t)g->num_features * part->sharded->options.max_batch_size;
    uint64_t batch_rows = context->members[part->member].rows_most;
    size_t bytes = hotbed_kjt_scratch(stream, rows > batch_rows ? rows : batch_rows);
    bytes = larger(
        bytes, hotbed_dist_scratch(stream, keys, (uint64_t)g->message_features * context->world));
    if (g->dedup)
        bytes = larger(bytes, hotbed_dedup_scratch(g->lookup, keys, part->sharded->dim));
    return bytes;
}

/* Lay out the part's arrays; called twice, first to count their bytes. */
static size_t carve_part(const hotbed_sharded_context *context, hotbed_part *part, uint8_t *base) {
    const hotbed_group *g = part->group;
    const hotbed_sharded_options *o = &part->sharded->options;
    hotbed_carve carve = {base, 0};
    size_t n = o->max_keys, words = n * sizeof(uint32_t), tables = g->num_tables;
    size_t rows = (size_t)g->num_features * o->max_batch_size;
    hotbed_pick_view *p = &part->pick;
    hotbed_bucketize_view *b = &part->bucketize;
    hotbed_step_view *d = &part->dedup;
    p->features = hotbed_carve_take(&carve, g->num_features * sizeof(uint32_t));
    p->starts = hotbed_carve_take(&carve, (rows + 1) * sizeof(uint32_t));
    p->keys = hotbed_carve_take(&carve, n * sizeof(uint64_t));
    p->sources = hotbed_carve_take(&carve, words);
    p->weights = o->weighted ? hotbed_carve_take(&carve, n * sizeof(float)) : NULL;
    b->targets = hotbed_carve_take(&carve, words);
    b->numbers = hotbed_carve_take(&carve, words);
    b->sorted_targets = hotbed_carve_take(&carve, words);
    b->sorted = hotbed_carve_take(&carve, words);
    b->places = hotbed_carve_take(&carve, words);
    b->ranks = hotbed_carve_take(&carve, ((size_t)context->world + 1) * sizeof(uint32_t));
    if (g->dedup) {
        d->batch.table_starts = hotbed_carve_take(&carve, (tables + 1) * sizeof(uint32_t));
        d->unique.offsets = hotbed_carve_take(&carve, (tables + 1) * sizeof(uint32_t));
        d->storage.tallies = hotbed_carve_take(&carve, tables * sizeof *d->storage.tallies);
        d->unique.keys = hotbed_carve_take(&carve, n * sizeof(uint64_t));
        d->unique.inverse = hotbed_carve_take(&carve, words);
        d->unique.starts = hotbed_carve_take(&carve, words + sizeof(uint32_t));
        d->unique.positions = hotbed_carve_take(&carve, words);
        d->unique.counts = hotbed_carve_take(&carve, n * sizeof(uint64_t));
        part->sum_rows = hotbed_carve_take(&carve, n * sizeof(uint8_t *));
    }
    if (part->row_bytes == 0) {
        size_t sums = g->columns * o->max_batch_size * sizeof(float);
        part->pooled = hotbed_carve_take(&carve, sums);
        part->all_pooled = hotbed_carve_take(&carve, sums * context->world);
    }
    part->scratch = hotbed_carve_take(&carve, part->scratch_bytes);
    return carve.used;
}

/* Set the fields of the part's views that do not change between batches. */
static void make_views(const hotbed_sharded_context *context, hotbed_part *part) {
    const hotbed_group *g = part->group;
    const hotbed_sharded_options *o = &part->sharded->options;
    hotbed_step_view *d = &part->dedup;
    part->num_keys = g->dedup ? d->batch.table_starts + g->num_tables
                              : part->pick.starts + (size_t)g->num_features * o->max_batch_size;
    part->num_sent = g->dedup ? d->unique.offsets + g->num_tables : part->num_keys;
    part->pick.num_features = g->num_features;
    part->pick.batch_size = o->max_batch_size;
    part->bucketize = (hotbed_bucketize_view){
        .keys = g->dedup ? d->unique.keys : part->pick.keys,
        .weights = part->pick.weights,
        .key_counts = d->unique.counts,
        .starts = g->dedup ? d->unique.offsets : part->pick.starts,
        .routes = g->routes,
        .batch_size = g->message_batch,
        .world = context->world,
        .targets = part->bucketize.targets,
        .numbers = part->bucketize.numbers,
        .sorted_targets = part->bucketize.sorted_targets,
        .sorted = part->bucketize.sorted,
        .places = part->bucketize.places,
        .ranks = part->bucketize.ranks,
        .counts = context->counts + (size_t)(part - context->parts) * context->world,
        .overflow = context->overflow,
        .shape = shape_of(part),
    };
    hotbed_dedup_init(g->lookup, d);
}

static hotbed_status make_part(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_stream *stream) {
    part->scratch_bytes = scratch_of(context, part, stream);
    size_t bytes = carve_part(context, part, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &part->memory));
    (void)carve_part(context, part, part->memory.data);
    if (part->group->dedup) /* written, never read */
        HOTBED_TRY(hotbed_fill(
            part->dedup.storage.tallies, 0,
            part->group->num_tables * sizeof *part->dedup.storage.tallies, stream));
    make_views(context, part);
    return HOTBED_OK;
}

/* --- paths ------------------------------------------------------------------------------------------- */

/* The most bytes that all exact messages of `keys` keys take: each part may be rounded up by 15. */
static uint64_t exact_bytes(
    const hotbed_sharded_context *context, const hotbed_part *part, uint64_t keys) {
    hotbed_message_shape shape = shape_of(part);
    uint64_t a_key = sizeof(uint64_t) + (shape.weighted != 0 ? sizeof(float) : 0) +
                     (shape.counted != 0 ? sizeof(uint32_t) : 0);
    return context->world * (hotbed_message_bytes(shape, 0) + 32) + keys * a_key;
}

/* Lay out the path's arrays; called twice, first to count their bytes. */
static size_t carve_path(
    const hotbed_sharded_context *context, hotbed_part *part, hotbed_path *path, uint8_t *base) {
    const hotbed_group *g = part->group;
    hotbed_carve carve = {base, 0};
    hotbed_gather_view *v = &path->gather;
    size_t pointers = context->world * sizeof(uint8_t *), bound = path->bound;
    size_t segments = (size_t)g->message_features * context->world;
    uint64_t sent = path->capacity == 0 ? part->sharded->options.max_keys : bound;
    bool by_sample = part->row_bytes == 0;
    path->to.at = hotbed_carve_take(&carve, pointers);
    path->from.at = hotbed_carve_take(&carve, pointers);
    path->owner_in.at = hotbed_carve_take(&carve, pointers);
    path->requester_in.at = hotbed_carve_take(&carve, pointers);
    path->arrived = hotbed_carve_take(&carve, context->world * sizeof(uint32_t));
    v->segments = hotbed_carve_take(&carve, (segments + 1) * sizeof(uint32_t));
    v->firsts = hotbed_carve_take(&carve, segments * sizeof(uint32_t));
    v->keys = hotbed_carve_take(&carve, bound * sizeof(uint64_t));
    v->weights =
        part->pick.weights == NULL ? NULL : hotbed_carve_take(&carve, bound * sizeof(float));
    v->counts = g->counted ? hotbed_carve_take(&carve, bound * sizeof(uint32_t)) : NULL;
    v->offsets = hotbed_carve_take(
        &carve,
        ((by_sample ? segments * g->message_batch : g->message_features) + 1) * sizeof(int64_t));
    if (part->row_bytes != 0 && !hotbed_path_in_window(context, path)) {
        path->owner_rows = hotbed_carve_take(&carve, bound * part->row_bytes);
        path->requester_rows = hotbed_carve_take(&carve, sent * part->row_bytes);
    }
    if (path->capacity == 0) {
        path->send = hotbed_carve_take(&carve, exact_bytes(context, part, sent));
        path->receive = hotbed_carve_take(&carve, exact_bytes(context, part, bound));
    }
    return carve.used;
}

/* Set where fixed messages and rows are; exact ones are set for each batch. */
static void point_path(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_path *path, uint8_t **to,
    uint8_t **from, uint8_t **owner, uint8_t **asker) {
    uint64_t rows = path->capacity * part->row_bytes, messages = context->message_bytes;
    uint8_t *window = context->window == NULL ? NULL : hotbed_window_data(context->window);
    for (uint32_t p = 0; p < context->world; p++) {
        to[p] = context->send + p * messages;
        from[p] = (window == NULL ? context->receive : window) + p * messages;
        owner[p] = path->owner_rows + p * rows;
        asker[p] = (window == NULL ? path->requester_rows : window + part->window_asker) + p * rows;
    }
    path->to.offset = path->from.offset = part->message_at;
    if (window == NULL) { /* what a rank sends itself stays where it is written */
        from[context->rank] = to[context->rank];
        asker[context->rank] = owner[context->rank];
        return;
    }
    /* Set this rank's buffers in the others' windows; the window's pointers do not change. */
    uint8_t **parts = (uint8_t **)(uintptr_t)hotbed_window_parts(context->window);
    path->to = (hotbed_ends){parts, context->rank * messages + part->message_at};
    path->owner_out = (hotbed_ends){parts, part->window_asker + context->rank * rows};
    path->requester_out = (hotbed_ends){parts, part->window_owner + context->rank * rows};
}

static hotbed_status upload_pointers(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_path *path,
    hotbed_stream *stream) {
    size_t bytes = context->world * sizeof(uint8_t *), n = context->world;
    hotbed_memory staging;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 4 * bytes, NULL, &staging));
    uint8_t **host = staging.data;
    if (context->window != NULL)
        path->owner_rows = (uint8_t *)hotbed_window_data(context->window) + part->window_owner;
    uint8_t **const device[4] = {
        path->to.at, path->from.at, path->owner_in.at, path->requester_in.at};
    point_path(context, part, path, host, host + n, host + 2 * n, host + 3 * n);
    hotbed_status status = HOTBED_OK;
    for (size_t i = 0; i < 4 && status == HOTBED_OK; i++)
        status = hotbed_copy(device[i], host + i * n, bytes, stream);
    hotbed_status finished = hotbed_stream_finish(stream);
    hotbed_memory_free(&staging);
    return status != HOTBED_OK ? status : finished;
}

/* In the matrix: keys from each rank, parts * world words apart. */
static const uint32_t *received_counts(
    const hotbed_sharded_context *context, const hotbed_part *part) {
    return context->matrix + (size_t)(part - context->parts) * context->world + context->rank;
}

static hotbed_status make_path(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_path *path, uint64_t capacity,
    hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    uint64_t keys = part->sharded->options.max_keys;
    uint64_t bound = context->world * (capacity != 0 ? capacity : keys);
    bool by_sample = part->row_bytes == 0;
    if (capacity != 0 && bound > KEYS_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%u ranks with messages of %llu keys are over 2^30 keys",
            context->world, (unsigned long long)capacity);
    path->capacity = capacity;
    path->bound = path->num_keys = bound < KEYS_MOST ? bound : KEYS_MOST;
    size_t bytes = carve_path(context, part, path, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &path->memory));
    HOTBED_TRY(hotbed_fill(path->memory.data, 0, bytes, stream)); /* the context's stream */
    (void)carve_path(context, part, path, path->memory.data);
    path->owner_out = path->owner_in;
    path->requester_out = path->requester_in;
    if (capacity == 0) {
        path->sizes = hotbed_new(4 * (size_t)context->world * sizeof *path->sizes);
        if (path->sizes == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the sizes of an exchange");
    } else {
        HOTBED_TRY(upload_pointers(context, part, path, stream));
    }
    path->gather = (hotbed_gather_view){
        .from = path->from.at,
        .from_offset = path->from.offset,
        .capacity = capacity,
        .capacities = received_counts(context, part),
        .capacity_stride = (uint64_t)context->num_parts * context->world,
        .shape = shape_of(part),
        .num_features = g->message_features,
        .batch_size = g->message_batch,
        .world = context->world,
        .segments = path->gather.segments,
        .firsts = path->gather.firsts,
        .overflow = context->overflows + (part - context->parts),
        .keys = path->gather.keys,
        .weights = path->gather.weights,
        .counts = path->gather.counts,
        .offsets = path->gather.offsets,
        .by_sample = by_sample ? 1 : 0,
        .bound = path->bound,
    };
    return hotbed_ticket_create(
        g->lookup, path->bound,
        by_sample ? context->world * part->sharded->options.max_batch_size : 1, stream,
        &path->ticket);
}

hotbed_status hotbed_part_create(
    hotbed_sharded_context *context, hotbed_part *part, hotbed_stream *stream) {
    bool fixed = context->plan != HOTBED_PLAN_TWO_PHASE;
    HOTBED_TRY(make_part(context, part, stream));
    return make_path(context, part, part->path, fixed ? part->group->capacity : 0, stream);
}

static void free_path(hotbed_path *path) {
    hotbed_ticket_destroy(path->ticket);
    hotbed_memory_free(&path->memory);
    hotbed_delete(path->sizes);
}

/* --- all parts --------------------------------------------------------------------------------------- */

/* Lay out the context's arrays; called twice, first to count their bytes. */
static size_t carve_context(hotbed_sharded_context *context, uint8_t *base) {
    hotbed_carve carve = {base, 0};
    size_t row = (size_t)context->num_parts * context->world * sizeof(uint32_t);
    size_t messages = context->world * context->message_bytes;
    context->counts = hotbed_carve_take(&carve, row);
    context->matrix = hotbed_carve_take(&carve, row * context->world);
    context->overflow = hotbed_carve_take(&carve, (1 + context->num_parts) * sizeof(uint32_t));
    context->overflows = context->overflow + 1;
    context->repeated = hotbed_carve_take(&carve, sizeof *context->repeated);
    context->send = context->receive = NULL;
    if (context->plan == HOTBED_PLAN_FIXED) {
        context->send = hotbed_carve_take(&carve, messages);
        context->receive = hotbed_carve_take(&carve, messages);
    }
    return carve.used;
}

static hotbed_status make_window(hotbed_sharded_context *context, hotbed_stream *stream) {
    uint64_t at = context->world * context->message_bytes;
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        uint64_t rows = context->world * part->group->capacity * part->row_bytes;
        part->window_asker = at;
        part->window_owner = at + rows;
        at += 2 * rows;
    }
    return hotbed_window_create(context->comm, at, stream, &context->window);
}

hotbed_status hotbed_parts_create(hotbed_sharded_context *context, hotbed_stream *stream) {
    bool fixed = context->plan != HOTBED_PLAN_TWO_PHASE;
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        part->row_bytes = hotbed_part_row_bytes(part->sharded);
        part->message_at = context->message_bytes;
        if (part->group->capacity != 0)
            context->message_bytes +=
                hotbed_whole_lines(hotbed_message_bytes(shape_of(part), part->group->capacity));
    }
    size_t bytes = carve_context(context, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &context->memory));
    /* Unused capacity of messages and rows travels too: clear it, so that no old contents are
     * sent. */
    HOTBED_TRY(hotbed_fill(context->memory.data, 0, bytes, stream));
    (void)carve_context(context, context->memory.data);
    size_t matrix = (size_t)context->num_parts * context->world * context->world;
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, sizeof(uint64_t) + (matrix + 1) * sizeof(uint32_t), NULL,
        &context->pinned));
    context->host_repeated = context->pinned.data;
    *context->host_repeated = 0;
    context->host_matrix = (uint32_t *)(context->host_repeated + 1);
    context->host_overflow = context->host_matrix + matrix;
    if (context->plan == HOTBED_PLAN_ONE_SIDED)
        HOTBED_TRY(make_window(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        part->path = &part->paths[fixed ? 0 : 1];
        part->mapped = hotbed_new(part->group->num_features * sizeof *part->mapped);
        if (part->mapped == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a part of a context");
        for (uint32_t f = 0; f < part->group->num_features; f++)
            part->mapped[f] = UINT32_MAX;
        HOTBED_TRY(part->calls->create(context, part, stream));
    }
    return hotbed_stream_finish(stream);
}

void hotbed_parts_destroy(hotbed_sharded_context *context) {
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        free_path(&part->paths[0]);
        free_path(&part->paths[1]);
        hotbed_memory_free(&part->memory);
        hotbed_delete(part->mapped);
    }
    hotbed_window_destroy(context->window);
    hotbed_memory_free(&context->memory);
    hotbed_memory_free(&context->pinned);
}

hotbed_status hotbed_parts_make_exact(hotbed_sharded_context *context, hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_path *path = &context->parts[i].paths[1];
        if (path->ticket == NULL) {
            free_path(path);
            memset(path, 0, sizeof *path);
            HOTBED_TRY(make_path(context, &context->parts[i], path, 0, stream));
        }
    }
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_clear(hotbed_sharded_context *context, hotbed_stream *stream) {
    return hotbed_fill(context->overflow, 0, (1 + context->num_parts) * sizeof(uint32_t), stream);
}

/* --- the exchange of keys ------------------------------------------------------------------------------- */

static hotbed_status place_all(hotbed_sharded_context *context, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        hotbed_path *path = part->path;
        hotbed_bucketize_view *b = &part->bucketize;
        b->to = path->to.at;
        b->to_offset = path->to.offset;
        b->capacity = path->capacity;
        if (path->capacity == 0) {
            hotbed_aim_view aim = {
                .base = path->send,
                .counts = b->counts,
                .stride = 1,
                .to = path->to.at,
                .shape = b->shape,
                .world = context->world,
            };
            HOTBED_TRY(kernels->aim(&aim, stream));
        }
        HOTBED_TRY(kernels->place(b, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_send(
    hotbed_sharded_context *context, bool exact, hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++)
        context->parts[i].path = &context->parts[i].paths[exact ? 1 : 0];
    if (exact) {
        size_t row = (size_t)context->num_parts * context->world * sizeof(uint32_t);
        HOTBED_TRY(
            hotbed_comm_all_gather(context->comm, row, context->counts, context->matrix, stream));
        HOTBED_TRY(
            hotbed_copy(context->host_matrix, context->matrix, row * context->world, stream));
        HOTBED_TRY(hotbed_event_record(context->arrived, stream));
        return place_all(context, stream);
    }
    if (context->window == NULL) {
        HOTBED_TRY(place_all(context, stream));
        return hotbed_comm_all_to_others(
            context->comm, context->message_bytes, context->send, context->receive, stream);
    }
    /* The first barrier: no rank uses the window's earlier contents any more. */
    HOTBED_TRY(hotbed_window_barrier(context->window, stream));
    HOTBED_TRY(place_all(context, stream));
    return hotbed_window_barrier(context->window, stream);
}

/* Compute the sizes of a part's messages and rows from the counts of all ranks. */
static hotbed_status read_sizes(hotbed_sharded_context *context, uint32_t number) {
    hotbed_part *part = &context->parts[number];
    hotbed_path *path = part->path;
    hotbed_message_shape shape = shape_of(part);
    size_t world = context->world, row = (size_t)context->num_parts * world;
    uint64_t keys = 0;
    for (size_t p = 0; p < world; p++) {
        uint64_t out = context->host_matrix[context->rank * row + number * world + p];
        uint64_t in = context->host_matrix[p * row + number * world + context->rank];
        path->sizes[p] = hotbed_message_bytes(shape, out);
        path->sizes[world + p] = hotbed_message_bytes(shape, in);
        path->sizes[2 * world + p] = out * part->row_bytes;
        path->sizes[3 * world + p] = in * part->row_bytes;
        keys += in;
    }
    if (keys > path->bound)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "rank %u receives %llu keys, over %llu", context->rank,
            (unsigned long long)keys, (unsigned long long)path->bound);
    path->num_keys = keys;
    return HOTBED_OK;
}

/* Compute where received messages begin, and where rows begin at the owner and at the requester. The
 * rank's message to itself stays in `send`, where it is written, and its rows and gradients in
 * `owner_rows`. */
static hotbed_status aim_received(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    hotbed_part *part = &context->parts[number];
    hotbed_path *path = part->path;
    hotbed_aim_view aim = {
        .base = path->receive,
        .counts = path->gather.capacities,
        .stride = path->gather.capacity_stride,
        .to = path->from.at,
        .own = path->to.at,
        .rank = context->rank,
        .shape = shape_of(part),
        .world = context->world,
    };
    HOTBED_TRY(kernels->aim(&aim, stream));
    if (part->row_bytes == 0)
        return HOTBED_OK;
    aim.base = path->owner_rows;
    aim.to = path->owner_in.at;
    aim.own = NULL;
    aim.row_bytes = part->row_bytes;
    HOTBED_TRY(kernels->aim(&aim, stream));
    aim.base = path->requester_rows;
    aim.to = path->requester_in.at;
    aim.own = path->owner_in.at;
    aim.counts = part->bucketize.counts;
    aim.stride = 1;
    return kernels->aim(&aim, stream);
}

hotbed_status hotbed_exchange_sizes(hotbed_sharded_context *context, hotbed_stream *stream) {
    hotbed_exchange exchanges[HOTBED_EXCHANGES_MAX];
    uint32_t n = 0;
    HOTBED_TRY(hotbed_event_sync(context->arrived));
    /* The sizes are valid only if their exchange did not fail. */
    HOTBED_TRY(hotbed_comm_check_call("wait_splits", context->comm, stream));
    for (uint32_t i = 0; i < context->num_parts; i++)
        HOTBED_TRY(read_sizes(context, i));
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        const hotbed_path *path = part->path;
        exchanges[n++] = (hotbed_exchange){
            .send = path->send,
            .send_bytes = path->sizes,
            .recv = path->receive,
            .recv_bytes = path->sizes + context->world,
            .bound = exact_bytes(context, part, part->sharded->options.max_keys),
        };
        if (n == HOTBED_EXCHANGES_MAX || i + 1 == context->num_parts) {
            HOTBED_TRY(hotbed_comm_exchange_others(context->comm, n, exchanges, stream));
            n = 0;
        }
    }
    for (uint32_t i = 0; i < context->num_parts; i++)
        HOTBED_TRY(aim_received(context, i, stream));
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_gather(hotbed_sharded_context *context, hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        hotbed_gather_view *g = &part->path->gather;
        const bool counted = g->capacity != 0 || context->plan == HOTBED_PLAN_TWO_PHASE;
        g->bound = part->path->num_keys;
        g->arrived = part->path->arrived;
        g->wire = hotbed_wire_keys(context, part);
        /* A batch is counted with the first part of its collection, and not again when it is replayed. */
        g->repeated =
            counted && i == context->members[part->member].first_part ? context->repeated : NULL;
        g->host_repeated = context->host_repeated;
        HOTBED_TRY(hotbed_gather(g, part->scratch, part->scratch_bytes, stream));
        hotbed_batch_init(&part->batch);
        part->batch.batch_size =
            part->row_bytes != 0 ? 1 : context->world * part->sharded->options.max_batch_size;
        part->batch.num_keys = part->path->num_keys;
        part->batch.keys = g->keys;
        part->batch.offsets = g->offsets;
        part->batch.weights = g->weights;
        part->batch.counts = g->counts;
    }
    return HOTBED_OK;
}

/* --- features of a batch ---------------------------------------------------------------------------------- */

uint32_t hotbed_part_find_feature(
    const hotbed_sharded *c, const hotbed_kjt *kjt, uint32_t feature, uint32_t guess) {
    if (c->features == NULL || kjt->features == NULL)
        return feature;
    if (guess < kjt->num_features && strcmp(kjt->features[guess], c->features[feature]) == 0)
        return guess;
    return hotbed_kjt_find(kjt, c->features[feature]);
}

void hotbed_part_map_features(hotbed_part *part, const hotbed_kjt *kjt) {
    const hotbed_group *g = part->group;
    for (uint32_t f = 0; f < g->num_features; f++) {
        uint32_t feature = part->sharded->order[g->first_feature + f];
        uint32_t found = hotbed_part_find_feature(part->sharded, kjt, feature, part->mapped[f]);
        if (found != part->mapped[f])
            part->features_current = false;
        part->mapped[f] = found;
    }
}

hotbed_status hotbed_part_put_features(hotbed_part *part, hotbed_stream *stream) {
    bool recording = hotbed_stream_recording(stream);
    if (part->features_current && !recording && !part->features_recorded)
        return HOTBED_OK;
    part->features_current = false;
    part->features_recorded = part->features_recorded || recording;
    HOTBED_TRY(hotbed_kjt_put(
        (uint32_t *)(uintptr_t)part->pick.features, part->mapped, part->group->num_features,
        stream));
    part->features_current = !recording;
    return HOTBED_OK;
}

/* --- the exchange of rows --------------------------------------------------------------------------------- */

hotbed_pool_view hotbed_part_pool(
    const hotbed_sharded_context *context, const hotbed_part *part, const uint32_t *starts,
    uint32_t batch_size) {
    const hotbed_sharded *c = part->sharded;
    hotbed_pool_view view = {
        .starts = starts,
        .columns = part->group->columns32,
        .output_columns = part->group->output_columns,
        .num_features = part->group->num_features,
        .batch_size = batch_size,
        .samples = context->members[part->member].kjt.batch_size,
        .mean = c->pooling == HOTBED_POOL_MEAN ? 1 : 0,
        .dtype = (uint32_t)c->output_dtype,
        .max_gradient = c->optimizer_view.max_gradient,
        .scale = c->options.gradient_scale,
    };
    return view;
}

hotbed_deliver_view hotbed_part_deliver(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_ends ends) {
    const hotbed_path *path = part->path;
    const hotbed_sharded *c = part->sharded;
    uint64_t keys = context->members[part->member].kjt.num_keys;
    hotbed_deliver_view view = {
        .segments = path->gather.segments,
        .firsts = path->gather.firsts,
        .num_segments = hotbed_gather_segments(&path->gather),
        .ranks = part->bucketize.ranks,
        .places = part->bucketize.places,
        .sources = part->sources,
        .inverse = part->dedup.unique.inverse,
        .num_keys = part->num_keys,
        .num_sent = part->num_sent,
        .overflow = path->gather.overflow,
        .key_bound = keys,
        .sent_bound = keys,
        .received_bound = path->num_keys,
        .world = context->world,
        .rank = context->rank,
        .rows = ends.at,
        .rows_offset = ends.offset,
        .row_bytes = part->row_bytes,
        .dim = c->dim,
        .dtype = (uint32_t)c->output_dtype,
        .max_gradient = c->optimizer_view.max_gradient,
        .scale = c->options.gradient_scale,
    };
    return view;
}

hotbed_status hotbed_exchange_rows(
    hotbed_sharded_context *context, hotbed_part *part, bool gradients, hotbed_stream *stream) {
    hotbed_path *path = part->path;
    uint8_t *send = gradients ? path->requester_rows : path->owner_rows;
    uint8_t *receive = gradients ? path->owner_rows : path->requester_rows;
    if (hotbed_path_in_window(context, path)) /* rows: see hotbed_sharded_compute() */
        return gradients ? hotbed_window_barrier(context->window, stream) : HOTBED_OK;
    if (path->capacity != 0)
        return hotbed_comm_all_to_others(
            context->comm, path->capacity * part->row_bytes, send, receive, stream);
    size_t world = context->world;
    uint64_t keys = gradients ? part->sharded->options.max_keys : path->bound;
    hotbed_exchange exchange = {
        .send = send,
        .send_bytes = path->sizes + (gradients ? 2 : 3) * world,
        .recv = receive,
        .recv_bytes = path->sizes + (gradients ? 3 : 2) * world,
        .bound = keys * part->row_bytes,
    };
    return hotbed_comm_exchange_others(context->comm, 1, &exchange, stream);
}
