/* storage/types.c - element types, names, initializers and optimizers: sizes, checks, conversion
 * for kernels. */
#include "storage/types.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t hotbed_dtype_bytes(hotbed_dtype dtype) {
    return hotbed_dtype_is_array((uint32_t)dtype) ? hotbed_dtype_size((uint32_t)dtype) : 0;
}

size_t hotbed_dtype_row_bytes(hotbed_dtype dtype, uint32_t dim) {
    return hotbed_weights_bytes((uint32_t)dtype, dim);
}

const char *hotbed_dtype_name(hotbed_dtype dtype) {
    switch (dtype) {
#define HOTBED_CASE(DTYPE, name, ...)                                                              \
    case HOTBED_##DTYPE:                                                                           \
        return #name;
        HOTBED_DTYPES(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return "unknown";
}

bool hotbed_dtype_read(const char *name, hotbed_dtype *out) {
    for (int dtype = 1; dtype <= (int)HOTBED_DTYPE_LAST; dtype++)
        if (strcmp(name, hotbed_dtype_name((hotbed_dtype)dtype)) == 0) {
            *out = (hotbed_dtype)dtype;
            return true;
        }
    return false;
}

const char *hotbed_dtype_word(hotbed_dtype dtype) {
    switch (dtype) {
#define HOTBED_CASE(DTYPE, name, bytes, trailer, array, word, npy)                                 \
    case HOTBED_##DTYPE:                                                                           \
        return word;
        HOTBED_DTYPES(HOTBED_CASE)
#undef HOTBED_CASE
    }
    return "";
}

hotbed_element hotbed_weights_element(hotbed_dtype dtype, uint32_t dim, uint64_t *columns) {
    const bool array = hotbed_dtype_is_array((uint32_t)dtype);
    *columns = array ? dim : hotbed_weights_bytes((uint32_t)dtype, dim);
    return array ? (hotbed_element)dtype : HOTBED_ELEMENT_U8;
}

const char *hotbed_dtype_npy(hotbed_dtype dtype) {
#define HOTBED_NPY(DTYPE, name, bytes, trailer, array, word, npy) [HOTBED_##DTYPE] = (npy),
    static const char *const types[] = {HOTBED_DTYPES(HOTBED_NPY)};
#undef HOTBED_NPY
    return types[dtype];
}

/* A row with scales, aligned as in a table. */
typedef struct scaled_row {
    uint8_t bytes
        [HOTBED_DIM_MOST + HOTBED_DIM_MOST / HOTBED_SCALE_BLOCK * HOTBED_SCALE_BYTES +
         16] HOTBED_ALIGN(16);
} scaled_row;

void hotbed_weights_read(hotbed_dtype dtype, uint32_t dim, const void *row, float *out) {
    scaled_row copy;
    const bool scaled = hotbed_dtype_size((uint32_t)dtype) == 1;
    if (scaled)
        memcpy(copy.bytes, row, hotbed_dtype_row_bytes(dtype, dim));
    for (uint32_t e = 0; e < dim; e += 4) {
        const uint32_t count = hotbed_count4(dim, e);
        const hotbed_f32x4 v =
            hotbed_row_load4(false, (uint32_t)dtype, dim, scaled ? copy.bytes : row, e, count);
        memcpy(out + e, &v, count * sizeof *out);
    }
}

void hotbed_weights_write(hotbed_dtype dtype, uint32_t dim, const float *weights, void *row) {
    const uint32_t type = (uint32_t)dtype, span = hotbed_scale_span(type, dim);
    const hotbed_u32x4 none = {0, 0, 0, 0};
    for (uint32_t e = 0; span == 0 && e < dim; e++)
        hotbed_store1(type, row, e, weights[e]);
    for (uint32_t from = 0; span != 0 && from < dim; from += span) {
        const uint32_t end = dim - from < span ? dim : from + span;
        hotbed_scale_range range = hotbed_scale_range_start(type);
        for (uint32_t e = from; e < end; e++)
            hotbed_scale_range_add(type, &range, weights[e]);
        const uint32_t word = hotbed_scale_choose(type, range, 0, false);
        for (uint32_t e = from; e < end; e++)
            ((uint8_t *)row)[e] =
                (uint8_t)hotbed_scaled_byte(type, word, weights[e], false, none.x);
        hotbed_scale_store(type, dim, row, from, word);
    }
}

/* The bits of the largest number that rounds to a finite one of the type, and what else the type has. An int8 row
 * clamps larger numbers to its offset's range, and cannot have a NaN beside numbers. */
static const struct {
    uint32_t most;
    bool infinite, nan;
} fits[] = {
    [HOTBED_F32] = {0x7f7fffffU, true, true},    /* all */
    [HOTBED_F16] = {0x477fefffU, true, true},    /* below 65520 */
    [HOTBED_BF16] = {0x7f7f7fffU, true, true},   /* below 2^128 - 2^119 */
    [HOTBED_INT8] = {0x477fe000U, false, false}, /* 65504 */
    [HOTBED_FP8] = {0x7f7fffffU, false, true},
};

bool hotbed_weights_fit(hotbed_dtype dtype, uint32_t dim, const float *weights, float *value) {
    enum { INFINITE = 0x7f800000 };
    for (uint32_t e = 0; e < dim; e++) {
        const uint32_t bits = hotbed_float_bits(weights[e]) & 0x7fffffffU;
        if (bits <= fits[dtype].most || (bits == INFINITE && fits[dtype].infinite) ||
            (bits > INFINITE && fits[dtype].nan))
            continue;
        *value = weights[e];
        return false;
    }
    return true;
}

bool hotbed_weights_convert(
    hotbed_dtype from_dtype, const void *from, hotbed_dtype to_dtype, void *to, uint32_t dim,
    uint64_t n, hotbed_unfit *unfit) {
    const size_t read = hotbed_dtype_row_bytes(from_dtype, dim);
    const size_t written = hotbed_dtype_row_bytes(to_dtype, dim);
    float weights[HOTBED_DIM_MOST];
    bool fit = true;
    if (from_dtype == to_dtype) {
        memmove(to, from, n * read);
        return true;
    }
    for (uint64_t i = 0; i < n; i++) {
        /* longer rows backwards, so that no row is overwritten unread */
        const uint64_t at = written > read ? n - 1 - i : i;
        hotbed_weights_read(from_dtype, dim, (const char *)from + at * read, weights);
        hotbed_weights_write(to_dtype, dim, weights, (char *)to + at * written);
        if (fit && !hotbed_weights_fit(to_dtype, dim, weights, &unfit->value)) {
            fit = false;
            unfit->row = at;
        }
    }
    return fit;
}

hotbed_status hotbed_unfit_fail(
    const char *table, uint64_t key, hotbed_key_type key_type, const char *state,
    hotbed_dtype dtype, float value) {
    return hotbed_error_key(
        hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, table, state == NULL ? "dtype" : "state_dtype", value,
            "table '%s', key %s%s%s: %s does not have the value %g", table,
            hotbed_key_text(key, key_type).text, state == NULL ? "" : ", state ",
            state == NULL ? "" : state, hotbed_dtype_name(dtype), (double)value),
        key, key_type);
}

hotbed_status hotbed_dtype_convert(
    hotbed_dtype from_dtype, const void *from, hotbed_dtype to_dtype, void *to, uint32_t dim,
    uint64_t n) {
    const hotbed_dtype types[] = {from_dtype, to_dtype};
    static const char *const names[] = {"from_dtype", "to_dtype"};
    HOTBED_TRY(hotbed_check_pointer("from", from));
    HOTBED_TRY(hotbed_check_pointer("to", to));
    for (int i = 0; i < 2; i++)
        if (hotbed_dtype_row_bytes(types[i], 1) == 0)
            return hotbed_fail_unknown(names[i], types[i]);
    HOTBED_TRY(hotbed_check_range("dim", dim, 1, HOTBED_DIM_MOST));
    hotbed_unfit unfit;
    (void)hotbed_weights_convert(from_dtype, from, to_dtype, to, dim, n, &unfit);
    return HOTBED_OK;
}

/* --- optimizers --------------------------------------------------------------------------------- */

/* In the order of HOTBED_USES_. */
static const hotbed_optimizer_parameter parameters[] = {
#define FIELD(name) #name, offsetof(hotbed_optimizer, name)
    {FIELD(learning_rate), -FLT_MAX, FLT_MAX, false},
    {FIELD(beta1), 0.0F, 1.0F, true},
    {FIELD(beta2), 0.0F, 1.0F, true},
    {FIELD(eps), 0.0F, FLT_MAX, false},
    {FIELD(weight_decay), -FLT_MAX, FLT_MAX, false},
    {FIELD(initial_accumulator), 0.0F, FLT_MAX, false},
    {FIELD(max_gradient), 0.0F, FLT_MAX, false},
    {FIELD(l2_decay), -FLT_MAX, FLT_MAX, false},
    {FIELD(momentum), 0.0F, 1.0F, true},
    {FIELD(rho), 0.0F, 1.0F, true},
    {FIELD(trust), 0.0F, FLT_MAX, false},
    {FIELD(learning_rate_power), -2.0F, 0.0F, false},
    {FIELD(ftrl_beta), 0.0F, FLT_MAX, false},
    {FIELD(l1_reg), 0.0F, FLT_MAX, false},
    {FIELD(l2_reg), 0.0F, FLT_MAX, false},
#undef FIELD
};

enum { PARAMETERS = sizeof parameters / sizeof *parameters };

#define HOTBED_INFO(KIND, name, state0, LENGTH0, START0, state1, LENGTH1, START1, RATIO, uses)     \
    [HOTBED_OPT_##KIND] = {                                                                        \
        sizeof(hotbed_optimizer_info),                                                             \
        HOTBED_OPT_##KIND,                                                                         \
        #name,                                                                                     \
        (sizeof(state0) > 1 ? 1 : 0) + (sizeof(state1) > 1 ? 1 : 0),                               \
        {HOTBED_STATE_##LENGTH0 > HOTBED_STATE_ROW, HOTBED_STATE_##LENGTH1 > HOTBED_STATE_ROW},    \
        ((uses)&HOTBED_USES_STEPS) != 0,                                                           \
        ((uses)&HOTBED_USES_POSITIVE_RATE) != 0,                                                   \
        {state0, state1},                                                                          \
        (uses)&HOTBED_USES_PARAMETERS},
static const hotbed_optimizer_info infos[] = {HOTBED_OPTIMIZERS(HOTBED_INFO)};
#undef HOTBED_INFO

const hotbed_optimizer_info *hotbed_optimizer_describe(hotbed_optimizer_kind kind) {
    return kind >= 1 && kind <= (int)HOTBED_OPT_LAST ? &infos[kind] : NULL;
}

const hotbed_optimizer_parameter *hotbed_optimizer_parameter_at(uint32_t number) {
    return number < PARAMETERS ? &parameters[number] : NULL;
}

float hotbed_optimizer_value(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_parameter *parameter) {
    float value;
    memcpy(&value, (const char *)optimizer + parameter->offset, sizeof value);
    return value;
}

void hotbed_optimizer_set(
    hotbed_optimizer *optimizer, const hotbed_optimizer_parameter *parameter, float value) {
    memcpy((char *)optimizer + parameter->offset, &value, sizeof value);
}

uint32_t hotbed_optimizer_states(hotbed_optimizer_kind kind) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(kind);
    return info == NULL ? 0 : info->states;
}

uint32_t hotbed_optimizer_state_dim(hotbed_optimizer_kind kind, uint32_t state, uint32_t dim) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(kind);
    return info == NULL || state >= info->states ? 0
                                                 : hotbed_state_length((uint32_t)kind, state, dim);
}

