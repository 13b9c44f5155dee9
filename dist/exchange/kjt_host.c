/* dist/exchange/kjt_host.c - rows of a batch and features of it on the host.  CUDA counterpart: kjt.cu. */
#include "dist/exchange/kjt_kernels.h"

#include "base/host_launch.h"

enum { ROWS_GRAIN = 4096, KEYS_GRAIN = 2048 };

typedef struct offsets_args {
    hotbed_pick_view pick;
    int64_t *offsets;
} offsets_args;

static void put_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_words *w = args;
    for (uint64_t i = begin; i < end; i++)
        w->to[i] = w->word[i];
}

HOTBED_HOST_EACH(lengths_body, hotbed_kjt_length(args, i))
HOTBED_HOST_EACH(check_body, hotbed_kjt_check_row(args, i))
HOTBED_HOST_EACH(pick_lengths_body, hotbed_pick_length(args, (uint32_t)i))

static void pick_keys_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_pick_view *p = args;
    const uint64_t batch = p->batch_size;
    const uint32_t n = p->starts[p->num_features * batch];
    uint32_t f = 0;
    for (uint64_t i = begin; i < end && i < n; i++) {
        while (p->starts[(f + 1) * batch] <= i)
            f++;
        hotbed_pick_key_of(p, (uint32_t)i, f);
    }
}

static void offsets_body(const void *args, uint64_t begin, uint64_t end) {
    const offsets_args *a = args;
    for (uint64_t r = begin; r < end; r++)
        a->offsets[r] = hotbed_pick_offset(&a->pick, (uint32_t)r);
}

static hotbed_status put(const hotbed_words *words, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, words->n, 0, put_body, words);
}

static hotbed_status lengths(const hotbed_kjt_view *kjt, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, kjt->rows + 1, ROWS_GRAIN, lengths_body, kjt);
}

static hotbed_status check(const hotbed_kjt_view *kjt, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, kjt->rows, ROWS_GRAIN, check_body, kjt);
}

static uint64_t picked_rows(const hotbed_pick_view *pick) {
    return (uint64_t)pick->num_features * pick->batch_size;
}

static hotbed_status pick_lengths(const hotbed_pick_view *pick, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, picked_rows(pick) + 1, ROWS_GRAIN, pick_lengths_body, pick);
}

static hotbed_status pick_keys(const hotbed_pick_view *pick, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, pick->kjt.bound, KEYS_GRAIN, pick_keys_body, pick);
}

static hotbed_status pick_offsets(
    const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream) {
    offsets_args args = {*pick, offsets};
    return HOTBED_HOST_LAUNCH(stream, picked_rows(pick) + 1, ROWS_GRAIN, offsets_body, &args);
}

const hotbed_kjt_kernels hotbed_kjt_kernels_host = {
    put, lengths, check, pick_lengths, pick_keys, pick_offsets,
};
