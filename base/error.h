/* base/error.h - how a function fails: hotbed_fail() where the error is found, HOTBED_TRY() in its
 * callers. */
#pragma once

#include "hotbed/status.h"

#include <stdint.h>

HOTBED_BEGIN_DECLS

#if defined(__GNUC__) || defined(__clang__)
#define HOTBED_PRINTF(text, values) __attribute__((format(printf, text, values)))
#else
#define HOTBED_PRINTF(text, values)
#endif

/* Keep the text for hotbed_last_error(), and return `status`. */
HOTBED_PRINTF(2, 3) hotbed_status hotbed_fail(hotbed_status status, const char *format, ...);

/* The same, for a parameter with a wrong value; for one with the bound that the value does not keep; for a bound
 * alone; for a parameter whose value is no number; for an error of a table, of a rank (below 0: unknown), of a file or
 * directory; of a feature; and for two of these, whose arguments follow each other: status, table, parameter, value,
 * limit, text. */
#define hotbed_fail_value(status, parameter, value, ...)                                           \
    hotbed_error_value(hotbed_fail((status), __VA_ARGS__), (parameter), (double)(value))
#define hotbed_fail_limit(status, parameter, value, limit, ...)                                    \
    hotbed_error_limit(                                                                            \
        hotbed_fail_value((status), (parameter), (value), __VA_ARGS__), (double)(limit))
#define hotbed_fail_bound(status, limit, ...)                                                      \
    hotbed_error_limit(hotbed_fail((status), __VA_ARGS__), (double)(limit))
#define hotbed_fail_parameter(status, parameter, ...)                                              \
    hotbed_error_parameter(hotbed_fail((status), __VA_ARGS__), (parameter))
#define hotbed_fail_table(status, table, ...)                                                      \
    hotbed_error_table(hotbed_fail((status), __VA_ARGS__), (table))
#define hotbed_fail_rank(status, rank, ...)                                                        \
    hotbed_error_rank(hotbed_fail((status), __VA_ARGS__), (rank))
#define hotbed_fail_path(status, path, ...)                                                        \
    hotbed_error_path(hotbed_fail((status), __VA_ARGS__), (path))
#define hotbed_fail_feature(status, feature, ...)                                                  \
    hotbed_error_feature(hotbed_fail((status), __VA_ARGS__), (feature))
#define hotbed_fail_table_value(status, table, ...)                                                \
    hotbed_error_table(hotbed_fail_value((status), __VA_ARGS__), (table))
#define hotbed_fail_table_limit(status, table, ...)                                                \
    hotbed_error_table(hotbed_fail_limit((status), __VA_ARGS__), (table))
#define hotbed_fail_table_key(status, table, key, key_type, ...)                                   \
    hotbed_error_key(hotbed_fail_table((status), (table), __VA_ARGS__), (key), (key_type))
#define hotbed_fail_rank_value(status, rank, ...)                                                  \
    hotbed_error_rank(hotbed_fail_value((status), __VA_ARGS__), (rank))
#define hotbed_fail_rank_limit(status, rank, ...)                                                  \
    hotbed_error_rank(hotbed_fail_limit((status), __VA_ARGS__), (rank))
#define hotbed_fail_path_os(status, path, error, ...)                                              \
    hotbed_error_path(hotbed_fail_os((status), (error), __VA_ARGS__), (path))
#define hotbed_fail_path_value(status, path, ...)                                                  \
    hotbed_error_path(hotbed_fail_value((status), __VA_ARGS__), (path))
#define hotbed_fail_path_limit(status, path, ...)                                                  \
    hotbed_error_path(hotbed_fail_limit((status), __VA_ARGS__), (path))
#define hotbed_fail_path_table(status, path, ...)                                                  \
    hotbed_error_path(hotbed_fail_table((status), __VA_ARGS__), (path))

/* Return ARGUMENT: the parameter is NULL. The text begins with `function` if it is not NULL. */
hotbed_status hotbed_fail_null_of(const char *function, const char *parameter);
hotbed_status hotbed_fail_null(const char *parameter);

/* As hotbed_fail(), for a failed call of the system: the text ends in ": " and the system's text for the errno
 * value `error`. */
HOTBED_PRINTF(3, 4)
hotbed_status hotbed_fail_os(hotbed_status status, int error, const char *format, ...);

/* The same, with the fields of an earlier error, for a text that contains the earlier error's;
 * HOTBED_FAIL_AFTER() for the thread's last error. */
HOTBED_PRINTF(3, 4)
hotbed_status hotbed_fail_again(
    const hotbed_error_detail *fields, hotbed_status status, const char *format, ...);

/* The bound that a value outside of [least, most] does not keep. */
static inline double hotbed_bound(double value, double least, double most) {
    return value < least ? least : most;
}

/* Set fields of the error that has just been kept, and return its status, so that a call follows
 * hotbed_fail() or a check: return hotbed_error_table(check(o), o->name). They do nothing if `failed`
 * is OK, or if the field is set already. */
