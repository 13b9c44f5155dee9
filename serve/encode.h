/* serve/encode.h - rows as they are published, and back to F32. */
#ifndef HOTBED_SERVE_ENCODE_H
#define HOTBED_SERVE_ENCODE_H

#include "hotbed/publish.h"
#include "hotbed/types.h"

/* The encoding of a table's rows that has all their values. */
static inline hotbed_encoding hotbed_encoding_of(hotbed_dtype dtype) {
    switch (dtype) {
    case HOTBED_F32:
        return HOTBED_ENCODING_F32;
    case HOTBED_F16:
        return HOTBED_ENCODING_F16;
    case HOTBED_BF16:
    case HOTBED_FP8: /* 4 binary digits times a power of two */
        return HOTBED_ENCODING_BF16;
    case HOTBED_INT8:
        return HOTBED_ENCODING_INT8;
    }
    return HOTBED_ENCODING_TABLE; /* not reached */
}

/* Encode a row of `dim` elements; `out` has hotbed_encoded_bytes(). Returns false if the encoding does
 * not have a value: F16 is finite up to 65504; INT8 has no NaN and no infinity, either. *value is the
 * value then. */
bool hotbed_row_encode(
    hotbed_encoding encoding, uint32_t dim, hotbed_dtype dtype, const void *row, unsigned char *out,
    float *value);

/* The same, or fail with ARGUMENT, the table, the key and the value. */
hotbed_status hotbed_row_encode_of(
    const char *table, uint64_t key, hotbed_encoding encoding, uint32_t dim, hotbed_dtype dtype,
    const void *stored, unsigned char *out);

/* Decode a row. */
void hotbed_row_decode(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float *out);

/* Add a row, times `weight`, to a sum. */
void hotbed_row_add(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float weight, float *sum);

/* Add a row to a sum. */
void hotbed_row_add_plain(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float *sum);

#endif
