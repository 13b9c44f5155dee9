/* dist/exchange/bags_core.h - pooled features by sums: the bags that travel between two ranks.
 *
 * Row r = feature * batch_size + sample of a rank's batch is a bag. It travels between that rank,
 * the *requester*, and an *owner* if the message between the two has keys of it: the owner sends its
 * sum of these keys, and gets the gradient of the bag. The *place* of a bag is its number among the
 * bags that may travel between the two: r itself if messages have a fixed capacity; otherwise its
 * number among the bags that do travel. */
#pragma once

#include "dist/exchange/message_core.h"
#include "storage/step/optimizer_core.h"
#include "storage/step/packed_core.h"

typedef struct hotbed_bags_view {
    /* Owner: the messages of all ranks, by which the bags travel. */
    uint8_t *const *messages; /* [world] */
    uint64_t messages_offset;
    /* Requester, otherwise: [world][rows + 1] where each row begins in the message to each rank. */
    const uint32_t *row_starts;
    /* [world * rows + 1] number of the bags that travel before each; NULL: places are row numbers */
    uint32_t *places;
    const uint32_t *overflow; /* not 0: no bag travels */
    uint32_t num_features, batch_size, world, rank;
    /* rows that travel, `row_bytes` apart; their elements are of `travel` */
    uint8_t *const *rows; /* [world] rows for or from each rank */
    uint64_t rows_offset, row_bytes;
    uint32_t travel; /* hotbed_dtype */
    uint32_t remote; /* they are in other ranks' memory: few blocks saturate the links */
    /* Requester: its bags, and the caller's output or gradient. */
    const uint32_t *starts;         /* [rows + 1] first key of each bag */
    const uint32_t *dims;           /* [num_features]; the owner has them, too */
    const uint32_t *output_columns; /* [num_features] first column of each feature */
    uint32_t samples;               /* rows of the output */
    uint32_t dtype;                 /* of the output and the gradient */
    uint32_t mean;
    float max_gradient, scale;
    hotbed_pack_view pack; /* of gradients */
    /* Owner, if the rows are packed: [received bags] their elements as f32, wide_stride apart; otherwise
     * NULL. */
    float *wide;
    uint64_t wide_stride;
    /* A word to which the bytes that move to or from other ranks are added; NULL: they are not
     * counted. */
    uint64_t *moved;
    uint32_t whole; /* all rows travel, whether or not they are of bags with keys */
    /* Owner: the gradient of its own bags, if they are not among `rows`. */
    const uint8_t *own;
    uint64_t own_stride; /* bytes from one sample to the next */
} hotbed_bags_view;

HOTBED_HD uint32_t hotbed_bags_rows(const hotbed_bags_view *v) {
    return v->num_features * v->batch_size;
}

/* Whether bag r travels between the requester and rank p. */
HOTBED_HD bool hotbed_bag_travels(const hotbed_bags_view *v, uint32_t p, uint32_t r) {
    const uint32_t *starts = v->messages != NULL
                                 ? hotbed_message_starts(v->messages[p] + v->messages_offset)
                                 : v->row_starts + (uint64_t)p * (hotbed_bags_rows(v) + 1);
    return starts[r + 1] != starts[r];
}

/* The number of other ranks between which and the requester bag r travels. */
HOTBED_HD uint32_t hotbed_bag_moves(const hotbed_bags_view *v, uint32_t r) {
    uint32_t n = 0;
    if (v->whole != 0)
        return v->world - 1;
    if (*v->overflow != 0)
        return 0;
    for (uint32_t p = 0; p < v->world; p++)
        n += p != v->rank && hotbed_bag_travels(v, p, r) ? 1 : 0;
    return n;
}

/* Add `bags` of each lane of a tile to the bytes that move. */
HOTBED_HD void hotbed_bags_count(const hotbed_bags_view *v, uint32_t bags, uint32_t width) {
    uint64_t sum = 0;
    for (uint32_t lane = 0; lane < width; lane++)
        sum += hotbed_tile_shuffle_u32(width, bags, lane);
    if (hotbed_tile_rank(width) == 0 && sum != 0)
        (void)hotbed_add_relaxed_u64(v->moved, sum * v->row_bytes);
}

