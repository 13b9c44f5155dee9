/* checkpoint/format/codec.c - fields of a text: print them, or read and check them. */
#include "checkpoint/format/codec.h"

#include "base/error.h"
#include "base/port.h"
#include "base/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Return the rest of the line for a message, truncated, with control characters as dots. */
static const char *shown(const hotbed_codec *c, char text[33]) {
    size_t n = 0;
    for (const char *p = c->at; p < c->end && *p != '\n' && n < 32; p++)
        text[n++] = *p;
    for (size_t i = 0; i < n; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '.';
    text[n] = '\0';
    return text;
}

void hotbed_codec_expected(hotbed_codec *c, const char *what) {
    char found[33];
    if (c->status == HOTBED_OK)
        c->status = hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, c->name, NULL, c->line, "%s line %u: expected %s, found '%s'",
            c->name, c->line, what, shown(c, found));
}

static void print(hotbed_codec *c, const char *text) {
    size_t n = strlen(text);
    if (c->status != HOTBED_OK)
        return;
    if (!hotbed_reserve(&c->text, c->bytes, n, &c->capacity, 1)) {
        c->status = hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for %s", c->bytes + n, c->name);
        return;
    }
    memcpy(c->text + c->bytes, text, n);
    c->bytes += n;
}

void hotbed_codec_literal(hotbed_codec *c, const char *text) {
    if (c->writing) {
        print(c, text);
        return;
    }
    size_t n = strlen(text);
    if (c->status != HOTBED_OK)
        return;
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) {
        char what[48];
        snprintf(what, sizeof what, text[0] == '\n' ? "the end of the line" : "'%.40s'", text);
        hotbed_codec_expected(c, what);
        return;
    }
    c->at += n;
    for (size_t i = 0; i < n; i++)
        c->line += text[i] == '\n' ? 1 : 0;
}

bool hotbed_codec_optional(hotbed_codec *c, const char *text, bool there) {
    const size_t n = strlen(text);
    if (!c->writing)
        there =
            c->status == HOTBED_OK && (size_t)(c->end - c->at) >= n && memcmp(c->at, text, n) == 0;
    if (there)
        hotbed_codec_literal(c, text);
    return there;
}

void hotbed_codec_number(
    hotbed_codec *c, const char *before, uint64_t *value, uint64_t least, uint64_t most) {
    char text[64];
    hotbed_codec_literal(c, before);
    if (c->writing) {
        snprintf(text, sizeof text, "%" PRIu64, *value);
        print(c, text);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    const char *p = c->at;
    uint64_t read = 0;
    bool fits = true;
    while (p < c->end && *p >= '0' && *p <= '9') {
        uint64_t digit = (uint64_t)(*p - '0');
        fits = fits && (read < UINT64_MAX / 10 || (read == UINT64_MAX / 10 && digit <= 5));
        read = read * 10 + digit;
        p++;
    }
    bool canonical = p > c->at && (*c->at != '0' || p == c->at + 1);
    if (!fits || !canonical || read < least || read > most) {
        snprintf(text, sizeof text, "a number in [%" PRIu64 ", %" PRIu64 "]", least, most);
        hotbed_codec_expected(c, text);
        return;
    }
    c->at = p;
    *value = read;
}

void hotbed_codec_number32(
    hotbed_codec *c, const char *before, uint32_t *value, uint32_t least, uint32_t most) {
    uint64_t wide = *value;
    hotbed_codec_number(c, before, &wide, least, most);
    if (c->status == HOTBED_OK)
        *value = (uint32_t)wide;
}

/* Read exactly `digits` lower-case hexadecimal digits. */
static void hex(hotbed_codec *c, const char *before, uint64_t *value, int digits) {
    hotbed_codec_literal(c, before);
    if (c->writing) {
        char text[24];
        snprintf(text, sizeof text, "%0*" PRIx64, digits, *value);
        print(c, text);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    uint64_t read = 0;
    bool good = c->end - c->at >= digits;
    for (int i = 0; good && i < digits; i++) {
        char d = c->at[i];
        good = (d >= '0' && d <= '9') || (d >= 'a' && d <= 'f');
        read = read << 4 | (uint64_t)(d <= '9' ? d - '0' : d - 'a' + 10);
    }
    if (!good) {
        hotbed_codec_expected(c, "hexadecimal digits");
        return;
    }
    c->at += digits;
    *value = read;
}

void hotbed_codec_digest(hotbed_codec *c, const char *before, hotbed_digest *value) {
    hex(c, before, &value->high, 16);
    hex(c, "", &value->low, 16);
}

void hotbed_codec_float(hotbed_codec *c, const char *before, float *value) {
    uint64_t bits = hotbed_float_bits(*value);
    hex(c, before, &bits, 8);
    *value = hotbed_bits_float((uint32_t)bits);
}

void hotbed_codec_double(hotbed_codec *c, const char *before, double *value) {
    uint64_t bits;
    memcpy(&bits, value, sizeof bits);
    hex(c, before, &bits, 16);
    memcpy(value, &bits, sizeof bits);
}

/* Whether a name in the file may contain this character. */
static bool name_character(char d) {
    return (d >= 'a' && d <= 'z') || (d >= 'A' && d <= 'Z') || (d >= '0' && d <= '9') || d == '_' ||
           d == '.' || d == '-';
}

void hotbed_codec_name(hotbed_codec *c, const char *before, char value[HOTBED_CODEC_NAME_BYTES]) {
    hotbed_codec_literal(c, before);
    if (c->writing) {
        print(c, value);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    size_t n = 0;
    while (n < HOTBED_CODEC_NAME_BYTES && c->at + n < c->end && name_character(c->at[n]))
        n++;
    if (n == 0 || n == HOTBED_CODEC_NAME_BYTES) {
        hotbed_codec_expected(c, "a name of 1 to 63 characters");
        return;
    }
    memcpy(value, c->at, n);
    value[n] = '\0';
    c->at += n;
}

bool hotbed_codec_is_name(const char *text) {
    size_t n = 0;
    while (n < HOTBED_CODEC_NAME_BYTES && name_character(text[n]))
        n++;
    return n > 0 && n < HOTBED_CODEC_NAME_BYTES && text[n] == '\0';
}

uint32_t hotbed_codec_choice(
    hotbed_codec *c, const char *before, uint32_t value, const char *const *words,
    uint32_t num_words) {
    hotbed_codec_literal(c, before);
    if (c->writing) {
        print(c, words[value]);
        return value;
    }
    for (uint32_t i = 0; c->status == HOTBED_OK && i < num_words; i++) {
        size_t n = strlen(words[i]);
        /* Compare whole words: one word may be the beginning of another. */
        if ((size_t)(c->end - c->at) > n && memcmp(c->at, words[i], n) == 0 &&
            !name_character(c->at[n])) {
            c->at += n;
            return i;
        }
    }
    hotbed_codec_expected(c, "a known word");
    return value;
}
