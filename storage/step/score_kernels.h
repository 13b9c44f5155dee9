/* storage/step/score_kernels.h - the kernels of scores and admission: the contract of both backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/step/score_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_score_kernels {
    /* Between find and place: count the keys in `missing`, or draw for them, and flag rejected
     * ones. */
    hotbed_status (*admit)(const hotbed_step_view *step, hotbed_stream *stream);
    hotbed_status (*set)(uint64_t *word, uint64_t value, hotbed_stream *stream);
} hotbed_score_kernels;

extern const hotbed_score_kernels hotbed_score_kernels_host;
extern const hotbed_score_kernels hotbed_score_kernels_cuda;

HOTBED_END_DECLS
