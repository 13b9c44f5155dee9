/* dist/exchange/message_core.h - what one rank sends another about keys, and the layout of it.
 *
 * A message has a header, the position at which each row begins among its keys, the keys row by
 * row, and, if the keys have them, weights and counts of occurrences. It has a capacity in keys:
 * their number if the host knows sizes, or a fixed number. Every part begins at a multiple of 16
 * bytes. */
#pragma once

#include "base/port.h"

typedef struct hotbed_message_header {
    uint32_t count; /* keys */
    /* 1: some message of the sender's batch, this one or another, has too little capacity for its
     * keys; no rank uses any of the messages */
    uint32_t overflow;
    uint32_t unused[2];
} hotbed_message_header;

typedef struct hotbed_message_shape {
    uint32_t rows;
    uint32_t weighted, counted;
} hotbed_message_shape;

HOTBED_HD uint64_t hotbed_round16(uint64_t bytes) {
    return (bytes + 15) / 16 * 16;
}

/* Round up to whole lines of a GPU's memory, so that a row that fills lines does not begin within
 * one: stores to parts of lines take 12 to 33 % longer over NVLink. */
HOTBED_HD uint64_t hotbed_whole_lines(uint64_t bytes) {
    return (bytes + 127) / 128 * 128;
}

HOTBED_HD uint64_t hotbed_message_keys_at(hotbed_message_shape shape) {
    return sizeof(hotbed_message_header) +
           hotbed_round16(((uint64_t)shape.rows + 1) * sizeof(uint32_t));
}

HOTBED_HD uint64_t hotbed_message_weights_at(hotbed_message_shape shape, uint64_t capacity) {
    return hotbed_message_keys_at(shape) + hotbed_round16(capacity * sizeof(uint64_t));
}

HOTBED_HD uint64_t hotbed_message_counts_at(hotbed_message_shape shape, uint64_t capacity) {
    return hotbed_message_weights_at(shape, capacity) +
           (shape.weighted != 0 ? hotbed_round16(capacity * sizeof(float)) : 0);
}

HOTBED_HD uint64_t hotbed_message_bytes(hotbed_message_shape shape, uint64_t capacity) {
    return hotbed_message_counts_at(shape, capacity) +
           (shape.counted != 0 ? hotbed_round16(capacity * sizeof(uint32_t)) : 0);
}

HOTBED_HD hotbed_message_header *hotbed_message_header_of(uint8_t *message) {
    return (hotbed_message_header *)(void *)message;
}

/* [rows + 1] */
HOTBED_HD uint32_t *hotbed_message_starts(uint8_t *message) {
    return (uint32_t *)(void *)(message + sizeof(hotbed_message_header));
}

HOTBED_HD uint64_t *hotbed_message_keys(uint8_t *message, hotbed_message_shape shape) {
    return (uint64_t *)(void *)(message + hotbed_message_keys_at(shape));
}

HOTBED_HD float *hotbed_message_weights(
    uint8_t *message, hotbed_message_shape shape, uint64_t capacity) {
    return (float *)(void *)(message + hotbed_message_weights_at(shape, capacity));
}

HOTBED_HD uint32_t *hotbed_message_counts(
    uint8_t *message, hotbed_message_shape shape, uint64_t capacity) {
    return (uint32_t *)(void *)(message + hotbed_message_counts_at(shape, capacity));
}

/* Compute the bounds of the parts for n ranks in one buffer. */
typedef struct hotbed_aim_view {
    uint8_t *base;
    const uint32_t *counts; /* keys for, or from, rank p: counts[p * stride] */
    uint64_t stride;
    uint8_t **to; /* [world] out */
    /* [world] bounds of other parts: the part of `rank` is at own[rank]; NULL: in `base` too */
    uint8_t *const *own;
    uint32_t rank;
    hotbed_message_shape shape;
    uint64_t row_bytes; /* 0: messages; otherwise rows of so many bytes, one per key */
    uint32_t world;
} hotbed_aim_view;

HOTBED_HD uint64_t
hotbed_part_bytes(hotbed_message_shape shape, uint64_t row_bytes, uint64_t count) {
    return row_bytes == 0 ? hotbed_message_bytes(shape, count) : count * row_bytes;
}

/* Called by one lane. */
HOTBED_HD void hotbed_aim(const hotbed_aim_view *a) {
    uint64_t at = 0;
    for (uint32_t p = 0; p < a->world; p++) {
        a->to[p] = a->base + at;
        at += hotbed_part_bytes(a->shape, a->row_bytes, a->counts[p * a->stride]);
    }
    if (a->own != NULL)
        a->to[a->rank] = a->own[a->rank];
}
