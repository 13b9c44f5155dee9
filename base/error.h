/* base/error.h - how a function fails: hotbed_fail() where the error is found, HOTBED_TRY() in its
 * callers. */
#ifndef HOTBED_BASE_ERROR_H
#define HOTBED_BASE_ERROR_H

#include "hotbed/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Keep the text for hotbed_last_error(), and return `status`. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 2, 3)))
#endif
hotbed_status
hotbed_fail(hotbed_status status, const char *format, ...);

/* How many errors this thread has kept so far. */
uint64_t hotbed_error_count(void);

/* Return `status`, which a function of the caller returned. If it failed and kept no text, so that
 * the text would be of an older error, keep one that names the function. `before` is
 * hotbed_error_count() before the call. */
hotbed_status hotbed_callback_status(hotbed_status status, uint64_t before, const char *name);

/* Write the system's text for the errno value `error` ("No space left on device") to `text`, and
 * return `text`. Thread-safe. Every message about a failed system call contains this text, never
 * the bare number. */
enum { HOTBED_REASON_BYTES = 128 };
const char *hotbed_reason(int error, char text[HOTBED_REASON_BYTES]);

/* The static analyzer sees one file at a time: tell it that hotbed_fail() returns the status that
 * it receives. */
#if defined(__clang_analyzer__)
#define hotbed_fail(status, ...) ((void)hotbed_fail((status), __VA_ARGS__), (status))
#endif

/* Return from the calling function if `call` fails. Use it only where the function holds nothing
 * that must be released. */
#define HOTBED_TRY(call)                                                                           \
    do {                                                                                           \
        hotbed_status hotbed_try_status = (call);                                                  \
        if (hotbed_try_status != HOTBED_OK)                                                        \
            return hotbed_try_status;                                                              \
    } while (0)

/* The same for the call of a caller's function. */
#define HOTBED_TRY_CALLBACK(name, call)                                                            \
    do {                                                                                           \
        const uint64_t hotbed_errors_before = hotbed_error_count();                                \
        HOTBED_TRY(hotbed_callback_status((call), hotbed_errors_before, name));                    \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
