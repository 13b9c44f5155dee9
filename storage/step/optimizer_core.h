/* storage/step/optimizer_core.h - the optimizers: what each one has, and one step of four elements
 * of a row, all in f32.
 *
 * Kernels, checks, files and tools follow from HOTBED_OPTIMIZERS. A new optimizer is a value of
 * hotbed_optimizer_kind, a row of HOTBED_OPTIMIZERS, and a function hotbed_step_<name>().
 * hotbed/types.h has the formulas. Operations run in the order written; contraction is off.
 */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/optimizer.h"
#include "storage/step/row_core.h"

#include <math.h>
#include <string.h>

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
    HOTBED_USES_L2_DECAY = 1 << 7,
    HOTBED_USES_MOMENTUM = 1 << 8,
    HOTBED_USES_RHO = 1 << 9,
    HOTBED_USES_TRUST = 1 << 10,
    HOTBED_USES_LEARNING_RATE_POWER = 1 << 11,
    HOTBED_USES_FTRL_BETA = 1 << 12,
    HOTBED_USES_L1_REG = 1 << 13,
    HOTBED_USES_L2_REG = 1 << 14,
    /* not parameters: the number of steps, for bias correction; the learning rate is above 0 */
    HOTBED_USES_STEPS = 1 << 30,
    HOTBED_USES_POSITIVE_RATE = 1 << 29,
    HOTBED_USES_PARAMETERS = (1 << 29) - 1,
    /* those that a table may have of its own, see hotbed_table_rates */
    HOTBED_USES_OWN = HOTBED_USES_LEARNING_RATE | HOTBED_USES_WEIGHT_DECAY |
                      HOTBED_USES_MAX_GRADIENT | HOTBED_USES_L2_DECAY,
    /* of most optimizers */
    HOTBED_USES_USUAL = HOTBED_USES_LEARNING_RATE | HOTBED_USES_WEIGHT_DECAY |
                        HOTBED_USES_MAX_GRADIENT | HOTBED_USES_L2_DECAY,
    HOTBED_USES_MOMENTS =
        HOTBED_USES_BETA1 | HOTBED_USES_BETA2 | HOTBED_USES_EPS | HOTBED_USES_STEPS,
    HOTBED_USES_FTRL = HOTBED_USES_LEARNING_RATE | HOTBED_USES_MAX_GRADIENT | HOTBED_USES_L2_DECAY |
                       HOTBED_USES_LEARNING_RATE_POWER | HOTBED_USES_FTRL_BETA |
                       HOTBED_USES_L1_REG | HOTBED_USES_L2_REG | HOTBED_USES_POSITIVE_RATE,
    HOTBED_USES_IN_EVERY_LINE =
        (1 << 7) - 1, /* the format of checkpoints has these for all kinds */
};

/* What a row has of a state. */
enum {
    HOTBED_STATE_NONE,
    HOTBED_STATE_ROW_STEPS, /* as ROW, and after it the number of the row's steps; the second state */
    HOTBED_STATE_ROW,       /* as many elements as the row */
    /* One number, which takes part in the step after it has got the mean square of the row's
     * gradient: as a sum, or as an average that keeps beta2 of its value. */
    HOTBED_STATE_SUM,
    HOTBED_STATE_AVERAGE,
    /* One number, the first state beside AVERAGE: an average of the mean that keeps beta1. */
    HOTBED_STATE_MEAN,
};

/* The first value of a state: 0, or initial_accumulator. */
enum { HOTBED_STARTS_ZERO = 0, HOTBED_STARTS_ACCUMULATOR = 1 };

/* The factor by which a row's norms change its learning rate. */
enum { HOTBED_RATIO_NONE, HOTBED_RATIO_LAMB, HOTBED_RATIO_LARS };

/* X(KIND, name, state0, length0, start0, state1, length1, start1, ratio, uses)
 *   KIND    hotbed_optimizer_kind without its prefix
 *   name    the word in files, tools and messages
 *   state   the state's name, which is PyTorch's or TorchRec's where it has one, and in checkpoints
 *           follows "opt/"; "" if there is no such state
 *   length  HOTBED_STATE_; at most one state is one number, except MEAN and AVERAGE
 *   start   HOTBED_STARTS_
 *   ratio   HOTBED_RATIO_
 *   uses    HOTBED_USES_ */