hotbed_status hotbed_error_cause_is(hotbed_status failed, hotbed_error_cause cause);
hotbed_status hotbed_error_table(hotbed_status failed, const char *table);
hotbed_status hotbed_error_table_number(hotbed_status failed, uint32_t number);
hotbed_status hotbed_error_key(hotbed_status failed, uint64_t key, uint32_t key_type);
hotbed_status hotbed_error_feature(hotbed_status failed, uint32_t feature);
hotbed_status hotbed_error_sample(hotbed_status failed, uint32_t sample);
hotbed_status hotbed_error_rank(hotbed_status failed, int64_t rank); /* below 0: unknown */
hotbed_status hotbed_error_os(hotbed_status failed, int error);
hotbed_status hotbed_error_parameter(hotbed_status failed, const char *parameter);
hotbed_status hotbed_error_value(hotbed_status failed, const char *parameter, double value);
hotbed_status hotbed_error_limit(hotbed_status failed, double limit);
hotbed_status hotbed_error_path(hotbed_status failed, const char *path);

#define HOTBED_FAIL_AFTER(status, ...)                                                             \
    hotbed_fail_again(hotbed_last_error_detail(), (status), __VA_ARGS__)

/* A copy of an error, for calls that clean up before they return it, and for other threads. */
enum { HOTBED_ERROR_BYTES = 1024 };
typedef struct hotbed_error {
    hotbed_error_detail fields;
    char text[HOTBED_ERROR_BYTES];
} hotbed_error;

void hotbed_error_copy(hotbed_error *to); /* the thread's last error */

/* Fail with a copy: hotbed_fail_again(&error.fields, status, "%s", error.text). */
hotbed_status hotbed_error_return(const hotbed_error *error, hotbed_status status);

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
 * it receives, and so do the others. */
#if defined(__clang_analyzer__)
#define hotbed_fail(status, ...) ((void)hotbed_fail((status), __VA_ARGS__), (status))
#define hotbed_fail_os(status, error, ...)                                                         \
    ((void)hotbed_fail_os((status), (error), __VA_ARGS__), (status))
#define hotbed_fail_again(fields, status, ...)                                                     \
    ((void)hotbed_fail_again((fields), (status), __VA_ARGS__), (status))
#define hotbed_fail_null(parameter) ((void)hotbed_fail_null(parameter), HOTBED_ERR_ARGUMENT)
#define hotbed_fail_null_of(function, parameter)                                                   \
    ((void)hotbed_fail_null_of((function), (parameter)), HOTBED_ERR_ARGUMENT)
#define hotbed_error_cause_is(failed, ...)                                                         \
    ((void)hotbed_error_cause_is(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_table(failed, ...) ((void)hotbed_error_table(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_table_number(failed, ...)                                                     \
    ((void)hotbed_error_table_number(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_key(failed, ...) ((void)hotbed_error_key(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_feature(failed, ...)                                                          \
    ((void)hotbed_error_feature(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_sample(failed, ...)                                                           \
    ((void)hotbed_error_sample(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_rank(failed, ...) ((void)hotbed_error_rank(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_os(failed, ...)   ((void)hotbed_error_os(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_parameter(failed, ...)                                                        \
    ((void)hotbed_error_parameter(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_value(failed, ...)    ((void)hotbed_error_value(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_limit(failed, ...)    ((void)hotbed_error_limit(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_path(failed, ...)     ((void)hotbed_error_path(HOTBED_OK, __VA_ARGS__), (failed))
#define hotbed_error_return(error, status) ((void)hotbed_error_return((error), (status)), (status))
#endif

/* Return from the calling function if `call` fails. Use it only where the function holds nothing
 * that must be released. */
#define HOTBED_TRY(call)                                                                           \
    do {                                                                                           \
        hotbed_status hotbed_try_status = (call);                                                  \
        if (hotbed_try_status != HOTBED_OK)                                                        \
            return hotbed_try_status;                                                              \
    } while (0)

/* MEMORY if `allocated` is NULL or false. The text names what: a format's literal, and its arguments. The
 * second form returns it from the calling function. */
#define HOTBED_CHECK_MEMORY(allocated, ...)                                                        \
    ((allocated) ? HOTBED_OK : hotbed_fail(HOTBED_ERR_MEMORY, "no memory for " __VA_ARGS__))
#define HOTBED_TRY_MEMORY(allocated, ...) HOTBED_TRY(HOTBED_CHECK_MEMORY(allocated, __VA_ARGS__))

/* Make the call if `status` is OK, and set `status`: for functions that hold something, which they
 * release at their end. */
#define HOTBED_THEN(status, call)                                                                  \
    do {                                                                                           \
        if ((status) == HOTBED_OK)                                                                 \
            (status) = (call);                                                                     \
    } while (0)

/* The same for the call of a caller's function. */
#define HOTBED_TRY_CALLBACK(name, call)                                                            \
    do {                                                                                           \
        const uint64_t hotbed_errors_before = hotbed_error_count();                                \
        HOTBED_TRY(hotbed_callback_status((call), hotbed_errors_before, name));                    \
    } while (0)

HOTBED_END_DECLS
