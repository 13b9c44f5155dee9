/* dist/route_core.h - the rank of a key, for kernels too: hotbed/route.h has the rules. */
#ifndef HOTBED_DIST_ROUTE_CORE_H
#define HOTBED_DIST_ROUTE_CORE_H

#include "hotbed/route.h"
#include "storage/hash_core.h"

/* CONTINUOUS: whether `key` is inside the table; block * world fits in 64 bits. */
HOTBED_HD bool hotbed_route_inside(const hotbed_route *r, uint64_t key) {
    return key < r->block * r->world;
}

HOTBED_HD uint32_t hotbed_route_rank_of(const hotbed_route *r, uint64_t key) {
    switch (r->kind) {
    case HOTBED_ROUTE_CONTINUOUS:
        return (uint32_t)(hotbed_route_inside(r, key) ? key / r->block : key % r->world);
    case HOTBED_ROUTE_ROUND_ROBIN:
        return (uint32_t)(key % r->world);
    case HOTBED_ROUTE_HASH_ROUND_ROBIN:
        break;
    }
    return (uint32_t)(hotbed_hash_u64(key) % r->world);
}

HOTBED_HD uint64_t hotbed_route_local_of(const hotbed_route *r, uint64_t key) {
    if (r->kind != HOTBED_ROUTE_CONTINUOUS)
        return key;
    return hotbed_route_inside(r, key) ? key % r->block : key / r->world;
}

/* Outside the table, key / world is at least block: the two kinds of local ids do not overlap. */
HOTBED_HD uint64_t hotbed_route_key_of(const hotbed_route *r, uint32_t rank, uint64_t local) {
    if (r->kind != HOTBED_ROUTE_CONTINUOUS)
        return local;
    return local < r->block ? rank * r->block + local : local * r->world + rank;
}

#endif
