/* dist/exchange/deliver_core.h - embeddings to the ranks that asked for them, and gradients back.
 *
 * An *owner* has rows for the keys that it received, by feature and rank; a *requester* wants rows
 * for the keys in its messages. Both know position k of a key in the message between them, and rows
 * travel in that order. Pooled output is one row per sample, to which every rank contributes a
 * part. */
#pragma once

#include "dist/exchange/wire_core.h"
#include "storage/step/optimizer_core.h"
#include "storage/step/packed_core.h"
#include "storage/step/step_core.h"

typedef struct hotbed_deliver_view {
    /* owner: the hotbed_gather_view */
    const uint32_t *segments, *firsts;
    uint32_t num_segments;
    /* requester: the hotbed_bucketize_view */
    const uint32_t *ranks, *places;
    const uint32_t *sources;   /* position of key i in the caller's batch; NULL: i */
    const uint32_t *inverse;   /* after dedup: the sent key of key i; NULL: key i itself */
    const uint32_t *first_key; /* of the keys whose rows are taken; NULL: 0 */
    const uint32_t *num_keys;  /* one word each; the end of these keys */
    const uint32_t *num_sent;
    const uint32_t *overflow; /* not 0: nothing was sent, or a message was invalid */
    uint64_t key_bound, sent_bound, received_bound;
    uint32_t world, rank;
    /* rows that travel: `row_bytes` apart, a multiple of 16; packed rows: of 4 */
    uint8_t *const *rows; /* [world] rows for or from each rank */
    uint64_t rows_offset; /* offset in bytes */
    uint64_t row_bytes;
    uint32_t dim, dtype; /* of the caller's output or gradient */
    uint32_t travel;     /* hotbed_dtype of the rows that travel */
    float max_gradient, scale;
    hotbed_pack_view pack; /* of gradients */
    uint8_t **own;         /* hotbed_scatter_view.own; NULL: the rank's own rows are among `rows` */
    uint32_t few;          /* owner: hotbed_scatter_view.few */
    hotbed_wire_view wire; /* what moves; the kernels of the requester count it */
} hotbed_deliver_view;

/* Owner: where the lookup writes the rows of received keys. A run is a segment; array p has the rows
 * for rank p. */
HOTBED_HD hotbed_scatter_view hotbed_owner_rows(const hotbed_deliver_view *d) {
    hotbed_scatter_view to;
    to.on = 1;
    to.arrays = d->rows;
    to.offset = d->rows_offset;
    to.row_bytes = d->row_bytes;
    to.starts = d->segments;
    to.firsts = d->firsts;
    to.num_runs = d->num_segments;
    to.num_arrays = d->world;
    to.writer = d->rank;
    to.few = d->few;
    to.own = d->own;
    to.packed = hotbed_packed_type(d->travel);
    return to;
}

/* The row of received key m, among the rows that are exchanged with its requester. */
HOTBED_HD uint8_t *hotbed_owner_row(const hotbed_deliver_view *d, uint32_t m) {
    const hotbed_scatter_view to = hotbed_owner_rows(d);
    return hotbed_scatter_row(&to, m);
}

/* The row of sent key u, among the rows that are exchanged with its owner. */
HOTBED_HD uint8_t *hotbed_requester_row(const hotbed_deliver_view *d, uint32_t u) {
    uint32_t j = d->places[u], p = hotbed_part_of(d->ranks, d->world, j);
    if (d->own != NULL && p == d->rank)
        return d->own[j - d->ranks[p]];
    return d->rows[p] + d->rows_offset + (uint64_t)(j - d->ranks[p]) * d->row_bytes;
}

/* Copy `bytes`: 16 at a time if `plain` (a multiple of 16, aligned), otherwise 2 at a time. */
HOTBED_HD void hotbed_copy_row(
    uint8_t *to, const uint8_t *from, uint64_t bytes, bool plain, uint32_t width) {
    uint32_t lane = hotbed_tile_rank(width);
    if (plain) {
        for (uint64_t at = 16 * (uint64_t)lane; at < bytes; at += 16 * (uint64_t)width)
            *(hotbed_f32x4 *)(void *)(to + at) = *(const hotbed_f32x4 *)(const void *)(from + at);
        return;
    }
    for (uint64_t at = 2 * (uint64_t)lane; at < bytes; at += 2 * (uint64_t)width)
        *(uint16_t *)(void *)(to + at) = *(const uint16_t *)(const void *)(from + at);
}

