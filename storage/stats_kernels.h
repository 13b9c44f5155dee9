/* storage/stats_kernels.h - the kernels of meters and histograms: the contract of both backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/stats_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_stats_kernels {
    /* Write the next record of the meter. */
    hotbed_status (*record)(const hotbed_meter_view *meter, hotbed_stream *stream);
    /* Add the number of buckets with k used slots to loads[k]. `loads` is device memory,
     * [HOTBED_LOADS]. */
    hotbed_status (*load)(
        hotbed_index_view index, hotbed_index_range range, uint64_t *loads, hotbed_stream *stream);
} hotbed_stats_kernels;

extern const hotbed_stats_kernels hotbed_stats_kernels_host;
extern const hotbed_stats_kernels hotbed_stats_kernels_cuda;

HOTBED_END_DECLS
