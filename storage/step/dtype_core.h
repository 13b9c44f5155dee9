/* storage/step/dtype_core.h - the element types: what each one has, and elements in memory.
 *
 * Sizes, kernels, checks, files, tools and bindings follow from HOTBED_DTYPES. A new type is a value
 * of hotbed_dtype and a row of HOTBED_DTYPES; then the compiler reports each `switch` that lacks it.
 * None of them has a `default`. docs/design/extending.md lists them.
 */
#pragma once

#include "base/float.h"
#include "base/philox.h"
#include "base/port.h"
#include "base/tile.h"
#include "hotbed/types.h"

/* Rows of types with scales: the elements that share one, and the bytes of all. */
enum { HOTBED_SCALE_BLOCK = 32, HOTBED_SCALE_BYTES = 4 };

HOTBED_HD uint32_t hotbed_fp8_span(uint32_t dim) {
    return dim <= 2 * HOTBED_SCALE_BLOCK ? dim : (uint32_t)HOTBED_SCALE_BLOCK;
}

HOTBED_HD uint32_t hotbed_fp8_scale_bytes(uint32_t dim) {
    return (dim + hotbed_fp8_span(dim) - 1) / hotbed_fp8_span(dim) * HOTBED_SCALE_BYTES;
}

/* X(DTYPE, name, bytes, trailer, array, word, npy)
 *   DTYPE  hotbed_dtype without its prefix
 *   name   the word in files, tools and messages
 *   bytes  of an element
 *   trailer  bytes behind the elements of a row of `dim`
 *   array  whether outputs and gradients may have it; other types are types of rows only
 *   word   the PyTorch and NumPy name of an element
 *   npy    the type of an exported .npy column; values of types that NumPy lacks are widened */
#define HOTBED_DTYPES(X)                                                                           \
    X(F32, f32, 4, 0, true, "float32", "<f4")                                                      \
    X(F16, f16, 2, 0, true, "float16", "<f2")                                                      \
    X(BF16, bf16, 2, 0, true, "bfloat16", "<f4")                                                   \
    X(INT8, int8, 1, HOTBED_SCALE_BYTES, false, "uint8", "<f4")                                    \
    X(FP8, fp8, 1, hotbed_fp8_scale_bytes(dim), false, "float8_e4m3fn", "<f4")

enum { HOTBED_DIM_MOST = 4096 }; /* elements of a row */

/* The largest hotbed_dtype; the first is 1. */
#define HOTBED_COUNT(...) +1
enum { HOTBED_DTYPE_LAST = 0 HOTBED_DTYPES(HOTBED_COUNT) };
#undef HOTBED_COUNT

