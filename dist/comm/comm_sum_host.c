/* dist/comm/comm_sum_host.c - sums over ranks on the host.  CUDA counterpart: comm_sum.cu. */
#include "base/host_launch.h"
#include "dist/comm/comm_sum_kernels.h"

enum { GRAIN = 16384 };

static void body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_comm_sum_one(args, i);
}

static hotbed_status sum(const hotbed_comm_sum_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, body, args, sizeof *args);
}

const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_host = {sum};
