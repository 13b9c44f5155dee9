/* examples/train/criteo.h - one line of a Criteo click log: a label and 39 keys.
 *
 * A line is: label (0 or 1), 13 integers, 26 categories of 8 hex digits, separated by tabs; an integer or
 * a category may be empty.  Fields are numbered as in the file: 0 .. 12 integers, 13 .. 38 categories.
 */
#ifndef HOTBED_EXAMPLES_CRITEO_H
#define HOTBED_EXAMPLES_CRITEO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOTBED_CRITEO_INTEGERS = 13,
    HOTBED_CRITEO_CATEGORIES = 26,
    HOTBED_CRITEO_FIELDS = 39,
    HOTBED_CRITEO_COLUMNS = 40,
    HOTBED_CRITEO_BUCKETS = 512 /* more than an integer field has keys */
};

/* Key of an empty field: no category and no bucket has it. */
#define HOTBED_CRITEO_MISSING ((int64_t)1 << 32)

/* "i01" .. "i13", "c01" .. "c26". */
const char *hotbed_criteo_field_name(uint32_t field);

/* The bucket of an integer: 0 .. 7 as they are, then four buckets for each power of two; a negative
 * number has minus the bucket of its magnitude. */
int64_t hotbed_criteo_bucket(int64_t value);

/* Where and why a line is bad. */
typedef struct hotbed_criteo_fault {
    uint32_t column; /* 1 .. 40 */
    char text[96];
} hotbed_criteo_fault;

/* Parse a line without its newline; a carriage return at its end is ignored.
 *
 *   keys   out  key of field f at keys[f * stride]
 *   fault  out  set when the result is false; keys and label are then undefined */
bool hotbed_criteo_parse(
    const char *line, size_t length, int64_t *keys, size_t stride, float *label,
    hotbed_criteo_fault *fault);

#endif