/* Bytes of an element. */
HOTBED_HD uint32_t hotbed_dtype_size(uint32_t dtype) {
    switch ((hotbed_dtype)dtype) {
#define HOTBED_CASE(DTYPE, name, bytes, ...)                                                       \
    case HOTBED_##DTYPE:                                                                           \
        return bytes;
        HOTBED_DTYPES(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return 0; /* not reached: types are checked at creation */
}

/* Bytes of the embedding of a row; dim is at least 1. */
HOTBED_HD uint32_t hotbed_weights_bytes(uint32_t dtype, uint32_t dim) {
    switch ((hotbed_dtype)dtype) {
#define HOTBED_CASE(DTYPE, name, bytes, trailer, ...)                                              \
    case HOTBED_##DTYPE:                                                                           \
        return (bytes)*dim + (trailer);
        HOTBED_DTYPES(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return 0;
}

/* Whether outputs and gradients may have the type. */
HOTBED_HD bool hotbed_dtype_is_array(uint32_t dtype) {
    switch ((hotbed_dtype)dtype) {
#define HOTBED_CASE(DTYPE, name, bytes, trailer, array, ...)                                       \
    case HOTBED_##DTYPE:                                                                           \
        return array;
        HOTBED_DTYPES(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return false;
}

/* Load one element of `dtype`. `shared`, a literal, is true if other threads may write it
 * meanwhile; see hotbed_load_shared_f32(). */
HOTBED_HD float hotbed_load1_as(bool shared, uint32_t dtype, const void *p, uint64_t i) {
    const uint16_t *half = (const uint16_t *)p + i;
    switch ((hotbed_dtype)dtype) {
    case HOTBED_F32:
        return shared ? hotbed_load_shared_f32((const float *)p + i) : ((const float *)p)[i];
    case HOTBED_F16:
        return hotbed_f16_to_f32(shared ? hotbed_load_shared_u16(half) : *half);
    case HOTBED_BF16:
        return hotbed_bf16_to_f32(shared ? hotbed_load_shared_u16(half) : *half);
    case HOTBED_INT8:
    case HOTBED_FP8:
        break; /* not reached: types of rows only */
    }
    return 0.0F;
}

HOTBED_HD float hotbed_load1(uint32_t dtype, const void *p, uint64_t i) {
    return hotbed_load1_as(false, dtype, p, i);
}

HOTBED_HD void hotbed_store1(uint32_t dtype, void *p, uint64_t i, float value) {
    switch ((hotbed_dtype)dtype) {
    case HOTBED_F32:
        ((float *)p)[i] = value;
        return;
    case HOTBED_F16:
        ((uint16_t *)p)[i] = hotbed_f32_to_f16(value);
        return;
    case HOTBED_BF16:
        ((uint16_t *)p)[i] = hotbed_f32_to_bf16(value);
        return;
    case HOTBED_INT8:
    case HOTBED_FP8:
        return; /* not reached: types of rows only */
    }
}

typedef struct HOTBED_ALIGN(8) hotbed_u16x4 {
    uint16_t x, y, z, w;
} hotbed_u16x4;

HOTBED_HD hotbed_f32x4 hotbed_bf16x4_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_bf16_to_f32(h.x), hotbed_bf16_to_f32(h.y), hotbed_bf16_to_f32(h.z),
        hotbed_bf16_to_f32(h.w)};
    return v;
}

HOTBED_COLD hotbed_f32x4 hotbed_f16x4_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_f16_to_f32(h.x), hotbed_f16_to_f32(h.y), hotbed_f16_to_f32(h.z),
        hotbed_f16_to_f32(h.w)};
    return v;
}

/* The same without NaNs, which takes less time. */
HOTBED_HD hotbed_f32x4 hotbed_f16x4_numbers_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_f16_number_to_f32(h.x), hotbed_f16_number_to_f32(h.y), hotbed_f16_number_to_f32(h.z),
        hotbed_f16_number_to_f32(h.w)};
    return v;
}

/* Nonzero if one of the f16 is a NaN. */
HOTBED_HD uint32_t hotbed_f16x4_has_nan(hotbed_u16x4 h) {
    uint32_t pairs[2];
    memcpy(pairs, &h, sizeof pairs);
    return hotbed_f16x2_has_nan(pairs[0]) | hotbed_f16x2_has_nan(pairs[1]);
}

/* Elements of two bytes: f16 or bf16. */
HOTBED_HD hotbed_f32x4 hotbed_half4_to_f32(uint32_t dtype, hotbed_u16x4 h) {
    if (dtype != HOTBED_F16)
        return hotbed_bf16x4_to_f32(h);
    return hotbed_f16x4_has_nan(h) == 0 ? hotbed_f16x4_numbers_to_f32(h) : hotbed_f16x4_to_f32(h);
}

HOTBED_COLD hotbed_u16x4 hotbed_f32_to_half4_any(uint32_t dtype, hotbed_f32x4 v) {
    hotbed_u16x4 h;
    if (dtype == HOTBED_F16) {
        h.x = hotbed_f32_to_f16(v.x);
        h.y = hotbed_f32_to_f16(v.y);
        h.z = hotbed_f32_to_f16(v.z);
        h.w = hotbed_f32_to_f16(v.w);
    } else {
        h.x = hotbed_f32_to_bf16(v.x);
        h.y = hotbed_f32_to_bf16(v.y);
        h.z = hotbed_f32_to_bf16(v.z);
        h.w = hotbed_f32_to_bf16(v.w);
    }
    return h;
}

HOTBED_HD hotbed_u16x4 hotbed_f32_to_half4(uint32_t dtype, hotbed_f32x4 v) {
    if (v.x != v.x || v.y != v.y || v.z != v.z || v.w != v.w) /* a NaN */
        return hotbed_f32_to_half4_any(dtype, v);
    uint32_t pairs[2];
    hotbed_u16x4 h;
    if (dtype == HOTBED_F16) {
        pairs[0] = hotbed_numbers_to_f16x2(v.x, v.y);
        pairs[1] = hotbed_numbers_to_f16x2(v.z, v.w);
    } else {
        pairs[0] = hotbed_numbers_to_bf16x2(v.x, v.y);
        pairs[1] = hotbed_numbers_to_bf16x2(v.z, v.w);
    }
    memcpy(&h, pairs, sizeof h);
    return h;
}

