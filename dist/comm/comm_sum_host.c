/* dist/comm/comm_sum_host.c - sums over ranks on the host.  CUDA counterpart: comm_sum.cu. */
#include "base/host_launch.h"
#include "dist/comm/comm_sum_kernels.h"

enum { GRAIN = 16384 };

HOTBED_HOST_EACH(sum_body, hotbed_comm_sum_one(args, i))

HOTBED_HOST_CALL(sum, hotbed_comm_sum_args, a->n, GRAIN)

const hotbed_comm_sum_kernels hotbed_comm_sum_kernels_host = {sum};
