/* storage/stats.cu - meters and histograms on CUDA. Host counterpart: stats_host.c. */
#include "base/cuda_launch.h"
#include "hotbed/stats.h"
#include "storage/stats_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

/* One block, so that barriers order the record's number, the counts and `latest`. */
static __global__ void __launch_bounds__(BLOCK) record_kernel(hotbed_meter_view m) {
    uint64_t number = *m.number + 1;
    if (threadIdx.x == 0)
        hotbed_store_system_u64(hotbed_meter_record(&m, number), number);
    __syncthreads();
    hotbed_fence_system(); /* a reader that sees a new count sees the record's number */
    for (uint64_t w = threadIdx.x; w < m.words; w += BLOCK)
        hotbed_meter_word(&m, number, w);
    hotbed_fence_system(); /* a reader that sees `latest` sees the counts */
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    *m.number = number;
    hotbed_fence_system();
    hotbed_store_system_u64(m.latest, number);
}

static __global__ void __launch_bounds__(BLOCK)
    load_kernel(hotbed_index_view index, hotbed_index_range range, uint64_t *loads) {
    __shared__ uint32_t counts[HOTBED_LOADS];
    if (threadIdx.x < HOTBED_LOADS)
        counts[threadIdx.x] = 0;
    __syncthreads();
    for (uint64_t b = hotbed_cuda_thread(); b < range.buckets; b += hotbed_cuda_threads())
        atomicAdd(&counts[hotbed_bucket_load(index, range, (uint32_t)b)], 1U);
    __syncthreads();
    if (threadIdx.x < HOTBED_LOADS && counts[threadIdx.x] != 0)
        hotbed_add_relaxed_u64(&loads[threadIdx.x], counts[threadIdx.x]);
}

static hotbed_status record(const hotbed_meter_view *meter, hotbed_stream *stream) {
    record_kernel<<<1, BLOCK, 0, hotbed_cuda_native(stream)>>>(*meter);
    return hotbed_cuda_launched("record_kernel");
}

static hotbed_status load(
    hotbed_index_view index, hotbed_index_range range, uint64_t *loads, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        load_kernel, range.buckets, BLOCK, WAVES, stream, index, range, loads);
}

const hotbed_stats_kernels hotbed_stats_kernels_cuda = {record, load};
