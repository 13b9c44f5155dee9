/* bench/limits.cu - limits: the CUDA backend. */
#include "bench/limits.h"

#include "base/cuda_launch.h"

#include <cuda_fp16.h>
#include <stdio.h>
#include <string.h>

namespace {

enum { BLOCK = 256, UNROLL = 4 };

/* Each thread moves UNROLL pieces of 16 bytes, with all loads before the stores, so that enough
 * bytes are in flight. */
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

/* The same for rows of 512 bytes: one warp for each row. */
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

/* A warp moves UNROLL rows of PIECES * 512 bytes, with all loads before the stores. */
template <int PIECES>
__global__ void __launch_bounds__(BLOCK) move_rows_kernel(const bench_move m) {
    uint64_t first = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) / 32 * UNROLL;
    uint32_t lane = threadIdx.x % 32;
    uint4 value[UNROLL][PIECES];
    uint4 *to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint64_t i = first + (uint64_t)u;
        to[u] = NULL;
        if (i >= m.n)
            continue;
        uint4 *row = (uint4 *)m.table + (uint64_t)m.numbers[i] * (PIECES * 32) + lane;
        uint4 *dense = (uint4 *)m.dense + i * (PIECES * 32) + lane;
        const uint4 *from = m.scatter ? dense : row;
        to[u] = m.scatter ? row : dense;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            value[u][p] = from[p * 32];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (to[u] == NULL)
            continue;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            to[u][p * 32] = value[u][p];
    }
}

/* A warp sums a bag of rows of 128 elements, with POOL_AHEAD rows in flight; its lanes load the
 * addresses together. */
enum { POOL_AHEAD = 8 };

template <bool HALF> __device__ float4 load_piece(const void *row, uint32_t lane) {
    if (!HALF)
        return ((const float4 *)row)[lane];
    uint2 bits = ((const uint2 *)row)[lane];
    float2 low = __half22float2(*(const __half2 *)&bits.x);
    float2 high = __half22float2(*(const __half2 *)&bits.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

template <bool HALF> __global__ void __launch_bounds__(BLOCK) pool_kernel(bench_pool p) {
    uint64_t b = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) / 32;
    const uint32_t lane = threadIdx.x % 32;
    if (b >= p.bags)
        return;
    const int64_t begin = p.offsets[b], end = p.offsets[b + 1];
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int64_t first = begin; first < end; first += 32) {
        const int n = end - first < 32 ? (int)(end - first) : 32;
        uint64_t mine = (uint64_t)p.rows[first + ((int)lane < n ? (int)lane : 0)];
        for (int r = 0; r < n; r += POOL_AHEAD) {
            float4 value[POOL_AHEAD];
#pragma unroll
            for (int k = 0; k < POOL_AHEAD; k++) {
                uint64_t row = __shfl_sync(0xffffffffU, mine, r + k < n ? r + k : r);
                if (r + k < n)
                    value[k] = load_piece<HALF>((const void *)row, lane);
            }
#pragma unroll
            for (int k = 0; k < POOL_AHEAD; k++) {
                if (r + k < n) {
                    sum.x += value[k].x;
                    sum.y += value[k].y;
                    sum.z += value[k].z;
                    sum.w += value[k].w;
                }
            }
        }
    }
    uint64_t table = b / p.samples, sample = b - table * p.samples;
    __stcs((float4 *)p.output + (sample * p.tables + table) * 32 + lane, sum);
}

/* PROBERS lanes read a line, all loads before the first use. */
enum { PROBERS = 4 };

__global__ void __launch_bounds__(BLOCK) probe_kernel(bench_probe p) {
    const uint64_t at = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) / PROBERS;
    const uint64_t i = at < p.n ? at : p.n - 1;
    const uint32_t lane = threadIdx.x % PROBERS;
    const uint4 *line = (const uint4 *)p.table + (uint64_t)p.lines[i] * 8;
    const uint4 a = line[lane], b = line[lane + PROBERS];
    uint32_t mix = a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    for (int apart = 1; apart < PROBERS; apart *= 2)
        mix ^= __shfl_xor_sync(0xffffffffU, mix, apart);
    if (lane == 0 && at < p.n)
        p.out[i] = mix;
}

/* A block computes SIDE x SIDE results, and a thread EACH x EACH of them; DEPTH terms of the sums
 * at a time are in shared memory. */
enum { SIDE = 64, DEPTH = 16, EACH = 4, ACROSS = SIDE / EACH };

