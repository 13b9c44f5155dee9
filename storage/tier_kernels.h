/* storage/tier_kernels.h - rows that move between tiers: the contract of both backends.  See tier_core.h. */
#ifndef HOTBED_STORAGE_TIER_KERNELS_H
#define HOTBED_STORAGE_TIER_KERNELS_H

#include "hotbed/stream.h"
#include "storage/tier_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Async; all loop to the number of missing that the device holds. */
typedef struct hotbed_tier_kernels {
    /* Homes of the missing, pinned; moves. */
    hotbed_status (*seek)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Instead of hotbed_lookup_kernels.place: slots of the missing, in either tier, and pinned; rows moved
     * and initialised, keys published; tallies, faults. */
    hotbed_status (*move)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Write changed rows and scores of the upper tier back to the lower tier. */
    hotbed_status (*flush)(const hotbed_flush_args *args, hotbed_stream *stream);
} hotbed_tier_kernels;

extern const hotbed_tier_kernels hotbed_tier_kernels_host;
extern const hotbed_tier_kernels hotbed_tier_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