/* clang-format off */
#define HOTBED_OPTIMIZERS(X)                                                                       \
    X(SGD, sgd, "", NONE, ZERO, "", NONE, ZERO, NONE, HOTBED_USES_USUAL)                           \
    X(ADAM, adam, "exp_avg", ROW, ACCUMULATOR, "exp_avg_sq", ROW, ACCUMULATOR, NONE,               \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTS | HOTBED_USES_INITIAL_ACCUMULATOR)                   \
    X(ADAGRAD, adagrad, "sum", ROW, ACCUMULATOR, "", NONE, ZERO, NONE,                             \
      HOTBED_USES_USUAL | HOTBED_USES_EPS | HOTBED_USES_INITIAL_ACCUMULATOR)                       \
    X(ROWWISE_ADAGRAD, rowwise_adagrad, "momentum1", SUM, ACCUMULATOR, "", NONE, ZERO, NONE,       \
      HOTBED_USES_USUAL | HOTBED_USES_EPS | HOTBED_USES_INITIAL_ACCUMULATOR)                       \
    X(FTRL, ftrl, "linear", ROW, ZERO, "accum", ROW, ACCUMULATOR, NONE,                            \
      HOTBED_USES_FTRL | HOTBED_USES_INITIAL_ACCUMULATOR)                                          \
    X(MOMENTUM, momentum, "momentum_buffer", ROW, ZERO, "", NONE, ZERO, NONE,                      \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTUM)                                                    \
    X(RMSPROP, rmsprop, "square_avg", ROW, ZERO, "", NONE, ZERO, NONE,                             \
      HOTBED_USES_USUAL | HOTBED_USES_RHO | HOTBED_USES_EPS)                                       \
    X(ADADELTA, adadelta, "square_avg", ROW, ZERO, "acc_delta", ROW, ZERO, NONE,                   \
      HOTBED_USES_USUAL | HOTBED_USES_RHO | HOTBED_USES_EPS)                                       \
    X(LION, lion, "exp_avg", ROW, ZERO, "", NONE, ZERO, NONE,                                      \
      HOTBED_USES_USUAL | HOTBED_USES_BETA1 | HOTBED_USES_BETA2)                                   \
    X(PARTIAL_ROWWISE_ADAM, partial_rowwise_adam, "exp_avg", ROW, ZERO, "exp_avg_sq", AVERAGE,     \
      ZERO, NONE,                                                                                  \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTS)                                                     \
    X(LAMB, lamb, "exp_avg", ROW, ZERO, "exp_avg_sq", ROW, ZERO, LAMB,                             \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTS)                                                     \
    X(LARS, lars, "momentum_buffer", ROW, ZERO, "", NONE, ZERO, LARS,                              \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTUM | HOTBED_USES_TRUST | HOTBED_USES_EPS)              \
    X(NESTEROV, nesterov, "momentum_buffer", ROW, ZERO, "", NONE, ZERO, NONE,                      \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTUM)                                                    \
    X(ROW_STEPS_ADAM, row_steps_adam, "exp_avg", ROW, ZERO, "exp_avg_sq_steps", ROW_STEPS, ZERO,   \
      NONE,                                                                                        \
      HOTBED_USES_USUAL | HOTBED_USES_BETA1 | HOTBED_USES_BETA2 | HOTBED_USES_EPS)                 \
    X(ROWWISE_ADAM, rowwise_adam, "exp_avg", MEAN, ZERO, "exp_avg_sq", AVERAGE, ZERO, NONE,        \
      HOTBED_USES_USUAL | HOTBED_USES_MOMENTS)
/* clang-format on */

/* The largest hotbed_optimizer_kind; the first is 1. */
#define HOTBED_COUNT(...) +1
enum { HOTBED_OPT_LAST = 0 HOTBED_OPTIMIZERS(HOTBED_COUNT) };
#undef HOTBED_COUNT

