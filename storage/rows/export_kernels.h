/* storage/rows/export_kernels.h - the kernels of exports: the contract of both backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/rows/export_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_export_kernels {
    /* Write `bits`, and the counts in `starts`; the last count is 0. */
    hotbed_status (*choose)(const hotbed_export_args *args, hotbed_stream *stream);
    /* After the counts have been summed: write the output arrays and `count`. */
    hotbed_status (*write)(const hotbed_export_args *args, hotbed_stream *stream);
} hotbed_export_kernels;

extern const hotbed_export_kernels hotbed_export_kernels_host;
extern const hotbed_export_kernels hotbed_export_kernels_cuda;

HOTBED_END_DECLS
