/* base/monotonic.h - the clock for deadlines and durations. */
#ifndef HOTBED_BASE_MONOTONIC_H
#define HOTBED_BASE_MONOTONIC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Return CLOCK_MONOTONIC in nanoseconds. */
uint64_t hotbed_monotonic_now(void);

/* Return the same in seconds. */
static inline double hotbed_monotonic_seconds(void) {
    return 1e-9 * (double)hotbed_monotonic_now();
}

#ifdef __cplusplus
}
#endif
#endif
