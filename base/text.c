/* base/text.c - text that is the same in every locale, and names without control characters. */
#include "base/text.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* uselocale() changes the calling thread only. The C library has the locale "C" in static memory:
 * newlocale() neither fails nor allocates for it. */
static locale_t enter(void) {
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static void leave(locale_t before) {
    (void)uselocale(before);
}

int hotbed_vformat(char *text, size_t capacity, const char *format, va_list args) {
    const locale_t before = enter();
    const int length = vsnprintf(text, capacity, format, args);
    leave(before);
    return length;
}

int hotbed_format(char *text, size_t capacity, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int length = hotbed_vformat(text, capacity, format, args);
    va_end(args);
    return length;
}

void hotbed_vwrite(hotbed_writer *w, const char *format, va_list args) {
    const size_t left = w->length < w->capacity ? w->capacity - w->length : 0;
    const int n = hotbed_vformat(left > 0 ? w->text + w->length : NULL, left, format, args);
    w->length += n > 0 ? (size_t)n : 0;
}

void hotbed_write(hotbed_writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    hotbed_vwrite(w, format, args);
    va_end(args);
}

double hotbed_parse_number(const char *text, char **end) {
    const locale_t before = enter();
    const double value = strtod(text, end);
    leave(before);
    return value;
}

/* The bytes of a control character at `text`: 2 for U+0080 .. U+009F in UTF-8; 0: it is none. */
static size_t control_at(const uint8_t *text) {
    if (text[0] < 0x20 || text[0] == 0x7f)
        return text[0] == '\0' ? 0 : 1;
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0 ? 2 : 0;
}

const char *hotbed_name(const char *const *names, size_t n, size_t number, const char *other) {
    return number < n && names[number] != NULL ? names[number] : other;
}

void hotbed_escape(char *text, size_t capacity) {
    enum { ESCAPE = 4 };
    static const char digits[] = "0123456789abcdef";
    uint8_t *at = (uint8_t *)text;
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        size_t n = control_at(at + i);
        if (n == 0) {
            i++;
            continue;
        }
        const uint8_t byte = at[i + n - 1];
        if (i + ESCAPE >= capacity) { /* no space for the escape */
            text[i] = '\0';
            return;
        }
        size_t rest = length - i - n;
        if (i + ESCAPE + rest >= capacity)
            rest = capacity - i - ESCAPE - 1;
        memmove(at + i + ESCAPE, at + i + n, rest);
        at[i] = '\\', at[i + 1] = 'x';
        at[i + 2] = (uint8_t)digits[byte >> 4], at[i + 3] = (uint8_t)digits[byte & 15];
        i += ESCAPE;
        length = i + rest;
        text[length] = '\0';
    }
}

hotbed_key_digits hotbed_key_text(uint64_t key, hotbed_key_type type) {
    hotbed_key_digits to;
    if (type == HOTBED_KEY_I64)
        (void)snprintf(to.text, sizeof to.text, "%" PRId64, (int64_t)key);
    else if (type == HOTBED_KEY_U64 || key >> 63 == 0)
        (void)snprintf(to.text, sizeof to.text, "%" PRIu64, key);
    else
        (void)snprintf(
            to.text, sizeof to.text, "%" PRIu64 " (as int64 %" PRId64 ")", key, (int64_t)key);
    return to;
}
