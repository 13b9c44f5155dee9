/* dist/sharded_part.c - the parts of a context: their memory, and their exchanges by each plan. */
#include "base/sort.h"
#include "dist/comm/comm.h"
#include "dist/sharded.h"

#include <string.h>

#define KEYS_MOST ((uint64_t)1 << 30)

_Static_assert(HOTBED_COMM_RANKS_MAX <= HOTBED_BUCKETIZE_RANKS, "keys can go to all ranks");

static hotbed_message_shape shape_of(const hotbed_part *part) {
    hotbed_message_shape shape = {
        part->group->message_features * part->group->message_batch,
        part->group->sums && part->sharded->options.weighted ? 1 : 0, part->group->counted ? 1 : 0};
    return shape;
}

/* Rows of a message, each of which is a bag, of a part by sums. */
static uint64_t bags_of(const hotbed_part *part) {
    return (uint64_t)part->group->message_features * part->group->message_batch;
}

/* Of all ranks' messages. */
static uint64_t all_bags_of(const hotbed_part *part) {
    return bags_of(part) * part->context->world;
}

/* In the counts of a rank: keys for each rank, or bags. */
static uint64_t counts_at(const hotbed_part *part, bool bags) {
    const hotbed_sharded_context *context = part->context;
    return (2 * (uint64_t)(part - context->parts) + (bags ? 1 : 0)) * context->world;
}

static uint64_t counts_each(const hotbed_sharded_context *context) {
    return 2 * (uint64_t)context->num_parts * context->world;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* --- memory of a part ------------------------------------------------------------------------------- */

static size_t scratch_of(const hotbed_part *part, const hotbed_stream *stream) {
    const hotbed_group *g = part->group;
    uint64_t keys = part->sharded->options.max_keys;
    uint64_t rows = (uint64_t)g->num_features * part->sharded->options.max_batch_size;
    uint64_t batch_rows = part->member->rows_most;
    size_t bytes = hotbed_kjt_scratch(stream, rows > batch_rows ? rows : batch_rows);
    bytes = larger(bytes, hotbed_dist_scratch(stream, part->context->world, keys));
    if (g->sums)
        bytes = larger(
            bytes, hotbed_scan_scratch(hotbed_stream_backend(stream), all_bags_of(part) + 1));
    return bytes;
}

/* Lay out the part's arrays; called twice, first to count their bytes. */
static size_t carve_part(hotbed_part *part, uint8_t *base) {
    const hotbed_group *g = part->group;
    const hotbed_sharded_options *o = &part->sharded->options;
    hotbed_carve carve = {base, 0};
    const uint32_t world = part->context->world;
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
    b->tile_starts = hotbed_carve_take(&carve, hotbed_bucketize_words(world, n) * sizeof(uint32_t));
    b->sorted = hotbed_carve_take(&carve, words);
    b->places = hotbed_carve_take(&carve, words);
    b->ranks = hotbed_carve_take(&carve, ((size_t)world + 1) * sizeof(uint32_t));
    if (g->dedup) {
        d->batch.table_starts = hotbed_carve_take(&carve, (tables + 1) * sizeof(uint32_t));
        d->unique.offsets = hotbed_carve_take(&carve, (tables + 1) * sizeof(uint32_t));
        d->storage.tallies = hotbed_carve_take(&carve, tables * sizeof *d->storage.tallies);
        d->unique.keys = hotbed_carve_take(&carve, n * sizeof(uint64_t));
        d->unique.inverse = hotbed_carve_take(&carve, words);
        d->unique.starts = hotbed_carve_take(&carve, words + sizeof(uint32_t));
        d->unique.positions = hotbed_carve_take(&carve, words);
        d->unique.counts = hotbed_carve_take(&carve, n * sizeof(uint64_t));
        part->addresses = hotbed_carve_take(&carve, n * sizeof(uint8_t *));
        part->dedup_scratch =
            hotbed_carve_take(&carve, hotbed_dedup_scratch(g->lookup, n, g->max_dim));
    }
    if (g->dedup && part->sharded->pooling != HOTBED_POOL_NONE) {
        d->batch.feature_starts =
            hotbed_carve_take(&carve, ((size_t)g->num_features + 1) * sizeof(uint32_t));
        part->offsets = hotbed_carve_take(&carve, (rows + 1) * sizeof(int64_t));
        part->bags = hotbed_carve_take(&carve, words);
        part->rows.tables = hotbed_carve_take(&carve, tables * sizeof *part->rows.tables);
    }
    if (hotbed_packed_type((uint32_t)g->gradient_dtype) != 0)
        part->step = hotbed_carve_take(&carve, sizeof *part->step);
    if (g->sums) {
        const size_t bags = all_bags_of(part);
        part->addresses = hotbed_carve_take(&carve, bags * sizeof(uint8_t *));
        b->row_starts = hotbed_carve_take(&carve, (bags + world) * sizeof(uint32_t));
    }
    part->scratch = hotbed_carve_take(&carve, part->scratch_bytes);
    return carve.used;
}

/* Set the fields of the part's views that do not change between batches. */
static void make_views(hotbed_part *part) {
    const hotbed_sharded_context *context = part->context;
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
        .tile_starts = part->bucketize.tile_starts,
        .sorted = part->bucketize.sorted,
        .places = part->bucketize.places,
        .ranks = part->bucketize.ranks,
        .row_starts = part->bucketize.row_starts,
        .counts = context->counts + counts_at(part, false),
        .overflow = context->overflow,
        .shape = shape_of(part),
    };
    hotbed_dedup_init(g->lookup, d);
    const hotbed_dedup_features features = {
        .pooling = part->sharded->pooling,
        .output_dtype = part->sharded->output_dtype,
        .num_features = g->num_features,
        .tables = g->feature_tables,
        .columns = g->columns64,
        .aligned = g->aligned,
    };
    if (g->dedup && features.pooling != HOTBED_POOL_NONE)
        hotbed_dedup_pooled(&features, d);
}

