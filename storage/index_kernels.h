/* storage/index_kernels.h - calls on the index: the contract of both backends. */
#ifndef HOTBED_STORAGE_INDEX_KERNELS_H
#define HOTBED_STORAGE_INDEX_KERNELS_H

#include "hotbed/stream.h"
#include "storage/index_call_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All are async; n is above 0. */
typedef struct hotbed_index_kernels {
    /* slots of keys. */
    hotbed_status (*find)(const hotbed_index_args *args, hotbed_stream *stream);
    /* slots and outcomes of keys, in tables that do not evict: one pass. */
    hotbed_status (*claim)(const hotbed_index_args *args, hotbed_stream *stream);
    /* The same where tables may evict: hold, then place, which appends to the evicted lists from
     * *num_evicted on and adds to it; then release, unless pins are wanted. */
    hotbed_status (*hold)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*place)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*release)(const hotbed_index_args *args, hotbed_stream *stream);
    /* outcomes: 1 erased, 0 not. */
    hotbed_status (*erase)(const hotbed_index_args *args, hotbed_stream *stream);
    /* slots; slots without a key are skipped. */
    hotbed_status (*pin)(const hotbed_index_args *args, hotbed_stream *stream);
    hotbed_status (*unpin)(const hotbed_index_args *args, hotbed_stream *stream);
    /* All slots of the range: free. */
    hotbed_status (*clear)(const hotbed_index_args *args, hotbed_stream *stream);
    /* The keys of the range: counts, and what fits into the arrays. */
    hotbed_status (*export_keys)(const hotbed_index_args *args, hotbed_stream *stream);
} hotbed_index_kernels;

extern const hotbed_index_kernels hotbed_index_kernels_host;
extern const hotbed_index_kernels hotbed_index_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
