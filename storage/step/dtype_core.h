/* storage/step/dtype_core.h - the element types: what each one has, and elements in memory.
 *
 * Sizes, kernels, checks, files, tools and bindings follow from HOTBED_DTYPES. A new type is a value
 * of hotbed_dtype and a row of HOTBED_DTYPES; then the compiler reports each `switch` that lacks it.
 * None of them has a `default`. docs/design/extending.md lists them.
 */
#ifndef HOTBED_STORAGE_DTYPE_CORE_H
#define HOTBED_STORAGE_DTYPE_CORE_H

#include "base/float.h"
#include "base/philox.h"
#include "base/port.h"
#include "hotbed/types.h"

/* X(DTYPE, name, bytes, array, word, npy)
 *   DTYPE  hotbed_dtype without its prefix
 *   name   the word in files, tools and messages
 *   bytes  of an element
 *   array  whether outputs and gradients may have it; other types are types of rows only
 *   word   the PyTorch and NumPy name of an element
 *   npy    the type of an exported .npy column; values of types that NumPy lacks are widened */
#define HOTBED_DTYPES(X)                                                                           \
    X(F32, f32, 4, true, "float32", "<f4")                                                         \
    X(F16, f16, 2, true, "float16", "<f2")                                                         \
    X(BF16, bf16, 2, true, "bfloat16", "<f4")

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

/* Bytes of the embedding of a row. */
HOTBED_HD uint32_t hotbed_weights_bytes(uint32_t dtype, uint32_t dim) {
    return dim * hotbed_dtype_size(dtype);
}

/* Whether outputs and gradients may have the type. */
HOTBED_HD bool hotbed_dtype_is_array(uint32_t dtype) {
    switch ((hotbed_dtype)dtype) {
#define HOTBED_CASE(DTYPE, name, bytes, array, ...)                                                \
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
    }
    return 0.0F; /* not reached */
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
        hotbed_u16x4 h;
        if (shared) {
            const uint64_t bits = hotbed_load_relaxed_u64((const uint64_t *)(const void *)at);
            memcpy(&h, &bits, sizeof h);
        } else {
            h = *(const hotbed_u16x4 *)at;
        }
        return hotbed_half4_to_f32(dtype, h);
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

#endif
