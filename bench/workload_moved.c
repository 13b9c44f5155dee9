/* bench/workload_moved.c - what a sharded batch must move between ranks. */
#include "bench/workload.h"

#include "base/error.h"

#include <stdlib.h>

hotbed_status workload_count_moved(
    const workload_shape *shape, const int64_t *keys, const hotbed_route *routes, uint32_t rank,
    workload_moved *out) {
    const uint32_t world = routes[0].world;
    uint64_t *bits = malloc((shape->range / 64 + 1) * sizeof *bits);
    if (bits == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to count rows");
    *out = (workload_moved){0};
    for (uint32_t t = 0; t < shape->tables; t++) {
        uint64_t distinct = 0, bags = 0, keys_sent = 0, at = workload_first_key(shape, t);
        memset(bits, 0, (shape->range / 64 + 1) * sizeof *bits);
        for (uint32_t s = 0; s < shape->samples; s++) {
            uint64_t owners = 0; /* a bit for each rank with a key of the bag */
            for (uint32_t i = 0; i < workload_bag(shape, t); i++, at++) {
                const uint64_t key = (uint64_t)keys[at];
                const uint32_t owner = hotbed_route_rank(&routes[t], key);
                if (owner == rank)
                    continue;
                const uint64_t bit = (uint64_t)1 << (key & 63);
                distinct += (bits[key / 64] & bit) == 0;
                bits[key / 64] |= bit;
                bags += (owners >> owner & 1) == 0;
                owners |= (uint64_t)1 << owner;
                keys_sent++;
            }
        }
        out->sums += (uint64_t)shape->samples * (world - 1);
        out->bags += bags;
        out->distinct += distinct;
        out->best += bags < distinct ? bags : distinct;
        out->best_keys += bags < distinct ? keys_sent : distinct;
    }
    free(bits);
    return HOTBED_OK;
}
