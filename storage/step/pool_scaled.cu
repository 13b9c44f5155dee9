/* storage/step/pool_scaled.cu - the kernels that pool rows with scales. */
#include "storage/step/pool.cuh"

hotbed_status hotbed_pool_scaled(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream) {
    return pool<HOTBED_ROWS_SCALED>(step, output, stride, width, stream);
}
