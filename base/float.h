/* base/float.h - conversions between f32 and f16, bf16 or fp8, shared by both compilers.
 *
 * Conversions to fewer bits round to nearest, ties to even. Conversions with a random word round to
 * the neighbour further from zero if the word is below 2^32 * d, else to the one nearer to zero; d
 * is the value's distance from the latter, where both are 1 apart. So the expected result is the
 * value, and a value that the type can represent does not change. In both cases, too large a value
 * becomes infinity, too small a value becomes a subnormal or a zero of the same sign. A NaN keeps
 * its sign and the upper bits of its payload, and becomes quiet. Both backends produce the same bits
 * (tests/base/test_float.c). */
#pragma once

#include "base/port.h"

#include <math.h>

/* Convert to IEEE binary16. */
HOTBED_HD uint16_t hotbed_f32_to_f16(float value) {
    uint32_t bits = hotbed_float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000U;
    uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
#if defined(__CUDA_ARCH__)
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    if (magnitude >= 0x477ff000U) /* 65520 is halfway from the largest finite value to 65536 */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude >=
        0x38800000U) { /* 2^-14: normal; a carry out of the fraction is the next exponent */
        uint32_t shifted = magnitude - (112U << 23);
        return (uint16_t)(sign | ((shifted + 0xfffU + ((shifted >> 13) & 1U)) >> 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102U) /* below half of 2^-24, the smallest subnormal */
        return (uint16_t)sign;
    uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
    uint32_t shift = 126U - exponent; /* 14 .. 24 */
    uint32_t half = fraction >> shift;
    uint32_t rest = fraction & ((1U << shift) - 1U);
    uint32_t middle = 1U << (shift - 1U);
    if (rest > middle || (rest == middle && (half & 1U) != 0))
        half++;
    return (uint16_t)(sign | half);
#endif
}

/* The same with a random word. */
HOTBED_HD uint16_t hotbed_f32_to_f16_random(float value, uint32_t random) {
    const uint32_t bits = hotbed_float_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
    if (magnitude >= 0x47800000U) /* 65536 */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude >= 0x38800000U) /* 2^-14: normal */
        return (
            uint16_t)(sign | (((magnitude - (112U << 23)) >> 13) + (random < magnitude << 19 ? 1U : 0U)));
    const uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
    const uint32_t shift = 126U - (magnitude >> 23); /* from 14; units of 2^-24 begin at this bit */
    const uint32_t half = shift < 32U ? fraction >> shift : 0U;
    const uint32_t rest = shift < 32U   ? fraction << (32U - shift)
                          : shift < 56U ? fraction >> (shift - 32U)
                                        : 0U; /* up with less than 2^-31 */
    return (uint16_t)(sign | (half + (random < rest ? 1U : 0U)));
}

/* Convert from IEEE binary16, but not a NaN; exact. */
HOTBED_HD float hotbed_f16_number_to_f32(uint16_t half) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t magnitude = half & 0x7fffU;
    if (magnitude == 0x7c00U)
        return hotbed_bits_float(sign | 0x7f800000U);
    if (magnitude >= 0x400U)
        return hotbed_bits_float(sign | ((magnitude << 13) + (112U << 23)));
    /* A subnormal is an integer multiple of 2^-24, which f32 represents as a normal value. */
    float value = (float)magnitude * 0x1p-24F;
    return hotbed_bits_float(sign | hotbed_float_bits(value));
#endif
}

/* Convert from IEEE binary16; exact. */
HOTBED_HD float hotbed_f16_to_f32(uint16_t half) {
    uint32_t magnitude = half & 0x7fffU;
    if (magnitude > 0x7c00U)
        return hotbed_bits_float(
            (uint32_t)(half & 0x8000U) << 16 | 0x7fc00000U | (magnitude & 0x3ffU) << 13);
    return hotbed_f16_number_to_f32(half);
}

/* The same for an operand of arithmetic, whose NaNs may have any bits. */
HOTBED_HD float hotbed_f16_operand_to_f32(uint16_t half) {
#if defined(__CUDA_ARCH__)
    return hotbed_f16_number_to_f32(half);
#else
    return hotbed_f16_to_f32(half);
#endif
}

/* a / b by `inverse`, which is 1 / b, for an f16 b from 2^-24 on. The same bits as a / b if the quotient is
 * from 2^-36 to 256. A larger one becomes any number from 256 on, a smaller one any number below 2^-35; a
 * negative one any negative number, 0 or NaN. tests/base/test_float.c compares both. */
HOTBED_HD float hotbed_quotient_by_inverse(float a, float b, float inverse) {
    float q = a * inverse;
    q = q < 256.0F ? q : 256.0F;
    return fmaf(fmaf(-q, b, a), inverse, q);
}

/* The faster one of both. */
HOTBED_HD float hotbed_quotient(float a, float b, float inverse) {
#if defined(__CUDA_ARCH__)
    return hotbed_quotient_by_inverse(a, b, inverse);
#else
    (void)inverse;
    return a / b;
#endif
}

/* Nonzero if one of two f16 in a word is a NaN. */
HOTBED_HD uint32_t hotbed_f16x2_has_nan(uint32_t pair) {
    return ((pair & 0x7fff7fffU) + 0x03ff03ffU) & 0x80008000U; /* a NaN is above 0x7c00 */
}

