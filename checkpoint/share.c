/* checkpoint/share.c - which rows belong to a rank. */
#include "checkpoint/share.h"

#include "base/error.h"
#include "base/text.h"

#include <inttypes.h>

static hotbed_status check_route(
    const hotbed_checkpoint_share *share, const hotbed_storages *storages, uint32_t table) {
    const hotbed_route *route = &share->routes[table];
    hotbed_table_info info;
    HOTBED_TRY(hotbed_storages_info(storages, table, &info));
    if (route->world != share->world)
        return hotbed_fail_table_limit(
            HOTBED_ERR_ARGUMENT, info.name, "routes", route->world, share->world,
            "share: the route of table '%s' has %" PRIu32 " ranks, expected %" PRIu32, info.name,
            route->world, share->world);
    if (info.kind == HOTBED_TABLE_HASH && route->kind == HOTBED_ROUTE_ROUND_ROBIN &&
        route->rows != 0)
        return hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, info.name, "routes", route->rows,
            "share: table '%s' stores keys, but its route numbers %" PRIu64 " rows", info.name,
            route->rows);
    if (info.kind != HOTBED_TABLE_STATIC)
        return HOTBED_OK;
    if (route->kind != HOTBED_ROUTE_CONTINUOUS && route->kind != HOTBED_ROUTE_ROUND_ROBIN)
        return hotbed_error_parameter(
            hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, info.name,
                "share: table '%s' is static, but its route is %s, not continuous or roundrobin",
                info.name, hotbed_route_name(route->kind)),
            "routes");
    if (route->rows == 0)
        return hotbed_error_parameter(
            hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, info.name,
                "share: table '%s' is static, but its route numbers no rows", info.name),
            "routes");
    if (hotbed_route_rows(route, share->rank) > info.capacity)
        return hotbed_error_rank(
            hotbed_fail_table_limit(
                HOTBED_ERR_ARGUMENT, info.name, "routes", hotbed_route_rows(route, share->rank),
                info.capacity,
                "share: table '%s' has %" PRIu64 " rows, but its route gives this rank %" PRIu64,
                info.name, info.capacity, hotbed_route_rows(route, share->rank)),
            share->rank);
    return HOTBED_OK;
}

hotbed_status hotbed_share_read(
    const hotbed_checkpoint_share *share, const hotbed_storages *storages,
    hotbed_checkpoint_share *out) {
    hotbed_checkpoint_share s = *share;
    if (s.world == 0)
        s.world = 1;
    if (s.rank >= s.world || s.world > HOTBED_WORLD_MAX)
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, s.rank, "rank", s.rank, s.world,
            "share: rank %" PRIu32 " of %" PRIu32 ", at most %d", s.rank, s.world,
            HOTBED_WORLD_MAX);
    if (s.world > 1 && s.routes == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "world", s.world, "share: %" PRIu32 " ranks without routes",
            s.world);
    for (uint32_t i = 0; s.routes != NULL && i < storages->num_tables; i++)
        HOTBED_TRY(check_route(&s, storages, i));
    *out = s;
    return HOTBED_OK;
}

hotbed_status hotbed_share_check_keys(
    const hotbed_checkpoint_share *share, const hotbed_manifest *manifest, uint32_t table,
    uint64_t n, const uint64_t *keys) {
    const hotbed_manifest_table *t = &manifest->tables[table];
    hotbed_key_type type = hotbed_manifest_origin(manifest, t)->key_type;
    for (uint64_t i = 0; i < n && share->routes != NULL; i++) {
        uint32_t owner = hotbed_route_rank(&share->routes[table], keys[i]);
        if (owner != share->rank)
            return hotbed_error_rank(
                hotbed_fail_table_key(
                    HOTBED_ERR_STATE, t->name, keys[i], type,
                    "table '%s': key %s is on rank %" PRIu32 ", but its route (%s) gives it "
                    "to rank %" PRIu32,
                    t->name, hotbed_key_text(keys[i], type).text, share->rank,
                    hotbed_route_name(share->routes[table].kind), owner),
                share->rank);
    }
    return HOTBED_OK;
}

void hotbed_share_rows(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t capacity, uint64_t *first,
    uint64_t *end) {
    *first = 0;
    *end = capacity;
    if (share->routes == NULL)
        return;
    const hotbed_route *route = &share->routes[table];
    uint64_t rows = hotbed_route_rows(route, share->rank);
    if (route->kind == HOTBED_ROUTE_ROUND_ROBIN) { /* the first ranks have one row more */
        const uint64_t more = route->rows % route->world;
        *first = share->rank * (route->rows / route->world);
        *first += share->rank < more ? share->rank : more;
    } else { /* the range of a rank without rows is empty and at the end */
        *first = rows == 0 ? route->rows : share->rank * route->block;
    }
    *end = *first + rows;
}

bool hotbed_share_deals(const hotbed_checkpoint_share *share, uint32_t table) {
    return share->world > 1 && share->routes[table].kind == HOTBED_ROUTE_ROUND_ROBIN;
}

uint64_t hotbed_share_count(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t capacity, uint64_t most) {
    if (share->routes == NULL)
        return capacity < most ? capacity : most;
    hotbed_route route = share->routes[table];
    route.rows = route.rows < most ? route.rows : most; /* the block stays */
    return hotbed_route_rows(&route, share->rank);
}

void hotbed_share_describe(
    const hotbed_checkpoint_share *share, uint32_t table, hotbed_manifest_table *out) {
    if (share->routes == NULL)
        return;
    out->route = (uint32_t)share->routes[table].kind + 1;
    out->route_rows = share->routes[table].rows;
}

bool hotbed_share_is(
    const hotbed_checkpoint_share *share, uint32_t table, const hotbed_manifest *m,
    const hotbed_manifest_table *saved) {
    if (m->world != share->world)
        return false;
    hotbed_manifest_table here = {.route = 0};
    hotbed_share_describe(share, table, &here);
    return share->world == 1 ||
           (here.route == saved->route && here.route_rows == saved->route_rows);
}
