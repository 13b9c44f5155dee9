/* dist/exchange/bucketize_core.h - from the keys of a batch to one message per rank.
 *
 * The keys are put in order of owning rank; keys of one rank keep their order. So in each message the
 * rows, and the keys of a row, have the same order as in the batch. The batch is cut into tiles: the
 * keys of each tile are counted by rank, sums of the counts in order of (rank, tile) say where the
 * keys of a tile begin, and each tile puts its keys there. A binary search for a row's first key among
 * the batch positions of a tile's keys finds where the row begins in a message. */
#pragma once

#include "dist/exchange/kjt_core.h"
#include "dist/exchange/message_core.h"
#include "dist/exchange/route_core.h"
#include "storage/step/step_core.h"

/* How a feature's keys are routed, and whether they travel as local ids. */
typedef struct hotbed_feature_route {
    hotbed_route route;
    uint64_t local;
} hotbed_feature_route;

typedef struct hotbed_bucketize_view {
    /* the batch: n = starts[shape.rows] keys in the order of rows */
    const uint64_t *keys;       /* [bound] */
    const float *weights;       /* [bound]; NULL unless shape.weighted */
    const uint64_t *key_counts; /* [bound] occurrences of each key; read only if shape.counted */
    const uint32_t *starts;     /* [shape.rows + 1] */
    const hotbed_feature_route *routes; /* [shape.rows / batch_size] */
    uint64_t bound;
    uint32_t batch_size; /* rows per feature */
    uint32_t world;
    /* the keys in order of rank */
    uint32_t *targets;     /* [bound] rank of each key */
    uint32_t *tile_starts; /* [world][tiles] and one word: first position of each tile's keys */
    uint32_t *sorted;      /* [bound] numbers of the keys in order of rank */
    uint32_t *places;      /* [bound] position of key i in `sorted` */
    uint32_t *ranks;       /* [world + 1] first position of each rank in `sorted` */
    uint32_t *counts;      /* [world] keys for each rank */
    uint32_t *overflow;    /* one word, 0 before the call; set if a count exceeds the capacity */
    /* the messages */
    uint8_t *const *to; /* [world] */
    uint64_t to_offset; /* offset in bytes */
    uint64_t capacity;  /* capacity of each message; 0: the number of its keys */
    /* [world][shape.rows + 1] where each row begins in each message, for the sender; or NULL */
    uint32_t *row_starts;
    hotbed_message_shape shape;
} hotbed_bucketize_view;

/* Keys of a tile, and the most ranks. */
#define HOTBED_BUCKETIZE_TILE  1024U
#define HOTBED_BUCKETIZE_RANKS 1024U

HOTBED_HD uint32_t hotbed_bucketize_tiles_of(uint64_t bound) {
    return (uint32_t)((bound + HOTBED_BUCKETIZE_TILE - 1) / HOTBED_BUCKETIZE_TILE);
}

HOTBED_HD uint32_t hotbed_bucketize_tiles(const hotbed_bucketize_view *b) {
    return hotbed_bucketize_tiles_of(b->bound);
}

/* Words of tile_starts. */
HOTBED_HD uint64_t hotbed_bucketize_words(uint32_t world, uint64_t bound) {
    return (uint64_t)world * hotbed_bucketize_tiles_of(bound) + 1;
}

/* Where tile t of rank p is in tile_starts. The next word is where its keys end. */
HOTBED_HD uint64_t hotbed_bucketize_tile(const hotbed_bucketize_view *b, uint32_t p, uint32_t t) {
    return (uint64_t)p * hotbed_bucketize_tiles(b) + t;
}

