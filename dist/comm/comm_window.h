/* dist/comm/comm_window.h - windows: memory of every rank that the kernels of other ranks write.
 *
 * For exchanges without counts on the host: a kernel of one rank stores directly into another
 * rank's memory, and a barrier on the stream orders later work after the stores of all ranks. self
 * and threads: ordinary memory. NCCL: memory that is mapped on all GPUs of an NVLink domain. MPI:
 * UNSUPPORTED. */
#pragma once

#include "hotbed/comm.h"

typedef struct hotbed_window {
    hotbed_comm *comm;
    void *data; /* this rank's part: device memory, 256-byte aligned */
    /* [size] device memory, for kernels: the parts of all ranks, at the addresses that this rank uses */
    void **parts;
} hotbed_window;

/* Allocate `bytes` of zeroed memory on every rank, which all ranks can address. Synchronous: all
 * ranks call it together.
 *
 *   bytes   of each rank; the same on all ranks; above 0
 *   stream  the memory is on its device; the zeros are visible to work enqueued on it afterwards
 *
 * Errors: ARGUMENT, UNSUPPORTED (the transport, or the GPUs are not all in one NVLink domain),
 * COMM, MEMORY, DEVICE. */
hotbed_status hotbed_window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);

/* Free a window. This rank's streams must have completed their work with it, and all other ranks
 * must have passed a barrier since they last wrote into it. Synchronous; does not wait for other
 * ranks. Memory that another rank still maps is freed with the communicator. NULL is allowed. */
void hotbed_window_destroy(hotbed_window *window);

/* Make stores visible between ranks. Stores into any part by this rank's earlier work on `stream`
 * are visible to work that the part's owner enqueues after its own barrier. In the other direction,
 * work after the barrier may overwrite data that the owner's work before the barrier has read.
 * Asynchronous, also in a recorded graph. A barrier is an operation like the others: one at a time,
 * in the same order on all ranks, with the same deadline.
 * Errors: ARGUMENT, COMM, DEVICE. */
hotbed_status hotbed_window_barrier(hotbed_window *window, hotbed_stream *stream);

/* Find out whether windows work between all ranks: sets comm->windows. All ranks call it together;
 * only the first call on a communicator sends. Errors: COMM, MEMORY, DEVICE. */
hotbed_status hotbed_window_probe(hotbed_comm *comm, hotbed_stream *stream);