hotbed_dtype hotbed_optimizer_state_dtype(
    hotbed_optimizer_kind kind, uint32_t state, hotbed_dtype state_dtype) {
    if (state_dtype == 0 || state >= hotbed_optimizer_states(kind))
        return HOTBED_F32;
    return (hotbed_dtype)hotbed_state_dtype((uint32_t)kind, state, (uint32_t)state_dtype);
}

hotbed_dtype hotbed_states_dtype(hotbed_optimizer_kind kind, hotbed_dtype state_dtype) {
    const hotbed_dtype first = hotbed_optimizer_state_dtype(kind, 0, state_dtype);
    return first != HOTBED_F32 ? first : hotbed_optimizer_state_dtype(kind, 1, state_dtype);
}

size_t hotbed_state_bytes(
    hotbed_optimizer_kind kind, uint32_t state, hotbed_dtype state_dtype, uint32_t dim) {
    return hotbed_optimizer_state_dim(kind, state, dim) *
           hotbed_dtype_bytes(hotbed_optimizer_state_dtype(kind, state, state_dtype));
}

hotbed_status hotbed_state_dtype_check(hotbed_dtype dtype) {
    if (dtype == 0 || dtype == HOTBED_F32 || dtype == HOTBED_BF16)
        return HOTBED_OK;
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, "state_dtype", dtype, "state_dtype %d (%s) is neither F32 nor BF16",
        (int)dtype, hotbed_dtype_name(dtype));
}