/* The same with a random word for each element. */
HOTBED_HD hotbed_u16x4
hotbed_f32_to_half4_random(uint32_t dtype, hotbed_f32x4 v, hotbed_u32x4 random) {
    hotbed_u16x4 h;
    if (dtype == HOTBED_F16) {
        h.x = hotbed_f32_to_f16_random(v.x, random.x);
        h.y = hotbed_f32_to_f16_random(v.y, random.y);
        h.z = hotbed_f32_to_f16_random(v.z, random.z);
        h.w = hotbed_f32_to_f16_random(v.w, random.w);
    } else {
        h.x = hotbed_f32_to_bf16_random(v.x, random.x);
        h.y = hotbed_f32_to_bf16_random(v.y, random.y);
        h.z = hotbed_f32_to_bf16_random(v.z, random.z);
        h.w = hotbed_f32_to_bf16_random(v.w, random.w);
    }
    return h;
}

/* Load four elements of two bytes; the address is a multiple of 8. `shared` as above. */
HOTBED_HD hotbed_u16x4 hotbed_load_half4(bool shared, const void *at) {
    if (!shared)
        return *(const hotbed_u16x4 *)at;
    const uint64_t bits = hotbed_load_relaxed_u64((const uint64_t *)at);
    hotbed_u16x4 h;
    memcpy(&h, &bits, sizeof h);
    return h;
}

/* Load elements i .. i+count-1 of an array, with count in 1 .. 4; the rest is 0. `shared` as
 * above. */
HOTBED_HD hotbed_f32x4
hotbed_load4_as(bool shared, uint32_t dtype, const void *p, uint64_t i, uint32_t count) {
    hotbed_f32x4 v = {0.0F, 0.0F, 0.0F, 0.0F};
    const uint32_t size = hotbed_dtype_size(dtype);
    const uint8_t *at = (const uint8_t *)p + i * size;
    HOTBED_POINT();
    if (count >= 4 && size == 4 && ((uintptr_t)at & 15U) == 0)
        return shared ? hotbed_load_shared_f32x4(at) : *(const hotbed_f32x4 *)at;
    if (count >= 4 && size == 2 && ((uintptr_t)at & 7U) == 0) {
        return hotbed_half4_to_f32(dtype, hotbed_load_half4(shared, at));
    }
    v.x = hotbed_load1_as(shared, dtype, at, 0);
    if (count > 1)
        v.y = hotbed_load1_as(shared, dtype, at, 1);
    if (count > 2)
        v.z = hotbed_load1_as(shared, dtype, at, 2);
    if (count > 3)
        v.w = hotbed_load1_as(shared, dtype, at, 3);
    return v;
}

HOTBED_HD hotbed_f32x4 hotbed_load4(uint32_t dtype, const void *p, uint64_t i, uint32_t count) {
    return hotbed_load4_as(false, dtype, p, i, count);
}

HOTBED_HD void hotbed_store4(uint32_t dtype, void *p, uint64_t i, uint32_t count, hotbed_f32x4 v) {
    const uint32_t size = hotbed_dtype_size(dtype);
    uint8_t *at = (uint8_t *)p + i * size;
    HOTBED_POINT();
    if (count >= 4 && size == 4 && ((uintptr_t)at & 15U) == 0) {
        *(hotbed_f32x4 *)at = v;
        return;
    }
    if (count >= 4 && size == 2 && ((uintptr_t)at & 7U) == 0) {
        *(hotbed_u16x4 *)at = hotbed_f32_to_half4(dtype, v);
        return;
    }
    hotbed_store1(dtype, at, 0, v.x);
    if (count > 1)
        hotbed_store1(dtype, at, 1, v.y);
    if (count > 2)
        hotbed_store1(dtype, at, 2, v.z);
    if (count > 3)
        hotbed_store1(dtype, at, 3, v.w);
}

/* How many of elements e .. e+3 are inside a vector of `dim`. */
HOTBED_HD uint32_t hotbed_count4(uint32_t dim, uint32_t e) {
    return dim - e < 4 ? dim - e : 4;
}

/* --- types with scales --------------------------------------------------------------------------
 *
 * A row is aligned to 4 bytes, and so is each group of four elements. The scale of an element is a word
 * behind the elements: of the whole row or, in an fp8 row of more than 64 elements, of its block. */