/* Kernels on CUDA are compiled for each kind up to HOTBED_OPT_COMPILED, and once for all others,
 * which read the kind when they run: compilation takes long. The latter also serve the compiled kinds
 * with L2 decay, or if a table has parameters of its own. */
enum { HOTBED_OPT_COMPILED = HOTBED_OPT_ROWWISE_ADAGRAD, HOTBED_OPT_ANY = 0 };

/* The states of an optimizer. If a kernel is compiled for a kind, these are constants. */
typedef struct hotbed_state_form {
    uint32_t count;
    uint32_t lengths[2]; /* HOTBED_STATE_ */
    uint32_t starts[2];  /* HOTBED_STARTS_ */
    uint32_t ratio;      /* HOTBED_RATIO_ */
} hotbed_state_form;

HOTBED_HD hotbed_state_form hotbed_state_form_of(uint32_t kind) {
    hotbed_state_form form = {
        0, {HOTBED_STATE_NONE, HOTBED_STATE_NONE}, {HOTBED_STARTS_ZERO, HOTBED_STARTS_ZERO}, 0};
    switch ((hotbed_optimizer_kind)kind) {
#define HOTBED_CASE(KIND, name, state0, LENGTH0, START0, state1, LENGTH1, START1, RATIO, uses)     \
    case HOTBED_OPT_##KIND:                                                                        \
        form.lengths[0] = HOTBED_STATE_##LENGTH0;                                                  \
        form.lengths[1] = HOTBED_STATE_##LENGTH1;                                                  \
        form.starts[0] = HOTBED_STARTS_##START0;                                                   \
        form.starts[1] = HOTBED_STARTS_##START1;                                                   \
        form.ratio = HOTBED_RATIO_##RATIO;                                                         \
        break;
        HOTBED_OPTIMIZERS(HOTBED_CASE)
#undef HOTBED_CASE
    }
    form.count = (form.lengths[0] != HOTBED_STATE_NONE ? 1U : 0U) +
                 (form.lengths[1] != HOTBED_STATE_NONE ? 1U : 0U);
    return form;
}

/* Whether state `state` has an element for each element of the row. */
HOTBED_HD bool hotbed_state_is_wide(hotbed_state_form form, uint32_t state) {
    return form.lengths[state] == HOTBED_STATE_ROW || form.lengths[state] == HOTBED_STATE_ROW_STEPS;
}

/* Whether rows count their own steps. */
HOTBED_HD bool hotbed_counts_row_steps(hotbed_state_form form) {
    return form.lengths[1] == HOTBED_STATE_ROW_STEPS;
}

/* The length of state `state` of a row of `dim` elements. */
HOTBED_HD uint32_t hotbed_state_length(uint32_t kind, uint32_t state, uint32_t dim) {
    switch (hotbed_state_form_of(kind).lengths[state]) {
    case HOTBED_STATE_NONE:
        return 0;
    case HOTBED_STATE_ROW_STEPS:
        return dim + 1;
    case HOTBED_STATE_ROW:
        return dim;
    default:
        return 1;
    }
}

/* The type of state `state` in a table whose states are of type `dtype`. States of one number, and the one
 * that ends with a count of steps, are f32. */
HOTBED_HD uint32_t hotbed_state_dtype(uint32_t kind, uint32_t state, uint32_t dtype) {
    return hotbed_state_form_of(kind).lengths[state] == HOTBED_STATE_ROW ? dtype
                                                                         : (uint32_t)HOTBED_F32;
}

/* Whether the state is one number. */
HOTBED_HD bool hotbed_state_is_one(uint32_t kind, uint32_t state) {
    return hotbed_state_form_of(kind).lengths[state] > HOTBED_STATE_ROW;
}

/* Whether one of the states is one number. */
HOTBED_HD bool hotbed_has_number(hotbed_state_form form) {
    return form.lengths[0] > HOTBED_STATE_ROW || form.lengths[1] > HOTBED_STATE_ROW;
}

