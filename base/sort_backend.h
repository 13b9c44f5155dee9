/* base/sort_backend.h - the sort operations of a backend. Arguments are checked; n is above 0. */
#pragma once

#include "base/sort.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_sort_ops {
    size_t (*pairs_scratch)(uint64_t n);
    /* bits is in [1, 32]. */
    hotbed_status (*pairs)(
        uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
        uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
        hotbed_stream *stream);
    size_t (*scan_scratch)(uint64_t n);
    hotbed_status (*scan)(
        uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
        hotbed_stream *stream);
} hotbed_sort_ops;

extern const hotbed_sort_ops hotbed_sort_host;
#if defined(HOTBED_WITH_CUDA)
extern const hotbed_sort_ops hotbed_sort_cuda;
#endif

HOTBED_END_DECLS
