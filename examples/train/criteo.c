/* examples/train/criteo.c - one line of a Criteo click log: a label and 39 keys. */
#include "examples/train/criteo.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

const char *hotbed_criteo_field_name(uint32_t field) {
    static const char names[HOTBED_CRITEO_FIELDS][4] = {
        "i01", "i02", "i03", "i04", "i05", "i06", "i07", "i08", "i09", "i10", "i11", "i12", "i13",
        "c01", "c02", "c03", "c04", "c05", "c06", "c07", "c08", "c09", "c10", "c11", "c12", "c13",
        "c14", "c15", "c16", "c17", "c18", "c19", "c20", "c21", "c22", "c23", "c24", "c25", "c26"};
    return names[field];
}

int64_t hotbed_criteo_bucket(int64_t value) {
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t bucket = size;
    if (size >= 8) {
        unsigned top = 63U - (unsigned)__builtin_clzll(size);
        bucket = (uint64_t)(top - 1) * 4 + ((size >> (top - 2)) & 3U);
    }
    return value < 0 ? -(int64_t)bucket : (int64_t)bucket;
}

static bool fail(hotbed_criteo_fault *fault, uint32_t column, const char *format, ...) {
    va_list arguments;
    fault->column = column;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
    return false;
}

/* Text of a field for a message: cut to 24 characters, unprintable ones as '?'. */
typedef struct shown {
    char text[28];
} shown;

static shown show(const char *p, const char *end) {
    shown s = {{0}};
    size_t length = (size_t)(end - p);
    size_t n = length < 24 ? length : 24;
    for (size_t i = 0; i < n; i++)
        s.text[i] = (char)(isprint((unsigned char)p[i]) ? p[i] : '?');
    if (n < length)
        snprintf(s.text + n, sizeof s.text - n, "...");
    return s;
}

static bool parse_integer(const char *p, const char *end, int64_t *value) {
    bool negative = *p == '-';
    p += negative;
    if (p == end)
        return false;
    uint64_t size = 0;
    for (; p < end; p++) {
        unsigned digit = (unsigned)(unsigned char)*p - '0';
        if (digit > 9 || size > (UINT64_MAX - digit) / 10)
            return false;
        size = size * 10 + digit;
    }
    if (size > (uint64_t)INT64_MAX + negative)
        return false;
    *value = (int64_t)(negative ? 0 - size : size);
    return true;
}

static bool parse_hex(const char *p, const char *end, int64_t *value) {
    if (end - p != 8)
        return false;
    uint32_t bits = 0;
    for (; p < end; p++) {
        unsigned c = (unsigned char)*p;
        unsigned digit = c - '0';
        if (digit > 9) {
            digit = (c | 0x20U) - 'a';
            if (digit > 5)
                return false;
            digit += 10;
        }
        bits = bits << 4 | digit;
    }
    *value = (int64_t)bits;
    return true;
}

bool hotbed_criteo_parse(
    const char *line, size_t length, int64_t *keys, size_t stride, float *label,
    hotbed_criteo_fault *fault) {
    const char *p = line;
    const char *end = line + length;
    if (p < end && end[-1] == '\r')
        end--;
    for (uint32_t column = 1; column <= HOTBED_CRITEO_COLUMNS; column++) {
        const char *stop = p;
        while (stop < end && *stop != '\t')
            stop++;
        if (stop == end && column < HOTBED_CRITEO_COLUMNS)
            return fail(fault, column, "the line ends here, after %u of 40 fields", column);
        if (stop < end && column == HOTBED_CRITEO_COLUMNS)
            return fail(fault, column + 1, "the line has more than 40 fields");
        if (column == 1) {
            if (stop - p != 1 || (*p != '0' && *p != '1'))
                return fail(fault, column, "label '%s' is not 0 or 1", show(p, stop).text);
            *label = *p == '1' ? 1.0F : 0.0F;
        } else {
            uint32_t field = column - 2;
            int64_t key = HOTBED_CRITEO_MISSING;
            if (p < stop && field < HOTBED_CRITEO_INTEGERS) {
                if (!parse_integer(p, stop, &key))
                    return fail(fault, column, "'%s' is not a 64-bit integer", show(p, stop).text);
                key = hotbed_criteo_bucket(key);
            } else if (p < stop && !parse_hex(p, stop, &key)) {
                return fail(fault, column, "'%s' is not 8 hex digits", show(p, stop).text);
            }
            keys[field * stride] = key;
        }
        p = stop + 1;
    }
    return true;
}