static hotbed_status make_part(hotbed_part *part, hotbed_stream *stream) {
    part->scratch_bytes = scratch_of(part, stream);
    size_t bytes = carve_part(part, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &part->memory));
    (void)carve_part(part, part->memory.data);
    if (part->group->dedup) /* written, never read */
        HOTBED_TRY(hotbed_fill(
            part->dedup.storage.tallies, 0,
            part->group->num_tables * sizeof *part->dedup.storage.tallies, stream));
    make_views(part);
    if (part->rows.tables != NULL)
        HOTBED_TRY(hotbed_dedup_rows_make(
            part->group->lookup, part->group->row_dtype, part->group->aligned, &part->rows,
            stream));
    return HOTBED_OK;
}

/* --- paths ------------------------------------------------------------------------------------------- */

/* The most bytes that all exact messages of `keys` keys take: each part may be rounded up by 15. */
static uint64_t exact_bytes(const hotbed_part *part, uint64_t keys) {
    hotbed_message_shape shape = shape_of(part);
    uint64_t a_key = sizeof(uint64_t) + (shape.weighted != 0 ? sizeof(float) : 0) +
                     (shape.counted != 0 ? sizeof(uint32_t) : 0);
    return part->context->world * (hotbed_message_bytes(shape, 0) + 32) + keys * a_key;
}

