/* tests/dist/window_case.h - kernels that write into other ranks' parts of a window, and check their own. */
#ifndef HOTBED_TESTS_WINDOW_CASE_H
#define HOTBED_TESTS_WINDOW_CASE_H

#include "base/port.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WINDOW_WORDS = 64 }; /* of each rank in each rank's part */

typedef struct window_args {
    void *const *parts;
    uint64_t *own;
    uint64_t *bad; /* counts words that are not as they should be; device memory */
    uint32_t rank, size, round;
} window_args;

HOTBED_HD uint64_t window_word(uint32_t from, uint32_t to, uint32_t w, uint32_t round) {
    return (uint64_t)round << 48 | (uint64_t)from << 32 | (uint64_t)to << 16 | w;
}

/* i below size * WINDOW_WORDS: word i % WORDS of this rank's column in rank i / WORDS's part. */
HOTBED_HD void window_put_one(const window_args *a, uint64_t i) {
    uint32_t to = (uint32_t)(i / WINDOW_WORDS), w = (uint32_t)(i % WINDOW_WORDS);
    ((uint64_t *)a->parts[to])[a->rank * WINDOW_WORDS + w] = window_word(a->rank, to, w, a->round);
}

/* Word i of this rank's own part. */
HOTBED_HD void window_check_one(const window_args *a, uint64_t i) {
    uint32_t from = (uint32_t)(i / WINDOW_WORDS), w = (uint32_t)(i % WINDOW_WORDS);
    if (a->own[i] != window_word(from, a->rank, w, a->round))
        (void)hotbed_add_relaxed_u64(a->bad, 1);
}

/* Enqueue one of them for all i. */
hotbed_status window_put(const window_args *args, hotbed_stream *stream);
hotbed_status window_check(const window_args *args, hotbed_stream *stream);
hotbed_status window_put_cuda(const window_args *args, hotbed_stream *stream);
hotbed_status window_check_cuda(const window_args *args, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
