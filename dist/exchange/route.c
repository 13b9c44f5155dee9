/* dist/exchange/route.c - the rank of a key: checks, and the calls outside of kernels. */
#include "dist/exchange/route_core.h"

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"

hotbed_status hotbed_route_init(
    hotbed_route *route, hotbed_route_kind kind, uint32_t world, uint64_t rows) {
    HOTBED_TRY(hotbed_check_pointer("route", route));
    if (hotbed_route_name(kind) == NULL)
        return hotbed_fail_unknown("kind", kind);
    HOTBED_TRY(hotbed_check_range("world", world, 1, (uint64_t)1 << 31));
    const bool continuous = kind == HOTBED_ROUTE_CONTINUOUS;
    const bool numbered = kind != HOTBED_ROUTE_HASH_ROUND_ROBIN;
    if (numbered)
        HOTBED_TRY(hotbed_check_range("rows", rows, continuous ? 1 : 0, (uint64_t)1 << 62));
    *route = (hotbed_route){
        .kind = kind,
        .world = world,
        .rows = numbered ? rows : 0,
        .block = continuous ? (rows - 1) / world + 1 : 0,
    };
    return HOTBED_OK;
}

uint32_t hotbed_route_rank(const hotbed_route *route, uint64_t key) {
    return hotbed_route_rank_of(route, key);
}

void hotbed_route_ranks(
    const hotbed_route *route, uint64_t n, const uint64_t *keys, uint32_t *ranks) {
    for (uint64_t i = 0; i < n; i++)
        ranks[i] = hotbed_route_rank_of(route, keys[i]);
}

uint64_t hotbed_route_local(const hotbed_route *route, uint64_t key) {
    return hotbed_route_local_of(route, key);
}

uint64_t hotbed_route_key(const hotbed_route *route, uint32_t rank, uint64_t local) {
    return hotbed_route_key_of(route, rank, local);
}

uint64_t hotbed_route_rows(const hotbed_route *route, uint32_t rank) {
    if (route->kind != HOTBED_ROUTE_CONTINUOUS)
        return rank < route->rows ? (route->rows - 1 - rank) / route->world + 1 : 0;
    uint64_t first = rank * route->block;
    if (first >= route->rows)
        return 0;
    uint64_t left = route->rows - first;
    return left < route->block ? left : route->block;
}

const char *hotbed_route_name(hotbed_route_kind kind) {
    static const char *const names[] = {"hash_roundrobin", "roundrobin", "continuous"};
    return HOTBED_NAME(names, kind, NULL);
}