/* Lay out the path's arrays; called twice, first to count their bytes. */
static size_t carve_path(hotbed_part *part, hotbed_path *path, uint8_t *base) {
    const hotbed_group *g = part->group;
    const hotbed_sharded_context *context = part->context;
    hotbed_carve carve = {base, 0};
    hotbed_gather_view *v = &path->gather;
    size_t pointers = context->world * sizeof(uint8_t *), bound = path->bound;
    size_t segments = (size_t)g->message_features * context->world;
    uint64_t sent = path->capacity == 0 ? part->sharded->options.max_keys : bound;
    const uint64_t bags = all_bags_of(part);
    const uint64_t row = g->row_bytes > g->gradient_bytes ? g->row_bytes : g->gradient_bytes;
    path->to.at = hotbed_carve_take(&carve, pointers);
    path->from.at = hotbed_carve_take(&carve, pointers);
    path->owner_out.at = hotbed_carve_take(&carve, pointers);
    path->owner_in.at = hotbed_carve_take(&carve, pointers);
    path->requester_in.at = hotbed_carve_take(&carve, pointers);
    path->requester_out.at = hotbed_carve_take(&carve, pointers);
    path->arrived = hotbed_carve_take(&carve, context->world * sizeof(uint32_t));
    if (!g->sums)
        path->own_rows = hotbed_carve_take(
            &carve, (path->capacity == 0 ? part->sharded->options.max_keys : path->capacity) *
                        sizeof(uint8_t *));
    v->segments = hotbed_carve_take(&carve, (segments + 1) * sizeof(uint32_t));
    v->firsts = hotbed_carve_take(&carve, segments * sizeof(uint32_t));
    v->keys = hotbed_carve_take(&carve, bound * sizeof(uint64_t));
    v->weights =
        shape_of(part).weighted == 0 ? NULL : hotbed_carve_take(&carve, bound * sizeof(float));
    v->counts = g->counted ? hotbed_carve_take(&carve, bound * sizeof(uint32_t)) : NULL;
    v->offsets = hotbed_carve_take(
        &carve,
        ((g->sums ? segments * g->message_batch : g->message_features) + 1) * sizeof(int64_t));
    if (!hotbed_path_in_window(context, path)) {
        path->owner_rows = hotbed_carve_take(&carve, (g->sums ? bags : bound) * row);
        path->requester_rows = hotbed_carve_take(&carve, (g->sums ? bags : sent) * row);
    }
    if (g->wide_stride != 0)
        path->wide = hotbed_carve_take(
            &carve, (g->sums ? bags : bound) * g->wide_stride * sizeof *path->wide);
    if (path->capacity == 0 && g->sums) {
        path->requester_places = hotbed_carve_take(&carve, (bags + 1) * sizeof(uint32_t));
        path->owner_places = hotbed_carve_take(&carve, (bags + 1) * sizeof(uint32_t));
    }
    if (path->capacity == 0) {
        path->send = hotbed_carve_take(&carve, exact_bytes(part, sent));
        path->receive = hotbed_carve_take(&carve, exact_bytes(part, bound));
    }
    return carve.used;
}

/* What is between this rank and each rank, in the order of the ends of a path. */
enum { ENDS = 6 };

/* Set where fixed messages and rows are; exact ones are set for each batch. `at` has world pointers
 * for each of to, from, owner_out, owner_in, requester_in, requester_out. */
static void point_path(const hotbed_part *part, hotbed_path *path, uint8_t **at) {
    const hotbed_sharded_context *context = part->context;
    const hotbed_group *g = part->group;
    const size_t world = context->world;
    const uint64_t rows = path->items * g->row_bytes, gradients = path->items * g->gradient_bytes,
                   messages = context->message_bytes;
    uint8_t *window = context->window == NULL ? NULL : context->window->data;
    uint8_t *asked = window == NULL ? path->requester_rows : window + part->window_requester;
    uint8_t **to = at, **from = at + world, **owner_out = at + 2 * world,
            **owner_in = at + 3 * world, **requester_in = at + 4 * world,
            **requester_out = at + 5 * world;
    for (size_t p = 0; p < world; p++) {
        to[p] = context->send + p * messages;
        from[p] = (window == NULL ? context->receive : window) + p * messages;
        owner_out[p] = path->owner_rows + p * rows;
        owner_in[p] = path->owner_rows + p * gradients;
        requester_in[p] = asked + p * rows;
        requester_out[p] = path->requester_rows + p * gradients;
    }
    path->to.offset = path->from.offset = part->message_at;
    if (window == NULL) { /* what a rank sends itself stays where it is written */
        from[context->rank] = to[context->rank];
        requester_in[context->rank] = owner_out[context->rank];
        requester_out[context->rank] = owner_in[context->rank];
        return;
    }
    /* Set this rank's buffers in the others' windows; the window's pointers do not change. */
    uint8_t **parts = (uint8_t **)context->window->parts;
    path->to = (hotbed_ends){parts, context->rank * messages + part->message_at};
    path->owner_out = (hotbed_ends){parts, part->window_requester + context->rank * rows};
    path->requester_out = (hotbed_ends){parts, part->window_owner + context->rank * gradients};
}

