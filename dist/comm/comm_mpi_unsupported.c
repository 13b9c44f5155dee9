/* dist/comm/comm_mpi_unsupported.c - the calls of a build without MPI. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/error.h"

hotbed_status hotbed_comm_probe_mpi(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "MPI is not in this build (HOTBED_MPI is OFF)");
}

hotbed_status hotbed_comm_create_mpi(const hotbed_comm_options *options, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    return hotbed_comm_probe_mpi();
}
