/* dist/balance_core.h - the samples of all ranks, and which of them a rank gets. */
#pragma once

#include "dist/exchange/message_core.h"
#include "storage/step/step_core.h"

typedef struct hotbed_balance_view {
    uint8_t *messages; /* [world] of message_bytes: the features of all ranks */
    uint64_t message_bytes, capacity;
    hotbed_message_shape shape;
    uint32_t num_features, batch_size, world;
    const uint32_t *samples; /* [batch_size] of the new batch: rank * batch_size + sample */
    uint32_t *starts;        /* [num_features * batch_size + 1] */
    int64_t *offsets;        /* `starts` as int64, for the caller */
    uint64_t *keys;          /* [bound] */
    float *weights;          /* [bound], or NULL */
    uint64_t bound;
} hotbed_balance_view;

/* Workload of sample b of a rank with `real` samples: as given, or the number of its keys; 0 for
 * padding. */
HOTBED_HD uint64_t hotbed_balance_workload(
    const uint64_t *given, const uint32_t *starts, uint32_t num_features, uint32_t batch_size,
    uint32_t real, uint32_t b) {
    if (b >= real)
        return 0;
    if (given != NULL)
        return given[b];
    uint64_t keys = 0;
    for (uint32_t f = 0; f < num_features; f++) {
        uint32_t row = f * batch_size + b;
        keys += starts[row + 1] - starts[row];
    }
    return keys;
}

/* Find the message that has row r of the new batch, and the row's number in it. */
HOTBED_HD uint8_t *hotbed_balance_source(const hotbed_balance_view *v, uint32_t r, uint32_t *row) {
    uint32_t f = r / v->batch_size;
    uint32_t sample = v->samples[r - f * v->batch_size], rank = sample / v->batch_size;
    *row = f * v->batch_size + (sample - rank * v->batch_size);
    return v->messages + rank * v->message_bytes;
}

/* Write the length of row r; 0 past the last row, and if the message is incomplete (gather_core.h). */
HOTBED_HD void hotbed_balance_length(const hotbed_balance_view *v, uint32_t r) {
    uint32_t row = 0;
    if (r == v->num_features * v->batch_size) {
        v->starts[r] = 0;
        return;
    }
    const uint32_t *starts = hotbed_message_starts(hotbed_balance_source(v, r, &row));
    uint32_t first = starts[row], end = starts[row + 1];
    v->starts[r] = first <= end && end <= v->capacity ? end - first : 0;
}

HOTBED_HD void hotbed_balance_key(const hotbed_balance_view *v, uint32_t i) {
    uint32_t r = hotbed_part_of(v->starts, v->num_features * v->batch_size, i), row = 0;
    uint8_t *message = hotbed_balance_source(v, r, &row);
    uint32_t k = hotbed_message_starts(message)[row] + (i - v->starts[r]);
    if (k >= v->capacity)
        return;
    v->keys[i] = hotbed_message_keys(message, v->shape)[k];
    if (v->shape.weighted != 0)
        v->weights[i] = hotbed_message_weights(message, v->shape, v->capacity)[k];
}

/* Copy byte `at` of the [batch_size, row_bytes] rows of the new batch. */
HOTBED_HD uint8_t hotbed_balance_byte(
    const uint8_t *all, const uint32_t *samples, uint32_t real, uint64_t row_bytes, uint64_t at) {
    uint64_t b = at / row_bytes;
    return b < real ? all[samples[b] * row_bytes + (at - b * row_bytes)] : 0;
}
