/* base/sort.cu - sort and scan on CUDA with CUB; no other file includes CUB. Host counterpart:
 * sort_host.c. */
#include "base/cuda_launch.h"
#include "base/sort_backend.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

/* Scratch size that CUB needs. 0 if there is no GPU; the sort then fails with CUB's error. */
static size_t pairs_scratch(uint64_t n) {
    size_t bytes = 0;
    const uint32_t *in = NULL;
    uint32_t *out = NULL;
    cudaError_t error =
        cub::DeviceRadixSort::SortPairs(NULL, bytes, in, out, in, out, (int)n, 0, 32, 0);
    return hotbed_cuda_check(error, "cub::DeviceRadixSort") == HOTBED_OK ? bytes : 0;
}

/* CUB rejects a scratch buffer that is too small. */
static hotbed_status pairs(
    uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
    uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    cudaError_t error = cub::DeviceRadixSort::SortPairs(
        scratch, scratch_bytes, keys, sorted_keys, values, sorted_values, (int)n, 0, (int)bits,
        native);
    HOTBED_TRY(hotbed_cuda_check(error, "cub::DeviceRadixSort"));
    return hotbed_cuda_launched("cub::DeviceRadixSort");
}

static size_t scan_scratch(uint64_t n) {
    size_t bytes = 0;
    const uint32_t *in = NULL;
    uint32_t *out = NULL;
    cudaError_t error = cub::DeviceScan::ExclusiveSum(NULL, bytes, in, out, (int)n, 0);
    return hotbed_cuda_check(error, "cub::DeviceScan") == HOTBED_OK ? bytes : 0;
}

static hotbed_status scan(
    uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    cudaError_t error =
        cub::DeviceScan::ExclusiveSum(scratch, scratch_bytes, in, out, (int)n, native);
    HOTBED_TRY(hotbed_cuda_check(error, "cub::DeviceScan"));
    return hotbed_cuda_launched("cub::DeviceScan");
}

const hotbed_sort_ops hotbed_sort_cuda = {
    .pairs_scratch = pairs_scratch,
    .pairs = pairs,
    .scan_scratch = scan_scratch,
    .scan = scan,
};
