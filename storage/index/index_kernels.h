/* storage/index/index_kernels.h - the kernels of index calls: the contract of both backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/index/index_call_core.h"

HOTBED_BEGIN_DECLS

/* All are async; n > 0. */
typedef struct hotbed_index_kernels {
    /* Write the slots of keys. */
    hotbed_status (*find)(const hotbed_index_args *args, hotbed_stream *stream);
    /* Write slots and outcomes of keys in one pass, for tables that do not evict. */
    hotbed_status (*claim)(const hotbed_index_args *args, hotbed_stream *stream);
    /* The same in three passes, if a table evicts. `place` appends to the lists of evictions from
     * *num_evicted on and adds to it. `release` is skipped if the caller wants pins. */
    hotbed_status (*hold)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*place)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*release)(const hotbed_index_args *args, hotbed_stream *stream);
    /* Write outcomes: 1 erased, 0 not. */
    hotbed_status (*erase)(const hotbed_index_args *args, hotbed_stream *stream);
    /* Pin or unpin slots; slots without a key are skipped. */
    hotbed_status (*pin)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*unpin)(const hotbed_index_args *args, hotbed_stream *stream);
    /* Free all slots of the range. */
    hotbed_status (*clear)(const hotbed_index_args *args, hotbed_stream *stream);
    /* Count the keys of the range, and write as many as fit into the arrays. */
    hotbed_status (*export_keys)(const hotbed_index_args *args, hotbed_stream *stream);
} hotbed_index_kernels;

extern const hotbed_index_kernels hotbed_index_kernels_host;
extern const hotbed_index_kernels hotbed_index_kernels_cuda;

HOTBED_END_DECLS
