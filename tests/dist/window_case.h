/* tests/dist/window_case.h - kernels that write into other ranks' parts of a window, and check the
 * own part. */
#pragma once

#include "base/port.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

enum { WINDOW_WORDS = 64 }; /* of each rank, in the part of each rank */

typedef struct window_args {
    void *const *parts;
    uint64_t *own;
    uint64_t *bad; /* number of words with a wrong value; device memory */
    uint32_t rank, size, round;
} window_args;

HOTBED_HD uint64_t window_word(uint32_t from, uint32_t to, uint32_t w, uint32_t round) {
    return (uint64_t)round << 48 | (uint64_t)from << 32 | (uint64_t)to << 16 | w;
}

/* For i below size * WINDOW_WORDS: write word i % WORDS of this rank's column in the part of rank i
 * / WORDS. */
HOTBED_HD void window_put_one(const window_args *a, uint64_t i) {
    uint32_t to = (uint32_t)(i / WINDOW_WORDS), w = (uint32_t)(i % WINDOW_WORDS);
    ((uint64_t *)a->parts[to])[a->rank * WINDOW_WORDS + w] = window_word(a->rank, to, w, a->round);
}

/* Check word i of this rank's own part. */
HOTBED_HD void window_check_one(const window_args *a, uint64_t i) {
    uint32_t from = (uint32_t)(i / WINDOW_WORDS), w = (uint32_t)(i % WINDOW_WORDS);
    if (a->own[i] != window_word(from, a->rank, w, a->round))
        (void)hotbed_add_relaxed_u64(a->bad, 1);
}

/* Run one of the two for all i, in stream order. */
hotbed_status window_put(const window_args *args, hotbed_stream *stream);
hotbed_status window_check(const window_args *args, hotbed_stream *stream);
hotbed_status window_put_cuda(const window_args *args, hotbed_stream *stream);
hotbed_status window_check_cuda(const window_args *args, hotbed_stream *stream);

/* The GPU that has the memory; on the host backend the stream's device. */
int window_device(const void *data, const hotbed_stream *stream);
int window_device_cuda(const void *data);

HOTBED_END_DECLS
