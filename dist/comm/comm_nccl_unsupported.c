/* dist/comm/comm_nccl_unsupported.c - the calls of a build without NCCL. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/error.h"

hotbed_status hotbed_comm_probe_nccl(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "NCCL is not in this build (HOTBED_NCCL is OFF)");
}

hotbed_status hotbed_comm_create_nccl(
    const hotbed_comm_options *options, int device, hotbed_comm *bootstrap, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    return hotbed_comm_probe_nccl();
}
