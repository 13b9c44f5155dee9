/* base/carve.h - places several arrays in one block of memory.
 *
 * Write one function that takes the arrays in turn. Call it with base NULL to get the size of the
 * block in `used`, allocate the block, and call it again with the block's address. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct hotbed_carve {
    uint8_t *base;
    size_t used;
} hotbed_carve;

/* The next array, aligned to 256 bytes; NULL if the base is NULL. */
static inline void *hotbed_carve_take(hotbed_carve *carve, size_t bytes) {
    void *at = carve->base == NULL ? NULL : carve->base + carve->used;
    carve->used += (bytes + 255) / 256 * 256;
    return at;
}