/* Whether the caller's rows can be copied 16 bytes at a time. */
HOTBED_HD bool hotbed_rows_plain(
    const hotbed_deliver_view *d, const void *data, uint64_t stride_bytes) {
    uint64_t bytes = (uint64_t)d->dim * hotbed_dtype_size(d->dtype);
    return ((uintptr_t)data | stride_bytes | bytes) % 16 == 0;
}

/* Owner: the number of the row of received key m among all rows that arrive, the first of which is
 * at `first`. */
HOTBED_HD uint32_t
hotbed_owner_place(const hotbed_deliver_view *d, const uint8_t *first, uint32_t m) {
    return (uint32_t)((uint64_t)(hotbed_owner_row(d, m) - first) / d->row_bytes);
}

/* Owner: write the gradient of received key m as f32 to the row of `wide` with its number among the rows that
 * arrive, the first of which is at `first`. */
HOTBED_HD void hotbed_widen_row(
    const hotbed_deliver_view *d, const uint8_t *first, uint32_t m, float *wide, uint64_t stride,
    uint32_t width) {
    const uint8_t *row = hotbed_owner_row(d, m);
    float *to = wide + (uint64_t)(row - first) / d->row_bytes * stride;
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < d->dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(d->dim, e);
        hotbed_store4(HOTBED_F32, to, e, count, hotbed_unpack4(d->travel, d->dim, row, e, count));
    }
}

/* Requester: copy the embedding of key i into the caller's output, whose rows are `stride` bytes
 * apart. */
HOTBED_HD void hotbed_take_row(
    const hotbed_deliver_view *d, uint32_t i, uint8_t *output, uint64_t stride, bool plain,
    uint32_t width) {
    uint64_t bytes = (uint64_t)d->dim * hotbed_dtype_size(d->dtype);
    uint8_t *to = output + (d->sources == NULL ? i : d->sources[i]) * stride;
    if (*d->overflow != 0) {
        for (uint64_t at = 2 * (uint64_t)hotbed_tile_rank(width); at < bytes;
             at += 2 * (uint64_t)width)
            *(uint16_t *)(void *)(to + at) = 0; /* half of a float, or a 16-bit float */
        return;
    }
    const uint8_t *from = hotbed_requester_row(d, d->inverse == NULL ? i : d->inverse[i]);
    if (d->travel == d->dtype) {
        hotbed_copy_row(to, from, bytes, plain, width);
        return;
    }
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < d->dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(d->dim, e);
        hotbed_store4(
            d->dtype, to, e, count, hotbed_row_load4(false, d->travel, d->dim, from, e, count));
    }
}

/* The gradient of a key, which begins at element `at`. */
typedef struct hotbed_key_gradient {
    const hotbed_deliver_view *d;
    const void *gradient;
    uint64_t at;
} hotbed_key_gradient;

HOTBED_HD hotbed_f32x4 hotbed_key_gradient4(const void *of, uint32_t e, uint32_t count) {
    const hotbed_key_gradient *f = (const hotbed_key_gradient *)of;
    if (count == 0)
        return hotbed_f32x4_of(0.0F);
    const hotbed_f32x4 g = hotbed_load4(f->d->dtype, f->gradient, f->at + e, count);
    return hotbed_scale4(hotbed_clamp4(g, f->d->max_gradient), f->d->scale);
}

/* Requester without dedup: write the gradient of key u, of rows that are `stride` elements apart. */
HOTBED_HD void hotbed_send_gradient(
    const hotbed_deliver_view *d, uint32_t u, const void *gradient, uint64_t stride,
    uint32_t width) {
    const hotbed_key_gradient from = {d, gradient, d->sources[u] * stride};
    uint8_t *row = hotbed_requester_row(d, u);
    if (d->pack.dtype != 0) {
        hotbed_pack_row(&d->pack, d->dim, u, row, hotbed_key_gradient4, &from, width);
        return;
    }
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < d->dim; e += 4 * width) {
        const uint32_t count = hotbed_count4(d->dim, e);
        hotbed_store4(d->travel, row, e, count, hotbed_key_gradient4(&from, e, count));
    }
}

/* Requester with dedup: where the sum of the gradients of sent key u goes. */
HOTBED_HD uint8_t *hotbed_send_sum_to(const hotbed_deliver_view *d, uint32_t u) {
    return *d->overflow != 0 ? NULL : hotbed_requester_row(d, u);
}

/* --- one rank -------------------------------------------------------------------------------------- */

/* Rows from one array to another. Row i of the first is row at[i] of the second. */
typedef struct hotbed_copies_view {
    const uint8_t *from;
    uint8_t *to;
    uint64_t from_stride, to_stride; /* in bytes; multiples of 2 */
    const uint32_t *at;              /* [bound]; NULL: row i */
    const int64_t *num_rows;         /* one word; NULL: bound */
    uint64_t bound, bytes;           /* rows; bytes of a row, a multiple of 2 */
    bool plain;                      /* hotbed_copies_are_plain() */
} hotbed_copies_view;

