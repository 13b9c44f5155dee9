/* storage/step/packed_core.h - rows, sums and gradients that travel between ranks in a type with scales.
 *
 * Rows and sums have the form of a table's rows, to nearest. Gradients are rounded at random, because
 * most of a row's elements may be far below the largest one, and nearest rounding would lose them in
 * every step. INT8 gradients are numbers from -127 to 127, stored plus 128, times an f32: gradients
 * may be far below the least f16, and a 0 stays a 0. */
#pragma once

#include "storage/step/row_core.h"

/* How rows are packed. */
typedef struct hotbed_pack_view {
    uint32_t dtype;     /* INT8 or FP8; 0: another type travels, and the other fields are unused */
    uint32_t gradients; /* whether the rows are gradients; otherwise the next four are unused */
    uint32_t layout;    /* elements for which a row has place */
    uint32_t sender; /* what random words follow from, besides the row's number and the element */
    uint64_t seed;
    const uint64_t *step; /* one word */
} hotbed_pack_view;

/* The type if it has scales; otherwise 0. */
HOTBED_HD uint32_t hotbed_packed_type(uint32_t dtype) {
    return hotbed_dtype_size(dtype) == 1 ? dtype : 0;
}

/* How rows and sums are packed. */
HOTBED_HD hotbed_pack_view hotbed_pack_rows(uint32_t dtype) {
    const hotbed_pack_view p = {dtype, 0, 0, 0, 0, NULL};
    return p;
}

/* The rounding of row `number` of the sender's rows. */
HOTBED_HD hotbed_rounding_view hotbed_pack_rounding(const hotbed_pack_view *p, uint64_t number) {
    if (p->gradients == 0)
        return hotbed_rounding_to_nearest();
    const uint64_t mixed = hotbed_hash_u64(p->seed ^ hotbed_hash_u64(*p->step));
    const hotbed_rounding_view r = {
        true, p->sender, (uint32_t)mixed, (uint32_t)(mixed >> 32), number};
    return r;
}

HOTBED_HD bool hotbed_pack_is_signed(const hotbed_pack_view *p) {
    return p->gradients != 0 && p->dtype == HOTBED_INT8;
}

/* The word of the scale for a range. */
HOTBED_HD uint32_t hotbed_pack_word(const hotbed_pack_view *p, hotbed_scale_range range) {
    if (!hotbed_pack_is_signed(p))
        return hotbed_scale_choose(p->dtype, range, 0, false);
    const float most = -range.low > range.high ? -range.low : range.high;
    return most > 3.4028235e38F ? 0x7fc00000U : hotbed_float_bits(most / 127.0F);
}

/* One element of a gradient as a byte, with a random word. */
HOTBED_HD uint32_t hotbed_signed_byte(uint32_t word, float v, uint32_t bits) {
    const float scale = hotbed_bits_float(word);
    const float x = (v < 0.0F ? -v : v) / scale;
    uint32_t n = 0;
    if (x >= 127.0F) {
        n = 127;
    } else if (x > 0.0F) { /* not NaN: then the scale is NaN, or 0 */
        n = (uint32_t)x;
        n += bits < (uint32_t)((x - (float)n) * 0x1p32F) ? 1U : 0U;
    }
    return v < 0.0F ? 128U - n : 128U + n;
}

/* Four elements of row `r` as bytes. */
HOTBED_HD uint32_t hotbed_pack4(
    const hotbed_pack_view *p, const hotbed_rounding_view *r, uint32_t word, uint32_t e,
    hotbed_f32x4 v) {
    hotbed_u32x4 bits = {0, 0, 0, 0};
    if (r->random)
        bits = hotbed_rounding_words(r, e);
    if (!hotbed_pack_is_signed(p))
        return hotbed_f32_to_scaled4(p->dtype, word, v, r->random, bits);
    return hotbed_signed_byte(word, v.x, bits.x) | hotbed_signed_byte(word, v.y, bits.y) << 8 |
           hotbed_signed_byte(word, v.z, bits.z) << 16 |
           hotbed_signed_byte(word, v.w, bits.w) << 24;
}

