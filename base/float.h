/* base/float.h - f16 and bf16 to and from f32, once for both compilers.
 *
 * To 16 bits rounds to nearest, ties to even; what is too large becomes infinity, what is too small a
 * subnormal or a zero of the same sign.  A NaN keeps its sign and the upper bits of its payload, and is
 * quiet afterwards.  The same bits on both backends: tests/base/test_float.c.
 */
#ifndef HOTBED_BASE_FLOAT_H
#define HOTBED_BASE_FLOAT_H

#include "base/port.h"

/* IEEE binary16 of value. */
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
    if (magnitude >= 0x477ff000U) /* 65520 is half way from the largest finite value to 65536 */
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

/* Value of an IEEE binary16; exact. */
HOTBED_HD float hotbed_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t magnitude = half & 0x7fffU;
    if (magnitude > 0x7c00U)
        return hotbed_bits_float(sign | 0x7fc00000U | (magnitude & 0x3ffU) << 13);
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    if (magnitude == 0x7c00U)
        return hotbed_bits_float(sign | 0x7f800000U);
    if (magnitude >= 0x400U)
        return hotbed_bits_float(sign | ((magnitude << 13) + (112U << 23)));
    /* Subnormal: a whole number of 2^-24, which f32 has as a normal value. */
    float value = (float)magnitude * 0x1p-24F;
    return hotbed_bits_float(sign | hotbed_float_bits(value));
#endif
}

/* The upper half of value, rounded. */
HOTBED_HD uint16_t hotbed_f32_to_bf16(float value) {
    uint32_t bits = hotbed_float_bits(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* Value of a bf16; exact. */
HOTBED_HD float hotbed_bf16_to_f32(uint16_t upper) {
    return hotbed_bits_float((uint32_t)upper << 16);
}

#endif
