/* base/check.c - checks of arguments, and the texts of wrong ones. */
#include "base/check.h"

#include "base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NUMBER_BYTES = 32, POWER_LEAST = 20 };

hotbed_status hotbed_check_pointer(const char *name, const void *pointer) {
    return pointer != NULL ? HOTBED_OK : hotbed_fail_null(name);
}

hotbed_status hotbed_check_pointer_of(const char *function, const char *name, const void *pointer) {
    return pointer != NULL ? HOTBED_OK : hotbed_fail_null_of(function, name);
}

hotbed_status hotbed_check_array(const char *name, const void *array, uint64_t n) {
    if (n == 0 || array != NULL)
        return HOTBED_OK;
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, name, "n is %" PRIu64 ", but %s is NULL", n, name);
}

/* Write a bound as people know it: 2^30, not 1073741824. */
static const char *bound_text(uint64_t bound, char text[NUMBER_BYTES]) {
    for (int power = POWER_LEAST; power < 64; power++)
        if (bound == (uint64_t)1 << power || bound == ((uint64_t)1 << power) - 1) {
            snprintf(text, NUMBER_BYTES, "2^%d%s", power, bound % 2 == 0 ? "" : " - 1");
            return text;
        }
    snprintf(text, NUMBER_BYTES, "%" PRIu64, bound);
    return text;
}

hotbed_status hotbed_check_range(const char *name, uint64_t value, uint64_t least, uint64_t most) {
    char low[NUMBER_BYTES], high[NUMBER_BYTES];
    if (value >= least && value <= most)
        return HOTBED_OK;
    return hotbed_fail_limit(
        HOTBED_ERR_ARGUMENT, name, value, value < least ? least : most,
        "%s %" PRIu64 " is not in [%s, %s]", name, value, bound_text(least, low),
        bound_text(most, high));
}

hotbed_status hotbed_check_interval(const char *name, double value, double least, double most) {
    if (value >= least && value <= most)
        return HOTBED_OK;
    return hotbed_fail_limit(
        HOTBED_ERR_ARGUMENT, name, value, hotbed_bound(value, least, most),
        "%s %g is not in [%g, %g]", name, value, least, most);
}

hotbed_status hotbed_check_below(const char *name, uint64_t value, uint64_t end) {
    char text[NUMBER_BYTES];
    if (value < end)
        return HOTBED_OK;
    return hotbed_fail_limit(
        HOTBED_ERR_ARGUMENT, name, value, end, "%s %" PRIu64 " is not below %s", name, value,
        bound_text(end, text));
}

hotbed_status hotbed_check_choice(const char *name, uint32_t value, uint32_t first, uint32_t last) {
    return value >= first && value <= last ? HOTBED_OK : hotbed_fail_unknown(name, value);
}

hotbed_status hotbed_fail_unknown(const char *name, uint32_t value) {
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, name, (int)value, "unknown %s %d", name, (int)value);
}

hotbed_status hotbed_check_finite(const char *name, float value) {
    if (isfinite(value))
        return HOTBED_OK;
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, name, value, "%s %g is not finite", name, (double)value);
}
