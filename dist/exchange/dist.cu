/* dist/exchange/dist.cu - kernels of input and output dists on CUDA.  Host counterpart: dist_host.c. */
#include "base/cuda_launch.h"
#include "dist/exchange/dist_kernels.h"

/* A tile of 8 lanes moves a row: 128 bytes at a time. */
enum { TILE = 8, WARP = 32, BLOCK = 256, WAVES = 1, ROWS_WAVES = 4 };

/* --- before the exchange ------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK) targets_kernel(hotbed_bucketize_view b) {
    for (uint64_t i = hotbed_cuda_thread(); i < b.bound; i += hotbed_cuda_threads())
        hotbed_bucketize_target(&b, (uint32_t)i);
}

static __global__ void __launch_bounds__(BLOCK) ranks_kernel(hotbed_bucketize_view b) {
    for (uint64_t p = hotbed_cuda_thread(); p <= b.world; p += hotbed_cuda_threads())
        hotbed_bucketize_rank(&b, (uint32_t)p);
}

static __global__ void aim_kernel(hotbed_aim_view a) {
    hotbed_aim(&a);
}

static __global__ void __launch_bounds__(BLOCK) starts_kernel(hotbed_bucketize_view b) {
    uint64_t rows = (uint64_t)b.shape.rows + 1;
    for (uint64_t at = hotbed_cuda_thread(); at < rows * b.world; at += hotbed_cuda_threads()) {
        uint32_t p = (uint32_t)(at / rows), r = (uint32_t)(at % rows);
        hotbed_bucketize_start(&b, p, r);
        if (r == 0)
            hotbed_bucketize_header(&b, p);
    }
}

static __global__ void __launch_bounds__(BLOCK) keys_kernel(hotbed_bucketize_view b) {
    uint32_t n = b.starts[b.shape.rows];
    for (uint64_t j = hotbed_cuda_thread(); j < n; j += hotbed_cuda_threads())
        hotbed_bucketize_key(&b, (uint32_t)j);
}

static hotbed_status targets(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, b->bound, BLOCK, WAVES);
    targets_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*b);
    return hotbed_cuda_launched("targets_kernel");
}

static hotbed_status ranks(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, (uint64_t)b->world + 1, BLOCK, WAVES);
    ranks_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*b);
    return hotbed_cuda_launched("ranks_kernel");
}

static hotbed_status aim(const hotbed_aim_view *a, hotbed_stream *stream) {
    aim_kernel<<<1, 1, 0, hotbed_cuda_native(stream)>>>(*a);
    return hotbed_cuda_launched("aim_kernel");
}

static hotbed_status place(const hotbed_bucketize_view *b, hotbed_stream *stream) {
    uint64_t starts = ((uint64_t)b->shape.rows + 1) * b->world;
    const hotbed_cuda_native native(stream);
    starts_kernel<<<hotbed_cuda_blocks(stream, starts, BLOCK, WAVES), BLOCK, 0, native>>>(*b);
    HOTBED_TRY(hotbed_cuda_launched("starts_kernel"));
    keys_kernel<<<hotbed_cuda_blocks(stream, b->bound, BLOCK, WAVES), BLOCK, 0, native>>>(*b);
    return hotbed_cuda_launched("keys_kernel");
}

/* --- after it ------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) segments_kernel(hotbed_gather_view g) {
    for (uint64_t q = hotbed_cuda_thread(); q <= hotbed_gather_segments(&g);
         q += hotbed_cuda_threads())
        hotbed_gather_length(&g, (uint32_t)q);
}

static __global__ void __launch_bounds__(BLOCK) gather_kernel(hotbed_gather_view g) {
    uint32_t n = hotbed_gather_count(&g);
    for (uint64_t m = hotbed_cuda_thread(); m < n; m += hotbed_cuda_threads())
        hotbed_gather_key(&g, (uint32_t)m);
}

static __global__ void __launch_bounds__(BLOCK) offsets_kernel(hotbed_gather_view g) {
    uint64_t n = hotbed_gather_offsets(&g);
    for (uint64_t r = hotbed_cuda_thread(); r < n; r += hotbed_cuda_threads())
        hotbed_gather_offset(&g, r);
}

static hotbed_status lengths(const hotbed_gather_view *g, hotbed_stream *stream) {
    uint64_t n = (uint64_t)hotbed_gather_segments(g) + 1;
    unsigned blocks = hotbed_cuda_blocks(stream, n, BLOCK, WAVES);
    segments_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*g);
    return hotbed_cuda_launched("segments_kernel");
}

static hotbed_status gather(const hotbed_gather_view *g, hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    gather_kernel<<<hotbed_cuda_blocks(stream, g->bound, BLOCK, WAVES), BLOCK, 0, native>>>(*g);
    HOTBED_TRY(hotbed_cuda_launched("gather_kernel"));
    unsigned blocks = hotbed_cuda_blocks(stream, hotbed_gather_offsets(g), BLOCK, WAVES);
    offsets_kernel<<<blocks, BLOCK, 0, native>>>(*g);
    return hotbed_cuda_launched("offsets_kernel");
}

/* --- dedup ---------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) table_starts_kernel(hotbed_table_starts_view v) {
    for (uint64_t t = hotbed_cuda_thread(); t <= v.num_tables; t += hotbed_cuda_threads())
        hotbed_table_start(&v, t);
}

static __global__ void __launch_bounds__(BLOCK)
    follow_kernel(const uint32_t *n, uint32_t *at, const uint32_t *from) {
    for (uint64_t i = hotbed_cuda_thread(); i < *n; i += hotbed_cuda_threads())
        at[i] = from[at[i]];
}

static hotbed_status table_starts(const hotbed_table_starts_view *v, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, (uint64_t)v->num_tables + 1, BLOCK, WAVES);
    table_starts_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*v);
    return hotbed_cuda_launched("table_starts_kernel");
}

static hotbed_status follow(
    uint64_t bound, const uint32_t *n, uint32_t *at, const uint32_t *from, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, bound, BLOCK, WAVES);
    follow_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(n, at, from);
    return hotbed_cuda_launched("follow_kernel");
}

/* --- rows ------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK) find_places_kernel(
    hotbed_deliver_view d, const uint8_t *first, const uint32_t *n, uint32_t *at) {
    for (uint64_t i = hotbed_cuda_thread(); i < *n; i += hotbed_cuda_threads())
        at[i] = hotbed_owner_place(&d, first, at[i]);
}

static __global__ void __launch_bounds__(BLOCK)
    take_kernel(hotbed_deliver_view d, uint8_t *output, uint64_t stride, bool plain) {
    uint32_t n = *d.num_keys;
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_take_row(&d, (uint32_t)i, output, stride, plain, TILE);
}

static __global__ void __launch_bounds__(BLOCK)
    send_kernel(hotbed_deliver_view d, const void *gradient, uint64_t stride) {
    uint32_t n = *d.overflow != 0 ? 0 : *d.num_sent;
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t u = hotbed_cuda_thread() / TILE; u < n; u += hotbed_cuda_threads() / TILE)
        hotbed_send_gradient(&d, (uint32_t)u, gradient, stride, TILE);
}

static __global__ void __launch_bounds__(BLOCK)
    find_rows_kernel(hotbed_deliver_view d, uint8_t **rows) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&d.wire);
    for (uint64_t u = hotbed_cuda_thread(); u < *d.num_sent; u += hotbed_cuda_threads())
        rows[u] = hotbed_send_sum_to(&d, (uint32_t)u);
}

static __global__ void __launch_bounds__(BLOCK) pool_finish_kernel(
    hotbed_pool_view p, uint64_t n, const float *sums, void *output, uint64_t stride) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&p.wire);
    for (uint64_t at = hotbed_cuda_thread(); at < n; at += hotbed_cuda_threads())
        hotbed_pool_finish(&p, at, sums, output, stride);
}

static __global__ void __launch_bounds__(BLOCK) pool_start_kernel(
    hotbed_pool_view p, uint64_t n, const void *gradient, uint64_t stride, float *sums) {
    if (hotbed_cuda_thread() == 0)
        hotbed_wire_count(&p.wire);
    for (uint64_t at = hotbed_cuda_thread(); at < n; at += hotbed_cuda_threads())
        hotbed_pool_start(&p, at, gradient, stride, sums);
}

static unsigned row_blocks(const hotbed_stream *stream, uint64_t rows) {
    return hotbed_cuda_blocks(stream, rows * TILE, BLOCK, ROWS_WAVES);
}

static hotbed_status find_places(
    const hotbed_deliver_view *d, const void *first, const uint32_t *n, uint32_t *at,
    hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, d->received_bound, BLOCK, WAVES);
    find_places_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *d, (const uint8_t *)first, n, at);
    return hotbed_cuda_launched("find_places_kernel");
}

static hotbed_status take_rows(
    const hotbed_deliver_view *d, void *output, uint64_t stride_bytes, hotbed_stream *stream) {
    take_kernel<<<row_blocks(stream, d->key_bound), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *d, (uint8_t *)output, stride_bytes, hotbed_rows_plain(d, output, stride_bytes));
    return hotbed_cuda_launched("take_kernel");
}

static hotbed_status send_gradients(
    const hotbed_deliver_view *d, const void *gradient, uint64_t stride, hotbed_stream *stream) {
    send_kernel<<<row_blocks(stream, d->sent_bound), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *d, gradient, stride);
    return hotbed_cuda_launched("send_kernel");
}

static hotbed_status find_rows(
    const hotbed_deliver_view *d, uint8_t **rows, hotbed_stream *stream) {
    unsigned blocks = hotbed_cuda_blocks(stream, d->sent_bound, BLOCK, WAVES);
    find_rows_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*d, rows);
    return hotbed_cuda_launched("find_rows_kernel");
}

static hotbed_status pool_finish(
    const hotbed_pool_view *p, uint64_t columns, const float *sums, void *output, uint64_t stride,
    hotbed_stream *stream) {
    uint64_t n = columns * p->samples;
    unsigned blocks = hotbed_cuda_blocks(stream, n, BLOCK, ROWS_WAVES);
    pool_finish_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *p, n, sums, output, stride);
    return hotbed_cuda_launched("pool_finish_kernel");
}

static hotbed_status pool_start(
    const hotbed_pool_view *p, uint64_t columns, const void *gradient, uint64_t stride, float *sums,
    hotbed_stream *stream) {
    uint64_t n = columns * p->batch_size;
    unsigned blocks = hotbed_cuda_blocks(stream, n, BLOCK, ROWS_WAVES);
    pool_start_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *p, n, gradient, stride, sums);
    return hotbed_cuda_launched("pool_start_kernel");
}

/* --- bags whose sums travel ------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK) bag_flags_kernel(hotbed_bags_view v) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(&v) * v.world;
    for (uint64_t i = hotbed_cuda_thread(); i <= n; i += hotbed_cuda_threads())
        hotbed_bag_flag(&v, i);
}

static __global__ void bag_counts_kernel(hotbed_bags_view v, uint32_t *counts) {
    for (uint32_t p = threadIdx.x; p < v.world; p += BLOCK)
        counts[p] = hotbed_bag_count(&v, p);
}

/* Count the bags that move; each thread counts some. */
static __device__ void count_bags(const hotbed_bags_view &v) {
    const uint32_t rows = v.moved == NULL ? 0 : hotbed_bags_rows(&v);
    uint32_t bags = 0;
    for (uint64_t r = hotbed_cuda_thread(); r < rows; r += hotbed_cuda_threads())
        bags += hotbed_bag_moves(&v, (uint32_t)r);
    if (v.moved != NULL)
        hotbed_bags_count(&v, bags, WARP);
}