/* The first position of an ascending array whose value is not below `value`; n if there is none. */
HOTBED_HD uint32_t hotbed_first_at_least(const uint32_t *values, uint32_t n, uint32_t value) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (values[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Set the target rank of key i, which belongs to feature f, and return it. */
HOTBED_HD uint32_t hotbed_bucketize_target(const hotbed_bucketize_view *b, uint32_t i, uint32_t f) {
    const uint32_t p = hotbed_route_rank_of(&b->routes[f].route, b->keys[i]);
    b->targets[i] = p;
    return p;
}

/* The feature of key i, which is in one of the features [low, high). */
HOTBED_HD uint32_t
hotbed_bucketize_feature(const hotbed_bucketize_view *b, uint32_t low, uint32_t high, uint32_t i) {
    return hotbed_feature_in(b->starts, low, high, b->batch_size, i);
}

/* The features of a tile: [*low, *high). */
HOTBED_HD void hotbed_bucketize_features(
    const hotbed_bucketize_view *b, uint32_t t, uint32_t *low, uint32_t *high) {
    const uint32_t n = b->starts[b->shape.rows], all = b->shape.rows / b->batch_size;
    const uint32_t first = t * HOTBED_BUCKETIZE_TILE;
    *low = *high = 0;
    if (first >= n)
        return;
    const uint32_t last =
        n - first < HOTBED_BUCKETIZE_TILE ? n - 1 : first + HOTBED_BUCKETIZE_TILE - 1;
    *low = hotbed_bucketize_feature(b, 0, all, first);
    *high = hotbed_bucketize_feature(b, *low, all, last) + 1;
}

/* Find the first key for rank p, and count the keys for rank p; p may be `world`. */
HOTBED_HD void hotbed_bucketize_rank(const hotbed_bucketize_view *b, uint32_t p) {
    const uint32_t begin = b->tile_starts[hotbed_bucketize_tile(b, p, 0)];
    b->ranks[p] = begin;
    if (p == b->world)
        return;
    b->counts[p] = b->tile_starts[hotbed_bucketize_tile(b, p + 1, 0)] - begin;
    if (b->capacity != 0 && b->counts[p] > b->capacity)
        (void)hotbed_cas_relaxed_u32(b->overflow, 0, 1);
}

HOTBED_HD uint8_t *hotbed_bucketize_message(const hotbed_bucketize_view *b, uint32_t p) {
    return b->to[p] + b->to_offset;
}

HOTBED_HD void hotbed_bucketize_header(const hotbed_bucketize_view *b, uint32_t p) {
    hotbed_message_header header = {b->counts[p], b->capacity != 0 ? *b->overflow : 0, {0, 0}};
    *hotbed_message_header_of(hotbed_bucketize_message(b, p)) = header;
}

/* The number of keys for rank p before the first key of row r; r may be the number of rows. */
HOTBED_HD uint32_t
hotbed_bucketize_start_of(const hotbed_bucketize_view *b, uint32_t p, uint32_t r) {
    const uint32_t key = b->starts[r], t = key / HOTBED_BUCKETIZE_TILE;
    if (t == hotbed_bucketize_tiles(b))
        return b->counts[p];
    const uint32_t *at = b->tile_starts + hotbed_bucketize_tile(b, p, t);
    return at[0] - b->ranks[p] + hotbed_first_at_least(b->sorted + at[0], at[1] - at[0], key);
}

/* Write where row r begins in the message for rank p, after its keys were put there. */
HOTBED_HD void hotbed_bucketize_start(const hotbed_bucketize_view *b, uint32_t p, uint32_t r) {
    const uint32_t start = hotbed_bucketize_start_of(b, p, r);
    hotbed_message_starts(hotbed_bucketize_message(b, p))[r] = start;
    if (b->row_starts != NULL)
        b->row_starts[(uint64_t)p * (b->shape.rows + 1) + r] = start;
}

/* Key i as it travels; it belongs to feature f. */
HOTBED_HD uint64_t
hotbed_bucketize_travels(const hotbed_bucketize_view *b, uint32_t i, uint32_t f) {
    const hotbed_feature_route *r = &b->routes[f];
    return r->local != 0 ? hotbed_route_local_of(&r->route, b->keys[i]) : b->keys[i];
}

/* Put key i, which travels as `key` to rank p, at position j of all keys in order of rank. */
HOTBED_HD void hotbed_bucketize_put(
    const hotbed_bucketize_view *b, uint32_t i, uint64_t key, uint32_t p, uint32_t j) {
    const uint32_t k = j - b->ranks[p];
    const uint64_t capacity = b->capacity != 0 ? b->capacity : b->counts[p];
    b->sorted[j] = i;
    if (k >= capacity)
        return;
    uint8_t *message = hotbed_bucketize_message(b, p);
    hotbed_message_keys(message, b->shape)[k] = key;
    if (b->shape.weighted != 0)
        hotbed_message_weights(message, b->shape, capacity)[k] = b->weights[i];
    if (b->shape.counted != 0) /* at most 2^30: the keys of one rank's batch */
        hotbed_message_counts(message, b->shape, capacity)[k] = (uint32_t)b->key_counts[i];
}
