/* base/error.c - names of statuses, the thread's last error with its fields, the system's error texts,
 * the version. */
#define _POSIX_C_SOURCE 200809L /* strerror_r() */
#include "base/error.h"
#include "base/text.h"
#include "hotbed/version.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local hotbed_error last = {.fields = {.size = sizeof last.fields}};
static _Thread_local uint64_t error_count;

const char *hotbed_status_name(hotbed_status status) {
    static const char *const names[] = {"OK",          "ARGUMENT", "MEMORY", "FULL",
                                        "UNSUPPORTED", "DEVICE",   "COMM",   "IO",
                                        "CORRUPT",     "RANGE",    "STATE"};
    return HOTBED_NAME(names, status, "UNKNOWN");
}

const char *hotbed_last_error(void) {
    return last.text;
}

const hotbed_error_detail *hotbed_last_error_detail(void) {
    return &last.fields;
}

static hotbed_status fail(
    const hotbed_error_detail *fields, hotbed_status status, const char *format, va_list args) {
    /* Format into a separate buffer: an argument may be the last error itself. */
    char text[HOTBED_ERROR_BYTES];
    int length = hotbed_vformat(text, sizeof text, format, args);
    size_t bytes = length < 0 ? 0 : (size_t)length;
    if (bytes >= sizeof text)
        bytes = sizeof text - 1;
    memcpy(last.text, text, bytes);
    last.text[bytes] = '\0';
    hotbed_escape(last.text, sizeof last.text); /* texts have names that came from outside */
    const hotbed_error_detail none = {.size = sizeof none};
    const hotbed_error_detail kept = fields == NULL ? none : *fields;
    last.fields = kept;
    last.fields.status = status;
    error_count++;
    return status;
}

hotbed_status(hotbed_fail)(hotbed_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)fail(NULL, status, format, args);
    va_end(args);
    return status;
}

hotbed_status(hotbed_fail_again)(
    const hotbed_error_detail *fields, hotbed_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)fail(fields, status, format, args);
    va_end(args);
    return status;
}

/* --- fields --------------------------------------------------------------------------------- */

/* Whether a field of the last error is to be set. */
static bool adds(hotbed_status failed, hotbed_error_has field) {
    if (failed == HOTBED_OK || (last.fields.has & (uint32_t)field) != 0)
        return false;
    last.fields.has |= (uint32_t)field;
    return true;
}

static void put_name(hotbed_status failed, const char *name, char *to, size_t capacity) {
    if (failed == HOTBED_OK || name == NULL || to[0] != '\0')
        return;
    (void)snprintf(to, capacity, "%s", name);
    hotbed_escape(to, capacity);
}

hotbed_status(hotbed_error_cause_is)(hotbed_status failed, hotbed_error_cause cause) {
    if (failed != HOTBED_OK)
        last.fields.cause = cause;
    return failed;
}

hotbed_status(hotbed_error_table)(hotbed_status failed, const char *table) {
    put_name(failed, table, last.fields.table, sizeof last.fields.table);
    return failed;
}

hotbed_status(hotbed_error_table_number)(hotbed_status failed, uint32_t number) {
    if (adds(failed, HOTBED_HAS_TABLE_NUMBER))
        last.fields.table_number = number;
    return failed;
}

hotbed_status(hotbed_error_key)(hotbed_status failed, uint64_t key, uint32_t key_type) {
    if (adds(failed, HOTBED_HAS_KEY)) {
        last.fields.key = key;
        last.fields.key_type = key_type;
    }
    return failed;
}

hotbed_status(hotbed_error_feature)(hotbed_status failed, uint32_t feature) {
    if (adds(failed, HOTBED_HAS_FEATURE))
        last.fields.feature = feature;
    return failed;
}

hotbed_status(hotbed_error_sample)(hotbed_status failed, uint32_t sample) {
    if (adds(failed, HOTBED_HAS_SAMPLE))
        last.fields.sample = sample;
    return failed;
}

hotbed_status(hotbed_error_rank)(hotbed_status failed, int64_t rank) {
    if (rank >= 0 && adds(failed, HOTBED_HAS_RANK))
        last.fields.rank = (int32_t)rank;
    return failed;
}

hotbed_status(hotbed_error_os)(hotbed_status failed, int error) {
    if (failed != HOTBED_OK && last.fields.os_error == 0)
        last.fields.os_error = error;
    return failed;
}

hotbed_status(hotbed_error_parameter)(hotbed_status failed, const char *parameter) {
    put_name(failed, parameter, last.fields.parameter, sizeof last.fields.parameter);
    return failed;
}

hotbed_status(hotbed_error_path)(hotbed_status failed, const char *path) {
    /* The beginning of a path would be the path of something else. */
    if (failed != HOTBED_OK && path != NULL && last.fields.path[0] == '\0' &&
        strlen(path) < sizeof last.fields.path)
        memcpy(last.fields.path, path, strlen(path) + 1);
    return failed;
}

hotbed_status(hotbed_error_value)(hotbed_status failed, const char *parameter, double value) {
    (void)hotbed_error_parameter(failed, parameter);
    if (adds(failed, HOTBED_HAS_VALUE))
        last.fields.value = value;
    return failed;
}

hotbed_status(hotbed_error_limit)(hotbed_status failed, double limit) {
    if (adds(failed, HOTBED_HAS_LIMIT))
        last.fields.limit = limit;
    return failed;
}

hotbed_status(hotbed_fail_null_of)(const char *function, const char *parameter) {
    (void)hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s%s%s is NULL", function == NULL ? "" : function,
        function == NULL ? "" : ": ", parameter);
    return hotbed_error_parameter(HOTBED_ERR_ARGUMENT, parameter);
}

hotbed_status(hotbed_fail_null)(const char *parameter) {
    return hotbed_fail_null_of(NULL, parameter);
}

void hotbed_error_copy(hotbed_error *to) {
    *to = last;
}

hotbed_status(hotbed_error_return)(const hotbed_error *error, hotbed_status status) {
    return hotbed_fail_again(&error->fields, status, "%s", error->text);
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

hotbed_status(hotbed_fail_os)(hotbed_status status, int error, const char *format, ...) {
    char text[HOTBED_ERROR_BYTES], reason[HOTBED_REASON_BYTES];
    va_list args;
    va_start(args, format);
    (void)hotbed_vformat(text, sizeof text, format, args);
    va_end(args);
    return hotbed_error_os(
        hotbed_fail(status, "%s: %s", text, hotbed_reason(error, reason)), error);
}

const char *hotbed_version(void) {
    return HOTBED_VERSION;
}
