/* storage/step/optimizer_core.h - the optimizers: what each one has, and one step of four elements
 * of a row, all in f32.
 *
 * Kernels, checks, files and tools follow from HOTBED_OPTIMIZERS. A new optimizer is a value of
 * hotbed_optimizer_kind, a row of HOTBED_OPTIMIZERS, and a function hotbed_step_<name>().
 * hotbed/types.h has the formulas. Operations run in the order written; contraction is off.
 */
#ifndef HOTBED_STORAGE_OPTIMIZER_CORE_H
#define HOTBED_STORAGE_OPTIMIZER_CORE_H

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/optimizer.h"
#include "storage/step/row_core.h"

/* --- the description -------------------------------------------------------------------------- */

/* The parameters of an optimizer, which are fields of hotbed_optimizer. storage/types.c has the
 * range of each. */
enum {
    HOTBED_USES_LEARNING_RATE = 1 << 0,
    HOTBED_USES_BETA1 = 1 << 1,
    HOTBED_USES_BETA2 = 1 << 2,
    HOTBED_USES_EPS = 1 << 3,
    HOTBED_USES_WEIGHT_DECAY = 1 << 4,
    HOTBED_USES_INITIAL_ACCUMULATOR = 1 << 5,
    HOTBED_USES_MAX_GRADIENT = 1 << 6,
    HOTBED_USES_STEPS = 1 << 30, /* not a parameter: the number of steps, for bias correction */
    /* of most optimizers */
    HOTBED_USES_USUAL =
        HOTBED_USES_LEARNING_RATE | HOTBED_USES_WEIGHT_DECAY | HOTBED_USES_MAX_GRADIENT,
    HOTBED_USES_IN_EVERY_LINE =
        (1 << 7) - 1, /* the format of checkpoints has these for all kinds */
};

/* What an element of a row, or a row, has of each state. */
enum {
    HOTBED_STATE_NONE,
    HOTBED_STATE_ROW, /* as many elements as the row */
    /* One number, to which a step first adds the mean square of the row's gradient. */
    HOTBED_STATE_ONE,
};

/* The first value of a state: 0, or initial_accumulator. */
enum { HOTBED_STARTS_ZERO = 0, HOTBED_STARTS_ACCUMULATOR = 1 };

/* X(KIND, name, length, state0, start0, state1, start1, uses)
 *   KIND    hotbed_optimizer_kind without its prefix
 *   name    the word in files, tools and messages
 *   length  HOTBED_STATE_ of all its states
 *   state0  the state's name, which is TorchRec's where it has one, and in checkpoints follows
 *           "opt/"; "" if there is no such state
 *   start0  HOTBED_STARTS_ of the state
 *   uses    HOTBED_USES_ */
/* clang-format off */
#define HOTBED_OPTIMIZERS(X)                                                                       \
    X(SGD, sgd, NONE, "", ZERO, "", ZERO, HOTBED_USES_USUAL)                                       \
    X(ADAM, adam, ROW, "exp_avg", ACCUMULATOR, "exp_avg_sq", ACCUMULATOR,                          \
      HOTBED_USES_USUAL | HOTBED_USES_BETA1 | HOTBED_USES_BETA2 | HOTBED_USES_EPS |                \
      HOTBED_USES_INITIAL_ACCUMULATOR | HOTBED_USES_STEPS)                                                           \
    X(ADAGRAD, adagrad, ROW, "sum", ACCUMULATOR, "", ZERO,                                         \
      HOTBED_USES_USUAL | HOTBED_USES_EPS | HOTBED_USES_INITIAL_ACCUMULATOR)                       \
    X(ROWWISE_ADAGRAD, rowwise_adagrad, ONE, "momentum1", ACCUMULATOR, "", ZERO,                   \
      HOTBED_USES_USUAL | HOTBED_USES_EPS | HOTBED_USES_INITIAL_ACCUMULATOR)
/* clang-format on */

/* The largest hotbed_optimizer_kind; the first is 1. */
#define HOTBED_COUNT(...) +1
enum { HOTBED_OPT_LAST = 0 HOTBED_OPTIMIZERS(HOTBED_COUNT) };
#undef HOTBED_COUNT

/* The states of an optimizer. Kernels are compiled for a kind, so that these are constants. */
typedef struct hotbed_state_form {
    uint32_t count, length; /* length: HOTBED_STATE_ */
    uint32_t starts[2];     /* HOTBED_STARTS_ */
} hotbed_state_form;

HOTBED_HD hotbed_state_form hotbed_state_form_of(uint32_t kind) {
    hotbed_state_form form = {0, HOTBED_STATE_NONE, {HOTBED_STARTS_ZERO, HOTBED_STARTS_ZERO}};
    switch ((hotbed_optimizer_kind)kind) {
#define HOTBED_CASE(KIND, name, LENGTH, state0, START0, state1, START1, uses)                      \
    case HOTBED_OPT_##KIND:                                                                        \
        form.count = (sizeof(state0) > 1 ? 1 : 0) + (sizeof(state1) > 1 ? 1 : 0);                  \
        form.length = HOTBED_STATE_##LENGTH;                                                       \
        form.starts[0] = HOTBED_STARTS_##START0;                                                   \
        form.starts[1] = HOTBED_STARTS_##START1;                                                   \
        break;
        HOTBED_OPTIMIZERS(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return form;
}

/* Whether state `state` has an element for each element of the row. */
HOTBED_HD bool hotbed_state_is_wide(uint32_t kind, uint32_t state) {
    const hotbed_state_form form = hotbed_state_form_of(kind);
    return form.length == HOTBED_STATE_ROW && state < form.count;
}

/* Whether the state is one number. */
HOTBED_HD bool hotbed_state_is_one(uint32_t kind) {
    return hotbed_state_form_of(kind).length == HOTBED_STATE_ONE;
}

/* --- the step --------------------------------------------------------------------------------- */

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

/* hotbed_step_<name>(): the new value of the element w with gradient g; *state0 and *state1 are its
 * optimizer states. A state of one number already includes this step. */

HOTBED_HD float hotbed_step_sgd(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    (void)state0, (void)state1;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g);
}

HOTBED_HD float hotbed_step_adam(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    *state0 = o->beta1 * *state0 + (1.0F - o->beta1) * g;
    *state1 = o->beta2 * *state1 + (1.0F - o->beta2) * (g * g);
    return hotbed_descend(
        o, clock->optimizer.learning_rate, w,
        (*state0 / clock->correction1) / (sqrtf(*state1 / clock->correction2) + o->eps));
}

HOTBED_HD float hotbed_step_adagrad(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    (void)state1;
    *state0 = *state0 + g * g;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g / (sqrtf(*state0) + o->eps));
}

HOTBED_HD float hotbed_step_rowwise_adagrad(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    (void)state1;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g / (sqrtf(*state0) + o->eps));
}

/* hotbed_step_<name>() of the optimizer's kind. */
HOTBED_HD float hotbed_optimize(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float *state0,
    float *state1) {
    switch ((hotbed_optimizer_kind)o->kind) {
#define HOTBED_CASE(KIND, name, ...)                                                               \
    case HOTBED_OPT_##KIND:                                                                        \
        return hotbed_step_##name(o, clock, w, g, state0, state1);
        HOTBED_OPTIMIZERS(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return w; /* not reached: kinds are checked at creation */
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
