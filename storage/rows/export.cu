/* storage/rows/export.cu - launches the core of exports on CUDA. Host counterpart: export_host.c. */
#include "base/cuda_launch.h"
#include "storage/rows/export_kernels.h"

/* A warp handles a group: it reads 32 neighbouring metas at once, then copies one row at a time. */
enum { TILE = 32, BLOCK = 256, WAVES = 4 };

static __global__ void __launch_bounds__(BLOCK) export_select_kernel(hotbed_export_args a) {
    for (uint64_t g = hotbed_cuda_thread() / TILE; g <= a.groups; g += hotbed_cuda_threads() / TILE)
        hotbed_export_select(&a, g, TILE);
}

static __global__ void __launch_bounds__(BLOCK) export_write_kernel(hotbed_export_args a) {
    for (uint64_t g = hotbed_cuda_thread() / TILE; g <= a.groups; g += hotbed_cuda_threads() / TILE)
        hotbed_export_write(&a, g, TILE);
}

static hotbed_status choose(const hotbed_export_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        export_select_kernel, (args->groups + 1) * TILE, BLOCK, WAVES, stream, *args);
}

static hotbed_status write_rows(const hotbed_export_args *args, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(
        export_write_kernel, (args->groups + 1) * TILE, BLOCK, WAVES, stream, *args);
}

const hotbed_export_kernels hotbed_export_kernels_cuda = {choose, write_rows};
