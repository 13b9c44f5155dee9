/* examples/train/criteo.h - one line of a Criteo click log: a label and 39 keys.
 *
 * A line consists of a label (0 or 1), 13 integers, and 26 categories of 8 hex digits, separated by
 * tabs. An integer or a category may be empty. Fields are numbered as in the file: 0 .. 12 are the
 * integers, 13 .. 38 the categories. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOTBED_CRITEO_INTEGERS = 13,
    HOTBED_CRITEO_CATEGORIES = 26,
    HOTBED_CRITEO_FIELDS = 39,
    HOTBED_CRITEO_COLUMNS = 40,
    HOTBED_CRITEO_BUCKETS = 512 /* larger than the number of keys of an integer field */
};

/* Key of an empty field, which no category and no bucket has. */
#define HOTBED_CRITEO_MISSING ((int64_t)1 << 32)

/* "i01" .. "i13", "c01" .. "c26". */
const char *hotbed_criteo_field_name(uint32_t field);

/* The bucket of an integer: 0 .. 7 for themselves, then four buckets for each power of two. A
 * negative number has minus the bucket of its magnitude. */
int64_t hotbed_criteo_bucket(int64_t value);

/* Where a line is malformed, and why. */
typedef struct hotbed_criteo_fault {
    uint32_t column; /* 1 .. 40; 0: the whole line */
    char text[96];
} hotbed_criteo_fault;

/* Number of bytes that hotbed_criteo_scan() may read after a newline. */
enum { HOTBED_CRITEO_PADDING = 32 };

/* Parse a line in the usual form.  Four times as fast as hotbed_criteo_parse(), with the same result.
 *
 *   line    in   text that contains a newline and HOTBED_CRITEO_PADDING readable bytes after it
 *   keys    out  key of field f at keys[f * stride]
 *
 * Returns the byte after the line's newline.  Returns NULL for a line that is malformed or in
 * an unusual form, and for every line on a big-endian machine: hotbed_criteo_parse() then decides, and
 * keys and label are undefined. */
const char *hotbed_criteo_scan(const char *line, int64_t *keys, size_t stride, float *label);

/* Parse a line without its newline.  A carriage return at its end is ignored.
 *
 *   keys   out  key of field f at keys[f * stride]
 *   fault  out  set if the result is false; keys and label are then undefined */
bool hotbed_criteo_parse(
    const char *line, size_t length, int64_t *keys, size_t stride, float *label,
    hotbed_criteo_fault *fault);
