/* base/monotonic.c - read the monotonic clock. */
#include "base/monotonic.h"

#include <time.h>

uint64_t hotbed_monotonic_now(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}