static hotbed_status upload_pointers(
    const hotbed_part *part, hotbed_path *path, hotbed_stream *stream) {
    const hotbed_sharded_context *context = part->context;
    size_t bytes = context->world * sizeof(uint8_t *);
    hotbed_memory staging;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, ENDS * bytes, NULL, &staging));
    uint8_t **host = staging.data;
    if (context->window != NULL)
        path->owner_rows = (uint8_t *)context->window->data + part->window_owner;
    uint8_t **const device[ENDS] = {path->to.at,           path->from.at,
                                    path->owner_out.at,    path->owner_in.at,
                                    path->requester_in.at, path->requester_out.at};
    point_path(part, path, host);
    hotbed_status status = HOTBED_OK;
    for (size_t i = 0; i < ENDS && status == HOTBED_OK; i++)
        status = hotbed_copy(device[i], host + i * context->world, bytes, stream);
    hotbed_status finished = hotbed_stream_finish(stream);
    hotbed_memory_free(&staging);
    return status != HOTBED_OK ? status : finished;
}

/* In the matrix: keys from each rank, or bags, counts_each() words apart. */
static const uint32_t *received_counts(const hotbed_part *part, bool bags) {
    const hotbed_sharded_context *context = part->context;
    return context->matrix + counts_at(part, bags) + context->rank;
}

static hotbed_status make_path(
    hotbed_part *part, hotbed_path *path, uint64_t capacity, hotbed_stream *stream) {
    const hotbed_sharded_context *context = part->context;
    const hotbed_group *g = part->group;
    uint64_t keys = part->sharded->options.max_keys;
    uint64_t bound = context->world * (capacity != 0 ? capacity : keys);
    if (capacity != 0 && bound > KEYS_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, capacity, 0x1p30,
            "%u ranks with messages of %llu keys are over 2^30 keys", context->world,
            (unsigned long long)capacity);
    path->capacity = capacity;
    path->items = capacity == 0 ? 0 : g->sums ? bags_of(part) : capacity;
    path->bound = path->num_keys = bound < KEYS_MOST ? bound : KEYS_MOST;
    size_t bytes = carve_path(part, path, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &path->memory));
    HOTBED_TRY(hotbed_fill(path->memory.data, 0, bytes, stream)); /* the context's stream */
    (void)carve_path(part, path, path->memory.data);
    if (capacity == 0) {
        path->sizes = hotbed_new(6 * (size_t)context->world * sizeof *path->sizes);
        HOTBED_TRY_MEMORY(path->sizes, "the sizes of an exchange");
    } else {
        HOTBED_TRY(upload_pointers(part, path, stream));
    }
    path->gather = (hotbed_gather_view){
        .from = path->from.at,
        .from_offset = path->from.offset,
        .capacity = capacity,
        .capacities = received_counts(part, false),
        .capacity_stride = counts_each(context),
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
        .by_sample = g->sums ? 1 : 0,
        .bound = path->bound,
    };
    return hotbed_ticket_create(
        g->lookup, path->bound, g->sums ? part->sharded->options.max_batch_size : 1, stream,
        &path->ticket);
}

hotbed_status hotbed_part_create(hotbed_part *part, hotbed_stream *stream) {
    bool fixed = part->context->plan != HOTBED_PLAN_TWO_PHASE;
    HOTBED_TRY(make_part(part, stream));
    return make_path(part, part->path, fixed ? part->group->capacity : 0, stream);
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
    size_t row = counts_each(context) * sizeof(uint32_t);
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
        const hotbed_group *g = part->group;
        const uint64_t items = context->world * (g->sums ? bags_of(part) : g->capacity);
        part->window_requester = at;
        part->window_owner = hotbed_whole_lines(at + items * g->row_bytes);
        at = hotbed_whole_lines(part->window_owner + items * g->gradient_bytes);
    }
    context->window_bytes = at;
    return hotbed_window_create(context->comm, at, stream, &context->window);
}