/* Whether both states are one number. */
HOTBED_HD bool hotbed_has_mean(hotbed_state_form form) {
    return form.lengths[0] == HOTBED_STATE_MEAN;
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

/* A copy for one step. Other streams may count prefetches meanwhile. */
HOTBED_HD hotbed_clock hotbed_clock_copy(const hotbed_clock *clock) {
    const hotbed_clock copy = {0, clock->optimizer, clock->correction1, clock->correction2};
    return copy;
}

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

/* One step of the row with the second state `state1`: set the bias correction of *clock, and return
 * the number of the row's steps, which one lane stores. Powers are products in a fixed order. */
HOTBED_HD float hotbed_row_step(
    hotbed_clock *clock, float beta1, float beta2, const float *state1, uint32_t dim) {
    const float most = 16777216.0F; /* from there on, adding 1 changes nothing */
    const float before = state1[dim];
    const float steps = before >= 0.0F && before < most ? before + 1.0F : most;
    double power1 = 1.0, power2 = 1.0, square1 = (double)beta1, square2 = (double)beta2;
    for (uint32_t rest = (uint32_t)steps; rest != 0; rest >>= 1) {
        power1 = (rest & 1U) != 0 ? power1 * square1 : power1;
        power2 = (rest & 1U) != 0 ? power2 * square2 : power2;
        square1 = square1 * square1;
        square2 = square2 * square2;
    }
    clock->correction1 = hotbed_correction(power1);
    clock->correction2 = hotbed_correction(power2);
    return steps;
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

/* The parameters that a table may have of its own. In device memory, because recorded graphs must see
 * a change of the learning rate. */
typedef struct hotbed_table_rates {
    float learning_rate, weight_decay, l2_decay, max_gradient;
    uint32_t
        own; /* the table has an optimizer of its own; false: the learning rate is the clock's */
} hotbed_table_rates;

/* Fixed hyper-parameters, and what a call does with a gradient that is not finite. */
typedef struct hotbed_optimizer_view {
    uint32_t kind; /* hotbed_optimizer_kind */
    hotbed_state_form form;
    float beta1, beta2, eps, weight_decay, l2_decay;
    float max_gradient;              /* 0: no clamping; with `rates` the largest of all tables */
    const hotbed_table_rates *rates; /* [num_tables] NULL: no table has parameters of its own */
    float momentum, rho, trust;
    float learning_rate_power, ftrl_beta, l1_reg, l2_reg;
    uint32_t checks_finite; /* rows whose gradient is NaN or infinite are counted and not updated */
    struct hotbed_fault *faults; /* where they are latched; or NULL */
    /* a literal in kernels: they serve any kind, by calls of functions that are compiled once */
    bool any;
    /* some table has states that are narrower than f32; rows outside of tables: or random rounding */
    bool narrow;
} hotbed_optimizer_view;

/* Set the parameters of table number t, if tables have some of their own. */
HOTBED_HD void hotbed_rates_apply(hotbed_optimizer_view *o, hotbed_clock *clock, uint32_t t) {
    const hotbed_table_rates rates = o->rates[t];
    o->weight_decay = rates.weight_decay;
    o->l2_decay = rates.l2_decay;
    o->max_gradient = rates.max_gradient;
    if (rates.own != 0)
        clock->optimizer.learning_rate = rates.learning_rate;
}

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

/* Add L2 weight decay to the gradient of w. */
HOTBED_HD hotbed_f32x4
hotbed_l2_decay4(const hotbed_optimizer_view *o, hotbed_f32x4 w, hotbed_f32x4 g) {
    return o->l2_decay == 0.0F ? g : hotbed_add4(g, hotbed_scale4(w, o->l2_decay));
}

/* x^power for x >= 0, as 2^(power * log2(x)) in double precision: rounded to float, it is within one
 * unit in the last place. The same bits on both backends, because it has only + - * / in a fixed
 * order. NaN stays NaN. */
HOTBED_HD float hotbed_power(float x, float power) {
    if (power == 0.5F)
        return sqrtf(x);
    if (power == 0.0F)
        return 1.0F;
    if (!(x > 0.0F) || !hotbed_is_finite(x)) /* 0, infinity or NaN */
        return x;
    const double value = (double)x;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* x = m * 2^e with m in [sqrt(1/2), sqrt(2)) */
    int32_t e = (int32_t)((bits - 0x3FE6A09E667F3BCDU) >> 52);
    e = bits < 0x3FE6A09E667F3BCDU ? e - 4096 : e; /* the difference has wrapped */
    bits -= (uint64_t)(int64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    /* log2(m) = 2 / ln(2) * atanh(s), an odd series of s, |s| < 0.172 */
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double series = 1.0 / 15.0;
    series = series * z + 1.0 / 13.0;
    series = series * z + 1.0 / 11.0;
    series = series * z + 1.0 / 9.0;
    series = series * z + 1.0 / 7.0;
    series = series * z + 1.0 / 5.0;
    series = series * z + 1.0 / 3.0;
    series = series * z + 1.0;
    double log2 = (double)e + 2.8853900817779268 * (s * series);
    log2 = (double)power * log2;
    log2 = log2 > 200.0 ? 200.0 : log2 < -200.0 ? -200.0 : log2; /* infinity and 0 as floats */
    /* 2^(whole + rest) with |rest| <= 1/2; e^r is its Taylor series, |r| < 0.347 */
    const int32_t whole = (int32_t)(log2 + (log2 < 0.0 ? -0.5 : 0.5));
    const double r = (log2 - (double)whole) * 0.69314718055994531;
    double sum = 1.0;
    HOTBED_UNROLL
    for (int32_t k = 11; k >= 1; k--)
        sum = 1.0 + r * sum / (double)k;
    const uint64_t scale_bits = (uint64_t)(int64_t)(1023 + whole) << 52;
    double scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return (float)(sum * scale);
}

/* New value of w after a step along `direction`, with decoupled weight decay. */
HOTBED_HD float hotbed_descend(const hotbed_optimizer_view *o, float lr, float w, float direction) {
    return o->weight_decay == 0.0F ? w - lr * direction
                                   : w - lr * (direction + o->weight_decay * w);
}

/* hotbed_step_<name>(): the new value of the element w with gradient g, to which L2 decay has been
 * added; *state0 and *state1 are its optimizer states. A state of one number already includes this
 * step, and the learning rate the ratio of norms. */

#define HOTBED_STEP(name)                                                                          \
    HOTBED_HD float hotbed_step_##name(                                                            \
        const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g,               \
        float *state0, float *state1)

HOTBED_STEP(sgd) {
    (void)state0, (void)state1;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g);
}

HOTBED_STEP(adam) {
    *state0 = o->beta1 * *state0 + (1.0F - o->beta1) * g;
    *state1 = o->beta2 * *state1 + (1.0F - o->beta2) * (g * g);
    return hotbed_descend(
        o, clock->optimizer.learning_rate, w,
        (*state0 / clock->correction1) / (sqrtf(*state1 / clock->correction2) + o->eps));
}

HOTBED_STEP(adagrad) {
    (void)state1;
    *state0 = *state0 + g * g;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g / (sqrtf(*state0) + o->eps));
}

