/* base/check.h - checks of arguments: each returns OK, or ARGUMENT with the parameter's name and value in the text
 * and in the fields of the error. */
#pragma once

#include "base/error.h"

#include <stdint.h>

/* The pointer is not NULL; "x is NULL", or "function: x is NULL". */
hotbed_status hotbed_check_pointer(const char *name, const void *pointer);
hotbed_status hotbed_check_pointer_of(const char *function, const char *name, const void *pointer);

/* The beginning of a call that creates *out: `out` is not NULL, and *out is NULL if the call fails. */
#define HOTBED_TRY_OUT(out)                                                                        \
    do {                                                                                           \
        HOTBED_TRY(hotbed_check_pointer("out", (out)));                                            \
        *(out) = NULL;                                                                             \
    } while (0)

/* An array of n items is there unless n is 0; "n is 3, but x is NULL". */
hotbed_status hotbed_check_array(const char *name, const void *array, uint64_t n);

/* least <= value <= most; "x 7 is not in [1, 2^30]". The second form refuses NaN. */
hotbed_status hotbed_check_range(const char *name, uint64_t value, uint64_t least, uint64_t most);
hotbed_status hotbed_check_interval(const char *name, double value, double least, double most);

/* value < end, for the number of an item; "x 7 is not below 3". */
hotbed_status hotbed_check_below(const char *name, uint64_t value, uint64_t end);

/* The value is an enumerator, from `first` to `last`; "unknown x 7". */
hotbed_status hotbed_check_choice(const char *name, uint32_t value, uint32_t first, uint32_t last);
hotbed_status hotbed_fail_unknown(const char *name, uint32_t value);

/* The value is neither NaN nor infinite; "x inf is not finite". */
hotbed_status hotbed_check_finite(const char *name, float value);