hotbed_status hotbed_parts_create(hotbed_sharded_context *context, hotbed_stream *stream) {
    bool fixed = context->plan != HOTBED_PLAN_TWO_PHASE;
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
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
    size_t matrix = counts_each(context) * context->world;
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, 2 * sizeof(uint64_t) + matrix * sizeof(uint32_t), NULL,
        &context->pinned));
    context->host_repeated = context->pinned.data;
    *context->host_repeated = 0;
    context->host_overflow = context->host_repeated + 1;
    context->host_matrix = (uint32_t *)(context->host_overflow + 1);
    if (context->plan == HOTBED_PLAN_ONE_SIDED)
        HOTBED_TRY(make_window(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++) {
        hotbed_part *part = &context->parts[i];
        part->path = &part->paths[fixed ? 0 : 1];
        part->mapped = hotbed_new(part->group->num_features * sizeof *part->mapped);
        HOTBED_TRY_MEMORY(part->mapped, "a part of a context");
        for (uint32_t f = 0; f < part->group->num_features; f++)
            part->mapped[f] = UINT32_MAX;
        HOTBED_TRY(part->calls->create(part, stream));
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
            HOTBED_TRY(make_path(&context->parts[i], path, 0, stream));
        }
    }
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_clear(hotbed_sharded_context *context, hotbed_stream *stream) {
    return hotbed_fill(context->overflow, 0, (1 + context->num_parts) * sizeof(uint32_t), stream);
}

/* --- the exchange of keys ------------------------------------------------------------------------------- */

static hotbed_status place(hotbed_part *part, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
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
            .world = part->context->world,
        };
        HOTBED_TRY(kernels->aim(&aim, stream));
    }
    return kernels->place(b, stream);
}

static hotbed_status place_all(hotbed_sharded_context *context, hotbed_stream *stream) {
    hotbed_stream *beside;
    HOTBED_TRY(hotbed_parts_fork(context->num_parts, stream, &beside));
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < context->num_parts && status == HOTBED_OK; i++)
        status = place(&context->parts[i], i == 0 ? stream : beside);
    return hotbed_parts_join(status, stream);
}

/* Number the bags of a part by sums that travel between this rank, as requester or owner, and each
 * rank. */
static hotbed_status number_bags(const hotbed_part *part, bool owner, hotbed_stream *stream) {
    const hotbed_bags_view v = hotbed_part_bags(part, part->path->owner_out, false, owner);
    HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_flags(&v, stream));
    return hotbed_scan(
        all_bags_of(part) + 1, v.places, v.places, part->scratch, part->scratch_bytes, stream);
}

/* Write the messages, and exchange the numbers of keys and bags. */
static hotbed_status send_sizes(hotbed_sharded_context *context, hotbed_stream *stream) {
    size_t row = counts_each(context) * sizeof(uint32_t);
    HOTBED_TRY(place_all(context, stream));
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        if (!part->group->sums)
            continue;
        HOTBED_TRY(number_bags(part, false, stream));
        const hotbed_bags_view v = hotbed_part_bags(part, part->path->requester_in, false, false);
        HOTBED_TRY(hotbed_dist_kernels_of(stream)->bag_counts(
            &v, context->counts + counts_at(part, true), stream));
    }
    HOTBED_TRY(
        hotbed_comm_all_gather(context->comm, row, context->counts, context->matrix, stream));
    HOTBED_TRY(hotbed_copy(context->host_matrix, context->matrix, row * context->world, stream));
    return hotbed_event_record(context->arrived, stream);
}

