/* storage/rows/changes_kernels.h - the kernels of positions and removed keys: the contract of both
 * backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/rows/changes_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_changes_kernels {
    /* `slots`: of all tables, as far as the caller knows. */
    hotbed_status (*position)(
        const hotbed_position_args *args, uint64_t slots, hotbed_stream *stream);
    /* Make all positions lose keys. */
    hotbed_status (*lose)(hotbed_tracker *tracker, hotbed_stream *stream);
    /* `most`: capacity of the log. */
    hotbed_status (*removed)(const hotbed_removed_args *args, uint64_t most, hotbed_stream *stream);
} hotbed_changes_kernels;

extern const hotbed_changes_kernels hotbed_changes_kernels_host;
extern const hotbed_changes_kernels hotbed_changes_kernels_cuda;

HOTBED_END_DECLS