const char *hotbed_optimizer_state_name(hotbed_optimizer_kind kind, uint32_t state) {
    return state < hotbed_optimizer_states(kind) ? infos[kind].state_names[state] : NULL;
}

const char *hotbed_optimizer_name(hotbed_optimizer_kind kind) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(kind);
    return info == NULL ? "unknown" : info->name;
}

hotbed_status hotbed_name_check(const char *name, uint32_t number) {
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (name == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "name", number, "table %u: name is NULL", number);
    size_t length = strspn(name, good);
    if (length < 1 || length >= HOTBED_NAME_BYTES || name[length] != 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "name", number,
            "table %u: name \"%.80s\" is not 1 to 63 of [A-Za-z0-9_.-]", number, name);
    return HOTBED_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

hotbed_status hotbed_names_check(const void *structs, uint32_t n, size_t stride) {
    const char **sorted = hotbed_new(n * sizeof *sorted);
    HOTBED_TRY_MEMORY(sorted, "a comparison of %u names", n);
    for (uint32_t t = 0; t < n; t++)
        sorted[t] = (const char *)structs + t * stride;
    qsort(sorted, n, sizeof *sorted, by_text);
    hotbed_status status = HOTBED_OK;
    for (uint32_t t = 1; t < n && status == HOTBED_OK; t++)
        if (strcmp(sorted[t - 1], sorted[t]) == 0)
            status = hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, sorted[t], "two tables have the same name %s", sorted[t]);
    hotbed_delete(sorted);
    return status;
}