/* Whether rows can be copied 16 bytes at a time. */
HOTBED_HD bool hotbed_copies_are_plain(const hotbed_copies_view *v) {
    return ((uintptr_t)v->from | (uintptr_t)v->to | v->from_stride | v->to_stride | v->bytes) %
               16 ==
           0;
}

HOTBED_HD uint64_t hotbed_copies_count(const hotbed_copies_view *v) {
    return v->num_rows == NULL ? v->bound : (uint64_t)*v->num_rows;
}

HOTBED_HD void hotbed_copies_row(const hotbed_copies_view *v, uint64_t i, uint32_t width) {
    hotbed_copy_row(
        v->to + (v->at == NULL ? i : v->at[i]) * v->to_stride, v->from + i * v->from_stride,
        v->bytes, v->plain, width);
}

/* The sums of gradients as other ranks would receive them: scaled, then rounded to the data type
 * that travels. */
typedef struct hotbed_sent_view {
    float *sums;              /* [bound, dim] */
    const uint32_t *num_rows; /* one word */
    uint64_t bound;
    uint32_t dim, dtype;
    float scale;
} hotbed_sent_view;

HOTBED_HD void hotbed_sent_row(const hotbed_sent_view *v, uint64_t row, uint32_t width) {
    for (uint32_t e = hotbed_tile_rank(width); e < v->dim; e += width) {
        float *sum = v->sums + row * v->dim + e;
        uint16_t sent[2] = {0, 0};
        *sum = *sum * v->scale;
        if (v->dtype == HOTBED_F32)
            continue;
        hotbed_store1(v->dtype, sent, 0, *sum);
        *sum = hotbed_load1(v->dtype, sent, 0);
    }
}

/* --- pooled --------------------------------------------------------------------------------------- */

typedef struct hotbed_pool_view {
    const uint32_t *starts;  /* [num_features * batch_size + 1] this rank's bags */
    const uint32_t *columns; /* [num_features + 1] first column of each feature in the sums */
    const uint32_t *output_columns; /* [num_features] first column in the caller's output */
    uint32_t num_features, batch_size, samples;
    uint32_t mean;
    uint32_t dtype; /* dtype of the caller's output and gradient; sums are f32 */
    float max_gradient, scale;
    hotbed_wire_view wire; /* what moves; counted with the first element */
} hotbed_pool_view;

/* Split element number `at` of the sums [batch_size, columns] into its sample, its column of the
 * output and the length of its bag. */
typedef struct hotbed_pool_place {
    uint32_t sample, column;
    float keys;
} hotbed_pool_place;

HOTBED_HD hotbed_pool_place hotbed_pool_at(const hotbed_pool_view *p, uint64_t at) {
    uint32_t width = p->columns[p->num_features];
    uint32_t sample = (uint32_t)(at / width), column = (uint32_t)(at - (uint64_t)sample * width);
    uint32_t f = hotbed_part_of(p->columns, p->num_features, column);
    const uint32_t *bag = p->starts + (uint64_t)f * p->batch_size + sample;
    hotbed_pool_place place = {
        sample, p->output_columns[f] + (column - p->columns[f]), (float)(bag[1] - bag[0])};
    return place;
}

/* Write element `at` of the first `samples` rows. */
HOTBED_HD void hotbed_pool_finish(
    const hotbed_pool_view *p, uint64_t at, const float *sums, void *output, uint64_t stride) {
    hotbed_pool_place place = hotbed_pool_at(p, at);
    float value = sums[at];
    if (p->mean != 0 && place.keys > 0.0F)
        value = value / place.keys;
    hotbed_store1(p->dtype, output, place.sample * stride + place.column, value);
}

/* Write element `at` of all rows: rows from `samples` on are 0. */
HOTBED_HD void hotbed_pool_start(
    const hotbed_pool_view *p, uint64_t at, const void *gradient, uint64_t stride, float *sums) {
    hotbed_pool_place place = hotbed_pool_at(p, at);
    float g = 0.0F;
    if (place.sample < p->samples) {
        g = hotbed_load1(p->dtype, gradient, place.sample * stride + place.column);
        if (p->max_gradient > 0.0F)
            g = hotbed_clamp(g, p->max_gradient);
        if (p->mean != 0)
            g = place.keys > 0.0F ? g * (1.0F / place.keys) : 0.0F;
        g = g * p->scale;
    }
    sums[at] = g;
}