static __global__ void __launch_bounds__(BLOCK)
    bag_addresses_kernel(hotbed_bags_view v, uint8_t **at) {
    const uint64_t n = (uint64_t)hotbed_bags_rows(&v) * v.world;
    for (uint64_t b = hotbed_cuda_thread(); b < n; b += hotbed_cuda_threads())
        at[b] = hotbed_bag_address(&v, b);
    count_bags(v);
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK)
    finish_bags_kernel(hotbed_bags_view v, void *output, uint64_t stride) {
    const uint32_t rows = hotbed_bags_rows(&v);
    for (uint64_t r = hotbed_cuda_thread() / WIDTH; r < rows; r += hotbed_cuda_threads() / WIDTH)
        hotbed_bag_finish_sums(&v, (uint32_t)r, output, stride, WIDTH);
    count_bags(v);
}

template <uint32_t WIDTH>
static __global__ void __launch_bounds__(BLOCK)
    send_bags_kernel(hotbed_bags_view v, const void *gradient, uint64_t stride) {
    const uint32_t rows = hotbed_bags_rows(&v);
    for (uint64_t r = hotbed_cuda_thread() / WIDTH; r < rows; r += hotbed_cuda_threads() / WIDTH)
        hotbed_bag_give(&v, (uint32_t)r, gradient, stride, WIDTH);
    count_bags(v);
}

