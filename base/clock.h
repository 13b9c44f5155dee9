/* base/clock.h - the clocks. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Return CLOCK_MONOTONIC in nanoseconds, for deadlines and durations. */
uint64_t hotbed_monotonic_now(void);

/* Return the same in seconds. */
static inline double hotbed_monotonic_seconds(void) {
    return 1e-9 * (double)hotbed_monotonic_now();
}

/* Return CLOCK_REALTIME in nanoseconds, for times that other processes read. It may go back. */
uint64_t hotbed_realtime_now(void);

#ifdef __cplusplus
}
#endif
