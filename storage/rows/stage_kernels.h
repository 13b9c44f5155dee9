/* storage/rows/stage_kernels.h - writing the descriptor of a staged chunk: the contract of both
 * backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/rows/stage_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_stage_kernels {
    /* Write the descriptor, its slots, and `places`. Async; n > 0. */
    hotbed_status (*write)(const hotbed_stage_args *args, hotbed_stream *stream);
} hotbed_stage_kernels;

extern const hotbed_stage_kernels hotbed_stage_kernels_host;
extern const hotbed_stage_kernels hotbed_stage_kernels_cuda;

HOTBED_END_DECLS
