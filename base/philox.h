/* base/philox.h - Philox4x32-7: four random words as a function of a counter and a key.
 *
 * Seven rounds are the fewest that pass BigCrush. There is no state: word i of row r of table t is the same
 * wherever and whenever it is computed. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011. tests/base/test_philox.c checks it against the paper's known answers. */
#pragma once

#include "base/port.h"

typedef struct HOTBED_ALIGN(16) hotbed_u32x4 {
    uint32_t x, y, z, w;
} hotbed_u32x4;

HOTBED_HD hotbed_u32x4 hotbed_philox(hotbed_u32x4 counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 7; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53U * counter.x;
        uint64_t product1 = (uint64_t)0xCD9E8D57U * counter.z;
        hotbed_u32x4 next;
        next.x = (uint32_t)(product1 >> 32) ^ counter.y ^ key0;
        next.y = (uint32_t)product1;
        next.z = (uint32_t)(product0 >> 32) ^ counter.w ^ key1;
        next.w = (uint32_t)product0;
        counter = next;
        key0 += 0x9E3779B9U; /* the golden ratio */
        key1 += 0xBB67AE85U; /* sqrt(3) - 1 */
    }
    return counter;
}
