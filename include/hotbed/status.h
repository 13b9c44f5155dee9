/* hotbed/status.h - the status that every call returns, and the text and fields of the last error.
 *
 * Stable: all calls.
 *
 * For every program. A status is a class of errors. hotbed_last_error() has a text for people, with
 * the values; its words may change in any version. hotbed_last_error_detail() has the same values as
 * fields, for programs.
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

#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define HOTBED_API      __attribute__((visibility("default")))
#define HOTBED_MUST_USE __attribute__((warn_unused_result))
#else
#define HOTBED_API
#define HOTBED_MUST_USE
#endif

/* Around declarations of C functions, for C++ programs. */
#ifdef __cplusplus
#define HOTBED_BEGIN_DECLS extern "C" {
#define HOTBED_END_DECLS   }
#else
#define HOTBED_BEGIN_DECLS
#define HOTBED_END_DECLS
#endif

HOTBED_BEGIN_DECLS

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

/* Errors that a program may want to tell from others of their class. The numbers are part of the ABI:
 * new ones are only ever appended. The comments list the fields that are set, as far as they are
 * known: "table" is its name, or its number if several tables may have caused the error. */
typedef enum hotbed_error_cause {
    HOTBED_CAUSE_OTHER = 0,      /* the class says all */
    HOTBED_CAUSE_TABLE_FULL = 1, /* no slot for a key: table, key; limit: the table's slots */
    HOTBED_CAUSE_KEY_RANGE = 2,  /* a key outside of a static table: table, key; limit: its rows */
    HOTBED_CAUSE_OFFSET = 3,     /* an invalid offset: feature, sample; value: the offset */
    HOTBED_CAUSE_ALL_PINNED = 4, /* all candidates of a key are in use: table, key */
    HOTBED_CAUSE_TABLE_NUMBER = 5, /* value: the table's number; limit: the number of tables; key */
    HOTBED_CAUSE_EXTERNAL = 6,     /* a call of an external store failed: table; value: its rows */
    HOTBED_CAUSE_COMM = 7,         /* a communicator failed: rank; value: the operation's number */
    HOTBED_CAUSE_FIRST_OFFSET = 8, /* value: the first offset, which is not 0 */
    HOTBED_CAUSE_KEY_TWICE = 9,    /* table, key; limit and value: its first two positions */
    HOTBED_CAUSE_GRADIENT = 10,    /* a gradient is NaN or infinite: table, key */
    HOTBED_CAUSE_NOT_PREFETCHED = 11, /* the ticket holds no batch */
    HOTBED_CAUSE_HELD = 12,           /* rows are in use; value: the number of tickets or rows */
    /* more keys or samples than a ticket or collection was made for: parameter, value, limit */
    HOTBED_CAUSE_BATCH_TOO_LARGE = 13,
    HOTBED_CAUSE_NO_WINDOWS = 14, /* the communicator has no one-sided transfers */
} hotbed_error_cause;

/* Which numbers of a hotbed_error_detail are set. */
typedef enum hotbed_error_has {
    HOTBED_HAS_KEY = 1,
    HOTBED_HAS_TABLE_NUMBER = 2,
    HOTBED_HAS_FEATURE = 4,
    HOTBED_HAS_SAMPLE = 8,
    HOTBED_HAS_RANK = 16,
    HOTBED_HAS_VALUE = 32,
    HOTBED_HAS_LIMIT = 64,
} hotbed_error_has;

/* The values of an error. Numbers that `has` does not name are 0, and names that are absent are "". */
typedef struct hotbed_error_detail {
    uint32_t size;        /* of the library's struct: a smaller one lacks the last fields */
    hotbed_status status; /* HOTBED_OK: this thread has had no error */
    hotbed_error_cause cause;
    uint32_t has;          /* sum of hotbed_error_has */
    int32_t os_error;      /* an errno value; 0: no call of the system failed */
    int32_t rank;          /* the rank that caused the error */
    uint64_t key;          /* a signed key has the bits of its two's complement */
    uint32_t key_type;     /* a hotbed_key_type; 0: unknown */
    uint32_t table_number; /* in its storage */
    uint32_t feature;      /* in its batch */
    uint32_t sample;       /* in its feature */
    /* What was wrong, and the nearest value or the bound that was not kept. Above 2^53 they are
     * rounded; the text has all digits. */
    double value;
    double limit;
    char table[64];     /* the table's name */
    char parameter[64]; /* the field or argument that has the wrong value, such as "capacity" */
    char path[512];     /* the file or directory, as far as its path has fewer than 512 bytes */
} hotbed_error_detail;

/* Return the fields of the error whose text hotbed_last_error() returns. Never NULL. Valid as long as
 * the text; a caller may copy the struct. */
HOTBED_API const hotbed_error_detail *hotbed_last_error_detail(void);

/* Keep a copy of the first 1,023 bytes of `text` for hotbed_last_error(), and return `status`. For
 * your functions that Hotbed calls: loaders, tasks, hooks. Hotbed's own calls do it themselves. */
HOTBED_API hotbed_status hotbed_error_set(hotbed_status status, const char *text);

HOTBED_END_DECLS
#endif
