/* storage/tiers/tier_external_kernels.h - a cache over an external store: the contract of both backends.
 * See tier_external_core.h for the passes. */
#pragma once

#include "hotbed/stream.h"
#include "storage/tiers/tier_external_core.h"

HOTBED_BEGIN_DECLS

/* Each runs one pass of its kind. Async. */
typedef struct hotbed_tier_external_kernels {
    hotbed_status (*step)(
        const hotbed_store_step *args, hotbed_store_pass pass, hotbed_stream *stream);
    /* WANT, ASK or ANSWER. */
    hotbed_status (*eval)(
        const hotbed_store_eval *args, hotbed_store_pass pass, hotbed_stream *stream);
    hotbed_status (*rows)(
        const hotbed_store_rows *args, hotbed_store_pass pass, hotbed_stream *stream);
    hotbed_status (*flush)(
        const hotbed_store_flush *args, hotbed_store_pass pass, hotbed_stream *stream);
} hotbed_tier_external_kernels;

extern const hotbed_tier_external_kernels hotbed_tier_external_kernels_host;
extern const hotbed_tier_external_kernels hotbed_tier_external_kernels_cuda;

HOTBED_END_DECLS
