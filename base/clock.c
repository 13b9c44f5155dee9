/* base/clock.c - read the clocks. */
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t clock) {
    struct timespec time;
    (void)clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

uint64_t hotbed_monotonic_now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t hotbed_realtime_now(void) {
    return read_clock(CLOCK_REALTIME);
}
