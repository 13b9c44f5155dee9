/* dist/exchange/dist_host.c - kernels of input and output dists on the host.  CUDA counterpart: dist.cu. */
#include "dist/exchange/dist_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { TILES_GRAIN = 2, KEYS_GRAIN = 2048, ROWS_GRAIN = 256 };

typedef struct follow_args {
    uint32_t *at;
    const uint32_t *from, *n;
} follow_args;

typedef struct rows_args {
    hotbed_deliver_view d;
    void *data;
    const void *gradient;
    uint8_t **found;
    uint64_t stride;
    bool plain;
} rows_args;

typedef struct places_args {
    hotbed_deliver_view d;
    const uint8_t *first;
    const uint32_t *n;
    uint32_t *at;
} places_args;

typedef struct widen_args {
    hotbed_deliver_view d;
    const uint8_t *first;
    float *wide;
    uint64_t stride;
} widen_args;

typedef struct bags_args {
    hotbed_bags_view v;
    uint32_t *counts;
    uint8_t **at;
    void *output;
    const void *gradient;
    uint64_t stride;
} bags_args;

typedef struct pool_args {
    hotbed_pool_view p;
    float *sums;
    const float *read_sums;
    void *output;
    const void *gradient;
    uint64_t stride, n;
} pool_args;

static inline uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* The bytes that arrive are counted with item 0, also where a rank's own batch is empty. */
static inline uint64_t or_one(uint64_t n) {
    return n > 0 ? n : 1;
}

/* --- before the exchange ------------------------------------------------------------------------ */

/* The feature of key i, which is in feature f or a later one. */
static inline uint32_t feature_after(const hotbed_bucketize_view *b, uint32_t f, uint64_t i) {
    while (b->starts[(f + 1) * (uint64_t)b->batch_size] <= i)
        f++;
    return f;
}

/* The keys of tile t. */
static uint64_t tile_end(const hotbed_bucketize_view *b, uint64_t t) {
    return least((t + 1) * HOTBED_BUCKETIZE_TILE, b->starts[b->shape.rows]);
}

static void targets_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_bucketize_view *b = args;
    uint32_t f = 0;
    if (begin == 0)
        b->tile_starts[hotbed_bucketize_words(b->world, b->bound) - 1] = 0;
    for (uint64_t t = begin; t < least(end, hotbed_bucketize_tiles(b)); t++) {
        for (uint32_t p = 0; p < b->world; p++)
            b->tile_starts[hotbed_bucketize_tile(b, p, (uint32_t)t)] = 0;
        for (uint64_t i = t * HOTBED_BUCKETIZE_TILE; i < tile_end(b, t); i++) {
            f = feature_after(b, f, i);
            const uint32_t p = hotbed_bucketize_target(b, (uint32_t)i, f);
            b->tile_starts[hotbed_bucketize_tile(b, p, (uint32_t)t)]++;
        }
    }
}

HOTBED_HOST_EACH(ranks_body, hotbed_bucketize_rank(args, (uint32_t)i))
HOTBED_HOST_EACH(aim_body, hotbed_aim(args))

/* Walk the rows of a message and its keys together, in order, instead of searching for each row. */
static void starts_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_bucketize_view *b = args;
    uint64_t rows = (uint64_t)b->shape.rows + 1;
    uint32_t p = (uint32_t)(begin / rows), r = (uint32_t)(begin % rows);
    for (uint64_t at = begin; at < end; p++, r = 0) {
        const uint32_t *sorted = b->sorted + b->ranks[p];
        uint32_t *starts = hotbed_message_starts(hotbed_bucketize_message(b, p));
        uint32_t place = hotbed_bucketize_start_of(b, p, r);
        if (r == 0)
            hotbed_bucketize_header(b, p);
        for (; at < end && r < rows; at++, r++) {
            while (place < b->counts[p] && sorted[place] < b->starts[r])
                place++;
            starts[r] = place;
            if (b->row_starts != NULL)
                b->row_starts[at] = place;
        }
    }
}

