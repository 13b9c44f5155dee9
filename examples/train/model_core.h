/* examples/train/model_core.h - the formulas of the factorization machine, shared by both backends.
 *
 * A sample has one row of 1 + dim floats for each field: column 0 is the linear weight, the others are
 * the factors.  With S_j the sum of column j over the fields and Q_j the sum of its squares,
 *
 *   logit = bias + S_0 + sum over j of (S_j * S_j - Q_j) / 2          (Rendle 2010)
 *
 * Fields are added in field order and columns in column order.  The code uses only + - * / and sqrtf,
 * with contraction off, and computes the logistic function itself, so both backends give the same
 * bits.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define HOTBED_FM_HD static __host__ __device__ __forceinline__
#else
#define HOTBED_FM_HD static inline __attribute__((always_inline, unused))
#endif

/* Add one field's element of a column to the column's sums. */
HOTBED_FM_HD void hotbed_fm_add(float x, float *sum, float *square) {
    *sum = *sum + x;
    *square = *square + x * x;
}

/* The contribution of column `column` to the logit. */
HOTBED_FM_HD float hotbed_fm_part(uint32_t column, float sum, float square) {
    return column == 0 ? sum : 0.5F * (sum * sum - square);
}

/* Derivative of the loss with respect to an element x of column `column`; `error` is the derivative
 * with respect to the logit. */
HOTBED_FM_HD float hotbed_fm_gradient(uint32_t column, float x, float sum, float error) {
    return column == 0 ? error : error * (sum - x);
}

/* exp(x) for x in [-700, 0]. Smaller x and NaN count as -700. Within 2 ulp. */
HOTBED_FM_HD double hotbed_fm_exp(double x) {
    if (!(x > -700.0))
        x = -700.0;
    int32_t n = (int32_t)(x * 1.4426950408889634 - 0.5); /* rounds to nearest, since x <= 0 */
    double r = x - n * 6.93147180369123816490e-01;       /* ln 2 in two parts, so that r is exact */
    r = r - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0; /* Taylor's series; |r| < 0.35 */
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* log(1 + e) for e in [0, 1], as 2 artanh(e / (2 + e)). */
HOTBED_FM_HD double hotbed_fm_log1p(double e) {
    double s = e / (2.0 + e);
    double q = s * s; /* at most 1/9 */
    double p = 0.0;
    for (int32_t n = 27; n >= 1; n -= 2)
        p = p * q + 1.0 / n;
    return 2.0 * s * p;
}

/* The logistic loss of a logit, and its derivative. */
typedef struct hotbed_fm_point {
    double loss;
    float error;
} hotbed_fm_point;

HOTBED_FM_HD hotbed_fm_point hotbed_fm_logistic(float logit, float label) {
    double x = (double)logit;
    double e = hotbed_fm_exp(x < 0.0 ? x : -x);
    double probability = x < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
    hotbed_fm_point point;
    point.loss = (x > 0.0 ? x : 0.0) - x * (double)label + hotbed_fm_log1p(e);
    point.error = (float)(probability - (double)label);
    return point;
}

/* The dense part of the model: the bias, and its Adagrad sum. */
typedef struct hotbed_fm_dense {
    float bias;
    float sum;
} hotbed_fm_dense;

HOTBED_FM_HD void hotbed_fm_update(hotbed_fm_dense *dense, double gradient, float learning_rate) {
    float g = (float)gradient;
    dense->sum = dense->sum + g * g;
    dense->bias = dense->bias - learning_rate * (g / (sqrtf(dense->sum) + 1e-8F));
}

/* Compute loss and bias from the sums of all ranks: [ranks] pairs of loss and gradient. */
HOTBED_FM_HD void hotbed_fm_finish(
    uint32_t ranks, const double *all_sums, double *loss, hotbed_fm_dense *dense,
    float learning_rate) {
    double sum = 0, gradient = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        sum = sum + all_sums[2 * r];
        gradient = gradient + all_sums[2 * r + 1];
    }
    *loss = sum;
    hotbed_fm_update(dense, gradient, learning_rate);
}

/* Sums over a batch: lane l of 256 adds samples l, l + 256, ... in order; then lane l adds lane
 * l + half for half = 128, 64, ... 1. */
enum { HOTBED_FM_LANES = 256 };
