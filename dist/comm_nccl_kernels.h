/* dist/comm_nccl_kernels.h - what comm_nccl.c runs on the GPU beside NCCL's own kernels. */
#ifndef HOTBED_DIST_COMM_NCCL_KERNELS_H
#define HOTBED_DIST_COMM_NCCL_KERNELS_H

#include "base/fault.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In pinned memory, so that the watching thread sees how far the GPU is, and the GPU that it is over.  No word
 * is written by both. */
typedef struct hotbed_comm_words {
    uint64_t started, completed; /* of the GPU: numbers of operations, from 1 */
    uint64_t unused[14];         /* the host's words are on a line of their own */
    uint32_t reason;             /* of the host: a hotbed_comm_reason, set last; 0: all is well */
    int32_t rank;                /* whom to blame */
} hotbed_comm_words;

/* What the kernels of one communicator share. */
typedef struct hotbed_comm_gpu {
    hotbed_comm_words *words;
    uint64_t *count; /* device memory: operations that the GPU has started */
} hotbed_comm_gpu;

/* A window as barriers see it. */
typedef struct hotbed_comm_flags {
    void *const *parts; /* [size] */
    uint64_t offset;    /* bytes from a part to its flags, [size] epochs and then the owner's own */
    uint32_t rank, size;
} hotbed_comm_flags;

enum { HOTBED_COMM_BARRIER_RANKS = 1024 }; /* a thread each */

/* Enqueue: an operation starts here.  Async. */
hotbed_status hotbed_comm_gpu_start(const hotbed_comm_gpu *gpu, hotbed_stream *stream);
/* Enqueue: it ends here; when the communicator has failed, that is latched on the stream.  Async. */
hotbed_status hotbed_comm_gpu_end(const hotbed_comm_gpu *gpu, hotbed_stream *stream);
/* Enqueue start, the barrier of a window, and end, in one kernel.  Async. */
hotbed_status hotbed_comm_gpu_barrier(
    const hotbed_comm_gpu *gpu, const hotbed_comm_flags *flags, hotbed_stream *stream);
/* Enqueue: parts[p] = rank p's part of an ncclWindow_t as this GPU addresses it.  Async. */
hotbed_status hotbed_comm_gpu_parts(
    void *window, uint32_t size, void **parts, hotbed_stream *stream);
/* Ranks of an ncclComm_t that are in this one's NVLink domain; 0: its ncclWindow_t is none that kernels can read. */
uint32_t hotbed_comm_gpu_neighbours(void *comm, const void *window);

#ifdef __cplusplus
}
#endif
#endif
