/* dist/bucketize_core.h - from the keys of a batch to a message for each rank.
 *
 * The keys are sorted by the rank that owns them, equal ranks in the order of the batch: rows follow each
 * other in it, so they do in each message, and keys of a row keep their order.  Where a row begins in a
 * message follows from where it begins in the batch, by a search among the message's positions.
 */
#ifndef HOTBED_DIST_BUCKETIZE_CORE_H
#define HOTBED_DIST_BUCKETIZE_CORE_H

#include "dist/message_core.h"
#include "dist/route_core.h"
#include "storage/step_core.h"

/* Who gets a feature's keys, and whether as local ids. */
typedef struct hotbed_feature_route {
    hotbed_route route;
    uint64_t local;
} hotbed_feature_route;

typedef struct hotbed_bucketize_view {
    /* the batch: n = starts[shape.rows] keys in the order of rows */
    const uint64_t *keys;       /* [bound] */
    const float *weights;       /* [bound]; NULL unless shape.weighted */
    const uint64_t *key_counts; /* [bound] occurrences of each; not read unless shape.counted */
    const uint32_t *starts;     /* [shape.rows + 1] */
    const hotbed_feature_route *routes; /* [shape.rows / batch_size] */
    uint64_t bound;
    uint32_t batch_size; /* rows of a feature */
    uint32_t world;
    /* the order by rank */
    uint32_t *targets;        /* [bound] rank of each key; `world` past the last */
    uint32_t *numbers;        /* [bound] 0, 1, 2, ... */
    uint32_t *sorted_targets; /* [bound] */
    uint32_t *sorted;         /* [bound] the keys' numbers by rank */
    uint32_t *places;         /* [bound] of key i: where it is in `sorted` */
    uint32_t *ranks;          /* [world + 1] where each rank's begin in `sorted` */
    uint32_t *counts;         /* [world] keys for each rank */
    uint32_t *overflow;       /* one word, 0 before: set when a count is over the capacity */
    /* the messages */
    uint8_t *const *to; /* [world] */
    uint64_t to_offset; /* bytes from there */
    uint64_t capacity;  /* of each message; 0: as many as it has keys */
    hotbed_message_shape shape;
} hotbed_bucketize_view;

/* First position of an ascending array whose value is not below `value`; n where there is none. */
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

HOTBED_HD void hotbed_bucketize_target(const hotbed_bucketize_view *b, uint32_t i) {
    b->numbers[i] = i;
    b->targets[i] = b->world;
    if (i >= b->starts[b->shape.rows])
        return;
    uint32_t row = hotbed_part_of(b->starts, b->shape.rows, i);
    b->targets[i] = hotbed_route_rank_of(&b->routes[row / b->batch_size].route, b->keys[i]);
}

/* p up to `world`. */
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

/* Where row r begins in the message for rank p; r up to the number of rows. */
HOTBED_HD void hotbed_bucketize_start(const hotbed_bucketize_view *b, uint32_t p, uint32_t r) {
    hotbed_message_starts(hotbed_bucketize_message(b, p))[r] =
        hotbed_first_at_least(b->sorted + b->ranks[p], b->counts[p], b->starts[r]);
}

/* Put the j-th key by rank into its message. */
HOTBED_HD void hotbed_bucketize_key(const hotbed_bucketize_view *b, uint32_t j) {
    uint32_t p = b->sorted_targets[j], i = b->sorted[j], k = j - b->ranks[p];
    uint64_t capacity = b->capacity != 0 ? b->capacity : b->counts[p];
    b->places[i] = j;
    if (k >= capacity)
        return;
    uint32_t row = hotbed_part_of(b->starts, b->shape.rows, i);
    const hotbed_feature_route *r = &b->routes[row / b->batch_size];
    uint8_t *message = hotbed_bucketize_message(b, p);
    uint64_t key = b->keys[i];
    hotbed_message_keys(message, b->shape)[k] =
        r->local != 0 ? hotbed_route_local_of(&r->route, key) : key;
    if (b->shape.weighted != 0)
        hotbed_message_weights(message, b->shape, capacity)[k] = b->weights[i];
    if (b->shape.counted != 0) /* of a rank's batch: 2^30 at most */
        hotbed_message_counts(message, b->shape, capacity)[k] = (uint32_t)b->key_counts[i];
}

#endif
