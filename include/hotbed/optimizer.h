/* hotbed/optimizer.h - optimizer steps on rows outside of a storage.
 *
 * Experimental: all calls.
 *
 * For programs that keep rows themselves: load rows into a buffer, update them, store them again.
 * Each row gets the same bytes as from hotbed_storage_apply(). The counterpart of dynamicemb's
 * update_for_padded_buffer.
 *
 *       hotbed_optimizer sgd;
 *       hotbed_optimizer_init(&sgd);
 *       sgd.kind = HOTBED_OPT_SGD;
 *       hotbed_optimizer_clock start;
 *       hotbed_optimizer_clock_init(&start, &sgd);
 *       hotbed_copy(clock, &start, sizeof start, stream); // clock: device memory of yours
 *       hotbed_row_update update = {.size = sizeof update, .n = n, .dim = dim};
 *       update.rows.weights = weights, update.gradients = gradients; // device [n, dim]
 *       hotbed_optimizer_step(&sgd, clock, stream); // once per step
 *       hotbed_optimizer_update_rows(&sgd, clock, &update, stream); // once per table */
#ifndef HOTBED_OPTIMIZER_H
#define HOTBED_OPTIMIZER_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

HOTBED_BEGIN_DECLS

/* The state that changes from step to step. It is in device memory, so that launched graphs see the
 * changes: the caller allocates it there and copies an initialized clock to it. To change the
 * learning rate, copy the new value to its field. Frozen: the struct has no `size`. */
typedef struct hotbed_optimizer_clock {
    uint64_t steps;     /* Adam's t */
    double beta1_power; /* beta1^t and beta2^t, as running products */
    double beta2_power;
    float learning_rate;
} hotbed_optimizer_clock;

/* Initialize the clock of an optimizer that has made no step. Synchronous; `clock` is host memory. */
HOTBED_API void hotbed_optimizer_clock_init(
    hotbed_optimizer_clock *clock, const hotbed_optimizer *optimizer);

/* Count one optimizer step: once per step, before the rows of all its tables are updated.
 * Asynchronous.
 *   clock  in, out  device
 * Errors: ARGUMENT (NULL; the optimizer's field and its value). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_optimizer_step(
    const hotbed_optimizer *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream);

/* n rows and their gradients. 0 is the default of every field but `size`. */
typedef struct hotbed_row_update {
    uint32_t size;      /* sizeof(hotbed_row_update) */
    uint32_t dim;       /* elements of an embedding, 1 .. 4096; required */
    uint64_t n;         /* number of rows */
    hotbed_dtype dtype; /* of the embeddings; 0 is F32 */
    /* in, out: weights and every state that the optimizer has; no scores */
    hotbed_rows rows;
    /* 0: each part is a dense array. Otherwise row i of every part is i * row_bytes after the
     * pointer of the part, as for rows of a flat table or rows padded to equal size; a multiple of
     * the element size of each part. INT8 and FP8: rows begin at multiples of 4, so it must be set unless
     * a row's bytes are one */
    uint64_t row_bytes;
    const float *gradients; /* [n, dim] in: summed gradients of the rows; they are not clamped */
    /* [n] in: rows and states narrower than F32 are rounded at random, as those of a storage's table with
     * these keys, this name and this seed; see hotbed_rounding. NULL: to nearest */
    const uint64_t *keys;
    const char *name;         /* of the table; required with `keys` */
    uint64_t seed;            /* the storage's */
    hotbed_dtype state_dtype; /* F32 (0 is the same) or BF16, as in hotbed_table_options */
} hotbed_row_update;

/* Apply one optimizer step to n rows, in place. Asynchronous; can be recorded into a graph. All
 * pointers are device memory, or other memory that kernels can access.
 *   clock  in  device; hotbed_optimizer_step() has counted this step
 * Errors: ARGUMENT (NULL; a field and its value; a state that the optimizer does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_optimizer_update_rows(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_clock *clock,
    const hotbed_row_update *update, hotbed_stream *stream);

HOTBED_END_DECLS
#endif
