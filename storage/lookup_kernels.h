/* storage/lookup_kernels.h - the kernels of prefetch, forward and eval: the contract of both backends. */
#ifndef HOTBED_STORAGE_LOOKUP_KERNELS_H
#define HOTBED_STORAGE_LOOKUP_KERNELS_H

#include "hotbed/stream.h"
#include "storage/lookup_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All are async and loop to the number of keys or uniques that the device holds. */
typedef struct hotbed_lookup_kernels {
    /* feature_starts and table_starts from the offsets; offsets that cannot be latch a fault and make the
     * batch empty.  In training it first takes off the pins that the ticket has yet, unless `released` says that
     * there are none, and notes that it holds the batch's; it counts the prefetch, moves the timer and zeroes
     * num_missing. */
    hotbed_status (*layout)(const hotbed_step_view *step, hotbed_stream *stream);
    /* bags from the offsets. */
    hotbed_status (*bags)(const hotbed_step_view *step, hotbed_stream *stream);
    /* slots of the uniques that are found, scored and pinned; the others go to `missing`. */
    hotbed_status (*find)(const hotbed_step_view *step, hotbed_stream *stream);
    /* slots of the missing: claimed and pinned, rows initialised, keys published; tallies, faults. */
    hotbed_status (*place)(const hotbed_step_view *step, hotbed_stream *stream);
    /* eval: slots of all keys, without dedup, changing nothing. */
    hotbed_status (*find_keys)(const hotbed_step_view *step, hotbed_stream *stream);
    /* eval, sequence output: find_keys and forward at once.  With move_order rows of the lower tier are read by
     * address on CUDA, where the link is slow for others; slots is used for that alone. */
    hotbed_status (*eval_rows)(
        const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
        hotbed_stream *stream);
    /* Output rows from slots.  max_dim is the largest dim of the storage. */
    hotbed_status (*forward)(
        const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
        hotbed_stream *stream);
    /* eval, at its end, in a storage that evicts or has two tiers: the keys or bags that were noted because a prefetch beside
     * it may have changed what was read. */
    hotbed_status (*again)(
        const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream);
    /* Take off the ticket's pins that are on for `why`, one of HOTBED_HELD_BATCH and _KEPT; hold() is to follow. */
    hotbed_status (*unpin)(const hotbed_step_view *step, uint32_t why, hotbed_stream *stream);
    /* Pin the step's slots, all of which are pinned already, once more. */
    hotbed_status (*pin_again)(const hotbed_step_view *step, hotbed_stream *stream);
    /* The ticket has pins for `why` from now on, or no more. */
    hotbed_status (*hold)(
        const hotbed_step_view *step, uint32_t why, bool on, hotbed_stream *stream);
} hotbed_lookup_kernels;

extern const hotbed_lookup_kernels hotbed_lookup_kernels_host;
extern const hotbed_lookup_kernels hotbed_lookup_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