hotbed_status hotbed_features_check(const hotbed_storage_options *o) {
    HOTBED_TRY(hotbed_check_range("num_tables", o->num_tables, 1, HOTBED_TABLES_MOST));
    HOTBED_TRY(hotbed_check_pointer("tables", o->tables));
    HOTBED_TRY(hotbed_check_array("feature_tables", o->feature_tables, o->num_features));
    for (uint32_t f = 0; f < o->num_features; f++)
        if (o->feature_tables[f] >= o->num_tables)
            return hotbed_fail_feature(
                HOTBED_ERR_ARGUMENT, f, "feature %u: table %u is not below %u", f,
                o->feature_tables[f], o->num_tables);
    return HOTBED_OK;
}

/* Values are computed from an f32 probability, which has fewer than five values for all that is more
 * than 5 standard deviations above the mean. */
static hotbed_status check_truncated(const hotbed_initializer *i, const char *what) {
    const double most = 5.0, mean = (double)i->mean, std = (double)i->std;
    if ((double)i->lower > mean + most * std || (double)i->upper < mean - most * std)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, (double)i->lower > mean ? "lower" : "upper",
            (double)((double)i->lower > mean ? i->lower : i->upper),
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
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, names[n], numbers[n], "%s: %s %g is not finite", what,
                names[n], (double)numbers[n]);
    switch (i->kind) {
    case HOTBED_INIT_CONSTANT:
    case HOTBED_INIT_DEBUG:
        return HOTBED_OK;
    case HOTBED_INIT_UNIFORM:
        if (!(i->lower < i->upper))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "lower", i->lower, "%s: lower %g is not below upper %g", what,
                (double)i->lower, (double)i->upper);
        if (!isfinite(i->upper - i->lower))
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "upper", i->upper, FLT_MAX,
                "%s: upper %g - lower %g is above %g, the largest f32", what, (double)i->upper,
                (double)i->lower, (double)FLT_MAX);
        return HOTBED_OK;
    case HOTBED_INIT_NORMAL:
    case HOTBED_INIT_TRUNCATED_NORMAL:
        if (!(i->std > 0.0F))
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "std", i->std, 0, "%s: std %g is not above 0", what,
                (double)i->std);
        if (i->kind == HOTBED_INIT_TRUNCATED_NORMAL && !(i->lower < i->upper))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "lower", i->lower, "%s: lower %g is not below upper %g", what,
                (double)i->lower, (double)i->upper);
        return i->kind == HOTBED_INIT_TRUNCATED_NORMAL ? check_truncated(i, what) : HOTBED_OK;
    }
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, "kind", i->kind, "%s: unknown kind %d", what, (int)i->kind);
}

