/* storage/step/pool_host.h - adding rows on the host. */
#pragma once

#include "base/host_set.h"

enum {
    HOTBED_POOL_RING = 64,
    HOTBED_POOL_AHEAD = 16, /* rows prefetched before the current one is added */
};

/* The rows of keys of one table; key number i has entry i % HOTBED_POOL_RING. */
typedef struct hotbed_pool_rows {
    const uint8_t *row[HOTBED_POOL_RING];
    float weight[HOTBED_POOL_RING];
    uint32_t end; /* the rows of keys up to this one are known */
} hotbed_pool_rows;

/* Add the rows of n keys from `first` on to sum[0 .. dim-1], each times its weight, in order.
 * Prefetch the rows of the keys that are HOTBED_POOL_AHEAD later, up to rows->end. */
void hotbed_pool_add(
    hotbed_host_set set, const hotbed_pool_rows *rows, uint32_t first, uint32_t n, uint32_t dtype,
    uint32_t dim, float *sum);