HOTBED_STEP(rowwise_adagrad) {
    (void)state1;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g / (sqrtf(*state0) + o->eps));
}

HOTBED_STEP(ftrl) {
    const float lr = clock->optimizer.learning_rate;
    const float before = hotbed_power(*state1, -o->learning_rate_power);
    *state1 = *state1 + g * g;
    const float after = hotbed_power(*state1, -o->learning_rate_power);
    *state0 = *state0 + (g - (after - before) / lr * w);
    const float z = *state0;
    const float beyond = z > 0.0F ? z - o->l1_reg : z + o->l1_reg;
    const bool inside = z <= o->l1_reg && z >= -o->l1_reg;
    return inside ? 0.0F : -beyond / ((o->ftrl_beta + after) / lr + o->l2_reg);
}

HOTBED_STEP(momentum) {
    (void)state1;
    *state0 = o->momentum * *state0 + g;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, *state0);
}

HOTBED_STEP(rmsprop) {
    (void)state1;
    *state0 = o->rho * *state0 + (1.0F - o->rho) * (g * g);
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g / (sqrtf(*state0) + o->eps));
}

HOTBED_STEP(adadelta) {
    *state0 = o->rho * *state0 + (1.0F - o->rho) * (g * g);
    const float delta = sqrtf(*state1 + o->eps) / sqrtf(*state0 + o->eps) * g;
    *state1 = o->rho * *state1 + (1.0F - o->rho) * (delta * delta);
    return hotbed_descend(o, clock->optimizer.learning_rate, w, delta);
}

