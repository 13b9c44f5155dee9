/* dist/exchange/kjt_kernels.h - rows of a batch and features of it: the contract of both backends. */
#pragma once

#include "dist/exchange/kjt_core.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

enum { HOTBED_WORDS_MOST = 112 }; /* words per put() */

/* Words that travel to the device with the launch itself. */
typedef struct hotbed_words {
    uint32_t *to;
    uint32_t n;
    uint32_t word[HOTBED_WORDS_MOST];
} hotbed_words;

/* All are asynchronous. hotbed_scan() runs over `starts` between two of these. */
typedef struct hotbed_kjt_kernels {
    /* Write words[i] to to[i]. The words are arguments of the launch, so the caller may reuse its
     * memory at once. */
    hotbed_status (*put)(const hotbed_words *words, hotbed_stream *stream);
    /* Check the lengths of all rows and write them into starts. `bad` is 0 before. */
    hotbed_status (*lengths)(const hotbed_kjt_view *kjt, hotbed_stream *stream);
    /* Check their sums. */
    hotbed_status (*check)(const hotbed_kjt_view *kjt, hotbed_stream *stream);
    /* Write the lengths of the picked rows into starts. */
    hotbed_status (*pick_lengths)(const hotbed_pick_view *pick, hotbed_stream *stream);
    /* Write keys, sources and weights of the picked rows. */
    hotbed_status (*pick_keys)(const hotbed_pick_view *pick, hotbed_stream *stream);
    /* Write offsets [num_features * batch_size + 1], see hotbed_pick_offset(). */
    hotbed_status (*pick_offsets)(
        const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream);
} hotbed_kjt_kernels;

extern const hotbed_kjt_kernels hotbed_kjt_kernels_host;
extern const hotbed_kjt_kernels hotbed_kjt_kernels_cuda;

HOTBED_END_DECLS
