/* dist/exchange/bucketize_core.h - from the keys of a batch to one message per rank.
 *
 * The keys are sorted by owning rank with a stable sort. So in each message the rows, and the keys
 * of a row, have the same order as in the batch. A binary search for a row's first key among the
 * batch positions of a message's keys finds where the row begins in the message. */
#ifndef HOTBED_DIST_BUCKETIZE_CORE_H
#define HOTBED_DIST_BUCKETIZE_CORE_H

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
    /* the keys sorted by rank */
    uint32_t *targets;        /* [bound] rank of each key; `world` past the last key */
    uint32_t *numbers;        /* [bound] 0, 1, 2, ... */
    uint32_t *sorted_targets; /* [bound] */
    uint32_t *sorted;         /* [bound] numbers of the keys in order of rank */
    uint32_t *places;         /* [bound] position of key i in `sorted` */
    uint32_t *ranks;          /* [world + 1] first position of each rank in `sorted` */
    uint32_t *counts;         /* [world] keys for each rank */
    uint32_t *overflow;       /* one word, 0 before the call; set if a count exceeds the capacity */
    /* the messages */
    uint8_t *const *to; /* [world] */
    uint64_t to_offset; /* offset in bytes */
    uint64_t capacity;  /* capacity of each message; 0: the number of its keys */
    /* [world][shape.rows + 1] where each row begins in each message, for the sender; or NULL */
    uint32_t *row_starts;
    hotbed_message_shape shape;
} hotbed_bucketize_view;

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

/* Set the target rank of key i, which belongs to feature f. */
HOTBED_HD void hotbed_bucketize_target_of(const hotbed_bucketize_view *b, uint32_t i, uint32_t f) {
    b->numbers[i] = i;
    b->targets[i] = hotbed_route_rank_of(&b->routes[f].route, b->keys[i]);
}

/* The feature of key i. */
HOTBED_HD uint32_t hotbed_bucketize_feature(const hotbed_bucketize_view *b, uint32_t i) {
    return hotbed_feature_of(b->starts, b->shape.rows / b->batch_size, b->batch_size, i);
}

HOTBED_HD void hotbed_bucketize_no_target(const hotbed_bucketize_view *b, uint32_t i) {
    b->numbers[i] = i;
    b->targets[i] = b->world;
}

HOTBED_HD void hotbed_bucketize_target(const hotbed_bucketize_view *b, uint32_t i) {
    if (i < b->starts[b->shape.rows])
        hotbed_bucketize_target_of(b, i, hotbed_bucketize_feature(b, i));
    else
        hotbed_bucketize_no_target(b, i);
}

/* Find the first key for rank p, and count the keys for rank p; p may be `world`. */
HOTBED_HD void hotbed_bucketize_rank(const hotbed_bucketize_view *b, uint32_t p) {
    uint32_t n = b->starts[b->shape.rows];
    uint32_t begin = hotbed_first_at_least(b->sorted_targets, n, p);
    b->ranks[p] = begin;
    if (p < b->world)
        b->counts[p] = hotbed_first_at_least(b->sorted_targets, n, p + 1) - begin;
    if (p < b->world && b->capacity != 0 && b->counts[p] > b->capacity)
        (void)hotbed_cas_relaxed_u32(b->overflow, 0, 1);
}

HOTBED_HD uint8_t *hotbed_bucketize_message(const hotbed_bucketize_view *b, uint32_t p) {
    return b->to[p] + b->to_offset;
}

HOTBED_HD void hotbed_bucketize_header(const hotbed_bucketize_view *b, uint32_t p) {
    hotbed_message_header header = {b->counts[p], b->capacity != 0 ? *b->overflow : 0, {0, 0}};
    *hotbed_message_header_of(hotbed_bucketize_message(b, p)) = header;
}

/* The position at which row r begins in the message for rank p; r may be the number of rows. */
HOTBED_HD void hotbed_bucketize_start(const hotbed_bucketize_view *b, uint32_t p, uint32_t r) {
    const uint32_t start =
        hotbed_first_at_least(b->sorted + b->ranks[p], b->counts[p], b->starts[r]);
    hotbed_message_starts(hotbed_bucketize_message(b, p))[r] = start;
    if (b->row_starts != NULL)
        b->row_starts[(uint64_t)p * (b->shape.rows + 1) + r] = start;
}

/* Write the j-th key in order of rank into its message. The key belongs to feature f. */
HOTBED_HD void hotbed_bucketize_key_of(const hotbed_bucketize_view *b, uint32_t j, uint32_t f) {
    uint32_t p = b->sorted_targets[j], i = b->sorted[j], k = j - b->ranks[p];
    uint64_t capacity = b->capacity != 0 ? b->capacity : b->counts[p];
    b->places[i] = j;
    if (k >= capacity)
        return;
    const hotbed_feature_route *r = &b->routes[f];
    uint8_t *message = hotbed_bucketize_message(b, p);
    uint64_t key = b->keys[i];
    hotbed_message_keys(message, b->shape)[k] =
        r->local != 0 ? hotbed_route_local_of(&r->route, key) : key;
    if (b->shape.weighted != 0)
        hotbed_message_weights(message, b->shape, capacity)[k] = b->weights[i];
    if (b->shape.counted != 0) /* at most 2^30: the keys of one rank's batch */
        hotbed_message_counts(message, b->shape, capacity)[k] = (uint32_t)b->key_counts[i];
}

HOTBED_HD void hotbed_bucketize_key(const hotbed_bucketize_view *b, uint32_t j) {
    hotbed_bucketize_key_of(b, j, hotbed_bucketize_feature(b, b->sorted[j]));
}

#endif