static unsigned bag_blocks(const hotbed_stream *stream, const hotbed_bags_view *v, uint64_t each) {
    const uint64_t bags = (uint64_t)hotbed_bags_rows(v) * each;
    return hotbed_cuda_blocks(stream, bags, BLOCK, ROWS_WAVES);
}

static hotbed_status bag_flags(const hotbed_bags_view *v, hotbed_stream *stream) {
    bag_flags_kernel<<<bag_blocks(stream, v, v->world), BLOCK, 0, hotbed_cuda_native(stream)>>>(*v);
    return hotbed_cuda_launched("bag_flags_kernel");
}

static hotbed_status bag_counts(
    const hotbed_bags_view *v, uint32_t *counts, hotbed_stream *stream) {
    bag_counts_kernel<<<1, BLOCK, 0, hotbed_cuda_native(stream)>>>(*v, counts);
    return hotbed_cuda_launched("bag_counts_kernel");
}

static hotbed_status bag_addresses(const hotbed_bags_view *v, uint8_t **at, hotbed_stream *stream) {
    bag_addresses_kernel<<<bag_blocks(stream, v, v->world), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        *v, at);
    return hotbed_cuda_launched("bag_addresses_kernel");
}

static hotbed_status finish_bags(
    const hotbed_bags_view *v, uint32_t max_dim, void *output, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    if (max_dim <= 4 * TILE)
        finish_bags_kernel<TILE>
            <<<bag_blocks(stream, v, TILE), BLOCK, 0, native>>>(*v, output, stride);
    else
        finish_bags_kernel<WARP>
            <<<bag_blocks(stream, v, WARP), BLOCK, 0, native>>>(*v, output, stride);
    return hotbed_cuda_launched("finish_bags_kernel");
}