HOTBED_STEP(lion) {
    (void)state1;
    const float mixed = o->beta1 * *state0 + (1.0F - o->beta1) * g;
    const float sign = mixed > 0.0F ? 1.0F : mixed < 0.0F ? -1.0F : mixed; /* 0 and NaN stay */
    *state0 = o->beta2 * *state0 + (1.0F - o->beta2) * g;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, sign);
}

HOTBED_STEP(partial_rowwise_adam) {
    *state0 = o->beta1 * *state0 + (1.0F - o->beta1) * g;
    return hotbed_descend(
        o, clock->optimizer.learning_rate, w,
        (*state0 / clock->correction1) / (sqrtf(*state1 / clock->correction2) + o->eps));
}

HOTBED_STEP(row_steps_adam) {
    return hotbed_step_adam(o, clock, w, g, state0, state1);
}

HOTBED_STEP(rowwise_adam) {
    (void)g;
    return hotbed_descend(
        o, clock->optimizer.learning_rate, w,
        (*state0 / clock->correction1) / (sqrtf(*state1 / clock->correction2) + o->eps));
}

HOTBED_STEP(lamb) {
    return hotbed_step_adam(o, clock, w, g, state0, state1);
}

HOTBED_STEP(lars) {
    (void)state1;
    *state0 = o->momentum * *state0 + clock->optimizer.learning_rate * (g + o->weight_decay * w);
    return w - *state0;
}

HOTBED_STEP(nesterov) {
    (void)state1;
    *state0 = o->momentum * *state0 + g;
    return hotbed_descend(o, clock->optimizer.learning_rate, w, g + o->momentum * *state0);
}