/* Compute elements e .. e+count-1 of a row; all lanes call it, some with count 0. */
typedef hotbed_f32x4 (*hotbed_pack_value)(const void *of, uint32_t e, uint32_t count);

/* Pack the `dim` elements of a row, whose number is `number`. `value` is a literal. If a lane has more
 * than four elements that share a scale, it computes them twice. */
HOTBED_HD void hotbed_pack_row(
    const hotbed_pack_view *p, uint32_t dim, uint64_t number, uint8_t *row, hotbed_pack_value value,
    const void *of, uint32_t width) {
    const uint32_t lane = hotbed_tile_rank(width), dtype = p->dtype;
    const uint32_t layout = p->gradients != 0 ? p->layout : dim;
    const hotbed_scale_walk walk = hotbed_scale_walk_of(dtype, layout, width);
    const hotbed_rounding_view rounding = hotbed_pack_rounding(p, number);
    for (uint32_t from = 0; from < dim; from += walk.chunk) {
        const uint32_t end = dim - from < walk.chunk ? dim : from + walk.chunk;
        const bool again = end - from > 4 * width;
        uint32_t word = 0;
        hotbed_scale_range range = hotbed_scale_range_start(dtype);
        hotbed_f32x4 v = hotbed_f32x4_of(0.0F);
        for (int pass = 0; pass < 2; pass++) {
            for (uint32_t first = from; first < end; first += 4 * width) {
                const uint32_t e = first + 4 * lane;
                const uint32_t count = e < end ? hotbed_count4(end, e) : 0;
                if (pass == 0 || again)
                    v = value(of, e, count);
                if (count == 0)
                    continue;
                if (pass == 0)
                    hotbed_scale_range_add4(dtype, &range, count, v);
                else
                    (void)hotbed_scaled4_store(
                        row, e, count, hotbed_pack4(p, &rounding, word, e, v));
            }
            if (pass == 0) {
                hotbed_scale_range_join(&range, walk.lanes, width);
                word = hotbed_pack_word(p, range);
            }
        }
        if (lane % walk.lanes == 0 && from + 4 * lane < end)
            hotbed_scale_store(dtype, layout, row, from + 4 * lane, word);
    }
}

/* A value for hotbed_pack_row(): the row is an array of f32. */
HOTBED_HD hotbed_f32x4 hotbed_pack_float4(const void *of, uint32_t e, uint32_t count) {
    return count == 0 ? hotbed_f32x4_of(0.0F) : hotbed_load4(HOTBED_F32, of, e, count);
}

/* Elements of a gradient that has travelled. */
HOTBED_HD hotbed_f32x4
hotbed_unpack4(uint32_t dtype, uint32_t layout, const uint8_t *row, uint32_t e, uint32_t count) {
    if (dtype != HOTBED_INT8)
        return hotbed_row_load4(false, dtype, layout, row, e, count);
    const float scale = hotbed_bits_float(hotbed_scale_load(false, dtype, layout, row, e));
    const uint32_t four = hotbed_load_word(false, row + e);
    hotbed_f32x4 v = hotbed_f32x4_of(0.0F);
    v.x = ((float)(four & 255U) - 128.0F) * scale;
    v.y = count > 1 ? ((float)(four >> 8 & 255U) - 128.0F) * scale : 0.0F;
    v.z = count > 2 ? ((float)(four >> 16 & 255U) - 128.0F) * scale : 0.0F;
    v.w = count > 3 ? ((float)(four >> 24) - 128.0F) * scale : 0.0F;
    return v;
}

/* Bytes from one row that travels to the next, for rows of `dim` elements. */
HOTBED_HD uint64_t hotbed_travel_bytes(uint32_t dtype, uint32_t dim) {
    const uint64_t bytes = hotbed_weights_bytes(dtype, dim),
                   unit = hotbed_dtype_size(dtype) == 1 ? 4 : 16;
    return (bytes + unit - 1) / unit * unit;
}
