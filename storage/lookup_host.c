/* storage/lookup_host.c - prefetch, forward and eval on the host.  CUDA counterpart: lookup.cu. */
#include "storage/lookup_kernels.h"

#include "base/host_launch.h"
#include "base/stream.h"

#include <time.h>

enum { KEYS_GRAIN = 1024, ROWS_GRAIN = 256 };

typedef struct forward_args {
    hotbed_step_view s;
    void *output;
    uint64_t stride;
} forward_args;

static void layout_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    (void)begin, (void)end;
    bool good = true;
    for (uint32_t f = 0; f <= s->num_features; f++) {
        bool this_good = true;
        uint64_t start = hotbed_feature_start(s, f, &this_good);
        if (!this_good && good)
            hotbed_fault_latch(
                s->offset_faults, HOTBED_ERR_RANGE, HOTBED_FAULT_OFFSET, 0,
                (uint64_t)f * s->batch_size, start);
        good = good && this_good;
        s->feature_starts[f] = (uint32_t)start;
    }
    for (uint32_t f = 0; f <= s->num_features && !good; f++)
        s->feature_starts[f] = 0;
    uint32_t f = 0;
    for (uint32_t t = 0; t <= s->num_tables; t++) {
        while (f < s->num_features && s->feature_tables[f] < t)
            f++;
        s->table_starts[t] = s->feature_starts[f];
    }
    if (s->eval == 0) {
        s->clock->prefetches++;
        if (s->timer != NULL) {
            struct timespec now;
            (void)clock_gettime(CLOCK_MONOTONIC, &now);
            hotbed_timer_tick(
                s->timer, (uint64_t)now.tv_sec * 1000000U + (uint64_t)now.tv_nsec / 1000U);
        }
        *s->num_missing = 0;
    }
}

static void bags_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    for (uint64_t b = begin; b < end; b++) {
        hotbed_bag bag = hotbed_bag_at(s, b, (uint32_t)(b / s->batch_size));
        if (!bag.good)
            hotbed_fault_latch(
                s->offset_faults, HOTBED_ERR_RANGE, HOTBED_FAULT_OFFSET, 0, b,
                (uint64_t)s->offsets[b]);
        for (uint32_t i = bag.begin; i < bag.end; i++)
            s->bags[i] = (uint32_t)b;
    }
}

static void no_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    for (uint64_t i = begin; i < end; i++)
        s->bags[i] = HOTBED_NO_BAG;
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->unique_offsets[s->num_tables])
        end = s->unique_offsets[s->num_tables];
    for (uint64_t u = begin; u < end; u++)
        hotbed_find_uniques(s, (uint32_t)u, 1, 1);
}

static void place_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->num_missing)
        end = *s->num_missing;
    for (uint64_t i = begin; i < end; i++)
        hotbed_place_unique(s, s->missing[i], 1);
}

static void find_keys_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->feature_starts[s->num_features])
        end = s->feature_starts[s->num_features];
    for (uint64_t i = begin; i < end; i++)
        hotbed_find_keys(s, (uint32_t)i, 1, 1);
}

static void forward_rows_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    if (end > a->s.feature_starts[a->s.num_features])
        end = a->s.feature_starts[a->s.num_features];
    for (uint64_t i = begin; i < end; i++)
        hotbed_forward_rows(&a->s, (uint32_t)i, 1, a->output, a->stride, 1);
}

static void eval_rows_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    if (end > a->s.feature_starts[a->s.num_features])
        end = a->s.feature_starts[a->s.num_features];
    for (uint64_t i = begin; i < end; i++)
        hotbed_eval_rows(&a->s, (uint32_t)i, 1, a->output, a->stride, 1, 1);
}

static void forward_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    for (uint64_t b = begin; b < end; b++)
        hotbed_forward_bag(&a->s, b, a->output, a->stride, 1);
}

static void unpin_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->unique_offsets[s->num_tables])
        end = s->unique_offsets[s->num_tables];
    for (uint64_t u = begin; u < end; u++)
        if (s->slots[u] < s->index_slots)
            hotbed_index_unpin(s->index, s->slots[u], true);
}

static hotbed_status layout(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, 1, 0, layout_body, step, sizeof *step);
}

static hotbed_status bags(const hotbed_step_view *step, hotbed_stream *stream) {
    hotbed_status status =
        hotbed_host_launch(stream, step->bound, KEYS_GRAIN, no_bags_body, step, sizeof *step);
    if (status != HOTBED_OK)
        return status;
    return hotbed_host_launch(
        stream, (uint64_t)step->num_features * step->batch_size, ROWS_GRAIN, bags_body, step,
        sizeof *step);
}

static hotbed_status find(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, step->bound, KEYS_GRAIN, find_body, step, sizeof *step);
}

static hotbed_status place(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, step->bound, ROWS_GRAIN, place_body, step, sizeof *step);
}

static hotbed_status find_keys(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, step->bound, KEYS_GRAIN, find_keys_body, step, sizeof *step);
}

static hotbed_status eval_rows(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    (void)max_dim;
    return hotbed_host_launch(stream, step->bound, ROWS_GRAIN, eval_rows_body, &args, sizeof args);
}

static hotbed_status forward(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    (void)max_dim;
    if (step->pooling == HOTBED_POOL_NONE)
        return hotbed_host_launch(
            stream, step->bound, ROWS_GRAIN, forward_rows_body, &args, sizeof args);
    return hotbed_host_launch(
        stream, (uint64_t)step->num_features * step->batch_size, ROWS_GRAIN, forward_bags_body,
        &args, sizeof args);
}

static hotbed_status unpin(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, step->bound, KEYS_GRAIN, unpin_body, step, sizeof *step);
}

const hotbed_lookup_kernels hotbed_lookup_kernels_host = {layout,    bags,      find,    place,
                                                          find_keys, eval_rows, forward, unpin};