static void keys_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_bucketize_view *b = args;
    uint32_t next[HOTBED_BUCKETIZE_RANKS], f = 0;
    for (uint64_t t = begin; t < end; t++) {
        for (uint32_t p = 0; p < b->world; p++)
            next[p] = b->tile_starts[hotbed_bucketize_tile(b, p, (uint32_t)t)];
        for (uint64_t i = t * HOTBED_BUCKETIZE_TILE; i < tile_end(b, t); i++) {
            f = feature_after(b, f, i);
            const uint32_t p = b->targets[i], j = next[p]++;
            b->places[i] = j;
            hotbed_bucketize_put(b, (uint32_t)i, hotbed_bucketize_travels(b, (uint32_t)i, f), p, j);
        }
    }
}

HOTBED_HOST_CALL(targets, hotbed_bucketize_view, or_one(hotbed_bucketize_tiles(a)), TILES_GRAIN)
HOTBED_HOST_CALL(ranks, hotbed_bucketize_view, (uint64_t)a->world + 1, 0)
HOTBED_HOST_CALL(aim, hotbed_aim_view, 1, 0)

static hotbed_status place(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    const uint64_t starts = ((uint64_t)b->shape.rows + 1) * b->world;
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, hotbed_bucketize_tiles(b), TILES_GRAIN, keys_body, b));
    return HOTBED_HOST_LAUNCH(stream, starts, KEYS_GRAIN, starts_body, b);
}

/* --- after it ------------------------------------------------------------------------------------- */

static void segments_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_gather_view *g = args;
    uint32_t sum = 0;
    for (uint32_t q = 0; q <= hotbed_gather_segments(g); q++) {
        const uint32_t length = hotbed_gather_length(g, q);
        g->segments[q] = sum;
        sum += length;
    }
}

HOTBED_HOST_BELOW(
    gather_body, hotbed_gather_view, hotbed_gather_count(a), hotbed_gather_key(a, (uint32_t)i))
HOTBED_HOST_EACH(offsets_body, hotbed_gather_offset(args, i))

HOTBED_HOST_CALL(segments, hotbed_gather_view, 1, 0)

static hotbed_status gather(const hotbed_gather_view *g, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, g->bound, KEYS_GRAIN, gather_body, g));
    return HOTBED_HOST_LAUNCH(stream, hotbed_gather_offsets(g), KEYS_GRAIN, offsets_body, g);
}

/* --- dedup ---------------------------------------------------------------------------------------- */

HOTBED_HOST_EACH(table_starts_body, hotbed_table_start(args, i))

HOTBED_HOST_BELOW(follow_body, follow_args, *a->n, a->at[i] = a->from[a->at[i]])

HOTBED_HOST_CALL(table_starts, hotbed_table_starts_view, (uint64_t)a->num_tables + 1, KEYS_GRAIN)

static hotbed_status follow(
    uint64_t bound, const uint32_t *n, uint32_t *at, const uint32_t *from, hotbed_stream *stream) {
    follow_args args = {at, from, n};
    return HOTBED_HOST_LAUNCH(stream, bound, KEYS_GRAIN, follow_body, &args);
}

/* --- rows ------------------------------------------------------------------------------------------ */

HOTBED_HOST_BELOW(
    places_body, places_args, *a->n, a->at[i] = hotbed_owner_place(&a->d, a->first, a->at[i]))

static void take_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_args *a = args;
    if (begin == 0)
        hotbed_wire_count(&a->d.wire);
    const uint64_t first = a->d.first_key == NULL ? 0 : *a->d.first_key;
    for (uint64_t i = begin < first ? first : begin; i < least(end, *a->d.num_keys); i++)
        hotbed_take_row(&a->d, (uint32_t)i, a->data, a->stride, a->plain, 1);
}

