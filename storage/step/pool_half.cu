/* storage/step/pool_half.cu - the kernels that pool 16-bit rows. */
#include "storage/step/pool.cuh"

hotbed_status hotbed_pool_half(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream) {
    return pool<HOTBED_ROWS_HALF>(step, output, stride, width, stream);
}
