/* dist/comm/comm_nccl.cu - stamps around NCCL's operations, and windows by NCCL's device API.
 *
 * The barrier of a window is our own, because NCCL's waits without a limit: here the spinning
 * threads read the word by which the watching thread aborts them. */
#include "dist/comm/comm_nccl_kernels.h"

#include "base/cuda_launch.h"
#include "base/stream.h"

#include <nccl_device.h>

enum {
    LOOK_EVERY = 256
}; /* spins between two reads of host memory, each of which takes about a microsecond */

static __device__ uint32_t reason_of(const hotbed_comm_words *words) {
    return *(const volatile uint32_t *)&words->reason;
}

static __device__ uint64_t stamp_start(hotbed_comm_gpu gpu) {
    uint64_t number = *gpu.count + 1;
    *gpu.count = number;
    *(volatile uint64_t *)&gpu.words->started = number;
    return number;
}

static __device__ void stamp_end(hotbed_comm_gpu gpu, hotbed_fault *fault) {
    uint64_t number = *gpu.count;
    uint32_t reason = reason_of(gpu.words);
    if (reason != 0) {
        int32_t rank = *(const volatile int32_t *)&gpu.words->rank;
        hotbed_fault_latch(
            fault, HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, (uint32_t)rank, number, reason);
    }
    *(volatile uint64_t *)&gpu.words->completed = number;
}

static __global__ void start_kernel(hotbed_comm_gpu gpu) {
    (void)stamp_start(gpu);
}

static __global__ void end_kernel(hotbed_comm_gpu gpu, hotbed_fault *fault) {
    stamp_end(gpu, fault);
}

static __device__ uint64_t *flags_of(hotbed_comm_flags f, uint32_t p) {
    return (uint64_t *)((char *)f.parts[p] + f.offset);
}

/* One block, one thread per rank: signal that rank, and wait until it has signalled. */
static __global__ void __launch_bounds__(HOTBED_COMM_BARRIER_RANKS)
    barrier_kernel(hotbed_comm_gpu gpu, hotbed_comm_flags f, hotbed_fault *fault) {
    __shared__ uint64_t shared_epoch;
    uint32_t p = threadIdx.x;
    uint64_t *own = flags_of(f, f.rank);
    if (p == 0) {
        (void)stamp_start(gpu);
        shared_epoch = own[f.size] + 1;
        own[f.size] = shared_epoch;
    }
    __syncthreads();
    uint64_t epoch = shared_epoch;
    /* Make all stores of the stream's earlier kernels, in any GPU's memory, visible before the
     * flag. */
    __threadfence_system();
    uint64_t *theirs = flags_of(f, p) + f.rank;
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(theirs), "l"(epoch) : "memory");
    for (uint32_t spins = 1;; spins++) {
        uint64_t seen;
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(seen) : "l"(own + p) : "memory");
        if (seen >= epoch || (spins % LOOK_EVERY == 0 && reason_of(gpu.words) != 0))
            break;
    }
    __syncthreads();
    if (p == 0)
        stamp_end(gpu, fault);
}

static __global__ void parts_kernel(ncclWindow_t window, uint32_t size, void **parts) {
    for (uint32_t p = threadIdx.x; p < size; p += blockDim.x)
        parts[p] = ncclGetLsaPointer(window, 0, (int)p);
}

hotbed_status hotbed_comm_gpu_start(const hotbed_comm_gpu *gpu, hotbed_stream *stream) {
    start_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(*gpu);
    return hotbed_cuda_launched("start_kernel");
}

hotbed_status hotbed_comm_gpu_end(const hotbed_comm_gpu *gpu, hotbed_stream *stream) {
    end_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(*gpu, hotbed_stream_faults(stream));
    return hotbed_cuda_launched("end_kernel");
}

hotbed_status hotbed_comm_gpu_barrier(
    const hotbed_comm_gpu *gpu, const hotbed_comm_flags *flags, hotbed_stream *stream) {
    barrier_kernel<<<1, flags->size, 0, hotbed_cuda_native(stream)>>>(
        *gpu, *flags, hotbed_stream_faults(stream));
    return hotbed_cuda_launched("barrier_kernel");
}

hotbed_status hotbed_comm_gpu_parts(
    void *window, uint32_t size, void **parts, hotbed_stream *stream) {
    parts_kernel<<<1, 128, 0, hotbed_cuda_native(stream)>>>((ncclWindow_t)window, size, parts);
    return hotbed_cuda_launched("parts_kernel");
}

/* Without symmetric memory a window is a handle in host memory that CUDA does not know. */
uint32_t hotbed_comm_gpu_neighbours(void *comm, const void *window) {
    cudaPointerAttributes attributes;
    if (window == NULL || cudaPointerGetAttributes(&attributes, window) != cudaSuccess ||
        attributes.type == cudaMemoryTypeUnregistered) {
        (void)cudaGetLastError();
        return 0;
    }
    return (uint32_t)ncclTeamLsa((ncclComm_t)comm).nRanks;
}
