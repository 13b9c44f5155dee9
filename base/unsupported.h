/* base/unsupported.h - calls that a build lacks.
 *
 * A file of such calls has a function unsupported(), which fails with UNSUPPORTED and the reason. */
#pragma once

#include "base/error.h"

/* Define a call that only fails, and one that also sets *out to NULL. */
#define HOTBED_UNSUPPORTED(call, ...)                                                              \
    hotbed_status call(__VA_ARGS__) {                                                              \
        return unsupported();                                                                      \
    }
#define HOTBED_UNSUPPORTED_OUT(call, ...)                                                          \
    hotbed_status call(__VA_ARGS__) {                                                              \
        if (out != NULL)                                                                           \
            *out = NULL;                                                                           \
        return unsupported();                                                                      \
    }

/* Define a call that does nothing, and one that returns a value. */
#define HOTBED_UNSUPPORTED_VOID(call, ...)                                                         \
    void call(__VA_ARGS__) {                                                                       \
    }
#define HOTBED_UNSUPPORTED_VALUE(type, value, call, ...)                                           \
    type call(__VA_ARGS__) {                                                                       \
        return value;                                                                              \
    }
