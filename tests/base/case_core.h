/* tests/base/case_core.h - run_case() calls one function of base/ for one item of an array.
 *
 * A core: the host and CUDA run the same code, through tests/base/cases.h.
 */
#pragma once

#include "base/fault.h"
#include "base/float.h"
#include "base/philox.h"

typedef enum case_kind {
    CASE_F16_TO_F32,     /* uint16_t to float */
    CASE_F32_TO_F16,     /* float to uint16_t */
    CASE_BF16_TO_F32,    /* uint16_t to float */
    CASE_F32_TO_BF16,    /* float to uint16_t */
    CASE_TO_F16_RANDOM,  /* random_case to uint16_t */
    CASE_TO_BF16_RANDOM, /* random_case to uint16_t */
    CASE_FP8_TO_F32,     /* uint8_t to float */
    CASE_F32_TO_FP8,     /* float to uint8_t */
    CASE_QUOTIENT,       /* quotient_case to float */
    CASE_PHILOX,         /* philox_case to hotbed_u32x4 */
    CASE_LATCH,          /* fault_case to one hotbed_fault, shared by all items */
} case_kind;

typedef struct random_case {
    float value;
    uint32_t random;
} random_case;

typedef struct quotient_case {
    float a, b;
} quotient_case;

typedef struct philox_case {
    hotbed_u32x4 counter;
    uint32_t key0, key1;
} philox_case;

typedef struct fault_case {
    uint32_t status, what, table;
    uint64_t key, bound;
} fault_case;

/* The conversion of `value` alone, if it equals both conversions in pairs, in which a NaN has no result. */
HOTBED_HD uint16_t case_both(float value, uint16_t alone, uint32_t first, uint32_t second) {
    const bool same = value != value || (first == alone && second == (uint32_t)alone << 16);
    return same ? alone : (uint16_t)~alone;
}

HOTBED_HD void run_case(case_kind kind, uint64_t i, const void *in, void *out) {
    switch (kind) {
    case CASE_F16_TO_F32:
        ((float *)out)[i] = hotbed_f16_to_f32(((const uint16_t *)in)[i]);
        break;
    case CASE_F32_TO_F16:
        ((uint16_t *)out)[i] = case_both(
            ((const float *)in)[i], hotbed_f32_to_f16(((const float *)in)[i]),
            hotbed_numbers_to_f16x2(((const float *)in)[i], 0.0F),
            hotbed_numbers_to_f16x2(0.0F, ((const float *)in)[i]));
        break;
    case CASE_BF16_TO_F32:
        ((float *)out)[i] = hotbed_bf16_to_f32(((const uint16_t *)in)[i]);
        break;
    case CASE_F32_TO_BF16:
        ((uint16_t *)out)[i] = case_both(
            ((const float *)in)[i], hotbed_f32_to_bf16(((const float *)in)[i]),
            hotbed_numbers_to_bf16x2(((const float *)in)[i], 0.0F),
            hotbed_numbers_to_bf16x2(0.0F, ((const float *)in)[i]));
        break;
    case CASE_TO_F16_RANDOM: {
        random_case c = ((const random_case *)in)[i];
        ((uint16_t *)out)[i] = hotbed_f32_to_f16_random(c.value, c.random);
        break;
    }
    case CASE_TO_BF16_RANDOM: {
        random_case c = ((const random_case *)in)[i];
        ((uint16_t *)out)[i] = hotbed_f32_to_bf16_random(c.value, c.random);
        break;
    }
    case CASE_FP8_TO_F32:
        ((float *)out)[i] = hotbed_fp8_to_f32(((const uint8_t *)in)[i]);
        break;
    case CASE_F32_TO_FP8:
        ((uint8_t *)out)[i] = hotbed_f32_to_fp8(((const float *)in)[i]);
        break;
    case CASE_QUOTIENT: {
        quotient_case c = ((const quotient_case *)in)[i];
        ((float *)out)[i] = hotbed_quotient_by_inverse(c.a, c.b, 1.0F / c.b);
        break;
    }
    case CASE_PHILOX: {
        philox_case c = ((const philox_case *)in)[i];
        ((hotbed_u32x4 *)out)[i] = hotbed_philox(c.counter, c.key0, c.key1);
        break;
    }
    case CASE_LATCH: {
        fault_case c = ((const fault_case *)in)[i];
        hotbed_fault_latch((hotbed_fault *)out, c.status, c.what, c.table, c.key, c.bound);
        break;
    }
    }
}
