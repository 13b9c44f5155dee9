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

/* Launch `kernel` for all groups. */
static hotbed_status launch(
    void (*kernel)(hotbed_export_args), const char *name, const hotbed_export_args *args,
    hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, (args->groups + 1) * TILE, BLOCK, WAVES);
    kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*args);
    return hotbed_cuda_launched(name);
}

static hotbed_status choose(const hotbed_export_args *args, hotbed_stream *stream) {
    return launch(export_select_kernel, "export_select_kernel", args, stream);
}

static hotbed_status write_rows(const hotbed_export_args *args, hotbed_stream *stream) {
    return launch(export_write_kernel, "export_write_kernel", args, stream);
}

const hotbed_export_kernels hotbed_export_kernels_cuda = {choose, write_rows};