static void send_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_args *a = args;
    if (begin == 0)
        hotbed_wire_count(&a->d.wire);
    if (*a->d.overflow != 0)
        return;
    for (uint64_t u = begin; u < least(end, *a->d.num_sent); u++)
        hotbed_send_gradient(&a->d, (uint32_t)u, a->gradient, a->stride, 1);
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_args *a = args;
    if (begin == 0)
        hotbed_wire_count(&a->d.wire);
    for (uint64_t u = begin; u < least(end, *a->d.num_sent); u++)
        a->found[u] = hotbed_send_sum_to(&a->d, (uint32_t)u);
}

static hotbed_status find_places(
    const hotbed_deliver_view *d, const void *first, const uint32_t *n, uint32_t *at,
    hotbed_stream *stream) {
    places_args args = {*d, first, n, at};
    return HOTBED_HOST_LAUNCH(stream, d->received_bound, KEYS_GRAIN, places_body, &args);
}

static hotbed_status take_rows(
    const hotbed_deliver_view *d, void *output, uint64_t stride_bytes, hotbed_stream *stream) {
    rows_args args = {.d = *d, .data = output, .stride = stride_bytes};
    args.plain = hotbed_rows_plain(d, output, stride_bytes);
    return HOTBED_HOST_LAUNCH(stream, or_one(d->key_bound), ROWS_GRAIN, take_body, &args);
}

static hotbed_status send_gradients(
    const hotbed_deliver_view *d, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    rows_args args = {.d = *d, .gradient = gradient, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, or_one(d->sent_bound), ROWS_GRAIN, send_body, &args);
}

static hotbed_status find_rows(
    const hotbed_deliver_view *d, uint8_t **rows, hotbed_stream *stream) {
    rows_args args = {.d = *d, .found = rows};
    return HOTBED_HOST_LAUNCH(stream, or_one(d->sent_bound), KEYS_GRAIN, find_body, &args);
}

HOTBED_HOST_BELOW(
    widen_rows_body, widen_args, *a->d.overflow != 0 ? 0 : a->d.segments[a->d.num_segments],
    hotbed_widen_row(&a->d, a->first, (uint32_t)i, a->wide, a->stride, 1))

static hotbed_status widen_rows(
    const hotbed_deliver_view *d, const void *first, float *wide, uint64_t stride,
    hotbed_stream *stream) {
    widen_args args = {.d = *d, .first = first, .wide = wide, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, d->received_bound, ROWS_GRAIN, widen_rows_body, &args);
}

static void finish_body(const void *args, uint64_t begin, uint64_t end) {
    const pool_args *a = args;
    if (begin == 0)
        hotbed_wire_count(&a->p.wire);
    for (uint64_t at = begin; at < least(end, a->n); at++)
        hotbed_pool_finish(&a->p, at, a->read_sums, a->output, a->stride);
}

static void start_body(const void *args, uint64_t begin, uint64_t end) {
    const pool_args *a = args;
    if (begin == 0)
        hotbed_wire_count(&a->p.wire);
    for (uint64_t at = begin; at < end; at++)
        hotbed_pool_start(&a->p, at, a->gradient, a->stride, a->sums);
}

static hotbed_status pool_finish(
    const hotbed_pool_view *p, uint64_t columns, const float *sums, void *output, uint64_t stride,
    hotbed_stream *stream) {
    pool_args args = {.p = *p, .read_sums = sums, .output = output, .stride = stride};
    args.n = columns * p->samples;
    return HOTBED_HOST_LAUNCH(stream, or_one(args.n), KEYS_GRAIN, finish_body, &args);
}

static hotbed_status pool_start(
    const hotbed_pool_view *p, uint64_t columns, const void *gradient, uint64_t stride, float *sums,
    hotbed_stream *stream) {
    pool_args args = {.p = *p, .sums = sums, .gradient = gradient, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, columns * p->batch_size, KEYS_GRAIN, start_body, &args);
}

/* --- bags whose sums travel ------------------------------------------------------------------------ */

HOTBED_HOST_EACH(bag_flags_body, hotbed_bag_flag(args, i))

HOTBED_HOST_BELOW(
    bag_counts_body, bags_args, a->v.world, a->counts[i] = hotbed_bag_count(&a->v, (uint32_t)i))