/* Convert to bf16: the upper half of the value, rounded. */
HOTBED_HD uint16_t hotbed_f32_to_bf16(float value) {
    uint32_t bits = hotbed_float_bits(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* The same with a random word. */
HOTBED_HD uint16_t hotbed_f32_to_bf16_random(float value, uint32_t random) {
    const uint32_t bits = hotbed_float_bits(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits >> 16) + (random < bits << 16 ? 1U : 0U));
}

/* Convert two values that are not NaNs; the first goes to the lower half of the word. */
HOTBED_HD uint32_t hotbed_numbers_to_f16x2(float first, float second) {
#if defined(__CUDA_ARCH__)
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return hotbed_f32_to_f16(first) | (uint32_t)hotbed_f32_to_f16(second) << 16;
#endif
}

HOTBED_HD uint32_t hotbed_numbers_to_bf16x2(float first, float second) {
#if defined(__CUDA_ARCH__)
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return hotbed_f32_to_bf16(first) | (uint32_t)hotbed_f32_to_bf16(second) << 16;
#endif
}

/* A value on the scale of fp8: the byte nearer to zero, and the distance from it, times 2^32, to the next
 * one. */
typedef struct hotbed_fp8_place {
    uint32_t low, rest;
} hotbed_fp8_place;

HOTBED_HD hotbed_fp8_place hotbed_fp8_place_of(float value) {
    const uint32_t bits = hotbed_float_bits(value), magnitude = bits & 0x7fffffffU;
    const uint32_t sign = (bits >> 24) & 0x80U;
    hotbed_fp8_place at = {0x7fU, 0}; /* NaN and infinity */
    if (magnitude >= 0x7f800000U)
        return at;
    if (magnitude >= 0x43e00000U) { /* 448 */
        at.low = sign | 0x7eU;
    } else if (magnitude >= 0x3c800000U) { /* 2^-6: normal */
        at.low = sign | (magnitude - (120U << 23)) >> 20;
        at.rest = magnitude << 12;
    } else {
        const uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
        const uint32_t shift = 141U - (magnitude >> 23); /* from 21; units of 2^-9 begin here */
        at.low = sign | (shift < 32U ? fraction >> shift : 0U);
        at.rest = shift < 32U   ? fraction << (32U - shift)
                  : shift < 56U ? fraction >> (shift - 32U)
                                : 0U;
    }
    return at;
}

/* Convert to fp8, e4m3fn of the Open Compute Project: sign 1, exponent 4 with bias 7, mantissa 3. It
 * has no infinity: 448 is the largest value, to which larger ones are clamped. NaN and infinity
 * become NaN, 0x7f. */
HOTBED_HD uint8_t hotbed_f32_to_fp8(float value) {
    const uint32_t bits = hotbed_float_bits(value), magnitude = bits & 0x7fffffffU;
    const uint32_t sign = (bits >> 24) & 0x80U;
    if (magnitude >= 0x7f800000U)
        return 0x7fU;
    if (magnitude >= 0x43e00000U) /* 448 */
        return (uint8_t)(sign | 0x7eU);
    if (magnitude >= 0x3c800000U) /* 2^-6: normal */
        return (
            uint8_t)(sign | (magnitude - (120U << 23) + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20);
    /* the last digit of the sum is 2^-9, as in a subnormal */
    return (uint8_t)(sign | (hotbed_float_bits(hotbed_bits_float(magnitude) + 0x1p14F) & 0xfU));
}

/* The same with a random word. */
HOTBED_HD uint8_t hotbed_f32_to_fp8_random(float value, uint32_t random) {
    const hotbed_fp8_place at = hotbed_fp8_place_of(value);
    return (uint8_t)(at.low + (random < at.rest ? 1U : 0U));
}

/* Convert from fp8; exact. */
HOTBED_HD float hotbed_fp8_to_f32(uint8_t byte) {
    const uint32_t sign = (uint32_t)(byte & 0x80U) << 24, magnitude = byte & 0x7fU;
    if (magnitude == 0x7fU)
        return hotbed_bits_float(sign | 0x7fc00000U);
#if defined(__CUDA_ARCH__)
    /* the digits are those of an f32, subnormal ones, too; processors multiply subnormals slowly */
    return hotbed_bits_float(sign | magnitude << 20) * 0x1p120F;
#else
    if (magnitude >= 8U)
        return hotbed_bits_float(sign | ((magnitude << 20) + (120U << 23)));
    return hotbed_bits_float(sign | hotbed_float_bits((float)magnitude * 0x1p-9F));
#endif
}

/* The f16 next to a finite one: towards infinity, or away from it. */
HOTBED_HD uint16_t hotbed_f16_after(uint16_t half, bool up) {
    const bool negative = (half & 0x8000U) != 0;
    if ((half & 0x7fffU) == 0)
        return up ? 0x0001U : 0x8001U;
    return (uint16_t)(negative == up ? half - 1U : half + 1U);
}

/* Convert to the nearest f16 that is not below, or with `up` false not above, a finite value. */
HOTBED_HD uint16_t hotbed_f32_to_f16_bound(float value, bool up) {
    const uint16_t half = hotbed_f32_to_f16(value);
    const float near = hotbed_f16_to_f32(half);
    return (up ? near < value : near > value) ? hotbed_f16_after(half, up) : half;
}

/* Convert from bf16; exact. */
HOTBED_HD float hotbed_bf16_to_f32(uint16_t upper) {
    return hotbed_bits_float((uint32_t)upper << 16);
}
