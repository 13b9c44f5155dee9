/* storage/step/score_host.c - launches the core of scores and admission on host threads. CUDA
 * counterpart: score.cu. */
#include "storage/step/score_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { GRAIN = 256 };

typedef struct set_args {
    uint64_t *word;
    uint64_t value;
} set_args;

HOTBED_HOST_BELOW(
    admit_body, hotbed_step_view, *a->unique.num_missing, hotbed_admit_missing(a, (uint32_t)i, 1))

HOTBED_HOST_BELOW(
    count_body, hotbed_step_view, *a->unique.num_missing, hotbed_count_missing(a, (uint32_t)i, 1))

HOTBED_HOST_BELOW(set_body, set_args, 1, *a->word = a->value)

static hotbed_status admit(const hotbed_step_view *step, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, step->batch.bound, GRAIN, admit_body, step));
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, GRAIN, count_body, step);
}

static hotbed_status set(uint64_t *word, uint64_t value, hotbed_stream *stream) {
    set_args args = {word, value};
    return HOTBED_HOST_LAUNCH(stream, 1, 0, set_body, &args);
}

const hotbed_score_kernels hotbed_score_kernels_host = {admit, set};
