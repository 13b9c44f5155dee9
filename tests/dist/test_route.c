/* tests/dist/test_route.c - routes: each key has one owner, and owner and local id give the key back. */
#include "hotbed/route.h"

#include "tests/support/harness.h"

#include <string.h>

static const uint32_t worlds[] = {1, 2, 3, 4, 8, 33, 1000003, 1U << 31};
static const hotbed_route_kind kinds[] = {
    HOTBED_ROUTE_HASH_ROUND_ROBIN, HOTBED_ROUTE_ROUND_ROBIN, HOTBED_ROUTE_CONTINUOUS};
static const uint64_t row_counts[] = {
    1, 2, 6, 10, 33, 1000, (uint64_t)1 << 32, ((uint64_t)1 << 62) - 1, (uint64_t)1 << 62};

enum {
    WORLDS = sizeof worlds / sizeof worlds[0],
    KINDS = sizeof kinds / sizeof kinds[0],
    ROW_COUNTS = sizeof row_counts / sizeof row_counts[0],
    EDGES = 12,
};

static hotbed_route route_of(hotbed_route_kind kind, uint32_t world, uint64_t rows) {
    hotbed_route route;
    CHECK_OK(hotbed_route_init(&route, kind, world, rows));
    return route;
}

static void check_key(const hotbed_route *route, uint64_t key) {
    uint32_t rank = hotbed_route_rank(route, key);
    const uint64_t keys[] = {key, key};
    uint32_t ranks[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    hotbed_route_ranks(route, 2, keys, ranks);
    CHECK(ranks[0] == rank && ranks[1] == rank && ranks[2] == UINT32_MAX);
    uint64_t local = hotbed_route_local(route, key);
    CHECK(rank < route->world);
    CHECK_EQ(hotbed_route_key(route, rank, local), key);
    if (key < route->rows)
        CHECK(local < hotbed_route_rows(route, rank));
    else
        CHECK(local >= route->rows);
    if (route->kind == HOTBED_ROUTE_CONTINUOUS && key >= route->block * route->world)
        CHECK_EQ(rank, key % route->world);
    if (route->kind == HOTBED_ROUTE_ROUND_ROBIN)
        CHECK_EQ(rank, key - key / route->world * route->world);
    if (route->kind == HOTBED_ROUTE_HASH_ROUND_ROBIN)
        CHECK_EQ(local, key);
}

static void owner_and_local_id_give_the_key(hotbed_backend backend) {
    const uint64_t edges[EDGES] = {0,          (uint64_t)INT64_MIN, UINT64_MAX, INT64_MAX,
                                   UINT32_MAX, (uint64_t)1 << 32,   1};
    for (int k = 0; k < KINDS; k++)
        for (int w = 0; w < WORLDS; w++)
            for (int n = 0; n < ROW_COUNTS; n++) {
                hotbed_route route = route_of(kinds[k], worlds[w], row_counts[n]);
                for (int e = 0; e < EDGES; e++)
                    for (uint64_t near = 0; near < 5; near++)
                        check_key(&route, edges[e] + near - 2);
                uint64_t inside = route.block * route.world;
                for (uint64_t near = 0; near < 5; near++) {
                    check_key(&route, inside + near - 2);
                    check_key(&route, route.rows + near - 2);
                    check_key(&route, route.block + near - 2);
                }
                for (int i = 0; i < 50; i++)
                    check_key(&route, hotbed_test_random() >> hotbed_test_below(64));
            }
}

static void continuous_routing_assigns_blocks_in_order(hotbed_backend backend) {
    for (uint32_t world = 1; world <= 9; world++)
        for (uint64_t rows = 1; rows <= 40; rows++) {
            hotbed_route route = route_of(HOTBED_ROUTE_CONTINUOUS, world, rows);
            uint64_t key = 0;
            for (uint32_t rank = 0; rank < world; rank++)
                for (uint64_t local = 0; local < hotbed_route_rows(&route, rank); local++, key++) {
                    CHECK_EQ(hotbed_route_rank(&route, key), rank);
                    CHECK_EQ(hotbed_route_local(&route, key), local);
                }
            CHECK_EQ(key, rows);
        }
}

static void round_robin_routing_deals_rows_in_turn(hotbed_backend backend) {
    for (uint32_t world = 1; world <= 9; world++)
        for (uint64_t rows = 1; rows <= 40; rows++) {
            hotbed_route route = route_of(HOTBED_ROUTE_ROUND_ROBIN, world, rows);
            uint64_t sum = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                sum += hotbed_route_rows(&route, rank);
                for (uint64_t local = 0; local < hotbed_route_rows(&route, rank); local++) {
                    const uint64_t key = hotbed_route_key(&route, rank, local);
                    CHECK_EQ(key, local * world + rank);
                    CHECK_EQ(hotbed_route_rank(&route, key), rank);
                    CHECK_EQ(hotbed_route_local(&route, key), local);
                }
            }
            CHECK_EQ(sum, rows);
        }
    const hotbed_route keys = route_of(HOTBED_ROUTE_ROUND_ROBIN, 4, 0); /* of a hash table */
    CHECK_EQ(hotbed_route_local(&keys, 9), 9);
    CHECK_EQ(hotbed_route_rows(&keys, 0), 0);
}

