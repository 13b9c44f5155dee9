/* storage/tiers/tier_kernels.h - moving rows between tiers: the contract of both backends. tier_core.h
 * has the algorithm. */
#pragma once

#include "hotbed/stream.h"
#include "storage/tiers/tier_core.h"

HOTBED_BEGIN_DECLS

/* All are async, and read the number of missing keys from device memory. */
typedef struct hotbed_tier_kernels {
    /* Find and pin the lower-tier slots of the missing keys; initialize `moves`. */
    hotbed_status (*seek)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Replaces hotbed_lookup_kernels.place: claim slots in either tier, move and initialize rows,
     * publish keys. Adds to the tallies and latches faults. */
    hotbed_status (*move)(const hotbed_step_view *step, hotbed_stream *stream);
    /* Write changed rows and all scores of the upper tier to the lower tier. */
    hotbed_status (*flush)(const hotbed_flush_args *args, hotbed_stream *stream);
} hotbed_tier_kernels;

extern const hotbed_tier_kernels hotbed_tier_kernels_host;
extern const hotbed_tier_kernels hotbed_tier_kernels_cuda;

HOTBED_END_DECLS
