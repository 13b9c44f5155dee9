/* storage/rows/flat_table.h - internals of flat tables, for tests. */
#pragma once

#include "hotbed/flat_table.h"

/* Like hotbed_flat_table_create(), but rows that CUDA kernels cannot address go through the staging
 * buffer on every backend, `chunk` rows at a time (0: the default size). */
hotbed_status hotbed_flat_table_create_staged(
    const hotbed_flat_table_options *options, uint64_t chunk, hotbed_stream *stream,
    hotbed_flat_table **out);
