/* hotbed/optimizer.h - optimiser steps on rows that are in no storage.
 *
 * For storage of the caller's own: load rows into a buffer, step them, store them again.  Each row gets the
 * bytes that hotbed_storage_apply() would give it.  dynamicemb's update_for_padded_buffer.
 */
#ifndef HOTBED_OPTIMIZER_H
#define HOTBED_OPTIMIZER_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What changes from step to step.  It is in device memory, so that graphs see the change: the caller
 * allocates it, and copies an initialised one there.  A new learning rate is copied to its place. */
typedef struct hotbed_optimizer_clock {
    uint64_t steps;     /* Adam's t */
    double beta1_power; /* beta1^t and beta2^t, as running products */
    double beta2_power;
    float learning_rate;
} hotbed_optimizer_clock;

static inline void hotbed_optimizer_clock_init(
    hotbed_optimizer_clock *clock, const hotbed_optimizer *optimizer) {
    memset(clock, 0, sizeof *clock);
    clock->beta1_power = clock->beta2_power = 1.0;
    clock->learning_rate = optimizer->learning_rate;
}

/* Count one optimiser step: once, before the rows of all tables of a step are updated.  Async.
 *   clock  in, out  device
 * Errors: ARGUMENT (NULL; the optimizer's field and its value). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_optimizer_step(
    const hotbed_optimizer *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream);

/* n rows and their gradients.  Call hotbed_row_update_init(), then set fields. */
typedef struct hotbed_row_update {
    uint32_t size;      /* set by init */
    uint32_t dim;       /* elements of an embedding, 1 .. 4096; required */
    uint64_t n;         /* rows */
    hotbed_dtype dtype; /* of the embeddings; 0 is F32 */
    hotbed_rows rows;   /* in, out: weights and each state that the optimiser has, no scores */
    uint64_t row_bytes; /* 0: each part is a dense array.  Else row i of every part is i * row_bytes
                         * after its pointer: rows of a flat table, or padded to equal size; a
                         * multiple of the element size, and of 4 when there are states */
    const float *gradients; /* [n, dim] in: the rows' summed gradients; they are not clamped */
} hotbed_row_update;

static inline void hotbed_row_update_init(hotbed_row_update *update) {
    memset(update, 0, sizeof *update);
    update->size = sizeof *update;
}

/* One optimiser step of n rows, in place.  Async; can be recorded into a graph.  All pointers are device
 * memory, or what kernels reach.
 *   clock  in  device; hotbed_optimizer_step() has counted this step
 * Errors: ARGUMENT (NULL; a field and its value; a state that the optimiser does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_optimizer_update_rows(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_clock *clock,
    const hotbed_row_update *update, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
