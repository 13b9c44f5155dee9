/* dist/exchange/dist_kernels.h - the kernels of input and output dists: the contract of both backends.
 *
 * All are asynchronous, and loop to counts in device memory. */
#pragma once

#include "dist/exchange/bags_core.h"
#include "dist/exchange/bucketize_core.h"
#include "dist/exchange/deliver_core.h"
#include "dist/exchange/gather_core.h"
#include "dist/exchange/kjt_core.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_dist_kernels {
    /* --- before the exchange */
    /* Write targets, and the number of keys of each tile for each rank; a scan then gives
     * tile_starts. */
    hotbed_status (*targets)(const hotbed_bucketize_view *b, hotbed_stream *stream);
    /* Write ranks and counts, and whether a message overflows. */
    hotbed_status (*ranks)(const hotbed_bucketize_view *b, hotbed_stream *stream);
    /* Compute where parts of exact sizes begin. */
    hotbed_status (*aim)(const hotbed_aim_view *a, hotbed_stream *stream);
    /* Write the messages, sorted and places. */
    hotbed_status (*place)(const hotbed_bucketize_view *b, hotbed_stream *stream);
    /* --- after it */
    /* Write segments, firsts and overflow. */
    hotbed_status (*segments)(const hotbed_gather_view *g, hotbed_stream *stream);
    /* Write keys, weights, counts and offsets. */
    hotbed_status (*gather)(const hotbed_gather_view *g, hotbed_stream *stream);
    /* --- dedup */
    hotbed_status (*table_starts)(const hotbed_table_starts_view *v, hotbed_stream *stream);
    /* at[i] = from[at[i]] for i < *n. */
    hotbed_status (*follow)(
        uint64_t bound, const uint32_t *n, uint32_t *at, const uint32_t *from,
        hotbed_stream *stream);
    /* --- rows */
    /* at[i] = hotbed_owner_place(d, first, at[i]) for i < *n. */
    hotbed_status (*find_places)(
        const hotbed_deliver_view *d, const void *first, const uint32_t *n, uint32_t *at,
        hotbed_stream *stream);
    hotbed_status (*take_rows)(
        const hotbed_deliver_view *d, void *output, uint64_t stride_bytes, hotbed_stream *stream);
    hotbed_status (*send_gradients)(
        const hotbed_deliver_view *d, const void *gradient, uint64_t stride, hotbed_stream *stream);
    /* rows[u] = hotbed_send_sum_to(d, u) */
    hotbed_status (*find_rows)(const hotbed_deliver_view *d, uint8_t **rows, hotbed_stream *stream);
    /* hotbed_widen_row() of each received key */
    hotbed_status (*widen_rows)(
        const hotbed_deliver_view *d, const void *first, float *wide, uint64_t stride,
        hotbed_stream *stream);
    hotbed_status (*pool_finish)(
        const hotbed_pool_view *p, uint64_t columns, const float *sums, void *output,
        uint64_t stride, hotbed_stream *stream);
    hotbed_status (*pool_start)(
        const hotbed_pool_view *p, uint64_t columns, const void *gradient, uint64_t stride,
        float *sums, hotbed_stream *stream);
    /* --- bags whose sums travel; max_dim is the largest dim */
    /* Write flags into places; a scan then gives places. */
    hotbed_status (*bag_flags)(const hotbed_bags_view *v, hotbed_stream *stream);
    /* counts[p] = hotbed_bag_count(v, p) */
    hotbed_status (*bag_counts)(const hotbed_bags_view *v, uint32_t *counts, hotbed_stream *stream);
    /* at[b] = hotbed_bag_target(v, b). This, finish_bags and send_bags count what moves. */
    hotbed_status (*bag_addresses)(const hotbed_bags_view *v, uint8_t **at, hotbed_stream *stream);
    /* hotbed_pack_bag(), hotbed_widen_bag() of each received bag */
    hotbed_status (*pack_bags)(const hotbed_bags_view *v, hotbed_stream *stream);
    hotbed_status (*widen_bags)(const hotbed_bags_view *v, hotbed_stream *stream);
    hotbed_status (*finish_bags)(
        const hotbed_bags_view *v, uint32_t max_dim, void *output, uint64_t stride,
        hotbed_stream *stream);
    hotbed_status (*send_bags)(
        const hotbed_bags_view *v, uint32_t max_dim, const void *gradient, uint64_t stride,
        hotbed_stream *stream);
    /* --- one rank */
    hotbed_status (*copy_rows)(const hotbed_copies_view *v, hotbed_stream *stream);
    hotbed_status (*finish_sums)(const hotbed_sent_view *v, hotbed_stream *stream);
} hotbed_dist_kernels;

extern const hotbed_dist_kernels hotbed_dist_kernels_host;
extern const hotbed_dist_kernels hotbed_dist_kernels_cuda;

HOTBED_END_DECLS
