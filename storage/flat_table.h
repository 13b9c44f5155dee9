/* storage/flat_table.h - the inside of a flat table, for its tests. */
#ifndef HOTBED_STORAGE_FLAT_TABLE_H
#define HOTBED_STORAGE_FLAT_TABLE_H

#include "hotbed/flat_table.h"

/* hotbed_flat_table_create(), but rows that kernels cannot reach on CUDA go through the staging area on
 * every backend, `chunk` rows at a time (0: as many as it holds by default). */
hotbed_status hotbed_flat_table_create_staged(
    const hotbed_flat_table_options *options, uint64_t chunk, hotbed_stream *stream,
    hotbed_flat_table **out);

#endif
