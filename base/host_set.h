/* base/host_set.h - instruction sets of x86-64 that loops of the host backend are compiled for.
 *
 * The library runs on every x86-64 processor: functions for other sets are marked with their
 * target, and called if hotbed_host_set_best() says that the processor has the set. Not under TSan,
 * which recognizes atomic reads of words only. */
#pragma once

#include "base/port.h"

typedef enum hotbed_host_set {
    HOTBED_HOST_PLAIN,
    HOTBED_HOST_AVX2, /* with F16C, which all processors with AVX2 have */
    HOTBED_HOST_AVX512,
} hotbed_host_set;

#if defined(__x86_64__) && !defined(HOTBED_WITH_TSAN)
#define HOTBED_WITH_SETS 1
#include <immintrin.h>
#define HOTBED_AVX2   __attribute__((target("avx2,bmi,f16c")))
#define HOTBED_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,bmi")))
#endif

/* The best set that the processor has. */
static inline hotbed_host_set hotbed_host_set_best(void) {
#if defined(HOTBED_WITH_SETS)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return HOTBED_HOST_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return HOTBED_HOST_AVX2;
#endif
    return HOTBED_HOST_PLAIN;
}
