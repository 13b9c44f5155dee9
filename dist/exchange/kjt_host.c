/* dist/exchange/kjt_host.c - rows of a batch and features of it on the host.  CUDA counterpart: kjt.cu. */
#include "dist/exchange/kjt_kernels.h"

#include "base/host_launch.h"

enum { ROWS_GRAIN = 4096, KEYS_GRAIN = 2048 };

typedef struct offsets_args {
    hotbed_pick_view pick;
    int64_t *offsets;
} offsets_args;

HOTBED_HOST_BELOW(put_body, hotbed_words, a->n, a->to[i] = a->word[i])
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

HOTBED_HOST_CALL(put, hotbed_words, a->n, 0)
HOTBED_HOST_CALL(lengths, hotbed_kjt_view, a->rows + 1, ROWS_GRAIN)
HOTBED_HOST_CALL(check, hotbed_kjt_view, a->rows, ROWS_GRAIN)

static uint64_t picked_rows(const hotbed_pick_view *pick) {
    return (uint64_t)pick->num_features * pick->batch_size;
}

HOTBED_HOST_CALL(pick_lengths, hotbed_pick_view, picked_rows(a) + 1, ROWS_GRAIN)
HOTBED_HOST_CALL(pick_keys, hotbed_pick_view, a->kjt.bound, KEYS_GRAIN)

static hotbed_status pick_offsets(
    const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream) {
    offsets_args args = {*pick, offsets};
    return HOTBED_HOST_LAUNCH(stream, picked_rows(pick) + 1, ROWS_GRAIN, offsets_body, &args);
}

const hotbed_kjt_kernels hotbed_kjt_kernels_host = {
    put, lengths, check, pick_lengths, pick_keys, pick_offsets,
};
