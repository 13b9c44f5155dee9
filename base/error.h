/* base/error.h - how a function fails: hotbed_fail() where the fault is found, HOTBED_TRY() above. */
#ifndef HOTBED_BASE_ERROR_H
#define HOTBED_BASE_ERROR_H

#include "hotbed/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keep the text for hotbed_last_error(), and return `status`. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 2, 3)))
#endif
hotbed_status
hotbed_fail(hotbed_status status, const char *format, ...);

/* The static analyser sees one file at a time: say that hotbed_fail() returns the status it is given. */
#if defined(__clang_analyzer__)
#define hotbed_fail(status, ...) ((void)hotbed_fail((status), __VA_ARGS__), (status))
#endif

/* Return from the calling function when `call` fails; use only where nothing is held. */
#define HOTBED_TRY(call)                                                                           \
    do {                                                                                           \
        hotbed_status hotbed_try_status = (call);                                                  \
        if (hotbed_try_status != HOTBED_OK)                                                        \
            return hotbed_try_status;                                                              \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
