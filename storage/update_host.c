/* storage/update_host.c - backward on the host.  CUDA counterpart: update.cu. */
#include "storage/update_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { ROWS_GRAIN = 128 };

typedef struct update_args {
    hotbed_step_view s;
    hotbed_optimizer_view o;
    hotbed_gradient_view gradient; /* apply: the sums */
    hotbed_sums_view sums;         /* reduce: where they go */
} update_args;

typedef struct count_args {
    hotbed_optimizer_clock *clock;
    float beta1, beta2;
} count_args;

typedef struct rate_args {
    hotbed_clock *clock;
    float learning_rate;
} rate_args;

static void step_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    (void)begin, (void)end;
    hotbed_clock_step(a->s.clock, a->o.beta1, a->o.beta2);
}

/* The table of unique u, which is that of the unique before, or one after it. */
static inline uint32_t table_of(const hotbed_step_view *s, uint32_t u, uint32_t before) {
    while (u >= s->unique_offsets[before + 1])
        before++;
    return before;
}

static inline uint64_t uniques_up_to(const hotbed_step_view *s, uint64_t end) {
    uint64_t uniques = s->unique_offsets[s->num_tables];
    return end < uniques ? end : uniques;
}

/* `reduced` is a literal. */
HOTBED_HD void update_range(const update_args *a, uint64_t begin, uint64_t end, bool reduced) {
    const hotbed_step_view *s = &a->s;
    end = uniques_up_to(s, end);
    if (begin >= end)
        return;
    const hotbed_update_shape shape = {false, false, reduced};
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, (uint32_t)begin);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        t = table_of(s, u, t);
        uint64_t slot = s->slots[u];
        if (slot == HOTBED_NO_SLOT)
            continue;
        hotbed_sum_source source = {reduced ? u : s->starts[u], s->starts[u + 1], NULL, 0};
        hotbed_update_row(s, &a->o, a->gradient, &s->tables[t], slot, source, shape, 1);
    }
}

static void update_body(const void *args, uint64_t begin, uint64_t end) {
    update_range(args, begin, end, false);
}

static void apply_body(const void *args, uint64_t begin, uint64_t end) {
    update_range(args, begin, end, true);
}

static void reduce_body(const void *args, uint64_t begin, uint64_t end) {
    const update_args *a = args;
    const hotbed_step_view *s = &a->s;
    end = uniques_up_to(s, end);
    if (begin >= end)
        return;
    const hotbed_update_shape shape = {false, false, false};
    uint32_t t = hotbed_part_of(s->unique_offsets, s->num_tables, (uint32_t)begin);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        t = table_of(s, u, t);
        hotbed_sum_source source = {s->starts[u], s->starts[u + 1], NULL, 0};
        hotbed_reduce_row(s, &a->o, a->gradient, s->tables[t].dim, u, source, shape, a->sums, 1);
    }
}

static void count_body(const void *args, uint64_t begin, uint64_t end) {
    const count_args *a = args;
    (void)begin, (void)end;
    hotbed_count_step(a->clock, a->beta1, a->beta2);
}

static void update_rows_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_update_given_row(args, i, 1);
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

/* Count a step, then `body` over the uniques. */
static hotbed_status step_rows(
    const update_args *args, hotbed_host_body body, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_host_launch(stream, 1, 0, step_body, args, sizeof *args));
    return hotbed_host_launch(stream, args->s.bound, ROWS_GRAIN, body, args, sizeof *args);
}

static hotbed_status update(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, uint32_t max_dim, void *memory, size_t scratch_bytes,
    hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = gradient};
    (void)max_dim, (void)memory, (void)scratch_bytes;
    return step_rows(&args, update_body, stream);
}

static hotbed_status reduce(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer,
    hotbed_gradient_view gradient, hotbed_sums_view sums, uint32_t max_dim, void *memory,
    hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = gradient, .sums = sums};
    (void)max_dim, (void)memory;
    return hotbed_host_launch(stream, step->bound, ROWS_GRAIN, reduce_body, &args, sizeof args);
}

static hotbed_status apply(
    const hotbed_step_view *step, const hotbed_optimizer_view *optimizer, hotbed_gradient_view sums,
    uint32_t max_dim, void *memory, hotbed_stream *stream) {
    update_args args = {.s = *step, .o = *optimizer, .gradient = sums};
    (void)max_dim, (void)memory;
    return step_rows(&args, apply_body, stream);
}

static hotbed_status count_step(
    const hotbed_optimizer_view *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    count_args args = {clock, optimizer->beta1, optimizer->beta2};
    return hotbed_host_launch(stream, 1, 0, count_body, &args, sizeof args);
}

static hotbed_status update_rows(const hotbed_update_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, ROWS_GRAIN, update_rows_body, args, sizeof *args);
}

static hotbed_status set_learning_rate(
    hotbed_clock *clock, float learning_rate, hotbed_stream *stream) {
    rate_args args = {clock, learning_rate};
    return hotbed_host_launch(stream, 1, 0, rate_body, &args, sizeof args);
}

const hotbed_update_kernels hotbed_update_kernels_host = {
    scratch, update, reduce, apply, count_step, update_rows, set_learning_rate};