hotbed_status hotbed_exchange_send(
    hotbed_sharded_context *context, bool exact, hotbed_stream *stream) {
    for (uint32_t i = 0; i < context->num_parts; i++)
        context->parts[i].path = &context->parts[i].paths[exact ? 1 : 0];
    if (exact)
        return send_sizes(context, stream);
    HOTBED_TRY(place_all(context, stream));
    if (context->window != NULL)
        return hotbed_window_barrier(context->window, stream);
    return hotbed_comm_all_to_others(
        context->comm, context->message_bytes, context->send, context->receive, stream);
}

/* Compute the sizes of a part's messages and rows from the counts of all ranks. */
static hotbed_status read_sizes(const hotbed_part *part) {
    const hotbed_sharded_context *context = part->context;
    hotbed_path *path = part->path;
    const hotbed_group *g = part->group;
    hotbed_message_shape shape = shape_of(part);
    const size_t world = context->world, row = counts_each(context);
    const uint64_t keys_at = counts_at(part, false), items_at = counts_at(part, g->sums);
    const uint32_t *own = context->host_matrix + context->rank * row;
    uint64_t keys = 0;
    for (size_t p = 0; p < world; p++) {
        const uint32_t *others = context->host_matrix + p * row;
        const uint64_t in = others[keys_at + context->rank];
        const uint64_t requested = own[items_at + p], owned = others[items_at + context->rank];
        path->sizes[p] = hotbed_message_bytes(shape, own[keys_at + p]);
        path->sizes[world + p] = hotbed_message_bytes(shape, in);
        path->sizes[2 * world + p] = requested * g->row_bytes;
        path->sizes[3 * world + p] = owned * g->row_bytes;
        path->sizes[4 * world + p] = requested * g->gradient_bytes;
        path->sizes[5 * world + p] = owned * g->gradient_bytes;
        keys += in;
    }
    if (keys > path->bound)
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, context->rank, NULL, keys, path->bound,
            "rank %u receives %llu keys, over %llu", context->rank, (unsigned long long)keys,
            (unsigned long long)path->bound);
    path->num_keys = keys;
    return HOTBED_OK;
}

/* Compute where received messages begin, and where rows begin at the owner and at the requester. The
 * rank's message to itself stays in `send`, where it is written, and its rows and gradients in
 * `owner_rows`. */