/* Write 1 to places[i] if bag i = p * rows + r travels, otherwise 0; 0 past the last bag: a scan then
 * gives places. */
HOTBED_HD void hotbed_bag_flag(const hotbed_bags_view *v, uint64_t i) {
    const uint32_t rows = hotbed_bags_rows(v);
    const uint32_t p = (uint32_t)(i / rows), r = (uint32_t)(i - (uint64_t)p * rows);
    v->places[i] = p < v->world && *v->overflow == 0 && hotbed_bag_travels(v, p, r) ? 1 : 0;
}

/* The number of bags that travel between the requester and rank p. */
HOTBED_HD uint32_t hotbed_bag_count(const hotbed_bags_view *v, uint32_t p) {
    const uint64_t rows = hotbed_bags_rows(v);
    return v->places[(p + 1) * rows] - v->places[p * rows];
}

/* The row of bag r, which travels, among the rows between the requester and rank p. */
HOTBED_HD uint8_t *hotbed_bag_row(const hotbed_bags_view *v, uint32_t p, uint32_t r) {
    const uint64_t first = (uint64_t)p * hotbed_bags_rows(v);
    const uint32_t place = v->places == NULL ? r : v->places[first + r] - v->places[first];
    return v->rows[p] + v->rows_offset + place * v->row_bytes;
}

/* Owner: where the sum of received bag b goes, or where its gradient is; NULL if the bag has no
 * keys. Bags are ordered by feature, rank, sample. */
HOTBED_HD uint8_t *hotbed_bag_address(const hotbed_bags_view *v, uint64_t b) {
    const uint32_t q = (uint32_t)(b / v->batch_size);
    const uint32_t sample = (uint32_t)(b - (uint64_t)q * v->batch_size);
    const uint32_t f = q / v->world, p = q - f * v->world, r = f * v->batch_size + sample;
    if (*v->overflow != 0 || !hotbed_bag_travels(v, p, r))
        return NULL;
    if (p != v->rank || v->own == NULL)
        return hotbed_bag_row(v, p, r);
    return (uint8_t *)(uintptr_t)v->own + sample * v->own_stride +
           (uint64_t)v->output_columns[f] * hotbed_dtype_size(v->dtype);
}

/* Owner: the sum of received bag b before it is packed, or its gradient. */
HOTBED_HD float *hotbed_bag_wide(const hotbed_bags_view *v, uint64_t b) {
    return v->wide + b * v->wide_stride;
}

/* Owner: where the lookup writes the sum of received bag b, or reads its gradient; NULL if the bag has no
 * keys. */
HOTBED_HD uint8_t *hotbed_bag_target(const hotbed_bags_view *v, uint64_t b) {
    uint8_t *row = hotbed_bag_address(v, b);
    return row == NULL || v->wide == NULL ? row : (uint8_t *)hotbed_bag_wide(v, b);
}

/* Owner: pack the sum of received bag b. */
HOTBED_HD void hotbed_pack_bag(const hotbed_bags_view *v, uint64_t b, uint32_t width) {
    const hotbed_pack_view p = hotbed_pack_rows(v->travel);
    uint8_t *row = hotbed_bag_address(v, b);
    if (row != NULL)
        hotbed_pack_row(
            &p, v->dims[b / v->batch_size / v->world], 0, row, hotbed_pack_float4,
            hotbed_bag_wide(v, b), width);
}

/* Owner: unpack the gradient of received bag b. */
HOTBED_HD void hotbed_widen_bag(const hotbed_bags_view *v, uint64_t b, uint32_t width) {
    const uint32_t dim = v->dims[b / v->batch_size / v->world];
    const uint8_t *row = hotbed_bag_address(v, b);
    for (uint32_t e = 4 * hotbed_tile_rank(width); row != NULL && e < dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(dim, e);
        hotbed_store4(
            HOTBED_F32, hotbed_bag_wide(v, b), e, count,
            hotbed_unpack4(v->travel, v->pack.layout, row, e, count));
    }
}