__global__ void __launch_bounds__(ACROSS *ACROSS) layer_kernel(bench_layer l) {
    __shared__ float in[DEPTH][SIDE + 1], weights[DEPTH][SIDE];
    const uint32_t columns = l.width / SIDE;
    const uint32_t first_row = blockIdx.x / columns * SIDE,
                   first_column = blockIdx.x % columns * SIDE;
    const uint32_t x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    float sums[EACH][EACH] = {};
    for (uint32_t k0 = 0; k0 < l.width; k0 += DEPTH) {
        for (uint32_t i = threadIdx.x; i < SIDE * DEPTH; i += ACROSS * ACROSS) {
            uint32_t row = i / DEPTH, k = i % DEPTH;
            in[k][row] = l.in[(uint64_t)(first_row + row) * l.width + k0 + k];
            weights[i / SIDE][i % SIDE] =
                l.weights[(uint64_t)(k0 + i / SIDE) * l.width + first_column + i % SIDE];
        }
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < DEPTH; k++)
#pragma unroll
            for (uint32_t a = 0; a < EACH; a++)
#pragma unroll
                for (uint32_t b = 0; b < EACH; b++)
                    sums[a][b] += in[k][y * EACH + a] * weights[k][x * EACH + b];
        __syncthreads();
    }
#pragma unroll
    for (uint32_t a = 0; a < EACH; a++)
#pragma unroll
        for (uint32_t b = 0; b < EACH; b++)
            l.out[(uint64_t)(first_row + y * EACH + a) * l.width + first_column + x * EACH + b] =
                sums[a][b] > 0.0F ? sums[a][b] : 0.0F;
}

} // namespace

hotbed_status bench_move_rows_cuda(const bench_move *move, hotbed_stream *stream) {
    if (move->n == 0)
        return HOTBED_OK;
    uint64_t rows = BLOCK / 32 * UNROLL; /* rows of a block */
    unsigned blocks = (unsigned)((move->n + rows - 1) / rows);
    const hotbed_cuda_native native(stream);
    if (move->bytes == 512)
        move_rows_kernel<1><<<blocks, BLOCK, 0, native>>>(*move);
    else
        move_rows_kernel<3><<<blocks, BLOCK, 0, native>>>(*move);
    return hotbed_cuda_launched("move_rows_kernel");
}

hotbed_status bench_run_pool_cuda(const bench_pool *pool, hotbed_stream *stream) {
    const unsigned blocks = (unsigned)((pool->bags * 32 + BLOCK - 1) / BLOCK);
    cudaStream_t native = hotbed_cuda_native(stream);
    if (pool->half)
        pool_kernel<true><<<blocks, BLOCK, 0, native>>>(*pool);
    else
        pool_kernel<false><<<blocks, BLOCK, 0, native>>>(*pool);
    return hotbed_cuda_launched("pool_kernel");
}

hotbed_status bench_probe_lines_cuda(const bench_probe *probe, hotbed_stream *stream) {
    if (probe->n == 0)
        return HOTBED_OK;
    const unsigned blocks = (unsigned)((probe->n * PROBERS + BLOCK - 1) / BLOCK);
    probe_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*probe);
    return hotbed_cuda_launched("probe_kernel");
}

hotbed_status bench_gather_cuda(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    if (n == 0)
        return HOTBED_OK;
    uint64_t threads = n * (bytes / 16);
    uint64_t blocks = (threads + BLOCK * UNROLL - 1) / (BLOCK * UNROLL);
    uint32_t shift = 0;
    while (16U << shift < bytes)
        shift++;
    const hotbed_cuda_native native(stream);
    if (bytes == 512)
        gather_512_kernel<<<(unsigned)blocks, BLOCK, 0, native>>>(n, rows, (uint4 *)output);
    else
        gather_kernel<<<(unsigned)blocks, BLOCK, 0, native>>>(n, rows, bytes / 16, (uint4 *)output);
    return hotbed_cuda_launched("gather_kernel");
}

/* The version of the kernel module, such as "580.159.04"; the runtime only reports the CUDA version
 * that the driver supports. */
static bool driver_version(char *driver, size_t bytes) {
    char line[512];
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
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

hotbed_status bench_run_layer_cuda(const bench_layer *layer, hotbed_stream *stream) {
    const unsigned blocks = layer->rows / SIDE * (layer->width / SIDE);
    layer_kernel<<<blocks, ACROSS * ACROSS, 0, hotbed_cuda_native(stream)>>>(*layer);
    return hotbed_cuda_launched("layer_kernel");
}