static hotbed_status send_bags(
    const hotbed_bags_view *v, uint32_t max_dim, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    const hotbed_cuda_native native(stream);
    if (max_dim <= 4 * TILE)
        send_bags_kernel<TILE>
            <<<bag_blocks(stream, v, TILE), BLOCK, 0, native>>>(*v, gradient, stride);
    else
        send_bags_kernel<WARP>
            <<<bag_blocks(stream, v, WARP), BLOCK, 0, native>>>(*v, gradient, stride);
    return hotbed_cuda_launched("send_bags_kernel");
}

/* --- one rank -------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) copy_rows_kernel(hotbed_copies_view v) {
    uint64_t n = hotbed_copies_count(&v);
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_copies_row(&v, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) finish_sums_kernel(hotbed_sent_view v) {
    uint32_t n = *v.num_rows;
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < n; i += hotbed_cuda_threads() / TILE)
        hotbed_sent_row(&v, i, TILE);
}

static hotbed_status copy_rows(const hotbed_copies_view *v, hotbed_stream *stream) {
    copy_rows_kernel<<<row_blocks(stream, v->bound), BLOCK, 0, hotbed_cuda_native(stream)>>>(*v);
    return hotbed_cuda_launched("copy_rows_kernel");
}

static hotbed_status finish_sums(const hotbed_sent_view *v, hotbed_stream *stream) {
    finish_sums_kernel<<<row_blocks(stream, v->bound), BLOCK, 0, hotbed_cuda_native(stream)>>>(*v);
    return hotbed_cuda_launched("finish_sums_kernel");
}

const hotbed_dist_kernels hotbed_dist_kernels_cuda = {
    targets,   ranks,       aim,           place,          lengths,   gather,      table_starts,
    follow,    find_places, take_rows,     send_gradients, find_rows, pool_finish, pool_start,
    bag_flags, bag_counts,  bag_addresses, finish_bags,    send_bags, copy_rows,   finish_sums,
};