static hotbed_status aim_received(hotbed_part *part, hotbed_stream *stream) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(stream);
    const hotbed_sharded_context *context = part->context;
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
    const hotbed_group *g = part->group;
    for (int gradients = 0; gradients < 2; gradients++) {
        hotbed_ends *owner = gradients == 1 ? &path->owner_in : &path->owner_out;
        hotbed_ends *requester = gradients == 1 ? &path->requester_out : &path->requester_in;
        aim.row_bytes = gradients == 1 ? g->gradient_bytes : g->row_bytes;
        aim.base = path->owner_rows;
        aim.counts = received_counts(part, g->sums);
        aim.stride = counts_each(context);
        aim.to = owner->at;
        aim.own = NULL;
        HOTBED_TRY(kernels->aim(&aim, stream));
        aim.base = path->requester_rows;
        aim.counts = context->counts + counts_at(part, g->sums);
        aim.stride = 1;
        aim.to = requester->at;
        aim.own = owner->at;
        HOTBED_TRY(kernels->aim(&aim, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_sizes(hotbed_sharded_context *context, hotbed_stream *stream) {
    hotbed_exchange exchanges[HOTBED_EXCHANGES_MAX];
    uint32_t n = 0;
    HOTBED_TRY(hotbed_event_sync(context->arrived));
    /* The sizes are valid only if their exchange did not fail. */
    HOTBED_TRY(hotbed_comm_check_call("wait_splits", context->comm, stream));
    for (uint32_t i = 0; i < context->num_parts; i++)
        HOTBED_TRY(read_sizes(&context->parts[i]));
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        const hotbed_path *path = part->path;
        exchanges[n++] = (hotbed_exchange){
            .send = path->send,
            .send_bytes = path->sizes,
            .recv = path->receive,
            .recv_bytes = path->sizes + context->world,
            .bound = exact_bytes(part, part->sharded->options.max_keys),
        };
        if (n == HOTBED_EXCHANGES_MAX || i + 1 == context->num_parts) {
            HOTBED_TRY(hotbed_comm_exchange_others(context->comm, n, exchanges, stream));
            n = 0;
        }
    }
    for (uint32_t i = 0; i < context->num_parts; i++)
        HOTBED_TRY(aim_received(&context->parts[i], stream));
    return HOTBED_OK;
}

static hotbed_status gather(hotbed_part *part, hotbed_stream *stream) {
    const hotbed_sharded_context *context = part->context;
    const uint32_t i = (uint32_t)(part - context->parts);
    hotbed_gather_view *g = &part->path->gather;
    const bool counted = g->capacity != 0 || context->plan == HOTBED_PLAN_TWO_PHASE;
    g->bound = part->path->num_keys;
    g->arrived = part->path->arrived;
    g->wire = hotbed_wire_keys(part);
    /* A batch is counted with the first part of its collection, and not again when it is replayed. */
    g->repeated = counted && i == part->member->first_part ? context->repeated : NULL;
    g->host_repeated = context->host_repeated;
    g->host_overflow = context->may_overflow && i == 0 ? context->host_overflow : NULL;
    HOTBED_TRY(hotbed_gather(g, stream));
    part->batch = (hotbed_batch){.size = sizeof part->batch};
    part->batch.batch_size = part->group->sums ? part->sharded->options.max_batch_size : 1;
    if (part->group->sums && part->path->capacity == 0)
        HOTBED_TRY(number_bags(part, true, stream));
    part->batch.num_keys = part->path->num_keys;
    part->batch.keys = g->keys;
    part->batch.offsets = g->offsets;
    part->batch.weights = g->weights;
    part->batch.counts = g->counts;
    return HOTBED_OK;
}

hotbed_status hotbed_exchange_gather(hotbed_sharded_context *context, hotbed_stream *stream) {
    hotbed_stream *beside;
    /* Members count their batches in one word. */
    const uint32_t n = context->num_members == 1 ? context->num_parts : 1;
    HOTBED_TRY(hotbed_parts_fork(n, stream, &beside));
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < context->num_parts && status == HOTBED_OK; i++)
        status = gather(&context->parts[i], i == 0 ? stream : beside);
    return hotbed_parts_join(status, stream);
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
    const hotbed_part *part, const uint32_t *starts, uint32_t batch_size) {
    const hotbed_sharded *c = part->sharded;
    hotbed_pool_view view = {
        .starts = starts,
        .columns = part->group->columns32,
        .output_columns = part->group->output_columns,
        .num_features = part->group->num_features,
        .batch_size = batch_size,
        .samples = part->member->kjt.batch_size,
        .mean = c->pooling == HOTBED_POOL_MEAN ? 1 : 0,
        .dtype = (uint32_t)c->output_dtype,
        .max_gradient = part->group->max_gradient,
        .scale = c->options.gradient_scale,
    };
    return view;
}

/* How the part's gradients are packed. */
static hotbed_pack_view pack_of(const hotbed_part *part) {
    const hotbed_group *g = part->group;
    hotbed_pack_view view = {
        .dtype = hotbed_packed_type((uint32_t)g->gradient_dtype),
        .gradients = 1,
        .layout = g->max_dim,
        .sender = part->context->rank,
        .seed = part->sharded->seed ^ hotbed_hash_u64((uint64_t)g->number + 1),
        .step = part->step,
    };
    return view;
}

hotbed_status hotbed_part_keep_step(const hotbed_part *part, hotbed_stream *stream) {
    if (part->step == NULL)
        return HOTBED_OK;
    return hotbed_copy(
        part->step, &part->dedup.storage.clock->optimizer.steps, sizeof *part->step, stream);
}

hotbed_deliver_view hotbed_part_deliver(const hotbed_part *part, hotbed_ends ends, bool gradients) {
    const hotbed_path *path = part->path;
    const hotbed_sharded *c = part->sharded;
    uint64_t keys = part->member->kjt.num_keys;
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
        .world = part->context->world,
        .rank = part->context->rank,
        .rows = ends.at,
        .rows_offset = ends.offset,
        .own = part->reads && !gradients ? path->own_rows : NULL,
        .row_bytes = gradients ? part->group->gradient_bytes : part->group->row_bytes,
        .dim = part->group->max_dim,
        .dtype = (uint32_t)c->output_dtype,
        .travel = (uint32_t)(gradients ? part->group->gradient_dtype : part->group->row_dtype),
        .max_gradient = part->group->max_gradient,
        .scale = c->options.gradient_scale,
    };
    if (gradients)
        view.pack = pack_of(part);
    return view;
}

