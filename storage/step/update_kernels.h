/* storage/step/update_kernels.h - the kernels of backward: the contract of both backends. */
#pragma once

#include "hotbed/stream.h"
#include "storage/step/update_core.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_update_kernels {
    /* Bytes of device memory that update() needs. */
    size_t (*scratch)(uint64_t bound, uint32_t max_dim);
    /* Count an optimizer step; then, for each unique key with a slot, sum its gradients, update the
     * row and unpin it. */
    hotbed_status (*update)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view gradient, uint32_t max_dim, void *scratch, hotbed_stream *stream);
    /* Only the sums, for each unique key. Scratch memory as for update(). */
    hotbed_status (*reduce)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *scratch,
        hotbed_stream *stream);
    /* The second half of update(): apply the sums of reduce(), to which the caller may have
     * added. */
    hotbed_status (*apply)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view sums, uint32_t max_dim, void *scratch, hotbed_stream *stream);
    /* For rows outside of storages: count an optimizer step; and apply a step to n > 0 rows. */
    hotbed_status (*count_step)(
        const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock,
        hotbed_stream *stream);
    hotbed_status (*update_rows)(const hotbed_update_rows_args *args, hotbed_stream *stream);
    /* Set *rate, in device memory. */
    hotbed_status (*set_learning_rate)(float *rate, float learning_rate, hotbed_stream *stream);
} hotbed_update_kernels;

extern const hotbed_update_kernels hotbed_update_kernels_host;
extern const hotbed_update_kernels hotbed_update_kernels_cuda;

HOTBED_END_DECLS