/* How many elements share a scale; 0: the type has none. */
HOTBED_HD uint32_t hotbed_scale_span(uint32_t dtype, uint32_t dim) {
    switch ((hotbed_dtype)dtype) {
    case HOTBED_F32:
    case HOTBED_F16:
    case HOTBED_BF16:
        break;
    case HOTBED_INT8:
        return dim;
    case HOTBED_FP8:
        return hotbed_fp8_span(dim);
    }
    return 0;
}

HOTBED_HD uint32_t hotbed_load_word(bool shared, const void *p) {
    return shared ? hotbed_load_relaxed_u32((const uint32_t *)p) : *(const uint32_t *)p;
}

/* Byte of a row at which the word of the scale of element e is. */
HOTBED_HD uint32_t hotbed_scale_at(uint32_t dtype, uint32_t dim, uint32_t e) {
    const uint32_t span = hotbed_scale_span(dtype, dim);
    return span == dim ? dim : dim + e / HOTBED_SCALE_BLOCK * HOTBED_SCALE_BYTES;
}

/* The word of the scale of element e. It need not be aligned; the row's memory is, so that the aligned
 * words around it belong to the row. */
HOTBED_HD uint32_t
hotbed_scale_load(bool shared, uint32_t dtype, uint32_t dim, const uint8_t *row, uint32_t e) {
    const uint32_t at = hotbed_scale_at(dtype, dim, e);
    const uint32_t shift = at % 4 * 8;
    const uint32_t low = hotbed_load_word(shared, row + at / 4 * 4);
    return shift == 0
               ? low
               : low >> shift | hotbed_load_word(shared, row + at / 4 * 4 + 4) << (32U - shift);
}

HOTBED_HD void hotbed_scale_store(
    uint32_t dtype, uint32_t dim, uint8_t *row, uint32_t e, uint32_t word) {
    const uint32_t at = hotbed_scale_at(dtype, dim, e);
    if (at % 4 == 0) { /* one store, which may go to another rank */
        *(uint32_t *)(void *)(row + at) = word;
        return;
    }
    for (uint32_t k = 0; k < HOTBED_SCALE_BYTES; k++)
        row[at + k] = (uint8_t)(word >> (8 * k));
}

/* Four elements, of which the first is the lowest byte, with the word of their scale. */
HOTBED_HD hotbed_f32x4 hotbed_scaled4_to_f32(uint32_t dtype, uint32_t word, uint32_t four) {
    hotbed_f32x4 v;
    if (dtype == HOTBED_INT8) {
        const float scale = hotbed_f16_operand_to_f32((uint16_t)word);
        const float offset = hotbed_f16_operand_to_f32((uint16_t)(word >> 16));
        v.x = (float)(four & 255U) * scale + offset;
        v.y = (float)(four >> 8 & 255U) * scale + offset;
        v.z = (float)(four >> 16 & 255U) * scale + offset;
        v.w = (float)(four >> 24) * scale + offset;
    } else {
        const float scale = hotbed_bits_float(word);
        v.x = hotbed_fp8_to_f32((uint8_t)four) * scale;
        v.y = hotbed_fp8_to_f32((uint8_t)(four >> 8)) * scale;
        v.z = hotbed_fp8_to_f32((uint8_t)(four >> 16)) * scale;
        v.w = hotbed_fp8_to_f32((uint8_t)(four >> 24)) * scale;
    }
    return v;
}

/* hotbed_row_load4() of a type with scales. */
HOTBED_APART hotbed_f32x4 hotbed_scaled_load4(
    bool shared, uint32_t dtype, uint32_t dim, const uint8_t *row, uint32_t e, uint32_t count) {
    HOTBED_POINT();
    hotbed_f32x4 v = hotbed_scaled4_to_f32(
        dtype, hotbed_scale_load(shared, dtype, dim, row, e), hotbed_load_word(shared, row + e));
    v.y = count > 1 ? v.y : 0.0F;
    v.z = count > 2 ? v.z : 0.0F;
    v.w = count > 3 ? v.w : 0.0F;
    return v;
}

/* Load elements e .. e+count-1 of a row of any type, which is in a table. */
HOTBED_HD hotbed_f32x4 hotbed_row_load4(
    bool shared, uint32_t dtype, uint32_t dim, const uint8_t *row, uint32_t e, uint32_t count) {
    return hotbed_dtype_size(dtype) != 1 ? hotbed_load4_as(shared, dtype, row, e, count)
                                         : hotbed_scaled_load4(shared, dtype, dim, row, e, count);
}

