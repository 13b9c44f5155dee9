/* dist/exchange/route_core.h - the rank of a key, for kernels too: hotbed/route.h has the rules. */
#pragma once

#include "base/hash_core.h"
#include "hotbed/route.h"

HOTBED_HD uint32_t hotbed_route_rank_of(const hotbed_route *r, uint64_t key) {
    switch (r->kind) {
    case HOTBED_ROUTE_CONTINUOUS: /* block * world fits in 64 bits */
        return (uint32_t)(key < r->block * r->world ? key / r->block : key % r->world);
    case HOTBED_ROUTE_ROUND_ROBIN:
        return (uint32_t)(key % r->world);
    case HOTBED_ROUTE_HASH_ROUND_ROBIN:
        break;
    }
    return (uint32_t)(hotbed_hash_u64(key) % r->world);
}

/* Outside the table, the local id is the key. It is at least `rows`, so no rank has a row with that
 * number, and it is the local id of no other key. */
HOTBED_HD uint64_t hotbed_route_local_of(const hotbed_route *r, uint64_t key) {
    if (key >= r->rows)
        return key;
    return r->kind == HOTBED_ROUTE_CONTINUOUS ? key % r->block : key / r->world;
}

HOTBED_HD uint64_t hotbed_route_key_of(const hotbed_route *r, uint32_t rank, uint64_t local) {
    if (r->kind == HOTBED_ROUTE_CONTINUOUS)
        return local < r->block ? rank * r->block + local : local;
    return rank < r->rows && local <= (r->rows - 1 - rank) / r->world ? local * r->world + rank
                                                                      : local;
}
