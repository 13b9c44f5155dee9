/* storage/step/optimizer_core.h - one optimizer step of four elements of a row, all in f32.
 *
 * hotbed/types.h has the formulas. Operations run in the order written; contraction is off.
 */
#ifndef HOTBED_STORAGE_OPTIMIZER_CORE_H
#define HOTBED_STORAGE_OPTIMIZER_CORE_H

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/optimizer.h"
#include "storage/step/row_core.h"

/* Values that change from step to step. They are in device memory, so that recorded graphs see the
 * changes. */
typedef struct hotbed_clock {
    uint64_t prefetches; /* score of the keys of the latest prefetch */
    hotbed_optimizer_clock optimizer;
    float correction1; /* 1 - beta1^t */
    float correction2; /* 1 - beta2^t */
} hotbed_clock;

/* One lane: count a prefetch, before it changes anything. Evals compare this count, see
 * forward_core.h. */
HOTBED_HD void hotbed_count_prefetch(hotbed_clock *clock) {
    (void)hotbed_add_relaxed_u64(&clock->prefetches, 1);
}

/* Adam's bias correction, 1 - beta^t. */
HOTBED_HD float hotbed_correction(double power) {
    return (float)(1.0 - power);
}

HOTBED_HD void hotbed_clock_correct(hotbed_clock *clock) {
    clock->correction1 = hotbed_correction(clock->optimizer.beta1_power);
    clock->correction2 = hotbed_correction(clock->optimizer.beta2_power);
}

/* Count one optimizer step. */
HOTBED_HD void hotbed_count_step(hotbed_optimizer_clock *clock, float beta1, float beta2) {
    clock->steps++;
    clock->beta1_power = clock->beta1_power * (double)beta1;
    clock->beta2_power = clock->beta2_power * (double)beta2;
}

HOTBED_HD void hotbed_clock_step(hotbed_clock *clock, float beta1, float beta2) {
    hotbed_count_step(&clock->optimizer, beta1, beta2);
    hotbed_clock_correct(clock);
}

struct hotbed_fault; /* base/fault.h */

/* Fixed hyper-parameters, and what a call does with a gradient that is not finite. */
typedef struct hotbed_optimizer_view {
    uint32_t kind; /* hotbed_optimizer_kind */
    float beta1, beta2, eps, weight_decay;
    float max_gradient;     /* 0: no clamping */
    uint32_t checks_finite; /* rows whose gradient is NaN or infinite are counted and not updated */
    struct hotbed_fault *faults; /* where they are latched; or NULL */
} hotbed_optimizer_view;

/* Whether an element is neither NaN nor infinite; their bits are no less than infinity's. */
HOTBED_HD bool hotbed_is_finite(float v) {
    return (hotbed_float_bits(v) & 0x7F800000U) != 0x7F800000U;
}

HOTBED_HD bool hotbed_is_finite4(hotbed_f32x4 v) {
    return hotbed_is_finite(v.x) && hotbed_is_finite(v.y) && hotbed_is_finite(v.z) &&
           hotbed_is_finite(v.w);
}

HOTBED_HD float hotbed_clamp(float g, float most) {
    g = g < -most ? -most : g;
    return g > most ? most : g;
}

HOTBED_HD hotbed_f32x4 hotbed_clamp4(hotbed_f32x4 g, float most) {
    if (most > 0.0F) {
        g.x = hotbed_clamp(g.x, most);
        g.y = hotbed_clamp(g.y, most);
        g.z = hotbed_clamp(g.z, most);
        g.w = hotbed_clamp(g.w, most);
    }
    return g;
}

/* New value of w after a step along `direction`, with decoupled weight decay. */
HOTBED_HD float hotbed_descend(const hotbed_optimizer_view *o, float lr, float w, float direction) {
    return o->weight_decay == 0.0F ? w - lr * direction
                                   : w - lr * (direction + o->weight_decay * w);
}

/* New value of the element w with gradient g; *state0 and *state1 are its optimizer states.
 * ROWWISE_ADAGRAD: *state0 is the sum over the row, which includes this step's mean square. */
HOTBED_HD float hotbed_optimize(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    float direction = g; /* SGD */
    if (o->kind == HOTBED_OPT_ADAM) {
        *state0 = o->beta1 * *state0 + (1.0F - o->beta1) * g;
        *state1 = o->beta2 * *state1 + (1.0F - o->beta2) * (g * g);
        direction = (*state0 / clock->correction1) / (sqrtf(*state1 / clock->correction2) + o->eps);
    } else if (o->kind == HOTBED_OPT_ADAGRAD) {
        *state0 = *state0 + g * g;
        direction = g / (sqrtf(*state0) + o->eps);
    } else if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD) {
        direction = g / (sqrtf(*state0) + o->eps);
    }
    return hotbed_descend(o, clock->optimizer.learning_rate, w, direction);
}

/* The same for four elements. */
HOTBED_HD hotbed_f32x4 hotbed_optimize4(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, hotbed_f32x4 w, hotbed_f32x4 g,
    hotbed_f32x4 *state0, hotbed_f32x4 *state1) {
    w.x = hotbed_optimize(o, clock, w.x, g.x, &state0->x, &state1->x);
    w.y = hotbed_optimize(o, clock, w.y, g.y, &state0->y, &state1->y);
    w.z = hotbed_optimize(o, clock, w.z, g.z, &state0->z, &state1->z);
    w.w = hotbed_optimize(o, clock, w.w, g.w, &state0->w, &state1->w);
    return w;
}

/* Mean of g*g over the row. The order of the sum is fixed for 32 lanes: groups of four elements go
 * to the lanes in turn, each lane adds its squares in order, and lanes are then added pairwise, 16
 * apart, 8, 4, 2, 1. On tiles of fewer lanes, shares[k] is the share of lane rank + k * width. */
HOTBED_HD float hotbed_mean_square(float shares[32], uint32_t dim, uint32_t width) {
    HOTBED_UNROLL
    for (uint32_t apart = 16; apart > 0; apart /= 2) {
        if (apart >= width) {
            HOTBED_UNROLL
            for (uint32_t k = 0; k < apart / width; k++)
                shares[k] = shares[k] + shares[k + apart / width];
        } else {
            shares[0] = shares[0] +
                        hotbed_tile_shuffle_f32(width, shares[0], hotbed_tile_rank(width) ^ apart);
        }
    }
    return shares[0] / (float)dim;
}

#endif
