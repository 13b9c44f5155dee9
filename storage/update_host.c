/* storage/update_host.c - backward on the host.  CUDA counterpart: update.cu. */
#include "storage/update_kernels.h"

#include "base/host_launch.h"

enum { ROWS_GRAIN = 128 };

typedef struct update_args {
    hotbed_step_view s;
    hotbed_optimizer_view o;
    hotbed_gradient_view gradient;
} update_args;

typedef struct rate_args {
    hotbed_clock *clock;
    float learning_rate;
} rate_args;

static void step_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    (void)begin, (void)end;
    hotbed_clock_step(a->s.clock, a->o.beta1, a->o.beta2);
}

static void update_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    const hotbed_step_view *s = &a->s;
    if (end > s->unique_offsets[s->num_tables])
        end = s->unique_offsets[s->num_tables];
    if (begin >= end)
        return;
    const hotbed_update_shape shape = {false, false};
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, (uint32_t)begin);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        while (u >= s->unique_offsets[t + 1])
            t++;
        uint64_t slot = s->slots[u];
        if (slot == HOTBED_NO_SLOT)
            continue;
        hotbed_sum_source source = {s->starts[u], s->starts[u + 1], NULL, 0};
        hotbed_update_row(s, &a->o, a->gradient, &s->tables[t], slot, source, shape, 1);
    }
}

static void rate_body(const void *args, uint64_t begin, uint64_t end) {
    const rate_args *a = args;
    (void)begin, (void)end;
    a->clock->learning_rate = a->learning_rate;
}

static size_t scratch(uint64_t bound, uint32_t max_dim) {
    (void)bound, (void)max_dim;
    return 0;
}

static hotbed_status update(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim, void *memory, size_t scratch_bytes,
    hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = gradient};
    (void)max_dim, (void)memory, (void)scratch_bytes;
    hotbed_status status = hotbed_host_launch(stream, 1, 0, step_body, &args, sizeof args);
    if (status == HOTBED_OK)
        status =
            hotbed_host_launch(stream, step->bound, ROWS_GRAIN, update_body, &args, sizeof args);
    return status;
}

static hotbed_status set_learning_rate(
    hotbed_clock *clock, float learning_rate, hotbed_stream *stream) {
    rate_args args = {clock, learning_rate};
    return hotbed_host_launch(stream, 1, 0, rate_body, &args, sizeof args);
}

const hotbed_update_kernels hotbed_update_kernels_host = {scratch, update, set_learning_rate};