/* What the scale of a block of elements follows from. */
typedef struct hotbed_scale_range {
    float low, high; /* int8: of all elements, infinite if one is not finite; fp8: high is of |v| */
} hotbed_scale_range;

HOTBED_HD hotbed_scale_range hotbed_scale_range_start(uint32_t dtype) {
    const float infinity = hotbed_bits_float(0x7f800000U);
    hotbed_scale_range r = {infinity, dtype == HOTBED_INT8 ? -infinity : 0.0F};
    return r;
}

HOTBED_HD void hotbed_scale_range_add(uint32_t dtype, hotbed_scale_range *r, float v) {
    const bool finite = (hotbed_float_bits(v) & 0x7f800000U) != 0x7f800000U;
    if (dtype != HOTBED_INT8) {
        v = v < 0.0F ? -v : v;
        r->high = finite && v > r->high ? v : r->high;
        return;
    }
    v = finite ? v : hotbed_bits_float(0x7f800000U);
    r->low = v < r->low ? v : r->low;
    r->high = v > r->high ? v : r->high;
}

HOTBED_HD void hotbed_scale_range_add4(
    uint32_t dtype, hotbed_scale_range *r, uint32_t count, hotbed_f32x4 v) {
    hotbed_scale_range_add(dtype, r, v.x);
    if (count > 1)
        hotbed_scale_range_add(dtype, r, v.y);
    if (count > 2)
        hotbed_scale_range_add(dtype, r, v.z);
    if (count > 3)
        hotbed_scale_range_add(dtype, r, v.w);
}

/* Join the ranges of `lanes` neighbouring lanes, a power of two; each gets the result. */
HOTBED_HD void hotbed_scale_range_join(hotbed_scale_range *r, uint32_t lanes, uint32_t width) {
    for (uint32_t apart = 1; apart < lanes; apart *= 2) {
        const uint32_t other = hotbed_tile_rank(width) ^ apart;
        const float low = hotbed_tile_shuffle_f32(width, r->low, other);
        const float high = hotbed_tile_shuffle_f32(width, r->high, other);
        r->low = low < r->low ? low : r->low;
        r->high = high > r->high ? high : r->high;
    }
}

HOTBED_HD float hotbed_f16_range(float v) {
    v = v < -65504.0F ? -65504.0F : v;
    return v > 65504.0F ? 65504.0F : v;
}

/* The word of the scale for a range. `before` is the word of the row before an update, or 0: an int8 row
 * keeps it while its values fit and use at least half of it, because another scale rounds all elements
 * again; a new one has a sixteenth of room on both sides. */
HOTBED_HD uint32_t
hotbed_scale_choose(uint32_t dtype, hotbed_scale_range r, uint32_t before, bool updates) {
    if (dtype != HOTBED_INT8) {
        const uint32_t bits = hotbed_float_bits(r.high);
        if (bits == 0)
            return 0x3f800000U; /* all elements are 0 */
        /* the least power of two by which the largest element is at most 448 */
        const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffU) > 0x600000U ? 1U : 0U);
        return (exponent > 9U ? exponent - 8U : 1U) << 23;
    }
    if (r.high > 3.4028235e38F)
        return 0x7e007e00U; /* NaN and NaN */
    float low = hotbed_f16_range(r.low) + 0.0F, high = hotbed_f16_range(r.high) + 0.0F;
    if (updates) {
        const float scale = hotbed_f16_operand_to_f32((uint16_t)before);
        const float offset = hotbed_f16_operand_to_f32((uint16_t)(before >> 16));
        const float span = 255.0F * scale;
        if (low >= offset && high <= offset + span && (high - low) * 2.0F >= span && span > 0.0F)
            return before;
        const float room = (high - low) * 0.0625F;
        low = hotbed_f16_range(low - room);
        high = hotbed_f16_range(high + room);
    }
    const uint16_t offset = hotbed_f32_to_f16_bound(low, false);
    const uint16_t scale =
        hotbed_f32_to_f16_bound((high - hotbed_f16_to_f32(offset)) / 255.0F, true);
    return (uint32_t)offset << 16 | scale;
}

/* What values need of the word of their scale to become bytes. */
typedef struct hotbed_scale_divisor {
    float scale, offset; /* int8 */
    float inverse;       /* 1 / scale. int8: 0 if the scale is 0 or NaN. fp8: exact */
} hotbed_scale_divisor;

