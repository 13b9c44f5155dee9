/* storage/step/pool_f32.cu - the kernels that pool f32 rows. */
#include "storage/step/pool.cuh"

hotbed_status hotbed_pool_f32(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t width,
    hotbed_stream *stream) {
    return pool<HOTBED_ROWS_F32>(step, output, stride, width, stream);
}