static hotbed_status check_parameter(const hotbed_optimizer_parameter *p, float value) {
    const double given = (double)value, least = (double)p->least, most = (double)p->most;
    const bool below = value < p->most || (value == p->most && !p->below_most);
    if (value >= p->least && below)
        return HOTBED_OK;
    if (p->least == -FLT_MAX && p->most == FLT_MAX)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, p->name, given, "optimizer: %s %g is not finite", p->name, given);
    if (p->most == FLT_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, p->name, given, least, "optimizer: %s %g is not at least %g",
            p->name, given, least);
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, p->name, given, "optimizer: %s %g is not in [%g, %g%c", p->name, given,
        least, most, p->below_most ? ')' : ']');
}

hotbed_status hotbed_optimizer_check_rate(hotbed_optimizer_kind kind, float learning_rate) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(kind);
    if (info == NULL || !info->positive_rate || learning_rate > 0.0F)
        return HOTBED_OK;
    return hotbed_fail_limit(
        HOTBED_ERR_ARGUMENT, "learning_rate", learning_rate, 0,
        "optimizer: learning_rate %g of %s is not above 0", (double)learning_rate, info->name);
}

/* Decay and the parameters of few optimizers have an effect only with optimizers that use them. */
static hotbed_status check_unused(const hotbed_optimizer *o) {
    const uint32_t used = hotbed_optimizer_describe(o->kind)->parameters,
                   kept = HOTBED_USES_IN_EVERY_LINE & ~(uint32_t)HOTBED_USES_WEIGHT_DECAY;
    hotbed_optimizer init;
    hotbed_optimizer_init(&init);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        const float value = hotbed_optimizer_value(o, &parameters[p]);
        if (((used | kept) >> p & 1U) == 0 &&
            value != hotbed_optimizer_value(&init, &parameters[p]))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, parameters[p].name, value,
                "optimizer: %s is %g, but %s has no such parameter", parameters[p].name,
                (double)value, hotbed_optimizer_name(o->kind));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_optimizer_check(const hotbed_optimizer *optimizer) {
    const hotbed_optimizer *o = optimizer;
    if (o->size != sizeof *o)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "size", o->size, sizeof *o,
            "optimizer: size %u is not %zu; call hotbed_optimizer_init() first", o->size,
            sizeof *o);
    for (size_t i = 0; i < sizeof o->reserved / sizeof *o->reserved; i++)
        if (o->reserved[i] != 0)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "reserved", i,
                "optimizer: reserved[%zu] is %u, but this library knows no such parameter", i,
                o->reserved[i]);
    if (hotbed_optimizer_describe(o->kind) == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "kind", o->kind, "optimizer: unknown kind %d", (int)o->kind);
    for (uint32_t p = 0; p < PARAMETERS; p++)
        HOTBED_TRY(check_parameter(&parameters[p], hotbed_optimizer_value(o, &parameters[p])));
    HOTBED_TRY(check_unused(o));
    return hotbed_optimizer_check_rate(o->kind, o->learning_rate);
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
        .form = hotbed_state_form_of((uint32_t)optimizer->kind),
        .beta1 = optimizer->beta1,
        .beta2 = optimizer->beta2,
        .eps = optimizer->eps,
        .weight_decay = optimizer->weight_decay,
        .max_gradient = optimizer->max_gradient,
        .l2_decay = optimizer->l2_decay,
        .momentum = optimizer->momentum,
        .rho = optimizer->rho,
        .trust = optimizer->trust,
        .learning_rate_power = optimizer->learning_rate_power,
        .ftrl_beta = optimizer->ftrl_beta,
        .l1_reg = optimizer->l1_reg,
        .l2_reg = optimizer->l2_reg,
    };
    return view;
}
