/* dist/balance_kernels.h - the kernels of batch balance: the contract of both backends. All are
 * asynchronous. */
#pragma once

#include "dist/balance_core.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* The workloads of a rank's samples, followed by the number of real samples. */
typedef struct hotbed_workload_args {
    const uint64_t *given;  /* [real], or NULL */
    const uint32_t *starts; /* [num_features * batch_size + 1] */
    const uint32_t *bad;    /* not 0: no sample is real */
    uint32_t num_features, batch_size, real;
    uint64_t *workloads; /* [batch_size + 1] out */
} hotbed_workload_args;

typedef struct hotbed_balance_kernels {
    hotbed_status (*workloads)(const hotbed_workload_args *args, hotbed_stream *stream);
    /* Write the lengths of the new batch's rows into `starts`. */
    hotbed_status (*lengths)(const hotbed_balance_view *view, hotbed_stream *stream);
    /* Write offsets, keys and weights. */
    hotbed_status (*fill)(const hotbed_balance_view *view, hotbed_stream *stream);
    hotbed_status (*rows)(
        uint32_t batch_size, uint64_t row_bytes, const void *all, const uint32_t *samples,
        const uint32_t *real, void *rows, hotbed_stream *stream);
} hotbed_balance_kernels;

extern const hotbed_balance_kernels hotbed_balance_kernels_host;
extern const hotbed_balance_kernels hotbed_balance_kernels_cuda;

HOTBED_END_DECLS
