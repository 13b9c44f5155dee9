/* examples/train/criteo.c - one line of a Criteo click log: a label and 39 keys. */
#include "examples/train/criteo.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *hotbed_criteo_field_name(uint32_t field) {
    static const char names[HOTBED_CRITEO_FIELDS][4] = {
        "i01", "i02", "i03", "i04", "i05", "i06", "i07", "i08", "i09", "i10", "i11", "i12", "i13",
        "c01", "c02", "c03", "c04", "c05", "c06", "c07", "c08", "c09", "c10", "c11", "c12", "c13",
        "c14", "c15", "c16", "c17", "c18", "c19", "c20", "c21", "c22", "c23", "c24", "c25", "c26"};
    return names[field];
}

/* Without branches, since a processor cannot predict whether a number is below 8. */
static int64_t bucket_of(uint64_t size, bool negative) {
    unsigned top = 63U - (unsigned)__builtin_clzll(size | 4);
    uint64_t logarithmic = (uint64_t)(top - 1) * 4 + ((size >> (top - 2)) & 3U);
    int64_t bucket = (int64_t)(size < 8 ? size : logarithmic);
    return negative ? -bucket : bucket;
}

int64_t hotbed_criteo_bucket(int64_t value) {
    return bucket_of(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, value < 0);
}

static bool fail(hotbed_criteo_fault *fault, uint32_t column, const char *format, ...) {
    va_list arguments;
    fault->column = column;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
    return false;
}

/* Copy a field's text for a message: at most 24 characters, with '?' for unprintable ones. */
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
        if (stop == end && column < HOTBED_CRITEO_COLUMNS)
            return fail(fault, column + 1, "it is missing: the line has %u of 40 fields", column);
        if (stop < end && column == HOTBED_CRITEO_COLUMNS)
            return fail(fault, 0, "the line has more than 40 fields");
        p = stop + 1;
    }
    return true;
}

/* --- the usual form, eight bytes at a time ------------------------------------------------------------
 *
 * A word holds eight characters, the first one in its lowest byte.  A test of all bytes at once leaves each answer
 * in the byte's top bit.  Additions do not carry from byte to byte as long as all bytes are below 0x80. */

#define EVERY(byte) ((uint64_t)0x0101010101010101 * (byte))
static const uint64_t top_bits = EVERY(0x80);

static uint64_t load_word(const char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The top bit of each byte that is in [first, last]. The answer for a byte of 0x80 or more is
 * undefined. */
static uint64_t bytes_between(uint64_t word, unsigned first, unsigned last) {
    return (word + EVERY(0x80 - first)) & ~(word + EVERY(0x80 - (last + 1)));
}

/* Parse eight hex digits. False if a character is not a hex digit. */
static bool scan_hex(const char *p, int64_t *key) {
    uint64_t word = load_word(p);
    uint64_t letters = bytes_between(word | EVERY(0x20), 'a', 'f') & top_bits;
    uint64_t digits = bytes_between(word, '0', '9') & top_bits;
    if (((letters | digits) & ~word) != top_bits)
        return false;
    uint64_t bits = (word & EVERY(0x0f)) + (letters >> 7) * 9; /* 'a' is 0x61: 1 + 9 */
    bits = (bits << 4 | bits >> 8) & 0x00ff00ff00ff00ffU;
    bits = (bits << 8 | bits >> 16) & 0x0000ffff0000ffffU;
    bits = (bits << 16 | bits >> 32) & 0xffffffffU;
    *key = (int64_t)bits;
    return true;
}

/* Parse the key of an integer of at most 23 characters. Returns the byte after its tab, or NULL. */
static const char *scan_long_integer(const char *p, int64_t *key) {
    const char *tab = memchr(p, '\t', 24);
    if (tab == NULL || !parse_integer(p, tab, key))
        return NULL;
    *key = hotbed_criteo_bucket(*key);
    return tab + 1;
}

/* Parse the key of any integer. Returns the byte after its tab, or NULL. */
static const char *scan_integer(const char *p, int64_t *key) {
    uint64_t word = load_word(p);
    uint64_t other = word ^ EVERY('\t');
    uint64_t tabs = (other - EVERY(1)) & ~other & top_bits; /* the lowest bit marks the first tab */
    if (tabs == 0)
        return scan_long_integer(p, key);
    unsigned length = (unsigned)__builtin_ctzll(tabs) / 8;
    if (length == 0) {
        *key = HOTBED_CRITEO_MISSING;
        return p + 1;
    }
    bool negative = *p == '-';
    if (length == negative)
        return NULL;
    /* Move the digits to the top of the word, and set the sign and the bytes below them to zero. */
    uint64_t digits = word ^ EVERY('0') ^ (negative ? '-' ^ '0' : 0);
    digits <<= 64 - 8 * length;
    if (((digits | (digits + EVERY(0x80 - 10))) & top_bits) != 0)
        return NULL;
    digits = digits * 10 + (digits >> 8); /* pairs in bytes 0, 2, 4, 6 */
    uint64_t size = (digits & 0x000000ff000000ffU) * (100 + ((uint64_t)1000000 << 32)) +
                    (digits >> 16 & 0x000000ff000000ffU) * (1 + ((uint64_t)10000 << 32));
    *key = bucket_of(size >> 32, negative);
    return p + length + 1;
}

const char *hotbed_criteo_scan(const char *line, int64_t *keys, size_t stride, float *label) {
    const char *p = line;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || (*p != '0' && *p != '1') || p[1] != '\t')
        return NULL;
    *label = *p == '1' ? 1.0F : 0.0F;
    p += 2;
    for (uint32_t field = 0; field < HOTBED_CRITEO_INTEGERS; field++, keys += stride) {
        p = scan_integer(p, keys);
        if (p == NULL)
            return NULL;
    }
    for (uint32_t field = 1; field < HOTBED_CRITEO_CATEGORIES; field++, keys += stride) {
        if (*p == '\t') {
            *keys = HOTBED_CRITEO_MISSING;
            p++;
        } else if (scan_hex(p, keys) && p[8] == '\t') {
            p += 9;
        } else {
            return NULL;
        }
    }
    if (*p == '\n' || *p == '\r')
        *keys = HOTBED_CRITEO_MISSING;
    else if (scan_hex(p, keys))
        p += 8;
    else
        return NULL;
    p += *p == '\r';
    return *p == '\n' ? p + 1 : NULL;
}
