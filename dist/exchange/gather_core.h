/* dist/exchange/gather_core.h - from the messages of all ranks to one batch: by feature, rank, sample.
 *
 * A segment has the keys that one rank sent for one feature. Segments are ordered by feature, then
 * rank; the keys of a segment keep the order of the message.
 *
 * The contents of a message are not trusted: after a failed exchange, the work that was already
 * enqueued reads messages that are incomplete or never arrived. An invalid message makes the batch
 * empty, as an overflow does, so that nothing is read or written out of bounds. */
#pragma once

#include "dist/exchange/wire_core.h"
#include "storage/step/step_core.h"

typedef struct hotbed_gather_view {
    uint8_t *const *from; /* [world] messages */
    uint64_t from_offset; /* offset in bytes */
    /* capacity of each message in keys; 0: capacities[p * capacity_stride] for rank p */
    uint64_t capacity;
    const uint32_t *capacities;
    uint64_t capacity_stride;
    hotbed_message_shape shape;
    uint32_t num_features, batch_size, world; /* shape.rows = num_features * batch_size */
    uint32_t *segments; /* [num_features * world + 1] first key of each segment */
    uint32_t *firsts;   /* [num_features * world] where each segment begins in its message */
    /* one word, 0 before the call; set if a rank had more keys than a message holds, or sent an
     * invalid message: all messages then count as empty */
    uint32_t *overflow;
    uint64_t *keys;   /* [bound] */
    float *weights;   /* [bound]; NULL unless shape.weighted */
    uint32_t *counts; /* [bound] occurrences that each key stands for; NULL unless shape.counted */
    /* by_sample: [num_features * world * batch_size + 1]; otherwise one per feature,
     * [num_features + 1] */
    int64_t *offsets;
    uint32_t by_sample;
    uint64_t bound;
    uint32_t *arrived;     /* [world] keys that each rank sent; NULL: not wanted */
    hotbed_wire_view wire; /* of the keys */
    /* Batches in a row that overflowed, in device memory and, for the host, in pinned memory; NULL:
     * not counted, as are the batch and its overflow in wire.counts. */
    uint64_t *repeated, *host_repeated;
    uint64_t *host_overflow; /* pinned: a copy of `overflow`; NULL: not wanted */
} hotbed_gather_view;

HOTBED_HD uint32_t hotbed_gather_segments(const hotbed_gather_view *g) {
    return g->num_features * g->world;
}

HOTBED_HD uint8_t *hotbed_gather_message(const hotbed_gather_view *g, uint32_t rank) {
    return g->from[rank] + g->from_offset;
}

HOTBED_HD uint64_t hotbed_gather_capacity(const hotbed_gather_view *g, uint32_t rank) {
    return g->capacity != 0 ? g->capacity : g->capacities[rank * g->capacity_stride];
}

/* Write `arrived`, and count the bytes of the messages. Called by one lane. */
HOTBED_HD void hotbed_gather_arrivals(const hotbed_gather_view *g) {
    for (uint32_t p = 0; p < g->world && g->arrived != NULL; p++) {
        const hotbed_message_header *header = hotbed_message_header_of(hotbed_gather_message(g, p));
        uint64_t most = hotbed_gather_capacity(g, p);
        g->arrived[p] = header->count < most ? header->count : (uint32_t)most;
    }
    hotbed_wire_count(&g->wire);
}

/* Count the batch, and tell the host whether it overflowed. Called by one lane after the segments
 * are written. */
HOTBED_HD void hotbed_gather_tally(const hotbed_gather_view *g) {
    if (g->host_overflow != NULL)
        hotbed_store_system_u64(g->host_overflow, *g->overflow);
    if (g->repeated == NULL)
        return;
    const uint32_t overflowed = *g->overflow != 0 ? 1 : 0;
    *g->repeated = overflowed != 0 ? *g->repeated + 1 : 0;
    hotbed_store_system_u64(g->host_repeated, *g->repeated);
    (void)hotbed_add_relaxed_u64(&g->wire.counts->batches, 1);
    (void)hotbed_add_relaxed_u64(&g->wire.counts->overflows, overflowed);
}

/* Write where segment q begins in its message, and return its length, or 0 if q is past the last
 * segment; sums of the lengths are the segments. A segment ends where the next segment of the same
 * rank begins, so if the starts ascend, the sum of the lengths is within the message's capacity. */
HOTBED_HD uint32_t hotbed_gather_length(const hotbed_gather_view *g, uint32_t q) {
    if (q == hotbed_gather_segments(g)) {
        hotbed_gather_arrivals(g);
        return 0;
    }
    uint32_t f = q / g->world, rank = q - f * g->world;
    uint8_t *message = hotbed_gather_message(g, rank);
    const uint32_t *starts = hotbed_message_starts(message);
    uint32_t first = starts[f * g->batch_size], end = starts[(f + 1) * g->batch_size];
    bool good = hotbed_message_header_of(message)->overflow == 0 && first <= end &&
                end <= hotbed_gather_capacity(g, rank);
    g->firsts[q] = first;
    if (!good)
        (void)hotbed_cas_relaxed_u32(g->overflow, 0, 1);
    return good ? end - first : 0;
}

/* The number of keys received. */
HOTBED_HD uint32_t hotbed_gather_count(const hotbed_gather_view *g) {
    return *g->overflow != 0 ? 0 : g->segments[hotbed_gather_segments(g)];
}

HOTBED_HD void hotbed_gather_key(const hotbed_gather_view *g, uint32_t m) {
    uint32_t q = hotbed_part_of(g->segments, hotbed_gather_segments(g), m);
    uint8_t *message = hotbed_gather_message(g, q % g->world);
    uint32_t k = g->firsts[q] + (m - g->segments[q]);
    g->keys[m] = hotbed_message_keys(message, g->shape)[k];
    uint64_t capacity = hotbed_gather_capacity(g, q % g->world);
    if (g->shape.weighted != 0)
        g->weights[m] = hotbed_message_weights(message, g->shape, capacity)[k];
    if (g->shape.counted != 0)
        g->counts[m] = hotbed_message_counts(message, g->shape, capacity)[k];
}

HOTBED_HD uint64_t hotbed_gather_offsets(const hotbed_gather_view *g) {
    return g->by_sample != 0 ? (uint64_t)hotbed_gather_segments(g) * g->batch_size + 1
                             : (uint64_t)g->num_features + 1;
}

/* Bags that are out of order are left to the lookup, which checks every offset. */
HOTBED_HD void hotbed_gather_offset(const hotbed_gather_view *g, uint64_t r) {
    if (r == 0)
        hotbed_gather_tally(g);
    if (*g->overflow != 0) {
        g->offsets[r] = 0;
        return;
    }
    if (r + 1 == hotbed_gather_offsets(g)) {
        g->offsets[r] = g->segments[hotbed_gather_segments(g)];
        return;
    }
    if (g->by_sample == 0) {
        g->offsets[r] = g->segments[r * g->world];
        return;
    }
    uint32_t q = (uint32_t)(r / g->batch_size),
             sample = (uint32_t)(r - (uint64_t)q * g->batch_size);
    uint32_t f = q / g->world;
    const uint32_t *starts = hotbed_message_starts(hotbed_gather_message(g, q - f * g->world));
    uint32_t inside = starts[f * g->batch_size + sample] - g->firsts[q];
    g->offsets[r] = (int64_t)g->segments[q] + inside;
}
