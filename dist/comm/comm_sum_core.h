/* dist/comm/comm_sum_core.h - one element of a sum over ranks, added in rank order. */
#pragma once

#include "base/port.h"

typedef struct hotbed_comm_sum_args {
    const float *parts; /* [size, n], rank by rank */
    uint64_t n;
    uint32_t size;
    float scale;
    float *out; /* [n] */
} hotbed_comm_sum_args;

HOTBED_HD void hotbed_comm_sum_one(const hotbed_comm_sum_args *a, uint64_t i) {
    float sum = a->parts[i];
    for (uint32_t p = 1; p < a->size; p++)
        sum += a->parts[p * a->n + i];
    a->out[i] = sum * a->scale;
}
