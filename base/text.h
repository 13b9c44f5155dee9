/* base/text.h - text that is the same in every locale, and names without control characters.
 *
 * A program that calls setlocale changes how the C library writes and reads numbers in the whole
 * process: with a decimal comma, "%g" is 0,5. The library writes and reads numbers that have a
 * fraction with these functions only. */
#ifndef HOTBED_BASE_TEXT_H
#define HOTBED_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The C library's snprintf, vsnprintf and strtod, with a decimal point. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 3, 4)))
#endif
int hotbed_format(char *text, size_t capacity, const char *format, ...);
int hotbed_vformat(char *text, size_t capacity, const char *format, va_list args);
double hotbed_parse_number(const char *text, char **end);

/* Replace each control character, which could move a terminal's cursor or forge a line of a log, by
 * \xNN, in place. The text is cut to fit into `capacity` bytes. UTF-8 stays as it is. */
void hotbed_escape(char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