static void count_bags(const hotbed_bags_view *v) {
    uint32_t bags = 0;
    for (uint32_t r = 0; v->moved != NULL && r < hotbed_bags_rows(v); r++)
        bags += hotbed_bag_moves(v, r);
    if (v->moved != NULL)
        hotbed_bags_count(v, bags, 1);
}

static void bag_addresses_body(const void *args, uint64_t begin, uint64_t end) {
    const bags_args *a = args;
    for (uint64_t b = begin; b < end; b++)
        a->at[b] = hotbed_bag_target(&a->v, b);
    if (begin == 0)
        count_bags(&a->v);
}

HOTBED_HOST_EACH(pack_bags_body, hotbed_pack_bag(args, i, 1))
HOTBED_HOST_EACH(widen_bags_body, hotbed_widen_bag(args, i, 1))

static void finish_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const bags_args *a = args;
    for (uint64_t r = begin; r < end; r++)
        hotbed_bag_finish_sums(&a->v, (uint32_t)r, a->output, a->stride, 1);
    if (begin == 0)
        count_bags(&a->v);
}

static void send_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const bags_args *a = args;
    for (uint64_t r = begin; r < end; r++)
        hotbed_bag_send(&a->v, (uint32_t)r, a->gradient, a->stride, 1);
    if (begin == 0)
        count_bags(&a->v);
}

/* The bags of all messages. */
static uint64_t bags_of(const hotbed_bags_view *v) {
    return (uint64_t)hotbed_bags_rows(v) * v->world;
}

HOTBED_HOST_CALL(bag_flags, hotbed_bags_view, bags_of(a) + 1, KEYS_GRAIN)
HOTBED_HOST_CALL(pack_bags, hotbed_bags_view, bags_of(a), ROWS_GRAIN)
HOTBED_HOST_CALL(widen_bags, hotbed_bags_view, bags_of(a), ROWS_GRAIN)

static hotbed_status bag_counts(
    const hotbed_bags_view *v, uint32_t *counts, hotbed_stream *stream) {
    bags_args args = {.v = *v, .counts = counts};
    return HOTBED_HOST_LAUNCH(stream, v->world, 0, bag_counts_body, &args);
}

static hotbed_status bag_addresses(const hotbed_bags_view *v, uint8_t **at, hotbed_stream *stream) {
    bags_args args = {.v = *v, .at = at};
    return HOTBED_HOST_LAUNCH(stream, bags_of(v), KEYS_GRAIN, bag_addresses_body, &args);
}

static hotbed_status finish_bags(
    const hotbed_bags_view *v, uint32_t max_dim, void *output, uint64_t stride,
    hotbed_stream *stream) {
    bags_args args = {.v = *v, .output = output, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, hotbed_bags_rows(v), ROWS_GRAIN, finish_bags_body, &args);
}

static hotbed_status send_bags(
    const hotbed_bags_view *v, uint32_t max_dim, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    bags_args args = {.v = *v, .gradient = gradient, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, hotbed_bags_rows(v), ROWS_GRAIN, send_bags_body, &args);
}

/* --- one rank -------------------------------------------------------------------------------------- */

HOTBED_HOST_BELOW(
    copy_rows_body, hotbed_copies_view, hotbed_copies_count(a), hotbed_copies_row(a, i, 1))
HOTBED_HOST_BELOW(finish_sums_body, hotbed_sent_view, *a->num_rows, hotbed_sent_row(a, i, 1))

HOTBED_HOST_CALL(copy_rows, hotbed_copies_view, a->bound, ROWS_GRAIN)
HOTBED_HOST_CALL(finish_sums, hotbed_sent_view, a->bound, ROWS_GRAIN)

const hotbed_dist_kernels hotbed_dist_kernels_host = {
    targets,      ranks,       aim,         place,     segments,       gather,
    table_starts, follow,      find_places, take_rows, send_gradients, find_rows,
    widen_rows,   pool_finish, pool_start,  bag_flags, bag_counts,     bag_addresses,
    pack_bags,    widen_bags,  finish_bags, send_bags, copy_rows,      finish_sums,
};
