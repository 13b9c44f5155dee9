/* serve/encode.c - conversion of rows, element by element. */
#include "serve/encode.h"

#include "base/error.h"
#include "base/float.h"
#include "base/text.h"
#include "storage/types.h"

/* --- to a file -------------------------------------------------------------------------------- */

/* The nearest F16 that is not above `value`, and not below it. */
static uint16_t f16_below(float value) {
    uint16_t half = hotbed_f32_to_f16(value);
    if (hotbed_f16_to_f32(half) <= value)
        return half;
    if ((half & 0x7fffU) == 0)
        return 0x8001U; /* of zero, the next one below is the smallest negative number */
    return (uint16_t)((half & 0x8000U) != 0 ? half + 1U : half - 1U);
}

static uint16_t f16_above(float value) {
    return (uint16_t)(f16_below(-value) ^ 0x8000U);
}

static void put16(unsigned char *to, uint16_t value) {
    memcpy(to, &value, sizeof value);
}

static uint16_t get16(const unsigned char *from) {
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* The offset is at or below the least element, and the last step at or above the greatest one, so that
 * every element lies between two steps. */
static void encode_int8(uint32_t dim, const float *row, unsigned char *out) {
    float least = INFINITY, most = -INFINITY;
    for (uint32_t e = 0; e < dim; e++) {
        const float x = row[e];
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    uint16_t offset = f16_below(least);
    const float from = hotbed_f16_to_f32(offset);
    uint16_t scale = f16_above((most - from) / 255.0F);
    const float step = hotbed_f16_to_f32(scale);
    for (uint32_t e = 0; e < dim; e++) {
        float q = step == 0.0F ? 0.0F : (row[e] - from) / step + 0.5F;
        out[e] = q >= 255.0F ? 255 : (unsigned char)q;
    }
    if (dim % 2 != 0)
        out[dim] = 0;
    put16(out + dim + dim % 2, scale);
    put16(out + dim + dim % 2 + 2, offset);
}

/* The stored row has the same numbers, but no padding. */
static bool copy_int8(uint32_t dim, const unsigned char *row, unsigned char *out, float *value) {
    const float scale = hotbed_f16_to_f32(get16(row + dim));
    const float offset = hotbed_f16_to_f32(get16(row + dim + 2));
    *value = isfinite(scale) ? offset : scale;
    memcpy(out, row, dim);
    out[dim] = 0;
    memcpy(out + dim + dim % 2, row + dim, 2 * sizeof(uint16_t));
    return isfinite(*value);
}

bool hotbed_row_encode(
    hotbed_encoding encoding, uint32_t dim, hotbed_dtype dtype, const void *stored,
    unsigned char *out, float *value) {
    float row[HOTBED_DIM_MOST];
    if (encoding == hotbed_encoding_of(dtype) && dtype != HOTBED_FP8) {
        if (dtype == HOTBED_INT8)
            return copy_int8(dim, stored, out, value);
        memcpy(out, stored, dim * hotbed_dtype_bytes(dtype));
        return true;
    }
    hotbed_weights_read(dtype, dim, stored, row);
    if (!hotbed_weights_fit(
            (hotbed_dtype)encoding, dim, row, value)) /* encodings have the types' numbers */
        return false;
    switch (encoding) {
    case HOTBED_ENCODING_F32:
        memcpy(out, row, dim * sizeof *row);
        return true;
    case HOTBED_ENCODING_F16:
        for (uint32_t e = 0; e < dim; e++)
            put16(out + 2 * (size_t)e, hotbed_f32_to_f16(row[e]));
        return true;
    case HOTBED_ENCODING_BF16:
        for (uint32_t e = 0; e < dim; e++)
            put16(out + 2 * (size_t)e, hotbed_f32_to_bf16(row[e]));
        return true;
    case HOTBED_ENCODING_INT8:
        encode_int8(dim, row, out);
        return true;
    case HOTBED_ENCODING_TABLE:
        break;
    }
    return false;
}

hotbed_status hotbed_cut_row_encode(
    const hotbed_cut_table *table, uint64_t key, hotbed_dtype dtype, const void *stored,
    const hotbed_row_states *states, unsigned char *out) {
    const hotbed_encoding encoding = (hotbed_encoding)table->encoding;
    const uint32_t bytes = hotbed_encoded_bytes(encoding, table->dim);
    uint32_t at = hotbed_cut_states_at(table);
    float value = 0;
    if (!hotbed_row_encode(encoding, table->dim, dtype, stored, out, &value))
        return hotbed_error_key(
            hotbed_fail_table_value(
                HOTBED_ERR_ARGUMENT, table->name, "encoding", value,
                "table '%s', key %s: %s does not have the value %g", table->name,
                hotbed_key_text(key, (hotbed_key_type)table->key_type).text,
                hotbed_encoding_name(encoding), (double)value),
            key, table->key_type);
    if (hotbed_cut_row_bytes(table) > at)
        memset(out + bytes, 0, at - bytes);
    for (uint32_t s = 0; s < 2; s++) {
        const uint32_t n = hotbed_cut_state_dim(table, s);
        if (n > 0 && states->dtypes[s] == HOTBED_F32)
            memcpy(out + at, states->of[s], n * sizeof(float));
        else if (n > 0) /* of no more than dim elements */
            hotbed_weights_read(states->dtypes[s], n, states->of[s], (float *)(void *)(out + at));
        at += n * (uint32_t)sizeof(float);
    }
    return HOTBED_OK;
}

/* --- from a file ------------------------------------------------------------------------------ */

static float int8_scale(uint32_t dim, const unsigned char *row) {
    return hotbed_f16_to_f32(get16(row + dim + dim % 2));
}

static float int8_offset(uint32_t dim, const unsigned char *row) {
    return hotbed_f16_to_f32(get16(row + dim + dim % 2 + 2));
}

/* Run `each` for element e with its value x. One loop for each encoding, so that the compiler can use
 * vectors. */
#define DECODE(each)                                                                               \
    switch (encoding) {                                                                            \
    case HOTBED_ENCODING_F32: {                                                                    \
        const float *from = (const void *)row;                                                     \
        for (uint32_t e = 0; e < dim; e++) {                                                       \
            const float x = from[e];                                                               \
            each;                                                                                  \
        }                                                                                          \
        break;                                                                                     \
    }                                                                                              \
    case HOTBED_ENCODING_F16: {                                                                    \
        const uint16_t *from = (const void *)row;                                                  \
        for (uint32_t e = 0; e < dim; e++) {                                                       \
            const float x = hotbed_f16_to_f32(from[e]);                                            \
            each;                                                                                  \
        }                                                                                          \
        break;                                                                                     \
    }                                                                                              \
    case HOTBED_ENCODING_BF16: {                                                                   \
        const uint16_t *from = (const void *)row;                                                  \
        for (uint32_t e = 0; e < dim; e++) {                                                       \
            const float x = hotbed_bf16_to_f32(from[e]);                                           \
            each;                                                                                  \
        }                                                                                          \
        break;                                                                                     \
    }                                                                                              \
    case HOTBED_ENCODING_INT8: {                                                                   \
        const float scale = int8_scale(dim, row), offset = int8_offset(dim, row);                  \
        for (uint32_t e = 0; e < dim; e++) {                                                       \
            const float x = offset + scale * (float)row[e];                                        \
            each;                                                                                  \
        }                                                                                          \
        break;                                                                                     \
    }                                                                                              \
    case HOTBED_ENCODING_TABLE:                                                                    \
        break;                                                                                     \
    }

void hotbed_row_decode(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *HOTBED_RESTRICT row,
    float *HOTBED_RESTRICT out) {
    DECODE(out[e] = x)
}

void hotbed_row_stored_int8(uint32_t dim, const unsigned char *row, unsigned char *out) {
    memcpy(out, row, dim);
    memcpy(out + dim, row + dim + dim % 2, 2 * sizeof(uint16_t));
}

void hotbed_row_add(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *HOTBED_RESTRICT row, float weight,
    float *HOTBED_RESTRICT sum) {
    DECODE(sum[e] += weight * x)
}

void hotbed_row_add_plain(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *HOTBED_RESTRICT row,
    float *HOTBED_RESTRICT sum) {
    DECODE(sum[e] += x)
}
