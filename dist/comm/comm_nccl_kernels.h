/* dist/comm/comm_nccl_kernels.h - kernels of comm_nccl.c beside NCCL's own. */
#pragma once

#include "base/fault.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* In pinned memory: the watching thread sees how far the GPU is, and the GPU sees an abort. Each
 * word has one writer. */
typedef struct hotbed_comm_words {
    uint64_t started, completed; /* written by the GPU: numbers of operations, from 1 */
    uint64_t unused[14];         /* words of the host are on another cache line */
    uint32_t reason; /* written by the host: a hotbed_comm_reason, set last; 0: no failure */
    int32_t rank;    /* the rank that failed */
} hotbed_comm_words;

/* The state that the kernels of one communicator share. */
typedef struct hotbed_comm_gpu {
    hotbed_comm_words *words;
    uint64_t *count; /* device memory: operations that the GPU has started */
} hotbed_comm_gpu;

/* A window as barriers see it. */
typedef struct hotbed_comm_flags {
    void *const *parts; /* [size] */
    uint64_t offset;    /* bytes from a part to its flags: [size] epochs, then the owner's own */
    uint32_t rank, size;
} hotbed_comm_flags;

enum { HOTBED_COMM_BARRIER_RANKS = 1024 }; /* a thread each */

/* Enqueue the start stamp of an operation. Asynchronous. */
hotbed_status hotbed_comm_gpu_start(const hotbed_comm_gpu *gpu, hotbed_stream *stream);
/* Enqueue its end stamp; if the communicator has failed, latch that on the stream. Asynchronous. */
hotbed_status hotbed_comm_gpu_end(const hotbed_comm_gpu *gpu, hotbed_stream *stream);
/* Enqueue start stamp, barrier of a window, and end stamp in one kernel. Asynchronous. */
hotbed_status hotbed_comm_gpu_barrier(
    const hotbed_comm_gpu *gpu, const hotbed_comm_flags *flags, hotbed_stream *stream);
/* Enqueue: parts[p] = address of rank p's part of an ncclWindow_t on this GPU. Asynchronous. */
hotbed_status hotbed_comm_gpu_parts(
    void *window, uint32_t size, void **parts, hotbed_stream *stream);
/* The number of ranks of an ncclComm_t in this rank's NVLink domain; 0: kernels cannot read its
 * ncclWindow_t. */
uint32_t hotbed_comm_gpu_neighbours(void *comm, const void *window);

HOTBED_END_DECLS
