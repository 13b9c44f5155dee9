/* storage/rows/changes.cu - positions and removed keys on CUDA. Host counterpart: changes_host.c. */
#include "base/cuda_launch.h"
#include "storage/rows/changes_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

static __global__ void __launch_bounds__(BLOCK) settle_kernel(hotbed_position_args a) {
    hotbed_position_settle(&a, hotbed_cuda_thread(), hotbed_cuda_threads());
}

static __global__ void position_kernel(hotbed_tracker *tracker, hotbed_change_position *position) {
    hotbed_position_take(tracker, position);
}

static __global__ void lose_kernel(hotbed_tracker *tracker) {
    hotbed_position_lose(tracker);
}

static __global__ void removed_begin_kernel(hotbed_removed_args a) {
    hotbed_removed_begin(&a);
}

/* A key per thread: most of them are rejected by their table's number. */
static __global__ void __launch_bounds__(BLOCK) removed_kernel(hotbed_removed_args a) {
    const uint64_t n = hotbed_removed_items(&a);
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        hotbed_removed_key(&a, i);
}

static hotbed_status position(
    const hotbed_position_args *args, uint64_t slots, hotbed_stream *stream) {
    HOTBED_TRY(
        HOTBED_CUDA_LAUNCH(settle_kernel, hotbed_recent_words(slots), BLOCK, WAVES, stream, *args));
    return HOTBED_CUDA_LAUNCH(position_kernel, 1, 1, WAVES, stream, args->tracker, args->position);
}

static hotbed_status lose(hotbed_tracker *tracker, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(lose_kernel, 1, 1, WAVES, stream, tracker);
}

static hotbed_status removed(
    const hotbed_removed_args *args, uint64_t most, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(removed_begin_kernel, 1, 1, WAVES, stream, *args));
    return HOTBED_CUDA_LAUNCH(removed_kernel, most, BLOCK, WAVES, stream, *args);
}

const hotbed_changes_kernels hotbed_changes_kernels_cuda = {position, lose, removed};
