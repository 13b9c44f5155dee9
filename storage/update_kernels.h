/* storage/update_kernels.h - the kernels of backward: the contract of both backends. */
#ifndef HOTBED_STORAGE_UPDATE_KERNELS_H
#define HOTBED_STORAGE_UPDATE_KERNELS_H

#include "hotbed/stream.h"
#include "storage/update_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_update_kernels {
    /* Bytes of device memory that update() needs. */
    size_t (*scratch)(uint64_t bound, uint32_t max_dim);
    /* Count an optimiser step, then sum the gradients of each unique that has a slot, update its row and
     * unpin it. */
    hotbed_status (*update)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view gradient, uint32_t max_dim, void *scratch, size_t scratch_bytes,
        hotbed_stream *stream);
    /* The sums alone, of each unique.  The scratch is update()'s. */
    hotbed_status (*reduce)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *scratch,
        hotbed_stream *stream);
    /* What update() does, with sums that are there. */
    hotbed_status (*apply)(
        const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
        hotbed_gradient_view sums, uint32_t max_dim, void *scratch, hotbed_stream *stream);
    /* Count an optimiser step of rows outside of storages; and step n > 0 of them. */
    hotbed_status (*count_step)(
        const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock,
        hotbed_stream *stream);
    hotbed_status (*update_rows)(const hotbed_update_rows_args *args, hotbed_stream *stream);
    /* clock->learning_rate = learning_rate */
    hotbed_status (*set_learning_rate)(
        hotbed_clock *clock, float learning_rate, hotbed_stream *stream);
} hotbed_update_kernels;

extern const hotbed_update_kernels hotbed_update_kernels_host;
extern const hotbed_update_kernels hotbed_update_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
