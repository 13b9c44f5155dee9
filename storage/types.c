/* storage/types.c - element types, names, initializers and optimizers: sizes, checks, conversion
 * for kernels. */
#include "storage/types.h"

#include "base/error.h"
#include "base/stream.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

size_t hotbed_dtype_bytes(hotbed_dtype dtype) {
    if (dtype == HOTBED_F32)
        return 4;
    return dtype == HOTBED_F16 || dtype == HOTBED_BF16 ? 2 : 0;
}

const char *hotbed_dtype_name(hotbed_dtype dtype) {
    switch (dtype) {
    case HOTBED_F32:
        return "f32";
    case HOTBED_F16:
        return "f16";
    case HOTBED_BF16:
        return "bf16";
    }
    return "unknown";
}

uint32_t hotbed_optimizer_states(hotbed_optimizer_kind kind) {
    switch (kind) {
    case HOTBED_OPT_ADAM:
        return 2;
    case HOTBED_OPT_ADAGRAD:
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return 1;
    case HOTBED_OPT_SGD:
        break;
    }
    return 0;
}

uint32_t hotbed_optimizer_state_dim(hotbed_optimizer_kind kind, uint32_t dim) {
    if (hotbed_optimizer_states(kind) == 0)
        return 0;
    return kind == HOTBED_OPT_ROWWISE_ADAGRAD ? 1 : dim;
}

const char *hotbed_optimizer_state_name(hotbed_optimizer_kind kind, uint32_t state) {
    if (state >= hotbed_optimizer_states(kind))
        return NULL;
    if (kind == HOTBED_OPT_ADAM)
        return state == 0 ? "exp_avg" : "exp_avg_sq";
    return kind == HOTBED_OPT_ADAGRAD ? "sum" : "momentum1";
}

const char *hotbed_optimizer_name(hotbed_optimizer_kind kind) {
    switch (kind) {
    case HOTBED_OPT_SGD:
        return "sgd";
    case HOTBED_OPT_ADAM:
        return "adam";
    case HOTBED_OPT_ADAGRAD:
        return "adagrad";
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return "rowwise_adagrad";
    }
    return "unknown";
}

hotbed_status hotbed_name_check(const char *name, uint32_t number) {
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (name == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "table %u: name is NULL", number);
    size_t length = strspn(name, good);
    if (length < 1 || length >= HOTBED_NAME_BYTES || name[length] != 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %u: name \"%.80s\" is not 1 to 63 of [A-Za-z0-9_.-]",
            number, name);
    return HOTBED_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

hotbed_status hotbed_names_check(const void *structs, uint32_t n, size_t stride) {
    const char **sorted = hotbed_new(n * sizeof *sorted);
    if (sorted == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to compare %u names", n);
    for (uint32_t t = 0; t < n; t++)
        sorted[t] = (const char *)structs + t * stride;
    qsort(sorted, n, sizeof *sorted, by_text);
    hotbed_status status = HOTBED_OK;
    for (uint32_t t = 1; t < n && status == HOTBED_OK; t++)
        if (strcmp(sorted[t - 1], sorted[t]) == 0)
            status =
                hotbed_fail(HOTBED_ERR_ARGUMENT, "two tables have the same name %s", sorted[t]);
    hotbed_delete(sorted);
    return status;
}

/* Values are computed from an f32 probability, which has fewer than five values for all that is more
 * than 5 standard deviations above the mean. */
static hotbed_status check_truncated(const hotbed_initializer *i, const char *what) {
    const double most = 5.0, mean = (double)i->mean, std = (double)i->std;
    if ((double)i->lower > mean + most * std || (double)i->upper < mean - most * std)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "%s: lower %g to upper %g is more than %g std %g away from mean %g", what,
            (double)i->lower, (double)i->upper, most, std, mean);
    return HOTBED_OK;
}

hotbed_status hotbed_initializer_check(const hotbed_initializer *initializer, const char *what) {
    const hotbed_initializer *i = initializer;
    static const char *const names[] = {"value", "mean", "std", "lower", "upper"};
    const float numbers[] = {i->value, i->mean, i->std, i->lower, i->upper};
    for (int n = 0; n < 5; n++)
        if (!isfinite(numbers[n]))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "%s: %s %g is not finite", what, names[n], (double)numbers[n]);
    switch (i->kind) {
    case HOTBED_INIT_CONSTANT:
    case HOTBED_INIT_DEBUG:
        return HOTBED_OK;
    case HOTBED_INIT_UNIFORM:
        if (!(i->lower < i->upper))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "lower", (double)i->lower,
                "%s: lower %g is not below upper %g", what, (double)i->lower, (double)i->upper);
        if (!isfinite(i->upper - i->lower))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "%s: upper %g - lower %g is above %g, the largest f32", what,
                (double)i->upper, (double)i->lower, (double)FLT_MAX);
        return HOTBED_OK;
    case HOTBED_INIT_NORMAL:
    case HOTBED_INIT_TRUNCATED_NORMAL:
        if (!(i->std > 0.0F))
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "std", (double)i->std, 0, "%s: std %g is not above 0", what,
                (double)i->std);
        if (i->kind == HOTBED_INIT_TRUNCATED_NORMAL && !(i->lower < i->upper))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "lower", (double)i->lower,
                "%s: lower %g is not below upper %g", what, (double)i->lower, (double)i->upper);
        return i->kind == HOTBED_INIT_TRUNCATED_NORMAL ? check_truncated(i, what) : HOTBED_OK;
    }
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, "kind", (double)i->kind, "%s: unknown kind %d", what, (int)i->kind);
}

