/* serve/encode.h - rows as they are published, and back to F32. */
#pragma once

#include "hotbed/types.h"
#include "serve/format.h"

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
 * not have a value, as hotbed_weights_fit(). *value is the value then. */
bool hotbed_row_encode(
    hotbed_encoding encoding, uint32_t dim, hotbed_dtype dtype, const void *row, unsigned char *out,
    float *value);

/* The states of a row, as a table stores them. */
typedef struct hotbed_row_states {
    const void *of[2];
    hotbed_dtype dtypes[2];
} hotbed_row_states;

/* Write a row of a table as it is in a file, of hotbed_cut_row_bytes(). `stored` is its embedding of the
 * table's dtype, and `states` the states that rows of the cut have; NULL if they have none. Errors: ARGUMENT (a
 * value that the encoding does not have), with the table, the key and the value. */
hotbed_status hotbed_cut_row_encode(
    const hotbed_cut_table *table, uint64_t key, hotbed_dtype dtype, const void *stored,
    const hotbed_row_states *states, unsigned char *out);

/* Decode a row. */
void hotbed_row_decode(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float *out);

/* Write an INT8 row as tables of this type store it: the same numbers, which a rounded copy would not have. */
void hotbed_row_stored_int8(uint32_t dim, const unsigned char *row, unsigned char *out);

/* Add a row, times `weight`, to a sum. */
void hotbed_row_add(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float weight, float *sum);

/* Add a row to a sum. */
void hotbed_row_add_plain(
    hotbed_encoding encoding, uint32_t dim, const unsigned char *row, float *sum);
