/* checkpoint/share.h - the rows of one rank: keys and local ids, and what is whose. */
#ifndef HOTBED_CHECKPOINT_SHARE_H
#define HOTBED_CHECKPOINT_SHARE_H

#include "checkpoint/manifest.h"
#include "hotbed/checkpoint.h"

/* Errors: ARGUMENT, as hotbed_checkpoint_load_share() says.  Sets *out to the share, world at least 1. */
hotbed_status hotbed_share_read(
    const hotbed_checkpoint_share *share, const hotbed_storage *storage,
    hotbed_checkpoint_share *out);

/* What the storage keeps for `key`: its number in a STATIC table of several ranks. */
static inline uint64_t hotbed_share_local(
    const hotbed_checkpoint_share *share, uint32_t table, bool is_static, uint64_t key) {
    return share->routes == NULL || !is_static ? key
                                               : hotbed_route_local(&share->routes[table], key);
}

/* Whether the rank has `key`. */
static inline bool hotbed_share_has(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t key) {
    return share->routes == NULL || hotbed_route_rank(&share->routes[table], key) == share->rank;
}

/* Rows [*first, *end) of a STATIC table are the rank's; `capacity` is the storage's. */
void hotbed_share_rows(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t capacity, uint64_t *first,
    uint64_t *end);

/* Set the route of a table of a manifest, and whether it has this one. */
void hotbed_share_describe(
    const hotbed_checkpoint_share *share, uint32_t table, hotbed_manifest_table *out);
bool hotbed_share_is(
    const hotbed_checkpoint_share *share, uint32_t table, const hotbed_manifest *manifest,
    const hotbed_manifest_table *saved);

#endif
