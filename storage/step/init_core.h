/* storage/step/init_core.h - initial values of a row, computed from seed, table, key and element
 * alone. */
#pragma once

#include "base/philox.h"
#include "base/port.h"
#include "hotbed/types.h"

/* An initializer and the constants that the host derives from it; see hotbed_init_make() in
 * storage/types.c. */
typedef struct hotbed_init_view {
    uint32_t kind;  /* hotbed_initializer_kind */
    uint32_t table; /* hash of the table's name, so values do not depend on the table's number */
    uint32_t seed0, seed1; /* of the storage */
    float offset, scale;   /* value = offset + scale * x */
    float low, high; /* UNIFORM: bounds of the value; TRUNCATED_NORMAL: bounds of the value, ... */
    /* ... and the normal distribution there: at `low`, and its increase up to `high` */
    float p_low, p_span;
} hotbed_init_view;

/* Natural logarithm of a positive, normal x: with x = m * 2^e and m in [sqrt(1/2), sqrt(2)), log m
 * = 2 atanh((m-1)/(m+1)) as an odd series. Within 2 ulp; the same bits on both backends. */
HOTBED_HD float hotbed_log(float x) {
    uint32_t bits = hotbed_float_bits(x);
    int32_t exponent = (int32_t)((bits - 0x3f3504f3U) >> 23);
    if (bits < 0x3f3504f3U)
        exponent -= 512; /* the shift above was of an unsigned, wrapped word */
    float m = hotbed_bits_float(bits - ((uint32_t)exponent << 23));
    float s = (m - 1.0F) / (m + 1.0F);
    float z = s * s;
    float series = 0.15384616F;
    series = series * z + 0.18181819F;
    series = series * z + 0.22222222F;
    series = series * z + 0.28571430F;
    series = series * z + 0.4F;
    series = series * z + 0.66666669F;
    series = series * z + 2.0F;
    return (float)exponent * 0.69314718F + s * series;
}

/* The x with P(normal < x) = p, 0 < p < 1: Wichura, Algorithm AS 241 (PPND7), Applied Statistics
 * 1988, about 7 digits. */
HOTBED_HD_LARGE float hotbed_normal_quantile(float p) {
    float q = p - 0.5F;
    if (q >= -0.425F && q <= 0.425F) {
        float r = 0.180625F - q * q;
        float over = ((59.109374720F * r + 159.29113202F) * r + 50.434271938F) * r + 3.3871327179F;
        float under = ((67.187563600F * r + 78.757757664F) * r + 17.895169469F) * r + 1.0F;
        return q * over / under;
    }
    float r = sqrtf(-hotbed_log(q < 0.0F ? p : 1.0F - p));
    float x;
    if (r <= 5.0F) {
        r = r - 1.6F;
        float over = ((0.17023821103F * r + 1.3067284816F) * r + 2.7568153900F) * r + 1.4234372777F;
        float under = (0.12021132975F * r + 0.73700164250F) * r + 1.0F;
        x = over / under;
    } else {
        r = r - 5.0F;
        float over =
            ((0.017337203997F * r + 0.42868294337F) * r + 3.0812263860F) * r + 6.6579051150F;
        float under = (0.012258202635F * r + 0.24197894225F) * r + 1.0F;
        x = over / under;
    }
    return q < 0.0F ? -x : x;
}

HOTBED_HD float hotbed_init_one(const hotbed_init_view *init, uint32_t word) {
    const float unit = 1.0F / 16777216.0F; /* 2^-24 */
    if (init->kind == HOTBED_INIT_UNIFORM) {
        float value = init->offset + init->scale * ((float)(word >> 8) * unit);
        /* rounding may reach `high`, which is excluded */
        return value < init->high ? value : init->low;
    }
    /* The midpoint of one of 2^23 cells: p and 1 - p are exact and never 0. */
    float p = ((float)(word >> 9) + 0.5F) * (2.0F * unit);
    if (init->kind == HOTBED_INIT_NORMAL)
        return init->offset + init->scale * hotbed_normal_quantile(p);
    p = init->p_low + init->p_span * p;
    p = p < unit * 0.25F ? unit * 0.25F : p;
    p = p > 1.0F - unit ? 1.0F - unit : p;
    float value = init->offset + init->scale * hotbed_normal_quantile(p);
    value = value < init->low ? init->low : value;
    return value > init->high ? init->high : value;
}

/* Initial values of elements e .. e+3 of the row of `key`; e must be a multiple of 4. */
HOTBED_HD hotbed_f32x4 hotbed_init_row4(const hotbed_init_view *init, uint64_t key, uint32_t e) {
    hotbed_f32x4 row;
    if (init->kind == HOTBED_INIT_CONSTANT || init->kind == HOTBED_INIT_DEBUG) {
        row.x = init->kind == HOTBED_INIT_DEBUG ? (float)(key % 100000U) : init->offset;
        row.y = row.z = row.w = row.x;
        return row;
    }
    hotbed_u32x4 counter;
    counter.x = (uint32_t)key;
    counter.y = (uint32_t)(key >> 32);
    counter.z = e / 4;
    counter.w = init->table;
    hotbed_u32x4 words = hotbed_philox(counter, init->seed0, init->seed1);
    row.x = hotbed_init_one(init, words.x);
    row.y = hotbed_init_one(init, words.y);
    row.z = hotbed_init_one(init, words.z);
    row.w = hotbed_init_one(init, words.w);
    return row;
}