/* Requester: write the output of bag r: the owners' sums, added in the order of ranks. */
HOTBED_HD void hotbed_bag_finish_sums(
    const hotbed_bags_view *v, uint32_t r, void *output, uint64_t stride, uint32_t width) {
    const uint32_t f = r / v->batch_size, sample = r - f * v->batch_size;
    const uint32_t dim = v->dims[f], keys = v->starts[r + 1] - v->starts[r];
    const uint64_t at = sample * stride + v->output_columns[f];
    if (sample >= v->samples)
        return;
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(dim, e);
        hotbed_f32x4 sum = hotbed_f32x4_of(0.0F);
        for (uint32_t p = 0; p < v->world && keys != 0 && *v->overflow == 0; p++)
            if (hotbed_bag_travels(v, p, r))
                sum = hotbed_add4(
                    sum,
                    hotbed_row_load4(false, v->travel, dim, hotbed_bag_row(v, p, r), e, count));
        if (v->mean != 0 && keys != 0) {
            sum.x = sum.x / (float)keys;
            sum.y = sum.y / (float)keys;
            sum.z = sum.z / (float)keys;
            sum.w = sum.w / (float)keys;
        }
        hotbed_store4(v->dtype, output, at + e, count, sum);
    }
}

/* The gradient of a bag, which has `keys` and begins at element `at`. */
typedef struct hotbed_bag_gradient {
    const hotbed_bags_view *v;
    const void *gradient;
    uint64_t at;
    uint32_t keys;
} hotbed_bag_gradient;

HOTBED_HD hotbed_f32x4 hotbed_bag_gradient4(const void *of, uint32_t e, uint32_t count) {
    const hotbed_bag_gradient *f = (const hotbed_bag_gradient *)of;
    if (count == 0)
        return hotbed_f32x4_of(0.0F);
    hotbed_f32x4 g = hotbed_load4(f->v->dtype, f->gradient, f->at + e, count);
    g = hotbed_clamp4(g, f->v->max_gradient);
    if (f->v->mean != 0)
        g = hotbed_scale4(g, 1.0F / (float)f->keys);
    return hotbed_scale4(g, f->v->scale);
}

/* The rank that is number i in the order in which a requester writes. Ranks begin with different owners,
 * whose links would otherwise wait. */
HOTBED_HD uint32_t hotbed_bag_owner(const hotbed_bags_view *v, uint32_t i) {
    return v->rank + 1 + i < v->world ? v->rank + 1 + i : v->rank + 1 + i - v->world;
}

/* Requester: send the gradient of bag r to the ranks that have keys of it; to itself unless
 * `own`. */
HOTBED_HD void hotbed_bag_send(
    const hotbed_bags_view *v, uint32_t r, const void *gradient, uint64_t stride, uint32_t width) {
    const uint32_t f = r / v->batch_size, sample = r - f * v->batch_size;
    const uint32_t dim = v->dims[f], keys = v->starts[r + 1] - v->starts[r];
    const hotbed_bag_gradient from = {v, gradient, sample * stride + v->output_columns[f], keys};
    if (sample >= v->samples || keys == 0 || *v->overflow != 0)
        return;
    /* r depends on the largest batch, and the random words must not. */
    const uint64_t number = (uint64_t)sample * v->num_features + f;
    for (uint32_t i = 0; v->pack.dtype != 0 && i < v->world; i++) {
        const uint32_t p = hotbed_bag_owner(v, i);
        if (hotbed_bag_travels(v, p, r))
            hotbed_pack_row(
                &v->pack, dim, number, hotbed_bag_row(v, p, r), hotbed_bag_gradient4, &from, width);
    }
    for (uint32_t e = 4 * hotbed_tile_rank(width); v->pack.dtype == 0 && e < dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(dim, e);
        const hotbed_f32x4 g = hotbed_bag_gradient4(&from, e, count);
        for (uint32_t i = 0; i < v->world; i++) {
            const uint32_t p = hotbed_bag_owner(v, i);
            if ((p != v->rank || v->own == NULL) && hotbed_bag_travels(v, p, r))
                hotbed_store4(v->travel, hotbed_bag_row(v, p, r), e, count, g);
        }
    }
}
