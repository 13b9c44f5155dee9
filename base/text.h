/* base/text.h - text that is the same in every locale, names without control characters, keys.
 *
 * A program that calls setlocale changes how the C library writes and reads numbers in the whole
 * process: with a decimal comma, "%g" is 0,5. The library writes and reads numbers that have a
 * fraction with these functions only. */
#pragma once

#include "hotbed/types.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

HOTBED_BEGIN_DECLS

/* The C library's snprintf, vsnprintf and strtod, with a decimal point. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 3, 4)))
#endif
int hotbed_format(char *text, size_t capacity, const char *format, ...);
int hotbed_vformat(char *text, size_t capacity, const char *format, va_list args);
double hotbed_parse_number(const char *text, char **end);

/* A text to which parts are appended. It is cut to fit; `length` is the length of the whole text. */
typedef struct hotbed_writer {
    char *text; /* NULL with a capacity of 0: only count */
    size_t capacity, length;
} hotbed_writer;

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 2, 3)))
#endif
void hotbed_write(hotbed_writer *w, const char *format, ...);
void hotbed_vwrite(hotbed_writer *w, const char *format, va_list args);

/* The name with this number in an array of names; `other`: it has none. */
const char *hotbed_name(const char *const *names, size_t n, size_t number, const char *other);
#define HOTBED_NAME(names, number, other)                                                          \
    hotbed_name((names), sizeof(names) / sizeof *(names), (size_t)(number), (other))

/* Replace each control character, which could move a terminal's cursor or forge a line of a log, by
 * \xNN, in place. The text is cut to fit into `capacity` bytes. UTF-8 stays as it is. */
void hotbed_escape(char *text, size_t capacity);

/* A key as its caller wrote it. If the type is 0, it is not known: a key from 2^63 on, which may have been
 * meant as a negative one, is written both ways. */
typedef struct hotbed_key_digits {
    char text[56];
} hotbed_key_digits;
hotbed_key_digits hotbed_key_text(uint64_t key, hotbed_key_type type);

HOTBED_END_DECLS
