/* dist/exchange/wire_core.h - bytes that a rank exchanges with others, counted where the numbers of keys are. */
#pragma once

#include "dist/exchange/message_core.h"

typedef enum hotbed_wire_phase {
    HOTBED_WIRE_KEYS,
    HOTBED_WIRE_ROWS, /* or sums */
    HOTBED_WIRE_GRADIENTS,
    HOTBED_WIRE_PHASES,
} hotbed_wire_phase;

/* The counters of a collection, in device memory. Contexts on several streams add to them. */
typedef struct hotbed_wire_counts {
    uint64_t batches, overflows;
    uint64_t sent[HOTBED_WIRE_PHASES], received[HOTBED_WIRE_PHASES]; /* bytes */
} hotbed_wire_counts;

/* What one phase of a batch moves. */
typedef struct hotbed_wire_view {
    hotbed_wire_counts *counts; /* NULL: not counted */
    /* [world] keys or rows for each rank and from each rank; NULL: `most` each */
    const uint32_t *sent, *received;
    uint64_t most;              /* a larger number counts as `most` */
    const uint32_t *overflow;   /* one word: if it is not 0, nothing moves; NULL: 0 */
    hotbed_message_shape shape; /* of messages */
    uint64_t row_bytes;         /* 0: messages */
    uint32_t phase, world, rank;
} hotbed_wire_view;

HOTBED_HD uint64_t
hotbed_wire_bytes(const hotbed_wire_view *v, const uint32_t *numbers, uint32_t rank) {
    uint64_t n = numbers == NULL || numbers[rank] > v->most ? v->most : numbers[rank];
    return hotbed_part_bytes(v->shape, v->row_bytes, n);
}

/* Called by one lane. */
HOTBED_HD void hotbed_wire_count(const hotbed_wire_view *v) {
    uint64_t sent = 0, received = 0;
    if (v->counts == NULL || (v->overflow != NULL && *v->overflow != 0))
        return;
    for (uint32_t p = 0; p < v->world; p++) {
        if (p == v->rank)
            continue;
        sent += hotbed_wire_bytes(v, v->sent, p);
        received += hotbed_wire_bytes(v, v->received, p);
    }
    /* The host reads them after a sync. */
    (void)hotbed_add_relaxed_u64(&v->counts->sent[v->phase], sent);
    (void)hotbed_add_relaxed_u64(&v->counts->received[v->phase], received);
}