hotbed_status hotbed_optimizer_check(const hotbed_optimizer *optimizer) {
    const hotbed_optimizer *o = optimizer;
    if (o->size != sizeof *o)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "optimizer: size %u is not %zu; call hotbed_optimizer_init() first", o->size,
            sizeof *o);
    for (size_t i = 0; i < sizeof o->reserved / sizeof *o->reserved; i++)
        if (o->reserved[i] != 0)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT,
                "optimizer: reserved[%zu] is %u, but this library knows no such parameter", i,
                o->reserved[i]);
    if (o->kind < HOTBED_OPT_SGD || o->kind > HOTBED_OPT_LAST)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "kind", (double)o->kind, "optimizer: unknown kind %d",
            (int)o->kind);
    if (!isfinite(o->learning_rate))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "learning_rate", (double)o->learning_rate,
            "optimizer: learning_rate %g is not finite", (double)o->learning_rate);
    const float beta[2] = {o->beta1, o->beta2};
    for (int b = 0; b < 2; b++)
        if (!(beta[b] >= 0.0F && beta[b] < 1.0F))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "optimizer: beta%d %g is not in [0, 1)", b + 1,
                (double)beta[b]);
    if (!(o->eps >= 0.0F) || !isfinite(o->eps))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "eps", (double)o->eps, 0, "optimizer: eps %g is not at least 0",
            (double)o->eps);
    if (!isfinite(o->weight_decay))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "weight_decay", (double)o->weight_decay,
            "optimizer: weight_decay %g is not finite", (double)o->weight_decay);
    if (!(o->initial_accumulator >= 0.0F) || !isfinite(o->initial_accumulator))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "initial_accumulator", (double)o->initial_accumulator, 0,
            "optimizer: initial_accumulator %g is not at least 0", (double)o->initial_accumulator);
    if (!(o->max_gradient >= 0.0F) || !isfinite(o->max_gradient))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "max_gradient", (double)o->max_gradient, 0,
            "optimizer: max_gradient %g is not at least 0", (double)o->max_gradient);
    return HOTBED_OK;
}

/* P(normal < x). */
static double normal_cdf(double x) {
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

hotbed_init_view hotbed_init_make(
    const hotbed_initializer *initializer, const char *name, uint64_t seed) {
    const hotbed_initializer *i = initializer;
    hotbed_init_view view = {
        .kind = (uint32_t)i->kind,
        .table = 2166136261U,
        .seed0 = (uint32_t)seed,
        .seed1 = (uint32_t)(seed >> 32),
        .offset = i->value,
        .low = i->lower,
        .high = i->upper,
    };
    for (const char *c = name; *c != 0; c++) /* FNV-1a */
        view.table = (view.table ^ (unsigned char)*c) * 16777619U;
    if (i->kind == HOTBED_INIT_UNIFORM) {
        view.offset = i->lower;
        view.scale = i->upper - i->lower;
    } else if (i->kind == HOTBED_INIT_NORMAL || i->kind == HOTBED_INIT_TRUNCATED_NORMAL) {
        view.offset = i->mean;
        view.scale = i->std;
    }
    if (i->kind == HOTBED_INIT_TRUNCATED_NORMAL) {
        double low = normal_cdf(((double)i->lower - (double)i->mean) / (double)i->std);
        double high = normal_cdf(((double)i->upper - (double)i->mean) / (double)i->std);
        view.p_low = (float)low;
        view.p_span = (float)(high - low);
    }
    return view;
}

hotbed_optimizer_view hotbed_optimizer_make(const hotbed_optimizer *optimizer) {
    hotbed_optimizer_view view = {
        .kind = (uint32_t)optimizer->kind,
        .beta1 = optimizer->beta1,
        .beta2 = optimizer->beta2,
        .eps = optimizer->eps,
        .weight_decay = optimizer->weight_decay,
        .max_gradient = optimizer->max_gradient,
    };
    return view;
}