/* Two tables of 10 and 6 rows on two ranks, worked out by hand. */
static void known_owners(hotbed_backend backend) {
    const uint64_t keys[] = {7, 1, 4, 0, 5, 2, 9, 3};
    const uint32_t continuous[] = {1, 0, 0, 0, 1, 0, 1, 0}; /* of 10 rows */
    const uint64_t local[] = {2, 1, 4, 0, 0, 2, 4, 3};
    const uint32_t hashed[] = {1, 0, 1, 0, 1, 1, 1, 0};
    hotbed_route block = route_of(HOTBED_ROUTE_CONTINUOUS, 2, 10);
    hotbed_route hash = route_of(HOTBED_ROUTE_HASH_ROUND_ROBIN, 2, 10);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        CHECK_EQ(hotbed_route_rank(&block, keys[i]), continuous[i]);
        CHECK_EQ(hotbed_route_local(&block, keys[i]), local[i]);
        CHECK_EQ(hotbed_route_rank(&hash, keys[i]), hashed[i]);
    }
    hotbed_route six = route_of(HOTBED_ROUTE_CONTINUOUS, 2, 6);
    CHECK_EQ(hotbed_route_rank(&six, 6), 0); /* beyond the last row */
    CHECK_EQ(hotbed_route_local(&six, 6), 6);
    hotbed_route three = route_of(HOTBED_ROUTE_CONTINUOUS, 4, 3);
    CHECK_EQ(hotbed_route_rank(&three, 3), 3); /* which has no rows */
    CHECK_EQ(hotbed_route_local(&three, 3), 3);
}

/* Keys with a common stride: round-robin puts all on one rank, hashing spreads them evenly. */
static void hashed_routing_is_even_for_strided_keys(hotbed_backend backend) {
    enum { WORLD = 8, N = 80000 };
    uint64_t counts[WORLD] = {0};
    hotbed_route hash = route_of(HOTBED_ROUTE_HASH_ROUND_ROBIN, WORLD, 0);
    hotbed_route plain = route_of(HOTBED_ROUTE_ROUND_ROBIN, WORLD, 0);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_EQ(hotbed_route_rank(&plain, i * WORLD), 0);
        counts[hotbed_route_rank(&hash, i * WORLD)]++;
    }
    for (int r = 0; r < WORLD; r++)
        CHECK(counts[r] > N / WORLD * 95 / 100 && counts[r] < N / WORLD * 105 / 100);
}

static void invalid_routes_are_refused(hotbed_backend backend) {
    hotbed_route route;
    CHECK_STATUS(hotbed_route_init(NULL, HOTBED_ROUTE_ROUND_ROBIN, 1, 0), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_route_init(&route, (hotbed_route_kind)3, 1, 0), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "3") != NULL);
    CHECK_STATUS(hotbed_route_init(&route, HOTBED_ROUTE_ROUND_ROBIN, 0, 0), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_route_init(&route, HOTBED_ROUTE_ROUND_ROBIN, (1U << 31) + 1, 0),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_route_init(&route, HOTBED_ROUTE_CONTINUOUS, 2, 0), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_route_init(&route, HOTBED_ROUTE_CONTINUOUS, 2, ((uint64_t)1 << 62) + 1),
        HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_route_name(HOTBED_ROUTE_HASH_ROUND_ROBIN), "hash_roundrobin");
    CHECK(hotbed_route_name((hotbed_route_kind)3) == NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(owner_and_local_id_give_the_key)},
    {TEST(continuous_routing_assigns_blocks_in_order)},
    {TEST(round_robin_routing_deals_rows_in_turn)},
    {TEST(known_owners)},
    {TEST(hashed_routing_is_even_for_strided_keys)},
    {TEST(invalid_routes_are_refused)},
    {NULL, NULL},
};