/* `word` is of hotbed_scale_choose(). */
HOTBED_HD hotbed_scale_divisor hotbed_scale_divisor_of(uint32_t dtype, uint32_t word) {
    hotbed_scale_divisor by = {1.0F, 0.0F, 0.0F};
    if (dtype != HOTBED_INT8) {
        by.inverse = hotbed_bits_float((254U << 23) - word); /* of a power of two */
        return by;
    }
    const float scale = hotbed_f16_operand_to_f32((uint16_t)word);
    if (!(scale > 0.0F))
        return by;
    by.scale = scale;
    by.offset = hotbed_f16_operand_to_f32((uint16_t)(word >> 16));
    by.inverse = 1.0F / scale;
    return by;
}

/* An int8 element in steps of the scale, 0 .. 255. */
HOTBED_HD float hotbed_int8_place(hotbed_scale_divisor by, float v) {
    float x = hotbed_quotient(v - by.offset, by.scale, by.inverse);
    x = x > 0.0F && by.inverse > 0.0F ? x : 0.0F; /* NaN, too */
    return x < 255.0F ? x : 255.0F;
}

/* One element as a byte. `random`: with the random word, otherwise to nearest, ties to even. */
HOTBED_HD uint32_t hotbed_scaled_byte_by(
    uint32_t dtype, hotbed_scale_divisor by, float v, bool random, uint32_t bits) {
    if (dtype != HOTBED_INT8) {
        const float x = v * by.inverse; /* exact, but for the smallest numbers */
        return random ? hotbed_f32_to_fp8_random(x, bits) : hotbed_f32_to_fp8(x);
    }
    const float x = hotbed_int8_place(by, v);
    if (!random)
        return hotbed_float_bits(x + 0x1p23F) & 255U; /* the sum has no digits behind the point */
    const uint32_t low = (uint32_t)x;
    const float rest = x - (float)low;
    return low + (bits < (uint32_t)(rest * 0x1p32F) ? 1U : 0U);
}

HOTBED_HD uint32_t
hotbed_scaled_byte(uint32_t dtype, uint32_t word, float v, bool random, uint32_t bits) {
    return hotbed_scaled_byte_by(dtype, hotbed_scale_divisor_of(dtype, word), v, random, bits);
}

HOTBED_HD uint32_t hotbed_f32_to_scaled4_by(
    uint32_t dtype, hotbed_scale_divisor by, hotbed_f32x4 v, bool random, hotbed_u32x4 bits) {
    return hotbed_scaled_byte_by(dtype, by, v.x, random, bits.x) |
           hotbed_scaled_byte_by(dtype, by, v.y, random, bits.y) << 8 |
           hotbed_scaled_byte_by(dtype, by, v.z, random, bits.z) << 16 |
           hotbed_scaled_byte_by(dtype, by, v.w, random, bits.w) << 24;
}

HOTBED_HD uint32_t hotbed_f32_to_scaled4(
    uint32_t dtype, uint32_t word, hotbed_f32x4 v, bool random, hotbed_u32x4 bits) {
    return hotbed_f32_to_scaled4_by(dtype, hotbed_scale_divisor_of(dtype, word), v, random, bits);
}

/* A byte of ones for each of four values that differs. */
HOTBED_HD uint32_t hotbed_scaled4_differ(hotbed_f32x4 v, hotbed_f32x4 w) {
    return (v.x != w.x ? 0xffU : 0U) | (v.y != w.y ? 0xff00U : 0U) | (v.z != w.z ? 0xff0000U : 0U) |
           (v.w != w.w ? 0xff000000U : 0U);
}

/* The bytes `four` of new values, but `stored` ones where values do not differ. An int8 byte that is read
 * and written again with its scale may otherwise become its neighbour, because its value is rounded to f32. */
HOTBED_HD uint32_t hotbed_scaled4_keep(uint32_t four, uint32_t stored, uint32_t differ) {
    return (four & differ) | (stored & ~differ);
}

/* --- remainders ---------------------------------------------------------------------------------
 *
 * The remainder of an element is its value less the value of its byte, in 256ths of the distance to the next
 * byte farther from zero: -128 .. 127. It takes the place of the lowest byte of a number of the optimizer's
 * state. Without it the noise of rounding at random would add up over the updates of a row. */

