/* storage/step/lookup_kernels.h - the kernels of prefetch, forward and eval: the contract of both
 * backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/step/pool_core.h"

HOTBED_BEGIN_DECLS

/* All are async, and read the number of keys from device memory. If step->to is on, sequence output
 * is written there, and `output` and `stride` are unused. */
typedef struct hotbed_lookup_kernels {
    /* Compute feature_starts and table_starts from the offsets. Invalid offsets latch a fault and
     * make the batch empty. In training it also releases the pins that the ticket may still have
     * (unless `released`), records that the ticket holds pins, counts the prefetch, advances the
     * timer and zeroes num_missing; in eval, it records the epoch and zeroes num_rereads. */
    hotbed_status (*layout)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Compute `bags` from the offsets. */
    hotbed_status (*bags)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Find, score and pin the unique keys. Keys not found go to `missing`. */
    hotbed_status (*find)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Place the missing keys: claim and pin slots, initialize rows, publish keys. Adds to the
     * tallies and latches faults. */
    hotbed_status (*place)(const hotbed_step_view *step, hotbed_stream *stream);
    /* eval: find the slots of all keys, without dedup and without side effects. */
    hotbed_status (*find_keys)(const hotbed_step_view *step, hotbed_stream *stream);
    /* eval, sequence output: find_keys and forward in one. If eval.sort.order is set, CUDA reads
     * lower-tier rows in address order, because the link is slow for random addresses. */
    hotbed_status (*eval_rows)(
        const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
        hotbed_stream *stream);
    /* Write output rows from slots. max_dim is the largest dim of the storage. */
    hotbed_status (*forward)(
        const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
        hotbed_stream *stream);
    /* eval, last kernel, in storages whose keys can leave their slots: read the keys or bags in
     * `rereads` again, which a concurrent prefetch may have changed. */
    hotbed_status (*again)(
        const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream);
    /* Release the ticket's pins of kind `why` (HOTBED_HELD_BATCH or HOTBED_HELD_KEPT). The caller
     * calls hold() next. */
    hotbed_status (*unpin)(const hotbed_step_view *step, uint32_t why, hotbed_stream *stream);
    /* Add a second pin to the step's slots, which are all pinned. */
    hotbed_status (*pin_again)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Record on the device that the ticket has pins of kind `why`, or has none. */
    hotbed_status (*hold)(
        const hotbed_step_view *step, uint32_t why, bool on, hotbed_stream *stream);
} hotbed_lookup_kernels;

extern const hotbed_lookup_kernels hotbed_lookup_kernels_host;
extern const hotbed_lookup_kernels hotbed_lookup_kernels_cuda;

HOTBED_END_DECLS
