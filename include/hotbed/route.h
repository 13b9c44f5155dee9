/* hotbed/route.h - the rank that owns a key: row-wise sharding of a table over all ranks.
 *
 * Stable: all calls.
 *
 * One function for all users: the kernels that send keys to their owners, checkpoints that
 * redistribute rows to other numbers of ranks, and tools. Programs need it to choose a rule, to
 * save storages of several ranks without a sharded collection, or to find the rank of a key:
 *
 *     hotbed_route route;
 *     status = hotbed_route_init(&route, HOTBED_ROUTE_CONTINUOUS, world, 1000000);
 *     uint64_t my_rows = hotbed_route_rows(&route, rank);
 *     uint32_t owner = hotbed_route_rank(&route, key);
 *     uint64_t local = hotbed_route_local(&route, key);
 *     if (hotbed_route_key(&route, owner, local) == key && owner == rank)
 *         printf("row %llu of %llu\n", (unsigned long long)local, (unsigned long long)my_rows);
 *
 * Keys are read as unsigned, so each of the 2^64 keys has one owner.
 *
 *   rule                                 rank                   local id
 *   HASH_ROUND_ROBIN                     hash(key) mod world    the key
 *   ROUND_ROBIN, key < rows              key mod world          key / world
 *   ROUND_ROBIN, other keys              key mod world          the key
 *   CONTINUOUS, key < rows               key / block            key mod block
 *   CONTINUOUS, key < block * world      key / block            the key
 *   CONTINUOUS, other keys               key mod world          the key
 *
 * Here block = rows / world, rounded up. A table with numbered rows stores local ids; rank and local
 * id together determine the key. The local id of a key outside the table is at least `rows`, so it
 * is the number of no row. A hash table stores keys: its ROUND_ROBIN has 0 rows.
 * HASH_ROUND_ROBIN distributes keys evenly, whatever pattern they have; ROUND_ROBIN sends keys with
 * a common stride to few ranks, and CONTINUOUS the most frequent keys to one rank if keys are
 * numbered by frequency. Numbered rows have the last two to choose from.
 *
 * Modelled on FBGEMM's block bucketize (CONTINUOUS) and dynamicemb's dist types (the other two). */
#ifndef HOTBED_ROUTE_H
#define HOTBED_ROUTE_H

#include "hotbed/status.h"

#include <stdint.h>

HOTBED_BEGIN_DECLS

/* Sharding rules. The numbers are ABI; checkpoints contain the names. */
typedef enum hotbed_route_kind {
    HOTBED_ROUTE_HASH_ROUND_ROBIN = 0,
    HOTBED_ROUTE_ROUND_ROBIN = 1,
    HOTBED_ROUTE_CONTINUOUS = 2,
} hotbed_route_kind;

/* How the keys of one table are assigned to ranks. Plain data, made by hotbed_route_init(). Frozen:
 * it has no size field, since options have arrays of it. */
typedef struct hotbed_route {
    hotbed_route_kind kind;
    uint32_t world; /* number of ranks, at least 1 */
    uint64_t rows;  /* numbered rows: keys 0 .. rows-1 are in the table; otherwise 0 */
    uint64_t block; /* CONTINUOUS: rows per rank; others: 0 */
} hotbed_route;

/* Initialize a route.
 *
 *   rows  in  rows of the table over all ranks; CONTINUOUS: 1 .. 2^62; ROUND_ROBIN: 0 .. 2^62, 0 if
 *             the table stores keys; HASH_ROUND_ROBIN: ignored
 *
 * Errors: ARGUMENT (NULL, unknown kind, world of 0 or over 2^31, rows out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_route_init(hotbed_route *route, hotbed_route_kind kind, uint32_t world, uint64_t rows);

/* Return the rank that owns `key`. */
HOTBED_API uint32_t hotbed_route_rank(const hotbed_route *route, uint64_t key);

/* Write the ranks that own n keys: for bindings, in which a call for each key would be slow.
 *
 *   keys   in   [n] host memory
 *   ranks  out  [n] host memory */
HOTBED_API void hotbed_route_ranks(
    const hotbed_route *route, uint64_t n, const uint64_t *keys, uint32_t *ranks);

/* Return the local id of `key` on its rank. */
HOTBED_API uint64_t hotbed_route_local(const hotbed_route *route, uint64_t key);

/* Return the key that has local id `local` on `rank`. Only for pairs that the two functions above
 * return. */
HOTBED_API uint64_t hotbed_route_key(const hotbed_route *route, uint32_t rank, uint64_t local);

/* Return the number of numbered rows that `rank` owns; their local ids are 0 .. n-1. 0 for the last
 * ranks of a table with few rows, and if rows are not numbered. */
HOTBED_API uint64_t hotbed_route_rows(const hotbed_route *route, uint32_t rank);

/* Return "hash_roundrobin", "roundrobin" or "continuous", the names in dynamicemb and in
 * checkpoints; NULL for other numbers. */
HOTBED_API const char *hotbed_route_name(hotbed_route_kind kind);

HOTBED_END_DECLS
#endif
