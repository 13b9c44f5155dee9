/* hotbed/route.h - which rank owns a key: row-wise sharding of a table over all ranks.
 *
 * One function for everybody: the kernels that send keys to their owners, checkpoints that deal rows out to
 * other numbers of ranks, and tools.  Keys are read as unsigned, so each of the 2^64 has one owner.
 *
 *   rule                    rank                        local id
 *   HASH_ROUND_ROBIN        hash(key) mod world         the key
 *   ROUND_ROBIN             key mod world               the key
 *   CONTINUOUS, inside      key / block                 key mod block
 *   CONTINUOUS, outside     key mod world               key / world
 *
 * with block = rows / world, rounded up, and a key inside when it is below block * world.  The local id is
 * what a table whose rows are numbered keeps; a key follows from its rank and local id.  HASH_ROUND_ROBIN is
 * even for whatever keys have in common; ROUND_ROBIN sends keys with a common stride to few ranks.
 *
 * Ideas: FBGEMM's block bucketize (CONTINUOUS), dynamicemb's dist types (the other two).
 */
#ifndef HOTBED_ROUTE_H
#define HOTBED_ROUTE_H

#include "hotbed/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are ABI; checkpoints have the names. */
typedef enum hotbed_route_kind {
    HOTBED_ROUTE_HASH_ROUND_ROBIN = 0,
    HOTBED_ROUTE_ROUND_ROBIN = 1,
    HOTBED_ROUTE_CONTINUOUS = 2,
} hotbed_route_kind;

/* How the keys of one table are dealt out.  Plain data, made by hotbed_route_init(). */
typedef struct hotbed_route {
    hotbed_route_kind kind;
    uint32_t world; /* ranks, at least 1 */
    uint64_t rows;  /* CONTINUOUS: keys 0 .. rows-1 are inside; others: 0 */
    uint64_t block; /* CONTINUOUS: rows a rank */
} hotbed_route;

/* Describe a rule.
 *
 *   rows  in  CONTINUOUS: rows of the table over all ranks, 1 .. 2^62; ignored otherwise
 *
 * Errors: ARGUMENT (NULL, unknown kind, world of 0 or over 2^31, rows out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_route_init(hotbed_route *route, hotbed_route_kind kind, uint32_t world, uint64_t rows);

/* Rank that owns `key`. */
HOTBED_API uint32_t hotbed_route_rank(const hotbed_route *route, uint64_t key);

/* Number of `key` on its rank. */
HOTBED_API uint64_t hotbed_route_local(const hotbed_route *route, uint64_t key);

/* The key that is number `local` on `rank`.  Only for pairs that the two calls above give. */
HOTBED_API uint64_t hotbed_route_key(const hotbed_route *route, uint32_t rank, uint64_t local);

/* CONTINUOUS: rows inside that `rank` owns, which are local ids 0 .. n-1; 0 for the last ranks of a table
 * with few rows.  Other rules: 0. */
HOTBED_API uint64_t hotbed_route_rows(const hotbed_route *route, uint32_t rank);

/* "hash_roundrobin", "roundrobin", "continuous", as dynamicemb and checkpoints say; NULL for other
 * numbers. */
HOTBED_API const char *hotbed_route_name(hotbed_route_kind kind);

#ifdef __cplusplus
}
#endif
#endif
