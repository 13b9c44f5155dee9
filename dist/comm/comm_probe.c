/* dist/comm/comm_probe.c - hotbed_transport_probe(): whether a transport can be used here. */
#include "dist/comm/comm.h"

#include "base/check.h"

hotbed_status hotbed_transport_probe(hotbed_transport transport) {
    switch (transport) {
    case HOTBED_TRANSPORT_SELF:
    case HOTBED_TRANSPORT_THREADS:
    case HOTBED_TRANSPORT_SOCKETS:
        return HOTBED_OK;
    case HOTBED_TRANSPORT_MPI:
        return hotbed_comm_probe_mpi();
    case HOTBED_TRANSPORT_NCCL:
        return hotbed_comm_probe_nccl();
    }
    return hotbed_fail_unknown("transport", transport);
}