/* A 256th of the distance from an fp8 byte to the next one, and the inverse. */
HOTBED_HD float hotbed_fp8_part(uint32_t byte) {
    const uint32_t exponent = byte >> 3 & 15U;
    return hotbed_bits_float((109U + (exponent == 0 ? 1U : exponent)) << 23);
}

HOTBED_HD float hotbed_fp8_part_inverse(uint32_t byte) {
    const uint32_t exponent = byte >> 3 & 15U;
    return hotbed_bits_float((145U - (exponent == 0 ? 1U : exponent)) << 23);
}

/* The number of a remainder. */
HOTBED_HD float hotbed_remainder_of(uint32_t byte) {
    return (float)((byte & 255U) ^ 128U) - 128.0F;
}

/* hotbed_scaled4_to_f32() of elements with remainders, one in each byte of `rest`. */
HOTBED_HD hotbed_f32x4
hotbed_carried4_to_f32(uint32_t dtype, uint32_t word, uint32_t four, uint32_t rest) {
    hotbed_f32x4 v;
    const hotbed_f32x4 r = {
        hotbed_remainder_of(rest), hotbed_remainder_of(rest >> 8), hotbed_remainder_of(rest >> 16),
        hotbed_remainder_of(rest >> 24)};
    if (dtype == HOTBED_INT8) {
        const float scale = hotbed_f16_operand_to_f32((uint16_t)word);
        const float offset = hotbed_f16_operand_to_f32((uint16_t)(word >> 16));
        v.x = ((float)(four & 255U) + r.x * 0x1p-8F) * scale + offset;
        v.y = ((float)(four >> 8 & 255U) + r.y * 0x1p-8F) * scale + offset;
        v.z = ((float)(four >> 16 & 255U) + r.z * 0x1p-8F) * scale + offset;
        v.w = ((float)(four >> 24) + r.w * 0x1p-8F) * scale + offset;
    } else {
        const float scale = hotbed_bits_float(word);
        v.x = (hotbed_fp8_to_f32((uint8_t)four) + r.x * hotbed_fp8_part(four)) * scale;
        v.y = (hotbed_fp8_to_f32((uint8_t)(four >> 8)) + r.y * hotbed_fp8_part(four >> 8)) * scale;
        v.z =
            (hotbed_fp8_to_f32((uint8_t)(four >> 16)) + r.z * hotbed_fp8_part(four >> 16)) * scale;
        v.w =
            (hotbed_fp8_to_f32((uint8_t)(four >> 24)) + r.w * hotbed_fp8_part(four >> 24)) * scale;
    }
    return v;
}

/* Four elements as bytes, and their remainders. */
typedef struct hotbed_carried4 {
    uint32_t four, rest;
} hotbed_carried4;

/* One element: the byte to nearest, and the remainder with a random word. */
HOTBED_HD hotbed_carried4
hotbed_carried_byte_by(uint32_t dtype, hotbed_scale_divisor by, float v, uint32_t bits) {
    hotbed_carried4 to;
    float parts;
    if (dtype != HOTBED_INT8) {
        const float x = v * by.inverse;
        to.four = hotbed_f32_to_fp8(x);
        parts = (x - hotbed_fp8_to_f32((uint8_t)to.four)) * hotbed_fp8_part_inverse(to.four);
    } else {
        const float x = hotbed_int8_place(by, v);
        to.four = hotbed_float_bits(x + 0x1p23F) & 255U;
        parts = (x - (float)to.four) * 256.0F;
    }
    parts = parts == parts ? parts + 128.0F : 128.0F; /* 0 .. 256 */
    const uint32_t low = (uint32_t)parts;
    const float rest = parts - (float)low;
    const uint32_t whole = low + (bits < (uint32_t)(rest * 0x1p32F) ? 1U : 0U);
    to.rest = (whole < 255U ? whole : 255U) ^ 128U;
    return to;
}

HOTBED_HD hotbed_carried4 hotbed_f32_to_carried4_by(
    uint32_t dtype, hotbed_scale_divisor by, hotbed_f32x4 v, hotbed_u32x4 bits) {
    const hotbed_carried4 x = hotbed_carried_byte_by(dtype, by, v.x, bits.x);
    const hotbed_carried4 y = hotbed_carried_byte_by(dtype, by, v.y, bits.y);
    const hotbed_carried4 z = hotbed_carried_byte_by(dtype, by, v.z, bits.z);
    const hotbed_carried4 w = hotbed_carried_byte_by(dtype, by, v.w, bits.w);
    const hotbed_carried4 all = {
        x.four | y.four << 8 | z.four << 16 | w.four << 24,
        x.rest | y.rest << 8 | z.rest << 16 | w.rest << 24};
    return all;
}

