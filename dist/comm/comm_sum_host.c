/* dist/comm/comm_sum_host.c - sums over ranks on the host.  CUDA counterpart: comm_sum.cu. */
#include "base/host_launch.h"
#include "dist/comm/comm_sum_kernels.h"

enum { GRAIN = 16384 };

HOTBED_HOST_EACH(body, hotbed_comm_sum_one(args, i))

static hotbed_status sum(const hotbed_comm_sum_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, args->n, GRAIN, body, args);
}

const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_host = {sum};