#undef HOTBED_STEP

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
HOTBED_HD hotbed_f32x4 hotbed_optimize4_inline(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, hotbed_f32x4 w, hotbed_f32x4 g,
    hotbed_f32x4 *state0, hotbed_f32x4 *state1) {
    switch ((hotbed_optimizer_kind)o->kind) {
#define HOTBED_CASE(KIND, name, ...)                                                               \
    case HOTBED_OPT_##KIND:                                                                        \
        w.x = hotbed_step_##name(o, clock, w.x, g.x, &state0->x, &state1->x);                      \
        w.y = hotbed_step_##name(o, clock, w.y, g.y, &state0->y, &state1->y);                      \
        w.z = hotbed_step_##name(o, clock, w.z, g.z, &state0->z, &state1->z);                      \
        w.w = hotbed_step_##name(o, clock, w.w, g.w, &state0->w, &state1->w);                      \
        break;
        HOTBED_OPTIMIZERS(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return w;
}

HOTBED_COLD hotbed_f32x4 hotbed_optimize4_called(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, hotbed_f32x4 w, hotbed_f32x4 g,
    hotbed_f32x4 *state0, hotbed_f32x4 *state1) {
    return hotbed_optimize4_inline(o, clock, w, g, state0, state1);
}

HOTBED_HD hotbed_f32x4 hotbed_optimize4(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, hotbed_f32x4 w, hotbed_f32x4 g,
    hotbed_f32x4 *state0, hotbed_f32x4 *state1) {
    return o->any ? hotbed_optimize4_called(o, clock, w, g, state0, state1)
                  : hotbed_optimize4_inline(o, clock, w, g, state0, state1);
}

/* --- values of the whole row ------------------------------------------------------------------ */

/* A sum over the elements of a row, in an order that is fixed for 32 lanes: groups of four elements
 * go to the lanes in turn, each lane adds its values in order, and lanes are then added pairwise, 16
 * apart, 8, 4, 2, 1. On tiles of fewer lanes, shares[k] is the share of lane rank + k * width. */
HOTBED_HD float hotbed_sum_shares(float shares[32], uint32_t width) {
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
    return shares[0];
}

/* The first `count` elements; the others become 0. */
HOTBED_HD hotbed_f32x4 hotbed_first4(hotbed_f32x4 v, uint32_t count) {
    v.y = count > 1 ? v.y : 0.0F;
    v.z = count > 2 ? v.z : 0.0F;
    v.w = count > 3 ? v.w : 0.0F;
    return v;
}

/* Add the squares of four elements to a lane's share, in order. */
HOTBED_HD float hotbed_add_squares(float share, hotbed_f32x4 v) {
    share = share + v.x * v.x;
    share = share + v.y * v.y;
    share = share + v.z * v.z;
    return share + v.w * v.w;
}

/* Add four elements to a lane's share, in order. */
HOTBED_HD float hotbed_add_elements(float share, hotbed_f32x4 v) {
    share = share + v.x;
    share = share + v.y;
    share = share + v.z;
    return share + v.w;
}

/* The new value of a state of one number, given the mean square of the row's gradient. */
HOTBED_HD float hotbed_number_after(
    const hotbed_optimizer_view *o, float before, float mean_square) {
    return o->form.lengths[0] == HOTBED_STATE_SUM || o->form.lengths[1] == HOTBED_STATE_SUM
               ? before + mean_square
               : o->beta2 * before + (1.0F - o->beta2) * mean_square;
}

/* The new value of the first of two numbers, given the mean of the row's gradient. */
HOTBED_HD float hotbed_mean_after(const hotbed_optimizer_view *o, float before, float mean) {
    return o->beta1 * before + (1.0F - o->beta1) * mean;
}

/* The element whose norm is compared with the row's: LAMB: of the step; LARS: of the gradient. */
HOTBED_HD float hotbed_measured(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, float w, float g, float state0,
    float state1) {
    if (o->form.ratio == HOTBED_RATIO_LARS)
        return g;
    state0 = o->beta1 * state0 + (1.0F - o->beta1) * g;
    state1 = o->beta2 * state1 + (1.0F - o->beta2) * (g * g);
    const float along =
        (state0 / clock->correction1) / (sqrtf(state1 / clock->correction2) + o->eps);
    return o->weight_decay == 0.0F ? along : along + o->weight_decay * w;
}

HOTBED_COLD hotbed_f32x4 hotbed_measured4(
    const hotbed_optimizer_view *o, const hotbed_clock *clock, hotbed_f32x4 w, hotbed_f32x4 g,
    hotbed_f32x4 a, hotbed_f32x4 b) {
    const hotbed_f32x4 v = {
        hotbed_measured(o, clock, w.x, g.x, a.x, b.x),
        hotbed_measured(o, clock, w.y, g.y, a.y, b.y),
        hotbed_measured(o, clock, w.z, g.z, a.z, b.z),
        hotbed_measured(o, clock, w.w, g.w, a.w, b.w)};
    return v;
}

/* The factor of the row's learning rate, given sums of squares: of the row and of what is measured.
 * 1 if one of them is 0. */
HOTBED_HD float hotbed_ratio(const hotbed_optimizer_view *o, float row, float measured) {
    if (row == 0.0F || measured == 0.0F)
        return 1.0F;
    const float norm = sqrtf(row);
    if (o->form.ratio == HOTBED_RATIO_LAMB)
        return norm / sqrtf(measured);
    return o->trust * norm / (sqrtf(measured) + o->weight_decay * norm + o->eps);
}

HOTBED_HD bool hotbed_has_ratio(hotbed_state_form form) {
    return form.ratio != HOTBED_RATIO_NONE;
}
