/* base/error.c - names of statuses, the thread's last error text, the system's error texts, the
 * version. */
#define _POSIX_C_SOURCE 200809L /* strerror_r() */
#include "base/error.h"
#include "base/text.h"
#include "hotbed/version.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char last_error[TEXT_BYTES];
static _Thread_local uint64_t error_count;

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
    /* Format into a separate buffer: an argument may be the last error itself. */
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int length = hotbed_vformat(text, sizeof text, format, args);
    va_end(args);
    size_t bytes = length < 0 ? 0 : (size_t)length;
    if (bytes >= sizeof text)
        bytes = sizeof text - 1;
    memcpy(last_error, text, bytes);
    last_error[bytes] = '\0';
    hotbed_escape(last_error, sizeof last_error); /* texts have names that came from outside */
    error_count++;
    return status;
}

hotbed_status hotbed_error_set(hotbed_status status, const char *text) {
    return hotbed_fail(status, "%s", text == NULL ? "" : text);
}

uint64_t hotbed_error_count(void) {
    return error_count;
}

hotbed_status hotbed_callback_status(hotbed_status status, uint64_t before, const char *name) {
    if (status == HOTBED_OK || error_count != before)
        return status;
    return hotbed_fail(status, "%s returned %s", name, hotbed_status_name(status));
}

/* strerror_r() returns an int (POSIX) or the text (GNU), depending on the C library and its feature macros. */
static const char *posix_text(int failed, const char *buffer) {
    return failed == 0 ? buffer : NULL;
}

static const char *gnu_text(const char *text, const char *buffer) {
    (void)buffer;
    return text;
}

#define REASON_TEXT(result, buffer)                                                                \
    _Generic((result), int : posix_text, char * : gnu_text)((result), (buffer))

const char *hotbed_reason(int error, char text[HOTBED_REASON_BYTES]) {
    char buffer[HOTBED_REASON_BYTES] = "";
    const char *words = REASON_TEXT(strerror_r(error, buffer, sizeof buffer), buffer);
    if (words == NULL || words[0] == '\0')
        snprintf(text, HOTBED_REASON_BYTES, "unknown system error %d", error);
    else
        snprintf(text, HOTBED_REASON_BYTES, "%s", words);
    return text;
}

const char *hotbed_version(void) {
    return HOTBED_VERSION;
}
