/* base/cuda_launch.h - what a kernel launcher needs; for .cu files only. */
#ifndef HOTBED_BASE_CUDA_LAUNCH_H
#define HOTBED_BASE_CUDA_LAUNCH_H

#include "base/error.h"
#include "hotbed/stream.h"

#include <cuda_runtime.h>

/* The stream to launch on; makes its GPU the calling thread's current one. */
cudaStream_t hotbed_cuda_native(hotbed_stream *stream);

/* Blocks of `block` threads for `threads` threads in all, at most `waves` * 2048 threads a
 * multiprocessor: kernels loop, so fewer is right and 0 is never returned. */
unsigned hotbed_cuda_blocks(
    const hotbed_stream *stream, uint64_t threads, unsigned block, unsigned waves);

/* Give the kernel's blocks all shared memory of an SM, so that no other that needs some is beside them: *bytes, to be
 * launched with. */
hotbed_status hotbed_cuda_own_sm(const hotbed_stream *stream, const void *kernel, size_t *bytes);

/* OK, or DEVICE with the kernel's name and CUDA's text; counts a launch. */
hotbed_status hotbed_cuda_launched(const char *kernel);

/* OK, or DEVICE (MEMORY for cudaErrorMemoryAllocation) with the call's name and CUDA's text. */
hotbed_status hotbed_cuda_check(cudaError_t error, const char *call);

static __device__ inline uint64_t hotbed_cuda_thread(void) {
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline uint64_t hotbed_cuda_threads(void) {
    return (uint64_t)gridDim.x * blockDim.x;
}

#endif
