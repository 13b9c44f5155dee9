/* bench/limits.cu - limits on CUDA. */
#include "bench/limits.h"

#include "base/cuda_launch.h"

#include <stdio.h>
#include <string.h>

namespace {

enum { BLOCK = 256, UNROLL = 4 };

/* One thread moves UNROLL 16-byte pieces, all loads before the stores: enough bytes in flight. */
__global__ void __launch_bounds__(BLOCK)
    gather_kernel(uint64_t n, const void *const *rows, uint32_t shift, uint4 *output) {
    uint64_t total = n << shift;
    uint64_t first = (uint64_t)blockIdx.x * BLOCK * UNROLL + threadIdx.x;
    uint4 value[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint64_t i = first + (uint64_t)u * BLOCK;
        if (i < total) {
            value[u] = ((const uint4 *)rows[i >> shift])[i & ((1U << shift) - 1)];
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint64_t i = first + (uint64_t)u * BLOCK;
        if (i < total)
            __stcs(output + i, value[u]);
    }
}

/* As above for rows of 512 bytes: a warp a row. */
__global__ void __launch_bounds__(BLOCK)
    gather_512_kernel(uint64_t n, const void *const *rows, uint4 *output) {
    uint64_t warp = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) / 32;
    uint32_t lane = threadIdx.x % 32;
    uint64_t first = warp * UNROLL;
    uint4 value[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (first + (uint64_t)u < n)
            value[u] = ((const uint4 *)rows[first + (uint64_t)u])[lane];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (first + (uint64_t)u < n)
            __stcs(output + (first + (uint64_t)u) * 32 + lane, value[u]);
    }
}

} // namespace

hotbed_status bench_gather_cuda(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    if (n == 0)
        return HOTBED_OK;
    uint64_t threads = n * (bytes / 16);
    uint64_t blocks = (threads + BLOCK * UNROLL - 1) / (BLOCK * UNROLL);
    uint32_t shift = 0;
    while (16U << shift < bytes)
        shift++;
    cudaStream_t native = hotbed_cuda_native(stream);
    if (bytes == 512)
        gather_512_kernel<<<(unsigned)blocks, BLOCK, 0, native>>>(n, rows, (uint4 *)output);
    else
        gather_kernel<<<(unsigned)blocks, BLOCK, 0, native>>>(n, rows, bytes / 16, (uint4 *)output);
    return hotbed_cuda_launched("gather_kernel");
}

/* The kernel module's version, "580.159.04"; the runtime only knows which CUDA a driver can do. */
static bool driver_version(char *driver, size_t bytes) {
    char line[512];
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (!file)
        return false;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    for (char *word = read ? strtok(line, " \t\n") : NULL; word; word = strtok(NULL, " \t\n")) {
        if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
            snprintf(driver, bytes, "%s", word);
            return true;
        }
    }
    return false;
}

hotbed_status bench_device_cuda(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes) {
    cudaDeviceProp properties;
    int version = 0;
    int number = hotbed_stream_device(stream);
    HOTBED_TRY(
        hotbed_cuda_check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties"));
    HOTBED_TRY(hotbed_cuda_check(cudaDriverGetVersion(&version), "cudaDriverGetVersion"));
    snprintf(device, device_bytes, "%s", properties.name);
    if (!driver_version(driver, driver_bytes))
        snprintf(driver, driver_bytes, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    return HOTBED_OK;
}
