/* dist/comm/comm_sum_kernels.h - sums over ranks: the contract of both backends. */
#pragma once

#include "dist/comm/comm_sum_core.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_comm_sum_kernels {
    /* Run hotbed_comm_sum_one() for all i below n; n > 0. Asynchronous. */
    hotbed_status (*sum)(const hotbed_comm_sum_args *args, hotbed_stream *stream);
} hotbed_comm_sum_kernels;

extern const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_host;
extern const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_cuda;

HOTBED_END_DECLS
