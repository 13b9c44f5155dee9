/* base/error.c - names of statuses, the thread's last error text, the version. */
#include "base/error.h"
#include "hotbed/version.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char last_error[TEXT_BYTES];

const char *hotbed_status_name(hotbed_status status) {
    switch (status) {
    case HOTBED_OK:
        return "OK";
    case HOTBED_ERR_ARGUMENT:
        return "ARGUMENT";
    case HOTBED_ERR_MEMORY:
        return "MEMORY";
    case HOTBED_ERR_FULL:
        return "FULL";
    case HOTBED_ERR_UNSUPPORTED:
        return "UNSUPPORTED";
    case HOTBED_ERR_DEVICE:
        return "DEVICE";
    case HOTBED_ERR_COMM:
        return "COMM";
    case HOTBED_ERR_IO:
        return "IO";
    case HOTBED_ERR_CORRUPT:
        return "CORRUPT";
    case HOTBED_ERR_RANGE:
        return "RANGE";
    case HOTBED_ERR_STATE:
        return "STATE";
    }
    return "UNKNOWN";
}

const char *hotbed_last_error(void) {
    return last_error;
}

hotbed_status(hotbed_fail)(hotbed_status status, const char *format, ...) {
    /* Formatted apart first: an argument may be the last error itself. */
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t bytes = length < 0 ? 0 : (size_t)length;
    if (bytes >= sizeof text)
        bytes = sizeof text - 1;
    memcpy(last_error, text, bytes);
    last_error[bytes] = '\0';
    return status;
}

const char *hotbed_version(void) {
    return HOTBED_VERSION;
}
