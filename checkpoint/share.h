/* checkpoint/share.h - the rows of one rank: keys, local ids, and their owners. */
#pragma once

#include "checkpoint/format/manifest.h"
#include "checkpoint/storages.h"
#include "hotbed/checkpoint.h"

/* Read a share from a caller's struct. Sets *out to the share, with world at least 1. Errors:
 * ARGUMENT (it breaks a rule of hotbed_checkpoint_share). */
hotbed_status hotbed_share_read(
    const hotbed_checkpoint_share *share, const hotbed_storages *storages,
    hotbed_checkpoint_share *out);

/* Return the key that the storage uses for `key`: the local id in a STATIC table of several
 * ranks. */
static inline uint64_t hotbed_share_local(
    const hotbed_checkpoint_share *share, uint32_t table, bool is_static, uint64_t key) {
    return share->routes == NULL || !is_static ? key
                                               : hotbed_route_local(&share->routes[table], key);
}

/* Whether the rank stores `key`. */
static inline bool hotbed_share_has(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t key) {
    return share->routes == NULL || hotbed_route_rank(&share->routes[table], key) == share->rank;
}

/* Check that the rank owns all keys of a HASH table, [n]. If the route assigned a key to another
 * rank, that rank would not find it when the checkpoint is loaded. Errors: STATE (the first such
 * key, with both ranks). */
hotbed_status hotbed_share_check_keys(
    const hotbed_checkpoint_share *share, const hotbed_manifest *manifest, uint32_t table,
    uint64_t n, const uint64_t *keys);

/* Set the places [*first, *end) that the rank's rows of a STATIC table have in a list of all rows,
 * one rank's after another's. They are the numbers of the rows unless the route deals them.
 * `capacity` is the storage's. */
void hotbed_share_rows(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t capacity, uint64_t *first,
    uint64_t *end);

/* Whether the rows of a STATIC table are dealt to several ranks in turn. */
bool hotbed_share_deals(const hotbed_checkpoint_share *share, uint32_t table);

/* Return how many of the rows 0 .. most-1 of a STATIC table belong to the rank. `capacity` is the
 * storage's. */
uint64_t hotbed_share_count(
    const hotbed_checkpoint_share *share, uint32_t table, uint64_t capacity, uint64_t most);

/* Set the route of a table in a manifest; and return whether a saved table has the share's route
 * and world. */
void hotbed_share_describe(
    const hotbed_checkpoint_share *share, uint32_t table, hotbed_manifest_table *out);
bool hotbed_share_is(
    const hotbed_checkpoint_share *share, uint32_t table, const hotbed_manifest *manifest,
    const hotbed_manifest_table *saved);