/* Four elements after a step: with remainders, or as hotbed_f32_to_scaled4_by(). */
HOTBED_HD hotbed_carried4 hotbed_scaled4_round(
    uint32_t dtype, hotbed_scale_divisor by, hotbed_f32x4 v, bool carries, bool random,
    hotbed_u32x4 bits) {
    if (carries)
        return hotbed_f32_to_carried4_by(dtype, by, v, bits);
    const hotbed_carried4 to = {hotbed_f32_to_scaled4_by(dtype, by, v, random, bits), 0};
    return to;
}

/* hotbed_scaled4_keep() of elements with remainders. */
HOTBED_HD hotbed_carried4
hotbed_carried4_keep(hotbed_carried4 to, uint32_t four, uint32_t rest, uint32_t differ) {
    to.four = hotbed_scaled4_keep(to.four, four, differ);
    to.rest = hotbed_scaled4_keep(to.rest, rest, differ);
    return to;
}

/* The bytes of the first `count` of four elements. */
HOTBED_HD uint32_t hotbed_first_bytes(uint32_t four, uint32_t count) {
    return count >= 4 ? four : four & ((1U << 8 * count) - 1U);
}

/* Take the remainder out of a state's number. */
HOTBED_HD uint32_t hotbed_remainder_take1(float *number) {
    const uint32_t bits = hotbed_float_bits(*number);
    *number = hotbed_bits_float(bits & ~255U);
    return bits & 255U;
}

HOTBED_HD uint32_t hotbed_remainder_take4(hotbed_f32x4 *state) {
    const uint32_t x = hotbed_remainder_take1(&state->x), y = hotbed_remainder_take1(&state->y);
    const uint32_t z = hotbed_remainder_take1(&state->z), w = hotbed_remainder_take1(&state->w);
    return x | y << 8 | z << 16 | w << 24;
}

/* Put the lowest byte of `rest` into a state's number, which is rounded by the lowest byte of a random word. */
HOTBED_HD float hotbed_remainder_put1(float number, uint32_t rest, uint32_t bits) {
    const uint32_t before = hotbed_float_bits(number);
    const bool finite = (before & 0x7f800000U) != 0x7f800000U;
    const uint32_t after = before + (finite ? bits & 255U : 0U);
    return hotbed_bits_float((after & ~255U) | (rest & 255U));
}

HOTBED_HD hotbed_f32x4 hotbed_remainder_put4(hotbed_f32x4 state, uint32_t rest, hotbed_u32x4 bits) {
    state.x = hotbed_remainder_put1(state.x, rest, bits.x);
    state.y = hotbed_remainder_put1(state.y, rest >> 8, bits.y);
    state.z = hotbed_remainder_put1(state.z, rest >> 16, bits.z);
    state.w = hotbed_remainder_put1(state.w, rest >> 24, bits.w);
    return state;
}

/* Store the first `count` of four elements. Returns whether one of them changes. */
HOTBED_HD bool hotbed_scaled4_store(uint8_t *row, uint32_t e, uint32_t count, uint32_t four) {
    bool changes = false;
    HOTBED_POINT();
    if (count >= 4) {
        changes = *(const uint32_t *)(const void *)(row + e) != four;
        *(uint32_t *)(void *)(row + e) = four;
        return changes;
    }
    for (uint32_t k = 0; k < count; k++) {
        const uint8_t byte = (uint8_t)(four >> (8 * k));
        changes = changes || row[e + k] != byte;
        row[e + k] = byte;
    }
    return changes;
}

/* How a tile goes through a row: `chunk` elements at a time, of which `lanes` neighbouring lanes have one
 * block. If a block is shorter than what the tile has at once, a chunk has several. */
typedef struct hotbed_scale_walk {
    uint32_t chunk, lanes;
} hotbed_scale_walk;

HOTBED_HD hotbed_scale_walk hotbed_scale_walk_of(uint32_t dtype, uint32_t dim, uint32_t width) {
    const uint32_t span = hotbed_scale_span(dtype, dim);
    hotbed_scale_walk walk = {span, width};
    if (span < dim && span < 4 * width) {
        walk.chunk = 4 * width;
        walk.lanes = span / 4;
    }
    return walk;
}
