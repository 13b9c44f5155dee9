/* storage/step/score.cu - launches the core of scores and admission on CUDA. Host counterpart:
 * score_host.c. */
#include "base/cuda_launch.h"
#include "storage/step/score_kernels.h"

enum { TILE = 4, BLOCK = 256, WAVES = 1 }; /* tiles as in lookup.cu */

static __global__ void __launch_bounds__(BLOCK) admit_kernel(hotbed_step_view s) {
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_admit_missing(&s, (uint32_t)i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) count_kernel(hotbed_step_view s) {
    uint32_t n = *s.unique.num_missing;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_count_missing(&s, (uint32_t)i, TILE);
}

static __global__ void set_word_kernel(uint64_t *word, uint64_t value) {
    *word = value;
}

static hotbed_status admit(const hotbed_step_view *step, hotbed_stream *stream) {
    const uint64_t threads = step->batch.bound * TILE;
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(admit_kernel, threads, BLOCK, WAVES, stream, *step));
    return HOTBED_CUDA_LAUNCH(count_kernel, threads, BLOCK, WAVES, stream, *step);
}

static hotbed_status set(uint64_t *word, uint64_t value, hotbed_stream *stream) {
    return HOTBED_CUDA_LAUNCH(set_word_kernel, 1, 1, WAVES, stream, word, value);
}

const hotbed_score_kernels hotbed_score_kernels_cuda = {admit, set};