bool hotbed_part_sends_plainly(const hotbed_sharded *sharded) {
    return sharded->pooling == HOTBED_POOL_SUM && sharded->options.gradient_scale == 1.0F &&
           sharded->optimizer_view.max_gradient <= 0.0F;
}

hotbed_bags_view hotbed_part_bags(
    const hotbed_part *part, hotbed_ends ends, bool gradients, bool owner) {
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
        .world = part->context->world,
        .rank = part->context->rank,
        .rows = ends.at,
        .rows_offset = ends.offset,
        .row_bytes = gradients ? g->gradient_bytes : g->row_bytes,
        .travel = (uint32_t)(gradients ? g->gradient_dtype : g->row_dtype),
        .starts = part->pick.starts,
        .dims = g->dims,
        .output_columns = g->output_columns,
        .samples = part->member->kjt.batch_size,
        .dtype = (uint32_t)c->output_dtype,
        .mean = c->pooling == HOTBED_POOL_MEAN ? 1 : 0,
        .max_gradient = g->max_gradient,
        .scale = c->options.gradient_scale,
    };
    if (gradients)
        view.pack = pack_of(part);
    if (owner && hotbed_packed_type(view.travel) != 0) {
        view.wide = path->wide;
        view.wide_stride = g->wide_stride;
    }
    /* In hotbed_sharded_backward(), gradients that travel as they are need not be copied to this
     * rank itself. */
    if (gradients && part->gradient != NULL && g->aligned && g->gradient_dtype == c->output_dtype &&
        hotbed_part_sends_plainly(c)) {
        view.own = part->gradient;
        view.own_stride = part->gradient_stride * hotbed_dtype_bytes(c->output_dtype);
    }
    return view;
}

hotbed_status hotbed_exchange_rows(hotbed_part *part, bool gradients, hotbed_stream *stream) {
    hotbed_sharded_context *context = part->context;
    hotbed_path *path = part->path;
    uint8_t *send = gradients ? path->requester_rows : path->owner_rows;
    uint8_t *receive = gradients ? path->owner_rows : path->requester_rows;
    const hotbed_group *g = part->group;
    if (hotbed_path_in_window(context, path)) /* the caller passes a barrier */
        return HOTBED_OK;
    const uint64_t row = gradients ? g->gradient_bytes : g->row_bytes;
    if (path->capacity != 0)
        return hotbed_comm_all_to_others(context->comm, path->items * row, send, receive, stream);
    size_t world = context->world;
    uint64_t keys = gradients ? part->sharded->options.max_keys : path->bound;
    hotbed_exchange exchange = {
        .send = send,
        .send_bytes = path->sizes + (gradients ? 4 : 3) * world,
        .recv = receive,
        .recv_bytes = path->sizes + (gradients ? 5 : 2) * world,
        .bound = (g->sums ? all_bags_of(part) : keys) * row,
    };
    return hotbed_comm_exchange_others(context->comm, 1, &exchange, stream);
}

hotbed_status hotbed_part_compute_to(
    const hotbed_part *part, const hotbed_scatter_view *to, hotbed_stream *stream) {
    hotbed_storage *lookup = part->group->lookup;
    if (part->member->training)
        return hotbed_storage_forward_scattered(lookup, part->path->ticket, to, stream);
    HOTBED_TRY(hotbed_sharded_search_begin(part->sharded, stream));
    hotbed_status status = hotbed_storage_eval_scattered(lookup, &part->batch, to, stream);
    return hotbed_sharded_search_end(part->sharded, status, stream);
}
