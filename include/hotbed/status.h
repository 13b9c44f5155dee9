/* hotbed/status.h - what every call returns, and the text behind it.
 *
 * A status is a class of failure; hotbed_last_error() has the values.  A call that fails has had
 * no effect unless its comment says otherwise, and its outputs are untouched, or NULL for **out.
 * Faults that a kernel finds (a key out of range, a full table) cannot be returned by the call that
 * enqueued it: they are latched on the stream, see hotbed_stream_sync() in hotbed/stream.h.
 * The library never prints, exits or aborts.
 */
#ifndef HOTBED_STATUS_H
#define HOTBED_STATUS_H

#if defined(__GNUC__) || defined(__clang__)
#define HOTBED_API      __attribute__((visibility("default")))
#define HOTBED_MUST_USE __attribute__((warn_unused_result))
#else
#define HOTBED_API
#define HOTBED_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are ABI: they are only ever appended. */
typedef enum hotbed_status {
    HOTBED_OK = 0,
    HOTBED_ERR_ARGUMENT = 1,    /* a NULL, size, enum or option that the call does not take */
    HOTBED_ERR_MEMORY = 2,      /* an allocation failed, in host or device memory */
    HOTBED_ERR_FULL = 3,        /* a table had no slot for a key */
    HOTBED_ERR_UNSUPPORTED = 4, /* this build, backend or machine cannot do it */
    HOTBED_ERR_DEVICE = 5,      /* CUDA reported an error */
    HOTBED_ERR_COMM = 6,        /* a rank failed, timed out or disagreed */
    HOTBED_ERR_IO = 7,          /* a file could not be opened, read or written */
    HOTBED_ERR_CORRUPT = 8,     /* a file's contents are damaged or not ours */
    HOTBED_ERR_RANGE = 9,  /* a key lies outside of a static table, an index outside its array */
    HOTBED_ERR_STATE = 10, /* the object is not in a state that allows the call */
} hotbed_status;

/* "ARGUMENT" for HOTBED_ERR_ARGUMENT, "OK" for HOTBED_OK, "UNKNOWN" for other numbers. */
HOTBED_API const char *hotbed_status_name(hotbed_status status);

/* Text of the last failure in this thread, with the values in it; "" when there was none.
 * Valid until the thread's next failing call.  A call that succeeds does not clear it. */
HOTBED_API const char *hotbed_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
