/* hotbed/status.h - the status that every call returns, and the text of the last error.
 *
 * Stable: all calls.
 *
 * For every program. A status is a class of errors; hotbed_last_error() has the details and values.
 * A call that fails has had no effect unless its comment says otherwise; its outputs are unchanged,
 * or NULL for **out. The library never prints, exits or aborts.
 *
 * If an object is NULL, a call that returns a status returns ARGUMENT, and a call that returns
 * something else returns 0, false or NULL. Options and other plain structs of the caller must
 * exist where a call does not return a status.
 *
 * A kernel can find an error (a key out of range, a full table) after the call that enqueued it has
 * returned. Such a *fault* is latched on the stream, and the stream's next hotbed_stream_sync()
 * returns it; see hotbed/stream.h.
 *
 *       static void check(hotbed_status status) {
 *           if (status == HOTBED_OK)
 *               return;
 *           fprintf(stderr, "%s: %s\n", hotbed_status_name(status), hotbed_last_error());
 *           exit(1);
 *       }
 *
 *       check(hotbed_storage_prefetch(storage, &batch, ticket, stream)); // bad arguments
 *       check(hotbed_stream_sync(stream)); // faults of the work */
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

/* The numbers are part of the ABI: new ones are only ever appended. */
typedef enum hotbed_status {
    HOTBED_OK = 0,
    HOTBED_ERR_ARGUMENT = 1,    /* a NULL, size, enum or option that the call does not accept */
    HOTBED_ERR_MEMORY = 2,      /* an allocation failed, in host or device memory */
    HOTBED_ERR_FULL = 3,        /* a table had no slot for a key */
    HOTBED_ERR_UNSUPPORTED = 4, /* this build, backend or machine cannot do it */
    HOTBED_ERR_DEVICE = 5,      /* CUDA reported an error */
    HOTBED_ERR_COMM = 6,        /* a rank failed, timed out or disagreed */
    HOTBED_ERR_IO = 7,          /* a file could not be opened, read or written */
    /* the contents of a file are damaged, or not in a format of Hotbed */
    HOTBED_ERR_CORRUPT = 8,
    /* a key lies outside of a static table, or an index outside of its array */
    HOTBED_ERR_RANGE = 9,
    HOTBED_ERR_STATE = 10, /* the object is not in a state that allows the call */
} hotbed_status;

/* Return "ARGUMENT" for HOTBED_ERR_ARGUMENT, "OK" for HOTBED_OK, "UNKNOWN" for other numbers. */
HOTBED_API const char *hotbed_status_name(hotbed_status status);

/* Return the text of the last error in this thread, with its values; "" if there was none. Valid
 * until the thread's next failing call. A call that succeeds does not clear it. */
HOTBED_API const char *hotbed_last_error(void);

/* Keep a copy of the first 1,023 bytes of `text` for hotbed_last_error(), and return `status`. For
 * your functions that Hotbed calls: loaders, tasks, hooks. Hotbed's own calls do it themselves. */
HOTBED_API hotbed_status hotbed_error_set(hotbed_status status, const char *text);

#ifdef __cplusplus
}
#endif
#endif
