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

static void admit_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->unique.num_missing)
        end = *s->unique.num_missing;
    for (uint64_t i = begin; i < end; i++)
        hotbed_admit_missing(s, (uint32_t)i, 1);
}

static void count_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->unique.num_missing)
        end = *s->unique.num_missing;
    for (uint64_t i = begin; i < end; i++)
        hotbed_count_missing(s, (uint32_t)i, 1);
}

static void set_body(const void *args, uint64_t begin, uint64_t end) {
    const set_args *a = args;
    (void)begin, (void)end;
    *a->word = a->value;
}

static hotbed_status admit(const hotbed_step_view *step, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, step->batch.bound, GRAIN, admit_body, step));
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, GRAIN, count_body, step);
}

static hotbed_status set(uint64_t *word, uint64_t value, hotbed_stream *stream) {
    set_args args = {word, value};
    return HOTBED_HOST_LAUNCH(stream, 1, 0, set_body, &args);
}

const hotbed_score_kernels hotbed_score_kernels_host = {admit, set};
