/* base/cuda_launch.h - helpers for kernel launchers; for .cu files only. */
#pragma once

#include "base/error.h"
#include "hotbed/stream.h"

#include <cuda_runtime.h>

/* Make a GPU current for the calling thread. The destructor restores the GPU that was current
 * before. */
class hotbed_cuda_device {
  public:
    explicit hotbed_cuda_device(int device);
    ~hotbed_cuda_device();
    hotbed_cuda_device(const hotbed_cuda_device &) = delete;
    hotbed_cuda_device &operator=(const hotbed_cuda_device &) = delete;
    hotbed_status status; /* OK, or why the GPU could not be made current */

  private:
    int before; /* -1: the GPU was current already */
};

/* The stream to launch on. Its GPU is current while this object exists. Use a variable for several
 * launches, and a temporary in the launch itself for a single launch. */
class hotbed_cuda_native {
  public:
    explicit hotbed_cuda_native(hotbed_stream *stream);
    operator cudaStream_t() const { /* NOLINT(google-explicit-constructor) */
        return native;
    }

  private:
    hotbed_cuda_device device;
    cudaStream_t native;
};

/* Number of blocks of `block` threads for `threads` threads, at least 1 and at most `waves` * 2048
 * threads per multiprocessor. Kernels loop, so fewer blocks are correct. */
unsigned hotbed_cuda_blocks(
    const hotbed_stream *stream, uint64_t threads, unsigned block, unsigned waves);

/* Let each block of the kernel use all shared memory of an SM, so that no other block that needs
 * shared memory runs on the same SM. *bytes is the shared memory size to launch with. */
hotbed_status hotbed_cuda_own_sm(const hotbed_stream *stream, const void *kernel, size_t *bytes);

/* Count a launch. Returns OK, or DEVICE with the kernel's name and CUDA's text. */
hotbed_status hotbed_cuda_launched(const char *kernel);

/* OK, or DEVICE (MEMORY for cudaErrorMemoryAllocation) with the call's name and CUDA's text. */
hotbed_status hotbed_cuda_check(cudaError_t error, const char *call);
#define HOTBED_CUDA_CHECK(call, ...) hotbed_cuda_check(call(__VA_ARGS__), #call)

/* Launch `kernel` with at least `threads` threads, in as many blocks as hotbed_cuda_blocks() says. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static hotbed_status hotbed_cuda_launch(
    void (*kernel)(PARAMETERS...), const char *name, uint64_t threads, unsigned block,
    unsigned waves, hotbed_stream *stream, const ARGUMENTS &...arguments) {
    const unsigned blocks = hotbed_cuda_blocks(stream, threads, block, waves);
    kernel<<<blocks, block, 0, hotbed_cuda_native(stream)>>>(arguments...);
    return hotbed_cuda_launched(name);
}

/* hotbed_cuda_launch() of a kernel by its name; its arguments follow the stream. */
#define HOTBED_CUDA_LAUNCH(kernel, ...) hotbed_cuda_launch(kernel, #kernel, __VA_ARGS__)

static __device__ inline uint64_t hotbed_cuda_thread(void) {
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline uint64_t hotbed_cuda_threads(void) {
    return (uint64_t)gridDim.x * blockDim.x;
}
